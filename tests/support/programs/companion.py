"""A member in a process of its own that executes requests from its standard input, in JSON.

    python companion.py NAME '{"seeds": …, "ports": …, "knobs": {…}}'

Each message says who sent it and its number, so that every receiver sees what is missing, twice, or
out of order.
"""

import json
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from gapless.config import Config
from gapless.delivery_mode import DeliveryMode
from gapless.discovery import Discovery
from gapless.faults import faults
from gapless.faults.faulty_transport import FaultyTransport
from gapless.locator import Locator
from gapless.protocol.events import Expelled, Stalled, ViewInstalled
from gapless.protocol.member import Member
from gapless.protocol.ready import Delivery
from gapless.rng import split
from gapless.runtime.handle import MemberHandle
from gapless.runtime.send_requests import SendRequest
from gapless.transport import TcpMesh, UdpMesh, UdpMulticast, open_udp


def troubles(seed: int, name: str) -> list[faults.Fault]:
    """Return the faults of one member: loss, duplicates, delays and damage."""
    rng = split(seed, name)
    return [
        faults.Loss(rng, [0.02]),
        faults.Duplicate(rng, 0.02, 5_000_000),
        faults.LongHold(rng, 0.01, 20_000_000, 1_000_000),
        faults.Corrupt(rng, 0.01),
    ]


def waiting(member: Member) -> tuple[int, int]:
    """Return how many messages are with the application, and how many wait in the machine."""
    windows = [stream.window for stream in member.inbound.values() if stream.window is not None]
    return member.credit.outstanding, sum(window.high - window.delivered for window in windows)


class Reader:
    """Reads all the time, except while it is held."""

    def __init__(self, handle: MemberHandle) -> None:
        self.handle = handle
        self.turn = threading.Condition()
        self.free = threading.Event()
        self.free.set()
        self.next: dict[str, int] = {}
        self.wrong: list[str] = []
        self.skipped = 0
        self.count = 0
        self.members: list[int] = []
        self.views: list[int] = []
        self.expelled = 0
        self.stalled = 0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while not (self.handle.is_closed and not self.handle.wait(0)):
            self.handle.wait()
            self.free.wait()
            items = self.handle.take()
            with self.turn:
                for item in items:
                    self.note(item)
                self.turn.notify_all()

    def note(self, item: Any) -> None:
        if isinstance(item, Delivery):
            for message in item.messages():
                name, number, *_ = message.split(b" ", 2)
                self.check(name.decode(), int(number))
            self.handle.consumed(item.message_count)
        elif isinstance(item, ViewInstalled):
            self.members = [member.node for member in item.view.members]
            self.views.append(len(self.members))
        elif isinstance(item, Expelled):
            self.expelled += 1
        elif isinstance(item, Stalled):
            self.stalled += 1

    def check(self, name: str, number: int) -> None:
        due = self.next.get(name, number)
        if number < due:
            self.wrong.append(f"{name} {number} after {due - 1}")
        elif number > due:
            self.skipped += number - due
        self.next[name] = number + 1
        self.count += 1

    def until(self, holds: Any, within_s: float) -> bool:
        with self.turn:
            return bool(self.turn.wait_for(lambda: holds(self), within_s))


class Companion:
    """Executes the requests of the parent process."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.sent = 0
        discovery = Discovery.parse(options["seeds"], group="companions")
        kinds: dict[str, Any] = {
            "mesh": UdpMesh,
            "multicast": UdpMulticast,
            "auto": open_udp,
            "tcp": TcpMesh,
        }
        opened = kinds[options.get("transport", "mesh")]
        where: dict[str, Any] = (
            {"advertise": Locator.parse(options["advertise"])} if "advertise" in options else {}
        )
        if "tls" in options:
            where["tls"] = options["tls"]
        host, ports = options.get("host", "127.0.0.1"), options.get("ports", 0)
        transport: Any = opened(host, ports, discovery=discovery, **where)
        if "seed" in options:
            transport = FaultyTransport(transport, troubles(options["seed"], name), name=name)
        self.handle = MemberHandle(
            "companions", transport, Config.make(**options.get("knobs", {})), node=options["node"]
        )
        self.reader = Reader(self.handle)

    def do(self, what: str, **options: Any) -> dict[str, Any]:
        return getattr(self, what.replace(" ", "_"))(**options) or {}

    def send(
        self, count: int, size_bytes: int = 100, batch: int = 100, within_s: float = 20
    ) -> dict[str, Any]:
        rest = b"." * size_bytes
        waiting = []
        for start in range(self.sent, self.sent + count, batch):
            end = min(start + batch, self.sent + count)
            waiting.append(
                self.handle.submit(
                    SendRequest.of(
                        [b"%s %d %s" % (self.name.encode(), n, rest) for n in range(start, end)]
                    )
                )
            )
        self.sent += count
        deadline_s = time.monotonic() + within_s
        return {
            "accepted": [sent.result(max(0, deadline_s - time.monotonic())) for sent in waiting][-1]
        }

    def acknowledged(self, within_s: float = 10) -> dict[str, Any]:
        sent = self.handle.submit(
            SendRequest.of(
                [b"%s %d" % (self.name.encode(), self.sent)], mode=DeliveryMode.ACKNOWLEDGED
            )
        )
        self.sent += 1
        assert sent.delivered is not None
        return {"event": type(sent.delivered.result(within_s)).__name__}

    def members(self, nodes: list[int], within_s: float = 20) -> dict[str, Any]:
        met = self.reader.until(lambda reader: sorted(reader.members) == nodes, within_s)
        return {"members": sorted(self.reader.members), "met": met}

    def got(self, wanted: dict[str, int], within_s: float = 20) -> dict[str, Any]:
        """Wait until the last message of each is here."""
        wanted = {name: number for name, number in wanted.items() if number}
        self.reader.until(
            lambda reader: all(reader.next.get(n, 0) >= due for n, due in wanted.items()), within_s
        )
        return self.report()

    def report(self) -> dict[str, Any]:
        reader = self.reader
        with reader.turn:
            problems = dict(self.handle.transport.problems.counters)
            return {
                "next": reader.next,
                "wrong": reader.wrong[:5],
                "skipped": reader.skipped,
                "count": reader.count,
                "expelled": reader.expelled,
                "stalled": reader.stalled,
                "views": len(reader.views),
                "problems": problems,
                "transport": type(self.handle.transport).__name__,
                "machine": self.handle.query(lambda member: dict(member.counters)).result(5),
            }

    def held_back(self, count: int, within_s: float = 10) -> dict[str, Any]:
        """Wait until ``count`` messages are with the application, and more wait in the machine."""
        deadline_s = time.monotonic() + within_s
        outstanding = stored = 0
        while not (outstanding >= count and stored) and time.monotonic() < deadline_s:
            outstanding, stored = self.handle.query(waiting).result(5)
        return {"outstanding": outstanding, "stored": stored > 0, "expelled": self.reader.expelled}

    def cut(self, times: int, pause_s: float) -> dict[str, Any]:
        """Close the sockets under the transport, again and again."""
        cut = 0
        transport: Any = self.handle.transport
        for _ in range(times):
            for stream in tuple(transport.streams):
                with suppress(OSError):
                    stream.socket.shutdown(socket.SHUT_RDWR)
                    cut += 1
            threading.Event().wait(pause_s)
        return {"cut": cut}

    def hold(self) -> None:
        self.reader.free.clear()

    def release(self) -> None:
        self.reader.free.set()

    def leave(self, within_s: float = 10) -> dict[str, Any]:
        start_s = time.monotonic()
        self.handle.close(within_s)
        return {"took_s": time.monotonic() - start_s}


def main(name: str, options: str) -> None:
    companion = Companion(name, json.loads(options))
    print(json.dumps({"at": str(companion.handle.transport.locator)}), flush=True)
    for line in sys.stdin:
        print(json.dumps(companion.do(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
