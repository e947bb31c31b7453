"""``gapless chat``: talk in a group."""

from __future__ import annotations

import getpass
import sys
import threading
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from gapless.cli.group_options import group_options, joined_group, until_interrupted
from gapless.cli.rendering import json_option, print_json
from gapless.cli.use.listen import event_row, message_row
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.blocking import Group
    from gapless.events import ViewChange
    from gapless.group.message import Message

PROMPT = "> "
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


@click.command()
@click.argument("group")
@click.option(
    "--nick", metavar="NICK", help="What others see before your words; by default your login name."
)
@group_options
@json_option
def chat(group: str, nick: str | None, as_json: bool, **options: Any) -> None:
    """Talk in GROUP: what you type goes to all, what others type is shown. The end of input, or Ctrl-C, ends it.

    Every line travels as one message, "NICK: words", so that `gapless listen` and `gapless send`
    can take part.
    """
    screen = ChatScreen(as_json=as_json)
    with until_interrupted(), joined_group(group, options) as member:
        reader = threading.Thread(target=screen.show_incoming, args=(member,), daemon=True)
        reader.start()
        said = nick if nick is not None else options["name"] or _login()
        for line in screen.lines():
            member.send(f"{said}: {line}".encode(), mode="acknowledged", loopback=False)


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"


class ChatScreen:
    """What is typed and what has come, on one screen: a line that is being typed is not torn by one that comes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._typing = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
        self._console = Console(highlight=False, soft_wrap=True)
        self._lock = threading.Lock()

    def lines(self) -> Iterator[str]:
        """Return what is typed."""
        if self._typing:
            import readline  # noqa: F401 - to edit a line, and to go back to former ones
        while True:
            try:
                line = input(PROMPT if self._typing else "")
            except EOFError:
                return
            if line.strip():
                yield line

    def show_incoming(self, group: Group) -> None:
        """Show what comes."""
        from gapless.events import ViewChange
        from gapless.group.message import Message

        try:
            for item in group.events():
                if isinstance(item, Message):
                    self._show_message(item)
                elif isinstance(item, ViewChange):
                    self._show_view_change(item)
        except GaplessError as error:
            self._print(Text(str(error), "red"))

    def _show_message(self, message: Message) -> None:
        if self._as_json:
            print_json(message_row(message))
            return
        words = message.payload.decode(errors="replace")
        who, colon, rest = words.partition(": ")
        colour = _COLOURS[message.sender.node % len(_COLOURS)]
        self._print(Text.assemble((who, colour), colon, rest) if colon else Text(words, colour))

    def _show_view_change(self, change: ViewChange) -> None:
        if self._as_json:
            print_json(event_row(change))
        else:
            self._print(Text(f"* {change}", "dim"))

    def _print(self, text: Text) -> None:
        with self._lock:
            if not self._typing:
                self._console.print(text)
                return
            import readline

            sys.stdout.write("\r\x1b[K")
            self._console.print(text)
            sys.stdout.write(f"{PROMPT}{readline.get_line_buffer()}")
            sys.stdout.flush()
