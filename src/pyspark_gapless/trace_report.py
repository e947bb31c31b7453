"""The input of a report on a trace: the verdict and the figures, both computed on Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark_gapless.analytics import figures
from pyspark_gapless.quiet_session import own_interrupts
from pyspark_gapless.session import active_session, session
from pyspark_gapless.trace import Trace
from pyspark_gapless.verify import CHECKS, NOT_CHECKABLE, verify

ProgressCallback = Callable[[str, float], None]
"""Called with the current step, and the finished share of the work."""

_CHECKS_SHARE = 0.5


def trace_figures(
    path: str | Path,
    *,
    master: str | None = None,
    title: str = "",
    tell: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Return the figures and the verdict of a trace, ready for JSON.

    A running session is used and left running; a newly started session is stopped.
    """
    told = tell or _silent
    told("Spark starts", 0.0)
    before = active_session()
    with own_interrupts():
        spark = session("gapless report", master=master)
    try:
        told("reads the trace", 0.02)
        trace = Trace.read(spark, path)
        verdict = _verdict(trace, told)

        def progress(part: str, done: int, parts: int) -> None:
            told(
                f"figures: {part.replace('_', ' ')}",
                _CHECKS_SHARE + (1 - _CHECKS_SHARE) * done / parts,
            )

        return {**figures(trace, title=title, progress=progress), **verdict}
    finally:
        if before is None:
            spark.stop()


def _verdict(trace: Trace, told: ProgressCallback) -> dict[str, Any]:
    """Return the results of the checks, and the invariants that no trace can show."""
    steps = len(CHECKS) + 2
    done = 0

    def progress(check: str, _rows: int) -> None:
        nonlocal done
        done += 1
        told(f"checks: {check}", _CHECKS_SHARE * min(1.0, done / steps))

    found = verify(trace, progress=progress).as_dict()
    found["verdict"]["not_shown"] = [
        {"id": check, "why": why} for check, why in NOT_CHECKABLE.items()
    ]
    return found


def _silent(*_: object) -> None:
    return
