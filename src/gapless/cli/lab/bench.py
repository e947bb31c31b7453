"""``gapless bench``: throughput and round trips of a group of real processes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.group_options import trace_options
from gapless.cli.lab.common import (
    flag_option,
    number_option,
    option,
    pop_changed_settings,
    print_result,
    print_table,
)
from gapless.cli.parameters import SECONDS, SHARES, SIZES
from gapless.cli.rendering import config_options, console, json_option, progress_bar

if TYPE_CHECKING:
    from pathlib import Path

    from gapless_lab.bench.matrix import CellResult
    from gapless_lab.bench.plan import BenchPlan

THROUGHPUT = {
    "messages/s": "messages_per_s",
    "MB/s": "mb_per_s",
    "CPU s/M": "cpu_s_per_million",
    "repairs": "repairs",
}
ROUND_TRIPS = {
    "requests": "requests",
    "p50 µs": "p50_us",
    "p99 µs": "p99_us",
    "p99.9 µs": "p99_9_us",
}
"""The columns of the tables, and their figures."""


@click.command()
@number_option("--members", default=3, help="Number of members, each a process.")
@number_option("--senders", help="Number of senders; all members by default.")
@option("--size", "sizes_bytes", default="100,1000,10000", type=SIZES, help="Message sizes.")
@option("--transport", default="udp", metavar="NAME,…", help="Transports, such as udp,tcp.")
@option("--loss", "losses", default="0", type=SHARES, help="Shares of datagrams to drop.")
@option(
    "--mode",
    default="multicast",
    type=click.Choice(["multicast", "unicast"]),
    help="Send to the group, or to each member in turn.",
)
@flag_option("--rtt", help="Measure round trips of requests instead of throughput.")
@option("--seconds", default="3s", type=SECONDS, help="Duration of each measurement.")
@trace_options
@config_options
@json_option
def bench(
    *,
    senders: int | None,
    transport: str,
    mode: str,
    trace: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure groups of real processes on the local machine, for every size, transport and loss.

    Members send as fast as flow control permits. Every message carries a number, and every receiver
    checks the numbers. The speed of the slowest receiver counts. The exit code is 1 if a message is
    lost, duplicated or out of order.
    """
    from gapless_lab.bench.matrix import conditions, measure
    from gapless_lab.bench.plan import BenchPlan

    plan = BenchPlan(
        senders=options["members"] if senders is None else senders,
        transports=tuple(filter(None, map(str.strip, transport.split(",")))),
        unicast=mode == "unicast",
        settings=pop_changed_settings(options),
        trace="" if trace is None else str(trace.absolute()),
        **options,
    )
    about = conditions(plan)
    found: list[CellResult] = []
    with progress_bar("measure", len(plan.cells), quiet=as_json) as progress:
        for result in measure(plan):
            found.append(result)
            progress(len(found))
    skipped = [result for result in found if result.skip_reason]
    made = [result for result in found if not result.skip_reason]
    rows, left_out = ([result.as_dict() for result in results] for results in (made, skipped))
    return print_result(
        {"conditions": about, "figures": rows, "skipped": left_out},
        partial(_show, plan, about, made, skipped),
        is_sound=not any(result.faults for result in made),
        as_json=as_json,
    )


def _show(
    plan: BenchPlan, about: dict[str, object], made: list[CellResult], skipped: list[CellResult]
) -> None:
    screen = console()
    screen.print(", ".join(f"{key} {value}" for key, value in about.items()), style="dim")
    if made:
        _show_figures(plan, made)
    reasons = Counter((result.cell.transport, result.skip_reason) for result in skipped)
    for (transport, reason), count in reasons.items():
        screen.print(f"skipped {count} of {transport}: {reason}", style="yellow")


def _show_figures(plan: BenchPlan, made: list[CellResult]) -> None:
    title = "The slowest receiver; CPU seconds for a million deliveries"
    columns = {**THROUGHPUT, "in order": "verdict"}
    if plan.rtt:
        title, columns = "Request and answer", ROUND_TRIPS
    rows = []
    for result in made:
        cell, faults = result.cell, result.faults.items()
        wrong = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in faults)
        shown = {**result.figures, "verdict": wrong or "yes"}
        figures = (shown[name] for name in columns.values())
        rows.append((cell.transport, cell.size_bytes, f"{cell.loss:.1%}", *figures))
    print_table(title, ("transport", "bytes", "loss", *columns), rows)
