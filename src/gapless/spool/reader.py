"""The reader of a spool: cheap to open, and safe beside a running, trimming or dead writer.

Positions are digests: a digest maps the key of a stream to the last seqno that was read. A stream
missing from a digest starts where the spool does (``low``). A fragmented message belongs to its
last seqno, so a digest with a position inside a fragmented message neither loses nor repeats it.
"""

from __future__ import annotations

import errno
from bisect import bisect_left, bisect_right
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.identity import U64_MAX
from gapless.spool import consumer_registry as registry
from gapless.spool.encryption import SpoolKeys
from gapless.spool.errors import (
    SpoolCorrupt,
    SpoolMismatch,
    damaged_record_error,
    from_os_error,
    plain_record_error,
    segment_trimmed_error,
)
from gapless.spool.format import HEADER_BYTES, LOST, MESSAGE, parse_header
from gapless.spool.index import (
    COLLECTED,
    FIRST,
    HOLE_MISSING,
    KIND,
    LAST,
    OFFSET,
    PAYLOAD,
    SIZE,
    Hole,
    SegmentIndex,
    StreamIndex,
)
from gapless.spool.record_reader import (
    Record,
    Slice,
    decode_lengths,
    read_records,
)
from gapless.spool.segment_file import (
    CommittedOffset,
    SegmentFile,
    SpoolInfo,
    list_segments,
    segment_path,
)
from gapless.spool.segment_scan import build_index_upto, find_tail, load_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gapless.keys.keyring import Keyring

MAX_REFRESH_ATTEMPTS = 10
"""Maximum number of attempts of a refresh beside a trimming writer."""
CACHED_SEGMENTS = 8
"""Maximum number of segments whose entries stay in memory between refreshes."""

Digest = dict[str, int]
"""A position: for each stream, by its key, the seqno up to which everything was read."""


class SpoolReader:
    """A spool for reading. ``refresh`` looks for new commits; other methods use the last refresh.

    A reader reads the messages reported durable by the writer. ``is_behind`` is true if there are
    more: a commit is in progress, or the report is old, and a stream may be missing here.

    Args:
        path: The folder of the spool.
        all_commits: Whether to read all complete commits, also beyond the writer's report, for
            a spool whose writer will not return.
        keys: The keyring of an encrypted spool, or its file. Without keys, reading an encrypted
            spool raises SpoolKeyError.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        all_commits: bool = False,
        keys: SpoolKeys | Keyring | Path | str | None = None,
    ) -> None:
        self.path = Path(path)
        self.keys = SpoolKeys.of(keys)
        try:
            self.info = SpoolInfo.read(self.path)
        except FileNotFoundError:
            raise SpoolMismatch(
                f"{self.path}: there is no spool here (no spool.json); pass the folder of a spool",
                self.path,
            ) from None
        self._all_commits = all_commits
        self._is_refreshed = False
        self.is_behind = False
        self._segments: dict[int, SegmentIndex] = {}
        self._sealed: set[int] = set()
        self._stream_indexes: dict[str, list[tuple[int, StreamIndex]]] = {}
        self._low: Digest = {}
        self._high: Digest = {}
        self._names: dict[str, str] = {}
        self._missing: dict[int, list[Hole]] = {}
        self._loaded: set[int] = set()
        self._encrypted_from = U64_MAX
        """The first encrypted segment."""

    @property
    def group(self) -> str:
        """The group of the collected messages."""
        return self.info.group

    @property
    def spool_id(self) -> str:
        """The random id of the spool, in hex; replicas have different ids."""
        return self.info.spool_id.hex()

    # Looking

    def refresh(self) -> None:
        """Look for commits, sealed segments and trims since the last refresh."""
        for _ in range(MAX_REFRESH_ATTEMPTS):
            if self._scan_segments():
                break
        self._is_refreshed = True

    def _scan_segments(self) -> bool:
        """Refresh once; False if a segment was trimmed meanwhile: another attempt is needed."""
        hint = None if self._all_commits else CommittedOffset.read(self.path)
        numbers = list_segments(self.path)
        final = numbers[-1] if numbers else 0
        if hint is not None:
            final = hint.segment
            numbers = [number for number in numbers if number <= final]
        here = set(numbers)
        gone = {number for number in self._segments if number not in here}
        before = next(reversed(self._segments), 0)
        for number in gone:
            del self._segments[number]
            self._sealed.discard(number)
            self._missing.pop(number, None)
        steady = True
        for number in numbers:
            if number not in self._sealed:
                upto = hint.offset if hint and number == final else None
                steady = self._scan_segment(number, active=number == final, upto=upto) and steady
        self.is_behind = hint is not None and self._has_uncommitted_tail(hint)
        if gone:
            self._remove_segments(gone)
        if gone or next(reversed(self._segments), 0) != before:
            self._evict()
        return steady

    def _has_uncommitted_tail(self, hint: CommittedOffset) -> bool:
        """Whether the segments have more than ``committed`` covers, as after a power failure."""
        try:
            size_bytes = segment_path(self.path, hint.segment).stat().st_size
        except OSError:
            size_bytes = 0
        return size_bytes > hint.offset or list_segments(self.path)[-1:] > [hint.segment]

    def _evict(self) -> None:
        """Drop streams forgotten by the writer, and entries that can be read again."""
        newest = next(reversed(self._segments.values()), None)
        state = None if newest is None else newest.latest_state
        if state is not None:
            listed = {each.key for each in state.streams}
            for key in [
                key for key in self._high if key not in listed and key not in self._stream_indexes
            ]:
                del self._low[key], self._high[key]
                self._names.pop(key, None)
        for number in self._loaded - set(list(self._segments)[-CACHED_SEGMENTS:]):
            index = self._segments.get(number)
            for stream in () if index is None else index.streams.values():
                stream.unload()
            self._loaded.discard(number)

    def _scan_segment(self, number: int, *, active: bool, upto: int | None) -> bool:
        known = self._segments.get(number)
        try:
            index = (
                self._index_active(number, known, upto)
                if active
                else load_index(self.path, self.info, number, self.keys)
            )
        except FileNotFoundError:
            return False
        except OSError as error:
            raise from_os_error(error, segment_path(self.path, number), "reading it") from error
        if not active:
            self._sealed.add(number)
        self._segments[number] = index
        self._check_encrypted(number, index)
        self._add_segment(number, index)
        return True

    def _check_encrypted(self, number: int, index: SegmentIndex) -> None:
        """Raise SpoolCorrupt for a segment in plain behind an encrypted one."""
        if index.is_encrypted:
            self._encrypted_from = min(self._encrypted_from, number)
        elif index.has_plain and self._encrypted_from < number:
            raise plain_record_error(segment_path(self.path, number), self._encrypted_from)

    def _index_active(
        self, number: int, known: SegmentIndex | None, upto: int | None
    ) -> SegmentIndex:
        path = segment_path(self.path, number)
        with SegmentFile(path, number, self.info.spool_id, self.keys) as file:
            size_bytes = file.size_bytes
            if upto is None:
                upto = find_tail(file).end
            if known is None:
                return build_index_upto(file, min(upto, size_bytes))
            while known.end < min(upto, size_bytes):
                before = known.end
                file.extend_index(known, min(upto, size_bytes))
                if known.end == before:
                    return build_index_upto(file, min(upto, size_bytes))
            return known

    def _add_segment(self, number: int, index: SegmentIndex) -> None:
        """Add a new, grown or newly sealed segment; segments come in order."""
        low, high, names = self._low, self._high, self._names
        fresh = number not in self._missing
        missing = self._missing.setdefault(number, [])
        if fresh and index.first_state is not None:
            for each in index.first_state.streams:
                held = index.streams.get(each.key)
                begin = each.high if held is None else min(each.high, held.first - 1)
                low.setdefault(each.key, begin)
                before = high.setdefault(each.key, begin)
                if each.high > before and (held is None or held.first > before + 1):
                    missing.append(Hole(each.key, before + 1, each.high, HOLE_MISSING))
                    high[each.key] = each.high
                if each.name:
                    names[each.key] = each.name
        for key, stream in index.streams.items():
            before = high.get(key, stream.first - 1)
            low.setdefault(key, stream.first - 1)
            parts = self._stream_indexes.setdefault(key, [])
            if parts and parts[-1][0] == number:
                parts[-1] = (number, stream)
            else:
                parts.append((number, stream))
                if stream.first > before + 1:
                    missing.append(Hole(key, before + 1, stream.first - 1, HOLE_MISSING))
            high[key] = max(before, stream.last)
        names.update(index.names)

    def _remove_segments(self, gone: set[int]) -> None:
        """Drop trimmed segments: ``low`` rises to the start of the first segment."""
        self._stream_indexes = {
            key: kept
            for key, parts in self._stream_indexes.items()
            if (kept := [part for part in parts if part[0] not in gone])
        }
        first = next(iter(self._segments.values()), None)
        started = (
            {}
            if first is None or first.first_state is None
            else {each.key: each.high for each in first.first_state.streams}
        )
        for key in self._high:
            parts = self._stream_indexes.get(key)
            begin = parts[0][1].first - 1 if parts else self._high[key]
            begin = min(begin, started.get(key, begin))
            self._low[key] = max(self._low[key], begin)

    def _refreshed(self) -> SpoolReader:
        if not self._is_refreshed:
            self.refresh()
        return self

    # What is there

    def low(self) -> Digest:
        """The seqno before the first readable message, by stream."""
        return dict(sorted(self._refreshed()._low.items()))

    def high(self) -> Digest:
        """The last readable seqno, by stream."""
        return dict(sorted(self._refreshed()._high.items()))

    def names(self) -> dict[str, str]:
        """The durable name of the origin, by stream; streams without a name are omitted."""
        return dict(self._refreshed()._names)

    def lost(self) -> list[Hole]:
        """The unreadable seqnos between low and high: recorded as lost, or missing."""
        self._refreshed()
        found = [hole for index in self._segments.values() for hole in index.holes]
        found += [hole for holes in self._missing.values() for hole in holes]
        return sorted(hole for hole in found if hole.last > self._low.get(hole.stream, 0))

    def dropped(self) -> dict[str, int]:
        """The number of messages deleted by a limit before every reader had them, by stream."""
        for index in reversed(self._refreshed()._segments.values()):
            if index.latest_state is not None:
                return {
                    each.key: each.dropped for each in index.latest_state.streams if each.dropped
                }
        return {}

    def segments(self) -> list[SegmentIndex]:
        """The readable segments, oldest first."""
        return list(self._refreshed()._segments.values())

    @property
    def has_sink_rows(self) -> bool:
        """Whether the collector has stored rows of a Spark sink, and with them a record of them."""
        return any(index.blob is not None and index.blob[1] for index in self.segments())

    def at_time(self, when_ns: int) -> Digest:
        """Return the digest before the first record collected at or after ``when_ns``."""
        self._refreshed()
        found: Digest = {}
        for key, high in self._high.items():
            found[key] = high
            for _, stream in self._stream_indexes.get(key, ()):
                if stream.collected_ns >= when_ns:
                    at = bisect_left(stream.column(COLLECTED), when_ns)
                    found[key] = max(stream.column(FIRST)[at] - 1, self._low[key])
                    break
        return dict(sorted(found.items()))

    def rows(self, start: Mapping[str, int], end: Mapping[str, int]) -> Digest:
        """How many messages of each stream are after ``start``, up to and with ``end``."""
        self._refreshed()
        found = {}
        for key in end:
            lo, hi = self._bounds(key, start, end)
            found[key] = sum(
                stream.rows_upto(hi) - stream.rows_upto(lo)
                for _, stream in self._indexes_between(key, lo, hi)
            )
        return found

    def _bounds(
        self, key: str, start: Mapping[str, int], end: Mapping[str, int]
    ) -> tuple[int, int]:
        high = self._high.get(key, 0)
        lo = max(start.get(key, 0), self._low.get(key, 0))
        return lo, max(lo, min(end.get(key, high), high))

    def _indexes_between(self, key: str, lo: int, hi: int) -> list[tuple[int, StreamIndex]]:
        """Return the parts of a stream with messages of ``lo + 1 .. hi``."""
        parts = self._stream_indexes.get(key, [])
        if lo >= hi:
            return []
        at = bisect_right(parts, lo, key=lambda part: part[1].last)
        until = bisect_right(parts, hi, key=lambda part: part[1].first)
        found = parts[at:until]
        self._loaded.update(number for number, _ in found)
        return found

    # Going on

    def admit(
        self,
        start: Mapping[str, int],
        end: Mapping[str, int],
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> Digest:
        """Return a position from ``start`` towards ``end`` within the limits.

        The limits are shared fairly between streams, to the message. Every stream with new messages
        gets at least one message, if need be beyond the limit.

        Args:
            start: The position of the reader.
            end: The position to reach.
            max_rows: Maximum number of messages; None for no limit.
            max_bytes: Maximum number of payload bytes; None for no limit.
        """
        self._refreshed()
        reach = {key: self._bounds(key, start, end) for key in end}
        if max_rows is not None:
            wants = self.rows(start, end)
            granted = fair_share({key: want for key, want in wants.items() if want}, max_rows)
            for key, rows in granted.items():
                if rows < wants[key]:
                    lo, hi = reach[key]
                    reach[key] = (lo, self._after_rows(key, lo, hi, rows))
        if max_bytes is not None:
            wants = {
                key: self._payload_between(key, lo, hi)
                for key, (lo, hi) in reach.items()
                if hi > lo
            }
            granted = fair_share(wants, max_bytes)
            for key, size_bytes in granted.items():
                if size_bytes < wants[key]:
                    lo, hi = reach[key]
                    reach[key] = (lo, self._after_bytes(key, lo, hi, size_bytes))
        found = {key: max(hi, start.get(key, 0)) for key, (_, hi) in reach.items()}
        return dict(sorted({**start, **found}.items()))

    def _after_rows(self, key: str, lo: int, hi: int, rows: int) -> int:
        for _, stream in self._indexes_between(key, lo, hi):
            before = stream.rows_upto(lo)
            here = stream.rows_upto(hi) - before
            if rows <= here:
                return stream.seqno_at_row(before + rows)
            rows -= here
        return hi

    def _payload_between(self, key: str, lo: int, hi: int) -> int:
        """Return the payload of ``lo + 1 .. hi``; of cut runs, in proportion."""
        return sum(
            stream.payload_upto(hi) - stream.payload_upto(lo)
            for _, stream in self._indexes_between(key, lo, hi)
        )

    def _after_bytes(self, key: str, lo: int, hi: int, budget_bytes: int) -> int:
        """Return the last seqno whose payload fits the budget; the first message always fits."""
        reached, taken = lo, False
        for number, stream in self._indexes_between(key, lo, hi):
            first, last, kind, payload = (
                stream.column(which) for which in (FIRST, LAST, KIND, PAYLOAD)
            )
            at, final = stream.find_record(lo + 1), len(last) - 1
            while at <= final and first[at] <= hi:
                goal = (payload[at - 1] if at else 0) + budget_bytes
                stop = bisect_right(payload, goal, at)
                if first[at] > reached and stop > at and last[stop - 1] <= hi:
                    # These records fit as a whole, and so does what is recorded as lost behind
                    # them.
                    budget_bytes = goal - payload[stop - 1]
                    taken = taken or any(each != LOST for each in kind[at:stop])
                    reached, at = last[stop - 1], stop
                    continue
                if kind[at] == LOST:
                    reached = min(last[at], hi)
                elif kind[at] == MESSAGE:
                    amount = payload[at] - (payload[at - 1] if at else 0)
                    if last[at] > hi or (taken and amount > budget_bytes):
                        return reached
                    reached, taken, budget_bytes = last[at], True, budget_bytes - amount
                else:
                    fits, size_bytes = self._fit_run(
                        number, stream, at, (reached, hi, budget_bytes), must=not taken
                    )
                    if reached + fits < min(last[at], hi):
                        return reached + fits
                    reached, taken, budget_bytes = reached + fits, True, budget_bytes - size_bytes
                at += 1
        return reached

    def _fit_run(
        self, number: int, stream: StreamIndex, at: int, asked: tuple[int, int, int], *, must: bool
    ) -> tuple[int, int]:
        """Return how many next messages of a run fit, and their size; ``must``: at least one."""
        reached, hi, budget_bytes = asked
        first, last = stream.column(FIRST)[at], stream.column(LAST)[at]
        head, tail = max(reached + 1 - first, 0), min(last, hi) - first + 1
        ends = list(accumulate(self._lengths(number, stream.column(OFFSET)[at])[head:tail]))
        count = max(bisect_right(ends, budget_bytes), 1 if must else 0)
        return count, ends[count - 1] if count else 0

    def _lengths(self, number: int, offset: int) -> Sequence[int]:
        with self._open(number) as file:
            data = file.read(offset, HEADER_BYTES)
            header = parse_header(data, 0, offset, file.seed)
            if header is None:
                raise damaged_record_error(file.path, offset)
            if header.is_encrypted:
                return decode_lengths(file.read_body(header)[: header.table_bytes])
            return decode_lengths(file.read(offset + HEADER_BYTES, header.table_bytes))

    # Reading

    def slices(
        self,
        start: Mapping[str, int],
        end: Mapping[str, int],
        *,
        target_bytes: int | None = None,
        skip_missing: bool = False,
    ) -> list[Slice]:
        """Return the slices with the messages after ``start`` up to ``end``, by stream and seqno.

        Args:
            start: The position of the reader.
            end: The position to read up to.
            target_bytes: Payload size at which a slice ends, between records; None for no limit.
            skip_missing: Whether to skip damaged messages.

        Raises:
            SpoolCorrupt: Messages are missing because of damage, and ``skip_missing`` is not set.
        """
        self._refreshed()
        if not skip_missing:
            self._check_unreadable()
        found: list[Slice] = []
        damage = self._missing_by_stream()
        for key in sorted(end):
            lo, hi = self._bounds(key, start, end)
            holes = [hole for hole in damage.get(key, ()) if hole.last > lo and hole.first <= hi]
            if holes and not skip_missing:
                raise self._missing_error(holes[0])
            for number, stream in self._indexes_between(key, lo, hi):
                for part in _ranges_between_holes(
                    holes, max(lo, stream.first - 1), min(hi, stream.last)
                ):
                    found += self._cut_slices(number, key, stream, *part, target_bytes)
                lo = max(lo, min(stream.last, hi))
        return found

    def _missing_by_stream(self) -> dict[str, list[Hole]]:
        """Return the missing ranges of each stream, in order."""
        found: dict[str, list[Hole]] = {}
        for number, index in self._segments.items():
            for hole in (*self._missing.get(number, ()), *index.holes):
                if hole.reason == HOLE_MISSING:
                    found.setdefault(hole.stream, []).append(hole)
        return found

    def _check_unreadable(self) -> None:
        """Raise SpoolCorrupt for damage that no gap in the seqnos of a stream explains.

        The record may have been the first or the last of its stream: nothing else names its
        messages.
        """
        numbers = list(self._segments)
        for number, after in zip(numbers, [*numbers[1:], 0], strict=False):
            unreadable = self._segments[number].unreadable
            if not unreadable:
                continue
            holes = [hole for hole in self._segments[number].holes if hole.reason == HOLE_MISSING]
            # The state at the start of the next segment shows what is missing at the end of this.
            gaps = (*holes, *self._missing.get(number, ()), *self._missing.get(after, ()))
            if len(unreadable) > len(gaps):
                path, (offset, size_bytes) = segment_path(self.path, number), unreadable[-1]
                raise SpoolCorrupt(
                    f"{path}: the {size_bytes} bytes at {offset} are no record, and messages may "
                    f"be missing; `gapless spool check {self.path}` lists all damage; to continue "
                    f"without them, stop the collector and run `gapless spool repair {self.path}`,"
                    " or read from a replica",
                    path,
                    offset,
                )

    def _missing_error(self, hole: Hole) -> SpoolCorrupt:
        return SpoolCorrupt(
            f"{self.path}: messages {hole.first}..{hole.last} of {hole.stream} are missing; "
            f"`gapless spool check {self.path}` lists all damage; to continue without these "
            f"messages, stop the collector and run `gapless spool repair {self.path}`, or read "
            "from a replica",
            self.path,
        )

    def _cut_slices(
        self, number: int, key: str, stream: StreamIndex, lo: int, hi: int, target_bytes: int | None
    ) -> Iterator[Slice]:
        last, offset, size, payload = (
            stream.column(which) for which in (LAST, OFFSET, SIZE, PAYLOAD)
        )
        at, final = stream.find_record(lo + 1), min(stream.find_record(hi), len(last) - 1)
        name, encrypted = self._names.get(key, ""), self._segments[number].is_encrypted
        while at <= final:
            stop = final
            if target_bytes is not None:
                goal = (payload[at - 1] if at else 0) + target_bytes
                stop = min(bisect_left(payload, goal, at, final + 1), final)
            upto = min(last[stop], hi)
            rows = stream.rows_upto(upto) - stream.rows_upto(lo)
            if rows:
                span_bytes = offset[stop] + size[stop] - offset[at]
                amount = stream.payload_upto(upto) - stream.payload_upto(lo)
                place = (number, offset[at], span_bytes)
                yield Slice(key, lo, upto, *place, rows, amount, name, encrypted)
            lo, at = upto, stop + 1

    def records(self, slices: Slice | Sequence[Slice]) -> Iterator[Record]:
        """Read the messages of one or more slices; slices of a segment are read in a single pass.

        The records of each stream are in the order of their seqnos if the slices are.

        Raises:
            SpoolCorrupt: A checksum does not match. The error names the file, the offset and the
                command that repairs the spool.
        """
        wanted = (
            [slices] if isinstance(slices, Slice) else sorted(slices, key=lambda each: each.segment)
        )
        for number, group in groupby(wanted, key=lambda each: each.segment):
            with self._open(number) as file:
                yield from read_records(file, list(group))

    def _open(self, number: int) -> SegmentFile:
        path = segment_path(self.path, number)
        try:
            return SegmentFile(path, number, self.info.spool_id, self.keys)
        except OSError as error:
            if error.errno == errno.ENOENT and self.path.is_dir():
                raise segment_trimmed_error(path) from error
            raise from_os_error(error, path, "reading it") from error

    # Readers

    def register(self, name: str, digest: Mapping[str, int]) -> registry.Consumer:
        """Register that the reader ``name`` no longer needs messages at or below the digest."""
        return registry.register(self.path, name, digest)

    def consumers(self) -> list[registry.Consumer]:
        """The registered readers."""
        return registry.read_consumers(self.path)

    def unregister(self, name: str) -> bool:
        """Unregister a reader, which ends retention for the reader. False if not registered."""
        return registry.unregister(self.path, name)


def _ranges_between_holes(holes: list[Hole], lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Return the parts of ``lo + 1 .. hi`` between missing ranges."""
    for hole in holes:
        if lo < hole.last and hole.first <= hi:
            if hole.first - 1 > lo:
                yield lo, hole.first - 1
            lo = hole.last
    if hi > lo:
        yield lo, hi


def fair_share(wants: Mapping[str, int], limit: int) -> dict[str, int]:
    """Share ``limit`` fairly: small demands are met, all other demands get equal shares.

    Every demand gets at least 1, if need be beyond the limit, so that every stream makes progress.
    """
    granted: dict[str, int] = {}
    left, waiting = limit, len(wants)
    for key, want in sorted(wants.items(), key=lambda item: (item[1], item[0])):
        # Smaller demands first: the unused rest of their equal share goes to the larger ones.
        part = max(left // waiting, 0)
        granted[key] = min(want, max(part, 1)) if want else 0
        left -= granted[key]
        waiting -= 1
    return granted
