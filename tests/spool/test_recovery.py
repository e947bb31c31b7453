"""Recovery after a power failure: a prefix with everything that was committed, never garbage."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from gapless.spool import SpoolCorrupt, SpoolReader, SpoolVersion, SpoolWriter
from gapless.spool.format import (
    HEADER_BYTES,
    PREAMBLE_BYTES,
    RecordDraft,
    checksum_seed,
    encode_records,
)
from gapless.spool.segment_file import CommittedOffset, SpoolInfo, list_segments, segment_path
from tests.support.deliveries import GROUP, A, B, expected, opened, rows_of, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Disk:
    """A spool of three commits in one segment; the last may or may not be durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ends: list[int] = []
        self.hints: list[bytes] = []
        # A state names its node in digits: with one of its own, each spool would have its commits
        # at other places.
        with opened(root, node=0x7777) as spool:
            for at in range(3):
                spool.append(run(A, 1 + 4 * at, 4 + 4 * at), name="alpha")
                spool.append(run(B, 1 + at, 1 + at))
                spool.blob = b"blob %d" % at
                spool.commit()
                self.ends.append(self.segment.stat().st_size)
                self.hints.append((root / "committed").read_bytes())
        self.data = self.segment.read_bytes()
        self.info = SpoolInfo.read(root)

    @property
    def segment(self) -> Path:
        return segment_path(self.root, 1)

    def crash(self, data: bytes, committed: int) -> None:
        """Leave the segment with these bytes, and the hint as it was after so many commits."""
        shutil.rmtree(self.root / "segments")
        (self.root / "segments").mkdir()
        self.segment.write_bytes(data)
        (self.root / "committed").write_bytes(self.hints[committed - 1])

    def recovered(self) -> int:
        """Open, check that all is in order, and return how many commits are there."""
        with opened(self.root) as spool:
            commits = spool.marks.get(B, 0)
            assert spool.marks == ({A: 4 * commits, B: commits} if commits else {})
            assert spool.blob == (b"blob %d" % (commits - 1) if commits else b"")
            assert spool.recovered.damage == ()
            view = SpoolReader(self.root)
            found = rows_of(view)
            assert found == (
                {"a1.5": expected(A, 1, 4 * commits), "b2.7": expected(B, 1, commits)}
                if commits
                else {}
            )
            if commits:
                assert view.names() == {"a1.5": "alpha"}
            spool.append(run(A, 1 + 4 * commits, 20))
            assert spool.commit()[A] == 20
        assert rows_of(SpoolReader(self.root))["a1.5"] == expected(A, 1, 20)
        return commits


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "spool")


def test_a_file_cut_at_any_byte_of_the_last_commit(disk: Disk) -> None:
    for size_bytes in range(disk.ends[1], disk.ends[2] + 1):
        disk.crash(disk.data[:size_bytes], committed=2)
        assert disk.recovered() == (3 if size_bytes == disk.ends[2] else 2), size_bytes


def test_a_first_commit_cut_at_any_byte_was_never_there(disk: Disk) -> None:
    for size_bytes in range(0, disk.ends[0], 7):
        disk.crash(disk.data[:size_bytes], committed=1)
        (disk.root / "committed").unlink()
        assert disk.recovered() == 0, size_bytes


def test_any_bit_of_the_last_commit_flipped(disk: Disk) -> None:
    for at in range(disk.ends[1], disk.ends[2]):
        data = bytearray(disk.data)
        data[at] ^= 1 << at % 8
        disk.crash(bytes(data), committed=2)
        assert disk.recovered() == 2, at


def test_a_tail_of_zeros(disk: Disk) -> None:
    for at in range(disk.ends[1], disk.ends[2], 3):
        disk.crash(disk.data[:at] + bytes(disk.ends[2] - at), committed=2)
        assert disk.recovered() == 2, at
    for more in (1, 100, 4096, 100_000):
        disk.crash(disk.data + bytes(more), committed=2)
        assert disk.recovered() == 3, more


def test_blocks_that_came_twice(disk: Disk) -> None:
    """A block from elsewhere, even a whole valid record, is not accepted at its position."""
    start, middle, end = disk.ends
    for block in (
        disk.data[start:middle],
        disk.data[PREAMBLE_BYTES:start],
        disk.data[:start],
        disk.data[middle:end],
    ):
        disk.crash(disk.data + block, committed=2)
        assert disk.recovered() == 3
        disk.crash(disk.data[:middle] + block, committed=2)
        assert disk.recovered() == (3 if block == disk.data[middle:end] else 2)


def test_a_block_written_to_the_wrong_place(tmp_path: Path) -> None:
    """A valid commit in the position of another: none is read twice, the others are missing."""
    ends = []
    with opened(tmp_path) as spool:
        for at in range(3):
            spool.append(run(A, 11 + 4 * at, 14 + 4 * at))
            spool.commit()
            ends.append(segment_path(tmp_path, 1).stat().st_size)
        spool._store.seal()
    path = segment_path(tmp_path, 1)
    data = path.read_bytes()
    assert ends[2] - ends[1] == ends[1] - ends[0]
    path.write_bytes(data[: ends[0]] + data[ends[1] :] + data[ends[1] :])
    for keep_index in (True, False):
        if not keep_index:
            (tmp_path / "segments" / f"{1:020d}.idx").unlink()
        view = SpoolReader(tmp_path)
        with pytest.raises(SpoolCorrupt, match=r"messages 15\.\.18 of a1\.5"):
            rows_of(view)
        assert rows_of(view, {"a1.5": 18}) == {"a1.5": expected(A, 19, 22)}
        assert rows_of(view, {}, {"a1.5": 14}) == {"a1.5": expected(A, 11, 14)}
    with opened(tmp_path) as spool:
        assert spool.marks == {A: 22}


def test_a_block_of_another_spool_or_segment(disk: Disk, tmp_path: Path) -> None:
    other = Disk(tmp_path / "other")
    assert other.ends == disk.ends
    assert other.info.spool_id != disk.info.spool_id
    disk.crash(disk.data[: disk.ends[1]] + other.data[disk.ends[1] :], committed=2)
    assert disk.recovered() == 2
    drafts = [RecordDraft(1, A, 9, 12, 4, b"\1\0" * 4, b"evil")]
    pieces, _ = encode_records(drafts, disk.ends[1], checksum_seed(disk.info.spool_id, 2))
    disk.crash(disk.data[: disk.ends[1]] + b"".join(pieces), committed=2)
    assert disk.recovered() == 2


def blocks_lost(disk: Disk, rng: random.Random) -> Iterator[bytes]:
    """The last commit with only some of its small blocks on disk, in any order."""
    for _ in range(150):
        data = bytearray(disk.data)
        spans = [(at, min(at + 64, disk.ends[2])) for at in range(disk.ends[1], disk.ends[2], 64)]
        for start, end in rng.sample(spans, rng.randrange(1, len(spans))):
            data[start:end] = bytes(end - start)
        yield bytes(data)


def test_blocks_that_reached_the_disk_out_of_order(disk: Disk) -> None:
    for data in blocks_lost(disk, random.Random(6)):
        disk.crash(data, committed=2)
        assert disk.recovered() == 2


def test_a_lost_or_torn_hint_loses_nothing(disk: Disk) -> None:
    for hint in (None, b"", b"nonsense", disk.hints[0], disk.hints[2][:10]):
        disk.crash(disk.data, committed=3)
        if hint is None:
            (disk.root / "committed").unlink()
        else:
            (disk.root / "committed").write_bytes(hint)
        assert disk.recovered() == 3


def test_a_reader_without_a_hint_reads_whole_commits_only(disk: Disk) -> None:
    disk.crash(disk.data[:-1], committed=1)
    assert rows_of(SpoolReader(disk.root))["a1.5"] == expected(A, 1, 4)
    assert rows_of(SpoolReader(disk.root, all_commits=True))["a1.5"] == expected(A, 1, 8)
    (disk.root / "committed").unlink()
    assert rows_of(SpoolReader(disk.root))["a1.5"] == expected(A, 1, 8)


def test_damage_in_what_was_committed_is_not_cut(disk: Disk) -> None:
    """Cutting at the first bad record would lose what stands behind it: acknowledged, and here."""
    for hint in (1, 3):
        data = bytearray(disk.data)
        data[disk.ends[0] + HEADER_BYTES + 12] ^= 1
        disk.crash(bytes(data), committed=hint)
        with opened(disk.root) as spool:
            assert spool.marks == {A: 12, B: 3}
            assert len(spool.recovered.damage) == 1
            assert f"{disk.segment}: " in spool.recovered.damage[0]
            spool.append(run(A, 13, 16))
            spool.commit()
        view = SpoolReader(disk.root)
        assert rows_of(view, {"a1.5": 8}, {"a1.5": 16}) == {"a1.5": expected(A, 9, 16)}
        with pytest.raises(
            SpoolCorrupt, match=f"{disk.segment}: the record at {disk.ends[0]} is damaged"
        ):
            rows_of(view)


def test_a_header_that_is_damaged_hides_only_its_record(disk: Disk) -> None:
    data = bytearray(disk.data)
    data[disk.ends[0] + 20] ^= 1
    disk.crash(bytes(data), committed=3)
    with opened(disk.root) as spool:
        assert spool.marks == {A: 12, B: 3}
        assert spool.recovered.damage
    view = SpoolReader(disk.root)
    assert [tuple(hole) for hole in view.lost()] == [("a1.5", 5, 8, "missing")]
    assert rows_of(view, {"b2.7": 0}, {"b2.7": 3, "a1.5": 4})["a1.5"] == expected(A, 1, 4)
    with pytest.raises(SpoolCorrupt, match=r"messages 5\.\.8 of a1\.5 are missing"):
        view.slices({}, view.high())
    slices = view.slices({"a1.5": 0}, {"a1.5": 12}, skip_missing=True)
    assert [record.first for record in view.records(slices)] == [1, 9]


def test_a_segment_shorter_than_what_was_committed_is_damage(disk: Disk) -> None:
    disk.crash(disk.data[: disk.ends[1]], committed=3)
    with opened(disk.root) as spool:
        assert spool.marks == {A: 8, B: 2}
        assert spool.recovered.damage
        spool.append(run(A, 9, 12))
        spool.commit()
    assert list_segments(disk.root) == [1, 2], "a damaged segment is not written to"
    assert rows_of(SpoolReader(disk.root))["a1.5"] == expected(A, 1, 12)


def test_a_missing_newest_segment_is_reported(disk: Disk) -> None:
    disk.segment.unlink()
    with opened(disk.root) as spool:
        assert (
            "the segment is missing, although it has committed messages"
            in spool.recovered.damage[0]
        )
        spool.append(run(A, 1, 4))
        spool.commit()
    assert list_segments(disk.root) == [2], "the number of a lost segment is not used again"


def rewrite(disk: Disk, kind: int) -> None:
    """Put a record of another kind behind the others."""
    pieces, offsets = encode_records(
        [RecordDraft(kind, A, 1, 1, 1, b"", b"?")],
        disk.ends[2],
        checksum_seed(disk.info.spool_id, 1),
    )
    disk.crash(disk.data + b"".join(pieces), committed=3)
    (disk.root / "committed").write_bytes(CommittedOffset(1, offsets[0] + HEADER_BYTES + 1).pack())


def test_an_unknown_kind_is_skipped_if_it_may_be(disk: Disk) -> None:
    rewrite(disk, 0x80 | 9)
    assert disk.recovered() == 3


def test_an_unknown_kind_is_refused_if_it_may_not_be_skipped(disk: Disk) -> None:
    rewrite(disk, 9)
    with pytest.raises(
        SpoolVersion, match=r"a record of the unknown kind 9 at .*; install a newer Gapless"
    ):
        opened(disk.root)
    with pytest.raises(SpoolVersion, match="unknown kind 9"):
        SpoolReader(disk.root).high()


def test_a_later_format_is_refused(disk: Disk) -> None:
    path = disk.root / "spool.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    for attempt in (
        lambda: SpoolWriter.open(disk.root, group=GROUP),
        lambda: SpoolReader(disk.root),
    ):
        with pytest.raises(
            SpoolVersion, match="has format 2, but this Gapless reads up to 1; install a newer"
        ):
            attempt()


@pytest.mark.parametrize("damage", ["missing", "torn", "flipped", "empty", "other"])
def test_a_bad_index_is_made_again(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path, segment_bytes=2000) as spool:
        for at in range(40):
            spool.append(run(A, 1 + at * 5, 5 + at * 5))
            spool.commit()
    first, second, *_ = sorted((tmp_path / "segments").glob("*.idx"))
    good = first.read_bytes()
    if damage == "missing":
        first.unlink()
    else:
        bad = {
            "torn": good[:-9],
            "flipped": good[:-4] + b"evil",
            "empty": b"",
            "other": second.read_bytes(),
        }
        first.write_bytes(bad[damage])
    assert rows_of(SpoolReader(tmp_path)) == {"a1.5": expected(A, 1, 200)}
    with opened(tmp_path) as spool:
        assert spool.marks == {A: 200}
