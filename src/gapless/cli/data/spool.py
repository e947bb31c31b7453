"""``gapless spool``: inspect, check, repair and export a spool, unregister a reader."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gapless.cli.parameters import spool_keys_option
from gapless.cli.rendering import console, echo, json_option, make_table, print_json, progress_bar
from gapless.errors import ConfigError

if TYPE_CHECKING:
    from gapless.spool import SpoolReader
    from gapless.spool.fsck import FsckReport

path_argument = click.argument("path", type=click.Path(path_type=Path))
keys_option = spool_keys_option("The keyring of an encrypted spool.")
MAX_LINES = 50


@click.group()
def spool() -> None:
    """Inspect, check, repair and export the spool of a collector; unregister readers.

    PATH is the folder of the spool. Every command here takes --json.
    """


@spool.command("ls")
@path_argument
@keys_option
@json_option
def ls(path: Path, spool_keys: Path | None, as_json: bool) -> int:
    """List the segments, streams and readers of a spool."""
    from gapless.spool import SpoolReader
    from gapless.spool.lock import describe_holder, is_locked

    view = SpoolReader(path, keys=spool_keys)
    writer = describe_holder(path) if is_locked(path) else ""
    listing = {
        "path": str(path),
        "group": view.group,
        "id": view.spool_id,
        "collector": view.info.name,
        "writer": writer,
        "bytes": sum(index.end for index in view.segments()),
        "segments": _segments(view),
        "streams": _streams(view),
        "readers": _consumers(view),
    }
    if as_json:
        print_json(listing)
        return 0
    out = console()
    out.print(
        f"{path}: group {view.group}, {listing['bytes']:,} bytes; "
        f"{f'written by {writer}' if writer else 'no writer'}"
    )
    for title in ("segments", "streams", "readers"):
        rows: Any = listing[title]
        if rows:
            shown = _without_empty_keys(rows if len(rows) <= MAX_LINES else rows[-MAX_LINES:])
            more = f" (the last {MAX_LINES} of {len(rows)})" if len(rows) > MAX_LINES else ""
            columns = [name.replace("_", " ") for name in shown[0]]
            out.print(
                make_table(f"{title.capitalize()}{more}", columns, (row.values() for row in shown))
            )
        else:
            out.print(f"No {title}.")
    return 0


def _without_empty_keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for a table: the keys of segments as text, and only if a segment has any."""
    encrypted = any(row.get("keys") for row in rows)
    return [
        {
            name: " ".join(value) if name == "keys" else value
            for name, value in row.items()
            if encrypted or name != "keys"
        }
        for row in rows
    ]


def _segments(view: SpoolReader) -> list[dict[str, object]]:
    return [
        {
            "number": index.number,
            "bytes": index.end,
            "streams": len(index.streams),
            "messages": sum(stream.rows for stream in index.streams.values()),
            "begun": _format_time(index.created_ns),
            "newest": _format_time(index.collected_ns),
            "keys": [f"{key_id:08x}" for key_id in index.key_ids],
        }
        for index in view.segments()
    ]


def _streams(view: SpoolReader) -> list[dict[str, object]]:
    from gapless.spool.index import HOLE_REPEATED

    low, high, names, dropped = view.low(), view.high(), view.names(), view.dropped()
    rows = view.rows(low, high)
    holes: dict[str, int] = {}
    for hole in view.lost():
        if hole.reason != HOLE_REPEATED:
            holes[hole.stream] = holes.get(hole.stream, 0) + hole.last - hole.first + 1
    return [
        {
            "stream": key,
            "name": names.get(key, ""),
            "low": low[key],
            "high": high[key],
            "messages": rows[key],
            "lost": holes.get(key, 0),
            "dropped": dropped.get(key, 0),
        }
        for key in high
    ]


def _consumers(view: SpoolReader) -> list[dict[str, object]]:
    high = view.high()
    return [
        {
            "reader": each.name,
            "lag": sum(view.rows(each.digest, high).values()),
            "said": _format_time(each.when_ns),
        }
        for each in view.consumers()
    ]


def _format_time(when_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(when_ns / 1e9)) if when_ns else ""


@spool.command("check")
@path_argument
@keys_option
@json_option
def check(path: Path, spool_keys: Path | None, as_json: bool) -> int:
    """Check every checksum, every tag and every seqno. The exit code is 1 if the spool is damaged.

    The check changes no file, and may run while a collector writes.
    """
    from gapless.spool.fsck import check as look

    with progress_bar("checking", _total_bytes(path), quiet=as_json) as done:
        report = look(path, progress=done, keys=spool_keys)
    _show(path, report, as_json=as_json, repaired=False)
    return 1 if report.problems else 0


@spool.command("repair")
@path_argument
@keys_option
@json_option
def repair(path: Path, spool_keys: Path | None, as_json: bool) -> int:
    """Cut out damage, record the affected messages as lost, and list them.

    Stop the collector first. Damaged bytes are kept in PATH/damaged. A spool without damage is left
    unchanged.
    """
    from gapless.spool.fsck import repair as mend

    with progress_bar("repairing", _total_bytes(path), quiet=as_json) as done:
        report = mend(path, progress=done, keys=spool_keys)
    _show(path, report, as_json=as_json, repaired=True)
    return 0


def _total_bytes(path: Path) -> int | None:
    return sum(each.stat().st_size for each in (path / "segments").glob("*.run")) or None


def _show(path: Path, report: FsckReport, *, as_json: bool, repaired: bool) -> None:
    from gapless.spool.fsck import as_json as plain

    if as_json:
        print_json(
            {"path": str(path), "repaired": repaired and bool(report.problems), **plain(report)}
        )
        return
    out = console()
    out.print(
        f"{path}: {report.segments:,} segments, {report.records:,} records, {report.messages:,} "
        f"messages, "
        f"{report.size_bytes:,} bytes; {report.lost:,} messages are recorded as lost"
    )
    for note in report.notes:
        out.print(f"note: {note}")
    if not report.problems:
        out.print("No damage.")
        return
    rows = [
        (
            each.path.name,
            each.offset,
            each.what,
            each.stream,
            f"{each.first}..{each.last}" if each.stream else "",
        )
        for each in report.problems
    ]
    title = "Repaired damage" if repaired else "Damaged"
    out.print(make_table(title, ("file", "offset", "what", "stream", "messages"), rows[:MAX_LINES]))
    if len(rows) > MAX_LINES:
        out.print(f"… and {len(rows) - MAX_LINES} more; --json lists them all")
    if not repaired:
        out.print(f"Stop the collector and run: gapless spool repair {path}")


@spool.command("export")
@path_argument
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help="jsonl or parquet; by default taken from the name of the file.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file to write; by default JSON lines are printed.",
)
@click.option(
    "--from",
    "start",
    metavar="DIGEST",
    help="Only messages after these seqnos, such as '{\"a1.5\": 100}', or a file with them.",
)
@click.option(
    "--to",
    "end",
    metavar="DIGEST",
    help="Only messages up to these seqnos; streams without a seqno are left out.",
)
@keys_option
@json_option
def export(
    *,
    path: Path,
    format_: str | None,
    output: Path | None,
    start: str | None,
    end: str | None,
    spool_keys: Path | None,
    as_json: bool,
) -> int:
    """Write the messages of a spool, or of a part of the spool, as JSON lines or Parquet.

    One row for each message: group, origin, name, number, mode, view, times, headers and payload.
    """
    from gapless.spool import SpoolReader
    from gapless.spool.export import JSON_LINES, PARQUET, count_rows, export as write
    from gapless.spool.lock import is_locked

    if as_json and output is None:
        raise click.UsageError("--json describes the written file; name the file with -o")
    guessed = PARQUET if output is not None and output.suffix == ".parquet" else JSON_LINES
    view = SpoolReader(path, all_commits=not is_locked(path), keys=spool_keys)
    begin, until = _digest(start, "--from"), _digest(end, "--to")
    total = count_rows(view, begin, until)
    with progress_bar("exporting", total, quiet=as_json or output is None) as done:
        count = write(
            view, output, format=format_ or guessed, start=begin, end=until, progress=done
        )
    if as_json:
        print_json(
            {
                "path": str(path),
                "output": str(output),
                "format": format_ or guessed,
                "messages": count,
            }
        )
    elif output is not None:
        echo(f"{output}: {count:,} messages")
    return 0


def _digest(text: str | None, option: str) -> dict[str, int] | None:
    from gapless.spool.consumer_registry import validate_digest

    if text is None:
        return None
    try:
        listing = json.loads(
            text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8")
        )
    except FileNotFoundError:
        raise ConfigError(
            f'{option} = {text!r}: expected a digest such as {{"a1.5": 100}}, or a file with one'
        ) from None
    except ValueError as error:
        raise ConfigError(
            f'{option}: not JSON ({error}); expected a digest such as {{"a1.5": 100}}'
        ) from None
    if not isinstance(listing, dict):
        raise ConfigError(
            f'{option}: expected a digest such as {{"a1.5": 100}}, got {type(listing).__name__}'
        )
    return validate_digest(listing)


@spool.command("forget")
@path_argument
@click.argument("reader")
@json_option
def forget(path: Path, reader: str, as_json: bool) -> int:
    """Unregister READER, so that the spool retains no messages for it.

    The exit code is 1 if the reader was not registered.
    """
    from gapless.spool import SpoolReader

    view = SpoolReader(path)
    known = [each.name for each in view.consumers()]
    gone = view.unregister(reader)
    if as_json:
        print_json({"path": str(path), "reader": reader, "forgotten": gone})
    elif gone:
        echo(f"reader {reader} is unregistered")
    else:
        echo(f"{path} has no reader {reader!r}; registered readers: {', '.join(known) or 'none'}")
    return 0 if gone else 1
