"""Making views: what the acting coordinator does, the oldest member that lives.

On a join, a leave, a death: changes are gathered for ``view_gap``, then one roster with a new
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
under the same name or ``hold_timeout`` is over. So does that of a durable joiner that has not
confirmed: the other joiners have seen it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.identity import U32_MAX, Roster, ViewId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address, Place
    from gapless.protocol.membership.membership import Membership
    from gapless.protocol.ready_builder import Context

MOST_NUMBER = U32_MAX // 2
"""A view with a higher number than this is nonsense: no group gets there."""
_MOST_JOINERS = 4096
_MOST_RESENDS = 3
_CONFIRMED_FOR = 10
"""A joiner that confirmed some proposal counts as alive for so many times ``join_timeout``."""


class Coordinator:
    """What a member knows and does as the one that makes views; nothing, while it is not."""

    def __init__(self, membership: Membership) -> None:
        self._m = membership
        self.config = membership.config
        self.joiners: dict[Address, Place] = {}
        self.unwanted: set[Address] = set()
        self.proposal: Roster | None = None
        self.unconfirmed: set[Address] = set()
        self._met: dict[Address, int] = {}
        self._awaited: dict[Address, int] = {}
        self._ready: set[Address] = set()
        self._newcomers: set[Address] = set()
        self._highest = 0
        self._forced = False
        self._decide_ns: int | None = None
        self._resend_ns: int | None = None
        self._resends = 0
        self._away_since: dict[str, int] = {}

    @property
    def due_ns(self) -> int | None:
        """When something is to be decided or sent again."""
        all_ns = (self._decide_ns, self._resend_ns, self._away_due_ns)
        return min((at_ns for at_ns in all_ns if at_ns is not None), default=None)

    @property
    def _away_due_ns(self) -> int | None:
        if not self._away_since or self._decide_ns is not None or not self._m.acts:
            return None
        return min(self._away_since.values()) + self.config.hold_timeout_ns

    def end(self) -> None:
        """Make no more views."""
        self._decide_ns = self._resend_ns = None
        self._away_since = {}

    # On reception

    def on_join(self, place: Place, context: Context) -> None:
        """Take note of one that wants in; one that is in already is told again."""
        m, address = self._m, place.address
        assert m.roster is not None
        if address in m.members:
            m.rosters.send(address, m.roster, context)
            m.show(address, context)
            return
        if place.name:
            holders = [
                p.address
                for p in m.roster.places
                if p.name == place.name and p.address.node != address.node
            ]
            if holders:
                m.liveness.ask(holders, context)
                context.drop("name", address, peer=address)
                m.show(
                    address, context, rarely=True
                )  # or it would found a group of its own, and not know why
                return
        if refused := self._note(place):
            context.drop(refused, address, peer=address)
            return
        self.plan(context)
        told_ns = self._awaited.get(address)
        if self.proposal is None or told_ns is None:
            m.show(address, context, rarely=True)
        elif context.now_ns - told_ns >= self.config.join_interval_ns:
            self._awaited[address] = context.now_ns
            m.rosters.send(address, self.proposal, context)

    def _note(self, place: Place) -> str:
        """Note one that is to be in the next view, in place of its former lives; return what is against it, if any."""
        m, address = self._m, place.address
        assert m.roster is not None
        others = [
            other
            for other in (*m.roster.places, *self.joiners.values())
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
        if len(self.joiners) < _MOST_JOINERS:
            self.joiners[address] = place
        return ""

    def on_joiner(self, sender: Address, view: ViewId, context: Context) -> bool:
        """Take a confirmation of a joiner in; return whether ``sender`` is one.

        One that is in a view of somebody else has confirmed nothing; a view that it is to accept
        needs a higher number.
        """
        mine = view.coordinator == self._m.me
        if mine and (sender in self._met or len(self._met) < _MOST_JOINERS):
            self._met[sender] = context.now_ns
        if sender not in self.joiners:
            return False
        if view.number <= MOST_NUMBER:
            self._highest = max(self._highest, view.number)
        if not mine:
            return True
        if self.proposal is not None and view == self.proposal.id:
            self._ready.add(sender)
        if sender in self._awaited:
            del self._awaited[sender]
            if not self._awaited:
                self._decide_ns = context.now_ns
        return True

    def confirmed(self, member: Address, context: Context) -> None:
        """Take note that ``member`` has installed the present view; a new one is told that it is in."""
        self.unconfirmed.discard(member)
        if member in self._newcomers:
            self._newcomers.discard(member)
            self._m.show(member, context)

    def behind(self, member: Address, context: Context, *, apart: bool = False) -> None:
        """Take note that ``member`` has an older view; one ``apart`` is in a view without this one.

        One that stays apart although it was sent the roster again and again has its own mind: it
        has moved.
        """
        if apart and member in self.unconfirmed and self._resends >= _MOST_RESENDS:
            self._m.moved.add(member)
            self.plan(context)
            return
        if self._m.roster is not None and self._m.roster.id.coordinator == self._m.me:
            self.unconfirmed.add(member)
            if self._resend_ns is None:
                self._resends = 0
                self._resend_ns = context.now_ns + self.config.join_interval_ns
        else:
            self._forced = True
            self.plan(context)

    def absorb(self, roster: Roster, sender: Address, context: Context) -> None:
        """Take the members of another roster into the next views; all but its sender have yet to show themselves."""
        m = self._m
        self._highest = max(self._highest, roster.id.number)
        gone = m.liveness.dead | m.leaving | m.moved
        for place in roster.places:
            address = place.address
            if address not in m.members and address not in gone and address.node != m.me.node:
                refused = self._note(place)
                if address == sender and not refused:
                    self._met[address] = context.now_ns
        self._forced = True
        self.plan(context)

    def expel(self, members: Iterable[Address], context: Context) -> None:
        """Leave ``members`` out of the next view, though they live: a minority at most, and never this one."""
        m = self._m
        unwanted = (self.unwanted | set(members)) & m.members - {m.me}
        if not m.acts or 2 * len(unwanted) >= len(m.members):
            context.drop("expel", m.me)
            return
        self.unwanted = unwanted
        self.plan(context)

    # Deciding

    def plan(self, context: Context) -> None:
        """Decide soon; what comes until then goes into the same view. Removals do not wait for joiners to confirm."""
        if not self._m.acts:
            return
        soon_ns = context.now_ns + self.config.view_gap_ns
        if self._decide_ns is None or (self.proposal is not None and (self._gone or self.unwanted)):
            self._decide_ns = soon_ns if self._decide_ns is None else min(self._decide_ns, soon_ns)

    def fire(self, context: Context) -> None:
        """Decide, or tell again, what is due."""
        now_ns = context.now_ns
        if not self._m.acts:
            self._decide_ns = self._resend_ns = self.proposal = None
            return
        if (away_ns := self._away_due_ns) is not None and away_ns <= now_ns:
            self._decide_ns = now_ns
        if self._decide_ns is not None and self._decide_ns <= now_ns:
            self._decide_ns = None
            self._decide(context)
        if self._resend_ns is not None and self._resend_ns <= now_ns:
            self._resend(context)

    def _decide(self, context: Context) -> None:
        """Make a view of everything that has changed, or offer it to the joiners first."""
        m, now_ns = self._m, context.now_ns
        if m.pending is not None or m.merging.holds(now_ns):
            self._decide_ns = now_ns + self._rest_ns
            return
        roster, proposal = m.roster, self.proposal
        assert roster is not None
        if proposal is not None:
            self._end_proposal(now_ns)
        new = list(self.joiners.values())
        stay = self._staying(new)
        alive = self._alive(now_ns)
        waits = any(place.address not in alive for place in new)
        if waits and (proposal is not None or self._forced or self._gone or self.unwanted):
            # Nobody waits for joiners that have not answered; they are asked again with the next
            # view.
            new = [place for place in new if place.address in alive]
            stay = self._staying(new)
            waits = False
        self.proposal = None
        away = self._away(roster, self._shown(proposal), stay, new, now_ns)
        places = (*stay, *new)
        if places == roster.places and away == roster.away and not self._forced:
            self._decide_ns = now_ns + self._rest_ns if self.joiners else None
            return
        if proposal is not None and proposal.places == places and proposal.away == away:
            made = proposal
        else:
            made = Roster(ViewId(self.next_number(), m.me), places, away)
            self._ready = set()
        if waits:
            self._propose(made, new, context)
        else:
            self._commit(made, new, context)

    @property
    def _rest_ns(self) -> int:
        """How long to wait before a decision that cannot be made now is looked at again."""
        return max(self.config.view_gap_ns, self.config.join_interval_ns // 4, 1)

    def _staying(self, new: list[Place]) -> list[Place]:
        """Return the members that stay; a new life takes the place of the old one at its node."""
        m = self._m
        assert m.roster is not None
        nodes = {place.address.node for place in new}
        gone = self._gone | self.unwanted
        return [p for p in m.roster.places if p.address not in gone and p.address.node not in nodes]

    def _alive(self, now_ns: int) -> dict[Address, int]:
        """Return the joiners that have confirmed something lately."""
        limit_ns = now_ns - _CONFIRMED_FOR * self.config.join_timeout_ns
        self._met = {joiner: at_ns for joiner, at_ns in self._met.items() if at_ns > limit_ns}
        return self._met

    def _end_proposal(self, now_ns: int) -> None:
        """Give up the joiners that have not confirmed in time; they ask again if they live."""
        for joiner in self._awaited:
            if joiner not in self._alive(now_ns):
                self.joiners.pop(joiner, None)
        self._awaited = {}

    def _shown(self, proposal: Roster | None) -> list[Place]:
        """Return the joiners that others may have seen: those of a proposal that went to several."""
        places = () if proposal is None else proposal.places
        new = [place for place in places if place.address not in self._m.members]
        return new if len(new) > 1 else []

    def _away(
        self, roster: Roster, shown: list[Place], stay: list[Place], new: list[Place], now_ns: int
    ) -> tuple[Place, ...]:
        """Return the places that are kept: of those that are away, and of those that go now."""
        if self.config.row.release != "acks":
            return ()
        here = {place.name for place in (*stay, *new)}
        present = {place.address for place in (*stay, *new)}
        gone = [place for place in roster.places if place.name]
        limit_ns = now_ns - self.config.hold_timeout_ns
        kept = [p for p in roster.away if self._away_since.get(p.name, now_ns) > limit_ns]
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

    def _propose(self, made: Roster, new: list[Place], context: Context) -> None:
        m = self._m
        self.proposal = made
        self._ready = set()
        alive = self._alive(context.now_ns)
        self._awaited = {
            place.address: context.now_ns for place in new if place.address not in alive
        }
        self._decide_ns = context.now_ns + self.config.join_timeout_ns
        m.rosters.learn(made, context)
        for place in new:
            m.rosters.send(place.address, made, context)

    def _commit(self, made: Roster, new: list[Place], context: Context) -> None:
        """Tell a roster to all that are in it, and to those that are not any more; install it here."""
        m = self._m
        assert m.roster is not None
        self._forced = False
        m.welcome = True
        if len(m.roster.places) > 1:
            m.rosters.tell(made, m.roster, context)
        m.accept(made, context)
        for place in new:
            if place.address not in self._ready:
                m.rosters.send(place.address, made, context)

    def lead(self, made: Roster, context: Context) -> None:
        """Tell the roster of a merge to everybody in it; install it here."""
        m = self._m
        self._ready = set()
        m.accept(made, context)
        for place in made.places:
            if place.address != m.me:
                m.rosters.send(place.address, made, context)

    # On a view

    def install(self, before: frozenset[Address], context: Context) -> None:
        """Begin to wait for confirmations, if this member made the view; otherwise forget what it was about to do.

        ``before`` are the members of the view before.
        """
        m, now_ns = self._m, context.now_ns
        assert m.roster is not None
        roster = m.roster
        self._highest = max(self._highest, roster.id.number)
        self.unwanted &= m.members
        self._awaited = {}
        self._met = {
            joiner: at_ns for joiner, at_ns in self._met.items() if joiner not in m.members
        }
        self.proposal = None
        self._away_since = {
            place.name: self._away_since.get(place.name, now_ns) for place in roster.away
        }
        if roster.id.coordinator != m.me:
            self.joiners.clear()
            self.unwanted.clear()
            self.unconfirmed.clear()
            self._newcomers.clear()
            self._forced = False
            self._decide_ns = self._resend_ns = None
            return
        self._newcomers = set(m.members - before)
        self.joiners = {
            joiner: place for joiner, place in self.joiners.items() if joiner not in m.members
        }
        self.unconfirmed = set(m.members) - {m.me} - self._ready
        for joiner in sorted(self._ready & m.members):
            self.confirmed(joiner, context)
        self._ready = set()
        self._resends = 0
        self._resend_ns = now_ns + self.config.join_interval_ns if self.unconfirmed else None
        more = self.joiners or self._gone or self.unwanted
        self._decide_ns = now_ns + self.config.view_gap_ns if more else None

    def next_number(self, *others: int) -> int:
        """Return a number for a view, higher than any that was seen, and ``others``."""
        self._highest = max(self._highest, self._m.number, *others) + 1
        return self._highest

    @property
    def _gone(self) -> set[Address]:
        m = self._m
        return (m.liveness.dead | m.leaving | m.moved) & m.members

    def _resend(self, context: Context) -> None:
        m = self._m
        assert m.roster is not None
        self._resend_ns = None
        if m.roster.id.coordinator != m.me or not self.unconfirmed:
            return
        if m.pending is None:
            for member in sorted(self.unconfirmed):
                m.rosters.send(member, m.roster, context)
        self._resends += 1
        pause_ns = self.config.join_interval_ns << min(self._resends, 3)
        self._resend_ns = context.now_ns + pause_ns
