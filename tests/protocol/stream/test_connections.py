"""The life of a connection: open, closing, closed, at both ends; and how it begins."""

import pytest

from gapless.protocol.events import Connected, Discarded, GivenUp, Undelivered
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Ack, Close, Data, Gone, Nak, Tail
from tests.support.unicast import (
    EPOCH,
    IDLE,
    close,
    epoch_of,
    got,
    marks_of,
    numbers,
    one,
    pair,
    restart,
    rows,
    states,
)
from tests.support.virtual_group import MS, SECOND, A, B, frames

# Open, closing, closed


@pytest.mark.behaviour("U3-14", "U3-18", "U3-20", "U3-21", "I-13")
def test_an_idle_connection_is_closing_then_closed_at_both_ends() -> None:
    group = pair(**IDLE)
    group.send("a", b"1", to=B)
    group.run_for(900 * MS)
    assert (states(group, "a", outgoing=True), states(group, "b", outgoing=False)) == (
        ["open"],
        ["open"],
    )
    group.run_for(200 * MS)
    assert states(group, "a", outgoing=True) == ["open", "closing"]
    assert states(group, "b", outgoing=False) == ["open", "closing"]
    assert (B in group["a"].connections.outgoing, A in group["b"].connections.incoming) == (
        True,
        True,
    )
    group.run_for(1800 * MS)
    assert group.frames(Close) == []
    group.settle()
    assert (
        states(group, "a", outgoing=True)
        == states(group, "b", outgoing=False)
        == ["open", "closing", "closed"]
    )
    assert (group["a"].connections.outgoing, group["b"].connections.incoming) == ({}, {})


@pytest.mark.behaviour("U3-21", "U3-22")
def test_the_sender_says_that_it_has_closed() -> None:
    """The other end closes at once, whatever its own timeouts are."""
    group = pair(conn_close_timeout="100ms")
    group.send("a", b"1", to=B)
    group.run_for(50 * MS)
    epoch = epoch_of(group, "a", "b")
    close(group, "a", "b")
    group.settle()
    assert group.frames(Close) == [Close(A, epoch)]
    assert group["b"].connections.incoming == {}
    assert states(group, "b", outgoing=False) == ["open", "closed"]


@pytest.mark.behaviour("U3-21")
def test_a_receiver_says_nothing_when_it_removes_its_end() -> None:
    group = pair(**IDLE)
    group.receive("b", A, one(A, 1, opens=True))
    group.settle()
    assert group["b"].connections.incoming == {}
    assert [type(sent.frame) for sent in group.sent if sent.by == B] == [Ack]


@pytest.mark.behaviour("U3-15", "U3-16")
@rows
def test_a_closing_connection_still_sends_what_is_not_acknowledged(row: str) -> None:
    """C-15."""
    group = pair(unicast=row, stability_interval="50ms")
    lost = group.lose(by="a")
    group.send("a", *numbers(1, 3), to=B)
    close(group, "a", "b")
    assert states(group, "a", outgoing=True) == ["open", "closing"]
    group.run_for(500 * MS)
    group.rules.remove(lost)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 3)
    assert group.events_of("a", Undelivered) == []
    assert states(group, "a", outgoing=True) == ["open", "closing", "closed"]


@pytest.mark.behaviour("U3-17")
def test_sending_opens_a_closing_connection_again() -> None:
    """C-13: the same connection continues, and its timeout restarts."""
    group = pair(**IDLE)
    group.send("a", b"1", to=B)
    group.run_for(2900 * MS)
    epoch = epoch_of(group, "a", "b")
    group.send("a", b"2", to=B)
    assert states(group, "a", outgoing=True) == ["open", "closing", "open"]
    group.run_for(900 * MS)
    assert states(group, "a", outgoing=True) == ["open", "closing", "open"]
    assert states(group, "b", outgoing=False) == ["open", "closing", "open"]
    assert epoch_of(group, "a", "b") == epoch
    assert got(group, "b", "a") == numbers(1, 2)


@pytest.mark.behaviour("U3-29")
@rows
def test_closing_while_others_send_loses_nothing(row: str) -> None:
    """S-85."""
    group = pair(unicast=row, conn_close_timeout="30ms", stability_interval="5ms", tail_delay="5ms")
    for seqno in range(1, 101):
        group.send("a", b"%d" % seqno, to=B)
        if seqno % 3 == 0:
            close(group, "a", "b")
        group.run_for((seqno % 7) * 9 * MS)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 100)
    assert group.events_of("a", Undelivered) == []
    assert len({frame.epoch for frame in group.frames(Data)}) > 3, (
        "some have closed, others were opened again"
    )


@pytest.mark.behaviour("U3-17")
def test_a_send_that_has_to_wait_does_not_keep_a_dead_connection_alive() -> None:
    """C-13, S-67: without any answer the connection ends, and reports it."""
    group = pair(capacity=2, **IDLE)
    group.lose(to="b")
    group.send("a", b"1", b"2", to=B)
    tickets = []
    for _ in range(5):
        group.run_for(500 * MS)
        tickets.append(group.send("a", b"more", to=B).ticket)
    assert states(group, "a", outgoing=True) == ["open", "closing"]
    group.run_for(600 * MS)
    assert group.events_of("a", GivenUp) == [GivenUp(ticket, 0, "closed") for ticket in tickets]
    assert group.events_of("a", Undelivered) == [Undelivered(B, 1, 2)]
    assert B not in group["a"].connections.outgoing


@pytest.mark.behaviour("U3-17")
def test_what_had_to_wait_opens_the_connection_when_it_goes_out() -> None:
    """C-13."""
    group = pair(capacity=2, **IDLE)
    lost = group.lose(to="b")
    group.send("a", b"1", b"2", to=B)
    group.send("a", b"3", to=B)
    group.run_for(2 * SECOND)
    assert states(group, "a", outgoing=True) == ["open", "closing"]
    group.rules.remove(lost)
    group.run_for(600 * MS)
    assert states(group, "a", outgoing=True) == ["open", "closing", "open"]
    assert got(group, "b", "a") == numbers(1, 3)


@pytest.mark.behaviour("U3-18")
def test_a_peer_that_answers_keeps_the_connection_alive() -> None:
    """Its application reads nothing for a minute, and the connection stays."""
    group = pair(unread_limit=1, **IDLE)
    group.send("a", *numbers(1, 5), to=B)
    group.run_for(60 * SECOND)
    assert group.events_of("a", Undelivered) == []
    for _ in range(5):
        group.consumed("b", 1)
    group.run_for(SECOND)
    assert got(group, "b", "a") == numbers(1, 5)


@pytest.mark.behaviour("U3-20")
def test_without_an_expiry_a_connection_stays_open() -> None:
    group = pair(conn_expiry_timeout="0s", conn_close_timeout="1ms")
    group.send("a", b"1", to=B)
    group.settle()
    group.run_for(3600 * SECOND)
    assert states(group, "a", outgoing=True) == states(group, "b", outgoing=False) == ["open"]


@pytest.mark.behaviour("U3-18")
def test_without_a_close_timeout_a_connection_stays_closing() -> None:
    group = pair(conn_expiry_timeout="1s", conn_close_timeout="0s")
    group.send("a", b"1", to=B)
    group.settle()
    group.run_for(3600 * SECOND)
    assert (
        states(group, "a", outgoing=True)
        == states(group, "b", outgoing=False)
        == ["open", "closing"]
    )
    assert group["a"].armed_timers() == ()


def test_closing_what_is_not_open_does_nothing() -> None:
    group = pair()
    close(group, "a", "b")
    group.send("a", b"1", to=B)
    close(group, "a", "b")
    group.run_for(SECOND)
    close(group, "a", "b")
    group.run_for(1500 * MS)
    assert states(group, "a", outgoing=True) == ["open", "closing", "closed"], (
        "the second call does not start it anew"
    )


@pytest.mark.behaviour("U3-19", "U3-23")
@rows
def test_sending_after_the_end_begins_a_new_connection(row: str) -> None:
    """S-85."""
    group = pair(unicast=row, conn_close_timeout="50ms", stability_interval="20ms")
    for turn in (b"first", b"second", b"third"):
        group.send("a", turn, b"and more", to=B)
        group.run_for(100 * MS)
        close(group, "a", "b")
        group.settle()
    opening = [frame for frame in group.frames(Data) if not frame.repair]
    assert [(frame.run.first, frame.first) for frame in opening] == [(1, True)] * 3
    epochs = [frame.epoch for frame in opening]
    assert epochs == sorted(set(epochs))
    assert all(epoch >= FIRST_CONNECTION_EPOCH for epoch in epochs)
    assert got(group, "b", "a") == [
        b"first",
        b"and more",
        b"second",
        b"and more",
        b"third",
        b"and more",
    ]


@pytest.mark.behaviour("U3-22")
def test_close_of_another_epoch_is_ignored() -> None:
    group = pair()
    group.receive("b", A, one(A, 1, opens=True))
    before = group["b"].snapshot()
    for epoch in (EPOCH - 1, EPOCH + 1):
        assert group.receive("b", A, Close(A, epoch)).events == []
    group.receive("b", B, Close(B, EPOCH))
    assert group["b"].snapshot() == before
    assert group["b"].counters["dropped.connection"] == 2


@pytest.mark.behaviour("U3-22", "U3-23")
def test_nothing_of_a_closed_connection_is_taken() -> None:
    group = pair()
    group.receive("b", A, one(A, 1, opens=True), one(A, 3))
    ready = group.receive("b", A, Close(A, EPOCH))
    assert ready.events == [Discarded(A, 1), Connected(A, "closed", False)]
    for frame in (
        one(A, 2),
        one(A, 1, opens=True, repair=True),
        Tail(A, 0, 9, None, 0, EPOCH),
        Gone(A, 5, EPOCH),
    ):
        ready = group.receive("b", A, frame)
        assert (ready.deliveries, ready.transmits, ready.events) == ([], [], [])
    assert group["b"].counters["dropped.closed"] == 4
    group.settle()
    assert len(group.frames(Ack)) == 1
    assert group.frames(Nak) == []


def test_a_removed_end_sends_the_ack_that_it_owes_first() -> None:
    """C-15."""
    group = pair(unicast="unicast2", stability_interval="10s", **IDLE)
    group.receive("b", A, one(A, 1, opens=True))
    group.run_for(3100 * MS)
    assert group["b"].connections.incoming == {}
    assert group.frames(Ack) == [Ack(A, 1, group.config.receive_buffer_bytes, EPOCH)]


# How a connection begins


@pytest.mark.behaviour("U3-24")
def test_the_first_message_is_taken_first_within_a_datagram() -> None:
    """S-99."""
    group = pair(become_server_queue_size=0)
    group.receive("b", A, one(A, 3), one(A, 2), one(A, 1, opens=True))
    assert got(group, "b", "a") == numbers(1, 3)
    group.settle()
    assert group.frames(Nak) == []


@pytest.mark.behaviour("U3-25")
def test_what_overtakes_the_first_message_is_kept() -> None:
    """S-99, C-05: it arrives within the grace: there is no request, and all is delivered."""
    group = pair(min_grace="5ms")
    for seqno in (5, 4, 3, 2):
        group.receive("b", A, one(A, seqno))
        group.run_for(MS)
    assert got(group, "b", "a") == []
    group.receive("b", A, one(A, 1, opens=True))
    assert got(group, "b", "a") == numbers(1, 5)
    group.settle()
    assert group.frames(Nak) == []


@pytest.mark.behaviour("U3-25")
def test_a_batch_without_its_first_message_and_overlaps() -> None:
    """S-92, S-93."""
    group = pair(min_grace="5ms")
    group.receive("b", A, one(A, 2, *numbers(2, 10)))
    group.receive("b", A, one(A, 8, *numbers(8, 20)), one(A, 1, opens=True))
    group.receive("b", A, one(A, 1, *numbers(1, 20), opens=True, repair=True))
    assert got(group, "b", "a") == numbers(1, 20)


@pytest.mark.behaviour("U3-25", "P-19", "I-15")
def test_p19_the_first_message_is_asked_for_after_a_grace_and_not_too_often() -> None:
    """C-03: one request for each ``sync_min_interval``, however much data arrives."""
    group = pair(min_grace="5ms", sync_min_interval="300ms")
    group.lose(by="b")
    start_ns = group.now_ns
    for seqno in range(2, 62):
        assert group.receive("b", A, one(A, seqno)).transmits == []
        group.run_for(10 * MS)
    asked = [(sent.at_ns - start_ns, sent.to, sent.frame) for sent in group.sent]
    assert asked == [(5 * MS, A, Nak(A, (), EPOCH)), (305 * MS, A, Nak(A, (), EPOCH))]


@pytest.mark.behaviour("P-19", "I-15")
def test_p19_other_epochs_are_no_reason_to_ask_more_often() -> None:
    group = pair(min_grace="5ms", sync_min_interval="300ms")
    start_ns = group.now_ns
    for at in range(60):
        group.receive("b", A, one(A, 2, epoch=EPOCH + at))
        group.run_for(10 * MS)
    assert [
        (sent.at_ns - start_ns) // MS for sent in group.sent if isinstance(sent.frame, Nak)
    ] == [5, 305]


@pytest.mark.behaviour("U3-26", "P-19")
def test_the_answer_is_the_lowest_message_that_is_not_acknowledged() -> None:
    """C-10."""
    group = pair()
    group.lose()
    group.send("a", *numbers(1, 9), to=B)
    epoch = epoch_of(group, "a", "b")
    stored = group["a"].connections.outgoing[B].stream.window.runs
    for acked in (0, 4):
        group.receive("a", B, Ack(A, acked, 1 << 20, epoch))
        ((to, frame),) = frames(group.receive("a", B, Nak(A, (), epoch)))
        assert isinstance(frame, Data)
        assert (to, frame.first, frame.repair, frame.epoch) == (B, True, True, epoch)
        assert list(frame.run) == [(acked + 1, b"%d" % (acked + 1))]
    assert stored[0].flags == 0, "what is stored is not changed by it (C-01)"
    group.receive("a", B, Ack(A, 9, 1 << 20, epoch))
    assert frames(group.receive("a", B, Nak(A, (), epoch))) == []


@pytest.mark.behaviour("U3-27")
def test_a_message_marked_as_the_first_is_expected_next() -> None:
    """S-91: wherever its seqno is; lower seqnos do not matter any more."""
    group = pair()
    group.receive("b", A, one(A, 7), one(A, 5, opens=True, repair=True))
    group.receive("b", A, one(A, 4), one(A, 6))
    assert got(group, "b", "a") == numbers(5, 7)
    assert group["b"].counters["dropped.old"] == 1


@pytest.mark.behaviour("U3-28")
def test_the_first_message_again_changes_nothing() -> None:
    group = pair()
    group.receive("b", A, one(A, 1, opens=True), one(A, 2), one(A, 4))
    for again in (1, 2, 4):
        group.receive("b", A, one(A, again, opens=True, repair=True))
    assert got(group, "b", "a") == numbers(1, 2)
    group.receive("b", A, one(A, 3))
    assert got(group, "b", "a") == numbers(1, 4)
    assert states(group, "b", outgoing=False) == ["open"]


@pytest.mark.behaviour("U3-25", "U3-26")
@rows
def test_a_receiver_that_forgot_everything_is_told_where_to_go_on(row: str) -> None:
    """S-87: the reader restarted under the same address; acks of its former run do not count."""
    group = pair(unicast=row, stability_interval="20ms")
    group.send("a", *numbers(1, 5), to=B)
    group.settle()
    restart(group, "b")
    group.deliveries[B].clear()
    for seqno in range(6, 11):
        group.send("a", b"%d" % seqno, to=B)
    group.settle()
    assert got(group, "b", "a") == numbers(6, 10)
    assert marks_of(group, "a", "b") == (10, 10)


@pytest.mark.behaviour("P-09")
def test_p09_what_is_kept_of_an_unknown_connection_is_bounded() -> None:
    """C-05."""
    group = pair(become_server_queue_size=50)
    for seqno in range(2, 502):
        group.receive("b", A, one(A, seqno))
    assert len(group["b"].connections.unconfirmed_epochs[A].frames) == 50
    assert group["b"].counters["dropped.early"] == 450


@pytest.mark.behaviour("P-09")
def test_p09_duplicates_take_no_room_of_an_unknown_connection() -> None:
    """Found by exhaustive search: duplicates of one message displaced another one."""
    group = pair(become_server_queue_size=3)
    for seqno in (3, 3, 3, 2):
        group.receive("b", A, one(A, seqno))
    assert group["b"].counters["dropped.duplicate"] == 2
    group.receive("b", A, one(A, 1, opens=True))
    assert got(group, "b", "a") == numbers(1, 3)
    assert "dropped.early" not in group["b"].counters


@pytest.mark.behaviour("P-09")
def test_p09_what_is_kept_expires_with_the_question() -> None:
    """Without an answer the request is sent eight times, and then forgotten."""
    group = pair(sync_min_interval="100ms")
    group.lose(by="b")
    group.receive("b", A, one(A, 2, b"x", b"y"))
    group.settle()
    assert len(group.frames(Nak)) == 8
    assert group["b"].connections.unconfirmed_epochs == {}
    assert group["b"].counters["dropped.early"] == 2
    assert group["b"].armed_timers() == ()


@pytest.mark.behaviour("P-09")
def test_p09_who_never_was_says_so_and_what_is_kept_goes() -> None:
    """The sender does not know the connection: it answers CLOSE, and is not asked again."""
    group = pair()
    group.receive("b", A, one(A, 2))
    group.settle()
    assert (len(group.frames(Nak)), group.frames(Close)) == (1, [Close(A, EPOCH)])
    group.receive("b", A, one(A, 2), one(A, 1, opens=True))
    group.settle()
    assert len(group.frames(Nak)) == 1
    assert got(group, "b", "a") == []


@pytest.mark.behaviour("P-09", "NR-10")
def test_with_retransmission_off_a_window_is_kept_of_an_unknown_connection() -> None:
    """Dropped data would not be resent; a sender has no more than that in flight."""
    group = pair(xmit_interval="0s", become_server_queue_size=5, capacity=40, min_grace="0s")
    lost = group.lose(Data)
    group.send("a", b"1", to=B)
    group.run_for(2 * MS)
    group.rules.remove(lost)
    for seqno in range(2, 41):
        group.send("a", b"%d" % seqno, to=B)
    group.settle()
    assert got(group, "b", "a") == numbers(1, 40)
