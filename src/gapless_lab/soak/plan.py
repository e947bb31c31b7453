"""The plan of a soak, the task of each of its processes, and the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gapless.config import Config
from gapless.discovery import Discovery
from gapless.errors import ConfigError
from gapless.faults import faults
from gapless.faults.faulty_transport import FaultyTransport
from gapless.rng import split
from gapless.transport import TcpMesh, UdpMesh
from gapless.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.trace import TraceViolation
    from gapless.transport.base import Transport

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
        if not 2 <= self.members <= 64:
            raise ConfigError(f"{self.members} members: expected 2 to 64")
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} {getattr(self, name)}: expected a share from 0 to below 1"
                )
        for name in ("kills", "stops"):
            if not 0 <= getattr(self, name) < self.members:
                raise ConfigError(
                    f"{name} {getattr(self, name)}: expected at least 0 and fewer than members"
                )
        if not self.seconds > 0 or not 1 <= self.rate <= 10_000:
            raise ConfigError("expected more than 0 seconds, and 1 to 10,000 messages a second")
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
        discovery = Discovery.parse(f"seeds://{','.join(self.addresses)}", group="soak")
        host, _, port = self.addresses[self.index].rpartition(":")
        transport = TRANSPORTS[plan.transport](host, int(port), discovery=discovery)
        rng = split(plan.seed, f"member {self.node} start {self.start}")
        struck: list[faults.Fault] = [
            faults.Loss(rng, [plan.loss]),
            faults.Duplicate(rng, plan.duplicate, DELAY_NS),
            faults.LongHold(rng, plan.reorder, DELAY_NS, ALWAYS),
        ]
        return FaultyTransport(transport, struck, name=f"{self.node}", call=str)


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
