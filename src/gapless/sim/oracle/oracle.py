"""The oracle watches every step of every member, keeps the model, and runs the checks.

On every step, in this order: incoming frames, trace rows, outgoing frames, events, deliveries, and
the marks of the windows. Each observation goes to the checks first and then into the model, so a
check compares the step with the expectation of the model.
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
    from gapless.sim.sealing.attempt import OpeningAttempt, SealedDatagram
    from gapless.wire import Frame
    from gapless.wire.seal import Seal
    from gapless.wire.seal_keys import SealKey

_make = tuple.__new__

SAMPLE_STEPS = 8
"""How often costly checks run: once in so many steps."""

MAX_VIOLATIONS = 20
"""Maximum number of violations in a run; further violations would show nothing new."""

HooksByFrame = dict[type, "tuple[Callable[..., None], ...]"]
"""The subscribed hooks by frame type."""


class Oracle:
    """All checks over a run.

    The world sets the facts known only to the world: ``resting`` while the settled group must be
    silent, ``settled`` if the group ever settled, ``last_arrival_ns``, the ``link_counters``, and
    ``cost`` (lost data frames, and the number of bursts) if loss was the only fault.
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
        # Where members make their own views, deadlines count from convergence on.
        self.next_check_ns = NEVER_NS if membership else calm_ns
        self.converged_ns: int | None = None
        self.last_fault_ns = calm_ns
        self.fault_free = False
        self.long_paused: set[str] | None = None
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
        self._encryption = subscribers(lambda checker: checker.encryption)
        self._sealed = subscribers(lambda checker: checker.sealed)
        self._opening = subscribers(lambda checker: checker.opening)
        self._close = subscribers(lambda checker: checker.close)

    @property
    def expected(self) -> Expected:
        """The expected fates of the messages of the current step."""
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

        A checker of the silent group is left out unless the group is silent.
        """
        default = hook(self._no_op)
        active = [c for c in self.checkers if self._resting or not c.only_when_idle]
        return tuple(
            bound
            for bound in map(hook, active)
            if bound.__func__ is not default.__func__  # type: ignore[attr-defined]
        )

    def report(self, check: str, message: str) -> None:
        """Record a violation of ``check`` at the member of the current step."""
        if len(self.violations) < MAX_VIOLATIONS:
            name = self.current_member.name if self.current_member is not None else "-"
            self.violations.append(InvariantViolation(check, self.t_ns, name, message))

    # Reports of the world

    def on_incarnation_start(
        self, address: Address, name: str, member: Endpoint | Member
    ) -> MemberModel:
        """Add a new incarnation to the model."""
        model = self.model.members[address] = MemberModel(address, name, member, self.model)
        for hook in self._incarnation_started:
            hook(model)
        return model

    def on_incarnation_end(self, model: MemberModel) -> None:
        """Note the end of an incarnation."""
        model.alive = False
        for hook in self._incarnation_ended:
            hook(model)

    def on_converged(self, t_ns: int) -> None:
        """Start the deadlines of L1 and L2: all running members are in a single view."""
        if self.converged_ns is None:
            self.converged_ns = t_ns
            self.schedule_check(t_ns)

    def on_view_pending(self) -> None:
        """Record that another view will follow: all deadlines restart."""
        if self.converged_ns is not None:
            self.converged_ns, self.next_check_ns = None, NEVER_NS
            for hook in self._view_pending:
                hook()

    def on_state_provided(
        self, model: MemberModel, state: bytes, handed: Mapping[tuple[Address, int], int]
    ) -> None:
        """Record a state provided by an application.

        The state covers the deliveries to the application (``handed``), and everything before the
        starts of the provider's streams.
        """
        before = {
            (origin, inbound.epoch): inbound.due() - 1
            for origin, inbound in model.inbound.items()
            if inbound.open
        }
        own = {(model.address, model.epoch): model.own_next - 1}
        self.states[state] = {**handed, **before, **own}
        for hook in self._state_provided:
            hook(model, state)

    def on_install(
        self,
        model: MemberModel,
        view: View,
        digest: Digest | None,
        t_ns: int,
        local_ns: int = 0,
        *,
        roster: Roster | None = None,
    ) -> None:
        """Apply a view that ``model`` is about to install, with the ``roster`` if any."""
        self.t_ns, self.local_ns, self.current_member = t_ns, local_ns, model
        self._updater.local_ns = local_ns
        for hook in self._view:
            hook(model, view)
        first_view = model.view is None and not model.durable
        model.view = view
        model.view_members = frozenset(view.members)
        inbound = model.inbound
        for origin in [
            origin for origin in inbound if self.by_view or origin not in model.view_members
        ]:
            model.departed_inbound[origin] = inbound.pop(origin)
            self._updater.departing.append(origin)
        if self.by_view:
            model.restart(view.id.number)
        stream = model.stream
        counted = self._updater.on_roster(model, view, roster)
        stream.acks = {member: stream.acks.get(member, stream.high) for member in counted}
        stream.starts = {member: stream.starts.get(member, stream.high) for member in counted}
        for origin in view.members:
            if origin not in inbound and origin != model.address:
                self._open_inbound(model, origin, digest or {})
        self._buffered_datagrams, self._too_late = model.future_view_buffer.release(
            model, model.member.config, first_view=first_view
        )
        self._buffered_data, past = model.future_view_buffer.release_data(model)
        self._too_late += past

    def _open_inbound(self, model: MemberModel, origin: Address, digest: Digest) -> None:
        """Begin to listen to a member of the new view."""
        if self.by_view:
            model.inbound[origin] = InboundModel(
                self.model.stream_of(origin, model.epoch), 0, 0, model.epoch
            )
            model.inbound[origin].cover(model.covered.get((origin, model.epoch), 0))
            return
        marks, former = digest.get(origin), model.departed_inbound.pop(origin, None)
        start, stream = None if marks is None else marks.delivered, self.model.stream_of(origin, 0)
        if former is None:
            model.inbound[origin] = InboundModel(stream, start, model.resumed.get(origin, 0))
        else:
            model.inbound[origin] = InboundModel(
                stream, start, former.delivered if model.transferring else former.end()
            )
            if model.transferring:
                model.inbound[origin].resume_undelivered(former.next, former.delivered)
            model.inbound[origin].not_owed_upto = max(
                stream.marks.low, model.delivered_upto[origin, 0]
            )
        model.inbound[origin].cover(model.covered.get((origin, 0), 0))
        if marks is not None:
            self._updater.on_digest_mark(model, origin, marks)

    def on_digest(self, digest: Digest) -> None:
        """Record the digest of the next step."""
        self._updater.digest = digest

    def on_send(
        self,
        model: MemberModel,
        payloads: Sequence[bytes],
        ready: Ready,
        *,
        loopback: bool | None = None,
        to: Address | None = None,
        mode: str = DeliveryMode.ORDERED,
    ) -> None:
        """Record a send answered by ``ready``."""
        not_back = not ((self.config.loopback or to is not None) if loopback is None else loopback)
        refused = any(isinstance(event, Refused) for event in ready.events)
        sent = ApplicationSend(tuple(payloads), to, mode, not_back, ready.ticket, refused)
        for hook in self._sent:
            hook(model, sent)
        if to is not None or mode in {DeliveryMode.OUT_OF_BAND, DeliveryMode.UNRELIABLE}:
            return
        model.tickets.add(ready.ticket)
        if not sent.refused:
            model.stream.queue += [
                QueuedMessage(ready.ticket, payload, not_back) for payload in payloads
            ]

    def on_encryption(self, key: bytes, nonce: bytes) -> None:
        """Check a pair of derived key and nonce before its use."""
        for hook in self._encryption:
            hook(key, nonce)

    def on_sealed(self, model: MemberModel, sealed: SealedDatagram, key: SealKey) -> None:
        """Check a sealed datagram; ``key`` is the sealing key of the member's keyring."""
        for hook in self._sealed:
            hook(model, sealed, key)

    def on_opening(
        self, model: MemberModel, attempt: OpeningAttempt, seal: Seal, t_ns: int
    ) -> None:
        """Check that exactly the right datagrams open, and that a rejection changes nothing."""
        self.t_ns, self.current_member = t_ns, model
        for hook in self._opening:
            hook(model, attempt, seal)

    def fingerprint_if_refused(self, model: MemberModel, datagram: Datagram | None) -> object:
        """Return the member's fingerprint if ``datagram`` must not change the member, else None."""
        if datagram is None or not self._is_addressed_to(model, datagram):
            return self.fingerprint(model)
        if self.membership:
            datagram = stream_frames_only(datagram)
            if not datagram.frames:
                return None
        if datagram.sender in model.inbound or model.future_view_buffer.must_buffer(
            model, datagram, model.member.config
        ):
            return None
        return self.fingerprint(model)

    def fingerprint(self, model: MemberModel) -> object:
        """Return all of a member's state that a refused datagram must not change.

        A member that makes its own views may answer a heartbeat of any sender; the streams stay
        unchanged.
        """
        if self.membership:
            return model.member.snapshot(), model.member.view
        return model.member.snapshot(), model.member.deadline_ns, model.member.view

    # One step

    def on_step(
        self,
        model: MemberModel,
        cause: str,
        datagram: Datagram | None,
        ready: Ready,
        outgoing: Outgoing,
        local_ns: int,
        t_ns: int,
        before: object = None,
    ) -> None:
        """Check a step: the input, the member's answer, and the windows afterwards."""
        self.steps += 1
        self.t_ns, self.local_ns, self.current_member = t_ns, local_ns, model
        self._updater.local_ns = local_ns
        self._updater.expected = NOTHING
        moved: Iterable[Address] = ()
        if cause == "receive":
            moved = self._on_datagram(model, datagram, before, ready)
        elif cause in _MOVES_ANY or self.receivers_retain:
            moved = model.inbound
            self._learn_cause(model, cause)
        events = ready.events
        if events:
            if model.transferring and any(isinstance(event, StateReceived) for event in events):
                moved = model.inbound  # deliveries without room until now
            self._updater.on_events(model, events)
            for event in events:
                for hook in self._before_frames_event:
                    hook(model, event)
        rows = self._rows
        for row in ready.trace:
            if row.epoch < FIRST_CONNECTION_EPOCH:
                for hook in rows.get(row.event, ()):
                    hook(model, row)
        for to, out in outgoing:
            self._check_outgoing(model, to, out)
        if events or ready.deliveries:
            self._check_events_and_deliveries(model, ready)
        self._check_marks(model, moved)
        if self.steps % SAMPLE_STEPS == 0:
            for hook in self._sampled:
                hook(model, ready, outgoing)

    def _check_outgoing(self, model: MemberModel, to: Address | None, out: Datagram) -> None:
        for frame in out.frames:
            kind = type(frame)
            if kind in self._incoming and frame.epoch >= FIRST_CONNECTION_EPOCH:  # type: ignore[union-attr]
                kind = Close
            for hook in self._outgoing.get(kind, ()):
                hook(model, to, frame)

    def _learn_cause(self, model: MemberModel, cause: str) -> None:
        if cause == "learn":
            self._updater.on_digest(model)
        elif cause == "install":
            self._replay_buffered(model)

    def _check_events_and_deliveries(self, model: MemberModel, ready: Ready) -> None:
        """Check the events and deliveries of a step, then update the model."""
        for event in ready.events:
            for hook in self._event:
                hook(model, event)
        for delivery in ready.deliveries:
            if delivery.kind != GROUP or (
                delivery.epoch != model.epoch and delivery.origin == model.address
            ):
                self._check_other_delivery(model, delivery)
                continue
            inbound = model.inbound_of(delivery.origin, delivery.epoch)
            for hook in self._delivered:
                hook(model, inbound, delivery)
            self._updater.on_delivery(model, inbound, delivery)

    def _check_other_delivery(self, model: MemberModel, delivery: Delivery) -> None:
        """Check a delivery from outside the present streams to the group."""
        model.unconsumed += delivery.message_count
        if delivery.kind != GROUP:
            for hook in self._other_delivered:
                hook(model, delivery)
            return
        # The rest of the own stream of a view before.
        epoch = delivery.epoch
        stream = self.model.stream_of(model.address, epoch)
        due = stream.next_loopback_from(
            max(
                model.former_own_next.get(epoch, 1),
                model.covered.get((model.address, epoch), 0) + 1,
            )
        )
        same = b"".join(delivery.messages()) == stream.content(delivery.first, delivery.last)
        if delivery.first != due or not same:
            self.report(
                "S3",
                f"{model.name} delivers {delivery.first} of its own former stream, "
                f"but {due} is next",
            )
        model.former_own_next[epoch] = delivery.last + 1

    def _on_datagram(
        self, model: MemberModel, datagram: Datagram | None, before: object, ready: Ready
    ) -> tuple[Address, ...]:
        """Check incoming frames and update the model; return the streams that may have moved."""
        if datagram is not None and self.membership and self._is_addressed_to(model, datagram):
            datagram = self._on_control_frames(model, datagram)
            if not datagram.frames:
                return ()
        self.last_arrival_ns = self.t_ns
        if before is not None or datagram is None:
            for hook in self._refused:
                hook(model, datagram, before, ready)
            return ()
        sender = datagram.sender
        if sender not in model.inbound:
            model.future_view_buffer.buffer(model, datagram, model.member.config)
            return ()
        for frame in datagram.frames:
            self._on_frame(model, sender, frame)
        return tuple(model.inbound) if self.receivers_retain else (sender,)

    @staticmethod
    def _is_addressed_to(model: MemberModel, datagram: Datagram) -> bool:
        return datagram.group == model.member.group and datagram.addressee in {
            None,
            model.address.incarnation,
        }

    def _on_control_frames(self, model: MemberModel, datagram: Datagram) -> Datagram:
        """Check the control frames of a datagram; return the datagram without control frames."""
        for frame in datagram.frames:
            if type(frame) in CONTROL_FRAMES:
                if (
                    isinstance(frame, Alive)
                    and frame.view is not None
                    and frame.origin == datagram.sender
                ):
                    model.confirmed.add((frame.view, frame.origin))
                for hook in self._control_frame_in:
                    hook(model, datagram.sender, frame)
        return stream_frames_only(datagram)

    def _on_frame(self, model: MemberModel, sender: Address, frame: Frame) -> None:
        kind = type(frame)
        hooks = self._incoming.get(kind)
        if hooks is None and kind not in _NON_STREAM_FRAMES:
            return  # It is about the group, or about the application's state, and about no stream.
        if hooks is None or frame.epoch >= FIRST_CONNECTION_EPOCH:  # type: ignore[union-attr]
            for hook in self._non_stream_frame_in:
                hook(model, sender, frame)
            if isinstance(frame, (Vote, Stable)):
                self._updater.on_progress(model, frame)
            return
        if frame.epoch != model.epoch:  # type: ignore[union-attr]
            if isinstance(frame, Data):
                self._on_other_view_data(model, sender, frame)
            return
        subject = (
            sender if kind is Ack or kind is Nak else self._inbound_of_frame(model, sender, frame)
        )
        if subject is not None:
            for hook in hooks:
                hook(model, subject, frame)

    def _inbound_of_frame(
        self, model: MemberModel, sender: Address, frame: Frame
    ) -> InboundModel | None:
        """Return the stream of a frame: the sender's own, or a stream that the sender holds."""
        if (
            isinstance(frame, Data)
            and frame.run.origin != sender
            and self.receivers_retain
            and frame.repair
        ):
            return model.inbound.get(frame.run.origin)
        return model.inbound[sender]

    def _on_other_view_data(self, model: MemberModel, sender: Address, frame: Data) -> None:
        """Learn that a message of another view is buffered or dropped."""
        count = frame.run.count
        if frame.run.origin != sender:
            return
        if frame.epoch < model.epoch or not self.by_view:
            self._updater.expected = self._updater.expected.plus(Expected(view=count))
        elif not model.future_view_buffer.buffer_data(frame, model.member.config):
            self._updater.expected = self._updater.expected.plus(Expected(early=count))

    def _replay_buffered(self, model: MemberModel) -> None:
        """Learn the messages that were buffered for this view."""
        if self._too_late:
            self._updater.expected = self._updater.expected.plus(Expected(view=self._too_late))
        for datagram in self._buffered_datagrams:
            for frame in datagram.frames:
                self._on_frame(model, datagram.sender, frame)
        for late in self._buffered_data:
            self._on_frame(model, late.run.origin, late)
        self._buffered_datagrams, self._buffered_data, self._too_late = [], [], 0

    def _check_marks(self, model: MemberModel, moved: Iterable[Address]) -> None:
        """Check the windows that may have moved, then run the functions for the end of the step."""
        if self._updater.departing:
            self._updater.on_departures(model)
        for origin in moved:
            self._check_stream(model, origin)
        window = model.member.outbound.window
        low, delivered, high = model.stream.marks
        if window.high != high or window.delivered != delivered or window.low != low:
            for hook in self._own_marks_moved:
                hook(model, window)
            self._updater.on_own_marks(model, window)
        if self._connections_stepped and (
            model.member.connections.outgoing or model.member.connections.incoming
        ):
            for hook in self._connections_stepped:
                hook(model)
        if self.at_end:
            for hook in self.at_end:
                hook(model)
            self.at_end.clear()
        if self.t_ns >= self.next_check_ns:
            self.next_check_ns = NEVER_NS
            for hook in self._check_due:
                hook()

    def _check_stream(self, model: MemberModel, origin: Address) -> None:
        window = model.member.inbound[origin].window
        inbound = model.inbound[origin]
        if window is None or not inbound.open:
            return
        low, delivered, high = inbound.marks
        moves = window.delivered != delivered or window.high != high or window.low != low
        if moves or self._updater.expected is not NOTHING:
            for hook in self._marks_moved:
                hook(model, origin, inbound, window)
            if moves:
                self._updater.on_marks(inbound, window)

    def schedule_check(self, t_ns: int) -> None:
        """Call the ``check_due`` hooks at the first step at or after ``t_ns``."""
        self.next_check_ns = min(self.next_check_ns, t_ns)

    def close(self, t_ns: int) -> None:
        """Call the ``close`` hooks: the run is over."""
        self.t_ns, self.current_member = t_ns, None
        for hook in self._close:
            hook()


_MOVES_ANY = ("install", "consume", "learn")
_NON_STREAM_FRAMES = (Close, Vote, Stable, OutOfBand, OutOfBandAck, Unreliable)

CONTROL_FRAMES: tuple[type, ...] = (*get_args(MembershipFrame), *get_args(StateFrame))
"""Frames about the group or the application's state, and about no stream."""


def stream_frames_only(datagram: Datagram) -> Datagram:
    """Return the datagram without control frames; the same object if there were none."""
    frames = tuple(frame for frame in datagram.frames if type(frame) not in CONTROL_FRAMES)
    return datagram if len(frames) == len(datagram.frames) else datagram._replace(frames=frames)


__all__ = [
    "CONTROL_FRAMES",
    "MAX_VIOLATIONS",
    "SAMPLE_STEPS",
    "InvariantViolation",
    "Oracle",
]
