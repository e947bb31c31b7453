"""A run of the pipeline: producers, collector, Spark and tables, from the start to the report.

On start: wait for the JVM of a killed run, which may still use the checkpoints of the folder. While
the load runs: all steps follow the spool. When the producers are done, the time is over or the end
is requested: stop the members, then run each step to the end of the source in turn, so that every
table is complete. At the end: count the tables, and compare with the acknowledged messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gapless.errors import ConfigError, GaplessError, TimedOutError
from gapless.spool import SpoolReader
from gapless.spool.collector import Collector
from gapless_lab.plans import SETTINGS
from gapless_lab.sensor_pipeline.plan import (
    GROUP,
    OWN,
    SPOOL,
    OutputPlan,
    PipelineInfo,
    PipelinePlan,
    locked,
)
from gapless_lab.sensor_pipeline.report import PipelineReport, build_report, committed_offsets
from gapless_lab.sensor_pipeline.testbed import SensorTestbed
from gapless_lab.sensor_pipeline.worker import SensorTask
from pyspark_gapless.quiet_session import quiet_session
from pyspark_gapless.runtime import java
from pyspark_gapless.runtime.spark_install import find_installation
from pyspark_gapless.tables.pipeline import Pipeline, RetryLimit, root_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "gapless pipeline"
POLL_INTERVAL_S: Final = 0.2
"""How long between two reports of progress."""
DRIVER_S: Final = 60.0
"""How long the driver of a killed run may take to end."""
MAX_ATTEMPTS: Final = 4
"""Maximum number of attempts of a step that adds nothing to its table."""
FIRST_S: Final = 90.0
"""How long producers wait for their first readings to be in a table before they send the rest."""


class PipelineError(GaplessError):
    """A step of the pipeline has failed; the message names the step and the cause."""


@dataclass(frozen=True)
class PipelineProgress:
    """The progress of a run: sent and acknowledged messages, the spool, rows of each table."""

    phase: str
    seconds: float
    sent: int = 0
    acknowledged: int = 0
    expected: int | None = None
    """How many readings this run is to send; None without producers, or without an end."""
    spool_bytes: int = 0
    lag: int = 0
    arrived: int = 0
    """How many rows this run has added to bronze."""
    rows: Mapping[str, int] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, float | None] = field(default_factory=dict)
    """How long each phase has taken; None for those to come."""
    note: str = ""
    """What the phase does just now."""


ProgressCallback = Callable[[PipelineProgress], None]
"""Receives the progress."""


def run(
    plan: PipelinePlan,
    on_progress: ProgressCallback = lambda _: None,
    stop: threading.Event | None = None,
) -> PipelineReport:
    """Run the pipeline to the end, or until ``stop`` is set; return the report."""
    find_installation()
    java.find_java()
    plan = replace(
        plan,
        output=plan.output.absolute(),
        spool=plan.spool and plan.spool.absolute(),
        spool_keys=plan.spool_keys and plan.spool_keys.absolute(),
    )
    with locked(plan.output):
        return _PipelineRun(plan, on_progress, stop or threading.Event()).run()


class TableRun:
    """Base of the runs of the pipeline and of the demo: members, tables, phases, progress."""

    def __init__(
        self,
        plan: OutputPlan,
        task: SensorTask,
        on_progress: ProgressCallback,
        phases: Iterable[str] = (),
    ) -> None:
        self.plan = plan
        self.on_progress = on_progress
        keys = {} if plan.spool_keys is None else {"spoolKeys": str(plan.spool_keys)}
        self.pipeline = Pipeline(plan.output, plan.spool_dir, **keys)
        self.testbed = SensorTestbed(task, plan.logs)
        self.note = ""
        self.seconds: dict[str, float | None] = dict.fromkeys(phases)
        """How long each phase took; None for those to come."""
        self.rows_before = 0
        self._start_s = time.monotonic()
        self._current = ("", self._start_s)
        """The phase and its start, in one: another thread reads both."""
        self._spool_reader: SpoolReader | None = None

    def begin(self, phase: str) -> None:
        """Begin a phase, and end the previous phase."""
        self.seconds = self._steps()
        self._current, self.note = (phase, time.monotonic()), ""

    def _steps(self) -> dict[str, float | None]:
        phase, since_s = self._current
        now = {phase: round(time.monotonic() - since_s, 1)} if phase else {}
        return {**self.seconds, **now}

    def progress(self) -> PipelineProgress:
        """Return the progress."""
        tables, left = self.pipeline.tables, self.testbed.left
        acknowledged = self.testbed.newly_acknowledged
        size_bytes, high = self.spool_figures()
        read = committed_offsets(self.pipeline.steps[0].checkpoint)
        return PipelineProgress(
            phase=self._current[0],
            seconds=time.monotonic() - self._start_s,
            sent=self.testbed.sent,
            acknowledged=acknowledged,
            expected=None if left is None else acknowledged + left,
            spool_bytes=size_bytes,
            lag=sum(max(0, seqno - read.get(key, 0)) for key, seqno in high.items()),
            arrived=self.pipeline.bronze.rows - self.rows_before,
            rows={table.kind.name: table.rows for table in tables},
            batches={table.kind.name: table.batches for table in tables},
            steps=self._steps(),
            note=self.note,
        )

    def report(
        self, spark: SparkSession, since: int = 0, high: Mapping[str, int] | None = None
    ) -> PipelineReport:
        """Compare the tables with the acknowledged messages, or with the spool up to ``high``."""
        sent, ledgers = self.testbed.sent, self.plan.ledgers
        return build_report(
            spark,
            self.pipeline,
            sent=sent,
            since=since,
            ledgers=ledgers,
            high=high,
            spool_keys=self.plan.spool_keys,
        )

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Report the progress from a thread, until the end of the block."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(POLL_INTERVAL_S):
                self.on_progress(self.progress())

        self.on_progress(self.progress())
        thread = threading.Thread(target=work, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.on_progress(self.progress())

    def spool_figures(self) -> tuple[int, Mapping[str, int]]:
        """Return the size of the spool, and the last seqno of each stream."""
        spool = self.plan.spool_dir
        try:
            if self._spool_reader is None:
                self._spool_reader = SpoolReader(spool, keys=self.plan.spool_keys)
            self._spool_reader.refresh()
            size_bytes = sum(path.stat().st_size for path in (spool / "segments").glob("*.run"))
            return size_bytes, self._spool_reader.high()
        except (GaplessError, OSError):
            return 0, {}


class _PipelineRun(TableRun):
    plan: PipelinePlan

    def __init__(
        self, plan: PipelinePlan, on_progress: ProgressCallback, stop: threading.Event
    ) -> None:
        self.about = PipelineInfo.of(plan)
        task = plan.member_task(
            group=self.about.where,
            settings=SETTINGS["pipeline"],
            seed=self.about.seed,
            rate=plan.rate,
            messages=plan.messages,
        )
        super().__init__(plan, task, on_progress)
        self.stop = stop
        self.collector: Collector | None = None
        self._high: Mapping[str, int] = {}

    def run(self) -> PipelineReport:
        self.begin("Spark starts")
        if self.about.kind == SPOOL:
            # Raises if there is none.
            SpoolReader(self.plan.spool_dir, keys=self.plan.spool_keys)
        self._check_checkpoint()
        with ExitStack() as stack:
            stack.enter_context(self.reporting())
            spark = stack.enter_context(
                quiet_session(self.plan.master, self.plan.output / "spark.log", NAME)
            )
            stack.enter_context(_driver_lock(spark, self.plan.output / "driver.lock"))
            self.pipeline.prepare()
            self.rows_before = self.pipeline.bronze.rows
            since = max(self.pipeline.bronze.published(), default=-1) + 1
            if self.about.kind == GROUP:
                group, discover = self.about.where, self.plan.discover
                keys: dict[str, Any] = {}
                if self.plan.spool_keys is not None:
                    keys["spool_keys"] = self.plan.spool_keys
                collector = Collector(self.plan.spool_dir, group, discover=discover, **keys)
                self.collector = stack.enter_context(collector)
            stack.enter_context(self.testbed)
            if self.about.kind == OWN:
                for number in range(self.plan.producers + 1):  # 0 is the collector
                    self.testbed.start_member(number)
            with explained():
                self._work(spark)
                self.begin("checking")
                return self.report(spark, since, None if self.about.kind == OWN else self._high)

    def _check_checkpoint(self) -> None:
        """Refuse a table without a checkpoint: Spark would skip batches the table has."""
        for step in self.pipeline.steps:
            if any(step.table.published()) and not (step.checkpoint / "offsets").is_dir():
                raise ConfigError(
                    f"{step.table.folder} has rows, but its checkpoint {step.checkpoint} is gone: "
                    "their origin is unknown; name another --output"
                )

    def _work(self, spark: SparkSession) -> None:
        if self.plan.follow or (not self.plan.once and self.about.kind != SPOOL):
            self.begin("first rows")
            with following(self.pipeline, spark, self.plan.every_s) as check_queries:
                first_s, batches = time.monotonic() + FIRST_S, self.pipeline.bronze.batches
                self._run_load(partial(self._follow, check_queries, batches, first_s))
        elif self.about.kind == OWN:
            self._start_load("sending")
            self._run_load(lambda: None)
        self.testbed.stop()
        self._check()
        self._high = self.spool_figures()[1]
        self.begin("catching up")
        self.pipeline.catch_up(spark, MAX_ATTEMPTS)

    def _run_load(self, on_poll: Callable[[], None]) -> None:
        """Poll until all is sent, the time is over, or the end is requested."""
        until_s = inf if self.plan.seconds is None else time.monotonic() + self.plan.seconds
        while time.monotonic() < until_s and not self.stop.wait(POLL_INTERVAL_S):
            self._check()
            on_poll()
            if self.testbed.is_done and not self.plan.follow:
                return

    def _follow(self, check_queries: Callable[[], None], batches: int, first_s: float) -> None:
        """Start the load when the first readings are in a table, or take until ``first_s``."""
        check_queries()
        if self.pipeline.bronze.batches > batches or time.monotonic() > first_s:
            self._start_load("streaming")

    def _start_load(self, phase: str) -> None:
        if self._current[0] != phase:
            self.testbed.start_load()
            self.begin(phase)

    def _check(self) -> None:
        if self.collector is not None:
            self.collector.check()
        self.testbed.check()


@contextmanager
def following(
    pipeline: Pipeline, spark: SparkSession, every_s: float
) -> Iterator[Callable[[], None]]:
    """Make the tables follow the spool; yield a function to restart failed queries.

    The function raises the error of a query with too many failures.
    """
    queries = [(step.start(spark, every_s=every_s), step) for step in pipeline.steps]
    limits = [RetryLimit(step, MAX_ATTEMPTS) for step in pipeline.steps]

    def check() -> None:
        for at, (query, step) in enumerate(queries):
            if (error := query.exception()) is not None:
                limits[at].on_failure(error)
                queries[at] = (step.start(spark, every_s=every_s), step)

    try:
        yield check
    finally:
        for query, _ in queries:
            query.stop()


@contextmanager
def _driver_lock(spark: SparkSession, path: Path) -> Iterator[None]:
    """Lock the checkpoints in the JVM: a JVM may outlive the program and still use checkpoints."""
    jvm: Any = spark.sparkContext._jvm
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    until_s = time.monotonic() + DRIVER_S
    try:
        while file.getChannel().tryLock() is None:
            if time.monotonic() > until_s:
                raise TimedOutError(
                    f"{path}: the Spark of another run still works here; "
                    "end it, or name another --output"
                )
            time.sleep(POLL_INTERVAL_S)
        yield
    finally:
        file.close()


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error of Spark into a PipelineError of a single line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise PipelineError(root_cause(str(error))) from error
