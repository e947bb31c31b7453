"""The figures of a run: everything together, as one object that a page draws and a program reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import gapless
from pyspark_gapless.figures import parts
from pyspark_gapless.figures.clocks import Clock, of
from pyspark_gapless.figures.known import Known
from pyspark_gapless.figures.work import Work

if TYPE_CHECKING:
    from pyspark_gapless.trace import Trace

Progress = Callable[[str, int, int], None]
"""Told what is worked out next, how many parts are done, and how many there are."""

PARTS: dict[str, Callable[[Work], Any]] = {
    "lives": parts.told_lives,
    "views": parts.told_views,
    "overhead": parts.overhead,
    "latency": parts.latencies,
    "summary": parts.summary,
    "blocked": parts.blocked,
    "over_time": parts.over_time,
    "windows": parts.told_windows,
    "occupancy": parts.occupancy,
    "repair_log": parts.repair_log,
}
"""The parts by their names, in the order in which they are worked out."""


def figures(
    trace: Trace,
    clocks: Sequence[Mapping[str, Any]] | None = None,
    *,
    title: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return the figures of a run, ready to be written as JSON; docs/figures.md says what each of them means.

    ``clocks`` are what :func:`~pyspark_gapless.figures.clocks.clocks` says of the same trace; without them it is asked.
    """
    tell = progress or _silent
    tell("clocks", 0, len(PARTS) + 1)
    known = Known(trace)
    told = of(known) if clocks is None else [Clock(**{key: one[key] for key in Clock._fields}) for one in clocks]
    found: dict[str, Any] = {
        "kind": "run",
        "title": title,
        "version": gapless.__version__,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    found |= {"mode": known.mode, "simulated": known.simulated}
    with Work(known, told) as work:
        for done, (name, part) in enumerate(PARTS.items(), 1):
            tell(name, done, len(PARTS) + 1)
            found[name] = part(work)
    return found


def _silent(*_: object) -> None:
    return
