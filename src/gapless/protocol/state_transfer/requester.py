"""The requester of a state: the choice of providers, the check of offers, and retries.

On joining: when the first view is installed and the start of every stream is known (or
``state_timeout`` is over), the oldest other member is asked for the state. The request names the
stream starts. A member that is alone gets no state.

On reception of an offer: the offer must cover every stream up to its start; otherwise messages
between the state and the first delivered message would be missing. If the offer does not, the
request is repeated. If it does, the missing blocks are pulled (block_fetch.py).

On the last block: the stream starts are checked once more, because a member may have joined
meanwhile. Then the state is delivered to the application, and the provider may forget the state.

On a view without the provider, a refusal, three wrong blocks, or ``state_timeout`` without
progress: the next member is asked, in the order of the view. Complete blocks are kept. A provider
that is alive but not ready is replaced after four times ``state_timeout``, if there is another
member. When every member has failed twice within a view, there is no state. Silence counts as a
failure only after the time in which the group evicts a dead member, because a member that has not
installed the view yet is silent, too.

Every interval: the request is repeated until the offer arrives, then the pulls for missing bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gapless.errors import RemoteProtocolError
from gapless.protocol.events import StateReceived
from gapless.protocol.state_transfer import block_fetch
from gapless.protocol.state_transfer.block_fetch import BLOCK_BYTES, MAX_BLOCKS, BlockFetcher
from gapless.protocol.state_transfer.held_deliveries import (
    NO_COVERAGE,
    HeldDeliveries,
    StateCoverage,
)
from gapless.wire.codec import ADDRESSED_HEADER_BYTES, PROGRESS_BYTES, size_bytes
from gapless.wire.frames import StateAsk, StateChunk, StateOffer, StatePull, StreamProgress
from gapless.wire.state_offer import decode_offer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.state_offer import OfferContent

NO_STATE = b"\0"
"""Body of an offer that says: this member has no state to provide."""
NOT_YET = b"\1"
"""Body of an offer that says: the state is not ready yet."""
STATE_FAILED = b"\2"
"""Body of an offer that says: the application failed to provide its state."""

MAX_OFFER_BYTES = 4 * 1024 * 1024
"""Maximum size of an offer, with its digest and its hashes."""
PATIENCE = 4
"""How long a live provider may take, in multiples of ``state_timeout``."""
_MAX_FAILURES = 2
"""How often one member may fail within one view before it is not asked any more."""
_MAX_WRONG = 3
"""Maximum number of blocks with a wrong hash that are accepted from one provider."""

IDLE, ASKING, PULLING, DONE = "idle", "asking", "pulling", "done"


class StreamPositions(Protocol):
    """The positions of a member's streams, as a state transfer needs them."""

    def stream_starts(self) -> Mapping[Address, int | None]:
        """Return where the stream of each other member starts here; None while unknown."""

    def delivered_upto(self, origin: Address) -> int | None:
        """Return up to where whole messages of ``origin`` were delivered; None if unknown."""

    def coverage(self) -> StateCoverage:
        """Return all delivered positions."""

    def mark_covered(self, covered: StateCoverage) -> None:
        """Count out-of-band messages covered by a state as delivered."""


class StateRequester:
    """The state that this member requests."""

    def __init__(self, me: Address, config: Config, rng: Random, held: HeldDeliveries) -> None:
        self.me = me
        self.config = config
        self.held_deliveries = held
        self._rng = rng
        self.stage = IDLE
        self.provider: Address | None = None
        self._others: tuple[Address, ...] = ()
        self._failures: dict[Address, int] = {}
        self._failed: set[Address] = set()
        self._transfer = 0
        self._blocks: dict[bytes, bytes] = {}
        self._view_ns = self._last_heard_ns = self._since_ns = self._ask_ns = 0
        self._interval_ns = config.join_interval_ns
        self._asked = self._awaiting_starts = False
        self._urgent: frozenset[Address] = frozenset()
        self._parts: dict[int, bytes] = {}
        self._parts_count = self._parts_bytes = 0
        self._covered = NO_COVERAGE
        self._fetch: BlockFetcher | None = None
        self._unchecked = False
        self._wrong = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the state is requested and incomplete."""
        return self.stage in {ASKING, PULLING}

    def request_state(self) -> None:
        """Request the state as soon as there is a view; hold deliveries until the state arrives."""
        assert self.stage == IDLE, f"a state is requested once, not while {self.stage}"
        self.stage = ASKING
        self.held_deliveries.waiting = True

    # On a view

    def on_view(self, members: Sequence[Address], out: ReadyBuilder) -> None:
        """Ask another member if the provider has left."""
        self._others = tuple(member for member in members if member != self.me)
        if not self.is_waiting:
            return
        self._view_ns = out.now_ns
        # A new view is a new chance: members that failed may be ready now.
        self._failures = {}
        if self.provider not in self._others:
            self._try_next_provider(out)

    def _fail(self, out: ReadyBuilder) -> None:
        """Count a failure of the provider, and ask the next member."""
        assert self.provider is not None
        self._failures[self.provider] = self._failures.get(self.provider, 0) + 1
        out.count("state.failed")
        self._try_next_provider(out)

    def _candidates(self) -> list[Address]:
        """Return the members that may still be asked, the next in line first."""
        others = self._others
        at = others.index(self.provider) + 1 if self.provider in others else 0
        return [
            member
            for member in others[at:] + others[:at]
            if self._failures.get(member, 0) < _MAX_FAILURES
        ]

    def _try_next_provider(self, out: ReadyBuilder) -> None:
        """Ask the next member; without another member there is no state."""
        # The former provider may forget its state at once.
        if self.provider in self._others and self._asked:
            self._end_transfer(out)
        candidates = self._candidates()
        # Every member has failed twice: the group has no state.
        if not candidates:
            self._finish(None, b"", {}, out)
            return
        self.provider = candidates[0]
        self._interval_ns = self.config.join_interval_ns
        self._asked = False
        self._wrong = 0
        self._urgent = frozenset()
        self._start_transfer(out.now_ns, out)

    def _end_transfer(self, out: ReadyBuilder) -> None:
        """Pull nothing, which signals the end of the transfer to the provider."""
        assert self.provider is not None, "a transfer has a provider"
        out.transmit(self.provider, StatePull(self.me, self._transfer, 0, 0))

    def _start_transfer(self, at_ns: int, out: ReadyBuilder) -> None:
        """Start a transfer under a new number; complete blocks are kept."""
        if self._fetch is not None:
            self._blocks = self._fetch.blocks
        self._fetch = None
        self._parts, self._parts_count, self._parts_bytes = {}, 0, 0
        self._transfer += 1
        self.stage = ASKING
        self._ask_ns = at_ns
        self._last_heard_ns = self._since_ns = out.now_ns

    # On asking

    def advance(self, streams: StreamPositions, out: ReadyBuilder) -> None:
        """Send the request or the next pulls if possible; called after every input."""
        if self.stage == ASKING and self.provider is not None:
            if self._awaiting_starts or self._ask_ns <= out.now_ns:
                self._ask(streams.stream_starts(), out)
        elif self.stage == PULLING:
            assert self._fetch is not None
            if (self._unchecked or self._fetch.is_complete) and not self._check_coverage(
                streams, out
            ):
                return
            self._pull(self._fetch.pull(out.now_ns), out)

    def _starts_known(self, starts: Mapping[Address, int | None], now_ns: int) -> bool:
        """Return whether every stream start is known, or was waited for long enough."""
        self._awaiting_starts = (
            None in starts.values() and now_ns < self._view_ns + self.config.state_timeout_ns
        )
        return not self._awaiting_starts

    def _ask(self, starts: Mapping[Address, int | None], out: ReadyBuilder) -> None:
        """Send the request with the stream starts, unless some are still unknown."""
        now_ns = out.now_ns
        if not self._asked:
            # A request without the starts could be answered by a state that is too old.
            if not self._starts_known(starts, now_ns):
                return
            self._asked = True
            self._last_heard_ns = self._since_ns = now_ns
            out.count("state.asked")
        assert self.provider is not None
        for part in self._ask_parts({origin: start for origin, start in starts.items() if start}):
            out.transmit(self.provider, StateAsk(self.me, self._transfer, part))
        self._ask_ns = now_ns + self._pause_ns()

    def _pause_ns(self) -> int:
        """Return the time to the next request, which doubles with every request."""
        config, interval_ns = self.config, self._interval_ns
        most_ns = max(config.join_interval_ns, config.state_timeout_ns // 4)
        self._interval_ns = min(2 * interval_ns, most_ns)
        return interval_ns - int(interval_ns * self._rng.random() * config.jitter_percent / 100)

    def _ask_parts(self, starts: Mapping[Address, int]) -> Iterable[tuple[StreamProgress, ...]]:
        """Split the starts into frames, streams that an offer did not cover first.

        A start of 0 is left out.
        """
        room_bytes = (
            self.config.max_frame_bytes
            - ADDRESSED_HEADER_BYTES
            - size_bytes(StateAsk(self.me, 0, ()))
        )
        most = max(1, room_bytes // PROGRESS_BYTES)
        named = sorted(starts, key=lambda origin: (origin not in self._urgent, origin))
        for at in range(0, max(len(named), 1), most):
            yield tuple(
                StreamProgress(origin, starts[origin], starts[origin])
                for origin in sorted(named[at : at + most])
            )

    # On reception of an offer

    def _is_current_transfer(self, sender: Address, transfer: int) -> bool:
        """Return whether a frame of ``sender`` belongs to the current transfer."""
        return self._asked and sender == self.provider and transfer == self._transfer

    def on_offer(self, sender: Address, frame: StateOffer, out: ReadyBuilder) -> None:
        """Handle a part of an offer."""
        if self.stage != ASKING or not self._is_current_transfer(sender, frame.transfer):
            out.drop("state offer", peer=sender)
        elif frame.body in {NO_STATE, STATE_FAILED}:
            if frame.body == STATE_FAILED:
                self._failed.add(sender)
            self._fail(out)
        elif frame.body == NOT_YET:
            # The provider is alive: its silence is counted from here.
            self._last_heard_ns = out.now_ns
        # Parts of two different offers must not be mixed.
        elif self._parts_count not in {0, frame.parts} or not 0 <= frame.part < frame.parts:
            out.drop("state parts", peer=sender)
        elif frame.part in self._parts:
            out.drop("state duplicate", peer=sender)
        else:
            self._last_heard_ns = out.now_ns
            self._parts_count = frame.parts
            self._parts[frame.part] = frame.body
            self._parts_bytes += len(frame.body)
            # A hostile provider must not fill the memory.
            if self._parts_bytes > MAX_OFFER_BYTES:
                out.drop("state size", peer=sender)
                self._fail(out)
            elif len(self._parts) == self._parts_count:
                self._on_whole_offer(
                    b"".join([self._parts[part] for part in range(self._parts_count)]), out
                )

    def _on_whole_offer(self, body: bytes, out: ReadyBuilder) -> None:
        """Decode a complete offer and start pulling, or count a failure of the provider."""
        assert len(body) == self._parts_bytes, "an offer is the sum of its parts"
        try:
            offer = decode_offer(body)
        except RemoteProtocolError as error:
            out.drop(error.reason, peer=self.provider)
            self._fail(out)
            return
        # Blocks are compared by hash across providers, so all must have one size.
        if offer.block_bytes != BLOCK_BYTES or len(offer.hashes) > MAX_BLOCKS:
            out.drop("state size", peer=self.provider)
            self._fail(out)
            return
        self._begin_pulling(offer, out)

    def _begin_pulling(self, offer: OfferContent, out: ReadyBuilder) -> None:
        """Start to pull the missing blocks."""
        assert self.stage == ASKING, f"an offer is accepted while asking, not while {self.stage}"
        self._parts = {}
        self.stage = PULLING
        self._unchecked = True
        marks = {origin: mark for origin, mark, _ in offer.digest}
        self._covered = StateCoverage(offer.epoch, marks, dict(offer.out_of_band))
        self._fetch = BlockFetcher(offer, self._blocks, self.config)
        self._blocks = {}
        if reused := len(self._fetch.blocks):
            out.count("state.blocks kept", reused)

    def _check_coverage(self, streams: StreamPositions, out: ReadyBuilder) -> bool:
        """Return whether the offer covers every stream start; finish if the state is complete."""
        assert self._fetch is not None
        self._unchecked = False
        starts = streams.stream_starts()
        marks = self._covered.marks
        uncovered = [
            origin for origin, start in starts.items() if start and marks.get(origin, 0) < start
        ]
        if uncovered:
            # A member joined after the provider took its state: ask for a newer state.
            out.count("state.again")
            self._urgent = frozenset(uncovered)
            self._start_transfer(out.now_ns + self._pause_ns(), out)
            return False
        if not self._fetch.is_complete:
            return True
        # A member that joined meanwhile may not have announced its start yet.
        if self._starts_known(starts, out.now_ns):
            streams.mark_covered(self._covered)
            self._end_transfer(out)
            self._finish(self.provider, self._fetch.state(), starts, out)
        return False

    def _finish(
        self,
        provider: Address | None,
        state: bytes,
        starts: Mapping[Address, int | None],
        out: ReadyBuilder,
    ) -> None:
        """Deliver the state, or report that there is none, and release the held deliveries."""
        self.held_deliveries.release(
            NO_COVERAGE if provider is None else self._covered, starts, out
        )
        out.emit(StateReceived(provider, state, tuple(sorted(self._failed))))
        out.count("state.received" if provider is not None else "state.none")
        self.stage = DONE
        self.provider = self._fetch = None
        self._blocks = {}
        self._parts = {}
        self._failed = set()
        assert not self.is_waiting, "the state is here"

    # On reception of a chunk

    def on_chunk(self, sender: Address, frame: StateChunk, out: ReadyBuilder) -> None:
        """Handle bytes of the state."""
        fetch = self._fetch
        if (
            self.stage != PULLING
            or fetch is None
            or not self._is_current_transfer(sender, frame.transfer)
        ):
            out.drop("state chunk", peer=sender)
            return
        found = fetch.on_chunk(frame.offset, frame.body, out.now_ns)
        if found == block_fetch.UNREQUESTED:
            out.drop("state chunk", peer=sender)
        elif found == block_fetch.DUPLICATE:
            out.drop("state duplicate", peer=sender)
        else:
            self._last_heard_ns = out.now_ns
        if found == block_fetch.WRONG:
            out.drop("state hash", peer=sender)
            self._wrong += 1
            # A block may be damaged once in transit; three times, the provider is at fault.
            if self._wrong >= _MAX_WRONG:
                self._fail(out)

    def _pull(self, wanted: Iterable[tuple[int, int]], out: ReadyBuilder) -> None:
        """Send a pull for each range."""
        for first, last in wanted:
            out.transmit(self.provider, StatePull(self.me, self._transfer, first, last - first + 1))

    # Every interval

    @property
    def due_ns(self) -> int | None:
        """When ``on_timer`` is due."""
        if not self.is_waiting or self.provider is None:
            return None
        timeout_ns = self.config.state_timeout_ns
        starts_due_ns = self._view_ns + timeout_ns
        if self.stage == ASKING:
            if not self._asked:
                return starts_due_ns if self._awaiting_starts else self._ask_ns
            return min(
                self._ask_ns,
                self._last_heard_ns + timeout_ns,
                self._since_ns + PATIENCE * timeout_ns,
            )
        assert self._fetch is not None
        if self._fetch.is_complete:
            return starts_due_ns
        again_ns = self._fetch.due_ns
        silent_ns = self._last_heard_ns + timeout_ns
        return silent_ns if again_ns is None else min(again_ns, silent_ns)

    def on_timer(self, out: ReadyBuilder) -> None:
        """Repeat due pulls, or ask another member."""
        now_ns, timeout_ns = out.now_ns, self.config.state_timeout_ns
        if not self.is_waiting or not self._asked:
            return
        if self.stage == PULLING:
            assert self._fetch is not None
            if self._fetch.is_complete:
                return
            if now_ns < self._last_heard_ns + timeout_ns:
                self._pull(self._fetch.pull_again(now_ns), out)
                return
        if now_ns >= self._last_heard_ns + timeout_ns:
            if (
                now_ns
                >= self._view_ns + self.config.suspect_after_ns + self.config.verify_timeout_ns
            ):
                self._fail(out)
            else:
                # The provider may not have installed the view yet: its silence is no failure.
                self._try_next_provider(out)
        # The provider is alive but slow: prefer another member, if there is one.
        elif now_ns >= self._since_ns + PATIENCE * timeout_ns:
            self._since_ns = now_ns
            if self._candidates()[:1] != [self.provider]:
                self._try_next_provider(out)

    def on_pause(self, now_ns: int) -> None:
        """Restart all timeouts: this process was paused."""
        self._last_heard_ns = self._since_ns = now_ns

    def check_invariants(self) -> None:
        """Raise AssertionError if the stage contradicts the provider, the offer or the blocks."""
        assert self.stage in {IDLE, ASKING, PULLING, DONE}, f"the stage is {self.stage!r}"
        assert self.is_waiting == self.held_deliveries.waiting, "deliveries wait for the state"
        assert (self._fetch is not None) == (self.stage == PULLING), "blocks are fetched by pulling"
        if self._fetch is not None:
            self._fetch.check_invariants()
        assert self.stage == ASKING or not self._parts, "parts of an offer wait while asking"
        assert self._parts_bytes <= MAX_OFFER_BYTES, f"an offer of {self._parts_bytes} bytes"
        assert self._wrong < _MAX_WRONG, f"{self._wrong} wrong blocks were accepted"
        if self.is_waiting:
            assert self.provider is None or self.provider in self._others, (
                "the provider is a member"
            )
            assert self.stage == ASKING or self.provider is not None, "blocks come from a provider"
        else:
            assert self.provider is None, "nobody provides a state that is not wanted"

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times."""
        fetch = None if self._fetch is None else self._fetch.snapshot()
        parts = tuple(sorted(self._parts.items()))
        known = (
            tuple(sorted(self._blocks)),
            self._asked,
            self._awaiting_starts,
            self._wrong,
            self._unchecked,
        )
        return (
            self.stage,
            self.provider,
            self._transfer,
            (tuple(sorted(self._failures.items())), tuple(sorted(self._failed))),
            parts,
            known,
            fetch,
        )
