"""Deliveries held until the application's state arrives.

Before the state arrives: every delivery is held, in order. When ``state_backlog_bytes`` are held,
the member takes no more messages off its windows, so that senders wait. Unreliable messages are
dropped then.

When the state arrives: deliveries covered by the state are dropped, and the others are delivered.
The state covers each stream up to a mark, the provider's position at the time of the state. A run
across the mark is cut; a fragmented message is delivered whole or not at all. Out-of-band messages
already delivered by the provider are dropped; messages to this member alone are delivered.

Later: the state may cover messages that have not arrived yet. The mark of a stream stays until the
stream has passed it; the mark of an origin outside the view stays until the origin joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import Address
from gapless.protocol.events import Lost
from gapless.protocol.ready import GROUP, OUT_OF_BAND, UNRELIABLE
from gapless.protocol.stream import ranges
from gapless.run import PRIVATE, Run

if TYPE_CHECKING:
    from gapless.protocol.ready import Delivery
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.frames import Range

_OVERHEAD_BYTES = 64
"""What a held delivery counts beside its messages, so that empty messages are limited, too."""


class StateCoverage(NamedTuple):
    """The coverage of a state: a mark per stream of ``epoch``, and out-of-band messages.

    A mark is at the end of a message, never between two fragments.
    """

    epoch: int
    marks: Mapping[Address, int]
    out_of_band: Mapping[Address, Sequence[Range]]


NO_COVERAGE = StateCoverage(0, {}, {})
"""The coverage of no state."""


class HeldDeliveries:
    """The held deliveries of a member that has requested the state."""

    def __init__(self, limit_bytes: int) -> None:
        self.waiting = False
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._held: list[Delivery] = []
        self._members: frozenset[Address] = frozenset()
        self._epoch = 0
        self._marks: dict[Address, int] = {}
        self._future_marks: dict[Address, int] = {}
        self._covered_out_of_band: Mapping[Address, Sequence[Range]] = {}

    @property
    def active(self) -> bool:
        """Whether deliveries have to pass through here."""
        return self.waiting or bool(self._marks) or bool(self._held)

    @property
    def full(self) -> bool:
        """Whether no more messages should be taken off the windows."""
        return self.waiting and self.held_bytes >= self._limit_bytes

    def on_view(self, members: Iterable[Address]) -> None:
        """Record the members; the marks of new members apply from now on."""
        self._members = frozenset(members)
        for origin in [origin for origin in self._future_marks if origin in self._members]:
            self._marks[origin] = self._future_marks.pop(origin)

    def hold(self, deliveries: Iterable[Delivery], out: ReadyBuilder) -> None:
        """Hold deliveries, in order."""
        for delivery in deliveries:
            # Unreliable messages are not limited by a window, so the limit is enforced here.
            if delivery.kind == UNRELIABLE and self.full:
                self._drop("backlog", delivery, delivery.message_count, out)
                continue
            content = delivery.content
            self.held_bytes += _OVERHEAD_BYTES + (
                content.size_bytes if isinstance(content, Run) else len(content)
            )
            self._held.append(delivery)

    def release(
        self, covered: StateCoverage, starts: Mapping[Address, int | None], out: ReadyBuilder
    ) -> None:
        """Continue from a state with this coverage; ``starts`` has the known stream starts."""
        assert self.waiting, "a state is awaited once"
        self.waiting = False
        self._epoch, self._covered_out_of_band = covered.epoch, covered.out_of_band
        firsts: dict[Address, int] = {}
        for delivery in self._held:
            if delivery.kind == GROUP and delivery.epoch == covered.epoch:
                firsts.setdefault(delivery.origin, delivery.first)
        for origin, mark in covered.marks.items():
            if origin in self._members or origin in firsts:
                if mark > (starts.get(origin) or 0) or firsts.get(origin, mark + 1) <= mark:
                    self._marks[origin] = mark
            else:
                # The origin joins later: its stream will start below the mark.
                self._future_marks[origin] = mark
        for origin, first in firsts.items():
            # The origin has left, and the provider may never have received the messages between
            # the mark and our first delivery: no member will deliver them.
            mark = covered.marks.get(origin, first)
            if origin not in self._members and first > mark + 1:
                out.emit(Lost(origin, mark + 1, first - 1))
        assert not self.waiting, "the state is here"

    def take(self, out: ReadyBuilder) -> list[Delivery]:
        """Return the deliveries for the application; none before the state arrives."""
        if self.waiting:
            return []
        held, self._held, self.held_bytes = self._held, [], 0
        result = [rest for delivery in held for rest in self._filter(delivery, out)]
        self._covered_out_of_band = {}
        for origin in [origin for origin in self._marks if origin not in self._members]:
            self._future_marks[origin] = self._marks.pop(origin)
        return result

    def extend_coverage(self, covered: StateCoverage) -> StateCoverage:
        """Return ``covered`` with the marks of the state received here, which may lie ahead."""
        own = {**self._future_marks, **self._marks}
        if covered.epoch != self._epoch or not own:
            return covered
        marks = {
            origin: max(own.get(origin, 0), covered.marks.get(origin, 0))
            for origin in {*own, *covered.marks}
        }
        return covered._replace(marks=marks)

    @staticmethod
    def _drop(reason: str, delivery: Delivery, message_count: int, out: ReadyBuilder) -> None:
        """Count ``message_count`` dropped messages of a delivery."""
        origin, first, last = delivery.origin, delivery.first, delivery.last
        out.drop(reason, origin, first, last, message_count=message_count, epoch=delivery.epoch)

    def _filter(self, delivery: Delivery, out: ReadyBuilder) -> Sequence[Delivery]:
        """Return the parts of a delivery not covered by the state."""
        rest: Sequence[Delivery] = (delivery,)
        if delivery.kind == GROUP and delivery.epoch < self._epoch:
            # The provider's view is newer: its state has everything that it got of the older one.
            rest = ()
        elif delivery.kind == GROUP and delivery.origin in self._marks:
            rest = self._behind_mark(delivery, self._marks[delivery.origin])
        elif delivery.kind == OUT_OF_BAND and delivery.origin in self._covered_out_of_band:
            rest = self._uncovered_out_of_band(delivery, self._covered_out_of_band[delivery.origin])
        if dropped := delivery.message_count - sum(part.message_count for part in rest):
            self._drop("covered", delivery, dropped, out)
        return rest

    def _behind_mark(self, delivery: Delivery, mark: int) -> Sequence[Delivery]:
        """Return the part of a delivery above ``mark``; remove a passed mark."""
        assert delivery.kind == GROUP, "marks belong to streams to the group"
        first, last, content = delivery.first, delivery.last, delivery.content
        # The stream restarted in a later view: the mark belongs to the stream before.
        if delivery.epoch != self._epoch:
            del self._marks[delivery.origin]
            return (delivery,)
        # The stream has passed the mark: everything behind it is delivered from now on.
        if last >= mark:
            del self._marks[delivery.origin]
        if last <= mark:
            return ()
        # A reassembled message ends behind the mark, so the state does not have it.
        if first > mark or not isinstance(content, Run):
            return (delivery,)
        return (delivery._replace(first=mark + 1, content=content.part(mark + 1, last)),)

    @staticmethod
    def _uncovered_out_of_band(delivery: Delivery, seen: Sequence[Range]) -> Sequence[Delivery]:
        """Return the out-of-band messages not delivered by the provider."""
        content = delivery.content
        assert isinstance(content, Run), "out-of-band messages are never fragmented"
        # A message to this member alone is never part of another member's state.
        if content.flags & PRIVATE:
            return (delivery,)
        rest = ranges.subtract([(delivery.first, delivery.last)], seen)
        return [
            delivery._replace(first=part.first, last=part.last, content=part)
            for part in content.parts(rest)
        ]

    def check_invariants(self) -> None:
        """Raise AssertionError if deliveries are held without a reason, or marks are misfiled."""
        assert self.waiting or not self._held, "deliveries are held only while the state is awaited"
        assert not (self.waiting and self._marks), "no state covers anything before it is here"
        assert self.held_bytes >= _OVERHEAD_BYTES * len(self._held), "held bytes are counted"
        assert bool(self.held_bytes) == bool(self._held), "bytes are counted for held deliveries"
        assert self._members.isdisjoint(self._future_marks), "the mark of a member is in use"
        assert self._marks.keys().isdisjoint(self._future_marks), "a stream has one mark"

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        out_of_band = tuple(
            (origin, *seen) for origin, seen in sorted(self._covered_out_of_band.items())
        )
        marks = tuple(sorted(self._marks.items())), tuple(sorted(self._future_marks.items()))
        return (self.waiting, tuple(self._held), self._epoch, marks, out_of_band)
