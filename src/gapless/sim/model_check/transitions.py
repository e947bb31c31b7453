"""The parts of the exhaustive search: frames and bags by number, members as tables of steps.

A member is a pure function of its snapshot and its input. So the real machine takes each distinct
step once; later the search looks up the result. Frames, bags of frames and states of a member are
interned as small numbers.

The search may treat a frame without news for its target as another frame, or as no frame
(``gapless.sim.model_check.search`` has the rules). A rule only proposes: two frames count as equal
only after the machine has taken both steps with the same result. When the search is over,
``split_pairs`` follows every pair of equal frames along all later states.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from gapless.delivery_mode import DeliveryMode
from gapless.faults.frame_names import incarnation_name, kind_of, span_of, stream_of
from gapless.profiles import ReleasePolicy
from gapless.protocol.timers import GAP, REAP
from gapless.rng import split
from gapless.sim.model_check.bounds import NOW_NS, ScriptedRandom, SearchBounds
from gapless.sim.model_check.checks import (
    CheckFailure,
    Evidence,
    StepRecord,
    StreamObservation,
    failed_checks,
    payload,
)
from gapless.sim.model_check.state_reduction import drop_stale_marks, effective_frame
from gapless.sim.short_path import ShortPath, path_hook
from gapless.wire.codec import decode, encode
from gapless.wire.frames import Ack, Stable, Vote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gapless.identity import Address
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.ready import Ready
    from gapless.wire.frames import Datagram, Frame

SUBMIT = "submit"
"""The input of the application; the other inputs without a frame are the names of timers."""

_TO = " to "
"""Separates a timer from the member asked by the holder."""

NO_EFFECT = -1
"""The number of a frame without any effect."""

MEMBER_BITS = 20
"""Number of bits for the state of a member in the number of a state of the group."""


class FrameTable:
    """Every datagram on every link, by number; ``source`` and ``target`` index the members.

    ``claim`` is the delivered mark of the sender's stream in the datagram, ``stable`` the stable
    mark.
    """

    def __init__(self, members: tuple[Address, ...]) -> None:
        self._members = members
        self._numbers: dict[tuple[int, bytes], int] = {}
        self.source: list[int] = []
        self.target: list[int] = []
        self.datagram: list[bytes] = []
        self.decoded: list[Datagram] = []
        self.claim: list[int] = []
        self.stable: list[int] = []

    def number(self, target: Address, datagram: bytes) -> int:
        """Return the number of a datagram on the way to ``target``."""
        at = self._members.index(target)
        found = self._numbers.setdefault((at, datagram), len(self.decoded))
        if found == len(self.decoded):
            decoded = decode(datagram)
            self.source.append(self._members.index(decoded.sender))
            self.target.append(at)
            self.datagram.append(datagram)
            self.decoded.append(decoded)
            frames = decoded.frames
            self.claim.append(max((self._claim(frame, Vote) for frame in frames), default=0))
            self.stable.append(max((self._claim(frame, Stable) for frame in frames), default=0))
        return found

    def _claim(self, frame: Frame, kind: type[Vote | Stable]) -> int:
        if isinstance(frame, Ack):
            return frame.seqno if kind is Vote and frame.origin == self._members[0] else 0
        if not isinstance(frame, kind):
            return 0
        return next(
            (entry.delivered for entry in frame.progress if entry.origin == self._members[0]), 0
        )

    def name(self, number: int) -> str:
        """Return the name of a frame, such as ``DATA a1 a->b``."""
        words = " + ".join(_name(frame) for frame in self.decoded[number].frames)
        source, target = self._members[self.source[number]], self._members[self.target[number]]
        return f"{words} {incarnation_name(source)}->{incarnation_name(target)}"


def _name(frame: Frame) -> str:
    first, last = span_of(frame)
    origin, _ = stream_of(frame)
    if isinstance(frame, (Vote, Stable)):
        first, last = 0, max(entry.delivered for entry in frame.progress)
    return f"{kind_of(frame)} {incarnation_name(origin)}{first}" + (
        f"..{last}" if last != first else ""
    )


class FrameMultisets:
    """Every multiset of at most ``limit`` frames, by number; bag 0 is empty."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self.frames: list[tuple[int, ...]] = [()]
        self._without: list[tuple[tuple[int, int], ...] | None] = [None]
        self._plus: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, tuple[int, ...]], ...]] = {}

    def number(self, frames: list[int]) -> int:
        """Return the number of a bag."""
        ordered = self._ordered(frames)
        found = self._numbers.setdefault(ordered, len(self.frames))
        if found == len(self.frames):
            self.frames.append(ordered)
            self._without.append(None)
        return found

    def _ordered(self, frames: list[int]) -> tuple[int, ...]:
        return tuple(sorted(frames))

    def without(self, bag: int) -> tuple[tuple[int, int], ...]:
        """Return each distinct frame of a bag, with the bag after removing a copy."""
        found = self._without[bag]
        if found is None:
            frames = self.frames[bag]
            picks = {frame: [*frames[:at], *frames[at + 1 :]] for at, frame in enumerate(frames)}
            found = self._without[bag] = tuple(
                (frame, self.number(rest)) for frame, rest in picks.items()
            )
        return found

    def plus(self, bag: int, sent: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the bags that may result from ``sent``, each with the frames without room."""
        found = self._plus.get((bag, sent))
        if found is None:
            found = self._plus[bag, sent] = tuple(self._add(bag, sent))
        return found

    def _add(self, bag: int, sent: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        frames = self.frames[bag]
        fitting = min(len(sent), self.limit - len(frames))
        seen: set[int] = set()
        for chosen in combinations(range(len(sent)), fitting):
            after = self.number([*frames, *(sent[at] for at in chosen)])
            if after not in seen:
                seen.add(after)
                yield after, tuple(frame for at, frame in enumerate(sent) if at not in chosen)


class FrameQueues(FrameMultisets):
    """The frames on every link in the order of sending; only the first of a link can arrive.

    Links lose nothing, so there is always room; ``limit`` bounds the actions of the members.
    """

    def __init__(self, limit: int, frames: FrameTable) -> None:
        super().__init__(limit)
        self._link = frames

    def _ordered(self, frames: list[int]) -> tuple[int, ...]:
        return tuple(
            sorted(frames, key=lambda frame: (self._link.source[frame], self._link.target[frame]))
        )

    def without(self, bag: int) -> tuple[tuple[int, int], ...]:
        """Return the first frame of each link, with the rest after its removal."""
        found = self._without[bag]
        if found is None:
            frames = self.frames[bag]
            heads: dict[tuple[int, int], int] = {}
            for at, frame in enumerate(frames):
                heads.setdefault((self._link.source[frame], self._link.target[frame]), at)
            picks = [(frames[at], [*frames[:at], *frames[at + 1 :]]) for at in heads.values()]
            found = self._without[bag] = tuple((frame, self.number(rest)) for frame, rest in picks)
        return found

    def _add(self, bag: int, sent: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        yield self.number([*self.frames[bag], *sent]), ()


class Transition(NamedTuple):
    """The effect of an input on a member: next state, frames sent, failed checks."""

    after: int
    sent: tuple[int, ...]
    failures: tuple[CheckFailure, ...]


class _Local(NamedTuple):
    """The state of a member, and the evidence about the member."""

    snapshot: tuple[object, ...]
    armed: tuple[str, ...]
    evidence: Evidence


class MemberAutomaton:
    """A member as a table of steps, filled by the real machine on demand.

    For each state ``delivered``, ``purged`` and ``reported`` are the marks of deliveries, purges
    and reported acknowledgments; ``settled`` says whether the member has reached the goal.
    """

    def __init__(
        self,
        me: Address,
        bounds: SearchBounds,
        frames: FrameTable,
        *,
        reduced: bool,
        recheck_every: int,
        short_path: ShortPath = "drawn",
    ) -> None:
        self.me = me
        self._bounds = bounds
        self._frames = frames
        self._reduced = reduced
        self._recheck_every = recheck_every
        self._origin = bounds.members()[0]
        self._sends = me == self._origin
        self._retains = (
            bounds.row.release is ReleasePolicy.STABILITY and not bounds.config.discard_delivered
        )
        self.reads = not self._sends if bounds.to is None else me == bounds.to
        self._peers = [member for member in bounds.members() if member != me]
        self._member, begun = bounds.member(me)
        self._second_member, _ = bounds.member(me)
        # A repeated step takes the general path, so that the two paths are compared.
        rng = split(0, f"path {me}")
        self._member.prediction.takes_general = path_hook(short_path, rng)
        self._second_member.prediction.takes_general = path_hook("off", rng)
        self._numbers: dict[_Local, int] = {}
        self._locals: list[_Local] = []
        self._observations: list[StreamObservation] = []
        self._own: list[tuple[tuple[str, Transition], ...] | None] = []
        self._arrivals: list[dict[int, Transition]] = []
        self._equivalent: list[dict[int, int]] = []
        self.delivered: list[int] = []
        self.purged: list[int] = []
        self.reported: list[int] = []
        self.settled: list[bool] = []
        self.steps = 0
        self.first_frames = self._sent(begun)
        self._intern(
            self._member, Evidence(acked=tuple((member, 0) for member in bounds.voters(me)))
        )

    # Steps

    def own_steps(self, local: int) -> tuple[tuple[str, Transition], ...]:
        """Return the steps without the network: submit the next message, fire an armed timer."""
        found = self._own[local]
        if found is None:
            _, inputs, witness = self._locals[local]
            if self._sends and witness.submitted < self._bounds.messages:
                inputs = (SUBMIT, *inputs)
            if self._bounds.any_holder and GAP in inputs:
                inputs = (
                    *inputs,
                    *(f"{GAP}{_TO}{incarnation_name(peer)}" for peer in self._peers[1:]),
                )
            if self._bounds.forgets and self.reads and self._observations[local].open:
                inputs = (*inputs, REAP)
            found = self._own[local] = tuple(
                (name, self._transition(local, name)) for name in inputs
            )
        return found

    def on_frame(self, local: int, frame: int) -> Transition:
        """Return the step of an arriving frame."""
        found = self._arrivals[local].get(frame)
        if found is None:
            found = self._arrivals[local][frame] = self._transition(local, frame)
        return found

    def submitted(self, local: int) -> int:
        """Return how many messages the application has submitted."""
        return self._locals[local].evidence.submitted

    def _transition(self, local: int, given: str | int) -> Transition:
        """Let the machine take a step; sometimes repeat and compare with a second machine."""
        self.steps += 1
        step = self._try(self._member, local, given)
        if (
            self.steps % self._recheck_every == 0
            and self._try(self._second_member, local, given) != step
        ):
            failure = CheckFailure("S17", "a second machine in the same state took another step")
            return step._replace(failures=(*step.failures, failure))
        return step

    def _try(self, member: Endpoint, local: int, given: str | int) -> Transition:
        try:
            ready = self._run(member, local, given)
            member.check_invariants()
            return self._check_step(member, local, given, ready)
        except AssertionError as error:
            return Transition(local, (), (CheckFailure("INVARIANTS", str(error)),))
        except Exception as error:  # noqa: BLE001 - whatever the machine raises is a finding
            return Transition(
                local, (), (CheckFailure("EXCEPTION", f"{type(error).__name__}: {error}"),)
            )

    def _run(self, member: Endpoint, local: int, given: str | int) -> Ready:
        snapshot, armed, witness = self._locals[local]
        member.restore(snapshot)
        member.timers.restore(armed)
        for stream in member.connections.inbounds():
            # An ack that waits for the time between two acks may go out at any moment: its timer
            # may fire.
            stream.ack_scheduler.last_sent_ns = NOW_NS
        if isinstance(given, int):
            return member.receive(self._frames.datagram[given], NOW_NS)
        if given == SUBMIT:
            mode = DeliveryMode.ACKNOWLEDGED if self._bounds.acknowledged else DeliveryMode.ORDERED
            return member.send(
                [payload(witness.submitted + 1)], NOW_NS, to=self._bounds.to, mode=mode
            )
        timer, _, holder = given.partition(_TO)
        assert isinstance(member._rng, ScriptedRandom)
        member._rng.pick = (
            [incarnation_name(peer) for peer in self._peers].index(holder) if holder else 0
        )
        return member.fire_timer(timer, NOW_NS)

    def _check_step(
        self, member: Endpoint, local: int, given: str | int, ready: Ready
    ) -> Transition:
        peer: Address | None = None
        frames: tuple[Frame, ...] = ()
        witness = self._locals[local].evidence
        if given == SUBMIT:
            witness = witness.after_submit()
        elif isinstance(given, int):
            received = self._frames.decoded[given]
            peer, frames = received.sender, received.frames
            witness = witness.after_frames(peer, frames, self._origin, self._bounds.row)
        after = self._observe(member)
        if not after.open:
            witness = witness.after_forgetting(after.buffered)
        turn = StepRecord(
            self._bounds.capacity,
            self._sends,
            peer,
            frames,
            self._observations[local],
            after,
            witness,
            [(to, frame) for to, datagram in ready.transmits for frame in decode(datagram).frames],
            ready.deliveries,
            ready.trace,
            self._bounds.row,
            given.partition(_TO)[0] if isinstance(given, str) and given != SUBMIT else "",
            self._bounds.to,
            self._retains,
            tuple(self._peers),
        )
        delivered = max((delivery.last for delivery in ready.deliveries), default=witness.delivered)
        number = self._intern(member, witness._replace(delivered=delivered))
        return Transition(number, self._sent(ready), failed_checks(turn))

    def _sent(self, ready: Ready) -> tuple[int, ...]:
        """Return the outgoing frames, one for each link."""
        sent = [
            self._frames.number(target, datagram)
            for to, datagram in ready.transmits
            for target in (self._peers if to is None else (to,))
        ]
        return tuple(sent if self._bounds.keeps_order else sorted(sent))

    def _observe(self, member: Endpoint) -> StreamObservation:
        return StreamObservation.of(member, self._origin, self._bounds.to)

    def _intern(self, member: Endpoint, witness: Evidence) -> int:
        """Return the number of the state of ``member``."""
        if self._reduced:
            drop_stale_marks(member, self._bounds)
            witness = (
                witness.without_stale_announcement()
                if not self._sends
                else witness._replace(announced=0)
            )
        sight, snapshot, armed = self._observe(member), member.snapshot(), member.armed_timers()
        member.restore(snapshot)
        # Restoring arms every timer that the state needs, even one that was not armed before.
        local = _Local(
            snapshot, tuple(name for name in member.armed_timers() if name in armed), witness
        )
        found = self._numbers.setdefault(local, len(self._locals))
        if found == len(self._locals):
            assert member.snapshot() == snapshot, "what is restored is what was seen"
            assert not found >> MEMBER_BITS, "the state of a member fits its place"
            self._locals.append(local)
            self._observations.append(sight)
            self._own.append(None)
            self._arrivals.append({})
            self._equivalent.append({})
            self.delivered.append(witness.delivered)
            self.purged.append(sight.low if self._sends or self._retains else 0)
            self.reported.append(sight.reported if self._sends and self._bounds.acknowledged else 0)
            self.settled.append(self._has_settled(sight, witness))
        return found

    def _has_settled(self, sight: StreamObservation, witness: Evidence) -> bool:
        """Return whether the member has delivered and purged all messages, known to all."""
        messages, by_acks = self._bounds.messages, self._bounds.row.release is ReleasePolicy.ACKS
        if self._sends and (
            sight.tracked or not witness.submitted == sight.low == sight.high == messages
        ):
            return False
        if self.reads and not witness.delivered == sight.delivered == messages:
            return False
        return by_acks or sight.stable == messages

    # Old news

    def equivalent_frame(self, local: int, frame: int) -> int:
        """Return the frame equivalent to ``frame`` at this member in this state."""
        found = self._equivalent[local].get(frame)
        if found is None:
            found = self._equivalent[local][frame] = (
                self._compare(local, frame) if self._reduced else frame
            )
        return found

    def _compare(self, local: int, frame: int) -> int:
        datagram, witness = self._frames.decoded[frame], self._locals[local].evidence
        if datagram.addressee is not None:
            to_all = self._frames.number(
                self.me, encode(datagram.group, datagram.sender, datagram.frames)
            )
            return (
                self.equivalent_frame(local, to_all)
                if self.on_frame(local, frame) == self.on_frame(local, to_all)
                else frame
            )
        effective = (
            effective_frame(old, datagram.sender, self._bounds, witness, self._observations[local])
            for old in datagram.frames
        )
        fresh = [new for new in effective if new is not None]
        if tuple(fresh) == datagram.frames:
            return frame
        nothing = Transition(local, (), ())
        if not fresh:
            return NO_EFFECT if self.on_frame(local, frame) == nothing else frame
        other = self._frames.number(self.me, encode(datagram.group, datagram.sender, fresh))
        return other if self.on_frame(local, frame) == self.on_frame(local, other) else frame

    def split_pairs(self) -> Iterator[CheckFailure]:
        """Return pairs of frames that are equivalent in a state, and differ in a later state."""
        edges = [self._successors(local) for local in range(len(self._locals))]
        open_pairs = [
            (local, frame) for local, alike in enumerate(self._equivalent) for frame in alike
        ]
        done = set(open_pairs)
        while open_pairs:
            local, frame = open_pairs.pop()
            other = self.equivalent_frame(local, frame)
            if other == frame or local >= len(edges):
                continue
            for after in edges[local]:
                if self.equivalent_frame(after, frame) != (
                    NO_EFFECT if other == NO_EFFECT else self.equivalent_frame(after, other)
                ):
                    yield CheckFailure(
                        "REDUCTION", f"{self._frames.name(frame)} was taken for another frame"
                    )
                    return
                if (after, frame) not in done:
                    done.add((after, frame))
                    open_pairs.append((after, frame))

    def _successors(self, local: int) -> set[int]:
        own = [step.after for _, step in self._own[local] or ()]
        return {*own, *(step.after for step in self._arrivals[local].values())} - {local}
