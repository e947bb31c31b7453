"""A durable name has one live member: a second joiner under the name is refused."""

from __future__ import annotations

from gapless.identity import Address
from gapless.protocol.events import NameInUse
from gapless.wire.frames import Frame, Join, NameTaken
from tests.support.membership_checks import say
from tests.support.virtual_membership import MembershipGroup


def refusals(world: MembershipGroup, name: str) -> list[NameInUse]:
    return [event for event in world.hosts[name].events if isinstance(event, NameInUse)]


def test_a_second_joiner_is_refused_by_the_holder() -> None:
    world = MembershipGroup(3)
    world.join("a")
    world.join("b", durable="till")
    world.settle()
    world.join("c", durable="till")
    world.wait(lambda: bool(refusals(world, "c")), 0.5)
    assert refusals(world, "c") == [NameInUse(world["b"].me, b"b")]
    assert world.hosts["c"].member is None
    assert world.is_one()


def test_the_founder_refuses_for_itself() -> None:
    world = MembershipGroup(2)
    world.join("a", durable="till")
    world.settle()
    world.join("b", durable="till")
    world.wait(lambda: bool(refusals(world, "b")), 0.5)
    assert refusals(world, "b") == [NameInUse(world["a"].me, b"a")]


def test_a_holder_that_does_not_hear_the_joiner_is_told_by_the_coordinator() -> None:
    world = MembershipGroup(3)
    world.join("a")
    world.join("b", durable="till")
    world.settle()

    def drop(source: str, target: str, frame: Frame) -> bool:
        return (source, target) == ("c", "b")

    world.drop = drop
    world.join("c", durable="till")
    world.wait(lambda: bool(refusals(world, "c")), 1)


def test_the_name_of_a_dead_member_becomes_free() -> None:
    world = MembershipGroup(3)
    world.join("a")
    world.join("b", durable="till")
    world.settle()
    world.crash("b")
    world.join("c", durable="till")
    world.settle(20)
    assert refusals(world, "c") == []
    assert world["a"].view == world["c"].view


def test_the_name_of_a_member_that_leaves_becomes_free() -> None:
    world = MembershipGroup(3)
    world.join("a")
    world.join("b", durable="till")
    world.settle()
    world.leave("b")
    world.join("c", durable="till")
    world.settle(20)
    assert refusals(world, "c") == []


def test_of_two_that_join_at_once_one_is_refused() -> None:
    for seed in range(20):
        world = MembershipGroup(3, seed=seed)
        world.join("a", "b", durable="till")
        world.join("c")
        world.settle(30)
        assert len(refusals(world, "a")) + len(refusals(world, "b")) == 1
        assert len(world.members) == 2


def test_a_refusal_is_for_one_joiner_from_the_holder_itself() -> None:
    world = MembershipGroup(3)
    world.join("a", durable="till")
    world.settle()
    world.drop = lambda source, target, frame: source == "a" and isinstance(frame, NameTaken)
    world.join("b", durable="till")
    joiner, holder = world["b"], world["a"]
    taken = NameTaken(holder.membership.own_entry, joiner.me)

    other_name = holder.membership.own_entry._replace(name="other")
    say(world, "b", Address(9, 9), taken)  # from a member that does not hold the name
    say(world, "b", holder.me, taken._replace(joiner=holder.me))  # for another joiner
    say(world, "b", holder.me, NameTaken(other_name, joiner.me))
    assert refusals(world, "b") == []
    say(world, "b", holder.me, taken)
    assert refusals(world, "b") == [NameInUse(holder.me, b"a")]


def test_join_frames_are_relayed_once() -> None:
    """The coordinator sends the JOIN to the holder, and the holder does not send it back."""
    world = MembershipGroup(3)
    world.join("a")
    world.join("b", durable="till")
    world.settle()
    joins: list[tuple[str, str]] = []

    def watch(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Join):
            joins.append((source, target))
        return isinstance(frame, NameTaken)

    world.drop = watch
    world.join("c", durable="till")
    world.run(1)
    assert joins.count(("a", "b")) <= joins.count(("c", "a"))
    assert ("b", "a") not in joins
