"""Real failures of real files: no committed message is lost, the error names file and remedy."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gapless.spool import (
    SpoolError,
    SpoolFailed,
    SpoolFull,
    SpoolGone,
    SpoolMismatch,
    SpoolReader,
    SpoolReadOnly,
    SpoolTrimmed,
    SpoolWriter,
)
from gapless.spool.fsck import check
from gapless.spool.segment_file import list_segments, segment_path
from tests.support.deliveries import GROUP, A, B, expected, opened, rows_of, run

CHILD = Path(__file__).resolve().parents[1] / "support" / "programs" / "spool_writer.py"
SRC = Path(__file__).resolve().parents[2] / "src"


def started(
    path: Path,
    *,
    commits: int,
    size_bytes: int = 20,
    segment_bytes: int = 10**6,
    file_bytes: int = 0,
) -> Any:
    numbers = map(str, (commits, size_bytes, segment_bytes, file_bytes))
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(path), *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )


def test_a_killed_writer_loses_nothing_that_it_called_committed(tmp_path: Path) -> None:
    rng = random.Random(6)
    told = high = 0
    for _ in range(8):
        with started(tmp_path, commits=10**6, segment_bytes=30_000) as child:
            for _ in range(rng.randrange(1, 60)):
                told = max(told, int(child.stdout.readline().split()[1]))
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
            told = max([told, *map(int, rest[1::2])])
        with opened(tmp_path) as spool:
            assert spool.recovered.damage == ()
            assert spool.marks[A] >= told
            assert spool.marks[A] == spool.marks[B], "a commit is there as a whole or not at all"
            high = spool.marks[A]
    assert rows_of(SpoolReader(tmp_path)) == {
        "a1.5": expected(A, 1, high, 20),
        "b2.7": expected(B, 1, high, 20),
    }
    assert told > 500


def test_a_file_limit_of_the_system_is_a_full_disk(tmp_path: Path) -> None:
    """The limit cuts a write; the half-written record is removed, and the commit continues."""
    with started(tmp_path, commits=20, size_bytes=500, file_bytes=50_000) as child:
        lines = [child.stdout.readline()]
        while lines[-1].startswith("committed"):
            lines.append(child.stdout.readline())
        assert lines[-1].startswith(
            f"error SpoolFull {segment_path(tmp_path, 1)}: writing failed: File too large; free"
        )
        told = int(lines[-2].split()[1])
        view = SpoolReader(tmp_path)
        assert view.high() == {"a1.5": told, "b2.7": told}
        assert rows_of(view)["a1.5"] == expected(A, 1, told, 500)
        assert segment_path(tmp_path, 1).stat().st_size == view.segments()[-1].end, (
            "nothing is left of the attempt"
        )
        child.stdin.write("on\n")
        child.stdin.flush()
        assert child.stdout.read().splitlines()[-1] == "committed 200"
    assert rows_of(SpoolReader(tmp_path))["b2.7"] == expected(B, 1, 200, 500)
    assert list_segments(tmp_path) == [1]


def fill(spool: SpoolWriter, size_bytes: int = 1000) -> tuple[int, SpoolError]:
    """Commit until that fails; return up to where all is durable, and the error."""
    high = spool.marks.get(A, 0)
    while True:
        spool.append(run(A, high + 1, high + 10, size_bytes=size_bytes))
        try:
            high = spool.commit()[A]
        except SpoolError as error:
            return high, error


def test_a_full_disk(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(500_000))
    with opened(small_disk / "spool", segment_bytes=200_000) as spool:
        high, error = fill(spool)
        assert isinstance(error, SpoolFull)
        assert "No space left on device; free space on the disk" in str(error)
        assert spool.marks == {A: high}
        for _ in range(3):
            with pytest.raises(SpoolFull):
                spool.commit()
        view = SpoolReader(small_disk / "spool")
        assert rows_of(view) == {"a1.5": expected(A, 1, high, 1000)}
        ballast.unlink()
        assert spool.commit() == {A: high + 10}
        view.refresh()
        assert rows_of(view) == {"a1.5": expected(A, 1, high + 10, 1000)}
    with opened(small_disk / "spool") as spool:
        assert (spool.marks, spool.recovered.damage) == ({A: high + 10}, ())


def test_a_full_disk_with_drop_oldest_goes_on(small_disk: Path) -> None:
    root = small_disk / "spool"
    with opened(root, segment_bytes=100_000, policy="drop-oldest") as spool:
        for at in range(300):
            spool.append(run(A, 1 + at * 10, 10 + at * 10, size_bytes=1000))
            spool.commit()
        dropped = spool.usage().dropped
        assert dropped > 1000
        view = SpoolReader(root)
        assert view.low()["a1.5"] == dropped
        assert rows_of(view) == {"a1.5": expected(A, dropped + 1, 3000, 1000)}


def test_a_disk_that_becomes_read_only(small_disk: Path) -> None:
    root = small_disk / "spool"
    with opened(root) as spool:
        spool.append(run(A, 1, 10))
        spool.commit()
        spool.append(run(A, 11, 20))
        # A disk with files open for writing cannot be remounted, so the spool has to let go of its
        # own.
        spool._store.seal()
        os.close(spool._store._committed_fd)
        spool._store._committed_fd = -1
        spool._lock.release()
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        try:
            with pytest.raises(
                SpoolReadOnly, match="Read-only file system; make the path writable"
            ):
                spool.commit()
            with pytest.raises(SpoolReadOnly, match="lock"):
                opened(root)
            assert rows_of(SpoolReader(root)) == {"a1.5": expected(A, 1, 10)}, (
                "reading needs no writing"
            )
            with pytest.raises(SpoolReadOnly, match="registering the reader failed"):
                SpoolReader(root).register("spark", {})
        finally:
            subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        assert spool.commit() == {A: 20}
    assert rows_of(SpoolReader(root)) == {"a1.5": expected(A, 1, 20)}


def test_a_folder_that_is_moved_away_and_back(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    with opened(root) as spool:
        spool.append(run(A, 1, 10))
        spool.commit()
        root.rename(tmp_path / "away")
        spool.append(run(A, 11, 20))
        for _ in range(2):
            with pytest.raises(
                SpoolGone,
                match=f"{root}: the folder of the spool was deleted or moved while in use",
            ):
                spool.commit()
        (tmp_path / "away").rename(root)
        assert spool.commit() == {A: 20}
        assert list_segments(root) == [1]
    assert rows_of(SpoolReader(root)) == {"a1.5": expected(A, 1, 20)}


def test_a_folder_that_is_deleted(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    spool = opened(root)
    spool.append(run(A, 1, 10))
    spool.commit()
    shutil.rmtree(root)
    spool.append(run(A, 11, 20))
    with pytest.raises(SpoolGone, match="before creating a new spool, stop the collector"):
        spool.commit()
    SpoolWriter.open(root, group=GROUP, sync=False).close()
    with pytest.raises(SpoolGone, match="the folder now has another spool"):
        spool.commit()
    with pytest.raises(SpoolGone):
        spool.close()
    assert SpoolReader(root).high() == {}, "nothing was written into the new one"


def test_an_active_segment_that_is_deleted(tmp_path: Path) -> None:
    """What was in it is gone, and recorded as such; the marks and what comes later are not."""
    with opened(tmp_path) as spool:
        spool.append(run(A, 1, 10), name="alpha")
        spool.commit()
        spool._store.seal()
        spool.append(run(A, 11, 20))
        spool.append(run(B, 1, 5))
        spool.commit()
        segment_path(tmp_path, 2).unlink()
        spool.append(run(A, 21, 30))
        with pytest.raises(
            SpoolGone,
            match=f"{segment_path(tmp_path, 2)}: No such file or directory; the segment was del",
        ):
            spool.commit()
        assert spool.marks == {A: 20, B: 5}
        assert spool.commit() == {A: 30, B: 5}
    view = SpoolReader(tmp_path)
    assert rows_of(view) == {"a1.5": [*expected(A, 1, 10), *expected(A, 21, 30)]}
    assert [tuple(hole) for hole in view.lost()] == [
        ("a1.5", 11, 20, "lost"),
        ("b2.7", 1, 5, "lost"),
    ]
    with opened(tmp_path) as spool:
        assert spool.marks == {A: 30, B: 5}


@pytest.mark.parametrize("change", ["longer", "shorter", "replaced"])
def test_an_active_segment_that_somebody_changes(tmp_path: Path, change: str) -> None:
    with opened(tmp_path) as spool:
        for at in range(3):
            spool.append(run(A, 1 + at * 10, 10 + at * 10))
            spool.commit()
        path = segment_path(tmp_path, 1)
        data = path.read_bytes()
        if change == "replaced":
            path.unlink()
            path.write_bytes(data)
        else:
            with path.open("r+b") as file:
                file.truncate(len(data) + (500 if change == "longer" else -500))
        spool.append(run(A, 31, 40))
        with pytest.raises(SpoolGone, match=f"{path}: .*continues in a"):
            spool.commit()
        assert spool.commit() == {A: 40}
    view = SpoolReader(tmp_path)
    assert view.high() == {"a1.5": 40}
    if change != "shorter":
        assert rows_of(view) == {"a1.5": expected(A, 1, 40)}
    assert rows_of(view, {"a1.5": 30}) == {"a1.5": expected(A, 31, 40)}
    with opened(tmp_path) as spool:
        assert spool.marks == {A: 40}


def test_after_a_failed_fdatasync_the_segment_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one failure that a healthy disk cannot show: fdatasync itself is made to fail."""
    spool = SpoolWriter.open(tmp_path, group=GROUP)
    spool.append(run(A, 1, 10))
    spool.commit()
    size_bytes = segment_path(tmp_path, 1).stat().st_size

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    spool.append(run(A, 11, 20))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        for _ in range(2):
            with pytest.raises(
                SpoolFailed, match=r"Input/output error; check the disk \(dmesg, smartctl\)"
            ):
                spool.commit()
    assert spool.marks == {A: 10}
    assert segment_path(tmp_path, 1).stat().st_size == size_bytes
    assert spool.commit() == {A: 20}
    assert list_segments(tmp_path) == [1, 3], (
        "the first, and not the one whose first fdatasync failed"
    )
    spool.close()
    assert rows_of(SpoolReader(tmp_path)) == {"a1.5": expected(A, 1, 20)}


def test_what_a_failed_fdatasync_left_is_not_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If even cutting fails, the tail stays; the next segment says where the file ends."""
    spool = SpoolWriter.open(tmp_path, group=GROUP)
    spool.append(run(A, 1, 10))
    spool.commit()
    spool.append(run(A, 11, 20))

    def failing(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        patch.setattr(os, "ftruncate", failing)
        with pytest.raises(SpoolFailed):
            spool.commit()
    spool.commit()
    spool.close()
    for path in (tmp_path / "segments").glob("*.idx"):
        path.unlink()
    view = SpoolReader(tmp_path)
    assert rows_of(view) == {"a1.5": expected(A, 1, 20)}
    assert view.rows({}, view.high()) == {"a1.5": 20}
    with opened(tmp_path) as again:
        assert (again.marks, again.recovered.damage) == ({A: 20}, ())


def test_the_newest_segment_is_kept_even_if_it_is_not_written_to_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the marks of all: if it went, a killed writer would have nothing to go on from."""
    spool = SpoolWriter.open(tmp_path, group=GROUP)
    spool.append(run(A, 1, 10))
    spool.commit()
    SpoolReader(tmp_path).register("spark", {"a1.5": 10})

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    spool.append(run(A, 11, 20))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(SpoolFailed):
            spool.commit()
    spool.trim()
    spool._store.close()
    spool._lock.release()
    with opened(tmp_path) as again:
        assert again.marks == {A: 10}


def test_a_segment_that_could_neither_be_begun_nor_removed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = SpoolWriter.open(tmp_path, group=GROUP)
    spool.append(run(A, 1, 10))
    spool.commit()
    spool._store.seal()

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    spool.append(run(A, 11, 20))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        patch.setattr(Path, "unlink", failing)
        with pytest.raises(SpoolFailed):
            spool.commit()
    assert list_segments(tmp_path) == [1, 2]
    spool.append(run(A, 21, 30))
    assert spool.commit() == {A: 30}
    spool.close()
    view = SpoolReader(tmp_path)
    assert view.rows({}, view.high()) == {"a1.5": 30}
    assert {each.segment for each in view.slices({}, view.high())} == {1, 3}
    assert rows_of(view) == {"a1.5": expected(A, 1, 30)}
    report = check(tmp_path)
    assert (report.problems, report.messages) == ([], 30)
    with opened(tmp_path) as again:
        assert (again.marks, again.recovered.damage) == ({A: 30}, ())


def test_a_folder_without_permission(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(SpoolReadOnly, match="make the path writable for this user"):
        opened(tmp_path / "spool")
    tmp_path.chmod(0o700)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_text("a file")
    with pytest.raises(SpoolError, match=f"{path}: making the folders of the spool failed"):
        opened(path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "x"}', "\x00\x01"])
def test_a_damaged_description_says_how_to_repair_it(tmp_path: Path, content: str) -> None:
    opened(tmp_path).close()
    (tmp_path / "spool.json").write_text(content)
    with pytest.raises(SpoolMismatch, match=f"gapless spool repair {tmp_path}"):
        SpoolReader(tmp_path)


def test_a_slice_of_what_was_trimmed(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1000) as spool:
        for at in range(10):
            spool.append(run(A, 1 + at * 10, 10 + at * 10))
            spool.commit()
        view = SpoolReader(tmp_path)
        slices = view.slices({}, view.high())
        view.register("spark", {"a1.5": 50})
        assert spool.trim().segments > 0
        with pytest.raises(SpoolTrimmed, match="register a reader to keep unread messages"):
            list(view.records(slices[0]))
        assert [record.last for record in view.records(slices[-1])][-1] == 100
