"""Who lives: a ring of members that watch each other.

On a view: each member is watched by the ``monitors`` members behind it in the order of the view,
the last ones by the first. So the signs of life grow with the number of members, not with its
square, and two that die at once are found together or one after the other.

On reception: whatever comes from a member is a sign of life.

Every ``heartbeat_interval``: a member that has sent its watchers nothing else shows them that it
lives. One that was silent for ``suspect_after`` is asked; if it does not answer within
``verify_timeout``, it is believed dead, and the acting coordinator is told. Whoever is told asks
once more itself before it believes it.

When this member itself stood still (an input comes much later than the deadline it had asked for)
that time does not
count: nobody is suspected for a silence that nobody here was awake to hear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.protocol.events import Suspected
from gapless.wire.frames import Alive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.config import Config
    from gapless.identity import Address, ViewId
    from gapless.protocol.ready_builder import ReadyBuilder


class FailureDetector:
    """Signs of life, given and expected."""

    def __init__(self, me: Address, config: Config) -> None:
        self.me = me
        self.config = config
        self.dead: set[Address] = set()
        self._members: tuple[Address, ...] = ()
        self._view: ViewId | None = None
        self._watchers: tuple[Address, ...] = ()
        self._last_heard_ns: dict[Address, int] = {}
        self._probed_ns: dict[Address, int] = {}
        self._due_ns: int | None = None

    @property
    def due_ns(self) -> int | None:
        """When signs of life are to be given or looked for next."""
        return self._due_ns

    def last_heard_ns(self, member: Address) -> int | None:
        """Return when a frame of ``member`` last arrived; None if it is not watched."""
        return self._last_heard_ns.get(member)

    # On a view

    def install(self, view: ViewId, members: Sequence[Address], now_ns: int) -> None:
        """Watch and be watched in a new ring; members watched anew get the whole time."""
        assert self.me in members, "a member installs its own view"
        self._view, self._members = view, tuple(members)
        at, count = members.index(self.me), len(members)
        reach = min(self.config.monitors, count - 1)
        self._watchers = tuple(members[(at + step) % count] for step in range(1, reach + 1))
        watched = [members[(at - step) % count] for step in range(1, reach + 1)]
        self._last_heard_ns = {
            member: self._last_heard_ns.get(member, now_ns) for member in watched
        }
        self._probed_ns = {
            member: at_ns for member, at_ns in self._probed_ns.items() if member in self._members
        }
        self.dead.intersection_update(self._members)
        self._due_ns = now_ns
        assert self.me not in self._last_heard_ns, "nobody watches itself"

    def end(self) -> None:
        """Watch nobody any more."""
        self._due_ns = None

    # On reception

    def on_traffic(self, member: Address, now_ns: int) -> None:
        """Record a sign that ``member`` lives."""
        if member in self._last_heard_ns:
            self._last_heard_ns[member] = now_ns
        if self._probed_ns or self.dead:
            self._probed_ns.pop(member, None)
            self.dead.discard(member)

    def on_pause(self, by_ns: int, now_ns: int) -> None:
        """Do not count the time in which this member itself stood still."""
        assert by_ns >= 0, "a pause takes time"
        self._last_heard_ns = {
            member: min(now_ns, at_ns + by_ns) for member, at_ns in self._last_heard_ns.items()
        }
        self._probed_ns = {
            member: min(now_ns, at_ns + by_ns) for member, at_ns in self._probed_ns.items()
        }

    def probe(
        self, members: Iterable[Address], out: ReadyBuilder, *, suspected: bool = True
    ) -> None:
        """Probe those of ``members`` that are not probed yet, and give them time to answer.

        A probe that only asks whether a member is there does not make it ``suspected``.
        """
        for member in members:
            if (
                member != self.me
                and member in self._members
                and member not in self._probed_ns
                and member not in self.dead
            ):
                self._probed_ns[member] = out.now_ns
                if suspected:
                    out.emit(Suspected(member))
                    out.trace("SUSPECT", member, peer=member)
                self._send_alive(member, out, answer=True)
                due_ns = out.now_ns + self.config.verify_timeout_ns
                self._due_ns = due_ns if self._due_ns is None else min(self._due_ns, due_ns)

    # Every interval

    def on_interval(self, spoke: dict[Address | None, int], out: ReadyBuilder) -> bool:
        """Send heartbeats, probe silent members; return whether one is newly dead."""
        config, now_ns = self.config, out.now_ns
        due_ns: list[int] = []
        to_all_ns = spoke.get(None, -config.heartbeat_interval_ns)
        for watcher in self._watchers:
            next_ns = max(to_all_ns, spoke.get(watcher, to_all_ns)) + config.heartbeat_interval_ns
            if next_ns <= now_ns:
                self._send_alive(watcher, out)
                next_ns = now_ns + config.heartbeat_interval_ns
            due_ns.append(next_ns)
        self.probe(
            [
                member
                for member, at_ns in self._last_heard_ns.items()
                if at_ns + config.suspect_after_ns <= now_ns
            ],
            out,
        )
        overdue = [
            member
            for member, at_ns in self._probed_ns.items()
            if at_ns + config.verify_timeout_ns <= now_ns
        ]
        for member in overdue:
            del self._probed_ns[member]
            self.dead.add(member)
        if self.dead:
            due_ns.append(now_ns + config.heartbeat_interval_ns)
        for member in sorted(self.dead.difference(overdue)):
            self._send_alive(
                member, out, answer=True
            )  # the view goes on with it: others may have heard it
        due_ns += (at_ns + config.verify_timeout_ns for at_ns in self._probed_ns.values())
        due_ns += (
            at_ns + config.suspect_after_ns
            for member, at_ns in self._last_heard_ns.items()
            if member not in self._probed_ns and member not in self.dead
        )
        self._due_ns = min(due_ns, default=None)
        return bool(overdue)

    def _send_alive(self, to: Address, out: ReadyBuilder, *, answer: bool = False) -> None:
        assert to != self.me, "heartbeats go to others"
        out.transmit(to, Alive(self.me, self._view, True, answer))

    def check_invariants(self) -> None:
        """Raise AssertionError if a suspicion concerns a stranger, or would be decided too late."""
        others = set(self._members) - {self.me}
        assert self.dead <= others, "only other members are dead"
        assert self._probed_ns.keys() <= others, "only other members are probed"
        assert self._last_heard_ns.keys() <= others, "only other members are watched"
        assert others.issuperset(self._watchers), "only other members watch this one"
        assert len(self._watchers) <= self.config.monitors, "the ring has a width"
        assert self.dead.isdisjoint(self._probed_ns), "a dead member is not probed"
        if self._due_ns is not None and self._probed_ns:
            verdict_ns = min(self._probed_ns.values()) + self.config.verify_timeout_ns
            assert self._due_ns <= verdict_ns, "a probe that stays unanswered is noticed in time"
