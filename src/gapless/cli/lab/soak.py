"""``gapless soak``: a group of real processes under load and faults, checked by its traces."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gapless.cli.lab.bench import changed_settings
from gapless.cli.parameters import SECONDS, SHARE
from gapless.cli.rendering import (
    config_options,
    console,
    json_option,
    make_table,
    print_json,
    progress_bar,
)

if TYPE_CHECKING:
    from gapless_lab.soak import SoakPlan, SoakReport

MAX_SHOWN = 20
"""Maximum number of violations that are printed."""


@click.command()
@click.option(
    "--members", default=4, show_default=True, metavar="N", type=int, help="Processes of the group."
)
@click.option(
    "--seconds", default="60s", show_default=True, type=SECONDS, help="Length of the load."
)
@click.option(
    "--rate",
    default=100,
    show_default=True,
    metavar="N",
    type=int,
    help="Messages a second of each.",
)
@click.option(
    "--loss",
    default="2%",
    show_default=True,
    type=SHARE,
    help="Datagrams to lose.",
)
@click.option(
    "--duplicate",
    default="1%",
    show_default=True,
    type=SHARE,
    help="That come twice.",
)
@click.option(
    "--reorder",
    default="1%",
    show_default=True,
    type=SHARE,
    help="That are overtaken.",
)
@click.option(
    "--kill",
    "kills",
    default=1,
    show_default=True,
    metavar="N",
    type=int,
    help="Members to kill -9.",
)
@click.option(
    "--stop",
    "stops",
    default=1,
    show_default=True,
    metavar="N",
    type=int,
    help="Members to SIGSTOP.",
)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    metavar="N",
    type=int,
    help="Random seed of faults and load.",
)
@click.option("--transport", default="udp", show_default=True, metavar="NAME", help="udp or tcp.")
@click.option(
    "--trace",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the traces in this empty folder.",
)
@config_options
@json_option
def soak(
    *,
    members: int,
    seconds: float,
    rate: int,
    loss: float,
    duplicate: float,
    reorder: float,
    kills: int,
    stops: int,
    seed: int,
    transport: str,
    folder: Path | None,
    profile: str | None,
    config_file: Path | None,
    properties: str | None,
    as_json: bool,
) -> int:
    """Run real processes on this machine under loss, kill -9 and SIGSTOP, and check their traces.

    Every process writes a trace. When the load is over and everything has arrived, the traces are
    checked by the invariants of the simulator, as far as rows show them. The exit code is 1 if one
    is broken, if the group does not come to rest, or if the memory of a process grows.
    """
    from gapless_lab.soak import SoakPlan, soak as run

    plan = SoakPlan(
        members=members,
        seconds=seconds,
        rate=rate,
        loss=loss,
        duplicate=duplicate,
        reorder=reorder,
        kills=kills,
        stops=stops,
        seed=seed,
        transport=transport,
        settings=changed_settings(profile, config_file, properties),
    )
    with progress_bar("soak", round(seconds), quiet=as_json or not sys.stderr.isatty()) as progress:
        report = run(plan, folder, progress=lambda done_s: progress(round(done_s)))
    if as_json:
        print_json(report.as_dict())
    else:
        _show(plan, report)
    return 0 if report.is_sound else 1


def _show(plan: SoakPlan, report: SoakReport) -> None:
    screen = console()
    faults = ", ".join(f"{name} {count:,}" for name, count in report.struck.items()) or "none"
    found = (
        ("violations", len(report.violations)),
        ("at rest in the end", report.rested),
        ("messages sent", report.sent),
        ("messages delivered", report.delivered),
        ("lives, views", f"{report.lives}, {report.views}"),
        ("killed, stopped, expelled", f"{report.kills}, {report.stops}, {report.expelled}"),
        ("faults at the end's members", faults),
        ("naks, repairs", f"{report.naks:,}, {report.repairs:,}"),
        ("rows of trace", report.rows),
        ("memory flat", report.is_flat),
    )
    title = (
        f"{plan.members} processes over {plan.transport} for {plan.seconds:g} s, seed {plan.seed}"
    )
    screen.print(make_table(title, ("what", "found"), found))
    rows = [
        (name, seen[0], seen[len(seen) // 2], seen[-1])
        for name, seen in sorted(report.memory.items())
    ]
    screen.print(make_table("Memory, MB", ("process", "first", "middle", "last"), rows))
    for violation in report.violations[:MAX_SHOWN]:
        screen.print(str(violation), style="red", markup=False)
