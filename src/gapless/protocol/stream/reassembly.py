"""Reassembly: fragments of a stream become messages.

On delivery of a fragment: the first fragment begins a message, the last fragment completes and
returns the message. Fragments without a first fragment are dropped: the stream starts in the middle
of a message. A message larger than the limit is discarded and reported, so that memory never holds
more than the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.protocol.events import Oversized
from gapless.protocol.ready import GROUP, Delivery
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT

if TYPE_CHECKING:
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.run import Run

_NONE, _OPEN, _TOO_LARGE = range(3)


class Reassembler:
    """The incomplete message of a stream."""

    __slots__ = ("_epoch", "_first", "_fragments", "_held_bytes", "_kind", "_limit_bytes", "_state")

    def __init__(self, limit_bytes: int, kind: str = GROUP, epoch: int = 0) -> None:
        self._limit_bytes = limit_bytes
        self._kind = kind
        self._epoch = epoch
        self._fragments: list[bytes] = []
        self._held_bytes = 0
        self._first = 0
        self._state = _NONE

    def add(self, run: Run, out: ReadyBuilder) -> Delivery | None:
        """Add a fragment; return the whole message after the last fragment."""
        assert run.flags & FRAGMENT, "only fragments are reassembled"
        if run.flags & FIRST_FRAGMENT:
            self.clear()
            self._first, self._state = run.first, _OPEN
        # The stream started in the middle of this message: its first fragments are not for this
        # member.
        if self._state == _NONE:
            out.drop("headless", run.origin, run.first, run.last, peer=run.origin)
            return None
        if self._state == _OPEN:
            self._append(run)
        if not run.flags & LAST_FRAGMENT:
            return None
        return self._complete(run, out)

    def _append(self, run: Run) -> None:
        """Add the payload of a fragment, unless the message exceeds the limit."""
        assert self._state == _OPEN, "a fragment belongs to an open message"
        self._held_bytes += len(run.payload)
        if self._held_bytes > self._limit_bytes:
            # Count the rest without storing it, so that the whole message is reported once.
            self._state, self._fragments = _TOO_LARGE, []
        else:
            self._fragments.append(run.payload)

    def _complete(self, run: Run, out: ReadyBuilder) -> Delivery | None:
        """Return the whole message and start over; report a message that exceeded the limit."""
        assert self._state != _NONE, "a message has a first fragment"
        first, whole, too_large = self._first, b"".join(self._fragments), self._state == _TOO_LARGE
        self.clear()
        if too_large:
            out.emit(Oversized(run.origin, first, run.last))
            return None
        flags = run.flags & ~(FRAGMENT | FIRST_FRAGMENT | LAST_FRAGMENT)
        return Delivery(
            run.origin,
            first,
            run.last,
            whole,
            self._kind,
            self._epoch,
            flags,
            run.view,
            run.sent_ns,
        )

    @property
    def first_seqno(self) -> int | None:
        """The seqno of the first fragment of the incomplete message, if any."""
        return None if self._state == _NONE else self._first

    @property
    def held_bytes(self) -> int:
        """The size of the incomplete message so far."""
        return self._held_bytes

    def clear(self) -> None:
        """Drop the incomplete message."""
        self._fragments, self._held_bytes, self._first, self._state = [], 0, 0, _NONE
        assert self.first_seqno is None, "an empty reassembler has no first fragment"

    def check_invariants(self) -> None:
        """Raise AssertionError if the fragments held contradict the state of the message."""
        held_bytes = sum(len(fragment) for fragment in self._fragments)
        if self._state == _OPEN:
            assert self._first > 0, "an open message has a first fragment"
            assert held_bytes == self._held_bytes <= self._limit_bytes, (
                f"{held_bytes} bytes of fragments are held, {self._held_bytes} are counted"
            )
            return
        assert not self._fragments, "fragments are held only for an open message"
        if self._state == _TOO_LARGE:
            assert self._held_bytes > self._limit_bytes, "only an oversized message is discarded"
        else:
            assert self._held_bytes == self._first == 0, "nothing is counted without a message"

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        return (self._first, self._state, self._held_bytes, *self._fragments)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Restore the state of ``snapshot``."""
        self._first, self._state, self._held_bytes, *self._fragments = snapshot  # type: ignore[assignment]
