"""Failure detector: members watch each other in a ring.

On a view: each member is watched by the ``monitors`` following members in the order of the view;
the ring closes at the ends. The number of heartbeats therefore grows linearly with the number of
members.

On reception: any frame of a member proves the member alive.

Every ``heartbeat_interval``: a member sends ALIVE to every watcher without another recent frame
from the member. A watched member with a missed heartbeat is asked for a reply. A member that owes a
reply may be dead and watch no other member: this member then also watches the next members of the
ring, two more for each missing reply, and asks the added members at once. If many members die
together, all are watched within a few heartbeats.

A watched member silent for ``suspect_after`` is probed. If no answer arrives within
``verify_timeout``, the member counts as dead, and the acting coordinator is notified. The
coordinator probes the member as well before believing the report.

On evidence from the runtime (a refused datagram, a closed connection, the end of a process): the
member is asked for a reply at once. Only the refusal of the question is proof. A refusal that a
stranger may have forged is no proof: the member is asked several times, and counts as dead if no
answer arrives within ``REPLY_TIME_NS``.

When this process was paused (an input arrives much later than its deadline), the time of the pause
does not count as silence of others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from gapless.protocol.events import Suspected
from gapless.units import NS_PER_MS
from gapless.wire.frames import Alive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.config import Config
    from gapless.identity import Address, ViewId
    from gapless.protocol.ready_builder import ReadyBuilder


class DeathEvidence(StrEnum):
    """An observation of the runtime about a member: the member may be gone."""

    REFUSED = "refused"
    """A datagram to exactly this incarnation was refused: no process has its port any more."""
    CLOSED = "closed"
    """The connection to the member ended, or a datagram to its address was refused."""
    EXITED = "exited"
    """The process of the member, on this machine, has ended."""
    REJECTED = "rejected"
    """A datagram or a connection to the member was refused, perhaps by a stranger."""


REPLY_TIME_NS = 250 * NS_PER_MS
"""Maximum silence after a refusal that a stranger may have forged; a living member has answered."""
_REPEAT_NS = 25 * NS_PER_MS
"""How often a member is asked in this time: single questions and answers may be lost."""
_WIDENED_BY = 2
"""How many more members are watched for each watched member that owes a reply."""


class _Question(NamedTuple):
    """An unanswered request for a reply: the times of the first and the last request."""

    first_ns: int
    last_ns: int


class FailureDetector:
    """Heartbeats to the watchers of this member, and suspicion of the watched members."""

    def __init__(self, me: Address, config: Config) -> None:
        self.me = me
        self.config = config
        self.dead: set[Address] = set()
        self._refused: set[Address] = set()
        self._members: tuple[Address, ...] = ()
        self._view: ViewId | None = None
        self._watchers: tuple[Address, ...] = ()
        self._ring: tuple[Address, ...] = ()
        self._last_heard_ns: dict[Address, int] = {}
        self._watched_since_ns: dict[Address, int] = {}
        self._asked: dict[Address, _Question] = {}
        self._probed_ns: dict[Address, int] = {}
        self._rejected_ns: dict[Address, int] = {}
        self._due_ns: int | None = None
        self._ended = True

    @property
    def due_ns(self) -> int | None:
        """When the next heartbeat, question, probe or verdict is due."""
        return self._due_ns

    def last_heard_ns(self, member: Address) -> int | None:
        """Return when the last frame of ``member`` arrived; None if ``member`` is not watched."""
        return self._last_heard_ns[member] if member in self._watched_since_ns else None

    def has_heard(self, member: Address, after_ns: int) -> bool:
        """Return whether a frame of ``member`` has arrived after ``after_ns``."""
        return self._last_heard_ns.get(member, after_ns) > after_ns

    def _silent_since_ns(self, member: Address) -> int:
        """Return when the silence of a watched member began: at the start of the watch or later."""
        return max(self._last_heard_ns[member], self._watched_since_ns[member])

    @property
    def _quiet_after_ns(self) -> int:
        """Maximum silence of a watched member; afterwards the member is asked for a reply."""
        interval_ns = self.config.heartbeat_interval_ns
        return min(3 * interval_ns // 2, (interval_ns + self.config.suspect_after_ns) // 2)

    # On a view

    def install(self, view: ViewId, members: Sequence[Address], now_ns: int) -> None:
        """Build the ring of a new view.

        Members watched for the first time get the whole ``suspect_after``.
        """
        assert self.me in members, "a member installs its own view"
        self._view, self._members = view, tuple(members)
        self._ended = False
        at, count = members.index(self.me), len(members)
        reach = min(self.config.monitors, count - 1)
        self._watchers = tuple(members[(at + step) % count] for step in range(1, reach + 1))
        self._ring = tuple(members[(at - step) % count] for step in range(1, count))
        self._last_heard_ns = {
            member: self._last_heard_ns.get(member, now_ns) for member in self._ring
        }
        self._watched_since_ns = {
            member: self._watched_since_ns.get(member, now_ns)
            for step, member in enumerate(self._ring)
            if step < reach or member in self._asked
        }
        self._asked = {
            member: question
            for member, question in self._asked.items()
            if member in self._watched_since_ns
        }
        self._probed_ns = {
            member: at_ns for member, at_ns in self._probed_ns.items() if member in self._members
        }
        self._rejected_ns = {
            member: at_ns for member, at_ns in self._rejected_ns.items() if member in self._members
        }
        self.dead.intersection_update(self._members)
        self._refused.intersection_update(self._members)
        # A verdict may be overdue: the view is installed before the interval that decides it.
        verdicts_ns = (at_ns + self.config.verify_timeout_ns for at_ns in self._probed_ns.values())
        self._due_ns = min((now_ns, *verdicts_ns))
        assert self.me not in self._last_heard_ns, "nobody watches itself"

    def end(self) -> None:
        """Stop: no more heartbeats, probes or verdicts, until the next view."""
        self._ended = True
        self._due_ns = None
        self._asked.clear()
        self._probed_ns.clear()
        self._rejected_ns.clear()

    # On reception

    def on_traffic(self, member: Address, now_ns: int) -> None:
        """Record that a frame of ``member`` arrived; the member is alive."""
        if member in self._last_heard_ns:
            self._last_heard_ns[member] = now_ns
        # Runs for every datagram: the three tables are nearly always empty.
        if self._asked or self._probed_ns or self.dead:
            self._asked.pop(member, None)
            self._probed_ns.pop(member, None)
            self._rejected_ns.pop(member, None)
            self.dead.discard(member)
            self._refused.discard(member)

    def on_pause(self, by_ns: int, now_ns: int) -> None:
        """Shift all deadlines by ``by_ns``, the length of a pause of this process."""
        assert by_ns >= 0, "a pause takes time"
        tables = (
            self._last_heard_ns,
            self._watched_since_ns,
            self._probed_ns,
            self._rejected_ns,
        )
        for table in tables:
            for member, at_ns in table.items():
                table[member] = min(now_ns, at_ns + by_ns)
        self._asked = {
            member: _Question(min(now_ns, first_ns + by_ns), last_ns)
            for member, (first_ns, last_ns) in self._asked.items()
        }

    def probe(self, members: Iterable[Address], out: ReadyBuilder) -> None:
        """Probe the ``members`` not probed yet: send ALIVE with ``reply_wanted``."""
        if self._ended:
            return
        for member in members:
            if (
                member != self.me
                and member in self._members
                and member not in self._probed_ns
                and member not in self.dead
            ):
                self._probed_ns[member] = out.now_ns
                out.emit(Suspected(member))
                out.trace("SUSPECT", member, peer=member)
                self._send_alive(member, out, answer=True)
                self._wake_at(out.now_ns + self.config.verify_timeout_ns)

    def is_probed(self, member: Address) -> bool:
        """Return whether ``member`` still has time to answer a probe."""
        return member in self._probed_ns

    def watch(self, member: Address, out: ReadyBuilder) -> None:
        """Ask ``member`` for a reply, and watch ``member`` until the reply: no suspicion yet."""
        if self._ended:
            return
        if member != self.me and member in self._last_heard_ns and member not in self.dead:
            self._watched_since_ns.setdefault(member, out.now_ns)
            if member not in self._asked:
                self._ask(member, out)
                self._wake_at(out.now_ns + self._patience_ns)

    def _wake_at(self, at_ns: int) -> None:
        self._due_ns = at_ns if self._due_ns is None else min(self._due_ns, at_ns)

    def on_evidence(self, member: Address, evidence: DeathEvidence, out: ReadyBuilder) -> bool:
        """Handle a hint that ``member`` is gone; return whether the member counts as dead now.

        A hint may be false: this member asks ``member`` for a reply, and does no more. The refusal
        of a question is proof, because the socket of a paused process stays open and does not
        refuse.
        """
        if self._ended or member not in self._last_heard_ns or member in self.dead:
            return False
        if evidence is DeathEvidence.REJECTED and member not in self._rejected_ns:
            self._rejected_ns[member] = out.now_ns
            self._wake_at(out.now_ns + _REPEAT_NS)
        if evidence is not DeathEvidence.REFUSED or not (
            member in self._asked or member in self._probed_ns
        ):
            self.watch(member, out)
            return False
        self._count_as_dead(member, out)
        self._refused.add(member)
        self._wake_at(out.now_ns + self.config.heartbeat_interval_ns)
        return True

    def _count_as_dead(self, member: Address, out: ReadyBuilder) -> None:
        """Record the death of a member that was asked for a reply."""
        if self._probed_ns.pop(member, None) is None:
            out.emit(Suspected(member))
            out.trace("SUSPECT", member, peer=member)
        self._rejected_ns.pop(member, None)
        self.dead.add(member)

    def _check_rejected(self, spoke: dict[Address | None, int], out: ReadyBuilder) -> list[Address]:
        """Ask the members again whose refusal may be forged; return those that did not answer."""
        limit_ns = out.now_ns - min(REPLY_TIME_NS, self.config.verify_timeout_ns)
        silent = [member for member, at_ns in self._rejected_ns.items() if at_ns <= limit_ns]
        for member in silent:
            self._count_as_dead(member, out)
        for member in self._rejected_ns:
            if spoke.get(member, 0) + _REPEAT_NS <= out.now_ns:
                self._send_alive(member, out, answer=True)
        return silent

    def hears_others(self, out: ReadyBuilder) -> bool:
        """Return whether the dead members are silent, rather than this member deaf.

        A member that hears none of the others may be deaf, and must not expel any. Members without
        a reason to send to this member are asked for a reply.
        """
        others = [member for member in self._ring if member not in self.dead]
        limit_ns = out.now_ns - self.config.suspect_after_ns
        if (
            not others
            or self.dead <= self._refused
            or any(self._last_heard_ns[member] > limit_ns for member in others)
        ):
            return True
        for member in others[: _WIDENED_BY + 1]:
            self.watch(member, out)
        return False

    # Every interval

    def on_interval(self, spoke: dict[Address | None, int], out: ReadyBuilder) -> bool:
        """Send due heartbeats, probe silent members; return whether a member is newly dead.

        ``spoke`` is when this member last sent to each destination, None for the whole group.
        """
        config, now_ns = self.config, out.now_ns
        if self._ended:
            return False
        due_ns: list[int] = []
        to_all_ns = spoke.get(None, -config.heartbeat_interval_ns)
        for watcher in self._watchers:
            # Any frame to the watcher was as good as a heartbeat.
            next_ns = max(to_all_ns, spoke.get(watcher, to_all_ns)) + config.heartbeat_interval_ns
            if next_ns <= now_ns:
                self._send_alive(watcher, out)
                next_ns = now_ns + config.heartbeat_interval_ns
            due_ns.append(next_ns)
        self._ask_quiet_members(out)
        self.probe(
            [
                member
                for member in self._watched_since_ns
                if self._silent_since_ns(member) + config.suspect_after_ns <= now_ns
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
            self._rejected_ns.pop(member, None)
            self.dead.add(member)
        if self._rejected_ns:
            overdue += self._check_rejected(spoke, out)
            if self._rejected_ns:
                due_ns.append(now_ns + _REPEAT_NS)
        if self.dead:
            due_ns.append(now_ns + config.heartbeat_interval_ns)
        for member in sorted(self.dead.difference(overdue)):
            # The view still has this member: the coordinator may have heard from it. Keep probing.
            if (
                spoke.get(member, -config.heartbeat_interval_ns) + config.heartbeat_interval_ns
                <= now_ns
            ):
                self._send_alive(member, out, answer=True)
        due_ns += (at_ns + config.verify_timeout_ns for at_ns in self._probed_ns.values())
        due_ns += (self._next_look_ns(member, now_ns) for member in self._watched_since_ns)
        self._due_ns = min(due_ns, default=None)
        assert self.dead.isdisjoint(self._probed_ns), "a dead member has had its time to answer"
        return bool(overdue)

    def _ask_quiet_members(self, out: ReadyBuilder) -> None:
        """Ask the quiet watched members; watch two more members for each overdue reply."""
        now_ns, reach = out.now_ns, self.config.monitors
        for step, member in enumerate(self._ring):
            if step >= reach:
                if member in self._watched_since_ns and member not in self._asked:
                    del self._watched_since_ns[member]
                continue
            if self._owes_reply(member, now_ns):
                # A dead member watches nobody: this member takes over its part of the ring.
                reach += _WIDENED_BY
            if member not in self._watched_since_ns:
                self._watched_since_ns[member] = now_ns
                if member not in self.dead:
                    self._ask(member, out)
        for member in self._watched_since_ns:
            if member in self.dead or member in self._probed_ns:
                continue
            question = self._asked.get(member)
            if question is None:
                if self._silent_since_ns(member) + self._quiet_after_ns <= now_ns:
                    self._ask(member, out)
            elif question.last_ns + self.config.heartbeat_interval_ns <= now_ns:
                self._ask(member, out)

    @property
    def _patience_ns(self) -> int:
        """How long a reply may take before this member takes over a part of the ring."""
        return max(1, self.config.heartbeat_interval_ns // 2)

    def _owes_reply(self, member: Address, now_ns: int) -> bool:
        """Return whether the reply of ``member`` is overdue: ``member`` may be dead."""
        question = self._asked.get(member)
        return member in self.dead or (
            question is not None and question.first_ns + self._patience_ns <= now_ns
        )

    def _ask(self, member: Address, out: ReadyBuilder) -> None:
        """Ask a watched member for a reply, for the first time or again."""
        assert member in self._watched_since_ns, f"{member} is not watched"
        question = self._asked.get(member)
        first_ns = out.now_ns if question is None else question.first_ns
        self._asked[member] = _Question(first_ns, out.now_ns)
        self._send_alive(member, out, answer=True)

    def _next_look_ns(self, member: Address, now_ns: int) -> int:
        """Return when a watched member has to be asked, probed, or watched around."""
        config, silent_ns = self.config, self._silent_since_ns(member)
        if member in self.dead or member in self._probed_ns:
            return now_ns + config.heartbeat_interval_ns
        question = self._asked.get(member)
        if question is None:
            return silent_ns + self._quiet_after_ns
        again_ns = question.last_ns + config.heartbeat_interval_ns
        if not self._owes_reply(member, now_ns):
            again_ns = min(again_ns, question.first_ns + self._patience_ns)
        return min(again_ns, silent_ns + config.suspect_after_ns)

    def _send_alive(self, to: Address, out: ReadyBuilder, *, answer: bool = False) -> None:
        """Send ALIVE with the current view; ``answer`` asks for a reply."""
        assert to != self.me, "heartbeats go to others"
        out.transmit(to, Alive(self.me, self._view, True, answer))

    def check_invariants(self) -> None:
        """Raise AssertionError if a suspicion concerns a stranger, or would be decided too late."""
        others = set(self._members) - {self.me}
        assert self.dead <= others, "only other members are dead"
        assert self._probed_ns.keys() <= others, "only other members are probed"
        assert self._last_heard_ns.keys() == others, "every other member is heard or silent"
        assert self._watched_since_ns.keys() <= others, "only other members are watched"
        assert self._asked.keys() <= self._watched_since_ns.keys(), "only watched members are asked"
        assert others.issuperset(self._watchers), "only other members watch this one"
        assert len(self._watchers) <= self.config.monitors, "the ring has a width"
        assert self.dead.isdisjoint(self._probed_ns), "a dead member is not probed"
        assert self._refused <= self.dead, "a member that refuses a question is dead"
        assert self._rejected_ns.keys() <= self._asked.keys() | self._probed_ns.keys(), (
            "a member with a refusal is asked for a reply"
        )
        if self._ended:
            assert self._due_ns is None, "a detector that has ended waits for nothing"
            assert not self._probed_ns, "a detector that has ended probes nobody"
        if self._due_ns is not None and self._probed_ns:
            verdict_ns = min(self._probed_ns.values()) + self.config.verify_timeout_ns
            assert self._due_ns <= verdict_ns, "a probe that stays unanswered is noticed in time"
