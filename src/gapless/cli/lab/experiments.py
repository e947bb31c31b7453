"""``gapless sim --scenario``: whole experiments with groups that keep their own views."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gapless.cli.rendering import console, make_table, print_json, progress_bar
from gapless.units import NS_PER_MS, NS_PER_S, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from gapless.cli.lab.plot import PlotPanel
    from gapless.sim.joins import JoinResult
    from gapless.sim.scale import GroupSizeResult, MembershipChangeCost, TrafficCost

MAX_MEMBERS = 1000
"""The largest group of an experiment."""
_MIN_FOR_JOINS, _MAX_FOR_JOINS = 3, 26
_SHOWN_PROBLEMS = 10


class ExperimentOptions(NamedTuple):
    """What was asked for on the command line; None where nothing was said."""

    members: str | None
    messages: int | None
    joins: int | None
    plot: Path | None
    seed: int
    workers: int
    as_json: bool


def run_scenario(name: str, wish: ExperimentOptions) -> int:
    """Run the experiment ``name``; return the exit code."""
    if name not in SCENARIOS:
        raise click.UsageError(
            f"--scenario: there is no scenario {name!r}; there are {', '.join(SCENARIOS)}"
        )
    return SCENARIOS[name](wish)


def parse_sizes(text: str) -> list[int]:
    """Return the numbers of members of a list such as ``2,10,50``, smallest first."""
    found = {_number(part.strip(), text) for part in text.split(",")}
    return sorted(found)


def _number(part: str, text: str) -> int:
    whole = part.isascii() and part.isdigit() and len(part) <= len(str(MAX_MEMBERS))
    if not whole or not 2 <= int(part) <= MAX_MEMBERS:
        raise click.UsageError(
            f"--members: {part[:80]!r} in {text[:80]!r} is not a number of members from 2 to {MAX_MEMBERS}; "
            "a list is 2,10,50"
        )
    return int(part)


def _reject_unused_options(wish: ExperimentOptions, *names: str) -> None:
    """Refuse options that mean nothing in this scenario."""
    for name in names:
        if getattr(wish, name) is not None:
            raise click.UsageError(f"--{name} means nothing in this scenario: leave it out")


# Joins under load


def _joins(wish: ExperimentOptions) -> int:
    from gapless.sim.joins import join_under_load, parameter_grid

    _reject_unused_options(wish, "messages", "plot")
    members = 4
    if wish.members is not None:
        sizes = parse_sizes(wish.members)
        if len(sizes) != 1 or not _MIN_FOR_JOINS <= sizes[0] <= _MAX_FOR_JOINS:
            raise click.UsageError(
                f"--members: joins under load need one number from {_MIN_FOR_JOINS} to {_MAX_FOR_JOINS}, "
                f"not {wish.members[:80]!r}"
            )
        members = sizes[0]
    chosen = parameter_grid(wish.joins or 20, members, wish.seed)
    began_s = perf_counter()
    with progress_bar("settings", len(chosen), quiet=wish.as_json) as done:
        rows = join_under_load(chosen, workers=wish.workers, progress=done)
    report = joins_dict(rows, perf_counter() - began_s)
    if wish.as_json:
        print_json(report)
    else:
        _print_joins(rows, report)
    return 0 if all(row.ok for row in rows) else 1


def joins_dict(rows: Sequence[JoinResult], wall_s: float) -> dict[str, Any]:
    """Return what ``--json`` prints of joins under load."""
    from gapless.sim.joins import DELAY_NS

    return {
        "scenario": "join-under-load",
        "members": rows[0].parameters.members,
        "seed": rows[0].parameters.seed,
        "frame_delay_seconds": DELAY_NS / NS_PER_S,
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
    from gapless.sim.joins import DELAY_NS

    screen = console()
    delay = format_duration(DELAY_NS)
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
        "calm: the same while nobody does; join, max: until a message is delivered; virtual seconds"
    )
    totals = f"{report['stuck']} stuck, {report['lost']} lost, {report['delivered_before_view']} from before the view"
    screen.print(f"{report['joins']} joins: {totals}; {report['wall_seconds']:.1f} s of real time")
    _print_problems(report["problems"])


def _shown_seconds(time_ns: int | None) -> str:
    return "never" if time_ns is None else f"{time_ns / NS_PER_S:,.3f}"


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems[:_SHOWN_PROBLEMS]:
        console().print(problem, highlight=False)


# Scale


def _scale(wish: ExperimentOptions) -> int:
    from gapless.sim.scale import MEMBERS, scale

    _reject_unused_options(wish, "joins")
    sizes = list(MEMBERS) if wish.members is None else parse_sizes(wish.members)
    messages = wish.messages or 100
    if wish.plot is not None and not wish.plot.parent.is_dir():
        raise click.UsageError(
            f"--plot: there is no folder {str(wish.plot.parent)!r}; make it first"
        )
    began_s = perf_counter()
    with progress_bar("sizes", len(sizes), quiet=wish.as_json) as done:
        found = scale(sizes, messages=messages, seed=wish.seed, workers=wish.workers, progress=done)
    report = scale_dict(found, messages, wish.seed, perf_counter() - began_s)
    if wish.plot is not None:
        from gapless.cli.lab.plot import svg

        wish.plot.write_text(svg(panels_of(found)), encoding="utf-8")
    if wish.as_json:
        print_json(report)
    else:
        _print_scale(found, report)
    return 0 if all(size.ok for size in found) else 1


def scale_dict(
    found: Sequence[GroupSizeResult], messages: int, seed: int, wall_s: float
) -> dict[str, Any]:
    """Return what ``--json`` prints of the growth of the group."""
    from gapless.sim.scale import DELAY_NS, HANDLING_NS, PACE_NS, SIZE_BYTES

    return {
        "scenario": "scale",
        "seed": seed,
        "messages_per_sender": messages,
        "size_bytes": SIZE_BYTES,
        "pace_ms": PACE_NS / NS_PER_MS,
        "frame_delay_ms": DELAY_NS / NS_PER_MS,
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


def panels_of(found: Sequence[GroupSizeResult]) -> list[PlotPanel]:
    """Return the plots of docs/scale.md."""
    from gapless.cli.lab.plot import PlotLine, PlotPanel
    from gapless.sim.scale import IDLE_NS

    xs = [float(size.members) for size in found]

    def panel(
        title: str, *lines: tuple[str, Callable[[GroupSizeResult], float | None]]
    ) -> PlotPanel:
        return PlotPanel(
            title,
            "members",
            xs,
            [PlotLine(name, [value(size) for size in found]) for name, value in lines],
        )

    def ms(time_ns: int | None) -> float | None:
        return None if time_ns is None else time_ns / NS_PER_MS

    return [
        panel(
            "Control, for each delivered message",
            ("bytes", lambda size: size.control_bytes_per_message),
            ("frames", lambda size: size.control_frames_per_message),
        ),
        panel(
            "Control frames for each message sent",
            ("frames", lambda size: size.control_frames_per_send),
        ),
        panel(
            "Time, in ms",
            ("all at once", lambda size: ms(size.form.total_ns)),
            ("join", lambda size: ms(size.join_ns)),
            ("join, all streams", lambda size: ms(size.started_ns)),
            ("view", lambda size: ms(size.view_ns)),
        ),
        panel(
            "Control bytes in all",
            ("all at once", lambda size: size.form.cost.control_bytes),
            ("one join", lambda size: size.changes["join"].cost.control_bytes),
            ("one second idle", lambda size: size.idle.control_bytes * NS_PER_S / IDLE_NS),
        ),
    ]


def _print_scale(found: Sequence[GroupSizeResult], report: dict[str, Any]) -> None:
    screen = console()
    screen.print(
        f"a frame takes {report['frame_delay_ms']:g} ms; all times but the last column are virtual"
    )
    screen.print(_cost_table(found))
    screen.print(
        "per send: frames; beats: of one idle member; join, form: frames when one joins, when all do"
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
    from gapless.sim.scale import IDLE_NS

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


SCENARIOS: dict[str, Callable[[ExperimentOptions], int]] = {
    "join-under-load": _joins,
    "scale": _scale,
}
"""Every experiment, by name."""
