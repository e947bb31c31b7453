"""The demo: a lossy group, a kill, tables on Spark, the check of the traces, the report.

Spark and the processes start together: the collector founds the group, and the producers join and
send one message each. The tables follow the spool while the producers send the rest. One producer,
drawn from the seed, is killed and restarted a moment later, and resumes after the messages in the
spool. When all messages are acknowledged, the members stay idle for a while, and leave. Then the
tables take the rest, and the traces are checked, measured and drawn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gapless.spool import SpoolReader
from gapless.trace import CHECKS, check, read
from gapless.units import NS_PER_MS
from gapless_lab.demo.plan import GROUP, PRODUCERS, RATE, DemoPlan
from gapless_lab.demo.result import SUMMARY, DemoResult, count_trace
from gapless_lab.exactness import StreamRows, missing_by_incarnation
from gapless_lab.nemesis import KILL, NemesisOp, run_schedule
from gapless_lab.plans import SETTINGS
from gapless_lab.sensor_pipeline.report import PipelineReport
from gapless_lab.sensor_pipeline.runner import (
    MAX_ATTEMPTS,
    PipelineProgress,
    ProgressCallback,
    TableRun,
    explained,
    following,
)
from gapless_lab.workload import read_incarnations
from pyspark_gapless.quiet_session import quiet_session
from pyspark_gapless.sweep.executors import light_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "gapless demo"
EVERY_S: Final = 1.0
"""Time between two batches of each table."""
TIMEOUT_S: Final = 120.0
"""How long the group and the first rows may take to come."""
STALL_TIMEOUT_S: Final = 300.0
"""How long without an acknowledgement counts as a failure."""
QUIET_S: Final = 2.0
"""How long the group stays idle at the end: only heartbeats may be sent then."""
STARTING, SENDING, FILLING, CHECKING, DRAWING = "start", "send", "tables", "verify", "report"
"""The parts of a demo."""


def run(plan: DemoPlan, on_progress: ProgressCallback = lambda _: None) -> DemoResult:
    """Run the demo in the folder of the plan; return its result."""
    with plan.locked_output():
        return _DemoRun(plan, on_progress).run()


class _DemoRun(TableRun):
    plan: DemoPlan

    def __init__(self, plan: DemoPlan, on_progress: ProgressCallback) -> None:
        task = plan.member_task(
            group=GROUP,
            settings=SETTINGS["demo"],
            seed=plan.seed,
            rate=RATE,
            messages=plan.messages,
            traces=str(plan.traces.absolute()),
        )
        tables = (FILLING, CHECKING, DRAWING) if plan.spark else (CHECKING,)
        super().__init__(plan, task, on_progress, (STARTING, SENDING, *tables))

    def run(self) -> DemoResult:
        with ExitStack() as stack:
            stack.enter_context(self.testbed)
            stack.enter_context(self.reporting())
            self.begin(STARTING)
            spark = self._start(stack)
            if spark is None:
                self.begin(SENDING)
                self._send()
                return self._verify_without_spark()
            with explained():
                self.pipeline.prepare()
                self.begin(SENDING)
                with following(self.pipeline, spark, EVERY_S) as self.testbed.on_poll:
                    self.testbed.wait_until(
                        lambda: self.pipeline.bronze.batches > 0,
                        "no row has come into a table",
                        TIMEOUT_S,
                    )
                    self._send()
                self.begin(FILLING)
                self.pipeline.catch_up(spark, MAX_ATTEMPTS)
                return self._verify(spark, self.report(spark))

    def progress(self) -> PipelineProgress:
        """Return the progress; without Spark the messages go no further than into the spool."""
        found = super().progress()
        if self.plan.spark:
            return found
        return replace(found, rows={}, batches={}, lag=0, arrived=found.acknowledged)

    # Parts

    def _start(self, stack: ExitStack) -> SparkSession | None:
        """Start the members and Spark; wait until each producer has a message acknowledged."""
        plan, testbed, spark = self.plan, self.testbed, None
        testbed.start_member(0)
        for number in range(1, PRODUCERS + 1):
            testbed.start_member(number, plan.victim_messages if number == plan.victim else None)
        if plan.spark:
            settings = light_settings(plan.master)
            session = quiet_session(plan.master, plan.logs / "spark.err", NAME, settings)
            spark = stack.enter_context(session)
        testbed.wait_until(
            lambda: all(member.acknowledged for member in testbed.producers),
            "the group has not gathered",
            TIMEOUT_S,
        )
        return spark

    def _send(self) -> None:
        """Send everything, with the kill in between; keep the group idle for a while, and leave."""
        self.testbed.start_load()
        run_schedule(self.plan.nemesis_ops, self._wait_for_turn, self._apply)
        self._wait_until_sent(lambda: self.testbed.is_done)
        self.testbed.ask("rest")
        until_s = time.monotonic() + QUIET_S
        self.testbed.wait_until(lambda: time.monotonic() > until_s, "no rest", TIMEOUT_S)
        self.testbed.stop()

    def _wait_for_turn(self, op: NemesisOp) -> None:
        victim = self.testbed.processes[op.victim]
        after_s = time.monotonic() + op.delay_s
        self._wait_until_sent(
            lambda: victim.acknowledged >= op.min_work and time.monotonic() >= after_s
        )

    def _wait_until_sent(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition as long as messages are acknowledged."""
        while not holds():
            before = self.testbed.acknowledged
            self.testbed.wait_until(
                lambda: holds() or self.testbed.acknowledged != before,  # noqa: B023
                "nothing was acknowledged",
                STALL_TIMEOUT_S,
            )

    def _apply(self, op: NemesisOp) -> None:
        if op.action == KILL:
            self.testbed.processes[op.victim].kill()
        else:
            self.testbed.start_member(self.plan.victim)

    # The verdict

    def _verify(self, spark: SparkSession, report: PipelineReport) -> DemoResult:
        from gapless.report import render
        from pyspark_gapless.analytics import figures
        from pyspark_gapless.trace import Trace
        from pyspark_gapless.verify import verify

        page = self.plan.output / "report.html"
        self.begin(CHECKING)
        trace = Trace.read(spark, self.plan.traces)
        verdict = verify(trace, progress=self._note)
        self.begin(DRAWING)
        loss = f"{self.plan.loss * 100:g} % loss"
        found: dict[str, Any] = {
            **figures(trace, progress=self._note),
            **verdict.as_dict(),
            "title": f"gapless demo: {PRODUCERS} producers, {loss}, one killed",
            "pipeline": report.as_dict(),
        }
        (self.plan.output / "figures.json").write_text(json.dumps(found), encoding="utf-8")
        page.write_text(render(found), encoding="utf-8")
        problems = list(report.problems)
        problems += [f"the trace of {each['life']} is incomplete" for each in verdict.incomplete]
        checked = found["verdict"]
        summary = found["summary"]
        summary["lost"] += report.lost
        summary["duplicates"] += report.repeated
        summary |= {
            "rows": report.bronze,
            "events": checked["events"],
            "checks": sum(each["state"] != "not checked" for each in checked["checks"]),
            "violations": checked["violations"],
        }
        stored, tables = ("bronze", report.bronze), dict(report.tables)
        return self._result(summary, stored, problems, tables=tables, report=str(page))

    def _note(self, part: str, *_: object) -> None:
        self.note = part.replace("_", " ")

    def _verify_without_spark(self) -> DemoResult:
        """Check the trace row by row, in this process."""
        self.begin(CHECKING)
        rows = sorted(read(self.plan.traces), key=lambda row: row.t_ns)
        violations = check(rows)
        summary = count_trace(rows)
        wrong = [violation.check for violation in violations]
        view = SpoolReader(self.plan.spool_dir)
        view.refresh()
        held = {origin: StreamRows(high, high, 1, high) for origin, high in view.high().items()}
        _, missing = missing_by_incarnation(held, read_incarnations(self.plan.ledgers))
        summary |= {
            "lost": sum(missing.values()),
            "duplicates": wrong.count("S2"),
            "out_of_order": wrong.count("S3"),
            "rows": None,
            "events": len(rows),
            "checks": len(CHECKS),
            "violations": len(violations),
        }
        problems = [str(violation) for violation in violations[:10]]
        return self._result(summary, ("the spool", sum(view.high().values())), problems)

    def _result(
        self, summary: Mapping[str, Any], stored: tuple[str, int], problems: list[str], **more: Any
    ) -> DemoResult:
        """Return the result; ``stored`` says where the messages are in the end, and how many."""
        self.begin("")
        plan, (where, count) = self.plan, stored
        if count != plan.total_messages:
            problems.append(f"{where} has {count:,} of {plan.total_messages:,} messages")
        figures = {
            "members": PRODUCERS + 1,
            "loss_percent": round(plan.loss * 100, 3),
            "seed": plan.seed,
            "kills": len(self.testbed.former),
            "sent": plan.total_messages,
            "latency_p50_ms": round(summary["latency_p50_ns"] / NS_PER_MS, 3),
            "latency_p99_ms": round(summary["latency_p99_ns"] / NS_PER_MS, 3),
            **{name: summary[name] for name in SUMMARY},
        }
        seconds = {name: took_s or 0.0 for name, took_s in self.seconds.items()}
        trace = str(plan.traces)
        return DemoResult(figures=figures, problems=problems, seconds=seconds, trace=trace, **more)
