"""The source with a collector of its own, in a real group."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless import blocking
from gapless.errors import ConfigError
from gapless.spool import SpoolLocked, SpoolWriter
from pyspark_gapless.source import embedded_collector
from tests.support.networks import free_ports
from tests.support.real_groups import options
from tests.support.spools import latest, read, stream_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def network() -> tuple[dict[str, Any], dict[str, str]]:
    """Return how a member joins, and the options of a source whose collector meets it."""
    joining = options(free_ports(4))
    ports = f"{joining['ports'][0]}-{joining['ports'][-1]}"
    source = {
        "group": "tests",
        "collector.host": "127.0.0.1",
        "collector.ports": ports,
        "collector.sync": "false",
    }
    return joining, source | {"collector.discover": joining["discover"]}


def send(sender: blocking.Group, first: int, count: int) -> None:
    """Send messages that all members, the collector among them, acknowledge."""
    sent = [sender.send(b"m-%d" % n, mode="acknowledged") for n in range(first, first + count)]
    sent[-1].delivered(30)


def test_a_source_with_a_group_fills_its_spool_by_itself(tmp_path: Path) -> None:
    joining, source = network()
    reader = stream_reader(tmp_path / "spool", **source)
    with blocking.join("tests", **joining) as sender:
        start = reader.initialOffset()
        sender.wait_for_members(2, 30)
        send(sender, 1, 50)
        end = latest(reader, start)
        assert [row["payload"] for row in read(reader, start, end)] == [
            b"m-%d" % n for n in range(1, 51)
        ]
        with pytest.raises(SpoolLocked):
            SpoolWriter.open(tmp_path / "spool", group="tests")
        reader.stop()
        again = stream_reader(tmp_path / "spool", **source)
        latest(again, end)
        sender.wait_for_members(2, 30)
        send(sender, 51, 10)
        rows = read(again, end, latest(again, end))
        assert [row["payload"] for row in rows] == [b"m-%d" % n for n in range(51, 61)]
        again.stop()


def test_a_second_source_waits_for_the_spool_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_collector, "RETRY_S", 0.05)
    joining, source = network()
    first, second = (
        stream_reader(tmp_path / "spool", **source, reader=name) for name in ("one", "two")
    )
    with blocking.join("tests", **joining) as sender:
        first.initialOffset()
        start = second.initialOffset()
        sender.wait_for_members(2, 30)
        first.stop()
        sender.wait_for_members(2, 30)
        send(sender, 1, 5)
        assert len(read(second, start, latest(second, start))) == 5
        second.stop()


def test_a_wrong_option_of_the_collector_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a collector has no option 'max_byte'"):
        stream_reader(
            tmp_path / "spool", group="tests", **{"collector.max_byte": "1"}
        ).initialOffset()


@pytest.mark.xdist_group("spark")
def test_a_query_collects_and_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    joining, source = network()
    batches: dict[int, list[bytes]] = {}
    different: list[int] = []
    reached = threading.Condition()

    def seen() -> list[bytes]:
        return [payload for _, batch in sorted(batches.items()) for payload in batch]

    def take(frame: DataFrame, batch: int) -> None:
        rows = [bytes(row.payload) for row in frame.orderBy("seqno").select("payload").collect()]
        with reached:
            # A batch that was stopped before its commit comes again, and has to be the very same.
            if batches.setdefault(batch, rows) != rows:
                different.append(batch)
            reached.notify_all()

    def start() -> StreamingQuery:
        frame = (
            spark.readStream.format("gapless")
            .option("spool", str(tmp_path / "spool"))
            .options(**source)
            .load()
        )
        writer = frame.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        return writer.start()

    def enough(query: StreamingQuery, count: int) -> bool:
        return len(seen()) >= count or not query.isActive

    with blocking.join("tests", **joining) as sender:
        for first in (1, 101):
            query = start()
            sender.wait_for_members(2, 60)
            send(sender, first, 100)
            with reached:
                assert reached.wait_for(partial(enough, query, first + 99), 60)
            query.stop()
    assert seen() == [b"m-%d" % n for n in range(1, 201)]
    assert different == []
