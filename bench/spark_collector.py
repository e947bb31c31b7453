"""The throughput of a collector with three senders, beside a member that only listens."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measuring import ratio, spread
from bench.spark_children import command
from gapless_lab.bench.matrix import WORKER, run_and_check
from gapless_lab.bench.plan import BenchCell, BenchPlan, BenchTask
from gapless_lab.ports import free_ports
from gapless_lab.process import ProcessGroup, lab_environ, worker_command

SENDERS = 3
LISTENER, SYNCED, UNSYNCED = "listener", "collector", "collector, no sync"
KINDS = (LISTENER, SYNCED, UNSYNCED)


@dataclass(frozen=True)
class Figure:
    """A line; ``ratio_*``: to the listener of the same round, median, lowest, highest."""

    size_bytes: int
    what: str
    ratio_speed: list[float]
    ratio_cpu: list[float]
    messages_per_s: int
    messages_per_s_spread: list[float]
    mb_per_s: float
    cpu_s_per_million: float
    messages_per_commit: int
    lost: int


def group(kind: str, size_bytes: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Let three members send at full speed; return the figures and the CPU time of the fourth."""
    ports = free_ports(SENDERS + 1)
    plan, cell = BenchPlan(SENDERS + 1, SENDERS, seconds=seconds), BenchCell("udp", 0.0, size_bytes)
    specs = [BenchTask(plan, cell, ports, at) for at in range(SENDERS + 1)]
    commands = [worker_command(WORKER, spec) for spec in specs]
    if kind != LISTENER:
        arguments = {
            "spool": str(folder),
            "ports": ports,
            "at": SENDERS,
            "sync": kind == SYNCED,
            "seconds": seconds,
        }
        commands[-1] = command("collect", **arguments)
    here = Path(__file__).resolve().parent.parent
    try:
        with ProcessGroup(commands, lab_environ(here)) as processes:
            work, checks = run_and_check(processes, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {**work[-1], **checks[-1]}


def measure(
    sizes_bytes: Iterable[int], rounds: int, seconds: float, folder: Path, tick: Callable[[], None]
) -> list[Figure]:
    """Measure all sizes and kinds in turns."""
    sizes = list(sizes_bytes)
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for number in range(rounds):
        for size in sizes:
            for kind in KINDS:
                answer = group(kind, size, seconds, folder / f"collected-{number}")
                found.setdefault((size, kind), []).append(answer)
                tick()
    return [
        figure
        for size in sizes
        for figure in _figures(size, {kind: found[size, kind] for kind in KINDS})
    ]


def _figures(size_bytes: int, found: dict[str, list[dict[str, Any]]]) -> Iterator[Figure]:
    speeds = {
        kind: [one["count"] / one["elapsed_s"] for one in all_] for kind, all_ in found.items()
    }
    costs = {
        kind: [one["cpu_s"] / max(1, one["count"]) * 1e6 for one in all_]
        for kind, all_ in found.items()
    }
    for kind, answers in found.items():
        middle = spread(speeds[kind])
        per_commit = [one["count"] / one["commits"] for one in answers if one.get("commits")]
        yield Figure(
            size_bytes=size_bytes,
            what=kind,
            ratio_speed=ratio(speeds[kind], speeds[LISTENER]).rounded(2),
            ratio_cpu=ratio(costs[kind], costs[LISTENER]).rounded(2),
            messages_per_s=round(middle.middle),
            messages_per_s_spread=middle.rounded(0),
            mb_per_s=round(middle.middle * size_bytes / 1e6, 1),
            cpu_s_per_million=round(spread(costs[kind]).middle, 2),
            messages_per_commit=round(spread(per_commit).middle) if per_commit else 0,
            lost=sum(one["lost"] for one in answers),
        )
