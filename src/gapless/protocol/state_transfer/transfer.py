"""State transfer: a new member gets the application's state, and every message after the state.

On joining with a request for the state: deliveries are held (held_deliveries.py) until a member has
provided the state (requester.py).

On reception of a request of another member: this member waits until it has delivered as much as the
new member lacks, records the marks of that moment, and asks its application for the state
(provider.py).

At the end of every input: the deliveries of the input pass through the held deliveries. Before the
state arrives all deliveries are held; afterwards deliveries covered by the state are dropped. When
too many bytes are held the windows stop, and the out-of-band channel too.

Every interval: requests without an answer are repeated; a silent peer is given up.

Each message to the group is therefore either in the state, or is delivered after the state, and
never both (B-04): the marks are taken between two deliveries; no mark is below the start of its
stream at the new member; and messages covered by the marks are dropped there on arrival. Meanwhile
every member continues to send and deliver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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
    from gapless.protocol.delivery import DeliveryScheduler
    from gapless.protocol.ready import Delivery
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.flow_control import DeliveryCredit
    from gapless.protocol.stream.out_of_band import OutOfBandChannel

__all__ = ["DeliveringStreams", "StateCoverage", "StateTransfer", "StreamPositions"]


class DeliveringStreams(StreamPositions, Protocol):
    """The streams whose deliveries a state transfer holds back: an endpoint."""

    credit: DeliveryCredit
    deliveries: DeliveryScheduler
    out_of_band: OutOfBandChannel


def _message_count(deliveries: Iterable[Delivery]) -> int:
    """Return the number of messages in ``deliveries``."""
    return sum(delivery.message_count for delivery in deliveries)


class StateTransfer:
    """Both sides of the state transfers of a member."""

    def __init__(self, me: Address, config: Config, rng: Random) -> None:
        self.me = me
        self.held_deliveries = HeldDeliveries(config.state_backlog_bytes)
        self.requester = StateRequester(me, config, rng, self.held_deliveries)
        self.provider = StateProvider(me, config)
        self._members: frozenset[Address] = frozenset()
        self.engaged = False
        """Whether a transfer may be under way; an idle member looks no further."""

    # The new member

    def request_state(self) -> None:
        """Request the state from the first view on."""
        assert not self._members, "the state is requested before the first view"
        self.engaged = True
        self.requester.request_state()
        assert self.is_holding

    @property
    def is_holding(self) -> bool:
        """Whether deliveries are held back."""
        return self.held_deliveries.waiting

    @property
    def is_filtering(self) -> bool:
        """Whether deliveries have to pass ``filter_deliveries``.

        Filtering lasts longer than the wait for the state: the state may cover messages that have
        not arrived yet.
        """
        return self.held_deliveries.active

    @property
    def full(self) -> bool:
        """Whether the held deliveries have reached the limit, so that the windows must stop."""
        return self.held_deliveries.full

    def filter_deliveries(
        self, deliveries: Iterable[Delivery], out: ReadyBuilder
    ) -> list[Delivery]:
        """Filter deliveries, in order; return the deliveries for the application now."""
        self.held_deliveries.hold(deliveries, out)
        return self.held_deliveries.take(out)

    # The provider

    def provide(
        self, transfer: int, state: bytes | None, out: ReadyBuilder, *, failed: bool = False
    ) -> None:
        """Provide the state requested by ``StateWanted(transfer, …)``.

        None if there is no state; ``failed`` if the application failed to make one.
        """
        self.provider.provide(transfer, state, out, failed=failed)

    # Both

    def on_view(self, members: Sequence[Address], out: ReadyBuilder) -> None:
        """Follow an installed view, oldest member first."""
        assert self.me in members
        self._members = frozenset(members)
        # A state may cover messages of a member that this view brings: they are filtered from now.
        self.engaged = True
        self.held_deliveries.on_view(members)
        self.provider.on_view(members)
        self.requester.on_view(members, out)

    def on_frame(self, sender: Address, frame: StateFrame, out: ReadyBuilder) -> None:
        """Handle a frame of a state transfer, which must come directly from its origin."""
        if sender == self.me or sender not in self._members:
            out.drop("stranger", peer=sender)
        elif frame.origin != sender:
            out.drop("origin", frame.origin, peer=sender)
        else:
            self.engaged = True
            out.count(RECEIVED_COUNTERS[type(frame)])
            self._on_frame(sender, frame, out)

    def _on_frame(self, sender: Address, frame: StateFrame, out: ReadyBuilder) -> None:
        """Pass a frame of a member to the requester or to the provider."""
        if isinstance(frame, StateAsk):
            self.provider.on_ask(sender, frame, out, empty=self.requester.is_waiting)
        elif isinstance(frame, StatePull):
            self.provider.on_pull(sender, frame, out)
        elif isinstance(frame, StateOffer):
            self.requester.on_offer(sender, frame, out)
        else:
            assert isinstance(frame, StateChunk)
            self.requester.on_chunk(sender, frame, out)

    def on_deliveries(self, streams: DeliveringStreams, out: ReadyBuilder) -> None:
        """Advance the transfers when an input has made all its deliveries.

        The request is advanced first, because the state may be complete now. Then the deliveries
        are filtered. The provider comes last, so that its marks cover exactly the deliveries of its
        application.
        """
        if self.requester.is_waiting:
            self.requester.advance(streams, out)
        if self.is_filtering or streams.credit.held:
            self._filter_outcome(streams, out)
        self.provider.collect_states(streams, self.held_deliveries, out)

    def _filter_outcome(self, streams: DeliveringStreams, out: ReadyBuilder) -> None:
        """Filter the deliveries of this input; deliver more if that made room."""
        credit, filtered = streams.credit, 0
        while True:
            found, before_view = out.deliveries, out.before_view
            assert filtered <= len(found)
            passed = found[:filtered]
            # Deliveries before and after the view change of this input stay on their side of it.
            passed += self.filter_deliveries(found[filtered : max(before_view, filtered)], out)
            split = len(passed) if before_view > filtered else before_view
            passed += self.filter_deliveries(found[max(before_view, filtered) :], out)
            out.replace_deliveries(passed, split)
            # Held messages were not counted as outstanding; dropped ones are never consumed.
            credit.outstanding += _message_count(passed[filtered:]) - (
                0 if credit.held else _message_count(found[filtered:])
            )
            credit.held = self.is_holding
            credit.blocked = streams.out_of_band.blocked = self.full
            filtered = len(passed)
            # Dropped deliveries gave their credit back: deliver more until none waits or none
            # passes.
            if not streams.deliveries.awaiting_credit or credit.limit() == 0:
                return
            streams.deliveries.deliver_awaiting_credit(out)
            if len(out.deliveries) == filtered:
                return

    @property
    def idle(self) -> bool:
        """Whether there is neither a request, nor a provided state, nor a delivery to filter."""
        return (
            not self.requester.is_waiting
            and not self.provider.busy
            and not self.held_deliveries.active
        )

    @property
    def due_ns(self) -> int | None:
        """When ``on_timer`` is to be called."""
        return min(
            (at for at in (self.requester.due_ns, self.provider.due_ns) if at is not None),
            default=None,
        )

    def on_timer(self, out: ReadyBuilder) -> None:
        """Run all due timeouts; ``on_deliveries`` follows in the same input."""
        self.requester.on_timer(out)
        self.provider.on_timer(out)

    def on_pause(self, now_ns: int) -> None:
        """Restart all timeouts: this member was paused."""
        self.requester.on_pause(now_ns)
        self.provider.on_pause(now_ns)

    def check_invariants(self) -> None:
        """Raise AssertionError if any of the three parts is inconsistent, or two disagree."""
        assert self.engaged or self.idle, "a transfer that goes on is looked at"
        self.held_deliveries.check_invariants()
        self.requester.check_invariants()
        self.provider.check_invariants()
        if self.is_holding:
            assert self.requester.is_waiting, "deliveries are held for a state that is requested"
        assert self.is_filtering or not self.held_deliveries.held_bytes, "nothing stays held"
        if self.full:
            assert self.is_holding, "only a member that waits for the state is full"

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times."""
        return (
            self.held_deliveries.snapshot(),
            self.requester.snapshot(),
            self.provider.snapshot(),
        )
