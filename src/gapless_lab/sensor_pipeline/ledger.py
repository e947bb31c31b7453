"""What a producer has sent and what of it was acknowledged, written down so that it outlasts the producer.

One line for each life, before its first message, and one for each acknowledgement. A life sends
readings in the order of their numbers, each as one message, and its seqnos count from 1: so a life
and a seqno say which reading it was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self


@dataclass
class ProducerIncarnation:
    """One life of a producer: its stream, the number of its first reading, and how many were acknowledged."""

    origin: str
    first: int
    acknowledged: int = 0

    @property
    def next_number(self) -> int:
        """The number of the first reading that was not acknowledged."""
        return self.first + self.acknowledged


class ProducerLedger:
    """The lives of one producer, in the file at ``path``; the last one may be going on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.incarnations = read_incarnations(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._file.write("\n")  # the last line of a life that was killed may be half a line

    def begin(self, origin: str, first: int) -> None:
        """Begin a life."""
        self.incarnations.append(ProducerIncarnation(origin, first))
        self._write({"origin": origin, "first": first})

    def acknowledge(self, seqno: int) -> None:
        """Say up to which seqno the messages of the last life are acknowledged."""
        life = self.incarnations[-1]
        if seqno > life.acknowledged:
            life.acknowledged = seqno
            self._write({"acknowledged": seqno})

    @property
    def next_number(self) -> int:
        """The number of the next reading to send."""
        return self.incarnations[-1].next_number if self.incarnations else 1

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_incarnations(path: Path) -> list[ProducerIncarnation]:
    """Return the lives that a file tells of; half a line, as a kill may leave it, says nothing."""
    lives: list[ProducerIncarnation] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "origin" in line:
            lives.append(ProducerIncarnation(line["origin"], line["first"]))
        elif lives and "acknowledged" in line:
            lives[-1].acknowledged = line["acknowledged"]
    return lives
