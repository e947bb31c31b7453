"""Attacks of a stranger with packets: each works in a group without keys, and not in a sealed one.

The stranger has one UDP socket, or TCP connections, and knows the group's name, all addresses and
the number of the view. In a sealed group the stranger has also recorded a datagram of each member,
but has no key, or the keys of another ring. Nothing may happen then but rejections: no event, no
view, no message, no answer, and no new address to send to.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gapless import blocking
from gapless.errors import TimedOutError
from gapless.identity import Address, Roster, RosterEntry, ViewId
from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.run import Run
from gapless.transport import process_watch, shared_memory
from gapless.transport.shared_memory import (
    DESCRIPTOR,
    PROBE,
    PROCESS,
    READABLE,
    SharedRing,
    encode_control,
)
from gapless.wire.codec import encode
from gapless.wire.frames import (
    Ack,
    Alive,
    AskView,
    Data,
    Gone,
    Join,
    Leave,
    MergeAsk,
    NewView,
    OutOfBandAck,
    Suspect,
    Unreliable,
)
from gapless.wire.roster import encode_roster
from gapless.wire.seal import Seal
from gapless.wire.seal_keys import KeyRing
from tests.support.networks import free_ports, need_multicast
from tests.support.real_groups import WITHIN_S, options
from tests.support.strangers import (
    GROUP,
    Scene,
    Tap,
    ask,
    has_opened,
    known_targets,
    lost_data,
    rejected,
    scene,
    target_of,
    transport_of,
    until,
)

LEVELS = ("plain", "keyless", "other ring")
SEALED_LEVELS = LEVELS[1:]
FAR = 2**62
FORGED = b"forged"

pytestmark = pytest.mark.xdist_group("attacks")


@dataclass(frozen=True)
class Attack:
    """Datagrams of a stranger at a victim, and how to see that they have worked."""

    name: str
    victim: Callable[[Scene], blocking.Group]
    strike: Callable[[Scene, blocking.Group], int]
    """Send the datagrams; return how many."""
    worked: Callable[[Scene, blocking.Group], Any]
    """Whether the attack has worked; asked until it has, in a group without keys."""

    def __repr__(self) -> str:
        return self.name


def coordinator(found: Scene) -> blocking.Group:
    return found.acting


def follower(found: Scene) -> blocking.Group:
    return found.others[0]


def peer_of(found: Scene, victim: blocking.Group) -> blocking.Group:
    """Return another member than the victim, the coordinator if possible."""
    return next(group for group in (found.acting, *found.others) if group is not victim)


def me(group: blocking.Group) -> Address:
    assert group.me is not None
    return group.me


def members(group: blocking.Group) -> tuple[Address, ...]:
    return () if group.view is None else tuple(group.view.members)


def delivered_position(victim: blocking.Group, origin: Address) -> int:
    def question(member: Any) -> int:
        stream = member.endpoint.inbound.get(origin)
        return 0 if stream is None or stream.window is None else int(stream.window.delivered)

    return int(ask(victim, question))


# Attacks with one datagram or few


def forge_message(found: Scene, victim: blocking.Group) -> int:
    origin = me(peer_of(found, victim))
    seqno = delivered_position(victim, origin) + 1
    return found.stranger.send(victim, origin, Data(Run.of(origin, seqno, [FORGED])))


def got_forged(_found: Scene, victim: blocking.Group) -> bool:
    return victim.unread > 0 and victim.receive(WITHIN_S).payload == FORGED  # type: ignore[union-attr]


def forge_unreliable(found: Scene, victim: blocking.Group) -> int:
    origin = me(peer_of(found, victim))
    return found.stranger.send(victim, origin, Unreliable(Run.of(origin, 1, [FORGED])))


def forge_end_of_stream(found: Scene, victim: blocking.Group) -> int:
    origin = me(peer_of(found, victim))
    return found.stranger.send(victim, origin, Gone(origin, FAR))


def stream_is_over(found: Scene, victim: blocking.Group) -> bool:
    return delivered_position(victim, me(peer_of(found, victim))) >= FAR


def forge_leave(found: Scene, victim: blocking.Group) -> int:
    target = me(found.others[-1])
    return found.stranger.send(victim, target, Leave(target))


def forge_suspect(found: Scene, victim: blocking.Group) -> int:
    witness, target = (me(group) for group in found.others)
    return found.stranger.send(victim, witness, Suspect(witness, (target,), True))


def last_is_expelled(found: Scene, victim: blocking.Group) -> bool:
    return found.address(found.others[-1]) not in members(victim)


def forge_expulsion(found: Scene, victim: blocking.Group) -> int:
    origin = me(found.acting)
    view = ViewId(found.view_number + 1, origin)
    return found.stranger.send(victim, origin, Alive(origin, view, False, False, True))


def has_new_incarnation(found: Scene, victim: blocking.Group) -> bool:
    return victim.me not in {None, found.address(victim)}


def move_by_merge(found: Scene, victim: blocking.Group) -> int:
    stranger, sent = found.stranger, 0
    roster = _roster_of(found, stranger.me)
    frame = NewView(stranger.me, roster.id, None, 0, 1, encode_roster(roster))
    for group in (victim, *found.others):
        count = stranger.send(group, stranger.me, MergeAsk(stranger.me, 1))
        count += stranger.send(group, stranger.me, frame)
        sent = sent or count
    return sent


def _roster_of(found: Scene, maker: Address) -> Roster:
    entries = [found.stranger.entry(), *(RosterEntry(me(one), "", b"") for one in found.groups)]
    entries.sort(key=lambda entry: entry.address != maker)
    return Roster(ViewId(found.view_number + 1, maker), tuple(entries))


def move_by_view(found: Scene, victim: blocking.Group) -> int:
    """A view in the coordinator's name, with the stranger as a member."""
    maker, stranger = me(found.acting), found.stranger
    roster = _roster_of(found, maker)
    return stranger.send(
        victim, maker, NewView(maker, roster.id, None, 0, 1, encode_roster(roster))
    )


def stranger_is_member(found: Scene, victim: blocking.Group) -> bool:
    return found.stranger.me in members(victim)


def ask_addresses(found: Scene, victim: blocking.Group) -> int:
    return found.stranger.send(victim, found.stranger.me, AskView(found.stranger.me))


def stranger_has_addresses(found: Scene, _victim: blocking.Group) -> bool:
    return any(isinstance(frame, NewView) for frame in found.stranger.frames())


def poison_locator(found: Scene, victim: blocking.Group) -> int:
    target = me(found.others[0])
    return found.stranger.send(victim, target, Join(found.stranger.entry(target)))


def traffic_goes_to_stranger(found: Scene, victim: blocking.Group) -> bool:
    victim.send(b"for a member", me(found.others[0]), mode="unreliable")
    return any(b"for a member" in datagram for datagram in found.stranger.heard())


def invent_source(found: Scene, victim: blocking.Group) -> int:
    return found.stranger.send(victim, Address(99, 1), Alive(Address(99, 1), None, False))


def source_is_known(found: Scene, victim: blocking.Group) -> bool:
    return found.stranger.target in known_targets(victim)


ATTACKS = (
    Attack("a message in a member's name", follower, forge_message, got_forged),
    Attack("an unreliable message", follower, forge_unreliable, got_forged),
    Attack("GONE", follower, forge_end_of_stream, stream_is_over),
    Attack("LEAVE", coordinator, forge_leave, last_is_expelled),
    Attack("SUSPECT", coordinator, forge_suspect, last_is_expelled),
    Attack("ALIVE(EXPELLED)", follower, forge_expulsion, has_new_incarnation),
    Attack("MERGE_ASK and NEW_VIEW", coordinator, move_by_merge, stranger_is_member),
    Attack("NEW_VIEW", follower, move_by_view, stranger_is_member),
    Attack("ASK_VIEW", coordinator, ask_addresses, stranger_has_addresses),
    Attack("a poisoned locator", coordinator, poison_locator, traffic_goes_to_stranger),
    Attack("a poisoned source", follower, invent_source, source_is_known),
)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_one_datagram_works_only_without_keys(attack: Attack, level: str) -> None:
    with scene(level) as found:
        victim = attack.victim(found)
        count = attack.strike(found, victim)
        if not found.sealed:
            until(lambda: attack.worked(found, victim), attack.name)
            return
        found.wait_for_rejections(victim, count)
        found.check_undisturbed()


# Acks in the name of others


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ["acknowledged", "out-of-band"])
def test_forged_acks_confirm_a_message_that_nobody_has(mode: Any, level: str) -> None:
    with scene(level) as found:
        sender = found.acting
        with lost_data(sender):
            receipt = sender.send(b"nobody has this", mode=mode, loopback=False)
            seqno, count = receipt.first, 0
            for group in found.others:
                frame = (
                    Ack(me(sender), seqno, 1 << 20)
                    if mode == "acknowledged"
                    else OutOfBandAck(me(sender), ((seqno, seqno),))
                )
                count += found.stranger.send(sender, me(group), frame)
            if not found.sealed:
                receipt.delivered(WITHIN_S)
                assert [group.unread for group in found.others] == [0, 0]
                return
            found.wait_for_rejections(sender, count)
            with pytest.raises(TimedOutError):
                receipt.delivered(0.02)
        receipt.delivered(WITHIN_S)
        for group in found.others:
            message = group.receive(WITHIN_S)
            assert message is not None
            assert message.payload == b"nobody has this"
        found.check_undisturbed()


# Joining


@pytest.mark.parametrize("level", LEVELS)
def test_a_stranger_becomes_a_member_only_without_keys(level: str) -> None:
    with scene(level) as found:
        _join_or_be_rejected(found, found.stranger.entry())


@pytest.mark.parametrize("level", LEVELS)
def test_a_stranger_takes_the_place_of_a_live_durable_member_only_without_keys(level: str) -> None:
    with scene(level) as found:
        holder = me(found.groups[2])
        taken = Address(holder.node, holder.incarnation + 1)
        found.stranger.me = taken
        _join_or_be_rejected(found, found.stranger.entry(taken, "store"))
        if not found.sealed:
            assert holder not in members(found.acting)


def _join_or_be_rejected(found: Scene, entry: RosterEntry) -> None:
    acting = found.acting
    if not found.sealed:

        def joined() -> bool:
            found.stranger.join(acting, entry)
            return entry.address in members(acting)

        until(joined, "the stranger is a member")
        return
    count = found.stranger.send(acting, entry.address, Join(entry))
    found.wait_for_rejections(acting, count)
    found.check_undisturbed()


class Notes:
    """An application's state."""

    def __init__(self, state: bytes = b"") -> None:
        self.state = state

    def get_state(self) -> bytes:
        return self.state

    def set_state(self, state: bytes) -> None:
        self.state = state


@pytest.mark.parametrize("level", LEVELS)
def test_a_member_with_wrong_keys_pulls_the_state_only_without_keys(level: str) -> None:
    secret, thief = Notes(b"the state of the group"), Notes()
    ports = free_ports(2)
    keys = None if level == "plain" else Keyring.new()
    others = Keyring.new() if level == "other ring" else None
    joining: dict[str, Any] = {"insecure": keys is None, **options(ports)}
    with blocking.join(GROUP, keys=keys, state=secret, **joining) as group:
        reader = threading.Thread(target=list, args=(group,))
        reader.start()
        joining["insecure"] = others is None
        with blocking.join(GROUP, keys=others, state=thief, **joining) as stranger:
            if level == "plain":
                assert thief.state == secret.state
                assert members(stranger) == (me(group), me(stranger))
            else:
                until(lambda: rejected(group), "a JOIN is rejected")
                assert thief.state == b""
                assert members(stranger) == (me(stranger),)
                assert members(group) == (me(group),)
        group.leave()
        reader.join(WITHIN_S)


# Replays


def test_a_recorded_message_is_delivered_again_without_keys() -> None:
    with scene("plain") as found:
        sender, receiver = found.acting, found.others[0]
        sender.send(b"once", mode="unreliable", loopback=False)
        assert receiver.receive(WITHIN_S)
        for datagram in found.taps[found.groups.index(sender)].datagrams():
            found.stranger.send_raw(receiver, datagram)
        again = receiver.receive(WITHIN_S)
        assert again is not None
        assert again.payload == b"once"


@pytest.mark.parametrize("rotated", [False, True], ids=["", "after a rotation"])
def test_recorded_datagrams_change_nothing_in_a_sealed_group(*, rotated: bool) -> None:
    """Everything that a member has sent, from joining on, to everybody who has opened it."""
    keys = Keyring.new()
    with scene("keyless", keys) as found:
        for group in found.groups:
            group.send(b"once", mode="unreliable", loopback=False)
            group.send(b"once, in order", loopback=False)
        for group in found.groups:
            for _ in range(4):
                assert group.receive(WITHIN_S)
        for group in found.groups:
            replays = [
                datagram
                for tap in found.taps
                for datagram in tap.datagrams(to=target_of(group))
                if has_opened(group, datagram)
            ]
            assert len(replays) >= 4
            if rotated:
                _use_keys(group, keys.add().ring)
            _send_replays(found, group, replays)
        found.check_undisturbed()


def _use_keys(group: blocking.Group, ring: KeyRing) -> None:
    """Give a member other keys of its ring, as after a change of its file."""
    ask(group, lambda _: transport_of(group).seal.replace_ring(ring, suites_of(ring)))


def _send_replays(found: Scene, victim: blocking.Group, replays: list[bytes]) -> None:
    """Send datagrams that a member has opened, and wait until each is rejected."""
    counters = transport_of(victim).seal.rejected
    most = counters.get("replay", 0) + len(replays)
    for datagram in replays:
        found.stranger.send_raw(victim, datagram)
    until(lambda: counters.get("replay", 0) >= most, f"{len(replays)} replays are rejected")


def test_a_datagram_for_one_member_teaches_another_no_address() -> None:
    """What was sent to one member alone, and arrives at another from the stranger's socket."""
    with scene("keyless") as found:
        sender, receiver, bystander = found.acting, *found.others
        tap = found.taps[found.groups.index(sender)]
        sender.send(b"for one", me(receiver), mode="unreliable")
        assert receiver.receive(WITHIN_S)
        private = [
            datagram
            for datagram in tap.datagrams(to=target_of(receiver))
            if datagram not in tap.datagrams(to=target_of(bystander))
        ]
        assert any(datagram[3] & 2 for datagram in private)
        before = transport_of(bystander).seal.rejected.get("replay", 0)
        for datagram in private:
            found.stranger.send_raw(bystander, datagram)
        # The second copy of each is rejected: then the first has been handled.
        for datagram in private:
            found.stranger.send_raw(bystander, datagram)
        until(
            lambda: transport_of(bystander).seal.rejected.get("replay", 0) >= before + len(private)
        )
        found.check_undisturbed()


def test_a_datagram_of_another_group_of_the_ring_teaches_no_address() -> None:
    """Both groups have the same keys, so that the datagram opens."""
    keys = Keyring.new()
    with (
        scene("keyless", keys) as found,
        blocking.join("another group", keys=keys, **options(free_ports(2))) as lone,
    ):
        tap, victim = Tap(lone), found.others[0]
        beacon = until(tap.datagrams, "a beacon")[0]
        counters = transport_of(victim).seal.rejected
        before = counters.get("replay", 0)
        found.stranger.send_raw(victim, beacon)
        found.stranger.send_raw(victim, beacon)
        until(lambda: counters.get("replay", 0) > before, "the second one is a replay")
        assert lone.me not in transport_of(victim).book._observed
        found.check_undisturbed()


# Shared memory and processes

on_this_system = pytest.mark.skipif(
    not (shared_memory.AVAILABLE and process_watch.AVAILABLE), reason="no shared memory here"
)


@pytest.fixture
def own_ring() -> Iterator[SharedRing]:
    ring = SharedRing()
    yield ring
    ring.close()


@on_this_system
@pytest.mark.parametrize("level", LEVELS)
def test_memory_of_a_stranger_is_read_only_without_keys(level: str, own_ring: SharedRing) -> None:
    with scene(level) as found:
        victim, origin = found.others[0], me(found.acting)
        seqno = delivered_position(victim, origin) + 1
        message = encode(found.stranger.group, origin, [Data(Run.of(origin, seqno, [FORGED]))])
        note = own_ring.write([message])
        assert note[4] == DESCRIPTOR
        if not found.sealed:
            found.stranger.send_raw(victim, note)
            until(lambda: got_forged(found, victim), "a message out of the stranger's memory")
            return
        notes = [note, *_dressed(found, note, origin)]
        for one in notes:
            found.stranger.send_raw(victim, one)
        found.wait_for_rejections(victim, len(notes))
        found.check_undisturbed()


@on_this_system
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [PROBE, PROCESS])
def test_a_note_of_a_stranger_is_answered_only_without_keys(
    kind: int, level: str, own_ring: SharedRing
) -> None:
    with scene(level) as found, _sleeper() as process:
        victim = found.others[0]
        name = (
            own_ring.ring_id
            if kind == PROBE
            else (process.pid, 0, process_watch._TOKEN.pack(*process_watch._identity(process.pid)))
        )
        note = encode_control(kind, name)
        if not found.sealed:
            found.stranger.send_raw(victim, note)
            (answer,) = until(found.stranger.heard, "an answer")
            assert answer[:5] == b"GLM1" + bytes([READABLE if kind == PROBE else PROCESS])
            return
        watched = set(transport_of(victim)._processes._watched)
        notes = [note, *_dressed(found, note, me(found.acting))]
        for one in notes:
            found.stranger.send_raw(victim, one)
        found.wait_for_rejections(victim, len(notes))
        assert set(transport_of(victim)._processes._watched) == watched
        assert not transport_of(victim).shared_memory._open_rings
        found.check_undisturbed()


class _sleeper:  # noqa: N801 - used as a function
    """A process of the stranger, which ends with its input."""

    def __enter__(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def _dressed(found: Scene, note: bytes, sender: Address) -> list[bytes]:
    """Return a note as a sealed control datagram would look, without a key."""
    sniffed = found.stranger.recorded[sender]
    header = b"GL\x01" + bytes([0x01 | 0x08]) + sniffed[4:32]
    counter = (FAR).to_bytes(8, "little")
    dressed = [header + counter + note + bytes(16), header + counter + note + os.urandom(16)]
    if (ring := found.stranger.ring) is not None:
        group = int.from_bytes(sniffed[8:16], "little")
        dressed.append(Seal(ring, suites_of(ring)).seal_control(note, group, sender))
    return dressed


@on_this_system
def test_a_note_for_one_member_does_nothing_at_another() -> None:
    """Recorded notes about memory and processes, sent on to a member that has not opened them."""
    with scene("keyless") as found:
        sender, receiver, bystander = found.acting, *found.others
        tap = found.taps[found.groups.index(sender)]
        large = os.urandom(200_000)
        for _ in range(3):
            sender.send(large, mode="acknowledged", loopback=False).delivered(WITHIN_S)
            for group in found.others:
                assert group.receive(WITHIN_S)
        notes = [one for one in tap.datagrams(to=target_of(receiver)) if one[3] & 8]
        assert notes, "probes, descriptors and processes"
        before = rejected(bystander)
        processes = dict(transport_of(bystander)._processes._watched)
        for _ in range(2):
            for note in notes:
                found.stranger.send_raw(bystander, note)
        until(lambda: rejected(bystander) >= before + len(notes))
        assert transport_of(bystander)._processes._watched == processes
        found.check_undisturbed()


# Multicast


@pytest.mark.parametrize("level", LEVELS)
def test_a_datagram_for_a_multicast_group_works_only_without_keys(level: str) -> None:
    need_multicast()
    port = 20_000 + os.getpid() % 10_000
    group = ("239.255.77.31", port)
    more: dict[str, Any] = {
        "transport": "multicast",
        "ports": 0,
        "discover": f"multicast://{group[0]}:{port}?interface=127.0.0.1",
    }
    with scene(level, **more) as found:
        out = found.stranger.socket
        out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        victim, origin = found.others[0], me(found.acting)
        seqno = delivered_position(victim, origin) + 1
        count = found.stranger.send(group, origin, Data(Run.of(origin, seqno, [FORGED])))
        if not found.sealed:
            until(lambda: got_forged(found, victim), "a forged message")
            return
        for one in found.groups:
            found.wait_for_rejections(one, count)
        found.check_undisturbed()
