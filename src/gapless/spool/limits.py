"""The limits of a spool, and the policies for a full spool."""

from __future__ import annotations

from dataclasses import dataclass

from gapless.errors import ConfigError
from gapless.units import GIB, MIB, NS_PER_S

WAIT = "wait"
"""Policy: commits raise SpoolFull until readers advance; senders wait meanwhile."""
DROP_OLDEST = "drop-oldest"
"""Policy: delete the oldest segments even if a reader needs them; count them as dropped."""
POLICIES = (WAIT, DROP_OLDEST)
"""All policies for a full spool."""


@dataclass(frozen=True)
class SpoolLimits:
    """The limits of a spool; 0 is no limit.

    ``max_bytes`` limits the size of all segments, ``max_age_ns`` the age of the oldest message
    needed by a reader. A segment is sealed at ``segment_bytes`` or at the age ``segment_age_ns``.
    The stream of an ended incarnation is forgotten ``forget_after_ns`` after the last message, if
    no message of the stream is left.
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
