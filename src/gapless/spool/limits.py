"""How much a spool may hold, and what happens when it is more."""

from __future__ import annotations

from dataclasses import dataclass

from gapless.errors import ConfigError
from gapless.units import GIB, MIB, NS_PER_S

WAIT = "wait"
"""Policy: a commit raises SpoolFull until readers have passed something; senders wait meanwhile."""
DROP_OLDEST = "drop-oldest"
"""Policy: delete the oldest segments even if a reader needs them; count them as dropped."""
POLICIES = (WAIT, DROP_OLDEST)


@dataclass(frozen=True)
class SpoolLimits:
    """The limits of a spool; 0 is no limit.

    ``max_bytes`` is what all segments together may take, ``max_age_ns`` how old the oldest message
    may get that a reader still needs. A segment is sealed when it has ``segment_bytes`` or is
    ``segment_age_ns`` old. A stream of a life that is over is forgotten ``forget_after_ns`` after
    its last message, if nothing of it is left.
    """

    max_bytes: int = 10 * GIB
    max_age_ns: int = 0
    policy: str = WAIT
    segment_bytes: int = 64 * MIB
    segment_age_ns: int = 600 * NS_PER_S
    forget_after_ns: int = 3600 * NS_PER_S

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(f"policy = {self.policy!r}: expected one of {', '.join(POLICIES)}")
        for name in ("max_bytes", "max_age_ns", "segment_age_ns", "forget_after_ns"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: expected 0 (no limit) or more")
        if self.segment_bytes < 1:
            raise ConfigError(f"segment_bytes = {self.segment_bytes}: expected at least 1")

    @property
    def rotate_bytes(self) -> int:
        """Size at which a segment is sealed: at most an eighth of the limit by size."""
        return (
            min(self.segment_bytes, max(self.max_bytes // 8, 1))
            if self.max_bytes
            else self.segment_bytes
        )

    @property
    def rotate_age_ns(self) -> int:
        """Age at which a segment is sealed: at most a quarter of a limit by age."""
        ages = [age_ns for age_ns in (self.segment_age_ns, self.max_age_ns // 4) if age_ns]
        return min(ages, default=0)
