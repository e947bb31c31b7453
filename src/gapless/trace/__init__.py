"""Traces: rows of what happened, written by real processes or by the simulator, and the checks that read them."""

from gapless.trace.checks import CHECKS, Facts, Violation, check
from gapless.trace.incarnations import Life
from gapless.trace.parquet import Sealed, seal
from gapless.trace.reader import lives_of, read
from gapless.trace.recorder import Recorder
from gapless.trace.schema import CODES, COLUMNS, EVENTS, NAMES, Row, life_id

__all__ = [
    "CHECKS",
    "CODES",
    "COLUMNS",
    "EVENTS",
    "NAMES",
    "Facts",
    "Life",
    "Recorder",
    "Row",
    "Sealed",
    "Violation",
    "check",
    "life_id",
    "lives_of",
    "read",
    "seal",
]
