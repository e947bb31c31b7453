"""A member in a measurement, as a process: ``python -m gapless_lab.bench.worker TASK``.

The worker sends the event ``ready`` when the group is complete. Commands: ``run`` sends for the
time of the task, and answers with the number of messages and the CPU time; ``check`` receives the
counts of all senders, waits for the last messages, and answers with the faults found.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gapless.identity import View
from gapless.protocol.events import ViewInstalled
from gapless.protocol.ready import Delivery
from gapless.protocol.snapshot import take_snapshot
from gapless.run import Run
from gapless.runtime.handle import MemberHandle
from gapless.runtime.send_requests import SendRequest
from gapless.units import NS_PER_S
from gapless_lab.bench.plan import BenchTask
from gapless_lab.exactness import ExactnessChecker
from gapless_lab.process import LabError, emit, read_task, serve_commands, wait_until
from gapless_lab.producer import LoadBatch, LoadGenerator
from gapless_lab.workload import numbered_messages

MAX_BATCHES_IN_FLIGHT = 4
"""Maximum number of batches that the machine has not accepted yet."""
BATCH_BYTES = 240_000
"""Size of a batch; it has one message at least."""
WARM_UP_S = 0.5
"""How long every member works before the measurement."""
TIMEOUT_S = 60.0
"""How long members wait for each other, and for the last message."""


class BenchWorker:
    """A member of a throughput measurement: senders send at full speed, all check deliveries."""

    def __init__(self, spec: BenchTask) -> None:
        self.spec = spec
        self.count = 0
        self.checkers = {
            index + 1: ExactnessChecker(spec.cell.size_bytes)
            for index in range(spec.plan.members)
            if index != spec.index
        }
        self.sent: dict[int, int] = {}
        self._view: View | None = None
        self._complete = threading.Event()
        config = spec.config().replace(loopback=False)
        self.handle = MemberHandle(
            "bench", spec.open(), config, node=spec.index + 1, trace=spec.recorder()
        )
        threading.Thread(target=self._read_deliveries, daemon=True).start()
        if not self._complete.wait(TIMEOUT_S):
            sys.exit(f"not all of {spec.plan.members} members have joined")

    def _read_deliveries(self) -> None:
        handle = self.handle
        while handle.wait() or not handle.is_closed:
            count = 0
            for item in handle.take():
                if isinstance(item, Delivery):
                    content = item.content
                    self.checkers[item.origin.node].add(
                        content.payload if isinstance(content, Run) else content
                    )
                    count += item.message_count
                elif isinstance(item, ViewInstalled):
                    self._view = item.view
                    if len(item.view.members) == self.spec.plan.members:
                        self._complete.set()
            if count:
                self.count += count
                handle.consumed(count)

    def run(self) -> dict[str, Any]:
        """Work for the time of the task; return messages sent and received, and the CPU time."""
        load = LoadGenerator(self._send, SendRequest.result, max_in_flight=MAX_BATCHES_IN_FLIGHT)
        batches = self._batches()
        self._work(load, batches, time.monotonic() + WARM_UP_S)
        start_s, cpu_s, count = time.monotonic(), time.process_time(), self.count
        self._work(load, batches, start_s + self.spec.plan.seconds)
        found = {
            "count": self.count - count,
            "elapsed_s": time.monotonic() - start_s,
            "cpu_s": time.process_time() - cpu_s,
        }
        try:
            load.drain(TIMEOUT_S)
        except TimeoutError:
            sys.exit(f"a send has waited for {TIMEOUT_S:.0f} s; {self._explain()}")
        return {**found, "sent": self.sent}

    def _work(
        self, load: LoadGenerator[SendRequest], batches: Iterator[LoadBatch], until_s: float
    ) -> None:
        never = threading.Event()
        if self.spec.index < self.spec.plan.senders:
            load.run(batches, never, until_s)
        else:
            never.wait(max(0.0, until_s - time.monotonic()))

    def _explain(self) -> str:
        """Return the snapshot of the member as a single line, with the reason of a full window."""
        asked = self.handle.query(lambda member: take_snapshot(member, time.monotonic_ns()))
        return "; ".join(str(asked.result(TIMEOUT_S)).splitlines())

    def _batches(self) -> Iterator[LoadBatch]:
        """Return batches without end, to each recipient in turn."""
        count = max(1, BATCH_BYTES // self.spec.cell.size_bytes)
        while True:
            assert self._view is not None
            others = [each for each in self._view.members if each.node != self.spec.index + 1]
            for to in others if self.spec.plan.unicast else [None]:
                node = 0 if to is None else to.node
                start = self.sent.get(node, 0)
                self.sent[node] = start + count
                yield LoadBatch(range(start, start + count), to)

    def _send(self, batch: LoadBatch) -> SendRequest:
        numbers = batch.numbers
        messages = numbered_messages(numbers.start, len(numbers), self.spec.cell.size_bytes)
        return self.handle.submit(SendRequest.of(messages, to=batch.to))

    def check(self, sent: list[dict[str, int]]) -> dict[str, Any]:
        """Wait for the last messages of every member; return the faults found."""
        owed = {
            index + 1: counts.get("0", 0) + counts.get(str(self.spec.index + 1), 0)
            for index, counts in enumerate(sent)
            if index != self.spec.index
        }
        checkers = self.checkers.items()
        with suppress(LabError):  # what is missing by then is lost
            wait_until(
                lambda: not any(checker.lost(owed[node]) for node, checker in checkers),
                "messages are missing",
                TIMEOUT_S,
            )
        counters = self.handle.query(lambda member: dict(member.counters)).result(TIMEOUT_S)
        return {
            "lost": sum(checker.lost(owed[node]) for node, checker in checkers),
            "duplicated": sum(checker.duplicated for _, checker in checkers),
            "out_of_order": sum(checker.out_of_order for _, checker in checkers),
            "repairs": counters.get("sent.repair", 0),
        }


class RoundTripWorker:
    """A member of a round-trip measurement: the first member sends requests to the second."""

    def __init__(self, spec: BenchTask) -> None:
        from gapless import blocking

        self.spec = spec
        self.group = blocking.join(
            "bench",
            transport=spec.open(),
            insecure=True,  # without keys, also between network namespaces
            config=spec.config(),
            node=spec.index + 1,
            listen=False,
            trace=spec.recorder(),
        ).open()
        self.group.serve(lambda request: request.payload)
        self.group.wait_for_members(spec.plan.members, TIMEOUT_S)

    def run(self) -> dict[str, Any]:
        """Return how long each request took."""
        times_ns: list[int] = []
        view = self.group.view
        assert view is not None
        if self.spec.index == 0:
            other = next(member for member in view.members if member.node == 2)
            payload = bytes(self.spec.cell.size_bytes)
            until_ns = time.monotonic_ns() + int(self.spec.plan.seconds * NS_PER_S)
            while (start_ns := time.monotonic_ns()) < until_ns:
                self.group.request(payload, other)
                times_ns.append(time.monotonic_ns() - start_ns)
        return {"times_ns": times_ns}


if __name__ == "__main__":
    _task = read_task(BenchTask)
    _worker = (RoundTripWorker if _task.plan.rtt else BenchWorker)(_task)
    emit("ready")
    serve_commands(_worker)
    os._exit(0)  # without leaving: the time to leave is not measured
