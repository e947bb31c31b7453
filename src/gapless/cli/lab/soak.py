"""``gapless soak``: a group of real processes under load and faults, checked by traces."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.lab.common import (
    MAX_SHOWN,
    folder_option,
    loss_option,
    number_option,
    option,
    pop_changed_settings,
    print_findings,
    print_result,
    print_table,
)
from gapless.cli.parameters import SECONDS, SHARE
from gapless.cli.rendering import config_options, json_option, progress_bar

if TYPE_CHECKING:
    from gapless_lab.soak import SoakPlan, SoakReport


@click.command()
@number_option("--members", default=4, help="Number of members, each a process.")
@option("--seconds", default="60s", type=SECONDS, help="Duration of the load.")
@number_option("--rate", default=100, help="Messages a second of each member.")
@loss_option(default="2%")
@option("--duplicate", default="1%", type=SHARE, help="Share of datagrams to duplicate.")
@option("--reorder", default="1%", type=SHARE, help="Share of datagrams to reorder.")
@number_option("--kill", "kills", default=1, help="Number of members to kill and restart.")
@number_option("--stop", "stops", default=1, help="Number of members to suspend with SIGSTOP.")
@option(
    "--every",
    "every_s",
    default="0",
    type=SECONDS,
    help="Repeat the kills and stops in every interval of this length.",
)
@number_option("--seed", default=1, help="Random seed of faults and load.")
@option("--transport", default="udp", metavar="NAME", help="Transport: udp or tcp.")
@folder_option("--trace", "folder", help="Keep the traces in an empty folder.")
@config_options
@json_option
def soak(*, folder: Path | None, as_json: bool, **options: Any) -> int:
    """Run real processes on the local machine under loss, kill -9 and SIGSTOP; check the traces.

    Every process writes a trace. When the load is over and all messages are delivered, the command
    checks the traces against the invariants of the simulator. The exit code is 1 if an invariant is
    violated, if a send hangs, if a kill is not noticed, if the group does not come to rest, or if
    the memory of a process grows.
    """
    from gapless_lab.soak import SoakPlan, soak as run

    plan = SoakPlan(settings=pop_changed_settings(options), **options)
    with progress_bar("soak", round(plan.seconds), quiet=as_json) as progress:
        report = run(plan, folder, progress=lambda done_s: progress(round(done_s)))
    show = partial(_show, plan, report)
    return print_result(report.as_dict(), show, is_sound=report.is_sound, as_json=as_json)


def _show(plan: SoakPlan, report: SoakReport) -> None:
    of = report.figures
    faults = ", ".join(f"{name} {count:,}" for name, count in report.struck.items()) or "none"
    found = (
        ("violations", len(report.violations)),
        ("at rest in the end", report.rested),
        ("messages sent", of["sent"]),
        ("messages delivered", of["delivered"]),
        ("incarnations, views", f"{of['lives']}, {of['views']}"),
        ("killed, stopped, expelled", f"{of['kills']}, {of['stops']}, {of['expelled']}"),
        ("kill to view, p50, p99, max", _times(report)),
        ("longest send, hangs", f"{report.longest_send_s:g} s, {report.hangs}"),
        ("faults at the end's members", faults),
        ("naks, repairs", f"{of['naks']:,}, {of['repairs']:,}"),
        ("rows of trace", of["rows"]),
        ("memory flat", report.is_flat),
    )
    title = (
        f"{plan.members} processes over {plan.transport} for {plan.seconds:g} s, seed {plan.seed}"
    )
    print_table(title, ("what", "found"), found)
    longest = max(map(len, report.memory.values()), default=0)
    rows = [
        (name, seen[0], seen[len(seen) // 2], seen[-1])
        for name, seen in sorted(report.memory.items())
        if 4 * len(seen) >= longest
    ]
    print_table("Memory, MB", ("process", "first", "middle", "last"), rows)
    print_findings(report.violations[:MAX_SHOWN])


def _times(report: SoakReport) -> str:
    """Return the times from a kill to the view without the victim."""
    shown = ", ".join(
        "never" if found is None else f"{found:.3f} s" for found in report.kill_to_view_s().values()
    )
    return f"{shown}, {report.unnoticed} unnoticed" if report.unnoticed else shown
