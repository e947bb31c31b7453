"""Append, commit, read back."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from gapless.errors import LocalProtocolError
from gapless.protocol.ready import UNICAST, Delivery
from gapless.run import ACKED, Run
from gapless.spool import (
    MESSAGE,
    RUN,
    SpoolGap,
    SpoolLocked,
    SpoolMismatch,
    SpoolReader,
    SpoolWriter,
)
from tests.support.deliveries import GROUP, A, B, expected, opened, pieces, rows_of, run

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_committed_is_read(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(run(A, 1, 10), name="alpha")
        spool.append(run(B, 100, 104))
        assert spool.commit() == {A: 10, B: 104}
        view = SpoolReader(tmp_path)
        assert view.low() == {"a1.5": 0, "b2.7": 99}
        assert view.high() == {"a1.5": 10, "b2.7": 104}
        assert view.names() == {"a1.5": "alpha"}
        assert rows_of(view) == {"a1.5": expected(A, 1, 10), "b2.7": expected(B, 100, 104)}


def test_a_hole_of_more_messages_than_a_record_can_count(tmp_path: Path) -> None:
    last = 3 + 2**33
    with opened(tmp_path) as spool:
        spool.append(run(A, 1, 2))
        spool.append_lost(A, 3, last)
        spool.append(run(A, last + 1, last + 1))
        assert spool.commit() == {A: last + 1}
    with opened(tmp_path) as spool:
        assert spool.marks == {A: last + 1}
    view = SpoolReader(tmp_path)
    assert sum(hole.last - hole.first + 1 for hole in view.lost()) == last - 2
    assert rows_of(view) == {"a1.5": [*expected(A, 1, 2), *expected(A, last + 1, last + 1)]}


def test_a_sender_may_say_any_time(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(run(A, 1, 1, sent_ns=2**64 - 1))
        assert spool.commit() == {A: 1}
    assert rows_of(SpoolReader(tmp_path)) == {"a1.5": expected(A, 1, 1)}


def test_what_is_not_committed_is_not_seen(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(run(A, 1, 10))
        spool.commit()
        view = SpoolReader(tmp_path)
        view.refresh()
        spool.append(run(A, 11, 20))
        view.refresh()
        assert view.high() == {"a1.5": 10}
        spool.commit()
        assert view.high() == {"a1.5": 10}, "a view changes when it is refreshed, and only then"
        view.refresh()
        assert rows_of(view) == {"a1.5": expected(A, 1, 20)}


def test_fields_of_a_run_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(
            run(A, 1, 3, flags=ACKED, view=9, sent_ns=123), name="alpha", collected_ns=10**18
        )
        spool.commit()
    view = SpoolReader(tmp_path)
    (record,) = view.records(view.slices({}, view.high()))
    assert (record.kind, record.flags, record.view, record.sent_ns, record.name) == (
        RUN,
        ACKED,
        9,
        123,
        "alpha",
    )
    assert (record.origin, record.first, record.last, record.collected_ns) == (A, 1, 3, 10**18)


def test_a_message_in_pieces_belongs_to_its_last_seqno(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(run(A, 1, 2))
        spool.append(pieces(A, 3, 9))
        spool.append(run(A, 10, 12))
        spool.commit()
    view = SpoolReader(tmp_path)
    whole = expected(A, 9, 9, 70_000)
    assert rows_of(view) == {"a1.5": [*expected(A, 1, 2), *whole, *expected(A, 10, 12)]}
    assert rows_of(view, {"a1.5": 5}) == {"a1.5": [*whole, *expected(A, 10, 12)]}
    assert rows_of(view, {}, {"a1.5": 5}) == {"a1.5": expected(A, 1, 2)}
    assert rows_of(view, {"a1.5": 4}, {"a1.5": 8}) == {}
    assert [record.kind for record in view.records(view.slices({}, view.high()))] == [
        RUN,
        MESSAGE,
        RUN,
    ]


class Whole:
    """A message in pieces that knows more than its bytes."""

    payload, flags, view, sent_ns = b"whole", ACKED, 4, 77


def test_a_message_in_pieces_may_know_its_fields(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(Delivery(A, 1, 3, Whole()))  # type: ignore[arg-type]
        spool.append(Delivery(A, 4, 6, b"plain"), view=8)
        spool.commit()
    view = SpoolReader(tmp_path)
    found = [
        (each.flags, each.view, each.sent_ns) for each in view.records(view.slices({}, view.high()))
    ]
    assert found == [(ACKED, 4, 77), (0, 8, 0)]


def test_what_is_there_already_is_left_out(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(run(A, 1, 10))
        spool.commit()
        spool.append(run(A, 1, 10))
        spool.append(run(A, 6, 15))
        spool.append(run(A, 14, 15))
        assert spool.commit() == {A: 15}
    assert rows_of(SpoolReader(tmp_path)) == {"a1.5": expected(A, 1, 15)}


def test_a_gap_is_refused_until_it_is_said_to_be_lost(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(run(A, 1, 3))
        with pytest.raises(SpoolGap, match=r"a1\.5: 7\.\.9 does not follow 3; append 4\.\.6 first"):
            spool.append(run(A, 7, 9))
        with pytest.raises(SpoolGap, match=r"4\.\.4 is missing"):
            spool.append_lost(A, 5, 6)
        spool.append_lost(A, 2, 6)
        spool.append(run(A, 7, 9))
        assert spool.commit() == {A: 9}
    view = SpoolReader(tmp_path)
    assert rows_of(view) == {"a1.5": [*expected(A, 1, 3), *expected(A, 7, 9)]}
    assert [tuple(hole) for hole in view.lost()] == [("a1.5", 4, 6, "lost")]
    assert rows_of(view, {"a1.5": 3}, {"a1.5": 6}) == {}


def test_only_messages_to_the_group_are_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        one = Run.of(A, 1, [b"to you"])
        with pytest.raises(LocalProtocolError, match="messages to the group"):
            spool.append(Delivery(A, 1, 1, one, kind=UNICAST, epoch=3))
        assert spool.commit() == {}


def test_marks_blob_and_names_outlast_the_writer(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=2000) as spool:
        for at in range(20):
            spool.append(run(A, 1 + at * 10, 10 + at * 10), name="alpha")
            spool.blob = b"state %d" % at
            spool.commit()
    with opened(tmp_path) as spool:
        assert (spool.marks, spool.blob) == ({A: 200}, b"state 19")
        assert spool.recovered.truncated_bytes == 0
        spool.append(run(A, 191, 210))
        assert spool.commit() == {A: 210}
    view = SpoolReader(tmp_path)
    assert len(view.segments()) > 3
    assert rows_of(view) == {"a1.5": expected(A, 1, 210)}
    assert view.names() == {"a1.5": "alpha"}


def test_slices_are_one_per_segment_and_can_be_pickled(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=4000) as spool:
        for at in range(20):
            spool.append(run(A, 1 + at * 10, 10 + at * 10))
            spool.append(run(B, 1 + at * 10, 10 + at * 10))
            spool.commit()
    view = SpoolReader(tmp_path)
    slices = view.slices({}, view.high())
    assert len(slices) == 2 * len(view.segments())
    assert sum(each.rows for each in slices) == 400
    again = SpoolReader(tmp_path)
    found = [
        record.first
        for each in pickle.loads(pickle.dumps(slices))
        for record in again.records(each)
    ]
    assert found == [*range(1, 201, 10)] * 2
    smaller = view.slices({}, view.high(), target_bytes=150)
    assert len(smaller) > 2 * len(slices)
    assert [record.first for each in smaller for record in view.records(each)] == found


def test_a_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    import os
    import socket

    with (
        opened(tmp_path),
        pytest.raises(SpoolLocked, match=f"pid {os.getpid()} on {socket.gethostname()}"),
    ):
        opened(tmp_path)
    opened(tmp_path).close()


def test_a_deleted_lock_is_taken_again(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        (tmp_path / "lock").unlink()
        spool.trim()
        with pytest.raises(SpoolLocked):
            opened(tmp_path)


def test_of_two_writers_without_a_lock_the_first_to_notice_stops(tmp_path: Path) -> None:
    first = opened(tmp_path)
    (tmp_path / "lock").unlink()
    with opened(tmp_path), pytest.raises(SpoolLocked):
        first.trim()
    first.close()


def test_a_spool_belongs_to_one_group_and_one_collector(tmp_path: Path) -> None:
    SpoolWriter.open(tmp_path, group=GROUP, name="store", node=0xABC).close()
    with pytest.raises(SpoolMismatch, match="spool of the group 'orders', not of 'other'"):
        SpoolWriter.open(tmp_path, group="other")
    with pytest.raises(SpoolMismatch, match="spool of the collector 'store', not of 'depot'"):
        SpoolWriter.open(tmp_path, group=GROUP, name="depot")
    with SpoolWriter.open(tmp_path, group=GROUP) as spool:
        assert (spool.info.name, spool.info.node) == ("store", 0xABC)


def test_where_no_spool_is_none_is_made_unasked(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(SpoolMismatch, match="there is no spool here"):
            SpoolWriter.open(path, group=GROUP, create=False)
        with pytest.raises(SpoolMismatch, match="there is no spool here"):
            SpoolReader(path)


def test_a_closed_spool_takes_nothing(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(run(A, 1, 5))
    spool.close()
    spool.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        spool.commit()
    assert rows_of(SpoolReader(tmp_path)) == {"a1.5": expected(A, 1, 5)}
