"""The trace of a simulated run: one row for everything that happened, kept only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from gapless.core.ready import GROUP, Lost, Started, StateReceived, ViewInstalled
from gapless.run import Run
from gapless.sim.naming import life_name
from gapless.trace.schema import Row

if TYPE_CHECKING:
    from gapless.core.ready import Event, Ready, Step
    from gapless.identity import Address
    from gapless.sim.faults import Crossing
    from gapless.sim.model import Life
    from gapless.sim.script import Action
    from gapless.wire import Datagram


class Tracer:
    """Gathers the rows of a run, in order."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._step = 0

    def step(self, t_ns: int, life: Life, said: Datagram | None, ready: Ready) -> None:
        """Write the rows of one step: what came in, what the machine says it did, what it delivered."""
        self._step += 1
        where = self._where(t_ns, life)
        if said is not None:
            self.rows.append(Row(*where, "RX", peer=life_name(said.sender)))
        self.rows.extend(self._row(where, row) for row in ready.trace)
        self.rows.extend(row for event in ready.events if (row := self._told(where, event)) is not None)
        for origin, first, last, content, kind, epoch, *_ in ready.deliveries:
            payload = content.payload if isinstance(content, Run) else content
            self.rows.append(
                Row(
                    *where,
                    "DELIVER",
                    life_name(origin),
                    first,
                    last,
                    size_bytes=len(payload),
                    payload_hash=crc32(payload),
                    reason="" if kind == GROUP else kind,
                    epoch=epoch,
                )
            )

    def _where(self, t_ns: int, life: Life) -> tuple[int, int, str, int, int]:
        view = life.view.id.number if life.view is not None else 0
        return self._step, t_ns, life.name, life.address.incarnation, view

    @staticmethod
    def _row(where: tuple[int, int, str, int, int], row: Step) -> Row:
        return Row(
            *where,
            row.event,
            _named(row.origin),
            row.first,
            row.last,
            _named(row.peer),
            "",
            row.size_bytes,
            0,
            row.low,
            row.delivered,
            row.high,
            row.reason,
            row.epoch,
        )

    @staticmethod
    def _told(where: tuple[int, int, str, int, int], event: Event) -> Row | None:
        """Return the row of what the application is told of views and streams."""
        if isinstance(event, ViewInstalled):
            number, maker = event.view.id
            names = " ".join(map(life_name, event.view.members))
            return Row(*where[:4], number, "MEMBERS", life_name(maker), reason=names)
        if isinstance(event, Started):
            return Row(*where, "START", life_name(event.origin), event.start + 1)
        if isinstance(event, Lost):
            return Row(*where, "LOST", life_name(event.origin), event.first, event.last)
        if isinstance(event, StateReceived):
            return Row(*where, "STATE_IN", peer=_named(event.provider), size_bytes=len(event.state))
        return None

    def transmit(self, t_ns: int, life: Life, crossing: Crossing, copies: int, reason: str) -> None:
        """Write that a datagram crosses a link, and what the network does with it."""
        where = self._where(t_ns, life)
        _, origin, first, last = crossing.label
        row = Row(*where, "TX", origin, first, last, crossing.target, str(crossing.name), len(crossing.datagram))
        self.rows.append(row)
        if reason:
            event = "NET_DROP" if not copies else "NET_DUP" if copies > 1 else "NET_DELAY"
            self.rows.append(row._replace(event=event, reason=reason))

    def act(self, t_ns: int, action: Action) -> None:
        """Write that something was done to a member: CRASH, PAUSE, START and the like."""
        self.rows.append(Row(self._step, t_ns, action.who, 1 + action.who.count("'"), 0, type(action).__name__.upper()))


def _named(address: Address | None) -> str:
    return "" if address is None else life_name(address)
