"""``gapless shrink``: make a scenario of a few lines out of a failing seed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gapless.cli.lab.compare import loss_percent, pace_ns
from gapless.cli.parameters import SHARE, available_cores
from gapless.cli.rendering import (
    config_options,
    console,
    echo,
    json_option,
    make_table,
    mutant_option,
    print_json,
    progress_bar,
    read_config,
    resolve_mutant,
)

if TYPE_CHECKING:
    from gapless.sim.profile_cost import ProfileCellOrigin
    from gapless.sim.shrink.shrinker import SeedOrigin, ShrinkResult


@click.command()
@click.argument("seed", type=click.IntRange(0), required=False)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the scenario.",
)
@mutant_option
@click.option(
    "--all-mutants", is_flag=True, help="Hunt and shrink every planted bug instead of a seed."
)
@click.option(
    "--messages",
    type=click.IntRange(1, 10_000),
    default=None,
    help="Messages per member.  [default: 100; with --membership 40]",
)
@click.option(
    "--members",
    type=click.IntRange(2, 26),
    default=None,
    help="Members in the group (default: by seed).",
)
@click.option(
    "--workers", type=click.IntRange(1, 256), default=None, help="Processes for --all-mutants."
)
@click.option(
    "--membership", is_flag=True, help="Let the groups form their views, as in gapless sim."
)
@click.option(
    "--loss",
    type=SHARE,
    help="Shrink SEED as gapless compare runs it with --profile at this loss.",
)
@click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(0, 1_000_000),
    help="Bytes per message, with --loss.",
)
@click.option("--pace", metavar="TIME", help="Time between two messages of a member, with --loss.")
@config_options
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
    loss: float | None,
    size_bytes: int | None,
    pace: str | None,
    profile: str | None,
    config_file: Path | None,
    properties: str | None,
    as_json: bool,
) -> int:
    """Shrink the failing run of SEED to a scenario file, and print the scenario.

    The run has the options of "gapless sim"; with --loss, the options of "gapless compare". With
    --mutant and without SEED, seeds are tried until the bug shows. The scenario is written to the
    folder of -o (default: tests/scenarios, for a planted bug tests/scenarios/planted), under the
    name of the failed check or of the planted bug. The exit code is 1 if the seed fails without a
    planted bug, 0 with a planted bug, 2 if the run does not fail.
    """
    config = read_config(profile, config_file, properties)
    given = config_file is not None or properties is not None
    if seed is None and (given or profile is not None):
        raise click.UsageError(
            "settings go with a SEED; a hunt for a planted bug draws them from its seeds"
        )
    if all_mutants:
        if seed is not None or mutant:
            raise click.UsageError("--all-mutants hunts by itself; leave SEED and --mutant out")
        return _shrink_all(
            folder or Path("tests/scenarios/planted"), workers or available_cores(), as_json
        )
    from gapless.sim.runner import default_messages
    from gapless.sim.shrink.shrinker import SeedOrigin

    bug = resolve_mutant(mutant)
    if seed is None and bug:
        return _shrink_bug(bug, folder or Path("tests/scenarios/planted"), as_json)
    if seed is None:
        raise click.UsageError("name the SEED to shrink, a --mutant to hunt, or give --all-mutants")
    origin: SeedOrigin | ProfileCellOrigin
    if loss is not None:
        if membership or config_file is not None:
            raise click.UsageError(
                "--loss is about gapless compare, which knows neither --membership nor --config"
            )
        origin = _cell(seed, loss, profile, members, messages, size_bytes, pace, properties)
    elif size_bytes is not None or pace is not None:
        raise click.UsageError("--size and --pace go with --loss")
    else:
        messages = messages or default_messages(membership=membership)
        origin = SeedOrigin(seed, messages, members, config if given else None, profile, membership)
    return _shrink_seed(
        origin, bug, folder or Path("tests/scenarios", "planted" if bug else ""), as_json
    )


def _cell(
    seed: int,
    loss: float,
    profile: str | None,
    members: int | None,
    messages: int | None,
    size_bytes: int | None,
    pace: str | None,
    properties: str | None,
) -> ProfileCellOrigin:
    """Return the run of "gapless compare" for the options, with the same defaults."""
    from gapless.sim.profile_cost import ProfileCellOrigin, ProfileWorkload, config_of

    if profile is None:
        raise click.UsageError("--loss: name the --profile too")
    usual = ProfileWorkload()
    work = ProfileWorkload(
        members or usual.members,
        messages or usual.messages,
        usual.size_bytes if size_bytes is None else size_bytes,
        usual.pace_ns if pace is None else pace_ns(pace),
        seed,
    )
    rate = loss_percent(loss)
    return ProfileCellOrigin(
        seed, work.messages, profile, rate, work, config_of(profile, properties or "")
    )


def _shrink_seed(
    origin: SeedOrigin | ProfileCellOrigin, bug: str, folder: Path, as_json: bool
) -> int:
    from gapless.sim.shrink.minimizer import MAX_TRIES
    from gapless.sim.shrink.shrinker import shrink_seed

    with progress_bar("replays", MAX_TRIES, quiet=as_json or not sys.stderr.isatty()) as done:
        found = shrink_seed(origin, bug=bug, progress=done)
    if found is None:
        raise click.UsageError(f"seed {origin.seed} does not fail, so there is nothing to shrink")
    return _print_result(found, folder, as_json)


def _shrink_bug(bug: str, folder: Path, as_json: bool) -> int:
    from gapless.sim.shrink.shrinker import shrink_bug

    with progress_bar("seeds", None, quiet=as_json or not sys.stderr.isatty()) as done:
        found = shrink_bug(bug, progress=done)
    if found is None:
        raise click.UsageError(f"no seed fails because of {bug!r}, so there is nothing to shrink")
    return _print_result(found, folder, as_json)


def _print_result(found: ShrinkResult, folder: Path, as_json: bool) -> int:
    bug, path = found.scenario.bug, _write(found, folder)
    if as_json:
        print_json({"file": str(path), **found.as_dict()})
    else:
        echo(found.scenario.text())
        echo(f"{found.script_lines} lines after {found.tries} replays, written to {path}")
        if not bug and "gapless sim" in found.origin.command:
            echo("For the list of seeds that once failed, tests/seeds/regressions.txt:")
            echo(f"{found.origin.seed} {found.origin.messages}  # {found.check}")
    return 0 if bug else 1


def _shrink_all(folder: Path, workers: int, as_json: bool) -> int:
    from gapless.sim.mutants.catalogue import MUTANTS
    from gapless.sim.shrink.shrinker import shrink_bug
    from gapless.sim.worker_pool import worker_pool

    results: dict[str, ShrinkResult | None] = {}
    names = [mutant.name for mutant in MUTANTS if not mutant.sealed]
    quiet = as_json or not sys.stderr.isatty()
    with (
        progress_bar("planted bugs", len(names), quiet=quiet) as done,
        worker_pool(workers) as pool,
    ):
        for name, found in zip(names, pool.map(shrink_bug, names), strict=True):
            results[name] = found
            if found is not None:
                _write(found, folder)
            done(len(results))
    if as_json:
        print_json(
            {name: None if found is None else found.as_dict() for name, found in results.items()}
        )
        return 0
    rows = [
        (name, "lives", "", "", "")
        if found is None
        else (name, found.check, found.origin.command, found.script_lines, found.file_name)
        for name, found in results.items()
    ]
    console().print(
        make_table(f"Planted bugs, in {folder}", ("bug", "check", "from", "lines", "file"), rows)
    )
    return 0


def _write(found: ShrinkResult, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / found.file_name
    path.write_text(found.scenario.text(), encoding="utf-8")
    return path
