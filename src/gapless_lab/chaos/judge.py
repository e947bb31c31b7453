"""Whether the table is what the logs of the producers say it has to be.

The law: every message that was acknowledged is in the table, once. No stream and seqno is there
twice, and no message under two of them. In the order of a stream the counts of its messages go up
one by one; a later micro-batch has later messages, and a file has them in order. Every payload is
whole. Nothing is there that nobody has sent. What was sent and not acknowledged may be there or
not: its sender died before it could know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gapless_lab.chaos import letters
from gapless_lab.chaos.letters import NumberedMessage, ProducerLogEntry
from gapless_lab.chaos.table import FileRows

MAX_FINDINGS = 20
"""So many findings are told of each kind."""


@dataclass
class ChaosVerdict:
    """What was found; the figures that have to be 0 are those in :data:`FAULTS`."""

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
        """Whether everything is as it has to be."""
        return not self.findings

    def add_finding(self, kind: str, what: str, count: int = 1) -> None:
        """Count a fault, and keep what there is to say of it."""
        setattr(self, kind, getattr(self, kind) + count)
        told = f"{kind.replace('_', ' ')}: "
        if sum(one.startswith(told) for one in self.findings) < MAX_FINDINGS:
            self.findings.append(told + what)

    def as_dict(self) -> dict[str, Any]:
        """Return it for a program."""
        return dict(vars(self))


FAULTS = ("missing", "repeated", "out_of_order", "damaged", "foreign")
"""The figures of a verdict that have to be 0."""

TablePosition = tuple[str, int]
"""A stream and a seqno in it."""
Spans = dict[str, dict[int, tuple[int, int]]]
"""The lowest and the highest seqno of each stream in each batch."""


def check_exactness(
    logs: Mapping[int, Sequence[ProducerLogEntry]], table: Iterable[FileRows]
) -> ChaosVerdict:
    """Compare the table with the logs, which are by the numbers of the producers."""
    verdict = ChaosVerdict()
    streams: dict[str, dict[int, NumberedMessage]] = {}
    places: dict[tuple[int, int], TablePosition] = {}
    spans: Spans = {}
    batches = set()
    for rows in table:
        batches.add(rows.batch)
        verdict.rows += len(rows.seqnos)
        _check_file_order(verdict, rows, spans)
        for origin, seqno, payload in zip(rows.origins, rows.seqnos, rows.payloads, strict=True):
            letter = letters.decode_message(payload)
            where = f"{origin} {seqno} in batch {rows.batch}, {rows.file.name}"
            if not letter.is_intact:
                verdict.add_finding("damaged", f"{where}: the payload is not whole")
                continue
            if streams.setdefault(origin, {}).setdefault(seqno, letter) is not letter:
                verdict.add_finding("repeated", f"{where} is there again")
                continue
            first = places.setdefault(letter[:2], (origin, seqno))
            if first != (origin, seqno):
                verdict.add_finding(
                    "repeated", f"{where}: message {letter[:2]} is also {first[0]} {first[1]}"
                )
    verdict.batches, verdict.streams = len(batches), len(streams)
    for origin, found in streams.items():
        _check_stream_order(verdict, origin, found)
        _check_batch_order(verdict, origin, spans[origin])
    for number, steps in logs.items():
        _check_completeness(verdict, number, steps, places)
    _check_foreign_rows(verdict, logs, places)
    return verdict


def _check_file_order(verdict: ChaosVerdict, rows: FileRows, spans: Spans) -> None:
    """Check that a file has each stream in order, and take down from where to where."""
    last: dict[str, int] = {}
    for origin, seqno in zip(rows.origins, rows.seqnos, strict=True):
        if seqno <= last.get(origin, 0):
            verdict.add_finding(
                "out_of_order", f"{rows.file.name} has {origin} {seqno} after {last[origin]}"
            )
        last[origin] = seqno
        low, high = spans.setdefault(origin, {}).get(rows.batch, (seqno, seqno))
        spans[origin][rows.batch] = (min(low, seqno), max(high, seqno))


def _check_batch_order(
    verdict: ChaosVerdict, origin: str, batches: Mapping[int, tuple[int, int]]
) -> None:
    """Check that each micro-batch goes on where all before it ended; files of one have no order among each other."""
    top, of = 0, -1
    for batch, (low, high) in sorted(batches.items()):
        if low <= top:
            verdict.add_finding(
                "out_of_order", f"batch {batch} has {origin} {low}, and batch {of} has {top}"
            )
        if high > top:
            top, of = high, batch


def _check_stream_order(
    verdict: ChaosVerdict, origin: str, found: Mapping[int, NumberedMessage]
) -> None:
    before: NumberedMessage | None = None
    for seqno in sorted(found):
        letter = found[seqno]
        if before is not None and (before.producer, before.number + 1) != letter[:2]:
            verdict.add_finding(
                "out_of_order", f"{origin} {seqno} is message {letter[:2]}, after {before[:2]}"
            )
        before = letter


def _check_completeness(
    verdict: ChaosVerdict,
    number: int,
    steps: Sequence[ProducerLogEntry],
    places: Mapping[tuple[int, int], TablePosition],
) -> None:
    by_step: Counter[str] = Counter()
    for step in steps:
        by_step[step.what] += step.last - step.first + 1
        if step.what != letters.ACKED:
            continue
        absent = []
        for count in range(step.first, step.last + 1):
            place = places.get((number, count))
            if place is None:
                absent.append(count)
            elif step.stream != "-" and not (
                place[0] == step.stream and step.low <= place[1] <= step.high
            ):
                what = f"message {count} of producer {number} is {place[0]} {place[1]}"
                verdict.add_finding(
                    "out_of_order", f"{what}, not in {step.stream} {step.low}..{step.high}"
                )
        if absent:
            which = f"{absent[0]}..{absent[-1]}" if len(absent) > 1 else str(absent[0])
            where = f"{step.stream} {step.low}..{step.high}"
            verdict.add_finding(
                "missing",
                f"{len(absent)} messages, {which} of producer {number} ({where})",
                len(absent),
            )
    verdict.sent += by_step[letters.TRY]
    verdict.acknowledged += by_step[letters.ACKED]
    verdict.undecided += by_step[letters.TRY] - by_step[letters.ACKED]


def _check_foreign_rows(
    verdict: ChaosVerdict,
    logs: Mapping[int, Sequence[ProducerLogEntry]],
    places: Mapping[tuple[int, int], TablePosition],
) -> None:
    most = {number: letters.last_count(steps) for number, steps in logs.items()}
    for (number, count), place in places.items():
        if not 1 <= count <= most.get(number, 0):
            verdict.add_finding(
                "foreign",
                f"{place[0]} {place[1]} says it is message {count} of producer {number}, never sent",
            )
