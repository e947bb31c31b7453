"""What an origin sends again, to whom, and what it holds back."""

import pytest
from hypothesis import given, strategies as st

from gapless.config import Config
from gapless.protocol.ready import TraceEntry
from gapless.protocol.stream.retransmit import RepairPlan, RetransmitHandler
from gapless.protocol.stream.window import FixedWindow, Window
from gapless.run import Run
from gapless.wire.frames import Ack, Data, Gone, Nak, Range, Tail
from tests.support.virtual_group import MS, A, B, C, D, Group, frames

T0 = 1000 * MS


def stored(*lengths: int, size_bytes: int = 10) -> Window:
    """A sender's window that holds runs of so many messages, one after the other."""
    window = Window(FixedWindow(10_000), keep_delivered=True)
    for length in lengths:
        window.add(Run.of(A, window.high + 1, [b"x" * size_bytes] * length))
    window.take()
    return window


def repairs(**knobs: object) -> RetransmitHandler:
    return RetransmitHandler(Config.make(**knobs))


def named(answer: RepairPlan) -> list[Range]:
    return [(run.first, run.last) for run in answer.runs]


# Frames


def test_what_was_stored_as_one_run_is_repaired_in_frames() -> None:
    """Runs that arrived together, or in larger frames, are stored as one."""
    window = stored(9, size_bytes=98)
    assert named(repairs(max_frame_bytes=400).plan_repairs(B, [(1, 9)], window, T0)) == [
        (1, 3),
        (4, 6),
        (7, 9),
    ]
    assert named(repairs(max_frame_bytes=400).plan_repairs(B, [(2, 5)], window, T0)) == [
        (2, 4),
        (5, 5),
    ]
    large = stored(2, size_bytes=900)
    assert named(repairs(max_frame_bytes=400).plan_repairs(B, [(1, 2)], large, T0)) == [
        (1, 1),
        (2, 2),
    ], "as small as it gets"


# Exactness


@pytest.mark.behaviour("N4-32")
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=8),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=6),
)
def test_s10_what_is_asked_for_and_stored_is_sent_and_nothing_else(
    lengths: list[int], purged: int, gaps: list[tuple[int, int]]
) -> None:
    """S10, N4-32: and every message is the one that was sent under that seqno."""
    window = Window(FixedWindow(10_000), keep_delivered=True)
    for length in lengths:
        first = window.high + 1
        window.add(Run.of(A, first, [b"%d" % seqno for seqno in range(first, first + length)]))
    window.take()
    window.purge(purged)
    asked: list[Range] = []
    floor = 0
    for gap, more in gaps:
        asked.append((floor + gap, floor + gap + more))
        floor += gap + more
    answer = repairs().plan_repairs(B, asked, window, T0)
    got = [pair for run in answer.runs for pair in run]
    wanted = {seqno for first, last in asked for seqno in range(first, last + 1)}
    assert got == [
        (seqno, b"%d" % seqno)
        for seqno in range(window.low + 1, window.high + 1)
        if seqno in wanted
    ]
    assert (answer.repeated, answer.over_budget) == ([], [])


def test_a_repair_keeps_what_the_run_says_of_itself() -> None:
    window = Window(FixedWindow(10), keep_delivered=True)
    window.add(Run.of(A, 1, [b"a", b"b", b"c"], flags=8, view=3, sent_ns=77))
    (run,) = repairs().plan_repairs(B, [(2, 2)], window, T0).runs
    assert (run.messages(), run.flags, run.view, run.sent_ns) == ([b"b"], 8, 3, 77)


# Suppression


@pytest.mark.behaviour("P-11")
def test_p11_a_repeated_question_is_answered_once() -> None:
    """P-11: a nak that was duplicated, or crossed the repair, costs nothing."""
    repair, window = repairs(), stored(10)
    assert named(repair.plan_repairs(B, [(2, 4)], window, T0)) == [(2, 4)]
    again = repair.plan_repairs(B, [(1, 5)], window, T0 + MS)
    assert named(again) == [(1, 1), (5, 5)]
    assert again.repeated == [(2, 4)]


def test_suppression_ends_before_the_receiver_asks_again() -> None:
    """Half of min_retry: a real loss is never suppressed twice in a row."""
    repair, window = repairs(min_retry="8ms"), stored(10)
    repair.plan_repairs(B, [(2, 4)], window, T0)
    assert named(repair.plan_repairs(B, [(2, 4)], window, T0 + 4 * MS - 1)) == []
    assert named(repair.plan_repairs(B, [(2, 4)], window, T0 + 4 * MS)) == [(2, 4)]


def test_what_went_to_one_member_alone_does_not_count_for_another() -> None:
    repair, window = repairs(use_mcast_xmit="never"), stored(10)
    assert repair.plan_repairs(B, [(2, 4)], window, T0).to == B
    answer = repair.plan_repairs(C, [(2, 4)], window, T0)
    assert (answer.to, named(answer), answer.repeated) == (C, [(2, 4)], [])
    assert named(repair.plan_repairs(C, [(2, 4)], window, T0)) == []


def test_what_went_to_all_counts_for_everybody() -> None:
    """R-06: one multicast repair serves all members with the same loss."""
    repair, window = repairs(use_mcast_xmit="always"), stored(10)
    first = repair.plan_repairs(B, [(2, 4)], window, T0)
    assert (first.to, named(first)) == (None, [(2, 4)])
    second = repair.plan_repairs(C, [(3, 5)], window, T0 + MS)
    assert (second.to, named(second), second.repeated) == (None, [(5, 5)], [(3, 4)])


@pytest.mark.behaviour("P-12")
def test_p12_auto_turns_to_all_when_a_second_member_asks() -> None:
    """P-12, R-06: the first gets a private repair; the second shows a shared loss: multicast."""
    repair, window = repairs(use_mcast_xmit="auto"), stored(10)
    assert repair.plan_repairs(B, [(2, 4)], window, T0).to == B
    second = repair.plan_repairs(C, [(4, 4)], window, T0 + MS)
    assert (second.to, named(second)) == (None, [(4, 4)])
    third = repair.plan_repairs(D, [(4, 4)], window, T0 + MS)
    assert (named(third), third.repeated) == ([], [(4, 4)])


def test_auto_serves_different_losses_apart() -> None:
    repair, window = repairs(use_mcast_xmit="auto"), stored(10)
    repair.plan_repairs(B, [(2, 4)], window, T0)
    assert repair.plan_repairs(C, [(5, 6)], window, T0).to == C
    assert repair.plan_repairs(B, [(7, 7)], window, T0).to == B
    assert repair.plan_repairs(C, [(2, 4)], window, T0 + 10 * MS).to == C, "the moment is over"


def test_what_is_remembered_does_not_pile_up() -> None:
    """S14."""
    repair, window = repairs(), stored(*[1] * 100)
    for at in range(1000):
        repair.plan_repairs(B, [(at % 100 + 1, at % 100 + 1)], window, T0 + at * MS)
    assert len(repair._recent) <= 3


# Budget


@pytest.mark.behaviour("P-11")
def test_p11_repairs_have_a_budget_per_interval() -> None:
    """P-11: lowest first; repairs over the budget wait for the next nak."""
    repair, window = (
        repairs(repair_budget_bytes=3000, xmit_interval="100ms"),
        stored(*[1] * 10, size_bytes=998),
    )
    answer = repair.plan_repairs(B, [(1, 10)], window, T0)
    assert (named(answer), answer.over_budget) == (
        [(1, 1), (2, 2), (3, 3)],
        [(seqno, seqno) for seqno in range(4, 11)],
    )
    later = repair.plan_repairs(B, [(4, 10)], window, T0 + 100 * MS - 1)
    assert (named(later), later.over_budget[0]) == ([], (4, 4))
    assert named(repair.plan_repairs(B, [(4, 10)], window, T0 + 100 * MS)) == [
        (4, 4),
        (5, 5),
        (6, 6),
    ]


def test_what_was_not_sent_for_lack_of_budget_is_not_suppressed() -> None:
    repair, window = (
        repairs(repair_budget_bytes=1400, xmit_interval="5ms"),
        stored(1, 1, size_bytes=998),
    )
    assert repair.plan_repairs(B, [(1, 2)], window, T0).over_budget == [(2, 2)]
    assert named(repair.plan_repairs(B, [(2, 2)], window, T0 + 5 * MS)) == [(2, 2)]


def test_what_is_suppressed_costs_no_budget() -> None:
    repair, window = repairs(repair_budget_bytes=2000), stored(1, 1, size_bytes=998)
    for _ in range(5):
        repair.plan_repairs(B, [(1, 1)], window, T0)
    assert named(repair.plan_repairs(B, [(1, 2)], window, T0)) == [(2, 2)]


def test_the_budget_always_takes_one_frame() -> None:
    """Config refuses a budget below a frame; so a repair is never too large for ever."""
    config = Config.make(max_frame_bytes=1400, repair_budget_bytes=1400)
    window = Window(FixedWindow(10), keep_delivered=True)
    window.add(Run.of(A, 1, [b"x" * 1300]))
    assert named(RetransmitHandler(config).plan_repairs(B, [(1, 1)], window, T0)) == [(1, 1)]


# In the machine


def sent(group: Group, step: str) -> list[TraceEntry]:
    return [row for row in group.steps[A] if row.event == step]


@pytest.mark.behaviour("N4-32")
def test_n4_32_the_answer_to_a_nak_is_the_message_again() -> None:
    """N4-32: to the requester, marked as a repair."""
    group = Group(3)
    group.send("a", b"1", b"2", b"3")
    ready = group.receive("a", B, Nak(A, ((2, 3),)))
    ((to, frame),) = frames(ready)
    assert isinstance(frame, Data)
    assert (to, frame.repair, list(frame.run)) == (B, True, [(2, b"2"), (3, b"3")])
    assert group["a"].counters["received.nak"] == 1


@pytest.mark.behaviour("N4-33")
def test_n4_33_what_was_never_sent_is_answered_with_the_end_of_the_stream() -> None:
    """N4-33: the sender announces its marks, and sends no data."""
    group = Group(2)
    group.send("a", b"1")
    assert frames(group.receive("a", B, Nak(A, ((2, 900),)))) == [(B, Tail(A, 0, 1))]


@pytest.mark.behaviour("N4-33", "P-01")
def test_n4_33_what_is_purged_is_answered_with_gone() -> None:
    """N4-33, P-01: never silence. The rest of the question is answered as usual."""
    group = Group(2)
    group.send("a", *[b"%d" % seqno for seqno in range(1, 11)])
    group.receive("a", B, Ack(A, 6, 1 << 20))
    ready = group.receive("a", B, Nak(A, ((3, 7), (9, 20))))
    assert [(to, type(frame)) for to, frame in frames(ready)] == [
        (B, Gone),
        (B, Tail),
        (B, Data),
        (B, Data),
    ]
    assert frames(ready)[0] == (B, Gone(A, 6))
    assert group.data("a", repair=True) == [(7, 7), (9, 10)]
    assert frames(group.receive("a", B, Nak(A, ((1, 1),)))) == [(B, Gone(A, 6))]


@pytest.mark.behaviour("I-22")
def test_a_nak_without_ranges_is_answered_with_the_start() -> None:
    """I-22."""
    group = Group(2)
    group.send("a", b"1", b"2")
    assert frames(group.receive("a", B, Nak(A, ()))) == [(B, Tail(A, 0, 2, 0, 1))]


def test_what_is_held_back_stands_in_the_trace() -> None:
    """S10 is checked from the trace: the reasons must be there."""
    group = Group(2, repair_budget_bytes=1400, window_bytes=1 << 20)
    group.send("a", b"x" * 900, b"y" * 900)
    group.receive("a", B, Nak(A, ((1, 1),)))
    group.receive("a", B, Nak(A, ((1, 2),)))
    held = [(row.seqno, row.seqno_last, row.reason) for row in sent(group, "SUPPRESSED")]
    assert held == [(1, 1, "repeat"), (2, 2, "budget")]
    assert [(row.seqno, row.seqno_last) for row in sent(group, "REPAIR")] == [(1, 1)]


@pytest.mark.behaviour("N4-32")
@pytest.mark.parametrize(
    ("choice", "destinations", "at_most"),
    [("always", {None}, 3), ("never", {B, C}, 5), ("auto", {B, C, None}, 5)],
)
def test_every_way_of_repairing_repairs(
    choice: str, destinations: set[object], at_most: int
) -> None:
    """N4-32, L4: two members lose the same, one of them more; repairs do not exceed losses."""
    group = Group(3, use_mcast_xmit=choice)
    group.lose_seqnos(2, 3)
    group.lose_seqnos(5, to="c")
    for seqno in range(1, 8):
        group.send("a", b"%d" % seqno)
    group.settle()
    expected = [b"%d" % seqno for seqno in range(1, 8)]
    assert group.messages("b", "a") == group.messages("c", "a") == expected
    repaired = [
        sent.to for sent in group.sent if isinstance(sent.frame, Data) and sent.frame.repair
    ]
    assert set(repaired) == destinations
    assert len(repaired) <= at_most
