"""One TCP stream: bytes out as far as the kernel takes them, bytes in as far as they have come."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from gapless.transport.tcp.link import BATCH_BYTES, RECORD_HEADER_BYTES

if TYPE_CHECKING:
    from gapless.locator import Locator
    from gapless.transport.tcp.link import Hello, Link

LARGE_BYTES = 1 << 15
"""A datagram of so many bytes that has come in part is waited for by itself."""
BUFFER_BYTES = LARGE_BYTES + BATCH_BYTES
"""Room for a record that has come in part, and as much again as one call may bring."""
_KEEP_IDLE_S, _KEEP_INTERVAL_S, _KEEP_COUNT = 5, 2, 3


class TcpStream:
    """A connection, opened by this side (``dialled``) or by the other, for a link once it is known for which."""

    def __init__(self, one: socket.socket, link: Link | None, *, dialled: bool) -> None:
        self.socket = one
        self.link = link
        self.dialled = dialled
        self.closed = False
        self.wants_write = dialled
        """Whether it waits until it can write: a new connection can when it stands."""
        self.broken = False
        """Whether nothing can be written any more."""
        self.events = 0
        """What its poller waits for."""
        self.local_hello: Hello | None = None
        self.peer_hello: Hello | None = None
        self.started = False
        """Whether the other side has said START: only then has it taken this stream for the one in use."""
        self.duplicates_left = 0
        """How many of the next datagrams have come before, on another stream."""
        self.sender = b""
        """Who spoke last, in the form of a datagram's header."""
        self.write_buffer: list[bytes | memoryview] = []
        self.read_remainder = b""
        self.missing_bytes = 0
        """What is still to come of a large datagram that has begun."""
        self._parts: list[bytes] = []
        self.after_large = False
        """Whether the last thing that came was such a datagram: then there may be another."""

    def read(self, buffer: memoryview) -> memoryview | None:
        """Return what has come and is not worked on yet, None at the end of the stream.

        Behind a large datagram there is often another: then only its length is read, and the rest
        by ``go_on``.
        """
        size = len(self.read_remainder)
        buffer[:size] = self.read_remainder
        end = max(size + 1, RECORD_HEADER_BYTES) if self.after_large else len(buffer)
        self.after_large = False
        count = self.socket.recv_into(buffer[size:end])
        return buffer[: size + count] if count else None

    def begin_large(self, front: memoryview, size_bytes: int) -> None:
        """Keep what has come of a large datagram; the rest is read by itself, so that it is copied only once."""
        self._parts, self.missing_bytes = [bytes(front)] if front else [], size_bytes - len(front)

    def read_large(self) -> bytes | None:
        """Return the datagram that has begun once all of it has come, until then nothing, None at the end."""
        part = self.socket.recv(self.missing_bytes)
        if not part:
            return None
        self._parts.append(part)
        self.missing_bytes -= len(part)
        if self.missing_bytes:
            return b""
        parts, self._parts, self.after_large = self._parts, [], True
        return part if len(parts) == 1 else b"".join(parts)

    def write(self) -> None:
        """Write what is to go out, as much of it as the kernel takes."""
        count = self.socket.sendmsg(self.write_buffer)
        for at, piece in enumerate(self.write_buffer):
            if count < len(piece):
                self.write_buffer = [memoryview(piece)[count:], *self.write_buffer[at + 1 :]]
                return
            count -= len(piece)
        self.write_buffer = []


def configure_socket(one: socket.socket, dead_after_ms: int) -> None:
    """Let a socket neither block nor wait for company, and notice by itself when nobody is at the other end."""
    one.setblocking(False)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_USER_TIMEOUT": dead_after_ms,
        "TCP_KEEPIDLE": _KEEP_IDLE_S,
        "TCP_KEEPINTVL": _KEEP_INTERVAL_S,
        "TCP_KEEPCNT": _KEEP_COUNT,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            one.setsockopt(socket.IPPROTO_TCP, option, value)


def peer_label(one: socket.socket, place: Locator | None) -> str:
    """Return the other end of a socket, for people."""
    if place is not None:
        return str(place)
    try:
        host, port = one.getpeername()[:2]
    except OSError:
        return "somebody who is gone"
    return f"{host} port {port}"
