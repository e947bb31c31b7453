"""Backing: in a group with identities, no single member expels another or moves the group.

On creating a view: the acting coordinator leaves out a member that has signed LEAVE, whose identity
has signed as a newer incarnation, or against which two members bear witness. A member that finds
another dead, or wants another to be expelled, bears witness by a signed SUSPECT to all. Where all
others are silent, the own word is enough.

On a view that leaves out members of the present view: this member accepts the view if the departure
of each of these members is backed: by the member itself as above, by the own witness, or by two
witnesses, of which the coordinator of the view is one. Otherwise the view waits, and this member
probes the members that the view leaves out. A dead member does not answer, so the view is backed
after ``verify_timeout`` at the latest.

On a view that a member of the present view could not have made: an older member stays in the view,
or the view changes the name or the locator of a member. Such a view is never accepted.

On a view that changes the holders of durable names: a new holder must have signed a frame, and is
probed otherwise; an absent holder keeps its place for most of ``retention_timeout``.

On patience (twice ``verify_timeout``): the members left out have answered, so the coordinator of
the waiting view lies, or does not hear them. The coordinator counts as moved away. This member
passes the signed view on: every other member then sees the same evidence.

On a report that the view of the sender excludes this member: two reports end this incarnation.
After a single report within the patience, the sender counts as moved away.

On a report of an older view without this member: the sender is shown the present view. If it still
reports the older view after the patience, it counts as moved away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import Address, Roster, ViewId
from gapless.protocol.events import Expelled, Suspected
from gapless.wire.frames import Alive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.protocol.membership.membership import Membership
    from gapless.protocol.membership.signatures import SignatureGuard
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.frames import Suspect

WITNESSES = 2
"""How many members must agree: one more than the lying members that a group withstands."""
_PATIENCE = 2
"""How long a view waits to be backed, in units of ``verify_timeout``."""
_MAX_ASKED = 8
"""How many other members are asked whether they have a view without this member."""


class _WaitingView(NamedTuple):
    """A view that is not backed yet, and since when."""

    roster: Roster
    since_ns: int


class ViewBacking:
    """The evidence of this member about departures."""

    def __init__(self, membership: Membership, guard: SignatureGuard, clock: ReadyBuilder) -> None:
        """Create the evidence of a member; ``clock`` has the time of the present input."""
        self._membership = membership
        self._clock = clock
        self._guard = guard
        self._patience_ns = _PATIENCE * membership.config.verify_timeout_ns
        self._accused: dict[Address, dict[Address, int]] = {}
        self._newest: dict[int, Address] = {}
        self._waiting: dict[Address, _WaitingView] = {}
        self._reports: dict[Address, int] = {}
        self._behind: dict[Address, int] = {}
        self._was_admitted = False
        self._absent_since_ns: dict[str, int] = {}
        self._look_ns: int | None = None
        """When a waiting view is looked at again, or a report has not been confirmed."""

    def stop(self) -> None:
        """Forget the waiting views and the reports, and retire no key any more."""
        self._forget()
        self._guard.view_keys.stop()

    def _forget(self) -> None:
        self._waiting = {}
        self._reports = {}
        self._look_ns = None

    @property
    def due_ns(self) -> int | None:
        """When a waiting view is looked at again, or a former key is retired."""
        look_ns, retire_ns = self._look_ns, self._guard.view_keys.due_ns
        if look_ns is None or retire_ns is None:
            return look_ns if retire_ns is None else retire_ns
        return min(look_ns, retire_ns)

    def install(self, before: frozenset[Address], roster: Roster, out: ReadyBuilder) -> None:
        """Begin with new evidence; bring the members of the last view into a merged view."""
        m = self._membership
        self._forget()
        self.is_established()
        self._accused = {}
        self._behind = {}
        self._note_absent(before, roster, out.now_ns)
        self._guard.install(roster)
        self._guard.view_keys.install(roster, m.config, out)
        m.view_transfer.keep_signature(roster.id)
        if m.merging.agreed_to == roster.id.coordinator:
            # Members follow their coordinator into a view of another coordinator, and nobody else.
            for member in sorted(before & m.members - {m.me, roster.id.coordinator}):
                m.view_transfer.send(member, roster, out)

    def is_established(self) -> bool:
        """Return whether a coordinator has confirmed this member, now or in an earlier view.

        A joiner follows any view until then, because the first view may never have been decided.
        """
        self._was_admitted = self._was_admitted or self._membership.admitted
        return self._was_admitted

    @property
    def is_replaced(self) -> bool:
        """Whether a newer incarnation has signed with the identity of this member."""
        me = self._membership.me
        return self._newest.get(me.node, me) > me

    @property
    def heeds_exclusion(self) -> bool:
        """Whether a report counts that a view excludes this member.

        A joiner repeats its JOIN instead, but that of a replaced incarnation is not answered.
        """
        return self.is_established() or self.is_replaced

    def _note_absent(self, before: frozenset[Address], roster: Roster, now_ns: int) -> None:
        """Record since when durable members are absent that have left while this member looked."""
        self._absent_since_ns = {
            entry.name: self._absent_since_ns.get(entry.name, now_ns)
            for entry in roster.absent
            if entry.name in self._absent_since_ns or entry.address in before
        }

    # Evidence

    def note_signed(self, sender: Address) -> None:
        """Record that ``sender`` has signed: earlier incarnations of the identity are over.

        If the clock of a host was set back, a restarted member has a lower incarnation than the one
        that the group has removed. The removed one then does not count.
        """
        known, is_removed = self._newest.get(sender.node), self._membership.coordinator.is_removed
        if known is None or is_removed(known) or (known < sender and not is_removed(sender)):
            self._newest[sender.node] = sender

    def on_suspect(self, frame: Suspect, out: ReadyBuilder) -> bool:
        """Record a SUSPECT of a member; return whether the frame counts in the present view."""
        roster = self._membership.roster
        assert roster is not None
        if self._guard.sender_view != roster.id.number:
            out.drop("view", peer=frame.origin)
            return False
        for member in frame.members:
            if member in self._membership.members:
                self._accused.setdefault(member, {})[frame.origin] = out.now_ns
        self._membership.coordinator.schedule_decision(out)
        return True

    def note_own(self, members: Iterable[Address], now_ns: int) -> None:
        """Record that this member itself wants a view without ``members``."""
        m = self._membership
        for member in m.members.intersection(members):
            self._accused.setdefault(member, {})[m.me] = now_ns

    def bear_witness(self, members: list[Address], now_ns: int) -> list[Address]:
        """Record the own witness; return the ``members`` against which others need to hear it.

        Two other witnesses are enough; in a large group all members would report each death.
        """
        self.note_own(members, now_ns)
        me = {self._membership.me}
        return [
            member for member in members if len(self._witnesses(member, now_ns) - me) < WITNESSES
        ]

    def _witnesses(self, member: Address, now_ns: int) -> set[Address]:
        """Return the members of the view that want a view without ``member``, this one included."""
        m = self._membership
        fresh_ns = now_ns - 4 * m.config.heartbeat_interval_ns - m.config.verify_timeout_ns
        found = {
            witness for witness, at_ns in self._accused.get(member, {}).items() if at_ns > fresh_ns
        }
        if member in m.failure_detector.dead or member in m.moved_away:
            found.add(m.me)
        return found & m.members - {member}

    def _has_left(self, member: Address) -> bool:
        """Return whether ``member`` itself has signed that it is gone."""
        m, newest = self._membership, self._newest.get(member.node, member)
        return member in m.leaving or (newest > member and not m.coordinator.is_removed(newest))

    def is_gone(self, member: Address) -> bool:
        """Return whether this member, as coordinator, makes a view without ``member``.

        A single member may be mistaken about another, or may be deceived by it: a member that lies
        can be silent towards one member only. Members that are silent here bear no witness.
        """
        m = self._membership
        if self._has_left(member):
            return True
        witnesses = self._witnesses(member, self._clock.now_ns)
        if not witnesses:
            return False
        silent = m.failure_detector.dead | m.moved_away | m.leaving
        able = m.members - silent - {member}
        return len(witnesses) >= min(WITNESSES, max(1, len(able)))

    def _is_backed(self, member: Address, maker: Address, now_ns: int) -> bool:
        """Return whether this member believes a view of ``maker`` without ``member``."""
        m = self._membership
        if self._has_left(member) or member in m.failure_detector.dead or member in m.moved_away:
            return True
        witnesses = self._witnesses(member, now_ns) | ({maker} & m.members)
        return len(witnesses) >= WITNESSES

    def only_gone(self, members: Iterable[Address], out: ReadyBuilder) -> list[Address]:
        """Return those ``members`` that this coordinator may expel."""
        found = [member for member in members if self.is_gone(member)]
        if not found:
            out.drop("unbacked", self._membership.me)
        return found

    # On a view

    def accepts(self, roster: Roster, sender: Address, out: ReadyBuilder) -> bool:
        """Return whether this member installs ``roster`` now; otherwise the view waits."""
        m = self._membership
        if m.roster is None or not self.is_established():
            return True
        if not self._is_possible(roster):
            out.drop("forged view", peer=sender)
        elif self._is_view_backed(roster, out) and self._keeps_names(roster, out):
            return True
        else:
            out.drop("unbacked", peer=sender)
        maker = roster.id.coordinator
        waiting = self._waiting.get(maker)
        if maker in m.members and (waiting is None or waiting.roster.id != roster.id):
            since_ns = out.now_ns if waiting is None else waiting.since_ns
            self._waiting[maker] = _WaitingView(roster, since_ns)
        self._schedule(out.now_ns)
        return False

    def _is_possible(self, roster: Roster) -> bool:
        """Return whether an honest coordinator could have made ``roster``."""
        m = self._membership
        assert m.roster is not None
        entries = {entry.address: entry for entry in roster.entries}
        known = [(entry, entries.get(entry.address)) for entry in m.roster.entries]
        if any(same is not None and same != entry for entry, same in known):
            return False
        for entry, same in known:
            if entry.address == roster.id.coordinator:
                return True
            # An older member would be the coordinator, and must have left.
            if same is not None and roster.id.coordinator in m.members:
                return False
        return True

    def _is_view_backed(self, roster: Roster, out: ReadyBuilder) -> bool:
        m, maker = self._membership, roster.id.coordinator
        here = {entry.address for entry in roster.entries}
        live = [
            member
            for member in sorted(m.members - here)
            if not self._is_backed(member, maker, out.now_ns)
        ]
        m.failure_detector.probe(live, out)
        return not live

    def _keeps_names(self, roster: Roster, out: ReadyBuilder) -> bool:
        """Return whether durable names stay with their holders.

        A new holder of a name must have signed, and an absent holder keeps its place for most of
        ``retention_timeout``: clocks and the arrival of views differ a little.
        """
        m = self._membership
        assert m.roster is not None
        known = {entry.address for entry in m.roster.entries}
        silent = [
            entry.address
            for entry in roster.entries
            if entry.name
            and entry.address not in known | {m.me}
            and self._newest.get(entry.address.node) != entry.address
        ]
        for newcomer in silent:
            out.transmit(newcomer, Alive(m.me, m.roster.id, False, True))
        kept = {entry.name for entry in (*roster.entries, *roster.absent)}
        limit_ns = out.now_ns - m.config.retention_timeout_ns * 3 // 4
        return not silent and all(
            name in kept or since_ns <= limit_ns for name, since_ns in self._absent_since_ns.items()
        )

    # On a report

    def on_excluded(self, view: ViewId, sender: Address, out: ReadyBuilder) -> None:
        """Record that the newer view of ``sender`` excludes this member."""
        m = self._membership
        if sender in m.moved_away:
            return
        is_new = sender not in self._reports
        self._reports.setdefault(sender, out.now_ns)
        if len(self._reports) >= WITNESSES or self.is_replaced or not self.is_established():
            m.terminate(Expelled(view), out)
            return
        if is_new:
            present = None if m.roster is None else m.roster.id
            for other in sorted(m.members - {m.me, sender})[:_MAX_ASKED]:
                out.transmit(other, Alive(m.me, present, True, True))
        self._schedule(out.now_ns)

    def on_behind(self, sender: Address, out: ReadyBuilder) -> None:
        """Record that ``sender`` reports an older view without this member.

        The sender is shown the present view. Within the patience it installs the view, or it has
        gone to another view, and bears witness against itself.
        """
        m = self._membership
        assert m.roster is not None
        since_ns = self._behind.setdefault(sender, out.now_ns)
        if since_ns + self._patience_ns <= out.now_ns:
            self._note_moved(sender, out)
        elif m.roster_answers.allows(sender, out.now_ns):
            m.view_transfer.send(sender, m.roster, out)

    def on_included(self, sender: Address) -> None:
        """Record that the view of ``sender`` includes this member."""
        self._behind.pop(sender, None)

    # Every interval

    def on_timer(self, out: ReadyBuilder) -> None:
        """Look at the waiting views and the reports again."""
        now_ns = out.now_ns
        self._guard.view_keys.on_timer(out)
        if self._look_ns is None or self._look_ns > now_ns:
            return
        m = self._membership
        for sender, since_ns in list(self._reports.items()):
            if since_ns + self._patience_ns <= now_ns:
                del self._reports[sender]
                self._note_moved(sender, out)
        for maker, (roster, since_ns) in list(self._waiting.items()):
            if roster.id.number <= m.view_number:
                del self._waiting[maker]
            elif self._is_possible(roster) and self._is_view_backed(roster, out):
                # A newcomer may die before it answers: its coordinator is not to blame.
                if self._keeps_names(roster, out):
                    m.accept(roster, out)
            elif since_ns + self._patience_ns <= now_ns:
                self._disbelieve(maker, roster, out)
        self._schedule(now_ns)

    def _disbelieve(self, maker: Address, roster: Roster, out: ReadyBuilder) -> None:
        """Show the view of ``maker`` to all members, and count ``maker`` as moved away."""
        m = self._membership
        del self._waiting[maker]
        for member in sorted(m.members - {m.me, maker}):
            m.view_transfer.send(member, roster, out)
        self._note_moved(maker, out)

    def _note_moved(self, member: Address, out: ReadyBuilder) -> None:
        """Count ``member`` as moved away: its view is not that of this member."""
        m = self._membership
        if member in m.moved_away or member not in m.members:
            return
        m.moved_away.add(member)
        out.trace("SUSPECT", member, peer=member, reason="unbacked")
        out.emit(Suspected(member))
        m.report_dead(out)
        m.coordinator.schedule_decision(out)

    def _schedule(self, now_ns: int) -> None:
        pending = bool(self._waiting or self._reports)
        self._look_ns = now_ns + self._membership.config.join_interval_ns if pending else None

    def check_invariants(self) -> None:
        """Raise AssertionError if a stranger's view waits, or evidence is never looked at."""
        m = self._membership
        self._guard.check_invariants()
        assert self._waiting.keys() <= m.members, "only views of members wait"
        assert len(self._reports) < WITNESSES, "enough reports end an incarnation"
        assert (self._look_ns is not None) == bool(self._waiting or self._reports)
        assert self._accused.keys() <= m.members, "only members are accused"
        assert self._behind.keys() <= m.members, "only members are behind"
