"""The experiments as commands: ``python -m experiments join-under-load``, ``scale`` and others.

All exit with 0 if every guarantee held, with 1 if a message was lost or a member was stuck, and
with 2 and a single line if the input is wrong.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from experiments import join_under_load
from experiments.failures.commands import COMMANDS
from experiments.growth_page import growth_page
from experiments.scale import (
    DELAY_NS as SCALE_DELAY_NS,
    HANDLING_NS,
    IDLE_NS,
    MEMBERS,
    PACE_NS,
    SIZE_BYTES,
    scale,
)
from gapless.cli.parameters import available_cores
from gapless.cli.rendering import console, json_option, make_table, print_json, progress_bar
from gapless.errors import GaplessError
from gapless.units import NS_PER_MS, NS_PER_S, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from experiments.join_under_load import JoinResult
    from experiments.scale import GroupSizeResult, MembershipChangeCost, TrafficCost

MAX_MEMBERS = 1000
"""The largest group of an experiment."""
EXIT_USAGE = 2
_MIN_FOR_JOINS, _MAX_FOR_JOINS = 3, 26
_SHOWN_PROBLEMS = 10

_seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Random seed."
)
_workers_option = click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=None,
    help="Processes (default: one per core).",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def experiments() -> None:
    """Measure groups that make their own views (joins, scale and failures in docs/internals)."""


for _command in COMMANDS:
    experiments.add_command(_command)


def parse_sizes(text: str) -> list[int]:
    """Return the numbers of members of a list such as ``2,10,50``, smallest first."""
    found = {_number(part.strip(), text) for part in text.split(",")}
    return sorted(found)


def _number(part: str, text: str) -> int:
    whole = part.isascii() and part.isdigit() and len(part) <= len(str(MAX_MEMBERS))
    if not whole or not 2 <= int(part) <= MAX_MEMBERS:
        raise click.UsageError(
            f"--members: {part[:80]!r} in {text[:80]!r} is not a number of members "
            f"from 2 to {MAX_MEMBERS}; "
            "a list is 2,10,50"
        )
    return int(part)


# Joins under load


@experiments.command("join-under-load")
@_seed_option
@_workers_option
@click.option("--members", default="4", show_default=True, metavar="N", help="Members at first.")
@click.option(
    "--joins", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Joins in a row."
)
@json_option
def joins_command(seed: int, workers: int | None, members: str, joins: int, as_json: bool) -> int:
    """Let members join in sequence while a member sends and views are late."""
    sizes = parse_sizes(members)
    if len(sizes) != 1 or not _MIN_FOR_JOINS <= sizes[0] <= _MAX_FOR_JOINS:
        raise click.UsageError(
            f"--members: expected one number from {_MIN_FOR_JOINS} to {_MAX_FOR_JOINS}, "
            f"not {members[:80]!r}"
        )
    chosen = join_under_load.parameter_grid(joins, sizes[0], seed)
    began_s = perf_counter()
    with progress_bar("settings", len(chosen), quiet=as_json) as done:
        rows = join_under_load.join_under_load(
            chosen, workers=workers or available_cores(), progress=done
        )
    report = joins_dict(rows, perf_counter() - began_s)
    if as_json:
        print_json(report)
    else:
        _print_joins(rows, report)
    return 0 if all(row.ok for row in rows) else 1


def joins_dict(rows: Sequence[JoinResult], wall_s: float) -> dict[str, Any]:
    """Return the ``--json`` output of joins under load."""
    return {
        "scenario": "join-under-load",
        "members": rows[0].parameters.members,
        "seed": rows[0].parameters.seed,
        "frame_delay_seconds": join_under_load.DELAY_NS / NS_PER_S,
        "joins": sum(row.joins for row in rows),
        "stuck": sum(row.stuck for row in rows),
        "max_sender_pause_seconds": max(row.pause_ns for row in rows) / NS_PER_S,
        "lost": sum(row.lost for row in rows),
        "delivered_before_view": sum(row.before_view for row in rows),
        "delays": [_joins_row(row) for row in rows],
        "problems": [problem for row in rows for problem in row.problems],
        "wall_seconds": round(wall_s, 2),
    }


def _joins_row(row: JoinResult) -> dict[str, Any]:
    setting = row.parameters
    return {
        "view_delay_seconds": setting.view_delay_ns / NS_PER_S,
        "capacity": setting.capacity,
        "loss_percent": setting.loss_percent,
        "full_speed": not setting.pace_ns,
        "joins": row.joins,
        "stuck": row.stuck,
        "max_sender_pause_seconds": row.pause_ns / NS_PER_S,
        "baseline_pause_seconds": row.baseline_ns / NS_PER_S,
        "leave_pause_seconds": row.leave_pause_ns / NS_PER_S,
        "lost": row.lost,
        "delivered_before_view": row.before_view,
        "join_seconds": {
            "median": _seconds(row.median_join_ns),
            "max": _seconds(max(row.join_ns, default=None)),
        },
        "sent": row.sent,
        "delivered": row.delivered,
        "simulated_seconds": row.simulated_ns / NS_PER_S,
    }


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else round(time_ns / NS_PER_S, 6)


def _print_joins(rows: Sequence[JoinResult], report: dict[str, Any]) -> None:
    screen = console()
    delay = format_duration(join_under_load.DELAY_NS)
    screen.print(
        f"{report['members']} members, one of them sends; a frame takes {delay}, a view longer"
    )
    columns = ("late", "window", "loss", "joins", "stuck", "lost", "pause", "calm", "join", "max")
    shown = [
        (
            format_duration(row.parameters.view_delay_ns),
            row.parameters.capacity,
            f"{row.parameters.loss_percent:g} %",
            row.joins,
            row.stuck,
            row.lost,
            *(
                _shown_seconds(time_ns)
                for time_ns in (
                    row.pause_ns,
                    row.baseline_ns,
                    row.median_join_ns,
                    max(row.join_ns, default=None),
                )
            ),
        )
        for row in rows
    ]
    screen.print(_numeric(make_table("Joins under load", columns, shown)))
    screen.print(
        "late: by how much views are; pause: the longest without a new message while members join;"
    )
    screen.print(
        "calm: the same without joins; join, max: until a message is delivered; virtual seconds"
    )
    before_view = report["delivered_before_view"]
    totals = f"{report['stuck']} stuck, {report['lost']} lost, {before_view} from before the view"
    screen.print(f"{report['joins']} joins: {totals}; {report['wall_seconds']:.1f} s of real time")
    _print_problems(report["problems"])


def _shown_seconds(time_ns: int | None) -> str:
    return "never" if time_ns is None else f"{time_ns / NS_PER_S:,.3f}"


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems[:_SHOWN_PROBLEMS]:
        console().print(problem, highlight=False)


# Scale


@experiments.command("scale")
@_seed_option
@_workers_option
@click.option(
    "--members", default=",".join(map(str, MEMBERS)), show_default=True, help="Sizes of the group."
)
@click.option(
    "--messages",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Messages of each sender.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), default=None, help="Write the charts to this page."
)
@json_option
def scale_command(
    seed: int, workers: int | None, members: str, messages: int, plot: Path | None, as_json: bool
) -> int:
    """Measure costs and times for groups of several sizes."""
    sizes = parse_sizes(members)
    if plot is not None and not plot.parent.is_dir():
        raise click.UsageError(f"--plot: there is no folder {str(plot.parent)!r}; make it first")
    began_s = perf_counter()
    with progress_bar("sizes", len(sizes), quiet=as_json) as done:
        found = scale(
            sizes,
            messages=messages,
            seed=seed,
            workers=workers or available_cores(),
            progress=done,
        )
    report = scale_dict(found, messages, seed, perf_counter() - began_s)
    if plot is not None:
        plot.write_text(growth_page(found), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        _print_scale(found, report)
    return 0 if all(size.ok for size in found) else 1


def scale_dict(
    found: Sequence[GroupSizeResult], messages: int, seed: int, wall_s: float
) -> dict[str, Any]:
    """Return the ``--json`` output of the growth of the group."""
    return {
        "scenario": "scale",
        "seed": seed,
        "messages_per_sender": messages,
        "size_bytes": SIZE_BYTES,
        "pace_ms": PACE_NS / NS_PER_MS,
        "frame_delay_ms": SCALE_DELAY_NS / NS_PER_MS,
        "datagram_handling_ms": HANDLING_NS / NS_PER_MS,
        "sizes": [_size_dict(size) for size in found],
        "lost": sum(size.lost for size in found),
        "delivered_before_view": sum(size.before_view for size in found),
        "problems": [
            f"{size.members} members: {problem}" for size in found for problem in size.problems
        ],
        "wall_seconds": round(wall_s, 2),
    }


def _size_dict(size: GroupSizeResult) -> dict[str, Any]:
    per = max(1, size.delivered)
    control = [kind for kind in size.load.frames if kind != "DATA"]
    return {
        "members": size.members,
        "delivered": size.delivered,
        "control_frames_per_message": round(size.control_frames_per_message, 5),
        "control_bytes_per_message": round(size.control_bytes_per_message, 3),
        "control_frames_per_message_by_kind": {
            kind: round(size.load.frames[kind] / per, 5) for kind in control
        },
        "control_bytes_per_message_by_kind": {
            kind: round(size.load.sizes_bytes[kind] / per, 3) for kind in control
        },
        "control_frames_per_send": round(size.control_frames_per_send, 3),
        "heartbeats_per_member_and_second": round(size.heartbeats, 3),
        "idle": _cost_dict(size.idle),
        "view_install_seconds": _seconds(size.view_ns),
        "join_seconds": _seconds(size.join_ns),
        "join_all_streams_seconds": _seconds(size.started_ns),
        "crash_to_view_seconds": _seconds(size.changes["crash"].total_ns),
        "coordinator_crash_to_view_seconds": _seconds(size.changes["coordinator crash"].total_ns),
        "form": _change_dict(size.form),
        "form_one_by_one": None if size.one_by_one is None else _change_dict(size.one_by_one),
        "changes": {name: _change_dict(change) for name, change in size.changes.items()},
        "lost": size.lost,
        "delivered_before_view": size.before_view,
        "events": size.events,
        "frames": size.frames,
        "cpu_seconds": round(size.cpu_s, 2),
    }


def _change_dict(change: MembershipChangeCost) -> dict[str, Any]:
    return {
        "seconds": _seconds(change.total_ns),
        "view_install_seconds": _seconds(change.view_ns),
        "views": change.views,
        **_cost_dict(change.cost),
    }


def _cost_dict(cost: TrafficCost) -> dict[str, Any]:
    return {"frames": cost.frames, "bytes": cost.sizes_bytes}


def _print_scale(found: Sequence[GroupSizeResult], report: dict[str, Any]) -> None:
    screen = console()
    screen.print(
        f"a frame takes {report['frame_delay_ms']:g} ms; all times but the last column are virtual"
    )
    screen.print(_cost_table(found))
    screen.print(
        "per send: frames; beats: of one idle member; "
        "join, form: frames when one joins, when all do"
    )
    screen.print(_time_table(found))
    screen.print(
        "all: until a joiner knows every stream; first: a crash of the coordinator; cpu: real time"
    )
    screen.print(
        f"{report['lost']} lost, {report['delivered_before_view']} from before the view, "
        f"{len(report['problems'])} problems; {report['wall_seconds']:.1f} s of real time"
    )
    _print_problems(report["problems"])


def _cost_table(found: Sequence[GroupSizeResult]) -> Table:
    columns = (
        "members",
        "frames",
        "bytes",
        "per send",
        "beats/s",
        "idle kB/s",
        "join",
        "form",
    )
    rows = [
        (
            size.members,
            f"{size.control_frames_per_message:.3f}",
            f"{size.control_bytes_per_message:.1f}",
            f"{size.control_frames_per_send:,.1f}",
            f"{size.heartbeats:.2f}",
            f"{size.idle.control_bytes * NS_PER_S / IDLE_NS / 1000:,.1f}",
            f"{size.changes['join'].cost.control_frames:,}",
            f"{size.form.cost.control_frames:,}",
        )
        for size in found
    ]
    return _numeric(
        make_table("Control (all but data): frames and bytes per delivery, …", columns, rows)
    )


def _time_table(found: Sequence[GroupSizeResult]) -> Table:
    columns = ("members", "form", "view", "join", "all", "leave", "crash", "first", "cpu")
    rows = [
        (
            size.members,
            _shown_seconds(size.form.total_ns),
            *(
                "never" if time_ns is None else f"{time_ns / NS_PER_MS:,.1f}"
                for time_ns in (
                    size.view_ns,
                    size.join_ns,
                    size.started_ns,
                    size.changes["leave"].total_ns,
                )
            ),
            _shown_seconds(size.changes["crash"].total_ns),
            _shown_seconds(size.changes["coordinator crash"].total_ns),
            f"{size.cpu_s:,.1f}",
        )
        for size in found
    ]
    return _numeric(make_table("Times in ms; form, crash, first and cpu in s", columns, rows))


def _numeric(table: Table) -> Table:
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return the exit code."""
    try:
        result = experiments.main(
            args=list(arguments), prog_name="python -m experiments", standalone_mode=False
        )
    except (click.ClickException, GaplessError, OSError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        sys.stderr.write(f"experiments: {' '.join(text.split())}\n")
        return EXIT_USAGE
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
