"""``gapless send``: send lines of standard input, or a file, to a group."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from gapless.cli.group_options import group_options, joined_group, note
from gapless.cli.parameters import SECONDS
from gapless.cli.rendering import console, json_option, print_json
from gapless.delivery_mode import DeliveryMode
from gapless.errors import ConfigError, TimedOutError
from gapless.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.blocking import Group, Receipt

BATCH_BYTES = 240_000
"""Maximum number of bytes that are read and sent at once."""
CHUNK = "60000"
"""Default number of bytes of a file in one message."""


class SendSummary(NamedTuple):
    """The number of messages and bytes that were sent, to how many members, and how fast."""

    messages: int
    size_bytes: int
    members: int
    seconds: float

    def __str__(self) -> str:
        rate = self.size_bytes / 1e6 / self.seconds if self.seconds else 0.0
        return (
            f"{self.messages:,} messages, {self.size_bytes:,} bytes in {self.seconds:.2f} s"
            f" ({rate:.1f} MB/s), delivered by {self.members - 1} other"
            f" member{'' if self.members == 2 else 's'}"
        )


@click.command()
@click.argument("group")
@click.argument("file", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--lines", is_flag=True, help="Each line of FILE is a message.")
@click.option("--chunk", metavar="SIZE", help=f"Bytes of FILE in each message; {CHUNK} by default.")
@click.option("--to", metavar="NAME", help="Only to the member with this durable name.")
@click.option(
    "--members",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Wait until the view has this many members.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    help="How long to wait for members, and for room in the send window.",
)
@group_options
@json_option
def send(
    group: str,
    file: Path | None,
    lines: bool,
    chunk: str | None,
    to: str | None,
    members: int,
    timeout_s: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send lines of standard input, or FILE, to GROUP.

    The command ends when every member has delivered all messages. Without FILE each line is a
    message. FILE is sent in messages of --chunk bytes, and `gapless listen --raw` restores FILE;
    with --lines each line of FILE is a message.
    """
    if lines and chunk is not None:
        raise ConfigError("--lines and --chunk exclude each other; give one of them")
    chunk_bytes = 0 if lines or (file is None and chunk is None) else parse_size(chunk or CHUNK)
    if chunk is not None and chunk_bytes < 1:
        raise ConfigError(f"--chunk {chunk}: expected at least one byte")
    with (
        _source(file) as (source, size_bytes),
        joined_group(group, options, sends=True, listen=False) as member,
    ):
        _wait_for(member, members, timeout_s, quiet=as_json)
        start_s = time.monotonic()
        with _progress(group, size_bytes, quiet=as_json or not sys.stderr.isatty()) as progress:
            sent, sent_bytes, reached = _send_all(
                member,
                _messages(source, chunk_bytes),
                to,
                timeout_s,
                progress,
                ahead=size_bytes is not None,
            )
        summary = SendSummary(sent, sent_bytes, reached, time.monotonic() - start_s)
    if as_json:
        print_json(summary._asdict())
    else:
        note(str(summary))


@contextmanager
def _source(file: Path | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open the input before joining, so that a missing file is reported at once."""
    if file is None or str(file) == "-":
        yield sys.stdin.buffer, None
        return
    if file.is_dir():
        raise ConfigError(f"{file} is a directory; expected a file")
    with file.open("rb") as opened:
        yield opened, file.stat().st_size


def _messages(source: BinaryIO, chunk_bytes: int) -> Iterator[list[bytes]]:
    """Iterate over lists of messages; input of a pipe or a terminal is sent as soon as read."""
    rest = b""
    number = source.fileno()
    while block := os.read(
        number, max(chunk_bytes, BATCH_BYTES // (chunk_bytes or 1) * (chunk_bytes or 1))
    ):
        block = rest + block
        if chunk_bytes:
            whole = len(block) // chunk_bytes * chunk_bytes
            found = [block[start : start + chunk_bytes] for start in range(0, whole, chunk_bytes)]
            rest = block[whole:]
        else:
            *ended, rest = block.split(b"\n")
            found = [line.removesuffix(b"\r") for line in ended]
        if found:
            yield found
    if rest:
        yield [rest]


def _wait_for(group: Group, members: int, timeout_s: float | None, *, quiet: bool) -> None:
    """Wait until the view has ``members`` members."""
    try:
        if not quiet and (group.view is None or len(group.view.members) < members):
            others = f"{members - 1} other member{'' if members == 2 else 's'}"
            note(f"{group.group}: waiting for {others}")
        group.wait_for_members(members, timeout_s)
    except TimedOutError as error:
        present = 0 if group.view is None else len(group.view)
        raise TimedOutError(f"{error}: start the others, or use --members {present}") from None


def _send_all(
    group: Group,
    batches: Iterator[list[bytes]],
    to: str | None,
    timeout_s: float | None,
    progress: Callable[[int], None],
    *,
    ahead: bool,
) -> tuple[int, int, int]:
    """Send everything, and wait until all members have delivered it.

    Returned are the numbers of messages, of bytes, and of members at the last message: a receiver
    may leave as soon as it has delivered that.

    Messages are delivered in order, so only the last batch needs to be acknowledged. Which batch is
    the last is known only if reading ``ahead`` does not wait for input.
    """
    sent = sent_bytes = 0
    reached = _count_members(group)
    receipt: Receipt | None = None
    batch = next(batches, None)
    while batch is not None:
        after = next(batches, None) if ahead else None
        reached = _count_members(group)
        mode = DeliveryMode.ACKNOWLEDGED if after is None else DeliveryMode.ORDERED
        receipt = group.send_many(
            batch, to, mode=mode, timeout=timeout_s, loopback=None if to else False
        )
        sent += len(batch)
        sent_bytes += sum(map(len, batch))
        progress(sent_bytes)
        batch = after if ahead else next(batches, None)
    if receipt is not None:
        receipt.delivered(timeout_s)
    return sent, sent_bytes, reached


def _count_members(group: Group) -> int:
    return 0 if group.view is None else len(group.view.members)


@contextmanager
def _progress(
    label: str, size_bytes: int | None, *, quiet: bool
) -> Iterator[Callable[[int], None]]:
    if quiet:
        yield lambda _done: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(
        *columns, TimeElapsedColumn(), console=console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task(label, total=size_bytes)
        yield lambda done: progress.update(task, completed=done)
