"""Merging: after any partition there is one view again, and no message is delivered twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest

from gapless.protocol.events import Expelled, Located
from gapless.wire.frames import Beacon, MergeAsk, MergeReply
from tests.support.membership_checks import (
    FAST,
    ArrivalTimer,
    check_no_twice,
    check_views,
    events,
    frames_of,
    gathered,
    is_roster,
    members,
    say,
)
from tests.support.virtual_group import SECOND as S
from tests.support.virtual_membership import MembershipGroup

SPLITS: dict[int, list[tuple[str, ...]]] = {
    2: [("ab", "cd"), ("a", "bcd"), ("abc", "d"), ("ad", "bc")],
    3: [("ab", "cd", "ef"), ("a", "bcde", "f"), ("ace", "b", "df")],
    4: [("ab", "cd", "ef", "gh"), ("a", "b", "c", "defgh")],
}


def parted(*sides: str, world: MembershipGroup | None = None) -> MembershipGroup:
    """Return a partitioned group: each side in a view of its own."""
    count = sum(map(len, sides))
    world = gathered(count, world or MembershipGroup(count, **FAST))
    world.part(*sides)
    world.wait(
        lambda: all(
            sorted(members(world, name)) == sorted(side) for side in sides for name in side
        ),
        5,
    )
    return world


@pytest.mark.behaviour("G-09")
@pytest.mark.parametrize("sides", [sides for splits in SPLITS.values() for sides in splits])
def test_sides_that_hear_each_other_again_are_one_view_and_lives_go_on(
    sides: tuple[str, ...],
) -> None:
    world = parted(*sides)
    world.run(1)
    before = {name: len(host.views) for name, host in world.hosts.items()}
    world.heal()
    assert world.settle() < 2  # two beacons, a question, an answer
    world.run(1)
    assert not any(events(world, name, Expelled) for name in world.hosts)
    assert all(host.incarnation == 1 for host in world.hosts.values())
    most = max(len(host.views) - before[name] for name, host in world.hosts.items())
    assert most <= len(sides) - 1
    check_views(world)


@pytest.mark.behaviour("G-09", "P-17")
@pytest.mark.parametrize("profile", ["nakack4", "nakack", "classic"])
def test_what_was_sent_apart_stays_with_its_side(profile: str) -> None:
    world = parted("ab", "cd", world=MembershipGroup(4, **FAST, profile=profile))
    for name in world.hosts:
        for number in range(5):
            world.send(name, b"apart %s %d" % (name.encode(), number))
    world.run(1)
    world.heal()
    world.settle()
    world.run(0.5)
    for name in world.hosts:
        world.send(name, b"together " + name.encode())
    world.run(2)
    for name, host in world.hosts.items():
        side = "ab" if name in "ab" else "cd"
        for origin in world.hosts:
            got = [message for source, message in host.got if source == origin]
            apart = (
                [b"apart %s %d" % (origin.encode(), number) for number in range(5)]
                if origin in side
                else []
            )
            assert got == [*apart, b"together " + origin.encode()]
    check_no_twice(world)


def test_sends_that_wait_for_the_other_side_go_on_when_it_is_given_up_and_after_the_merge() -> None:
    world = gathered(4, MembershipGroup(4, **FAST, capacity=4))
    world.part("ab", "cd")
    for number in range(20):
        world.send("a", b"%d" % number)
        world.send("c", b"%d" % number)
    world.run(3)
    world.heal()
    world.settle()
    world.run(2)
    wanted = [b"%d" % number for number in range(20)]
    for origin, side in (("a", "ab"), ("c", "cd")):
        for name in side:
            assert [
                message for source, message in world.hosts[name].got if source == origin
            ] == wanted
    check_no_twice(world)


def test_groups_that_never_knew_each_other_are_one() -> None:
    world = MembershipGroup(6, **FAST)
    world.part("abc", "def")
    world.join(*world.hosts)
    world.wait(
        lambda: all(
            host.member is not None and host.member.view is not None
            for host in world.hosts.values()
        )
    )
    world.run(1)
    assert sorted(members(world, "a")) == ["a", "b", "c"]
    assert sorted(members(world, "d")) == ["d", "e", "f"]
    world.heal()
    assert world.settle() < 2
    assert members(world, "a")[0] == "a"  # the lowest coordinator leads


DIRECTED = [(source, target) for source in "abc" for target in "abc" if source != target]
CUTS = [
    frozenset(link for link, cut in zip(DIRECTED, bits, strict=True) if cut)
    for bits in product((0, 1), repeat=6)
]


def is_cut(cut: frozenset[tuple[str, str]], source: str, target: str, _: object) -> bool:
    return (source, target) in cut


@pytest.mark.parametrize("part", range(4))
def test_every_pattern_of_broken_directed_links_of_three_heals(part: int) -> None:
    """All 64 sets of the six directed links of three members, a quarter in each test."""
    assert len(CUTS) == 64
    worst = 0.0
    for cut in CUTS[part::4]:
        world = gathered(3)
        world.drop = partial(is_cut, cut)
        for step in range(4):
            for name, host in world.hosts.items():
                if host.member is not None and host.member.phase == "member":
                    world.send(name, b"%s.%d apart %d" % (name.encode(), host.incarnation, step))
            world.run(0.8)
        views = sum(len(host.views) for host in world.hosts.values())
        world.run(3)
        assert sum(len(host.views) for host in world.hosts.values()) - views < 60, (
            f"views without end: {sorted(cut)}"
        )
        world.drop = lambda *_: False
        took = world.settle(10)
        worst = max(worst, took)
        world.run(1)
        for name, host in world.hosts.items():
            world.send(name, b"%s.%d together" % (name.encode(), host.incarnation))
        world.run(1.5)
        assert world.is_one()
        for host in world.hosts.values():
            assert sum(message.endswith(b"together") for _, message in host.got) == 3, (
                f"{sorted(cut)}: {world.show()}"
            )
        check_no_twice(world)
        check_views(world)
    assert worst < 5


def lose_first(
    count: int, of: Callable[[str, str, object], bool]
) -> Callable[[str, str, object], bool]:
    """Return what drops the first ``count`` datagrams with a frame of some kind."""
    left = {"count": count}

    def drop(source: str, target: str, frame: object) -> bool:
        if left["count"] and of(source, target, frame):
            left["count"] -= 1
            return True
        return False

    return drop


@pytest.mark.parametrize(
    "kind",
    [
        lambda *words: isinstance(words[2], MergeAsk),
        lambda *words: isinstance(words[2], MergeReply),
        lambda *words: is_roster(words[2]) and words[1] == "c",
        lambda *words: is_roster(words[2]) and words[1] == "d",
        lambda *words: is_roster(words[2]) and words[1] in "cd",
        lambda *words: is_roster(words[2]) and words[0] == "c",
        lambda *words: isinstance(words[2], Beacon) and words[0] == "c",
    ],
    ids=[
        "ask",
        "reply",
        "view to c",
        "view to d",
        "view to the other side",
        "roster of c",
        "beacons of c",
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_a_merge_that_fails_midway_is_made_up_for(kind: Callable[..., bool], count: int) -> None:
    world = parted("ab", "cd")
    world.drop = lose_first(count, kind)
    world.heal()
    world.run(3)
    assert world.settle(10) < 6
    check_views(world)
    check_no_twice(world)


def test_one_side_that_never_gets_the_merged_view_is_expelled_or_merged_later() -> None:
    world = parted("ab", "cd")
    world.drop = lambda source, target, frame: (
        is_roster(frame) and source in "ab" and target in "cd"
    )
    world.heal()
    world.run(5)
    world.drop = lambda *_: False
    assert world.settle(10) < 5
    check_views(world)


@pytest.mark.parametrize("dies", ["a", "b", "c", "d"])
def test_a_death_at_any_step_of_a_merge_leaves_one_view_of_the_living(dies: str) -> None:
    def begin() -> MembershipGroup:
        world = parted("ab", "cd")
        world.heal()
        return world

    world = begin()
    timer = ArrivalTimer(world)
    world.settle()
    world.run(0.05)
    points = timer.arrived
    assert points > 10
    for point in range(points + 1):
        world = begin()
        ArrivalTimer(world).before(point, partial(world.crash, dies))
        world.run(1)
        if world.hosts[dies].member is not None:
            world.crash(dies)
        assert world.settle(10) < 5
        check_views(world)


@pytest.mark.parametrize("sides", [("ab", "cd"), ("ac", "bd"), ("a", "bcd")])
def test_a_partition_at_any_step_of_a_merge_heals(sides: tuple[str, ...]) -> None:
    for point in range(0, 60, 2):
        world = parted("ab", "cd")
        ArrivalTimer(world).before(point, partial(world.part, *sides))
        world.heal()
        world.run(1.5)
        world.heal()
        assert world.settle(10) < 6
        check_views(world)
        check_no_twice(world)


@pytest.mark.parametrize("deaf", ["a", "c"])
def test_beacons_that_are_heard_one_way_only_do_no_harm(deaf: str) -> None:
    """Coordinators that do not receive each other's beacons do not merge, but still make views."""
    world = gathered(4, MembershipGroup(5, **FAST))
    world.part("abe", "cd")
    world.wait(lambda: members(world, "a") == ["a", "b"] and members(world, "c") == ["c", "d"], 5)
    world.heal()
    world.drop = lambda source, target, _: target == deaf and (source in "cd") == (deaf in "ab")
    views, since_ns = len(world.hosts["a"].views) + len(world.hosts["c"].views), world.now_ns
    world.run(5)
    assert not frames_of(world, MergeAsk, since_ns=since_ns)
    assert len(world.hosts["a"].views) + len(world.hosts["c"].views) - views < 10
    world.join("e")
    world.run(3)
    assert world["e"].phase == "member"
    world.drop = lambda *_: False
    assert world.settle(10) < 5
    check_views(world)


def test_a_merge_has_a_number_higher_than_those_of_all_sides() -> None:
    world = gathered(4, MembershipGroup(5, **FAST))
    world.part("ab", "cde")
    world.wait(lambda: members(world, "a") == ["a", "b"] and members(world, "c") == ["c", "d"], 5)
    for _ in range(5):
        world.join("e")
        world.wait(lambda: members(world, "d") == ["c", "d", "e"], 2)
        world.leave("e")
        world.wait(lambda: members(world, "d") == ["c", "d"] and world.hosts["e"].member is None, 2)
    low, high = (world[name].view for name in "ac")
    assert low is not None
    assert high is not None
    assert high.id.number > low.id.number + 5
    before = {name: len(world.hosts[name].views) for name in "abcd"}
    world.heal()
    assert world.settle() < 2
    assert world["a"].view.id.number == high.id.number + 1  # type: ignore[union-attr]
    assert {name: len(world.hosts[name].views) - before[name] for name in "abcd"} == dict.fromkeys(
        "abcd", 1
    )


def test_one_that_has_agreed_to_a_merge_makes_no_view_for_a_while() -> None:
    """The promised roster stays valid until the leader had its time, and no longer."""
    world = gathered(2, MembershipGroup(3, **FAST))
    ghost = world["a"].me._replace(node=99)
    say(world, "a", ghost, MergeAsk(ghost, 1), to_me=True)
    assert [reply.willing for reply in frames_of(world, MergeReply, "a")] == [True]
    world.leave("b")
    world.run(0.39)  # twice join_confirm_timeout
    assert members(world, "a") == ["a", "b"]
    world.wait(lambda: members(world, "a") == ["a"], 0.1)


def test_one_that_is_asked_again_and_again_to_merge_still_makes_views() -> None:
    """Merge requests of a leader that never finishes block the group only for a while."""
    world = gathered(3)
    ghost = world["a"].me._replace(node=99)
    world.crash("c")
    for step in range(400):
        say(world, "a", ghost, MergeAsk(ghost, step), to_me=True)
        world.run(0.01)
    assert members(world, "a") == ["a", "b"]
    assert len(frames_of(world, MergeReply, "a")) <= 400


def test_a_group_alone_sends_one_beacon_per_interval() -> None:
    world = gathered(3)
    since_ns = world.now_ns
    world.run(30)
    assert 90 <= len(frames_of(world, Beacon, since_ns=since_ns)) <= 140  # 0.225 to 0.3 s apart
    assert {frame.origin.node for frame in frames_of(world, Beacon)} == {1}
    assert world.now_ns - since_ns == 30 * S


def test_coordinators_that_do_not_know_where_the_other_is_are_introduced() -> None:
    """Beacons reach only a member of the other group: it sends the roster with all locators."""
    world = MembershipGroup(4, **FAST)
    world.part("ab", "cd")
    world.join(*"abcd")
    world.wait(
        lambda: all(
            len(world.hosts[name].views) and len(members(world, name)) == 2 for name in "abcd"
        )
    )
    world.part()

    def unknown(source: str, target: str, _: object) -> bool:
        located = {event.locator.decode() for event in events(world, source, Located)}
        return {source, target} == {"a", "c"} and target not in located

    world.drop = unknown
    assert world.settle() < 10
    check_views(world)
