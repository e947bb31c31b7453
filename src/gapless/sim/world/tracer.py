"""The trace of a simulated run: one row for everything that happened, kept only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless.faults.frame_names import incarnation_name
from gapless.sim.script import (
    CancelSend,
    CloseConnection,
    CrashProcess,
    InstallView,
    LeaveGroup,
    PauseProcess,
    ResumeProcess,
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
    SetReadDelay: "READ",
}
"""The trace event of every action that has one."""


class SimulationTracer:
    """Gathers the rows of a run, in order, and the lives that they are about."""

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

    def begin(self, t_ns: int, life: MemberModel) -> None:
        """Write that a life has begun."""
        self._step += 1
        self._row_builder(t_ns, life)

    def step(self, t_ns: int, life: MemberModel, said: Datagram | None, ready: Ready) -> None:
        """Write the rows of one step: its input, the machine's trace, its deliveries."""
        self._step += 1
        scribe = self._row_builder(t_ns, life)
        if said is not None:
            self._write(t_ns, life.name, scribe.row("RX", peer=said.sender))
        for values in scribe.rows_of_ready(ready):
            self._write(t_ns, life.name, values)

    def _row_builder(self, t_ns: int, life: MemberModel) -> RowBuilder:
        scribe = self._row_builders.get(life.name)
        if scribe is None:
            by_view = self._config is not None and self._config.group_profile.numbering == "view"
            scribe = RowBuilder(
                life.address, _named, incarnation_name, _WORDS, str, by_view=by_view
            )
            self._row_builders[life.name] = scribe
            self._counts[life.name] = 0
            self._current_incarnation[life.name.rstrip("'")] = life.name
            self.members[life.name] = life
            reach = 0 if self._config is None else self._config.reach
            self._write(t_ns, life.name, scribe.row("BEGIN", high=reach))
        return scribe

    def _write(self, t_ns: int, name: str, values: RowValues, frame_id: str = "") -> None:
        idx = self._counts[name]
        self._counts[name] = idx + 1
        row = TraceRow._make((self._seed, name, idx, self._step, t_ns, *values, frame_id))
        if row.sent_ns and self.clocks:
            # A run says what its origin's own clock showed, a nak what its asker's did; times of a
            # simulated trace are all on the true one.
            whose = name if row.event == "NAK_OUT" else row.origin
            clock = self.clocks.get(whose.rstrip("'"))
            row = row if clock is None else row._replace(sent_ns=clock.true_ns(row.sent_ns))
        self.rows.append(row)

    def transmit(
        self, t_ns: int, life: MemberModel, crossing: Crossing, copies: int, reason: str
    ) -> None:
        """Write that a datagram crosses a link, and what the network does with it."""
        scribe = self._row_builder(t_ns, life)
        _, origin, first, last = crossing.label
        where: dict[str, Any] = {
            "seqno": first,
            "seqno_last": last,
            "size_bytes": len(crossing.datagram),
        }
        values = scribe.row("TX", **where)
        named = list(values)
        named[2], named[9] = (
            origin.rstrip("@"),
            self._current_incarnation.get(crossing.target, crossing.target),
        )
        frame_id = str(crossing.name)
        self._write(t_ns, life.name, tuple(named), frame_id)
        if reason:
            named[0] = (
                "NET_DROP"
                if not copies
                else "NET_DUP"
                if copies > 1
                else _FATES.get(reason, "NET_DELAY")
            )
            named[-1] = reason
            self._write(t_ns, life.name, tuple(named), frame_id)

    def act(self, t_ns: int, action: Action) -> None:
        """Write that something was done to a member that lives: CRASH, PAUSE and the like."""
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
                stores=life.stored is not None,
            )
            for name, life in self.members.items()
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
        """Write of every life that is there that the load has ended."""
        self._mark(t_ns, "REST")

    def end(self, t_ns: int) -> None:
        """Write of every life that is there that the trace of it is whole."""
        self._mark(t_ns, "END")

    def _mark(self, t_ns: int, event: str) -> None:
        self._step += 1
        for name, scribe in self._row_builders.items():
            if self.members[name].alive:
                self._write(t_ns, name, scribe.row(event))


_FATES = {"corrupt": "NET_CORRUPT", "truncate": "NET_CORRUPT"}


def _named(address: Address | None) -> str:
    return "" if address is None else incarnation_name(address)
