"""TCP: one listening port, and a stream to each peer with datagrams to send.

On sending: a datagram waits in its link (link.py) until the number is confirmed. Many datagrams
leave in one call, without copies. Without a stream one is opened, at once or after a back-off that
grows with each failure.

On reception: a stream starts with a hello, followed by datagrams, each with a length, and now and
then a confirmation. Any other bytes end the stream, counted under a reason.

Both sides may connect at once: the stream opened by the lower locator stays. Streams are numbered,
so that a retry of one side is not mistaken for a late first attempt of the other.

The end of a stream loses and repeats no datagram. A datagram can be refused: for a stranger with a
full link, or for a member, if lost datagrams are retransmitted in this group or are unreliable.
Without retransmission the link of a member accepts every datagram; docs/internals/transports.md
explains why the link is bounded all the same.
"""

from __future__ import annotations

import selectors
import socket
import time
from struct import Struct
from typing import TYPE_CHECKING

from gapless.discovery import Discovery
from gapless.errors import RemoteProtocolError
from gapless.identity import Address
from gapless.locator import Locator
from gapless.protocol.ready import ANYONE
from gapless.transport import socket_options
from gapless.transport.address_book import AddressBook
from gapless.transport.base import (
    LOOPBACK_FRAME_BYTES,
    RECEIVE_BUFFER_BYTES,
    TURN_BYTES,
    WHOLE_RUN_BYTES,
    errno_name,
    group_by_target,
)
from gapless.transport.error_log import ErrorLog
from gapless.transport.tcp.connector import DEAD_AFTER_NS, MAX_DIALS, TcpConnector
from gapless.transport.tcp.handshake import Handshake
from gapless.transport.tcp.link import (
    CONFIRM,
    MAX_DATAGRAM_BYTES,
    RECORD_HEADER_BYTES,
    START,
    parse_record_header,
)
from gapless.transport.tcp.memory import keep_released_memory
from gapless.transport.tcp.record_sealer import MAX_ROOMS, RecordSealer
from gapless.transport.tcp.stream import BUFFER_BYTES, EXACT_BYTES, LARGE_BYTES, peer_label
from gapless.transport.udp import PORTS
from gapless.wire import decode
from gapless.wire.codec import SENDER_FIELD, sender_of
from gapless.wire.frames import Unreliable
from gapless.wire.seal import SEAL_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gapless.protocol.ready import Transmit
    from gapless.transport.base import Selectable
    from gapless.transport.tcp.link import Link
    from gapless.transport.tcp.stream import TcpStream
    from gapless.transport.tcp.tls import Certificates
    from gapless.transport.tcp.tls_files import TlsFiles
    from gapless.wire.cipher import Bytes
    from gapless.wire.seal import Seal

QUEUE_BYTES = 64 << 20
"""Maximum number of bytes queued for one member, where lost datagrams are retransmitted."""
STRANGER_QUEUE_BYTES = 1 << 20
"""Maximum number of bytes queued for a stranger."""

_HEAD, _NUMBER = Struct("<I"), Struct("<Q")


class TcpMesh:
    """TCP to each member.

    Args:
        host: The address of this machine for others; by default chosen by ``choose_host``
            (socket_options.py).
        ports: The ports to try in turn; 0 means any free port.
        discovery: The source of candidates, with seeds, names or a directory; multicast finds no
            members over TCP.
        advertise: Another locator for the other members, such as the published port of a container.
        queue_bytes: Maximum size of the queue for one member, where lost datagrams are
            retransmitted.
        receive_buffer_bytes: Requested size of the receive buffer.
        dead_after_ns: How long a stream may go without progress before another stream replaces it.
        seal: The envelope of a sealed group; None without keys.
        tls: A folder with ``ca.pem``, ``cert.pem`` and ``key.pem``, or the files: every stream is
            inside TLS 1.3, with certificates in both directions. None for streams without TLS.

    Raises:
        ConfigError: The files for TLS cannot be used.
        TransportError: No port can be bound.
    """

    may_lose = False

    def __init__(
        self,
        host: str | None = None,
        ports: Iterable[int] | int = PORTS,
        *,
        discovery: Discovery | None = None,
        advertise: Locator | None = None,
        queue_bytes: int = QUEUE_BYTES,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
        dead_after_ns: int = DEAD_AFTER_NS,
        seal: Seal | None = None,
        tls: TlsFiles | str | Path | None = None,
    ) -> None:
        keep_released_memory()
        self.certificates = None if tls is None else _read_certificates(tls)
        ports = [ports] if isinstance(ports, int) else list(ports)
        discovery = discovery or Discovery()
        if seal is not None:
            discovery.seal_entries(seal.ring.entry_key, seal.ring.label)
        listener = socket_options.bind(
            host or socket_options.choose_host(discovery), ports, socket.SOCK_STREAM
        )
        self.problems = ErrorLog()
        self.seal = seal
        self._handshake = Handshake(seal)
        self._sealer = None if seal is None else RecordSealer(seal)
        self._rooms: list[memoryview] = []
        self._family = listener.family
        self.locator = advertise or Locator.from_sockaddr(listener.getsockname())
        self.max_frame_bytes = LOOPBACK_FRAME_BYTES - (SEAL_OVERHEAD_BYTES if seal else 0)
        self.receive_buffer_bytes = receive_buffer_bytes
        self.preserves_bytes = advertise is None and self.locator.ip.is_loopback
        # A stream that ends within a datagram repeats the datagram: on a slow network it should be
        # small.
        self.whole_run_bytes = WHOLE_RUN_BYTES if self.preserves_bytes else 0
        self.book = AddressBook(self.locator, discovery, self._resolve)
        self._connector = TcpConnector(
            listener,
            self.locator,
            self.book,
            self.problems,
            dead_after_ns,
            self._handshake,
            None if self._sealer is None else self._sealer.seal,
            trusts_refusals=(seal is None and tls is None) or self.preserves_bytes,
            certificates=self.certificates,
        )
        self._queue_bytes = queue_bytes
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        multicasts = self.book.discovery.multicasts
        if multicasts and len(multicasts) == len(self.book.discovery.sources):
            self.problems.add(
                "multicast",
                f"{multicasts[0].name} finds no members over TCP; add seeds or a directory to"
                " discover=",
            )

    def _resolve(self, locator: Locator) -> Locator | None:
        if locator.family != self._family:
            self.problems.add(
                "family", f"{locator} cannot be reached from {self.locator}: another address family"
            )
            return None
        return locator

    @property
    def deadline_ns(self) -> int | None:
        """When the next timer of the connector is due."""
        return self._connector.deadline_ns

    @property
    def streams(self) -> set[TcpStream]:
        """The open connections."""
        return self._connector.streams

    def close(self) -> None:
        """Close every socket; bytes accepted at once by the kernel are still sent."""
        self._connector.close()

    # On reception

    def sockets(self) -> Sequence[Selectable]:
        """Return the poller of the streams, because streams come and go."""
        return (self._connector.poller,) if hasattr(self._connector.poller, "fileno") else ()

    def receive(self, limit: int) -> list[bytes]:
        """Return datagrams that have arrived; write the bytes that could not be written before."""
        found: list[bytes] = []
        for key, mask in self._connector.poller.select(0):
            stream: TcpStream | None = key.data
            if stream is None:
                self._connector.accept()
            elif not stream.closed:
                if mask & selectors.EVENT_WRITE:
                    self._connector.on_writable(stream)
                if mask & selectors.EVENT_READ and not stream.closed:
                    self._on_readable(stream, found)
                    if len(found) >= limit:
                        break
        now_ns = time.monotonic_ns()
        deadline_ns = self._connector.deadline_ns
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._connector.run_due_timers(now_ns)
        return found

    def _on_readable(self, stream: TcpStream, found: list[bytes]) -> None:
        """Read a stream for one turn, handle the end, and write what TLS has to answer."""
        self._read_turn(stream, found)
        if (stream.unsent or stream.write_buffer) and not (stream.closed or stream.wants_write):
            self._connector.flush(stream)

    def _read_turn(self, stream: TcpStream, found: list[bytes]) -> None:
        left_bytes = TURN_BYTES
        try:
            while left_bytes > 0 or stream.unread:
                size_bytes = (
                    self._read_large(stream, found)
                    if stream.missing_bytes
                    else self._read(stream, found)
                )
                if not size_bytes:
                    self._connector.on_stream_lost(
                        stream, "stream.ended", "the peer closed the connection"
                    )
                if stream.closed or not (
                    stream.unread
                    or (not stream.is_drained and (stream.missing_bytes or stream.exact_reads))
                ):
                    return
                left_bytes -= size_bytes
        except BlockingIOError:
            return
        except OSError as error:
            self._connector.on_stream_lost(stream, f"stream.{errno_name(error)}", error)
        except RemoteProtocolError as error:
            if error.reason.startswith("tls."):
                self._on_refused(stream, error)
                return
            # Strangers write no log lines in a sealed group; the seal counts them.
            self._connector.on_stream_lost(
                stream, f"stream.{error.reason}", error, loud=self.seal is None
            )

    def _on_refused(self, stream: TcpStream, error: RemoteProtocolError) -> None:
        """Handle a connection that TLS refuses, here or at the peer."""
        assert self.certificates is not None, "only TLS refuses connections"
        target = stream.link.locator if stream.link else None
        self.certificates.note_refusal(f"{peer_label(stream.socket, target)}: {error}")
        self._connector.on_stream_lost(stream, error.reason, error, loud=True)

    def _read(self, stream: TcpStream, found: list[bytes]) -> int:
        """Parse the bytes of one call; return how many there were, 0 at the end of the stream."""
        data = stream.read(self._buffer)
        if data is None:
            return 0
        at = 0
        if stream.peer_hello is None:
            at = self._connector.on_front(stream, data)
        at = self._parse_records(stream, data, at, found)
        if not stream.closed:
            stream.read_remainder = bytes(data[at:])
        return len(data)

    def _read_large(self, stream: TcpStream, found: list[bytes]) -> int:
        """Continue a large datagram; return as ``_read`` does."""
        before_bytes = stream.missing_bytes
        datagram = stream.read_large()
        if datagram is None:
            return 0
        if datagram:
            is_new = self._accept_datagram(stream, datagram, found)
            if stream.room is not None and len(self._rooms) < MAX_ROOMS:
                self._rooms.append(stream.room)
            stream.room = None
            if is_new:
                self._on_received(stream, 1, len(datagram))
        return before_bytes - stream.missing_bytes

    def _parse_records(
        self, stream: TcpStream, data: memoryview, at: int, found: list[bytes]
    ) -> int:
        """Add the complete datagrams of ``data``; return where the rest begins."""
        end, unpack = len(data), _HEAD.unpack_from
        count = size_bytes = 0
        while (
            end - at >= RECORD_HEADER_BYTES and not stream.closed and stream.peer_hello is not None
        ):
            (size,) = unpack(data, at)
            kind = 0
            if not 0 < size <= MAX_DATAGRAM_BYTES:
                kind, size = parse_record_header(data, at, sealed=self.seal is not None)
            body, stop = at + RECORD_HEADER_BYTES, at + RECORD_HEADER_BYTES + size
            if stop > end:
                if not kind and size >= LARGE_BYTES and stream.started:
                    stream.begin_large(data[body:], size, self._take_room())
                    at = end
                break
            if kind:
                self._on_control_record(stream, kind, bytes(data[body:stop]))
            elif not stream.started:
                raise RemoteProtocolError("start", "a datagram arrived before START")
            elif self._accept_datagram(stream, data[body:stop], found):
                count, size_bytes = count + 1, size_bytes + size
                if size >= EXACT_BYTES:
                    stream.expect_large(size)
            at = stop
        if count:
            self._on_received(stream, count, size_bytes)
        return at

    def _take_room(self) -> memoryview | None:
        """Return memory for a large sealed datagram, which is opened out of the memory."""
        if self.seal is None:
            return None
        return self._rooms.pop() if self._rooms else memoryview(bytearray(MAX_DATAGRAM_BYTES))

    def _accept_datagram(self, stream: TcpStream, data: Bytes, found: list[bytes]) -> bool:
        """Add a datagram; return whether the datagram is new."""
        if stream.duplicates_left:
            stream.duplicates_left -= 1
            self.problems.counters["received.again"] += 1
            return False
        if self.seal is None:
            datagram = bytes(data)
        else:
            try:
                datagram = self.seal.open(data)
            except RemoteProtocolError as error:
                # The key may be retired here, or the view of the key not installed yet.
                if error.reason not in {"key", "view key", "replay"}:
                    raise  # a stream changes no bytes: somebody writes into this one
                return True  # counted by the seal; the link counts every datagram
        if datagram[SENDER_FIELD] != stream.sender:
            self._learn_sender(stream, datagram)
        found.append(datagram)
        return True

    def _on_received(self, stream: TcpStream, count: int, size_bytes: int) -> None:
        """Count received datagrams, and confirm now or soon."""
        assert stream.link is not None
        if stream.link.on_received(count, size_bytes):
            self._connector.confirm_soon(stream.link)
        else:
            self._connector.confirm_later(stream.link)

    def _learn_sender(self, stream: TcpStream, datagram: bytes) -> None:
        """Record the locator of the sender of a datagram."""
        sender = sender_of(datagram)
        if sender is not None and stream.link is not None:
            stream.sender = datagram[SENDER_FIELD]
            self.book.learn_source(sender, stream.link.locator)

    def _on_control_record(self, stream: TcpStream, kind: int, body: bytes) -> None:
        """Handle START or CONFIRM."""
        link = stream.link
        assert link is not None
        if kind == START and not stream.started:
            number = self._handshake.read_start(stream, body)
            if link.stream is not stream:
                self._connector.activate(stream)
                if stream.closed:
                    return
            stream.duplicates_left = link.on_start(number)
            stream.started = True
            link.failures = 0
            self._connector.timers.pop((TcpConnector.on_handshake_timeout, stream), None)
            if link.received > link.confirm_sent:
                self._connector.confirm_later(link)
        elif kind == CONFIRM and stream.started:
            link.on_confirm(_NUMBER.unpack(body)[0], time.monotonic_ns())
        else:
            raise RemoteProtocolError("record", f"unexpected record of kind {kind}")

    # On sending

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send datagrams, to each target in the given order."""
        links: dict[Link, None] = {}
        if self._sealer is not None:
            self._sealer.begin()
        for to, datagrams in group_by_target(transmits):
            for target in self._targets(to):
                link = self._connector.links.get(target) or self._connector.get_link(target)
                self._enqueue(link, datagrams)
                if link.stream is None:
                    self._connector.ensure_stream(link)
                else:
                    links[link] = None
        for link in links:
            if link.stream is not None and not link.stream.wants_write:
                self._connector.flush(link.stream)
        if self._sealer is not None:
            self._sealer.end()

    def _targets(self, to: Address | None) -> Sequence[Locator]:
        """Return the locators of a member, of all members, or of all candidates."""
        names = self._connector.aliases
        if to is None:
            return self.book.peers
        if to == ANYONE:
            targets = dict.fromkeys(names.get(target, target) for target in self.book.candidates())
            return [target for target in targets if target != self.locator]
        target = self.book.lookup(to)
        if target is None:
            self.problems.add("send.unknown", f"the locator of member {to.short} is not known")
            return ()
        return (names.get(target, target),)

    def _enqueue(self, link: Link, datagrams: Sequence[bytes]) -> None:
        """Queue datagrams for a peer up to the limit."""
        size_bytes = sum(map(len, datagrams))
        if link.is_busy and link.buffered_bytes + size_bytes <= STRANGER_QUEUE_BYTES:
            for datagram in datagrams:
                link.enqueue(datagram)
            return
        member = link.locator in self.book.peers
        if not member and not self._may_try(link):
            self.problems.counters["send.unreachable"] += len(datagrams)
            return
        limit_bytes = self._queue_bytes if member else STRANGER_QUEUE_BYTES
        for datagram in datagrams:
            if link.buffered_bytes + len(datagram) <= limit_bytes or (
                member and self._must_keep(datagram)
            ):
                link.enqueue(datagram)
            else:
                self.problems.add(
                    "send.full",
                    f"the queue for {link.locator} is full: {link.buffered_bytes} bytes",
                )

    def _may_try(self, link: Link) -> bool:
        """Return whether a stream to a stranger may be opened now."""
        return link.is_busy or (
            self._connector.dials < MAX_DIALS and time.monotonic_ns() >= link.retry_at_ns
        )

    def _must_keep(self, datagram: bytes) -> bool:
        """Return whether the loss of a datagram would never be repaired."""
        if self.book.retransmits:
            return False
        try:
            frames = decode(datagram, opened=self.seal is not None).frames
            return not all(type(frame) is Unreliable for frame in frames)
        except RemoteProtocolError:
            return True


def _read_certificates(given: TlsFiles | str | Path) -> Certificates:
    from gapless.transport.tcp.tls import Certificates  # few members use TLS
    from gapless.transport.tcp.tls_files import TlsFiles

    return Certificates(TlsFiles.of(given))
