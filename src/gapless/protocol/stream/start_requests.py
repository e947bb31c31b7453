"""Pacing of the requests for unknown starts: few, however many streams wait for their start.

Every sender announces the start of its stream to a new member, and repeats the announcement until
the member confirms it. A request is needed only if the sender does not know that a start is due.
When many members join at once, each of them waits for the start of every other: without a pace, a
slow join of 300 members takes 90,000 requests.

Every pass over the gaps: a member that is not admitted asks nobody, because the others announce
their starts with the view. An admitted member asks for ``MAX_STARTS`` starts in an
``xmit_interval``; the streams that it asked for least often come first, and each member begins at
another place. All others wait for the next interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address
    from gapless.protocol.stream.inbound import InboundStream

MAX_STARTS = 16
"""Maximum number of starts that a member asks for in an ``xmit_interval``."""


class StartRequests:
    """The requests of a member in the current interval."""

    __slots__ = ("_interval_end_ns", "_me", "_sent")

    def __init__(self, me: Address) -> None:
        self._me = me
        self._interval_end_ns = 0
        self._sent = 0

    def select(
        self, streams: Iterable[InboundStream], now_ns: int, interval_ns: int, *, admitted: bool
    ) -> None:
        """Leave the requests due that may be sent now, and put off the others."""
        waiting = [stream for stream in streams if stream.start_request_due(now_ns)]
        if not waiting:
            return
        if now_ns >= self._interval_end_ns:
            self._interval_end_ns, self._sent = now_ns + interval_ns, 0
        room = MAX_STARTS - self._sent if admitted else 0
        assert 0 <= room <= MAX_STARTS, f"room for {room} requests"
        if len(waiting) > room:
            waiting.sort(key=self._order)
            for stream in waiting[room:]:
                stream.loss_detector.postpone(now_ns + interval_ns)
        self._sent += min(room, len(waiting))

    def _order(self, stream: InboundStream) -> tuple[int, bool, Address]:
        """Return what sorts streams by their requests, then in a circle from this member on."""
        return stream.start_tries, stream.origin < self._me, stream.origin

    def check_invariants(self) -> None:
        """Raise AssertionError if more requests were sent than an interval allows."""
        assert 0 <= self._sent <= MAX_STARTS, f"{self._sent} requests in an interval"
