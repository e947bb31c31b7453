"""What must happen somewhere in a sweep: the situations that the protocol was made for.

A sweep in which one of them never came up has tested less than it says, so it fails. The observer
sees the same steps as the checks, through the same hooks, and only ever notes that something was
seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.profiles import ReleasePolicy
from gapless.protocol.events import Acknowledged, Lost, Stalled
from gapless.sim.oracle.checker import InvariantChecker
from gapless.wire import Close, Data, Nak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gapless.faults.faults import Crossing
    from gapless.faults.frame_names import Label
    from gapless.identity import Address, View
    from gapless.protocol.ready import Delivery, TraceEntry
    from gapless.sim.oracle.model import InboundModel, MemberModel
    from gapless.sim.oracle.oracle import Oracle
    from gapless.sim.script import ChangePartition
    from gapless.wire import Ack, Datagram

REQUIRED_STREAM_COVERAGE = (
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


class StreamCoverage(InvariantChecker):
    """Notes which of :data:`REQUIRED_STREAM_COVERAGE` a run has seen, in ``seen``."""

    id = "must happen"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.seen: set[str] = set()
        self.in_flight: Callable[[], Iterable[tuple[int, Datagram]]] = tuple
        self._newest: dict[int, int] = {}
        self._lost_repairs: set[tuple[str, int, str]] = set()
        self._lost_acks: set[tuple[str, str, int]] = set()
        self._sides: set[str] = set()

    def record(self, what: str) -> None:
        """Note an observation."""
        assert what in REQUIRED_STREAM_COVERAGE, what
        self.seen.add(what)

    # From the world

    def on_incarnation_start(self, life: MemberModel) -> None:
        """A life begins."""
        self._newest[life.address.node] = life.address.incarnation

    def on_buffer_overflow(self) -> None:
        """The buffer of a member that stands still is full."""
        self.record("process stood still with a full buffer")

    def on_partition_change(self, action: ChangePartition) -> None:
        """A partition ends: look who is behind."""
        side = set(action.who.split(","))
        inside = [
            life
            for life in self.model.members.values()
            if life.alive and life.name.rstrip("'") in side
        ]
        outside = [
            life
            for life in self.model.members.values()
            if life.alive and life.name.rstrip("'") not in side
        ]
        if self._behind(inside, outside) and self._behind(outside, inside):
            self.record("partition healed with both sides behind")

    @staticmethod
    def _behind(receivers: list[MemberModel], senders: list[MemberModel]) -> bool:
        return any(
            (heard := receiver.inbound.get(sender.address)) is not None
            and heard.delivered < sender.stream.high
            for receiver in receivers
            for sender in senders
        )

    def on_frame_lost(self, crossing: Crossing, label: Label) -> None:
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
        for life in self.model.members.values():
            if (
                life.alive
                and life.name.rstrip("'") == node
                and any(not heard.open for heard in life.inbound.values())
            ):
                self.record("join during loss")

    # From the oracle

    def row_unblock(self, life: MemberModel, row: TraceEntry) -> None:
        """A wait ends."""
        if row.reason in {"ack", "view"}:
            self.record(f"sender released by {'an ack' if row.reason == 'ack' else 'a view'}")
        else:
            self.record("send given up while waiting")

    def row_purge(self, life: MemberModel, row: TraceEntry) -> None:
        """Something is let go."""
        if self.config.group_profile.release is ReleasePolicy.STABILITY:
            self.seen.add("sender released by stability")

    def row_repair(self, life: MemberModel, row: TraceEntry) -> None:
        """A repair goes out."""
        if row.origin != life.address:
            self.seen.add("repair by one who is not the origin")

    def row_early(self, life: MemberModel, row: TraceEntry) -> None:
        """Something came before its view."""
        self.seen.add("message kept for a view to come")

    def row_repair_aside(self, life: MemberModel, row: TraceEntry) -> None:
        """An out-of-band message goes out again."""
        self.seen.add("out-of-band message sent again")

    def non_stream_frame_out(self, life: MemberModel, to: Address | None, frame: object) -> None:
        """A connection asks for its first message, sends its last again, or ends."""
        if isinstance(frame, Nak) and not frame.ranges:
            self.seen.add("first message of a connection asked for")
        elif isinstance(frame, Data) and frame.repair and not frame.first:
            self.seen.add("last message of a connection sent again")
        elif isinstance(frame, Close):
            self.seen.add("connection closed")

    def row_suppressed(self, life: MemberModel, row: TraceEntry) -> None:
        """A repair is held back."""
        self.record(
            "repair held back as a repeat"
            if row.reason == "repeat"
            else "repair held back by the budget"
        )

    def row_view(self, life: MemberModel, row: TraceEntry) -> None:
        """A view is installed while others have another one."""
        others = (
            other for other in self.model.members.values() if other.alive and other is not life
        )
        if any(
            other.view is not None and other.view.id.number != row.seqno_last for other in others
        ):
            self.record("view installed at different times")

    def view(self, life: MemberModel, view: View) -> None:
        """A view takes one back in that was here before."""
        if any(member in life.departed_inbound for member in view.members):
            self.record("life taken back in")

    def data_in(self, life: MemberModel, heard: InboundModel, frame: Data) -> None:
        """Data arrives whose origin has let it go."""
        origin = self.model.members.get(frame.run.origin)
        if origin is not None and frame.run.last <= origin.stream.marks.low:
            self.seen.add("duplicate after purge")

    def refused(
        self,
        life: MemberModel,
        said: Datagram | None,
        before: object,
        ready: object,
    ) -> None:
        """Something is refused: perhaps because its sender has a new life by now."""
        if said is not None and said.sender.incarnation < self._newest.get(said.sender.node, 0):
            self.seen.add("frame of an older incarnation")
        if (
            said is not None
            and said.addressee is not None
            and said.addressee < life.address.incarnation
        ):
            self.seen.add("datagram for a former life")

    def data_out(self, life: MemberModel, to: Address | None, frame: Data) -> None:
        """A repair goes out whose like was lost."""
        run = frame.run
        if run.last >= 3 * self.config.capacity:
            self.seen.add("window wrapped three times")
        if frame.repair and self._lost_repairs:
            targets = [to] if to is not None else list(life.view_members)
            names = {
                self.model.members[target].name.rstrip("'")
                for target in targets
                if target in self.model.members
            }
            if any((life.name, run.first, name) in self._lost_repairs for name in names):
                self.seen.add("repair of a repair")

    def ack_out(self, life: MemberModel, to: Address | None, frame: Ack) -> None:
        """An ack goes out whose like was lost."""
        if (
            self._lost_acks
            and to is not None
            and (life.name, self._origin(to), frame.seqno) in self._lost_acks
        ):
            self.seen.add("ack lost and sent again")

    def _origin(self, address: Address) -> str:
        return self.model.members[address].name

    def nak_out(self, life: MemberModel, to: Address | None, frame: Nak) -> None:
        """A nak goes out: for much, for a tail, or for what is on its way."""
        if len(frame.ranges) > 1:
            self.seen.add("nak of several ranges")
        heard = life.inbound[frame.origin]
        if frame.ranges and frame.ranges[-1][1] > heard.high:
            self.seen.add("tail loss found by an announcement")
        if frame.ranges and "nak for what is on its way" not in self.seen:
            self._check_in_flight(life, to, frame)

    def _check_in_flight(self, life: MemberModel, to: Address | None, frame: Nak) -> None:
        wanted = frame.ranges[0][0]
        for node, datagram in self.in_flight():
            if node == life.address.node and datagram.sender == to:
                runs = (data.run for data in datagram.frames if isinstance(data, Data))
                if any(run.first <= wanted <= run.last for run in runs):
                    self.record("nak for what is on its way")
                    return

    def event(self, life: MemberModel, event: object) -> None:
        """A member is told that something is lost, stands still, or was acknowledged."""
        if isinstance(event, Lost):
            self.record("loss reported to one who did not count")
        elif isinstance(event, Stalled):
            self.seen.add("stall reported")
        elif isinstance(event, Acknowledged):
            self.seen.add("acknowledged send reported")

    def delivered(self, life: MemberModel, heard: InboundModel | None, delivery: Delivery) -> None:
        """A message in pieces arrives; a reader is at its limit while a sender's window is full."""
        if isinstance(delivery.content, bytes):
            self.seen.add("message in pieces")
        if self.config.unread_limit and "slow reader at a full window" not in self.seen:
            self._check_slow_reader(life)

    def _check_slow_reader(self, life: MemberModel) -> None:
        for heard in life.inbound.values():
            stream = heard.stream
            if heard.held & 1 and stream.high - stream.marks.low >= self.config.capacity:
                self.record("slow reader at a full window")
