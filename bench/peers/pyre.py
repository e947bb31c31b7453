"""zeromq-pyre: a group of peers over TCP, found by beacons (ZRE).

Guarantees: none under load. A peer with a full queue is disconnected, and its queued messages are
gone; losses are counted here, and not judged.

Configured: the defaults, except the port of the beacons. Pyre takes the first interface that is not
loopback, if any. There is no flow control.

Batching: a ``shout`` for each message, as users do.
"""

from __future__ import annotations

import threading
from typing import Any

import pyre as client

from bench.peers.base import Member, until


class Adapter(Member):
    """A node. The socket belongs to a single thread, for sending and receiving."""

    promises = "nothing when a queue is full"

    def open(self) -> None:
        """Start the node, join, and wait for the others."""
        task = self.task
        self._node = client.Pyre(f"bench-{task.at}")
        self._node.set_port(
            str(task.ports[0]).encode()
        )  # 0.3.4 sends it as it is, so it has to be bytes
        self._node.start()
        self._node.join("bench")
        self._joined: set[Any] = set()
        wanted = (task.members or len(task.hosts)) - 1
        threading.Thread(target=self._read, daemon=True).start()
        until(lambda: len(self._joined) >= wanted, f"{wanted} other nodes")

    def _read(self) -> None:
        take, recv = self.tally.take, self._node.recv
        while True:
            event = recv()
            if event[0] == b"SHOUT":
                take(event[4])
            elif event[0] == b"JOIN":
                self._joined.add(event[1])

    def send(self, messages: list[bytes]) -> None:
        """Shout messages one by one."""
        for message in messages:
            self._node.shout("bench", message)
