"""``gapless collect``: store the messages of a group in a spool, for Spark and other readers."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.live import Live
from rich.text import Text

from gapless.cli.group_options import (
    group_options,
    metrics_served,
    note,
    parse_endpoint,
    parse_ports,
    signals_and_logs_handled,
    until_interrupted,
)
from gapless.cli.parameters import SECONDS, SIZE, spool_keys_option
from gapless.cli.rendering import console, json_option, print_json, read_config, short_size
from gapless.errors import GaplessError
from gapless.output.printable import printable
from gapless.units import format_duration

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gapless.spool.collector import Collector
    from gapless.spool.collector.status import CollectorStatus

STATUS_INTERVAL_S = 1.0
"""Time between two lines of status."""
POLL_INTERVAL_S = 0.1
"""How often the command checks whether the collector has ended."""


@click.command()
@click.argument("group")
@click.option(
    "--spool",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder of the spool; created if missing.",
)
@click.option(
    "--max-bytes",
    type=SIZE,
    help="Maximum size of the spool; 10GiB by default, 0 for no limit.",
)
@click.option(
    "--max-age",
    type=SECONDS,
    help="Maximum age of an unread message; no limit by default.",
)
@click.option(
    "--on-full",
    type=click.Choice(["wait", "drop-oldest"]),
    default="wait",
    show_default=True,
    help="At a limit: let senders wait, or drop the oldest messages, read or not.",
)
@click.option(
    "--segment-bytes",
    type=SIZE,
    help="Size of a segment file; 64MiB by default.",
)
@click.option(
    "--rotate",
    type=SECONDS,
    help="Age at which a new segment file is started; 10min by default.",
)
@click.option(
    "--no-sync",
    is_flag=True,
    help="Do not sync to disk: faster, but a power failure loses messages.",
)
@spool_keys_option("Encrypt the spool with the sealing key of this keyring.")
@click.option("--serve", metavar="[HOST:]PORT", help="Serve metrics at /metrics, for Prometheus.")
@group_options
@json_option
def collect(
    group: str, spool: Path, as_json: bool, no_sync: bool, serve: str | None, **options: Any
) -> int:
    """Store the messages of GROUP, in order, in the spool DIR, until Ctrl-C.

    A message is acknowledged to the sender once on disk. While the spool is full, senders wait
    until readers advance. A collector that was stopped or killed continues where it stopped, if it
    returns within retention_timeout. With --json the command prints one object a second and one at
    the end.
    """
    from gapless.spool.collector import Collector

    endpoint = None if serve is None else parse_endpoint(serve)
    collector = Collector(spool, group, sync=not no_sync, **_options(options))
    with signals_and_logs_handled(), metrics_served(lambda: [collector.snapshot()], endpoint):
        collector.start()
        code = _run(collector, as_json=as_json)
    if as_json:
        print_json({**collector.status.as_dict(), **rates(collector.status, None)})
    else:
        note(summary(collector.status))
    return code


def _run(collector: Collector, *, as_json: bool) -> int:
    """Collect until Ctrl-C; an error after joining is reported as one line, with exit code 1."""
    joined = False
    with until_interrupted(), suppress(GaplessError):  # stop() raises it again
        collector.wait_joined()
        joined = True
        if not as_json:
            note(_greeting(collector))
        _watch(collector, as_json=as_json)
    try:
        collector.stop()
    except GaplessError as error:
        if not joined:
            raise
        note(f"gapless collect: {error}")
        return 1
    return 0


def _greeting(collector: Collector) -> str:
    retained = format_duration(collector.retention_timeout_ns)
    return (
        f"{collector.group}: collecting into {collector.path} as {collector.name!r};"
        f" while this collector is absent, messages are retained for {retained}"
        " (retention_timeout); Ctrl-C ends"
    )


_FORWARDED_OPTIONS = (
    "name",
    "display_name",
    "max_bytes",
    "max_age",
    "on_full",
    "segment_bytes",
    "rotate",
    "spool_keys",
    "join_timeout",
    "min_members",
    "keys",
    "identity",
    "insecure",
    "tls",
    "allow_lossy",
    "trace",
    "trace_mode",
)


def _options(options: dict[str, Any]) -> dict[str, Any]:
    given = {key: options[key] for key in _FORWARDED_OPTIONS if options[key] not in (None, "")}
    given.update(
        discover=options["discover"],
        transport=options["transport"],
        host=options["host"],
        ports=parse_ports(options["ports"]),
        config=read_config(options["profile"], options["config_file"], options["properties"]),
    )
    return given


def _watch(collector: Collector, *, as_json: bool) -> None:
    """Show the status once a second, until the collector ends."""
    before = collector.status
    if as_json:
        print_json({**before.as_dict(), **rates(before, None)})
    shows = not as_json and sys.stderr.isatty()
    live: AbstractContextManager[Live | None] = nullcontext()
    if shows:
        live = Live(
            status_line(before, None),
            console=console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
    with live as shown:
        while True:
            until_s = time.monotonic() + STATUS_INTERVAL_S
            while time.monotonic() < until_s:
                collector.check()
                time.sleep(POLL_INTERVAL_S)
            now = collector.status
            if as_json:
                print_json({**now.as_dict(), **rates(now, before)})
            elif shown is not None:
                shown.update(status_line(now, before), refresh=True)
            before = now


def rates(now: CollectorStatus, before: CollectorStatus | None) -> dict[str, float]:
    """Return messages and megabytes per second since ``before``."""
    passed_s = 0.0 if before is None else now.at_s - before.at_s
    if before is None or passed_s <= 0:
        return {"messages_per_s": 0.0, "mb_per_s": 0.0}
    return {
        "messages_per_s": round((now.messages - before.messages) / passed_s, 1),
        "mb_per_s": round((now.size_bytes - before.size_bytes) / passed_s / 1e6, 3),
    }


def status_line(now: CollectorStatus, before: CollectorStatus | None) -> Text:
    """Return the status for a person."""
    speed = rates(now, before)
    limit = "" if now.room_bytes is None else f" of {short_size(now.used_bytes + now.room_bytes)}"
    parts = [
        f"{speed['messages_per_s']:,.0f} messages/s",
        f"{speed['mb_per_s']:,.1f} MB/s",
        f"spool {short_size(now.used_bytes)}{limit} in {now.segments} segments",
        consumers_text(now),
    ]
    text = Text.assemble((printable(now.group), "bold"), "  ", printable(", ".join(parts)))
    if now.waits_for:
        text.append(f"\nwaiting: {printable(now.waits_for)}", "red")
    return text


def consumers_text(now: CollectorStatus) -> str:
    """Return each reader with the number of unread messages."""
    if not now.lag:
        return "no reader"
    return "; ".join(
        f"{name} {lag:,} behind" if lag else f"{name} has all" for name, lag in now.lag.items()
    )


def summary(status: CollectorStatus) -> str:
    """Return the last line of the command: what is on disk, and what is not."""
    parts = [
        f"{status.messages:,} messages",
        f"{status.size_bytes / 1e6:,.1f} MB",
        f"{status.commits:,} commits",
    ]
    unwritten = "received but not on disk, so not acknowledged"
    parts += [
        f"{count:,} {what}"
        for what, count in (
            (unwritten, status.pending),
            ("lost", status.lost),
            ("dropped", status.dropped),
        )
        if count
    ]
    parts += [
        f"{count:,} {what.replace('_', ' ')} not kept"
        for what, count in status.uncollected.items()
        if count
    ]
    stored = f"{status.spool_messages:,} messages, {short_size(status.used_bytes)}"
    return f"{status.group}: {', '.join(parts)}; the spool has {stored}"
