"""How much more the application takes: back-pressure from the consumer to the window.

On delivery: messages handed out and not yet reported consumed are counted; at ``max_unconsumed`` nothing more is handed
out, so the window fills, the ack does not move, and the sender waits (M-16). Zero means no limit.

While deliveries are held back for the application (``held``) they are not counted; while no more can be (``closed``),
nothing is handed out at all.
"""

from __future__ import annotations


class Credit:
    """Messages that the application has room for."""

    __slots__ = ("_max_batch", "_max_unconsumed", "closed", "held", "outstanding")

    def __init__(self, max_unconsumed: int, max_batch: int) -> None:
        self._max_unconsumed = max_unconsumed
        self._max_batch = max_batch
        self.outstanding = 0
        self.held = False
        self.closed = False

    def limit(self) -> int | None:
        """Return how many messages the next delivery may hold; None means any number, 0 that it must wait."""
        if self.closed:
            return 0
        if not self._max_unconsumed or self.held:
            return self._max_batch or None
        room = max(0, self._max_unconsumed - self.outstanding)
        return min(room, self._max_batch) if self._max_batch else room

    def spend(self, messages: int) -> None:
        """Note that messages were handed out."""
        if not self.held:
            self.outstanding += messages

    def refund(self, messages: int) -> None:
        """Note that the application has consumed messages."""
        self.outstanding = max(0, self.outstanding - messages)
