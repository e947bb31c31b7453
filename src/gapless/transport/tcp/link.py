"""A link: the datagrams to and from one peer over TCP, across all streams between the two.

A stream may end at any byte. So each direction of a link numbers its datagrams, 1, 2, 3, …

On sending: a datagram is kept until the peer has confirmed its number. In a sealed group the plain
datagram is kept, and sealed whenever it is written.

On reception: a datagram with a number received before is dropped; others are counted, and confirmed
now and then.

On a new stream: the hello of each side has the number of received datagrams, and START the number
of the next datagram, which is never higher. So datagrams lost with the old stream are sent again,
and duplicates are recognized. A side without memory of the other (a new process, or a forgotten
link) has a new token, and the numbers start again.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import RemoteProtocolError
from gapless.identity import MAX_LOCATOR_BYTES, Address
from gapless.locator import Locator

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.transport.tcp.stream import TcpStream
    from gapless.wire.cipher import Bytes

MAGIC = b"GLT1"
MAX_DATAGRAM_BYTES = 1 << 18
"""Maximum size of a datagram on a stream; a longer one is a protocol error."""
BATCH_BYTES = 1 << 18
"""About how many bytes are written in one call."""
BATCH_DATAGRAMS = 128
"""Maximum number of datagrams in one call, because a call takes a limited number of buffers."""
CONFIRM_BYTES = 1 << 20
"""Number of received bytes after which a confirmation is due at once."""
CONFIRM_DATAGRAMS = 256
"""Number of received datagrams after which a confirmation is due at once."""
CONFIRM_ALONG_SHARE = 2
"""A confirmation goes along with datagrams from this part of both limits on.

A confirmation with every datagram would cost both sides more than the memory that is released
earlier.
"""

MAX_SEALED_START_BYTES = 128
"""Maximum size of a START in a sealed group."""
MAX_STREAMS = 1 << 48
"""Maximum number of a stream in a hello; a link that is told so many starts again from 0."""

DATA, START, CONFIRM = 0, 1, 2
_HEAD = Struct("<I")
_NUMBERED = Struct("<IQ")
_HELLO = Struct("<4sQQQQQQQB")
_KIND_SHIFT = 24
RECORD_HEADER_BYTES = _HEAD.size


class Hello(NamedTuple):
    """The first record of a stream: the sender, and the state of the sender's side of the link.

    ``token`` names this side's memory of the link. ``peer_token`` is the token of the peer, or 0 if
    unknown, and ``received`` is the number of datagrams received under ``peer_token``. ``streams``
    is the number of the last used stream.
    """

    group: int
    address: Address
    token: int
    peer_token: int
    received: int
    streams: int
    locator: Locator

    def encode(self) -> bytes:
        """Return the first bytes of a stream."""
        where = self.locator.encode()
        numbers = (*self.address, self.token, self.peer_token, self.received, self.streams)
        return _HELLO.pack(MAGIC, self.group, *numbers, len(where)) + where

    @classmethod
    def decode(cls, data: memoryview) -> tuple[Hello, int] | None:
        """Return the hello at the start of ``data`` and its length; None while incomplete."""
        if bytes(data[:4]) != MAGIC[: len(data)]:
            raise RemoteProtocolError(
                "hello", f"expected a hello at the start of the stream, got {bytes(data[:16])!r}"
            )
        if len(data) < _HELLO.size:
            return None
        _, group, node, incarnation, token, peer_token, received, streams, size = (
            _HELLO.unpack_from(data)
        )
        if size > MAX_LOCATOR_BYTES:
            raise RemoteProtocolError("hello", f"a locator of {size} bytes is too long")
        if streams > MAX_STREAMS:
            raise RemoteProtocolError("hello", f"no link has had {streams} streams")
        end = _HELLO.size + size
        if len(data) < end:
            return None
        locator = Locator.decode(bytes(data[_HELLO.size : end]))
        return cls(
            group, Address(node, incarnation), token, peer_token, received, streams, locator
        ), end


def parse_record_header(data: memoryview, at: int, *, sealed: bool = False) -> tuple[int, int]:
    """Return kind and length of the record at ``at``; the four header bytes must be complete.

    In a ``sealed`` group START is a sealed datagram.
    """
    (word,) = _HEAD.unpack_from(data, at)
    kind, size = word >> _KIND_SHIFT, word & ((1 << _KIND_SHIFT) - 1)
    if kind == DATA and 0 < size <= MAX_DATAGRAM_BYTES:
        return kind, size
    if kind == START and sealed and 0 < size <= MAX_SEALED_START_BYTES:
        return kind, size
    if kind in {START, CONFIRM} and size == _NUMBERED.size - RECORD_HEADER_BYTES:
        return kind, size
    raise RemoteProtocolError("record", f"unknown record: kind {kind} with {size} bytes")


def bytes_to_next_body(front: bytes) -> int:
    """Return how many bytes from the start of a partial record end with the header of the next.

    Return the size of a header while the header of the record itself is incomplete.
    """
    if len(front) < RECORD_HEADER_BYTES:
        return RECORD_HEADER_BYTES
    (word,) = _HEAD.unpack_from(front)
    return RECORD_HEADER_BYTES + (int(word) & ((1 << _KIND_SHIFT) - 1)) + RECORD_HEADER_BYTES


def encode_numbered(kind: int, number: int) -> bytes:
    """Return a START or CONFIRM record with a number."""
    return _NUMBERED.pack(kind << _KIND_SHIFT | (_NUMBERED.size - RECORD_HEADER_BYTES), number)


def encode_record(kind: int, body: bytes) -> bytes:
    """Return a record with any body."""
    return _HEAD.pack(kind << _KIND_SHIFT | len(body)) + body


def stream_number(local: Hello, peer: Hello) -> int:
    """Return the number of the stream with these hellos, the same at both sides."""
    return max(local.streams, peer.streams) + 1


class Link:
    """One peer: unconfirmed datagrams in one direction, and received datagrams in the other."""

    def __init__(
        self, target: Locator, token: int, seal: Callable[[bytes], Bytes] | None = None
    ) -> None:
        self.locator = target
        self._seal = seal
        self.token = token
        self.peer_token = 0
        self.streams = 0
        self.stream: TcpStream | None = None
        """The stream in use."""
        self.outgoing: TcpStream | None = None
        """A stream that this side is opening."""
        self.incoming: TcpStream | None = None
        """A stream that the peer is opening."""
        self.waiting: deque[bytes] = deque()
        self.sent: deque[bytes] = deque()
        """Datagrams written to the current stream and not confirmed."""
        self.buffered_bytes = 0
        self.confirmed = self._confirmed_by_peer = 0
        self.received = self.confirm_sent = 0
        self.unconfirmed_bytes = 0
        self.failures = 0
        self.retry_at_ns = 0
        self.progress_ns = 0
        """When a datagram was last confirmed, or none was unconfirmed."""

    @property
    def is_busy(self) -> bool:
        """Whether there is a stream, in use or being opened."""
        return self.stream is not None or self.outgoing is not None or self.incoming is not None

    @property
    def has_unconfirmed(self) -> bool:
        """Whether a datagram is not confirmed yet."""
        return bool(self.waiting or self.sent)

    def hello(self, group: int, address: Address, locator: Locator) -> Hello:
        """Return the hello of this side for a new stream."""
        if self.streams > MAX_STREAMS:
            # The peer claimed so many: with a smaller number both sides agree on the next stream.
            self.streams = 0
        return Hello(
            group, address, self.token, self.peer_token, self.received, self.streams, locator
        )

    # On sending

    def enqueue(self, datagram: bytes) -> None:
        """Keep a datagram until its confirmation."""
        self.waiting.append(datagram)
        self.buffered_bytes += len(datagram)

    @property
    def owes_confirmation(self) -> bool:
        """Whether the peer does not know yet of every received datagram."""
        return self.received > self.confirm_sent

    def next_batch(self, *, confirm: bool) -> list[bytes | memoryview]:
        """Return buffers to write now, and count their datagrams as sent.

        A confirmation goes along with datagrams once enough is unconfirmed; with ``confirm`` any
        owed confirmation goes, also alone.
        """
        buffers: list[bytes | memoryview] = []
        waiting, sent = self.waiting, self.sent
        if self.received > self.confirm_sent and (
            confirm or (waiting and self._has_unconfirmed(CONFIRM_ALONG_SHARE))
        ):
            buffers.append(encode_numbered(CONFIRM, self.received))
            self.confirm_sent, self.unconfirmed_bytes = self.received, 0
        left_bytes, pack, seal = BATCH_BYTES, _HEAD.pack, self._seal
        for _ in range(min(BATCH_DATAGRAMS, len(waiting))):
            datagram = waiting.popleft()
            sent.append(datagram)
            record = datagram if seal is None else seal(datagram)
            buffers += (pack(len(record)), record)
            left_bytes -= len(record)
            if left_bytes <= 0:
                break
        if self.confirmed < self._confirmed_by_peer:
            self._release()
        return buffers

    def on_confirm(self, number: int, now_ns: int) -> None:
        """Release the datagrams up to ``number``, confirmed by the peer."""
        if not self.confirmed <= number <= self.confirmed + len(self.sent) + len(self.waiting):
            raise RemoteProtocolError(
                "confirm", f"datagram {number} was confirmed after {self.confirmed}, but never sent"
            )
        self._confirmed_by_peer = max(self._confirmed_by_peer, number)
        self.progress_ns = now_ns
        self._release()

    def _release(self) -> None:
        """Release sent datagrams that are confirmed.

        After a cut the peer may have received more datagrams than confirmed on this stream. Those
        datagrams are sent again all the same, because the numbers of a stream have no gaps.
        """
        sent = self.sent
        for _ in range(min(self._confirmed_by_peer - self.confirmed, len(sent))):
            self.buffered_bytes -= len(sent.popleft())
            self.confirmed += 1

    def drop(self, token: int) -> int:
        """Drop every unconfirmed datagram and start again under ``token``.

        Return the number dropped.
        """
        count = len(self.sent) + len(self.waiting)
        self.sent.clear()
        self.waiting.clear()
        self.buffered_bytes = self.confirmed = self._confirmed_by_peer = 0
        self.token = token
        return count

    # On a new stream

    def resume(self, local: Hello, peer: Hello, now_ns: int) -> int:
        """Continue over a new stream with these hellos; return the number for START."""
        self.sent.extend(self.waiting)
        self.waiting.clear()
        # The peer remembers this link: continue behind what it has received.
        if peer.peer_token == self.token:
            self.on_confirm(max(peer.received, self.confirmed), now_ns)
        else:
            self.confirmed = self._confirmed_by_peer = 0
        self.sent, self.waiting = self.waiting, self.sent
        if peer.token == self.peer_token:
            self.confirm_sent = local.received
        else:
            self.peer_token = peer.token
            self.received = self.confirm_sent = self.unconfirmed_bytes = 0
        self.streams = stream_number(local, peer)
        self.progress_ns = now_ns
        return self.confirmed + 1

    def on_start(self, number: int) -> int:
        """Handle START; return how many of the following datagrams were received before."""
        if not 1 <= number <= self.received + 1:
            self.peer_token = 0  # the next stream starts with new numbers
            raise RemoteProtocolError(
                "start", f"the stream starts with datagram {number} after {self.received}"
            )
        return self.received + 1 - number

    # On reception

    def on_received(self, count: int, size_bytes: int) -> bool:
        """Count received datagrams; return whether a confirmation is due at once."""
        self.received += count
        self.unconfirmed_bytes += size_bytes
        return self._has_unconfirmed(1)

    def _has_unconfirmed(self, share: int) -> bool:
        """Return whether one of the limits divided by ``share`` is reached."""
        return (
            self.unconfirmed_bytes >= CONFIRM_BYTES // share
            or self.received - self.confirm_sent >= CONFIRM_DATAGRAMS // share
        )
