"""UDP: one socket, one port; to each member its own copy (mesh), or one for all of them (multicast).

On sending: datagrams of equal size to the same target leave in one call (UDP_SEGMENT), where the kernel can do that.

On reception: a call may bring many datagrams of one sender (UDP_GRO); they are cut apart once. Where a datagram came
from is noted, for a stranger that nobody has located yet.

What the kernel refuses (a full buffer, no route, a datagram that is too long) is counted under its name and dropped.
"""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address
from struct import Struct
from typing import TYPE_CHECKING

from gapless.core.ready import WORLD
from gapless.discovery import Discovery
from gapless.errors import ConfigError, TransportError
from gapless.identity import Address
from gapless.locator import Locator
from gapless.transport.base import (
    LOOPBACK_FRAME_BYTES,
    NETWORK_FRAME_BYTES,
    RECEIVE_BUFFER_BYTES,
    Book,
    Problems,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from gapless.core.ready import Transmit
    from gapless.discovery import Pair

Sockaddr = tuple[str, int] | tuple[str, int, int, int]

PORTS = range(7800, 7900)
"""The ports that are tried, in this order, if none is named."""

_UDP = socket.IPPROTO_UDP
_UDP_SEGMENT, _UDP_GRO = 103, 104
_IP_MTU, _IPV6_MTU = 14, 24
_UINT16, _INT = Struct("=H"), Struct("=i")
_MOST_SEGMENTS = 64
_MOST_SEND_BYTES = 65_000
_BUFFER_BYTES = 1 << 16
_SENDER = Struct("<16xQQ")
"""Who speaks, in the header of a datagram (docs/wire.md)."""
_MOST_SOURCES = 4096
_NOT_SEGMENTED = {errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT}
"""What a kernel or an interface answers that cannot cut a call's data into datagrams, or not into such large ones."""
_ELSEWHERE = {4: ("203.0.113.1", 9), 6: ("2001:db8::1", 9)}
"""Addresses for documentation: what the system would do to reach them is what it does for any far place."""


class UdpMesh:
    """UDP without multicast: what is for all goes to each member.

    ``host`` is the address of this machine that others reach it at, by default that of its route to the outside, or
    loopback if there is none. ``ports`` are tried in turn; 0 means whichever is free. ``discovery`` says where others
    could be; its multicast groups are used to find members, and for nothing else.
    """

    deadline_ns = None

    def __init__(
        self,
        host: str | None = None,
        ports: Iterable[int] | int = PORTS,
        *,
        discovery: Discovery | None = None,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
        offload: bool = True,
    ) -> None:
        self.problems = Problems()
        self._socket = _bind(host or default_host(), [ports] if isinstance(ports, int) else list(ports))
        self.receive_buffer_bytes = ask_for_buffers(self._socket, receive_buffer_bytes)
        self.locator = Locator.from_sockaddr(self._socket.getsockname())
        self.max_frame_bytes = path_frame_bytes(self.locator)
        discovery = discovery or Discovery()
        self.book: Book[Sockaddr] = Book(self.locator, discovery, self._resolve)
        self._own: Sockaddr = self.locator.sockaddr
        self._pairs: list[Pair] = [
            pair
            for group in discovery.multicasts
            if group.address.version == self.locator.ip.version and (pair := group.open(self._socket)) is not None
        ]
        self._receivers = [self._socket, *(pair.receive for pair in self._pairs)]
        for pair in self._pairs:
            ask_for_buffers(pair.receive, receive_buffer_bytes)
        self.segments = offload and _can_segment(self._socket)
        self.coalesces = offload and sum(map(_coalesce, self._receivers)) == len(self._receivers)
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._sources: dict[Any, bytes] = {}

    def _resolve(self, locator: Locator) -> Sockaddr | None:
        if locator.family != self._socket.family:
            self.problems.add("family", f"{locator} is out of reach of {self.locator}")
            return None
        return locator.sockaddr

    def sockets(self) -> Sequence[socket.socket]:
        """Return the socket of this member, and those that hear multicast groups."""
        return self._receivers

    # On reception

    def receive(self, limit: int) -> list[bytes]:
        """Return what has come."""
        found: list[bytes] = []
        for one in self._receivers:
            most = len(found) + limit
            while len(found) < most and self._receive_from(one, found):
                pass
        return found

    def _receive_from(self, one: socket.socket, found: list[bytes]) -> bool:
        """Add what one call brings; return whether there may be more."""
        try:
            size_bytes, ancillary, _, source = one.recvmsg_into((self._view,), 64)
        except BlockingIOError:
            return False
        except OSError as error:
            self.problems.add(f"receive.{_name(error)}", error)
            return False
        if source == self._own:
            return True  # the network gave back what this member said to a multicast group
        view = self._view
        step_bytes = size_bytes
        for level, kind, data in ancillary:
            if level == _UDP and kind == _UDP_GRO:
                (step_bytes,) = _INT.unpack_from(data)
        at = len(found)
        if step_bytes >= size_bytes:
            found.append(bytes(view[:size_bytes]))
        else:
            found += [
                bytes(view[start : start + step_bytes]) for start in range(0, size_bytes - step_bytes, step_bytes)
            ]
            found.append(bytes(view[len(found[at:]) * step_bytes : size_bytes]))
        sender = found[at][16:32]
        if self._sources.get(source) != sender and len(sender) == 16:
            self._see(source, found[at])
        return True

    def _see(self, source: Any, datagram: bytes) -> None:
        if len(self._sources) >= _MOST_SOURCES:
            self._sources.clear()
        self._sources[source] = datagram[16:32]
        self.book.see(Address(*_SENDER.unpack_from(datagram)), source)

    # On sending

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Put datagrams on the network, equal ones to the same target together."""
        for to, datagrams in by_target(transmits):
            for place in self._places(to):
                self._send_to(place, datagrams)

    def _places(self, to: Address | None) -> Sequence[Sockaddr]:
        if to is None:
            return self.book.others
        if to == WORLD:
            return [*(pair.target for pair in self._pairs), *self.book.world()]
        place = self.book.find(to)
        if place is None:
            self.problems.add("send.unknown", f"nobody knows where {to} is")
            return ()
        return (place,)

    def _send_to(self, place: Sockaddr, datagrams: Sequence[bytes]) -> None:
        if len(datagrams) == 1 or not self.segments:
            self._send_each(place, datagrams)
            return
        for size_bytes, together in in_segments(datagrams):
            if len(together) == 1:
                self._send_each(place, together)
                continue
            try:
                self._socket.sendmsg(together, [(_UDP, _UDP_SEGMENT, _UINT16.pack(size_bytes))], 0, place)
            except OSError as error:
                if error.errno in _NOT_SEGMENTED:
                    self.segments = False
                    self.problems.add(f"segments.{_name(error)}", f"one datagram in a call from now on: {error}")
                    self._send_each(place, together)
                else:
                    self._refused(error, place, len(together))

    def _send_each(self, place: Sockaddr, datagrams: Sequence[bytes]) -> None:
        for datagram in datagrams:
            try:
                self._socket.sendto(datagram, place)
            except OSError as error:
                self._refused(error, place, 1)

    def _refused(self, error: OSError, place: Sockaddr, times: int) -> None:
        self.problems.add(f"send.{_name(error)}", f"to {place[0]} port {place[1]}: {error}", times)

    def close(self) -> None:
        """Close every socket."""
        for one in self._receivers:
            one.close()


def by_target(transmits: Sequence[Transmit]) -> Iterator[tuple[Address | None, list[bytes]]]:
    """Return neighbours with the same target together."""
    start = 0
    while start < len(transmits):
        to = transmits[start].to
        end = start + 1
        while end < len(transmits) and transmits[end].to == to:
            end += 1
        yield to, [datagram for _, datagram in transmits[start:end]]
        start = end


def in_segments(datagrams: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Return what one call can send: datagrams of one size, the last of them may be shorter."""
    sizes = [len(datagram) for datagram in datagrams]
    start, count = 0, len(sizes)
    while start < count:
        size_bytes = sizes[start]
        limit = min(count, start + max(1, min(_MOST_SEGMENTS, _MOST_SEND_BYTES // size_bytes)))
        end = start + 1
        while end < limit and sizes[end] == size_bytes:
            end += 1
        if end < limit and sizes[end] < size_bytes:
            end += 1
        yield size_bytes, datagrams[start:end]
        start = end


def default_host() -> str:
    """Return the IPv4 address that this machine has on its way to the outside, or loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE[4])
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def path_frame_bytes(locator: Locator) -> int:
    """Return the largest frame that goes from this place to others in one piece."""
    if locator.ip.is_loopback:
        return LOOPBACK_FRAME_BYTES
    with socket.socket(locator.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((*locator.sockaddr[:1], 0, *locator.sockaddr[2:]))
            probe.connect(_ELSEWHERE[locator.ip.version])
            level, option = (
                (socket.IPPROTO_IP, _IP_MTU) if locator.ip.version == 4 else (socket.IPPROTO_IPV6, _IPV6_MTU)
            )
            header_bytes = 28 if locator.ip.version == 4 else 48
            return min(NETWORK_FRAME_BYTES, probe.getsockopt(level, option) - header_bytes)
        except OSError:
            return NETWORK_FRAME_BYTES


def ask_for_buffers(one: socket.socket, wanted_bytes: int) -> int:
    """Ask for large buffers; return what was granted for datagrams that come."""
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        asked_bytes = wanted_bytes
        while asked_bytes >= 4096:
            try:
                one.setsockopt(socket.SOL_SOCKET, option, asked_bytes)
                break
            except OSError:
                asked_bytes //= 2
    # Linux names twice of what was asked for, as half of it is for its own books.
    return max(4096, one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2)


def _bind(host: str, ports: Sequence[int]) -> socket.socket:
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError as error:
        raise ConfigError(
            f"{host!r} is no IP address of this machine; expected one such as 192.0.2.1 or ::1"
        ) from error
    if ip.is_unspecified or ip.is_multicast:
        raise ConfigError(f"{host} is not an address that others reach one member at; name one that this machine has")
    if not ports or not all(0 <= port <= 65535 for port in ports):
        raise ConfigError(f"ports {ports or 'none'}: expected numbers from 0 (whichever is free) to 65535")
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    reason = OSError()
    for port in ports:
        try:
            where = socket.getaddrinfo(host, port, family, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)[0][4]
            made.bind(where)
        except OSError as error:
            reason = error
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                continue
            break
        return made
    made.close()
    raise TransportError(_why_not(host, ports, reason)) from reason


def _why_not(host: str, ports: Sequence[int], error: OSError) -> str:
    asked = f"port {ports[0]}" if len(ports) == 1 else f"any of the ports {min(ports)} to {max(ports)}"
    if error.errno == errno.EADDRINUSE:
        return f"cannot use {asked} on {host}: in use; name a wider range such as 7800-7899, or 0 for any free port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot use {host}: this machine does not have that address; name one that it has"
    return f"cannot use {asked} on {host}: {error}"


def _can_segment(one: socket.socket) -> bool:
    try:
        one.getsockopt(_UDP, _UDP_SEGMENT)
    except OSError:
        return False
    return hasattr(one, "sendmsg")


def _coalesce(one: socket.socket) -> bool:
    try:
        one.setsockopt(_UDP, _UDP_GRO, 1)
    except OSError:
        return False
    return True


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "unknown")
