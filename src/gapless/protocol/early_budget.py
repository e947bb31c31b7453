"""The budget of early bytes: everything that peers send before this member can use it.

On reception: bytes are early while a view, a part of a roster or the start of a stream is missing.
Every other member of the view has a budget of ``early_bytes``, and all strangers together have one
more. What exceeds the budget of its sender is dropped and counted.

On a view: a departed member becomes a stranger, and early bytes of strangers beyond their budget
are dropped. So the early bytes of a member are at most ``early_bytes`` times the number of members
of its view, itself included (S14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address

ITEM_BYTES = 512
"""What a kept item costs beside its bytes: the objects that hold it."""


class EarlyBudget:
    """The early bytes of each peer."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[Address, int] = {}
        self._members: frozenset[Address] = frozenset()
        self._strangers_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """All early bytes, with the cost of each item."""
        return sum(self._kept.values())

    @property
    def limit_bytes(self) -> int:
        """The closed formula: a budget for every other member, and one for all strangers."""
        return self._limit_bytes * max(1, len(self._members))

    @property
    def is_exceeded(self) -> bool:
        """Whether strangers keep more than their budget, as departed members may."""
        return self._strangers_bytes > self._limit_bytes

    def kept_of(self, peer: Address) -> int:
        """Return the early bytes of one peer, with the cost of each item."""
        return self._kept.get(peer, 0)

    def is_member(self, peer: Address) -> bool:
        """Return whether ``peer`` has a budget of its own."""
        return peer in self._members

    def reserve(self, peer: Address, size_bytes: int) -> bool:
        """Count one more item of ``peer``; return False, without counting it, beyond the budget."""
        cost_bytes = size_bytes + ITEM_BYTES
        taken_bytes = self._kept.get(peer, 0) if peer in self._members else self._strangers_bytes
        if taken_bytes + cost_bytes > self._limit_bytes:
            return False
        self.charge(peer, size_bytes)
        return True

    def charge(self, peer: Address, size_bytes: int) -> None:
        """Count an item of ``peer`` that is kept already, whatever the budget."""
        cost_bytes = size_bytes + ITEM_BYTES
        self._kept[peer] = self._kept.get(peer, 0) + cost_bytes
        if peer not in self._members:
            self._strangers_bytes += cost_bytes

    def release(self, peer: Address, size_bytes: int) -> None:
        """Forget an item of ``peer``, which was used or dropped."""
        cost_bytes = size_bytes + ITEM_BYTES
        left_bytes = self._kept.pop(peer) - cost_bytes
        assert left_bytes >= 0, f"{peer} kept less than is released"
        if left_bytes:
            self._kept[peer] = left_bytes
        if peer not in self._members:
            self._strangers_bytes -= cost_bytes

    def install(self, members: Iterable[Address]) -> None:
        """Give each of ``members`` a budget of its own; all other peers share one."""
        self._members = frozenset(members)
        self._strangers_bytes = sum(
            kept for peer, kept in self._kept.items() if peer not in self._members
        )

    def clear(self) -> None:
        """Forget all items; their holders charge them again."""
        self._kept = {}
        self._strangers_bytes = 0

    def check_invariants(self) -> None:
        """Raise AssertionError if the counts disagree, or a budget is exceeded."""
        strangers = {peer: kept for peer, kept in self._kept.items() if peer not in self._members}
        assert self._strangers_bytes == sum(strangers.values()), "bytes of strangers add up"
        assert all(kept > 0 for kept in self._kept.values()), "a peer without items has no entry"
        assert self.kept_bytes <= self.limit_bytes, (
            f"{self.kept_bytes} early bytes are kept, at most {self.limit_bytes} are allowed"
        )
