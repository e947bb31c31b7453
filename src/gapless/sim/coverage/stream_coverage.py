"""What must happen somewhere in a sweep: the situations that the protocol was made for.

A sweep in which one of them never came up has tested less than it says, so it fails. The observer
sees the same steps as the checks, through the same hooks, and only ever notes that something was
seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.protocol.ready import Acknowledged, Lost, Stalled
from gapless.sim.oracle.oracle import Check, Judge
from gapless.wire import Close, Data, Nak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.faults.faults import Crossing
    from gapless.faults.frame_names import Label
    from gapless.identity import Address, View
    from gapless.protocol.ready import Delivery, Step
    from gapless.sim.oracle.model import Heard, Life
    from gapless.sim.scenario.actions import Mark
    from gapless.wire import Ack, Datagram

MUST_HAPPEN = (
    "repair of a repair",
    "nak of several ranges",
    "sender released by an ack",
    "sender released by a view",
    "duplicate after purge",
    "ack lost and sent again",
    "tail loss found by an announcement",
    "frame of an older incarnation",
    "window wrapped three times",
    "partition healed with both sides behind",
    "slow reader at a full window",
    "nak for what is on its way",
    "join during loss",
    "message in pieces",
    "send given up while waiting",
    "repair held back as a repeat",
    "repair held back by the budget",
    "loss reported to one who did not count",
    "view installed at different times",
    "process stood still with a full buffer",
    "life taken back in",
    "sender released by stability",
    "repair by one who is not the origin",
    "message kept for a view to come",
    "acknowledged send reported",
    "out-of-band message sent again",
    "first message of a connection asked for",
    "last message of a connection sent again",
    "connection closed",
    "datagram for a former life",
    "stall reported",
)
"""Every observation that a sweep must make at least once."""


class Observer(Check):
    """Notes which of :data:`MUST_HAPPEN` a run has seen, in ``seen``."""

    name = "must happen"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self.seen: set[str] = set()
        self.flying: Callable[[], Iterable[tuple[int, Datagram]]] = tuple
        self._newest: dict[int, int] = {}
        self._lost_repairs: set[tuple[str, int, str]] = set()
        self._lost_acks: set[tuple[str, str, int]] = set()
        self._sides: set[str] = set()

    def see(self, what: str) -> None:
        """Note an observation."""
        assert what in MUST_HAPPEN, what
        self.seen.add(what)

    # From the world

    def started(self, life: Life) -> None:
        """A life begins."""
        self._newest[life.address.node] = life.address.incarnation

    def overflowed(self) -> None:
        """The buffer of a member that stands still is full."""
        self.see("process stood still with a full buffer")

    def mark(self, action: Mark) -> None:
        """A partition ends: look who is behind."""
        side = set(action.who.split(","))
        inside = [
            life
            for life in self.model.lives.values()
            if life.alive and life.name.rstrip("'") in side
        ]
        outside = [
            life
            for life in self.model.lives.values()
            if life.alive and life.name.rstrip("'") not in side
        ]
        if self._behind(inside, outside) and self._behind(outside, inside):
            self.see("partition healed with both sides behind")

    @staticmethod
    def _behind(receivers: list[Life], senders: list[Life]) -> bool:
        return any(
            (heard := receiver.heard.get(sender.address)) is not None
            and heard.delivered < sender.stream.high
            for receiver in receivers
            for sender in senders
        )

    def lost(self, crossing: Crossing, label: Label) -> None:
        """The network lost a frame."""
        kind, origin, first, last = label
        if kind == "REPAIR":
            self._lost_repairs.update(
                (origin, seqno, crossing.target) for seqno in range(first, last + 1)
            )
        elif kind == "ACK":
            self._lost_acks.add((crossing.source, origin, first))
        elif kind == "TAIL" or (kind == "NAK" and not first):
            self._lost_while_joining(crossing.target if kind == "TAIL" else crossing.source)

    def _lost_while_joining(self, name: str) -> None:
        node = name.rstrip("'")
        for life in self.model.lives.values():
            if (
                life.alive
                and life.name.rstrip("'") == node
                and any(not heard.open for heard in life.heard.values())
            ):
                self.see("join during loss")

    # From the judge

    def row_unblock(self, life: Life, row: Step) -> None:  # noqa: ARG002
        """A wait ends."""
        if row.reason in {"ack", "view"}:
            self.see(f"sender released by {'an ack' if row.reason == 'ack' else 'a view'}")
        else:
            self.see("send given up while waiting")

    def row_purge(self, life: Life, row: Step) -> None:  # noqa: ARG002
        """Something is let go."""
        if self.config.row.release == "stability":
            self.seen.add("sender released by stability")

    def row_repair(self, life: Life, row: Step) -> None:
        """A repair goes out."""
        if row.origin != life.address:
            self.seen.add("repair by one who is not the origin")

    def row_early(self, life: Life, row: Step) -> None:  # noqa: ARG002
        """Something came before its view."""
        self.seen.add("message kept for a view to come")

    def row_repair_aside(self, life: Life, row: Step) -> None:  # noqa: ARG002
        """An out-of-band message goes out again."""
        self.seen.add("out-of-band message sent again")

    def beside_out(self, life: Life, to: Address | None, frame: object) -> None:  # noqa: ARG002
        """A connection asks for its first message, sends its last again, or ends."""
        if isinstance(frame, Nak) and not frame.ranges:
            self.seen.add("first message of a connection asked for")
        elif isinstance(frame, Data) and frame.repair and not frame.first:
            self.seen.add("last message of a connection sent again")
        elif isinstance(frame, Close):
            self.seen.add("connection closed")

    def row_suppressed(self, life: Life, row: Step) -> None:  # noqa: ARG002
        """A repair is held back."""
        self.see(
            "repair held back as a repeat"
            if row.reason == "repeat"
            else "repair held back by the budget"
        )

    def row_view(self, life: Life, row: Step) -> None:
        """A view is installed while others have another one."""
        others = (other for other in self.model.lives.values() if other.alive and other is not life)
        if any(other.view is not None and other.view.id.number != row.last for other in others):
            self.see("view installed at different times")

    def view(self, life: Life, view: View) -> None:
        """A view takes one back in that was here before."""
        if any(member in life.departed for member in view.members):
            self.see("life taken back in")

    def data_in(self, life: Life, heard: Heard, frame: Data) -> None:  # noqa: ARG002
        """Data arrives whose origin has let it go."""
        origin = self.model.lives.get(frame.run.origin)
        if origin is not None and frame.run.last <= origin.stream.marks.low:
            self.seen.add("duplicate after purge")

    def refused(self, life: Life, said: Datagram | None, before: object, ready: object) -> None:  # noqa: ARG002
        """Something is refused: perhaps because its sender has a new life by now."""
        if said is not None and said.sender.incarnation < self._newest.get(said.sender.node, 0):
            self.seen.add("frame of an older incarnation")
        if (
            said is not None
            and said.addressee is not None
            and said.addressee < life.address.incarnation
        ):
            self.seen.add("datagram for a former life")

    def data_out(self, life: Life, to: Address | None, frame: Data) -> None:
        """A repair goes out whose like was lost."""
        run = frame.run
        if run.last >= 3 * self.config.capacity:
            self.seen.add("window wrapped three times")
        if frame.repair and self._lost_repairs:
            targets = [to] if to is not None else list(life.view_members)
            names = {
                self.model.lives[target].name.rstrip("'")
                for target in targets
                if target in self.model.lives
            }
            if any((life.name, run.first, name) in self._lost_repairs for name in names):
                self.seen.add("repair of a repair")

    def ack_out(self, life: Life, to: Address | None, frame: Ack) -> None:
        """An ack goes out whose like was lost."""
        if (
            self._lost_acks
            and to is not None
            and (life.name, self._origin(to), frame.seqno) in self._lost_acks
        ):
            self.seen.add("ack lost and sent again")

    def _origin(self, address: Address) -> str:
        return self.model.lives[address].name

    def nak_out(self, life: Life, to: Address | None, frame: Nak) -> None:
        """A nak goes out: for much, for a tail, or for what is on its way."""
        if len(frame.ranges) > 1:
            self.seen.add("nak of several ranges")
        heard = life.heard[frame.origin]
        if frame.ranges and frame.ranges[-1][1] > heard.high:
            self.seen.add("tail loss found by an announcement")
        if frame.ranges and "nak for what is on its way" not in self.seen:
            self._look_for(life, to, frame)

    def _look_for(self, life: Life, to: Address | None, frame: Nak) -> None:
        wanted = frame.ranges[0][0]
        for node, datagram in self.flying():
            if node == life.address.node and datagram.sender == to:
                runs = (data.run for data in datagram.frames if isinstance(data, Data))
                if any(run.first <= wanted <= run.last for run in runs):
                    self.see("nak for what is on its way")
                    return

    def event(self, life: Life, event: object) -> None:  # noqa: ARG002
        """A member is told that something is lost, stands still, or was acknowledged."""
        if isinstance(event, Lost):
            self.see("loss reported to one who did not count")
        elif isinstance(event, Stalled):
            self.seen.add("stall reported")
        elif isinstance(event, Acknowledged):
            self.seen.add("acknowledged send reported")

    def delivered(self, life: Life, heard: Heard | None, delivery: Delivery) -> None:  # noqa: ARG002
        """A message in pieces arrives; a reader is at its limit while a sender's window is full."""
        if isinstance(delivery.content, bytes):
            self.seen.add("message in pieces")
        if self.config.max_unconsumed and "slow reader at a full window" not in self.seen:
            self._look_at_reader(life)

    def _look_at_reader(self, life: Life) -> None:
        for heard in life.heard.values():
            stream = heard.stream
            if heard.held & 1 and stream.high - stream.marks.low >= self.config.capacity:
                self.see("slow reader at a full window")
