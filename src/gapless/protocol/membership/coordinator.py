"""Making views: what the acting coordinator does, the oldest member that lives.

On a join, a leave, a death: changes are gathered for ``view_bundle_delay``, then one roster with a new
number holds them all.

Joiners first: a roster with new members goes to these alone at first. They install it and confirm
it; only then, or after ``join_timeout`` without those that did not, is it told to the old members
and installed here. So nobody waits for acks of one that is not there yet, and a joiner that dies
early is never noticed. One that asks again is told again: the roster, or its confirmation, may be
lost. Removals do not wait for joiners.

On a confirmation: who has not confirmed the present view is sent the whole roster again, every
``join_interval``.

On a roster of others with a number that is not lower: its members are taken into the next view,
whose number is higher than both; this is how one that takes over learns of what its predecessor
told only to some.

On a departure of a durable member: its place stays in the roster, as away, until it comes back
under the same name or ``retention_timeout`` is over. So does that of a durable joiner that has not
confirmed: the other joiners have seen it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.identity import U32_MAX, Roster, ViewId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address, RosterEntry
    from gapless.protocol.membership.membership import Membership
    from gapless.protocol.ready_builder import ReadyBuilder

MAX_VIEW_NUMBER = U32_MAX // 2
"""A view with a higher number than this is nonsense: no group gets there."""
_MAX_JOINERS = 4096
_MAX_RESENDS = 3
_CONFIRMATION_LIFETIME = 10
"""A joiner that confirmed some proposal counts as alive for so many times ``join_timeout``."""


class Coordinator:
    """What a member knows and does as the one that makes views; nothing, while it is not."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.config = membership.config
        self.joiners: dict[Address, RosterEntry] = {}
        self.to_expel: set[Address] = set()
        self.proposal: Roster | None = None
        self.unconfirmed: set[Address] = set()
        self._last_confirmed_ns: dict[Address, int] = {}
        self._awaiting_confirmation: dict[Address, int] = {}
        self._proposal_confirmed: set[Address] = set()
        self._newcomers: set[Address] = set()
        self._highest = 0
        self._forced = False
        self._decide_ns: int | None = None
        self._resend_ns: int | None = None
        self._resends = 0
        self._absent_since: dict[str, int] = {}

    @property
    def due_ns(self) -> int | None:
        """When something is to be decided or sent again."""
        all_ns = (self._decide_ns, self._resend_ns, self._absent_due_ns)
        return min((at_ns for at_ns in all_ns if at_ns is not None), default=None)

    @property
    def _absent_due_ns(self) -> int | None:
        if not self._absent_since or self._decide_ns is not None or not self._membership.is_acting:
            return None
        return min(self._absent_since.values()) + self.config.retention_timeout_ns

    def stop(self) -> None:
        """Make no more views."""
        self._decide_ns = self._resend_ns = None
        self._absent_since = {}
        assert self.due_ns is None, "a stopped coordinator has no timer"

    # On reception

    def on_join(self, place: RosterEntry, out: ReadyBuilder) -> None:
        """Take note of one that wants in; one that is in already is told again."""
        m, address = self._membership, place.address
        assert m.roster is not None
        if address in m.members:
            m.view_transfer.send(address, m.roster, out)
            m.send_alive(address, out)
            return
        if place.name:
            holders = [
                p.address
                for p in m.roster.entries
                if p.name == place.name and p.address.node != address.node
            ]
            if holders:
                m.failure_detector.probe(holders, out)
                out.drop("name", address, peer=address)
                m.send_alive(
                    address, out, rate_limited=True
                )  # or it would found a group of its own, and not know why
                return
        if refused := self._queue_joiner(place):
            out.drop(refused, address, peer=address)
            return
        self.schedule_decision(out)
        told_ns = self._awaiting_confirmation.get(address)
        if self.proposal is None or told_ns is None:
            m.send_alive(address, out, rate_limited=True)
        elif out.now_ns - told_ns >= self.config.join_interval_ns:
            self._awaiting_confirmation[address] = out.now_ns
            m.view_transfer.send(address, self.proposal, out)

    def _queue_joiner(self, place: RosterEntry) -> str:
        """Queue a joiner for the next view; return the rejection reason, or an empty string."""
        m, address = self._membership, place.address
        assert m.roster is not None
        others = [
            other
            for other in (*m.roster.entries, *self.joiners.values())
            if other.address != address
        ]
        lives = [other.address for other in others if other.address.node == address.node]
        if any(life.incarnation > address.incarnation for life in lives):
            return "incarnation"
        if place.name and any(
            other.name == place.name for other in others if other.address not in lives
        ):
            return "name"
        for life in lives:
            self.joiners.pop(life, None)
        if len(self.joiners) < _MAX_JOINERS:
            self.joiners[address] = place
        return ""

    def on_joiner_alive(self, sender: Address, view: ViewId, out: ReadyBuilder) -> bool:
        """Handle the confirmation of a joiner; return whether ``sender`` is one.

        A joiner in a view of another coordinator has confirmed nothing; its next view needs a
        higher number.
        """
        mine = view.coordinator == self._membership.me
        if mine and (
            sender in self._last_confirmed_ns or len(self._last_confirmed_ns) < _MAX_JOINERS
        ):
            self._last_confirmed_ns[sender] = out.now_ns
        if sender not in self.joiners:
            return False
        if view.number <= MAX_VIEW_NUMBER:
            self._highest = max(self._highest, view.number)
        if not mine:
            return True
        if self.proposal is not None and view == self.proposal.id:
            self._proposal_confirmed.add(sender)
        if sender in self._awaiting_confirmation:
            del self._awaiting_confirmation[sender]
            if not self._awaiting_confirmation:
                self._decide_ns = out.now_ns
        return True

    def on_confirmed(self, member: Address, out: ReadyBuilder) -> None:
        """Record that ``member`` has installed the present view; confirm to a new one."""
        self.unconfirmed.discard(member)
        if member in self._newcomers:
            self._newcomers.discard(member)
            self._membership.send_alive(member, out)

    def on_member_behind(
        self, member: Address, out: ReadyBuilder, *, excluded: bool = False
    ) -> None:
        """Take note that ``member`` has an older view; one ``excluded`` is in a view without this one.

        One that stays apart although it was sent the roster again and again has its own mind: it
        has moved.
        """
        if excluded and member in self.unconfirmed and self._resends >= _MAX_RESENDS:
            self._membership.moved_away.add(member)
            self.schedule_decision(out)
            return
        if (
            self._membership.roster is not None
            and self._membership.roster.id.coordinator == self._membership.me
        ):
            self.unconfirmed.add(member)
            if self._resend_ns is None:
                self._resends = 0
                self._resend_ns = out.now_ns + self.config.join_interval_ns
        else:
            self._forced = True
            self.schedule_decision(out)

    def absorb(self, roster: Roster, sender: Address, out: ReadyBuilder) -> None:
        """Queue the members of another roster; all but its sender must still confirm."""
        m = self._membership
        self._highest = max(self._highest, roster.id.number)
        gone = m.failure_detector.dead | m.leaving | m.moved_away
        for place in roster.entries:
            address = place.address
            if address not in m.members and address not in gone and address.node != m.me.node:
                refused = self._queue_joiner(place)
                if address == sender and not refused:
                    self._last_confirmed_ns[address] = out.now_ns
        self._forced = True
        self.schedule_decision(out)

    def expel(self, members: Iterable[Address], out: ReadyBuilder) -> None:
        """Leave ``members`` out of the next view: a minority at most, never this member."""
        m = self._membership
        unwanted = (self.to_expel | set(members)) & m.members - {m.me}
        if not m.is_acting or 2 * len(unwanted) >= len(m.members):
            out.drop("expel", m.me)
            return
        self.to_expel = unwanted
        self.schedule_decision(out)

    # Deciding

    def schedule_decision(self, out: ReadyBuilder) -> None:
        """Decide soon; changes until then share one view. Removals do not wait for joiners."""
        if not self._membership.is_acting:
            return
        soon_ns = out.now_ns + self.config.view_bundle_delay_ns
        if self._decide_ns is None or (
            self.proposal is not None and (self._departing or self.to_expel)
        ):
            self._decide_ns = soon_ns if self._decide_ns is None else min(self._decide_ns, soon_ns)

    def on_timer(self, out: ReadyBuilder) -> None:
        """Decide, or tell again, what is due."""
        now_ns = out.now_ns
        if not self._membership.is_acting:
            self._decide_ns = self._resend_ns = self.proposal = None
            return
        if (away_ns := self._absent_due_ns) is not None and away_ns <= now_ns:
            self._decide_ns = now_ns
        if self._decide_ns is not None and self._decide_ns <= now_ns:
            self._decide_ns = None
            self._decide(out)
        if self._resend_ns is not None and self._resend_ns <= now_ns:
            self._resend(out)

    def _decide(self, out: ReadyBuilder) -> None:
        """Make a view of everything that has changed, or offer it to the joiners first."""
        m, now_ns = self._membership, out.now_ns
        if m.pending is not None or m.merging.blocks_views(now_ns):
            self._decide_ns = now_ns + self._recheck_delay_ns
            return
        roster, proposal = m.roster, self.proposal
        assert roster is not None
        if proposal is not None:
            self._end_proposal(now_ns)
        new = list(self.joiners.values())
        stay = self._remaining_entries(new)
        alive = self._confirmed_lately(now_ns)
        waits = any(place.address not in alive for place in new)
        if waits and (proposal is not None or self._forced or self._departing or self.to_expel):
            # Nobody waits for joiners that have not answered; they are asked again with the next
            # view.
            new = [place for place in new if place.address in alive]
            stay = self._remaining_entries(new)
            waits = False
        self.proposal = None
        away = self._absent_entries(roster, self._proposed_joiners(proposal), stay, new, now_ns)
        places = (*stay, *new)
        if places == roster.entries and away == roster.absent and not self._forced:
            self._decide_ns = now_ns + self._recheck_delay_ns if self.joiners else None
            return
        if proposal is not None and proposal.entries == places and proposal.absent == away:
            made = proposal
        else:
            made = Roster(ViewId(self.next_number(), m.me), places, away)
            self._proposal_confirmed = set()
        if waits:
            self._propose(made, new, out)
        else:
            self._commit(made, new, out)

    @property
    def _recheck_delay_ns(self) -> int:
        """How long to wait before a decision that cannot be made now is looked at again."""
        return max(self.config.view_bundle_delay_ns, self.config.join_interval_ns // 4, 1)

    def _remaining_entries(self, new: list[RosterEntry]) -> list[RosterEntry]:
        """Return the members that stay; a new life takes the place of the old one at its node."""
        m = self._membership
        assert m.roster is not None
        nodes = {place.address.node for place in new}
        gone = self._departing | self.to_expel
        return [
            p for p in m.roster.entries if p.address not in gone and p.address.node not in nodes
        ]

    def _confirmed_lately(self, now_ns: int) -> dict[Address, int]:
        """Return the joiners that have confirmed something lately."""
        limit_ns = now_ns - _CONFIRMATION_LIFETIME * self.config.join_timeout_ns
        self._last_confirmed_ns = {
            joiner: at_ns for joiner, at_ns in self._last_confirmed_ns.items() if at_ns > limit_ns
        }
        return self._last_confirmed_ns

    def _end_proposal(self, now_ns: int) -> None:
        """Give up the joiners that have not confirmed in time; they ask again if they live."""
        for joiner in self._awaiting_confirmation:
            if joiner not in self._confirmed_lately(now_ns):
                self.joiners.pop(joiner, None)
        self._awaiting_confirmation = {}

    def _proposed_joiners(self, proposal: Roster | None) -> list[RosterEntry]:
        """Return the joiners that others may have seen: those of a proposal that went to several."""
        places = () if proposal is None else proposal.entries
        new = [place for place in places if place.address not in self._membership.members]
        return new if len(new) > 1 else []

    def _absent_entries(
        self,
        roster: Roster,
        shown: list[RosterEntry],
        stay: list[RosterEntry],
        new: list[RosterEntry],
        now_ns: int,
    ) -> tuple[RosterEntry, ...]:
        """Return the places that are kept: of those that are away, and of those that go now."""
        if self.config.group_profile.release != "acks":
            return ()
        here = {place.name for place in (*stay, *new)}
        present = {place.address for place in (*stay, *new)}
        gone = [place for place in roster.entries if place.name]
        limit_ns = now_ns - self.config.retention_timeout_ns
        kept = [p for p in roster.absent if self._absent_since.get(p.name, now_ns) > limit_ns]
        away = [
            place
            for place in (*kept, *gone)
            if place.name not in here and place.address not in present
        ]
        names = {"", *here, *(place.name for place in away)}
        nodes = {place.address.node for place in (*stay, *new, *away)}
        away += [
            place for place in shown if place.name not in names and place.address.node not in nodes
        ]
        return tuple(away)

    def _propose(self, made: Roster, new: list[RosterEntry], out: ReadyBuilder) -> None:
        assert new, "a proposal is for joiners"
        m = self._membership
        self.proposal = made
        self._proposal_confirmed = set()
        alive = self._confirmed_lately(out.now_ns)
        self._awaiting_confirmation = {
            place.address: out.now_ns for place in new if place.address not in alive
        }
        self._decide_ns = out.now_ns + self.config.join_timeout_ns
        m.view_transfer.remember(made, out)
        for place in new:
            m.view_transfer.send(place.address, made, out)
        assert self._decide_ns is not None, "a proposal is decided"

    def _commit(self, made: Roster, new: list[RosterEntry], out: ReadyBuilder) -> None:
        """Send a roster to its members and to those it leaves out; install it here."""
        m = self._membership
        assert m.roster is not None
        self._forced = False
        m.admitted = True
        if len(m.roster.entries) > 1:
            m.view_transfer.broadcast(made, m.roster, out)
        m.accept(made, out)
        for place in new:
            if place.address not in self._proposal_confirmed:
                m.view_transfer.send(place.address, made, out)

    def commit_merge(self, made: Roster, out: ReadyBuilder) -> None:
        """Tell the roster of a merge to everybody in it; install it here."""
        m = self._membership
        self._proposal_confirmed = set()
        m.accept(made, out)
        for place in made.entries:
            if place.address != m.me:
                m.view_transfer.send(place.address, made, out)

    # On a view

    def install(self, before: frozenset[Address], out: ReadyBuilder) -> None:
        """Begin to wait for confirmations, if this member made the view; otherwise forget what it was about to do.

        ``before`` are the members of the view before.
        """
        m, now_ns = self._membership, out.now_ns
        assert m.roster is not None
        roster = m.roster
        self._highest = max(self._highest, roster.id.number)
        self.to_expel &= m.members
        self._awaiting_confirmation = {}
        self._last_confirmed_ns = {
            joiner: at_ns
            for joiner, at_ns in self._last_confirmed_ns.items()
            if joiner not in m.members
        }
        self.proposal = None
        self._absent_since = {
            place.name: self._absent_since.get(place.name, now_ns) for place in roster.absent
        }
        if roster.id.coordinator != m.me:
            self.joiners.clear()
            self.to_expel.clear()
            self.unconfirmed.clear()
            self._newcomers.clear()
            self._forced = False
            self._decide_ns = self._resend_ns = None
            return
        self._newcomers = set(m.members - before)
        self.joiners = {
            joiner: place for joiner, place in self.joiners.items() if joiner not in m.members
        }
        self.unconfirmed = set(m.members) - {m.me} - self._proposal_confirmed
        for joiner in sorted(self._proposal_confirmed & m.members):
            self.on_confirmed(joiner, out)
        self._proposal_confirmed = set()
        self._resends = 0
        self._resend_ns = now_ns + self.config.join_interval_ns if self.unconfirmed else None
        more = self.joiners or self._departing or self.to_expel
        self._decide_ns = now_ns + self.config.view_bundle_delay_ns if more else None

    def next_number(self, *others: int) -> int:
        """Return a number for a view, higher than any that was seen, and ``others``."""
        self._highest = max(self._highest, self._membership.view_number, *others) + 1
        return self._highest

    @property
    def _departing(self) -> set[Address]:
        m = self._membership
        return (m.failure_detector.dead | m.leaving | m.moved_away) & m.members

    def _resend(self, out: ReadyBuilder) -> None:
        m = self._membership
        assert m.roster is not None
        self._resend_ns = None
        if m.roster.id.coordinator != m.me or not self.unconfirmed:
            return
        if m.pending is None:
            for member in sorted(self.unconfirmed):
                m.view_transfer.send(member, m.roster, out)
        self._resends += 1
        pause_ns = self.config.join_interval_ns << min(self._resends, 3)
        self._resend_ns = out.now_ns + pause_ns

    def check_invariants(self) -> None:
        """Raise AssertionError if a joiner is a member, or a proposal is never decided."""
        m = self._membership
        assert len(self.joiners) <= _MAX_JOINERS, f"{len(self.joiners)} joiners"
        assert m.members.isdisjoint(self.joiners), "a member is not a joiner"
        for address, entry in self.joiners.items():
            assert address == entry.address, f"{address} is filed as {entry.address}"
        assert self.to_expel <= m.members - {m.me}, "only other members are expelled"
        assert self.unconfirmed <= m.members - {m.me}, "only other members confirm a view"
        assert self._newcomers <= m.members, "a newcomer is a member"
        if m.roster is not None:
            assert self._highest >= m.roster.id.number, "a number is never used twice"
            names = {entry.name for entry in m.roster.absent}
            assert self._absent_since.keys() <= names, "only absent members expire"
        if self.proposal is not None:
            assert self.proposal.id.number <= self._highest, "the number of a proposal is taken"
            assert self._decide_ns is not None or not m.is_acting, "a proposal is decided"
