"""Results of simulated runs: of a seed, and of many seeds together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from gapless.sim.coverage.stream_coverage import REQUIRED_STREAM_COVERAGE

if TYPE_CHECKING:
    from gapless.sim.oracle.oracle import InvariantViolation
    from gapless.sim.script import Script
    from gapless.trace.incarnations import IncarnationRecord
    from gapless.trace.schema import TraceRow

FAULT_KINDS = (
    "burst",
    "clock",
    "clog",
    "corrupt",
    "crash",
    "delay",
    "duplicate",
    "foreign",
    "garbage",
    "hold",
    "late-timer",
    "loss",
    "partition",
    "pause",
    "refuse",
    "slow-reader",
    "stranger",
    "swizzle",
    "target-acks",
    "target-first",
    "target-last",
    "target-repair",
    "target-tails",
    "target-wrap",
    "truncate",
    "view",
)
"""Every kind of fault in the counts and reports of a sweep, even without a strike."""


@dataclass(slots=True)
class SeedResult:
    """The result of a seed; ``script`` and ``trace`` only on request.

    ``seals`` counts sealed, opened and rejected datagrams, and is empty without keys.
    """

    seed: int
    character: str
    profile: str
    digest: str
    events: int
    steps: int
    messages: int
    faults: dict[str, int]
    violations: list[InvariantViolation]
    seen: frozenset[str]
    simulated_ns: int
    repairs: int = 0
    seals: dict[str, int] = field(default_factory=dict)
    script: Script | None = None
    trace: list[TraceRow] | None = None
    incarnations: list[IncarnationRecord] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return not self.violations


@dataclass(slots=True)
class SweepResult:
    """The results of many seeds together."""

    seeds: int = 0
    events: int = 0
    messages: int = 0
    simulated_ns: int = 0
    real_s: float = 0.0
    faults: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FAULT_KINDS, 0)))
    seen: Counter[str] = field(default_factory=Counter)
    seals: Counter[str] = field(default_factory=Counter)
    characters: Counter[str] = field(default_factory=Counter)
    profiles: Counter[str] = field(default_factory=Counter)
    failed: list[SeedResult] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    required_coverage: tuple[str, ...] = REQUIRED_STREAM_COVERAGE

    def add(self, outcome: SeedResult) -> None:
        """Add the result of a seed."""
        self.seeds += 1
        self.events += outcome.events
        self.messages += outcome.messages
        self.simulated_ns += outcome.simulated_ns
        self.faults.update(outcome.faults)
        self.seals.update(outcome.seals)
        self.seen.update(outcome.seen.intersection(self.required_coverage))
        self.characters[outcome.character] += 1
        self.profiles[outcome.profile] += 1
        self.digests.append(outcome.digest)
        if not outcome.ok:
            self.failed.append(outcome)

    @property
    def never_seen(self) -> list[str]:
        """Required situations without an occurrence."""
        return [what for what in self.required_coverage if not self.seen[what]]

    @property
    def digest(self) -> str:
        """The digest of all seeds: equal for equal sweeps (S17)."""
        return blake2b("".join(self.digests).encode(), digest_size=16).hexdigest()
