"""The sink in a real Spark, with a real group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from tests.support.processes import ENVIRONMENT
from tests.support.sink_receiver import receiver, sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")
DRIVER = Path(__file__).resolve().parents[2] / "support" / "programs" / "sink_driver.py"


class Files:
    """A folder of files, one per batch, and the checkpoint of the query that reads them."""

    def __init__(self, folder: Path) -> None:
        self.input = folder / "input"
        self.input.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.rows: list[list[bytes]] = []

    def add(self, count: int) -> None:
        """Add a batch."""
        rows = [b"%d-%d" % (len(self.rows), row) for row in range(count)]
        path = self.input / f"{len(self.rows)}.txt"
        path.write_bytes(b"\n".join(rows) + b"\n")
        os.utime(path, (1e9 + len(self.rows), 1e9 + len(self.rows)))
        self.rows.append(rows)

    @property
    def all(self) -> list[bytes]:
        """Every row, in order."""
        return [row for batch in self.rows for row in batch]

    def frame(self, spark: SparkSession) -> DataFrame:
        """The files as a stream."""
        return (
            spark.readStream.schema("value string")
            .option("maxFilesPerTrigger", 1)
            .text(str(self.input))
        )

    def publish(self, frame: DataFrame, ports: list[int], **more: object) -> None:
        """Publish what there is."""
        writer = frame.writeStream.format("gapless").options(**sink_options(ports, **more))
        writer.option("checkpointLocation", str(self.checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    def forget(self, batch: int) -> None:
        """Let Spark believe that a batch was not committed."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    @property
    def staged(self) -> list[str]:
        """What is left of the sink's files."""
        return sorted(
            path.name for path in (self.checkpoint / "gapless-sink").rglob("*") if path.is_file()
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def said(error: BaseException) -> str:
    """Return what a user reads of an error: its last line that is not one of Spark's own."""
    lines = str(error).partition("=== Streaming Query ===")[0].splitlines()
    return next(
        line for line in reversed(lines) if line.strip() and not line.strip().startswith("SQLSTATE")
    )


def test_rows_come_once_and_in_order_also_when_a_batch_is_replayed(
    spark: SparkSession, files: Files
) -> None:
    with receiver() as (reader, ports):
        files.add(500)
        files.add(1)
        files.publish(files.frame(spark), ports)
        assert reader.until(501) == files.all
        assert [(row.batch, row.partition, row.row) for row in reader.rows()] == [
            *((0, 0, row) for row in range(500)),
            (1, 0, 0),
        ]
        assert files.staged == ["lock", "published.json"]

        # Spark has lost its memory of a batch that is published: nothing is sent again.
        files.forget(1)
        files.publish(files.frame(spark), ports)
        # The sink has lost its own as well: the rows are sent, and nobody is shown them.
        files.forget(1)
        next((files.checkpoint / "gapless-sink").rglob("published.json")).unlink()
        files.add(100)
        files.publish(files.frame(spark), ports)
        assert reader.all() == files.all
        assert reader.group.snapshot().counters["repeated"] == 1
        assert files.staged == ["lock", "published.json"]


def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hand on what comes, and fail in the middle of the second partition the first time."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        yield batch.slice(0, 10)
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            raise RuntimeError("a task that fails")
        yield batch.slice(10)


def test_a_task_that_is_tried_again_is_published_once_by_partition(spark: SparkSession) -> None:
    with receiver() as (reader, ports):
        rows = spark.range(0, 4000, 1, 4).selectExpr(
            "cast(id as string) payload", "map('k', cast('v' as binary)) headers"
        )
        rows = rows.mapInArrow(fails_once, rows.schema)
        rows.write.format("gapless").mode("append").options(**sink_options(ports)).save()
        assert reader.all() == [b"%d" % row for row in range(4000)]
        assert [row.partition for row in reader.rows()] == [row // 1000 for row in range(4000)]
        assert {headers["k"] for _, headers in reader.found} == {b"v"}


def test_whole_rows_as_json_and_what_is_refused_at_once(spark: SparkSession) -> None:
    with receiver() as (reader, ports):
        rows = spark.range(0, 10, 1, 1).selectExpr("id", "id * 0.5d half")
        rows.write.format("gapless").mode("append").options(
            **sink_options(ports, format="json")
        ).save()
        assert [json.loads(payload) for payload in reader.all()] == [
            {"id": n, "half": n / 2} for n in range(10)
        ]

        def refused(frame: DataFrame, mode: str = "append", **options: object) -> str:
            with pytest.raises(PySparkException) as caught:
                frame.write.format("gapless").mode(mode).options(
                    **sink_options(ports, **options)
                ).save()
            return said(caught.value)

        assert "the message column is not clear: the columns are id bigint, half double" in refused(
            rows
        )
        assert 'use .mode("append")' in refused(rows.selectExpr("'x' payload"), "overwrite")
        assert 'unknown option "minmember"; did you mean "minMembers"?' in refused(
            rows, minMember=2
        )
        assert "1 rows have a null payload" in refused(
            spark.sql("select cast(null as string) payload")
        )
        assert "rows cannot be staged in /proc/" in refused(
            rows.selectExpr("'x' payload"), staging="/proc/x"
        )
        assert reader.all() == [payload for payload, _ in reader.found]


def test_a_group_that_is_not_there_fails_the_query_and_nothing_is_lost(
    spark: SparkSession, files: Files
) -> None:
    files.add(50)
    with receiver() as (reader, ports):
        with pytest.raises(PySparkException) as caught:
            files.publish(files.frame(spark), ports, minMembers=3, joinTimeout="1s")
        assert "group 'tests' was not joined within 1s: tests has 2 of 3 members" in said(
            caught.value
        )
        assert "minMembers" in said(caught.value)
        assert [name[:7] for name in files.staged] == [
            "0-0-" + files.staged[0][4:7],
            "batch-0",
            "lock",
        ]
        files.add(50)
        files.publish(files.frame(spark), ports)
        assert reader.all() == files.all


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found += descendants(int(path.parent.name))
    return found


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a driver, its JVM and its Python processes at once, like a power failure."""
    processes = descendants(process.pid)
    for each in processes:
        os.kill(each, signal.SIGSTOP)
    for each in {*processes, *descendants(process.pid)}:
        os.kill(each, signal.SIGKILL)
    process.communicate()


def test_a_driver_that_is_killed_while_it_publishes(spark: SparkSession, files: Files) -> None:
    """What has come by then is not shown again, and the rest comes, in order."""
    files.add(20)
    files.add(3000)
    knobs = {"capacity": 128, "unread_limit": 128}
    with receiver(slow_after=700, **knobs) as (reader, ports):
        options = sink_options(ports, **{f"config.{name}": value for name, value in knobs.items()})
        told = {"input": str(files.input), "checkpoint": str(files.checkpoint), "options": options}
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(told)],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            reader.until(700)
        finally:
            kill(driver)
        assert "batch-1.json" in files.staged, "it was in the middle of the second batch"
        reader.go_on()
        files.add(10)
        files.publish(files.frame(spark), ports)
        assert reader.all() == files.all
        assert {(row.batch, row.row) for row in reader.rows()} == {
            (batch, row) for batch, rows in enumerate(files.rows) for row in range(len(rows))
        }
        assert reader.group.snapshot().counters["repeated"] >= 680
        assert files.staged == ["lock", "published.json"]
