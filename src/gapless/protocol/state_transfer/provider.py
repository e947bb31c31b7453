"""The provider's side of a state transfer: when it takes the state, and how it hands it over.

On reception of a question: it is remembered, one for each member; a later one takes its place. A
member that waits for the state itself refuses. ``view_bundle_delay`` later, as soon as every stream has been
delivered up to the start that the question names (of those who are members here), the marks of this
moment are noted and the application is asked for its state. A question that comes while a state is
here which covers its starts is answered with that state.

On the application's answer: the offer goes to those that asked: size, marks, the hash of each
block. Without a state, or without an answer within four times ``state_timeout``, they are told that
there is none.

On reception of the same question again: the offer goes out again (not more often than twice per
``join_interval``, and at most ``state_window_bytes`` of it at a time), or the word that it will
come.

On reception of a pull: the bytes are sent. A pull of nothing ends the transfer.

On a view without the new member, or when nothing was heard of it for four times ``state_timeout``:
it is forgotten, and the state with the last that wanted it. At most four states are kept and
sixteen members served at once; others wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError
from gapless.protocol.events import StateWanted
from gapless.protocol.state_transfer.block_fetch import BLOCK_BYTES, MAX_STATE_BYTES, block_hashes
from gapless.protocol.state_transfer.requester import MAX_OFFER_BYTES, NO_STATE, NOT_YET, PATIENCE
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
"""How many states are kept at once."""
_MAX_SERVED = 16
"""How many members are served at once."""
_MAX_STARTS = 65_536
"""How many streams one question may name."""


class _ProvidedState:
    """A state that the application was asked for, and then gave."""

    __slots__ = ("asked_ns", "covered", "members", "number", "parts", "refused", "state")

    def __init__(
        self, number: int, covered: StateCoverage, members: frozenset[Address], now_ns: int
    ) -> None:
        self.number = number
        self.covered = covered
        self.members = members
        self.asked_ns = now_ns
        self.state: bytes | None = None
        self.parts: list[bytes] = []
        self.refused = False

    def serves(self, peer: Address, starts: dict[Address, int]) -> bool:
        """Return whether the state also serves ``peer``, a member when it was taken."""
        marks = self.covered.marks
        covers = all(marks.get(origin, 0) >= start for origin, start in starts.items())
        return covers and peer in self.members and not self.refused


class _StateRequest:
    """What one member has asked."""

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

    def __init__(self, transfer: int, now_ns: int, look_ns: int) -> None:
        self.transfer = transfer
        self.starts: dict[Address, int] = {}
        self.last_heard_ns = now_ns
        self.collect_ns = look_ns
        self.gathered = False
        self.provided: _ProvidedState | None = None
        self.offered_ns: int | None = None
        self.part = 0


class StateProvider:
    """The states that this member gives to others."""

    def __init__(self, me: Address, config: Config) -> None:
        self.me = me
        self.config = config
        self._members: frozenset[Address] = frozenset()
        self._requests: dict[Address, _StateRequest] = {}
        self._number = 0

    # On a view

    def on_view(self, members: Sequence[Address]) -> None:
        """Forget those that are gone."""
        self._members = frozenset(members)
        for peer in [peer for peer in self._requests if peer not in self._members]:
            del self._requests[peer]

    @property
    def busy(self) -> bool:
        """Whether somebody has asked."""
        return bool(self._requests)

    def _provided_states(self) -> list[_ProvidedState]:
        """Return the states that somebody still wants."""
        found = {
            question.provided.number: question.provided
            for question in self._requests.values()
            if question.provided
        }
        return list(found.values())

    # On reception of a question

    def on_ask(self, peer: Address, frame: StateAsk, out: ReadyBuilder, *, empty: bool) -> None:
        """Take a question in; ``empty`` says that this member waits for the state itself."""
        if empty:
            self._send_status(peer, frame.transfer, NO_STATE, out)
            return
        question = self._requests.get(peer)
        if question is not None and frame.transfer < question.transfer:
            out.drop("state ask", peer=peer)
            return
        if question is None or frame.transfer > question.transfer:
            look_ns = out.now_ns + self.config.view_bundle_delay_ns
            question = self._requests[peer] = _StateRequest(frame.transfer, out.now_ns, look_ns)
        question.last_heard_ns = out.now_ns
        given = question.provided
        if given is None or (given.state is None and not given.refused):
            for origin, start, _ in frame.starts if given is None else ():
                if len(question.starts) < _MAX_STARTS:
                    question.starts[origin] = max(start, question.starts.get(origin, 0))
            self._send_status(peer, question.transfer, NOT_YET, out)
        else:
            self._offer(peer, question, out)

    def _send_status(self, peer: Address, transfer: int, word: bytes, out: ReadyBuilder) -> None:
        out.transmit(peer, StateOffer(self.me, transfer, 0, 1, word))

    def collect_states(
        self, ground: StreamPositions, backlog: HeldDeliveries, out: ReadyBuilder
    ) -> None:
        """Ask the application for the states that can be taken; called after every input."""
        for peer, question in self._requests.items():
            if question.provided is None and question.collect_ns <= out.now_ns:
                question.gathered = True
                self._collect_for(peer, question, ground, backlog, out)

    def _collect_for(
        self,
        peer: Address,
        question: _StateRequest,
        ground: StreamPositions,
        backlog: HeldDeliveries,
        out: ReadyBuilder,
    ) -> None:
        if sum(other.provided is not None for other in self._requests.values()) >= _MAX_SERVED:
            return
        for origin, start in list(question.starts.items()):
            reached = ground.delivered_upto(origin) if origin in self._members else start
            if reached is None or reached < start:
                return
        states = self._provided_states()
        question.provided = next(
            (given for given in states if given.serves(peer, question.starts)), None
        )
        if question.provided is not None:
            if question.provided.state is not None:
                self._offer(peer, question, out)
        elif len(states) < _MAX_STATES:
            self._number += 1
            covered = backlog.extend_coverage(ground.coverage())
            question.provided = _ProvidedState(self._number, covered, self._members, out.now_ns)
            out.emit(StateWanted(self._number, peer))
            out.count("state.wanted")

    # On the application's answer

    def provide(self, transfer: int, state: bytes | None, out: ReadyBuilder) -> None:
        """Offer ``state`` to those that wait for it; None means that there is none to give."""
        if state is not None and type(state) is not bytes:
            raise LocalProtocolError(
                f"a state is {type(state).__name__}, not bytes: encode it first"
            )
        if not 0 < transfer <= self._number:
            raise LocalProtocolError(
                f"no state was wanted under the number {transfer}: name that of StateWanted"
            )
        if state is not None and len(state) > MAX_STATE_BYTES:
            raise LocalProtocolError(
                f"a state of {len(state)} bytes is over {MAX_STATE_BYTES}: provide a smaller one"
            )
        given = next((given for given in self._provided_states() if given.number == transfer), None)
        if given is None:
            out.count("state.late")
            return
        if given.state is not None or given.refused:
            raise LocalProtocolError(f"the state {transfer} was provided before")
        if state is not None:
            given.parts = self._parts(state, given.covered)
        given.state, given.refused = state, not given.parts
        self._offer_to_all(given, out)

    def _offer_to_all(self, given: _ProvidedState, out: ReadyBuilder) -> None:
        for peer, question in self._requests.items():
            if question.provided is given:
                self._offer(peer, question, out)

    def _parts(self, state: bytes, covered: StateCoverage) -> list[bytes]:
        """Return the offer in parts; none if it is longer than anybody takes."""
        digest = tuple(
            StreamProgress(origin, mark, mark) for origin, mark in sorted(covered.marks.items())
        )
        aside = tuple(
            (origin, tuple(seen)) for origin, seen in sorted(covered.out_of_band.items()) if seen
        )
        body = encode_offer(
            OfferContent(len(state), BLOCK_BYTES, digest, aside, block_hashes(state), covered.epoch)
        )
        room_bytes = state_offer_room_bytes(self.config.max_frame_bytes)
        parts = [body[at : at + room_bytes] for at in range(0, len(body), room_bytes)]
        return parts if len(body) <= MAX_OFFER_BYTES and len(parts) < 2**16 else []

    def _offer(self, peer: Address, question: _StateRequest, out: ReadyBuilder) -> None:
        """Send the offer, from where it stopped the last time, as much as goes at once."""
        given, now_ns = question.provided, out.now_ns
        assert given is not None
        if (
            question.offered_ns is not None
            and now_ns < question.offered_ns + self.config.join_interval_ns // 2
        ):
            out.count("state.too soon")
            return
        question.offered_ns = now_ns
        if given.refused:
            self._send_status(peer, question.transfer, NO_STATE, out)
            return
        parts, sent_bytes = given.parts, 0
        for _ in range(len(parts)):
            out.transmit(
                peer,
                StateOffer(
                    self.me, question.transfer, question.part, len(parts), parts[question.part]
                ),
            )
            sent_bytes += len(parts[question.part])
            question.part = (question.part + 1) % len(parts)
            if sent_bytes >= self.config.state_window_bytes:
                break

    # On reception of a pull

    def on_pull(self, peer: Address, frame: StatePull, out: ReadyBuilder) -> None:
        """Send what is asked for, or forget the transfer."""
        question = self._requests.get(peer)
        if question is None or question.transfer != frame.transfer:
            out.drop("state pull", peer=peer)
            return
        if not frame.length:
            del self._requests[peer]
            return
        given, end = question.provided, frame.offset + frame.length
        if (
            given is None
            or given.state is None
            or frame.length > BLOCK_BYTES
            or end > len(given.state)
        ):
            out.drop("state pull", peer=peer)
            return
        question.last_heard_ns = out.now_ns
        room_bytes = state_chunk_room_bytes(self.config.max_frame_bytes)
        for at in range(frame.offset, end, room_bytes):
            body = given.state[at : min(at + room_bytes, end)]
            out.transmit(peer, StateChunk(self.me, frame.transfer, at, body))

    # Every interval

    @property
    def due_ns(self) -> int | None:
        """When ``fire`` is to be called."""
        if not self._requests:
            return None
        patience_ns = PATIENCE * self.config.state_timeout_ns
        silent_ns = (
            min(question.last_heard_ns for question in self._requests.values()) + patience_ns
        )
        looks = [
            question.collect_ns for question in self._requests.values() if not question.gathered
        ]
        answers = [
            given.asked_ns + patience_ns
            for given in self._provided_states()
            if given.state is None and not given.refused
        ]
        return min([silent_ns, *looks, *answers])

    def on_timer(self, out: ReadyBuilder) -> None:
        """Forget those that are silent; refuse where the application has not answered."""
        now_ns, patience_ns = out.now_ns, PATIENCE * self.config.state_timeout_ns
        for peer, question in list(self._requests.items()):
            if now_ns >= question.last_heard_ns + patience_ns:
                del self._requests[peer]
                out.count("state.forgotten")
        for given in self._provided_states():
            if given.state is None and not given.refused and now_ns >= given.asked_ns + patience_ns:
                given.refused = True
                out.count("state.unanswered")
                self._offer_to_all(given, out)

    def on_pause(self, now_ns: int) -> None:
        """Begin all patience anew: this member itself stood still."""
        for question in self._requests.values():
            question.last_heard_ns = now_ns

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
        questions = tuple(
            (
                peer,
                question.transfer,
                tuple(sorted(question.starts.items())),
                question.provided and question.provided.number,
            )
            for peer, question in sorted(self._requests.items())
        )
        states = tuple(
            (given.number, given.state, given.refused) for given in self._provided_states()
        )
        return (self._number, questions, states)
