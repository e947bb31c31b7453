"""Joining: first members, joins under loss, many at once, crashes at any step, floods."""

from __future__ import annotations

from functools import partial

import pytest

from gapless.errors import LocalProtocolError
from gapless.identity import Address, RosterEntry, View, ViewId
from gapless.protocol.events import (
    Acknowledged,
    Expelled,
    Left,
    Located,
    Lost,
    Started,
    ViewInstalled,
)
from gapless.protocol.membership import coordinator, membership, view_transfer
from gapless.wire import encode
from gapless.wire.frames import Alive, Beacon, Data, Frame, Join, Nak, NewView
from tests.support.membership_checks import (
    FAST,
    ArrivalTimer,
    check_no_twice,
    check_views,
    events,
    frames_of,
    gathered,
    lossy,
    members,
    say,
)
from tests.support.virtual_group import MS, SECOND as S
from tests.support.virtual_membership import GROUP, MembershipGroup


def test_one_that_hears_nobody_founds_a_group_of_its_own() -> None:
    world = MembershipGroup(1, **FAST)
    world.join("a")
    assert world["a"].phase == "joining"
    assert world.settle() == pytest.approx(0.2, abs=0.01)  # found_after
    assert world["a"].phase == "member"
    assert [view.id.number for view in world.hosts["a"].views] == [1]


@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("share", [0, 0.3])
def test_first_members_that_come_at_once_end_in_one_group(count: int, share: float) -> None:
    world = MembershipGroup(count, **FAST)
    lossy(world, share, seed=count)
    world.join(*world.hosts)
    assert world.settle(20) < (1.0 if share == 0 else 10)
    check_views(world)
    if share == 0:
        assert members(world, "a")[0] == "a"  # the lowest address founds
        assert len(world.hosts["a"].views) == 2  # alone, then with everybody
        assert {len(host.views) for name, host in world.hosts.items() if name != "a"} == {1}


def test_of_several_that_look_only_the_lowest_founds() -> None:
    world = MembershipGroup(3, **FAST)
    world.join("c", "b")
    world.settle()
    assert members(world, "b") == ["b", "c"]
    world.join("a")
    world.settle()
    assert members(world, "a") == [
        "b",
        "c",
        "a",
    ]  # the oldest stays the coordinator, whatever its address


def test_when_the_lowest_dies_before_it_founds_another_does() -> None:
    world = MembershipGroup(3, **FAST)
    world.join("a", "b", "c")
    world.run(0.1)
    world.crash("a")
    assert world.settle() < 2
    assert members(world, "b") == ["b", "c"]


@pytest.mark.behaviour("G-01")
def test_many_joins_are_one_view_of_the_old_members() -> None:
    world = gathered(2, MembershipGroup(12, **FAST))
    before = {name: len(world.hosts[name].views) for name in "ab"}
    world.join(*list(world.hosts)[2:])
    assert world.settle() < 0.5
    assert {name: len(world.hosts[name].views) - before[name] for name in "ab"} == {"a": 1, "b": 1}
    assert all(len(host.views) == 1 for name, host in world.hosts.items() if name not in "ab")


def test_joins_and_leaves_and_deaths_of_one_moment_are_few_views() -> None:
    world = gathered(6, MembershipGroup(10, **FAST))
    before = len(world.hosts["a"].views)
    world.join("g", "h", "i", "j")
    world.leave("b", "c")
    world.crash("d")
    world.settle()
    assert members(world, "a") == ["a", "e", "f", "g", "h", "i", "j"]
    # One for joins and leaves (leaves do not wait for joiners that answer late: at most two), one
    # for the death.
    assert len(world.hosts["a"].views) - before <= 3


@pytest.mark.behaviour("G-04")
def test_a_join_of_one_that_is_in_already_gets_the_view_again_and_makes_none() -> None:
    world = gathered(3)
    views, roster = len(world.hosts["a"].views), world["a"].roster
    assert roster is not None
    ready = say(world, "a", world["c"].me, Join(roster.entries[2]))
    assert {to for to, _ in ready.transmits} == {world["c"].me}
    world.run(1)
    assert len(world.hosts["a"].views) == views
    assert frames_of(world, NewView, "a", since_ns=world.now_ns - S)


@pytest.mark.behaviour("G-08")
def test_a_joiner_whose_view_is_not_told_to_anybody_asks_on_and_is_not_expelled() -> None:
    """Its coordinator dies between the word to the joiner and the word to the others."""
    world = gathered(3, MembershipGroup(4, **FAST))
    world.join("d")
    world.wait(lambda: bool(world.hosts["d"].views))
    world.crash("a")
    assert "d" not in members(world, "b")
    since_ns = world.now_ns
    assert world.settle() < 3
    assert frames_of(world, Join, "d", since_ns=since_ns)
    assert world["d"].me.incarnation == 1
    assert members(world, "d") == ["b", "c", "d"]


@pytest.mark.behaviour("G-08")
def test_one_that_has_founded_a_group_does_not_follow_a_view_that_comes_too_late() -> None:
    """Two groups become one by a merge, never by joining each other."""
    world = gathered(2, MembershipGroup(3, **FAST))
    world.delay = lambda _, target, frame: (
        300 * MS if target == "c" and isinstance(frame, NewView) else 0
    )
    world.drop = lambda source, target, frame: (
        (target == "c" and isinstance(frame, Alive | Beacon))
        or (source == "c" and isinstance(frame, Alive))
    )
    world.join("c")
    world.wait(lambda: len(world.hosts["c"].views) == 1, 2)
    world.run(1)
    assert [len(view.members) for view in world.hosts["c"].views] == [1]
    assert members(world, "a") == ["a", "b"]
    world.drop = lambda *_: False
    assert world.settle() < 2
    check_views(world)


@pytest.mark.behaviour("G-01")
def test_old_members_hear_of_a_joiner_only_when_it_has_confirmed() -> None:
    """A joiner that cannot answer is in no view, so no sender waits for its acks."""
    world = gathered(3, MembershipGroup(4, **FAST))
    views = {name: len(world.hosts[name].views) for name in "abc"}
    world.drop = lambda source, _, frame: source == "d" and not isinstance(frame, Join)
    world.join("d")
    world.run(3)
    assert {name: len(world.hosts[name].views) for name in "abc"} == views
    world.heal()
    world.drop = lambda *_: False
    world.settle()
    assert members(world, "a") == ["a", "b", "c", "d"]


@pytest.mark.behaviour("G-01")
def test_a_joiner_that_dies_after_its_first_word_is_never_noticed() -> None:
    world = gathered(3, MembershipGroup(4, **FAST))
    views = {name: len(world.hosts[name].views) for name in "abc"}
    world.join("d")
    world.run(0.002)
    world.crash("d")
    world.run(5)
    assert {name: len(world.hosts[name].views) for name in "abc"} == views
    assert world["a"].membership.coordinator.joiners == {}


@pytest.mark.behaviour("G-01")
@pytest.mark.parametrize("lost", [NewView, Alive], ids=["view", "confirmation"])
def test_a_lost_view_or_confirmation_of_a_joiner_is_made_good_before_it_is_given_up(
    lost: type,
) -> None:
    world = gathered(1, MembershipGroup(4, **{**FAST, "join_confirm_timeout": "20s"}))
    left = {"b", "d"}

    def drop(source: str, target: str, frame: Frame) -> bool:
        """Lose the first one of each of two joiners."""
        joiner = target if lost is NewView else source
        if isinstance(frame, lost) and joiner in left:
            left.discard(joiner)
            return True
        return False

    world.drop = drop
    world.join("b", "c", "d")
    assert world.settle() < 3
    assert not left
    assert {len(world.hosts[name].views) for name in "bcd"} == {1}
    views = [
        view for _, source, _, view in world.sent if source == "a" and isinstance(view, NewView)
    ]
    assert len(views) < 20


@pytest.mark.behaviour("G-01")
def test_a_coordinator_that_waits_for_a_joiner_is_not_taken_for_dead_by_the_others() -> None:
    world = gathered(1, MembershipGroup(4, **{**FAST, "join_confirm_timeout": "3s"}))
    world.join("b", "c", "d")
    world.run(0.001)
    world.crash("b")
    world.settle()
    assert world.now_ns > 3 * S
    assert members(world, "c") == ["a", "c", "d"]
    assert not events(world, "a", Expelled)


def _away(world: MembershipGroup) -> list[str]:
    """Return the durable names that a retains messages for."""
    roster = world["a"].roster
    assert roster is not None
    return [place.name for place in roster.absent]


def _missed(world: MembershipGroup) -> None:
    """Let b and c join a; the durable c cannot confirm, until a view is made without it."""
    world.drop = lambda source, _, frame: source == "c" and not isinstance(frame, Join)
    world.join("b")
    world.join("c", durable="reader")
    world.wait(lambda: world["b"].view is not None)
    assert set(members(world, "b")) == {"a", "b", "c"}
    world.wait(lambda: members(world, "a") == members(world, "b") == ["a", "b"])
    world.drop = lambda *_: False


@pytest.mark.behaviour("G-01")
def test_the_place_of_a_durable_joiner_that_others_have_seen_is_kept() -> None:
    world = gathered(1, MembershipGroup(3, **FAST))
    _missed(world)
    assert _away(world) == ["reader"]
    for name in "ab":
        ready = world.send(name, f"of {name}".encode(), mode="acknowledged")
        assert not [event for event in ready.events if isinstance(event, Acknowledged)]
    world.settle()
    world.run(1)
    assert sorted(world.hosts["c"].got) == [("a", b"of a"), ("b", b"of b")]
    assert all(events(world, name, Acknowledged) for name in "ab")
    assert not events(world, "c", Lost)


@pytest.mark.behaviour("G-01")
def test_a_durable_joiner_that_nobody_has_seen_has_no_place_to_keep() -> None:
    world = gathered(1, MembershipGroup(2, **FAST))
    world.join("b", durable="reader")
    world.run(0.002)
    world.crash("b")
    world.run(5)
    assert _away(world) == []
    assert world.send("a", b"x", mode="acknowledged").ticket


@pytest.mark.behaviour("G-01")
def test_a_kept_place_gives_way_to_the_same_life_under_another_name() -> None:
    world = gathered(1, MembershipGroup(3, **FAST))
    _missed(world)
    place = RosterEntry(world["c"].me, "", b"c")
    world.crash("c")
    say(world, "a", place.address, Join(place))
    say(
        world,
        "a",
        place.address,
        Alive(place.address, ViewId(2, world["a"].me), includes_receiver=True),
    )
    world.wait(lambda: members(world, "a") == ["a", "b", "c"])
    assert _away(world) == []


@pytest.mark.behaviour("G-03")
def test_a_joiner_takes_no_roster_in_which_it_is_not() -> None:
    world = gathered(2, MembershipGroup(3, **FAST))
    world.part("ab", "c")
    world.join("c")
    roster = world["a"].roster
    assert roster is not None
    frame = frames_of(world, NewView, "a")[-1]
    say(world, "c", world["a"].me, frame)
    assert world["c"].pending is None
    assert world["c"].phase == "joining"


@pytest.mark.behaviour("J-01", "P-17")
def test_before_the_first_view_nothing_is_delivered_and_nothing_can_be_sent() -> None:
    world = gathered(2, MembershipGroup(3, **FAST))
    for number in range(20):
        world.send("a", b"before %d" % number)
    world.join("c")
    with pytest.raises(LocalProtocolError, match="has no view yet"):
        world["c"].send([b"x"], world.now_ns)
    world.settle()
    world.send("a", b"after")
    world.run(1)
    assert world.hosts["c"].got == [("a", b"after")]
    assert isinstance(world.hosts["c"].order[0], View)  # the view comes first


@pytest.mark.behaviour("J-01")
def test_what_is_sent_in_the_view_before_the_joiner_has_it_is_kept_for_it() -> None:
    """An old member sends in the view before the joiner has installed it; nothing is lost."""
    world = gathered(1, MembershipGroup(2, **FAST), tail_delay="5s")
    world.join("b")
    world.wait(lambda: world["a"].pending is not None or len(members(world, "a")) == 2)
    world.settle()
    for number in range(10):
        world.send("a", b"%d" % number)
    world.run(0.1)
    assert world.hosts["b"].got == [("a", b"%d" % number) for number in range(10)]


@pytest.mark.behaviour("P-01", "P-17", "G-02")
@pytest.mark.parametrize("view_delay_ns", [0, 150 * MS])
@pytest.mark.parametrize("profile", ["nakack4", "nakack"])
def test_joins_under_full_load_with_late_views_stop_nobody(
    view_delay_ns: int, profile: str
) -> None:
    """A fast sender gets the view late, so that it purges without the acks of the joiner."""
    world = gathered(
        2, MembershipGroup(4, **{**FAST, "profile": profile, "capacity": 16, "suspect_after": "3s"})
    )
    sent = {"count": 0}

    def pump(milliseconds: int) -> None:
        for _ in range(milliseconds):
            world.send("b", b"%d" % sent["count"])
            sent["count"] += 1
            world.run(0.001)

    world.delay = lambda _, target, frame: (
        view_delay_ns if isinstance(frame, NewView) and target == "b" else 0
    )
    for name in "cd":
        world.join(name)
        pump(300)
        assert world[name].phase == "member"
    world.settle()
    pump(50)
    world.run(3)
    everything = [b"%d" % number for number in range(sent["count"])]
    assert [message for origin, message in world.hosts["a"].got if origin == "b"] == everything
    for name in "cd":
        got = [message for origin, message in world.hosts[name].got if origin == "b"]
        assert got
        assert got == everything[-len(got) :]  # from its start on, all of it, in order
    check_no_twice(world)


@pytest.mark.behaviour("P-01")
@pytest.mark.parametrize("seed", range(5))
def test_a_join_at_a_full_window_under_loss_loses_nothing(seed: int) -> None:
    world = gathered(
        3, MembershipGroup(4, **{**FAST, "capacity": 8, "suspect_after": "3s"}, seed=seed)
    )
    lossy(world, 0.2, seed)
    for number in range(100):
        world.send("b", b"%d" % number)
    world.join("d")
    world.settle()
    for number in range(100, 150):
        world.send("b", b"%d" % number)
    world.run(10)
    everything = [b"%d" % number for number in range(150)]
    assert [message for origin, message in world.hosts["c"].got if origin == "b"] == everything
    got = [message for origin, message in world.hosts["d"].got if origin == "b"]
    assert len(got) >= 50
    assert got == everything[-len(got) :]


@pytest.mark.behaviour("G-06", "G-05")
def test_every_stream_of_a_joiner_starts_where_its_sender_says() -> None:
    world = gathered(3, MembershipGroup(4, **FAST))
    for name, count in (("a", 3), ("b", 5), ("c", 0)):
        for number in range(count):
            world.send(name, b"%d" % number)
    world.run(0.5)
    world.join("d")
    world.settle()
    world.run(0.5)
    started = {event.origin: event.start for event in events(world, "d", Started)}
    assert started == {world["a"].me: 3, world["b"].me: 5, world["c"].me: 0}
    # Streams between old members continue without a new start.
    assert {event.origin for event in events(world, "a", Started)} == {
        world[name].me for name in "bcd"
    }
    assert len(events(world, "a", Started)) == 3


def crash_points(count: int, victim: str) -> int:
    """Return how many datagrams arrive until a join of one more member has settled."""
    world = gathered(count, MembershipGroup(count + 1, **FAST))
    timer = ArrivalTimer(world)
    world.join(victim)
    world.settle()
    world.run(0.05)
    return timer.arrived


@pytest.mark.parametrize("dies", ["a", "b", "d"])
def test_a_death_at_any_step_of_a_join_leaves_one_view_of_the_living(dies: str) -> None:
    """The coordinator, another member or the joiner crashes before the n-th datagram, for any n."""
    points = crash_points(3, "d")
    assert points > 10
    worst = 0.0
    for point in range(points + 1):
        world = gathered(3, MembershipGroup(4, **FAST))
        ArrivalTimer(world).before(point, partial(world.crash, dies))
        world.join("d")
        world.run(0.6)
        worst = max(worst, world.settle(10))
        check_views(world)
        world.run(1)
        assert world.is_one(), world.show()
        assert world.hosts[dies].member is None or point >= points
    assert worst < 4


def test_the_founder_dies_at_any_step_of_the_first_join() -> None:
    for point in range(40):
        world = MembershipGroup(3, **FAST)
        world.join("a")
        world.settle()
        ArrivalTimer(world).before(point, partial(world.crash, "a"))
        world.join("b", "c")
        world.run(0.5)
        if world.hosts["a"].member is not None:
            world.crash("a")
        assert world.settle(10) < 5
        assert sorted(members(world, "b")) == ["b", "c"]


def test_a_joiner_reaches_a_coordinator_that_does_not_hear_it_by_way_of_another_member() -> None:
    """Only b receives the join request; b relays it, and the coordinator answers directly."""
    world = gathered(2, MembershipGroup(3, **FAST))
    world.drop = lambda source, target, frame: (
        source == "c" and target == "a" and isinstance(frame, Join)
    )
    world.join("c")
    assert world.settle() < 1


def test_members_are_located_before_anything_is_sent_to_them() -> None:
    world = gathered(3)
    for name in "abc":
        where = {event.address: event.locator for event in events(world, name, Located)}
        for other in "abc":
            if other != name:
                assert where[world[other].me] == other.encode()


@pytest.mark.behaviour("J-04", "P-02")
def test_a_restart_at_the_same_place_before_anybody_noticed_takes_the_place_of_the_old_life() -> (
    None
):
    world = gathered(3)
    for number in range(10):
        world.send("c", b"old %d" % number)
    world.run(0.5)
    old = world["c"].me
    world.crash("c")
    world.join("c")
    assert world.settle() < 0.5  # long before the silence of the old life was noticed
    assert old not in world["a"].view.members  # type: ignore[union-attr]
    world.send("c", b"new")
    world.send("a", b"to the new one")
    world.run(1)
    assert set(world.hosts["a"].got[-2:]) == {("c", b"new"), ("a", b"to the new one")}
    assert ("a", b"to the new one") in world.hosts["c"].got


@pytest.mark.behaviour("P-02", "J-03", "J-05")
def test_late_frames_of_the_former_life_change_nothing() -> None:
    world = gathered(3)
    old = world["c"].me
    world.send("a", b"1", b"2", b"3")
    world.run(0.5)
    world.crash("c")
    world.join("c")
    world.settle()
    world.run(0.5)
    roster = world["a"].roster
    assert roster is not None
    state = world["a"].view, world["a"].outbound.window.low, len(world.hosts["a"].views)
    for frame in (
        Alive(old, roster.id, True),
        Join(RosterEntry(old, "", b"c")),
        Join(RosterEntry(old, "", b"c"), True),
    ):
        say(world, "a", old, frame)
    world.run(1)
    assert (world["a"].view, world["a"].outbound.window.low, len(world.hosts["a"].views)) == state
    assert world.is_one()


def test_one_that_leaves_while_it_joins_is_gone_at_once() -> None:
    world = gathered(2, MembershipGroup(3, **FAST))
    views = len(world.hosts["a"].views)
    world.join("c")
    world.leave("c")
    assert world.hosts["c"].member is None
    assert events(world, "c", Left) == [Left(True)]
    world.run(3)
    assert world.is_one()
    assert len(world.hosts["a"].views) == views


def test_one_life_joins_once() -> None:
    world = gathered(1)
    with pytest.raises(LocalProtocolError, match="has joined before"):
        world["a"].join(world.now_ns)


def test_a_flood_of_joins_of_nobody_is_bounded_and_does_not_stop_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "_MAX_JOINERS", 30)
    monkeypatch.setattr(view_transfer, "_MAX_LOCATED", 60)
    monkeypatch.setattr(membership, "_MAX_JOINERS", 40)
    world = gathered(3)
    before = {name: len(world.hosts[name].views) for name in world.hosts}
    for number in range(200):
        ghost = Address(10_000 + number, 1)
        world["a"].receive(_datagram(ghost, Join(RosterEntry(ghost, "", b"nowhere"))), world.now_ns)
    assert len(world["a"].membership.coordinator.joiners) == 30
    assert world["a"].counters["dropped.crowded"] == 170
    assert len(world["a"].membership.view_transfer._located) == 60
    assert len(world["a"].membership._asked_ns) <= 40
    world.sent.clear()
    world.send("a", b"goes through")
    world.run(0.5)
    assert all(world.hosts[name].got[-1] == ("a", b"goes through") for name in before)
    world.run(3)
    assert {name: len(world.hosts[name].views) for name in before} == before
    assert world["a"].membership.coordinator.joiners == {}


def test_a_flood_of_joins_is_relayed_only_in_part() -> None:
    world = gathered(3)
    member, relayed = world["b"], 0
    for number in range(1000):
        ghost = Address(10_000 + number, 1)
        join = Join(RosterEntry(ghost, "", b"nowhere"), relay=True)
        ready = member.receive(_datagram(ghost, join), world.now_ns)
        relayed += sum(to == world["a"].me for to, _ in ready.transmits)
    assert relayed == 512
    assert member.counters["dropped.crowded"] == 1000 - 512


def _datagram(sender: Address, frame: Join | Alive) -> bytes:

    return encode(GROUP, sender, (frame,))


def test_confirmations_of_nobody_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_MAX_JOINERS", 30)
    world = gathered(2)
    me = world["a"].me
    for number in range(100):
        ghost = Address(10_000 + number, 1)
        world["a"].receive(_datagram(ghost, Alive(ghost, ViewId(5, me), True)), world.now_ns)
    assert len(world["a"].membership.coordinator._last_confirmed_ns) == 30


@pytest.mark.behaviour("J-02", "P-21")
def test_what_is_sent_in_answer_to_the_first_view_reaches_everybody() -> None:
    """The application may send in its first view; old members have that view by then, or wait."""
    world = gathered(2, MembershipGroup(3, **FAST))
    world.join("c")
    world.wait(lambda: bool(events(world, "c", ViewInstalled)))
    world.send("c", b"hello")
    world.settle()
    world.run(1)
    assert all(("c", b"hello") in world.hosts[name].got for name in "abc")
    assert not any(isinstance(frame, Data) for _, name, _, frame in world.sent if name in "ab")


def test_members_that_join_at_once_ask_nobody_for_a_start_before_they_are_admitted() -> None:
    """One of them does not confirm, and the others wait; each asked each other all the while."""
    world = gathered(2, MembershipGroup(10, **FAST))
    since_ns, last = world.now_ns, "j"
    world.drop = lambda _, target, frame: target == last and isinstance(frame, NewView)
    world.join(*"cdefghij")
    for number in range(10):
        world.send("a", b"%d" % number)
        world.run(0.05)
    world.drop = lambda *_: False
    world.settle()
    world.run(1)
    assert not frames_of(world, Nak, since_ns=since_ns)
    for name in world.hosts:
        starts = world[name].endpoint.stream_starts()
        assert len(starts) == 9
        assert None not in starts.values()
