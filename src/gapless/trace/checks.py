"""The invariants that a trace alone can show, as pure functions over rows.

``gapless.invariants`` lists the invariants checked here; the docstring of each function names the
invariant. The simulator checks the same invariants online with frames, windows and bytes; a trace
has rows only. Where a check of rows is weaker, the docstring says so. Rows come in the order of
time, causes before effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.invariants import INVARIANTS, checked_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gapless.trace.schema import TraceRow

StreamKey = tuple[str, str]
"""A receiving incarnation and an origin."""


class TraceViolation(NamedTuple):
    """A violated invariant: the id, the time, the incarnation, and the observation."""

    check: str
    t_ns: int
    member: str
    message: str

    def __str__(self) -> str:
        return f"{self.check} at {self.t_ns} ns, {self.member}: {self.message}"


class Finding(NamedTuple):
    """A row that contradicts an invariant, and the observation."""

    row: TraceRow
    message: str


class TraceFacts:
    """A trace in the order of time: only streams to the group, numbered for a whole incarnation."""

    def __init__(self, rows: Iterable[TraceRow]) -> None:
        self.rows = [
            row for row in rows if not row.epoch and not (row.event == "DELIVER" and row.reason)
        ]
        self._by_event: dict[str, list[TraceRow]] = {}
        for row in self.rows:
            self._by_event.setdefault(row.event, []).append(row)
        self._members = {
            (row.member, row.view): tuple(row.reason.split()) for row in self.rows_of("MEMBERS")
        }
        self.reach = {row.member: row.high for row in self.rows_of("BEGIN") if row.high}
        self.present_at_end = {row.member: row for row in self.rows_of("REST")}
        self.received_state = {row.member for row in self.rows_of("STATE_IN")}
        self.legally_skipped: dict[tuple[str, str], set[int]] = {}
        """Messages a reader need not have: its own, and fragments begun before its start."""
        for row in self.rows_among("SEND", "DROPPED", "LOST"):
            if row.reason in {"not back", "headless", "oversized"}:
                numbers = range(row.seqno, row.seqno_last + 1)
                self.legally_skipped.setdefault((row.member, row.origin), set()).update(numbers)

    def rows_of(self, event: str) -> list[TraceRow]:
        """Return the rows of an event."""
        return self._by_event.get(event, [])

    def rows_among(self, *events: str) -> Iterator[TraceRow]:
        """Return the rows of several events."""
        wanted = frozenset(events)
        return (row for row in self.rows if row.event in wanted)

    def members(self, row: TraceRow) -> tuple[str, ...] | None:
        """Return the members of the view of a VIEW row, if listed by a MEMBERS row."""
        return self._members.get((row.member, row.seqno_last))


def _range(row: TraceRow) -> str:
    return f"{row.seqno}..{row.seqno_last}"


def no_creation(facts: TraceFacts) -> Iterator[Finding]:
    """S1: seqnos are consecutive, and a delivered message was sent before."""
    high: dict[str, int] = {}
    for row in facts.rows_among("SEND", "DELIVER"):
        sent = high.get(row.origin, 0)
        if row.event == "SEND":
            if row.seqno != sent + 1:
                yield Finding(row, f"{row.seqno} is sent as new, but {sent} was the last seqno")
            high[row.origin] = max(sent, row.seqno_last)
        elif row.seqno_last > sent:
            yield Finding(row, f"delivers {_range(row)} of {row.origin}, which has sent {sent}")


def no_duplicate(facts: TraceFacts) -> Iterator[Finding]:
    """S2: an incarnation delivers no message twice."""
    last: dict[StreamKey, int] = {}
    for row in facts.rows_of("DELIVER"):
        key = row.member, row.origin
        if row.seqno <= last.get(key, 0):
            yield Finding(row, f"delivers {_range(row)} of {row.origin} after {last[key]}")
        last[key] = max(last.get(key, 0), row.seqno_last)


def gapless_prefix(facts: TraceFacts) -> Iterator[Finding]:
    """S3: each stream is delivered in order from its announced start; a new start counts once.

    If a fragmented message began before the start, the rest is not delivered: delivery begins
    behind the message. Messages covered by a state are not in the trace, so an incarnation that
    received a state may begin anywhere.
    """
    starts: dict[StreamKey, list[int]] = {}
    for row in facts.rows_among("START", "LOST"):
        first = row.seqno if row.event == "START" else row.seqno_last + 1
        key = row.member, row.origin
        starts.setdefault(key, []).append(_next_deliverable(facts, key, first))
    due: dict[StreamKey, int] = {}
    for row in facts.rows_of("DELIVER"):
        key = row.member, row.origin
        wanted = _next_deliverable(facts, key, due.get(key, 1 if row.member == row.origin else 0))
        if row.seqno > wanted:
            announced = starts.get(key, [])
            if row.seqno in announced:
                announced.remove(row.seqno)
            elif key in due or row.member not in facts.received_state:
                yield Finding(
                    row,
                    f"delivers {row.seqno} of {row.origin}, {wanted or 'no start'} is next",
                )
        due[key] = max(wanted, row.seqno_last + 1)


def _next_deliverable(facts: TraceFacts, key: StreamKey, seqno: int) -> int:
    """Return the first deliverable seqno from ``seqno`` on."""
    stepped_over = facts.legally_skipped.get(key, ())
    while seqno in stepped_over:
        seqno += 1
    return seqno


def integrity(facts: TraceFacts) -> Iterator[Finding]:
    """S4: delivered bytes equal sent bytes, wherever both rows have a hash of the same messages."""
    sent = {(row.origin, row.hash_first, row.seqno_last): row.hash for row in facts.rows_of("SEND")}
    for row in facts.rows_of("DELIVER"):
        if sent.get((row.origin, row.hash_first, row.seqno_last), row.hash) != row.hash:
            yield Finding(
                row, f"delivers other bytes as {_range(row)} of {row.origin} than were sent"
            )


def window(facts: TraceFacts) -> Iterator[Finding]:
    """S6: no window exceeds its reach, as recorded in the BEGIN row of the incarnation."""
    for row in facts.rows_of("STATE"):
        low = row.low if row.origin == row.member else row.delivered
        reach = facts.reach.get(row.member)
        if reach is not None and row.high - low > reach:
            yield Finding(
                row,
                f"the window of {row.origin} reaches from {low} to {row.high}, {reach} are allowed",
            )


def marks(facts: TraceFacts) -> Iterator[Finding]:
    """S7: low <= delivered <= high, and none goes down while the origin stays a member."""
    known: dict[StreamKey, tuple[int, int, int]] = {}
    for row in facts.rows_among("STATE", "VIEW"):
        if row.event == "VIEW":
            stay = facts.members(row) or ()
            for key in [
                key for key in known if key[0] == row.member and key[1] not in (*stay, row.member)
            ]:
                del known[key]
            continue
        key, found = (row.member, row.origin), (row.low, row.delivered, row.high)
        before = known.get(key, (0, 0, 0))
        if not row.low <= row.delivered <= row.high:
            yield Finding(row, f"marks of {row.origin} are out of order: {found}")
        if any(new < old for new, old in zip(found, before, strict=True)):
            yield Finding(row, f"marks of {row.origin} went back from {before} to {found}")
        known[key] = found


def acks_are_true(facts: TraceFacts) -> Iterator[Finding]:
    """S8: a member acknowledges only delivered messages."""
    taken: dict[StreamKey, int] = {}
    for row in facts.rows_among("STATE", "ACK_IN"):
        if row.event == "STATE":
            key = row.member, row.origin
            taken[key] = max(taken.get(key, 0), row.delivered)
        elif row.seqno_last > (has := taken.get((row.peer, row.origin), 0)):
            yield Finding(row, f"an ack of {row.peer} for {row.seqno_last} came in; it has {has}")


def purge_is_safe(facts: TraceFacts) -> Iterator[Finding]:
    """S9: every member of the view has acknowledged a purged message, or joined after it."""
    high: dict[str, int] = {}
    acks: dict[str, dict[str, int] | None] = {}
    for row in facts.rows_among("SEND", "VIEW", "ACK_IN", "PURGE"):
        me = row.member
        table = acks.get(me)
        if row.event == "SEND":
            high[me] = row.seqno_last
        elif row.event == "VIEW":
            members = facts.members(row)
            others = [] if members is None else [member for member in members if member != me]
            before, now = table or {}, high.get(me, 0)
            acks[me] = (
                None if members is None else {member: before.get(member, now) for member in others}
            )
        elif table is None or row.origin != me:
            continue
        elif row.event == "ACK_IN":
            if row.peer in table:
                table[row.peer] = max(table[row.peer], row.seqno_last)
        else:
            for member, ack in table.items():
                if ack < row.seqno_last:
                    yield Finding(
                        row,
                        f"purges up to {row.seqno_last}, but {member} has acknowledged {ack}",
                    )


def repairs_are_requested(facts: TraceFacts) -> Iterator[Finding]:
    """S10: a repair answers a request, unless marked as unasked. S4 checks the bytes."""
    asked: dict[StreamKey, set[int]] = {}
    for row in facts.rows_among("NAK_IN", "REPAIR"):
        wanted = asked.setdefault((row.member, row.origin), set())
        numbers = range(row.seqno, row.seqno_last + 1)
        if row.event == "NAK_IN":
            wanted.update(numbers)
        elif row.reason != "unasked" and not wanted.issuperset(numbers):
            yield Finding(
                row, f"sends {_range(row)} of {row.origin} again, although no member requested it"
            )


def naks_are_legal(facts: TraceFacts) -> Iterator[Finding]:
    """S11: a NAK names existing, undelivered messages. The simulator checks the rate."""
    taken: dict[StreamKey, int] = {}
    high: dict[str, int] = {}
    for row in facts.rows_among("STATE", "SEND", "NAK_OUT"):
        if row.event == "STATE":
            taken[row.member, row.origin] = row.delivered
        elif row.event == "SEND":
            high[row.origin] = row.seqno_last
        else:
            has, sent = taken.get((row.member, row.origin), 0), high.get(row.origin, 0)
            if row.seqno <= has or row.seqno_last > sent:
                yield Finding(
                    row,
                    f"asks for {_range(row)} of {row.origin}; it has {has}, {sent} were sent",
                )


def views(facts: TraceFacts) -> Iterator[Finding]:
    """S15: an id has one list; numbers rise; a member is in its views; the coordinator leads."""
    last: dict[str, int] = {}
    for row in facts.rows_of("VIEW"):
        if row.seqno_last <= last.get(row.member, 0):
            yield Finding(row, f"view {row.seqno_last} follows view {last[row.member]}")
        last[row.member] = row.seqno_last
    lists: dict[tuple[int, str], str] = {}
    incarnations = {row.member for row in facts.rows_of("BEGIN")}
    for row in facts.rows_of("MEMBERS"):
        members = row.reason.split()
        if lists.setdefault((row.view, row.origin), row.reason) != row.reason:
            yield Finding(row, f"view {row.view} of {row.origin} has two lists of members")
        if row.member not in members:
            yield Finding(row, f"view {row.view} was installed by an incarnation outside the view")
        if members[:1] != [row.origin]:
            yield Finding(
                row,
                f"view {row.view} was created by {row.origin}, which is not the first member",
            )
        if incarnations and (unknown := sorted(set(members) - incarnations)):
            yield Finding(row, f"view {row.view} names {', '.join(unknown)}, which never started")


def delivery(facts: TraceFacts) -> Iterator[Finding]:
    """L1: messages sent after an incarnation joined the view are delivered there."""
    delivered: dict[tuple[str, str], set[int]] = {}
    for row in facts.rows_of("DELIVER"):
        delivered.setdefault((row.member, row.origin), set()).update(
            range(row.seqno, row.seqno_last + 1)
        )
    owed = _expected_deliveries(facts)
    for origin, end in facts.present_at_end.items():
        for member, numbers in owed.get(origin, {}).items():
            if member not in facts.present_at_end:
                continue
            has = delivered.get((member, origin), set())
            missing = numbers - has - facts.legally_skipped.get((member, origin), set())
            if member in facts.received_state:
                # Messages that its state covers are not delivered; after that none may be missing.
                missing = {number for number in missing if has and number > min(has)}
            if missing:
                missed = f"{len(missing)} of its messages, the first is {min(missing)}"
                message = f"{member} has not delivered {missed}"
                yield Finding(end, message)


def _expected_deliveries(facts: TraceFacts) -> dict[str, dict[str, set[int]]]:
    """Return the seqnos that a member has to deliver, by origin and member."""
    owed: dict[str, dict[str, set[int]]] = {}
    for row in facts.rows_among("SEND", "VIEW"):
        expected = owed.setdefault(row.member, {})
        if row.event == "SEND":
            for numbers in expected.values():
                numbers.update(range(row.seqno, row.seqno_last + 1))
        else:
            members = facts.members(row) or ()
            owed[row.member] = {member: expected.get(member, set()) for member in members}
    return owed


def stability(facts: TraceFacts) -> Iterator[Finding]:
    """L2: every message of an incarnation is acknowledged in the end: the window is empty."""
    last: dict[str, TraceRow] = {
        row.member: row for row in facts.rows_of("STATE") if row.origin == row.member
    }
    for member, end in facts.present_at_end.items():
        state = last.get(member)
        if state is not None and state.low != state.high:
            unreleased = f"{state.low + 1}..{state.high}"
            message = f"{state.high - state.low} of its messages are not released: {unreleased}"
            yield Finding(end, message)


def one_view(facts: TraceFacts) -> Iterator[Finding]:
    """L6: all members at the end are in a single view of exactly these members.

    Later rows are ignored.
    """
    ends = {member: end.t_ns for member, end in facts.present_at_end.items()}
    last = {
        row.member: row for row in facts.rows_of("MEMBERS") if row.t_ns <= ends.get(row.member, 0)
    }
    ids = {(row.view, row.origin) for member, row in last.items() if member in facts.present_at_end}
    for member, end in facts.present_at_end.items():
        latest = last.get(member)
        members = set() if latest is None else set(latest.reason.split())
        if len(ids) > 1 or members != set(facts.present_at_end):
            present = len(facts.present_at_end)
            views = f"{present} are there, in {len(ids)} views"
            message = f"its last view has {len(members)} members, {views}"
            yield Finding(end, message)


_CHECK_OF_NAME: dict[str, Callable[[TraceFacts], Iterator[Finding]]] = {
    "no creation": no_creation,
    "no duplicate": no_duplicate,
    "gapless prefix": gapless_prefix,
    "integrity": integrity,
    "window": window,
    "marks": marks,
    "acks are true": acks_are_true,
    "purge is safe": purge_is_safe,
    "repairs are exact": repairs_are_requested,
    "naks are legal": naks_are_legal,
    "views": views,
    "delivery": delivery,
    "stability": stability,
    "one group": one_view,
}
"""The function of each check, by the name of its invariant."""

CHECKS = {id_: _CHECK_OF_NAME[INVARIANTS[id_].name] for id_ in checked_by("rows")}
"""Every check of a trace by the id of its invariant, in the order of the registry."""


def check(rows: Iterable[TraceRow]) -> list[TraceViolation]:
    """Return every violation in a trace, by invariant, in the order of time."""
    facts = TraceFacts(rows)
    return [
        TraceViolation(id_, finding.row.t_ns, finding.row.member, finding.message)
        for id_, find in CHECKS.items()
        for finding in find(facts)
    ]
