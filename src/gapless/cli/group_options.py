"""What the commands share that are a member of a group: their options, coming in, and how people are shown.

On Ctrl-C, and when the process is asked to end: the member leaves, within a second.
"""

from __future__ import annotations

import logging
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.parameters import SECONDS
from gapless.cli.rendering import config_options, docs_page, read_config
from gapless.errors import ConfigError

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
        help=f"Record everything in this folder: {docs_page('traces')}",
    ),
    click.option(
        "--trace-mode",
        default="",
        metavar="MODE",
        help="full (the default), sampled, or sampled:N.",
    ),
)
"""What says whether and how a command is recorded."""

_OPTIONS = (
    click.option(
        "--discover", metavar="WHERE", help=f"Where others could be: {docs_page('discovery')}"
    ),
    click.option(
        "--transport",
        default="auto",
        metavar="NAME",
        help="How they are reached: auto, mesh, multicast, tcp",
    ),
    click.option("--host", metavar="ADDRESS", help="The address of this machine to use."),
    click.option(
        "--ports", metavar="FIRST[-LAST]", help="The ports to try, 0 for any; 7800-7899 by default."
    ),
    click.option(
        "--name", default="", metavar="NAME", help="A durable name: the place is kept while away."
    ),
    click.option(
        "--join-timeout",
        type=SECONDS,
        default="30s",
        show_default=True,
        help="How long to wait to join.",
    ),
    *TRACE_OPTIONS,
)


def group_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command everything that says how to come into a group; :func:`joined_group` takes it."""
    command = config_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say whether and how it is recorded."""
    for option in reversed(TRACE_OPTIONS):
        command = option(command)
    return command


def parse_ports(text: str | None) -> int | range | None:
    """Return the ports that a text such as 7800-7899 names."""
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
    group: str, options: dict[str, Any], *, quiet: bool = False, **more: Any
) -> Iterator[Group]:
    """Be a member of ``group`` as the options say, until the end of the block; ``quiet`` keeps warnings back."""
    from gapless import blocking

    config = read_config(options["profile"], options["config_file"], options["properties"])
    member = blocking.join(
        group,
        timeout=options["join_timeout"],
        discover=options["discover"],
        transport=options["transport"],
        host=options["host"],
        ports=parse_ports(options["ports"]),
        durable_name=options["name"],
        config=config,
        trace=options["trace"],
        trace_mode=options["trace_mode"],
        **more,
    )
    with signals_and_logs_handled(quiet=quiet), member:
        yield member


@contextmanager
def signals_and_logs_handled(*, quiet: bool = False) -> Iterator[None]:
    """Take a wish to end as Ctrl-C, and show people what is logged; ``quiet`` keeps warnings back."""
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
    """Shows what is logged, wherever standard error goes at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        note(f"gapless: {self.format(record)}")


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return the host and the port that a text such as 9464 or 0.0.0.0:9464 names."""
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (colon and not host):
        raise ConfigError(f"--serve {text}: expected a port such as 9464, or 0.0.0.0:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def metrics_served(
    looks: Callable[[], Iterable[MemberSnapshot]], place: tuple[str, int] | None
) -> Iterator[None]:
    """Serve figures for Prometheus, if there is a place for it."""
    if place is None:
        yield
        return
    from gapless.metrics.exporters import MetricsEndpoint

    with MetricsEndpoint(looks, *place) as endpoint:
        note(f"serving http://{place[0]}:{endpoint.port}/metrics")
        yield


def _raise_interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def graceful_interrupt(stop: threading.Event, ending: str) -> Iterator[None]:
    """Set ``stop`` at the first Ctrl-C, so that the command ends in order; end at the second."""

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
    """Let Ctrl-C be the way in which a command ends that has no other end."""
    try:
        yield
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")


def display_name(address: Address, name: str = "") -> str:
    """Return a member as people see it: its durable name, or the first digits of its node."""
    return name or f"{address.node:016x}"[:8]


def note(text: str) -> None:
    """Tell people something that is not part of the output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
