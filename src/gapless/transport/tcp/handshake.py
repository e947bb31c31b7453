"""The handshake of a stream: a hello of each side, then START of each side.

In a sealed group only a member can take over a link, and recordings are useless:

    connecting side                         other side
    greeting: sealed, a random nonce   →
                                       ←    challenge: plain, a random nonce
    hello: sealed                      →
                                       ←    hello: sealed
    START: sealed                      →
                                       ←    START: sealed

On reception: every hello has a digest of all that was said on the stream before, so both nonces are
under the tag of either side. START has a digest of both hellos, the sender's first. A recorded
hello or START belongs to other nonces, and is rejected. Before the hello of the connecting side has
opened, the other side has sent 20 random bytes, and has learnt no address. A stranger without keys
gets no answer at all, because the greeting is sealed.

The datagrams on a stream are sealed individually. Confirmations are plain: a stranger with write
access to a stream can end the stream anyway.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING

from gapless.errors import RemoteProtocolError
from gapless.transport.tcp.link import MAGIC, START, Hello, encode_numbered, encode_record
from gapless.wire.codec import SENDER_FIELD
from gapless.wire.seal import control_note, is_control

if TYPE_CHECKING:
    from gapless.identity import Address
    from gapless.transport.tcp.stream import TcpStream
    from gapless.wire.seal import Seal

SEALED_MAGIC = b"GLS1"
"""The first bytes of a stream of a sealed group, and of every sealed hello."""
CHALLENGE_MAGIC = b"GLC1"
"""The first bytes of a challenge."""
MAX_SEALED_HELLO_BYTES = 512
"""Maximum size of a sealed hello."""

_SIZE = Struct("<H")
_TLS_HANDSHAKE = b"\x16\x03"
"""How a connection inside TLS begins."""
_NUMBER = Struct("<Q")
_GROUP_AND_SENDER = Struct("<QQQ")
_GROUP_AT = SENDER_FIELD.start - _NUMBER.size
_FRONT_BYTES = len(SEALED_MAGIC) + _SIZE.size
_DIGEST_BYTES = _NONCE_BYTES = 16
_CHALLENGE_BYTES = len(CHALLENGE_MAGIC) + _NONCE_BYTES
_GREETING, _HELLO, _START = b"GLN1", b"GLH1", b"GLR1"
"""How the notes of handshakes begin; notes about shared memory begin otherwise."""


class Handshake:
    """The hellos and STARTs of a member: plain, or sealed."""

    def __init__(self, seal: Seal | None) -> None:
        self._seal = seal

    @property
    def has_greetings(self) -> bool:
        """Whether a greeting and a challenge precede the hellos."""
        return self._seal is not None

    def write_greeting(self, stream: TcpStream, group: int, sender: Address) -> None:
        """Add the greeting of the connecting side to the stream."""
        assert self._seal is not None, "only a sealed stream has a greeting"
        stream.greeting = _GREETING + os.urandom(_NONCE_BYTES)
        stream.write_buffer.append(_frame(self._seal.seal_control(stream.greeting, group, sender)))

    def read_greeting(self, stream: TcpStream, data: memoryview, group: int) -> int:
        """Handle the greeting of a connecting peer: add the challenge to the stream.

        Return the length, or 0 while incomplete.

        Raises:
            RemoteProtocolError: The bytes are not a greeting, this member cannot open the
                greeting, or the greeting is for another group.
        """
        found = self._read_sealed(data)
        if found is None:
            return 0
        sealed, end = found
        stream.greeting, sender = self._open_note(sealed, _GREETING)
        if len(stream.greeting) != len(_GREETING) + _NONCE_BYTES:
            raise RemoteProtocolError("hello", "a greeting of another length")
        if sender[0] != group:
            raise RemoteProtocolError("group", "a member of another group connected")
        stream.challenge = CHALLENGE_MAGIC + os.urandom(_NONCE_BYTES)
        stream.write_buffer.append(stream.challenge)
        return end

    def read_challenge(self, stream: TcpStream, data: memoryview) -> int:
        """Handle the challenge of the peer; return the length, or 0 while incomplete.

        Raises:
            RemoteProtocolError: The bytes are not a challenge.
        """
        assert self._seal is not None, "only a sealed stream has a challenge"
        front = bytes(data[:_CHALLENGE_BYTES])
        if not CHALLENGE_MAGIC.startswith(front[: len(CHALLENGE_MAGIC)]):
            if front.startswith(MAGIC):
                self._seal.rejected["unsealed"] += 1
                raise RemoteProtocolError("unsealed", "a member without keys answered")
            raise RemoteProtocolError("hello", f"expected a challenge, got {front[:16]!r}")
        if len(front) < _CHALLENGE_BYTES:
            return 0
        stream.challenge = front
        return _CHALLENGE_BYTES

    def write_hello(self, stream: TcpStream, hello: Hello) -> None:
        """Add the hello of this side to the stream."""
        stream.local_hello = hello
        if self._seal is None:
            stream.write_buffer.append(hello.encode())
            return
        answered = () if stream.dialled else (stream.peer_note,)
        digest = _digest(stream.greeting, stream.challenge, *answered)
        stream.local_note = _HELLO + digest + hello.encode()
        sealed = self._seal.seal_control(stream.local_note, hello.group, hello.address)
        stream.write_buffer.append(_frame(sealed))

    def read_hello(self, stream: TcpStream, data: memoryview) -> tuple[Hello, int] | None:
        """Return the hello at the start of ``data`` and its length; None while incomplete.

        Raises:
            RemoteProtocolError: The bytes are not a hello, or this member cannot open it, or the
                hello belongs to another stream.
        """
        if self._seal is None:
            front = bytes(data[: len(SEALED_MAGIC)])
            if front == SEALED_MAGIC:
                raise RemoteProtocolError("sealed", "a member of a sealed group connected")
            if front.startswith(_TLS_HANDSHAKE):
                raise _tls_connected()
            return Hello.decode(data)
        framed = self._read_sealed(data)
        if framed is None:
            return None
        sealed, end = framed
        note, sender = self._open_note(sealed, _HELLO)
        at = len(_HELLO) + _DIGEST_BYTES
        answered = (stream.local_note,) if stream.dialled else ()
        expected = _digest(stream.greeting, stream.challenge, *answered)
        if not compare_digest(note[len(_HELLO) : at], expected):
            raise RemoteProtocolError("hello", "the hello belongs to another stream")
        found = Hello.decode(memoryview(note)[at:])
        if found is None:
            raise RemoteProtocolError("hello", "a sealed hello is cut short")
        if (found[0].group, *found[0].address) != sender:
            raise RemoteProtocolError("hello", "the hello names another member than its seal")
        stream.peer_note = note
        return found[0], end

    def _read_sealed(self, data: memoryview) -> tuple[bytes, int] | None:
        """Return the sealed datagram at the start of ``data`` and its end; None while incomplete.

        Raises:
            RemoteProtocolError: The bytes are something else.
        """
        assert self._seal is not None, "only members with keys read sealed datagrams"
        front = bytes(data[:_FRONT_BYTES])
        if not SEALED_MAGIC.startswith(front[: len(SEALED_MAGIC)]):
            if front.startswith(_TLS_HANDSHAKE):
                raise _tls_connected()
            if not front.startswith(MAGIC):
                raise RemoteProtocolError("hello", f"expected a sealed hello, got {front[:16]!r}")
            self._seal.rejected["unsealed"] += 1
            raise RemoteProtocolError("unsealed", "a member without keys connected")
        if len(front) < _FRONT_BYTES:
            return None
        (size,) = _SIZE.unpack_from(front, len(SEALED_MAGIC))
        if size > MAX_SEALED_HELLO_BYTES:
            raise RemoteProtocolError("hello", f"a hello of {size} bytes is too long")
        end = _FRONT_BYTES + size
        return None if len(data) < end else (bytes(data[_FRONT_BYTES:end]), end)

    def write_start(self, stream: TcpStream, number: int) -> None:
        """Add START to the stream: the number of the next datagram."""
        hello = stream.local_hello
        assert hello is not None, "START follows the hellos"
        if self._seal is None:
            stream.write_buffer.append(encode_numbered(START, number))
            return
        note = _START + _NUMBER.pack(number) + _digest(stream.local_note, stream.peer_note)
        sealed = self._seal.seal_control(note, hello.group, hello.address)
        stream.write_buffer.append(encode_record(START, sealed))

    def read_start(self, stream: TcpStream, body: bytes) -> int:
        """Return the number in START.

        Raises:
            RemoteProtocolError: START is not sealed, or belongs to another stream.
        """
        if self._seal is None:
            return int(_NUMBER.unpack(body)[0])
        note, _ = self._open_note(body, _START)
        at = len(_START) + _NUMBER.size
        # The sender of START has the same notes, each in the other role.
        if not compare_digest(note[at:], _digest(stream.peer_note, stream.local_note)):
            raise RemoteProtocolError("start", "START belongs to another stream")
        return int(_NUMBER.unpack_from(note, len(_START))[0])

    def _open_note(self, sealed: bytes, kind: bytes) -> tuple[bytes, tuple[int, int, int]]:
        """Return the note of a sealed control datagram of a kind, and its group and sender."""
        assert self._seal is not None, "only members with keys open notes"
        opened = self._seal.open(sealed)
        note = control_note(opened)
        if not is_control(opened) or not note.startswith(kind):
            raise RemoteProtocolError("record", "a sealed datagram of another kind")
        return note, _GROUP_AND_SENDER.unpack_from(opened, _GROUP_AT)


def _tls_connected() -> RemoteProtocolError:
    return RemoteProtocolError("tls", "a member with certificates connected: pass tls= here too")


def _frame(sealed: bytes) -> bytes:
    """Return a sealed greeting or hello as it stands on a stream."""
    assert len(sealed) <= MAX_SEALED_HELLO_BYTES, "a hello is short"
    return SEALED_MAGIC + _SIZE.pack(len(sealed)) + sealed


def _digest(*notes: bytes) -> bytes:
    """Return a digest of notes, each with its length."""
    framed = b"".join(_SIZE.pack(len(note)) + note for note in notes)
    return blake2b(framed, digest_size=_DIGEST_BYTES).digest()
