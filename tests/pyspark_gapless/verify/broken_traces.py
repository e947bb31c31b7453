"""Good traces with one thing wrong: each promise broken once, in a simulated group of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from gapless.sim import simulate
from gapless.sim.seed_result import SeedResult
from gapless.trace.incarnations import INCARNATIONS_FILE
from gapless.trace.parquet import rows_to_table, write_table
from gapless.trace.schema import TraceRow

Rows = list[TraceRow]
Change = Callable[[Rows], Rows]
Which = Callable[[TraceRow], bool]


@cache
def good(base: str) -> SeedResult:
    """Return one of the runs that the bad traces are made of."""
    seed, character, profile = {
        "loss": (2, "loss", "nakack4"),
        "aside": (3, "swarm", "nakack4"),
        "stable": (1, "swarm", "nakack"),
    }[base]
    outcome = simulate(
        seed, members=3, messages=8, character=character, profile=profile, trace=True
    )
    assert outcome.ok
    assert outcome.trace
    return outcome


def write(folder: Path, runs: dict[int, tuple[str, Change]]) -> None:
    """Write one trace: by seed, a base and the change to it."""
    (folder / "set").mkdir(parents=True)
    rows, lines = [], []
    for seed, (base, change) in runs.items():
        outcome = good(base)
        rows += [row._replace(seed=seed) for row in renumbered(change(list(outcome.trace or ())))]
        lines += [life._replace(seed=seed).to_json_line() for life in outcome.incarnations]
    (folder / "set" / INCARNATIONS_FILE).write_text("".join(lines), encoding="utf-8")
    write_table(rows_to_table(rows), folder / "set" / "00001.parquet")


def renumbered(rows: Rows) -> Rows:
    """Return the rows with ``idx`` without a hole, as a recorder would have written them."""
    counts: dict[str, int] = {}
    found = []
    for row in rows:
        found.append(row._replace(idx=counts.get(row.member, 0)))
        counts[row.member] = found[-1].idx + 1
    return found


def at(rows: Rows, which: Which, nth: int = 0) -> int:
    """Return where the ``nth`` row is that ``which`` holds for; -1 is the last."""
    return [place for place, row in enumerate(rows) if which(row)][nth]


def is_a(event: str, **columns: object) -> Which:
    """Return a test for rows of an event with these values."""
    return lambda row: (
        row.event == event and all(getattr(row, name) == value for name, value in columns.items())
    )


def replace(which: Which, nth: int = 0, **columns: object) -> Change:
    """Change one row; a value may be a function of the row."""

    def change(rows: Rows) -> Rows:
        place = at(rows, which, nth)
        row = rows[place]
        values: dict[str, Any] = {
            name: value(row) if callable(value) else value for name, value in columns.items()
        }
        return [*rows[:place], row._replace(**values), *rows[place + 1 :]]

    return change


def insert(which: Which, nth: int = 0, *, copies: int = 1, **columns: object) -> Change:
    """Write a row once more behind itself, with other values."""

    def change(rows: Rows) -> Rows:
        place = at(rows, which, nth)
        row = rows[place]
        values: dict[str, Any] = {
            name: value(row) if callable(value) else value for name, value in columns.items()
        }
        return [*rows[: place + 1], *[row._replace(**values)] * copies, *rows[place + 1 :]]

    return change


def without(which: Which, nth: int | None = 0) -> Change:
    """Leave one row out, or all with ``nth=None``."""

    def change(rows: Rows) -> Rows:
        if nth is None:
            assert any(map(which, rows))
            return [row for row in rows if not which(row)]
        place = at(rows, which, nth)
        return [*rows[:place], *rows[place + 1 :]]

    return change


def delivered_again(which: Which, nth: int = 0) -> Change:
    """Deliver a row twice; the recorder counts on."""

    def change(rows: Rows) -> Rows:
        place = at(rows, which, nth)
        row = rows[place]
        return [*rows[: place + 1], *_counted_on([row, *rows[place + 1 :]], row, _count(row))]

    return change


def never_delivered(which: Which, nth: int = 0) -> Change:
    """Leave a delivery out; the recorder counts what is left."""

    def change(rows: Rows) -> Rows:
        place = at(rows, which, nth)
        return [*rows[:place], *_counted_on(rows[place + 1 :], rows[place], -_count(rows[place]))]

    return change


def started_anew(which: Which, nth: int = 0) -> Change:
    """Replace a delivery by a START behind it: the rest of the stream is a part of its own."""

    def change(rows: Rows) -> Rows:
        place = at(rows, which, nth)
        left, start = rows[place], rows[place].seqno_last + 1
        begins = at(rows, is_a("START", member=left.member, origin=left.origin))
        again = rows[begins]._replace(
            seqno=start, part=left.part + 1, step=left.step, t_ns=left.t_ns
        )
        same = "member", "origin", "epoch", "to", "event", "reason"
        of = [getattr(left, name) for name in same]
        rest = [
            row._replace(part=left.part + 1, k=row.seqno - start)
            if [getattr(row, name) for name in same] == of
            else row
            for row in rows[place + 1 :]
        ]
        return [*rows[:place], again, *rest]

    return change


def _counted_on(rows: Rows, changed: TraceRow, by: int) -> Rows:
    same = "member", "origin", "epoch", "to", "part", "event", "reason"
    of = [getattr(changed, name) for name in same]
    return [
        row._replace(k=row.k + by) if [getattr(row, name) for name in same] == of else row
        for row in rows
    ]


def _count(row: TraceRow) -> int:
    return row.seqno_last - row.seqno + 1
