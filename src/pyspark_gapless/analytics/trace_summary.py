"""The figures of a run together: one object that a page draws and a program reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import gapless
from pyspark_gapless.analytics import sections
from pyspark_gapless.analytics.clock_offsets import ClockOffset, offsets_of
from pyspark_gapless.analytics.incarnation_info import Incarnations
from pyspark_gapless.analytics.shared_frames import SharedFrames

if TYPE_CHECKING:
    from pyspark_gapless.trace import Trace

SectionProgress = Callable[[str, int, int], None]
"""Told what is worked out next, how many parts are done, and how many there are."""

SECTIONS: dict[str, Callable[[SharedFrames], Any]] = {
    "lives": sections.incarnation_list,
    "views": sections.view_list,
    "overhead": sections.overhead,
    "latency": sections.latencies,
    "summary": sections.summary,
    "blocked": sections.blocked,
    "over_time": sections.over_time,
    "windows": sections.busiest_windows,
    "occupancy": sections.occupancy,
    "repair_log": sections.repair_log,
}
"""The parts by their names, in the order in which they are worked out."""


def figures(
    trace: Trace,
    clocks: Sequence[Mapping[str, Any]] | None = None,
    *,
    title: str = "",
    progress: SectionProgress | None = None,
) -> dict[str, Any]:
    """Return the figures of a run, ready to be written as JSON (docs/figures.md).

    ``clocks`` are what :func:`~pyspark_gapless.analytics.clock_offsets.clocks` says of the same
    trace; without them it is asked.
    """
    tell = progress or _silent
    tell("clocks", 0, len(SECTIONS) + 1)
    known = Incarnations(trace)
    told = (
        offsets_of(known)
        if clocks is None
        else [ClockOffset(**{key: one[key] for key in ClockOffset._fields}) for one in clocks]
    )
    found: dict[str, Any] = {
        "kind": "run",
        "title": title,
        "version": gapless.__version__,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    found |= {"mode": known.mode, "simulated": known.simulated}
    with SharedFrames(known, told) as work:
        for done, (name, part) in enumerate(SECTIONS.items(), 1):
            tell(name, done, len(SECTIONS) + 1)
            found[name] = part(work)
    return found


def _silent(*_: object) -> None:
    return
