"""Acknowledgements: the progress of every receiver of an own stream, and when to ack others.

On reception of an ack from P: the entry of P rises, never falls (N4-23). An ack from a non-member
is ignored (N4-27). When the minimum over all entries rises, messages up to the minimum may be
purged (N4-24).

On a view: entries of departed members are removed (N4-29). New members enter at the seqno where
they start, so a joiner does not hold the minimum back (I-21). The minimum falls only when a durable
member returns behind it; durable_retention.py kept the missing messages.

On delivery: the receiver owes an ack, and the profile decides when the ack is due. ``counted``: at
once after ``ack_threshold`` messages or a share of the receive buffer, else ``ack_delay`` later.
``paced``: at once unless the last ack is younger than ``min_ack_interval``. ``each``: at once.
``periodic``: after ``stability_interval``. ``asked``: only if the message asks for an ack.

On reception of a duplicate or an announcement: an ack is owed too, because the last ack may have
been lost (P-04).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.profiles import AckPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address

# Looked up once: every delivery compares them, and a member of an enum costs more than a global.
_ASKED, _EACH = AckPolicy.ASKED, AckPolicy.EACH
_PACED, _PERIODIC = AckPolicy.PACED, AckPolicy.PERIODIC


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

    def on_ack(self, member: Address, seqno: int) -> bool:
        """Record that ``member`` delivered up to ``seqno``; return whether the minimum rose."""
        before = self._acks.get(member)
        # A stranger (N4-27), or an ack that was overtaken by a later one (N4-23).
        if before is None or seqno <= before:
            return False
        self._acks[member] = seqno
        return before <= self.minimum and self._raise_minimum()

    def set_members(self, members: Iterable[Address], start: int) -> bool:
        """Keep exactly ``members``, new members at ``start``; return whether the minimum rose."""
        assert start >= 0, "a receiver starts at a seqno"
        self._acks = {member: self._acks.get(member, start) for member in members}
        return self._raise_minimum()

    def restore_member(self, member: Address, seqno: int) -> None:
        """Restart ``member`` behind its retained ``seqno``; the minimum may fall."""
        assert member in self._acks, "only a member of the view returns"
        assert seqno >= 0, "a member returns behind a seqno"
        self._acks[member] = seqno
        self.minimum = min(self.minimum, seqno)

    def _raise_minimum(self) -> bool:
        """Recompute the minimum, which never falls here (N4-30); return whether it rose."""
        minimum = min(self._acks.values(), default=self.minimum)
        if minimum <= self.minimum:
            return False
        self.minimum = minimum
        return True

    def lagging(self, seqno: int) -> list[Address]:
        """Return the members without an ack of ``seqno``."""
        return [member for member, ack in self._acks.items() if ack < seqno]

    def check_invariants(self) -> None:
        """Raise AssertionError if the minimum is not the minimum of the entries."""
        lowest = min(self._acks.values(), default=self.minimum)
        assert self.minimum >= 0, f"the minimum is {self.minimum}, below every seqno"
        assert self.minimum == lowest, f"the minimum is {self.minimum}, the lowest ack {lowest}"

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        return (self.minimum, *self._acks.items())

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Restore the state of ``snapshot``."""
        self.minimum, *entries = snapshot  # type: ignore[assignment]
        self._acks = dict(entries)  # type: ignore[arg-type]


class AckScheduler:
    """The ack owed to an origin, and the time by which the profile requires the ack."""

    __slots__ = (
        "_config",
        "_messages",
        "_policy",
        "_size_bytes",
        "due_ns",
        "last_sent_ns",
        "pending",
        "threshold",
    )

    def __init__(self, config: Config, policy: AckPolicy) -> None:
        self.threshold = config.effective_ack_threshold
        self.pending = False
        self.last_sent_ns: int | None = None
        self.due_ns = 0
        self._config = config
        self._policy = policy
        self._messages = 0
        self._size_bytes = 0

    def on_delivery(
        self, messages: int, size_bytes: int, threshold_bytes: int, now_ns: int, asked: bool
    ) -> bool:
        """Record a delivery; return whether the ack is due at once."""
        assert messages > 0, "a delivery holds messages"
        if self._policy is _ASKED:
            self.pending = self.pending or asked
            return asked
        self._messages += messages
        self._size_bytes += size_bytes
        self.pending = True
        # One ack for many messages (N4-20), but never so late that the sender's window fills.
        if asked or self._messages >= self.threshold or self._size_bytes >= threshold_bytes:
            return True
        return self._policy is _EACH or (self._policy is _PACED and self._next_ns(now_ns) <= now_ns)

    def on_duplicate(self, asked: bool) -> None:
        """Record a duplicate: the last ack may have been lost, so an ack is owed again (P-04)."""
        self.pending = self.pending or asked or self._policy is not _ASKED

    def schedule_ns(self, now_ns: int, rng: Random) -> int:
        """Return when an owed ack is sent, unless a delivery makes the ack due earlier."""
        assert self.pending, "only an ack that is owed has a time"
        config = self._config
        if self._policy in (_PACED, _EACH):
            self.due_ns = self._next_ns(now_ns) if self._policy is _PACED else now_ns
            return self.due_ns
        delay_ns = (
            config.stability_interval_ns if self._policy is _PERIODIC else config.ack_delay_ns
        )
        # Jitter spreads the acks of many receivers over the delay; the ack is never later than it.
        jitter = config.jitter_percent
        self.due_ns = now_ns + (
            delay_ns - int(delay_ns * rng.random() * jitter / 100) if jitter else delay_ns
        )
        assert self.due_ns >= now_ns, "an ack is scheduled ahead"
        return self.due_ns

    def held_until_ns(self, now_ns: int) -> int | None:
        """Return until when a paced or periodic ack waits while other acks are sent.

        None if not.
        """
        return self.due_ns if self._policy in (_PACED, _PERIODIC) and self.due_ns > now_ns else None

    def _next_ns(self, now_ns: int) -> int:
        """Return the earliest time of the next ack: ``min_ack_interval`` after the last."""
        return (
            now_ns
            if self.last_sent_ns is None
            else max(now_ns, self.last_sent_ns + self._config.min_ack_interval_ns)
        )

    def on_ack_sent(self, now_ns: int) -> None:
        """Record that the ack was sent: no ack is owed any more."""
        self.last_sent_ns = now_ns
        self.pending = False
        self._messages = self._size_bytes = 0
        assert not self.pending, "an ack that was sent is not owed"

    def check_invariants(self) -> None:
        """Raise AssertionError if deliveries are counted although no ack is pending."""
        assert self._messages >= 0, f"{self._messages} messages wait for an ack"
        assert self._size_bytes >= 0, f"{self._size_bytes} bytes wait for an ack"
        assert self.pending or not (self._messages or self._size_bytes), (
            "messages wait for an ack that is not pending"
        )

    def snapshot(self) -> tuple[bool, int, int]:
        """Return the state without times."""
        return (self.pending, self._messages, self._size_bytes)

    def restore(self, snapshot: tuple[bool, int, int]) -> None:
        """Restore the state of ``snapshot``."""
        self.pending, self._messages, self._size_bytes = snapshot
        self.last_sent_ns = None
        self.due_ns = 0
