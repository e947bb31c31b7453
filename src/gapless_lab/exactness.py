"""The checker of deliveries and tables: messages lost, duplicated, out of order or damaged.

The law: every acknowledged message arrives once. No seqno of a stream appears twice, and no message
under two seqnos. Within a stream the numbers of messages are consecutive. A later micro-batch has
later messages, and the messages of a file are in order. Every payload is intact. Every message in
the table was sent by a producer. A sent message without an acknowledgement may be in the table or
not: the sender died before the acknowledgement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from gapless_lab.workload import (
    NUMBER_BYTES,
    LedgerContents,
    NumberedMessage,
    ProducerIncarnation,
    decode_message,
)

MAX_FINDINGS = 20
"""Maximum number of findings of each kind that are kept in words."""
FAULTS = ("missing", "repeated", "out_of_order", "damaged", "foreign")
"""The figures of a verdict that have to be 0."""
LOG = "_spark_metadata"
"""The log of a table's committed files, in the folder of the table."""


# Against deliveries: the numbers of one sender, as they arrive


class ExactnessChecker:
    """Counts the numbered messages of a sender, all of the same size."""

    def __init__(self, size_bytes: int) -> None:
        self.count = self.duplicated = self.out_of_order = 0
        self._next = 0
        self._missing: set[int] = set()
        self._size_bytes = size_bytes
        self._layout = Struct(f"<I{size_bytes - NUMBER_BYTES}x")

    def add(self, messages: bytes) -> None:
        """Add delivered messages, concatenated."""
        found = self._numbers(messages)
        self.count += len(found)
        after = self._next + len(found)
        if found == list(range(self._next, after)):
            self._next = after
        else:
            self._classify(found)

    def _numbers(self, messages: bytes) -> list[int]:
        if self._size_bytes % NUMBER_BYTES == 0 and not len(messages) % self._size_bytes:
            return memoryview(messages).cast("I")[:: self._size_bytes // NUMBER_BYTES].tolist()
        return [number for (number,) in self._layout.iter_unpack(messages)]

    def _classify(self, found: Iterable[int]) -> None:
        for number in found:
            if number >= self._next:
                self._missing.update(range(self._next, number))
                self._next = number + 1
            elif number in self._missing:
                self._missing.remove(number)
                self.out_of_order += 1
            else:
                self.duplicated += 1

    def lost(self, sent: int) -> int:
        """Return how many of ``sent`` messages have not arrived."""
        return len(self._missing) + max(0, sent - self._next)


# Against counts: what a table or a spool has of each stream


class StreamRows(NamedTuple):
    """The rows of a stream: the number of rows and of distinct seqnos, the first and last seqno."""

    rows: int
    distinct: int
    first: int
    last: int

    @property
    def repeated(self) -> int:
        """How many rows are there again."""
        return self.rows - self.distinct


def missing_by_incarnation(
    held: Mapping[str, StreamRows], incarnations: Iterable[ProducerIncarnation]
) -> tuple[int, dict[str, int]]:
    """Return how many messages were acknowledged, and how many of each stream are missing.

    Seqnos count from 1 and each is a message, so the last seqno of a stream without a hole is also
    the number of messages.
    """
    acknowledged, missing = 0, {}
    for incarnation in incarnations:
        acknowledged += incarnation.acknowledged
        found = held.get(incarnation.origin, StreamRows(0, 0, 0, 0))
        if count := max(found.last, incarnation.acknowledged) - found.distinct:
            missing[incarnation.origin] = count
    return acknowledged, missing


# Against a table: every row with its payload


class FileRows(NamedTuple):
    """The rows of a file of a micro-batch, in the order of the file."""

    batch: int
    file: Path
    origins: list[str]
    seqnos: list[int]
    payloads: list[bytes]


def committed_files(table: Path) -> list[tuple[int, Path]]:
    """Return the committed files of a table with the number of the micro-batch, in order.

    A killed sink leaves uncommitted files; the log in the folder of the table lists the committed
    files. Spark compacts the log now and then: a file known only from a compacted log gets the
    batch of the compacted log.
    """
    logs = sorted((int(path.name.partition(".")[0]), path) for path in (table / LOG).glob("[0-9]*"))
    found: dict[Path, int] = {}
    for batch, path in logs:
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            file = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            found.setdefault(table / file.name, batch)
    return sorted((batch, file) for file, batch in found.items())


def read_rows(table: Path) -> Iterator[FileRows]:
    """Return the committed rows of a table, in the order of the batches."""
    import pyarrow.parquet as pq

    for batch, file in committed_files(table):
        content = pq.ParquetFile(file).read(["origin", "seqno", "payload"]).to_pydict()
        yield FileRows(batch, file, content["origin"], content["seqno"], content["payload"])


@dataclass
class ExactnessVerdict:
    """The figures of a table; the figures of :data:`FAULTS` have to be 0."""

    sent: int = 0
    acknowledged: int = 0
    undecided: int = 0
    rows: int = 0
    batches: int = 0
    streams: int = 0
    missing: int = 0
    repeated: int = 0
    out_of_order: int = 0
    damaged: int = 0
    foreign: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    def add_finding(self, kind: str, what: str, count: int = 1) -> None:
        """Count a fault, and keep the first findings of the same kind in words."""
        setattr(self, kind, getattr(self, kind) + count)
        prefix = f"{kind.replace('_', ' ')}: "
        if sum(finding.startswith(prefix) for finding in self.findings) < MAX_FINDINGS:
            self.findings.append(prefix + what)


class TableCheck:
    """The comparison of a table with the ledgers of the producers."""

    def __init__(self, ledgers: Mapping[int, LedgerContents]) -> None:
        self.verdict = ExactnessVerdict()
        self.ledgers = ledgers
        self.streams: dict[str, dict[int, NumberedMessage]] = {}
        self.positions: dict[tuple[int, int], tuple[str, int]] = {}
        """Of each message, by producer and number, its stream and seqno."""
        self.spans: dict[str, dict[int, tuple[int, int]]] = {}
        """Of each stream and micro-batch, the lowest and the highest seqno."""

    def run(self, table: Iterable[FileRows]) -> ExactnessVerdict:
        """Check every row of the table."""
        batches = set()
        for rows in table:
            batches.add(rows.batch)
            self._check_file(rows)
        self.verdict.batches, self.verdict.streams = len(batches), len(self.streams)
        for origin in self.streams:
            self._check_stream_order(origin)
            self._check_batch_order(origin)
        for producer, ledger in self.ledgers.items():
            self._check_completeness(producer, ledger)
        self._check_foreign_rows()
        return self.verdict

    def _check_file(self, rows: FileRows) -> None:
        last: dict[str, int] = {}
        add_finding = self.verdict.add_finding
        self.verdict.rows += len(rows.seqnos)
        for origin, seqno, payload in zip(rows.origins, rows.seqnos, rows.payloads, strict=True):
            here = (origin, seqno)
            where = f"{origin} {seqno} in batch {rows.batch}, {rows.file.name}"
            if seqno <= last.get(origin, 0):
                add_finding("out_of_order", f"{where}: after {last[origin]}")
            last[origin] = seqno
            low, high = self.spans.setdefault(origin, {}).get(rows.batch, (seqno, seqno))
            self.spans[origin][rows.batch] = (min(low, seqno), max(high, seqno))
            message = decode_message(payload)
            if not message.is_intact:
                add_finding("damaged", f"{where}: the payload is not intact")
            elif self.streams.setdefault(origin, {}).setdefault(seqno, message) is not message:
                add_finding("repeated", f"{where} is there again")
            elif (first := self.positions.setdefault(message[:2], here)) != here:
                also = f"message {message[:2]} is also {first[0]} {first[1]}"
                add_finding("repeated", f"{where}: {also}")

    def _check_stream_order(self, origin: str) -> None:
        before: NumberedMessage | None = None
        for seqno, message in sorted(self.streams[origin].items()):
            if before is not None and (before.producer, before.number + 1) != message[:2]:
                what = f"{origin} {seqno} is message {message[:2]}, after {before[:2]}"
                self.verdict.add_finding("out_of_order", what)
            before = message

    def _check_batch_order(self, origin: str) -> None:
        """Check the order of micro-batches; the files of a micro-batch have no order."""
        top, top_batch = 0, -1
        for batch, (low, high) in sorted(self.spans[origin].items()):
            if low <= top:
                what = f"batch {batch} has {origin} {low}, and batch {top_batch} has {top}"
                self.verdict.add_finding("out_of_order", what)
            if high > top:
                top, top_batch = high, batch

    def _check_completeness(self, producer: int, ledger: LedgerContents) -> None:
        verdict, acknowledged = self.verdict, 0
        for acked in ledger.acked:
            acknowledged += acked.last - acked.first + 1
            where = f"{acked.origin} {acked.low}..{acked.high}"
            absent = []
            for number in range(acked.first, acked.last + 1):
                position = self.positions.get((producer, number))
                if position is None:
                    absent.append(number)
                elif acked.origin and not (
                    position[0] == acked.origin and acked.low <= position[1] <= acked.high
                ):
                    what = f"message {number} of producer {producer} is {position[0]} {position[1]}"
                    verdict.add_finding("out_of_order", f"{what}, not in {where}")
            if absent:
                which = f"{absent[0]}..{absent[-1]}" if len(absent) > 1 else str(absent[0])
                what = f"{len(absent)} messages, {which} of producer {producer} ({where})"
                verdict.add_finding("missing", what, len(absent))
        verdict.sent += ledger.tried
        verdict.acknowledged += acknowledged
        verdict.undecided += ledger.tried - acknowledged

    def _check_foreign_rows(self) -> None:
        for (producer, number), (origin, seqno) in self.positions.items():
            ledger = self.ledgers.get(producer)
            if ledger is None or not 1 <= number <= ledger.tried:
                what = f"{origin} {seqno} is message {number} of producer {producer}, never sent"
                self.verdict.add_finding("foreign", what)
