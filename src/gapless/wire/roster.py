"""Rosters as bytes: whole, or as a change of a base roster (docs/reference/wire.md has the tables).

On sending: a whole roster lists every entry. A change lists the departed entries by their index in
the base, and the new entries in the order in which they follow the remaining entries. Absent
durable members come last in both forms.

On reception: the parts, end to end, decode to a roster, or raise RemoteProtocolError. A roster has
a single form: decoding and encoding again gives the same bytes, whole or as a change of the same
base.
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
"""Maximum number of parts that a frame can count."""

_WHOLE = Struct("<BHH")
_CHANGE = Struct("<BHHH")
_INDEX = Struct("<H")


def is_change(roster: Roster, base: Roster) -> bool:
    """Return whether ``roster`` keeps the order of ``base``, with new entries at the end."""
    here = set(roster.entries)
    stay = tuple([entry for entry in base.entries if entry in here])
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
        raise LocalProtocolError(
            f"a value of the roster does not fit the wire format: {error}"
        ) from error


def _encode_change(roster: Roster, base: Roster) -> tuple[bytes, tuple[RosterEntry, ...]]:
    """Return the head of a change of ``base``, and the new entries."""
    if not is_change(roster, base):
        raise LocalProtocolError(
            "a changed roster must keep the order of staying members and append new members"
        )
    here = set(roster.entries)
    gone = [index for index, entry in enumerate(base.entries) if entry not in here]
    new = roster.entries[len(base.entries) - len(gone) :]
    head = _CHANGE.pack(CHANGE, len(gone), len(new), len(roster.absent))
    return head + b"".join(map(_INDEX.pack, gone)), new


def _pack_entry(entry: RosterEntry) -> bytes:
    return ADDRESS.pack(*entry.address) + pack_entry(entry)


def decode_roster(view: ViewId, body: bytes, base: Roster | None) -> Roster:
    """Return the roster of ``view`` in ``body``: whole, or as a change of ``base`` if given.

    ``base`` must be the roster of the base view named by the frame.
    """
    if not body:
        raise RemoteProtocolError("length", "a roster without bytes")
    if body[0] != (WHOLE if base is None else CHANGE):
        raise RemoteProtocolError(
            "flags", f"a roster of form {body[0]} {'without' if base is None else 'with'} a base"
        )
    if base is None:
        check_min_length(0, len(body), _WHOLE.size)
        _, count, absent_count = _WHOLE.unpack_from(body)
        stay: list[RosterEntry] = []
        at = _WHOLE.size
    else:
        check_min_length(0, len(body), _CHANGE.size)
        _, gone_count, count, absent_count = _CHANGE.unpack_from(body)
        at = _CHANGE.size + gone_count * _INDEX.size
        check_min_length(0, len(body), at)
        stay = _remaining_entries(base, body[_CHANGE.size : at])
    check_min_length(at, len(body), (count + absent_count) * ENTRY_MIN_BYTES)
    new, at = _read_entries(body, at, count)
    absent, at = _read_entries(body, at, absent_count)
    check_exact_length(at, len(body), 0)
    if base is not None and not set(base.entries).isdisjoint(new):
        raise RemoteProtocolError("order", "an entry of the base is listed as new")
    roster = Roster(view, (*stay, *new), tuple(absent))
    check_roster(roster)
    return roster


def _remaining_entries(base: Roster, indices: bytes) -> list[RosterEntry]:
    """Return the entries of ``base`` without the entries at the indices, which must rise."""
    gone = [index for (index,) in _INDEX.iter_unpack(indices)]
    before = -1
    for index in gone:
        if not before < index < len(base.entries):
            raise RemoteProtocolError(
                "order",
                f"removed entry {index} of {len(base.entries)} does not follow entry {before}",
            )
        before = index
    departed = set(gone)
    return [entry for index, entry in enumerate(base.entries) if index not in departed]


def _read_entries(body: bytes, at: int, count: int) -> tuple[list[RosterEntry], int]:
    """Return ``count`` entries from ``at`` on, and the end of the entries."""
    entries = []
    for _ in range(count):
        check_min_length(at, len(body), ADDRESS.size)
        address = Address(*ADDRESS.unpack_from(body, at))
        entry, at = unpack_entry(body, at + ADDRESS.size, len(body), address)
        entries.append(entry)
    return entries, at


def check_roster(roster: Roster) -> None:
    """Check the rules of a roster; raise RemoteProtocolError for the first broken rule.

    The coordinator is first; no node occurs twice; no address occurs twice, absent members
    included; every absent member has a name; no name occurs twice.
    """
    check_view(roster.id)
    if not roster.entries:
        raise RemoteProtocolError("count", "a roster without entries")
    if roster.entries[0].address != roster.id.coordinator:
        raise RemoteProtocolError(
            "member",
            f"the first entry is {roster.entries[0].address}, not the coordinator"
            f" {roster.id.coordinator}",
        )
    check_members(entry.address for entry in (*roster.entries, *roster.absent))
    nodes = {entry.address.node for entry in roster.entries}
    if len(nodes) != len(roster.entries):
        raise RemoteProtocolError("member", "two incarnations of the same node in a roster")
    if not all(entry.name for entry in roster.absent):
        raise RemoteProtocolError("name", "an absent member without a name")
    names = [entry.name for entry in (*roster.entries, *roster.absent) if entry.name]
    if len(set(names)) != len(names):
        raise RemoteProtocolError("name", "a name occurs twice in a roster")


def split_body(body: bytes, max_bytes: int) -> list[bytes]:
    """Return ``body`` in as few parts of at most ``max_bytes`` as possible."""
    if max_bytes < 1:
        raise LocalProtocolError(f"a part needs more than {max_bytes} bytes")
    if len(body) > PARTS_MAX_COUNT * max_bytes:
        raise LocalProtocolError(
            f"{len(body)} bytes do not fit {PARTS_MAX_COUNT} parts of {max_bytes} bytes"
        )
    return [body[at : at + max_bytes] for at in range(0, len(body), max_bytes)]
