"""The address book of a transport: the target of each member of the view.

A *target* is a locator in the form of the transport. The machine locates members (``Located``
events carry locators). Until a sender is located, the source of a datagram is the target, so that a
stranger can be answered. Both tables are bounded.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, TypeVar

from gapless.errors import RemoteProtocolError
from gapless.identity import Address
from gapless.locator import Locator
from gapless.protocol.events import Located, ViewInstalled
from gapless.protocol.membership.failure_detector import DeathEvidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.discovery import Discovery
    from gapless.identity import RosterEntry
    from gapless.protocol.events import Event

_REFUSALS = (DeathEvidence.REFUSED, DeathEvidence.REJECTED)
MAX_STRANGERS = 1024
"""Maximum number of targets outside the view in a table; the oldest are evicted first."""

_P = TypeVar("_P")


class AddressBook(Generic[_P]):
    """Targets of members of the view, of strangers, and of candidates from discovery.

    ``resolve`` turns a locator into a target, or returns None for a locator out of reach of the
    transport.
    """

    def __init__(
        self, own: Locator, discovery: Discovery, resolve: Callable[[Locator], _P | None]
    ) -> None:
        self.discovery = discovery
        self.group = 0
        self.address = Address(0, 0)
        self.retransmits = True
        """Whether the machine retransmits datagrams lost by the network."""
        self.peers: tuple[_P, ...] = ()
        """The targets of the other members of the view."""
        self.evidence: dict[tuple[Address, DeathEvidence], None] = {}
        """What the transport has seen of members that may be gone; the runtime takes it."""
        self._member_at: dict[_P, Address] = {}
        self._resolve = resolve
        self._own = resolve(own)
        self._members: tuple[Address, ...] = ()
        self._located: dict[Address, _P] = {}
        self._observed: dict[Address, _P] = {}

    def announce(self, entry: RosterEntry, group: int = 0, *, retransmits: bool = True) -> None:
        """Set the member of the transport, and publish the member's entry through discovery."""
        self.address, self.group, self.retransmits = entry.address, group, retransmits
        self.discovery.announce(entry)

    def on_events(self, events: Iterable[Event]) -> None:
        """Update the targets from the events of the machine."""
        changed = False
        for event in events:
            if type(event) is Located:
                changed |= self._locate(event)
            elif type(event) is ViewInstalled:
                self._members = event.view.members
                changed = True
        if changed:
            targets = {member: self.lookup(member) for member in self._members}
            self.peers = tuple(
                target for target in targets.values() if target is not None and target != self._own
            )
            self._member_at = {
                target: member for member, target in targets.items() if target is not None
            }
            self._evict_strangers(self._located)

    def _locate(self, event: Located) -> bool:
        """Record the target of a located member; return whether a target changed."""
        try:
            locator = Locator.decode(event.locator)
        except RemoteProtocolError:
            return False  # the locator of a damaged or foreign roster: the observed target stays
        target = self._resolve(locator)
        if target is None:
            return False
        self._located[event.address] = target
        if target != self._own:
            self.discovery.remember(locator)
        return True

    def learn_source(self, address: Address, target: _P) -> None:
        """Record the source of a datagram of ``address``; a ``Located`` event takes precedence."""
        self._observed.pop(address, None)  # inserted again as the newest entry
        self._observed[address] = target
        self._evict_strangers(self._observed)

    def is_located(self, address: Address) -> bool:
        """Return whether the machine has located ``address``."""
        return address in self._located

    def lookup(self, address: Address) -> _P | None:
        """Return the target of ``address``, or None if unknown."""
        return self._located.get(address) or self._observed.get(address)

    def note_evidence(
        self, target: _P, evidence: DeathEvidence, incarnation: int | None = None
    ) -> None:
        """Record evidence against the member at ``target``, if any.

        A refusal counts against the member only if the refused datagram was addressed to the
        member's ``incarnation``: an earlier process may have used the same port. Otherwise the
        refusal is a reason to ask the member, as a closed connection is.
        """
        member = self._member_at.get(target)
        if member is None or member == self.address:
            return
        if evidence in _REFUSALS and incarnation != member.incarnation:
            evidence = DeathEvidence.CLOSED
        self.evidence[member, evidence] = None

    def note_refused(self, target: _P, *, trusted: bool = True) -> None:
        """Record that no process listens at ``target`` any more.

        Without ``trusted`` the refusal is no proof, because a stranger could have sent the refusal.
        """
        member = self._member_at.get(target)
        if member is None:
            return
        evidence = DeathEvidence.REFUSED if trusted else DeathEvidence.REJECTED
        self.note_evidence(target, evidence, member.incarnation)

    def take_evidence(self) -> list[tuple[Address, DeathEvidence]]:
        """Return the evidence since the last call: hints first, refusals last."""
        found, self.evidence = list(self.evidence), {}
        return sorted(found, key=lambda one: one[1] is DeathEvidence.REFUSED)

    def candidates(self) -> list[_P]:
        """Return every target where discovery or a received datagram suggests a member."""
        targets = dict.fromkeys(map(self._resolve, self.discovery.locate(time.monotonic_ns())))
        targets.update(dict.fromkeys(self._observed.values()))
        return [target for target in targets if target is not None and target != self._own]

    def _evict_strangers(self, targets: dict[Address, _P]) -> None:
        if len(targets) <= MAX_STRANGERS + len(self._members):
            return
        strangers = [address for address in targets if address not in self._members]
        for address in strangers[: MAX_STRANGERS // 2]:
            del targets[address]
