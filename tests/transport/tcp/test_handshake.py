"""The handshake of a sealed stream, byte by byte, without sockets."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.errors import RemoteProtocolError
from gapless.identity import Address
from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.locator import Locator
from gapless.transport.tcp.handshake import Handshake
from gapless.transport.tcp.link import Hello
from gapless.wire.seal import Seal

A, B, C = (Address(node, 1 << 20) for node in (1, 2, 3))
GROUP = 77


class Stream:
    """The parts of a stream that a handshake uses."""

    def __init__(self, *, dialled: bool) -> None:
        self.dialled = dialled
        self.greeting = self.challenge = self.local_note = self.peer_note = b""
        self.local_hello: Hello | None = None
        self.write_buffer: list[Any] = []

    def take(self) -> memoryview:
        written, self.write_buffer = b"".join(self.write_buffer), []
        return memoryview(written)


class Pair:
    """Two members with one ring, and a stream between them."""

    def __init__(self) -> None:
        ring = Keyring.new().ring
        self.a, self.b = (Handshake(Seal(ring, suites_of(ring))) for _ in range(2))
        self.dialled: Any = Stream(dialled=True)
        self.accepted: Any = Stream(dialled=False)

    def exchange_nonces(self) -> None:
        self.a.write_greeting(self.dialled, GROUP, A)
        self.b.read_greeting(self.accepted, self.dialled.take(), GROUP)
        self.a.read_challenge(self.dialled, self.accepted.take())


def hello_of(address: Address) -> Hello:
    return Hello(GROUP, address, 7, 0, 0, 0, Locator.of("127.0.0.1", 7800 + address.node))


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_handshake_may_arrive_byte_by_byte(pair: Pair) -> None:
    pair.a.write_greeting(pair.dialled, GROUP, A)
    greeting = pair.dialled.take()
    for size in range(len(greeting)):
        assert pair.b.read_greeting(pair.accepted, greeting[:size], GROUP) == 0
        assert pair.accepted.write_buffer == []
    assert pair.b.read_greeting(pair.accepted, greeting, GROUP) == len(greeting)
    challenge = pair.accepted.take()
    assert len(challenge) == 20
    for size in range(len(challenge)):
        assert pair.a.read_challenge(pair.dialled, challenge[:size]) == 0
    assert pair.a.read_challenge(pair.dialled, challenge) == len(challenge)
    for one, mine, other, theirs, who in (
        (pair.a, pair.dialled, pair.b, pair.accepted, A),
        (pair.b, pair.accepted, pair.a, pair.dialled, B),
    ):
        one.write_hello(mine, hello_of(who))
        hello = mine.take()
        for size in range(len(hello)):
            assert other.read_hello(theirs, hello[:size]) is None
        assert other.read_hello(theirs, hello) == (hello_of(who), len(hello))
    for one, mine, other, theirs in (
        (pair.a, pair.dialled, pair.b, pair.accepted),
        (pair.b, pair.accepted, pair.a, pair.dialled),
    ):
        one.write_start(mine, 12)
        assert other.read_start(theirs, bytes(mine.take()[4:])) == 12


def test_every_challenge_and_every_greeting_is_another() -> None:
    pairs = [Pair() for _ in range(3)]
    for pair in pairs:
        pair.exchange_nonces()
    assert len({pair.dialled.greeting for pair in pairs}) == 3
    assert len({pair.accepted.challenge for pair in pairs}) == 3


def test_a_greeting_for_another_group_gets_no_challenge(pair: Pair) -> None:
    pair.a.write_greeting(pair.dialled, GROUP + 1, A)
    with pytest.raises(RemoteProtocolError, match="group: a member of another group connected"):
        pair.b.read_greeting(pair.accepted, pair.dialled.take(), GROUP)
    assert pair.accepted.write_buffer == []


def test_a_hello_that_answers_another_challenge_is_rejected(pair: Pair) -> None:
    pair.exchange_nonces()
    pair.a.write_hello(pair.dialled, hello_of(A))
    hello = pair.dialled.take()
    pair.accepted.challenge = pair.accepted.challenge[:-1] + bytes(
        [pair.accepted.challenge[-1] ^ 1]
    )
    with pytest.raises(RemoteProtocolError, match="the hello belongs to another stream"):
        pair.b.read_hello(pair.accepted, hello)


def test_the_hello_of_the_other_side_covers_the_hello_that_it_answers(pair: Pair) -> None:
    pair.exchange_nonces()
    pair.a.write_hello(pair.dialled, hello_of(A))
    pair.b.read_hello(pair.accepted, pair.dialled.take())
    pair.b.write_hello(pair.accepted, hello_of(B))
    pair.dialled.local_note = b"another hello"
    with pytest.raises(RemoteProtocolError, match="the hello belongs to another stream"):
        pair.a.read_hello(pair.dialled, pair.accepted.take())


def test_a_hello_names_the_member_that_has_sealed_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.exchange_nonces()
    seal = pair.a._seal
    assert seal is not None
    seal_control = seal.seal_control
    monkeypatch.setattr(seal, "seal_control", lambda note, *_: seal_control(note, GROUP, A))
    pair.a.write_hello(pair.dialled, hello_of(C))
    with pytest.raises(RemoteProtocolError, match="names another member than its seal"):
        pair.b.read_hello(pair.accepted, pair.dialled.take())
