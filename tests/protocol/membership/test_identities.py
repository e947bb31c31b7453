"""Groups with identities, without a liar: everything works as in a group without."""

from __future__ import annotations

import pytest

from gapless.protocol.events import Expelled, Left
from gapless.wire.frames import Alive, Join, NewView
from gapless.wire.identities import AllowList, Role
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


def test_a_member_that_is_struck_off_the_list_is_ignored_and_expelled() -> None:
    world = IdentityGroup(3, rejoin=False)
    world.join(*"abc")
    world.settle()
    kept = AllowList(one for one in world.allowed.certificates if one.name != "c")
    for name in "ab":
        world[name].guard.replace_allowed(kept)  # type: ignore[union-attr]
    world.send("c", b"still there")
    world.wait(lambda: all(len(world[name].view.members) == 2 for name in "ab"), 20)  # type: ignore[union-attr]
    assert not any(("c", b"still there") in world.hosts[name].got for name in "ab")
    assert world.counter("a", "role") > 0


def test_an_expulsion_that_two_members_ask_for_takes_place() -> None:
    world = IdentityGroup(4)
    for name in "abcd":
        world.join(name)
        world.settle()
    victim = world["d"].me
    world.step("b", lambda member: member.expel(victim, world.now_ns))
    world.run(5)
    assert victim in world["a"].view.members  # type: ignore[union-attr]
    for name in "bc":
        world.step(name, lambda member: member.expel(victim, world.now_ns))
    world.wait(lambda: any(isinstance(one, Expelled) for one in world.hosts["d"].events), 10)
    world.settle()
    assert world["d"].me > victim


def test_an_observer_with_a_changed_program_is_not_heard() -> None:
    """Messages, and marks that would make others ask for messages, are dropped."""
    world = IdentityGroup(3, roles={"c": Role.OBSERVER})
    world.join(*"abc")
    world.settle()
    world.send("c", b"ordered")
    world.send("c", b"to one", to=world["a"].me)
    world.send("a", b"yes")
    world.run(3)
    assert all(("c", b"ordered") not in world.hosts[name].got for name in "ab")
    assert ("c", b"to one") not in world.hosts["a"].got
    assert ("a", b"yes") in world.hosts["c"].got
    assert world.counter("a", "role") >= 2
    assert world["a"].counters.get("sent.nak", 0) == 0


def test_large_views_travel_in_signed_parts() -> None:
    world = IdentityGroup(12, max_frame_bytes=512)
    world.join(*sorted(world.hosts))
    world.settle()
    world.crash("f")
    world.settle(20)


def test_a_collector_keeps_its_place_until_the_retention_ends() -> None:
    world = IdentityGroup(4, roles={"d": Role.COLLECTOR}, retention_timeout="20s")
    for name in "abc":
        world.join(name)
        world.settle()
    world.join("d", durable="d")
    world.settle()
    world.crash("d")
    world.wait(lambda: all(world[name].roster.absent for name in "abc"), 20)  # type: ignore[union-attr]
    world.send("a", b"meanwhile")
    world.join("d", durable="d")
    assert world.settle(20) < 2
    world.wait(lambda: ("a", b"meanwhile") in world.hosts["d"].got, 5)
    world.crash("d")
    world.wait(lambda: all(world[name].roster.absent for name in "abc"), 20)  # type: ignore[union-attr]
    world.wait(lambda: not any(world[name].roster.absent for name in "abc"), 30)  # type: ignore[union-attr]
    world.settle()


def test_members_that_have_not_heard_a_collector_ask_before_they_believe_its_return() -> None:
    world = IdentityGroup(3, roles={"c": Role.COLLECTOR})
    world.join("a", "b")
    world.settle()
    world.drop = lambda source, target, frame: isinstance(frame, Join) and target == "b"
    world.join("c", durable="c")
    assert world.settle(5) < 2


@pytest.mark.parametrize("durable", ["", "c"])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_member_returns_after_its_clock_was_set_back(durable: str, leaves: bool) -> None:
    world = IdentityGroup(3, roles={"c": Role.COLLECTOR})
    world.hosts["c"].incarnation = 100
    world.join("a", "b")
    world.settle()
    world.join("c", durable=durable)
    world.settle()
    if leaves:
        world.leave("c")
        world.wait(lambda: "c" not in world.members)
    else:
        world.crash("c")
    world.settle()
    world.hosts["c"].incarnation = 50
    world.join("c", durable=durable)
    world.settle(5)
    views = len(world.hosts["a"].views)
    world.run(10)
    assert world.is_one()
    assert len(world.hosts["a"].views) == views, "the view does not change any more"
    assert not any(isinstance(event, Expelled) for event in world.hosts["c"].events)


def test_a_second_process_replaces_a_member_that_is_not_confirmed_yet() -> None:
    """The JOIN of the first is not answered any more, so it has to believe the reports."""
    world = IdentityGroup(4)
    first, second = world.hosts["c"], world.hosts["d"]
    world.identities["d"] = world.identities["c"]
    world.join("a", "b")
    world.settle()
    world.drop = lambda source, target, frame: target == "c" and isinstance(frame, Alive)
    world.join("c")
    world.wait(lambda: len(world["c"].view or ()) == 3)
    replaced, world.rejoin = world["c"], False
    assert not replaced.membership.admitted
    second.node, second.incarnation = first.node, first.incarnation + 1
    world.join("d")
    world.wait(lambda: world["d"].me in (world["a"].view or ()))
    world.drop = lambda source, target, frame: False
    world.wait(lambda: any(isinstance(event, Expelled) for event in first.events))
    assert replaced.is_replaced


def test_a_member_expelled_before_a_merge_is_confirmed_to_it_returns() -> None:
    world = IdentityGroup(3)
    for name in "abc":
        world.join(name)
        world.settle()
    world.part("a", "bc")
    world.run(20)
    world.heal()
    c = world["c"]
    world.wait(lambda: len(c.view or ()) == 3 and not c.membership.admitted)
    world.drop = lambda source, target, frame: target == "c"
    world.pause("c")
    world.run(12)
    assert len(world["a"].view or ()) == 2
    world.drop = lambda source, target, frame: False
    world.resume("c")
    world.settle(10)


def test_a_member_that_went_on_alone_returns_to_a_view_with_a_higher_number() -> None:
    world = IdentityGroup(3)
    for name in "abc":
        world.join(name)
        world.settle()
    # While others are silent, a member goes on alone; before they hear of it, a third one joins.
    world.crash("c")
    world.pause("a")
    world.wait(lambda: len(world["b"].view or ()) == 1)
    world.part("b", "ac")
    world.inboxes["a"].clear()
    world.resume("a")
    world.join("c")
    a, b = world["a"].membership, world["b"].membership
    world.wait(lambda: {b.me, world["c"].me} < a.members and a.view_number > b.view_number)
    world.heal()
    world.settle(20)


def test_a_view_that_its_coordinator_withholds_is_passed_on() -> None:
    world = IdentityGroup(3)
    world.join("a")
    world.settle()
    world.join("b")
    world.settle()
    world.drop = lambda source, target, frame: (
        (source, target) == ("a", "b") and isinstance(frame, NewView)
    )
    world.join("c")
    world.settle(5)
    assert not any(isinstance(event, Expelled) for event in world.hosts["b"].events)


def test_a_coordinator_that_was_accused_in_vain_merges_later() -> None:
    """In a group of two nobody expels: the coordinator stays, and looks for other groups again."""
    world = IdentityGroup(3)
    world.part("ab", "c")
    world.join("a", "b", "c")
    world.wait(lambda: world["c"].view is not None and world["a"].view == world["b"].view)
    acting = world["a"].membership.acting_coordinator
    assert acting is not None
    coordinator = world.name_of(acting)
    (other,) = {"a", "b"} - {coordinator}
    world.step(other, lambda member: member.expel(acting, world.now_ns))
    world.run(15)
    assert acting in world[other].view.members  # type: ignore[union-attr]
    world.heal()
    world.settle(30)
