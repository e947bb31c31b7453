"""Mending a group that has come apart: separate views become one.

Every ``merge_interval``: the coordinator of a view shows itself to whoever may be there, with the
names of the other coordinators that it has heard. Of those that hear each other the one with the
lowest address leads: it asks the others for their rosters.

On being asked: a coordinator sends its roster and makes no view for a while, so that the roster
stays true; then it rests for as long before it agrees again, so that one that hears nothing cannot
hold it up for ever.

On the answers, or when the time for them is over: the leader makes a roster of all, its own members
first, with a number higher than all, and sends it to everybody. The lives go on; each sender tells
the others where it starts for them, so that what was sent while they were apart stays with those it
was sent to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import Roster, ViewId
from gapless.protocol.ready import ANYONE
from gapless.wire.frames import Beacon, MergeAsk, MergeReply

if TYPE_CHECKING:
    from gapless.identity import Address, RosterEntry
    from gapless.protocol.membership.membership import Membership
    from gapless.protocol.ready_builder import ReadyBuilder

_MAX_FOREIGN = 256
_MAX_HEARD = 8
"""So many other coordinators a beacon names: it must fit the smallest frame."""
_BEACON_LIFETIME = 5
"""A beacon counts for so many half intervals."""


class _ForeignCoordinator(NamedTuple):
    """The coordinator of another view, as it showed itself last."""

    at_ns: int
    hears_me: bool


class MergeProtocol:
    """What a coordinator knows of other views, and the merge that it leads or has agreed to."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.config = membership.config
        self._foreign: dict[Address, _ForeignCoordinator] = {}
        self._beacon_ns: int | None = None
        self._merge = 0
        self._invited: set[Address] = set()
        self._replies: dict[Address, ViewId] = {}
        self._reply_deadline_ns: int | None = None
        self.agreed_to: Address | None = None
        self._views_blocked_until_ns = 0
        self._refuse_until_ns = 0

    @property
    def due_ns(self) -> int | None:
        """When a beacon is due, or the time for answers over."""
        if self._reply_deadline_ns is None or self._beacon_ns is None:
            return self._beacon_ns if self._reply_deadline_ns is None else self._reply_deadline_ns
        return min(self._beacon_ns, self._reply_deadline_ns)

    def blocks_views(self, now_ns: int) -> bool:
        """Return whether views are not made now, because of a merge."""
        return now_ns < self._views_blocked_until_ns or self._reply_deadline_ns is not None

    def stop(self) -> None:
        """Look for nobody any more."""
        self._beacon_ns = self._reply_deadline_ns = None
        assert self.due_ns is None, "a stopped merge has no timer"

    def install(self, out: ReadyBuilder) -> None:
        """Forget the merge that was under way; show this view, if this member made it."""
        m = self._membership
        assert m.roster is not None
        self._reply_deadline_ns = None
        self.agreed_to = None
        self._views_blocked_until_ns = self._refuse_until_ns = 0
        self._foreign = {other: at for other, at in self._foreign.items() if other not in m.members}
        if m.roster.id.coordinator == m.me:
            self._beacon_ns = (
                min(self._beacon_ns or out.now_ns, out.now_ns) + self._beacon_delay_ns()
            )
        else:
            self._beacon_ns = None

    def _beacon_delay_ns(self) -> int:
        """Return when to show this view again: not in step with others."""
        interval_ns = self.config.merge_interval_ns
        return interval_ns - int(self._membership.rng.random() * interval_ns / 4)

    # Every interval

    def on_timer(self, out: ReadyBuilder) -> None:
        """Show this view, lead a merge, or make do with the answers that came."""
        m, now_ns = self._membership, out.now_ns
        if self._reply_deadline_ns is not None and self._reply_deadline_ns <= now_ns:
            self._conclude(out)
        if self._beacon_ns is None or self._beacon_ns > now_ns:
            return
        if not m.is_acting or m.roster is None:
            self._beacon_ns = None
            return
        self._beacon_ns = now_ns + self._beacon_delay_ns()
        fresh_ns = now_ns - self.config.merge_interval_ns * _BEACON_LIFETIME // 2
        self._foreign = {
            other: seen for other, seen in self._foreign.items() if seen.at_ns >= fresh_ns
        }
        out.transmit(ANYONE, Beacon(m.me, m.roster.id, tuple(sorted(self._foreign)[:_MAX_HEARD])))
        self._start_merge(out)

    def _start_merge(self, out: ReadyBuilder) -> None:
        """Ask the others for their rosters, if this one is to lead."""
        m = self._membership
        mutual = sorted(other for other, seen in self._foreign.items() if seen.hears_me)
        if not mutual or mutual[0] < m.me or self.blocks_views(out.now_ns) or m.pending is not None:
            return
        self._merge = m.rng.getrandbits(63)
        self._invited, self._replies = set(mutual), {}
        self._reply_deadline_ns = out.now_ns + self.config.join_timeout_ns
        for other in mutual:
            out.transmit(other, MergeAsk(m.me, self._merge))

    # On reception

    def on_beacon(self, frame: Beacon, out: ReadyBuilder) -> None:
        """Take note of another view."""
        if len(self._foreign) < _MAX_FOREIGN or frame.origin in self._foreign:
            self._foreign[frame.origin] = _ForeignCoordinator(
                out.now_ns, self._membership.me in frame.heard
            )

    def on_merge_ask(self, frame: MergeAsk, out: ReadyBuilder) -> None:
        """Agree to a merge, or say that it is not the time."""
        m, now_ns = self._membership, out.now_ns
        if not m.is_acting or m.roster is None or frame.origin in m.members:
            out.drop("merge", peer=frame.origin)
            return
        if self._reply_deadline_ns is not None and frame.origin < m.me:
            self._reply_deadline_ns = None  # two lead: the lower address goes on
        willing = (
            not self.blocks_views(now_ns) and now_ns >= self._refuse_until_ns and m.pending is None
        )
        willing = willing and m.coordinator.proposal is None and m.roster.id.coordinator == m.me
        out.transmit(frame.origin, MergeReply(m.me, frame.merge, m.roster.id, willing))
        if willing:
            hold_ns = 2 * self.config.join_timeout_ns
            self.agreed_to = frame.origin
            self._views_blocked_until_ns, self._refuse_until_ns = (
                now_ns + hold_ns,
                now_ns + 2 * hold_ns,
            )
            m.view_transfer.send(frame.origin, m.roster, out)

    def on_merge_reply(self, frame: MergeReply, out: ReadyBuilder) -> None:
        """Take an answer in; when all are there the merge is made."""
        if (
            frame.merge != self._merge
            or frame.origin not in self._invited
            or self._reply_deadline_ns is None
        ):
            out.drop("merge", peer=frame.origin)
            return
        if frame.willing:
            self._replies[frame.origin] = frame.view
        else:
            self._invited.discard(frame.origin)
        if self._invited <= self._replies.keys():
            # The rosters themselves may still be on their way, just behind the answers.
            self._reply_deadline_ns = min(
                self._reply_deadline_ns, out.now_ns + self.config.view_bundle_delay_ns
            )

    def _conclude(self, out: ReadyBuilder) -> None:
        """Make one roster of all that agreed."""
        m = self._membership
        self._reply_deadline_ns = None
        if not m.is_acting or m.roster is None or m.pending is not None:
            return
        found = [m.view_transfer.get(view) for view in self._replies.values()]
        rosters = [roster for roster in found if roster is not None]
        if not rosters:
            return
        places = self._merged_entries([m.roster, *rosters])
        if tuple(places.values()) == m.roster.entries:
            return  # nobody there is to be in: their durable names are taken here
        number = m.coordinator.next_number(*(roster.id.number for roster in rosters))
        made = Roster(
            ViewId(number, m.me), tuple(places.values()), self._absent_entries(places, rosters)
        )
        m.coordinator.commit_merge(made, out)

    def _merged_entries(self, rosters: list[Roster]) -> dict[int, RosterEntry]:
        """Return the merged entries: the newest incarnation of a node, one per durable name."""
        places: dict[int, RosterEntry] = {}
        for place in (place for roster in rosters for place in roster.entries):
            known = places.get(place.address.node)
            if known is not None and (
                known.address >= place.address or known.address == self._membership.me
            ):
                continue
            if place.name and any(
                other.name == place.name for other in places.values() if other is not known
            ):
                continue
            places[place.address.node] = place
        return places

    def _absent_entries(
        self, places: dict[int, RosterEntry], rosters: list[Roster]
    ) -> tuple[RosterEntry, ...]:
        """Return the absent durable members of all rosters that no view has."""
        assert self._membership.roster is not None
        here = {place.name for place in places.values()}
        away: dict[str, RosterEntry] = {}
        for place in (
            place for roster in (self._membership.roster, *rosters) for place in roster.absent
        ):
            if place.name not in here:
                away.setdefault(place.name, place)
        return tuple(away.values())

    def check_invariants(self) -> None:
        """Raise AssertionError if a member counts as foreign, or an agreement has no end."""
        m = self._membership
        assert len(self._foreign) <= _MAX_FOREIGN, f"{len(self._foreign)} foreign coordinators"
        assert m.members.isdisjoint(self._foreign), "a member is not a foreign coordinator"
        assert self.agreed_to is None or self.agreed_to not in m.members, (
            "a member merges with others, not with its own view"
        )
        assert self._views_blocked_until_ns <= self._refuse_until_ns, (
            "after an agreement the next one is refused for a while"
        )
        assert self._reply_deadline_ns is None or m.me not in self._invited, "nobody invites itself"
