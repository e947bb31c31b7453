"""The appender: turns deliveries of a group into records queued for the disk.

On a delivery: the delivery is queued unchanged. Messages outside the stream to the group
(out-of-band, unreliable, to this member alone) are counted and dropped.

On rows already published by a sink, in another incarnation: the seqnos become a recorded gap, and
the state of the sinks is committed together with the messages, all or nothing.

On a gap: a delivery that does not follow the queue waits, with all later deliveries, until an event
(Lost, Oversized) explains the missing messages; the event precedes or directly follows the
delivery. Then the gap is recorded as lost. A gap without an explanation for ``GAP_TIMEOUT_NS`` is
recorded as well, and logged as a bug: otherwise the stream would stop for ever.
"""

from __future__ import annotations

import time
from bisect import insort
from typing import TYPE_CHECKING, NamedTuple

from gapless.group.inbox import part_of
from gapless.group.sink_dedup import SinkDedup
from gapless.protocol.ready import GROUP, OUT_OF_BAND, UNRELIABLE, Delivery
from gapless.spool.errors import SpoolGap
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from gapless.group.message import Batch
    from gapless.identity import Address
    from gapless.spool.writer import SpoolWriter

GAP_TIMEOUT_NS = 2 * NS_PER_S
"""How long a gap waits for its explanation."""


class HeldAppend(NamedTuple):
    """A delivery or a gap that cannot be queued yet, because earlier messages are missing."""

    first: int
    last: int
    since_ns: int
    delivery: Delivery | None
    name: str
    view: int
    collected_ns: int


class DeliveryAppender:
    """The appender of a collector, used by a single thread."""

    def __init__(self, spool: SpoolWriter) -> None:
        self.spool = spool
        self.received = self.batches = 0
        self.lost = self.oversized = self.unexplained = 0
        self.uncollected = {"out_of_band": 0, "unreliable": 0, "private": 0}
        self.sink_dedup = SinkDedup.decode(spool.blob)
        self.changed_origins: set[Address] = set()
        self.held_bytes = self.held_messages = 0
        self._held: dict[Address, list[HeldAppend]] = {}
        self._staged_changes = 0

    @property
    def pending_bytes(self) -> int:
        """Number of bytes held in memory."""
        return self.spool.pending_bytes + self.held_bytes

    @property
    def pending_messages(self) -> int:
        """Number of received messages that are not on disk yet, and not acknowledged."""
        return self.spool.pending_messages + self.held_messages

    @property
    def blocked_streams(self) -> int:
        """Number of streams waiting for the explanation of a gap."""
        return len(self._held)

    def append_batch(self, batch: Batch) -> None:
        """Queue a delivery."""
        delivery = batch._delivery
        if delivery.kind != GROUP:
            self._count_uncollected(batch)
            return
        origin = delivery.origin
        self.changed_origins.add(origin)
        self.batches += 1
        self.received += delivery.message_count
        if origin in self._held:
            self._hold(delivery, batch)
            self._flush_held(origin)
            return
        try:
            self._append(delivery, batch.name, batch.view)
        except SpoolGap:
            self._hold(delivery, batch)

    def stage_dedup_state(self) -> None:
        """Add the state of the sinks to the next commit."""
        if self.sink_dedup.changes != self._staged_changes:
            self._staged_changes = self.sink_dedup.changes
            self.spool.blob = self.sink_dedup.encode()

    def _append(
        self, delivery: Delivery, name: str, view: int, collected_ns: int | None = None
    ) -> None:
        """Append messages not published before by a sink.

        Raises:
            SpoolGap: Earlier messages are missing.
        """
        origin, reached = delivery.origin, self.spool.last_appended(delivery.origin)
        new_ranges = None
        if reached is None or delivery.first <= reached + 1 <= delivery.last:
            # Only rows that are queued now are remembered: held ones may never reach the disk.
            new_ranges = self.sink_dedup.new_ranges(_payload(delivery), delivery.messages)
        if new_ranges is None:
            self.spool.append(delivery, name=name, view=view, collected_ns=collected_ns)
            return
        at = delivery.first
        for start, end in new_ranges:
            part = part_of(delivery, start, end)
            if at < part.first:
                self.spool.append_lost(origin, at, part.first - 1, repeated=True)
            self.spool.append(part, name=name, view=view, collected_ns=collected_ns)
            at = part.last + 1
        if at <= delivery.last:
            self.spool.append_lost(origin, at, delivery.last, repeated=True)

    def append_lost(
        self, origin: Address, first: int, last: int, *, oversized: bool = False
    ) -> None:
        """Queue a gap of messages that will never arrive."""
        if oversized:
            self.oversized += 1
        self.lost += last - first + 1
        self.changed_origins.add(origin)
        now_ns = time.monotonic_ns()
        insort(
            self._held.setdefault(origin, []),
            HeldAppend(first, last, now_ns, None, "", 0, 0),
            key=_first_seqno,
        )
        self._flush_held(origin)

    def expire_gaps(self) -> list[str]:
        """Record gaps without an explanation for too long; return a log line for each."""
        if not self._held or self.spool.pending_bytes:
            # The marks are the positions of the streams only when everything pending is durable.
            return []
        problems = []
        limit_ns = time.monotonic_ns() - GAP_TIMEOUT_NS
        for origin, line in list(self._held.items()):
            first, since_ns = line[0].first, line[0].since_ns
            if since_ns > limit_ns:
                continue
            missing = self.spool.marks[origin] + 1, first - 1
            self.unexplained += missing[1] - missing[0] + 1
            self.spool.append_lost(origin, *missing)
            problems.append(
                f"{origin}: messages {missing[0]}..{missing[1]} are missing without a reported "
                "loss and count as lost; this is a bug in Gapless, please report it"
            )
            self._flush_held(origin)
        return problems

    def _flush_held(self, origin: Address) -> None:
        """Queue held deliveries up to the next missing message."""
        line = self._held[origin]
        done = 0
        for entry in line:
            try:
                if entry.delivery is None:
                    self.spool.append_lost(origin, entry.first, entry.last)
                else:
                    self._append(entry.delivery, entry.name, entry.view, entry.collected_ns)
                    self.held_bytes -= _size_bytes(entry.delivery)
                    self.held_messages -= entry.delivery.message_count
            except SpoolGap:
                break
            done += 1
        del line[:done]
        if not line:
            del self._held[origin]

    def _hold(self, delivery: Delivery, batch: Batch) -> None:
        entry = HeldAppend(
            delivery.first,
            delivery.last,
            time.monotonic_ns(),
            delivery,
            batch.name,
            batch.view,
            time.time_ns(),
        )
        insort(self._held.setdefault(delivery.origin, []), entry, key=_first_seqno)
        self.held_bytes += _size_bytes(delivery)
        self.held_messages += delivery.message_count

    def _count_uncollected(self, batch: Batch) -> None:
        kind = batch._delivery.kind
        what = (
            "private"
            if batch.private
            else {OUT_OF_BAND: "out_of_band", UNRELIABLE: "unreliable"}[kind]
        )
        self.uncollected[what] += len(batch)


def _first_seqno(entry: HeldAppend) -> int:
    return entry.first


def _payload(delivery: Delivery) -> bytes:
    content = delivery.content
    return content if isinstance(content, bytes) else content.payload


def _size_bytes(delivery: Delivery) -> int:
    return len(_payload(delivery))
