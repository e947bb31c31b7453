"""Notice the end of a peer's process on the same machine at once.

On a view: the transport sends the own process id to each new peer on the same machine, in a control
datagram. If the sender of a process id does not have the own process id yet, the transport answers
with the own process id.

On reception: the process is opened as a file descriptor (``pidfd_open``). The descriptor becomes
readable at any end of the process. A poller collects the descriptors.

Process ids are reused, and differ between containers: the datagram names the space of the ids and
the start time of the process, too. An end is a hint, and verified by the machine.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

from gapless.transport.shared_memory import PROCESS, encode_control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

AVAILABLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether this system has file descriptors of processes."""
MAX_WATCHED = 256
"""Maximum number of processes that are watched; others are noticed by their silence."""
_TOKEN = Struct("<QQ")
_START_TIME_FIELD = 19
"""Index of the start time in /proc/PID/stat, behind the name of the program."""


class ProcessWatch:
    """The processes of the peers on this machine. ``send`` sends a datagram to a target."""

    def __init__(self, send: Callable[[bytes, Any], None]) -> None:
        self.poller = select.epoll()
        self._send = send
        self._own = encode_control(PROCESS, (os.getpid(), 0, _TOKEN.pack(*_identity(os.getpid()))))
        self._announced: set[Any] = set()
        self._watched: dict[Any, int] = {}
        self._targets: dict[int, Any] = {}

    def announce(self, targets: Iterable[Any]) -> None:
        """Announce our process to new targets, and forget all others."""
        here = set(targets)
        for target in self._watched.keys() - here:
            self._forget(target)
        new, self._announced = here - self._announced, here
        for target in new:
            self._send(self._own, target)

    def on_process(self, process: int, token: bytes, source: Any) -> None:
        """Watch the process named by ``source``."""
        if source not in self._announced:
            self._announced.add(source)
            self._send(self._own, source)
        if process == os.getpid() or len(self._watched) >= MAX_WATCHED:
            return
        self._forget(source)
        try:
            descriptor = os.pidfd_open(process)
        except OSError:
            return  # ended meanwhile, or of another space of ids
        try:
            same = _identity(process) == _TOKEN.unpack(token)
        except (OSError, ValueError, IndexError):
            same = False
        if not same:
            os.close(descriptor)
            return
        self.poller.register(descriptor, select.EPOLLIN)
        self._watched[source], self._targets[descriptor] = descriptor, source

    def ended(self) -> list[Any]:
        """Return the targets whose processes have ended since the last call."""
        found = [self._targets[descriptor] for descriptor, _ in self.poller.poll(0)]
        for target in found:
            self._forget(target)
        return found

    def _forget(self, target: Any) -> None:
        descriptor = self._watched.pop(target, None)
        if descriptor is not None:
            del self._targets[descriptor]
            with suppress(OSError):
                self.poller.unregister(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Close every descriptor."""
        self.poller.close()
        for descriptor in self._targets:
            os.close(descriptor)
        self._watched, self._targets = {}, {}


def _identity(process: int) -> tuple[int, int]:
    """Return the space of process ids of this process, and the start time of ``process``."""
    space = Path("/proc/self/ns/pid").stat().st_ino
    # The name of the program, in brackets, may hold spaces and brackets.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return space, int(fields[_START_TIME_FIELD])
