"""Processes of bench/spark.py without Spark: a collector, and a sender that stamps messages.

The task of a process is a JSON argument; the processes serve the commands ``run`` and ``check``,
like the members of ``gapless_lab.bench``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any

from gapless import blocking
from gapless.config import Config
from gapless.spool import SpoolReader
from gapless.spool.collector import Collector
from gapless_lab.bench.worker import TIMEOUT_S, WARM_UP_S
from gapless_lab.process import emit, serve_commands

STAMP = Struct("<q")
SLACK_S = 0.02


def command(role: str, **arguments: Any) -> list[str]:
    """Return the command line of such a process."""
    return [sys.executable, str(Path(__file__).resolve()), json.dumps([role, arguments])]


def joining(ports: Sequence[int], at: int) -> dict[str, Any]:
    """Return how member ``at`` of the members on the ports finds the others."""
    config = Config.make(found_after="200ms", join_interval="50ms")
    return {
        "discover": f"seeds://127.0.0.1:{ports[0]}-{ports[-1]}",
        "ports": ports[at],
        "config": config,
        "insecure": True,  # as the members of the other benchmarks, which this figure compares
    }


def collect(spool: str, ports: list[int], at: int, *, sync: bool, seconds: float = 0.0) -> None:
    """Collect until the supervisor ends; with ``seconds``, report the arrivals in the time."""
    with Collector(
        spool, "bench", transport="udp", host="127.0.0.1", sync=sync, **joining(ports, at)
    ) as collector:
        while collector.status.members < len(ports):
            time.sleep(SLACK_S)
        emit("ready")
        serve_commands(CollectorWorker(collector, spool, seconds))


class CollectorWorker:
    """Counts the messages of a collector."""

    def __init__(self, collector: Collector, spool: str, seconds: float) -> None:
        self.collector, self.spool, self.seconds = collector, spool, seconds

    def run(self) -> dict[str, Any]:
        """Return the number of arrivals in the time of the measurement, if any."""
        return count_for(self.collector, self.seconds) if self.seconds else {"sent": {}}

    def check(self, sent: list[dict[str, int]]) -> dict[str, Any]:
        """Wait until all sent messages are durable; return how many are missing."""
        owed = sum(counts.get("0", 0) for counts in sent)
        until_s = time.monotonic() + TIMEOUT_S
        while (stored := stored_in(self.spool)) < owed and time.monotonic() < until_s:
            time.sleep(SLACK_S)
        status = self.collector.status
        return {
            "lost": owed - stored,
            "repairs": 0,
            "commits": status.commits,
            "batches": status.batches,
        }


def count_for(collector: Collector, seconds: float) -> dict[str, Any]:
    """Return the arrivals in so many seconds after a warm-up, and the CPU time."""
    time.sleep(WARM_UP_S)
    start_s, cpu_s, count = time.monotonic(), time.process_time(), collector.status.messages
    time.sleep(seconds)
    count = collector.status.messages - count
    cpu_s = time.process_time() - cpu_s
    return {"count": count, "elapsed_s": time.monotonic() - start_s, "cpu_s": cpu_s, "sent": {}}


def stored_in(spool: str) -> int:
    """Return how many messages are durable in a spool."""
    return sum(SpoolReader(spool).high().values())


def produce(
    ports: list[int], at: int, size_bytes: int, interval_s: float, warm_up: int, count: int
) -> None:
    """Send messages that hold the time of ``send``, at random moments; 0 during the warm-up."""
    random = Random(at)
    rest = bytes(size_bytes - STAMP.size)
    with blocking.join(
        "bench", transport="udp", host="127.0.0.1", listen=False, **joining(ports, at)
    ) as group:
        group.wait_for_members(len(ports), TIMEOUT_S)

        class Worker:
            def run(self) -> dict[str, Any]:
                for number in range(-warm_up, count):
                    time.sleep(random.uniform(0, 2 * interval_s))
                    group.send(STAMP.pack(time.time_ns() if number >= 0 else 0) + rest)
                return {"sent": {"0": warm_up + count}}

            def check(self, sent: object) -> None:
                del sent  # a sender checks nothing

        emit("ready")
        serve_commands(Worker())


if __name__ == "__main__":
    asked, options = json.loads(sys.argv[1])
    (collect if asked == "collect" else produce)(**options)
    os._exit(0)  # all have measured; how long it takes to leave is another matter
