"""Damage between the socket and the seal: every changed datagram is rejected, none is missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from contextlib import ExitStack
from random import Random

import pytest

from gapless import blocking
from gapless.discovery import Discovery, Seeds
from gapless.errors import RemoteProtocolError
from gapless.events import ViewChange
from gapless.faults.faults import Copy, Corrupt, Crossing, Delay, Duplicate, Fault, Loss
from gapless.faults.faulty_transport import FaultyTransport
from gapless.faults.frame_names import NOISE
from gapless.keys.ciphers import SUITE_NAMES, suites_of
from gapless.keys.keyring import Keyring
from gapless.transport.tcp.transport import TcpMesh
from gapless.transport.udp import UdpMesh
from gapless.wire.seal import Seal
from tests.support.networks import free_ports
from tests.support.real_groups import QUICK

MEMBERS = 3
MESSAGES = 400
WITHIN_S = 20.0
CHANGED = {UdpMesh: range(20, 10**6, 20), TcpMesh: (8, 30)}
"""Which datagrams of each member are changed; over TCP each of them costs a stream."""


class BadNetwork(Seal):
    """A seal that is given what a bad network delivers: the bytes of the socket, some changed.

    Like the socket, the network knows nothing of keys: sealed datagrams of every kind are changed,
    also notes of the transport and datagrams in shared memory.
    """

    def __init__(self, ring: Keyring, rng: Random, numbers: Container[int]) -> None:
        super().__init__(ring.ring, suites_of(ring.ring))
        self.fault = Corrupt(rng, 1.0)
        self.numbers = numbers
        self.met = self.changed = self.opened = 0
        self.wrong: Counter[str] = Counter()

    def open_run(self, data: bytes, step_bytes: int, found: list[bytes]) -> int:
        """Leave every datagram to ``open``, which changes some."""
        return 0

    def open(self, sealed: bytes | memoryview) -> bytes:
        """Open a datagram after the fault; count changed datagrams that open all the same."""
        self.met += 1
        if self.met not in self.numbers:
            return super().open(sealed)
        crossing = Crossing("a", "b", bytes(sealed), NOISE, 1, 1)
        (copy,) = self.fault.cross(crossing, [Copy(0, bytes(sealed))], 0)
        self.changed += 1
        try:
            found = super().open(copy.datagram)
        except RemoteProtocolError as error:
            self.wrong[error.reason] += 1
            raise
        self.opened += 1
        return found


@pytest.mark.parametrize("cipher", SUITE_NAMES)
@pytest.mark.parametrize("kind", [UdpMesh, TcpMesh])
def test_changed_datagrams_are_rejected_and_everything_is_delivered(
    kind: type[UdpMesh | TcpMesh], cipher: str
) -> None:
    if cipher != "blake2b":
        pytest.importorskip("cryptography")
    ring = Keyring.new(cipher=cipher)
    rng = Random(7)
    seals = [BadNetwork(ring, rng, CHANGED[kind]) for _ in range(MEMBERS)]
    deliver_and_compare(kind, seals, lossy=kind is UdpMesh)
    for seal in seals:
        assert seal.changed > 0
        assert seal.opened == 0, "a changed datagram was opened"
        assert seal.wrong.total() == seal.changed
        for reason, times in seal.wrong.items():
            assert seal.rejected[reason] >= times
    # Nearly all bits are those of the encrypted frames.
    assert sum(seal.wrong["seal"] for seal in seals) > sum(seal.changed for seal in seals) / 2


def deliver_and_compare(
    kind: type[UdpMesh | TcpMesh], seals: list[BadNetwork], *, lossy: bool
) -> None:
    """Let every member send, and check that every member delivers everything, in order."""
    ports = free_ports(len(seals))
    seeds = [f"127.0.0.1:{port}" for port in ports]
    rng = Random(8)
    faults: list[Fault] = (
        [Loss(rng, [0.01]), Duplicate(rng, 0.01, 10_000_000), Delay(rng, 0, 2_000_000)]
        if lossy
        else []
    )
    with ExitStack() as stack:
        groups = []
        for port, seal in zip(ports, seals, strict=True):
            transport = kind("127.0.0.1", port, discovery=Discovery([Seeds(seeds)]), seal=seal)
            faulty = FaultyTransport(transport, [*faults, Corrupt(rng, 0.01)] if lossy else [])
            group = blocking.join("damage", transport=faulty, config=QUICK)
            groups.append(stack.enter_context(group))
        for group in groups:
            group.wait_for_members(len(groups), WITHIN_S)
        for number in range(MESSAGES):
            for index, group in enumerate(groups):
                group.send(b"%d %d" % (index, number), timeout=WITHIN_S)
        for group in groups:
            assert received(group) == {index: list(range(MESSAGES)) for index in range(len(groups))}
            assert group.view is not None
            assert len(group.view) == len(groups)
        counters = [group.snapshot().counters for group in groups]
        assert sum(one.get("rejected.seal", 0) for one in counters) > 0


def received(group: blocking.Group) -> dict[int, list[int]]:
    """Return the numbers of all messages by sender, as delivered."""
    found: dict[int, list[int]] = {}
    views = 0
    while sum(map(len, found.values())) < MEMBERS * MESSAGES:
        item = group.receive_event(WITHIN_S)
        views += isinstance(item, ViewChange)
        if payload := getattr(item, "payload", None):
            index, number = map(int, payload.split())
            found.setdefault(index, []).append(number)
    assert views <= MEMBERS, "a member was expelled"
    return found
