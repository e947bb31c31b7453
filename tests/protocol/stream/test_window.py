"""The window, scenario by scenario: each test says which numbered behaviour it holds."""

import pytest

from gapless.identity import Marks
from gapless.protocol.stream.window import AddResult, FixedWindow, GrowingWindow, Window
from gapless.run import LENGTH_BYTES, Run
from gapless.wire.codec import SEQNO_MAX
from tests.support.windows import KINDS, ORIGIN, Maker, add, message, run, seqnos, span, stored


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Maker:
    return KINDS[request.param]


@pytest.fixture(params=[kind for kind in KINDS if "keep" in kind])
def make_keeping(request: pytest.FixtureRequest) -> Maker:
    return KINDS[request.param]


# Creation and adding


@pytest.mark.behaviour("N4-05")
@pytest.mark.parametrize("offset", [0, 1, 20, SEQNO_MAX - 1])
def test_s01_a_fresh_window_is_empty(make: Maker, offset: int) -> None:
    """S-01, N4-05: all marks equal the offset, the first acceptable seqno is offset+1."""
    window = make(offset=offset)
    assert window.marks == Marks(offset, offset, offset)
    assert (window.stored, window.stored_bytes, window.deliverable, window.has_next) == (
        0,
        0,
        offset,
        False,
    )
    assert window.get(0, offset + 10) == []
    assert window.take() == []
    assert window.missing() == []
    add(window, offset + 1)
    assert seqnos(window.take()) == [offset + 1]


@pytest.mark.behaviour("N4-08", "N7-10")
def test_s02_a_duplicate_changes_nothing(make: Maker) -> None:
    """S-02, N4-08, N7-10: the first value is kept."""
    window = make()
    add(window, 1)
    assert window.add(Run.of(ORIGIN, 1, [b"another"])) == AddResult(0, duplicate=1)
    assert window.stored == 1
    assert window.stored_bytes == len(message(1)) + LENGTH_BYTES
    assert stored(window) == [1]


def test_s03_at_or_below_the_offset_is_old(make: Maker) -> None:
    """S-03: refused, nothing stored."""
    window = make(offset=20)
    for seqno in (10, 20):
        assert window.add(run(seqno)) == AddResult(0, old=1)
    assert window.marks == Marks(20, 20, 20)
    assert window.stored == 0


def test_s04_sparse_adds_are_all_readable(make: Maker) -> None:
    """S-04."""
    window = make()
    add(window, 1, 5, 9, 10, 11, 19, 20, 29)
    assert window.stored == 8
    assert window.marks == Marks(0, 0, 29)
    assert [seqnos(window.get(seqno, seqno)) for seqno in (1, 5, 9, 10, 11, 19, 20, 29)] == [
        [1], [5], [9], [10], [11], [19], [20], [29],
    ]  # fmt: skip
    assert window.get(2, 4) == []


@pytest.mark.parametrize("order", [(1, 5, 9, 3), (9, 5, 3, 1), (5, 9, 1, 3), (3, 1, 9, 5)])
def test_the_order_of_arrival_does_not_matter(make: Maker, order: tuple[int, ...]) -> None:
    window = make()
    add(window, *order)
    assert stored(window) == [1, 3, 5, 9]
    assert window.high == 9


@pytest.mark.behaviour("N4-09")
def test_high_is_the_highest_accepted(make: Maker) -> None:
    """N4-09: on every successful add; a lower one does not move it."""
    window = make()
    add(window, 7)
    assert window.high == 7
    add(window, 3)
    assert window.high == 7
    window.add(run(5, 12))
    assert window.high == 12


# Partial overlaps, exact to the message


OVERLAPS: list[tuple[tuple[int, int], AddResult, list[int]]] = [
    ((1, 3), AddResult(1, duplicate=2), [1, 2, 3, 5, 6, 9]),
    ((2, 3), AddResult(0, duplicate=2), [2, 3, 5, 6, 9]),
    ((3, 5), AddResult(1, duplicate=2), [2, 3, 4, 5, 6, 9]),
    ((1, 9), AddResult(4, duplicate=5), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ((4, 4), AddResult(1), [2, 3, 4, 5, 6, 9]),
    ((4, 7), AddResult(2, duplicate=2), [2, 3, 4, 5, 6, 7, 9]),
    ((7, 8), AddResult(2), [2, 3, 5, 6, 7, 8, 9]),
    ((6, 10), AddResult(3, duplicate=2), [2, 3, 5, 6, 7, 8, 9, 10]),
    ((9, 11), AddResult(2, duplicate=1), [2, 3, 5, 6, 9, 10, 11]),
    ((10, 12), AddResult(3), [2, 3, 5, 6, 9, 10, 11, 12]),
    ((11, 14), AddResult(2, far=2), [2, 3, 5, 6, 9, 11, 12]),
    ((13, 14), AddResult(0, far=2), [2, 3, 5, 6, 9]),
    ((1, 14), AddResult(7, duplicate=5, far=2), span(1, 12)),
]


@pytest.mark.parametrize(
    ("bounds", "added", "now"), OVERLAPS, ids=[f"{bounds}" for bounds, _, _ in OVERLAPS]
)
def test_only_what_is_new_of_a_run_is_stored(
    make: Maker, bounds: tuple[int, int], added: AddResult, now: list[int]
) -> None:
    """Stored are 2..3, 5..6 and 9, the ceiling is 12."""
    window = make(12)
    for first, last in ((2, 3), (5, 6), (9, 9)):
        window.add(run(first, last))
    assert window.add(run(*bounds)) == added
    assert sum(added) == bounds[1] - bounds[0] + 1
    assert stored(window) == now
    assert window.high == now[-1]


def test_the_first_value_is_kept_where_a_run_overlaps(make: Maker) -> None:
    """S-02 to the message: only the gaps are filled from the later run."""
    window = make()
    add(window, 2, 4)
    window.add(Run.of(ORIGIN, 1, [b"A", b"B", b"C", b"D", b"E"]))
    assert [content for entry in window.runs for content in entry.messages()] == [
        b"A", message(2), b"C", message(4), b"E",
    ]  # fmt: skip


def test_old_new_and_far_in_one_run(make: Maker) -> None:
    window = make(4)
    window.add(run(1, 3))
    window.take()
    window.purge(3)
    assert window.add(run(2, 12)) == AddResult(4, old=2, far=5)
    assert window.marks == Marks(3, 3, 7)
    assert stored(window) == [4, 5, 6, 7]


@pytest.mark.behaviour("N7-10")
def test_delivered_but_kept_is_a_duplicate_not_old(make: Maker) -> None:
    """N7-10: at or below delivered changes nothing; only the name of the refusal differs."""
    window = make()
    window.add(run(1, 4))
    window.take(3)
    expected = AddResult(0, duplicate=4) if make.keep else AddResult(0, duplicate=1, old=3)
    assert window.add(run(1, 4)) == expected
    assert seqnos(window.take()) == [4]


# The ceiling


@pytest.mark.behaviour("I-05", "N4-07")
@pytest.mark.parametrize("capacity", [1, 2, 3, 10])
@pytest.mark.parametrize("offset", [0, 5])
def test_i05_exactly_capacity_messages_are_accepted(
    make: Maker, capacity: int, offset: int
) -> None:
    """I-05, N4-07, S-20: low+1 .. low+capacity, neither more nor less."""
    window = make(capacity, offset=offset)
    assert window.ceiling == offset + capacity
    assert window.room() == capacity
    assert window.add(run(offset + capacity + 1)) == AddResult(0, far=1)
    assert window.add(run(offset + capacity)) == AddResult(1)
    assert window.add(run(offset)) == AddResult(0, old=1)
    assert window.add(run(offset + 1, offset + capacity + 1)) == AddResult(
        capacity - 1, duplicate=1, far=1
    )
    assert stored(window) == span(offset + 1, offset + capacity)
    assert window.room() == 0


@pytest.mark.behaviour("N4-10")
def test_n4_10_a_refused_message_does_not_move_high(make: Maker) -> None:
    """N4-10: or it would be asked for although there is no slot for it."""
    window = make(10)
    add(window, 1, 3)
    for refused in (run(11), run(500, 600), run(3), run(SEQNO_MAX)):
        window.add(refused)
        assert window.high == 3
        assert window.missing() == [(2, 2)]


def test_s21_a_batch_into_a_full_window(make: Maker) -> None:
    """S-21: after five were taken exactly 11..15 are accepted."""
    window = make(10)
    window.add(run(1, 10))
    assert window.add(run(11, 15)) == AddResult(0, far=5)
    assert window.add(run(1, 15)) == AddResult(0, duplicate=10, far=5)
    window.take(5)
    window.purge(5)
    assert window.add(run(5, 15)) == AddResult(5, duplicate=5, old=1)
    assert stored(window) == span(6, 15)


@pytest.mark.behaviour("N4-12", "N4-14")
def test_s22_s24_s25_each_slot_that_gets_free_is_room_for_one(make: Maker) -> None:
    """S-22, S-24, S-25, N4-12, N4-14: the window says how many may be sent; the sender waits."""
    window = make(10)
    window.add(run(1, 10))
    assert window.room() == 0
    window.take(1)
    window.purge(1)
    assert window.room() == 1
    assert window.add(run(11, 14)) == AddResult(1, far=3)
    assert stored(window) == span(2, 11)
    window.purge(5, force=True)
    assert window.room() == 4
    assert window.add(run(12, 14)) == AddResult(3)
    assert window.room() == 1
    assert stored(window) == span(6, 14)


@pytest.mark.behaviour("N4-02")
def test_a_kept_window_gets_room_by_purging_only() -> None:
    """N4-02: at a sender low is what all acknowledged; own delivery makes no room."""
    window = Window(FixedWindow(4), keep_delivered=True)
    window.add(run(1, 4))
    window.take()
    assert window.room() == 0
    assert window.add(run(5)) == AddResult(0, far=1)
    window.purge(3)
    assert window.room() == 3


@pytest.mark.behaviour("N4-40")
def test_a_growing_window_holds_more_than_the_limit_ahead() -> None:
    """N4-40: the limit counts from delivered, so retained messages are not limited."""
    window = Window(GrowingWindow(4), keep_delivered=True)
    for first in range(1, 100, 4):
        assert window.add(run(first, first + 3)) == AddResult(4)
        window.take()
    assert window.marks == Marks(0, 100, 100)
    assert stored(window) == span(1, 100)


@pytest.mark.behaviour("P-10")
def test_p10_a_far_seqno_costs_nothing(make: Maker) -> None:
    """P-10, W-16: refused and counted, in the growing window too."""
    window = make(1000)
    before = window.snapshot()
    assert window.add(run(1001)) == AddResult(0, far=1)
    assert window.add(run(5_000_000)) == AddResult(0, far=1)
    assert window.add(run(SEQNO_MAX)) == AddResult(0, far=1)
    assert window.snapshot() == before
    assert window.missing() == []


def test_s28_near_the_largest_seqno(make: Maker) -> None:
    """S-28, W-12: numbers do not wrap; the last 20 messages of a stream are like any others."""
    window = make(16, offset=SEQNO_MAX - 20)
    taken: list[int] = []
    for seqno in span(SEQNO_MAX - 19, SEQNO_MAX):
        assert window.add(run(seqno)) == AddResult(1)
        taken += seqnos(window.take())
        window.purge(seqno)
    assert taken == span(SEQNO_MAX - 19, SEQNO_MAX)
    assert window.marks == Marks(SEQNO_MAX, SEQNO_MAX, SEQNO_MAX)


# Taking


@pytest.mark.behaviour("I-01", "I-02", "N7-15")
def test_i01_i02_n7_15_the_example_of_the_seed(make: Maker) -> None:
    """I-01, I-02, N7-15: with 1,2,4,5,7 low is 0, deliverable 2, high 7."""
    window = make()
    add(window, 1, 2, 4, 5, 7)
    assert window.marks == Marks(0, 0, 7)
    assert window.deliverable == 2
    assert window.missing() == [(3, 3), (6, 6)]


@pytest.mark.behaviour("N7-11", "N7-12", "N4-18")
def test_s05_a_gap_and_its_filling(make: Maker) -> None:
    """S-05, N7-11, N7-12, N4-18."""
    window = make()
    add(window, 1, 2, 4, 5, 6)
    assert seqnos(window.take()) == [1, 2]
    assert window.take() == []
    assert (window.missing(), window.has_next) == ([(3, 3)], False)
    add(window, 3)
    assert (window.missing(), window.has_next) == ([], True)
    assert seqnos(window.take()) == [3, 4, 5, 6]
    assert window.missing() == []
    assert window.marks == Marks(make.low(6), 6, 6)


def test_s06_s08_nothing_is_taken_over_a_gap_at_the_head(make: Maker) -> None:
    """S-06, S-08."""
    window = make()
    add(window, 2)
    assert window.take() == []
    assert window.take(10) == []
    assert window.marks == Marks(0, 0, 2)
    add(window, 1)
    assert seqnos(window.take()) == [1, 2]


def test_s07_taking_stops_at_the_limit(make: Maker) -> None:
    """S-07: 1..10 without 6, at most four."""
    window = make()
    window.add(run(1, 5))
    window.add(run(7, 10))
    assert seqnos(window.take(4)) == [1, 2, 3, 4]
    assert window.marks == Marks(make.low(4), 4, 10)
    assert window.stored == (9 if make.keep else 5)
    assert window.missing() == [(6, 6)]
    assert seqnos(window.take(4)) == [5]
    assert window.take(4) == []


@pytest.mark.parametrize("limit", [0, -1])
def test_taking_no_message_changes_nothing(make: Maker, limit: int) -> None:
    window = make()
    add(window, 1, 2)
    before = window.snapshot()
    assert window.take(limit) == []
    assert window.snapshot() == before


@pytest.mark.parametrize("size", [5, 180])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 29, 89, 90, 91, 180, 181])
def test_any_limit_hands_out_the_same_messages(make: Maker, limit: int, size: int) -> None:
    window = make(200)
    for first in range(1, 181, size):
        window.add(run(first, first + size - 1))
    taken: list[int] = []
    while part := seqnos(window.take(limit)):
        assert len(part) == min(limit, 180 - len(taken))
        taken += part
        assert stored(window) == span(window.low + 1, 180)
    assert taken == span(1, 180)


def test_a_large_run_can_be_taken_from_anywhere(make: Maker) -> None:
    for already in span(1, 179):
        window = make(200)
        window.add(run(1, 180))
        window.take(already)
        assert seqnos(window.take(1)) == [already + 1]
        assert stored(window) == span(window.low + 1, 180)


def test_whole_runs_are_handed_out_as_they_came(make: Maker) -> None:
    window = make()
    whole = run(1, 9)
    window.add(whole)
    assert window.take()[0] is whole


@pytest.mark.behaviour("N7-16")
def test_s15_deliverable_and_delivered(make: Maker) -> None:
    """S-15, N7-16."""
    window = make()
    window.add(run(1, 6))
    add(window, 8)
    pairs = [(window.delivered, window.deliverable)]
    window.take(4)
    pairs.append((window.delivered, window.deliverable))
    window.take()
    pairs.append((window.delivered, window.deliverable))
    add(window, 7)
    pairs.append((window.delivered, window.deliverable))
    assert pairs == [(0, 6), (4, 6), (6, 6), (6, 8)]


@pytest.mark.behaviour("N7-13", "N7-14", "N4-03")
def test_n7_13_n7_14_what_was_delivered_is_kept_or_let_go(make: Maker) -> None:
    """N7-13, N7-14, N4-03."""
    window = make()
    window.add(run(1, 5))
    window.take(3)
    assert stored(window) == (span(1, 5) if make.keep else [4, 5])
    assert seqnos(window.get(1, 3)) == ([1, 2, 3] if make.keep else [])


@pytest.mark.behaviour("N4-04")
def test_s19_a_stream_longer_than_its_window(make: Maker) -> None:
    """S-19, N4-04: capacity 16 at offset 5, twenty times around."""
    window = make(16, offset=5)
    taken: list[int] = []
    following = 6
    for step in range(320 // 8):
        window.add(run(following, following + 7))
        following += 8
        taken += seqnos(window.take(None if step % 3 else 5))
        window.purge(window.delivered)
        window.check_invariants()
    taken += seqnos(window.take())
    window.purge(window.delivered)
    assert taken == span(6, 325)
    assert window.marks == Marks(325, 325, 325)
    assert window.stored_bytes == 0


# Purging and skipping


def test_s11_delivered_but_kept(make_keeping: Maker) -> None:
    """S-11, W-05."""
    window = make_keeping()
    window.add(run(1, 50))
    window.take(15)
    assert window.purge(15) == 15
    add(window, 55)
    assert window.marks == Marks(15, 15, 55)
    assert window.stored == 36
    assert window.missing() == [(51, 54)]


@pytest.mark.behaviour("N7-19")
def test_s12_n7_19_purging_does_not_pass_delivered(make: Maker) -> None:
    """S-12, N7-19, W-07: undelivered messages are purged only by force."""
    window = make()
    window.add(run(1, 10))
    assert window.purge(5) == 0
    assert window.marks == Marks(0, 0, 10)
    assert window.purge(5, force=True) == 5
    assert window.marks == Marks(5, 5, 10)
    assert stored(window) == span(6, 10)


@pytest.mark.behaviour("I-06", "N7-18", "N4-24")
def test_i06_purging_includes_its_mark(make_keeping: Maker) -> None:
    """I-06, N7-18, N4-24: an acknowledgement of 4 says that 4 was delivered."""
    window = make_keeping()
    window.add(run(1, 10))
    window.take(7)
    assert window.purge(4) == 4
    assert window.low == 4
    assert stored(window) == span(5, 10)
    assert window.purge(100) == 3
    assert window.marks == Marks(7, 7, 10)


@pytest.mark.behaviour("N7-19", "N4-30")
def test_n7_19_an_older_purge_changes_nothing(make_keeping: Maker) -> None:
    """N7-19, N4-30: low never goes back, purging twice is purging once."""
    window = make_keeping()
    window.add(run(1, 10))
    window.take()
    window.purge(6)
    before = window.snapshot()
    for mark in (6, 5, 0, -3):
        assert window.purge(mark) == 0
        assert window.purge(mark, force=True) == 0
        assert window.snapshot() == before


def test_s14_purging_by_force_over_gaps(make: Maker) -> None:
    """S-14: the even numbers to 30; only what was stored is counted, and high limits the mark."""
    window = make()
    add(window, *range(2, 31, 2))
    assert window.purge(15, force=True) == 7
    assert window.marks == Marks(15, 15, 30)
    assert window.purge(99, force=True) == 8
    assert window.marks == Marks(30, 30, 30)
    assert (window.stored, window.stored_bytes) == (0, 0)


def test_purging_in_the_middle_of_a_run_keeps_the_rest(make_keeping: Maker) -> None:
    window = make_keeping()
    window.add(run(1, 10))
    window.take()
    for mark in (3, 4, 9):
        window.purge(mark)
        assert stored(window) == span(mark + 1, 10)
        assert seqnos(window.get(1, 10)) == span(mark + 1, 10)


@pytest.mark.behaviour("N4-03")
def test_a_receiver_purges_by_taking() -> None:
    """N4-03: low equals delivered, so there is nothing left to purge."""
    window = Window(FixedWindow(10))
    window.add(run(1, 3))
    window.take(2)
    assert window.purge(2) == 0
    assert window.marks == Marks(2, 2, 3)


@pytest.mark.behaviour("P-01")
def test_skipping_gives_up_what_is_missing_and_what_is_stored(make: Maker) -> None:
    """P-01: the origin says that nothing up to 6 exists any more."""
    window = make()
    add(window, 1, 2, 5, 6, 7)
    window.take()
    retained = 2 if make.keep else 0
    assert window.skip_to(6) == 2 + retained
    assert window.marks == Marks(6, 6, 7)
    assert stored(window) == [7]
    assert seqnos(window.take()) == [7]


def test_skipping_never_goes_back(make: Maker) -> None:
    window = make()
    window.add(run(1, 9))
    window.take(6)
    before = window.snapshot()
    for seqno in (6, 3, 0):
        assert window.skip_to(seqno) == 0
        assert window.snapshot() == before


def test_skipping_beyond_high_moves_every_mark(make: Maker) -> None:
    window = make(10)
    add(window, 3)
    assert window.skip_to(50) == 1
    assert window.marks == Marks(50, 50, 50)
    assert window.stored_bytes == 0
    assert window.ceiling == 60
    assert window.add(run(50, 51)) == AddResult(1, old=1)


def test_skipping_into_a_run_keeps_its_rest(make: Maker) -> None:
    window = make()
    window.add(run(3, 8))
    assert window.skip_to(5) == 3
    assert stored(window) == [6, 7, 8]
    assert seqnos(window.take()) == [6, 7, 8]
