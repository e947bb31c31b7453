"""One broken direction between two members: senders go on, and the group is one when it heals."""

from __future__ import annotations

from itertools import permutations

import pytest

from gapless.protocol.events import Unheard
from tests.support.membership_checks import FAST, check_views, events, gathered
from tests.support.virtual_membership import MembershipGroup

KNOBS = {**FAST, "slow_receiver_after": "500ms", "capacity": 4}
DETECTION = 2 * (0.5 + 0.1)
"""Twice the time in which a death is detected: how long a broken direction may stop a sender."""
LASTS = 6.0
"""How long the direction is broken: ten detections, or 60 s with the default settings."""
STEP = 0.1


def sent_messages(world: MembershipGroup, name: str) -> int:
    """Return how many messages of ``name`` others have delivered."""
    return sum(origin == name for host in world.hosts.values() for origin, _ in host.got)


def measure_blocking(
    world: MembershipGroup, seconds: float, senders: str = "abcdef"
) -> tuple[float, float]:
    """Let members send; return the longest time that a sender was blocked, and its total.

    A member that is expelled or kept out is not counted: one end of a broken link has to go.
    """
    blocked, longest, total = dict.fromkeys(world.hosts, 0), 0, dict.fromkeys(world.hosts, 0)
    before = {name: sent_messages(world, name) for name in world.hosts}
    for step in range(round(seconds / STEP)):
        sending = [
            name
            for name, member in world.members.items()
            if name in senders and member.view is not None and member.membership.admitted
        ]
        for name in sending:
            if world[name].waiting_sends < 2:
                world.send(name, b"%d" % step)
        world.run(STEP)
        for name in world.hosts:
            arrived = sent_messages(world, name)
            waits = name in world.members and name in sending and world[name].waiting_sends
            blocked[name] = blocked[name] + 1 if waits and arrived == before[name] else 0
            total[name] += blocked[name] > 0
            longest, before[name] = max(longest, blocked[name]), arrived
    return longest * STEP, max(total.values()) * STEP


LINKS = [(count, *link) for count in (3, 4, 6) for link in permutations("abcdef"[:count], 2)]
"""Every direction between two members of groups of 3, 4 and 6; ``a`` is the coordinator."""


@pytest.mark.parametrize(("count", "sender", "receiver"), LINKS)
def test_a_broken_direction_stops_senders_for_about_a_detection_and_is_reported(
    count: int, sender: str, receiver: str
) -> None:
    """One end is kept out, ever longer; the group is one again when the direction is mended."""
    world = gathered(count, MembershipGroup(count, **KNOBS))
    views = {name: len(host.views) for name, host in world.hosts.items()}
    world.drop = lambda source, target, _: (source, target) == (sender, receiver)
    longest, total = measure_blocking(world, LASTS)
    assert longest <= DETECTION + STEP
    assert total <= LASTS / 2
    # Each of at most four returns and expulsions is a view; one end may be alone meanwhile.
    assert all(len(host.views) - views[name] <= 12 for name, host in world.hosts.items())
    reports = [event for name in world.hosts for event in events(world, name, Unheard)]
    ends = {world.hosts[sender].node, world.hosts[receiver].node}
    assert reports
    assert all({report.sender.node, report.receiver.node} == ends for report in reports)
    stayed = set(world.hosts) - {sender, receiver}
    assert all(world.hosts[name].incarnation == 1 for name in stayed), "both ends are at fault"
    assert 1 in {world.hosts[name].incarnation for name in (sender, receiver)}, "one goes"
    world.drop = lambda *_: False
    world.settle(12)
    check_views(world)


@pytest.mark.parametrize(
    ("count", "sender", "receiver"), [link for link in LINKS if link[0] == 4 or link[2] == "a"]
)
def test_a_sender_is_not_left_blocked_where_only_the_sender_can_notice(
    count: int, sender: str, receiver: str
) -> None:
    """No other member sends. One end goes: the sender, if the coordinator does not hear it."""
    world = gathered(count, MembershipGroup(count, **KNOBS))
    world.drop = lambda source, target, _: (source, target) == (sender, receiver)
    longest, _ = measure_blocking(world, 3, senders=sender)
    assert longest <= DETECTION + STEP
    assert any(events(world, name, Unheard) for name in world.hosts)
