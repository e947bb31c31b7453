"""The destination of a member's deliveries and events: runs, views and other events.

The thread in a turn puts items in the order of the machine. An inbox (group/inbox.py) takes the
items directly. A handle without an inbox has a ``DeliveryQueue``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from gapless.events import DiscoveryFailed, KeyMismatch, NoPeersFound
from gapless.protocol.events import Event
from gapless.protocol.ready import Delivery

if TYPE_CHECKING:
    from collections.abc import Sequence

DeliveryItem = Delivery | Event | DiscoveryFailed | NoPeersFound | KeyMismatch
"""An item for the application."""


class DeliverySink(Protocol):
    """The receiver of the items of one member, called in a turn; the methods must not block."""

    def put(self, items: Sequence[DeliveryItem]) -> None:
        """Take items, in the given order."""
        ...

    def end(self) -> None:
        """Note that no item follows."""
        ...


class DeliveryQueue:
    """Items that wait for a thread of the application."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: list[DeliveryItem] = []
        self._ended = False

    def put(self, items: Sequence[DeliveryItem]) -> None:
        """Add items."""
        with self._changed:
            self._items += items
            self._changed.notify_all()

    def end(self) -> None:
        """Mark the queue as ended: no item follows."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self) -> list[DeliveryItem]:
        """Remove and return all items."""
        with self._changed:
            items, self._items = self._items, []
        return items

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for an item or the end; return whether there is an item."""
        with self._changed:
            self._changed.wait_for(self.is_ready, timeout_s)
            return bool(self._items)

    def is_ready(self) -> bool:
        """Return whether an item waits, or the queue has ended."""
        return bool(self._items) or self._ended
