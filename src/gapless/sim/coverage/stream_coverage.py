"""Required situations for a sweep: the hard cases of the protocol.

A sweep without an occurrence of every required situation has tested less than expected, and fails.
The observer gets the same steps as the checkers, through the same hooks, and only records.
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
    "nak for a message in flight",
    "join during loss",
    "fragmented message",
    "waiting send given up",
    "repair suppressed as a repeat",
    "repair suppressed by the budget",
    "loss reported to a member that did not count",
    "view installed at different times",
    "process paused with a full buffer",
    "expelled member readmitted",
    "sender released by stability",
    "repair by a holder that is not the origin",
    "message buffered for a later view",
    "acknowledged send reported",
    "out-of-band message sent again",
    "first message of a connection requested",
    "last message of a connection sent again",
    "connection closed",
    "datagram for an earlier incarnation",
    "stall reported",
)
"""Every required situation of a stream sweep."""


class StreamCoverage(InvariantChecker):
    """Records the situations of ``REQUIRED_STREAM_COVERAGE`` in a run, in ``seen``."""

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

    def on_incarnation_start(self, model: MemberModel) -> None:
        """An incarnation starts."""
        self._newest[model.address.node] = model.address.incarnation

    def on_buffer_overflow(self) -> None:
        """The socket buffer of a paused member is full."""
        self.record("process paused with a full buffer")

    def on_partition_change(self, action: ChangePartition) -> None:
        """A partition ends: find the members that are behind."""
        side = set(action.who.split(","))
        inside = [
            model
            for model in self.model.members.values()
            if model.alive and model.name.rstrip("'") in side
        ]
        outside = [
            model
            for model in self.model.members.values()
            if model.alive and model.name.rstrip("'") not in side
        ]
        if self._behind(inside, outside) and self._behind(outside, inside):
            self.record("partition healed with both sides behind")

    @staticmethod
    def _behind(receivers: list[MemberModel], senders: list[MemberModel]) -> bool:
        return any(
            (inbound := receiver.inbound.get(sender.address)) is not None
            and inbound.delivered < sender.stream.high
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
        for model in self.model.members.values():
            if (
                model.alive
                and model.name.rstrip("'") == node
                and any(not inbound.open for inbound in model.inbound.values())
            ):
                self.record("join during loss")

    # From the oracle

    def row_unblock(self, model: MemberModel, row: TraceEntry) -> None:
        """A wait ends."""
        if row.reason in {"ack", "view"}:
            self.record(f"sender released by {'an ack' if row.reason == 'ack' else 'a view'}")
        else:
            self.record("waiting send given up")

    def row_purge(self, model: MemberModel, row: TraceEntry) -> None:
        """Messages are purged."""
        if self.config.group_profile.release is ReleasePolicy.STABILITY:
            self.seen.add("sender released by stability")

    def row_repair(self, model: MemberModel, row: TraceEntry) -> None:
        """A repair is sent."""
        if row.origin != model.address:
            self.seen.add("repair by a holder that is not the origin")

    def row_early(self, model: MemberModel, row: TraceEntry) -> None:
        """Data arrives before the view of the data."""
        self.seen.add("message buffered for a later view")

    def row_repair_aside(self, model: MemberModel, row: TraceEntry) -> None:
        """An out-of-band message is retransmitted."""
        self.seen.add("out-of-band message sent again")

    def non_stream_frame_out(self, model: MemberModel, to: Address | None, frame: object) -> None:
        """A connection asks for the first message, sends the last message again, or ends."""
        if isinstance(frame, Nak) and not frame.ranges:
            self.seen.add("first message of a connection requested")
        elif isinstance(frame, Data) and frame.repair and not frame.first:
            self.seen.add("last message of a connection sent again")
        elif isinstance(frame, Close):
            self.seen.add("connection closed")

    def row_suppressed(self, model: MemberModel, row: TraceEntry) -> None:
        """A repair is held back."""
        self.record(
            "repair suppressed as a repeat"
            if row.reason == "repeat"
            else "repair suppressed by the budget"
        )

    def row_view(self, model: MemberModel, row: TraceEntry) -> None:
        """A view is installed while other members have another view."""
        others = (
            other for other in self.model.members.values() if other.alive and other is not model
        )
        if any(
            other.view is not None and other.view.id.number != row.seqno_last for other in others
        ):
            self.record("view installed at different times")

    def view(self, model: MemberModel, view: View) -> None:
        """A view readmits an expelled member."""
        if any(member in model.departed_inbound for member in view.members):
            self.record("expelled member readmitted")

    def data_in(self, model: MemberModel, inbound: InboundModel, frame: Data) -> None:
        """Data arrives after its origin has purged the data."""
        origin = self.model.members.get(frame.run.origin)
        if origin is not None and frame.run.last <= origin.stream.marks.low:
            self.seen.add("duplicate after purge")

    def refused(
        self,
        model: MemberModel,
        datagram: Datagram | None,
        before: object,
        ready: object,
    ) -> None:
        """A datagram is refused: perhaps the sender has a newer incarnation."""
        if datagram is not None and datagram.sender.incarnation < self._newest.get(
            datagram.sender.node, 0
        ):
            self.seen.add("frame of an older incarnation")
        if (
            datagram is not None
            and datagram.addressee is not None
            and datagram.addressee < model.address.incarnation
        ):
            self.seen.add("datagram for an earlier incarnation")

    def data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """A repair is sent after an equal repair was lost."""
        run = frame.run
        if run.last >= 3 * self.config.capacity:
            self.seen.add("window wrapped three times")
        if frame.repair and self._lost_repairs:
            targets = [to] if to is not None else list(model.view_members)
            names = {
                self.model.members[target].name.rstrip("'")
                for target in targets
                if target in self.model.members
            }
            if any((model.name, run.first, name) in self._lost_repairs for name in names):
                self.seen.add("repair of a repair")

    def ack_out(self, model: MemberModel, to: Address | None, frame: Ack) -> None:
        """An ack is sent after an equal ack was lost."""
        if (
            self._lost_acks
            and to is not None
            and (model.name, self._origin(to), frame.seqno) in self._lost_acks
        ):
            self.seen.add("ack lost and sent again")

    def _origin(self, address: Address) -> str:
        return self.model.members[address].name

    def nak_out(self, model: MemberModel, to: Address | None, frame: Nak) -> None:
        """A nak is sent: for many messages, for a tail, or for data in flight."""
        if len(frame.ranges) > 1:
            self.seen.add("nak of several ranges")
        inbound = model.inbound[frame.origin]
        if frame.ranges and frame.ranges[-1][1] > inbound.high:
            self.seen.add("tail loss found by an announcement")
        if frame.ranges and "nak for a message in flight" not in self.seen:
            self._check_in_flight(model, to, frame)

    def _check_in_flight(self, model: MemberModel, to: Address | None, frame: Nak) -> None:
        wanted = frame.ranges[0][0]
        for node, datagram in self.in_flight():
            if node == model.address.node and datagram.sender == to:
                runs = (data.run for data in datagram.frames if isinstance(data, Data))
                if any(run.first <= wanted <= run.last for run in runs):
                    self.record("nak for a message in flight")
                    return

    def event(self, model: MemberModel, event: object) -> None:
        """A member reports a loss, a stall, or an acknowledgment."""
        if isinstance(event, Lost):
            self.record("loss reported to a member that did not count")
        elif isinstance(event, Stalled):
            self.seen.add("stall reported")
        elif isinstance(event, Acknowledged):
            self.seen.add("acknowledged send reported")

    def delivered(
        self, model: MemberModel, inbound: InboundModel | None, delivery: Delivery
    ) -> None:
        """A fragmented message arrives, or a reader is at the limit while a window is full."""
        if isinstance(delivery.content, bytes):
            self.seen.add("fragmented message")
        if self.config.unread_limit and "slow reader at a full window" not in self.seen:
            self._check_slow_reader(model)

    def _check_slow_reader(self, model: MemberModel) -> None:
        for inbound in model.inbound.values():
            stream = inbound.stream
            if inbound.held & 1 and stream.high - stream.marks.low >= self.config.capacity:
                self.record("slow reader at a full window")
