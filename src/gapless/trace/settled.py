"""What must hold at the end of a trace, among the lives that are there at the end (those with a REST row)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.trace.facts import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.trace.facts import Facts
    from gapless.trace.schema import Row


def delivery(facts: Facts) -> Iterator[Violation]:
    """L1: whatever a life has sent since another became a member of its view, that one has delivered."""
    delivered: dict[tuple[str, str], set[int]] = {}
    for row in facts.of("DELIVER"):
        delivered.setdefault((row.member, row.origin), set()).update(range(row.seqno, row.seqno_last + 1))
    owed = _owed(facts)
    for origin, end in facts.at_end.items():
        for member, numbers in owed.get(origin, {}).items():
            if member not in facts.at_end:
                continue
            has = delivered.get((member, origin), set())
            missing = numbers - has - facts.stepped_over.get((member, origin), set())
            if member in facts.given:
                # What its state covers is not handed out; after that nothing may be missing.
                missing = {number for number in missing if has and number > min(has)}
            if missing:
                message = f"{member} has not delivered {len(missing)} of its messages, the first is {min(missing)}"
                yield Violation("L1", end.t_ns, origin, message)


def _owed(facts: Facts) -> dict[str, dict[str, set[int]]]:
    """Return by origin and member what the member is to have."""
    owed: dict[str, dict[str, set[int]]] = {}
    for row in facts.among("SEND", "VIEW"):
        mine = owed.setdefault(row.member, {})
        if row.event == "SEND":
            for numbers in mine.values():
                numbers.update(range(row.seqno, row.seqno_last + 1))
        else:
            members = facts.members(row) or ()
            owed[row.member] = {member: mine.get(member, set()) for member in members}
    return owed


def stability(facts: Facts) -> Iterator[Violation]:
    """L2: everything that a life has sent is acknowledged: its window is empty."""
    last: dict[str, Row] = {row.member: row for row in facts.of("STATE") if row.origin == row.member}
    for member, end in facts.at_end.items():
        state = last.get(member)
        if state is not None and state.low != state.high:
            message = f"{state.high - state.low} of its messages are not released: {state.low + 1}..{state.high}"
            yield Violation("L2", end.t_ns, member, message)


def one_group(facts: Facts) -> Iterator[Violation]:
    """L6: all are in one view, of exactly those that are there; what comes after that, such as leaving, is left out."""
    ends = {member: end.t_ns for member, end in facts.at_end.items()}
    last = {row.member: row for row in facts.of("MEMBERS") if row.t_ns <= ends.get(row.member, 0)}
    ids = {(row.view, row.origin) for member, row in last.items() if member in facts.at_end}
    for member, end in facts.at_end.items():
        told = last.get(member)
        members = set() if told is None else set(told.reason.split())
        if len(ids) > 1 or members != set(facts.at_end):
            message = f"its last view has {len(members)} members, {len(facts.at_end)} are there, in {len(ids)} views"
            yield Violation("L6", end.t_ns, member, message)
