"""Profile ``nakack``: one table per sender, retained until stable, repaired by any holder."""

import gc
from collections.abc import Iterable
from typing import Any

import pytest

from gapless.errors import ConfigError
from gapless.identity import Marks, View
from gapless.protocol.events import Lost, Started
from gapless.protocol.stream.window import GrowingWindow, Window
from gapless.run import Run
from gapless.wire.frames import Data, Gone, Nak, Tail
from tests.support.virtual_group import MS, SECOND, A, B, C, D, Group, data, frames, lines_of


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def nakack(members: int = 2, **knobs: Any) -> Group:
    """A group in which nothing becomes stable unless the test says so."""
    knobs.setdefault("stability_interval", "1h")
    return Group(members, profile="nakack", **knobs)


def singles(group: Group, name: str, seqnos: Iterable[int]) -> None:
    """Send messages one by one, each in a frame of its own."""
    for seqno in seqnos:
        group.send(name, b"%d" % seqno)


# The table


@pytest.mark.behaviour("N7-01", "N7-03")
def test_there_is_one_window_for_each_sender_and_the_own_is_one_of_them() -> None:
    group = nakack(3)
    singles(group, "a", [1, 2])
    group.send("b", b"1")
    group.run_for(10 * MS)
    assert set(group["a"].digest()) == {A, B, C}
    assert b"".join(run.payload for run in group["a"].outbound.window.runs) == b"12", (
        "what was sent"
    )
    window = group["b"].inbound[A].window
    assert window is not None
    assert b"".join(run.payload for run in window.runs) == b"12", "what was received and delivered"


@pytest.mark.behaviour("N7-02", "N7-20")
def test_a_digest_has_low_delivered_and_high_of_every_stream_known() -> None:
    group = nakack(3)
    group.receive("b", A, data(A, 1, *numbers(1, 3)))
    group.receive("b", A, data(A, 5))
    group.send("b", b"own")
    assert group["b"].digest() == {A: Marks(0, 3, 5), B: Marks(0, 1, 1), C: Marks(0, 0, 0)}


@pytest.mark.behaviour("N7-20")
def test_a_stream_without_a_start_is_not_in_the_digest() -> None:
    group = Group(2, start=False, profile="nakack")
    group.install(View.of(1, A, B), [B])
    assert group["b"].digest() == {B: Marks(0, 0, 0)}


@pytest.mark.behaviour("N7-04", "N7-21", "I-04")
def test_a_stream_that_a_digest_opens_begins_with_all_three_marks_at_delivered() -> None:
    group = Group(2, start=False, profile="nakack")
    group.install(View.of(1, A, B), [B], digest={A: Marks(3, 5, 5)})
    assert group["b"].digest()[A] == Marks(5, 5, 5)
    group.receive("b", A, data(A, 4, *numbers(4, 7)))
    assert group.messages("b", "a") == numbers(6, 7)


@pytest.mark.behaviour("N7-05")
def test_adding_costs_the_same_however_much_is_stored() -> None:
    """At the end of the table, and in the middle of it."""

    def cost(stored: int) -> tuple[int, int]:
        window = Window(GrowingWindow(1 << 20), keep_delivered=True)
        for seqno in range(1, 2 * stored, 2):
            window.add(Run.of(A, seqno, [b"x"]))
        end = lines_of(lambda: window.add(Run.of(A, 2 * stored + 1, [b"x"])))
        return end, lines_of(lambda: window.add(Run.of(A, stored + stored % 2, [b"x"])))

    assert cost(10) == cost(5_000)


def test_a_collection_of_garbage_counts_for_nothing() -> None:
    """Test tools have callbacks in Python, which run in the middle of the code under test."""

    def cost(threshold: int) -> int:
        window = Window(GrowingWindow(1 << 20), keep_delivered=True)
        before = gc.get_threshold()
        gc.callbacks.append(_on_garbage)
        gc.set_threshold(threshold)
        try:
            return lines_of(lambda: [window.add(Run.of(A, at, [b"x"])) for at in range(1, 50)])
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(_on_garbage)

    assert cost(1) == cost(1 << 30)


def _on_garbage(_phase: str, info: dict[str, int]) -> None:
    info.clear()


@pytest.mark.behaviour("N7-05")
def test_receiving_costs_the_same_however_much_is_kept() -> None:
    def cost(kept: int) -> int:
        group = nakack(2)
        for seqno in range(1, kept + 1):
            group["b"].receive(_datagram(seqno), group.now_ns)
        datagram = _datagram(kept + 1)
        return lines_of(lambda: group["b"].receive(datagram, group.now_ns))

    assert cost(20) == cost(2_000)


def _datagram(seqno: int) -> bytes:
    group = nakack(1)
    group["a"].outbound.window.skip_to(seqno - 1)
    (transmit,) = group.send("a", b"x").transmits
    return transmit.datagram


# On sending


@pytest.mark.behaviour("N7-06", "N7-07")
def test_what_is_sent_is_in_the_table_before_it_is_on_the_wire() -> None:
    """A nak that is repeated at once is answered."""
    group = nakack(2)
    ready = group.send("a", b"x")
    assert [frame for _, frame in frames(ready)] == [Data(Run.of(A, 1, [b"x"], 0, 1, group.now_ns))]
    assert group["a"].outbound.window.high == 1
    ready = group.receive("a", B, Nak(A, ((1, 1),)))
    ((to, repair),) = frames(ready)
    assert to == B
    assert isinstance(repair, Data)
    assert repair.repair
    assert repair.run.messages() == [b"x"]


@pytest.mark.behaviour("N7-08", "N7-16")
def test_sending_moves_high_and_only_handing_out_moves_delivered() -> None:
    group = nakack(2, unread_limit=1)
    singles(group, "a", [1, 2, 3])
    assert group["a"].digest()[A] == Marks(0, 1, 3)
    group.consumed("a", 1)
    assert group["a"].digest()[A] == Marks(0, 2, 3)
    assert group.messages("a", "a") == numbers(1, 2)


@pytest.mark.behaviour("N7-09")
def test_the_own_message_that_comes_back_adds_nothing() -> None:
    group = nakack(2)
    ready = group.send("a", b"x")
    before = group["a"].snapshot()
    group.step(A, lambda m: m.receive(ready.transmits[0].datagram, group.now_ns))
    assert group["a"].snapshot() == before
    assert group.messages("a", "a") == [b"x"]
    assert group["a"].counters["dropped.own"] == 1


@pytest.mark.behaviour("N7-09")
def test_a_repair_of_the_own_stream_by_somebody_else_adds_nothing() -> None:
    group = nakack(2)
    group.send("a", b"x")
    before = group["a"].digest()
    group.receive("a", B, data(A, 2, repair=True))
    assert group["a"].digest() == before
    assert group["a"].counters["dropped.origin"] == 1


# On reception


@pytest.mark.behaviour("N7-10", "N7-13")
def test_what_is_here_already_changes_nothing() -> None:
    """Stored, delivered and retained, or delivered and purged."""
    group = nakack(2)
    group.receive("b", A, data(A, 1, *numbers(1, 4)))
    group.receive("b", A, data(A, 6))
    window = group["b"].inbound[A].window
    assert window is not None
    window.purge(2)
    before = window.snapshot()
    for seqno in (6, 4, 2):
        group.receive("b", A, data(A, seqno, b"another"))
    assert window.snapshot() == before
    assert group.messages("b", "a") == numbers(1, 4)
    counters = group["b"].counters
    assert (counters["dropped.duplicate"], counters["dropped.old"]) == (2, 1)


@pytest.mark.behaviour("N7-11", "N7-12")
def test_as_many_consecutive_messages_as_possible_are_passed_up() -> None:
    group = nakack(2)
    for seqno, delivered in ((1, 1), (3, 1), (4, 1), (6, 1), (2, 4), (5, 6)):
        group.receive("b", A, data(A, seqno))
        assert group["b"].digest()[A].delivered == delivered
    assert group.numbered("b", "a") == [(seqno, b"%d" % seqno) for seqno in range(1, 7)]


@pytest.mark.behaviour("N7-13", "N7-17")
def test_what_was_delivered_is_kept() -> None:
    group = nakack(2)
    group.receive("b", A, data(A, 1, *numbers(1, 5)))
    window = group["b"].inbound[A].window
    assert window is not None
    assert (window.marks, window.stored) == (Marks(0, 5, 5), 5)
    group.run_for(10 * 60 * SECOND)
    assert window.stored == 5, "time alone erases nothing"


@pytest.mark.behaviour("N7-14")
def test_discard_delivered_erases_at_receivers_and_not_at_the_origin() -> None:
    group = nakack(3, discard_delivered=True)
    group.lose_seqnos(2, to="c")
    singles(group, "a", [1, 2, 3])
    group.run_for(SECOND)
    for receiver in "bc":
        window = group[receiver].inbound[A].window
        assert window is not None
        assert (window.marks, window.stored) == (Marks(3, 3, 3), 0)
    assert group["a"].digest()[A] == Marks(0, 3, 3)
    assert group["a"].outbound.window.stored == 3
    assert group.messages("c", "a") == numbers(1, 3), "the origin repaired it"


@pytest.mark.behaviour("N7-15", "I-01", "I-02")
def test_the_example_of_1_2_4_5_7() -> None:
    """Nothing purged: low 0; nothing delivered: delivered 0, though 2 could be; high 7."""
    group = nakack(2, unread_limit=1)
    group.send("b", b"takes the only place")
    for seqno in (1, 2, 4, 5, 7):
        group.receive("b", A, data(A, seqno))
    window = group["b"].inbound[A].window
    assert window is not None
    assert (window.marks, window.deliverable) == (Marks(0, 0, 7), 2)
    assert window.missing() == [(3, 3), (6, 6)]
    group.consumed("b", 1)
    assert (window.marks, window.deliverable) == (Marks(0, 1, 7), 2)
    assert group.messages("b", "a") == [b"1"], "the next is 1, not 2"


@pytest.mark.behaviour("N7-16")
def test_a_digest_carries_what_the_application_took() -> None:
    group = nakack(2, unread_limit=3)
    group.receive("b", A, data(A, 1, *numbers(1, 9)))
    assert group["b"].digest()[A] == Marks(0, 3, 9)
    group.consumed("b", 2)
    assert group["b"].digest()[A] == Marks(0, 5, 9)


@pytest.mark.behaviour("P-10")
@pytest.mark.parametrize(("seqno", "taken"), [(101, False), (100, True), (5_000_000, False)])
def test_a_seqno_far_ahead_is_refused(seqno: int, taken: bool) -> None:
    """P-10, W-16: up to ``max_seqno_ahead`` above delivered; a refused seqno leaves no trace."""
    group = nakack(2, max_seqno_ahead=100, capacity=100)
    group.receive("b", A, data(A, seqno))
    assert group["b"].digest()[A] == Marks(0, 0, seqno if taken else 0)
    assert group["b"].counters.get("dropped.far", 0) == (not taken)


@pytest.mark.behaviour("P-10")
def test_an_announcement_far_ahead_asks_for_no_more_than_there_is_room_for() -> None:
    group = nakack(2, max_seqno_ahead=100, capacity=100, max_xmit_req_size=0)
    group.receive("b", A, Tail(A, 0, 1 << 40))
    group.run_for(10 * MS)
    assert [nak.ranges for nak in group.frames(Nak, "b")] == [((1, 100),)]


# Repairs


@pytest.mark.behaviour("N7-13")
def test_what_is_lost_is_asked_for_and_repaired_by_its_origin() -> None:
    group = nakack(3)
    group.lose_seqnos(2, to="b")
    singles(group, "a", [1, 2, 3])
    group.run_for(SECOND)
    assert group.messages("b", "a") == numbers(1, 3)
    assert group.frames(Nak, "b") == [Nak(A, ((2, 2),))]
    assert group.data("a", repair=True) == [(2, 2)]
    assert group.data("c", repair=True) == []


@pytest.mark.behaviour("N7-13")
def test_a_lost_end_is_repaired_without_new_traffic() -> None:
    """R-09, S-52: the origin announces it until it is stable."""
    group = nakack(2)
    group.lose_seqnos(*range(6, 11))
    singles(group, "a", range(1, 11))
    group.run_for(SECOND)
    assert group.messages("b", "a") == numbers(1, 10)


@pytest.mark.behaviour("N7-13")
def test_any_holder_repairs_a_message_whose_origin_has_crashed() -> None:
    """Before the view that excludes the origin: c lacks 2, only b has it."""
    group = nakack(3, xmit_from_random_member=True)
    group.lose_seqnos(2, to="c")
    singles(group, "a", [1, 2, 3])
    group.run_for(2 * MS)
    group.lose(by="a")
    group.lose(to="a")
    group.run_for(5 * SECOND)
    assert group.messages("c", "a") == numbers(1, 3)
    assert group.data("b", repair=True) == [(2, 2)]
    group.install(View.of(2, B, C))
    assert group.messages("b", "a") == group.messages("c", "a") == numbers(1, 3)


@pytest.mark.behaviour("N7-13")
def test_the_end_of_a_crashed_stream_is_found_by_a_stability_message() -> None:
    """R-09: c lacks the last message, its origin is silent; the coordinator announces it."""
    group = Group(3, profile="nakack", xmit_from_random_member=True)
    group.lose_seqnos(2, to="c")
    singles(group, "b", [1, 2])
    group.run_for(2 * MS)
    group.lose(Data, Tail, by="b")
    group.run_for(5 * SECOND)
    assert group.messages("c", "b") == numbers(1, 2)
    assert group.data("a", repair=True) == [(2, 2)]


@pytest.mark.behaviour("N7-13")
def test_a_holder_answers_only_for_what_it_holds() -> None:
    group = nakack(3)
    group.receive("b", A, data(A, 1, *numbers(1, 2)))
    group.receive("b", A, data(A, 4))
    ready = group.receive("b", C, Nak(A, ((1, 9),)))
    repairs = [frame for to, frame in frames(ready) if to == C]
    assert [(frame.run.first, frame.run.last) for frame in repairs if isinstance(frame, Data)] == [
        (1, 2),
        (4, 4),
    ]
    assert len(repairs) == len(frames(ready)) == 2, "nothing is gone only because it is not here"


@pytest.mark.behaviour("N7-13")
def test_a_repair_by_a_holder_is_the_message_of_its_origin() -> None:
    group = nakack(3)
    group.receive("c", B, Data(Run.of(A, 1, [b"x"]), True))
    assert group.numbered("c", "a") == [(1, b"x")]


@pytest.mark.behaviour("N7-14")
def test_without_the_delivered_messages_a_holder_drops_the_nak() -> None:
    group = nakack(3, discard_delivered=True)
    group.receive("b", A, data(A, 1))
    ready = group.receive("b", C, Nak(A, ((1, 1),)))
    assert ready.transmits == []
    assert group["b"].counters["dropped.not mine"] == 1


@pytest.mark.behaviour("N7-14")
def test_asking_any_member_and_discarding_do_not_go_together() -> None:
    with pytest.raises(
        ConfigError, match="xmit_from_random_member = True with discard_delivered = True"
    ):
        nakack(2, xmit_from_random_member=True, discard_delivered=True)


@pytest.mark.behaviour("N7-13")
def test_a_stranger_may_not_speak_for_an_origin() -> None:
    """Only repairs may come from another sender, and only from a member."""
    group = nakack(2)
    before = group["b"].digest()
    group.receive("b", C, Data(Run.of(A, 1, [b"x"]), True))
    group.receive("b", D, Data(Run.of(D, 1, [b"x"]), True))
    assert group["b"].digest() == before
    group = nakack(3)
    group.receive("b", C, Data(Run.of(A, 1, [b"x"]), False))
    assert group["b"].counters["dropped.origin"] == 1


# Bounded memory of retained messages


@pytest.mark.behaviour("N7-17", "P-13")
def test_what_is_kept_for_others_is_bounded_in_bytes() -> None:
    """The oldest delivered messages are shed, and no undelivered ones."""
    group = nakack(2, window_bytes="1KiB")
    for seqno in range(1, 101):
        group.receive("b", A, data(A, seqno, b"x" * 98))
    window = group["b"].inbound[A].window
    assert window is not None
    assert window.marks == Marks(90, 100, 100)
    assert window.stored_bytes <= 1024
    assert len(group.messages("b", "a")) == 100


@pytest.mark.behaviour("P-13")
def test_what_is_not_delivered_is_not_shed() -> None:
    group = nakack(2, window_bytes="1KiB")
    group.receive("b", A, data(A, 1, b"x" * 98))
    for seqno in range(3, 20):
        group.receive("b", A, data(A, seqno, b"x" * 98))
    window = group["b"].inbound[A].window
    assert window is not None
    assert window.marks == Marks(1, 1, 12), "1 went, 3 to 12 stayed"
    assert group["b"].counters["dropped.full"] == 7


@pytest.mark.behaviour("N7-17", "P-13")
def test_a_sender_waits_rather_than_purge_what_is_not_stable() -> None:
    """P-13: the table grows up to ``window_bytes``; the rest waits."""
    group = nakack(2, window_bytes="1KiB", stability_bytes="1MiB")
    group.lose(by="b")
    for _ in range(20):
        group.send("a", b"x" * 98)
    group.run_for(SECOND)
    assert group["a"].digest()[A] == Marks(0, 10, 10)
    assert len(group["a"].outbound.queue) == 10


# On SET_DIGEST


@pytest.mark.behaviour("N7-21")
def test_a_digest_without_a_view_opens_the_streams_that_wait() -> None:
    group = Group(3, start=False, profile="nakack")
    group.install(View.of(1, A, B, C), [C])
    group.receive("c", A, data(A, 6, *numbers(6, 8)))
    group.step(C, lambda m: m.set_digest({A: Marks(4, 6, 6)}, group.now_ns))
    assert group.messages("c", "a") == numbers(7, 8)
    assert group.events_of("c", Started) == [Started(A, 6)]
    assert B not in group["c"].digest(), "it was not in the digest"


@pytest.mark.behaviour("N7-22", "I-04")
@pytest.mark.parametrize("with_view", [True, False])
def test_what_a_digest_knows_beyond_delivered_is_a_gap(with_view: bool) -> None:
    """It is asked for once its grace is over; it does not move high."""
    group = Group(2, start=False, profile="nakack")
    digest = {A: Marks(3, 5, 8)}
    group.install(View.of(1, A, B), [B], digest=digest if with_view else None)
    if not with_view:
        group.step(B, lambda m: m.set_digest(digest, group.now_ns))
    assert group["b"].digest()[A] == Marks(5, 5, 5)
    group.run_for(10 * MS)
    assert group.frames(Nak, "b") == [Nak(A, ((6, 8),))]
    group.receive("b", A, Data(Run.of(A, 6, numbers(6, 8)), True))
    assert group.messages("b", "a") == numbers(6, 8)
    assert group["b"].inbound[A].loss_detector.due_ns is None


@pytest.mark.behaviour("N7-22", "I-04", "I-22")
def test_the_start_that_the_origin_tells_counts_more_than_the_hint_of_a_digest() -> None:
    group = Group(2, start=False, profile="nakack")
    group.install(View.of(1, A, B), [B], digest={A: Marks(3, 5, 8)})
    group.receive("b", A, Tail(A, 5, 8, 8, B.incarnation))
    group.run_for(SECOND)
    assert group.frames(Nak, "b") == []
    assert group["b"].digest()[A] == Marks(8, 8, 8)


@pytest.mark.behaviour("N7-22")
def test_what_a_digest_knows_and_nobody_has_any_more_is_not_waited_for() -> None:
    group = Group(2, start=False, profile="nakack")
    group.install(View.of(1, A, B), [B], digest={A: Marks(3, 5, 8)})
    group.receive("b", A, Gone(A, 7))
    assert group["b"].digest()[A] == Marks(7, 7, 7)
    assert group.events_of("b", Lost) == []
    group.run_for(10 * MS)
    assert group.frames(Nak, "b") == [Nak(A, ((8, 8),))]


@pytest.mark.behaviour("N7-22", "N7-23")
def test_a_digest_tells_an_open_stream_what_it_misses_and_moves_no_mark() -> None:
    """S-54: {2, 2} over {0, 0} asks for exactly 1 and 2."""
    group = nakack(2)
    group.step(B, lambda m: m.set_digest({A: Marks(0, 2, 2)}, group.now_ns))
    assert group["b"].digest()[A] == Marks(0, 0, 0)
    group.run_for(10 * MS)
    assert group.frames(Nak, "b") == [Nak(A, ((1, 2),))]


@pytest.mark.behaviour("N7-23")
def test_a_stream_that_a_digest_leaves_out_is_kept() -> None:
    """S-70."""
    group = nakack(3)
    group.receive("c", B, data(B, 1))
    group.step(C, lambda m: m.set_digest({A: Marks(0, 0, 0)}, group.now_ns))
    assert set(group["c"].digest()) == {A, B, C}
    assert group["c"].digest()[B] == Marks(0, 1, 1)


@pytest.mark.behaviour("N7-23")
def test_a_digest_may_name_a_stream_that_is_not_here() -> None:
    group = nakack(2)
    group.step(B, lambda m: m.set_digest({D: Marks(1, 2, 3)}, group.now_ns))
    assert set(group["b"].digest()) == {A, B}
    group.run_for(SECOND)
    assert group.sent == []


@pytest.mark.behaviour("N7-23")
def test_a_digest_of_the_own_stream_changes_nothing() -> None:
    group = nakack(2)
    group.step(B, lambda m: m.set_digest({B: Marks(7, 8, 9)}, group.now_ns))
    assert group["b"].digest()[B] == Marks(0, 0, 0)


# On a view


@pytest.mark.behaviour("I-22")
def test_a_joiner_starts_behind_what_was_sent_and_is_told_so_by_each_sender() -> None:
    """Retained messages are not for the joiner."""
    group = Group(3, start=False, profile="nakack")
    group.install(View.of(1, A, B), [A, B], digest={A: Marks(0, 0, 0), B: Marks(0, 0, 0)})
    singles(group, "a", range(1, 6))
    group.run_for(10 * MS)
    group.install(View.of(2, A, B, C))
    group.send("a", b"6")
    group.settle()
    assert group.numbered("c", "a") == [(6, b"6")]
    assert group.events_of("c", Started) == [Started(A, 5), Started(B, 0)]


@pytest.mark.behaviour("N7-13")
def test_the_random_member_is_drawn_from_all_others() -> None:
    """The origin among them; a nak without a repair goes to another holder the next time."""
    group = nakack(4, xmit_from_random_member=True)
    group.lose(Data, to="d")
    group.send("a", b"1")
    group.run_for(60 * SECOND)
    asked = {sent.to for sent in group.sent if isinstance(sent.frame, Nak) and sent.by == D}
    assert asked == {A, B, C}


@pytest.mark.behaviour("P-13")
def test_of_a_run_that_is_handed_out_in_parts_the_delivered_part_makes_room() -> None:
    """A reader of single messages must not make its window refuse what its sender may send."""
    window = Window(GrowingWindow(12), keep_delivered=True, max_bytes=1000)
    window.add(Run.of(A, 1, [b"x" * 198] * 4))
    assert [run.last for run in window.take(3)] == [3]
    assert window.evict_delivered(300) == 3
    assert window.add(Run.of(A, 6, [b"y" * 298])).accepted == 1
    window.check_invariants()
