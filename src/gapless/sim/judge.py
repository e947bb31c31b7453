"""The judge: watches every step of every member, keeps the model, and lets each check look.

On every step: frames that came in are shown to the checks, then learnt; then come the rows of the trace, the frames
that went out, events, deliveries, and last the marks of the windows. A check looks before the model learns, so it can
compare what happened with what had to happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.core.ready import GivenUp, Lost, Oversized, Refused, Started
from gapless.identity import Marks
from gapless.run import END, PIECE
from gapless.sim.faults import NEVER_NS
from gapless.sim.model import Heard, Life, Model, Waiting
from gapless.wire import Ack, Data, Datagram, Gone, Nak, Tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.config import Config
    from gapless.core.member import Member
    from gapless.core.ready import Delivery, Event, Ready
    from gapless.core.window import Window
    from gapless.identity import Address, Digest, View
    from gapless.run import Run
    from gapless.sim.network import Books

_make = tuple.__new__

EVENTS = (
    "SEND",
    "STORE",
    "DROPPED",
    "ACK_OUT",
    "ACK_IN",
    "NAK_OUT",
    "NAK_IN",
    "REPAIR",
    "SUPPRESSED",
    "GONE_OUT",
    "GONE_IN",
    "TAIL_OUT",
    "TAIL_IN",
    "PURGE",
    "BLOCK",
    "UNBLOCK",
    "TIMER",
    "VIEW",
    "STATE",
)
"""Every event that a member writes into its trace."""

SAMPLE_STEPS = 8
"""What costs too much at every step is looked at once in so many."""

MOST_VIOLATIONS = 20
"""A run that is this broken says nothing new any more; the judge stops counting."""

Outgoing = list[tuple["Address | None", Datagram]]
"""The datagrams of one step, decoded, with their destinations."""

Hooks = dict[type, "tuple[Callable[..., None], ...]"]
"""What is called for a frame, by the frame's type."""


class Violation(NamedTuple):
    """A promise that was broken: which check, when, at whom, and what exactly."""

    check: str
    t_ns: int
    member: str
    message: str

    def __str__(self) -> str:
        return f"{self.check} at {self.t_ns / 1e9:.6f} s, member {self.member}: {self.message}"


class Expected(NamedTuple):
    """What must become of the messages that one datagram brings."""

    accepted: int = 0
    duplicate: int = 0
    old: int = 0
    far: int = 0
    early: int = 0

    def plus(self, other: Expected) -> Expected:
        """Return the sum."""
        if self is NOTHING:
            return other
        return Expected(*(mine + its for mine, its in zip(self, other, strict=True)))


NOTHING = Expected()


class Check:
    """One invariant. A check defines the hooks it needs; the judge calls those and no others.

    The hooks, in the order in which one step calls them: ``refused`` (a datagram that must change nothing),
    ``data_in``, ``ack_in``, ``nak_in``, ``tail_in``, ``gone_in``, ``row_x`` for trace rows of event ``X``,
    ``data_out``, ``ack_out``, ``nak_out``, ``tail_out``, ``gone_out``, ``event``, ``delivered``, ``moved`` for each
    stream of another whose marks may have moved, ``own_moved`` if those of the own stream have, and whatever was put
    into ``judge.at_end``; of every so many steps ``sampled`` sees the whole. Beside the steps: ``timed`` when a time
    has come that was given to ``judge.look_at``, ``view`` before a view is installed, ``close`` when the run is over.

    A check that is ``only_at_rest`` sees the frames that go out while the group rests, and no others.
    """

    name = ""
    only_at_rest = False

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.model = judge.model
        self.config = judge.config

    def fail(self, message: str) -> None:
        """Report that the invariant does not hold."""
        self.judge.report(self.name, message)


class Judge:
    """All checks over one run.

    The world sets what only it can know: ``resting`` once the group has settled, ``settled`` if it ever did,
    ``last_arrival_ns``, the ``books`` of all links, and ``cost`` (data frames lost, and in how many bursts) if loss was
    the only fault at work.
    """

    def __init__(
        self, config: Config, checks: Iterable[type[Check]], *, calm_ns: int = 0, bounds_ns: tuple[int, int] = (0, 0)
    ) -> None:
        self.config = config
        self.calm_ns = calm_ns
        self.bounds_ns = bounds_ns
        self._resting = False
        self.settled = False
        self.last_arrival_ns = -1
        self.cost: tuple[int, int] | None = None
        self.model = Model(config)
        self.violations: list[Violation] = []
        self.steps = 0
        self.t_ns = 0
        self.local_ns = 0
        self.life: Life | None = None
        self.books: dict[tuple[str, str], Books] = {}
        self.expected = NOTHING
        self.at_end: list[Callable[[Life], None]] = []
        self._digest: Digest = {}
        self._departing: list[Address] = []
        self.look_ns = calm_ns
        self.reach = config.capacity if config.window == "fixed" else config.far_limit
        self.checks = [check(self) for check in checks]
        self._refused = self._hooks("refused")
        self._incoming: Hooks = {
            Data: (*self._hooks("data_in"), self._learn_data),
            Ack: (*self._hooks("ack_in"), self._learn_ack),
            Nak: self._hooks("nak_in"),
            Tail: (*self._hooks("tail_in"), self._learn_tail),
            Gone: (*self._hooks("gone_in"), self._learn_gone),
        }
        self._rows = {event: self._hooks(f"row_{event.lower()}") for event in EVENTS}
        self._outgoing = self._frames_out()
        self._event = self._hooks("event")
        self._delivered = self._hooks("delivered")
        self._moved = self._hooks("moved")
        self._own_moved = self._hooks("own_moved")
        self._timed = self._hooks("timed")
        self._view = self._hooks("view")
        self._close = self._hooks("close")
        self._sampled = self._hooks("sampled")

    @property
    def resting(self) -> bool:
        """Whether the group has settled and must be silent; the checks of silence look only then."""
        return self._resting

    @resting.setter
    def resting(self, resting: bool) -> None:
        self._resting = resting
        self._outgoing = self._frames_out()

    def _frames_out(self) -> Hooks:
        """Return what is called for each kind of frame that goes out; the model learns last."""
        return {
            Data: (*self._hooks("data_out"), self._learn_data_out),
            Ack: self._hooks("ack_out"),
            Nak: self._hooks("nak_out"),
            Tail: self._hooks("tail_out"),
            Gone: self._hooks("gone_out"),
        }

    def _hooks(self, hook: str) -> tuple[Callable[..., None], ...]:
        checks = [check for check in self.checks if hasattr(check, hook)]
        return tuple([getattr(check, hook) for check in checks if self._resting or not check.only_at_rest])

    def report(self, check: str, message: str) -> None:
        """Note a violation of ``check`` at the member whose step is being looked at."""
        if len(self.violations) < MOST_VIOLATIONS:
            name = self.life.name if self.life is not None else "-"
            self.violations.append(Violation(check, self.t_ns, name, message))

    # What the world tells

    def begin(self, address: Address, name: str, member: Member) -> Life:
        """Meet a new life."""
        life = self.model.lives[address] = Life(address, name, member)
        return life

    def end(self, life: Life) -> None:
        """Take note of the end of a life."""
        life.alive = False

    def install(self, life: Life, view: View, digest: Digest | None, t_ns: int) -> None:
        """Take note of a view that ``life`` is about to be given."""
        self.t_ns, self.life = t_ns, life
        for hook in self._view:
            hook(life, view)
        life.view = view
        life.view_members = frozenset(view.members)
        stream = life.stream
        stream.acks = {member: stream.acks.get(member, stream.high) for member in view.members}
        stream.starts = {member: stream.starts.get(member, stream.high) for member in view.members}
        heard = life.heard
        for origin in [origin for origin in heard if origin not in life.view_members]:
            life.departed[origin] = heard.pop(origin)
            self._departing.append(origin)
        for origin in view.members:
            if origin not in heard and origin != life.address:
                marks, former = (digest or {}).get(origin), life.departed.pop(origin, None)
                start = None if marks is None else marks.delivered
                if former is None:
                    heard[origin] = Heard(start)
                else:
                    stream = self.model.lives[origin].stream
                    heard[origin] = Heard(start, former.end(stream))
                    heard[origin].forgiven = max(stream.marks.low, life.taken[origin])

    def learn(self, digest: Digest) -> None:
        """Take note of a digest that the next step is about."""
        self._digest = digest

    def send(self, life: Life, payloads: Sequence[bytes], loopback: bool | None, ready: Ready) -> None:
        """Take note of a send that ``ready`` answers."""
        not_back = not (self.config.loopback if loopback is None else loopback)
        if Refused(ready.ticket) not in ready.events:
            life.stream.queue += [Waiting(ready.ticket, payload, not_back) for payload in payloads]

    def before(self, life: Life, said: Datagram | None) -> object:
        """Return a fingerprint of the member if what it is about to receive must leave it unchanged, else None."""
        if said is None or said.sender not in life.heard or said.group != life.member.group:
            return self.fingerprint(life)
        return None

    @staticmethod
    def fingerprint(life: Life) -> object:
        """Return all of a member's state that a refused datagram must leave alone."""
        return life.member.snapshot(), life.member.deadline_ns, life.member.view

    # One step

    def step(
        self,
        life: Life,
        cause: str,
        said: Datagram | None,
        ready: Ready,
        outgoing: Outgoing,
        local_ns: int,
        t_ns: int,
        before: object = None,
    ) -> None:
        """Look at one step: what came in, what the member answered, and what its windows look like now."""
        self.steps += 1
        self.t_ns, self.local_ns, self.life = t_ns, local_ns, life
        self.expected = NOTHING
        moved: Iterable[Address] = ()
        if cause == "receive":
            moved = self._hear(life, said, before, ready)
        elif cause in _MOVES_ANY:
            moved = life.heard
            if cause == "learn":
                self._learn_digest(life)
        events = ready.events
        if events:
            self._learn_events(life, events)
        rows = self._rows
        for row in ready.trace:
            for hook in rows.get(row.event, ()):
                hook(life, row)
        for to, out in outgoing:
            for frame in out.frames:
                for hook in self._outgoing[type(frame)]:
                    hook(life, to, frame)
        if events or ready.deliveries:
            self._look_at_results(life, ready)
        self._look_at_marks(life, moved)
        if self.steps % SAMPLE_STEPS == 0:
            for hook in self._sampled:
                hook(life, ready, outgoing)

    def _look_at_results(self, life: Life, ready: Ready) -> None:
        """Look at what the application is told and given."""
        for event in ready.events:
            for hook in self._event:
                hook(life, event)
        for delivery in ready.deliveries:
            heard = life.hearing(delivery.origin)
            for hook in self._delivered:
                hook(life, heard, delivery)
            self._learn_delivery(life, heard, delivery)

    def _hear(self, life: Life, said: Datagram | None, before: object, ready: Ready) -> tuple[Address, ...]:
        """Look at and learn what came in; return whose stream may have moved by it."""
        self.last_arrival_ns = self.t_ns
        if before is not None or said is None:
            for hook in self._refused:
                hook(life, said, before, ready)
            return ()
        sender = said.sender
        heard = life.heard[sender]
        for frame in said.frames:
            kind = type(frame)
            whose = sender if kind is Ack or kind is Nak else heard
            for hook in self._incoming[kind]:
                hook(life, whose, frame)
        return (sender,)

    def _look_at_marks(self, life: Life, moved: Iterable[Address]) -> None:
        """Look at the windows that may have moved, then at what was put off to the end of the step."""
        if self._departing:
            self._learn_departures(life)
        for origin in moved:
            self._look_at_stream(life, origin)
        window = life.member.outbound.window
        low, delivered, high = life.stream.marks
        if window.high != high or window.delivered != delivered or window.low != low:
            for hook in self._own_moved:
                hook(life, window)
            self._learn_own_marks(life, window)
        if self.at_end:
            for hook in self.at_end:
                hook(life)
            self.at_end.clear()
        if self.t_ns >= self.look_ns:
            self.look_ns = NEVER_NS
            for hook in self._timed:
                hook()

    def _look_at_stream(self, life: Life, origin: Address) -> None:
        window = life.member.inbound[origin].window
        heard = life.heard[origin]
        if window is None or not heard.open:
            return
        low, delivered, high = heard.marks
        moves = window.delivered != delivered or window.high != high or window.low != low
        if moves or self.expected is not NOTHING:
            for hook in self._moved:
                hook(life, origin, heard, window)
            if moves:
                self._learn_marks(heard, window)

    def look_at(self, t_ns: int) -> None:
        """Let the ``timed`` hooks look at the first step at or after ``t_ns``."""
        self.look_ns = min(self.look_ns, t_ns)

    def close(self, t_ns: int) -> None:
        """Let the checks look at the whole run, which is over."""
        self.t_ns, self.life = t_ns, None
        for hook in self._close:
            hook()

    # Learning: what came in

    def _learn_data(self, life: Life, heard: Heard, frame: Data) -> None:
        run = frame.run
        if life.heard.get(run.origin) is not heard:
            return
        expected = self._take(heard, run.first, run.last)
        self.expected = expected if self.expected is NOTHING else self.expected.plus(expected)

    def _take(self, heard: Heard, first: int, last: int) -> Expected:
        """Learn that ``first .. last`` has arrived; return what must become of it."""
        if not heard.open:
            if len(heard.early) < self.config.become_server_queue_size:
                heard.early.append((first, last))
                return NOTHING
            return Expected(early=last - first + 1)
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
        return _make(Expected, (accepted, total - old - far - accepted, old, far, 0))

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
        elif frame.start is not None and frame.reader == life.address.incarnation and heard.delivered == heard.start:
            # The sender moves a start that nothing has been delivered from: what lies before it is not for this life.
            heard.gone = max(heard.gone, frame.start)
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
            if not heard.open and origin in self._digest:
                self._begin_stream(heard, self._digest[origin].delivered)

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
                self._learn_skip(life.heard[event.origin], event)

    def _learn_skip(self, heard: Heard, event: Oversized | Lost | Started) -> None:
        """Learn that a stream leaves something out, and check that it may: only what is gone, and not there."""
        if isinstance(event, Oversized):
            heard.next = event.last + 1
        elif isinstance(event, Lost):
            if event.last > heard.gone or heard.held & heard.bits(event.first, event.last):
                self.report("S3", f"{event} is reported, but is not gone (up to {heard.gone}) or is there")
            heard.lose(event.first, event.last)
        elif event.start != heard.start:
            if heard.delivered != heard.start or event.start > heard.gone:
                self.report("S3", f"{event}: {heard.delivered} was delivered and {heard.gone} is gone")
            heard.restart(event.start)

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
            heard, stream = life.departed[origin], self.model.lives[origin].stream
            heard.move_to(heard.consecutive())
            life.taken[origin] = max(life.taken.get(origin, 0), heard.delivered)
            if heard.open and stream.end_of(heard.due(stream)) <= heard.delivered:
                self.report("S3", f"{origin} departs, but {heard.due(stream)} was there and was not handed out")
        self._departing.clear()

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


_MOVES_ANY = ("install", "consume", "learn")
