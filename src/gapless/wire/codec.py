"""The wire format, version 1 (docs/reference/wire.md has the tables).

On sending: frames of a sender are packed into a datagram behind a header with a checksum. A frame
that a receiver would reject is not sent: the encoder raises LocalProtocolError.

On reception: the header is checked (magic, version, checksum), then each frame, to the last byte.
Invalid bytes raise RemoteProtocolError with a reason of ``primitives.REASONS``. No length field
makes the decoder allocate more than the datagram holds.

Every datagram has a single form: decoding and encoding again gives the same bytes.
"""

from __future__ import annotations

from struct import Struct, error as StructError  # noqa: N812
from typing import TYPE_CHECKING
from zlib import crc32

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import Address
from gapless.run import FRAGMENT, LENGTH_BYTES, NO_LOOPBACK, PRIVATE, DatagramRun, Run, total_bytes
from gapless.wire import control_frames, primitives
from gapless.wire.frames import (
    Ack,
    Close,
    Data,
    Datagram,
    Frame,
    Gone,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Range,
    Stable,
    StreamProgress,
    Tail,
    Unreliable,
    Vote,
)
from gapless.wire.primitives import (
    LENGTH_MAX,
    check_epoch,
    check_exact_length,
    check_progress,
    check_ranges,
    length_field,
    prefix,
    unpack_progress,
)
from gapless.wire.validation import (
    DATA_FLAGS,
    HAS_START,
    check_first,
    check_floor,
    check_mark,
    check_nonempty_progress,
    check_nonempty_ranges,
    check_run,
    check_tail,
    check_unnumbered,
    check_unordered_flags,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAGIC = b"GL"
"""The first bytes of a datagram."""
VERSION = 1
"""The version of the wire format."""
SEALED = 0x01
"""Header flag: the datagram is encrypted and authenticated (seal.py)."""
ADDRESSED = 0x02
"""Header flag: the addressed incarnation follows the header."""
BARE = 0x04
"""Header flag: a single DATA frame follows, and the checksum leaves out its messages."""
VIEW_KEY = 0x10
"""Header flag: the datagram is sealed with the key of a view, not with a key of the ring."""
FIRST = 0x20
"""Data flag: the connection starts with this run. The flag belongs to the frame, not to the run."""
EPOCH = primitives.EPOCH
"""Frame flag: an epoch follows the prefix."""
REPAIR = 0x80
"""Data flag: the run is sent again. The flag belongs to the frame, not to the run."""

DATA, ACK, NAK, GONE, TAIL, VOTE, STABLE, OUT_OF_BAND, OUT_OF_BAND_ACK, UNRELIABLE = range(1, 11)
MEMBERSHIP_KINDS = range(0x1F, 0x20)
"""Frame kinds reserved for membership; the kinds in use are in control_frames.py."""
CLOSE = 0x20
"""Frame kind: the end of a connection."""
UNICAST_KINDS = range(0x21, 0x30)
"""Frame kinds reserved for connections, which share the kinds of streams except for CLOSE."""

SEQNO_MAX = primitives.SEQNO_MAX
"""The largest seqno; at ten million messages a second a stream reaches it in 29,000 years."""
SAFE_SEQNO = SEQNO_MAX - 0xFFFF
"""A run that starts below this seqno ends within SEQNO_MAX, whatever its count."""
DATAGRAM_MAX_BYTES = 65507
"""Maximum size of a UDP datagram over IPv4."""
RUN_MAX_COUNT = 0xFFFF
"""Maximum number of messages in one DATA frame."""

_PREAMBLE = Struct("<2sBBI")
_SENDER_FIELDS = Struct("<QQQ")
_HEADER = Struct("<2sBBIQQQ")
_SENDER_ADDRESS = Struct("<QQ")
_PREFIX = primitives.PREFIX
_FRONT = Struct("<BBH")
_DATA = Struct("<QIQH")
_DATA_FRAME = Struct("<BBHQQQIQH")
_ACK = Struct("<QI")
_NAK = primitives.COUNT
_RANGE = Struct("<QI")
_GONE = Struct("<Q")
_TAIL = Struct("<QQQQ")
_EPOCH = primitives.EPOCH_FIELD
_COUNTS = primitives.COUNTS
_PROGRESS = primitives.PROGRESS
_FLOOR = Struct("<Q")

# The constructor of a named tuple is a Python function around this one; the direct call saves a
# tenth of a decode.
_make = tuple.__new__

FLAGS_AT = 3
"""Where the header of a datagram holds the flags."""
SENDER_FIELD = slice(16, 32)
"""Where the header of a datagram holds the address of its sender."""
_GROUP_AT = _PREAMBLE.size
HEADER_BYTES = _HEADER.size
"""Size of the header of a datagram to all."""
ADDRESSED_HEADER_BYTES = _HEADER.size + _EPOCH.size
"""Size of the header of a datagram to one member."""
DATA_OVERHEAD_BYTES = _PREFIX.size + _DATA.size
"""Size of a DATA frame without its length table and messages."""
NAK_OVERHEAD_BYTES = _PREFIX.size + _NAK.size
"""Size of a NAK frame without its ranges."""
RANGE_BYTES = _RANGE.size
"""Size of one range of a NAK."""

PROGRESS_OVERHEAD_BYTES = _PREFIX.size + _COUNTS.size
"""Size of a VOTE or STABLE frame without its entries."""
PROGRESS_BYTES = _PROGRESS.size
"""Size of one entry of a VOTE or STABLE frame."""
OUT_OF_BAND_OVERHEAD_BYTES = DATA_OVERHEAD_BYTES + _FLOOR.size
"""Size of an OUT_OF_BAND frame without its length table and messages."""

_BODY_BYTES: dict[type[Frame], int] = {Ack: _ACK.size, Gone: _GONE.size, Tail: _TAIL.size, Close: 0}
_PREFIX_LENGTH_BYTES = primitives.PREFIX_LENGTH_BYTES
LARGE_RUN_BYTES = 4096
"""From this size on, messages stay in their datagram until they are read."""


def run_room_bytes(max_frame_bytes: int, epoch: int = 0) -> int:
    """Return how many bytes of lengths and messages fit a datagram of ``max_frame_bytes``."""
    return (
        max_frame_bytes
        - ADDRESSED_HEADER_BYTES
        - DATA_OVERHEAD_BYTES
        - (_EPOCH.size if epoch else 0)
    )


def new_view_room_bytes(max_frame_bytes: int) -> int:
    """Return how many bytes of a roster fit a NEW_VIEW in a datagram of ``max_frame_bytes``."""
    return max_frame_bytes - ADDRESSED_HEADER_BYTES - control_frames.NEW_VIEW_OVERHEAD_BYTES


def state_offer_room_bytes(max_frame_bytes: int) -> int:
    """Return how many bytes of an offer fit a STATE_OFFER in a datagram of ``max_frame_bytes``."""
    return max_frame_bytes - ADDRESSED_HEADER_BYTES - control_frames.STATE_OFFER_OVERHEAD_BYTES


def state_chunk_room_bytes(max_frame_bytes: int) -> int:
    """Return how many bytes of a state fit a STATE_CHUNK in a datagram of ``max_frame_bytes``."""
    return max_frame_bytes - ADDRESSED_HEADER_BYTES - control_frames.STATE_CHUNK_OVERHEAD_BYTES


def size_bytes(frame: Frame) -> int:
    """Return the size of ``frame`` in a datagram."""
    if isinstance(frame, Data):
        return DATA_OVERHEAD_BYTES + frame.run.size_bytes + (_EPOCH.size if frame.epoch else 0)
    if isinstance(frame, (Nak, OutOfBandAck)):
        epoch_bytes = _EPOCH.size if isinstance(frame, Nak) and frame.epoch else 0
        return NAK_OVERHEAD_BYTES + RANGE_BYTES * len(frame.ranges) + epoch_bytes
    if isinstance(frame, (Vote, Stable)):
        return PROGRESS_OVERHEAD_BYTES + PROGRESS_BYTES * len(frame.progress)
    if isinstance(frame, OutOfBand):
        return OUT_OF_BAND_OVERHEAD_BYTES + frame.run.size_bytes
    if isinstance(frame, Unreliable):
        return DATA_OVERHEAD_BYTES + frame.run.size_bytes
    if isinstance(frame, (Ack, Gone, Tail, Close)):
        return _PREFIX.size + _BODY_BYTES[type(frame)] + (_EPOCH.size if frame.epoch else 0)
    return control_frames.size_bytes(frame)


def encode(
    group: int,
    sender: Address,
    frames: Sequence[Frame],
    addressee: int | None = None,
    bare: bool = False,
    view_key: bool = False,
    *,
    checked: bool = True,
) -> bytes:
    """Return the datagram with ``frames`` of ``sender``, for ``group`` or for one incarnation.

    The checksum of a ``bare`` datagram, which is a single DATA frame, leaves out the messages. The
    checksum is 0 unless ``checked``: such a datagram is to be sealed, with the key of the view if
    ``view_key``.

    Raises:
        LocalProtocolError: A frame does not fit the format.
    """
    if bare and (len(frames) != 1 or type(frames[0]) is not Data):
        raise LocalProtocolError("a bare datagram must be a single DATA frame")
    parts: list[bytes] = [b"", b""]
    messages: Sequence[bytes] = ()
    try:
        parts[1] = _SENDER_FIELDS.pack(group, *sender)
        if addressee is not None:
            parts[1] += _EPOCH.pack(addressee)
        if bare:
            messages = _encode_front(parts, frames[0])  # type: ignore[arg-type]
        else:
            for frame in frames:
                _ENCODERS[type(frame)](parts, frame)
    except (StructError, RemoteProtocolError) as error:
        raise LocalProtocolError(f"a value does not fit the wire format: {error}") from error
    if len(parts) == 2:
        raise LocalProtocolError("a datagram needs at least one frame")
    if len(frames) > 1 and any(type(one) is Data and _extends_to_end(one) for one in frames[:-1]):
        raise LocalProtocolError(
            "a frame too long for the length field must be the last frame of the datagram"
        )
    flags = (0 if addressee is None else ADDRESSED) | (BARE if bare else 0)
    if view_key:
        flags |= VIEW_KEY
    checksum = 0
    if checked:
        checksum = flags
        for part in parts:
            checksum = crc32(part, checksum)
    parts[0] = _PREAMBLE.pack(MAGIC, VERSION, flags, checksum)
    return b"".join((*parts, *messages))


def _extends_to_end(frame: Data) -> bool:
    """Return whether a DATA frame is too long for the length field, and so must come last."""
    return size_bytes(frame) - _PREFIX_LENGTH_BYTES > LENGTH_MAX


def encode_split(
    group: int,
    sender: Address,
    frame: Data,
    room_bytes: int,
    addressee: int | None = None,
    bare: bool = False,
    *,
    checked: bool = True,
    view_key: bool = False,
) -> list[bytes]:
    """Return datagrams with the run of ``frame``, at most ``room_bytes`` per datagram.

    The result equals ``encode`` of each part; fields shared by all parts are computed once.
    """
    run = frame.run
    if frame.epoch or frame.first or addressee is not None:
        frames = [frame._replace(run=part) for part in run.split_to_fit(room_bytes)]
        frames[1:] = [part._replace(first=False) for part in frames[1:]]
        return [
            encode(group, sender, (part,), addressee, bare, checked=checked, view_key=view_key)
            for part in frames
        ]
    try:
        check_run(run.first, run.count, run.flags)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"a value does not fit the wire format: {error}") from error
    sender_fields = _SENDER_FIELDS.pack(group, *sender)
    header_flags = (BARE if bare else 0) | (VIEW_KEY if view_key else 0)
    start = crc32(sender_fields, header_flags)
    flags = run.flags | REPAIR if frame.repair else run.flags
    (node, incarnation), first, view, sent_ns = run.origin, run.first, run.view, run.sent_ns
    lengths, payload = run.lengths, run.buffer
    fixed_bytes = _DATA_FRAME.size - _PREFIX_LENGTH_BYTES
    found = []
    header = _PREAMBLE.pack(MAGIC, VERSION, header_flags, 0) + sender_fields
    for head, tail, begin, end in run.split_points(room_bytes):
        count = tail - head
        length = length_field(fixed_bytes + LENGTH_BYTES * count + end - begin)
        fixed = _DATA_FRAME.pack(
            DATA, flags, length, node, incarnation, first + head, view, sent_ns, count
        )
        front = fixed + lengths[LENGTH_BYTES * head : LENGTH_BYTES * tail]
        messages = payload[begin:end]
        if checked:
            checksum = crc32(front, start) if bare else crc32(messages, crc32(front, start))
            header = _PREAMBLE.pack(MAGIC, VERSION, header_flags, checksum) + sender_fields
        found.append(b"".join((header, front, messages)))
    return found


def addressee_of(datagram: bytes) -> int | None:
    """Return the incarnation that a datagram, or its first bytes, is addressed to, if any."""
    if len(datagram) < HEADER_BYTES + _EPOCH.size or not datagram[3] & ADDRESSED:
        return None
    if not datagram.startswith(MAGIC):
        return None
    return int(_EPOCH.unpack_from(datagram, HEADER_BYTES)[0])


def group_of(datagram: bytes) -> int:
    """Return the group in the header, unchecked; the header must be complete."""
    return int(_EPOCH.unpack_from(datagram, _GROUP_AT)[0])


def sender_of(datagram: bytes) -> Address | None:
    """Return the sender in the header, unchecked; None if the datagram has no header."""
    if len(datagram) < HEADER_BYTES:
        return None
    return Address(*_SENDER_ADDRESS.unpack_from(datagram, SENDER_FIELD.start))


def is_repair(datagram: bytes) -> bool:
    """Return whether a datagram begins with a retransmitted run."""
    at = ADDRESSED_HEADER_BYTES if datagram[3] & ADDRESSED else HEADER_BYTES
    return len(datagram) > at + 1 and datagram[at] == DATA and datagram[at + 1] & REPAIR != 0


def split_datagram(datagram: bytes, max_frame_bytes: int, *, checked: bool = True) -> list[bytes]:
    """Return datagrams of at most ``max_frame_bytes`` with the run of a larger datagram.

    All have checksums, or none has one if they are not ``checked``.

    Raises:
        RemoteProtocolError: The datagram is not a single DATA frame.
    """
    group, sender, frames, addressee, bare, view_key = decode(datagram, opened=not checked)
    frame = frames[0]
    if len(frames) > 1 or type(frame) is not Data:
        raise RemoteProtocolError("kind", "only a single DATA frame can be cut")
    room_bytes = run_room_bytes(max_frame_bytes, frame.epoch)
    return encode_split(
        group, sender, frame, room_bytes, addressee, bare, checked=checked, view_key=view_key
    )


def _encode_data(parts: list[bytes], frame: Data) -> None:
    _encode_front(parts, frame)
    parts.append(frame.run.payload)


def _encode_front(parts: list[bytes], frame: Data) -> Sequence[bytes]:
    """Add a DATA frame without the messages; return the messages."""
    run = frame.run
    flags = run.flags
    if flags or not run.count or not 0 < run.first < SAFE_SEQNO:
        check_run(run.first, run.count, flags)
    if frame.repair:
        flags |= REPAIR
    lengths = run.lengths
    if frame.epoch or frame.first:
        check_first(frame.first, frame.epoch)
        flags |= FIRST if frame.first else 0
        front = prefix(
            DATA, flags, _DATA.size + run.size_bytes, run.origin, frame.epoch, extends_to_end=True
        )
        parts += (front, _DATA.pack(run.first, run.view, run.sent_ns, run.count), lengths)
        return run.buffers
    length = _DATA_FRAME.size - _PREFIX_LENGTH_BYTES + run.size_bytes
    if length > LENGTH_MAX:
        length = length_field(length)
    node, incarnation = run.origin
    fixed = _DATA_FRAME.pack(
        DATA, flags, length, node, incarnation, run.first, run.view, run.sent_ns, run.count
    )
    parts += (fixed, lengths)
    return run.buffers


def _encode_ack(parts: list[bytes], frame: Ack) -> None:
    front = prefix(ACK, 0, _ACK.size, frame.origin, frame.epoch)
    parts += (front, _ACK.pack(check_mark(frame.seqno), frame.buffer_bytes))


def _encode_nak(parts: list[bytes], frame: Nak) -> None:
    _encode_ranges(parts, NAK, frame.origin, frame.ranges, frame.epoch)


def _encode_out_of_band_ack(parts: list[bytes], frame: OutOfBandAck) -> None:
    check_nonempty_ranges(frame.ranges)
    _encode_ranges(parts, OUT_OF_BAND_ACK, frame.origin, frame.ranges, 0)


def _encode_ranges(
    parts: list[bytes], kind: int, origin: Address, ranges: tuple[Range, ...], epoch: int
) -> None:
    check_ranges(ranges)
    parts += (
        prefix(kind, 0, _NAK.size + len(ranges) * _RANGE.size, origin, epoch),
        _NAK.pack(len(ranges)),
    )
    parts.append(b"".join([_RANGE.pack(first, last - first) for first, last in ranges]))


def _encode_gone(parts: list[bytes], frame: Gone) -> None:
    parts += (
        prefix(GONE, 0, _GONE.size, frame.origin, frame.epoch),
        _GONE.pack(check_mark(frame.low)),
    )


def _encode_tail(parts: list[bytes], frame: Tail) -> None:
    flags = 0 if frame.start is None else HAS_START
    check_tail(frame.low, frame.high, frame.start or 0, frame.receiver_incarnation, flags)
    body = _TAIL.pack(frame.low, frame.high, frame.start or 0, frame.receiver_incarnation)
    parts += (prefix(TAIL, flags, _TAIL.size, frame.origin, frame.epoch), body)


def _encode_close(parts: list[bytes], frame: Close) -> None:
    check_first(True, frame.epoch)
    parts.append(prefix(CLOSE, 0, 0, frame.origin, frame.epoch))


def _encode_vote(parts: list[bytes], frame: Vote) -> None:
    _encode_progress(parts, VOTE, frame)


def _encode_stable(parts: list[bytes], frame: Stable) -> None:
    _encode_progress(parts, STABLE, frame)


def _encode_progress(parts: list[bytes], kind: int, frame: Vote | Stable) -> None:
    check_progress(frame.progress)
    check_nonempty_progress(frame.progress)
    body_bytes = _COUNTS.size + len(frame.progress) * _PROGRESS.size
    parts += (
        prefix(kind, 0, body_bytes, frame.origin),
        _COUNTS.pack(frame.view, len(frame.progress)),
    )
    parts += (
        _PROGRESS.pack(*origin, delivered, high) for origin, delivered, high in frame.progress
    )


def _encode_out_of_band(parts: list[bytes], frame: OutOfBand) -> None:
    run = frame.run
    check_run(run.first, run.count, check_unordered_flags(run.flags & ~PRIVATE))
    check_floor(frame.floor, run.first)
    front = prefix(OUT_OF_BAND, run.flags, _FLOOR.size + _DATA.size + run.size_bytes, run.origin)
    fixed = _DATA.pack(run.first, run.view, run.sent_ns, run.count)
    parts += (front, _FLOOR.pack(frame.floor), fixed, run.lengths, run.payload)


def _encode_unreliable(parts: list[bytes], frame: Unreliable) -> None:
    run = frame.run
    check_run(check_unnumbered(run.first), run.count, check_unordered_flags(run.flags))
    front = prefix(UNRELIABLE, run.flags, _DATA.size + run.size_bytes, run.origin)
    parts += (
        front,
        _DATA.pack(run.first, run.view, run.sent_ns, run.count),
        run.lengths,
        run.payload,
    )


_ENCODERS: dict[type[Frame], Callable[..., None]] = {
    Data: _encode_data,
    Ack: _encode_ack,
    Nak: _encode_nak,
    Gone: _encode_gone,
    Tail: _encode_tail,
    Close: _encode_close,
    Vote: _encode_vote,
    Stable: _encode_stable,
    OutOfBand: _encode_out_of_band,
    OutOfBandAck: _encode_out_of_band_ack,
    Unreliable: _encode_unreliable,
    **control_frames.ENCODERS,
}


def decode(datagram: bytes, *, opened: bool = False) -> Datagram:
    """Return the decoded datagram; an ``opened`` one was sealed, and needs no checksum.

    Raises:
        RemoteProtocolError: the bytes are not a valid datagram; ``reason`` says why.
    """
    size_bytes = len(datagram)
    if size_bytes < HEADER_BYTES:
        raise RemoteProtocolError("short", f"{size_bytes} bytes are shorter than a header")
    magic, version, flags, checksum, group, node, incarnation = _HEADER.unpack_from(datagram)
    if magic != MAGIC:
        raise RemoteProtocolError("magic", f"starts with {magic!r}")
    if version != VERSION:
        raise RemoteProtocolError(
            "version", f"version {version}; this member supports version {VERSION}"
        )
    if not opened:
        if flags & SEALED:
            raise RemoteProtocolError(
                "sealed", f"sealed with key {checksum:08x}; this member has no keys"
            )
        covered = _checksummed_bytes(datagram, flags) if flags & BARE else size_bytes
        if crc32(memoryview(datagram)[_PREAMBLE.size : covered], flags) != checksum:
            raise RemoteProtocolError("checksum", f"{size_bytes} bytes do not match their checksum")
    at, addressee, bare, view_key = HEADER_BYTES, None, False, False
    if flags & (BARE | VIEW_KEY):
        bare, view_key = flags & BARE != 0, flags & VIEW_KEY != 0
        flags &= ~(BARE | VIEW_KEY)
    if flags == ADDRESSED:
        if size_bytes < ADDRESSED_HEADER_BYTES:
            raise RemoteProtocolError(
                "short", f"{size_bytes} bytes are shorter than a header with an addressee"
            )
        (addressee,) = _EPOCH.unpack_from(datagram, at)
        at = ADDRESSED_HEADER_BYTES
    elif flags:
        raise RemoteProtocolError("flags", f"header flags {flags:#x}")
    sender = _make(Address, (node, incarnation))
    frames: list[Frame] = []
    while at < size_bytes:
        frame, at = _decode_frame(datagram, at, size_bytes, sender)
        frames.append(frame)
    if not frames:
        raise RemoteProtocolError("empty", "no frame behind the header")
    return _make(Datagram, (group, sender, tuple(frames), addressee, bare, view_key))


def decode_or_error(datagram: bytes, *, opened: bool = False) -> Datagram | RemoteProtocolError:
    """Return the content of ``datagram``, or the error of an invalid datagram."""
    try:
        return decode(datagram, opened=opened)
    except RemoteProtocolError as error:
        return error


def _checksummed_bytes(datagram: bytes, flags: int) -> int:
    """Return the number of checksummed bytes of a bare datagram: all before the messages."""
    at, size_bytes = ADDRESSED_HEADER_BYTES if flags & ADDRESSED else HEADER_BYTES, len(datagram)
    if at + DATA_OVERHEAD_BYTES <= size_bytes:
        kind, frame_flags, length = _FRONT.unpack_from(datagram, at)
        end = at + _PREFIX_LENGTH_BYTES + length if length else _frame_end(at, 0, size_bytes)
        alone = end == size_bytes
        at += _PREFIX.size + (_EPOCH.size if frame_flags & EPOCH else 0)
        if kind == DATA and alone and at + _DATA.size <= size_bytes:
            return at + _DATA.size + LENGTH_BYTES * int(_DATA.unpack_from(datagram, at)[3])
    raise RemoteProtocolError("bare", f"{size_bytes} bytes are not a DATA frame")


def _frame_end(at: int, length: int, size_bytes: int) -> int:
    """Return the end of a DATA frame; a frame beyond the length field ends with the datagram."""
    end = at + _PREFIX_LENGTH_BYTES + length
    return size_bytes if not length and size_bytes - end > LENGTH_MAX else end


def _decode_frame(datagram: bytes, at: int, size_bytes: int, sender: Address) -> tuple[Frame, int]:
    """Decode the frame at ``at``; return the frame and its end."""
    body = at + _PREFIX.size
    if body > size_bytes:
        raise RemoteProtocolError(
            "length", f"{size_bytes - at} bytes are shorter than the prefix of a frame"
        )
    kind, flags, length, node, incarnation = _PREFIX.unpack_from(datagram, at)
    end = (
        at + _PREFIX_LENGTH_BYTES + length
        if length or kind != DATA
        else _frame_end(at, length, size_bytes)
    )
    if end > size_bytes or end < body:
        raise RemoteProtocolError(
            "length", f"a frame of {length} bytes, but only {size_bytes - at} bytes are left"
        )
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise RemoteProtocolError("kind", f"unknown frame kind {kind:#x}")
    if flags and flags & ~_KNOWN_FLAGS.get(kind, 0):
        raise RemoteProtocolError("flags", f"flags {flags:#x} on a frame of kind {kind:#x}")
    # Most frames concern their sender's own stream: share one address object between them.
    same = node == sender.node and incarnation == sender.incarnation
    origin = sender if same else _make(Address, (node, incarnation))
    epoch = 0
    if flags & EPOCH:
        if body + _EPOCH.size > end:
            raise RemoteProtocolError("length", "a frame ends before its epoch")
        (epoch,) = _EPOCH.unpack_from(datagram, body)
        check_epoch(epoch)
        body += _EPOCH.size
    return decoder(datagram, body, end, origin, flags, epoch), end


def _decode_run(datagram: bytes, at: int, end: int, origin: Address, flags: int) -> Run:
    """Decode a run between ``at`` and ``end``."""
    table = at + _DATA.size
    if table > end:
        raise RemoteProtocolError("length", "a frame with messages is cut short")
    first, view, sent_ns, count = _DATA.unpack_from(datagram, at)
    payload = table + count * LENGTH_BYTES
    if not count or payload > end:
        raise RemoteProtocolError("count", f"{count} messages in {end - table} bytes")
    lengths = datagram[table:payload]
    total = int.from_bytes(lengths, "little") if count == 1 else total_bytes(lengths)
    if total != end - payload:
        raise RemoteProtocolError("length", f"lengths do not add up to {end - payload}")
    if flags or not 0 < first < SAFE_SEQNO:
        check_run(first, count, flags)
    if end - payload >= LARGE_RUN_BYTES and end == len(datagram) and not flags & FRAGMENT:
        return DatagramRun(origin, first, lengths, ((datagram, payload),), flags, view, sent_ns)
    return Run(origin, first, lengths, datagram[payload:end], flags, view, sent_ns)


def _decode_data(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, epoch: int
) -> Data:
    run = _decode_run(datagram, at, end, origin, flags & DATA_FLAGS)
    first = flags & FIRST != 0
    if first:
        check_first(first, epoch)
    return _make(Data, (run, flags >= REPAIR, epoch, first))


def _decode_ack(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, epoch: int
) -> Ack:
    check_exact_length(at, end, _ACK.size)
    seqno, buffer_bytes = _ACK.unpack_from(datagram, at)
    return _make(Ack, (origin, check_mark(seqno), buffer_bytes, epoch))


def _decode_nak(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, epoch: int
) -> Nak:
    return Nak(origin, _decode_ranges(datagram, at, end), epoch)


def _decode_out_of_band_ack(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> OutOfBandAck:
    ranges = _decode_ranges(datagram, at, end)
    check_nonempty_ranges(ranges)
    return OutOfBandAck(origin, ranges)


def _decode_ranges(datagram: bytes, at: int, end: int) -> tuple[Range, ...]:
    """Decode the ranges of a NAK or an out-of-band ack."""
    table = at + _NAK.size
    if table > end:
        raise RemoteProtocolError("length", "a frame with ranges is cut short")
    (count,) = _NAK.unpack_from(datagram, at)
    check_exact_length(table, end, count * _RANGE.size)
    # One layout per range, not one per count: the struct module caches only a hundred layouts.
    ranges = tuple(
        [(first, first + more) for first, more in _RANGE.iter_unpack(datagram[table:end])]
    )
    check_ranges(ranges)
    return ranges


def _decode_gone(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, epoch: int
) -> Gone:
    check_exact_length(at, end, _GONE.size)
    return Gone(origin, check_mark(_GONE.unpack_from(datagram, at)[0]), epoch)


def _decode_tail(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, epoch: int
) -> Tail:
    check_exact_length(at, end, _TAIL.size)
    low, high, start, receiver_incarnation = _TAIL.unpack_from(datagram, at)
    check_tail(low, high, start, receiver_incarnation, flags)
    return Tail(
        origin, low, high, start if flags & HAS_START else None, receiver_incarnation, epoch
    )


def _decode_close(
    _datagram: bytes, at: int, end: int, origin: Address, _flags: int, epoch: int
) -> Close:
    check_exact_length(at, end, 0)
    check_first(True, epoch)
    return Close(origin, epoch)


def _decode_vote(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> Vote:
    return Vote(origin, *_decode_progress(datagram, at, end))


def _decode_stable(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> Stable:
    return Stable(origin, *_decode_progress(datagram, at, end))


def _decode_progress(datagram: bytes, at: int, end: int) -> tuple[int, tuple[StreamProgress, ...]]:
    """Decode the view number and the entries of a vote or a stability message."""
    table = at + _COUNTS.size
    if table > end:
        raise RemoteProtocolError("length", "a vote or stability message is cut short")
    view, count = _COUNTS.unpack_from(datagram, at)
    check_exact_length(table, end, count * _PROGRESS.size)
    progress = unpack_progress(datagram, table, end)
    check_nonempty_progress(progress)
    return view, progress


def _decode_out_of_band(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, _epoch: int
) -> OutOfBand:
    if at + _FLOOR.size > end:
        raise RemoteProtocolError("length", "an out-of-band frame is cut short")
    (floor,) = _FLOOR.unpack_from(datagram, at)
    run = _decode_run(datagram, at + _FLOOR.size, end, origin, flags & ~PRIVATE)
    run.flags = flags
    check_floor(floor, run.first)
    return OutOfBand(run, floor)


def _decode_unreliable(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, _epoch: int
) -> Unreliable:
    run = _decode_run(datagram, at, end, origin, flags)
    check_unnumbered(run.first)
    return Unreliable(run)


_DECODERS: dict[int, Callable[[bytes, int, int, Address, int, int], Frame]] = {
    DATA: _decode_data,
    ACK: _decode_ack,
    NAK: _decode_nak,
    GONE: _decode_gone,
    TAIL: _decode_tail,
    VOTE: _decode_vote,
    STABLE: _decode_stable,
    OUT_OF_BAND: _decode_out_of_band,
    OUT_OF_BAND_ACK: _decode_out_of_band_ack,
    UNRELIABLE: _decode_unreliable,
    CLOSE: _decode_close,
    **control_frames.DECODERS,
}
_KNOWN_FLAGS = {
    DATA: 0xFF,
    ACK: EPOCH,
    NAK: EPOCH,
    GONE: EPOCH,
    TAIL: HAS_START | EPOCH,
    OUT_OF_BAND: NO_LOOPBACK | PRIVATE,
    UNRELIABLE: NO_LOOPBACK,
    CLOSE: EPOCH,
    **control_frames.KNOWN_FLAGS,
}
"""The flags that a frame of each kind may have; a kind that is not listed has none."""
