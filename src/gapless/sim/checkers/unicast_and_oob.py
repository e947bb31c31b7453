"""The checks of connections, out-of-band, unreliable and acknowledged messages.

The guarantees have the same names: S1 to S4, S8 and S9 for every connection, S5 for out-of-band
messages. A connection is a stream of its own. Its first message has seqno 1, and from there on each
message is delivered once, in order and without a gap, regardless of the fate of either end.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from gapless.delivery_mode import DeliveryMode
from gapless.protocol.events import (
    Accepted,
    Acknowledged,
    Connected,
    GivenUp,
    Stalled,
    StateReceived,
    Unacknowledged,
    Undelivered,
)
from gapless.protocol.ready import OUT_OF_BAND, UNICAST
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT
from gapless.sim.oracle.checker import InvariantChecker
from gapless.sim.oracle.model import QueuedMessage, StreamModel
from gapless.wire import Ack, Close, Data, Nak, OutOfBand, Tail, Unreliable

if TYPE_CHECKING:
    from gapless.identity import Address, View
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Delivery
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.oracle.model_update import ApplicationSend
    from gapless.sim.oracle.oracle import Oracle
    from gapless.wire import Frame


class ConnectionModel:
    """A connection in a single direction: the sent messages, and the marks of the receiver."""

    __slots__ = ("delivered", "ended", "next", "stream", "to")

    def __init__(self, to: Address) -> None:
        self.to = to
        self.stream = StreamModel()
        self.next = 1
        self.delivered = 0
        self.ended = False


class UnicastChecker(InvariantChecker):
    """S1 to S4, S8 and S9 for every connection; L1, L3 and S16 for all connections at the end."""

    id = "S3"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.connections: dict[tuple[Address, int], ConnectionModel] = {}
        self.queues: dict[tuple[Address, Address], deque[QueuedMessage]] = {}
        self._own_sent: dict[tuple[Address, int], int] = {}

    def fail_as(self, name: str, message: str) -> None:
        """Report a violation of another invariant."""
        self.oracle.report(name, message)

    # Calls of the application

    def sent(self, model: MemberModel, send: ApplicationSend) -> None:
        """Record a send to a member; without loopback a message to the sender is dropped."""
        to = send.to
        if (
            to is None
            or send.refused
            or send.mode not in {DeliveryMode.ORDERED, DeliveryMode.ACKNOWLEDGED}
        ):
            return
        if to != model.address or not send.no_loopback:
            queue = self.queues.setdefault((model.address, to), deque())
            queue.extend(
                QueuedMessage(send.ticket, payload, send.no_loopback) for payload in send.payloads
            )
            self._own_sent[model.address, send.ticket] = len(send.payloads)

    def before_frames_event(self, model: MemberModel, event: Event) -> None:
        """Handle a send that was given up, or a connection that ends with unconfirmed messages."""
        if isinstance(event, GivenUp):
            for (sender, to), queue in self.queues.items():
                if sender == model.address and any(
                    waiting.ticket == event.ticket for waiting in queue
                ):
                    self._give_up(queue, event, sender, to)
        elif isinstance(event, Undelivered) and event.to is not None:
            for (sender, _), line in self.connections.items():
                if sender == model.address and line.to == event.to and not line.ended:
                    line.ended = line.stream.high == event.last
        elif (
            isinstance(event, Connected)
            and event.outgoing
            and event.state == "closed"
            and event.peer != model.address
        ):
            # All waiting sends were given up, except a half-sent message, which ends with its
            # connection.
            queue = self.queues.pop((model.address, event.peer), deque())
            if len(queue) > 1:
                self.fail_as(
                    "L1",
                    f"{model.name} ends its connection to {event.peer}, although "
                    f"{len(queue)} messages are pending",
                )

    def _give_up(
        self, queue: deque[QueuedMessage], event: GivenUp, sender: Address, to: Address
    ) -> None:
        """Remove the unaccepted messages of a send; a half-sent message stays."""
        line = next(
            (
                line
                for (who, _), line in reversed(self.connections.items())
                if who == sender and line.to == to
            ),
            None,
        )
        goes_on = (
            line is not None
            and line.stream.fragment_payloads
            and event.reason in {"cancel", "timeout"}
        )
        under_way = queue[0] if goes_on else None
        # What one sends to itself leaves the queue only when it is handed out; the part that was
        # accepted stays.
        stays: list[QueuedMessage] = []
        if to == sender and event.reason in {"cancel", "timeout"}:
            mine = [waiting for waiting in queue if waiting.ticket == event.ticket]
            handed = self._own_sent[sender, event.ticket] - len(mine)
            stays = mine[: max(0, event.accepted - handed)]
        remaining = [
            w
            for w in queue
            if w.ticket != event.ticket or w is under_way or any(w is one for one in stays)
        ]
        queue.clear()
        queue.extend(remaining)

    # Frames

    def non_stream_frame_out(self, model: MemberModel, to: Address | None, frame: Frame) -> None:
        """Compare outgoing data with the sends, and announcements with the model."""
        if isinstance(frame, Data):
            self._data_out(model, to, frame)
        elif isinstance(frame, Ack):
            self._ack_out(model, to, frame)
        elif isinstance(frame, Nak):
            self._nak_out(model, to, frame)
        elif (
            isinstance(frame, Close)
            and (line := self.connections.get((model.address, frame.epoch))) is not None
        ):
            if not line.ended and line.delivered < line.stream.high:
                self.fail_as(
                    "L1",
                    f"{model.name} closes its connection to {to} at {line.delivered} "
                    "without a report",
                )
            line.ended = True
        asks = isinstance(frame, Nak) and frame.ranges
        if self.oracle.resting and (asks or isinstance(frame, Data)):
            self.fail_as("L3", f"{model.name} sends {frame} to {to} at rest")
        elif self.oracle.resting and isinstance(frame, Tail):
            self.fail_as("S16", f"{model.name} sends {frame} to {to} at rest")

    def _data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        run = frame.run
        if to is None or run.origin != model.address:
            self.fail_as("S1", f"{run} of a connection goes to {to}")
            return
        line = self.connections.get((model.address, frame.epoch))
        if line is None:
            line = self.connections[model.address, frame.epoch] = ConnectionModel(to)
        if line.to != to:
            self.fail_as("S1", f"{run} of the connection to {line.to} goes to {to}")
        stream = line.stream
        if frame.repair:
            same = run.last <= stream.high and run.payload == stream.content(run.first, run.last)
            if not same:
                self.fail_as("S10", f"{run} is resent to {to} with other bytes than before")
            out = model.member.connections.outgoing.get(to)
            if (
                out is not None
                and out.stream.epoch == frame.epoch
                and run.last <= out.stream.window.low
            ):
                self.fail_as("S10", f"{run} is resent to {to}, which has acknowledged the run")
            return
        if run.first != stream.high + 1:
            self.fail_as(
                "S1", f"{run} is sent as new to {to}, but the connection is at {stream.high}"
            )
            return
        if frame.first != (run.first == 1):
            self.fail_as("S3", f"{run} is marked as first: {frame.first}")
        self._compare(model, line, frame)
        stream.append(run)

    def _compare(self, model: MemberModel, line: ConnectionModel, frame: Data) -> None:
        run, queue = frame.run, self.queues.get((model.address, line.to), deque())
        if run.flags & FRAGMENT:
            pieces = line.stream.fragment_payloads
            if bool(run.flags & FIRST_FRAGMENT) == bool(pieces) or not queue:
                self.fail_as(
                    "S1", f"{run} begins a message inside another, or continues no message"
                )
            pieces.append(run.payload)
            if run.flags & LAST_FRAGMENT:
                if queue and b"".join(pieces) != queue.popleft().payload:
                    self.fail_as(
                        "S1",
                        f"the fragments up to {run} do not add up to the message of the "
                        "application",
                    )
                line.stream.fragment_payloads = []
            return
        for message in run.messages():
            if not queue or queue.popleft().payload != message:
                self.fail_as(
                    "S1", f"{run} carries {message[:40]!r}, which the application did not give next"
                )
                return

    def _ack_out(self, model: MemberModel, to: Address | None, frame: Ack) -> None:
        line = self.connections.get((frame.origin, frame.epoch))
        entry = model.member.connections.incoming.get(frame.origin)
        if line is None or to != frame.origin:
            self.fail_as("S8", f"{frame} goes to {to} for a connection that was never opened")
            return
        if (
            entry is not None
            and entry.stream.epoch == frame.epoch
            and entry.stream.window is not None
        ):
            line.delivered = max(line.delivered, entry.stream.window.delivered)
        if frame.seqno > line.delivered:
            self.fail_as(
                "S8",
                f"{model.name} acknowledges {frame.seqno} of {frame.origin}, it has "
                f"{line.delivered}",
            )

    def _nak_out(self, model: MemberModel, to: Address | None, frame: Nak) -> None:
        line = self.connections.get((frame.origin, frame.epoch))
        if to != frame.origin:
            self.fail_as("S11", f"{frame} goes to {to}")
        elif line is not None and any(
            first < line.next - 1 or last > line.stream.high for first, last in frame.ranges
        ):
            self.fail_as(
                "S11",
                f"{model.name} requests {frame.ranges}, but has {line.next - 1} of "
                f"{line.stream.high}",
            )

    # Deliveries

    def other_delivered(self, model: MemberModel, delivery: Delivery) -> None:
        """Compare a delivery with the next message of the connection."""
        if delivery.kind != UNICAST:
            return
        if delivery.origin == model.address:
            self._check_own_delivery(model, delivery)
            return
        line = self.connections.get((delivery.origin, delivery.epoch))
        if line is None or line.to != model.address or delivery.last > line.stream.high:
            self.fail_as(
                "S1",
                f"{model.name} delivers {delivery.first}..{delivery.last} of "
                f"{delivery.origin}, never sent",
            )
            return
        stream = line.stream
        due = stream.next_message_start(line.next)
        if delivery.first != due:
            name = "S2" if delivery.first < due else "S3"
            self.fail_as(
                name,
                f"{model.name} delivers {delivery.first} of its connection with "
                f"{delivery.origin}, not {due}",
            )
        if b"".join(delivery.messages()) != stream.content(delivery.first, delivery.last):
            self.fail_as(
                "S4",
                f"{model.name} delivers other bytes than {delivery.origin} sent as "
                f"{delivery.first}",
            )
        line.next = delivery.last + 1
        line.delivered = max(line.delivered, delivery.last)

    def _check_own_delivery(self, model: MemberModel, delivery: Delivery) -> None:
        queue = self.queues.get((model.address, model.address), deque())
        for message in delivery.messages():
            if not queue or queue.popleft().payload != message:
                self.fail_as(
                    "S3", f"{model.name} is handed {message[:40]!r} of its own, which is not next"
                )
                return

    # After a step, and at the end

    def connections_stepped(self, model: MemberModel) -> None:
        """Check that purged messages arrived at the other end, and no whole message was skipped."""
        connections = model.member.connections
        for to, out in connections.outgoing.items():
            line = self.connections.get((model.address, out.stream.epoch))
            if line is not None and to != model.address and out.stream.window.low > line.delivered:
                self.fail_as(
                    "S9", f"low to {to} is {out.stream.window.low}, but {to} has {line.delivered}"
                )
        for origin, entry in connections.incoming.items():
            line, window = self.connections.get((origin, entry.stream.epoch)), entry.stream.window
            if line is None or window is None:
                continue
            line.delivered = max(line.delivered, window.delivered)
            due = line.stream.next_message_start(line.next)
            if (
                due <= window.delivered
                and line.stream.end_of(due) <= window.delivered
                and not model.transferring
            ):
                self.fail_as(
                    "S3",
                    f"delivered of {origin} moves to {window.delivered}, but {due} was "
                    "not delivered",
                )
            ahead = window.stored
            if ahead > self.oracle.reach:
                self.fail_as(
                    "S6",
                    f"{ahead} messages of {origin} are stored; the maximum is {self.oracle.reach}",
                )

    def close(self) -> None:
        """Check that at rest every message to a running member is delivered."""
        if not self.oracle.settled:
            return
        for (sender, _), line in self.connections.items():
            model, other = self.model.members[sender], self.model.members.get(line.to)
            if line.ended or other is None or not model.alive or not other.alive:
                continue
            together = line.to in model.view_members and sender in other.view_members
            if together and line.stream.next_message_start(line.next) <= line.stream.high:
                self.oracle.current_member = other
                self.fail_as(
                    "L1",
                    f"{line.stream.high} was sent by {model.name}, but only "
                    f"{line.next - 1} was delivered",
                )


class OutOfBandChecker(InvariantChecker):
    """Out of band: every target gets each message once and unchanged; order is free."""

    id = "S5"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._queues: dict[Address, deque[tuple[QueuedMessage, Address | None]]] = {}
        self._sent: dict[Address, list[bytes]] = {}
        self._undelivered: dict[tuple[Address, int], set[Address]] = {}
        self._delivered: dict[tuple[Address, Address], set[int]] = {}
        self._unreliable_sent: dict[Address, Counter[bytes]] = {}
        self._states: dict[bytes, dict[Address, set[int]]] = {}
        self._numbered: Counter[tuple[Address, int]] = Counter()

    def sent(self, model: MemberModel, send: ApplicationSend) -> None:
        """A send beside the stream."""
        if send.refused:
            return
        if send.mode == DeliveryMode.UNRELIABLE:
            self._unreliable_sent.setdefault(model.address, Counter()).update(send.payloads)
        elif send.mode == DeliveryMode.OUT_OF_BAND:
            queue = self._queues.setdefault(model.address, deque())
            queue.extend(
                (QueuedMessage(send.ticket, payload, send.no_loopback), send.to)
                for payload in send.payloads
            )

    def _assign_numbers(self, model: MemberModel, upto: int) -> list[bytes]:
        """Record seqnos of out-of-band messages up to ``upto``; return all numbered messages."""
        sent = self._sent.setdefault(model.address, [])
        queue = self._queues.get(model.address, deque())
        while len(sent) < upto and queue:
            waiting, to = queue.popleft()
            sent.append(waiting.payload)
            owed = set(model.view_members) if to is None else {to}
            self._undelivered[model.address, len(sent)] = owed - {model.address}
            self._numbered[model.address, waiting.ticket] += 1
        return sent

    def before_frames_event(self, model: MemberModel, event: Event) -> None:
        """Record the seqnos of out-of-band sends, or the sends that were given up."""
        queue = self._queues.get(model.address)
        if not queue or not isinstance(event, (Accepted, GivenUp)):
            return
        if all(waiting.ticket != event.ticket for waiting, _ in queue):
            return
        if isinstance(event, Accepted):
            self._assign_numbers(model, event.last)
        else:
            numbered = self._numbered[model.address, event.ticket]
            self._assign_numbers(
                model, len(self._sent.get(model.address, ())) + event.accepted - numbered
            )
            remaining = [entry for entry in queue if entry[0].ticket != event.ticket]
            queue.clear()
            queue.extend(remaining)

    def non_stream_frame_out(self, model: MemberModel, to: Address | None, frame: Frame) -> None:
        """Compare outgoing frames with the sends; at rest there must be none."""
        if isinstance(frame, OutOfBand):
            run, sent = frame.run, self._assign_numbers(model, frame.run.last)
            if (
                run.origin != model.address
                or run.last > len(sent)
                or run.messages() != sent[run.first - 1 : run.last]
            ):
                self.fail(
                    f"{run} is sent out of band to {to} with other bytes than the application's"
                )
            if self.oracle.resting:
                self.oracle.report("L3", f"{model.name} sends {frame} to {to} at rest")
        elif isinstance(frame, Unreliable) and frame.run.payload not in self._unreliable_sent.get(
            model.address, {}
        ):
            self.fail(f"{frame.run} is sent unreliably, but is not a message of the application")

    def other_delivered(self, model: MemberModel, delivery: Delivery) -> None:
        """Check that a delivery is the first of its message, with the sent bytes."""
        if delivery.kind == UNICAST:
            return
        if delivery.kind != OUT_OF_BAND:
            if any(
                message not in self._unreliable_sent.get(delivery.origin, {})
                for message in delivery.messages()
            ):
                self.fail(
                    f"{model.name} delivers an unreliable message that "
                    f"{delivery.origin} did not send"
                )
            return
        sent = self._assign_numbers(self.model.members[delivery.origin], delivery.last)
        if delivery.messages() != sent[delivery.first - 1 : delivery.last]:
            self.fail(
                f"{model.name} delivers {delivery.first} of {delivery.origin} out of band, "
                "which was not sent so"
            )
        before = self._delivered.setdefault((model.address, delivery.origin), set())
        for seqno in range(delivery.first, delivery.last + 1):
            if seqno in before:
                self.fail(f"{model.name} delivers {seqno} of {delivery.origin} out of band twice")
            before.add(seqno)

    def state_provided(self, model: MemberModel, state: bytes) -> None:
        """Record the deliveries in the provided state."""
        mine = (
            (origin, seqnos)
            for (who, origin), seqnos in self._delivered.items()
            if who == model.address
        )
        self._states[state] = {origin: set(seqnos) for origin, seqnos in mine}

    def event(self, model: MemberModel, event: Event) -> None:
        """Record the messages in a received state: such messages are not delivered again."""
        if isinstance(event, StateReceived):
            for origin, seqnos in self._states.get(event.state, {}).items():
                self._delivered.setdefault((model.address, origin), set()).update(seqnos)

    def view(self, model: MemberModel, view: View) -> None:
        """Forget the due deliveries of an ended incarnation."""
        gone = model.view_members.difference(view.members)
        if gone:
            for (origin, _), owed in self._undelivered.items():
                if origin == model.address:
                    owed.difference_update(gone)

    def close(self) -> None:
        """Check that at rest no delivery is due."""
        if not self.oracle.settled:
            return
        for (origin, seqno), owed in self._undelivered.items():
            sender = self.model.members[origin]
            for peer in sorted(owed):
                other = self.model.members[peer]
                if (
                    sender.alive
                    and other.alive
                    and seqno not in self._delivered.get((peer, origin), ())
                ):
                    self.oracle.current_member = other
                    self.fail(f"out-of-band message {seqno} of {sender.name} was never delivered")


class AcknowledgedSendChecker(InvariantChecker):
    """S8 for whole sends: all counted members have delivered a send reported as acknowledged."""

    id = "S8"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._unconfirmed: dict[tuple[Address, int], Address | None] = {}
        self._last: dict[tuple[Address, int], tuple[int, int]] = {}

    def sent(self, model: MemberModel, send: ApplicationSend) -> None:
        """An acknowledged send."""
        if send.mode == DeliveryMode.ACKNOWLEDGED and not send.refused:
            self._unconfirmed[model.address, send.ticket] = send.to

    def event(self, model: MemberModel, event: Event) -> None:
        """Compare the report with the deliveries."""
        if isinstance(event, Accepted):
            self._last[model.address, event.ticket] = event.last, model.epoch
        elif isinstance(event, (GivenUp, Unacknowledged)):
            self._unconfirmed.pop((model.address, event.ticket), None)
        elif (
            isinstance(event, Acknowledged)
            and (key := (model.address, event.ticket)) in self._unconfirmed
        ):
            to, (last, epoch) = self._unconfirmed.pop(key), self._last[key]
            if to is None:
                self._check_group(model, last, epoch)

    def _check_group(self, model: MemberModel, last: int, epoch: int) -> None:
        stream = self.model.stream_of(model.address, epoch)
        for member in model.view_members - {model.address}:
            # A member that joined after the send is not among its receivers.
            start = stream.starts.get(member, last)
            taken = max(self.model.members[member].has_delivered(model.address, epoch), start)
            if taken < last:
                self.fail(
                    f"{model.name} reports {last} as acknowledged by all, but {member} "
                    f"has delivered {taken}"
                )
            if (stored := self._stored_by(member, model.address, taken, start)) < last:
                self.fail(
                    f"{model.name} reports {last} as acknowledged by all, but {member} "
                    f"has stored {stored}"
                )
        for place in model.roster.absent if model.roster is not None else ():
            if stream.acks.get(place.address, last) < last:
                self.fail(
                    f"{model.name} reports {last} as acknowledged by all, but the "
                    f"absent {place.name} has not"
                )

    def _stored_by(self, member: Address, origin: Address, taken: int, start: int) -> int:
        """Return how far a member may acknowledge: up to its disk, for a member with a disk."""
        stored = self.model.members[member].stored
        return taken if stored is None else max(stored.get(origin, 0), start)

    def close(self) -> None:
        """At rest no acknowledged send is open."""
        if not self.oracle.settled:
            return
        for sender, ticket in self._unconfirmed:
            if self.model.members[sender].alive and (sender, ticket) in self._last:
                self.fail(f"send {ticket} of {sender} was never reported as acknowledged")


class StallReportChecker(InvariantChecker):
    """Order without retransmission: no naks, and every lasting gap is reported."""

    id = "L1"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._reported: set[tuple[Address, Address, int]] = set()
        self.stalls = 0

    def event(self, model: MemberModel, event: Event) -> None:
        """Check that a stall names a missing message."""
        if isinstance(event, Stalled):
            self.stalls += 1
            self._reported.add((model.address, event.origin, event.seqno))

    def nak_out(self, model: MemberModel, to: Address | None, frame: Nak) -> None:
        """Report a nak: without retransmission no member sends a nak."""
        if not model.member.config.retransmits:
            self.fail(f"{model.name} requests {frame.ranges} from {to}, but retransmission is off")

    def data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """Check that no message is sent twice."""
        if frame.repair and not self.config.retransmits and not self.oracle.retransmission_retuned:
            self.fail(f"{model.name} resends {frame.run} to {to}, but retransmission is off")

    def tail_out(self, model: MemberModel, to: Address | None, frame: Tail) -> None:
        """Report an announcement, except the start for a new member."""
        if frame.start is None and not model.member.config.retransmits:
            self.fail(f"{model.name} announces {frame} to {to}, but retransmission is off")

    def close(self) -> None:
        """Check at the end that every gap before stored messages was reported as a stall."""
        if self.config.retransmits or self.oracle.settled:
            return
        for model in self.model.members.values():
            if not model.alive:
                continue
            for origin, stream in model.member.inbound.items():
                window = stream.window
                if window is None or window.high == window.delivered or window.has_next:
                    continue
                if (model.address, origin, window.delivered + 1) not in self._reported:
                    self.oracle.current_member = model
                    self.fail(
                        f"{window.delivered + 1} of {origin} is missing for good without a report"
                    )


UNICAST_AND_OOB_CHECKERS: tuple[type[InvariantChecker], ...] = (
    UnicastChecker,
    OutOfBandChecker,
    AcknowledgedSendChecker,
    StallReportChecker,
)
"""The checks of this file."""
