"""Virtual time: a queue of events, run in the order of their time and then of their creation.

Time moves only from event to event. A queue that runs very many events in almost no time is a
livelock: ``Scheduler.run`` stops and drops all events.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from gapless.faults.faults import NEVER_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_EVENTS_PER_MOMENT = 20_000
"""Maximum number of events in a moment."""
MOMENT_NS = 100_000
"""How long a moment is."""
_SETTLE_EVERY = 16

Event = tuple[int, int, "Callable[..., None]", tuple[Any, ...]]
"""A time, a serial number, a handler and its arguments."""


class Scheduler:
    """The event queue and the clock of a run; stops once ``halt_on`` is not empty."""

    def __init__(self, halt_on: Sequence[object] = ()) -> None:
        self.now_ns = 0
        self.events = 0
        self.heap: list[Event] = []
        self.on_event: Callable[[], None] | None = None
        self._halt_on = halt_on
        self._serial = 0
        self._moment_ns = -1
        self._events_in_moment = 0

    def push(self, at_ns: int, handler: Callable[..., None], *args: Any) -> None:
        """Call ``handler`` at ``at_ns``."""
        self._serial += 1
        heappush(self.heap, (at_ns, self._serial, handler, args))

    def run(
        self,
        until_ns: int,
        max_events: int = NEVER_NS,
        *,
        leap_ns: int = 0,
        is_settled: Callable[[], bool] | None = None,
    ) -> bool:
        """Run events due up to ``until_ns``; return False at a livelock.

        Stop early if there were more than ``max_events`` in all, or if the group ``is_settled``.
        """
        heap, halt_on = self.heap, self._halt_on
        while heap and self.events <= max_events and not halt_on:
            at_ns = heap[0][0]
            # The question is expensive: ask it at some events, and always before a leap in time.
            if (
                is_settled is not None
                and (at_ns > self.now_ns + leap_ns or not self.events % _SETTLE_EVERY)
                and is_settled()
            ):
                break
            if at_ns > until_ns:
                break
            _, _, handler, args = heappop(heap)
            self.events += 1
            self.now_ns = at_ns
            if at_ns > self._moment_ns:
                self._moment_ns, self._events_in_moment = at_ns + MOMENT_NS, 0
            else:
                self._events_in_moment += 1
                if self._events_in_moment > MAX_EVENTS_PER_MOMENT:
                    heap.clear()
                    return False
            handler(*args)
            if self.on_event is not None:
                self.on_event()
        return True
