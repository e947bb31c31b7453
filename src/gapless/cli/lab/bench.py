"""``gapless bench``: the throughput of a group of real processes on this machine."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.group_options import trace_options
from gapless.cli.lab.common import number_option, option, pop_changed_settings, print_result
from gapless.cli.parameters import SECONDS, SHARES, SIZES
from gapless.cli.rendering import config_options, console, json_option, make_table, progress_bar

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from gapless_lab.bench.matrix import RoundTripResult, SkippedCell, ThroughputResult
    from gapless_lab.bench.plan import BenchPlan


@click.command()
@number_option("--members", default=3, help="Processes of the group.")
@number_option("--senders", help="Members that send; all by default.")
@option("--size", default="100,1000,10000", type=SIZES, help="Sizes of a message.")
@option("--transport", default="udp", metavar="NAME,…", help="Transports, such as udp,tcp.")
@option("--loss", default="0", type=SHARES, help="Share of datagrams to lose.")
@option("--mode", default="multicast", type=click.Choice(["multicast", "unicast"]))
@click.option("--rtt", is_flag=True, help="Measure requests and their answers instead.")
@option("--seconds", default="3s", type=SECONDS, help="Length of one measurement.")
@trace_options
@config_options
@json_option
def bench(
    *,
    members: int,
    senders: int | None,
    size: tuple[int, ...],
    transport: str,
    loss: tuple[float, ...],
    mode: str,
    trace: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure groups of real processes on this machine, for every size, transport and loss.

    Members send as fast as flow control permits. Every message carries a number, which every
    receiver checks: if a message is lost, duplicated or out of order, the exit code is 1. Speed is
    that of the slowest receiver.
    """
    from gapless_lab.bench.matrix import SkippedCell, conditions, measure
    from gapless_lab.bench.plan import BenchPlan

    plan = BenchPlan(
        members=members,
        senders=members if senders is None else senders,
        sizes_bytes=size,
        transports=tuple(filter(None, map(str.strip, transport.split(",")))),
        losses=loss,
        unicast=mode == "unicast",
        settings=pop_changed_settings(options),
        trace="" if trace is None else str(trace.absolute()),
        **options,
    )
    about = conditions(plan)
    found: list[Any] = []
    with progress_bar("measure", len(plan.cells), quiet=as_json) as progress:
        for figure in measure(plan):
            found.append(figure)
            progress(len(found))
    skipped = [figure for figure in found if isinstance(figure, SkippedCell)]
    made = [figure for figure in found if not isinstance(figure, SkippedCell)]
    rows, left_out = ([figure._asdict() for figure in figures] for figures in (made, skipped))
    return print_result(
        {"conditions": about, "figures": rows, "skipped": left_out},
        partial(_show, plan, about, made, skipped),
        is_sound=all(getattr(figure, "is_sound", True) for figure in made),
        as_json=as_json,
    )


def _show(
    plan: BenchPlan, about: dict[str, object], made: list[Any], skipped: list[SkippedCell]
) -> None:
    screen = console()
    screen.print(", ".join(f"{key} {value}" for key, value in about.items()), style="dim")
    if made:
        screen.print(_round_trips(made) if plan.rtt else _throughput(made))
    for (transport, reason), count in Counter(
        (figure.transport, figure.reason) for figure in skipped
    ).items():
        screen.print(f"skipped {count} of {transport}: {reason}", style="yellow")


def _throughput(made: list[ThroughputResult]) -> Table:
    columns = ("transport", "bytes", "loss", "messages/s", "MB/s", "CPU s/M", "repairs", "in order")
    rows = [
        (
            *(f.transport, f.size_bytes, f"{f.loss:.1%}"),
            *(f.messages_per_s, f.mb_per_s, f.cpu_s_per_million, f.repairs, _verdict(f)),
        )
        for f in made
    ]
    return make_table("The slowest receiver; CPU seconds for a million deliveries", columns, rows)


def _verdict(figure: ThroughputResult) -> str:
    if figure.is_sound:
        return "yes"
    return f"{figure.lost} lost, {figure.duplicated} duplicated, {figure.out_of_order} out of order"


def _round_trips(made: list[RoundTripResult]) -> Table:
    columns = ("transport", "bytes", "loss", "requests", "p50 µs", "p99 µs", "p99.9 µs")
    rows = [
        (f.transport, f.size_bytes, f"{f.loss:.1%}", f.requests, f.p50_us, f.p99_us, f.p99_9_us)
        for f in made
    ]
    return make_table("Request and answer", columns, rows)
