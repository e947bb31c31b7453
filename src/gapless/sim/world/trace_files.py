"""Traces of simulated runs on disk: a file set for a chunk of seeds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import GaplessError
from gapless.output.private_files import make_inner_folder, make_private_folder, open_private
from gapless.trace.incarnations import INCARNATIONS_FILE
from gapless.trace.parquet import import_pyarrow, rows_to_table, write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.sim.seed_result import SeedResult

SEEDS_PER_FILE_SET = 16
"""The number of seeds in a file set."""


def prepare_folder(folder: Path) -> None:
    """Make the folder of a trace; refuse a folder with runs, because incarnations would clash."""
    import_pyarrow()
    try:
        make_private_folder(folder)
        found = sorted(folder.glob("seeds-*"))
    except OSError as error:
        raise GaplessError(
            f"cannot write a trace to {folder}: {error}; use a writable folder"
        ) from None
    if found:
        raise GaplessError(
            f"{folder} already has a trace ({found[0].name}); use another "
            "folder, or remove the trace"
        )


def write_set(
    folder: str, run: Callable[[int], SeedResult], seeds: Sequence[int]
) -> list[SeedResult]:
    """Run a chunk of seeds and write the trace; return the outcomes without their traces."""
    place = Path(folder) / f"seeds-{seeds[0]:019d}-{len(seeds)}"
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    make_inner_folder(fresh)
    outcomes: list[SeedResult] = []
    rows, lines = [], []
    for seed in seeds:
        outcome = run(seed)
        rows += outcome.trace or []
        lines += [incarnation.to_json_line() for incarnation in outcome.incarnations]
        outcome.trace, outcome.incarnations = None, []
        outcomes.append(outcome)
    side_file = fresh / INCARNATIONS_FILE
    with open(side_file, "w", encoding="utf-8", opener=open_private) as file:
        file.writelines(lines)
    write_table(rows_to_table(rows), fresh / "00001.parquet")
    fresh.rename(place)
    return outcomes


def chunks(seeds: Sequence[int]) -> list[Sequence[int]]:
    """Return the seeds in chunks; each chunk becomes a file set."""
    return [seeds[at : at + SEEDS_PER_FILE_SET] for at in range(0, len(seeds), SEEDS_PER_FILE_SET)]
