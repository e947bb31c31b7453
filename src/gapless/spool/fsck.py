"""Check every record and every seqno of a spool, and repair what is damaged.

Check only reads. It may run beside the writer, and then looks as far as readers may read.

On repairing: the spool is locked. Damaged bytes are set aside in ``damaged/``; the segment is
written anew, without them and with the seqnos that they held recorded as lost. Indexes, the
description of the spool and the ``committed`` file are made again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gapless.identity import Address
from gapless.spool.errors import SpoolError, SpoolMismatch, from_os_error
from gapless.spool.format import (
    HEADER_BYTES,
    KINDS,
    LOST,
    OPTIONAL,
    PREAMBLE_BYTES,
    REPAIRED,
    STATE,
    Draft,
    Header,
    State,
    StreamState,
    lay_out,
    lost_drafts,
    pack_preamble,
    parse_key,
    read_preamble,
    seed_of,
)
from gapless.spool.index import BadIndex, SegmentIndex
from gapless.spool.lock import Lock, is_locked
from gapless.spool.recovery import (
    Damage,
    build_index,
    find_tail,
    index_of,
    sealed_end,
    state_after,
    verify,
)
from gapless.spool.segment_file import (
    Hint,
    SegmentFile,
    SpoolInfo,
    index_path,
    list_segments,
    segment_path,
    write_atomically,
)

Progress = Callable[[int], None]
"""Told how many bytes are done."""


class Problem(NamedTuple):
    """Something that is wrong: where, what, and which messages it has cost (``stream`` is empty if unknown)."""

    path: Path
    offset: int
    what: str
    stream: str = ""
    first: int = 0
    last: int = 0


@dataclass
class Report:
    """What a check has found, or a repair has done. ``notes`` are no damage: they mend themselves."""

    segments: int = 0
    records: int = 0
    messages: int = 0
    size_bytes: int = 0
    lost: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Walk:
    """Where a walk over all segments is: ``high`` is the last seqno seen of each stream."""

    root: Path
    info: SpoolInfo
    report: Report
    keep: bool
    high: dict[str, int] = field(default_factory=dict)
    streams: dict[str, StreamState] = field(default_factory=dict)
    previous: tuple[int, int] = (0, 0)
    drafts: list[Draft] = field(default_factory=list)
    changed: bool = False
    whole_state: bool = False
    before: tuple[int, int] = (0, 0)

    def segment(self, number: int, end: int) -> None:
        """Go through one segment up to ``end``."""
        path = segment_path(self.root, number)
        self.drafts, self.changed, self.whole_state, self.before = [], False, False, self.previous
        owed: dict[str, int] = {}
        with SegmentFile(path, number, self.info.spool_id) as file:
            preamble = read_preamble(file.read(0, PREAMBLE_BYTES))
            if (
                preamble is None
                or preamble.spool_id != self.info.spool_id
                or preamble.segment != number
            ):
                self._problem(Problem(path, 0, "the first bytes are not those of this segment"))
            for item in verify(file, PREAMBLE_BYTES, end):
                if isinstance(item, Damage):
                    self._damage(file, item)
                else:
                    self._good(file, item, owed)
            if not self.whole_state and end > PREAMBLE_BYTES:
                self._problem(
                    Problem(
                        path, PREAMBLE_BYTES, "the state that a segment begins with is not there"
                    )
                )
        for key, high in owed.items():
            if high > self.high.get(key, high):
                self._missing(path, PREAMBLE_BYTES, key, self.high[key] + 1, high)
        if end > PREAMBLE_BYTES:
            self.previous = (number, end)

    def _problem(self, problem: Problem) -> None:
        self.report.problems.append(problem)
        self.changed = True

    def _damage(self, file: SegmentFile, damage: Damage) -> None:
        header = damage.header
        if self.keep:
            self._set_aside(file, damage)
        if header is not None and 0 < header.kind < LOST:
            key = str(header.origin)
            self._gap(file.path, header, key)
            self.high[key] = max(self.high.get(key, 0), header.last)
            what = f"{damage.size_bytes} bytes are damaged"
            self._problem(Problem(file.path, damage.offset, what, key, header.first, header.last))
            self.report.lost += header.last - header.first + 1
            self._keep(*lost_drafts(header.origin, header.first, header.last, time.time_ns()))
        else:
            self._problem(
                Problem(file.path, damage.offset, f"{damage.size_bytes} bytes are no record")
            )

    def _good(self, file: SegmentFile, header: Header, owed: dict[str, int]) -> None:
        self.report.records += 1
        key = str(header.origin)
        if header.kind == STATE:
            self._state(file, header, owed)
        elif 0 < header.kind <= LOST:
            self._gap(file.path, header, key)
            self.high[key] = max(self.high.get(key, 0), header.last)
            if header.kind == LOST:
                self.report.lost += header.rows
            else:
                self.report.messages += header.rows
        elif header.kind not in KINDS and not header.kind & OPTIONAL:
            self.report.notes.append(
                f"{file.path}: a record of the unknown kind {header.kind} at {header.offset}"
            )
        if self.keep:
            body = file.read(header.offset + HEADER_BYTES, header.size_bytes - HEADER_BYTES)
            table, payload = body[: header.table_bytes], body[header.table_bytes :]
            if header.kind == STATE:
                table = self._without_missing(table)
            told = (header.flags, header.view, header.sent_ns, header.collected_ns)
            range_ = (header.first, header.last, header.rows)
            self._keep(Draft(header.kind, header.origin, *range_, table, payload, *told))

    def _state(self, file: SegmentFile, header: Header, owed: dict[str, int]) -> None:
        state = State.unpack(file.read(header.offset + HEADER_BYTES, header.table_bytes))
        self.whole_state = self.whole_state or header.offset == PREAMBLE_BYTES
        before, _ = state.previous
        if header.offset == PREAMBLE_BYTES and self.previous[0] and before > self.previous[0]:
            path = segment_path(self.root, before)
            self._problem(Problem(path, 0, "the segment is not there"))
        for each in state.streams:
            self.streams[each.key] = each
            self.high.setdefault(each.key, each.high)
            if header.offset == PREAMBLE_BYTES:
                owed[each.key] = each.high

    def _without_missing(self, table: bytes) -> bytes:
        """Return a state that does not speak of a segment before it that is not there."""
        state = State.unpack(table)
        is_missing = self.before[0] and state.previous[0] > self.before[0]
        return state._replace(previous=self.before).pack() if is_missing else table

    def _gap(self, path: Path, header: Header, key: str) -> None:
        expected = self.high.get(key, header.first - 1) + 1
        if header.first > expected:
            self._missing(path, header.offset, key, expected, header.first - 1)

    def _missing(self, path: Path, offset: int, key: str, first: int, last: int) -> None:
        self._problem(Problem(path, offset, "messages are missing", key, first, last))
        self.report.lost += last - first + 1
        self.high[key] = last
        self._keep(*lost_drafts(parse_key(key), first, last, time.time_ns()))

    def _keep(self, *drafts: Draft) -> None:
        if self.keep:
            self.drafts += drafts

    def _set_aside(self, file: SegmentFile, damage: Damage) -> None:
        folder = self.root / "damaged"
        folder.mkdir(exist_ok=True)
        path = folder / f"{file.number:020d}-{damage.offset}.bytes"
        write_atomically(path, file.read(damage.offset, damage.size_bytes))

    def rewrite(self, number: int, created_ns: int) -> None:
        """Write the segment anew, without damage."""
        if not self.whole_state:
            streams = tuple(
                StreamState(
                    key, high, *(known[2:] if (known := self.streams.get(key)) else (0, 0, "", 0))
                )
                for key, high in self._starts().items()
            )
            state = State(self.info.group, streams, self.before, 0, self.info.name, self.info.node)
            self.drafts.insert(0, Draft(STATE, Address(0, 0), 0, 0, len(streams), state.pack()))
        pieces, _ = lay_out(self.drafts, PREAMBLE_BYTES, seed_of(self.info.spool_id, number))
        preamble = pack_preamble(self.info.spool_id, number, created_ns, REPAIRED)
        write_atomically(segment_path(self.root, number), b"".join((preamble, *pieces)))

    def _starts(self) -> dict[str, int]:
        """Where each stream is before the first record of this segment."""
        found = dict(self.high)
        for draft in reversed(self.drafts):
            if 0 < draft.kind <= LOST:
                found[str(draft.origin)] = draft.first - 1
        return found


def check(path: Path | str, *, progress: Progress = lambda _done: None) -> Report:
    """Read all of a spool: every checksum, every seqno."""
    root = Path(path)
    info = _info(root)
    report = Report()
    walk = _Walk(root, info, report, keep=False)
    beside = is_locked(root)
    if beside:
        report.notes.append(
            "a collector writes to the spool; what it had not committed was not looked at"
        )
    for number, end in _extents(walk, beside=beside):
        try:
            walk.segment(number, end)
        except FileNotFoundError:
            report.notes.append(f"segment {number} was trimmed meanwhile")
            continue
        report.segments += 1
        report.size_bytes += end
        progress(report.size_bytes)
        _check_index(walk, number)
    return report


def _info(root: Path) -> SpoolInfo:
    try:
        return SpoolInfo.read(root)
    except FileNotFoundError:
        raise SpoolMismatch(
            f"{root}: there is no spool here (no spool.json); give the folder of one", root
        ) from None


def _extents(walk: _Walk, *, beside: bool) -> list[tuple[int, int]]:
    """Return the segments and where each ends."""
    root, info = walk.root, walk.info
    hint = Hint.read(root)
    numbers = list_segments(root)
    if beside and hint is not None:
        numbers = [number for number in numbers if number <= hint.segment]
    found = []
    for number in numbers:
        try:
            file = SegmentFile(segment_path(root, number), number, info.spool_id)
        except FileNotFoundError:
            continue
        with file:
            if number != numbers[-1]:
                found.append((number, sealed_end(file, state_after(root, info, number))))
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
                    f"{file.path}: {file.size_bytes - end} bytes behind {end} were never committed and will be cut off"
                )
            found.append((number, end))
    if hint is not None and numbers and hint.segment > numbers[-1]:
        walk.report.problems.append(
            Problem(segment_path(root, hint.segment), 0, "the segment is not there")
        )
    return found


def _check_index(walk: _Walk, number: int) -> None:
    path = index_path(walk.root, number)
    try:
        found = SegmentIndex.load(path, number, lambda: build_index(walk.root, walk.info, number))
        data = found.pack()
        if data != path.read_bytes() or found.end != walk.previous[1]:
            raise BadIndex("does not fit the segment")
    except FileNotFoundError:
        return
    except (OSError, BadIndex, ValueError, KeyError, TypeError) as error:
        walk.report.notes.append(
            f"{path}: {error}; readers make it again from the segment, repair writes it anew"
        )


def repair(path: Path | str, *, progress: Progress = lambda _done: None) -> Report:
    """Put a damaged spool in order; :class:`SpoolLocked` while a collector writes to it.

    The report says what was wrong, to the message; all of it is mended, and what cannot be read any
    more is recorded as lost. A spool without damage is left as it is.
    """
    root = Path(path)
    if not (root / "segments").is_dir():
        raise SpoolMismatch(f"{root}: there is no spool here (no folder segments)", root)
    with ExitStack() as stack:
        stack.callback(Lock(root).release)
        report = Report()
        try:
            info = _mended_info(root, report)
            walk = _Walk(root, info, report, keep=True)
            final = (0, 0)
            for number, end in _extents(walk, beside=False):
                final = _mend(walk, number, end)
                report.segments += 1
                report.size_bytes += end
                progress(report.size_bytes)
            if final[0]:
                write_atomically(root / "committed", Hint(*final).pack())
        except OSError as error:
            raise from_os_error(error, root, "repairing it") from error
        return report


def _mend(walk: _Walk, number: int, end: int) -> tuple[int, int]:
    """Mend one segment; return its number and where it ends now."""
    root = walk.root
    with SegmentFile(segment_path(root, number), number, walk.info.spool_id) as file:
        preamble = read_preamble(file.read(0, PREAMBLE_BYTES))
    walk.segment(number, end)
    if walk.changed:
        walk.rewrite(number, 0 if preamble is None else preamble.created_ns)
        end = segment_path(root, number).stat().st_size
    with SegmentFile(segment_path(root, number), number, walk.info.spool_id) as file:
        index = index_of(file, end)
    last = number == list_segments(root)[-1]
    if last:
        index_path(root, number).unlink(missing_ok=True)
    else:
        write_atomically(index_path(root, number), index.pack())
    walk.drafts = []
    return number, end


def _mended_info(root: Path, report: Report) -> SpoolInfo:
    try:
        return SpoolInfo.read(root)
    except (FileNotFoundError, SpoolMismatch):
        pass
    for number in reversed(list_segments(root)):
        data = segment_path(root, number).read_bytes()[:PREAMBLE_BYTES]
        preamble = read_preamble(data)
        if preamble is None:
            continue
        with SegmentFile(segment_path(root, number), number, preamble.spool_id) as file:
            state = index_of(file, file.size_bytes).state
        if state is not None:
            info = SpoolInfo(
                state.group, preamble.spool_id, state.name, state.node, preamble.created_ns
            )
            info.write(root)
            report.problems.append(
                Problem(root / "spool.json", 0, "the description was not readable")
            )
            return info
    raise SpoolError(
        f"{root}: neither spool.json nor the beginning of any segment can be read; this cannot be repaired",
        root,
    )


def as_json(report: Report) -> dict[str, object]:
    """Return a report for a program."""
    problems = [{**problem._asdict(), "path": str(problem.path)} for problem in report.problems]
    told = {
        name: getattr(report, name)
        for name in ("segments", "records", "messages", "size_bytes", "lost", "notes")
    }
    return json.loads(json.dumps({**told, "problems": problems}))  # type: ignore[no-any-return]
