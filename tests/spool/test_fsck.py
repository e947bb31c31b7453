"""Check finds every flipped bit; repair names the lost messages, and leaves a valid spool."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from gapless.spool import SpoolCorrupt, SpoolError, SpoolLocked, SpoolMismatch, SpoolReader
from gapless.spool.format import HEADER_BYTES
from gapless.spool.fsck import check, repair
from gapless.spool.index import LAST, OFFSET, SIZE
from gapless.spool.segment_file import list_segments, segment_path
from tests.support.deliveries import A, B, Rows, expected, opened, pieces, rows_of, run


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Five segments of two streams, with a message in pieces and a loss that is recorded."""
    root = tmp_path / "spool"
    with opened(root, segment_bytes=3000) as writer:
        for at in range(20):
            writer.append(run(A, 1 + at * 5, 5 + at * 5), name="alpha")
            writer.append(run(B, 1 + at * 3, 3 + at * 3))
            writer.commit()
        writer.append(pieces(A, 101, 104, 500))
        writer.append_lost(A, 105, 110)
        writer.append(run(A, 111, 120))
        writer.commit()
    assert len(list_segments(root)) >= 3
    return root


def all_rows() -> Rows:
    whole = [*expected(A, 1, 100), *expected(A, 104, 104, 500), *expected(A, 111, 120)]
    return {"a1.5": whole, "b2.7": expected(B, 1, 60)}


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def record_of(root: Path, key: str, seqno: int) -> tuple[Path, int, int]:
    """Where the record with this message is: file, offset, size."""
    for index in SpoolReader(root).segments():
        stream = index.streams.get(key)
        if stream is not None and stream.first <= seqno <= stream.last:
            at = stream.find_record(seqno)
            assert stream.column(LAST)[at] >= seqno
            return (
                segment_path(root, index.number),
                stream.column(OFFSET)[at],
                stream.column(SIZE)[at],
            )
    raise AssertionError(seqno)


def holes(root: Path) -> list[tuple[object, ...]]:
    return [tuple(hole) for hole in SpoolReader(root).lost()]


def test_a_sound_spool_has_no_problems_and_is_left_as_it_is(spool: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(spool.rglob("*.run"))}
    for report in (check(spool), repair(spool), check(spool)):
        assert (report.problems, report.notes) == ([], [])
        assert (report.messages, report.lost, report.segments) == (171, 6, len(before))
    assert {path: path.read_bytes() for path in sorted(spool.rglob("*.run"))} == before
    assert rows_of(SpoolReader(spool)) == all_rows()


@pytest.mark.parametrize("where", ["header", "body"])
@pytest.mark.parametrize(
    ("key", "seqno", "range_"),
    [("a1.5", 23, (21, 25)), ("b2.7", 55, (55, 57)), ("a1.5", 102, (101, 104))],
)
def test_a_damaged_record_costs_its_messages_and_no_other(
    spool: Path, where: str, key: str, seqno: int, range_: tuple[int, int]
) -> None:
    path, offset, size_bytes = record_of(spool, key, seqno)
    flip(path, offset + (40 if where == "header" else HEADER_BYTES + 2))
    damaged = path.read_bytes()[offset : offset + size_bytes]
    report = check(spool)
    assert {
        (each.path, each.stream, each.first, each.last) for each in report.problems if each.stream
    } == {(path, key, *range_)}
    assert report.problems[0].offset == offset
    mended = repair(spool)
    assert mended.problems == report.problems
    assert check(spool).problems == []
    wanted = all_rows()
    wanted[key] = [row for row in wanted[key] if not range_[0] <= row[0] <= range_[1]]
    assert rows_of(SpoolReader(spool)) == wanted
    assert (key, *range_, "lost") in holes(spool)
    assert (spool / "damaged" / f"{path.stem}-{offset}.bytes").read_bytes() == damaged
    with opened(spool) as writer:
        assert writer.marks == {A: 120, B: 60}
        writer.append(run(A, 121, 130))
        writer.commit()
    assert rows_of(SpoolReader(spool))["a1.5"][-10:] == expected(A, 121, 130)


def test_a_damaged_header_of_the_very_last_record_of_a_stream(spool: Path) -> None:
    """No later record names its messages: the mark goes back, and the origin is asked again."""
    path, offset, size_bytes = record_of(spool, "b2.7", 60)
    flip(path, offset + 40)
    assert [(each.offset, each.what) for each in check(spool).problems] == [
        (offset, f"{size_bytes} bytes are not a record")
    ]
    repair(spool)
    with opened(spool) as writer:
        assert writer.marks == {A: 120, B: 57}
    assert rows_of(SpoolReader(spool))["b2.7"] == expected(B, 1, 57)


def test_every_flipped_bit_is_found_and_repaired(spool: Path) -> None:
    rng = random.Random(1)
    saved = spool.with_name("saved")
    shutil.copytree(spool, saved)
    for _ in range(40):
        path = rng.choice(sorted((spool / "segments").glob("*.run")))
        flip(path, rng.randrange(52, path.stat().st_size))
        found = check(spool)
        if not found.problems:
            assert path.read_bytes()[52:64] != bytes(12), (
                "only the unused end of the preamble may change unseen"
            )
        repair(spool)
        assert check(spool).problems == []
        wanted, rows = all_rows(), rows_of(SpoolReader(spool))
        for key, kept in rows.items():
            assert [row for row in wanted[key] if row in kept] == kept, (
                "what is left is what was there, in order"
            )
        lost = sum(len(wanted[key]) - len(rows.get(key, [])) for key in wanted)
        assert lost <= 10
        shutil.rmtree(spool)
        shutil.copytree(saved, spool)


def test_a_missing_segment(spool: Path) -> None:
    view = SpoolReader(spool)
    gone = view.segments()[1]
    ranges = {key: (stream.first, stream.last) for key, stream in gone.streams.items()}
    segment_path(spool, gone.number).unlink()
    with pytest.raises(SpoolCorrupt, match="are missing"):
        rows_of(SpoolReader(spool))
    report = check(spool)
    assert any(
        each.path == segment_path(spool, gone.number) and "missing" in each.what
        for each in report.problems
    )
    assert {
        each.stream: (each.first, each.last) for each in report.problems if each.stream
    } == ranges
    repair(spool)
    wanted = {
        key: [row for row in rows if not ranges[key][0] <= row[0] <= ranges[key][1]]
        for key, rows in all_rows().items()
    }
    assert rows_of(SpoolReader(spool)) == wanted
    assert {hole[:3] for hole in holes(spool)} >= {(key, *range_) for key, range_ in ranges.items()}
    assert not check(spool).problems, "what is recorded as lost is not missed any more"


def test_something_else_in_the_place_of_an_index(spool: Path) -> None:
    for path in (spool / "segments").glob("*.idx"):
        path.unlink()
        path.mkdir()
    assert rows_of(SpoolReader(spool)) == all_rows()
    report = check(spool)
    assert not report.problems
    assert len(report.notes) == len(list((spool / "segments").glob("*.idx")))


def test_a_damaged_state_or_preamble_is_made_again(spool: Path) -> None:
    for number in list_segments(spool)[1:3]:
        flip(segment_path(spool, number), 10)
        flip(segment_path(spool, number), 64 + 30)
    for path in (spool / "segments").glob("*.idx"):
        path.unlink()
    assert check(spool).problems
    repair(spool)
    assert check(spool).problems == []
    assert rows_of(SpoolReader(spool)) == all_rows()
    assert SpoolReader(spool).names() == {"a1.5": "alpha"}


def test_a_lost_description_is_made_again(spool: Path) -> None:
    before = SpoolReader(spool).info
    for content in ("", "{"):
        (spool / "spool.json").write_text(content)
        if not content:
            (spool / "spool.json").unlink()
        with pytest.raises(SpoolError):
            check(spool)
        assert [each.what for each in repair(spool).problems] == ["the description was unreadable"]
        found = SpoolReader(spool).info
        assert (found.group, found.spool_id, found.name, found.node) == (
            before.group,
            before.spool_id,
            before.name,
            before.node,
        )
        assert rows_of(SpoolReader(spool)) == all_rows()


def test_a_bad_index_is_a_note_and_is_written_anew(spool: Path) -> None:
    path = min((spool / "segments").glob("*.idx"))
    good = path.read_bytes()
    flip(path, len(good) - 3)
    report = check(spool)
    assert report.problems == []
    assert len(report.notes) == 1
    repair(spool)
    assert path.read_bytes() == good


def test_a_torn_tail_is_a_note(spool: Path) -> None:
    path = segment_path(spool, list_segments(spool)[-1])
    with path.open("ab") as file:
        file.write(b"half a record")
    report = check(spool)
    assert (report.problems, len(report.notes)) == ([], 1)
    assert "13 bytes" in report.notes[0]


def test_check_runs_beside_the_writer_and_repair_does_not(spool: Path) -> None:
    with opened(spool) as writer:
        writer.append(run(A, 121, 125))
        writer.commit()
        report = check(spool)
        assert (report.problems, report.messages) == ([], 176)
        assert "a collector writes to the spool" in report.notes[0]
        with pytest.raises(SpoolLocked, match="another process writes to this spool: pid"):
            repair(spool)


def test_where_there_is_no_spool(tmp_path: Path) -> None:
    for attempt in (check, repair):
        with pytest.raises(SpoolMismatch, match="there is no spool here"):
            attempt(tmp_path)
