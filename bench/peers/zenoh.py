"""Zenoh (eclipse-zenoh) as a mesh of peers over TCP.

Guarantees: with reliability RELIABLE and congestion control BLOCK a publisher waits for its links
instead of dropping; in order for each publisher. Nothing is repaired after a link has broken.

Configured: peers listen on separate ports and connect to all others; scouting by multicast and
gossip off, since the addresses are known; no shared memory, as by default. Subscribers by callback,
the fastest way in Python.

Batching: a ``put`` for each message, as users do; zenoh gathers messages into batches of 64 KB by
itself.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import zenoh

from bench.peers.base import PATIENCE_S, Member


class Adapter(Member):
    """A peer."""

    promises = "each sender's messages once, in order, none lost while connected"
    keeps_all = True

    def open(self) -> None:
        """Open a session, subscribe to all senders, declare a publisher."""
        task = self.task
        config = zenoh.Config()
        places = [f"tcp/{host}:{port}" for host, port in zip(task.hosts, task.ports, strict=True)]
        settings: dict[str, Any] = {
            "mode": "peer",
            "listen/endpoints": [places[task.at]],
            "connect/endpoints": [places[at] for at in task.others if at < task.at],
            "scouting/multicast/enabled": False,
            "scouting/gossip/enabled": False,
        }
        for key, value in settings.items():
            config.insert_json5(key, json.dumps(value))
        self._session = zenoh.open(config)
        self._publisher = self._session.declare_publisher(
            f"bench/{task.at}",
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
        )
        self._echoed = threading.Semaphore(0)
        handle = (self._echo if task.at else self._note) if task.mode == "rtt" else self._take
        self._subscribers = [
            self._session.declare_subscriber(f"bench/{at}", handle)
            for at in (task.sources or task.others)
        ]

    def _take(self, sample: Any) -> None:
        self.tally.take(sample.payload.to_bytes())

    def _note(self, _: Any) -> None:
        self._echoed.release()

    def _echo(self, sample: Any) -> None:
        self._publisher.put(sample.payload.to_bytes())

    def send(self, messages: list[bytes]) -> None:
        """Put messages one by one; each call waits for room."""
        put = self._publisher.put
        for message in messages:
            put(message)

    def ask(self, message: bytes) -> None:
        """Send a message, and wait for the echo; the peer may miss the first messages."""
        self._publisher.put(message)
        while not self._echoed.acquire(timeout=0.2 if not self._met else PATIENCE_S):
            self._publisher.put(message)
        self._met = True

    _met = False

    def serve(self) -> None:
        """Do nothing: the callback echoes."""
