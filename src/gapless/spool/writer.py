"""The writer of a spool.

On appending: a run is put in line as it came; nothing is done for each message. What is there
already is left out. On commit: all that is in line is one write and one fdatasync; then the
``committed`` file says how far one may read. On a failure: what is in line stays there, and the
commit can be tried again. On opening: what a crash has left is put right (see ``recovery.py``). On
trimming: the oldest segments go that every reader has passed; the newest one stays, for it has all
marks.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gapless.errors import LocalProtocolError
from gapless.identity import Address
from gapless.protocol.ready import GROUP, Delivery
from gapless.run import Run
from gapless.spool.consumer_registry import read_readers
from gapless.spool.errors import SpoolFull, SpoolGap, SpoolMismatch, from_os_error
from gapless.spool.format import (
    BLOB,
    HEADER_BYTES,
    LOST,
    MESSAGE,
    NAME,
    RUN,
    STATE,
    Draft,
    State,
    StreamState,
    lost_drafts,
    parse_key,
)
from gapless.spool.index import SegmentIndex
from gapless.spool.limits import DROP_OLDEST, Limits
from gapless.spool.lock import Lock
from gapless.spool.recovery import Recovered, recover
from gapless.spool.retention import Need, Trimmed, Usage, need_of, rows_above, unread_rows
from gapless.spool.segment_file import SpoolInfo, segment_path
from gapless.spool.segment_store import Store, make_folders, read_or_make

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Spool", "Trimmed", "Usage"]

NOBODY = Address(0, 0)


class Stream:
    """What the writer knows of one stream; ``appended`` counts what is in line, ``high`` what is durable."""

    __slots__ = ("appended", "dropped", "high", "key", "lost", "name", "named", "origin", "seen_ns")

    def __init__(self, origin: Address, high: int) -> None:
        self.origin = origin
        self.key = str(origin)
        self.name = self.named = ""
        self.high = self.appended = high
        self.dropped = self.lost = self.seen_ns = 0


class Spool:
    """The one writer of a spool: open it, append deliveries, commit. Not for several threads at once.

    ``marks`` is up to where each stream is durable here. ``blob`` is what the caller wants to keep
    along with it: set it, and the next commit makes it durable together with the messages appended
    before, all or nothing. ``live`` are the origins whose streams must not be forgotten,
    ``recovered`` is what opening has found.
    """

    def __init__(
        self, root: Path, info: SpoolInfo, limits: Limits, lock: Lock, *, sync: bool
    ) -> None:
        self.path = root
        self.info = info
        self.limits = limits
        self.recovered = Recovered()
        self.marks: dict[Address, int] = {}
        self.live: frozenset[Address] | set[Address] = frozenset()
        self.pending_bytes = 0
        self._lock = lock
        self._store = Store(root, info, sync=sync)
        self._streams: dict[Address, Stream] = {}
        self._line: list[Draft] = []
        self._blob = b""
        self._blob_changed = False
        self._clock_ns = 0
        self._first = 0
        self._state_due = False
        self._kept_blob = b""
        self._limited = ""
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

        A new spool is made if there is none and ``create`` is set; ``name`` and ``node`` (drawn if
        None) are those of its collector and are kept in it. An existing one must be that of
        ``group``. Without ``sync`` nothing waits for the disk: a killed process then still loses
        nothing, a machine without power may.
        """
        root = Path(path)
        if create:
            make_folders(root)
        elif not root.is_dir():
            raise SpoolMismatch(f"{root}: there is no spool here; give the folder of one", root)
        lock = Lock(root)
        try:
            info = read_or_make(root, group, name, node, create=create)
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

    # Appending

    def append(
        self, delivery: Delivery, *, name: str = "", view: int = 0, collected_ns: int | None = None
    ) -> None:
        """Put a delivery in line for the next commit.

        What the spool has already is left out. :class:`SpoolGap` if messages before it are missing
        and nobody has said, by ``append_lost``, that they will never come; a stream that is new
        here may start anywhere. ``name`` is the durable name of the origin; ``view`` counts where
        the delivery does not know its own.
        """
        content: Any = delivery.content
        origin, first, last = delivery.origin, delivery.first, delivery.last
        stream = self._streams.get(origin)
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
        now_ns = self._now(collected_ns)
        if isinstance(content, Run):
            run = content if first == expected else content.part(expected, last)
            told = (run.flags, run.view or view, run.sent_ns, now_ns)
            draft = Draft._make(
                (RUN, origin, run.first, last, run.count, run.lengths, run.payload, *told)
            )
        else:
            draft = _whole(delivery, view, now_ns)
        stream.appended = last
        stream.seen_ns = now_ns
        if name:
            stream.name = name
        self._line.append(draft)
        self.pending_bytes += HEADER_BYTES + len(draft[5]) + len(draft[6])

    def reached(self, origin: Address) -> int | None:
        """Return up to where a stream is in line or durable; None if it is new here."""
        stream = self._streams.get(origin)
        return None if stream is None else stream.appended

    def append_lost(
        self,
        origin: Address,
        first: int,
        last: int,
        *,
        collected_ns: int | None = None,
        repeated: bool = False,
    ) -> None:
        """Say that messages ``first .. last`` of a stream will never come; what the spool has of them stays.

        With ``repeated`` they do not count as lost: the spool has the same ones in another stream.
        """
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
        stream.seen_ns = self._now(collected_ns)
        drafts = lost_drafts(origin, first, last, stream.seen_ns)
        self._line += [draft._replace(rows=0) for draft in drafts] if repeated else drafts
        self.pending_bytes += HEADER_BYTES * len(drafts)

    # Committing

    def commit(self) -> dict[Address, int]:
        """Make durable all that is in line, all or nothing, and return up to where each stream is durable now.

        Raises :class:`SpoolFull`, :class:`SpoolReadOnly`, :class:`SpoolGone` or
        :class:`SpoolFailed`; what is not durable then stays in line, ``marks`` says what is, and
        the commit can be tried again.
        """
        if self._closed:
            raise LocalProtocolError("the spool is closed")
        self._store.tell_again()
        if self._line or self._blob_changed:
            self._store.check_place()
            self._make_room()
            try:
                self._write()
            except SpoolFull:
                # The disk itself is full: what may be dropped makes room for one more attempt.
                if self.limits.policy != DROP_OLDEST or not self._drop(1, keep_newest=True):
                    raise
                self._finish_drop()
                self._write()
            self._limited = ""
        return dict(self.marks)

    def _write(self) -> None:
        """Write what is in line as one commit."""
        store = self._store
        if self._must_rotate():
            store.seal()
        line = [*self._vanished(), *self._line]
        drafts, named = self._with_names(line)
        if self._blob_changed:
            drafts.append(
                Draft(BLOB, NOBODY, 0, 0, 0, payload=self._blob, collected_ns=self._clock_ns)
            )
        if store.active is None:
            self._begin(drafts)
        else:
            if self._state_due:
                drafts.append(self._state_draft(self._blob))
            self._take(drafts, store.write(drafts))
        for stream in named:
            stream.named = stream.name
        self._kept_blob = self._blob
        self._blob_changed = self._state_due = False
        self._line.clear()
        self.pending_bytes = 0
        store.tell()
        self._finish_drop()

    def _begin(self, drafts: list[Draft]) -> None:
        """Begin a segment with a STATE and these records."""
        self._forget_streams({draft.origin for draft in drafts})
        drafts = [self._state_draft(self._kept_blob), *drafts]
        self._take(drafts, self._store.begin(drafts, time.time_ns()))
        for origin in self.marks:
            stream = self._streams[origin]
            stream.named = stream.name
        self._store.vanished.clear()
        self._state_due = False

    def _vanished(self) -> list[Draft]:
        """Return what says that the messages of a deleted segment are lost."""
        return [
            draft
            for index in self._store.vanished
            for key, stream in index.streams.items()
            for draft in lost_drafts(parse_key(key), stream.first, stream.last, self._clock_ns)
        ]

    def _with_names(self, line: list[Draft]) -> tuple[list[Draft], list[Stream]]:
        drafts: list[Draft] = []
        named: list[Stream] = []
        streams = self._streams
        for draft in line:
            stream = streams[draft[1]]
            if stream.name != stream.named and stream not in named:
                named.append(stream)
                drafts.append(
                    Draft(
                        NAME, stream.origin, 0, 0, 0, stream.name.encode(), collected_ns=draft[10]
                    )
                )
            drafts.append(draft)
        return drafts, named

    def _take(self, drafts: list[Draft], offsets: list[int]) -> None:
        """Take note of what has become durable."""
        active = self._store.active
        assert active is not None
        index = active.index
        streams, marks = self._streams, self.marks
        for draft, offset in zip(drafts, offsets, strict=True):
            kind, origin, first, last, count, table, payload, _, _, _, collected_ns = draft
            if kind <= LOST:
                stream = streams[origin]
                if last > stream.high:
                    stream.high = marks[origin] = last
                if kind == LOST:
                    stream.lost += count
                place = (offset, HEADER_BYTES + len(table) + len(payload), collected_ns)
                index.add(kind, stream.key, first, last, count, len(payload), place)
            elif kind == NAME:
                index.names[str(origin)] = table.decode()
            else:
                index.blob = (offset + HEADER_BYTES + len(table), len(payload))
                if kind == STATE:
                    index.add_state(State.unpack(table))

    def _must_rotate(self) -> bool:
        active = self._store.active
        if active is None or not active.index.streams:
            return False
        if active.index.end + self.pending_bytes > self.limits.rotate_bytes:
            return True
        age_ns = time.time_ns() - active.index.created_ns
        return 0 < self.limits.rotate_age_ns <= age_ns

    def _state_draft(self, blob: bytes) -> Draft:
        segments = self._store.sealed
        low = min(segments, default=0)
        streams = tuple(
            StreamState(each.key, each.high, each.dropped, each.lost, each.name, each.seen_ns)
            for each in self._streams.values()
            if each.origin in self.marks
        )
        first = max(self._first, low)
        state = State(
            self.group, streams, self._store.previous, first, self.info.name, self.info.node
        )
        return Draft(
            STATE, NOBODY, 0, 0, len(streams), state.pack(), blob, collected_ns=self._clock_ns
        )

    def _forget_streams(self, wanted: set[Address]) -> None:
        """Leave out of the next STATE the streams that are over and of which nothing is left."""
        before_ns = time.time_ns() - self.limits.forget_after_ns
        held = {key for index in self._indexes() for key in index.streams}
        for origin, stream in list(self._streams.items()):
            settled = (
                stream.appended == stream.high and stream.key not in held and origin not in wanted
            )
            if settled and origin not in self.live and stream.seen_ns < before_ns:
                del self._streams[origin]
                self.marks.pop(origin, None)

    # Limits

    def _make_room(self) -> None:
        """Raise if a limit does not let the line in; trimming and, if that is the policy, dropping come first."""
        limits = self.limits
        if limits.max_age_ns and self._limited == "age":
            self.trim()
            if self._limited == "age":
                raise self._full("age")
        if not limits.max_bytes:
            return
        doomed_bytes = sum(
            index.end for number, index in self._store.sealed.items() if number < self._first
        )
        over_bytes = self._store.used_bytes - doomed_bytes + self.pending_bytes - limits.max_bytes
        if (
            over_bytes > -limits.max_bytes // 16
        ):  # near the limit what a commit has beside its records counts too
            over_bytes += self._state_draft(self._blob).size_bytes + HEADER_BYTES * len(
                self._streams
            )
        if over_bytes <= 0:
            return
        need = need_of(read_readers(self.path))
        over_bytes -= self._delete_passed(need).freed_bytes
        if over_bytes <= 0:
            return
        if limits.policy == DROP_OLDEST:
            self._drop(over_bytes, need)
        elif self._holds_needed(need):
            self._limited = "bytes"
            raise self._full("bytes")
        else:
            # Nobody needs what is left, so one commit may be larger than the limit: it could never
            # come in otherwise.
            self._retire_active(need)

    def _full(self, limit: str) -> SpoolFull:
        what = (
            f"holds {self._store.used_bytes} bytes, {self.pending_bytes} more are waiting, and the limit is "
            f"{self.limits.max_bytes}"
            if limit == "bytes"
            else f"its oldest message that a reader needs is older than the limit of {self.limits.max_age_ns} ns"
        )
        readers = (
            ", ".join(reader.name for reader in read_readers(self.path)) or "none is registered"
        )
        return SpoolFull(
            f"{self.path}: the spool {what}; it goes on when its readers ({readers}) have read on; start them, forget "
            f"one that is gone (`gapless spool forget {self.path} NAME`), or raise the limit",
            self.path,
        )

    def _holds_needed(self, need: Need) -> bool:
        return any(not need.has_passed(index) for index in self._indexes() if index.streams)

    def _drop(
        self, over_bytes: int, need: Need | None = None, *, keep_newest: bool = False
    ) -> bool:
        """Choose the oldest segments to go until ``over_bytes`` are free; they are deleted when that is recorded.

        With ``keep_newest`` they may be deleted at once: the newest has the marks of all.
        """
        need = need or need_of(read_readers(self.path))
        active = self._store.active
        if (
            not keep_newest
            and not self._store.sealed
            and active is not None
            and active.index.streams
        ):
            self._store.seal()
        chosen = False
        newest = (
            max(self._store.sealed, default=0) if keep_newest and self._store.active is None else 0
        )
        for number, index in self._store.sealed.items():
            if over_bytes <= 0 or number == newest:
                break
            if number >= self._first:
                self._count_dropped(index, need)
                self._first = number + 1
                over_bytes -= index.end
                chosen = True
        self._state_due = self._state_due or chosen
        return chosen

    def _count_dropped(self, index: SegmentIndex, need: Need) -> None:
        for key, stream in index.streams.items():
            known = self._streams.get(parse_key(key))
            if known is not None:
                known.dropped += rows_above(stream, need.passed(key))

    def _finish_drop(self) -> None:
        """Delete what is recorded as dropped."""
        for number in [each for each in self._store.sealed if each < self._first]:
            self._store.delete(number)

    # Trimming

    def trim(self) -> Trimmed:
        """Delete the oldest segments that every reader has passed, and keep the limits; seal a segment that is old."""
        if self._closed:
            raise LocalProtocolError("the spool is closed")
        self._lock = self._lock.still_held()
        need = need_of(read_readers(self.path))
        before = sum(stream.dropped for stream in self._streams.values())
        if self._must_rotate():
            self._store.check_place()
            self._store.seal()
            self._begin([])
            self._store.tell()
        trimmed = self._delete_passed(need)
        aged = self._keep_age(need)
        after = sum(stream.dropped for stream in self._streams.values())
        return Trimmed(
            trimmed.segments + aged.segments, trimmed.freed_bytes + aged.freed_bytes, after - before
        )

    def _delete_passed(self, need: Need) -> Trimmed:
        segments = freed_bytes = 0
        newest = None if self._store.active is not None else max(self._store.sealed, default=None)
        for number, index in list(self._store.sealed.items()):
            if number == newest or not need.has_passed(index):
                break
            freed_bytes += self._store.delete(number)
            segments += 1
        return Trimmed(segments, freed_bytes)

    def _retire_active(self, need: Need) -> None:
        """Put a fresh segment in the place of an active one that every reader has passed."""
        active = self._store.active
        if active is not None and active.index.streams:
            self._store.seal()
            self._begin([])
            self._store.tell()
        self._delete_passed(need)

    def _keep_age(self, need: Need) -> Trimmed:
        limit_ns = self.limits.max_age_ns
        if not limit_ns:
            return Trimmed()
        oldest_ns = time.time_ns() - limit_ns
        if self.limits.policy != DROP_OLDEST:
            late = any(0 < need.first_needed_ns(index) < oldest_ns for index in self._indexes())
            self._limited = "age" if late else ("" if self._limited == "age" else self._limited)
            return Trimmed()
        doomed = 0
        for index in self._store.sealed.values():
            if index.collected_ns >= oldest_ns:
                break
            doomed += index.end
        if not doomed or not self._drop(doomed, need):
            return Trimmed()
        count = sum(1 for number in self._store.sealed if number < self._first)
        self._write()
        return Trimmed(count, doomed)

    def usage(self) -> Usage:
        """Return what the spool holds now, and how far behind each reader is."""
        indexes = [index for index in self._indexes() if index.streams]
        used_bytes = self._store.used_bytes
        limit = self.limits.max_bytes
        oldest_ns = min((index.created_ns for index in indexes), default=0)
        return Usage(
            used_bytes=used_bytes,
            pending_bytes=self.pending_bytes,
            room_bytes=max(0, limit - used_bytes - self.pending_bytes) if limit else None,
            segments=len(self._store.sealed) + (self._store.active is not None),
            oldest_age_ns=max(0, time.time_ns() - oldest_ns) if oldest_ns else 0,
            limited=self._limited,
            lag={reader.name: unread_rows(reader, indexes) for reader in read_readers(self.path)},
            dropped=sum(stream.dropped for stream in self._streams.values()),
        )

    def _indexes(self) -> list[SegmentIndex]:
        active = self._store.active
        return [*self._store.sealed.values(), *([active.index] if active is not None else [])]

    # Opening and closing

    def _recover(self) -> None:
        self.recovered = recover(self._store)
        newest = True
        for index in reversed(self._indexes()):
            if newest and index.blob is not None:
                self._blob = self._kept_blob = self._read_blob(index)
                newest = False
            if index.latest is not None:
                break
        from_state = [index for index in self._indexes() if index.latest is not None]
        base = from_state[-1].number if from_state else 0
        for index in self._indexes():
            self._clock_ns = max(self._clock_ns, index.collected_ns)
            if index.number >= base:
                self._learn(index)
        self._finish_drop()
        if self._store.active is None and self._store.sealed:
            self._begin([])
        self._store.tell()

    def _learn(self, index: SegmentIndex) -> None:
        if index.latest is not None:
            self._first = index.latest.first
            for each in index.latest.streams:
                stream = self._stream(parse_key(each.key), each.high)
                stream.high = max(stream.high, each.high)
                stream.dropped, stream.lost, stream.seen_ns = each.dropped, each.lost, each.seen_ns
                stream.name = stream.named = each.name
        for key, held in index.streams.items():
            stream = self._stream(parse_key(key), held.first - 1)
            stream.high = max(stream.high, held.last)
            stream.seen_ns = max(stream.seen_ns, held.collected_ns)
        for key, name in index.names.items():
            named = self._streams.get(parse_key(key))
            if named is not None:
                named.name = named.named = name
        for stream in self._streams.values():
            stream.appended = self.marks[stream.origin] = stream.high

    def _stream(self, origin: Address, high: int) -> Stream:
        stream = self._streams.get(origin)
        if stream is None:
            stream = self._streams[origin] = Stream(origin, high)
        return stream

    def _read_blob(self, index: SegmentIndex) -> bytes:
        if index.blob is None or not index.blob[1]:
            return b""
        path = segment_path(self.path, index.number)
        try:
            with path.open("rb") as file:
                return os.pread(file.fileno(), index.blob[1], index.blob[0])
        except OSError as error:
            raise from_os_error(error, path, "reading what the collector keeps") from error

    def close(self) -> None:
        """Commit, and let the lock go; if the commit fails, the lock goes and the error is raised."""
        if self._closed:
            return
        try:
            self.commit()
        finally:
            self._closed = True
            self._store.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _now(self, given_ns: int | None) -> int:
        # Times within a spool never go back, so that a time is found by halving.
        self._clock_ns = max(self._clock_ns, time.time_ns() if given_ns is None else given_ns)
        return self._clock_ns

    def _new_stream(self, delivery: Delivery) -> Stream:
        if delivery.kind != GROUP:
            raise LocalProtocolError(
                f"a spool keeps messages to the group; this one is of the kind {delivery.kind!r}"
            )
        stream = self._streams[delivery.origin] = Stream(delivery.origin, delivery.first - 1)
        return stream


def _whole(delivery: Delivery, view: int, now_ns: int) -> Draft:
    """Return the record of a message that travelled in pieces."""
    content: Any = delivery.content
    plain = isinstance(content, (bytes, bytearray, memoryview))
    knows = delivery if plain else content
    flags, of_view, sent_ns = (
        int(getattr(knows, name, 0)) for name in ("flags", "view", "sent_ns")
    )
    payload = bytes(content) if plain else content.payload
    origin, first, last = delivery.origin, delivery.first, delivery.last
    return Draft(
        MESSAGE, origin, first, last, 1, b"", payload, flags, of_view or view, sent_ns, now_ns
    )
