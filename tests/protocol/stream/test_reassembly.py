"""Reassembly of fragments; and small parts of the machine: credit, timers, Ready builder."""

import pytest
from hypothesis import given, strategies as st

from gapless.config import Config
from gapless.protocol.events import Oversized
from gapless.protocol.ready import Delivery
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.protocol.stream.flow_control import DeliveryCredit
from gapless.protocol.stream.reassembly import Reassembler
from gapless.protocol.timers import ACK, GAP, SLOW_RECEIVER, TAIL, TIMEOUT, Timers
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, Run
from gapless.wire.codec import decode
from gapless.wire.frames import Ack, Data, Gone
from tests.support.virtual_group import GROUP, A, B, C


def context() -> ReadyBuilder:
    return ReadyBuilder(B, GROUP, Config(), None, tracing=True)


def piece(seqno: int, payload: bytes, flags: int = 0) -> Run:
    return Run.of(A, seqno, [payload], FRAGMENT | flags)


# Fragments


def test_the_last_piece_hands_the_message_out_whole() -> None:
    pieces, ctx = Reassembler(100), context()
    assert pieces.add(piece(4, b"one ", FIRST_FRAGMENT), ctx) is None
    assert pieces.add(piece(5, b"two "), ctx) is None
    assert pieces.add(piece(6, b"three", LAST_FRAGMENT), ctx) == Delivery(A, 4, 6, b"one two three")
    assert pieces.snapshot() == Reassembler(100).snapshot(), "nothing is kept"


def test_two_messages_do_not_mix() -> None:
    pieces, ctx = Reassembler(100), context()
    for first in (1, 3):
        pieces.add(piece(first, b"%d" % first, FIRST_FRAGMENT), ctx)
        delivery = pieces.add(piece(first + 1, b"!", LAST_FRAGMENT), ctx)
        assert delivery == Delivery(A, first, first + 1, b"%d!" % first)


def test_pieces_without_their_beginning_are_left_out() -> None:
    """A stream may start within a message; its rest is counted, the next message is whole."""
    pieces, ctx = Reassembler(100), context()
    assert pieces.add(piece(7, b"rest"), ctx) is None
    assert pieces.add(piece(8, b"end", LAST_FRAGMENT), ctx) is None
    assert ctx.counters == {"dropped.headless": 2}
    pieces.add(piece(9, b"a", FIRST_FRAGMENT), ctx)
    assert pieces.add(piece(10, b"b", LAST_FRAGMENT), ctx) == Delivery(A, 9, 10, b"ab")


def test_a_new_beginning_forgets_what_was_open() -> None:
    """The seqnos between were given up as gone."""
    pieces, ctx = Reassembler(100), context()
    pieces.add(piece(1, b"lost", FIRST_FRAGMENT), ctx)
    pieces.add(piece(9, b"a", FIRST_FRAGMENT), ctx)
    assert pieces.add(piece(10, b"b", LAST_FRAGMENT), ctx) == Delivery(A, 9, 10, b"ab")


def test_a_message_over_the_limit_is_reported_and_not_kept() -> None:
    """S14: memory never exceeds the limit, however long the message is."""
    pieces, ctx = Reassembler(10), context()
    pieces.add(piece(1, b"x" * 10, FIRST_FRAGMENT), ctx)
    for seqno in range(2, 50):
        assert pieces.add(piece(seqno, b"x" * 10), ctx) is None
        assert pieces._fragments == []
    assert pieces.add(piece(50, b"x", LAST_FRAGMENT), ctx) is None
    assert ctx.build(None).events == [Oversized(A, 1, 50)]
    pieces.add(piece(51, b"x" * 5, FIRST_FRAGMENT), ctx)
    assert pieces.add(piece(52, b"x" * 5, LAST_FRAGMENT), ctx) == Delivery(A, 51, 52, b"x" * 10), (
        "exactly the limit fits"
    )


@given(st.lists(st.binary(min_size=1, max_size=5), min_size=2, max_size=6), st.integers(0, 5))
def test_pieces_survive_a_snapshot(parts: list[bytes], at: int) -> None:
    pieces, ctx = Reassembler(100), context()
    whole = None
    for index, part in enumerate(parts):
        flags = (FIRST_FRAGMENT if index == 0 else 0) | (
            LAST_FRAGMENT if index == len(parts) - 1 else 0
        )
        whole = pieces.add(piece(index + 1, part, flags), ctx)
        if index == at % len(parts):
            other = Reassembler(100)
            other.restore(pieces.snapshot())
            assert hash(other.snapshot()) == hash(pieces.snapshot())
            pieces = other
    assert whole == Delivery(A, 1, len(parts), b"".join(parts))


# Credit


def test_m16_credit_is_what_the_application_has_room_for() -> None:
    """M-16: at ``unread_limit`` nothing more is handed out, until some of it is consumed."""
    credit = DeliveryCredit(unread_limit=5, max_batch=0)
    assert credit.limit() == 5
    credit.spend(4)
    assert credit.limit() == 1
    credit.spend(3)
    assert credit.limit() == 0, "a view change may hand out more than there was room for"
    credit.refund(3)
    assert credit.limit() == 1
    credit.refund(100)
    assert credit.limit() == 5


@pytest.mark.parametrize(
    ("unread_limit", "max_batch", "limit"),
    [(0, 0, None), (0, 7, 7), (5, 7, 5), (9, 7, 7), (9, 0, 9)],
)
def test_m13_a_batch_is_limited_on_its_own(
    unread_limit: int, max_batch: int, limit: int | None
) -> None:
    """M-13."""
    assert DeliveryCredit(unread_limit, max_batch).limit() == limit


# Timers


def test_timers_fire_in_one_order_however_they_were_armed() -> None:
    """S17."""
    clock = Timers()
    assert clock.next_ns is None
    for name in (SLOW_RECEIVER, TIMEOUT, GAP, TAIL, ACK):
        clock.arm(name, 10)
    assert clock.due(9) == []
    assert clock.due(10) == [ACK, GAP, TAIL, TIMEOUT, SLOW_RECEIVER]
    assert clock.next_ns == 10


def test_a_timer_has_one_deadline() -> None:
    clock = Timers()
    clock.arm_earlier(GAP, 10)
    clock.arm_earlier(GAP, 12)
    assert clock.next_ns == 10
    clock.arm_earlier(GAP, 7)
    assert clock.next_ns == 7
    clock.arm(GAP, 20)
    assert clock.next_ns == 20
    clock.arm(GAP, None)
    assert GAP not in clock
    clock.arm(GAP, None)
    assert clock.due(100) == []


def test_timers_restored_are_due() -> None:
    clock, other = Timers(), Timers()
    clock.arm(TAIL, 100)
    clock.arm(ACK, 50)
    other.arm(SLOW_RECEIVER, 3)
    other.restore(clock.snapshot())
    assert other.due(0) == [ACK, TAIL]


# Context


def test_frames_to_one_destination_share_a_datagram_as_long_as_it_has_room() -> None:
    """And their order stays; other destinations do not disturb it."""
    ctx = context()
    sent = [Data(Run.of(A, seqno, [b"x" * 500])) for seqno in range(1, 5)]
    for frame in sent:
        ctx.transmit(None, frame)
        ctx.transmit(C, Ack(C, frame.run.first, 9))
    ready = ctx.build(None)
    assert all(len(transmit.datagram) <= 1400 for transmit in ready.transmits)
    to_all = [
        frame for to, datagram in ready.transmits if to is None for frame in decode(datagram).frames
    ]
    to_one = [decode(datagram).frames for to, datagram in ready.transmits if to == C]
    assert to_all == sent
    assert to_one == [tuple(Ack(C, seqno, 9) for seqno in range(1, 5))]
    assert len(ready.transmits) == 3
    assert ctx.counters == {"sent.data": 4, "sent.ack": 4}


def test_every_answer_starts_anew() -> None:
    ctx = context()
    ctx.transmit(C, Gone(B, 1))
    ctx.emit(Oversized(A, 1, 1))
    ctx.trace("VIEW")
    ctx.deliver(Delivery(A, 1, 1, b"x"))
    first, second = ctx.build(5), ctx.build(None)
    assert [
        len(part) for part in (first.transmits, first.events, first.trace, first.deliveries)
    ] == [1] * 4
    assert first.deadline_ns == 5
    assert [
        len(part) for part in (second.transmits, second.events, second.trace, second.deliveries)
    ] == [0] * 4


def test_without_tracing_there_is_no_trace_but_drops_are_counted() -> None:
    ctx = ReadyBuilder(B, GROUP, Config(), None, tracing=False)
    ctx.drop("stranger", message_count=3)
    assert (ctx.build(None).trace, ctx.counters) == ([], {"dropped.stranger": 3})
