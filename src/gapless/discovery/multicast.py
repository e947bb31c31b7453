"""A multicast group: one datagram reaches every member on the local network.

``open`` returns two sockets for a transport: one sends to the group, one receives from the group.
The transport closes both. The source sends no datagrams: all datagrams are those of the machine.

The default address is derived from the name of the Gapless group, so every member has the same
address: in 239.255.0.0/16 for IPv4 (administratively scoped, local), in ff15::/16 for IPv6
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

    Args:
        address: The multicast address; ``default_group(name)`` derives one from the name of a
            group.
        port: The port of the multicast group, the same for all members.
        interface: The name of an interface or, for IPv4, an address of this machine; by default the
            interface of the member's address (``host=``).
        ttl: How many networks a datagram may cross; 1 stays on the local network.

    Raises:
        ConfigError: An argument has an impossible value.
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
                f"multicast port {port} is not valid; expected a number from 1 to 65535"
            )
        if not 0 <= ttl <= 255:
            raise ConfigError(
                f"ttl {ttl} is not valid; expected 0 (this machine) to 255, 1 for the local network"
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
        """Do nothing: datagrams to the group contain the locator of the sender."""

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

    def open(self, send: socket.socket | None = None, host: str = "") -> MulticastSockets | None:
        """Return the sockets of the group; None after a failure, counted as the problem ``open``.

        Without a given interface, the group is on the interface with the IPv4 address ``host``.
        With ``send``, a transport sends to the group from its own socket, so that replies to the
        source address reach the transport. A socket sends through one interface: two groups of the
        same family on different interfaces need two sockets. A failed call may be repeated later.
        """
        opened: list[socket.socket] = []
        interface = self.interface or (host if self.address.version == 4 and _is_ipv4(host) else "")
        try:
            receive = self._new_socket(opened)
            self._join(receive, interface)
            if send is None:
                send = self._new_socket(opened)
            self._prepare(send, interface)
            scope = (0, _index(interface)) if self.address.version == 6 else ()
        except OSError as error:
            for one in opened:
                one.close()
            where = interface or "the default interface"
            self.problems.add(
                "open",
                f"cannot use the multicast group {self.address} on {where}: {error}; try another"
                " interface=",
            )
            return None
        return MulticastSockets(send, receive, (str(self.address), self.port, *scope))

    def _new_socket(self, opened: list[socket.socket]) -> socket.socket:
        family = socket.AF_INET if self.address.version == 4 else socket.AF_INET6
        made = socket.socket(family, socket.SOCK_DGRAM)
        opened.append(made)
        made.setblocking(False)
        return made

    def _join(self, receive: socket.socket, interface: str) -> None:
        # Bound to the group address: datagrams to another group on this port are not received.
        receive.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        group = self.address.packed
        if self.address.version == 4:
            receive.bind((str(self.address), self.port))
            receive.setsockopt(
                socket.IPPROTO_IP,
                socket.IP_ADD_MEMBERSHIP,
                _MREQN.pack(group, _local(interface), _index(interface)),
            )
        else:
            receive.bind((str(self.address), self.port, 0, _index(interface)))
            receive.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, _MREQ6.pack(group, _index(interface))
            )

    def _prepare(self, send: socket.socket, interface: str) -> None:
        if self.address.version == 4:
            which = _MREQN.pack(bytes(4), _local(interface), _index(interface))
            send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, which)
            send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, self.ttl)
            send.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        else:
            send.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, _index(interface))
            send.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, self.ttl)
            send.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)


def _local(interface: str) -> bytes:
    """Return the IPv4 address of the interface; all zero for an interface given by name."""
    return IPv4Address(interface).packed if _is_ipv4(interface) else bytes(4)


def _index(interface: str) -> int:
    """Return the number of an interface given by name; otherwise 0."""
    return socket.if_nametoindex(interface) if interface and not _is_ipv4(interface) else 0


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True
