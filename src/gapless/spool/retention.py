"""Retention: the segments passed by every reader, and the size of a spool."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.spool.errors import SpoolTrimmed
from gapless.spool.index import COLLECTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.spool.consumer_registry import Consumer
    from gapless.spool.index import SegmentIndex, StreamIndex


class ConsumerPositions(NamedTuple):
    """The positions of all readers; without a reader all messages are retained."""

    consumers: tuple[Consumer, ...]

    def min_position(self, key: str) -> int:
        """Return the seqno passed by every reader; 0 if a reader has no position in the stream."""
        return min((reader.digest.get(key, 0) for reader in self.consumers), default=0)

    def is_consumed(self, index: SegmentIndex) -> bool:
        """Whether no reader needs any message of the segment."""
        return bool(self.consumers) and all(
            stream.last <= self.min_position(key) for key, stream in index.streams.items()
        )

    def oldest_unread_ns(self, index: SegmentIndex) -> int:
        """Return the collection time of the oldest record needed by a reader; 0 without any."""
        found_ns = []
        for key, stream in index.streams.items():
            passed = self.min_position(key)
            if stream.last > passed:
                found_ns.append(stream.column(COLLECTED)[stream.find_record(passed + 1)])
                stream.unload()
        return min(found_ns, default=0)


def consumer_positions(readers: Iterable[Consumer]) -> ConsumerPositions:
    """Return the positions of the given readers."""
    return ConsumerPositions(tuple(readers))


def unread_rows(reader: Consumer, indexes: Sequence[SegmentIndex]) -> int:
    """Return how many messages a reader has not passed."""
    return sum(
        rows_after(stream, reader.digest.get(key, 0))
        for index in indexes
        for key, stream in index.streams.items()
    )


def rows_after(stream: StreamIndex, seqno: int) -> int:
    """Return how many messages of a stream in a segment are above ``seqno``; unload the entries.

    A deleted segment has none.
    """
    try:
        return stream.rows - stream.rows_upto(seqno)
    except SpoolTrimmed:
        return 0
    finally:
        stream.unload()


class TrimResult(NamedTuple):
    """The result of trimming; ``dropped`` counts messages that a reader still needed."""

    segments: int = 0
    freed_bytes: int = 0
    dropped: int = 0


class SpoolUsage(NamedTuple):
    """The content of a spool now.

    ``messages`` is the number of durable messages; ``room_bytes`` is None without a limit;
    ``limited`` is the limit that blocks commits (``bytes`` or ``age``), or empty; ``lag`` is the
    number of unread messages of each reader; ``dropped`` the number of messages dropped so far.
    """

    messages: int
    used_bytes: int
    pending_bytes: int
    room_bytes: int | None
    segments: int
    oldest_age_ns: int
    limited: str
    lag: dict[str, int]
    dropped: int
