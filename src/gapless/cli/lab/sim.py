"""``gapless sim``: groups under random faults, every invariant checked after every step."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.parameters import MAX_SEED, available_cores
from gapless.cli.rendering import (
    config_options,
    console,
    json_option,
    make_table,
    mutant_option,
    print_json,
    progress_bar,
    read_config,
    resolve_mutant,
)

if TYPE_CHECKING:
    from gapless.sim.seed_result import SeedResult, SweepResult

_SHOWN_FAILURES = 10
_MIN_MEMBERS, _MAX_MEMBERS = 2, 26


@click.command()
@click.argument("seed", type=click.IntRange(0, MAX_SEED), required=False)
@click.option(
    "--seeds",
    type=click.IntRange(1, 10_000_000),
    default=None,
    metavar="N",
    help="Run N seeds instead of a single seed.",
)
@click.option(
    "--first",
    type=click.IntRange(0, MAX_SEED),
    default=0,
    show_default=True,
    help="The first of the N seeds.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 10_000),
    default=None,
    help="Messages per member.  [default: 100; with --membership 40]",
)
@click.option(
    "--members",
    default=None,
    metavar="N",
    help="Members in each group (default: by seed).",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=None,
    help="Processes (default: one per core).",
)
@click.option(
    "--membership",
    is_flag=True,
    help="Let the groups form their views: joins, leaves, crashes, merges.",
)
@click.option(
    "--sealed",
    is_flag=True,
    help="Give the groups keys that rotate, and an adversary on the network.",
)
@click.option("--scenario", default=None, hidden=True)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Write a trace of every seed to DIR.",
)
@mutant_option
@config_options
@json_option
def sim(  # noqa: PLR0917 - one parameter per option
    seed: int | None,
    seeds: int | None,
    first: int,
    messages: int | None,
    members: str | None,
    workers: int | None,
    membership: bool,
    sealed: bool,
    scenario: str | None,
    trace: Path | None,
    mutant: str,
    profile: str | None,
    config_file: Path | None,
    properties: str | None,
    as_json: bool,
) -> int:
    """Simulate groups: replay a SEED, or run many with --seeds.

    The seed draws a whole run: members, settings, messages, faults, and the profile unless
    --profile is given. The same seed gives the same digest every time. Settings given here replace
    drawn settings. With --membership the groups start without a view: members join, leave, crash,
    freeze and are cut off, and have to agree on the members of the group. With --sealed every
    datagram is sealed, keys rotate, and an adversary repeats and forges datagrams. The exit code is
    1 if an
    invariant is violated, or if a sweep of 300 seeds or more (200 with --membership) of all
    profiles never reached a required branch.
    """
    if scenario is not None:
        raise click.UsageError(
            "--scenario is no longer an option; in a checkout run: python -m experiments "
            "join-under-load, or: python -m experiments scale"
        )
    if (seed is None) == (seeds is None):
        raise click.UsageError("give one SEED to replay, or --seeds N to run many")
    config = read_config(profile, config_file, properties)
    count = _count(members)
    group: dict[str, Any] = {
        "messages": messages,
        "members": count,
        "profile": profile,
        "membership": membership,
        "sealed": sealed,
    }
    if config_file is not None or properties is not None:
        group["config"] = config
    bug = resolve_mutant(mutant)
    if seed is not None:
        return _one(seed, group, bug, trace, as_json)
    if bug:
        raise click.UsageError(
            "--mutant goes with a SEED; gapless sweep --preset hunt takes it for many"
        )
    assert seeds is not None
    return _many(range(first, first + seeds), workers or available_cores(), group, trace, as_json)


def _count(members: str | None) -> int | None:
    """Return how many members the groups of all seeds have."""
    if members is None:
        return None
    fits = members.isascii() and members.isdigit() and len(members) <= len(str(_MAX_MEMBERS))
    if not fits or not _MIN_MEMBERS <= int(members) <= _MAX_MEMBERS:
        raise click.UsageError(
            f"--members: {members[:80]!r} is not a number from {_MIN_MEMBERS} to {_MAX_MEMBERS}"
        )
    return int(members)


def _one(seed: int, group: dict[str, Any], bug: str, trace: Path | None, as_json: bool) -> int:
    from gapless.sim.mutants.catalogue import plant
    from gapless.sim.runner import simulate

    with plant(bug):
        if trace is None:
            outcome = simulate(seed, **group)
        else:
            from gapless.sim.world.trace_files import prepare_folder, write_set

            prepare_folder(trace)
            (outcome,) = write_set(str(trace), partial(simulate, trace=True, **group), [seed])
    if as_json:
        print_json(_outcome_dict(outcome))
    else:
        rows = [
            (key, _flat(value))
            for key, value in _outcome_dict(outcome).items()
            if key != "violations"
        ]
        console().print(make_table(f"Seed {seed}", ("what", "value"), rows))
        _print_violations([outcome], group, bug=bug)
    return 0 if outcome.ok else 1


def _many(
    seeds: range, workers: int, group: dict[str, Any], trace: Path | None, as_json: bool
) -> int:
    from gapless.sim.runner import sweep, thorough_seeds

    with progress_bar("seeds", len(seeds), quiet=as_json) as done:
        result = sweep(seeds, workers=workers, progress=done, trace=trace, **group)
    report = _sweep_dict(result, workers)
    if as_json:
        print_json(report)
    else:
        _print_sweep(report, result, group)
    enough = thorough_seeds(membership=group["membership"])
    thorough = len(seeds) >= enough and "config" not in group and group["profile"] is None
    return 1 if result.failed or (thorough and result.never_seen) else 0


def _outcome_dict(outcome: SeedResult) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "digest": outcome.digest,
        "character": outcome.character,
        "profile": outcome.profile,
        "messages": outcome.messages,
        "events": outcome.events,
        "faults": outcome.faults,
        "repairs": outcome.repairs,
        **({"seals": outcome.seals} if outcome.seals else {}),
        "seen": sorted(outcome.seen),
        "violations": [str(violation) for violation in outcome.violations],
        "simulated_seconds": outcome.simulated_ns / 1e9,
    }


def _sweep_dict(result: SweepResult, workers: int) -> dict[str, Any]:
    return {
        "seeds": result.seeds,
        "events": result.events,
        "messages": result.messages,
        "faults": dict(sorted(result.faults.items())),
        "profiles": dict(sorted(result.profiles.items())),
        **({"seals": dict(sorted(result.seals.items()))} if result.seals else {}),
        "violations": sum(len(outcome.violations) for outcome in result.failed),
        "must_happen_missing": result.never_seen,
        "must_happen": dict(sorted(result.seen.items())),
        "simulated_seconds": round(result.simulated_ns / 1e9, 3),
        "wall_seconds": round(result.real_s, 3),
        "seeds_per_second_per_worker": round(result.seeds / max(result.real_s, 1e-9) / workers, 1),
        "digest": result.digest,
        "failed_seeds": [outcome.seed for outcome in result.failed],
    }


def _flat(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key} {count:,}" for key, count in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return value


def _print_sweep(report: dict[str, Any], result: SweepResult, group: dict[str, Any]) -> None:
    screen = console()
    tables = ("faults", "must_happen")
    rows = [(key, _flat(value)) for key, value in report.items() if key not in tables]
    screen.print(make_table("Simulated groups", ("what", "value"), rows))
    screen.print(make_table("Faults that struck", ("fault", "times"), report["faults"].items()))
    happened = report["must_happen"].items()
    screen.print(
        make_table("What must happen, and in how many seeds it did", ("what", "seeds"), happened)
    )
    _print_violations(result.failed, group)


def _print_violations(failed: list[SeedResult], group: dict[str, Any], bug: str = "") -> None:
    screen = console()
    for outcome in [outcome for outcome in failed if not outcome.ok][:_SHOWN_FAILURES]:
        rows = [
            (v.check, f"{v.t_ns / 1e6:.3f} ms", v.member, v.message) for v in outcome.violations
        ]
        screen.print(
            make_table(f"Seed {outcome.seed} violates", ("check", "at", "member", "what"), rows)
        )
        same = f"{outcome.seed} --profile {outcome.profile}"
        same += "".join(f" --{flag}" for flag in ("membership", "sealed") if group[flag])
        same += f' --mutant "{bug}"' if bug else ""
        # A script does not contain the keys: sealed runs are replayed, and not shrunk.
        shrink = "" if group["sealed"] else f"    shrink: gapless shrink {same}"
        screen.print(f"replay: gapless sim {same}{shrink}")
