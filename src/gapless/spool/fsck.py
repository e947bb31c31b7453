"""Check every record and every seqno of a spool, and repair damage.

Check only reads. Beside a running writer, check reads as far as readers may.

Repair locks the spool. Damaged bytes are saved in ``damaged/``; the segment is rewritten without
the damage, and missing seqnos are recorded as lost. Indexes, the description of the spool and the
``committed`` file are rebuilt.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import U64_MAX, Address
from gapless.output.private_files import make_inner_folder
from gapless.spool.encryption import IndexCipher, SpoolKeys, encrypt_records
from gapless.spool.errors import SpoolError, SpoolKeyError, SpoolMismatch, from_os_error
from gapless.spool.format import (
    ENCRYPTED_FORMAT,
    FORMAT,
    KEY,
    KINDS,
    LOST,
    OPTIONAL_KIND,
    PREAMBLE_BYTES,
    SEGMENT_REPAIRED,
    STATE,
    RecordDraft,
    RecordHeader,
    StateRecord,
    StreamState,
    checksum_seed,
    encode_records,
    make_lost_drafts,
    pack_preamble,
    parse_preamble,
    parse_stream_key,
)
from gapless.spool.index import CorruptIndex, SegmentIndex, plain_content
from gapless.spool.lock import SpoolLock, is_locked
from gapless.spool.segment_file import (
    CommittedOffset,
    SegmentFile,
    SpoolInfo,
    index_path,
    info_path,
    list_segments,
    segment_path,
    write_atomically,
)
from gapless.spool.segment_scan import (
    DamagedRange,
    build_index,
    build_index_upto,
    find_tail,
    next_segment_state,
    sealed_end,
    verify_records,
)

if TYPE_CHECKING:
    from gapless.keys.keyring import Keyring

Progress = Callable[[int], None]
"""Called with the number of checked bytes."""


class FsckProblem(NamedTuple):
    """A problem: the place, the cause, and the lost messages (``stream`` is empty if unknown)."""

    path: Path
    offset: int
    what: str
    stream: str = ""
    first: int = 0
    last: int = 0


@dataclass
class FsckReport:
    """The findings of a check or the results of a repair; ``notes`` need no repair."""

    segments: int = 0
    records: int = 0
    messages: int = 0
    size_bytes: int = 0
    lost: int = 0
    problems: list[FsckProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class _SegmentWalker:
    """Where a walk over all segments is: ``high`` is the last seqno seen of each stream."""

    root: Path
    info: SpoolInfo
    report: FsckReport
    collects_drafts: bool
    keys: SpoolKeys | None
    high: dict[str, int] = field(default_factory=dict)
    streams: dict[str, StreamState] = field(default_factory=dict)
    previous: tuple[int, int] = (0, 0)
    drafts: list[RecordDraft] = field(default_factory=list)
    changed: bool = False
    has_start_state: bool = False
    previous_at_start: tuple[int, int] = (0, 0)
    encrypted_from: int = U64_MAX
    """The first encrypted segment: no record in plain may follow."""

    def walk_segment(self, number: int, end: int) -> None:
        """Check a segment up to ``end``."""
        path = segment_path(self.root, number)
        self.drafts, self.changed, self.has_start_state, self.previous_at_start = (
            [],
            False,
            False,
            self.previous,
        )
        owed: dict[str, int] = {}
        with SegmentFile(path, number, self.info.spool_id, self.keys) as file:
            preamble = parse_preamble(file.read(0, PREAMBLE_BYTES))
            if (
                preamble is None
                or preamble.spool_id != self.info.spool_id
                or preamble.segment != number
            ):
                self._add_problem(
                    FsckProblem(path, 0, "the preamble does not belong to this segment")
                )
            if preamble is not None and preamble.format >= ENCRYPTED_FORMAT:
                self.encrypted_from = min(self.encrypted_from, number)
            for item in verify_records(file, PREAMBLE_BYTES, end):
                if isinstance(item, DamagedRange):
                    self._on_damage(file, item)
                elif self._is_forged(file, item):
                    self._on_damage(file, DamagedRange(item.offset, item.size_bytes))
                elif item.kind == KEY:
                    self.report.records += 1
                else:
                    self._on_record(file, item, owed)
            if not self.has_start_state and end > PREAMBLE_BYTES:
                self._add_problem(
                    FsckProblem(
                        path,
                        PREAMBLE_BYTES,
                        "the STATE record at the start of the segment is missing",
                    )
                )
        for key, high in owed.items():
            if high > self.high.get(key, high):
                self._add_missing(path, PREAMBLE_BYTES, key, self.high[key] + 1, high)
        if end > PREAMBLE_BYTES:
            self.previous = (number, end)

    def _is_forged(self, file: SegmentFile, header: RecordHeader) -> bool:
        """Whether a record is in plain behind encrypted ones: no collector has written it."""
        if header.is_encrypted or header.kind == KEY:
            self.encrypted_from = min(self.encrypted_from, file.number)
            return False
        return file.number >= self.encrypted_from and 0 < header.kind < KEY

    def _add_problem(self, problem: FsckProblem) -> None:
        self.report.problems.append(problem)
        self.changed = True

    def _on_damage(self, file: SegmentFile, damage: DamagedRange) -> None:
        header = damage.header
        if self.collects_drafts:
            self._save_damaged(file, damage)
        if header is not None and 0 < header.kind < LOST:
            key = str(header.origin)
            self._check_gap(file.path, header, key)
            self.high[key] = max(self.high.get(key, 0), header.last)
            what = f"{damage.size_bytes} bytes are damaged"
            self._add_problem(
                FsckProblem(file.path, damage.offset, what, key, header.first, header.last)
            )
            self.report.lost += header.last - header.first + 1
            self._collect(
                *make_lost_drafts(header.origin, header.first, header.last, time.time_ns())
            )
        else:
            self._add_problem(
                FsckProblem(file.path, damage.offset, f"{damage.size_bytes} bytes are not a record")
            )

    def _on_record(self, file: SegmentFile, header: RecordHeader, owed: dict[str, int]) -> None:
        self.report.records += 1
        key = str(header.origin)
        if header.kind == STATE:
            self._on_state(file, header, owed)
        elif 0 < header.kind <= LOST:
            self._check_gap(file.path, header, key)
            self.high[key] = max(self.high.get(key, 0), header.last)
            if header.kind == LOST:
                self.report.lost += header.rows
            else:
                self.report.messages += header.rows
        elif header.kind not in KINDS and not header.kind & OPTIONAL_KIND:
            self.report.notes.append(
                f"{file.path}: a record of the unknown kind {header.kind} at {header.offset}"
            )
        if self.collects_drafts:
            body = file.read_body(header)
            table, payload = body[: header.table_bytes], body[header.table_bytes :]
            if header.kind == STATE:
                table = self._without_missing(table)
            fields = (header.flags, header.view, header.sent_ns, header.collected_ns)
            range_ = (header.first, header.last, header.rows)
            self._collect(RecordDraft(header.kind, header.origin, *range_, table, payload, *fields))

    def _on_state(self, file: SegmentFile, header: RecordHeader, owed: dict[str, int]) -> None:
        state = StateRecord.unpack(file.read_body(header)[: header.table_bytes])
        self.has_start_state = self.has_start_state or header.is_segment_start
        before, _ = state.previous
        if header.is_segment_start and self.previous[0] and before > self.previous[0]:
            path = segment_path(self.root, before)
            self._add_problem(FsckProblem(path, 0, "the segment is missing"))
        for each in state.streams:
            self.streams[each.key] = each
            self.high.setdefault(each.key, each.high)
            if header.is_segment_start:
                owed[each.key] = each.high

    def _without_missing(self, table: bytes) -> bytes:
        """Return a state without a reference to a missing preceding segment."""
        state = StateRecord.unpack(table)
        is_missing = self.previous_at_start[0] and state.previous[0] > self.previous_at_start[0]
        return state._replace(previous=self.previous_at_start).pack() if is_missing else table

    def _check_gap(self, path: Path, header: RecordHeader, key: str) -> None:
        expected = self.high.get(key, header.first - 1) + 1
        if header.first > expected:
            self._add_missing(path, header.offset, key, expected, header.first - 1)

    def _add_missing(self, path: Path, offset: int, key: str, first: int, last: int) -> None:
        self._add_problem(FsckProblem(path, offset, "messages are missing", key, first, last))
        self.report.lost += last - first + 1
        self.high[key] = last
        self._collect(*make_lost_drafts(parse_stream_key(key), first, last, time.time_ns()))

    def _collect(self, *drafts: RecordDraft) -> None:
        if self.collects_drafts:
            self.drafts += drafts

    def _save_damaged(self, file: SegmentFile, damage: DamagedRange) -> None:
        folder = self.root / "damaged"
        make_inner_folder(folder)
        path = folder / f"{file.number:020d}-{damage.offset}.bytes"
        write_atomically(path, file.read(damage.offset, damage.size_bytes))

    def rewrite(self, number: int, created_ns: int) -> None:
        """Rewrite the segment without the damage."""
        if not self.has_start_state:
            streams = tuple(
                StreamState(
                    key, high, *(known[2:] if (known := self.streams.get(key)) else (0, 0, "", 0))
                )
                for key, high in self._start_seqnos().items()
            )
            state = StateRecord(
                self.info.group, streams, self.previous_at_start, 0, self.info.name, self.info.node
            )
            self.drafts.insert(
                0, RecordDraft(STATE, Address(0, 0), 0, 0, len(streams), state.pack())
            )
        seed = checksum_seed(self.info.spool_id, number)
        version = FORMAT
        if self.encrypted_from <= number:
            if self.keys is None:
                raise SpoolKeyError(
                    f"{segment_path(self.root, number)}: the segment is encrypted, and no keys are"
                    " given; pass the keyring of the collector with --spool-keys FILE",
                    segment_path(self.root, number),
                )
            cipher = self.keys.new_cipher(self.info.spool_id, number)
            pieces, _ = encrypt_records(self.drafts, PREAMBLE_BYTES, seed, cipher)
            version = ENCRYPTED_FORMAT
        else:
            pieces, _ = encode_records(self.drafts, PREAMBLE_BYTES, seed)
        preamble = pack_preamble(self.info.spool_id, number, created_ns, SEGMENT_REPAIRED, version)
        write_atomically(segment_path(self.root, number), b"".join((preamble, *pieces)))

    def _start_seqnos(self) -> dict[str, int]:
        """The position of each stream before the first record of the segment."""
        found = dict(self.high)
        for draft in reversed(self.drafts):
            if 0 < draft.kind <= LOST:
                found[str(draft.origin)] = draft.first - 1
        return found


def check(
    path: Path | str,
    *,
    progress: Progress = lambda _done: None,
    keys: SpoolKeys | Keyring | Path | str | None = None,
) -> FsckReport:
    """Read all of a spool: every checksum, every tag, every seqno.

    Raises:
        SpoolKeyError: The spool is encrypted, and a key is missing or wrong.
    """
    root = Path(path)
    info = _read_info(root)
    report = FsckReport()
    walk = _SegmentWalker(root, info, report, collects_drafts=False, keys=SpoolKeys.of(keys))
    beside = is_locked(root)
    if beside:
        report.notes.append("a collector writes to the spool; uncommitted bytes were not checked")
    for number, end in _segment_extents(walk, beside=beside):
        try:
            walk.walk_segment(number, end)
        except FileNotFoundError:
            report.notes.append(f"segment {number} was trimmed meanwhile")
            continue
        report.segments += 1
        report.size_bytes += end
        progress(report.size_bytes)
        _check_index(walk, number)
    return report


def _read_info(root: Path) -> SpoolInfo:
    try:
        return SpoolInfo.read(root)
    except FileNotFoundError:
        raise SpoolMismatch(
            f"{root}: there is no spool here (no spool.json); pass the folder of a spool", root
        ) from None


def _segment_extents(walk: _SegmentWalker, *, beside: bool) -> list[tuple[int, int]]:
    """Return the segments and where each ends."""
    root, info, keys = walk.root, walk.info, walk.keys
    hint = CommittedOffset.read(root)
    numbers = list_segments(root)
    if beside and hint is not None:
        numbers = [number for number in numbers if number <= hint.segment]
    found = []
    for number in numbers:
        try:
            file = SegmentFile(segment_path(root, number), number, info.spool_id, keys)
        except FileNotFoundError:
            continue
        with file:
            if number != numbers[-1]:
                state = next_segment_state(root, info, number, keys)
                found.append((number, sealed_end(file, state)))
                continue
            if beside and hint is not None and hint.segment == number:
                found.append((number, hint.offset))
                continue
            tail = find_tail(
                file, hint.offset if hint is not None and hint.segment == number else 0
            )
            end = max([tail.end, *(each.offset + each.size_bytes for each in tail.damage)])
            if file.size_bytes > end:
                walk.report.notes.append(
                    f"{file.path}: {file.size_bytes - end} bytes behind {end} were never "
                    f"committed and will be cut off"
                )
            found.append((number, end))
    if hint is not None and numbers and hint.segment > numbers[-1]:
        walk.report.problems.append(
            FsckProblem(segment_path(root, hint.segment), 0, "the segment is missing")
        )
    return found


def _check_index(walk: _SegmentWalker, number: int) -> None:
    path = index_path(walk.root, number)
    try:
        cipher = IndexCipher(walk.keys, path, walk.info.spool_id, number)
        found = SegmentIndex.load(
            path, number, lambda: build_index(walk.root, walk.info, number, walk.keys), cipher
        )
        data = found.pack()
        if data != plain_content(path.read_bytes(), cipher) or found.end != walk.previous[1]:
            raise CorruptIndex("does not fit the segment")
    except FileNotFoundError:
        return
    except (OSError, SpoolKeyError, ValueError, KeyError, TypeError) as error:
        walk.report.notes.append(
            f"{path}: {error}; readers rebuild the index, and repair rewrites it"
        )


def repair(
    path: Path | str,
    *,
    progress: Progress = lambda _done: None,
    keys: SpoolKeys | Keyring | Path | str | None = None,
) -> FsckReport:
    """Repair a damaged spool.

    The report lists every problem, to the message. Unreadable messages are recorded as lost. A
    spool without damage stays unchanged.

    Raises:
        SpoolLocked: A collector writes to the spool.
        SpoolKeyError: The spool is encrypted, and a key is missing or wrong.
    """
    found = SpoolKeys.of(keys)
    root = Path(path)
    if not (root / "segments").is_dir():
        raise SpoolMismatch(f"{root}: there is no spool here (no folder segments)", root)
    with ExitStack() as stack:
        stack.callback(SpoolLock(root).release)
        report = FsckReport()
        try:
            info = _restore_info(root, report, found)
            walk = _SegmentWalker(root, info, report, collects_drafts=True, keys=found)
            final = (0, 0)
            for number, end in _segment_extents(walk, beside=False):
                final = _repair_segment(walk, number, end)
                report.segments += 1
                report.size_bytes += end
                progress(report.size_bytes)
            if final[0]:
                write_atomically(root / "committed", CommittedOffset(*final).pack())
        except OSError as error:
            raise from_os_error(error, root, "repairing it") from error
        return report


def _repair_segment(walk: _SegmentWalker, number: int, end: int) -> tuple[int, int]:
    """Repair a segment; return the number and the new end of the segment."""
    root = walk.root
    path, spool_id = segment_path(root, number), walk.info.spool_id
    with SegmentFile(path, number, spool_id) as file:
        preamble = parse_preamble(file.read(0, PREAMBLE_BYTES))
    walk.walk_segment(number, end)
    if walk.changed:
        walk.rewrite(number, 0 if preamble is None else preamble.created_ns)
        end = path.stat().st_size
    with SegmentFile(path, number, spool_id, walk.keys) as file:
        index = build_index_upto(file, end)
    last = number == list_segments(root)[-1]
    if last:
        index_path(root, number).unlink(missing_ok=True)
    else:
        cipher = IndexCipher(walk.keys, path, spool_id, number) if index.is_encrypted else None
        write_atomically(index_path(root, number), index.pack(cipher))
    walk.drafts = []
    return number, end


def _restore_info(root: Path, report: FsckReport, keys: SpoolKeys | None) -> SpoolInfo:
    try:
        return SpoolInfo.read(root)
    except (FileNotFoundError, SpoolMismatch):
        pass
    for number in reversed(list_segments(root)):
        data = segment_path(root, number).read_bytes()[:PREAMBLE_BYTES]
        preamble = parse_preamble(data)
        if preamble is None:
            continue
        with SegmentFile(segment_path(root, number), number, preamble.spool_id, keys) as file:
            state = build_index_upto(file, file.size_bytes).first_state
        if state is not None:
            info = SpoolInfo(
                state.group, preamble.spool_id, state.name, state.node, preamble.created_ns
            )
            info.write(root)
            report.problems.append(
                FsckProblem(info_path(root), 0, "the description was unreadable")
            )
            return info
    raise SpoolError(
        f"{root}: neither spool.json nor the beginning of any segment can be read; this cannot be "
        f"repaired",
        root,
    )


def as_json(report: FsckReport) -> dict[str, object]:
    """Return a report for a program."""
    problems = [{**problem._asdict(), "path": str(problem.path)} for problem in report.problems]
    fields = {
        name: getattr(report, name)
        for name in ("segments", "records", "messages", "size_bytes", "lost", "notes")
    }
    return json.loads(json.dumps({**fields, "problems": problems}))  # type: ignore[no-any-return]
