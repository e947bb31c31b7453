"""The trace of a simulated run: a row for every input, output and fault.

Any other observer of a run implements ``RunTracer``, too: the diagram, the shrinker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gapless.faults.frame_names import incarnation_name
from gapless.profiles import NumberingScope
from gapless.sim.script import (
    CancelSend,
    CloseConnection,
    CrashProcess,
    InstallView,
    LeaveGroup,
    PauseProcess,
    ResumeProcess,
    SetNextMode,
    SetReadDelay,
    SetRetransmitInterval,
)
from gapless.trace import incarnations as recorded
from gapless.trace.row_builder import RowBuilder
from gapless.trace.schema import EVENTS, TraceRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.config import Config
    from gapless.faults.faults import Crossing, DriftingClock
    from gapless.identity import Address
    from gapless.protocol.ready import Ready
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.script import Action
    from gapless.trace.row_builder import RowValues
    from gapless.wire import Datagram

_WORDS = {event: event for event in EVENTS}
_EVENT_OF_ACTION: dict[type, str] = {
    CrashProcess: "CRASH",
    PauseProcess: "PAUSE",
    ResumeProcess: "RESUME",
    InstallView: "INSTALL",
    LeaveGroup: "LEAVE",
    CancelSend: "CANCEL",
    CloseConnection: "CLOSE",
    SetRetransmitInterval: "TUNE",
    SetNextMode: "TUNE",
    SetReadDelay: "READ",
}
"""The trace event of every traced action."""


class RunTracer(Protocol):
    """The reports of a world about a run."""

    def begin(self, t_ns: int, member: MemberModel) -> None:
        """Record the start of an incarnation."""

    def act(self, t_ns: int, action: Action) -> None:
        """Record an action of the script."""

    def step(self, t_ns: int, member: MemberModel, datagram: Datagram | None, ready: Ready) -> None:
        """Record a step of a member; ``datagram`` is the input, or None for any other input."""

    def transmit(
        self, t_ns: int, member: MemberModel, crossing: Crossing, copies: int, reason: str
    ) -> None:
        """Record a datagram on a link; ``reason`` is the fault of the crossing, if any."""

    def late_timer(self, t_ns: int, late_ns: int) -> None:
        """Record that a timer fires ``late_ns`` after its deadline."""

    def rest(self, t_ns: int) -> None:
        """Record the end of the load; from now on the group must be silent."""

    def end(self, t_ns: int) -> None:
        """Record the end of the run."""


class SimulationTracer:
    """Gathers the rows of a run, in order, and the incarnations in the rows."""

    def __init__(
        self,
        seed: int = 0,
        config: Config | None = None,
        *,
        membership: bool = False,
        clocks: Mapping[str, DriftingClock] | None = None,
    ) -> None:
        self.clocks = dict(clocks or {})
        self.rows: list[TraceRow] = []
        self.members: dict[str, MemberModel] = {}
        self._seed = seed
        self._config = config
        self._membership = membership
        self._step = 0
        self._row_builders: dict[str, RowBuilder] = {}
        self._counts: dict[str, int] = {}
        self._current_incarnation: dict[str, str] = {}

    def begin(self, t_ns: int, member: MemberModel) -> None:
        """Write the start of an incarnation."""
        self._step += 1
        self._row_builder(t_ns, member)

    def step(self, t_ns: int, member: MemberModel, datagram: Datagram | None, ready: Ready) -> None:
        """Write the rows of a step: the input, the machine's trace, the deliveries."""
        self._step += 1
        builder = self._row_builder(t_ns, member)
        if datagram is not None:
            self._write(t_ns, member.name, builder.row("RX", peer=datagram.sender))
        for values in builder.rows_of_ready(ready):
            self._write(t_ns, member.name, values)

    def _row_builder(self, t_ns: int, member: MemberModel) -> RowBuilder:
        builder = self._row_builders.get(member.name)
        if builder is None:
            by_view = (
                self._config is not None
                and self._config.group_profile.numbering is NumberingScope.VIEW
            )
            builder = RowBuilder(
                member.address, _named, incarnation_name, _WORDS, str, by_view=by_view
            )
            self._row_builders[member.name] = builder
            self._counts[member.name] = 0
            self._current_incarnation[member.name.rstrip("'")] = member.name
            self.members[member.name] = member
            reach = 0 if self._config is None else self._config.reach
            self._write(t_ns, member.name, builder.row("BEGIN", high=reach))
        return builder

    def _write(self, t_ns: int, name: str, values: RowValues, frame_id: str = "") -> None:
        idx = self._counts[name]
        self._counts[name] = idx + 1
        row = TraceRow._make((self._seed, name, idx, self._step, t_ns, *values, frame_id))
        if row.sent_ns and self.clocks:
            # A run carries the time of its origin's clock, a nak that of its sender's; all times of
            # a simulated trace are true times.
            stamped_by = name if row.event == "NAK_OUT" else row.origin
            clock = self.clocks.get(stamped_by.rstrip("'"))
            row = row if clock is None else row._replace(sent_ns=clock.true_ns(row.sent_ns))
        self.rows.append(row)

    def transmit(
        self, t_ns: int, member: MemberModel, crossing: Crossing, copies: int, reason: str
    ) -> None:
        """Write the crossing of a link by a datagram, with the fault of the crossing."""
        builder = self._row_builder(t_ns, member)
        _, origin, first, last = crossing.label
        where: dict[str, Any] = {
            "seqno": first,
            "seqno_last": last,
            "size_bytes": len(crossing.datagram),
        }
        values = builder.row("TX", **where)
        named = list(values)
        named[2], named[9] = (
            origin.rstrip("@"),
            self._current_incarnation.get(crossing.target, crossing.target),
        )
        frame_id = str(crossing.name)
        self._write(t_ns, member.name, tuple(named), frame_id)
        if reason:
            named[0] = (
                "NET_DROP"
                if not copies
                else "NET_DUP"
                if copies > 1
                else _FATES.get(reason, "NET_DELAY")
            )
            named[-1] = reason
            self._write(t_ns, member.name, tuple(named), frame_id)

    def late_timer(self, t_ns: int, late_ns: int) -> None:
        """Write no row: the trace has no row for timers."""

    def act(self, t_ns: int, action: Action) -> None:
        """Write the action of the script on a running member: CRASH, PAUSE and others."""
        name = self._current_incarnation.get(action.who.rstrip("'"), "")
        event = _EVENT_OF_ACTION.get(type(action))
        meant = name == action.who or self._membership
        if event is not None and name and meant and self.members[name].alive:
            self._step += 1
            self._write(t_ns, name, self._row_builders[name].row(event))

    def incarnation_records(self, character: str) -> list[recorded.IncarnationRecord]:
        """Return the records of the side file: incarnations of this run, then others named."""
        assert self._config is not None
        found = [
            recorded.own_incarnation(
                self._seed,
                name,
                self._config,
                {"character": character},
                member=name.rstrip("'"),
                mode="full",
                every=1,
                clock=recorded.VIRTUAL,
                stores=member.stored is not None,
            )
            for name, member in self.members.items()
        ]
        others = {name for row in self.rows for name in (row.origin, row.to, row.peer)}
        others.update(
            name for row in self.rows if row.event == "MEMBERS" for name in row.reason.split()
        )
        found += [
            recorded.IncarnationRecord(self._seed, name)
            for name in sorted(others.difference(self.members, ("",)))
        ]
        return found

    def rest(self, t_ns: int) -> None:
        """Write the end of the load for every running incarnation."""
        self._mark(t_ns, "REST")

    def end(self, t_ns: int) -> None:
        """Write the end of the trace for every running incarnation."""
        self._mark(t_ns, "END")

    def _mark(self, t_ns: int, event: str) -> None:
        self._step += 1
        for name, builder in self._row_builders.items():
            if self.members[name].alive:
                self._write(t_ns, name, builder.row(event))


_FATES = {"corrupt": "NET_CORRUPT", "truncate": "NET_CORRUPT"}


def _named(address: Address | None) -> str:
    return "" if address is None else incarnation_name(address)
