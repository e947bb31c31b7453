"""UDP: one socket, one port; a copy to each member (mesh), or one for all of them (multicast).

On sending: datagrams of equal size to the same target leave in one call (UDP_SEGMENT), where the
kernel can do that. On loopback large datagrams go through shared memory (shared_memory.py), if
every receiver can read it; otherwise they are split to fit the socket.

On reception: one call may return many datagrams of one sender (UDP_GRO); they are split apart once.
The source of a datagram is recorded, so that a sender that is not located yet can be answered. A
datagram to this member alone is returned after all multicast datagrams that arrived before it: two
sockets have no common order, and an announcement must not overtake its data.

A datagram that the kernel refuses (a full buffer, no route, too long) is counted under the name of
the error and dropped.
"""

from __future__ import annotations

import errno
import socket
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING

from gapless.discovery import Discovery
from gapless.errors import RemoteProtocolError, TransportError
from gapless.identity import Address
from gapless.locator import Locator
from gapless.protocol.ready import ANYONE
from gapless.transport import socket_options
from gapless.transport.address_book import AddressBook
from gapless.transport.base import (
    RECEIVE_BUFFER_BYTES,
    TURN_BYTES,
    WHOLE_RUN_BYTES,
    errno_name,
    group_by_target,
)
from gapless.transport.error_log import ErrorLog
from gapless.transport.shared_memory import AVAILABLE, LARGE_BYTES, MAGIC, SharedMemory, refusal
from gapless.wire.codec import SENDER_FIELD, sender_of, split_datagram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from gapless.discovery import MulticastSockets
    from gapless.protocol.ready import Transmit

Sockaddr = tuple[str, int] | tuple[str, int, int, int]

PORTS = range(7800, 7900)
"""The ports that are tried, in this order, if none is given."""

_UINT16, _INT = Struct("=H"), Struct("=i")
_MAX_SEGMENTS = 64
"""Maximum number of datagrams in one call (a limit of Linux)."""
_MAX_SEND_BYTES = 65_000
_BUFFER_BYTES = 1 << 16
_ANCILLARY_BYTES = 64
_MIN_TURN_BYTES = 1 << 18
_MAX_SOURCES = 4096
"""Maximum number of remembered sources; then the table starts anew."""
_NOT_SEGMENTED = {errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT}
"""Errors of a kernel or an interface that cannot split one call into datagrams of that size."""


class UdpMesh:
    """UDP without multicast: a datagram for all is sent to each member.

    ``host`` is the address of this machine for others: by default that of its route to the outside,
    or loopback without one. ``ports`` are tried in turn; 0 means any free port. ``discovery`` names
    candidates; its multicast groups serve only to find members. Without ``shared`` no shared memory
    is used on loopback. Without ``offload`` each datagram takes a call of its own.
    """

    def __init__(
        self,
        host: str | None = None,
        ports: Iterable[int] | int = PORTS,
        *,
        discovery: Discovery | None = None,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
        offload: bool = True,
        shared: bool = True,
    ) -> None:
        self.problems = ErrorLog()
        self._socket = socket_options.bind(
            host or socket_options.default_host(),
            [ports] if isinstance(ports, int) else list(ports),
        )
        self.receive_buffer_bytes = socket_options.request_buffers(
            self._socket, receive_buffer_bytes
        )
        self.locator = Locator.from_sockaddr(self._socket.getsockname())
        self.max_frame_bytes = socket_options.path_frame_bytes(self.locator)
        self.preserves_bytes = self.locator.ip.is_loopback
        self.whole_run_bytes = WHOLE_RUN_BYTES if self.preserves_bytes else 0
        discovery = discovery or Discovery()
        self.book: AddressBook[Sockaddr] = AddressBook(self.locator, discovery, self._resolve)
        self._own: Sockaddr = self.locator.sockaddr
        self._multicast_sockets: list[MulticastSockets] = [
            pair
            for group in discovery.multicasts
            if group.address.version == self.locator.ip.version
            and (pair := group.open(self._socket)) is not None
        ]
        self._receivers = [self._socket, *(pair.receive_socket for pair in self._multicast_sockets)]
        for pair in self._multicast_sockets:
            socket_options.request_buffers(pair.receive_socket, receive_buffer_bytes)
            socket_options.drop_datagrams_from(pair.receive_socket, self.locator)
        self.uses_gso = offload and socket_options.supports_gso(self._socket)
        self.uses_gro = offload and sum(map(socket_options.enable_gro, self._receivers)) == len(
            self._receivers
        )
        self.shared_memory: SharedMemory | None = None
        if shared and self.preserves_bytes and AVAILABLE:
            self.shared_memory = SharedMemory(
                self._send_one, self.problems, self.receive_buffer_bytes
            )
        self._readable_peers: Sequence[Sockaddr] = ()
        self._sources: dict[Any, bytes] = {}
        self._unicast_held: list[bytes] = []
        self._held_rounds = 0
        # After that many rounds every datagram that arrived before has been read.
        self._max_held_rounds = 2 * self.receive_buffer_bytes // _MIN_TURN_BYTES

    def _resolve(self, locator: Locator) -> Sockaddr | None:
        if locator.family != self._socket.family:
            self.problems.add("family", f"{locator} is out of reach of {self.locator}")
            return None
        return locator.sockaddr

    def sockets(self) -> Sequence[socket.socket]:
        """Return the socket of this member, and the sockets of its multicast groups."""
        return self._receivers

    # On reception

    @property
    def deadline_ns(self) -> int | None:
        """At once while datagrams are held back: the multicast sockets may be empty by now."""
        return 0 if self._unicast_held else None

    def receive(self, limit: int) -> list[bytes]:
        """Return datagrams that have arrived, those for this member alone last.

        They wait, for a bounded number of rounds, until the multicast sockets are empty.
        """
        own, *groups = self._receivers
        if len(self._unicast_held) < limit:
            self._read(own, self._unicast_held, limit)
        found: list[bytes] = []
        more = [self._read(sock, found, limit) for sock in groups]
        if any(more) and self._held_rounds < self._max_held_rounds:
            self._held_rounds += 1
            return found
        self._held_rounds = 0
        found += self._unicast_held
        self._unicast_held = []
        return found

    def _read(self, sock: socket.socket, found: list[bytes], limit: int) -> bool:
        """Read a socket for one turn; return whether more may be there."""
        most, left_bytes = len(found) + limit, TURN_BYTES
        own, sources = self._own, self._sources
        ancillary: Sequence[tuple[int, int, bytes]] = ()
        while len(found) < most and left_bytes > 0:
            try:
                if self.uses_gro:
                    data, ancillary, _, source = sock.recvmsg(_BUFFER_BYTES, _ANCILLARY_BYTES)
                else:
                    data, source = sock.recvfrom(_BUFFER_BYTES)
            except BlockingIOError:
                return False
            except OSError as error:
                self.problems.add(f"receive.{errno_name(error)}", error)
                return False
            left_bytes -= max(1, len(data))
            if source == own:
                continue  # this member's own datagram to a multicast group
            if ancillary or data.startswith(MAGIC):
                for datagram in _split_gro(data, ancillary):
                    left_bytes -= self._receive_one(datagram, source, found)
                continue
            if sources.get(source) != data[SENDER_FIELD]:
                self._learn_source(source, data)
            found.append(data)
        return True

    def _receive_one(self, datagram: bytes, source: Any, found: list[bytes]) -> int:
        """Add a datagram, or those that its descriptor names; return the size of the latter."""
        if datagram.startswith(MAGIC):
            return self._receive_shared(datagram, source, found)
        if self._sources.get(source) != datagram[SENDER_FIELD]:
            self._learn_source(source, datagram)
        found.append(datagram)
        return 0

    def _receive_shared(self, note: bytes, source: Any, found: list[bytes]) -> int:
        """Add the datagrams that a descriptor names; refuse without shared memory."""
        if self.shared_memory is None:
            self.problems.counters["shared.unasked"] += 1
            if (answer := refusal(note)) is not None:
                self._send_one(answer, source)
            return 0
        named = self.shared_memory.read(note, source)
        if named and self._sources.get(source) != named[0][SENDER_FIELD]:
            self._learn_source(source, named[0])
        found += named
        return sum(map(len, named))

    def _learn_source(self, source: Any, datagram: bytes) -> None:
        """Record the source of a sender in the address book."""
        sender = sender_of(datagram)
        if sender is None:
            return
        if len(self._sources) >= _MAX_SOURCES:
            self._sources.clear()
        self._sources[source] = datagram[SENDER_FIELD]
        self.book.learn_source(sender, source)

    # On sending

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send datagrams, consecutive ones to the same target together."""
        if len(transmits) == 1:
            to, datagram = transmits[0]
            self._send_group(to, (datagram,))
            return
        for to, datagrams in group_by_target(transmits):
            self._send_group(to, datagrams)

    def _send_group(self, to: Address | None, datagrams: Sequence[bytes]) -> None:
        if self.whole_run_bytes and max(map(len, datagrams)) >= LARGE_BYTES:
            datagrams = self._fit_to_socket(to, datagrams)
        for target in self._targets(to):
            if len(datagrams) == 1 or not self.uses_gso:
                self._send_each(target, datagrams)
            else:
                self._send_segmented(target, datagrams)

    def _fit_to_socket(self, to: Address | None, datagrams: Sequence[bytes]) -> Sequence[bytes]:
        """Replace large datagrams by descriptors of shared memory, or split them for the socket."""
        if self.shared_memory is not None and to != ANYONE:
            if self._readable_peers is not self.book.peers:
                self._readable_peers = self.book.peers
                self.shared_memory.retain_readers(self._readable_peers)
            target = None if to is None else self.book.lookup(to)
            targets = self._readable_peers if to is None else (target,)
            if None not in targets:
                datagrams = self.shared_memory.publish(datagrams, targets)
        return [part for datagram in datagrams for part in self._cut(datagram)]

    def _cut(self, datagram: bytes) -> Sequence[bytes]:
        """Split a datagram to fit the socket; the kernel refuses one that cannot be split."""
        if len(datagram) > self.max_frame_bytes:
            with suppress(RemoteProtocolError):
                return split_datagram(datagram, self.max_frame_bytes)
        return (datagram,)

    def _targets(self, to: Address | None) -> Sequence[Sockaddr]:
        """Return the socket addresses of a member, of all members, or of all candidates."""
        if to is None:
            return self.book.peers
        if to == ANYONE:
            return [*(pair.target for pair in self._multicast_sockets), *self.book.candidates()]
        target = self.book.lookup(to)
        if target is None:
            self.problems.add("send.unknown", f"nobody knows where {to} is")
            return ()
        return (target,)

    def _send_segmented(self, target: Sockaddr, datagrams: Sequence[bytes]) -> None:
        """Send datagrams of equal size in one call each (UDP_SEGMENT)."""
        for size_bytes, together in gso_batches(datagrams):
            if len(together) == 1:
                self._send_each(target, together)
                continue
            try:
                self._socket.sendmsg(
                    together,
                    [(socket_options.UDP, socket_options.UDP_SEGMENT, _UINT16.pack(size_bytes))],
                    0,
                    target,
                )
            except OSError as error:
                if error.errno in _NOT_SEGMENTED:
                    self.uses_gso = False
                    self.problems.add(
                        f"segments.{errno_name(error)}",
                        f"one datagram in a call from now on: {error}",
                    )
                    self._send_each(target, together)
                else:
                    self._count_refused(error, target, len(together))

    def _send_each(self, target: Sockaddr, datagrams: Sequence[bytes]) -> None:
        for datagram in datagrams:
            try:
                self._socket.sendto(datagram, target)
            except OSError as error:
                self._count_refused(error, target, 1)

    def _send_one(self, datagram: bytes, target: Sockaddr) -> None:
        self._send_each(target, (datagram,))

    def _count_refused(self, error: OSError, target: Sockaddr, times: int) -> None:
        """Count datagrams that the kernel refused."""
        self.problems.add(
            f"send.{errno_name(error)}", f"to {target[0]} port {target[1]}: {error}", times
        )

    def close(self) -> None:
        """Close every socket."""
        for sock in self._receivers:
            sock.close()
        if self.shared_memory is not None:
            self.shared_memory.close()


class UdpMulticast(UdpMesh):
    """UDP with multicast: a datagram for all is sent once, to the first group of ``discovery``."""

    def __init__(
        self, host: str | None = None, ports: Iterable[int] | int = PORTS, **options: Any
    ) -> None:
        super().__init__(host, ports, **options)
        if not self._multicast_sockets:
            self.close()
            groups = self.book.discovery.multicasts
            problems = "; ".join(
                problem.last for group in groups for problem in group.problems.of(group.name)
            )
            raise TransportError(
                f"no multicast group can be used from {self.locator}: {problems or 'none is named'}"
            )

    def _targets(self, to: Address | None) -> Sequence[Sockaddr]:
        return (self._multicast_sockets[0].target,) if to is None else super()._targets(to)


def open_udp(
    host: str | None = None, ports: Iterable[int] | int = PORTS, *, discovery: Discovery
) -> UdpMesh:
    """Return a transport with multicast if it works here, otherwise one without.

    Multicast works if a datagram to a group of ``discovery`` is received on its interface.
    """
    works = any(socket_options.multicast_loops_back(group) for group in discovery.multicasts[:1])
    return (UdpMulticast if works else UdpMesh)(host, ports, discovery=discovery)


def gso_batches(datagrams: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yield what one call can send: datagrams of one size, of which the last may be shorter."""
    sizes = [len(datagram) for datagram in datagrams]
    start, count = 0, len(sizes)
    while start < count:
        size_bytes = sizes[start]
        limit = min(count, start + max(1, min(_MAX_SEGMENTS, _MAX_SEND_BYTES // size_bytes)))
        end = start + 1
        while end < limit and sizes[end] == size_bytes:
            end += 1
        if end < limit and sizes[end] < size_bytes:
            end += 1
        yield size_bytes, datagrams[start:end]
        start = end


def _split_gro(data: bytes, ancillary: Sequence[tuple[int, int, bytes]]) -> list[bytes]:
    """Return the datagrams that one call received."""
    for level, kind, value in ancillary:
        if level == socket_options.UDP and kind == socket_options.UDP_GRO:
            (step_bytes,) = _INT.unpack_from(value)
            return [data[start : start + step_bytes] for start in range(0, len(data), step_bytes)]
    return [data]
