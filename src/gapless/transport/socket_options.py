"""Options of sockets, each with a fallback for kernels without the option."""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time
from ctypes import addressof, create_string_buffer
from ipaddress import ip_address
from os import urandom
from struct import Struct, pack, unpack
from typing import TYPE_CHECKING

from gapless.errors import ConfigError, TransportError
from gapless.logger import log
from gapless.transport import interfaces
from gapless.transport.base import LOOPBACK_FRAME_BYTES, NETWORK_FRAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gapless.discovery import Discovery, Multicast
    from gapless.locator import Locator

UDP = socket.IPPROTO_UDP
UDP_SEGMENT, UDP_GRO = 103, 104
"""Options of Linux: one call sends many datagrams, and one call receives many."""
PROBE_S = 0.2
"""How long a multicast group may take to return a probe."""
SEED_LOOKUP_S = 0.5
"""How long the names of seeds may take to be looked up before the own address is chosen."""

_IP_MTU, _IPV6_MTU = 14, 24
_SO_ATTACH_FILTER = 26
_REMOTE_ADDRESSES = {4: ("203.0.113.1", 9), 6: ("2001:db8::1", 9)}
"""Addresses for documentation, routed by the system like any remote address."""
_BPF_INSTRUCTION = Struct("=HBBI")
_LOAD_PORT, _LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x28, 0x20, 0x15, 0x06
_NETWORK_HEADER = 0xFFF00000
_BACKLOG = 128
_IP_RECVERR, _IPV6_RECVERR, _MSG_ERRQUEUE = 11, 25, 0x2000
_EXTENDED_ERROR = Struct("=IBBBxII")
_MAX_ERRORS = 256
"""Maximum number of errors that are read at once."""


def choose_host(discovery: Discovery) -> str:
    """Return the address of this machine from which members of ``discovery`` are reached.

    In this order: the address that the discovery requires (``required_host``); the address of the
    default route; the address of an interface with multicast; loopback.
    """
    return required_host(discovery) or default_host()


def required_host(discovery: Discovery) -> str | None:
    """Return the address of this machine that seeds or an interface require; None without one.

    In this order: the source address of the route to a seed; the address of the interface of a
    multicast group.
    """
    seeds = discovery.seed_locators(SEED_LOOKUP_S)
    # A seed on loopback counts only if all are: a member on loopback is unreachable from elsewhere.
    for seed in sorted(seeds, key=lambda locator: locator.ip.is_loopback):
        if (source := _source_address(seed.family, seed.sockaddr)) is not None:
            return source
    for group in discovery.multicasts:
        if (given := interfaces.address_of(group.interface)) is not None:
            return given
    return None


def default_host() -> str:
    """Return the IPv4 address of this machine for others on its network, or loopback."""
    source = _source_address(socket.AF_INET, _REMOTE_ADDRESSES[4])
    if source is not None:
        return source
    found = interfaces.multicast_interfaces()
    if not found:
        return "127.0.0.1"
    if len(found) > 1:
        log.warning(
            "no default route: using %s (%s) of the interfaces %s; pass host= to choose another",
            found[0].address,
            found[0].name,
            ", ".join(f"{one.name} ({one.address})" for one in found),
        )
    return found[0].address


def _source_address(family: int, target: tuple[str, int] | tuple[str, int, int, int]) -> str | None:
    """Return the address of this machine on the route to ``target``; None without a route."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
            host, _, *scope = probe.getsockname()
        except OSError:
            return None
    return f"{host}%{scope[1]}" if scope and scope[1] and "%" not in host else str(host)


def describe_refusal(error: OSError, own: Locator, target: Sequence[object]) -> str:
    """Return why the kernel refused a datagram from ``own`` to ``target``, and what to do."""
    to = f"cannot send to {target[0]} port {target[1]}"
    if error.errno == errno.EINVAL and own.ip.is_loopback:
        return (
            f"{to}: this member has the address {own.ip}, which reaches only this machine; pass"
            " host= with an address on that network"
        )
    if error.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}:
        return (
            f"{to}: no route from {own.ip} ({errno.errorcode[error.errno]}); check the network, or"
            " pass host= with an address on that network"
        )
    return f"{to}: {error}"


def path_frame_bytes(locator: Locator) -> int:
    """Return the largest frame that leaves this machine without fragmentation."""
    version = locator.ip.version
    if locator.ip.is_loopback:
        return LOOPBACK_FRAME_BYTES
    with socket.socket(locator.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((*locator.sockaddr[:1], 0, *locator.sockaddr[2:]))
            probe.connect(_REMOTE_ADDRESSES[version])
            level, option = (
                (socket.IPPROTO_IP, _IP_MTU) if version == 4 else (socket.IPPROTO_IPV6, _IPV6_MTU)
            )
            path_bytes = probe.getsockopt(level, option)
        except OSError:
            return NETWORK_FRAME_BYTES
    return min(NETWORK_FRAME_BYTES, path_bytes - (28 if version == 4 else 48))


def request_buffers(sock: socket.socket, wanted_bytes: int) -> int:
    """Request large buffers; return the granted size of the receive buffer."""
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        asked_bytes = wanted_bytes
        while asked_bytes >= 4096:
            try:
                sock.setsockopt(socket.SOL_SOCKET, option, asked_bytes)
                break
            except OSError:
                asked_bytes //= 2
    granted_bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    # Linux reports twice the requested size: half of it is for its own bookkeeping.
    return max(4096, granted_bytes // 2 if sys.platform == "linux" else granted_bytes)


def bind(host: str, ports: Sequence[int], kind: int = socket.SOCK_DGRAM) -> socket.socket:
    """Return a socket on the first free port of ``ports``; port 0 means any free port.

    A stream socket listens.

    Raises:
        ConfigError: The host or a port is not valid.
        TransportError: No port is free, or the host is not an address of this machine.
    """
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError as error:
        raise ConfigError(
            f"{host!r} is not an IP address; expected an address of this machine such as"
            " 192.0.2.1 or ::1"
        ) from error
    if ip.is_unspecified or ip.is_multicast:
        raise ConfigError(
            f"{host} is not an address of one member; use an address of this machine that"
            " others can reach"
        )
    if not ports or not all(0 <= port <= 65535 for port in ports):
        raise ConfigError(f"ports {list(ports)}: expected numbers from 0 (any free port) to 65535")
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    reason = OSError()
    for port in ports:
        made = socket.socket(family, kind)
        try:
            made.setblocking(False)
            if kind == socket.SOCK_STREAM and os.name == "posix":
                # Former streams of this port may linger.
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(socket.getaddrinfo(host, port, family, kind, 0, socket.AI_NUMERICHOST)[0][4])
            if kind == socket.SOCK_STREAM:
                made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            reason = error
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                continue
            break
        return made
    raise TransportError(_bind_error(host, ports, reason)) from reason


def _bind_error(host: str, ports: Sequence[int], error: OSError) -> str:
    asked = (
        f"port {ports[0]}" if len(ports) == 1 else f"any of the ports {min(ports)} to {max(ports)}"
    )
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot use {asked} on {host}: already in use; try a range such as 7800 to"
            " 7899, or 0 for any free port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"cannot use {host}: not an address of this machine; use host= with an address"
            " of this machine"
        )
    return f"cannot use {asked} on {host}: {error}"


def supports_gso(sock: socket.socket) -> bool:
    """Return whether one call can send many datagrams."""
    try:
        sock.getsockopt(UDP, UDP_SEGMENT)
    except OSError:
        return False
    return True


def enable_error_queue(sock: socket.socket) -> bool:
    """Let the kernel keep the errors that the network reports; return whether that is possible."""
    if sys.platform != "linux":
        return False
    is_v4 = sock.family == socket.AF_INET
    level = socket.IPPROTO_IP if is_v4 else socket.IPPROTO_IPV6
    try:
        sock.setsockopt(level, _IP_RECVERR if is_v4 else _IPV6_RECVERR, 1)
    except OSError:
        return False
    return True


def read_error_queue(sock: socket.socket) -> list[tuple[Any, int, bytes]]:
    """Return the errors of the network: the target, the number, and the datagram's first bytes."""
    found: list[tuple[Any, int, bytes]] = []
    while len(found) < _MAX_ERRORS:
        try:
            data, ancillary, _, target = sock.recvmsg(512, 256, _MSG_ERRQUEUE)
        except OSError:
            break
        for _, _, value in ancillary:
            if len(value) >= _EXTENDED_ERROR.size:
                found.append((target, _EXTENDED_ERROR.unpack_from(value)[0], data))
    return found


def enable_gro(sock: socket.socket) -> bool:
    """Let one call receive many datagrams; return whether the kernel supports this."""
    try:
        sock.setsockopt(UDP, UDP_GRO, 1)
    except OSError:
        return False
    return True


def drop_datagrams_from(sock: socket.socket, source: Locator) -> bool:
    """Let the kernel drop datagrams from ``source``; return whether the kernel supports this.

    A member receives its own multicast datagrams, because other members on the same machine have to
    receive them. Dropping in the kernel saves copying.
    """
    start = 12 if source.ip.version == 4 else 8
    words = unpack(f">{len(source.packed) // 4}I", source.packed)
    checks = [(_LOAD_PORT, 0, source.port)]
    checks += [
        (_LOAD_WORD, _NETWORK_HEADER + start + 4 * at, word) for at, word in enumerate(words)
    ]
    steps = []
    for at, (load, where, wanted) in enumerate(checks):
        left = 2 * (len(checks) - 1 - at)
        steps += [(load, 0, 0, where), (_JUMP_EQUAL, 0, left + 1, wanted)]
    steps += [(_RETURN, 0, 0, 0), (_RETURN, 0, 0, 0xFFFFFFFF)]
    program = create_string_buffer(b"".join(_BPF_INSTRUCTION.pack(*step) for step in steps))
    try:
        sock.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, pack("@HP", len(steps), addressof(program))
        )
    except OSError:
        return False
    return True


def multicast_loops_back(group: Multicast, host: str = "") -> bool:
    """Return whether a datagram to the group soon returns on the interface of ``host``."""
    pair = group.open(host=host)
    if pair is None:
        return False
    token = b"probe" + urandom(16)
    until_s = time.monotonic() + PROBE_S
    try:
        pair.send_socket.sendto(token, pair.target)
        while (left_s := until_s - time.monotonic()) > 0:
            if (
                select.select([pair.receive_socket], [], [], left_s)[0]
                and pair.receive_socket.recv(64) == token
            ):
                return True
    except OSError:
        return False
    finally:
        pair.close()
    return False
