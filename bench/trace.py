"""The cost of recording: the same group without a recorder, sampled and full, in turns.

Ratios are those of one round each: what a group does that is recorded, by what it does in the same
round without. Cost is the CPU time of all members for a million deliveries.
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
from typing import TYPE_CHECKING

from gapless.trace import read
from gapless.trace.journal import ROW_STRUCT
from gapless_lab.bench.matrix import ThroughputResult, measure
from gapless_lab.bench.plan import BenchPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

MODES = ("off", "sampled", "full")


@dataclass(frozen=True)
class Line:
    """One mode: medians over all rounds."""

    message_bytes: int
    mode: str
    messages_per_s: int
    cpu_s_per_million: float
    rows_per_s: int
    ratio_speed: float
    ratio_cpu: float


def turn(plan: BenchPlan, mode: str, folder: Path) -> tuple[ThroughputResult, int]:
    """Measure a group in one mode; return its figures, and how many rows it has written."""
    traced = plan if mode == "off" else replace(plan, trace=str(folder), trace_mode=mode)
    (figure,) = measure(traced)
    if not isinstance(figure, ThroughputResult) or not figure.is_sound:
        raise SystemExit(f"a group in mode {mode} has not delivered everything: {figure}")
    rows = sum(path.stat().st_size for path in folder.rglob("*.rows")) // ROW_STRUCT.size
    if mode == "sampled":
        rows = sum(1 for _ in read(folder))  # a few only, and this shows that they can be read
    shutil.rmtree(folder, ignore_errors=True)
    return figure, rows


def lines(plan: BenchPlan, rounds: int) -> list[Line]:
    """Measure all modes, round by round."""
    found: dict[str, list[tuple[ThroughputResult, int]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as folder:
        for number in range(1, rounds + 1):
            for mode in MODES:
                figure, rows = turn(plan, mode, Path(folder) / mode)
                found[mode].append((figure, rows))
                said = f"{figure.messages_per_s:,} messages/s, {figure.cpu_s_per_million} CPU s/M"
                print(
                    f"round {number} of {rounds}, {figure.size_bytes} bytes, {mode}: {said}",
                    file=sys.stderr,
                )
    base = [figure for figure, _ in found["off"]]
    made = []
    for mode, seen in found.items():
        pairs = [(figure, other) for (figure, _), other in zip(seen, base, strict=True)]
        made.append(
            Line(
                plan.sizes_bytes[0],
                mode,
                round(median(figure.messages_per_s for figure, _ in pairs)),
                round(median(figure.cpu_s_per_million for figure, _ in pairs), 3),
                round(median(rows for _, rows in seen) / plan.seconds),
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
