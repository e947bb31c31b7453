"""Ranges against plain sets of numbers."""

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given, strategies as st

from gapless.protocol.stream import ranges
from gapless.wire.frames import Range

seqnos = st.integers(1, 60)
any_ranges = st.lists(
    st.tuples(seqnos, st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1])),
    max_size=12,
)


@st.composite
def disjoint(draw: st.DrawFn) -> list[Range]:
    """Sorted, disjoint ranges; they may touch, as those of a nak and of a window may."""
    result: list[Range] = []
    floor = draw(st.integers(1, 10))
    for gap, more in draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=12)):
        result.append((floor + gap, floor + gap + more))
        floor += gap + more + 1
    return result


def named(found: Iterable[Range]) -> list[int]:
    """Every seqno that the ranges name, in their order, having checked that no range is empty."""
    result: list[int] = []
    for first, last in found:
        assert first <= last, "an empty range"
        result += range(first, last + 1)
    return result


@given(any_ranges)
def test_count_counts_every_seqno(found: list[Range]) -> None:
    assert ranges.count(found) == len(named(found))


@given(any_ranges)
def test_merged_names_each_seqno_once_in_as_few_ranges_as_possible(found: list[Range]) -> None:
    merged = ranges.merge(found)
    assert named(merged) == sorted(set(named(found)))
    assert all(before[1] + 1 < after[0] for before, after in pairwise(merged)), "they touch"


@given(disjoint(), disjoint())
def test_minus_is_set_difference_in_order(found: list[Range], taken: list[Range]) -> None:
    assert named(ranges.subtract(found, taken)) == [
        seqno for seqno in named(found) if seqno not in set(named(taken))
    ]


@given(disjoint())
def test_minus_nothing_is_the_same_list(found: list[Range]) -> None:
    """The repairs tell by this comparison whether anything was taken away."""
    assert ranges.subtract(found, []) == found
    assert ranges.subtract(found, [(10**6, 10**6 + 5)]) == found
    assert ranges.subtract(found, found) == []


@given(disjoint(), seqnos, seqnos)
def test_within_keeps_what_lies_between(found: list[Range], floor: int, ceiling: int) -> None:
    assert named(ranges.clip(found, floor, ceiling)) == [
        s for s in named(found) if floor <= s <= ceiling
    ]


@given(disjoint(), seqnos, st.integers(0, 20))
def test_meet_tells_whether_anything_lies_between(
    found: list[Range], first: int, more: int
) -> None:
    assert ranges.overlaps(found, first, first + more) is any(
        first <= seqno <= first + more for seqno in named(found)
    )


@given(disjoint(), st.integers(0, 80))
def test_first_seqnos_keeps_the_lowest(found: list[Range], limit: int) -> None:
    assert named(ranges.take_lowest(found, limit)) == named(found)[:limit]
