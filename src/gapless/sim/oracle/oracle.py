"""The oracle: watches every step of every member, keeps the model, and lets each check look.

On every step: frames that came in are shown to the checks, then learnt; then come the rows of the
trace, the frames that went out, events, deliveries, and last the marks of the windows. A check
looks before the model learns, so it can compare what happened with what had to happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from gapless.delivery_mode import DeliveryMode
from gapless.faults.faults import NEVER_NS
from gapless.profiles import ReleasePolicy
from gapless.protocol.events import Refused, StateReceived
from gapless.protocol.ready import GROUP
from gapless.sim.oracle.checker import ROW_HOOKS, InvariantChecker
from gapless.sim.oracle.model import GroupModel, InboundModel, MemberModel, QueuedMessage
from gapless.sim.oracle.model_update import (
    NOTHING,
    ApplicationSend,
    Expected,
    InvariantViolation,
    ModelUpdater,
)
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
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Alive, MembershipFrame, StateFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gapless.config import Config
    from gapless.identity import Address, Digest, Roster, View
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Delivery, Ready
    from gapless.sim.link_counters import LinkCounters
    from gapless.sim.oracle.checker import Outgoing
    from gapless.wire import Frame

_make = tuple.__new__

SAMPLE_STEPS = 8
"""What costs too much at every step is looked at once in so many."""

MAX_VIOLATIONS = 20
"""A run that is this broken says nothing new any more; the oracle stops counting."""

HooksByFrame = dict[type, "tuple[Callable[..., None], ...]"]
"""The subscribed hooks by frame type."""


class Oracle:
    """All checks over one run.

    The world sets what only it can know: ``resting`` once the group has settled, ``settled`` if it
    ever did, ``last_arrival_ns``, the ``books`` of all links, and ``cost`` (data frames lost, and
    in how many bursts) if loss was the only fault at work.
    """

    def __init__(
        self,
        config: Config,
        checkers: Iterable[type[InvariantChecker]],
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
        self.model = GroupModel(config)
        self._updater = ModelUpdater(config, self.report)
        self.reach, self.by_view = self._updater.reach, self._updater.by_view
        self.states = self._updater.states
        self.violations: list[InvariantViolation] = []
        self.steps = 0
        self.t_ns = 0
        self.local_ns = 0
        self.current_member: MemberModel | None = None
        self.link_counters: dict[tuple[str, str], LinkCounters] = {}
        self.at_end: list[Callable[[MemberModel], None]] = []
        # Where views are found and not told, everything has its time from when there is one group
        # on.
        self.next_check_ns = NEVER_NS if membership else calm_ns
        self.converged_ns: int | None = None
        self.last_fault_ns = calm_ns
        self.only_short_pauses = self.fault_free = False
        self.group_bound_ns = 0
        self.rested_ns = 0
        self.receivers_retain = (
            config.group_profile.release is ReleasePolicy.STABILITY and not config.discard_delivered
        )
        self.retransmission_retuned = False
        self.sheds = False
        self._buffered_datagrams: list[Datagram] = []
        self._buffered_data: list[Data] = []
        self._too_late = 0
        self.checkers = [checker(self) for checker in checkers]
        self._no_op = InvariantChecker(self)
        self._subscribe_step_hooks()
        self._subscribe_other_hooks()

    def _subscribe_step_hooks(self) -> None:
        """Build the subscriber lists of the hooks of a step."""
        subscribers, updater = self._subscribers, self._updater
        self._refused = subscribers(lambda checker: checker.refused)
        self._incoming: HooksByFrame = {
            Data: (*subscribers(lambda checker: checker.data_in), updater.on_data),
            Ack: (*subscribers(lambda checker: checker.ack_in), updater.on_ack),
            Nak: subscribers(lambda checker: checker.nak_in),
            Tail: (*subscribers(lambda checker: checker.tail_in), updater.on_tail),
            Gone: (*subscribers(lambda checker: checker.gone_in), updater.on_gone),
        }
        self._non_stream_frame_in = subscribers(lambda checker: checker.non_stream_frame_in)
        self._control_frame_in = subscribers(lambda checker: checker.control_frame_in)
        self._before_frames_event = subscribers(lambda checker: checker.before_frames_event)
        self._rows = {event: subscribers(hook) for event, hook in ROW_HOOKS.items()}
        self._outgoing = self._outgoing_hooks()
        self._event = subscribers(lambda checker: checker.event)
        self._delivered = subscribers(lambda checker: checker.delivered)
        self._other_delivered = subscribers(lambda checker: checker.other_delivered)
        self._marks_moved = subscribers(lambda checker: checker.marks_moved)
        self._own_marks_moved = subscribers(lambda checker: checker.own_marks_moved)
        self._connections_stepped = subscribers(lambda checker: checker.connections_stepped)
        self._check_due = subscribers(lambda checker: checker.check_due)
        self._sampled = subscribers(lambda checker: checker.sampled)

    def _subscribe_other_hooks(self) -> None:
        """Build the subscriber lists of the hooks outside of a step."""
        subscribers = self._subscribers
        self._incarnation_started = subscribers(lambda checker: checker.incarnation_started)
        self._incarnation_ended = subscribers(lambda checker: checker.incarnation_ended)
        self._sent = subscribers(lambda checker: checker.sent)
        self._view = subscribers(lambda checker: checker.view)
        self._state_provided = subscribers(lambda checker: checker.state_provided)
        self._view_pending = subscribers(lambda checker: checker.view_pending)
        self._close = subscribers(lambda checker: checker.close)

    @property
    def expected(self) -> Expected:
        """What must become of the messages that came in with the present step."""
        return self._updater.expected

    @property
    def resting(self) -> bool:
        """Whether the group has settled and must be silent."""
        return self._resting

    @resting.setter
    def resting(self, resting: bool) -> None:
        self._resting = resting
        self._outgoing = self._outgoing_hooks()

    def _outgoing_hooks(self) -> HooksByFrame:
        """Return the hooks of each outgoing frame type; the model learns last."""
        subscribers = self._subscribers
        non_stream = subscribers(lambda checker: checker.non_stream_frame_out)
        control = subscribers(lambda checker: checker.control_frame_out)
        return {
            Data: (*subscribers(lambda checker: checker.data_out), self._updater.on_data_out),
            Ack: subscribers(lambda checker: checker.ack_out),
            Nak: subscribers(lambda checker: checker.nak_out),
            Tail: subscribers(lambda checker: checker.tail_out),
            Gone: subscribers(lambda checker: checker.gone_out),
            **dict.fromkeys(_NON_STREAM_FRAMES, non_stream),
            **dict.fromkeys(CONTROL_FRAMES, control),
        }

    def _subscribers(
        self, hook: Callable[[InvariantChecker], Callable[..., None]]
    ) -> tuple[Callable[..., None], ...]:
        """Return the bound method of every checker that overrides ``hook``.

        A checker that looks only at the silent group is left out unless the group is silent.
        """
        default = hook(self._no_op)
        active = [c for c in self.checkers if self._resting or not c.only_when_idle]
        return tuple(
            bound
            for bound in map(hook, active)
            if bound.__func__ is not default.__func__  # type: ignore[attr-defined]
        )

    def report(self, check: str, message: str) -> None:
        """Note a violation of ``check`` at the member whose step is being looked at."""
        if len(self.violations) < MAX_VIOLATIONS:
            name = self.current_member.name if self.current_member is not None else "-"
            self.violations.append(InvariantViolation(check, self.t_ns, name, message))

    # What the world tells

    def on_incarnation_start(
        self, address: Address, name: str, member: Endpoint | Member
    ) -> MemberModel:
        """Meet a new life."""
        life = self.model.members[address] = MemberModel(address, name, member, self.model)
        for hook in self._incarnation_started:
            hook(life)
        return life

    def on_incarnation_end(self, life: MemberModel) -> None:
        """Take note of the end of a life."""
        life.alive = False
        for hook in self._incarnation_ended:
            hook(life)

    def on_converged(self, t_ns: int) -> None:
        """Start the clock of L1 and L2: all live members are in one view."""
        if self.converged_ns is None:
            self.converged_ns = t_ns
            self.schedule_check(t_ns)

    def on_view_pending(self) -> None:
        """Take note that there will be another view: what has its time gets it anew."""
        if self.converged_ns is not None:
            self.converged_ns, self.next_check_ns = None, NEVER_NS
            for hook in self._view_pending:
                hook()

    def on_state_provided(
        self, life: MemberModel, state: bytes, handed: Mapping[tuple[Address, int], int]
    ) -> None:
        """Take note of a state that an application gives.

        It covers what the application was ``handed`` of each stream, and what came before the
        streams of the giver.
        """
        before = {
            (origin, heard.epoch): heard.due() - 1
            for origin, heard in life.inbound.items()
            if heard.open
        }
        own = {(life.address, life.epoch): life.own_next - 1}
        self.states[state] = {**handed, **before, **own}
        for hook in self._state_provided:
            hook(life, state)

    def on_install(
        self,
        life: MemberModel,
        view: View,
        digest: Digest | None,
        t_ns: int,
        local_ns: int = 0,
        *,
        roster: Roster | None = None,
    ) -> None:
        """Apply a view that ``life`` is about to install, with its ``roster`` if any."""
        self.t_ns, self.local_ns, self.current_member = t_ns, local_ns, life
        self._updater.local_ns = local_ns
        for hook in self._view:
            hook(life, view)
        first_view = life.view is None and not life.durable
        life.view = view
        life.view_members = frozenset(view.members)
        heard = life.inbound
        for origin in [
            origin for origin in heard if self.by_view or origin not in life.view_members
        ]:
            life.departed_inbound[origin] = heard.pop(origin)
            self._updater.departing.append(origin)
        if self.by_view:
            life.restart(view.id.number)
        stream = life.stream
        counted = self._updater.on_roster(life, view, roster)
        stream.acks = {member: stream.acks.get(member, stream.high) for member in counted}
        stream.starts = {member: stream.starts.get(member, stream.high) for member in counted}
        for origin in view.members:
            if origin not in heard and origin != life.address:
                self._open_inbound(life, origin, digest or {})
        self._buffered_datagrams, self._too_late = life.future_view_buffer.release(
            life, life.member.config, first_view=first_view
        )
        self._buffered_data, past = life.future_view_buffer.release_data(life)
        self._too_late += past

    def _open_inbound(self, life: MemberModel, origin: Address, digest: Digest) -> None:
        """Begin to listen to a member of the new view."""
        if self.by_view:
            life.inbound[origin] = InboundModel(
                self.model.stream_of(origin, life.epoch), 0, 0, life.epoch
            )
            life.inbound[origin].cover(life.covered.get((origin, life.epoch), 0))
            return
        marks, former = digest.get(origin), life.departed_inbound.pop(origin, None)
        start, stream = None if marks is None else marks.delivered, self.model.stream_of(origin, 0)
        if former is None:
            life.inbound[origin] = InboundModel(stream, start, life.resumed.get(origin, 0))
        else:
            life.inbound[origin] = InboundModel(
                stream, start, former.delivered if life.transferring else former.end()
            )
            if life.transferring:
                life.inbound[origin].resume_undelivered(former.next, former.delivered)
            life.inbound[origin].not_owed_upto = max(
                stream.marks.low, life.delivered_upto[origin, 0]
            )
        life.inbound[origin].cover(life.covered.get((origin, 0), 0))
        if marks is not None:
            self._updater.on_digest_mark(life, origin, marks)

    def on_digest(self, digest: Digest) -> None:
        """Take note of a digest that the next step is about."""
        self._updater.digest = digest

    def on_send(
        self,
        life: MemberModel,
        payloads: Sequence[bytes],
        ready: Ready,
        *,
        loopback: bool | None = None,
        to: Address | None = None,
        mode: str = DeliveryMode.ORDERED,
    ) -> None:
        """Take note of a send that ``ready`` answers."""
        not_back = not ((self.config.loopback or to is not None) if loopback is None else loopback)
        refused = any(isinstance(event, Refused) for event in ready.events)
        sent = ApplicationSend(tuple(payloads), to, mode, not_back, ready.ticket, refused)
        for hook in self._sent:
            hook(life, sent)
        if to is not None or mode in {DeliveryMode.OUT_OF_BAND, DeliveryMode.UNRELIABLE}:
            return
        life.tickets.add(ready.ticket)
        if not sent.refused:
            life.stream.queue += [
                QueuedMessage(ready.ticket, payload, not_back) for payload in payloads
            ]

    def fingerprint_if_refused(self, life: MemberModel, said: Datagram | None) -> object:
        """Return the member's fingerprint if ``said`` must not change it, else None."""
        if said is None or not self._is_addressed_to(life, said):
            return self.fingerprint(life)
        if self.membership:
            said = stream_frames_only(said)
            if not said.frames:
                return None
        if said.sender in life.inbound or life.future_view_buffer.must_buffer(
            life, said, life.member.config
        ):
            return None
        return self.fingerprint(life)

    def fingerprint(self, life: MemberModel) -> object:
        """Return all of a member's state that a refused datagram must leave alone.

        One that finds its views by itself may answer a sign of life, whoever it is from; its
        streams stay as they are.
        """
        if self.membership:
            return life.member.snapshot(), life.member.view
        return life.member.snapshot(), life.member.deadline_ns, life.member.view

    # One step

    def on_step(
        self,
        life: MemberModel,
        cause: str,
        said: Datagram | None,
        ready: Ready,
        outgoing: Outgoing,
        local_ns: int,
        t_ns: int,
        before: object = None,
    ) -> None:
        """Check one step: its input, the member's answer, and its windows afterwards."""
        self.steps += 1
        self.t_ns, self.local_ns, self.current_member = t_ns, local_ns, life
        self._updater.local_ns = local_ns
        self._updater.expected = NOTHING
        moved: Iterable[Address] = ()
        if cause == "receive":
            moved = self._on_datagram(life, said, before, ready)
        elif cause in _MOVES_ANY or self.receivers_retain:
            moved = life.inbound
            self._learn_cause(life, cause)
        events = ready.events
        if events:
            if life.transferring and any(isinstance(event, StateReceived) for event in events):
                moved = life.inbound  # what there was no room for moves on
            self._updater.on_events(life, events)
            for event in events:
                for hook in self._before_frames_event:
                    hook(life, event)
        rows = self._rows
        for row in ready.trace:
            if row.epoch < FIRST_CONNECTION_EPOCH:
                for hook in rows.get(row.event, ()):
                    hook(life, row)
        for to, out in outgoing:
            self._check_outgoing(life, to, out)
        if events or ready.deliveries:
            self._check_events_and_deliveries(life, ready)
        self._check_marks(life, moved)
        if self.steps % SAMPLE_STEPS == 0:
            for hook in self._sampled:
                hook(life, ready, outgoing)

    def _check_outgoing(self, life: MemberModel, to: Address | None, out: Datagram) -> None:
        for frame in out.frames:
            kind = type(frame)
            if kind in self._incoming and frame.epoch >= FIRST_CONNECTION_EPOCH:  # type: ignore[union-attr]
                kind = Close
            for hook in self._outgoing.get(kind, ()):
                hook(life, to, frame)

    def _learn_cause(self, life: MemberModel, cause: str) -> None:
        if cause == "learn":
            self._updater.on_digest(life)
        elif cause == "install":
            self._replay_buffered(life)

    def _check_events_and_deliveries(self, life: MemberModel, ready: Ready) -> None:
        """Look at what the application is told and given."""
        for event in ready.events:
            for hook in self._event:
                hook(life, event)
        for delivery in ready.deliveries:
            if delivery.kind != GROUP or (
                delivery.epoch != life.epoch and delivery.origin == life.address
            ):
                self._check_other_delivery(life, delivery)
                continue
            heard = life.inbound_of(delivery.origin, delivery.epoch)
            for hook in self._delivered:
                hook(life, heard, delivery)
            self._updater.on_delivery(life, heard, delivery)

    def _check_other_delivery(self, life: MemberModel, delivery: Delivery) -> None:
        """Look at a delivery that is not of the present streams to the group."""
        life.unconsumed += delivery.message_count
        if delivery.kind != GROUP:
            for hook in self._other_delivered:
                hook(life, delivery)
            return
        # The rest of the own stream of a view before.
        epoch = delivery.epoch
        stream = self.model.stream_of(life.address, epoch)
        due = stream.next_loopback_from(
            max(life.former_own_next.get(epoch, 1), life.covered.get((life.address, epoch), 0) + 1)
        )
        same = b"".join(delivery.messages()) == stream.content(delivery.first, delivery.last)
        if delivery.first != due or not same:
            self.report(
                "S3",
                f"{life.name} delivers {delivery.first} of its own former stream, "
                f"but {due} is next",
            )
        life.former_own_next[epoch] = delivery.last + 1

    def _on_datagram(
        self, life: MemberModel, said: Datagram | None, before: object, ready: Ready
    ) -> tuple[Address, ...]:
        """Look at and learn what came in; return whose stream may have moved by it."""
        if said is not None and self.membership and self._is_addressed_to(life, said):
            said = self._on_control_frames(life, said)
            if not said.frames:
                return ()
        self.last_arrival_ns = self.t_ns
        if before is not None or said is None:
            for hook in self._refused:
                hook(life, said, before, ready)
            return ()
        sender = said.sender
        if sender not in life.inbound:
            life.future_view_buffer.buffer(life, said, life.member.config)
            return ()
        for frame in said.frames:
            self._on_frame(life, sender, frame)
        return tuple(life.inbound) if self.receivers_retain else (sender,)

    @staticmethod
    def _is_addressed_to(life: MemberModel, said: Datagram) -> bool:
        return said.group == life.member.group and said.addressee in {
            None,
            life.address.incarnation,
        }

    def _on_control_frames(self, life: MemberModel, said: Datagram) -> Datagram:
        """Check the control frames of a datagram; return the datagram without them."""
        for frame in said.frames:
            if type(frame) in CONTROL_FRAMES:
                if (
                    isinstance(frame, Alive)
                    and frame.view is not None
                    and frame.origin == said.sender
                ):
                    life.confirmed.add((frame.view, frame.origin))
                for hook in self._control_frame_in:
                    hook(life, said.sender, frame)
        return stream_frames_only(said)

    def _on_frame(self, life: MemberModel, sender: Address, frame: Frame) -> None:
        kind = type(frame)
        hooks = self._incoming.get(kind)
        if hooks is None and kind not in _NON_STREAM_FRAMES:
            return  # It is about the group, or about the application's state, and about no stream.
        if hooks is None or frame.epoch >= FIRST_CONNECTION_EPOCH:  # type: ignore[union-attr]
            for hook in self._non_stream_frame_in:
                hook(life, sender, frame)
            if isinstance(frame, (Vote, Stable)):
                self._updater.on_progress(life, frame)
            return
        if frame.epoch != life.epoch:  # type: ignore[union-attr]
            if isinstance(frame, Data):
                self._on_other_view_data(life, sender, frame)
            return
        whose = (
            sender if kind is Ack or kind is Nak else self._inbound_of_frame(life, sender, frame)
        )
        if whose is not None:
            for hook in hooks:
                hook(life, whose, frame)

    def _inbound_of_frame(
        self, life: MemberModel, sender: Address, frame: Frame
    ) -> InboundModel | None:
        """Return the stream of a frame: its sender's, or one that the sender repairs as holder."""
        if (
            isinstance(frame, Data)
            and frame.run.origin != sender
            and self.receivers_retain
            and frame.repair
        ):
            return life.inbound.get(frame.run.origin)
        return life.inbound[sender]

    def _on_other_view_data(self, life: MemberModel, sender: Address, frame: Data) -> None:
        """A message of another view is kept for that view, or dropped."""
        count = frame.run.count
        if frame.run.origin != sender:
            return
        if frame.epoch < life.epoch or not self.by_view:
            self._updater.expected = self._updater.expected.plus(Expected(view=count))
        elif not life.future_view_buffer.buffer_data(frame, life.member.config):
            self._updater.expected = self._updater.expected.plus(Expected(early=count))

    def _replay_buffered(self, life: MemberModel) -> None:
        """Learn what the member takes in now that was kept for this view."""
        if self._too_late:
            self._updater.expected = self._updater.expected.plus(Expected(view=self._too_late))
        for said in self._buffered_datagrams:
            for frame in said.frames:
                self._on_frame(life, said.sender, frame)
        for late in self._buffered_data:
            self._on_frame(life, late.run.origin, late)
        self._buffered_datagrams, self._buffered_data, self._too_late = [], [], 0

    def _check_marks(self, life: MemberModel, moved: Iterable[Address]) -> None:
        """Check the windows that may have moved, then run what waits for the end of the step."""
        if self._updater.departing:
            self._updater.on_departures(life)
        for origin in moved:
            self._check_stream(life, origin)
        window = life.member.outbound.window
        low, delivered, high = life.stream.marks
        if window.high != high or window.delivered != delivered or window.low != low:
            for hook in self._own_marks_moved:
                hook(life, window)
            self._updater.on_own_marks(life, window)
        if self._connections_stepped and (
            life.member.connections.outgoing or life.member.connections.incoming
        ):
            for hook in self._connections_stepped:
                hook(life)
        if self.at_end:
            for hook in self.at_end:
                hook(life)
            self.at_end.clear()
        if self.t_ns >= self.next_check_ns:
            self.next_check_ns = NEVER_NS
            for hook in self._check_due:
                hook()

    def _check_stream(self, life: MemberModel, origin: Address) -> None:
        window = life.member.inbound[origin].window
        heard = life.inbound[origin]
        if window is None or not heard.open:
            return
        low, delivered, high = heard.marks
        moves = window.delivered != delivered or window.high != high or window.low != low
        if moves or self._updater.expected is not NOTHING:
            for hook in self._marks_moved:
                hook(life, origin, heard, window)
            if moves:
                self._updater.on_marks(heard, window)

    def schedule_check(self, t_ns: int) -> None:
        """Let the ``timed`` hooks look at the first step at or after ``t_ns``."""
        self.next_check_ns = min(self.next_check_ns, t_ns)

    def close(self, t_ns: int) -> None:
        """Let the checks look at the whole run, which is over."""
        self.t_ns, self.current_member = t_ns, None
        for hook in self._close:
            hook()


_MOVES_ANY = ("install", "consume", "learn")
_NON_STREAM_FRAMES = (Close, Vote, Stable, OutOfBand, OutOfBandAck, Unreliable)

CONTROL_FRAMES: tuple[type, ...] = (*get_args(MembershipFrame), *get_args(StateFrame))
"""Frames that are about the group or the application's state, and about no stream."""


def stream_frames_only(said: Datagram) -> Datagram:
    """Return the datagram without its control frames; the same object if it has none."""
    frames = tuple(frame for frame in said.frames if type(frame) not in CONTROL_FRAMES)
    return said if len(frames) == len(said.frames) else said._replace(frames=frames)


__all__ = [
    "CONTROL_FRAMES",
    "MAX_VIOLATIONS",
    "SAMPLE_STEPS",
    "InvariantViolation",
    "Oracle",
]
