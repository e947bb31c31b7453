"""The multicast group: one datagram reaches every member on the local network, known or not.

On starting:   ``open`` gives a transport a socket to send to the group and one that hears it. While
running: nothing. There is no protocol here: the datagrams that travel are those of the machine. On
leaving:    whoever opened the sockets closes them.

A group that is not named has an address made from the name of the Gapless group, the same at every
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
"""The port of a multicast group that names none; not one that members listen on, usually 7800 and up."""

_MAX_INTERFACE_NAME = 15
_MREQN = Struct("@4s4si")
_MREQ6 = Struct("@16sI")


class MulticastSockets(NamedTuple):
    """What a transport needs of a multicast group; neither socket blocks. ``target`` is where ``send`` sends to."""

    send_socket: socket.socket
    receive_socket: socket.socket
    target: tuple[str, int] | tuple[str, int, int, int]

    def close(self) -> None:
        """Close both sockets."""
        self.send_socket.close()
        self.receive_socket.close()


def default_group(group: str, family: Literal[4, 6] = 4) -> IPv4Address | IPv6Address:
    """Return the multicast address of a Gapless group, made from its name."""
    digest = blake2b(group.encode(), digest_size=4, person=b"gapless-mcast").digest()
    if family == 6:
        # Identifiers from 0x80000000 on are free for such use (RFC 3307).
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
                f"{address!r} is no address: expected one such as 239.255.1.2 or ff15::1:2"
            ) from error
        if not self.address.is_multicast:
            raise ConfigError(
                f"{address} is no multicast address; expected one in 239.0.0.0/8 or ff00::/8"
            )
        if not 1 <= port <= 65535:
            raise ConfigError(
                f"multicast port {port} does not exist; expected a number from 1 to 65535"
            )
        if not 0 <= ttl <= 255:
            raise ConfigError(
                f"ttl {ttl} is not possible; expected 0 (this machine) to 255, 1 for the local network"
            )
        if not interface.isprintable() or len(interface) > _MAX_INTERFACE_NAME or " " in interface:
            raise ConfigError(
                f"{interface!r} is no interface; expected a name such as eth0, or one of its addresses"
            )
        if self.address.version == 6 and _is_ipv4(interface):
            raise ConfigError(
                f"interface {interface} is an IPv4 address, and {address} is IPv6; name the interface"
            )
        self.port = port
        self.interface = interface
        self.ttl = ttl
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        self.name = f"multicast://{host}:{port}" + (f"?interface={interface}" if interface else "")
        self.problems = DiscoveryProblems()

    def announce(self, place: RosterEntry) -> None:
        """Do nothing: what a member sends to the group says where it is."""

    def withdraw(self) -> None:
        """Do nothing."""

    def locate(self, now_ns: int) -> list[Locator]:  # noqa: ARG002 - nothing changes with time
        """Return nothing: no single place is known, but what goes to the group reaches all."""
        return []

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002 - there is nothing to wait for
        """Return at once."""
        return True

    def close(self) -> None:
        """Do nothing: the sockets belong to whoever opened them."""

    def open(self, send: socket.socket | None = None) -> MulticastSockets | None:
        """Return sockets that send to the group and hear it, or None with the problem ``open`` counted.

        A transport may give its own socket to ``send`` with: it is made ready for it, and answers
        to the sender of what others hear then reach the transport. One socket sends through one
        interface: of two groups of a family on different interfaces, one has to have a socket of
        its own. It may try again later, when the network has come up.
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
            where = self.interface or "the interface that the system chose"
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
        # Bound to the group and not to every address: another group on the same port is not heard.
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
        """Return the interface by its IPv4 address, all zero if it was not given by address."""
        return IPv4Address(self.interface).packed if _is_ipv4(self.interface) else bytes(4)

    def _index(self) -> int:
        """Return the number of the interface, 0 if it was not given by name."""
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
