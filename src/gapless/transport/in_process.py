"""Members of one process without a network, for tests and examples.

Datagrams go from inbox to inbox. A full inbox drops datagrams, as a socket does. The receiver of a
datagram learns the sender's locator, so groups founded apart find each other and merge.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING

from gapless.discovery import Discovery
from gapless.locator import Locator
from gapless.protocol.ready import ANYONE
from gapless.transport.address_book import AddressBook
from gapless.transport.base import LOOPBACK_FRAME_BYTES, RECEIVE_BUFFER_BYTES, WakeSocket
from gapless.transport.error_log import ErrorLog
from gapless.wire.codec import sender_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.protocol.ready import Transmit
    from gapless.transport.base import Selectable
    from gapless.transport.tcp.tls import Certificates
    from gapless.wire.seal import Seal


class InProcessNetwork:
    """The network of the members of one process, without sockets on a network.

    Examples:
        ```python
        from gapless import blocking
        from gapless.transport import InProcessNetwork

        network = InProcessNetwork()
        with (
            blocking.join("orders", transport=network.open()) as shop,
            blocking.join("orders", transport=network.open()) as kitchen,
        ):
            shop.wait_for_members(2, timeout=10)
            shop.send(b"tea")
            print(kitchen.receive(timeout=5).payload)  # b'tea'
        ```
    """

    def __init__(self) -> None:
        self.members: dict[Locator, InProcessTransport] = {}
        self._ports = count(1)

    def open(
        self,
        *,
        max_frame_bytes: int = LOOPBACK_FRAME_BYTES,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
    ) -> InProcessTransport:
        """Return a new transport of this network, for one member.

        Args:
            max_frame_bytes: Maximum size of a frame.
            receive_buffer_bytes: Size of the inbox; datagrams beyond are dropped, as by a socket.
        """
        locator = Locator.of("127.0.0.1", next(self._ports))
        made = self.members[locator] = InProcessTransport(
            self, locator, max_frame_bytes, receive_buffer_bytes
        )
        return made


class InProcessTransport:
    """The transport of one member in an ``InProcessNetwork``."""

    deadline_ns = None
    preserves_bytes = True
    may_lose = False
    seal: Seal | None = None
    certificates: Certificates | None = None

    def __init__(
        self,
        network: InProcessNetwork,
        locator: Locator,
        max_frame_bytes: int,
        receive_buffer_bytes: int,
    ) -> None:
        self.locator = locator
        self.max_frame_bytes = max_frame_bytes
        self.whole_run_bytes = 0
        self.receive_buffer_bytes = receive_buffer_bytes
        self.problems = ErrorLog()
        self.book: AddressBook[Locator] = AddressBook(locator, Discovery(), lambda locator: locator)
        self._network = network
        self._inbox: deque[tuple[Locator, bytes]] = deque()
        self._queued_bytes = 0
        self._wake_socket = WakeSocket()

    def sockets(self) -> Sequence[Selectable]:
        """Return the socket that is readable when a datagram has arrived."""
        return (self._wake_socket.receiver,)

    def enqueue(self, source: Locator, datagram: bytes) -> None:
        """Add a datagram of the transport at ``source`` to the inbox, from any thread."""
        if self._queued_bytes + len(datagram) > self.receive_buffer_bytes:
            self.problems.counters["receive.full"] += 1
            return
        self._queued_bytes += len(datagram)
        self._inbox.append((source, datagram))
        self._wake_socket.wake()

    def receive(self, limit: int) -> list[bytes]:
        """Return datagrams that have arrived."""
        found: list[bytes] = []
        self._wake_socket.clear()
        while self._inbox and len(found) < limit:
            source, datagram = self._inbox.popleft()
            if (sender := sender_of(datagram)) is not None:
                self.book.learn_source(sender, source)
            found.append(datagram)
        self._queued_bytes -= sum(map(len, found))
        if self._inbox:
            self._wake_socket.wake()
        return found

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Add datagrams to the inboxes of other members."""
        members = self._network.members
        for to, datagram in transmits:
            if to is None:
                targets = self.book.peers
            elif to == ANYONE:
                targets = tuple(target for target in members if target != self.locator)
            else:
                found = self.book.lookup(to)
                targets = () if found is None else (found,)
            for target in targets:
                if (member := members.get(target)) is not None:
                    member.enqueue(self.locator, datagram)

    def close(self) -> None:
        """Leave the network."""
        self._network.members.pop(self.locator, None)
        self._wake_socket.close()
