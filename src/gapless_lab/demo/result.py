"""The result of the demo, and how traces are counted without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from gapless.trace import TraceRow
from gapless_lab.bench.matrix import percentile

SUMMARY = (
    *("delivered", "lost", "duplicates", "out_of_order"),
    *("frames_lost", "naks", "repairs", "repaired"),
)
"""The figures of a trace that a result repeats."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The result of the demo.

    ``sent`` are different messages; ``delivered`` counts them at every member but their sender.
    ``lost`` are messages that were acknowledged and are not in the table (without Spark: the
    spool), ``duplicates`` those that are there, or were delivered, more than once, ``out_of_order``
    deliveries that were not the next of their stream.
    """

    members: int
    loss_percent: float
    seed: int
    kills: int
    sent: int
    delivered: int
    lost: int
    duplicates: int
    out_of_order: int
    frames_lost: int
    naks: int
    repairs: int
    repaired: int
    """Messages that were in these repairs."""
    latency_p50_ms: float
    latency_p99_ms: float
    rows: int | None
    """Rows in the bronze table; None without Spark."""
    events: int
    checks: int
    violations: int
    problems: list[str] = field(default_factory=list)
    """The faults found, in words."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each part took."""
    tables: dict[str, str] = field(default_factory=dict)
    trace: str = ""
    report: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether no fault was found."""
        return not (
            self.lost or self.duplicates or self.out_of_order or self.violations or self.problems
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        return {**asdict(self), "sound": self.is_sound}


def count_trace(rows: Iterable[TraceRow]) -> dict[str, int]:
    """Count the events of a trace, as if all rows had one clock."""
    found: Counter[str] = Counter()
    waits_ns: Counter[int] = Counter()
    for row in rows:
        messages = row.seqno_last - row.seqno + 1
        found[row.event] += 1
        if row.event == "REPAIR":
            found["repaired"] += messages
        elif row.event == "DELIVER" and row.member != row.origin:
            found["delivered"] += messages
            waits_ns[max(0, row.t_ns - row.sent_ns)] += messages
    waits = sorted(waits_ns.elements())
    return {
        "delivered": found["delivered"],
        "frames_lost": found["NET_DROP"],
        "naks": found["NAK_OUT"],
        "repairs": found["REPAIR"],
        "repaired": found["repaired"],
        "latency_p50_ns": percentile(waits, 0.50),
        "latency_p99_ns": percentile(waits, 0.99),
    }
