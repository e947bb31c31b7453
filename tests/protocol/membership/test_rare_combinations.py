"""Membership in rare combinations of incidents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gapless.identity import Address, ViewId
from gapless.protocol.events import Expelled, Lost, SlowReceivers, StateReceived, StateWanted
from gapless.wire.frames import Ack, Alive, Data, Suspect
from tests.support.membership_checks import (
    FAST,
    check_no_twice,
    check_views,
    events,
    frames_of,
    gathered,
    is_roster,
    members,
    say,
)
from tests.support.virtual_group import MS
from tests.support.virtual_membership import MembershipGroup

if TYPE_CHECKING:
    from gapless.protocol.ready import Ready
    from gapless.wire.frames import Frame

PROFILES = ("nakack4", "nakack", "classic", "ordered")


def _nothing(ready: Ready) -> bool:
    return not (ready.transmits or ready.deliveries or ready.events) and ready.deadline_ns is None


# An incarnation that has ended


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_comes_of_a_life_that_is_over(profile: str) -> None:
    world = gathered(3, MembershipGroup(3, rejoin=False, **FAST, profile=profile, unread_limit=2))
    member, a = world["c"], world["a"].me
    world.send("a", *(b"a%d" % at for at in range(8)))
    world.send("c", *(b"c%d" % at for at in range(8)))
    world.process("a", world["a"].expel(member.me, world.now_ns))
    world.run(5)
    assert events(world, "c", Expelled)
    assert member.phase == "over"
    for ready in (
        member.expel(a, world.now_ns),
        member.consumed(2, world.now_ns),
        member.consumed(2, world.now_ns),
        member.tick(world.now_ns),
        member.leave(world.now_ns),
        member.close_connection(a, world.now_ns),
        member.cancel(1, world.now_ns),
    ):
        assert _nothing(ready)


# A view that one member never saw


def _skip_a_view(profile: str, who: str, boss: str) -> MembershipGroup:
    """Return a merged group, in which ``who`` never saw the view of its partition."""
    world = gathered(4, MembershipGroup(4, rejoin=False, **FAST, profile=profile))
    for name in "abcd":
        world.send(name, b"%s1" % name.encode())
    world.run(0.5)
    world.part("ab", "cd")
    world.drop = lambda source, target, frame: source == boss and target == who and is_roster(frame)
    world.run(1.5)
    world.send(who, b"%s2" % who.encode())
    world.run(0.3)
    apart = {world[name].view.id for name in "abcd"}  # type: ignore[union-attr]
    seen = len(world.hosts[who].views)

    def drop(source: str, target: str, frame: Frame) -> bool:
        if target != who:
            return False
        return (
            frame.view in apart
            if is_roster(frame)
            else source != boss and len(world.hosts[who].views) == seen
        )

    world.drop = drop
    world.heal()
    world.settle(20)
    assert len(world.hosts[who].views) == seen + 1
    return world


@pytest.mark.parametrize(("who", "boss"), [("d", "c"), ("b", "a")])
@pytest.mark.parametrize("profile", PROFILES)
def test_who_never_saw_that_it_was_apart_is_heard_by_all_again(
    profile: str, who: str, boss: str
) -> None:
    world = _skip_a_view(profile, who, boss)
    for name in "abcd":
        world.send(name, b"%s3" % name.encode())
    world.run(10)
    for name in "abcd":
        assert members(world, name) == list("abcd")
        got = [message for _, message in world.hosts[name].got]
        assert {b"a3", b"b3", b"c3", b"d3"} <= set(got), f"{name} got {got}"
    check_no_twice(world)
    check_views(world)
    lost: list[Any] = events(world, who, Lost)
    assert all(event.first <= event.last for event in lost)


# A paused member does not blame others


@pytest.mark.parametrize("sleeper", ["a", "b"])
def test_nobody_is_expelled_as_slow_by_one_that_stood_still_itself(sleeper: str) -> None:
    world = gathered(
        5, on_slow_receiver="expel", slow_receiver_after="300ms", xmit_interval="150ms"
    )
    world.delay = lambda source, target, frame: 40 * MS if source == "e" else 0
    world.send(sleeper, b"x")
    world.run(0.02)  # all but e have acknowledged
    world.pause(sleeper)
    world.run(0.45)
    world.resume(sleeper, tick_first=True)  # the timers fire before the acks that waited
    world.run(3)
    assert members(world, sleeper) == list("abcde")
    assert not events(world, sleeper, SlowReceivers)


def test_one_that_really_pins_is_expelled_also_by_one_that_stood_still_before() -> None:
    world = gathered(
        5, on_slow_receiver="expel", slow_receiver_after="300ms", xmit_interval="150ms"
    )
    world.pause("b")
    world.run(0.45)
    world.resume("b")
    world.drop = lambda source, target, frame: (
        source == "e" and target == "b" and isinstance(frame, Ack)
    )
    world.send("b", b"x")
    world.wait(lambda: bool(events(world, "e", Expelled)), 3)


# A merge without new members


@pytest.mark.parametrize(("group", "other"), [("abc", "d"), ("bcd", "a")])
def test_two_with_one_durable_name_do_not_make_views_for_ever(group: str, other: str) -> None:
    world = MembershipGroup(4, **FAST)
    for name in group:
        world.join(name, durable="twin" if name == group[-1] else "")
        world.settle(5)
    world.join(other, durable="twin")
    world.run(10)  # it is not let in, and founds a group of its own: the merge takes one of the two
    before = {name: len(host.views) for name, host in world.hosts.items()}
    world.run(20)
    assert {name: len(host.views) for name, host in world.hosts.items()} == before
    assert sum(place.name == "twin" for place in world[group[0]].roster.entries) == 1  # type: ignore[union-attr]


# Requests at a bad time


def test_a_wish_to_expel_outlives_the_view_that_is_on_its_way() -> None:
    world = gathered(6, MembershipGroup(6, rejoin=False, **FAST))
    world.process("a", world["a"].expel(world["c"].me, world.now_ns))
    world.wait(lambda: world["a"].pending is not None, 1)
    world.process("a", world["a"].expel(world["d"].me, world.now_ns))
    world.run(2)
    assert members(world, "a") == list("abef")


def test_a_wish_to_expel_outlives_a_lost_datagram() -> None:
    world = gathered(4, MembershipGroup(4, rejoin=False, **FAST))
    lost: list[Frame] = []

    def drop(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Suspect) and len(lost) < 2:
            lost.append(frame)
            return True
        return False

    world.drop = drop
    world.process("b", world["b"].expel(world["d"].me, world.now_ns))
    world.run(2)
    assert len(lost) == 2
    assert members(world, "b") == list("abc")


def test_a_wish_to_expel_that_is_not_granted_is_not_repeated_for_ever() -> None:
    world = gathered(2)
    world.process("b", world["b"].expel(world["a"].me, world.now_ns))
    world.run(2)
    since_ns = world.now_ns
    world.run(5)
    assert members(world, "b") == ["a", "b"]
    assert not frames_of(world, Suspect, since_ns=since_ns)


def test_many_wishes_to_expel_fit_the_frames() -> None:
    world = gathered(25, MembershipGroup(25, rejoin=False, **FAST, max_frame_bytes=256))
    out = list(world.hosts)[-11:]
    world.drop = lambda source, target, frame: (
        isinstance(frame, Suspect) and world.now_ns == asked_ns
    )
    asked_ns = world.now_ns
    for name in out:
        world.process("b", world["b"].expel(world[name].me, world.now_ns))
    world.run(2)
    assert members(world, "b") == list(world.hosts)[:-11]


# Bounded memory


def test_talk_with_strangers_is_not_remembered() -> None:
    world = gathered(2)
    for at in range(500):
        stranger = Address(1000 + at, 1)
        say(world, "a", stranger, Alive(stranger, ViewId(3, stranger), True, True))
    world.run(1)
    spoke = world["a"].endpoint.out.last_sent_ns
    assert spoke is not None
    assert len(spoke) < 10


# Joining after an unnoticed crash of the coordinator


def _provide(world: MembershipGroup) -> None:
    """Let every member provide its state at once."""

    def answer(name: str, ready: Ready) -> None:
        for event in ready.events:
            if isinstance(event, StateWanted):
                world.process(name, world[name].provide(event.transfer, b"state", world.now_ns))

    world.observers.append(answer)


@pytest.mark.parametrize("joiner", ["a", "d"])
@pytest.mark.parametrize("knobs", [{}, FAST])
def test_who_joins_while_the_coordinator_is_dead_finds_the_group_and_its_state(
    joiner: str, knobs: Any
) -> None:
    world = MembershipGroup(4, **knobs)
    _provide(world)
    for name in "abc":
        world.join(name)
        world.settle(10)
    world.run(1)
    world.crash("a")
    world.join(joiner, state=True)
    world.settle(12)
    world.run(1)
    (received,) = events(world, joiner, StateReceived)
    assert (received.provider, received.state) == (world["b"].me, b"state")
    assert world.hosts[joiner].views[-1].members[0] == world["b"].me


def test_the_next_life_of_the_coordinator_need_not_wait_until_the_old_one_was_silent() -> None:
    world = MembershipGroup(3)
    for name in "abc":
        world.join(name)
        world.settle(10)
    world.run(1)
    world.crash("a")
    world.join("a")
    assert world.settle(10) < 4, "less than suspect_after"


def test_after_a_skipped_view_only_the_member_that_lags_is_named() -> None:
    world = MembershipGroup(6, profile="nakack", on_slow_receiver="expel", slow_receiver_after="2s")
    for name in "abcd":
        world.join(name)
        world.settle()
    for number in range(20):
        world.send("b", b"%d" % number)
        world.run(0.02)
    world.drop = lambda _, target, frame: target == "b" and is_roster(frame)
    for name, count in (("e", 5), ("f", 6)):
        world.join(name)
        world.wait(lambda count=count: len(members(world, "a")) == count, 20)  # type: ignore[misc]
    world.drop = lambda *_: False
    world.settle()
    world.drop = lambda _, target, frame: target == "d" and isinstance(frame, Data)
    world.send("b", b"blocked")
    world.run(9)
    assert {name for name in "abcdef" if events(world, name, Expelled)} == {"d"}
