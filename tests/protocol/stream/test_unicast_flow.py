"""Unicast: slow and fast readers, large messages, messages to oneself, other profiles."""

import pytest

from gapless.delivery_mode import DeliveryMode
from gapless.identity import View
from gapless.protocol.events import (
    Accepted,
    Acknowledged,
    GivenUp,
    Oversized,
    Refused,
    SlowReceivers,
)
from gapless.protocol.ready import UNICAST
from gapless.run import Run
from gapless.wire.frames import Ack, Data, OutOfBand
from tests.support.unicast import epoch_of, got, marks_of, numbers, one, rows
from tests.support.virtual_group import MS, SECOND, A, B, C, D, Group

# Flow


@pytest.mark.behaviour("P-08")
def test_a_full_window_drops_and_counts_and_never_waits() -> None:
    """C-19: data without room is not acknowledged, and is resent when there is room."""
    group = Group(2, capacity=4, unread_limit=1)
    group.receive("b", A, one(A, 1, *numbers(1, 5), opens=True))
    group.receive("b", A, one(A, 6), one(A, 9))
    assert got(group, "b", "a") == [b"1"]
    assert group["b"].counters["dropped.far"] == 3
    for _ in range(5):
        group.consumed("b", 1)
    assert got(group, "b", "a") == numbers(1, 4)
    group.receive("b", A, one(A, 5, *numbers(5, 9), repair=True))
    assert got(group, "b", "a")[-1] == b"5"


@pytest.mark.behaviour("P-08")
@rows
def test_a_slow_reader_slows_its_sender_and_nobody_else(row: str) -> None:
    """C-19, S-68: two connections to one slow application; a third one is not slowed."""
    group = Group(4, unicast=row, capacity=8, unread_limit=3, stability_interval="20ms")
    for by in "ab":
        group.send(by, *numbers(1, 40), to=C)
    group.send("a", *numbers(1, 3), to=D)
    group.run_for(2 * SECOND)
    assert got(group, "d", "a") == numbers(1, 3)
    assert len(got(group, "c", "a") + got(group, "c", "b")) == 3
    assert group.events_of("b", Accepted) == []
    for _ in range(80):
        group.consumed("c", 1)
        group.run_for(20 * MS)
    assert got(group, "c", "a") == got(group, "c", "b") == numbers(1, 40)
    assert group["c"].counters.get("dropped.far", 0) == 0, "senders know how much there is room for"


@pytest.mark.behaviour("P-03")
def test_one_full_connection_does_not_stop_others() -> None:
    """S-64."""
    group = Group(3, capacity=5)
    group.lose(to="b")
    for seqno in range(1, 11):
        group.send("a", b"%d" % seqno, to=B)
        group.send("a", b"%d" % seqno, to=C)
    group.send("a", b"for all")
    group.run_for(SECOND)
    assert got(group, "c", "a") == numbers(1, 10)
    assert [
        delivery.messages() for delivery in group.deliveries[C] if delivery.kind != UNICAST
    ] == [[b"for all"]]
    assert marks_of(group, "a", "b") == (0, 5)


@pytest.mark.behaviour("P-03")
def test_a_send_that_waits_can_time_out_be_cancelled_or_refused() -> None:
    """C-20: and leaves no hole, for it has no number yet."""
    group = Group(2, capacity=2)
    lost = group.lose(by="b")
    group.send("a", b"1", b"2", to=B)
    late = group.send("a", b"late", to=B, timeout_ns=50 * MS).ticket
    cancelled = group.send("a", b"cancelled", to=B).ticket
    refused = group.send("a", b"refused", to=B, wait=False)
    assert refused.events == [Refused(refused.ticket)]
    group.cancel("a", cancelled)
    waiting = group.send("a", b"3", to=B).ticket
    group.run_for(100 * MS)
    assert group.events_of("a", GivenUp) == [
        GivenUp(cancelled, 0, "cancel"),
        GivenUp(late, 0, "timeout"),
    ]
    group.rules.remove(lost)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 3)
    assert group.events_of("a", Accepted)[-1] == Accepted(waiting, 3, 3)


@pytest.mark.behaviour("P-03")
def test_who_pins_a_connection_is_named() -> None:
    group = Group(3, slow_receiver_after="1s", conn_expiry_timeout="0s")
    group.lose(to="b")
    group.send("a", b"1", to=B)
    group.run_for(1500 * MS)
    assert [
        (event.members, event.low, event.high) for event in group.events_of("a", SlowReceivers)
    ] == [((B,), 0, 1)]


# Large messages, acknowledged messages, modes


@rows
def test_a_large_message_travels_in_pieces(row: str) -> None:
    """M-14: also if it is larger than the window, and fragments are lost."""
    group = Group(2, unicast=row, max_frame_bytes=256, capacity=4, stability_interval="10ms")
    group.lose_seqnos(2, 7)
    large = bytes(range(250)) * 20
    group.send("a", b"before", large, b"after", to=B)
    group.settle()
    assert got(group, "b", "a") == [b"before", large, b"after"]


def test_a_message_over_the_limit_is_reported_by_its_reader() -> None:
    group = Group(2)
    group["b"].connections.config = group.config.replace(max_message_bytes="3000B")
    group.send("a", b"x" * 5000, b"after", to=B)
    group.settle()
    assert group.events_of("b", Oversized)[0].origin == A
    assert got(group, "b", "a") == [b"after"]


@pytest.mark.behaviour("OL-03")
@rows
def test_an_acknowledged_message_to_one(row: str) -> None:
    """The ack comes at once, whatever time there is between others."""
    group = Group(3, unicast=row, min_ack_interval="1s", stability_interval="1s")
    group.send("a", b"0", to=B)
    group.run_for(10 * MS)
    ticket = group.send("a", b"1", to=B, mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.run_for(2 * MS)
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-03", "OL-20")
@rows
def test_an_acknowledged_message_whose_ack_is_lost(row: str) -> None:
    group = Group(2, unicast=row, stability_interval="50ms")
    group.lose(Ack, times=3)
    ticket = group.send("a", b"1", to=B, mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert got(group, "b", "a") == [b"1"]


@pytest.mark.behaviour("OL-08")
def test_an_out_of_band_message_to_one_overtakes_the_connection() -> None:
    """S-100."""
    group = Group(3, capacity=1)
    group.lose(Data)
    group.send("a", b"1", b"2", to=B)
    group.send("a", b"urgent", to=B, mode=DeliveryMode.OUT_OF_BAND)
    group.run_for(5 * MS)
    assert [delivery.messages() for delivery in group.deliveries[B]] == [[b"urgent"]]
    assert {sent.to for sent in group.sent if isinstance(sent.frame, OutOfBand)} == {B}


# To oneself


def test_messages_to_oneself() -> None:
    """C-17, S-49: they need no network, are in order, and nothing stays unacknowledged."""
    group = Group(2)
    group.lose()
    for seqno in range(1, 101):
        group.send("a", b"%d" % seqno, to=A)
    group.send("a", b"x" * 5000, b"last", to=A)
    assert got(group, "a", "a") == [*numbers(1, 100), b"x" * 5000, b"last"]
    assert group.sent == []
    assert group["a"].is_quiet
    assert {delivery.epoch for delivery in group.deliveries[A]} == {epoch_of(group, "a", "a")}
    group.settle()


def test_messages_to_oneself_wait_for_a_slow_application() -> None:
    """C-17, M-16."""
    group = Group(2, capacity=4, unread_limit=2)
    group.send("a", *numbers(1, 20), to=A)
    assert got(group, "a", "a") == numbers(1, 2)
    assert group.events_of("a", Accepted) == []
    for seqno in range(3, 21):
        group.consumed("a", 1)
        assert got(group, "a", "a") == numbers(1, seqno)
    assert marks_of(group, "a", "a") == (20, 20)
    assert got(group, "b", "a") == []


def test_a_message_to_oneself_that_is_not_wanted_is_neither_delivered_nor_left_behind() -> None:
    """C-17, S-101, M-11: an option of the send; the setting is about group messages."""
    group = Group(2, loopback=False, unread_limit=10)
    for seqno in range(1, 10):
        group.send("a", b"%d" % seqno, to=A, loopback=None if seqno % 3 else False)
    assert got(group, "a", "a") == [b"%d" % seqno for seqno in range(1, 10) if seqno % 3]
    assert marks_of(group, "a", "a") == (9, 9)
    group.send("a", b"to b", to=B, loopback=False)
    group.settle()
    assert got(group, "b", "a") == [b"to b"]


@pytest.mark.behaviour("OL-03")
def test_an_acknowledged_message_to_oneself() -> None:
    group = Group(2, unread_limit=1)
    group.send("a", b"1", to=A)
    ready = group.send("a", b"2", to=A, mode=DeliveryMode.ACKNOWLEDGED)
    assert Acknowledged(ready.ticket) not in ready.events
    assert Acknowledged(ready.ticket) in group.consumed("a", 1).events


# Beside other protocols


@pytest.mark.behaviour("U3-01")
@pytest.mark.parametrize("profile", ["nakack4", "nakack", "ordered", "classic"])
@rows
def test_connections_work_beside_every_protocol_of_the_group(profile: str, row: str) -> None:
    """And continue through a view with both, whatever that means for group messages."""
    group = Group(3, profile=profile, unicast=row, stability_interval="20ms")
    for seqno in range(1, 6):
        group.send("a", b"%d" % seqno, to=B)
        group.send("a", b"all")
    group.run_for(30 * MS)
    epoch = epoch_of(group, "a", "b")
    group.install(View.of(2, A, B))
    for seqno in range(6, 11):
        group.send("a", b"%d" % seqno, to=B)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 10)
    assert epoch_of(group, "a", "b") == epoch
    runs = [delivery.content for delivery in group.deliveries[B] if delivery.kind == UNICAST]
    assert [run.view for run in runs if isinstance(run, Run)][-1] == 2


@pytest.mark.behaviour("N7-17")
def test_messages_to_one_do_not_count_for_votes() -> None:
    """Votes concern group streams; unicast messages and messages to oneself cause none."""
    group = Group(2, profile="nakack", stability_bytes="1KiB", stability_interval="10s")
    group.settle(within_ns=60 * SECOND)
    before = group["a"].counters.get("sent.vote", 0), group["b"].counters.get("sent.vote", 0)
    group.send("b", *[b"x" * 100] * 100, to=B)
    group.send("a", *[b"x" * 100] * 100, to=B)
    group.run_for(SECOND)
    assert (
        group["a"].counters.get("sent.vote", 0),
        group["b"].counters.get("sent.vote", 0),
    ) == before
