"""What a group of real processes over UDP or TCP on loopback does in a second, and what it costs, beside raw sockets.

Every member sends as fast as it is let, and takes in what all others send. The limit beside it is measured in the same
run, by as many processes with bare sockets that send datagrams of the same size to each other and count what arrives:
no order, no repair, no flow control, and what overflows is lost (over TCP: a stream to each, nothing lost, no group).
Both are given the same time, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn

from gapless.config import Config
from gapless.core.ready import Delivery, ViewInstalled
from gapless.discovery import Discovery
from gapless.profiles import GROUP
from gapless.transport import Handle, TcpMesh, UdpMesh
from gapless.transport.sockets import ask_for_buffers

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("gapless", "raw")
TRANSPORTS = {"udp": UdpMesh, "tcp": TcpMesh}
IN_FLIGHT = 4
BATCH_BYTES = 240_000
DATAGRAM_BYTES = 60_000
PATIENCE_S = 30


@dataclass(frozen=True)
class Figure:
    """One line of the result; what a receiver gets is that of the slowest."""

    transport: str
    profile: str
    members: int
    message_bytes: int
    messages_per_s: int
    mb_per_s: float
    cpu_s_per_million: float
    repairs: int
    lost: int
    raw_mb_per_s: float
    raw_cpu_s_per_million: float
    ratio_speed: float
    ratio_cpu: float


# A member of its own process


class GroupMember:
    """Sends all the time, and counts what comes."""

    def __init__(self, ports: list[int], at: int, message_bytes: int, transport: str, profile: str) -> None:
        self.members = len(ports)
        self.payload = b"x" * message_bytes
        self.batch = max(1, BATCH_BYTES // message_bytes)
        discovery = Discovery.parse(f"seeds://127.0.0.1:{ports[0]}-{ports[-1]}", group="bench")
        config = Config.make(profile=profile, found_after="200ms", join_interval="50ms", loopback=False)
        opened = TRANSPORTS[transport]("127.0.0.1", ports[at], discovery=discovery)
        self.handle = Handle("bench", opened, config, node=at + 1)
        self.count = 0
        self.gathered = threading.Event()
        threading.Thread(target=self.read, daemon=True).start()
        assert self.gathered.wait(PATIENCE_S), "the others have not come"

    def read(self) -> None:
        """Count what comes."""
        handle = self.handle
        while handle.wait() or not handle.is_closed:
            count = 0
            for item in handle.take():
                if isinstance(item, Delivery):
                    count += item.message_count
                elif isinstance(item, ViewInstalled) and len(item.view.members) == self.members:
                    self.gathered.set()
            if count:
                self.count += count
                handle.consumed(count)

    def run(self, until_s: float) -> None:
        """Send as fast as possible."""
        messages = [self.payload] * self.batch
        flying = [self.handle.send(messages) for _ in range(IN_FLIGHT)]
        while time.monotonic() < until_s:
            flying.pop(0).result(PATIENCE_S)
            flying.append(self.handle.send(messages))

    def counters(self) -> dict[str, int]:
        """Return what else there is to say."""
        machine = self.handle.ask(lambda member: dict(member.counters)).result(PATIENCE_S)
        return {"repairs": machine.get("sent.repair", 0)}


class RawMember:
    """The same with a bare socket."""

    def __init__(self, ports: list[int], at: int, message_bytes: int) -> None:
        self.message_bytes = message_bytes
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", ports[at]))
        ask_for_buffers(self.socket, 4 << 20)
        self.others = [("127.0.0.1", port) for port in ports if port != ports[at]]
        self.count = 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        """Count what comes."""
        buffer = bytearray(1 << 16)
        while True:
            self.count += self.socket.recv_into(buffer) // self.message_bytes

    def run(self, until_s: float) -> None:
        """Send as fast as possible."""
        datagram = b"x" * (DATAGRAM_BYTES // self.message_bytes * self.message_bytes)
        while time.monotonic() < until_s:
            for other in self.others:
                self.socket.sendto(datagram, other)

    def counters(self) -> dict[str, int]:
        """Return what else there is to say."""
        return {"repairs": 0}


class RawStreams:
    """The same with a bare stream to each other member."""

    def __init__(self, ports: list[int], at: int, message_bytes: int) -> None:
        self.message_bytes = message_bytes
        self.counts = [0] * len(ports)
        listener = socket.create_server(("127.0.0.1", ports[at]))
        self.others = [patient_connection(port) for port in ports[:at]]
        self.others += [listener.accept()[0] for _ in ports[at + 1 :]]
        for number, one in enumerate(self.others):
            threading.Thread(target=self.read, args=(one, number), daemon=True).start()

    @property
    def count(self) -> int:
        """How many messages have come."""
        return sum(self.counts) // self.message_bytes

    def read(self, one: socket.socket, number: int) -> None:
        """Count what comes."""
        buffer = bytearray(1 << 18)
        while size := one.recv_into(buffer):
            self.counts[number] += size

    def run(self, until_s: float) -> None:
        """Send as fast as possible."""
        data = b"x" * BATCH_BYTES
        senders = [threading.Thread(target=self.send, args=(one, data, until_s), daemon=True) for one in self.others]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()

    def send(self, one: socket.socket, data: bytes, until_s: float) -> None:
        """Fill one stream, for whose reader this one must not wait."""
        while time.monotonic() < until_s:
            one.sendall(data)

    def counters(self) -> dict[str, int]:
        """Return what else there is to say."""
        return {"repairs": 0}


def patient_connection(port: int) -> socket.socket:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < until_s, "the others have not come"
            time.sleep(0.01)


def member(
    kind: str, ports: list[int], at: int, message_bytes: int, duration_s: float, transport: str, profile: str
) -> None:
    made: GroupMember | RawMember | RawStreams
    if kind == "gapless":
        made = GroupMember(ports, at, message_bytes, transport, profile)
    else:
        made = (RawStreams if transport == "tcp" else RawMember)(ports, at, message_bytes)
    print("ready", flush=True)
    sys.stdin.readline()
    start_s, cpu_s, count = time.monotonic(), time.process_time(), made.count
    made.run(start_s + duration_s)
    spent_s, count = time.process_time() - cpu_s, made.count - count
    elapsed_s = time.monotonic() - start_s
    result = {"count": count, "elapsed_s": elapsed_s, "cpu_s": spent_s, **made.counters()}
    print(json.dumps(result), flush=True)
    sys.stdin.readline()
    os._exit(0)  # all have measured; how long it takes to leave is another matter


# The parent


def free_ports(count: int, transport: str) -> list[int]:
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    while True:
        taken = [socket.socket(socket.AF_INET, kind) for _ in range(count)]
        try:
            taken[0].bind(("127.0.0.1", 0))
            first = taken[0].getsockname()[1]
            for at, one in enumerate(taken[1:], 1):
                one.bind(("127.0.0.1", first + at))
            return list(range(first, first + count))
        except (OSError, OverflowError):
            continue
        finally:
            for one in taken:
                one.close()


def group(
    kind: str, members: int, message_bytes: int, duration_s: float, transport: str, profile: str
) -> list[dict[str, Any]]:
    """Let a group work for a while; return what each member says."""
    ports = free_ports(members, transport)
    rest = message_bytes, duration_s, transport, profile
    root = Path(__file__).resolve().parent.parent
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--member", json.dumps([kind, ports, at, *rest])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        )
        for at in range(members)
    ]
    try:
        answers: list[str] = []
        for wanted in ("ready", ""):
            answers = [process.stdout.readline() for process in processes if process.stdout]
            assert all(answers), "a member has ended"
            assert not wanted or answers == [f"{wanted}\n"] * members
            for process in processes:
                print(file=process.stdin, flush=True)
        return [json.loads(answer) for answer in answers]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def summary(results: list[dict[str, Any]], message_bytes: int) -> tuple[float, float, float]:
    """Return messages and megabytes per second at the slowest receiver, and CPU seconds per million deliveries."""
    slowest = min(result["count"] / result["elapsed_s"] for result in results)
    deliveries = sum(result["count"] for result in results)
    cpu_s = sum(result["cpu_s"] for result in results)
    return slowest, slowest * message_bytes / 1e6, cpu_s / max(1, deliveries) * 1e6


def measure(
    members: int, sizes: Sequence[int], rounds: int, duration_s: float, transport: str, profile: str
) -> list[Figure]:
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    repairs: dict[int, int] = dict.fromkeys(sizes, 0)
    for _ in range(rounds):
        for size in sizes:
            for kind in KINDS:
                results = group(kind, members, size, duration_s, transport, profile)
                found.setdefault((kind, size), []).append(summary(results, size))
                repairs[size] += sum(result["repairs"] for result in results)
    figures = []
    for size in sizes:
        (speed, mb, cpu_s), (_, raw_mb, raw_cpu_s) = (
            tuple(median(values) for values in zip(*found[kind, size], strict=True)) for kind in KINDS
        )
        figures.append(
            Figure(
                transport=transport,
                profile=profile,
                members=members,
                message_bytes=size,
                messages_per_s=round(speed),
                mb_per_s=round(mb, 1),
                cpu_s_per_million=round(cpu_s, 3),
                repairs=repairs[size],
                lost=0,
                raw_mb_per_s=round(raw_mb, 1),
                raw_cpu_s_per_million=round(raw_cpu_s, 3),
                ratio_speed=round(mb / raw_mb, 2),
                ratio_cpu=round(cpu_s / raw_cpu_s, 2),
            )
        )
    return figures


def conditions(rounds: int, duration_s: float) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "rounds": rounds,
        "seconds a round": duration_s,
    }


def show(about: dict[str, object], figures: list[Figure]) -> None:
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    for line in figures:
        print(
            f"\n{line.transport}, {line.profile}: {line.members} members, all sending {line.message_bytes} B messages"
            f"\n  slowest receiver   {line.messages_per_s:>9} messages/s  {line.mb_per_s:>7} MB/s"
            f"   raw sockets {line.raw_mb_per_s:>7} MB/s   ratio {line.ratio_speed}"
            f"\n  CPU                {line.cpu_s_per_million:>9} s/million deliveries"
            f"      raw sockets {line.raw_cpu_s_per_million:>7}        ratio {line.ratio_cpu}"
            f"\n  repairs            {line.repairs:>9}"
        )
    print("\nratio of speed: higher is better, of CPU: lower; raw UDP sockets give no order and lose what overflows")


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help says what there is)\n")


def number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100000")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="bench/udp.py", description="Measure a group on loopback.", allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--members", type=number, default=3, metavar="N", help="members, all of them sending (3)")
    parser.add_argument("--size", type=number, action="append", metavar="BYTES", help="size of a message (100, 1000)")
    parser.add_argument("--rounds", type=number, default=3, metavar="N", help="rounds to take the median of (3)")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="length of a round (3)")
    parser.add_argument(
        "--transport", choices=list(TRANSPORTS), action="append", help="over what; several are measured in turn (udp)"
    )
    parser.add_argument("--profile", choices=list(GROUP), default="nakack4", help="the protocol (nakack4)")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.member:
        member(*json.loads(options.member))
        return 0
    about = conditions(options.rounds, options.seconds)
    figures = [
        figure
        for transport in options.transport or ("udp",)
        for figure in measure(
            options.members, options.size or (100, 1000), options.rounds, options.seconds, transport, options.profile
        )
    ]
    if options.json:
        print(json.dumps({"conditions": about, "figures": [asdict(line) for line in figures]}, indent=2))
    else:
        show(about, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
