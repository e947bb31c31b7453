"""Gapless itself, by its public interface for threads (``gapless.blocking``).

Guarantees: every message of each sender once, in order, without a gap; a sender waits while a
receiver has no room.

Configured: the defaults, with two exceptions. Members gather quickly (``found_after``,
``join_interval``), without effect on the measurement, and a sender does not get its own messages
(``loopback``), as with all other libraries here. ``udp`` is the default of ``join``: multicast if
the interface carries multicast, else a copy to each member (``mesh``); ``tcp`` is TCP. With
``sealed`` every datagram is encrypted. Start-up is measured with the defaults throughout.

Batching: ``send_many`` with the same batches as every adapter, ``batches()`` to receive; with
``each`` the program takes one message at a time from a batch, and with ``single`` the program also
sends one message at a time, the slowest way.
"""

from __future__ import annotations

import threading
from typing import Any

from bench.peers.base import PATIENCE_S, Member
from gapless import blocking
from gapless.discovery import Discovery
from gapless.group.join_options import TRANSPORTS
from gapless.keys.ciphers import suites_of
from gapless.wire.seal import Seal
from gapless.wire.seal_keys import KeyRing, KeyState, SealKey

RING = KeyRing(bytes(range(32)), (SealKey(1, bytes(range(32, 64)), KeyState.SEAL),))
"""The keys of a sealed group; AES-256-GCM, as a new ring has."""
GATHER = {"found_after": "200ms", "join_interval": "50ms"}


class Adapter(Member):
    """A member of a group."""

    promises = "each sender's messages once, in order, none lost"
    keeps_all = True
    greets = False

    def open(self) -> None:
        """Join, and wait for the others."""
        task = self.task
        knobs: dict[str, Any] = {
            **({} if task.options.get("defaults") else GATHER),
            **task.options.get("knobs", {}),
        }
        self.group = blocking.join(
            "bench",
            transport=self._transport(),
            config={"loopback": False, **knobs},
            insecure=not task.options.get("sealed"),  # as its peers
            node=task.at + 1,
        ).open()
        self.group.wait_for_members(task.members or len(task.hosts), PATIENCE_S)
        self._to = None
        if task.mode != "all":
            view = self.group.view
            assert view is not None
            (self._to,) = [member for member in view.members if member.node == 2 - task.at]
        if task.mode != "rtt":
            each = "each" in task.options or "single" in task.options
            threading.Thread(target=self._read_each if each else self._read, daemon=True).start()

    def _transport(self) -> Any:
        task = self.task
        first, last = task.ports[0], task.ports[-1]
        places = ",".join(f"{host}:{first}-{last}" for host in dict.fromkeys(task.hosts))
        where = f"seeds://{places}"
        if task.transport == "udp":
            # a group of its own for each measurement: the ports are its own, so the group is made
            # from them
            multicast = f"multicast://239.255.{first >> 8}.{first & 255}:{first}"
            where = f"{multicast}?interface={task.host}, {where}"
        name = "mesh" if task.options.get("mesh") else task.transport
        made = TRANSPORTS[name](
            task.host,
            task.port,
            discovery=Discovery.parse(where, group="bench"),
            seal=Seal(RING, suites_of(RING)) if task.options.get("sealed") else None,
        )
        if not task.loss:
            return made
        from random import Random

        from gapless.faults.faults import Loss
        from gapless.faults.faulty_transport import FaultyTransport

        return FaultyTransport(
            made, [Loss(Random(task.at), [task.loss])], name=str(task.at), call=str
        )

    def _read(self) -> None:
        take_run = self.tally.take_run
        for batch in self.group.batches():
            take_run(batch.sender.node - 1, batch.buffer)

    def _read_each(self) -> None:
        take = self.tally.take
        for batch in self.group.batches():
            for message in batch:
                take(message)

    def send(self, messages: list[bytes]) -> None:
        """Send a batch, and wait until the group accepts the batch."""
        if "single" in self.task.options:
            for message in messages:
                self.group.send(message, self._to)
        else:
            self.group.send_many(messages, self._to)

    def ask(self, message: bytes) -> None:
        """Send a message to the other member, and wait for the echo."""
        self.group.send(message, self._to)
        self.group.receive(PATIENCE_S)

    def serve(self) -> None:
        """Echo received messages."""
        threading.Thread(target=self._echo, daemon=True).start()

    def _echo(self) -> None:
        for message in self.group:
            self.group.send(message.payload, message.sender)

    def extra(self) -> dict[str, float]:
        """Return how many frames there were, and how many repairs."""
        counted = self.group.snapshot().counters
        return {"repairs": counted.get("sent.repair", 0), "frames": counted.get("sent.data", 0)}
