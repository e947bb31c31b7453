"""The hooks of an invariant checker: the observations passed to a checker, and their order.

A checker overrides the hooks it needs. The oracle finds the overridden hooks once, on construction,
and calls no others. Hooks run before the model learns from the same input. Therefore a checker can
compare the step with the expectation of the model.

Hooks of one step, in the order of the calls:

1. incoming frames: ``refused`` if the datagram must change nothing, else ``data_in``,
   ``ack_in``, ``nak_in``, ``tail_in``, ``gone_in`` for the streams of the group,
   ``non_stream_frame_in`` for all other frames of streams and ``control_frame_in``;
2. ``before_frames_event`` for each event;
3. the trace rows of the step, by event: ``row_store`` and the other ``row_`` hooks
   (``ROW_HOOKS``);
4. outgoing frames: ``data_out``, ``ack_out``, ``nak_out``, ``tail_out``, ``gone_out``,
   ``non_stream_frame_out``, ``control_frame_out``;
5. ``event`` for each event, then ``delivered`` or ``other_delivered`` for each delivery;
6. ``marks_moved`` for each inbound stream whose marks may have moved, ``own_marks_moved``,
   ``connections_stepped``, then the functions in ``oracle.at_end``;
7. ``check_due`` if a time given to ``oracle.schedule_check`` has come;
8. ``sampled`` at every ``SAMPLE_STEPS``-th step.

Outside of a step: ``incarnation_started``, ``incarnation_ended``, ``sent``, ``view``,
``state_provided``, ``view_pending``, and ``close`` when the run is over. In a sealed group
``encryption`` and ``sealed`` see each outgoing datagram, and ``opening`` each arrival.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.wire import Datagram

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.identity import Address, View
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Delivery, Ready, TraceEntry
    from gapless.protocol.stream.window import Window
    from gapless.sim.oracle.model import InboundModel, MemberModel
    from gapless.sim.oracle.model_update import ApplicationSend
    from gapless.sim.oracle.oracle import Oracle
    from gapless.sim.sealing.attempt import OpeningAttempt, SealedDatagram
    from gapless.wire import Ack, Data, Frame, Gone, Nak, Tail
    from gapless.wire.seal import Seal
    from gapless.wire.seal_keys import SealKey

Outgoing = list[tuple["Address | None", Datagram]]
"""The decoded datagrams of a step, each with a destination (None: the group)."""


class InvariantChecker:
    """An invariant; every hook does nothing unless a subclass overrides the hook.

    ``id`` is the id of the invariant in ``gapless.invariants``. The oracle calls a checker with
    ``only_when_idle`` for outgoing frames only while the settled group must be silent.
    """

    id = ""
    only_when_idle = False

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.model = oracle.model
        self.config = oracle.config

    def fail(self, message: str) -> None:
        """Report a violation of this invariant."""
        self.oracle.report(self.id, message)

    # Frames that came in

    def refused(
        self, model: MemberModel, datagram: Datagram | None, before: object, ready: Ready
    ) -> None:
        """See a datagram that must change nothing; ``before`` is the fingerprint beforehand."""

    def data_in(self, model: MemberModel, inbound: InboundModel, frame: Data) -> None:
        """See data of the inbound stream ``inbound``."""

    def ack_in(self, model: MemberModel, sender: Address, frame: Ack) -> None:
        """See an ack of the member's own stream."""

    def nak_in(self, model: MemberModel, sender: Address, frame: Nak) -> None:
        """See a nak from ``sender``."""

    def tail_in(self, model: MemberModel, inbound: InboundModel, frame: Tail) -> None:
        """See the tail announcement of the inbound stream ``inbound``."""

    def gone_in(self, model: MemberModel, inbound: InboundModel, frame: Gone) -> None:
        """See which seqnos of the inbound stream ``inbound`` cannot be repaired any more."""

    def non_stream_frame_in(self, model: MemberModel, sender: Address, frame: Frame) -> None:
        """See a frame of a connection, an out-of-band frame, a vote or a stability message."""

    def control_frame_in(self, model: MemberModel, sender: Address, frame: Frame) -> None:
        """See a frame of membership or state transfer."""

    # Rows of the member's trace

    def row_state(self, model: MemberModel, row: TraceEntry) -> None:
        """See a STATE row."""

    def row_view(self, model: MemberModel, row: TraceEntry) -> None:
        """See a VIEW row."""

    def row_store(self, model: MemberModel, row: TraceEntry) -> None:
        """See a STORE row."""

    def row_dropped(self, model: MemberModel, row: TraceEntry) -> None:
        """See a DROPPED row."""

    def row_early(self, model: MemberModel, row: TraceEntry) -> None:
        """See an EARLY row."""

    def row_repair(self, model: MemberModel, row: TraceEntry) -> None:
        """See a REPAIR row."""

    def row_suppressed(self, model: MemberModel, row: TraceEntry) -> None:
        """See a SUPPRESSED row."""

    def row_repair_aside(self, model: MemberModel, row: TraceEntry) -> None:
        """See a REPAIR_ASIDE row."""

    def row_purge(self, model: MemberModel, row: TraceEntry) -> None:
        """See a PURGE row."""

    def row_block(self, model: MemberModel, row: TraceEntry) -> None:
        """See a BLOCK row."""

    def row_unblock(self, model: MemberModel, row: TraceEntry) -> None:
        """See an UNBLOCK row."""

    # Frames that go out

    def data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """See data or a repair of a stream to the group."""

    def ack_out(self, model: MemberModel, to: Address | None, frame: Ack) -> None:
        """See an ack of a stream to the group."""

    def nak_out(self, model: MemberModel, to: Address | None, frame: Nak) -> None:
        """See a nak for a stream to the group."""

    def tail_out(self, model: MemberModel, to: Address | None, frame: Tail) -> None:
        """See a tail announcement of a stream to the group."""

    def gone_out(self, model: MemberModel, to: Address | None, frame: Gone) -> None:
        """See an answer to a nak for purged seqnos."""

    def non_stream_frame_out(self, model: MemberModel, to: Address | None, frame: Frame) -> None:
        """See a frame of a connection, an out-of-band frame, a vote or a stability message."""

    def control_frame_out(self, model: MemberModel, to: Address | None, frame: Frame) -> None:
        """See a frame of membership or state transfer."""

    # Events, deliveries and marks

    def before_frames_event(self, model: MemberModel, event: Event) -> None:
        """See an event before the outgoing frames of the same step."""

    def event(self, model: MemberModel, event: Event) -> None:
        """See an event after the outgoing frames of the same step."""

    def delivered(
        self, model: MemberModel, inbound: InboundModel | None, delivery: Delivery
    ) -> None:
        """See a delivery of a stream to the group; ``inbound`` is None for the own stream."""

    def other_delivered(self, model: MemberModel, delivery: Delivery) -> None:
        """See a unicast, out-of-band or unreliable delivery."""

    def marks_moved(
        self, model: MemberModel, origin: Address, inbound: InboundModel, window: Window
    ) -> None:
        """Compare the window of an inbound stream with the model, before the model follows."""

    def own_marks_moved(self, model: MemberModel, window: Window) -> None:
        """Compare the window of the own stream with the model, before the model follows."""

    def connections_stepped(self, model: MemberModel) -> None:
        """See the connections of a member after each step of the member."""

    def check_due(self) -> None:
        """A time given to ``oracle.schedule_check`` has come."""

    def sampled(self, model: MemberModel, ready: Ready, outgoing: Outgoing) -> None:
        """See a whole step, at a sample of steps: for checks too costly at every step."""

    # Outside of a step

    def incarnation_started(self, model: MemberModel) -> None:
        """A process started a new incarnation."""

    def incarnation_ended(self, model: MemberModel) -> None:
        """An incarnation crashed, left or was expelled."""

    def sent(self, model: MemberModel, send: ApplicationSend) -> None:
        """The application called ``send``."""

    def view(self, model: MemberModel, view: View) -> None:
        """A view is about to be installed."""

    def state_provided(self, model: MemberModel, state: bytes) -> None:
        """The application provided its state to a new member."""

    def view_pending(self) -> None:
        """A converged group will install another view."""

    # The seals of a sealed group

    def encryption(self, key: bytes, nonce: bytes) -> None:
        """A member is about to encrypt with this pair of derived key and nonce."""

    def sealed(self, model: MemberModel, sealed: SealedDatagram, key: SealKey) -> None:
        """A member has sealed a datagram; ``key`` is the sealing key of its keyring."""

    def opening(self, model: MemberModel, attempt: OpeningAttempt, seal: Seal) -> None:
        """A member has opened or rejected a datagram; ``seal`` is the seal of its process."""

    def close(self) -> None:
        """The run is over."""


ROW_HOOKS: dict[str, Callable[[InvariantChecker], Callable[[MemberModel, TraceEntry], None]]] = {
    "STATE": lambda checker: checker.row_state,
    "VIEW": lambda checker: checker.row_view,
    "STORE": lambda checker: checker.row_store,
    "DROPPED": lambda checker: checker.row_dropped,
    "EARLY": lambda checker: checker.row_early,
    "REPAIR": lambda checker: checker.row_repair,
    "SUPPRESSED": lambda checker: checker.row_suppressed,
    "REPAIR_ASIDE": lambda checker: checker.row_repair_aside,
    "PURGE": lambda checker: checker.row_purge,
    "BLOCK": lambda checker: checker.row_block,
    "UNBLOCK": lambda checker: checker.row_unblock,
}
"""The hook of each trace event with a hook."""
