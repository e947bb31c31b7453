"""What producers send, and what they write down of it.

A message says who sent it and its how-manyth it is, and has a checksum. The count goes on over the
lives of a producer, so no two messages are alike, whatever is killed.

A log has one line for each step of a batch, written by one call before or after the step, so that
it survives the kill of its writer: ``try`` before it is sent, ``sent`` when it has its seqnos,
``acked`` when it is delivered by all, ``failed`` when nobody can say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from zlib import crc32

_HEADER = Struct("<IHQ")

TRY, SENT, ACKED, FAILED = "try", "sent", "acked", "failed"
"""The steps of a batch."""


class NumberedMessage(NamedTuple):
    """One message, as its payload tells; ``whole`` is whether its checksum is right."""

    producer: int
    number: int
    is_intact: bool


def encode_message(producer: int, count: int, filling: bytes) -> bytes:
    """Return the payload of a message."""
    body = _HEADER.pack(0, producer, count)[4:] + filling
    return crc32(body).to_bytes(4, "little") + body


def decode_message(payload: bytes) -> NumberedMessage:
    """Return what a payload tells; of one that is none of ours nothing but that."""
    if len(payload) < _HEADER.size:
        return NumberedMessage(0, 0, is_intact=False)
    checksum, producer, count = _HEADER.unpack_from(payload)
    return NumberedMessage(producer, count, is_intact=checksum == crc32(memoryview(payload)[4:]))


class ProducerLogEntry(NamedTuple):
    """A line of a log: the messages ``first .. last`` by count, the stream, and its seqnos if they are known."""

    what: str
    first: int
    last: int
    stream: str = "-"
    low: int = 0
    high: int = 0


class ProducerLog:
    """The log of one producer, for all of its lives."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, step: ProducerLogEntry) -> None:
        """Add a line, in one piece: threads may call this, and a kill leaves no part of one."""
        os.write(self._file, (" ".join(map(str, step)) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_log(path: Path) -> list[ProducerLogEntry]:
    """Return the lines of a log, oldest first."""
    if not path.exists():
        return []
    return [_parse_entry(line.split()) for line in path.read_text(encoding="utf-8").splitlines()]


def _parse_entry(words: list[str]) -> ProducerLogEntry:
    what, first, last, stream, low, high = words
    return ProducerLogEntry(what, int(first), int(last), stream, int(low), int(high))


def last_count(steps: Iterable[ProducerLogEntry]) -> int:
    """Return the highest count that any life may have sent."""
    return max((step.last for step in steps if step.what == TRY), default=0)
