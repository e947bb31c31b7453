"""Views: agreed and in order, although their frames are lost, late, duplicated or reordered."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from gapless.config import Config
from gapless.errors import LocalProtocolError
from gapless.identity import Address, Roster, RosterEntry, View, ViewId
from gapless.protocol.events import Discarded, ViewInstalled
from gapless.protocol.membership.view_transfer import ViewTransfer
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.wire import decode
from gapless.wire.frames import Alive, AskView, Data, NewView
from gapless.wire.roster import encode_roster
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
from tests.support.virtual_group import MS, SECOND as S
from tests.support.virtual_membership import GROUP, MembershipGroup


@pytest.mark.behaviour("G-01")
def test_the_oldest_member_makes_the_views_and_is_first_in_them() -> None:
    world = gathered(4)
    world.crash("b")
    world.settle()
    world.join("b")
    world.settle()
    assert members(world, "a") == ["a", "c", "d", "b"]
    for host in world.hosts.values():
        assert {view.id.coordinator.node for view in host.views} == {1}
    check_views(world)


@pytest.mark.behaviour("G-07")
def test_streams_of_the_departed_end_with_the_view_and_others_go_on() -> None:
    world = gathered(3)
    for name in "abc":
        world.send(name, b"1 of " + name.encode())
    world.run(0.5)
    world.crash("c")
    world.settle()
    assert set(world["a"].inbound) == {world["b"].me}
    world.send("b", b"2 of b")
    world.run(0.5)
    assert [message for origin, message in world.hosts["a"].got if origin == "b"] == [
        b"1 of b",
        b"2 of b",
    ]


@pytest.mark.behaviour("G-07")
def test_what_follows_the_gap_of_a_departed_member_is_counted_as_discarded() -> None:
    world = gathered(3)
    lost = {b"2"}
    world.drop = lambda source, target, frame: (
        source == "c"
        and target == "a"
        and isinstance(frame, Data)
        and not lost.isdisjoint(frame.run.messages())
    )
    for message in (b"1", b"2", b"3", b"4"):
        world.send("c", message)
    world.run(0.002)
    world.crash("c")
    world.settle()
    assert [message for origin, message in world.hosts["a"].got if origin == "c"] == [b"1"]
    assert [
        (event.origin.node, event.message_count) for event in events(world, "a", Discarded)
    ] == [(3, 2)]
    order = world.hosts["a"].order
    assert order.index(b"1") < order.index(world["a"].view)


@pytest.mark.behaviour("P-21", "G-10")
def test_a_view_comes_alone_by_a_tick_and_in_one_order_with_the_messages() -> None:
    world = gathered(2, MembershipGroup(3, **FAST))
    world.join("c")
    world.wait(lambda: world["b"].pending is not None)
    pending = world["b"].pending
    assert pending is not None
    before = world["b"].view
    # All earlier deliveries belong to the previous view.
    world.send("a", b"in between")
    assert world["b"].view == before
    ready = world["b"].tick(world.now_ns)
    assert [event.view for event in ready.events if isinstance(event, ViewInstalled)] == [
        pending.view
    ]
    assert world["b"].pending is None
    assert ready.before_view == len(ready.deliveries) == 0


@pytest.mark.behaviour("P-21")
@pytest.mark.parametrize("seed", range(8))
def test_members_that_stay_see_the_same_views_in_the_same_order(seed: int) -> None:
    """Deliveries of a member lie between views that contain it, at all members."""
    rng = Random(seed)
    world = gathered(3, MembershipGroup(6, **FAST, seed=seed))
    world.drop = lambda *_: rng.random() < 0.1
    number = 0
    for _ in range(30):
        name = rng.choice("def")
        host = world.hosts[name]
        if host.member is None:
            world.join(name)
        elif host.member.phase == "member":
            world.leave(name) if rng.random() < 0.5 else world.crash(name)
        for sender in "abc":
            number += 1
            world.send(sender, b"%s %d" % (sender.encode(), number))
        world.run(rng.random())
    world.settle()
    world.run(3)
    check_views(world)
    orders = []
    for name in "abc":
        views = [view.id for view in world.hosts[name].views]
        orders.append(views)
        _check_order(world.hosts[name].order)
    common = set(orders[0]) & set(orders[1]) & set(orders[2])
    assert len(common) > 3
    assert len({tuple(view for view in order if view in common) for order in orders}) == 1
    for sender in "abc":
        wanted = [
            message
            for message in world.hosts[sender].order
            if isinstance(message, bytes) and message[:1] == sender.encode()
        ]
        for name in "abc":
            assert [
                m
                for m in world.hosts[name].order
                if isinstance(m, bytes) and m[:1] == sender.encode()
            ] == wanted


def _check_order(order: list[Any]) -> None:
    view: View | None = None
    for entry in order:
        if isinstance(entry, View):
            assert view is None or entry.id.number > view.id.number
            view = entry
        else:
            assert view is not None
            assert entry[0] - ord("a") + 1 in {member.node for member in view.members}


@pytest.mark.behaviour("G-10")
def test_a_view_that_is_not_newer_or_does_not_name_me_is_not_installed() -> None:
    world = gathered(3)
    old = [frame for frame in frames_of(world, NewView, "a") if frame.base is None]
    views = [view.id for view in world.hosts["b"].views]
    for frame in old:
        say(world, "b", world["a"].me, frame)
    world.run(1)
    assert [view.id for view in world.hosts["b"].views] == views
    assert world["b"].phase == "member"


@pytest.mark.behaviour("G-10")
def test_views_are_not_given_from_outside() -> None:
    world = gathered(1)
    with pytest.raises(LocalProtocolError, match="gets views from its membership"):
        world["a"].install(View.of(9, world["a"].me), world.now_ns)


@pytest.mark.behaviour("G-11")
@pytest.mark.parametrize("lost", range(1, 6))
def test_a_view_that_does_not_arrive_is_sent_again(lost: int) -> None:
    world = gathered(3)
    left = {"count": lost}

    def drop(_: str, target: str, frame: Any) -> bool:
        if target == "b" and is_roster(frame) and left["count"]:
            left["count"] -= 1
            return True
        return False

    world.drop = drop
    world.crash("c")
    world.settle(5)
    assert left["count"] == 0 or lost > 1  # b may have heard of it in another way
    assert members(world, "b") == ["a", "b"]


@pytest.mark.behaviour("G-11")
def test_members_are_not_waited_for_while_a_view_is_on_its_way() -> None:
    """A member without its view blocks neither the next view nor any messages."""
    world = gathered(4, MembershipGroup(5, **FAST))
    world.drop = lambda _, target, frame: target == "d" and is_roster(frame)
    world.join("e")
    world.wait(lambda: len(members(world, "a")) == 5)
    world.send("a", b"goes on")
    world.run(0.3)
    assert all(world.hosts[name].got[-1] == ("a", b"goes on") for name in "abcde")
    world.crash("c")
    world.wait(lambda: members(world, "b") == ["a", "b", "d", "e"])
    world.drop = lambda *_: False
    world.settle(5)


@pytest.mark.behaviour("G-11")
def test_confirmed_views_are_not_sent_again() -> None:
    world = gathered(4)
    world.run(2)
    sent = len(frames_of(world, NewView))
    world.run(5)
    assert len(frames_of(world, NewView)) == sent


@pytest.mark.behaviour("G-12")
def test_members_are_told_the_change_and_joiners_the_whole() -> None:
    world = gathered(3, MembershipGroup(4, **FAST))
    world.sent.clear()
    world.join("d")
    world.settle()
    rosters = frames_of(world, NewView, "a")
    assert {frame.base is None for frame in rosters} == {True, False}
    change = next(frame for frame in rosters if frame.base is not None)
    whole = next(frame for frame in rosters if frame.base is None)
    assert len(change.body) < len(whole.body) / 2


@pytest.mark.behaviour("G-12")
def test_a_change_of_a_view_that_is_not_known_is_asked_for_as_a_whole() -> None:
    world = gathered(4)
    world.drop = lambda _, target, frame: target == "b" and is_roster(frame)
    world.crash("d")
    world.wait(lambda: members(world, "c") == ["a", "b", "c"])
    # From here on b gets only differences to a view that it has never seen.
    world.drop = lambda _, target, frame: target == "b" and is_roster(frame) and frame.base is None
    since_ns = world.now_ns
    world.leave("c")
    world.wait(lambda: bool(frames_of(world, AskView, "b", since_ns=since_ns)), 2)
    world.drop = lambda *_: False
    assert world.settle() < 1


@pytest.mark.behaviour("G-12")
def test_the_teller_of_a_change_is_asked_at_once_for_what_it_is_a_change_of() -> None:
    group = [RosterEntry(Address(node, 1), "", b"at %d" % node) for node in range(1, 5)]
    before = Roster(ViewId(6, group[0].address), tuple(group))
    after = Roster(ViewId(7, group[0].address), tuple(group[:3]))
    me = group[2].address
    receiver, context = (
        ViewTransfer(me, Config.make()),
        ReadyBuilder(me, GROUP, Config(), None, tracing=False),
    )
    change = NewView(group[0].address, after.id, before.id, 0, 1, encode_roster(after, before))
    assert receiver.on_part(change, context) is None
    ((to, datagram),) = context.build(None).transmits
    assert to == group[0].address
    assert decode(datagram).frames == (AskView(me),)
    whole = NewView(group[0].address, after.id, None, 0, 1, encode_roster(after))
    assert receiver.on_part(whole, context) == after
    assert receiver.on_part(change, context) == after  # it is known by now


def test_one_that_is_behind_is_given_the_present_view() -> None:
    world = gathered(4)
    world.drop = lambda _, target, frame: target == "b" and is_roster(frame)
    world.crash("d")
    world.wait(lambda: members(world, "c") == ["a", "b", "c"])
    world.run(1)
    assert members(world, "b") == ["a", "b", "c", "d"]
    world.drop = lambda *_: False
    assert world.settle() < 1
    assert world["b"].me.incarnation == 1


def test_one_that_is_ahead_is_asked_for_its_view() -> None:
    """A member learns from a fellow member of a newer view with both, and gets it there."""
    world = gathered(4)
    world.drop = lambda source, target, frame: source == "a" and target == "c" and is_roster(frame)
    world.crash("d")
    world.settle(5)
    assert frames_of(world, AskView, "c")


@pytest.mark.parametrize("seed", range(10))
def test_views_survive_loss_delay_and_any_order(seed: int) -> None:
    rng = Random(seed)
    world = gathered(3, MembershipGroup(8, **FAST, seed=seed))
    world.drop = lambda _, __, frame: is_roster(frame) and rng.random() < 0.4
    world.delay = lambda _, __, frame: int(rng.random() * 300 * MS) if is_roster(frame) else 0
    world.join("d", "e", "f", "g", "h")
    world.run(0.5)
    world.leave("b")
    world.run(rng.random())
    world.crash("c")
    assert world.settle(20) < 10
    check_views(world)
    world.run(2)
    assert world.is_one()


def test_a_view_of_a_stranger_that_is_too_late_takes_nobody_in() -> None:
    """Its maker belongs to another group: only a merge joins the two."""
    world = gathered(3, MembershipGroup(4, **FAST))
    world.part("abc", "d")
    world.join("d")
    world.wait(lambda: world["d"].phase == "member")
    world.part()
    view = world["a"].view
    assert view is not None
    places = (RosterEntry(world["d"].me, "", b"d"), RosterEntry(world["a"].me, "", b"a"))
    roster = Roster(ViewId(view.id.number, world["d"].me), places)
    say(
        world,
        "a",
        world["d"].me,
        NewView(world["d"].me, roster.id, None, 0, 1, encode_roster(roster)),
    )
    world.run(0.1)
    assert world["a"].view == view
    assert world.settle() < 2
    assert world["a"].view.id.number > view.id.number


def duplicating(world: MembershipGroup, seed: int) -> MembershipGroup:
    """Let three of ten datagrams arrive again, up to a second later."""
    rng = Random(seed)

    def copies_ns(delay_ns: int) -> tuple[int, ...]:
        if rng.random() >= 0.3:
            return (delay_ns,)
        return delay_ns, delay_ns + int(rng.random() * S)

    world.copies_ns = copies_ns
    return world


@pytest.mark.parametrize("seed", range(6))
def test_what_comes_again_much_later_changes_nothing(seed: int) -> None:
    """Joins, leaves, views, heartbeats and messages of earlier views arrive again in later ones."""
    world = gathered(3, duplicating(MembershipGroup(5, seed=seed, **FAST), seed))
    for number, name in enumerate(("d", "e", "d", "e")):
        if world.hosts[name].member is None:
            world.join(name)
        else:
            world.leave(name)
            world.wait(lambda name=name: world.hosts[name].member is None, 5)  # type: ignore[misc]
        world.send("a", b"%d" % number)
        world.settle(5)
    world.crash("a")
    world.settle(5)
    world.run(3)
    assert world.is_one()
    assert members(world, "b") == ["b", "c"]
    assert [message for origin, message in world.hosts["b"].got if origin == "a"] == [
        b"%d" % n for n in range(4)
    ]
    assert {host.incarnation for host in world.hosts.values()} == {1}
    check_no_twice(world)
    check_views(world)


@pytest.mark.parametrize("seed", range(20))
def test_a_large_roster_in_lost_doubled_and_mixed_up_parts(seed: int) -> None:
    """Fifty entries in frames of a few each: complete in any order, and never wrong on the way."""
    rng, group = (
        Random(seed),
        [RosterEntry(Address(node, 1), "", b"at %d" % node) for node in range(1, 51)],
    )
    roster = Roster(ViewId(7, group[0].address), tuple(group))
    config = Config.make(max_frame_bytes=256)
    sender, receiver = (
        ViewTransfer(group[0].address, config),
        ViewTransfer(group[9].address, config),
    )
    context = ReadyBuilder(
        group[0].address, GROUP, Config.make(max_frame_bytes=256), None, tracing=False
    )
    sender.send(group[9].address, roster, context)
    parts = [
        frame for _, datagram in context.build(None).transmits for frame in decode(datagram).frames
    ]
    assert len(parts) > 5
    found, left = [], set(range(len(parts)))
    while left:
        frame = rng.choice(parts)
        assert isinstance(frame, NewView)
        left.discard(frame.part)
        found.append(receiver.on_part(frame, context))
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] == roster


def test_a_group_whose_roster_goes_in_lost_and_mixed_up_parts() -> None:
    rng = Random(1)
    world = gathered(1, MembershipGroup(16, max_frame_bytes=256, **FAST))
    world.drop = lambda _, __, frame: is_roster(frame) and rng.random() < 0.2
    world.delay = lambda _, __, frame: int(rng.random() * 30 * MS) if is_roster(frame) else 0
    world.join(*list(world.hosts)[1:])
    world.settle(20)
    assert max(frame.parts for frame in frames_of(world, NewView)) > 1
    check_views(world)


@pytest.mark.parametrize("dies", ["a", "b"])
def test_a_death_at_any_step_of_a_takeover_leaves_one_view_of_the_living(dies: str) -> None:
    """The coordinator crashes; during the takeover the next or second next crashes, too."""

    def begin() -> MembershipGroup:
        world = gathered(4)
        world.crash("a")
        world.run(0.55)  # silence is about to be noticed
        return world

    world = begin()
    timer = ArrivalTimer(world)
    world.settle()
    world.run(0.05)
    points = timer.arrived
    assert points > 10
    second = "b" if dies == "a" else "c"
    for point in range(points + 1):
        world = begin()
        ArrivalTimer(world).before(point, partial(world.crash, second))
        world.run(0.6)
        if world.hosts[second].member is not None:
            continue
        assert world.settle(10) < 4
        check_views(world)


def test_alive_says_the_view_of_its_sender() -> None:
    world = gathered(2)
    world.run(1)
    view = world["a"].view
    assert view is not None
    assert {frame.view for frame in frames_of(world, Alive, since_ns=world.now_ns - 500 * MS)} == {
        view.id
    }
