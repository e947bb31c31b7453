"""Names of members for people: in logs, events and snapshots.

Display names are not part of the protocol. A member knows its own display name, the names of
members in the same process, and the names of members whose snapshot was requested. Any other member
is called by the durable name in the roster, or by the locator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from gapless.errors import RemoteProtocolError
from gapless.locator import Locator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.identity import Address
    from gapless.runtime.handle import MemberHandle


class LocalName:
    """The display name of a member of this process, known to the others while referenced."""

    def __init__(self) -> None:
        self.text = ""

    def register(self, address: Address, text: str) -> None:
        """Make the name known under the address of the present incarnation."""
        self.text = text
        _LOCAL_NAMES[address] = self


_LOCAL_NAMES: WeakValueDictionary[Address, LocalName] = WeakValueDictionary()
"""The members of this process. An entry ends together with the member."""


def known_names(handle: MemberHandle, learned: Mapping[Address, str]) -> dict[Address, str]:
    """Return the name of every member of the roster, present or absent.

    ``learned`` are the display names in snapshots of other members.
    """
    roster = handle.roster
    found = {handle.me: handle.display_name}
    for entry in () if roster is None else (*roster.entries, *roster.absent):
        if entry.address not in found:
            local = _LOCAL_NAMES.get(entry.address)
            found[entry.address] = (
                (local.text if local is not None else "")
                or learned.get(entry.address, "")
                or entry.name
                or _location(entry.locator)
            )
    return found


def _location(locator: bytes) -> str:
    try:
        return str(Locator.decode(locator))
    except RemoteProtocolError:
        return ""  # the transport of this member has other locators, or none
