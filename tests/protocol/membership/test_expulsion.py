"""Expulsion: an expelled member learns of it, and rejoins as a new incarnation without debts."""

from __future__ import annotations

import pytest

from gapless.identity import View
from gapless.protocol.events import Expelled, Started
from gapless.wire.frames import Alive, Data
from tests.support.membership_checks import (
    FAST,
    check_no_twice,
    check_views,
    events,
    gathered,
    is_roster,
    members,
)
from tests.support.virtual_membership import MembershipGroup


@pytest.mark.behaviour("P-02", "J-04")
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_frozen_member_is_expelled_learns_it_and_comes_back(name: str) -> None:
    world = gathered(3)
    for number in range(10):
        world.send(name, b"before %d" % number)
    world.run(0.3)
    world.pause(name)
    world.wait(
        lambda: all(len(members(world, other)) == 2 for other in {"a", "b", "c"} - {name}), 3
    )
    world.run(1)
    world.resume(name)
    assert world.settle() < 3
    assert [type(event) for event in events(world, name, Expelled)] == [Expelled]
    assert world[name].me.incarnation == 2
    for other in "abc":
        world.send(other, b"after of " + other.encode())
    world.run(1)
    for other in "abc":
        assert {m for _, m in world.hosts[other].got[-3:]} == {
            b"after of " + one.encode() for one in "abc"
        }
    check_no_twice(world)
    check_views(world)


@pytest.mark.behaviour("P-02", "J-03", "J-05")
def test_nothing_of_the_former_life_counts_in_the_new_one() -> None:
    """Seqnos restart, and acks of the former stream purge nothing: a loss is still repaired."""
    world = gathered(3)
    for number in range(50):
        world.send("c", b"old %d" % number)
    world.run(0.5)
    world.pause("c")
    world.wait(lambda: members(world, "a") == ["a", "b"])
    world.resume("c")
    world.settle()
    assert world["c"].outbound.window.low == world["c"].outbound.window.high == 0
    left = {"count": 5}

    def drop(source: str, target: str, frame: object) -> bool:
        if source == "c" and target == "a" and isinstance(frame, Data) and left["count"]:
            left["count"] -= 1
            return True
        return False

    world.drop = drop
    for number in range(20):
        world.send("c", b"new %d" % number)
    world.run(2)
    assert left["count"] == 0
    for name in "ab":
        new = [m for origin, m in world.hosts[name].got if origin == "c" and m.startswith(b"new")]
        assert new == [b"new %d" % number for number in range(20)]


def test_an_expelled_member_that_misses_the_view_is_told_when_it_speaks() -> None:
    world = gathered(3)
    world.pause("c")
    world.wait(lambda: members(world, "b") == ["a", "b"])
    world.inboxes["c"].clear()
    world.drop = lambda _, target, frame: target == "c" and is_roster(frame)
    world.resume("c")
    world.wait(lambda: bool(events(world, "c", Expelled)), 2)
    world.drop = lambda *_: False
    world.settle()


def test_an_expelled_member_that_only_sends_data_is_told() -> None:
    world = gathered(3, MembershipGroup(3, **{**FAST, "heartbeat_interval": "400ms"}))
    world.pause("c")
    world.wait(lambda: members(world, "b") == ["a", "b"])
    world.inboxes.pop("c")
    world.drop = lambda source, _, frame: source == "c" and not isinstance(frame, Data)
    world.send("c", b"into the void")
    world.wait(lambda: bool(events(world, "c", Expelled)), 0.1)
    world.drop = lambda *_: False
    world.settle()
    assert all(message != b"into the void" for name in "ab" for _, message in world.hosts[name].got)


def test_the_event_names_the_view_without_the_member() -> None:
    world = gathered(3, MembershipGroup(3, **FAST, rejoin=False))
    world.pause("c")
    world.wait(lambda: members(world, "b") == ["a", "b"])
    world.resume("c")
    world.run(1)
    (expelled,) = events(world, "c", Expelled)
    view = world["a"].view
    assert view is not None
    assert expelled.view == view.id
    assert world.hosts["c"].member is None
    assert world.is_one()


@pytest.mark.behaviour("P-17")
def test_the_new_life_gets_nothing_that_was_sent_before_it() -> None:
    world = gathered(3)
    world.pause("c")
    world.wait(lambda: members(world, "a") == ["a", "b"])
    for number in range(20):
        world.send("a", b"missed %d" % number)
    world.run(0.5)
    world.resume("c")
    world.settle()
    world.send("a", b"hello again")
    world.run(1)
    order = world.hosts["c"].order
    rejoined = max(at for at, item in enumerate(order) if isinstance(item, View))
    assert order[rejoined + 1 :] == [b"hello again"]
    assert [event.start for event in events(world, "c", Started) if event.origin == world["a"].me][
        -1
    ] == 20


@pytest.mark.behaviour("J-04")
def test_a_chain_of_lives_at_one_place() -> None:
    world = gathered(3)
    for incarnation in range(2, 8):
        world.crash("b")
        world.run(0.03 * incarnation)
        world.join("b")
        world.settle()
        world.send("b", b"incarnation %d" % incarnation)
        world.run(0.3)
    assert [m for origin, m in world.hosts["a"].got if origin == "b"] == [
        b"incarnation %d" % incarnation for incarnation in range(2, 8)
    ]
    check_views(world)


def test_restarts_while_the_join_of_the_former_life_is_under_way() -> None:
    for pause in range(0, 60, 3):
        world = gathered(2, MembershipGroup(3, **FAST))
        world.join("c")
        world.run(pause / 1000)
        world.crash("c")
        world.join("c")
        assert world.settle() < 2
        assert world["c"].me.incarnation == 2
        check_views(world)


def is_admission(source: str, target: str, frame: object) -> bool:
    """Whether the coordinator tells the joiner c that its view is decided."""
    return source == "a" and target == "c" and isinstance(frame, Alive) and frame.includes_receiver


@pytest.mark.parametrize("misses_the_view", [False, True])
@pytest.mark.parametrize("heir", [False, True])
def test_a_member_expelled_before_it_is_admitted_comes_back_as_a_new_one(
    misses_the_view: bool, heir: bool
) -> None:
    """The view with c is decided, and c does not know it when the view without c comes."""
    world = gathered(2, MembershipGroup(3, **FAST))
    world.drop = is_admission
    world.join("c")
    former = world["c"].me
    world.wait(lambda: len(members(world, "a")) == len(members(world, "b")) == 3)
    assert not world["c"].membership.admitted
    if misses_the_view:
        world.drop = lambda *way: is_admission(*way) or (way[1] == "c" and is_roster(way[2]))
    world.step("a", lambda member: member.expel(former, world.now_ns))
    world.wait(lambda: len(members(world, "a")) == len(members(world, "b")) == 2)
    if heir:
        world.crash("a")
    world.drop = lambda *_: False
    world.settle()
    assert world["c"].me.incarnation == former.incarnation + 1
    assert len(events(world, "c", Expelled)) == 1
    check_views(world)
