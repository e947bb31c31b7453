"""The run of a seed: start the processes, kill some under load, drain, and check the table.

gather ── kill on both sides ── producers stop ── Spark drains the spool ── check the table
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gapless.output.private_files import make_private_folder
from gapless.spool import SpoolReader
from gapless.spool.fsck import check
from gapless_lab.chaos.plan import (
    COLLECTOR,
    DRIVER,
    EXECUTOR,
    GROUP_SIDE,
    PRODUCER,
    SOURCE,
    WORKER,
    ChaosPlan,
)
from gapless_lab.chaos.producer import ChaosTask
from gapless_lab.chaos.spark_side import SLOW_WORKER_ERROR, SparkSide
from gapless_lab.exactness import ExactnessVerdict, TableCheck, read_rows
from gapless_lab.nemesis import NemesisOp, run_schedule
from gapless_lab.process import (
    TIMEOUT_S,
    LabError,
    LabProcess,
    Testbed,
    descendants,
    signal_all,
    wait_exited,
    wait_until,
    worker_command,
)
from gapless_lab.workload import ledger_path, read_ledger

GROUP = "chaos"
READER = "chaos"

PhaseCallback = Callable[[str], None]
T = TypeVar("T")


class ChaosProcess(LabProcess):
    """An incarnation of a producer, or of ``gapless collect --json``."""

    @property
    def acked(self) -> int:
        """How many messages of a producer are acknowledged."""
        return int(self.latest.get("acked", {}).get("count", 0))

    @property
    def status(self) -> dict[str, Any]:
        """The last status of the collector."""
        return dict(json.loads(self.lines[-1])) if self.lines else {}


class ChaosTestbed(Testbed[ChaosProcess]):
    """The processes of a seed, with all files in ``folder``."""

    collector_options: ClassVar[Mapping[str, Any]] = {}
    """More options of the collector."""
    producer_options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the producers' tasks, in the place of those of the plan."""

    def __init__(
        self,
        plan: ChaosPlan,
        folder: Path,
        spark: SparkSide,
        on_phase: PhaseCallback = lambda _: None,
    ) -> None:
        super().__init__(folder, self._check_schedules)
        self.plan = plan
        self.spark = spark
        self.kills: Counter[str] = Counter()
        self.failures: list[str] = []
        self.findings: list[str] = []
        self.seconds: dict[str, float] = {}
        self.ledgers = folder / "producers"
        self._spark_kills = 0
        self._on_phase = on_phase
        self._table_task = {
            "spool": str(folder / "spool"),
            "table": str(folder / "table"),
            "checkpoint": str(folder / "checkpoint"),
            "rows": plan.rows_per_trigger,
        }
        self._aborted = threading.Event()
        make_private_folder(folder / "meeting")

    @property
    def collector(self) -> ChaosProcess:
        """The last incarnation of the collector."""
        return self.processes[COLLECTOR]

    @property
    def producers(self) -> list[ChaosProcess]:
        """The last incarnation of each producer."""
        return [self.processes[f"producer{number}"] for number in self._numbers]

    @property
    def _numbers(self) -> range:
        return range(1, self.plan.producers + 1)

    # Starting

    def start_collector(self) -> None:
        """Start the next incarnation of the collector."""
        config = ";".join(f"{key}={value}" for key, value in self.plan.config.items())
        options = {
            "spool": self.folder / "spool",
            "segment-bytes": self.plan.segment_bytes,
            "name": COLLECTOR,
            "discover": f"dir://{self.folder / 'meeting'}",
            "transport": "mesh",
            "host": "127.0.0.1",
            "ports": 0,
            "properties": config,
            "join-timeout": TIMEOUT_S,
            **self.collector_options,
        }
        program = "from gapless.cli import main; main()"
        command = [sys.executable, "-c", program, "collect", GROUP, "--json"]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        self.start(
            COLLECTOR, lambda number: ChaosProcess(f"{COLLECTOR}{number}", command, self.folder)
        )

    def start_producer(self, number: int) -> None:
        """Start the next incarnation of a producer."""

        def make(incarnation: int) -> ChaosProcess:
            task = ChaosTask(
                number=number,
                incarnation=incarnation,
                group=GROUP,
                collector=COLLECTOR,
                discovery_dir=self.folder / "meeting",
                ledgers=self.ledgers,
                settings=self.plan.config,
                seed=self.plan.seed,
                loss=self.plan.loss,
                **{"rate": self.plan.rate, **self.producer_options},
            )
            command = worker_command("gapless_lab.chaos.producer", task)
            return ChaosProcess(f"producer{number}-{incarnation}", command, self.folder)

        self.start(f"producer{number}", make)

    def acked(self) -> int:
        """Return how many messages are acknowledged, over all incarnations."""
        return sum(process.acked for process in (*self.processes.values(), *self.former))

    # The story

    def run(self) -> ExactnessVerdict:
        """Run all phases; return the verdict on the table."""
        try:
            with self:
                self._timed("gather", self._start_all)
                self._timed("kill", self._run_nemeses)
                self._timed("settle", self._stop_producers)
                self._timed("drain", self._drain)
                return self._timed("judge", self._check_exactness)
        finally:
            self._aborted.set()

    def _timed(self, name: str, what: Callable[[], T]) -> T:
        self._on_phase(name)
        began_s = time.monotonic()
        try:
            return what()
        finally:
            self.seconds[name] = round(time.monotonic() - began_s, 1)

    def _start_all(self) -> None:
        self.start_collector()
        for number in self._numbers:
            self.start_producer(number)
        self.spark.driver.wait_for_event("ready")
        self.wait_until(lambda: self.acked() > 0, "nothing is acknowledged")
        self.spark.driver.run(self._table_task)

    def _run_nemeses(self) -> None:
        """Run both schedules; the first error ends both."""
        with ThreadPoolExecutor(2) as pool:
            schedules = [
                pool.submit(run_schedule, ops, self._wait_for_turn, self._apply)
                for ops in (self.plan.group_ops, self.plan.spark_ops)
            ]
            try:
                for schedule in as_completed(schedules):
                    schedule.result()
            except BaseException:
                self._aborted.set()
                raise

    def _wait_for_turn(self, op: NemesisOp) -> None:
        self.wait_until(lambda: self._spark_kills >= op.after, "no kill on the Spark side")

    def _apply(self, op: NemesisOp) -> None:
        kill = {
            PRODUCER: self._kill_producer,
            COLLECTOR: self._kill_collector,
            DRIVER: self._kill_driver,
        }.get(op.victim, self._kill_part_of_spark)
        kill(op)
        self.kills[op.victim] += 1
        self._spark_kills += op.victim not in GROUP_SIDE
        self._on_phase(f"killed {op.victim}")

    def _wait_for_work(self, op: NemesisOp, holds: Callable[[], Any]) -> None:
        """Wait for the drawn work of the victim, then for the drawn delay."""
        self.wait_until(holds, f"{op.victim} has not done {op.min_work} of its work")
        self._aborted.wait(op.delay_s)

    def _check_schedules(self) -> None:
        if self._aborted.is_set():
            raise LabError("the other schedule has failed")
        self.spark.driver.check()

    def _kill_producer(self, op: NemesisOp) -> None:
        number = 1 + int(op.choice * self.plan.producers)
        victim = self.processes[f"producer{number}"]
        self._wait_for_work(op, lambda: victim.acked >= op.min_work)
        victim.kill()
        self.start_producer(number)

    def _kill_collector(self, op: NemesisOp) -> None:
        before = self.acked()
        self._wait_for_work(op, lambda: self.acked() >= before + op.min_work)
        self.collector.kill()
        self.start_collector()

    def _kill_driver(self, op: NemesisOp) -> None:
        driver = self.spark.driver
        self._wait_for_work(op, lambda: driver.batches >= op.min_work)
        tree = [driver.pid, *descendants(driver.pid)]
        if not op.with_children:
            signal_all([driver.jvm_pid], signal.SIGKILL)
        driver.kill(children=op.with_children)
        wait_exited(tree)
        self.failures += driver.failures
        self.spark.restart().run(self._table_task)

    def _kill_part_of_spark(self, op: NemesisOp) -> None:
        """Kill an executor, a Python worker, or the source beside the driver."""
        driver = self.spark.driver
        batches, failures = driver.batches, len(driver.failures)
        self._wait_for_work(op, lambda: self.spark.driver.batches >= batches + op.min_work)
        find = {
            EXECUTOR: self.spark.executors,
            WORKER: self.spark.python_workers,
            SOURCE: driver.source_pids,
        }[op.victim]
        pids = wait_until(find, f"no {op.victim} runs")
        victim = pids[int(op.choice * len(pids))]
        children = descendants(victim) if op.victim == EXECUTOR and op.with_children else []
        signal_all([victim, *children], signal.SIGKILL)
        if op.victim == SOURCE:
            driver.wait_until(
                lambda: len(driver.failures) > failures,
                "the query goes on without its source",
            )

    # The end

    def _stop_producers(self) -> None:
        """Stop the producers; each leaves when all sent messages are acknowledged."""
        for producer in self.producers:
            producer.wait_for_event("joined")
            producer.notify("end")
        for producer in self.producers:
            producer.wait_exit()
        self.check()

    def _drain(self) -> None:
        """Make Spark read to the end of the spool, and stop the collector."""
        driver = self.spark.driver
        driver.wait_for_event("ready")
        driver.notify("drain")
        self.wait_until(
            lambda: "drained" in driver.latest or driver.has_exited,
            "the query does not come to its end",
        )
        driver.wait_for_event("drained")
        self.failures += driver.failures
        self.collector.signal(signal.SIGTERM)
        if code := self.collector.wait_exit():
            self.findings.append(
                f"the collector has ended with code {code}; {self.collector.output_tail()}"
            )
        status = self.collector.status
        self.findings += [
            f"the collector counts {status[key]} {key}"
            for key in ("lost", "unexplained")
            if status[key]
        ]

    def _check_exactness(self) -> ExactnessVerdict:
        ledgers = {
            number: read_ledger(ledger_path(self.ledgers, number)) for number in self._numbers
        }
        verdict = TableCheck(ledgers).run(read_rows(self.folder / "table"))
        report = check(self.folder / "spool")
        self.findings += [f"spool: {problem}" for problem in report.problems]
        view = SpoolReader(self.folder / "spool")
        view.refresh()
        committed = {reader.name: reader.digest for reader in view.consumers()}.get(READER, {})
        behind = {key: high for key, high in view.high().items() if committed.get(key, 0) != high}
        if behind:
            self.findings.append(
                f"the reader is not at the end of the spool: {behind}, not {committed}"
            )
        strange = [failure for failure in self.failures if SLOW_WORKER_ERROR not in failure]
        self.findings += [
            f"the query has failed: {failure}" for failure in strange[self.kills[SOURCE] :]
        ]
        verdict.findings += self.findings
        return verdict
