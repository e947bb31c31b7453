"""``gapless mutants``: plant bugs in the machine, and find the check to catch each."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.parameters import available_cores
from gapless.cli.rendering import console, json_option, make_table, print_json, progress_bar

if TYPE_CHECKING:
    from gapless.sim.mutants.hunt import MutantVerdict


@click.command()
@click.option(
    "--seeds",
    type=click.IntRange(1, 1_000_000),
    default=50,
    show_default=True,
    help="Seeds to try for each bug.",
)
@click.option("--only", default=None, metavar="NAME", help="Plant only the bug with this name.")
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=None,
    help="Processes (default: one per core).",
)
@json_option
def mutants(seeds: int, only: str | None, workers: int | None, as_json: bool) -> int:
    """Plant bugs in turn, and count the seeds until a check fails.

    Each bug is a small change to a function of the real machine. The exit code is 1 if a bug
    survives.
    """
    from gapless.sim.mutants.catalogue import MUTANTS, mutant_by_name
    from gapless.sim.mutants.hunt import hunt_all

    chosen = MUTANTS if only is None else (mutant_by_name(only),)
    began_s = perf_counter()
    with progress_bar("planted bugs", len(chosen), quiet=as_json) as done:
        verdicts = hunt_all(chosen, seeds, workers or available_cores(), done)
    killed = [verdict for verdict in verdicts if verdict.check]
    report = _report(verdicts, killed, perf_counter() - began_s)
    if as_json:
        print_json(report)
    else:
        rows = [
            (v.mutant.name, v.mutant.bug, v.mutant.profile or "any", v.check or "survived", v.seeds)
            for v in verdicts
        ]
        columns = ("planted bug", "what is wrong", "profile", "caught by", "seeds")
        console().print(
            make_table(f"{len(killed)} of {len(verdicts)} planted bugs caught", columns, rows)
        )
    return 0 if len(killed) == len(verdicts) else 1


def _report(
    verdicts: list[MutantVerdict], killed: list[MutantVerdict], wall_s: float
) -> dict[str, Any]:
    return {
        "planted": len(verdicts),
        "killed": len(killed),
        "survived": [verdict.mutant.name for verdict in verdicts if not verdict.check],
        "median_seeds": median([verdict.seeds for verdict in killed]) if killed else None,
        "wall_seconds": round(wall_s, 3),
        "table": [
            {
                "name": v.mutant.name,
                "bug": v.mutant.bug,
                "profile": v.mutant.profile,
                "check": v.check,
                "seeds": v.seeds,
                "seed": v.seed,
            }
            for v in verdicts
        ],
    }
