"""Durable members: what senders keep for one that is away, and what it gets when it is back (docs/durable.md)."""

from itertools import pairwise
from typing import Any

import pytest

from gapless.core.ready import (
    Accepted,
    Acknowledged,
    Held,
    HoldFull,
    Lost,
    Pinned,
    Refused,
    Released,
    Started,
)
from gapless.errors import LocalProtocolError
from gapless.identity import Address, Marks, View
from gapless.modes import Mode
from gapless.wire.frames import Ack, Data, Frame, Nak, Tail

from .driver import MS, SECOND, A, B, C, D, Group

A2, C2, C3, D2 = Address(1, 2), Address(3, 2), Address(3, 3), Address(4, 2)
NAME = "reader"


def got(group: Group, at: Address, origin: Address = A) -> list[bytes]:
    """What a life delivered of a stream."""
    return [message for found in group.deliveries[at] if found.origin == origin for message in found.messages()]


def told(group: Group, at: Address, kind: type) -> list[Any]:
    return [event for event in group.events[at] if isinstance(event, kind)]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def send(group: Group, first: int, last: int, by: str = "a", **how: Any) -> None:
    for message in numbers(first, last):
        group.send(by, message, **how)


def gone(group: Group, number: int = 2, members: tuple[Address, ...] = (A, B), last: Address = C) -> None:
    """Let the reader crash, and the others have a view that keeps its place."""
    if last in group.members:
        group.crash(last)
    group.install(View.of(number, *members), kept={NAME: last})


def back(
    group: Group,
    number: int = 3,
    members: tuple[Address, ...] = (A, B, C2),
    resume: dict[Address, int] | None = None,
    last: Address = C,
) -> None:
    """Bring the reader back in a new life: that gets the view first."""
    new = members[-1]
    group.begin(new, resume=resume or {})
    view = View.of(number, *members)
    for member in (new, *members[:-1]):
        group.install(view, [member], back={new: last})


def make(**knobs: Any) -> Group:
    """A group whose third member is durable, has the first three messages, and has acknowledged them."""
    group = Group(3, start=False, **knobs)
    group["c"].resume({})
    group.install(View.of(1, A, B, C), digest=dict.fromkeys((A, B, C), Marks(0, 0, 0)))
    send(group, 1, 3)
    group.settle()
    return group


def to_reader(_sender: Address, receiver: Address, _frame: Frame) -> bool:
    return receiver.node == C.node


# What is kept, and for whom it is sent


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
    assert told(group, A, Held) == [Held(NAME, C)]
    assert told(group, A, Released) == [Released(NAME, C, "back")]


def test_a_group_that_only_waits_for_one_that_is_away_is_at_rest() -> None:
    group = make()
    gone(group)
    send(group, 4, 6)
    group.settle()
    assert group["a"].is_quiet
    assert group["a"].outbound.delivered_by_members
    assert group["a"].armed() == ()
    sent = len(group.sent)
    group.run_for(30 * SECOND)
    assert group.sent[sent:] == []
    assert group["a"].outbound.window.marks == Marks(3, 6, 6)


def test_nothing_is_sent_to_one_that_is_away() -> None:
    group = make()
    group.crash(C)
    send(group, 4, 6, mode=Mode.ACKNOWLEDGED)
    group.install(View.of(2, A, B), kept={NAME: C})
    before = len(group.sent)
    group.lose(Data, to="b", times=2)
    send(group, 7, 9, mode=Mode.ACKNOWLEDGED)
    group.settle()
    assert {sent.to for sent in group.sent[before:]} <= {None, A, B}
    assert group.messages("b", "a") == numbers(1, 9)


def test_acknowledged_sends_wait_for_members_only() -> None:
    group = make()
    gone(group)
    group.lose(Ack, by="b", times=1)
    ticket = group.send("a", b"x", mode=Mode.ACKNOWLEDGED).ticket
    assert not group["a"].outbound.delivered_by_members
    group.run_for(5 * MS)
    assert not group.told("a", Acknowledged)
    group.settle()
    assert group.told("a", Acknowledged) == [Acknowledged(ticket)]


def test_a_member_that_pins_is_named_while_a_place_is_kept() -> None:
    group = make(pin_after="100ms", capacity=8)
    gone(group)
    send(group, 4, 5)
    group.settle()
    group.run_for(SECOND)
    assert not group.told("a", Pinned)
    group.lose(by="b")
    send(group, 6, 7)
    group.run_for(150 * MS)
    (pinned,) = group.told("a", Pinned)
    assert (pinned.members, pinned.low, pinned.high) == ((B,), 5, 7)


def test_who_is_back_is_waited_for_like_any_other() -> None:
    group = make(pin_after="100ms")
    gone(group)
    send(group, 4, 5)
    group.settle()
    rule = group.rule(to_reader)
    back(group)
    group.run_for(250 * MS)
    assert not group["a"].is_quiet
    assert {pinned.members for pinned in group.told("a", Pinned)} == {(C2,)}
    ticket = group.send("a", b"6", mode=Mode.ACKNOWLEDGED).ticket
    group.run_for(50 * MS)
    assert not group.told("a", Acknowledged)
    group.rules.remove(rule)
    group.settle()
    assert group.told("a", Acknowledged) == [Acknowledged(ticket)]
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


# Places that come and go


def test_a_place_that_is_not_listed_any_more_is_released() -> None:
    group = make()
    gone(group)
    send(group, 4, 6)
    group.settle()
    group.install(View.of(3, A, B))
    assert told(group, A, Released) == [Released(NAME, C, "timeout")]
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
    assert told(group, A, Held) == [Held(NAME, C)]
    assert not told(group, A, Released)
    back(group, 4, (A, C2))
    group.settle()
    assert got(group, C2) == numbers(4, 6)


def test_a_new_life_of_a_sender_keeps_everything_from_its_first_message_on() -> None:
    group = make()
    gone(group)
    group.crash(A)
    group.begin(A2)
    group.install(View.of(3, B, A2), kept={NAME: C})
    group.step(A2, lambda m: m.send(numbers(1, 3), group.now_ns))
    group.settle()
    assert group.members[A2].outbound.window.marks == Marks(0, 3, 3)
    back(group, 4, (B, A2, C2), resume={A: 3})
    group.settle()
    assert got(group, C2, A2) == numbers(1, 3)
    assert not told(group, C2, Lost)


def test_a_sender_that_never_saw_the_reader_keeps_from_where_it_is() -> None:
    group = Group(2)
    send(group, 1, 4)
    group.settle()
    group.install(View.of(2, A, B), kept={NAME: C})
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
    group.install(View.of(2, A, B, D), kept={"c": C})
    send(group, 4, 5)
    group.settle()
    group.crash(D)
    send(group, 6, 6)
    group.begin(C2, resume={})
    group.install(View.of(3, A, B, C2), [C2, A, B], kept={"d": D}, back={C2: C})
    send(group, 7, 7)
    group.settle()
    assert got(group, C2) == numbers(4, 7)
    assert group["a"].outbound.window.low == 5
    assert [event for event in group.events[A] if isinstance(event, Held | Released)] == [
        Held("c", C),
        Released("c", C, "back"),
        Held("d", D),
    ]
    group.begin(D2, resume={})
    group.install(View.of(4, A, B, C2, D2), [D2, A, B, C2], back={D2: D})
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
    assert not told(group, A, Held)
    assert not told(group, A, Released)


@pytest.mark.parametrize("seen", [True, False], ids=["place seen as kept", "never seen as kept"])
def test_a_sender_that_missed_a_whole_life_of_the_reader_goes_on_from_what_it_knows(seen: bool) -> None:
    group = make()
    group.crash(C)
    if seen:
        gone(group)
    send(group, 4, 5)
    group.run_for(5 * MS)
    group.begin(C3, resume={})
    view = View.of(5, A, B, C3)
    group.install(view, [C3, A], back={C3: C2})  # nobody told this sender of C2
    group.install(view, [B], back={C3: C})
    group.settle()
    assert got(group, C3) == numbers(4, 5)


def test_a_place_goes_on_under_a_later_life_that_this_sender_never_saw() -> None:
    group = make()
    gone(group)
    send(group, 4, 5)
    group.settle()
    gone(group, 5, last=C2)
    assert group["a"].outbound.window.low == 3
    assert told(group, A, Held) == [Held(NAME, C)]
    back(group, 6, (A, B, C3), last=C2)
    group.settle()
    assert got(group, C3) == numbers(4, 5)


@pytest.mark.parametrize("named", [True, False], ids=["named as back", "simply there again"])
def test_the_same_life_goes_on_after_a_partition(named: bool) -> None:
    group = make(capacity=16)
    split = group.rule(lambda sender, receiver, _frame: (sender == C) != (receiver == C))
    send(group, 4, 5)
    group.run_for(MS)
    group.install(View.of(2, A, B), kept={NAME: C})
    group.install(View.of(2, C), [C])
    send(group, 6, 8)
    group.settle()
    group.rules.remove(split)
    group.install(View.of(3, A, B, C), [C, A, B], back={C: C} if named else {})
    send(group, 9, 9)
    group.settle()
    assert got(group, C) == numbers(1, 9)
    assert not told(group, C, Lost)
    assert told(group, A, Released) == [Released(NAME, C, "back")]
    assert group["a"].outbound.window.low == 9


def test_what_the_same_life_got_and_could_not_acknowledge_is_not_repeated() -> None:
    group = make(ack_delay="50ms")
    group.lose(Ack, Tail)
    send(group, 4, 5)
    group.run_for(10 * MS)
    assert got(group, C) == numbers(1, 5)
    group.install(View.of(2, A, B), kept={NAME: C})
    group.install(View.of(2, C), [C])
    group.rules.clear()
    assert group["a"].outbound.holds.minimum == 3
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
    assert not group.told("a", HoldFull)
    first = group.send("a", b"8").ticket
    assert group.told("a", HoldFull) == [HoldFull(NAME, C)]
    group.cancel("a", first)
    send(group, 8, 9)
    group.settle()
    assert group.told("a", HoldFull) == [HoldFull(NAME, C)]
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
    assert group.told("a", HoldFull) == [HoldFull(NAME, C), HoldFull(NAME, C2)]


def test_a_window_that_a_member_fills_as_well_is_not_blamed_on_the_place() -> None:
    group = make(capacity=4, on_hold_full="release")
    gone(group)
    group.lose(Ack, by="b")
    send(group, 4, 8)
    group.run_for(10 * MS)
    assert not group.told("a", Released)
    group.rules.clear()
    group.settle()
    assert group.told("a", Released) == [Released(NAME, C, "capacity")]


def test_a_place_is_released_at_once_if_that_is_wanted() -> None:
    group = make(capacity=4, on_hold_full="release")
    gone(group)
    send(group, 4, 9)
    group.settle()
    assert group.told("a", Released) == [Released(NAME, C, "capacity")]
    assert not group.told("a", HoldFull)
    assert group["a"].outbound.window.low == 9
    gone(group, 3)  # others keep it still
    send(group, 10, 11)
    group.settle()
    assert group["a"].outbound.window.low == 11
    assert len(group.told("a", Held)) == 1
    back(group, 4, resume={A: 3})
    send(group, 12, 12)
    group.settle()
    assert got(group, C2) == [b"12"]
    assert told(group, C2, Lost) == [Lost(A, 4, 11)]
    gone(group, 5, last=C2)
    assert group.told("a", Held)[1:] == [Held(NAME, C2)]


def test_only_the_places_that_are_furthest_behind_are_released() -> None:
    group = Group(4, capacity=4, on_hold_full="release")
    group.crash(D)
    group.install(View.of(2, A, B, C), kept={"d": D})
    send(group, 1, 2)
    group.settle()
    group.crash(C)
    group.install(View.of(3, A, B), kept={"c": C, "d": D})
    send(group, 3, 5)
    group.settle()
    assert group.told("a", Released) == [Released("d", D, "capacity")]
    assert group["a"].outbound.window.low == 2


def test_a_send_that_must_not_wait_is_refused_or_releases() -> None:
    group = make(capacity=4)
    gone(group)
    send(group, 4, 7)
    group.settle()
    ready = group.send("a", b"8", wait=False)
    assert [type(event) for event in ready.events] == [HoldFull, Refused]
    group = make(capacity=4, on_hold_full="release")
    gone(group)
    send(group, 4, 7)
    group.settle()
    ready = group.send("a", *numbers(8, 12), wait=False)
    assert [type(event) for event in ready.events] == [Refused], "it would not fit without the place either"
    ready = group.send("a", *numbers(8, 11), wait=False)
    assert [type(event) for event in ready.events] == [Released, Accepted]


def test_bytes_that_are_kept_take_nothing_from_the_buffers_of_the_members() -> None:
    group = make(receive_buffer_bytes="2KiB", max_frame_bytes="512B", window_bytes="8KiB")
    gone(group)
    for _ in range(60):
        group.send("a", bytes(100))
        group.settle()
    assert not group.told("a", HoldFull)
    assert group["a"].outbound.window.stored_bytes == 60 * 102
    group.send("a", *[bytes(100)] * 60)
    outstanding = group["a"].outbound.window.high - 63
    assert outstanding == 2048 // 102, "as much as the members' buffers take, and as is left of the window"
    group.settle()
    assert group.told("a", HoldFull) == [HoldFull(NAME, C)]
    back(group)
    group.settle()
    assert len(got(group, C2)) == 120


# Messages in pieces


def halves(size_bytes: int) -> bytes:
    return bytes(range(256)) * (size_bytes // 256)


@pytest.mark.parametrize("acked", ["before", "late"])
def test_who_died_within_a_message_in_pieces_gets_all_of_it(acked: str) -> None:
    """A durable member acknowledges whole messages, even when it is asked within one."""
    group = make(max_frame_bytes="512B", ack_threshold=1, ack_delay="1ms")
    message = halves(2048)
    rule = group.rule(lambda _s, to, frame: to == C and isinstance(frame, Data) and frame.run.first >= 6)
    group.send("a", message)
    group.run_for(3 * MS if acked == "before" else SECOND)
    group.rules.remove(rule)
    gone(group)
    group.settle()
    assert group["a"].outbound.window.low == 3
    back(group, resume={A: 3})
    group.settle()
    assert got(group, C2) == [message]
    assert not told(group, C2, Lost)


def test_a_message_larger_than_the_window_reaches_a_durable_member() -> None:
    group = make(max_frame_bytes="512B", capacity=16, receive_buffer_bytes="4KiB")
    message = halves(64 * 1024)
    group.send("a", message)
    group.settle()
    assert got(group, C)[-1] == message


def test_a_message_within_a_window_that_another_member_makes_small_does_not_stand_still() -> None:
    """The one that acknowledges whole messages must not hold back the ack that the sender needs for the rest."""
    group = make(max_frame_bytes="512B")
    small = group.config.replace(receive_buffer_bytes="1KiB")
    for stream in group["b"].inbound.values():
        stream.config = small
    send(group, 4, 5)
    group.settle()
    message = halves(16 * 1024)
    group.send("a", message)
    group.settle()
    assert group["a"].outbound.window.max_bytes == 1024
    assert got(group, C)[-1] == message


def test_the_rest_of_a_message_whose_beginning_is_gone_is_lost_and_said_to_be() -> None:
    group = Group(3, max_frame_bytes="512B", capacity=4, ack_threshold=1)
    message = halves(8 * 1024)  # many times the window: it cannot wait for the ack of the whole
    group.send("a", message)
    group.run_for(4 * MS)
    gone(group)
    acked = group["a"].outbound.holds.minimum
    assert acked is not None
    assert acked > 1
    back(group, resume={A: 0})
    group.settle()
    send(group, 1, 1)
    group.settle()
    assert got(group, C2) == [b"1"]
    lost = told(group, C2, Lost)
    assert lost[0].first == 1
    assert all(after.first == before.last + 1 for before, after in pairwise(lost))
    assert lost[-1].last == group["a"].outbound.window.high - 1


def test_a_place_goes_back_to_the_beginning_of_a_message_that_is_still_here() -> None:
    """The reader did not know that it was durable, and acknowledged pieces; another member was further behind."""
    group = Group(3, max_frame_bytes="512B", ack_threshold=1)
    message = halves(2048)
    group.lose(to="b")
    group.rule(lambda _s, to, frame: to == C and isinstance(frame, Data) and frame.run.first >= 3)
    group.send("a", message)
    group.run_for(5 * MS)
    assert group["a"].outbound.acks[C] == 2
    gone(group)
    group.rules.clear()
    back(group, resume={A: 0})
    group.settle()
    assert got(group, C2) == [message]
    assert not told(group, C2, Lost)


# The one that is back


def test_no_stream_starts_below_what_the_reader_has_kept() -> None:
    group = make(ack_delay="50ms")
    group.lose(Ack, Tail)
    send(group, 4, 5)
    group.run_for(10 * MS)
    gone(group)
    group.rules.clear()
    back(group, resume={A: 5, B: 0, Address(99, 1): 7})
    send(group, 6, 6)
    group.settle()
    assert got(group, C2) == [b"6"]
    assert told(group, C2, Started)[0] == Started(A, 5)
    assert not told(group, C2, Lost)


def test_what_was_acknowledged_and_not_kept_is_reported_as_lost() -> None:
    group = make()
    gone(group)
    send(group, 4, 5)
    group.settle()
    back(group, resume={A: 1})
    group.settle()
    assert told(group, C2, Lost) == [Lost(A, 2, 3)]
    assert got(group, C2) == numbers(4, 5)


def test_an_origin_without_a_mark_starts_where_it_says_and_nothing_of_it_is_lost() -> None:
    group = make()
    group.install(View.of(2, A, B))
    group.crash(C)
    back(group, 3)
    group.settle()
    assert told(group, C2, Started)[0] == Started(A, 3)
    assert not told(group, C2, Lost)


def test_a_stream_that_ended_before_it_started_has_no_mark() -> None:
    group = make()
    group.begin(C2, resume={})
    group.rule(to_reader)
    group.install(View.of(2, A, B, C2), [C2])
    group.install(View.of(3, C2), [C2])
    group.rules.clear()
    group.crash(C)
    group.install(View.of(4, A, B, C2), [C2, A, B])
    group.settle()
    assert told(group, C2, Started)[0] == Started(A, 3)
    assert not told(group, C2, Lost)


def test_what_came_before_the_view_is_taken_whatever_view_it_was_sent_in() -> None:
    group = make()
    gone(group)
    group.begin(C2, resume={A: 3})
    send(group, 4, 5)  # of view 2, which does not have the new life
    group.run_for(5 * MS)
    group.rule(lambda sender, _receiver, frame: sender == C2 and isinstance(frame, Nak) and bool(frame.ranges))
    view = View.of(3, A, B, C2)
    group.install(view, [C2, A, B], back={C2: C})
    group.run_for(100 * MS)
    assert got(group, C2) == numbers(4, 5)
    assert "dropped.view" not in group.members[C2].counters


@pytest.mark.parametrize("late", [True, False], ids=["set later", "with the view"])
def test_a_digest_does_not_say_where_a_durable_member_goes_on(late: bool) -> None:
    group = make()
    gone(group)
    send(group, 4, 5)
    group.settle()
    group.begin(C2, resume={A: 3})
    digest = group["b"].digest()
    view = View.of(3, A, B, C2)
    group.install(view, [C2], None if late else digest, back={C2: C})
    if late:
        group.step(C2, lambda m: m.set_digest(digest, group.now_ns))
    group.install(view, [A, B], back={C2: C})
    group.settle()
    assert got(group, C2) == numbers(4, 5)


def test_what_the_reader_itself_sends_is_for_the_members_of_its_view() -> None:
    group = make()
    gone(group)
    back(group)
    group.settle()
    group.step(C2, lambda m: m.send(numbers(1, 2), group.now_ns))
    group.settle()
    assert got(group, A, C2) == got(group, B, C2) == numbers(1, 2)
    assert group.members[C2].is_quiet


# What is refused


@pytest.mark.parametrize("profile", ["nakack", "ordered", "classic"])
def test_profiles_without_acks_refuse_to_keep_places(profile: str) -> None:
    group = Group(3, profile=profile)
    with pytest.raises(LocalProtocolError, match=r"cannot keep places for \['reader'\].*use profile nakack4"):
        group["a"].install(View.of(2, A, B), group.now_ns, kept={NAME: C})
    view = group["a"].view
    assert view is not None
    assert view.id.number == 1, "nothing has happened"
    with pytest.raises(LocalProtocolError, match="has no durable members: use profile nakack4"):
        Group(2, start=False, profile=profile)["a"].resume({})


def test_places_that_do_not_fit_the_view_are_refused() -> None:
    member = Group(3)["a"]
    with pytest.raises(LocalProtocolError, match=r"3\.1 \('reader'\) is in view 2: only who is away has a kept place"):
        member.install(View.of(2, A, B, C), SECOND, kept={NAME: C})
    with pytest.raises(LocalProtocolError, match=r"3\.2 is not in view 2: it cannot be back from 3\.1"):
        member.install(View.of(2, A, B), SECOND, back={C2: C})
    member.install(View.of(2, A, B), SECOND, kept={NAME: C})


def test_marks_that_make_no_sense_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="is a member already: resume before the first view"):
        Group(2)["a"].resume({})
    fresh = Group(2, start=False)["a"]
    with pytest.raises(LocalProtocolError, match=r"mark -1 of 2\.1 is not a seqno"):
        fresh.resume({B: -1})
    assert not fresh._durable


# For exhaustive search


def test_kept_places_are_part_of_the_state() -> None:
    group = make(capacity=4, on_hold_full="release")
    gone(group)
    send(group, 4, 6)
    group.settle()
    sender = group["a"]
    snapshot = sender.snapshot()
    send(group, 7, 8)
    group.settle()
    assert not sender.outbound.holds
    released = sender.snapshot()
    assert released != snapshot
    sender.restore(snapshot)
    assert sender.snapshot() == snapshot
    sender.check_invariants()
    assert sender.outbound.holds.minimum == 3
    send(group, 7, 8)
    assert len(group.told("a", Released)) == 2
    sender.restore(released)
    assert sender.snapshot() == released
    gone(group, 3)
    assert not sender.outbound.holds, "released is released"
