"""Leaving: what was sent is delivered first; anybody may leave, also the coordinator, also all."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from gapless.errors import LocalProtocolError
from gapless.identity import Address
from gapless.protocol.events import Expelled, Left, Lost, Stalled, Suspected
from gapless.wire.frames import Alive, Data, Leave, Suspect
from tests.support.membership_checks import (
    FAST,
    ArrivalTimer,
    check_views,
    events,
    frames_of,
    gathered,
    is_roster,
    lossy,
    members,
    say,
)
from tests.support.virtual_group import SECOND as S
from tests.support.virtual_membership import MembershipGroup


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_one_that_leaves_is_gone_soon_and_nobody_suspects_anything(name: str) -> None:
    world = gathered(3)
    world.leave(name)
    assert world.wait(lambda: world.hosts[name].member is None) < 0.3
    assert world.settle() < 0.3
    assert events(world, name, Left) == [Left(True)]
    world.run(2)
    assert not any(events(world, other, Suspected) for other in "abc")
    check_views(world)


@pytest.mark.parametrize("share", [0, 0.3])
@pytest.mark.parametrize("profile", ["nakack4", "nakack"])
@pytest.mark.parametrize("name", ["a", "c"])
def test_what_was_sent_before_leaving_is_delivered_first(
    name: str, profile: str, share: float
) -> None:
    """With a window of 8, most of 40 messages still wait for room when their sender leaves."""
    knobs = {
        **FAST,
        "profile": profile,
        "capacity": 8,
        "leave_timeout": "30s",
        "stability_interval": "100ms",
    }
    world = gathered(3, MembershipGroup(3, **knobs))
    lossy(world, share)
    for number in range(40):
        world.send(name, b"%d" % number)
    world.leave(name)
    world.wait(lambda: world.hosts[name].member is None, 40)
    assert events(world, name, Left) == [Left(True)]
    for other in {"a", "b", "c"} - {name}:
        assert [m for origin, m in world.hosts[other].got if origin == name] == [
            b"%d" % number for number in range(40)
        ]


def test_nothing_is_sent_any_more_by_one_that_leaves() -> None:
    world = gathered(2)
    world.drop = lambda *_: True
    world.leave("b")
    with pytest.raises(LocalProtocolError, match="leaving: sends are not accepted any more"):
        world["b"].send([b"x"], world.now_ns)


@pytest.mark.behaviour("J-03")
def test_a_life_that_is_over_does_nothing_any_more() -> None:
    world = gathered(2)
    member = world["b"]
    world.leave("b")
    world.wait(lambda: world.hosts["b"].member is None)
    assert member.phase == "over"
    for ready in (member.tick(world.now_ns + 10 * S), member.leave(world.now_ns)):
        assert not ready.transmits
        assert not ready.events
        assert ready.deadline_ns is None
    with pytest.raises(LocalProtocolError, match="over: sends are not accepted any more"):
        member.send([b"x"], world.now_ns)
    with pytest.raises(LocalProtocolError, match="has joined before"):
        member.join(world.now_ns)


def test_the_last_one_just_goes() -> None:
    world = gathered(1)
    world.send("a", b"to nobody else")
    world.leave("a")
    assert world.hosts["a"].member is None
    assert events(world, "a", Left) == [Left(True)]


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("share", [0, 0.2])
def test_all_leave_at_once(count: int, share: float) -> None:
    world = gathered(count)
    lossy(world, share)
    before_ns = world.now_ns
    world.leave(*world.hosts)
    world.wait(lambda: all(host.member is None for host in world.hosts.values()), 5)
    assert all(events(world, name, Left) for name in world.hosts)
    if share == 0:
        assert all(events(world, name, Left) == [Left(True)] for name in world.hosts)
        assert (
            world.now_ns < before_ns + S // 20
        )  # nobody had to find out that somebody else was gone already


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_leaves_as_soon_as_it_is_the_first(count: int) -> None:
    """A member that leaves right after another lets that one go as well."""
    world = gathered(count)
    before_ns = world.now_ns
    for name in list(world.hosts):
        world.wait(lambda name=name: members(world, name)[0] == name, 1)  # type: ignore[misc]
        world.leave(name)
    world.wait(lambda: all(host.member is None for host in world.hosts.values()), 5)
    assert all(events(world, name, Left) == [Left(True)] for name in world.hosts)
    assert world.now_ns < before_ns + S // 4


def test_all_but_one_leave_in_one_view() -> None:
    world = gathered(6)
    before = len(world.hosts["f"].views)
    world.leave("b", "c", "d", "e")
    world.wait(lambda: members(world, "f") == ["a", "f"], 1)
    assert len(world.hosts["f"].views) - before == 1
    world.leave("a")
    world.wait(lambda: members(world, "f") == ["f"], 1)
    world.wait(lambda: world.hosts["a"].member is None, 1)
    assert events(world, "a", Left) == [Left(True)]


def test_the_wish_to_leave_is_repeated_until_it_is_granted() -> None:
    world = gathered(3)
    left = {"count": 3}

    def drop(_: str, __: str, frame: object) -> bool:
        if isinstance(frame, Leave) and left["count"]:
            left["count"] -= 1
            return True
        return False

    world.drop = drop
    world.leave("c")
    world.wait(lambda: world.hosts["c"].member is None, 2)
    assert events(world, "c", Left) == [Left(True)]
    assert (
        len(frames_of(world, Leave, "c")) == 3 + 1 + 1
    )  # lost, heard, and whether all have the view without it


def test_one_that_misses_its_last_view_is_told_that_it_is_out() -> None:
    world = gathered(3)
    world.drop = lambda _, target, frame: target == "c" and is_roster(frame)
    world.leave("c")
    world.wait(lambda: members(world, "b") == ["a", "b"])
    world.wait(lambda: world.hosts["c"].member is None, 1)
    assert events(world, "c", Left) == [Left(True)]
    assert not events(world, "c", Expelled)


def test_one_that_nobody_answers_leaves_after_a_while_all_the_same() -> None:
    world = gathered(3)
    world.drop = lambda source, *_: source == "c"
    world.leave("c")
    assert world.wait(lambda: world.hosts["c"].member is None) <= 2
    (left,) = [event for event in world.hosts["c"].events if isinstance(event, Left | Expelled)]
    assert left in {Left(False), Left(True)}
    world.settle()


@pytest.mark.behaviour("P-15")
def test_nothing_goes_to_one_that_has_left() -> None:
    world = gathered(3)
    gone = world["c"].me
    world.leave("c")
    world.wait(lambda: world.hosts["c"].member is None)
    world.settle()
    seen: list[Address | None] = []
    world.observers.append(lambda _, ready: seen.extend(to for to, _ in ready.transmits))
    world.send("a", *[b"%d" % number for number in range(20)])
    world.run(5)
    assert seen
    assert gone not in seen


@pytest.mark.behaviour("J-06")
def test_frames_of_one_that_is_gone_change_nothing() -> None:
    world = gathered(3)
    world.delay = lambda source, _, frame: 2 * S if source == "c" and isinstance(frame, Data) else 0
    world.drop = lambda source, target, frame: (
        source == "c" and target == "b" and isinstance(frame, Data)
    )
    world.send("c", b"late")
    world.run(0.01)
    world.crash("c")
    world.settle()
    state = world["a"].view, list(world.hosts["a"].got)
    world.run(3)
    assert (world["a"].view, world.hosts["a"].got) == state
    assert not any(events(world, "a", kind) for kind in (Stalled, Lost))


@pytest.mark.parametrize("leaves", ["a", "b"])
@pytest.mark.parametrize("dies", ["a", "b", "c"])
def test_a_death_at_any_step_of_a_leave_leaves_one_view_of_the_living(
    leaves: str, dies: str
) -> None:
    def begin() -> MembershipGroup:
        world = gathered(3)
        world.send(leaves, b"last words")
        return world

    world = begin()
    timer = ArrivalTimer(world)
    world.leave(leaves)
    world.settle()
    world.run(0.05)
    points = timer.arrived
    for point in range(points + 1):
        world = begin()
        ArrivalTimer(world).before(point, partial(world.crash, dies))
        world.leave(leaves)
        world.run(2.1)  # the leave itself ends within its timeout
        assert world.hosts[leaves].member is None
        assert world.settle(10) < 4
        check_views(world)


def test_two_neighbours_leave_and_the_coordinator_dies() -> None:
    world = gathered(5)
    world.leave("b", "c")
    world.crash("a")
    world.wait(lambda: members(world, "d") == ["d", "e"], 5)
    world.settle(1)
    assert members(world, "d") == ["d", "e"]
    assert events(world, "b", Left)
    assert events(world, "c", Left)


def test_one_that_joined_beside_a_dead_member_gets_out_before_the_death_is_noticed() -> None:
    """The dead member confirms neither the start of the leaver's stream nor the next view."""
    slow = {"suspect_after": "20s", "verify_timeout": "5s"}
    world = gathered(3, MembershipGroup(4, **{**FAST, **slow}))
    world.crash("b")
    world.join("d")
    world.wait(lambda: members(world, "a") == ["a", "b", "c", "d"])
    world.leave("d")
    assert world.wait(lambda: world.hosts["d"].member is None) < 1
    assert events(world, "d", Left) == [Left(True)]
    assert members(world, "a") == ["a", "b", "c"]


def test_one_that_gives_up_its_leave_says_so_and_nobody_waits_for_it() -> None:
    """Its requests are lost, and it has no time to repeat them."""
    world = gathered(4)
    world.drop = lambda source, _, frame: source == "d" and isinstance(frame, Leave)
    world.leave("d")
    world.run(0.1)
    world.drop = lambda *_: False
    world.step("d", lambda member: member.abort(world.now_ns))
    assert events(world, "d", Left) == [Left(False)]
    assert world.settle() < 0.1


def is_gone(world: MembershipGroup, name: str) -> bool:
    return world.hosts[name].member is None


def test_many_joins_and_leaves_with_kills_between_them_end_with_the_exact_view() -> None:
    """60 members join in turn, 10 of them are killed, the others leave within 2 s."""
    rng = Random(7)
    world = MembershipGroup(62, rejoin=False)
    stay, churn = list(world.hosts)[:2], list(world.hosts)[2:]
    world.join(*stay)
    world.settle()
    killed = set(rng.sample(churn, 10))
    for at, name in enumerate(churn):
        world.join(name)
        world.run(rng.uniform(0.05, 0.6))
        world.send(stay[0], b"%d" % at)
        if name in killed:
            world.crash(name)
        if at >= 4 and (leaver := churn[at - 4]) not in killed:
            world.leave(leaver)
            world.wait(partial(is_gone, world, leaver), 2)
    assert world.settle() < 10


def test_a_member_whose_leave_is_granted_probes_nobody() -> None:
    """The others send it no heartbeats any more; a report of a member is not its concern."""
    world = gathered(3)
    a, b = world["a"].me, world["b"].me
    world.drop = lambda _sender, to, frame: to == "c" and isinstance(frame, Alive)
    world.leave("c")
    world.wait(lambda: world["c"].membership._leave_granted_by is not None)
    say(world, "c", a, Suspect(a, (b,)))
    assert not events(world, "c", Suspected)
    assert world["c"].failure_detector.due_ns is None
    world["c"].check_invariants()
