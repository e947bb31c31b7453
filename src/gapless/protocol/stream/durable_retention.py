"""Retention for absent durable members: a sender keeps messages until the members return.

On a view that lists a durable member as absent: the sender retains every message without an ack
from the member's last incarnation, and purges none of them. If the sender has never seen the last
incarnation, retention begins with the next message. Acknowledged sends wait for the position as
well. No frame is sent to an absent member, and a group without other work is at rest.

On a view with the member, in a new or in the same incarnation: the stream starts right behind the
retained position. A member that crashed in the middle of a fragmented message gets the whole
message again, if all fragments are still stored; otherwise the acknowledged send of the message is
reported as Unacknowledged.

On a view that no longer lists the member as absent: the position is released, and messages retained
for this member alone are purged.

Acknowledged sends that waited for a durable member whose retention expired are reported as
Unacknowledged.

On sending into a window full because of absent members alone: the sender reports RetentionBlocking
once, or, with ``on_retention_full = release``, releases the positions furthest behind. A released
position stays released until the member returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from gapless.errors import LocalProtocolError
from gapless.identity import Address, View
from gapless.profiles import ReleasePolicy
from gapless.protocol.events import Retained, RetentionBlocking, RetentionReleased
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from gapless.profiles import Profile
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.acks import AckTable
    from gapless.protocol.stream.send_queue import SendQueue
    from gapless.protocol.stream.window import Window


class RetainedPosition(NamedTuple):
    """A retained position: the member's last incarnation and its highest acknowledged seqno."""

    last_address: Address
    acked: int


def check_retention(
    view: View,
    absent: Mapping[str, Address],
    returning: Mapping[Address, Address],
    profile: Profile,
) -> None:
    """Raise LocalProtocolError unless absent and returning members fit the view and the profile."""
    if absent and profile.release is not ReleasePolicy.ACKS:
        raise LocalProtocolError(
            f"profile {profile.name} cannot retain messages for {sorted(absent)}: the"
            " profile does not release by acks; use nakack4, or members without durable names"
        )
    for name, last in absent.items():
        if last in view.members:
            raise LocalProtocolError(
                f"{name} ({last}) is in view {view.id.number} and cannot be absent as well"
            )
    for new, last in returning.items():
        if new not in view.members:
            raise LocalProtocolError(
                f"{new} is not in view {view.id.number} and cannot continue {last}"
            )


class DurableRetention:
    """The retained positions of a sender, by durable name."""

    __slots__ = ("_expired", "_released", "_reported_full", "minimum", "retained")

    def __init__(self) -> None:
        self.retained: dict[str, RetainedPosition] = {}
        """The position of every absent durable member, by its name."""
        self._released: dict[str, Address] = {}
        self._reported_full: set[str] = set()
        self._expired: list[RetainedPosition] = []
        self.minimum: int | None = None

    def __len__(self) -> int:
        return len(self.retained)

    def install(
        self,
        members: Container[Address],
        absent: Mapping[str, Address],
        returning: Mapping[Address, Address],
        acks: AckTable,
        window: Window,
        out: ReadyBuilder,
    ) -> dict[Address, int]:
        """Retain exactly the ``absent`` members; return where each ``returning`` member resumes.

        ``acks`` is the ack table before the view. ``returning`` maps each new address to the
        address of the last incarnation.
        """
        before, held = dict(acks.items()), self.retained
        # After a partition the same incarnation returns and resumes, too.
        returned = {last: acked for last, acked in held.values() if last in members}
        for new, last in returning.items():
            # A member that was in the last view has its own entry in the ack table.
            acked = None if new in before else self._known_ack(last, before, members)
            if acked is not None:
                # Retention may have begun within a fragmented message: the member gets all of it.
                returned[new] = _message_boundary(acked, window)
        positions: dict[str, RetainedPosition] = {}
        released: dict[str, Address] = {}
        for name, last in absent.items():
            # A position that was released because the window was full stays released.
            if name in self._released and last not in before:
                released[name] = last
            # Still absent: the position stays, because an absent member acknowledges nothing.
            elif name in held and last not in before:
                positions[name] = RetainedPosition(last, held[name].acked)
            else:
                # The member left with this view: retain from its last ack, or from here if it never
                # sent one.
                acked = self._known_ack(last, before, members)
                positions[name] = RetainedPosition(
                    last, window.high if acked is None else _message_boundary(acked, window)
                )
        self._emit_changes(positions, returning, members, out)
        self.retained, self._released = positions, released
        self._reported_full.intersection_update(positions)
        self._update_minimum()
        assert all(window.low <= acked <= window.high for acked in returned.values()), (
            "a member resumes within the window"
        )
        return returned

    def _known_ack(
        self, last: Address, before: Mapping[Address, int], members: Container[Address]
    ) -> int | None:
        """Return the highest ack of ``last``, or of a former incarnation of the same node."""
        known = {**dict(self.retained.values()), **before}
        if last in known:
            return known[last]
        # The sender joined after that incarnation had left: an older one is the best that it knows.
        former = [other for other in known if other.node == last.node and other not in members]
        return known[max(former)] if former else None

    def _emit_changes(
        self,
        positions: Mapping[str, RetainedPosition],
        back: Mapping[Address, Address],
        members: Container[Address],
        out: ReadyBuilder,
    ) -> None:
        """Emit Retained and RetentionReleased for the change to ``positions``."""
        returned = {address.node for pair in back.items() for address in pair}
        for name, (last, acked) in self.retained.items():
            if name not in positions:
                is_back = last in members or last.node in returned
                # Acknowledged sends that waited for this member will not be completed.
                if not is_back:
                    self._expired.append(RetainedPosition(last, acked))
                out.emit(RetentionReleased(name, last, "back" if is_back else "timeout"))
        for name, (last, _) in positions.items():
            if name not in self.retained:
                out.emit(Retained(name, last))

    def release_or_report(self, minimum: int, out: ReadyBuilder, *, release: bool) -> bool:
        """Release or report the positions that keep the window full.

        Return whether any was released.

        ``minimum`` is the lowest ack of all present members.
        """
        if self.minimum is None or self.minimum >= minimum:
            return False  # a present member blocks the window, too
        lowest = self.minimum
        furthest = [
            (name, position.last_address)
            for name, position in self.retained.items()
            if position.acked == lowest
        ]
        for name, last in furthest:
            if release:
                self._expired.append(self.retained.pop(name))
                self._released[name] = last
                out.emit(RetentionReleased(name, last, "capacity"))
            elif name not in self._reported_full:
                self._reported_full.add(name)
                out.emit(RetentionBlocking(name, last))
        self._update_minimum()
        assert not release or all(held.acked > lowest for held in self.retained.values()), (
            "the positions that were furthest behind are released"
        )
        return release

    def take_expired(self) -> list[RetainedPosition]:
        """Return, once, the released positions of members that have not returned."""
        expired, self._expired = self._expired, []
        return expired

    def lagging(self, seqno: int) -> list[Address]:
        """Return the last addresses of absent members without an ack of ``seqno``."""
        return [last for last, acked in self.retained.values() if acked < seqno]

    def _update_minimum(self) -> None:
        """Recompute the lowest retained position; None if no member is absent."""
        self.minimum = min((position.acked for position in self.retained.values()), default=None)

    def check_invariants(self, low: int, high: int, here: AckTable) -> None:
        """Raise AssertionError if a position lies outside the window, or the member is present."""
        for name, (last, acked) in self.retained.items():
            assert low <= acked <= high, f"messages that {name!r} needs were purged"
            assert last not in here, f"{name!r} is present, and its messages are retained"
        lowest = min((position.acked for position in self.retained.values()), default=None)
        assert self.minimum == lowest, f"the minimum is {self.minimum}, the lowest {lowest}"
        assert self._released.keys().isdisjoint(self.retained), "a released name is retained"
        assert self._reported_full <= self.retained.keys(), "a full window blames an absent name"

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        return (
            tuple(self.retained.items()),
            tuple(self._released.items()),
            tuple(sorted(self._reported_full)),
        )

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Restore the state of ``snapshot``."""
        positions, released, full = snapshot
        self.retained = dict(cast("tuple[tuple[str, RetainedPosition], ...]", positions))
        self._released = dict(cast("tuple[tuple[str, Address], ...]", released))
        self._reported_full = set(cast("tuple[str, ...]", full))
        self._update_minimum()


def _message_boundary(acked: int, window: Window) -> int:
    """Return ``acked``, or the start of the fragmented message around ``acked`` if stored."""
    assert acked <= window.high, "no ack is above the high mark (N4-28)"
    while acked > window.low:
        # The run at ``acked``, not the next one: the next may wait for room and not be stored yet.
        run = window.get(acked, acked)[0]
        # A message ends here. Otherwise go back to its start: a crashed member lost its fragments.
        if not run.flags & FRAGMENT or run.flags & LAST_FRAGMENT:
            break
        acked -= 1
    return max(acked, window.low)


def unrecoverable_send(
    acked: int, window: Window, queue: SendQueue, tracked: dict[int, int]
) -> int | None:
    """Return the ticket of an acknowledged send that a returning member can never get whole.

    The member's last incarnation acknowledged the first fragments of a large message, and these
    fragments are purged. The send is tracked no longer. ``tracked`` has the last seqno of each
    ticket; the member resumes behind ``acked``.
    """
    rest = window.get(acked + 1, acked + 1)
    if rest and (
        not rest[0].flags & FRAGMENT or rest[0].flags & FIRST_FRAGMENT or not rest[0].flags & ACKED
    ):
        return None
    ticket = min(
        (ticket for ticket, last in tracked.items() if last > acked),
        key=tracked.__getitem__,
        default=None,
    )
    if ticket is not None:
        del tracked[ticket]
        return ticket
    head = queue.partially_sent
    if head is None or head.given_up or not head.flags & ACKED:
        return None
    head.flags &= ~ACKED
    return head.ticket
