"""The source in a real Spark: streams, restarts, limits, batches, filters, payloads, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gapless.keys.keyring import Keyring
from gapless.spool import SpoolReader
from gapless.spool.segment_file import segment_path
from tests.pyspark_gapless.source.test_partition_reader import damage
from tests.support.spools import A, B, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "spool")
    yield made
    made.close()


def drain(frame: DataFrame, folder: Path, **writing: str) -> StreamingQuery:
    """Run a query until it has taken what is available into the table ``folder/table``."""
    writer = frame.writeStream.format("parquet").option(
        "checkpointLocation", str(folder / "checkpoint")
    )
    query = writer.options(**writing).trigger(availableNow=True).start(str(folder / "table"))
    query.awaitTermination()
    return query


def table(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    frame = spark.read.parquet(str(folder / "table"))
    return sorted(tuple(row) for row in frame.select("origin", "seqno", "payload").collect())


def expected(**counts: int) -> list[tuple[str, int, bytes]]:
    return sorted(
        (f"{node}.1", n, f"{node}.1-{n}".encode())
        for node, count in counts.items()
        for n in range(1, count + 1)
    )


def stream(spark: SparkSession, path: Path | str, **options: str) -> DataFrame:
    return spark.readStream.format("gapless").option("spool", str(path)).options(**options).load()


def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    writer.runs(A, 1000)
    writer.commit()
    query = drain(stream(spark, writer.path), tmp_path)
    assert table(spark, tmp_path) == expected(a=1000)
    (reader,) = SpoolReader(writer.path).consumers()
    assert reader.digest == {"a.1": 1000}, "what is committed is released when the query ends"
    writer.runs(A, 500)
    writer.runs(B, 300)
    writer.commit()
    writer.restart()
    query = drain(stream(spark, writer.path, maxRowsPerTrigger="200"), tmp_path)
    assert table(spark, tmp_path) == expected(a=1500, b=300)
    progress = [json.loads(each.json) for each in query.recentProgress]
    counts = [each["numInputRows"] for each in progress if each["numInputRows"]]
    assert len(counts) >= 4
    assert max(counts) <= 200
    assert [found.name for found in SpoolReader(writer.path).consumers()] == [reader.name], (
        "it is the same reader"
    )


def test_a_batch_that_failed_is_done_again_from_the_same_start(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    """The very first batch: its start is nowhere in Spark's logs."""
    writer.runs(A, 100)
    writer.commit()
    seen: list[list[int]] = []

    def fails_once(frame: DataFrame, _: int) -> None:
        seen.append(sorted(row.seqno for row in frame.select("seqno").collect()))
        if len(seen) == 1:
            raise RuntimeError("the sink has failed")

    def run() -> None:
        frame = stream(spark, writer.path, startingOffsets='{"a.1": 40}')
        start = frame.writeStream.foreachBatch(fails_once).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        start.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="the sink has failed"):
        run()
    writer.runs(A, 20)
    writer.commit()
    run()
    assert seen[0] == seen[1] == list(range(41, 101))
    assert [seqno for batch in seen[1:] for seqno in batch] == list(range(41, 121))


def test_an_encrypted_spool_is_read_with_its_keyring(spark: SparkSession, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    Keyring.new(cipher="aes-256-gcm").create(keys)
    made = Writer(tmp_path / "spool", keys=keys)
    made.runs(A, 1000)
    made.runs(B, 300)
    made.commit()
    made.close()
    drain(stream(spark, made.path, spoolKeys=str(keys)), tmp_path)
    assert table(spark, tmp_path) == expected(a=1000, b=300)
    label = Keyring.read(keys).sealing_key.label
    with pytest.raises(Exception, match=f"encrypted with the key {label}.*option spoolKeys"):
        drain(stream(spark, made.path), tmp_path / "without")


def test_a_damaged_replica_does_not_stop_a_query(spark: SparkSession, tmp_path: Path) -> None:
    one, two = Writer(tmp_path / "one"), Writer(tmp_path / "two")
    for each in (one, two):
        each.runs(A, 300)
        each.commit()
    damage(one.path, b"a.1-155")
    drain(stream(spark, f"{one.path},{two.path}"), tmp_path)
    assert table(spark, tmp_path) == expected(a=300)
    one.close()
    two.close()


def test_damage_without_a_replica_is_told(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    writer.runs(A, 300)
    writer.commit()
    damage(writer.path, b"a.1-155")
    with pytest.raises(
        Exception, match=f"{segment_path(writer.path, 1)}: the record at .*gapless spool repair"
    ):
        drain(stream(spark, writer.path), tmp_path)


def test_batches_with_ranges_columns_and_filters(spark: SparkSession, writer: Writer) -> None:
    writer.runs(A, 300)
    writer.runs(B, 200)
    writer.commit()
    frame = spark.read.format("gapless").load(str(writer.path))
    assert frame.count() == 500
    assert [field.name for field in frame.schema][-2:] == ["headers", "payload"]
    rows = (
        frame.where("origin = 'b.1' and seqno between 10 and 12")
        .select("name", "payload", "mode")
        .collect()
    )
    assert [tuple(row) for row in rows] == [
        ("ben", f"b.1-{n}".encode(), "ordered") for n in (10, 11, 12)
    ]
    part = (
        spark.read.format("gapless")
        .option("spool", str(writer.path))
        .option("columns", "seqno,origin")
    )
    part = part.option("from", '{"a.1": 290}').option("to", '{"a.1": 295}')
    assert sorted(tuple(row) for row in part.load().collect()) == [
        (n, "a.1") for n in range(291, 296)
    ]
    pruned = spark.read.format("gapless").schema("seqno long, node string").load(str(writer.path))
    assert pruned.groupBy("node").count().orderBy("node").collect() == [("a", 300), ("b", 200)]


def test_filters_are_pushed_down_when_spark_is_told_to(spark: SparkSession, writer: Writer) -> None:
    writer.runs(A, 300)
    writer.runs(B, 200)
    writer.commit()
    read = spark.read.format("gapless").option("spool", str(writer.path)).option("pushdown", "true")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = read.load().where("name = 'anna' and seqno > 290 and collected > '2020-01-01'")
        assert sorted(row.seqno for row in found.collect()) == list(range(291, 301))
        assert read.load().where("origin = 'nobody'").count() == 0
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_payloads_are_typed_and_bad_ones_flagged(spark: SparkSession, writer: Writer) -> None:
    writer.run(
        A, [b'{"id": 1, "at": "2026-01-02T03:04:05Z", "tags": {"x": 1}}', b"nonsense", b'{"id": 3}']
    )
    writer.commit()
    schema = "id long, at timestamp, tags map<string,int>"
    read = (
        spark.read.format("gapless")
        .option("spool", str(writer.path))
        .option("payload_schema", schema)
    )
    rows = (
        read.load()
        .orderBy("seqno")
        .selectExpr("id", "cast(at as double)", "tags", "payload_error is null")
        .collect()
    )
    assert [tuple(row) for row in rows] == [
        (1, 1767323045.0, {"x": 1}, True),
        (None, None, None, False),
        (3, None, None, True),
    ]


def test_a_wrong_option_is_told_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match='did you mean "columns"'):
        spark.read.format("gapless").option("spool", str(tmp_path)).option("colums", "x").load()
    with pytest.raises(Exception, match="there is no spool here yet"):
        spark.read.format("gapless").load(str(tmp_path / "none")).count()
