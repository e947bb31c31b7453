"""The spool: what a group has sent, on disk, for Spark and others to read. See docs/spool.md.

:class:`Spool` is the one writer, :class:`SpoolView` reads.
"""

from __future__ import annotations

from gapless.spool.consumer_registry import Reader
from gapless.spool.errors import (
    SpoolCorrupt,
    SpoolError,
    SpoolFailed,
    SpoolFull,
    SpoolGap,
    SpoolGone,
    SpoolLocked,
    SpoolMismatch,
    SpoolReadOnly,
    SpoolTrimmed,
    SpoolVersion,
)
from gapless.spool.format import MESSAGE, RUN, parse_key
from gapless.spool.index import Hole
from gapless.spool.limits import DROP_OLDEST, WAIT, Limits
from gapless.spool.reader import SpoolView
from gapless.spool.record_reader import Record, Slice
from gapless.spool.recovery import Recovered
from gapless.spool.retention import Trimmed, Usage
from gapless.spool.writer import Spool

__all__ = [
    "DROP_OLDEST",
    "MESSAGE",
    "RUN",
    "WAIT",
    "Hole",
    "Limits",
    "Reader",
    "Record",
    "Recovered",
    "Slice",
    "Spool",
    "SpoolCorrupt",
    "SpoolError",
    "SpoolFailed",
    "SpoolFull",
    "SpoolGap",
    "SpoolGone",
    "SpoolLocked",
    "SpoolMismatch",
    "SpoolReadOnly",
    "SpoolTrimmed",
    "SpoolVersion",
    "SpoolView",
    "Trimmed",
    "Usage",
    "parse_key",
]
