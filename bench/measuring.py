"""Measurements in turns, so that a slow moment of the machine affects all alike; CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Turn = Callable[[], "float | None"]
"""A function to measure; may return its own seconds if more exact than the clock."""


class Again(Exception):  # noqa: N818 - it asks for something
    """A turn failed for a reason outside the measurement, such as a busy machine."""


class Sample(NamedTuple):
    """The cost of a turn."""

    wall_s: float
    cpu_s: float


class Spread(NamedTuple):
    """The median of several rounds, with the lowest and the highest."""

    middle: float
    lowest: float
    highest: float

    def rounded(self, digits: int) -> list[float]:
        """Return the spread for a program."""
        return [round(value, digits) for value in self]


def spread(values: Sequence[float]) -> Spread:
    """Return the median, the lowest and the highest."""
    return Spread(median(values), min(values), max(values))


def tree_cpu_s() -> float:
    """Return the CPU time of this process and all its descendants; 0 without /proc."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        process = int(entry.parent.name)
        parents[process] = int(fields[1])
        spent[process] = sum(map(int, fields[11:15])) / _TICKS_PER_S
    mine = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(spent.get(process, 0.0) for process in mine)


def take(turn: Turn, tries: int = 3) -> Sample:
    """Measure a turn."""
    cpu_s, started_s = tree_cpu_s(), time.perf_counter()
    try:
        own_s = turn()
    except Again:
        if tries == 1:
            raise
        return take(turn, tries - 1)
    wall_s = time.perf_counter() - started_s
    return Sample(wall_s if own_s is None else own_s, tree_cpu_s() - cpu_s)


def alternate(
    turns: Mapping[str, Turn], rounds: int, warm_ups: int, tick: Callable[[], None]
) -> dict[str, list[Sample]]:
    """Give each contender its turns, round by round; the first turns only warm up."""
    found: dict[str, list[Sample]] = {name: [] for name in turns}
    for number in range(-warm_ups, rounds):
        for name, turn in turns.items():
            sample = take(turn)
            if number >= 0:
                found[name].append(sample)
            tick()
    return found


def ratio(of: Sequence[float], to: Sequence[float]) -> Spread:
    """Return how many times ``to`` goes into ``of``, round by round."""
    return spread([one / max(other, 1e-9) for one, other in zip(of, to, strict=True)])
