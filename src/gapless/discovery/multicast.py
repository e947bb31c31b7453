"""A multicast group: one datagram reaches every member on the local network.

``open`` returns a transport's sockets, one that sends to the group and one that receives from it.
The transport closes them. The source itself sends nothing: all datagrams are those of the machine.

The default address is derived from the name of the Gapless group, so it is the same at every
member: in 239.255.0.0/16 for IPv4 (administratively scoped, local), in ff15::/16 for IPv6
(transient, site-local).
"""

from __future__ import annotations

import socket
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import TYPE_CHECKING, Literal, NamedTuple

from gapless.discovery.source import DiscoveryProblems
from gapless.errors import ConfigError

if TYPE_CHECKING:
    from gapless.identity import RosterEntry
    from gapless.locator import Locator

PORT = 7799
"""The default port of a multicast group; below the ports of members, which start at 7800."""

_MAX_INTERFACE_NAME = 15
_MREQN = Struct("@4s4si")
_MREQ6 = Struct("@16sI")


class MulticastSockets(NamedTuple):
    """The non-blocking sockets of a multicast group; ``send_socket`` sends to ``target``."""

    send_socket: socket.socket
    receive_socket: socket.socket
    target: tuple[str, int] | tuple[str, int, int, int]

    def close(self) -> None:
        """Close both sockets."""
        self.send_socket.close()
        self.receive_socket.close()


def default_group(group: str, family: Literal[4, 6] = 4) -> IPv4Address | IPv6Address:
    """Return the multicast address of a Gapless group, derived from its name."""
    digest = blake2b(group.encode(), digest_size=4, person=b"gapless-mcast").digest()
    if family == 6:
        # Group identifiers from 0x80000000 on are free for dynamic use (RFC 3307).
        return IPv6Address(bytes([0xFF, 0x15, *bytes(10), digest[0] | 0x80, *digest[1:]]))
    # The last 256 addresses of a scope belong to well-known services (RFC 2365).
    return IPv4Address(bytes([239, 255, digest[0] % 255, 1 + digest[1] % 254]))


class Multicast:
    """A multicast group as a source: ``Multicast(default_group("orders"), interface="eth0")``.

    ``interface`` is a name or, for IPv4, an address of this machine; without one the system
    chooses. ``ttl`` is how many networks a datagram may cross: 1 stays on the local one.
    """

    def __init__(
        self,
        address: str | IPv4Address | IPv6Address,
        port: int = PORT,
        *,
        interface: str = "",
        ttl: int = 1,
    ) -> None:
        try:
            self.address = ip_address(address)
        except ValueError as error:
            raise ConfigError(
                f"{address!r} is not an address: expected one such as 239.255.1.2 or ff15::1:2"
            ) from error
        if not self.address.is_multicast:
            raise ConfigError(
                f"{address} is not a multicast address; expected one in 239.0.0.0/8 or ff00::/8"
            )
        if not 1 <= port <= 65535:
            raise ConfigError(
                f"multicast port {port} does not exist; expected a number from 1 to 65535"
            )
        if not 0 <= ttl <= 255:
            raise ConfigError(
                f"ttl {ttl} is not possible; expected 0 (this machine) to 255, 1 for the local"
                " network"
            )
        if not interface.isprintable() or len(interface) > _MAX_INTERFACE_NAME or " " in interface:
            raise ConfigError(
                f"{interface!r} is not an interface; expected a name such as eth0, or an address"
            )
        if self.address.version == 6 and _is_ipv4(interface):
            raise ConfigError(
                f"interface {interface} is an IPv4 address, and {address} is IPv6; use the name of"
                " the interface"
            )
        self.port = port
        self.interface = interface
        self.ttl = ttl
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        self.name = f"multicast://{host}:{port}" + (f"?interface={interface}" if interface else "")
        self.problems = DiscoveryProblems()

    def announce(self, member: RosterEntry) -> None:
        """Do nothing: datagrams to the group contain the locator of their sender."""

    def withdraw(self) -> None:
        """Do nothing."""

    def locate(self, now_ns: int) -> list[Locator]:  # noqa: ARG002 - nothing changes with time
        """Return no locators: datagrams to the group reach all members."""
        return []

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        """Return at once."""
        return True

    def close(self) -> None:
        """Do nothing: the transport closes the sockets."""

    def open(self, send: socket.socket | None = None) -> MulticastSockets | None:
        """Return the sockets of the group; None if that failed, as the problem ``open``.

        With ``send``, a transport sends to the group from its own socket, so that replies to the
        source address reach the transport. A socket sends through one interface: two groups of the
        same family on different interfaces need two sockets. A failed call may be repeated later.
        """
        opened: list[socket.socket] = []
        try:
            receive = self._new_socket(opened)
            self._join(receive)
            if send is None:
                send = self._new_socket(opened)
            self._prepare(send)
            scope = (0, self._index()) if self.address.version == 6 else ()
        except OSError as error:
            for one in opened:
                one.close()
            where = self.interface or "the default interface"
            self.problems.add(
                "open", f"cannot use {self.address} on {where}: {error}; try another interface="
            )
            return None
        return MulticastSockets(send, receive, (str(self.address), self.port, *scope))

    def _new_socket(self, opened: list[socket.socket]) -> socket.socket:
        family = socket.AF_INET if self.address.version == 4 else socket.AF_INET6
        made = socket.socket(family, socket.SOCK_DGRAM)
        opened.append(made)
        made.setblocking(False)
        return made

    def _join(self, receive: socket.socket) -> None:
        # Bound to the group address: datagrams to another group on this port are not received.
        receive.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        group = self.address.packed
        if self.address.version == 4:
            receive.bind((str(self.address), self.port))
            receive.setsockopt(
                socket.IPPROTO_IP,
                socket.IP_ADD_MEMBERSHIP,
                _MREQN.pack(group, self._local(), self._index()),
            )
        else:
            receive.bind((str(self.address), self.port, 0, self._index()))
            receive.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, _MREQ6.pack(group, self._index())
            )

    def _prepare(self, send: socket.socket) -> None:
        if self.address.version == 4:
            which = _MREQN.pack(bytes(4), self._local(), self._index())
            send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, which)
            send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self.ttl)
            send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        else:
            send.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, self._index())
            send.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, self.ttl)
            send.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)

    def _local(self) -> bytes:
        """Return the IPv4 address of the interface; all zero if it was given by name."""
        return IPv4Address(self.interface).packed if _is_ipv4(self.interface) else bytes(4)

    def _index(self) -> int:
        """Return the number of the interface; 0 if it was not given by name."""
        return (
            socket.if_nametoindex(self.interface)
            if self.interface and not _is_ipv4(self.interface)
            else 0
        )


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True
