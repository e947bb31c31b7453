"""Named deadlines, at most one per name.

The machine owns no clock. After every input the runtime reads the next deadline, and calls ``tick``
at that time. Timers due at the same time fire in the order of ``TIMERS``.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gapless.identity import Address

# The names are stable: traces contain them. ``TIMERS`` explains each timer.
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
"""Every timer with its duty, in the firing order of timers due at the same time."""


def earlier(one_ns: int | None, other_ns: int | None) -> int | None:
    """Return the earlier of two times, either of which may be never."""
    if one_ns is None or other_ns is None:
        return other_ns if one_ns is None else one_ns
    return min(other_ns, one_ns)


class PeerDeadlines:
    """The deadlines of many peers; a change and the earliest cost the same for any number of them.

    A heap holds the deadlines. An entry that the table contradicts is out of date.
    """

    __slots__ = ("_by_peer", "_heap")

    def __init__(self) -> None:
        self._by_peer: dict[Address, int] = {}
        self._heap: list[tuple[int, Address]] = []

    def set(self, peer: Address, at_ns: int | None) -> None:
        """Set the deadline of ``peer``; None removes it."""
        if at_ns is None:
            self._by_peer.pop(peer, None)
        elif self._by_peer.get(peer) != at_ns:
            self._by_peer[peer] = at_ns
            # Entries out of date are dropped when they outnumber the others.
            if len(self._heap) > 2 * len(self._by_peer):
                self._heap = [(due_ns, one) for one, due_ns in self._by_peer.items()]
                heapify(self._heap)
            else:
                heappush(self._heap, (at_ns, peer))

    @property
    def next_ns(self) -> int | None:
        """The earliest deadline; None if there is none."""
        heap, by_peer = self._heap, self._by_peer
        while heap and by_peer.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ns: int) -> list[Address]:
        """Return the peers whose deadline has come, each once."""
        found: dict[Address, int] = {}
        while (at_ns := self.next_ns) is not None and at_ns <= now_ns:
            peer = heappop(self._heap)[1]
            found[peer] = self._by_peer.pop(peer)
        for peer, due_ns in found.items():
            self.set(peer, due_ns)
        return list(found)

    def check_invariants(self) -> None:
        """Raise AssertionError if a deadline would be missed."""
        entries = set(self._heap)
        assert all((at_ns, peer) in entries for peer, at_ns in self._by_peer.items()), (
            "every deadline is in the heap"
        )


class Timers(dict[str, int]):
    """The deadlines of a member, by the name of the timer.

    ``earliest_ns`` is the earliest deadline at the end of the last input. An input that moves no
    timer needs no other look at the timers.
    """

    __slots__ = ("earliest_ns",)

    def __init__(self) -> None:
        super().__init__()
        self.earliest_ns: int | None = None

    def find_earliest_ns(self) -> int | None:
        """Return the earliest deadline, and keep it as that of the end of this input."""
        self.earliest_ns = min(self.values(), default=None)
        return self.earliest_ns

    def arm(self, name: str, at_ns: int | None) -> None:
        """Set the deadline of ``name``; None removes the timer."""
        if at_ns is None:
            self.pop(name, None)
        else:
            self[name] = at_ns

    def arm_earlier(self, name: str, at_ns: int) -> None:
        """Set the deadline, unless an earlier deadline is set."""
        if at_ns < self.get(name, at_ns + 1):
            self[name] = at_ns

    def due(self, now_ns: int) -> list[str]:
        """Return the due timers, in firing order."""
        return [name for name in TIMERS if self.get(name, now_ns + 1) <= now_ns]

    @property
    def next_ns(self) -> int | None:
        """The earliest deadline."""
        return min(self.values(), default=None)

    def snapshot(self) -> tuple[str, ...]:
        """Return the names of the armed timers, without the deadlines."""
        return tuple(sorted(self))

    def restore(self, snapshot: tuple[str, ...]) -> None:
        """Arm exactly the timers of ``snapshot``, all due."""
        assert TIMERS.keys() >= set(snapshot)
        self.clear()
        self.update(dict.fromkeys(snapshot, 0))
        self.find_earliest_ns()

    def check_invariants(self) -> None:
        """Raise AssertionError if an armed timer can never fire."""
        assert self.keys() <= TIMERS.keys(), "every armed timer has a duty"
        assert None not in self.values(), "an armed timer has a deadline"
        assert self.earliest_ns == self.next_ns, "an input ends with a look at the timers it moved"
