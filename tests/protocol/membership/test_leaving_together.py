"""Two members that leave at about the same moment: neither waits for the leave timeout.

The second leaves right before the n-th datagram after the first began to leave arrives, for every
n until both are gone, without a loss and with any one datagram lost.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from gapless.protocol.events import Left
from gapless.units import NS_PER_S
from tests.support.membership_checks import ArrivalTimer, check_views, events, gathered

MOMENTS = range(9)
SOON_S = 3.0
"""How long a leave may take; ``leave_timeout`` is a minute here."""


def check_leaves(first: str, second: str, count: int, moment: int, lost: int | None) -> None:
    world = gathered(count, leave_timeout="60s")
    timer, seen, started_ns = ArrivalTimer(world), -1, world.now_ns

    def loses() -> bool:
        nonlocal seen
        seen += 1
        return seen == lost

    def leave() -> None:
        nonlocal started_ns
        started_ns = world.now_ns
        world.leave(second)

    world.loses = loses
    timer.before(moment, leave)
    world.leave(first)
    world.wait(lambda: first not in world.members and second not in world.members, 100)
    case = f"{first} and {second} of {count}, moment {moment}, lost {lost}"
    assert (world.now_ns - started_ns) / NS_PER_S < SOON_S, case
    assert all(left.confirmed for name in (first, second) for left in events(world, name, Left))
    world.loses = lambda: False
    if world.members:
        world.settle(10)
    check_views(world)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_two_that_leave_together_never_wait_for_the_timeout(count: int) -> None:
    for first, second in permutations("abcd"[:count], 2):
        for moment in MOMENTS:
            check_leaves(first, second, count, moment, None)


@pytest.mark.parametrize("count", [2, 3])
def test_nor_if_a_datagram_is_lost(count: int) -> None:
    for first, second in permutations("abc"[:count], 2):
        for moment in MOMENTS:
            for lost in range(6):
                check_leaves(first, second, count, moment, lost)
