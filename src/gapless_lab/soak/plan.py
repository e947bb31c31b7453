"""The plan of a soak, the task of each of its processes, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gapless.config import Config
from gapless.errors import ConfigError
from gapless.faults import faults
from gapless.rng import split
from gapless.trace import TraceViolation
from gapless.transport import TcpMesh, UdpMesh
from gapless.transport.base import Transport
from gapless.units import NS_PER_MS
from gapless_lab.plans import check_above_zero, check_range, check_share
from gapless_lab.workload import loopback_transport

TRANSPORTS = {"udp": UdpMesh, "tcp": TcpMesh}
"""The transports of a soak."""
DELAY_NS = 20 * NS_PER_MS
"""How long a reordered datagram, or the copy of a duplicated one, is held back."""
ALWAYS = 1 << 60
"""Maximum number of reordered datagrams: no limit."""
DEFAULT_SETTINGS = {
    "capacity": 512,
    "max_frame_bytes": 1200,
    "found_after": "200ms",
    "join_interval": "50ms",
    "heartbeat_interval": "200ms",
    "suspect_after": "1s",
    "verify_timeout": "300ms",
    "merge_interval": "300ms",
}
"""A window that fills, small frames, and failures detected within a short soak."""


@dataclass(frozen=True)
class SoakPlan:
    """A group of processes under faults; each member sends ``rate`` messages a second."""

    members: int = 4
    seconds: float = 60.0
    loss: float = 0.02
    duplicate: float = 0.01
    reorder: float = 0.01
    kills: int = 1
    stops: int = 1
    seed: int = 1
    transport: str = "udp"
    rate: int = 100
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ConfigError(
                f"transport {self.transport!r}: expected one of {', '.join(TRANSPORTS)}"
            )
        check_range("members", self.members, 2, 64)
        for name in ("loss", "duplicate", "reorder"):
            check_share(name, getattr(self, name), 0.99)
        for option, count in (("kill", self.kills), ("stop", self.stops)):
            check_range(option, count, 0, self.members - 1, ", fewer than members")
        check_above_zero("seconds", self.seconds)
        check_range("rate", self.rate, 1, 10_000, " messages a second of each member")
        self.config()

    def config(self) -> Config:
        """Return the settings of the members."""
        return Config.make(**{**DEFAULT_SETTINGS, **self.settings})


@dataclass(frozen=True)
class SoakTask:
    """The task of a process: plan, all addresses, its index and incarnation, the trace folder."""

    plan: SoakPlan
    addresses: list[str]
    index: int
    start: int
    folder: str

    @property
    def node(self) -> int:
        """The node id of the member."""
        return self.index + 1

    def open(self) -> Transport:
        """Return the transport, with the faults on incoming datagrams."""
        plan = self.plan
        host, _, port = self.addresses[self.index].rpartition(":")
        rng = split(plan.seed, f"member {self.node} start {self.start}")
        struck: list[faults.Fault] = [
            faults.Loss(rng, [plan.loss]),
            faults.Duplicate(rng, plan.duplicate, DELAY_NS),
            faults.LongHold(rng, plan.reorder, DELAY_NS, ALWAYS),
        ]
        return loopback_transport(
            "soak",
            f"seeds://{','.join(self.addresses)}",
            struck,
            kind=TRANSPORTS[plan.transport],
            address=(host, int(port)),
            name=f"{self.node}",
        )


@dataclass(frozen=True)
class SoakReport:
    """The result of a soak; ``memory`` is the resident memory of each process over time."""

    rested: bool
    violations: Sequence[TraceViolation]
    rows: int
    lives: int
    sent: int
    delivered: int
    views: int
    expelled: int
    naks: int
    repairs: int
    struck: dict[str, int]
    kills: int
    stops: int
    memory: dict[str, list[float]]
    """Megabytes."""

    @property
    def is_flat(self) -> bool:
        """Whether no process grew by more than a tenth and 4 MB in the last third of its time.

        Only processes that ran for at least half of the soak count.
        """
        most = max(map(len, self.memory.values()), default=0)
        return all(
            max(seen[-third:]) <= max(seen[third : 2 * third]) * 1.1 + 4
            for seen in self.memory.values()
            if (third := len(seen) // 3) >= 1 and 2 * len(seen) >= most
        )

    @property
    def is_sound(self) -> bool:
        """Whether the group came to rest, no invariant broke, and memory stayed flat."""
        return self.rested and not self.violations and self.is_flat

    def as_dict(self) -> dict[str, Any]:
        """Return the report for a program."""
        found = {
            **asdict(self),
            "violations": [violation._asdict() for violation in self.violations],
        }
        return {**found, "memory_flat": self.is_flat, "sound": self.is_sound}
