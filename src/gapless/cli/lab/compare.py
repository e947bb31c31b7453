"""``gapless compare``: the same work for every profile, on lossy networks."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.parameters import MAX_SEED, SHARES, available_cores, format_share
from gapless.cli.rendering import (
    console,
    json_option,
    make_table,
    mutant_option,
    print_json,
    progress_bar,
    properties_option,
    resolve_mutant,
)
from gapless.errors import ConfigError
from gapless.units import NS_PER_MS, format_duration, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from gapless.sim.profile_cost import ProfileCell, ProfileComparison, SingleLoss

_SHOWN_VIOLATIONS = 10


@click.command()
@click.option(
    "--loss",
    default="0,1%,5%,10%",
    show_default=True,
    type=SHARES,
    help="Shares of frames to drop.",
)
@click.option(
    "--profiles", default=None, metavar="LIST", help="Profiles to compare (default: all)."
)
@click.option(
    "--members",
    type=click.IntRange(2, 26),
    default=3,
    show_default=True,
    help="Number of members, all senders.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 100_000),
    default=300,
    show_default=True,
    help="Messages per member.",
)
@click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(0, 1_000_000),
    default=100,
    show_default=True,
    help="Bytes per message.",
)
@click.option(
    "--pace",
    default="1ms",
    show_default=True,
    help="Time between two messages of a member: 1us to 1s.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEED),
    default=1,
    show_default=True,
    help="Seed of all randomness.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=None,
    help="Processes (default: one per core).",
)
@properties_option
@mutant_option
@json_option
def compare(  # noqa: PLR0917 - one parameter per option
    loss: tuple[float, ...],
    profiles: str | None,
    members: int,
    messages: int,
    size_bytes: int,
    pace: str,
    seed: int,
    workers: int | None,
    properties: str | None,
    mutant: str,
    as_json: bool,
) -> int:
    """Compare the profiles: the same work, on the same network, at several rates of loss.

    All runs are simulated, with every check on, and all times are virtual. With a multicast profile
    every member sends to the group; with a unicast profile every member sends to a neighbour. LIST
    is separated by commas. The same seed gives the same numbers. The settings of --properties apply
    to every profile. The exit code is 1 if an invariant is violated.
    """
    from gapless.sim.profile_cost import ProfileWorkload, compare as run

    rates, chosen = [loss_percent(share) for share in loss], _parse_profiles(profiles)
    changes = {"properties": properties or "", "bug": resolve_mutant(mutant)}
    work = ProfileWorkload(members, messages, size_bytes, pace_ns(pace), seed)
    began_s = perf_counter()
    with progress_bar("worlds", len(chosen) * (len(rates) + 1), quiet=as_json) as done:
        result = run(
            chosen, rates, work, workers=workers or available_cores(), progress=done, **changes
        )
    wall_s = perf_counter() - began_s
    if as_json:
        print_json(as_dict(result, wall_s))
    else:
        _print(result, wall_s)
    return 1 if result.violations else 0


# What is given


def _split_list(text: str, option: str, example: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise click.UsageError(
            f"{option} is a list such as {example}, but in {text!r} something is missing"
        )
    return list(dict.fromkeys(parts))


def loss_percent(share: float) -> float:
    """Return a share of the frames in per cent, as the simulator counts shares."""
    from gapless.sim.profile_cost import MAX_LOSS_PERCENT

    # Rounded, so that 7% is 7 and not 7.000000000000001: the rate is part of what a seed means.
    percent = round(share * 100, 10)
    if percent > MAX_LOSS_PERCENT:
        raise click.UsageError(
            f"--loss {format_share(share)}: expected a share from 0 to {MAX_LOSS_PERCENT}%"
        )
    return percent


def _parse_profiles(text: str | None) -> Sequence[str]:
    from gapless.sim.swarm.profile_draw import ALL_PROFILES

    if text is None:
        return ALL_PROFILES
    chosen = _split_list(text, "--profiles", ",".join(ALL_PROFILES[:2]))
    for name in chosen:
        if name not in ALL_PROFILES:
            raise click.UsageError(
                f"--profiles: there is no profile {name!r}; there are {', '.join(ALL_PROFILES)}"
            )
    return chosen


def pace_ns(text: str) -> int:
    """Return the time between two messages of a member."""
    from gapless.sim.profile_cost import PACES_NS

    try:
        found_ns = parse_duration(text)
    except ConfigError as error:
        raise click.UsageError(f"--pace: {error}") from error
    if found_ns not in PACES_NS:
        raise click.UsageError(f"--pace: {text} is not between 1us and 1s")
    return found_ns


# What is printed


def as_dict(result: ProfileComparison, wall_s: float) -> dict[str, Any]:
    """Return the output of ``--json``."""
    from gapless.sim.profile_cost import DELAY_NS

    work = result.work
    return {
        "members": work.members,
        "messages": work.messages,
        "size_bytes": work.size_bytes,
        "pace_ms": _ms(work.pace_ns),
        "delay_ms": _ms(DELAY_NS),
        "seed": work.seed,
        "profiles": [_cell_dict(cell) for cell in result.cells],
        "single_loss": [_single_dict(single) for single in result.single],
        "violations": len(result.violations),
        "wall_seconds": round(wall_s, 2),
    }


def _cell_dict(cell: ProfileCell) -> dict[str, Any]:
    return {
        "profile": cell.profile,
        "to": "all" if cell.to_all else "one",
        "loss_percent": cell.loss_percent,
        "sent": cell.sent,
        "expected": cell.expected,
        "delivered": cell.delivered,
        "messages_per_second": round(cell.per_second, 1),
        "latency_p50_ms": _ms(cell.p50_ns),
        "latency_p99_ms": _ms(cell.p99_ns),
        "latency_max_ms": _ms(cell.max_ns),
        "peak_window": cell.peak_window,
        "stalls": cell.stalls,
        "frames_lost": cell.frames_lost,
        "frames": cell.frames,
        "bytes": cell.sizes_bytes,
        "frames_per_message": {
            kind: round(cell.per_message(count), 5) for kind, count in cell.frames.items()
        },
        "bytes_per_message": {
            kind: round(cell.per_message(count), 3) for kind, count in cell.sizes_bytes.items()
        },
        "violations": [str(violation) for violation in cell.violations],
    }


def _single_dict(single: SingleLoss) -> dict[str, Any]:
    times = {f"{what}_ms": _ms(time_ns) for what, time_ns in single.delivered_ns.items()}
    return {
        "profile": single.profile,
        **times,
        "violations": [str(violation) for violation in single.violations],
    }


def _ms(time_ns: int | None) -> float | None:
    return None if time_ns is None else round(time_ns / NS_PER_MS, 3)


def _print(result: ProfileComparison, wall_s: float) -> None:
    from gapless.sim.profile_cost import DELAY_NS

    screen, work = console(), result.work
    pace, delay = format_duration(work.pace_ns), format_duration(DELAY_NS)
    screen.print(
        f"{work.members} members, {work.messages:,} messages of {work.size_bytes:,} B each, "
        f"one every {pace}"
    )
    screen.print(f"a frame takes {delay}; all times are virtual")
    screen.print(_delivery_table(result.cells))
    screen.print(
        _cost_table("Frames for each delivered message", result.cells, lambda cell: cell.frames, 3)
    )
    screen.print(
        _cost_table(
            "Bytes for each delivered message", result.cells, lambda cell: cell.sizes_bytes, 1
        )
    )
    screen.print(_single_table(result.single))
    screen.print(
        f"{len(result.violations)} violations of the invariants; {wall_s:.1f} s of real time"
    )
    for line in _violations(result)[:_SHOWN_VIOLATIONS]:
        screen.print(line, highlight=False)


def _violations(result: ProfileComparison) -> list[str]:
    at_loss = [
        f"{cell.profile} at {cell.loss_percent:g} %: {found}"
        for cell in result.cells
        for found in cell.violations
    ]
    single = [
        f"{part.profile}, one frame lost: {found}"
        for part in result.single
        for found in part.violations
    ]
    return at_loss + single


def _delivery_table(cells: Sequence[ProfileCell]) -> Table:
    columns = (
        "loss",
        "profile",
        "to",
        "delivered",
        "messages/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "window",
        "stalls",
    )
    rows = [
        (
            f"{cell.loss_percent:g} %",
            cell.profile,
            "all" if cell.to_all else "one",
            _share(cell),
            f"{cell.per_second:,.0f}",
            *(_time(time_ns) for time_ns in (cell.p50_ns, cell.p99_ns, cell.max_ns)),
            f"{cell.peak_window:,}",
            str(cell.stalls),
        )
        for cell in cells
    ]
    return _sectioned(
        make_table("Delivery: from the call of send to each receiver", columns, rows), cells, 3
    )


def _cost_table(
    title: str,
    cells: Sequence[ProfileCell],
    counts: Callable[[ProfileCell], dict[str, int]],
    digits: int,
) -> Table:
    from gapless.sim.profile_cost import KINDS

    rows = []
    for cell in cells:
        totals = [*(counts(cell)[kind] for kind in KINDS), sum(counts(cell).values())]
        costs = [f"{cell.per_message(total):,.{digits}f}" if total else "0" for total in totals]
        rows.append((f"{cell.loss_percent:g} %", cell.profile, *costs))
    return _sectioned(make_table(title, ("loss", "profile", *KINDS, "all"), rows), cells, 2)


def _single_table(singles: Sequence[SingleLoss]) -> Table:
    from gapless.sim.profile_cost import LOST_FRAMES, SINGLE_LOSS_MESSAGES

    rows = [
        (single.profile, *(_time(single.delivered_ns[what]) for what in LOST_FRAMES))
        for single in singles
    ]
    columns = (
        "profile",
        "the only message, ms",
        f"the first of {SINGLE_LOSS_MESSAGES}, ms",
        f"the last of {SINGLE_LOSS_MESSAGES}, ms",
    )
    table = make_table(
        "One frame lost between two members: until its message is delivered", columns, rows
    )
    return _numeric(table, 1)


def _share(cell: ProfileCell) -> str:
    """Return the delivered share; only a complete delivery is 100 %."""
    percent = 100 * cell.delivered / cell.expected
    return "100 %" if cell.delivered == cell.expected else f"{min(percent, 99.9):.1f} %"


def _time(time_ns: int | None) -> str:
    return "never" if time_ns is None else f"{time_ns / NS_PER_MS:,.1f}"


def _sectioned(table: Table, cells: Sequence[ProfileCell], text_columns: int) -> Table:
    """Rule off the rows of each loss."""
    for row, cell, following in zip(table.rows, cells, cells[1:], strict=False):
        row.end_section = cell.loss_percent != following.loss_percent
    return _numeric(table, text_columns)


def _numeric(table: Table, text_columns: int) -> Table:
    for column in table.columns[text_columns:]:
        column.justify = "right"
    return table
