"""Reading a spool: cheap to open, safe while the writer works, trims, or is dead.

Positions are digests: for each stream, by its key, the seqno up to which everything has been read. A stream that a digest
does not name starts where the spool does (``low``). A message that travelled in pieces belongs to its last seqno, so
a digest that points into the middle of it neither loses nor repeats it.
"""

from __future__ import annotations

import errno
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from gapless.identity import Address
from gapless.run import LENGTH_BYTES
from gapless.spool import readers as registry
from gapless.spool.errors import SpoolCorrupt, SpoolMismatch, SpoolTrimmed, from_os_error
from gapless.spool.format import HEADER_BYTES, LOST, MESSAGE, RUN, Header, header_at, parse_key
from gapless.spool.index import COLLECTED, LAST, OFFSET, PAYLOAD, ROWS, SIZE, BadIndex, Hole, SegmentIndex, StreamIndex
from gapless.spool.segments import Hint, SegmentFile, SpoolInfo, index_path, list_segments, segment_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

READ_BYTES = 4 * 1024 * 1024


class Slice(NamedTuple):
    """Messages ``lo + 1 .. hi`` of one stream that stand in one segment; picklable.

    ``offset`` and ``size_bytes`` span the records; records of other streams may stand between them. ``rows`` and
    ``payload_bytes`` are those of the messages (of a run that is cut, in proportion).
    """

    stream: str
    lo: int
    hi: int
    segment: int
    offset: int
    size_bytes: int
    rows: int
    payload_bytes: int
    name: str = ""


class Record(NamedTuple):
    """A run, or one message that travelled in pieces (``kind`` is RUN or MESSAGE).

    ``lengths`` is the run's table of 16-bit little-endian lengths, empty for a message in pieces; ``payload`` the messages end to
    end. Both are views into what was read.
    """

    kind: int
    stream: str
    origin: Address
    name: str
    first: int
    last: int
    count: int
    flags: int
    view: int
    sent_ns: int
    collected_ns: int
    lengths: memoryview
    payload: memoryview

    def messages(self) -> list[bytes]:
        """Return the messages, in order."""
        if self.kind == MESSAGE:
            return [bytes(self.payload)]
        ends = list(accumulate(self.lengths.cast("H")))
        return [bytes(self.payload[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def seqnos(self) -> range:
        """Return the number of each message; one that travelled in pieces has its last."""
        return range(self.first, self.last + 1) if self.kind == RUN else range(self.last, self.last + 1)


class SpoolView:
    """A spool to read from. ``refresh`` looks for more; everything else answers from what the last one has found.

    ``whole`` reads on beyond what the writer has said to be durable; that is for a spool whose writer is gone for good.
    """

    def __init__(self, path: Path | str, *, whole: bool = False) -> None:
        self.path = Path(path)
        try:
            self.info = SpoolInfo.read(self.path)
        except FileNotFoundError:
            raise SpoolMismatch(
                f"{self.path}: there is no spool here (no spool.json); give the folder of one", self.path
            ) from None
        self._whole = whole
        self._segments: dict[int, SegmentIndex] = {}
        self._low: dict[str, int] = {}
        self._high: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._fresh = False

    @property
    def group(self) -> str:
        """The group whose messages the spool holds."""
        return self.info.group

    @property
    def spool_id(self) -> str:
        """The random name of the spool, in hex; replicas have different ones."""
        return self.info.spool_id.hex()

    def refresh(self) -> None:
        """Look for what has been committed, sealed and trimmed since the last time."""
        hint = Hint.read(self.path)
        numbers = list_segments(self.path)
        known: dict[int, SegmentIndex] = {}
        for number in numbers:
            if hint is not None and not self._whole and number > hint.segment:
                break
            final = number == (hint.segment if hint is not None and not self._whole else numbers[-1])
            index = self._index(number, hint.offset if hint is not None and final and not self._whole else None, final)
            if index is not None:
                known[number] = index
        self._segments = known
        self._sum_up()
        self._fresh = True

    def _index(self, number: int, end: int | None, active: bool) -> SegmentIndex | None:
        found = self._segments.get(number)
        path = segment_path(self.path, number)
        try:
            if not active:
                try:
                    return SegmentIndex.load(index_path(self.path, number), number)
                except (FileNotFoundError, BadIndex):
                    pass
            with SegmentFile(path, number, self.info.spool_id) as file:
                index = found or SegmentIndex(number)
                file.index_into(index, file.size_bytes if end is None else min(end, file.size_bytes))
                return index
        except FileNotFoundError:
            return None
        except OSError as error:
            raise from_os_error(error, path, "reading it") from error

    def _sum_up(self) -> None:
        low: dict[str, int] = {}
        high: dict[str, int] = {}
        names: dict[str, str] = {}
        for index in self._segments.values():
            if index.state is not None:
                for each in index.state.streams:
                    low.setdefault(each.key, each.high)
                    high[each.key] = max(high.get(each.key, 0), each.high)
                    if each.name:
                        names[each.key] = each.name
            for key, stream in index.streams.items():
                low.setdefault(key, stream.first - 1)
                high[key] = max(high.get(key, 0), stream.last)
            names.update(index.names)
        self._low, self._high, self._names = dict(sorted(low.items())), dict(sorted(high.items())), names

    def low(self) -> dict[str, int]:
        """For each stream the seqno before the first that can be read."""
        return dict(self._looked()._low)

    def high(self) -> dict[str, int]:
        """For each stream the last seqno that can be read."""
        return dict(self._looked()._high)

    def names(self) -> dict[str, str]:
        """For each stream the durable name of its origin, if it has one."""
        return dict(self._looked()._names)

    def lost(self) -> list[Hole]:
        """The seqnos that offsets step over, in each stream: they never came, or are not there any more."""
        return [hole for index in self._looked()._segments.values() for hole in index.holes]

    def dropped(self) -> dict[str, int]:
        """For each stream how many messages a limit has deleted before every reader had them."""
        found: dict[str, int] = {}
        for index in self._looked()._segments.values():
            if index.latest is not None:
                found = {each.key: each.dropped for each in index.latest.streams if each.dropped}
        return found

    def at_time(self, when_ns: int) -> dict[str, int]:
        """The digest before the first record that was collected at or after a time."""
        from bisect import bisect_left

        found: dict[str, int] = {}
        for index in self._looked()._segments.values():
            for key, stream in index.streams.items():
                if key not in found and stream.collected_ns >= when_ns:
                    at = bisect_left(stream.column(COLLECTED), when_ns)
                    found[key] = stream.column(LAST)[at - 1] if at else stream.first - 1
        return {key: found.get(key, high) for key, high in self._high.items()}

    def slices(
        self, start: Mapping[str, int], end: Mapping[str, int], *, target_bytes: int | None = None
    ) -> list[Slice]:
        """Where the messages after ``start`` up to and with ``end`` are, ascending for each stream.

        With ``target_bytes`` a slice is cut, between records, when its payload has become that large.
        """
        self._looked()
        found = []
        for key, upto in sorted(end.items()):
            if key not in self._high:
                continue
            lo, hi = max(start.get(key, 0), self._low[key]), min(upto, self._high[key])
            for index in self._segments.values():
                stream = index.streams.get(key)
                if stream is not None and stream.last > lo and stream.first <= hi:
                    found += self._cut(index.number, key, stream, lo, hi, target_bytes)
                    lo = max(lo, min(stream.last, hi))
        return found

    def _cut(
        self, segment: int, key: str, stream: StreamIndex, lo: int, hi: int, target_bytes: int | None
    ) -> Iterator[Slice]:
        last, offset, size, rows, payload = (stream.column(which) for which in (LAST, OFFSET, SIZE, ROWS, PAYLOAD))
        at, final = stream.find(lo + 1), min(stream.find(hi), len(last) - 1)
        while at <= final:
            before = payload[at - 1] if at else 0
            stop = final
            if target_bytes is not None:
                from bisect import bisect_left

                stop = min(max(bisect_left(payload, before + target_bytes, at, final + 1), at), final)
            upto = min(last[stop], hi)
            count = rows[stop] - (rows[at - 1] if at else 0)
            amount = payload[stop] - before
            yield Slice(
                key,
                lo,
                upto,
                segment,
                offset[at],
                offset[stop] + size[stop] - offset[at],
                count,
                amount,
                self._names.get(key, ""),
            )
            lo, at = upto, stop + 1

    def records(self, slices: Slice | Sequence[Slice]) -> Iterator[Record]:
        """Read the messages of a slice, or of several of one segment in one go; ascending within each stream.

        Every checksum is looked at: :class:`SpoolCorrupt` names the file, the offset and the command that repairs it.
        """
        wanted = [slices] if isinstance(slices, Slice) else list(slices)
        for each in wanted:
            yield from self._read(each)

    def _read(self, wanted: Slice) -> Iterator[Record]:
        path = segment_path(self.path, wanted.segment)
        origin = parse_key(wanted.stream)
        end = wanted.offset + wanted.size_bytes
        try:
            file = SegmentFile(path, wanted.segment, self.info.spool_id)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise SpoolTrimmed(f"{path}: trimmed; register the reader so that it is kept", path) from error
            raise from_os_error(error, path, "reading it") from error
        with file:
            at, base, window = wanted.offset, wanted.offset, memoryview(b"")
            while at < end:
                header = header_at(window, at - base, at, file.seed)
                if header is None or at - base + header.size_bytes > len(window):
                    need = HEADER_BYTES if header is None else header.size_bytes
                    if len(window) - (at - base) >= need:
                        raise self._corrupt(path, at)
                    base, window = at, memoryview(file.read(at, min(max(READ_BYTES, need), end - at)))
                    header = header_at(window, 0, at, file.seed)
                    if header is None:
                        raise self._corrupt(path, at)
                    continue
                if header[11] == origin.node and header[12] == origin.incarnation and header.kind in (RUN, MESSAGE):
                    record = self._record(path, header, window[at - base : at - base + header.size_bytes], wanted)
                    if record is not None:
                        yield record
                at += header.size_bytes

    def _record(self, path: Path, header: Header, whole: memoryview, wanted: Slice) -> Record | None:
        if crc32(whole[HEADER_BYTES:]) != header.body_crc:
            raise self._corrupt(path, header.offset)
        lengths = whole[HEADER_BYTES : HEADER_BYTES + header.table_bytes]
        payload = whole[HEADER_BYTES + header.table_bytes :]
        first, last, count = header.first, header.last, header.count
        if last <= wanted.lo or (header.kind == MESSAGE and last > wanted.hi) or first > wanted.hi:
            return None
        if header.kind == RUN and (first <= wanted.lo or last > wanted.hi):
            head, tail = max(wanted.lo + 1 - first, 0), min(wanted.hi, last) - first + 1
            ends = list(accumulate(lengths.cast("H"), initial=0))
            payload = payload[ends[head] : ends[tail]]
            lengths = lengths[head * LENGTH_BYTES : tail * LENGTH_BYTES]
            first, last, count = first + head, first + tail - 1, tail - head
        return Record(
            header.kind,
            wanted.stream,
            header.origin,
            wanted.name,
            first,
            last,
            count,
            header.flags,
            header.view,
            header.sent_ns,
            header.collected_ns,
            lengths,
            payload,
        )

    def _corrupt(self, path: Path, offset: int) -> SpoolCorrupt:
        return SpoolCorrupt(
            f"{path}: the record at {offset} is damaged; stop the collector and run `gapless spool repair {self.path}`",
            path,
            offset,
        )

    def admit(
        self,
        start: Mapping[str, int],
        end: Mapping[str, int],
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> dict[str, int]:
        """Return how far to go from ``start`` towards ``end`` within the limits.

        Fair between streams and to the message. Every stream that has something gets at least one message, if need be beyond
        the limit.
        """
        raise NotImplementedError

    def register(self, name: str, digest: Mapping[str, int]) -> None:
        """Say that the reader ``name`` will never again ask for what is at or below the digest."""
        registry.register(self.path, name, digest)

    def readers(self) -> list[registry.Reader]:
        """The registered readers."""
        return registry.read_readers(self.path)

    def forget(self, name: str) -> bool:
        """Take a reader off the list, so that the spool keeps nothing for it; False if it was not there."""
        return registry.forget(self.path, name)

    def _looked(self) -> SpoolView:
        if not self._fresh:
            self.refresh()
        return self
