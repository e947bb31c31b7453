"""The Transport protocol: the only interface between the runtime and the network.

A transport has one locator for all other members, and never blocks. A transport returns the
datagrams that have arrived, and sends datagrams to one member, to all other members of the view, or
to every locator known to discovery. A datagram refused by the network is counted under a reason and
dropped: the machine retransmits. A transport does not interpret frames.

The runtime keeps the ``AddressBook`` of the transport up to date from the events of the machine.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.identity import Address
    from gapless.locator import Locator
    from gapless.protocol.ready import Transmit
    from gapless.transport.address_book import AddressBook
    from gapless.transport.error_log import ErrorLog
    from gapless.transport.tcp.tls import Certificates
    from gapless.wire.seal import Seal

LOOPBACK_FRAME_BYTES = 65_000
"""Largest frame on a path without fragmentation; the cost hardly depends on the length."""
NETWORK_FRAME_BYTES = 1400
"""Largest frame on a network, where losing one IP fragment would lose the whole frame."""
WHOLE_RUN_BYTES = 256_000
"""Largest run sent as one datagram where no datagram is lost; the cost is mostly per run."""
RECEIVE_BUFFER_BYTES = 4 << 20
"""Requested size of the receive buffer; a member advertises the size granted by the kernel."""
TURN_BYTES = 1 << 20
"""About how many bytes a transport returns per turn, so that acks are not delayed."""


class Selectable(Protocol):
    """An object that a selector can wait for: a socket, or any object with a file descriptor."""

    def fileno(self) -> int:
        """Return the file descriptor."""
        ...


class Transport(Protocol):
    """The network of one member of one group, used by one thread at a time."""

    locator: Locator
    """The locator at which others reach this member."""
    book: AddressBook[Any]
    """The targets of the other members."""
    max_frame_bytes: int
    """Largest datagram that the path carries without fragmentation."""
    whole_run_bytes: int
    """Largest run in one datagram, if larger than a frame; otherwise 0."""
    receive_buffer_bytes: int
    """Granted size of the receive buffer, which is advertised to senders."""
    preserves_bytes: bool
    """Whether no datagram can be corrupted in transit, because none leaves this machine."""
    may_lose: bool
    """Whether a datagram between two running members may be lost, so that somebody must resend."""
    problems: ErrorLog
    """Counted errors: datagrams refused by the network, and malformed input."""
    seal: Seal | None
    """Seals every datagram that leaves, and opens every one that arrives; None without keys."""
    certificates: Certificates | None
    """Let only holders of certificates reach this member, with TLS; None without TLS."""

    @property
    def deadline_ns(self) -> int | None:
        """When ``receive`` has to be called although no socket is readable; None: never."""
        ...

    def sockets(self) -> Sequence[Selectable]:
        """Return the objects to select on, always the same objects; TCP returns a poller."""
        ...

    def receive(self, limit: int) -> list[bytes]:
        """Return at most about ``limit`` datagrams that have arrived."""
        ...

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send datagrams, to each target in the given order."""
        ...

    def close(self) -> None:
        """Close every socket at once."""
        ...


class WakeSocket:
    """A socket pair that makes a selector return. Any thread may call ``wake``."""

    def __init__(self) -> None:
        self.receiver, self.sender = socket.socketpair()
        self.receiver.setblocking(False)
        self.sender.setblocking(False)

    def wake(self) -> None:
        """Make ``receiver`` readable."""
        with suppress(OSError):  # full: it is readable already; or closed
            self.sender.send(b"\0")

    def clear(self) -> None:
        """Read every pending wake-up."""
        with suppress(BlockingIOError):
            self.receiver.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self.receiver.close()
        self.sender.close()


def group_by_target(transmits: Sequence[Transmit]) -> Iterator[tuple[Address | None, list[bytes]]]:
    """Yield each target with its consecutive datagrams."""
    start = 0
    while start < len(transmits):
        to = transmits[start].to
        end = start + 1
        while end < len(transmits) and transmits[end].to == to:
            end += 1
        yield to, [datagram for _, datagram in transmits[start:end]]
        start = end


def errno_name(error: OSError) -> str:
    """Return the symbolic name of an error, to be used in a counter."""
    return errno.errorcode.get(error.errno or 0, "unknown")
