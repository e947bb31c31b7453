"""Durable members: messages in pieces, the one that is back, what is refused."""

from itertools import pairwise
from typing import Any

import pytest

from gapless.errors import LocalProtocolError
from gapless.identity import Address, View
from gapless.protocol.events import Lost, RetentionReleased, Started
from gapless.wire.codec import encode
from gapless.wire.frames import Ack, Data, Gone, Nak, Tail
from tests.protocol.stream.test_durable_retention import (
    C2,
    NAME,
    back,
    gone,
    got,
    make,
    numbers,
    send,
    to_reader,
    told,
)
from tests.support.virtual_group import GROUP, MS, SECOND, A, B, C, Group

# Fragmented messages


def halves(size_bytes: int) -> bytes:
    return bytes(range(256)) * (size_bytes // 256)


@pytest.mark.parametrize("acked", ["before", "late"])
def test_who_died_within_a_message_in_pieces_gets_all_of_it(acked: str) -> None:
    """A durable member acknowledges whole messages, even when it is asked within one."""
    group = make(max_frame_bytes="512B", ack_threshold=1, ack_delay="1ms")
    message = halves(2048)
    rule = group.rule(
        lambda _s, to, frame: to == C and isinstance(frame, Data) and frame.run.first >= 6
    )
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


@pytest.mark.parametrize(
    "knobs", [{"capacity": 16}, {"receive_buffer_bytes": "4KiB"}], ids=["messages", "bytes"]
)
def test_a_message_larger_than_the_window_reaches_a_durable_member_without_a_pause(
    knobs: dict[str, Any],
) -> None:
    group = make(max_frame_bytes="512B", **knobs)
    message = halves(64 * 1024)
    tails = len(group.frames(Tail, "a"))
    group.send("a", message)
    while got(group, C)[-1] != message:
        group.run_for(MS)
        assert len(group.frames(Tail, "a")) == tails, "the sender never had to ask"


def test_a_message_within_a_window_that_another_member_makes_small_does_not_stand_still() -> None:
    """A reader that acknowledges whole messages must not delay an ack that the sender needs."""
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
    acked = group["a"].outbound.retention.minimum
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
    """The reader acknowledged fragments, unaware that it is durable; another was behind."""
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


# The return of a durable member


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
    group.rule(
        lambda sender, _receiver, frame: (
            sender == C2 and isinstance(frame, Nak) and bool(frame.ranges)
        )
    )
    view = View.of(3, A, B, C2)
    group.install(view, [C2, A, B], returning={C2: C})
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
    group.install(view, [C2], None if late else digest, returning={C2: C})
    if late:
        group.step(C2, lambda m: m.set_digest(digest, group.now_ns))
    group.install(view, [A, B], returning={C2: C})
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


def test_a_member_that_a_view_says_is_back_is_durable_by_that() -> None:
    group = make()
    gone(group)
    group.begin(C2)
    send(group, 4, 5)
    group.settle()
    group.install(View.of(3, A, B, C2), [C2, A, B], group["b"].digest(), returning={C2: C})
    group.settle()
    assert got(group, C2) == numbers(4, 5)


def test_what_is_gone_behind_a_known_mark_is_lost_even_if_nothing_was_delivered_yet() -> None:
    group = make()
    gone(group)
    send(group, 4, 9)
    group.settle()
    rule = group.rule(lambda _s, to, frame: to == C2 and isinstance(frame, Data))
    back(group, resume={A: 3})
    group.run_for(3 * MS)
    for frame in (Gone(A, 5), Tail(A, 5, 9, 7, C2.incarnation)):
        datagram = encode(GROUP, A, (frame,))
        group.step(C2, lambda m, datagram=datagram: m.receive(datagram, group.now_ns))  # type: ignore[misc]
    group.rules.remove(rule)
    group.settle()
    assert told(group, C2, Lost) == [Lost(A, 4, 5)]
    assert got(group, C2) == numbers(6, 9)


def test_a_later_start_is_a_loss_too() -> None:
    group = make()
    gone(group)
    send(group, 4, 9)
    group.settle()
    rule = group.rule(lambda _s, to, frame: to == C2 and isinstance(frame, Data))
    back(group, resume={A: 3})
    group.run_for(3 * MS)
    datagram = encode(GROUP, A, (Tail(A, 3, 9, 7, C2.incarnation),))
    group.step(C2, lambda m: m.receive(datagram, group.now_ns))
    group.rules.remove(rule)
    group.settle()
    assert told(group, C2, Lost) == [Lost(A, 4, 7)]
    assert got(group, C2) == numbers(8, 9)


def test_marks_are_not_forgotten_however_many_there_are() -> None:
    group = make()
    gone(group)
    marks = {A: 2, **{Address(1000 + node, 1): node for node in range(1100)}}
    group.begin(C2, resume=marks)
    group.install(View.of(3, B, C2), [C2])
    group.install(View.of(4, C2), [C2])
    group.install(View.of(5, A, B, C2), [C2, A, B], returning={C2: C})
    group.settle()
    assert told(group, C2, Lost) == [Lost(A, 3, 3)]


# Refusals


@pytest.mark.parametrize("profile", ["nakack", "ordered", "classic"])
def test_profiles_without_acks_refuse_to_keep_places(profile: str) -> None:
    group = Group(3, profile=profile)
    with pytest.raises(
        LocalProtocolError, match=r"cannot retain messages for \['reader'\].*use nakack4"
    ):
        group["a"].install(View.of(2, A, B), group.now_ns, absent={NAME: C})
    view = group["a"].view
    assert view is not None
    assert view.id.number == 1, "nothing has happened"
    with pytest.raises(LocalProtocolError, match="has no durable members: use profile nakack4"):
        Group(2, start=False, profile=profile)["a"].resume({})


def test_places_that_do_not_fit_the_view_are_refused() -> None:
    member = Group(3)["a"]
    with pytest.raises(
        LocalProtocolError,
        match=r"reader \(3\.1\) is in view 2 and cannot be absent as well",
    ):
        member.install(View.of(2, A, B, C), SECOND, absent={NAME: C})
    with pytest.raises(LocalProtocolError, match=r"3\.2 is not in view 2 and cannot continue 3\.1"):
        member.install(View.of(2, A, B), SECOND, returning={C2: C})
    member.install(View.of(2, A, B), SECOND, absent={NAME: C})


def test_marks_that_make_no_sense_are_refused() -> None:
    with pytest.raises(
        LocalProtocolError, match="has a view already: resume before the first view"
    ):
        Group(2)["a"].resume({})
    fresh = Group(2, start=False)["a"]
    with pytest.raises(LocalProtocolError, match=r"mark -1 of 2\.1 is not a seqno"):
        fresh.resume({B: -1})
    assert not fresh.resume_positions.durable


# For exhaustive search


def test_kept_places_are_part_of_the_state() -> None:
    group = make(capacity=4, on_retention_full="release")
    gone(group)
    send(group, 4, 6)
    group.settle()
    sender = group["a"]
    snapshot = sender.snapshot()
    send(group, 7, 8)
    group.settle()
    assert not sender.outbound.retention
    released = sender.snapshot()
    assert released != snapshot
    sender.restore(snapshot)
    assert sender.snapshot() == snapshot
    sender.check_invariants()
    assert sender.outbound.retention.minimum == 3
    send(group, 7, 8)
    assert len(group.events_of("a", RetentionReleased)) == 2
    sender.restore(released)
    assert sender.snapshot() == released
    gone(group, 3)
    assert not sender.outbound.retention, "released is released"
