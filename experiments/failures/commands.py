"""The commands: ``two-hosts``, ``mass-death``, ``churn``, ``floods``, and those of sealed groups.

Every command prints a table for a person, or JSON. The exit code is 1 if a guarantee did not hold.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from experiments.failures import two_hosts as hosts
from experiments.failures.churn import churn
from experiments.failures.floods import FLOODS, floods
from experiments.failures.mass_death import mass_death
from experiments.failures.rotation import CALM_S, TRANSPORTS, rotation
from experiments.failures.sealed_fuzz import sealed_fuzz
from gapless.cli.rendering import console, json_option, make_table, print_json, progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from experiments.failures.floods import FloodResult

MAX_RATIO = 2.0
"""How much longer the view without many may take than the view without one."""

_rounds_option = click.option(
    "--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Repetitions."
)
_seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Random seed."
)


@click.command("two-hosts")
@_rounds_option
@click.option(
    "--case",
    "cases",
    multiple=True,
    type=click.Choice([case.name for case in hosts.CASES]),
    help="A way to meet; repeat for several (default: all).",
)
@click.option(
    "--cut",
    "cut_s",
    type=click.FloatRange(0, 600),
    default=10.0,
    show_default=True,
    help="How long the cable is cut, in seconds.",
)
@json_option
def two_hosts_command(rounds: int, cases: Sequence[str], cut_s: float, as_json: bool) -> int:
    """Measure two hosts with a common cable: start, death, cut (needs ``unshare`` and ``ip``)."""
    rows, load = hosts.two_hosts(cases, rounds, cut_s)
    titles = {
        "start": "start_s",
        "join": "join_s",
        "kill": "kill_s",
        "cut": "cut_s",
        "rejoin": "rejoin_s",
    }
    table = [
        (
            row.name,
            *(_most(getattr(row, name)) for name in titles.values()),
            row.acknowledged,
            row.lost,
        )
        for row in rows
    ]
    problems = [f"{row.name}: {problem}" for row in rows for problem in row.problems]
    _show(
        {"cases": [asdict(row) for row in rows], "load": load},
        lambda: _print_table(
            f"Two hosts, longest of {rounds}, seconds, load {load:g}",
            ("case", *titles, "acked", "lost"),
            table,
            "start: both processes to the first message at both; join: the same from the later"
            " join; cut: until both are alone; rejoin: from the repaired cable to one view",
            problems,
        ),
        as_json=as_json,
    )
    return 1 if problems or any(row.lost for row in rows) else 0


@click.command("mass-death")
@_rounds_option
@_seed_option
@click.option(
    "--members", type=click.IntRange(3, 200), default=30, show_default=True, help="Processes."
)
@click.option(
    "--killed", type=click.IntRange(2, 190), default=16, show_default=True, help="Killed at once."
)
@json_option
def mass_death_command(rounds: int, seed: int, members: int, killed: int, as_json: bool) -> int:
    """Kill a single process of many, then many at once; compare the times to the view."""
    if killed >= members:
        raise click.UsageError(f"--killed {killed}: expected fewer than --members {members}")
    with progress_bar("kills", 2 * rounds, quiet=as_json) as done:
        found = mass_death(members, killed, rounds, seed, done)
    rows = [
        ("1", *_spread(found.one_s), ""),
        (str(killed), *_spread(found.many_s), ", ".join(map(str, found.views))),
    ]
    _show(
        found.as_dict(),
        lambda: _print_table(
            f"SIGKILL to the view at all survivors, {members} processes, load {found.load:g}",
            ("killed", "min", "median", "max", "views"),
            rows,
            f"ratio of the medians: {found.ratio:g}",
        ),
        as_json=as_json,
    )
    return 0 if found.ratio <= MAX_RATIO else 1


@click.command("churn")
@_seed_option
@click.option(
    "--processes",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Processes that come and go.",
)
@click.option(
    "--at-once",
    type=click.IntRange(1, 100),
    default=8,
    show_default=True,
    help="How many are there at a time.",
)
@json_option
def churn_command(seed: int, processes: int, at_once: int, as_json: bool) -> int:
    """Let processes come and go under load; SIGKILL ends a fifth of the processes."""
    with progress_bar("processes", processes, quiet=as_json) as done:
        found = churn(processes, at_once=at_once, seed=seed, progress=done)
    exact = "never" if found.exact_after_s is None else f"{found.exact_after_s:.3f} s"
    rows = [
        ("processes, killed", f"{found.processes}, {found.killed}"),
        ("largest view, views", f"{found.peak}, {found.views}"),
        ("messages sent", f"{found.sent:,}"),
        ("longest send", f"{found.longest_send_s:.3f} s"),
        ("detection of one silent death", f"{found.detection_s:g} s"),
        ("last view exact after", exact),
    ]
    _show(
        found.as_dict(),
        lambda: _print_table(
            f"Processes that come and go in {found.seconds:g} s, load {found.load:g}",
            ("what", "found"),
            rows,
        ),
        as_json=as_json,
    )
    return 0 if found.ok else 1


@click.command("floods")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Duration of each flood.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(sorted({flood.kind for flood in FLOODS})),
    help="A kind of flood; repeat for several (default: all).",
)
@json_option
def floods_command(seconds: float, kinds: Sequence[str], as_json: bool) -> int:
    """Let a stranger flood a group of three that keeps sending."""
    chosen = [flood for flood in FLOODS if not kinds or flood.kind in kinds]
    with progress_bar("floods", len(chosen), quiet=as_json) as done:
        found, load = floods(seconds, kinds, done)
    _show(
        {"seconds": seconds, "floods": [row.as_dict() for row in found], "load": load},
        lambda: _print_table(
            f"Floods of {seconds:g} s, load {load:g}",
            ("flood", "sent", "MB before", "half", "peak", "kept", "longest", "out", "drops"),
            [_flood_row(row) for row in found],
            "kept: share of the throughput; longest: a send, in seconds; out: expelled members",
            [f"{row.kind}: {problem}" for row in found for problem in row.problems],
        ),
        as_json=as_json,
    )
    return 0 if all(row.ok for row in found) else 1


def _flood_row(row: FloodResult) -> tuple[Any, ...]:
    reason = next(iter(row.drops), "none").removeprefix("dropped.").removeprefix("transport.")
    return (
        row.kind,
        f"{row.sent:,}",
        row.before_mb,
        row.half_mb,
        row.peak_mb,
        f"{row.kept_share:.0%}",
        f"{row.longest_send_s:.2f}",
        row.expelled,
        f"{reason} {next(iter(row.drops.values()), 0):,}",
    )


@click.command("sealed-fuzz")
@_seed_option
@click.option(
    "--datagrams",
    type=click.IntRange(1, 100_000_000),
    default=2_000_000,
    show_default=True,
    help="How many mutated datagrams are sent.",
)
@click.option("--identities", is_flag=True, help="In a group with identities, and keys of views.")
@json_option
def sealed_fuzz_command(seed: int, datagrams: int, identities: bool, as_json: bool) -> int:
    """Send mutated sealed datagrams to a member of a sealed group of three that keeps sending."""
    with progress_bar("datagrams", datagrams, quiet=as_json) as done:
        found = sealed_fuzz(datagrams, seed, done, identities=identities)
    rows = [
        ("state changes, views changed", f"{found.state_changes}, {found.views_changed}"),
        ("exceptions, answers", f"{found.exceptions}, {found.answers}"),
        ("messages sent, delivered", f"{found.messages_sent:,}, {found.messages_delivered:,}"),
        ("memory before, after", f"{found.memory_before_mb:g} MB, {found.memory_after_mb:g} MB"),
        *((f"sent: {kind}", f"{times:,}") for kind, times in found.sent.items()),
        *((f"rejected: {reason}", f"{times:,}") for reason, times in found.rejected.items()),
    ]
    _show(
        found.as_dict(),
        lambda: _print_table(
            f"{datagrams:,} mutated sealed datagrams in {found.seconds:g} s",
            ("what", "found"),
            rows,
            problems=found.problems,
        ),
        as_json=as_json,
    )
    return 0 if found.ok else 1


@click.command("rotation")
@_seed_option
@click.option(
    "--rotations",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Rotations over each transport.",
)
@click.option(
    "--members", type=click.IntRange(2, 50), default=4, show_default=True, help="Processes."
)
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(TRANSPORTS),
    help="A transport; repeat for several (default: all).",
)
@click.option(
    "--calm",
    "calm_s",
    type=click.FloatRange(0, 600),
    default=CALM_S,
    show_default=True,
    help="How long the members send before the first rotation, in seconds.",
)
@json_option
def rotation_command(
    seed: int,
    rotations: int,
    members: int,
    transports: Sequence[str],
    calm_s: float,
    as_json: bool,
) -> int:
    """Rotate the keys of a sealed group while every member sends at full speed."""
    chosen = transports or TRANSPORTS
    done = count(1)
    with progress_bar("rotations", len(chosen) * rotations, quiet=as_json) as show:
        rows = [
            rotation(one, rotations, members, seed, calm_s, lambda: show(next(done)))
            for one in chosen
        ]
    table = [
        (
            row.transport,
            f"{row.seconds:g}",
            row.sent,
            row.lost,
            row.repeated,
            row.rejected.get("key", 0),
            f"{row.calm_pause_s:.2f}, {row.pause_s:.2f}",
            f"{row.calm_sender_pause_s:.2f}, {row.sender_pause_s:.2f}",
        )
        for row in rows
    ]
    titles = ("over", "s", "sent", "lost", "repeated", "key", "pause", "sender")
    _show(
        {"transports": [row.as_dict() for row in rows]},
        lambda: _print_table(
            f"{rotations} rotations under load, {members} processes, load {rows[-1].load:g}",
            titles,
            table,
            "key: datagrams rejected for their key; pause: longest time in seconds without a"
            " delivery, before and during the rotations; sender: the same of one sender",
            [f"{row.transport}: {problem}" for row in rows for problem in row.problems],
        ),
        as_json=as_json,
    )
    return 0 if all(row.ok for row in rows) else 1


def _most(times_s: Sequence[float]) -> str:
    return f"{max(times_s):.2f}" if times_s else "none"


def _spread(times_s: Sequence[float]) -> tuple[str, str, str]:
    ordered = sorted(times_s)
    return tuple(
        f"{time_s:.3f}" for time_s in (ordered[0], ordered[len(ordered) // 2], ordered[-1])
    )  # type: ignore[return-value]


def _show(report: dict[str, Any], show: Callable[[], None], *, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        show()


def _print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    note: str = "",
    problems: Sequence[str] = (),
) -> None:
    screen = console()
    screen.print(make_table(title, tuple(columns), list(rows)))
    for line in (note, *problems):
        if line:
            screen.print(line, highlight=False)


COMMANDS = (
    two_hosts_command,
    mass_death_command,
    churn_command,
    floods_command,
    sealed_fuzz_command,
    rotation_command,
)
"""The commands, for ``python -m experiments``."""
