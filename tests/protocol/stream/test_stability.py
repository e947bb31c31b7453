"""Stability: how a group finds out what everybody has delivered, and lets go of it."""

from typing import Any

import pytest

from gapless.identity import Marks, View
from gapless.protocol.events import Accepted, SlowReceivers
from gapless.wire.frames import Ack, Data, Gone, Nak, Stable, StreamProgress, Tail, Vote
from tests.support.virtual_group import MS, SECOND, A, B, C, D, Group, data, frames


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def nakack(members: int = 3, **knobs: Any) -> Group:
    return Group(members, profile="nakack", **knobs)


def still(members: int = 3, **knobs: Any) -> Group:
    """A group without votes by timers."""
    return nakack(members, stability_interval="1h", **knobs)


def stable(group: Group, *progress: tuple[Any, int, int], view: int = 1) -> None:
    """Send c a stability message of the coordinator."""
    group.receive("c", A, Stable(A, view, tuple(StreamProgress(*entry) for entry in progress)))


# On a stability message


@pytest.mark.behaviour("N7-17", "N7-18", "I-03", "I-06")
def test_a_stability_message_purges_up_to_its_seqno_and_low_becomes_it() -> None:
    """The named message itself included: stable means delivered by all."""
    group = still()
    group.receive("c", A, data(A, 1, *numbers(1, 5)))
    group.receive("c", B, data(B, 1, *numbers(1, 5)))
    stable(group, (A, 3, 5), (B, 4, 5))
    assert group["c"].digest()[A] == Marks(3, 5, 5)
    assert group["c"].digest()[B] == Marks(4, 5, 5)
    window = group["c"].inbound[A].window
    assert window is not None
    assert window.stored == 2


@pytest.mark.behaviour("N7-19", "I-03")
def test_purging_never_passes_what_was_delivered_here() -> None:
    group = still()
    group.receive("c", A, data(A, 1, *numbers(1, 2)))
    group.receive("c", A, data(A, 4))
    stable(group, (A, 4, 4))
    assert group["c"].digest()[A] == Marks(2, 2, 4)
    group.receive("c", A, data(A, 3))
    assert group.messages("c", "a") == numbers(1, 4)
    assert not group["c"].is_quiet, "the rest is not taken for stable"


@pytest.mark.behaviour("N7-19")
def test_the_own_stream_is_not_purged_past_what_was_delivered_here() -> None:
    """Not even if the coordinator names messages that were never sent; and not later."""
    group = still()
    group.send("c", b"1")
    stable(group, (C, 9, 9))
    assert group["c"].digest()[C] == Marks(1, 1, 1)
    group.send("c", b"2")
    group.install(View.of(2, A, B, C))
    assert group["c"].digest()[C] == Marks(1, 2, 2)
    assert group["c"].outbound.stable == 0


@pytest.mark.behaviour("N7-19")
def test_a_stability_message_beyond_what_was_sent_does_not_hide_the_next_one() -> None:
    group = still()
    group.send("c", b"1")
    stable(group, (C, 9, 9))
    group.send("c", b"2")
    stable(group, (C, 2, 2))
    assert group["c"].digest()[C] == Marks(2, 2, 2)


@pytest.mark.behaviour("N7-19")
def test_an_older_or_repeated_stability_message_changes_nothing() -> None:
    group = still()
    group.receive("c", A, data(A, 1, *numbers(1, 5)))
    stable(group, (A, 4, 5))
    before = group["c"].snapshot()
    for seqno in (4, 2, 0):
        stable(group, (A, seqno, 5))
    assert group["c"].snapshot() == before
    assert group["c"].digest()[A] == Marks(4, 5, 5)


@pytest.mark.behaviour("N7-24")
def test_a_stability_message_that_names_an_unknown_sender_is_ignored() -> None:
    group = still()
    group.receive("c", A, data(A, 1))
    stable(group, (A, 1, 1), (D, 7, 9))
    assert set(group["c"].digest()) == {A, B, C}
    assert group["c"].digest()[A] == Marks(1, 1, 1), "the rest of it counts"


@pytest.mark.behaviour("N7-24")
def test_stability_of_a_stream_without_a_start_is_ignored() -> None:
    group = Group(3, start=False, profile="nakack")
    group.install(View.of(1, A, B, C), [C])
    stable(group, (B, 7, 9))
    assert B not in group["c"].digest()


@pytest.mark.behaviour("N7-18")
@pytest.mark.parametrize("reason", ["other view", "not coordinator"])
def test_a_stability_message_of_another_view_or_of_somebody_else_is_dropped(reason: str) -> None:
    """A-10."""
    group = still()
    group.receive("c", A, data(A, 1))
    sender = A if reason == "other view" else B
    view = 2 if reason == "other view" else 1
    group.receive("c", sender, Stable(sender, view, (StreamProgress(A, 1, 1),)))
    assert group["c"].digest()[A] == Marks(0, 1, 1)
    assert group["c"].counters[f"dropped.{reason}"] == 1


@pytest.mark.behaviour("N7-18")
def test_what_a_stability_message_knows_to_exist_is_a_gap() -> None:
    """R-09: a lost end is found even if the origin's announcements are lost."""
    group = still()
    stable(group, (B, 0, 3))
    group.run_for(10 * MS)
    assert group.frames(Nak, "c") == [Nak(B, ((1, 3),))]


@pytest.mark.behaviour("N7-18")
def test_where_acks_release_votes_and_stability_messages_are_dropped() -> None:
    """A-05, N4-39."""
    group = Group(2)
    group.receive("b", A, Stable(A, 1, (StreamProgress(A, 9, 9),)))
    group.receive("a", B, Vote(B, 1, (StreamProgress(A, 9, 9),)))
    assert group["a"].counters["dropped.stability"] == group["b"].counters["dropped.stability"] == 1


# Rounds


@pytest.mark.behaviour("N7-17", "N7-18")
def test_a_round_by_time_empties_every_table() -> None:
    """A-07: once everything is stable there are no more votes."""
    group = nakack()
    for name in "abc":
        group.send(name, *numbers(1, 5))
    group.run_for(200 * MS)
    assert group.frames(Vote) == []
    group.settle(SECOND)
    for name in "abc":
        assert set(group[name].digest().values()) == {Marks(5, 5, 5)}
        assert group[name].is_quiet
    assert [vote.origin for vote in group.frames(Vote)] == [B, C], "each of the others votes once"
    assert len(group.frames(Stable, "a")) >= 1


@pytest.mark.behaviour("N7-17")
def test_a_round_by_bytes_comes_at_once() -> None:
    """A-07: the own bytes count at the sender, wanted back or not."""
    group = nakack(2, stability_interval="1h", stability_bytes="1000B")
    group.send("a", b"x" * 600, loopback=False)
    group.run_for(10 * MS)
    assert group.frames(Vote) == []
    group.send("a", b"x" * 600, loopback=False)
    group.run_for(10 * MS)
    assert len(group.frames(Vote, "b")) == 1
    assert group["a"].digest()[A] == group["b"].digest()[A] == Marks(2, 2, 2)


@pytest.mark.behaviour("N7-17")
def test_bytes_count_from_the_last_vote_on() -> None:
    group = nakack(2, stability_interval="1h", stability_bytes="1000B")
    for _ in range(10):
        group.send("a", b"x" * 600)
        group.run_for(10 * MS)
    assert len(group.frames(Vote, "b")) == 5


@pytest.mark.behaviour("N7-17", "P-13")
def test_a_sender_that_waits_for_room_does_not_wait_for_the_interval() -> None:
    """A window smaller than ``stability_bytes``: members vote for every quarter of it."""
    group = nakack(3, stability_interval="1h", window_bytes="4KiB")
    group.send("b", *[b"x" * 1000] * 50)
    group.run_for(SECOND)
    assert len(group.messages("c", "b")) == 50
    assert group.events_of("b", Accepted) == [Accepted(1, 1, 50)]


@pytest.mark.behaviour("N7-17", "P-13")
def test_a_sender_that_waits_for_numbers_does_not_wait_for_the_interval() -> None:
    group = nakack(3, stability_interval="1h", max_seqno_ahead=8, capacity=8)
    group.send("b", *numbers(1, 100))
    group.run_for(SECOND)
    assert group.messages("c", "b") == numbers(1, 100)


@pytest.mark.behaviour("N7-25", "N7-16", "I-03")
def test_stable_is_the_minimum_of_delivered_and_never_of_high() -> None:
    """c has 3 but not 2: only 1 is stable, and b retains 2 for it."""
    group = nakack()
    group.lose_seqnos(2, to="c", repairs=True)
    for seqno in (1, 2, 3):
        group.send("a", b"%d" % seqno)
    group.run_for(3 * SECOND)
    assert group["a"].digest()[A] == group["b"].digest()[A] == Marks(1, 3, 3)
    assert group["c"].digest()[A] == Marks(1, 1, 3)
    group.rules.clear()
    group.settle()
    assert group["a"].digest()[A] == Marks(3, 3, 3)
    assert group.messages("c", "a") == numbers(1, 3)


@pytest.mark.behaviour("N7-25", "N7-16")
def test_what_the_application_has_not_taken_is_not_stable() -> None:
    group = nakack(2, unread_limit=2)
    group.send("a", *numbers(1, 3), loopback=False)
    group.run_for(SECOND)
    assert group["a"].digest()[A] == Marks(2, 3, 3)
    group.consumed("b", 1)
    group.settle()
    assert group["a"].digest()[A] == Marks(3, 3, 3)


@pytest.mark.behaviour("N7-25")
def test_nothing_is_stable_before_everybody_has_voted() -> None:
    group = still()
    group.send("b", *numbers(1, 4))
    group.run_for(5 * MS)
    group.receive("a", B, Vote(B, 1, (StreamProgress(B, 4, 4),)))
    assert group["a"].digest()[B].low == 0
    ready = group.receive("a", C, Vote(C, 1, (StreamProgress(B, 3, 4),)))
    assert group["a"].digest()[B].low == 3
    assert (None, Stable(A, 1, (StreamProgress(B, 3, 4),))) in frames(ready)


@pytest.mark.behaviour("N7-25")
def test_a_stream_that_a_voter_does_not_know_is_not_stable() -> None:
    """A-08: a vote that leaves it out does not count as a zero, nor as a yes."""
    group = still()
    group.send("b", b"1")
    group.run_for(5 * MS)
    group.receive("a", B, Vote(B, 1, (StreamProgress(B, 1, 1),)))
    group.receive("a", C, Vote(C, 1, (StreamProgress(A, 0, 0),)))
    assert group["a"].digest()[B].low == 0


@pytest.mark.behaviour("N7-25")
@pytest.mark.parametrize(
    ("vote", "sender", "reason"), [(2, B, "other view"), (0, B, "other view"), (1, D, "stranger")]
)
def test_a_vote_of_another_view_or_of_a_stranger_does_not_count(
    vote: int, sender: Any, reason: str
) -> None:
    """A-08."""
    group = still(2)
    group.send("a", b"1")
    group.receive(
        "a", sender, Vote(sender, vote, (StreamProgress(A, 1, 1), StreamProgress(B, 0, 0)))
    )
    assert group["a"].digest()[A] == Marks(0, 1, 1)
    assert group["a"].counters[f"dropped.{reason}"] == 1


@pytest.mark.behaviour("N7-25")
def test_a_vote_for_somebody_else_does_not_count() -> None:
    """Only the first member of the view counts votes, and a vote is about its sender only."""
    group = still()
    group.receive("b", C, Vote(C, 1, (StreamProgress(A, 0, 0),)))
    assert group["b"].counters["dropped.not mine"] == 1
    group.receive("a", C, Vote(B, 1, (StreamProgress(A, 0, 0),)))
    assert group["a"].counters["dropped.origin"] == 1


@pytest.mark.behaviour("N7-25")
def test_a_vote_only_rises() -> None:
    """A late older vote does not replace the newer one."""
    group = still(2)
    group.send("a", *numbers(1, 3))
    group.receive("a", B, Vote(B, 1, (StreamProgress(A, 3, 3), StreamProgress(B, 0, 0))))
    group.receive("a", B, Vote(B, 1, (StreamProgress(A, 1, 3), StreamProgress(B, 0, 0))))
    assert group["a"].digest()[A] == Marks(3, 3, 3)
    assert group["a"].stability is not None
    assert group["a"].stability.lagging(A, 3) == ()


@pytest.mark.behaviour("N7-18")
def test_a_vote_that_does_not_fit_a_frame_is_told_in_parts() -> None:
    group = nakack(4, max_frame_bytes="256B", stability_interval="250ms")
    for name in "abcd":
        group.send(name, b"1")
    group.settle()
    for name in "abcd":
        assert set(group[name].digest().values()) == {Marks(1, 1, 1)}


# Losses


@pytest.mark.behaviour("N7-18")
def test_a_lost_vote_does_not_wedge_the_next_round() -> None:
    """A-09."""
    group = nakack()
    group.lose(Vote, by="c", times=3)
    group.send("a", b"1")
    group.settle(5 * SECOND)
    assert (
        group["a"].digest()[A] == group["b"].digest()[A] == group["c"].digest()[A] == Marks(1, 1, 1)
    )
    assert len(group.frames(Vote, "c")) == 4


@pytest.mark.behaviour("N7-18")
@pytest.mark.parametrize("to", ["b", "c", None])
def test_a_lost_stability_message_does_not_wedge_the_next_round(to: str | None) -> None:
    """A-09: a member without the stability message votes again, and gets it again."""
    group = nakack()
    group.lose(Stable, to=to, times=2)
    group.send("b", b"1")
    group.settle(5 * SECOND)
    for name in "abc":
        assert group[name].digest()[B] == Marks(1, 1, 1)


@pytest.mark.behaviour("N7-18")
def test_who_votes_again_is_told_alone() -> None:
    group = nakack()
    group.lose(Stable, to="c", times=1)
    group.send("a", b"1")
    group.settle(5 * SECOND)
    targets = [sent.to for sent in group.sent if isinstance(sent.frame, Stable)]
    assert targets[0] is None
    assert set(targets[1:]) == {C}


# On a view


@pytest.mark.behaviour("N7-25")
def test_a_view_makes_all_votes_void() -> None:
    """A-11: a joiner that has delivered nothing counts from the first round of its view on."""
    group = Group(3, start=False, profile="nakack", stability_interval="1h")
    group.install(View.of(1, A, B), [A, B], digest={A: Marks(0, 0, 0), B: Marks(0, 0, 0)})
    group.send("a", b"1")
    group.receive("a", B, Vote(B, 1, (StreamProgress(A, 0, 1), StreamProgress(B, 0, 0))))
    group.install(View.of(2, A, B, C), [A])
    group.send("a", b"2")
    everything = (StreamProgress(A, 2, 2), StreamProgress(B, 0, 0), StreamProgress(C, 0, 0))
    group.receive("a", B, Vote(B, 1, everything))
    group.receive("a", C, Vote(C, 2, everything))
    assert group["a"].digest()[A].low == 0, "the vote of b is of another view"
    group.step(A, lambda m: m.set_digest({C: Marks(0, 0, 0)}, group.now_ns))
    group.receive("a", B, Vote(B, 2, everything))
    assert group["a"].digest()[A].low == 2


@pytest.mark.behaviour("N7-25")
def test_a_vote_of_the_view_before_does_not_complete_a_round() -> None:
    """A-11: c has voted, a view comes, b votes."""
    group = still()
    group.send("a", b"1")
    everything = (StreamProgress(A, 1, 1), StreamProgress(B, 0, 0), StreamProgress(C, 0, 0))
    group.receive("a", C, Vote(C, 1, everything))
    group.install(View.of(2, A, B, C), [A])
    group.receive("a", B, Vote(B, 2, everything))
    assert group["a"].digest()[A].low == 0
    group.receive("a", C, Vote(C, 2, everything))
    assert group["a"].digest()[A].low == 1


@pytest.mark.behaviour("N7-18")
def test_a_joiner_of_a_silent_group_learns_that_everything_is_stable() -> None:
    """The others vote once more in the new view, though nothing was sent; then there is silence."""
    group = Group(3, start=False, profile="nakack")
    group.install(View.of(1, A, B), [A, B], digest={A: Marks(0, 0, 0), B: Marks(0, 0, 0)})
    group.send("a", *numbers(1, 5))
    group.settle()
    group.install(View.of(2, A, B, C))
    group.settle(5 * SECOND)
    assert group["c"].digest()[A] == Marks(5, 5, 5)
    assert group["c"].is_quiet


@pytest.mark.behaviour("N7-25", "P-13")
def test_a_member_that_leaves_holds_nothing_up_any_more() -> None:
    """A-14: c is dead; without it the minimum rises, and what waited is sent."""
    group = nakack(3, max_seqno_ahead=4, capacity=4)
    group.lose(to="c")
    group.lose(by="c")
    group.send("b", *numbers(1, 9))
    group.run_for(3 * SECOND)
    assert group["b"].digest()[B] == Marks(0, 4, 4)
    del group.members[C]
    group.install(View.of(2, A, B))
    group.settle()
    assert group.messages("a", "b") == numbers(1, 9)
    assert group["b"].digest()[B] == Marks(9, 9, 9)


@pytest.mark.behaviour("N7-18")
def test_the_next_coordinator_counts_the_votes_when_the_first_is_gone() -> None:
    group = nakack()
    group.send("b", b"1")
    group.run_for(10 * MS)
    del group.members[A]
    group.install(View.of(2, B, C))
    group.settle()
    assert group["b"].digest()[B] == group["c"].digest()[B] == Marks(1, 1, 1)
    assert group.frames(Stable, "b")


@pytest.mark.behaviour("N7-18")
def test_a_view_that_comes_in_the_middle_of_a_round_delays_it_only() -> None:
    """c installs the view late: its old vote is dropped, and it votes again in the new view."""
    group = nakack()
    group.send("a", b"1")
    group.run_for(249 * MS)
    group.install(View.of(2, A, B, C), [A, B])
    group.run_for(300 * MS)
    assert group["a"].digest()[A] == Marks(0, 1, 1)
    group.install(View.of(2, A, B, C), [C])
    group.settle()
    for name in "abc":
        assert group[name].digest()[A] == Marks(1, 1, 1)


@pytest.mark.behaviour("N7-18")
def test_alone_a_member_makes_its_messages_stable_by_itself() -> None:
    group = nakack(1)
    group.send("a", *numbers(1, 3))
    group.settle()
    assert group["a"].digest()[A] == Marks(3, 3, 3)


@pytest.mark.behaviour("N7-18", "P-01")
def test_a_join_under_load_stops_nobody() -> None:
    """P-01: b keeps sending and installs the view late; c starts where b says."""
    group = Group(
        3, start=False, profile="nakack", max_seqno_ahead=16, capacity=16, stability_interval="5ms"
    )
    start = dict.fromkeys((A, B), Marks(0, 0, 0))
    group.install(View.of(1, A, B), [A, B], digest=start)
    sent = 0
    for turn in range(300):
        if turn == 100:
            group.install(View.of(2, A, B, C), [A, C])
        if turn == 200:
            group.install(View.of(2, A, B, C), [B])
        sent += 1
        group.send("b", b"%d" % sent)
        group.run_for(MS)
    group.settle(10 * SECOND)
    assert group.messages("a", "b") == numbers(1, sent)
    received = group.numbered("c", "b")
    assert [seqno for seqno, _ in received] == list(range(received[0][0], sent + 1))
    assert group["b"].digest()[B] == Marks(sent, sent, sent)


# Slow receivers


@pytest.mark.behaviour("P-13")
def test_the_coordinator_names_the_member_that_holds_up_purging() -> None:
    """P-13, A-14."""
    group = nakack(3, slow_receiver_after="1s")
    group.lose(Vote, by="c")
    group.send("a", b"1", b"2")
    group.run_for(1500 * MS)
    (pinned,) = group.events_of("a", SlowReceivers)
    assert pinned == SlowReceivers((C,), 0, 2, SECOND)
    group.rules.clear()
    group.settle()
    assert len(group.events_of("a", SlowReceivers)) == 1


@pytest.mark.behaviour("P-13")
def test_another_sender_is_told_that_its_window_is_held_up() -> None:
    """All have the message, and the coordinator, which lacks a vote, does not call it stable."""
    group = nakack(3, slow_receiver_after="1s")
    group.lose(Vote, by="c")
    group.send("b", b"1")
    group.run_for(1500 * MS)
    assert group.events_of("b", SlowReceivers) == []
    group.run_for(SECOND)
    assert group.events_of("b", SlowReceivers) == [SlowReceivers((A,), 0, 1, SECOND)]


@pytest.mark.behaviour("N7-18")
def test_a_nak_for_what_is_stable_is_answered_gone() -> None:
    group = nakack(2)
    group.send("a", *numbers(1, 5))
    group.settle()
    ready = group.receive("a", B, Nak(A, ((1, 3),)))
    assert frames(ready) == [(B, Gone(A, 5))]


@pytest.mark.behaviour("N7-17")
def test_announcements_end_when_everything_is_stable() -> None:
    group = nakack(2)
    group.send("a", b"1")
    group.settle(SECOND)
    tails = len(group.frames(Tail))
    group.run_for(60 * SECOND)
    assert len(group.frames(Tail)) == tails
    assert len(group.frames(Data)) == 1


# Who keeps a window from moving


@pytest.mark.parametrize("profile", ["nakack", "classic", "ordered"])
@pytest.mark.parametrize("sender", ["a", "b"])
def test_a_blocked_sender_learns_who_lags(profile: str, sender: str) -> None:
    """Only the coordinator has the votes; any other member asks the receivers."""
    group = Group(4, profile=profile, capacity=4, max_seqno_ahead=4)
    group.lose(Data, to="c")
    for number in range(8):
        group.send(sender, b"%d" % number)
    group.run_for(20 * SECOND)
    reports = group.events_of(sender, SlowReceivers)
    assert {report.members for report in reports} == {(C,)}
    assert len(reports) == 4
    assert group[sender].outbound.lagging_members(group[sender].stability) == (C,)


def test_a_lost_question_or_answer_accuses_nobody() -> None:
    group = nakack(4)
    group.lose(Data, to="c")
    group.lose(Tail, by="b", to="d", times=1)
    group.lose(Ack, by="a", to="b", times=2)
    group.send("b", b"x")
    group.run_for(6 * SECOND)
    assert [report.members for report in group.events_of("b", SlowReceivers)] == [(C,)]


def test_a_coordinator_that_announces_nothing_is_named() -> None:
    group = nakack(3)
    group.lose(Stable, by="a")
    group.send("b", b"x")
    group.run_for(5 * SECOND)
    assert not group.events_of("b", SlowReceivers), "everybody has it"
    group.run_for(6 * SECOND)
    assert [report.members for report in group.events_of("b", SlowReceivers)] == [(A,)]


def test_a_window_that_moves_is_asked_about_by_nobody() -> None:
    group = nakack(3)
    for _ in range(100):
        group.send("b", b"x")
        group.run_for(100 * MS)
    assert all(tail.start is None for tail in group.frames(Tail, "b"))
