"""Membership of one member: joining, following views, leaving.

``coordinator.py`` makes the views, ``merge.py`` joins separated groups again.

On joining: the member repeats JOIN to every address known from discovery. If no group answers
within ``found_after``, the member founds a group. Where an answer takes milliseconds, a member
founds early; should there be a group nevertheless, quick beacons merge the two. If several members
join at once, the member with the lowest address founds, and the others wait for the founder's view.

On reception of JOIN with the durable name of this member: the member refuses the joiner with
NAME_TAKEN, and the joiner's attempt ends. Only the holder of a name refuses, because an answering
holder is alive; the name of a dead member becomes free with the next view.

On reception of a roster: a roster is accepted if this member is in the roster and the number is
higher than the number of the current view. The next tick installs the roster, alone, so that views
and messages have one order; then this member confirms the view to the coordinator.

On reception of ALIVE: the frame carries the sender's view, and whether the receiver is in the view.
A sender with an older view is sent the current roster; a sender with a newer view is asked for the
newer roster. If a member of this view has a newer view without this member, and a member of this
view created the newer view, then this member was expelled and the incarnation is over. A member
without an admission cannot know whether the member's view was ever decided: the answer to JOIN says
whether the member was expelled.

On leaving: the member accepts no more sends. When every sent message is acknowledged, the member
repeats LEAVE to the coordinator until a view without the member arrives.

Every ``join_interval``: unanswered requests are sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.identity import Roster, ViewId
from gapless.protocol.events import Expelled, Left, NameInUse, Suspected
from gapless.protocol.membership.answer_limiter import AnswerLimiter
from gapless.protocol.membership.coordinator import (
    MAX_NUMBER_STEP,
    MAX_VIEW_NUMBER,
    Coordinator,
)
from gapless.protocol.membership.hearing import HearingCheck
from gapless.protocol.membership.merge import MergeProtocol
from gapless.protocol.membership.view_backing import ViewBacking
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
    NameTaken,
    NewView,
    Signature,
    Suspect,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address, RosterEntry
    from gapless.protocol.early_budget import EarlyBudget
    from gapless.protocol.membership.failure_detector import FailureDetector
    from gapless.protocol.membership.signatures import SignatureGuard
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.wire.frames import MembershipFrame

NEW, JOINING, MEMBER, LEAVING, OVER = "new", "joining", "member", "leaving", "over"

_ROUNDS_FOR_JOINERS = 3
"""How many times ``found_after`` a joiner waits for another joiner with a lower address."""
_ROUNDS_FOR_GROUP = 8
"""How many times ``found_after`` a joiner waits for a group whose traffic has arrived."""
_EARLY_TRIES = 4
"""How many JOINs a member sends before it founds early."""
_EARLY_ANSWERS = 32
"""How many joiners an early founder answers directly; beyond, its repeated JOIN is enough."""
_MAX_RETRY_FACTOR = 4
"""Maximum time between two tries, in multiples of ``join_interval``."""
_NEXT_IN_LINE = 2
"""How many members behind the coordinator answer JOIN with "there is a group"."""
_MAX_JOINERS = 4096
"""Maximum number of entries in each table that strangers can fill."""
_MAX_ROSTERS = 256
"""Maximum number of rosters that are sent on request in one ``join_interval``."""
_MAX_ROSTERS_EACH = 16
"""How many of them one address may get: its requests may also reach this member by relays."""
_MAX_ANSWERS = 512
"""Maximum number of ALIVE to strangers, and of relayed JOINs, in one ``heartbeat_interval``."""
_JOINERS_PER_STEP = 8
"""How many concurrent joiners lengthen the time between two JOINs by one more interval."""
_GRANT_LIFETIME = 20
"""How long a granted leave is remembered, in units of ``join_confirm_timeout``."""
_GRANT_PATIENCE = 4
"""How long a leaver asks the coordinator that granted its leave, in ``join_confirm_timeout``."""
MAX_NAMED = 8
"""Maximum number of members in one SUSPECT, so that the frame fits the smallest frame size."""


class Membership:
    """The part of a member in the agreement on views."""

    def __init__(
        self,
        entry: RosterEntry,
        config: Config,
        rng: Random,
        failure_detector: FailureDetector,
        budget: EarlyBudget | None = None,
        guarded: tuple[SignatureGuard, ReadyBuilder] | None = None,
    ) -> None:
        self.guard = guard = None if guarded is None else guarded[0]
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
        self.view_transfer = ViewTransfer(self.me, config, budget, guard)
        self.coordinator = Coordinator(self)
        self.merging = MergeProtocol(self)
        self.hearing = HearingCheck(self)
        self.backing = None if guarded is None else ViewBacking(self, *guarded)
        self.roster_answers = AnswerLimiter(
            config.join_interval_ns, _MAX_ROSTERS, _MAX_ROSTERS_EACH
        )
        self._alive_answers = AnswerLimiter(
            config.heartbeat_interval_ns, _MAX_ANSWERS, _MAX_ANSWERS
        )
        self._relays = AnswerLimiter(config.heartbeat_interval_ns, _MAX_ANSWERS, _MAX_ANSWERS)
        self._concurrent_joiners: dict[Address, tuple[int, RosterEntry]] = {}
        self._foreign_views = ViewTransfer(self.me, config, budget, guard)
        self._leave_granted_by: Address | None = None
        self._granted_leavers: dict[Address, int] = {}
        self._retry_ns: int | None = None
        self._tries = 0
        self._found_due_ns: int | None = None
        self._rounds = 0
        self.found_early_ns: int | None = None
        self._group_heard = False
        self._give_up_ns: int | None = None
        self._asked_ns: dict[Address, int] = {}
        self._reported_ns = -config.heartbeat_interval_ns
        self._verdict_ns: dict[Address, int] = {}
        self._ask_maker_ns: int | None = None

    # What others ask

    @property
    def view_number(self) -> int:
        """The number of the newest roster, installed or pending; 0 before the first."""
        newest = self.pending or self.roster
        return 0 if newest is None else newest.id.number

    @property
    def acting_coordinator(self) -> Address | None:
        """The oldest member not dead, leaving or moved away: the creator of the next view."""
        roster = self.roster
        if roster is None:
            return None
        if self.backing is not None:
            is_gone = self.backing.is_gone
            return next((p.address for p in roster.entries if not is_gone(p.address)), None)
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
        own = self._retry_ns, self._found_due_ns, self._give_up_ns, self._ask_maker_ns
        backing_ns = None if self.backing is None else self.backing.due_ns
        machines = self.coordinator.due_ns, self.merging.due_ns, self.hearing.due_ns, backing_ns
        all_ns = (*own, *machines)
        return min((at_ns for at_ns in all_ns if at_ns is not None), default=None)

    # Joining

    def join(self, out: ReadyBuilder, found_early_ns: int | None = None) -> None:
        """Start joining: send JOIN, and found a group if no group answers.

        A member founds after ``found_after``, or after ``found_early_ns`` if given.
        """
        assert self.phase == NEW, f"join() in phase {self.phase!r}"
        self.phase = JOINING
        self.found_early_ns = found_early_ns
        self._found_due_ns = out.now_ns + (found_early_ns or self.config.found_after_ns)
        self._send_join(out)

    def _send_join(self, out: ReadyBuilder) -> None:
        """Send JOIN to every known address, and to the coordinator if known."""
        # From the third try on, members that hear JOIN relay it: the coordinator may not hear us.
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
        if self.phase == JOINING and self.found_early_ns and self._tries < _EARLY_TRIES:
            pause_ns = min(pause_ns, self.found_early_ns // _EARLY_TRIES)
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
        # A group that exists gets more time: a second group would cost a merge and the state.
        rounds = _ROUNDS_FOR_GROUP if self._group_heard else 0
        # The lowest address founds; the others wait longer, in the order of their addresses, so
        # that the next joiner takes over if the lowest address has crashed.
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
        elif isinstance(frame, NameTaken):
            self._on_name_taken(sender, frame, out)
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
        # A member that leaves gives its name up: the joiner asks again.
        elif self.phase == MEMBER and frame.entry.name and frame.entry.name == self.own_entry.name:
            out.drop("name", address, peer=sender)
            self.refuse_name(frame.entry, self.me, out)
        elif self.phase == JOINING:
            known = address in self._concurrent_joiners
            if len(self._concurrent_joiners) < _MAX_JOINERS or known:
                self._concurrent_joiners[address] = out.now_ns, frame.entry
            # An early founder must be known to a joiner before it founds itself.
            if self.found_early_ns and not known and len(self._concurrent_joiners) < _EARLY_ANSWERS:
                out.transmit(address, Join(self.own_entry))
        elif self.is_acting:
            self.view_transfer.announce_locator(frame.entry, out)
            self.coordinator.on_join(frame.entry, out, relayed=address != sender)
        # A relayed JOIN is not relayed again, so that it cannot circle.
        elif address == sender and self.acting_coordinator is not None:
            self._relay_join(frame, self.acting_coordinator, out)

    def refuse_name(self, joiner: RosterEntry, holder: Address, out: ReadyBuilder) -> None:
        """Refuse a joiner with the durable name of ``holder``, or let ``holder`` refuse."""
        if holder != self.me:
            out.transmit(holder, Join(joiner))
        # The address may be invented, so refusals are limited; a joiner asks again.
        elif self.phase == MEMBER and self._alive_answers.allows(joiner.address, out.now_ns):
            self.view_transfer.announce_locator(joiner, out)
            out.transmit(joiner.address, NameTaken(self.own_entry, joiner.address))

    def _on_name_taken(self, sender: Address, frame: NameTaken, out: ReadyBuilder) -> None:
        """End the attempt to join: another member is alive under this durable name."""
        holder = frame.entry
        if holder.address != sender:
            out.drop("origin", holder.address, peer=sender)
        elif (
            self.phase == JOINING
            and frame.joiner == self.me
            and holder.name == self.own_entry.name
            and holder.address.node != self.me.node
        ):
            self.terminate(NameInUse(holder.address, holder.locator), out)
        else:
            # A refusal of an earlier attempt, or of another joiner.
            out.drop("name", holder.address, peer=sender)

    def _relay_join(self, frame: Join, acting: Address, out: ReadyBuilder) -> None:
        """Relay a JOIN to the acting coordinator, and notify the joiner that a group exists.

        Only the next in line notify the joiner; otherwise, while the coordinator is dead, the
        joiner would found a separate group and miss the state.
        """
        address = frame.entry.address
        assert acting != self.me, "the acting coordinator handles a JOIN itself"
        if address.node == acting.node and address > acting:
            # The coordinator's node has a newer incarnation: probe the old one without waiting for
            # suspect_after.
            self.failure_detector.probe((acting,), out)
        if frame.relay:
            # Every member relays: without a limit a flood would reach the coordinator many times.
            if self._relays.allows(address, out.now_ns):
                out.transmit(acting, Join(frame.entry))
                if self.guard is not None and (signed := self.guard.signed_join(address)):
                    out.transmit(acting, signed)
            else:
                out.drop("crowded", address, peer=address)
        assert self.roster is not None
        if any(entry.address == self.me for entry in self.roster.entries[1 : 1 + _NEXT_IN_LINE]):
            self.send_alive(address, out, rate_limited=True)

    def _on_new_view(self, frame: NewView, out: ReadyBuilder) -> None:
        """Handle a part of a roster from the view's coordinator, or from a relaying member."""
        self.hearing.on_answer(frame.origin)
        # With identities a view is signed by its coordinator, and any member may pass it on.
        known = frame.origin if self.guard is None else frame.view.coordinator
        if frame.origin != frame.view.coordinator and not {frame.origin, known} & self.members:
            if self.is_acting and frame.base is None:
                # An introduction by a member of another group: only its locators count.
                self._foreign_views.on_part(frame, out)
            else:
                out.drop("stranger", peer=frame.origin)
            return
        # Such a number would leave no room for higher ones: one bad frame would stop later views.
        # A number may be a little ahead, but a jump is an error or a lie.
        if frame.view.number > MAX_VIEW_NUMBER or (
            self.roster is not None and frame.view.number > self.view_number + MAX_NUMBER_STEP
        ):
            out.drop("view", peer=frame.origin)
            return
        roster = self.view_transfer.on_part(frame, out)
        if roster is not None:
            self._on_roster(roster, frame.origin, out)

    def _on_roster(self, roster: Roster, sender: Address, out: ReadyBuilder) -> None:
        """Accept a newer roster with this member; otherwise answer with our view."""
        named = any(entry.address == self.me for entry in roster.entries)
        if roster.id.coordinator == self.me:
            return
        # A view that omits this member: expulsion, a granted leave, or the sender moved away.
        if not named:
            # With identities the coordinator has signed the roster; any member may pass it on.
            witness = sender if self.guard is None else roster.id.coordinator
            self._on_excluded(roster.id, witness, out, confirmed=False)
        elif roster.id.number > self.view_number and self._follows(roster, sender):
            if self.backing is not None and not self.backing.accepts(roster, sender, out):
                return
            if roster.id.coordinator not in self.members:
                # A merge: repeat JOIN until the new coordinator confirms that we are in its view.
                self.admitted = False
            self.accept(roster, out)
        elif self.pending is None and self.roster is not None:
            self.send_alive(sender, out)
            # A predecessor announced this view to some members: the next view includes them all.
            if self.is_acting and roster.id != self.roster.id and sender in self.members:
                self.coordinator.absorb(roster, sender, out)

    def _follows(self, roster: Roster, sender: Address) -> bool:
        """Return whether this member accepts ``roster`` as its next view.

        An admitted member follows the member's own group: a view created or relayed by a member of
        the group, or a view with the group's acting coordinator. The acting coordinator follows
        only an agreed merge. Without the rule two founders at the same time would join each other's
        group for ever.
        """
        maker, acting = roster.id.coordinator, self.acting_coordinator
        if not (self.admitted or self._is_established) or maker in self.members:
            return True
        if self.guard is not None and acting != self.me:
            return sender == acting
        if sender in self.members and self.guard is None:
            return True
        if acting == self.me:
            return maker == self.merging.agreed_to
        return any(entry.address == acting for entry in roster.entries)

    @property
    def _is_established(self) -> bool:
        """Whether this member, with identities, was admitted to this view or an earlier one."""
        return self.backing is not None and self.backing.is_established()

    def accept(self, roster: Roster, out: ReadyBuilder) -> None:
        """Make ``roster`` pending for installation by the next tick."""
        assert roster.id.number > self.view_number, "numbers of views rise"
        self.view_transfer.remember(roster, out)
        self.pending = roster

    def _on_alive(self, frame: Alive, out: ReadyBuilder) -> None:
        sender, view = frame.origin, frame.view
        # A joiner learns from any ALIVE with a view that a group exists, and founds one later.
        if view is None or self.roster is None:
            self._group_heard = self._group_heard or view is not None
            return
        if sender in self.members:
            self._on_member(frame, view, out)
        elif (
            self.is_acting
            and self.coordinator.on_joiner_alive(sender, view, out)
            and not frame.reply_wanted
        ):
            return
        if frame.reply_wanted or (frame.includes_receiver and sender not in self.members):
            self.send_alive(sender, out, rate_limited=not frame.reply_wanted)

    def _on_member(self, frame: Alive, view: ViewId, out: ReadyBuilder) -> None:
        """Compare the view of a member of this view with the current view."""
        assert self.roster is not None
        sender, includes_me = frame.origin, frame.includes_receiver
        if self.backing is not None and includes_me:
            self.backing.on_included(sender)
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
            elif self.backing is not None and not includes_me:
                self.backing.on_behind(sender, out)
        elif includes_me:
            self._ask_view(sender, out)
        else:
            self._on_excluded(view, sender, out, expelled=frame.expelled)

    def _on_excluded(
        self,
        view: ViewId,
        sender: Address,
        out: ReadyBuilder,
        *,
        confirmed: bool = True,
        expelled: bool = False,
    ) -> None:
        """Handle evidence that the view of ``sender`` excludes this member.

        ``confirmed``: the sender reported the view directly, with ALIVE. ``expelled``: an earlier
        view of the sender had this member.
        """
        if self.roster is None or view.number < self.view_number or sender not in self.members:
            return
        if self.phase == LEAVING and self.me in self.leaving:
            self._on_leave_granted(view, out, confirmed=confirmed and sender == view.coordinator)
        elif not (self.admitted or expelled or (self.backing and self.backing.heeds_exclusion)):
            return  # the own view may never have been decided: JOIN is repeated, and answered
        elif self.backing is not None and view.coordinator in self.members:
            self.backing.on_excluded(view, sender, out)
        elif view.coordinator in self.members and confirmed:
            self.terminate(Expelled(view), out)
        elif view.coordinator in self.members:
            self._verify_exclusion(view.coordinator, out)
        else:
            # A stranger created that view: the sender left for another group, we were not expelled.
            self.moved_away.add(sender)
            self.coordinator.schedule_decision(out)

    def _verify_exclusion(self, maker: Address, out: ReadyBuilder) -> None:
        """Ask the maker of a view without this member whether the maker hears this member.

        A deaf member takes all other members for dead, and makes a view alone. An answer shows that
        the maker hears this member, so the maker's view counts. Without an answer the maker counts
        as moved away.
        """
        if maker == self.me or maker in self.moved_away or maker in self._verdict_ns:
            return
        self._verdict_ns[maker] = out.now_ns + self.config.verify_timeout_ns
        self._ask_maker_ns = out.now_ns
        self._ask_makers(out)

    def _ask_makers(self, out: ReadyBuilder) -> None:
        """Ask every maker without an answer; after ``verify_timeout`` the maker has moved away."""
        late = [maker for maker, at_ns in self._verdict_ns.items() if at_ns <= out.now_ns]
        for maker in late:
            del self._verdict_ns[maker]
            self.moved_away.add(maker)
            out.trace("SUSPECT", maker, peer=maker, reason="deaf")
            out.emit(Suspected(maker))
        if late:
            self.coordinator.schedule_decision(out)
        for maker in self._verdict_ns:
            view = None if self.roster is None else self.roster.id
            out.transmit(maker, Alive(self.me, view, maker in self.members, True))
        self._ask_maker_ns = (
            min(out.now_ns + self.config.join_interval_ns, *self._verdict_ns.values())
            if self._verdict_ns
            else None
        )

    def _on_leave_granted(self, view: ViewId, out: ReadyBuilder, *, confirmed: bool) -> None:
        """End this incarnation when every member has installed the view without this member.

        Until then some members may still need acks from this member. If only the view has arrived,
        ask the coordinator soon.
        """
        assert self.leave_requested, "a leave is granted after LEAVE was sent"
        if confirmed:
            self.terminate(Left(True), out)
            return
        if self._leave_granted_by is None:
            # The coordinator may leave as well, and its last word may be lost.
            patience_ns = _GRANT_PATIENCE * self.config.join_confirm_timeout_ns
            assert self._give_up_ns is not None
            self._give_up_ns = min(self._give_up_ns, out.now_ns + patience_ns)
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
        if self.roster is None:
            return
        if self.roster_answers.allows(frame.origin, out.now_ns):
            self.view_transfer.send(frame.origin, self.pending or self.roster, out)
        else:
            out.drop("asked", peer=frame.origin)

    def _on_suspect(self, frame: Suspect, out: ReadyBuilder) -> None:
        if frame.origin not in self.members:
            out.drop("stranger", peer=frame.origin)
        elif self.backing is not None and not self.backing.on_suspect(frame, out):
            return
        elif frame.slow_receivers and not self.is_acting:
            # The coordinator does not hear its complaint. A probe of the coordinator decides.
            if self.acting_coordinator in frame.members:
                out.transmit(self.acting_coordinator, Suspect(self.me, (frame.origin,)))
        elif frame.slow_receivers:
            # Both ends of a broken link may complain: the first complaint counts.
            if frame.origin not in self.coordinator.to_expel:
                self.coordinator.expel(frame.members, out)
        else:
            self.coordinator.on_complaint(frame.origin, frame.members, out)
            self.failure_detector.probe(frame.members, out)

    def _on_leave(self, frame: Leave, out: ReadyBuilder) -> None:
        if frame.origin in self.members:
            self._note_leaving(frame.origin, out)
            self.coordinator.schedule_decision(out)
        # A former member asks again: all live members have the view without it, so it may end.
        elif (
            self.is_acting
            and self.pending is None
            and not self._is_needed(frame.origin, out.now_ns)
        ):
            self.send_alive(frame.origin, out)

    def _note_leaving(self, member: Address, out: ReadyBuilder) -> None:
        """Record that ``member`` leaves; of two leaving members, neither waits for the other."""
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
            self.merging.introduce(frame, out)

    def send_alive(
        self,
        to: Address,
        out: ReadyBuilder,
        *,
        rate_limited: bool = False,
        expelled: bool = False,
    ) -> None:
        """Send ALIVE with the current view, and whether ``to`` is in the view, or expelled.

        ``rate_limited`` sends at most one ALIVE to each address per ``heartbeat_interval``.
        """
        if to in self._granted_leavers and self._is_needed(to, out.now_ns):
            # ALIVE would end the leaver's incarnation while members without the newest view still
            # wait for its acks.
            return
        if rate_limited:
            last_ns = self._asked_ns.get(to, -self.config.heartbeat_interval_ns)
            if out.now_ns - last_ns < self.config.heartbeat_interval_ns:
                return
            if to not in self.members and not self._alive_answers.allows(to, out.now_ns):
                return
            self._asked_ns[to] = out.now_ns
            if len(self._asked_ns) > _MAX_JOINERS:
                del self._asked_ns[next(iter(self._asked_ns))]
        if self.guard is not None and self.leave_requested and to in self.members:
            # A member that has missed the LEAVE would not believe a view without this member.
            out.transmit(to, Leave(self.me))
        view = None if self.roster is None else self.roster.id
        out.transmit(to, Alive(self.me, view, to in self.members, expelled=expelled))

    # On a view

    def on_installed(self, out: ReadyBuilder) -> None:
        """Make the pending roster current, and confirm the roster to the coordinator."""
        roster = self.pending
        assert roster is not None
        self.roster, self.pending = roster, None
        members = [entry.address for entry in roster.entries]
        before, self.members = self.members, frozenset(members)
        is_ours = roster.id.coordinator == self.me
        self._note_granted(is_ours=is_ours, now_ns=out.now_ns)
        self.leaving.intersection_update(members)
        self.moved_away.clear()
        self._asked_ns.clear()
        self._reported_ns = -self.config.heartbeat_interval_ns
        self._verdict_ns.clear()
        self._ask_maker_ns = self._found_due_ns = None
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
        self.view_transfer.install(roster.id.number)
        self._foreign_views.install(roster.id.number)
        if self.backing is not None:
            self.backing.install(before, roster, out)
        self.coordinator.install(before, out)
        self.merging.install(out)
        self.hearing.install(out)
        if roster.id.coordinator != self.me:
            self.send_alive(roster.id.coordinator, out)
            return
        # The founder admits the joiners that it heard while it was joining itself.
        for entry in joiners:
            self.view_transfer.announce_locator(entry, out)
            self.coordinator.on_join(entry, out)

    def _note_granted(self, *, is_ours: bool, now_ns: int) -> None:
        """Record when a view of this coordinator was installed without a member that leaves."""
        oldest_ns = now_ns - _GRANT_LIFETIME * self.config.join_confirm_timeout_ns
        granted = self.leaving - self.members - {self.me} if is_ours else ()
        self._granted_leavers = {
            **dict.fromkeys(granted, now_ns),
            **{
                leaver: at_ns
                for leaver, at_ns in self._granted_leavers.items()
                if is_ours and at_ns > oldest_ns and leaver not in self.members
            },
        }

    def _is_needed(self, leaver: Address, now_ns: int) -> bool:
        """Return whether a member may lack the view without ``leaver``, and need its acks.

        A member without a confirmation within ``join_confirm_timeout`` is probably dead: a leaver
        does not wait for the end of the failure detection.
        """
        granted_ns = self._granted_leavers.get(leaver)
        return bool(self.coordinator.unconfirmed) and (
            granted_ns is None or now_ns - granted_ns < self.config.join_confirm_timeout_ns
        )

    # Leaving

    def leave(self, out: ReadyBuilder) -> None:
        """Start leaving; ``request_leave`` follows when every sent message is acknowledged."""
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
        """Ask the acting coordinator for a view without this member; end without a coordinator."""
        assert self.phase == LEAVING, f"LEAVE in phase {self.phase!r}"
        self.leaving.add(self.me)
        acting = self._leave_granted_by or self.acting_coordinator
        if acting is None:
            # All members are leaving or dead: the other leavers need not wait for this one.
            out.transmit(None, Leave(self.me))
            self.terminate(Left(True), out)
            return
        if self.guard is not None:
            # Every member must know that this member leaves by its own will.
            out.transmit(None, Leave(self.me))
            self._schedule_retry(out)
            return
        # Another leaver may have asked this member, which will not create a view any more.
        for member in sorted({acting, *self.leaving} - {self.me}):
            out.transmit(member, Leave(self.me))
        self._schedule_retry(out)

    def terminate(self, event: Expelled | Left | NameInUse, out: ReadyBuilder) -> None:
        """End this incarnation, with ``event``."""
        # Leavers that wait for this member's permission get it now, or they would wait for the
        # timeout.
        if isinstance(event, Left):
            for member in sorted(self._granted_leavers):
                self.send_alive(member, out)
        if self.phase == LEAVING and event == Left(False):
            # Nobody has granted the leave: without this frame the others would wait for a member
            # that is gone until they find it dead.
            out.transmit(None, Leave(self.me))
        self.phase = OVER
        self.pending = None
        self._retry_ns = self._found_due_ns = self._give_up_ns = self._ask_maker_ns = None
        self.coordinator.stop()
        self.merging.stop()
        self.hearing.stop()
        if self.backing is not None:
            self.backing.stop()
        self.failure_detector.end()
        out.emit(event)
        assert self.due_ns is None, "an incarnation that is over has no timer"

    # Every interval

    def on_timer(self, out: ReadyBuilder) -> None:
        """Run all due retries, decisions and timeouts."""
        now_ns = out.now_ns
        if self._give_up_ns is not None and self._give_up_ns <= now_ns:
            if self.leave_requested:
                self.terminate(Left(self._leave_granted_by is not None), out)
                return
            # Leave without the missing acks; the view change gets a leave_timeout of its own.
            self._give_up_ns = now_ns + self.config.leave_timeout_ns
            self.request_leave(out)
        if self._ask_maker_ns is not None and self._ask_maker_ns <= now_ns:
            self._ask_makers(out)
        if self._found_due_ns is not None and self._found_due_ns <= now_ns:
            self._found_due_ns = None
            self._found_group(out)
        if self._retry_ns is not None and self._retry_ns <= now_ns:
            self._retry_ns = None
            self._try_again(out)
        if self.phase != OVER:
            self.coordinator.on_timer(out)
            self.merging.on_timer(out)
            self.hearing.on_timer(out)
            if self.backing is not None:
                self.backing.on_timer(out)

    def _try_again(self, out: ReadyBuilder) -> None:
        if self.phase == LEAVING:
            self.request_leave(out)
        elif self.phase == JOINING or not self.admitted:
            self._send_join(out)

    def report_dead(self, out: ReadyBuilder, *, again: bool = False) -> None:
        """Report dead and moved members to the acting coordinator, or decide as the coordinator.

        ``again``: without news, a report is repeated once in a ``heartbeat_interval``.
        """
        gone = sorted((self.failure_detector.dead | self.moved_away) & self.members)
        acting = self.acting_coordinator
        if not gone or self.roster is None:
            return
        if again and out.now_ns - self._reported_ns < self.config.heartbeat_interval_ns:
            return
        self._reported_ns = out.now_ns
        if self.backing is not None:
            gone = self.backing.bear_witness(gone, out.now_ns)
        if acting == self.me:
            self.coordinator.schedule_decision(out)
        if self.guard is not None or acting not in {None, self.me}:
            for at in range(0, len(gone), MAX_NAMED):
                to = acting if self.guard is None else None
                out.transmit(to, Suspect(self.me, tuple(gone[at : at + MAX_NAMED])))
        if acting not in {None, self.me}:
            # The coordinator may be dead too, and this member need not be among its watchers.
            self.failure_detector.watch(acting, out)

    def check_invariants(self) -> None:
        """Raise AssertionError if the phase contradicts the roster or the timers."""
        self.failure_detector.check_invariants()
        self.view_transfer.check_invariants()
        self._foreign_views.check_invariants()
        self.roster_answers.check_invariants()
        self._alive_answers.check_invariants()
        self._relays.check_invariants()
        self.coordinator.check_invariants()
        self.merging.check_invariants()
        self.hearing.check_invariants()
        if self.backing is not None:
            self.backing.check_invariants()
        assert self.phase in {NEW, JOINING, MEMBER, LEAVING, OVER}, f"the phase is {self.phase!r}"
        entries = () if self.roster is None else self.roster.entries
        assert self.members == {entry.address for entry in entries}, "members follow the roster"
        assert self.leaving <= self.members | {self.me}, "only members leave"
        assert self.moved_away <= self.members - {self.me}, "only other members move away"
        assert self._granted_leavers.keys().isdisjoint(self.members), (
            "who may leave is out of the view"
        )
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
            retries = self.pending is not None or self._retry_ns is not None
            assert self.admitted or self.phase == LEAVING or retries, (
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
    Signature: lambda membership, frame, out: out.drop("signed", peer=frame.origin),  # noqa: ARG005
}
