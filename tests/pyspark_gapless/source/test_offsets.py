"""Offsets and limits: canonical, monotone, fair, and a cover of every range by whoever has it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from pyspark_gapless.source.offsets import (
    READER,
    OffsetError,
    ReplicaSpan,
    advance,
    cover,
    digest_of,
    fair_shares,
    loss_message,
    merge_digests,
    offset_of,
    parse_digest,
    reader_of,
    with_floor,
)

digests = st.dictionaries(st.sampled_from(["1.1", "1.2", "2.1", "f.a"]), st.integers(0, 50))


def test_an_offset_is_canonical_whatever_the_order() -> None:
    one = offset_of({"b.1": 2, "a.1": 1}, "me")
    other = offset_of({"a.1": 1, "b.1": 2}, "me")
    assert json.dumps(one) == json.dumps(other) == '{"@reader": "me", "a.1": 1, "b.1": 2}'
    assert reader_of(one) == "me"
    assert digest_of(one) == {"a.1": 1, "b.1": 2}
    assert READER not in offset_of({"a.1": 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a digest"),
        ('{"alice": 1}', "not a stream"),
        ('{"A.1": 1}', "not a stream"),
        ('{"a.1": "1"}', "not a seqno"),
        ('{"a.1": -1}', "not a seqno"),
        ('{"a.1": true}', "not a seqno"),
        ('{"a.1": 1.5}', "not a seqno"),
    ],
)
def test_what_is_no_digest_is_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(OffsetError, match=said):
        parse_digest(text)


@given(digests, digests)
def test_an_offset_never_goes_back(start: dict[str, int], wanted: dict[str, int]) -> None:
    end = advance(start, wanted, {*start, *wanted})
    assert all(end[key] >= seqno for key, seqno in start.items())
    assert with_floor(end, start) == end
    assert list(end) == sorted(end)


def test_a_forgotten_stream_leaves_only_with_progress() -> None:
    start = {"1.1": 5, "2.1": 7}
    assert advance(start, {"2.1": 7}, {"2.1"}) == start, (
        "nothing moved: the same text, or Spark makes an empty batch"
    )
    assert advance(start, {"2.1": 9}, {"2.1"}) == {"2.1": 9}
    assert advance(start, {"2.1": 9}, None) == {"1.1": 5, "2.1": 9}, (
        "a replica that was not asked may still have it"
    )


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.integers(0, 100)),
    st.integers(1, 200),
)
def test_a_share_is_fair(waiting: dict[str, int], limit: int) -> None:
    got = fair_shares(waiting, limit)
    hungry = {key: amount for key, amount in waiting.items() if amount}
    assert got.keys() == hungry.keys()
    assert all(1 <= got[key] <= amount for key, amount in hungry.items()), "all make progress"
    assert sum(got.values()) <= max(limit, len(hungry))
    cut = [got[key] for key, amount in hungry.items() if got[key] < amount]
    if cut:
        assert max(cut) - min(cut) <= 1
        assert max(got.values()) <= max(cut) + 1, "nobody has more than one who had to go without"
        assert sum(got.values()) >= min(limit, sum(hungry.values())) - len(cut)


def test_merged_takes_the_best_of_each_stream() -> None:
    assert merge_digests([{"a.1": 3, "b.1": 9}, {"a.1": 5}], highest=True) == {"a.1": 5, "b.1": 9}
    assert merge_digests([{"a.1": 3, "b.1": 9}, {"a.1": 5}], highest=False) == {"a.1": 3, "b.1": 9}


def test_a_range_is_covered_by_those_who_have_it() -> None:
    found = cover(
        0, 200, [ReplicaSpan(0, 0, 100), ReplicaSpan(1, 50, 150), ReplicaSpan(2, 160, 300)]
    )
    assert found.ranges == [(0, 0, 100), (1, 100, 150), (2, 160, 200)]
    assert found.holes == [(150, 160)]


@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4),
)
def test_a_cover_is_exact(above: int, upto: int, ranges: list[tuple[int, int]]) -> None:
    spans = [ReplicaSpan(at, low, high) for at, (low, high) in enumerate(ranges)]
    found = cover(above, upto, spans)
    parts = sorted([(low, high) for _, low, high in found.ranges] + found.holes)
    at = above
    for low, high in parts:
        assert low == at < high, "each seqno once, in order"
        at = high
    assert at == max(above, upto) or not parts
    for replica, low, high in found.ranges:
        assert spans[replica].low <= low <= high <= spans[replica].high
    for low, high in found.holes:
        assert not any(
            span.low < seqno <= span.high for span in spans for seqno in range(low + 1, high + 1)
        )


def test_a_loss_is_told_with_names_numbers_and_a_way_out() -> None:
    said = loss_message({"a.1": [(4, 9)]}, {"a.1": "anna"}, ["/spool"])
    assert "5 messages" in said
    assert "a.1 (anna): 5..9" in said
    assert "failOnDataLoss" in said
