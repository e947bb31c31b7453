"""Frames of strangers and nonsense: they change nothing, and raise nothing."""

from __future__ import annotations

from random import Random

import pytest

from gapless.identity import U32_MAX, Address, Roster, RosterEntry, ViewId
from gapless.protocol.events import Expelled, Suspected
from gapless.wire.frames import (
    Alive,
    AskView,
    Beacon,
    Frame,
    Join,
    Leave,
    MergeAsk,
    MergeReply,
    NameTaken,
    NewView,
    Suspect,
)
from gapless.wire.roster import encode_roster
from tests.support.membership_checks import FAST, check_views, events, gathered, members, say
from tests.support.virtual_membership import MembershipGroup

GHOST = Address(77, 1)


def forged(origin: Address, roster: Roster) -> NewView:
    return NewView(origin, roster.id, None, 0, 1, encode_roster(roster))


def roster_of(number: int, *addresses: Address) -> Roster:
    return Roster(
        ViewId(number, addresses[0]), tuple(RosterEntry(address, "", b"x") for address in addresses)
    )


def test_a_view_told_by_a_stranger_that_has_not_made_it_is_refused() -> None:
    """Only the maker or a member may send a roster; that of a stranger is not even stored."""
    world = gathered(3)
    a, b, c = (world[name].me for name in "abc")
    for roster in (roster_of(50, a, b), roster_of(4, a, b, GHOST), roster_of(50, c, b, GHOST)):
        say(world, "b", GHOST, forged(GHOST, roster))
        assert world["b"].pending is None
        assert world["b"].membership.view_transfer.get(roster.id) is None
    world.crash("c")
    world.settle()
    assert members(world, "b") == ["a", "b"]  # view 4 is the one that its coordinator made
    world.run(2)
    assert world.is_one()
    assert world["b"].view.id.number < 50  # type: ignore[union-attr]


def test_a_view_told_in_the_name_of_another_is_refused() -> None:
    world = gathered(3)
    a, b, c = (world[name].me for name in "abc")
    say(world, "b", GHOST, forged(a, roster_of(50, a, b, c)))
    assert world["b"].pending is None
    assert world["b"].counters["dropped.origin"] == 1


def test_a_view_without_me_from_a_stranger_expels_nobody() -> None:
    world = gathered(3)
    say(world, "b", GHOST, forged(GHOST, roster_of(50, GHOST, world["a"].me)))
    world.run(1)
    assert not events(world, "b", Expelled)
    assert world.is_one()


@pytest.mark.parametrize("number", [U32_MAX - 1, U32_MAX])
def test_a_view_with_the_last_number_there_is_raises_nothing(number: int) -> None:
    world = gathered(3, MembershipGroup(4, **FAST))
    a, b, c = (world[name].me for name in "abc")
    say(world, "b", a, forged(a, roster_of(number, a, b, c)))
    world.run(1)
    world.join("d")
    world.crash("c")
    world.run(5)  # nothing is raised, and those that can still agree do
    assert world["a"].phase == "member"


@pytest.mark.parametrize("pins", [False, True])
def test_a_suspicion_of_a_stranger_is_dropped(pins: bool) -> None:
    world = gathered(3)
    before = world["a"].counters.get("dropped.stranger", 0)
    say(world, "a", GHOST, Suspect(GHOST, (world["c"].me,), pins))
    assert world["a"].counters["dropped.stranger"] == before + 1
    world.run(1)
    assert not events(world, "a", Suspected)
    assert members(world, "a") == ["a", "b", "c"]


def test_a_view_of_a_stranger_that_is_too_late_brings_in_nobody_that_does_not_show_itself() -> None:
    world = gathered(3)
    view = world["a"].view
    assert view is not None
    ghosts = [Address(node, 1) for node in range(200, 210)]
    say(world, "a", GHOST, forged(GHOST, roster_of(view.id.number, GHOST, world["a"].me, *ghosts)))
    world.run(3)
    for name in "abc":
        assert all(set(ghosts).isdisjoint(view.members) for view in world.hosts[name].views)
    assert world.settle() < 1


def test_a_suspicion_of_strangers_or_of_oneself_by_a_member_does_nothing() -> None:
    world = gathered(3)
    say(world, "a", world["b"].me, Suspect(world["b"].me, (GHOST, world["a"].me)))
    say(world, "a", world["b"].me, Suspect(world["b"].me, (GHOST, world["a"].me), True))
    world.run(1)
    assert not events(world, "a", Suspected)
    assert world.is_one()


def test_nobody_can_leave_for_another() -> None:
    world = gathered(3)
    say(world, "a", world["b"].me, Leave(world["c"].me))
    say(world, "a", GHOST, Leave(world["c"].me))
    say(world, "a", GHOST, Leave(GHOST))
    world.run(1)
    assert members(world, "a") == ["a", "b", "c"]


def test_nobody_can_join_for_another_but_a_member_that_passes_it_on() -> None:
    world = gathered(2)
    say(world, "a", GHOST, Join(RosterEntry(Address(78, 1), "", b"x")))
    assert world["a"].membership.coordinator.joiners == {}
    say(world, "a", world["b"].me, Join(RosterEntry(Address(78, 1), "", b"x")))
    assert set(world["a"].membership.coordinator.joiners) == {Address(78, 1)}


def test_a_join_in_the_name_of_my_own_node_is_dropped() -> None:
    world = gathered(2)
    twin = world["a"].me._replace(incarnation=9)
    say(world, "a", twin, Join(RosterEntry(twin, "", b"x")))
    world.run(1)
    assert world["a"].membership.coordinator.joiners == {}
    assert world.is_one()


def test_life_signs_of_strangers_change_no_view_and_are_answered_now_and_then_only() -> None:
    world = gathered(3)
    view = world["a"].view
    assert view is not None
    world.sent.clear()
    for number in range(50):
        say(world, "a", GHOST, Alive(GHOST, ViewId(60 + number, GHOST), True))
        say(world, "a", GHOST, Alive(GHOST, ViewId(60 + number, GHOST), False))
        say(world, "a", GHOST, Alive(GHOST, None, False))
    assert sum(isinstance(frame, Alive) for _, name, _, frame in world.sent if name == "a") <= 1
    world.run(2)
    assert world["a"].view == view


def test_merge_replies_that_nobody_asked_for_are_dropped() -> None:
    world = gathered(2)
    say(world, "a", GHOST, MergeReply(GHOST, 0, ViewId(9, GHOST), True))
    say(world, "a", GHOST, forged(GHOST, roster_of(9, GHOST)))
    world.run(2)
    assert world["a"].counters["dropped.merge"] == 1
    assert members(world, "a") == ["a", "b"]


def test_beacons_of_many_strangers_are_bounded() -> None:
    world = gathered(2)
    for number in range(400):
        ghost = Address(1000 + number, 1)
        say(world, "a", ghost, Beacon(ghost, ViewId(1, ghost), (world["a"].me,)))
    assert len(world["a"].membership.merging._foreign) <= 256
    world.send("a", b"goes through")
    world.run(3)
    assert world.hosts["b"].got == [("a", b"goes through")]
    assert members(world, "a") == ["a", "b"]


def test_a_stranger_that_asks_for_the_view_gets_it_and_nothing_changes() -> None:
    world = gathered(2)
    ready = say(world, "b", GHOST, AskView(GHOST))
    assert {to for to, _ in ready.transmits} <= {GHOST}
    assert world["b"].phase == "member"


def test_two_joiners_with_one_durable_name_are_not_in_one_view() -> None:
    world = gathered(1, MembershipGroup(3, **FAST))
    world.join("b", "c", durable="n")
    world.run(3)
    assert sorted(members(world, "a")) in (["a", "b"], ["a", "c"])
    assert world["a"].counters["dropped.name"] > 0


def test_one_whose_name_is_in_use_hears_of_the_group_and_waits_before_it_founds_its_own() -> None:
    world = MembershipGroup(3, **{**FAST, "merge_interval": "1h"})  # no beacon tells of the group
    world.join("a")
    world.join("c", durable="n")
    world.settle()
    world.drop = lambda source, target, frame: (source, target) == ("c", "b")  # no refusal arrives
    world.join("b", durable="n")
    world.run(0.2 * 7)  # seven times found_after
    assert world["b"].phase == "joining"
    assert world["a"].counters["dropped.name"] > 0
    world.crash("a", "c")
    world.run(3)
    assert members(world, "b") == ["b"], "nobody has the name any more, and nobody is there"


@pytest.mark.parametrize("seed", range(12))
def test_nonsense_of_strangers_raises_nothing_and_the_group_goes_on(seed: int) -> None:
    """Random membership frames of strangers, with real names, at every member and a joiner.

    Some strangers are taken in, for they ask for it and confirm; silent as they are then, they
    are soon out again.
    """
    rng = Random(seed)
    world = gathered(3, MembershipGroup(4, **FAST))
    real = [world[name].me for name in "abc"]
    views = [world["a"].view.id, ViewId(2, real[0]), ViewId(9, GHOST), ViewId(U32_MAX, GHOST)]  # type: ignore[union-attr]
    world.join("d")
    for step in range(150):
        ghost = GHOST._replace(node=77 + step % 5)
        some = tuple(rng.sample([*real, Address(99, 1)], 2))
        view = rng.choice([None, *views])
        frames: list[Frame] = [
            Join(RosterEntry(ghost, rng.choice(["", "n"]), b"x"), rng.random() < 0.5),
            Leave(ghost),
            Alive(ghost, view, view is not None and rng.random() < 0.5, rng.random() < 0.5),
            Suspect(ghost, some, rng.random() < 0.5),
            NewView(
                ghost,
                rng.choice(views),
                rng.choice([None, ViewId(1, ghost)]),
                step % 2,
                2,
                rng.randbytes(9),
            ),
            AskView(ghost),
            Beacon(ghost, rng.choice(views), tuple(sorted(some))),
            MergeAsk(ghost, rng.randrange(4)),
            NameTaken(RosterEntry(ghost, "n", b"x"), rng.choice([*real, ghost])),
            MergeReply(ghost, rng.randrange(4), rng.choice(views), rng.random() < 0.5),
        ]
        say(world, rng.choice("abcd"), ghost, rng.choice(frames))
        world.run(0.01)
    world.run(4)
    assert world.settle(10) < 10
    assert sorted(members(world, "a")) == ["a", "b", "c", "d"]
    check_views(world)


def test_coordinators_of_nobody_are_bounded_and_counted() -> None:
    world = gathered(2)
    a = world["a"]
    for number in range(300):
        ghost = Address(10_000 + number, 1)
        say(world, "a", ghost, Beacon(ghost, ViewId(7, ghost), ()))
    assert a.counters["dropped.crowded"] == 300 - 256
    a.check_invariants()
