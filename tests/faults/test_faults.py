"""Every fault strikes as it says, and says when it strikes."""

import itertools
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from gapless.errors import RemoteProtocolError
from gapless.faults.faults import (
    CORRUPT,
    DUPLICATE,
    FORGED,
    INTACT,
    BurstLoss,
    Clog,
    Copy,
    Corrupt,
    Crossing,
    Delay,
    DriftingClock,
    Duplicate,
    Fault,
    FaultChain,
    Foreign,
    Garbage,
    LateTimers,
    LongHold,
    Loss,
    Partition,
    Refuse,
    Stranger,
    SwizzleClog,
    Targeted,
    Truncate,
)
from gapless.faults.frame_names import Label, label_of
from gapless.identity import Address
from gapless.rng import split
from gapless.run import Run
from gapless.units import NS_PER_MS, NS_PER_S
from gapless.wire import Data, decode, encode

ORIGIN = Address(1, 5)
DATAGRAM = encode(7, ORIGIN, [Data(Run.of(ORIGIN, 3, [b"three", b"four"]))])
LABEL = Label("DATA", "a", 3, 4)


def crossing(
    source: str = "a", target: str = "b", label: Label = LABEL, nth: int = 1, transmit: int = 0
) -> Crossing:
    return Crossing(source, target, DATAGRAM, label, nth, transmit)


def strike(
    fault: Fault, at: Crossing | None = None, now_ns: int = 0, delay_ns: int = 0
) -> list[Copy]:
    at = at or crossing()
    return fault.cross(at, [Copy(delay_ns, at.datagram)], now_ns)


def outcomes(fault: Fault, times: int = 2000) -> list[list[Copy]]:
    return [strike(fault, crossing(transmit=at)) for at in range(times)]


def untouched(fault: Fault, at: Crossing, now_ns: int = 0) -> bool:
    copies = [Copy(0, at.datagram)]
    return fault.cross(at, copies, now_ns) is copies


# Loss


def test_loss_is_as_frequent_as_it_says() -> None:
    lost = sum(not copies for copies in outcomes(Loss(Random(1), [0.3])))
    assert lost == pytest.approx(600, abs=80)


def test_loss_differs_by_direction() -> None:
    fault = Loss(Random(3), [0.0, 1.0])
    rates = {
        (source, target): bool(strike(fault, crossing(source, target)))
        for source in "abcd"
        for target in "abcd"
        if source != target
    }
    assert len(set(rates.values())) == 2
    again = {link: bool(strike(fault, crossing(*link))) for link in rates}
    assert again == rates


def test_burst_loss_comes_in_bursts_of_the_mean_length() -> None:
    lost = "".join(
        "-" if copies else "x" for copies in outcomes(BurstLoss(Random(2), 10, 50), 20_000)
    )
    bursts = [len(burst) for burst in lost.split("-") if burst]
    assert sum(bursts) / len(bursts) == pytest.approx(10, rel=0.2)
    assert lost.count("x") / len(lost) == pytest.approx(10 / 60, rel=0.2)


def test_a_refused_call_reaches_nobody() -> None:
    fault = Refuse(Random(1), 0.5)
    reached = {
        at: {target for target in "bcd" if strike(fault, crossing(target=target, transmit=at))}
        for at in range(200)
    }
    assert set(map(len, reached.values())) == {0, 3}


# Copies and time


def test_a_duplicate_is_marked_and_comes_later() -> None:
    copies = [copies for copies in outcomes(Duplicate(Random(1), 0.5, NS_PER_S)) if len(copies) > 1]
    assert len(copies) == pytest.approx(1000, abs=120)
    assert all(pair[0].mark == INTACT and pair[1].mark == DUPLICATE for pair in copies)
    assert (
        0
        <= min(pair[1].delay_ns for pair in copies)
        < max(pair[1].delay_ns for pair in copies)
        <= NS_PER_S
    )


def test_a_duplicate_of_a_corrupted_copy_is_no_duplicate() -> None:
    fault = Duplicate(Random(1), 1.0, 0)
    corrupted = [Copy(0, b"other", CORRUPT)]
    assert [copy.mark for copy in fault.cross(crossing(), corrupted, 0)] == [CORRUPT, FORGED]


def test_delay_has_a_floor_a_mean_and_a_bound() -> None:
    delays_ns = [
        copies[0].delay_ns for copies in outcomes(Delay(Random(1), 5 * NS_PER_MS, 10 * NS_PER_MS))
    ]
    assert min(delays_ns) >= 5 * NS_PER_MS
    assert max(delays_ns) <= 105 * NS_PER_MS
    assert sum(delays_ns) / len(delays_ns) == pytest.approx(15 * NS_PER_MS, rel=0.1)


def test_hold_holds_no_more_than_it_may() -> None:
    delays = Counter(
        copies[0].delay_ns for copies in outcomes(LongHold(Random(1), 0.1, 10 * NS_PER_S, most=3))
    )
    assert delays == {0: 1997, 10 * NS_PER_S: 3}


def test_what_a_clogged_link_holds_back_arrives_at_once() -> None:
    fault = Clog(Random(1), 1.0, NS_PER_S)
    first_ns = strike(fault, now_ns=0)[0].delay_ns
    assert first_ns > 0
    assert strike(fault, now_ns=first_ns // 2)[0].delay_ns == first_ns - first_ns // 2
    assert strike(fault, crossing("b", "a"), now_ns=0)[0].delay_ns != first_ns, (
        "the way back is another link"
    )


def test_swizzle_clogs_members_one_by_one_and_frees_all() -> None:
    fault = SwizzleClog(Random(4), "abcd", NS_PER_S, NS_PER_S // 10)
    clogged = [
        sum(not untouched(fault, crossing(name, "z"), now_ns) for name in "abcd")
        for now_ns in range(0, 3 * NS_PER_S, NS_PER_S // 20)
    ]
    steps = [after - before for before, after in itertools.pairwise(clogged)]
    assert clogged[0] == 0 < max(clogged)
    assert set(steps) <= {-1, 0, 1}
    assert clogged[-1] == 0
    arrival_ns = [
        now_ns + strike(fault, crossing("a", "b"), now_ns)[0].delay_ns
        for now_ns in (0, 3 * NS_PER_S)
    ]
    assert arrival_ns == [0, 3 * NS_PER_S]


# Partitions


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_partition_cuts_between_its_sides_while_it_lasts(symmetric: bool) -> None:
    fault = Partition("ab", 10, 20, symmetric=symmetric)
    links = [(source, target) for source in "abcd" for target in "abcd" if source != target]
    cut = {link for link in links if not strike(fault, crossing(*link), 15)}
    out = {(source, target) for source in "ab" for target in "cd"}
    assert cut == (out | {(target, source) for source, target in out} if symmetric else out)
    assert all(untouched(fault, crossing(*link), now_ns) for link in links for now_ns in (9, 20))


def test_drawn_partitions_have_two_sides_of_all_kinds() -> None:
    drawn = [Partition.draw(Random(seed), "abcd", 0, 1) for seed in range(100)]
    assert {len(partition.side) for partition in drawn} == {1, 2, 3}
    assert {partition.symmetric for partition in drawn} == {True, False}


def test_a_partition_knows_a_node_in_every_incarnation() -> None:
    assert strike(Partition("a", 0, 10), crossing("a''", "b"), 5) == []


# Bytes


@pytest.mark.parametrize("make", [Corrupt, Truncate])
def test_damaged_bytes_never_decode(make: Callable[[Random, float], Fault]) -> None:
    for copies in outcomes(make(Random(1), 1.0), 500):
        assert [copy.mark for copy in copies] == [CORRUPT]
        with pytest.raises(RemoteProtocolError):
            decode(copies[0].datagram)


@pytest.mark.parametrize("make", [Garbage, Foreign, Stranger])
def test_forged_datagrams_come_beside_the_true_one(make: Callable[[Random, float], Fault]) -> None:
    for copies in outcomes(make(Random(1), 1.0), 200):
        assert [copy.mark for copy in copies] == [INTACT, FORGED]
        assert copies[0].datagram == DATAGRAM != copies[1].datagram


def test_a_foreign_group_and_a_stranger_are_well_formed() -> None:
    foreign = decode(strike(Foreign(Random(1), 1.0))[1].datagram)
    assert foreign.group != 7
    assert foreign.sender == ORIGIN
    senders = {
        decode(copies[1].datagram).sender for copies in outcomes(Stranger(Random(1), 1.0), 50)
    }
    assert ORIGIN._replace(incarnation=0) in senders, "an older life"
    assert any(sender.node != ORIGIN.node for sender in senders), "another node"


# Targets


def test_the_first_frame_is_lost_once_on_every_link() -> None:
    fault = Targeted.first_frame()
    first = LABEL._replace(first=1, last=2)
    assert strike(fault, crossing("a", "b", first)) == []
    assert strike(fault, crossing("a", "c", first)) == []
    assert untouched(fault, crossing("a", "b", first))
    assert untouched(fault, crossing())


@pytest.mark.parametrize(
    ("fault", "hit", "miss"),
    [
        (Targeted.last_frame(4), LABEL, LABEL._replace(first=5, last=5)),
        (Targeted.first_repairs(), LABEL._replace(kind="REPAIR"), LABEL),
        (Targeted.acks_of("a"), Label("ACK", "b", 3, 3), LABEL),
        (Targeted.tails(), Label("TAIL", "a", 0, 4), LABEL),
        (Targeted.wraps(4), LABEL, LABEL._replace(first=5, last=7)),
    ],
)
def test_targets_hit_what_they_name(fault: Fault, hit: Label, miss: Label) -> None:
    assert strike(fault, crossing(label=hit)) == []
    assert untouched(fault, crossing(label=miss))


def test_all_acks_of_one_member_are_lost_every_time() -> None:
    fault = Targeted.acks_of("a")
    ack = Label("ACK", "b", 3, 3)
    assert [strike(fault, crossing("a", "b", ack)) for _ in range(5)] == [[]] * 5
    assert untouched(fault, crossing("c", "b", ack))


# Clocks


def test_late_timers_are_late_by_no_more_than_they_may() -> None:
    late = LateTimers(Random(1), 0.5, 10)
    found = [late.late_ns(0) for _ in range(1000)]
    assert found.count(0) == pytest.approx(545, abs=60)
    assert max(found) == 10


def test_coalesced_timers_fire_at_multiples() -> None:
    late = LateTimers(Random(1), 0.5, 30, coalesce_ns=100)
    assert {(due_ns + late.late_ns(due_ns)) % 100 for due_ns in range(500)} == {0}


@pytest.mark.parametrize("drift_ppm", [0, 50_000, -50_000, 7])
def test_a_clock_is_read_and_reckoned_back(drift_ppm: int) -> None:
    clock = DriftingClock(123, drift_ppm)
    for true_ns in (0, 1, 999, NS_PER_S, 59 * NS_PER_S + 1):
        local_ns = clock.local_ns(true_ns)
        found_ns = clock.true_ns(local_ns)
        assert clock.local_ns(found_ns) >= local_ns
        assert found_ns == 0 or clock.local_ns(found_ns - 1) < local_ns
    assert clock.true_ns(0) == 0
    assert clock.local_ns(NS_PER_S) - 123 == NS_PER_S + NS_PER_S * drift_ppm // 1_000_000


# The chain


def test_a_chain_counts_who_struck_and_ends_with_the_calm() -> None:
    chain = FaultChain(
        [Delay(Random(1), 5, 0), Loss(Random(1), [1.0]), LongHold(Random(1), 1.0, 1, 1)],
        until_ns=100,
    )
    assert chain.cross(crossing(), 1, 99) == ([], "delay+loss")
    assert chain.strike_counts == {"delay": 1, "loss": 1, "hold": 0}
    assert chain.cross(crossing(), 1, 100) == ([Copy(1, DATAGRAM)], "")


def test_streams_of_randomness_are_split_by_name_and_fixed_for_ever() -> None:
    """A change here changes every seed: it must be meant."""
    assert [split(1, name).randrange(1000) for name in ("loss", "delay", "loss")] == [635, 990, 635]


def test_labels_of_real_datagrams() -> None:
    assert label_of(decode(DATAGRAM)) == Label("DATA", "1.5", 3, 4)
