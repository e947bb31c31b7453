"""Evidence of deaths: hints are verified at once, and the word of a deaf member does not count."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from gapless.identity import Address
from gapless.protocol.events import Expelled, Suspected, Unheard
from gapless.protocol.membership.failure_detector import REPLY_TIME_NS, DeathEvidence
from gapless.wire.codec import decode
from gapless.wire.frames import Alive
from tests.support.membership_checks import FAST, check_views, events, gathered, members
from tests.support.virtual_group import MS
from tests.support.virtual_membership import MembershipGroup

if TYPE_CHECKING:
    from gapless.protocol.ready import Ready
    from gapless.wire.frames import Frame

SLOW = {**FAST, "heartbeat_interval": "2s", "suspect_after": "10s", "verify_timeout": "2s"}


def hint(world: MembershipGroup, at: str, of: str, evidence: DeathEvidence) -> None:
    address = next(m for m in world[at].membership.members if m.node == world.hosts[of].node)
    world.step(at, lambda member: member.note_evidence(address, evidence, world.now_ns))


def refuse_questions(
    world: MembershipGroup, *dead: str, evidence: DeathEvidence = DeathEvidence.REFUSED
) -> None:
    """Let the hosts of the dead refuse every datagram that asks for a reply."""

    nodes = {world.hosts[name].node: name for name in dead}

    def refuse(at: str, ready: Ready) -> None:
        for to, data in ready.transmits:
            asks = any(
                isinstance(frame, Alive) and frame.reply_wanted for frame in decode(data).frames
            )
            if asks and to is not None and to.node in nodes:
                world.at(world.now_ns + MS, partial(_refused, world, at, nodes[to.node], evidence))

    world.observers.append(refuse)


def _refused(world: MembershipGroup, at: str, of: str, evidence: DeathEvidence) -> None:
    member = world.members.get(at)
    if member is not None and any(
        m.node == world.hosts[of].node for m in member.membership.members
    ):
        hint(world, at, of, evidence)


@pytest.mark.parametrize("dead", ["a", "b", "d"])
@pytest.mark.parametrize("evidence", list(DeathEvidence))
def test_a_death_with_evidence_is_out_long_before_the_silence_is_noticed(
    dead: str, evidence: DeathEvidence
) -> None:
    """One member has the hint; whoever hears of it asks, and the refusals are proof."""
    world = gathered(4, MembershipGroup(4, **SLOW))
    refuse_questions(world, dead)
    world.crash(dead)
    hint(world, "c", dead, evidence)
    assert world.settle() < 0.3
    check_views(world)


@pytest.mark.parametrize("dead", ["a", "b", "d"])
@pytest.mark.parametrize("refuses_all", [True, False])
def test_a_death_with_refusals_that_may_be_forged_is_out_within_a_second(
    dead: str, refuses_all: bool
) -> None:
    """The questions are not answered, however few of them are refused."""
    world = gathered(4, MembershipGroup(4, **SLOW))
    if refuses_all:
        refuse_questions(world, dead, evidence=DeathEvidence.REJECTED)
        hinted = "c"
    else:
        hinted = "abcd"
    world.crash(dead)
    for name in hinted:
        if name != dead:
            hint(world, name, dead, DeathEvidence.REJECTED)
    assert REPLY_TIME_NS / 1e9 <= world.settle() < 1
    check_views(world)


def test_forged_refusals_expel_nobody_although_questions_and_answers_are_lost() -> None:
    """The refusals go on for ever, and the network loses a fifth of what it carries."""
    world = gathered(4)
    rng = Random(5)

    def lose(source: str, target: str, frame: Frame) -> bool:
        return rng.random() < 0.2

    world.drop = lose
    for _ in range(100):
        hint(world, "c", "d", DeathEvidence.REJECTED)
        world.run(0.05)
    assert not any(events(world, name, Expelled) for name in "abcd")
    assert members(world, "a") == ["a", "b", "c", "d"]


def test_all_of_many_deaths_with_evidence_are_out_at_once() -> None:
    world = MembershipGroup(30, **SLOW)
    world.join(*world.hosts)
    world.settle()
    dead = list(world.hosts)[5:21]
    refuse_questions(world, *dead)
    world.crash(*dead)
    for name in dead:
        hint(world, "a", name, DeathEvidence.CLOSED)
    assert world.settle() < 0.3


@pytest.mark.parametrize("evidence", list(DeathEvidence))
def test_a_false_hint_expels_nobody(evidence: DeathEvidence) -> None:
    world = gathered(4)
    for _ in range(50):
        for name in "abd":
            hint(world, "c", name, evidence)
        world.run(0.05)
    assert not any(events(world, name, Expelled) for name in "abcd")
    assert not any(events(world, name, Suspected) for name in "abcd")
    assert members(world, "a") == ["a", "b", "c", "d"]


def test_a_hint_about_a_paused_member_expels_nobody() -> None:
    """The member is paused for less than ``suspect_after``, and answers when it wakes."""
    world = gathered(4)
    world.pause("d")
    for _ in range(8):
        hint(world, "a", "d", DeathEvidence.CLOSED)
        hint(world, "c", "d", DeathEvidence.EXITED)
        world.run(0.05)
    world.resume("d")
    world.run(2)
    assert not any(events(world, name, Expelled) for name in "abcd")


def test_hints_about_strangers_and_of_one_that_is_over_change_nothing() -> None:
    world = gathered(3)
    stranger = world["a"].me._replace(node=99)
    for evidence in DeathEvidence:
        world.process("a", world["a"].note_evidence(stranger, evidence, world.now_ns))
    left = world["c"]
    world.leave("c")
    world.wait(lambda: world.hosts["c"].member is None)
    assert not left.note_evidence(world["a"].me, DeathEvidence.REFUSED, world.now_ns).transmits
    assert members(world, "a") == ["a", "b"]


@pytest.mark.parametrize("deaf", "abcd")
def test_a_member_that_hears_nobody_expels_nobody(deaf: str) -> None:
    """The others hear it well, and go on without it: nobody can verify its word."""
    world = gathered(4)
    world.drop = lambda _, target, __: target == deaf
    hearing = [name for name in "abcd" if name != deaf]
    world.wait(lambda: all(members(world, name) == hearing for name in hearing), 5)
    world.run(3)
    assert not any(events(world, name, Expelled) for name in "abcd")
    assert members(world, deaf) == [deaf]
    world.drop = lambda *_: False
    world.settle()
    assert not any(events(world, name, Expelled) for name in "abcd")


@pytest.mark.parametrize("deaf", "ab")
def test_of_two_members_the_deaf_one_cannot_expel_the_other(deaf: str) -> None:
    world = gathered(2)
    other = "b" if deaf == "a" else "a"
    world.drop = lambda _, target, __: target == deaf
    world.wait(lambda: members(world, other) == [other], 5)
    assert not events(world, other, Expelled)


@pytest.mark.parametrize(("sender", "receiver"), [("b", "c"), ("c", "d"), ("b", "d")])
def test_one_broken_direction_between_two_members_expels_the_one_that_does_not_hear(
    sender: str, receiver: str
) -> None:
    """Its reports are refuted; it stays out for a while, and comes back when the link is mended."""
    world = gathered(4)
    world.drop = lambda source, target, _: (source, target) == (sender, receiver)
    stay = [name for name in "abcd" if name != receiver]
    world.wait(lambda: all(members(world, name) == stay for name in stay), 3)
    assert events(world, "a", Unheard) == [
        Unheard(world[sender].me, Address(world.hosts[receiver].node, 1))
    ]
    assert not any(events(world, name, Expelled) for name in stay)
    world.run(1)
    assert all(members(world, name) == stay for name in stay), "it is kept out for a while"
    world.drop = lambda *_: False
    world.settle()


def test_a_member_that_half_of_the_others_do_not_hear_is_expelled_itself() -> None:
    world = gathered(5)
    world.drop = lambda source, target, _: source == "c" and target in "bde"
    world.wait(lambda: members(world, "a") == ["a", "b", "d", "e"], 3)
    assert not any(events(world, name, Expelled) for name in "abde")


@pytest.mark.parametrize(("count", "receiver"), [(4, "d"), (6, "e")])
def test_a_sender_is_not_blocked_for_longer_than_a_detection_by_one_that_does_not_hear_it(
    count: int, receiver: str
) -> None:
    """In the group of six the receiver does not watch the sender: only the sender can notice."""
    knobs = {**FAST, "slow_receiver_after": "500ms", "capacity": 4}
    world = gathered(count, MembershipGroup(count, **knobs))
    world.drop = lambda source, target, _: (source, target) == ("b", receiver)
    for number in range(20):
        world.send("b", b"%d" % number)
    world.wait(lambda: world["b"].waiting_sends == 0, 3)
    world.run(0.5)
    got = [message for origin, message in world.hosts["a"].got if origin == "b"]
    assert got == [b"%d" % number for number in range(20)]


def test_a_receiver_that_reads_nothing_hears_its_sender_and_stays() -> None:
    knobs = {**FAST, "slow_receiver_after": "300ms", "capacity": 4, "unread_limit": 4}
    world = gathered(4, MembershipGroup(4, **knobs))
    for number in range(20):
        world.send("b", b"%d" % number)
    world.run(4)
    assert world["b"].waiting_sends
    assert not any(events(world, name, Expelled) for name in "abcd")
    assert not any(events(world, name, Unheard) for name in "abcd")
