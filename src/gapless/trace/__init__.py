"""Traces: a row for each step of a member, from real processes or the simulator, and checks."""

from gapless.trace.checks import CHECKS, TraceFacts, TraceViolation, check
from gapless.trace.incarnations import IncarnationRecord
from gapless.trace.parquet import SealResult, seal
from gapless.trace.reader import incarnations_of, read
from gapless.trace.recorder import Recorder
from gapless.trace.schema import COLUMNS, EVENT_CODES, EVENT_NAMES, EVENTS, TraceRow, incarnation_id

__all__ = [
    "CHECKS",
    "COLUMNS",
    "EVENTS",
    "EVENT_CODES",
    "EVENT_NAMES",
    "IncarnationRecord",
    "Recorder",
    "SealResult",
    "TraceFacts",
    "TraceRow",
    "TraceViolation",
    "check",
    "incarnation_id",
    "incarnations_of",
    "read",
    "seal",
]
