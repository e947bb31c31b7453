"""One load generator: batches at a rate, or as fast as the group accepts them.

On each turn: if too many sends are unconfirmed, wait for the oldest; else send the next batch. With
a rate, wait until the next batch is due, and confirm sends meanwhile. Lost time is made up for, but
only up to ``catch_up_s`` of it.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from gapless.identity import Address

POLL_INTERVAL_S = 0.1
"""How long a wait may last before ``stop`` is looked at again."""
TICK_S = 0.02
"""How long between two batches at a rate."""

SentT = TypeVar("SentT")


class LoadBatch(NamedTuple):
    """The numbers of messages to send at once, and to whom; no numbers: nothing to send yet."""

    numbers: range
    to: Address | None = None


def batch_size(rate: float | None, most: int) -> int:
    """Return how many messages a batch holds: those of one tick, at most ``most``."""
    return most if rate is None else max(1, min(most, round(rate * TICK_S)))


class LoadGenerator(Generic[SentT]):
    """Sends batches with ``send``; ``confirm`` waits for a send, or raises TimeoutError."""

    def __init__(
        self,
        send: Callable[[LoadBatch], SentT],
        confirm: Callable[[SentT, float | None], None],
        *,
        max_in_flight: int,
        rate: float | None = None,
        catch_up_s: float = 1.0,
    ) -> None:
        assert max_in_flight > 0
        assert rate is None or rate > 0
        self.in_flight: deque[SentT] = deque()
        self._send = send
        self._confirm = confirm
        self._max_in_flight = max_in_flight
        self._rate = rate
        self._catch_up_s = catch_up_s

    def run(
        self, batches: Iterator[LoadBatch], stop: threading.Event, until_s: float = inf
    ) -> None:
        """Send until the batches or the time end, or ``stop`` is set."""
        due_s = time.monotonic()
        while not stop.is_set() and (now_s := time.monotonic()) < until_s:
            if len(self.in_flight) >= self._max_in_flight:
                with suppress(TimeoutError):
                    self.confirm_oldest(min(POLL_INTERVAL_S, until_s - now_s))
                continue
            batch = next(batches, None)
            if batch is None:
                return
            if not batch.numbers:
                self._wait(now_s + POLL_INTERVAL_S, stop)
                continue
            self.in_flight.append(self._send(batch))
            if self._rate is not None:
                due_s = max(due_s + len(batch.numbers) / self._rate, now_s - self._catch_up_s)
                self._wait(min(due_s, until_s), stop)

    def confirm_oldest(self, timeout_s: float | None) -> None:
        """Wait until the oldest send is confirmed."""
        self._confirm(self.in_flight[0], timeout_s)
        self.in_flight.popleft()

    def drain(self, timeout_s: float | None) -> None:
        """Wait until every send is confirmed, for each at most ``timeout_s``."""
        while self.in_flight:
            self.confirm_oldest(timeout_s)

    def _wait(self, until_s: float, stop: threading.Event) -> None:
        with suppress(TimeoutError):
            while self.in_flight:
                self.confirm_oldest(max(0.0, until_s - time.monotonic()))
        stop.wait(max(0.0, until_s - time.monotonic()))
