"""The spool: the messages of a group on disk, for Spark and other readers.

``SpoolWriter`` is the only writer of a spool, ``SpoolReader`` reads. docs/reference/spool.md
describes the files.
"""

from __future__ import annotations

from gapless.spool.consumer_registry import Consumer
from gapless.spool.encryption import SpoolKeys
from gapless.spool.errors import (
    SpoolCorrupt,
    SpoolError,
    SpoolFailed,
    SpoolFull,
    SpoolGap,
    SpoolGone,
    SpoolKeyError,
    SpoolLocked,
    SpoolMismatch,
    SpoolReadOnly,
    SpoolTrimmed,
    SpoolVersion,
)
from gapless.spool.format import MESSAGE, RUN, parse_stream_key
from gapless.spool.index import Hole
from gapless.spool.limits import DROP_OLDEST, WAIT, SpoolLimits
from gapless.spool.reader import SpoolReader
from gapless.spool.record_reader import Record, Slice
from gapless.spool.recovery import RecoveryResult
from gapless.spool.retention import SpoolUsage, TrimResult
from gapless.spool.writer import SpoolWriter

__all__ = [
    "DROP_OLDEST",
    "MESSAGE",
    "RUN",
    "WAIT",
    "Consumer",
    "Hole",
    "Record",
    "RecoveryResult",
    "Slice",
    "SpoolCorrupt",
    "SpoolError",
    "SpoolFailed",
    "SpoolFull",
    "SpoolGap",
    "SpoolGone",
    "SpoolKeyError",
    "SpoolKeys",
    "SpoolLimits",
    "SpoolLocked",
    "SpoolMismatch",
    "SpoolReadOnly",
    "SpoolReader",
    "SpoolTrimmed",
    "SpoolUsage",
    "SpoolVersion",
    "SpoolWriter",
    "TrimResult",
    "parse_stream_key",
]
