"""Headers: named values that travel with a message, beside the payload.

A wrapped message begins with a mark:

    mark (4 bytes) | kind (1) | number (8, little-endian) | body

Any other message is only its payload. In a message of kind ``WITH_HEADERS`` the number is the
length of the block of headers before the payload. The block holds, for each header: the length of
the name (1 byte), the name, the length of the value (4 bytes), the value.

On sending: a payload that begins with the mark is wrapped too (``PLAIN``), so a payload is never
mistaken for a wrapped message.

On reading: one wrapper is removed. A message with the mark and an unknown or damaged rest is left
unchanged. One search for the mark shows that no message of a run is wrapped; if all messages have
the same length, only their beginnings are searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from gapless.errors import PayloadError
from gapless.run import LENGTH_BYTES

MARK = b"\x00Gq\xf7"
"""The first bytes of a wrapped message."""
REQUEST, REPLY, ERROR_REPLY, PLAIN, SNAPSHOT_REQUEST, WITH_HEADERS = range(6)
"""Kinds: a request, a reply, an error as reply, a payload that begins with the mark, a request
for a snapshot, a message with headers."""

_END_OF_MARK = itemgetter(len(MARK) - 1)
_HEAD = Struct("<4sBQ")
_VALUE = Struct("<I")
WRAP_BYTES = _HEAD.size
"""Size of a wrapper without its body."""
MAX_NAME_BYTES = 255
"""Maximum length of the name of a header."""

Headers = Mapping[str, bytes]
"""The headers of a message: values by name."""


class Envelope(NamedTuple):
    """The content of a wrapped message."""

    kind: int
    number: int
    body: bytes


def wrap(kind: int, number: int, body: bytes) -> bytes:
    """Return a wrapped message."""
    return _HEAD.pack(MARK, kind, number) + body


def wrap_plain(payload: bytes) -> bytes:
    """Return a payload, wrapped if the payload begins with the mark."""
    return wrap(PLAIN, 0, payload) if payload.startswith(MARK) else payload


def wrap_all(messages: Sequence[bytes]) -> Sequence[bytes]:
    """Return payloads, wrapped where a payload begins with the mark; usually the same sequence.

    Comparing one byte of each payload takes a third of the time of comparing the whole mark.
    """
    try:
        if MARK[-1] not in set(map(_END_OF_MARK, messages)):
            return messages
    except IndexError:
        pass  # a payload is shorter than the mark
    if any(map(bytes.startswith, messages, repeat(MARK))):
        return [wrap_plain(message) for message in messages]
    return messages


def unwrap(message: bytes) -> Envelope | None:
    """Return the content of a wrapped message; None if the message is not wrapped."""
    if not message.startswith(MARK) or len(message) < WRAP_BYTES:
        return None
    _, kind, number = _HEAD.unpack_from(message)
    return Envelope(kind, number, message[WRAP_BYTES:]) if kind <= WITH_HEADERS else None


def attach_headers(payload: bytes, headers: Headers) -> bytes:
    """Return a payload wrapped with headers."""
    if not headers:
        return wrap_plain(payload)
    block = b"".join(_encode(headers))
    return wrap(WITH_HEADERS, len(block), block + payload)


def _encode(headers: Any) -> list[bytes]:
    if not isinstance(headers, Mapping):
        raise PayloadError(
            f"headers={headers!r}: expected a mapping of names to bytes, such as"
            f" {{'kind': b'order'}}"
        )
    parts: list[bytes] = []
    for name, value in headers.items():
        raw = value
        if type(value) is not bytes:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise PayloadError(f"header {name!r} is {type(value).__name__}; expected bytes")
            raw = bytes(value)
        parts += (_encode_name(name), _VALUE.pack(len(raw)), raw)
    return parts


@lru_cache(maxsize=256)
def _encode_name(name: Any) -> bytes:
    """Return the encoded name of a header; cached, because most messages use the same few."""
    if not isinstance(name, str) or not 0 < len(encoded := name.encode()) <= MAX_NAME_BYTES:
        raise PayloadError(f"header {name!r}: expected a name of 1 to {MAX_NAME_BYTES} bytes")
    return bytes((len(encoded),)) + encoded


def may_contain_wrapped(payload: bytes | memoryview, lengths: bytes = b"") -> bool:
    """Return whether a message in ``payload`` may be wrapped; False is certain.

    ``lengths`` is the table of a run. Searching one byte is much faster than searching four, and
    the last byte of the mark is rare: neither text nor zeros contain this byte.
    """
    if lengths == lengths[:LENGTH_BYTES] * (len(lengths) // LENGTH_BYTES):
        step = int.from_bytes(lengths[:LENGTH_BYTES], "little")
        if step >= WRAP_BYTES:
            lasts, firsts = payload[len(MARK) - 1 :: step], payload[::step]
            if not (MARK[-1] in bytes(lasts) and MARK[0] in bytes(firsts)):
                return False
    data = bytes(payload)
    return MARK[-1] in data and MARK in data


def detach_headers(message: bytes) -> tuple[dict[str, bytes], bytes]:
    """Return the headers and the payload; a message without a valid wrapper is all payload."""
    wrapped = unwrap(message)
    if wrapped is None or wrapped.kind not in {PLAIN, WITH_HEADERS}:
        return {}, message
    if wrapped.kind == PLAIN:
        return {}, wrapped.body
    headers = _decode(wrapped.body, wrapped.number)
    return ({}, message) if headers is None else (headers, wrapped.body[wrapped.number :])


def _decode(body: bytes, size_bytes: int) -> dict[str, bytes] | None:
    """Return the headers in the first ``size_bytes``; None for damaged headers."""
    if size_bytes > len(body):
        return None
    headers: dict[str, bytes] = {}
    at = 0
    while at < size_bytes:
        value = at + 1 + body[at] + _VALUE.size
        if value > size_bytes:
            return None
        (length,) = _VALUE.unpack_from(body, value - _VALUE.size)
        try:
            name = body[at + 1 : value - _VALUE.size].decode()
        except UnicodeDecodeError:
            return None
        at = value + length
        if at > size_bytes:
            return None
        headers[name] = body[value:at]
    return headers
