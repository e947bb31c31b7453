"""Frames shared by several parts of the figures: timed rows, rare events, counts.

Every job on Spark has a fixed cost. So a frame for several parts is computed once, and a frame
without any event in the trace is not computed at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from gapless.trace.schema import EVENT_NAMES
from pyspark_gapless.analytics import blocked_sends, incarnations, latency, traffic
from pyspark_gapless.analytics.histogram import Histogram, histograms
from pyspark_gapless.analytics.timed_rows import (
    small_frame,
    with_latency,
    with_message_count,
    with_time,
)
from pyspark_gapless.trace.schema import INCARNATION_KEY
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from pyspark_gapless.analytics.clock_offsets import ClockOffset
    from pyspark_gapless.analytics.incarnation_info import IncarnationKey, Incarnations

MAX_INCARNATIONS = 200
"""Maximum number of incarnations in the figures: the incarnations with the most rows."""
MAX_INCARNATIONS_OVER_TIME = 32
"""Maximum number of incarnations over time."""
MAX_STEPS = 200
"""Number of steps of a run; fewer with many incarnations, to stay below ``MAX_POINTS``."""
MAX_POINTS = 3200
"""Maximum number of points over time, of all incarnations together."""

RARE_EVENTS = ("NAK_OUT", "BLOCK", "UNBLOCK", "MEMBERS", "BEGIN")
"""Rare events with several uses: read once and cached."""


class IncarnationSpan(NamedTuple):
    """The time span of an incarnation on the reference clock, and the number of rows."""

    seed: int
    member: int
    began_ns: int
    ended_ns: int
    events: int


class SharedFrames:
    """A trace, with the clocks of its incarnations, while the figures are computed."""

    def __init__(self, known: Incarnations, clocks: Sequence[ClockOffset]) -> None:
        self.incarnations = known
        self.clocks = {clock.life: clock for clock in clocks}
        self._offsets_ns = {clock.life: clock.offset_ns for clock in clocks}
        self.rows = with_message_count(
            with_time(known.trace.rows, self._offsets_ns), known.sampling
        )
        self._persisted: list[DataFrame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for frame in self._persisted:
            frame.unpersist()

    def _persist(self, frame: DataFrame) -> DataFrame:
        self._persisted.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    # Who, and when

    @cached_property
    def spans(self) -> list[IncarnationSpan]:
        """Every incarnation with rows, most rows first."""
        found = []
        for row in self.incarnations.spans:
            ahead_ns = self._offsets_ns.get(row.member, 0)
            found.append(
                IncarnationSpan(
                    row.seed,
                    row.member,
                    row.began_ns - ahead_ns,
                    row.ended_ns - ahead_ns,
                    row.events,
                )
            )
        return sorted(found, key=lambda life: (-life.events, life.seed, life.member))

    @property
    def listed(self) -> list[IncarnationSpan]:
        """The incarnations in the figures, in the order of their start."""
        return sorted(
            self.spans[:MAX_INCARNATIONS], key=lambda life: (life.seed, life.began_ns, life.member)
        )

    @cached_property
    def begin_ns(self) -> int:
        """When the first row of all was written."""
        return min((life.began_ns for life in self.spans), default=0)

    @cached_property
    def span_ns(self) -> int:
        """The time from the first row to the last, both included."""
        return max((life.ended_ns for life in self.spans), default=0) - self.begin_ns + 1

    @cached_property
    def step_ns(self) -> int:
        """The length of a time step of the run."""
        steps = min(
            MAX_STEPS, MAX_POINTS // max(1, min(MAX_INCARNATIONS_OVER_TIME, len(self.spans)))
        )
        return -(-self.span_ns // steps)

    def step(self, step_ns: int | None = None) -> Column:
        """The step of a row."""
        return F.floor((F.col("at_ns") - self.begin_ns) / (step_ns or self.step_ns))

    def busiest_only(self, frame: DataFrame, most: int = MAX_INCARNATIONS) -> DataFrame:
        """Return the rows of the ``most`` incarnations with the most rows."""
        if len(self.spans) <= most:
            return frame
        busiest = self.spans[:most]
        table = {
            "seed": [life.seed for life in busiest],
            "member": [life.member for life in busiest],
        }
        return frame.join(
            small_frame(frame.sparkSession, table), list(INCARNATION_KEY), "left_semi"
        )

    # What happened

    @cached_property
    def rare_rows(self) -> DataFrame:
        """The rows of rare events."""
        kept = (
            *INCARNATION_KEY,
            "idx",
            "step",
            "at_ns",
            "event",
            "view",
            "origin",
            "epoch",
            "to",
            "seqno",
            "seqno_last",
        )
        return self._persist(
            self.rows.where(is_one_of(*RARE_EVENTS)).select(*kept, "peer", "high", "reason")
        )

    @cached_property
    def counts(self) -> DataFrame:
        """The number of rows by incarnation, event and step."""
        return self._persist(
            traffic.counts(self.rows, self.step(), simulated=self.incarnations.simulated).frame
        )

    @cached_property
    def events(self) -> list[Row]:
        """The counts of the whole run: a row for each incarnation and event."""
        return traffic.events(self.counts).frame.collect()

    @cached_property
    def events_by_incarnation(self) -> dict[IncarnationKey, set[str]]:
        """The events of each incarnation."""
        found: dict[IncarnationKey, set[str]] = {}
        for row in self.events:
            found.setdefault((row.seed, row.member), set()).add(EVENT_NAMES.get(row.event, ""))
        return found

    def has_event(self, event: str) -> bool:
        """Return whether there is any row of an event."""
        return any(event in events for events in self.events_by_incarnation.values())

    @cached_property
    def deliveries(self) -> DataFrame:
        """The deliveries with a latency."""
        return with_latency(
            latency.remote_deliveries(self.rows, simulated=self.incarnations.simulated),
            self._offsets_ns,
        )

    @cached_property
    def latencies(self) -> list[tuple[tuple[int, ...], dict[str, Any], Histogram]]:
        """How many messages took how long, for each seed, member, origin and to."""
        found = latency.latencies(self.deliveries).frame
        return list(histograms(found, ("seed", "member", "origin", "to")))

    @cached_property
    def ends(self) -> DataFrame:
        """When each incarnation ended."""
        spark = self.rows.sparkSession
        table = {
            name: [getattr(life, name) for life in self.spans]
            for name in ("seed", "member", "ended_ns")
        }
        return small_frame(spark, table)

    @cached_property
    def waits(self) -> DataFrame:
        """The time spans with waiting sends."""
        return self._persist(blocked_sends.waits(self.rows, self.rare_rows, self.ends).frame)

    @cached_property
    def reaches(self) -> dict[IncarnationKey, int]:
        """The reach of the windows of each incarnation."""
        said = self.incarnations.reaches
        if len(said) == len(self.incarnations.recorded) or not self.has_event("BEGIN"):
            return said
        return {
            (row.seed, row.member): row.reach
            for row in incarnations.window_reach(self.rare_rows).collect()
        } | said
