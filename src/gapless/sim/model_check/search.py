"""Exhaustive search: every behaviour of a small group, on the real machine, for every profile.

A sender and a few receivers share a view. Streams of different senders share no state, so a single
sender is enough. A state of the group is the state of each member and the bag of frames in flight.
The search begins with the frames sent on installing the view. From every state the search tries to

- submit the next message, if any (the message may wait in the machine for room in the window);
- deliver any frame, in any order; drop any frame; deliver any frame and keep a duplicate;
- fire any armed timer of any member, with every random choice (``any_holder``);
- let the receiver remove a connection, if ``forgets``.

Time stands still, and every grace, back-off and interval is over. Any timer may fire at any moment,
or not at all, so every choice of timeouts is covered. Not covered: a nak or a repair that omits
*part* of its range during a back-off. ``auto`` repairs go to the requester, because the time for a
request by a second member is over, too. Only the time between two acks of a connection is never
over by itself: the ack waits for its timer. The network holds at most ``in_flight`` frames; beyond
that, every choice of lost frames is tried.

A profile without retransmission has lossless FIFO links: only the first frame of a link can arrive.
There ``in_flight`` bounds the actions of members: with so many frames in flight, a frame must
arrive first.

The checks of ``gapless.sim.model_check.checks`` apply to every step. In the goal state all members
have delivered every message, all holders know of the delivery, and all members have purged every
message. When no new state is left, the states that cannot reach the goal are *traps* (L5):
deadlocks, livelocks and lost wake-ups. The search is breadth first, so a counterexample has the
fewest steps.

Two reductions shrink the number of states without losing a behaviour; ``reduced=False`` switches
both off. Both reductions remove stale information without effect, and both rest on marks that only
rise:

- *In a member*: an announced high below the own high, and an announced low below the own delivered
  mark, are forgotten. The machine uses announced marks only in a maximum with the own marks.
  Of the highs in the votes of others the coordinator uses only the maximum, and the coordinator
  renews its own vote each time.
- *In a frame*: a mark in a TAIL, VOTE or STABLE already passed by the target counts as 0. An
  ACK, GONE or STABLE without news never changes its target, so the frame counts as lost. The repair
  flag of data influences only the measured round trip, a time. A frame for a single member equals a
  frame for all at that member. The machine takes both steps, and only with equal results are the
  two frames equivalent; at the end, the search follows each such pair to every later state.

A frame that counts as lost leaves room for others, so the remaining states are states of the full
search. A state without the frame can make every move of the same state with the frame.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate, pairwise
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from gapless.faults.frame_names import incarnation_name
from gapless.sim.model_check.bounds import SearchBounds
from gapless.sim.model_check.checks import CHECKS, CheckFailure
from gapless.sim.model_check.transitions import (
    MEMBER_BITS,
    NO_EFFECT,
    SUBMIT,
    FrameMultisets,
    FrameQueues,
    FrameTable,
    MemberAutomaton,
    Transition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.sim.short_path import ShortPath

__all__ = ["CHECKS", "CheckFailure", "Counterexample", "Exploration", "SearchBounds", "explore"]

DELIVER, KEEP, DROP = "deliver", "deliver and keep", "drop"

_MEMBER_MASK = (1 << MEMBER_BITS) - 1
_RECHECK_EVERY = 8
_REPORT_EVERY = 4096


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest path to a violation: the check, the reason, and the steps."""

    check: str
    reason: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        lines = "\n".join(f"{number:3}. {step}" for number, step in enumerate(self.steps, 1))
        return f"{self.check}: {CHECKS[self.check]}\n{lines}\n  => {self.reason}"


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result of a search.

    ``complete`` says whether every state was expanded; ``traps`` is None otherwise. ``steps``
    counts the distinct steps of the real machine, ``depth`` the steps to the farthest state.
    """

    bounds: SearchBounds
    states: int
    transitions: int
    steps: int
    depth: int
    seconds: float
    complete: bool
    violations: tuple[CheckFailure, ...]
    traps: int | None
    counterexample: Counterexample | None

    @property
    def ok(self) -> bool:
        """Whether no check failed and no trap was found."""
        return not self.violations and not self.traps

    def as_dict(self) -> dict[str, object]:
        """Return the findings as plain values."""
        return {
            **self.bounds._asdict(),
            "states": self.states,
            "transitions": self.transitions,
            "steps": self.steps,
            "depth": self.depth,
            "seconds": round(self.seconds, 1),
            "complete": self.complete,
            "violations": len(self.violations),
            "traps": self.traps,
            "counterexample": None if self.counterexample is None else str(self.counterexample),
        }


class Move(NamedTuple):
    """A move from a state: a verb, a member or frame, and the frames lost for lack of room."""

    verb: str
    subject: int
    lost: tuple[int, ...]


class _CheckFailed(Exception):  # noqa: N818 - a finding, not an error
    def __init__(self, move: Move, failures: tuple[CheckFailure, ...]) -> None:
        super().__init__(move, failures)
        self.move = move
        self.failures = failures


class TransitionSystem:
    """The members and the network; a state of both is a number, and ``start`` is the first."""

    def __init__(
        self, bounds: SearchBounds, *, reduced: bool, short_path: ShortPath = "drawn"
    ) -> None:
        members = bounds.members()
        self.frames = FrameTable(members)
        self._keeps_order = bounds.keeps_order
        self.bags = (
            FrameQueues(bounds.in_flight, self.frames)
            if self._keeps_order
            else FrameMultisets(bounds.in_flight)
        )
        self.members = [
            MemberAutomaton(
                me,
                bounds,
                self.frames,
                reduced=reduced,
                recheck_every=_RECHECK_EVERY,
                short_path=short_path,
            )
            for me in members
        ]
        self._readers = [at for at, position in enumerate(self.members) if position.reads]
        self._shifts = [MEMBER_BITS * at for at in range(len(members))]
        self._bag_shift = MEMBER_BITS * len(members)
        self._recounted: dict[tuple[int, int, int], int] = {}
        locals_ = [0] * len(members)
        first = [frame for position in self.members for frame in position.first_frames]
        first_bag = self.bags.number([self.representative(frame, locals_) for frame in first])
        self.start = first_bag << self._bag_shift

    def locals(self, state: int) -> list[int]:
        """Return the state of each member."""
        return [state >> shift & _MEMBER_MASK for shift in self._shifts]

    def is_goal(self, state: int) -> bool:
        """Return whether every member has delivered and purged all, and every holder knows so."""
        return all(
            position.settled[local]
            for position, local in zip(self.members, self.locals(state), strict=True)
        )

    def moves(self, state: int) -> Iterator[tuple[int, str, int, tuple[int, ...]]]:
        """Return every next state, with the fields of the move; raise if a check fails."""
        bag_shift, locals_ = self._bag_shift, self.locals(state)
        bag, members = state >> bag_shift, state & (1 << bag_shift) - 1
        full = self._keeps_order and len(self.bags.frames[bag]) >= self.bags.limit
        for at, position in enumerate(self.members) if not full else ():
            for name, step in position.own_steps(locals_[at]):
                self._check(Move(name, at, ()), at, step, locals_)
                moved = members + (step.after - locals_[at] << self._shifts[at])
                for after, lost in self._send(bag, at, step, locals_):
                    yield moved + (after << bag_shift), name, at, lost
        for frame, rest in self.bags.without(bag):
            at = self.frames.target[frame]
            step = self.members[at].on_frame(locals_[at], frame)
            self._check_claims(frame, locals_)
            self._check(Move(DELIVER, frame, ()), at, step, locals_)
            moved = members + (step.after - locals_[at] << self._shifts[at])
            for after, lost in self._send(rest, at, step, locals_):
                yield moved + (after << bag_shift), DELIVER, frame, lost
            if self._keeps_order:
                continue
            yield members + (rest << bag_shift), DROP, frame, ()
            for after, lost in self._send(bag, at, step, locals_):
                yield moved + (after << bag_shift), KEEP, frame, lost

    def _check(self, move: Move, at: int, step: Transition, locals_: list[int]) -> None:
        """Raise if a step fails a check, or confirms an undelivered message."""
        failures, position = step.failures, self.members[at]
        for check, marks, what in (
            ("S9", position.purged, "purged"),
            ("S8", position.reported, "called acknowledged"),
        ):
            mark = marks[step.after]
            if mark > marks[locals_[at]]:
                short = (
                    self._describe_delivered(reader, locals_)
                    for reader in self._readers
                    if reader != at and self._delivered(reader, locals_) < mark
                )
                failures += tuple(
                    CheckFailure(check, f"{what} up to {mark}, and {reader}") for reader in short
                )
        if failures:
            raise _CheckFailed(move, failures)

    def _check_claims(self, frame: int, locals_: list[int]) -> None:
        """Raise if the marks in an arriving frame are false."""
        source, claim, stable = (
            self.frames.source[frame],
            self.frames.claim[frame],
            self.frames.stable[frame],
        )
        if claim > self._delivered(source, locals_):
            failure = CheckFailure(
                "S8", f"{self._describe_delivered(source, locals_)}, and acknowledges {claim}"
            )
            raise _CheckFailed(Move(DELIVER, frame, ()), (failure,))
        for reader in self._readers if stable else ():
            if stable > self._delivered(reader, locals_):
                failure = CheckFailure(
                    "S8",
                    f"{self._describe_delivered(reader, locals_)}, and {stable} is said to be "
                    "stable",
                )
                raise _CheckFailed(Move(DELIVER, frame, ()), (failure,))

    def _delivered(self, at: int, locals_: list[int]) -> int:
        return self.members[at].delivered[locals_[at]]

    def _describe_delivered(self, at: int, locals_: list[int]) -> str:
        return (
            f"{incarnation_name(self.members[at].me)} has delivered {self._delivered(at, locals_)}"
        )

    def _send(
        self, bag: int, at: int, step: Transition, locals_: list[int]
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the bags that may result from ``step`` of the member at ``at``."""
        if step.after != locals_[at]:
            bag = self._recount(bag, at, step.after)
        if not step.sent:
            return ((bag, ()),)
        counted = [self.representative(frame, locals_) for frame in step.sent]
        return self.bags.plus(bag, tuple(frame for frame in counted if frame != NO_EFFECT))

    def representative(self, frame: int, locals_: list[int]) -> int:
        """Return the frame equivalent to ``frame`` in these states of the members."""
        at = self.frames.target[frame]
        return self.members[at].equivalent_frame(locals_[at], frame)

    def _recount(self, bag: int, at: int, local: int) -> int:
        """Return the equivalent bag after the member at ``at`` has changed its state."""
        found = self._recounted.get((bag, at, local))
        if found is None:
            alike, target = self.members[at].equivalent_frame, self.frames.target
            frames = [
                alike(local, frame) if target[frame] == at else frame
                for frame in self.bags.frames[bag]
            ]
            found = self._recounted[bag, at, local] = self.bags.number(
                [frame for frame in frames if frame != NO_EFFECT]
            )
        return found

    # Telling

    def describe(self, moves: list[Move]) -> tuple[str, ...]:
        """Return moves from the beginning in words, with the original frames."""
        flying = [frame for position in self.members for frame in position.first_frames]
        locals_ = [0] * len(self.members)
        lines = []
        for verb, subject, lost in moves:
            if verb in {DELIVER, KEEP, DROP}:
                at = self.frames.target[subject]
                real = next(
                    frame for frame in flying if self.representative(frame, locals_) == subject
                )
                lines.append(f"{verb} {self.frames.name(real)}")
                if verb != KEEP:
                    flying.remove(real)
                if verb == DROP:
                    continue
                step = self.members[at].on_frame(locals_[at], real)
            else:
                at = subject
                lines.append(self._describe_own_move(verb, at, locals_[at]))
                step = dict(self.members[at].own_steps(locals_[at]))[verb]
            gone = self._lose(list(step.sent), lost, locals_, flying)
            lines[-1] += "".join(
                f"; {self.frames.name(frame)} finds no room and is lost" for frame in gone
            )
            locals_[at] = step.after
        return tuple(lines)

    def _describe_own_move(self, verb: str, at: int, local: int) -> str:
        name = incarnation_name(self.members[at].me)
        if verb == SUBMIT:
            return f"submit {name}{self.members[at].submitted(local) + 1}"
        return f"fire {verb} at {name}"

    def _lose(
        self, sent: list[int], lost: tuple[int, ...], locals_: list[int], flying: list[int]
    ) -> list[int]:
        """Add ``sent`` to ``flying``, except frames equivalent to ``lost``; return the rest."""
        gone = []
        for count in lost:
            frame = next(frame for frame in sent if self.representative(frame, locals_) == count)
            sent.remove(frame)
            gone.append(frame)
        flying += sent
        return gone


class _StateSearch:
    def __init__(self, bounds: SearchBounds, *, reduced: bool, short_path: ShortPath) -> None:
        self.bounds = bounds
        self.system = TransitionSystem(bounds, reduced=reduced, short_path=short_path)
        self.numbers = {self.system.start: 0}
        self.order = [self.system.start]
        self.parents = array("I", [0])
        self.edges = array("I")
        self.ends = array("Q", [0])
        self.transitions = 0
        self.depth = 0
        self.violations: tuple[CheckFailure, ...] = ()
        self.counterexample: Counterexample | None = None
        self._level_end = 1

    @property
    def complete(self) -> bool:
        """Whether every state was expanded, without a violation."""
        return len(self.ends) > len(self.order) and not self.violations

    def run(self, max_states: int | None, progress: Callable[[int], None] | None) -> None:
        """Expand the states in the order of discovery."""
        at = 0
        try:
            while at < len(self.order) and (max_states is None or len(self.order) < max_states):
                self._expand(at)
                at += 1
                if progress is not None and at % _REPORT_EVERY == 0:
                    progress(len(self.order))
        except _CheckFailed as found:
            self.violations = found.failures
            steps = self.system.describe([*self._path_to(at), found.move])
            self.counterexample = Counterexample(
                found.failures[0].check, found.failures[0].reason, steps
            )
        if progress is not None:
            progress(len(self.order))

    def _expand(self, at: int) -> None:
        if at == self._level_end:
            self._level_end = len(self.order)
            self.depth += 1
        numbers, order, successors = self.numbers, self.order, set()
        for after, _, _, _ in self.system.moves(order[at]):
            self.transitions += 1
            number = numbers.get(after)
            if number is None:
                number = numbers[after] = len(order)
                order.append(after)
                self.parents.append(at)
            successors.add(number)
        successors.discard(at)
        self.edges.extend(successors)
        self.ends.append(len(self.edges))

    def _path_to(self, at: int) -> list[Move]:
        """Return the moves from the beginning to the state found at ``at``."""
        numbers = [at]
        while numbers[-1]:
            numbers.append(self.parents[numbers[-1]])
        return [self._move(before, after) for before, after in pairwise(reversed(numbers))]

    def _move(self, before: int, after: int) -> Move:
        state = self.order[after]
        moves = self.system.moves(self.order[before])
        return next(
            Move(verb, subject, lost) for found, verb, subject, lost in moves if found == state
        )

    def count_traps(self) -> int | None:
        """Return the number of traps in the whole graph, None if the graph is incomplete."""
        if not self.complete:
            return None
        for position in self.system.members:
            self.violations += tuple(position.split_pairs())
        if self.violations:
            return None
        safe = self._reaches_goal()
        traps = safe.count(0)
        if traps:
            messages = self.bounds.messages
            reason = (
                f"from here no continuation delivers all {messages} messages "
                "and lets everybody know and forget"
            )
            self.counterexample = Counterexample(
                "L5", reason, self.system.describe(self._path_to(safe.index(0)))
            )
        return traps

    def _reaches_goal(self) -> bytearray:
        """Return 1 for each state that can reach the goal."""
        edges, ends = self.edges, self.ends
        counts = array("Q", bytes(8 * (len(self.order) + 1)))
        for target in edges:
            counts[target + 1] += 1
        heads = array("Q", accumulate(counts))
        sources = array("I", bytes(4 * len(edges)))
        for source in range(len(self.order)):
            for target in edges[ends[source] : ends[source + 1]]:
                sources[heads[target]] = source
                heads[target] += 1
        safe = bytearray(self.system.is_goal(state) for state in self.order)
        pending = [number for number, goal in enumerate(safe) if goal]
        while pending:
            target = pending.pop()
            # After the fill each head has moved to the end of its own stretch, which is the start
            # of the next one.
            for source in sources[heads[target - 1] if target else 0 : heads[target]]:
                if not safe[source]:
                    safe[source] = 1
                    pending.append(source)
        return safe


def explore(
    bounds: SearchBounds,
    *,
    max_states: int | None = None,
    progress: Callable[[int], None] | None = None,
    reduced: bool = True,
    short_path: ShortPath = "drawn",
) -> Exploration:
    """Search all states within ``bounds``; stop at a violation or after ``max_states`` states.

    ``progress`` gets the number of known states from time to time. ``short_path``: whether expected
    inputs take the short path of the machine; the result is the same.
    """
    started_s = perf_counter()
    search = _StateSearch(bounds, reduced=reduced, short_path=short_path)
    search.run(max_states, progress)
    traps = search.count_traps()
    return Exploration(
        bounds,
        states=len(search.order),
        transitions=search.transitions,
        steps=sum(position.steps for position in search.system.members),
        depth=search.depth,
        seconds=perf_counter() - started_s,
        complete=search.complete,
        violations=search.violations,
        traps=traps,
        counterexample=search.counterexample,
    )
