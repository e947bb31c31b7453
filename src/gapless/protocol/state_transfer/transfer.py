"""State transfer: a new member gets the application's state, and every message that the state does not cover.

On joining with the wish for the state: deliveries are held (backlog.py) until a member has given it
(state_taker.py).

On reception of a question by another: this member waits until it has delivered as much as the new
one lacks, notes the marks of that moment, and gives the application's state (state_giver.py).

Every interval: what was asked for and has not come is asked for again; who is silent is given up.

So each message to the group is either in the state, or is delivered behind it, and never both
(B-04): the marks are taken between two deliveries; they are nowhere below the start of a stream at
the new member; and what they cover is dropped there whenever it comes. Nobody stops sending or
delivering meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.protocol.ready_builder import RECEIVED
from gapless.protocol.state_transfer.held_deliveries import Backlog, Covered
from gapless.protocol.state_transfer.provider import Giver
from gapless.protocol.state_transfer.requester import Ground, Taker
from gapless.wire.frames import State, StateAsk, StateChunk, StateOffer, StatePull

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.ready import Delivery
    from gapless.protocol.ready_builder import Context

__all__ = ["Covered", "Ground", "StateTransfer"]


class StateTransfer:
    """Both sides of the state transfers of one member."""

    def __init__(self, me: Address, config: Config, rng: Random) -> None:
        self.me = me
        self.backlog = Backlog(config.state_backlog_bytes)
        self.taker = Taker(me, config, rng, self.backlog)
        self.giver = Giver(me, config)
        self._members: frozenset[Address] = frozenset()

    # What a new member does

    def want(self) -> None:
        """Let this member wait for the state, from its first view on."""
        self.taker.want()

    @property
    def holding(self) -> bool:
        """Whether deliveries are held back."""
        return self.backlog.waiting

    @property
    def sifting(self) -> bool:
        """Whether deliveries have to go through :meth:`sift`.

        This lasts longer than the wait for the state: it may cover messages that have not come yet.
        """
        return self.backlog.active

    @property
    def full(self) -> bool:
        """Whether so much is held that nothing more should be taken off the windows."""
        return self.backlog.full

    def sift(self, deliveries: Iterable[Delivery], context: Context) -> list[Delivery]:
        """Take deliveries, in order; return what is to be handed out now, and nothing before the state is there."""
        self.backlog.hold(deliveries, context)
        return self.backlog.take(context)

    # What a provider does

    def provide(self, transfer: int, state: bytes | None, context: Context) -> None:
        """Give the state that ``StateWanted(transfer, ...)`` asked for; None means that there is none to give."""
        self.giver.provide(transfer, state, context)

    # What both do

    def on_view(self, members: Sequence[Address], context: Context) -> None:
        """Take note of a view that was installed, oldest member first."""
        self._members = frozenset(members)
        self.backlog.on_view(members)
        self.giver.on_view(members)
        self.taker.on_view(members, context)

    def on_frame(self, sender: Address, frame: State, context: Context) -> None:
        """Take a frame about a state in; it counts only if it is from another member, about itself."""
        if sender == self.me or sender not in self._members:
            context.drop("stranger", peer=sender)
        elif frame.origin != sender:
            context.drop("origin", frame.origin, peer=sender)
        else:
            context.count(RECEIVED[type(frame)])
            self._on_frame(sender, frame, context)

    def _on_frame(self, sender: Address, frame: State, context: Context) -> None:
        if isinstance(frame, StateAsk):
            self.giver.on_ask(sender, frame, context, empty=self.taker.is_waiting)
        elif isinstance(frame, StatePull):
            self.giver.on_pull(sender, frame, context)
        elif isinstance(frame, StateOffer):
            self.taker.on_offer(sender, frame, context)
        else:
            assert isinstance(frame, StateChunk)
            self.taker.on_chunk(sender, frame, context)

    def look(self, ground: Ground, context: Context) -> None:
        """Ask, or go on from the state, if the streams allow it; called at the end of every input."""
        if self.taker.is_waiting:
            self.taker.look(ground, context)

    def serve(self, ground: Ground, context: Context) -> None:
        """Ask the application for its state, if somebody waits for it; called after the last delivery of an input."""
        self.giver.look(ground, self.backlog, context)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to look at."""
        return not self.taker.is_waiting and not self.giver.busy and not self.backlog.active

    @property
    def due_ns(self) -> int | None:
        """When ``fire`` is to be called."""
        return min(
            (at for at in (self.taker.due_ns, self.giver.due_ns) if at is not None), default=None
        )

    def fire(self, context: Context) -> None:
        """Do what is due; ``look`` follows."""
        self.taker.fire(context)
        self.giver.fire(context)

    def paused(self, now_ns: int) -> None:
        """Begin all patience anew: this member itself stood still."""
        self.taker.paused(now_ns)
        self.giver.paused(now_ns)

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times."""
        return (self.backlog.snapshot(), self.taker.snapshot(), self.giver.snapshot())
