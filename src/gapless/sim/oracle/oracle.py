"""The judge: watches every step of every member, keeps the model, and lets each check look.

On every step: frames that came in are shown to the checks, then learnt; then come the rows of the
trace, the frames that went out, events, deliveries, and last the marks of the windows. A check
looks before the model learns, so it can compare what happened with what had to happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from gapless.delivery_mode import Mode
from gapless.faults.faults import NEVER_NS
from gapless.protocol.dispatch import Streams
from gapless.protocol.ready import GROUP, Refused, StateReceived
from gapless.sim.oracle.model import Heard, Life, Model, Waiting
from gapless.sim.oracle.model_update import NOTHING, Expected, Learner, Sent, Violation
from gapless.wire import (
    Ack,
    Close,
    Data,
    Datagram,
    Gone,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    Tail,
    Unreliable,
    Vote,
)
from gapless.wire.frames import CONNECTION, Alive, Membership, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gapless.config import Config
    from gapless.identity import Address, Digest, Roster, View
    from gapless.protocol.endpoint import Member
    from gapless.protocol.ready import Delivery, Ready
    from gapless.sim.world.network import Books
    from gapless.wire import Frame

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
    "EARLY",
    "VOTE_OUT",
    "VOTE_IN",
    "STABLE_OUT",
    "STABLE_IN",
    "SEND_ASIDE",
    "STORE_ASIDE",
    "REPAIR_ASIDE",
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


class Check:
    """One invariant. A check defines the hooks it needs; the judge calls those and no others.

    The hooks, in the order in which one step calls them: ``refused`` (a datagram that must change
    nothing), ``data_in``, ``ack_in``, ``nak_in``, ``tail_in``, ``gone_in``, ``row_x`` for trace
    rows of event ``X``, ``data_out``, ``ack_out``, ``nak_out``, ``tail_out``, ``gone_out``,
    ``event``, ``delivered``, ``moved`` for each stream of another whose marks may have moved,
    ``own_moved`` if those of the own stream have, and whatever was put into ``judge.at_end``; of
    every so many steps ``sampled`` sees the whole. Beside the steps: ``timed`` when a time has come
    that was given to ``judge.look_at``, ``view`` before a view is installed, ``close`` when the run
    is over.

    What is not the stream to the group has hooks of its own: ``sent`` for every send, ``beside_in``
    and ``beside_out`` for frames, ``told`` for events before the frames are looked at, ``handed``
    for deliveries, ``stepped`` after a step of a member that has connections. Frames about
    membership and state have ``about_in`` and ``about_out``; ``began`` and ``ended`` tell of lives,
    ``gave`` of a state that is given, ``scattered`` that a group which was one has another view to
    come.

    A check that is ``only_at_rest`` sees the frames that go out while the group rests, and no
    others.
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


class Judge(Learner):
    """All checks over one run.

    The world sets what only it can know: ``resting`` once the group has settled, ``settled`` if it
    ever did, ``last_arrival_ns``, the ``books`` of all links, and ``cost`` (data frames lost, and
    in how many bursts) if loss was the only fault at work.
    """

    def __init__(
        self,
        config: Config,
        checks: Iterable[type[Check]],
        *,
        calm_ns: int = 0,
        bounds_ns: tuple[int, int] = (0, 0),
        membership: bool = False,
    ) -> None:
        self.config = config
        self.membership = membership
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
        # Where views are found and not told, everything has its time from when there is one group
        # on.
        self.look_ns = NEVER_NS if membership else calm_ns
        self.gathered_ns: int | None = None
        self.last_fault_ns = calm_ns
        self.gentle = self.calm = False
        self.group_bound_ns = 0
        self.rested_ns = 0
        self.states: dict[bytes, dict[tuple[Address, int], int]] = {}
        self.reach = config.reach
        self.by_view = config.row.numbering == "view"
        self.keeps = config.row.release == "stability" and not config.discard_delivered
        self.tuned = False
        self.sheds = False
        self._called: list[Datagram] = []
        self._called_later: list[Data] = []
        self._too_late = 0
        self.checks = [check(self) for check in checks]
        self._gather_hooks()

    def _gather_hooks(self) -> None:
        """Find out once which check wants to be called for what."""
        self._refused = self._hooks("refused")
        self._incoming: Hooks = {
            Data: (*self._hooks("data_in"), self._learn_data),
            Ack: (*self._hooks("ack_in"), self._learn_ack),
            Nak: self._hooks("nak_in"),
            Tail: (*self._hooks("tail_in"), self._learn_tail),
            Gone: (*self._hooks("gone_in"), self._learn_gone),
        }
        self._beside_in = self._hooks("beside_in")
        self._sent = self._hooks("sent")
        self._told = self._hooks("told")
        self._handed = self._hooks("handed")
        self._stepped = self._hooks("stepped")
        self._rows = {event: self._hooks(f"row_{event.lower()}") for event in EVENTS}
        self._outgoing = self._frames_out()
        self._event = self._hooks("event")
        self._delivered = self._hooks("delivered")
        self._moved = self._hooks("moved")
        self._own_moved = self._hooks("own_moved")
        self._timed = self._hooks("timed")
        self._find_other_hooks()

    def _find_other_hooks(self) -> None:
        """Find what is called beside the steps, and about the group."""
        self._view = self._hooks("view")
        self._close = self._hooks("close")
        self._sampled = self._hooks("sampled")
        self._about_in = self._hooks("about_in")
        self._scattered = self._hooks("scattered")
        self._began = self._hooks("began")
        self._ended = self._hooks("ended")
        self._gave = self._hooks("gave")

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
            **dict.fromkeys(_BESIDE, self._hooks("beside_out")),
            **dict.fromkeys(ABOUT, self._hooks("about_out")),
        }

    def _hooks(self, hook: str) -> tuple[Callable[..., None], ...]:
        checks = [check for check in self.checks if hasattr(check, hook)]
        return tuple(
            [getattr(check, hook) for check in checks if self._resting or not check.only_at_rest]
        )

    def report(self, check: str, message: str) -> None:
        """Note a violation of ``check`` at the member whose step is being looked at."""
        if len(self.violations) < MOST_VIOLATIONS:
            name = self.life.name if self.life is not None else "-"
            self.violations.append(Violation(check, self.t_ns, name, message))

    # What the world tells

    def begin(self, address: Address, name: str, member: Member) -> Life:
        """Meet a new life."""
        life = self.model.lives[address] = Life(address, name, member, self.model)
        for hook in self._began:
            hook(life)
        return life

    def end(self, life: Life) -> None:
        """Take note of the end of a life."""
        life.alive = False
        for hook in self._ended:
            hook(life)

    def gather(self, t_ns: int) -> None:
        """Take note that everybody that lives is in one view: from here on messages have their time."""
        if self.gathered_ns is None:
            self.gathered_ns = t_ns
            self.look_at(t_ns)

    def scatter(self) -> None:
        """Take note that there will be another view: what has its time gets it anew."""
        if self.gathered_ns is not None:
            self.gathered_ns, self.look_ns = None, NEVER_NS
            for hook in self._scattered:
                hook()

    def give_state(
        self, life: Life, state: bytes, handed: Mapping[tuple[Address, int], int]
    ) -> None:
        """Take note of a state that an application gives.

        It covers what the application was ``handed`` of each stream, and what came before the
        streams of the giver.
        """
        before = {
            (origin, heard.epoch): heard.due() - 1
            for origin, heard in life.heard.items()
            if heard.open
        }
        own = {(life.address, life.epoch): life.own_next - 1}
        self.states[state] = {**handed, **before, **own}
        for hook in self._gave:
            hook(life, state)

    def install(
        self,
        life: Life,
        view: View,
        digest: Digest | None,
        t_ns: int,
        local_ns: int = 0,
        *,
        roster: Roster | None = None,
    ) -> None:
        """Take note of a view that ``life`` is about to be given, with its ``roster`` where the members made it."""
        self.t_ns, self.local_ns, self.life = t_ns, local_ns, life
        for hook in self._view:
            hook(life, view)
        first_view = life.view is None and not life.durable
        life.view = view
        life.view_members = frozenset(view.members)
        heard = life.heard
        for origin in [
            origin for origin in heard if self.by_view or origin not in life.view_members
        ]:
            life.departed[origin] = heard.pop(origin)
            self._departing.append(origin)
        if self.by_view:
            life.restart(view.id.number)
        stream = life.stream
        counted = self._learn_places(life, view, roster)
        stream.acks = {member: stream.acks.get(member, stream.high) for member in counted}
        stream.starts = {member: stream.starts.get(member, stream.high) for member in counted}
        for origin in view.members:
            if origin not in heard and origin != life.address:
                self._hear_of(life, origin, digest or {})
        self._called, self._too_late = life.room.call(
            life, life.member.config, first_view=first_view
        )
        self._called_later, past = life.room.call_later(life)
        self._too_late += past

    def _hear_of(self, life: Life, origin: Address, digest: Digest) -> None:
        """Begin to listen to a member of the new view."""
        if self.by_view:
            life.heard[origin] = Heard(self.model.stream_of(origin, life.epoch), 0, 0, life.epoch)
            life.heard[origin].cover(life.covered.get((origin, life.epoch), 0))
            return
        marks, former = digest.get(origin), life.departed.pop(origin, None)
        start, stream = None if marks is None else marks.delivered, self.model.stream_of(origin, 0)
        if former is None:
            life.heard[origin] = Heard(stream, start, life.resumed.get(origin, 0))
        else:
            life.heard[origin] = Heard(
                stream, start, former.delivered if life.transferring else former.end()
            )
            if life.transferring:
                life.heard[origin].owe(former.next, former.delivered)
            life.heard[origin].forgiven = max(stream.marks.low, life.taken[origin, 0])
        life.heard[origin].cover(life.covered.get((origin, 0), 0))
        if marks is not None:
            self._learn_hint(life, origin, marks)

    def learn(self, digest: Digest) -> None:
        """Take note of a digest that the next step is about."""
        self._digest = digest

    def send(
        self,
        life: Life,
        payloads: Sequence[bytes],
        ready: Ready,
        *,
        loopback: bool | None = None,
        to: Address | None = None,
        mode: str = Mode.ORDERED,
    ) -> None:
        """Take note of a send that ``ready`` answers."""
        not_back = not ((self.config.loopback or to is not None) if loopback is None else loopback)
        refused = any(isinstance(event, Refused) for event in ready.events)
        sent = Sent(tuple(payloads), to, mode, not_back, ready.ticket, refused)
        for hook in self._sent:
            hook(life, sent)
        if to is not None or mode in {Mode.OUT_OF_BAND, Mode.UNRELIABLE}:
            return
        life.tickets.add(ready.ticket)
        if not sent.refused:
            life.stream.queue += [Waiting(ready.ticket, payload, not_back) for payload in payloads]

    def before(self, life: Life, said: Datagram | None) -> object:
        """Return a fingerprint of the member if what it is about to receive must leave it unchanged, else None."""
        if said is None or not self._is_meant(life, said):
            return self.fingerprint(life)
        if self.membership:
            said = of_streams(said)
            if not said.frames:
                return None
        if said.sender in life.heard or life.room.admits(life, said, life.member.config):
            return None
        return self.fingerprint(life)

    def fingerprint(self, life: Life) -> object:
        """Return all of a member's state that a refused datagram must leave alone.

        One that finds its views by itself may answer a sign of life, whoever it is from; its
        streams stay as they are.
        """
        if self.membership:
            return Streams.snapshot(life.member), life.member.view
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
        elif cause in _MOVES_ANY or self.keeps:
            moved = life.heard
            self._learn_cause(life, cause)
        events = ready.events
        if events:
            if life.transferring and any(isinstance(event, StateReceived) for event in events):
                moved = life.heard  # what there was no room for moves on
            self._learn_events(life, events)
            for event in events:
                for hook in self._told:
                    hook(life, event)
        rows = self._rows
        for row in ready.trace:
            if row.epoch < CONNECTION:
                for hook in rows.get(row.event, ()):
                    hook(life, row)
        for to, out in outgoing:
            self._look_at_frames(life, to, out)
        if events or ready.deliveries:
            self._look_at_results(life, ready)
        self._look_at_marks(life, moved)
        if self.steps % SAMPLE_STEPS == 0:
            for hook in self._sampled:
                hook(life, ready, outgoing)

    def _look_at_frames(self, life: Life, to: Address | None, out: Datagram) -> None:
        for frame in out.frames:
            kind = type(frame)
            if kind in self._incoming and frame.epoch >= CONNECTION:  # type: ignore[union-attr]
                kind = Close
            for hook in self._outgoing.get(kind, ()):
                hook(life, to, frame)

    def _learn_cause(self, life: Life, cause: str) -> None:
        if cause == "learn":
            self._learn_digest(life)
        elif cause == "install":
            self._hear_called(life)

    def _look_at_results(self, life: Life, ready: Ready) -> None:
        """Look at what the application is told and given."""
        for event in ready.events:
            for hook in self._event:
                hook(life, event)
        for delivery in ready.deliveries:
            if delivery.kind != GROUP or (
                delivery.epoch != life.epoch and delivery.origin == life.address
            ):
                self._look_beside(life, delivery)
                continue
            heard = life.hearing(delivery.origin, delivery.epoch)
            for hook in self._delivered:
                hook(life, heard, delivery)
            self._learn_delivery(life, heard, delivery)

    def _look_beside(self, life: Life, delivery: Delivery) -> None:
        """Look at a delivery that is not of the present streams to the group."""
        life.unconsumed += delivery.message_count
        if delivery.kind != GROUP:
            for hook in self._handed:
                hook(life, delivery)
            return
        # The rest of the own stream of a view before.
        epoch = delivery.epoch
        stream = self.model.stream_of(life.address, epoch)
        due = stream.wanted_from(
            max(life.formers.get(epoch, 1), life.covered.get((life.address, epoch), 0) + 1)
        )
        same = b"".join(delivery.messages()) == stream.content(delivery.first, delivery.last)
        if delivery.first != due or not same:
            self.report(
                "S3",
                f"{life.name} delivers {delivery.first} of its own former stream, but {due} is next",
            )
        life.formers[epoch] = delivery.last + 1

    def _hear(
        self, life: Life, said: Datagram | None, before: object, ready: Ready
    ) -> tuple[Address, ...]:
        """Look at and learn what came in; return whose stream may have moved by it."""
        if said is not None and self.membership and self._is_meant(life, said):
            said = self._hear_about(life, said)
            if not said.frames:
                return ()
        self.last_arrival_ns = self.t_ns
        if before is not None or said is None:
            for hook in self._refused:
                hook(life, said, before, ready)
            return ()
        sender = said.sender
        if sender not in life.heard:
            life.room.keep(life, said, life.member.config)
            return ()
        for frame in said.frames:
            self._hear_frame(life, sender, frame)
        return tuple(life.heard) if self.keeps else (sender,)

    @staticmethod
    def _is_meant(life: Life, said: Datagram) -> bool:
        return said.group == life.member.group and said.addressee in {
            None,
            life.address.incarnation,
        }

    def _hear_about(self, life: Life, said: Datagram) -> Datagram:
        """Look at the frames of a datagram that are about the group or the application's state; return the others."""
        for frame in said.frames:
            if type(frame) in ABOUT:
                if (
                    isinstance(frame, Alive)
                    and frame.view is not None
                    and frame.origin == said.sender
                ):
                    life.confirmed.add((frame.view, frame.origin))
                for hook in self._about_in:
                    hook(life, said.sender, frame)
        return of_streams(said)

    def _hear_frame(self, life: Life, sender: Address, frame: Frame) -> None:
        kind = type(frame)
        hooks = self._incoming.get(kind)
        if hooks is None and kind not in _BESIDE:
            return  # It is about the group, or about the application's state, and about no stream.
        if hooks is None or frame.epoch >= CONNECTION:  # type: ignore[union-attr]
            for hook in self._beside_in:
                hook(life, sender, frame)
            if isinstance(frame, (Vote, Stable)):
                self._learn_progress(life, frame)
            return
        if frame.epoch != life.epoch:  # type: ignore[union-attr]
            if isinstance(frame, Data):
                self._hear_other_view(life, sender, frame)
            return
        whose = sender if kind is Ack or kind is Nak else self._speaks_of(life, sender, frame)
        if whose is not None:
            for hook in hooks:
                hook(life, whose, frame)

    def _speaks_of(self, life: Life, sender: Address, frame: Frame) -> Heard | None:
        """Return the stream that a frame is about: that of its sender, or one that the sender holds and repairs."""
        if isinstance(frame, Data) and frame.run.origin != sender and self.keeps and frame.repair:
            return life.heard.get(frame.run.origin)
        return life.heard[sender]

    def _hear_other_view(self, life: Life, sender: Address, frame: Data) -> None:
        """A message of another view is kept for that view, or dropped."""
        count = frame.run.count
        if frame.run.origin != sender:
            return
        if frame.epoch < life.epoch or not self.by_view:
            self.expected = self.expected.plus(Expected(view=count))
        elif not life.room.keep_later(frame, life.member.config):
            self.expected = self.expected.plus(Expected(early=count))

    def _hear_called(self, life: Life) -> None:
        """Learn what the member takes in now that was kept for this view."""
        if self._too_late:
            self.expected = self.expected.plus(Expected(view=self._too_late))
        for said in self._called:
            for frame in said.frames:
                self._hear_frame(life, said.sender, frame)
        for late in self._called_later:
            self._hear_frame(life, late.run.origin, late)
        self._called, self._called_later, self._too_late = [], [], 0

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
        if self._stepped and (life.member.connections.outgoing or life.member.connections.incoming):
            for hook in self._stepped:
                hook(life)
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


_MOVES_ANY = ("install", "consume", "learn")
_BESIDE = (Close, Vote, Stable, OutOfBand, OutOfBandAck, Unreliable)

ABOUT: tuple[type, ...] = (*get_args(Membership), *get_args(State))
"""Frames that are about the group or the application's state, and about no stream."""


def of_streams(said: Datagram) -> Datagram:
    """Return a datagram without what it says about the group; the same one if it says nothing about it."""
    frames = tuple(frame for frame in said.frames if type(frame) not in ABOUT)
    return said if len(frames) == len(said.frames) else said._replace(frames=frames)


__all__ = [
    "ABOUT",
    "EVENTS",
    "MOST_VIOLATIONS",
    "SAMPLE_STEPS",
    "Check",
    "Judge",
    "Outgoing",
    "Violation",
]
