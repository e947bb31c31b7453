"""The pipeline in a real Spark: types, problems, windows, watermarks, repeated batches, kills."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException

from gapless.errors import ConfigError
from gapless.keys.keyring import Keyring
from gapless_lab.sensor_pipeline.plan import PipelinePlan
from gapless_lab.sensor_pipeline.readings import BREAKS, START, Reading, reading
from gapless_lab.sensor_pipeline.report import watermark_of
from gapless_lab.sensor_pipeline.runner import run
from gapless_lab.workload import read_ledger
from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.tables import Bronze, Gold, SchemaError, Silver
from pyspark_gapless.tables.pipeline import (
    Pipeline,
    cast_columns,
    discard_unplanned_batch,
    parse_payload,
)
from pyspark_gapless.tables.table import ParquetTable
from tests.support.spools import A, B, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

PATIENCE_S = 240.0
"""How long a command may take on a machine that is busy."""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "spool")
    yield made
    made.close()


def rows(table: ParquetTable[Any], *names: str) -> list[tuple[Any, ...]]:
    """Return what a reader sees that knows nothing of Spark: all Parquet files of the folder."""
    found = ds.dataset(table.folder, format="parquet", partitioning="hive").to_table(
        columns=list(names)
    )
    made = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return sorted(made, key=lambda row: [(value is None, value) for value in row])


def keys(table: ParquetTable[Any]) -> list[tuple[Any, ...]]:
    return rows(table, "origin", "seqno")


def numbered(origin: object, count: int) -> list[tuple[str, int]]:
    return [(str(origin), seqno) for seqno in range(1, count + 1)]


def payload(minutes: float, site: str = "north", celsius: float = 20.0) -> bytes:
    at = START + timedelta(minutes=minutes)
    return Reading(site, "s1", 1, at, celsius, 50.0, "").payload()


# Datasets


def test_a_dataset_checks_its_schema(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], Silver.ddl())
    assert Silver(frame.select(*reversed(frame.columns))).frame.columns == list(Silver.columns), (
        "the order is its own"
    )
    wrong = (
        frame.withColumn("celsius", frame.celsius.cast("string"))
        .drop("at")
        .withColumn("extra", frame.site)
    )
    with pytest.raises(SchemaError) as caught:
        Silver(wrong)
    for said in (
        "not a silver table",
        "'celsius' is string, not double",
        "'at' is missing",
        "'extra' is not one of",
    ):
        assert said in str(caught.value)
    with pytest.raises(SchemaError, match="'site' is there twice"):
        Silver(frame.select("*", "site"))


def test_a_step_with_a_wrong_method_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, tmp_path / "spool")
    pipeline.prepare()
    forgets = pipeline._step(
        lambda spark: pipeline.bronze.stream(spark).frame, (parse_payload,), pipeline.silver
    )
    with pytest.raises(SchemaError, match="'problem' is missing"):
        forgets.start(spark)


# Methods


def test_silver_has_types_and_names_every_problem(spark: SparkSession) -> None:
    good = reading(1, 1, 1)
    assert not good.broken
    sent = {name: good._replace(broken=name).payload() for name in BREAKS}
    sent |= {
        "": good.payload(),
        "no site": b'{"sensor":"s1"}',
        "no number": good.payload().replace(b'"number"', b'"nummer"'),
        "number is no bigint": good.payload().replace(b'"number":1', b'"number":"one"'),
        "humidity out of range": good._replace(humidity=101.0).payload(),
    }
    others = [b"\xff\xfe\x00", b"", b"[1]", b"5", b"null"]
    at = datetime(2026, 1, 1, tzinfo=UTC)
    made: list[tuple[Any, ...]] = [
        ("g", "a.1", "", "a", 1, n, "ordered", 1, at, at, {}, bytearray(each))
        for n, each in enumerate([*sent.values(), *others])
    ]
    silver = Silver(
        cast_columns(parse_payload(Bronze(spark.createDataFrame(made, Bronze.ddl())).frame))
    )
    found = silver.frame.orderBy("seqno").collect()
    assert [row.problem for row in found] == [
        *(name or None for name in sent),
        *["not a JSON object"] * len(others),
    ]
    row = found[list(sent).index("")]
    assert (row.site, row.number, row.celsius, row.humidity) == (
        good.site,
        1,
        good.celsius,
        good.humidity,
    )
    assert row["at"].replace(tzinfo=UTC) == good.at
    assert found[list(sent).index("celsius out of range")].celsius == 999.9, (
        "what could be read is there"
    )


# Steps


def test_a_watermark_lets_late_readings_in_and_leaves_those_out_that_come_too_late(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    pipeline = Pipeline(tmp_path, writer.path)
    pipeline.prepare()
    writer.run(
        A,
        [
            payload(0.5, celsius=20),
            payload(0.9, celsius=22),
            payload(8.5),
            b"broken",
            payload(30.5),
        ],
    )
    writer.commit()
    pipeline.catch_up(spark)
    # The watermark is 10 minutes behind the latest reading, and gold has what ended before it.
    assert watermark_of(pipeline.steps[2].checkpoint) == START + timedelta(minutes=20.5)
    first = (START, START + timedelta(minutes=1), "north", 2, 21.0, 20.0, 22.0, 50.0)
    gold = rows(pipeline.gold, *Gold.columns)
    assert gold[0] == first
    assert [row[3] for row in gold] == [2, 1]
    writer.run(B, [payload(20.7), payload(20.2), payload(0.1), payload(45.5)])
    writer.commit()
    pipeline.catch_up(spark)
    gold = rows(pipeline.gold, *Gold.columns)
    assert [(row[0] - START).total_seconds() / 60 for row in gold] == [0, 8, 20, 30]
    assert gold[0] == first, "a window that is over does not change"
    assert [row[3] for row in gold] == [2, 1, 2, 1], (
        "late by less than 10 minutes counts, whatever was seen before"
    )
    assert len(rows(pipeline.silver, "seqno")) == 9, "what is too late or broken is in silver"


class Stumbling(ParquetTable[Any]):
    """A table that fails at its first batches: before and after the batch is there."""

    falls = 0

    def publish(self, frame: DataFrame, batch: int) -> None:
        self.falls += 1
        if self.falls == 1:
            frame.write.parquet(f"file:{self._staging}/{batch}-left")
            raise RuntimeError("fell before the batch was there")
        super().publish(frame, batch)
        if self.falls == 2:
            raise RuntimeError("fell after the batch was there")


def test_a_batch_that_is_done_again_is_there_once(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    writer.runs(A, 300)
    writer.commit()
    pipeline = Pipeline(tmp_path, writer.path)
    pipeline.prepare()
    table = Stumbling(tmp_path, Bronze)
    table.prepare()
    step = pipeline._step(pipeline._messages, (), table)
    step.catch_up(spark, tries=3)
    assert table.falls == 3
    assert keys(table) == numbered(A, 300)
    assert table.rows == 300
    assert list((tmp_path / "staging").rglob("*.parquet")), (
        "what the first attempt has left is not in the table"
    )
    fresh = ParquetTable(tmp_path, Bronze)
    fresh.prepare()
    assert (fresh.batches, fresh.rows) == (1, 300)
    assert not list((tmp_path / "staging").rglob("*.parquet"))


# Runs


def sent_by(output: Path) -> dict[tuple[str, int], bytes]:
    """Return what was acknowledged by the ledgers, by stream and seqno."""
    found = {}
    for path in (output / "producers").glob("*.jsonl"):
        for life in read_ledger(path).incarnations:
            for seqno in range(1, life.acknowledged + 1):
                found[life.origin, seqno] = reading(
                    1, int(path.stem), life.first + seqno - 1
                ).payload()
    return found


def expected_gold(
    output: Path, counts: dict[int, int]
) -> dict[tuple[datetime, str], tuple[Any, ...]]:
    """Return the expected gold rows of complete windows, by a loop over all timely readings."""
    over: defaultdict[tuple[datetime, str], list[Reading]] = defaultdict(list)
    watermark = watermark_of(output / "checkpoints" / "gold")
    assert watermark is not None
    for producer, count in counts.items():
        for each in (reading(1, producer, number) for number in range(1, count + 1)):
            start = each.at.replace(second=0, microsecond=0)
            if not each.broken and start >= START and start + timedelta(minutes=1) <= watermark:
                over[start, each.site].append(each)
    return {
        key: (
            len(found),
            pytest.approx(statistics.fmean(each.celsius for each in found)),
            min(each.celsius for each in found),
            max(each.celsius for each in found),
            pytest.approx(statistics.fmean(each.humidity for each in found)),
        )
        for key, found in over.items()
    }


def check_tables(output: Path, counts: dict[int, int]) -> None:
    pipeline = Pipeline(output, output / "spool")
    bronze = rows(pipeline.bronze, "origin", "seqno", "payload")
    assert len(bronze) == sum(counts.values())
    assert {(origin, seqno): payload for origin, seqno, payload in bronze} == sent_by(output)
    problems: defaultdict[str | None, int] = defaultdict(int)
    for producer, count in counts.items():
        for number in range(1, count + 1):
            problems[reading(1, producer, number).broken or None] += 1
    silver = [problem for (problem,) in rows(pipeline.silver, "problem")]
    assert {problem: silver.count(problem) for problem in set(silver)} == problems
    gold = {
        (row[0], row[2]): row[3:] for row in rows(pipeline.gold, *Gold.columns) if row[0] >= START
    }
    expected = expected_gold(output, counts)
    assert len(expected) >= 6, "some windows are over"
    assert gold == expected


def test_a_run_from_producers_to_gold(spark: SparkSession, tmp_path: Path) -> None:
    output = tmp_path / "out"
    stands: list[Any] = []
    report = run(
        PipelinePlan(output=output, producers=2, messages=4200, rate=None, once=True), stands.append
    )
    assert report.is_exact, report.problems
    assert (report.sent, report.acknowledged, report.bronze, report.silver) == (
        8400,
        8400,
        8400,
        8400,
    )
    assert (report.lost, report.repeated, report.streams) == (0, 0, 2)
    assert report.bronze == sum(
        report.rejected.values()
    ) + report.too_late + report.still_open + sum(
        count for (count,) in rows(Pipeline(output, output / "spool").gold, "readings")
    )
    assert 0 < report.latency_s["p50"] <= report.latency_s["p99"] <= report.latency_s["max"]
    check_tables(output, {1: 4200, 2: 4200})
    phases = list(dict.fromkeys(stand.phase for stand in stands))
    assert phases == ["Spark starts", "sending", "catching up", "checking"]
    assert stands[-1].rows == {"bronze": 8400, "silver": 8400, "gold": report.gold}
    assert stands[-1].lag == 0


def test_a_run_with_an_encrypted_spool(spark: SparkSession, tmp_path: Path) -> None:
    """The collector encrypts; the producers that continue, Spark and the report decrypt."""
    tmp_path.chmod(0o700)
    ring, output = tmp_path / "spool-keys.toml", tmp_path / "out"
    Keyring.new().create(ring)
    for messages in (200, 300):
        plan = PipelinePlan(
            output=output, producers=1, messages=messages, rate=None, once=True, spool_keys=ring
        )
        report = run(plan)
        assert report.is_exact, report.problems
        assert (report.acknowledged, report.bronze) == (messages, messages)
    segments = [path.read_bytes() for path in (output / "spool" / "segments").glob("*.run")]
    assert segments
    assert not any(b'"celsius"' in data for data in segments)
    other = PipelinePlan(output=tmp_path / "other", spool=output / "spool", spool_keys=ring)
    report = run(other)
    assert report.is_exact, report.problems
    assert (report.acknowledged, report.bronze) == (300, 300)


def test_what_a_kill_left_of_the_first_plan_is_in_nobodys_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    spark.range(5).write.parquet(str(source))
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0.torn.tmp").touch()

    def numbers() -> int:
        rows = spark.readStream.schema("id bigint").parquet(str(source))
        query = (
            rows.groupBy("id")
            .count()
            .writeStream.format("memory")
            .queryName("torn")
            .outputMode("complete")
        )
        query.option("checkpointLocation", str(checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()
        return spark.table("torn").count()

    with pytest.raises(StreamingQueryException, match="should be empty on batch 0"):
        numbers()
    discard_unplanned_batch(checkpoint)
    assert numbers() == 5
    discard_unplanned_batch(checkpoint)
    assert (checkpoint / "offsets" / "0").exists()


COMMAND = "from gapless.cli import main; main()"


def test_a_run_that_is_killed_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    output = tmp_path / "out"
    options = [
        "--output",
        str(output),
        "--producers",
        "2",
        "--rate",
        "1000",
        "--messages",
        "6000",
        "--master",
        "local[2]",
    ]
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "pipeline", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JDK_JAVA_OPTIONS": FAST_START_JVM_OPTIONS,
        },
    )
    assert command.stderr is not None
    lines = []
    for line in command.stderr:  # one a second
        lines.append(line)
        if " streaming: " in line and "bronze 0 " not in line:
            break
    command.send_signal(signal.SIGKILL)
    command.stderr.close()
    assert command.wait() == -signal.SIGKILL, "".join(lines)
    before = len(sent_by(output))
    assert 0 < before < 12_000, "it was killed in the middle"
    report = run(PipelinePlan(output=output, producers=2, messages=6000, rate=None, once=True))
    assert report.is_exact, report.problems
    assert (report.acknowledged, report.bronze, report.silver) == (12_000, 12_000, 12_000)
    assert (report.lost, report.repeated, report.streams) == (0, 0, 4)
    assert report.sent < 12_000
    check_tables(output, {1: 6000, 2: 6000})


def test_a_spool_of_somebody_else(spark: SparkSession, writer: Writer, tmp_path: Path) -> None:
    writer.run(A, [payload(minute) for minute in range(30)])
    writer.large(B, payload(31), 3)
    writer.commit()
    report = run(PipelinePlan(output=tmp_path / "out", spool=writer.path))
    assert report.is_exact
    assert (report.acknowledged, report.bronze, report.silver, report.sent) == (31, 31, 31, 0)
    assert report.gold > 0
    (tmp_path / "out" / "checkpoints").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is gone"):
        run(PipelinePlan(output=tmp_path / "out", spool=writer.path))
