"""Datagrams that come together: the same as one by one, with fewer answers."""

from random import Random
from typing import Any

import pytest

from gapless.protocol.events import Accepted
from gapless.protocol.member import Member
from gapless.protocol.ready import Ready
from gapless.wire import decode
from tests.support.virtual_membership import MembershipGroup


def heard_by(name: str, world: MembershipGroup) -> list[bytes]:
    """Let all send; return the datagrams for ``name``, of membership and nonsense included."""
    received: list[bytes] = []
    world.pause(name)
    for round_ in range(10):
        for sender in world.hosts:
            if sender != name:
                world.send(
                    sender, *[b"%s %d %d" % (sender.encode(), round_, at) for at in range(20)]
                )
        world.run(0.02)
    world.send("b", b"beside", mode="out-of-band")
    world.run(2.5)  # so that somebody shows that it lives
    received += world.inboxes[name]
    assert len({type(frame) for datagram in received for frame in decode(datagram).frames}) >= 4
    Random(5).shuffle(received)
    return [*received[:30], b"nonsense", *received[30:], *received[:5]]


def outcome(member: Member, readies: list[Ready]) -> tuple[Any, ...]:
    deliveries = [delivery for ready in readies for delivery in ready.deliveries]
    messages: dict[tuple[object, ...], list[bytes]] = {}
    for delivery in deliveries:
        messages.setdefault((delivery.origin, delivery.kind), []).extend(delivery.messages())
    events = [
        event for ready in readies for event in ready.events if not isinstance(event, Accepted)
    ]
    drops = {
        name: count
        for name, count in member.counters.items()
        if name.startswith(("dropped", "received"))
    }
    # A second copy may have been delivered in between, or not.
    drops["again"] = drops.pop("dropped.old", 0) + drops.pop("dropped.duplicate", 0)
    return messages, events, drops, member.digest(), member.phase


@pytest.mark.parametrize("together", [2, 7, 1000])
def test_what_comes_together_has_the_effect_of_one_by_one(together: int) -> None:
    results = []
    for size in (1, together):
        world = MembershipGroup(3, max_frame_bytes=300)
        world.join("a", "b", "c")
        world.settle()
        world.run(2)
        datagrams = heard_by("c", world)
        member, readies = world["c"], []
        if size == 1:
            readies = [member.receive(datagram, world.now_ns) for datagram in datagrams]
        else:
            for at in range(0, len(datagrams), size):
                readies += member.receive_all(datagrams[at : at + size], world.now_ns)
                member.check_invariants()
        results.append((*outcome(member, readies), len(readies)))
    one_by_one, at_once = results
    assert at_once[:-1] == one_by_one[:-1]
    assert at_once[-1] < one_by_one[-1], "and with fewer answers"
    assert sum(map(len, at_once[0].values())) > 200


def test_what_comes_before_joining_is_no_members_business() -> None:
    world = MembershipGroup(2)
    member = world.start("a")
    (ready, last) = member.receive_all([world.start("b").join(0).transmits[0].datagram], 0)
    assert (ready.transmits, ready.deliveries, last.transmits) == ([], [], [])
    assert member.counters == {"dropped.no member": 1}
