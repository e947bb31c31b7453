"""The common part of commands that join a group: options, joining, and the display of members.

On Ctrl-C and on SIGTERM the member leaves, within a second.
"""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.interrupts import plain_interrupt
from gapless.cli.parameters import SECONDS
from gapless.cli.rendering import config_options, docs_page, read_config
from gapless.errors import ConfigError
from gapless.output.printable import printable

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from gapless.blocking import Group
    from gapless.identity import Address
    from gapless.protocol.snapshot import MemberSnapshot


TRACE_OPTIONS = (
    click.option(
        "--trace",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help=f"Record a trace in this folder: {docs_page('reference/traces')}",
    ),
    click.option(
        "--trace-mode",
        default="",
        metavar="MODE",
        help="full (the default), sampled, or sampled:N.",
    ),
)
"""Options that record a command in a trace."""

_REACH_OPTIONS = (
    click.option(
        "--discover",
        metavar="WHERE",
        help=f"Where to look for members: {docs_page('guides/discovery')}",
    ),
    click.option(
        "--transport",
        default="auto",
        metavar="NAME",
        help="Transport: auto, mesh, multicast or tcp.",
    ),
    click.option("--host", metavar="ADDRESS", help="The local address to use."),
    click.option(
        "--ports",
        metavar="FIRST[-LAST]",
        help="The ports to try; 7800-7899 by default, 0 for any free port.",
    ),
    click.option(
        "--join-timeout",
        type=SECONDS,
        default="30s",
        show_default=True,
        help="How long to wait to join.",
    ),
    click.option(
        "--identity",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The identity of this member, if the keyring names the identities that may join; by"
        " default that of GAPLESS_IDENTITY, else of this user.",
    ),
    click.option(
        "--tls",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Certificates for --transport tcp: a folder with ca.pem, cert.pem and key.pem.",
    ),
)

_OPTIONS = (
    *_REACH_OPTIONS,
    click.option(
        "--durable-name",
        "--name",
        "name",
        default="",
        metavar="NAME",
        help="Durable name: messages are retained while this member is absent.",
    ),
    click.option(
        "--display-name",
        default="",
        metavar="NAME",
        help="Name for people; by default the durable name, or host, process id and a number.",
    ),
    click.option(
        "--min-members",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="Fail unless the group has N members within --join-timeout.",
    ),
    click.option(
        "--keys",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The keyring of the group; by default that of GAPLESS_KEYS, else of this user.",
    ),
    click.option(
        "--insecure",
        is_flag=True,
        help="Join without keys: everybody who reaches the group can take part.",
    ),
    click.option(
        "--allow-lossy",
        is_flag=True,
        help="Allow UDP with retransmission off (the profile ordered).",
    ),
    *TRACE_OPTIONS,
)


def group_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of joining a group; ``joined_group`` reads the options."""
    command = config_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def reach_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command only the options of reaching a group: where, with what proof, and settings."""
    command = config_options(command)
    for option in reversed(_REACH_OPTIONS):
        command = option(command)
    return command


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options for recording a trace."""
    for option in reversed(TRACE_OPTIONS):
        command = option(command)
    return command


def parse_ports(text: str | None) -> int | range | None:
    """Return the ports in a text such as 7800-7899."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ConfigError(
            f"--ports {text}: expected a port such as 7800, a range such as 7800-7899, or 0 for any"
        )
    return range(int(first), int(last) + 1) if dash else int(first)


@contextmanager
def joined_group(
    group: str, options: dict[str, Any], *, quiet: bool = False, sends: bool = False, **more: Any
) -> Iterator[Group]:
    """Be a member of ``group`` until the end of the block; with ``quiet`` only errors are shown.

    A command that ``sends`` does not join with an identity that may only receive.
    """
    from gapless import blocking
    from gapless.group.group_identity import check_may_send
    from gapless.group.join_options import MemberOptions

    protection: dict[str, Any] = {
        "keys": options["keys"],
        "identity": options.get("identity"),
        "insecure": options.get("insecure", False),
        "tls": options.get("tls"),
        "transport": options["transport"],
    }
    if sends:
        # A default display name has a number of its own, which the member takes.
        check_may_send(MemberOptions(group=group, display_name="check", **protection))
    config = read_config(options["profile"], options["config_file"], options["properties"])
    member = blocking.join(
        group,
        timeout=options["join_timeout"],
        min_members=options.get("min_members", 1),
        allow_lossy=options.get("allow_lossy", False),
        discover=options["discover"],
        host=options["host"],
        ports=parse_ports(options["ports"]),
        display_name=options.get("display_name", ""),
        durable_name=options.get("name", ""),
        config=config,
        trace=options.get("trace"),
        trace_mode=options.get("trace_mode", ""),
        **protection,
        **more,
    )
    with signals_and_logs_handled(quiet=quiet), member:
        yield member


@contextmanager
def signals_and_logs_handled(*, quiet: bool = False) -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, and show warnings; with ``quiet`` only errors."""
    before = signal.signal(signal.SIGTERM, _raise_interrupt)
    log, handler = logging.getLogger("gapless"), _ConsoleLogHandler()
    handler.setLevel(logging.ERROR if quiet else logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        signal.signal(signal.SIGTERM, before)


class _ConsoleLogHandler(logging.Handler):
    """Writes log records to the present standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, unless the command itself shows the same error at its end."""
        if not getattr(record, "is_raised", False):
            note(f"gapless: {self.format(record)}")


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return the host and the port in a text such as 9464 or 0.0.0.0:9464."""
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (colon and not host):
        raise ConfigError(f"--serve {text}: expected a port such as 9464, or 0.0.0.0:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def metrics_served(
    snapshots: Callable[[], Iterable[MemberSnapshot]], endpoint: tuple[str, int] | None
) -> Iterator[None]:
    """Serve metrics for Prometheus at ``endpoint``, unless None."""
    if endpoint is None:
        yield
        return
    from gapless.metrics.exporters import MetricsEndpoint

    with MetricsEndpoint(snapshots, *endpoint) as server:
        note(f"serving http://{endpoint[0]}:{server.port}/metrics")
        yield


def _raise_interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def graceful_interrupt(stop: threading.Event, ending: str) -> Iterator[None]:
    """Set ``stop`` at the first Ctrl-C, so that the command ends cleanly; exit at the second."""

    def end(_: int, __: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        note(f"\nending: {ending}; Ctrl-C again ends at once")
        stop.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Let Ctrl-C end a command without an error."""
    try:
        with plain_interrupt():
            yield
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def display_name(address: Address, name: str = "") -> str:
    """Return a member for people in a narrow column: the printable name, or the short id."""
    return printable(name) or address.short


def note(text: str) -> None:
    """Write a line for people to standard error; only newlines remain as control characters."""
    sys.stderr.write(f"{printable(text, keep_newlines=True)}\n")
    sys.stderr.flush()
