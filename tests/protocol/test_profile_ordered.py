"""Profile ``ordered``: order without retransmission, over a lossless FIFO transport."""

from random import Random
from typing import Any

import pytest

from gapless.delivery_mode import DeliveryMode
from gapless.identity import Marks, View
from gapless.protocol.events import Accepted, Acknowledged, Lost, SlowReceivers, Stalled
from gapless.wire.frames import Ack, Data, Nak, Stable, StreamProgress, Tail
from tests.support.ordered_profile import (
    begun,
    drops,
    joining,
    numbers,
    ordered,
    retransmissions,
    singles,
    switch,
)
from tests.support.virtual_group import MS, NAMES, SECOND, A, B, C, Group, data, frames

# Order


@pytest.mark.behaviour("NR-01")
def test_messages_are_numbered_as_ever() -> None:
    group = ordered(3)
    singles(group, "a", 1, 3)
    assert group.data("a", repair=False) == [(1, 1), (2, 2), (3, 3)]
    group.settle()
    for name in "abc":
        assert group.numbered(name, "a") == [(1, b"1"), (2, b"2"), (3, b"3")]


@pytest.mark.behaviour("NR-02", "NR-01")
@pytest.mark.parametrize("together", [True, False])
def test_messages_are_delivered_in_the_order_of_their_numbers(together: bool) -> None:
    """One by one, or many in a datagram."""
    group = ordered()
    runs = [data(A, 5, b"5", b"6"), data(A, 2), data(A, 1), data(A, 3, b"3", b"4")]
    if together:
        group.receive("b", A, *runs)
    else:
        for run in runs:
            group.receive("b", A, run)
    assert group.messages("b", "a") == numbers(1, 6)


@pytest.mark.behaviour("NR-03")
def test_stability_still_purges() -> None:
    group = ordered(3)
    group.send("b", *numbers(1, 5))
    assert group["b"].digest()[B] == Marks(0, 5, 5)
    group.settle()
    assert group["b"].digest()[B] == Marks(5, 5, 5)
    assert group["b"].outbound.window.stored == 0


@pytest.mark.behaviour("NR-01")
def test_receivers_keep_nothing_that_they_have_delivered() -> None:
    """It would never be requested."""
    group = ordered(2, stability_interval="1h")
    group.send("a", *numbers(1, 5))
    group.run_for(10 * MS)
    assert group["b"].digest()[A] == Marks(5, 5, 5)


# Nothing is sent again


@pytest.mark.behaviour("NR-04", "NR-06", "NR-07")
def test_there_is_nothing_on_the_wire_but_data_and_votes() -> None:
    group = ordered(3)
    for turn in range(20):
        for name in "abc":
            group.send(name, b"%d" % turn)
        group.run_for(100 * MS)
    group.settle()
    assert retransmissions(group) == []
    assert {type(sent.frame).__name__ for sent in group.sent} == {"Data", "Vote", "Stable"}
    assert len(group.frames(Data)) == 60


@pytest.mark.behaviour("NR-04", "NR-17")
def test_a_gap_is_never_asked_for() -> None:
    """What follows it is held and not delivered, however long."""
    group = ordered()
    group.lose_seqnos(2)
    singles(group, "a", 1, 4)
    group.run_for(60 * SECOND)
    assert retransmissions(group) == []
    assert group.messages("b", "a") == [b"1"]
    assert group["b"].digest()[A] == Marks(1, 1, 4)
    assert group.events_of("b", Lost) == []


@pytest.mark.behaviour("NR-05")
def test_a_stability_message_does_not_make_anybody_ask() -> None:
    """Not even for an end that it shows to be missing."""
    group = ordered(3)
    group.receive("b", A, Stable(A, 1, (StreamProgress(C, 0, 3),)))
    group.run_for(10 * SECOND)
    assert group.frames(Nak) == []
    assert group["b"].inbound[C].announced_high == 0


@pytest.mark.behaviour("NR-05")
def test_a_digest_does_not_make_anybody_ask() -> None:
    """N7-22 is for profiles with naks."""
    group = Group(2, start=False, profile="ordered")
    group.install(View.of(1, A, B), [B], digest={A: Marks(3, 5, 8), B: Marks(0, 0, 0)})
    group.run_for(10 * SECOND)
    assert retransmissions(group) == []
    assert group.events_of("b", Stalled) == []


@pytest.mark.behaviour("NR-06")
def test_the_end_of_the_stream_is_not_announced() -> None:
    group = ordered()
    group.lose(Data)
    group.send("a", b"1")
    assert "tail" not in group["a"].armed_timers()
    group.run_for(SECOND)
    assert group.frames(Tail) == []
    group.run_for(60 * SECOND)
    assert retransmissions(group) == [], "a blocked sender asks, and sends its start with it"


@pytest.mark.behaviour("NR-06", "NR-08")
def test_only_the_start_of_a_new_member_is_told() -> None:
    """It is no retransmission; it ends with the ack of the newcomer."""
    group = joining()
    group.install(View.of(2, A, B, C))
    group.send("b", b"101")
    group.settle()
    assert group.messages("c", "b") == [b"101"]
    assert all(tail.start is not None for tail in group.frames(Tail))
    tails = len(group.frames(Tail))
    group.run_for(60 * SECOND)
    assert len(group.frames(Tail)) == tails
    assert group.frames(Nak) == []


@pytest.mark.behaviour("NR-06")
def test_a_lost_start_is_told_again() -> None:
    """The one thing that is repeated, or nothing that follows could be delivered."""
    group = joining()
    group.lose(Tail, by="b", times=3)
    group.install(View.of(2, A, B, C))
    group.send("b", b"101")
    group.settle()
    assert group.messages("c", "b") == [b"101"]
    assert all(tail.start is not None for tail in group.frames(Tail)), (
        "the end of the stream is not announced with it"
    )


@pytest.mark.behaviour("P-04")
@pytest.mark.parametrize("profile", ["nakack4", "ordered"])
def test_acks_have_a_timer_of_their_own(profile: str) -> None:
    """Acks work without retransmission: of acknowledged messages, and to release a window."""
    group = begun(Group(2, profile=profile, xmit_interval="0s", capacity=4, ack_threshold=4))
    group.send("a", *numbers(1, 50))
    ticket = group.send("a", b"51", mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.settle()
    assert group.messages("b", "a") == numbers(1, 51)
    assert Acknowledged(ticket) in group.events_of("a", Acknowledged)
    assert group["a"].is_quiet
    assert retransmissions(group) == []


@pytest.mark.behaviour("P-04")
def test_an_ack_that_is_owed_goes_out_after_its_delay() -> None:
    group = begun(Group(2, xmit_interval="0s"))
    group.send("a", b"1")
    group.run_for(MS)
    assert group.frames(Ack) == []
    group.run_for(10 * MS)
    assert [ack.seqno for ack in group.frames(Ack, "b")] == [1]


# A gap all the same


@pytest.mark.behaviour("NR-18", "NR-17", "P-20")
def test_a_gap_that_stays_is_reported_as_a_stall() -> None:
    """The event names the origin, the missing seqno and its age, and repeats."""
    group = ordered(stall_after="2s")
    group.lose_seqnos(2)
    noticed_ns = group.now_ns + MS
    singles(group, "a", 1, 4)
    group.run_for(2 * SECOND)
    assert group.events_of("b", Stalled) == []
    group.run_for(2 * MS)
    assert group.events_of("b", Stalled) == [Stalled(A, 2, noticed_ns)]
    group.run_for(4 * SECOND)
    assert group.events_of("b", Stalled) == [Stalled(A, 2, noticed_ns)] * 3
    assert group["b"].counters["stalls"] == 3


@pytest.mark.behaviour("NR-18")
def test_a_gap_that_closes_is_no_stall() -> None:
    group = ordered(stall_after="2s")
    group.receive("b", A, data(A, 2))
    group.run_for(1900 * MS)
    group.receive("b", A, data(A, 1))
    group.run_for(10 * SECOND)
    assert group.events_of("b", Stalled) == []
    assert group.messages("b", "a") == numbers(1, 2)


@pytest.mark.behaviour("NR-18")
def test_a_gap_that_opens_while_another_closes_has_a_time_of_its_own() -> None:
    """Only a gap that is older than ``stall_after`` is reported."""
    group = ordered(stall_after="2s")
    group.receive("b", A, data(A, 2))
    group.run_for(1900 * MS)
    opened_ns = group.now_ns
    group.receive("b", A, data(A, 4))
    group.receive("b", A, data(A, 1))
    group.run_for(1900 * MS)
    assert group.events_of("b", Stalled) == []
    group.run_for(2 * SECOND)
    ((origin, seqno, since_ns),) = group.events_of("b", Stalled)
    assert (origin, seqno) == (A, 3)
    assert since_ns >= opened_ns


@pytest.mark.behaviour("NR-18")
def test_an_application_that_takes_its_time_is_no_stall() -> None:
    group = ordered(unread_limit=1, stall_after="100ms")
    group.send("a", *numbers(1, 3), loopback=False)
    group.run_for(10 * SECOND)
    assert group.events_of("b", Stalled) == []
    assert group.messages("b", "a") == [b"1"]


@pytest.mark.behaviour("NR-18")
def test_a_stream_whose_start_never_comes_is_a_stall() -> None:
    """The seqno is 0: not even the first one is known."""
    group = joining()
    group.lose(Tail, by="b")
    group.install(View.of(2, A, B, C))
    group.run_for(2500 * MS)
    assert {(stall.origin, stall.seqno) for stall in group.events_of("c", Stalled)} == {(B, 0)}


@pytest.mark.behaviour("NR-18", "P-20")
def test_a_stall_can_switch_retransmission_on() -> None:
    group = ordered(on_stall="retransmit", stall_after="1s")
    group.lose_seqnos(2)
    singles(group, "a", 1, 4)
    group.settle(5 * SECOND)
    assert group.messages("b", "a") == numbers(1, 4)
    assert len(group.events_of("b", Stalled)) == 1
    assert group["b"].config.xmit_interval_ns == 500 * MS
    assert not group["a"].config.retransmits, "only the one that stalled"


@pytest.mark.behaviour("NR-18", "P-20")
@pytest.mark.parametrize("knob", ["min_grace", "min_retry"])
def test_a_stall_switches_retransmission_on_whatever_the_other_knobs_say(knob: str) -> None:
    """The interval is as long as they ask for."""
    knobs: dict[str, Any] = {knob: "2s"}
    group = ordered(on_stall="retransmit", stall_after="1s", **knobs)
    group.lose_seqnos(2)
    singles(group, "a", 1, 3)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 3)
    assert group["b"].config.xmit_interval_ns == 2 * SECOND


@pytest.mark.behaviour("NR-17", "NR-18", "P-20")
def test_a_stall_does_not_grow_without_limit() -> None:
    """The vote of the stalled member holds low, and the sender waits; it learns who is behind."""
    group = ordered(2, max_seqno_ahead=16, capacity=16, slow_receiver_after="5s")
    group.lose_seqnos(2)
    singles(group, "a", 1, 100)
    group.run_for(10 * SECOND)
    assert group["a"].digest()[A] == Marks(1, 17, 17)
    assert group["b"].digest()[A] == Marks(1, 1, 17)
    assert len(group["a"].outbound.queue) == 83
    assert group.events_of("a", SlowReceivers)[-1].members == (B,)


@pytest.mark.behaviour("NR-06", "NR-18")
@pytest.mark.parametrize("profile", ["ordered", "nakack", "classic", "nakack4"])
@pytest.mark.parametrize("sender", ["a", "b"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_lost_last_message_is_reported_at_both_ends(
    profile: str, sender: str, before: int
) -> None:
    """The receiver learns that it exists, and the sender who lacks it, coordinator or not."""
    group = Group(3, profile=profile, xmit_interval="0s")
    singles(group, sender, 1, before)
    group.settle()
    group.lose(Data, to="c")
    group.send(sender, b"last")
    since_ns = group.now_ns
    group.run_for(4 * SECOND)
    assert {(stall.origin, stall.seqno) for stall in group.events_of("c", Stalled)} == {
        (NAMES[sender], before + 1)
    }
    assert not group.events_of("a", Stalled)
    group.run_for(2 * SECOND)
    assert group.events_of(sender, SlowReceivers) == [
        SlowReceivers((C,), before, before + 1, since_ns)
    ]
    assert all(tail.start is not None for tail in group.frames(Tail)), "no end is announced"
    assert retransmissions(group) == []


@pytest.mark.behaviour("NR-18")
def test_a_lost_last_message_can_switch_retransmission_on() -> None:
    group = ordered(3, on_stall="retransmit")
    group.lose(Data, to="c", times=1)
    group.send("b", b"last")
    group.run_for(10 * SECOND)
    assert group.messages("c", "b") == [b"last"]
    assert group["b"].is_quiet


@pytest.mark.behaviour("NR-18")
def test_the_lost_last_message_of_a_connection_is_reported() -> None:
    group = ordered(2)
    group.send("a", b"1", to=B)
    group.settle()
    group.lose(Data, to="b")
    group.send("a", b"2", to=B)
    group.run_for(6 * SECOND)
    assert {(stall.origin, stall.seqno) for stall in group.events_of("b", Stalled)} == {(A, 2)}
    assert {event.members for event in group.events_of("a", SlowReceivers)} == {(B,)}


@pytest.mark.behaviour("NR-19")
def test_naks_of_others_are_answered() -> None:
    group = ordered(3, stability_interval="1h")
    singles(group, "a", 1, 3)
    ready = group.receive("a", B, Nak(A, ((2, 3),)))
    repairs = [
        (to, frame.run.first, frame.run.last)
        for to, frame in frames(ready)
        if isinstance(frame, Data)
    ]
    assert repairs == [(B, 2, 2), (B, 3, 3)]


@pytest.mark.behaviour("NR-19")
def test_a_group_may_be_mixed() -> None:
    """b sends naks, c does not; both learn of it from a, which neither asks nor announces."""
    group = ordered(3)
    switch(group, "b", 500 * MS)
    group.lose_seqnos(2)
    singles(group, "a", 1, 3)
    group.run_for(SECOND)
    assert group.messages("b", "a") == numbers(1, 3)
    assert group.messages("c", "a") == [b"1"]
    assert group.events_of("c", Stalled) == []
    assert retransmissions(group, "c") == []


# Nothing is dropped


@pytest.mark.behaviour("NR-16")
def test_a_send_waits_when_there_is_no_room_and_none_is_lost() -> None:
    group = ordered(3, max_seqno_ahead=4, capacity=4)
    for first in range(1, 100, 10):
        group.send("b", *numbers(first, first + 9))
    assert group["b"].digest()[B].high == 4
    group.settle()
    for name in "abc":
        assert group.messages(name, "b") == numbers(1, 100)
    assert [event.ticket for event in group.events_of("b", Accepted)] == list(range(1, 11))


@pytest.mark.behaviour("NR-15")
def test_a_datagram_is_worked_on_in_the_call_that_brings_it() -> None:
    """S-56: however busy the application is; data without room stays in the window."""
    group = ordered(2, unread_limit=1)
    for seqno in range(1, 21):
        group.receive("b", A, data(A, seqno))
        assert group["b"].digest()[A].high == seqno
    for _ in range(20):
        group.consumed("b", 1)
    assert group.messages("b", "a") == numbers(1, 20)
    assert drops(group, "b") == {}


@pytest.mark.behaviour("NR-15", "NR-16")
@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_sender_may_send_a_receiver_takes(seed: int) -> None:
    """Small windows in messages and bytes, fragments, slow applications: nothing is dropped."""
    rng = Random(seed)
    most = rng.choice([1, 3, 20])
    group = ordered(
        3,
        seed=seed,
        max_seqno_ahead=most,
        capacity=most,
        window_bytes=rng.choice(["1KiB", "4KiB", "16MiB"]),
        discard_delivered=rng.random() < 0.5,
        unread_limit=rng.choice([0, 1, 4]),
        max_frame_bytes=rng.choice(["256B", "1400B"]),
        stability_interval=rng.choice(["5ms", "50ms"]),
    )
    sent: dict[str, list[bytes]] = {name: [] for name in "abc"}
    for _ in range(20):
        name = rng.choice("abc")
        messages = [rng.randbytes(rng.choice([0, 1, 100, 1500])) for _ in range(rng.randint(1, 5))]
        group.send(name, *messages)
        sent[name] += messages
        group.run_for(rng.choice([0, 1, 20]) * MS)
        group.consumed(rng.choice("abc"), rng.randint(0, 3))
    for _ in range(3_000):
        group.run_for(20 * MS)
        for name in "abc":
            group.consumed(name, 4)
        if all(group[name].is_quiet for name in "abc"):
            break
    for at in "abc":
        assert drops(group, at) == {}
        for origin in "abc":
            assert group.messages(at, origin) == sent[origin]
    assert retransmissions(group) == []
