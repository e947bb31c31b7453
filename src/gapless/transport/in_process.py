"""Members of one process, without a network: for tests and examples.

Datagrams go from inbox to inbox. A full inbox drops what comes, as a socket does.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from gapless.discovery import Discovery
from gapless.locator import Locator
from gapless.protocol.ready import WORLD
from gapless.transport.base import LOOPBACK_FRAME_BYTES, RECEIVE_BUFFER_BYTES, Book, Problems

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.protocol.ready import Transmit


class MemoryNetwork:
    """Where the members of one process find each other: ``network.open()`` gives each its transport."""

    def __init__(self) -> None:
        self.members: dict[Locator, Memory] = {}
        self._ports = count(1)

    def open(
        self,
        *,
        max_frame_bytes: int = LOOPBACK_FRAME_BYTES,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
    ) -> Memory:
        """Return a new place in this network."""
        locator = Locator.of("127.0.0.1", next(self._ports))
        made = self.members[locator] = Memory(self, locator, max_frame_bytes, receive_buffer_bytes)
        return made


class Memory:
    """One place in a :class:`MemoryNetwork`."""

    deadline_ns = None
    keeps_bytes = True

    def __init__(
        self,
        network: MemoryNetwork,
        locator: Locator,
        max_frame_bytes: int,
        receive_buffer_bytes: int,
    ) -> None:
        self.locator = locator
        self.max_frame_bytes = max_frame_bytes
        self.whole_run_bytes = 0
        self.receive_buffer_bytes = receive_buffer_bytes
        self.problems = Problems()
        self.book: Book[Locator] = Book(locator, Discovery(), lambda locator: locator)
        self._network = network
        self._inbox: deque[bytes] = deque()
        self._held_bytes = 0
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)

    def sockets(self) -> Sequence[socket.socket]:
        """Return the bell that rings when something comes."""
        return (self._bell,)

    def put(self, datagram: bytes) -> None:
        """Take a datagram in, from any thread."""
        if self._held_bytes + len(datagram) > self.receive_buffer_bytes:
            self.problems.counters["receive.full"] += 1
            return
        self._held_bytes += len(datagram)
        self._inbox.append(datagram)
        with suppress(OSError):  # it rings already, or is closed
            self._rope.send(b"\0")

    def receive(self, limit: int) -> list[bytes]:
        """Return what has come."""
        found: list[bytes] = []
        with suppress(BlockingIOError):
            self._bell.recv(4096)
        while self._inbox and len(found) < limit:
            found.append(self._inbox.popleft())
        self._held_bytes -= sum(map(len, found))
        if self._inbox:
            self._rope.send(b"\0")
        return found

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Put datagrams into the inboxes of the others."""
        members = self._network.members
        for to, datagram in transmits:
            if to is None:
                places = self.book.others
            elif to == WORLD:
                places = tuple(place for place in members if place != self.locator)
            else:
                found = self.book.find(to)
                places = () if found is None else (found,)
            for place in places:
                if (member := members.get(place)) is not None:
                    member.put(datagram)

    def close(self) -> None:
        """Leave the network."""
        self._network.members.pop(self.locator, None)
        self._bell.close()
        self._rope.close()
