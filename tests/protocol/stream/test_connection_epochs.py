"""Epochs of connections: which one is current, what a closed one leaves, what is reported."""

from random import Random
from typing import Any

import pytest

from gapless.delivery_mode import DeliveryMode
from gapless.identity import Marks, View
from gapless.protocol.events import (
    Accepted,
    Connected,
    Discarded,
    GivenUp,
    Lost,
    Unacknowledged,
    Undelivered,
    ViewInstalled,
)
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, Run
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Ack, Close, Data, Frame, Gone, Nak, Tail
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
from tests.support.virtual_group import MS, SECOND, A, B, C, Group


def grow_old(group: Group, name: str) -> None:
    """Raise the next epoch of a member, as if its clock were years ahead."""
    group[name].connections._last_epoch = FIRST_CONNECTION_EPOCH + (1 << 62)


# Memory of closed connections


def reaped(lost: int, row: str = "unicast3") -> Group:
    """Deliver three messages, lose the last ``lost`` acks, then remove the receiving end."""
    group = pair(unicast=row, stability_interval="20ms", **IDLE)
    group["a"].connections.config = group.config.replace(
        conn_expiry_timeout="0s"
    )  # only the receiver forgets
    if lost < 3:
        group.send("a", *numbers(1, 3 - lost), to=B)
        group.run_for(100 * MS)
    group.lose(by="b")
    group.send("a", *numbers(4 - lost, 3), to=B)
    group.run_for(2 * MS)
    group.lose()
    group.run_for(4 * SECOND)
    assert A not in group["b"].connections.incoming
    group.rules.clear()
    return group


@pytest.mark.behaviour("P-05")
@pytest.mark.parametrize("lost", [1, 2, 3])
@rows
def test_p05_a_removed_connection_delivers_nothing_twice(row: str, lost: int) -> None:
    """C-21: 1, 2, 3, 3 must not happen: delivered messages without an ack stay with the sender."""
    group = reaped(lost, row)
    assert got(group, "b", "a") == numbers(1, 3)
    group.run_for(2 * SECOND)
    assert got(group, "b", "a") == numbers(1, 3)
    assert marks_of(group, "a", "b") == (3, 3)


@pytest.mark.behaviour("P-05")
def test_p05_a_removed_connection_goes_on_where_it_was() -> None:
    """S-87."""
    group = reaped(1)
    epoch = epoch_of(group, "a", "b")
    group.send("a", b"4", to=B)
    group.run_for(50 * MS)
    assert got(group, "b", "a") == numbers(1, 4)
    assert epoch_of(group, "a", "b") == epoch
    assert group.frames(Nak) == [], "it remembers: there is no need to ask"


@pytest.mark.behaviour("P-05")
def test_p05_what_comes_after_the_end_and_is_marked_as_the_first_is_not_believed() -> None:
    """The answer is for another receiver; this one knows its own position better."""
    group = pair(**IDLE)
    group.receive("b", A, one(A, 1, *numbers(1, 3), opens=True))
    group.settle()
    assert group["b"].connections.incoming == {}
    group.receive("b", A, one(A, 2, opens=True, repair=True), one(A, 3), one(A, 4))
    assert got(group, "b", "a") == numbers(1, 4)


@pytest.mark.behaviour("P-05")
def test_p05_a_member_that_was_away_goes_on_where_it_was() -> None:
    """One end had a view without the other, which noticed nothing."""
    group = pair(3)
    group.send("a", *numbers(1, 3), to=B)
    group.settle()
    group.install(View.of(2, B, C), [B])
    group.install(View.of(3, A, B, C), [B])
    group.send("a", b"4", to=B)
    group.run_for(50 * MS)
    assert got(group, "b", "a") == numbers(1, 4)


@pytest.mark.behaviour("P-05")
def test_memory_of_ended_connections_is_bounded() -> None:
    group = pair()
    for at in range(5_000):
        group.receive("b", A, one(A, 1, epoch=EPOCH + at, opens=True))
        group.receive("b", A, Close(A, EPOCH + at))
    assert len(group["b"].connections._tombstones) == 4096
    assert len(got(group, "b", "a")) == 5_000


# Another epoch than the present one


@pytest.mark.behaviour("P-07")
@pytest.mark.parametrize("clock", ["higher", "lower"])
@rows
def test_p07_a_restarted_sender_with_the_same_address_is_heard(row: str, clock: str) -> None:
    """Whether its clock went on or back; each message once, the old ones before the new ones."""
    group = pair(unicast=row, stability_interval="20ms")
    if clock == "lower":
        grow_old(group, "a")
    for seqno in range(1, 4):
        group.send("a", b"old %d" % seqno, to=B)
    group.run_for(100 * MS)
    before = epoch_of(group, "a", "b")
    restart(group, "a")
    for seqno in range(1, 4):
        group.send("a", b"new %d" % seqno, to=B)
    assert (epoch_of(group, "a", "b") < before) == (clock == "lower")
    group.run_for(SECOND)
    assert got(group, "b", "a") == [b"old 1", b"old 2", b"old 3", b"new 1", b"new 2", b"new 3"]
    assert marks_of(group, "a", "b") == (3, 3)


@pytest.mark.behaviour("P-07")
@pytest.mark.parametrize("clock", ["higher", "lower"])
@pytest.mark.parametrize("known", [True, False])
@rows
def test_p07_frames_that_are_still_flying_do_not_disturb(row: str, known: bool, clock: str) -> None:
    """Late frames of the former connection do not disturb the current one."""
    group = pair(unicast=row, stability_interval="20ms")
    if clock == "lower":
        grow_old(group, "a")
    lost = group.lose()
    group.send("a", *numbers(1, 3), to=B)
    former = epoch_of(group, "a", "b")
    if known:
        group.receive("b", A, one(A, 1, b"old", epoch=former, opens=True))
    restart(group, "a")
    group.run_for(50 * MS)
    group.rules.remove(lost)
    flying: list[Frame] = [
        one(A, 1, b"old", epoch=former, opens=True),
        one(A, 1, b"old", epoch=former, opens=True, repair=True),
        one(A, 2, b"old", epoch=former),
        Tail(A, 0, 3, None, 0, former),
        Gone(A, 9, former),
    ]
    for seqno in range(1, 31):
        group.send("a", b"%d" % seqno, to=B)
        group.run_for(seqno * MS)
        group.receive("b", A, flying[seqno % len(flying)])
    group.run_for(5 * SECOND)
    assert [message for message in got(group, "b", "a") if message != b"old"] == numbers(1, 30)
    assert marks_of(group, "a", "b") == (30, 30)
    assert group.events_of("b", Lost) == []


@pytest.mark.behaviour("P-07", "P-18")
def test_p07_another_epoch_is_only_believed_when_its_sender_confirms_it() -> None:
    """Of neither epoch: it is buffered, and the sender is asked; the current connection goes on."""
    group = pair()
    group.lose(by="b")
    group.receive("b", A, one(A, 1, opens=True))
    for epoch in (EPOCH - 1, EPOCH + 1):
        ready = group.receive("b", A, one(A, 1, b"other", epoch=epoch, opens=True))
        assert (ready.deliveries, ready.events) == ([], [])
    group.receive("b", A, one(A, 2))
    assert got(group, "b", "a") == numbers(1, 2)
    group.run_for(5 * MS)
    assert group.frames(Nak) == [Nak(A, (), EPOCH + 1)]
    group.receive("b", A, one(A, 1, b"other", epoch=EPOCH + 1, opens=True, repair=True))
    assert got(group, "b", "a") == [*numbers(1, 2), b"other"]
    assert states(group, "b", outgoing=False) == ["open", "closed", "open"]


@pytest.mark.behaviour("U3-19")
def test_a_new_connection_waits_for_the_end_of_the_former_one() -> None:
    """S-86: the new first message overtook CLOSE: it opens the connection without a question."""
    group = pair(min_grace="5ms")
    group.receive("b", A, one(A, 1, b"old", opens=True))
    group.receive(
        "b", A, one(A, 1, b"new", epoch=EPOCH + 1, opens=True), one(A, 2, b"er", epoch=EPOCH + 1)
    )
    ready = group.receive("b", A, Close(A, EPOCH))
    assert ready.events == [Connected(A, "closed", False), Connected(A, "open", False)]
    assert got(group, "b", "a") == [b"old", b"new", b"er"]
    group.run_for(SECOND)
    assert group.frames(Nak) == []


@pytest.mark.behaviour("U3-19", "U3-12")
@rows
def test_a_new_connection_when_the_end_of_the_former_one_was_lost(row: str) -> None:
    """S-86."""
    group = pair(unicast=row, conn_close_timeout="50ms", stability_interval="20ms")
    group.lose(Close)
    for turn in range(5):
        for seqno in range(1, 4):
            group.send("a", b"%d.%d" % (turn, seqno), to=B)
        group.run_for(400 * MS)
        close(group, "a", "b")
        group.run_for(100 * MS)
    assert got(group, "b", "a") == [
        b"%d.%d" % (turn, seqno) for turn in range(5) for seqno in range(1, 4)
    ]
    assert group.events_of("a", Undelivered) == []


@pytest.mark.behaviour("P-18")
def test_who_asks_for_a_connection_that_has_ended_is_told_so() -> None:
    """Its CLOSE was lost, and the reader misses something: it does not ask for ever."""
    group = pair(conn_close_timeout="1ms")
    group.lose(Close, times=1)
    group.lose_seqnos(2)
    for seqno in range(1, 4):
        group.send("a", b"%d" % seqno, to=B)
    close(group, "a", "b")
    group.settle()
    assert group.events_of("a", Undelivered) == [Undelivered(B, 1, 3)]
    assert len(group.frames(Close)) == 2
    assert group["b"].connections.incoming == {}
    assert group.events_of("b", Discarded) == [Discarded(A, 1)]


# Messages that were not sent, not acknowledged or not consumed


@pytest.mark.parametrize("how", ["view", "closed"])
def test_an_end_reports_everything_that_did_not_arrive(how: str) -> None:
    """C-15, S-65."""
    group = pair(3, capacity=3)
    group.lose(to="b")
    group.send("a", b"1", to=B)
    acked = group.send("a", b"2", to=B, mode=DeliveryMode.ACKNOWLEDGED).ticket
    half = group.send("a", b"3", b"4", to=B).ticket
    waiting = group.send("a", b"5", to=B, mode=DeliveryMode.ACKNOWLEDGED).ticket
    close(group, "a", "b")
    if how == "view":
        group.install(View.of(2, A, C), [A])
    else:
        group.run_for(2100 * MS)
    reason = "departed" if how == "view" else "closed"
    reported = [
        event
        for event in group.events[A]
        if not isinstance(event, (Accepted, Connected, ViewInstalled))
    ]
    assert reported == [
        GivenUp(half, 1, reason),
        GivenUp(waiting, 0, reason),
        Unacknowledged(acked, (B,)),
        Undelivered(B, 1, 3),
    ]
    assert states(group, "a", outgoing=True)[-1] == "closed"
    assert group["a"].is_quiet


@pytest.mark.behaviour("P-15", "U3-21")
@rows
def test_p15_a_view_without_the_peer_ends_its_connections_at_once(row: str) -> None:
    """S-64: nothing is sent to a member that has left: no data, no acks, no CLOSE, no timers."""
    group = pair(3, unicast=row, capacity=4, stability_interval="50ms", min_ack_interval="50ms")
    group.lose_seqnos(2, 6)
    for seqno in range(1, 9):
        group.send("a", b"%d" % seqno, to=B)
        group.send("b", b"%d" % seqno, to=A)
    group.receive("b", C, one(C, 2))
    group.run_for(MS)
    before = len(group.sent)
    group.install(View.of(2, B), [B])
    assert [event.reason for event in group.events_of("b", GivenUp)] == ["departed"] * 4
    assert group.events_of("b", Undelivered) != []
    group.run_for(10 * SECOND)
    assert [sent for sent in group.sent[before:] if sent.by == B] == []
    assert group["b"].armed_timers() == ()


@pytest.mark.behaviour("P-15")
def test_p15_an_ack_that_is_owed_goes_with_the_one_that_it_is_for() -> None:
    group = pair(3, unicast="unicast2")
    group.receive("b", A, one(A, 1, opens=True))
    assert set(group["b"].deliveries.pending_acks) == {(A, EPOCH)}
    group.install(View.of(2, B, C), [B])
    group.settle()
    assert group.frames(Ack) == []


@pytest.mark.behaviour("P-15")
def test_p15_who_comes_back_gets_a_new_connection() -> None:
    group = pair(2)
    group.send("a", b"1", to=B)
    group.settle()
    former = epoch_of(group, "a", "b")
    group.install(View.of(2, A), [A])
    group.install(View.of(3, A, B))
    group.send("a", b"2", to=B)
    group.run_for(SECOND)
    assert epoch_of(group, "a", "b") > former
    assert got(group, "b", "a") == numbers(1, 2)


@pytest.mark.behaviour("I-08")
def test_what_a_departed_peer_had_sent_is_delivered_whatever_the_room() -> None:
    group = pair(3, unread_limit=1)
    group.receive("b", A, one(A, 1, *numbers(1, 3), opens=True), one(A, 5))
    group.install(View.of(2, B, C), [B])
    assert got(group, "b", "a") == numbers(1, 3)
    assert group.events_of("b", Discarded) == [Discarded(A, 1)]
    ready = group.consumed("b", 3)
    assert (ready.deliveries, ready.transmits) == ([], [])
    assert group["b"].deliveries.awaiting_credit == {}


@pytest.mark.behaviour("U3-23")
def test_an_end_that_is_gone_neither_acknowledges_nor_delivers() -> None:
    """Owed acks and waiting data are handled, or end with the connection."""
    group = pair(unicast="unicast2", stability_interval="50ms", unread_limit=2)
    group.receive("b", A, one(A, 1, *numbers(1, 4), opens=True))
    assert (
        set(group["b"].deliveries.pending_acks),
        set(group["b"].deliveries.awaiting_credit),
    ) == (
        {(A, EPOCH)},
        {(A, EPOCH)},
    )
    group.receive("b", A, Tail(A, 0, 4, None, 0, EPOCH), Close(A, EPOCH))
    assert got(group, "b", "a") == numbers(1, 4)
    assert (group["b"].deliveries.pending_acks, group["b"].deliveries.awaiting_credit) == ({}, {})
    assert group.consumed("b", 4).deliveries == []
    group.settle()
    assert group.frames(Ack) == []


@pytest.mark.behaviour("U3-20")
def test_what_the_application_has_no_room_for_is_not_removed() -> None:
    """M-16: to remove it would mean to hand out everything at once."""
    group = pair(unread_limit=2, **IDLE)
    group.receive("b", A, one(A, 1, *numbers(1, 6), opens=True))
    group.run_for(30 * SECOND)
    assert got(group, "b", "a") == numbers(1, 2)
    for _ in range(3):
        group.consumed("b", 2)
    assert got(group, "b", "a") == numbers(1, 6)
    group.settle()
    assert group["b"].connections.incoming == {}


@pytest.mark.behaviour("P-05")
def test_a_message_of_which_pieces_are_here_is_not_removed() -> None:
    """M-14: they were acknowledged, so they would not be resent."""
    group = pair(**IDLE)
    pieces = [Data(Run.of(A, 1, (b"be",), FRAGMENT | FIRST_FRAGMENT), False, EPOCH, True)]
    pieces += [
        Data(Run.of(A, 2, (b"gin",), FRAGMENT), False, EPOCH),
        Data(Run.of(A, 3, (b"s",), FRAGMENT | LAST_FRAGMENT), False, EPOCH),
    ]
    group.receive("b", A, pieces[0], pieces[1])
    group.run_for(30 * SECOND)
    group.receive("b", A, pieces[2])
    assert got(group, "b", "a") == [b"begins"]
    group.settle()
    assert group["b"].connections.incoming == {}


@pytest.mark.behaviour("P-01", "P-05")
def test_pieces_are_kept_while_their_sender_is_out_of_the_view() -> None:
    """They were acknowledged, so the sender may have purged them."""
    group = pair(3)
    group.lose(by="b")
    group.receive(
        "b", A, Data(Run.of(A, 1, (b"be",), FRAGMENT | FIRST_FRAGMENT), False, EPOCH, True)
    )
    group.install(View.of(2, B, C), [B])
    group.install(View.of(3, A, B, C), [B], digest={A: Marks(0, 0, 0)})
    group.receive(
        "b", A, Data(Run.of(A, 2, (b"gins",), FRAGMENT | LAST_FRAGMENT), False, EPOCH), one(A, 3)
    )
    assert got(group, "b", "a") == [b"begins", b"3"]
    assert group.frames(Nak) == []


@pytest.mark.behaviour("U3-20")
def test_the_connection_to_oneself_ends_too_but_not_before_everything_is_consumed() -> None:
    """C-17."""
    group = pair(unread_limit=2, max_frame_bytes=256, **IDLE)
    group.send("a", b"1", b"2", b"x" * 500, to=A)
    group.run_for(30 * SECOND)
    group.consumed("a", 2)
    assert got(group, "a", "a") == [b"1", b"2", b"x" * 500]
    group.settle()
    assert (group["a"].connections.outgoing, group.sent, group.events_of("a", Undelivered)) == (
        {},
        [],
        [],
    )
    group.consumed("a", 1)
    group.send("a", b"again", to=A)
    assert got(group, "a", "a")[-1] == b"again"


# Whole runs


@pytest.mark.behaviour("U3-12", "U3-19")
@pytest.mark.parametrize("seed", range(10))
@rows
def test_connections_come_and_go_on_a_bad_network(row: str, seed: int) -> None:
    """S-84: losses, closes and expiries: each message arrives once and in order, or is reported."""
    group = pair(
        unicast=row,
        seed=seed,
        conn_expiry_timeout="300ms",
        conn_close_timeout="3s",
        stability_interval="20ms",
    )
    rng = Random(seed)
    group.rule(lambda _by, _to, _frame: rng.random() < 0.15)
    for seqno in range(1, 61):
        for by, to in (("a", B), ("b", A)):
            group.send(by, b"%d" % seqno, to=to)
            if rng.random() < 0.2:
                close(group, by, "b" if by == "a" else "a")
        group.run_for(int(rng.choice((0, 2, 30, 400, 4000)) * MS * rng.random()))
    group.settle(within_ns=300 * SECOND)
    for by, at in (("a", "b"), ("b", "a")):
        arrived = [int(message) for message in got(group, at, by)]
        assert arrived == sorted(set(arrived))
        assert (
            len(arrived)
            + sum(event.last - event.first + 1 for event in group.events_of(by, Undelivered))
            >= 60
        )
        assert (group[by].connections.outgoing, group[by].connections.incoming) == ({}, {})


@rows
def test_a_snapshot_holds_connections(row: str) -> None:
    """A restored copy continues like the original, at either end and to oneself."""
    knobs: dict[str, Any] = {
        "unicast": row,
        "unread_limit": 4,
        "max_frame_bytes": 256,
        "stability_interval": "20ms",
    }
    group, copy = pair(**knobs), pair(**knobs)
    group.lose()
    group.send("a", *numbers(1, 5), b"x" * 500, to=B)
    group.send("a", b"own 1", b"own 2", b"own 3", b"own 4", b"y" * 900, to=A)
    group.receive("a", B, one(B, 1, opens=True), one(B, 3))
    group.receive("a", B, one(B, 1, b"other", epoch=EPOCH + 1, opens=True))
    group.run_for(5 * MS)
    copy["a"].restore(group["a"].snapshot())
    copy["a"].check_invariants()
    assert copy["a"].snapshot() == group["a"].snapshot()
    for each in (group, copy):
        each.now_ns = max(each.now_ns, 2 * SECOND)
        each.receive("a", B, one(B, 2), Ack(A, 5, 1 << 20, epoch_of(group, "a", "b")))
        each.receive("a", B, one(B, 1, b"other", epoch=EPOCH + 1, opens=True, repair=True))
        for _ in range(4):
            each.consumed("a", 2)
    assert got(copy, "a", "a") == got(group, "a", "a")[4:] == [b"y" * 900]
    assert got(copy, "a", "b") == got(group, "a", "b") == [b"1", b"2", b"3", b"other"]
    assert marks_of(copy, "a", "b") == marks_of(group, "a", "b")
