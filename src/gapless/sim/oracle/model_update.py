"""How the oracle's model learns from frames, events, deliveries and marks.

Each check runs before the model learns from the same input, and so compares the step with the
expectation of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import Marks
from gapless.profiles import NumberingScope
from gapless.protocol.events import (
    GivenUp,
    Lost,
    Oversized,
    RetentionReleased,
    Started,
    StateReceived,
)
from gapless.protocol.stream import ranges
from gapless.run import FRAGMENT, LAST_FRAGMENT
from gapless.wire import Ack, Data, Gone, Stable, Tail, Vote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gapless.config import Config
    from gapless.identity import Address, Digest, Roster, View
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Delivery
    from gapless.protocol.stream.window import Window
    from gapless.run import Run
    from gapless.sim.oracle.model import InboundModel, MemberModel

_make = tuple.__new__


class InvariantViolation(NamedTuple):
    """A violated invariant: its check, the time, the member, and a description."""

    check: str
    t_ns: int
    member: str
    message: str

    def __str__(self) -> str:
        return f"{self.check} at {self.t_ns / 1e9:.6f} s, member {self.member}: {self.message}"


class ApplicationSend(NamedTuple):
    """A send of the application, and the ticket of the send."""

    payloads: tuple[bytes, ...]
    to: Address | None
    mode: str
    no_loopback: bool
    ticket: int
    refused: bool


class Expected(NamedTuple):
    """The expected fate of the messages of a datagram."""

    accepted: int = 0
    duplicate: int = 0
    old: int = 0
    far: int = 0
    early: int = 0
    view: int = 0

    def plus(self, other: Expected) -> Expected:
        """Return the sum."""
        if self is NOTHING:
            return other
        return Expected(*(mine + its for mine, its in zip(self, other, strict=True)))


NOTHING = Expected()


def _acked(known: Mapping[Address, int], last: Address, members: Iterable[Address]) -> int | None:
    """Return the ack of incarnation ``last``, or of the previous incarnation of the same node."""
    if last in known:
        return known[last]
    former = [model for model in known if model.node == last.node and model not in members]
    return known[max(former)] if former else None


def is_absence_loss(model: MemberModel, event: Oversized | Lost | Started) -> bool:
    """Return whether a durable member reports a loss caused by its own absence.

    An absence loses everything before the start, or the rest of a fragmented message if the first
    fragments went to the previous incarnation.
    """
    inbound = model.inbound.get(event.origin)
    if inbound is None or not model.durable or not isinstance(event, Lost):
        return False
    before = event.last <= inbound.start
    return before or inbound.start < event.first <= event.last < inbound.stream.next_message_start(
        inbound.start + 1
    )


class ModelUpdater:
    """Applies every observed input and output to the models of the members.

    ``expected`` counts the expected fates of the messages of the current step.
    ``states`` maps each provided application state to the last seqno of each stream in it.
    """

    def __init__(self, config: Config, report: Callable[[str, str], None]) -> None:
        self.reach = config.reach
        self.by_view = config.group_profile.numbering is NumberingScope.VIEW
        self.local_ns = 0
        self.expected = NOTHING
        self.states: dict[bytes, dict[tuple[Address, int], int]] = {}
        self.digest: Digest = {}
        self.departing: list[Address] = []
        self._report = report

    # Membership and retention

    def on_roster(
        self, model: MemberModel, view: View, roster: Roster | None
    ) -> tuple[Address, ...]:
        """Apply a roster; return the members that a sender counts, absent durable members included.

        A returning durable member starts after the last message acknowledged by its previous
        incarnation. From now on the sender retains messages for newly counted absent members.
        """
        if roster is None:
            return view.members
        before, model.roster = model.roster, roster
        stream = model.stream
        known = dict(stream.acks)
        places = () if before is None else (*before.absent, *before.entries)
        last = {place.name: place.address for place in places if place.name}
        here = {place.address for place in before.entries} if before is not None else set()
        for address, name, _ in roster.entries:
            if address in here:
                continue
            acked = _acked(known, last[name], view.members) if name in last else known.get(address)
            if acked is not None:
                stream.acks[address] = stream.starts[address] = stream.retained_from(acked)
        remaining = [
            place
            for place in roster.absent
            if place.name not in model.evicted_names or place.address in here
        ]
        were_kept = (
            {place.address for place in before.absent} - here if before is not None else set()
        )
        for place in remaining:
            if place.address in were_kept and place.address in known:
                continue
            acked = _acked(known, place.address, view.members)
            stream.acks[place.address] = (
                stream.high if acked is None else stream.retained_from(acked)
            )
        model.evicted_names.intersection_update(
            {place.name for place in roster.absent} - {place.name for place in remaining}
        )
        return (*view.members, *(place.address for place in remaining))

    # Incoming frames

    def on_digest_mark(self, model: MemberModel, origin: Address, marks: Marks) -> None:
        """Learn the end of a stream from a digest: seqnos after the start may be requested."""
        inbound = model.inbound[origin]
        if model.member.config.retransmits:
            inbound.announced = max(inbound.announced, marks.high)
            inbound.note_exists(marks.high, self.local_ns)

    def on_progress(self, model: MemberModel, frame: Vote | Stable) -> None:
        """Learn from a vote or a stability message how far streams go."""
        if model.view is None or frame.view != model.view.id.number:
            return
        for origin, _, high in frame.progress:
            inbound = model.inbound.get(origin)
            if inbound is not None and inbound.open and model.member.config.retransmits:
                inbound.announced = max(inbound.announced, high)
                inbound.note_exists(high, self.local_ns)

    def on_data(self, model: MemberModel, inbound: InboundModel, frame: Data) -> None:
        """Add data to the inbound stream, and count the expected fates of the messages."""
        run = frame.run
        if model.inbound.get(run.origin) is not inbound:
            return
        if inbound.open:
            expected = self._accept_range(inbound, run.first, run.last)
        else:
            expected = Expected(
                early=self._buffer_before_start(inbound, run.first, run.last, model.member.config)
            )
        self.expected = expected if self.expected is NOTHING else self.expected.plus(expected)

    def _accept_range(self, inbound: InboundModel, first: int, last: int) -> Expected:
        """Add ``first .. last`` to an open stream; return the expected fates."""
        delivered, held, total = inbound.delivered, inbound.held, last - first + 1
        ceiling = delivered + self.reach
        old = 0 if first > delivered else min(total, delivered + 1 - first)
        far = 0 if last <= ceiling else min(total, last - ceiling)
        inside = inbound.bits(first, min(last, ceiling))
        fresh = inside & ~held
        if fresh:
            inbound.held = held | fresh
            inbound.high = max(inbound.high, delivered + fresh.bit_length())
            inbound.note_exists(inbound.high, self.local_ns)
        accepted = fresh.bit_count()
        return _make(Expected, (accepted, total - old - far - accepted, old, far, 0, 0))

    def _buffer_before_start(
        self, inbound: InboundModel, first: int, last: int, config: Config
    ) -> int:
        """Buffer data that precedes the start; return the number of messages to drop."""
        buffered = inbound.before_start
        if config.retransmits:
            if len(buffered) >= config.become_server_queue_size:
                return last - first + 1
            buffered.append((first, last))
            return 0
        if any(one <= first and last <= other for one, other in buffered):
            return last - first + 1
        newest = max(last, *(other for _, other in buffered)) if buffered else last
        every = [*buffered, (first, last)]
        inbound.before_start = [(one, other) for one, other in every if other > newest - self.reach]
        return ranges.count(every) - ranges.count(inbound.before_start)

    @staticmethod
    def on_ack(model: MemberModel, sender: Address, frame: Ack) -> None:
        """Raise the sender's entry in the ack table."""
        stream = model.stream
        if frame.origin == model.address and stream.high >= frame.seqno > stream.acks[sender]:
            stream.acks[sender] = frame.seqno

    def on_tail(self, model: MemberModel, inbound: InboundModel, frame: Tail) -> None:
        """Learn the start, the end and the purged part of a stream from its announcement."""
        if model.inbound.get(frame.origin) is not inbound:
            return
        if not inbound.open:
            if frame.start is None or frame.receiver_incarnation != model.address.incarnation:
                return
            self._open_stream(inbound, frame.start)
        elif (
            frame.start is not None
            and frame.receiver_incarnation == model.address.incarnation
            and inbound.delivered == inbound.start
        ):
            # The sender moves a start before the first delivery: what precedes it is not for this
            # incarnation.
            inbound.gone = max(inbound.gone, frame.start)
            if frame.start > inbound.start:
                inbound.restart(frame.start)
        inbound.announced = max(inbound.announced, frame.high)
        inbound.note_exists(frame.high, self.local_ns)
        inbound.gone = max(inbound.gone, frame.low)

    def _open_stream(self, inbound: InboundModel, start: int) -> None:
        """Learn the start of a stream; add the data buffered before the start."""
        inbound.open_at(start)
        early, inbound.before_start = inbound.before_start, []
        for first, last in early:
            self.expected = self.expected.plus(self._accept_range(inbound, first, last))

    def on_digest(self, model: MemberModel) -> None:
        """Apply the digest of the present step to all inbound streams."""
        for origin, inbound in model.inbound.items():
            if origin not in self.digest or self.by_view:
                continue
            if not inbound.open:
                self._open_stream(inbound, self.digest[origin].delivered)
            self.on_digest_mark(model, origin, self.digest[origin])

    @staticmethod
    def on_gone(model: MemberModel, inbound: InboundModel, frame: Gone) -> None:
        """Learn the seqnos that can never be repaired."""
        if model.inbound.get(frame.origin) is inbound and inbound.open:
            inbound.gone = max(inbound.gone, frame.low)

    # Learning: what went out

    def on_data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """Append a first transmission to the member's own stream."""
        if not frame.repair and frame.run.first == model.stream.high + 1:
            self._append_run(model, frame.run)

    def _append_run(self, model: MemberModel, run: Run) -> None:
        stream = model.stream
        stream.append(run)
        if run.flags & FRAGMENT:
            stream.fragment_payloads.append(run.payload)
            if run.flags & LAST_FRAGMENT:
                stream.fragment_payloads = []
                self._dequeue_numbered(model, run.last - run.first + 1)
            return
        self._dequeue_numbered(model, run.count)

    @staticmethod
    def _dequeue_numbered(model: MemberModel, messages: int) -> None:
        queue = model.stream.queue
        for _ in range(min(messages, len(queue))):
            queue.popleft()

    # Learning: events, deliveries, marks

    def on_events(self, model: MemberModel, events: Iterable[Event]) -> None:
        """Apply the events of a step."""
        for event in events:
            if isinstance(event, GivenUp):
                self._update_from_given_up(model, event)
            elif isinstance(event, (Oversized, Lost, Started)) and event.origin in model.inbound:
                if not is_absence_loss(model, event):
                    self._update_from_skip(model.inbound[event.origin], event)
            elif isinstance(event, StateReceived):
                self._update_from_state(model, event)
            elif isinstance(event, RetentionReleased) and event.reason == "capacity":
                model.evicted_names.add(event.name)
                model.stream.acks.pop(event.last, None)
                model.stream.starts.pop(event.last, None)

    def _update_from_state(self, model: MemberModel, event: StateReceived) -> None:
        """Learn that the application has a state: messages in the state are not delivered again."""
        model.transferring = False
        model.covered = self.states.get(event.state, {})
        if (mine := model.covered.get((model.address, model.epoch))) is not None:
            model.own_next = max(model.own_next, mine + 1)
        for origin, inbound in (*model.inbound.items(), *model.departed_inbound.items()):
            inbound.cover(model.covered.get((origin, inbound.epoch), 0))
        for key, past in model.past_inbound.items():
            past.cover(model.covered.get(key, 0))

    def _update_from_skip(self, inbound: InboundModel, event: Oversized | Lost | Started) -> None:
        """Apply a reported loss, and check for a valid reason: gone at the origin, missing here."""
        if isinstance(event, Oversized):
            inbound.next = event.last + 1
        elif isinstance(event, Lost):
            headless = inbound.stream.next_message_start(event.first) > event.last and any(
                first <= event.first - 1 <= last for first, last in inbound.lost
            )
            gone = event.last <= inbound.gone and not inbound.held & inbound.bits(
                event.first, event.last
            )
            if (
                not gone and not headless
            ):  # the rest of a message whose beginning is lost is of no use
                self._report(
                    "S3", f"{event} is reported, but is not gone (up to {inbound.gone}) or is there"
                )
            inbound.lose(event.first, event.last)
        elif event.start != inbound.start:
            if (
                inbound.delivered != inbound.start
                or not inbound.start < event.start <= inbound.gone
            ):
                self._report(
                    "S3", f"{event}: {inbound.delivered} was delivered and {inbound.gone} is gone"
                )
            inbound.restart(max(event.start, inbound.start))

    @staticmethod
    def _update_from_given_up(model: MemberModel, event: GivenUp) -> None:
        """Remove the messages of an ended send, except a message with fragments under way."""
        queue = model.stream.queue
        head = queue[0] if model.stream.fragment_payloads else None
        remaining = [
            waiting for waiting in queue if waiting.ticket != event.ticket or waiting is head
        ]
        queue.clear()
        queue.extend(remaining)

    @staticmethod
    def on_delivery(model: MemberModel, inbound: InboundModel | None, delivery: Delivery) -> None:
        """Move the next due message behind a delivery."""
        if inbound is not None:
            inbound.next = delivery.last + 1
        elif delivery.origin == model.address:
            model.own_next = delivery.last + 1
        model.unconsumed += delivery.message_count

    def on_departures(self, model: MemberModel) -> None:
        """Close ended streams, after a check that deliveries reached the first gap (I-08)."""
        for origin in self.departing:
            inbound = model.departed_inbound[origin]
            inbound.move_to(inbound.consecutive())
            key = origin, inbound.epoch
            model.delivered_upto[key] = max(model.delivered_upto.get(key, 0), inbound.delivered)
            if (
                inbound.open
                and inbound.stream.end_of(inbound.due()) <= inbound.delivered
                and not model.transferring
            ):
                self._report(
                    "S3", f"{origin} departs, but {inbound.due()} was there and was not handed out"
                )
        self.departing.clear()
        if self.by_view:
            if model.transferring:
                model.past_inbound.update(
                    ((origin, inbound.epoch), inbound)
                    for origin, inbound in model.departed_inbound.items()
                )
            model.departed_inbound.clear()

    @staticmethod
    def on_marks(inbound: InboundModel, window: Window) -> None:
        """Follow the window of an inbound stream."""
        delivered = window.delivered
        inbound.marks = _make(Marks, (window.low, delivered, window.high))
        if delivered > inbound.delivered:
            inbound.move_to(min(delivered, inbound.consecutive()))

    @staticmethod
    def on_own_marks(model: MemberModel, window: Window) -> None:
        """Follow the window of the member's own stream."""
        stream, own = model.stream, model.address
        stream.marks = _make(Marks, (window.low, window.delivered, window.high))
        if own in stream.acks:
            stream.acks[own] = max(stream.acks[own], min(window.delivered, stream.high))
