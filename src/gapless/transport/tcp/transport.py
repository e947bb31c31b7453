"""TCP: one listening port, and a stream to each place that there is something to send to.

On sending: what is for a place waits in its link (tcp_link.py) until its number is confirmed; many
datagrams leave in one call, none of them copied. Without a stream one is opened, at once or after a
pause that grows with each failure.

On reception: whoever connects says hello first; then a stream holds datagrams, each with its
length, and now and then a confirmation. Whatever else it holds ends it, counted under its reason.

Both sides may connect at once: the stream that the lower locator has opened stays. Streams are
numbered, so that one side's second thought is not mistaken for the other's late first one.

Nothing is lost or repeated by a stream that ends. What can be refused is a datagram: one for a
stranger whose link is full, or for a member, if lost datagrams are repaired in this group (or are
not meant to be). Without repair a member's link takes everything; docs/transports.md says why that
has an end.
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
from gapless.transport.tcp.link import (
    CONFIRM,
    MAX_DATAGRAM_BYTES,
    RECORD_HEADER_BYTES,
    START,
    parse_record_header,
)
from gapless.transport.tcp.stream import BUFFER_BYTES, LARGE_BYTES
from gapless.transport.udp import PORTS
from gapless.wire import decode
from gapless.wire.codec import SENDER_FIELD, sender_of
from gapless.wire.frames import Unreliable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.protocol.ready import Transmit
    from gapless.transport.base import Selectable
    from gapless.transport.tcp.link import Link
    from gapless.transport.tcp.stream import TcpStream

QUEUE_BYTES = 64 << 20
"""What may wait for one member, where lost datagrams are repaired."""
STRANGER_QUEUE_BYTES = 1 << 20
"""What may wait for one who is no member."""

_HEAD, _NUMBER = Struct("<I"), Struct("<Q")


class TcpMesh:
    """TCP to each member.

    ``host`` and ``ports`` are those of :class:`UdpMesh`; ``advertise`` is where others reach this
    member if that is another place, such as the published port of a container. ``queue_bytes``
    bounds what waits for one member where lost datagrams are repaired. A stream on which nothing
    moves for ``dead_after_ns`` is opened anew.
    """

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
    ) -> None:
        ports = [ports] if isinstance(ports, int) else list(ports)
        listener = socket_options.bind(
            host or socket_options.default_host(), ports, socket.SOCK_STREAM
        )
        self.problems = ErrorLog()
        self._family = listener.family
        self.locator = advertise or Locator.from_sockaddr(listener.getsockname())
        self.max_frame_bytes = LOOPBACK_FRAME_BYTES
        self.receive_buffer_bytes = receive_buffer_bytes
        self.preserves_bytes = advertise is None and self.locator.ip.is_loopback
        # A stream begins a datagram anew if it was cut within: where that may take long, it should
        # not be large.
        self.whole_run_bytes = WHOLE_RUN_BYTES if self.preserves_bytes else 0
        self.book = AddressBook(self.locator, discovery or Discovery(), self._resolve)
        self._connector = TcpConnector(
            listener, self.locator, self.book, self.problems, dead_after_ns
        )
        self._queue_bytes = queue_bytes
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        multicasts = self.book.discovery.multicasts
        if multicasts and len(multicasts) == len(self.book.discovery.sources):
            self.problems.add(
                "multicast",
                f"{multicasts[0].name} finds nobody over TCP: name seeds or a directory too",
            )

    def _resolve(self, locator: Locator) -> Locator | None:
        if locator.family != self._family:
            self.problems.add("family", f"{locator} is out of reach of {self.locator}")
            return None
        return locator

    @property
    def deadline_ns(self) -> int | None:
        """When the connector has something to do although no socket is ready."""
        return self._connector.deadline_ns

    @property
    def streams(self) -> set[TcpStream]:
        """The open connections."""
        return self._connector.streams

    def close(self) -> None:
        """Close every socket; data that the kernel accepts at once is still sent."""
        self._connector.close()

    # On reception

    def sockets(self) -> Sequence[Selectable]:
        """Return the poller of the streams, which come and go."""
        return (self._connector.poller,) if hasattr(self._connector.poller, "fileno") else ()

    def receive(self, limit: int) -> list[bytes]:
        """Return what has come; write what could not be written before."""
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
        left_bytes = TURN_BYTES
        try:
            while left_bytes > 0:
                size_bytes = (
                    self._read_large(stream, found)
                    if stream.missing_bytes
                    else self._read(stream, found)
                )
                if not size_bytes:
                    self._connector.on_stream_lost(
                        stream, "stream.ended", "the other side has closed it"
                    )
                if stream.closed or not (stream.missing_bytes or stream.after_large):
                    return
                left_bytes -= size_bytes
        except BlockingIOError:
            return
        except OSError as error:
            self._connector.on_stream_lost(stream, f"stream.{errno_name(error)}", error)
        except RemoteProtocolError as error:
            self._connector.on_stream_lost(stream, f"stream.{error.reason}", error, loud=True)

    def _read(self, stream: TcpStream, found: list[bytes]) -> int:
        """Take what one call brings; return how much that was, nothing at the end."""
        data = stream.read(self._buffer)
        if data is None:
            return 0
        at = 0
        if stream.peer_hello is None:
            at = self._connector.on_hello(stream, data)
        at = self._parse_records(stream, data, at, found)
        if not stream.closed:
            stream.read_remainder = bytes(data[at:])
        return len(data)

    def _read_large(self, stream: TcpStream, found: list[bytes]) -> int:
        """Go on with a large datagram; return as ``_read`` does."""
        before_bytes = stream.missing_bytes
        datagram = stream.read_large()
        if datagram is None:
            return 0
        if datagram and self._accept_datagram(stream, datagram, found):
            self._on_received(stream, 1, len(datagram))
        return before_bytes - stream.missing_bytes

    def _parse_records(
        self, stream: TcpStream, data: memoryview, at: int, found: list[bytes]
    ) -> int:
        """Add the datagrams that are complete; return where the rest begins."""
        end, unpack = len(data), _HEAD.unpack_from
        count = size_bytes = 0
        while (
            end - at >= RECORD_HEADER_BYTES and not stream.closed and stream.peer_hello is not None
        ):
            (size,) = unpack(data, at)
            kind = 0
            if not 0 < size <= MAX_DATAGRAM_BYTES:
                kind, size = parse_record_header(data, at)
            body, stop = at + RECORD_HEADER_BYTES, at + RECORD_HEADER_BYTES + size
            if stop > end:
                if not kind and size >= LARGE_BYTES and stream.started:
                    stream.begin_large(data[body:], size)
                    at = end
                break
            if kind:
                self._on_control_record(stream, kind, *_NUMBER.unpack_from(data, body))
            elif not stream.started:
                raise RemoteProtocolError("start", "a datagram came before it")
            elif self._accept_datagram(stream, bytes(data[body:stop]), found):
                count, size_bytes = count + 1, size_bytes + size
            at = stop
        if count:
            self._on_received(stream, count, size_bytes)
        return at

    def _accept_datagram(self, stream: TcpStream, datagram: bytes, found: list[bytes]) -> bool:
        """Add a datagram that has come; return whether it is new."""
        if stream.duplicates_left:
            stream.duplicates_left -= 1
            self.problems.counters["received.again"] += 1
            return False
        if datagram[SENDER_FIELD] != stream.sender:
            self._learn_sender(stream, datagram)
        found.append(datagram)
        return True

    def _on_received(self, stream: TcpStream, count: int, size_bytes: int) -> None:
        assert stream.link is not None
        if stream.link.on_received(count, size_bytes):
            self._connector.confirm(stream.link)
        else:
            self._connector.confirm_later(stream.link)

    def _learn_sender(self, stream: TcpStream, datagram: bytes) -> None:
        sender = sender_of(datagram)
        if sender is not None and stream.link is not None:
            stream.sender = datagram[SENDER_FIELD]
            self.book.learn_source(sender, stream.link.locator)

    def _on_control_record(self, stream: TcpStream, kind: int, number: int) -> None:
        link = stream.link
        assert link is not None
        if kind == START and not stream.started:
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
            link.on_confirm(number, time.monotonic_ns())
        else:
            raise RemoteProtocolError("record", f"kind {kind} out of turn")

    # On sending

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Put datagrams on their way, to each target in this order."""
        links: dict[Link, None] = {}
        for to, datagrams in group_by_target(transmits):
            for place in self._targets(to):
                link = self._connector.links.get(place) or self._connector.get_link(place)
                self._enqueue(link, datagrams)
                if link.stream is None:
                    self._connector.ensure_stream(link)
                else:
                    links[link] = None
        for link in links:
            if link.stream is not None and not link.stream.wants_write:
                self._connector.flush(link.stream)

    def _targets(self, to: Address | None) -> Sequence[Locator]:
        names = self._connector.aliases
        if to is None:
            return self.book.peers
        if to == ANYONE:
            places = dict.fromkeys(names.get(place, place) for place in self.book.candidates())
            return [place for place in places if place != self.locator]
        place = self.book.lookup(to)
        if place is None:
            self.problems.add("send.unknown", f"nobody knows where {to} is")
            return ()
        return (names.get(place, place),)

    def _enqueue(self, link: Link, datagrams: Sequence[bytes]) -> None:
        """Queue datagrams for a place as far as they are taken."""
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
                    "send.full", f"{link.buffered_bytes} bytes wait for {link.locator}"
                )

    def _may_try(self, link: Link) -> bool:
        return link.is_busy or (
            self._connector.dials < MAX_DIALS and time.monotonic_ns() >= link.retry_at_ns
        )

    def _must_keep(self, datagram: bytes) -> bool:
        """Return whether nobody would repair the loss of a datagram that was meant to arrive."""
        if self.book.retransmits:
            return False
        try:
            return not all(type(frame) is Unreliable for frame in decode(datagram).frames)
        except RemoteProtocolError:
            return True
