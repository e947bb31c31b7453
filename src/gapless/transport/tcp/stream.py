"""One TCP stream: writes as much as the kernel accepts, and reads all bytes that have arrived."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from gapless.transport.tcp.link import BATCH_BYTES, bytes_to_next_body

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.locator import Locator
    from gapless.transport.tcp.link import Hello, Link
    from gapless.wire.cipher import Bytes

LARGE_BYTES = 1 << 15
"""Minimum size of a datagram that is read separately once the first part has arrived."""
BUFFER_BYTES = LARGE_BYTES + BATCH_BYTES
"""Size of the read buffer: a partial record, and as much again as one call may return."""
EXACT_BYTES = 1 << 17
"""Minimum size of a datagram whose copy costs more than two reads for the header and the rest."""
EXACT_READS = 8
"""How many reads after such a datagram end with the header of a record.

Another one is likely to follow, perhaps behind a few small records. A read that ends with its
header leaves the datagram to a read of its own, which needs no copy.
"""
_WITHOUT_PACING = b"reno"
_KEEP_IDLE_S, _KEEP_INTERVAL_S, _KEEP_COUNT = 5, 2, 3


class TcpStream:
    """A connection, ``dialled`` by this side or by the peer; ``link`` is None until the hello."""

    def __init__(self, sock: socket.socket, link: Link | None, *, dialled: bool) -> None:
        self.socket = sock
        self.link = link
        self.dialled = dialled
        # Inside TLS other functions take their place.
        self._receive_into: Callable[[memoryview], int] = sock.recv_into
        self._receive: Callable[[int], bytes] = sock.recv
        self._send_buffers: Callable[[Sequence[bytes | memoryview]], int] = sock.sendmsg
        self.awaits_peer = False
        """Whether nothing can be written before the peer has answered: TLS shakes hands."""
        self.unread = False
        """Whether TLS may have bytes that the socket does not show."""
        self.unsent: bytes | memoryview = b""
        """Bytes of TLS that leave before the write buffer."""
        self.closed = False
        self.is_connected = not dialled
        """Whether the connection is established."""
        self.wants_write = dialled
        """Whether to wait for writability: a new connection is writable once it is established."""
        self.broken = False
        """Whether a write has failed."""
        self.events = 0
        """The events that the poller waits for."""
        self.local_hello: Hello | None = None
        self.peer_hello: Hello | None = None
        self.greeting = self.challenge = b""
        """The nonces of both sides, as sent before the hellos; empty without keys."""
        self.local_note = self.peer_note = b""
        """What the sealed hello of each side carries; empty without keys."""
        self.started = False
        """Whether START has arrived: only then does the peer use this stream."""
        self.duplicates_left = 0
        """How many of the next datagrams were received before, on another stream."""
        self.sender = b""
        """The sender of the last datagram, as the bytes of its header."""
        self.write_buffer: list[bytes | memoryview] = []
        self.read_remainder = b""
        self.missing_bytes = 0
        """The missing bytes of a partial large datagram."""
        self._parts: list[bytes] = []
        self.room: memoryview | None = None
        """Memory for a large datagram of a sealed group; None without keys, and between two."""
        self._large = memoryview(b"")
        self._large_bytes = 0
        self.exact_reads = 0
        """How many of the next reads end with the header of a record."""
        self.is_drained = False
        """Whether the last read took every byte that had arrived."""

    def read(self, buffer: memoryview) -> memoryview | None:
        """Return bytes to parse; None at the end of the stream.

        Soon after a datagram of ``EXACT_BYTES`` a read ends with the header of the next record, so
        that ``read_large`` gets all of the next such datagram.
        """
        remainder, end = self.read_remainder, len(buffer)
        size = len(remainder)
        if size:
            buffer[:size] = remainder
        if self.exact_reads:
            self.exact_reads -= 1
            end = max(size + 1, min(end, bytes_to_next_body(remainder)))
        count = self._receive_into(buffer[size:end])
        self.is_drained = size + count < end
        return buffer[: size + count] if count else None

    def begin_large(
        self, front: memoryview, size_bytes: int, room: memoryview | None = None
    ) -> None:
        """Keep the first part of a large datagram; the rest is read separately and copied once.

        With a ``room`` the datagram is read into this memory.
        """
        self._large_bytes, self.missing_bytes = size_bytes, size_bytes - len(front)
        self.room = room
        if room is None:
            self._parts = [bytes(front)] if front else []
        else:
            self._large = room[:size_bytes]
            self._large[: len(front)] = front

    def read_large(self) -> Bytes | None:
        """Return the large datagram if complete, b"" if not, None at the end."""
        if self.room is not None:
            return self._read_into_room()
        part = self._receive(self.missing_bytes)
        if not part:
            return None
        self.missing_bytes -= len(part)
        self.is_drained = self.missing_bytes > 0
        if self.is_drained:
            self._parts.append(part)
            return b""
        self.expect_large(self._large_bytes)
        if not self._parts:
            return part
        parts, self._parts = [*self._parts, part], []
        return b"".join(parts)

    def expect_large(self, size_bytes: int) -> None:
        """Prepare for another datagram like the complete one of ``size_bytes``."""
        self.exact_reads = EXACT_READS if size_bytes >= EXACT_BYTES else 0

    def _read_into_room(self) -> Bytes | None:
        count = self._receive_into(self._large[-self.missing_bytes :])
        if not count:
            return None
        self.missing_bytes -= count
        self.is_drained = self.missing_bytes > 0
        if self.is_drained:
            return b""
        self.expect_large(self._large_bytes)
        return self._large

    def write(self) -> None:
        """Write as much of the write buffer as the kernel accepts."""
        count = self._send_buffers(self.write_buffer)
        for at, buffer in enumerate(self.write_buffer):
            if count < len(buffer):
                self.write_buffer = [memoryview(buffer)[count:], *self.write_buffer[at + 1 :]]
                return
            count -= len(buffer)
        self.write_buffer = []


def configure_socket(sock: socket.socket, dead_after_ms: int) -> None:
    """Make a socket non-blocking, without Nagle's delay, and with detection of a dead peer."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_USER_TIMEOUT": dead_after_ms,
        "TCP_KEEPIDLE": _KEEP_IDLE_S,
        "TCP_KEEPINTVL": _KEEP_INTERVAL_S,
        "TCP_KEEPCNT": _KEEP_COUNT,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def use_without_pacing(sock: socket.socket) -> None:
    """Let a listener or a new socket of this machine send without pacing, where possible.

    Between two processes of one machine nothing is congested and nothing is lost. There an
    algorithm that spreads packets over time, as BBR does where the system has it as its default,
    costs more than the copies. RENO is the one that any process may choose.
    """
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is not None:
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, _WITHOUT_PACING)


def peer_label(sock: socket.socket, target: Locator | None) -> str:
    """Return the other end of a socket as text."""
    if target is not None:
        return str(target)
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "a closed connection"
    return f"{host} port {port}"
