"""``gapless soak``: a group of real processes under load and faults, checked by its traces."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.lab.common import (
    MAX_SHOWN,
    folder_option,
    number_option,
    option,
    pop_changed_settings,
    print_findings,
    print_result,
)
from gapless.cli.parameters import SECONDS, SHARE
from gapless.cli.rendering import config_options, console, json_option, make_table, progress_bar

if TYPE_CHECKING:
    from gapless_lab.soak import SoakPlan, SoakReport


@click.command()
@number_option("--members", default=4, help="Processes of the group.")
@option("--seconds", default="60s", type=SECONDS, help="Length of the load.")
@number_option("--rate", default=100, help="Messages a second of each.")
@option("--loss", default="2%", type=SHARE, help="Datagrams to lose.")
@option("--duplicate", default="1%", type=SHARE, help="Datagrams to duplicate.")
@option("--reorder", default="1%", type=SHARE, help="Datagrams to reorder.")
@number_option("--kill", "kills", default=1, help="Members to kill -9.")
@number_option("--stop", "stops", default=1, help="Members to SIGSTOP.")
@number_option("--seed", default=1, help="Random seed of faults and load.")
@option("--transport", default="udp", metavar="NAME", help="udp or tcp.")
@folder_option("--trace", "folder", help="Keep the traces in this empty folder.")
@config_options
@json_option
def soak(*, folder: Path | None, as_json: bool, **options: Any) -> int:
    """Run real processes on this machine under loss, kill -9 and SIGSTOP, and check their traces.

    Every process writes a trace. When the load is over and everything has arrived, the traces are
    checked by the invariants of the simulator, as far as rows show them. The exit code is 1 if one
    is broken, if the group does not come to rest, or if the memory of a process grows.
    """
    from gapless_lab.soak import SoakPlan, soak as run

    plan = SoakPlan(settings=pop_changed_settings(options), **options)
    with progress_bar("soak", round(plan.seconds), quiet=as_json) as progress:
        report = run(plan, folder, progress=lambda done_s: progress(round(done_s)))
    show = partial(_show, plan, report)
    return print_result(report.as_dict(), show, is_sound=report.is_sound, as_json=as_json)


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
    print_findings(report.violations[:MAX_SHOWN])
