"""The network interfaces of this machine, as far as Linux reports them; elsewhere none."""

from __future__ import annotations

import socket
import sys
from ipaddress import IPv4Address
from struct import Struct
from typing import NamedTuple

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_UP, _LOOPBACK, _RUNNING, _MULTICAST = 0x1, 0x8, 0x40, 0x1000
_REQUEST = Struct("@16s24x")
_FLAGS = Struct("@16xH")
_ADDRESS = slice(20, 24)
"""Where the answer of the kernel has the IPv4 address of an interface."""


class Interface(NamedTuple):
    """An interface with its IPv4 address."""

    name: str
    address: str


def multicast_interfaces() -> list[Interface]:
    """Return the interfaces that are up, have an IPv4 address, and carry multicast.

    An interface without a carrier counts only without any other interface: the kernel reports the
    carrier of an interface up to a second after the interface is up.
    """
    if sys.platform != "linux":
        return []
    wanted = _UP | _MULTICAST
    found = {
        Interface(name, address): flags
        for _, name in socket.if_nameindex()
        if (flags := _flags(name)) & wanted == wanted and not flags & _LOOPBACK
        if (address := address_of(name)) is not None
    }
    return [one for one, flags in found.items() if flags & _RUNNING] or list(found)


def address_of(interface: str) -> str | None:
    """Return the IPv4 address of an interface given by name or by address; None if unknown."""
    try:
        return str(IPv4Address(interface))
    except ValueError:
        answer = _ask(interface, _SIOCGIFADDR) if interface else None
    return None if answer is None else socket.inet_ntoa(answer[_ADDRESS])


def _flags(name: str) -> int:
    answer = _ask(name, _SIOCGIFFLAGS)
    return 0 if answer is None else int(_FLAGS.unpack_from(answer)[0])


def _ask(name: str, request: int) -> bytes | None:
    """Return the answer of the kernel about an interface; None if there is none."""
    if sys.platform != "linux":
        return None
    from fcntl import ioctl  # not on every system

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return ioctl(probe.fileno(), request, _REQUEST.pack(name.encode()))
        except OSError:
            return None  # the interface has vanished, or has no IPv4 address
