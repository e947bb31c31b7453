"""The columns of a message, in the source and in the bronze table."""

from __future__ import annotations

from typing import Final

COLUMNS: Final = {
    "group": "string",
    "origin": "string",
    "name": "string",
    "node": "string",
    "incarnation": "bigint",
    "seqno": "bigint",
    "mode": "string",
    "view": "bigint",
    "sent": "timestamp",
    "collected": "timestamp",
    "headers": "map<string,binary>",
    "payload": "binary",
}
"""The columns of a message, with their Spark types."""
