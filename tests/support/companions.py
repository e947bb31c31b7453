"""Members in processes of their own: each runs ``programs/companion.py``."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.support.processes import PROGRAMS, ChildProcess

QUICK = {
    "found_after": "200ms",
    "join_interval": "20ms",
    "heartbeat_interval": "50ms",
    "suspect_after": "400ms",
    "verify_timeout": "200ms",
    "merge_interval": "200ms",
    "leave_timeout": "3s",
}
"""Settings with which a group forms, notices a crash and merges within a second or two."""


class Companion(ChildProcess):
    """One member; its first line of output says where it listens."""

    def __init__(self, name: str, node: int, **options: Any) -> None:
        self.name = name
        program = str(PROGRAMS / "companion.py")
        super().__init__(program, name, json.dumps({"node": node, **options}))


def ask_all(processes: list[Companion], do: str, **options: Any) -> list[dict[str, Any]]:
    """Send a request to all before the first answer is read, so that they work at the same time."""
    for process in processes:
        process.request(do, **options)
    return [process.read_json() for process in processes]


@contextmanager
def companions(count: int, seeds: str, **options: Any) -> Iterator[list[Companion]]:
    """Start members a, b, … at once, and wait until all are in one view."""
    options.setdefault("knobs", QUICK)
    with ExitStack() as stack:
        started = [
            stack.enter_context(Companion(chr(ord("a") + node - 1), node, seeds=seeds, **options))
            for node in range(1, count + 1)
        ]
        for process in started:
            process.read_line()
        for answer in ask_all(started, "members", nodes=list(range(1, count + 1))):
            assert answer["met"], answer
        yield started
