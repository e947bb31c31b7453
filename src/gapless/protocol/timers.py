"""Named deadlines. The machine owns no clock: the shell asks for the next deadline and calls back with the time."""

from __future__ import annotations

ACK = "ack"
"""Owed acks go out."""
GAP = "gap"
"""Gaps that outlived their grace or their back-off are asked for."""
TAIL = "tail"
"""The end of the own stream is announced."""
TIMEOUT = "timeout"
"""Waiting sends are given up."""
SLOW_RECEIVER = "pin"
"""The member that pins the window is named."""
STABLE = "stable"
"""A vote on what is stable goes out."""
OUT_OF_BAND = "aside"
"""Out-of-band messages that are not acknowledged go out again."""
REAP = "reap"
"""Idle connections close."""
VIEW = "view"
"""A view that has come is installed."""
HEARTBEAT = "beat"
"""Signs of life go out, and those that are overdue are looked for."""
COORDINATE = "coordinate"
"""What the membership waits for is tried again, or decided."""
STATE = "state"
"""What is missing of a state is asked for again."""

TIMERS = (
    ACK,
    GAP,
    TAIL,
    TIMEOUT,
    SLOW_RECEIVER,
    STABLE,
    OUT_OF_BAND,
    REAP,
    VIEW,
    HEARTBEAT,
    COORDINATE,
    STATE,
)
"""Every timer, in the order in which those due at the same time fire."""


def earlier(one_ns: int | None, other_ns: int | None) -> int | None:
    """Return the earlier of two times, either of which may be never."""
    if one_ns is None or other_ns is None:
        return other_ns if one_ns is None else one_ns
    return min(other_ns, one_ns)


class Timers:
    """At most one deadline per name."""

    __slots__ = ("_deadlines",)

    def __init__(self) -> None:
        self._deadlines: dict[str, int] = {}

    def arm(self, name: str, at_ns: int | None) -> None:
        """Set the deadline of ``name``; None takes it away."""
        if at_ns is None:
            self._deadlines.pop(name, None)
        else:
            self._deadlines[name] = at_ns

    def arm_earlier(self, name: str, at_ns: int) -> None:
        """Set the deadline unless there is an earlier one."""
        if at_ns < self._deadlines.get(name, at_ns + 1):
            self._deadlines[name] = at_ns

    def clear(self) -> None:
        """Take every deadline away."""
        self._deadlines.clear()

    def is_armed(self, name: str) -> bool:
        """Return whether ``name`` has a deadline."""
        return name in self._deadlines

    def due(self, now_ns: int) -> list[str]:
        """Return the timers whose deadline has come."""
        return [name for name in TIMERS if self._deadlines.get(name, now_ns + 1) <= now_ns]

    @property
    def next_ns(self) -> int | None:
        """The earliest deadline."""
        return min(self._deadlines.values(), default=None)

    def snapshot(self) -> tuple[str, ...]:
        """Return which timers are armed; when they would fire is left out."""
        return tuple(sorted(self._deadlines))

    def restore(self, snapshot: tuple[str, ...]) -> None:
        """Arm exactly the timers of ``snapshot``, all of them due."""
        self._deadlines = dict.fromkeys(snapshot, 0)
