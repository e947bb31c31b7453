"""What waits for the application: runs, views and other events, in the order of the machine.

Whoever is in a turn puts, any thread takes. How many messages the application is done with is
gathered here, so that the machine is told now and then and not for each message.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gapless.protocol.events import Event
from gapless.protocol.ready import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DeliveryItem = Delivery | Event
"""What the application gets."""


class DeliveryQueue:
    """Items on their way to the application; ``woken`` is called inside a turn when it is empty no more."""

    def __init__(self, report_at: int, woken: Callable[[], None] | None) -> None:
        self._report_at = max(1, report_at)
        self._on_ready = woken
        self._changed = threading.Condition()
        self._items: list[DeliveryItem] = []
        self._consumed = self._requested = self._reported = 0
        self.ended = False

    def put(self, items: Sequence[DeliveryItem]) -> None:
        """Add items."""
        with self._changed:
            first = not self._items
            self._items += items
            self._changed.notify_all()
        if first and self._on_ready is not None:
            self._on_ready()

    def end(self) -> None:
        """Say that nothing more comes."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        if self._on_ready is not None:
            self._on_ready()

    def wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until nothing more comes; tell whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, timeout_s)

    def take(self) -> list[DeliveryItem]:
        """Return what is there."""
        with self._changed:
            items, self._items = self._items, []
        return items

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until something is there, or nothing more comes; tell whether something is there."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self.ended, timeout_s)
            return bool(self._items)

    def is_ready(self) -> bool:
        """Whether something is there, or nothing more comes."""
        return bool(self._items) or self.ended

    def add_consumed(self, messages: int) -> bool:
        """Note that the application is done with messages; return whether the machine is to be told now."""
        with self._changed:
            self._consumed += messages
            if self._consumed - self._requested < self._report_at:
                return False
            self._requested = self._consumed
            return True

    def take_unreported(self) -> int:
        """Return of how many messages the machine has not been told that the application is done with them."""
        with self._changed:
            owed, self._reported = self._consumed - self._reported, self._consumed
            self._requested = self._consumed
            return owed
