"""Write the trace of a member in a real process.

On every answer of the machine: its rows are in the file before its datagrams leave, since the protocol thread writes
them first, each time with one call of the system. So what a killed process has caused elsewhere stands in its file.

Rows are stamped when they are written, with the clock that all processes of the machine share: what causes something
elsewhere has an earlier stamp than its effect.
"""

from __future__ import annotations

import json
import os
import threading
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from gapless.core.ready import Delivery, Expelled, Lost, Started, StateReceived, ViewInstalled
from gapless.trace.schema import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gapless.core.ready import Step
    from gapless.identity import Address

_DEFAULTS = Row._field_defaults


def payload_hash(payload: bytes) -> int:
    """Return a hash of a message that fits into 63 bits and is never 0."""
    return int.from_bytes(blake2b(payload, digest_size=7).digest(), "little") + 1


def life(address: Address | None) -> str:
    """Return how a life is called in the trace of real processes."""
    return "" if address is None else str(address)


class Writer:
    """The trace of one process, in the file ``path``; any thread may write. ``reach`` is that of the windows."""

    def __init__(self, path: Path, *, seed: int = 0, reach: int = 0) -> None:
        self.seed = seed
        self.rows = 0
        self._reach = reach
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        self._views: dict[Address, int] = {}
        self._told: Address | None = None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def steps(self, _: int, me: Address, steps: Sequence[Step]) -> None:
        """Write what the machine says it did: this is the ``trace`` of a handle."""
        self._write(
            me,
            [
                {
                    "event": step.event,
                    "origin": life(step.origin),
                    "seqno": step.first,
                    "seqno_last": step.last,
                    "peer": life(step.peer),
                    "size_bytes": step.size_bytes,
                    "low": step.low,
                    "delivered": step.delivered,
                    "high": step.high,
                    "reason": step.reason,
                    "epoch": step.epoch,
                }
                for step in steps
            ],
        )

    def offer(self, me: Address, payload: bytes) -> None:
        """Write that a message is about to be sent."""
        self._write(me, [{"event": "OFFER", "size_bytes": len(payload), "hash": payload_hash(payload)}])

    def accept(self, me: Address, first: int, last: int, payload: bytes) -> None:
        """Write that a message has its numbers."""
        numbers = {"origin": life(me), "seqno": first, "seqno_last": last}
        self._write(me, [{"event": "ACCEPT", **numbers, "size_bytes": len(payload), "hash": payload_hash(payload)}])

    def rest(self, me: Address) -> None:
        """Write that this life is there at the end."""
        self._write(me, [{"event": "REST"}])

    def items(self, node: int, items: Iterable[object]) -> None:
        """Write what the application of the member ``node`` has taken, in its order; views tell which life it is."""
        found: list[dict[str, Any]] = []
        for item in items:
            if isinstance(item, ViewInstalled):
                mine = [member for member in item.view.members if member.node == node]
                self._flush(found)
                self._told = mine[0] if mine else self._told
                made = {"view": item.view.id.number, "origin": life(item.view.id.coordinator)}
                found.append({"event": "MEMBERS", **made, "reason": " ".join(map(life, item.view.members))})
            elif isinstance(item, Delivery):
                found += _deliveries(item)
            elif isinstance(item, Started):
                found.append({"event": "START", "origin": life(item.origin), "seqno": item.start + 1})
            elif isinstance(item, Lost):
                gone = {"origin": life(item.origin), "seqno": item.first, "seqno_last": item.last}
                found.append({"event": "LOST", **gone})
            elif isinstance(item, StateReceived):
                found.append({"event": "STATE_IN", "peer": life(item.provider), "size_bytes": len(item.state)})
            elif isinstance(item, Expelled):
                found.append({"event": "EXPELLED", "view": item.view.number})
        self._flush(found)

    def _flush(self, found: list[dict[str, Any]]) -> None:
        if found and self._told is not None:
            self._write(self._told, found)
        found.clear()

    def _write(self, me: Address, rows: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            if me not in self._views:
                self._views[me] = 0
                rows = [{"event": "BEGIN", "high": self._reach}, *rows]
            t_ns = time.monotonic_ns()
            name, text = life(me), ""
            for row in rows:
                if row["event"] == "VIEW":
                    self._views[me] = row["seqno_last"]
                said = {key: value for key, value in row.items() if value != _DEFAULTS.get(key)}
                where = {"seed": self.seed, "member": name, "idx": self.rows, "step": self.rows, "t_ns": t_ns}
                text += json.dumps({**where, "view": self._views[me], **said}) + "\n"
                self.rows += 1
            os.write(self._file, text.encode())


def _deliveries(item: Delivery) -> Iterable[dict[str, Any]]:
    """Return a row for each message, so that runs that were cut in different places can be compared."""
    messages = item.messages()
    whole = len(messages) == 1
    for at, message in enumerate(messages):
        yield {
            "event": "DELIVER",
            "origin": life(item.origin),
            "seqno": item.first + at,
            "seqno_last": item.last if whole else item.first + at,
            "size_bytes": len(message),
            "hash": payload_hash(message),
            "reason": "" if item.kind == "group" else item.kind,
            "epoch": item.epoch,
        }
