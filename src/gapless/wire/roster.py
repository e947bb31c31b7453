"""Rosters as bytes, whole or as a change of the roster before, and bytes in parts (docs/wire.md has the tables).

On sending: a whole roster lists every place. A change says which places of the base are gone, by
their index there, and which are new, in the order in which they stand behind those that stay.
Either way the places that are away come last.

On reception: the parts, end to end, give a roster or a RemoteProtocolError. A roster has one form
only: what decodes encodes to the same bytes again, as a change of the same base or whole.
"""

from __future__ import annotations

from struct import Struct, error as StructError  # noqa: N812
from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import Address, Roster, RosterEntry
from gapless.wire.primitives import (
    ADDRESS,
    ENTRY_MIN_BYTES,
    check_exact_length,
    check_members,
    check_min_length,
    check_view,
    pack_entry,
    unpack_entry,
)

if TYPE_CHECKING:
    from gapless.identity import ViewId

WHOLE = 0
"""First byte of a whole roster."""
CHANGE = 1
"""First byte of a change."""
PARTS_MAX_COUNT = 0xFFFF
"""The most parts that a frame can count."""

_WHOLE = Struct("<BHH")
_CHANGE = Struct("<BHHH")
_INDEX = Struct("<H")


def is_change(roster: Roster, base: Roster) -> bool:
    """Return whether ``roster`` is a change of ``base``: who stays keeps the order, and who is new is behind them."""
    here = set(roster.entries)
    stay = tuple([place for place in base.entries if place in here])
    return roster.entries[: len(stay)] == stay


def encode_roster(roster: Roster, base: Roster | None = None) -> bytes:
    """Return the bytes of ``roster``: whole, or as a change of ``base``."""
    try:
        check_roster(roster)
        if base is None:
            head, new = _WHOLE.pack(WHOLE, len(roster.entries), len(roster.absent)), roster.entries
        else:
            head, new = _encode_change(roster, base)
        return b"".join([head, *map(_pack_entry, new), *map(_pack_entry, roster.absent)])
    except (StructError, RemoteProtocolError) as error:
        raise LocalProtocolError(f"the wire format has no room for this roster: {error}") from error


def _encode_change(roster: Roster, base: Roster) -> tuple[bytes, tuple[RosterEntry, ...]]:
    if not is_change(roster, base):
        raise LocalProtocolError(
            "who stays in a changed roster keeps the order, and who is new is behind"
        )
    here = set(roster.entries)
    gone = [index for index, place in enumerate(base.entries) if place not in here]
    new = roster.entries[len(base.entries) - len(gone) :]
    head = _CHANGE.pack(CHANGE, len(gone), len(new), len(roster.absent))
    return head + b"".join(map(_INDEX.pack, gone)), new


def _pack_entry(place: RosterEntry) -> bytes:
    return ADDRESS.pack(*place.address) + pack_entry(place)


def decode_roster(view: ViewId, body: bytes, base: Roster | None) -> Roster:
    """Return the roster of ``view`` that ``body`` tells, whole, or as a change of ``base`` if there is one.

    ``base`` is to be the roster of the view that the frame names as its base.
    """
    if not body:
        raise RemoteProtocolError("length", "a roster without bytes")
    if body[0] != (WHOLE if base is None else CHANGE):
        raise RemoteProtocolError(
            "flags", f"a roster of form {body[0]} {'without' if base is None else 'with'} a base"
        )
    if base is None:
        check_min_length(0, len(body), _WHOLE.size)
        _, count, away_count = _WHOLE.unpack_from(body)
        stay: list[RosterEntry] = []
        at = _WHOLE.size
    else:
        check_min_length(0, len(body), _CHANGE.size)
        _, gone_count, count, away_count = _CHANGE.unpack_from(body)
        at = _CHANGE.size + gone_count * _INDEX.size
        check_min_length(0, len(body), at)
        stay = _remaining_entries(base, body[_CHANGE.size : at])
    check_min_length(at, len(body), (count + away_count) * ENTRY_MIN_BYTES)
    new, at = _read_entries(body, at, count)
    away, at = _read_entries(body, at, away_count)
    check_exact_length(at, len(body), 0)
    if base is not None and not set(base.entries).isdisjoint(new):
        raise RemoteProtocolError("order", "a place of the base among the new ones")
    roster = Roster(view, (*stay, *new), tuple(away))
    check_roster(roster)
    return roster


def _remaining_entries(base: Roster, indices: bytes) -> list[RosterEntry]:
    """Return the places of ``base`` without those at the indices, which must rise."""
    gone = [index for (index,) in _INDEX.iter_unpack(indices)]
    before = -1
    for index in gone:
        if not before < index < len(base.entries):
            raise RemoteProtocolError(
                "order", f"place {index} of {len(base.entries)} is gone, after {before}"
            )
        before = index
    left = set(gone)
    return [place for index, place in enumerate(base.entries) if index not in left]


def _read_entries(body: bytes, at: int, count: int) -> tuple[list[RosterEntry], int]:
    places = []
    for _ in range(count):
        check_min_length(at, len(body), ADDRESS.size)
        address = Address(*ADDRESS.unpack_from(body, at))
        place, at = unpack_entry(body, at + ADDRESS.size, len(body), address)
        places.append(place)
    return places, at


def check_roster(roster: Roster) -> None:
    """Check the rules of a roster; raise RemoteProtocolError for the first that is broken.

    The coordinator is first, no node stands there twice, no address twice even among those that are
    away; who is away has a name, and no name stands there twice.
    """
    check_view(roster.id)
    if not roster.entries:
        raise RemoteProtocolError("count", "a roster without places")
    if roster.entries[0].address != roster.id.coordinator:
        raise RemoteProtocolError(
            "member", f"{roster.entries[0].address} is first, not {roster.id.coordinator}"
        )
    check_members(place.address for place in (*roster.entries, *roster.absent))
    nodes = {place.address.node for place in roster.entries}
    if len(nodes) != len(roster.entries):
        raise RemoteProtocolError("member", "two lives of one node in a roster")
    if not all(place.name for place in roster.absent):
        raise RemoteProtocolError("name", "somebody without a name is away")
    names = [place.name for place in (*roster.entries, *roster.absent) if place.name]
    if len(set(names)) != len(names):
        raise RemoteProtocolError("name", "a name stands twice in a roster")


def split_body(body: bytes, max_bytes: int) -> list[bytes]:
    """Return ``body`` in as few parts as have at most ``max_bytes`` each; end to end they are the body again."""
    if max_bytes < 1:
        raise LocalProtocolError(f"no part of anything fits {max_bytes} bytes")
    if len(body) > PARTS_MAX_COUNT * max_bytes:
        raise LocalProtocolError(
            f"{len(body)} bytes are more than {PARTS_MAX_COUNT} parts of {max_bytes}"
        )
    return [body[at : at + max_bytes] for at in range(0, len(body), max_bytes)]
