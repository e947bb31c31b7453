"""A sweep: submit missing runs in chunks, collect the rows, write files at intervals.

On planning: a chunk has as many runs as take ``TARGET_TASK_S`` on each core, by the cost of
finished runs; near the end, and without any finished run, a chunk is smaller, so that all cores end
together. Another chunk is always queued beyond the slots of the cores, so that no core waits for
this process.

On writing: a file is written when ``WRITE_SHARE`` of the elapsed time has passed since the last
file, but not within ``MIN_WRITE_INTERVAL_S``. So a killed sweep loses a fiftieth, and a long sweep
does not leave many tiny files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from gapless.errors import ConfigError
from pyspark_gapless.runtime.spark_config import parse_master
from pyspark_gapless.runtime.spark_install import (
    INSTALL_SPARK_HINT,
    SparkMissingError,
    find_installation,
)
from pyspark_gapless.sweep.cell import SweepCell, code_digest
from pyspark_gapless.sweep.executors import SweepExecutor, local_executor, spark_executor
from pyspark_gapless.sweep.results import RequestedRuns, SweepResults
from pyspark_gapless.sweep.summary import SweepSummary, summarise
from pyspark_gapless.sweep.task import SweepRun

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_gapless.sweep.results import Flags

TARGET_TASK_S: Final = 3.0
"""How long a task should take: long beside its start, short for progress reports."""
MIN_TASK_S: Final = 0.75
"""Minimum duration of a task, even near the end."""
MIN_WRITE_INTERVAL_S: Final = 2.0
"""Least and most time between two files of results."""
MAX_WRITE_INTERVAL_S: Final = 60.0
WRITE_SHARE: Final = 0.02
MAX_RUNS: Final = 200_000_000
"""More runs are not kept account of at a time."""
_POLL_INTERVAL_S: Final = 0.5


@dataclass(slots=True)
class SweepProgress:
    """Progress of a sweep: ``before`` runs were present, ``done`` are present now, of ``total``."""

    total: int
    before: int
    done: int = 0
    failed: int = 0
    written_s: float = 0.0
    began_s: float = field(default_factory=monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the sweep."""
        return monotonic() - self.began_s

    @property
    def per_s(self) -> float:
        """Runs a second."""
        return (self.done - self.before) / max(self.elapsed_s, 1e-9)


class SweepPlan(NamedTuple):
    """Every cell with every seed, and where results go; ``workers`` runs without Spark."""

    cells: Sequence[SweepCell]
    seeds: range
    output: Path
    master: str | None = None
    workers: int | None = None


class SweepOutcome(NamedTuple):
    """The runs done and present; ``other_code_runs`` were of other code and are repeated."""

    progress: SweepProgress
    summary: SweepSummary
    slots: int
    other_code_runs: int


def run(
    plan: SweepPlan, on_progress: Callable[[SweepProgress], None], stop: threading.Event
) -> SweepOutcome:
    """Run the missing runs of a plan, and return the outcome."""
    _check_installed(spark=plan.workers is None)
    if plan.master is not None:
        parse_master(plan.master)
    wanted, results = (
        RequestedRuns(plan.cells, plan.seeds, code_digest()),
        SweepResults(plan.output),
    )
    if len(wanted) > MAX_RUNS:
        raise ConfigError(
            f"{len(plan.cells):,} cells with {len(plan.seeds):,} seeds are "
            f"{len(wanted):,} runs; the maximum is {MAX_RUNS:,}: split the "
            "sweep with --seeds and --first"
        )
    slots = others = 0
    with results.locked():
        progress = SweepProgress(len(wanted), int(results.completed(wanted).sum()))
        progress.done = progress.before
        on_progress(progress)
        if progress.done < progress.total:
            others = int(results.completed(wanted, of_other_code=True).sum())
            log_path = plan.output / "spark.log"
            with (
                spark_executor(plan.master, log_path)
                if plan.workers is None
                else local_executor(plan.workers) as engine
            ):
                slots = engine.slots
                progress = sweep(wanted, engine, results, on_progress=on_progress, stop=stop)
    return SweepOutcome(progress, summarise(results, wanted), slots, others)


def _check_installed(*, spark: bool) -> None:
    if spark:
        find_installation()
    for package in ("pyarrow", "numpy"):
        if find_spec(package) is None:
            raise SparkMissingError(
                f"{package}, needed to store results, is not installed", INSTALL_SPARK_HINT
            )


class ChunkSizer:
    """Computes the number of runs in a chunk from the cost of finished runs."""

    def __init__(self, engine: SweepExecutor) -> None:
        self._engine = engine
        self._runs = 0
        self._spent_s = 0.0

    def record(self, runs: int, spent_s: float) -> None:
        """Record the cost of finished runs."""
        self._runs += runs
        self._spent_s += spent_s

    def next_size(self, left: int) -> int:
        """Return how many runs the next chunk should have if ``left`` are not yet scheduled."""
        slots, parts = self._engine.slots, self._engine.parts
        if not self._runs:
            return parts
        each_s = max(self._spent_s / self._runs, 1e-6)
        fair = left / (2 * slots)
        known = 2 * self._runs / slots
        task = min(max(fair, MIN_TASK_S / each_s), TARGET_TASK_S / each_s, max(known, 1))
        return max(1, round(task)) * parts


def sweep(
    wanted: RequestedRuns,
    engine: SweepExecutor,
    results: SweepResults,
    *,
    on_progress: Callable[[SweepProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> SweepProgress:
    """Run the wanted runs that are not in ``results`` yet, and add the rows; return the outcome.

    When ``stop`` is set, no further chunk is submitted, and the rows of running chunks are still
    added.
    """
    stop = stop or threading.Event()
    there = results.completed(wanted)
    before = int(there.sum())
    progress = SweepProgress(len(wanted), before, before)
    pace = ChunkSizer(engine)
    todo, left = _missing(wanted, there), len(wanted) - before
    under_way: set[Future[pa.Table]] = set()
    on_progress(progress)
    while True:
        while left and len(under_way) < engine.max_in_flight and not stop.is_set():
            chunk = _shuffled(islice(todo, pace.next_size(left)))
            left -= len(chunk)
            under_way.add(engine.submit(chunk, wanted.code))
        if not under_way:
            break
        ended, under_way = wait(under_way, timeout=_POLL_INTERVAL_S, return_when=FIRST_COMPLETED)
        # Finished runs are kept, also after another failure.
        for future in sorted(ended, key=lambda one: one.exception() is not None):
            _collect(future, engine, results, progress, pace)
        if progress.elapsed_s - progress.written_s >= _write_every_s(progress.elapsed_s):
            progress.written_s = progress.elapsed_s if results.write() else progress.written_s
        on_progress(progress)
    results.write()
    return progress


def _collect(
    future: Future[pa.Table],
    engine: SweepExecutor,
    results: SweepResults,
    progress: SweepProgress,
    pace: ChunkSizer,
) -> None:
    import pyarrow.compute as pc

    try:
        table = future.result()
    except Exception as error:
        explained = engine.explain_failure(error)
        if explained is None:
            raise
        raise explained from error
    results.add(table)
    pace.record(table.num_rows, pc.sum(table["cpu_s"]).as_py() or 0.0)
    progress.done += table.num_rows
    bad = pc.or_(
        pc.is_valid(table["error"]), pc.greater(pc.list_value_length(table["violations"]), 0)
    )
    progress.failed += pc.sum(bad).as_py() or 0


def _write_every_s(elapsed_s: float) -> float:
    return min(max(MIN_WRITE_INTERVAL_S, WRITE_SHARE * elapsed_s), MAX_WRITE_INTERVAL_S)


def _missing(wanted: RequestedRuns, there: Flags) -> Iterator[SweepRun]:
    """Yield missing runs seed by seed: a stopped sweep has runs of every cell."""
    import numpy as np

    cells = wanted.cells
    for number in np.flatnonzero(~there):
        offset, at = divmod(int(number), len(cells))
        yield SweepRun(cells[at], wanted.seeds[offset])


def _shuffled(runs: Iterator[SweepRun]) -> list[SweepRun]:
    """Return the runs in an order unrelated to their cost, so that all parts cost the same."""
    return sorted(
        runs, key=lambda run: blake2b(f"{run.cell.key}/{run.seed}".encode(), digest_size=8).digest()
    )
