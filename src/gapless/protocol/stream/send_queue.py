"""The send queue: sends waiting for room, first come, first served, and their packing into runs.

On sending without room: the messages join the queue. While the window has room, messages from the
head of the queue are packed into runs, and get their seqnos only then (P-06, P-14). A cancelled or
timed-out send therefore leaves no gap, and messages leave in the order of their seqnos. A run may
be larger than a frame: such a run is stored whole, and split into frames on transmission, unless
the transport takes it whole (ready_builder.py).

A message larger than a frame becomes fragments, each with a seqno. Once the first fragment has a
seqno the message is accepted: the rest follows as the window gets room, and the message can no
longer be cancelled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from gapless.payloads import Payloads
from gapless.protocol.events import GivenUp
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, LENGTH_BYTES, MAX_ENTRY_BYTES
from gapless.wire.codec import RUN_MAX_COUNT


class SendBatch(NamedTuple):
    """The messages of the next run, before they have seqnos."""

    messages: Sequence[bytes]
    flags: int
    portions: list[tuple[QueuedSend, int]]
    each_bytes: int | None = None
    """The length of every message, if all are known to have the same."""


def cumulative_cost_bytes(messages: Payloads) -> Sequence[int]:
    """Return the window bytes of the first 0, 1, 2, … messages."""
    if messages.uniform:
        step = messages.longest_bytes + LENGTH_BYTES
        return range(0, step * len(messages) + 1, step)
    return list(accumulate([size + LENGTH_BYTES for size in messages.sizes], initial=0))


class QueuedSend:
    """A send in the queue: the messages, and how many of them have left."""

    __slots__ = (
        "blocked",
        "costs",
        "deadline_ns",
        "first",
        "flags",
        "given_up",
        "last",
        "longest_bytes",
        "messages",
        "offset",
        "since_ns",
        "taken",
        "ticket",
    )

    def __init__(
        self, ticket: int, messages: Payloads, flags: int, deadline_ns: int | None
    ) -> None:
        self.ticket = ticket
        self.messages: tuple[bytes, ...] = messages
        self.flags = flags
        self.deadline_ns = deadline_ns
        self.longest_bytes = messages.longest_bytes + LENGTH_BYTES
        self.costs = cumulative_cost_bytes(messages)
        self.taken = 0
        self.offset = 0
        self.first = self.last = 0
        self.blocked = False
        self.since_ns = 0
        self.given_up = False

    @property
    def cost_bytes(self) -> int:
        """The window bytes of all messages of the send."""
        return self.costs[-1]

    @property
    def done(self) -> bool:
        """Whether every message has left the queue."""
        return self.taken == len(self.messages)

    def assign_seqnos(self, first: int, last: int) -> None:
        """Record that messages of this send have the seqnos ``first .. last``."""
        assert self.last < first <= last, "the seqnos of a send rise"
        self.first = self.first or first
        self.last = last


class SendQueue:
    """The sends with messages that have no seqno."""

    __slots__ = ("max_fragment_bytes", "max_run_bytes", "room_bytes", "sends")

    def __init__(self, room_bytes: int, max_run_bytes: int = 0) -> None:
        """Create an empty queue.

        A frame has room for ``room_bytes`` of a run. A run holds ``room_bytes``, or
        ``max_run_bytes`` if larger.
        """
        self.room_bytes = min(room_bytes, MAX_ENTRY_BYTES)
        self.max_fragment_bytes = self.room_bytes - LENGTH_BYTES
        self.max_run_bytes = max(self.room_bytes, max_run_bytes)
        self.sends: deque[QueuedSend] = deque()
        """The sends that wait, oldest first."""

    def __len__(self) -> int:
        return len(self.sends)

    def enqueue(
        self, ticket: int, messages: Sequence[bytes], flags: int, deadline_ns: int | None
    ) -> QueuedSend:
        """Queue ``messages`` behind all queued sends."""
        assert ticket > 0, "tickets start at 1"
        send = QueuedSend(ticket, Payloads.of(messages), flags, deadline_ns)
        self.sends.append(send)
        return send

    def queued_sends(self) -> tuple[QueuedSend, ...]:
        """Return the queue, head first."""
        return tuple(self.sends)

    @property
    def partially_sent(self) -> QueuedSend | None:
        """The send with a partly sent message, if any."""
        return self.sends[0] if self.sends and self.sends[0].offset else None

    def seqno_count(self, messages: Payloads) -> int:
        """Return how many seqnos ``messages`` take."""
        if messages.longest_bytes <= self.max_fragment_bytes:
            return len(messages)
        return sum(max(1, -(-size // self.max_fragment_bytes)) for size in messages.sizes)

    def next_batch(self, room: int, room_bytes: int | None, empty: bool) -> SendBatch | None:
        """Take the next run from the head: at most ``room`` messages and ``room_bytes`` bytes.

        ``empty``: no message is outstanding. Then a message of any size is taken, because it would
        never fit otherwise.
        """
        if not self.sends or room <= 0:
            return None
        room = min(room, RUN_MAX_COUNT)
        limit_bytes = (
            self.max_run_bytes if room_bytes is None else min(self.max_run_bytes, room_bytes)
        )
        head = self.sends[0]
        if head.offset or head.costs[head.taken + 1] - head.costs[head.taken] > self.room_bytes:
            return self._next_fragment(head, None if empty else room_bytes)
        return self._next_run(head.flags, room, limit_bytes, empty)

    def _next_fragment(self, head: QueuedSend, room_bytes: int | None) -> SendBatch | None:
        message = head.messages[head.taken]
        start, end = head.offset, min(head.offset + self.room_bytes - LENGTH_BYTES, len(message))
        if room_bytes is not None and end - start + LENGTH_BYTES > room_bytes:
            return None
        assert start < end, "a fragment is never empty"
        flags = head.flags | FRAGMENT | (0 if start else FIRST_FRAGMENT)
        head.offset = end
        if end == len(message):
            flags |= LAST_FRAGMENT
            head.offset = 0
            head.taken += 1
        self._pop_if_done()
        return SendBatch((message[start:end],), flags, [(head, 1)])

    def _next_run(self, flags: int, room: int, limit_bytes: int, empty: bool) -> SendBatch | None:
        messages: list[bytes] = []
        portions: list[tuple[QueuedSend, int]] = []
        while self.sends and self.sends[0].flags == flags and room > 0:
            head = self.sends[0]
            start = head.taken
            if head.longest_bytes > self.room_bytes:
                # So a message that needs fragments ends the run.
                limit_bytes = min(limit_bytes, self.room_bytes)
            end = bisect_right(head.costs, head.costs[start] + limit_bytes, start) - 1
            if end <= start and empty and not messages:
                end = start + 1
            end = min(end, start + room)
            if end <= start:
                break
            messages += head.messages[start:end]
            room -= end - start
            limit_bytes -= head.costs[end] - head.costs[start]
            head.taken = end
            portions.append((head, end - start))
            self._pop_if_done()
            if not head.done:
                break
        if not messages:
            return None
        assert len(messages) == sum(count for _, count in portions), "portions make up the run"
        costs = portions[0][0].costs
        alike = len(portions) == 1 and isinstance(costs, range)
        return SendBatch(messages, flags, portions, costs[1] - LENGTH_BYTES if alike else None)

    def _pop_if_done(self) -> None:
        if self.sends[0].done:
            self.sends.popleft()

    def give_up(self, ticket: int, reason: str) -> GivenUp | None:
        """Cancel a queued send; return the outcome, or None without such a send.

        A partly sent message stays: the first fragment made the message accepted.
        """
        send = next((send for send in self.sends if send.ticket == ticket), None)
        if send is None or send.given_up:
            return None
        if send.offset:
            keep = send.taken + 1
            send.messages = send.messages[:keep]
            send.costs = send.costs[: keep + 1]
            send.deadline_ns = None
            send.given_up = True
            return GivenUp(ticket, keep, reason)
        self.sends.remove(send)
        return GivenUp(ticket, send.taken, reason)

    def restart_numbering(self) -> int:
        """Restart fragmented messages whole; return how many seqnos their fragments had."""
        fragments = 0
        for send in self.sends:
            fragments += -(-send.offset // (self.room_bytes - LENGTH_BYTES))
            send.offset = send.first = send.last = 0
        return fragments

    @property
    def tickets(self) -> list[int]:
        """The tickets of the queued sends, in order."""
        return [send.ticket for send in self.sends]

    def overdue(self, now_ns: int) -> list[int]:
        """Return the tickets of sends with an expired deadline."""
        return [
            send.ticket
            for send in self.sends
            if send.deadline_ns is not None and send.deadline_ns <= now_ns
        ]

    @property
    def deadline_ns(self) -> int | None:
        """The earliest deadline of a queued send."""
        return min(
            (send.deadline_ns for send in self.sends if send.deadline_ns is not None),
            default=None,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if a send behind the head is partly sent, or a cost is wrong."""
        for at, send in enumerate(self.sends):
            assert 0 <= send.taken < len(send.messages), f"ticket {send.ticket} is done and queued"
            assert at == 0 or not (send.taken or send.offset), "messages leave from the head only"
            assert len(send.costs) == len(send.messages) + 1, "every message has a cost"
            assert send.offset < max(1, len(send.messages[send.taken])), (
                "a fragment is left to send"
            )
            assert send.first <= send.last or not send.last, "seqnos of a send rise"
        assert len(set(self.tickets)) == len(self.sends), "a ticket names one send"

    def snapshot(self) -> tuple[tuple[object, ...], ...]:
        """Return the queue as a hashable value."""
        return tuple(
            (send.flags, send.offset, send.first, *send.messages[send.taken :])
            for send in self.sends
        )

    def restore(self, snapshot: tuple[tuple[object, ...], ...], tickets: Iterator[int]) -> None:
        """Return to the state of ``snapshot``, with new tickets."""
        self.sends = deque()
        for flags, offset, first, *messages in snapshot:
            send = self.enqueue(next(tickets), messages, flags, None)  # type: ignore[arg-type]
            send.offset, send.first = offset, first  # type: ignore[assignment]
            send.blocked = True
