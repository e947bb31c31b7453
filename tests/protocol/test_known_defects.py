"""Known defects of other implementations: each is played, and does not happen here."""

from contextlib import suppress
from random import Random

import pytest

from gapless.identity import Address, Digest, Marks, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.events import (
    Accepted,
    GivenUp,
    Lost,
    Refused,
    SlowReceivers,
    Stalled,
    Started,
    ViewInstalled,
)
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.wire.frames import Ack, Data, Gone, Nak, Tail
from tests.support.virtual_group import GROUP, MS, SECOND, A, B, C, D, Group, data


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


# Joining, leaving, returning


@pytest.mark.behaviour("P-01", "I-22")
@pytest.mark.parametrize("ack_threshold", [1, 16])
@pytest.mark.parametrize("late_ms", [0, 100, 250])
def test_p01_a_join_under_load_stops_nobody(late_ms: int, ack_threshold: int) -> None:
    """a and b send all the time; the joiner has its view, with an old digest, long before them."""
    group = Group(3, capacity=64, ack_threshold=ack_threshold, start=False)
    group.install(View.of(1, A, B), [A, B], digest={A: Marks(0, 0, 0), B: Marks(0, 0, 0)})
    view = View.of(2, A, B, C)
    for seqno in range(1, 401):
        if seqno == 100:
            group.install(view, [C], digest={A: Marks(10, 10, 10), B: Marks(10, 10, 10)})
        if seqno == 100 + late_ms:
            group.install(view, [A, B])
        group.send("a", b"%d" % seqno)
        group.send("b", b"%d" % seqno)
        group.run_for(MS)
        assert len(group["a"].outbound.queue) <= 1, "nobody is stopped"
    group.settle(SECOND)
    for origin in "ab":
        assert group.messages("b", origin) == numbers(1, 400)
        assert group.messages("c", origin)[-50:] == numbers(351, 400)
    assert group.events_of("c", Lost) == []


@pytest.mark.behaviour("P-02", "P-18")
def test_p02_acks_of_a_former_life_release_nothing() -> None:
    """a returns with seqnos from one; acks of its first incarnation arrive, and data is lost."""
    group = Group(2)
    group.send("a", *numbers(1, 100))
    group.settle()
    reborn = Address(A.node, 2)
    del group.members[A]
    group.members[reborn] = Endpoint(reborn, GROUP, group.config, Random(1), tracing=True)
    group.addresses = [reborn, B]
    group.deliveries[reborn], group.events[reborn], group.steps[reborn] = [], [], []
    group.install(View.of(2, B, reborn))
    group.run_for(10 * MS)
    lost = group.lose(Data)
    for seqno in range(1, 51):
        group.step(reborn, lambda m, n=seqno: m.send([b"new %d" % n], group.now_ns))  # type: ignore[misc]
        group.step(reborn, lambda m, n=seqno: m.receive(_ack(A, n), group.now_ns))  # type: ignore[misc]
    assert group.members[reborn].outbound.window.low == 0, "nothing is purged that b does not have"
    assert group.members[reborn].counters["dropped.incarnation"] == 50
    group.rules.remove(lost)
    group.settle(SECOND)
    got = [message for d in group.deliveries[B] if d.origin == reborn for message in d.messages()]
    assert got == [b"new %d" % seqno for seqno in range(1, 51)]


def _ack(origin: Address, seqno: int) -> bytes:
    """An ack of b for a stream, as it travels."""
    from gapless.wire.codec import encode

    return encode(GROUP, B, (Ack(origin, seqno, 1 << 20),))


@pytest.mark.behaviour("P-17", "I-22")
@pytest.mark.parametrize(
    "digest", [None, {A: Marks(0, 0, 0), B: Marks(0, 0, 0)}], ids=["told", "old digest"]
)
def test_p17_a_joiner_does_not_get_what_was_sent_before_it_was_a_member(
    digest: Digest | None,
) -> None:
    """It receives data before and after its view, and delivers only that of its views."""
    group = Group(3, start=False)
    group.install(View.of(1, A, B), [A, B], digest={A: Marks(0, 0, 0), B: Marks(0, 0, 0)})
    group.send("a", b"before")
    group.run_for(5 * MS)
    group.install(View.of(2, A, B, C), [C], digest)
    group.send("a", b"a does not know yet")
    group.run_for(5 * MS)
    group.install(View.of(2, A, B, C), [A, B])
    group.send("a", b"for c too")
    group.settle()
    assert group.messages("c", "a") == [b"for c too"]
    assert group.messages("b", "a") == [b"before", b"a does not know yet", b"for c too"]
    assert Started(A, 2) in group.events_of("c", Started)


@pytest.mark.behaviour("P-21")
def test_p21_what_a_departed_member_sent_comes_before_the_view() -> None:
    group = Group(3, unread_limit=1)
    group.receive("b", A, data(A, 1, *numbers(1, 3)))
    ready = group.step(B, lambda m: m.install(View.of(2, B, C), group.now_ns))
    assert [delivery.messages() for delivery in ready.deliveries] == [numbers(2, 3)]
    assert ready.before_view == 1
    assert ready.events == [ViewInstalled(View.of(2, B, C))]


@pytest.mark.behaviour("P-21", "OL-06")
def test_p21_what_is_sent_in_a_view_comes_after_it() -> None:
    """A message of view 2 overtakes the view; it is delivered after the view, in the same Ready."""
    group = Group(2, profile="classic")
    group.receive("b", A, Data(Run.of(A, 1, [b"in view 2"], 0, 2), False, 2))
    assert group.deliveries[B] == []
    ready = group.step(B, lambda m: m.install(View.of(2, A, B), group.now_ns))
    assert [delivery.messages() for delivery in ready.deliveries] == [[b"in view 2"]]
    assert ready.before_view == 0


@pytest.mark.behaviour("P-21")
def test_p21_what_waited_for_room_is_sent_and_delivered_in_the_view() -> None:
    group = Group(2, capacity=2)
    group.lose()
    group.send("a", *numbers(1, 3))
    ready = group.step(A, lambda m: m.install(View.of(2, A), group.now_ns))
    assert [delivery.messages() for delivery in ready.deliveries] == [[b"3"]]
    assert (ready.before_view, ready.events[0]) == (0, ViewInstalled(View.of(2, A)))


# Senders that wait


@pytest.mark.behaviour("P-03")
def test_p03_a_frozen_member_does_not_hold_a_sender_for_good() -> None:
    """Sends can time out; the application learns the slow member; without it all goes on."""
    group = Group(3, capacity=4, slow_receiver_after="100ms")
    group.lose(by="c")
    group.send("a", *numbers(1, 4))
    group.run_for(20 * MS)
    timed = group.send("a", b"timed", timeout_ns=30 * MS)
    cancelled = group.send("a", b"cancelled")
    waiting = group.send("a", b"5")
    refused = group.send("a", b"not now", wait=False)
    group.cancel("a", cancelled.ticket)
    group.run_for(200 * MS)
    assert {event.ticket for event in group.events_of("a", GivenUp)} == {
        timed.ticket,
        cancelled.ticket,
    }
    assert group.events_of("a", Refused) == [Refused(refused.ticket)]
    assert group.events_of("a", SlowReceivers)[0].members == (C,)
    group.install(View.of(2, A, B), [A, B])
    assert Accepted(waiting.ticket, 5, 5) in group.events_of("a", Accepted)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 5)


@pytest.mark.behaviour("P-03", "P-04")
def test_p03_control_traffic_does_not_wait_behind_a_full_window() -> None:
    """a waits for room; its acks, naks and repairs go out as ever."""
    group = Group(2, capacity=2)
    lost = group.lose(Ack, by="b")
    group.send("a", *numbers(1, 5))
    group.lose_seqnos(2, to="a")
    for seqno in range(1, 4):
        group.send("b", b"%d" % seqno)
    group.run_for(300 * MS)
    assert group["a"].outbound.window.room() == 0
    assert group.messages("a", "b") == numbers(1, 3)
    assert group["b"].outbound.window.low == 3
    group.rules.remove(lost)
    group.settle()


@pytest.mark.behaviour("P-04")
def test_p04_acks_go_out_although_retransmission_is_off() -> None:
    """They have a timer of their own: a window of four does not stop the stream."""
    group = Group(2, capacity=4, ack_threshold=4, xmit_interval="0s")
    for seqno in range(1, 31):
        group.send("a", b"%d" % seqno)
    group.settle(SECOND)
    assert group.messages("b", "a") == numbers(1, 30)
    assert group["a"].outbound.window.low == 30
    assert all(tail.start is not None for tail in group.frames(Tail)), (
        "no end of a stream is announced"
    )


@pytest.mark.behaviour("P-06", "P-14")
def test_p06_many_senders_in_a_full_window_keep_the_order_of_the_wire() -> None:
    """Forty sends at a time into a window of eight: first transmissions are in seqno order."""
    group = Group(2, capacity=8)
    for turn in range(20):
        for sender in range(40):
            group.send("a", b"%d/%d" % (turn, sender))
        group.run_for(3 * MS)
    group.settle()
    first = [seqno for low, high in group.data("a", repair=False) for seqno in range(low, high + 1)]
    assert first == list(range(1, 801))
    assert group.messages("b", "a") == [
        b"%d/%d" % (turn, sender) for turn in range(20) for sender in range(40)
    ]


# Memory


@pytest.mark.behaviour("P-10")
@pytest.mark.parametrize("profile", ["nakack4", "nakack", "ordered"])
def test_p10_a_far_number_is_refused_and_asked_for_by_nobody(profile: str) -> None:
    """One frame with number five million: neither memory nor questions."""
    group = Group(2, profile=profile, max_seqno_ahead=100_000)
    group.receive("b", A, data(A, 5_000_000))
    assert group["b"].digest()[A] == Marks(0, 0, 0)
    assert group["b"].counters["dropped.far"] == 1
    group.settle()
    assert not group.frames(Nak)


@pytest.mark.behaviour("P-13")
def test_p13_one_silent_member_does_not_fill_the_memory_of_the_others() -> None:
    """It never votes, so nothing is stable: the sender stops, b sheds, the coordinator names c."""
    group = Group(
        3,
        profile="nakack",
        window_bytes="8KiB",
        slow_receiver_after="200ms",
        stability_interval="50ms",
    )
    group.lose(by="c")
    sends = [group.send("a", bytes(500)).ticket for _ in range(40)]
    group.run_for(SECOND)
    assert group["a"].outbound.window.stored_bytes <= 8192
    assert group["b"].inbound[A].window.stored_bytes <= 8192  # type: ignore[union-attr]
    assert len(group.events_of("a", Accepted)) < len(sends)
    assert {event.members for event in group.events_of("a", SlowReceivers)} == {(C,)}
    del group.members[C]
    group.install(View.of(2, A, B))
    group.settle()
    assert len(group.events_of("a", Accepted)) == len(sends)
    assert len(group.messages("b", "a")) == 40


@pytest.mark.behaviour("P-13", "N7-17")
def test_p13_what_a_receiver_keeps_for_others_does_not_grow() -> None:
    """Nothing is ever stable: b sheds its oldest delivered messages, and goes on."""
    group = Group(2, profile="nakack", window_bytes="8KiB")
    for seqno in range(1, 101):
        group.receive("b", A, data(A, seqno, bytes(500)))
        window = group["b"].inbound[A].window
        assert window is not None
        assert window.stored_bytes <= 8192
    assert group["b"].digest()[A] == Marks(100 - 16, 100, 100)
    assert len(group.messages("b", "a")) == 100


# Storms


@pytest.mark.behaviour("P-11")
def test_p11_a_slow_answer_does_not_lead_to_more_and_more_questions() -> None:
    """With a long round trip a hundred lost messages cost about as many repairs."""
    group = Group(2, delay_ns=150 * MS, capacity=1000)
    group.lose_seqnos(*range(100, 200))
    for seqno in range(1, 301):
        group.send("a", b"%d" % seqno)
        group.run_for(MS)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 300)
    repaired = sum(last - first + 1 for first, last in group.data("a", repair=True))
    assert 100 <= repaired <= 500
    assert len(group.frames(Nak)) <= 10


@pytest.mark.behaviour("P-12")
@pytest.mark.parametrize("seed", range(5))
def test_p12_three_members_that_lose_the_same_frame_do_not_ask_in_step(seed: int) -> None:
    """Acks are spread, too, and a loss of all is repaired by a frame or two."""
    group = Group(4, jitter_percent=50, seed=seed, delay_ns=MS // 10, min_grace="5ms")
    group.lose_seqnos(2)
    for seqno in range(1, 4):
        group.send("a", b"%d" % seqno)
    group.settle()
    for name in "bcd":
        assert group.messages(name, "a") == numbers(1, 3)
    acks_ns = {sent.at_ns for sent in group.sent if isinstance(sent.frame, Ack)}
    assert len(acks_ns) >= 3
    assert len(group.data("a", repair=True)) <= 3


# Applications and other members


@pytest.mark.behaviour("P-16")
def test_p16_a_consumer_that_fails_does_not_stop_delivery() -> None:
    """There are no callbacks: whatever the caller does with a Ready, the next input works."""
    group = Group(3)
    taken: list[bytes] = []

    def consume(delivery: Delivery) -> None:
        for message in delivery.messages():
            if message == b"2":
                raise RuntimeError("the application has a bug")
            taken.append(message)

    for seqno in range(1, 5):
        for sender in (A, C):
            for delivery in group.receive("b", sender, data(sender, seqno)).deliveries:
                with suppress(RuntimeError):
                    consume(delivery)
    assert taken == [b"1", b"1", b"3", b"3", b"4", b"4"]
    assert group["b"].digest()[A] == group["b"].digest()[C] == Marks(4, 4, 4)


@pytest.mark.behaviour("P-16", "N7-11")
@pytest.mark.parametrize("seed", range(10))
def test_p16_after_every_input_nothing_deliverable_is_left(seed: int) -> None:
    """In any order, with duplicates and with announcements in between: no stream is ever stuck."""
    rng = Random(seed)
    group = Group(3)
    frames = [(origin, seqno) for origin in (A, C) for seqno in range(1, 30)]
    for origin, seqno in rng.sample(frames * 2, 2 * len(frames)):
        group.receive("b", origin, data(origin, seqno))
        if rng.random() < 0.1:
            group.receive("b", origin, Tail(origin, 0, 29))
        assert not any(stream.can_deliver for stream in group["b"].inbound.values())
    assert group.messages("b", "a") == group.messages("b", "c") == numbers(1, 29)


@pytest.mark.behaviour("P-20", "NR-17", "NR-18")
def test_p20_a_stall_is_told() -> None:
    """Order without retransmission, and a lossy layer below: an event names the gap, repeatedly."""
    group = Group(2, profile="ordered", stall_after="100ms")
    group.lose_seqnos(2)
    for seqno in range(1, 5):
        group.send("a", b"%d" % seqno)
    noticed_ns = group.now_ns + MS
    group.run_for(350 * MS)
    assert group.messages("b", "a") == [b"1"]
    assert group.events_of("b", Stalled) == [Stalled(A, 2, noticed_ns)] * 3
    assert not group.frames(Nak)


@pytest.mark.behaviour("P-20")
def test_p20_a_stall_may_switch_retransmission_on() -> None:
    group = Group(2, profile="ordered", stall_after="100ms", on_stall="retransmit")
    group.lose_seqnos(2)
    for seqno in range(1, 5):
        group.send("a", b"%d" % seqno)
    group.settle()
    assert group.messages("b", "a") == numbers(1, 4)
    assert len(group.events_of("b", Stalled)) == 1


@pytest.mark.behaviour("P-22")
def test_p22_what_is_dropped_is_counted_under_a_few_reasons() -> None:
    """A thousand strangers and old frames: no event, no answer, no memory, and five counters."""
    group = Group(2)
    group.receive("b", A, data(A, 1))
    before = group["b"].snapshot()
    for number in range(1000):
        stranger, former = Address(1000 + number, 1), Address(A.node, 2 + number)
        for sender, frame in (
            (stranger, data(stranger, number + 1)),
            (former, data(former, number + 1)),
            (A, Ack(B, 10 + number, 1)),
            (A, Gone(D, number)),
            (A, Tail(A, 0, 0, None, 0, 7 + number)),
        ):
            ready = group.receive("b", sender, frame)
            assert (ready.transmits, ready.deliveries, ready.events) == ([], [], [])
    assert group["b"].snapshot() == before
    dropped = {
        reason: count
        for reason, count in group["b"].counters.items()
        if reason.startswith("dropped.")
    }
    assert dropped == {
        "dropped.stranger": 1000,
        "dropped.incarnation": 1000,
        "dropped.ack beyond high": 1000,
        "dropped.origin": 1000,
        "dropped.other view": 1000,
    }
