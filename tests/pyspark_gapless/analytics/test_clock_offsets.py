"""Clock offsets: the true one is always within the stated uncertainty, whatever the delays were."""

from __future__ import annotations

from itertools import pairwise, permutations
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from gapless.trace.parquet import rows_to_table
from gapless.trace.schema import TraceRow, incarnation_id
from pyspark_gapless.analytics.clock_offsets import ClockOffset, _solve, _with_drift, estimate
from pyspark_gapless.analytics.clock_solver import OffsetBounds, solve
from pyspark_gapless.analytics.incarnations import spans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S = 1_000_000_000
DELAYS_NS = st.integers(0, 50_000_000)
OFFSETS_NS = st.lists(st.integers(-5 * S, 5 * S), min_size=2, max_size=7)


@given(OFFSETS_NS, st.data())
def test_true_offsets_lie_within_the_uncertainty(
    offsets_ns: list[int], data: st.DataObject
) -> None:
    """Delays of every kind: none, long, different in the two directions; some pairs are silent."""
    lives = range(len(offsets_ns))
    ring = [*pairwise(lives), (lives[-1], 0)]
    pairs = [*ring, *data.draw(st.lists(st.sampled_from(list(permutations(lives, 2)))))]
    delays = {pair: data.draw(DELAYS_NS) for pair in pairs}
    least_ns = {
        (a, b): delay_ns + offsets_ns[b] - offsets_ns[a] for (a, b), delay_ns in delays.items()
    }
    found = solve(least_ns)
    assert found.slack_ns == 0
    for life, bounds in found.bounds.items():
        true_ns = offsets_ns[life] - offsets_ns[found.reference]
        assert bounds.uncertainty_ns is not None
        assert abs(bounds.offset_ns - true_ns) <= bounds.uncertainty_ns + 1
    for (a, b), apparent_ns in least_ns.items():
        corrected_ns = apparent_ns - found.bounds[b].offset_ns + found.bounds[a].offset_ns
        assert corrected_ns >= -1, "by the correction nothing is delivered before it was sent"


@given(OFFSETS_NS, st.randoms(use_true_random=False))
def test_a_way_over_others_is_no_worse_than_the_pair_alone(
    offsets_ns: list[int], rng: Random
) -> None:
    pairs = permutations(range(len(offsets_ns)), 2)
    least_ns = {(a, b): rng.randrange(10**7) + offsets_ns[b] - offsets_ns[a] for a, b in pairs}
    found = solve(least_ns, reference=0)
    for life in range(1, len(offsets_ns)):
        alone_ns = (least_ns[0, life] + least_ns[life, 0]) / 2
        assert (found.bounds[life].uncertainty_ns or 0) <= alone_ns + 1


def test_half_of_the_difference_and_half_of_the_sum() -> None:
    found = solve({(1, 2): 5 * S + 300, (2, 1): -5 * S + 100}, reference=1)
    assert (found.bounds[2].offset_ns, found.bounds[2].uncertainty_ns) == (5 * S + 100, 200)
    assert found.bounds[1] == OffsetBounds(0, 0)


def test_who_was_heard_in_one_direction_only_is_uncertain() -> None:
    found = solve({(1, 2): 300, (2, 1): 100, (1, 3): -7_000}, clocks=[1, 2, 3, 4], reference=1)
    assert found.bounds[3].uncertainty_ns is None
    assert found.bounds[3].offset_ns == -7_000, "its clock is behind by that at least"
    assert (found.bounds[4].offset_ns, found.bounds[4].uncertainty_ns) == (0, None)


def test_delays_that_contradict_each_other_are_stretched_as_little_as_need_be() -> None:
    found = solve({(1, 2): -30_000, (2, 1): 10_000}, reference=1)
    assert 10_000 <= found.slack_ns < 10_100
    assert found.bounds[2].offset_ns == pytest.approx(-20_000, abs=100)


def test_lives_of_one_host_share_a_clock_unless_it_cannot_be() -> None:
    members = {1: "10.0.0.1:7001", 2: "10.0.0.1:7002", 3: "10.0.0.2:7001"}
    least_ns = {(1, 2): 90, (2, 1): 40, (2, 3): 500, (3, 2): 100}
    found = _solve(least_ns, members)
    assert found.bounds[1] == found.bounds[2]
    least_ns[1, 2] = -60
    least_ns[2, 1] = 100
    apart = _solve(least_ns, members)
    assert apart.bounds[2].offset_ns - apart.bounds[1].offset_ns == -80


def test_drift_is_told_only_if_it_is_larger_than_what_can_be_known() -> None:
    whole = solve({(1, 2): 100, (2, 1): 100}, reference=1)
    near, far = OffsetBounds(-10, 30), OffsetBounds(4_990, 5_030)
    assert _with_drift(2, OffsetBounds(-10, 20), whole, near, OffsetBounds(20, 60)) == ClockOffset(
        2, 5, 15, 0
    )
    assert _with_drift(2, OffsetBounds(-10, 20), whole, near, far) == ClockOffset(
        2, 2_510, 2_520, 5_000
    )


@pytest.mark.xdist_group("spark")
def test_planted_offsets_are_found_in_rows(spark: SparkSession) -> None:
    """Three incarnations with clocks seconds apart; c sends nothing but acks."""
    begin_ns, ahead_ns = 1_790_000_000 * S, {"a": 0, "b": 3 * S, "c": -2 * S}
    rng, rows, idx = Random(1), [], 0
    for number in range(1, 200):
        for origin in "ab":
            sent_ns = begin_ns + number * 10_000_000
            for member in "abc".replace(origin, ""):
                took_ns = 50_000 + rng.randrange(2_000_000) + (400_000 if member == "b" else 0)
                idx += 1
                got_ns = sent_ns + took_ns
                row = TraceRow(
                    0,
                    member,
                    idx,
                    idx,
                    got_ns + ahead_ns[member],
                    "DELIVER",
                    origin=origin,
                    seqno=number,
                )
                rows.append(row._replace(seqno_last=number, sent_ns=sent_ns + ahead_ns[origin]))
                ack = row._replace(event="ACK_OUT", peer=origin, seqno=0, sent_ns=0)
                rows += [ack, ack._replace(t_ns=ack.t_ns + 9_000_000)]
                back_ns = got_ns + 30_000 + rng.randrange(1_000_000)
                if number % 3:
                    heard = ack._replace(
                        member=origin, event="ACK_IN", peer=member, t_ns=back_ns + ahead_ns[origin]
                    )
                    rows.append(heard)
    frame = spark.createDataFrame(rows_to_table(rows))
    found = estimate(
        frame, {incarnation_id(name): name for name in "abc"}, spans(frame).frame.collect()
    )
    clocks = {clock.life: clock for clock in found}
    reference = next(name for name in "abc" if clocks[incarnation_id(name)][1:3] == (0, 0))
    for name in "abc":
        clock = clocks[incarnation_id(name)]
        assert clock.uncertainty_ns is not None
        assert clock.uncertainty_ns < 1_000_000
        assert abs(clock.offset_ns - (ahead_ns[name] - ahead_ns[reference])) <= clock.uncertainty_ns
        assert clock.drift_ns == 0
