"""Fixtures for tests of programs that use Gapless: groups in virtual time, without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gapless.sim.group import SimulatedGroup
    from gapless.sim.world.world import World


@pytest.fixture
def gapless_group() -> Iterator[Callable[..., SimulatedGroup]]:
    """Make groups like ``gapless.sim.SimulatedGroup``; each is verified after the test."""
    from gapless.sim.group import SimulatedGroup

    made: list[SimulatedGroup] = []

    def make(*args: object, **options: object) -> SimulatedGroup:
        group = SimulatedGroup(*args, **options)  # type: ignore[arg-type]
        made.append(group)
        return group

    yield make
    for group in made:
        group.verify()
        group.verify_faults()


@pytest.fixture
def gapless_world() -> Iterator[Callable[..., World]]:
    """Make worlds like ``gapless.sim.World``; each must be without violations at the end."""
    from gapless.sim.world.world import World

    made: list[World] = []

    def make(*args: object, **options: object) -> World:
        world = World(*args, **options)  # type: ignore[arg-type]
        made.append(world)
        return world

    yield make
    for world in made:
        if world.oracle.violations:
            raise AssertionError("\n".join(map(str, world.oracle.violations)))
