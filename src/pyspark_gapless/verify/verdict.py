"""The verdict on a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

HELD, VIOLATED, NOT_CHECKED = "held", "violated", "not checked"


class CheckResult(NamedTuple):
    """The result of a check: rows examined, violations, or why the check was not applicable."""

    id: str
    name: str
    state: str
    rows: int
    violations: int
    why: str = ""


@dataclass(slots=True)
class TraceVerdict:
    """The result of all checks. ``violations`` are the first few, each with its context."""

    events: int
    incarnations: int
    seeds: int
    span_ns: int
    mode: str
    simulated: bool
    seconds: float = 0.0
    checks: list[CheckResult] = field(default_factory=list)
    incomplete: list[dict[str, Any]] = field(default_factory=list)
    violations: list[dict[str, Any]] = field(default_factory=list)
    failing_seeds: dict[int, list[str]] = field(default_factory=dict)
    """The seeds with violations, each with the ids of the broken invariants."""

    @property
    def ok(self) -> bool:
        """Whether no invariant is broken. Missing rows break none, but less can be said."""
        return not self.violation_count

    @property
    def has_checks(self) -> bool:
        """Whether any check ran: without a check, the absence of violations proves nothing."""
        return any(finding.state != NOT_CHECKED for finding in self.checks)

    @property
    def violation_count(self) -> int:
        """How many violations there are."""
        return sum(finding.violations for finding in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict and the violations as values of JSON."""
        verdict = {
            "ok": self.ok,
            "violations": self.violation_count,
            "events": self.events,
            "lives": self.incarnations,
            "seeds": self.seeds,
            "span_ns": self.span_ns,
            "seconds": round(self.seconds, 3),
            "checks": [finding._asdict() for finding in self.checks],
            "incomplete": self.incomplete,
        }
        return {
            "mode": self.mode,
            "simulated": self.simulated,
            "verdict": verdict,
            "violations": self.violations,
        }
