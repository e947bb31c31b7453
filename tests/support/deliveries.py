"""Deliveries to append, and a whole spool read back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.identity import Address
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.spool import MESSAGE, SpoolLimits, SpoolReader, SpoolWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

A = Address(0xA1, 5)
B = Address(0xB2, 7)
C = Address(0xC3, 1)
GROUP = "orders"

Rows = dict[str, list[tuple[int, bytes]]]


def text(origin: Address, seqno: int, size_bytes: int = 0) -> bytes:
    """The message that every test sends under this number."""
    return f"{origin}:{seqno}".encode().ljust(size_bytes, b".")


def run(origin: Address, first: int, last: int, *, size_bytes: int = 0, **fields: int) -> Delivery:
    """A delivery of one run."""
    messages = [text(origin, seqno, size_bytes) for seqno in range(first, last + 1)]
    return Delivery(origin, first, last, Run.of(origin, first, messages, **fields))


def pieces(origin: Address, first: int, last: int, size_bytes: int = 70_000) -> Delivery:
    """A delivery of one message that was sent in fragments."""
    return Delivery(origin, first, last, text(origin, last, size_bytes))


def opened(path: Path, *, node: int | None = None, **options: object) -> SpoolWriter:
    """The writer of a spool of ours."""
    limits = SpoolLimits(**options)  # type: ignore[arg-type]
    return SpoolWriter.open(path, group=GROUP, node=node, limits=limits, sync=False)


def rows_of(
    view: SpoolReader, start: Mapping[str, int] | None = None, end: Mapping[str, int] | None = None
) -> Rows:
    """Every message of a range, by stream, in the order of reading."""
    found: Rows = {}
    for record in view.records(view.slices(start or {}, view.high() if end is None else end)):
        assert record.rows == len(record.seqnos()) == len(record.messages())
        assert (record.kind == MESSAGE) == (not record.lengths)
        found.setdefault(record.stream, []).extend(
            zip(record.seqnos(), record.messages(), strict=True)
        )
    return found


def expected(
    origin: Address, first: int, last: int, size_bytes: int = 0
) -> list[tuple[int, bytes]]:
    """What reading ``first .. last`` should give."""
    return [(seqno, text(origin, seqno, size_bytes)) for seqno in range(first, last + 1)]
