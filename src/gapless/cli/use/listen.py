"""``gapless listen``: print what comes to a group."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.group_options import (
    display_name,
    group_options,
    joined_group,
    note,
    until_interrupted,
)
from gapless.cli.parameters import SECONDS
from gapless.cli.rendering import json_option, print_json
from gapless.errors import TimedOutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.blocking import Group
    from gapless.group.inbox import GroupEvent
    from gapless.group.message import Message, ViewChange


@click.command()
@click.argument("group")
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="End after so many messages."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    help="End when nothing has come for so long (exit code 1 before --count).",
)
@click.option("--raw", is_flag=True, help="Write the bytes of the messages, and nothing else.")
@click.option("--events", is_flag=True, help="Print views and what else happens, too.")
@group_options
@json_option
def listen(
    *,
    group: str,
    count: int | None,
    timeout_s: float | None,
    raw: bool,
    events: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Print the messages of GROUP as they come, until Ctrl-C.

    One line for each message: who sent it, and its text. With --json one object a line. With --raw
    the bytes as they are, so that a file that was sent to the group can be written again.
    """
    if raw and (as_json or events):
        raise click.UsageError("--raw writes bytes and nothing else: leave --json and --events out")
    found = 0
    with until_interrupted(), joined_group(group, options) as member:
        if not raw and not as_json:
            note(f"{group}: {_members(member)}; Ctrl-C ends")
        for item in _items(member, timeout_s, events=events):
            if hasattr(item, "payload"):
                found += 1
                show_message(item, raw=raw, as_json=as_json)
            else:
                show_event(item, as_json=as_json)
            if found == count:
                break
    return 1 if count is not None and found < count else 0


def _items(group: Group, timeout_s: float | None, *, events: bool) -> Iterator[Any]:
    """Return what comes, until nothing has come for so long."""
    from gapless.blocking import run_steps
    from gapless.group.timeouts import deadline_ns

    own = group._session
    try:
        while True:
            item = run_steps(
                own.receive(own.inbox.next_item, deadline_ns(timeout_s), all_events=events)
            )
            if item is None:
                return
            yield item
    except TimedOutError:
        return


def _members(group: Group) -> str:
    count = 0 if group.view is None else len(group.view.members)
    return f"{count} member{'' if count == 1 else 's'}"


def show_message(message: Message, *, raw: bool = False, as_json: bool = False) -> None:
    """Print one message."""
    if raw:
        sys.stdout.buffer.write(message.payload)
        sys.stdout.buffer.flush()
    elif as_json:
        print_json(message_row(message))
    else:
        mark = " (to you)" if message.private else ""
        click.echo(
            f"{display_name(message.sender, message.name)}{mark}: {message.payload.decode(errors='replace')}"
        )


def message_row(message: Message) -> dict[str, object]:
    """Return a message for a program: its text, or base64 if its bytes are no text."""
    row: dict[str, object] = {
        "kind": "message",
        "sender": str(message.sender),
        "name": message.name,
        "seqno": message.seqno,
        "view": message.view,
        "mode": str(message.mode),
        "private": message.private,
    }
    try:
        row["text"] = message.payload.decode()
    except UnicodeDecodeError:
        row["base64"] = base64.b64encode(message.payload).decode()
    return row


def show_event(event: GroupEvent, *, as_json: bool = False) -> None:
    """Print what has happened beside messages."""
    from gapless.group.message import ViewChange

    if isinstance(event, ViewChange):
        print_json(view_row(event)) if as_json else click.echo(f"* {view_text(event)}")
    elif as_json:
        print_json({"kind": type(event).__name__.lower(), "text": str(event)})
    else:
        click.echo(f"* {event}")


def view_row(change: ViewChange) -> dict[str, object]:
    """Return a view for a program."""
    return {
        "kind": "view",
        "number": change.view.id.number,
        "members": [str(member) for member in change.view.members],
        "joined": [str(member) for member in change.joined],
        "left": [str(member) for member in change.left],
        "me": str(change.me),
    }


def view_text(change: ViewChange, names: dict[Any, str] | None = None) -> str:
    """Return a view for people."""
    called = names or {}
    parts = [f"view {change.view.id.number}, {len(change.view.members)} members"]
    for word, members in (("came", change.joined), ("left", change.left)):
        if members:
            parts.append(
                f"{word}: {', '.join(display_name(member, called.get(member, '')) for member in members)}"
            )
    return "; ".join(parts)
