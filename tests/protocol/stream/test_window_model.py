"""The window against a model that is too simple to be wrong: a dict of messages and three marks.

Two drivers share the steps: Hypothesis, which shrinks what it finds but is slow, and plain random
walks, which make ten times as many steps in less time.
"""

import itertools
from random import Random
from typing import ClassVar

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gapless.identity import Address
from gapless.protocol.stream.window import AddResult, FixedWindow, GrowingWindow, Window
from gapless.run import LENGTH_BYTES, Run

ORIGIN = Address(1, 1)


class Model:
    """The model of a window."""

    def __init__(
        self, policy: FixedWindow | GrowingWindow, keep: bool, offset: int, max_bytes: int | None
    ) -> None:
        self.policy, self.keep, self.max_bytes = policy, keep, max_bytes
        self.low = self.delivered = self.high = offset
        self.stored: dict[int, bytes] = {}

    @property
    def ceiling(self) -> int:
        if isinstance(self.policy, FixedWindow):
            return self.low + self.policy.capacity
        return self.delivered + self.policy.max_seqno_ahead

    @property
    def stored_bytes(self) -> int:
        return sum(len(message) + LENGTH_BYTES for message in self.stored.values())

    def add(self, first: int, messages: list[bytes]) -> AddResult:
        count = dict.fromkeys(AddResult._fields, 0)
        in_line = self.delivered
        for seqno, message in enumerate(messages, start=first):
            fits = (
                self.max_bytes is None
                or self.stored_bytes + len(message) + LENGTH_BYTES <= self.max_bytes
            )
            if seqno <= self.low:
                count["old"] += 1
            elif seqno > self.ceiling:
                count["far"] += 1
            elif seqno in self.stored:
                count["duplicate"] += 1
            elif seqno == in_line + 1 or (fits and not count["full"]):
                count["accepted"] += 1
                in_line += seqno == in_line + 1
                self.stored[seqno] = message
                self.high = max(self.high, seqno)
            else:
                count["full"] += 1
        return AddResult(**count)

    def take(self, limit: int | None) -> list[tuple[int, bytes]]:
        taken: list[tuple[int, bytes]] = []
        while self.delivered + 1 in self.stored and (limit is None or len(taken) < limit):
            self.delivered += 1
            taken.append((self.delivered, self.stored[self.delivered]))
        if not self.keep:
            self.erase(self.delivered)
        return taken

    def purge(self, upto: int, force: bool) -> int:
        upto = min(upto, self.high if force else self.delivered)
        return self.erase(upto)

    def skip_to(self, seqno: int) -> int:
        self.high = max(self.high, seqno)
        return self.erase(seqno) if seqno > self.delivered else 0

    def erase(self, upto: int) -> int:
        gone = [seqno for seqno in self.stored if seqno <= upto]
        for seqno in gone:
            del self.stored[seqno]
        self.low = max(self.low, upto)
        self.delivered = max(self.delivered, upto)
        return len(gone)

    def missing(self, upto: int | None) -> set[int]:
        upto = self.high if upto is None else min(upto, self.ceiling)
        return set(range(self.delivered + 1, upto + 1)) - self.stored.keys()


class Pair:
    """A window and its model: each step applies to both, and they must agree."""

    def __init__(
        self, policy: FixedWindow | GrowingWindow, keep: bool, offset: int, max_bytes: int | None
    ) -> None:
        self.window = Window(policy, offset=offset, keep_delivered=keep, max_bytes=max_bytes)
        self.model = Model(policy, keep, offset, max_bytes)
        self.serial = itertools.count()

    def add(self, first: int, sizes: list[int]) -> None:
        messages = [b"%d" % next(self.serial) + b"." * size if size else b"" for size in sizes]
        assert self.window.add(Run.of(ORIGIN, first, messages)) == self.model.add(first, messages)

    def take(self, limit: int | None) -> None:
        taken = [pair for run in self.window.take(limit) for pair in run]
        assert taken == self.model.take(limit)

    def purge(self, ahead: int, force: bool) -> None:
        upto = self.model.low + ahead
        assert self.window.purge(upto, force=force) == self.model.purge(upto, force)

    def skip_to(self, ahead: int) -> None:
        seqno = self.model.delivered + ahead
        assert self.window.skip_to(seqno) == self.model.skip_to(seqno)

    def get(self, ahead: int, length: int) -> None:
        first, last = self.model.low + ahead, self.model.low + ahead + length
        found = [pair for run in self.window.get(first, last) for pair in run]
        assert found == sorted(
            pair for pair in self.model.stored.items() if first <= pair[0] <= last
        )

    def missing(self, ahead: int | None, limit: int | None) -> None:
        upto = None if ahead is None else self.model.high + ahead
        ranges = self.window.missing(upto, limit)
        named = [seqno for first, last in ranges for seqno in range(first, last + 1)]
        everything = sorted(self.model.missing(upto))
        assert named == everything[: len(named)]
        assert len(ranges) == limit or named == everything
        assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(ranges)), (
            "ranges do not touch"
        )

    def copy(self) -> None:
        snapshot = self.window.snapshot()
        self.window = Window(self.model.policy, keep_delivered=self.model.keep)
        self.window.restore(snapshot)
        assert self.window.snapshot() == snapshot

    def agree(self) -> None:
        window, model = self.window, self.model
        window.check_invariants()
        assert window.marks == (model.low, model.delivered, model.high)
        assert [pair for run in window.runs for pair in run] == sorted(model.stored.items())
        assert (window.stored, window.stored_bytes) == (len(model.stored), model.stored_bytes)
        assert window.has_next == (model.delivered + 1 in model.stored)
        assert window.deliverable == min({*model.missing(None), model.high + 1}) - 1
        assert window.ceiling == model.ceiling
        assert window.room() == max(0, model.ceiling - model.high)
        free_bytes = (
            None if model.max_bytes is None else max(0, model.max_bytes - model.stored_bytes)
        )
        assert window.room_bytes() == free_bytes


# Distances from a mark: mostly near it, on both sides of the ceiling, now and then far away.
NEAR = range(-4, 15)
FAR = (-1000, 1000, 10**12)
near = st.sampled_from(NEAR)
distances = near | st.sampled_from(FAR)
limits = st.none() | st.integers(0, 9)
sizes = st.lists(st.integers(0, 9), min_size=1, max_size=8)


class WindowMachine(RuleBasedStateMachine):
    """The steps, as rules for Hypothesis."""

    policy: ClassVar[FixedWindow | GrowingWindow]
    keep: ClassVar[bool]

    @initialize(offset=st.sampled_from([0, 1, 1000]), max_bytes=st.none() | st.integers(1, 60))
    def create(self, offset: int, max_bytes: int | None) -> None:
        self.pair = Pair(self.policy, self.keep, offset, max_bytes)

    @rule(ahead=distances, sizes=sizes)
    def add_near_delivered(self, ahead: int, sizes: list[int]) -> None:
        self.pair.add(self.pair.model.delivered + ahead, sizes)

    @rule(sizes=sizes)
    def add_next(self, sizes: list[int]) -> None:
        self.pair.add(self.pair.model.high + 1, sizes)

    @rule(limit=limits)
    def take(self, limit: int | None) -> None:
        self.pair.take(limit)

    @rule(ahead=distances, force=st.booleans())
    def purge(self, ahead: int, force: bool) -> None:
        self.pair.purge(ahead, force)

    @rule(ahead=near)
    def skip_to(self, ahead: int) -> None:
        self.pair.skip_to(ahead)

    @rule(ahead=distances, length=st.integers(-1, 12))
    def get(self, ahead: int, length: int) -> None:
        self.pair.get(ahead, length)

    @rule(ahead=st.none() | near, limit=limits)
    def missing(self, ahead: int | None, limit: int | None) -> None:
        self.pair.missing(ahead, limit)

    @rule()
    def copy(self) -> None:
        self.pair.copy()

    @invariant()
    def window_and_model_agree(self) -> None:
        self.pair.agree()


def random_step(pair: Pair, random: Random, longest: int) -> None:
    near, limit = random.choice(NEAR), random.choice((None, 0, 1, 2, 3, 5, 9))
    distance = random.choice(FAR) if random.random() < 0.05 else near
    sizes = [random.randrange(10) for _ in range(random.randint(1, longest))]
    match random.randrange(12):
        case 0 | 1 | 2 | 3:
            pair.add(pair.model.delivered + distance, sizes)
        case 4 | 5:
            pair.add(pair.model.high + 1, sizes)
        case 6 | 7:
            pair.take(limit)
        case 8:
            pair.purge(distance, random.random() < 0.3)
        case 9:
            pair.missing(random.choice((None, near)), limit)
        case 10:
            pair.get(distance, random.randint(-1, 12))
        case _:
            (pair.copy if random.random() < 0.5 else lambda: pair.skip_to(near))()


POLICIES: dict[str, FixedWindow | GrowingWindow] = {
    "fixed": FixedWindow(10),
    "growing": GrowingWindow(10),
}


def examples() -> int:
    """How many examples the profile asks for."""
    assert settings.default is not None
    return settings.default.max_examples


@pytest.mark.parametrize("keep", [False, True], ids=["erase", "keep"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_is_its_model(policy: str, keep: bool) -> None:
    machine = type("Machine", (WindowMachine,), {"policy": POLICIES[policy], "keep": keep})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(), stateful_step_count=100)
    )


@pytest.mark.parametrize("keep", [False, True], ids=["erase", "keep"])
@pytest.mark.parametrize(
    "policy",
    [*POLICIES.values(), FixedWindow(1), GrowingWindow(1), FixedWindow(200), GrowingWindow(200)],
    ids=str,
)
def test_a_window_is_its_model_on_random_walks(
    policy: FixedWindow | GrowingWindow, keep: bool
) -> None:
    random = Random(f"{policy} {keep}")
    for _ in range(examples()):
        pair = Pair(
            policy,
            keep,
            random.choice((0, 1, 1000)),
            random.choice((None, None, random.randint(1, 600))),
        )
        longest = 8 if pair.model.ceiling - pair.model.low < 100 else 60
        for _ in range(200):
            random_step(pair, random, longest)
            pair.agree()
