"""The work of a task: simulate runs in sequence, and return the rows.

A run is a pure function of cell, seed and code; only ``cpu_s`` and ``python`` depend on the
machine. A run with an error is a row like any other, with the error in a column: a bad seed does
not end a sweep.
"""

from __future__ import annotations

import platform
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gapless import __version__
from gapless.sim.coverage.membership_coverage import REQUIRED_MEMBERSHIP_COVERAGE
from gapless.sim.coverage.stream_coverage import REQUIRED_STREAM_COVERAGE
from gapless.sim.mutants.catalogue import plant
from gapless.sim.profile_cost import run_cell
from gapless.sim.runner import simulate
from gapless.sim.seed_result import SeedResult
from pyspark_gapless.sweep.cell import SweepCell
from pyspark_gapless.sweep.schema import COLUMNS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 16
"""Number of rows that a task returns at once: few, so that rows do not pile up, but several."""
_DIGITS: Final = 7


class SweepRun(NamedTuple):
    """A simulated run to do."""

    cell: SweepCell
    seed: int


def make_task(
    runs: Sequence[SweepRun], parts: int, code: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow``: each task does every n-th run of its chunk."""

    def simulate_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from record_batches(runs[part::parts], code)

    return simulate_part


def record_batches(runs: Iterable[SweepRun], code: str) -> Iterator[pa.RecordBatch]:
    """Do some runs; yield the rows, a few at a time."""
    import pyarrow as pa

    schema, rows = arrow_schema(), (run_row(run, code) for run in runs)
    while some := list(islice(rows, BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema=schema)


def run_table(runs: Sequence[SweepRun], code: str) -> pa.Table:
    """Do some runs and return all rows."""
    import pyarrow as pa

    return pa.Table.from_batches(record_batches(runs, code), schema=arrow_schema())


def run_row(run: SweepRun, code: str) -> dict[str, Any]:
    """Do a run and return the row."""
    cell, seed = run
    config = cell.config()
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {
        "key": cell.key,
        "seed": seed,
        "version": __version__,
        "code": code,
        "python": platform.python_version(),
        "kind": cell.kind,
        "profile": cell.profile,
        "members": cell.members,
        "loss": cell.loss_percent,
        "capacity": None if config is None else config.capacity,
        "knobs": list(cell.knobs),
        "messages": cell.messages,
        "size_bytes": cell.size_bytes,
        "pace_ns": cell.pace_ns,
        "mutant": cell.mutant or None,
        "faults": [],
        "violations": [],
    }
    began_s = process_time()
    try:
        row |= _run_hunt(cell, seed) if config is None else _run_grid_cell(cell, seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding of this seed
        row["error"] = _format_error(error)
    row["cpu_s"] = round(process_time() - began_s, 4)
    return row


def _format_error(error: Exception) -> str:
    """Return an error in a line, with the place of the raise."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
    return f"{type(error).__name__}: {error} ({where})"


def _run_hunt(cell: SweepCell, seed: int) -> dict[str, Any]:
    with plant(cell.mutant):
        outcome = simulate(
            seed,
            members=cell.members,
            messages=cell.messages,
            profile=cell.profile,
            membership=cell.membership,
        )
    must_happen = REQUIRED_MEMBERSHIP_COVERAGE if cell.membership else REQUIRED_STREAM_COVERAGE
    seen = sorted(outcome.seen.intersection(must_happen))
    return {
        "character": outcome.character,
        "profile": outcome.profile,
        "seen": seen,
        **_common_columns(outcome),
    }


def _run_grid_cell(cell: SweepCell, seed: int) -> dict[str, Any]:
    assert cell.profile is not None
    assert cell.loss_percent is not None
    found = run_cell(
        cell.profile, cell.loss_percent, cell.workload(seed), cell.config(), cell.mutant
    )
    assert found.outcome is not None
    return {
        **_common_columns(found.outcome),
        "sent": found.sent,
        "expected": found.expected,
        "delivered": found.delivered,
        "span_ns": found.span_ns,
        "p50_ns": found.p50_ns,
        "p99_ns": found.p99_ns,
        "max_ns": found.max_ns,
        "latency": list(histogram(found.latency_ns).items()),
        "frames": found.frames,
        "bytes": found.sizes_bytes,
        "frames_lost": found.frames_lost,
        "peak_window": found.peak_window,
        "stalls": found.stalls,
    }


def _common_columns(outcome: SeedResult) -> dict[str, Any]:
    return {
        "digest": outcome.digest,
        "sent": outcome.messages,
        "repairs": outcome.repairs,
        "events": outcome.events,
        "steps": outcome.steps,
        "simulated_ns": outcome.simulated_ns,
        "faults": sorted(outcome.faults.items()),
        "violations": [violation._asdict() for violation in outcome.violations],
    }


def histogram(latency_ns: Mapping[int, int]) -> dict[int, int]:
    """Return a histogram of latencies, rounded up to 7 binary digits: by less than 1.6 per cent."""
    found: Counter[int] = Counter()
    for value_ns, count in latency_ns.items():
        found[rounded_up(value_ns)] += count
    return dict(sorted(found.items()))


def rounded_up(value: int) -> int:
    """Return the least number of 7 binary digits and zeros that is not below ``value``."""
    shift = max(0, value.bit_length() - _DIGITS)
    return -(-value >> shift) << shift
