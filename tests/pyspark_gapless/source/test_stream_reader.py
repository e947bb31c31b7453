"""The reader as Spark calls it, without Spark: offsets, limits, release, replay, loss."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from gapless.spool import DROP_OLDEST, SpoolFull, SpoolLimits, SpoolMismatch, SpoolReader
from pyspark_gapless.option_error import OptionError
from pyspark_gapless.source.offset_release import OffsetReleaser
from pyspark_gapless.source.offsets import DataLossError
from pyspark_gapless.source.stream_reader import MAX_RIVALS, GaplessStreamReader, ReaderTakenError
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
    stream_reader,
)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "spool")
    yield made
    made.close()


def small_segments(tmp_path: Path, **limits: Any) -> Writer:
    return Writer(tmp_path / "spool", limits=SpoolLimits(segment_bytes=2000, **limits))


def registered(path: Path) -> dict[str, dict[str, int]]:
    return {reader.name: reader.digest for reader in SpoolReader(path).consumers()}


# Where it begins


def test_start_positions(writer: Writer) -> None:
    writer.runs(A, 30)
    writer.runs(B, 20)
    writer.commit()
    early = stream_reader(writer.path).initialOffset()
    assert digest(early) == {"a.1": 0, "b.1": 0}
    assert early["@reader"].startswith("spark-")
    late = stream_reader(writer.path, startingOffsets="latest", reader="mine").initialOffset()
    assert late == {"@reader": "mine", "a.1": 30, "b.1": 20}
    there = stream_reader(writer.path, startingOffsets='{"a.1": 12}').initialOffset()
    assert digest(there) == {"a.1": 12, "b.1": 0}


def test_a_start_by_time_is_the_first_record_from_then_on(writer: Writer) -> None:
    writer.runs(A, 10)
    writer.clock_ns += 3_600_000_000_000
    middle_ms = writer.clock_ns // 1_000_000 - 1
    writer.runs(A, 10)
    writer.commit()
    begun = stream_reader(writer.path, startingTimestamp=str(middle_ms)).initialOffset()
    assert digest(begun) == {"a.1": 10}


def test_spark_asks_twice_for_the_start_and_gets_the_same(writer: Writer) -> None:
    writer.runs(A, 5)
    writer.commit()
    reader = stream_reader(writer.path, startingOffsets="latest")
    first = reader.initialOffset()
    writer.runs(A, 5)
    writer.commit()
    assert reader.initialOffset() == first


def test_a_spool_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    reader = stream_reader(tmp_path / "spool")
    start = reader.initialOffset()
    assert digest(start) == {}
    assert latest(reader, start) == start
    (tmp_path / "spool").mkdir()
    assert latest(reader, start) == start
    writer = Writer(tmp_path / "spool")
    assert latest(reader, start) == start, "an empty spool"
    writer.runs(A, 5)
    writer.commit()
    end = latest(reader, start)
    assert numbers(read(reader, start, end), A) == [1, 2, 3, 4, 5]
    assert registered(writer.path) == {start["@reader"]: {}}


def test_a_path_that_no_collector_makes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpoolMismatch, match="check the path"):
        stream_reader(tmp_path / "no" / "spool").initialOffset()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(SpoolMismatch, match=r"not the folder of a spool.*notes.txt"):
        stream_reader(tmp_path / "other").initialOffset()
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpoolMismatch, match="is a file"):
        stream_reader(tmp_path / "file").initialOffset()
    with pytest.raises(SpoolMismatch, match="no spool here yet"):
        batch_reader(tmp_path / "missing").partitions()


# How far it goes


def test_limits_are_kept_and_all_streams_move(writer: Writer) -> None:
    writer.runs(A, 1000)
    writer.runs(B, 10)
    writer.commit()
    reader = stream_reader(writer.path, maxRowsPerTrigger="100")
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    offsets = [reader.initialOffset()]
    while (end := latest(reader, offsets[-1], reader.getDefaultReadLimit())) != offsets[-1]:
        offsets.append(end)
    counts = [len(read(reader, low, high)) for low, high in pairwise(offsets)]
    assert max(counts) <= 100
    assert sum(counts) == 1010
    assert len(counts) <= 12
    assert offsets[1]["b.1"] == 10, "the one with little is not held up by the one with much"
    assert digest(latest(reader, offsets[0], ReadAllAvailable())) == {"a.1": 1000, "b.1": 10}, (
        "Spark may ask for all"
    )


def test_a_limit_by_bytes_and_one_by_both(writer: Writer) -> None:
    writer.run(A, [b"x" * 100] * 300)
    writer.commit()
    reader = stream_reader(writer.path, maxBytesPerTrigger="1000")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(1000)
    start = reader.initialOffset()
    assert digest(latest(reader, start, reader.getDefaultReadLimit())) == {"a.1": 10}
    both = stream_reader(writer.path, maxBytesPerTrigger="1000", maxRowsPerTrigger="200")
    assert digest(latest(both, start, both.getDefaultReadLimit())) == {"a.1": 10}


def test_a_least_number_of_rows_is_waited_for(writer: Writer) -> None:
    writer.runs(A, 5)
    writer.commit()
    reader = stream_reader(writer.path)
    start = reader.initialOffset()
    assert latest(reader, start, ReadMinRows(6)) == start
    writer.runs(A, 1)
    writer.commit()
    assert digest(latest(reader, start, ReadMinRows(6))) == {"a.1": 6}


def test_available_now_ends_where_it_began(writer: Writer) -> None:
    writer.runs(A, 50)
    writer.commit()
    reader = stream_reader(writer.path, maxRowsPerTrigger="20", reader="r")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    seen = 0
    for _ in range(10):
        writer.runs(A, 10)
        writer.runs(B, 10)
        writer.commit()
        end = latest(reader, start, reader.getDefaultReadLimit())
        if end == start:
            break
        seen += len(read(reader, start, end))
        start = end
    assert (seen, digest(start)) == (50, {"a.1": 50})
    assert registered(writer.path) == {"r": {"a.1": 50}}
    assert digest(reader.reportLatestOffset())["b.1"] > 0, "the progress shows what is behind it"


def test_nothing_new_is_the_same_offset(writer: Writer) -> None:
    writer.runs(A, 5)
    writer.commit()
    reader = stream_reader(writer.path)
    end = latest(reader, reader.initialOffset())
    assert latest(reader, end) == end
    assert list(end) == sorted(end)
    assert reader.partitions(end, end) == []


def test_an_offset_above_what_is_there_never_goes_back(writer: Writer) -> None:
    writer.runs(A, 5)
    writer.commit()
    reader = stream_reader(writer.path)
    ahead = {"@reader": "r", "a.1": 9}
    assert latest(reader, ahead) == ahead
    writer.runs(A, 10)
    writer.commit()
    end = latest(reader, ahead)
    assert numbers(read(reader, ahead, end), A) == list(range(10, 16))


# The same rows again


def test_the_same_offsets_give_the_same_rows(tmp_path: Path) -> None:
    writer = small_segments(tmp_path)
    for _ in range(20):
        writer.runs(A, 20)
        writer.commit()
    writer.large(B, b"x" * 5000, 3)
    writer.runs(B, 5)
    writer.commit()
    reader = stream_reader(writer.path, reader="r", maxPartitions="4")
    begin = reader.initialOffset()
    middle = latest(reader, begin, ReadMaxRows(200))
    end = latest(reader, middle)
    rows = read(reader, middle, end)
    assert len(rows) == 206
    assert read(reader, middle, end) == rows

    def same(what: str) -> None:
        again = stream_reader(writer.path, reader="r")
        assert read(again, middle, end) == rows, what

    writer.runs(A, 500)
    writer.runs(C, 50)
    writer.commit()
    same("after more has come and the segment has been sealed")
    assert writer.spool.trim().segments, "what is below start goes"
    same("after trimming")
    writer.restart()
    same("after the collector was started again")
    latest(stream_reader(writer.path, reader="r"), middle)
    writer.spool.trim()
    same("after a new life of the query has released the same start")
    for index in (writer.path / "segments").glob("*.idx"):
        index.unlink()
    same("without the index")
    writer.close()


def test_the_first_batch_is_done_again_from_where_it_began(tmp_path: Path) -> None:
    """Spark does not log the start of the first batch; it asks again, when it has changed."""
    for options in ({"reader": "mine"}, {}):
        writer = Writer(tmp_path / f"spool{len(options)}")
        writer.runs(A, 10)
        writer.commit()
        reader = stream_reader(writer.path, startingOffsets="latest", **options)
        start = reader.initialOffset()
        writer.runs(A, 10)
        writer.runs(B, 5)
        writer.commit()
        end = latest(reader, start)
        rows = read(reader, start, end)
        assert (numbers(rows, A), numbers(rows, B)) == (list(range(11, 21)), [1, 2, 3, 4, 5])
        writer.runs(A, 10)
        writer.commit()
        again = stream_reader(writer.path, startingOffsets="latest", **options)
        other = again.initialOffset()
        assert digest(other) == {"a.1": 30, "b.1": 5}
        assert read(again, other, end) == rows
        writer.close()


def test_what_is_pickled_for_executors_reads_without_the_driver(writer: Writer) -> None:
    writer.runs(A, 10)
    writer.commit()
    reader = stream_reader(writer.path)
    start = reader.initialOffset()
    parts = reader.partitions(start, latest(reader, start))
    sent: GaplessStreamReader = pickle.loads(pickle.dumps(reader))
    assert sent._session is None
    rows = [
        row
        for part in pickle.loads(pickle.dumps(parts))
        for batch in sent.read(part)
        for row in batch.to_pylist()
    ]
    assert numbers(rows, A) == list(range(1, 11))


def test_more_partitions_give_the_same_rows(tmp_path: Path) -> None:
    writer = small_segments(tmp_path)
    for _ in range(20):
        writer.runs(A, 50, 5)
        writer.runs(B, 30, 3)
        writer.commit()
    one = stream_reader(writer.path)
    many = stream_reader(writer.path, minPartitions="7", maxPartitions="9")
    start = one.initialOffset()
    end = latest(one, start)
    parts = many.partitions(start, end)
    assert 7 <= len(parts) <= 9
    assert len(one.partitions(start, end)) == 1
    rows = read(many, start, end)
    assert numbers(rows, A) == list(range(1, 1001))
    assert numbers(rows, B) == list(range(1, 601))
    writer.close()


# What it lets go


def test_a_bounded_spool_never_locks_up(tmp_path: Path) -> None:
    """The spool is full: what Spark has committed must be released without new messages."""
    writer = Writer(tmp_path / "spool", limits=SpoolLimits(max_bytes=40_000))
    reader = stream_reader(writer.path, reader="r")
    start = reader.initialOffset()
    sent = 0
    rows = 0
    for _ in range(200):
        try:
            while sent < 5000:
                writer.runs(A, 20)
                sent += 20
                writer.commit()
        except SpoolFull:
            pass
        end = latest(reader, start)
        rows += len(read(reader, start, end))
        start = end
        writer.spool.trim()
        if rows == 5000:
            break
    assert rows == sent == 5000
    writer.close()


def test_what_is_not_committed_is_kept(tmp_path: Path) -> None:
    writer = small_segments(tmp_path)
    reader = stream_reader(writer.path, reader="r")
    start = reader.initialOffset()
    latest(reader, start)
    for _ in range(10):
        writer.runs(A, 50)
        writer.commit()
    end = latest(reader, start)
    assert registered(writer.path) == {"r": {}}
    writer.spool.trim()
    assert len(read(reader, start, end)) == 500, "planned, but not committed"
    latest(reader, end)
    assert registered(writer.path) == {"r": {"a.1": 500}}
    assert writer.spool.trim().segments > 3
    writer.close()


def test_release_after_the_kernel_has_written_everything_out(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    synced = []
    monkeypatch.setattr(os, "sync", lambda: synced.append(registered(writer.path)))
    writer.runs(A, 10)
    writer.commit()
    reader = stream_reader(writer.path, release="sync", reader="r")
    start = reader.initialOffset()
    end = latest(reader, start)
    assert latest(reader, end) == end
    reader.stop()
    assert synced[-1] in ({"r": {}}, {"r": {"a.1": 0}}), "not told before it is on disk"
    assert registered(writer.path) == {"r": {"a.1": 10}}


def test_streams_that_are_not_asked_for_are_not_kept(writer: Writer) -> None:
    writer.runs(A, 10)
    writer.runs(B, 20)
    writer.runs(C, 30)
    writer.commit()
    for asked in ("anna,c.1", "a,c"):
        reader = stream_reader(writer.path, origins=asked, reader="r")
        start = reader.initialOffset()
        end = latest(reader, start)
        assert digest(end) == {"a.1": 10, "c.1": 30}
        assert registered(writer.path)["r"] == {"a.1": 0, "b.1": 20, "c.1": 0}
        assert {row["origin"] for row in read(reader, start, end)} == {"a.1", "c.1"}


def test_two_queries_under_one_name_are_told(writer: Writer) -> None:
    writer.runs(A, 100)
    writer.commit()
    one, two = (stream_reader(writer.path, reader="same") for _ in range(2))
    start, other = one.initialOffset(), two.initialOffset()

    def both() -> None:
        nonlocal start, other
        for _ in range(MAX_RIVALS + 3):
            start = latest(one, start, ReadMaxRows(10))
            other = latest(two, other, ReadMaxRows(5))

    with pytest.raises(ReaderTakenError, match=r"another query reads as 'same'.*\"reader\""):
        both()


def test_the_last_word_of_a_former_life_is_no_rival(writer: Writer) -> None:
    writer.runs(A, 100)
    writer.commit()
    old = stream_reader(writer.path, reader="r")
    start = latest(old, old.initialOffset(), ReadMaxRows(10))
    new = stream_reader(writer.path, reader="r")
    start = latest(new, start, ReadMaxRows(10))
    latest(old, start, ReadMaxRows(10))
    for _ in range(3):
        start = latest(new, start, ReadMaxRows(10))
    assert registered(writer.path) == {"r": {"a.1": 40}}


def test_a_new_query_under_an_old_name_is_kept_for_at_once(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former query of that name was further; a late release must not purge what is needed."""
    writer.runs(A, 10)
    writer.commit()
    former = stream_reader(writer.path, reader="r")
    latest(former, latest(former, former.initialOffset()))
    assert registered(writer.path) == {"r": {"a.1": 10}}
    monkeypatch.setattr(OffsetReleaser, "submit", lambda *_: None)
    fresh = stream_reader(writer.path, reader="r")
    latest(fresh, fresh.initialOffset())
    assert registered(writer.path) == {"r": {"a.1": 0}}


def test_a_reader_that_gets_a_name_leaves_the_drawn_one(writer: Writer) -> None:
    writer.runs(A, 10)
    writer.commit()
    before = stream_reader(writer.path)
    start = before.initialOffset()
    end = latest(before, start)
    assert list(registered(writer.path)) == [start["@reader"]]
    latest(stream_reader(writer.path, reader="named"), end)
    assert registered(writer.path) == {"named": {"a.1": 10}}


# Loss


def dropping(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "spool", limits=SpoolLimits(max_bytes=40_000, policy=DROP_OLDEST))


def test_data_loss_is_an_error_unless_told_otherwise(tmp_path: Path) -> None:
    writer = dropping(tmp_path)
    writer.runs(A, 10)
    writer.commit()
    reader = stream_reader(writer.path, reader="r")
    start = reader.initialOffset()
    middle = latest(reader, start)
    for _ in range(50):
        writer.runs(A, 100)
        writer.commit()
        writer.spool.trim()
    low = SpoolReader(writer.path).low()["a.1"]
    assert low > 10
    end = latest(reader, middle)
    with pytest.raises(DataLossError, match=rf"a.1 \(anna\): 11..{low}.*failOnDataLoss"):
        reader.partitions(middle, end)
    careless = stream_reader(writer.path, reader="r", failOnDataLoss="false")
    assert numbers(read(careless, middle, end), A) == list(range(low + 1, 5011))
    writer.close()


def test_a_stream_that_was_cut_before_its_first_read_is_a_loss(tmp_path: Path) -> None:
    writer = dropping(tmp_path)
    reader = stream_reader(writer.path, reader="r")
    start = reader.initialOffset()
    latest(reader, start)
    for _ in range(50):
        writer.runs(A, 100)
        writer.commit()
        writer.spool.trim()
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        reader.partitions(start, latest(reader, start))
    fresh = stream_reader(writer.path)
    begin = fresh.initialOffset()
    assert begin["a.1"] > 0
    assert len(read(fresh, begin, latest(fresh, begin))) == 5000 - begin["a.1"], (
        "earliest is what there is"
    )
    writer.close()


def test_what_never_came_is_stepped_over(writer: Writer) -> None:
    writer.runs(A, 5)
    writer.lost(A, 10)
    writer.runs(A, 5)
    writer.commit()
    reader = stream_reader(writer.path)
    start = reader.initialOffset()
    end = latest(reader, start)
    assert digest(end) == {"a.1": 20}
    assert numbers(read(reader, start, end), A) == [1, 2, 3, 4, 5, 16, 17, 18, 19, 20]


def test_a_stream_that_the_spool_has_forgotten_leaves_the_offset(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "spool", limits=SpoolLimits(segment_bytes=2000, forget_after_ns=1))
    writer.runs(A, 10)
    writer.commit()
    reader = stream_reader(writer.path, reader="r")
    start = latest(reader, reader.initialOffset())
    assert digest(start) == {"a.1": 10}
    for _ in range(6):
        writer.clock_ns += 10**12
        writer.runs(B, 100)
        writer.commit()
        start = latest(reader, start)
        latest(reader, start)
        writer.spool.trim()
    assert digest(start) == {"b.1": 600}
    writer.close()


def test_a_schema_of_the_user_is_checked(writer: Writer) -> None:
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    from pyspark_gapless.source.options import parse

    options = parse({"spool": str(writer.path)})
    assert GaplessStreamReader(
        options, StructType([StructField("seqno", LongType())])
    ).schema.fieldNames() == ["seqno"]
    with pytest.raises(OptionError, match=r"'seqno' as int; expected bigint"):
        GaplessStreamReader(options, StructType([StructField("seqno", IntegerType())]))
    with pytest.raises(OptionError, match="payload_schema"):
        GaplessStreamReader(options, StructType([StructField("other", LongType())]))


def test_the_signal_of_spark_ends_the_process_in_good_order(writer: Writer) -> None:
    before = signal.getsignal(signal.SIGTERM)
    reader = stream_reader(writer.path)
    reader.initialOffset()
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    reader.stop()
    assert signal.getsignal(signal.SIGTERM) == before
