"""The safety checks S1 to S18, one small class each, in the words of docs/invariants.md.

Each compares one promise with the oracle's own model, after every step. What they need of a member
beside its answers is its windows' marks, which are the thing promised; no counter of the machine is
believed.

``CHECKERS`` lists everything that runs online, the liveness checks included, those of what is beside
the stream to the group (beside.py), and those of groups that make their own views (belonging.py).
Two ids of the list live elsewhere: S17 compares two runs (:func:`gapless.sim.runner.same_digest`),
and L5 needs an exhaustive search.
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
from gapless.sim.checkers.unicast_and_oob import UNICAST_AND_OOB_CHECKERS
from gapless.sim.oracle.checker import InvariantChecker
from gapless.sim.oracle.model_update import is_absence_loss
from gapless.wire import Nak
from gapless.wire.primitives import REASONS

if TYPE_CHECKING:
    from gapless.identity import Address, View
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Delivery, Ready, TraceEntry
    from gapless.protocol.stream.window import Window
    from gapless.sim.oracle.checker import Outgoing
    from gapless.sim.oracle.model import InboundModel, MemberModel, StreamModel
    from gapless.sim.oracle.oracle import Oracle
    from gapless.wire import Ack, Data, Datagram, Gone, Tail


class NoCreationChecker(InvariantChecker):
    """No creation: what goes out is what the application gave, in order; what is delivered went out before."""

    id = "S1"

    def data_out(self, life: MemberModel, to: Address | None, frame: Data) -> None:
        """Compare a first transmission with what the application handed over."""
        run, stream = frame.run, life.stream
        if frame.repair:
            return
        if run.origin != life.address or run.first != stream.high + 1:
            self.fail(
                f"{run} goes out as new, but the stream of {life.name} stands at {stream.high}"
            )
            return
        if run.flags & FRAGMENT:
            self._check_fragment(life, frame)
            return
        for waiting, message in zip(stream.queue, run.messages(), strict=False):
            if waiting.payload != message or waiting.no_loopback != bool(run.flags & NO_LOOPBACK):
                self.fail(
                    f"{run} carries {message[:40]!r} where the application gave {waiting.payload[:40]!r}"
                )
                return
        if run.count > len(stream.queue):
            self.fail(
                f"{run} carries {run.count} messages, but the application gave only {len(stream.queue)} more"
            )

    def _check_fragment(self, life: MemberModel, frame: Data) -> None:
        run, stream = frame.run, life.stream
        if not stream.queue:
            self.fail(f"{run} is a piece of nothing that the application gave")
        elif bool(run.flags & FIRST_FRAGMENT) == bool(stream.fragment_payloads):
            self.fail(f"{run} begins a message inside another, or goes on with none")
        elif (
            run.flags & LAST_FRAGMENT
            and b"".join((*stream.fragment_payloads, run.payload)) != stream.queue[0].payload
        ):
            self.fail(f"the pieces up to {run} do not add up to the message of the application")

    def delivered(self, life: MemberModel, heard: InboundModel | None, delivery: Delivery) -> None:
        """Look for the send of what is delivered."""
        stream = _stream(life, heard, delivery)
        if stream is None or delivery.last > stream.high:
            self.fail(
                f"{life.name} delivers {delivery.first}..{delivery.last} of {delivery.origin}, never sent"
            )

    def event(self, life: MemberModel, event: Event) -> None:
        """Compare the numbers that the application is told with those that are taken."""
        if not isinstance(event, Accepted) or event.ticket not in life.tickets:
            return
        if not 0 < event.first <= event.last <= life.stream.high:
            self.fail(f"{event} names seqnos that have not been sent")


class NoDuplicateChecker(InvariantChecker):
    """No duplicate: nothing is delivered twice."""

    id = "S2"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._last: dict[tuple[Address, Address, int], int] = {}

    def delivered(self, life: MemberModel, heard: InboundModel | None, delivery: Delivery) -> None:
        """Compare with what is due next; behind a state with what is in it, or was handed out last.

        What waited for the state may follow a new start of its stream.
        """
        due = (
            life.own_next
            if delivery.origin == life.address
            else heard.next
            if heard is not None
            else 0
        )
        key = life.address, delivery.origin, delivery.epoch
        if not life.covered and not life.past_inbound:
            again = delivery.first < due and (heard is None or heard.open)
        else:
            again = delivery.first <= max(self._last.get(key, 0), life.covered.get(key[1:], 0))
        if again:
            self.fail(
                f"{life.name} delivers {delivery.first} of {delivery.origin} again, {due} is next"
            )
        self._last[key] = max(self._last.get(key, 0), delivery.last)


class GaplessPrefixChecker(InvariantChecker):
    """Gapless prefix: every stream is delivered from its start on, in order, with nothing left out."""

    id = "S3"

    def delivered(self, life: MemberModel, heard: InboundModel | None, delivery: Delivery) -> None:
        """A delivery begins at the very next message."""
        origin = self.model.members.get(delivery.origin)
        if origin is not None and heard is not None and heard.open:
            due = heard.due()
        elif origin is life:
            due = life.stream.next_loopback_from(life.own_next)
        else:
            self.fail(f"{life.name} delivers from {delivery.origin}, whose stream has no start")
            return
        if delivery.first > due:
            self.fail(f"{life.name} delivers {delivery.first} of {origin.name}, but {due} is next")

    def marks_moved(
        self, life: MemberModel, origin: Address, heard: InboundModel, window: Window
    ) -> None:
        """The delivered mark passes only what has arrived, and no whole message that was not handed out."""
        delivered = window.delivered
        if delivered == heard.delivered:
            return
        passable = heard.consecutive()
        if delivered > passable:
            self.fail(f"delivered of {origin} moves to {delivered} over a gap at {passable + 1}")
        begin = heard.due()
        if begin <= delivered and heard.stream.end_of(begin) <= delivered and not life.transferring:
            self.fail(f"delivered of {origin} moves to {delivered}, but {begin} was not handed out")

    def own_marks_moved(self, life: MemberModel, window: Window) -> None:
        """The same for the own stream."""
        stream, delivered = life.stream, window.delivered
        begin = stream.next_loopback_from(life.own_next)
        if begin <= delivered and stream.end_of(begin) <= delivered and not life.transferring:
            self.fail(f"the own delivered moves to {delivered}, but {begin} was not handed out")


class IntegrityChecker(InvariantChecker):
    """Integrity: the bytes delivered are the bytes sent."""

    id = "S4"

    def delivered(self, life: MemberModel, heard: InboundModel | None, delivery: Delivery) -> None:
        """Compare content, message by message in effect, run by run in cost."""
        stream = _stream(life, heard, delivery)
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
                f"{life.name} delivers other bytes than {delivery.origin} sent as {first}..{last}"
            )


class WindowBoundChecker(InvariantChecker):
    """Window: at most ``capacity`` messages outstanding at a sender; a receiver stores only what is in reach."""

    id = "S6"

    def marks_moved(
        self,
        life: MemberModel,
        origin: Address,
        heard: InboundModel,
        window: Window,
    ) -> None:
        """A receiver stores what the model says that it holds, and nothing out of reach."""
        delivered, reach = window.delivered, self.oracle.reach
        if delivered < heard.delivered:
            self.fail(
                f"the stream of {origin} stands at {delivered}, and has been at {heard.delivered}"
            )
            return
        stored = (
            window.stored - (delivered - window.low) if window.keep_delivered else window.stored
        )
        held = (heard.held >> (delivered - heard.delivered)).bit_count()
        if stored != held:
            self.fail(f"{stored} messages of {origin} are stored, {held} should be")
        if window.high > delivered + reach or stored > reach:
            self.fail(f"the window of {origin} reaches from {window.delivered} to {window.high}")

    def own_marks_moved(self, life: MemberModel, window: Window) -> None:
        """A sender keeps within its capacity."""
        if window.high - window.low > self.oracle.reach:
            self.fail(
                f"{window.high - window.low} messages are outstanding, {self.oracle.reach} may be"
            )


class MonotonicMarksChecker(InvariantChecker):
    """Marks: low <= delivered <= high; none of them and no ack ever goes down; the trace shows them as they are."""

    id = "S7"

    def ack_in(self, life: MemberModel, sender: Address, frame: Ack) -> None:
        """The entry of the ack table is at least what it was before."""
        acks, before = life.member.outbound.acks, life.stream.acks.get(sender, 0)
        if sender in acks and acks[sender] < before:
            self.fail(f"the ack of {sender} fell from {before} to {acks[sender]}")

    def marks_moved(
        self,
        life: MemberModel,
        origin: Address,
        heard: InboundModel,
        window: Window,
    ) -> None:
        """Compare the marks of another's stream with those before."""
        self._compare(origin, heard.marks, window)

    def own_marks_moved(self, life: MemberModel, window: Window) -> None:
        """Compare the own marks with those before."""
        self._compare("the own stream", life.stream.marks, window)

    def row_state(self, life: MemberModel, row: TraceEntry) -> None:
        """Compare a row of the trace with the window."""
        member, origin = life.member, row.origin
        stream = member.inbound.get(origin) if origin is not None else None
        window = member.outbound.window if stream is None else stream.window
        if window is None or (window.low, window.delivered, window.high) != (
            row.low,
            row.delivered,
            row.high,
        ):
            self.fail(
                f"the trace says {row.low}, {row.delivered}, {row.high} for {origin}, the window does not"
            )

    def sampled(self, life: MemberModel, ready: Ready, outgoing: Outgoing) -> None:
        """The trace tells of every frame that goes out, and of no other."""
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
        """No mark has moved without a reason, when nobody looked."""
        for life in self.model.members.values():
            if not life.alive:
                continue
            self._same(life, f"of {life.name}", life.stream.marks, life.member.outbound.window)
            for origin, heard in life.inbound.items():
                window = life.member.inbound[origin].window
                if window is not None:
                    self._same(life, f"of {origin} at {life.name}", heard.marks, window)

    def _same(
        self, life: MemberModel, which: str, known: tuple[int, int, int], window: Window
    ) -> None:
        if window.marks != known:
            self.oracle.current_member = life
            self.fail(
                f"marks {which} moved in silence from {tuple(known)} to {tuple(window.marks)}"
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
"""How the trace calls what goes out."""
_FRAME_EVENTS = frozenset(_TRACED.values())


class TruthfulAckChecker(InvariantChecker):
    """Acks are true: nobody acknowledges what it has not taken."""

    id = "S8"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._unverified_acks: list[Ack] = []

    def ack_in(self, life: MemberModel, sender: Address, frame: Ack) -> None:
        """The member that the ack is from has delivered that far."""
        if frame.origin != life.address:
            return
        taken = self.model.members[sender].has_delivered(life.address, frame.epoch)
        if frame.seqno > taken:
            self.fail(f"an ack of {sender} for {frame.seqno} came in; it has {taken}")

    def ack_out(self, life: MemberModel, to: Address | None, frame: Ack) -> None:
        """What was delivered before may be acknowledged; what is delivered only now, once that is known."""
        heard = life.inbound.get(frame.origin)
        if heard is None or frame.seqno > heard.delivered:
            self._unverified_acks.append(frame)
            self.oracle.at_end.append(self.end)

    def end(self, life: MemberModel) -> None:
        """No ack went out beyond the delivered mark."""
        for ack in self._unverified_acks:
            heard = life.inbound.get(ack.origin)
            if heard is None or ack.seqno > heard.delivered:
                self.fail(
                    f"{life.name} acknowledges {ack.seqno} of {ack.origin}, it has {heard and heard.delivered}"
                )
        self._unverified_acks.clear()


class SafePurgeChecker(InvariantChecker):
    """Purge is safe: every member of the view has acknowledged what goes; nobody that counts loses anything."""

    id = "S9"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._purged_to = 0

    def row_purge(self, life: MemberModel, row: TraceEntry) -> None:
        """Remember what the trace says was purged."""
        self._purged_to = row.seqno_last

    def tail_out(self, life: MemberModel, to: Address | None, frame: Tail) -> None:
        """An announcement tells the truth, and the start that the ack table counts from."""
        window = life.member.outbound.window
        if frame.low > window.low or frame.high > window.high:
            self.fail(
                f"announces {frame.low}..{frame.high}, but the window is at {window.low}..{window.high}"
            )
        if frame.start is not None and (to is None or frame.start != life.stream.starts.get(to)):
            self.fail(
                f"tells {to} to start at {frame.start}, but counts from {life.stream.starts.get(to or life.address)}"
            )

    def gone_out(self, life: MemberModel, to: Address | None, frame: Gone) -> None:
        """What is called gone is purged."""
        if frame.low > life.member.outbound.window.low:
            self.fail(f"calls {frame.low} gone, but low is {life.member.outbound.window.low}")

    def event(self, life: MemberModel, event: Event) -> None:
        """A loss, or a start that leaves something out, may only meet one who did not count at that time."""
        if (
            not isinstance(event, (Lost, Started))
            or not _skips_messages(life, event)
            or is_absence_loss(life, event)
        ):
            return
        upto = event.last if isinstance(event, Lost) else event.start
        owed_from = self.model.owed_from(event.origin, life)
        if owed_from is not None and upto > owed_from:
            self.fail(
                f"{life.name} misses up to {upto} of {event.origin}, which owes it all behind {owed_from}"
            )

    def marks_moved(
        self, life: MemberModel, origin: Address, heard: InboundModel, window: Window
    ) -> None:
        """Who holds messages for others lets go of what is stable, and of more only for want of room."""
        low = heard.marks.low
        if (
            not self.oracle.receivers_retain
            or self.oracle.sheds
            or window.low <= max(low, heard.gone, heard.start)
        ):
            return
        others = (
            self.model.members[member]
            for member in life.view_members
            if member not in {origin, life.address}
        )
        stable = min(
            (other.has_delivered(origin, life.epoch) for other in others), default=window.delivered
        )
        held_bytes = len(heard.stream.content(low + 1, window.high)) + 2 * (window.high - low)
        if (
            window.low > stable
            and held_bytes + self.config.max_frame_bytes <= self.config.window_bytes
        ):
            self.fail(
                f"{life.name} lets {window.low} of {origin} go, but {stable} is stable, and there is room"
            )

    def own_marks_moved(self, life: MemberModel, window: Window) -> None:
        """Compare low with the acks that have come in."""
        stream = life.stream
        if window.low == stream.marks.low:
            return
        if self.config.group_profile.release is ReleasePolicy.ACKS:
            for member, ack in stream.acks.items():
                if max(ack, window.delivered if member == life.address else 0) < window.low:
                    self.fail(f"low moves to {window.low}, but {member} has acknowledged {ack}")
        else:
            self._check_stable(life, window)
        if self._purged_to != window.low and self._tracing(life):
            self.fail(f"low moves to {window.low}, the trace says {self._purged_to}")

    def _check_stable(self, life: MemberModel, window: Window) -> None:
        """What is stable has been delivered by every member of the view, in truth."""
        for member in life.view_members:
            taken = window.delivered
            if member != life.address:
                taken = self.model.members[member].has_delivered(life.address, life.epoch)
            if taken < window.low:
                self.fail(f"low moves to {window.low}, but {member} has {taken}")

    @staticmethod
    def _tracing(life: MemberModel) -> bool:
        return life.member.tracing > 0


def _skips_messages(life: MemberModel, event: Lost | Started) -> bool:
    """Return whether messages are left out: a start that was told by the sender or a digest leaves out nothing."""
    return isinstance(event, Lost) or event.start == life.inbound[event.origin].restarted > 0


class HostileBytesChecker(InvariantChecker):
    """Hostile bytes: what does not decode, or is for another group, is one counted drop and changes nothing."""

    id = "S13"

    def refused(
        self, life: MemberModel, said: Datagram | None, before: object, ready: Ready
    ) -> None:
        """Compare the state before and after."""
        if said is None:
            _check_unchanged(self, life, before, ready, REASONS)
        elif said.group != life.member.group:
            _check_unchanged(self, life, before, ready, ("group",))


class BoundedMemoryChecker(InvariantChecker):
    """Memory: everything a member keeps is bounded by members and capacity, and its books add up."""

    id = "S14"
    measure_every = 16

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._moves = 0

    def marks_moved(
        self,
        life: MemberModel,
        origin: Address,
        heard: InboundModel,
        window: Window,
    ) -> None:
        """Now and then, measure everything."""
        self.connections_stepped(life)

    def connections_stepped(self, life: MemberModel) -> None:
        """The same for a member that has connections."""
        self._moves += 1
        if self._moves % self.measure_every == 0:
            self.measure(life)

    def measure(self, life: MemberModel) -> None:
        """Compare the sizes of all tables with the formula."""
        member, config, reach = life.member, self.config, self.oracle.reach
        if getattr(member, "phase", "") == "over":
            return  # it does nothing any more
        members = max(1, len(life.view_members))
        # Retransmission may have been off, and is on by now; what is kept stays.
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
                self.fail(f"{size} {what}, at most {most} are allowed")
        try:
            member.check_invariants()
        except (AssertionError, LookupError) as error:
            # A table that lacks an entry contradicts the law as well, before an assert can say so.
            self.fail(f"{life.name} contradicts its own law: {error}")


class ViewConsistencyChecker(InvariantChecker):
    """Views: numbers rise, one number is one list; who is not in the view, or has a newer life, changes nothing."""

    id = "S15"

    def view(self, life: MemberModel, view: View) -> None:
        """Compare a view with all earlier ones."""
        number = view.id.number
        if life.view is not None and number <= life.view.id.number:
            self.fail(f"view {number} follows view {life.view.id.number}")
        if life.address not in view.members:
            self.fail(f"view {number} is given to {life.name}, which is not in it")
        if view.id.coordinator != view.members[0]:
            self.fail(
                f"view {number} was made by {view.id.coordinator}, but {view.members[0]} is its first member"
            )
        # In the parts of a group that cannot hear each other different views may have one number,
        # not one id.
        key = view.id if self.oracle.membership else number
        if self.model.views.setdefault(key, view.members) != view.members:
            self.fail(f"view {number} has two lists of members")
        if self.oracle.membership:
            self._check_incarnations(view)

    def _check_incarnations(self, view: View) -> None:
        """A view that the members made names lives that there were, and one of each node."""
        number, members = view.id.number, view.members
        if len({member.node for member in members}) < len(members):
            self.fail(f"view {number} names somebody twice: {members}")
        if unknown := [member for member in members if member not in self.model.members]:
            self.fail(f"view {number} names {unknown}, which never lived")

    def refused(
        self, life: MemberModel, said: Datagram | None, before: object, ready: Ready
    ) -> None:
        """Compare the state before and after a frame of somebody who is not a member."""
        if said is not None and said.group == life.member.group:
            if self.oracle.membership:
                _check_streams(self, life, before, ready)
                return
            _check_unchanged(
                self, life, before, ready, ("stranger", "incarnation", "own", "addressee")
            )


class LinkAccountingChecker(InvariantChecker):
    """Honest faults: the books of every link balance. The world shows its books through ``oracle.books``."""

    id = "S18"

    def close(self) -> None:
        """Balance the books."""
        for (source, target), books in sorted(self.oracle.link_counters.items()):
            if books.balance() or books.mislabelled:
                self.fail(
                    f"{source}->{target}: {books.balance()} copies unaccounted for, {books.mislabelled} mislabelled"
                )


def _stream(
    life: MemberModel, heard: InboundModel | None, delivery: Delivery
) -> StreamModel | None:
    """Return the stream that a delivery is of."""
    return (
        life.stream if delivery.origin == life.address else None if heard is None else heard.stream
    )


def _check_unchanged(
    check: InvariantChecker,
    life: MemberModel,
    before: object,
    ready: Ready,
    reasons: tuple[str, ...],
) -> None:
    if check.oracle.fingerprint(life) != before:
        check.fail("a refused datagram changed the state")
    if ready.transmits or ready.deliveries or ready.events:
        check.fail("a refused datagram had an effect")
    drops = [row.reason for row in ready.trace if row.event == "DROPPED"]
    if len(drops) != 1 or drops[0] not in reasons:
        check.fail(f"a refused datagram was dropped as {drops}, not as one of {reasons}")


def _check_streams(
    check: InvariantChecker, life: MemberModel, before: object, ready: Ready
) -> None:
    """A member that finds its views by itself may answer a stranger, but no stream may move."""
    if check.oracle.fingerprint(life) != before:
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
)
"""Every check that runs online, in the order in which they look at a step."""
