"""The figures of a run: everything together, as one object that a page draws and a program reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import gapless
from pyspark_gapless.analytics import sections
from pyspark_gapless.analytics.clock_offsets import Clock, of
from pyspark_gapless.analytics.incarnation_info import Known
from pyspark_gapless.analytics.shared_frames import Work

if TYPE_CHECKING:
    from pyspark_gapless.trace import Trace

Progress = Callable[[str, int, int], None]
"""Told what is worked out next, how many parts are done, and how many there are."""

PARTS: dict[str, Callable[[Work], Any]] = {
    "lives": sections.told_lives,
    "views": sections.told_views,
    "overhead": sections.overhead,
    "latency": sections.latencies,
    "summary": sections.summary,
    "blocked": sections.blocked,
    "over_time": sections.over_time,
    "windows": sections.told_windows,
    "occupancy": sections.occupancy,
    "repair_log": sections.repair_log,
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

    ``clocks`` are what :func:`~pyspark_gapless.analytics.clock_offsets.clocks` says of the same
    trace; without them it is asked.
    """
    tell = progress or _silent
    tell("clocks", 0, len(PARTS) + 1)
    known = Known(trace)
    told = (
        of(known)
        if clocks is None
        else [Clock(**{key: one[key] for key in Clock._fields}) for one in clocks]
    )
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
