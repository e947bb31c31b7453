"""Members that found early, because an answer takes milliseconds, still end in one group."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.virtual_group import MS
from tests.support.virtual_membership import MembershipGroup

if TYPE_CHECKING:
    from gapless.wire.frames import Frame

EARLY: dict[str, Any] = {"found_early_ns": 75 * MS}
STARTS = 200
BLOCKS = 8
"""The simulated starts run in so many tests, each with its share of the seeds."""


@pytest.mark.parametrize("count", [2, 5, 8])
def test_members_that_start_at_once_have_a_view_long_before_found_after(count: int) -> None:
    world = MembershipGroup(count)
    world.join(*world.hosts, **EARLY)
    assert world.settle() < 0.2


def test_a_member_that_hears_nobody_founds_early() -> None:
    world = MembershipGroup(1)
    world.join("a", **EARLY)
    assert world.settle() < 0.1


def test_without_the_option_a_member_waits_for_found_after() -> None:
    world = MembershipGroup(1)
    world.join("a")
    assert world.settle() >= 1


@pytest.mark.parametrize("block", range(BLOCKS))
def test_many_simultaneous_starts_end_in_one_group(block: int) -> None:
    for seed in range(block, STARTS, BLOCKS):
        rng = Random(seed)
        world = MembershipGroup(rng.randint(2, 8), seed=seed)
        most_ms, loss = rng.choice([1, 10, 40, 120]), rng.choice([0, 0.02, 0.1, 0.3])

        def delay_ns(_: str, __: str, ___: Frame, rng: Random = rng, most_ms: int = most_ms) -> int:
            return int(rng.random() * most_ms * MS)

        world.delay = delay_ns
        world.loses = lambda rng=rng, loss=loss: rng.random() < loss  # type: ignore[misc]
        for name in sorted(world.hosts, key=lambda _, rng=rng: rng.random()):  # type: ignore[misc]
            world.join(name, **EARLY)
            world.run(rng.choice([0, 0, 0.01, 0.08]))
        world.settle(60)
        assert len(world.members) == len(world.hosts)


def test_a_group_that_answered_too_late_is_merged_with_within_a_second() -> None:
    world = MembershipGroup(3)
    world.join("a", "b", **EARLY)
    world.settle()
    world.part("ab", "c")
    world.join("c", **EARLY)
    world.run(0.2)
    assert world["c"].view is not None
    world.heal()
    assert world.settle() < 1
