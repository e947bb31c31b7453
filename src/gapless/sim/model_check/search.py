"""Exhaustive search: every behaviour of a small group, on the real machine, for every profile.

One sender and a few receivers share one view; streams of different senders share no state, so one
sender is enough. A state of the group is the state of each member and the bag of frames in flight;
it begins with what the members say when the view comes. From every state the search goes

- submitting the next message, while there is one (it may have to wait in the machine for room in
  the window);
- delivering any frame, in any order; dropping any frame; delivering any frame and keeping it, which
  duplicates it;
- firing any armed timer of any member, with every choice that it draws (``any_holder``);
- if asked to, letting the receiver of a connection remove it (``forgets``).

Time stands still, and every grace, rest and interval is over: since any timer may fire at any
moment and also not fire for as long as one likes, every choice of time-outs is covered. What is
not: a pass over the gaps, or a repair, that leaves out *part* of what it could name because that
part rests; and ``auto`` repairs go to the one that asked, for the moment in which a second member
may ask is over too. The time between two acks of a connection is the one that is never over by
itself: the ack waits for its timer. The network holds at most ``in_flight`` frames; of what goes
out beyond that, every choice of what is lost is tried.

A profile that repairs nothing has links that keep their order and lose nothing: only the first
frame of a link can arrive. There ``in_flight`` bounds what members do by themselves: with so many
frames in flight, one must arrive first.

Every turn is judged by the checks of explore_checks.py. When no state is left, those from which the
goal (everything delivered by everybody, known to be so by all that hold it for others, and purged)
is out of reach are *traps* (L5): deadlocks and livelocks, and wake-ups that were lost. The search
is breadth first, so what it finds it tells in the fewest steps.

Two reductions keep the number of states down without leaving a behaviour out; ``reduced=False``
does without them. Both say that old news is no news, and both rest on marks that only rise:

- *In a member*: an announced high that the own high has passed, and an announced low that the own
  delivered mark has passed, are forgotten. The machine uses them only as a maximum with those
  marks. Of the highs in the votes of others the coordinator uses only the maximum, and its own vote
  it takes anew each time.
- *In a frame*: a mark in a TAIL, VOTE or STABLE that its target has passed counts as 0; an ACK, a
  GONE or a STABLE that says nothing new does not change its target, now or ever, so it counts as
  lost at once; whether data is marked as a repair influences only the measured round trip, which is
  a time; and to its target a frame for it alone is the same as one for all. The machine takes the
  step with and without, and only where both are the same are the two frames taken for one; when the
  search is over each such pair is followed to every later state.

A frame that counts as lost leaves room for others, so the states that remain are states of the full
search; and what a state can do with such a frame in the bag it can do as well, or better, without
it.
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

__all__ = ["CHECKS", "CheckFailure", "Counterexample", "Exploration", "SearchBounds", "explore"]

DELIVER, KEEP, DROP = "deliver", "deliver and keep", "drop"

_MEMBER_MASK = (1 << MEMBER_BITS) - 1
_RECHECK_EVERY = 8
_REPORT_EVERY = 4096


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shortest way to something that must not be: the check, what is wrong, and the steps."""

    check: str
    reason: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        told = "\n".join(f"{number:3}. {step}" for number, step in enumerate(self.steps, 1))
        return f"{self.check}: {CHECKS[self.check]}\n{told}\n  => {self.reason}"


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search found.

    ``complete`` says that no state is left; ``traps`` is None unless it is. ``steps`` counts the
    distinct steps that the real machine took, ``depth`` the steps to the state that is farthest
    away.
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
        """Whether nothing was found that must not be."""
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
    """One way on from a state: what is done, to which member or frame, and which frames find no room."""

    verb: str
    subject: int
    lost: tuple[int, ...]


class _CheckFailed(Exception):  # noqa: N818 - a finding, not an error
    def __init__(self, move: Move, failures: tuple[CheckFailure, ...]) -> None:
        super().__init__(move, failures)
        self.move = move
        self.failures = failures


class TransitionSystem:
    """The members and the network; a state of both is one whole number, and ``start`` is where it begins."""

    def __init__(self, bounds: SearchBounds, *, reduced: bool) -> None:
        members = bounds.members()
        self.frames = FrameTable(members)
        self._keeps_order = bounds.keeps_order
        self.bags = (
            FrameQueues(bounds.in_flight, self.frames)
            if self._keeps_order
            else FrameMultisets(bounds.in_flight)
        )
        self.members = [
            MemberAutomaton(me, bounds, self.frames, reduced=reduced, recheck_every=_RECHECK_EVERY)
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
        """Return whether everything is delivered by everybody, known to be so, and purged."""
        return all(
            position.settled[local]
            for position, local in zip(self.members, self.locals(state), strict=True)
        )

    def moves(self, state: int) -> Iterator[tuple[int, str, int, tuple[int, ...]]]:
        """Return every way on: the next state, and the fields of the move. A check that fails raises."""
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
        """Raise if a step fails a check, or lets go, or calls acknowledged, what somebody has not delivered."""
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
                    CheckFailure(check, f"{what} up to {mark}, and {told}") for told in short
                )
        if failures:
            raise _CheckFailed(move, failures)

    def _check_claims(self, frame: int, locals_: list[int]) -> None:
        """Raise if a frame that arrives is not true of its source, or of everybody."""
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
                    f"{self._describe_delivered(reader, locals_)}, and {stable} is said to be stable",
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
        """Return what the bag may become when the member at ``at`` has taken ``step``."""
        if step.after != locals_[at]:
            bag = self._recount(bag, at, step.after)
        if not step.sent:
            return ((bag, ()),)
        counted = [self.representative(frame, locals_) for frame in step.sent]
        return self.bags.plus(bag, tuple(frame for frame in counted if frame != NO_EFFECT))

    def representative(self, frame: int, locals_: list[int]) -> int:
        """Return what a frame counts as, with the members in these states."""
        at = self.frames.target[frame]
        return self.members[at].equivalent_frame(locals_[at], frame)

    def _recount(self, bag: int, at: int, local: int) -> int:
        """Return what a bag counts as now that the member at ``at`` is in another state."""
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
        """Return moves from the beginning as a person reads them, with the frames as they were really sent."""
        flying = [frame for position in self.members for frame in position.first_frames]
        locals_ = [0] * len(self.members)
        told = []
        for verb, subject, lost in moves:
            if verb in {DELIVER, KEEP, DROP}:
                at = self.frames.target[subject]
                real = next(
                    frame for frame in flying if self.representative(frame, locals_) == subject
                )
                told.append(f"{verb} {self.frames.name(real)}")
                if verb != KEEP:
                    flying.remove(real)
                if verb == DROP:
                    continue
                step = self.members[at].on_frame(locals_[at], real)
            else:
                at = subject
                told.append(self._describe_own_move(verb, at, locals_[at]))
                step = dict(self.members[at].own_steps(locals_[at]))[verb]
            gone = self._lose(list(step.sent), lost, locals_, flying)
            told[-1] += "".join(
                f"; {self.frames.name(frame)} finds no room and is lost" for frame in gone
            )
            locals_[at] = step.after
        return tuple(told)

    def _describe_own_move(self, verb: str, at: int, local: int) -> str:
        name = incarnation_name(self.members[at].me)
        if verb == SUBMIT:
            return f"submit {name}{self.members[at].submitted(local) + 1}"
        return f"fire {verb} at {name}"

    def _lose(
        self, sent: list[int], lost: tuple[int, ...], locals_: list[int], flying: list[int]
    ) -> list[int]:
        """Let ``sent`` fly but for what counts as ``lost``; return what that was."""
        gone = []
        for count in lost:
            frame = next(frame for frame in sent if self.representative(frame, locals_) == count)
            sent.remove(frame)
            gone.append(frame)
        flying += sent
        return gone


class _StateSearch:
    def __init__(self, bounds: SearchBounds, *, reduced: bool) -> None:
        self.bounds = bounds
        self.system = TransitionSystem(bounds, reduced=reduced)
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
        """Whether every state that was found has been gone on from, without a violation."""
        return len(self.ends) > len(self.order) and not self.violations

    def run(self, max_states: int | None, progress: Callable[[int], None] | None) -> None:
        """Go on from state after state, in the order in which they were found."""
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
        """Return the moves that lead from the beginning to the state found at ``at``."""
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
        """Look at the whole graph: return how many traps there are, None if it is not complete."""
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
            reason = f"from here no continuation delivers all {messages} messages and lets everybody know and forget"
            self.counterexample = Counterexample(
                "L5", reason, self.system.describe(self._path_to(safe.index(0)))
            )
        return traps

    def _reaches_goal(self) -> bytearray:
        """Return 1 for each state from which the goal can be reached."""
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
) -> Exploration:
    """Search everything within ``bounds``, or stop at the first violation or at ``max_states`` states.

    ``progress`` is told now and then how many states have been found.
    """
    started_s = perf_counter()
    search = _StateSearch(bounds, reduced=reduced)
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
