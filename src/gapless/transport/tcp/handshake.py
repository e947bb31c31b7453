"""The handshake of a stream: a hello of each side, then START of each side.

In a sealed group hello and START are sealed, so only a member can take over a link. Every hello has
a random part. The answering hello has a digest of the first hello, and START a digest of both
hellos, the sender's first. A recorded answer or START of another stream therefore has a wrong
digest, and is rejected. The datagrams on a stream are sealed individually. Confirmations are plain:
a stranger with write access to a stream can end the stream anyway.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import TYPE_CHECKING

from gapless.errors import RemoteProtocolError
from gapless.transport.tcp.link import MAGIC, START, Hello, encode_numbered, encode_record
from gapless.wire.seal import control_note, is_control

if TYPE_CHECKING:
    from gapless.transport.tcp.stream import TcpStream
    from gapless.wire.seal import Seal

SEALED_MAGIC = b"GLS1"
"""The first bytes of a stream of a sealed group."""
MAX_SEALED_HELLO_BYTES = 512
"""Maximum size of a sealed hello."""

_SIZE = Struct("<H")
_NUMBER = Struct("<Q")
_FRONT_BYTES = len(SEALED_MAGIC) + _SIZE.size
_DIGEST_BYTES = _RANDOM_BYTES = 16
_HELLO, _START = b"GLH1", b"GLR1"
"""How the notes of sealed hellos and STARTs begin; those about shared memory begin otherwise."""


class Handshake:
    """The hellos and STARTs of a member: plain, or sealed."""

    def __init__(self, seal: Seal | None) -> None:
        self._seal = seal

    def write_hello(self, stream: TcpStream, hello: Hello) -> None:
        """Add the hello of this side to the stream."""
        stream.local_hello = hello
        if self._seal is None:
            stream.write_buffer.append(hello.encode())
            return
        answered = b"" if stream.dialled else stream.peer_note
        stream.local_note = _HELLO + os.urandom(_RANDOM_BYTES) + _digest(answered) + hello.encode()
        sealed = self._seal.seal_control(stream.local_note, hello.group, hello.address)
        assert len(sealed) <= MAX_SEALED_HELLO_BYTES, "a hello is short"
        stream.write_buffer.append(SEALED_MAGIC + _SIZE.pack(len(sealed)) + sealed)

    def read_hello(self, stream: TcpStream, data: memoryview) -> tuple[Hello, int] | None:
        """Return the hello at the start of ``data`` and its length; None while incomplete.

        Raises:
            RemoteProtocolError: The bytes are not a hello, or this member cannot open it, or the
                hello answers another one.
        """
        front = bytes(data[:_FRONT_BYTES])
        if self._seal is None:
            if front.startswith(SEALED_MAGIC):
                raise RemoteProtocolError("sealed", "a member of a sealed group connected")
            return Hello.decode(data)
        if not SEALED_MAGIC.startswith(front[: len(SEALED_MAGIC)]):
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
        if len(data) < end:
            return None
        note = _open_note(self._seal, bytes(data[_FRONT_BYTES:end]), _HELLO)
        answered = stream.local_note if stream.dialled else b""
        at = len(_HELLO) + _RANDOM_BYTES
        if not compare_digest(note[at : at + _DIGEST_BYTES], _digest(answered)):
            raise RemoteProtocolError("hello", "the hello answers that of another stream")
        found = Hello.decode(memoryview(note)[at + _DIGEST_BYTES :])
        if found is None:
            raise RemoteProtocolError("hello", "a sealed hello is cut short")
        stream.peer_note = note
        return found[0], end

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
        note = _open_note(self._seal, body, _START)
        at = len(_START) + _NUMBER.size
        # The sender of START has the same notes, each in the other role.
        if not compare_digest(note[at:], _digest(stream.peer_note, stream.local_note)):
            raise RemoteProtocolError("start", "START belongs to another stream")
        return int(_NUMBER.unpack_from(note, len(_START))[0])


def _open_note(seal: Seal, sealed: bytes, kind: bytes) -> bytes:
    """Return the note of a sealed control datagram of a kind."""
    opened = seal.open(sealed)
    note = control_note(opened)
    if not is_control(opened) or not note.startswith(kind):
        raise RemoteProtocolError("record", "a sealed datagram of another kind")
    return note


def _digest(*notes: bytes) -> bytes:
    """Return a digest of notes, each with its length."""
    framed = b"".join(_SIZE.pack(len(note)) + note for note in notes)
    return blake2b(framed, digest_size=_DIGEST_BYTES).digest()
