"""The checks of what is not the stream to the group: connections, out-of-band, unreliable and acknowledged messages.

They are the same promises under the same names: S1 to S4, S8 and S9 for every connection, S5 for
out-of-band messages. A connection is a stream of its own: its first message is number 1, and from
there on everything is handed out once, in order and without a gap, whatever happens to either end.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

from gapless.delivery_mode import Mode
from gapless.protocol.ready import (
    ONE,
    OUT_OF_BAND,
    Accepted,
    Acknowledged,
    Connected,
    GivenUp,
    Stalled,
    StateReceived,
    Unacknowledged,
    Undelivered,
)
from gapless.run import BEGIN, END, PIECE
from gapless.sim.oracle.model import Stream
from gapless.sim.oracle.oracle import Check, Judge
from gapless.wire import Ack, Close, Data, Nak, OutOfBand, Tail, Unreliable

if TYPE_CHECKING:
    from gapless.identity import Address, View
    from gapless.protocol.ready import Delivery, Event
    from gapless.sim.oracle.model import Life
    from gapless.sim.oracle.model_update import Sent
    from gapless.wire import Frame


class Waiting(NamedTuple):
    """A message that was handed over and has not gone out yet."""

    ticket: int
    payload: bytes


class Line:
    """One connection, in one direction: what was sent on it, and how far its other end has come."""

    __slots__ = ("delivered", "ended", "next", "stream", "to")

    def __init__(self, to: Address) -> None:
        self.to = to
        self.stream = Stream()
        self.next = 1
        self.delivered = 0
        self.ended = False


class Connections(Check):
    """S1 to S4, S8 and S9 for every connection; L1, L3 and S16 for all of them at the end."""

    name = "S3"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self.lines: dict[tuple[Address, int], Line] = {}
        self.queues: dict[tuple[Address, Address], deque[Waiting]] = {}
        self._own: dict[tuple[Address, int], int] = {}

    def say(self, name: str, message: str) -> None:
        """Report that one of the promises does not hold."""
        self.judge.report(name, message)

    # What the application does

    def sent(self, life: Life, send: Sent) -> None:
        """A send to one member; what somebody sends to itself and does not want back goes nowhere."""
        to = send.to
        if to is None or send.refused or send.mode not in {Mode.ORDERED, Mode.ACKNOWLEDGED}:
            return
        if to != life.address or not send.not_back:
            queue = self.queues.setdefault((life.address, to), deque())
            queue.extend(Waiting(send.ticket, payload) for payload in send.payloads)
            self._own[life.address, send.ticket] = len(send.payloads)

    def told(self, life: Life, event: Event) -> None:
        """A send is given up, or a connection ends with something that is not known to have arrived."""
        if isinstance(event, GivenUp):
            for (sender, to), queue in self.queues.items():
                if sender == life.address and any(
                    waiting.ticket == event.ticket for waiting in queue
                ):
                    self._give_up(queue, event, sender, to)
        elif isinstance(event, Undelivered) and event.to is not None:
            for (sender, _), line in self.lines.items():
                if sender == life.address and line.to == event.to and not line.ended:
                    line.ended = line.stream.high == event.last
        elif (
            isinstance(event, Connected)
            and event.outgoing
            and event.state == "closed"
            and event.peer != life.address
        ):
            # Of what waited all was given up, but for a message under way in pieces, which goes
            # with its connection.
            queue = self.queues.pop((life.address, event.peer), deque())
            if len(queue) > 1:
                self.say(
                    "L1",
                    f"{life.name} ends its connection to {event.peer}, and {len(queue)} messages with it",
                )

    def _give_up(self, queue: deque[Waiting], event: GivenUp, sender: Address, to: Address) -> None:
        """Take the messages of a send out that were not taken; one that is under way in pieces stays."""
        line = next(
            (
                line
                for (who, _), line in reversed(self.lines.items())
                if who == sender and line.to == to
            ),
            None,
        )
        goes_on = (
            line is not None and line.stream.piece_bytes and event.reason in {"cancel", "timeout"}
        )
        under_way = queue[0] if goes_on else None
        # What one sends to itself leaves the queue only when it is handed out; the part that was
        # accepted stays.
        stays: list[Waiting] = []
        if to == sender and event.reason in {"cancel", "timeout"}:
            mine = [waiting for waiting in queue if waiting.ticket == event.ticket]
            handed = self._own[sender, event.ticket] - len(mine)
            stays = mine[: max(0, event.accepted - handed)]
        kept = [
            w
            for w in queue
            if w.ticket != event.ticket or w is under_way or any(w is one for one in stays)
        ]
        queue.clear()
        queue.extend(kept)

    # Frames

    def beside_out(self, life: Life, to: Address | None, frame: Frame) -> None:
        """Compare what goes out with what the application gave, and what is said with what is so."""
        if isinstance(frame, Data):
            self._data_out(life, to, frame)
        elif isinstance(frame, Ack):
            self._ack_out(life, to, frame)
        elif isinstance(frame, Nak):
            self._nak_out(life, to, frame)
        elif (
            isinstance(frame, Close)
            and (line := self.lines.get((life.address, frame.epoch))) is not None
        ):
            if not line.ended and line.delivered < line.stream.high:
                self.say(
                    "L1",
                    f"{life.name} closes its connection to {to} at {line.delivered}, and told nobody",
                )
            line.ended = True
        asks = isinstance(frame, Nak) and frame.ranges
        if self.judge.resting and (asks or isinstance(frame, Data)):
            self.say("L3", f"{life.name} sends {frame} to {to} at rest")
        elif self.judge.resting and isinstance(frame, Tail):
            self.say("S16", f"{life.name} sends {frame} to {to} at rest")

    def _data_out(self, life: Life, to: Address | None, frame: Data) -> None:
        run = frame.run
        if to is None or run.origin != life.address:
            self.say("S1", f"{run} of a connection goes to {to}")
            return
        line = self.lines.get((life.address, frame.epoch))
        if line is None:
            line = self.lines[life.address, frame.epoch] = Line(to)
        if line.to != to:
            self.say("S1", f"{run} of the connection to {line.to} goes to {to}")
        stream = line.stream
        if frame.repair:
            same = run.last <= stream.high and run.payload == stream.content(run.first, run.last)
            if not same:
                self.say("S10", f"{run} is sent again to {to} with other bytes than before")
            out = life.member.connections.outgoing.get(to)
            if (
                out is not None
                and out.stream.epoch == frame.epoch
                and run.last <= out.stream.window.low
            ):
                self.say("S10", f"{run} is sent again to {to}, which has acknowledged it")
            return
        if run.first != stream.high + 1:
            self.say(
                "S1", f"{run} goes out as new to {to}, but the connection stands at {stream.high}"
            )
            return
        if frame.first != (run.first == 1):
            self.say("S3", f"{run} is marked as first: {frame.first}")
        self._compare(life, line, frame)
        stream.append(run)

    def _compare(self, life: Life, line: Line, frame: Data) -> None:
        run, queue = frame.run, self.queues.get((life.address, line.to), deque())
        if run.flags & PIECE:
            pieces = line.stream.piece_bytes
            if bool(run.flags & BEGIN) == bool(pieces) or not queue:
                self.say("S1", f"{run} begins a message inside another, or goes on with none")
            pieces.append(run.payload)
            if run.flags & END:
                if queue and b"".join(pieces) != queue.popleft().payload:
                    self.say(
                        "S1",
                        f"the pieces up to {run} do not add up to the message of the application",
                    )
                line.stream.piece_bytes = []
            return
        for message in run.messages():
            if not queue or queue.popleft().payload != message:
                self.say(
                    "S1", f"{run} carries {message[:40]!r}, which the application did not give next"
                )
                return

    def _ack_out(self, life: Life, to: Address | None, frame: Ack) -> None:
        line = self.lines.get((frame.origin, frame.epoch))
        entry = life.member.connections.incoming.get(frame.origin)
        if line is None or to != frame.origin:
            self.say("S8", f"{frame} goes to {to} for a connection that nobody opened")
            return
        if (
            entry is not None
            and entry.stream.epoch == frame.epoch
            and entry.stream.window is not None
        ):
            line.delivered = max(line.delivered, entry.stream.window.delivered)
        if frame.seqno > line.delivered:
            self.say(
                "S8",
                f"{life.name} acknowledges {frame.seqno} of {frame.origin}, it has {line.delivered}",
            )

    def _nak_out(self, life: Life, to: Address | None, frame: Nak) -> None:
        line = self.lines.get((frame.origin, frame.epoch))
        if to != frame.origin:
            self.say("S11", f"{frame} goes to {to}")
        elif line is not None and any(
            first < line.next - 1 or last > line.stream.high for first, last in frame.ranges
        ):
            self.say(
                "S11",
                f"{life.name} asks for {frame.ranges}; it has {line.next - 1} of {line.stream.high}",
            )

    # Deliveries

    def handed(self, life: Life, delivery: Delivery) -> None:
        """Compare a delivery with what is next on its connection."""
        if delivery.kind != ONE:
            return
        if delivery.origin == life.address:
            self._handed_own(life, delivery)
            return
        line = self.lines.get((delivery.origin, delivery.epoch))
        if line is None or line.to != life.address or delivery.last > line.stream.high:
            self.say(
                "S1",
                f"{life.name} delivers {delivery.first}..{delivery.last} of {delivery.origin}, never sent",
            )
            return
        stream = line.stream
        due = stream.whole_from(line.next)
        if delivery.first != due:
            name = "S2" if delivery.first < due else "S3"
            self.say(
                name,
                f"{life.name} delivers {delivery.first} of its connection with {delivery.origin}, not {due}",
            )
        if b"".join(delivery.messages()) != stream.content(delivery.first, delivery.last):
            self.say(
                "S4",
                f"{life.name} delivers other bytes than {delivery.origin} sent as {delivery.first}",
            )
        line.next = delivery.last + 1
        line.delivered = max(line.delivered, delivery.last)

    def _handed_own(self, life: Life, delivery: Delivery) -> None:
        queue = self.queues.get((life.address, life.address), deque())
        for message in delivery.messages():
            if not queue or queue.popleft().payload != message:
                self.say(
                    "S3", f"{life.name} is handed {message[:40]!r} of its own, which is not next"
                )
                return

    # After a step, and at the end

    def stepped(self, life: Life) -> None:
        """Nothing is purged that the other end does not have; nothing whole is passed over."""
        connections = life.member.connections
        for to, out in connections.outgoing.items():
            line = self.lines.get((life.address, out.stream.epoch))
            if line is not None and to != life.address and out.stream.window.low > line.delivered:
                self.say(
                    "S9", f"low to {to} is {out.stream.window.low}, but {to} has {line.delivered}"
                )
        for origin, entry in connections.incoming.items():
            line, window = self.lines.get((origin, entry.stream.epoch)), entry.stream.window
            if line is None or window is None:
                continue
            line.delivered = max(line.delivered, window.delivered)
            due = line.stream.whole_from(line.next)
            if (
                due <= window.delivered
                and line.stream.end_of(due) <= window.delivered
                and not life.transferring
            ):
                self.say(
                    "S3",
                    f"delivered of {origin} moves to {window.delivered}, but {due} was not handed out",
                )
            ahead = window.stored
            if ahead > self.judge.reach:
                self.say(
                    "S6", f"{ahead} messages of {origin} are stored, {self.judge.reach} may be"
                )

    def close(self) -> None:
        """At rest everything that was sent to one who lives and is a member has been handed out."""
        if not self.judge.settled:
            return
        for (sender, _), line in self.lines.items():
            life, other = self.model.lives[sender], self.model.lives.get(line.to)
            if line.ended or other is None or not life.alive or not other.alive:
                continue
            together = line.to in life.view_members and sender in other.view_members
            if together and line.stream.whole_from(line.next) <= line.stream.high:
                self.judge.life = other
                self.say(
                    "L1",
                    f"{line.stream.high} was sent by {life.name}, {line.next - 1} was handed out",
                )


class S5(Check):
    """Out of band: nothing is created, handed out twice or changed; everybody it was for gets it; order is free."""

    name = "S5"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._queues: dict[Address, deque[tuple[Waiting, Address | None]]] = {}
        self._sent: dict[Address, list[bytes]] = {}
        self._owed: dict[tuple[Address, int], set[Address]] = {}
        self._handed: dict[tuple[Address, Address], set[int]] = {}
        self._bare: dict[Address, Counter[bytes]] = {}
        self._given: dict[bytes, dict[Address, set[int]]] = {}
        self._numbered: Counter[tuple[Address, int]] = Counter()

    def sent(self, life: Life, send: Sent) -> None:
        """A send beside the stream."""
        if send.refused:
            return
        if send.mode == Mode.UNRELIABLE:
            self._bare.setdefault(life.address, Counter()).update(send.payloads)
        elif send.mode == Mode.OUT_OF_BAND:
            queue = self._queues.setdefault(life.address, deque())
            queue.extend((Waiting(send.ticket, payload), send.to) for payload in send.payloads)

    def _number(self, life: Life, upto: int) -> list[bytes]:
        """Learn that out-of-band messages up to ``upto`` have their numbers; return all that have one."""
        sent = self._sent.setdefault(life.address, [])
        queue = self._queues.get(life.address, deque())
        while len(sent) < upto and queue:
            waiting, to = queue.popleft()
            sent.append(waiting.payload)
            owed = set(life.view_members) if to is None else {to}
            self._owed[life.address, len(sent)] = owed - {life.address}
            self._numbered[life.address, waiting.ticket] += 1
        return sent

    def told(self, life: Life, event: Event) -> None:
        """Out-of-band sends get their numbers, or are given up."""
        queue = self._queues.get(life.address)
        if not queue or not isinstance(event, (Accepted, GivenUp)):
            return
        if all(waiting.ticket != event.ticket for waiting, _ in queue):
            return
        if isinstance(event, Accepted):
            self._number(life, event.last)
        else:
            numbered = self._numbered[life.address, event.ticket]
            self._number(life, len(self._sent.get(life.address, ())) + event.accepted - numbered)
            kept = [entry for entry in queue if entry[0].ticket != event.ticket]
            queue.clear()
            queue.extend(kept)

    def beside_out(self, life: Life, to: Address | None, frame: Frame) -> None:
        """What goes out is what was given; at rest nothing goes out."""
        if isinstance(frame, OutOfBand):
            run, sent = frame.run, self._number(life, frame.run.last)
            if (
                run.origin != life.address
                or run.last > len(sent)
                or run.messages() != sent[run.first - 1 : run.last]
            ):
                self.fail(
                    f"{run} goes out of band to {to} with other bytes than the application gave"
                )
            if self.judge.resting:
                self.judge.report("L3", f"{life.name} sends {frame} to {to} at rest")
        elif isinstance(frame, Unreliable) and frame.run.payload not in self._bare.get(
            life.address, {}
        ):
            self.fail(f"{frame.run} goes out unreliably, but the application did not give it")

    def handed(self, life: Life, delivery: Delivery) -> None:
        """Once each, and with the bytes that were sent."""
        if delivery.kind == ONE:
            return
        if delivery.kind != OUT_OF_BAND:
            if any(
                message not in self._bare.get(delivery.origin, {})
                for message in delivery.messages()
            ):
                self.fail(f"{life.name} delivers unreliably what {delivery.origin} did not send")
            return
        sent = self._number(self.model.lives[delivery.origin], delivery.last)
        if delivery.messages() != sent[delivery.first - 1 : delivery.last]:
            self.fail(
                f"{life.name} delivers {delivery.first} of {delivery.origin} out of band, which was not sent so"
            )
        before = self._handed.setdefault((life.address, delivery.origin), set())
        for seqno in range(delivery.first, delivery.last + 1):
            if seqno in before:
                self.fail(f"{life.name} delivers {seqno} of {delivery.origin} out of band again")
            before.add(seqno)

    def gave(self, life: Life, state: bytes) -> None:
        """A state has what its giver was handed."""
        mine = (
            (origin, seqnos)
            for (who, origin), seqnos in self._handed.items()
            if who == life.address
        )
        self._given[state] = {origin: set(seqnos) for origin, seqnos in mine}

    def event(self, life: Life, event: Event) -> None:
        """Who gets a state has what is in it, and is not handed that again."""
        if isinstance(event, StateReceived):
            for origin, seqnos in self._given.get(event.state, {}).items():
                self._handed.setdefault((life.address, origin), set()).update(seqnos)

    def view(self, life: Life, view: View) -> None:
        """Who has left is owed nothing any more."""
        gone = life.view_members.difference(view.members)
        if gone:
            for (origin, _), owed in self._owed.items():
                if origin == life.address:
                    owed.difference_update(gone)

    def close(self) -> None:
        """At rest nobody is owed anything."""
        if not self.judge.settled:
            return
        for (origin, seqno), owed in self._owed.items():
            sender = self.model.lives[origin]
            for peer in sorted(owed):
                other = self.model.lives[peer]
                if (
                    sender.alive
                    and other.alive
                    and seqno not in self._handed.get((peer, origin), ())
                ):
                    self.judge.life = other
                    self.fail(f"{seqno} of {sender.name} out of band never came")


class Acknowledgements(Check):
    """S8 for whole sends: one that is reported as acknowledged has been delivered by everybody that counts."""

    name = "S8"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._asked: dict[tuple[Address, int], Address | None] = {}
        self._last: dict[tuple[Address, int], tuple[int, int]] = {}

    def sent(self, life: Life, send: Sent) -> None:
        """An acknowledged send."""
        if send.mode == Mode.ACKNOWLEDGED and not send.refused:
            self._asked[life.address, send.ticket] = send.to

    def event(self, life: Life, event: Event) -> None:
        """Compare the report with what has been delivered."""
        if isinstance(event, Accepted):
            self._last[life.address, event.ticket] = event.last, life.epoch
        elif isinstance(event, (GivenUp, Unacknowledged)):
            self._asked.pop((life.address, event.ticket), None)
        elif (
            isinstance(event, Acknowledged) and (key := (life.address, event.ticket)) in self._asked
        ):
            to, (last, epoch) = self._asked.pop(key), self._last[key]
            if to is None:
                self._check_group(life, last, epoch)

    def _check_group(self, life: Life, last: int, epoch: int) -> None:
        stream = self.model.stream_of(life.address, epoch)
        for member in life.view_members - {life.address}:
            # One that joined after the send is not among its receivers.
            start = stream.starts.get(member, last)
            taken = max(self.model.lives[member].has_taken(life.address, epoch), start)
            if taken < last:
                self.fail(f"{life.name} has {last} acknowledged by all, but {member} has {taken}")
            if (stored := self._stored_by(member, life.address, taken, start)) < last:
                self.fail(
                    f"{life.name} has {last} acknowledged by all, but {member} has stored {stored}"
                )
        for place in life.roster.away if life.roster is not None else ():
            if stream.acks.get(place.address, last) < last:
                self.fail(
                    f"{life.name} has {last} acknowledged by all, but {place.name}, away, has not got it"
                )

    def _stored_by(self, member: Address, origin: Address, taken: int, start: int) -> int:
        """Return up to where a member has what it acknowledges: on its disk, if it stores what it gets."""
        stored = self.model.lives[member].stored
        return taken if stored is None else max(stored.get(origin, 0), start)

    def close(self) -> None:
        """At rest no acknowledged send is open."""
        if not self.judge.settled:
            return
        for sender, ticket in self._asked:
            if self.model.lives[sender].alive and (sender, ticket) in self._last:
                self.fail(f"send {ticket} of {sender} was never reported as acknowledged")


class Stalls(Check):
    """Order without retransmission: nothing is asked for, and a gap that stays is reported."""

    name = "L1"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._named: set[tuple[Address, Address, int]] = set()
        self.stalls = 0

    def event(self, life: Life, event: Event) -> None:
        """A stall names what is missing."""
        if isinstance(event, Stalled):
            self.stalls += 1
            self._named.add((life.address, event.origin, event.seqno))

    def nak_out(self, life: Life, to: Address | None, frame: Nak) -> None:
        """Nobody asks."""
        if not life.member.config.retransmits:
            self.fail(f"{life.name} asks {to} for {frame.ranges}, but retransmission is off")

    def data_out(self, life: Life, to: Address | None, frame: Data) -> None:
        """Nothing is sent twice."""
        if frame.repair and not self.config.retransmits and not self.judge.tuned:
            self.fail(f"{life.name} sends {frame.run} to {to} again, but retransmission is off")

    def tail_out(self, life: Life, to: Address | None, frame: Tail) -> None:
        """Only the start of a new member is told."""
        if frame.start is None and not life.member.config.retransmits:
            self.fail(f"{life.name} announces {frame} to {to}, but retransmission is off")

    def close(self) -> None:
        """What does not come is named: everything stored behind a gap at the end has its stall."""
        if self.config.retransmits or self.judge.settled:
            return
        for life in self.model.lives.values():
            if not life.alive:
                continue
            for origin, stream in life.member.inbound.items():
                window = stream.window
                if window is None or window.high == window.delivered or window.next_is_there:
                    continue
                if (life.address, origin, window.delivered + 1) not in self._named:
                    self.judge.life = life
                    self.fail(
                        f"{window.delivered + 1} of {origin} is missing for good, and nobody was told"
                    )


BESIDE: tuple[type[Check], ...] = (Connections, S5, Acknowledgements, Stalls)
"""The checks of this file."""
