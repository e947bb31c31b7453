"""A TCP stream inside TLS: the records of a stream are encrypted on the way to the kernel.

On reading: encrypted bytes go from the socket into TLS, and plain bytes from TLS to the parser.
TLS may have plain bytes although the socket has none: ``unread`` says so, and the transport reads
on within the turn.

On writing: until both sides have shaken hands nothing can be encrypted, so the stream waits for the
peer, and not for the kernel (``awaits_peer``). Encrypted bytes that the kernel does not accept at
once are kept in ``unsent``, and leave before any others.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gapless.transport.tcp.stream import TcpStream
from gapless.transport.tcp.tls import tls_error

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from gapless.transport.tcp.link import Link
    from gapless.transport.tcp.tls import Session


class TlsStream(TcpStream):
    """A stream with TLS."""

    def __init__(
        self, sock: socket.socket, link: Link | None, session: Session, *, dialled: bool
    ) -> None:
        super().__init__(sock, link, dialled=dialled)
        self._tls, self._incoming, self._outgoing, self._buffer = session
        self._receive_into, self._receive = self._decrypt_into, self._decrypt
        self._send_buffers = self._encrypt
        self.awaits_peer = True

    # Reading

    def _decrypt_into(self, target: memoryview) -> int:
        """Fill ``target`` as far as there are bytes; return their number, 0 at the end.

        Raises:
            BlockingIOError: No bytes have arrived.
            RemoteProtocolError: TLS refuses the connection.
        """
        count = 0
        while count < len(target):
            try:
                size = self._read_tls(target[count:])
            except ssl.SSLWantReadError:
                self.unread = False
                self._take_outgoing()
                if count:
                    break
                size = self.socket.recv_into(self._buffer)
                if not size:
                    return 0
                self._incoming.write(self._buffer[:size])
                self.unread = True
            except ssl.SSLError as error:
                self._send_alert()
                raise tls_error(error) from error
            else:
                if not size:
                    break
                count += size
        return count

    def _read_tls(self, target: memoryview) -> int:
        """Return how many plain bytes were read into ``target``; 0 at the end."""
        if self.awaits_peer:
            self._shake_hands()
        size: Any = self._tls.read(len(target), target)
        return int(size)  # with a buffer ``read`` returns a number, contrary to its stub

    def _decrypt(self, max_bytes: int) -> bytes:
        """Return at most ``max_bytes``, b"" at the end."""
        data = bytearray(min(max_bytes, len(self._buffer)))
        count = self._decrypt_into(memoryview(data))
        return bytes(memoryview(data)[:count])

    # Writing

    def _encrypt(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Encrypt all buffers, and send as much as the kernel accepts; return the plain size.

        Raises:
            BlockingIOError: The kernel accepts no more, or the handshake is not complete.
        """
        self._send_unsent()
        if self.awaits_peer:
            # An SSLError is an OSError here, and ends the stream.
            with suppress(ssl.SSLWantReadError):
                self._shake_hands()
            self._take_outgoing()
            self._send_unsent()
            if self.awaits_peer:
                raise BlockingIOError
        data = memoryview(b"".join(buffers))
        at = 0
        while at < len(data):
            at += self._tls.write(data[at:])
        self._take_outgoing()
        with suppress(BlockingIOError):
            self._send_unsent()
        return len(data)

    def _shake_hands(self) -> None:
        self._tls.do_handshake()
        self.awaits_peer = False

    def _take_outgoing(self) -> None:
        if self._outgoing.pending:
            self.unsent = b"".join((self.unsent, self._outgoing.read()))

    def _send_unsent(self) -> None:
        while self.unsent:
            count = self.socket.send(self.unsent)
            self.unsent = memoryview(self.unsent)[count:]

    def _send_alert(self) -> None:
        """Say why the connection ends, if the kernel accepts the bytes at once."""
        self._take_outgoing()
        with suppress(OSError):
            self._send_unsent()
