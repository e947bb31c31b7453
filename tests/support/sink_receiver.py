"""A member that reads what a sink publishes, and the options by which the sink finds it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gapless import blocking
from gapless.group.sink_dedup import SinkRowId, parse_row_id
from tests.support.networks import free_ports, seeds
from tests.support.real_groups import QUICK, WITHIN_S, options

GROUP = "tests"
PATIENCE_S = 180.0
"""How long a receiver waits: a Spark may have to start first, on a machine that is busy."""


def sink_options(ports: list[int], **more: object) -> dict[str, str]:
    """Return the options of a sink for a group at these ports."""
    knobs = {f"config.{name}": value for name, value in QUICK.items()}
    own = {
        "group": GROUP,
        "discover": seeds(ports),
        "host": "127.0.0.1",
        "ports": ",".join(map(str, ports)),
    }
    return {
        name: str(value) for name, value in {**own, **knobs, "joinTimeout": "60s", **more}.items()
    }


class Receiver:
    """Reads all the time; with ``slow_after`` it waits after so many messages for ``go_on``."""

    def __init__(self, group: blocking.Group, slow_after: int | None = None) -> None:
        self.group = group
        self.found: list[tuple[bytes, dict[str, bytes]]] = []
        self.slow_after = slow_after
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for message in self.group:
            with self._changed:
                self.found.append((message.payload, dict(message.headers)))
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self.slow_after is None or len(self.found) < self.slow_after
                )

    def go_on(self) -> None:
        """Read everything from now on."""
        with self._changed:
            self.slow_after = None
            self._changed.notify_all()

    def until(self, count: int) -> list[bytes]:
        """Wait for so many messages; return them, after a check that no more are in flight."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.found) >= count, PATIENCE_S), len(
                self.found
            )
            return [payload for payload, _ in self.found]

    def all(self) -> list[bytes]:
        """Return all messages up to one that is sent now."""
        self.group.send(b"end", mode="acknowledged", loopback=True).delivered(WITHIN_S)
        with self._changed:
            assert self._changed.wait_for(lambda: self.found[-1:] == [(b"end", {})], PATIENCE_S), (
                len(self.found)
            )
            self.found.pop()
            return [payload for payload, _ in self.found]

    def rows(self) -> list[SinkRowId]:
        """Return the received rows."""
        found = [parse_row_id(headers) for _, headers in self.found]
        assert None not in found, "what came was not sent by a sink"
        return [row for row in found if row is not None]


@contextmanager
def receiver(slow_after: int | None = None, **knobs: Any) -> Iterator[tuple[Receiver, list[int]]]:
    """Run a reading member; yield it and the ports where it is found."""
    ports = free_ports(3)
    with blocking.join(GROUP, **options(ports, **knobs)) as group:
        yield Receiver(group, slow_after), ports
