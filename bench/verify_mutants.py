"""How many of the planted bugs of the simulator do the checks of traces see?

For each bug: the first seeds at which the simulator's own checks fail are run again with a trace;
all traces are verified at once. Usage: ``python bench/verify_mutants.py FOLDER``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from gapless.errors import LocalProtocolError
from gapless.sim.mutants.catalogue import MUTANTS
from gapless.sim.mutants.planting import Mutant, planted
from gapless.sim.runner import simulate
from gapless.sim.seed_result import SeedResult
from gapless.trace.incarnations import INCARNATIONS_FILE
from gapless.trace.parquet import rows_to_table, write_table
from pyspark_gapless.session import session
from pyspark_gapless.trace import Trace
from pyspark_gapless.verify import verify

OF_ONE = 100
"""Traces of the mutant N have the seeds from N x OF_ONE on."""
MOST_ROWS = 200_000
"""Maximum number of rows of a run; a longer run is left out."""


def main() -> None:
    """Record, verify, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=40, help="Seeds in which a bug is looked for.")
    parser.add_argument("--runs", type=int, default=2, help="Runs with the bug that are verified.")
    arguments = parser.parse_args()
    caught = {}
    for number, mutant in enumerate(MUTANTS, 1):
        target = arguments.folder / f"{number:03d}"
        if not target.exists():
            record(mutant, number, target, arguments.seeds, arguments.runs)
        caught[number] = (target / "by").read_text().split()
    begin_s = time.perf_counter()
    spark = session("mutants")
    verdict = verify(Trace.read(spark, arguments.folder))
    spark.stop()
    seen: dict[int, set[str]] = {}
    for seed, checks in verdict.failing_seeds.items():
        seen.setdefault(seed // OF_ONE, set()).update(checks)
    for number, mutant in enumerate(MUTANTS, 1):
        print(
            f"{mutant.name:45} simulator {' '.join(caught[number]):12} "
            f"trace {' '.join(sorted(seen.get(number, ())))}"
        )
    recorded = sum(bool(by) for by in caught.values())
    print(
        f"{len(seen)} of {recorded} seen in {verdict.events} events, "
        f"{time.perf_counter() - begin_s:.0f} s"
    )


def record(mutant: Mutant, number: int, target: Path, seeds: int, runs: int) -> None:
    """Write the traces of the first runs with a failed check, and the names of the checks."""
    rows, lines, by = [], [], set()
    done = 0
    for seed in range(seeds):
        outcome = run(mutant, seed, hasty=True)
        if outcome is None or outcome.ok or not sound(mutant, seed):
            continue
        by.add(outcome.violations[0].check)
        traced = run(mutant, seed, hasty=False)
        if traced is None or len(traced.trace or ()) > MOST_ROWS:
            continue
        rows += [row._replace(seed=number * OF_ONE + done) for row in traced.trace or ()]
        lines += [
            incarnation._replace(seed=number * OF_ONE + done).to_json_line()
            for incarnation in traced.incarnations
        ]
        done += 1
        if done == runs:
            break
    target.mkdir(parents=True)
    (target / INCARNATIONS_FILE).write_text("".join(lines), encoding="utf-8")
    if rows:
        write_table(rows_to_table(rows), target / "00001.parquet")
    (target / "by").write_text(" ".join(sorted(by)))
    print(f"{number} {mutant.name}: {done} runs, {len(rows)} rows, seen by {by}", flush=True)


def run(mutant: Mutant, seed: int, *, hasty: bool) -> SeedResult | None:
    """Return the outcome of a seed with the bug planted; None if the run broke off."""
    with planted(mutant):
        try:
            return simulate(
                seed,
                profile=mutant.profile or None,
                membership=mutant.membership,
                fail_fast=hasty,
                trace=not hasty,
            )
        except LocalProtocolError:
            return None


def sound(mutant: Mutant, seed: int) -> bool:
    """Return whether the seed passes without the bug."""
    return simulate(
        seed, profile=mutant.profile or None, membership=mutant.membership, fail_fast=True
    ).ok


if __name__ == "__main__":
    main()
