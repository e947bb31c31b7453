"""Every message carries a number, a sender and a round, and every receiver checks all three.

A message begins with eight bytes, little-endian: number (4), sender (2), round (2). A message from
an earlier round is counted as late and otherwise ignored. The greeting by which members find out
about each other has round 0.
"""

from __future__ import annotations

import time
from functools import cache
from random import Random
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD_BYTES = 8
"""No message is shorter."""
GREETING = 0
"""The round of greetings, without load."""

_HEAD = Struct("<IHH")
_NUMBER = Struct("<I")


def numbered(start: int, count: int, size_bytes: int, sender: int, turn: int) -> list[bytes]:
    """Return ``count`` messages of the size, with numbers from ``start`` on."""
    pack, rest = _NUMBER.pack, _HEAD.pack(0, sender, turn)[4:] + filling(size_bytes - HEAD_BYTES)
    return [pack(number) + rest for number in range(start, start + count)]


@cache
def filling(size_bytes: int) -> bytes:
    """Return the filling of messages: noise, so that compression gives no library an advantage."""
    return Random(1).randbytes(size_bytes)


def greeting(sender: int) -> bytes:
    """Return the greeting that a member repeats until received by all others."""
    return _HEAD.pack(0, sender, GREETING)


class Tally:
    """The messages of each sender at a receiver in a round."""

    def __init__(self, members: int, *, joins_late: bool = False) -> None:
        self.count = self.late = self.duplicated = self.out_of_order = 0
        self.first_ns = 0
        self.greeted: set[int] = set()
        self.slow_per_s = 0.0
        self._joins_late = joins_late
        self._size_bytes = HEAD_BYTES
        self._turn = -1
        self._next = [0] * members
        self._missing: list[set[int]] = [set() for _ in range(members)]
        self._special = True
        self._unseen: set[int] = set()

    def begin(self, turn: int, size_bytes: int, slow_per_s: float = 0.0) -> None:
        """Begin a round, and forget the previous round."""
        members = len(self._next)
        self.count = self.late = self.duplicated = self.out_of_order = 0
        self._size_bytes, self._turn, self.slow_per_s = size_bytes, turn, slow_per_s
        self._next = [0] * members
        self._missing = [set() for _ in range(members)]
        self._unseen = set(range(members)) if self._joins_late else set()
        self.first_ns = 0
        self._special = True

    def take(self, message: bytes | memoryview) -> None:
        """Count a message."""
        number, sender, turn = _HEAD.unpack_from(message)
        if turn != self._turn or sender in self._unseen:
            self._unusual(number, sender, turn)
            if turn != self._turn:
                return
        if number == self._next[sender]:
            self._next[sender] = number + 1
        else:
            self._look_closely(sender, (number,))
        self.count += 1
        if self._special:
            self._attend(1)

    def take_run(self, sender: int, messages: bytes | memoryview) -> None:
        """Count messages of a sender, end to end."""
        number, _, turn = _HEAD.unpack_from(messages)
        if turn != self._turn or sender in self._unseen:
            self._unusual(number, sender, turn)
            if turn != self._turn:
                return
        found = self._numbers(messages)
        after = self._next[sender] + len(found)
        if found == list(range(self._next[sender], after)):
            self._next[sender] = after
        else:
            self._look_closely(sender, found)
        self.count += len(found)
        if self._special:
            self._attend(len(found))

    def _numbers(self, messages: bytes | memoryview) -> list[int]:
        if self._size_bytes % 4 == 0:
            return memoryview(messages).cast("I")[:: self._size_bytes // 4].tolist()
        layout = Struct(f"<I{self._size_bytes - 4}x")
        return [number for (number,) in layout.iter_unpack(messages)]

    def _unusual(self, number: int, sender: int, turn: int) -> None:
        if turn == GREETING:
            self.greeted.add(sender)
        elif turn != self._turn:
            self.late += 1
        else:  # one that joins late begins wherever the sender is
            self._unseen.discard(sender)
            self._next[sender] = number

    def _attend(self, count: int) -> None:
        """Handle the special cases: record the first message, receive slowly."""
        if not self.first_ns:
            self.first_ns = time.monotonic_ns()
        if self.slow_per_s:
            time.sleep(count / self.slow_per_s)
        else:
            self._special = False

    def _look_closely(self, sender: int, found: Sequence[int]) -> None:
        missing = self._missing[sender]
        for number in found:
            if number >= self._next[sender]:
                missing.update(range(self._next[sender], number))
                self._next[sender] = number + 1
            elif number in missing:
                missing.remove(number)
                self.out_of_order += 1
            else:
                self.duplicated += 1

    def lost(self, sent: Sequence[int], senders: Sequence[int]) -> int:
        """Return the number of missing messages of the senders."""
        return sum(
            len(self._missing[at]) + max(0, sent[at] - self._next[at])
            for at in senders
            if at not in self._unseen
        )
