"""``gapless bench``: the throughput of a group of real processes on this machine."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.group_options import trace_options
from gapless.cli.parameters import SECONDS, SHARES, SIZES
from gapless.cli.rendering import (
    config_options,
    console,
    json_option,
    make_table,
    print_json,
    progress_bar,
    read_config,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from gapless_lab.bench.matrix import BenchPlan, RoundTripResult, SkippedCell, ThroughputResult


@click.command()
@click.option(
    "--members", default=3, show_default=True, metavar="N", type=int, help="Processes of the group."
)
@click.option("--senders", metavar="N", type=int, help="Members that send; all by default.")
@click.option(
    "--size",
    default="100,1000,10000",
    show_default=True,
    type=SIZES,
    help="Sizes of a message.",
)
@click.option(
    "--transport",
    default="udp",
    show_default=True,
    metavar="NAME,…",
    help="Transports, such as udp,tcp.",
)
@click.option(
    "--loss", default="0", show_default=True, type=SHARES, help="Share of datagrams to lose."
)
@click.option(
    "--mode", default="multicast", show_default=True, type=click.Choice(["multicast", "unicast"])
)
@click.option("--rtt", is_flag=True, help="Measure requests and their answers instead.")
@click.option(
    "--seconds", default="3s", show_default=True, type=SECONDS, help="Length of one measurement."
)
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
    rtt: bool,
    seconds: float,
    trace: Path | None,
    trace_mode: str,
    profile: str | None,
    config_file: Path | None,
    properties: str | None,
    as_json: bool,
) -> int:
    """Measure groups of real processes on this machine, for every size, transport and loss.

    Members send as fast as flow control permits. Every message carries a number, which every
    receiver checks: if a message is lost, duplicated or out of order, the exit code is 1. Speed is
    that of the slowest receiver.
    """
    from gapless_lab.bench.matrix import BenchPlan, SkippedCell, conditions, measure

    plan = BenchPlan(
        members=members,
        senders=members if senders is None else senders,
        sizes_bytes=size,
        transports=tuple(filter(None, map(str.strip, transport.split(",")))),
        losses=loss,
        seconds=seconds,
        unicast=mode == "unicast",
        rtt=rtt,
        settings=changed_settings(profile, config_file, properties),
        trace="" if trace is None else str(trace.absolute()),
        trace_mode=trace_mode,
    )
    about = conditions(plan)
    found: list[ThroughputResult | RoundTripResult | SkippedCell] = []
    with progress_bar(
        "measure", len(plan.cells), quiet=as_json or not sys.stderr.isatty()
    ) as progress:
        for figure in measure(plan):
            found.append(figure)
            progress(len(found))
    skipped = [figure for figure in found if isinstance(figure, SkippedCell)]
    made = [figure for figure in found if not isinstance(figure, SkippedCell)]
    if as_json:
        rows, left_out = (
            [figure._asdict() for figure in made],
            [figure._asdict() for figure in skipped],
        )
        print_json({"conditions": about, "figures": rows, "skipped": left_out})
    else:
        _show(plan, about, made, skipped)
    return 0 if all(getattr(figure, "is_sound", True) for figure in made) else 1


def changed_settings(
    profile: str | None, config_file: Path | None, properties: str | None
) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    from gapless.config import Config

    usual = Config().as_dict()
    return {
        key: value
        for key, value in read_config(profile, config_file, properties).as_dict().items()
        if value != usual[key]
    }


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
            figure.transport,
            figure.size_bytes,
            f"{figure.loss:.1%}",
            figure.messages_per_s,
            figure.mb_per_s,
            figure.cpu_s_per_million,
            figure.repairs,
            _verdict(figure),
        )
        for figure in made
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
