"""Back-pressure: Spark stops, the spool fills, senders wait, Spark returns, messages flow.

    flow ── Spark stops ── the spool reaches the limit ── a wait without acknowledgements ──
    Spark is back ── flow

No process is killed. While the spool is full, no message may be acknowledged, the memory of the
collector and of the producers has to stay flat, and the spool may not exceed the limit. At the end
the table is checked as in every other run.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gapless.units import MIB
from gapless_lab.chaos.testbed import ChaosTestbed

MAX_BYTES = 2 * MIB
"""Maximum size of the spool."""
SIZE_BYTES = 400
"""The mean size of a message."""
RATE = 1000
"""Messages a second of each producer: the limit is reached within seconds."""
MORE = 6000
"""How many messages pass after Spark returns: more than the spool can hold."""
STALLED_AFTER_S = 1.0
"""How long without an acknowledgement counts as a stall."""
WAIT_S = 5.0
"""How long the wait is observed."""
POLL_INTERVAL_S = 0.1
MAX_GROWTH = 0.1
MAX_GROWTH_BYTES = 8 * MIB
"""Maximum growth of memory during the wait: a tenth, and this."""


@dataclass
class BackPressureResult:
    """Acknowledged messages: up to the end of the first two phases, within the last two."""

    acked_before: int = 0
    acked_at_limit: int = 0
    acked_while_waiting: int = 0
    acked_after: int = 0
    waited_s: float = 0.0
    most_used_bytes: int = 0
    max_bytes: int = MAX_BYTES
    waits_for: str = ""
    memory: dict[str, list[int]] = field(default_factory=dict)
    """Resident memory of each process over the wait, in bytes."""


class BackPressureTestbed(ChaosTestbed):
    """A run with Spark stopped until the spool is full."""

    collector_options: ClassVar = {"max-bytes": MAX_BYTES, "on-full": "wait"}
    producer_options: ClassVar = {"size_bytes": SIZE_BYTES, "rate": RATE}

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.pressure = BackPressureResult()

    def _run_nemeses(self) -> None:
        """Stop Spark until the spool is full, instead of killing processes."""
        seen, driver = self.pressure, self.spark.driver
        driver.wait_until(lambda: driver.batches >= 2, "nothing is read")
        driver.notify("halt")
        driver.wait_for_event("halted")
        seen.acked_before = self.acked()
        collector = self.collector
        collector.wait_until(lambda: collector.status.get("limited"), "the spool does not get full")
        seen.acked_at_limit = self._wait_until_stalled()
        seen.waits_for = str(collector.status.get("waits_for"))
        self._observe_waiting()
        driver.run(self._table_task)
        self.wait_until(lambda: self.acked() >= seen.acked_at_limit + MORE, "senders do not go on")
        seen.acked_after = self.acked() - seen.acked_at_limit
        self._check()

    def _wait_until_stalled(self) -> int:
        """Wait for a stall; return how many messages are acknowledged."""
        last, since_s = self.acked(), time.monotonic()

        def still() -> bool:
            nonlocal last, since_s
            if self.acked() != last:
                last, since_s = self.acked(), time.monotonic()
            return time.monotonic() - since_s >= STALLED_AFTER_S

        self.wait_until(still, "acknowledgements go on though the spool is full")
        return last

    def _observe_waiting(self) -> None:
        """Sample memory, spool size and acknowledgements during the wait."""
        seen, began_s = self.pressure, time.monotonic()
        before = self.acked()
        while time.monotonic() < began_s + WAIT_S:
            for name, process in self.processes.items():
                seen.memory.setdefault(name, []).append(process.rss_bytes())
            seen.most_used_bytes = max(
                seen.most_used_bytes, int(self.collector.status.get("used_bytes", 0))
            )
            self._aborted.wait(POLL_INTERVAL_S)
        seen.waited_s = round(time.monotonic() - began_s, 1)
        seen.acked_while_waiting = self.acked() - before

    def _check(self) -> None:
        seen = self.pressure
        if seen.acked_while_waiting:
            self.findings.append(
                f"{seen.acked_while_waiting} messages were acknowledged while the spool was full"
            )
        if seen.most_used_bytes > seen.max_bytes:
            self.findings.append(
                f"the spool has {seen.most_used_bytes} bytes, and its limit is {seen.max_bytes}"
            )
        for name, samples in seen.memory.items():
            if max(samples) > samples[0] * (1 + MAX_GROWTH) + MAX_GROWTH_BYTES:
                grown = f"from {samples[0] / 1e6:.1f} to {max(samples) / 1e6:.1f} MB"
                self.findings.append(f"the memory of {name} has grown {grown} while it waited")
