"""What the checks of a trace look at: its rows by event, and who was in which view."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.trace.schema import Row


class Violation(NamedTuple):
    """An invariant that does not hold: its id, when, at which life, and what was seen."""

    check: str
    t_ns: int
    member: str
    message: str

    def __str__(self) -> str:
        return f"{self.check} at {self.t_ns} ns, {self.member}: {self.message}"


class Facts:
    """A trace in the order of time. Only the stream to the group is looked at, numbered for a whole life."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = [row for row in rows if not row.epoch and not (row.event == "DELIVER" and row.reason)]
        self._by_event: dict[str, list[Row]] = {}
        for row in self.rows:
            self._by_event.setdefault(row.event, []).append(row)
        self._members = {(row.member, row.view): tuple(row.reason.split()) for row in self.of("MEMBERS")}
        self.reach = {row.member: row.high for row in self.of("BEGIN") if row.high}
        self.at_end = {row.member: row for row in self.of("REST")}
        self.given = {row.member for row in self.of("STATE_IN")}
        self.stepped_over: dict[tuple[str, str], set[int]] = {}
        """What a reader is not handed of an origin, by right: own messages, pieces of what began before its start."""
        for row in self.among("SEND", "DROPPED", "LOST"):
            if row.reason in {"not back", "headless", "oversized"}:
                numbers = range(row.seqno, row.seqno_last + 1)
                self.stepped_over.setdefault((row.member, row.origin), set()).update(numbers)

    def of(self, event: str) -> list[Row]:
        """Return the rows of one event."""
        return self._by_event.get(event, [])

    def among(self, *events: str) -> Iterator[Row]:
        """Return the rows of several events."""
        wanted = frozenset(events)
        return (row for row in self.rows if row.event in wanted)

    def members(self, row: Row) -> tuple[str, ...] | None:
        """Return the members of the view that a VIEW row is about, if anybody has written them down."""
        return self._members.get((row.member, row.seqno_last))
