"""Fetching the blocks of a state.

On an offer: a block is fetched only if no block with the same hash is here, at whatever offset. Of
several equal blocks one is fetched.

On pulling: ranges within one block are pulled, as many at once as fit the window, which is
``state_window_bytes`` or half of the receive buffer, whichever is less.

On reception of a chunk: the chunk must lie within one pulled range. The last chunk completes a
block. If the hash of the block is wrong, the whole block is pulled again.

Every interval: the missing bytes of a range are pulled again. The interval follows the measured
time from a pull to its first answer, and doubles with every try.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING

from gapless.protocol.stream import ranges
from gapless.wire.state_offer import HASH_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.config import Config
    from gapless.wire.frames import Range
    from gapless.wire.state_offer import OfferContent

BLOCK_BYTES = 65_536
"""Size of a block; the last block of a state may be shorter."""
MAX_BLOCKS = 65_536
"""Maximum number of blocks of a state: 4 GiB in all, and a megabyte of hashes."""
MAX_STATE_BYTES = BLOCK_BYTES * MAX_BLOCKS
"""Maximum size of a state."""

_PULLS_PER_WINDOW = 8
"""Number of ranges per window, so that the next pull is sent before the last is answered."""
_MIN_PULL_BYTES = 1024
"""Minimum size of a pulled range."""
_MAX_ASKED_AGAIN = 8
"""Maximum gaps of one range that are named at once; the last one takes the rest."""
_MAX_DOUBLINGS = 6
"""Maximum number of times that a retry delay doubles."""

FRESH, COMPLETE, DUPLICATE, UNREQUESTED, WRONG = (
    "fresh",
    "complete",
    "duplicate",
    "unasked",
    "wrong",
)
"""Outcomes of a chunk: new bytes, a complete block, old bytes, bytes not pulled, a wrong hash."""


def block_hash(block: bytes | memoryview) -> bytes:
    """Return the hash of a block."""
    return blake2b(block, digest_size=HASH_BYTES).digest()


def block_hashes(state: bytes) -> tuple[bytes, ...]:
    """Return the hash of each block of ``state``."""
    view = memoryview(state)
    return tuple(
        block_hash(view[at : at + BLOCK_BYTES]) for at in range(0, len(state), BLOCK_BYTES)
    )


class _RangeRequest:
    """A pulled range: bytes ``first .. last`` of the state."""

    __slots__ = ("answered", "first", "last", "missing", "retry_ns", "sent_ns", "tries")

    def __init__(self, first: int, last: int, now_ns: int, again_ns: int) -> None:
        self.first = first
        self.last = last
        self.missing: list[Range] = [(first, last)]
        self.sent_ns = now_ns
        self.retry_ns = again_ns
        self.answered = False
        self.tries = 1


class BlockFetcher:
    """The blocks of an offer; ``known`` are the blocks already here, by hash."""

    def __init__(self, offer: OfferContent, known: dict[bytes, bytes], config: Config) -> None:
        self._config = config
        self._size_bytes = offer.size_bytes
        self._hashes = offer.hashes
        self._window_bytes = min(config.state_window_bytes, config.receive_buffer_bytes // 2)
        self._pull_bytes = max(
            _MIN_PULL_BYTES, min(BLOCK_BYTES, self._window_bytes // _PULLS_PER_WINDOW)
        )
        self.blocks: dict[bytes, bytes] = {}
        self.outstanding_bytes = 0
        self._wanted: deque[Range] = deque()
        self._pulls: dict[int, _RangeRequest] = {}
        self._partial_blocks: dict[int, bytearray] = {}
        self._missing_bytes: dict[int, int] = {}
        self._rtt_ns: int | None = None
        seen: set[bytes] = set()
        for index, name in enumerate(self._hashes):
            # Equal blocks are fetched once.
            if name in seen:
                continue
            seen.add(name)
            if name in known:
                self.blocks[name] = known[name]
            else:
                self._wanted.extend(self._ranges(index))

    def _ranges(self, index: int) -> list[Range]:
        """Return the ranges in which a block is pulled."""
        assert 0 <= index < len(self._hashes), (
            f"a state of {len(self._hashes)} blocks has no {index}"
        )
        start = index * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, self._size_bytes)
        return [
            (at, min(at + self._pull_bytes, end) - 1) for at in range(start, end, self._pull_bytes)
        ]

    @property
    def is_complete(self) -> bool:
        """Whether every block has arrived."""
        return not self._wanted and not self._pulls

    def state(self) -> bytes:
        """Return the complete state."""
        assert self.is_complete, "a state is read when it is complete"
        return b"".join([self.blocks[name] for name in self._hashes])

    # On pulling

    def pull(self, now_ns: int) -> list[Range]:
        """Return the ranges to request now within the window; at least one is always open."""
        asked: list[Range] = []
        while self._wanted:
            first, last = self._wanted[0]
            size_bytes = last - first + 1
            # One range may exceed a window that is smaller than it; otherwise nothing would be
            # pulled.
            if self._pulls and self.outstanding_bytes + size_bytes > self._window_bytes:
                break
            self._wanted.popleft()
            self._pulls[first] = _RangeRequest(
                first, last, now_ns, now_ns + self._retry_delay_ns(1)
            )
            self.outstanding_bytes += size_bytes
            index = first // BLOCK_BYTES
            if index not in self._partial_blocks:
                block_bytes = min(BLOCK_BYTES, self._size_bytes - index * BLOCK_BYTES)
                self._partial_blocks[index] = bytearray(block_bytes)
                self._missing_bytes[index] = block_bytes
            asked.append((first, last))
        assert self._pulls or not self._wanted, "while blocks are missing a range is pulled"
        return asked

    def _retry_delay_ns(self, tries: int) -> int:
        """Return how long the answer to a pull may take."""
        assert tries >= 1, "a pull was sent"
        config = self._config
        rest_ns = config.join_interval_ns
        if self._rtt_ns is not None:
            rest_ns = min(rest_ns, 2 * self._rtt_ns + config.min_retry_ns)
        return min(rest_ns << min(tries - 1, _MAX_DOUBLINGS), max(config.state_timeout_ns // 4, 1))

    # On reception

    def on_chunk(self, offset: int, body: bytes, now_ns: int) -> str:
        """Store a chunk; return the outcome, ``FRESH`` for new bytes."""
        index, within = divmod(offset, BLOCK_BYTES)
        pull = self._pulls.get(index * BLOCK_BYTES + within - within % self._pull_bytes)
        last = offset + len(body) - 1
        # Not requested, or across two requests: it cannot be checked against one block.
        if pull is None or last > pull.last or not body:
            return UNREQUESTED
        still_missing = ranges.subtract(pull.missing, [(offset, last)])
        fresh_bytes = ranges.count(pull.missing) - ranges.count(still_missing)
        if not fresh_bytes:
            return DUPLICATE
        # Only the first answer to a pull that was sent once is a round-trip sample (Karn's
        # algorithm).
        if pull.tries == 1 and not pull.answered:
            round_trip_ns = now_ns - pull.sent_ns
            self._rtt_ns = (
                round_trip_ns if self._rtt_ns is None else (7 * self._rtt_ns + round_trip_ns) // 8
            )
        pull.answered = True
        pull.missing = still_missing
        pull.retry_ns = now_ns + self._retry_delay_ns(1)
        self._partial_blocks[index][within : within + len(body)] = body
        self.outstanding_bytes -= fresh_bytes
        self._missing_bytes[index] -= fresh_bytes
        assert self.outstanding_bytes >= 0, "no byte arrives twice"
        if not still_missing:
            del self._pulls[pull.first]
        return FRESH if self._missing_bytes[index] else self._complete_block(index)

    def _complete_block(self, index: int) -> str:
        """Check the hash of a block; store the block, or pull the block again."""
        assert not self._missing_bytes[index], "a complete block misses nothing"
        block, name = bytes(self._partial_blocks.pop(index)), self._hashes[index]
        del self._missing_bytes[index]
        # Damaged, or the provider's state changed: fetch the whole block again.
        if block_hash(block) != name:
            self._wanted.extendleft(reversed(self._ranges(index)))
            return WRONG
        self.blocks[name] = block
        return COMPLETE

    # Every interval

    @property
    def due_ns(self) -> int | None:
        """When the next pull is to be repeated."""
        return min((pull.retry_ns for pull in self._pulls.values()), default=None)

    def pull_again(self, now_ns: int) -> Iterable[Range]:
        """Return the pulled ranges that have not arrived in time."""
        for pull in self._pulls.values():
            if pull.retry_ns > now_ns:
                continue
            pull.tries += 1
            pull.retry_ns = now_ns + self._retry_delay_ns(pull.tries)
            yield from pull.missing[: _MAX_ASKED_AGAIN - 1]
            # Many gaps: the last request covers the rest, so that one range never causes a burst.
            if len(pull.missing) >= _MAX_ASKED_AGAIN:
                yield pull.missing[_MAX_ASKED_AGAIN - 1][0], pull.last

    def check_invariants(self) -> None:
        """Raise AssertionError if the number of missing bytes does not add up."""
        missing_bytes = sum(ranges.count(pull.missing) for pull in self._pulls.values())
        assert self.outstanding_bytes == missing_bytes, (
            f"{missing_bytes} bytes are outstanding, {self.outstanding_bytes} are counted"
        )
        assert missing_bytes <= self._window_bytes or len(self._pulls) == 1, "the window is kept"
        assert self._partial_blocks.keys() == self._missing_bytes.keys(), (
            "partial blocks are counted"
        )
        for first, pull in self._pulls.items():
            assert first == pull.first <= pull.missing[0][0], "a pull is filed under its first byte"
            assert pull.missing[-1][1] <= pull.last, "a pull misses only its own bytes"
            assert pull.tries >= 1, "a pull was sent"
        assert not self.is_complete or self.blocks.keys() == set(self._hashes), (
            "a complete state has all its blocks"
        )

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times."""
        pulls = tuple((pull.first, *pull.missing) for pull in self._pulls.values())
        blocks = tuple(bytes(block) for block in self._partial_blocks.values())
        return (tuple(sorted(self.blocks)), tuple(self._wanted), pulls, blocks)
