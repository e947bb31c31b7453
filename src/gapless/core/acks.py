"""Acknowledgements: who has delivered how much of the own stream, and what is owed for the streams of others.

On an ack from member P: the entry of P rises, never falls; an ack from somebody who is not in the table counts for
nothing; when the minimum over all entries rises, everything up to it is stable.

On a view: entries of departed members go, new members enter at the seqno they were told to start from, so a joiner does
not pin the minimum (I-21). The minimum may rise by a departure.

Every delivery: the receiver owes an ack, at once after ``threshold`` messages or ``threshold_bytes`` bytes, else when
the ack timer fires. A duplicate or an announcement of the origin makes it owe one too: the last ack may have been lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address


class AckTable:
    """The highest ack of every member of the view."""

    __slots__ = ("_acks", "minimum")

    def __init__(self) -> None:
        self._acks: dict[Address, int] = {}
        self.minimum = 0

    def __contains__(self, member: Address) -> bool:
        return member in self._acks

    def __getitem__(self, member: Address) -> int:
        return self._acks[member]

    def items(self) -> Iterable[tuple[Address, int]]:
        """Return every member with its highest ack."""
        return self._acks.items()

    def ack(self, member: Address, seqno: int) -> bool:
        """Note that ``member`` has delivered up to ``seqno``; return whether the minimum rose."""
        before = self._acks.get(member)
        if before is None or seqno <= before:
            return False
        self._acks[member] = seqno
        return before <= self.minimum and self._raise_minimum()

    def adjust(self, members: Iterable[Address], start: int) -> bool:
        """Keep exactly ``members``, new ones at ``start``; return whether the minimum rose."""
        self._acks = {member: self._acks.get(member, start) for member in members}
        return self._raise_minimum()

    def _raise_minimum(self) -> bool:
        minimum = min(self._acks.values(), default=self.minimum)
        if minimum <= self.minimum:
            return False
        self.minimum = minimum
        return True

    def behind(self, seqno: int) -> list[Address]:
        """Return the members that have not acknowledged ``seqno``."""
        return [member for member, ack in self._acks.items() if ack < seqno]

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        return (self.minimum, *self._acks.items())

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says."""
        self.minimum, *entries = snapshot  # type: ignore[assignment]
        self._acks = dict(entries)  # type: ignore[arg-type]


class OwedAck:
    """What a receiver owes to one origin."""

    __slots__ = ("_messages", "_size_bytes", "owed", "sent", "threshold")

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.owed = False
        self.sent = 0
        self._messages = 0
        self._size_bytes = 0

    def deliver(self, messages: int, size_bytes: int, threshold_bytes: int) -> bool:
        """Note a delivery; return whether the ack is due at once."""
        self._messages += messages
        self._size_bytes += size_bytes
        self.owed = True
        return self._messages >= self.threshold or self._size_bytes >= threshold_bytes

    def settle(self, seqno: int) -> None:
        """Note that an ack for ``seqno`` goes out: nothing is owed any more."""
        self.sent = seqno
        self.owed = False
        self._messages = self._size_bytes = 0

    def snapshot(self) -> tuple[bool, int, int]:
        """Return what the next ack depends on; the last one sent is left out, nothing depends on it."""
        return (self.owed, self._messages, self._size_bytes)

    def restore(self, snapshot: tuple[bool, int, int]) -> None:
        """Become what ``snapshot`` says."""
        self.owed, self._messages, self._size_bytes = snapshot
