"""Frames of membership and of state transfer (docs/reference/wire.md has the tables).

On sending: each encoder adds the bytes of a frame to a datagram, and rejects a frame that a
receiver would reject.

On reception: each decoder reads the body of a frame to the last byte; the first fault raises
RemoteProtocolError.

Control frames have no epoch. The origin is a member, never the address 0.0.
"""

from __future__ import annotations

from struct import Struct, error as StructError  # noqa: N812
from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import Address
from gapless.wire.frames import (
    Alive,
    AskView,
    Beacon,
    Join,
    Leave,
    MembershipFrame,
    MergeAsk,
    MergeReply,
    NameTaken,
    NewView,
    Signature,
    StateAsk,
    StateChunk,
    StateFrame,
    StateOffer,
    StatePull,
    Suspect,
)
from gapless.wire.primitives import (
    ADDRESS,
    COUNT,
    ENTRY_LENGTHS,
    PREFIX,
    PROGRESS,
    SEQNO_MAX,
    VIEW_ID,
    check_exact_length,
    check_first_origin,
    check_member,
    check_members,
    check_min_length,
    check_progress,
    pack_entry,
    pack_view,
    prefix,
    unpack_entry,
    unpack_progress,
    unpack_view,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.identity import ViewId
    from gapless.wire.frames import Frame

JOIN, LEAVE, ALIVE, SUSPECT, NEW_VIEW, ASK_VIEW, BEACON, MERGE_ASK, MERGE_REPLY = range(0x10, 0x19)
STATE_ASK, STATE_OFFER, STATE_PULL, STATE_CHUNK = range(0x19, 0x1D)
NAME_TAKEN = 0x1D
SIGNATURE = 0x1E

SIGNATURE_BYTES = 64
"""Size of a signature of Ed25519."""

RELAY = 0x01
"""Join flag: a receiver relays the frame to the coordinator."""
IN_VIEW = 0x01
"""Alive flag: the origin is in a view, which the body names."""
INCLUDES_RECEIVER = 0x02
"""Alive flag: the receiver is in that view, too."""
REPLY_WANTED = 0x04
"""Alive flag: the receiver answers with a heartbeat."""
EXPELLED = 0x08
"""Alive flag: the receiver was expelled, and may join as a new incarnation."""
SLOW_RECEIVERS = 0x01
"""Suspect flag: the members have blocked the origin's window."""
BASE = 0x01
"""NewView flag: the roster is a change of the roster of another view, which the body names."""
WILLING = 0x01
"""MergeReply flag: the origin agrees."""

_MERGE = Struct("<Q")
_PARTS = Struct("<HH")
_ASK = Struct("<QH")
_OFFER = Struct("<QHH")
_PULL = Struct("<QQI")
_CHUNK = Struct("<QQ")
_SIGNATURE = Struct("<QI")

NEW_VIEW_OVERHEAD_BYTES = PREFIX.size + VIEW_ID.size + _PARTS.size + VIEW_ID.size
"""Size of a NEW_VIEW frame with a base, without its part of the roster."""
STATE_OFFER_OVERHEAD_BYTES = PREFIX.size + _OFFER.size
"""Size of a STATE_OFFER frame without its part of the offer."""
STATE_CHUNK_OVERHEAD_BYTES = PREFIX.size + _CHUNK.size
"""Size of a STATE_CHUNK frame without its bytes of the state."""
SIGNATURE_FRAME_BYTES = PREFIX.size + _SIGNATURE.size + SIGNATURE_BYTES
"""Size of a SIGNATURE frame."""

_FIXED_BYTES: dict[type[MembershipFrame | StateFrame], int] = {
    Join: ENTRY_LENGTHS.size,
    NameTaken: ENTRY_LENGTHS.size + ADDRESS.size,
    Leave: 0,
    Alive: 0,
    Suspect: COUNT.size,
    NewView: VIEW_ID.size + _PARTS.size,
    AskView: 0,
    Beacon: VIEW_ID.size + COUNT.size,
    MergeAsk: _MERGE.size,
    MergeReply: _MERGE.size + VIEW_ID.size,
    Signature: _SIGNATURE.size + SIGNATURE_BYTES,
    StateAsk: _ASK.size,
    StateOffer: _OFFER.size,
    StatePull: _PULL.size,
    StateChunk: _CHUNK.size,
}


def size_bytes(frame: MembershipFrame | StateFrame) -> int:
    """Return the size of ``frame`` in a datagram."""
    return PREFIX.size + _FIXED_BYTES[type(frame)] + _varying_bytes(frame)


def _varying_bytes(frame: MembershipFrame | StateFrame) -> int:
    if isinstance(frame, (Join, NameTaken)):
        return len(frame.entry.name.encode(errors="surrogatepass")) + len(frame.entry.locator)
    if isinstance(frame, Alive):
        return VIEW_ID.size if frame.view is not None else 0
    if isinstance(frame, Suspect):
        return ADDRESS.size * len(frame.members)
    if isinstance(frame, Beacon):
        return ADDRESS.size * len(frame.heard)
    if isinstance(frame, NewView):
        return len(frame.body) + (VIEW_ID.size if frame.base is not None else 0)
    if isinstance(frame, StateAsk):
        return PROGRESS.size * len(frame.starts)
    return len(frame.body) if isinstance(frame, (StateOffer, StateChunk)) else 0


# Frames to bytes


def _append_frame(
    parts: list[bytes], kind: int, flags: int, origin: Address, body: bytes, behind: bytes = b""
) -> None:
    check_member(origin)
    parts += (prefix(kind, flags, len(body) + len(behind), origin), body, behind)


def _pack_addresses(addresses: tuple[Address, ...]) -> bytes:
    check_members(addresses)
    return COUNT.pack(len(addresses)) + b"".join([ADDRESS.pack(*address) for address in addresses])


def _encode_join(parts: list[bytes], frame: Join) -> None:
    _append_frame(
        parts, JOIN, RELAY if frame.relay else 0, frame.entry.address, pack_entry(frame.entry)
    )


def _encode_name_taken(parts: list[bytes], frame: NameTaken) -> None:
    check_member(frame.joiner)
    _append_frame(
        parts,
        NAME_TAKEN,
        0,
        frame.entry.address,
        ADDRESS.pack(*frame.joiner),
        pack_entry(frame.entry),
    )


def _encode_leave(parts: list[bytes], frame: Leave) -> None:
    _append_frame(parts, LEAVE, 0, frame.origin, b"")


def _encode_alive(parts: list[bytes], frame: Alive) -> None:
    flags = (
        (IN_VIEW if frame.view is not None else 0)
        | (INCLUDES_RECEIVER if frame.includes_receiver else 0)
        | (REPLY_WANTED if frame.reply_wanted else 0)
        | (EXPELLED if frame.expelled else 0)
    )
    _check_alive_flags(flags)
    _append_frame(
        parts, ALIVE, flags, frame.origin, b"" if frame.view is None else pack_view(frame.view)
    )


def _encode_suspect(parts: list[bytes], frame: Suspect) -> None:
    _check_nonempty(frame.members)
    _append_frame(
        parts,
        SUSPECT,
        SLOW_RECEIVERS if frame.slow_receivers else 0,
        frame.origin,
        _pack_addresses(frame.members),
    )


def _encode_new_view(parts: list[bytes], frame: NewView) -> None:
    _check_part(frame.part, frame.parts, frame.body)
    fixed = pack_view(frame.view) + _PARTS.pack(frame.part, frame.parts)
    if frame.base is None:
        _append_frame(parts, NEW_VIEW, 0, frame.origin, fixed, frame.body)
        return
    _check_base(frame.base, frame.view)
    _append_frame(parts, NEW_VIEW, BASE, frame.origin, fixed + pack_view(frame.base), frame.body)


def _encode_ask_view(parts: list[bytes], frame: AskView) -> None:
    _append_frame(parts, ASK_VIEW, 0, frame.origin, b"")


def _encode_beacon(parts: list[bytes], frame: Beacon) -> None:
    _append_frame(
        parts, BEACON, 0, frame.origin, pack_view(frame.view), _pack_addresses(frame.heard)
    )


def _encode_merge_ask(parts: list[bytes], frame: MergeAsk) -> None:
    _append_frame(parts, MERGE_ASK, 0, frame.origin, _MERGE.pack(frame.merge))


def _encode_merge_reply(parts: list[bytes], frame: MergeReply) -> None:
    flags = WILLING if frame.willing else 0
    _append_frame(
        parts, MERGE_REPLY, flags, frame.origin, _MERGE.pack(frame.merge), pack_view(frame.view)
    )


def _encode_signature(parts: list[bytes], frame: Signature) -> None:
    _check_counter(frame.counter)
    check_exact_length(0, len(frame.signature), SIGNATURE_BYTES)
    fixed = _SIGNATURE.pack(frame.counter, frame.view)
    _append_frame(parts, SIGNATURE, 0, frame.origin, fixed, frame.signature)


def _encode_state_ask(parts: list[bytes], frame: StateAsk) -> None:
    check_progress(frame.starts)
    check_first_origin(frame.starts)
    table = b"".join(
        [PROGRESS.pack(*origin, delivered, high) for origin, delivered, high in frame.starts]
    )
    _append_frame(
        parts, STATE_ASK, 0, frame.origin, _ASK.pack(frame.transfer, len(frame.starts)), table
    )


def _encode_state_offer(parts: list[bytes], frame: StateOffer) -> None:
    _check_part(frame.part, frame.parts, frame.body)
    fixed = _OFFER.pack(frame.transfer, frame.part, frame.parts)
    _append_frame(parts, STATE_OFFER, 0, frame.origin, fixed, frame.body)


def _encode_state_pull(parts: list[bytes], frame: StatePull) -> None:
    _check_extent(frame.offset, frame.length)
    _append_frame(
        parts, STATE_PULL, 0, frame.origin, _PULL.pack(frame.transfer, frame.offset, frame.length)
    )


def _encode_state_chunk(parts: list[bytes], frame: StateChunk) -> None:
    _check_nonempty(frame.body)
    _check_extent(frame.offset, len(frame.body))
    _append_frame(
        parts, STATE_CHUNK, 0, frame.origin, _CHUNK.pack(frame.transfer, frame.offset), frame.body
    )


ENCODERS: dict[type[Frame], Callable[..., None]] = {
    Join: _encode_join,
    NameTaken: _encode_name_taken,
    Leave: _encode_leave,
    Alive: _encode_alive,
    Suspect: _encode_suspect,
    NewView: _encode_new_view,
    AskView: _encode_ask_view,
    Beacon: _encode_beacon,
    MergeAsk: _encode_merge_ask,
    MergeReply: _encode_merge_reply,
    Signature: _encode_signature,
    StateAsk: _encode_state_ask,
    StateOffer: _encode_state_offer,
    StatePull: _encode_state_pull,
    StateChunk: _encode_state_chunk,
}
"""The function that adds a frame of each type to the parts of a datagram."""


def encode_frames(frames: Iterable[MembershipFrame]) -> bytes:
    """Return the bytes of ``frames``, without a datagram around them.

    Raises:
        LocalProtocolError: A receiver would reject a frame.
    """
    parts: list[bytes] = []
    try:
        for frame in frames:
            ENCODERS[type(frame)](parts, frame)
    except (StructError, RemoteProtocolError) as error:
        raise LocalProtocolError(f"a frame does not fit the wire format: {error}") from error
    return b"".join(parts)


# Bytes to frames


def _read_addresses(datagram: bytes, at: int, end: int) -> tuple[Address, ...]:
    check_min_length(at, end, COUNT.size)
    (count,) = COUNT.unpack_from(datagram, at)
    table = at + COUNT.size
    check_exact_length(table, end, count * ADDRESS.size)
    addresses = tuple([Address(*entry) for entry in ADDRESS.iter_unpack(datagram[table:end])])
    check_members(addresses)
    return addresses


def _decode_join(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, _epoch: int
) -> Join:
    check_member(origin)
    place, behind = unpack_entry(datagram, at, end, origin)
    check_exact_length(behind, end, 0)
    return Join(place, flags & RELAY != 0)


def _decode_name_taken(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> NameTaken:
    check_member(origin)
    check_min_length(at, end, ADDRESS.size)
    joiner = Address(*ADDRESS.unpack_from(datagram, at))
    check_member(joiner)
    entry, behind = unpack_entry(datagram, at + ADDRESS.size, end, origin)
    check_exact_length(behind, end, 0)
    return NameTaken(entry, joiner)


def _decode_leave(
    _datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> Leave:
    check_member(origin)
    check_exact_length(at, end, 0)
    return Leave(origin)


def _decode_alive(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, _epoch: int
) -> Alive:
    check_member(origin)
    _check_alive_flags(flags)
    view: ViewId | None = None
    if flags & IN_VIEW:
        check_exact_length(at, end, VIEW_ID.size)
        view = unpack_view(datagram, at)
    else:
        check_exact_length(at, end, 0)
    return Alive(
        origin,
        view,
        flags & INCLUDES_RECEIVER != 0,
        flags & REPLY_WANTED != 0,
        flags & EXPELLED != 0,
    )


def _decode_suspect(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, _epoch: int
) -> Suspect:
    check_member(origin)
    members = _read_addresses(datagram, at, end)
    _check_nonempty(members)
    return Suspect(origin, members, flags & SLOW_RECEIVERS != 0)


def _decode_new_view(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, _epoch: int
) -> NewView:
    check_member(origin)
    middle = at + VIEW_ID.size
    body = middle + _PARTS.size + (VIEW_ID.size if flags & BASE else 0)
    check_min_length(at, end, body - at)
    view = unpack_view(datagram, at)
    part, parts = _PARTS.unpack_from(datagram, middle)
    base = unpack_view(datagram, body - VIEW_ID.size) if flags & BASE else None
    if base is not None:
        _check_base(base, view)
    part_body = datagram[body:end]
    _check_part(part, parts, part_body)
    return NewView(origin, view, base, part, parts, part_body)


def _decode_ask_view(
    _datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> AskView:
    check_member(origin)
    check_exact_length(at, end, 0)
    return AskView(origin)


def _decode_beacon(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> Beacon:
    check_member(origin)
    check_min_length(at, end, VIEW_ID.size)
    return Beacon(
        origin, unpack_view(datagram, at), _read_addresses(datagram, at + VIEW_ID.size, end)
    )


def _decode_merge_ask(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> MergeAsk:
    check_member(origin)
    check_exact_length(at, end, _MERGE.size)
    return MergeAsk(origin, *_MERGE.unpack_from(datagram, at))


def _decode_merge_reply(
    datagram: bytes, at: int, end: int, origin: Address, flags: int, _epoch: int
) -> MergeReply:
    check_member(origin)
    check_exact_length(at, end, _MERGE.size + VIEW_ID.size)
    (merge,) = _MERGE.unpack_from(datagram, at)
    return MergeReply(origin, merge, unpack_view(datagram, at + _MERGE.size), flags & WILLING != 0)


def _decode_signature(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> Signature:
    check_member(origin)
    check_exact_length(at, end, _SIGNATURE.size + SIGNATURE_BYTES)
    counter, view = _SIGNATURE.unpack_from(datagram, at)
    _check_counter(counter)
    return Signature(origin, counter, view, datagram[at + _SIGNATURE.size : end])


def _decode_state_ask(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> StateAsk:
    check_member(origin)
    check_min_length(at, end, _ASK.size)
    transfer, count = _ASK.unpack_from(datagram, at)
    table = at + _ASK.size
    check_exact_length(table, end, count * PROGRESS.size)
    starts = unpack_progress(datagram, table, end)
    check_first_origin(starts)
    return StateAsk(origin, transfer, starts)


def _decode_state_offer(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> StateOffer:
    check_member(origin)
    check_min_length(at, end, _OFFER.size)
    transfer, part, parts = _OFFER.unpack_from(datagram, at)
    body = datagram[at + _OFFER.size : end]
    _check_part(part, parts, body)
    return StateOffer(origin, transfer, part, parts, body)


def _decode_state_pull(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> StatePull:
    check_member(origin)
    check_exact_length(at, end, _PULL.size)
    transfer, offset, length = _PULL.unpack_from(datagram, at)
    _check_extent(offset, length)
    return StatePull(origin, transfer, offset, length)


def _decode_state_chunk(
    datagram: bytes, at: int, end: int, origin: Address, _flags: int, _epoch: int
) -> StateChunk:
    check_member(origin)
    check_min_length(at, end, _CHUNK.size)
    transfer, offset = _CHUNK.unpack_from(datagram, at)
    body = datagram[at + _CHUNK.size : end]
    _check_nonempty(body)
    _check_extent(offset, len(body))
    return StateChunk(origin, transfer, offset, body)


def _check_alive_flags(flags: int) -> None:
    if flags & (INCLUDES_RECEIVER | EXPELLED) and not flags & IN_VIEW:
        raise RemoteProtocolError(
            "flags", "a sender without a view claims that the receiver is in the view, or expelled"
        )
    if flags & INCLUDES_RECEIVER and flags & EXPELLED:
        raise RemoteProtocolError(
            "flags", "a sender claims that the receiver is in the view, and expelled"
        )


def _check_nonempty(listed: tuple[Address, ...] | bytes) -> None:
    if not listed:
        raise RemoteProtocolError("count", "a frame without content")


def _check_base(base: ViewId, view: ViewId) -> None:
    if base.number >= view.number:
        raise RemoteProtocolError(
            "view", f"view {view.number} cannot be a change of view {base.number}"
        )


def _check_part(part: int, parts: int, body: bytes) -> None:
    if not 0 <= part < parts:
        raise RemoteProtocolError("part", f"part {part} of {parts}")
    _check_nonempty(body)


def _check_counter(counter: int) -> None:
    if not counter:
        raise RemoteProtocolError("count", "signatures are counted from 1")


def _check_extent(offset: int, length: int) -> None:
    if offset + length > SEQNO_MAX:
        raise RemoteProtocolError(
            "range", f"{length} bytes from offset {offset} are beyond the maximum state size"
        )


DECODERS: dict[
    int, Callable[[bytes, int, int, Address, int, int], MembershipFrame | StateFrame]
] = {
    JOIN: _decode_join,
    NAME_TAKEN: _decode_name_taken,
    LEAVE: _decode_leave,
    ALIVE: _decode_alive,
    SUSPECT: _decode_suspect,
    NEW_VIEW: _decode_new_view,
    ASK_VIEW: _decode_ask_view,
    BEACON: _decode_beacon,
    MERGE_ASK: _decode_merge_ask,
    MERGE_REPLY: _decode_merge_reply,
    SIGNATURE: _decode_signature,
    STATE_ASK: _decode_state_ask,
    STATE_OFFER: _decode_state_offer,
    STATE_PULL: _decode_state_pull,
    STATE_CHUNK: _decode_state_chunk,
}
"""The function that reads the body of a frame of each kind."""
KNOWN_FLAGS = {
    JOIN: RELAY,
    ALIVE: IN_VIEW | INCLUDES_RECEIVER | REPLY_WANTED | EXPELLED,
    SUSPECT: SLOW_RECEIVERS,
    NEW_VIEW: BASE,
    MERGE_REPLY: WILLING,
}
"""The flags that a frame of each kind may have; a kind that is not listed has none."""
