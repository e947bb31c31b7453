"""A trace in Spark: rows, incarnations, and names."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812

from gapless.errors import GaplessError
from gapless.trace.incarnations import (
    INCARNATIONS_FILE as SIDE_FILE,
    VIRTUAL,
    read_incarnations,
)
from gapless.trace.parquet import seal
from gapless.trace.schema import EVENT_CODES, EVENT_NAMES, incarnation_id
from pyspark_gapless.tables.dataset import differences
from pyspark_gapless.trace.schema import COLUMNS, INCARNATION_COLUMNS, ddl

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

SAMPLED = "sampled"
"""The mode of an incarnation with only a sample of its rows."""
RARE_EVENTS = (
    "BEGIN",
    "VIEW",
    "MEMBERS",
    "START",
    "LOST",
    "STATE_IN",
    "EXPELLED",
    "LEFT",
    "REST",
    "END",
)
"""Events that happen only a few times in an incarnation, under any load."""
BULKY_COLUMNS = ("k", "size_bytes", "hash", "hash_first", "sent_ns", "low", "delivered", "frame_id")
"""Columns that are unused in rows of rare events, and slow to read."""
MAX_DRIVER_ROWS = 200_000
"""Maximum number of rows of a frame in the driver."""


class TraceError(GaplessError):
    """There is no trace here, or the trace cannot be read; the message says why."""


class Trace:
    """The trace of a group or many groups: ``rows``, and ``incarnations`` with their properties.

    ``rows`` has the columns of ``COLUMNS``; ``incarnations`` has the columns of
    ``INCARNATION_COLUMNS``, with a row per incarnation. Incarnations are numbers; numbers of
    different seeds may be equal, so ``seed`` belongs to every key.
    """

    def __init__(self, rows: DataFrame, incarnations: DataFrame) -> None:
        wrong = [
            *differences(rows.schema, COLUMNS),
            *differences(incarnations.schema, INCARNATION_COLUMNS),
        ]
        if wrong:
            raise TraceError(
                f"not a trace: {'; '.join(wrong)}; docs/reference/traces.md lists the columns"
            )
        self.rows = rows.select(*COLUMNS)
        self.incarnations = incarnations.select(*INCARNATION_COLUMNS)
        self._cached: dict[str, DataFrame] = {}

    @classmethod
    def read(cls, spark: SparkSession, path: str | Path) -> Self:
        """Read all files under a folder as a trace; seal journals of killed processes first.

        Raises:
            TraceError: There is no trace, or the files are not a trace.
        """
        live = cls.seal(path)
        where = str(path)
        if "://" not in where:
            where = Path(where).absolute().as_uri()
        below = {"recursiveFileLookup": "true"}
        try:
            found = spark.read.options(**below, pathGlobFilter="*.parquet").parquet(where)
            incarnations = (
                spark.read.options(**below, pathGlobFilter="lives.jsonl")
                .schema(ddl(INCARNATION_COLUMNS))
                .json(where)
            )
        except AnalysisException as error:
            first = str(error).partition("\n")[0]
            raise TraceError(f"{path} cannot be read as a trace: {first}") from None
        wrong = differences(found.schema, COLUMNS)
        if wrong:
            raise TraceError(f"{path} has Parquet files that are not a trace: {'; '.join(wrong)}")
        incarnations = _deduplicate(incarnations)
        if live:
            incarnations = incarnations.withColumn(
                "whole", F.col("whole") & ~F.col("life").isin(_own_incarnations(live))
            )
        return cls(found, materialize(incarnations))

    @staticmethod
    def seal(path: str | Path) -> list[Path]:
        """Check that a local folder has a trace, and seal the trace for Spark.

        Returns:
            The folders that a process still writes to: the last rows of its incarnations cannot be
            read yet.

        Raises:
            TraceError: There is no trace.
        """
        if "://" in str(path):
            return []
        folder = Path(path)
        if not folder.is_dir():
            what = "not a folder" if folder.exists() else "no such folder"
            raise TraceError(f"{folder}: {what}; expected a folder with a trace")
        live = sorted({journal.parent for journal in seal(folder).live})
        if (
            next(folder.rglob("*.parquet"), None) is None
            or next(folder.rglob("lives.jsonl"), None) is None
        ):
            if live:
                raise TraceError(
                    f"{folder}: processes still write to this trace and no file is "
                    "complete; stop the processes first"
                )
            raise TraceError(
                f"{folder}: there is no trace here (*.parquet and lives.jsonl); "
                f"record one with --trace, as in gapless sim 1 --trace {folder}"
            )
        return live

    def where_event(self, *events: str) -> DataFrame:
        """Return the rows of some events."""
        return self.rows.where(is_one_of(*events))

    def cached(self, name: str, make: Callable[[], DataFrame]) -> DataFrame:
        """Return the result of ``make``, computed once for each ``name``.

        For frames that are small beside the trace: the driver holds up to ``MAX_DRIVER_ROWS`` rows,
        so that later plans know the true size; Spark caches larger frames.
        """
        if name not in self._cached:
            self._cached[name] = materialize(make())
        return self._cached[name]

    def rare_rows(self, *events: str) -> DataFrame:
        """Return the rows of some of the ``RARE_EVENTS``, without columns unused there."""
        columns = [name for name in self.rows.columns if name not in BULKY_COLUMNS]
        return self.cached("rare", lambda: self.where_event(*RARE_EVENTS).select(*columns)).where(
            is_one_of(*events)
        )

    @cached_property
    def clock_modes(self) -> set[tuple[str, str]]:
        """Every pair of clock and mode among the incarnations with rows."""
        found = self.incarnations.where("own").select("clock", "mode").distinct().collect()
        return {(row["clock"], row["mode"]) for row in found}

    @property
    def simulated(self) -> bool:
        """Whether all rows are simulated, so that ``step`` orders all rows of a seed."""
        return {clock for clock, _ in self.clock_modes} == {VIRTUAL}

    @property
    def sampled(self) -> bool:
        """Whether some incarnations have only a sample of their rows."""
        return SAMPLED in {mode for _, mode in self.clock_modes}

    def complete_incarnations(self, column: str, where: str = "own and whole") -> DataFrame:
        """Return seeds and ids (as ``column``) of the incarnations that satisfy ``where``."""
        return F.broadcast(
            self.incarnations.where(where).select("seed", F.col("life").alias(column))
        )

    @cached_property
    def unsampled(self) -> Trace:
        """The trace without the rows of sampled incarnations, for checks that need every row."""
        if not self.sampled:
            return self
        return self.without(self.complete_incarnations("member", f"mode = '{SAMPLED}'"))

    def without(self, incarnations: DataFrame) -> Trace:
        """Return the trace without the rows of some incarnations (``seed``, ``member``)."""
        incarnations = F.broadcast(incarnations.select("seed", "member"))
        gone = incarnations.select("seed", F.col("member").alias("life"), F.lit(True).alias("gone"))
        marked = self.incarnations.join(gone, ["seed", "life"], "left")
        marked = marked.withColumn("whole", F.col("whole") & F.col("gone").isNull())
        return Trace(
            self.rows.join(incarnations, ["seed", "member"], "left_anti"),
            materialize(marked.drop("gone")),
        )

    def with_names(self, frame: DataFrame) -> DataFrame:
        """Add ``member_name``, ``origin_name`` and ``peer_name`` for the columns present."""
        names = F.broadcast(self.incarnations.select("seed", "life", "name"))
        for column in ("member", "origin", "peer"):
            if column in frame.columns:
                own_names = names.select(
                    "seed", F.col("life").alias(column), F.col("name").alias(f"{column}_name")
                )
                frame = frame.join(own_names, ["seed", column], "left").fillna("", f"{column}_name")
        return frame


def materialize(frame: DataFrame) -> DataFrame:
    """Return a frame with rows computed already."""
    found = frame.limit(MAX_DRIVER_ROWS + 1).toArrow()
    return (
        frame.sparkSession.createDataFrame(found)
        if found.num_rows <= MAX_DRIVER_ROWS
        else frame.persist()
    )


def is_one_of(*events: str) -> Column:
    """Return whether the event of a row is in ``events``."""
    return F.col("event").isin([event_code(event) for event in events])


def event_code(event: str) -> int:
    """Return the code of an event."""
    if event not in EVENT_CODES:
        raise TraceError(f"unknown event {event!r}; the events are {', '.join(EVENT_CODES)}")
    return EVENT_CODES[event]


def event_name(column: Column) -> Column:
    """Return the names of the events with the codes in ``column``."""
    pairs = [F.lit(value) for pair in EVENT_NAMES.items() for value in pair]
    return F.create_map(*pairs)[column.cast("int")]


def _own_incarnations(folders: list[Path]) -> list[int]:
    """Return the incarnations with rows in the file sets."""
    return [
        incarnation_id(record.name)
        for folder in folders
        for record in read_incarnations(folder / SIDE_FILE)
        if record.own
    ]


def _deduplicate(incarnations: DataFrame) -> DataFrame:
    """Return a row per incarnation, its own if present; unfinished lines are skipped."""
    incarnations = incarnations.where("life is not null").fillna(
        {"seed": 0, "own": False, "name": "", "member": "", "every": 0}
    )
    incarnations = incarnations.fillna(
        {
            "mode": "",
            "clock": "",
            "release": "",
            "retransmits": True,
            "stores": False,
            "whole": True,
        }
    )
    everything = F.struct(*INCARNATION_COLUMNS)
    chosen = incarnations.groupBy("seed", "life").agg(F.max_by(everything, "own").alias("chosen"))
    return chosen.select("chosen.*")
