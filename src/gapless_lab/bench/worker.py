"""One member of a measurement, in a process of its own: ``python -m gapless_lab.bench.worker SPEC``.

It says ``ready`` when the group is complete, works for a while when it is told to, says what it has
sent, is told what everybody has sent, and says what has come of it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from gapless.config import Config
from gapless.discovery import Discovery
from gapless.faults.faults import Loss
from gapless.faults.faulty_transport import FaultyTransport
from gapless.group.health import explain
from gapless.group.join_options import TRANSPORTS
from gapless.protocol.events import ViewInstalled
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.runtime.handle import MemberHandle
from gapless.trace.recorder import Recorder, parse_recording_mode
from gapless.units import NS_PER_S
from gapless_lab.bench.exactness import ExactnessChecker, numbered_messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.identity import Address, View
    from gapless.transport.base import Transport

MAX_BATCHES_IN_FLIGHT = 4
"""So many batches are on their way into the machine at a time."""
BATCH_BYTES = 240_000
"""What a batch holds; at least one message."""
WARM_UP_S = 0.5
"""So long everybody works before it is measured."""
TIMEOUT_S = 60.0
"""How long members wait for each other to come, and for the last message."""


@dataclass(frozen=True)
class BenchTask:
    """What one member of a measurement is to do."""

    ports: list[int]
    index: int
    senders: int
    size_bytes: int
    seconds: float
    transport: str = "udp"
    unicast: bool = False
    rtt: bool = False
    loss: float = 0.0
    warm_up_s: float = WARM_UP_S
    settings: dict[str, Any] = field(default_factory=dict)
    trace: str = ""
    trace_mode: str = ""

    @property
    def members(self) -> int:
        """How many take part."""
        return len(self.ports)

    def config(self) -> Config:
        """Return the knobs, with those that let a group gather quickly."""
        return Config.make(**{"found_after": "200ms", "join_interval": "50ms", **self.settings})

    def open(self) -> Transport:
        """Return the transport, with the loss that was asked for in front of it."""
        where = f"seeds://127.0.0.1:{self.ports[0]}-{self.ports[-1]}"
        discovery = Discovery.parse(where, group="bench")
        transport = TRANSPORTS[self.transport](
            "127.0.0.1", self.ports[self.index], discovery=discovery
        )
        if not self.loss:
            return transport
        return FaultyTransport(
            transport, [Loss(Random(self.index), [self.loss])], name=f"{self.index + 1}", call=str
        )

    def recorder(self) -> Recorder | None:
        """Return what records this member, if it is to be recorded."""
        return (
            Recorder(self.trace, **parse_recording_mode(self.trace_mode or "full"))
            if self.trace
            else None
        )

    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))


class BenchWorker:
    """Sends all the time, if it is a sender, and checks what comes."""

    def __init__(self, spec: BenchTask) -> None:
        self.spec = spec
        self.count = 0
        self.checkers = {
            at + 1: ExactnessChecker(spec.size_bytes)
            for at in range(spec.members)
            if at != spec.index
        }
        self.sent: dict[int, int] = {}
        self._view: View | None = None
        self._gathered = threading.Event()
        config = spec.config().replace(loopback=False)
        self.handle = MemberHandle(
            "bench", spec.open(), config, node=spec.index + 1, trace=spec.recorder()
        )
        threading.Thread(target=self._read_deliveries, daemon=True).start()
        if not self._gathered.wait(TIMEOUT_S):
            sys.exit(f"not all of {spec.members} members have come")

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
                    if len(item.view.members) == self.spec.members:
                        self._gathered.set()
            if count:
                self.count += count
                handle.consumed(count)

    def _targets(self) -> list[Address | None]:
        assert self._view is not None
        if not self.spec.unicast:
            return [None]
        return [member for member in self._view.members if member.node != self.spec.index + 1]

    def send_load(self) -> dict[str, Any]:
        """Send for the time that was given, as fast as the group lets it; return what that has cost."""
        flying: deque[Any] = deque()
        batches = self._batches()
        self._send_until(time.monotonic() + self.spec.warm_up_s, flying, batches)
        start_s, cpu_s, count = time.monotonic(), time.process_time(), self.count
        self._send_until(start_s + self.spec.seconds, flying, batches)
        elapsed_s, cpu_s, count = (
            time.monotonic() - start_s,
            time.process_time() - cpu_s,
            self.count - count,
        )
        try:
            for sent in flying:
                sent.result(TIMEOUT_S)
        except TimeoutError:
            sys.exit(f"a send has waited for {TIMEOUT_S:.0f} s; {self._explain()}")
        return {"count": count, "elapsed_s": elapsed_s, "cpu_s": cpu_s, "sent": self.sent}

    def _send_until(
        self, until_s: float, flying: deque[Any], batches: Iterator[tuple[Address | None, int, int]]
    ) -> None:
        """Send until then; ``flying`` is what is on its way into the machine."""
        sends = self.spec.index < self.spec.senders
        while (left_s := until_s - time.monotonic()) > 0:
            if not sends:
                threading.Event().wait(left_s)
            elif len(flying) < MAX_BATCHES_IN_FLIGHT:
                flying.append(self._send(*next(batches)))
            else:
                with suppress(TimeoutError):
                    flying[0].result(left_s)
                    flying.popleft()

    def _explain(self) -> str:
        """Return who holds what up, in one line."""
        most = self.handle.config.unread_limit
        asked = self.handle.query(lambda member: explain(member, "bench", {}, 0, most))
        return "; ".join(str(asked.result(TIMEOUT_S)).splitlines())

    def _batches(self) -> Iterator[tuple[Address | None, int, int]]:
        """Return for ever to whom the next batch goes, from which number on, and how many messages it holds."""
        batch = max(1, BATCH_BYTES // self.spec.size_bytes)
        while True:
            for to in self._targets():
                node = 0 if to is None else to.node
                start = self.sent.get(node, 0)
                self.sent[node] = start + batch
                yield to, start, batch

    def _send(self, to: Address | None, start: int, count: int) -> Any:
        return self.handle.submit(numbered_messages(start, count, self.spec.size_bytes), to=to)

    def check(self, sent: list[dict[str, int]]) -> dict[str, Any]:
        """Wait for what is still to come of what everybody has sent; return what has gone wrong."""
        owed = {
            at + 1: said.get("0", 0) + said.get(str(self.spec.index + 1), 0)
            for at, said in enumerate(sent)
            if at != self.spec.index
        }
        until_s = time.monotonic() + TIMEOUT_S
        while (
            any(checker.lost(owed[node]) for node, checker in self.checkers.items())
            and time.monotonic() < until_s
        ):
            threading.Event().wait(0.01)
        found = self.checkers.items()
        machine = self.handle.query(lambda member: dict(member.counters)).result(TIMEOUT_S)
        return {
            "lost": sum(checker.lost(owed[node]) for node, checker in found),
            "duplicated": sum(checker.duplicated for _, checker in found),
            "out_of_order": sum(checker.out_of_order for _, checker in found),
            "repairs": machine.get("sent.repair", 0),
        }


def measure_throughput(spec: BenchTask) -> None:
    """Measure how much goes through."""
    worker = BenchWorker(spec)
    _write_line("ready")
    _read_line()
    _write_line(json.dumps(worker.send_load()))
    _write_line(json.dumps(worker.check(json.loads(_read_line()))))
    _read_line()


def measure_round_trips(spec: BenchTask) -> None:
    """Measure how long a request and its answer take: the first member asks the second, one request at a time."""
    from gapless import blocking

    with blocking.join(
        "bench",
        transport=spec.open(),
        config=spec.config(),
        node=spec.index + 1,
        listen=False,
        trace=spec.recorder(),
    ) as group:
        group.on_request(lambda request: request.payload)
        group.wait_for_members(spec.members, TIMEOUT_S)
        assert group.view is not None
        _write_line("ready")
        _read_line()
        times_ns: list[int] = []
        if spec.index == 0:
            other = next(member for member in group.view.members if member.node == 2)
            payload = bytes(spec.size_bytes)
            until_ns = time.monotonic_ns() + int(spec.seconds * NS_PER_S)
            while (start_ns := time.monotonic_ns()) < until_ns:
                group.request(payload, other)
                times_ns.append(time.monotonic_ns() - start_ns)
        _write_line(json.dumps(times_ns))
        _read_line()


def _write_line(words: str) -> None:
    print(words, flush=True)  # noqa: T201 - the parent listens


def _read_line() -> str:
    line = sys.stdin.readline()
    if not line:
        os._exit(1)  # nobody is there any more
    return line


def main() -> None:
    """Do what the command line says, and be gone: how long it takes to leave is another matter."""
    spec = BenchTask(**json.loads(sys.argv[1]))
    (measure_round_trips if spec.rtt else measure_throughput)(spec)
    os._exit(0)


if __name__ == "__main__":
    main()
