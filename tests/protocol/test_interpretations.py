"""Contradictions in the published texts: one test for each chosen reading."""

from itertools import pairwise

import pytest

from gapless.identity import Marks, View
from gapless.protocol.events import Connected, Undelivered
from gapless.run import Run
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Ack, Data, Nak
from tests.support.unicast import got
from tests.support.virtual_group import MS, SECOND, A, B, C, Group, data


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def unicasts(group: Group, first: int, last: int) -> None:
    for seqno in range(first, last + 1):
        group.send("a", b"%d" % seqno, to=B)


def acks(group: Group) -> list[int]:
    return [ack.seqno for ack in group.frames(Ack, "b")]


# Acks for everything, and reports now and then


@pytest.mark.behaviour("I-10")
@pytest.mark.parametrize("lost", [1, 5], ids=["first", "last"])
def test_i10_acks_for_everything_repair_the_first_and_the_last_message(lost: int) -> None:
    """All requests are lost as well: unacknowledged messages are simply resent."""
    group = Group(2, unicast="unicast")
    group.lose(Nak)
    group.lose_seqnos(lost)
    unicasts(group, 1, 5)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 5)


@pytest.mark.behaviour("I-10")
def test_i10_a_lost_ack_costs_a_needless_resend() -> None:
    """b has everything; a does not know it and resends; b acknowledges again, and that is all."""
    group = Group(2, unicast="unicast")
    unicasts(group, 1, 3)
    group.run_for(MS // 2)
    group.lose(Ack, times=3)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 3)
    assert group.data("a", repair=True)
    assert group["b"].counters["dropped.old"] == 3
    assert acks(group)[-1] == 3


@pytest.mark.behaviour("I-12")
def test_i12_reports_now_and_then_are_acks_by_another_name() -> None:
    """Only the report releases the sender; then everything up to it is purged."""
    group = Group(2, unicast="unicast2", stability_interval="100ms")
    unicasts(group, 1, 10)
    window = group["a"].connections.outgoing[B].stream.window
    group.run_for(90 * MS)
    assert (acks(group), window.low) == ([], 0)
    group.run_for(20 * MS)
    assert (acks(group), window.low) == ([10], 10)


@pytest.mark.behaviour("I-11")
def test_i11_the_numbers_of_the_example_are_acks() -> None:
    """5, 8, 13, 52, 62, 83 and 101 delivered in a second: few acks go out, the last one does."""
    group = Group(2, min_ack_interval="500ms", ack_threshold=1000, capacity=4000)
    done = 0
    for upto in (5, 8, 13, 52, 62, 83, 101):
        unicasts(group, done + 1, upto)
        done = upto
        group.run_for(140 * MS)
    group.settle()
    times_ns = [sent.at_ns for sent in group.sent if isinstance(sent.frame, Ack) and sent.by == B]
    assert len(times_ns) <= 4
    assert min(after - before for before, after in pairwise(times_ns)) >= 500 * MS
    assert acks(group)[-1] == 101


@pytest.mark.behaviour("I-09")
def test_i09_what_is_missing_is_what_is_asked_for_and_sent() -> None:
    """46 and 48 lost, and 50, the last: 46 and 48 are asked for, and 46 and 48 are sent."""
    group = Group(2)
    unicasts(group, 1, 45)
    group.settle()
    group.lose_seqnos(46, 48, 50)
    unicasts(group, 46, 50)
    group.settle()
    asked = {range_ for nak in group.frames(Nak, "b") for range_ in nak.ranges}
    assert asked == {(46, 46), (48, 48)}
    assert sorted(group.data("a", repair=True)) == [(46, 46), (48, 48), (50, 50)]
    assert group.messages("b", "a") == numbers(1, 50)


# Connections


@pytest.mark.behaviour("I-13")
def test_i13_expiry_leads_to_closing_and_the_other_timeout_to_closed() -> None:
    group = Group(2, conn_expiry_timeout="100ms", conn_close_timeout="300ms")
    unicasts(group, 1, 1)
    group.run_for(2 * MS)  # the ack is activity too
    states = {}
    for at_ms in (99, 101, 399, 401):
        group.run_until(SECOND + at_ms * MS + 2 * MS)
        states[at_ms] = [
            event.state for event in group.events_of("a", Connected) if event.outgoing
        ][-1]
    assert states == {99: "open", 101: "closing", 399: "closing", 401: "closed"}


@pytest.mark.behaviour("I-14")
def test_i14_a_connection_that_is_closing_still_sends_what_is_not_acknowledged() -> None:
    """A closed connection does not count: the next message opens another."""
    group = Group(2, conn_close_timeout="10s")
    lost = group.lose(Data, to="b")
    unicasts(group, 1, 1)
    before = group["a"].connections.outgoing[B].stream.epoch
    group.step(A, lambda m: m.close_connection(B, group.now_ns))
    group.run_for(SECOND)
    assert group["a"].connections.outgoing[B].state == "closing"
    group.rules.remove(lost)
    group.run_for(SECOND)
    assert group.messages("b", "a") == numbers(1, 1)
    group.settle()
    assert B not in group["a"].connections.outgoing
    assert group.events_of("a", Undelivered) == []
    unicasts(group, 2, 2)
    assert group["a"].connections.outgoing[B].stream.epoch != before
    group.settle()
    assert got(group, "b", "a") == [b"1", b"2"]


@pytest.mark.behaviour("I-15")
def test_i15_the_question_for_the_first_message_hangs_on_the_peer() -> None:
    """Without a connection the question has its own rate, however many messages arrive."""
    group = Group(2, sync_min_interval="200ms")
    group.lose(to="a")
    for seqno in range(2, 102):
        group.receive("b", A, Data(Run.of(A, seqno, [b"x"]), False, FIRST_CONNECTION_EPOCH + 7))
        group.run_for(10 * MS)
    assert A not in group["b"].connections.incoming
    times_ns = [
        sent.at_ns for sent in group.sent if sent.frame == Nak(A, (), FIRST_CONNECTION_EPOCH + 7)
    ]
    assert 4 <= len(times_ns) <= 6
    assert {after - before for before, after in pairwise(times_ns)} == {200 * MS}


# Joining


def joined_late(xmit_interval: str) -> Group:
    """A joiner c that receives 101 .. 170 of b before its view, whose digest says 100."""
    group = Group(
        3, profile="ordered", start=False, xmit_interval=xmit_interval, become_server_queue_size=50
    )
    at_100 = {A: Marks(0, 0, 0), B: Marks(100, 100, 100)}
    for seqno in range(101, 171):
        group.receive("c", B, Data(Run.of(B, seqno, [b"%d" % seqno], 0, 2)))
    group.install(View.of(2, A, B, C), [C], digest=at_100)
    return group


@pytest.mark.behaviour("I-16", "NR-11")
def test_i16_a_digest_that_says_100_means_that_101_is_next() -> None:
    group = joined_late("0s")
    assert group["c"].inbound[B].start == 100
    assert group.numbered("c", "b")[0] == (101, b"101")


@pytest.mark.behaviour("I-17", "NR-10")
def test_i17_without_retransmission_nothing_is_dropped() -> None:
    group = joined_late("0s")
    assert group.messages("c", "b") == numbers(101, 170)
    group.receive("c", B, data(B, 171))
    assert group.messages("c", "b") == numbers(101, 171)


@pytest.mark.behaviour("I-17", "NR-09")
def test_i17_with_retransmission_what_was_dropped_is_asked_for() -> None:
    """Whichever they are: the rest arrives in order, and dropped messages are requested."""
    group = joined_late("500ms")
    delivered = group.messages("c", "b")
    assert delivered == numbers(101, 150)
    group.receive("c", B, data(B, 171))
    group.run_for(100 * MS)
    assert group.frames(Nak, "c")[-1].ranges == ((151, 170),)
