"""How the oracle's model learns: from frames, events, deliveries and marks.

A check has looked before any of this is called, so it could compare what happened with what had to
happen.
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
    """A promise that was broken: which check, when, at whom, and what exactly."""

    check: str
    t_ns: int
    member: str
    message: str

    def __str__(self) -> str:
        return f"{self.check} at {self.t_ns / 1e9:.6f} s, member {self.member}: {self.message}"


class ApplicationSend(NamedTuple):
    """A send as the application made it, and its ticket."""

    payloads: tuple[bytes, ...]
    to: Address | None
    mode: str
    no_loopback: bool
    ticket: int
    refused: bool


class Expected(NamedTuple):
    """What must become of the messages that one datagram brings."""

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
    """Return the ack of incarnation ``last``, or of the one before it at the same node."""
    if last in known:
        return known[last]
    former = [life for life in known if life.node == last.node and life not in members]
    return known[max(former)] if former else None


def is_absence_loss(life: MemberModel, event: Oversized | Lost | Started) -> bool:
    """Return whether a durable member reports a loss that its own absence caused.

    That is what lies before the start that it was told; or the rest of a message in pieces that its
    former life had
    begun: the beginning is gone with that life, so the message is lost, though these pieces are
    there.
    """
    heard = life.inbound.get(event.origin)
    if heard is None or not life.durable or not isinstance(event, Lost):
        return False
    before = event.last <= heard.start
    return before or heard.start < event.first <= event.last < heard.stream.next_message_start(
        heard.start + 1
    )


class ModelUpdater:
    """Applies every observed input and output to the models of the members.

    ``expected`` counts what must become of the messages that came in with the present step.
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

    # Learning: who is in, and whose place is kept

    def on_roster(
        self, life: MemberModel, view: View, roster: Roster | None
    ) -> tuple[Address, ...]:
        """Apply a roster; return the members that a sender counts, absent durable ones included.

        One that comes back under a durable name starts behind what it, or its former life, had
        acknowledged. A place of one that this sender never counted is kept from here on.
        """
        if roster is None:
            return view.members
        before, life.roster = life.roster, roster
        stream = life.stream
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
        kept = [
            place
            for place in roster.absent
            if place.name not in life.evicted_names or place.address in here
        ]
        were_kept = (
            {place.address for place in before.absent} - here if before is not None else set()
        )
        for place in kept:
            if place.address in were_kept and place.address in known:
                continue
            acked = _acked(known, place.address, view.members)
            stream.acks[place.address] = (
                stream.high if acked is None else stream.retained_from(acked)
            )
        life.evicted_names.intersection_update(
            {place.name for place in roster.absent} - {place.name for place in kept}
        )
        return (*view.members, *(place.address for place in kept))

    # Learning: what came in

    def on_digest_mark(self, life: MemberModel, origin: Address, marks: Marks) -> None:
        """Learn the end of a stream from a digest: seqnos behind its start may be requested."""
        heard = life.inbound[origin]
        if life.member.config.retransmits:
            heard.announced = max(heard.announced, marks.high)
            heard.note_exists(marks.high, self.local_ns)

    def on_progress(self, life: MemberModel, frame: Vote | Stable) -> None:
        """Learn from a vote or a stability message how far streams go."""
        if life.view is None or frame.view != life.view.id.number:
            return
        for origin, _, high in frame.progress:
            heard = life.inbound.get(origin)
            if heard is not None and heard.open and life.member.config.retransmits:
                heard.announced = max(heard.announced, high)
                heard.note_exists(high, self.local_ns)

    def on_data(self, life: MemberModel, heard: InboundModel, frame: Data) -> None:
        """Add data that came in to the inbound stream, and count what must become of it."""
        run = frame.run
        if life.inbound.get(run.origin) is not heard:
            return
        if heard.open:
            expected = self._accept_range(heard, run.first, run.last)
        else:
            expected = Expected(
                early=self._buffer_before_start(heard, run.first, run.last, life.member.config)
            )
        self.expected = expected if self.expected is NOTHING else self.expected.plus(expected)

    def _accept_range(self, heard: InboundModel, first: int, last: int) -> Expected:
        """Add ``first .. last`` to an open stream; return what must become of it."""
        delivered, held, total = heard.delivered, heard.held, last - first + 1
        ceiling = delivered + self.reach
        old = 0 if first > delivered else min(total, delivered + 1 - first)
        far = 0 if last <= ceiling else min(total, last - ceiling)
        inside = heard.bits(first, min(last, ceiling))
        fresh = inside & ~held
        if fresh:
            heard.held = held | fresh
            heard.high = max(heard.high, delivered + fresh.bit_length())
            heard.note_exists(heard.high, self.local_ns)
        accepted = fresh.bit_count()
        return _make(Expected, (accepted, total - old - far - accepted, old, far, 0, 0))

    def _buffer_before_start(
        self, heard: InboundModel, first: int, last: int, config: Config
    ) -> int:
        """Buffer data that precedes the start; return how many messages must be dropped."""
        kept = heard.before_start
        if config.retransmits:
            if len(kept) >= config.become_server_queue_size:
                return last - first + 1
            kept.append((first, last))
            return 0
        if any(one <= first and last <= other for one, other in kept):
            return last - first + 1
        newest = max(last, *(other for _, other in kept)) if kept else last
        every = [*kept, (first, last)]
        heard.before_start = [(one, other) for one, other in every if other > newest - self.reach]
        return ranges.count(every) - ranges.count(heard.before_start)

    @staticmethod
    def on_ack(life: MemberModel, sender: Address, frame: Ack) -> None:
        """Raise the sender's entry in the ack table."""
        stream = life.stream
        if frame.origin == life.address and stream.high >= frame.seqno > stream.acks[sender]:
            stream.acks[sender] = frame.seqno

    def on_tail(self, life: MemberModel, heard: InboundModel, frame: Tail) -> None:
        """Learn the start, the end and the purged part of a stream from its announcement."""
        if life.inbound.get(frame.origin) is not heard:
            return
        if not heard.open:
            if frame.start is None or frame.receiver_incarnation != life.address.incarnation:
                return
            self._open_stream(heard, frame.start)
        elif (
            frame.start is not None
            and frame.receiver_incarnation == life.address.incarnation
            and heard.delivered == heard.start
        ):
            # The sender moves a start that nothing has been delivered from: what lies before it is
            # not for this life.
            heard.gone = max(heard.gone, frame.start)
            if frame.start > heard.start:
                heard.restart(frame.start)
        heard.announced = max(heard.announced, frame.high)
        heard.note_exists(frame.high, self.local_ns)
        heard.gone = max(heard.gone, frame.low)

    def _open_stream(self, heard: InboundModel, start: int) -> None:
        """Learn where a stream starts; what came too early is taken in now."""
        heard.open_at(start)
        early, heard.before_start = heard.before_start, []
        for first, last in early:
            self.expected = self.expected.plus(self._accept_range(heard, first, last))

    def on_digest(self, life: MemberModel) -> None:
        """Apply the digest of the present step to all inbound streams."""
        for origin, heard in life.inbound.items():
            if origin not in self.digest or self.by_view:
                continue
            if not heard.open:
                self._open_stream(heard, self.digest[origin].delivered)
            self.on_digest_mark(life, origin, self.digest[origin])

    @staticmethod
    def on_gone(life: MemberModel, heard: InboundModel, frame: Gone) -> None:
        """Learn which seqnos can never be repaired."""
        if life.inbound.get(frame.origin) is heard and heard.open:
            heard.gone = max(heard.gone, frame.low)

    # Learning: what went out

    def on_data_out(self, life: MemberModel, to: Address | None, frame: Data) -> None:
        """Append a first transmission to the member's own stream."""
        if not frame.repair and frame.run.first == life.stream.high + 1:
            self._append_run(life, frame.run)

    def _append_run(self, life: MemberModel, run: Run) -> None:
        stream = life.stream
        stream.append(run)
        if run.flags & FRAGMENT:
            stream.fragment_payloads.append(run.payload)
            if run.flags & LAST_FRAGMENT:
                stream.fragment_payloads = []
                self._dequeue_numbered(life, run.last - run.first + 1)
            return
        self._dequeue_numbered(life, run.count)

    @staticmethod
    def _dequeue_numbered(life: MemberModel, messages: int) -> None:
        queue = life.stream.queue
        for _ in range(min(messages, len(queue))):
            queue.popleft()

    # Learning: events, deliveries, marks

    def on_events(self, life: MemberModel, events: Iterable[Event]) -> None:
        """Apply the events of one step."""
        for event in events:
            if isinstance(event, GivenUp):
                self._update_from_given_up(life, event)
            elif isinstance(event, (Oversized, Lost, Started)) and event.origin in life.inbound:
                if not is_absence_loss(life, event):
                    self._update_from_skip(life.inbound[event.origin], event)
            elif isinstance(event, StateReceived):
                self._update_from_state(life, event)
            elif isinstance(event, RetentionReleased) and event.reason == "capacity":
                life.evicted_names.add(event.name)
                life.stream.acks.pop(event.last, None)
                life.stream.starts.pop(event.last, None)

    def _update_from_state(self, life: MemberModel, event: StateReceived) -> None:
        """Learn that the application has a state: what is in it is not handed out any more."""
        life.transferring = False
        life.covered = self.states.get(event.state, {})
        if (mine := life.covered.get((life.address, life.epoch))) is not None:
            life.own_next = max(life.own_next, mine + 1)
        for origin, heard in (*life.inbound.items(), *life.departed_inbound.items()):
            heard.cover(life.covered.get((origin, heard.epoch), 0))
        for key, past in life.past_inbound.items():
            past.cover(life.covered.get(key, 0))

    def _update_from_skip(self, heard: InboundModel, event: Oversized | Lost | Started) -> None:
        """Apply a reported loss, and check that it is allowed: gone at the origin, not here."""
        if isinstance(event, Oversized):
            heard.next = event.last + 1
        elif isinstance(event, Lost):
            headless = heard.stream.next_message_start(event.first) > event.last and any(
                first <= event.first - 1 <= last for first, last in heard.lost
            )
            gone = event.last <= heard.gone and not heard.held & heard.bits(event.first, event.last)
            if (
                not gone and not headless
            ):  # the rest of a message whose beginning is lost is of no use
                self._report(
                    "S3", f"{event} is reported, but is not gone (up to {heard.gone}) or is there"
                )
            heard.lose(event.first, event.last)
        elif event.start != heard.start:
            if heard.delivered != heard.start or not heard.start < event.start <= heard.gone:
                self._report(
                    "S3", f"{event}: {heard.delivered} was delivered and {heard.gone} is gone"
                )
            heard.restart(max(event.start, heard.start))

    @staticmethod
    def _update_from_given_up(life: MemberModel, event: GivenUp) -> None:
        """Remove the messages of an ended send, except one whose fragments are under way."""
        queue = life.stream.queue
        head = queue[0] if life.stream.fragment_payloads else None
        kept = [waiting for waiting in queue if waiting.ticket != event.ticket or waiting is head]
        queue.clear()
        queue.extend(kept)

    @staticmethod
    def on_delivery(life: MemberModel, heard: InboundModel | None, delivery: Delivery) -> None:
        """Move the next due message behind a delivery."""
        if heard is not None:
            heard.next = delivery.last + 1
        elif delivery.origin == life.address:
            life.own_next = delivery.last + 1
        life.unconsumed += delivery.message_count

    def on_departures(self, life: MemberModel) -> None:
        """Check that ended streams were delivered up to their first gap, and close them (I-08)."""
        for origin in self.departing:
            heard = life.departed_inbound[origin]
            heard.move_to(heard.consecutive())
            key = origin, heard.epoch
            life.delivered_upto[key] = max(life.delivered_upto.get(key, 0), heard.delivered)
            if (
                heard.open
                and heard.stream.end_of(heard.due()) <= heard.delivered
                and not life.transferring
            ):
                self._report(
                    "S3", f"{origin} departs, but {heard.due()} was there and was not handed out"
                )
        self.departing.clear()
        if self.by_view:
            if life.transferring:
                life.past_inbound.update(
                    ((origin, heard.epoch), heard)
                    for origin, heard in life.departed_inbound.items()
                )
            life.departed_inbound.clear()

    @staticmethod
    def on_marks(heard: InboundModel, window: Window) -> None:
        """Follow the window of an inbound stream."""
        delivered = window.delivered
        heard.marks = _make(Marks, (window.low, delivered, window.high))
        if delivered > heard.delivered:
            heard.move_to(min(delivered, heard.consecutive()))

    @staticmethod
    def on_own_marks(life: MemberModel, window: Window) -> None:
        """Follow the window of the member's own stream."""
        stream, own = life.stream, life.address
        stream.marks = _make(Marks, (window.low, window.delivered, window.high))
        if own in stream.acks:
            stream.acks[own] = max(stream.acks[own], min(window.delivered, stream.high))
