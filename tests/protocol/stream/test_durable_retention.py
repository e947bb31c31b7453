"""Durable members: what senders retain for an absent one, and resend on its return."""

from typing import Any

import pytest

from gapless.delivery_mode import DeliveryMode
from gapless.identity import Address, Marks, View
from gapless.protocol.events import (
    Accepted,
    Acknowledged,
    Lost,
    Refused,
    Retained,
    RetentionBlocking,
    RetentionReleased,
    SlowReceivers,
    Started,
    Unacknowledged,
)
from gapless.wire.frames import Ack, Data, Frame, Tail
from tests.support.virtual_group import MS, SECOND, A, B, C, D, Group

A2, C2, C3, D2 = Address(1, 2), Address(3, 2), Address(3, 3), Address(4, 2)
NAME = "reader"


def got(group: Group, at: Address, origin: Address = A) -> list[bytes]:
    """The messages of a stream that an incarnation delivered."""
    return [
        message
        for found in group.deliveries[at]
        if found.origin == origin
        for message in found.messages()
    ]


def told(group: Group, at: Address, kind: type) -> list[Any]:
    return [event for event in group.events[at] if isinstance(event, kind)]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def send(group: Group, first: int, last: int, by: str = "a", **how: Any) -> None:
    for message in numbers(first, last):
        group.send(by, message, **how)


def gone(
    group: Group, number: int = 2, members: tuple[Address, ...] = (A, B), last: Address = C
) -> None:
    """Crash the reader, and install a view at the others that retains for it."""
    if last in group.members:
        group.crash(last)
    group.install(View.of(number, *members), absent={NAME: last})


def back(
    group: Group,
    number: int = 3,
    members: tuple[Address, ...] = (A, B, C2),
    resume: dict[Address, int] | None = None,
    last: Address = C,
) -> None:
    """Restart the reader as a new incarnation, which installs the view first."""
    new = members[-1]
    group.begin(new, resume=resume or {})
    view = View.of(number, *members)
    for member in (new, *members[:-1]):
        group.install(view, [member], returning={new: last})


def make(**knobs: Any) -> Group:
    """A group whose third member is durable, and has acknowledged three messages."""
    group = Group(3, start=False, **knobs)
    group["c"].resume({})
    group.install(View.of(1, A, B, C), digest=dict.fromkeys((A, B, C), Marks(0, 0, 0)))
    send(group, 1, 3)
    group.settle()
    return group


def to_reader(_sender: Address, receiver: Address, _frame: Frame) -> bool:
    return receiver.node == C.node


# Retention and resending


def test_the_next_life_gets_exactly_what_follows_the_last_ack() -> None:
    group = make()
    group.rule(to_reader)
    send(group, 4, 5)  # while nobody knows yet that it died
    group.run_for(100 * MS)
    gone(group)
    send(group, 6, 9)
    group.rules.clear()
    group.settle()
    assert group["a"].outbound.window.low == 3
    back(group, resume={A: 3})
    group.settle()
    assert got(group, C2) == numbers(4, 9)
    assert told(group, C2, Started)[0] == Started(A, 3)
    assert not told(group, C2, Lost)
    assert group["a"].outbound.window.low == 9
    assert told(group, A, Retained) == [Retained(NAME, C)]
    assert told(group, A, RetentionReleased) == [RetentionReleased(NAME, C, "back")]


def test_a_group_that_only_waits_for_one_that_is_away_is_at_rest() -> None:
    group = make()
    gone(group)
    send(group, 4, 6)
    group.settle()
    assert group["a"].is_quiet
    assert group["a"].outbound.delivered_by_members
    assert group["a"].armed_timers() == ()
    sent = len(group.sent)
    group.run_for(30 * SECOND)
    assert group.sent[sent:] == []
    assert group["a"].outbound.window.marks == Marks(3, 6, 6)


def test_nothing_is_sent_to_one_that_is_away() -> None:
    group = make()
    group.crash(C)
    send(group, 4, 6, mode=DeliveryMode.ACKNOWLEDGED)
    group.install(View.of(2, A, B), absent={NAME: C})
    before = len(group.sent)
    group.lose(Data, to="b", times=2)
    send(group, 7, 9, mode=DeliveryMode.ACKNOWLEDGED)
    group.settle()
    assert {sent.to for sent in group.sent[before:]} <= {None, A, B}
    assert group.messages("b", "a") == numbers(1, 9)


def test_acknowledged_sends_wait_for_one_that_is_away() -> None:
    group = make()
    gone(group)
    ticket = group.send("a", b"4", mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.settle()
    assert group["a"].outbound.delivered_by_members
    assert group["a"].armed_timers() == ()
    assert not group.events_of("a", Acknowledged)
    back(group)
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert got(group, C2) == numbers(4, 4)


def test_an_acknowledged_send_is_in_vain_when_the_place_is_released() -> None:
    group = make()
    first = group.send("a", b"4", mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.settle()
    gone(group)
    ticket = group.send("a", b"5", mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(first)]
    group.install(View.of(3, A, B))
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(first)]
    assert group.events_of("a", Unacknowledged) == [Unacknowledged(ticket, (C,))]
    last = group.send("a", b"6", mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(first), Acknowledged(last)], (
        "nobody is waited for any more"
    )


def test_an_acknowledged_send_is_in_vain_when_a_full_window_releases_the_place() -> None:
    group = make(capacity=4, on_retention_full="release")
    gone(group)
    ticket = group.send("a", b"4", mode=DeliveryMode.ACKNOWLEDGED).ticket
    send(group, 5, 7)
    group.settle()
    assert not group.events_of("a", Acknowledged)
    send(group, 8, 8)
    group.settle()
    assert group.events_of("a", Unacknowledged) == [Unacknowledged(ticket, (C,))]
    assert not group.events_of("a", Acknowledged)


def test_an_acknowledged_send_waits_for_a_member_whose_ack_is_lost_and_for_one_that_is_away() -> (
    None
):
    group = make()
    gone(group)
    group.lose(Ack, by="b", times=1)
    ticket = group.send("a", b"4", mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.settle()
    assert group["a"].outbound.delivered_by_members
    assert not group.events_of("a", Acknowledged)
    back(group)
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


def test_a_member_that_pins_is_named_while_a_place_is_kept() -> None:
    group = make(slow_receiver_after="100ms", capacity=8)
    gone(group)
    send(group, 4, 5)
    group.settle()
    group.run_for(SECOND)
    assert not group.events_of("a", SlowReceivers)
    group.lose(by="b")
    send(group, 6, 7)
    group.run_for(150 * MS)
    (pinned,) = group.events_of("a", SlowReceivers)
    assert (pinned.members, pinned.low, pinned.high) == ((B,), 5, 7)


def test_who_is_back_is_waited_for_like_any_other() -> None:
    group = make(slow_receiver_after="100ms")
    gone(group)
    send(group, 4, 5)
    group.settle()
    rule = group.rule(to_reader)
    back(group)
    group.run_for(250 * MS)
    assert not group["a"].is_quiet
    assert {pinned.members for pinned in group.events_of("a", SlowReceivers)} == {(C2,)}
    ticket = group.send("a", b"6", mode=DeliveryMode.ACKNOWLEDGED).ticket
    group.run_for(50 * MS)
    assert not group.events_of("a", Acknowledged)
    group.rules.remove(rule)
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert got(group, C2) == numbers(4, 6)


def test_a_stream_goes_round_its_window_many_times() -> None:
    group = make(capacity=4)
    last, life, number = 3, C, 2
    for _ in range(20):
        gone(group, number, last=life)
        send(group, last + 1, last + 3)
        group.settle()
        new = Address(C.node, life.incarnation + 1)
        back(group, number + 1, (A, B, new), last=life)
        group.settle()
        assert got(group, new) == numbers(last + 1, last + 3)
        last, life, number = last + 3, new, number + 2
    assert group["a"].outbound.window.marks == Marks(last, last, last)


# Changes of retention


def test_a_place_that_is_not_listed_any_more_is_released() -> None:
    group = make()
    gone(group)
    send(group, 4, 6)
    group.settle()
    group.install(View.of(3, A, B))
    assert told(group, A, RetentionReleased) == [RetentionReleased(NAME, C, "timeout")]
    assert group["a"].outbound.window.low == 6
    back(group, 4)
    send(group, 7, 7)
    group.settle()
    assert got(group, C2) == [b"7"]
    assert told(group, C2, Started)[0] == Started(A, 6)


def test_a_place_stays_kept_over_views_that_concern_others() -> None:
    group = make()
    gone(group)
    send(group, 4, 5)
    group.settle()
    gone(group, 3, (A,))
    send(group, 6, 6)
    group.settle()
    assert told(group, A, Retained) == [Retained(NAME, C)]
    assert not told(group, A, RetentionReleased)
    back(group, 4, (A, C2))
    group.settle()
    assert got(group, C2) == numbers(4, 6)


def test_a_new_life_of_a_sender_keeps_everything_from_its_first_message_on() -> None:
    group = make()
    gone(group)
    group.crash(A)
    group.begin(A2)
    group.install(View.of(3, B, A2), absent={NAME: C})
    group.step(A2, lambda m: m.send(numbers(1, 3), group.now_ns))
    group.settle()
    assert group.members[A2].outbound.window.marks == Marks(0, 3, 3)
    back(group, 4, (B, A2, C2), resume={A: 3})
    group.settle()
    assert got(group, C2, A2) == numbers(1, 3)
    assert not told(group, C2, Lost)


def test_a_sender_that_never_saw_the_reader_keeps_from_where_it_is() -> None:
    group = Group(2)
    group.lose(Ack)
    send(group, 1, 4)
    group.run_for(5 * MS)
    assert group["a"].outbound.window.low == 0
    group.install(View.of(2, A, B), absent={NAME: C})
    group.rules.clear()
    send(group, 5, 6)
    group.settle()
    back(group)
    group.settle()
    assert got(group, C2) == numbers(5, 6)


def test_one_is_back_in_the_view_in_which_another_goes() -> None:
    group = Group(4)
    send(group, 1, 3)
    group.settle()
    group.crash(C)
    group.install(View.of(2, A, B, D), absent={"c": C})
    send(group, 4, 5)
    group.settle()
    group.crash(D)
    send(group, 6, 6)
    group.begin(C2, resume={})
    group.install(View.of(3, A, B, C2), [C2, A, B], absent={"d": D}, returning={C2: C})
    send(group, 7, 7)
    group.settle()
    assert got(group, C2) == numbers(4, 7)
    assert group["a"].outbound.window.low == 5
    assert [
        event for event in group.events[A] if isinstance(event, Retained | RetentionReleased)
    ] == [
        Retained("c", C),
        RetentionReleased("c", C, "back"),
        Retained("d", D),
    ]
    group.begin(D2, resume={})
    group.install(View.of(4, A, B, C2, D2), [D2, A, B, C2], returning={D2: D})
    group.settle()
    assert got(group, D2) == numbers(6, 7)


def test_back_and_gone_again_before_anything_was_acknowledged() -> None:
    group = make()
    gone(group)
    send(group, 4, 6)
    group.settle()
    group.rule(to_reader)
    back(group)
    gone(group, 4, last=C2)
    group.rules.clear()
    send(group, 7, 7)
    group.settle()
    assert group["a"].outbound.window.low == 3
    back(group, 5, (A, B, C3), last=C2)
    group.settle()
    assert got(group, C3) == numbers(4, 7)


def test_back_before_anybody_knew_that_it_had_gone() -> None:
    group = make()
    group.crash(C)
    send(group, 4, 6)
    group.run_for(5 * MS)
    back(group, 2)
    group.settle()
    assert got(group, C2) == numbers(4, 6)
    assert not told(group, A, Retained)
    assert not told(group, A, RetentionReleased)


@pytest.mark.parametrize("seen", [True, False], ids=["place seen as kept", "never seen as kept"])
def test_a_sender_that_missed_a_whole_life_of_the_reader_goes_on_from_what_it_knows(
    seen: bool,
) -> None:
    group = make()
    group.crash(C)
    if seen:
        gone(group)
    send(group, 4, 5)
    group.run_for(5 * MS)
    group.begin(C3, resume={})
    view = View.of(5, A, B, C3)
    group.install(view, [C3, A], returning={C3: C2})  # nobody told this sender of C2
    group.install(view, [B], returning={C3: C})
    group.settle()
    assert got(group, C3) == numbers(4, 5)


def test_a_place_goes_on_under_a_later_life_that_this_sender_never_saw() -> None:
    group = make()
    gone(group)
    send(group, 4, 5)
    group.settle()
    gone(group, 5, last=C2)
    assert group["a"].outbound.window.low == 3
    assert told(group, A, Retained) == [Retained(NAME, C)]
    back(group, 6, (A, B, C3), last=C2)
    group.settle()
    assert got(group, C3) == numbers(4, 5)


def test_a_place_belongs_to_a_name_wherever_its_member_runs() -> None:
    group = make()
    gone(group)
    send(group, 4, 5)
    group.settle()
    gone(group, 5, last=D)
    assert group["a"].outbound.window.low == 3
    back(group, 6, (A, B, D2), last=D)
    group.settle()
    assert got(group, D2) == numbers(4, 5)


@pytest.mark.parametrize("named", [True, False], ids=["named as back", "simply there again"])
def test_the_same_life_goes_on_after_a_partition(named: bool) -> None:
    group = make(capacity=16)
    split = group.rule(lambda sender, receiver, _frame: (sender == C) != (receiver == C))
    send(group, 4, 5)
    group.run_for(MS)
    group.install(View.of(2, A, B), absent={NAME: C})
    group.install(View.of(2, C), [C])
    send(group, 6, 8)
    group.settle()
    group.rules.remove(split)
    group.install(View.of(3, A, B, C), [C, A, B], returning={C: C} if named else {})
    send(group, 9, 9)
    group.settle()
    assert got(group, C) == numbers(1, 9)
    assert not told(group, C, Lost)
    assert told(group, A, RetentionReleased) == [RetentionReleased(NAME, C, "back")]
    assert group["a"].outbound.window.low == 9


def test_an_unknown_absent_member_gets_the_message_that_was_being_sent_whole() -> None:
    """Retention begins in the middle of a fragmented message: its fragments are still stored."""
    group = Group(2, capacity=2, max_frame_bytes=256)
    group.rule(lambda *_: True)
    group.send("a", b"x" * 1000)
    assert group["a"].outbound.window.high == 2
    group.install(View.of(2, A, B), [A], absent={NAME: C})
    group.install(View.of(3, A, B, C), [A], returning={C: C})
    assert group["a"].outbound.starts[C] == 0


def test_what_the_same_life_got_and_could_not_acknowledge_is_not_repeated() -> None:
    group = make(ack_delay="50ms")
    group.lose(Ack, Tail)
    send(group, 4, 5)
    group.run_for(10 * MS)
    assert got(group, C) == numbers(1, 5)
    group.install(View.of(2, A, B), absent={NAME: C})
    group.install(View.of(2, C), [C])
    group.rules.clear()
    assert group["a"].outbound.retention.minimum == 3
    group.install(View.of(3, A, B, C), [C, A, B])
    send(group, 6, 6)
    group.settle()
    assert got(group, C) == numbers(1, 6)
    assert group["a"].outbound.window.low == 6


# A full window


def test_a_full_window_names_the_place_once_and_goes_on_when_the_reader_is_back() -> None:
    group = make(capacity=4)
    gone(group)
    send(group, 4, 7)
    group.settle()
    assert not group.events_of("a", RetentionBlocking)
    first = group.send("a", b"8").ticket
    assert group.events_of("a", RetentionBlocking) == [RetentionBlocking(NAME, C)]
    group.cancel("a", first)
    send(group, 8, 9)
    group.settle()
    assert group.events_of("a", RetentionBlocking) == [RetentionBlocking(NAME, C)]
    assert not group["a"].is_quiet
    assert not group["a"].outbound.delivered_by_members
    back(group)
    group.settle()
    assert got(group, C2) == numbers(4, 9)
    assert group.messages("b", "a") == numbers(1, 9)


def test_a_second_episode_is_told_again() -> None:
    group = make(capacity=4)
    gone(group)
    send(group, 4, 8)
    group.settle()
    back(group)
    group.settle()
    gone(group, 4, last=C2)
    send(group, 9, 13)
    group.settle()
    assert group.events_of("a", RetentionBlocking) == [
        RetentionBlocking(NAME, C),
        RetentionBlocking(NAME, C2),
    ]


def test_a_window_that_a_member_fills_as_well_is_not_blamed_on_the_place() -> None:
    group = make(capacity=4, on_retention_full="release")
    gone(group)
    group.lose(Ack, by="b")
    send(group, 4, 8)
    group.run_for(10 * MS)
    assert not group.events_of("a", RetentionReleased)
    group.rules.clear()
    group.settle()
    assert group.events_of("a", RetentionReleased) == [RetentionReleased(NAME, C, "capacity")]


def test_a_place_is_released_at_once_if_that_is_wanted() -> None:
    group = make(capacity=4, on_retention_full="release")
    gone(group)
    send(group, 4, 9)
    group.settle()
    assert group.events_of("a", RetentionReleased) == [RetentionReleased(NAME, C, "capacity")]
    assert not group.events_of("a", RetentionBlocking)
    assert group["a"].outbound.window.low == 9
    gone(group, 3)  # others keep it still
    send(group, 10, 11)
    group.settle()
    assert group["a"].outbound.window.low == 11
    assert len(group.events_of("a", Retained)) == 1
    back(group, 4, resume={A: 3})
    send(group, 12, 12)
    group.settle()
    assert got(group, C2) == [b"12"]
    assert told(group, C2, Lost) == [Lost(A, 4, 11)]
    gone(group, 5, last=C2)
    assert group.events_of("a", Retained)[1:] == [Retained(NAME, C2)]


def test_only_the_places_that_are_furthest_behind_are_released() -> None:
    group = Group(4, capacity=4, on_retention_full="release")
    group.crash(D)
    group.install(View.of(2, A, B, C), absent={"d": D})
    send(group, 1, 2)
    group.settle()
    group.crash(C)
    group.install(View.of(3, A, B), absent={"c": C, "d": D})
    send(group, 3, 5)
    group.settle()
    assert group.events_of("a", RetentionReleased) == [RetentionReleased("d", D, "capacity")]
    assert group["a"].outbound.window.low == 2


def test_a_place_that_goes_leaves_what_another_needs() -> None:
    group = Group(4)
    group.crash(D)
    group.install(View.of(2, A, B, C), absent={"d": D})
    send(group, 1, 2)
    group.settle()
    group.crash(C)
    group.install(View.of(3, A, B), absent={"c": C, "d": D})
    send(group, 3, 4)
    group.settle()
    group.install(View.of(4, A, B), absent={"c": C})
    assert group.events_of("a", RetentionReleased) == [RetentionReleased("d", D, "timeout")]
    assert group["a"].outbound.window.marks == Marks(2, 4, 4)
    group.begin(C2, resume={})
    group.install(View.of(5, A, B, C2), [C2, A, B], returning={C2: C})
    group.settle()
    assert got(group, C2) == numbers(3, 4)


def test_a_send_that_must_not_wait_is_refused_or_releases() -> None:
    group = make(capacity=4)
    gone(group)
    send(group, 4, 7)
    group.settle()
    ready = group.send("a", b"8", wait=False)
    assert [type(event) for event in ready.events] == [RetentionBlocking, Refused]
    group = make(capacity=4, on_retention_full="release")
    gone(group)
    send(group, 4, 7)
    group.settle()
    ready = group.send("a", *numbers(8, 12), wait=False)
    assert [type(event) for event in ready.events] == [Refused], (
        "it would not fit without the place either"
    )
    ready = group.send("a", *numbers(8, 11), wait=False)
    assert [type(event) for event in ready.events] == [RetentionReleased, Accepted]


def test_bytes_that_are_kept_take_nothing_from_the_buffers_of_the_members() -> None:
    group = make(receive_buffer_bytes="2KiB", max_frame_bytes="512B", window_bytes="8KiB")
    gone(group)
    for _ in range(60):
        group.send("a", bytes(100))
        group.settle()
    assert not group.events_of("a", RetentionBlocking)
    assert group["a"].outbound.window.stored_bytes == 60 * 102
    group.send("a", *[bytes(100)] * 60)
    outstanding = group["a"].outbound.window.high - 63
    assert outstanding == 2048 // 102, (
        "as much as the members' buffers take, and as is left of the window"
    )
    group.settle()
    assert group.events_of("a", RetentionBlocking) == [RetentionBlocking(NAME, C)]
    back(group)
    group.settle()
    assert len(got(group, C2)) == 120


def test_a_place_is_not_blamed_for_buffers_that_members_fill() -> None:
    group = make(receive_buffer_bytes="2KiB", max_frame_bytes="512B", on_retention_full="release")
    gone(group)
    for _ in range(5):
        group.send("a", *[bytes(100)] * 100)
        group.settle()
    assert not group.events_of("a", RetentionReleased)
    assert group["a"].outbound.window.marks == Marks(3, 503, 503)
