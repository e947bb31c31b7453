"""Each check of a trace is content with a good trace, and finds what is wrong with a bad one."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gapless.sim import simulate
from gapless.sim.checkers.stream_safety import CHECKERS as ONLINE
from gapless.trace import CHECKS, EVENTS, TraceRow, check

DOCS = Path(__file__).resolve().parents[2] / "docs"


class Story:
    """Rows in the order of time, one step each."""

    def __init__(self) -> None:
        self.rows: list[TraceRow] = []

    def row(self, member: str, event: str, **columns: object) -> None:
        step = len(self.rows) + 1
        columns.setdefault("view", 1)
        self.rows.append(
            TraceRow(seed=0, idx=step, step=step, t_ns=step, member=member, event=event, **columns)  # type: ignore[arg-type]
        )

    def view(self, number: int, *members: str) -> None:
        for member in members:
            self.row(member, "VIEW", origin=member, seqno_last=number, view=number)
            self.row(member, "MEMBERS", origin=members[0], view=number, reason=" ".join(members))

    def send(self, member: str, seqno: int, last: int = 0) -> None:
        numbers = {"origin": member, "seqno": seqno, "seqno_last": last or seqno}
        self.row(member, "SEND", **numbers, hash=100 + seqno, hash_first=seqno)
        self.marks(member, member, 0, seqno - 1, last or seqno)

    def deliver(self, member: str, origin: str, seqno: int, last: int = 0) -> None:
        numbers = {"origin": origin, "seqno": seqno, "seqno_last": last or seqno}
        self.row(member, "DELIVER", **numbers, hash=100 + seqno, hash_first=seqno)

    def marks(self, member: str, origin: str, low: int, delivered: int, high: int) -> None:
        self.row(member, "STATE", origin=origin, low=low, delivered=delivered, high=high)

    def replace(self, event: str, nth: int = 0, **columns: object) -> list[TraceRow]:
        """Return the rows with one of them changed: the ``nth`` of this event."""
        at = [at for at, row in enumerate(self.rows) if row.event == event][nth]
        return [*self.rows[:at], self.rows[at]._replace(**columns), *self.rows[at + 1 :]]  # type: ignore[arg-type]

    def without(self, event: str, nth: int = 0) -> list[TraceRow]:
        at = [at for at, row in enumerate(self.rows) if row.event == event][nth]
        return [*self.rows[:at], *self.rows[at + 1 :]]


def good() -> Story:
    """Two members; a sends three messages, the second of them in two pieces and asked for again."""
    story = Story()
    for member in "ab":
        story.row(member, "BEGIN", high=4)
    story.view(1, "a", "b")
    story.row("b", "START", origin="a", seqno=1)
    for first, last in ((1, 1), (2, 3), (4, 4)):
        story.send("a", first, last)
        story.deliver("a", "a", first, last)
    story.marks("a", "a", 0, 4, 4)
    story.marks("b", "a", 0, 1, 4)
    story.deliver("b", "a", 1)
    story.row("b", "NAK_OUT", origin="a", seqno=2, seqno_last=3, peer="a")
    story.row("a", "NAK_IN", origin="a", seqno=2, seqno_last=3, peer="b")
    story.row("a", "REPAIR", origin="a", seqno=2, seqno_last=3, peer="b")
    story.marks("b", "a", 4, 4, 4)
    story.deliver("b", "a", 2, 3)
    story.deliver("b", "a", 4)
    story.row("b", "ACK_OUT", origin="a", seqno_last=4, peer="a")
    story.row("a", "ACK_IN", origin="a", seqno_last=4, peer="b")
    story.row("a", "PURGE", origin="a", seqno=1, seqno_last=4)
    story.marks("a", "a", 4, 4, 4)
    for member in "ab":
        story.row(member, "REST")
    return story


def bad(name: str) -> list[TraceRow]:
    """Return the good story with one thing wrong."""
    story = good()
    changed: dict[str, Callable[[], list[TraceRow]]] = {
        "S1 never sent": lambda: story.without("SEND", 2),
        "S1 a number left out": lambda: story.replace("SEND", 1, seqno=3),
        "S2": lambda: story.replace("DELIVER", 5, seqno=3, seqno_last=3),
        "S3 left out": lambda: story.without("DELIVER", 4),
        "S3 no start": lambda: story.without("START"),
        "S3 another start": lambda: story.replace("START", seqno=2),
        "S3 own": lambda: story.without("DELIVER", 0),
        "S4": lambda: story.replace("DELIVER", 5, hash=7),
        "S6 sender": lambda: story.replace("STATE", 3, high=5),
        "S6 receiver": lambda: story.replace("STATE", 4, high=6),
        "S7 order": lambda: story.replace("STATE", 6, low=5),
        "S7 back": lambda: story.replace("STATE", 6, high=3, low=3, delivered=3),
        "S8": lambda: story.replace("STATE", 5, delivered=3, low=3),
        "S9": lambda: story.replace("ACK_IN", seqno_last=3),
        "S10": lambda: story.replace("NAK_IN", seqno_last=2),
        "S11 it has that": lambda: story.replace("NAK_OUT", seqno=1),
        "S11 there is none": lambda: story.replace("NAK_OUT", seqno_last=5),
        "S15 two lists": lambda: story.replace("MEMBERS", 1, reason="a c b"),
        "S15 not in it": lambda: story.replace("MEMBERS", 1, reason="a"),
        "S15 another maker": lambda: story.replace("MEMBERS", 1, reason="b a"),
        "S15 never lived": lambda: story.without("BEGIN", 1),
        "S15 number": lambda: [
            *story.rows,
            *[row for row in story.rows if row.event == "VIEW"][:1],
        ],
        "L1": lambda: story.without("DELIVER", 5),
        "L2": lambda: story.replace("STATE", 6, low=3),
        "L6 somebody more": lambda: story.without("REST", 1),
        "L6 two views": lambda: story.replace("MEMBERS", 1, view=2),
    }
    return changed[name]()


BAD = """S1 never sent, S1 a number left out, S2, S3 left out, S3 no start, S3 another start,
    S3 own, S4, S6 sender, S6 receiver, S7 order, S7 back, S8, S9, S10, S11 it has that,
    S11 there is none, S15 two lists, S15 not in it, S15 another maker,
    S15 never lived, S15 number, L1, L2, L6 somebody more, L6 two views"""
NAMES = [" ".join(name.split()) for name in BAD.split(",")]


def test_a_good_trace_is_good() -> None:
    assert check(good().rows) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_trace_is_found(name: str) -> None:
    assert name.split(maxsplit=1)[0] in {violation.check for violation in check(bad(name))}


def test_each_check_has_a_bad_trace_and_a_twin_in_the_simulator() -> None:
    assert {name.split()[0] for name in NAMES} == set(CHECKS)
    assert set(CHECKS) <= {online.id for online in ONLINE}


def test_the_page_names_the_checks_and_the_events() -> None:
    page = (DOCS / "internals/invariants.md").read_text(encoding="utf-8")
    named = re.search(r"A recorded trace shows (.+?):", page, re.DOTALL)
    assert named is not None
    assert re.findall(r"[SL]\d+", named[1]) == list(CHECKS)
    events = (DOCS / "reference/traces.md").read_text(encoding="utf-8")
    assert [event for event in EVENTS if not re.search(rf"\b{event}\b", events)] == []


def test_own_messages_that_do_not_come_back_are_no_gap() -> None:
    story = good()
    rows = story.without("DELIVER", 1)
    assert {violation.check for violation in check(rows)} == {"S3", "L1"}
    at = [at for at, row in enumerate(rows) if row.event == "SEND"][1]
    rows[at] = rows[at]._replace(reason="not back")
    assert check(rows) == []


def test_a_member_that_came_in_the_middle_of_a_message_begins_behind_it() -> None:
    story = good()
    story.rows = [row for row in story.rows if row.event != "REST"]
    story.row("c", "BEGIN", high=4)
    story.view(2, "a", "b", "c")
    story.row("c", "START", origin="a", seqno=3)
    story.row("c", "DROPPED", origin="a", seqno=3, seqno_last=3, reason="headless")
    story.deliver("c", "a", 4)
    assert check(story.rows) == []
    assert {violation.check for violation in check(story.without("DROPPED"))} == {"S3"}


def test_what_was_sent_before_a_member_came_is_not_owed_to_it_and_what_came_after_is() -> None:
    story = good()
    story.rows = [row for row in story.rows if row.event != "REST"]
    story.row("c", "BEGIN", high=4)
    story.view(2, "a", "b", "c")
    story.send("a", 5)
    for member in "ab":
        story.deliver(member, "a", 5)
    story.marks("a", "a", 5, 5, 5)
    for member in "abc":
        story.row(member, "REST")
    found = check(story.rows)
    assert {violation.check for violation in found} >= {"L1"}
    assert "c has not delivered 1 of its messages, the first is 5" in {
        violation.message for violation in found
    }


@pytest.mark.parametrize("seed", range(1, 9))
def test_traces_of_the_simulator_pass_the_same_checks(seed: int) -> None:
    outcome = simulate(seed, membership=True, profile="nakack4", trace=True)
    assert outcome.trace
    assert {"DELIVER", "STATE", "VIEW", "MEMBERS"} <= {row.event for row in outcome.trace}
    assert check(outcome.trace) == []
