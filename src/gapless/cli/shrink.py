"""``gapless shrink``: make a scenario of a few lines out of a failing seed."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gapless.cli.output import console, json_option, knob_options, make_table, print_json, progress_bar, read_config
from gapless.cli.sim import cores

if TYPE_CHECKING:
    from gapless.sim.shrink import Origin, Shrunk


@click.command()
@click.argument("seed", type=click.IntRange(0), required=False)
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path, file_okay=False), help="Where the scenario is written."
)
@click.option("--mutant", metavar="NAME", default="", help="Plant this bug first (see: gapless mutants).")
@click.option("--all-mutants", is_flag=True, help="Hunt and shrink every planted bug instead of a seed.")
@click.option(
    "--messages",
    type=click.IntRange(1, 10_000),
    default=None,
    help="Messages per member.  [default: 100; with --membership 40]",
)
@click.option("--members", type=click.IntRange(2, 26), default=None, help="Members in the group (default: by seed).")
@click.option("--workers", type=click.IntRange(1, 256), default=None, help="Processes for --all-mutants.")
@click.option("--membership", is_flag=True, help="The groups find and make their views by themselves.")
@knob_options
@json_option
def shrink(  # noqa: PLR0917 - one parameter per option
    seed: int | None,
    folder: Path | None,
    mutant: str,
    all_mutants: bool,
    messages: int | None,
    members: int | None,
    workers: int | None,
    membership: bool,
    profile: str | None,
    config_file: Path | None,
    properties: str | None,
    as_json: bool,
) -> int:
    """Shrink the failing run of SEED to a scenario file, and show it.

    The options that say what is run are those of "gapless sim". With --mutant and no SEED the seeds are tried until the
    bug shows. The scenario is written to the folder of -o (if it is not given: tests/scenarios, or its folder planted)
    under the name of the check that fails, or of the planted bug. Exits with 1 if the seed fails by itself, with 0 if a
    planted bug made it fail, with 2 if there is nothing to shrink.
    """
    config = read_config(profile, config_file, properties)
    given = config_file is not None or properties is not None
    if seed is None and (given or profile is not None):
        raise click.UsageError("knobs go with a SEED; a hunt for a planted bug draws them from its seeds")
    if all_mutants:
        if seed is not None or mutant:
            raise click.UsageError("--all-mutants hunts by itself; leave SEED and --mutant out")
        return _shrink_all(folder or Path("tests/scenarios/planted"), workers or cores(), as_json)
    from gapless.sim.mutants import named
    from gapless.sim.run import usual_messages
    from gapless.sim.shrink import Origin

    bug = named(mutant).name if mutant else ""
    if seed is None and bug:
        return _shrink_bug(bug, folder or Path("tests/scenarios/planted"), as_json)
    if seed is None:
        raise click.UsageError("name the SEED to shrink, a --mutant to hunt, or give --all-mutants")
    messages = messages or usual_messages(membership=membership)
    origin = Origin(seed, messages, members, config if given else None, profile, membership)
    return _shrink_seed(origin, bug, folder or Path("tests/scenarios", "planted" if bug else ""), as_json)


def _shrink_seed(origin: Origin, bug: str, folder: Path, as_json: bool) -> int:
    from gapless.sim.shrink import MOST_TRIES, shrink_seed

    with progress_bar("replays", MOST_TRIES, quiet=as_json or not sys.stderr.isatty()) as done:
        found = shrink_seed(origin, bug=bug, progress=done)
    if found is None:
        raise click.UsageError(f"seed {origin.seed} does not fail, so there is nothing to shrink")
    return _tell(found, folder, as_json)


def _shrink_bug(bug: str, folder: Path, as_json: bool) -> int:
    from gapless.sim.shrink import shrink_bug

    with progress_bar("seeds", None, quiet=as_json or not sys.stderr.isatty()) as done:
        found = shrink_bug(bug, progress=done)
    if found is None:
        raise click.UsageError(f"no seed fails because of {bug!r}, so there is nothing to shrink")
    return _tell(found, folder, as_json)


def _tell(found: Shrunk, folder: Path, as_json: bool) -> int:
    bug, path = found.scenario.bug, _write(found, folder)
    if as_json:
        print_json({"file": str(path), **found.as_dict()})
    else:
        click.echo(found.scenario.text())
        click.echo(f"{found.script_lines} lines after {found.tries} replays, written to {path}")
        if not bug:
            click.echo("For the list of seeds that once failed, tests/seeds/regressions.txt:")
            click.echo(f"{found.origin.seed} {found.origin.messages}  # {found.check}")
    return 0 if bug else 1


def _shrink_all(folder: Path, workers: int, as_json: bool) -> int:
    from gapless.sim.mutants import MUTANTS
    from gapless.sim.shrink import shrink_bug

    results: dict[str, Shrunk | None] = {}
    quiet = as_json or not sys.stderr.isatty()
    with progress_bar("planted bugs", len(MUTANTS), quiet=quiet) as done, ProcessPoolExecutor(workers) as pool:
        names = [mutant.name for mutant in MUTANTS]
        for name, found in zip(names, pool.map(shrink_bug, names), strict=True):
            results[name] = found
            if found is not None:
                _write(found, folder)
            done(len(results))
    if as_json:
        print_json({name: None if found is None else found.as_dict() for name, found in results.items()})
        return 0
    rows = [
        (name, "lives", "", "", "")
        if found is None
        else (name, found.check, found.origin.command, found.script_lines, found.file_name)
        for name, found in results.items()
    ]
    console().print(make_table(f"Planted bugs, in {folder}", ("bug", "check", "from", "lines", "file"), rows))
    return 0


def _write(found: Shrunk, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / found.file_name
    path.write_text(found.scenario.text(), encoding="utf-8")
    return path
