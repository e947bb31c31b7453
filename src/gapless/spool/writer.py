"""The writer of a spool.

On appending: a run is queued unchanged, without work for each message. Messages already in the
spool are left out.

On commit: the whole queue becomes durable with one write and one fdatasync; then the ``committed``
file tells readers how far to read.

On a failure: the queue stays, and the commit can be retried.

On opening: the remains of a crash are repaired (see ``recovery.py``).

On trimming: the oldest segments passed by every reader are deleted; the newest segment stays,
because it has all marks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gapless.errors import LocalProtocolError
from gapless.identity import Address
from gapless.protocol.ready import GROUP, Delivery
from gapless.run import Run
from gapless.spool.consumer_registry import read_consumers
from gapless.spool.encryption import SpoolKeys
from gapless.spool.errors import SpoolFull, SpoolGap, SpoolMismatch, from_os_error
from gapless.spool.format import (
    BLOB,
    HEADER_BYTES,
    LOST,
    MESSAGE,
    NAME,
    PREAMBLE_BYTES,
    RUN,
    STATE,
    RecordDraft,
    StateRecord,
    StreamState,
    make_lost_drafts,
    parse_stream_key,
)
from gapless.spool.index import SegmentIndex
from gapless.spool.limits import DROP_OLDEST, SpoolLimits
from gapless.spool.lock import SpoolLock
from gapless.spool.recovery import RecoveryResult, recover
from gapless.spool.retention import (
    ConsumerPositions,
    SpoolUsage,
    TrimResult,
    consumer_positions,
    rows_after,
    unread_rows,
)
from gapless.spool.segment_file import SegmentFile, SpoolInfo, segment_path
from gapless.spool.segment_store import (
    SegmentStore,
    check_safe,
    create_directories,
    read_or_create_info,
)

if TYPE_CHECKING:
    from types import TracebackType

    from gapless.keys.keyring import Keyring

__all__ = ["SpoolUsage", "SpoolWriter", "TrimResult"]

NO_ORIGIN = Address(0, 0)
"""The origin of records without a stream."""


class WriterStream:
    """State of a stream: ``appended`` is the last pending seqno, ``high`` the last durable."""

    __slots__ = (
        "appended",
        "dropped",
        "high",
        "key",
        "lost",
        "name",
        "origin",
        "recorded_name",
        "seen_ns",
    )

    def __init__(self, origin: Address, high: int) -> None:
        self.origin = origin
        self.key = str(origin)
        self.name = self.recorded_name = ""
        self.high = self.appended = high
        self.dropped = self.lost = self.seen_ns = 0


class SpoolWriter:
    """The only writer of a spool: open the spool, append deliveries, commit. Not thread-safe.

    ``marks`` has the last durable seqno of each stream. ``blob`` is data of the caller: the next
    commit makes the blob durable together with the messages appended before, all or nothing.
    ``committed_messages`` and ``committed_bytes`` count what this writer has made durable,
    ``pending_messages`` the queue.
    ``live`` are the origins whose streams must not be forgotten, ``recovered`` the findings of
    opening.
    """

    def __init__(
        self,
        root: Path,
        info: SpoolInfo,
        limits: SpoolLimits,
        lock: SpoolLock,
        *,
        sync: bool,
        keys: SpoolKeys | None = None,
    ) -> None:
        self.path = root
        self.info = info
        self.limits = limits
        self.recovered = RecoveryResult()
        self.marks: dict[Address, int] = {}
        self.live_origins: frozenset[Address] | set[Address] = frozenset()
        self.pending_bytes = self.pending_messages = 0
        self.committed_messages = self.committed_bytes = 0
        self._lock = lock
        self._store = SegmentStore(root, info, sync=sync, keys=keys)
        self._record_overhead_bytes = HEADER_BYTES + self._store.tag_bytes
        self._streams: dict[Address, WriterStream] = {}
        self._pending: list[RecordDraft] = []
        self._blob = b""
        self._blob_changed = False
        self._clock_ns = 0
        self._first_segment = 0
        self._state_record_due = False
        self._durable_blob = b""
        self._limit_reached = ""
        self._closed = False

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        group: str,
        limits: SpoolLimits | None = None,
        sync: bool = True,
        create: bool = True,
        name: str = "",
        node: int | None = None,
        keys: SpoolKeys | Keyring | Path | str | None = None,
    ) -> Self:
        """Lock the spool at ``path``, repair the remains of a crash, and get ready to append.

        Args:
            path: The folder of the spool.
            group: The group of the messages; an existing spool must belong to the same group.
            limits: The limits of the spool; None for the defaults.
            sync: Whether commits wait for the disk. If not, a power failure may lose messages; a
                killed process loses none.
            create: Whether to create a missing spool.
            name: The durable name of the collector of a new spool.
            node: The node id of the collector of a new spool; drawn if None.
            keys: The keyring, or its file, whose sealing key encrypts all commits from now on; an
                encrypted spool cannot be continued without keys.

        Raises:
            SpoolLocked: Another process writes to the spool.
            SpoolMismatch: The spool belongs to another group or collector.
            SpoolKeyError: The spool is encrypted, and a key is missing or wrong.
            ConfigError: The sealing key does not encrypt, or this Python lacks its cipher.
        """
        root = Path(path)
        found = SpoolKeys.of(keys)
        if found is not None:
            found.sealing()
        if create:
            create_directories(root)
        elif not root.is_dir():
            raise SpoolMismatch(f"{root}: there is no spool here; pass the folder of a spool", root)
        check_safe(root)
        lock = SpoolLock(root)
        try:
            info = read_or_create_info(root, group, name, node, create=create)
            spool = cls(root, info, limits or SpoolLimits(), lock, sync=sync, keys=found)
            spool._recover()
        except BaseException:
            lock.release()
            raise
        return spool

    @property
    def group(self) -> str:
        """The group of the collected messages."""
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
        """Queue a delivery for the next commit.

        Messages already in the spool are left out. A new stream may start at any seqno.

        Args:
            delivery: The delivery of the member.
            name: The durable name of the origin.
            view: The view number, used if the delivery has none.
            collected_ns: The collection time; None for now.

        Raises:
            SpoolGap: Earlier messages are missing, and ``append_lost`` has not recorded them as
                lost.
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
                f"{stream.key}: {first}..{last} does not follow {stream.appended}; append "
                f"{expected}..{first - 1} first, or record them with append_lost"
            )
        now_ns = self._now(collected_ns)
        if isinstance(content, Run):
            run = content if first == expected else content.part(expected, last)
            fields = (run.flags, run.view or view, run.sent_ns, now_ns)
            draft = RecordDraft._make(
                (RUN, origin, run.first, last, run.count, run.lengths, run.payload, *fields)
            )
        else:
            draft = _fragmented_message_draft(delivery, view, now_ns)
        stream.appended = last
        stream.seen_ns = now_ns
        if name:
            stream.name = name
        self._pending.append(draft)
        self.pending_bytes += self._record_overhead_bytes + len(draft[5]) + len(draft[6])
        self.pending_messages += draft[4]

    def last_appended(self, origin: Address) -> int | None:
        """Return the last pending or durable seqno of a stream; None for a new stream."""
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
        """Record that messages ``first .. last`` of a stream will never arrive.

        Stored messages stay. With ``repeated`` the messages do not count as lost: the spool has the
        same messages in another stream.
        """
        if not 0 < first <= last:
            raise LocalProtocolError(
                f"{first}..{last} is not a range of seqnos: expected 0 < first <= last"
            )
        stream = self._streams.get(origin)
        if stream is None:
            stream = self._streams[origin] = WriterStream(origin, first - 1)
        if last <= stream.appended:
            return
        if first > stream.appended + 1:
            raise SpoolGap(
                f"{stream.key}: {first}..{last} is recorded as lost, but "
                f"{stream.appended + 1}..{first - 1} is missing: append or record it first"
            )
        first = stream.appended + 1
        stream.appended = last
        stream.seen_ns = self._now(collected_ns)
        drafts = make_lost_drafts(origin, first, last, stream.seen_ns)
        self._pending += [draft._replace(rows=0) for draft in drafts] if repeated else drafts
        self.pending_bytes += self._record_overhead_bytes * len(drafts)

    # Committing

    def commit(self) -> dict[Address, int]:
        """Make all pending messages durable, all or nothing.

        After an error the rest stays queued, ``marks`` has the durable positions, and the commit
        can be retried.

        Returns:
            The last durable seqno of each stream.

        Raises:
            SpoolFull: The disk or a limit has no room.
            SpoolReadOnly: The file system is read-only.
            SpoolGone: The folder or the segment was deleted, moved or replaced.
            SpoolFailed: The disk reported another error.
        """
        if self._closed:
            raise LocalProtocolError("the spool is closed")
        self._store.retry_publish()
        if self._pending or self._blob_changed:
            self._store.check_active_segment()
            self._enforce_limits()
            try:
                self._write()
            except SpoolFull:
                # The disk itself is full: what may be dropped makes room for one more attempt.
                if self.limits.policy != DROP_OLDEST or not self._select_drops(1, keep_newest=True):
                    raise
                self._delete_dropped()
                self._write()
            self._limit_reached = ""
        return dict(self.marks)

    def _write(self) -> None:
        """Write the queue as a single commit."""
        store = self._store
        if self._must_rotate():
            store.seal()
        line = [*self._lost_segment_drafts(), *self._pending]
        drafts, named = self._with_names(line)
        if self._blob_changed:
            drafts.append(
                RecordDraft(
                    BLOB, NO_ORIGIN, 0, 0, 0, payload=self._blob, collected_ns=self._clock_ns
                )
            )
        if store.active is None:
            self._begin_segment(drafts)
        else:
            if self._state_record_due:
                drafts.append(self._state_draft(self._blob))
            self._apply_commit(drafts, store.append_commit(drafts))
        for stream in named:
            stream.recorded_name = stream.name
        self._durable_blob = self._blob
        self._blob_changed = self._state_record_due = False
        self._pending.clear()
        self.pending_bytes = self.pending_messages = 0
        store.publish_committed()
        self._delete_dropped()

    def _begin_segment(self, drafts: list[RecordDraft]) -> None:
        """Begin a segment with a STATE and the given records."""
        self._forget_streams({draft.origin for draft in drafts})
        drafts = [self._state_draft(self._durable_blob), *drafts]
        self._apply_commit(drafts, self._store.begin_segment(drafts, time.time_ns()))
        for origin in self.marks:
            stream = self._streams[origin]
            stream.recorded_name = stream.name
        self._store.lost_segments.clear()
        self._state_record_due = False

    def _lost_segment_drafts(self) -> list[RecordDraft]:
        """Return records that report the messages of a deleted segment as lost."""
        return [
            draft
            for index in self._store.lost_segments
            for key, stream in index.streams.items()
            for draft in make_lost_drafts(
                parse_stream_key(key), stream.first, stream.last, self._clock_ns
            )
        ]

    def _with_names(self, line: list[RecordDraft]) -> tuple[list[RecordDraft], list[WriterStream]]:
        drafts: list[RecordDraft] = []
        named: list[WriterStream] = []
        streams = self._streams
        for draft in line:
            stream = streams[draft[1]]
            if stream.name != stream.recorded_name and stream not in named:
                named.append(stream)
                drafts.append(
                    RecordDraft(
                        NAME, stream.origin, 0, 0, 0, stream.name.encode(), collected_ns=draft[10]
                    )
                )
            drafts.append(draft)
        return drafts, named

    def _apply_commit(self, drafts: list[RecordDraft], offsets: list[int]) -> None:
        """Record the newly durable positions."""
        active = self._store.active
        assert active is not None
        index = active.index
        streams, marks, tag_bytes = self._streams, self.marks, self._store.tag_bytes
        for draft, offset in zip(drafts, offsets, strict=True):
            kind, origin, first, last, count, table, payload, _, _, _, collected_ns = draft
            if kind <= LOST:
                stream = streams[origin]
                if last > stream.high:
                    stream.high = marks[origin] = last
                if kind == LOST:
                    stream.lost += count
                else:
                    self.committed_messages += count
                    self.committed_bytes += len(payload)
                size_bytes = HEADER_BYTES + len(table) + len(payload) + tag_bytes
                place = (offset, size_bytes, collected_ns)
                index.add_record(kind, stream.key, first, last, count, len(payload), place)
            elif kind == NAME:
                index.names[str(origin)] = table.decode()
            else:
                index.blob = (offset + HEADER_BYTES + len(table), len(payload))
                if kind == STATE:
                    index.add_state(StateRecord.unpack(table))

    def _must_rotate(self) -> bool:
        active = self._store.active
        if active is None or not active.index.streams:
            return False
        if active.index.end + self.pending_bytes > self.limits.rotate_bytes:
            return True
        age_ns = time.time_ns() - active.index.created_ns
        return 0 < self.limits.rotate_age_ns <= age_ns

    def _state_draft(self, blob: bytes) -> RecordDraft:
        segments = self._store.sealed
        low = min(segments, default=0)
        streams = tuple(
            StreamState(each.key, each.high, each.dropped, each.lost, each.name, each.seen_ns)
            for each in self._streams.values()
            if each.origin in self.marks
        )
        first = max(self._first_segment, low)
        state = StateRecord(
            self.group, streams, self._store.previous, first, self.info.name, self.info.node
        )
        return RecordDraft(
            STATE, NO_ORIGIN, 0, 0, len(streams), state.pack(), blob, collected_ns=self._clock_ns
        )

    def _forget_streams(self, wanted: set[Address]) -> None:
        """Omit ended streams without messages from the next STATE."""
        before_ns = time.time_ns() - self.limits.forget_after_ns
        held = {key for index in self._indexes() for key in index.streams}
        for origin, stream in list(self._streams.items()):
            settled = (
                stream.appended == stream.high and stream.key not in held and origin not in wanted
            )
            if settled and origin not in self.live_origins and stream.seen_ns < before_ns:
                del self._streams[origin]
                self.marks.pop(origin, None)

    # Limits

    def _enforce_limits(self) -> None:
        """Raise if a limit refuses the pending messages; trim first, drop if the policy allows."""
        limits = self.limits
        if limits.max_age_ns and self._limit_reached == "age":
            self.trim()
            if self._limit_reached == "age":
                raise self._full_error("age")
        if not limits.max_bytes:
            return
        doomed_bytes = sum(
            index.end
            for number, index in self._store.sealed.items()
            if number < self._first_segment
        )
        over_bytes = self._store.used_bytes - doomed_bytes + self.pending_bytes - limits.max_bytes
        if (
            over_bytes > -limits.max_bytes // 16
        ):  # near the limit what a commit has beside its records counts too
            over_bytes += self._state_draft(self._blob).size_bytes + self._store.key_record_bytes
            over_bytes += self._record_overhead_bytes * (1 + len(self._streams)) - HEADER_BYTES
        if over_bytes <= 0:
            return
        need = consumer_positions(read_consumers(self.path))
        over_bytes -= self._delete_consumed(need).freed_bytes
        if over_bytes <= 0:
            return
        if limits.policy == DROP_OLDEST:
            self._select_drops(over_bytes, need)
        elif self._has_unread_segments(need):
            self._limit_reached = "bytes"
            raise self._full_error("bytes")
        else:
            # No reader needs the rest, so one commit may exceed the limit: otherwise it could never
            # be stored.
            self._replace_active(need)

    def _full_error(self, limit: str) -> SpoolFull:
        what = (
            f"the spool holds {self._store.used_bytes} bytes, {self.pending_bytes} more are "
            f"waiting, and the limit is {self.limits.max_bytes}"
            if limit == "bytes"
            else f"the oldest unread message is older than the limit of {self.limits.max_age_ns} ns"
        )
        readers = (
            ", ".join(reader.name for reader in read_consumers(self.path)) or "none is registered"
        )
        return SpoolFull(
            f"{self.path}: {what}; commits wait until the readers ({readers}) advance; start the "
            f"readers, forget a removed reader (`gapless spool forget {self.path} NAME`), or "
            "raise the limit",
            self.path,
        )

    def _has_unread_segments(self, need: ConsumerPositions) -> bool:
        return any(not need.is_consumed(index) for index in self._indexes() if index.streams)

    def _select_drops(
        self, over_bytes: int, need: ConsumerPositions | None = None, *, keep_newest: bool = False
    ) -> bool:
        """Choose the oldest segments until ``over_bytes`` are free; delete them once recorded.

        With ``keep_newest`` the segments may be deleted at once: the newest has the marks of all.
        """
        need = need or consumer_positions(read_consumers(self.path))
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
            if number >= self._first_segment:
                self._count_dropped(index, need)
                self._first_segment = number + 1
                over_bytes -= index.end
                chosen = True
        self._state_record_due = self._state_record_due or chosen
        return chosen

    def _count_dropped(self, index: SegmentIndex, need: ConsumerPositions) -> None:
        for key, stream in index.streams.items():
            known = self._streams.get(parse_stream_key(key))
            if known is not None:
                known.dropped += rows_after(stream, need.min_position(key))

    def _delete_dropped(self) -> None:
        """Delete the segments recorded as dropped."""
        for number in [each for each in self._store.sealed if each < self._first_segment]:
            self._store.delete(number)

    # Trimming

    def trim(self) -> TrimResult:
        """Delete the oldest segments passed by every reader; seal an old segment."""
        if self._closed:
            raise LocalProtocolError("the spool is closed")
        self._lock = self._lock.ensure_held()
        need = consumer_positions(read_consumers(self.path))
        before = sum(stream.dropped for stream in self._streams.values())
        if self._must_rotate():
            self._store.check_active_segment()
            self._store.seal()
            self._begin_segment([])
            self._store.publish_committed()
        trimmed = self._delete_consumed(need)
        aged = self._enforce_max_age(need)
        after = sum(stream.dropped for stream in self._streams.values())
        return TrimResult(
            trimmed.segments + aged.segments, trimmed.freed_bytes + aged.freed_bytes, after - before
        )

    def _delete_consumed(self, need: ConsumerPositions) -> TrimResult:
        segments = freed_bytes = 0
        newest = None if self._store.active is not None else max(self._store.sealed, default=None)
        for number, index in list(self._store.sealed.items()):
            if number == newest or not need.is_consumed(index):
                break
            freed_bytes += self._store.delete(number)
            segments += 1
        return TrimResult(segments, freed_bytes)

    def _replace_active(self, need: ConsumerPositions) -> None:
        """Replace an active segment passed by every reader."""
        active = self._store.active
        if active is not None and active.index.streams:
            self._store.seal()
            self._begin_segment([])
            self._store.publish_committed()
        self._delete_consumed(need)

    def _enforce_max_age(self, need: ConsumerPositions) -> TrimResult:
        limit_ns = self.limits.max_age_ns
        if not limit_ns:
            return TrimResult()
        oldest_ns = time.time_ns() - limit_ns
        if self.limits.policy != DROP_OLDEST:
            late = any(0 < need.oldest_unread_ns(index) < oldest_ns for index in self._indexes())
            self._limit_reached = (
                "age" if late else ("" if self._limit_reached == "age" else self._limit_reached)
            )
            return TrimResult()
        doomed = 0
        for index in self._store.sealed.values():
            if index.collected_ns >= oldest_ns:
                break
            doomed += index.end
        if not doomed or not self._select_drops(doomed, need):
            return TrimResult()
        count = sum(1 for number in self._store.sealed if number < self._first_segment)
        self._write()
        return TrimResult(count, doomed)

    def usage(self) -> SpoolUsage:
        """Return the content of the spool now, and the lag of each reader."""
        indexes = [index for index in self._indexes() if index.streams]
        used_bytes = self._store.used_bytes
        limit = self.limits.max_bytes
        oldest_ns = min((index.created_ns for index in indexes), default=0)
        return SpoolUsage(
            messages=sum(stream.rows for index in indexes for stream in index.streams.values()),
            used_bytes=used_bytes,
            pending_bytes=self.pending_bytes,
            room_bytes=max(0, limit - used_bytes - self.pending_bytes) if limit else None,
            segments=len(self._store.sealed) + (self._store.active is not None),
            oldest_age_ns=max(0, time.time_ns() - oldest_ns) if oldest_ns else 0,
            limited=self._limit_reached,
            lag={reader.name: unread_rows(reader, indexes) for reader in read_consumers(self.path)},
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
                self._blob = self._durable_blob = self._read_blob(index)
                newest = False
            if index.latest_state is not None:
                break
        from_state = [index for index in self._indexes() if index.latest_state is not None]
        base = from_state[-1].number if from_state else 0
        for index in self._indexes():
            self._clock_ns = max(self._clock_ns, index.collected_ns)
            if index.number >= base:
                self._restore_streams(index)
        self._delete_dropped()
        active = self._store.active
        if active is not None and self._store.keys and not active.index.is_encrypted:
            # Within a segment either all commits are encrypted or none.
            self._store.seal()
        if self._store.active is None and self._store.sealed:
            self._begin_segment([])
        self._store.publish_committed()

    def _restore_streams(self, index: SegmentIndex) -> None:
        if index.latest_state is not None:
            self._first_segment = index.latest_state.first
            for each in index.latest_state.streams:
                stream = self._stream(parse_stream_key(each.key), each.high)
                stream.high = max(stream.high, each.high)
                stream.dropped, stream.lost, stream.seen_ns = each.dropped, each.lost, each.seen_ns
                stream.name = stream.recorded_name = each.name
        for key, held in index.streams.items():
            stream = self._stream(parse_stream_key(key), held.first - 1)
            stream.high = max(stream.high, held.last)
            stream.seen_ns = max(stream.seen_ns, held.collected_ns)
        for key, name in index.names.items():
            named = self._streams.get(parse_stream_key(key))
            if named is not None:
                named.name = named.recorded_name = name
        for stream in self._streams.values():
            stream.appended = self.marks[stream.origin] = stream.high

    def _stream(self, origin: Address, high: int) -> WriterStream:
        stream = self._streams.get(origin)
        if stream is None:
            stream = self._streams[origin] = WriterStream(origin, high)
        return stream

    def _read_blob(self, index: SegmentIndex) -> bytes:
        if index.blob is None or not index.blob[1]:
            return b""
        path = segment_path(self.path, index.number)
        try:
            with SegmentFile(path, index.number, self.info.spool_id, self._store.keys) as file:
                if not index.is_encrypted:
                    return file.read(index.blob[0], index.blob[1])
                held = [
                    header
                    for header in file.headers(PREAMBLE_BYTES, index.end)
                    if header.kind in {STATE, BLOB}
                ]
                return file.read_body(held[-1])[held[-1].table_bytes :]
        except OSError as error:
            raise from_os_error(error, path, "reading what the collector keeps") from error

    def close(self) -> None:
        """Commit and release the lock; if the commit fails, release the lock and raise."""
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

    def _new_stream(self, delivery: Delivery) -> WriterStream:
        if delivery.kind != GROUP:
            raise LocalProtocolError(
                f"a spool stores only messages to the group, not of the kind {delivery.kind!r}"
            )
        stream = self._streams[delivery.origin] = WriterStream(delivery.origin, delivery.first - 1)
        return stream


def _fragmented_message_draft(delivery: Delivery, view: int, now_ns: int) -> RecordDraft:
    """Return the record of a fragmented message."""
    content: Any = delivery.content
    plain = isinstance(content, (bytes, bytearray, memoryview))
    knows = delivery if plain else content
    flags, of_view, sent_ns = (
        int(getattr(knows, name, 0)) for name in ("flags", "view", "sent_ns")
    )
    payload = bytes(content) if plain else content.payload
    origin, first, last = delivery.origin, delivery.first, delivery.last
    return RecordDraft(
        MESSAGE, origin, first, last, 1, b"", payload, flags, of_view or view, sent_ns, now_ns
    )
