"""The window's answers (missing, get), its bytes, its snapshots, and what its work costs."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gapless.errors import LocalProtocolError
from gapless.identity import Marks
from gapless.protocol.stream.window import (
    AddResult,
    FixedWindow,
    GrowingWindow,
    Window,
    window_policy,
)
from gapless.run import LENGTH_BYTES, Run
from gapless.wire.codec import SEQNO_MAX
from tests.support.windows import KINDS, ORIGIN, Maker, add, run, seqnos, sized, span, stored


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Maker:
    return KINDS[request.param]


@pytest.fixture(params=[kind for kind in KINDS if "keep" in kind])
def make_keeping(request: pytest.FixtureRequest) -> Maker:
    return KINDS[request.param]


# Missing


def test_s16_the_missing_ranges(make: Maker) -> None:
    """S-16."""
    window = make()
    add(window, 2, 4, 6, 8)
    assert window.missing() == [(1, 1), (3, 3), (5, 5), (7, 7)]
    only_8, only_1 = make(), make()
    add(only_8, 8)
    assert only_8.missing() == [(1, 7)]
    add(only_1, 1)
    assert only_1.missing() == []


def test_missing_starts_behind_delivered(make: Maker) -> None:
    window = make()
    add(window, 1, 2, 4, 7)
    window.take()
    assert window.missing() == [(3, 3), (5, 6)]
    window.skip_to(5)
    assert window.missing() == [(6, 6)]


def test_s17_the_limit_counts_ranges(make: Maker) -> None:
    """S-17, W-11: every other one of 1..50 is there; the lowest ranges come first."""
    window = make()
    add(window, *range(2, 51, 2))
    assert window.missing(limit=10) == [(seqno, seqno) for seqno in range(1, 20, 2)]
    assert len(window.missing(limit=200)) == 25
    assert window.missing(limit=1) == [(1, 1)]
    assert window.missing(limit=0) == []


def test_s18_a_million_missing_are_one_range() -> None:
    """S-18."""
    window = Window(GrowingWindow(2_000_000))
    add(window, 1_000_001)
    assert window.missing() == [(1, 1_000_000)]


def test_missing_up_to_what_was_announced(make: Maker) -> None:
    """R-09: an announced high reveals a lost tail; naks never go beyond the ceiling."""
    window = make(10)
    add(window, 1, 3)
    assert window.missing(upto=3) == [(2, 2)]
    assert window.missing(upto=2) == [(2, 2)]
    assert window.missing(upto=6) == [(2, 2), (4, 6)]
    assert window.missing(upto=10) == [(2, 2), (4, 10)]
    assert window.missing(upto=11) == [(2, 2), (4, 10)]
    assert window.missing(upto=SEQNO_MAX) == [(2, 2), (4, 10)]
    assert window.missing(upto=SEQNO_MAX, limit=1) == [(2, 2)]
    assert window.missing(upto=1) == []
    assert window.missing(upto=0) == []
    assert window.high == 3


# Reading


def test_get_cuts_to_size(make: Maker) -> None:
    """W-08."""
    window = make()
    window.add(run(2, 5))
    window.add(run(8, 12))
    assert seqnos(window.get(1, 20)) == [*span(2, 5), *span(8, 12)]
    assert seqnos(window.get(4, 9)) == [4, 5, 8, 9]
    assert seqnos(window.get(3, 4)) == [3, 4]
    assert window.get(6, 7) == []
    assert window.get(13, 99) == []
    assert window.get(-5, 1) == []


@pytest.mark.parametrize(("first", "last"), [(4, 3), (6, 5), (2, 0), (99, 98)])
def test_an_empty_range_has_nothing(make: Maker, first: int, last: int) -> None:
    window = make()
    window.add(run(2, 9))
    assert window.get(first, last) == []


@pytest.mark.behaviour("N4-33")
def test_n7_16_kept_messages_can_be_repaired_until_they_are_purged(make_keeping: Maker) -> None:
    """W-08, N4-33: delivered but not purged is there, purged is not."""
    window = make_keeping()
    window.add(run(1, 6))
    window.take(4)
    window.purge(2)
    assert seqnos(window.get(1, 6)) == [3, 4, 5, 6]


# Bytes


def test_what_is_stored_costs_messages_and_length_entries(make: Maker) -> None:
    window = make()
    window.add(sized(1, 10, 20))
    window.add(sized(4, 30))
    assert window.stored_bytes == 60
    assert window.room_bytes() is None
    window.add(sized(1, 2, 2, 5, 2))
    assert window.stored_bytes == 65
    window.take(1)
    assert window.stored_bytes == (65 if make.keep else 55)
    window.purge(1)
    assert window.stored_bytes == 55


@pytest.mark.behaviour("N4-41", "P-13")
def test_the_byte_limit_is_exact(make: Maker) -> None:
    """N4-41 and P-13: limited by bytes as well as by count."""
    window = make(max_bytes=100)
    assert window.add(sized(2, 60)) == AddResult(1)
    assert window.room_bytes() == 40
    assert window.add(sized(3, 41)) == AddResult(0, full=1)
    assert window.high == 2
    assert window.add(sized(3, 40)) == AddResult(1)
    assert window.room_bytes() == 0
    assert window.add(sized(4, 2)) == AddResult(0, full=1)
    assert window.marks == Marks(0, 0, 3)


def test_bytes_are_given_from_the_front_of_a_run(make: Maker) -> None:
    window = make(max_bytes=100)
    assert window.add(sized(2, 50, 40, 20, 5)) == AddResult(2, full=2)
    assert window.high == 3
    assert window.stored_bytes == 90


def test_behind_the_first_message_that_does_not_fit_the_run_is_refused(make: Maker) -> None:
    """A later stretch of the same run must not take the bytes that the earlier one needs."""
    window = make(max_bytes=100)
    window.add(sized(4, 60))
    assert window.add(sized(2, 30, 20, 1 + LENGTH_BYTES, 5)) == AddResult(1, duplicate=1, full=2)
    assert window.stored_bytes == 90
    assert [entry.first for entry in window.runs] == [2, 4]


def test_a_run_next_in_line_is_taken_whatever_its_bytes(make: Maker) -> None:
    """A refusal would stop the stream for ever: only its arrival releases the others."""
    window = make(max_bytes=100)
    window.add(sized(2, 100))
    assert window.add(sized(3, 2)) == AddResult(0, full=1)
    assert window.add(sized(1, 70)) == AddResult(1)
    assert window.stored_bytes == 170
    assert window.room_bytes() == 0
    assert [entry.first for entry in window.take()] == [1, 2]
    window.purge(2)
    assert window.stored_bytes == 0


def test_a_run_next_in_line_is_taken_into_an_empty_window(make: Maker) -> None:
    window = make(max_bytes=10)
    assert window.add(sized(1, 50, 50)) == AddResult(2)
    assert window.add(sized(3, 2)) == AddResult(0, full=1)


def test_next_in_line_counts_from_delivered(make: Maker) -> None:
    """What waits to be taken is not handed out at once, so what follows it has to fit."""
    window = make(max_bytes=100)
    window.add(sized(1, 90))
    assert window.add(sized(2, 20)) == AddResult(0, full=1)
    window.take()
    assert window.add(sized(2, 20)) == AddResult(1)


def test_the_end_of_an_old_run_can_be_next_in_line(make: Maker) -> None:
    window = make(max_bytes=100)
    window.add(sized(1, 10, 10))
    window.take()
    window.purge(2)
    window.add(sized(4, 100))
    assert window.add(sized(1, 10, 10, 50, 7)) == AddResult(1, duplicate=1, old=2)
    assert [entry.first for entry in window.take()] == [3, 4]


def test_bytes_are_freed_at_once(make: Maker) -> None:
    """An erased run is freed even while the window still has others."""
    window = make(1000)
    payloads = [bytes(1000) for _ in range(50)]
    baseline = sys.getrefcount(payloads[0])
    for seqno, payload in enumerate(payloads, start=1):
        window.add(Run.of(ORIGIN, seqno, [payload]))
    references = [sys.getrefcount(payload) for payload in payloads]
    window.take(30)
    window.purge(30)
    now = [sys.getrefcount(payload) for payload in payloads]
    assert now[:30] == [count - 1 for count in references[:30]] or now[:30] == [baseline] * 30
    assert now[30:] == references[30:]


# The whole state


def test_a_snapshot_brings_everything_back(make: Maker) -> None:
    window = make(50, max_bytes=10_000)
    window.add(run(1, 5))
    window.add(run(8, 20))
    window.take(3)
    window.purge(2)
    snapshot = window.snapshot()
    marks, content, used_bytes = window.marks, stored(window), window.stored_bytes

    window.add(run(6, 7))
    window.take()
    window.skip_to(30)
    assert window.snapshot() != snapshot

    for copy in (window, make(50)):
        copy.restore(snapshot)
        copy.check_invariants()
        assert (copy.marks, stored(copy), copy.stored_bytes, copy.max_bytes) == (
            marks,
            content,
            used_bytes,
            10_000,
        )
        assert copy.snapshot() == snapshot
        assert hash(copy.snapshot()) == hash(snapshot)
        copy.add(run(6, 7))
        assert seqnos(copy.take()) == span(4, 20)


def test_a_window_can_go_back_to_its_own_snapshot(make: Maker) -> None:
    window = make()
    add(window, 1, 2, 3, 10)
    snapshot = window.snapshot()
    window.take()
    window.purge(3)
    assert stored(window) == [10]
    window.restore(snapshot)
    assert stored(window) == [1, 2, 3, 10]
    assert seqnos(window.take()) == [1, 2, 3]


def test_a_restored_window_does_not_write_into_the_snapshot(make: Maker) -> None:
    window = make()
    window.add(run(1, 5))
    snapshot = window.snapshot()
    other = make()
    other.restore(snapshot)
    other.take()
    other.add(run(6))
    assert stored(window) == span(1, 5)
    assert window.snapshot() == snapshot


def test_s30_the_lists_are_cut_and_the_content_stays(make: Maker) -> None:
    """S-30: after many messages the bookkeeping is as small as the content."""
    window = make(1000)
    for seqno in span(1, 5000):
        window.add(run(seqno))
        if seqno > 100:
            window.take(1)
            window.purge(window.delivered)
        if seqno % 500 == 0:
            assert stored(window) == span(window.delivered + 1, seqno)
        assert len(window._runs) <= 2 * window.stored + 64
        assert len(window._runs) == len(window._firsts)


# Cost: counted in work, not in time


def opcodes(work: Callable[[], object]) -> int:
    """Count the steps of the interpreter that ``work`` takes."""
    steps = 0

    def count(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    # Hypothesis hangs a callback on the garbage collector, whose steps would be counted too.
    gc.disable()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


def filled(make: Maker, runs: int) -> Window:
    """A window with ``runs`` runs of two messages, and a hole of three behind each."""
    window = make(10 * runs + 1000)
    for number in range(runs):
        window.add(run(5 * number + 2, 5 * number + 3))
    return window


WORK: dict[str, Callable[[Window], object]] = {
    "append": lambda window: window.add(run(window.high + 1, window.high + 3)),
    "append behind a gap": lambda window: window.add(run(window.high + 7, window.high + 9)),
    "fill a gap in the middle": lambda window: window.add(
        run(window.high // 2 // 5 * 5 + 4, window.high // 2 // 5 * 5 + 6)
    ),
    "fill the first gap": lambda window: window.add(run(1)),
    "overlap": lambda window: window.add(
        run(window.high // 2 // 5 * 5 + 1, window.high // 2 // 5 * 5 + 6)
    ),
    "duplicate": lambda window: window.add(run(window.high)),
    "refuse": lambda window: window.add(run(window.ceiling + 1)),
    "get": lambda window: window.get(window.high // 2 // 5 * 5 + 2, window.high // 2 // 5 * 5 + 3),
    "first missing": lambda window: window.missing(limit=3),
    "skip": lambda window: window.skip_to(8),
}


@pytest.mark.behaviour("N7-05")
@pytest.mark.parametrize("what", WORK)
def test_n7_05_the_cost_does_not_depend_on_what_is_stored(make: Maker, what: str) -> None:
    """N7-05: ten runs or ten thousand, the same number of steps."""
    few, many = filled(make, 10), filled(make, 10_000)
    assert opcodes(lambda: WORK[what](few)) == opcodes(lambda: WORK[what](many))


@pytest.mark.behaviour("N7-05")
@pytest.mark.parametrize("what", ["missing", "take", "deliverable"])
def test_n7_05_the_cost_does_not_depend_on_what_was_delivered(
    make_keeping: Maker, what: str
) -> None:
    """N7-05: messages retained for repairs do not slow arriving ones."""

    def work(runs: int) -> Callable[[], object]:
        window = make_keeping(10 * runs)
        for seqno in span(1, runs):
            window.add(run(seqno))
        window.take()
        window.add(run(runs + 1))
        window.add(run(runs + 5))
        works: dict[str, Callable[[], object]] = {
            "missing": window.missing,
            "take": window.take,
            "deliverable": lambda: window.deliverable,
        }
        return works[what]

    assert opcodes(work(10)) == opcodes(work(5000))


def test_a_run_costs_the_same_whatever_its_number_of_messages(make: Maker) -> None:
    def work(count: int) -> Callable[[], object]:
        window, fresh = make(10_000), run(1, count)
        return lambda: (window.add(fresh), window.take())

    assert opcodes(work(1)) == opcodes(work(5000))


def test_a_large_run_can_be_taken_message_by_message(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads of length tables grow like n log n, not like n squared.

    A datagram of 30,000 empty messages must not stop a member that takes one at a time.
    """
    read = 0
    message_lengths = Run.message_lengths

    def counting(self: Run) -> tuple[int, ...]:
        nonlocal read
        read += self.count
        return message_lengths(self)

    monkeypatch.setattr(Run, "message_lengths", counting)
    window, count = make(5000), 4096
    window.add(Run.of(ORIGIN, 1, [b""] * count))
    for seqno in span(1, count):
        assert [entry.first for entry in window.take(1)] == [seqno]
        window.purge(seqno)
    assert window.marks == Marks(count, count, count)
    assert read < 40 * count


def test_more_work_counts_as_more() -> None:
    """The counter itself: if it counted nothing, the tests above would hold for anything."""
    few, many = (
        opcodes(lambda: [number + 1 for number in range(10)]),
        opcodes(lambda: [n + 1 for n in range(90)]),
    )
    assert 10 < few < many - 80


# Policies by name


def test_policies_by_name() -> None:
    assert window_policy("fixed", 5, 7) == FixedWindow(5)
    assert window_policy("growing", 5, 7) == GrowingWindow(7)
    with pytest.raises(LocalProtocolError, match="'round' is not one of: fixed, growing"):
        window_policy("round", 5, 7)


def test_the_ceilings_count_from_different_marks() -> None:
    assert FixedWindow(10).ceiling(low=3, delivered=7) == 13
    assert GrowingWindow(10).ceiling(low=3, delivered=7) == 17


def test_n4_01_a_capacity_is_for_life() -> None:
    with pytest.raises(AttributeError):
        FixedWindow(10).capacity = 20  # type: ignore[misc]
