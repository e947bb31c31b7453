"""Replicas that stand in for each other, and batches between two positions, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadMaxRows

from gapless.errors import GaplessError
from gapless.spool import SpoolMismatch, SpoolReader, columnar
from gapless.spool.segment_file import segment_path
from pyspark_gapless.source.offsets import DataLossError
from tests.pyspark_gapless.source.test_partition_reader import damage
from tests.support.spools import (
    A,
    B,
    C,
    Writer,
    batch_reader,
    digest,
    latest,
    numbers,
    read,
    read_batch,
    stream_reader,
)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "spool")
    yield made
    made.close()


def registered(path: Path) -> dict[str, dict[str, int]]:
    return {reader.name: reader.digest for reader in SpoolReader(path).consumers()}


# Replicas


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Writer, Writer]]:
    one, two = Writer(tmp_path / "one"), Writer(tmp_path / "two")
    for each in (one, two):
        each.runs(A, 40)
        each.runs(B, 40)
        each.commit()
    yield one, two
    one.close()
    two.close()


def spools(pair: tuple[Writer, Writer]) -> str:
    return f"{pair[0].path},{pair[1].path}"


def test_each_stream_comes_from_who_has_more_of_it(pair: tuple[Writer, Writer]) -> None:
    one, two = pair
    one.runs(A, 20)
    one.commit()
    two.runs(B, 10)
    two.runs(C, 5)
    two.commit()
    reader = stream_reader(spools(pair), reader="r")
    start = reader.initialOffset()
    end = latest(reader, start)
    assert digest(end) == {"a.1": 60, "b.1": 50, "c.1": 5}
    rows = read(reader, start, end)
    assert numbers(rows, A) == list(range(1, 61))
    assert numbers(rows, B) == list(range(1, 51))
    assert numbers(rows, C) == list(range(1, 6))
    limited = digest(latest(reader, start, ReadMaxRows(30)))
    assert sum(limited.values()) <= 30
    assert all(limited[key] > 0 for key in ("a.1", "b.1", "c.1"))
    latest(reader, end)
    assert registered(one.path) == registered(two.path) == {"r": digest(end)}, "both may let it go"


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_replica_is_stood_in_for(pair: tuple[Writer, Writer], which: int) -> None:
    reader = stream_reader(spools(pair))
    start = reader.initialOffset()
    end = latest(reader, start)
    whole = read(reader, start, end)
    damage(pair[which].path, b"a.1-25")
    damage(pair[which].path, b"b.1-5")
    rows = read(reader, start, end)
    assert numbers(rows, A) == numbers(whole, A)
    assert numbers(rows, B) == numbers(whole, B)
    assert sorted(row["payload"] for row in rows) == sorted(row["payload"] for row in whole)


def test_a_replica_that_fails_midway_is_gone_on_from_there(
    pair: tuple[Writer, Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columnar, "BATCH_ROWS", 10)
    reader = stream_reader(spools(pair))
    start = reader.initialOffset()
    (part,) = reader.partitions(start, latest(reader, start))
    used = part.segment_ranges[0].replica
    damage(pair[used].path, b"a.1-25")
    batches = list(reader.read(part))
    assert batches[0].num_rows == 10, "some of it had come from the damaged one"
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert numbers(rows, A) == numbers(rows, B) == list(range(1, 41))


def test_a_spool_that_was_made_anew_at_the_same_place(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "spool")
    writer.runs(A, 10)
    writer.commit()
    reader = stream_reader(writer.path)
    start = reader.initialOffset()
    end = latest(reader, start)
    assert len(read(reader, start, end)) == 10
    writer.close()
    shutil.rmtree(writer.path)
    writer = Writer(tmp_path / "spool")
    writer.runs(B, 5)
    writer.commit()
    later = latest(reader, end)
    assert digest(later) == {"b.1": 5}
    assert numbers(read(reader, end, later), B) == [1, 2, 3, 4, 5]
    writer.close()


@pytest.fixture
def uneven(tmp_path: Path) -> Iterator[tuple[Writer, Writer]]:
    """Two replicas, of which the second never got 11..20."""
    one, two = Writer(tmp_path / "one"), Writer(tmp_path / "two")
    one.runs(A, 40)
    two.runs(A, 10)
    two.lost(A, 10)
    two.runs(A, 20)
    for each in (one, two):
        each.commit()
    yield one, two
    one.close()
    two.close()


@pytest.mark.parametrize("when", ["before the plan", "after the plan"])
@pytest.mark.parametrize("what", [b"a.1-15", b"\xf1GLR"])
def test_what_one_replica_had_is_not_stepped_over_because_another_never_got_it(
    uneven: tuple[Writer, Writer], when: str, what: bytes
) -> None:
    reader = stream_reader(spools(uneven))
    start = reader.initialOffset()
    end = latest(reader, start)
    assert numbers(read(reader, start, end), A) == list(range(1, 41))
    parts = reader.partitions(start, end)
    path = segment_path(uneven[0].path, 1)
    data = path.read_bytes()
    at = data.rindex(what, 0, data.index(b"a.1-15") + 6)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    if when == "before the plan":
        reader = stream_reader(spools(uneven))
        with pytest.raises(GaplessError, match="damaged"):
            read(reader, start, end)
    else:
        with pytest.raises(GaplessError, match="no other replica has the messages"):
            [batch for part in parts for batch in reader.read(part)]


def test_what_is_lost_in_one_replica_is_waited_for_while_another_cannot_be_read(
    uneven: tuple[Writer, Writer], tmp_path: Path
) -> None:
    one, _ = uneven
    shutil.move(one.path, tmp_path / "away")
    reader = stream_reader(spools(uneven))
    start = reader.initialOffset()
    end = latest(reader, start)
    with pytest.raises(DataLossError, match=r"11\.\.20"):
        read(reader, start, end)
    shutil.move(tmp_path / "away", one.path)
    assert numbers(read(reader, start, end), A) == list(range(1, 41))


def test_a_stream_stays_in_the_offset_while_a_spool_shows_less_than_it_has(writer: Writer) -> None:
    """After a power failure the committed file may be older than the segments."""
    writer.runs(A, 40)
    writer.commit()
    old = (writer.path / "committed").read_bytes()
    writer.runs(B, 10)
    writer.commit()
    start = {"a.1": 20, "b.1": 10}
    (writer.path / "committed").write_bytes(old)
    end = latest(stream_reader(writer.path, reader="r"), start)
    assert digest(end) == {"a.1": 40, "b.1": 10}, "or all of it would be read again"


def test_damage_in_all_replicas_is_an_error(pair: tuple[Writer, Writer]) -> None:
    reader = stream_reader(spools(pair))
    start = reader.initialOffset()
    end = latest(reader, start)
    for each in pair:
        damage(each.path, b"a.1-25")
    with pytest.raises(Exception, match="damaged"):
        read(reader, start, end)


def test_a_missing_replica_is_left_out_and_comes_back(
    pair: tuple[Writer, Writer], tmp_path: Path
) -> None:
    one, two = pair
    reader = stream_reader(spools(pair), reader="r")
    start = reader.initialOffset()
    end = latest(reader, start)
    shutil.move(one.path, tmp_path / "away")
    rows = read(reader, start, end)
    assert numbers(rows, A) == list(range(1, 41))
    later = latest(reader, end)
    assert later == end
    two.runs(A, 5)
    two.commit()
    assert digest(latest(reader, later)) == {"a.1": 45, "b.1": 40}
    shutil.move(tmp_path / "away", one.path)
    latest(reader, later)
    assert registered(one.path)["r"] == digest(later)


def test_a_segment_that_is_missing_in_one_replica(pair: tuple[Writer, Writer]) -> None:
    one, _ = pair
    reader = stream_reader(spools(pair))
    start = reader.initialOffset()
    end = latest(reader, start)
    parts = reader.partitions(start, end)
    segment_path(one.path, 1).unlink()
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert numbers(rows, A) == numbers(rows, B) == list(range(1, 41))


def test_what_one_replica_has_lost_comes_from_the_other(tmp_path: Path) -> None:
    one, two = Writer(tmp_path / "one"), Writer(tmp_path / "two")
    one.runs(A, 10)
    one.lost(A, 10)
    one.runs(A, 10)
    two.runs(A, 25)
    for each in (one, two):
        each.commit()
    reader = stream_reader(f"{one.path},{two.path}")
    start = reader.initialOffset()
    rows = read(reader, start, latest(reader, start))
    assert numbers(rows, A) == list(range(1, 31))


def test_replicas_of_two_groups_are_refused(tmp_path: Path) -> None:
    one, two = Writer(tmp_path / "one", group="x"), Writer(tmp_path / "two", group="y")
    with pytest.raises(SpoolMismatch, match=r"same group: .*'x'.*'y'"):
        stream_reader(f"{one.path},{two.path}").initialOffset()


# Batch


def test_a_batch_reads_between_two_positions(writer: Writer) -> None:
    writer.runs(A, 30)
    writer.runs(B, 10)
    writer.commit()
    assert len(read_batch(batch_reader(writer.path))) == 40
    rows = read_batch(
        batch_reader(writer.path, **{"from": '{"a.1": 5, "b.1": 10}', "to": '{"a.1": 15}'})
    )
    assert (numbers(rows, A), numbers(rows, B)) == (list(range(6, 16)), [])
    rows = read_batch(batch_reader(writer.path, origins="ben"))
    assert {row["origin"] for row in rows} == {"b.1"}
    assert read_batch(batch_reader(writer.path, **{"from": "latest"})) == []
    middle_ms = str(writer.clock_ns // 1_000_000 - 1)
    assert numbers(read_batch(batch_reader(writer.path, **{"from": middle_ms})), B) == list(
        range(1, 11)
    )
    assert len(read_batch(batch_reader(writer.path, to=middle_ms))) == 30


def test_a_batch_of_more_than_there_is_takes_what_there_is(writer: Writer) -> None:
    writer.runs(A, 10)
    writer.commit()
    assert len(read_batch(batch_reader(writer.path, to='{"a.1": 100, "f.1": 3}'))) == 10


def test_filters_spare_what_cannot_match(writer: Writer) -> None:
    writer.runs(A, 1000)
    writer.runs(B, 1000)
    writer.commit()

    def planned(*filters: Any) -> list[tuple[str, int]]:
        reader = batch_reader(writer.path, pushdown="true")
        assert list(reader.pushFilters(list(filters))) == list(filters), (
            "Spark looks at all of them too"
        )
        return [(row["origin"], row["seqno"]) for row in read_batch(reader)]

    a = [("a.1", n) for n in range(1, 1001)]
    b = [("b.1", n) for n in range(1, 1001)]
    assert planned(EqualTo(("origin",), "a.1")) == a
    assert planned(In(("name",), ("ben", "x"))) == b
    assert planned(EqualTo(("node",), "a"), EqualTo(("incarnation",), 1)) == a
    assert planned(EqualTo(("incarnation",), 9)) == []
    assert planned(GreaterThan(("seqno",), 990), EqualTo(("origin",), "a.1")) == a[990:]
    assert (
        planned(
            GreaterThanOrEqual(("seqno",), 10), LessThan(("seqno",), 13), EqualTo(("node",), "b")
        )
        == b[9:12]
    )
    assert (
        planned(In(("seqno",), (5, 7)), LessThanOrEqual(("seqno",), 6), EqualTo(("node",), "b"))
        == b[4:6]
    )
    assert planned(EqualTo(("seqno",), 3)) == [("a.1", 3), ("b.1", 3)]
    half = read_batch(batch_reader(writer.path))[1500]["collected"]
    assert planned(GreaterThanOrEqual(("collected",), half)) == b[500:]
    assert len(planned(EqualTo(("payload",), b"x"), EqualTo(("headers", "k"), b"v"))) == 2000
