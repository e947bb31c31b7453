"""The speed of the pipeline into Spark, every figure beside a limit measured in the same run.

From a spool to a sink that drops all rows and to Parquet, beside Spark's own Parquet reader on the
same rows and a plain Python loop; appending to a spool, beside plain files; a collector with three
senders, beside a member that only listens; and the time of a message from ``send`` to a row, beside
Spark's own socket source.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from rich.console import Console

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # it is run as a script, and has others beside it

from bench import spark_collector, spark_latency, spark_source
from bench.measuring import Again
from gapless.cli.rendering import make_table, progress_bar
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
PARTS = ("source", "spool", "latency", "collector")
MASTER = "local[2]"
WIDTH = 140
"""Width of tables without a terminal."""


class Sizes(NamedTuple):
    """How much is measured."""

    rounds: int = 3
    warm_ups: int = 1
    runs: tuple[str, ...] = ("large", "small")
    rows: tuple[tuple[int, int], ...] = ((100, 1_000_000), (1024, 250_000))
    spool_mb: int = 100
    pace: spark_latency.Pace = spark_latency.Pace(warm_up=300, messages=1000, interval_s=0.01)
    collector_s: float = 3.0

    @property
    def cells(self) -> list[spark_source.Cell]:
        """The spools to read."""
        return [
            spark_source.Cell(size, runs, rows) for size, rows in self.rows for runs in self.runs
        ]

    def steps(self, parts: Sequence[str]) -> int:
        """How many measurements there are."""
        of = {
            "source": len(self.cells) * (self.rounds + self.warm_ups) * spark_source.TURNS,
            "spool": 1,
            "latency": (self.rounds + self.warm_ups)
            * len(spark_latency.SINKS)
            * len(spark_latency.SOURCES),
            "collector": self.rounds * len(self.rows) * len(spark_collector.KINDS),
        }
        return sum(of[part] for part in parts)


QUICK = Sizes(
    rounds=1,
    warm_ups=0,
    runs=("small",),
    rows=((100, 2_000),),
    spool_mb=1,
    pace=spark_latency.Pace(warm_up=5, messages=20, interval_s=0.005),
    collector_s=0.3,
)
"""A smoke test: figures of so little data mean nothing."""


@contextmanager
def started() -> Iterator[SparkSession]:
    """Return a session; an existing session is used, and left running."""
    from pyspark.sql import SparkSession

    from pyspark_gapless.session import session

    theirs = SparkSession.getActiveSession()
    spark = theirs or session("bench", master=MASTER)
    try:
        yield spark
    finally:
        if theirs is None:
            spark.stop()


def measure(
    sizes: Sizes, parts: Sequence[str], folder: Path, tick: Callable[[], None]
) -> dict[str, Any]:
    """Measure the requested parts."""
    found: dict[str, Any] = {}
    if "spool" in parts:
        found["spool"] = append_figures(sizes, folder)
        tick()
    if "collector" in parts:
        sizes_bytes = [size for size, _ in sizes.rows]
        lines = spark_collector.measure(sizes_bytes, sizes.rounds, sizes.collector_s, folder, tick)
        found["collector"] = [asdict(line) for line in lines]
    if "source" in parts or "latency" in parts:
        with started() as spark:
            found["spark"] = spark.version
            if "source" in parts:
                how = (sizes.rounds, sizes.warm_ups, tick)
                cells = [
                    spark_source.measure(spark, folder / "cell", cell, *how) for cell in sizes.cells
                ]
                found["source"] = [asdict(line) for lines in cells for line in lines]
            if "latency" in parts:
                timed = spark_latency.measure(
                    spark, folder, sizes.pace, sizes.rounds, sizes.warm_ups, tick
                )
                found["latency"] = [asdict(line) for line in timed]
    return found


def append_figures(sizes: Sizes, folder: Path) -> Any:
    """Return the figures of bench/spool.py."""
    options = [
        "--json",
        "--mb",
        str(sizes.spool_mb),
        "--rounds",
        str(sizes.rounds),
        "--folder",
        str(folder),
    ]
    command = [sys.executable, str(HERE / "spool.py"), *options]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        raise GaplessError(
            "bench/spool.py has failed: "
            f"{(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
        )
    return json.loads(done.stdout)["figures"]


def conditions(sizes: Sizes, found: dict[str, Any]) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "spark": found.pop("spark", None),
        "master": MASTER,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "rounds": sizes.rounds,
        "rows": {f"{size} B": rows for size, rows in sizes.rows},
    }


def rate(number: float) -> str:
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number / 1e3:.0f} k"


def of(three: Sequence[float]) -> str:
    """Return a median with its spread."""
    return f"{three[0]:.2f} ({three[1]:.2f}-{three[2]:.2f})"


def source_rows(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for line in lines:
        own = line["what"] == line["baseline"]
        low, high = line["rows_per_s_spread"][1:]
        yield (
            f"{line['size_bytes']} B, {line['runs']} runs",
            line["what"],
            "-" if own else of(line["ratio_speed"]),
            "-" if own else of(line["ratio_cpu"]),
            f"{line['ratio_loop'][0]:.1f}",
            f"{rate(line['rows_per_s'])} ({rate(low)}-{rate(high)})",
            line["mb_per_s"],
            line["cpu_s_per_million"],
        )


def collector_rows(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for line in lines:
        yield (
            f"{line['size_bytes']} B",
            line["what"],
            of(line["ratio_speed"]),
            of(line["ratio_cpu"]),
            line["messages_per_s"],
            line["mb_per_s"],
            line["cpu_s_per_million"],
            line["messages_per_commit"],
        )


def picked(
    keys: Sequence[str],
) -> Callable[[Sequence[dict[str, Any]]], Iterator[tuple[object, ...]]]:
    """Return the function that makes rows of some values of each line."""
    return lambda lines: (
        tuple("-" if line[key] is None else line[key] for key in keys) for line in lines
    )


APPEND = (
    "shape",
    "append_no_sync_of_plain",
    "append_fdatasync_of_plain",
    "read_of_plain",
    "append_no_sync_mb_s",
)
LATENCY = (
    "sink",
    "source",
    "ratio_p50",
    "ratio_p99",
    "p50_ms",
    "p99_ms",
    "spooled_p50_ms",
    "spooled_p99_ms",
)
TABLES: dict[str, tuple[str, str, Callable[[Any], Iterator[tuple[object, ...]]]]] = {
    "source": (
        "Spool to Spark",
        "spool|read|x Parquet|CPU x Parquet|x loop|rows/s|MB/s|CPU s/M rows",
        source_rows,
    ),
    "spool": (
        "Appending to a spool",
        "runs|x file|x file, synced|x file, read|MB/s|MB/s, synced|read MB/s",
        picked((*APPEND, "append_fdatasync_mb_s", "read_mb_s")),
    ),
    "collector": (
        "Three senders and one that takes it all in",
        "messages|member|x listener|CPU x listener|messages/s|MB/s|CPU s/M|per commit",
        collector_rows,
    ),
    "latency": (
        "From send to a row",
        "sink|source|x socket, p50|x socket, p99|p50 ms|p99 ms|to the spool, p50 ms|p99 ms",
        picked(LATENCY),
    ),
}


def show(about: dict[str, object], found: dict[str, Any]) -> None:
    screen = Console(width=None if sys.stdout.isatty() else WIDTH)
    screen.print(", ".join(f"{key} {value}" for key, value in about.items()), style="dim")
    for part, (title, heads, rows) in TABLES.items():
        if part in found:
            screen.print(make_table(title, heads.split("|"), rows(found[part])))
    screen.print(
        "x: times as fast (or, of CPU and of milliseconds, as much) as what is named, "
        "in the same round"
    )


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in a single line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message} (--help says what there is)\n")


def round_count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100")
    return int(text)


def row_count(text: str) -> int:
    if not text.isdecimal() or not 1000 <= int(text) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1000 to 100000000")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLineParser(
        prog="bench/spark.py", description="Measure the pipeline into Spark.", allow_abbrev=False
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of tables"
    )
    parser.add_argument(
        "--quick", action="store_true", help="very little of everything, to see that it works"
    )
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="measure this part; all of them by default"
    )
    parser.add_argument(
        "--rounds", type=round_count, metavar="N", help="rounds to take the median of (3)"
    )
    parser.add_argument(
        "--rows",
        type=row_count,
        metavar="N",
        help="rows of 100 B to read (1000000), and a quarter as many of 1 KB",
    )
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where to write; a temporary folder by default"
    )
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    sizes = sizes if options.rounds is None else sizes._replace(rounds=options.rounds)
    if options.rows is not None:
        sizes = sizes._replace(rows=((100, options.rows), (1024, options.rows // 4)))
    parts = options.only or PARTS
    if options.folder is not None and not options.folder.is_dir():
        parser.error(f"--folder {options.folder}: there is no such folder")
    folder = Path(tempfile.mkdtemp(prefix="gapless-bench-spark-", dir=options.folder))
    done = 0
    try:
        quiet = options.json or not sys.stderr.isatty()
        with progress_bar("measure", sizes.steps(parts), quiet=quiet) as progress:

            def tick() -> None:
                nonlocal done
                done += 1
                progress(done)

            found = measure(sizes, parts, folder, tick)
    except Exception as error:
        if not isinstance(error, (GaplessError, Again)) and not type(error).__module__.startswith(
            "pyspark."
        ):
            raise
        print(f"bench/spark.py: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = conditions(sizes, found)
    if options.json:
        print(json.dumps({"conditions": about, **found}, indent=2))
    else:
        show(about, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
