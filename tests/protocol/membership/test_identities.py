"""Groups with identities, without a liar: everything works as in a group without."""

from __future__ import annotations

import pytest

from gapless.protocol.events import Expelled, Left
from tests.support.virtual_identities import IdentityGroup


def test_members_with_identities_form_one_view() -> None:
    world = IdentityGroup(5)
    world.join(*"abcde")
    world.settle()
    world.send("a", b"one")
    world.run(1)
    assert all(("a", b"one") in host.got for host in world.hosts.values())
    for member in world.members.values():
        member.check_invariants()
        dropped = {
            name for name in member.counters if name in {"dropped.unsigned", "dropped.signature"}
        }
        assert not dropped


def test_members_that_join_one_after_the_other() -> None:
    world = IdentityGroup(4)
    for name in "abcd":
        world.join(name)
        world.settle()
    assert world.seniority() == list("abcd")


@pytest.mark.parametrize("gone", "abc")
def test_a_dead_member_is_expelled(gone: str) -> None:
    world = IdentityGroup(3)
    for name in "abc":
        world.join(name)
        world.settle()
    world.crash(gone)
    world.settle(10)


def test_two_members_die_together() -> None:
    world = IdentityGroup(5)
    for name in "abcde":
        world.join(name)
        world.settle()
    world.crash("a", "c")
    world.settle(15)


@pytest.mark.parametrize("leaver", "abc")
def test_a_member_leaves(leaver: str) -> None:
    world = IdentityGroup(3)
    for name in "abc":
        world.join(name)
        world.settle()
    world.leave(leaver)
    took_s = world.wait(lambda: Left(True) in world.hosts[leaver].events, 5)
    assert took_s < 1
    world.settle(5)
    others = [host for name, host in world.hosts.items() if name != leaver]
    assert not any(isinstance(event, Expelled) for host in others for event in host.events)


def test_all_members_leave_together() -> None:
    world = IdentityGroup(4)
    world.join(*"abcd")
    world.settle()
    world.leave(*"abcd")
    world.wait(lambda: not world.members, 10)


def test_a_restarted_process_replaces_its_former_incarnation() -> None:
    world = IdentityGroup(3)
    world.join(*"abc")
    world.settle()
    world.crash("c")
    world.join("c")
    world.settle(10)


def test_parts_of_a_group_merge_again() -> None:
    world = IdentityGroup(4)
    world.join(*"abcd")
    world.settle()
    world.part("ab", "cd")
    world.wait(lambda: all(len(world[name].view.members) == 2 for name in "abcd"), 30)  # type: ignore[union-attr]
    world.heal()
    world.settle(30)


def test_a_paused_member_is_expelled_and_joins_again() -> None:
    world = IdentityGroup(3)
    for name in "abc":
        world.join(name)
        world.settle()
    before = world["c"].me
    world.part("ab", "c")
    world.wait(lambda: len(world["a"].view.members) == 2, 20)  # type: ignore[union-attr]
    world.heal()
    world.settle(30)
    assert world["c"].me >= before
