"""The checks of a group that makes its own views: S20 to S22 and L6.

The bound of L6 is a fixed number. With H, S, V, F, J, T, G, M, L the settings
``heartbeat_interval``, ``suspect_after``, ``verify_timeout``, ``found_after``, ``join_interval``,
``join_confirm_timeout``, ``view_bundle_delay``, ``merge_interval`` and ``leave_timeout`` on the
slowest clock, and D the delay of a perfect network:

* B3 = 2 L + 3 (S + H + 2 V) + 8 F + 4 M + 4 (T + G + 8 J + 4 D) + 4 S. Leaving members have left.
  The group notices crashed members in two turns at most, because members whose watchers crashed
  too are watched once these are silent; a coordinator that took over may need a third turn. An
  expelled or lone member finds the group again, after a wait for the last known group. The parts of
  the group find each other and merge. Each time the coordinator makes a view, sends the view, and
  sends it again.
  The last term: a member behind a broken link is not admitted again for so long.
* With absent durable members: ``retention_timeout`` and another view.
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
    """Return B3 for a network with a fixed delay of ``delay_ns`` and no loss."""
    view_ns = (
        config.join_confirm_timeout_ns
        + config.view_bundle_delay_ns
        + 8 * config.join_interval_ns
        + 4 * delay_ns
    )
    notice_ns = (
        config.suspect_after_ns + config.heartbeat_interval_ns + 2 * config.verify_timeout_ns
    )
    bound_ns = 2 * config.leave_timeout_ns + 3 * notice_ns + 8 * config.found_after_ns
    bound_ns += 4 * config.merge_interval_ns + 4 * view_ns
    bound_ns += 4 * config.suspect_after_ns
    if durable:
        bound_ns += config.retention_timeout_ns + view_ns
    return bound_ns * SLOW_CLOCK_PERCENT // 100


class GracefulLeaveChecker(InvariantChecker):
    """Leaving: a leave is requested once all have everything, or after ``leave_timeout``."""

    id = "S20"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._asked: set[Address] = set()

    def control_frame_out(self, model: MemberModel, to: Address | None, frame: Frame) -> None:
        """Check the first leave request of a member."""
        if (
            not isinstance(frame, Leave)
            or frame.origin in self._asked
            or frame.origin != model.address
        ):
            return
        if not self.oracle.membership:
            return  # scripted views have no leave requests
        self._asked.add(frame.origin)
        if model.leaving_ns is None:
            self.fail(f"{model.name} leaves without a request")
            return
        if (
            self.oracle.t_ns - model.leaving_ns
            >= self.config.leave_timeout_ns * 100 // SLOW_CLOCK_PERCENT
        ):
            return
        if model.stream.queue:
            self.fail(
                f"{model.name} leaves, but {len(model.stream.queue)} messages still wait for room"
            )
        for member in model.view_members - {model.address}:
            other = self.model.members[member]
            # The stream starts for a joiner behind what was sent before.
            taken = max(
                other.has_delivered(model.address, model.epoch),
                model.stream.starts.get(member, 0),
            )
            if taken < model.stream.high and other.alive:
                self.fail(
                    f"{model.name} leaves at {model.stream.high}, but {other.name} has only {taken}"
                )


class FalseSuspicionChecker(InvariantChecker):
    """Patience: without faults there is no suspicion, and only a long pause leads to expulsion.

    ``oracle.long_paused`` has the nodes with a long pause, in a run with no other fault than
    pauses; ``oracle.fault_free`` marks a run without faults.
    """

    id = "S21"

    def event(self, model: MemberModel, event: Event) -> None:
        """Look for suspicion and expulsion without a reason; leaving members do not count."""
        if isinstance(event, Suspected) and self.oracle.fault_free and model.leaving_ns is None:
            suspect = self.model.members.get(event.member)
            if suspect is not None and suspect.alive:
                self.fail(
                    f"{model.name} suspects {suspect.name}, which is running, in a run "
                    "without faults"
                )
        elif (
            isinstance(event, Expelled)
            and self.oracle.long_paused is not None
            and model.name.rstrip("'") not in self.oracle.long_paused
        ):
            self.fail(f"{model.name} was expelled in view {event.view.number} without a reason")


class StateTransferChecker(InvariantChecker):
    """State: a joiner gets a provided state, before its first delivery, without a hole.

    S2 and S3 check that each message outside of the state is delivered once, after the state: the
    model resumes at the marks of the provider.
    """

    id = "S22"

    def delivered(
        self, model: MemberModel, inbound: InboundModel | None, delivery: Delivery
    ) -> None:
        """Check that nothing is delivered before the state."""
        if model.transferring:
            self.fail(
                f"{model.name} delivers {delivery.first} of {delivery.origin} before it has "
                "the state"
            )

    def event(self, model: MemberModel, event: Event) -> None:
        """Compare a received state with the provided states."""
        if not isinstance(event, StateReceived):
            return
        if event.provider is not None and event.state not in self.oracle.states:
            self.fail(
                f"{model.name} receives a state of {len(event.state)} bytes that no member provided"
            )
        elif event.provider is None and event.state:
            self.fail(
                f"{model.name} receives a state of {len(event.state)} bytes without a provider"
            )
        elif event.provider is None and self.oracle.fault_free:
            others = (self.model.members[member] for member in model.view_members - {model.address})
            if any(other.alive and not other.transferring for other in others):
                self.fail(f"{model.name} receives no state, although other members have one")


class StoredBeforeAckChecker(InvariantChecker):
    """Storing: an application with a disk acknowledges only stored messages, without a silent hole.

    An ack may pass the disk within an incomplete fragmented message, and up to the start of a
    stream.
    """

    id = "S23"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._stored_or_queued: dict[tuple[Address, Address], int] = {}

    def ack_out(self, model: MemberModel, to: Address | None, frame: Ack) -> None:
        """Check that acknowledged messages are on the disk."""
        inbound = model.inbound.get(frame.origin)
        if model.stored is None or inbound is None or frame.epoch >= FIRST_CONNECTION_EPOCH:
            return
        stored = max(model.stored.get(frame.origin, 0), inbound.start)
        if frame.seqno > stored and inbound.stream.next_message_start(stored + 2) <= frame.seqno:
            self.fail(
                f"{model.name} acknowledges {frame.seqno} of {frame.origin}, but "
                f"has stored {stored}"
            )

    def event(self, model: MemberModel, event: Event) -> None:
        """Note losses: a reported loss is not a hole."""
        if model.stored is not None and isinstance(event, (Lost, Oversized)):
            has = self._stored_or_queued_upto(model, event.origin)
            if has is not None and event.first <= has + 1:
                self._stored_or_queued[model.address, event.origin] = max(has, event.last)

    def delivered(
        self, model: MemberModel, inbound: InboundModel | None, delivery: Delivery
    ) -> None:
        """Check that a delivery follows the last stored or queued message."""
        origin = delivery.origin
        if model.stored is None or origin == model.address:
            return
        has = self._stored_or_queued_upto(model, origin)
        if has is not None and delivery.first > has + 1:
            self.fail(f"{model.name} delivers {delivery.first} of {origin}, but has {has}")
        self._stored_or_queued[model.address, origin] = max(has or 0, delivery.last)

    def _stored_or_queued_upto(self, model: MemberModel, origin: Address) -> int | None:
        """Return how far an incarnation has a stream; None without any message of the stream."""
        return self._stored_or_queued.get((model.address, origin), model.resumed.get(origin))


class ConvergenceChecker(InvariantChecker):
    """Convergence: within B3 after the last fault, all running members share a single view."""

    id = "L6"

    def close(self) -> None:
        """Compare the time of convergence with the bound."""
        oracle = self.oracle
        if not oracle.membership:
            return
        if oracle.converged_ns is None:
            self.fail(f"no view has exactly the running members: {self._views()}")
        elif oracle.converged_ns - oracle.last_fault_ns > oracle.group_bound_ns:
            took_s, bound_s = (
                (oracle.converged_ns - oracle.last_fault_ns) / 1e9,
                oracle.group_bound_ns / 1e9,
            )
            self.fail(f"the group converged after {took_s:.3f} s; the bound is {bound_s:.3f} s")

    def _views(self) -> str:
        living = [model for model in self.model.members.values() if model.alive]
        views = {
            model.name: None if model.view is None else model.view.id.number for model in living
        }
        return ", ".join(f"{name} in {number}" for name, number in views.items())


class IdleHeartbeatChecker(InvariantChecker):
    """S16 for a group with its own views: at rest members send only due heartbeats and beacons."""

    id = "S16"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.alive = 0
        self.questions = 0
        self.beacons = 0

    def control_frame_out(self, model: MemberModel, to: Address | None, frame: Frame) -> None:
        """Count the frames allowed at rest, and report all others."""
        if not self.oracle.resting or not self.oracle.membership:
            return
        if isinstance(frame, Alive):
            self.alive += 1
            self.questions += frame.reply_wanted
        elif isinstance(frame, Beacon):
            self.beacons += 1
        else:
            self.fail(f"{model.name} sends {frame} to {to} at rest")

    def close(self) -> None:
        """Compare the counts with the limits set by the intervals."""
        config, rested_ns = self.config, self.oracle.rested_ns * SLOW_CLOCK_PERCENT // 100
        members = sum(model.alive for model in self.model.members.values())
        most_alive = 2 * members * config.monitors * (2 + rested_ns // config.heartbeat_interval_ns)
        # A member whose heartbeats are in time is not asked; one may have been late before.
        most_questions = members * config.monitors
        most_beacons = 2 + rested_ns // config.merge_interval_ns
        if self.alive > most_alive:
            self.fail(f"{self.alive} heartbeats at rest; the maximum is {most_alive}")
        if self.questions > most_questions:
            self.fail(
                f"{self.questions} overdue heartbeats at rest; the maximum is {most_questions}"
            )
        if self.beacons > most_beacons:
            self.fail(f"{self.beacons} beacons at rest; the maximum is {most_beacons}")


MEMBERSHIP_CHECKERS: tuple[type[InvariantChecker], ...] = (
    GracefulLeaveChecker,
    FalseSuspicionChecker,
    StateTransferChecker,
    StoredBeforeAckChecker,
    ConvergenceChecker,
    IdleHeartbeatChecker,
)
"""The checks of this file."""
