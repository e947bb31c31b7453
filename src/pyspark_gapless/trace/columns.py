"""The columns of a trace as Spark knows them, and the numbers of its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_gapless.trace import interim

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS: Mapping[str, str] = interim.COLUMNS
"""Every column of a row with its type, as Spark writes it."""
CODES: Mapping[str, int] = interim.CODES
"""The number of each event by its name."""
NAMES: Mapping[int, str] = {code: name for name, code in CODES.items()}
"""The name of each event by its number."""
LIVES: Mapping[str, str] = {
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
    "knobs": "map<string,string>",
}
"""Every column of a line about a life. Only ``seed``, ``life`` and ``name`` are there for lives without rows."""
STREAM = ("seed", "origin", "epoch", "to")
"""What names a stream."""
AT = ("seed", "member", *STREAM[1:])
"""What names a stream at one life."""


def ddl(columns: Mapping[str, str]) -> str:
    """Return columns as text that Spark reads."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
