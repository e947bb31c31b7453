"""Failure detection: heartbeats ride on data, suspicion is verified, own pauses do not count."""

from __future__ import annotations

import pytest

from gapless.errors import LocalProtocolError
from gapless.protocol.events import Accepted, Expelled, SlowReceivers, Suspected
from gapless.wire.frames import Ack, Alive, Suspect
from tests.support.membership_checks import (
    FAST,
    check_views,
    events,
    frames_of,
    gathered,
    lossy,
    members,
    say,
)
from tests.support.virtual_group import SECOND as S
from tests.support.virtual_membership import MembershipGroup


def all_events(world: MembershipGroup, kind: type) -> list[object]:
    return [event for name in world.hosts for event in events(world, name, kind)]


def test_a_silent_group_shows_life_once_per_interval_to_each_watcher() -> None:
    world = gathered(5)
    since_ns = world.now_ns
    world.run(10)
    beats = len(frames_of(world, Alive, since_ns=since_ns))
    assert 0.9 * 5 * 2 * 100 <= beats <= 1.1 * 5 * 2 * 100  # members x monitors x intervals
    assert not all_events(world, Suspected)


def test_each_member_is_watched_by_as_many_as_the_knob_says() -> None:
    for monitors in (1, 3):
        world = gathered(6, MembershipGroup(6, **FAST, monitors=monitors))
        since_ns = world.now_ns
        world.run(5)
        beats = len(frames_of(world, Alive, since_ns=since_ns))
        assert 0.9 * 6 * monitors * 50 <= beats <= 1.1 * 6 * monitors * 50


def test_data_traffic_carries_the_signs_of_life() -> None:
    world = gathered(4)
    since_ns = world.now_ns
    for number in range(200):
        for name in "abcd":
            world.send(name, b"%d" % number)
        world.run(0.02)
    assert len(frames_of(world, Alive, since_ns=since_ns)) <= 8  # the first interval
    assert not all_events(world, Suspected)


@pytest.mark.parametrize("dead", ["a", "b", "e"])
def test_a_dead_member_is_out_within_the_time_that_the_knobs_say(dead: str) -> None:
    world = gathered(5)
    world.crash(dead)
    # silence 0.5 s + a question 0.1 s + the coordinator's own question 0.1 s, each up to one
    # heartbeat late
    assert world.settle() < 0.5 + 3 * 0.1 + 3 * 0.1
    check_views(world)


def test_a_death_is_not_believed_before_the_silence_and_a_question_without_an_answer() -> None:
    world = gathered(3)
    world.crash("c")
    world.run(0.39)  # its last sign of life is up to one heartbeat old
    assert not all_events(world, Suspected)
    world.wait(lambda: bool(all_events(world, Suspected)), 0.2)
    world.run(0.09)
    assert members(world, "a") == ["a", "b", "c"]


@pytest.mark.parametrize("dead", ["bc", "ab", "abc", "bd", "abcd"])
def test_several_that_die_at_once(dead: str) -> None:
    world = gathered(5)
    world.crash(*dead)
    assert world.settle() < 3
    check_views(world)


@pytest.mark.behaviour("P-03")
@pytest.mark.parametrize("dead", ["bc", "ab"])
def test_two_suspects_at_once_with_full_windows_release_every_sender(dead: str) -> None:
    world = gathered(4, MembershipGroup(4, **FAST, capacity=4))
    world.crash(*dead)
    living = [name for name in world.hosts if name not in dead]
    tickets = {
        name: [world.send(name, b"%d" % number).ticket for number in range(30)] for name in living
    }
    accepted = {name: len(events(world, name, Accepted)) for name in living}
    assert max(accepted.values()) == 4
    world.settle()
    world.run(1)
    for name in living:
        assert {event.ticket for event in events(world, name, Accepted)} == set(tickets[name])
        for other in living:
            got = [message for origin, message in world.hosts[other].got if origin == name]
            assert got == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize(
    "link", [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "d")]
)
def test_a_broken_link_between_two_members_expels_nobody_but_the_one_that_does_not_hear(
    link: tuple[str, str],
) -> None:
    """The coordinator verifies the suspicion of a watcher that receives nothing any more."""
    world = gathered(4)
    world.drop = lambda source, target, _: (source, target) == link
    world.run(2)
    if "a" in link:
        return_to_one(world)
        return
    assert all_events(world, Suspected)
    assert frames_of(world, Suspect)
    hearing = set(world.hosts) - {link[1]}
    assert not any(events(world, name, Expelled) for name in hearing)
    assert set(members(world, "a")) == hearing


def return_to_one(world: MembershipGroup) -> None:
    """A member that cannot reach the coordinator, or the reverse, is out only for a while."""
    world.drop = lambda *_: False
    assert world.settle() < 5
    check_views(world)


def test_a_broken_link_does_not_make_a_storm_of_suspicions() -> None:
    world = gathered(4)
    world.drop = lambda source, target, _: (source, target) == ("b", "c")
    world.run(10)
    assert len(frames_of(world, Suspect)) <= 10 * 20 + 5  # two per heartbeat at most


def test_signs_of_life_survive_loss() -> None:
    """With ``suspect_after`` of ten heartbeats, a loss of a third expels no member."""
    world = gathered(
        4, MembershipGroup(4, **{**FAST, "suspect_after": "1s", "verify_timeout": "300ms"})
    )
    lossy(world, 0.3)
    world.run(30)
    assert not all_events(world, Expelled)


def test_one_that_was_paused_does_not_suspect_the_others_when_it_wakes() -> None:
    world = gathered(3, MembershipGroup(3, **{**FAST, "suspect_after": "5s"}))
    world.pause("a")
    world.run(4)
    # Datagrams during the pause are lost, as in a full socket buffer.
    world.inboxes["a"].clear()
    world.resume("a")
    world.run(2)
    assert not events(world, "a", Suspected)
    assert world.is_one()


def test_everybody_pauses_at_once_as_a_sleeping_laptop_does() -> None:
    """The clock jumps by an hour for all; there is no suspicion."""
    world = gathered(4)
    views = {name: len(world.hosts[name].views) for name in world.hosts}
    for name in world.hosts:
        world.pause(name)
    world.run(3600)
    for inbox in world.inboxes.values():
        inbox.clear()
    for name in world.hosts:
        world.resume(name)
    world.run(5)
    assert not all_events(world, Suspected)
    assert {name: len(world.hosts[name].views) for name in world.hosts} == views


def test_ticks_that_come_late_now_and_then_expel_nobody() -> None:
    world = gathered(4)
    world.tick_delay_ns["b"] = S // 4
    world.run(20)
    assert not all_events(world, Expelled)
    assert world.is_one()


@pytest.mark.behaviour("P-03")
@pytest.mark.parametrize(("policy", "named"), [("warn", 2), ("wait", 1)])
def test_a_member_that_pins_the_window_is_named(policy: str, named: int) -> None:
    world = gathered(
        3,
        MembershipGroup(
            3,
            **FAST,
            capacity=4,
            on_slow_receiver=policy,
            slow_receiver_after="300ms",
            xmit_interval="150ms",
        ),
    )
    slow = world["c"].me
    world.drop = lambda source, _, frame: source == "c" and isinstance(frame, Ack)
    for number in range(10):
        world.send("a", b"%d" % number)
    world.run(5)
    pinned = events(world, "a", SlowReceivers)
    assert all(event.members == (slow,) for event in pinned)
    assert len(pinned) == named if policy == "wait" else len(pinned) >= named
    assert members(world, "a") == ["a", "b", "c"]
    world.drop = lambda *_: False
    world.run(3)
    assert world.hosts["c"].got == [("a", b"%d" % number) for number in range(10)]


@pytest.mark.behaviour("P-03")
@pytest.mark.parametrize("sender", ["a", "b"])
def test_a_member_that_pins_the_window_is_expelled_where_the_policy_says_so(sender: str) -> None:
    world = gathered(
        4,
        MembershipGroup(
            4,
            **FAST,
            capacity=4,
            on_slow_receiver="expel",
            slow_receiver_after="300ms",
            xmit_interval="150ms",
        ),
    )
    slow = world["d"].me
    world.drop = lambda source, _, frame: source == "d" and isinstance(frame, Ack)
    for number in range(10):
        world.send(sender, b"%d" % number)
    world.wait(lambda: slow not in world["a"].view.members, 2)  # type: ignore[union-attr]
    world.drop = lambda *_: False
    world.run(2)
    assert len(events(world, sender, Accepted)) == 10
    assert events(world, "d", Expelled)
    assert world["d"].me.incarnation == 2
    assert world.is_one()


def test_members_that_pin_are_not_expelled_if_they_are_no_minority() -> None:
    world = gathered(
        4,
        MembershipGroup(
            4,
            **FAST,
            capacity=4,
            on_slow_receiver="expel",
            slow_receiver_after="300ms",
            xmit_interval="150ms",
        ),
    )
    world.drop = lambda source, _, frame: source in "cd" and isinstance(frame, Ack)
    for number in range(10):
        world.send("a", b"%d" % number)
    world.run(5)
    assert members(world, "a") == ["a", "b", "c", "d"]
    assert world["a"].counters["dropped.expel"] > 0


@pytest.mark.parametrize("asks", ["a", "b"])
def test_the_application_expels_a_member_that_then_comes_back_as_a_new_one(asks: str) -> None:
    world = gathered(4)
    old = world["c"].me
    world.process(asks, world[asks].expel(old, world.now_ns))
    world.wait(lambda: world.hosts["c"].incarnation == 2, 1)
    assert events(world, "c", Expelled)
    world.settle()
    assert members(world, "a") == ["a", "b", "d", "c"]


def test_expel_refuses_what_makes_no_sense() -> None:
    world = gathered(2)
    stranger = world["b"].me._replace(incarnation=9)
    for who in (world["a"].me, stranger):
        with pytest.raises(LocalProtocolError, match="not another member"):
            world["a"].expel(who, world.now_ns)
    # One of two members is not a minority: there is no expulsion.
    world.process("a", world["a"].expel(world["b"].me, world.now_ns))
    world.run(2)
    assert world.is_one()
    assert not events(world, "b", Expelled)


def test_expel_never_takes_a_majority_even_bit_by_bit() -> None:
    world = gathered(5)
    for name in "bcde":
        if world["a"].view is not None and world[name].me in world["a"].view.members:
            world.process("a", world["a"].expel(world[name].me, world.now_ns))
    world.run(0.05)
    assert len(members(world, "a")) >= 3


@pytest.mark.parametrize("place", [0, 5, 14])
def test_many_that_die_at_once_are_out_in_at_most_twice_the_time_of_one(place: int) -> None:
    """The watchers of most of the dead are dead, too: the live ones have to watch further."""

    def time_s(count: int) -> float:
        world = MembershipGroup(30, **FAST)
        world.join(*world.hosts)
        world.settle()
        world.run(1)
        world.crash(*list(world.hosts)[place : place + count])
        return world.settle(20)

    assert time_s(16) <= 2 * time_s(1)


def test_a_verdict_that_is_overdue_when_a_view_arrives_stays_due() -> None:
    world = gathered(3)
    detector, now_ns = world["a"].failure_detector, world.now_ns
    say(world, "a", world["b"].me, Suspect(world["b"].me, (world["c"].me,)))
    late_ns = now_ns + 2 * detector.config.verify_timeout_ns
    view = world["a"].view
    assert view is not None
    detector.install(view.id, view.members, late_ns)
    detector.check_invariants()
    assert detector.due_ns == now_ns + detector.config.verify_timeout_ns


def test_members_are_asked_beyond_a_silent_one_only_until_it_replies() -> None:
    """A lost heartbeat widens nothing for long: afterwards each member has two watchers."""
    world = gathered(8)
    world.drop = lambda source, _, frame: source == "c" and isinstance(frame, Alive)
    world.run(0.35)
    world.drop = lambda *_: False
    world.run(1)
    before = len(frames_of(world, Alive))
    world.run(2)
    assert len(frames_of(world, Alive)) - before <= 8 * 2 * (2 / 0.1 + 1)
    assert not all_events(world, Expelled)


@pytest.mark.parametrize("paused_s", [0.2, 0.45])
def test_a_coordinator_that_is_paused_briefly_stays_though_a_member_dies(paused_s: float) -> None:
    """The report of the death finds no coordinator: its silence counts from then on only."""
    world = gathered(6)
    world.crash("d")
    world.wait(lambda: bool(world["e"].failure_detector.dead), 2)
    world.pause("a")
    world.run(paused_s)
    world.resume("a")
    world.settle()
    assert not all_events(world, Expelled)
