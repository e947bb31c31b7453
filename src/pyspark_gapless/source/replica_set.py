"""The replicas of a spool, read as a single spool: each seqno comes from a replica with the seqno.

Independent collectors fill the replicas, so the progress of streams differs between replicas. A
missing folder is waited for; a currently unreadable folder is left out as long as another folder
can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gapless.logger import logger_of
from gapless.spool import (
    Consumer,
    Hole,
    SpoolError,
    SpoolKeys,
    SpoolMismatch,
    SpoolReader,
    consumer_registry,
)
from gapless.spool.index import HOLE_LOST, HOLE_MISSING, HOLE_REPEATED, SegmentIndex
from gapless.spool.segment_file import folder_version, foreign_entries
from pyspark_gapless.source.offsets import (
    DataLossError,
    Digest,
    ReplicaSpan,
    cover,
    fair_shares,
    loss_message,
    merge_digests,
)
from pyspark_gapless.source.partition_planner import (
    SegmentRange,
    SeqnoRanges,
    pack,
    partition_count,
    segment_ranges,
)

log = logger_of("spark")

LostRanges = dict[str, list[tuple[int, int]]]
"""The seqnos of each stream that will never arrive, as first and last, in order."""


class ReplicaSet:
    """Some spools of a group; all methods answer from the last ``refresh``."""

    def __init__(self, paths: Sequence[str], keys_path: str = "") -> None:
        self.keys_path = keys_path
        self._keys = SpoolKeys(keys_path) if keys_path else None
        self.paths = [Path(path) for path in paths]
        self.spool_readers: list[SpoolReader | None] = [None] * len(self.paths)
        self.is_complete = False
        self._versions: list[tuple[int, int] | None] = [None] * len(self.paths)
        self._warned: dict[int, str] = {}
        self._low: list[Digest] = []
        self._high: list[Digest] = []
        self._lost: list[LostRanges] = []
        self._never_collected: LostRanges = {}
        self._damaged: LostRanges = {}
        self._dropped: list[Digest] = []

    def refresh(self) -> None:
        """Refresh all replicas; raises if none can be read and none is still to be created."""
        errors: list[SpoolError] = []
        waiting = 0
        for at, path in enumerate(self.paths):
            try:
                found = self._open(at, path)
                if found is None:
                    waiting += 1
                else:
                    found.refresh()
                self._warned.pop(at, None)
            except SpoolError as error:
                self.spool_readers[at] = None
                errors.append(error)
                self._warn_once(at, f"a replica is left out: {error}")
        readable = [view for view in self.spool_readers if view is not None]
        if errors and not readable and not waiting:
            raise errors[0]
        groups = {view.group: view.path for view in readable}
        if len(groups) > 1:
            told = ", ".join(f"{path} has {group!r}" for group, path in groups.items())
            raise SpoolMismatch(
                f"replicas must belong to the same group: {told}; name only spools "
                "of the same group"
            )
        self.is_complete = len(readable) == len(self.spool_readers) and not any(
            view.is_behind for view in readable
        )
        self._low = [{} if view is None else view.low() for view in self.spool_readers]
        self._high = [{} if view is None else view.high() for view in self.spool_readers]
        holes = [[] if view is None else view.lost() for view in self.spool_readers]
        self._lost = [_by_stream(found) for found in holes]
        every = [hole for found in holes for hole in found]
        # Who cannot be asked may have what the others have not; what is repeated is in another
        # stream of the same one.
        surely = (
            {HOLE_LOST, HOLE_REPEATED}
            if len(readable) == len(self.spool_readers)
            else {HOLE_REPEATED}
        )
        self._never_collected = _by_stream(hole for hole in every if hole.reason in surely)
        self._damaged = _by_stream(hole for hole in every if hole.reason == HOLE_MISSING)
        self._dropped = [{} if view is None else view.dropped() for view in self.spool_readers]

    def _open(self, at: int, path: Path) -> SpoolReader | None:
        try:
            version = folder_version(path)
        except (FileNotFoundError, NotADirectoryError):
            self.spool_readers[at] = None
            _check_may_appear(path)
            return None
        except OSError as error:
            raise SpoolError(f"{path}: cannot be read: {error.strerror or error}", path) from error
        # A folder that was deleted and created again is another spool, even at the same path.
        view = self.spool_readers[at]
        if view is None or self._versions[at] != version:
            view = self.spool_readers[at] = SpoolReader(path, keys=self._keys)
            self._versions[at] = version
        return view

    def _warn_once(self, at: int, what: str) -> None:
        if self._warned.get(at) != what:
            log.warning("%s", what)
            self._warned[at] = what

    @property
    def group(self) -> str:
        """The group of the spools, empty as long as none is there."""
        return next((view.group for view in self.spool_readers if view is not None), "")

    @property
    def have_sink_rows(self) -> bool:
        """Whether a collector has stored rows of a Spark sink in any replica."""
        return any(view is not None and view.has_sink_rows for view in self.spool_readers)

    def low(self) -> Digest:
        """For each stream the seqno before the first seqno of any replica."""
        return merge_digests(self._low, highest=False)

    def high(self) -> Digest:
        """For each stream the last seqno of any replica."""
        return merge_digests(self._high, highest=True)

    def names(self) -> dict[str, str]:
        """For each stream the durable name of the origin, if any."""
        found: dict[str, str] = {}
        for view in self.spool_readers:
            if view is not None:
                found |= view.names()
        return found

    def at_time(self, when_ns: int) -> Digest:
        """The digest before all messages collected at or after a time."""
        return merge_digests(
            (view.at_time(when_ns) for view in self.spool_readers if view is not None),
            highest=False,
        )

    def origin_filter(self, origins: Sequence[str]) -> Callable[[str], bool]:
        """Return a predicate for streams of ``origins``: stream keys, nodes or durable names."""
        if not origins:
            return lambda _: True
        wanted, names = set(origins), self.names()
        return lambda key: bool({key, key.partition(".")[0], names.get(key)} & wanted)

    # How far to go

    def admit(
        self, start: Digest, end: Digest, max_rows: int | None, max_bytes: int | None
    ) -> Digest:
        """Return a position from ``start`` towards ``end`` within the limits, fair to streams."""
        if max_rows is None and max_bytes is None:
            return end
        groups: dict[int, Digest] = {}
        waiting: Digest = {}
        admitted = dict(start)
        for key, upto in end.items():
            passed = self.first_unread_after(key, start)
            pieces = cover(passed, upto, self.spans(key)).ranges
            if not pieces and upto > passed:
                admitted[key] = upto  # no rows: only repeated or lost messages are left
            elif pieces:
                replica, above, until = pieces[0]
                groups.setdefault(replica, {})[key] = until
                waiting[str(replica)] = waiting.get(str(replica), 0) + until - above
        rows = {} if max_rows is None else fair_shares(waiting, max_rows)
        sizes = (
            {} if max_bytes is None else fair_shares(dict.fromkeys(waiting, max_bytes), max_bytes)
        )
        for replica, wanted in groups.items():
            view = self.spool_readers[replica]
            assert view is not None, "a replica that covers something can be read"
            admitted |= view.admit(
                {key: self.first_unread_after(key, start) for key in wanted},
                wanted,
                max_rows=rows.get(str(replica)),
                max_bytes=sizes.get(str(replica)),
            )
        return admitted

    def first_unread_after(self, key: str, start: Mapping[str, int]) -> int:
        """Return the last passed seqno of a stream."""
        if key in start:
            return start[key]
        return min((low[key] for low in self._low if key in low), default=0)

    def spans(self, key: str) -> list[ReplicaSpan]:
        """Return the spans of a stream in each replica; lost seqnos separate spans."""
        found: list[ReplicaSpan] = []
        for at, (low, high) in enumerate(zip(self._low, self._high, strict=True)):
            if key not in high:
                continue
            above = low[key]
            for first, last in self._lost[at].get(key, ()):
                if first - 1 > above:
                    found.append(ReplicaSpan(at, above, min(first - 1, high[key])))
                above = max(above, last)
            if above < high[key]:
                found.append(ReplicaSpan(at, above, high[key]))
        return found

    # What to read

    def plan(
        self,
        start: Digest,
        end: Digest,
        *,
        partitions: tuple[int, int],
        fail_on_data_loss: bool = True,
        never_collected: LostRanges | None = None,
    ) -> list[list[SegmentRange]]:
        """Plan the partitions with all messages above ``start`` up to ``end``.

        ``never_collected`` are messages that will never arrive, if known better than from replicas.
        """
        wanted: dict[tuple[int, int], SeqnoRanges] = {}
        holes: dict[str, list[tuple[int, int]]] = {}
        for key, upto in sorted(end.items()):
            above = self.first_unread_after(key, start)
            if upto <= above:
                continue
            found = cover(above, upto, self.spans(key))
            missing = [
                hole for hole in found.holes if not self._known_lost(key, hole, never_collected)
            ]
            missing += self._dropped_before(key, start)
            if missing:
                holes[key] = missing
            _add_ranges(wanted, key, found.ranges)
        if holes:
            message = loss_message(holes, self.names(), [str(path) for path in self.paths])
            if fail_on_data_loss:
                raise DataLossError(message)
            log.warning("%s", message)
        return self._pack(wanted, partitions)

    def _known_lost(self, key: str, hole: tuple[int, int], never: LostRanges | None) -> bool:
        """Whether a hole was never given to any collector: then offsets step over the hole."""
        at, upto = hole
        if never is None and any(
            first <= upto and last > at for first, last in self._damaged.get(key, ())
        ):
            return False  # a replica had the messages, whatever the others report
        for first, last in (self._never_collected if never is None else never).get(key, ()):
            if first <= at + 1:
                at = max(at, last)
        return at >= upto

    def _dropped_before(self, key: str, start: Mapping[str, int]) -> list[tuple[int, int]]:
        """Return the number of unread messages of a stream that a limit dropped."""
        if key in start:
            return []
        low = self.first_unread_after(key, start)
        pairs = zip(self._dropped, self._high, strict=True)
        count = min((dropped.get(key, 0) for dropped, high in pairs if key in high), default=0)
        return [(max(0, low - count), low)] if count else []

    def _pack(
        self, wanted: Mapping[tuple[int, int], SeqnoRanges], partitions: tuple[int, int]
    ) -> list[list[SegmentRange]]:
        first = [stretch for found in self._segment_ranges(wanted, 1 << 62) for stretch in found]
        rows = sum(stretch.rows for stretch in first)
        count = partition_count(rows, sum(stretch.payload_bytes for stretch in first), *partitions)
        if count > 1:
            first = [
                stretch
                for found in self._segment_ranges(wanted, max(1, rows // (count * 2)))
                for stretch in found
            ]
        return pack(first, count)

    def _segment_ranges(
        self, wanted: Mapping[tuple[int, int], SeqnoRanges], per_stretch: int
    ) -> Iterable[list[SegmentRange]]:
        for (_, replica), ranges in sorted(wanted.items()):
            for index in self.indexes(replica):
                yield segment_ranges(replica, index, ranges, per_stretch)

    def indexes(self, replica: int) -> list[SegmentIndex]:
        """Return the indexes of the segments of a replica, oldest first."""
        view = self.spool_readers[replica]
        return [] if view is None else view.segments()

    # Readers

    def register(
        self, reader: str, digest: Mapping[str, int], only: Iterable[int] | None = None
    ) -> dict[int, int]:
        """Register the passed digest of ``reader`` in replicas; raise if no replica accepts.

        Returns the new modification time of each file, by which a reader recognizes its own
        registration.
        """
        errors: list[SpoolError] = []
        registered: dict[int, int] = {}
        for at in range(len(self.paths)) if only is None else only:
            if self.spool_readers[at] is None:
                continue
            try:
                registered[at] = consumer_registry.register(self.paths[at], reader, digest).when_ns
            except SpoolError as error:
                errors.append(error)
                self._warn_once(at, f"a replica cannot be told what {reader} has read: {error}")
        if errors and not registered:
            raise errors[0]
        return registered

    def registrations(self, reader: str) -> dict[int, Consumer]:
        """Return the registration of a reader in each replica."""
        return {
            at: found
            for at, view in enumerate(self.spool_readers)
            if view is not None
            for found in view.consumers()
            if found.name == reader
        }

    def unregister(self, reader: str) -> None:
        """Take a reader off the list of every replica."""
        for view in self.spool_readers:
            if view is not None:
                view.unregister(reader)


def _add_ranges(
    wanted: dict[tuple[int, int], SeqnoRanges], key: str, pieces: Sequence[tuple[int, int, int]]
) -> None:
    """Add the ranges of a stream in rounds, a round per change of replica, to keep the order."""
    turn, last = 0, -1
    for replica, low, high in pieces:
        turn += replica != last and last >= 0
        last = replica
        ranges = wanted.setdefault((turn, replica), {})
        # Pieces that only a loss parts are read in one go: in between there is nothing.
        ranges[key] = (ranges[key][0] if key in ranges else low, high)


def never_collected(path: str, keys_path: str = "") -> LostRanges:
    """Return the seqnos that a replica reports as lost; none if unreadable."""
    try:
        view = SpoolReader(path, keys=keys_path or None)
        return _by_stream(hole for hole in view.lost() if hole.reason != HOLE_MISSING)
    except SpoolError:
        return {}


def _by_stream(holes: Iterable[Hole]) -> LostRanges:
    found: LostRanges = {}
    for hole in sorted(holes):
        found.setdefault(hole.stream, []).append((hole.first, hole.last))
    return found


def _check_may_appear(path: Path) -> None:
    """Reject a path at which no collector will create a spool."""
    if not path.exists():
        if not path.parent.is_dir():
            raise SpoolMismatch(
                (
                    f"{path}: neither the spool nor its parent folder exists here; "
                    "check the path and the mount, or create the folder for a collector"
                ),
                path,
            )
        return
    if not path.is_dir():
        raise SpoolMismatch(f"{path}: is a file; expected the folder of a spool", path)
    if others := foreign_entries(path):
        raise SpoolMismatch(
            f"{path}: is not the folder of a spool: it has {others[0]!r} and no spool.json", path
        )
