"""Traces of simulated runs on disk: one file set for a chunk of seeds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import GaplessError
from gapless.trace.incarnations import INCARNATIONS_FILE
from gapless.trace.parquet import import_pyarrow, rows_to_table, write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.sim.seed_result import SeedResult

SEEDS_PER_FILE_SET = 16
"""So many seeds are one file set."""


def prepare_folder(folder: Path) -> None:
    """Make the folder of a trace; refuse one that holds runs, whose incarnations would clash."""
    import_pyarrow()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(folder.glob("seeds-*"))
    except OSError as error:
        raise GaplessError(
            f"cannot write a trace to {folder}: {error}; name a folder that can be written"
        ) from None
    if found:
        raise GaplessError(
            f"{folder} holds a trace already ({found[0].name}): name another folder, or remove it"
        )


def write_set(
    folder: str, run: Callable[[int], SeedResult], seeds: Sequence[int]
) -> list[SeedResult]:
    """Run a chunk of seeds and write their trace; the outcomes come back without it."""
    place = Path(folder) / f"seeds-{seeds[0]:019d}-{len(seeds)}"
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    outcomes: list[SeedResult] = []
    rows, lines = [], []
    for seed in seeds:
        outcome = run(seed)
        rows += outcome.trace or []
        lines += [incarnation.to_json_line() for incarnation in outcome.incarnations]
        outcome.trace, outcome.incarnations = None, []
        outcomes.append(outcome)
    (fresh / INCARNATIONS_FILE).write_text("".join(lines), encoding="utf-8")
    write_table(rows_to_table(rows), fresh / "00001.parquet")
    fresh.rename(place)
    return outcomes


def chunks(seeds: Sequence[int]) -> list[Sequence[int]]:
    """Return the seeds in chunks, each of which becomes a file set."""
    return [seeds[at : at + SEEDS_PER_FILE_SET] for at in range(0, len(seeds), SEEDS_PER_FILE_SET)]
