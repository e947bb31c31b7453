"""What goes to one place and comes from it over TCP, whatever stream it travels on.

A stream may end at any byte. So each direction of a link numbers its datagrams, 1, 2, 3, …

On sending: a datagram is kept until the other side has confirmed its number.

On reception: a datagram whose number has been seen is dropped; the others are counted, and
confirmed now and then.

On a new stream: each side says in its hello how far it has got, and with START where it goes on,
which is never later than that: so what was lost with the old stream comes again, and what was not
is recognised. A side that has no memory of the other (it is a new process, or has forgotten) has
another token, and the numbers begin anew.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import RemoteProtocolError
from gapless.identity import MAX_LOCATOR_BYTES, Address
from gapless.locator import Locator

if TYPE_CHECKING:
    from gapless.transport.tcp.stream import TcpStream

MAGIC = b"GLT1"
MAX_DATAGRAM_BYTES = 1 << 18
"""A stream that announces a longer datagram is not one of ours."""
BATCH_BYTES = 1 << 18
"""So much is given to the kernel in one call, about."""
BATCH_DATAGRAMS = 128
"""So many datagrams at most, since a call takes only so many pieces."""
CONFIRM_BYTES = 1 << 20
"""After so many bytes of datagrams a confirmation goes out at once."""
CONFIRM_DATAGRAMS = 256
"""After so many datagrams too."""

DATA, START, CONFIRM = 0, 1, 2
_HEAD = Struct("<I")
_NUMBERED = Struct("<IQ")
_HELLO = Struct("<4sQQQQQQQB")
_KIND_SHIFT = 24
RECORD_HEADER_BYTES = _HEAD.size


class Hello(NamedTuple):
    """Who speaks, and what it remembers.

    ``token`` names this side's memory of the link, ``peer_token`` what it takes for the other's (0:
    it knows none), of which it has ``received`` so many datagrams; ``streams`` is the number of the
    last stream that it has used.
    """

    group: int
    address: Address
    token: int
    peer_token: int
    received: int
    streams: int
    locator: Locator

    def encode(self) -> bytes:
        """Return the bytes that a stream begins with."""
        where = self.locator.encode()
        numbers = (*self.address, self.token, self.peer_token, self.received, self.streams)
        return _HELLO.pack(MAGIC, self.group, *numbers, len(where)) + where

    @classmethod
    def decode(cls, data: memoryview) -> tuple[Hello, int] | None:
        """Return the hello at the start of ``data`` and its length; None if more has to come."""
        if bytes(data[:4]) != MAGIC[: len(data)]:
            raise RemoteProtocolError("hello", f"a stream began with {bytes(data[:16])!r}")
        if len(data) < _HELLO.size:
            return None
        _, group, node, incarnation, token, peer_token, received, streams, size = (
            _HELLO.unpack_from(data)
        )
        if size > MAX_LOCATOR_BYTES:
            raise RemoteProtocolError("hello", f"a locator of {size} bytes")
        end = _HELLO.size + size
        if len(data) < end:
            return None
        locator = Locator.decode(bytes(data[_HELLO.size : end]))
        return cls(
            group, Address(node, incarnation), token, peer_token, received, streams, locator
        ), end


def parse_record_header(data: memoryview, at: int) -> tuple[int, int]:
    """Return kind and length of the record at ``at``, of which the four bytes of the head must be there."""
    (word,) = _HEAD.unpack_from(data, at)
    kind, size = word >> _KIND_SHIFT, word & ((1 << _KIND_SHIFT) - 1)
    if kind == DATA and 0 < size <= MAX_DATAGRAM_BYTES:
        return kind, size
    if kind in {START, CONFIRM} and size == _NUMBERED.size - RECORD_HEADER_BYTES:
        return kind, size
    raise RemoteProtocolError("record", f"kind {kind} with {size} bytes")


def encode_numbered(kind: int, number: int) -> bytes:
    """Return the record that says START or CONFIRM with a number."""
    return _NUMBERED.pack(kind << _KIND_SHIFT | (_NUMBERED.size - RECORD_HEADER_BYTES), number)


def stream_number(said: Hello, heard: Hello) -> int:
    """Return the number of the stream on which these were the hellos; both sides find the same."""
    return max(said.streams, heard.streams) + 1


class Link:
    """One place, with what is not confirmed yet in one direction, and what has come in the other."""

    def __init__(self, place: Locator, token: int) -> None:
        self.locator = place
        self.token = token
        self.peer_token = 0
        self.streams = 0
        self.stream: TcpStream | None = None
        """The stream in use."""
        self.outgoing: TcpStream | None = None
        """One that this side is opening."""
        self.incoming: TcpStream | None = None
        """One that the other side is opening."""
        self.waiting: deque[bytes] = deque()
        self.sent: deque[bytes] = deque()
        """What the present stream has taken, and nobody has confirmed."""
        self.buffered_bytes = 0
        self.confirmed = self._confirmed_by_peer = 0
        self.received = self.confirm_sent = 0
        self.unconfirmed_bytes = 0
        self.failures = 0
        self.retry_at_ns = 0
        self.progress_ns = 0
        """When something was last confirmed, or there was nothing to confirm."""

    @property
    def is_busy(self) -> bool:
        """Whether there is a stream, or soon may be."""
        return self.stream is not None or self.outgoing is not None or self.incoming is not None

    @property
    def has_unconfirmed(self) -> bool:
        """Whether something has still to arrive."""
        return bool(self.waiting or self.sent)

    def hello(self, group: int, address: Address, locator: Locator) -> Hello:
        """Return what to begin a stream with."""
        return Hello(
            group, address, self.token, self.peer_token, self.received, self.streams, locator
        )

    # On sending

    def enqueue(self, datagram: bytes) -> None:
        """Keep a datagram until it has arrived."""
        self.waiting.append(datagram)
        self.buffered_bytes += len(datagram)

    def next_batch(self, *, confirm: bool) -> list[bytes | memoryview]:
        """Return pieces to write now, and take the datagrams among them for sent.

        A confirmation that is owed goes along with datagrams, or alone if ``confirm``.
        """
        pieces: list[bytes | memoryview] = []
        waiting, sent = self.waiting, self.sent
        if self.received > self.confirm_sent and (waiting or confirm):
            pieces.append(encode_numbered(CONFIRM, self.received))
            self.confirm_sent, self.unconfirmed_bytes = self.received, 0
        left_bytes, pack = BATCH_BYTES, _HEAD.pack
        for _ in range(min(BATCH_DATAGRAMS, len(waiting))):
            datagram = waiting.popleft()
            sent.append(datagram)
            pieces += (pack(len(datagram)), datagram)
            left_bytes -= len(datagram)
            if left_bytes <= 0:
                break
        if self.confirmed < self._confirmed_by_peer:
            self._release()
        return pieces

    def on_confirm(self, number: int, now_ns: int) -> None:
        """Let go of what the other side has."""
        if not self.confirmed <= number <= self.confirmed + len(self.sent) + len(self.waiting):
            raise RemoteProtocolError(
                "confirm", f"{number} is confirmed after {self.confirmed}, which was never sent"
            )
        self._confirmed_by_peer = max(self._confirmed_by_peer, number)
        self.progress_ns = now_ns
        self._release()

    def _release(self) -> None:
        """Let go of what is sent and known to have arrived.

        The other side may know more than this stream has been given: after a cut it had got further
        than it could say. That comes again all the same, as the numbers of a stream have no holes.
        """
        sent = self.sent
        for _ in range(min(self._confirmed_by_peer - self.confirmed, len(sent))):
            self.buffered_bytes -= len(sent.popleft())
            self.confirmed += 1

    def drop(self, token: int) -> int:
        """Give up everything that has not arrived; return how much that was. The numbers begin anew, with a token."""
        count = len(self.sent) + len(self.waiting)
        self.sent.clear()
        self.waiting.clear()
        self.buffered_bytes = self.confirmed = self._confirmed_by_peer = 0
        self.token = token
        return count

    # On a new stream

    def resume(self, said: Hello, heard: Hello, now_ns: int) -> bytes:
        """Go on over a new stream, on which these were the hellos; return the START to begin with."""
        self.sent.extend(self.waiting)
        self.waiting.clear()
        if heard.peer_token == self.token:
            self.on_confirm(max(heard.received, self.confirmed), now_ns)
        else:
            self.confirmed = self._confirmed_by_peer = 0
        self.sent, self.waiting = self.waiting, self.sent
        if heard.token == self.peer_token:
            self.confirm_sent = said.received
        else:
            self.peer_token = heard.token
            self.received = self.confirm_sent = self.unconfirmed_bytes = 0
        self.streams = stream_number(said, heard)
        self.progress_ns = now_ns
        return encode_numbered(START, self.confirmed + 1)

    def on_start(self, number: int) -> int:
        """Take the other side's START; return how many of the datagrams that follow have been seen before."""
        if not 1 <= number <= self.received + 1:
            self.peer_token = 0  # the next stream begins anew
            raise RemoteProtocolError("start", f"{number} follows {self.received}")
        return self.received + 1 - number

    # On reception

    def on_received(self, count: int, size_bytes: int) -> bool:
        """Count what has come; return whether that is to be confirmed at once."""
        self.received += count
        self.unconfirmed_bytes += size_bytes
        return (
            self.unconfirmed_bytes >= CONFIRM_BYTES
            or self.received - self.confirm_sent >= CONFIRM_DATAGRAMS
        )
