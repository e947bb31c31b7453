"""A durable member that stores what it gets: an ack says what it has stored."""

from typing import Any

import pytest

from gapless.delivery_mode import DeliveryMode
from gapless.errors import LocalProtocolError
from gapless.identity import Address, Marks, View
from gapless.protocol.events import Acknowledged, Lost, Unacknowledged
from gapless.wire.frames import Ack, Data
from tests.protocol.stream.test_durable_retention import (
    C2,
    NAME,
    back,
    gone,
    got,
    numbers,
    send,
    told,
)
from tests.support.virtual_group import MS, A, B, C, Group


def make(**knobs: Any) -> Group:
    """A group whose third member stores its deliveries."""
    group = Group(3, start=False, **knobs)
    group["c"].resume({}, stores=True)
    group.install(View.of(1, A, B, C), digest=dict.fromkeys((A, B, C), Marks(0, 0, 0)))
    return group


def store(group: Group, seqno: int, life: Address = C, origin: Address = A) -> None:
    group.step(life, lambda member: member.confirm_stored({origin: seqno}, group.now_ns))


def test_nothing_is_acknowledged_before_it_is_stored() -> None:
    group = make()
    send(group, 1, 5)
    group.run_for(2_000 * MS)
    assert got(group, C) == numbers(1, 5)
    assert group["a"].outbound.acks[C] == 0
    assert group["a"].outbound.window.low == 0
    store(group, 3)
    group.run_for(MS)
    assert group["a"].outbound.window.low == 3
    store(group, 5)
    group.settle()
    assert group["a"].outbound.window.low == 5


def test_an_acknowledged_send_means_stored() -> None:
    group = make()
    ticket = group.send("a", b"1", mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.run_for(1_000 * MS)
    assert not group.events_of("a", Acknowledged)
    store(group, 1)
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


def test_a_full_window_waits_for_the_store() -> None:
    group = make(capacity=4)
    send(group, 1, 9)
    group.run_for(1_000 * MS)
    assert got(group, C) == numbers(1, 4)
    assert group["a"].waiting_sends
    store(group, 4)
    group.run_for(1_000 * MS)
    assert got(group, C) == numbers(1, 8)


def test_what_was_handed_out_and_not_stored_comes_again_in_the_next_life() -> None:
    group = make()
    send(group, 1, 6)
    group.run_for(100 * MS)
    store(group, 2)
    group.run_for(100 * MS)
    gone(group)
    back(group, resume={A: 2})
    group.settle()
    assert got(group, C2) == numbers(3, 6)
    assert not told(group, C2, Lost)


def test_a_store_that_goes_back_or_repeats_says_nothing() -> None:
    group = make()
    send(group, 1, 3)
    group.run_for(100 * MS)
    store(group, 3)
    group.settle()
    acks = group.frames(Ack, "c")
    store(group, 3)
    store(group, 1)
    store(group, 7, origin=Address(99, 99))
    group.settle()
    assert group.frames(Ack, "c") == acks


def test_a_lost_ack_of_what_is_stored_is_made_good() -> None:
    group = make()
    send(group, 1, 3)
    group.run_for(100 * MS)
    group.lose(Ack, by="c", times=1)
    store(group, 3)
    group.settle()
    assert group["a"].outbound.window.low == 3


def test_a_message_larger_than_the_window_is_not_a_deadlock() -> None:
    """Fragments are acknowledged before the message is whole; earlier messages are stored first."""
    group = make(capacity=8, max_frame_bytes=512)
    send(group, 1, 2)
    ticket = group.send("a", b"x" * 400 * 20, mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.run_for(5_000 * MS)
    assert got(group, C) == numbers(1, 2)
    store(group, 2)
    group.run_for(5_000 * MS)
    assert got(group, C)[-1] == b"x" * 8000
    assert not group.events_of("a", Acknowledged)
    store(group, group["a"].outbound.window.high)
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.parametrize("whole", [False, True])
def test_a_large_message_whose_beginning_is_gone_is_not_reported_as_acknowledged(
    *, whole: bool
) -> None:
    """The reader acknowledged the first fragments and crashed: its successor has a hole."""
    group = make(capacity=40 if whole else 8, max_frame_bytes=512)
    if whole:
        group.rule(
            lambda _, to, frame: to == C and isinstance(frame, Data) and frame.run.first > 15
        )
    ticket = group.send("a", b"x" * 400 * 20, mode=DeliveryMode.ACKNOWLEDGED).ticket
    later = group.send("a", b"later", mode=DeliveryMode.ACKNOWLEDGED).ticket
    window = group["a"].outbound.window
    for _ in range(5_000):
        if 4 <= window.low < window.high:
            break
        group.run_for(MS // 10)
    assert 4 <= window.low < window.high
    assert not group.events_of("a", Acknowledged)
    gone(group)
    group.begin(C2).resume({}, stores=True)
    for member in (C2, A, B):
        group.install(View.of(3, A, B, C2), [member], returning={C2: C})
    for _ in range(20):
        group.run_for(200 * MS)
        store(group, window.high, C2)
    group.settle()
    assert got(group, C2) == [b"later"]
    assert told(group, C2, Lost)
    assert group.events_of("a", Unacknowledged) == [Unacknowledged(ticket, (C2,))]
    assert group.events_of("a", Acknowledged) == [Acknowledged(later)]


def test_what_is_handed_out_and_not_stored_takes_no_room_from_the_receive_buffer() -> None:
    group = make(receive_buffer_bytes=4_000, window_bytes=100_000, max_frame_bytes=1_000)
    for at in range(60):
        group.send("a", bytes([at]) * 900)
    group.run_for(5_000 * MS)
    assert len(got(group, C)) == 60, (
        "the buffer is empty, so the sender goes on though nothing is stored"
    )
    assert group["a"].outbound.window.low == 0


def test_the_same_life_after_a_partition_still_owes_its_store() -> None:
    group = make()
    send(group, 1, 4)
    group.run_for(100 * MS)
    store(group, 2)
    group.run_for(100 * MS)
    group.install(View.of(2, A, B), [A, B], absent={NAME: C})
    group.install(View.of(2, C), [C])
    group.run_for(100 * MS)
    store(group, 3)
    group.install(View.of(3, A, B, C))
    group.run_for(1_000 * MS)
    assert got(group, C) == numbers(1, 4)
    assert group["a"].outbound.acks[C] == 3
    store(group, 4)
    group.settle()
    assert group["a"].outbound.window.low == 4


def test_who_does_not_store_has_nothing_to_report() -> None:
    group = Group(2)
    with pytest.raises(LocalProtocolError, match="stores=True"):
        group["a"].confirm_stored({B: 1}, 0)
