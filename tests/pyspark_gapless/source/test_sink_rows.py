"""Rows of a sink that was killed within a batch, in two replicas that had different parts of it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from gapless.group.headers import attach_headers, detach_headers
from gapless.group.message import Batch
from gapless.group.sink_dedup import SINK, SinkRowId
from gapless.identity import Address
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.spool import SpoolReader, columnar
from gapless.spool.collector.appender import DeliveryAppender
from pyspark_gapless.source import sink_rows
from pyspark_gapless.source.offsets import ROWS, DataLossError
from pyspark_gapless.source.sink_rows import ReadRows
from tests.support.deliveries import opened
from tests.support.spools import batch_reader, digest, latest, read, read_batch, stream_reader

FIRST, SECOND, OTHER = Address(0xA, 1), Address(0xB, 1), Address(0xC, 1)
BATCH = 40


class Replica:
    """A spool that the real appender of a collector fills."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spool = opened(path)
        self.appender = DeliveryAppender(self.spool)

    def deliver(self, origin: Address, first: int, messages: list[bytes]) -> None:
        run = Run.of(origin, first, messages)
        self.appender.append_batch(Batch(Delivery(origin, run.first, run.last, run), {}))

    def commit(self) -> None:
        self.appender.stage_dedup_state()
        self.spool.commit()


def row(number: int, batch: int = 0) -> bytes:
    return attach_headers(
        b"%d/%d" % (batch, number), {SINK: SinkRowId("query", batch, 0, number).encode()}
    )


def rows(first: int, last: int, batch: int = 0) -> list[bytes]:
    return [row(number, batch) for number in range(first, last + 1)]


def names(batch: int = 0, count: int = BATCH) -> list[bytes]:
    return [b"%d/%d" % (batch, number) for number in range(count)]


def payloads(found: list[dict[str, Any]]) -> list[bytes]:
    return [each["payload"] for each in found]


def pair(tmp_path: Path) -> tuple[Replica, Replica, str]:
    one, two = Replica(tmp_path / "one"), Replica(tmp_path / "two")
    return one, two, f"{one.path},{two.path}"


def killed_within_a_batch(one: Replica, two: Replica) -> None:
    """The first publisher reached one replica with 30 rows, the other with 10, and was killed."""
    for replica, reached in ((one, 30), (two, 10)):
        replica.deliver(FIRST, 1, rows(0, reached - 1))
        replica.commit()


def published_again(replica: Replica) -> None:
    """The next publisher sends the whole batch, then another one."""
    replica.deliver(SECOND, 1, rows(0, BATCH - 1))
    replica.deliver(SECOND, BATCH + 1, rows(0, 4, batch=1))
    replica.deliver(OTHER, 1, [b"plain"])
    replica.commit()


def test_a_batch_read_has_each_row_once(tmp_path: Path) -> None:
    one, two, spools = pair(tmp_path)
    killed_within_a_batch(one, two)
    for replica in (one, two):
        published_again(replica)
    expected = sorted([*names(), *names(1, 5), b"plain"])
    assert sorted(payloads(read_batch(batch_reader(spools)))) == expected
    for replica in (one, two):
        assert sorted(payloads(read_batch(batch_reader(replica.path)))) == expected


def test_a_stream_has_each_row_once_with_either_replica_ahead(tmp_path: Path) -> None:
    """The replica that left the rows out has not recorded that yet when the other is read."""
    one, two, spools = pair(tmp_path)
    killed_within_a_batch(one, two)
    reader = stream_reader(spools, reader="r")
    start = reader.initialOffset()
    middle = latest(reader, start)
    found = payloads(read(reader, start, middle))
    assert sorted(found) == sorted(names()[:30])
    published_again(two)
    middle = json.loads(json.dumps(middle))
    end = latest(reader, middle)
    found += payloads(read(reader, middle, end))
    published_again(one)
    assert latest(reader, json.loads(json.dumps(end))) == end
    assert sorted(found) == sorted([*names(), *names(1, 5), b"plain"])
    restarted = stream_reader(spools, reader="r")
    assert sorted(payloads(read(restarted, middle, end))) == sorted(found[30:])


def test_without_rows_of_a_sink_an_offset_is_a_digest(tmp_path: Path) -> None:
    one, two, spools = pair(tmp_path)
    for replica in (one, two):
        replica.deliver(OTHER, 1, [b"plain"])
        replica.commit()
    assert not SpoolReader(one.path).has_sink_rows
    reader = stream_reader(spools, reader="r")
    end = latest(reader, reader.initialOffset())
    assert ROWS not in end
    two.deliver(FIRST, 1, rows(0, 2))
    two.commit()
    end = latest(reader, end)
    assert end[ROWS] == [["query", [[0, [[0, 2]]]]]]
    assert digest(end) == {str(OTHER): 1, str(FIRST): 3}
    alone = stream_reader(two.path, reader="r")
    assert ROWS not in latest(alone, alone.initialOffset())


def test_whatever_each_replica_had_and_whenever_it_is_read(tmp_path: Path) -> None:
    """Two publishers are killed, or only stand still, and the third completes the batch."""
    for seed in range(20):
        rng = random.Random(seed)
        one, two, spools = pair(tmp_path / str(seed))
        lives = [FIRST, SECOND, Address(0xD, 1)]
        ends = {
            (replica, life): rng.randrange(BATCH) if life < 2 else BATCH
            for replica in (0, 1)
            for life in range(3)
        }
        reached = dict.fromkeys(ends, 0)
        reader = stream_reader(spools, reader="r")
        offset = reader.initialOffset()
        found: list[bytes] = []
        high = {
            str(lives[life]): max(ends[0, life], ends[1, life])
            for life in range(3)
            if max(ends[0, life], ends[1, life])
        }
        for _ in range(1000):
            if reached == ends and digest(offset) == high:
                break
            key = rng.choice([key for key in ends if reached[key] < ends[key]] or [None])
            if key is not None:
                count = min(rng.randrange(1, 8), ends[key] - reached[key])
                replica, life = key
                to = (one, two)[replica]
                to.deliver(
                    lives[life], reached[key] + 1, rows(reached[key], reached[key] + count - 1)
                )
                to.commit()
                reached[key] += count
            if key is None or rng.random() < 0.3:
                if rng.random() < 0.5:
                    reader = stream_reader(spools, reader="r")
                    reader.initialOffset()
                start, limit = offset, ReadMaxRows(rng.randrange(1, 60))
                offset = json.loads(json.dumps(latest(reader, start, limit)))
                found += payloads(read(reader, start, offset))
        assert digest(offset) == high
        assert sorted(found) == sorted(names()), seed


def test_the_record_is_bounded_and_forgets_towards_new() -> None:
    record = ReadRows()
    for batch in range(100):
        for number in range(0, 2000, 2):
            assert record.take(SinkRowId("query", batch, 0, number))
    ((query, batches),) = record.state()
    assert (query, [batch for batch, _ in batches]) == ("query", list(range(92, 100)))
    assert {len(ranges) for _, ranges in batches} == {sink_rows.MAX_RANGES}
    assert not record.take(SinkRowId("query", 99, 0, 1998))
    assert record.take(SinkRowId("query", 99, 0, 0)), "forgotten rows count as new"
    assert record.take(SinkRowId("query", 3, 0, 0)), "so do rows of a forgotten batch"
    for number in range(100):
        record.take(SinkRowId(f"query {number}", 0, 0, 0))
    assert len(record.state()) == sink_rows.MAX_QUERIES
    assert ReadRows(json.loads(json.dumps(record.state()))).state() == record.state()


def test_messages_are_cut_out_of_the_middle_of_records(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "spool")
    replica.deliver(FIRST, 1, [b"%d" % number for number in range(1, 21)])
    replica.deliver(OTHER, 1, [b"x%d" % number for number in range(1, 6)])
    replica.deliver(FIRST, 21, [b"%d" % number for number in range(21, 31)])
    replica.commit()
    view = SpoolReader(replica.path)
    (index,) = view.segments()
    wanted: columnar.StreamRanges = {FIRST: (0, 0, 30), OTHER: (1, 0, 5)}
    (chunk,) = columnar.scan(
        replica.path, view.info.spool_id, index.number, 0 + 64, index.end, wanted
    )
    keys = [str(FIRST), str(OTHER)]
    cut = columnar.without_seqnos(
        chunk, {keys[0]: [(1, 2), (5, 7), (20, 22)], keys[1]: [(1, 5)]}, keys
    )
    left = [3, 4, *range(8, 20), *range(23, 31)]
    assert cut.payload == b"".join(b"%d" % number for number in left)
    assert cut.lengths.tolist() == [len(b"%d" % number) for number in left]
    assert [
        seqno
        for first, count in zip(cut.first.tolist(), cut.rows.tolist(), strict=True)
        for seqno in range(first, first + count)
    ] == left
    assert set(cut.stream.tolist()) == {0}
    nothing = columnar.without_seqnos(chunk, {key: [(1, 99)] for key in keys}, keys)
    assert (len(nothing.rows), nothing.payload) == (0, b"")
    assert columnar.without_seqnos(chunk, {}, keys) is chunk
    assert detach_headers(row(1))[1] == b"0/1"


def lost_after_the_offset(tmp_path: Path, **options: Any) -> tuple[Any, Any, Any]:
    """Return a new reader and two offsets; the replica with the rows between them is lost."""
    one, two, spools = pair(tmp_path)
    killed_within_a_batch(one, two)
    reader = stream_reader(spools, reader="r", **options)
    start = reader.initialOffset()
    end = json.loads(json.dumps(latest(reader, start)))
    for replica in (one, two):
        replica.deliver(SECOND, 1, rows(0, BATCH - 1))
        if replica is two:
            replica.deliver(FIRST, 11, rows(10, 29))
        replica.commit()
    one.spool.close()
    shutil.rmtree(one.path)
    again = stream_reader(spools, reader="r", **options)
    again.initialOffset()
    return again, start, end


def test_rows_of_an_offset_that_no_replica_has_any_more_are_a_loss(tmp_path: Path) -> None:
    reader, start, end = lost_after_the_offset(tmp_path)
    with pytest.raises(DataLossError, match="20 sink rows of this batch are in no spool any more"):
        read(reader, start, end)


def test_a_reader_may_go_on_without_the_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader, start, end = lost_after_the_offset(tmp_path, failOnDataLoss="false")
    assert len(read(reader, start, end)) == 10
    assert "20 sink rows" in caplog.text


def test_rows_dropped_at_a_limit_are_not_missed() -> None:
    rows_read = ReadRows()
    for batch in range(sink_rows.MAX_BATCHES + 2):
        rows_read.take(SinkRowId("query", batch, 0, 0))
    assert rows_read.lacks([["query", [[0, [[0, 5]]]]]]) == 0
    assert rows_read.lacks([["query", [[sink_rows.MAX_BATCHES, [[0, 5]]]]]]) == 5
    assert rows_read.lacks([["other", [[3, [[0, 5]]]]]]) == 6
