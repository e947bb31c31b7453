"""The result of the demo, and how traces are counted without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gapless.trace import TraceRow
from gapless_lab.bench.matrix import percentile

SUMMARY = (
    *("delivered", "lost", "duplicates", "out_of_order"),
    *("frames_lost", "naks", "repairs", "repaired"),
    *("rows", "events", "checks", "violations"),
)
"""The figures of the tables and the trace that a result repeats."""
FAULTS = ("lost", "duplicates", "out_of_order", "violations")
"""The figures of a result that have to be 0."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The result of the demo.

    ``figures`` has members, loss_percent, seed, kills, sent, the latency, and the figures of
    :data:`SUMMARY`. ``sent`` counts different messages, ``delivered`` counts
    each at every member but the sender. ``lost`` messages were acknowledged and are not in the
    table (without Spark: the spool), ``duplicates`` are in the table, or were delivered, more than
    once, ``out_of_order`` deliveries were not the next of their stream. ``repaired`` counts
    messages, ``repairs`` frames. ``rows`` counts the bronze table, None without Spark.
    """

    figures: Mapping[str, Any]
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
        return not self.problems and not any(self.figures[name] for name in FAULTS)

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        found = asdict(self)
        return {**found.pop("figures"), **found, "sound": self.is_sound}


def count_trace(rows: Iterable[TraceRow]) -> dict[str, Any]:
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
