"""Traces: rows of what happened, written by real processes or by the simulator, and the checks that read them."""

from gapless.trace.checks import CHECKS, check
from gapless.trace.facts import Facts, Violation
from gapless.trace.reader import merged, read
from gapless.trace.schema import CODES, COLUMNS, EVENTS, NAMES, Row, life_id
from gapless.trace.writer import Writer

__all__ = [
    "CHECKS",
    "CODES",
    "COLUMNS",
    "EVENTS",
    "NAMES",
    "Facts",
    "Row",
    "Violation",
    "Writer",
    "check",
    "life_id",
    "merged",
    "read",
]
