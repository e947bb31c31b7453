"""``gapless chat``: talk in a group from the terminal."""

from __future__ import annotations

import getpass
import sys
import threading
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from gapless.cli.group_options import group_options, joined_group, until_interrupted
from gapless.cli.rendering import console, json_option, print_json
from gapless.cli.use.listen import event_row, message_row
from gapless.errors import GaplessError
from gapless.output.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.blocking import Group
    from gapless.events import ViewChange
    from gapless.group.message import Message

PROMPT = "> "
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


@click.command()
@click.argument("group")
@click.option("--nick", metavar="NICK", help="Your name in the chat; by default your login name.")
@group_options
@json_option
def chat(group: str, nick: str | None, as_json: bool, **options: Any) -> None:
    """Talk in GROUP: send each typed line to all members, and show the lines of others.

    The end of the input, or Ctrl-C, ends the chat. Each line is one message, "NICK: text", so
    `gapless listen` and `gapless send` can take part.
    """
    screen = ChatScreen(as_json=as_json)
    with until_interrupted(), joined_group(group, options, sends=True) as member:
        reader = threading.Thread(target=screen.show_incoming, args=(member,), daemon=True)
        reader.start()
        default = options["display_name"] or options["name"] or _login_name()
        own_nick = default if nick is None else nick
        for line in screen.lines():
            member.send(f"{own_nick}: {line}".encode(), mode="acknowledged", loopback=False)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "anonymous"


class ChatScreen:
    """One screen for typed and received lines; a received line does not break the typed one."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._typing = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
        self._console = console(highlight=False, soft_wrap=True)
        self._lock = threading.Lock()

    def lines(self) -> Iterator[str]:
        """Iterate over the typed lines."""
        if self._typing:
            import readline  # noqa: F401 - line editing and history
        while True:
            try:
                line = input(PROMPT if self._typing else "")
            except EOFError:
                return
            if line.strip():
                yield line

    def show_incoming(self, group: Group) -> None:
        """Show messages and changes of the view as they arrive."""
        from gapless.events import ViewChange
        from gapless.group.message import Message

        try:
            for item in group.events():
                if isinstance(item, Message):
                    self._show_message(item)
                elif isinstance(item, ViewChange):
                    self._show_view_change(item)
        except GaplessError as error:
            self._print(Text(printable(str(error)), "red"))

    def _show_message(self, message: Message) -> None:
        if self._as_json:
            print_json(message_row(message))
            return
        text = printable(message.payload.decode(errors="replace"))
        nick, colon, line = text.partition(": ")
        colour = _COLOURS[message.sender.node % len(_COLOURS)]
        self._print(Text.assemble((nick, colour), colon, line) if colon else Text(text, colour))

    def _show_view_change(self, change: ViewChange) -> None:
        if self._as_json:
            print_json(event_row(change))
        else:
            self._print(Text(printable(f"* {change}"), "dim"))

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
