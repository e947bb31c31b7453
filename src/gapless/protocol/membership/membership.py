"""Who is in the group: joining, following views, leaving. Making views is coordinator.py, mending groups merging.py.

On joining: the new member asks whoever may be there to be taken in, again and again. If nobody is
there for ``found_after``, it founds the group; of several that look at once the one with the lowest
address does, and the others wait for it.

On reception of a roster: it is accepted if it names this member and its number is higher than that
of the present view. It is installed by the next tick, alone, so that views and messages come in one
order; then the coordinator is told.

On reception of a sign of life: it says in which view its sender is, and whether this member is in
that view too. Who is behind gets the present roster, who is ahead is asked for its own. If a member
of this view has gone on without this member, in a view made by a member of this view, then this
member was expelled, and its life is over.

On leaving: nothing more is taken; when everything sent is acknowledged the coordinator is asked,
again and again, for a view without this member.

Every ``join_interval``: what was not answered is tried again.
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

_ROUNDS_FOR_RIVALS = 3
"""So many times ``found_after`` one waits for another that looks for a group too."""
_ROUNDS_FOR_GROUP = 8
"""So many times ``found_after`` one waits for a group that was heard of."""
_MAX_RETRY_FACTOR = 4
"""Tries are at most so many times ``join_interval`` apart."""
_MAX_UNHEARD_BEACONS = 3
"""So many beacons of one that does not hear this member's coordinator are let pass."""
_NEXT_IN_LINE = 2
"""So many members behind the coordinator tell one that wants in that there is a group."""
_MAX_RIVALS = 4096
_RIVALS_HEARD = 8
MAX_NAMED = 8
"""So many members are named in one complaint: it must fit the smallest frame."""


class Membership:
    """One member's part in the agreement on who is in the group."""

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
        """The number of the newest view that has come; 0 if there is none."""
        newest = self.pending or self.roster
        return 0 if newest is None else newest.id.number

    @property
    def acting_coordinator(self) -> Address | None:
        """Who makes views, as far as this member knows: the oldest that lives, is here and stays."""
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
        """Whether this member makes the views."""
        return self.phase in {MEMBER, LEAVING} and self.acting_coordinator == self.me

    @property
    def due_ns(self) -> int | None:
        """When something is to be tried again, or decided."""
        own = self._retry_ns, self._found_due_ns, self._give_up_ns
        all_ns = (*own, self.coordinator.due_ns, self.merging.due_ns)
        return min((at_ns for at_ns in all_ns if at_ns is not None), default=None)

    # Joining

    def join(self, out: ReadyBuilder) -> None:
        """Begin to look for a group."""
        self.phase = JOINING
        self._found_due_ns = out.now_ns + self.config.found_after_ns
        self._send_join(out)

    def _send_join(self, out: ReadyBuilder) -> None:
        """Ask to be taken in: whoever may be there, and the coordinator if one is known."""
        join = Join(self.own_entry, self._tries >= 2)
        out.transmit(ANYONE, join)
        if self.roster is not None:
            out.transmit(self.roster.id.coordinator, join)
        self._schedule_retry(out)

    def _schedule_retry(self, out: ReadyBuilder) -> None:
        """Plan the next try: a little later each time, and not at the same moment as everybody else's."""
        pause_ns = self.config.join_interval_ns * min(1 << min(self._tries, 8), _MAX_RETRY_FACTOR)
        if self.phase == JOINING:  # a crowd need not shout: whoever founds has heard it
            most_ns = max(pause_ns, self.config.found_after_ns * 3 // 4)
            pause_ns = min(pause_ns * (1 + len(self._concurrent_joiners) // _RIVALS_HEARD), most_ns)
        self._tries += 1
        self._retry_ns = (
            out.now_ns + pause_ns + int(self.rng.random() * self.config.join_interval_ns / 4)
        )

    def _found_group(self, out: ReadyBuilder) -> None:
        """Found a group, unless somebody else is about to or one was heard of."""
        now_ns, config = out.now_ns, self.config
        self._rounds += 1
        self._concurrent_joiners = {
            rival: seen
            for rival, seen in self._concurrent_joiners.items()
            if now_ns - seen[0] <= 2 * config.found_after_ns
        }
        rounds = _ROUNDS_FOR_GROUP if self._group_heard else 0
        if before_me := sum(rival < self.me for rival in self._concurrent_joiners):
            rounds = max(rounds, _ROUNDS_FOR_RIVALS) + min(before_me, _ROUNDS_FOR_RIVALS)
        waits = self._rounds < rounds
        if waits:
            self._found_due_ns = now_ns + config.found_after_ns
            return
        self.admitted = True
        self.accept(Roster(ViewId(self.view_number + 1, self.me), (self.own_entry,)), out)

    # On reception

    def on_frame(self, sender: Address, frame: MembershipFrame, out: ReadyBuilder) -> None:
        """Let a frame have its effect."""
        if self.phase in {NEW, OVER}:
            out.drop("no member", peer=sender)
            return
        if isinstance(frame, Join):
            self._on_join(sender, frame, out)
        elif frame.origin != sender:
            out.drop("origin", frame.origin, peer=sender)
        else:
            _HANDLERS[type(frame)](self, frame, out)

    def _on_join(self, sender: Address, frame: Join, out: ReadyBuilder) -> None:
        address = frame.entry.address
        if address != sender and sender not in self.members:
            out.drop("origin", address, peer=sender)
        elif address.node == self.me.node:
            out.drop("own", address, peer=sender)
        elif self.phase == JOINING:
            if len(self._concurrent_joiners) < _MAX_RIVALS or address in self._concurrent_joiners:
                self._concurrent_joiners[address] = out.now_ns, frame.entry
        elif self.is_acting:
            self.view_transfer.announce_locator(frame.entry, out)
            self.coordinator.on_join(frame.entry, out)
        elif address == sender and self.acting_coordinator is not None:
            self._relay_join(frame, self.acting_coordinator, out)

    def _relay_join(self, frame: Join, acting: Address, out: ReadyBuilder) -> None:
        """Hand a wish to join on to the acting coordinator, and see to it that nobody waits for one that is dead.

        The next in line say that there is a group, or the new member would found its own and miss
        the state.
        """
        address = frame.entry.address
        if address.node == acting.node and address > acting:
            self.failure_detector.probe(
                (acting,), out
            )  # its next life is here: it need not be silent first
        if frame.relay:
            out.transmit(acting, Join(frame.entry))
        assert self.roster is not None
        if any(place.address == self.me for place in self.roster.entries[1 : 1 + _NEXT_IN_LINE]):
            self.send_alive(address, out, rate_limited=True)

    def _on_new_view(self, frame: NewView, out: ReadyBuilder) -> None:
        """Take a part of a roster in: from the one that made the view, or from a member that hands it on."""
        if frame.origin != frame.view.coordinator and frame.origin not in self.members:
            if self.is_acting and frame.base is None:
                self._foreign_views.on_part(
                    frame, out
                )  # an introduction: it only says where others are reached
            else:
                out.drop("stranger", peer=frame.origin)
            return
        if frame.view.number > MAX_VIEW_NUMBER:
            out.drop("view", peer=frame.origin)
            return
        roster = self.view_transfer.on_part(frame, out)
        if roster is not None:
            self._on_roster(roster, frame.origin, out)

    def _on_roster(self, roster: Roster, sender: Address, out: ReadyBuilder) -> None:
        """Accept a roster that is newer and names this member; otherwise say, or understand, how things stand."""
        named = any(place.address == self.me for place in roster.entries)
        if roster.id.coordinator == self.me:
            return
        if not named:
            self._on_excluded(roster.id, sender, out, confirmed=False)
        elif roster.id.number > self.view_number and self._follows(roster, sender):
            if roster.id.coordinator not in self.members:
                self.admitted = False  # until somebody there says that this one is in
            self.accept(roster, out)
        elif self.pending is None and self.roster is not None:
            self.send_alive(sender, out)
            if self.is_acting and roster.id != self.roster.id and sender in self.members:
                self.coordinator.absorb(roster, sender, out)

    def _follows(self, roster: Roster, sender: Address) -> bool:
        """Return whether this member goes where ``roster`` says.

        One that belongs to a group goes with that: into a view made by one of it, or handed on by
        one of it, into one that names its coordinator, or, as the coordinator, into the merge that
        it has agreed to. Otherwise two that found a group at the same time would each join the
        other's, for ever.
        """
        maker, acting = roster.id.coordinator, self.acting_coordinator
        if not self.admitted or maker in self.members or sender in self.members:
            return True
        if acting == self.me:
            return maker == self.merging.agreed_to
        return any(place.address == acting for place in roster.entries)

    def accept(self, roster: Roster, out: ReadyBuilder) -> None:
        """Let the next tick install ``roster``."""
        self.view_transfer.remember(roster, out)
        self.pending = roster

    def _on_alive(self, frame: Alive, out: ReadyBuilder) -> None:
        sender, view = frame.origin, frame.view
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

    def _on_member(self, sender: Address, view: ViewId, you: bool, out: ReadyBuilder) -> None:
        """Compare views with one that is in this view."""
        assert self.roster is not None
        if view == self.roster.id:
            # Only who made the view knows that it is decided: others may be new in it themselves.
            self.admitted = self.admitted or (you and sender == view.coordinator)
            self.coordinator.on_confirmed(sender, out)
        elif self.pending is not None and view == self.pending.id:
            self.coordinator.on_confirmed(sender, out)
        elif view.number < self.roster.id.number:
            if self.is_acting:
                self.coordinator.on_member_behind(sender, out, excluded=not you)
        elif you:
            self._ask_view(sender, out)
        else:
            self._on_excluded(view, sender, out)

    def _on_excluded(
        self, view: ViewId, sender: Address, out: ReadyBuilder, *, confirmed: bool = True
    ) -> None:
        """Understand that ``sender`` is in a view without this member: expelled, gone, or the other one has moved."""
        if self.roster is None or view.number < self.view_number or sender not in self.members:
            return
        if self.phase == LEAVING and self.me in self.leaving:
            self._on_leave_granted(view, out, confirmed=confirmed and sender == view.coordinator)
        elif not self.admitted:
            return  # this one is still asking to be let in
        elif view.coordinator in self.members:
            self.terminate(Expelled(view), out)
        else:
            self.moved_away.add(sender)
            self.coordinator.schedule_decision(out)

    def _on_leave_granted(self, view: ViewId, out: ReadyBuilder, *, confirmed: bool) -> None:
        """Go when the coordinator says so, which is when all have the view without this one.

        Until then some may wait for its acks. If only the view has come, the coordinator is asked
        soon.
        """
        if confirmed:
            self.terminate(Left(True), out)
            return
        self._leave_granted_by = view.coordinator
        self.failure_detector.end()  # those of the view without this one do not show it any more that they live
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
        elif self.is_acting and self.pending is None and not self.coordinator.unconfirmed:
            self.send_alive(frame.origin, out)

    def _note_leaving(self, member: Address, out: ReadyBuilder) -> None:
        """Take note of one that leaves; if this one leaves too, neither waits for the other."""
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
        """Tell a foreign coordinator who is here, if it goes on without hearing the one that this member follows.

        Where members reach each other only through a few known places, coordinators may not know
        where the other is. One or two that do so are enough.
        """
        assert self.roster is not None
        known = self.acting_coordinator in frame.heard
        count = self._unheard_beacons[frame.origin] = (
            0 if known else self._unheard_beacons.get(frame.origin, 0) + 1
        )
        if len(self._unheard_beacons) > _MAX_RIVALS:
            del self._unheard_beacons[next(iter(self._unheard_beacons))]
        if count >= _MAX_UNHEARD_BEACONS and self.rng.random() * len(self.members) < 2:
            self._unheard_beacons[frame.origin] = 0
            self.view_transfer.send(frame.origin, self.roster, out)

    def send_alive(self, to: Address, out: ReadyBuilder, *, rate_limited: bool = False) -> None:
        """Say in which view this member is, and whether ``to`` is in it; ``rate_limited``: only now and then."""
        if to in self._granted_leavers and self.coordinator.unconfirmed:
            return  # some may still wait for its acks: it is to stay until all have the view without it
        if rate_limited:
            last_ns = self._asked_ns.get(to, -self.config.heartbeat_interval_ns)
            if out.now_ns - last_ns < self.config.heartbeat_interval_ns:
                return
            self._asked_ns[to] = out.now_ns
            if len(self._asked_ns) > _MAX_RIVALS:
                del self._asked_ns[next(iter(self._asked_ns))]
        view = None if self.roster is None else self.roster.id
        out.transmit(to, Alive(self.me, view, to in self.members))

    # On a view

    def on_installed(self, out: ReadyBuilder) -> None:
        """Take note that the pending roster is the present one; tell its coordinator."""
        roster = self.pending
        assert roster is not None
        self.roster, self.pending = roster, None
        members = [place.address for place in roster.entries]
        before, self.members = self.members, frozenset(members)
        mine = roster.id.coordinator == self.me
        self._granted_leavers = (
            frozenset(self.leaving - self.members - {self.me}) if mine else frozenset()
        )
        self.leaving.intersection_update(members)
        self.moved_away.clear()
        self._asked_ns.clear()
        self._unheard_beacons.clear()
        self._found_due_ns = None
        rivals: tuple[RosterEntry, ...] = ()
        if self.phase == JOINING:
            self.phase = MEMBER
            self._tries = 0
            rivals, self._concurrent_joiners = (
                tuple(place for _, place in self._concurrent_joiners.values()),
                {},
            )
        if self.admitted and self.phase == MEMBER:
            self._retry_ns = None
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
        for place in rivals:  # they have asked whoever would found the group
            self.view_transfer.announce_locator(place, out)
            self.coordinator.on_join(place, out)

    # Leaving

    def leave(self, out: ReadyBuilder) -> None:
        """Begin to leave; :meth:`ask_to_leave` follows when everything is acknowledged."""
        if self.phase in {NEW, JOINING}:
            self.terminate(Left(True), out)
        elif self.phase == MEMBER:
            self.phase = LEAVING
            self._retry_ns = None
            self._give_up_ns = out.now_ns + self.config.leave_timeout_ns

    @property
    def leave_requested(self) -> bool:
        """Whether the group has been asked for a view without this member."""
        return self.me in self.leaving

    def request_leave(self, out: ReadyBuilder) -> None:
        """Ask for a view without this member; one that is alone just goes."""
        self.leaving.add(self.me)
        acting = self._leave_granted_by or self.acting_coordinator
        if acting is None:
            out.transmit(
                None, Leave(self.me)
            )  # the others that leave too have one less to wait for
            self.terminate(Left(True), out)
            return
        out.transmit(acting, Leave(self.me))
        self._schedule_retry(out)

    def terminate(self, event: Expelled | Left, out: ReadyBuilder) -> None:
        """End this life; those that wait for this one's word that they may go are given it."""
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

    # Every interval

    def on_timer(self, out: ReadyBuilder) -> None:
        """Try again, decide, or give up what is due."""
        now_ns = out.now_ns
        if self._give_up_ns is not None and self._give_up_ns <= now_ns:
            if self.leave_requested:
                self.terminate(Left(False), out)
                return
            self._give_up_ns = (
                now_ns + self.config.leave_timeout_ns
            )  # what is not acknowledged by now is given up
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
        """Tell the acting coordinator who is believed dead or has moved on, if that is somebody else."""
        gone = sorted((self.failure_detector.dead | self.moved_away) & self.members)
        acting = self.acting_coordinator
        if not gone or self.roster is None:
            return
        if acting == self.me:
            self.coordinator.schedule_decision(out)
        elif acting is not None:
            out.transmit(acting, Suspect(self.me, tuple(gone[:MAX_NAMED])))
            self.failure_detector.probe(
                (acting,), out, suspected=False
            )  # it may be gone too, and nobody here watches it

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
            assert not self._concurrent_joiners, "a member has no rivals"
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
