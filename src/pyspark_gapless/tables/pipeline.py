"""From messages to tables: bronze as received, silver with types, gold aggregated by event time.

A *method* is a pure function from DataFrame to DataFrame. A *step* reads, chains methods and writes
a table. A step is a streaming query with its own checkpoint, so a restarted step continues.
docs/guides/pipeline.md shows the whole.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gapless.logger import logger_of
from pyspark_gapless.tables import Bronze, Dataset, Gold, Silver
from pyspark_gapless.tables.table import ParquetTable, check_path, uri

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logger_of("spark")

Transform = Callable[["DataFrame"], "DataFrame"]
"""A pure function from DataFrame to DataFrame."""

WATERMARK_DELAY: Final = "10 minutes"
"""Maximum lateness of a reading, behind the latest reading, that still counts in gold."""
WINDOW: Final = "1 minute"
"""Length of the time windows of gold."""
CELSIUS: Final = (-60.0, 60.0)
HUMIDITY: Final = (0.0, 100.0)
"""The range of a sensor; any other value is a fault of the sensor."""

SLOW_WORKER_ERROR: Final = "Python worker failed to connect back"
"""Spark's message for a Python worker that was not up within ten seconds: a busy machine."""
MAX_SLOW_FAILURES: Final = 20
"""Maximum number of slow starts in a row before a step fails."""

_PYTHON_ERROR: Final = re.compile(
    r"(?:(?:pyspark_)?gapless\.[\w.]+: (?P<ours>.+)|[\w.]*(?:Error|Exception): .+)"
)
_TEXTS: Final = (
    "site string, sensor string, number string, at string, "
    "celsius string, humidity string, broken string"
)


# Methods


def parse_payload(frame: DataFrame) -> DataFrame:
    """Parse the payload as a JSON object and make its fields text columns: text is never wrong."""
    from pyspark.sql import functions as F  # noqa: N812

    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"}
    found = F.from_json(F.col("payload").cast("string"), _TEXTS, options)
    made = frame.withColumn("json", found).select(
        "origin", "seqno", "sent", "collected", "json", "json.*"
    )
    return made.withColumn("broken", F.col("json").isNull() | F.col("broken").isNotNull()).drop(
        "json"
    )


def cast_columns(frame: DataFrame) -> DataFrame:
    """Cast the columns to their types; set the ``problem`` of each row: first fault, or null."""
    from pyspark.sql import functions as F  # noqa: N812

    kinds = {name: Silver.columns[name] for name in ("number", "at", "celsius", "humidity")}
    typed = {name: F.col(name).try_cast(kind) for name, kind in kinds.items()}
    problems = [
        _when(F.col("broken"), "not a JSON object"),
        *(_when(F.col(name).isNull(), f"no {name}") for name in ("site", "sensor", *kinds)),
        *(_when(typed[name].isNull(), f"{name} is no {kind}") for name, kind in kinds.items()),
        *(
            _when(~typed[name].between(*limits), f"{name} out of range")
            for name, limits in (("celsius", CELSIUS), ("humidity", HUMIDITY))
        ),
    ]
    return frame.select(
        *("origin", "seqno", "sent", "collected", "site", "sensor"),
        *(value.alias(name) for name, value in typed.items()),
        F.coalesce(*problems).alias("problem"),
    )


def _when(condition: Column, problem: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(condition, F.lit(problem))


def drop_invalid(frame: DataFrame) -> DataFrame:
    """Drop the rows with a problem."""
    return frame.where("problem is null")


def aggregate(frame: DataFrame) -> DataFrame:
    """Aggregate the readings of each site and window once the window is older than LATE."""
    from pyspark.sql import functions as F  # noqa: N812

    found = (
        frame.withWatermark("at", WATERMARK_DELAY)
        .groupBy(F.window("at", WINDOW).alias("over"), "site")
        .agg(
            F.count("*").alias("readings"),
            F.avg("celsius").alias("celsius_mean"),
            F.min("celsius").alias("celsius_min"),
            F.max("celsius").alias("celsius_max"),
            F.avg("humidity").alias("humidity_mean"),
        )
    )
    start, end = F.col("over.start").alias("window_start"), F.col("over.end").alias("window_end")
    return found.select(
        start, end, *(name for name in Gold.columns if not name.startswith("window_"))
    )


# Steps


def discard_unplanned_batch(checkpoint: Path) -> None:
    """Forget a first batch that was never planned: Spark does not start beside a torn plan."""
    offsets = checkpoint / "offsets"
    if offsets.is_dir() and not any(file.name.isdigit() for file in offsets.iterdir()):
        for name in ("offsets", "commits", "state"):
            shutil.rmtree(checkpoint / name, ignore_errors=True)


@dataclass(frozen=True)
class PipelineStep:
    """Read, chain, write: a streaming query that fills a table from its checkpoint on."""

    read: Callable[[SparkSession], DataFrame]
    transforms: tuple[Transform, ...]
    table: ParquetTable[Any]
    checkpoint: Path

    @property
    def name(self) -> str:
        """The name of the table."""
        return str(self.table.kind.name)

    def start(self, spark: SparkSession, *, every_s: float | None = None) -> StreamingQuery:
        """Start the query: a batch every so many seconds, or with None only the available rows."""
        made: Dataset = self.table.kind(
            reduce(lambda frame, method: method(frame), self.transforms, self.read(spark))
        )
        query = (
            made.frame.writeStream.queryName(self.name)
            .foreachBatch(self.table.publish)
            .outputMode("append")
        )
        discard_unplanned_batch(self.checkpoint)
        query = query.option("checkpointLocation", uri(self.checkpoint))
        if every_s is None:
            return query.trigger(availableNow=True).start()
        return query.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start()

    def catch_up(self, spark: SparkSession, tries: int = 1) -> None:
        """Process the available rows; after a failure continue from the checkpoint, a few times."""
        from pyspark.errors import StreamingQueryException

        patience = RetryLimit(self, tries)
        while True:
            try:
                self.start(spark).awaitTermination()
            except StreamingQueryException as error:
                patience.on_failure(error)
            else:
                return


class RetryLimit:
    """Maximum number of failures of a step in a row, without progress of the table."""

    def __init__(self, step: PipelineStep, tries: int) -> None:
        self.step = step
        self._tries = tries
        self._failures = self._slow = 0
        self._batches = step.table.batches

    def on_failure(self, error: Exception) -> None:
        """Count a failure; raise the failure beyond the maximum."""
        if self.step.table.batches > self._batches:
            self._failures = self._slow = 0
        self._batches = self.step.table.batches
        text = str(error)
        if SLOW_WORKER_ERROR in text:
            self._slow += 1
        else:
            self._failures += 1
        if self._failures >= self._tries or self._slow > MAX_SLOW_FAILURES:
            raise error
        log.warning(
            "%s failed and continues from its checkpoint: %s", self.step.name, root_cause(text)
        )


def root_cause(text: str) -> str:
    """Return the line of Spark's message with the cause: the Python error, or the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [found for line in lines if (found := _PYTHON_ERROR.fullmatch(line))]
    if SLOW_WORKER_ERROR in text:
        return SLOW_WORKER_ERROR
    if not raised:
        return lines[0] if lines else "Spark gave no reason"
    return raised[-1]["ours"] or raised[-1][0]


class Pipeline:
    """The three steps over a spool; tables and checkpoints are under ``root``."""

    def __init__(self, root: Path | str, spool: Path | str, **source: str) -> None:
        self.root, self.spool = Path(root).absolute(), Path(spool).absolute()
        check_path(self.spool)
        self._source = source
        self.bronze, self.silver, self.gold = (
            ParquetTable(self.root, kind) for kind in (Bronze, Silver, Gold)
        )
        self.tables: tuple[ParquetTable[Any], ...] = (self.bronze, self.silver, self.gold)
        self.steps = (
            self._step(self._messages, (), self.bronze),
            self._step(
                lambda spark: self.bronze.stream(spark).frame,
                (parse_payload, cast_columns),
                self.silver,
            ),
            self._step(
                lambda spark: self.silver.stream(spark).frame, (drop_invalid, aggregate), self.gold
            ),
        )

    def _step(
        self,
        read: Callable[[SparkSession], DataFrame],
        chain: tuple[Transform, ...],
        table: ParquetTable[Any],
    ) -> PipelineStep:
        return PipelineStep(read, chain, table, self.root / "checkpoints" / table.kind.name)

    def _messages(self, spark: SparkSession) -> DataFrame:
        return (
            spark.readStream.format("gapless")
            .option("spool", str(self.spool))
            .options(**self._source)
            .load()
        )

    def prepare(self) -> None:
        """Make the folders and count the present rows."""
        for table in self.tables:
            table.prepare()

    def start(self, spark: SparkSession, every_s: float = 0.5) -> list[StreamingQuery]:
        """Start all steps at once, each with a batch every so many seconds, until stopped."""
        return [step.start(spark, every_s=every_s) for step in self.steps]

    def catch_up(self, spark: SparkSession, tries: int = 1) -> None:
        """Run the steps in order over the available data; then every table is complete."""
        for step in self.steps:
            step.catch_up(spark, tries)
