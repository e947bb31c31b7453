"""Views and their keys where every datagram is sealed: nobody waits for a key for ever."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from gapless.wire.frames import AskView
from tests.support.virtual_identities import Liar
from tests.support.virtual_seals import SealedGroup

if TYPE_CHECKING:
    from typing import Any

UNREPAIRED = {"xmit_interval": "0s"}


def test_messages_of_a_view_that_a_member_skips_open_there() -> None:
    """A joiner dies before it confirms, so the coordinator never installs the view with it."""
    world = SealedGroup(4, **UNREPAIRED)
    for name in "ab":
        world.join(name)
        world.settle()
    world.join("c", "d")
    world.run(0.01)
    world.crash("d")
    world.wait(lambda: world["c"].view is not None)
    Liar(world, "b").send("c", AskView(world["b"].me))
    world.wait(lambda: world["b"].view == world["c"].view, 0.1)
    skipped = world["b"].view
    world.send("b", b"skipped")
    world.settle()
    world.send("b", b"later")
    world.run(2)
    assert skipped not in world.hosts["a"].views
    for name in "abc":
        assert world.hosts[name].got == [("b", b"skipped"), ("b", b"later")]


@pytest.mark.parametrize("options", [{}, UNREPAIRED], ids=["repaired", "unrepaired"])
@pytest.mark.parametrize("seed", range(4))
def test_all_messages_arrive_after_any_walk(seed: int, options: dict[str, Any]) -> None:
    """Members crash, join, leave, pause and expel each other, and send all the time."""
    rng, world = Random(seed), SealedGroup(4, seed=seed, **options)
    links_ns = {(a, b): rng.choice([0, 1_000_000, 300_000_000]) for a in "abcd" for b in "abcd"}
    world.delay = lambda source, target, frame: links_ns[source, target]
    world.join(*"abcd")
    for _ in range(10):
        _act(world, rng)
        for _ in range(rng.randint(1, 20)):
            world.run(rng.choice([0.01, 0.1]))
            for name in sorted(world.members):
                if name not in world.inboxes and world[name].phase == "member":
                    world.send(name, b"on the way")
    world.settle(60)
    world.run(2)
    world.settle(60)
    assert len({member.guard.view_keys.in_use[0] for member in world.members.values()}) == 1  # type: ignore[union-attr]
    for name in world.members:
        world.send(name, name.encode())
    expected = {(name, name.encode()) for name in world.members}
    world.wait(lambda: all(expected <= set(world.hosts[name].got) for name in world.members))


def _act(world: SealedGroup, rng: Random) -> None:
    name = rng.choice("abcd")
    if name not in world.members:
        world.join(name)
        return
    member, action = world[name], rng.choice(["crash", "leave", "pause", "expel"])
    if action == "pause":
        world.pause(name)
        world.run(rng.choice([0.3, 2, 6]))
        world.resume(name)
    elif len(world.members) > 1 and member.phase == "member" and member.view is not None:
        others = [other for other in member.view.members if other != member.me]
        if action == "crash":
            world.crash(name)
        elif action == "leave":
            world.leave(name)
        elif others:
            world.step(name, lambda member: member.expel(rng.choice(others), world.now_ns))
