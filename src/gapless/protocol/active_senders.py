"""How many members are sending: each of them has a share of the receive buffers (design rule 7).

On sending after a pause: others may start at the same moment, or may be using whole buffers. Until
every receiver has acknowledged something since, all members count as senders, twice.

On reception of data: its sender counts as sending for ``ACTIVE_SENDER_NS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gapless.identity import Address

ACTIVE_SENDER_NS = 500_000_000
"""How long a member counts as sending after its last data."""


class ActiveSenders:
    """The members that have sent data lately, and whether this member has just started to."""

    __slots__ = ("_last_send_ns", "_resumed_ns", "last_data_ns")

    def __init__(self) -> None:
        self.last_data_ns: dict[Address, int] = {}
        self._last_send_ns = -ACTIVE_SENDER_NS
        self._resumed_ns: int | None = None

    @property
    def count(self) -> int:
        """How many other members fill the receive buffer of this one; at least 1."""
        return len(self.last_data_ns) or 1

    def on_send(self, now_ns: int, *, wait: bool) -> None:
        """Note a send to the group; one that may not ``wait`` is not restrained after a pause."""
        if wait and now_ns - self._last_send_ns >= ACTIVE_SENDER_NS:
            self._resumed_ns = now_ns
        self._last_send_ns = now_ns

    def forget(self, member: Address) -> None:
        """Stop counting a member that has departed."""
        self.last_data_ns.pop(member, None)
        assert member not in self.last_data_ns

    def shares(
        self, now_ns: int, others: Collection[Address], acked_ns: Mapping[Address, int]
    ) -> int:
        """Return into how many shares the receivers' buffers are divided.

        ``acked_ns`` holds the time of the last ack of each of the ``others``.
        """
        self.last_data_ns = {
            member: at_ns
            for member, at_ns in self.last_data_ns.items()
            if now_ns - at_ns < ACTIVE_SENDER_NS
        }
        # No sender fills its own buffer: with n receivers at most n members share any of them.
        shares = max(1, min(1 + len(self.last_data_ns), len(others)))
        if self._resumed_ns is not None and len(others) > 1:
            if any(acked_ns.get(member, -1) < self._resumed_ns for member in others):
                shares = 2 * len(others)
            else:
                self._resumed_ns = None
        assert shares >= 1
        return shares

    def reset(self) -> None:
        """Forget who sends, as after a restore."""
        self.last_data_ns = {}
        self._resumed_ns = None

    def check_invariants(self, others: Collection[Address]) -> None:
        """Raise AssertionError if somebody outside the view counts as a sender."""
        assert self.last_data_ns.keys() <= set(others), "only members of the view send"
        assert self._resumed_ns is None or self._resumed_ns <= self._last_send_ns
