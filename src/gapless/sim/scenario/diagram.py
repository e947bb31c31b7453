"""The diagram of a run: lines in time, for a reader and for a scenario file.

Every node has a lane. A row is a step of a member in words, or a datagram with its arrows::

             a b c
      5ms    ● │ │  a sends a1..2, delivers a1..2
      5ms    ●─▶─✗  DATA a1..2
      6ms    │ ● │  b delivers a1..2

``▶`` and ``◀`` point at receivers of the datagram, ``✗`` marks an unreached target, and ``┼``
crosses the lane of an uninvolved node. A datagram takes the usual delay unless the row says
otherwise. After the rows follow the marks of every stream (low, delivered and high at each member),
the unused fates of the script, and the verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.faults.faults import CORRUPT, DUPLICATE, FORGED, INTACT
from gapless.faults.frame_names import incarnation_name, kind_of, stream_of
from gapless.protocol.events import (
    Accepted,
    Acknowledged,
    Connected,
    Discarded,
    Expelled,
    GivenUp,
    Left,
    Located,
    Lost,
    Oversized,
    Refused,
    Retained,
    RetentionBlocking,
    RetentionReleased,
    SlowReceivers,
    Stalled,
    Started,
    StateReceived,
    StateWanted,
    Suspected,
    Unacknowledged,
    Undelivered,
    Unheard,
    ViewInstalled,
)
from gapless.protocol.ready import GROUP, UNICAST
from gapless.sim.checkers.stream_safety import BoundedMemoryChecker
from gapless.sim.scenario.literals import show_time
from gapless.sim.script import (
    CancelSend,
    CrashProcess,
    Fate,
    LeaveGroup,
    NoteEvidence,
    PauseProcess,
    ResumeProcess,
    SetNextMode,
    SetReadDelay,
    StartProcess,
)
from gapless.sim.world.world import World
from gapless.units import NS_PER_US
from gapless.wire import (
    Ack,
    Close,
    Data,
    Gone,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    Unreliable,
    Vote,
    decode,
)
from gapless.wire.frames import (
    FIRST_CONNECTION_EPOCH,
    Alive,
    Beacon,
    Join,
    MembershipFrame,
    MergeAsk,
    MergeReply,
    NameTaken,
    NewView,
    Signature,
    StateAsk,
    StateFrame,
    StateOffer,
    StatePull,
    Suspect,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.config import Config
    from gapless.faults.faults import Crossing
    from gapless.faults.frame_names import FrameName
    from gapless.identity import Address
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Delivery, Ready, TraceEntry
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.oracle.oracle import InvariantViolation
    from gapless.sim.script import Action, Script
    from gapless.wire import Datagram, Frame

MAX_ROWS = 80
"""Maximum number of rows of a diagram; the rest is cut."""

MAX_DIAGRAM_EVENTS = 20_000
"""Maximum number of events of a scenario; a longer script is a load test."""


def span(origin: Address | str, first: int, last: int) -> str:
    """Return the seqnos of a stream in the common notation: ``a7`` or ``a7..9``."""
    name = origin if isinstance(origin, str) else incarnation_name(origin)
    return f"{name}{first}" if first == last else f"{name}{first}..{last}"


def _names(members: Iterable[Address]) -> str:
    return " ".join(map(incarnation_name, members))


def format_frame(frame: Frame) -> str:
    """Return a frame in a few words."""
    kind = kind_of(frame)
    address, to_one = stream_of(frame)
    origin = incarnation_name(address) + ("@" if to_one else "")
    if isinstance(frame, (Data, OutOfBand, Unreliable)):
        return f"{kind} {span(origin, frame.run.first, frame.run.last)}"
    if isinstance(frame, Ack):
        return f"{kind} {span(origin, frame.seqno, frame.seqno)}"
    if isinstance(frame, (Nak, OutOfBandAck)):
        ranges = " ".join(span(origin, first, last) for first, last in frame.ranges)
        return f"{kind} {ranges or f'{origin}: where does it start?'}"
    if isinstance(frame, (Vote, Stable)):
        progress = " ".join(
            f"{incarnation_name(entry.origin)}{entry.delivered}" for entry in frame.progress
        )
        return f"{kind} view {frame.view}: {progress}"
    if isinstance(frame, Close):
        return f"{kind} {origin}"
    if isinstance(frame, Gone):
        return f"{kind} {origin} up to {frame.low}"
    if isinstance(frame, (MembershipFrame, StateFrame)):
        return f"{kind} {origin}{_format_control_frame(frame)}"
    start = "" if frame.start is None else f", start {frame.start}"
    return f"{kind} {origin} low {frame.low} high {frame.high}{start}"


def _format_control_frame(frame: MembershipFrame | StateFrame) -> str:
    if isinstance(frame, MembershipFrame):
        return _format_membership_frame(frame)
    return _format_state_frame(frame)


def _format_membership_frame(frame: MembershipFrame) -> str:  # noqa: PLR0911 - one a kind
    """Return the content of a membership frame, without its origin."""
    if isinstance(frame, Join):
        return (f" as {frame.entry.name}" if frame.entry.name else "") + (
            ", pass it on" if frame.relay else ""
        )
    if isinstance(frame, NameTaken):
        return f" as {frame.entry.name}, not {incarnation_name(frame.joiner)}"
    if isinstance(frame, Alive):
        view = " in no view" if frame.view is None else f" in view {frame.view.number}"
        return (
            view
            + (" with you" if frame.includes_receiver else "")
            + (", and you?" if frame.reply_wanted else "")
        )
    if isinstance(frame, Suspect):
        verb = "is pinned by" if frame.slow_receivers else "misses"
        return f" {verb} {_names(frame.members)}"
    if isinstance(frame, NewView):
        base = "" if frame.base is None else f" after {frame.base.number}"
        return f" view {frame.view.number}{base}, part {frame.part + 1} of {frame.parts}"
    if isinstance(frame, Beacon):
        return f" view {frame.view.number}: {_names(frame.heard) or 'hears nobody'}"
    if isinstance(frame, Signature):
        return f" for the {frame.counter}th time, in view {frame.view}"
    if isinstance(frame, MergeReply):
        return (
            f" merge {frame.merge:x}: {'yes' if frame.willing else 'no'}, view {frame.view.number}"
        )
    return f" merge {frame.merge:x}" if isinstance(frame, MergeAsk) else ""


def _format_state_frame(frame: StateFrame) -> str:
    """Return the content of a state-transfer frame, without its origin."""
    if isinstance(frame, StateAsk):
        return " behind " + (
            " ".join(f"{incarnation_name(entry.origin)}{entry.delivered}" for entry in frame.starts)
            or "nothing"
        )
    if isinstance(frame, StateOffer):
        return f" part {frame.part + 1} of {frame.parts}"
    if isinstance(frame, StatePull):
        return f" {frame.length} bytes from {frame.offset} on" if frame.length else " has all"
    return f" {len(frame.body)} bytes from {frame.offset} on"


class _DiagramRow(NamedTuple):
    """A row: the facts of ``who`` at a time, or the arrows of a datagram."""

    t_ns: int
    who: tuple[str, ...]
    facts: list[str]
    arrows: str = ""

    def text(self, nodes: list[str]) -> str:
        """Return the row without its time."""
        if self.arrows:
            return f"{self.arrows}  {self.facts[0]}"
        acting = {name.rstrip("'") for name in self.who}
        lanes = " ".join("●" if node in acting else "│" for node in nodes)
        facts = self.facts if len(self.who) == 1 else [_plural(fact) for fact in self.facts]
        return f"{lanes}  {' '.join(self.who)} {', '.join(facts)}"


def _plural(fact: str) -> str:
    verb, space, rest = fact.partition(" ")
    return _PLURALS.get(verb, verb.removesuffix("s")) + space + rest


_PLURALS = {"is": "are", "crashes": "crash"}


class DiagramTracer:
    """Turns the reports of a world about a run into the rows of a diagram."""

    def __init__(self, script: Script) -> None:
        self.nodes = script.nodes()
        self.fates = script.fates
        self.diagram_rows: list[_DiagramRow] = []
        self.applied_fates: set[FrameName] = set()
        self.last_fault_ns = -1
        self._transmit = -1
        self._crossings: list[tuple[Crossing, Fate | None]] = []

    # What the world reports

    def begin(self, t_ns: int, member: MemberModel) -> None:
        """Draw nothing: the action has a row."""

    def act(self, t_ns: int, action: Action) -> None:
        """Add the fact of an action that the member itself does not report."""
        words = {
            StartProcess: "starts",
            PauseProcess: "pauses",
            ResumeProcess: "resumes",
            CrashProcess: "crashes",
            LeaveGroup: "leaves",
            NoteEvidence: f"sees {action.to} {action.evidence}"
            if isinstance(action, NoteEvidence)
            else "",
            SetReadDelay: "reads slower"
            if isinstance(action, SetReadDelay) and action.per_message_ns
            else "reads at once",
            SetNextMode: f"switches to {action.mode}" if isinstance(action, SetNextMode) else "",
            CancelSend: f"cancels send {action.nth}" if isinstance(action, CancelSend) else "",
        }.get(type(action))
        if words:
            self._add_facts(t_ns, action.who, [words])

    def transmit(
        self, t_ns: int, member: MemberModel, crossing: Crossing, copies: int, reason: str
    ) -> None:
        """Draw a crossing: a row for the first target of a datagram, an arrow for each other."""
        fate = self.fates.get(crossing.name, Fate((), reason)) if reason else None
        if reason:
            self.applied_fates.add(crossing.name)
            self.last_fault_ns = t_ns
        if crossing.label.kind in _BACKGROUND_KINDS and crossing.name not in self.fates:
            return
        if crossing.transmit != self._transmit:
            self._transmit, self._crossings = crossing.transmit, []
            self.diagram_rows.append(_DiagramRow(t_ns, (), []))
        self._crossings.append((crossing, fate))
        self.diagram_rows[-1] = self._draw_row(t_ns)

    def step(self, t_ns: int, member: MemberModel, datagram: Datagram | None, ready: Ready) -> None:
        """Add the facts of a step."""
        facts = list(_facts(ready))
        if facts:
            self._add_facts(t_ns, member.name, facts)

    def late_timer(self, t_ns: int, late_ns: int) -> None:
        """Draw nothing: the script names late timers."""

    def rest(self, t_ns: int) -> None:
        """Draw nothing: a silent group has no rows."""

    def end(self, t_ns: int) -> None:
        """Draw nothing: the marks follow the last row."""

    # Rows

    def _add_facts(self, t_ns: int, who: str, facts: list[str]) -> None:
        last = self.diagram_rows[-1] if self.diagram_rows else None
        if last is not None and (last.t_ns, last.facts) == (t_ns, facts) and who not in last.who:
            self.diagram_rows[-1] = last._replace(who=(*last.who, who))
        else:
            self.diagram_rows.append(_DiagramRow(t_ns, (who,), facts))

    def _draw_row(self, t_ns: int) -> _DiagramRow:
        first = self._crossings[0][0]
        source = self.nodes.index(first.source.rstrip("'"))
        heads = {
            self.nodes.index(at.target): fate is None or not fate.lost
            for at, fate in self._crossings
        }
        words = " + ".join(map(format_frame, decode(first.datagram).frames))
        odd = [
            _format_copies(at.target, fate)
            for at, fate in self._crossings
            if fate is not None and fate.copies
        ]
        return _DiagramRow(
            t_ns, (), ["; ".join([words, *odd])], _arrows(len(self.nodes), source, heads)
        )

    def lines(self) -> list[str]:
        """Return the rows as text, under a head of names; times are rounded to a microsecond."""
        shown = self.diagram_rows[:MAX_ROWS]
        times = [show_time(row.t_ns // NS_PER_US * NS_PER_US) for row in shown]
        width = max(map(len, times), default=0)
        lines = [f"{'':{width}}  {' '.join(self.nodes)}".rstrip()]
        lines += (
            f"{time:>{width}}  {row.text(self.nodes)}".rstrip()
            for time, row in zip(times, shown, strict=True)
        )
        if len(self.diagram_rows) > len(shown):
            lines.append(f"… and {len(self.diagram_rows) - len(shown)} rows more")
        return lines


_BACKGROUND_KINDS = ("ALIVE", "BEACON")
"""Frequent frames without rows; a frequent frame with a fate has a row."""


def _format_copies(target: str, fate: Fate) -> str:
    copies = [f"{_MARK_WORDS[mark]}{show_time(delay_ns)}" for delay_ns, _, mark in fate.copies]
    return f"to {target}: {', '.join(copies)}"


_MARK_WORDS = {INTACT: "", DUPLICATE: "again ", CORRUPT: "corrupt ", FORGED: "forged "}


def _arrows(count: int, source: int, heads: dict[int, bool]) -> str:
    """Return the lanes with an arrow from ``source`` to every head; a head of False is lost."""
    left, right = min([source, *heads]), max([source, *heads])
    cells: list[str] = []
    for lane in range(count):
        if lane == source:
            symbol = "●"
        elif lane in heads:
            symbol = ("▶" if lane > source else "◀") if heads[lane] else "✗"
        else:
            symbol = "┼" if left < lane < right else "│"
        cells.append(symbol)
        cells.append("─" if left <= lane < right else " ")
    return "".join(cells[:-1])


# Facts of one step


def _facts(ready: Ready) -> Iterator[str]:
    """Return the facts of a step: views and starts, trace rows, deliveries, other events."""
    first = [event for event in ready.events if isinstance(event, (ViewInstalled, Started))]
    yield from map(_format_event, first)
    delivered = {(delivery.origin, delivery.last) for delivery in ready.deliveries}
    yield from filter(None, (_format_trace_row(row, delivered) for row in _joined(ready.trace)))
    yield from _format_deliveries(ready.deliveries)
    yield from (
        _format_event(event)
        for event in ready.events
        if not isinstance(event, (*_SHOWN_ELSEWHERE, Started))
    )


_SHOWN_ELSEWHERE = (Accepted, ViewInstalled, Located)


def _joined(rows: Iterable[TraceEntry]) -> Iterator[TraceEntry]:
    """Return the rows, with consecutive sends joined."""
    last: TraceEntry | None = None
    for row in rows:
        if last is not None and row.event == "SEND":
            last = last._replace(seqno_last=row.seqno_last)
            continue
        if last is not None:
            yield last
        last = row if row.event == "SEND" else None
        if last is None:
            yield row
    if last is not None:
        yield last


def _format_trace_row(row: TraceEntry, delivered: set[tuple[Address, int]]) -> str:
    name = (
        ""
        if row.origin is None
        else incarnation_name(row.origin) + ("@" if row.epoch >= FIRST_CONNECTION_EPOCH else "")
    )
    what = span(name, row.seqno, row.seqno_last) if name else ""
    if row.event == "STORE" and (row.origin, row.seqno_last) in delivered:
        return ""
    if row.event == "DROPPED":
        if not row.seqno:
            what = "it" if row.peer is None else f"what {incarnation_name(row.peer)} says"
            return f"drops {what} ({row.reason})"
        some = f"{row.k} of " if row.k != row.seqno_last - row.seqno + 1 else ""
        return f"drops {some}{what} ({row.reason})"
    words = _ROW_WORDS.get(row.event, "")
    return words.format(what=what, send=row.seqno, reason=row.reason)


_ROW_WORDS = {
    "SEND": "sends {what}",
    "STORE": "keeps {what}",
    "SUPPRESSED": "holds {what} back ({reason})",
    "PURGE": "purges {what}",
    "BLOCK": "waits with send {send}",
    "UNBLOCK": "ends the wait of send {send} ({reason})",
}


def _format_deliveries(deliveries: list[Delivery]) -> Iterator[str]:
    """Return the deliveries, with consecutive deliveries of a stream joined."""
    at = 0
    while at < len(deliveries):
        origin, first, last, _, kind, epoch, *_ = deliveries[at]
        at += 1
        while (
            at < len(deliveries)
            and deliveries[at][:2] == (origin, last + 1)
            and deliveries[at].epoch == epoch
        ):
            last = deliveries[at].last
            at += 1
        name = incarnation_name(origin) + ("@" if kind == UNICAST else "")
        yield f"delivers {span(name, first, last)}" + (
            "" if kind in {GROUP, UNICAST} else f" {kind}"
        )


def _format_event(event: Event) -> str:
    if isinstance(event, ViewInstalled):
        return f"installs view {event.view.id.number}: {_names(event.view.members)}"
    if isinstance(event, Started):
        return f"hears {incarnation_name(event.origin)} from {event.start + 1} on"
    if isinstance(event, SlowReceivers):
        return f"is pinned by {_names(event.members)}"
    if isinstance(event, Refused):
        return f"is refused send {event.ticket}"
    if isinstance(event, GivenUp):
        return f"gives up send {event.ticket} after {event.accepted} ({event.reason})"
    if isinstance(event, Discarded):
        return f"discards {event.message_count} of {incarnation_name(event.origin)}"
    if isinstance(event, (Lost, Oversized)):
        verb = "loses" if isinstance(event, Lost) else "leaves out"
        return f"{verb} {span(event.origin, event.first, event.last)}"
    return _format_delivery_event(event)


def _format_delivery_event(event: Event) -> str:
    if isinstance(event, Acknowledged):
        return f"has send {event.ticket} acknowledged by all"
    if isinstance(event, Unacknowledged):
        return f"never has send {event.ticket} acknowledged by {_names(event.members)}"
    if isinstance(event, Undelivered):
        to = "all" if event.to is None else incarnation_name(event.to)
        return f"cannot say that {event.first}..{event.last} reached {to}"
    if isinstance(event, Stalled):
        return f"stalls at {incarnation_name(event.origin)}{event.seqno}"
    if not isinstance(event, Connected):
        return _format_membership_event(event)
    direction = "to" if event.outgoing else "from"
    return f"has a connection {direction} {incarnation_name(event.peer)} {event.state}"


def _format_suspicion(event: Suspected | Unheard) -> str:
    if isinstance(event, Suspected):
        return f"suspects {incarnation_name(event.member)}"
    receiver, sender = incarnation_name(event.receiver), incarnation_name(event.sender)
    return f"reports that {receiver} does not hear {sender}"


def _format_membership_event(event: Event) -> str:
    if isinstance(event, (Suspected, Unheard)):
        return _format_suspicion(event)
    if isinstance(event, Expelled):
        return f"learns that it was expelled in view {event.view.number}"
    if isinstance(event, Left):
        return "has left" if event.confirmed else "leaves without an answer"
    if isinstance(event, Retained):
        return f"keeps the place of {event.name} ({incarnation_name(event.last)})"
    if isinstance(event, RetentionReleased):
        return f"releases the place of {event.name} ({event.reason})"
    if isinstance(event, RetentionBlocking):
        return f"has no more room for {event.name}"
    if isinstance(event, StateWanted):
        return f"gives its state to {incarnation_name(event.peer)}"
    assert isinstance(event, StateReceived), f"{event} has no words"
    giver = "nobody" if event.provider is None else incarnation_name(event.provider)
    return f"gets {len(event.state)} bytes of state from {giver}"


# The run


class DiagramRun:
    """A run of a script in a ``world``, drawn as a ``diagram``."""

    def __init__(self, config: Config, script: Script) -> None:
        self.diagram = DiagramTracer(script)
        self.world = World(config, script, tracer=self.diagram)
        self.world.scheduler.on_event = self._end_early
        measure_memory_always(self.world)

    def _end_early(self) -> None:
        """End the run at a violation of safety, or after too many events."""
        if self.world.events >= MAX_DIAGRAM_EVENTS or any(
            found.check.startswith("S") for found in self.world.oracle.violations
        ):
            raise _RunEnded

    def run(self) -> None:
        """Run the script to its end, or until ``_end_early`` stops the run."""
        try:
            self.world.run()
        except _RunEnded:
            if not self.world.oracle.violations:
                self.world.close()


def measure_memory_always(world: World) -> None:
    """Measure memory at every step: a short run must not depend on the sampled steps."""
    for check in world.oracle.checkers:
        if isinstance(check, BoundedMemoryChecker):
            check.measure_every = 1


class _RunEnded(Exception):  # noqa: N818 - it ends a run early, and is no error
    """A check failed, or the run takes too many events."""


def format_marks(world: World) -> list[str]:
    """Return the marks of every stream at every running member, as low/delivered/high."""
    lines = []
    hosts = [host for host in world.hosts.values() if host.member is not None]
    for host in hosts:
        marks = {}
        for other in hosts:
            assert other.member is not None
            found = other.member.digest().get(host.address)
            if found is not None and found.high:
                marks[other.incarnation_name] = "/".join(map(str, found))
        if marks:
            shown = ", ".join(f"{name} {mark}" for name, mark in marks.items())
            lines.append(f"marks of {host.incarnation_name}: {shown}")
    return lines


def _first_of_each(violations: Iterable[InvariantViolation]) -> dict[str, InvariantViolation]:
    first: dict[str, InvariantViolation] = {}
    for violation in violations:
        first.setdefault(violation.check, violation)
    return first


def format_verdict(violations: Iterable[InvariantViolation]) -> list[str]:
    """Return ``ok``, or the first violation of each safety check (without any, of each check)."""
    first = list(_first_of_each(violations).values())
    if not first:
        return ["ok"]
    # After a violation of safety, liveness says nothing any more.
    safety = [found for found in first if found.check.startswith("S")]
    return [
        f"{_format_violation(found)} (at {show_time(found.t_ns)}, member {found.member})"
        for found in safety
    ] or [_format_violation(found) for found in first]


def _format_violation(found: InvariantViolation) -> str:
    # Test runners add lines to the message of a failed assertion.
    return f"violates {found.check}: {found.message.partition(chr(10))[0]}"
