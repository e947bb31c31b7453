"""Valid frames of random or hostile meaning: no member raises, fills its memory or stops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gapless.config import Config
from gapless.identity import Address, Roster, RosterEntry, ViewId
from gapless.protocol.early_budget import ITEM_BYTES, EarlyBudget
from gapless.protocol.membership.view_transfer import ViewTransfer
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.run import Run
from gapless.wire.codec import encode
from gapless.wire.frames import (
    Alive,
    AskView,
    Close,
    Data,
    Join,
    Nak,
    NewView,
    Stable,
    StreamProgress,
    Vote,
)
from gapless.wire.roster import encode_roster
from tests.support.hostile_world import GROUP_PROFILES, STEPS_PER_WORLD, HostileWorld
from tests.support.membership_checks import FAST, gathered, say
from tests.support.unicast import EPOCH
from tests.support.virtual_group import SECOND, A, B, C, Group
from tests.support.virtual_membership import GROUP, MembershipGroup

GHOST = Address(77, 1)
WORLDS = 30
FIRST_SEEDS = range(0, 300, WORLDS)
PHASES = ("joining", "member", "leaving", "awaiting state")


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_frames_of_random_meaning_raise_nothing_and_break_no_invariant(first: int) -> None:
    """120,000 steps; tests/support/hostile_world.py makes a million by hand."""
    met: Counter[tuple[str, str]] = Counter()
    for seed in range(first, first + WORLDS):
        world = HostileWorld(seed)
        world.run(STEPS_PER_WORLD)
        met += world.phases
    assert {profile for profile, _ in met} == set(GROUP_PROFILES)
    assert {phase for _, phase in met} >= set(PHASES)


# Rosters


@pytest.mark.parametrize("profile", ["nakack", "ordered", "classic"])
def test_a_view_with_an_absent_member_is_refused_where_nothing_is_retained(profile: str) -> None:
    world = gathered(3, MembershipGroup(4, **FAST, profile=profile))
    entries = tuple(RosterEntry(world[name].me, "", b"x") for name in "abc")
    roster = Roster(ViewId(9, entries[0].address), entries, (RosterEntry(GHOST, "away", b""),))
    frame = NewView(entries[0].address, roster.id, None, 0, 1, encode_roster(roster))
    say(world, "b", entries[0].address, frame)
    world.run(1)
    assert world["b"].counters["dropped.absent"] == 1
    world.join("d")
    world.settle()


def _transfer(**settings: object) -> tuple[ViewTransfer, ReadyBuilder, EarlyBudget]:
    config = Config.make(**settings)
    budget = EarlyBudget(config.early_bytes)
    budget.install([A, B])
    return (
        ViewTransfer(A, config, budget),
        ReadyBuilder(A, GROUP, config, None, tracing=False),
        budget,
    )


def test_parts_that_disagree_about_their_number_are_refused() -> None:
    transfer, out, _ = _transfer()
    view = ViewId(7, B)
    for part in range(3):
        assert transfer.on_part(NewView(B, view, None, part, 4, b"x"), out) is None
    assert transfer.on_part(NewView(B, view, None, 0, 2, b"x"), out) is None
    assert out.counters["dropped.parts"] == 1


def test_parts_of_a_stranger_neither_mix_with_nor_displace_those_of_a_member() -> None:
    transfer, out, budget = _transfer()
    roster = Roster(ViewId(7, B), (RosterEntry(B, "", b"b"), RosterEntry(A, "", b"a")))
    body = encode_roster(roster)
    assert transfer.on_part(NewView(B, roster.id, None, 0, 2, body[:9]), out) is None
    for number in range(1, 60):
        ghost = Address(100 + number, 1)
        transfer.on_part(NewView(ghost, ViewId(number, ghost), None, 0, 2, b"x"), out)
        transfer.on_part(NewView(ghost, roster.id, None, 1, 2, b"x"), out)
        transfer.check_invariants()
    assert transfer.on_part(NewView(B, roster.id, None, 1, 2, body[9:]), out) == roster
    transfer.install(7)
    assert budget.kept_bytes == 0


@pytest.mark.parametrize("sender", [B, GHOST])
def test_a_flood_of_parts_of_views_stays_within_the_budget(sender: Address) -> None:
    transfer, out, budget = _transfer(early_bytes="64KiB")
    for number in range(1, 40):
        for part in range(50):
            view = ViewId(number, sender)
            transfer.on_part(NewView(sender, view, None, part, 4096, bytes(1000)), out)
            assert budget.kept_bytes <= 65_536
            budget.check_invariants()
    assert out.counters["dropped.early"] > 50 * 39 - 64


def test_a_joiner_whose_name_a_merge_brought_in_is_not_in_the_next_view() -> None:
    """Otherwise two members of one name make a roster that nobody can encode."""
    world = gathered(2)
    a = world["a"]
    coordinator = a.membership.coordinator
    assert coordinator._queue_joiner(RosterEntry(GHOST, "held", b"")) == ""
    merged = RosterEntry(Address(88, 1), "held", b"")
    assert a.roster is not None
    roster = Roster(ViewId(9, a.me), (*a.roster.entries, merged))
    world.step("a", lambda member: member.tick(world.now_ns))
    coordinator.commit_merge(roster, a._begin(world.now_ns))
    world.step("a", lambda member: member.tick(world.now_ns))
    assert GHOST not in coordinator.joiners
    assert coordinator._queue_joiner(RosterEntry(GHOST, "held", b"")) == "name"
    world.run(1)


def test_groups_that_disagree_about_an_absent_member_merge() -> None:
    """One group lists an address as absent that is present in another, or absent by two names."""
    world = gathered(2)
    a = world["a"]
    assert a.roster is not None
    entries = {entry.address.node: entry for entry in a.roster.entries}
    others = [
        Roster(ViewId(3, C), (RosterEntry(C),), (RosterEntry(world["b"].me, "b was here"),)),
        Roster(ViewId(4, C), (RosterEntry(C),), (RosterEntry(GHOST, "one"),)),
        Roster(ViewId(5, C), (RosterEntry(C),), (RosterEntry(GHOST, "two"),)),
    ]
    absent = a.membership.merging._absent_entries(entries, others)
    assert absent == (RosterEntry(GHOST, "one"),)


# Messages that come before they can be used


def _data(sender: Address, first: int, size: int, *, epoch: int = 0) -> bytes:
    return encode(77, sender, [Data(Run.of(sender, first, [bytes(size)]), epoch=epoch)])


def test_strangers_of_a_group_without_retransmission_share_one_budget() -> None:
    group = Group(2, profile="ordered", early_bytes="64KiB")
    for number in range(1, 400):
        ghost = Address(100 + number % 50, 1)
        group.step(B, lambda m, s=ghost, n=number: m.receive(_data(s, n, 1000), group.now_ns))  # type: ignore[misc]
        assert group["b"].early_budget.kept_bytes <= 65_536
    assert group["b"].counters["dropped.stranger"] > 300
    group.send("a", b"still heard")
    group.settle()
    assert group.deliveries[B][-1].messages() == [b"still heard"]


def test_a_stranger_takes_no_room_of_a_member_and_the_formula_holds_in_the_next_view() -> None:
    group = Group(3, profile="classic", early_bytes="64KiB", become_server_queue_size=50)
    for sender in (A, C, GHOST):
        for number in range(1, 100):
            data = _data(sender, number, 900, epoch=7)
            group.step(B, lambda m, data=data: m.receive(data, group.now_ns))  # type: ignore[misc]
    budget = group["b"].early_budget
    kept = {sender: budget._kept[sender] for sender in (A, C, GHOST)}
    assert min(kept.values()) > 40 * (900 + ITEM_BYTES)
    assert budget.kept_bytes <= budget.limit_bytes == 3 * 65_536
    budget.install([B])
    assert budget.is_exceeded
    group["b"].future_view_buffer.take_frames(2, (), group["b"].begin(group.now_ns))
    assert budget.kept_bytes <= budget.limit_bytes == 65_536


def test_one_member_fills_only_its_own_queue_of_messages_of_later_views() -> None:
    group = Group(3, profile="classic", become_server_queue_size=4)
    for number in range(1, 50):
        data = _data(A, number, 1, epoch=2**31 - 1)
        group.step(B, lambda m, data=data: m.receive(data, group.now_ns))  # type: ignore[misc]
    assert group["b"].counters["dropped.early"] == 45
    group.step(B, lambda m: m.receive(_data(C, 1, 1, epoch=2), group.now_ns))
    assert len(group["b"].future_view_buffer) == 5


@pytest.mark.parametrize("off", [False, True])
def test_the_messages_of_later_views_of_a_member_fit_its_budget(off: bool) -> None:
    """Also without retransmission, where no number of messages limits them."""
    knobs: dict[str, Any] = {"xmit_interval": "0s"} if off else {}
    knobs["become_server_queue_size"] = 1 << 20
    group = Group(3, profile="classic", early_bytes="64KiB", **knobs)
    for number in range(1, 300):
        data = _data(A, number, 900, epoch=2 + number % 7)
        group.step(B, lambda m, data=data: m.receive(data, group.now_ns))  # type: ignore[misc]
        assert group["b"].early_budget._kept[A] <= 65_536
    assert group["b"].counters["dropped.early"] == 299 - 65_536 // (900 + 2 + ITEM_BYTES)
    group.step(B, lambda m: m.receive(_data(C, 1, 900, epoch=2), group.now_ns))
    assert group["b"].early_budget._kept[C] == 900 + 2 + ITEM_BYTES


def test_a_member_fills_no_queue_of_another_with_repairs_of_later_views() -> None:
    """Where members keep what they delivered, any of them sends repairs of any stream."""
    group = Group(3, profile="classic", become_server_queue_size=4, discard_delivered=False)
    for number in range(1, 50):
        repair = Data(Run.of(C, number, [b"x"]), True, epoch=2**31 - 1)
        datagram = encode(77, A, [repair])
        group.step(B, lambda m, data=datagram: m.receive(data, group.now_ns))  # type: ignore[misc]
    assert len(group["b"].future_view_buffer) == 0
    assert group["b"].counters["dropped.early"] == 49
    group.step(B, lambda m: m.receive(_data(C, 1, 1, epoch=2), group.now_ns))
    assert len(group["b"].future_view_buffer) == 1


@pytest.mark.parametrize("off", [False, True])
def test_the_messages_of_an_unconfirmed_connection_fit_the_budget_of_their_sender(
    off: bool,
) -> None:
    """Also without retransmission, where a whole window of any size would be kept."""
    knobs: dict[str, Any] = {"xmit_interval": "0s"} if off else {}
    knobs |= {"capacity": 4096, "become_server_queue_size": 4096}
    group = Group(3, early_bytes="64KiB", **knobs)
    budget, size_bytes = group["b"].early_budget, 900 + 2 + ITEM_BYTES
    for epoch in (EPOCH, EPOCH + 1):
        for number in range(2, 300):
            data = _data(A, number, 900, epoch=epoch)
            group.step(B, lambda m, data=data: m.receive(data, group.now_ns))  # type: ignore[misc]
            budget.check_invariants()
        assert budget._kept[A] == 65_536 // size_bytes * size_bytes
        group["b"].restore(group["b"].snapshot())
        assert budget._kept[A] == 65_536 // size_bytes * size_bytes
    assert group["b"].counters["dropped.early"] == 2 * 298 - 65_536 // size_bytes
    group.step(B, lambda m: m.receive(_data(C, 2, 900, epoch=EPOCH), group.now_ns))
    assert budget._kept[C] == size_bytes
    opening = Data(Run.of(C, 1, [b"x"]), False, EPOCH, True)
    group.receive("b", C, opening)
    assert C not in budget._kept, "messages that the connection stores are early no more"
    group.receive("b", A, Close(A, EPOCH + 1))
    assert not budget.kept_bytes, "nor are messages that were dropped"


# Numbers of views


def test_no_number_of_a_stranger_or_a_member_makes_the_next_one_unusable() -> None:
    world = gathered(2, MembershipGroup(4, **FAST))
    a, b = world["a"].me, world["b"].me
    ghost = RosterEntry(GHOST, "", b"x")
    for number in (2**31 - 1, 2**30, 2**21):
        say(world, "a", GHOST, Join(ghost))
        say(world, "a", GHOST, Alive(GHOST, ViewId(number, GHOST), False))
        say(world, "a", GHOST, Alive(GHOST, ViewId(number, a), True))
        entries = (RosterEntry(a, "", b"a"), RosterEntry(b, "", b"b"))
        roster = Roster(ViewId(number, a), entries)
        say(world, "b", a, NewView(a, roster.id, None, 0, 1, encode_roster(roster)))
        world.run(1)
    world.join("c")
    world.settle()
    view = world["c"].view
    assert view is not None
    assert view.id.number < 4096


# Marks that others speak of


def test_a_lie_about_the_end_of_a_stream_costs_a_few_naks_and_no_more() -> None:
    group = Group(3, profile="nakack")
    group.send("a", b"one")
    group.settle()
    lie = Vote(C, 1, (StreamProgress(A, 1, 2**62), StreamProgress(B, 0, 2**62)))
    group.receive("a", C, lie)
    stable = Stable(A, 1, (StreamProgress(A, 1, 2**62), StreamProgress(C, 0, 2**62)))
    group.receive("b", A, stable)
    group.run_for(20 * SECOND)
    naks = [sent for sent in group.sent if isinstance(sent.frame, Nak)]
    assert len(naks) < 12
    late = [sent for sent in naks if sent.at_ns > group.now_ns - 15 * SECOND]
    assert not late
    group.send("a", b"two")
    group.settle()
    assert group.deliveries[B][-1].messages() == [b"two"]


# Joins and questions of strangers


def _answers(world: MembershipGroup, name: str, since_ns: int) -> tuple[int, int]:
    """Return the number of frames that a member has sent to ghosts since then, and their bytes."""
    frames = [
        sent.frame
        for sent in world.sent
        if sent.by == name and sent.at_ns >= since_ns and sent.to is not None and sent.to.node > 50
    ]
    sizes = [len(frame.body) if isinstance(frame, NewView) else 40 for frame in frames]
    return len(frames), sum(sizes)


def test_a_flood_of_joins_is_answered_in_bounds_and_expels_nobody() -> None:
    """Ten thousand invented joiners: frames and bytes out are bounded, and the group goes on."""
    world = gathered(3, MembershipGroup(4))
    since_ns = world.now_ns
    for number in range(10_000):
        ghost = Address(100 + number, 1)
        world.step("a", lambda m, g=ghost: m.receive(_join(g), world.now_ns))  # type: ignore[misc]
        if number % 10 == 0:
            world.run(0.001)
    assert len(world["a"].membership.coordinator.joiners) <= 4096
    world.run(2)
    frames, size = _answers(world, "a", since_ns)
    assert frames < 6_000
    assert size < 4_000_000
    assert {world[name].me.incarnation for name in "abc"} == {1}
    world.crash("c")
    world.run(10)
    for name in "ab":
        assert world[name].phase == "member"
        assert Address(3, 1) not in set(world[name].view or ())


def _join(ghost: Address) -> bytes:
    return encode(GROUP, ghost, [Join(RosterEntry(ghost, "", b"at"))])


def test_a_flood_of_joins_with_a_taken_name_is_refused_in_bounds() -> None:
    world = MembershipGroup(2)
    world.join("a", durable="till")
    world.settle()
    since_ns = world.now_ns
    for number in range(3000):
        ghost = Address(100 + number, 1)
        say(world, "a", ghost, Join(RosterEntry(ghost, "till", b"at")))
    assert _answers(world, "a", since_ns)[0] < 1000


def test_the_roster_is_sent_to_one_address_at_most_once_a_while() -> None:
    world = gathered(3, MembershipGroup(3, **FAST))
    since_ns = world.now_ns
    for number in range(3000):
        asker = Address(100 + number % 300, 1)
        say(world, "b", asker, AskView(asker))
        say(world, "a", world["c"].me, Join(RosterEntry(world["c"].me, "", b"c")))
    told = [
        sent
        for sent in world.sent
        if sent.at_ns >= since_ns and isinstance(sent.frame, NewView) and sent.by in "ab"
    ]
    assert len([sent for sent in told if sent.by == "b"]) == 256
    assert len([sent for sent in told if sent.by == "a"]) == 16
    assert world["b"].counters["dropped.asked"] == 3000 - 256


# An application that does not read


def test_large_messages_that_nobody_reads_stop_their_sender_by_their_bytes() -> None:
    """The credit of 16384 messages would be 160 GB of messages of 10 MB."""
    group = Group(2, unread_limit=16_384, unread_bytes="1MiB", window_bytes="256KiB")
    sent = [bytes([number]) * 300_000 for number in range(20)]
    for message in sent:
        group.send("a", message, loopback=False)
    group.run_for(5 * SECOND)
    limit_bytes = (1 << 20) + (256 << 10) + 300_000
    unread = 0
    while unread < len(group.deliveries[B]):
        held = group.deliveries[B][unread:]
        assert sum(len(delivery.messages()[0]) for delivery in held) <= limit_bytes
        assert group["b"].credit.large_bytes <= limit_bytes
        assert group["b"].credit.wants_report
        unread += 1
        group.consumed("b", 1)
        group.run_for(5 * SECOND)
    assert [delivery.content for delivery in group.deliveries[B]] == sent
    assert not group["b"].credit.large_bytes
