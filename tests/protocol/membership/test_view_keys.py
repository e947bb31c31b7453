"""The keys of views: who has them, what they open, and what happens without them."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.config import Config
from gapless.identity import Address, Roster, RosterEntry, ViewId
from gapless.protocol.membership.view_keys import MAX_FORMER, ViewKeys
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.run import Run
from gapless.wire.codec import encode
from gapless.wire.frames import Data, Frame, OutOfBand, Unreliable
from gapless.wire.identities import WRAPPED_BYTES, AllowList, Role
from tests.support.virtual_group import SECOND
from tests.support.virtual_identities import IdentityGroup, Liar, identity_of
from tests.support.virtual_membership import GROUP


def joined(*names: str, **options: Any) -> IdentityGroup:
    """Return a group whose members have joined one after the other."""
    world = IdentityGroup(len(names), **options)
    for name in names:
        world.join(name)
        world.settle()
    return world


def key_of(world: IdentityGroup) -> bytes:
    """Return the key with which all members that run seal."""
    (key,) = {keys_of(world, name)[0] for name in world.members}
    return key


def keys_of(world: IdentityGroup, name: str) -> tuple[bytes, ...]:
    """Return the keys that open at a member."""
    guard = world[name].guard
    assert guard is not None
    return guard.view_keys.in_use


def test_the_members_of_a_view_have_one_key_and_each_view_has_another() -> None:
    world = IdentityGroup(4)
    seen = set()
    for name in "abcd":
        world.join(name)
        world.settle()
        seen.add(key_of(world))
    world.leave("b")
    world.wait(lambda: "b" not in world.members)
    world.settle()
    seen.add(key_of(world))
    world.crash("a")
    world.settle()
    seen.add(key_of(world))
    assert len(seen) == 6


def test_a_member_that_is_expelled_has_no_later_key() -> None:
    world = joined("a", "b", "c", rejoin=False)
    guard = world["c"].guard
    assert guard is not None
    kept = AllowList(one for one in world.allowed.certificates if one.name != "c")
    for name in "ab":
        world[name].guard.replace_allowed(kept)  # type: ignore[union-attr]
    world.wait(lambda: all(len(world[name].view.members) == 2 for name in "ab"), 20)  # type: ignore[union-attr]
    world.run(5)
    assert not set(keys_of(world, "a")) & set(guard.view_keys.in_use)


def test_a_member_that_joins_has_no_earlier_key() -> None:
    world = joined("a", "b")
    earlier = key_of(world)
    world.hosts["c"] = type(world.hosts["a"])("c")
    world.hosts["c"].node = identity_of("c").node
    world.allowed = IdentityGroup(3).allowed
    for name in "ab":
        world[name].guard.replace_allowed(world.allowed)  # type: ignore[union-attr]
    world.join("c")
    world.settle()
    assert earlier not in keys_of(world, "c")


def test_a_member_that_is_allowed_again_gets_the_key_of_the_present_view() -> None:
    """A view was made while the coordinator had struck the member off its list."""
    world = IdentityGroup(4)
    for name in "abc":
        world.join(name)
        world.settle()
    guard = world["a"].guard
    assert guard is not None
    guard.replace_allowed(AllowList(one for one in world.allowed.certificates if one.name != "c"))
    world.join("d")
    world.wait(lambda: world.counter("c", "view key") > 0)
    guard.replace_allowed(world.allowed)
    world.settle(5)
    assert len(world["c"].view.members) == 4  # type: ignore[union-attr]
    key_of(world)


def test_parts_that_merge_have_one_key_again() -> None:
    world = joined("a", "b", "c", "d")
    world.part("ab", "cd")
    world.wait(lambda: all(len(world[name].view.members) == 2 for name in "abcd"))  # type: ignore[union-attr]
    assert keys_of(world, "a")[0] != keys_of(world, "c")[0]
    world.heal()
    world.settle()
    key_of(world)


def test_a_former_key_opens_a_little_longer() -> None:
    world = joined("a", "b", "c", rejoin=False)
    before = key_of(world)
    world.crash("c")
    world.wait(lambda: len(world["a"].view.members) == 2)  # type: ignore[union-attr]
    assert keys_of(world, "a")[1] == before
    world.run(world.config.heartbeat_interval_ns / SECOND)
    assert keys_of(world, "a") == (key_of(world),)


def test_without_retransmission_a_former_key_opens_while_a_member_may_be_behind() -> None:
    """It sends in order, so what it has signed in a view comes behind all of its former views."""
    world = IdentityGroup(4, xmit_interval="0s", rejoin=False)
    for name in "abc":
        world.join(name)
        world.settle()
    before = key_of(world)
    number = world["a"].view.id.number  # type: ignore[union-attr]
    world.pause("c")
    world.join("d")
    world.wait(lambda: world["a"].view.id.number > number)  # type: ignore[union-attr]
    world.run(2.5 * world.config.heartbeat_interval_ns / SECOND)
    assert before in keys_of(world, "a")
    assert "c" in world.seniority()
    world.resume("c", tick_first=True)
    world.run(2.5 * world.config.heartbeat_interval_ns / SECOND)
    assert keys_of(world, "a") == (key_of(world),)
    world.run(60)
    for name in world.members:
        assert keys_of(world, name) == (key_of(world),), "c had nothing to tell b"


def test_former_keys_are_bounded() -> None:
    group = IdentityGroup(2)
    me, other = (Address(group.hosts[name].node, 1) for name in "ab")
    keys = ViewKeys(me, GROUP, group.credentials("a").exchange, group.allowed.find)
    config = Config.make(xmit_interval="0s")
    out = ReadyBuilder(me, GROUP, config, None, tracing=0)
    entries = (RosterEntry(me), RosterEntry(other))
    for number in range(1, 3 * MAX_FORMER):
        keys.install(Roster(ViewId(number, me), entries), config, out)
        keys.check_invariants()
    assert len(keys.in_use) == 1 + MAX_FORMER
    assert keys.due_ns is not None
    patience_ns = keys.due_ns
    keys.note_signed(other, number - 1, 5)
    assert keys.due_ns == patience_ns > 30 * SECOND
    keys.note_signed(other, number, 5)
    assert keys.due_ns == 5


@pytest.mark.parametrize("kind", ["ordered", "out of band", "unreliable"])
def test_a_message_under_a_key_of_the_ring_is_dropped(kind: str) -> None:
    """An identity that was struck off the list keeps the keys of the ring."""
    world = joined("a", "b", "c")
    run = Run.of(world["b"].me, 1, [b"forged"])
    frames: dict[str, Frame] = {
        "ordered": Data(run),
        "out of band": OutOfBand(run, 0),
        "unreliable": Unreliable(run),
    }
    for keyed in (False, True):
        forged = encode(GROUP, world["b"].me, (frames[kind],), view_key=keyed)
        for ready in (
            world["a"].receive(forged, world.now_ns),
            *world["a"].receive_all([forged] * 2, world.now_ns),
        ):
            world.process("a", ready)
        assert (("b", b"forged") in world.hosts["a"].got) == keyed, "the key decides"
        assert world.counter("a", "view key") == 3


def test_a_roster_without_a_key_for_a_member_does_not_count_there() -> None:
    world = joined("a", "b", "c")
    liar = Liar(world, "a")
    number = world["a"].view.id.number + 1  # type: ignore[union-attr]
    liar.guard.view_keys._exchange = liar.guard.view_keys._exchange._replace(
        wrap=lambda *_: bytes(WRAPPED_BYTES)
    )
    liar.send("b", liar.view(number, [world.entry(name) for name in "abc"]))
    assert world.counter("b", "view key") == 1
    assert world["b"].view.id.number < number  # type: ignore[union-attr]
    assert world["b"].pending is None


def test_a_view_whose_key_was_displaced_leaves_a_member_unread_not_stuck() -> None:
    """A coordinator may make many views before the first of them is installed."""
    world = joined("a", "b")
    liar = Liar(world, "a")
    member = world["b"]
    number = world["a"].view.id.number  # type: ignore[union-attr]
    frame = liar.view(number + 1, [world.entry(name) for name in "ab"])
    member.receive(liar.datagram(frame, to=member.me), world.now_ns)
    assert member.pending is not None
    before = keys_of(world, "b")
    member.guard.view_keys._known.clear()  # type: ignore[union-attr]
    world.step("b", lambda member: member.tick(world.now_ns))
    assert world.counter("b", "view key") == 1
    assert keys_of(world, "b")[0] not in before
    world.send("b", b"unread")
    member.check_invariants()


def test_a_wrapped_key_opens_for_its_member_and_view_only() -> None:
    group = IdentityGroup(3)
    find = group.allowed.find
    a, b, c = (
        ViewKeys(Address(group.hosts[name].node, 1), GROUP, group.credentials(name).exchange, find)
        for name in "abc"
    )
    entries = tuple(RosterEntry(keys._me) for keys in (a, b, c))
    roster = Roster(ViewId(5, a._me), entries)
    wrapped = a.wrap(roster)
    assert a.wrap(roster) == wrapped, "a view has one key"
    assert b.unwrap(roster, wrapped)
    assert c.unwrap(roster, wrapped)
    out = ReadyBuilder(b._me, GROUP, Config.make(), None, tracing=0)
    for keys in (a, b, c):
        keys.install(roster, Config.make(), out)
    assert a.in_use == b.in_use == c.in_use
    for other in (
        Roster(ViewId(6, a._me), entries),
        Roster(ViewId(5, a._me), (entries[0], entries[2], entries[1])),
    ):
        assert not b.unwrap(other, wrapped)
    assert not b.unwrap(roster, wrapped[:-1])
    assert not b.unwrap(roster, wrapped[:-2])
    assert not b.unwrap(Roster(ViewId(5, c._me), entries), wrapped), "another maker"
    stranger = Roster(roster.id, entries[:1])
    assert b.unwrap(stranger, a.wrap(stranger)), "no key is expected"


def test_every_view_of_a_coordinator_gets_a_drawn_key_of_its_own() -> None:
    """Otherwise a former member could derive the key of the next view."""
    group = IdentityGroup(2)
    drawn: list[bytes] = []
    exchange = group.credentials("a").exchange
    me = Address(group.hosts["a"].node, 1)

    def draw() -> bytes:
        drawn.append(exchange.draw())
        return drawn[-1]

    keys = ViewKeys(me, GROUP, exchange._replace(draw=draw), group.allowed.find)
    out = ReadyBuilder(me, GROUP, Config.make(), None, tracing=0)
    for number in (1, 2, 3):
        roster = Roster(ViewId(number, me), (RosterEntry(me),))
        keys.wrap(roster)
        keys.install(roster, Config.make(), out)
        keys.wrap(roster)
        assert list(keys._known[me.node].values()) == drawn[number - 1 : number]
    assert len(set(drawn)) == 3


def test_a_wrapped_key_that_was_changed_breaks_the_signature() -> None:
    world = joined("a", "b", "c")
    liar = Liar(world, "a")
    number = world["a"].view.id.number + 1  # type: ignore[union-attr]
    frame = liar.view(number, [world.entry(name) for name in "abc"])
    at = len(frame.body) - 64 - 2 - WRAPPED_BYTES
    body = frame.body[:at] + bytes(WRAPPED_BYTES) + frame.body[at + WRAPPED_BYTES :]
    liar.send("b", frame._replace(body=body))
    assert world.counter("b", "signature") == 1
    assert world["b"].pending is None


def test_a_coordinator_that_sends_a_key_again_gives_another_view_another_key() -> None:
    """No counter of a member may occur twice under a key."""
    group = IdentityGroup(2)
    drawn = bytes(33)
    exchange = group.credentials("a").exchange._replace(draw=lambda: drawn)
    me = Address(group.hosts["a"].node, 1)
    keys = ViewKeys(me, GROUP, exchange, group.allowed.find)
    out = ReadyBuilder(me, GROUP, Config.make(), None, tracing=0)
    for number in (1, 2):
        keys.install(Roster(ViewId(number, me), (RosterEntry(me),)), Config.make(), out)
    assert keys.in_use[0] != keys.in_use[1]


def test_a_view_that_is_over_gets_no_second_key() -> None:
    """A second key in the same context would be encrypted with the same key and nonce."""
    world = IdentityGroup(3)
    world.join("a")
    world.settle()
    before = world["a"].roster
    assert before is not None
    for name in "bc":
        world.join(name)
        world.settle()
    guard, transfer = world["a"].guard, world["a"].membership.view_transfer
    assert guard is not None
    first = transfer._trailers.pop(world["a"].roster.id)  # type: ignore[union-attr]
    wrapped = first[: WRAPPED_BYTES * 3]
    assert transfer._trailer(guard, world["a"].roster)[: len(wrapped)] == wrapped  # type: ignore[arg-type, index]
    transfer._trailers.pop(before.id, None)
    assert transfer._trailer(guard, before) is None


def test_an_observer_reads_with_the_key_of_the_view() -> None:
    world = IdentityGroup(3, roles={"c": Role.OBSERVER})
    world.join(*"abc")
    world.settle()
    key_of(world)
