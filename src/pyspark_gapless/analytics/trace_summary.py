"""All figures of a run: a single object for a page to draw and a program to read."""

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
"""Called with the next section, the number of finished sections, and the total."""

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
"""The sections by name, in the order of their computation."""


def figures(
    trace: Trace,
    clocks: Sequence[Mapping[str, Any]] | None = None,
    *,
    title: str = "",
    progress: SectionProgress | None = None,
) -> dict[str, Any]:
    """Return the figures of a run, ready for JSON (docs/reference/figures.md).

    ``clocks`` is the result of ``clocks`` for the same trace, computed if missing.
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
