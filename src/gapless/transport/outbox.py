"""What waits for the application: runs, views and other events, in the order of the machine.

The protocol thread puts, any other thread takes. How many messages the application is done with is gathered here, so
that the machine is told now and then and not for each message.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gapless.core.ready import Delivery, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = Delivery | Event
"""What the application gets."""


class Outbox:
    """Items on their way to the application; ``woken`` is called by the protocol thread when it is empty no more."""

    def __init__(self, report_at: int, woken: Callable[[], None] | None) -> None:
        self._report_at = max(1, report_at)
        self._woken = woken
        self._turn = threading.Condition()
        self._items: list[Item] = []
        self._handed = self._consumed = self._reported = 0
        self.ended = False

    def put(self, items: Sequence[Item], messages: int) -> None:
        """Add items, which hold so many messages."""
        with self._turn:
            first = not self._items
            self._items += items
            self._handed += messages
            self._turn.notify_all()
        if first and self._woken is not None:
            self._woken()

    def end(self) -> None:
        """Say that nothing more comes."""
        with self._turn:
            self.ended = True
            self._turn.notify_all()
        if self._woken is not None:
            self._woken()

    def wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until nothing more comes; tell whether that is so."""
        with self._turn:
            return self._turn.wait_for(lambda: self.ended, timeout_s)

    def take(self) -> list[Item]:
        """Return what is there."""
        with self._turn:
            items, self._items = self._items, []
        return items

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until something is there, or nothing more comes; tell whether something is there."""
        with self._turn:
            self._turn.wait_for(lambda: self._items or self.ended, timeout_s)
            return bool(self._items)

    def consume(self, messages: int) -> int:
        """Note that the application is done with messages; return how many the machine is to be told of now."""
        with self._turn:
            self._consumed += messages
            owed = self._consumed - self._reported
            if self._consumed < self._handed and owed < self._report_at:
                return 0
            self._reported = self._consumed
            return owed
