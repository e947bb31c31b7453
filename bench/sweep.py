"""The cost of Spark for a sweep: the same seeds on Spark and in plain processes, in turns.

``python bench/sweep.py --seeds 2000`` splits the seeds into rounds. In each round both do the same
seeds on as many cores, in sequence, so that a slow moment of the machine affects both alike; the
first alternates from round to round. The plain way is the way of ``gapless sim --seeds``: a pool of
processes, and results that are only added up. A sweep on Spark writes a table besides. Both must
have the same digest, and no violation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pyspark.sql import SparkSession

from bench.measuring import Sample, ratio, take
from gapless.cli.rendering import console, make_table, progress_bar
from gapless.errors import GaplessError
from gapless.sim.runner import sweep as plain_sweep
from pyspark_gapless.quiet_session import quiet_session
from pyspark_gapless.sweep.cell import code_digest
from pyspark_gapless.sweep.executors import (
    MAX_CONCURRENT_JOBS,
    NAME,
    SparkSweepExecutor,
    light_settings,
)
from pyspark_gapless.sweep.grid_file import read_grid
from pyspark_gapless.sweep.results import RequestedRuns, SweepResults
from pyspark_gapless.sweep.runner import sweep
from pyspark_gapless.sweep.summary import summarise

WAYS = ("spark", "plain")


class TurnResult(NamedTuple):
    """The results of some seeds on Spark or in processes."""

    digest: str
    violations: int
    events: int


class Turns:
    """Both ways to do some seeds."""

    def __init__(
        self, spark: SparkSession, folder: Path, workers: int, *, membership: bool
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._workers = workers
        self._membership = membership
        self.results: dict[str, list[TurnResult]] = {way: [] for way in WAYS}
        self.failing: list[int] = []

    def spark(self, seeds: range) -> None:
        """Run some seeds on Spark, and write the rows."""
        cells = read_grid(f"[hunt]\ngroups = '{'membership' if self._membership else 'told'}'")
        wanted, results = RequestedRuns(cells, seeds, code_digest()), SweepResults(self._folder)
        with results.locked(), ThreadPoolExecutor(MAX_CONCURRENT_JOBS + 1) as pool:
            sweep(wanted, SparkSweepExecutor(self._spark, pool), results)
        (hunt,) = summarise(results, wanted).hunts
        self.results["spark"].append(TurnResult(hunt.digest, hunt.violations, hunt.sums["events"]))

    def plain(self, seeds: range) -> None:
        """Do some seeds in a pool of processes."""
        found = plain_sweep(seeds, workers=self._workers, membership=self._membership)
        violations = sum(len(outcome.violations) for outcome in found.failed)
        self.failing += [outcome.seed for outcome in found.failed]
        self.results["plain"].append(TurnResult(found.digest, violations, found.events))


def take_own(turn: Callable[[], None]) -> Sample:
    """Measure a turn of this process and its children, without the idle Spark."""
    before, began_s = os.times(), perf_counter()
    turn()
    after = os.times()
    return Sample(perf_counter() - began_s, sum(after[:4]) - sum(before[:4]))


MEASURES: dict[str, Callable[[Callable[[], None]], Sample]] = {"spark": take, "plain": take_own}
"""How each way is measured."""


def measure(
    turns: Turns, slices: Sequence[range], tick: Callable[[], None]
) -> dict[str, list[Sample]]:
    """Let both ways do every slice, in turns."""
    found: dict[str, list[Sample]] = {way: [] for way in WAYS}
    for number, seeds in enumerate(slices):
        for way in WAYS[:: 1 if number % 2 == 0 else -1]:
            found[way].append(MEASURES[way](partial(getattr(turns, way), seeds)))
            tick()
    return found


def report(
    turns: Turns, slices: Sequence[range], found: dict[str, list[Sample]], start_s: float
) -> dict[str, Any]:
    """Return the figures, for a program."""
    seeds = sum(map(len, slices))
    wall_s = {way: sum(sample.wall_s for sample in samples) for way, samples in found.items()}
    cpu_s = {way: sum(sample.cpu_s for sample in samples) for way, samples in found.items()}
    rounds = ratio(*([sample.wall_s for sample in found[way]] for way in WAYS))
    return {
        "seeds": seeds,
        "rounds": len(slices),
        "seeds_per_s": {way: round(seeds / wall_s[way], 2) for way in WAYS},
        "wall_s": {way: round(wall_s[way], 2) for way in WAYS},
        "cpu_s": {way: round(cpu_s[way], 2) for way in WAYS},
        "overhead": round(wall_s["spark"] / wall_s["plain"] - 1, 4),
        "overhead_of_rounds": [round(value - 1, 4) for value in rounds],
        "overhead_cpu": round(cpu_s["spark"] / max(cpu_s["plain"], 1e-9) - 1, 4),
        "rounds_cpu_s": {way: [round(sample.cpu_s, 2) for sample in found[way]] for way in WAYS},
        "rounds_wall_s": {way: [round(sample.wall_s, 2) for sample in found[way]] for way in WAYS},
        "spark_start_s": round(start_s, 2),
        "overhead_with_start": round((wall_s["spark"] + start_s) / wall_s["plain"] - 1, 4),
        "same_digests": [each.digest for each in turns.results["spark"]]
        == [each.digest for each in turns.results["plain"]],
        "violations": sum(each.violations for each in turns.results["spark"]),
        "failing_seeds": sorted(turns.failing),
        "events": sum(each.events for each in turns.results["spark"]),
    }


def conditions(master: str, workers: int, *, membership: bool) -> dict[str, object]:
    return {
        "membership": membership,
        "python": platform.python_version(),
        "master": master,
        "workers": workers,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def show(about: dict[str, object], figures: dict[str, Any]) -> None:
    screen = console()
    screen.print(", ".join(f"{key} {value}" for key, value in about.items()), style="dim")
    rows = [
        (way, figures["seeds_per_s"][way], figures["wall_s"][way], figures["cpu_s"][way])
        for way in WAYS
    ]
    screen.print(
        make_table(
            f"{figures['seeds']:,} seeds, each done by both", ("way", "seeds/s", "s", "CPU s"), rows
        )
    )
    middle, low, high = (f"{100 * value:+.1f} %" for value in figures["overhead_of_rounds"])
    screen.print(
        f"Spark takes {100 * figures['overhead']:+.1f} % of time more; "
        f"by rounds {middle} ({low} to {high})"
    )
    screen.print(
        f"CPU {100 * figures['overhead_cpu']:+.1f} %; "
        f"Spark starts in {figures['spark_start_s']} s, with which"
    )
    screen.print(f"it is {100 * figures['overhead_with_start']:+.1f} % in all")
    same = "the same" if figures["same_digests"] else "NOT THE SAME"
    screen.print(f"{figures['violations']} violations; the digests of both are {same}")
    for seed in figures["failing_seeds"]:
        screen.print(f"gapless sim {seed}{' --membership' if about['membership'] else ''}")


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in a single line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help says what there is)\n")


def number_up_to(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not 0 < int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {most}")
        return int(text)

    return read


def command_line() -> OneLineParser:
    parser = OneLineParser(
        prog="bench/sweep.py", description="Measure what Spark costs a sweep.", allow_abbrev=False
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of a table"
    )
    parser.add_argument(
        "--seeds",
        type=number_up_to(10_000_000),
        default=200,
        metavar="N",
        help="seeds in all (200)",
    )
    parser.add_argument(
        "--rounds",
        type=number_up_to(1000),
        default=2,
        metavar="N",
        help="rounds to split them into (2)",
    )
    parser.add_argument(
        "--workers",
        type=number_up_to(256),
        default=2,
        metavar="N",
        help="cores that each way has (2)",
    )
    parser.add_argument(
        "--membership", action="store_true", help="seeds of groups that make their own views"
    )
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where to write; a temporary folder by default"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line()
    options = parser.parse_args(arguments)
    rounds = min(options.rounds, options.seeds)
    cuts = [options.seeds * number // rounds for number in range(rounds + 1)]
    slices = [range(first, last) for first, last in pairwise(cuts)]
    if options.folder is not None and not options.folder.is_dir():
        parser.error(f"--folder {options.folder}: there is no such folder")
    folder = Path(tempfile.mkdtemp(prefix="gapless-bench-sweep-", dir=options.folder))
    done = 0
    try:
        with progress_bar(
            "turns", 2 * rounds, quiet=options.json or not sys.stderr.isatty()
        ) as progress:

            def tick() -> None:
                nonlocal done
                done += 1
                progress(done)

            master = f"local[{options.workers}]"
            theirs = SparkSession.getActiveSession()
            began_s = perf_counter()
            with quiet_session(
                None if theirs else master, folder / "spark.log", NAME, light_settings(master)
            ) as spark:
                start_s = perf_counter() - began_s
                turns = Turns(
                    spark, folder / "results", options.workers, membership=options.membership
                )
                figures = report(turns, slices, measure(turns, slices, tick), start_s)
    except GaplessError as error:
        print(f"bench/sweep.py: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = conditions(master, options.workers, membership=options.membership)
    if options.json:
        print(json.dumps({"conditions": about, **figures}, indent=2))
    else:
        show(about, figures)
    return 0 if figures["same_digests"] and not figures["violations"] else 1


if __name__ == "__main__":
    sys.exit(main())
