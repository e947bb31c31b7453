"""Rows a second from a spool into Spark, beside Spark's Parquet reader and a plain loop.

Each cell is a spool of messages of the same size, in the runs of a busy sender (60 KB) or in runs
of 1 to 10 messages, as from an idle sender. The table of the Parquet reader was written from the
same spool.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import StreamingQueryException

from bench.measuring import Again, Sample, alternate, ratio, spread
from gapless.identity import Address
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.spool import SpoolLimits, SpoolReader, SpoolWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAMS = 3
LARGE_BYTES = 60_000
SMALL_MOST = 10
COMMIT_BYTES = 1024 * 1024
FEW = ("origin", "seqno", "payload")
"""The columns of a read with few columns; a read has all twelve by default."""
READER = "bench"
PARQUET, PARQUET_FEW, COPY, LOOP = (
    "parquet",
    "parquet, few columns",
    "parquet to parquet",
    "python loop",
)
BASELINES = {
    "batch": PARQUET,
    "batch, few columns": PARQUET_FEW,
    "stream": PARQUET,
    "stream, few columns": PARQUET_FEW,
    "batch to parquet": COPY,
    "stream to parquet": COPY,
}
"""The measured reads, and Spark's own reader beside each."""


class Cell(NamedTuple):
    """A spool to read."""

    size_bytes: int
    runs: str
    rows: int


@dataclass(frozen=True)
class Figure:
    """A line: medians; ``ratio_*`` and ``*_spread`` have the median, the lowest and the highest.

    ``ratio_speed`` is to Spark's own Parquet reader in the same round, ``ratio_cpu`` likewise;
    ``ratio_loop`` is how many times as fast as a Python loop over the same rows.
    """

    size_bytes: int
    runs: str
    rows: int
    what: str
    baseline: str
    ratio_speed: list[float]
    ratio_cpu: list[float]
    ratio_loop: list[float]
    rows_per_s: int
    rows_per_s_spread: list[float]
    mb_per_s: float
    cpu_s_per_million: float


def fill(root: Path, cell: Cell) -> None:
    """Write the spool of a cell; payloads are random, so that compression wins nothing."""
    random, noise = Random(cell.size_bytes), os.urandom(4 * COMMIT_BYTES)
    origins = [Address(0xA1 + at, 1) for at in range(STREAMS)]
    following = [1] * STREAMS
    left = cell.rows
    with SpoolWriter.open(
        root, group="bench", limits=SpoolLimits(max_bytes=0), sync=False
    ) as spool:
        at = 0
        while left:
            count = (
                max(1, LARGE_BYTES // cell.size_bytes)
                if cell.runs == "large"
                else random.randint(1, SMALL_MOST)
            )
            count = min(count, left)
            begins = (random.randrange(len(noise) - cell.size_bytes) for _ in range(count))
            payloads = [noise[begin : begin + cell.size_bytes] for begin in begins]
            run = Run.of(origins[at], following[at], payloads, sent_ns=1)
            spool.append(Delivery(origins[at], run.first, run.last, run), name=f"sender {at}")
            if spool.pending_bytes >= COMMIT_BYTES:
                spool.commit()
            following[at] += count
            left -= count
            at = (at + 1) % STREAMS
        spool.commit()


class Reads:
    """All measurements of a cell."""

    def __init__(self, spark: SparkSession, folder: Path, cell: Cell) -> None:
        self.spark = spark
        self.folder = folder
        self.cell = cell
        self.spool = folder / "spool"
        self.table = folder / "table"
        self._count = 0

    def prepare(self) -> None:
        """Write the spool, and the table for Spark's own reader."""
        fill(self.spool, self.cell)
        self._batch().write.parquet(str(self.table))

    def turns(self) -> dict[str, Callable[[], float | None]]:
        """Return the functions that take turns."""
        return {
            "batch": lambda: _to_nothing(self._batch()),
            PARQUET: lambda: _to_nothing(self._parquet()),
            "stream": lambda: self._stream("noop"),
            LOOP: self._loop,
            "batch, few columns": lambda: _to_nothing(self._batch(columns=",".join(FEW))),
            PARQUET_FEW: lambda: _to_nothing(self._parquet().select(*FEW)),
            "stream, few columns": lambda: self._stream("noop", columns=",".join(FEW)),
            "batch to parquet": lambda: self._to_parquet(self._batch()),
            COPY: lambda: self._to_parquet(self._parquet()),
            "stream to parquet": lambda: self._stream("parquet"),
        }

    def _batch(self, **options: str) -> DataFrame:
        return (
            self.spark.read.format("gapless")
            .option("spool", str(self.spool))
            .options(**options)
            .load()
        )

    def _parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.table))

    def _fresh(self) -> Path:
        self._count += 1
        return self.folder / f"out-{self._count}"

    def _to_parquet(self, frame: DataFrame) -> None:
        out = self._fresh()
        frame.write.parquet(str(out))
        shutil.rmtree(out)

    def _stream(self, sink: str, **options: str) -> float:
        """Return the seconds of the micro-batches; the start of a query is not about rows."""
        out = self._fresh()
        frame = (
            self.spark.readStream.format("gapless")
            .option("spool", str(self.spool))
            .option("reader", READER)
        )
        writer = frame.options(**options).load().writeStream.format(sink).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(out / "checkpoint")).start(
            str(out / "table")
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            shutil.rmtree(out, ignore_errors=True)
            if "failed to connect back" in str(
                error
            ):  # a new process has not got to run within ten seconds
                raise Again(str(error).partition("\n")[0]) from error
            raise
        progress: list[dict[str, Any]] = [dict(each) for each in query.recentProgress]
        rows = sum(each["numInputRows"] for each in progress)
        assert rows == self.cell.rows, f"{rows} rows have come of {self.cell.rows}"
        SpoolReader(self.spool).unregister(READER)
        shutil.rmtree(out)
        return (
            float(
                sum(
                    each["durationMs"]["triggerExecution"]
                    for each in progress
                    if each["numInputRows"]
                )
            )
            / 1e3
        )

    def _loop(self) -> None:
        view = SpoolReader(self.spool)
        rows = size_bytes = 0
        for record in view.records(view.slices({}, view.high())):
            for message in record.messages():
                rows += 1
                size_bytes += len(message)
        assert (rows, size_bytes) == (self.cell.rows, self.cell.rows * self.cell.size_bytes)


def _to_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def figures(cell: Cell, found: dict[str, list[Sample]]) -> Iterator[Figure]:
    """Return the lines of a cell, the lines of the limits last."""
    speeds = {
        name: [cell.rows / sample.wall_s for sample in samples] for name, samples in found.items()
    }
    costs = {
        name: [sample.cpu_s / cell.rows * 1e6 for sample in samples]
        for name, samples in found.items()
    }
    for name in (*BASELINES, PARQUET, PARQUET_FEW, COPY, LOOP):
        baseline = BASELINES.get(name, name)
        middle = spread(speeds[name])
        yield Figure(
            **cell._asdict(),
            what=name,
            baseline=baseline,
            ratio_speed=ratio(speeds[name], speeds[baseline]).rounded(2),
            ratio_cpu=ratio(costs[name], costs[baseline]).rounded(2),
            ratio_loop=ratio(speeds[name], speeds[LOOP]).rounded(2),
            rows_per_s=round(middle.middle),
            rows_per_s_spread=middle.rounded(0),
            mb_per_s=round(middle.middle * cell.size_bytes / 1e6, 1),
            cpu_s_per_million=round(spread(costs[name]).middle, 2),
        )


TURNS = 10
"""Number of turns in a round; a test checks the number."""


def measure(
    spark: SparkSession,
    folder: Path,
    cell: Cell,
    rounds: int,
    warm_ups: int,
    tick: Callable[[], None],
) -> list[Figure]:
    """Measure a cell."""
    reads = Reads(spark, folder, cell)
    folder.mkdir()
    try:
        reads.prepare()
        return list(figures(cell, alternate(reads.turns(), rounds, warm_ups, tick)))
    finally:
        shutil.rmtree(folder)
