"""The shell around the machine: sockets, the clock, and the thread that it runs in.

A :class:`Handle` is what an application holds of one member of one group; a :class:`Driver` runs the machines of all
handles of a process in one thread, each over its own :class:`Transport`. docs/transports.md shows how they fit.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gapless.transport.base import Book, Problems, Transport
from gapless.transport.driver import Driver, pump
from gapless.transport.handle import Handle
from gapless.transport.sends import Sent
from gapless.transport.udp import UdpMesh, UdpMulticast, open_udp

if TYPE_CHECKING:
    from gapless.transport.chaos import Chaos
    from gapless.transport.memory import Memory, MemoryNetwork
    from gapless.transport.tcp import TcpMesh

__all__ = [
    "Book",
    "Chaos",
    "Driver",
    "Handle",
    "Memory",
    "MemoryNetwork",
    "Problems",
    "Sent",
    "TcpMesh",
    "Transport",
    "UdpMesh",
    "UdpMulticast",
    "open_udp",
    "pump",
]

_WHERE = {"Chaos": "chaos", "Memory": "memory", "MemoryNetwork": "memory", "TcpMesh": "tcp"}
"""What not every member needs, least of all the simulator behind the faults: it is imported when it is asked for."""


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"gapless.transport.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
