"""Locators: the network address of a member, with one form in bytes and one in text.

The machine passes locators on without reading; transports and discovery read them. In bytes, with
little-endian numbers as everywhere on the wire, a locator is

    IPv4:  4, the address (4 bytes), the port (2 bytes): 7 bytes
    IPv6:  6, the address (16 bytes), the port (2 bytes), the scope (4 bytes): 23 bytes

In text a locator is ``192.0.2.1:7800``, ``[2001:db8::1]:7800`` or ``[fe80::1%2]:7800``. Each
locator has only one form: an IPv4-mapped IPv6 address is written as the IPv4 address.

The scope is the number of the interface for a link-local address, *on the machine that sends*.
Another machine may number its interfaces differently, so link-local addresses work only between
machines with equal numbers. Prefer other addresses.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import TYPE_CHECKING

from gapless.errors import ConfigError, RemoteProtocolError
from gapless.identity import U32_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

_V4 = Struct("<B4sH")
_V6 = Struct("<B16sHI")
_TEXT = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,5})", re.ASCII)
_EXPECTED = "expected an address and a port such as 192.0.2.1:7800 or [2001:db8::1]:7800"


@dataclass(frozen=True, slots=True, order=True)
class Locator:
    """An IP address (4 or 16 bytes), a port, and for link-local IPv6 the interface."""

    packed: bytes
    port: int
    scope: int = 0

    def __post_init__(self) -> None:
        if len(self.packed) not in {4, 16}:
            raise ConfigError(
                f"an IP address of {len(self.packed)} bytes is not valid; expected 4 (IPv4) or"
                " 16 (IPv6)"
            )
        if not 1 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not valid; expected a number from 1 to 65535")
        if not 0 <= self.scope <= U32_MAX:
            raise ConfigError(
                f"scope {self.scope} is not an interface number; expected 0 to {U32_MAX}"
            )
        ip = self.ip
        if ip.is_unspecified or ip.is_multicast or ip == IPv4Address("255.255.255.255"):
            raise ConfigError(
                f"{ip} is not the address of one member; use a unicast address that other"
                " members can reach"
            )
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
            raise ConfigError(f"{ip} is an IPv4-mapped address; write {ip.ipv4_mapped}")
        if self.scope and not (isinstance(ip, IPv6Address) and ip.is_link_local):
            raise ConfigError(f"{ip} is not link-local and has no scope; omit %{self.scope}")

    @property
    def ip(self) -> IPv4Address | IPv6Address:
        """The address, without its scope."""
        return IPv4Address(self.packed) if len(self.packed) == 4 else IPv6Address(self.packed)

    @property
    def family(self) -> socket.AddressFamily:
        """The address family of sockets that reach the locator."""
        return socket.AF_INET if len(self.packed) == 4 else socket.AF_INET6

    @property
    def sockaddr(self) -> tuple[str, int] | tuple[str, int, int, int]:
        """The address as a socket of ``family`` expects."""
        host = str(self.ip)
        return (host, self.port) if len(self.packed) == 4 else (host, self.port, 0, self.scope)

    @classmethod
    def of(cls, host: str, port: int) -> Locator:
        """Return the locator of an IP address such as ``fe80::1%eth0`` or ``fe80::1%2``."""
        try:
            ip = ip_address(host)
        except ValueError as error:
            raise ConfigError(f"{host!r} is not an IP address: {_EXPECTED}") from error
        if isinstance(ip, IPv4Address):
            return cls(ip.packed, port)
        if ip.ipv4_mapped is not None:
            return cls(ip.ipv4_mapped.packed, port)
        return cls(ip.packed, port, _scope(ip))

    @classmethod
    def parse(cls, text: str) -> Locator:
        """Return the locator in a text such as ``192.0.2.1:7800`` or ``[::1]:7800``."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"{text!r} is not a locator: {_EXPECTED}")
        return cls.of(match[1] or match[2], int(match[3]))

    @classmethod
    def from_sockaddr(cls, sockaddr: Sequence[object]) -> Locator:
        """Return the locator of a result of ``getsockname``, ``recvfrom`` or ``getaddrinfo``."""
        host, port, *rest = sockaddr
        ip = ip_address(str(host).partition("%")[0])
        scope = rest[1] if len(rest) == 2 and ip.is_link_local else 0
        return cls.of(f"{ip}%{scope}" if scope else str(ip), int(str(port)))

    def encode(self) -> bytes:
        """Return the locator in bytes, as on the wire."""
        if len(self.packed) == 4:
            return _V4.pack(4, self.packed, self.port)
        return _V6.pack(6, self.packed, self.port, self.scope)

    @classmethod
    def decode(cls, data: bytes) -> Locator:
        """Return the locator in ``data``.

        Raises:
            RemoteProtocolError: ``data`` is not a locator; the reason is ``locator``.
        """
        try:
            if len(data) == _V4.size and data[0] == 4:
                return cls(*_V4.unpack(data)[1:])
            if len(data) == _V6.size and data[0] == 6:
                return cls(*_V6.unpack(data)[1:])
        except ConfigError as error:
            raise RemoteProtocolError("locator", str(error)) from error
        family = data[0] if data else "none"
        raise RemoteProtocolError(
            "locator", f"{len(data)} bytes of family {family} are not a locator"
        )

    def __str__(self) -> str:
        if len(self.packed) == 4:
            return f"{self.ip}:{self.port}"
        return f"[{self.ip}%{self.scope}]:{self.port}" if self.scope else f"[{self.ip}]:{self.port}"


def _scope(ip: IPv6Address) -> int:
    name = ip.scope_id
    if name is None:
        return 0
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name)
    try:
        return socket.if_nametoindex(name)
    except OSError as error:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(
            f"this machine has no interface {name!r}; the interfaces are {names}"
        ) from error
