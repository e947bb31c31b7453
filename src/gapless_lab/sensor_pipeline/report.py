"""The report of a run: the rows of the tables, compared with the acknowledged messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError
from gapless.spool import SpoolReader
from gapless_lab.exactness import StreamRows, missing_by_incarnation
from gapless_lab.workload import read_incarnations
from pyspark_gapless.source.offsets import digest_of
from pyspark_gapless.tables.pipeline import WINDOW, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEGA = 1e6


@dataclass(frozen=True, kw_only=True)
class PipelineReport:
    """The result of a run.

    Figures of tables cover all runs with the same output, unless the description says otherwise.
    ``lost`` counts acknowledged messages without a row in bronze, ``repeated`` surplus rows. Gold
    has the good rows of silver in closed windows, without the rows that came ``too_late``; the
    other good rows are in windows ``still_open``.
    """

    output: str
    sent: int
    """Sent by this run."""
    acknowledged: int
    """Acknowledged over all runs; without producers of its own, what the spool has."""
    streams: int
    bronze: int
    silver: int
    gold: int
    lost: int
    repeated: int
    rejected: Mapping[str, int]
    too_late: int
    still_open: int
    new_rows: int
    """Rows of bronze that this run has added."""
    new_bytes: int
    """Their payloads."""
    seconds: float
    """From the first send to the last row in the table, without the very first batch."""
    latency_s: Mapping[str, float] = field(default_factory=dict)
    """From the send to the row in bronze: p50, p99 and max, of this run."""
    watermark: str = ""
    problems: tuple[str, ...] = ()
    """The faults found, in words."""
    tables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether the tables have every message exactly once."""
        return not self.problems

    @property
    def mb_per_s(self) -> float:
        """Megabytes of payload a second, in the run."""
        return self.new_bytes / MEGA / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the report for a program."""
        return {**asdict(self), "mb_per_s": round(self.mb_per_s, 3), "exact": self.is_exact}


def build_report(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    sent: int,
    since: int,
    ledgers: Path,
    high: Mapping[str, int] | None = None,
    spool_keys: Path | None = None,
) -> PipelineReport:
    """Count the tables and compare; ``since`` is the first bronze batch of the run.

    The acknowledged messages come from the ledgers of the producers, or from the spool up to
    ``high``; ``spool_keys`` opens an encrypted spool.
    """
    held = rows_by_stream(spark, pipeline)
    if high is not None:
        view = SpoolReader(pipeline.spool, keys=spool_keys)
        acknowledged, missing = missing_by_stream(held, high, view)
    else:
        acknowledged, missing = missing_by_incarnation(held, read_incarnations(ledgers))
    bronze = sum(each.rows for each in held.values())
    repeated = {key: each.repeated for key, each in held.items() if each.repeated}
    problems = [
        f"{key}: {count:,} messages were acknowledged and are not in bronze"
        for key, count in missing.items()
    ]
    problems += [f"{key}: {count:,} rows are repeated" for key, count in repeated.items()]
    counts = {
        row[0]: row[1]
        for row in pipeline.silver.read(spark).frame.groupBy("problem").count().collect()
    }
    silver, good = sum(counts.values()), counts.pop(None, 0)
    if silver != bronze:
        problems.append(f"silver has {silver:,} rows, and bronze {bronze:,}")
    rows_and_readings = ("count(*)", "coalesce(sum(readings), 0)")
    gold, in_gold = pipeline.gold.read(spark).frame.selectExpr(*rows_and_readings).collect()[0]
    watermark = watermark_of(pipeline.steps[2].checkpoint)
    still_open = _rows_in_open_windows(spark, pipeline, watermark)
    if in_gold + still_open > good:
        problems.append(
            f"gold has {in_gold:,} readings, and silver {good - still_open:,} of closed windows"
        )
    return PipelineReport(
        output=str(pipeline.root),
        sent=sent,
        acknowledged=acknowledged,
        streams=len(held),
        bronze=bronze,
        silver=silver,
        gold=gold,
        lost=sum(missing.values()),
        repeated=sum(repeated.values()),
        rejected=dict(sorted(counts.items())),
        too_late=max(0, good - still_open - in_gold),
        still_open=still_open,
        watermark=watermark.isoformat().replace("+00:00", "Z") if watermark else "",
        problems=tuple(problems),
        tables={table.kind.name: str(table.folder) for table in pipeline.tables},
        **_throughput(pipeline, since),
    )


def rows_by_stream(spark: SparkSession, pipeline: Pipeline) -> dict[str, StreamRows]:
    """Return the rows of the bronze table, by stream."""
    from pyspark.sql import functions as F  # noqa: N812

    frame = pipeline.bronze.read(spark).frame.groupBy("origin")
    counted = frame.agg(F.count("*"), F.count_distinct("seqno"), F.min("seqno"), F.max("seqno"))
    return {row[0]: StreamRows(*row[1:]) for row in counted.collect()}


def missing_by_stream(
    held: Mapping[str, StreamRows], high: Mapping[str, int], view: SpoolReader
) -> tuple[int, dict[str, int]]:
    """Return how many messages the spool has had, and how many of each stream are missing.

    ``high`` has the last seqno of each stream before the last batch. A message in fragments has
    several seqnos and a single row, so only the ends of streams are compared. The spool records the
    messages dropped by a limit.
    """
    view.refresh()
    lost = dict(view.dropped())
    for key, seqno in high.items():
        last = held[key].last if key in held else view.low().get(key, 0)
        holes = sum(
            hole.last - max(hole.first, last + 1) + 1
            for hole in view.lost()
            if hole.stream == key and hole.last > last
        )
        if seqno - last - holes > 0:
            lost[key] = lost.get(key, 0) + seqno - last - holes
    return sum(each.rows for each in held.values()) + sum(lost.values()), lost


def _rows_in_open_windows(
    spark: SparkSession, pipeline: Pipeline, watermark: datetime | None
) -> int:
    """Return how many good readings are in windows that end after the watermark."""
    from pyspark.sql import functions as F  # noqa: N812

    frame = pipeline.silver.read(spark).frame.where("problem is null")
    if watermark is not None:
        frame = frame.where(F.window("at", WINDOW)["end"] > F.lit(watermark))
    return frame.count()


def watermark_of(checkpoint: Path) -> datetime | None:
    """Return the last watermark in a checkpoint; None if there is none yet."""
    lines = last_offsets(checkpoint, "offsets")
    watermark_ms = int(json.loads(lines[1]).get("batchWatermarkMs", 0)) if lines else 0
    return datetime.fromtimestamp(watermark_ms / 1000, UTC) if watermark_ms else None


def committed_offsets(checkpoint: Path) -> Mapping[str, int]:
    """Return the last committed seqno of each stream of a spool."""
    with suppress(OSError, ValueError, IndexError, GaplessError):
        return digest_of(json.loads(last_offsets(checkpoint, "commits")[2]))
    return {}


def last_offsets(checkpoint: Path, log: str) -> list[str]:
    """Return the lines of the offsets of the last batch in a log of a checkpoint."""
    batches = [int(path.name) for path in (checkpoint / log).glob("*") if path.name.isdecimal()]
    if not batches:
        return []
    return (checkpoint / "offsets" / f"{max(batches)}").read_text(encoding="utf-8").splitlines()


def _throughput(pipeline: Pipeline, since: int) -> dict[str, Any]:
    """Return the number, the size and the latency of the rows added by the run."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    waits: list[Any] = []
    firsts_s: list[float] = []
    new_bytes, last_s = 0, 0.0
    for batch, folder in pipeline.bronze.published().items():
        if batch < since:
            continue
        last_s = max(last_s, there_s := folder.stat().st_mtime)
        at = len(waits)
        for path in folder.glob("*.parquet"):
            rows = pq.read_table(path, columns=["sent", "payload"], partitioning=None)
            sent_us = rows["sent"].cast(pa.timestamp("us", "UTC")).cast("int64").to_numpy()
            waits.append(there_s - sent_us / MEGA)
            new_bytes += pc.sum(pc.binary_length(rows["payload"])).as_py() or 0
        firsts_s.append(there_s - max(float(wait.max(initial=0)) for wait in waits[at:]))
    if not waits:
        return {"new_rows": 0, "new_bytes": 0, "seconds": 0.0}
    all_waits = np.concatenate(waits)
    # Of several batches the first one is a warm-up: the others give the speed.
    begin_s = min(firsts_s[1:] or firsts_s)
    marks = zip(("p50", "p99", "max"), np.quantile(all_waits, [0.5, 0.99, 1.0]), strict=True)
    return {
        "new_rows": len(all_waits),
        "new_bytes": new_bytes,
        "seconds": round(max(0.0, last_s - begin_s), 3),
        "latency_s": {name: round(float(wait_s), 3) for name, wait_s in marks},
    }
