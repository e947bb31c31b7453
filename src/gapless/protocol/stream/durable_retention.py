"""Places that are kept for durable members while they are away.

On a view that lists a place as kept: the sender keeps what its last life has acknowledged (what the
sender has sent by now, if it knows nothing of that life), and nothing behind that is purged. Beside
this the place counts for nothing: no frame is sent to it, nobody waits for its acks, and a group
that has nothing else to do is at rest.

On a view that has the member back, in a new life or in the same: its stream starts right behind
what the place had acknowledged. Whoever died in the middle of a message in pieces gets all of it
again, if it is still here; if it is not, an acknowledged send of it is reported as not
acknowledged.

On a view that does not list the place any more: it is released, and what was kept for it alone is
purged.

Whoever waits for a place that is released though its member is not back is told that this wait was
in vain.

On sending into a window that is full because of such places alone: that is told once, or
(``on_retention_full = release``) the places that are furthest behind are released at once. A place that
was released stays so until its member is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from gapless.errors import LocalProtocolError
from gapless.protocol.events import Retained, RetentionBlocking, RetentionReleased
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from gapless.identity import Address, View
    from gapless.profiles import Profile
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.acks import AckTable
    from gapless.protocol.stream.send_queue import SendQueue
    from gapless.protocol.stream.window import Window


class RetainedPosition(NamedTuple):
    """A kept place: the member's last life, and what that had acknowledged."""

    last_address: Address
    acked: int


def check_retention(
    view: View,
    absent: Mapping[str, Address],
    returning: Mapping[Address, Address],
    profile: Profile,
) -> None:
    """Raise LocalProtocolError unless these places fit the view and the profile."""
    if absent and profile.release != "acks":
        raise LocalProtocolError(
            f"profile {profile.name} cannot keep places for {sorted(absent)}: it does not release by acks; "
            "use profile nakack4, or members without durable names"
        )
    for name, last in absent.items():
        if last in view.members:
            raise LocalProtocolError(
                f"{last} ({name!r}) is in view {view.id.number}: only who is away has a kept place"
            )
    for new, last in returning.items():
        if new not in view.members:
            raise LocalProtocolError(
                f"{new} is not in view {view.id.number}: it cannot be back from {last}"
            )


class DurableRetention:
    """The kept places of one sender, by name."""

    __slots__ = ("_expired", "_released", "_reported_full", "_retained", "minimum")

    def __init__(self) -> None:
        self._retained: dict[str, RetainedPosition] = {}
        self._released: dict[str, Address] = {}
        self._reported_full: set[str] = set()
        self._expired: list[RetainedPosition] = []
        self.minimum: int | None = None

    def __len__(self) -> int:
        return len(self._retained)

    @property
    def retained(self) -> Mapping[str, RetainedPosition]:
        """Every kept place by its name."""
        return self._retained

    def install(
        self,
        members: Container[Address],
        absent: Mapping[str, Address],
        returning: Mapping[Address, Address],
        acks: AckTable,
        window: Window,
        out: ReadyBuilder,
    ) -> dict[Address, int]:
        """Keep exactly the places ``absent``; return behind what those that are back go on.

        ``acks`` is the table as it was before the view.
        """
        before, held = dict(acks.items()), self._retained
        returned: dict[Address, int] = {}
        for new, last in returning.items():
            acked = None if new in before else self._known_ack(last, before, members)
            if acked is not None:
                returned[new] = _message_boundary(acked, window)
        # The same life, after a partition, goes on as well.
        returned.update((last, acked) for last, acked in held.values() if last in members)
        places: dict[str, RetainedPosition] = {}
        let_go: dict[str, Address] = {}
        for name, last in absent.items():
            if name in self._released and last not in before:
                let_go[name] = last
            elif name in held and last not in before:
                places[name] = RetainedPosition(last, held[name].acked)
            else:
                acked = self._known_ack(last, before, members)
                places[name] = RetainedPosition(
                    last, window.high if acked is None else _message_boundary(acked, window)
                )
        self._emit_changes(places, returning, members, out)
        self._retained, self._released = places, let_go
        self._reported_full.intersection_update(places)
        self._update_minimum()
        return returned

    def _known_ack(
        self, last: Address, before: Mapping[Address, int], members: Container[Address]
    ) -> int | None:
        """Return what the life ``last`` had acknowledged; if it was never seen here, a former life of the same node."""
        known = {**dict(self._retained.values()), **before}
        if last in known:
            return known[last]
        former = [life for life in known if life.node == last.node and life not in members]
        return known[max(former)] if former else None

    def _emit_changes(
        self,
        places: Mapping[str, RetainedPosition],
        back: Mapping[Address, Address],
        members: Container[Address],
        out: ReadyBuilder,
    ) -> None:
        returned = {life.node for pair in back.items() for life in pair}
        for name, (last, acked) in self._retained.items():
            if name not in places:
                is_back = last in members or last.node in returned
                if not is_back:
                    self._expired.append(RetainedPosition(last, acked))
                out.emit(RetentionReleased(name, last, "back" if is_back else "timeout"))
        for name, (last, _) in places.items():
            if name not in self._retained:
                out.emit(Retained(name, last))

    def release_or_report(self, minimum: int, out: ReadyBuilder, *, release: bool) -> bool:
        """Do something about a full window, all members being at ``minimum``; return whether places were released."""
        if self.minimum is None or self.minimum >= minimum:
            return False  # a member is as far behind
        furthest = [
            (name, hold.last_address)
            for name, hold in self._retained.items()
            if hold.acked == self.minimum
        ]
        for name, last in furthest:
            if release:
                self._expired.append(self._retained.pop(name))
                self._released[name] = last
                out.emit(RetentionReleased(name, last, "capacity"))
            elif name not in self._reported_full:
                self._reported_full.add(name)
                out.emit(RetentionBlocking(name, last))
        self._update_minimum()
        return release

    def take_expired(self) -> list[RetainedPosition]:
        """Return the places that were released, though their members are not back, since the last time."""
        given_up, self._expired = self._expired, []
        return given_up

    def lagging(self, seqno: int) -> list[Address]:
        """Return the last lives of those that are away and have not acknowledged ``seqno``."""
        return [last for last, acked in self._retained.values() if acked < seqno]

    def _update_minimum(self) -> None:
        self.minimum = min((hold.acked for hold in self._retained.values()), default=None)

    def check_invariants(self, low: int, high: int, here: AckTable) -> None:
        """Raise AssertionError if a position lies outside the window, or its member is present."""
        for name, (last, acked) in self._retained.items():
            assert low <= acked <= high, f"messages that {name!r} needs were purged"
            assert last not in here, f"{name!r} is present, and its messages are retained"
        lowest = min((position.acked for position in self._retained.values()), default=None)
        assert self.minimum == lowest, f"the minimum is {self.minimum}, the lowest {lowest}"
        assert self._released.keys().isdisjoint(self._retained), "a released name is retained"
        assert self._reported_full <= self._retained.keys(), "a full window blames an absent name"

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        return (
            tuple(self._retained.items()),
            tuple(self._released.items()),
            tuple(sorted(self._reported_full)),
        )

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says."""
        places, let_go, full = snapshot
        self._retained = dict(cast("tuple[tuple[str, RetainedPosition], ...]", places))
        self._released = dict(cast("tuple[tuple[str, Address], ...]", let_go))
        self._reported_full = set(cast("tuple[str, ...]", full))
        self._update_minimum()


def _message_boundary(acked: int, window: Window) -> int:
    """Return ``acked``, or the beginning of the message in pieces that it lies in, as far as that is stored."""
    while acked > window.low:
        run = window.get(acked, acked)[
            0
        ]  # not the one behind it, which may have to wait for room first
        if not run.flags & FRAGMENT or run.flags & LAST_FRAGMENT:
            break
        acked -= 1
    return max(acked, window.low)


def unrecoverable_send(
    acked: int, window: Window, queue: SendQueue, tracked: dict[int, int]
) -> int | None:
    """Return the ticket of the acknowledged send that a new life, which goes on behind ``acked``, never gets whole.

    Its former life had acknowledged the first pieces of a large message, and they are gone. The
    send is not tracked any longer. ``tracked`` has the last seqno of each ticket.
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
