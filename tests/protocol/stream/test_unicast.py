"""Unicast: seqnos, acks, retransmissions, naks; and the profiles of the older protocols."""

from itertools import pairwise
from typing import Any

import pytest

from gapless.errors import LocalProtocolError
from gapless.identity import Address
from gapless.protocol.events import Lost
from gapless.wire.frames import Ack, Close, Data, Frame, Gone, Nak, Tail
from tests.support.unicast import EPOCH, epoch_of, got, marks_of, numbers, one, rows
from tests.support.virtual_group import MS, SECOND, A, B, C, D, Group, frames


def acks_of(group: Group, by: str = "b") -> list[int]:
    return [frame.seqno for frame in group.frames(Ack, by)]


# Numbers


@pytest.mark.behaviour("U3-01")
def test_numbers_are_counted_for_each_destination() -> None:
    """C-01."""
    group = Group(3)
    for to in (B, C, B):
        group.send("a", b"x", b"y", to=to)
    group.settle()
    sent = {
        to: [frame for _, _, at, frame in group.sent if at == to and isinstance(frame, Data)]
        for to in (B, C)
    }
    assert [(frame.run.first, frame.run.last, frame.first) for frame in sent[B]] == [
        (1, 2, True),
        (3, 4, False),
    ]
    assert [(frame.run.first, frame.run.last, frame.first) for frame in sent[C]] == [(1, 2, True)]
    assert got(group, "b", "a") == [b"x", b"y"] * 2


@pytest.mark.behaviour("U3-30")
def test_many_sends_are_one_connection_and_one_sequence() -> None:
    """S-103."""
    group = Group(2)
    for seqno in range(1, 101):
        group.send("a", b"%d" % seqno, to=B)
        group.send("b", b"%d" % seqno, to=A)
    group.settle()
    for by in "ab":
        assert len({frame.epoch for frame in group.frames(Data, by)}) == 1
    assert got(group, "b", "a") == got(group, "a", "b") == numbers(1, 100)


@pytest.mark.behaviour("U3-01")
def test_messages_to_one_do_not_reach_others_nor_the_stream_to_the_group() -> None:
    group = Group(3)
    group.send("a", b"secret", to=B)
    group.send("a", b"for all")
    group.settle()
    assert got(group, "b", "a") == [b"secret"]
    assert [delivery.messages() for delivery in group.deliveries[C]] == [[b"for all"]]
    assert [delivery.first for delivery in group.deliveries[B]] == [1, 1], (
        "each stream has its own numbers"
    )
    assert all(
        sent.to == B for sent in group.sent if isinstance(sent.frame, Data) and sent.frame.epoch
    )


def test_one_who_is_not_a_member_cannot_be_sent_to() -> None:
    """S-90: there is no connection to a non-member."""
    group = Group(2)
    with pytest.raises(LocalProtocolError, match="not a member"):
        group.send("a", b"x", to=D)
    assert group["a"].connections.outgoing == {}


# Acks


@pytest.mark.behaviour("U3-02")
def test_a_batch_is_acknowledged_once() -> None:
    """20..50 in one frame, or in several frames of one datagram: one ack(50)."""
    group = Group(2)
    group.receive("b", A, one(A, 1, *numbers(1, 19), opens=True))
    group.run_for(SECOND)
    assert acks_of(group) == [19]
    group.receive("b", A, one(A, 20, *numbers(20, 50)))
    group.run_for(SECOND)
    assert acks_of(group) == [19, 50]
    group.receive("b", A, one(A, 51), one(A, 52), one(A, 53))
    group.run_for(SECOND)
    assert acks_of(group) == [19, 50, 53]


@pytest.mark.behaviour("U3-03")
def test_an_ack_removes_everything_up_to_it() -> None:
    group = Group(2)
    group.lose()
    group.send("a", *numbers(1, 60), to=B)
    group.receive("a", B, Ack(A, 50, 1 << 20, epoch_of(group, "a", "b")))
    assert marks_of(group, "a", "b") == (50, 60)
    assert group["a"].connections.outgoing[B].stream.window.stored == 10


@pytest.mark.behaviour("U3-04", "I-11")
def test_acks_have_a_shortest_time_between_them_and_the_last_goes_out() -> None:
    """Deliveries up to 5, 8, 13, 52, 62, 83 and 101 in a second, 500 ms between two acks."""
    group = Group(2, min_ack_interval="500ms", capacity=1024)
    start_ns, first = group.now_ns, 1
    for at, last in enumerate((5, 8, 13, 52, 62, 83, 101)):
        group.run_until(start_ns + at * 140 * MS)
        group.receive("b", A, one(A, first, *numbers(first, last), opens=first == 1))
        first = last + 1
    group.settle()
    assert [
        (sent.at_ns - start_ns) // MS for sent in group.sent if isinstance(sent.frame, Ack)
    ] == [0, 500, 1000]
    assert acks_of(group) == [5, 52, 101]


@pytest.mark.behaviour("U3-04")
def test_the_gap_between_acks_holds_beside_other_streams() -> None:
    """Acks of the group's stream have their own timer, and do not carry those of connections."""
    group = Group(2, min_ack_interval="500ms")
    for _ in range(30):
        group.send("a", b"to one", to=B)
        group.send("a", b"to all")
        group.run_for(20 * MS)
    group.settle()
    times_ns = [
        sent.at_ns for sent in group.sent if isinstance(sent.frame, Ack) and sent.frame.epoch
    ]
    assert all(later - sooner >= 500 * MS for sooner, later in pairwise(times_ns))
    assert marks_of(group, "a", "b") == (30, 30)


@pytest.mark.behaviour("U3-04")
def test_the_gap_between_acks_does_not_stop_a_fast_sender() -> None:
    """A quarter of the window is acknowledged at once; else a small window would be slow."""
    group = Group(2, capacity=8, min_ack_interval="1s")
    group.send("a", *numbers(1, 200), to=B)
    group.run_for(SECOND)
    assert got(group, "b", "a") == numbers(1, 200)


@pytest.mark.behaviour("U3-05", "P-04")
def test_an_owed_ack_goes_out_with_retransmission_off() -> None:
    group = Group(2, xmit_interval="0s", min_grace="0s")
    group.send("a", b"1", to=B)
    group.send("a", b"2", to=B)
    group.settle()
    assert marks_of(group, "a", "b") == (2, 2)


@pytest.mark.behaviour("U3-06")
@rows
def test_a_message_is_acknowledged_within_a_bounded_time(row: str) -> None:
    """unicast3: the gap; unicast: at once; unicast2: the interval of its reports."""
    group = Group(2, unicast=row, min_ack_interval="30ms", stability_interval="100ms")
    limit_ns = {"unicast3": 30 * MS, "unicast": 0, "unicast2": 100 * MS}[row]
    for seqno in range(1, 6):
        group.send("a", b"%d" % seqno, to=B)
        sent_ns = group.now_ns
        while marks_of(group, "a", "b")[0] < seqno:
            group.run_for(MS)
        assert group.now_ns - sent_ns <= limit_ns + 2 * group.delay_ns


@pytest.mark.behaviour("U3-06")
@rows
def test_a_message_is_sent_again_within_a_bounded_time(row: str) -> None:
    """Without an answer something is sent at least every ``xmit_interval``."""
    group = Group(2, unicast=row, xmit_interval="200ms", stability_interval="50ms")
    group.lose(by="a")
    group.send("a", b"1", to=B)
    group.run_for(3 * SECOND)
    times_ns = [sent.at_ns for sent in group.sent if sent.by == A]
    assert len(times_ns) > 10
    assert max(later - sooner for sooner, later in pairwise(times_ns[2:])) <= 200 * MS


@pytest.mark.behaviour("P-18")
def test_an_ack_of_a_former_connection_purges_nothing() -> None:
    """C-09: acks, naks and start requests name the connection that they are for."""
    group = Group(2)
    group.lose()
    group.send("a", *numbers(1, 5), to=B)
    stream = group["a"].connections.outgoing[B].stream
    before = stream.snapshot()
    others = (stream.epoch - 1, stream.epoch + 1)
    for epoch in others:
        group.receive("a", B, Ack(A, 5, 9, epoch))
        assert frames(group.receive("a", B, Nak(A, ((1, 2),), epoch))) == [(B, Close(A, epoch))]
        assert frames(group.receive("a", B, Nak(A, (), epoch))) == [(B, Close(A, epoch))]
    assert stream.snapshot() == before
    assert group["a"].counters["dropped.connection"] == 3 * len(others)


def test_an_ack_beyond_what_was_sent_counts_for_nothing() -> None:
    group = Group(2)
    group.lose()
    group.send("a", *numbers(1, 5), to=B)
    group.receive("a", B, Ack(A, 6, 9, epoch_of(group, "a", "b")))
    assert marks_of(group, "a", "b") == (0, 5)


def test_the_ack_of_another_member_counts_for_nothing() -> None:
    group = Group(3)
    group.lose()
    group.send("a", *numbers(1, 5), to=B)
    group.receive("a", C, Ack(A, 5, 9, epoch_of(group, "a", "b")))
    assert marks_of(group, "a", "b") == (0, 5)


# Retransmissions and naks


def walked(**knobs: Any) -> Group:
    """45 of 50 acknowledged; 46, 48 and 50 are lost, 47 and 49 arrive; the nak takes 500 ms."""
    group = Group(2, tail_delay="100ms", xmit_interval="500ms", adaptive_grace=False, **knobs)
    group.send("a", *numbers(1, 45), to=B)
    group.settle()
    assert marks_of(group, "a", "b") == (45, 45)
    lost = group.lose(Data)
    for seqno in range(46, 51):
        group.send("a", b"%d" % seqno, to=B)
    group.run_for(2 * MS)
    group.rules.remove(lost)
    epoch = epoch_of(group, "a", "b")
    group.receive("b", A, one(A, 47, epoch=epoch), one(A, 49, epoch=epoch))
    group.sent.clear()
    return group


@pytest.mark.behaviour("U3-07", "U3-08", "U3-09", "U3-10", "U3-11", "U3-13", "I-09")
def test_u3_11_the_walk_through() -> None:
    """The second pass resends 50; 46 and 48 are requested; 50 is acknowledged; then silence."""
    group = walked()
    group.run_for(250 * MS)
    assert group.sent == [], "the first look, after 100 ms, only notes"
    group.settle()
    sent = [(sent.by, type(sent.frame)) for sent in group.sent]
    assert sent == [(A, Data), (B, Nak), (A, Data), (A, Data), (B, Ack)]
    assert group.data("a", repair=True) == [(50, 50), (46, 46), (48, 48)]
    assert group.frames(Nak) == [Nak(A, ((46, 46), (48, 48)), epoch_of(group, "a", "b"))]
    assert acks_of(group) == [50]
    assert got(group, "b", "a") == numbers(1, 50)
    assert group["a"].armed_timers() == (), (
        "acknowledged and sent are the same: nothing more to see to"
    )


@pytest.mark.behaviour("U3-08", "U3-09", "P-19")
def test_only_the_last_message_is_sent_again_and_not_at_the_first_look() -> None:
    group = Group(2, tail_delay="100ms", xmit_interval="100ms")
    group.lose()
    group.send("a", *numbers(1, 3), to=B)
    group.send("a", *numbers(4, 6), to=B)
    start_ns = group.now_ns
    group.run_for(450 * MS)
    again = [sent for sent in group.sent if isinstance(sent.frame, Data) and sent.frame.repair]
    assert [(sent.at_ns - start_ns) // MS for sent in again] == [200, 300, 400]
    assert group.data("a", repair=True) == [(6, 6)] * 3


@pytest.mark.behaviour("U3-08", "U3-09")
def test_a_pair_that_changed_is_only_noted() -> None:
    """An ack between two passes: the connection works, and nothing is resent."""
    group = Group(2, tail_delay="100ms", xmit_interval="100ms")
    group.lose(by="b")
    group.send("a", *numbers(1, 9), to=B)
    for seqno in range(1, 9):
        group.run_for(100 * MS)
        group.receive("a", B, Ack(A, seqno, 1 << 20, epoch_of(group, "a", "b")))
    assert group.data("a", repair=True) == []


@pytest.mark.behaviour("U3-10")
def test_exactly_what_is_missing_is_asked_for() -> None:
    group = Group(2)
    group.lose_seqnos(2, 5, 6)
    for seqno in range(1, 10):
        group.send("a", b"%d" % seqno, to=B)
    group.settle()
    assert [frame.ranges for frame in group.frames(Nak)] == [((2, 2),), ((5, 6),)]
    assert got(group, "b", "a") == numbers(1, 9)


@pytest.mark.behaviour("U3-13")
@rows
def test_a_quiet_connection_says_nothing(row: str) -> None:
    group = Group(2, unicast=row)
    group.send("a", *numbers(1, 5), to=B)
    group.settle()
    before = len(group.sent)
    group.run_for(60 * SECOND)
    assert len(group.sent) == before
    assert group["a"].is_quiet


@pytest.mark.behaviour("U3-12", "I-10")
@pytest.mark.parametrize("lost", [(1,), (5,), (1, 5), (2, 3), (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("times", [1, 3])
@rows
def test_whatever_is_lost_comes_without_new_messages(
    row: str, lost: tuple[int, ...], times: int
) -> None:
    """S-95, S-96: the first, the last, all; repairs, too; without any further send."""
    group = Group(2, unicast=row)
    left = dict.fromkeys(lost, times)

    def rule(_by: Address, _to: Address, frame: Frame) -> bool:
        hit = isinstance(frame, Data) and left.get(frame.run.first, 0) > 0
        if hit and isinstance(frame, Data):
            left[frame.run.first] -= 1
        return hit

    group.rule(rule)
    for seqno in range(1, 6):
        group.send("a", b"%d" % seqno, to=B)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 5)
    assert marks_of(group, "a", "b") == (5, 5)


@pytest.mark.behaviour("U3-12")
@rows
def test_the_only_message_is_lost(row: str) -> None:
    """S-96."""
    group = Group(2, unicast=row)
    group.lose(Data, times=2)
    group.send("a", b"alone", to=B)
    group.settle()
    assert got(group, "b", "a") == [b"alone"]
    assert row == "unicast2" or group.frames(Nak) == [], (
        "sent again it still says that it is the first"
    )


@pytest.mark.behaviour("U3-12")
@rows
def test_lost_acks_are_sent_again(row: str) -> None:
    """C-08."""
    group = Group(2, unicast=row, stability_interval="50ms")
    group.lose(Ack, times=5)
    group.send("a", *numbers(1, 3), to=B)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 3)
    assert marks_of(group, "a", "b") == (3, 3)
    assert len(acks_of(group)) == 6


@pytest.mark.behaviour("U3-12")
@pytest.mark.parametrize("seed", range(5))
@rows
def test_a_bad_network_loses_nothing(row: str, seed: int) -> None:
    """One frame in five is lost, both ways, and all send to all (S-102)."""
    group = Group(4, unicast=row, seed=seed)
    state = [seed + 1]

    def rule(_by: Address, _to: Address, _frame: Frame) -> bool:
        state[0] = (state[0] * 1103515245 + 12345) % (1 << 31)
        return state[0] >> 8 & 0xFF < 51

    group.rule(rule)
    for seqno in range(1, 21):
        for by, me in zip("abcd", (A, B, C, D), strict=True):
            for to in (A, B, C, D):
                if to != me:
                    group.send(by, b"%d" % seqno, to=to)
        group.run_for(3 * MS)
    group.settle(within_ns=300 * SECOND)
    for at in "abcd":
        for origin in "abcd":
            assert at == origin or got(group, at, origin) == numbers(1, 20)


@pytest.mark.behaviour("P-11")
def test_a_repair_goes_to_the_other_end_only() -> None:
    """Even where repairs of the stream to the group go to all."""
    group = Group(3, use_mcast_xmit="always")
    group.lose_seqnos(2)
    for seqno in range(1, 4):
        group.send("a", b"%d" % seqno, to=B)
    group.settle()
    assert group.data("a", repair=True) == [(2, 2)]
    assert {sent.to for sent in group.sent if isinstance(sent.frame, Data)} == {B}


def test_what_was_acknowledged_and_is_asked_for_is_gone_and_said_so() -> None:
    """P-01: a purged message is reported as lost, and the connection goes on."""
    group = Group(2)
    group.receive("b", A, one(A, 4, opens=True), one(A, 7))
    assert group.receive("b", A, Gone(A, 5, EPOCH)).events == [Lost(A, 5, 5)]


# The rows of the older protocols


@pytest.mark.behaviour("I-10")
def test_unicast_acknowledges_every_frame_and_repeats_everything() -> None:
    group = Group(2, unicast="unicast")
    for seqno in range(1, 6):
        group.send("a", b"%d" % seqno, to=B)
    group.settle()
    assert acks_of(group) == [1, 2, 3, 4, 5]
    group.lose_seqnos(6)
    for seqno in range(6, 9):
        group.send("a", b"%d" % seqno, to=B)
    group.settle()
    assert group.data("a", repair=True) == [(6, 6), (7, 7), (8, 8)]
    assert group.frames(Nak) == []


@pytest.mark.behaviour("I-12")
def test_unicast2_asks_and_reports_now_and_then() -> None:
    group = Group(2, unicast="unicast2", stability_interval="100ms")
    group.lose_seqnos(3)
    for seqno in range(1, 11):
        group.send("a", b"%d" % seqno, to=B)
        group.run_for(15 * MS)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 10)
    assert [frame.ranges for frame in group.frames(Nak)] == [((3, 3),)]
    assert len(acks_of(group)) < 5
    times_ns = [sent.at_ns for sent in group.sent if isinstance(sent.frame, Ack)]
    assert all(later - sooner >= 100 * MS for sooner, later in pairwise(times_ns[:-1]))


@pytest.mark.behaviour("I-12")
def test_unicast2_announces_its_end() -> None:
    """A lost last message is noticed by the announcement, not by sending it again."""
    group = Group(2, unicast="unicast2", stability_interval="50ms")
    group.lose_seqnos(2)
    group.send("a", b"1", to=B)
    group.send("a", b"2", to=B)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 2)
    assert (group.frames(Tail)[0].high, group.data("a", repair=True)) == (2, [(2, 2)])
    assert [frame.ranges for frame in group.frames(Nak)] == [((2, 2),)]
