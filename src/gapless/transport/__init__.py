"""Transports: how datagrams travel between members. The only package with sockets.

A ``Transport`` sends and receives datagrams for one member. docs/internals/transports.md compares
the transports.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gapless.transport.address_book import AddressBook
from gapless.transport.base import Transport
from gapless.transport.error_log import ErrorLog
from gapless.transport.udp import UdpMesh, UdpMulticast, open_udp

if TYPE_CHECKING:
    from gapless.transport.in_process import InProcessNetwork, InProcessTransport
    from gapless.transport.tcp.tls_files import TlsFiles
    from gapless.transport.tcp.transport import TcpMesh

__all__ = [
    "AddressBook",
    "ErrorLog",
    "InProcessNetwork",
    "InProcessTransport",
    "TcpMesh",
    "TlsFiles",
    "Transport",
    "UdpMesh",
    "UdpMulticast",
    "open_udp",
]

_WHERE = {
    "InProcessTransport": "in_process",
    "InProcessNetwork": "in_process",
    "TcpMesh": "tcp.transport",
    "TlsFiles": "tcp.tls_files",
}
"""Transports needed by few members, imported on first use."""


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"gapless.transport.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
