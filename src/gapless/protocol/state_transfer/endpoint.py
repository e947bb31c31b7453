"""A member that gives the application's state to new members, and may ask for it when it is new itself.

On reception of a frame about a state, on a view, every interval: state.py is told.

At the end of every input: while the state is on its way the deliveries are held back, and behind it
those that it covers are dropped. A backlog that is full stops the windows, and the out-of-band
messages too. What this member gives to others covers exactly what it has handed to its own
application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.errors import LocalProtocolError
from gapless.protocol import timers
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.state_transfer.transfer import StateTransfer
from gapless.wire.frames import StateAsk, StateChunk, StateOffer, StatePull

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gapless.identity import Address, View
    from gapless.protocol.ready import Delivery, Ready
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.wire.frames import Frame


def _messages(deliveries: Iterable[Delivery]) -> int:
    return sum(delivery.message_count for delivery in deliveries)


class StateTransferEndpoint(Endpoint):
    """A member with state transfer."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.state_transfer = StateTransfer(self.me, self.config, self._rng)

    def request_state(self) -> None:
        """Ask for the state as soon as there is a view, and hand out nothing before it is there."""
        if self.view is not None:
            raise LocalProtocolError(
                "this member has a view, and messages with it: ask for the state before joining"
            )
        self.state_transfer.request_state()
        self._credit.held = True

    def provide(self, transfer: int, state: bytes | None, now_ns: int) -> Ready:
        """Answer ``StateWanted(transfer, ...)`` with the state as it was then; None if there is none to give."""
        self.state_transfer.provide(transfer, state, self._begin(now_ns))
        return self._finish(())

    def _on_other_frame(
        self, frame: Frame, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        if isinstance(frame, (StateAsk, StateOffer, StatePull, StateChunk)):
            self.state_transfer.on_frame(sender, frame, out)
            return None
        return super()._on_other_frame(frame, sender, stream, out)

    def _install_components(
        self, view: View, out: ReadyBuilder, *places: Mapping[Any, Address]
    ) -> None:
        super()._install_components(view, out, *places)
        self.state_transfer.on_view(view.members, out)

    def _arm_timers(self, out: ReadyBuilder) -> None:
        """See to the state when everything has been delivered that can be."""
        state = self.state_transfer
        if not state.idle or self._credit.held:
            state.advance_request(self, out)
            if state.is_filtering or self._credit.held:
                self._filter_deliveries(out)
            state.collect_state(self, out)
            self._timers.arm(timers.STATE, state.due_ns)
        elif self._timers.is_armed(timers.STATE):
            self._timers.arm(timers.STATE, None)
        super()._arm_timers(out)

    def _filter_deliveries(self, out: ReadyBuilder) -> None:
        state, credit, done = self.state_transfer, self._credit, 0
        while True:
            found, before = out.deliveries, out.before_view
            kept = found[:done]
            kept += state.filter_deliveries(found[done : max(before, done)], out)
            split = len(kept) if before > done else before
            kept += state.filter_deliveries(found[max(before, done) :], out)
            out.replace_deliveries(kept, split)
            # What is held was not counted; what is dropped will not be reported as consumed.
            credit.outstanding += _messages(kept[done:]) - (
                0 if credit.held else _messages(found[done:])
            )
            credit.held = state.is_holding
            credit.blocked = self.out_of_band.blocked = state.full
            done = len(kept)
            if not self._awaiting_credit or credit.limit() == 0:
                return
            self._deliver_awaiting_credit(out)
            if len(out.deliveries) == done:
                return

    def check_invariants(self) -> None:
        """Raise AssertionError if the streams or the state transfer are inconsistent."""
        super().check_invariants()
        self.state_transfer.check_invariants()


StateTransferEndpoint.timer_handlers = {
    **Endpoint.timer_handlers,
    timers.STATE: lambda member, out: member.state_transfer.on_timer(out),
}
