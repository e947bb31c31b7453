"""Identity: addresses with incarnations, views, rosters, digests, group ids.

An address names one *incarnation* of one member. A restarted process has a higher incarnation and
thus a new address, so seqnos, acks and frames of the previous incarnation are never mistaken for
those of the new incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
MAX_LOCATOR_BYTES = 64
"""Maximum length of a locator: more than today's need, so that later families fit too."""


class Address(NamedTuple):
    """One incarnation of one member: a 64-bit node id, and an incarnation that rises on restart.

    ``str``, ``repr`` and logs write an address as ``node.incarnation`` in hexadecimal.
    """

    node: int
    incarnation: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address in a text written by ``str(address)``.

        Raises:
            ValueError: The text is not an address.
        """
        node, dot, incarnation = text.partition(".")
        if not dot:
            raise ValueError(f"{text!r} is not an address: expected node.incarnation")
        return cls(int(node, 16), int(incarnation, 16))

    @property
    def short(self) -> str:
        """The first eight digits of the node id, enough to tell members apart in logs."""
        return f"{self.node:016x}"[:8]

    def __str__(self) -> str:
        return f"{self.node:x}.{self.incarnation:x}"

    def __repr__(self) -> str:
        return str(self)


NO_MEMBER = Address(0, 0)
"""The address of no member; as a destination: every locator known to discovery."""


def member_label(address: Address, name: str = "") -> str:
    """Return a member for people: display name and short id, such as ``a (00c0ffee)``."""
    return f"{name} ({address.short})" if name else address.short


class ViewId(NamedTuple):
    """The identity of a view: a rising number, and the member that created the view."""

    number: int
    coordinator: Address


@dataclass(frozen=True, slots=True)
class View:
    """An agreed list of members, oldest first.

    A view is a collection of addresses: ``len(view)``, ``address in view``,
    ``for address in view``.
    """

    id: ViewId
    members: tuple[Address, ...]

    @classmethod
    def of(cls, number: int, *members: Address) -> View:
        """Return view ``number`` of ``members``, created by the first of them."""
        return cls(ViewId(number, members[0]), members)

    @property
    def coordinator(self) -> Address:
        """The oldest member, the creator of the next view."""
        return self.members[0]

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, member: object) -> bool:
        return member in self.members

    def __iter__(self) -> Iterator[Address]:
        return iter(self.members)


class RosterEntry(NamedTuple):
    """A member in a roster: address, durable name (or ""), and locator.

    The machine passes the locator on as opaque bytes; the transport reads the locator.
    """

    address: Address
    name: str = ""
    locator: bytes = b""


class Roster(NamedTuple):
    """A view with the names and locators of the members.

    ``absent`` are the durable members that may return, with the addresses of their last
    incarnations.
    """

    id: ViewId
    entries: tuple[RosterEntry, ...]
    absent: tuple[RosterEntry, ...] = ()

    @property
    def view(self) -> View:
        """The view alone."""
        return View(self.id, tuple(entry.address for entry in self.entries))


class Marks(NamedTuple):
    """The three marks of a window: ``low <= delivered <= high``."""

    low: int
    delivered: int
    high: int


Digest = dict[Address, Marks]
"""The marks of every stream known to a member."""


def group_id(name: str) -> int:
    """Return the 64-bit id of a group on the wire, a hash of the name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
