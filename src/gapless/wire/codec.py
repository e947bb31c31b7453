"""The wire format, version 1 (docs/wire.md has the tables).

On sending: frames of one sender are packed into one datagram behind a header with a checksum. What a receiver would
refuse is not sent: it raises LocalProtocolError at the caller.

On reception: the header is checked (magic, version, checksum), then each frame, to the last byte. Anything that the
format does not allow raises RemoteProtocolError with a reason from REASONS; nothing is allocated on the word of a
length field that the datagram does not back with bytes.

Every datagram has one form only: what decodes encodes to the same bytes again.
"""

from __future__ import annotations

from struct import Struct, error as StructError, pack, unpack_from  # noqa: N812
from typing import TYPE_CHECKING
from zlib import crc32

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import Address
from gapless.run import BEGIN, END, LENGTH_BYTES, NOT_BACK, PIECE, Run
from gapless.wire.frames import Ack, Data, Datagram, Frame, Gone, Nak, Range, Tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAGIC = b"GL"
VERSION = 1
SEALED = 0x01
"""Header flag: what follows the header is an encrypted and authenticated envelope (space reserved)."""
STARTS = 0x01
"""Tail flag: the fields start and reader count."""
REPAIR = 0x80
"""Data flag: the run answers a nak. It belongs to the frame, not to the run."""

DATA, ACK, NAK, GONE, TAIL = range(1, 6)
MEMBERSHIP_KINDS = range(0x10, 0x20)
"""Frame kinds kept free for membership."""
UNICAST_KINDS = range(0x20, 0x30)
"""Frame kinds kept free for unicast connections."""

SEQNO_MAX = 2**63 - 1
"""The largest seqno; at ten million messages a second a stream reaches it in 29,000 years."""
_SAFE_SEQNO = SEQNO_MAX - 0xFFFF
"""A run that starts below this ends within the largest seqno, whatever its count."""
DATAGRAM_MAX_BYTES = 65507
"""The largest datagram that UDP over IPv4 carries."""

REASONS = (
    "short",
    "magic",
    "version",
    "flags",
    "sealed",
    "checksum",
    "empty",
    "length",
    "kind",
    "count",
    "seqno",
    "range",
    "piece",
)
"""Every reason for which the decoder refuses a datagram."""

_PREAMBLE = Struct("<2sBBI")
_WHO = Struct("<QQQ")
_HEADER = Struct("<2sBBIQQQ")
_PREFIX = Struct("<BBHQQ")
_DATA = Struct("<QIQH")
_DATA_FRAME = Struct("<BBHQQQIQH")
_ACK = Struct("<QI")
_NAK = Struct("<H")
_RANGE = Struct("<QI")
_GONE = Struct("<Q")
_TAIL = Struct("<QQQQ")
_LENGTHS = tuple(Struct(f"<{count}H") for count in range(64))
"""Ready-made for runs as small as a network packet; larger ones can afford to look theirs up."""

# A named tuple is made by a Python function that calls this one; going there directly saves a tenth of a decode.
_make = tuple.__new__

HEADER_BYTES = _HEADER.size
"""What a datagram spends before its first frame."""
DATA_OVERHEAD_BYTES = _PREFIX.size + _DATA.size
"""What a DATA frame spends beside the length table and the messages."""
NAK_OVERHEAD_BYTES = _PREFIX.size + _NAK.size
"""What a NAK frame spends beside its ranges."""
RANGE_BYTES = _RANGE.size
"""What one range of a NAK takes."""

_BODY_BYTES: dict[type[Frame], int] = {Ack: _ACK.size, Gone: _GONE.size, Tail: _TAIL.size}
_PREFIX_LENGTH_BYTES = 4
_DATA_FLAGS = PIECE | BEGIN | END | NOT_BACK
_PIECE_FLAGS = frozenset((0, PIECE, PIECE | BEGIN, PIECE | END))


def run_room_bytes(max_frame_bytes: int) -> int:
    """Return how many bytes of lengths and messages fit one datagram of ``max_frame_bytes``."""
    return max_frame_bytes - HEADER_BYTES - DATA_OVERHEAD_BYTES


def size_bytes(frame: Frame) -> int:
    """Return what ``frame`` takes in a datagram."""
    if isinstance(frame, Data):
        return DATA_OVERHEAD_BYTES + frame.run.size_bytes
    if isinstance(frame, Nak):
        return NAK_OVERHEAD_BYTES + RANGE_BYTES * len(frame.ranges)
    return _PREFIX.size + _BODY_BYTES[type(frame)]


def encode(group: int, sender: Address, frames: Iterable[Frame]) -> bytes:
    """Return the datagram in which ``sender`` says ``frames`` to ``group``."""
    parts: list[bytes] = [b"", b""]
    try:
        parts[1] = _WHO.pack(group, *sender)
        for frame in frames:
            _ENCODERS[type(frame)](parts, frame)
    except (StructError, RemoteProtocolError) as error:
        raise LocalProtocolError(f"the wire format has no room for this: {error}") from error
    if len(parts) == 2:
        raise LocalProtocolError("a datagram needs at least one frame")
    checksum = 0
    for part in parts:
        checksum = crc32(part, checksum)
    parts[0] = _PREAMBLE.pack(MAGIC, VERSION, 0, checksum)
    return b"".join(parts)


def _prefix(kind: int, flags: int, body_bytes: int, origin: Address) -> bytes:
    return _PREFIX.pack(kind, flags, body_bytes + _PREFIX.size - _PREFIX_LENGTH_BYTES, *origin)


def _encode_data(parts: list[bytes], frame: Data) -> None:
    run = frame.run
    flags = run.flags
    _check_run(run.first, run.count, flags)
    if frame.repair:
        flags |= REPAIR
    lengths, payload = run.lengths, run.payload
    length = _DATA_FRAME.size - _PREFIX_LENGTH_BYTES + len(lengths) + len(payload)
    node, incarnation = run.origin
    fixed = _DATA_FRAME.pack(DATA, flags, length, node, incarnation, run.first, run.view, run.sent_ns, run.count)
    parts += (fixed, lengths, payload)


def _encode_ack(parts: list[bytes], frame: Ack) -> None:
    parts += (_prefix(ACK, 0, _ACK.size, frame.origin), _ACK.pack(_mark(frame.seqno), frame.buffer_bytes))


def _encode_nak(parts: list[bytes], frame: Nak) -> None:
    ranges = frame.ranges
    _check_ranges(ranges)
    parts += (_prefix(NAK, 0, _NAK.size + len(ranges) * _RANGE.size, frame.origin), _NAK.pack(len(ranges)))
    if ranges:
        flat = [number for first, last in ranges for number in (first, last - first)]
        parts.append(pack("<" + "QI" * len(ranges), *flat))


def _encode_gone(parts: list[bytes], frame: Gone) -> None:
    parts += (_prefix(GONE, 0, _GONE.size, frame.origin), _GONE.pack(_mark(frame.low)))


def _encode_tail(parts: list[bytes], frame: Tail) -> None:
    flags = 0 if frame.start is None else STARTS
    _check_tail(frame.low, frame.high, frame.start or 0, frame.reader, flags)
    body = _TAIL.pack(frame.low, frame.high, frame.start or 0, frame.reader)
    parts += (_prefix(TAIL, flags, _TAIL.size, frame.origin), body)


_ENCODERS: dict[type[Frame], Callable[..., None]] = {
    Data: _encode_data,
    Ack: _encode_ack,
    Nak: _encode_nak,
    Gone: _encode_gone,
    Tail: _encode_tail,
}


def decode(datagram: bytes) -> Datagram:
    """Return what ``datagram`` says, or raise RemoteProtocolError with the reason why it says nothing."""
    size_bytes = len(datagram)
    if size_bytes < HEADER_BYTES:
        raise RemoteProtocolError("short", f"{size_bytes} bytes are less than a header")
    magic, version, flags, checksum, group, node, incarnation = _HEADER.unpack_from(datagram)
    if magic != MAGIC:
        raise RemoteProtocolError("magic", f"starts with {magic!r}")
    if version != VERSION:
        raise RemoteProtocolError("version", f"version {version}, this member speaks {VERSION}")
    if crc32(memoryview(datagram)[_PREAMBLE.size :]) != checksum:
        raise RemoteProtocolError("checksum", f"{size_bytes} bytes do not match their checksum")
    if flags:
        reason = "sealed" if flags == SEALED else "flags"
        raise RemoteProtocolError(reason, f"header flags {flags:#x}")
    sender = _make(Address, (node, incarnation))
    frames: list[Frame] = []
    at = HEADER_BYTES
    while at < size_bytes:
        frame, at = _decode_frame(datagram, at, size_bytes, sender)
        frames.append(frame)
    if not frames:
        raise RemoteProtocolError("empty", "no frame behind the header")
    return _make(Datagram, (group, sender, tuple(frames)))


def _decode_frame(datagram: bytes, at: int, size_bytes: int, sender: Address) -> tuple[Frame, int]:
    body = at + _PREFIX.size
    if body > size_bytes:
        raise RemoteProtocolError("length", f"{size_bytes - at} bytes are less than a frame's prefix")
    kind, flags, length, node, incarnation = _PREFIX.unpack_from(datagram, at)
    end = at + _PREFIX_LENGTH_BYTES + length
    if end > size_bytes or end < body:
        raise RemoteProtocolError("length", f"a frame of {length} bytes where {size_bytes - at} are left")
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise RemoteProtocolError("kind", f"unknown frame kind {kind:#x}")
    if decoder is not _decode_data and flags & ~(STARTS if kind == TAIL else 0):
        raise RemoteProtocolError("flags", f"flags {flags:#x} on a frame of kind {kind:#x}")
    # Most frames speak of their sender's own stream; one address then serves all that is kept of them.
    same = node == sender.node and incarnation == sender.incarnation
    origin = sender if same else _make(Address, (node, incarnation))
    return decoder(datagram, body, end, origin, flags), end


def _decode_data(datagram: bytes, at: int, end: int, origin: Address, flags: int) -> Data:
    table = at + _DATA.size
    if table > end:
        raise RemoteProtocolError("length", "a DATA frame is cut short")
    first, view, sent_ns, count = _DATA.unpack_from(datagram, at)
    payload = table + count * LENGTH_BYTES
    if not count or payload > end:
        raise RemoteProtocolError("count", f"{count} messages in {end - table} bytes")
    lengths = _LENGTHS[count] if count < len(_LENGTHS) else Struct(f"<{count}H")
    if sum(lengths.unpack_from(datagram, table)) != end - payload:
        raise RemoteProtocolError("length", f"lengths do not add up to {end - payload}")
    repair = flags >= REPAIR
    flags &= ~REPAIR
    if flags or not 0 < first < _SAFE_SEQNO:
        _check_run(first, count, flags)
    run = Run(origin, first, datagram[table:payload], datagram[payload:end], flags, view, sent_ns)
    return _make(Data, (run, repair))


def _check_run(first: int, count: int, flags: int) -> None:
    if not 0 < first <= SEQNO_MAX - count + 1:
        raise RemoteProtocolError("seqno", f"a run of {count} at {first}")
    if flags:
        if flags & ~_DATA_FLAGS:
            raise RemoteProtocolError("flags", f"flags {flags:#x} on a DATA frame")
        if flags & ~NOT_BACK not in _PIECE_FLAGS or (flags & PIECE and count != 1):
            raise RemoteProtocolError("piece", f"flags {flags:#x} on a run of {count}")


def _exact(at: int, end: int, body_bytes: int) -> None:
    if end - at != body_bytes:
        raise RemoteProtocolError("length", f"a body of {end - at} bytes, not {body_bytes}")


def _decode_ack(datagram: bytes, at: int, end: int, origin: Address, _flags: int) -> Ack:
    _exact(at, end, _ACK.size)
    seqno, buffer_bytes = _ACK.unpack_from(datagram, at)
    return Ack(origin, _mark(seqno), buffer_bytes)


def _decode_nak(datagram: bytes, at: int, end: int, origin: Address, _flags: int) -> Nak:
    table = at + _NAK.size
    if table > end:
        raise RemoteProtocolError("length", "a NAK frame is cut short")
    (count,) = _NAK.unpack_from(datagram, at)
    _exact(table, end, count * _RANGE.size)
    flat = unpack_from("<" + "QI" * count, datagram, table)
    ranges = tuple((first, first + more) for first, more in zip(flat[::2], flat[1::2], strict=True))
    _check_ranges(ranges)
    return Nak(origin, ranges)


def _check_ranges(ranges: tuple[Range, ...]) -> None:
    floor = 0
    for first, last in ranges:
        if not floor < first <= last <= SEQNO_MAX:
            raise RemoteProtocolError("range", f"{first}..{last} after {floor}")
        floor = last


def _decode_gone(datagram: bytes, at: int, end: int, origin: Address, _flags: int) -> Gone:
    _exact(at, end, _GONE.size)
    return Gone(origin, _mark(_GONE.unpack_from(datagram, at)[0]))


def _decode_tail(datagram: bytes, at: int, end: int, origin: Address, flags: int) -> Tail:
    _exact(at, end, _TAIL.size)
    low, high, start, reader = _TAIL.unpack_from(datagram, at)
    _check_tail(low, high, start, reader, flags)
    return Tail(origin, low, high, start if flags & STARTS else None, reader)


def _check_tail(low: int, high: int, start: int, reader: int, flags: int) -> None:
    if not low <= high <= SEQNO_MAX or start > (high if flags & STARTS else 0):
        raise RemoteProtocolError("seqno", f"low {low}, high {high}, start {start}")
    if reader and not flags & STARTS:
        raise RemoteProtocolError("flags", f"a start for {reader:#x} without a start")


def _mark(seqno: int) -> int:
    if seqno > SEQNO_MAX:
        raise RemoteProtocolError("seqno", f"{seqno} is beyond the largest seqno")
    return seqno


_DECODERS: dict[int, Callable[[bytes, int, int, Address, int], Frame]] = {
    DATA: _decode_data,
    ACK: _decode_ack,
    NAK: _decode_nak,
    GONE: _decode_gone,
    TAIL: _decode_tail,
}
