"""Export of a spool, or a part of a spool, as JSON lines or Parquet.

The file exists completely or not at all: a temporary file is renamed once complete. In a folder for
this user alone the file is for this user alone, too, whatever the umask is.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from gapless.delivery_mode import DeliveryMode
from gapless.errors import ConfigError
from gapless.group.headers import detach_headers, may_contain_wrapped
from gapless.output.private_files import open_private
from gapless.run import ACKED
from gapless.spool.errors import from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.spool.reader import SpoolReader
    from gapless.spool.record_reader import Record

JSON_LINES = "jsonl"
"""Format: a JSON object per line and message."""
PARQUET = "parquet"
"""Format: a Parquet file with a row per message."""
FORMATS = (JSON_LINES, PARQUET)
"""All export formats."""
BATCH_ROWS = 16_384
"""Maximum number of rows of a row group."""
BATCH_BYTES = 16 * 1024 * 1024
"""Payload size at which a row group is written."""

Progress = Callable[[int], None]
"""Called with the number of exported messages."""


def export(
    reader: SpoolReader,
    target: Path | None,
    *,
    format: str = JSON_LINES,  # noqa: A002 - the word that users know
    start: Mapping[str, int] | None = None,
    end: Mapping[str, int] | None = None,
    progress: Progress = lambda _done: None,
) -> int:
    """Write the messages above ``start`` up to ``end``; return the number of messages.

    Streams are in the order of their keys, messages in the order of their seqnos.
    """
    if format not in FORMATS:
        raise ConfigError(f"format = {format!r}: expected one of {', '.join(FORMATS)}")
    if target is None and format == PARQUET:
        raise ConfigError("Parquet cannot go to standard output; name a file")
    rows = _rows(reader, start or {}, reader.high() if end is None else end)
    if target is None:
        return _json_lines(rows, sys.stdout, progress)
    # In a shared folder nobody can plant a file that is not there yet, under a random name.
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        if format == JSON_LINES:
            with open(part, "x", encoding="utf-8", opener=open_private) as file:
                count = _json_lines(rows, file, progress)
        else:
            with open(part, "xb", opener=open_private) as binary:
                count = _parquet(rows, binary, progress)
        part.replace(target)
    except FileNotFoundError:
        raise ConfigError(
            f"{target}: there is no folder {target.parent}; create the folder, or name another file"
        ) from None
    except OSError as error:
        raise from_os_error(error, target, "writing it") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def count_rows(
    reader: SpoolReader, start: Mapping[str, int] | None, end: Mapping[str, int] | None
) -> int:
    """Return how many messages an export will have."""
    return sum(reader.rows(start or {}, reader.high() if end is None else end).values())


def _rows(
    reader: SpoolReader, start: Mapping[str, int], end: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    for each in reader.slices(start, end):
        for record in reader.records(each):
            yield from _messages(reader.group, record)


def _messages(group: str, record: Record) -> Iterator[dict[str, Any]]:
    told = {
        "group": group,
        "origin": record.stream,
        "name": record.name,
        "mode": str(DeliveryMode.ACKNOWLEDGED if record.flags & ACKED else DeliveryMode.ORDERED),
        "view": record.view,
        "sent_ns": record.sent_ns,
        "collected_ns": record.collected_ns,
    }
    wrapped = may_contain_wrapped(record.payload)
    for seqno, message in zip(record.seqnos(), record.messages(), strict=True):
        headers, payload = detach_headers(message) if wrapped else ({}, message)
        yield {**told, "seqno": seqno, "headers": headers, "payload": payload}


def _json_lines(rows: Iterator[dict[str, Any]], file: TextIO, progress: Progress) -> int:
    count = 0
    for row in rows:
        file.write(json.dumps(_json_row(row)) + "\n")
        count += 1
        if not count % 1000:
            progress(count)
    return count


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for JSON: text as text, other bytes as base64."""
    payload, headers = row.pop("payload"), row.pop("headers")
    if headers:
        row["headers"] = {name: base64.b64encode(value).decode() for name, value in headers.items()}
    try:
        row["text"] = payload.decode()
    except UnicodeDecodeError:
        row["base64"] = base64.b64encode(payload).decode()
    return row


def _parquet(rows: Iterator[dict[str, Any]], file: BinaryIO, progress: Progress) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ConfigError("Parquet needs pyarrow; run: pip install pyarrow") from None
    instant = pa.timestamp("ns", tz="UTC")
    fields = [
        ("group", pa.string()),
        ("origin", pa.string()),
        ("name", pa.string()),
        ("seqno", pa.int64()),
    ]
    fields += [
        ("mode", pa.string()),
        ("view", pa.int64()),
        ("sent", instant),
        ("collected", instant),
    ]
    fields += [("headers", pa.map_(pa.string(), pa.binary())), ("payload", pa.binary())]
    schema = pa.schema(fields)
    count = size_bytes = 0
    batch: dict[str, list[Any]] = {name: [] for name, _ in fields}
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for row in rows:
            row["sent"], row["collected"] = row.pop("sent_ns") or None, row.pop("collected_ns")
            row["headers"] = list(row["headers"].items())
            for name, column in batch.items():
                column.append(row[name])
            count += 1
            size_bytes += len(row["payload"])
            if len(batch["seqno"]) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
                writer.write_batch(pa.record_batch(batch, schema=schema))
                batch = {name: [] for name, _ in fields}
                size_bytes = 0
                progress(count)
        if batch["seqno"]:
            writer.write_batch(pa.record_batch(batch, schema=schema))
    return count
