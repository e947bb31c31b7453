"""The acting coordinator: the oldest live member creates the views.

On a join, a leave or a death: changes within ``view_bundle_delay`` share a roster with a new
number.

Joiners first: a roster with new members goes to the joiners alone at first. Joiners install and
confirm the roster. The coordinator commits the roster (broadcasts it to the old members and
installs it) when all joiners have confirmed, or after ``join_confirm_timeout`` without the
unconfirmed joiners. No sender therefore waits for acks of a joiner before the joiner is up, and the
group never notices the early death of a joiner. On a repeated JOIN, the coordinator sends the
joiner the roster again, because the roster or the confirmation may be lost. Removals do not wait
for joiners.

On JOIN of an incarnation of an earlier view: the joiner was expelled before the joiner knew of the
admission. The answer says so (EXPELLED), and the joiner begins a new incarnation.

On a confirmation: a member without a confirmation of the current view is sent the whole roster
again, every ``join_interval``.

On a foreign roster whose number is not lower: the members of the foreign roster join the next view,
whose number is higher than both. A new coordinator learns in this way of a view announced by its
predecessor to only some members.

On a departure of a durable member: the entry stays in the roster as absent, until the durable
member returns under the same name or ``retention_timeout`` is over. A durable joiner without a
confirmation is also listed as absent, because other joiners have seen the entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.identity import U32_MAX, Roster, ViewId
from gapless.profiles import ReleasePolicy
from gapless.protocol.events import Unheard
from gapless.protocol.membership.kept_out import KeptOut

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address, RosterEntry
    from gapless.protocol.membership.membership import Membership
    from gapless.protocol.ready_builder import ReadyBuilder

MAX_VIEW_NUMBER = U32_MAX // 2
"""Maximum number of a view that is accepted; no group creates that many."""
MAX_NUMBER_STEP = 1 << 20
"""How far ahead of the own view the number of a roster is believed."""
_MAX_CLAIMED_STEP = 1 << 10
"""How far ahead of the own view the number is believed that a joiner claims to be in."""
_MAX_JOINERS = 4096
"""Maximum number of joiners that are remembered; further joiners ask again."""
_CROWDED = "crowded"
"""Why a joiner beyond them is dropped."""
_MAX_FORMER = 4096
"""Maximum number of removed incarnations that are remembered."""
_MAX_PROPOSED = 128
"""Maximum number of joiners in one view: each of them is sent the roster with all of them."""
_MAX_RESENDS = 3
"""How many resent rosters a member may ignore before its own view counts as a move."""
_CONFIRMATION_LIFETIME = 10
"""How long a confirmation proves that a joiner is alive, in units of ``join_confirm_timeout``."""
_MAX_COMPLAINTS = 4
"""How many refuted reports in a row show that the complainer does not hear a live member."""


class Coordinator:
    """The state of an acting coordinator; idle in every other member."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.config = membership.config
        self.joiners: dict[Address, RosterEntry] = {}
        self._joiners_by_node: dict[int, Address] = {}
        self._joiners_by_name: dict[str, Address] = {}
        self._members_by_node: dict[int, Address] = {}
        self._members_by_name: dict[str, Address] = {}
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
        self._complaints: dict[tuple[Address, Address], tuple[int, int]] = {}
        self.kept_out = KeptOut(self.config)
        self._relayed: set[Address] = set()
        self._former: dict[Address, None] = {}

    @property
    def due_ns(self) -> int | None:
        """When the next decision or resend is due."""
        all_ns = (self._decide_ns, self._resend_ns, self._absent_due_ns)
        return min((at_ns for at_ns in all_ns if at_ns is not None), default=None)

    @property
    def _absent_due_ns(self) -> int | None:
        """When the first absent entry expires; None while a decision is due anyway."""
        if not self._absent_since or self._decide_ns is not None or not self._membership.is_acting:
            return None
        return min(self._absent_since.values()) + self.config.retention_timeout_ns

    def stop(self) -> None:
        """Cancel every decision and resend: this incarnation creates no more views."""
        self._decide_ns = self._resend_ns = None
        self._absent_since = {}
        assert self.due_ns is None, "a stopped coordinator has no timer"

    # On reception

    def on_join(self, entry: RosterEntry, out: ReadyBuilder, *, relayed: bool = False) -> None:
        """Queue a joiner for the next view; send the current roster to a member that asks again."""
        m, address = self._membership, entry.address
        assert m.roster is not None
        if not relayed:
            self._on_heard(address, out.now_ns)
        # The roster, or the confirmation of it, was lost on the way.
        if address in m.members:
            if m.roster_answers.allows(address, out.now_ns):
                m.view_transfer.send(address, m.roster, out)
                m.send_alive(address, out)
            return
        if address in self._former:
            out.drop("expelled", address, peer=address)
            m.send_alive(address, out, rate_limited=True, expelled=True)
            return
        holder = self._members_by_name.get(entry.name)
        if holder is not None and holder.node != address.node:
            # The holder of the durable name refuses the joiner. The holder may be dead: probe it.
            # The joiner asks again.
            m.refuse_name(entry, holder, out)
            m.failure_detector.probe((holder,), out)
            out.drop("name", address, peer=address)
            # Without an answer the joiner would found another group.
            m.send_alive(address, out, rate_limited=True)
            return
        if self.kept_out.holds(address.node, out.now_ns):
            out.drop("kept out", address, peer=address)
            m.send_alive(address, out, rate_limited=True)
            return
        is_new = address not in self.joiners
        if refused := self._queue_joiner(entry):
            out.drop(refused, address, peer=address)
            if refused == _CROWDED:
                # The joiner asks again; it must not found another group meanwhile.
                m.send_alive(address, out, rate_limited=True)
            return
        if relayed and is_new:
            self._relayed.add(address)
        self.schedule_decision(out)
        proposed_ns = self._awaiting_confirmation.get(address)
        # A joiner that waits for a decision needs to know only that a group exists.
        if self.proposal is None or proposed_ns is None:
            m.send_alive(address, out, rate_limited=True)
        elif out.now_ns - proposed_ns >= self.config.join_interval_ns:
            self._awaiting_confirmation[address] = out.now_ns
            m.view_transfer.send(address, self.proposal, out)

    def _on_heard(self, joiner: Address, now_ns: int) -> None:
        """Note that a frame of ``joiner`` arrived directly: this member hears the joiner."""
        self._relayed.discard(joiner)
        self.kept_out.on_heard(joiner.node, now_ns)

    def _queue_joiner(self, entry: RosterEntry) -> str:
        """Queue a joiner for the next view. Return the rejection reason, or an empty string.

        The work does not grow with the number of members and joiners, because strangers may send
        JOIN.
        """
        address, node = entry.address, entry.address.node
        known = self._members_by_node.get(node), self._joiners_by_node.get(node)
        # A late JOIN of a former incarnation must not replace the current one.
        if any(other is not None and other > address for other in known):
            return "incarnation"
        holders = self._members_by_name.get(entry.name), self._joiners_by_name.get(entry.name)
        if entry.name and any(holder is not None and holder.node != node for holder in holders):
            return "name"
        former = known[1]
        if former is not None:
            if former != address:
                self._forget_joiner(former)
            elif self.joiners[former].name != entry.name:
                self._joiners_by_name.pop(self.joiners[former].name, None)
        if len(self.joiners) >= _MAX_JOINERS and address not in self.joiners:
            return _CROWDED
        self.joiners[address] = entry
        self._joiners_by_node[node] = address
        if entry.name:
            self._joiners_by_name[entry.name] = address
        return ""

    def _forget_joiner(self, joiner: Address) -> None:
        """Remove a joiner from the queue, if queued."""
        entry = self.joiners.pop(joiner, None)
        self._relayed.discard(joiner)
        if entry is not None:
            self._joiners_by_node.pop(joiner.node, None)
            self._joiners_by_name.pop(entry.name, None)

    def _requeue_joiners(self) -> None:
        """Queue the joiners again under a new roster, which may have names or nodes of joiners."""
        assert self._membership.roster is not None
        entries = self._membership.roster.entries
        self._members_by_node = {entry.address.node: entry.address for entry in entries}
        self._members_by_name = {entry.name: entry.address for entry in entries if entry.name}
        before, self.joiners = self.joiners, {}
        self._joiners_by_node, self._joiners_by_name = {}, {}
        for joiner, entry in before.items():
            if joiner not in self._membership.members:
                self._queue_joiner(entry)
        self._relayed &= self.joiners.keys()

    def on_joiner_alive(self, sender: Address, view: ViewId, out: ReadyBuilder) -> bool:
        """Handle ALIVE of a joiner, perhaps the confirmation of a view.

        Return whether ``sender`` is a joiner. ALIVE from the view of another coordinator is no
        confirmation; the next view then needs a higher number.
        """
        m = self._membership
        assert sender not in m.members, f"{sender} is a member, not a joiner"
        is_ours = view.coordinator == m.me
        self._on_heard(sender, out.now_ns)
        if is_ours and (
            sender in self._last_confirmed_ns or len(self._last_confirmed_ns) < _MAX_JOINERS
        ):
            self._last_confirmed_ns[sender] = out.now_ns
        if sender not in self.joiners:
            return False
        # A joiner accepts only a higher number than that of its current view.
        # A number far beyond the own views is a lie, and would leave no room for higher ones.
        if view.number <= min(MAX_VIEW_NUMBER, m.view_number + _MAX_CLAIMED_STEP):
            self._highest = max(self._highest, view.number)
        if not is_ours:
            return True
        if self.proposal is not None and view == self.proposal.id:
            self._proposal_confirmed.add(sender)
        if sender in self._awaiting_confirmation:
            del self._awaiting_confirmation[sender]
            # The last confirmation is in: commit without waiting for join_confirm_timeout.
            if not self._awaiting_confirmation:
                self._decide_ns = out.now_ns
        return True

    def on_confirmed(self, member: Address, out: ReadyBuilder) -> None:
        """Record that ``member`` has installed the current view; admit a new ``member``."""
        self.unconfirmed.discard(member)
        if member in self._newcomers:
            self._newcomers.discard(member)
            self._membership.send_alive(member, out)

    def on_member_behind(
        self, member: Address, out: ReadyBuilder, *, excluded: bool = False
    ) -> None:
        """Handle evidence that ``member`` has an older view.

        ``excluded``: the older view does not include this member.
        """
        # The member got the roster several times and still prefers a view without us: it moved
        # away.
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
            # The current view is another coordinator's: only a view of our own can be confirmed to
            # us.
            self._forced = True
            self.schedule_decision(out)

    def absorb(self, roster: Roster, sender: Address, out: ReadyBuilder) -> None:
        """Queue the members of a foreign roster. All except the sender must still confirm."""
        assert self._membership.is_acting, "only the acting coordinator extends its next view"
        m = self._membership
        self._highest = max(self._highest, roster.id.number)
        gone = m.failure_detector.dead | m.leaving | m.moved_away
        for entry in roster.entries:
            address = entry.address
            if address not in m.members and address not in gone and address.node != m.me.node:
                refused = self._queue_joiner(entry)
                # The sender has shown by sending that it is alive.
                if address == sender and not refused:
                    self._last_confirmed_ns[address] = out.now_ns
        self._forced = True
        self.schedule_decision(out)

    def expel(self, members: Iterable[Address], out: ReadyBuilder) -> None:
        """Leave ``members`` out of the next view: at most a minority, never this member."""
        m = self._membership
        if m.backing is not None:
            members = m.backing.only_gone(members, out)
        unwanted = (self.to_expel | set(members)) & m.members - {m.me}
        # If a majority is slow then the complaining members are the likelier problem.
        if not m.is_acting or 2 * len(unwanted) >= len(m.members):
            out.drop("expel", m.me)
            return
        for member in sorted(unwanted - self.to_expel):
            # Expelled again soon after its return: the reason is still there.
            self.kept_out.on_expelled(member.node, out.now_ns)
        self.to_expel = unwanted
        assert m.me not in self.to_expel, "a coordinator never expels itself"
        self.schedule_decision(out)

    def on_complaint(
        self, complainer: Address, members: Iterable[Address], out: ReadyBuilder
    ) -> None:
        """Handle the report of a member, the complainer, about silent ``members``.

        Such a report is verified by a probe. If the members answered the probes of several reports
        in a row, then the members live, and only the complainer does not hear the members.
        """
        m, now_ns = self._membership, out.now_ns
        if not m.is_acting:
            return
        fresh_ns = now_ns - 3 * self.config.heartbeat_interval_ns
        self._complaints = {
            pair: seen for pair, seen in self._complaints.items() if seen[1] >= fresh_ns
        }
        for member in members:
            detector = m.failure_detector
            if (
                member in m.members - {m.me, complainer}
                and member not in detector.dead
                and not detector.is_probed(member)
            ):
                count = self._complaints.get((complainer, member), (0, 0))[0] + 1
                self._complaints[complainer, member] = count, now_ns
                if count >= _MAX_COMPLAINTS:
                    self._on_broken_link(member, complainer, out)

    def _on_broken_link(self, sender: Address, receiver: Address, out: ReadyBuilder) -> None:
        """Expel ``receiver`` for not hearing ``sender``, or ``sender`` on more complaints.

        If several members hear all members except ``sender``, then ``sender`` is at fault.
        """
        m = self._membership
        pairs = [
            pair for pair, (count, _) in self._complaints.items() if 2 * count >= _MAX_COMPLAINTS
        ]
        against_sender = sum(member == sender for _, member in pairs)
        against_receiver = sum(complainer == receiver for complainer, _ in pairs)
        loser = sender if against_sender > against_receiver else receiver
        self._complaints = {
            pair: seen for pair, seen in self._complaints.items() if loser not in pair
        }
        out.emit(Unheard(sender, receiver))
        if m.backing is not None and not m.backing.only_gone((loser,), out):
            return
        self.kept_out.add(loser.node, out.now_ns)
        self.expel((loser,), out)

    # Deciding

    def schedule_decision(self, out: ReadyBuilder) -> None:
        """Decide after ``view_bundle_delay``: changes until then share a view.

        A removal does not wait for the joiners of a proposal: the decision is moved forward.
        """
        if not self._membership.is_acting:
            return
        soon_ns = out.now_ns + self.config.view_bundle_delay_ns
        if self._decide_ns is None or (
            self.proposal is not None and (self._departing or self.to_expel)
        ):
            self._decide_ns = soon_ns if self._decide_ns is None else min(self._decide_ns, soon_ns)

    def on_timer(self, out: ReadyBuilder) -> None:
        """Make the decision, or resend the roster, if either is due."""
        now_ns = out.now_ns
        if not self._membership.is_acting:
            # Another member is acting: its views supersede our plans.
            self._decide_ns = self._resend_ns = self.proposal = None
            return
        if (expiry_ns := self._absent_due_ns) is not None and expiry_ns <= now_ns:
            self._decide_ns = now_ns
        if self._decide_ns is not None and self._decide_ns <= now_ns:
            self._decide_ns = None
            self._decide(out)
        if self._resend_ns is not None and self._resend_ns <= now_ns:
            self._resend(out)

    def _decide(self, out: ReadyBuilder) -> None:
        """Create a view with all changes, or propose the view to the joiners first."""
        m, now_ns = self._membership, out.now_ns
        if m.failure_detector.dead and not m.failure_detector.hears_others(out):
            # The others may be well, and this member deaf: wait until one of them replies, or all
            # are found dead.
            self._decide_ns = now_ns + self._recheck_delay_ns
            return
        if m.pending is not None or m.merging.blocks_views(now_ns):
            # A pending view or a merge fixes the current roster: look again later.
            self._decide_ns = now_ns + self._recheck_delay_ns
            return
        roster, proposal = m.roster, self.proposal
        assert roster is not None
        if proposal is not None:
            self._end_proposal(out)
        new = list(self.joiners.values())[:_MAX_PROPOSED]
        stay = self._remaining_entries(new)
        alive = self._confirmed_lately(now_ns)
        waits = any(entry.address not in alive for entry in new)
        if waits and (proposal is not None or self._forced or self._departing or self.to_expel):
            # Removals, and decisions after a proposal, do not wait for silent joiners: the next
            # view proposes them again.
            new = [entry for entry in new if entry.address in alive]
            stay = self._remaining_entries(new)
            waits = False
        self.proposal = None
        absent = self._absent_entries(roster, self._proposed_joiners(proposal), stay, new, now_ns)
        entries = (*stay, *new)
        if entries == roster.entries and absent == roster.absent and not self._forced:
            self._decide_ns = now_ns + self._recheck_delay_ns if self.joiners else None
            return
        # The joiners confirmed exactly this roster: commit the same view, not a second one.
        if proposal is not None and proposal.entries == entries and proposal.absent == absent:
            made = proposal
        else:
            made = Roster(ViewId(self.next_number(), m.me), entries, absent)
            self._proposal_confirmed = set()
        if waits:
            self._propose(made, new, out)
        else:
            self._commit(made, new, out)

    @property
    def _recheck_delay_ns(self) -> int:
        """How long to wait before the next attempt at a blocked decision."""
        return max(self.config.view_bundle_delay_ns, self.config.join_interval_ns // 4, 1)

    def _remaining_entries(self, new: list[RosterEntry]) -> list[RosterEntry]:
        """Return the staying members. A new incarnation replaces the old of the same node."""
        m = self._membership
        assert m.roster is not None
        nodes = {entry.address.node for entry in new}
        gone = self._departing | self.to_expel
        return [
            p for p in m.roster.entries if p.address not in gone and p.address.node not in nodes
        ]

    def _confirmed_lately(self, now_ns: int) -> dict[Address, int]:
        """Return the joiners with a confirmation younger than ``_CONFIRMATION_LIFETIME``."""
        limit_ns = now_ns - _CONFIRMATION_LIFETIME * self.config.join_confirm_timeout_ns
        self._last_confirmed_ns = {
            joiner: at_ns for joiner, at_ns in self._last_confirmed_ns.items() if at_ns > limit_ns
        }
        return self._last_confirmed_ns

    def _end_proposal(self, out: ReadyBuilder) -> None:
        """Drop the joiners without a timely confirmation; a live joiner repeats JOIN."""
        for joiner in self._awaiting_confirmation:
            if joiner not in self._confirmed_lately(out.now_ns):
                if joiner in self._relayed:
                    # Every proposal would be a view at the joiner alone: it cannot confirm any.
                    out.emit(Unheard(joiner, self._membership.me))
                    self.kept_out.add(joiner.node, out.now_ns, until_heard=True)
                self._forget_joiner(joiner)
        self._awaiting_confirmation = {}

    def _proposed_joiners(self, proposal: Roster | None) -> list[RosterEntry]:
        """Return the joiners of a proposal to several joiners: the joiners know each other."""
        entries = () if proposal is None else proposal.entries
        new = [entry for entry in entries if entry.address not in self._membership.members]
        return new if len(new) > 1 else []

    def _absent_entries(
        self,
        roster: Roster,
        shown: list[RosterEntry],
        stay: list[RosterEntry],
        new: list[RosterEntry],
        now_ns: int,
    ) -> tuple[RosterEntry, ...]:
        """Return the absent durable members of the next view.

        The result has the unexpired absent entries of ``roster``, the durable members that leave
        the view now, and the ``shown`` durable joiners without a confirmation.
        """
        # Only acks show which messages an absent member lacks; other profiles retain nothing.
        if self.config.group_profile.release is not ReleasePolicy.ACKS:
            return ()
        here = {entry.name for entry in (*stay, *new)}
        present = {entry.address for entry in (*stay, *new)}
        gone = [entry for entry in roster.entries if entry.name]
        limit_ns = now_ns - self.config.retention_timeout_ns
        kept = [p for p in roster.absent if self._absent_since.get(p.name, now_ns) > limit_ns]
        absent = [
            entry
            for entry in (*kept, *gone)
            if entry.name not in here and entry.address not in present
        ]
        names = {"", *here, *(entry.name for entry in absent)}
        nodes = {entry.address.node for entry in (*stay, *new, *absent)}
        absent += [
            entry for entry in shown if entry.name not in names and entry.address.node not in nodes
        ]
        assert here.isdisjoint(entry.name for entry in absent if entry.name), (
            "a durable member is present or absent, not both"
        )
        return tuple(absent)

    def _propose(self, made: Roster, new: list[RosterEntry], out: ReadyBuilder) -> None:
        """Send the roster ``made`` to the joiners, and wait for the confirmations."""
        assert new, "a proposal is for joiners"
        m = self._membership
        self.proposal = made
        self._proposal_confirmed = set()
        alive = self._confirmed_lately(out.now_ns)
        self._awaiting_confirmation = {
            entry.address: out.now_ns for entry in new if entry.address not in alive
        }
        self._decide_ns = out.now_ns + self.config.join_confirm_timeout_ns
        m.view_transfer.remember(made, out)
        for entry in new:
            m.view_transfer.send(entry.address, made, out)
        assert self._decide_ns is not None, "a proposal is decided"

    def _commit(self, made: Roster, new: list[RosterEntry], out: ReadyBuilder) -> None:
        """Broadcast ``made`` to the current view, send it to the joiners, and install it here."""
        m = self._membership
        assert m.roster is not None
        self._forced = False
        m.admitted = True
        # The broadcast reaches the members that the view leaves out, too: they learn of their
        # expulsion.
        if len(m.roster.entries) > 1:
            m.view_transfer.broadcast(made, m.roster, out)
        m.accept(made, out)
        for entry in new:
            # A joiner that confirmed the proposal already has this roster.
            if entry.address not in self._proposal_confirmed:
                m.view_transfer.send(entry.address, made, out)

    def commit_merge(self, made: Roster, out: ReadyBuilder) -> None:
        """Send the roster of a merge to all its members, and install the roster here."""
        assert made.id.coordinator == self._membership.me, "the leader of a merge creates its view"
        m = self._membership
        self._proposal_confirmed = set()
        m.accept(made, out)
        for entry in made.entries:
            if entry.address != m.me:
                m.view_transfer.send(entry.address, made, out)

    # On a view

    def install(self, before: frozenset[Address], out: ReadyBuilder) -> None:
        """Wait for confirmations of our own view; drop all plans after another coordinator's view.

        ``before`` are the members of the previous view.
        """
        m, now_ns = self._membership, out.now_ns
        assert m.roster is not None
        roster = m.roster
        self._highest = max(self._highest, roster.id.number)
        self._remember_removed(before)
        self.to_expel &= m.members
        self._complaints = {}
        self._awaiting_confirmation = {}
        self._last_confirmed_ns = {
            joiner: at_ns
            for joiner, at_ns in self._last_confirmed_ns.items()
            if joiner not in m.members
        }
        self.proposal = None
        self._absent_since = {
            entry.name: self._absent_since.get(entry.name, now_ns) for entry in roster.absent
        }
        if roster.id.coordinator != m.me:
            self.joiners.clear()
            self._requeue_joiners()
            self.to_expel.clear()
            self.unconfirmed.clear()
            self._newcomers.clear()
            self._forced = False
            self._decide_ns = self._resend_ns = None
            return
        self._newcomers = set(m.members - before)
        self._requeue_joiners()
        self.unconfirmed = set(m.members) - {m.me} - self._proposal_confirmed
        for joiner in sorted(self._proposal_confirmed & m.members):
            self.on_confirmed(joiner, out)
        self._proposal_confirmed = set()
        self._resends = 0
        self._resend_ns = now_ns + self.config.join_interval_ns if self.unconfirmed else None
        more = self.joiners or self._departing or self.to_expel
        self._decide_ns = now_ns + self.config.view_bundle_delay_ns if more else None

    def _remember_removed(self, before: frozenset[Address]) -> None:
        """Remember the incarnations removed by the own group: a merge may bring them back."""
        m = self._membership
        assert m.roster is not None
        if m.roster.id.coordinator in before:
            self._former.update(dict.fromkeys(sorted(before - m.members)))
        for member in self._former.keys() & m.members:
            del self._former[member]
        while len(self._former) > _MAX_FORMER:
            del self._former[next(iter(self._former))]

    def is_removed(self, incarnation: Address) -> bool:
        """Return whether the own group has removed ``incarnation``, which is not back."""
        return incarnation in self._former

    def next_number(self, *others: int) -> int:
        """Return a number for a view, higher than any number seen so far and than ``others``."""
        self._highest = max(self._highest, self._membership.view_number, *others) + 1
        assert all(self._highest > number for number in others), "numbers of views rise"
        return self._highest

    @property
    def _departing(self) -> set[Address]:
        """Members of the current view that are dead, leaving or in another view."""
        m = self._membership
        if m.backing is not None:
            return {member for member in m.members if member != m.me and m.backing.is_gone(member)}
        return (m.failure_detector.dead | m.leaving | m.moved_away) & m.members

    def _resend(self, out: ReadyBuilder) -> None:
        """Send the whole roster to every member without a confirmation, with back-off."""
        m = self._membership
        assert m.roster is not None
        self._resend_ns = None
        if m.roster.id.coordinator != m.me or not self.unconfirmed:
            return
        if m.pending is None:
            # While a newer view is pending the current one need not be confirmed any more.
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
        assert self._relayed <= self.joiners.keys(), "only joiners are heard by relay"
        self.kept_out.check_invariants()
        for address, entry in self.joiners.items():
            assert address == entry.address, f"{address} is filed as {entry.address}"
            assert self._joiners_by_node[address.node] == address, "one joiner a node"
            assert not entry.name or self._joiners_by_name[entry.name] == address, "and a name"
        assert len(self._joiners_by_node) == len(self.joiners), "every joiner is filed once"
        assert self.to_expel <= m.members - {m.me}, "only other members are expelled"
        assert m.members.isdisjoint(self._former), "a member was not removed"
        assert len(self._former) <= _MAX_FORMER, f"{len(self._former)} removed members"
        assert self.unconfirmed <= m.members - {m.me}, "only other members confirm a view"
        assert self._newcomers <= m.members, "a newcomer is a member"
        if m.roster is not None:
            assert self._highest >= m.roster.id.number, "a number is never used twice"
            names = {entry.name for entry in m.roster.absent}
            assert self._absent_since.keys() <= names, "only absent members expire"
        if self.proposal is not None:
            assert self.proposal.id.number <= self._highest, "the number of a proposal is taken"
            assert self._decide_ns is not None or not m.is_acting, "a proposal is decided"
