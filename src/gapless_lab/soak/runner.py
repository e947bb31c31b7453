"""Run a soak: start processes, kill and stop some, wait for rest, and check the traces.

    gather ── load, kill -9, SIGSTOP … SIGCONT ── halt ── rest ── end ── check

The seed draws the victims, the moments and the lengths of the pauses. The timing of the processes
is real, so two soaks with the same seed are alike, not equal.
"""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from gapless.errors import ConfigError
from gapless.identity import Address
from gapless.output.private_files import make_private_folder
from gapless.rng import split
from gapless.trace import TraceRow, check, read
from gapless.units import NS_PER_S
from gapless_lab.nemesis import CONTINUE, KILL, RESTART, STOP, NemesisOp, run_schedule
from gapless_lab.ports import free_ports
from gapless_lab.process import LabProcess, Testbed, worker_command
from gapless_lab.soak.plan import DetectedKill, SoakPlan, SoakReport, SoakTask

WORKER = "gapless_lab.soak.worker"
REST_TIMEOUT_S = 60.0
"""How long a group may take to come to rest after the load."""
POLL_INTERVAL_S = 0.1
"""How long between two checks for rest."""
MEMORY_SAMPLES = 30
"""How many times the memory of each process is measured in a round of kills and stops."""
SIGNALS = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP, CONTINUE: signal.SIGCONT}


def draw_nemesis_ops(plan: SoakPlan) -> list[NemesisOp]:
    """Draw the victims and the moments of kills and stops.

    Operations are spread over the first four fifths of a round, so that every victim is back under
    load. A stopped member stays stopped until expelled by the others. No member is a victim twice
    in a round before every member was a victim.
    """
    rng = split(plan.seed, "blows")
    config = plan.config()
    expelled_s = (
        config.suspect_after_ns + config.verify_timeout_ns + config.heartbeat_interval_ns
    ) / NS_PER_S
    starts_s = (number * plan.interval_s for number in range(plan.rounds))
    return sorted(op for from_s in starts_s for op in _draw_round(plan, rng, from_s, expelled_s))


def _draw_round(plan: SoakPlan, rng: Random, from_s: float, expelled_s: float) -> list[NemesisOp]:
    """Draw the operations of one round, which begins at ``from_s``."""
    ops: list[NemesisOp] = []
    total = plan.kills + plan.stops
    victims = rng.sample(range(plan.members), plan.members) * 2
    for turn, at in enumerate(rng.sample(range(total), total)):
        start_s = from_s + plan.interval_s * 0.8 * (turn + rng.uniform(0.2, 0.4)) / total
        if at < plan.kills:
            back_s = start_s + rng.choice((0.05, expelled_s))
            first, second = KILL, RESTART
        else:
            back_s = start_s + expelled_s * rng.uniform(1.3, 1.6)
            first, second = STOP, CONTINUE
        victim = str(victims[at])
        ops += (NemesisOp(start_s, victim, first), NemesisOp(back_s, victim, second))
    return ops


class AppliedOp(NamedTuple):
    """An operation on the member of a node, by the clock of the traces."""

    node: int
    action: str
    at_ns: int


class SoakNetwork:
    """The network of the processes: loopback. A subclass may put each process on another host."""

    def addresses(self, count: int) -> list[str]:
        """Return the addresses of the members, as host:port."""
        return [f"127.0.0.1:{port}" for port in free_ports(count)]

    def command_prefix(self, task: SoakTask) -> list[str]:  # noqa: ARG002
        """Return the prefix of the command line of a process."""
        return []

    def connect(self, task: SoakTask, process: LabProcess) -> None:
        """Connect a new process to the network."""


class SoakTestbed(Testbed[LabProcess]):
    """The processes of a soak, by index, with traces in ``folder``."""

    def __init__(self, plan: SoakPlan, folder: Path, network: SoakNetwork) -> None:
        make_private_folder(folder)
        if any(folder.iterdir()):
            reason = "name an empty folder for the traces, or a new one"
            raise ConfigError(f"{folder} is not empty: {reason}")
        super().__init__(folder)
        self.plan = plan
        self.network = network
        self.addresses = network.addresses(plan.members)
        self.applied: list[AppliedOp] = []
        self.memory: dict[str, list[float]] = {}
        """The resident memory of each process over time, in megabytes."""
        for index in range(plan.members):
            self._start(str(index))

    def _start(self, victim: str) -> LabProcess:
        def make(start: int) -> LabProcess:
            task = SoakTask(self.plan, self.addresses, int(victim), start, str(self.folder))
            command = [*self.network.command_prefix(task), *worker_command(WORKER, task)]
            process = LabProcess(f"{task.node}.{start}", command, self.folder)
            self.network.connect(task, process)
            return process

        return self.start(victim, make)

    def run_load(self, progress: Callable[[float], None]) -> None:
        """Run the load and the schedule of faults; a delay shifts all later operations."""
        self.ask("go")
        count = MEMORY_SAMPLES * self.plan.rounds
        sample_s = self.plan.seconds / count
        samples = [NemesisOp(sample_s * turn) for turn in range(1, count + 1)]
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
            for process in self.processes.values():
                if size_bytes := process.rss_bytes():
                    size_mb = round(size_bytes / 1e6, 1)
                    self.memory.setdefault(process.name, []).append(size_mb)
            progress(op.at_s)

        schedule = sorted([*draw_nemesis_ops(self.plan), *samples], key=lambda op: op.at_s)
        run_schedule(schedule, wait, apply)

    def _apply(self, op: NemesisOp) -> None:
        member = self.processes[op.victim]
        if op.action == RESTART:
            member.kill()
            self._start(op.victim).notify("go")
        else:
            self.applied.append(AppliedOp(int(op.victim) + 1, op.action, time.time_ns()))
            member.signal(SIGNALS[op.action])

    def wait_for_rest(self) -> bool:
        """End the load and wait until every message is delivered; return whether all are."""
        self.ask("halt")
        until_s = time.monotonic() + REST_TIMEOUT_S
        while not (rested := is_at_rest(self.ask("look"))):
            if time.monotonic() > until_s:
                break
            threading.Event().wait(POLL_INTERVAL_S)
        return rested


def is_at_rest(seen: list[dict[str, Any]]) -> bool:
    """Return whether all have the same view, and every message is accepted and delivered."""
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


def soak(
    plan: SoakPlan,
    folder: Path | None = None,
    *,
    network: SoakNetwork | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> SoakReport:
    """Run a soak and check the traces; keep the traces in ``folder``, if given."""
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as temporary,
        SoakTestbed(plan, folder or Path(temporary), network or SoakNetwork()) as group,
    ):
        group.ask("members", count=plan.members)
        group.run_load(progress)
        rested = group.wait_for_rest()
        ends = group.ask("end")
        struck: Counter[str] = sum((Counter(end["struck"]) for end in ends), Counter())
        rows = list(read(group.folder))
        return report(
            plan,
            rows,
            rested=rested,
            struck=dict(struck),
            memory=group.memory,
            detected=detect_kills(rows, group.applied),
            longest_send_s=max(end["longest_send_s"] for end in ends),
            hangs=sum(end["hangs"] for end in ends),
        )


def detect_kills(rows: Iterable[TraceRow], applied: Sequence[AppliedOp]) -> list[DetectedKill]:
    """Return how long the views without each killed member took, by the traces of the others."""
    changes = [row for row in rows if row.event in {"BEGIN", "MEMBERS", "EXPELLED"}]
    return [
        _detect_kill(changes, op, [other for other in applied if other is not op])
        for op in applied
        if op.action == KILL
    ]


def _detect_kill(changes: list[TraceRow], kill: AppliedOp, others: list[AppliedOp]) -> DetectedKill:
    """Find the first view without the victim at each running member that had it in its view.

    A member that was stopped, killed or expelled before its next view is not waited for.
    """
    before = [row for row in changes if row.t_ns <= kill.at_ns]
    latest = {Address.parse(row.member).node: row.member for row in before if row.event == "BEGIN"}
    victim = latest.pop(kill.node, "")
    last_view = {row.member: row.reason.split() for row in before if row.event == "MEMBERS"}
    after = [row for row in changes if row.t_ns > kill.at_ns]
    killed_later = {op.node for op in others if op.at_ns > kill.at_ns and op.action == KILL}
    took_s: list[float] = []
    for node, member in latest.items():
        if victim not in last_view.get(member, ()) or _is_down(node, kill.at_ns, others):
            continue
        own = (row for row in after if row.member == member)
        gone = (row for row in own if row.event == "EXPELLED" or victim not in row.reason.split())
        next_row = next(gone, None)
        if next_row is not None and next_row.event == "MEMBERS":
            took_s.append((next_row.t_ns - kill.at_ns) / NS_PER_S)
        elif next_row is None and node not in killed_later:
            took_s.append(inf)
    slowest_s = max(took_s, default=inf)
    return DetectedKill(victim, None if slowest_s == inf else round(slowest_s, 3))


def _is_down(node: int, at_ns: int, applied: list[AppliedOp]) -> bool:
    """Return whether the member of a node was stopped or killed around ``at_ns``."""
    slack_ns = NS_PER_S
    last = [op for op in applied if op.node == node and op.at_ns <= at_ns + slack_ns]
    return bool(last) and last[-1].action in {KILL, STOP}


def _messages(rows: list[TraceRow], event: str) -> int:
    """Return how many seqnos the rows of an event cover."""
    return sum(row.seqno_last - row.seqno + 1 for row in rows if row.event == event)


def report(plan: SoakPlan, rows: list[TraceRow], **found: Any) -> SoakReport:
    """Check a trace and count the events; ``found`` are the other fields of the report."""
    events = Counter(row.event for row in rows)
    figures = {
        "rows": len(rows),
        "lives": events["BEGIN"],
        "sent": _messages(rows, "SEND"),
        "delivered": _messages(rows, "DELIVER"),
        "views": len({(row.view, row.origin) for row in rows if row.event == "MEMBERS"}),
        "expelled": events["EXPELLED"],
        "naks": events["NAK_OUT"],
        "repairs": events["REPAIR"],
        "kills": plan.kills * plan.rounds,
        "stops": plan.stops * plan.rounds,
    }
    return SoakReport(violations=check(rows), figures=figures, **found)
