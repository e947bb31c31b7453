"""Failure detector: members watch each other in a ring.

On a view: each member is watched by the ``monitors`` members before it in the order of the view;
the ring closes at the ends. So the number of heartbeats grows with the number of members, not with
its square, and two members that die at once are detected together or one after the other.

On reception: any frame of a member shows that the member is alive.

Every ``heartbeat_interval``: a member that has sent its watchers no other frame sends them ALIVE. A
member that was silent for ``suspect_after`` is probed. If no answer arrives within
``verify_timeout`` then the member counts as dead, and the acting coordinator is notified. The
coordinator probes the member itself before it believes the report.

When this process itself was paused (an input arrives much later than its deadline), the time of the
pause does not count as silence of others.
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
    """Heartbeats to the watchers of this member, and suspicion of the members that it watches."""

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
        """When the next heartbeat, probe or verdict is due."""
        return self._due_ns

    def last_heard_ns(self, member: Address) -> int | None:
        """Return when the last frame of ``member`` arrived; None if ``member`` is not watched."""
        return self._last_heard_ns.get(member)

    # On a view

    def install(self, view: ViewId, members: Sequence[Address], now_ns: int) -> None:
        """Build the ring of a new view.

        Members that are watched for the first time get the whole ``suspect_after``.
        """
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
        """Stop: no more heartbeats, probes or verdicts."""
        self._due_ns = None

    # On reception

    def on_traffic(self, member: Address, now_ns: int) -> None:
        """Record that a frame of ``member`` arrived; the member is alive."""
        if member in self._last_heard_ns:
            self._last_heard_ns[member] = now_ns
        # Runs for every datagram: the two tables are nearly always empty.
        if self._probed_ns or self.dead:
            self._probed_ns.pop(member, None)
            self.dead.discard(member)

    def on_pause(self, by_ns: int, now_ns: int) -> None:
        """Shift all deadlines by ``by_ns``, during which this process was paused."""
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
        """Probe those of ``members`` that are not probed yet: send ALIVE with ``reply_wanted``.

        A probe that only asks whether a member is there does not make that member ``suspected``.
        """
        for member in members:
            if (
                member != self.me
                and member in self._members
                and member not in self._probed_ns
                and member not in self.dead
            ):
                self._probed_ns[member] = out.now_ns
                # A mere question about presence is no news for the application.
                if suspected:
                    out.emit(Suspected(member))
                    out.trace("SUSPECT", member, peer=member)
                self._send_alive(member, out, answer=True)
                due_ns = out.now_ns + self.config.verify_timeout_ns
                self._due_ns = due_ns if self._due_ns is None else min(self._due_ns, due_ns)

    # Every interval

    def on_interval(self, spoke: dict[Address | None, int], out: ReadyBuilder) -> bool:
        """Send due heartbeats, probe silent members; return whether a member is newly dead.

        ``spoke`` is when this member last sent to each destination, None for the whole group.
        """
        config, now_ns = self.config, out.now_ns
        due_ns: list[int] = []
        to_all_ns = spoke.get(None, -config.heartbeat_interval_ns)
        for watcher in self._watchers:
            # Any frame to the watcher was as good as a heartbeat.
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
            # The view still has this member: the coordinator may have heard from it. Keep probing.
            self._send_alive(member, out, answer=True)
        due_ns += (at_ns + config.verify_timeout_ns for at_ns in self._probed_ns.values())
        due_ns += (
            at_ns + config.suspect_after_ns
            for member, at_ns in self._last_heard_ns.items()
            if member not in self._probed_ns and member not in self.dead
        )
        self._due_ns = min(due_ns, default=None)
        assert self.dead.isdisjoint(self._probed_ns), "a dead member has had its time to answer"
        return bool(overdue)

    def _send_alive(self, to: Address, out: ReadyBuilder, *, answer: bool = False) -> None:
        """Send ALIVE with the current view; ``answer`` asks for a reply."""
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
