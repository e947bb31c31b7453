"""The checks of a group that makes its own views: S20 to S22 and L6, in the words of docs/invariants.md.

The bound of L6 is a number, fixed once. With H, S, V, F, J, T, G, M, L the knobs
``heartbeat_interval``, ``suspect_after``, ``verify_timeout``, ``found_after``, ``join_interval``,
``join_timeout``, ``view_bundle_delay``, ``merge_interval`` and ``leave_timeout`` on the slowest clock, and D
the delay of a perfect network:

* B3 = 2 L + 3 (S + H + 2 V) + 8 F + 4 M + 4 (T + G + 8 J + 4 D): who leaves has gone; of those that
  are dead some watch others, so they are noticed in turns; who was expelled or is alone finds the
  group again, waiting for one that it has heard of; the parts of the group find each other and
  merge; each time a view is made, told, and told again.
* Where a place is kept, ``retention_timeout`` and one view more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.protocol.events import Expelled, Lost, Oversized, StateReceived, Suspected
from gapless.sim.checkers.liveness import SLOW_CLOCK_PERCENT
from gapless.sim.oracle.checker import InvariantChecker
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Alive, Beacon, Leave

if TYPE_CHECKING:
    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Delivery
    from gapless.sim.oracle.model import InboundModel, MemberModel
    from gapless.sim.oracle.oracle import Oracle
    from gapless.wire import Frame
    from gapless.wire.frames import Ack


def group_bound_ns(config: Config, delay_ns: int, *, durable: bool) -> int:
    """Return B3 for a network that delivers everything after ``delay_ns``."""
    view_ns = (
        config.join_timeout_ns
        + config.view_bundle_delay_ns
        + 8 * config.join_interval_ns
        + 4 * delay_ns
    )
    notice_ns = (
        config.suspect_after_ns + config.heartbeat_interval_ns + 2 * config.verify_timeout_ns
    )
    bound_ns = 2 * config.leave_timeout_ns + 3 * notice_ns + 8 * config.found_after_ns
    bound_ns += 4 * config.merge_interval_ns + 4 * view_ns
    if durable:
        bound_ns += config.retention_timeout_ns + view_ns
    return bound_ns * SLOW_CLOCK_PERCENT // 100


class GracefulLeaveChecker(InvariantChecker):
    """Leaving: who leaves asks for it only when everybody has everything that it sent, or its patience is over."""

    id = "S20"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._asked: set[Address] = set()

    def control_frame_out(self, life: MemberModel, to: Address | None, frame: Frame) -> None:
        """Look at the first question of one that leaves."""
        if (
            not isinstance(frame, Leave)
            or frame.origin in self._asked
            or frame.origin != life.address
        ):
            return
        if not self.oracle.membership:
            return  # where views are told nobody asks
        self._asked.add(frame.origin)
        if life.leaving_ns is None:
            self.fail(f"{life.name} leaves, but nobody asked it to")
            return
        if (
            self.oracle.t_ns - life.leaving_ns
            >= self.config.leave_timeout_ns * 100 // SLOW_CLOCK_PERCENT
        ):
            return
        if life.stream.queue:
            self.fail(
                f"{life.name} leaves, but {len(life.stream.queue)} messages still wait for room"
            )
        for member in life.view_members - {life.address}:
            other = self.model.members[member]
            taken = other.has_delivered(life.address, life.epoch)
            if taken < life.stream.high and other.alive:
                self.fail(
                    f"{life.name} leaves at {life.stream.high}, but {other.name} has only {taken}"
                )


class FalseSuspicionChecker(InvariantChecker):
    """Patience: without a fault nobody is suspected; who stood still for less than ``suspect_after`` is not expelled.

    The world says through ``oracle.gentle`` whether a run has no fault but such pauses, through
    ``oracle.calm`` whether it has none at all.
    """

    id = "S21"

    def event(self, life: MemberModel, event: Event) -> None:
        """Look for suspicion and expulsion without a reason; who is about to leave may be left behind in silence."""
        if isinstance(event, Suspected) and self.oracle.fault_free and life.leaving_ns is None:
            suspect = self.model.members.get(event.member)
            if suspect is not None and suspect.alive:
                self.fail(f"{life.name} suspects {suspect.name}, which lives, and nothing is wrong")
        elif isinstance(event, Expelled) and self.oracle.only_short_pauses:
            self.fail(
                f"{life.name} was expelled in view {event.view.number}, but has done nothing wrong"
            )


class StateTransferChecker(InvariantChecker):
    """State: what a new member is given is what somebody gave; nothing is handed out before it, or left out after it.

    That what follows the state is everything that is not in it, once, are S2 and S3: the model goes
    on where the giver was.
    """

    id = "S22"

    def delivered(self, life: MemberModel, heard: InboundModel | None, delivery: Delivery) -> None:
        """Who waits for the state is handed nothing."""
        if life.transferring:
            self.fail(
                f"{life.name} delivers {delivery.first} of {delivery.origin} before it has the state"
            )

    def event(self, life: MemberModel, event: Event) -> None:
        """Compare a state with those that were given."""
        if not isinstance(event, StateReceived):
            return
        if event.provider is not None and event.state not in self.oracle.states:
            self.fail(f"{life.name} gets a state of {len(event.state)} bytes that nobody gave")
        elif event.provider is None and event.state:
            self.fail(f"{life.name} gets a state of {len(event.state)} bytes from nobody")
        elif event.provider is None and self.oracle.fault_free:
            others = (self.model.members[member] for member in life.view_members - {life.address})
            if any(other.alive and not other.transferring for other in others):
                self.fail(f"{life.name} gets no state, though others have one")


class StoredBeforeAckChecker(InvariantChecker):
    """Storing: who stores what it gets acknowledges nothing that is not on its disk, and its disk gets no silent hole.

    An ack may go beyond the disk within a message in pieces that is not whole, and up to where a
    stream began.
    """

    id = "S23"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._stored_or_queued: dict[tuple[Address, Address], int] = {}

    def ack_out(self, life: MemberModel, to: Address | None, frame: Ack) -> None:
        """What is acknowledged is on the disk."""
        heard = life.inbound.get(frame.origin)
        if life.stored is None or heard is None or frame.epoch >= FIRST_CONNECTION_EPOCH:
            return
        stored = max(life.stored.get(frame.origin, 0), heard.start)
        if frame.seqno > stored and heard.stream.next_message_start(stored + 2) <= frame.seqno:
            self.fail(
                f"{life.name} acknowledges {frame.seqno} of {frame.origin}, {stored} is stored"
            )

    def event(self, life: MemberModel, event: Event) -> None:
        """What will never come is no hole."""
        if life.stored is not None and isinstance(event, (Lost, Oversized)):
            has = self._stored_or_queued_upto(life, event.origin)
            if has is not None and event.first <= has + 1:
                self._stored_or_queued[life.address, event.origin] = max(has, event.last)

    def delivered(self, life: MemberModel, heard: InboundModel | None, delivery: Delivery) -> None:
        """What is handed out follows what is on the disk, or in line for it."""
        origin = delivery.origin
        if life.stored is None or origin == life.address:
            return
        has = self._stored_or_queued_upto(life, origin)
        if has is not None and delivery.first > has + 1:
            self.fail(f"{life.name} delivers {delivery.first} of {origin}, it has {has}")
        self._stored_or_queued[life.address, origin] = max(has or 0, delivery.last)

    def _stored_or_queued_upto(self, life: MemberModel, origin: Address) -> int | None:
        """Return up to where a life has a stream; None if it has nothing of it."""
        return self._stored_or_queued.get((life.address, origin), life.resumed.get(origin))


class ConvergenceChecker(InvariantChecker):
    """One group: within B3 after the last fault there is one view of exactly those that live, at all of them."""

    id = "L6"

    def close(self) -> None:
        """Compare the time at which the group was one with the bound."""
        oracle = self.oracle
        if not oracle.membership:
            return
        if oracle.converged_ns is None:
            self.fail(f"there is no view of exactly those that live: {self._views()}")
        elif oracle.converged_ns - oracle.last_fault_ns > oracle.group_bound_ns:
            took_s, bound_s = (
                (oracle.converged_ns - oracle.last_fault_ns) / 1e9,
                oracle.group_bound_ns / 1e9,
            )
            self.fail(
                f"it took {took_s:.3f} s until there was one group again, {bound_s:.3f} s is the bound"
            )

    def _views(self) -> str:
        living = [life for life in self.model.members.values() if life.alive]
        views = {life.name: None if life.view is None else life.view.id.number for life in living}
        return ", ".join(f"{name} in {number}" for name, number in views.items())


class IdleHeartbeatChecker(InvariantChecker):
    """S16 for a group that makes its own views: at rest signs of life and beacons go out, as many as must, no more."""

    id = "S16"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.alive = 0
        self.beacons = 0

    def control_frame_out(self, life: MemberModel, to: Address | None, frame: Frame) -> None:
        """Count what may be said at rest, and report what may not."""
        if not self.oracle.resting or not self.oracle.membership:
            return
        if isinstance(frame, Alive):
            self.alive += 1
        elif isinstance(frame, Beacon):
            self.beacons += 1
        else:
            self.fail(f"{life.name} sends {frame} to {to} at rest")

    def close(self) -> None:
        """Compare the counts with what the intervals allow."""
        config, rested_ns = self.config, self.oracle.rested_ns * SLOW_CLOCK_PERCENT // 100
        members = sum(life.alive for life in self.model.members.values())
        most_alive = 2 * members * config.monitors * (2 + rested_ns // config.heartbeat_interval_ns)
        most_beacons = 2 + rested_ns // config.merge_interval_ns
        if self.alive > most_alive:
            self.fail(f"{self.alive} signs of life at rest, at most {most_alive} are due")
        if self.beacons > most_beacons:
            self.fail(f"{self.beacons} beacons at rest, at most {most_beacons} are due")


MEMBERSHIP_CHECKERS: tuple[type[InvariantChecker], ...] = (
    GracefulLeaveChecker,
    FalseSuspicionChecker,
    StateTransferChecker,
    StoredBeforeAckChecker,
    ConvergenceChecker,
    IdleHeartbeatChecker,
)
"""The checks of this file."""
