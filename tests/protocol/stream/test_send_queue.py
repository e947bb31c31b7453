"""Sends: first come, first served; packed into runs; seqnos assigned last, without holes."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gapless.delivery_mode import DeliveryMode
from gapless.payloads import Payloads
from gapless.protocol import timers
from gapless.protocol.events import Accepted, GivenUp, Refused
from gapless.protocol.stream.send_queue import SendBatch, SendQueue
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, LENGTH_BYTES, NO_LOOPBACK
from gapless.wire.codec import run_room_bytes
from gapless.wire.frames import Ack
from tests.support.virtual_group import MS, SECOND, A, B, Group


def queue(*sends: Sequence[bytes], room_bytes: int = 100, most_bytes: int = 0) -> SendQueue:
    """A queue of these sends; frames take ``room_bytes``, runs one frame by default."""
    result = SendQueue(room_bytes, max_run_bytes=most_bytes)
    for ticket, messages in enumerate(sends, 1):
        result.enqueue(ticket, messages, 0, None)
    return result


def batches(waiting: SendQueue, room: int = 1000, room_bytes: int | None = None) -> list[SendBatch]:
    """Everything that the queue gives while the room lasts."""
    result = []
    while (batch := waiting.next_batch(room, room_bytes, empty=False)) is not None:
        result.append(batch)
        room -= len(batch.messages)
        if room_bytes is not None:
            room_bytes -= cost(batch)
    return result


def cost(batch: SendBatch) -> int:
    return sum(len(message) + LENGTH_BYTES for message in batch.messages)


# Packing


def test_messages_are_packed_as_many_as_a_run_takes() -> None:
    """Room for 100 bytes: ten messages of eight and their lengths, no eleventh."""
    sizes = [len(batch.messages) for batch in batches(queue([b"x" * 8] * 25))]
    assert sizes == [10, 10, 5]


def test_a_run_fills_many_small_frames() -> None:
    assert [len(batch.messages) for batch in batches(queue([b"x" * 8] * 25, most_bytes=200))] == [
        20,
        5,
    ]
    assert [
        len(batch.messages) for batch in batches(queue([b"x" * 8] * 25, most_bytes=1000), room=13)
    ] == [13]


def test_a_run_has_no_more_messages_than_a_frame_can_count() -> None:
    found = batches(queue([b""] * 70_000, most_bytes=240_000), room=100_000)
    assert [len(batch.messages) for batch in found] == [65_535, 4465]


def test_a_message_in_pieces_ends_a_run_of_many_frames() -> None:
    """It is larger than a frame, though not larger than the run."""
    found = batches(queue([b"x" * 8] * 15, [b"y" * 8, b"z" * 150, b"x" * 8], most_bytes=1000))
    assert [batch.flags for batch in found] == [
        0,
        FRAGMENT | FIRST_FRAGMENT,
        FRAGMENT | LAST_FRAGMENT,
        0,
    ]
    assert [len(batch.messages) for batch in found] == [16, 1, 1, 1]


@pytest.mark.parametrize(("size_bytes", "pieces"), [(98, 1), (99, 2), (196, 2), (197, 3)])
def test_a_message_that_does_not_fit_a_run_becomes_pieces(size_bytes: int, pieces: int) -> None:
    waiting = queue([b"x" * size_bytes])
    assert waiting.seqno_count(Payloads.of([b"x" * size_bytes])) == pieces
    found = batches(waiting)
    assert len(found) == pieces
    assert b"".join(batch.messages[0] for batch in found) == b"x" * size_bytes
    flags = [batch.flags for batch in found]
    if pieces == 1:
        assert flags == [0]
    else:
        assert flags == [
            FRAGMENT | FIRST_FRAGMENT,
            *[FRAGMENT] * (pieces - 2),
            FRAGMENT | LAST_FRAGMENT,
        ]


def test_several_sends_share_a_run() -> None:
    (batch,) = batches(queue([b"a1", b"a2"], [b"b1"], [b"c1"]))
    assert list(batch.messages) == [b"a1", b"a2", b"b1", b"c1"]
    assert [(waiting.ticket, count) for waiting, count in batch.portions] == [
        (1, 2),
        (2, 1),
        (3, 1),
    ]


def test_messages_that_are_not_wanted_back_have_runs_of_their_own() -> None:
    """The flag belongs to the run."""
    waiting = queue([b"a"])
    waiting.enqueue(2, [b"b", b"c"], NO_LOOPBACK, None)
    waiting.enqueue(3, [b"d"], 0, None)
    assert [(list(batch.messages), batch.flags) for batch in batches(waiting)] == [
        ([b"a"], 0),
        ([b"b", b"c"], NO_LOOPBACK),
        ([b"d"], 0),
    ]


def test_the_room_limits_messages_and_bytes() -> None:
    assert [len(batch.messages) for batch in batches(queue([b"x" * 8] * 25), room=13)] == [10, 3]
    assert [len(batch.messages) for batch in batches(queue([b"x" * 8] * 25), room_bytes=139)] == [
        10,
        3,
    ]
    assert batches(queue([b"x" * 8]), room=0) == []
    assert batches(queue([b"x" * 8]), room_bytes=9) == []
    assert len(batches(queue([b"x" * 200]), room_bytes=199)) == 1, "a piece that does not fit waits"


def test_when_nothing_is_outstanding_one_message_goes_however_large() -> None:
    """Or it would never go."""
    waiting = queue([b"x" * 50, b"y"])
    assert waiting.next_batch(10, 20, empty=False) is None
    batch = waiting.next_batch(10, 20, empty=True)
    assert batch is not None
    assert list(batch.messages) == [b"x" * 50]
    piece = queue([b"x" * 500]).next_batch(1, 3, empty=True)
    assert piece is not None
    assert (len(piece.messages[0]), piece.flags) == (98, FRAGMENT | FIRST_FRAGMENT)


def test_empty_messages_are_messages() -> None:
    assert [list(batch.messages) for batch in batches(queue([b"", b"", b"x"]))] == [
        [b"", b"", b"x"]
    ]


sizes = st.one_of(st.integers(0, 20), st.integers(0, 350))
sends = st.lists(st.tuples(st.lists(sizes, min_size=1, max_size=6), st.booleans()), max_size=8)


@given(
    sends,
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 250))), max_size=60),
    st.sampled_from((100, 300)),
)
def test_what_comes_out_is_what_went_in_in_order(
    inputs: list[tuple[list[int], bool]], rooms: list[tuple[int, int | None]], most_bytes: int
) -> None:
    """Whatever the room from step to step: order, bytes, flags and limits hold."""
    waiting = SendQueue(100, max_run_bytes=most_bytes)
    expected: list[tuple[bytes, int]] = []
    for ticket, (lengths, back) in enumerate(inputs, 1):
        messages = [bytes([len(expected) % 251]) * length for length in lengths]
        expected += [(message, 0 if back else NO_LOOPBACK) for message in messages]
        waiting.enqueue(ticket, messages, 0 if back else NO_LOOPBACK, None)
    found, parts = [], b""
    for room, room_bytes in [*rooms, *[(1, None)] * 200]:
        batch = waiting.next_batch(room, room_bytes, empty=False)
        if batch is None:
            continue
        assert 0 < len(batch.messages) <= room
        assert cost(batch) <= min(most_bytes, most_bytes if room_bytes is None else room_bytes)
        assert all(len(message) + LENGTH_BYTES <= 100 for message in batch.messages)
        if batch.flags & FRAGMENT:
            assert (batch.flags & FIRST_FRAGMENT > 0) == (parts == b"")
            parts += batch.messages[0]
            if batch.flags & LAST_FRAGMENT:
                found.append((parts, batch.flags & NO_LOOPBACK))
                parts = b""
        else:
            found += [(message, batch.flags) for message in batch.messages]
    assert found == expected
    assert len(waiting) == 0


# Waiting for room


def fill(group: Group, count: int) -> None:
    group.send("a", *[b"%d" % seqno for seqno in range(1, count + 1)])


@pytest.mark.behaviour("N4-06", "N4-12", "I-05")
def test_n4_06_a_full_window_makes_the_send_wait() -> None:
    """N4-06, N4-12, I-05: ``capacity`` messages are outstanding; the next waits for low."""
    group = Group(2, capacity=10)
    fill(group, 10)
    ready = group.send("a", b"11")
    assert (ready.transmits, ready.events) == ([], [])
    assert group["a"].digest()[A].high == 10
    ready = group.receive("a", B, Ack(A, 1, 1 << 20))
    assert Accepted(2, 11, 11) in ready.events
    assert group["a"].digest()[A].high == 11


@pytest.mark.behaviour("N4-14", "P-06")
def test_s24_each_freed_slot_lets_exactly_one_message_in() -> None:
    """S-24, N4-14, P-06: window of 10 full, four sends wait; acks release one, then the rest."""
    group = Group(2, capacity=10)
    fill(group, 10)
    tickets = [group.send("a", b"%d" % seqno).ticket for seqno in range(11, 15)]
    group.receive("a", B, Ack(A, 1, 1 << 20))
    assert group.events_of("a", Accepted)[1:] == [Accepted(tickets[0], 11, 11)]
    group.receive("a", B, Ack(A, 6, 1 << 20))
    assert group.events_of("a", Accepted)[2:] == [
        Accepted(ticket, ticket + 9, ticket + 9) for ticket in tickets[1:]
    ]
    window = group["a"].outbound.window
    assert (window.low, window.high, window.stored) == (6, 14, 8)


@pytest.mark.behaviour("P-06", "N4-15")
def test_p06_the_order_on_the_wire_is_the_order_of_the_numbers() -> None:
    """P-06, N4-15: however many sends wait, and whatever releases them."""
    group = Group(3, capacity=3)
    for at in range(60):
        group.send("a", b"%d" % at, b"x" * (at * 7 % 2000))
        if at % 4 == 0:
            group.run_for(MS)
    group.settle()
    ranges = group.data("a", repair=False)
    assert ranges[0][0] == 1
    assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))
    assert len(group.messages("b", "a")) == 120


@pytest.mark.behaviour("N4-11", "N4-13")
def test_n4_11_numbers_start_at_one_and_rise_by_one() -> None:
    """N4-11, M-02, N4-13: stored, numbered and sent in one step."""
    group = Group(2)
    assert group["a"].digest()[A].high == 0
    for seqno in range(1, 4):
        ready = group.send("a", b"x")
        assert ready.events == [Accepted(seqno, seqno, seqno)]
        assert len(ready.transmits) == 1
        assert group["a"].outbound.window.high == seqno


@pytest.mark.behaviour("I-05")
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_smallest_windows_work(capacity: int) -> None:
    """I-05: a window of one message holds one message."""
    group = Group(3, capacity=capacity)
    for at in range(20):
        group.send("abc"[at % 3], b"%d" % at)
    group.settle()
    for name in "abc":
        for origin in "abc":
            expected = [b"%d" % at for at in range(20) if "abc"[at % 3] == origin]
            assert group.messages(name, origin) == expected


def test_the_callers_list_may_change_while_the_send_waits() -> None:
    group = Group(2, capacity=2)
    group.lose(by="a")
    messages = [b"1", b"2", b"3", b"4"]
    group.step(A, lambda m: m.send(messages, group.now_ns))
    messages.clear()
    group.rules.clear()
    group.settle()
    assert group.messages("b", "a") == [b"1", b"2", b"3", b"4"]


# Giving up


@pytest.mark.behaviour("P-06", "P-14", "N4-14")
def test_p06_a_cancelled_send_leaves_no_hole() -> None:
    """P-06, P-14, N4-14: the number is taken last."""
    group = Group(2, capacity=2)
    fill(group, 2)
    dropped = group.send("a", b"never").ticket
    group.send("a", b"3")
    assert group.cancel("a", dropped).events == [GivenUp(dropped, 0, "cancel")]
    group.settle()
    assert group.numbered("b", "a") == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert not group.data("a", repair=True)


def test_cancelling_the_head_lets_the_next_one_go() -> None:
    """A large message at the head waits for bytes; without it, the small one behind it has room."""
    group = Group(2, window_bytes=1024)
    group.send("a", b"x" * 600)
    large = group.send("a", b"y" * 600).ticket
    small = group.send("a", b"z").ticket
    assert group.cancel("a", large).events == [GivenUp(large, 0, "cancel"), Accepted(small, 2, 2)]


def test_a_send_that_was_taken_cannot_be_cancelled() -> None:
    group = Group(2)
    ticket = group.send("a", b"x").ticket
    assert group.cancel("a", ticket).events == []
    assert group.cancel("a", 999).events == []
    group.settle()
    assert group.messages("b", "a") == [b"x"]


@pytest.mark.behaviour("P-14", "P-03")
def test_p14_a_timed_out_send_leaves_no_hole() -> None:
    """P-14, P-03: the event has the number of accepted messages."""
    group = Group(2, capacity=3)
    rule = group.lose(Ack)
    fill(group, 2)
    ticket = group.send("a", b"3", b"never", b"never", timeout_ns=50 * MS).ticket
    group.run_for(50 * MS - 1)
    assert group.events_of("a", GivenUp) == []
    group.run_for(1)
    assert group.events_of("a", GivenUp) == [GivenUp(ticket, 1, "timeout")]
    group.rules.remove(rule)
    group.send("a", b"4")
    group.settle()
    assert group.messages("b", "a") == [b"1", b"2", b"3", b"4"]


def test_every_send_has_its_own_timeout() -> None:
    group = Group(2, capacity=1)
    group.lose(Ack)
    fill(group, 1)
    start_ns = group.now_ns
    tickets = [group.send("a", b"x", timeout_ns=after * MS).ticket for after in (30, 10, 20)]
    patient = group.send("a", b"y").ticket
    ends: dict[int, int] = {}
    for after in range(1, 40):
        group.run_until(start_ns + after * MS)
        ends = {event.ticket: after for event in group.events_of("a", GivenUp)} | ends
    assert ends == dict(zip(tickets, (30, 10, 20), strict=True))
    assert patient not in ends
    assert timers.TIMEOUT not in group["a"].armed_timers(), "no deadline is left, no timer is armed"


def test_a_timeout_of_nothing_ends_at_the_next_moment() -> None:
    group = Group(2, capacity=1)
    group.lose(Ack)
    fill(group, 1)
    ticket = group.send("a", b"x", timeout_ns=0).ticket
    group.run_for(0)
    assert group.events_of("a", GivenUp) == [GivenUp(ticket, 0, "timeout")]


@pytest.mark.behaviour("P-03", "P-14")
def test_p03_a_send_that_must_not_wait_is_taken_whole_or_not_at_all() -> None:
    """P-03, P-14, S-61: a refusal uses up a ticket and no number."""
    group = Group(2, capacity=4)
    fill(group, 3)
    ready = group.send("a", b"x", b"y", wait=False)
    assert ready.events == [Refused(ready.ticket)]
    assert group.send("a", b"4", wait=False).events == [Accepted(3, 4, 4)]
    assert group.send("a", b"x", wait=False).events == [Refused(4)]
    group.settle()
    assert group.messages("b", "a") == [b"1", b"2", b"3", b"4"]


def test_a_send_that_must_not_wait_does_not_overtake() -> None:
    """While others wait there is no room, even if its bytes would fit."""
    group = Group(2, window_bytes=1024)
    group.send("a", b"x" * 600)
    group.send("a", b"y" * 600)
    assert isinstance(group.send("a", b"z", wait=False).events[0], Refused)


@pytest.mark.parametrize("short", range(8))
def test_a_send_that_must_not_wait_counts_the_pieces_too(short: int) -> None:
    """Each fragment has a length entry: at the boundary it is taken whole or not at all."""
    group = Group(2, max_frame_bytes=256, window_bytes=1024, receive_buffer_bytes=1024)
    room = run_room_bytes(256) - LENGTH_BYTES
    pieces = -(-1010 // room)
    fits = 1024 - pieces * LENGTH_BYTES
    event = group.send("a", b"x" * (fits + 4 - short), wait=False).events[0]
    assert type(event) is (Refused if short < 4 else Accepted)
    assert len(group["a"].outbound.queue) == 0


# Fragmented messages


def test_a_message_larger_than_the_whole_window_goes_through() -> None:
    """More fragments than capacity, more bytes than the window: acks make room for them."""
    group = Group(2, capacity=3, max_frame_bytes=256, window_bytes=1024)
    message = bytes(range(256)) * 40
    ready = group.send("a", message, b"next")
    assert ready.events == []
    group.settle()
    assert group.messages("b", "a") == group.messages("a", "a") == [message, b"next"]
    pieces = -(-len(message) // (run_room_bytes(256) - LENGTH_BYTES))
    assert group.events_of("a", Accepted) == [Accepted(1, 1, pieces + 1)]
    assert pieces > 50


def test_a_message_in_pieces_survives_loss() -> None:
    group = Group(3, capacity=4, max_frame_bytes=256)
    group.lose_seqnos(1, 3, 4, to="b")
    group.lose_seqnos(2, to="c")
    message = b"0123456789" * 150
    group.send("a", b"before", message, b"after")
    group.settle()
    assert group.messages("b", "a") == group.messages("c", "a") == [b"before", message, b"after"]


@pytest.mark.parametrize("reason", ["cancel", "timeout"])
def test_a_message_under_way_in_pieces_is_finished(reason: str) -> None:
    """The first fragment accepted the message; the rest of the send is given up, once."""
    group = Group(2, capacity=2, max_frame_bytes=256)
    message = b"x" * 1000
    ticket = group.send(
        "a", b"1", message, b"never", timeout_ns=MS if reason == "timeout" else None
    ).ticket
    following = group.send("a", b"next").ticket
    if reason == "cancel":
        assert group.cancel("a", ticket).events == [GivenUp(ticket, 2, "cancel")]
        assert group.cancel("a", ticket).events == [], "it has ended already"
    group.settle()
    assert group.events_of("a", GivenUp) == [GivenUp(ticket, 2, reason)]
    assert [event.ticket for event in group.events_of("a", Accepted)] == [following]
    assert group.messages("b", "a") == [b"1", message, b"next"]


def test_a_message_in_pieces_that_has_not_begun_can_be_cancelled() -> None:
    group = Group(2, capacity=2, max_frame_bytes=256)
    fill(group, 2)
    ticket = group.send("a", b"x" * 1000).ticket
    assert group.cancel("a", ticket).events == [GivenUp(ticket, 0, "cancel")]
    group.settle()
    assert group.data("a", repair=False) == [(1, 2)]


@pytest.mark.behaviour("P-14", "P-06")
def test_p14_sends_cancels_and_timeouts_leave_no_hole_under_loss() -> None:
    """P-14, P-06: accepted messages are delivered in order, and no others."""
    group = Group(2, capacity=5, max_frame_bytes=256)
    rng = Random(4)
    group.rule(lambda _sender, _to, _frame: rng.random() < 0.25)
    payloads: dict[int, list[bytes]] = {}
    for at in range(120):
        messages = [b"%d.%d" % (at, part) + b"x" * (at * 13 % 500) for part in range(1 + at % 3)]
        timeout_ns = 5 * MS if at % 5 == 0 else None
        ticket = group.send("a", *messages, timeout_ns=timeout_ns, wait=at % 7 != 0).ticket
        payloads[ticket] = messages
        if at % 6 == 0:
            group.cancel("a", ticket)
        group.run_for(2 * MS)
    group.settle()
    ends = {
        event.ticket: event
        for event in group.events[A]
        if isinstance(event, Accepted | GivenUp | Refused)
    }
    assert set(ends) == set(payloads), "every send has an end"
    taken = {
        ticket: len(payloads[ticket])
        for ticket, event in ends.items()
        if isinstance(event, Accepted)
    }
    taken |= {
        ticket: event.accepted for ticket, event in ends.items() if isinstance(event, GivenUp)
    }
    expected = [
        message for ticket in sorted(taken) for message in payloads[ticket][: taken[ticket]]
    ]
    assert group.messages("b", "a") == group.messages("a", "a") == expected
    assert {type(event) for event in ends.values()} == {Accepted, GivenUp, Refused}, (
        "the test saw all three"
    )


# The growing window


@pytest.mark.behaviour("N4-40", "P-10")
def test_a_growing_window_does_not_wait_for_acks() -> None:
    """N4-40, A-05: capacity does not count; only seqnos out of reach wait (P-10, S12)."""
    group = Group(2, window="growing", capacity=4, max_seqno_ahead=10)
    group.lose(Ack)
    ready = group.send("a", *[b"%d" % seqno for seqno in range(1, 11)])
    assert ready.events == [Accepted(1, 1, 10)]
    assert group.send("a", b"11", wait=False).events == [Refused(2)]
    group.rules.clear()
    group.settle(120 * SECOND)
    assert group.messages("b", "a") == [b"%d" % seqno for seqno in range(1, 11)]


@pytest.mark.behaviour("P-13")
def test_p13_a_growing_window_still_counts_bytes() -> None:
    """P-13: the bytes of a window are limited whatever its kind."""
    group = Group(2, window="growing", window_bytes=1024)
    group.lose(Ack)
    group.send("a", *[b"x" * 100] * 30)
    assert group["a"].outbound.window.stored_bytes <= 1024
    assert len(group["a"].outbound.queue) == 1
    group.rules.clear()
    group.settle()
    assert len(group.messages("b", "a")) == 30


# The short way past the queue


@pytest.mark.interpreted("replaces a method")
@given(
    sends=st.lists(
        st.lists(st.sampled_from((0, 1, 90, 150, 180, 400)), min_size=1, max_size=9),
        min_size=1,
        max_size=9,
    ),
    capacity=st.integers(1, 40),
    window_bytes=st.sampled_from((1024, 1500, 8000)),
    max_run_bytes=st.sampled_from((300, 1024, 4096)),
    acknowledged=st.booleans(),
)
def test_a_send_past_the_queue_does_what_the_queue_would_do(
    sends: list[list[int]],
    capacity: int,
    window_bytes: int,
    max_run_bytes: int,
    acknowledged: bool,
) -> None:
    """Seqnos, frames, events and the room that is left do not depend on the way of a message."""
    mode = DeliveryMode.ACKNOWLEDGED if acknowledged else DeliveryMode.ORDERED
    settings: dict[str, Any] = {
        "capacity": capacity,
        "window_bytes": window_bytes,
        "max_run_bytes": max_run_bytes,
        "max_frame_bytes": 256,
    }
    short, queued = Group(2, **settings), Group(2, **settings)
    queued["a"].outbound._fits_one_run = lambda *_: False  # type: ignore[method-assign]
    for lengths in sends:
        messages = [bytes([length % 251]) * length for length in lengths]
        ready = short.send("a", *messages, mode=mode)
        assert ready == queued.send("a", *messages, mode=mode)
    short.settle()
    queued.settle()
    assert short["a"].snapshot() == queued["a"].snapshot()
    assert short["a"].counters == queued["a"].counters
