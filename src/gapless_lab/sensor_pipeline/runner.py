"""One run of the pipeline: producers, collector, Spark and tables, from their start to the report.

On the start: nothing is begun that another run in the same folder still does. A run that was killed
may have left a JVM that is about to end; it is waited for. While it runs: all steps follow the
spool. When the producers are done, or the time is over, or somebody asks for the end, they are
stopped, and then each takes what is there, one after the other: so everything is in every table. On
the end: what is in the tables is counted and compared with what was acknowledged.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gapless.errors import ConfigError, GaplessError, TimedOutError
from gapless.spool import SpoolReader
from gapless.spool.collector import Collector
from gapless_lab.sensor_pipeline.plan import GROUP, OWN, SPOOL, PipelineInfo, PipelinePlan, locked
from gapless_lab.sensor_pipeline.producers import (
    CONFIG,
    ProducerPacer,
    SensorProducer,
)
from gapless_lab.sensor_pipeline.report import PipelineReport, build_report
from gapless_lab.workload import ProducerLedger, lossy_transport
from pyspark_gapless.quiet_session import quiet_session
from pyspark_gapless.runtime import java
from pyspark_gapless.runtime.spark_install import find_installation
from pyspark_gapless.source.offsets import digest_of
from pyspark_gapless.tables.pipeline import Pipeline, PipelineStep, RetryLimit, root_cause

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
    """A step of the pipeline has failed; the message says which one and why."""


@dataclass(frozen=True)
class PipelineProgress:
    """The progress of a run: sent and acknowledged messages, the spool, rows of each table."""

    phase: str
    seconds: float
    sent: int = 0
    acknowledged: int = 0
    expected: int | None = None
    """How many readings this run is to send, if it has producers and they come to an end."""
    spool_bytes: int = 0
    lag: int = 0
    arrived: int = 0
    """How many rows this run has added to bronze."""
    rows: Mapping[str, int] = field(default_factory=dict)
    batches: Mapping[str, int] = field(default_factory=dict)


ProgressCallback = Callable[[PipelineProgress], None]
"""Receives the progress."""


def run(
    plan: PipelinePlan, tell: ProgressCallback = lambda _: None, stop: threading.Event | None = None
) -> PipelineReport:
    """Run the pipeline until it is done or ``stop`` is set; return the report."""
    find_installation()
    java.find_java()
    plan = replace(plan, output=plan.output.absolute(), spool=plan.spool and plan.spool.absolute())
    with locked(plan.output):
        about = PipelineInfo.of(plan)
        return _PipelineRun(plan, about, tell, stop or threading.Event()).run()


class _PipelineRun:
    def __init__(
        self, plan: PipelinePlan, about: PipelineInfo, tell: ProgressCallback, stop: threading.Event
    ) -> None:
        self.plan = plan
        self.about = about
        self.tell = tell
        self.stop = stop
        self.start_s = time.monotonic()
        self.spool = plan.spool if plan.spool is not None else plan.output / "spool"
        self.pipeline = Pipeline(plan.output, self.spool)
        self.pace = ProducerPacer()
        self.producers: list[SensorProducer] = []
        self.collector: Collector | None = None
        self._spool_reader: SpoolReader | None = None
        self._high: Mapping[str, int] = {}
        self._rows_before = 0

    def run(self) -> PipelineReport:
        if self.about.kind == SPOOL:
            SpoolReader(self.spool)  # raises if there is none
        self._check_checkpoint()
        with ExitStack() as stack:
            stack.enter_context(self._reporting("Spark starts"))
            spark = stack.enter_context(
                quiet_session(self.plan.master, self.plan.output / "spark.log", NAME)
            )
            stack.enter_context(_driver_lock(spark, self.plan.output / "driver.lock"))
            self.pipeline.prepare()
            self._rows_before = self.pipeline.bronze.rows
            since = max(self.pipeline.bronze.published(), default=-1) + 1
            if self.about.kind in {OWN, GROUP}:
                stack.enter_context(self._collecting())
            if self.about.kind == OWN:
                stack.enter_context(self._producing())
            with explained():
                self._work(spark)
                self._phase = "checking"
                return build_report(
                    spark,
                    self.pipeline,
                    ledgers=self._ledgers(),
                    high=None if self.about.kind == OWN else self._high,
                    sent=sum(producer.sent for producer in self.producers),
                    since=since,
                )

    def _check_checkpoint(self) -> None:
        """Refuse a table without its checkpoint: Spark would skip batches the table has."""
        for step in self.pipeline.steps:
            if any(step.table.published()) and not (step.checkpoint / "offsets").is_dir():
                raise ConfigError(
                    f"{step.table.folder} has rows, but its checkpoint {step.checkpoint} is gone: "
                    "their origin is unknown; name another --output"
                )

    # Work

    def _work(self, spark: SparkSession) -> None:
        follows = self.plan.follow or (not self.plan.once and self.about.kind != SPOOL)
        if follows:
            self._follow(spark)
        else:
            self.pace.started.set()
            self._phase = "sending"
            self._wait_until_sent()
        for producer in self.producers:
            producer.stop()
        self._check()
        self._high = self._spool_figures()[1]
        self._phase = "catching up"
        self.pipeline.catch_up(spark, MAX_ATTEMPTS)

    def _follow(self, spark: SparkSession) -> None:
        self._phase = "first rows"
        followed = [RestartingQuery(step, spark, self.plan.every_s) for step in self.pipeline.steps]
        try:
            until_s = None if self.plan.seconds is None else time.monotonic() + self.plan.seconds
            first_s = time.monotonic() + FIRST_S
            batches = self.pipeline.bronze.batches
            while not self.stop.wait(POLL_INTERVAL_S) and (
                until_s is None or time.monotonic() < until_s
            ):
                self._check()
                for each in followed:
                    each.check()
                if self.pipeline.bronze.batches > batches or time.monotonic() > first_s:
                    self.pace.started.set()
                    self._phase = "streaming"
                if self._are_done():
                    break
        finally:
            for each in followed:
                each.query.stop()

    def _wait_until_sent(self) -> None:
        until_s = None if self.plan.seconds is None else time.monotonic() + self.plan.seconds
        while self.producers and not self._are_done():
            if self.stop.wait(POLL_INTERVAL_S) or (
                until_s is not None and time.monotonic() > until_s
            ):
                return
            self._check()

    def _are_done(self) -> bool:
        return (
            self.about.kind == OWN
            and not self.plan.follow
            and not any(each.is_alive() for each in self.producers)
        )

    def _check(self) -> None:
        if self.collector is not None:
            self.collector.check()
        for producer in self.producers:
            if producer.error is not None:
                raise PipelineError(
                    f"{producer.name} has failed: {producer.error}"
                ) from producer.error

    # Members

    @contextmanager
    def _collecting(self) -> Iterator[None]:
        options: dict[str, Any] = {"discover": self.plan.discover}
        if self.about.kind == OWN:
            options = {"transport": self._transport("collector"), "config": CONFIG}
        self.collector = Collector(self.spool, self.about.where, **options)
        with self.collector:
            yield

    @contextmanager
    def _producing(self) -> Iterator[None]:
        assert self.collector is not None
        with ExitStack() as stack:
            for number in range(1, self.plan.producers + 1):
                ledger = stack.enter_context(
                    ProducerLedger(self.plan.output / "producers" / f"{number}.jsonl")
                )
                producer = SensorProducer(
                    number,
                    group=self.about.where,
                    collector=self.collector.name,
                    transport=partial(self._transport, f"producer {number}"),
                    ledger=ledger,
                    stored_seqno=self._stored_seqno,
                    pace=self.pace,
                    seed=self.about.seed,
                    messages=self.plan.messages,
                    rate=self.plan.rate,
                )
                self.producers.append(producer)
            for producer in self.producers:
                producer.start()
            try:
                yield
            finally:
                for producer in self.producers:
                    producer.stop()

    def _ledgers(self) -> list[Path]:
        return sorted((self.plan.output / "producers").glob("*.jsonl"))

    def _transport(self, who: str) -> Any:
        return lossy_transport(
            self.about.where, self.plan.output / "meeting", self.plan.loss, self.about.seed, who
        )

    def _stored_seqno(self, origin: str) -> int:
        view = SpoolReader(self.spool)
        view.refresh()
        return view.high().get(origin, 0)

    # Telling

    @contextmanager
    def _reporting(self, phase: str) -> Iterator[None]:
        """Report the progress from a thread, until the end of the block."""
        self._phase = phase
        over = threading.Event()

        def work() -> None:
            while not over.wait(POLL_INTERVAL_S):
                self.tell(self.progress())

        self.tell(self.progress())
        thread = threading.Thread(target=work, name="pipeline progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def progress(self) -> PipelineProgress:
        """Return the progress."""
        tables = self.pipeline.tables
        left = [producer.remaining for producer in self.producers]
        acknowledged = sum(producer.acknowledged for producer in self.producers)
        size_bytes, high = self._spool_figures()
        read = committed_offsets(self.pipeline.steps[0].checkpoint)
        return PipelineProgress(
            phase=self._phase,
            seconds=time.monotonic() - self.start_s,
            sent=sum(producer.sent for producer in self.producers),
            acknowledged=acknowledged,
            expected=None if None in left or not left else acknowledged + sum(filter(None, left)),
            spool_bytes=size_bytes,
            lag=sum(max(0, seqno - read.get(key, 0)) for key, seqno in high.items()),
            arrived=self.pipeline.bronze.rows - self._rows_before,
            rows={table.kind.name: table.rows for table in tables},
            batches={table.kind.name: table.batches for table in tables},
        )

    def _spool_figures(self) -> tuple[int, Mapping[str, int]]:
        try:
            if self._spool_reader is None:
                self._spool_reader = SpoolReader(self.spool)
            self._spool_reader.refresh()
            size_bytes = sum(
                path.stat().st_size for path in (self.spool / "segments").glob("*.run")
            )
            return size_bytes, self._spool_reader.high()
        except (GaplessError, OSError):
            return 0, {}


def committed_offsets(checkpoint: Path) -> Mapping[str, int]:
    """Return up to where a query has read a spool and committed what it made of it."""
    with suppress(OSError, ValueError, IndexError, GaplessError):
        batches = (
            int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()
        )
        lines = (
            (checkpoint / "offsets" / f"{max(batches)}").read_text(encoding="utf-8").splitlines()
        )
        return digest_of(json.loads(lines[2]))
    return {}


class RestartingQuery:
    """A step that follows its source, restarted when it fails."""

    def __init__(self, step: PipelineStep, spark: SparkSession, every_s: float) -> None:
        self.step = step
        self.query = step.start(spark, every_s=every_s)
        self._again = partial(step.start, spark, every_s=every_s)
        self._patience = RetryLimit(step, MAX_ATTEMPTS)

    def check(self) -> None:
        """Restart a failed query; raise its error if it fails too often."""
        error: Exception | None = self.query.exception()
        if error is not None:
            self._patience.on_failure(error)
            self.query = self._again()


@contextmanager
def _driver_lock(spark: SparkSession, path: Path) -> Iterator[None]:
    """Make the JVM hold a lock: it may outlive this program, and checkpoints have one user."""
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
    """Turn an error of Spark into one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise PipelineError(root_cause(str(error))) from error
