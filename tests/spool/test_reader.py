"""Positions: fair admission, times, readers; and a view beside a writer that rotates and trims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gapless.identity import Address
from gapless.spool import SpoolCorrupt, SpoolMismatch, SpoolReader, SpoolTrimmed
from gapless.spool.format import PREAMBLE_BYTES
from gapless.spool.reader import fair_share
from gapless.spool.segment_file import list_segments, segment_path
from tests.support.deliveries import A, B, C, expected, opened, pieces, rows_of, run


@pytest.mark.parametrize(
    ("wants", "limit", "granted"),
    [
        ({"a": 10, "b": 10}, 10, {"a": 5, "b": 5}),
        ({"a": 2, "b": 100, "c": 100}, 20, {"a": 2, "b": 9, "c": 9}),
        ({"a": 100, "b": 1}, 50, {"a": 49, "b": 1}),
        ({"a": 5, "b": 5, "c": 5}, 2, {"a": 1, "b": 1, "c": 1}),
        ({"a": 3}, 100, {"a": 3}),
        ({}, 5, {}),
    ],
)
def test_a_limit_is_shared(wants: dict[str, int], limit: int, granted: dict[str, int]) -> None:
    assert fair_share(wants, limit) == granted


def test_admission_is_fair_and_to_the_message(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=2000) as spool:
        spool.append(run(A, 1, 1000))
        spool.append(run(B, 1, 40))
        spool.append(run(C, 1, 3))
        spool.commit()
    view = SpoolReader(tmp_path)
    high = view.high()
    assert view.admit({}, high) == high
    assert view.admit({}, high, max_rows=33) == {"a1.5": 15, "b2.7": 15, "c3.1": 3}
    assert view.admit({"a1.5": 990, "b2.7": 5, "c3.1": 3}, high, max_rows=100) == {
        "a1.5": 1000,
        "b2.7": 40,
        "c3.1": 3,
    }
    assert view.admit({}, {"a1.5": 1000}, max_rows=7) == {"a1.5": 7}
    assert view.admit({"a1.5": 2000}, high, max_rows=7) == {"a1.5": 2000, "b2.7": 4, "c3.1": 3}, (
        "never below the start"
    )
    position: dict[str, int] = {}
    seen: dict[str, list[tuple[int, bytes]]] = {}
    for _ in range(200):
        end = view.admit(position, high, max_rows=33)
        for key, rows in rows_of(view, position, end).items():
            seen.setdefault(key, []).extend(rows)
        position = end
    assert seen == {
        "a1.5": expected(A, 1, 1000),
        "b2.7": expected(B, 1, 40),
        "c3.1": expected(C, 1, 3),
    }


@pytest.mark.parametrize("limit", [1, 99, 100, 101, 1000, 1234, 50_000])
def test_bytes_are_counted_to_the_message(tmp_path: Path, limit: int) -> None:
    with opened(tmp_path, segment_bytes=20_000) as spool:
        for at in range(20):
            spool.append(run(A, 1 + 10 * at, 10 + 10 * at, size_bytes=100))
            spool.commit()
    view = SpoolReader(tmp_path)
    for start in (0, 3, 10, 195):
        end = view.admit({"a1.5": start}, view.high(), max_bytes=limit)
        assert end == {"a1.5": min(200, start + max(1, limit // 100))}


def test_bytes_with_a_message_in_pieces_and_a_loss(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append_lost(A, 1, 5)
        spool.append(pieces(A, 6, 9, 500))
        spool.append(run(A, 10, 19, size_bytes=100))
        spool.append_lost(A, 20, 30)
        spool.commit()
    view = SpoolReader(tmp_path)
    high = view.high()
    assert view.admit({}, high, max_bytes=1) == {"a1.5": 9}, "the first message always comes"
    assert view.admit({}, high, max_bytes=700) == {"a1.5": 11}
    assert view.admit({"a1.5": 9}, high, max_bytes=250) == {"a1.5": 11}
    assert view.admit({"a1.5": 19}, high, max_bytes=1) == {"a1.5": 30}, "what is lost costs nothing"
    assert view.admit({}, high, max_rows=1) == {"a1.5": 9}
    assert view.admit({"a1.5": 19}, high, max_rows=1) == {"a1.5": 30}


def test_a_time_is_a_position(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1500) as spool:
        for at in range(30):
            spool.append(run(A, 1 + at * 10, 10 + at * 10), collected_ns=10**18 + at * 1000)
            if at % 3 == 0:
                spool.append(run(B, 1 + at // 3, 1 + at // 3), collected_ns=10**18 + at * 1000)
            spool.commit()
    view = SpoolReader(tmp_path)
    assert view.at_time(0) == {"a1.5": 0, "b2.7": 0}
    assert view.at_time(10**18 + 7000) == {"a1.5": 70, "b2.7": 3}
    assert view.at_time(10**18 + 7001) == {"a1.5": 80, "b2.7": 3}
    assert view.at_time(2 * 10**18) == view.high()


def test_times_never_go_back(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for at, when_ns in enumerate((500, 100, 900)):
            spool.append(run(A, at + 1, at + 1), collected_ns=10**18 + when_ns)
        spool.commit()
    view = SpoolReader(tmp_path)
    found = [record.collected_ns - 10**18 for record in view.records(view.slices({}, view.high()))]
    assert found == [500, 500, 900]


def test_readers_register_and_are_forgotten(tmp_path: Path) -> None:
    opened(tmp_path).close()
    view = SpoolReader(tmp_path)
    view.register("spark", {"b2.7": 3, "a1.5": 10})
    view.register("audit-2.x", {})
    assert [(each.name, each.digest) for each in view.consumers()] == [
        ("audit-2.x", {}),
        ("spark", {"a1.5": 10, "b2.7": 3}),
    ]
    assert view.unregister("spark")
    assert not view.unregister("spark")
    for name in ("", "../x", ".hidden", "a b", "-x", "x" * 101):
        with pytest.raises(SpoolMismatch, match="expected 1 to 100 letters"):
            view.register(name, {})
    for digest in ({"a1": 3}, {"a1.5": -1}, {"a1.5": "x"}, {"A1.5": 3}, {"zz.1": 1}):
        with pytest.raises(SpoolMismatch, match="not an entry of a digest"):
            view.register("spark", digest)  # type: ignore[arg-type]


def test_a_reader_file_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1000) as spool:
        for at in range(10):
            spool.append(run(A, 1 + at * 10, 10 + at * 10))
            spool.commit()
        SpoolReader(tmp_path).register("spark", {"a1.5": 100})
        (tmp_path / "readers" / "torn.json").write_text('{"digest": {"a1')
        assert spool.trim().segments == 0
        SpoolReader(tmp_path).unregister("torn")
        assert spool.trim().segments > 0


def test_the_slowest_reader_decides(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1000) as spool:
        for at in range(20):
            spool.append(run(A, 1 + at * 10, 10 + at * 10))
            spool.commit()
        view = SpoolReader(tmp_path)
        assert spool.trim().segments == 0, "without a reader nothing goes"
        view.register("fast", {"a1.5": 200})
        view.register("slow", {"a1.5": 55})
        trimmed = spool.trim()
        assert trimmed.segments > 0
        assert trimmed.dropped == 0
        view.refresh()
        assert view.low()["a1.5"] <= 55
        assert rows_of(view, {"a1.5": 55}) == {"a1.5": expected(A, 56, 200)}
        assert spool.usage().lag == {"fast": 0, "slow": 145}
        view.unregister("slow")
        spool.trim()
        view.refresh()
        assert len(list_segments(tmp_path)) == 1
        assert view.high() == {"a1.5": 200}
    with opened(tmp_path) as spool:
        assert spool.marks == {A: 200}, "marks outlast the messages"


WRITER = """
import sys
from tests.support.deliveries import A, B, opened, run
with opened(sys.argv[1], segment_bytes=20_000) as spool:
    for at in range(600):
        spool.append(run(A, 1 + at * 10, 10 + at * 10), name="alpha")
        spool.append(run(B, 1 + at * 5, 5 + at * 5))
        spool.commit()
        if at % 10 == 0:
            spool.trim()
"""


def test_a_reader_beside_a_writer_that_rotates_and_trims(tmp_path: Path) -> None:
    """What the reader has not passed is always there; what it reads has no gap and comes once."""
    opened(tmp_path).close()
    view = SpoolReader(tmp_path)
    view.register("spark", {})
    root = Path(__file__).resolve().parents[2]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        cwd=root,
        env={"PYTHONPATH": f"{root}/src:{root}"},
    )
    position: dict[str, int] = {}
    seen: dict[str, list[tuple[int, bytes]]] = {"a1.5": [], "b2.7": []}
    looks = 0
    try:
        while position != {"a1.5": 6000, "b2.7": 3000}:
            over = writer.poll()
            assert over in (None, 0)
            view.refresh()
            end = view.admit(position, view.high(), max_rows=400)
            for key, rows in rows_of(
                view if looks % 2 else SpoolReader(tmp_path), position, end
            ).items():
                seen[key].extend(rows)
            position = end
            view.register("spark", position)
            looks += 1
            assert over is None or looks < 10_000
    finally:
        writer.wait()
    assert seen == {"a1.5": expected(A, 1, 6000), "b2.7": expected(B, 1, 3000)}
    with opened(tmp_path) as spool:
        spool.trim()
        assert len(list_segments(tmp_path)) < 5


def test_an_old_view_of_a_trimmed_spool_says_so(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1000) as spool:
        for at in range(10):
            spool.append(run(A, 1 + at * 10, 10 + at * 10))
            spool.commit()
        view = SpoolReader(tmp_path)
        assert view.low() == {"a1.5": 0}
        SpoolReader(tmp_path).register("spark", {"a1.5": 100})
        spool.trim()
        with pytest.raises(SpoolTrimmed):
            rows_of(view)
        view.refresh()
        assert view.low()["a1.5"] > 0
        assert rows_of(view).get("a1.5", []) == expected(A, view.low()["a1.5"] + 1, 100)


@pytest.mark.parametrize("streams", [(A,), (A, B, C)])
def test_a_reader_gives_all_messages_or_says_that_some_are_missing(
    tmp_path: Path, streams: tuple[Address, ...]
) -> None:
    """Every byte of every record is flipped: also of the first and the last of a stream."""
    with opened(tmp_path) as spool:
        for origin in streams:
            spool.append(run(origin, 1, 2))
        for origin in streams:
            spool.append(run(origin, 3, 4))
        spool.commit()
        path = segment_path(tmp_path, 1)
        data = path.read_bytes()
        whole = rows_of(SpoolReader(tmp_path))
        said: list[str] = []
        for at in range(PREAMBLE_BYTES, len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
            try:
                assert rows_of(SpoolReader(tmp_path)) == whole, f"byte {at}"
            except SpoolCorrupt as error:
                said.append(str(error))
        path.write_bytes(data)
        assert len(said) > (len(data) - PREAMBLE_BYTES) // 2
        assert all("gapless spool repair" in each for each in said)
