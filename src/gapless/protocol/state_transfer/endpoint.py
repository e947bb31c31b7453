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
from gapless.protocol.endpoint import Member
from gapless.protocol.state_transfer.transfer import StateTransfer
from gapless.wire.frames import StateAsk, StateChunk, StateOffer, StatePull

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gapless.identity import Address, View
    from gapless.protocol.ready import Delivery, Ready
    from gapless.protocol.ready_builder import Context
    from gapless.protocol.stream.inbound import Inbound
    from gapless.wire.frames import Frame


def _messages(deliveries: Iterable[Delivery]) -> int:
    return sum(delivery.message_count for delivery in deliveries)


class Stateful(Member):
    """A member with state transfer."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.state = StateTransfer(self.me, self.config, self._rng)

    def want_state(self) -> None:
        """Ask for the state as soon as there is a view, and hand out nothing before it is there."""
        if self.view is not None:
            raise LocalProtocolError(
                "this member has a view, and messages with it: ask for the state before joining"
            )
        self.state.want()
        self._credit.held = True

    def provide(self, transfer: int, state: bytes | None, now_ns: int) -> Ready:
        """Answer ``StateWanted(transfer, ...)`` with the state as it was then; None if there is none to give."""
        self.state.provide(transfer, state, self._begin(now_ns))
        return self._finish(())

    def _on_other(
        self, frame: Frame, sender: Address, stream: Inbound, context: Context
    ) -> Inbound | None:
        if isinstance(frame, (StateAsk, StateOffer, StatePull, StateChunk)):
            self.state.on_frame(sender, frame, context)
            return None
        return super()._on_other(frame, sender, stream, context)

    def _install_parts(self, view: View, context: Context, *places: Mapping[Any, Address]) -> None:
        super()._install_parts(view, context, *places)
        self.state.on_view(view.members, context)

    def _arm_all(self, context: Context) -> None:
        """See to the state when everything has been delivered that can be."""
        state = self.state
        if not state.idle or self._credit.held:
            state.look(self, context)
            if state.sifting or self._credit.held:
                self._sift(context)
            state.serve(self, context)
            self._timers.arm(timers.STATE, state.due_ns)
        elif self._timers.armed(timers.STATE):
            self._timers.arm(timers.STATE, None)
        super()._arm_all(context)

    def _sift(self, context: Context) -> None:
        state, credit, done = self.state, self._credit, 0
        while True:
            found, before = context.deliveries, context.before_view
            kept = found[:done]
            kept += state.sift(found[done : max(before, done)], context)
            split = len(kept) if before > done else before
            kept += state.sift(found[max(before, done) :], context)
            context.deliver_instead(kept, split)
            # What is held was not counted; what is dropped will not be reported as consumed.
            credit.outstanding += _messages(kept[done:]) - (
                0 if credit.held else _messages(found[done:])
            )
            credit.held = state.holding
            credit.closed = self.aside.closed = state.full
            done = len(kept)
            if not self._stalled or credit.limit() == 0:
                return
            self._deliver_stalled(context)
            if len(context.deliveries) == done:
                return


Stateful.timed = {**Member.timed, timers.STATE: lambda member, context: member.state.fire(context)}
