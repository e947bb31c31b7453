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

from gapless.protocol.ready_builder import RECEIVED_COUNTERS
from gapless.protocol.state_transfer.held_deliveries import HeldDeliveries, StateCoverage
from gapless.protocol.state_transfer.provider import StateProvider
from gapless.protocol.state_transfer.requester import StateRequester, StreamPositions
from gapless.wire.frames import StateAsk, StateChunk, StateFrame, StateOffer, StatePull

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.ready import Delivery
    from gapless.protocol.ready_builder import ReadyBuilder

__all__ = ["StateCoverage", "StateTransfer", "StreamPositions"]


class StateTransfer:
    """Both sides of the state transfers of one member."""

    def __init__(self, me: Address, config: Config, rng: Random) -> None:
        self.me = me
        self.held_deliveries = HeldDeliveries(config.state_backlog_bytes)
        self.requester = StateRequester(me, config, rng, self.held_deliveries)
        self.provider = StateProvider(me, config)
        self._members: frozenset[Address] = frozenset()

    # What a new member does

    def request_state(self) -> None:
        """Let this member wait for the state, from its first view on."""
        self.requester.request_state()

    @property
    def is_holding(self) -> bool:
        """Whether deliveries are held back."""
        return self.held_deliveries.waiting

    @property
    def is_filtering(self) -> bool:
        """Whether deliveries have to go through :meth:`sift`.

        This lasts longer than the wait for the state: it may cover messages that have not come yet.
        """
        return self.held_deliveries.active

    @property
    def full(self) -> bool:
        """Whether so much is held that nothing more should be taken off the windows."""
        return self.held_deliveries.full

    def filter_deliveries(
        self, deliveries: Iterable[Delivery], out: ReadyBuilder
    ) -> list[Delivery]:
        """Take deliveries, in order; return what is to be handed out now, and nothing before the state is there."""
        self.held_deliveries.hold(deliveries, out)
        return self.held_deliveries.take(out)

    # What a provider does

    def provide(self, transfer: int, state: bytes | None, out: ReadyBuilder) -> None:
        """Give the state that ``StateWanted(transfer, ...)`` asked for; None means that there is none to give."""
        self.provider.provide(transfer, state, out)

    # What both do

    def on_view(self, members: Sequence[Address], out: ReadyBuilder) -> None:
        """Take note of a view that was installed, oldest member first."""
        self._members = frozenset(members)
        self.held_deliveries.on_view(members)
        self.provider.on_view(members)
        self.requester.on_view(members, out)

    def on_frame(self, sender: Address, frame: StateFrame, out: ReadyBuilder) -> None:
        """Take a frame about a state in; it counts only if it is from another member, about itself."""
        if sender == self.me or sender not in self._members:
            out.drop("stranger", peer=sender)
        elif frame.origin != sender:
            out.drop("origin", frame.origin, peer=sender)
        else:
            out.count(RECEIVED_COUNTERS[type(frame)])
            self._on_frame(sender, frame, out)

    def _on_frame(self, sender: Address, frame: StateFrame, out: ReadyBuilder) -> None:
        if isinstance(frame, StateAsk):
            self.provider.on_ask(sender, frame, out, empty=self.requester.is_waiting)
        elif isinstance(frame, StatePull):
            self.provider.on_pull(sender, frame, out)
        elif isinstance(frame, StateOffer):
            self.requester.on_offer(sender, frame, out)
        else:
            assert isinstance(frame, StateChunk)
            self.requester.on_chunk(sender, frame, out)

    def advance_request(self, ground: StreamPositions, out: ReadyBuilder) -> None:
        """Ask, or go on from the state, if the streams allow it; called at the end of every input."""
        if self.requester.is_waiting:
            self.requester.advance(ground, out)

    def collect_state(self, ground: StreamPositions, out: ReadyBuilder) -> None:
        """Ask the application for its state, if somebody waits for it; called after the last delivery of an input."""
        self.provider.collect_states(ground, self.held_deliveries, out)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to look at."""
        return (
            not self.requester.is_waiting
            and not self.provider.busy
            and not self.held_deliveries.active
        )

    @property
    def due_ns(self) -> int | None:
        """When ``fire`` is to be called."""
        return min(
            (at for at in (self.requester.due_ns, self.provider.due_ns) if at is not None),
            default=None,
        )

    def on_timer(self, out: ReadyBuilder) -> None:
        """Do what is due; ``look`` follows."""
        self.requester.on_timer(out)
        self.provider.on_timer(out)

    def on_pause(self, now_ns: int) -> None:
        """Begin all patience anew: this member itself stood still."""
        self.requester.on_pause(now_ns)
        self.provider.on_pause(now_ns)

    def check_invariants(self) -> None:
        """Raise AssertionError if one of the three parts is inconsistent."""
        self.held_deliveries.check_invariants()
        self.requester.check_invariants()
        self.provider.check_invariants()

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times."""
        return (
            self.held_deliveries.snapshot(),
            self.requester.snapshot(),
            self.provider.snapshot(),
        )
