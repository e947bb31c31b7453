"""The provider of a state: when a member takes the state, and how the state is sent.

On reception of a request: one request is remembered for each member; a later request replaces it. A
member that waits for the state itself refuses. ``view_bundle_delay`` later, as soon as every stream
of a member has been delivered up to the start in the request, the provider records its marks and
asks its application for the state. If a state that covers the starts is already here, the request
is answered with the present state.

On the application's answer: the offer goes to the requesters, with size, marks and the hash of each
block. Without a state, or without an answer within four times ``state_timeout``, the requesters are
refused.

On reception of the same request again: the offer is sent again, at most twice per ``join_interval``
and at most ``state_window_bytes`` at a time; before the offer is ready, a note is sent instead.

On reception of a pull: the bytes are sent. A pull of nothing ends the transfer.

On a view without the requester, or after four times ``state_timeout`` of silence: the request is
forgotten, and the state with its last request. At most four states are kept and sixteen members
served at once; others wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError
from gapless.protocol.events import StateWanted
from gapless.protocol.state_transfer.block_fetch import BLOCK_BYTES, MAX_STATE_BYTES, block_hashes
from gapless.protocol.state_transfer.requester import (
    MAX_OFFER_BYTES,
    NO_STATE,
    NOT_YET,
    PATIENCE,
    STATE_FAILED,
)
from gapless.wire.codec import state_chunk_room_bytes, state_offer_room_bytes
from gapless.wire.frames import StateAsk, StateChunk, StateOffer, StatePull, StreamProgress
from gapless.wire.state_offer import OfferContent, encode_offer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.state_transfer.held_deliveries import HeldDeliveries, StateCoverage
    from gapless.protocol.state_transfer.requester import StreamPositions

_MAX_STATES = 4
"""Maximum number of states that are kept at once."""
_MAX_SERVED = 16
"""Maximum number of members that are served at once."""
_MAX_STARTS = 65_536
"""Maximum number of streams in one request."""


class _ProvidedState:
    """A state requested from the application, or provided by the application."""

    __slots__ = ("asked_ns", "covered", "failed", "members", "number", "parts", "refused", "state")

    def __init__(
        self, number: int, covered: StateCoverage, members: frozenset[Address], now_ns: int
    ) -> None:
        self.number = number
        self.covered = covered
        self.members = members
        self.asked_ns = now_ns
        self.state: bytes | None = None
        self.parts: list[bytes] = []
        self.refused = self.failed = False

    def serves(self, peer: Address, starts: dict[Address, int]) -> bool:
        """Return whether the state also serves ``peer``, a member when the state was taken."""
        marks = self.covered.marks
        covers = all(marks.get(origin, 0) >= start for origin, start in starts.items())
        return covers and peer in self.members and not self.refused


class _StateRequest:
    """The request of a member."""

    __slots__ = (
        "collect_ns",
        "gathered",
        "last_heard_ns",
        "offered_ns",
        "part",
        "provided",
        "starts",
        "transfer",
    )

    def __init__(self, transfer: int, now_ns: int, collect_ns: int) -> None:
        self.transfer = transfer
        self.starts: dict[Address, int] = {}
        self.last_heard_ns = now_ns
        self.collect_ns = collect_ns
        self.gathered = False
        self.provided: _ProvidedState | None = None
        self.offered_ns: int | None = None
        self.part = 0


class StateProvider:
    """The states that this member provides to others."""

    def __init__(self, me: Address, config: Config) -> None:
        self.me = me
        self.config = config
        self._members: frozenset[Address] = frozenset()
        self._requests: dict[Address, _StateRequest] = {}
        self._number = 0

    # On a view

    def on_view(self, members: Sequence[Address]) -> None:
        """Forget the requests of departed members."""
        self._members = frozenset(members)
        for peer in [peer for peer in self._requests if peer not in self._members]:
            del self._requests[peer]

    @property
    def busy(self) -> bool:
        """Whether a request is open."""
        return bool(self._requests)

    def _provided_states(self) -> list[_ProvidedState]:
        """Return the states with at least one request."""
        found = {
            request.provided.number: request.provided
            for request in self._requests.values()
            if request.provided
        }
        return list(found.values())

    # On reception of a request

    def on_ask(self, peer: Address, frame: StateAsk, out: ReadyBuilder, *, empty: bool) -> None:
        """Handle a request; ``empty``: this member waits for the state itself."""
        # This member's own state is incomplete: the requester asks the next member at once.
        if empty:
            self._send_status(peer, frame.transfer, NO_STATE, out)
            return
        request = self._requests.get(peer)
        # A late request of a transfer that its requester has given up.
        if request is not None and frame.transfer < request.transfer:
            out.drop("state ask", peer=peer)
            return
        if request is None or frame.transfer > request.transfer:
            collect_ns = out.now_ns + self.config.view_bundle_delay_ns
            request = self._requests[peer] = _StateRequest(frame.transfer, out.now_ns, collect_ns)
        request.last_heard_ns = out.now_ns
        provided = request.provided
        if provided is None or (provided.state is None and not provided.refused):
            # Until the state is taken the request may still grow: its starts come in several
            # frames.
            for origin, start, _ in frame.starts if provided is None else ():
                if len(request.starts) < _MAX_STARTS:
                    request.starts[origin] = max(start, request.starts.get(origin, 0))
            self._send_status(peer, request.transfer, NOT_YET, out)
        else:
            self._offer(peer, request, out)

    def _send_status(self, peer: Address, transfer: int, word: bytes, out: ReadyBuilder) -> None:
        """Send ``word`` in the place of an offer."""
        out.transmit(peer, StateOffer(self.me, transfer, 0, 1, word))

    def collect_states(
        self, streams: StreamPositions, held: HeldDeliveries, out: ReadyBuilder
    ) -> None:
        """Ask the application for the states due now; called after every input."""
        for peer, request in self._requests.items():
            if request.provided is None and request.collect_ns <= out.now_ns:
                request.gathered = True
                self._collect_for(peer, request, streams, held, out)

    def _collect_for(
        self,
        peer: Address,
        request: _StateRequest,
        streams: StreamPositions,
        held: HeldDeliveries,
        out: ReadyBuilder,
    ) -> None:
        """Reuse a state for ``request``, or ask the application, if the streams are far enough."""
        # Enough members are served: this request waits, and is looked at again after the next
        # input.
        if sum(other.provided is not None for other in self._requests.values()) >= _MAX_SERVED:
            return
        for origin, start in list(request.starts.items()):
            # The stream of a departed member never gets further: its start is not waited for.
            reached = streams.delivered_upto(origin) if origin in self._members else start
            if reached is None or reached < start:
                return
        states = self._provided_states()
        request.provided = next(
            (provided for provided in states if provided.serves(peer, request.starts)), None
        )
        if request.provided is not None:
            if request.provided.state is not None:
                self._offer(peer, request, out)
        # Each state is as large as the application's: few are kept, and other requests wait.
        elif len(states) < _MAX_STATES:
            self._number += 1
            covered = held.extend_coverage(streams.coverage())
            assert all(
                covered.marks.get(origin, 0) >= start
                for origin, start in request.starts.items()
                if origin in self._members
            ), "the marks cover the requested starts"
            request.provided = _ProvidedState(self._number, covered, self._members, out.now_ns)
            out.emit(StateWanted(self._number, peer))
            out.count("state.wanted")

    # On the application's answer

    def provide(
        self, transfer: int, state: bytes | None, out: ReadyBuilder, *, failed: bool = False
    ) -> None:
        """Offer ``state`` to the waiting members; None: there is none, or making it failed."""
        if state is not None and type(state) is not bytes:
            raise LocalProtocolError(
                f"the state must be bytes, not {type(state).__name__}: encode the state first"
            )
        if not 0 < transfer <= self._number:
            raise LocalProtocolError(
                f"no state was requested under number {transfer}: pass the number of StateWanted"
            )
        if state is not None and len(state) > MAX_STATE_BYTES:
            raise LocalProtocolError(
                f"a state of {len(state)} bytes exceeds {MAX_STATE_BYTES}: provide a smaller state"
            )
        provided = next(
            (provided for provided in self._provided_states() if provided.number == transfer), None
        )
        if provided is None:
            # Every requester is gone or served by another member.
            out.count("state.late")
            return
        if provided.state is not None or provided.refused:
            raise LocalProtocolError(
                f"the state {transfer} was provided before: provide each state once"
            )
        if state is not None:
            provided.parts = self._parts(state, provided.covered)
        provided.state, provided.refused = state, not provided.parts
        provided.failed = failed and state is None
        self._offer_to_all(provided, out)

    def _offer_to_all(self, provided: _ProvidedState, out: ReadyBuilder) -> None:
        """Send the offer of ``provided`` to all waiting members."""
        for peer, request in self._requests.items():
            if request.provided is provided:
                self._offer(peer, request, out)

    def _parts(self, state: bytes, covered: StateCoverage) -> list[bytes]:
        """Return the offer in parts; none if larger than a requester accepts."""
        digest = tuple(
            StreamProgress(origin, mark, mark) for origin, mark in sorted(covered.marks.items())
        )
        out_of_band = tuple(
            (origin, tuple(seen)) for origin, seen in sorted(covered.out_of_band.items()) if seen
        )
        body = encode_offer(
            OfferContent(
                len(state), BLOCK_BYTES, digest, out_of_band, block_hashes(state), covered.epoch
            )
        )
        room_bytes = state_offer_room_bytes(self.config.max_frame_bytes)
        parts = [body[at : at + room_bytes] for at in range(0, len(body), room_bytes)]
        return parts if len(body) <= MAX_OFFER_BYTES and len(parts) < 2**16 else []

    def _offer(self, peer: Address, request: _StateRequest, out: ReadyBuilder) -> None:
        """Send the offer, from where the last sending stopped, up to a window of bytes."""
        provided, now_ns = request.provided, out.now_ns
        assert provided is not None
        if (
            request.offered_ns is not None
            and now_ns < request.offered_ns + self.config.join_interval_ns // 2
        ):
            # A requester that repeats its request quickly must not get a window of bytes each time.
            out.count("state.too soon")
            return
        request.offered_ns = now_ns
        if provided.refused:
            word = STATE_FAILED if provided.failed else NO_STATE
            self._send_status(peer, request.transfer, word, out)
            return
        parts, sent_bytes = provided.parts, 0
        for _ in range(len(parts)):
            out.transmit(
                peer,
                StateOffer(
                    self.me, request.transfer, request.part, len(parts), parts[request.part]
                ),
            )
            sent_bytes += len(parts[request.part])
            request.part = (request.part + 1) % len(parts)
            # A large offer would flood the requester's buffer: the rest follows its next request.
            if sent_bytes >= self.config.state_window_bytes:
                break

    # On reception of a pull

    def on_pull(self, peer: Address, frame: StatePull, out: ReadyBuilder) -> None:
        """Send the requested bytes; a pull of nothing ends the transfer."""
        request = self._requests.get(peer)
        if request is None or request.transfer != frame.transfer:
            out.drop("state pull", peer=peer)
            return
        # A pull of nothing: the requester has the state, or asks another member.
        if not frame.length:
            del self._requests[peer]
            return
        provided, end = request.provided, frame.offset + frame.length
        if (
            provided is None
            or provided.state is None
            or frame.length > BLOCK_BYTES
            or end > len(provided.state)
        ):
            out.drop("state pull", peer=peer)
            return
        request.last_heard_ns = out.now_ns
        assert 0 <= frame.offset < end <= len(provided.state), "a pull lies within the state"
        room_bytes = state_chunk_room_bytes(self.config.max_frame_bytes)
        for at in range(frame.offset, end, room_bytes):
            body = provided.state[at : min(at + room_bytes, end)]
            out.transmit(peer, StateChunk(self.me, frame.transfer, at, body))

    # Every interval

    @property
    def due_ns(self) -> int | None:
        """When ``on_timer`` is due."""
        if not self._requests:
            return None
        patience_ns = PATIENCE * self.config.state_timeout_ns
        silent_ns = min(request.last_heard_ns for request in self._requests.values()) + patience_ns
        collects = [
            request.collect_ns for request in self._requests.values() if not request.gathered
        ]
        answers = [
            provided.asked_ns + patience_ns
            for provided in self._provided_states()
            if provided.state is None and not provided.refused
        ]
        return min([silent_ns, *collects, *answers])

    def on_timer(self, out: ReadyBuilder) -> None:
        """Forget silent requesters; refuse where the application has not answered in time."""
        now_ns, patience_ns = out.now_ns, PATIENCE * self.config.state_timeout_ns
        for peer, request in list(self._requests.items()):
            if now_ns >= request.last_heard_ns + patience_ns:
                del self._requests[peer]
                out.count("state.forgotten")
        for provided in self._provided_states():
            if (
                provided.state is None
                and not provided.refused
                and now_ns >= provided.asked_ns + patience_ns
            ):
                provided.refused = True
                out.count("state.unanswered")
                self._offer_to_all(provided, out)

    def on_pause(self, now_ns: int) -> None:
        """Restart all timeouts: this process was paused."""
        for request in self._requests.values():
            request.last_heard_ns = now_ns

    def check_invariants(self) -> None:
        """Raise AssertionError if a limit is exceeded, or a request concerns a stranger."""
        states = self._provided_states()
        served = sum(request.provided is not None for request in self._requests.values())
        assert len(states) <= _MAX_STATES, f"{len(states)} states are kept"
        assert served <= _MAX_SERVED, f"{served} members are served"
        assert self._requests.keys() <= self._members - {self.me}, "only other members are served"
        for peer, request in self._requests.items():
            assert len(request.starts) <= _MAX_STARTS, f"{peer} named too many streams"
            parts = () if request.provided is None else request.provided.parts
            assert 0 <= request.part < max(1, len(parts)), f"{peer}: the next part exists"
        for provided in states:
            assert 0 < provided.number <= self._number, "a state was wanted before it is provided"
            assert not provided.parts or provided.state is not None, "an offer needs a state"
            assert not (provided.refused and provided.parts), "a refused state is not offered"

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times."""
        requests = tuple(
            (
                peer,
                request.transfer,
                tuple(sorted(request.starts.items())),
                request.provided and request.provided.number,
            )
            for peer, request in sorted(self._requests.items())
        )
        states = tuple(
            (provided.number, provided.state, provided.refused, provided.failed)
            for provided in self._provided_states()
        )
        return (self._number, requests, states)
