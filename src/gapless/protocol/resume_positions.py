"""The positions at which streams continue after the return of the origin or of this member.

When a stream closes: the last delivered seqno is remembered, because a member may leave a view and
return in the same incarnation. Beyond the limit, the oldest position is forgotten.

When a stream opens: the stream takes its position and starts no earlier.

A durable member begins with the positions of the previous incarnation. A member that stores its
deliveries keeps a second position per stream, the last message confirmed as stored, and
acknowledges only up to there.
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
                    f"mark {seqno} of {origin} is not a seqno: pass an unsigned 64-bit number"
                )
        self.durable = True
        self.stored = dict(marks) if stores else None
        self.delivered.update(marks)
        # Positions that the application handed over are not the first to be forgotten for it.
        self._max_positions += len(marks)

    def on_closed(self, stream: InboundStream) -> None:
        """Remember the end of a stream, unless the start of the stream was never known."""
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

        The stored position is None if this member does not store, and unknown if no message of
        ``origin`` was ever stored.
        """
        delivered = self.delivered.pop(origin, None)
        stored = None if self.stored is None else self.stored.pop(origin, STORED_UNKNOWN)
        assert origin not in self.delivered
        return delivered, stored

    def on_stored(self, origin: Address, seqno: int) -> None:
        """Note that the application stored messages of a closed stream."""
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
