"""Every message carries a number, and every receiver checks it: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBER_BYTES = 4
"""What the number takes; no message is shorter."""

_NUMBER = Struct("<I")


def numbered_messages(start: int, count: int, size_bytes: int) -> list[bytes]:
    """Return ``count`` messages of this size, with numbers from ``start`` on."""
    pack, rest = _NUMBER.pack, bytes(size_bytes - NUMBER_BYTES)
    return [pack(number) + rest for number in range(start, start + count)]


class ExactnessChecker:
    """What has come of one sender."""

    def __init__(self, size_bytes: int) -> None:
        self.count = self.duplicated = self.out_of_order = 0
        self._next = 0
        self._missing: set[int] = set()
        self._size_bytes = size_bytes
        self._layout = Struct(f"<I{size_bytes - NUMBER_BYTES}x")

    def add(self, messages: bytes) -> None:
        """Take in messages, end to end."""
        found = self._numbers(messages)
        self.count += len(found)
        after = self._next + len(found)
        if found == list(range(self._next, after)):
            self._next = after
        else:
            self._classify(found)

    def _numbers(self, messages: bytes) -> list[int]:
        if self._size_bytes % NUMBER_BYTES == 0 and not len(messages) % self._size_bytes:
            return memoryview(messages).cast("I")[:: self._size_bytes // NUMBER_BYTES].tolist()
        return [number for (number,) in self._layout.iter_unpack(messages)]

    def _classify(self, found: Iterable[int]) -> None:
        for number in found:
            if number >= self._next:
                self._missing.update(range(self._next, number))
                self._next = number + 1
            elif number in self._missing:
                self._missing.remove(number)
                self.out_of_order += 1
            else:
                self.duplicated += 1

    def lost(self, sent: int) -> int:
        """Return how many of those that were sent have not come."""
        return len(self._missing) + max(0, sent - self._next)
