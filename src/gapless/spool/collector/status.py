"""The status of a collector, as a value for any thread to read."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gapless.metrics.prometheus import LAG
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from gapless.protocol.snapshot import MemberSnapshot
    from gapless.spool.collector.appender import DeliveryAppender

NEW, JOINING, COLLECTING, WAITING, STOPPING, STOPPED, FAILED = (
    *("new", "joining", "collecting", "waiting", "stopping"),
    *("stopped", "failed"),
)
"""The states of a collector; ``waiting`` is for the spool, which cannot take more."""


@dataclass(frozen=True, kw_only=True)
class CollectorStatus:
    """The status of a collector.

    ``messages`` and ``size_bytes`` count what this collector has committed: on disk and
    acknowledged. ``received`` counts every message that arrived, also duplicates omitted from the
    spool, and ``pending`` those not on disk yet, which their senders retain. ``spool_messages`` is
    the content of the spool, former collectors included. ``uncollected`` counts messages outside of
    any stream; ``lag`` is the number of unread messages of each reader. Figures of the spool are at
    most a second old.
    """

    group: str
    spool: str
    name: str
    state: str
    waits_for: str = ""
    me: str = ""
    view: int = 0
    members: int = 0
    lives: int = 0
    at_s: float = 0.0
    messages: int = 0
    size_bytes: int = 0
    received: int = 0
    pending: int = 0
    batches: int = 0
    commits: int = 0
    commit_ns: int = 0
    failures: int = 0
    lost: int = 0
    oversized: int = 0
    unexplained: int = 0
    repeated: int = 0
    dropped: int = 0
    uncollected: dict[str, int] = field(default_factory=dict)
    unread: int = 0
    line_bytes: int = 0
    spool_messages: int = 0
    used_bytes: int = 0
    room_bytes: int | None = None
    segments: int = 0
    oldest_age_ns: int = 0
    limited: str = ""
    lag: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the status as plain values."""
        return asdict(self)

    def add_to_snapshot(self, look: MemberSnapshot) -> MemberSnapshot:
        """Return a snapshot of the member with the figures of the spool."""
        gauges = {f"spool_{name}": getattr(self, name) for name in _GAUGES}
        gauges["spool_stored_messages"] = self.spool_messages
        gauges["spool_pending_messages"] = self.pending
        gauges["spool_oldest_age_s"] = self.oldest_age_ns // NS_PER_S
        gauges["spool_waiting"] = int(self.state == WAITING)
        if self.room_bytes is not None:
            gauges["spool_room_bytes"] = self.room_bytes
        gauges.update((LAG + reader, lag) for reader, lag in self.lag.items())
        counters = {f"spool_{name}": getattr(self, name) for name in _COUNTERS}
        counters.update(
            (f"spool_uncollected.{kind}", count) for kind, count in self.uncollected.items()
        )
        return replace(look, gauges=look.gauges | gauges, counters=look.counters | counters)


_GAUGES = ("used_bytes", "line_bytes", "segments")
_COUNTERS = (
    *("messages", "size_bytes", "received", "commits", "failures"),
    *("lost", "dropped", "repeated"),
)


def appender_counts(intake: DeliveryAppender | None) -> dict[str, Any]:
    """Return the counters of received and of committed messages."""
    if intake is None:
        return {}
    return {
        "messages": intake.spool.committed_messages,
        "size_bytes": intake.spool.committed_bytes,
        "received": intake.received,
        "pending": intake.pending_messages,
        "batches": intake.batches,
        "lost": intake.lost,
        "oversized": intake.oversized,
        "unexplained": intake.unexplained,
        "repeated": intake.sink_dedup.repeated,
        "uncollected": dict(intake.uncollected),
        "line_bytes": intake.pending_bytes,
        "at_s": time.monotonic(),
    }
