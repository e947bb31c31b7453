"""Limits of answers: a stranger may invent the address to answer, so answers are limited.

In each interval one address gets at most ``most_each`` answers, and all addresses together at most
``most``. Answers therefore cost no more than a known number of frames, however many frames arrive.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gapless.identity import Address


class AnswerLimiter:
    """Counts the answers of the present interval."""

    def __init__(self, interval_ns: int, most: int, most_each: int) -> None:
        self._interval_ns = max(1, interval_ns)
        self._most = most
        self._most_each = most_each
        self._began_ns = -self._interval_ns
        self._sent = 0
        self._sent_to: Counter[Address] = Counter()

    def allows(self, to: Address, now_ns: int) -> bool:
        """Return whether ``to`` may be answered now, and count the answer."""
        if now_ns - self._began_ns >= self._interval_ns:
            self._began_ns, self._sent = now_ns, 0
            self._sent_to.clear()
        if self._sent >= self._most or self._sent_to[to] >= self._most_each:
            return False
        self._sent += 1
        self._sent_to[to] += 1
        return True

    def check_invariants(self) -> None:
        """Raise AssertionError if more answers were sent than allowed."""
        assert self._sent == sum(self._sent_to.values()) <= self._most, "answers are limited"
        assert all(sent <= self._most_each for sent in self._sent_to.values()), "for each address"
