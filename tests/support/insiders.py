"""A member that lies, with real sockets: it has the keys of the group and an identity of its own.

An :class:`Insider` seals whatever it wants in the name of any member, and signs with its own
identity. Its counters are a little ahead of those of the member in whose name it speaks, so that
the datagrams are opened, and few of the true datagrams are taken for repeats.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from gapless import blocking
from gapless.identity import Address, Roster, RosterEntry, ViewId
from gapless.keys.ciphers import suites_of
from gapless.keys.identities import Identity
from gapless.keys.keyring import Keyring
from gapless.protocol.membership.signatures import SignatureGuard
from gapless.wire.codec import ADDRESSED, encode
from gapless.wire.frames import Frame, MembershipFrame, NewView
from gapless.wire.identities import Certificate, Role
from gapless.wire.roster import encode_roster
from gapless.wire.seal import Seal
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, options
from tests.support.strangers import GROUP, ask, target_of, transport_of
from tests.support.virtual_identities import trailer_of

AHEAD = 200
"""How far a forged counter is ahead of the newest one that the victim has seen."""
NAMES = ("anna", "bert", "store", "liar")
ROLES = {"store": Role.COLLECTOR}


class Insider:
    """A socket, the keys of the group, and the identity of the member ``liar``."""

    def __init__(self, member: blocking.Group, ring: Keyring, identity: Identity) -> None:
        assert member.me is not None
        self.me: Address = member.me
        self.ring = ring.ring
        self.group = self.ring.group_id(GROUP)
        allowed = ring.allow_list(GROUP)
        self.guard: SignatureGuard | None = None
        if allowed is not None:
            credentials = identity.credentials(allowed)
            self.guard = SignatureGuard(self.me, self.group, credentials)
            self.guard._counter = AHEAD
            self.guard._view_number = _view_of(member)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sent = 0

    def send(
        self,
        at: Any,
        *frames: MembershipFrame,
        sender: Address | None = None,
        addressed: bool = False,
    ) -> None:
        """Send frames in the name of ``sender``, signed if the group has identities."""
        sender = sender or self.me
        to = at.me if addressed else None
        about: list[Frame] = list(frames)
        if self.guard is not None:
            about.append(self.guard.sign(to, frames)._replace(origin=sender))
        plain = encode(self.group, sender, about, None if to is None else to.incarnation)
        seal = Seal(self.ring, suites_of(self.ring))
        seal.seal(plain)
        assert seal._own is not None
        self.sent += 1
        seal._own.counter = self._newest(at, seal.seal(plain)) + AHEAD + self.sent
        self.socket.sendto(seal.seal(plain), target_of(at))

    @staticmethod
    def _newest(at: Any, sealed: bytes) -> int:
        """Return the newest counter that a member has opened of a sender, on the same path."""
        sender = transport_of(at).seal._senders.get(sealed[4:32])
        return 0 if sender is None else int(sender.windows[(sealed[3] & ADDRESSED) >> 1].top)

    def view(
        self, number: int, entries: list[RosterEntry], maker: Address | None = None
    ) -> NewView:
        """Return the frame of a view in the name of ``maker``."""
        roster = Roster(ViewId(number, maker or self.me), tuple(entries))
        signature = b""
        if self.guard is not None:
            signature = trailer_of(self.guard, roster)
        return NewView(maker or self.me, roster.id, None, 0, 1, encode_roster(roster) + signature)


def _view_of(group: blocking.Group) -> int:
    assert group.view is not None
    return group.view.id.number


@dataclass
class InsiderScene:
    """Four members, by name, the first of them the coordinator, and the insider beside them."""

    groups: dict[str, blocking.Group]
    insider: Insider

    def __getitem__(self, name: str) -> blocking.Group:
        return self.groups[name]

    def address(self, name: str) -> Address:
        """Return the address that a member has now."""
        found = self.groups[name].me
        assert found is not None
        return found

    def members(self, name: str) -> tuple[Address, ...]:
        """Return the members of the view of a member."""
        view = self.groups[name].view
        return () if view is None else tuple(view.members)

    def entry(self, name: str) -> RosterEntry:
        """Return the roster entry of a member."""
        found: RosterEntry = ask(self.groups[name], lambda member: member.membership.own_entry)
        return found

    @property
    def view_number(self) -> int:
        """The number of the view of the coordinator."""
        return _view_of(self.groups["anna"])

    def dropped(self, name: str, *reasons: str) -> int:
        """Return how many frames a member has dropped under one of these reasons."""
        counters = ask(self.groups[name], lambda member: dict(member.counters))
        return sum(counters.get(f"dropped.{reason}", 0) for reason in reasons)

    def check_undisturbed(self, *names: str) -> None:
        """Assert that these members are in one view, and receive the messages of each other."""
        for name in names:
            assert {self.address(one) for one in names} <= set(self.members(name))
            counters = self.groups[name].snapshot().counters
            assert not counters.get("events.expelled", 0), name
        for name in names:
            self.groups[name].send(name.encode(), loopback=False)
        for name in names:
            found = {self.groups[name].receive(WITHIN_S).payload for _ in names[1:]}  # type: ignore[union-attr]
            assert found == {one.encode() for one in names if one != name}


@contextmanager
def insider_scene(*, identities: bool) -> Iterator[InsiderScene]:
    """Join four members of a sealed group, with or without ``identities``."""
    own = {name: Identity.new() for name in NAMES}
    keys, ports = Keyring.new(), free_ports(len(NAMES))
    if identities:
        for name, identity in own.items():
            role = ROLES.get(name, Role.MEMBER)
            keys = keys.allow(GROUP, Certificate(name, role, identity.public_key))
    with ExitStack() as stack:
        groups = {}
        for name, identity in own.items():
            group = blocking.join(
                GROUP,
                keys=keys,
                identity=identity if identities else None,
                durable_name=name if name in ROLES else "",
                **options(ports),
            )
            stack.callback(group.close, 0.5)
            groups[name] = group.open()
            group.wait_for_members(len(groups), WITHIN_S)
        for group in groups.values():
            group.wait_for_members(len(NAMES), WITHIN_S)
        insider = Insider(groups["liar"], keys, own["liar"])
        stack.callback(insider.socket.close)
        yield InsiderScene(groups, insider)
