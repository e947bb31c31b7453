"""Named deadlines, at most one a name.

The machine owns no clock. After every input the shell asks for the next deadline, and calls
``tick`` with the time when it has come. Timers that are due at the same time fire in the order of
:data:`TIMERS`.
"""

from __future__ import annotations

ACK = "ack"
GAP = "gap"
TAIL = "tail"
TIMEOUT = "timeout"
SLOW_RECEIVER = "pin"
STABLE = "stable"
OUT_OF_BAND = "aside"
REAP = "reap"
VIEW = "view"
HEARTBEAT = "beat"
COORDINATE = "coordinate"
STATE = "state"

TIMERS = {
    ACK: "Send the acks that are owed.",
    GAP: "Ask for gaps whose grace or back-off is over.",
    TAIL: "Announce the end of the own streams.",
    TIMEOUT: "Give up the sends whose timeout has expired.",
    SLOW_RECEIVER: "Report the members that keep a window from moving.",
    STABLE: "Vote on what is stable.",
    OUT_OF_BAND: "Resend out-of-band messages that are not acknowledged.",
    REAP: "Close idle connections.",
    VIEW: "Install the view that has been agreed on.",
    HEARTBEAT: "Send heartbeats, and probe the members whose heartbeats are overdue.",
    COORDINATE: "Repeat the requests of the membership, and decide on the next view.",
    STATE: "Ask again for missing parts of a state.",
}
"""Every timer with its duty, in the order in which those due at the same time fire."""


def earlier(one_ns: int | None, other_ns: int | None) -> int | None:
    """Return the earlier of two times, either of which may be never."""
    if one_ns is None or other_ns is None:
        return other_ns if one_ns is None else one_ns
    return min(other_ns, one_ns)


class Timers(dict[str, int]):
    """The deadlines of one member, by the name of the timer."""

    __slots__ = ()

    def arm(self, name: str, at_ns: int | None) -> None:
        """Set the deadline of ``name``; None removes it."""
        if at_ns is None:
            self.pop(name, None)
        else:
            self[name] = at_ns

    def arm_earlier(self, name: str, at_ns: int) -> None:
        """Set the deadline unless there is an earlier one."""
        if at_ns < self.get(name, at_ns + 1):
            self[name] = at_ns

    def due(self, now_ns: int) -> list[str]:
        """Return the timers whose deadline has come, in the order in which they fire."""
        return [name for name in TIMERS if self.get(name, now_ns + 1) <= now_ns]

    @property
    def next_ns(self) -> int | None:
        """The earliest deadline."""
        return min(self.values(), default=None)

    def snapshot(self) -> tuple[str, ...]:
        """Return the names of the armed timers, without their deadlines."""
        return tuple(sorted(self))

    def restore(self, snapshot: tuple[str, ...]) -> None:
        """Arm exactly the timers of ``snapshot``, all of them due."""
        assert TIMERS.keys() >= set(snapshot)
        self.clear()
        self.update(dict.fromkeys(snapshot, 0))

    def check_invariants(self) -> None:
        """Raise AssertionError if a timer is armed that can never fire."""
        assert self.keys() <= TIMERS.keys(), "every armed timer has a duty"
        assert None not in self.values(), "an armed timer has a deadline"
