"""Sealed transports: refusals that a stranger can send, and datagrams that wait for a stream."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any

import pytest

from gapless.identity import Address, RosterEntry, View
from gapless.keys.ciphers import suites_of, view_seal_key, view_suites
from gapless.keys.keyring import Keyring
from gapless.locator import Locator
from gapless.protocol.events import Located, ViewInstalled
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.protocol.ready import Transmit
from gapless.run import Run
from gapless.sim.mutants.planting import Mutant, planted
from gapless.sim.mutants.seal_mutants import TRANSPORT_MUTANTS
from gapless.transport import TcpMesh, UdpMesh, socket_options
from gapless.transport.tcp.link import Link
from gapless.transport.tcp.record_sealer import MAX_ROOMS, RecordSealer
from gapless.wire.codec import encode
from gapless.wire.frames import Ack, Data
from gapless.wire.seal import Seal

A, B = Address(1, 10), Address(2, 20)
THERE = Locator.of("127.0.0.1", 9)
ELSEWHERE = Locator.of("127.0.0.1", 10)


def a_seal() -> Seal:
    ring = Keyring.new().ring
    return Seal(ring, suites_of(ring))


@pytest.mark.parametrize(
    ("sealed", "on_this_machine", "quotes", "evidence"),
    [
        (False, False, "plain", DeathEvidence.REFUSED),
        (True, True, "plain", DeathEvidence.REFUSED),
        (True, False, "plain", DeathEvidence.CLOSED),
        (True, False, "sealed", DeathEvidence.REJECTED),
        (True, False, "its first bytes", DeathEvidence.CLOSED),
        (True, False, "for another incarnation", DeathEvidence.CLOSED),
        (True, False, "of another member", DeathEvidence.CLOSED),
    ],
)
def test_a_refusal_from_the_network_is_only_a_hint_in_a_sealed_group(
    sealed: bool,
    on_this_machine: bool,
    quotes: str,
    evidence: DeathEvidence,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ICMP can be forged and quote anything, but only a reader of the network has a seal."""
    transport = UdpMesh("127.0.0.1", 0, seal=a_seal() if sealed else None)
    try:
        transport.preserves_bytes = on_this_machine
        transport.book.announce(RosterEntry(A, "", transport.locator.encode()))
        transport.book.on_events([Located(B, THERE.encode()), ViewInstalled(View.of(1, A, B))])
        addressee = 99 if quotes == "for another incarnation" else B.incarnation
        quoted = encode(1, A, (Ack(A, 1, 1),), addressee=addressee)
        if quotes == "of another member":
            quoted = Seal(transport.seal.ring, suites_of(transport.seal.ring)).seal(  # type: ignore[union-attr]
                encode(1, B, (Ack(A, 1, 1),), addressee=addressee)
            )
        elif quotes != "plain":
            quoted = transport.seal.seal(quoted)  # type: ignore[union-attr]
        if quotes == "its first bytes":
            quoted = quoted[:-1]
        errors: Any = [(THERE.sockaddr, errno.ECONNREFUSED, quoted)]
        monkeypatch.setattr(socket_options, "read_error_queue", lambda _: errors)
        transport._read_errors()
        assert transport.book.take_evidence() == [(B, evidence)]
    finally:
        transport.close()


@pytest.mark.parametrize("trusted", [True, False])
def test_a_refused_connection_is_proof_only_if_nobody_can_forge_it(trusted: bool) -> None:
    transport = UdpMesh("127.0.0.1", 0)
    try:
        transport.book.announce(RosterEntry(A, "", transport.locator.encode()))
        transport.book.on_events([Located(B, THERE.encode()), ViewInstalled(View.of(1, A, B))])
        transport.book.note_refused(THERE.sockaddr, trusted=trusted)
        expected = DeathEvidence.REFUSED if trusted else DeathEvidence.REJECTED
        assert transport.book.take_evidence() == [(B, expected)]
    finally:
        transport.close()


def sources_learnt(number: int, addressee: int | None = None, *, damaged: bool = False) -> bool:
    """Return whether datagram ``number`` of B from another address moves B's address."""
    ring = Keyring.new().ring
    mine, other = Seal(ring, suites_of(ring)), Seal(ring, suites_of(ring))
    transport = UdpMesh("127.0.0.1", 0, seal=mine)
    try:
        transport.book.announce(RosterEntry(A, "", transport.locator.encode()), 1)
        sealed = [other.seal(encode(1, B, (Ack(A, 1, 1),), addressee)) for _ in range(3)]
        transport._receive_sealed(mine, sealed[1], THERE.sockaddr, [])
        assert (transport.book.lookup(B) is None) == (addressee not in {None, A.incarnation})
        one = sealed[number][:-1] + bytes([sealed[number][-1] ^ damaged])
        transport._receive_sealed(mine, one, ELSEWHERE.sockaddr, [])
        return transport.book.lookup(B) == ELSEWHERE.sockaddr
    finally:
        transport.close()


def check_no_stranger_moves_an_address() -> None:
    """Only the newest opened datagram for this member tells where its sender is."""
    assert sources_learnt(2)
    assert not sources_learnt(2, damaged=True), "before the seal is checked"
    assert not sources_learnt(0), "overtaken"
    assert sources_learnt(2, A.incarnation)
    assert not sources_learnt(2, 77), "for another member"


def test_only_the_newest_datagram_for_this_member_says_where_its_sender_is() -> None:
    check_no_stranger_moves_an_address()


@pytest.mark.parametrize("mutant", TRANSPORT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_in_the_order_of_learning_is_found(mutant: Mutant) -> None:
    with planted(mutant), pytest.raises(AssertionError):
        check_no_stranger_moves_an_address()


def test_a_datagram_is_sealed_when_it_is_written() -> None:
    """One that waits through a rotation leaves under the key of the time when it leaves."""
    keys = [b"old "]
    link = Link(THERE, 1, lambda datagram: keys[0] + datagram)
    link.enqueue(b"datagram")
    keys[0] = b"new "
    written = link.next_batch(confirm=False)
    assert bytes(written[-1]) == b"new datagram"
    assert int.from_bytes(written[-2], "little") == len(b"new datagram")
    assert list(link.sent) == [b"datagram"]


# Streams


def large_frames(number: int, size_bytes: int, sender: Address = A) -> tuple[Data]:
    return (Data(Run.of(sender, number, [bytes([number]) * (size_bytes // 4)] * 4)),)


def large(number: int, sender: Address = A, size_bytes: int = 200_000) -> bytes:
    """Return a large datagram as the machine of a sealed group makes it."""
    return encode(1, sender, large_frames(number, size_bytes, sender), checked=False)


def test_links_of_one_call_share_a_sealed_datagram_and_others_do_not() -> None:
    sealer = RecordSealer(a_seal())
    small = encode(1, A, (Ack(A, 1, 1),), checked=False)
    for datagram in (small, large(1)):
        sealer.begin()
        shared = [bytes(sealer.seal(datagram)) for _ in range(3)]
        sealer.end()
        alone = [bytes(sealer.seal(datagram)) for _ in range(3)]
        assert len({*shared}) == 1
        assert len({*shared, *alone}) == 4


def test_a_room_is_used_again_once_nothing_refers_to_it() -> None:
    mine = a_seal()
    sealer, other = RecordSealer(mine), Seal(mine.ring, suites_of(mine.ring))
    held = [sealer.seal(large(number)) for number in range(1, MAX_ROOMS + 6)]
    assert len({id(memoryview(view).obj) for view in held}) == len(held)
    assert len(sealer._rooms) == MAX_ROOMS
    rest = memoryview(held[3])[1000:]
    for number, view in enumerate(held, 1):
        assert other.open(view) == large(number)
    held[3:5] = [b"", b""]
    del view
    again = sealer.seal(large(50))
    assert memoryview(again).obj is not rest.obj, "part of the view is still to be written"
    assert any(memoryview(again).obj is room for room in sealer._rooms)
    assert other.open(again) == large(50)


@pytest.mark.parametrize("size_bytes", [8, 200_000])
def test_a_message_of_a_coming_view_does_not_break_its_stream(size_bytes: int) -> None:
    ring = Keyring.new().ring
    members = [TcpMesh("127.0.0.1", 0, seal=Seal(ring, suites_of(ring))) for _ in range(2)]
    first, second = members
    keys = [view_seal_key(bytes([0]) + bytes([number]) * 32) for number in (1, 2)]
    early = [
        encode(1, A, large_frames(number, size_bytes), view_key=True, checked=False)
        for number in range(1, 6)
    ]
    after = encode(1, A, (Ack(B, 1, 1),), checked=False)
    found: list[bytes] = []
    try:
        located = [
            Located(address, member.locator.encode())
            for address, member in zip((A, B), members, strict=True)
        ]
        for address, member in zip((A, B), members, strict=True):
            assert member.seal is not None
            member.seal.expect_view_keys(1 << 24)
            member.seal.replace_view_keys(keys[:1], view_suites())
            member.book.announce(RosterEntry(address, "", member.locator.encode()), 1)
            member.book.on_events([*located, ViewInstalled(View.of(1, A, B))])

        def exchange() -> tuple[bool]:
            first.receive(1000)
            found.extend(second.receive(1000))
            return (after in found,)

        second.send([Transmit(None, encode(1, B, (Ack(A, 1, 1),), checked=False))])
        assert first.seal is not None
        assert second.seal is not None
        first.seal.replace_view_keys(keys[::-1], view_suites())
        first.send([Transmit(None, datagram) for datagram in (*early, after)])
        until(exchange)
        assert found == [after]
        second.seal.replace_view_keys(keys[::-1], view_suites())
        assert second.seal.take_early() == early
        assert "stream.view key" not in second.problems.counters
    finally:
        for member in members:
            member.close()


@pytest.mark.parametrize("cipher", [None, "blake2b"])
def test_large_datagrams_wait_for_a_slow_reader_and_stay_as_they_are(cipher: str | None) -> None:
    """Many are sealed, and partly written, before the first is read."""
    ring = (Keyring.new() if cipher is None else Keyring.new(cipher=cipher)).ring
    members = [
        TcpMesh("127.0.0.1", 0, seal=Seal(ring, suites_of(ring)), dead_after_ns=60 * 10**9)
        for _ in range(3)
    ]
    addresses = [Address(node, 10 * node) for node in (1, 2, 3)]
    try:
        view = ViewInstalled(View.of(1, *addresses))
        located = [
            Located(address, member.locator.encode())
            for address, member in zip(addresses, members, strict=True)
        ]
        for address, member in zip(addresses, members, strict=True):
            member.book.announce(RosterEntry(address, "", member.locator.encode()), 1)
            member.book.on_events([*located, view])
        first, *others = members
        found: list[list[bytes]] = [[], []]

        def read() -> None:
            first.receive(1000)
            for member, got in zip(others, found, strict=True):
                got.extend(member.receive(1000))

        def all_are_heard() -> tuple[bool]:
            first.send([Transmit(None, large(250, size_bytes=9))])
            read()
            return (all(found),)

        def everything_arrived() -> tuple[bool]:
            read()
            return (all(len(got) >= len(expected) for got in found),)

        until(all_are_heard)
        for got in found:
            got.clear()
        expected = [large(number) for number in range(1, 121)]
        for at in range(0, len(expected), 4):
            first.send([Transmit(None, datagram) for datagram in expected[at : at + 4]])
        assert any(stream.write_buffer for stream in first.streams), "the kernel took everything"
        until(everything_arrived)
        assert found == [expected, expected]
        assert sum(sum(member.seal.rejected.values()) for member in others if member.seal) == 0
        for member in others:
            assert 1 <= len(member._rooms) <= 4
    finally:
        for member in members:
            member.close()


def until(step: Callable[[], tuple[Any, ...]]) -> None:
    """Repeat a step until its last result is true."""
    end_s = time.monotonic() + 20
    while not step()[-1]:
        assert time.monotonic() < end_s, "too slow"
