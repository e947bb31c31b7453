"""The plan of a soak, the task of each process, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from gapless_lab.plans import SETTINGS, check_above_zero, check_range, check_share
from gapless_lab.workload import default_seal, loopback_transport

TRANSPORTS = {"udp": UdpMesh, "tcp": TcpMesh}
"""The transports of a soak."""
DELAY_NS = 20 * NS_PER_MS
"""How long a reordered datagram, or the copy of a duplicated one, is held back."""
ALWAYS = 1 << 60
"""Maximum number of reordered datagrams: no limit."""


@dataclass(frozen=True)
class SoakPlan:
    """A group of processes under faults; each member sends ``rate`` messages a second.

    With ``every_s``, ``kills`` and ``stops`` repeat in every interval of that length.
    """

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
    every_s: float = 0.0
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
        if self.every_s:
            check_range("every", self.every_s, 5, self.seconds, " s, at most the seconds")
        check_range("rate", self.rate, 1, 10_000, " messages a second of each member")
        self.config()

    @property
    def interval_s(self) -> float:
        """How long each round of kills and stops takes."""
        return self.every_s or self.seconds

    @property
    def rounds(self) -> int:
        """How many rounds of kills and stops the load has."""
        return int(self.seconds // self.interval_s)

    def config(self) -> Config:
        """Return the settings of the members."""
        return Config.make(**{**SETTINGS["soak"], **self.settings})


@dataclass(frozen=True)
class SoakTask:
    """The task of a process: plan, all addresses, own index and incarnation, the trace folder."""

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
            seal=default_seal("soak"),
        )


@dataclass(frozen=True)
class DetectedKill:
    """A kill, and how long the other members took to a view without the victim."""

    victim: str
    seconds: float | None
    """Until the last running member had the view; None if a member never had it."""


@dataclass(frozen=True)
class SoakReport:
    """The result of a soak; ``memory`` is the resident memory of each process over time."""

    rested: bool
    violations: Sequence[TraceViolation]
    figures: Mapping[str, int]
    """How many rows, incarnations, messages and events the trace has, how many kills and stops."""
    struck: dict[str, int]
    memory: dict[str, list[float]]
    """Megabytes."""
    detected: Sequence[DetectedKill] = ()
    longest_send_s: float = 0.0
    """The longest time a send waited, at the members of the end."""
    hangs: int = 0
    """How many sends took longer than ``HANG_S``."""

    def kill_to_view_s(self) -> dict[str, float | None]:
        """Return how long the views without killed members took: p50, p99 and the maximum."""
        found = sorted(kill.seconds for kill in self.detected if kill.seconds is not None)
        count, last = len(found), len(found) - 1
        ranks = {"p50": count // 2, "p99": min(last, round(count * 0.99)), "max": last}
        return {name: found[rank] if found else None for name, rank in ranks.items()}

    @property
    def unnoticed(self) -> int:
        """How many kills a running member never noticed."""
        return sum(kill.seconds is None for kill in self.detected)

    @property
    def is_flat(self) -> bool:
        """Whether no process grew by more than a tenth and 4 MB in the last third of the time.

        Only processes with a run time of at least half of the soak count.
        """
        most = max(map(len, self.memory.values()), default=0)
        return all(
            max(seen[-third:]) <= max(seen[third : 2 * third]) * 1.1 + 4
            for seen in self.memory.values()
            if (third := len(seen) // 3) >= 1 and 2 * len(seen) >= most
        )

    @property
    def is_sound(self) -> bool:
        """Whether no invariant broke, no member hung, and memory stayed flat."""
        ended = self.rested and not self.hangs and not self.unnoticed
        return ended and not self.violations and self.is_flat

    def as_dict(self) -> dict[str, Any]:
        """Return the report for a program."""
        found = asdict(self)
        return {
            **found.pop("figures"),
            **found,
            "violations": [each._asdict() for each in self.violations],
            "kill_to_view_s": self.kill_to_view_s(),
            "unnoticed": self.unnoticed,
            "memory_flat": self.is_flat,
            "sound": self.is_sound,
        }
