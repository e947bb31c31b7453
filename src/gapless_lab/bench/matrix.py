"""The cells of ``gapless bench``, and the figures of a group of processes in each."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gapless_lab.bench.plan import BenchCell, BenchPlan, BenchTask
from gapless_lab.bench.worker import TIMEOUT_S
from gapless_lab.ports import free_ports
from gapless_lab.process import Message, ProcessGroup, worker_command

WORKER = "gapless_lab.bench.worker"


class ThroughputResult(NamedTuple):
    """The throughput of a group; its speed is that of the slowest receiver."""

    transport: str
    size_bytes: int
    loss: float
    messages_per_s: int
    mb_per_s: float
    cpu_s_per_million: float
    deliveries: int
    lost: int
    duplicated: int
    out_of_order: int
    repairs: int

    @property
    def is_sound(self) -> bool:
        """Whether every message arrived once and in order."""
        return not (self.lost or self.duplicated or self.out_of_order)


class RoundTripResult(NamedTuple):
    """The time from a request to its answer, in microseconds."""

    transport: str
    size_bytes: int
    loss: float
    requests: int
    p50_us: float
    p99_us: float
    p99_9_us: float


class SkippedCell(NamedTuple):
    """A cell that was not measured."""

    transport: str
    loss: float
    size_bytes: int
    reason: str


def measure(plan: BenchPlan) -> Iterator[ThroughputResult | RoundTripResult | SkippedCell]:
    """Measure every cell, one after the other."""
    for cell in plan.cells:
        if reason := cell.skip_reason:
            yield SkippedCell(cell.transport, cell.loss, cell.size_bytes, reason)
        else:
            yield _round_trips(plan, cell) if plan.rtt else _throughput(plan, cell)


def _start(plan: BenchPlan, cell: BenchCell) -> ProcessGroup:
    ports = free_ports(plan.members)
    tasks = [BenchTask(plan, cell, ports, index) for index in range(plan.members)]
    return ProcessGroup(worker_command(WORKER, task) for task in tasks)


def run_and_check(group: ProcessGroup, seconds: float) -> tuple[list[Message], list[Message]]:
    """Let the members work; return what each did, and what each finds wrong."""
    group.wait_for_event("ready", 2 * TIMEOUT_S)
    work = group.ask("run", seconds + 2 * TIMEOUT_S)
    checks = group.ask("check", 2 * TIMEOUT_S, sent=[answer["sent"] for answer in work])
    return work, checks


def _throughput(plan: BenchPlan, cell: BenchCell) -> ThroughputResult:
    with _start(plan, cell) as group:
        work, checks = run_and_check(group, plan.seconds)
    receivers = work if plan.senders > 1 else work[1:]  # a sole sender receives nothing
    speed = min(answer["count"] / answer["elapsed_s"] for answer in receivers)
    deliveries = sum(answer["count"] for answer in work)
    cpu_s = sum(answer["cpu_s"] for answer in work)
    return ThroughputResult(
        *(cell.transport, cell.size_bytes, cell.loss),
        round(speed),
        round(speed * cell.size_bytes / 1e6, 1),
        round(cpu_s / max(1, deliveries) * 1e6, 2),
        deliveries,
        *(
            sum(answer[figure] for answer in checks)
            for figure in ("lost", "duplicated", "out_of_order", "repairs")
        ),
    )


def _round_trips(plan: BenchPlan, cell: BenchCell) -> RoundTripResult:
    with _start(plan, cell) as group:
        group.wait_for_event("ready", 2 * TIMEOUT_S)
        times_ns = sorted(group.ask("run", plan.seconds + 2 * TIMEOUT_S)[0]["times_ns"])
    marks = [round(percentile(times_ns, share) / 1000, 1) for share in (0.5, 0.99, 0.999)]
    return RoundTripResult(cell.transport, cell.size_bytes, cell.loss, len(times_ns), *marks)


def percentile(sorted_values: Sequence[int], share: float) -> int:
    """Return the value that ``share`` of all values do not exceed."""
    if not sorted_values:
        return 0
    rank = -(-int(share * 10_000) * len(sorted_values) // 10_000)
    return sorted_values[max(0, rank - 1)]


def conditions(plan: BenchPlan) -> dict[str, object]:
    """Return the conditions that the figures depend on."""
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
