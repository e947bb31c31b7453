"""The demo from its start to its result: a lossy group, a kill, tables on Spark, the verdict on its trace, the report.

While Spark starts the processes do too. The tables follow the spool while the producers send; when
everybody has left, the tables take the rest, and the trace that every process has written is
checked, measured and drawn.
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
from gapless.spool import SpoolView
from gapless.trace import CHECKS, check, read
from gapless.units import NS_PER_MS
from gapless_lab.demo.plan import PRODUCERS, Plan
from gapless_lab.demo.result import Result, count
from gapless_lab.demo.testbed import Stage
from gapless_lab.sensor_pipeline.ledger import read_lives
from gapless_lab.sensor_pipeline.report import Report, examine
from gapless_lab.sensor_pipeline.runner import TRIES, Followed, explained, quiet_session
from pyspark_gapless.sweep.executors import light_settings
from pyspark_gapless.tables.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "gapless demo"
EVERY_S: Final = 1.0
"""Time between two batches of each table."""
PATIENCE_S: Final = 120.0
"""How long the group, Spark and the first rows may take to come."""
LOOK_S: Final = 0.05


@dataclass
class Stand:
    """How things stand: the parts with their seconds (None: not begun), and how far the messages are."""

    seconds: dict[str, float | None]
    now: str = ""
    note: str = ""
    acknowledged: int = 0
    expected: int = 0
    rows: int = 0
    began_s: float = field(default_factory=time.monotonic)


Tell = Callable[[Stand], None]
"""Somebody who wants to know how things stand."""

STARTING, SENDING, FILLING, CHECKING, DRAWING = "start", "send", "tables", "verify", "report"
"""The parts of a demo."""


def run(plan: Plan, tell: Tell = lambda _: None) -> Result:
    """Run the demo and return what came of it; everything that it makes is in the folder of the plan."""
    with plan.prepared():
        return _Demo(plan, tell).run()


class _Demo:
    def __init__(self, plan: Plan, tell: Tell) -> None:
        self.plan = plan
        parts = (
            (STARTING, SENDING, FILLING, CHECKING, DRAWING)
            if plan.spark
            else (STARTING, SENDING, CHECKING)
        )
        self.stand = Stand(dict.fromkeys(parts), expected=plan.sent)
        self._tell = tell
        self.pipeline = Pipeline(plan.output, plan.spool)
        self.stage = Stage(plan, self._look)
        self._followed: list[Followed] = []

    def run(self) -> Result:
        with ExitStack() as stack:
            stack.enter_context(self.stage.running())
            with self._part(STARTING):
                spark = stack.enter_context(self._starting()) if self.plan.spark else None
                self._until(lambda: self.stage.is_ready, "the group has not gathered")
            if spark is None:
                with self._part(SENDING):
                    self._send()
                return self._judge_alone()
            with explained():
                with self._part(SENDING), self._following(spark):
                    self._until(
                        lambda: self.pipeline.bronze.batches > 0, "no row has come into a table"
                    )
                    self._send()
                with self._part(FILLING):
                    report = self._fill(spark)
                return self._judge(spark, report)

    # Telling

    @contextmanager
    def _part(self, name: str, note: str = "") -> Iterator[None]:
        began_s = time.monotonic()
        self.stand.now, self.stand.note, self.stand.began_s = name, note, began_s
        self.stand.seconds[name] = 0.0
        self._tell(self.stand)
        yield
        self.stand.seconds[name] = round(time.monotonic() - began_s, 1)
        self._tell(self.stand)

    def _look(self) -> None:
        self.stand.acknowledged = self.stage.acknowledged
        self.stand.rows = self.pipeline.bronze.rows
        for each in self._followed:
            each.check()
        self._tell(self.stand)

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, and tell meanwhile how things stand."""
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            self._look()
            if time.monotonic() > until_s:
                raise TimedOutError(
                    f"{what} within {PATIENCE_S:.0f} s; see {self.plan.output / 'logs'}"
                )
            time.sleep(LOOK_S)

    # Parts

    @contextmanager
    def _starting(self) -> Iterator[SparkSession]:
        """Start Spark while the processes start."""
        log_path = self.plan.output / "logs" / "spark.err"
        session = quiet_session(self.plan.master, log_path, NAME, light_settings(self.plan.master))
        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(session.__enter__)
            self._until(started.done, "Spark has not started")
        try:
            yield started.result()
        finally:
            session.__exit__(None, None, None)

    @contextmanager
    def _following(self, spark: SparkSession) -> Iterator[None]:
        """Let the tables follow the spool."""
        self.pipeline.prepare()
        self._followed = [Followed(step, spark, EVERY_S) for step in self.pipeline.steps]
        try:
            yield
        finally:
            for each in self._followed:
                each.query.stop()
            self._followed = []

    def _send(self) -> None:
        self.stage.send_all()
        self._look()
        self.stage.rest()

    def _fill(self, spark: SparkSession) -> Report:
        self.pipeline.catch_up(spark, TRIES)
        ledgers = [self.plan.ledger(number) for number in range(1, PRODUCERS + 1)]
        return examine(spark, self.pipeline, sent=self.stage.sent, since=0, ledgers=ledgers)

    # The verdict

    def _judge(self, spark: SparkSession, report: Report) -> Result:
        from gapless.report import render
        from pyspark_gapless.analytics import figures
        from pyspark_gapless.trace import Trace
        from pyspark_gapless.verify import verify

        with self._part(CHECKING):
            trace = Trace.read(spark, self.plan.traces)
            verdict = verify(trace, progress=self._checked)
        with self._part(DRAWING):
            found: dict[str, Any] = {**figures(trace, progress=self._measured), **verdict.as_dict()}
            found["title"] = (
                f"gapless demo: {PRODUCERS} producers, {self.plan.loss * 100:g} % loss, one killed"
            )
            found["pipeline"] = report.as_dict()
            self.plan.figures.write_text(json.dumps(found), encoding="utf-8")
            self.plan.report.write_text(render(found), encoding="utf-8")
        summary = found["summary"]
        problems = list(report.problems)
        if report.bronze != self.plan.sent:
            problems.append(
                f"bronze has {report.bronze:,} rows, {self.plan.sent:,} messages were sent"
            )
        problems += [
            f"the trace of {life['life']} has not everything" for life in verdict.incomplete
        ]
        return Result(
            **self._asked(),
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
        self.stand.note = check
        self._tell(self.stand)

    def _measured(self, part: str, done: int, parts: int) -> None:
        del done, parts
        self.stand.note = part.replace("_", " ")
        self._tell(self.stand)

    def _judge_alone(self) -> Result:
        """Check the trace row by row, in this process."""
        with self._part(CHECKING):
            rows = sorted(read(self.plan.traces), key=lambda row: row.t_ns)
            violations = check(rows)
            found = count(rows)
        wrong = [violation.check for violation in violations]
        view = SpoolView(self.plan.spool)
        view.refresh()
        kept = view.high()
        lives = [
            life
            for number in range(1, PRODUCERS + 1)
            for life in read_lives(self.plan.ledger(number))
        ]
        lost = sum(max(0, life.acknowledged - kept.get(life.origin, 0)) for life in lives)
        problems = [str(violation) for violation in violations[:10]]
        if (stored := sum(kept.values())) != self.plan.sent:
            problems.append(f"the spool has {stored:,} messages, {self.plan.sent:,} were sent")
        return Result(
            **self._asked(),
            **found,
            lost=lost,
            duplicates=wrong.count("S2"),
            out_of_order=wrong.count("S3"),
            rows=None,
            checks=len(CHECKS),
            violations=len(violations),
            problems=problems,
        )

    def _asked(self) -> dict[str, Any]:
        return {
            "members": PRODUCERS + 1,
            "loss_percent": round(self.plan.loss * 100, 3),
            "seed": self.plan.seed,
            "kills": self.stage.kills,
            "sent": self.plan.sent,
            "seconds": {
                name: took_s for name, took_s in self.stand.seconds.items() if took_s is not None
            },
            "trace": str(self.plan.traces),
        }
