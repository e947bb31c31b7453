"""``gapless top``: members, windows, rates and repairs of a group, and who is slow."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group as Stack
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from gapless.blocking import Group
    from gapless.identity import Address
    from gapless.protocol.snapshot import MemberSnapshot, StreamSnapshot

REQUEST_TIMEOUT_S = 2.0
"""A member that has not answered after this time is shown as silent."""
SLOW_AFTER_S = 1.0
"""Who holds a window for so long is named."""
UNREAD_THRESHOLD = 0.9
"""Who has left so much of what it may leave unread is named."""
MAX_CONCURRENT_REQUESTS = 16
"""So many members are asked at the same time."""


@click.command()
@click.argument("group")
@click.option(
    "--interval",
    "interval_s",
    default=1.0,
    show_default=True,
    type=SECONDS,
    help="Time between looks.",
)
@click.option("--once", is_flag=True, help="Look twice, an interval apart, show that, and end.")
@click.option(
    "--serve",
    metavar="[HOST:]PORT",
    help="Serve the figures of all members at /metrics, for Prometheus.",
)
@group_options
@json_option
def top(
    group: str, interval_s: float, once: bool, serve: str | None, as_json: bool, **options: Any
) -> None:
    """Watch GROUP: every member with its windows, its rates, its repairs, and who holds whom up.

    It joins the group to ask every member how it stands, and reads nothing itself. With --json one
    object for every look, with everything that members answer. Ctrl-C ends.
    """
    place = None if serve is None else parse_endpoint(serve)
    with (
        until_interrupted(),
        joined_group(group, options, quiet=True, listen=False) as member,
        metrics_served(lambda: filter(None, observe_group(member).snapshots.values()), place),
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
            render_screen(before, None), console=Console(), screen=True, auto_refresh=False
        ) as live:
            while True:
                threading.Event().wait(interval_s)
                now = observe_group(member)
                live.update(render_screen(now, before), refresh=True)
                before = now


@dataclass(frozen=True)
class GroupObservation:
    """What every member has answered; None for one that has not."""

    group: str
    at_s: float
    view: int
    me: str
    snapshots: dict[Address, MemberSnapshot | None]

    def rates(self, before: GroupObservation | None, member: Address) -> dict[str, float]:
        """Return what has grown in a second, since the sight before."""
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
        """Return it for a program."""
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
    """Return what only grows: messages sent and delivered, repairs sent, seqnos asked for, duplicates."""
    counters = one.counters
    return (
        one.gauges["sent"],
        one.gauges["delivered"],
        counters.get("sent.repair", 0),
        counters.get("naks.seqnos", 0),
        counters.get("dropped.duplicate", 0) + counters.get("dropped.old", 0),
    )


def observe_group(group: Group) -> GroupObservation:
    """Ask every member how it stands, all at the same time."""
    view = group.view
    members = () if view is None else view.members

    def ask(member: Address) -> MemberSnapshot | None:
        try:
            return group.snapshot(member, timeout=REQUEST_TIMEOUT_S)
        except GaplessError:
            return None

    with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, "gapless top") as pool:
        found = dict(zip(members, pool.map(ask, members), strict=True))
    number = 0 if view is None else view.id.number
    return GroupObservation(group.group, time.monotonic(), number, str(group.me), found)


def slow_members(sight: GroupObservation) -> list[dict[str, Any]]:
    """Return who is slow, and why that is known: silent, not reading, or holding a window."""
    found: list[dict[str, Any]] = []
    for member, one in sight.snapshots.items():
        if one is None:
            found.append(
                {
                    "member": str(member),
                    "reason": f"has not answered within {REQUEST_TIMEOUT_S:g} s",
                }
            )
        elif one.unread >= UNREAD_THRESHOLD * one.unread_limit:
            found.append(
                {
                    "member": str(one.me),
                    "reason": f"does not read: {one.unread:,} messages wait for it",
                }
            )
    for one in filter(None, sight.snapshots.values()):
        for stream in one.streams:
            if stream.stalled_ns is not None and stream.stalled_ns >= SLOW_AFTER_S * 1e9:
                unmoved_s = stream.stalled_ns / 1e9
                found += [
                    {
                        "member": str(blocker.member),
                        "reason": f"holds the window of {one.me} for {unmoved_s:.1f} s",
                    }
                    for blocker in stream.blockers
                ]
    return found


# For people


def render_screen(sight: GroupObservation, before: GroupObservation | None) -> RenderableType:
    """Return a screen."""
    called = {
        str(member): display_name(member, "" if one is None else one.display_name)
        for member, one in sight.snapshots.items()
    }
    head = Text.assemble(
        (sight.group, "bold"),
        f"  view {sight.view}, {len(sight.snapshots)} members, {time.strftime('%H:%M:%S')}; * is this command",
    )
    parts: list[RenderableType] = [head, _members(sight, before, called)]
    troubles = slow_members(sight)
    for trouble in troubles:
        reason = trouble["reason"]
        for address, name in called.items():
            reason = reason.replace(address, name)
        parts.append(Text(f"{called.get(trouble['member'], trouble['member'])} {reason}", "red"))
    if not troubles:
        parts.append(Text("nobody is slow", "green"))
    return Stack(*parts)


def _members(
    sight: GroupObservation, before: GroupObservation | None, called: dict[str, str]
) -> Table:
    rows = [_row(sight, before, member, called) for member in sight.snapshots]
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
    "held by",
)
_NUMBERS = {1, 2, 4, 5, 6, 7, 8}
SILENT = "does not answer"


def _row(
    sight: GroupObservation,
    before: GroupObservation | None,
    member: Address,
    called: dict[str, str],
) -> list[str | Text]:
    one = sight.snapshots[member]
    name = called[str(member)] + ("*" if str(member) == sight.me else "")
    if one is None:
        return [name, *[""] * (len(_COLUMNS) - 2), SILENT]
    rates, gauges = sight.rates(before, member), one.gauges
    holders = [
        called.get(str(blocker.member)) or member_label(blocker.member, blocker.name)
        for blocker in one.blockers
    ]
    more = f" and {len(holders) - 2} more" if len(holders) > 2 else ""
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
        ", ".join(holders[:2]) + more,
    ]


def window_bar(stream: StreamSnapshot, capacity: int) -> Text:
    """Return how full a window is, in messages or in bytes, as a bar of five and a share."""
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
