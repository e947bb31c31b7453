"""The checks of the exhaustive search, under the names of docs/internals/invariants.md.

A *step* is an input to a member with all its effects. Most checks compare a step with its
*evidence*: the knowledge of an observer of the inputs and outputs of the member. The machine's own
marks never prove themselves. The search itself makes the checks of two members (S8, and S9 once
more), of two runs of the same step (S17) and of the whole graph (L5).

The guarantees are the same for every profile; the evidence differs. Where acks release messages,
the evidence is the received acks. Where stability releases messages, the evidence is the votes at
the coordinator and the stability messages at the other members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.invariants import checked_by, sentence_of
from gapless.profiles import NAKACK4, ORDERED, ReleasePolicy, TailPolicy
from gapless.protocol.stream import ranges
from gapless.protocol.stream.connections import MAX_FIRST_REQUESTS
from gapless.protocol.stream.outbound import OutboundStream
from gapless.protocol.timers import GAP, TAIL
from gapless.wire.frames import Ack, Data, Nak, Stable, Tail, Vote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gapless.identity import Address
    from gapless.profiles import Profile
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.ready import Delivery, TraceEntry
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.protocol.stream.window import Window
    from gapless.run import Run
    from gapless.wire.frames import Frame, Range

CHECKS = {
    **{check: sentence_of(check) for check in checked_by("search")},
    "INVARIANTS": "A machine never contradicts its own law.",
    "EXCEPTION": "No input makes the machine raise.",
    "REDUCTION": "Frames that the search treats as equal never lead to different states.",
}
"""The sentence of every check: of invariants first, then of the search itself."""


def payload(seqno: int) -> bytes:
    """Return the message with number ``seqno``: a byte different from all other messages."""
    return bytes((seqno,))


class StreamObservation(NamedTuple):
    """The state of the stream at a member, as the machine has it.

    Only the sender has ``acks``, and ``tracked``: the messages in acknowledged mode. While a
    connection is not ``open``, all marks are at the point of resumption, ``buffered`` is the
    waiting data, and ``start_requests`` counts the requests for the start. ``stable`` is the stable
    mark of the member, ``voted`` the highest seqno in a vote at the coordinator.
    """

    low: int
    delivered: int
    high: int
    held: dict[int, bytes]
    acks: dict[Address, int]
    open: bool = True
    buffered: tuple[Range, ...] = ()
    start_requests: int = 0
    stable: int = 0
    voted: int = 0
    tracked: tuple[int, ...] = ()

    @property
    def reported(self) -> int:
        """How far a sender has reported messages as acknowledged, with tracked messages only."""
        return min(self.tracked, default=self.high + 1) - 1

    @classmethod
    def of(cls, member: Endpoint, origin: Address, to: Address | None = None) -> StreamObservation:
        """Observe the stream of ``origin``, to all or to a member, in ``member``."""
        mine, connections = member.me == origin, member.connections
        stream: OutboundStream | InboundStream
        if to is None:
            stream = member.outbound if mine else member.inbound[origin]
        elif entry := connections.outgoing.get(to) if mine else connections.incoming.get(origin):
            stream = entry.stream
        else:
            unknown = connections.unconfirmed_epochs.get(origin)
            frames = () if unknown is None else unknown.frames.values()
            aside = tuple((frame.run.first, frame.run.last) for frame in frames)
            resume = max(
                (
                    ended.resume_seqno
                    for (peer, _), ended in connections._tombstones.items()
                    if peer == origin
                ),
                default=0,
            )
            return cls(
                resume,
                resume,
                resume,
                {},
                {},
                False,
                aside,
                0 if unknown is None else unknown.tries,
            )
        low, delivered, high, held = _observe_window(stream.window)
        acks: dict[Address, int] = {}
        tracked: list[int] = []
        if isinstance(stream, OutboundStream):
            acks, tracked = dict(stream.acks.items()), sorted(stream._tracked.values())
        known = voted(member, origin)
        return cls(
            low,
            delivered,
            high,
            held,
            acks,
            stable=stream.stable,
            voted=known,
            tracked=tuple(tracked),
        )


def voted(member: Endpoint, origin: Address) -> int:
    """Return the highest seqno of ``origin`` in the votes known to the coordinator."""
    if member.stability is None or not member.stability.is_coordinator:
        return 0
    highs = [table[origin][1] for table in member.stability._votes.values()]
    return max(highs, default=0)


def _observe_window(window: Window | None) -> tuple[int, int, int, dict[int, bytes]]:
    assert window is not None, "the digest tells every start"
    return (*window.marks, {seqno: message for run in window.runs for seqno, message in run})


class Evidence(NamedTuple):
    """The facts proved by the inputs and outputs of a member.

    At every member: ``delivered`` counts the deliveries, and ``stable`` is the highest received
    stable seqno. At the sender: ``submitted`` counts the sends. At the member that decides about
    purges, the sender or the coordinator, ``acked`` is the highest ack or vote from each other
    member. At a receiver: the bits of ``received`` are the seqnos that arrived as data,
    ``announced`` is the highest announced seqno.
    """

    delivered: int = 0
    submitted: int = 0
    acked: tuple[tuple[Address, int], ...] = ()
    received: int = 0
    announced: int = 0
    stable: int = 0

    def after_submit(self) -> Evidence:
        """Return the evidence after another submitted message."""
        return self._replace(submitted=self.submitted + 1)

    def after_frames(
        self, peer: Address, frames: tuple[Frame, ...], origin: Address, row: Profile
    ) -> Evidence:
        """Return the evidence about the stream of ``origin`` after ``frames`` of ``peer``."""
        given, announced, stable, acked = (
            self.received,
            self.announced,
            self.stable,
            dict(self.acked),
        )
        for frame in frames:
            if isinstance(frame, Data):
                given |= _bits(frame.run)
            elif isinstance(frame, Tail) and frame.origin == origin:
                announced = max(announced, frame.high)
            elif (
                isinstance(frame, Ack)
                and frame.origin == origin
                and row.release is ReleasePolicy.ACKS
            ):
                acked[peer] = max(acked[peer], frame.seqno)
            elif isinstance(frame, (Vote, Stable)):
                for _, delivered, high in (
                    entry for entry in frame.progress if entry.origin == origin
                ):
                    announced = max(announced, high)
                    if isinstance(frame, Stable):
                        stable = max(stable, delivered)
                    else:
                        acked[peer] = max(acked[peer], delivered)
        return self._replace(
            received=given, announced=announced, stable=stable, acked=tuple(acked.items())
        )

    def after_forgetting(self, aside: Iterable[Range]) -> Evidence:
        """Return the evidence about an unknown connection: only ``buffered`` data has arrived."""
        given = self.received & (1 << self.delivered + 1) - 1
        for first, last in aside:
            given |= (1 << last + 1) - (1 << first)
        return self._replace(received=given, announced=0)

    def has(self, seqno: int) -> bool:
        """Return whether ``seqno`` was received as data."""
        return bool(self.received >> seqno & 1)

    def without_stale_announcement(self) -> Evidence:
        """Return the same without an overtaken announcement: no check can tell the difference."""
        return (
            self if self.announced > self.received.bit_length() - 1 else self._replace(announced=0)
        )

    @property
    def known(self) -> int:
        """The highest seqno that a receiver can know."""
        return max(self.announced, self.received.bit_length() - 1)


def _bits(run: Run) -> int:
    return ((1 << run.count) - 1) << run.first


class StepRecord(NamedTuple):
    """An input to a member, and the result. ``witness`` has the input and all earlier output.

    ``timer`` is the fired timer, if the input was a timer; ``to`` is the receiver of unicast
    messages; with ``keeps`` receivers retain deliveries until stable; ``peers`` are the other
    members.
    """

    capacity: int
    sends: bool
    peer: Address | None
    received_frames: tuple[Frame, ...]
    before: StreamObservation
    after: StreamObservation
    evidence: Evidence
    sent_frames: list[tuple[Address | None, Frame]]
    deliveries: list[Delivery]
    trace: list[TraceEntry]
    row: Profile = NAKACK4
    timer: str = ""
    to: Address | None = None
    retains: bool = False
    peers: tuple[Address, ...] = ()

    @property
    def forgets(self) -> bool:
        """Whether an open connection was closed, or buffered data was dropped."""
        asked_enough = self.timer == GAP and self.before.start_requests == MAX_FIRST_REQUESTS
        return not self.after.open and (self.before.open or asked_enough)

    @property
    def stores(self) -> bool:
        """Whether the member retains delivered messages for others."""
        return self.sends or self.retains

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Iterate over all delivered messages."""
        for delivery in self.deliveries:
            yield from zip(
                range(delivery.first, delivery.last + 1), delivery.messages(), strict=True
            )

    def sent(self, *, repair: bool) -> Iterator[tuple[Address | None, int, bytes]]:
        """Iterate over the messages of outgoing data: destination, seqno and bytes."""
        for to, frame in self.sent_frames:
            if isinstance(frame, Data) and frame.repair == repair:
                yield from ((to, seqno, message) for seqno, message in frame.run)


def no_creation(turn: StepRecord) -> Iterator[str]:
    """S1."""
    for seqno, _ in turn.messages():
        if seqno > turn.evidence.submitted if turn.sends else not turn.evidence.has(seqno):
            yield f"{seqno} is delivered and never came in"
        if turn.sends and turn.to is not None:
            yield f"{seqno} is delivered to its sender, and was for {turn.to}"
    for _, seqno, _ in turn.sent(repair=False):
        if not 0 < seqno <= turn.evidence.submitted:
            yield f"{seqno} is sent and was never submitted"


def no_duplicate(turn: StepRecord) -> Iterator[str]:
    """S2."""
    done = set(range(1, turn.evidence.delivered + 1))
    for seqno, _ in turn.messages():
        if seqno in done:
            yield f"{seqno} is delivered a second time"
        done.add(seqno)


def prefix(turn: StepRecord) -> Iterator[str]:
    """S3."""
    last = turn.evidence.delivered
    for seqno, _ in turn.messages():
        if seqno > last + 1:
            yield f"{seqno} is delivered after {last}"
        last = max(last, seqno)
    reads = not turn.sends or turn.to is None
    if reads and turn.after.delivered != last:
        yield f"the machine counts {turn.after.delivered} as delivered, and {last} came out"


def integrity(turn: StepRecord) -> Iterator[str]:
    """S4."""
    for seqno, message in turn.messages():
        if message != payload(seqno):
            yield f"{seqno} is delivered as {message!r}, not as {payload(seqno)!r}"
    for _, seqno, message in turn.sent(repair=False):
        if message != payload(seqno):
            yield f"{seqno} is sent as {message!r}, not as {payload(seqno)!r}"


def window(turn: StepRecord) -> Iterator[str]:
    """S6."""
    after, capacity = turn.after, turn.capacity
    if turn.sends and after.high - after.low > capacity:
        yield f"low {after.low}, high {after.high}: more than {capacity} outstanding"
    ceiling = (after.low if turn.sends else after.delivered) + capacity
    wrong = [seqno for seqno in after.held if not after.low < seqno <= ceiling]
    if wrong:
        yield f"holds {wrong} outside {after.low + 1}..{ceiling}"
    if len(after.buffered) > capacity:
        yield f"keeps {len(after.buffered)} runs of a connection that it does not know"


def marks(turn: StepRecord) -> Iterator[str]:
    """S7."""
    before, after = turn.before, turn.after
    if not after.low <= after.delivered <= after.high:
        yield f"low {after.low}, delivered {after.delivered}, high {after.high} are out of order"
    for name in ("low", "delivered", "high") if not turn.forgets else ("low", "delivered"):
        if getattr(after, name) < getattr(before, name):
            yield f"{name} falls from {getattr(before, name)} to {getattr(after, name)}"
    for member, ack in before.acks.items():
        if after.acks.get(member, -1) < ack:
            yield f"the ack of {member} falls from {ack} to {after.acks.get(member)}"


def purge(turn: StepRecord) -> Iterator[str]:
    """S9."""
    low = turn.after.low
    if not turn.stores or low == turn.before.low:
        return
    for member, ack in turn.evidence.acked:
        if ack < low:
            yield f"purged up to {low}, and {member} has acknowledged {ack}"
    if not turn.evidence.acked and turn.evidence.stable < low:
        yield f"purged up to {low}, and {turn.evidence.stable} is stable"


def repair(turn: StepRecord) -> Iterator[str]:
    """S10."""
    asked = [
        bounds
        for frame in turn.received_frames
        if isinstance(frame, Nak)
        for bounds in frame.ranges
    ]
    wanted = {seqno for first, last in asked for seqno in range(first, last + 1)}
    stored = (
        {seqno for seqno in turn.before.held if seqno > turn.after.low} if turn.stores else set()
    )
    repairs = list(turn.sent(repair=True))
    sent = [seqno for _, seqno, _ in repairs]
    legal = [sorted((wanted | unasked) & stored) for unasked in _unasked(turn)]
    askers = {turn.peer, turn.to}
    if turn.timer == TAIL and turn.before.tracked and turn.to is None:
        last, acks = (
            turn.before.tracked[-1],
            {peer: ack for peer, ack in turn.before.acks.items() if peer in turn.peers},
        )
        again = sorted(
            seqno for ack in acks.values() for seqno in range(ack + 1, last + 1) if seqno in stored
        )
        legal, askers = [again, *(legal if turn.row is ORDERED else [])], set(acks)
    if sorted(sent) not in legal:
        yield f"asked for {sorted(wanted)} of {sorted(stored)}, repaired {sent}"
    for to, seqno, message in repairs:
        if message != payload(seqno):
            yield f"{seqno} is repaired as {message!r}, not as {payload(seqno)!r}"
        if to is not None and to not in askers:
            yield f"{seqno} is repaired to {to}, which did not ask"
    old = [seqno for _, seqno, _ in turn.sent(repair=False) if seqno <= turn.before.high]
    if old:
        yield f"{old} is sent again and nobody asked"


def _unasked(turn: StepRecord) -> list[set[int]]:
    """Return the ranges that a sender may resend without a request."""
    low, high = turn.before.low, turn.before.high
    if turn.to is not None and any(
        isinstance(frame, Nak) and not frame.ranges for frame in turn.received_frames
    ):
        return [{low + 1}]
    if turn.timer == TAIL and turn.row.tail is TailPolicy.RESEND_ALL:
        return [set(range(low + 1, high + 1))]
    if turn.timer == TAIL and turn.row.tail is TailPolicy.RESEND_LAST:
        return [set(), {high}]
    return [set()]


def nak(turn: StepRecord) -> Iterator[str]:
    """S11."""
    witness = turn.evidence
    for asked in (frame.ranges for _, frame in turn.sent_frames if isinstance(frame, Nak)):
        seqnos = [seqno for first, last in asked for seqno in range(first, last + 1)]
        if seqnos and not turn.row.naks:
            yield f"asks for {seqnos}, and nobody is to ask here"
        if any(witness.has(seqno) for seqno in seqnos):
            yield f"asks for {seqnos}, of which some have come in"
        if ranges.clip(asked, witness.known + 1, max(seqnos, default=0)):
            yield f"asks for {seqnos}, and {witness.known} is the highest it can know of"
        if ranges.clip(asked, 0, witness.delivered):
            yield f"asks for {seqnos}, and {witness.delivered} are delivered"


def acceptance(turn: StepRecord) -> Iterator[str]:
    """S12."""
    if turn.sends:
        return
    before, after, right = turn.before, turn.after, dict.fromkeys(_REFUSALS, 0)
    coming = [
        (frame.run.first, frame.run.last)
        for frame in turn.received_frames
        if isinstance(frame, Data)
    ]
    aside: list[Range] = []
    if after.open:
        coming = [*before.buffered, *coming]
    else:
        aside, coming = _buffered_after(turn, coming, right), []
    held, low, ceiling = set(before.held), before.low, before.delivered + turn.capacity
    if turn.forgets:
        held = set()
    for seqno in (seqno for first, last in coming for seqno in range(first, last + 1)):
        if seqno <= low:
            right["old"] += 1
        elif seqno in held:
            right["duplicate"] += 1
        else:
            right["far"] += seqno > ceiling
            held.add(seqno)
    dropped = dict.fromkeys(_REFUSALS, 0)
    for row in turn.trace:
        if row.event == "DROPPED":
            dropped[row.reason] = dropped.get(row.reason, 0) + row.k
    if dropped != right:
        yield f"should drop {_nonzero(right)}, dropped {_nonzero(dropped)}"
    if right["far"]:
        yield f"the sender sent beyond {ceiling}"
    present = {*after.held, *range(low + 1, after.delivered + 1)}
    if present != held:
        yield f"should hold or deliver {sorted(held)}, holds or delivered {sorted(present)}"
    if list(after.buffered) != aside:
        yield f"should keep {aside} for a connection, keeps {list(after.buffered)}"


def _buffered_after(turn: StepRecord, coming: list[Range], right: dict[str, int]) -> list[Range]:
    """Return the data that an unknown connection must buffer; count other drops by reason."""
    aside = list(turn.before.buffered)
    if turn.forgets:
        right["early"] += ranges.count(aside)
        return []
    for run in coming:
        if run in aside:
            right["duplicate"] += ranges.count([run])
        elif len(aside) == turn.capacity:
            right["early"] += ranges.count([run])
        else:
            aside.append(run)
    return aside


_REFUSALS = ("old", "duplicate", "far", "early")


def _nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in counts.items() if count}


STEP_CHECKS: dict[str, Callable[[StepRecord], Iterator[str]]] = {
    "S1": no_creation,
    "S2": no_duplicate,
    "S3": prefix,
    "S4": integrity,
    "S6": window,
    "S7": marks,
    "S9": purge,
    "S10": repair,
    "S11": nak,
    "S12": acceptance,
}
"""The checks of a single step."""


class CheckFailure(NamedTuple):
    """A failed check, and the reason."""

    check: str
    reason: str

    def __str__(self) -> str:
        return f"{self.check} ({CHECKS[self.check]}): {self.reason}"


def failed_checks(turn: StepRecord) -> tuple[CheckFailure, ...]:
    """Return every failed check of a step."""
    return tuple(
        CheckFailure(name, reason) for name, check in STEP_CHECKS.items() for reason in check(turn)
    )
