"""Headers: what a sender says of a message beside its payload.

A message that begins with a mark holds, behind it, what it is, a number, and a body; everything
else is nothing but itself:

    mark (4 bytes) | kind (1) | number (8, little-endian) | body

A message with headers is of the kind ``WITH_HEADERS``; its number is the length of the block of headers,
which stands before the payload: for each header the length of its name (1 byte), the name, the
length of its value (4 bytes), the value.

On sending: a payload that happens to begin with the mark is wrapped too (``PLAIN``), so nothing
that an application sends is ever taken for something else.

On reading: a wrapper is taken off once. Anything behind a mark that is none of this is left as it
is. To learn that a run has no wrappers costs one search for the mark, whatever the number of its
messages; where all of them have the same length, only where they begin.
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
"""What a wrapped message begins with."""
REQUEST, REPLY, ERROR_REPLY, PLAIN, SNAPSHOT_REQUEST, WITH_HEADERS = range(6)
"""What is behind the mark: a request, its answer, the reason why there is none, a message of the application, the
question how the member stands, or a message with headers."""

_END_OF_MARK = itemgetter(len(MARK) - 1)
_HEAD = Struct("<4sBQ")
_VALUE = Struct("<I")
WRAP_BYTES = _HEAD.size
"""What a wrapping takes."""
MAX_NAME_BYTES = 255
"""The longest name of a header."""

Headers = Mapping[str, bytes]
"""Values by name."""


class Envelope(NamedTuple):
    """What a wrapped message holds."""

    kind: int
    number: int
    body: bytes


def wrap(kind: int, number: int, body: bytes) -> bytes:
    """Return the message that holds these."""
    return _HEAD.pack(MARK, kind, number) + body


def wrap_plain(payload: bytes) -> bytes:
    """Return a message of the application in a form that cannot be mistaken."""
    return wrap(PLAIN, 0, payload) if payload.startswith(MARK) else payload


def wrap_all(messages: Sequence[bytes]) -> Sequence[bytes]:
    """Return messages of the application in a form that cannot be mistaken; nearly always these same ones.

    To look at one byte of each takes a third of the time that it takes to compare the mark.
    """
    try:
        if MARK[-1] not in set(map(_END_OF_MARK, messages)):
            return messages
    except IndexError:
        pass  # one is shorter than the mark
    if any(map(bytes.startswith, messages, repeat(MARK))):
        return [wrap_plain(message) for message in messages]
    return messages


def unwrap(message: bytes) -> Envelope | None:
    """Return what a message holds; None if it is nothing but itself."""
    if not message.startswith(MARK) or len(message) < WRAP_BYTES:
        return None
    _, kind, number = _HEAD.unpack_from(message)
    return Envelope(kind, number, message[WRAP_BYTES:]) if kind <= WITH_HEADERS else None


def attach_headers(payload: bytes, headers: Headers) -> bytes:
    """Return the message that holds a payload and its headers."""
    if not headers:
        return wrap_plain(payload)
    block = b"".join(_encode(headers))
    return wrap(WITH_HEADERS, len(block), block + payload)


def _encode(headers: Any) -> list[bytes]:
    if not isinstance(headers, Mapping):
        raise PayloadError(
            f"headers={headers!r}: expected values by name, such as {{'kind': b'order'}}"
        )
    parts: list[bytes] = []
    for name, value in headers.items():
        raw = value
        if type(value) is not bytes:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise PayloadError(
                    f"header {name!r} is {type(value).__name__}: its value has to be bytes"
                )
            raw = bytes(value)
        parts += (_encode_name(name), _VALUE.pack(len(raw)), raw)
    return parts


@lru_cache(maxsize=256)
def _encode_name(name: Any) -> bytes:
    """Return the name of a header behind its length; most messages have the same few."""
    if not isinstance(name, str) or not 0 < len(encoded := name.encode()) <= MAX_NAME_BYTES:
        raise PayloadError(f"header {name!r}: expected a name of 1 to {MAX_NAME_BYTES} bytes")
    return bytes((len(encoded),)) + encoded


def may_contain_wrapped(payload: bytes | memoryview, lengths: bytes = b"") -> bool:
    """Return whether a message among these bytes may be wrapped; it costs little to find out that none is.

    ``lengths`` is the table of a run. One byte is found much faster than four, and the last one of
    the mark is rare: text has none of it, nor have zeros.
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
    """Return the headers and the payload of a message; without a wrapper, or behind a broken one, that is itself."""
    wrapped = unwrap(message)
    if wrapped is None or wrapped.kind not in {PLAIN, WITH_HEADERS}:
        return {}, message
    if wrapped.kind == PLAIN:
        return {}, wrapped.body
    headers = _decode(wrapped.body, wrapped.number)
    return ({}, message) if headers is None else (headers, wrapped.body[wrapped.number :])


def _decode(body: bytes, size_bytes: int) -> dict[str, bytes] | None:
    """Return the headers in the first ``size_bytes``; None if that is not what they are."""
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
