"""The invariants that a trace alone can show, as pure functions over its rows.

Each has the id of the check that the simulator runs online (gapless.sim.checkers.stream_safety).
The simulator sees frames, windows and bytes, these see rows only; where they promise less, the
docstring says so. Rows come in the order of time, causes before effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gapless.trace.schema import TraceRow

StreamKey = tuple[str, str]
"""A reader and an origin."""


class TraceViolation(NamedTuple):
    """An invariant that does not hold: its id, when, at which life, and what was seen."""

    check: str
    t_ns: int
    member: str
    message: str

    def __str__(self) -> str:
        return f"{self.check} at {self.t_ns} ns, {self.member}: {self.message}"


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
        """Messages that a reader rightly lacks: its own, and fragments begun before its start."""
        for row in self.rows_among("SEND", "DROPPED", "LOST"):
            if row.reason in {"not back", "headless", "oversized"}:
                numbers = range(row.seqno, row.seqno_last + 1)
                self.legally_skipped.setdefault((row.member, row.origin), set()).update(numbers)

    def rows_of(self, event: str) -> list[TraceRow]:
        """Return the rows of one event."""
        return self._by_event.get(event, [])

    def rows_among(self, *events: str) -> Iterator[TraceRow]:
        """Return the rows of several events."""
        wanted = frozenset(events)
        return (row for row in self.rows if row.event in wanted)

    def members(self, row: TraceRow) -> tuple[str, ...] | None:
        """Return the members of the view of a VIEW row, if any row lists them."""
        return self._members.get((row.member, row.seqno_last))


def _violation(check: str, row: TraceRow, message: str) -> TraceViolation:
    return TraceViolation(check, row.t_ns, row.member, message)


def _range(row: TraceRow) -> str:
    return f"{row.seqno}..{row.seqno_last}"


def no_creation(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S1: numbers are given one after the other, and what is delivered has been sent before."""
    high: dict[str, int] = {}
    for row in facts.rows_among("SEND", "DELIVER"):
        sent = high.get(row.origin, 0)
        if row.event == "SEND":
            if row.seqno != sent + 1:
                yield _violation("S1", row, f"{row.seqno} goes out as new, but {sent} was last")
            high[row.origin] = max(sent, row.seqno_last)
        elif row.seqno_last > sent:
            yield _violation(
                "S1", row, f"delivers {_range(row)} of {row.origin}, which has sent {sent}"
            )


def no_duplicate(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S2: a life delivers nothing twice."""
    last: dict[StreamKey, int] = {}
    for row in facts.rows_of("DELIVER"):
        key = row.member, row.origin
        if row.seqno <= last.get(key, 0):
            yield _violation("S2", row, f"delivers {_range(row)} of {row.origin} after {last[key]}")
        last[key] = max(last.get(key, 0), row.seqno_last)


def gapless_prefix(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S3: each stream is delivered in order from its announced start; a new start counts once.

    Of a message in pieces that had begun before the start the rest cannot be handed out: delivery
    begins behind it. What a state covers is not in the trace: whoever was given one may begin
    anywhere.
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
            told = starts.get(key, [])
            if row.seqno in told:
                told.remove(row.seqno)
            elif key in due or row.member not in facts.received_state:
                yield _violation(
                    "S3",
                    row,
                    f"delivers {row.seqno} of {row.origin}, {wanted or 'no start'} is next",
                )
        due[key] = max(wanted, row.seqno_last + 1)


def _next_deliverable(facts: TraceFacts, key: StreamKey, seqno: int) -> int:
    """Return the first message from ``seqno`` on that is to be handed out."""
    stepped_over = facts.legally_skipped.get(key, ())
    while seqno in stepped_over:
        seqno += 1
    return seqno


def integrity(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S4: delivered bytes equal sent bytes, wherever both rows have a hash of the same messages."""
    sent = {(row.origin, row.hash_first, row.seqno_last): row.hash for row in facts.rows_of("SEND")}
    for row in facts.rows_of("DELIVER"):
        if sent.get((row.origin, row.hash_first, row.seqno_last), row.hash) != row.hash:
            yield _violation(
                "S4", row, f"delivers other bytes as {_range(row)} of {row.origin} than were sent"
            )


def window(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S6: no window exceeds its reach, which is in the BEGIN row of the incarnation."""
    for row in facts.rows_of("STATE"):
        low = row.low if row.origin == row.member else row.delivered
        reach = facts.reach.get(row.member)
        if reach is not None and row.high - low > reach:
            yield _violation(
                "S6",
                row,
                f"the window of {row.origin} reaches from {low} to {row.high}, {reach} are allowed",
            )


def marks(facts: TraceFacts) -> Iterator[TraceViolation]:
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
            yield _violation("S7", row, f"marks of {row.origin} are out of order: {found}")
        if any(new < old for new, old in zip(found, before, strict=True)):
            yield _violation("S7", row, f"marks of {row.origin} went back from {before} to {found}")
        known[key] = found


def acks_are_true(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S8: an ack comes only from a member that has taken the stream that far."""
    taken: dict[StreamKey, int] = {}
    for row in facts.rows_among("STATE", "ACK_IN"):
        if row.event == "STATE":
            key = row.member, row.origin
            taken[key] = max(taken.get(key, 0), row.delivered)
        elif row.seqno_last > (has := taken.get((row.peer, row.origin), 0)):
            yield _violation(
                "S8", row, f"an ack of {row.peer} for {row.seqno_last} came in; it has {has}"
            )


def purge_is_safe(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S9: what a sender purges, every member of its view has acknowledged, or came too late for."""
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
                    yield _violation(
                        "S9",
                        row,
                        f"purges up to {row.seqno_last}, but {member} has acknowledged {ack}",
                    )


def repairs_are_requested(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S10: a repair answers a request, unless it is marked as unasked. S4 checks its bytes."""
    asked: dict[StreamKey, set[int]] = {}
    for row in facts.rows_among("NAK_IN", "REPAIR"):
        wanted = asked.setdefault((row.member, row.origin), set())
        numbers = range(row.seqno, row.seqno_last + 1)
        if row.event == "NAK_IN":
            wanted.update(numbers)
        elif row.reason != "unasked" and not wanted.issuperset(numbers):
            yield _violation(
                "S10", row, f"sends {_range(row)} of {row.origin} again, which nobody has asked for"
            )


def naks_are_legal(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S11: a nak names messages that exist and are not delivered. The simulator checks its pace."""
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
                yield _violation(
                    "S11",
                    row,
                    f"asks for {_range(row)} of {row.origin}; it has {has}, {sent} were sent",
                )


def views(facts: TraceFacts) -> Iterator[TraceViolation]:
    """S15: one id is one list; numbers rise; a member is in its views; the coordinator is first."""
    last: dict[str, int] = {}
    for row in facts.rows_of("VIEW"):
        if row.seqno_last <= last.get(row.member, 0):
            yield _violation("S15", row, f"view {row.seqno_last} follows view {last[row.member]}")
        last[row.member] = row.seqno_last
    lists: dict[tuple[int, str], str] = {}
    lives = {row.member for row in facts.rows_of("BEGIN")}
    for row in facts.rows_of("MEMBERS"):
        members = row.reason.split()
        if lists.setdefault((row.view, row.origin), row.reason) != row.reason:
            yield _violation(
                "S15", row, f"view {row.view} of {row.origin} has two lists of members"
            )
        if row.member not in members:
            yield _violation("S15", row, f"view {row.view} is told to a life that is not in it")
        if members[:1] != [row.origin]:
            yield _violation(
                "S15",
                row,
                f"view {row.view} was made by {row.origin}, which is not its first member",
            )
        if lives and (unknown := sorted(set(members) - lives)):
            yield _violation(
                "S15", row, f"view {row.view} names {', '.join(unknown)}, which never lived"
            )


def delivery(facts: TraceFacts) -> Iterator[TraceViolation]:
    """L1: everything sent since another incarnation joined the view is delivered there."""
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
                # What its state covers is not handed out; after that nothing may be missing.
                missing = {number for number in missing if has and number > min(has)}
            if missing:
                missed = f"{len(missing)} of its messages, the first is {min(missing)}"
                message = f"{member} has not delivered {missed}"
                yield TraceViolation("L1", end.t_ns, origin, message)


def _expected_deliveries(facts: TraceFacts) -> dict[str, dict[str, set[int]]]:
    """Return by origin and member what the member is to have."""
    owed: dict[str, dict[str, set[int]]] = {}
    for row in facts.rows_among("SEND", "VIEW"):
        mine = owed.setdefault(row.member, {})
        if row.event == "SEND":
            for numbers in mine.values():
                numbers.update(range(row.seqno, row.seqno_last + 1))
        else:
            members = facts.members(row) or ()
            owed[row.member] = {member: mine.get(member, set()) for member in members}
    return owed


def stability(facts: TraceFacts) -> Iterator[TraceViolation]:
    """L2: everything that a life has sent is acknowledged: its window is empty."""
    last: dict[str, TraceRow] = {
        row.member: row for row in facts.rows_of("STATE") if row.origin == row.member
    }
    for member, end in facts.present_at_end.items():
        state = last.get(member)
        if state is not None and state.low != state.high:
            unreleased = f"{state.low + 1}..{state.high}"
            message = f"{state.high - state.low} of its messages are not released: {unreleased}"
            yield TraceViolation("L2", end.t_ns, member, message)


def one_view(facts: TraceFacts) -> Iterator[TraceViolation]:
    """L6: all are in one view of exactly those present; anything later is ignored."""
    ends = {member: end.t_ns for member, end in facts.present_at_end.items()}
    last = {
        row.member: row for row in facts.rows_of("MEMBERS") if row.t_ns <= ends.get(row.member, 0)
    }
    ids = {(row.view, row.origin) for member, row in last.items() if member in facts.present_at_end}
    for member, end in facts.present_at_end.items():
        told = last.get(member)
        members = set() if told is None else set(told.reason.split())
        if len(ids) > 1 or members != set(facts.present_at_end):
            present = len(facts.present_at_end)
            views = f"{present} are there, in {len(ids)} views"
            message = f"its last view has {len(members)} members, {views}"
            yield TraceViolation("L6", end.t_ns, member, message)


CHECKS: dict[str, Callable[[TraceFacts], Iterator[TraceViolation]]] = {
    "S1": no_creation,
    "S2": no_duplicate,
    "S3": gapless_prefix,
    "S4": integrity,
    "S6": window,
    "S7": marks,
    "S8": acks_are_true,
    "S9": purge_is_safe,
    "S10": repairs_are_requested,
    "S11": naks_are_legal,
    "S15": views,
    "L1": delivery,
    "L2": stability,
    "L6": one_view,
}
"""Every check of a trace, by the id of its invariant."""


def check(rows: Iterable[TraceRow]) -> list[TraceViolation]:
    """Return everything that is wrong with a trace, by invariant, in the order of time."""
    facts = TraceFacts(rows)
    return [violation for look in CHECKS.values() for violation in look(facts)]
