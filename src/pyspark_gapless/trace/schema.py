"""The columns of a trace in Spark, and the codes of the events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.trace import schema

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES = {"int64": "bigint", "int32": "int", "int8": "tinyint", "string": "string"}
COLUMNS: Mapping[str, str] = {name: _TYPES[column.type] for name, column in schema.COLUMNS.items()}
"""Every column of a row with its Spark type."""
INCARNATION_COLUMNS: Mapping[str, str] = {
    "seed": "bigint",
    "life": "bigint",
    "name": "string",
    "own": "boolean",
    "member": "string",
    "mode": "string",
    "every": "bigint",
    "clock": "string",
    "release": "string",
    "retransmits": "boolean",
    "stores": "boolean",
    "whole": "boolean",
    "knobs": "map<string,string>",
}
"""Columns of an incarnation; without rows only ``seed``, ``life`` and ``name`` are set."""
STREAM_KEY = ("seed", "origin", "epoch", "to")
"""The columns that identify a stream."""
STREAM_AT_MEMBER = ("seed", "member", *STREAM_KEY[1:])
"""The columns that identify a stream at an incarnation."""
INCARNATION_KEY = ("seed", "member")
"""The columns that identify an incarnation."""


def ddl(columns: Mapping[str, str]) -> str:
    """Return columns as text for Spark."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
