"""Attacks of a member that lies, in a group with identities: each fails, and works with its bug.

The liar has the keys of the group and an identity on the allow-list: host c in a view of a, b and
c, or of a, b, c and d. Each attack is tried twice: as the code is, and with one check taken out,
which must let the attack succeed. Otherwise the attack would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

import pytest

from gapless.errors import LocalProtocolError
from gapless.identity import Address, RosterEntry, ViewId
from gapless.protocol.events import Expelled, NameInUse
from gapless.protocol.membership import view_backing
from gapless.protocol.membership.membership import Membership
from gapless.protocol.membership.signatures import SignatureGuard
from gapless.protocol.membership.view_backing import ViewBacking
from gapless.wire.codec import decode, encode
from gapless.wire.frames import (
    Alive,
    Frame,
    Join,
    Leave,
    MembershipFrame,
    NameTaken,
    Signature,
    Suspect,
)
from gapless.wire.identities import AllowList, Role
from tests.support.hostile_frames import FrameSource
from tests.support.virtual_identities import IdentityGroup, Liar

WATCHED_S = 15.0
"""How long an attack is watched: longer than it takes to expel a silent member."""

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Attack:
    """What a liar does, how to see that it has worked, and the check that prevents it."""

    name: str
    strike: Callable[[IdentityGroup, Liar], None]
    worked: Callable[[IdentityGroup], Any]
    bug: Patch
    liar: str = "c"
    hosts: str = "abc"
    durable: bool = False
    """Whether b has its durable name."""

    def __repr__(self) -> str:
        return self.name


def without(owner: Any, name: str, replacement: Any) -> Patch:
    """Return a planted bug: a method that checks nothing."""
    return lambda patch: patch.setattr(owner, name, replacement)


def open_all(self: SignatureGuard, datagram: Any, about: Any, _out: Any) -> Any:
    """Believe every frame, and every counter."""
    self.was_newest, self.sender_view = True, self._view_number
    return [frame for frame in about if not isinstance(frame, Signature)]


def open_any_view(self: SignatureGuard, *args: Any) -> Any:
    """Take every signature for one of the present view."""
    found = OPEN(self, *args)
    self.sender_view = self._view_number
    return found


OPEN = SignatureGuard.open
ANY_SIGNATURE = without(SignatureGuard, "_is_right", lambda *_: True)
ANY_FRAME = without(SignatureGuard, "open", open_all)
ANY_VIEW = without(SignatureGuard, "check_view", lambda *_: "")
ANY_ENTRY = without(AllowList, "refusal", lambda *_: "")


def several(*patches: Patch) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        for one in patches:
            one(patch)

    return apply


ANY_DEPARTURE = several(
    without(ViewBacking, "_is_backed", lambda *_: True),
    without(ViewBacking, "only_gone", lambda _self, members, _out: list(members)),
)
ANY_HOLDER = without(ViewBacking, "_keeps_names", lambda *_: True)
OWN_WORD = without(
    ViewBacking,
    "is_gone",
    lambda self, member: (
        self._has_left(member)
        or member in self._membership.failure_detector.dead | self._membership.moved_away
    ),
)


# Expelling


def without_b(*names: str) -> Callable[[IdentityGroup], bool]:
    """Whether b was expelled: in its own eyes, or in a view of one of ``names``."""

    def found(world: IdentityGroup) -> bool:
        node = world.hosts["b"].node
        return any(isinstance(event, Expelled) for event in world.hosts["b"].events) or any(
            node not in {address.node for address in view.members}
            for name in names
            for view in world.hosts[name].views
            if view.id.number > len(world.hosts)
        )

    return found


def ask_to_expel(world: IdentityGroup, liar: Liar) -> None:
    """A SUSPECT of slow receivers, which the coordinator need not verify."""
    liar.send("a", Suspect(liar.me, (world["b"].me,), True), to=None)


def suspect_in_the_name_of_another(world: IdentityGroup, liar: Liar) -> None:
    """The liar speaks for d; with its own word that would be two witnesses."""
    suspicion = Suspect(liar.me, (world["b"].me,), True)
    liar.send("a", suspicion, to=None)
    witness = world["d"].me
    forged = suspicion._replace(origin=witness)
    liar.send("a", forged, to=None, sender=witness, signed=False)
    liar.send("a", forged, to=None, sender=witness)


def leave_in_the_name_of_another(world: IdentityGroup, liar: Liar) -> None:
    victim = world["b"].me
    liar.send("a", Leave(victim), to=None, sender=victim)
    liar.send("a", Leave(victim), to=None, sender=victim, signed=False)


def report_an_expulsion(world: IdentityGroup, liar: Liar) -> None:
    """ALIVE: you were expelled, twice, and in the name of the coordinator."""
    view = world["b"].view
    assert view is not None
    newer = view.id._replace(number=view.id.number + 1)
    liar.send("b", Alive(liar.me, newer, False, expelled=True))
    liar.send("b", Alive(liar.me, newer, False, expelled=True))
    liar.send("b", Alive(view.coordinator, newer, False, expelled=True), sender=view.coordinator)


def leave_out_as_coordinator(world: IdentityGroup, liar: Liar) -> None:
    entries = [world.entry(name) for name in world.hosts if name != "b"]
    frame = liar.view(number_of(world) + 1, entries)
    for name in world.hosts:
        if name != liar.name:
            liar.send(name, frame)


def take_over(world: IdentityGroup, liar: Liar) -> None:
    """A view of the liar as coordinator, without the true coordinator."""
    frame = liar.view(number_of(world) + 1, [world.entry("b"), world.entry("c")])
    liar.send("c", frame)
    liar.send("a", frame)


def is_split(world: IdentityGroup) -> bool:
    """Whether one of the honest members has a view without another."""
    honest = {world.hosts[name].node for name in "abd"}
    return any(
        not honest <= {address.node for address in view.members}
        for name in "abd"
        for view in world.hosts[name].views
        if view.id.number > len(world.hosts)
    )


def be_silent_towards_the_coordinator(world: IdentityGroup, liar: Liar) -> None:
    """The coordinator is to expel the liar, and the others to disbelieve the coordinator."""
    world.drop = lambda source, target, _frame: (source, target) == (liar.name, "a")


def report_to_the_coordinator_alone(world: IdentityGroup, liar: Liar) -> None:
    """The coordinator is to count the liar as moved away, which the others cannot see."""
    world.drop = lambda source, target, _frame: (source, target) == (liar.name, "a")
    newer = ViewId(number_of(world) + 1, liar.me)
    for _ in range(50):
        liar.send("a", Alive(liar.me, newer, False))
        world.run(0.2)


def number_of(world: IdentityGroup) -> int:
    view = world["a"].view
    assert view is not None
    return view.id.number


def replay_a_suspicion(world: IdentityGroup, liar: Liar) -> None:
    """A true SUSPECT of d, from a view in which b was silent, with the liar's word beside it."""
    honest = Liar(world, "d")
    honest.speak_in(number_of(world) - 1)
    recorded = honest.datagram(Suspect(honest.me, (world["b"].me,), True))
    world.process("a", world["a"].receive(recorded, world.now_ns))
    liar.send("a", Suspect(liar.me, (world["b"].me,), True), to=None)


def replay_to_another(world: IdentityGroup, liar: Liar) -> None:
    """The honest d has answered to c alone; the liar gives the answer to the coordinator."""
    honest = Liar(world, "d")
    honest.speak_in(number_of(world))
    suspicion = Suspect(honest.me, (world["b"].me,), True)
    body = honest.datagram(suspicion, to=world["c"].me)
    recorded = decode(body)
    for_a = encode(recorded.group, honest.me, recorded.frames, world["a"].me.incarnation)
    world.process("a", world["a"].receive(for_a, world.now_ns))
    liar.send("a", Suspect(liar.me, (world["b"].me,), True), to=None)


def own_view_is_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        SignatureGuard,
        "_text",
        lambda self, signer, to, *rest: TEXT(self, signer, None, *rest),
    )


TEXT = SignatureGuard._text


# Moving the group, and forging views


def in_another_view(*names: str) -> Callable[[IdentityGroup], bool]:
    """Whether one of ``names`` is in a view that the true coordinator has not made."""

    def found(world: IdentityGroup) -> bool:
        return any(
            view.id.coordinator.node != world.hosts["a"].node
            for name in names
            for view in world.hosts[name].views
        )

    return found


def forge_view_of_coordinator(world: IdentityGroup, liar: Liar) -> None:
    """A view in the coordinator's name that has a member more; the liar passes it on."""
    extra = RosterEntry(Address(world.hosts["c"].node + 1, 5), "", b"x")
    entries = [*(world.entry(name) for name in world.hosts), extra]
    liar.send("b", liar.view(number_of(world) + 1, entries, world["a"].me))


def has_forged_member(world: IdentityGroup) -> bool:
    return any(len(view.members) > len(world.hosts) for view in world.hosts["b"].views)


def usurp(world: IdentityGroup, liar: Liar) -> None:
    """A view with all members, and the liar in front."""
    entries = [world.entry("c"), world.entry("a"), world.entry("b")]
    liar.send("b", liar.view(number_of(world) + 1, entries))


def poison_locators(world: IdentityGroup, liar: Liar) -> None:
    """As coordinator the liar leaves all members in the view, and sends their traffic to itself."""
    entries = [world.entry("c"), world.entry("a")._replace(locator=b"liar"), world.entry("b")]
    liar.send("b", liar.view(number_of(world) + 1, entries))


def b_sends_to_liar(world: IdentityGroup) -> bool:
    located = [event for event in world.hosts["b"].events if type(event).__name__ == "Located"]
    return any(event.locator == b"liar" for event in located)


def poison_by_join(world: IdentityGroup, liar: Liar) -> None:
    """A JOIN of b that the liar relays, with the locator of the liar."""
    liar.send("a", Join(world.entry("b")._replace(locator=b"liar")), to=None)


def a_sends_to_liar(world: IdentityGroup) -> bool:
    located = [event for event in world.hosts["a"].events if type(event).__name__ == "Located"]
    return any(event.locator == b"liar" for event in located)


def merge_away(world: IdentityGroup, liar: Liar) -> None:
    """A second incarnation of the liar offers b, behind the coordinator's back, a merged view."""
    second = Liar(world, "c", Address(liar.me.node, liar.me.incarnation + 1))
    entries = [RosterEntry(second.me, "", b"c"), world.entry("a"), world.entry("b")]
    second.send("b", second.view(number_of(world) + 5, entries))


# Names


def join_with_name(world: IdentityGroup, liar: Liar) -> None:
    """The liar restarts under the durable name of b."""
    new = Address(liar.me.node, liar.me.incarnation + 1)
    other = Liar(world, "c", new)
    other.send("a", Join(RosterEntry(new, "b", b"c")), to=None)
    world.run(0.2)
    proposal = world["a"].membership.coordinator.proposal
    for roster in (world["a"].roster, proposal):
        if roster is not None:
            other.send("a", Alive(new, roster.id, True))


def invent_holder(world: IdentityGroup, liar: Liar) -> None:
    """The coordinator invents an incarnation of the absent collector, in whose name it can ack."""
    absent = let_b_be_absent(world)
    new = absent._replace(address=absent.address._replace(incarnation=7))
    entries = [*(world.entry(name) for name in "acd"), new]
    for name in "cd":
        liar.send(name, liar.view(number_of(world) + 1, entries))


def give_up_holder(world: IdentityGroup, liar: Liar) -> None:
    """The coordinator gives up the place of the absent collector."""
    let_b_be_absent(world)
    entries = [world.entry(name) for name in "acd"]
    for name in "cd":
        liar.send(name, liar.view(number_of(world) + 1, entries))


def let_b_be_absent(world: IdentityGroup) -> RosterEntry:
    entry = world.entry("b")
    world.crash("b")
    world.wait(lambda: all(world[name].roster.absent for name in "acd"))  # type: ignore[union-attr]
    return entry


def place_is_lost(world: IdentityGroup) -> bool:
    """Whether c or d has forgotten b, or takes another for b."""
    rosters = [world[name].roster for name in "cd"]
    return any(entry.name != "b" for roster in rosters for entry in roster.absent) or any(  # type: ignore[union-attr]
        not roster.absent  # type: ignore[union-attr]
        for roster in rosters
    )


def refuse_name(world: IdentityGroup, liar: Liar) -> None:
    """NAME_TAKEN: b returns, and hears that the liar has its durable name."""
    world.crash("b")
    world.join("b", durable="b")
    liar.send("b", NameTaken(RosterEntry(liar.me, "b", b"c"), world["b"].me))


def b_gives_up(world: IdentityGroup) -> bool:
    return any(isinstance(event, NameInUse) for event in world.hosts["b"].events)


def keep_frames(
    _self: SignatureGuard, _sender: Address, about: Any, _out: Any
) -> list[MembershipFrame]:
    """Believe all signed frames."""
    return [frame for frame in about if not isinstance(frame, Signature)]


def liar_has_name(world: IdentityGroup) -> bool:
    roster = world["a"].roster
    assert roster is not None
    return any(
        entry.name == "b" and entry.address.node == world.hosts["c"].node
        for entry in roster.entries
    )


def join_as_another(world: IdentityGroup, liar: Liar) -> None:
    """A newer incarnation of b, which the liar invents and confirms."""
    victim = world["b"].me
    new = Address(victim.node, victim.incarnation + 1)
    entry = RosterEntry(new, "", b"c")
    for _ in range(20):
        liar.send("a", Join(entry), to=None, sender=new)
        liar.send("a", Join(entry), to=None)
        world.run(0.02)
        proposal = world["a"].membership.coordinator.proposal
        if proposal is not None:
            liar.send("a", Alive(new, proposal.id, True), sender=new)
        world.run(0.05)


def b_is_replaced(world: IdentityGroup) -> bool:
    return any(
        address.node == world.hosts["b"].node and address.incarnation > 1
        for view in world.hosts["a"].views
        for address in view.members
    )


def keep_the_dead_alive(world: IdentityGroup, liar: Liar) -> None:
    """b is dead; the liar speaks in its name, and confirms whatever it is asked."""
    dead = world["b"].me
    world.crash("b")
    for _ in range(30):
        view = world["a"].view
        assert view is not None
        frame = Alive(dead, view.id, True)
        liar.send("a", frame, sender=dead)
        liar.send("a", frame, sender=dead, signed=False)
        world.run(0.5)


def b_lives_on(world: IdentityGroup) -> bool:
    view = world["a"].view
    assert view is not None
    return any(address.node == world.hosts["b"].node for address in view.members)


ATTACKS = (
    Attack("SUSPECT", ask_to_expel, without_b("a"), ANY_DEPARTURE),
    Attack(
        "SUSPECT in the name of a witness",
        suspect_in_the_name_of_another,
        without_b("a"),
        ANY_SIGNATURE,
        hosts="abcd",
    ),
    Attack(
        "SUSPECT of an earlier view",
        replay_a_suspicion,
        without_b("a"),
        without(SignatureGuard, "open", open_any_view),
        hosts="abcd",
    ),
    Attack(
        "SUSPECT for another member",
        replay_to_another,
        without_b("a"),
        own_view_is_trusted,
        hosts="abcd",
    ),
    Attack("LEAVE in the name of another", leave_in_the_name_of_another, without_b("a"), ANY_FRAME),
    Attack(
        "ALIVE(EXPELLED)",
        report_an_expulsion,
        without_b("a"),
        lambda patch: patch.setattr(view_backing, "WITNESSES", 1),
    ),
    Attack("ALIVE(EXPELLED) of two", report_an_expulsion, without_b("a"), ANY_SIGNATURE),
    Attack(
        "a coordinator leaves out a member",
        leave_out_as_coordinator,
        without_b("c", "d"),
        ANY_DEPARTURE,
        liar="a",
        hosts="abcd",
    ),
    Attack(
        "a view without the coordinator",
        take_over,
        in_another_view("c"),
        ANY_DEPARTURE,
        liar="b",
    ),
    Attack(
        "a view in the coordinator's name", forge_view_of_coordinator, has_forged_member, ANY_VIEW
    ),
    Attack(
        "a view with a member that is not allowed",
        lambda world, liar: liar.send(
            "b",
            liar.view(
                number_of(world) + 1,
                [
                    *(world.entry(name) for name in "abc"),
                    RosterEntry(Address(world.hosts["c"].node + 1, 5), "", b"x"),
                ],
            ),
        ),
        has_forged_member,
        ANY_ENTRY,
        liar="a",
    ),
    Attack(
        "a view with the liar in front",
        usurp,
        in_another_view("b"),
        without(ViewBacking, "_is_possible", lambda *_: True),
    ),
    Attack(
        "a view with other locators",
        poison_locators,
        b_sends_to_liar,
        without(SignatureGuard, "may_locate", lambda *_: True),
    ),
    Attack(
        "a JOIN with another locator",
        poison_by_join,
        a_sends_to_liar,
        several(
            without(SignatureGuard, "_relay_refusal", lambda *_: ""),
            without(SignatureGuard, "may_locate", lambda *_: True),
        ),
    ),
    Attack(
        "a merge behind the coordinator's back",
        merge_away,
        in_another_view("b"),
        without(Membership, "_follows", lambda *_: True),
    ),
    Attack(
        "silence towards one", be_silent_towards_the_coordinator, is_split, OWN_WORD, hosts="abcd"
    ),
    Attack("a report to one", report_to_the_coordinator_alone, is_split, OWN_WORD, hosts="abcd"),
    Attack(
        "an invented holder of a name",
        invent_holder,
        place_is_lost,
        ANY_HOLDER,
        liar="a",
        hosts="abcd",
        durable=True,
    ),
    Attack(
        "an absent holder without a place",
        give_up_holder,
        place_is_lost,
        ANY_HOLDER,
        liar="a",
        hosts="abcd",
        durable=True,
    ),
    Attack("a JOIN with the name of another", join_with_name, liar_has_name, ANY_ENTRY),
    Attack(
        "NAME_TAKEN", refuse_name, b_gives_up, without(SignatureGuard, "_permitted", keep_frames)
    ),
    Attack("a JOIN of another", join_as_another, b_is_replaced, ANY_FRAME),
    Attack("heartbeats of the dead", keep_the_dead_alive, b_lives_on, ANY_SIGNATURE),
)


def story(attack: Attack) -> IdentityGroup:
    """Let the attack happen in a settled group, and time pass."""
    world = IdentityGroup(len(attack.hosts), roles={"b": Role.COLLECTOR}, rejoin=False)
    for name in attack.hosts:
        world.join(name, durable="b" if attack.durable and name == "b" else "")
        world.settle()
    world.run(2)
    liar = Liar(world, attack.liar)
    liar.speak_in(number_of(world))
    attack.strike(world, liar)
    return world


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_an_attack_of_a_member_fails(attack: Attack) -> None:
    world = story(attack)
    until_s = world.now_ns / 1e9 + WATCHED_S
    while world.now_ns / 1e9 < until_s:
        world.run(0.5)
        if attack.name != "heartbeats of the dead":
            assert not attack.worked(world), world.show()
    assert not attack.worked(world), world.show()
    for member in world.members.values():
        member.check_invariants()


@pytest.mark.interpreted("replaces the check")
@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_the_attack_works_without_its_check(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack.bug(monkeypatch)
    world = story(attack)
    world.wait(lambda: attack.worked(world), WATCHED_S)


# Whatever a liar sends


MEMBERSHIP = frozenset(get_args(MembershipFrame))


def draw_lie(world: IdentityGroup, liar: Liar, source: FrameSource, target: str) -> None:
    """Send a frame of random meaning, or a view that leaves out some members."""
    rng, victim = source.rng, world[target]
    sender = liar.me if rng.random() < 0.7 else world[rng.choice(sorted(world.members))].me
    number = victim.membership.view_number
    liar.speak_in(number)
    frame: Frame = Leave(sender)
    if rng.random() < 0.2:
        names = [name for name in sorted(world.members) if rng.random() < 0.7]
        entries = [world.entry(name) for name in names if name != liar.name]
        entries.insert(0 if rng.random() < 0.5 else len(entries), liar.entry)
        frame = liar.view(number + rng.randrange(1, 3), entries, entries[0].address)
    else:
        with suppress(LocalProtocolError):  # values that the wire format refuses
            frame = rng.choice(source._makers)(sender, victim)
    if type(frame) in MEMBERSHIP:
        to = rng.choice((None, victim.me))
        with suppress(LocalProtocolError):
            liar.send(target, frame, sender=sender, to=to, signed=rng.random() < 0.9)


@pytest.mark.parametrize("seed", range(20))
def test_a_liar_that_sends_anything_expels_nobody(seed: int) -> None:
    """Frames of random meaning, in the liar's own name and in others', and silence towards some."""
    world = IdentityGroup(4, rejoin=False, seed=seed)
    for name in "abcd":
        world.join(name)
        world.settle()
    rng = Random(seed)
    liar = Liar(world, rng.choice("abcd"))
    honest = [name for name in "abcd" if name != liar.name]
    source = FrameSource(rng, {member.me.node: member for member in world.members.values()})
    silent = set(rng.sample(honest, rng.randrange(3)))
    world.drop = lambda source, target, _frame: source == liar.name and target in silent
    for _ in range(150):
        draw_lie(world, liar, source, rng.choice(honest))
        world.run(rng.choice((0.01, 0.1, 0.5)))
        for member in world.members.values():
            member.check_invariants()
        assert set(honest) <= world.members.keys(), "an honest member has ended"
    world.run(20)
    nodes = {world.hosts[name].node for name in honest}
    for name in honest:
        assert not any(isinstance(event, Expelled) for event in world.hosts[name].events)
        view = world[name].view
        assert view is not None
        assert nodes <= {address.node for address in view.members}, world.show()


def test_recorded_frames_of_honest_members_do_nothing() -> None:
    """The liar has recorded everything that was sent, and sends it again to everybody."""
    world = IdentityGroup(4, rejoin=False)
    recorded: list[bytes] = []
    world.observers.append(
        lambda _name, ready: recorded.extend(one.datagram for one in ready.transmits)
    )
    for name in "abcd":
        world.join(name)
        world.settle()
    world.leave("d")
    world.wait(lambda: "d" not in world.members and world.is_one())
    world.run(3)
    before = {name: world[name].view for name in "abc"}
    signed = [one for one in recorded if type(decode(one).frames[-1]) is Signature]
    assert len(signed) > 20
    for name in "abc":
        for datagram in signed:
            world.process(name, world[name].receive(datagram, world.now_ns))
        world[name].check_invariants()
    world.run(10)
    assert {name: world[name].view for name in "abc"} == before
    for name in "abc":
        assert world.counter(name, "repeat") > 10
        assert not any(isinstance(event, Expelled) for event in world.hosts[name].events)
