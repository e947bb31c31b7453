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
(``on_hold_full = release``) the places that are furthest behind are released at once. A place that
was released stays so until its member is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from gapless.errors import LocalProtocolError
from gapless.protocol.ready import Held, HoldFull, Released
from gapless.run import ACKED, BEGIN, END, PIECE

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from gapless.identity import Address, View
    from gapless.profiles import Profile
    from gapless.protocol.ready_builder import Context
    from gapless.protocol.stream.acks import AckTable
    from gapless.protocol.stream.send_queue import SendQueue
    from gapless.protocol.stream.window import Window


class Hold(NamedTuple):
    """A kept place: the member's last life, and what that had acknowledged."""

    last: Address
    acked: int


def check_places(
    view: View, kept: Mapping[str, Address], back: Mapping[Address, Address], row: Profile
) -> None:
    """Raise LocalProtocolError unless these places fit the view and the profile."""
    if kept and row.release != "acks":
        raise LocalProtocolError(
            f"profile {row.name} cannot keep places for {sorted(kept)}: it does not release by acks; "
            "use profile nakack4, or members without durable names"
        )
    for name, last in kept.items():
        if last in view.members:
            raise LocalProtocolError(
                f"{last} ({name!r}) is in view {view.id.number}: only who is away has a kept place"
            )
    for new, last in back.items():
        if new not in view.members:
            raise LocalProtocolError(
                f"{new} is not in view {view.id.number}: it cannot be back from {last}"
            )


class Holds:
    """The kept places of one sender, by name."""

    __slots__ = ("_full", "_given_up", "_let_go", "_places", "minimum")

    def __init__(self) -> None:
        self._places: dict[str, Hold] = {}
        self._let_go: dict[str, Address] = {}
        self._full: set[str] = set()
        self._given_up: list[Hold] = []
        self.minimum: int | None = None

    def __len__(self) -> int:
        return len(self._places)

    @property
    def places(self) -> Mapping[str, Hold]:
        """Every kept place by its name."""
        return self._places

    def install(
        self,
        members: Container[Address],
        kept: Mapping[str, Address],
        back: Mapping[Address, Address],
        acks: AckTable,
        window: Window,
        context: Context,
    ) -> dict[Address, int]:
        """Keep exactly the places ``kept``; return behind what those that are back go on.

        ``acks`` is the table as it was before the view.
        """
        before, held = dict(acks.items()), self._places
        returned: dict[Address, int] = {}
        for new, last in back.items():
            acked = None if new in before else self._known(last, before, members)
            if acked is not None:
                returned[new] = _whole(acked, window)
        # The same life, after a partition, goes on as well.
        returned.update((last, acked) for last, acked in held.values() if last in members)
        places: dict[str, Hold] = {}
        let_go: dict[str, Address] = {}
        for name, last in kept.items():
            if name in self._let_go and last not in before:
                let_go[name] = last
            elif name in held and last not in before:
                places[name] = Hold(last, held[name].acked)
            else:
                acked = self._known(last, before, members)
                places[name] = Hold(last, window.high if acked is None else _whole(acked, window))
        self._tell(places, back, members, context)
        self._places, self._let_go = places, let_go
        self._full.intersection_update(places)
        self._count()
        return returned

    def _known(
        self, last: Address, before: Mapping[Address, int], members: Container[Address]
    ) -> int | None:
        """Return what the life ``last`` had acknowledged; if it was never seen here, a former life of the same node."""
        known = {**dict(self._places.values()), **before}
        if last in known:
            return known[last]
        former = [life for life in known if life.node == last.node and life not in members]
        return known[max(former)] if former else None

    def _tell(
        self,
        places: Mapping[str, Hold],
        back: Mapping[Address, Address],
        members: Container[Address],
        context: Context,
    ) -> None:
        returned = {life.node for pair in back.items() for life in pair}
        for name, (last, acked) in self._places.items():
            if name not in places:
                is_back = last in members or last.node in returned
                if not is_back:
                    self._given_up.append(Hold(last, acked))
                context.event(Released(name, last, "back" if is_back else "timeout"))
        for name, (last, _) in places.items():
            if name not in self._places:
                context.event(Held(name, last))

    def relieve(self, minimum: int, context: Context, *, release: bool) -> bool:
        """Do something about a full window, all members being at ``minimum``; return whether places were released."""
        if self.minimum is None or self.minimum >= minimum:
            return False  # a member is as far behind
        furthest = [
            (name, hold.last) for name, hold in self._places.items() if hold.acked == self.minimum
        ]
        for name, last in furthest:
            if release:
                self._given_up.append(self._places.pop(name))
                self._let_go[name] = last
                context.event(Released(name, last, "capacity"))
            elif name not in self._full:
                self._full.add(name)
                context.event(HoldFull(name, last))
        self._count()
        return release

    def given_up(self) -> list[Hold]:
        """Return the places that were released, though their members are not back, since the last time."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def behind(self, seqno: int) -> list[Address]:
        """Return the last lives of those that are away and have not acknowledged ``seqno``."""
        return [last for last, acked in self._places.values() if acked < seqno]

    def _count(self) -> None:
        self.minimum = min((hold.acked for hold in self._places.values()), default=None)

    def check_invariants(self, low: int, high: int, here: AckTable) -> None:
        """Raise AssertionError if a place is kept beyond the window, or for somebody who is ``here``."""
        for name, (last, ack) in self.places.items():
            assert low <= ack <= high, f"what {name!r} needs is kept"
            assert last not in here, f"{name!r} is here, and its place is kept"

    def snapshot(self) -> tuple[object, ...]:
        """Return the whole state as a hashable value."""
        return (tuple(self._places.items()), tuple(self._let_go.items()), tuple(sorted(self._full)))

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says."""
        places, let_go, full = snapshot
        self._places = dict(cast("tuple[tuple[str, Hold], ...]", places))
        self._let_go = dict(cast("tuple[tuple[str, Address], ...]", let_go))
        self._full = set(cast("tuple[str, ...]", full))
        self._count()


def _whole(acked: int, window: Window) -> int:
    """Return ``acked``, or the beginning of the message in pieces that it lies in, as far as that is stored."""
    while acked > window.low:
        run = window.get(acked, acked)[
            0
        ]  # not the one behind it, which may have to wait for room first
        if not run.flags & PIECE or run.flags & END:
            break
        acked -= 1
    return max(acked, window.low)


def torn_send(acked: int, window: Window, queue: SendQueue, tracked: dict[int, int]) -> int | None:
    """Return the ticket of the acknowledged send that a new life, which goes on behind ``acked``, never gets whole.

    Its former life had acknowledged the first pieces of a large message, and they are gone. The
    send is not tracked any longer. ``tracked`` has the last seqno of each ticket.
    """
    rest = window.get(acked + 1, acked + 1)
    if rest and (not rest[0].flags & PIECE or rest[0].flags & BEGIN or not rest[0].flags & ACKED):
        return None
    ticket = min(
        (ticket for ticket, last in tracked.items() if last > acked),
        key=tracked.__getitem__,
        default=None,
    )
    if ticket is not None:
        del tracked[ticket]
        return ticket
    head = queue.under_way
    if head is None or head.given_up or not head.flags & ACKED:
        return None
    head.flags &= ~ACKED
    return head.ticket
