"""The shell around the machine: sockets, the clock, and the thread that it runs in.

A :class:`Handle` is what an application holds of one member of one group; a :class:`Driver` runs the machines of all
handles of a process in one thread, each over its own :class:`Transport`. docs/transports.md shows how they fit.
"""

from typing import TYPE_CHECKING, Any

from gapless.transport.base import Book, Problems, Transport
from gapless.transport.driver import Driver, pump
from gapless.transport.handle import Handle
from gapless.transport.memory import Memory, MemoryNetwork
from gapless.transport.sends import Sent
from gapless.transport.tcp import TcpMesh
from gapless.transport.udp import UdpMesh, UdpMulticast, open_udp

if TYPE_CHECKING:
    from gapless.transport.chaos import Chaos

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


def __getattr__(name: str) -> Any:
    """Import what only tests and experiments need, with all of the simulator behind it, when somebody asks for it."""
    if name == "Chaos":
        from gapless.transport.chaos import Chaos

        return Chaos
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
