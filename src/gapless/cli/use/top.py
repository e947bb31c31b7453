"""``gapless top``: members, windows, rates and repairs of a group, and the slow members."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group as Stack
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gapless.cli.group_options import (
    display_name,
    group_options,
    joined_group,
    metrics_served,
    parse_endpoint,
    until_interrupted,
)
from gapless.cli.parameters import SECONDS
from gapless.cli.rendering import console, json_option, print_json
from gapless.errors import GaplessError
from gapless.identity import member_label
from gapless.output.printable import printable
from gapless.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from gapless.blocking import Group
    from gapless.identity import Address
    from gapless.protocol.snapshot import MemberSnapshot, StreamSnapshot

REQUEST_TIMEOUT_S = 2.0
"""How long to wait for the snapshot of a member before showing the member as silent."""
SLOW_AFTER_S = 1.0
"""How long a member must block a window to be shown as slow."""
UNREAD_THRESHOLD = 0.9
"""Share of ``unread_limit`` at which a member is shown as slow."""
MAX_CONCURRENT_REQUESTS = 16
"""Maximum number of snapshots requested at the same time."""


@click.command()
@click.argument("group")
@click.option(
    "--interval",
    "interval_s",
    default=1.0,
    show_default=True,
    type=SECONDS,
    help="Time between two observations.",
)
@click.option("--once", is_flag=True, help="Show one table after one interval, and end.")
@click.option(
    "--serve",
    metavar="[HOST:]PORT",
    help="Serve the metrics of all members at /metrics, for Prometheus.",
)
@group_options
@json_option
def top(
    group: str, interval_s: float, once: bool, serve: str | None, as_json: bool, **options: Any
) -> None:
    """Watch GROUP: the window, rates and repairs of every member, and the blocking members.

    The command joins the group, requests a snapshot of every member, and reads no messages. With
    --json it prints one object per interval with all snapshots. Ctrl-C ends.
    """
    endpoint = None if serve is None else parse_endpoint(serve)
    with (
        until_interrupted(),
        joined_group(group, options, quiet=True, listen=False) as member,
        metrics_served(lambda: filter(None, observe_group(member).snapshots.values()), endpoint),
    ):
        before = observe_group(member)
        if as_json or once:
            while True:
                threading.Event().wait(interval_s)
                now = observe_group(member)
                print_json(now.as_dict(before)) if as_json else console().print(
                    render_screen(now, before)
                )
                before = now
                if once:
                    return
        with Live(
            render_screen(before, None), console=console(), screen=True, auto_refresh=False
        ) as live:
            while True:
                threading.Event().wait(interval_s)
                now = observe_group(member)
                live.update(render_screen(now, before), refresh=True)
                before = now


@dataclass(frozen=True)
class GroupObservation:
    """The snapshots of all members; None for a silent member."""

    group: str
    at_s: float
    view: int
    me: str
    snapshots: dict[Address, MemberSnapshot | None]

    def rates(self, before: GroupObservation | None, member: Address) -> dict[str, float]:
        """Return the rates per second of one member since ``before``."""
        names = ("sent", "delivered", "repairs", "naks", "duplicates")
        now, former = (
            self.snapshots.get(member),
            None if before is None else before.snapshots.get(member),
        )
        if now is None or former is None or before is None or now.me != former.me:
            return dict.fromkeys(names, 0.0)
        passed_s = max(1e-9, self.at_s - before.at_s)
        grown = (
            max(0, after - first) for after, first in zip(totals(now), totals(former), strict=True)
        )
        return {name: round(value / passed_s, 1) for name, value in zip(names, grown, strict=True)}

    def as_dict(self, before: GroupObservation | None) -> dict[str, Any]:
        """Return the observation for a program."""
        rows = [
            {
                "member": str(member),
                "rates": self.rates(before, member),
                "snapshot": None if one is None else one.as_dict(),
            }
            for member, one in self.snapshots.items()
        ]
        return {
            "group": self.group,
            "view": self.view,
            "me": self.me,
            "slow": slow_members(self),
            "members": rows,
        }


def totals(one: MemberSnapshot) -> tuple[int, ...]:
    """Return totals: messages sent, delivered, repairs sent, seqnos requested, duplicates."""
    counters = one.counters
    return (
        one.gauges["sent"],
        one.gauges["delivered"],
        counters.get("sent.repair", 0),
        counters.get("naks.seqnos", 0),
        counters.get("dropped.duplicate", 0) + counters.get("dropped.old", 0),
    )


def observe_group(group: Group) -> GroupObservation:
    """Request the snapshots of all members at the same time."""
    view = group.view
    members = () if view is None else view.members

    def request(member: Address) -> MemberSnapshot | None:
        try:
            return group.snapshot(member, timeout=REQUEST_TIMEOUT_S)
        except GaplessError:
            return None

    with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, "gapless top") as pool:
        found = dict(zip(members, pool.map(request, members), strict=True))
    number = 0 if view is None else view.id.number
    return GroupObservation(group.group, time.monotonic(), number, str(group.me), found)


def slow_members(observation: GroupObservation) -> list[dict[str, Any]]:
    """Return the slow members with a reason: silent, not reading, or blocking a window."""
    found: list[dict[str, Any]] = []
    for member, one in observation.snapshots.items():
        if one is None:
            found.append(
                {
                    "member": str(member),
                    "reason": f"did not answer within {REQUEST_TIMEOUT_S:g} s",
                }
            )
        elif one.unread >= UNREAD_THRESHOLD * one.unread_limit:
            found.append(
                {
                    "member": str(one.me),
                    "reason": f"does not read: {one.unread:,} messages are unread",
                }
            )
    for one in filter(None, observation.snapshots.values()):
        for stream in one.streams:
            if stream.stalled_ns is not None and stream.stalled_ns >= SLOW_AFTER_S * 1e9:
                stalled_s = stream.stalled_ns / 1e9
                found += [
                    {
                        "member": str(blocker.member),
                        "reason": f"blocks the window of {one.me} for {stalled_s:.1f} s",
                    }
                    for blocker in stream.blockers
                ]
    return found


# For people


def render_screen(observation: GroupObservation, before: GroupObservation | None) -> RenderableType:
    """Return an observation as a screen for people."""
    labels = {
        str(member): display_name(member, "" if one is None else one.display_name)
        for member, one in observation.snapshots.items()
    }
    head = Text.assemble(
        (printable(observation.group), "bold"),
        f"  view {observation.view}, {format_count(len(observation.snapshots), 'member')},"
        f" {time.strftime('%H:%M:%S')};"
        " * is this command",
    )
    parts: list[RenderableType] = [head, _members(observation, before, labels)]
    slow = slow_members(observation)
    for one in slow:
        reason = one["reason"]
        for address, name in labels.items():
            reason = reason.replace(address, name)
        parts.append(Text(f"{labels.get(one['member'], one['member'])} {reason}", "red"))
    if not slow:
        parts.append(Text("no member is slow", "green"))
    return Stack(*parts)


def _members(
    observation: GroupObservation, before: GroupObservation | None, labels: dict[str, str]
) -> Table:
    rows = [_row(observation, before, member, labels) for member in observation.snapshots]
    table = Table(header_style="bold underline", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for at, column in enumerate(_COLUMNS):
        widest = max([len(column), *(len(row[at]) for row in rows)])
        last = at == len(_COLUMNS) - 1
        table.add_column(
            column,
            justify="right" if at in _NUMBERS else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=len(column) if last else widest,
        )
    for row in rows:
        table.add_row(*row, style="red" if row[-1] == SILENT else None)
    return table


_COLUMNS = (
    "member",
    "sent/s",
    "got/s",
    "window",
    "wait",
    "miss",
    "oldest",
    "rep/s",
    "unread",
    "blocked by",
)
_NUMBERS = {1, 2, 4, 5, 6, 7, 8}
SILENT = "does not answer"


def _row(
    observation: GroupObservation,
    before: GroupObservation | None,
    member: Address,
    labels: dict[str, str],
) -> list[str | Text]:
    one = observation.snapshots[member]
    name = labels[str(member)] + ("*" if str(member) == observation.me else "")
    if one is None:
        return [name, *[""] * (len(_COLUMNS) - 2), SILENT]
    rates, gauges = observation.rates(before, member), one.gauges
    blockers = [
        labels.get(str(blocker.member)) or printable(member_label(blocker.member, blocker.name))
        for blocker in one.blockers
    ]
    more = f" and {len(blockers) - 2} more" if len(blockers) > 2 else ""
    return [
        name,
        _rate(rates["sent"]),
        _rate(rates["delivered"]),
        window_bar(one.streams[0], gauges["capacity"]),
        f"{gauges['waiting']:,}",
        f"{gauges['missing']:,}",
        _oldest([peer.gap_ns for peer in one.peers]),
        _rate(rates["repairs"]),
        f"{gauges['unread']:,}",
        ", ".join(blockers[:2]) + more,
    ]


def window_bar(stream: StreamSnapshot, capacity: int) -> Text:
    """Return the fill level of a window, in messages or bytes, as a bar and a percentage."""
    share = max(
        (stream.high - stream.low) / max(1, capacity),
        stream.stored_bytes / max(1, stream.max_bytes),
    )
    share = min(1.0, share)
    full = round(5 * share)
    colour = "green" if share < 0.5 else "yellow" if share < 0.9 else "red"
    return Text.assemble(("█" * full + "░" * (5 - full), colour), f" {share:4.0%}")


def _rate(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    return f"{value / 1e3:.1f}k" if value >= 1e4 else f"{value:,.0f}"


def _oldest(ages_ns: Sequence[int | None]) -> str:
    known = [age_ns for age_ns in ages_ns if age_ns is not None]
    return f"{max(known) / 1e6:,.0f} ms" if known else ""
