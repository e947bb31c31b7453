"""Offsets: a digest ``{stream: seqno}`` with the last seqno read of each stream.

The law: an offset is canonical (sorted keys), because Spark compares offsets as text. No stream of
an offset ever goes back, regardless of the reports of replicas. A stream without a key begins at
the first message in the spool. A stream forgotten by every replica leaves the digest with the next
progress, so that digests stay as short as the list of incarnations.

Besides streams an offset has other keys. ``READER``: the name of the consumer, drawn if the user
gave no name. The name is drawn with the first offset, so the checkpoint has the name, and a
restarted query is the same reader. ``ROWS``, only with several replicas that have rows of a Spark
sink: the rows read so far (sink_rows.py). Everything here is pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gapless.errors import GaplessError

Digest = dict[str, int]
"""Stream key (``str`` of an address) to seqno."""

READER: Final = "@reader"
"""The key of the reader's name in an offset."""

ROWS: Final = "@rows"
"""The key of the sink rows read so far in an offset."""

_STREAM = re.compile(r"(0|[1-9a-f][0-9a-f]{0,15})\.(0|[1-9a-f][0-9a-f]{0,15})")
_MAX_SEQNO = 2**64


class OffsetError(GaplessError, ValueError):
    """A text is not a digest, or not an offset of this source; the message shows an example."""


class DataLossError(GaplessError):
    """No spool has the messages to read any more; the message lists messages and remedies."""


def parse_digest(text: str) -> Digest:
    """Return the digest in a JSON text."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OffsetError(f'not JSON ({error}); a digest looks like {{"1f.6": 42}}') from None
    return digest_of(found)


def digest_of(offset: Any) -> Digest:
    """Return the streams of an offset, checked, in canonical order."""
    if not isinstance(offset, Mapping):
        raise OffsetError(f'expected a digest such as {{"1f.6": 42}}, not {offset!r}')
    for key, value in offset.items():
        if key in {READER, ROWS}:
            continue
        if not isinstance(key, str) or not _STREAM.fullmatch(key):
            raise OffsetError(
                f"{key!r} is not a stream; a stream is a node and an incarnation in "
                "hexadecimal, such as 1f.6 (see gapless spool ls)"
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_SEQNO:
            raise OffsetError(
                f"{value!r} is not a seqno; the digest of {key} needs a whole number from zero up"
            )
    return {key: offset[key] for key in sorted(offset) if key not in {READER, ROWS}}


def reader_of(offset: Mapping[str, Any]) -> str:
    """Return the reader's name in an offset; empty if there is none."""
    return str(offset.get(READER, ""))


def rows_of(offset: Mapping[str, Any]) -> list[Any]:
    """Return the sink rows read up to an offset."""
    return list(offset.get(ROWS, ()))


def offset_of(
    digest: Mapping[str, int], reader: str = "", rows: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return the canonical offset of a digest, with the name ``reader`` and the sink ``rows``."""
    offset: dict[str, Any] = {READER: reader} if reader else {}
    if rows:
        offset[ROWS] = list(rows)
    offset.update((key, digest[key]) for key in sorted(digest))
    return offset


def with_floor(digest: Mapping[str, int], floor: Mapping[str, int]) -> Digest:
    """Return ``digest`` with no stream below ``floor``; streams only in ``floor`` stay."""
    return {key: max(digest.get(key, 0), floor.get(key, 0)) for key in sorted({*digest, *floor})}


def merge_digests(digests: Iterable[Mapping[str, int]], *, highest: bool) -> Digest:
    """Return the highest (or lowest) seqno of any replica for each stream."""
    choose = max if highest else min
    result: Digest = {}
    for digest in digests:
        for key, seqno in digest.items():
            result[key] = choose(result[key], seqno) if key in result else seqno
    return dict(sorted(result.items()))


def advance(
    start: Mapping[str, int], wanted: Mapping[str, int], known: Iterable[str] | None
) -> Digest:
    """Return the next offset: ``wanted``, never below ``start``, without forgotten streams.

    ``known`` are the streams of all replicas; ``None`` if a replica could not be asked, and then no
    stream leaves. Without progress the answer is ``start`` itself: a stream leaves only together
    with progress, or Spark would make an empty batch.
    """
    moved = with_floor(wanted, start)
    if known is None or moved == dict(start):
        return moved
    keep = set(known)
    return {key: seqno for key, seqno in moved.items() if key in keep or seqno != start.get(key)}


def fair_shares(waiting: Mapping[str, int], limit: int) -> Digest:
    """Split ``limit`` fairly over streams: a small demand is met, all others get the same.

    Every stream with a demand gets at least 1, so that no stream starves; the sum may then exceed a
    limit below the number of streams.
    """
    result: Digest = {}
    left = limit
    ranked = sorted((amount, key) for key, amount in waiting.items() if amount > 0)
    for position, (amount, key) in enumerate(ranked):
        even = max(1, left // (len(ranked) - position))
        result[key] = min(amount, even)
        left = max(0, left - result[key])
    return dict(sorted(result.items()))


class ReplicaSpan(NamedTuple):
    """The seqnos of a stream in a replica: above ``low`` up to ``high``."""

    replica: int
    low: int
    high: int


class ReplicaCover(NamedTuple):
    """The cover of a range of a stream: ``pieces`` (replica, above, up to) and ``holes``."""

    ranges: list[tuple[int, int, int]]
    holes: list[tuple[int, int]]


def cover(above: int, upto: int, spans: Sequence[ReplicaSpan]) -> ReplicaCover:
    """Choose the replica of each part of ``above < seqno <= upto``, with the fewest changes."""
    pieces: list[tuple[int, int, int]] = []
    holes: list[tuple[int, int]] = []
    at = above
    while at < upto:
        here = [span for span in spans if span.low <= at < span.high]
        if here:
            best = max(here, key=lambda span: (span.high, -span.replica))
            end = min(best.high, upto)
            pieces.append((best.replica, at, end))
        else:
            end = min([span.low for span in spans if at < span.low < span.high] + [upto])
            end = min(end, upto)
            holes.append((at, end))
        at = end
    return ReplicaCover(pieces, holes)


def loss_message(
    holes: Mapping[str, Sequence[tuple[int, int]]], names: Mapping[str, str], spools: Sequence[str]
) -> str:
    """Return the error text for messages to read that are in no replica."""
    parts = []
    for key, ranges in sorted(holes.items())[:5]:
        who = f"{key} ({names[key]})" if names.get(key) else key
        parts.append(f"{who}: " + ", ".join(f"{low + 1}..{high}" for low, high in ranges[:5]))
    count = sum(high - low for ranges in holes.values() for low, high in ranges)
    more = f" and {len(holes) - 5} more streams" if len(holes) > 5 else ""
    return (
        f"{count} messages that this query has not read yet are not in {', '.join(spools)}: "
        f"{'; '.join(parts)}{more}. Either the spool has let them go (a limit with drop-oldest, a "
        "reader that was forgotten, an old checkpoint), or they are damaged (gapless spool check "
        "tells). "
        "Add a replica that has them to the option spool, or set failOnDataLoss to false to go on "
        "after them"
    )
