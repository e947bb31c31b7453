"""Limits: wait until readers have read on, or drop the oldest and count it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gapless.errors import ConfigError
from gapless.spool import SpoolFull, SpoolLimits, SpoolReader, SpoolWriter
from gapless.spool.segment_file import list_segments
from gapless.units import NS_PER_S
from tests.support.deliveries import A, B, C, expected, opened, pieces, rows_of, run


def fill(spool: SpoolWriter, first: int, size_bytes: int = 100) -> int:
    """Commit runs of ten until that fails; return the last message that is durable."""
    while True:
        spool.append(run(A, first, first + 9, size_bytes=size_bytes))
        try:
            spool.commit()
        except SpoolFull:
            return first - 1
        first += 10


@pytest.mark.parametrize("size_bytes", range(90, 120))
def test_the_limit_holds_for_all_that_a_commit_writes(tmp_path: Path, size_bytes: int) -> None:
    """However the runs fit: a commit that begins a segment writes a STATE too."""
    with opened(tmp_path, max_bytes=20_000, segment_bytes=3000) as spool:
        view = SpoolReader(tmp_path)
        view.register("spark", {})
        fill(spool, 1, size_bytes)
        used_bytes = spool.usage().used_bytes
        view.refresh()
        view.register("spark", view.high())
        assert 16_000 < used_bytes <= 20_000


def test_a_full_spool_waits_for_its_readers(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=100_000) as spool:
        view = SpoolReader(tmp_path)
        view.register("spark", {})
        high = fill(spool, 1)
        position: dict[str, int] = {}
        assert spool.usage().limited == "bytes"
        assert spool.usage().used_bytes <= 100_000
        with pytest.raises(
            SpoolFull,
            match=r"the limit is 100000; commits wait until the readers \(spark\) advance",
        ):
            spool.commit()
        for _ in range(20):
            view.refresh()
            position = view.high()
            assert position == {"a1.5": high}
            view.register("spark", position)
            assert spool.commit() == {A: high + 10}
            assert spool.usage().limited == ""
            high = fill(spool, high + 11)
        view.refresh()
        assert rows_of(view, position) == {"a1.5": expected(A, position["a1.5"] + 1, high, 100)}
        assert view.dropped() == {}
        view.register("spark", view.high())


def test_a_spool_that_nobody_needs_takes_more_than_its_limit(tmp_path: Path) -> None:
    """A message larger than the limit could never come in otherwise."""
    with opened(tmp_path, max_bytes=50_000) as spool:
        view = SpoolReader(tmp_path)
        view.register("spark", {})
        spool.append(run(A, 1, 10))
        spool.commit()
        spool.append(pieces(A, 11, 20, 200_000))
        with pytest.raises(SpoolFull):
            spool.commit()
        view.register("spark", {"a1.5": 10})
        assert spool.commit() == {A: 20}
        view.refresh()
        assert rows_of(view, {"a1.5": 10}) == {"a1.5": expected(A, 20, 20, 200_000)}
        view.register("spark", {"a1.5": 20})
        spool.append(run(A, 21, 30))
        assert spool.commit() == {A: 30}
        assert spool.usage().used_bytes < 50_000


def test_without_readers_a_full_spool_waits(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=20_000)
    fill(spool, 1)
    with pytest.raises(SpoolFull, match="none is registered"):
        spool.commit()
    with pytest.raises(SpoolFull):
        spool.close()
    opened(tmp_path).close()


def test_the_oldest_is_dropped_and_counted(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=50_000, policy="drop-oldest") as spool:
        view = SpoolReader(tmp_path)
        view.register("spark", {"a1.5": 100})
        for at in range(200):
            spool.append(run(A, 1 + at * 10, 10 + at * 10, size_bytes=100))
            spool.append(run(B, at + 1, at + 1))
            spool.commit()
            assert spool.usage().used_bytes <= 50_000 + 2_000
        view.refresh()
        low = view.low()
        assert low["a1.5"] > 1000
        assert view.dropped() == {"a1.5": low["a1.5"] - 100, "b2.7": low["b2.7"]}
        assert spool.usage().dropped == sum(view.dropped().values())
        assert rows_of(view) == {
            "a1.5": expected(A, low["a1.5"] + 1, 2000, 100),
            "b2.7": expected(B, low["b2.7"] + 1, 200),
        }
        dropped = view.dropped()
    with opened(tmp_path) as spool:
        assert spool.usage().dropped == sum(dropped.values()), "the count outlasts the writer"
    assert SpoolReader(tmp_path).dropped() == dropped


def test_a_drop_that_was_recorded_is_finished_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gapless.spool.segment_store import SegmentStore

    spool = opened(tmp_path, max_bytes=50_000, policy="drop-oldest")
    fill_until = 100
    with monkeypatch.context() as patch:
        patch.setattr(SegmentStore, "delete", lambda self, number: 0)
        for at in range(fill_until):
            spool.append(run(A, 1 + at * 10, 10 + at * 10, size_bytes=100))
            spool.commit()
        dropped = spool.usage().dropped
        before = list_segments(tmp_path)
        spool._store.close()
        spool._lock.release()
    assert dropped
    with opened(tmp_path) as spool:
        assert spool.usage().dropped == dropped, "not counted twice"
        assert list_segments(tmp_path)[0] > before[0]
    assert SpoolReader(tmp_path).low()["a1.5"] == dropped


def test_what_is_too_old_is_dropped(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    with opened(
        tmp_path, max_age_ns=3600 * NS_PER_S, policy="drop-oldest", segment_bytes=1000
    ) as spool:
        for at in range(20):
            spool.append(
                run(A, 1 + at * 10, 10 + at * 10), collected_ns=now_ns - (20 - at) * 600 * NS_PER_S
            )
            spool.commit()
        trimmed = spool.trim()
        assert trimmed.segments > 0
        view = SpoolReader(tmp_path)
        low = view.low()["a1.5"]
        assert 100 <= low <= 150
        assert trimmed.dropped == low == view.dropped()["a1.5"]
        assert rows_of(view) == {"a1.5": expected(A, low + 1, 200)}
        assert spool.trim().segments == 0


def test_a_reader_too_far_behind_stops_the_writer(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    with opened(tmp_path, max_age_ns=3600 * NS_PER_S, segment_bytes=1000) as spool:
        view = SpoolReader(tmp_path)
        view.register("spark", {})
        spool.append(run(A, 1, 10), collected_ns=now_ns - 7200 * NS_PER_S)
        spool.commit()
        spool.trim()
        assert spool.usage().limited == "age"
        spool.append(run(A, 11, 20))
        with pytest.raises(SpoolFull, match="older than the limit"):
            spool.commit()
        view.register("spark", {"a1.5": 10})
        assert spool.commit() == {A: 20}
        assert spool.usage().limited == ""


def test_segments_are_sealed_by_size_and_by_age(tmp_path: Path) -> None:
    with opened(tmp_path / "size", segment_bytes=5000) as spool:
        for at in range(50):
            spool.append(run(A, 1 + at * 10, 10 + at * 10, size_bytes=50))
            spool.commit()
    sizes = [path.stat().st_size for path in sorted((tmp_path / "size" / "segments").glob("*.run"))]
    assert len(sizes) > 4
    assert max(sizes) <= 5000
    with opened(tmp_path / "age", segment_age_ns=1) as spool:
        for at in range(5):
            spool.append(run(A, at + 1, at + 1))
            spool.commit()
        assert list_segments(tmp_path / "age") == [1, 2, 3, 4, 5]
        spool.trim()
        spool.trim()
        assert list_segments(tmp_path / "age") == [1, 2, 3, 4, 5, 6], (
            "an empty segment is not sealed again and again"
        )


def test_streams_that_are_over_are_forgotten(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=500, forget_after_ns=1) as spool:
        spool.live_origins = {B}
        for origin in (A, B, C):
            spool.append(run(origin, 1, 10))
            spool.commit()
        view = SpoolReader(tmp_path)
        view.register("spark", {"a1.5": 10, "b2.7": 10, "c3.1": 0})
        for at in range(5):
            spool.append(run(C, 11 + at * 10, 20 + at * 10))
            spool.commit()
            spool.trim()
        assert spool.marks == {B: 10, C: 60}
        view.refresh()
        assert view.high() == {"b2.7": 10, "c3.1": 60}
        assert SpoolReader(tmp_path).high() == {"b2.7": 10, "c3.1": 60}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "drop"}, "expected one of wait, drop-oldest"),
        ({"max_bytes": -1}, "expected 0"),
        ({"segment_bytes": 0}, "at least 1"),
    ],
)
def test_impossible_limits(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SpoolLimits(**options)  # type: ignore[arg-type]
