"""What the parts of the figures share: rows with their time, those of rare events, counts that several parts look at.

What more than one part needs is worked out once and kept until all are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as F  # noqa: N812
from pyspark.storagelevel import StorageLevel

from pyspark_gapless.figures import blocking, latency, lives, streams, traffic
from pyspark_gapless.figures.clocks import VIRTUAL, Clock
from pyspark_gapless.figures.rows import LIFE, sent, timed, weighed
from pyspark_gapless.trace.trace import SAMPLED, is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from pyspark_gapless.trace import Trace

MOST_LIVES = 200
"""So many lives are told, those with the most rows."""
MOST_IN_TIME = 32
"""So many of them over time."""
MOST_STEPS = 200
"""Into so many steps a run is cut; with many lives fewer, so that there are at most ``MOST_POINTS`` points."""
MOST_POINTS = 3200
"""So many points over time, of all lives together."""

RARE = (
    *("NAK_OUT", "NAK_IN", "REPAIR", "BLOCK", "UNBLOCK", "MEMBERS", "BEGIN", "START", "LOST"),
    *("EXPELLED", "CRASH", "REST", "END"),
)
"""The events of which there are few: they are read once and kept."""


class Names:
    """The names of lives; where there are several seeds, with the seed before them."""

    def __init__(self, table: DataFrame) -> None:
        rows = table.select("life", "name", "member").distinct().collect()
        self._several = table.select("seed").distinct().limit(2).count() > 1
        self._names = {row.life: row.name for row in rows}
        self._members = {row.life: row.member for row in rows if row.member}

    def __call__(self, seed: int, life: int) -> str:
        """Return the name of a life; nobody's is empty."""
        return self.prefixed(seed, self._names.get(life) or str(life)) if life else ""

    def prefixed(self, seed: int, name: str) -> str:
        """Return a name as it is told."""
        return f"{seed}:{name}" if self._several else name

    def member(self, life: int) -> str:
        """Return whose life it is."""
        return self._members.get(life) or self._names.get(life) or str(life)


class Work:
    """One trace, with the clocks of its lives, while its figures are worked out."""

    def __init__(self, trace: Trace, clocks: Sequence[Clock]) -> None:
        self.clocks = {clock.life: clock for clock in clocks}
        self._lives = trace.lives
        own = trace.lives.where("own").select("mode", "clock").distinct().collect()
        self.mode = SAMPLED if any(row.mode == SAMPLED for row in own) else "full"
        self.simulated = bool(own) and all(row.clock == VIRTUAL for row in own)
        self.rows = weighed(timed(trace.rows, clocks), trace.lives)
        self.names = Names(trace.lives)
        self._kept: list[DataFrame] = []
        self._clocks = clocks

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for frame in self._kept:
            frame.unpersist()

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    @cached_property
    def rare(self) -> DataFrame:
        """The rows of rare events."""
        kept = (*LIFE, "idx", "step", "at_ns", "event", "view", "origin", "epoch", "to", "seqno", "seqno_last")
        return self._keep(self.rows.where(is_one_of(*RARE)).select(*kept, "part", "peer", "high", "reason"))

    @cached_property
    def spans(self) -> DataFrame:
        """When each life began and ended."""
        return self._keep(lives.spans(self.rows).frame)

    @cached_property
    def chosen(self) -> list[Row]:
        """The lives that are told, with their spans: those with the most rows, in the order in which they began."""
        most = self.spans.orderBy(F.desc("events"), *LIFE).limit(MOST_LIVES).collect()
        return sorted(most, key=lambda row: (row.seed, row.began_ns, row.member))

    @property
    def busiest(self) -> list[tuple[int, int]]:
        """The lives that are told over time."""
        ranked = sorted(self.chosen, key=lambda row: (-row.events, row.seed, row.member))
        return [(row.seed, row.member) for row in ranked[:MOST_IN_TIME]]

    @cached_property
    def _bounds(self) -> tuple[int, int, int]:
        first, last = self.spans.agg(F.min("began_ns"), F.max("ended_ns")).collect()[0]
        steps = min(MOST_STEPS, MOST_POINTS // max(1, len(self.busiest)))
        begin_ns, end_ns = first or 0, last or 0
        return begin_ns, end_ns, (end_ns - begin_ns) // steps + 1

    @property
    def begin_ns(self) -> int:
        """When the first row of all was written."""
        return self._bounds[0]

    @property
    def step_ns(self) -> int:
        """How long one of the steps is into which the run is cut."""
        return self._bounds[2]

    @property
    def step(self) -> Column:
        """In which step a row was written."""
        return F.floor((F.col("at_ns") - self.begin_ns) / self.step_ns)

    def told(self, frame: DataFrame, only: Sequence[tuple[int, int]] | None = None) -> DataFrame:
        """Return the rows about the lives that are told, or about ``only`` these."""
        pairs = [(row.seed, row.member) for row in self.chosen] if only is None else list(only)
        table = frame.sparkSession.createDataFrame(pairs, "seed bigint, member bigint")
        return frame.join(F.broadcast(table), list(LIFE), "left_semi")

    @cached_property
    def counts(self) -> DataFrame:
        """How many rows of what there are, by life and step."""
        return self._keep(traffic.counts(self.rows, self.step).frame)

    @cached_property
    def carried(self) -> DataFrame:
        """What each life delivered of each stream."""
        return self._keep(streams.carried(self.rows).frame)

    @cached_property
    def deliveries(self) -> DataFrame:
        """The deliveries that have a latency, with it."""
        return sent(latency.of_others(self.rows, simulated=self.simulated), self._clocks)

    @cached_property
    def histograms(self) -> DataFrame:
        """How many messages of which stream took how long, at each life."""
        return self._keep(latency.histogram(self.deliveries, "seed", "member", "origin", "to"))

    @cached_property
    def waits(self) -> DataFrame:
        """The stretches in which sends waited."""
        return self._keep(blocking.waits(self.rows, self.rare, self.spans).frame)

    @cached_property
    def ends(self) -> DataFrame:
        """How each life ended."""
        return lives.ends(self.spans, self.rare, self._lives).frame
