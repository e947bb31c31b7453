"""Every message is checked: lost, repeated, out of order, late, or before a newcomer had joined."""

from __future__ import annotations

import pytest

from bench.peers.tally import HEAD_BYTES, Tally, greeting, numbered


@pytest.mark.parametrize("size_bytes", [HEAD_BYTES, 100, 101])
@pytest.mark.parametrize("as_run", [True, False])
def test_what_is_wrong_is_seen(size_bytes: int, as_run: bool) -> None:
    one, two, three, four, five = numbered(0, 5, size_bytes, sender=1, turn=7)
    tally = Tally(2)
    tally.begin(7, size_bytes)

    def take(*messages: bytes) -> None:
        if as_run:
            tally.take_run(1, b"".join(messages))
        else:
            for message in messages:
                tally.take(message)

    take(one, two)
    assert (tally.count, tally.lost([0, 2], [1]), tally.lost([0, 5], [1])) == (2, 0, 3)
    assert tally.first_ns > 0
    take(five)
    assert (tally.lost([0, 5], [1]), tally.out_of_order, tally.duplicated) == (2, 0, 0)
    take(three, three)
    assert (tally.lost([0, 5], [1]), tally.out_of_order, tally.duplicated) == (1, 1, 1)
    take(four)
    assert (tally.lost([0, 5], [1]), tally.out_of_order, tally.duplicated, tally.count) == (
        0,
        2,
        1,
        6,
    )


def test_what_belongs_to_another_round_does_not_count() -> None:
    tally = Tally(2)
    tally.begin(3, 10)
    for message in numbered(0, 4, 10, sender=0, turn=2):
        tally.take(message)
    tally.take_run(0, b"".join(numbered(4, 4, 10, sender=0, turn=2)))
    assert (tally.count, tally.late, tally.lost([0, 0], [0])) == (0, 5, 0)


def test_greetings_are_remembered_and_not_counted() -> None:
    tally = Tally(3)
    tally.begin(1, 10)
    tally.take(greeting(2))
    assert (tally.greeted, tally.count, tally.late) == ({2}, 0, 0)


def test_a_newcomer_starts_anywhere_and_has_no_gap_from_there() -> None:
    tally = Tally(2, joins_late=True)
    tally.begin(1, 10)
    messages = numbered(0, 20, 10, sender=1, turn=1)
    assert tally.lost([0, 20], [1]) == 0
    tally.take_run(1, b"".join(messages[10:12]))
    tally.take(messages[14])
    assert (tally.count, tally.duplicated, tally.lost([0, 20], [1])) == (3, 0, 7)


def test_a_slow_one_takes_its_time() -> None:
    tally = Tally(1)
    tally.begin(1, 10, slow_per_s=1000.0)
    begun_ns = 0
    for message in numbered(0, 20, 10, sender=0, turn=1):
        tally.take(message)
        begun_ns = begun_ns or tally.first_ns
    assert tally.count == 20
    import time

    assert time.monotonic_ns() - begun_ns >= 19_000_000
