"""The delivery queue: runs, views and other events on their way to the application.

The thread that is in a turn puts items in the order of the machine; any thread takes them. The
queue also counts the messages that the application has consumed, so that the machine is told once
per many messages.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gapless.protocol.events import Event
from gapless.protocol.ready import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DeliveryItem = Delivery | Event
"""An item for the application."""


class DeliveryQueue:
    """Items for the application; ``on_ready`` is called in a turn when the first one arrives."""

    def __init__(self, report_at: int, on_ready: Callable[[], None] | None) -> None:
        self._report_at = max(1, report_at)
        self._on_ready = on_ready
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
        """Mark the queue as ended: no item follows."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        if self._on_ready is not None:
            self._on_ready()

    def wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until the queue has ended; return whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, timeout_s)

    def take(self) -> list[DeliveryItem]:
        """Remove and return all items."""
        with self._changed:
            items, self._items = self._items, []
        return items

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for an item or the end; return whether there is an item."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self.ended, timeout_s)
            return bool(self._items)

    def is_ready(self) -> bool:
        """Return whether there is an item, or the queue has ended."""
        return bool(self._items) or self.ended

    def add_consumed(self, messages: int) -> bool:
        """Count consumed messages; return whether it is time to report them to the machine."""
        with self._changed:
            self._consumed += messages
            if self._consumed - self._requested < self._report_at:
                return False
            self._requested = self._consumed
            return True

    def take_unreported(self) -> int:
        """Return how many consumed messages were not reported yet, and count them as reported."""
        with self._changed:
            unreported, self._reported = self._consumed - self._reported, self._consumed
            self._requested = self._consumed
            return unreported
