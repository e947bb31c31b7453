"""The safety checks S1 to S18, a small class each, in the words of docs/internals/invariants.md.

Each check compares a guarantee with the oracle's model after every step. Beside the answers of a
member, checks read only the marks of its windows, because the guarantees are about marks. Checks
trust no counter of the machine.

``CHECKERS`` lists every check that runs online: safety, liveness, connections and out-of-band
messages, membership. Two ids are checked elsewhere: S17 compares two runs
(``gapless.sim.runner.same_digest``), and L5 needs an exhaustive search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.faults.frame_names import kind_of
from gapless.profiles import ReleasePolicy
from gapless.protocol.events import Accepted, Lost, Started
from gapless.protocol.timers import TIMERS
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK
from gapless.sim.checkers.liveness import (
    DeliveryDeadlineChecker,
    QuiescenceChecker,
    RepairCostChecker,
    SilenceChecker,
    StabilityDeadlineChecker,
)
from gapless.sim.checkers.membership import MEMBERSHIP_CHECKERS
from gapless.sim.checkers.retransmission import (
    AcceptanceChecker,
    ExactRepairChecker,
    NakPacingChecker,
)
from gapless.sim.checkers.sealing import SEALING_CHECKERS
from gapless.sim.checkers.unicast_and_oob import UNICAST_AND_OOB_CHECKERS
from gapless.sim.oracle.checker import InvariantChecker
from gapless.sim.oracle.model_update import is_absence_loss
from gapless.wire import Nak
from gapless.wire.primitives import REASONS

if TYPE_CHECKING:
    from gapless.identity import Address, View
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.events import Event
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Delivery, Ready, TraceEntry
    from gapless.protocol.stream.window import Window
    from gapless.sim.oracle.checker import Outgoing
    from gapless.sim.oracle.model import InboundModel, MemberModel, StreamModel
    from gapless.sim.oracle.oracle import Oracle
    from gapless.wire import Ack, Data, Datagram, Gone, Tail


class NoCreationChecker(InvariantChecker):
    """No creation: sent data is the application's data, in order; delivered data was sent."""

    id = "S1"

    def data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """Compare a first transmission with the application's sends."""
        run, stream = frame.run, model.stream
        if frame.repair:
            return
        if run.origin != model.address or run.first != stream.high + 1:
            self.fail(f"{run} is sent as new, but the stream of {model.name} is at {stream.high}")
            return
        if run.flags & FRAGMENT:
            self._check_fragment(model, frame)
            return
        for waiting, message in zip(stream.queue, run.messages(), strict=False):
            if waiting.payload != message or waiting.no_loopback != bool(run.flags & NO_LOOPBACK):
                self.fail(
                    f"{run} carries {message[:40]!r} where the application gave "
                    f"{waiting.payload[:40]!r}"
                )
                return
        if run.count > len(stream.queue):
            self.fail(
                f"{run} carries {run.count} messages, but the application gave only "
                f"{len(stream.queue)} more"
            )

    def _check_fragment(self, model: MemberModel, frame: Data) -> None:
        run, stream = frame.run, model.stream
        if not stream.queue:
            self.fail(f"{run} is a fragment of no message of the application")
        elif bool(run.flags & FIRST_FRAGMENT) == bool(stream.fragment_payloads):
            self.fail(f"{run} begins a message inside another, or continues no message")
        elif (
            run.flags & LAST_FRAGMENT
            and b"".join((*stream.fragment_payloads, run.payload)) != stream.queue[0].payload
        ):
            self.fail(f"the fragments up to {run} do not add up to the message of the application")

    def delivered(
        self, model: MemberModel, inbound: InboundModel | None, delivery: Delivery
    ) -> None:
        """Find the send of a delivered message."""
        stream = _stream(model, inbound, delivery)
        if stream is None or delivery.last > stream.high:
            self.fail(
                f"{model.name} delivers {delivery.first}..{delivery.last} of "
                f"{delivery.origin}, never sent"
            )

    def event(self, model: MemberModel, event: Event) -> None:
        """Compare the seqnos reported to the application with the assigned seqnos."""
        if not isinstance(event, Accepted) or event.ticket not in model.tickets:
            return
        if not 0 < event.first <= event.last <= model.stream.high:
            self.fail(f"{event} names seqnos that have not been sent")


class NoDuplicateChecker(InvariantChecker):
    """No duplicate: no message is delivered twice."""

    id = "S2"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._last: dict[tuple[Address, Address, int], int] = {}

    def delivered(
        self, model: MemberModel, inbound: InboundModel | None, delivery: Delivery
    ) -> None:
        """Compare a delivery with the next due seqno; after a state with the marks in the state.

        Deliveries that waited for the state may precede a new start of the stream.
        """
        due = (
            model.own_next
            if delivery.origin == model.address
            else inbound.next
            if inbound is not None
            else 0
        )
        key = model.address, delivery.origin, delivery.epoch
        if not model.covered and not model.past_inbound:
            again = delivery.first < due and (inbound is None or inbound.open)
        else:
            again = delivery.first <= max(self._last.get(key, 0), model.covered.get(key[1:], 0))
        if again:
            self.fail(
                f"{model.name} delivers {delivery.first} of {delivery.origin} twice; {due} is next"
            )
        self._last[key] = max(self._last.get(key, 0), delivery.last)


class GaplessPrefixChecker(InvariantChecker):
    """Gapless prefix: every stream is delivered from its start, in order, without a gap."""

    id = "S3"

    def delivered(
        self, model: MemberModel, inbound: InboundModel | None, delivery: Delivery
    ) -> None:
        """A delivery begins at the very next message."""
        origin = self.model.members.get(delivery.origin)
        if origin is not None and inbound is not None and inbound.open:
            due = inbound.due()
        elif origin is model:
            due = model.stream.next_loopback_from(model.own_next)
        else:
            self.fail(f"{model.name} delivers from {delivery.origin}, whose stream has no start")
            return
        if delivery.first > due:
            self.fail(f"{model.name} delivers {delivery.first} of {origin.name}, but {due} is next")

    def marks_moved(
        self, model: MemberModel, origin: Address, inbound: InboundModel, window: Window
    ) -> None:
        """The delivered mark passes only arrived data, and no undelivered message."""
        delivered = window.delivered
        if delivered == inbound.delivered:
            return
        passable = inbound.consecutive()
        if delivered > passable:
            self.fail(f"delivered of {origin} moves to {delivered} over a gap at {passable + 1}")
        begin = inbound.due()
        if (
            begin <= delivered
            and inbound.stream.end_of(begin) <= delivered
            and not model.transferring
        ):
            self.fail(f"delivered of {origin} moves to {delivered}, but {begin} was not delivered")

    def own_marks_moved(self, model: MemberModel, window: Window) -> None:
        """The same for the own stream."""
        stream, delivered = model.stream, window.delivered
        begin = stream.next_loopback_from(model.own_next)
        if begin <= delivered and stream.end_of(begin) <= delivered and not model.transferring:
            self.fail(f"the own delivered moves to {delivered}, but {begin} was not delivered")


class IntegrityChecker(InvariantChecker):
    """Integrity: the bytes delivered are the bytes sent."""

    id = "S4"

    def delivered(
        self, model: MemberModel, inbound: InboundModel | None, delivery: Delivery
    ) -> None:
        """Compare content, message by message in effect, run by run in cost."""
        stream = _stream(model, inbound, delivery)
        if stream is None:
            return
        first, last, content = delivery.first, delivery.last, delivery.content
        sent = stream.content(first, last)
        if isinstance(content, bytes):
            same = content == sent and stream.end_of(first) == last
        else:
            lengths = stream.lengths[2 * (first - 1) : 2 * last]
            same = (
                content.payload == sent
                and content.lengths == lengths
                and content.count == last - first + 1
            )
        if not same:
            self.fail(
                f"{model.name} delivers other bytes than {delivery.origin} sent as {first}..{last}"
            )


class WindowBoundChecker(InvariantChecker):
    """Window: at most ``capacity`` messages outstanding; receivers store only messages in reach."""

    id = "S6"

    def marks_moved(
        self,
        model: MemberModel,
        origin: Address,
        inbound: InboundModel,
        window: Window,
    ) -> None:
        """Check that a receiver stores the same messages as the model, all within reach."""
        delivered, reach = window.delivered, self.oracle.reach
        if delivered < inbound.delivered:
            self.fail(f"the stream of {origin} is at {delivered}, but was at {inbound.delivered}")
            return
        stored = (
            window.stored - (delivered - window.low) if window.keep_delivered else window.stored
        )
        held = (inbound.held >> (delivered - inbound.delivered)).bit_count()
        if stored != held:
            self.fail(f"{stored} messages of {origin} are stored; expected {held}")
        if window.high > delivered + reach or stored > reach:
            self.fail(f"the window of {origin} reaches from {window.delivered} to {window.high}")

    def own_marks_moved(self, model: MemberModel, window: Window) -> None:
        """Check that a sender stays within its capacity."""
        if window.high - window.low > self.oracle.reach:
            self.fail(
                f"{window.high - window.low} messages are outstanding; the maximum "
                f"is {self.oracle.reach}"
            )


class MonotonicMarksChecker(InvariantChecker):
    """Marks: low <= delivered <= high, no mark and no ack goes down, the trace shows every mark."""

    id = "S7"

    def ack_in(self, model: MemberModel, sender: Address, frame: Ack) -> None:
        """Check that an entry of the ack table never goes down."""
        acks, before = model.member.outbound.acks, model.stream.acks.get(sender, 0)
        if sender in acks and acks[sender] < before:
            self.fail(f"the ack of {sender} fell from {before} to {acks[sender]}")

    def marks_moved(
        self,
        model: MemberModel,
        origin: Address,
        inbound: InboundModel,
        window: Window,
    ) -> None:
        """Compare the marks of an inbound stream with the previous marks."""
        self._compare(origin, inbound.marks, window)

    def own_marks_moved(self, model: MemberModel, window: Window) -> None:
        """Compare the marks of the own stream with the previous marks."""
        self._compare("the own stream", model.stream.marks, window)

    def row_state(self, model: MemberModel, row: TraceEntry) -> None:
        """Compare a row of the trace with the window."""
        member, origin = model.member, row.origin
        stream = member.inbound.get(origin) if origin is not None else None
        window = member.outbound.window if stream is None else stream.window
        if window is None or (window.low, window.delivered, window.high) != (
            row.low,
            row.delivered,
            row.high,
        ):
            self.fail(
                f"the trace has {row.low}, {row.delivered}, {row.high} for "
                f"{origin}; the window differs"
            )

    def sampled(self, model: MemberModel, ready: Ready, outgoing: Outgoing) -> None:
        """Check that the trace has a row for every outgoing frame, and no other row."""
        untold: dict[str, int] = {}
        for _, out in outgoing:
            for frame in out.frames:
                event = _TRACED.get(kind_of(frame), "")
                if not event:
                    continue
                untold[event] = untold.get(event, 0) + (
                    len(frame.ranges) if isinstance(frame, Nak) else 1
                )
        for row in ready.trace:
            if row.event in _FRAME_EVENTS:
                untold[row.event] = untold.get(row.event, 0) - 1
        for event, frames in untold.items():
            if frames:
                more = "not told of" if frames > 0 else "told of and did not go out"
                self.fail(f"{abs(frames)} frames that the trace calls {event} were {more}")

    def close(self) -> None:
        """Check that no mark moved between the checked steps."""
        for model in self.model.members.values():
            if not model.alive:
                continue
            self._same(model, f"of {model.name}", model.stream.marks, model.member.outbound.window)
            for origin, inbound in model.inbound.items():
                window = model.member.inbound[origin].window
                if window is not None:
                    self._same(model, f"of {origin} at {model.name}", inbound.marks, window)

    def _same(
        self, model: MemberModel, which: str, known: tuple[int, int, int], window: Window
    ) -> None:
        if window.marks != known:
            self.oracle.current_member = model
            self.fail(
                f"marks {which} moved without a trace row from {tuple(known)} to "
                f"{tuple(window.marks)}"
            )

    def _compare(self, which: object, before: tuple[int, int, int], window: Window) -> None:
        low, delivered, high = window.low, window.delivered, window.high
        if low < before[0] or delivered < before[1] or high < before[2]:
            self.fail(
                f"marks of {which} went back from {tuple(before)} to {(low, delivered, high)}"
            )
        if not low <= delivered <= high:
            self.fail(f"marks of {which} are out of order: {(low, delivered, high)}")


_TRACED = {
    "DATA": "SEND",
    "REPAIR": "REPAIR",
    "ACK": "ACK_OUT",
    "NAK": "NAK_OUT",
    "GONE": "GONE_OUT",
    "TAIL": "TAIL_OUT",
    "VOTE": "VOTE_OUT",
    "STABLE": "STABLE_OUT",
}
"""The trace event of each outgoing frame."""
_FRAME_EVENTS = frozenset(_TRACED.values())


class TruthfulAckChecker(InvariantChecker):
    """Acks are true: a member acknowledges only delivered messages."""

    id = "S8"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._unverified_acks: list[Ack] = []

    def ack_in(self, model: MemberModel, sender: Address, frame: Ack) -> None:
        """The sender of the ack has delivered every acknowledged message."""
        if frame.origin != model.address:
            return
        taken = self.model.members[sender].has_delivered(model.address, frame.epoch)
        if frame.seqno > taken:
            self.fail(
                f"received an ack of {sender} for {frame.seqno}, but {sender} has delivered {taken}"
            )

    def ack_out(self, model: MemberModel, to: Address | None, frame: Ack) -> None:
        """Deliveries before this step may be acknowledged; later deliveries once known."""
        inbound = model.inbound.get(frame.origin)
        if inbound is None or frame.seqno > inbound.delivered:
            self._unverified_acks.append(frame)
            self.oracle.at_end.append(self.end)

    def end(self, model: MemberModel) -> None:
        """No ack went out beyond the delivered mark."""
        for ack in self._unverified_acks:
            inbound = model.inbound.get(ack.origin)
            if inbound is None or ack.seqno > inbound.delivered:
                self.fail(
                    f"{model.name} acknowledges {ack.seqno} of {ack.origin}, it has "
                    f"{inbound and inbound.delivered}"
                )
        self._unverified_acks.clear()


class SafePurgeChecker(InvariantChecker):
    """Purge is safe: every member of the view has acknowledged a purged message."""

    id = "S9"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._purged_to = 0

    def row_purge(self, model: MemberModel, row: TraceEntry) -> None:
        """Note the purges in the trace."""
        self._purged_to = row.seqno_last

    def tail_out(self, model: MemberModel, to: Address | None, frame: Tail) -> None:
        """Check the marks of an announcement, and the announced start against the ack table."""
        window = model.member.outbound.window
        if frame.low > window.low or frame.high > window.high:
            self.fail(
                f"announces {frame.low}..{frame.high}, but the window is at "
                f"{window.low}..{window.high}"
            )
        if frame.start is not None and (to is None or frame.start != model.stream.starts.get(to)):
            self.fail(
                f"announces the start {frame.start} to {to}, but counts from "
                f"{model.stream.starts.get(to or model.address)}"
            )

    def gone_out(self, model: MemberModel, to: Address | None, frame: Gone) -> None:
        """Check that seqnos reported as gone are purged."""
        if frame.low > model.member.outbound.window.low:
            self.fail(f"calls {frame.low} gone, but low is {model.member.outbound.window.low}")

    def event(self, model: MemberModel, event: Event) -> None:
        """Only a member that did not count at the time may report a loss or a late start."""
        if (
            not isinstance(event, (Lost, Started))
            or not _skips_messages(model, event)
            or is_absence_loss(model, event)
        ):
            return
        upto = event.last if isinstance(event, Lost) else event.start
        owed_from = self.model.owed_from(event.origin, model)
        if owed_from is not None and upto > owed_from:
            self.fail(
                f"{model.name} misses up to {upto} of {event.origin}, which owes "
                f"all messages after {owed_from}"
            )

    def marks_moved(
        self, model: MemberModel, origin: Address, inbound: InboundModel, window: Window
    ) -> None:
        """A holder releases stable messages only, and others only for want of room."""
        low = inbound.marks.low
        if (
            not self.oracle.receivers_retain
            or self.oracle.sheds
            or window.low <= max(low, inbound.gone, inbound.start)
        ):
            return
        others = (
            self.model.members[member]
            for member in model.view_members
            if member not in {origin, model.address}
        )
        stable = min(
            (other.has_delivered(origin, model.epoch) for other in others), default=window.delivered
        )
        held_bytes = len(inbound.stream.content(low + 1, window.high)) + 2 * (window.high - low)
        if (
            window.low > stable
            and held_bytes + self.config.max_frame_bytes <= self.config.window_bytes
        ):
            self.fail(
                f"{model.name} purges up to {window.low} of {origin}, but {stable} "
                "is stable, and there is room"
            )

    def own_marks_moved(self, model: MemberModel, window: Window) -> None:
        """Compare low with the received acks."""
        stream = model.stream
        if window.low == stream.marks.low:
            return
        if self.config.group_profile.release is ReleasePolicy.ACKS:
            for member, ack in stream.acks.items():
                if max(ack, window.delivered if member == model.address else 0) < window.low:
                    self.fail(f"low moves to {window.low}, but {member} has acknowledged {ack}")
        else:
            self._check_stable(model, window)
        if self._purged_to != window.low and self._tracing(model):
            self.fail(f"low moves to {window.low}, but the trace has {self._purged_to}")

    def _check_stable(self, model: MemberModel, window: Window) -> None:
        """Check that every member of the view has delivered every stable message."""
        for member in model.view_members:
            taken = window.delivered
            if member != model.address:
                taken = self.model.members[member].has_delivered(model.address, model.epoch)
            if taken < window.low:
                self.fail(f"low moves to {window.low}, but {member} has delivered {taken}")

    @staticmethod
    def _tracing(model: MemberModel) -> bool:
        return model.member.tracing > 0


def _skips_messages(model: MemberModel, event: Lost | Started) -> bool:
    """Return whether a start skips messages; a start from the sender or a digest never does."""
    return isinstance(event, Lost) or event.start == model.inbound[event.origin].restarted > 0


class HostileBytesChecker(InvariantChecker):
    """Hostile bytes: a damaged datagram, or a datagram of another group, is a counted drop."""

    id = "S13"

    def refused(
        self, model: MemberModel, datagram: Datagram | None, before: object, ready: Ready
    ) -> None:
        """Compare the state before and after."""
        if datagram is None:
            _check_unchanged(self, model, before, ready, REASONS)
        elif datagram.group != model.member.group:
            _check_unchanged(self, model, before, ready, ("group",))


class BoundedMemoryChecker(InvariantChecker):
    """Memory: members and capacity bound the stored messages of a member; the counts add up."""

    id = "S14"
    measure_every = 16

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._moves = 0

    def marks_moved(
        self,
        model: MemberModel,
        origin: Address,
        inbound: InboundModel,
        window: Window,
    ) -> None:
        """Measure the whole memory at intervals."""
        self.connections_stepped(model)

    def connections_stepped(self, model: MemberModel) -> None:
        """Measure the memory of a member with connections."""
        self._moves += 1
        if self._moves % self.measure_every == 0:
            self.measure(model)

    def measure(self, model: MemberModel) -> None:
        """Compare the sizes of all tables with the formula."""
        member, config, reach = model.member, self.config, self.oracle.reach
        if getattr(member, "phase", "") == "over":
            return  # it does nothing any more
        members = max(1, len(model.view_members))
        # Retransmission may have been switched on since; stored messages stay.
        switched = config != member.config or not config.retransmits
        early = (
            max(config.become_server_queue_size, reach)
            if switched
            else config.become_server_queue_size
        )
        windows = [stream.window for stream in member.inbound.values() if stream.window is not None]
        ahead = sum(w.stored - (w.delivered - w.low if w.keep_delivered else 0) for w in windows)
        kept_bytes = max((w.stored_bytes for w in windows if w.keep_delivered), default=0)
        stored = member.outbound.window.stored + ahead
        # In one moment (min_retry / 2) low can pass the whole window a few times, and each member
        # asks by itself.
        sizes = {
            "stored messages": (stored, members * reach),
            "streams": (len(member.inbound), members - 1),
            "acks": (len(tuple(member.outbound.acks.items())), members),
            "kept bytes": (kept_bytes, config.window_bytes + reach * config.max_frame_bytes),
            "timers": (len(member.armed_timers()), len(TIMERS)),
            "early runs": (
                max((len(s._before_start) for s in member.inbound.values()), default=0),
                early,
            ),
            "early bytes": self._early_bytes(member),
            "unread bytes": (
                member.credit.large_bytes if config.unread_bytes else 0,
                config.unread_bytes + (members + 1) * config.window_bytes + reach,
            ),
            "questions": (
                max((len(s.loss_detector.open_naks) for s in member.inbound.values()), default=0),
                reach,
            ),
            "recent repairs": (
                len(member.outbound.retransmit_handler._recent),
                4 * members * reach,
            ),
        }
        for what, (size, most) in sizes.items():
            if size > most:
                self.fail(f"{size} {what}; the maximum is {most}")
        self._check_own_invariants(model)

    @staticmethod
    def _early_bytes(member: Endpoint | Member) -> tuple[int, int]:
        """Return the bytes kept before they can be used, and ``early_bytes`` for each member."""
        members = 1 if member.view is None else len(member.view)
        return member.early_budget.kept_bytes, members * member.config.early_bytes

    def _check_own_invariants(self, model: MemberModel) -> None:
        try:
            model.member.check_invariants()
        except (AssertionError, LookupError) as error:
            # A missing entry of a table violates the invariants, too, before any assert runs.
            self.fail(f"{model.name} violates an invariant of the machine: {error}")


class ViewConsistencyChecker(InvariantChecker):
    """Views: numbers rise, each number has a single list; strangers change nothing."""

    id = "S15"

    def view(self, model: MemberModel, view: View) -> None:
        """Compare a view with all earlier views."""
        number = view.id.number
        if model.view is not None and number <= model.view.id.number:
            self.fail(f"view {number} follows view {model.view.id.number}")
        if model.address not in view.members:
            self.fail(f"view {number} is installed at {model.name}, which is not in the view")
        if view.id.coordinator != view.members[0]:
            self.fail(
                f"view {number} was made by {view.id.coordinator}, but {view.members[0]} is "
                "its first member"
            )
        # Views in different partitions may have the same number, but never the same id.
        key = view.id if self.oracle.membership else number
        if self.model.views.setdefault(key, view.members) != view.members:
            self.fail(f"view {number} has two lists of members")
        if self.oracle.membership:
            self._check_incarnations(view)

    def _check_incarnations(self, view: View) -> None:
        """Check that a view names existing incarnations, and each node only once."""
        number, members = view.id.number, view.members
        if len({member.node for member in members}) < len(members):
            self.fail(f"view {number} names a member twice: {members}")
        if unknown := [member for member in members if member not in self.model.members]:
            self.fail(f"view {number} names {unknown}, which never existed")

    def refused(
        self, model: MemberModel, datagram: Datagram | None, before: object, ready: Ready
    ) -> None:
        """Compare the state before and after a frame from a non-member."""
        if datagram is not None and datagram.group == model.member.group:
            if self.oracle.membership:
                _check_streams(self, model, before, ready)
                return
            _check_unchanged(
                self, model, before, ready, ("stranger", "incarnation", "own", "addressee")
            )


class LinkAccountingChecker(InvariantChecker):
    """Honest faults: the counters of every link balance (``oracle.link_counters``)."""

    id = "S18"

    def close(self) -> None:
        """Check that the counters of every link balance."""
        for (source, target), books in sorted(self.oracle.link_counters.items()):
            if books.balance() or books.mislabelled:
                self.fail(
                    f"{source}->{target}: {books.balance()} copies unaccounted for, "
                    f"{books.mislabelled} mislabelled"
                )


def _stream(
    model: MemberModel, inbound: InboundModel | None, delivery: Delivery
) -> StreamModel | None:
    """Return the stream of a delivery."""
    return (
        model.stream
        if delivery.origin == model.address
        else None
        if inbound is None
        else inbound.stream
    )


def _check_unchanged(
    check: InvariantChecker,
    model: MemberModel,
    before: object,
    ready: Ready,
    reasons: tuple[str, ...],
) -> None:
    if check.oracle.fingerprint(model) != before:
        check.fail("a refused datagram changed the state")
    if ready.transmits or ready.deliveries or ready.events:
        check.fail("a refused datagram had an effect")
    drops = [row.reason for row in ready.trace if row.event == "DROPPED"]
    if len(drops) != 1 or drops[0] not in reasons:
        check.fail(f"a refused datagram was dropped as {drops}, not as one of {reasons}")


def _check_streams(
    check: InvariantChecker, model: MemberModel, before: object, ready: Ready
) -> None:
    """A member that makes its own views may answer a stranger, but no stream may move."""
    if check.oracle.fingerprint(model) != before:
        check.fail("a datagram of a stranger changed a stream")
    if ready.deliveries:
        check.fail("a datagram of a stranger was delivered")


CHECKERS: tuple[type[InvariantChecker], ...] = (
    NoCreationChecker,
    NoDuplicateChecker,
    GaplessPrefixChecker,
    IntegrityChecker,
    WindowBoundChecker,
    MonotonicMarksChecker,
    TruthfulAckChecker,
    SafePurgeChecker,
    ExactRepairChecker,
    NakPacingChecker,
    AcceptanceChecker,
    HostileBytesChecker,
    BoundedMemoryChecker,
    ViewConsistencyChecker,
    SilenceChecker,
    LinkAccountingChecker,
    DeliveryDeadlineChecker,
    StabilityDeadlineChecker,
    QuiescenceChecker,
    RepairCostChecker,
    *UNICAST_AND_OOB_CHECKERS,
    *MEMBERSHIP_CHECKERS,
    *SEALING_CHECKERS,
)
"""Every online check, in the order of the calls in a step."""
