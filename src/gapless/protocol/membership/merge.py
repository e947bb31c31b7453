"""Merging: separated views become one view again.

Every ``merge_interval``, and soon after the first beacon of a new group: the coordinator of a view
sends a beacon to every address known from discovery. The beacon names the other coordinators heard
by the sender. Among coordinators that hear each other the lowest address leads the merge, and asks
the others for rosters.

On MERGE_ASK: a coordinator sends the own roster, and creates no view for a while, to keep the
roster true. Then the coordinator refuses further merges for as long: a leader without answers
cannot block the coordinator's views for ever.

On the replies, or at the deadline for replies: the leader creates a roster of all members, the
leader's own members first, with a number higher than all, and sends the roster to every member.
Incarnations continue. Each sender announces to the other side where the sender's stream starts for
the other side: messages of the separated time stay on the sender's side.
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
"""Maximum number of foreign coordinators that are remembered."""
_MAX_HEARD = 8
"""Maximum number of coordinators in one beacon, so that the frame fits the smallest frame size."""
_BEACON_LIFETIME = 5
"""How long a beacon counts, in halves of ``merge_interval``."""

_MAX_UNHEARD_BEACONS = 3
"""Maximum number of beacons in a row that may omit our coordinator before we introduce it."""
_MAX_STRANGERS = 4096
"""Maximum number of foreign coordinators whose beacons are counted."""


class _ForeignCoordinator(NamedTuple):
    """The coordinator of another view, as of the latest beacon."""

    at_ns: int
    hears_me: bool


class MergeProtocol:
    """The foreign coordinators, and the merge led or accepted by this coordinator."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self.config = membership.config
        self._foreign: dict[Address, _ForeignCoordinator] = {}
        self._beacon_ns: int | None = None
        self._sent_ns = 0
        self._lone_beacons = 0
        self._unheard_beacons: dict[Address, int] = {}
        self._merge = 0
        self._invited: set[Address] = set()
        self._replies: dict[Address, ViewId] = {}
        self._reply_deadline_ns: int | None = None
        self.agreed_to: Address | None = None
        self._views_blocked_until_ns = 0
        self._refuse_until_ns = 0

    @property
    def due_ns(self) -> int | None:
        """When the next beacon, or the deadline for replies, is due."""
        if self._reply_deadline_ns is None or self._beacon_ns is None:
            return self._beacon_ns if self._reply_deadline_ns is None else self._reply_deadline_ns
        return min(self._beacon_ns, self._reply_deadline_ns)

    def blocks_views(self, now_ns: int) -> bool:
        """Return whether a merge forbids new views now."""
        return now_ns < self._views_blocked_until_ns or self._reply_deadline_ns is not None

    def stop(self) -> None:
        """Send no more beacons, and drop the merge."""
        self._beacon_ns = self._reply_deadline_ns = None
        assert self.due_ns is None, "a stopped merge has no timer"

    def install(self, out: ReadyBuilder) -> None:
        """Drop a merge in progress; send beacons if this member created the view."""
        m = self._membership
        assert m.roster is not None
        self._unheard_beacons.clear()
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
        """Return the time to the next beacon, with jitter: coordinators must not stay in step."""
        interval_ns = self.config.merge_interval_ns
        m = self._membership
        if m.found_early_ns and len(m.members) == 1:
            # There may be a group that was too slow to answer: find it soon, then less often.
            interval_ns = min(interval_ns, m.found_early_ns << min(self._lone_beacons, 16))
            self._lone_beacons += 1
        return interval_ns - int(self._membership.rng.random() * interval_ns / 4)

    # Every interval

    def on_timer(self, out: ReadyBuilder) -> None:
        """Conclude a merge at the deadline; send a due beacon; lead a merge if in charge."""
        m, now_ns = self._membership, out.now_ns
        if self._reply_deadline_ns is not None and self._reply_deadline_ns <= now_ns:
            self._conclude(out)
        if self._beacon_ns is None or self._beacon_ns > now_ns:
            return
        # Only the acting coordinator speaks for its view.
        if not m.is_acting or m.roster is None:
            # With identities another member may have asked in vain for a view without this one:
            # its word counts for a while, and then this coordinator acts again.
            self._beacon_ns = None if m.backing is None else now_ns + self._beacon_delay_ns()
            return
        self._beacon_ns, self._sent_ns = now_ns + self._beacon_delay_ns(), now_ns
        fresh_ns = now_ns - self.config.merge_interval_ns * _BEACON_LIFETIME // 2
        self._foreign = {
            other: seen for other, seen in self._foreign.items() if seen.at_ns >= fresh_ns
        }
        out.transmit(ANYONE, Beacon(m.me, m.roster.id, tuple(sorted(self._foreign)[:_MAX_HEARD])))
        self._start_merge(out)

    def _start_merge(self, out: ReadyBuilder) -> None:
        """Ask the other coordinators for rosters, if this coordinator leads."""
        m = self._membership
        mutual = sorted(other for other, seen in self._foreign.items() if seen.hears_me)
        # The lowest address of those that hear each other leads: without one leader two merges
        # would
        # pull the same members into different views.
        if not mutual or mutual[0] < m.me or self.blocks_views(out.now_ns) or m.pending is not None:
            return
        self._merge = m.rng.getrandbits(63)
        self._invited, self._replies = set(mutual), {}
        self._reply_deadline_ns = out.now_ns + self.config.join_confirm_timeout_ns
        assert m.me not in self._invited, "a leader does not invite itself"
        for other in mutual:
            out.transmit(other, MergeAsk(m.me, self._merge))

    # On reception

    def on_beacon(self, frame: Beacon, out: ReadyBuilder) -> None:
        """Record a foreign coordinator, and whether the coordinator hears this member."""
        assert frame.origin not in self._membership.members, "a member is not a foreign coordinator"
        kept_out = self._membership.coordinator.kept_out
        kept_out.on_heard(frame.origin.node, out.now_ns)
        if kept_out.holds(frame.origin.node, out.now_ns):
            out.drop("kept out", frame.origin, peer=frame.origin)
            return
        known, hears_me = self._foreign.get(frame.origin), self._membership.me in frame.heard
        if len(self._foreign) >= _MAX_FOREIGN and known is None:
            out.drop("crowded", frame.origin, peer=frame.origin)
            return
        self._foreign[frame.origin] = _ForeignCoordinator(out.now_ns, hears_me)
        # A new group: answer at once, because a merge needs three beacons before it begins.
        if self._beacon_ns is not None and (
            (known is None or (hears_me and not known.hears_me))
            and (frame.view.number == 1 or self._membership.view_number == 1)
        ):
            soon_ns = max(out.now_ns, self._sent_ns + self.config.join_interval_ns // 4)
            self._beacon_ns = min(self._beacon_ns, soon_ns)

    def introduce(self, frame: Beacon, out: ReadyBuilder) -> None:
        """Send our roster to a foreign coordinator that does not hear our acting coordinator.

        Where discovery knows only a few addresses, two coordinators may not reach each other. Each
        member introduces the group with a chance of two in the number of members: on average two
        members introduce the group.
        """
        m = self._membership
        assert frame.origin not in m.members, "only a stranger needs an introduction"
        assert m.roster is not None
        known = m.acting_coordinator in frame.heard
        count = self._unheard_beacons[frame.origin] = (
            0 if known else self._unheard_beacons.get(frame.origin, 0) + 1
        )
        if len(self._unheard_beacons) > _MAX_STRANGERS:
            del self._unheard_beacons[next(iter(self._unheard_beacons))]
        if count >= _MAX_UNHEARD_BEACONS and m.rng.random() * len(m.members) < 2:
            self._unheard_beacons[frame.origin] = 0
            m.view_transfer.send(frame.origin, m.roster, out)

    def on_merge_ask(self, frame: MergeAsk, out: ReadyBuilder) -> None:
        """Agree to a merge and send our roster, or refuse for now."""
        m, now_ns = self._membership, out.now_ns
        if not m.is_acting or m.roster is None or frame.origin in m.members:
            out.drop("merge", peer=frame.origin)
            return
        if self._reply_deadline_ns is not None and frame.origin < m.me:
            self._reply_deadline_ns = None  # two coordinators lead: the lower address continues
        willing = (
            not self.blocks_views(now_ns) and now_ns >= self._refuse_until_ns and m.pending is None
        )
        # A roster that may change before the merge, or that another member created, is not offered.
        willing = willing and m.coordinator.proposal is None and m.roster.id.coordinator == m.me
        out.transmit(frame.origin, MergeReply(m.me, frame.merge, m.roster.id, willing))
        if willing:
            hold_ns = 2 * self.config.join_confirm_timeout_ns
            self.agreed_to = frame.origin
            self._views_blocked_until_ns, self._refuse_until_ns = (
                now_ns + hold_ns,
                now_ns + 2 * hold_ns,
            )
            m.view_transfer.send(frame.origin, m.roster, out)

    def on_merge_reply(self, frame: MergeReply, out: ReadyBuilder) -> None:
        """Record a reply; when all have replied, conclude soon."""
        if (
            # A reply to an earlier merge, or from a coordinator that was not invited.
            frame.merge != self._merge
            or frame.origin not in self._invited
            or self._reply_deadline_ns is None
        ):
            out.drop("merge", peer=frame.origin)
            return
        # A refusal may be temporary: the next beacon invites that coordinator again.
        if frame.willing:
            self._replies[frame.origin] = frame.view
        else:
            self._invited.discard(frame.origin)
        if self._invited <= self._replies.keys():
            # The rosters may still be in flight, just behind the replies.
            self._reply_deadline_ns = min(
                self._reply_deadline_ns, out.now_ns + self.config.view_bundle_delay_ns
            )

    def _conclude(self, out: ReadyBuilder) -> None:
        """Create a roster of all members whose coordinators agreed."""
        assert self._reply_deadline_ns is not None, "a merge is concluded once"
        m = self._membership
        self._reply_deadline_ns = None
        if not m.is_acting or m.roster is None or m.pending is not None:
            return
        found = [m.view_transfer.get(view) for view in self._replies.values()]
        rosters = [roster for roster in found if roster is not None]
        # Every coordinator refused, or its roster was lost.
        if not rosters:
            return
        entries = self._merged_entries([m.roster, *rosters])
        if tuple(entries.values()) == m.roster.entries:
            return  # no member would be added: their durable names are in use here
        number = m.coordinator.next_number(*(roster.id.number for roster in rosters))
        made = Roster(
            ViewId(number, m.me), tuple(entries.values()), self._absent_entries(entries, rosters)
        )
        m.coordinator.commit_merge(made, out)

    def _merged_entries(self, rosters: list[Roster]) -> dict[int, RosterEntry]:
        """Return the merged entries: the newest incarnation of a node, each durable name once."""
        entries: dict[int, RosterEntry] = {}
        for entry in (entry for roster in rosters for entry in roster.entries):
            known = entries.get(entry.address.node)
            if known is not None and (
                known.address >= entry.address or known.address == self._membership.me
            ):
                continue
            if entry.name and any(
                other.name == entry.name for other in entries.values() if other is not known
            ):
                continue
            entries[entry.address.node] = entry
        me = self._membership.me
        assert entries[me.node].address == me, "the leader of a merge is in its view"
        return entries

    def _absent_entries(
        self, entries: dict[int, RosterEntry], rosters: list[Roster]
    ) -> tuple[RosterEntry, ...]:
        """Return the absent durable members of all rosters, without members of the merged view."""
        assert self._membership.roster is not None
        here = {entry.name for entry in entries.values()}
        # Two rosters may disagree about an address: it is present, or absent under one name.
        addresses = {entry.address for entry in entries.values()}
        absent: dict[str, RosterEntry] = {}
        for entry in (
            entry for roster in (self._membership.roster, *rosters) for entry in roster.absent
        ):
            if entry.name not in here | absent.keys() and entry.address not in addresses:
                absent[entry.name] = entry
                addresses.add(entry.address)
                assert here.isdisjoint(absent), "a durable member is present or absent, not both"
        return tuple(absent.values())

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
