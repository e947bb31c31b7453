"""Where each stream continues if its origin, or this member, comes back.

When a stream closes: the seqno up to which it was delivered is remembered, for a member may leave a
view and return in the same incarnation. The oldest of too many positions is forgotten.

When a stream opens: it takes its position with it, and starts no earlier.

A durable member begins with the positions of its former incarnation. One that stores what it is
delivered keeps a second position a stream, up to which the application has confirmed its storage;
it acknowledges only that much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError
from gapless.identity import U64_MAX
from gapless.protocol.stream.inbound import STORED_UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.identity import Address
    from gapless.protocol.stream.inbound import InboundStream

_MAX_DEPARTED_STREAMS = 1024
"""Maximum number of departed streams whose position is remembered."""


class ResumePositions:
    """The positions of all streams that are not open."""

    __slots__ = ("_max_positions", "delivered", "durable", "stored")

    def __init__(self) -> None:
        self.durable = False
        self.delivered: dict[Address, int] = {}
        self.stored: dict[Address, int] | None = None
        self._max_positions = _MAX_DEPARTED_STREAMS

    def resume(self, marks: Mapping[Address, int], *, stores: bool) -> None:
        """Start from the positions of a former incarnation, as a durable member."""
        for origin, seqno in marks.items():
            if not 0 <= seqno <= U64_MAX:
                raise LocalProtocolError(
                    f"mark {seqno} of {origin} is not a seqno: use 64-bit numbers"
                )
        self.durable = True
        self.stored = dict(marks) if stores else None
        self.delivered.update(marks)
        # Positions that the application handed over are not the first to be forgotten for it.
        self._max_positions += len(marks)

    def on_closed(self, stream: InboundStream) -> None:
        """Remember where a stream ended, unless its start was never learnt."""
        origin = stream.origin
        assert origin not in self.delivered, "an open stream has taken its position"
        if stream.window is not None or stream.delivered_before is not None:
            self.delivered[origin] = stream.resume_seqno
            if stream.stored is not None and self.stored is not None:
                self.stored[origin] = stream.stored
        if len(self.delivered) > self._max_positions:
            oldest = next(iter(self.delivered))
            del self.delivered[oldest]
            if self.stored is not None:
                self.stored.pop(oldest, None)

    def take(self, origin: Address) -> tuple[int | None, int | None]:
        """Remove and return the delivered and the stored position of a stream that opens.

        The stored position is None where this member does not store, and unknown where it never
        stored anything of ``origin``.
        """
        delivered = self.delivered.pop(origin, None)
        stored = None if self.stored is None else self.stored.pop(origin, STORED_UNKNOWN)
        assert origin not in self.delivered
        return delivered, stored

    def on_stored(self, origin: Address, seqno: int) -> None:
        """Note that the application stored messages of a stream that is not open any more."""
        assert self.stored is not None, "only a member that stores confirms it"
        if seqno > self.stored.get(origin, seqno):
            self.stored[origin] = seqno

    def clear(self) -> None:
        """Forget the delivered positions: the numbers of all streams restart."""
        self.delivered.clear()

    def check_invariants(self, inbound: Mapping[Address, InboundStream]) -> None:
        """Raise AssertionError if the positions contradict the open streams."""
        assert self.delivered.keys().isdisjoint(inbound), "an open stream has its own position"
        assert len(self.delivered) <= self._max_positions, "positions are bounded"
        assert self.durable or self.stored is None, "only durable members store"
        assert all(0 <= seqno <= U64_MAX for seqno in self.delivered.values())
