"""Frames of random meaning: each one is valid on the wire, and none need make sense.

:class:`FrameSource` draws frames of every kind with real, former, coming and invented addresses,
and with numbers near the truth or extreme. Values that the wire format refuses are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError
from gapless.identity import Address, Roster, RosterEntry, ViewId
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK, Run
from gapless.wire.codec import encode
from gapless.wire.frames import (
    FIRST_CONNECTION_EPOCH,
    Ack,
    Alive,
    AskView,
    Beacon,
    Close,
    Data,
    Frame,
    Gone,
    Join,
    Leave,
    MergeAsk,
    MergeReply,
    Nak,
    NewView,
    OutOfBand,
    OutOfBandAck,
    Range,
    Stable,
    StateAsk,
    StateChunk,
    StateOffer,
    StatePull,
    StreamProgress,
    Suspect,
    Tail,
    Unreliable,
    Vote,
)
from gapless.wire.roster import encode_roster, is_change, split_body
from gapless.wire.state_offer import OfferContent, encode_offer

if TYPE_CHECKING:
    from gapless.protocol.member import Member

EXTREMES = (0, 1, 2, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
GHOSTS = (Address(9, 1), Address(0xFFFF_FFFF_FFFF_FFFF, 2**62), Address(4, 2**64 - 1))
NAMES = ("", "", "", "durable", "other", "x" * 64)
_DATA_FLAGS = (0, 0, 0, ACKED, NO_LOOPBACK)
_FRAGMENT_FLAGS = (FRAGMENT, FRAGMENT | FIRST_FRAGMENT, FRAGMENT | LAST_FRAGMENT)


class FrameSource:
    """Draws frames for a ``victim``, whose present state makes a part of the values likely."""

    def __init__(self, rng: Random, members: dict[int, Member]) -> None:
        self.rng = rng
        self._members = members
        self._makers: tuple[Callable[[Address, Member], Frame], ...] = (
            self._data,
            self._data,
            self._ack,
            self._nak,
            self._gone,
            self._tail,
            lambda origin, victim: Close(origin, self._epoch(origin, victim)),
            lambda origin, victim: Vote(origin, self._view_number(victim), self._progress(victim)),
            lambda origin, victim: Stable(
                origin, self._view_number(victim), self._progress(victim)
            ),
            self._out_of_band,
            lambda origin, victim: OutOfBandAck(self._address(), self._ranges(victim)),
            lambda origin, victim: Unreliable(Run.of(origin, 1, self._payloads())),
            lambda origin, victim: Join(self._entry(origin), self._chance(0.5)),
            lambda origin, victim: Leave(origin),
            self._alive,
            self._suspect,
            self._new_view,
            self._new_view,
            lambda origin, victim: AskView(origin),
            lambda origin, victim: Beacon(origin, self._view_id(victim), self._addresses()),
            lambda origin, victim: MergeAsk(origin, self._number(victim)),
            self._merge_reply,
            lambda origin, victim: StateAsk(origin, self._transfer(victim), self._progress(victim)),
            self._state_offer,
            lambda origin, victim: StatePull(
                origin, self._transfer(victim), self._number(victim), self._number(victim)
            ),
            lambda origin, victim: StateChunk(
                origin,
                self._transfer(victim),
                self.rng.choice((0, 0, 1024, self._number(victim))),
                self.rng.randbytes(self.rng.choice((1, 100, 1024))),
            ),
        )

    # Values

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share

    def _address(self) -> Address:
        rng = self.rng
        if self._chance(0.2):
            return rng.choice(GHOSTS)
        address = rng.choice(list(self._members.values())).me
        if self._chance(0.15):
            moved = address.incarnation + rng.choice((-1, 1, 7))
            return Address(address.node, max(1, moved))
        return address

    def _addresses(self) -> tuple[Address, ...]:
        found = {self._address() for _ in range(self.rng.randrange(1, 5))}
        return tuple(sorted(found))

    def _number(self, victim: Member) -> int:
        rng = self.rng
        if self._chance(0.3):
            return rng.choice(EXTREMES)
        near = [victim.outbound.window.high, victim.outbound.window.low, 0]
        near += [s.window.delivered for s in victim.inbounds() if s.window is not None]
        return max(0, rng.choice(near) + rng.randrange(-3, 5))

    def _view_number(self, victim: Member) -> int:
        now = 0 if victim.view is None else victim.view.id.number
        if self._chance(0.2):
            return self.rng.choice(EXTREMES)
        return max(1, now + self.rng.choice((0, 0, 0, 1, 1, 2, -1, 40)))

    def _view_id(self, victim: Member) -> ViewId:
        if victim.view is not None and self._chance(0.4):
            return victim.view.id
        return ViewId(self._view_number(victim), self._address())

    def _epoch(self, origin: Address, victim: Member) -> int:
        known = [0, victim.endpoint.epoch, victim.endpoint.epoch + 1, FIRST_CONNECTION_EPOCH + 5]
        known += [stream.epoch for stream in victim.inbounds() if stream.origin == origin]
        known += [stream.epoch for stream in victim.outbounds()]
        if self._chance(0.1):
            return self.rng.choice(EXTREMES)
        return self.rng.choice(known)

    def _transfer(self, victim: Member) -> int:
        requester = victim.state_transfer.requester
        present = getattr(requester, "transfer", None) or getattr(requester, "_transfer", 1)
        return present if self._chance(0.6) and isinstance(present, int) else self._number(victim)

    def _payloads(self) -> list[bytes]:
        rng = self.rng
        return [b"x" * rng.choice((0, 1, 30)) for _ in range(rng.choice((1, 1, 2, 5, 40)))]

    def _ranges(self, victim: Member) -> tuple[Range, ...]:
        points = sorted({self._number(victim) for _ in range(2 * self.rng.randrange(1, 4))})
        pairs = list(zip(points[::2], points[1::2], strict=False)) or [(points[0], points[0])]
        return tuple(pairs)

    def _progress(self, victim: Member) -> tuple[StreamProgress, ...]:
        found = []
        for origin in self._addresses():
            low, high = sorted((self._number(victim), self._number(victim)))
            found.append(StreamProgress(origin, low, high))
        return tuple(found)

    def _entry(self, address: Address) -> RosterEntry:
        return RosterEntry(address, self.rng.choice(NAMES), self.rng.choice((b"", b"here", b"!")))

    # Frames

    def _data(self, origin: Address, victim: Member) -> Frame:
        rng = self.rng
        fragment = self._chance(0.2)
        flags = rng.choice(_FRAGMENT_FLAGS) if fragment else rng.choice(_DATA_FLAGS)
        payloads = [b"part"] if fragment else self._payloads()
        epoch = self._epoch(origin, victim)
        first = epoch >= FIRST_CONNECTION_EPOCH and self._chance(0.4)
        run = Run.of(
            origin if self._chance(0.9) else self._address(),
            self._number(victim),
            payloads,
            flags,
            view=self.rng.choice((0, 1, min(self._view_number(victim), 2**32 - 1))),
        )
        return Data(run, self._chance(0.3), epoch, first)

    def _ack(self, origin: Address, victim: Member) -> Frame:
        mine = victim.me if self._chance(0.8) else self._address()
        size = self.rng.choice((0, 1, 2**20, 2**32 - 1))
        return Ack(mine, self._number(victim), size, self._epoch(origin, victim))

    def _nak(self, origin: Address, victim: Member) -> Frame:
        mine = victim.me if self._chance(0.7) else self._address()
        asked = () if self._chance(0.2) else self._ranges(victim)
        return Nak(mine, asked, self._epoch(origin, victim))

    def _gone(self, origin: Address, victim: Member) -> Frame:
        return Gone(origin, self._number(victim), self._epoch(origin, victim))

    def _tail(self, origin: Address, victim: Member) -> Frame:
        low, start, high = sorted(self._number(victim) for _ in range(3))
        epoch = self._epoch(origin, victim)
        if self._chance(0.5):
            return Tail(origin, low, high, epoch=epoch)
        return Tail(origin, low, high, start, self._address().incarnation, epoch)

    def _out_of_band(self, origin: Address, victim: Member) -> Frame:
        first = self._number(victim)
        floor = max(0, first - self.rng.choice((1, 1, 3, 2**40)))
        return OutOfBand(Run.of(origin, first, self._payloads()), floor)

    def _alive(self, origin: Address, victim: Member) -> Frame:
        view = None if self._chance(0.15) else self._view_id(victim)
        included = self._chance(0.6)
        expelled = view is not None and not included and self._chance(0.2)
        return Alive(origin, view, included, self._chance(0.3), expelled)

    def _suspect(self, origin: Address, victim: Member) -> Frame:
        del victim
        return Suspect(origin, self._addresses(), self._chance(0.5))

    def _roster(self, origin: Address, victim: Member) -> Roster:
        rng = self.rng
        made: dict[int, RosterEntry] = {origin.node: self._entry(origin)}
        names = {made[origin.node].name} - {""}
        wanted = [victim.me] if self._chance(0.8) else []
        wanted += [member.me for member in self._members.values()] if self._chance(0.6) else []
        for address in (*wanted, *self._addresses()):
            entry = self._entry(address)
            if address.node not in made and entry.name not in names:
                made[address.node] = entry
                names |= {entry.name} - {""}
        absent = []
        for address in self._addresses() if self._chance(0.4) else ():
            entry = RosterEntry(address, rng.choice(("gone", "lost", "durable")))
            if entry.name not in names and all(address != e.address for e in made.values()):
                names.add(entry.name)
                absent.append(entry)
        view = ViewId(self._view_number(victim), origin)
        return Roster(view, tuple(made.values()), tuple(absent))

    def _new_view(self, origin: Address, victim: Member) -> Frame:
        rng = self.rng
        if self._chance(0.1):
            parts = rng.choice((1, 2, 4096, 65535))
            body = rng.randbytes(rng.choice((1, 20, 900)))
            view = self._view_id(victim)
            return NewView(origin, view, None, rng.randrange(parts), parts, body)
        roster, base = self._roster(origin, victim), victim.roster
        if base is None or self._chance(0.7) or not is_change(roster, base):
            base = None
        bodies = split_body(encode_roster(roster, base), 900)
        part = rng.randrange(len(bodies))
        base_id = None if base is None else base.id
        return NewView(origin, roster.id, base_id, part, len(bodies), bodies[part])

    def _merge_reply(self, origin: Address, victim: Member) -> Frame:
        merge = victim.membership.merging._merge
        merge = merge if self._chance(0.5) and merge else self._number(victim)
        return MergeReply(origin, merge, self._view_id(victim), self._chance(0.7))

    def _state_offer(self, origin: Address, victim: Member) -> Frame:
        rng, transfer = self.rng, self._transfer(victim)
        if self._chance(0.4):
            parts = rng.choice((1, 2, 9, 65535))
            body = rng.randbytes(rng.choice((1, 1, 700)))
            return StateOffer(origin, transfer, rng.randrange(parts), parts, body)
        block = rng.choice((1, 1024, 65536, 2**32 - 1))
        size = rng.choice((0, 1, 1024, 200_000))
        count = -(-size // block)
        hashes = tuple(rng.randbytes(16) for _ in range(count if count < 40 else 0))
        aside = tuple((origin, self._ranges(victim)) for origin in self._addresses()[:1])
        offer = OfferContent(size, block, self._progress(victim), aside, hashes, self._chance(0.3))
        return StateOffer(origin, transfer, 0, 1, encode_offer(offer))

    def datagram(self, group: int, victim: Member) -> bytes:
        """Return a datagram with one to three frames of random meaning for ``victim``."""
        while True:
            sender = self._address()
            addressee = victim.me.incarnation if self._chance(0.5) else None
            try:
                frames = [
                    self.rng.choice(self._makers)(sender, victim)
                    for _ in range(self.rng.choice((1, 1, 1, 2, 3)))
                ]
                return encode(group, sender, frames, addressee)
            except LocalProtocolError:
                continue
