"""Processes come and go under load; SIGKILL ends some of the processes.

One member sends all the time. Other processes join, read for a moment and leave; a fifth of the
processes is killed instead. At the end only the sender is left, and the view must have no other
member. The sender must never wait longer than the detection of a single death takes.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from experiments.failures.processes import MemberGroup, MemberHandle, load_average, wait_for_view
from gapless.config import Config
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

RATE = 300
"""Messages a second of the sender."""
SIZE_BYTES = 200
CAPACITY = 256
"""A window that is full within a second, if a dead member does not acknowledge."""
_POLL_S = 0.02


@dataclass
class Churn:
    """The result of a run."""

    processes: int
    killed: int = 0
    seconds: float = 0.0
    peak: int = 0
    """The largest view of the sender."""
    views: int = 0
    sent: int = 0
    longest_send_s: float = 0.0
    detection_s: float = 0.0
    """How long the detection of one silent death takes at most, by the settings."""
    exact_after_s: float | None = None
    """From the last end of a process to the view of the sender alone; None: never."""
    load: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the last view was exact in time, and the sender never waited for long."""
        return (
            self.exact_after_s is not None
            and self.exact_after_s <= 10
            and self.longest_send_s <= self.detection_s
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        return {**asdict(self), "ok": self.ok}


def churn(
    processes: int = 200,
    killed_share: float = 0.2,
    at_once: int = 8,
    seed: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Churn:
    """Let ``processes`` come and go, at most ``at_once`` at a time."""
    rng = Random(seed)
    config = Config()
    found = Churn(processes)
    found.detection_s = round(
        (config.suspect_after_ns + config.verify_timeout_ns + 2 * config.heartbeat_interval_ns)
        / NS_PER_S,
        1,
    )
    began_s = time.monotonic()
    with MemberGroup("churn") as group:
        (sender,) = group.add(options={"config": {"capacity": CAPACITY}})
        sender.wait_for_event("joined")
        sender.notify("go", rate=RATE, size_bytes=SIZE_BYTES)
        visitors: dict[MemberHandle, float | None] = {}
        started = 0
        while started < processes or visitors:
            while started < processes and len(visitors) < at_once:
                visitors |= _start_visitor(group, rng, killed_share)
                started += 1
            _end_visitors(group, visitors, found)
            progress(started - len(visitors))
            time.sleep(_POLL_S)
        ended_s = time.monotonic()
        try:
            found.exact_after_s = round(max(0.0, wait_for_view([sender], 1) - ended_s), 3)
        finally:
            end = sender.ask("halt")
        found.sent, found.longest_send_s = end["sent"], end["longest_send_s"]
        found.views = len(sender.views)
        found.peak = max(len(members) for _, members in sender.views)
    found.seconds = round(time.monotonic() - began_s, 1)
    found.load = load_average()
    return found


def _start_visitor(
    group: MemberGroup, rng: Random, killed_share: float
) -> dict[MemberHandle, float | None]:
    """Start a process; return the delay from join to SIGKILL, or None if the process leaves."""
    if rng.random() < killed_share:
        (visitor,) = group.add()
        return {visitor: rng.uniform(0.1, 1.5)}
    (visitor,) = group.add(stay_s=rng.uniform(0.2, 2.0))
    return {visitor: None}


def _end_visitors(
    group: MemberGroup, visitors: dict[MemberHandle, float | None], found: Churn
) -> None:
    """Kill the visitors whose delay has passed, and forget ended visitors."""
    for visitor, stay_s in list(visitors.items()):
        joined = visitor.latest.get("joined")
        if stay_s is not None and joined is not None:
            if time.monotonic() < joined["at_s"] + stay_s:
                continue
            visitor.die()
            found.killed += 1
        elif not visitor.has_exited:
            continue
        group.remove([visitor])
        del visitors[visitor]
