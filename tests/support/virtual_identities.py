"""A group with identities in virtual time, and a member of it that lies.

``IdentityGroup(3)`` gives each host an identity; ``roles`` maps hosts to other roles than member.
A :class:`Liar` has the keys and the identity of a host, and sends what it wants in any name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from gapless.identity import Address, Roster, RosterEntry, ViewId
from gapless.keys.identities import Identity
from gapless.protocol.membership.signatures import SignatureGuard
from gapless.wire.codec import encode
from gapless.wire.frames import Frame, MembershipFrame, NewView
from gapless.wire.identities import AllowList, Certificate, Credentials, Role
from gapless.wire.roster import encode_roster
from tests.support.virtual_membership import GROUP, MembershipGroup, VirtualHost

FAR = 1 << 40


def identity_of(name: str) -> Identity:
    """Return the identity of a host, the same in every run."""
    return Identity(sha256(name.encode()).digest())


class IdentityGroup(MembershipGroup):
    """Members with identities; ``roles`` are those of hosts that are no ordinary members."""

    def __init__(
        self, count: int = 3, *, roles: Mapping[str, Role] | None = None, **options: Any
    ) -> None:
        super().__init__(count, **options)
        self.identities = {name: identity_of(name) for name in self.hosts}
        for name, host in self.hosts.items():
            host.node = self.identities[name].node
        self.allowed = AllowList(
            Certificate(name, (roles or {}).get(name, Role.MEMBER), identity.public_key)
            for name, identity in self.identities.items()
        )

    def credentials(self, name: str) -> Credentials:
        """Return the credentials of a host."""
        identity = self.identities.get(name) or identity_of(name)
        return identity.credentials(self.allowed)

    def member_options(self, host: VirtualHost) -> dict[str, Any]:
        return {"credentials": self.credentials(host.name)}

    def seniority(self) -> list[str]:
        """Return the hosts in the order of the view of the first host that runs."""
        member = next(iter(self.members.values()))
        assert member.view is not None
        return [self.name_of(address) for address in member.view.members]

    def entry(self, name: str) -> RosterEntry:
        """Return the roster entry of a host."""
        return self[name].membership.own_entry

    def counter(self, name: str, reason: str) -> int:
        """Return how many frames a host has dropped under a reason."""
        return self[name].counters.get(f"dropped.{reason}", 0)


def trailer_of(guard: SignatureGuard, roster: Roster) -> bytes:
    """Return wrapped keys and a signature of a roster in any name, by the identity of ``guard``."""
    keys = guard.view_keys
    # The maker of a roster is bound to its keys, so the liar speaks as the maker.
    keys._me, me = roster.id.coordinator, keys._me
    wrapped = keys.wrap(roster)
    keys._me = me
    return wrapped + guard._credentials.sign(guard._view_text(roster, wrapped))


class Liar:
    """Sends in the name of a host: signed by its identity, with counters that are always new."""

    def __init__(self, world: IdentityGroup, name: str, me: Address | None = None) -> None:
        self.world = world
        self.name = name
        self.me = me or world[name].me
        self.entry = world.entry(name)
        self.guard = SignatureGuard(self.me, GROUP, world.credentials(name))
        self.guard._counter = FAR

    def speak_in(self, number: int) -> None:
        """Sign as a member of the view with this number."""
        self.guard._view_number = number

    def datagram(
        self,
        *frames: Frame,
        to: Address | None = None,
        sender: Address | None = None,
        signed: bool = True,
    ) -> bytes:
        """Return a datagram in the name of ``sender``, signed by the liar's key if ``signed``."""
        about: list[MembershipFrame] = list(frames)  # type: ignore[arg-type]
        if signed:
            about.append(self.guard.sign(to, about)._replace(origin=sender or self.me))
        addressee = None if to is None else to.incarnation
        return encode(GROUP, sender or self.me, about, addressee)

    def send(self, target: str, *frames: Frame, **how: Any) -> None:
        """Give a datagram to a host, if a member runs there."""
        if target not in self.world.members:
            return
        how.setdefault("to", self.world[target].me)
        datagram = self.datagram(*frames, **how)
        self.world.process(target, self.world[target].receive(datagram, self.world.now_ns))

    def view(
        self, number: int, entries: Sequence[RosterEntry], maker: Address | None = None
    ) -> NewView:
        """Return the frame of a view, signed by the liar in the place of ``maker``."""
        roster = Roster(ViewId(number, maker or self.me), tuple(entries))
        trailer = trailer_of(self.guard, roster)
        return NewView(self.me, roster.id, None, 0, 1, encode_roster(roster) + trailer)
