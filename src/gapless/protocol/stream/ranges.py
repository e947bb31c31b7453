"""Arithmetic on ranges of seqnos: sorted, disjoint ``(first, last)``, both ends included."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.wire.frames import Range


def count(ranges: Iterable[Range]) -> int:
    """Return how many seqnos the ranges name."""
    return sum(last - first + 1 for first, last in ranges)


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Return the same seqnos as sorted, disjoint ranges that do not touch."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def insert(ranges: list[Range], first: int, last: int) -> list[Range]:
    """Add ``first .. last`` to the merged ``ranges``, in place; return the new part."""
    assert first <= last, f"{first}..{last} is not a range"
    at = bisect_left(ranges, (first,))
    if at and ranges[at - 1][1] >= first - 1:
        at -= 1
    end = bisect_right(ranges, (last + 1, last + 1), at)
    while end < len(ranges) and ranges[end][0] <= last + 1:
        end += 1
    met = ranges[at:end]
    fresh = subtract([(first, last)], met)
    if met:
        first, last = min(first, met[0][0]), max(last, met[-1][1])
    ranges[at:end] = [(first, last)]
    return fresh


def subtract(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return the seqnos in ``ranges`` and not in ``taken``; both sorted and disjoint."""
    result: list[Range] = []
    holes = list(taken)
    at = 0
    for first, last in ranges:
        while at < len(holes) and holes[at][1] < first:
            at += 1
        hole = at
        while first <= last and hole < len(holes) and holes[hole][0] <= last:
            if holes[hole][0] > first:
                result.append((first, holes[hole][0] - 1))
            first = holes[hole][1] + 1  # noqa: PLW2901 - the rest of the range goes on behind the hole
            hole += 1
        if first <= last:
            result.append((first, last))
    return result


def overlaps(ranges: Sequence[Range], first: int, last: int) -> bool:
    """Return whether ``ranges`` name any of ``first .. last``."""
    at = bisect_left(ranges, (last + 1,))
    return at > 0 and ranges[at - 1][1] >= first


def clip(ranges: Iterable[Range], floor: int, ceiling: int) -> list[Range]:
    """Return the part of ``ranges`` in ``floor .. ceiling``."""
    return [
        (max(first, floor), min(last, ceiling))
        for first, last in ranges
        if first <= ceiling and last >= floor
    ]


def take_lowest(ranges: Iterable[Range], limit: int) -> list[Range]:
    """Return the lowest ``limit`` seqnos of ``ranges``."""
    result: list[Range] = []
    for first, last in ranges:
        if limit <= 0:
            break
        last = min(last, first + limit - 1)  # noqa: PLW2901 - cut to what is left of the limit
        result.append((first, last))
        limit -= last - first + 1
    return result
