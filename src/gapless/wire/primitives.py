"""Parts of several frames: prefix, addresses, views, entries of progress, and their rules.

On sending and on reception the same rules hold: a check raises RemoteProtocolError with a reason,
and on sending the encoder turns the error into a LocalProtocolError.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from gapless.errors import RemoteProtocolError
from gapless.identity import MAX_LOCATOR_BYTES, NO_MEMBER, U32_MAX, Address, RosterEntry, ViewId
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, StreamProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.wire.frames import Range

EPOCH = 0x40
"""Frame flag: an epoch follows the prefix."""
SEQNO_MAX = 2**63 - 1
"""Maximum seqno; at ten million messages a second a stream reaches it in 29,000 years."""
NAME_MAX_BYTES = 64
"""Maximum length of a durable name, in UTF-8."""

REASONS = (
    "short",
    "magic",
    "version",
    "sealed",
    "bare",
    "checksum",
    "flags",
    "empty",
    "length",
    "kind",
    "count",
    "seqno",
    "range",
    "piece",
    "epoch",
    "order",
    "member",
    "view",
    "name",
    "part",
)
"""Every reason for which the decoder rejects a datagram, a roster or an offer."""

PREFIX = Struct("<BBHQQ")
"""The prefix of a frame: kind, flags, length, origin."""
PREFIX_LENGTH_BYTES = 4
"""Bytes of the prefix that its length field does not count."""
LENGTH_MAX = 0xFFFF
"""Maximum of the length field of a frame."""
EPOCH_FIELD = Struct("<Q")
"""The epoch of a stream."""
COUNTS = Struct("<IH")
COUNT = Struct("<H")
PROGRESS = Struct("<QQQQ")
"""The progress of a stream: origin, delivered mark, high mark."""
ADDRESS = Struct("<QQ")
"""An address: node and incarnation."""
VIEW_ID = Struct("<IQQ")
"""The id of a view: number and coordinator."""
ENTRY_LENGTHS = Struct("<BB")
"""The lengths of the name and the locator of a roster entry, which follow."""
ENTRY_MIN_BYTES = ADDRESS.size + ENTRY_LENGTHS.size
"""Minimum size of a roster entry."""


def prefix(
    kind: int,
    flags: int,
    body_bytes: int,
    origin: Address,
    epoch: int = 0,
    *,
    extends_to_end: bool = False,
) -> bytes:
    """Return the first bytes of a frame, with the epoch if the frame has an epoch.

    A frame that ``extends_to_end`` of the datagram may be longer than the length field can express.
    """
    length = body_bytes + PREFIX.size - PREFIX_LENGTH_BYTES
    if not epoch:
        return PREFIX.pack(kind, flags, length_field(length) if extends_to_end else length, *origin)
    check_epoch(epoch)
    length += EPOCH_FIELD.size
    front = PREFIX.pack(
        kind, flags | EPOCH, length_field(length) if extends_to_end else length, *origin
    )
    return front + EPOCH_FIELD.pack(epoch)


def length_field(length: int) -> int:
    """Return the length field of a frame at the end of a datagram: 0 if the length does not fit."""
    return length if length <= LENGTH_MAX else 0


def check_exact_length(at: int, end: int, body_bytes: int) -> None:
    """Check that ``body_bytes`` lie between ``at`` and ``end``."""
    if end - at != body_bytes:
        raise RemoteProtocolError("length", f"a body of {end - at} bytes, not {body_bytes}")


def check_min_length(at: int, end: int, body_bytes: int) -> None:
    """Check that at least ``body_bytes`` lie between ``at`` and ``end``."""
    if end - at < body_bytes:
        raise RemoteProtocolError("length", f"{end - at} bytes where {body_bytes} are needed")


def check_epoch(epoch: int) -> None:
    """Check that an epoch names a view or a connection."""
    if (
        not 0 < epoch <= U32_MAX
        and not FIRST_CONNECTION_EPOCH <= epoch < 2 * FIRST_CONNECTION_EPOCH
    ):
        raise RemoteProtocolError("epoch", f"{epoch:#x} is neither a view nor a connection")


def check_ranges(ranges: tuple[Range, ...]) -> None:
    """Check that ranges rise and do not overlap."""
    floor = 0
    for first, last in ranges:
        if not floor < first <= last <= SEQNO_MAX:
            raise RemoteProtocolError("range", f"{first}..{last} after {floor}")
        floor = last


# Progress


def unpack_progress(datagram: bytes, table: int, end: int) -> tuple[StreamProgress, ...]:
    """Return the entries between ``table`` and ``end``."""
    entries = PROGRESS.iter_unpack(datagram[table:end])
    progress = tuple(
        StreamProgress(Address(node, incarnation), delivered, high)
        for node, incarnation, delivered, high in entries
    )
    check_progress(progress)
    return progress


def check_progress(progress: tuple[StreamProgress, ...]) -> None:
    """Check that origins rise, and that no delivered mark exceeds the high mark."""
    before: Address | None = None
    for origin, delivered, high in progress:
        if before is not None and origin <= before:
            raise RemoteProtocolError("order", f"{origin} after {before}")
        if not delivered <= high <= SEQNO_MAX:
            raise RemoteProtocolError("seqno", f"delivered {delivered}, high {high}")
        before = origin


# Members and views


def check_member(address: Address) -> None:
    """Check that an address is valid for a member."""
    if address == NO_MEMBER:
        raise RemoteProtocolError("member", "no member has the address 0.0")


def check_first_origin(progress: tuple[StreamProgress, ...]) -> None:
    """Check that no entry has the address of no member.

    Origins rise, so only the first entry could have the lowest address.
    """
    if progress:
        check_member(progress[0].origin)


def check_members(addresses: Iterable[Address]) -> None:
    """Check that each address is valid for a member, and that no address occurs twice."""
    seen = {NO_MEMBER}
    for address in addresses:
        if address in seen:
            raise RemoteProtocolError("member", f"{address} is no member, or occurs twice")
        seen.add(address)


def pack_view(view: ViewId) -> bytes:
    """Return the bytes of a view's identity."""
    check_view(view)
    return VIEW_ID.pack(view.number, *view.coordinator)


def unpack_view(datagram: bytes, at: int) -> ViewId:
    """Return the view's identity at ``at``."""
    number, node, incarnation = VIEW_ID.unpack_from(datagram, at)
    view = ViewId(number, Address(node, incarnation))
    check_view(view)
    return view


def check_view(view: ViewId) -> None:
    """Check that a view has a valid number and coordinator."""
    if not 0 < view.number <= U32_MAX:
        raise RemoteProtocolError("view", f"a view cannot have the number {view.number}")
    check_member(view.coordinator)


def pack_entry(entry: RosterEntry) -> bytes:
    """Return the bytes of a roster entry behind the address: lengths, name, locator."""
    name = _name_bytes(entry.name)
    _check_entry(name, entry.locator)
    _check_name(entry.name)
    return ENTRY_LENGTHS.pack(len(name), len(entry.locator)) + name + entry.locator


def unpack_entry(datagram: bytes, at: int, end: int, address: Address) -> tuple[RosterEntry, int]:
    """Return the roster entry of ``address`` at ``at``, and the end of the entry."""
    check_min_length(at, end, ENTRY_LENGTHS.size)
    name_bytes, locator_bytes = ENTRY_LENGTHS.unpack_from(datagram, at)
    middle = at + ENTRY_LENGTHS.size + name_bytes
    behind = middle + locator_bytes
    check_min_length(at, end, behind - at)
    name, locator = datagram[at + ENTRY_LENGTHS.size : middle], datagram[middle:behind]
    _check_entry(name, locator)
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("name", f"{name!r} is not UTF-8") from error
    _check_name(text)
    return RosterEntry(address, text, locator), behind


def check_durable_name(name: str) -> None:
    """Check that a durable name fits the wire: its length, its encoding and its letters."""
    _check_entry(_name_bytes(name), b"")
    _check_name(name)


def _name_bytes(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise RemoteProtocolError("name", f"{name!r} has no UTF-8") from error


def _check_entry(name: bytes, locator: bytes) -> None:
    if len(name) > NAME_MAX_BYTES:
        raise RemoteProtocolError(
            "name", f"a name of {len(name)} bytes, more than {NAME_MAX_BYTES}"
        )
    if len(locator) > MAX_LOCATOR_BYTES:
        raise RemoteProtocolError(
            "length", f"a locator of {len(locator)} bytes, more than {MAX_LOCATOR_BYTES}"
        )


def _check_name(name: str) -> None:
    if any(letter < " " or "\x7f" <= letter <= "\x9f" for letter in name):
        raise RemoteProtocolError("name", f"{name!r} has control characters")
