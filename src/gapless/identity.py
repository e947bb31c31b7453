"""Who is who: addresses with incarnations, views, digests, group ids.

An address names one *life* of one member. A process that comes back has a higher incarnation, so
its address is a new one, and nothing of the former life (seqnos, acks, frames still flying) can be
mistaken for the new.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


class Address(NamedTuple):
    """One life of one member: a 64-bit node id and the 64-bit incarnation that rises with every restart."""

    node: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.node:x}.{self.incarnation:x}"


class ViewId(NamedTuple):
    """The identity of a view: a number that rises with every view, and the member that made it."""

    number: int
    coordinator: Address


class View(NamedTuple):
    """An agreed list of members, oldest first."""

    id: ViewId
    members: tuple[Address, ...]

    @classmethod
    def of(cls, number: int, *members: Address) -> View:
        """Return view ``number`` of ``members``, made by the first of them."""
        return cls(ViewId(number, members[0]), members)


class RosterEntry(NamedTuple):
    """A member's place in a roster: its address, its durable name (empty if it has none), and where it is reached.

    ``locator`` is what a transport needs to reach the member; the machine hands it on and does not
    look inside.
    """

    address: Address
    name: str = ""
    locator: bytes = b""


class Roster(NamedTuple):
    """A view with everything that its members need to know of each other.

    ``away`` are the places of durable members that are not here and may come back, under the
    address of their last life.
    """

    id: ViewId
    entries: tuple[RosterEntry, ...]
    absent: tuple[RosterEntry, ...] = ()

    @property
    def view(self) -> View:
        """The view alone."""
        return View(self.id, tuple(place.address for place in self.entries))


class Marks(NamedTuple):
    """The three marks of a window: ``low <= delivered <= high``."""

    low: int
    delivered: int
    high: int


Digest = dict[Address, Marks]
"""The marks of every stream that a member knows."""


def group_id(name: str) -> int:
    """Return the 64-bit id under which a group's name travels on the wire."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
