"""``gapless listen``: print the messages and events of a group."""

from __future__ import annotations

import base64
import sys
from contextlib import suppress
from dataclasses import fields
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
from gapless.identity import Address, View, ViewId
from gapless.output.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.blocking import Group
    from gapless.events import GroupEvent
    from gapless.group.message import Message


@click.command()
@click.argument("group")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    help="End when no message arrives for this long; exit code 1 if fewer than --count arrived.",
)
@click.option("--raw", is_flag=True, help="Write only the bytes of the messages.")
@click.option("--events", is_flag=True, help="Also print views and other events.")
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
    r"""Print the messages of GROUP as they arrive, until Ctrl-C.

    Each message is one line: the sender and the text, with control characters as escapes such as
    \x1b. With --json each line is an object. With --raw the bytes are written unchanged, so that a
    file sent to the group is restored; a terminal obeys control characters in such bytes.
    """
    if raw and (as_json or events):
        raise click.UsageError("--raw writes only bytes: omit --json and --events")
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
    """Iterate over messages, and events if wanted, until none arrives for ``timeout_s``."""
    receive = group.receive_event if events else group.receive
    with suppress(TimedOutError):
        while (item := receive(timeout_s)) is not None:
            yield item


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
        sender = display_name(message.sender, message.name)
        click.echo(f"{sender}{mark}: {printable(message.payload.decode(errors='replace'))}")


def message_row(message: Message) -> dict[str, object]:
    """Return a message for a program: as text, or as base64 if the bytes are not UTF-8."""
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
    """Print one event."""
    print_json(event_row(event)) if as_json else click.echo(f"* {printable(str(event))}")


def event_row(event: GroupEvent) -> dict[str, object]:
    """Return an event for a program: the kind, the sentence, and the fields as plain values."""
    row: dict[str, object] = {"kind": event.kind, "text": str(event)}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, View):
            row |= {"number": value.id.number, "members": [str(member) for member in value]}
        elif isinstance(value, ViewId):
            row["number"] = value.number
        elif isinstance(value, Address):
            row[field.name] = str(value)
        elif isinstance(value, tuple):
            row[field.name] = [str(member) for member in value]
        elif field.name != "names":
            row[field.name] = value
    return row
