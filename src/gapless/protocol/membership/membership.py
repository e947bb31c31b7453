"""Membership of one member: joining, following views, leaving.

``coordinator.py`` makes the views, ``merge.py`` joins separated groups again.

On joining: the member repeats JOIN to every address that discovery knows. If no group answers
within ``found_after``, the member founds a group. Of several members that join at once, the member
with the lowest address founds, and the others wait for its view.

On reception of a roster: a roster is accepted if it names this member and has a higher number than
the current view. The next tick installs the roster, alone, so that views and messages have one
order; then this member confirms the view to the coordinator.

On reception of ALIVE: the frame carries the sender's view, and says whether the receiver is in that
view. A sender with an older view is sent the current roster; a sender with a newer view is asked
for its roster. If a member of this view has a newer view without this member, and a member of this
view created that newer view, then this member was expelled and its incarnation is over.

On leaving: the member accepts no more sends. When every sent message is acknowledged, the member
repeats LEAVE to the coordinator until it gets a view without itself.

Every ``join_interval``: unanswered requests are sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.identity import Roster, ViewId
from gapless.protocol.events import Expelled, Left
from gapless.protocol.membership.coordinator import MAX_VIEW_NUMBER, Coordinator
from gapless.protocol.membership.merge import MergeProtocol
from gapless.protocol.membership.view_transfer import ViewTransfer
from gapless.protocol.ready import ANYONE
from gapless.wire.frames import (
    Alive,
    AskView,
    Beacon,
    Join,
    Leave,
    MergeAsk,
    MergeReply,
    NewView,
    Suspect,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address, RosterEntry
    from gapless.protocol.membership.failure_detector import FailureDetector
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.frames import MembershipFrame

NEW, JOINING, MEMBER, LEAVING, OVER = "new", "joining", "member", "leaving", "over"

_ROUNDS_FOR_JOINERS = 3
"""How many times ``found_after`` a joiner waits for another joiner with a lower address."""
_ROUNDS_FOR_GROUP = 8
"""How many times ``found_after`` a joiner waits for a group whose traffic has arrived."""
_MAX_RETRY_FACTOR = 4
"""Maximum time between two tries, in multiples of ``join_interval``."""
_MAX_UNHEARD_BEACONS = 3
"""Maximum number of beacons in a row that may omit our coordinator before we introduce it."""
_NEXT_IN_LINE = 2
"""How many members behind the coordinator answer JOIN with "there is a group"."""
_MAX_JOINERS = 4096
"""Maximum number of entries in each table that strangers can fill."""
_JOINERS_PER_STEP = 8
"""How many concurrent joiners lengthen the time between two JOINs by one more interval."""
MAX_NAMED = 8
"""Maximum number of members in one SUSPECT, so that the frame fits the smallest frame size."""


class Membership:
    """One member's part in the agreement on the members of the group."""

    def __init__(
        self, entry: RosterEntry, config: Config, rng: Random, failure_detector: FailureDetector
    ) -> None:
        self.own_entry = entry
        self.me = entry.address
        self.config = config
        self.rng = rng
        self.failure_detector = failure_detector
        self.phase = NEW
        self.roster: Roster | None = None
        self.pending: Roster | None = None
        self.members: frozenset[Address] = frozenset()
        self.leaving: set[Address] = set()
        self.moved_away: set[Address] = set()
        self.admitted = False
        self.view_transfer = ViewTransfer(self.me, config)
        self.coordinator = Coordinator(self)
        self.merging = MergeProtocol(self)
        self._concurrent_joiners: dict[Address, tuple[int, RosterEntry]] = {}
        self._foreign_views = ViewTransfer(self.me, config)
        self._leave_granted_by: Address | None = None
        self._granted_leavers: frozenset[Address] = frozenset()
        self._retry_ns: int | None = None
        self._tries = 0
        self._found_due_ns: int | None = None
        self._rounds = 0
        self._group_heard = False
        self._give_up_ns: int | None = None
        self._asked_ns: dict[Address, int] = {}
        self._unheard_beacons: dict[Address, int] = {}

    # What others ask

    @property
    def view_number(self) -> int:
        """The number of the newest roster, installed or pending; 0 before the first."""
        newest = self.pending or self.roster
        return 0 if newest is None else newest.id.number

    @property
    def acting_coordinator(self) -> Address | None:
        """The oldest member that is not dead, leaving or moved away: it creates the next view."""
        roster = self.roster
        if roster is None:
            return None
        gone = self.failure_detector.dead, self.leaving, self.moved_away
        return next(
            (p.address for p in roster.entries if not any(p.address in group for group in gone)),
            None,
        )

    @property
    def is_acting(self) -> bool:
        """Whether this member is the acting coordinator."""
        return self.phase in {MEMBER, LEAVING} and self.acting_coordinator == self.me

    @property
    def due_ns(self) -> int | None:
        """When the next retry or decision is due."""
        own = self._retry_ns, self._found_due_ns, self._give_up_ns
        all_ns = (*own, self.coordinator.due_ns, self.merging.due_ns)
        return min((at_ns for at_ns in all_ns if at_ns is not None), default=None)

    # Joining

    def join(self, out: ReadyBuilder) -> None:
        """Start joining: send JOIN, and found a group after ``found_after`` if no group answers."""
        assert self.phase == NEW, f"join() in phase {self.phase!r}"
        self.phase = JOINING
        self._found_due_ns = out.now_ns + self.config.found_after_ns
        self._send_join(out)

    def _send_join(self, out: ReadyBuilder) -> None:
        """Send JOIN to every known address, and to the coordinator if one is known."""
        # From the third try on, any member that hears JOIN relays it: the coordinator may not hear
        # us.
        join = Join(self.own_entry, self._tries >= 2)
        out.transmit(ANYONE, join)
        if self.roster is not None:
            out.transmit(self.roster.id.coordinator, join)
        self._schedule_retry(out)

    def _schedule_retry(self, out: ReadyBuilder) -> None:
        """Schedule the next try, with exponential back-off and jitter."""
        pause_ns = self.config.join_interval_ns * min(1 << min(self._tries, 8), _MAX_RETRY_FACTOR)
        # Many joiners at once: the founder already knows this joiner from an earlier JOIN, so each
        # joiner asks less often, yet at least once within found_after.
        if self.phase == JOINING:
            most_ns = max(pause_ns, self.config.found_after_ns * 3 // 4)
            pause_ns = min(
                pause_ns * (1 + len(self._concurrent_joiners) // _JOINERS_PER_STEP), most_ns
            )
        self._tries += 1
        self._retry_ns = (
            out.now_ns + pause_ns + int(self.rng.random() * self.config.join_interval_ns / 4)
        )
        assert self._retry_ns >= out.now_ns, "a retry lies in the future"

    def _found_group(self, out: ReadyBuilder) -> None:
        """Found a group, unless another joiner goes first or a group is known to exist."""
        assert self.phase == JOINING, f"a group is founded by a joiner, not in phase {self.phase!r}"
        now_ns, config = out.now_ns, self.config
        self._rounds += 1
        self._concurrent_joiners = {
            joiner: seen
            for joiner, seen in self._concurrent_joiners.items()
            if now_ns - seen[0] <= 2 * config.found_after_ns
        }
        # A group that exists gets more time: founding a second group would cost a merge and the
        # state.
        rounds = _ROUNDS_FOR_GROUP if self._group_heard else 0
        # The lowest address founds; the others wait longer, in the order of their addresses, so
        # that the
        # next joiner takes over if the lowest address has crashed.
        if before_me := sum(joiner < self.me for joiner in self._concurrent_joiners):
            rounds = max(rounds, _ROUNDS_FOR_JOINERS) + min(before_me, _ROUNDS_FOR_JOINERS)
        waits = self._rounds < rounds
        if waits:
            self._found_due_ns = now_ns + config.found_after_ns
            return
        self.admitted = True
        self.accept(Roster(ViewId(self.view_number + 1, self.me), (self.own_entry,)), out)

    # On reception

    def on_frame(self, sender: Address, frame: MembershipFrame, out: ReadyBuilder) -> None:
        """Handle a membership frame from ``sender``."""
        if self.phase in {NEW, OVER}:
            out.drop("no member", peer=sender)
            return
        if isinstance(frame, Join):
            self._on_join(sender, frame, out)
        # Only JOIN is relayed; every other frame must come from its origin.
        elif frame.origin != sender:
            out.drop("origin", frame.origin, peer=sender)
        else:
            _HANDLERS[type(frame)](self, frame, out)

    def _on_join(self, sender: Address, frame: Join, out: ReadyBuilder) -> None:
        address = frame.entry.address
        # Only members relay a JOIN: a stranger must not make others join.
        if address != sender and sender not in self.members:
            out.drop("origin", address, peer=sender)
        # Another incarnation of this node, or this member's own JOIN coming back.
        elif address.node == self.me.node:
            out.drop("own", address, peer=sender)
        elif self.phase == JOINING:
            if len(self._concurrent_joiners) < _MAX_JOINERS or address in self._concurrent_joiners:
                self._concurrent_joiners[address] = out.now_ns, frame.entry
        elif self.is_acting:
            self.view_transfer.announce_locator(frame.entry, out)
            self.coordinator.on_join(frame.entry, out)
        # A relayed JOIN is not relayed again, so that it cannot circle.
        elif address == sender and self.acting_coordinator is not None:
            self._relay_join(frame, self.acting_coordinator, out)

    def _relay_join(self, frame: Join, acting: Address, out: ReadyBuilder) -> None:
        """Relay a JOIN to the acting coordinator, and tell the joiner that a group exists.

        Only the next in line tell the joiner; otherwise, while the coordinator is dead, the joiner
        would found its own group and miss the state.
        """
        address = frame.entry.address
        assert acting != self.me, "the acting coordinator handles a JOIN itself"
        if address.node == acting.node and address > acting:
            # The coordinator's node has a newer incarnation: probe the old one without waiting for
            # suspect_after.
            self.failure_detector.probe((acting,), out)
        if frame.relay:
            out.transmit(acting, Join(frame.entry))
        assert self.roster is not None
        if any(entry.address == self.me for entry in self.roster.entries[1 : 1 + _NEXT_IN_LINE]):
            self.send_alive(address, out, rate_limited=True)

    def _on_new_view(self, frame: NewView, out: ReadyBuilder) -> None:
        """Handle a part of a roster from the view's coordinator, or from a member that relays."""
        if frame.origin != frame.view.coordinator and frame.origin not in self.members:
            if self.is_acting and frame.base is None:
                # An introduction by a member of another group: only its locators count.
                self._foreign_views.on_part(frame, out)
            else:
                out.drop("stranger", peer=frame.origin)
            return
        # Such a number would leave no room for higher ones: one bad frame would stop every later
        # view.
        if frame.view.number > MAX_VIEW_NUMBER:
            out.drop("view", peer=frame.origin)
            return
        roster = self.view_transfer.on_part(frame, out)
        if roster is not None:
            self._on_roster(roster, frame.origin, out)

    def _on_roster(self, roster: Roster, sender: Address, out: ReadyBuilder) -> None:
        """Accept a roster that is newer and names this member; otherwise answer with our view."""
        named = any(entry.address == self.me for entry in roster.entries)
        if roster.id.coordinator == self.me:
            return
        # A view that omits this member: expulsion, a granted leave, or the sender moved away.
        if not named:
            self._on_excluded(roster.id, sender, out, confirmed=False)
        elif roster.id.number > self.view_number and self._follows(roster, sender):
            if roster.id.coordinator not in self.members:
                # A merge: repeat JOIN until the new coordinator confirms that we are in its view.
                self.admitted = False
            self.accept(roster, out)
        elif self.pending is None and self.roster is not None:
            self.send_alive(sender, out)
            # A predecessor announced this view to some members only: the next view includes them
            # all.
            if self.is_acting and roster.id != self.roster.id and sender in self.members:
                self.coordinator.absorb(roster, sender, out)

    def _follows(self, roster: Roster, sender: Address) -> bool:
        """Return whether this member accepts ``roster`` as its next view.

        A member that was admitted follows its own group: a view that a member of the group created
        or relayed, or a view with the group's acting coordinator. That coordinator itself follows
        only the merge that it agreed to. Without this rule two members that found groups at the
        same time would join each other's group for ever.
        """
        maker, acting = roster.id.coordinator, self.acting_coordinator
        if not self.admitted or maker in self.members or sender in self.members:
            return True
        if acting == self.me:
            return maker == self.merging.agreed_to
        return any(entry.address == acting for entry in roster.entries)

    def accept(self, roster: Roster, out: ReadyBuilder) -> None:
        """Make ``roster`` pending: the next tick installs it."""
        assert roster.id.number > self.view_number, "numbers of views rise"
        self.view_transfer.remember(roster, out)
        self.pending = roster

    def _on_alive(self, frame: Alive, out: ReadyBuilder) -> None:
        sender, view = frame.origin, frame.view
        # A joiner learns from any ALIVE with a view that a group exists, and waits longer to found
        # one.
        if view is None or self.roster is None:
            self._group_heard = self._group_heard or view is not None
            return
        if sender in self.members:
            self._on_member(sender, view, frame.includes_receiver, out)
        elif (
            self.is_acting
            and self.coordinator.on_joiner_alive(sender, view, out)
            and not frame.reply_wanted
        ):
            return
        if frame.reply_wanted or (frame.includes_receiver and sender not in self.members):
            self.send_alive(sender, out, rate_limited=not frame.reply_wanted)

    def _on_member(
        self, sender: Address, view: ViewId, includes_me: bool, out: ReadyBuilder
    ) -> None:
        """Compare the view of ``sender``, a member of this view, with the current view."""
        assert self.roster is not None
        if view == self.roster.id:
            # Only the view's coordinator knows that the view is decided: other members may be new
            # themselves.
            self.admitted = self.admitted or (includes_me and sender == view.coordinator)
            self.coordinator.on_confirmed(sender, out)
        # The sender installed the view that our next tick installs.
        elif self.pending is not None and view == self.pending.id:
            self.coordinator.on_confirmed(sender, out)
        elif view.number < self.roster.id.number:
            if self.is_acting:
                self.coordinator.on_member_behind(sender, out, excluded=not includes_me)
        elif includes_me:
            self._ask_view(sender, out)
        else:
            self._on_excluded(view, sender, out)

    def _on_excluded(
        self, view: ViewId, sender: Address, out: ReadyBuilder, *, confirmed: bool = True
    ) -> None:
        """Handle evidence that ``sender`` is in a view without this member.

        ``confirmed`` says that the sender itself reported its view, with ALIVE.
        """
        if self.roster is None or view.number < self.view_number or sender not in self.members:
            return
        if self.phase == LEAVING and self.me in self.leaving:
            self._on_leave_granted(view, out, confirmed=confirmed and sender == view.coordinator)
        elif not self.admitted:
            return  # a joiner that is not admitted cannot be expelled
        elif view.coordinator in self.members:
            self.terminate(Expelled(view), out)
        else:
            # A stranger created that view: the sender left for another group, we were not expelled.
            self.moved_away.add(sender)
            self.coordinator.schedule_decision(out)

    def _on_leave_granted(self, view: ViewId, out: ReadyBuilder, *, confirmed: bool) -> None:
        """End this incarnation when every member has installed the view without this member.

        Until then some members may still need acks from this member. If only the view has arrived,
        ask its coordinator soon.
        """
        assert self.leave_requested, "a leave is granted after LEAVE was sent"
        if confirmed:
            self.terminate(Left(True), out)
            return
        self._leave_granted_by = view.coordinator
        # Members of the view without us send us no heartbeats: do not suspect them.
        self.failure_detector.end()
        soon_ns = out.now_ns + self.config.view_bundle_delay_ns
        self._retry_ns = soon_ns if self._retry_ns is None else min(self._retry_ns, soon_ns)

    def _ask_view(self, peer: Address, out: ReadyBuilder) -> None:
        if (
            out.now_ns - self._asked_ns.get(peer, -self.config.join_interval_ns)
            >= self.config.join_interval_ns
        ):
            self._asked_ns[peer] = out.now_ns
            out.transmit(peer, AskView(self.me))

    def _on_ask_view(self, frame: AskView, out: ReadyBuilder) -> None:
        if self.roster is not None:
            self.view_transfer.send(frame.origin, self.pending or self.roster, out)

    def _on_suspect(self, frame: Suspect, out: ReadyBuilder) -> None:
        if frame.origin not in self.members:
            out.drop("stranger", peer=frame.origin)
        elif frame.slow_receivers:
            self.coordinator.expel(frame.members, out)
        else:
            self.failure_detector.probe(frame.members, out)

    def _on_leave(self, frame: Leave, out: ReadyBuilder) -> None:
        if frame.origin in self.members:
            self._note_leaving(frame.origin, out)
            self.coordinator.schedule_decision(out)
        # A former member asks again: all members have the view without it, so it may end.
        elif self.is_acting and self.pending is None and not self.coordinator.unconfirmed:
            self.send_alive(frame.origin, out)

    def _note_leaving(self, member: Address, out: ReadyBuilder) -> None:
        """Record that ``member`` leaves; if this member leaves too, neither waits for the other."""
        assert member in self.members, f"{member} cannot leave: it is not a member"
        acting, known = self.acting_coordinator, member in self.leaving
        self.leaving.add(member)
        if self.leave_requested and not known:
            out.transmit(member, Leave(self.me))
            if self.acting_coordinator != acting:
                self.request_leave(out)

    def _on_beacon(self, frame: Beacon, out: ReadyBuilder) -> None:
        if self.roster is None:
            self._group_heard = True
        elif frame.origin in self.members:
            if frame.view.number >= self.roster.id.number and frame.view != self.roster.id:
                self._ask_view(frame.origin, out)
            elif frame.view != self.roster.id and self.is_acting:
                self.coordinator.on_member_behind(frame.origin, out)
        elif self.is_acting:
            self.merging.on_beacon(frame, out)
        else:
            self._introduce(frame, out)

    def _introduce(self, frame: Beacon, out: ReadyBuilder) -> None:
        """Send our roster to a foreign coordinator that does not hear our acting coordinator.

        Where discovery knows only a few addresses, two coordinators may not reach each other. Each
        member introduces its group with a chance of two in the number of members, so that one or
        two of them do.
        """
        assert frame.origin not in self.members, "only a stranger needs an introduction"
        assert self.roster is not None
        known = self.acting_coordinator in frame.heard
        count = self._unheard_beacons[frame.origin] = (
            0 if known else self._unheard_beacons.get(frame.origin, 0) + 1
        )
        if len(self._unheard_beacons) > _MAX_JOINERS:
            del self._unheard_beacons[next(iter(self._unheard_beacons))]
        if count >= _MAX_UNHEARD_BEACONS and self.rng.random() * len(self.members) < 2:
            self._unheard_beacons[frame.origin] = 0
            self.view_transfer.send(frame.origin, self.roster, out)

    def send_alive(self, to: Address, out: ReadyBuilder, *, rate_limited: bool = False) -> None:
        """Send ALIVE with the current view, and whether ``to`` is in that view.

        ``rate_limited`` sends at most one ALIVE to each address per ``heartbeat_interval``.
        """
        if to in self._granted_leavers and self.coordinator.unconfirmed:
            # ALIVE would end the leaver's incarnation while members without the newest view still
            # wait for its acks.
            return
        if rate_limited:
            last_ns = self._asked_ns.get(to, -self.config.heartbeat_interval_ns)
            if out.now_ns - last_ns < self.config.heartbeat_interval_ns:
                return
            self._asked_ns[to] = out.now_ns
            if len(self._asked_ns) > _MAX_JOINERS:
                del self._asked_ns[next(iter(self._asked_ns))]
        view = None if self.roster is None else self.roster.id
        out.transmit(to, Alive(self.me, view, to in self.members))

    # On a view

    def on_installed(self, out: ReadyBuilder) -> None:
        """Make the pending roster the current one, and confirm it to its coordinator."""
        roster = self.pending
        assert roster is not None
        self.roster, self.pending = roster, None
        members = [entry.address for entry in roster.entries]
        before, self.members = self.members, frozenset(members)
        is_ours = roster.id.coordinator == self.me
        self._granted_leavers = (
            frozenset(self.leaving - self.members - {self.me}) if is_ours else frozenset()
        )
        self.leaving.intersection_update(members)
        self.moved_away.clear()
        self._asked_ns.clear()
        self._unheard_beacons.clear()
        self._found_due_ns = None
        joiners: tuple[RosterEntry, ...] = ()
        if self.phase == JOINING:
            self.phase = MEMBER
            self._tries = 0
            joiners, self._concurrent_joiners = (
                tuple(entry for _, entry in self._concurrent_joiners.values()),
                {},
            )
        if self.admitted and self.phase == MEMBER:
            self._retry_ns = None
        # Not admitted yet: the coordinator's confirmation may be lost, so repeat JOIN.
        elif self.phase == MEMBER and self._retry_ns is None:
            self._tries = 0
            self._schedule_retry(out)
        self.failure_detector.install(roster.id, members, out.now_ns)
        self.view_transfer.retain_locators(members)
        self.coordinator.install(before, out)
        self.merging.install(out)
        if roster.id.coordinator != self.me:
            self.send_alive(roster.id.coordinator, out)
            return
        # The founder admits the joiners that it heard while it was joining itself.
        for entry in joiners:
            self.view_transfer.announce_locator(entry, out)
            self.coordinator.on_join(entry, out)

    # Leaving

    def leave(self, out: ReadyBuilder) -> None:
        """Start leaving; :meth:`request_leave` follows when every sent message is acknowledged."""
        if self.phase in {NEW, JOINING}:
            self.terminate(Left(True), out)
        elif self.phase == MEMBER:
            self.phase = LEAVING
            self._retry_ns = None
            self._give_up_ns = out.now_ns + self.config.leave_timeout_ns

    @property
    def leave_requested(self) -> bool:
        """Whether this member has asked for a view without itself."""
        return self.me in self.leaving

    def request_leave(self, out: ReadyBuilder) -> None:
        """Ask the acting coordinator for a view without this member; end if there is none."""
        assert self.phase == LEAVING, f"LEAVE in phase {self.phase!r}"
        self.leaving.add(self.me)
        acting = self._leave_granted_by or self.acting_coordinator
        if acting is None:
            # All members are leaving or dead: the other leavers need not wait for this one.
            out.transmit(None, Leave(self.me))
            self.terminate(Left(True), out)
            return
        out.transmit(acting, Leave(self.me))
        self._schedule_retry(out)

    def terminate(self, event: Expelled | Left, out: ReadyBuilder) -> None:
        """End this incarnation, with ``event``."""
        # Leavers that wait for this member's permission get it now, or they would wait for the
        # timeout.
        if isinstance(event, Left) and not self.coordinator.unconfirmed:
            for member in sorted(self._granted_leavers):
                self.send_alive(member, out)
        self.phase = OVER
        self.pending = None
        self._retry_ns = self._found_due_ns = self._give_up_ns = None
        self.coordinator.stop()
        self.merging.stop()
        self.failure_detector.end()
        out.emit(event)
        assert self.due_ns is None, "an incarnation that is over has no timer"

    # Every interval

    def on_timer(self, out: ReadyBuilder) -> None:
        """Run every retry, decision and timeout that is due."""
        now_ns = out.now_ns
        if self._give_up_ns is not None and self._give_up_ns <= now_ns:
            if self.leave_requested:
                self.terminate(Left(False), out)
                return
            # Leave without the missing acks; the view change gets a leave_timeout of its own.
            self._give_up_ns = now_ns + self.config.leave_timeout_ns
            self.request_leave(out)
        if self._found_due_ns is not None and self._found_due_ns <= now_ns:
            self._found_due_ns = None
            self._found_group(out)
        if self._retry_ns is not None and self._retry_ns <= now_ns:
            self._retry_ns = None
            self._try_again(out)
        if self.phase != OVER:
            self.coordinator.on_timer(out)
            self.merging.on_timer(out)

    def _try_again(self, out: ReadyBuilder) -> None:
        if self.phase == LEAVING:
            self.request_leave(out)
        elif self.phase == JOINING or not self.admitted:
            self._send_join(out)

    def report_dead(self, out: ReadyBuilder) -> None:
        """Report dead and moved members to the acting coordinator, or decide as the coordinator."""
        gone = sorted((self.failure_detector.dead | self.moved_away) & self.members)
        acting = self.acting_coordinator
        if not gone or self.roster is None:
            return
        if acting == self.me:
            self.coordinator.schedule_decision(out)
        elif acting is not None:
            out.transmit(acting, Suspect(self.me, tuple(gone[:MAX_NAMED])))
            # The coordinator may be dead too, and this member need not be among its watchers.
            self.failure_detector.probe((acting,), out, suspected=False)

    def check_invariants(self) -> None:
        """Raise AssertionError if the phase contradicts the roster or the timers."""
        self.failure_detector.check_invariants()
        self.view_transfer.check_invariants()
        self._foreign_views.check_invariants()
        self.coordinator.check_invariants()
        self.merging.check_invariants()
        assert self.phase in {NEW, JOINING, MEMBER, LEAVING, OVER}, f"the phase is {self.phase!r}"
        entries = () if self.roster is None else self.roster.entries
        assert self.members == {entry.address for entry in entries}, "members follow the roster"
        assert self.leaving <= self.members | {self.me}, "only members leave"
        assert self.moved_away <= self.members - {self.me}, "only other members move away"
        assert self._granted_leavers.isdisjoint(self.members), "who may leave is out of the view"
        if self.pending is not None:
            assert self.roster is None or self.pending.id.number > self.roster.id.number, (
                "a pending view is newer than the installed one"
            )
            assert any(entry.address == self.me for entry in self.pending.entries), (
                "a pending view names this member"
            )
        self._check_phase()

    def _check_phase(self) -> None:
        if self.phase == JOINING:
            assert self.roster is None, "a joiner has no view"
            assert self._retry_ns is not None, "a joiner repeats its join request"
            assert self.pending is not None or self._found_due_ns is not None, (
                "a joiner founds a group at last"
            )
        elif self.phase in {MEMBER, LEAVING}:
            assert self.me in self.members, "a member is in its own view"
            assert not self._concurrent_joiners, "a member has no joiners"
            assert self.phase == MEMBER or self._give_up_ns is not None, "leaving has a time limit"
            assert self.admitted or self.pending is not None or self._retry_ns is not None, (
                "a member that is not admitted repeats its join request"
            )
        elif self.phase == OVER:
            assert self.pending is None, "an incarnation that is over installs no view"
            assert self.due_ns is None, "an incarnation that is over has no timer"


_HANDLERS: dict[type, Callable[..., None]] = {
    Leave: Membership._on_leave,
    Alive: Membership._on_alive,
    Suspect: Membership._on_suspect,
    NewView: Membership._on_new_view,
    AskView: Membership._on_ask_view,
    Beacon: Membership._on_beacon,
    MergeAsk: lambda membership, frame, out: membership.merging.on_merge_ask(frame, out),
    MergeReply: lambda membership, frame, out: membership.merging.on_merge_reply(frame, out),
}
