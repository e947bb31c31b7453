"""Sealed transports: refusals that a stranger can send, and datagrams that wait for a stream."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from gapless.identity import Address, RosterEntry, View
from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.locator import Locator
from gapless.protocol.events import Located, ViewInstalled
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.transport import UdpMesh, socket_options
from gapless.transport.tcp.link import Link
from gapless.wire.codec import encode
from gapless.wire.frames import Ack
from gapless.wire.seal import Seal

A, B = Address(1, 10), Address(2, 20)
THERE = Locator.of("127.0.0.1", 9)


def a_seal() -> Seal:
    ring = Keyring.new().ring
    return Seal(ring, suites_of(ring))


@pytest.mark.parametrize(
    ("sealed", "on_this_machine", "evidence"),
    [
        (False, False, DeathEvidence.REFUSED),
        (True, True, DeathEvidence.REFUSED),
        (True, False, DeathEvidence.REJECTED),
    ],
)
def test_a_refusal_from_the_network_is_only_a_hint_in_a_sealed_group(
    sealed: bool, on_this_machine: bool, evidence: DeathEvidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ICMP can be forged, and quotes what its sender likes."""
    transport = UdpMesh("127.0.0.1", 0, seal=a_seal() if sealed else None)
    try:
        transport.preserves_bytes = on_this_machine
        transport.book.announce(RosterEntry(A, "", transport.locator.encode()))
        transport.book.on_events([Located(B, THERE.encode()), ViewInstalled(View.of(1, A, B))])
        quoted = encode(1, A, (Ack(A, 1, 1),), addressee=B.incarnation)
        errors: Any = [(THERE.sockaddr, errno.ECONNREFUSED, quoted)]
        monkeypatch.setattr(socket_options, "read_error_queue", lambda _: errors)
        transport._read_errors()
        assert transport.book.take_evidence() == [(B, evidence)]
        transport.book.note_refused(THERE.sockaddr, trusted=not sealed or on_this_machine)
        assert transport.book.take_evidence() == [(B, evidence)]
    finally:
        transport.close()


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
