"""The figures of a sweep for a report, from the folder of results alone.

Needs pyarrow and no Spark: the table of results is small. Cells and seeds are taken from the rows.
If a folder has runs of several versions of the code, the runs of the newest files are reported, and
the others are only counted.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from gapless.errors import ConfigError
from pyspark_gapless.sweep.cell import SweepCell
from pyspark_gapless.sweep.results import RUNS_DIR, RequestedRuns, SweepResults
from pyspark_gapless.sweep.schema import GRID
from pyspark_gapless.sweep.summary import summarise

_PARAMETERS = (
    "kind",
    "profile",
    "members",
    "messages",
    "loss",
    "size_bytes",
    "pace_ns",
    "knobs",
    "capacity",
    "mutant",
)
_COLUMNS = ("key", "seed", "version", "code", *_PARAMETERS)


class _CodeVersion(NamedTuple):
    version: str
    code: str


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is the output of a sweep."""
    return next((folder / RUNS_DIR).glob("[!.]*.parquet"), None) is not None


def figures(folder: Path, *, title: str = "") -> dict[str, Any]:
    """Return the figures of the sweep in a folder, ready for JSON."""
    if not is_sweep(folder):
        raise ConfigError(
            f"{folder}: there is no sweep here ({RUNS_DIR}/*.parquet); create "
            f"one with gapless sweep --output {folder}"
        )
    results = SweepResults(folder)
    cells, seeds, newest, other = _newest_runs(results)
    wanted = RequestedRuns(cells, range(min(seeds), max(seeds) + 1), newest.code)
    wanted.version = newest.version
    summary = summarise(results, wanted)
    return {
        "kind": "sweep",
        "title": title,
        "version": newest.version,
        "code": newest.code,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "other_runs": other,
        **summary.as_dict(),
    }


def _newest_runs(results: SweepResults) -> tuple[list[SweepCell], set[int], _CodeVersion, int]:
    """Return cells and seeds of the newest code in a folder, the code, and the other runs."""
    counts: Counter[_CodeVersion] = Counter()
    cells: dict[_CodeVersion, dict[str, SweepCell]] = {}
    seeds: dict[_CodeVersion, set[int]] = {}
    newest = _CodeVersion("", "")
    for path in sorted(
        results.files.glob("[!.]*.parquet"), key=lambda path: path.stat().st_mtime_ns
    ):
        for row in _rows(path):
            newest = _CodeVersion(row["version"], row["code"])
            counts[newest] += 1
            known = cells.setdefault(newest, {})
            if row["key"] not in known:
                known[row["key"]] = _cell(row)
            seeds.setdefault(newest, set()).add(row["seed"])
    if not counts:
        raise ConfigError(
            f"{results.folder}: no run of this sweep has finished yet; continue "
            "with the same --output"
        )
    return list(cells[newest].values()), seeds[newest], newest, counts.total() - counts[newest]


def _rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        found: list[dict[str, Any]] = pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (pa.ArrowException, KeyError) as error:
        raise ConfigError(f"{path} is not a result file of a sweep: {error}") from error
    return found


def _cell(row: dict[str, Any]) -> SweepCell:
    """Return the cell with the key of a row.

    A row does not show whether the capacity was given or is the profile's default, nor whether the
    loss was written as a whole number; the key does.
    """
    knobs = dict(row["knobs"] or ())
    loss = row["loss"]
    whole = {**knobs, "capacity": str(row["capacity"])}
    for loss_percent, chosen in product(
        [loss] if loss is None else [loss, int(loss)], (knobs, whole)
    ):
        cell = SweepCell(
            row["kind"],
            row["profile"] if row["kind"] == GRID else None,
            row["members"],
            row["messages"],
            loss_percent,
            row["size_bytes"],
            row["pace_ns"],
            tuple(sorted(chosen.items())),
            row["mutant"] or "",
        )
        for one in (cell, cell._replace(profile=row["profile"])):
            if one.key == row["key"]:
                return one
    raise ConfigError(
        f"the runs of cell {row['key']} were made by another version: {row['version']}; sweep again"
    )
