"""NAKACK4 as a whole: one row of the table of profiles, and its effect on a group."""

from random import Random

import pytest

from gapless.identity import Marks, View
from gapless.profiles import GROUP_PROFILES
from gapless.protocol.events import Accepted, GivenUp, Refused
from gapless.protocol.ready import Ready
from gapless.wire.frames import Ack, Nak, Stable, StreamProgress, Vote
from tests.support.virtual_group import MS, SECOND, A, B, C, Group, data


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


@pytest.mark.behaviour("N4-39")
def test_the_row_of_the_table() -> None:
    """Acks release; there is no stability protocol beside them."""
    row = GROUP_PROFILES["nakack4"]
    assert (row.release, row.tail, row.numbering, row.acks, row.naks) == (
        "acks",
        "announce",
        "life",
        "counted",
        True,
    )
    assert Group(2)["a"].stability is None


# The window


@pytest.mark.behaviour("N4-04", "N4-01")
@pytest.mark.parametrize("offset", [0, 5, 1 << 40])
def test_n4_04_numbers_go_round_the_window(offset: int) -> None:
    """Twenty times around a window of seven, from anywhere, out of order in every round."""
    group = Group(2, capacity=7, start=False)
    group.install(View.of(1, A, B), [B], digest={A: Marks(offset, offset, offset)})
    rng = Random(offset)
    for low in range(0, 140, 7):
        for seqno in rng.sample(range(low + 1, low + 8), 7):
            group.receive("b", A, data(A, offset + seqno, b"%d" % seqno))
    assert group.numbered("b", "a") == [(offset + seqno, b"%d" % seqno) for seqno in range(1, 141)]
    assert group["b"].counters.get("dropped.far", 0) == 0


@pytest.mark.behaviour("N4-06", "N4-10")
def test_n4_06_what_a_receiver_had_no_room_for_is_asked_for_later() -> None:
    """The first two are late; the fourth is outside a window of three, announced, and arrives."""
    group = Group(2, capacity=3)
    group.receive("b", A, data(A, 3), data(A, 4))
    assert group["b"].counters["dropped.far"] == 1
    group.send("a", *numbers(1, 3))
    group.send("a", b"4")
    group.settle()
    assert group.messages("b", "a") == numbers(1, 4)


@pytest.mark.behaviour("N4-40")
@pytest.mark.parametrize("window", ["fixed", "growing"])
def test_n4_40_the_same_machine_with_either_window(window: str) -> None:
    """Losses and all; only the fixed one makes the sender wait."""
    group = Group(3, window=window, capacity=4, max_seqno_ahead=1000)
    group.lose_seqnos(2, 5, 11, to="c")
    waits = []
    for seqno in range(1, 41):
        group.send("a", b"%d" % seqno)
        waits.append(len(group["a"].outbound.queue) > 0)
    group.settle()
    assert group.messages("b", "a") == group.messages("c", "a") == numbers(1, 40)
    assert any(waits) == (window == "fixed")


# Sending


@pytest.mark.behaviour("N4-16")
def test_n4_16_a_layer_below_that_drops_everything_blocks_nobody() -> None:
    """Its queue is full for a second: sends are accepted while there is room, nothing is lost."""
    group = Group(3, capacity=16)
    full = group.lose()
    for seqno in range(1, 17):
        assert group.send("a", b"%d" % seqno).events == [Accepted(seqno, seqno, seqno)]
    group.run_for(SECOND)
    group.rules.remove(full)
    group.settle()
    assert group.messages("b", "a") == group.messages("c", "a") == numbers(1, 16)


@pytest.mark.behaviour("N4-17", "P-06", "P-14")
@pytest.mark.parametrize("end", ["cancel", "timeout"])
def test_n4_17_a_send_that_waits_has_no_number(end: str) -> None:
    """So the next send gets the seqno when the one before gives up."""
    group = Group(2, capacity=2)
    group.lose(Ack)
    group.send("a", *numbers(1, 2))
    first = group.send("a", b"given up", timeout_ns=50 * MS)
    second = group.send("a", b"3")
    assert group["a"].outbound.window.high == 2
    if end == "cancel":
        group.cancel("a", first.ticket)
    else:
        group.run_for(60 * MS)
    assert group.events_of("a", GivenUp) == [GivenUp(first.ticket, 0, end)]
    group.rules.clear()
    group.settle()
    assert Accepted(second.ticket, 3, 3) in group.events_of("a", Accepted)
    assert group.numbered("b", "a") == [(1, b"1"), (2, b"2"), (3, b"3")]


@pytest.mark.behaviour("N4-14", "N4-24")
def test_n4_14_every_ack_lets_in_as_many_as_it_frees() -> None:
    group = Group(2, capacity=4)
    group.lose()
    group.send("a", *numbers(1, 4))
    for seqno in range(5, 11):
        group.send("a", b"%d" % seqno)
    for acked, last in ((1, 5), (3, 7), (3, 7), (4, 8)):
        group.receive("a", B, Ack(A, acked, 1 << 20))
        assert group["a"].outbound.window.marks == Marks(acked, last, last)


# No flow control and no stability beside the window


@pytest.mark.behaviour("N4-39")
def test_n4_39_votes_and_stability_messages_are_dropped() -> None:
    """True or false, they purge nothing, and only the counter shows them."""
    group = Group(2)
    group.lose(Ack)
    group.send("a", *numbers(1, 5))
    group.run_for(10 * MS)
    before = group["a"].snapshot()
    for frame in (
        Vote(B, 1, (StreamProgress(A, 5, 5),)),
        Stable(B, 1, (StreamProgress(A, 5, 5), StreamProgress(B, 9, 9))),
    ):
        ready: Ready = group.receive("a", B, frame)
        assert (ready.transmits, ready.events) == ([], [])
    assert group["a"].snapshot() == before
    assert group["a"].counters["dropped.stability"] == 2
    assert not group.frames(Vote)
    assert not group.frames(Stable)


@pytest.mark.behaviour("N4-39", "P-03")
def test_n4_39_one_slow_receiver_holds_the_sender_and_nobody_else() -> None:
    """Back-pressure by the window alone: c reads one message at a time, b and c get all."""
    group = Group(3, capacity=4, unread_limit=1)
    for seqno in range(1, 13):
        group.send("a", b"%d" % seqno, loopback=False)
    for _ in range(12):
        group.run_for(50 * MS)
        assert group["a"].outbound.window.high - group["c"].digest()[A].delivered <= 4
        group.consumed("b", 1)
        group.consumed("c", 1)
    group.settle()
    assert group.messages("b", "a") == group.messages("c", "a") == numbers(1, 12)


@pytest.mark.behaviour("N4-41")
def test_n4_41_memory_is_bounded_whatever_is_lost() -> None:
    """No member stores more than ``capacity`` of a stream, while b and c lose data."""
    group = Group(3, capacity=8)
    group.lose(to="b")
    group.lose_seqnos(*range(1, 100, 2), to="c", repairs=True)
    refused = 0
    for seqno in range(1, 60):
        refused += bool(group.send("a", b"%d" % seqno, wait=False).events == [Refused(seqno)])
        group.run_for(MS)
        assert group["a"].outbound.window.stored <= 8
        assert max(group[name].inbound[A].window.stored for name in "bc") <= 8  # type: ignore[union-attr]
    assert refused == 59 - 8
    assert group.frames(Nak, "c")


@pytest.mark.behaviour("N4-34", "N4-29", "N4-35")
def test_members_come_and_go_while_everybody_sends() -> None:
    """Members leave and join under load; the others miss nothing, the joiner nothing since then."""
    group = Group(3, capacity=4, start=False)
    group.install(View.of(1, A, B), [A, B], digest={A: Marks(0, 0, 0), B: Marks(0, 0, 0)})
    for seqno in range(1, 61):
        group.send("a", b"%d" % seqno)
        group.send("b", b"%d" % seqno)
        group.run_for(MS)
        if seqno == 20:
            group.install(View.of(2, A, B, C))
        if seqno == 40:
            group.install(View.of(3, A, C), [A, C])
            group.install(View.of(3, B), [B])
    group.settle()
    assert group.messages("a", "a") == numbers(1, 60)
    joined = group.numbered("c", "a")
    assert joined == [(seqno, b"%d" % seqno) for seqno in range(joined[0][0], 61)]
    assert 20 <= joined[0][0] <= 21
