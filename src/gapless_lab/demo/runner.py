"""The demo: a lossy group, a kill, tables on Spark, the check of the traces, the report.

Spark and the processes start together. The tables follow the spool while the producers send. After
all members have left, the tables take the rest, and the traces are checked, measured and drawn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gapless.errors import TimedOutError
from gapless.spool import SpoolReader
from gapless.trace import CHECKS, check, read
from gapless.units import NS_PER_MS
from gapless_lab.demo.plan import PRODUCERS, DemoPlan
from gapless_lab.demo.result import DemoResult, count_trace
from gapless_lab.demo.testbed import DemoTestbed
from gapless_lab.exactness import StreamRows, missing_by_incarnation
from gapless_lab.sensor_pipeline.report import PipelineReport, build_report
from gapless_lab.sensor_pipeline.runner import (
    MAX_ATTEMPTS,
    RestartingQuery,
    explained,
)
from gapless_lab.workload import read_ledger
from pyspark_gapless.quiet_session import quiet_session
from pyspark_gapless.sweep.executors import light_settings
from pyspark_gapless.tables.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "gapless demo"
EVERY_S: Final = 1.0
"""Time between two batches of each table."""
TIMEOUT_S: Final = 120.0
"""How long the group, Spark and the first rows may take to come."""
POLL_INTERVAL_S: Final = 0.05


@dataclass
class DemoProgress:
    """The phases with their seconds (None: not begun), and how far the messages are."""

    seconds: dict[str, float | None]
    phase: str = ""
    note: str = ""
    acknowledged: int = 0
    expected: int = 0
    rows: int = 0
    began_s: float = field(default_factory=time.monotonic)


ProgressCallback = Callable[[DemoProgress], None]
"""Receives the progress."""

STARTING, SENDING, FILLING, CHECKING, DRAWING = "start", "send", "tables", "verify", "report"
"""The parts of a demo."""


def run(plan: DemoPlan, tell: ProgressCallback = lambda _: None) -> DemoResult:
    """Run the demo in the folder of the plan; return its result."""
    with plan.locked_output():
        return _Demo(plan, tell).run()


class _Demo:
    def __init__(self, plan: DemoPlan, tell: ProgressCallback) -> None:
        self.plan = plan
        parts = (
            (STARTING, SENDING, FILLING, CHECKING, DRAWING)
            if plan.spark
            else (STARTING, SENDING, CHECKING)
        )
        self.progress = DemoProgress(dict.fromkeys(parts), expected=plan.total_messages)
        self._on_progress = tell
        self.pipeline = Pipeline(plan.output, plan.spool)
        self.testbed = DemoTestbed(plan, self._update_progress)
        self._queries: list[RestartingQuery] = []

    def run(self) -> DemoResult:
        with ExitStack() as stack:
            stack.enter_context(self.testbed.running())
            with self._phase(STARTING):
                spark = stack.enter_context(self._spark_session()) if self.plan.spark else None
                self._wait_until(lambda: self.testbed.is_ready, "the group has not gathered")
            if spark is None:
                with self._phase(SENDING):
                    self._send()
                return self._verify_without_spark()
            with explained():
                with self._phase(SENDING), self._following(spark):
                    self._wait_until(
                        lambda: self.pipeline.bronze.batches > 0, "no row has come into a table"
                    )
                    self._send()
                with self._phase(FILLING):
                    report = self._fill(spark)
                return self._verify(spark, report)

    # Telling

    @contextmanager
    def _phase(self, name: str, note: str = "") -> Iterator[None]:
        began_s = time.monotonic()
        self.progress.phase, self.progress.note, self.progress.began_s = name, note, began_s
        self.progress.seconds[name] = 0.0
        self._on_progress(self.progress)
        yield
        self.progress.seconds[name] = round(time.monotonic() - began_s, 1)
        self._on_progress(self.progress)

    def _update_progress(self) -> None:
        self.progress.acknowledged = self.testbed.acknowledged
        self.progress.rows = self.pipeline.bronze.rows
        for each in self._queries:
            each.check()
        self._on_progress(self.progress)

    def _wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a condition, and report the progress meanwhile."""
        until_s = time.monotonic() + TIMEOUT_S
        while not holds():
            self._update_progress()
            if time.monotonic() > until_s:
                raise TimedOutError(
                    f"{what} within {TIMEOUT_S:.0f} s; see {self.plan.output / 'logs'}"
                )
            time.sleep(POLL_INTERVAL_S)

    # Parts

    @contextmanager
    def _spark_session(self) -> Iterator[SparkSession]:
        """Start Spark in a thread, while the processes start."""
        log_path = self.plan.output / "logs" / "spark.err"
        session = quiet_session(self.plan.master, log_path, NAME, light_settings(self.plan.master))
        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(session.__enter__)
            self._wait_until(started.done, "Spark has not started")
        try:
            yield started.result()
        finally:
            session.__exit__(None, None, None)

    @contextmanager
    def _following(self, spark: SparkSession) -> Iterator[None]:
        """Make the tables follow the spool."""
        self.pipeline.prepare()
        self._queries = [RestartingQuery(step, spark, EVERY_S) for step in self.pipeline.steps]
        try:
            yield
        finally:
            for each in self._queries:
                each.query.stop()
            self._queries = []

    def _send(self) -> None:
        self.testbed.send_all()
        self._update_progress()
        self.testbed.end_quietly()

    def _fill(self, spark: SparkSession) -> PipelineReport:
        self.pipeline.catch_up(spark, MAX_ATTEMPTS)
        ledgers = [self.plan.ledger(number) for number in range(1, PRODUCERS + 1)]
        return build_report(spark, self.pipeline, sent=self.testbed.sent, since=0, ledgers=ledgers)

    # The verdict

    def _verify(self, spark: SparkSession, report: PipelineReport) -> DemoResult:
        from gapless.report import render
        from pyspark_gapless.analytics import figures
        from pyspark_gapless.trace import Trace
        from pyspark_gapless.verify import verify

        with self._phase(CHECKING):
            trace = Trace.read(spark, self.plan.traces)
            verdict = verify(trace, progress=self._checked)
        with self._phase(DRAWING):
            found: dict[str, Any] = {**figures(trace, progress=self._measured), **verdict.as_dict()}
            found["title"] = (
                f"gapless demo: {PRODUCERS} producers, {self.plan.loss * 100:g} % loss, one killed"
            )
            found["pipeline"] = report.as_dict()
            self.plan.figures.write_text(json.dumps(found), encoding="utf-8")
            self.plan.report.write_text(render(found), encoding="utf-8")
        summary = found["summary"]
        problems = list(report.problems)
        if report.bronze != self.plan.total_messages:
            problems.append(
                f"bronze has {report.bronze:,} rows of {self.plan.total_messages:,} messages"
            )
        problems += [
            f"the trace of {life['life']} has not everything" for life in verdict.incomplete
        ]
        return DemoResult(
            **self._plan_figures(),
            **{
                name: summary[name]
                for name in ("delivered", "frames_lost", "naks", "repairs", "repaired")
            },
            lost=report.lost + summary["lost"],
            duplicates=report.repeated + summary["duplicates"],
            out_of_order=summary["out_of_order"],
            latency_p50_ms=round(summary["latency_p50_ns"] / NS_PER_MS, 3),
            latency_p99_ms=round(summary["latency_p99_ns"] / NS_PER_MS, 3),
            rows=report.bronze,
            events=found["verdict"]["events"],
            checks=sum(each["state"] != "not checked" for each in found["verdict"]["checks"]),
            violations=found["verdict"]["violations"],
            problems=problems,
            tables=dict(report.tables),
            report=str(self.plan.report),
        )

    def _checked(self, check: str, rows: int) -> None:
        del rows
        self.progress.note = check
        self._on_progress(self.progress)

    def _measured(self, part: str, done: int, parts: int) -> None:
        del done, parts
        self.progress.note = part.replace("_", " ")
        self._on_progress(self.progress)

    def _verify_without_spark(self) -> DemoResult:
        """Check the trace row by row, in this process."""
        with self._phase(CHECKING):
            rows = sorted(read(self.plan.traces), key=lambda row: row.t_ns)
            violations = check(rows)
            found = count_trace(rows)
        wrong = [violation.check for violation in violations]
        view = SpoolReader(self.plan.spool)
        view.refresh()
        kept = view.high()
        incarnations = [
            incarnation
            for number in range(1, PRODUCERS + 1)
            for incarnation in read_ledger(self.plan.ledger(number)).incarnations
        ]
        held = {origin: StreamRows(high, high, 1, high) for origin, high in kept.items()}
        lost = sum(missing_by_incarnation(held, incarnations)[1].values())
        problems = [str(violation) for violation in violations[:10]]
        if (stored := sum(kept.values())) != self.plan.total_messages:
            problems.append(
                f"the spool has {stored:,} messages, {self.plan.total_messages:,} were sent"
            )
        return DemoResult(
            **self._plan_figures(),
            **found,
            lost=lost,
            duplicates=wrong.count("S2"),
            out_of_order=wrong.count("S3"),
            rows=None,
            checks=len(CHECKS),
            violations=len(violations),
            problems=problems,
        )

    def _plan_figures(self) -> dict[str, Any]:
        return {
            "members": PRODUCERS + 1,
            "loss_percent": round(self.plan.loss * 100, 3),
            "seed": self.plan.seed,
            "kills": self.testbed.kills,
            "sent": self.plan.total_messages,
            "seconds": {
                name: took_s for name, took_s in self.progress.seconds.items() if took_s is not None
            },
            "trace": str(self.plan.traces),
        }
