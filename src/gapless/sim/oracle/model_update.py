"""How the judge's model learns: from frames that come in and go out, from events, deliveries and marks.

A check has looked before any of this is called, so it could compare what happened with what had to
happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import Marks
from gapless.protocol.ready import GivenUp, Lost, Oversized, Released, Started, StateReceived
from gapless.protocol.stream import ranges
from gapless.run import END, PIECE
from gapless.wire import Ack, Data, Gone, Stable, Tail, Vote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gapless.config import Config
    from gapless.identity import Address, Digest, Roster, View
    from gapless.protocol.ready import Delivery, Event
    from gapless.protocol.stream.window import Window
    from gapless.run import Run
    from gapless.sim.oracle.model import Heard, Life

_make = tuple.__new__


class Violation(NamedTuple):
    """A promise that was broken: which check, when, at whom, and what exactly."""

    check: str
    t_ns: int
    member: str
    message: str

    def __str__(self) -> str:
        return f"{self.check} at {self.t_ns / 1e9:.6f} s, member {self.member}: {self.message}"


class Sent(NamedTuple):
    """A send as the application made it, and its ticket."""

    payloads: tuple[bytes, ...]
    to: Address | None
    mode: str
    not_back: bool
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
    """Return what the life ``last`` had acknowledged; if it was never counted, the life before it at the same node."""
    if last in known:
        return known[last]
    former = [life for life in known if life.node == last.node and life not in members]
    return known[max(former)] if former else None


def is_rest(life: Life, event: Oversized | Lost | Started) -> bool:
    """Return whether a durable member tells of what it misses because of its absence, not of its streams as they are.

    That is what lies before the start that it was told; or the rest of a message in pieces that its
    former life had
    begun: the beginning is gone with that life, so the message is lost, though these pieces are
    there.
    """
    heard = life.heard.get(event.origin)
    if heard is None or not life.durable or not isinstance(event, Lost):
        return False
    before = event.last <= heard.start
    return before or heard.start < event.first <= event.last < heard.stream.whole_from(
        heard.start + 1
    )


class Learner:
    """What a judge knows, and how it comes to know it."""

    config: Config
    reach: int
    by_view: bool
    local_ns: int
    expected: Expected
    states: dict[bytes, dict[tuple[Address, int], int]]
    _digest: Digest
    _departing: list[Address]

    def report(self, check: str, message: str) -> None:
        """Note a violation of ``check``."""
        raise NotImplementedError

    # Learning: who is in, and whose place is kept

    def _learn_places(self, life: Life, view: View, roster: Roster | None) -> tuple[Address, ...]:
        """Learn whose places a sender keeps; return all that it counts: the members, and who is away.

        One that comes back under a durable name starts behind what it, or its former life, had
        acknowledged. A place of one that this sender never counted is kept from here on.
        """
        if roster is None:
            return view.members
        before, life.roster = life.roster, roster
        stream = life.stream
        known = dict(stream.acks)
        places = () if before is None else (*before.away, *before.places)
        last = {place.name: place.address for place in places if place.name}
        here = {place.address for place in before.places} if before is not None else set()
        for address, name, _ in roster.places:
            if address in here:
                continue
            acked = _acked(known, last[name], view.members) if name in last else known.get(address)
            if acked is not None:
                stream.acks[address] = stream.starts[address] = stream.kept_from(acked)
        kept = [
            place for place in roster.away if place.name not in life.let_go or place.address in here
        ]
        were_kept = {place.address for place in before.away} - here if before is not None else set()
        for place in kept:
            if place.address in were_kept and place.address in known:
                continue
            acked = _acked(known, place.address, view.members)
            stream.acks[place.address] = stream.high if acked is None else stream.kept_from(acked)
        life.let_go.intersection_update(
            {place.name for place in roster.away} - {place.name for place in kept}
        )
        return (*view.members, *(place.address for place in kept))

    # Learning: what came in

    def _learn_hint(self, life: Life, origin: Address, marks: Marks) -> None:
        """Learn from a digest how far a stream goes: what lies beyond its start may be asked for (I-04)."""
        heard = life.heard[origin]
        if life.member.config.retransmits:
            heard.announced = max(heard.announced, marks.high)
            heard.know(marks.high, self.local_ns)

    def _learn_progress(self, life: Life, frame: Vote | Stable) -> None:
        """Learn from a vote or a stability message how far streams go."""
        if life.view is None or frame.view != life.view.id.number:
            return
        for origin, _, high in frame.progress:
            heard = life.heard.get(origin)
            if heard is not None and heard.open and life.member.config.retransmits:
                heard.announced = max(heard.announced, high)
                heard.know(high, self.local_ns)

    def _learn_data(self, life: Life, heard: Heard, frame: Data) -> None:
        run = frame.run
        if life.heard.get(run.origin) is not heard:
            return
        if heard.open:
            expected = self._take(heard, run.first, run.last)
        else:
            expected = Expected(
                early=self._put_aside(heard, run.first, run.last, life.member.config)
            )
        self.expected = expected if self.expected is NOTHING else self.expected.plus(expected)

    def _take(self, heard: Heard, first: int, last: int) -> Expected:
        """Learn that ``first .. last`` of a stream that is open has arrived; return what must become of it."""
        delivered, held, total = heard.delivered, heard.held, last - first + 1
        ceiling = delivered + self.reach
        old = 0 if first > delivered else min(total, delivered + 1 - first)
        far = 0 if last <= ceiling else min(total, last - ceiling)
        inside = heard.bits(first, min(last, ceiling))
        fresh = inside & ~held
        if fresh:
            heard.held = held | fresh
            heard.high = max(heard.high, delivered + fresh.bit_length())
            heard.know(heard.high, self.local_ns)
        accepted = fresh.bit_count()
        return _make(Expected, (accepted, total - old - far - accepted, old, far, 0, 0))

    def _put_aside(self, heard: Heard, first: int, last: int, config: Config) -> int:
        """Learn that ``first .. last`` has come before the start; return how many messages are to be dropped for it."""
        kept = heard.early
        if config.retransmits:
            if len(kept) >= config.become_server_queue_size:
                return last - first + 1
            kept.append((first, last))
            return 0
        if any(one <= first and last <= other for one, other in kept):
            return last - first + 1
        newest = max(last, *(other for _, other in kept)) if kept else last
        every = [*kept, (first, last)]
        heard.early = [(one, other) for one, other in every if other > newest - self.reach]
        return ranges.count(every) - ranges.count(heard.early)

    @staticmethod
    def _learn_ack(life: Life, sender: Address, frame: Ack) -> None:
        stream = life.stream
        if frame.origin == life.address and stream.high >= frame.seqno > stream.acks[sender]:
            stream.acks[sender] = frame.seqno

    def _learn_tail(self, life: Life, heard: Heard, frame: Tail) -> None:
        if life.heard.get(frame.origin) is not heard:
            return
        if not heard.open:
            if frame.start is None or frame.reader != life.address.incarnation:
                return
            self._begin_stream(heard, frame.start)
        elif (
            frame.start is not None
            and frame.reader == life.address.incarnation
            and heard.delivered == heard.start
        ):
            # The sender moves a start that nothing has been delivered from: what lies before it is
            # not for this life.
            heard.gone = max(heard.gone, frame.start)
            if frame.start > heard.start:
                heard.restart(frame.start)
        heard.announced = max(heard.announced, frame.high)
        heard.know(frame.high, self.local_ns)
        heard.gone = max(heard.gone, frame.low)

    def _begin_stream(self, heard: Heard, start: int) -> None:
        """Learn where a stream starts; what came too early is taken in now."""
        heard.begin(start)
        early, heard.early = heard.early, []
        for first, last in early:
            self.expected = self.expected.plus(self._take(heard, first, last))

    def _learn_digest(self, life: Life) -> None:
        for origin, heard in life.heard.items():
            if origin not in self._digest or self.by_view:
                continue
            if not heard.open:
                self._begin_stream(heard, self._digest[origin].delivered)
            self._learn_hint(life, origin, self._digest[origin])

    @staticmethod
    def _learn_gone(life: Life, heard: Heard, frame: Gone) -> None:
        if life.heard.get(frame.origin) is heard and heard.open:
            heard.gone = max(heard.gone, frame.low)

    # Learning: what went out

    def _learn_data_out(self, life: Life, to: Address | None, frame: Data) -> None:  # noqa: ARG002
        if not frame.repair and frame.run.first == life.stream.high + 1:
            self._learn_run(life, frame.run)

    def _learn_run(self, life: Life, run: Run) -> None:
        stream = life.stream
        stream.append(run)
        if run.flags & PIECE:
            stream.piece_bytes.append(run.payload)
            if run.flags & END:
                stream.piece_bytes = []
                self._number(life, run.last - run.first + 1)
            return
        self._number(life, run.count)

    @staticmethod
    def _number(life: Life, messages: int) -> None:
        queue = life.stream.queue
        for _ in range(min(messages, len(queue))):
            queue.popleft()

    # Learning: events, deliveries, marks

    def _learn_events(self, life: Life, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, GivenUp):
                self._learn_given_up(life, event)
            elif isinstance(event, (Oversized, Lost, Started)) and event.origin in life.heard:
                if not is_rest(life, event):
                    self._learn_skip(life.heard[event.origin], event)
            elif isinstance(event, StateReceived):
                self._learn_state(life, event)
            elif isinstance(event, Released) and event.reason == "capacity":
                life.let_go.add(event.name)
                life.stream.acks.pop(event.last, None)
                life.stream.starts.pop(event.last, None)

    def _learn_state(self, life: Life, event: StateReceived) -> None:
        """Learn that the application has a state: what is in it is not handed out any more."""
        life.transferring = False
        life.covered = self.states.get(event.state, {})
        if (mine := life.covered.get((life.address, life.epoch))) is not None:
            life.own_next = max(life.own_next, mine + 1)
        for origin, heard in (*life.heard.items(), *life.departed.items()):
            heard.cover(life.covered.get((origin, heard.epoch), 0))
        for key, past in life.past.items():
            past.cover(life.covered.get(key, 0))

    def _learn_skip(self, heard: Heard, event: Oversized | Lost | Started) -> None:
        """Learn that a stream leaves something out, and check that it may: only what is gone, and not there."""
        if isinstance(event, Oversized):
            heard.next = event.last + 1
        elif isinstance(event, Lost):
            headless = heard.stream.whole_from(event.first) > event.last and any(
                first <= event.first - 1 <= last for first, last in heard.lost
            )
            gone = event.last <= heard.gone and not heard.held & heard.bits(event.first, event.last)
            if (
                not gone and not headless
            ):  # the rest of a message whose beginning is lost is of no use
                self.report(
                    "S3", f"{event} is reported, but is not gone (up to {heard.gone}) or is there"
                )
            heard.lose(event.first, event.last)
        elif event.start != heard.start:
            if heard.delivered != heard.start or not heard.start < event.start <= heard.gone:
                self.report(
                    "S3", f"{event}: {heard.delivered} was delivered and {heard.gone} is gone"
                )
            heard.restart(max(event.start, heard.start))

    @staticmethod
    def _learn_given_up(life: Life, event: GivenUp) -> None:
        """Take the messages of a send that ended early out of the queue, but for the one that is under way."""
        queue = life.stream.queue
        head = queue[0] if life.stream.piece_bytes else None
        kept = [waiting for waiting in queue if waiting.ticket != event.ticket or waiting is head]
        queue.clear()
        queue.extend(kept)

    @staticmethod
    def _learn_delivery(life: Life, heard: Heard | None, delivery: Delivery) -> None:
        if heard is not None:
            heard.next = delivery.last + 1
        elif delivery.origin == life.address:
            life.own_next = delivery.last + 1
        life.unconsumed += delivery.message_count

    def _learn_departures(self, life: Life) -> None:
        """Learn, and check, that everything consecutive was handed out of the streams that have just ended (I-08)."""
        for origin in self._departing:
            heard = life.departed[origin]
            heard.move_to(heard.consecutive())
            key = origin, heard.epoch
            life.taken[key] = max(life.taken.get(key, 0), heard.delivered)
            if (
                heard.open
                and heard.stream.end_of(heard.due()) <= heard.delivered
                and not life.transferring
            ):
                self.report(
                    "S3", f"{origin} departs, but {heard.due()} was there and was not handed out"
                )
        self._departing.clear()
        if self.by_view:
            if life.transferring:
                life.past.update(
                    ((origin, heard.epoch), heard) for origin, heard in life.departed.items()
                )
            life.departed.clear()

    @staticmethod
    def _learn_marks(heard: Heard, window: Window) -> None:
        delivered = window.delivered
        heard.marks = _make(Marks, (window.low, delivered, window.high))
        if delivered > heard.delivered:
            heard.move_to(min(delivered, heard.consecutive()))

    @staticmethod
    def _learn_own_marks(life: Life, window: Window) -> None:
        stream, own = life.stream, life.address
        stream.marks = _make(Marks, (window.low, window.delivered, window.high))
        if own in stream.acks:
            stream.acks[own] = max(stream.acks[own], min(window.delivered, stream.high))
