"""The cost of recording: the same group without a recorder, sampled and full, in turns.

Each ratio is of a single round: the figure of a recorded group by the figure of the group without a
recorder in the same round. Cost is the CPU time of all members for a million deliveries.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gapless.trace import read
from gapless.trace.journal import ROW_STRUCT
from gapless_lab.bench.matrix import measure
from gapless_lab.bench.plan import BenchPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

MODES = ("off", "sampled", "full")


@dataclass(frozen=True)
class Line:
    """A mode: medians over all rounds."""

    message_bytes: int
    mode: str
    messages_per_s: int
    cpu_s_per_million: float
    rows_per_s: int
    ratio_speed: float
    ratio_cpu: float


class Turn(NamedTuple):
    """The figures of a group in a mode, and the number of written rows."""

    messages_per_s: int
    cpu_s_per_million: float
    rows: int


def turn(plan: BenchPlan, mode: str, folder: Path) -> Turn:
    """Measure a group in a mode."""
    traced = plan if mode == "off" else replace(plan, trace=str(folder), trace_mode=mode)
    (result,) = measure(traced)
    if result.skip_reason or result.faults:
        raise SystemExit(f"a group in mode {mode} has not delivered everything: {result}")
    rows = sum(path.stat().st_size for path in folder.rglob("*.rows")) // ROW_STRUCT.size
    if mode == "sampled":
        rows = sum(1 for _ in read(folder))  # a few only, and this shows that they can be read
    shutil.rmtree(folder, ignore_errors=True)
    figures = result.figures
    return Turn(figures["messages_per_s"], figures["cpu_s_per_million"], rows)


def lines(plan: BenchPlan, rounds: int) -> list[Line]:
    """Measure all modes, round by round."""
    found: dict[str, list[Turn]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as folder:
        for number in range(1, rounds + 1):
            for mode in MODES:
                figure = turn(plan, mode, Path(folder) / mode)
                found[mode].append(figure)
                said = f"{figure.messages_per_s:,} messages/s, {figure.cpu_s_per_million} CPU s/M"
                print(
                    f"round {number} of {rounds}, {plan.sizes_bytes[0]} bytes, {mode}: {said}",
                    file=sys.stderr,
                )
    made = []
    for mode, seen in found.items():
        pairs = list(zip(seen, found["off"], strict=True))
        made.append(
            Line(
                plan.sizes_bytes[0],
                mode,
                round(median(figure.messages_per_s for figure in seen)),
                round(median(figure.cpu_s_per_million for figure in seen), 3),
                round(median(figure.rows for figure in seen) / plan.seconds),
                round(
                    median(figure.messages_per_s / other.messages_per_s for figure, other in pairs),
                    3,
                ),
                round(
                    median(
                        figure.cpu_s_per_million / other.cpu_s_per_million
                        for figure, other in pairs
                    ),
                    3,
                ),
            )
        )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0] if __doc__ else None, allow_abbrev=False
    )
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--size", type=int, nargs="+", default=[100, 1000], metavar="BYTES")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    made = []
    for size_bytes in options.size:
        plan = BenchPlan(options.members, options.members, (size_bytes,), seconds=options.seconds)
        made += lines(plan, options.rounds)
    about = {
        "members": options.members,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    if options.json:
        print(json.dumps({"conditions": about, "figures": [asdict(line) for line in made]}))
        return 0
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(
        f"{'bytes':>6} {'mode':8} {'messages/s':>11} {'CPU s/M':>8} "
        f"{'rows/s':>8} {'speed':>6} {'CPU':>6}"
    )
    for line in made:
        print(
            f"{line.message_bytes:>6} {line.mode:8} "
            f"{line.messages_per_s:>11,} {line.cpu_s_per_million:>8.3f}"
            f" {line.rows_per_s:>8,} {line.ratio_speed:>6.3f} {line.ratio_cpu:>6.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
