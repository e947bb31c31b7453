"""Profile ``classic``: seqnos restart with every view, messages belong to their view."""

from itertools import product
from random import Random
from typing import Any

import pytest

from gapless.delivery_mode import DeliveryMode
from gapless.errors import LocalProtocolError
from gapless.identity import Marks, View, ViewId
from gapless.protocol.events import (
    Accepted,
    Acknowledged,
    Discarded,
    GivenUp,
    Lost,
    Unacknowledged,
    Undelivered,
    ViewInstalled,
)
from gapless.protocol.ready import GROUP as TO_ALL
from gapless.run import ACKED, Run
from gapless.wire.frames import Ack, Data, Gone, Nak, StreamProgress, Tail, Vote
from tests.support.virtual_group import MS, NAMES, SECOND, A, B, C, D, Group, frames

ACKNOWLEDGED = DeliveryMode.ACKNOWLEDGED


def classic(members: int = 2, **knobs: Any) -> Group:
    return Group(members, profile="classic", **knobs)


def delivered(group: Group, at: str, origin: str) -> list[tuple[int, int, bytes]]:
    """The deliveries of one origin at a member: view, seqno, message; gapless in every view."""
    found: list[tuple[int, int, bytes]] = []
    for delivery in group.deliveries[NAMES[at]]:
        if delivery.origin == NAMES[origin] and delivery.kind == TO_ALL:
            whole = (
                delivery.content
                if isinstance(delivery.content, Run)
                else [(delivery.last, delivery.content)]
            )
            found += ((delivery.epoch, seqno, message) for seqno, message in whole)
    assert found == sorted(found, key=lambda entry: entry[:2]), "views and numbers go up"
    return found


def of_view(
    origin: Any, view: int, first: int, *payloads: bytes, repair: bool = False, flags: int = 0
) -> Data:
    """A data frame of a view."""
    return Data(Run.of(origin, first, payloads or (b"%d" % first,), flags, view), repair, view)


def dropped(group: Group, name: str, reason: str) -> int:
    return group[name].counters.get(f"dropped.{reason}", 0)


# One sequence of numbers for both modes


@pytest.mark.behaviour("OL-01")
def test_ol01_the_default_is_nak_nobody_acknowledges_and_gaps_are_asked_for() -> None:
    group = classic()
    group.lose_seqnos(1, to="b")
    for payload in (b"1", b"2", b"3"):
        ready = group.send("a", payload)
        assert (
            Accepted(ready.ticket, int(payload), int(payload), 1) in ready.events
        )  # send returns at once
    group.settle()
    assert delivered(group, "b", "a") == [(1, 1, b"1"), (1, 2, b"2"), (1, 3, b"3")]
    assert group.frames(Ack) == []
    assert group.frames(Nak, "b")[0] == Nak(A, ((1, 1),), 1)


@pytest.mark.behaviour("OL-02", "OL-16")
def test_ol02_every_receiver_acknowledges_every_message_that_asks_for_it() -> None:
    group = classic(3)
    for payload in (b"1", b"2"):
        group.send("a", payload, mode=ACKNOWLEDGED)
        group.run_for(5 * MS)
    assert all(frame.run.flags & ACKED for frame in group.frames(Data, "a"))
    for name in "bc":
        assert [(frame.seqno, frame.epoch) for frame in group.frames(Ack, name)] == [(1, 1), (2, 1)]
    assert len(group.events_of("a", Acknowledged)) == 2


@pytest.mark.behaviour("OL-03")
def test_ol03_both_modes_share_one_sequence_and_are_ordered_together() -> None:
    group = classic()
    group.lose_seqnos(2, to="b")
    for at, mode in enumerate(
        (DeliveryMode.ORDERED, ACKNOWLEDGED, DeliveryMode.ORDERED, ACKNOWLEDGED), 1
    ):
        group.send("a", b"%d" % at, mode=mode)
    group.settle()
    for name in "ab":
        assert delivered(group, name, "a") == [
            (1, 1, b"1"),
            (1, 2, b"2"),
            (1, 3, b"3"),
            (1, 4, b"4"),
        ]


# The id of the view


@pytest.mark.behaviour("OL-05", "OL-08")
def test_ol05_messages_of_both_modes_carry_the_view() -> None:
    group = classic()
    group.send("a", b"1")
    group.send("a", b"2", mode=ACKNOWLEDGED)
    group.settle()
    group.install(View.of(7, A, B))
    group.send("a", b"3")
    group.settle()
    assert [(frame.epoch, frame.run.view) for frame in group.frames(Data, "a")] == [
        (1, 1),
        (1, 1),
        (7, 7),
    ]
    assert delivered(group, "b", "a") == [(1, 1, b"1"), (1, 2, b"2"), (7, 1, b"3")]


@pytest.mark.behaviour("OL-06", "OL-10")
def test_ol06_a_message_of_a_later_view_waits_for_that_view() -> None:
    group = classic()
    group.install(View.of(2, A, B), [A])
    group.send("a", b"1", b"2")
    group.run_for(5 * MS)
    assert delivered(group, "b", "a") == []
    group.install(View.of(2, A, B), [B])
    assert delivered(group, "b", "a") == [
        (2, 1, b"1"),
        (2, 2, b"2"),
    ]  # at once, nothing has to come again


@pytest.mark.behaviour("OL-06")
def test_ol06_what_was_kept_comes_after_the_view() -> None:
    group = classic()
    group.receive("b", A, of_view(A, 2, 1))
    ready = group.step(B, lambda m: m.install(View.of(2, A, B), group.now_ns))
    assert isinstance(ready.events[0], ViewInstalled)
    assert [delivery.first for delivery in ready.deliveries] == [1]


@pytest.mark.behaviour("OL-10")
def test_ol10_gaps_of_what_was_kept_are_asked_for_in_the_new_view() -> None:
    group = classic()
    group.lose_seqnos(2, to="b")
    group.install(View.of(2, A, B), [A])
    for payload in (b"1", b"2", b"3"):
        group.send("a", payload)
    group.run_for(5 * MS)
    assert group.frames(Nak) == []
    group.install(View.of(2, A, B), [B])
    group.settle()
    assert delivered(group, "b", "a") == [(2, 1, b"1"), (2, 2, b"2"), (2, 3, b"3")]
    assert group.frames(Nak, "b")[0] == Nak(A, ((2, 2),), 2)


@pytest.mark.behaviour("OL-06", "I-20")
def test_i20_it_waits_whoever_made_the_view() -> None:
    """V-02, V-03."""
    group = classic(3)
    view = View(ViewId(2, C), (C, A, B))  # c is the coordinator now
    group.install(view, [C])
    group.send("c", b"1")
    group.run_for(5 * MS)
    group.install(view, [A, B])
    for name in "ab":
        assert delivered(group, name, "c") == [(2, 1, b"1")]


@pytest.mark.behaviour("OL-06", "I-20")
def test_i20_what_is_for_the_view_after_next_outlasts_the_next() -> None:
    """V-04."""
    group = classic()
    group.install(View.of(2, A, B), [A])
    group.install(View.of(3, A, B), [A])
    group.send("a", b"1")
    group.run_for(5 * MS)
    group.install(View.of(2, A, B), [B])
    assert delivered(group, "b", "a") == []
    group.install(View.of(3, A, B), [B])
    assert delivered(group, "b", "a") == [(3, 1, b"1")]


@pytest.mark.behaviour("OL-06", "OL-07", "I-20")
def test_i20_a_later_view_than_the_one_it_waits_for_ends_the_wait() -> None:
    group = classic()
    group.receive("b", A, of_view(A, 2, 1))
    group.install(View.of(3, A, B), [B])
    assert delivered(group, "b", "a") == []
    assert dropped(group, "b", "view") == 1


@pytest.mark.behaviour("OL-06", "I-20")
def test_i20_at_most_a_few_wait_and_the_rest_is_repaired() -> None:
    group = classic(become_server_queue_size=2)
    group.install(View.of(2, A, B), [A])
    for at in range(5):
        group.send("a", b"%d" % at)
    group.run_for(5 * MS)
    assert len(group["b"].future_view_buffer) == 2
    assert dropped(group, "b", "early") == 3
    group.install(View.of(2, A, B), [B])
    group.settle()
    assert [message for _, _, message in delivered(group, "b", "a")] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]


@pytest.mark.behaviour("OL-06", "OL-20", "I-20")
def test_i20_the_same_message_sent_again_waits_once() -> None:
    """Retransmissions of an acknowledged message must not displace waiting sends."""
    group = classic()
    group.install(View.of(2, A, B), [A])
    group.send("a", b"1", mode=ACKNOWLEDGED)
    group.run_for(5 * SECOND)
    assert len(group.data("a", repair=True)) > 3
    assert len(group["b"].future_view_buffer) == 1
    assert group.frames(Ack) == []  # an ack says: delivered (V-05)
    group.install(View.of(2, A, B), [B])
    group.settle()
    assert delivered(group, "b", "a") == [(2, 1, b"1")]
    assert len(group.events_of("a", Acknowledged)) == 1


@pytest.mark.behaviour("OL-06", "I-20")
def test_i20_what_one_who_joins_sent_in_the_later_view_waits_too() -> None:
    group = Group(3, start=False, profile="classic")
    group.install(View.of(1, A, B), [A, B])
    group.install(View.of(2, A, B, C), [A, C])
    group.send("c", b"1")
    group.run_for(5 * MS)
    group.install(View.of(2, A, B, C), [B])
    assert delivered(group, "b", "c") == [(2, 1, b"1")]


@pytest.mark.behaviour("OL-06", "I-20")
def test_i20_what_a_stranger_says_of_a_later_view_is_dropped_if_it_does_not_join() -> None:
    group = classic()
    group.receive("b", D, of_view(D, 2, 1), of_view(C, 2, 1))
    assert len(group["b"].future_view_buffer) == 1  # what it says of others is nothing
    group.install(View.of(2, A, B))
    assert len(group["b"].future_view_buffer) == 0
    assert dropped(group, "b", "view") == 1
    assert group.deliveries[B] == []


@pytest.mark.behaviour("OL-07")
def test_ol07_a_message_of_an_earlier_view_is_discarded_and_counted() -> None:
    group = classic()
    group.install(View.of(2, A, B))
    group.receive("b", A, of_view(A, 1, 1, b"x", b"y"))
    group.receive("b", A, of_view(A, 1, 1, b"x", b"y", repair=True))
    assert group.deliveries[B] == []
    assert dropped(group, "b", "view") == 4
    assert group["b"].inbound[A].window.marks == Marks(0, 0, 0)  # type: ignore[union-attr]


@pytest.mark.behaviour("OL-06")
def test_v01_before_the_first_view_nothing_is_delivered_and_then_only_what_is_of_it_or_later() -> (
    None
):
    """V-01."""
    group = Group(2, start=False, profile="classic")
    for view in (1, 2, 3):
        group.receive("b", A, of_view(A, view, 1, b"of %d" % view))
    assert group.deliveries[B] == []
    group.install(View.of(2, A, B), [B])
    group.install(View.of(3, A, B), [B])
    assert delivered(group, "b", "a") == [(2, 1, b"of 2"), (3, 1, b"of 3")]


@pytest.mark.behaviour("OL-05")
def test_ol05_in_other_profiles_a_view_number_does_not_stop_a_message() -> None:
    """View-scoped delivery belongs to this profile: elsewhere streams span all views."""
    group = Group(2, profile="nakack")
    group.install(View.of(2, A, B), [A])
    group.send("a", b"1")
    group.run_for(5 * MS)
    assert group.messages("b", "a") == [b"1"]


# Numbers restart with a view


@pytest.mark.behaviour("OL-09")
def test_ol09_numbers_restart_for_the_sender_and_for_all_receivers() -> None:
    """V-07."""
    group = classic(3)
    group.send("a", b"1", b"2")
    group.send("b", b"3")
    group.settle()
    group.install(View.of(2, A, B, C))
    assert {name: group[name].digest() for name in "abc"} == dict.fromkeys(
        "abc", dict.fromkeys((A, B, C), Marks(0, 0, 0))
    )
    group.send("a", b"4")
    group.send("b", b"5", mode=ACKNOWLEDGED)
    group.settle()
    for name in "abc":
        assert delivered(group, name, "a")[-1] == (2, 1, b"4")
        assert delivered(group, name, "b")[-1] == (2, 1, b"5")


@pytest.mark.behaviour("OL-09")
def test_ol09_an_equal_view_number_is_refused_for_numbers_would_repeat() -> None:
    group = classic()
    with pytest.raises(LocalProtocolError, match="has to rise"):
        group["a"].install(View(ViewId(1, B), (B, A)), group.now_ns)
    assert group["a"].view == View.of(1, A, B)


@pytest.mark.behaviour("OL-09", "OL-06")
def test_ol09_a_member_that_leaves_and_comes_back_starts_like_everybody() -> None:
    group = classic()
    group.send("a", b"1", b"2")
    group.settle()
    group.install(View.of(2, A), [A])
    group.send("a", b"alone")
    group.run_for(SECOND)
    group.install(View.of(3, A, B))
    group.send("a", b"back")
    group.settle()
    assert delivered(group, "b", "a") == [(1, 1, b"1"), (1, 2, b"2"), (3, 1, b"back")]


@pytest.mark.behaviour("OL-09")
def test_ol09_what_waits_unsent_goes_on_in_the_new_view_with_new_numbers() -> None:
    group = classic(capacity=2, max_seqno_ahead=2)
    group.lose(Vote)  # nothing becomes stable: the window stays full
    group.send("a", b"1", b"2")
    waiting = group.send("a", b"3", b"4").ticket
    group.run_for(50 * MS)
    group.rules.clear()
    group.install(View.of(2, A, B))
    group.settle()
    assert delivered(group, "b", "a") == [(1, 1, b"1"), (1, 2, b"2"), (2, 1, b"3"), (2, 2, b"4")]
    assert Accepted(waiting, 1, 2, 2) in group.events_of("a", Accepted)


@pytest.mark.behaviour("OL-09")
def test_ol09_a_send_that_a_view_cuts_in_two_is_accepted_with_its_numbers_of_the_new_view() -> None:
    group = classic(capacity=2, max_seqno_ahead=2)
    group.send("a", b"1")
    ticket = group.send("a", b"2", b"3", b"4").ticket
    group.install(View.of(2, A, B))
    assert Accepted(ticket, 1, 2, 2) in group.events_of("a", Accepted)
    assert delivered(group, "a", "a") == [(1, 1, b"1"), (1, 2, b"2"), (2, 1, b"3"), (2, 2, b"4")]


@pytest.mark.behaviour("OL-09")
def test_ol09_a_send_that_waits_across_a_view_still_times_out() -> None:
    group = classic(capacity=1, max_seqno_ahead=1)
    group.lose(Vote)
    group.send("a", b"1")
    group.send("a", b"2")
    waiting = group.send("a", b"3", timeout_ns=100 * MS).ticket
    group.run_for(50 * MS)
    group.install(View.of(2, A, B))
    group.run_for(60 * MS)
    assert group.events_of("a", GivenUp) == [GivenUp(waiting, 0, "timeout")]
    assert delivered(group, "b", "a") == [(1, 1, b"1"), (2, 1, b"2")]


@pytest.mark.behaviour("OL-09")
def test_ol09_a_message_in_pieces_that_a_view_interrupts_is_sent_again_whole() -> None:
    group = classic(capacity=2, max_seqno_ahead=2, max_frame_bytes=256)
    group.lose(Vote)
    group.send("a", b"x" * 900)
    group.run_for(50 * MS)
    assert group["a"].outbound.window.high == 2  # two pieces have gone out
    group.rules.clear()
    group.install(View.of(2, A, B))
    group.settle()
    for name in "ab":
        assert [(view, message) for view, _, message in delivered(group, name, "a")] == [
            (2, b"x" * 900)
        ]
    (accepted,) = group.events_of("a", Accepted)
    assert accepted.first == 1
    assert group.events_of("a", Undelivered) == []  # those pieces are nobody's loss


@pytest.mark.behaviour("OL-09")
def test_v07_what_the_old_view_has_not_made_stable_is_reported() -> None:
    """V-07."""
    group = classic()
    group.send("a", b"1")
    group.settle()
    group.lose(Data, by="a")
    group.send("a", b"2", b"3")
    group.run_for(5 * MS)
    group.rules.clear()
    group.install(View.of(2, A, B))
    group.settle()
    assert group.events_of("a", Undelivered) == [Undelivered(None, 2, 3, 1)]
    assert delivered(group, "b", "a") == [(1, 1, b"1")]


@pytest.mark.behaviour("OL-09")
def test_v07_what_is_known_to_have_arrived_is_not_reported() -> None:
    """V-07: an acknowledged message proves the delivery of all earlier ones, stable or not."""
    group = classic()
    group.send("a", b"1", b"2")
    group.send("a", b"3", mode=ACKNOWLEDGED)
    group.run_for(5 * MS)
    group.install(View.of(2, A, B))
    assert group.events_of("a", Undelivered) == []


@pytest.mark.behaviour("OL-09")
def test_v07_a_member_alone_loses_nothing_when_another_joins() -> None:
    """V-07."""
    group = Group(2, start=False, profile="classic")
    group.install(View.of(1, A), [A])
    group.send("a", b"1")
    group.install(View.of(2, A, B))
    assert group.events_of("a", Undelivered) == []
    assert delivered(group, "a", "a") == [(1, 1, b"1")]


@pytest.mark.behaviour("OL-09", "I-08")
def test_ol09_receivers_deliver_what_is_consecutive_before_the_view_and_report_the_rest() -> None:
    group = classic(unread_limit=1)
    group.receive("b", A, of_view(A, 1, 1, b"1", b"2"), of_view(A, 1, 4))
    assert [delivery.last for delivery in group.deliveries[B]] == [
        1
    ]  # the application has no room for more
    ready = group.step(B, lambda m: m.install(View.of(2, A, B), group.now_ns))
    assert [delivery.last for delivery in ready.deliveries] == [2]
    assert ready.before_view == 1
    assert ready.events[0] == Discarded(A, 1)
    assert isinstance(ready.events[-1], ViewInstalled)


@pytest.mark.behaviour("OL-09")
def test_ol09_own_messages_that_wait_for_the_application_come_before_the_view_too() -> None:
    group = classic(unread_limit=1)
    group.send("a", b"1", b"2", mode=ACKNOWLEDGED)
    ready = group.step(A, lambda m: m.install(View.of(2, A, B), group.now_ns))
    assert ready.before_view == 1
    assert delivered(group, "a", "a") == [(1, 1, b"1"), (1, 2, b"2")]
    assert group.events_of("a", Unacknowledged) == [Unacknowledged(1, (B,))]  # a itself has it


# Acknowledged sends and the end of a view


@pytest.mark.behaviour("OL-20")
def test_pending_acknowledged_sends_end_with_their_view_and_name_the_members() -> None:
    """V-07."""
    group = classic(3)
    group.lose(Data, to="c")
    ticket = group.send("a", b"1", mode=ACKNOWLEDGED).ticket
    group.run_for(5 * MS)
    group.install(View.of(2, A, B, C))
    assert group.events_of("a", Unacknowledged) == [Unacknowledged(ticket, (C,))]
    assert group.events_of("a", Acknowledged) == []
    assert group.events_of("a", Undelivered) == [Undelivered(None, 1, 1, 1)]
    group.settle()
    assert delivered(group, "c", "a") == []  # nothing of the old view is sent again


@pytest.mark.behaviour("OL-20")
def test_s58_an_acknowledged_send_is_complete_when_only_those_that_leave_had_it_not() -> None:
    """S-58."""
    group = classic(3)
    group.lose(Data, to="c")
    ticket = group.send("a", b"1", mode=ACKNOWLEDGED).ticket
    group.run_for(5 * MS)
    group.install(View.of(2, A, B))
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert group.events_of("a", Unacknowledged) == []
    assert group.events_of("a", Undelivered) == []


@pytest.mark.behaviour("OL-20")
def test_ol20_a_joiner_need_not_acknowledge_what_was_sent_before_it_came() -> None:
    group = Group(3, start=False, profile="classic")
    group.install(View.of(1, A, B), [A, B])
    ticket = group.send("a", b"1", mode=ACKNOWLEDGED).ticket
    group.run_for(5 * MS)
    group.install(View.of(2, A, B, C))
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]


@pytest.mark.behaviour("OL-02", "OL-09")
def test_an_acknowledged_send_that_waits_is_acknowledged_in_the_new_view() -> None:
    group = classic(capacity=1, max_seqno_ahead=1)
    group.lose(Vote)
    group.send("a", b"1")
    ticket = group.send("a", b"2", mode=ACKNOWLEDGED).ticket
    group.run_for(50 * MS)
    group.install(View.of(2, A, B))
    group.rules.clear()
    group.settle()
    assert group.events_of("a", Acknowledged) == [Acknowledged(ticket)]
    assert group.events_of("a", Unacknowledged) == []


@pytest.mark.behaviour("OL-02", "OL-09")
def test_an_acknowledged_send_that_a_view_cuts_in_two_is_not_called_acknowledged() -> None:
    group = classic(capacity=1, max_seqno_ahead=1)
    group.lose(Data, by="a", times=1)
    ticket = group.send("a", b"1", b"2", mode=ACKNOWLEDGED).ticket
    group.run_for(5 * MS)
    group.install(View.of(2, A, B))
    group.settle()
    assert delivered(group, "b", "a") == [(2, 1, b"2")]
    assert group.events_of("a", Unacknowledged) == [Unacknowledged(ticket, (B,))]
    assert group.events_of("a", Acknowledged) == []
    assert group.events_of("a", Undelivered) == [Undelivered(None, 1, 1, 1)]


# Frames of an old view


@pytest.mark.behaviour("OL-09")
def test_v06_late_frames_of_an_old_view_change_nothing() -> None:
    """V-06."""
    group = classic()
    group.send("a", b"old 1", b"old 2", b"old 3")
    group.settle()
    group.install(View.of(2, A, B))
    group.send("a", b"new 1", mode=ACKNOWLEDGED)
    a, b = group["a"], group["b"]
    before = a.snapshot(), b.snapshot()
    for frame in (
        Nak(A, ((1, 3),), 1),
        Nak(A, (), 1),
        Ack(A, 1, 1000, 1),
        Vote(B, 1, (StreamProgress(A, 3, 3),)),
    ):
        assert frames(group.receive("a", B, frame)) == []
    for late in (Tail(A, 3, 3, None, 0, 1), Gone(A, 3, 1), Tail(A, 3, 9, 5, B.incarnation, 1)):
        assert frames(group.receive("b", A, late)) == []
    assert (a.snapshot(), b.snapshot()) == before
    assert [dropped(group, name, "view") + dropped(group, name, "other view") for name in "ab"] == [
        4,
        3,
    ]
    group.settle()
    assert delivered(group, "b", "a")[-1] == (2, 1, b"new 1")
    assert group.events_of("b", Lost) == []


@pytest.mark.behaviour("OL-10")
@pytest.mark.parametrize("mode", [DeliveryMode.ORDERED, ACKNOWLEDGED])
def test_v13_the_first_and_only_message_of_a_view_is_repaired(mode: DeliveryMode) -> None:
    """V-13."""
    group = classic()
    group.send("a", b"old")
    group.settle()
    group.install(View.of(2, A, B))
    group.lose_seqnos(1, to="b")
    group.send("a", b"new", mode=mode)
    group.settle()
    assert delivered(group, "b", "a") == [(1, 1, b"old"), (2, 1, b"new")]


@pytest.mark.behaviour("OL-15")
def test_ol15_a_request_goes_to_the_sender_and_nobody_waits_for_it() -> None:
    group = classic(3)
    group.lose_seqnos(1, to="b")
    group.send("a", b"1")
    group.send("a", b"2")
    group.send("b", b"meanwhile")
    group.settle()
    assert {sent.to for sent in group.sent if isinstance(sent.frame, Nak)} == {A}
    assert delivered(group, "c", "b") == [(1, 1, b"meanwhile")]
    assert [message for _, _, message in delivered(group, "b", "a")] == [b"1", b"2"]


@pytest.mark.behaviour("OL-17")
def test_v05_an_ack_says_delivered_and_is_itself_neither_acknowledged_nor_numbered() -> None:
    """V-05."""
    group = classic()
    group.lose_seqnos(1, to="b", repairs=True)
    group.send("a", b"1")
    group.send("a", b"2", mode=ACKNOWLEDGED)
    group.run_for(SECOND)
    assert {frame.seqno for frame in group.frames(Ack)} <= {0}  # 2 is here, but behind a gap
    assert group.events_of("a", Acknowledged) == []
    group.rules.clear()
    group.settle()
    assert max(frame.seqno for frame in group.frames(Ack)) == 2
    assert group.frames(Ack, "a") == []


@pytest.mark.behaviour("OL-09")
def test_v14_a_send_without_a_view_takes_no_number() -> None:
    """V-14."""
    group = Group(1, start=False, profile="classic")
    with pytest.raises(LocalProtocolError, match="has no view yet"):
        group.send("a", b"1")
    group.install(View.of(1, A), [A])
    group.send("a", b"1")
    assert delivered(group, "a", "a") == [(1, 1, b"1")]


# Many views


@pytest.mark.behaviour("OL-06", "OL-07", "OL-09", "OL-10")
@pytest.mark.parametrize("seed", range(5))
def test_every_message_is_delivered_in_its_view_or_in_none(seed: int) -> None:
    """Members install views one after the other while all send and a fifth of frames is lost."""
    group = Group(3, profile="classic", seed=seed)
    draw = Random(seed)
    group.rule(lambda *_: draw.random() < 0.2)
    sent: dict[tuple[str, bytes], int] = {}
    for number in range(2, 8):
        for name in draw.sample("abc", 3):
            group.install(View.of(number, A, B, C), [NAMES[name]])
            for at in range(4):
                payload = b"%d %d" % (number, at)
                group.send(name, payload, mode=draw.choice((DeliveryMode.ORDERED, ACKNOWLEDGED)))
                sent[name, payload] = number
            group.run_for(draw.randrange(30) * MS)
        if draw.random() < 0.5:
            group.settle()
    group.settle()
    for name, origin in product("abc", repeat=2):
        found = delivered(group, name, origin)
        assert all(sent[origin, message] == view for view, _, message in found)
        assert [message for view, _, message in found if view == 7] == [
            b"7 %d" % at for at in range(4)
        ]
