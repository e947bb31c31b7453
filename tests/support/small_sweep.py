"""What the tests of sweeps share: a small sweep, and rows to compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_gapless.sweep.cell import code_digest
from pyspark_gapless.sweep.grid_file import read_grid
from pyspark_gapless.sweep.results import RequestedRuns, SweepResults
from pyspark_gapless.sweep.schema import COLUMNS
from pyspark_gapless.sweep.task import SweepRun, run_row

if TYPE_CHECKING:
    from pathlib import Path

SMALL = """
[grid]
profile = ["nakack4", "ordered"]
members = 2
loss = [0, 20]
capacity = 4

[work]
messages = 6

[hunt]
messages = 3
members = 2
"""
"""Four cells of a grid and two hunts, of a few milliseconds each."""

WHERE = ("cpu_s", "python")
"""Columns about the circumstances of a run, not about its result."""


def small(seeds: int, text: str = SMALL) -> RequestedRuns:
    return RequestedRuns(read_grid(text), range(seeds), code_digest())


def rows_in_process(wanted: RequestedRuns) -> list[dict[str, Any]]:
    """Return the rows of all runs, done here one after the other."""
    runs = [SweepRun(cell, seed) for cell in wanted.cells for seed in wanted.seeds]
    return comparable([run_row(run, wanted.code) for run in runs])


def rows_of(folder: Path, wanted: RequestedRuns) -> list[dict[str, Any]]:
    """Return the rows that a sweep has left in a folder."""
    return comparable(
        [row for batch in SweepResults(folder).scan(wanted) for row in batch.to_pylist()]
    )


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in a fixed order, without the columns of circumstances."""
    kept = [{name: row[name] for name in COLUMNS if name not in WHERE} for row in rows]
    return sorted(kept, key=lambda row: (row["key"], row["seed"]))
