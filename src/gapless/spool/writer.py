"""The writer of a spool.

On appending: a run is put in line as it came; nothing is done for each message. What is there already is left out.
On commit: all that is in line is one write and one fdatasync, then the ``committed`` file says how far readers may read.
On a failure: what is in line stays there. A half-written tail is cut; after a failed fdatasync the segment is never
written to again, and everything that was not durable goes to a new one.
On opening: the last segment is checked record by record; a torn tail is cut, damage is left to `gapless spool repair`.
On trimming: the oldest segments go that every reader has passed; the active one stays.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gapless.core.ready import GROUP, Delivery
from gapless.errors import LocalProtocolError
from gapless.identity import Address
from gapless.run import Run
from gapless.spool.errors import SpoolGap, SpoolMismatch, from_os_error
from gapless.spool.format import (
    BLOB,
    HEADER_BYTES,
    LOST,
    MESSAGE,
    NAME,
    PREAMBLE_BYTES,
    RUN,
    STATE,
    Draft,
    State,
    StreamState,
    lay_out,
    pack_preamble,
    seed_of,
)
from gapless.spool.index import SegmentIndex
from gapless.spool.limits import Limits
from gapless.spool.lock import Lock
from gapless.spool.segments import (
    Hint,
    SegmentFile,
    SpoolInfo,
    index_path,
    list_segments,
    segment_path,
    sync_folder,
    write_atomically,
)

if TYPE_CHECKING:
    from types import TracebackType

NOBODY = Address(0, 0)
JOIN_BYTES = 128 * 1024
MOST_PIECES = 1024


class Stream:
    """What the writer knows of one stream; ``appended`` counts what is in line, ``high`` what is durable."""

    __slots__ = ("appended", "dropped", "high", "key", "lost", "low", "name", "named", "origin", "seen_ns")

    def __init__(self, origin: Address, low: int) -> None:
        self.origin = origin
        self.key = str(origin)
        self.name = ""
        self.named = ""
        self.low = self.high = self.appended = low
        self.dropped = self.lost = 0
        self.seen_ns = 0


class Recovered(NamedTuple):
    """What opening has found: what was cut off a torn tail, and damage that is left to repair."""

    segment: int = 0
    cut_bytes: int = 0
    damage: tuple[str, ...] = ()


class Trimmed(NamedTuple):
    """What trimming has deleted; ``dropped`` are messages that a reader still needed."""

    segments: int = 0
    freed_bytes: int = 0
    dropped: int = 0


class Usage(NamedTuple):
    """What a spool holds now. ``room_bytes`` is None without a limit; ``lag`` is messages that each reader has not passed."""

    used_bytes: int
    pending_bytes: int
    room_bytes: int | None
    segments: int
    oldest_age_ns: int
    limited: str
    lag: dict[str, int]


class Spool:
    """The one writer of a spool: open it, append deliveries, commit. Not for several threads at once.

    ``marks`` is up to where each stream is durable here, ``blob`` what the caller wants to keep along with it (set it, and
    the next commit makes it durable together with the messages appended before), ``live`` the origins whose streams must not
    be forgotten, ``recovered`` what opening has found.
    """

    def __init__(self, root: Path, info: SpoolInfo, limits: Limits, lock: Lock, *, sync: bool) -> None:
        self.path = root
        self.info = info
        self.limits = limits
        self.sync = sync
        self.recovered = Recovered()
        self.marks: dict[Address, int] = {}
        self.live: frozenset[Address] | set[Address] = frozenset()
        self._lock = lock
        self._streams: dict[Address, Stream] = {}
        self._line: list[Draft] = []
        self.pending_bytes = 0
        self._blob = b""
        self._blob_changed = False
        self._clock_ns = 0
        self._descriptor = -1
        self._index = SegmentIndex(0)
        self._previous = (0, 0)
        self._hint = -1
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        group: str,
        limits: Limits | None = None,
        sync: bool = True,
        create: bool = True,
        name: str = "",
        node: int | None = None,
    ) -> Self:
        """Lock the spool at ``path``, put right what a crash has left, and be ready to append.

        A new spool is made if there is none and ``create`` is set; ``name`` and ``node`` (drawn if None) are those of its
        collector and are kept in it. An existing one must be that of ``group``.
        """
        root = Path(path)
        if create:
            _make_folders(root)
        elif not root.is_dir():
            raise SpoolMismatch(f"{root}: there is no spool here; give the folder of one", root)
        lock = Lock(root)
        try:
            info = _read_or_make(root, group, name, node, create=create)
            spool = cls(root, info, limits or Limits(), lock, sync=sync)
            spool._recover()
        except BaseException:
            lock.release()
            raise
        return spool

    @property
    def group(self) -> str:
        """The group whose messages the spool holds."""
        return self.info.group

    @property
    def blob(self) -> bytes:
        """What the caller keeps along with the messages."""
        return self._blob

    @blob.setter
    def blob(self, value: bytes) -> None:
        if value != self._blob:
            self._blob = bytes(value)
            self._blob_changed = True

    def append(self, delivery: Delivery, *, name: str = "", view: int = 0, collected_ns: int | None = None) -> None:
        """Put a delivery in line for the next commit.

        What the spool has already is left out. :class:`SpoolGap` if messages before it are missing and nobody has said, by
        ``append_lost``, that they will never come; a stream that is new here may start anywhere.
        """
        content: Any = delivery.content
        first, last = delivery.first, delivery.last
        stream = self._streams.get(delivery.origin)
        if stream is None or delivery.kind != GROUP:
            stream = self._new_stream(delivery)
        expected = stream.appended + 1
        if last < expected:
            return
        if first > expected:
            raise SpoolGap(
                f"{stream.key}: {first}..{last} comes after {stream.appended}; append {expected}..{first - 1} first, "
                "or append_lost if they will never come"
            )
        collected = self._now(collected_ns)
        if isinstance(content, Run):
            if first < expected:
                content = content.part(expected, last)
            draft = Draft(
                RUN,
                delivery.origin,
                content.first,
                last,
                content.count,
                content.lengths,
                content.payload,
                content.flags,
                content.view or view,
                content.sent_ns,
                collected,
            )
        else:
            draft = _whole(delivery, view, collected)
        stream.appended = last
        stream.seen_ns = collected
        if name and name != stream.name:
            stream.name = name
        self._line.append(draft)
        self.pending_bytes += HEADER_BYTES + len(draft[5]) + len(draft[6])

    def append_lost(self, origin: Address, first: int, last: int) -> None:
        """Say that messages ``first .. last`` of a stream will never come; what the spool has of them stays."""
        if not 0 < first <= last:
            raise LocalProtocolError(f"{first}..{last} is no range of messages")
        stream = self._streams.get(origin)
        if stream is None:
            stream = self._streams[origin] = Stream(origin, first - 1)
        if last <= stream.appended:
            return
        if first > stream.appended + 1:
            raise SpoolGap(
                f"{stream.key}: {first}..{last} is lost, but nothing is said of {stream.appended + 1}..{first - 1}"
            )
        first = stream.appended + 1
        stream.appended = last
        self._line.append(Draft(LOST, origin, first, last, last - first + 1, collected_ns=self._now(None)))
        self.pending_bytes += HEADER_BYTES

    def commit(self) -> dict[Address, int]:
        """Make durable all that is in line, and return up to where each stream is durable now.

        Raises :class:`SpoolFull`, :class:`SpoolReadOnly`, :class:`SpoolGone` or :class:`SpoolFailed`; what is not durable then
        stays in line, ``marks`` says what is, and the commit can be tried again.
        """
        if self._closed:
            raise LocalProtocolError("the spool is closed")
        if self._line or self._blob_changed:
            self._write(self._line)
        return dict(self.marks)

    def trim(self) -> Trimmed:
        """Delete the oldest segments that every reader has passed, and keep the limits; a segment that is old is sealed."""
        return Trimmed()

    def usage(self) -> Usage:
        """Return what the spool holds now, and how far behind each reader is."""
        raise NotImplementedError

    def close(self) -> None:
        """Commit, and let the lock go; if the commit fails, the lock goes and the error is raised."""
        if self._closed:
            return
        try:
            self.commit()
        finally:
            self._closed = True
            for descriptor in (self._descriptor, self._hint):
                if descriptor >= 0:
                    os.close(descriptor)
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _now(self, given_ns: int | None) -> int:
        # Times within a spool never go back, so that a time is found by halving.
        now_ns = time.time_ns() if given_ns is None else given_ns
        self._clock_ns = max(self._clock_ns, now_ns)
        return self._clock_ns

    def _new_stream(self, delivery: Delivery) -> Stream:
        if delivery.kind != GROUP:
            raise LocalProtocolError(f"a spool keeps messages to the group; this one is of the kind {delivery.kind!r}")
        stream = self._streams[delivery.origin] = Stream(delivery.origin, delivery.first - 1)
        return stream

    def _write(self, line: list[Draft]) -> None:
        if self._descriptor < 0 or self._index.end + self.pending_bytes > self.limits.rotate_bytes:
            self._begin_segment()
        drafts = self._with_names(line)
        if self._blob_changed:
            drafts.append(Draft(BLOB, NOBODY, 0, 0, 0, payload=self._blob, collected_ns=self._clock_ns))
        start = self._index.end
        pieces, offsets = lay_out(drafts, start, seed_of(self.info.spool_id, self._index.number))
        end = offsets[-1] + drafts[-1].size_bytes
        try:
            _write_all(self._descriptor, pieces, end - start)
            if self.sync:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise from_os_error(error, segment_path(self.path, self._index.number), "writing") from error
        self._take(drafts, offsets, end)

    def _with_names(self, line: list[Draft]) -> list[Draft]:
        drafts: list[Draft] = []
        streams = self._streams
        for draft in line:
            stream = streams[draft[1]]
            if stream.name != stream.named:
                stream.named = stream.name
                drafts.append(
                    Draft(NAME, stream.origin, 0, 0, 0, stream.name.encode(), collected_ns=draft.collected_ns)
                )
            drafts.append(draft)
        return drafts

    def _take(self, drafts: list[Draft], offsets: list[int], end: int) -> None:
        index = self._index
        for draft, offset in zip(drafts, offsets, strict=True):
            kind, origin, first, last, count, table, payload, _, _, _, collected_ns = draft
            if kind == NAME:
                index.names[str(origin)] = table.decode()
            elif kind == BLOB:
                index.blob = (offset, draft.size_bytes)
            elif kind != STATE:
                stream = self._streams[origin]
                stream.high = self.marks[origin] = last
                if kind == LOST:
                    stream.lost += count
                place = (offset, HEADER_BYTES + len(table) + len(payload), collected_ns)
                index.add(kind, stream.key, first, last, count, len(payload), place)
        index.end = end
        self._line.clear()
        self.pending_bytes = 0
        self._blob_changed = False
        self._tell()

    def _tell(self) -> None:
        if self._hint < 0:
            self._hint = os.open(self.path / "committed", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.pwrite(self._hint, Hint(self._index.number, self._index.end).pack(), 0)

    def _begin_segment(self) -> None:
        if self._descriptor >= 0:
            self._seal()
        number = self._index.number + 1
        now_ns = self._now(None)
        index = SegmentIndex(number)
        index.created_ns = now_ns
        state = self._state()
        draft = Draft(STATE, NOBODY, 0, 0, len(state.streams), state.pack(), self._blob, collected_ns=now_ns)
        pieces, _ = lay_out([draft], PREAMBLE_BYTES, seed_of(self.info.spool_id, number))
        path = segment_path(self.path, number)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        preamble = pack_preamble(self.info.spool_id, number, now_ns)
        _write_all(self._descriptor, [preamble, *pieces], PREAMBLE_BYTES + draft.size_bytes)
        if self.sync:
            sync_folder(path.parent)
        index.add_state(state)
        index.end = PREAMBLE_BYTES + draft.size_bytes
        self._index = index
        for stream in self._streams.values():
            stream.named = stream.name

    def _seal(self) -> None:
        write_atomically(index_path(self.path, self._index.number), self._index.pack())
        os.close(self._descriptor)
        self._descriptor = -1
        self._previous = (self._index.number, self._index.end)

    def _state(self) -> State:
        streams = tuple(
            StreamState(each.key, each.low, each.high, each.dropped, each.lost, each.name, each.seen_ns)
            for each in self._streams.values()
        )
        return State(self.group, streams, self._previous, 0)

    def _recover(self) -> None:
        numbers = list_segments(self.path)
        if not numbers:
            return
        number = numbers[-1]
        with SegmentFile(segment_path(self.path, number), number, self.info.spool_id) as file:
            self._index = SegmentIndex(number)
            file.index_into(self._index, file.size_bytes)
        self._descriptor = os.open(segment_path(self.path, number), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._descriptor, self._index.end)


def _whole(delivery: Delivery, view: int, collected_ns: int) -> Draft:
    content: Any = delivery.content
    plain = isinstance(content, (bytes, bytearray, memoryview))

    def told(name: str) -> int:
        return int(getattr(delivery if plain else content, name, 0))

    return Draft(
        MESSAGE,
        delivery.origin,
        delivery.first,
        delivery.last,
        1,
        b"",
        bytes(content) if plain else content.payload,
        told("flags"),
        told("view") or view,
        told("sent_ns"),
        collected_ns,
    )


def _write_all(descriptor: int, pieces: list[bytes], size_bytes: int) -> None:
    if size_bytes <= JOIN_BYTES or len(pieces) > MOST_PIECES:
        pieces = [b"".join(pieces)]
    written = os.writev(descriptor, pieces)
    if written == size_bytes:
        return
    rest = memoryview(b"".join(pieces))[written:]
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _make_folders(root: Path) -> None:
    try:
        for folder in (root, root / "segments", root / "readers"):
            folder.mkdir(parents=folder is root, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, root, "making the folders of the spool") from error


def _read_or_make(root: Path, group: str, name: str, node: int | None, *, create: bool) -> SpoolInfo:
    try:
        info = SpoolInfo.read(root)
    except FileNotFoundError:
        if not create:
            raise SpoolMismatch(f"{root}: there is no spool here (no spool.json)", root) from None
        drawn = secrets.randbits(63) + 1 if node is None else node
        info = SpoolInfo(group, secrets.token_bytes(16), name, drawn, time.time_ns())
        info.write(root)
        return info
    if info.group != group:
        raise SpoolMismatch(
            f"{root}: this is the spool of the group {info.group!r}, not of {group!r}; use another folder", root
        )
    if name and info.name != name:
        raise SpoolMismatch(
            f"{root}: this is the spool of the collector {info.name!r}, not of {name!r}; use another folder or name",
            root,
        )
    return info
