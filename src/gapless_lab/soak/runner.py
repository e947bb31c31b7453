"""Run a soak: start processes, kill and stop some, wait for rest, and check the traces.

    gather ── load, kill -9, SIGSTOP … SIGCONT ── halt ── rest ── end ── check

The seed draws the victims, the moments and the lengths of the pauses. The timing of the processes
is theirs, so two soaks with one seed are alike, not equal.
"""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gapless.errors import ConfigError
from gapless.rng import split
from gapless.trace import TraceRow, check, read
from gapless.units import NS_PER_S
from gapless_lab.nemesis import CONTINUE, KILL, RESTART, STOP, NemesisOp, run_schedule
from gapless_lab.ports import free_ports
from gapless_lab.process import LabProcess, Testbed, worker_command
from gapless_lab.soak.plan import SoakPlan, SoakReport, SoakTask

WORKER = "gapless_lab.soak.worker"
REST_TIMEOUT_S = 60.0
"""How long a group may take to come to rest after the load."""
ANSWER_TIMEOUT_S = 120.0
"""How long a process may take to answer a command."""
POLL_INTERVAL_S = 0.1
"""How long between two checks for rest."""
MEMORY_SAMPLES = 30
"""How many times the memory of each process is measured during the load."""
SIGNALS = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP, CONTINUE: signal.SIGCONT}


def draw_nemesis_ops(plan: SoakPlan) -> list[NemesisOp]:
    """Draw which members are killed and stopped, and when.

    Operations are spread over the first four fifths of the time, so that every victim is back under
    load. A stopped member stays stopped until the others have expelled it. No member is a victim
    twice before every member was one.
    """
    rng = split(plan.seed, "blows")
    config = plan.config()
    expelled_s = (
        config.suspect_after_ns + config.verify_timeout_ns + config.heartbeat_interval_ns
    ) / NS_PER_S
    ops: list[NemesisOp] = []
    total = plan.kills + plan.stops
    victims = rng.sample(range(plan.members), plan.members) * 2
    for turn, at in enumerate(rng.sample(range(total), total)):
        start_s = plan.seconds * 0.8 * (turn + rng.uniform(0.2, 0.4)) / total
        if at < plan.kills:
            back_s = start_s + rng.choice((0.05, expelled_s))
            first, second = KILL, RESTART
        else:
            back_s = start_s + expelled_s * rng.uniform(1.3, 1.6)
            first, second = STOP, CONTINUE
        victim = str(victims[at])
        ops += (NemesisOp(start_s, victim, first), NemesisOp(back_s, victim, second))
    return sorted(ops)


class SoakNetwork:
    """Where the processes run: on loopback. A subclass may put each on a host of its own."""

    def addresses(self, count: int) -> list[str]:
        """Return the addresses of the members, as host:port."""
        return [f"127.0.0.1:{port}" for port in free_ports(count)]

    def command_prefix(self, task: SoakTask) -> list[str]:  # noqa: ARG002
        """Return what precedes the command line of a process."""
        return []

    def connect(self, task: SoakTask, process: LabProcess) -> None:
        """Connect a process that has just started to its network."""


class SoakProcess(LabProcess):
    """One process of a soak, and its memory over time."""

    def __init__(self, task: SoakTask, network: SoakNetwork) -> None:
        self.task = task
        self.memory: list[float] = []
        command = [*network.command_prefix(task), *worker_command(WORKER, task)]
        super().__init__(f"{task.node}.{task.start}", command, Path(task.folder))
        network.connect(task, self)

    def sample_memory(self) -> None:
        """Record the resident memory, in megabytes."""
        if size_bytes := self.rss_bytes():
            self.memory.append(round(size_bytes / 1e6, 1))


class SoakTestbed(Testbed[SoakProcess]):
    """The processes of one soak, by index, with their traces in ``folder``."""

    def __init__(self, plan: SoakPlan, folder: Path, network: SoakNetwork) -> None:
        super().__init__(folder)
        self.plan = plan
        self.network = network
        self.addresses = network.addresses(plan.members)
        for index in range(plan.members):
            self._start(index)

    def _start(self, index: int) -> SoakProcess:
        def make(start: int) -> SoakProcess:
            task = SoakTask(self.plan, self.addresses, index, start, str(self.folder))
            return SoakProcess(task, self.network)

        return self.start(str(index), make)

    def run_load(self, progress: Callable[[float], None]) -> None:
        """Run the load and the schedule of faults; a delay shifts all that follows."""
        self.ask("go", ANSWER_TIMEOUT_S)
        sample_s = self.plan.seconds / MEMORY_SAMPLES
        samples = [NemesisOp(sample_s * turn) for turn in range(1, MEMORY_SAMPLES + 1)]
        began_s = time.monotonic()

        def wait(op: NemesisOp) -> None:
            nonlocal began_s
            left_s = began_s + op.at_s - time.monotonic()
            threading.Event().wait(max(0.0, left_s))
            began_s -= min(0.0, left_s)

        def apply(op: NemesisOp) -> None:
            if op.victim:
                self._apply(op)
                return
            for member in self.processes.values():
                member.sample_memory()
            progress(op.at_s)

        schedule = sorted([*draw_nemesis_ops(self.plan), *samples], key=lambda op: op.at_s)
        run_schedule(schedule, wait, apply)

    def _apply(self, op: NemesisOp) -> None:
        member = self.processes[op.victim]
        if op.action != RESTART:
            member.signal(SIGNALS[op.action])
            return
        member.kill()
        self._start(member.task.index).notify("go")

    def wait_for_rest(self) -> bool:
        """End the load and wait until every message is delivered; return whether all are."""
        self.ask("halt", ANSWER_TIMEOUT_S)
        until_s = time.monotonic() + REST_TIMEOUT_S
        while not (rested := is_at_rest(self.ask("look", ANSWER_TIMEOUT_S))):
            if time.monotonic() > until_s:
                break
            threading.Event().wait(POLL_INTERVAL_S)
        return rested


def is_at_rest(seen: list[dict[str, Any]]) -> bool:
    """Return whether all share one view, and every message is accepted and delivered."""
    present = sorted(one["me"] for one in seen)
    return all(
        one["idle"]
        and one["low"] == one["high"]
        and sorted(one["members"]) == present
        and all(
            other["heard"].get(one["me"], 0) == one["high"] for other in seen if other is not one
        )
        for one in seen
    )


def _check_empty(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: name an empty folder for the traces, or a new one"
        )
    return folder


def soak(
    plan: SoakPlan,
    folder: Path | None = None,
    *,
    network: SoakNetwork | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> SoakReport:
    """Run a soak and check its traces, which stay in ``folder`` if one is given."""
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as temporary,
        SoakTestbed(
            plan, _check_empty(folder or Path(temporary)), network or SoakNetwork()
        ) as group,
    ):
        group.ask("members", ANSWER_TIMEOUT_S, count=plan.members)
        group.run_load(progress)
        rested = group.wait_for_rest()
        ends = group.ask("end", ANSWER_TIMEOUT_S)
        struck: Counter[str] = sum((Counter(end["struck"]) for end in ends), Counter())
        memory = {
            member.name: member.memory
            for member in (*group.processes.values(), *group.former)
            if member.memory
        }
        return report(
            plan, list(read(group.folder)), rested=rested, struck=dict(struck), memory=memory
        )


def _messages(rows: list[TraceRow], event: str) -> int:
    """Return how many seqnos the rows of an event cover."""
    return sum(row.seqno_last - row.seqno + 1 for row in rows if row.event == event)


def report(
    plan: SoakPlan,
    rows: list[TraceRow],
    *,
    rested: bool,
    struck: dict[str, int],
    memory: dict[str, list[float]],
) -> SoakReport:
    """Check a trace and count its events."""
    events = Counter(row.event for row in rows)
    return SoakReport(
        rested=rested,
        violations=check(rows),
        rows=len(rows),
        lives=events["BEGIN"],
        sent=_messages(rows, "SEND"),
        delivered=_messages(rows, "DELIVER"),
        views=len({(row.view, row.origin) for row in rows if row.event == "MEMBERS"}),
        expelled=events["EXPELLED"],
        naks=events["NAK_OUT"],
        repairs=events["REPAIR"],
        struck=struck,
        kills=plan.kills,
        stops=plan.stops,
        memory=memory,
    )
