"""The incarnations of a trace: names, modes, clocks, and their time spans."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gapless.trace.incarnations import VIRTUAL
from pyspark_gapless.analytics import incarnations
from pyspark_gapless.trace.trace import SAMPLED

if TYPE_CHECKING:
    from pyspark.sql import Row

    from pyspark_gapless.trace import Trace

IncarnationKey = tuple[int, int]
"""Seed and number of an incarnation."""


class Incarnations:
    """The incarnations of a trace: a row for each, and the spans of incarnations with rows."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.rows: list[Row] = trace.incarnations.collect()
        self.recorded = [row for row in self.rows if row.own]
        self._names = {row.life: row.name for row in self.rows}
        self._members = {row.life: row.member for row in self.recorded if row.member}
        self._many_seeds = len({row.seed for row in self.rows}) > 1

    @cached_property
    def spans(self) -> list[Row]:
        """The first and the last time in the rows of each incarnation, on its own clock."""
        return incarnations.spans(self.trace.rows).frame.collect()

    @property
    def simulated(self) -> bool:
        """Whether the simulator wrote the trace."""
        return bool(self.recorded) and all(row.clock == VIRTUAL for row in self.recorded)

    @property
    def mode(self) -> str:
        """Whether every row was written, or only a sample for some incarnations."""
        return SAMPLED if any(row.mode == SAMPLED for row in self.recorded) else "full"

    @property
    def sampling(self) -> dict[IncarnationKey, int]:
        """The sampling interval of each sampled incarnation."""
        return {
            (row.seed, row.life): row.every
            for row in self.recorded
            if row.mode == SAMPLED and row.every > 1
        }

    @property
    def reaches(self) -> dict[IncarnationKey, int]:
        """The reach of the windows of each incarnation, where known."""
        said = ((row, (row.knobs or {}).get("reach", "")) for row in self.recorded)
        return {(row.seed, row.life): int(reach) for row, reach in said if reach.isdecimal()}

    def name(self, seed: int, life: int) -> str:
        """Return the name of an incarnation, with the seed if there are several; empty for 0."""
        return self.with_seed(seed, self._names.get(life) or str(life)) if life else ""

    def with_seed(self, seed: int, name: str) -> str:
        """Return a name with its seed, in a trace of several seeds."""
        return f"{seed}:{name}" if self._many_seeds else name

    def member_name(self, life: int) -> str:
        """Return the name of the member of an incarnation."""
        return self._members.get(life) or self._names.get(life) or str(life)
