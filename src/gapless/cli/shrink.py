"""``gapless shrink``: make a scenario of a few lines out of a failing seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gapless.cli.output import console, json_option, make_table, print_json, progress_bar

if TYPE_CHECKING:
    from gapless.sim.shrink import Shrunk


@click.command()
@click.argument("seed", type=click.IntRange(0), required=False)
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path, file_okay=False), help="Where the scenario is written."
)
@click.option("--mutant", metavar="NAME", default="", help="Plant this bug first (see: gapless mutants).")
@click.option("--all-mutants", is_flag=True, help="Hunt and shrink every planted bug instead of a seed.")
@click.option("--messages", type=click.IntRange(1), default=None, help="Messages of each member  [default: as sim]")
@json_option
def shrink(
    seed: int | None, folder: Path | None, mutant: str, all_mutants: bool, messages: int | None, as_json: bool
) -> int:
    """Shrink the failing run of SEED to a scenario file, and show it.

    The scenario is written to the folder of -o (tests/scenarios if it is not given) under the name of the check that
    fails, or of the planted bug. Leaves with 1 if the seed fails by itself, with 0 if a planted bug made it fail, and
    with 2 if there is nothing to shrink.
    """
    if all_mutants:
        if seed is not None or mutant:
            raise click.UsageError("--all-mutants hunts by itself; leave SEED and --mutant out")
        return _shrink_all(folder or Path("tests/scenarios/planted"), as_json)
    if seed is None:
        raise click.UsageError("name the SEED to shrink, or give --all-mutants")
    from gapless.sim.scenario import find_mutant
    from gapless.sim.shrink import MOST_TRIES, shrink_seed
    from gapless.sim.swarm import MESSAGES

    bug = find_mutant(mutant).name if mutant else ""
    with progress_bar("replays", MOST_TRIES, quiet=as_json) as done:
        found = shrink_seed(seed, bug=bug, messages=messages or MESSAGES, progress=done)
    if found is None:
        raise click.UsageError(f"seed {seed} does not fail, so there is nothing to shrink")
    path = _write(found, folder or Path("tests/scenarios"))
    if as_json:
        print_json({"file": str(path), **found.as_dict()})
    else:
        click.echo(found.scenario.text())
        click.echo(f"{found.script_lines} lines after {found.tries} replays, written to {path}")
        if not bug:
            click.echo(
                f"For the list of seeds that once failed (tests/seeds/regressions.txt):\n{seed}  # {found.check}"
            )
    return 0 if bug else 1


def _shrink_all(folder: Path, as_json: bool) -> int:
    from gapless.sim.mutants import MUTANTS
    from gapless.sim.shrink import shrink_bug

    results: list[tuple[str, Shrunk | None]] = []
    with progress_bar("planted bugs", len(MUTANTS), quiet=as_json) as done:
        for number, mutant in enumerate(MUTANTS, 1):
            found = shrink_bug(mutant.name)
            if found is not None:
                _write(found, folder)
            results.append((mutant.name, found))
            done(number)
    if as_json:
        print_json({name: None if found is None else found.as_dict() for name, found in results})
        return 0
    rows = [
        (name, "lives", "", "", "")
        if found is None
        else (name, found.check, found.seed, found.script_lines, folder / found.file_name)
        for name, found in results
    ]
    console().print(make_table("Planted bugs", ("bug", "check", "seed", "lines", "file"), rows))
    return 0


def _write(found: Shrunk, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / found.file_name
    path.write_text(found.scenario.text(), encoding="utf-8")
    return path
