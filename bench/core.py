"""The cost of the core per message: encode, decode, window, and decode to delivery at once.

Every figure stands beside the cost of copying the same bytes once, measured in the same run,
because nanoseconds alone say more about the machine than about the code. The operations take turns
in each round, so that a slow moment of the machine affects all operations alike, and the figure is
the median of the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from time import thread_time_ns
from typing import TYPE_CHECKING, NoReturn

from gapless.identity import Address
from gapless.protocol.stream.window import FixedWindow, Window
from gapless.run import LENGTH_BYTES, Run
from gapless.wire import Data, Datagram, decode, encode
from gapless.wire.codec import DATA_OVERHEAD_BYTES, HEADER_BYTES, run_room_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

ORIGIN = Address(1, 1)
MESSAGE_BYTES = (100, 1024)
FRAME_BYTES = (60_000, 1_400)
ROUND_BYTES = 2_000_000
"""Size of the work of a round: large enough to time, small enough for many rounds."""
ROUNDS = 40
MAX_ROUNDS = 1_000


@dataclass(frozen=True)
class Figure:
    """A line of the result."""

    message_bytes: int
    frame_bytes: int
    messages_per_frame: int
    operation: str
    ns_per_message: float
    held_bytes_per_message: float
    baseline: str
    baseline_ns_per_message: float
    ratio: float


class Load:
    """The same messages in every form at the start of an operation."""

    def __init__(self, message_bytes: int, frame_bytes: int) -> None:
        self.message_bytes = message_bytes
        self.frame_bytes = frame_bytes
        self.per_frame = run_room_bytes(frame_bytes) // (message_bytes + LENGTH_BYTES)
        frames = max(1, ROUND_BYTES // (self.per_frame * message_bytes))
        self.count = frames * self.per_frame
        self.batches = [
            [bytes([(number + at) % 256]) * message_bytes for at in range(self.per_frame)]
            for number in range(frames)
        ]
        self.datagrams = list(self.encode())
        self.runs = [
            frame.run for said in self.decode() for frame in said.frames if isinstance(frame, Data)
        ]
        self.overhead_bytes = HEADER_BYTES + DATA_OVERHEAD_BYTES + self.per_frame * LENGTH_BYTES

    def join(self) -> Iterator[object]:
        """Copy every message once, out of a list: the minimum work of a sender."""
        for messages in self.batches:
            # The empty head makes join copy even when there is one message only.
            yield b"".join([b"", *messages])

    def slice(self) -> Iterator[object]:
        """Copy every message once, out of a buffer: the minimum work of a receiver."""
        for datagram in self.datagrams:
            yield datagram[self.overhead_bytes :]

    def encode(self) -> Iterator[bytes]:
        """Make runs of the messages and datagrams of the runs."""
        first = 1
        for messages in self.batches:
            run = Run.of(ORIGIN, first, messages, 0, 1, 1)
            yield encode(1, ORIGIN, [Data(run)])
            first += run.count

    def decode(self) -> Iterator[Datagram]:
        """Check and take apart every datagram."""
        for datagram in self.datagrams:
            yield decode(datagram)

    def window(self) -> Iterator[object]:
        """Store every run and deliver the run."""
        window = self.new_window()
        for run in self.runs:
            window.add(run)
            yield window.take()
        assert window.delivered == self.count

    def receive(self) -> Iterator[object]:
        """Do all of a receiver's work: decode, store, hand out."""
        window = self.new_window()
        for datagram in self.datagrams:
            for frame in decode(datagram).frames:
                if isinstance(frame, Data):
                    window.add(frame.run)
                    yield window.take()
        assert window.delivered == self.count

    def new_window(self) -> Window:
        """Return a receiver's window that is large enough."""
        return Window(
            FixedWindow(self.count), max_bytes=self.count * (self.message_bytes + LENGTH_BYTES)
        )


Work = Callable[[Load], Iterator[object]]

OPERATIONS: dict[str, tuple[Work, Work]] = {
    "encode": (Load.encode, Load.join),
    "decode": (Load.decode, Load.slice),
    "add+take": (Load.window, Load.slice),
    "decode+add+take": (Load.receive, Load.slice),
}


def elapsed_ns(work: Work, load: Load) -> int:
    """Return the CPU time of ``work``; each result is dropped before the next, as in a stream."""
    start = thread_time_ns()
    for _ in work(load):
        pass
    return thread_time_ns() - start


def held_bytes(work: Work, load: Load) -> int:
    """Return the memory held by the results of ``work``."""
    tracemalloc.start()
    try:
        result = list(work(load))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del result
    return held


def measure(rounds: int) -> list[Figure]:
    loads = [Load(message, frame) for message in MESSAGE_BYTES for frame in FRAME_BYTES]
    turns: list[Work] = [
        Load.join,
        Load.slice,
        *(operation for operation, _ in OPERATIONS.values()),
    ]
    times: dict[tuple[Load, Work], list[int]] = {
        (load, turn): [] for load in loads for turn in turns
    }
    for _ in range(rounds):
        for (load, turn), taken_ns in times.items():
            taken_ns.append(elapsed_ns(turn, load))
    return [
        figure(load, name, operation, baseline, times)
        for load in loads
        for name, (operation, baseline) in OPERATIONS.items()
    ]


def figure(
    load: Load,
    name: str,
    operation: Work,
    baseline: Work,
    times: dict[tuple[Load, Work], list[int]],
) -> Figure:
    ns, base_ns = (median(times[load, function]) for function in (operation, baseline))
    return Figure(
        message_bytes=load.message_bytes,
        frame_bytes=load.frame_bytes,
        messages_per_frame=load.per_frame,
        operation=name,
        ns_per_message=round(ns / load.count, 1),
        held_bytes_per_message=round(held_bytes(operation, load) / load.count, 1),
        baseline=baseline.__name__,
        baseline_ns_per_message=round(base_ns / load.count, 1),
        ratio=round(ns / base_ns, 2),
    )


def conditions(rounds: int) -> dict[str, object]:
    """Return the conditions needed to compare the figures with others."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "clock": "CPU time",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "gc": f"on, thresholds {gc.get_threshold()}" if gc.isenabled() else "off",
        "rounds": rounds,
    }


HEADINGS = (
    "message",
    "frame",
    "in a frame",
    "operation",
    "ns/message",
    "held B/message",
    "baseline",
    "ratio",
)


def cells(line: Figure) -> tuple[str, ...]:
    return (
        f"{line.message_bytes} B",
        f"{line.frame_bytes} B",
        f"{line.messages_per_frame}",
        line.operation,
        f"{line.ns_per_message:.1f}",
        f"{line.held_bytes_per_message:.1f}",
        f"{line.baseline} {line.baseline_ns_per_message:.1f} ns",
        f"{line.ratio:.2f}",
    )


def show(about: dict[str, object], figures: list[Figure]) -> None:
    rows = [HEADINGS, *map(cells, figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print()
    previous = None
    for row in rows:
        if previous not in {None, row[:2]}:
            print()
        previous = row[:2]
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    print(
        "\nratio: to one copy of the same messages, "
        "by bytes.join (encode) or by one slice (all others)"
    )


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in a single line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help says what there is)\n")


def round_count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_ROUNDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {MAX_ROUNDS}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(
        prog="bench/core.py",
        description="Measure what the core costs a message.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of a table"
    )
    parser.add_argument(
        "--rounds",
        type=round_count,
        default=ROUNDS,
        metavar="N",
        help=f"rounds to take the median of ({ROUNDS})",
    )
    options = parser.parse_args(arguments)
    about, figures = conditions(options.rounds), measure(options.rounds)
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
