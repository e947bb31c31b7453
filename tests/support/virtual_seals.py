"""A group with identities in virtual time, in which every host seals and opens its datagrams.

``IdentityGroup`` passes plain datagrams. Here a datagram under a key that a member does not have is
lost, or waits for the key, as at a member on a network.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gapless.errors import RemoteProtocolError
from gapless.keys.ciphers import suites_of, view_seal_key, view_suites
from gapless.wire.codec import decode
from gapless.wire.seal import Seal
from gapless.wire.seal_keys import KeyRing, KeyState, SealKey
from tests.support.virtual_identities import IdentityGroup

if TYPE_CHECKING:
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Ready
    from tests.support.virtual_membership import VirtualHost

RING = KeyRing(bytes(32), (SealKey(7, bytes(range(32)), KeyState.SEAL),))


class SealedGroup(IdentityGroup):
    """Hosts with a seal each; the processes of a host that crashes get a new one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.seals: dict[str, Seal] = {}
        self._early: dict[str, list[bytes]] = {}
        self._serving = ""
        super().__init__(*args, **options)

    def member_options(self, host: VirtualHost) -> dict[str, Any]:
        return {**super().member_options(host), "sealed": True}

    def start(self, where: str, **options: Any) -> Member:
        if where not in self.seals:
            seal = self.seals[where] = Seal(RING, suites_of(RING))
            seal.expect_view_keys(self.config.early_bytes)
            self._early[where] = []
        return super().start(where, **options)

    def crash(self, *names: str) -> None:
        super().crash(*names)
        for name in names:
            if name != self._serving:
                del self.seals[name]

    def _serve(self, name: str, ready: Ready) -> None:
        # An expelled member ends, and joins again in the same process.
        self._serving = name
        super()._serve(name, ready)
        self._serving = ""
        if name not in self.members:
            del self.seals[name]

    def process(self, key: str, ready: Ready) -> None:
        if ready.view_keys is not None:
            seal = self.seals[key]
            seal.replace_view_keys([view_seal_key(each) for each in ready.view_keys], view_suites())
            seal.check_invariants()
            self._early[key] += seal.take_early()
            self.at(self.now_ns, lambda: self._read_early(key))
        transmits, ready.transmits = ready.transmits, []
        for to, data in transmits:
            datagram, sealed = decode(data, opened=True), self.seals[key].seal(data)
            for target in self._route(key, to):
                for delay_ns in self._link(key, target, datagram):
                    self.at(self.now_ns + delay_ns, self._arrival(key, target, sealed))
        super().process(key, ready)

    def _read_early(self, key: str) -> None:
        while self._early[key] and key in self.members and key not in self.inboxes:
            super()._receive(key, self._early[key].pop(0))

    def _receive(self, key: str, data: bytes) -> None:
        self._read_early(key)
        if key in self.members:
            with suppress(RemoteProtocolError):
                super()._receive(key, self.seals[key].open(data))
