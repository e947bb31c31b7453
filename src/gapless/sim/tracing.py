"""The trace of a simulated run: one row for everything that happened, kept only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from gapless.core.ready import GROUP
from gapless.run import Run
from gapless.sim.naming import life_name

if TYPE_CHECKING:
    from gapless.core.ready import Ready, Step
    from gapless.identity import Address
    from gapless.sim.faults import Crossing
    from gapless.sim.model import Life
    from gapless.sim.script import Action
    from gapless.wire import Datagram


class Row(NamedTuple):
    """One row of the trace. Seqnos are 0 and texts empty where they mean nothing."""

    step: int
    t_ns: int
    member: str
    incarnation: int
    view: int
    event: str
    origin: str = ""
    seqno: int = 0
    seqno_last: int = 0
    peer: str = ""
    frame_id: str = ""
    size_bytes: int = 0
    payload_hash: int = 0
    low: int = 0
    delivered: int = 0
    high: int = 0
    reason: str = ""


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
        for origin, first, last, content, kind, _ in ready.deliveries:
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
        )

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
