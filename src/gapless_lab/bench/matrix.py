"""Measure the cells of ``gapless bench``, each with a new group of processes."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from gapless_lab.bench.plan import BenchCell, BenchPlan, BenchTask
from gapless_lab.bench.worker import TIMEOUT_S
from gapless_lab.ports import free_ports
from gapless_lab.process import Message, ProcessGroup, worker_command

WORKER = "gapless_lab.bench.worker"
FAULTS: Final = ("lost", "duplicated", "out_of_order")
"""The figures that have to be 0."""


class CellResult(NamedTuple):
    """The figures of a cell, by name; a skipped cell has a reason in the place of figures."""

    cell: BenchCell
    figures: Mapping[str, Any]
    skip_reason: str = ""

    @property
    def faults(self) -> dict[str, int]:
        """How many messages were lost, duplicated or out of order; empty for a sound result."""
        return {name: self.figures[name] for name in FAULTS if self.figures.get(name)}

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        more = {"reason": self.skip_reason} if self.skip_reason else self.figures
        return {**asdict(self.cell), **more}


def measure(plan: BenchPlan) -> Iterator[CellResult]:
    """Measure every cell in turn."""
    for cell in plan.cells:
        if reason := cell.skip_reason:
            yield CellResult(cell, {}, reason)
        else:
            yield CellResult(cell, (_round_trips if plan.rtt else _throughput)(plan, cell))


def _start(plan: BenchPlan, cell: BenchCell) -> ProcessGroup:
    ports = free_ports(plan.members)
    tasks = [BenchTask(plan, cell, ports, index) for index in range(plan.members)]
    return ProcessGroup(worker_command(WORKER, task) for task in tasks)


def run_and_check(group: ProcessGroup, seconds: float) -> tuple[list[Message], list[Message]]:
    """Run the load on all members; return the work and the findings of each member."""
    group.wait_for_event("ready", 2 * TIMEOUT_S)
    work = group.ask("run", seconds + 2 * TIMEOUT_S)
    checks = group.ask("check", 2 * TIMEOUT_S, sent=[answer["sent"] for answer in work])
    return work, checks


def _throughput(plan: BenchPlan, cell: BenchCell) -> dict[str, Any]:
    """Measure the throughput of a group, at the speed of the slowest receiver."""
    with _start(plan, cell) as group:
        work, checks = run_and_check(group, plan.seconds)
    receivers = work if plan.senders > 1 else work[1:]  # a sole sender receives nothing
    speed = min(answer["count"] / answer["elapsed_s"] for answer in receivers)
    deliveries = sum(answer["count"] for answer in work)
    cpu_s = sum(answer["cpu_s"] for answer in work)
    return {
        "messages_per_s": round(speed),
        "mb_per_s": round(speed * cell.size_bytes / 1e6, 1),
        "cpu_s_per_million": round(cpu_s / max(1, deliveries) * 1e6, 2),
        "deliveries": deliveries,
        **{name: sum(answer[name] for answer in checks) for name in (*FAULTS, "repairs")},
    }


def _round_trips(plan: BenchPlan, cell: BenchCell) -> dict[str, Any]:
    """Measure the time from a request to the answer, in microseconds."""
    with _start(plan, cell) as group:
        group.wait_for_event("ready", 2 * TIMEOUT_S)
        times_ns = sorted(group.ask("run", plan.seconds + 2 * TIMEOUT_S)[0]["times_ns"])
    marks = {"p50_us": 0.5, "p99_us": 0.99, "p99_9_us": 0.999}
    return {
        "requests": len(times_ns),
        **{name: round(percentile(times_ns, share) / 1000, 1) for name, share in marks.items()},
    }


def percentile(sorted_values: Sequence[int], share: float) -> int:
    """Return the smallest value not exceeded by ``share`` of all values."""
    if not sorted_values:
        return 0
    rank = -(-int(share * 10_000) * len(sorted_values) // 10_000)
    return sorted_values[max(0, rank - 1)]


def conditions(plan: BenchPlan) -> dict[str, object]:
    """Return the conditions of the measurement: the plan, Python, the machine and the load."""
    return {
        "members": plan.members,
        "senders": plan.senders,
        "mode": "unicast" if plan.unicast else "multicast",
        "seconds": plan.seconds,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
