"""The requester of a state: whom it asks, what it accepts, when it tries another provider.

On joining: once the first view is there and the start of every stream is known (or
``state_timeout`` is over), the oldest other member is asked; the question names the starts. Where
nobody else is there, there is no state.

On reception of an offer: it must cover every stream up to its start, or messages would be missing
between the state and the first one that comes; if it does not, the question is asked again.
Otherwise the blocks that are not here yet are pulled (blocks.py).

On the last block: the starts are looked at once more, for a member may have come meanwhile. Then
the state is handed over, and the provider may forget it.

On a view without the provider, a refusal, three wrong blocks, or ``state_timeout`` without anything
new from the provider: the next member is asked, in the order of the view. Blocks that are here
stay. One that is alive but not ready is left after four times ``state_timeout``, if there is
another. When everybody has failed twice within one view, there is no state; silence counts as a
failure only once the group would have let go of a member that is not there, for one that has not
heard of the view yet is silent too.

Every interval: the question goes out again until the offer is there, then what is missing of the
blocks.
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
"""Instead of an offer: this member has no state to give."""
NOT_YET = b"\1"
"""Instead of an offer: it will come, but not yet."""

MAX_OFFER_BYTES = 4 * 1024 * 1024
"""How long an offer may be, with its digest and its hashes."""
PATIENCE = 4
"""How many times ``state_timeout`` one that lives is waited for."""
_MAX_FAILURES = 2
_MAX_WRONG = 3

IDLE, ASKING, PULLING, DONE = "idle", "asking", "pulling", "done"


class StreamPositions(Protocol):
    """What a state transfer stands on: the streams of its member."""

    def stream_starts(self) -> Mapping[Address, int | None]:
        """Return where the stream of every other member starts here; None if that is not known yet."""

    def delivered_upto(self, origin: Address) -> int | None:
        """Return up to where whole messages of ``origin`` were delivered; None if its stream is not known."""

    def coverage(self) -> StateCoverage:
        """Return everything that was delivered."""

    def mark_covered(self, covered: StateCoverage) -> None:
        """Count out-of-band messages as delivered that a state covers."""


class StateRequester:
    """The state that this member wants."""

    def __init__(self, me: Address, config: Config, rng: Random, backlog: HeldDeliveries) -> None:
        self.me = me
        self.config = config
        self.held_deliveries = backlog
        self._rng = rng
        self.stage = IDLE
        self.provider: Address | None = None
        self._others: tuple[Address, ...] = ()
        self._failures: dict[Address, int] = {}
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
        """Whether the state is wanted and not there."""
        return self.stage in {ASKING, PULLING}

    def request_state(self) -> None:
        """Ask for the state as soon as there is a view; deliveries wait for it."""
        self.stage = ASKING
        self.held_deliveries.waiting = True

    # On a view

    def on_view(self, members: Sequence[Address], out: ReadyBuilder) -> None:
        """Turn to somebody else if the provider is gone."""
        self._others = tuple(member for member in members if member != self.me)
        if not self.is_waiting:
            return
        self._view_ns = out.now_ns
        self._failures = {}
        if self.provider not in self._others:
            self._try_next_provider(out)

    def _fail(self, out: ReadyBuilder) -> None:
        assert self.provider is not None
        self._failures[self.provider] = self._failures.get(self.provider, 0) + 1
        out.count("state.failed")
        self._try_next_provider(out)

    def _candidates(self) -> list[Address]:
        """Return those that may still be asked, the next in line first."""
        others = self._others
        at = others.index(self.provider) + 1 if self.provider in others else 0
        return [
            member
            for member in others[at:] + others[:at]
            if self._failures.get(member, 0) < _MAX_FAILURES
        ]

    def _try_next_provider(self, out: ReadyBuilder) -> None:
        """Ask the next member."""
        if self.provider in self._others and self._asked:
            self._end_transfer(out)
        candidates = self._candidates()
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
        assert self.provider is not None, "a transfer has a provider"
        out.transmit(self.provider, StatePull(self.me, self._transfer, 0, 0))

    def _start_transfer(self, at_ns: int, out: ReadyBuilder) -> None:
        """Begin a transfer; blocks that are here stay."""
        if self._fetch is not None:
            self._blocks = self._fetch.blocks
        self._fetch = None
        self._parts, self._parts_count, self._parts_bytes = {}, 0, 0
        self._transfer += 1
        self.stage = ASKING
        self._ask_ns = at_ns
        self._last_heard_ns = self._since_ns = out.now_ns

    # On asking

    def advance(self, ground: StreamPositions, out: ReadyBuilder) -> None:
        """Do what can be done now; called at the end of every input."""
        if self.stage == ASKING and self.provider is not None:
            if self._awaiting_starts or self._ask_ns <= out.now_ns:
                self._ask(ground.stream_starts(), out)
        elif self.stage == PULLING:
            assert self._fetch is not None
            if (self._unchecked or self._fetch.is_complete) and not self._check_coverage(
                ground, out
            ):
                return
            self._pull(self._fetch.pull(out.now_ns), out)

    def _starts_known(self, starts: Mapping[Address, int | None], now_ns: int) -> bool:
        """Return whether every start is known, or is not waited for any more."""
        self._awaiting_starts = (
            None in starts.values() and now_ns < self._view_ns + self.config.state_timeout_ns
        )
        return not self._awaiting_starts

    def _ask(self, starts: Mapping[Address, int | None], out: ReadyBuilder) -> None:
        now_ns = out.now_ns
        if not self._asked:
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
        """Return the time to the next question; it doubles."""
        config, interval_ns = self.config, self._interval_ns
        most_ns = max(config.join_interval_ns, config.state_timeout_ns // 4)
        self._interval_ns = min(2 * interval_ns, most_ns)
        return interval_ns - int(interval_ns * self._rng.random() * config.jitter_percent / 100)

    def _ask_parts(self, starts: Mapping[Address, int]) -> Iterable[tuple[StreamProgress, ...]]:
        """Cut the starts into frames, uncovered streams first; a start of 0 is left out."""
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
        return self._asked and sender == self.provider and transfer == self._transfer

    def on_offer(self, sender: Address, frame: StateOffer, out: ReadyBuilder) -> None:
        """Take a part of an offer in."""
        if self.stage != ASKING or not self._is_current_transfer(sender, frame.transfer):
            out.drop("state offer", peer=sender)
        elif frame.body == NO_STATE:
            self._fail(out)
        elif frame.body == NOT_YET:
            self._last_heard_ns = out.now_ns
        elif self._parts_count not in {0, frame.parts} or not 0 <= frame.part < frame.parts:
            out.drop("state parts", peer=sender)
        elif frame.part in self._parts:
            out.drop("state duplicate", peer=sender)
        else:
            self._last_heard_ns = out.now_ns
            self._parts_count = frame.parts
            self._parts[frame.part] = frame.body
            self._parts_bytes += len(frame.body)
            if self._parts_bytes > MAX_OFFER_BYTES:
                out.drop("state size", peer=sender)
                self._fail(out)
            elif len(self._parts) == self._parts_count:
                self._on_whole_offer(
                    b"".join([self._parts[part] for part in range(self._parts_count)]), out
                )

    def _on_whole_offer(self, body: bytes, out: ReadyBuilder) -> None:
        try:
            offer = decode_offer(body)
        except RemoteProtocolError as error:
            out.drop(error.reason, peer=self.provider)
            self._fail(out)
            return
        if offer.block_bytes != BLOCK_BYTES or len(offer.hashes) > MAX_BLOCKS:
            out.drop("state size", peer=self.provider)
            self._fail(out)
            return
        self._begin_pulling(offer, out)

    def _begin_pulling(self, offer: OfferContent, out: ReadyBuilder) -> None:
        self._parts = {}
        self.stage = PULLING
        self._unchecked = True
        marks = {origin: mark for origin, mark, _ in offer.digest}
        self._covered = StateCoverage(offer.epoch, marks, dict(offer.out_of_band))
        self._fetch = BlockFetcher(offer, self._blocks, self.config)
        self._blocks = {}
        if kept := len(self._fetch.blocks):
            out.count("state.blocks kept", kept)

    def _check_coverage(self, ground: StreamPositions, out: ReadyBuilder) -> bool:
        """Return whether the state covers all up to the stream starts; finish if complete."""
        assert self._fetch is not None
        self._unchecked = False
        starts = ground.stream_starts()
        marks = self._covered.marks
        short = [
            origin for origin, start in starts.items() if start and marks.get(origin, 0) < start
        ]
        if short:
            out.count("state.again")
            self._urgent = frozenset(short)
            self._start_transfer(out.now_ns + self._pause_ns(), out)
            return False
        if not self._fetch.is_complete:
            return True
        if self._starts_known(starts, out.now_ns):
            ground.mark_covered(self._covered)
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
        self.held_deliveries.release(
            NO_COVERAGE if provider is None else self._covered, starts, out
        )
        out.emit(StateReceived(provider, state))
        out.count("state.received" if provider is not None else "state.none")
        self.stage = DONE
        self.provider = self._fetch = None
        self._blocks = {}
        self._parts = {}
        assert not self.is_waiting, "the state is here"

    # On reception of a chunk

    def on_chunk(self, sender: Address, frame: StateChunk, out: ReadyBuilder) -> None:
        """Take bytes of the state in."""
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
            if self._wrong >= _MAX_WRONG:
                self._fail(out)

    def _pull(self, wanted: Iterable[tuple[int, int]], out: ReadyBuilder) -> None:
        for first, last in wanted:
            out.transmit(self.provider, StatePull(self.me, self._transfer, first, last - first + 1))

    # Every interval

    @property
    def due_ns(self) -> int | None:
        """When ``fire`` is to be called."""
        if not self.is_waiting or self.provider is None:
            return None
        timeout_ns = self.config.state_timeout_ns
        known_ns = self._view_ns + timeout_ns
        if self.stage == ASKING:
            if not self._asked:
                return known_ns if self._awaiting_starts else self._ask_ns
            return min(
                self._ask_ns,
                self._last_heard_ns + timeout_ns,
                self._since_ns + PATIENCE * timeout_ns,
            )
        assert self._fetch is not None
        if self._fetch.is_complete:
            return known_ns
        again_ns = self._fetch.due_ns
        silent_ns = self._last_heard_ns + timeout_ns
        return silent_ns if again_ns is None else min(again_ns, silent_ns)

    def on_timer(self, out: ReadyBuilder) -> None:
        """Ask again for what is due, or somebody else."""
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
                self._try_next_provider(out)
        elif now_ns >= self._since_ns + PATIENCE * timeout_ns:
            self._since_ns = now_ns
            if self._candidates()[:1] != [self.provider]:
                self._try_next_provider(out)

    def on_pause(self, now_ns: int) -> None:
        """Begin all patience anew: this member itself stood still."""
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
            tuple(sorted(self._failures.items())),
            parts,
            known,
            fetch,
        )
