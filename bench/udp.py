"""The speed and cost of a group of real processes over UDP or TCP, beside raw sockets.

Every member sends at full speed, and receives the messages of all others. The limit is measured in
the same run, by as many processes with bare sockets that send datagrams of the same size to each
other and count arrivals: no order, no repair, no flow control, and overflow is lost; over TCP with
bare streams that are always full. Both get the same time, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from gapless.profiles import GROUP_PROFILES
from gapless.transport.socket_options import request_buffers
from gapless_lab.bench.matrix import WORKER, run_and_check
from gapless_lab.bench.plan import BenchCell, BenchPlan, BenchTask
from gapless_lab.bench.worker import WARM_UP_S
from gapless_lab.ports import free_ports
from gapless_lab.process import (
    ProcessGroup,
    emit,
    lab_environ,
    serve_commands,
    worker_command,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("gapless", "raw")
TRANSPORTS = ("udp", "tcp")
FRAME_BYTES = 60_000
LIMIT_S = 180


@dataclass(frozen=True)
class Figure:
    """A line of the result; the receive rate is the rate of the slowest receiver."""

    transport: str
    profile: str
    members: int
    frame_bytes: int
    message_bytes: int
    messages_per_s: int
    mb_per_s: float
    cpu_s_per_million: float
    repairs: int
    raw_mb_per_s: float
    raw_cpu_s_per_million: float
    ratio_speed: float
    ratio_cpu: float


# Bare sockets in a process of their own


class RawMember:
    """Does the work of a member of a group with a bare socket."""

    def __init__(self, ports: list[int], at: int, message_bytes: int, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.message_bytes = message_bytes
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", ports[at]))
        request_buffers(self.socket, 4 << 20)
        self.others = [("127.0.0.1", port) for port in ports if port != ports[at]]
        self.count = 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        """Count received messages."""
        buffer = bytearray(1 << 16)
        while True:
            self.count += self.socket.recv_into(buffer) // self.message_bytes

    def run(self, until_s: float) -> None:
        """Send as fast as possible."""
        datagram = b"x" * (self.frame_bytes // self.message_bytes * self.message_bytes)
        while time.monotonic() < until_s:
            for other in self.others:
                self.socket.sendto(datagram, other)


class RawStreams:
    """The same with a bare stream to each other."""

    def __init__(self, ports: list[int], at: int, message_bytes: int, frame_bytes: int) -> None:
        self.message_bytes = message_bytes
        self.data = b"x" * frame_bytes
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
        """Count received messages."""
        buffer = bytearray(1 << 18)
        while size := one.recv_into(buffer):
            self.counts[number] += size

    def run(self, until_s: float) -> None:
        """Send as fast as possible, to each without waiting for another."""
        senders = [
            threading.Thread(target=self.send, args=(one, until_s), daemon=True)
            for one in self.others
        ]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()

    def send(self, one: socket.socket, until_s: float) -> None:
        """Fill a stream."""
        while time.monotonic() < until_s:
            one.sendall(self.data)


def patient_connection(port: int) -> socket.socket:
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            assert time.monotonic() < until_s, "the others have not come"
            time.sleep(0.01)


def raw_member(
    transport: str,
    ports: list[int],
    at: int,
    message_bytes: int,
    frame_bytes: int,
    duration_s: float,
) -> None:
    made = (RawStreams if transport == "tcp" else RawMember)(ports, at, message_bytes, frame_bytes)

    class Worker:
        def run(self) -> dict[str, Any]:
            made.run(time.monotonic() + WARM_UP_S)
            start_s, cpu_s, count = time.monotonic(), time.process_time(), made.count
            made.run(start_s + duration_s)
            spent_s, count = time.process_time() - cpu_s, made.count - count
            elapsed_s = time.monotonic() - start_s
            return {"count": count, "elapsed_s": elapsed_s, "cpu_s": spent_s, "sent": {}}

        def check(self, sent: object) -> dict[str, Any]:
            del sent  # bare sockets owe nothing
            return {"repairs": 0}

    emit("ready")
    serve_commands(Worker())
    os._exit(0)  # all have measured; how long it takes to leave is another matter


# The parent


class Way(NamedTuple):
    """The transport, the profile and the frame size of a measurement."""

    transport: str
    profile: str
    frame_bytes: int


def group(
    kind: str, members: int, message_bytes: int, way: Way, duration_s: float
) -> list[dict[str, Any]]:
    """Let a group work for a while; return the reports of the members."""
    ports = free_ports(members)
    commands = []
    for at in range(members):
        if kind == "gapless":
            knobs = {"max_frame_bytes": way.frame_bytes, "profile": way.profile}
            plan = BenchPlan(members, members, seconds=duration_s, settings=knobs)
            spec = BenchTask(plan, BenchCell(way.transport, 0.0, message_bytes), ports, at)
            commands.append(worker_command(WORKER, spec))
        else:
            asked = json.dumps(
                [way.transport, ports, at, message_bytes, way.frame_bytes, duration_s]
            )
            commands.append([sys.executable, __file__, "--member", asked])
    environ = lab_environ(Path(__file__).resolve().parent.parent)
    with ProcessGroup(commands, environ) as processes:
        work, checks = run_and_check(processes, duration_s)
    return [{**said, **check} for said, check in zip(work, checks, strict=True)]


def summary(results: list[dict[str, Any]], message_bytes: int) -> tuple[float, float, float]:
    """Return messages/s and MB/s of the slowest receiver, and CPU s per million deliveries."""
    slowest = min(result["count"] / result["elapsed_s"] for result in results)
    deliveries = sum(result["count"] for result in results)
    cpu_s = sum(result["cpu_s"] for result in results)
    return slowest, slowest * message_bytes / 1e6, cpu_s / max(1, deliveries) * 1e6


def measure(
    members: int, sizes: Sequence[int], way: Way, rounds: int, duration_s: float
) -> list[Figure]:
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    repairs: dict[int, int] = dict.fromkeys(sizes, 0)
    for _ in range(rounds):
        for size in sizes:
            for kind in KINDS:
                results = group(kind, members, size, way, duration_s)
                found.setdefault((kind, size), []).append(summary(results, size))
                repairs[size] += sum(result["repairs"] for result in results)
    figures = []
    for size in sizes:
        (speed, mb, cpu_s), (_, raw_mb, raw_cpu_s) = (
            tuple(median(values) for values in zip(*found[kind, size], strict=True))
            for kind in KINDS
        )
        figures.append(
            Figure(
                **way._asdict(),
                members=members,
                message_bytes=size,
                messages_per_s=round(speed),
                mb_per_s=round(mb, 1),
                cpu_s_per_million=round(cpu_s, 3),
                repairs=repairs[size],
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
            f"\n{line.transport}, {line.profile}: {line.members} members, "
            f"all sending {line.message_bytes} B messages"
            f" in frames of {line.frame_bytes} B"
            f"\n  slowest receiver   {line.messages_per_s:>9} messages/s  {line.mb_per_s:>7} MB/s"
            f"   raw sockets {line.raw_mb_per_s:>7} MB/s   ratio {line.ratio_speed}"
            f"\n  CPU                {line.cpu_s_per_million:>9} s/million deliveries"
            f"      raw sockets {line.raw_cpu_s_per_million:>7}        ratio {line.ratio_cpu}"
            f"\n  repairs            {line.repairs:>9}"
        )
    print(
        "\nratio of speed: higher is better, of CPU: lower; "
        "raw UDP sockets give no order and lose what overflows"
    )


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in a single line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help says what there is)\n")


def number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100000")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(
        prog="bench/udp.py", description="Measure a group on loopback.", allow_abbrev=False
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of a table"
    )
    parser.add_argument(
        "--members", type=number, default=3, metavar="N", help="members, all of them sending (3)"
    )
    parser.add_argument(
        "--size",
        type=number,
        action="append",
        metavar="BYTES",
        help="size of a message (100, 1000)",
    )
    parser.add_argument(
        "--frame",
        type=number,
        default=FRAME_BYTES,
        metavar="BYTES",
        help=f"largest frame ({FRAME_BYTES})",
    )
    parser.add_argument(
        "--rounds", type=number, default=3, metavar="N", help="rounds to take the median of (3)"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, metavar="S", help="length of a round (3)"
    )
    parser.add_argument(
        "--transport",
        choices=TRANSPORTS,
        action="append",
        help="over what, one after the other (udp)",
    )
    parser.add_argument(
        "--profile", choices=list(GROUP_PROFILES), default="nakack4", help="the protocol (nakack4)"
    )
    parser.add_argument("--member", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.member:
        raw_member(*json.loads(options.member))
        return 0
    about = conditions(options.rounds, options.seconds)
    ways = [
        Way(transport, options.profile, options.frame)
        for transport in options.transport or ("udp",)
    ]
    sizes = options.size or (100, 1000)
    figures = [
        one
        for way in ways
        for one in measure(options.members, sizes, way, options.rounds, options.seconds)
    ]
    if options.json:
        print(
            json.dumps(
                {"conditions": about, "figures": [asdict(line) for line in figures]}, indent=2
            )
        )
    else:
        show(about, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
