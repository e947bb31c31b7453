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
from gapless.protocol.membership.coordinator import MOST_NUMBER, Coordinator
from gapless.protocol.membership.merge import Merging
from gapless.protocol.membership.view_transfer import Rosters
from gapless.protocol.ready import WORLD, Expelled, Left
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
    from gapless.identity import Address, Place
    from gapless.protocol.membership.failure_detector import Liveness
    from gapless.protocol.ready_builder import Context
    from gapless.wire.frames import Membership as MembershipFrame

NEW, JOINING, MEMBER, LEAVING, OVER = "new", "joining", "member", "leaving", "over"

_ROUNDS_FOR_RIVALS = 3
"""So many times ``found_after`` one waits for another that looks for a group too."""
_ROUNDS_FOR_GROUP = 8
"""So many times ``found_after`` one waits for a group that was heard of."""
_LONGEST_PAUSE = 4
"""Tries are at most so many times ``join_interval`` apart."""
_PATIENCE = 3
"""So many beacons of one that does not hear this member's coordinator are let pass."""
_NEXT_IN_LINE = 2
"""So many members behind the coordinator tell one that wants in that there is a group."""
_MOST_RIVALS = 4096
_RIVALS_HEARD = 8
MOST_NAMED = 8
"""So many members are named in one complaint: it must fit the smallest frame."""


class Membership:
    """One member's part in the agreement on who is in the group."""

    def __init__(self, place: Place, config: Config, rng: Random, liveness: Liveness) -> None:
        self.place = place
        self.me = place.address
        self.config = config
        self.rng = rng
        self.liveness = liveness
        self.phase = NEW
        self.roster: Roster | None = None
        self.pending: Roster | None = None
        self.members: frozenset[Address] = frozenset()
        self.leaving: set[Address] = set()
        self.moved: set[Address] = set()
        self.welcome = False
        self.rosters = Rosters(self.me, config)
        self.coordinator = Coordinator(self)
        self.merging = Merging(self)
        self._rivals: dict[Address, tuple[int, Place]] = {}
        self._strangers = Rosters(self.me, config)
        self._let_go_by: Address | None = None
        self._let_go: frozenset[Address] = frozenset()
        self._try_ns: int | None = None
        self._tries = 0
        self._found_ns: int | None = None
        self._rounds = 0
        self._group_heard = False
        self._give_up_ns: int | None = None
        self._asked_ns: dict[Address, int] = {}
        self._unheard: dict[Address, int] = {}

    # What others ask

    @property
    def number(self) -> int:
        """The number of the newest view that has come; 0 if there is none."""
        newest = self.pending or self.roster
        return 0 if newest is None else newest.id.number

    @property
    def acting(self) -> Address | None:
        """Who makes views, as far as this member knows: the oldest that lives, is here and stays."""
        roster = self.roster
        if roster is None:
            return None
        gone = self.liveness.dead, self.leaving, self.moved
        return next(
            (p.address for p in roster.places if not any(p.address in group for group in gone)),
            None,
        )

    @property
    def acts(self) -> bool:
        """Whether this member makes the views."""
        return self.phase in {MEMBER, LEAVING} and self.acting == self.me

    @property
    def due_ns(self) -> int | None:
        """When something is to be tried again, or decided."""
        own = self._try_ns, self._found_ns, self._give_up_ns
        all_ns = (*own, self.coordinator.due_ns, self.merging.due_ns)
        return min((at_ns for at_ns in all_ns if at_ns is not None), default=None)

    # Joining

    def join(self, context: Context) -> None:
        """Begin to look for a group."""
        self.phase = JOINING
        self._found_ns = context.now_ns + self.config.found_after_ns
        self._ask_to_join(context)

    def _ask_to_join(self, context: Context) -> None:
        """Ask to be taken in: whoever may be there, and the coordinator if one is known."""
        join = Join(self.place, self._tries >= 2)
        context.transmit(WORLD, join)
        if self.roster is not None:
            context.transmit(self.roster.id.coordinator, join)
        self._again(context)

    def _again(self, context: Context) -> None:
        """Plan the next try: a little later each time, and not at the same moment as everybody else's."""
        pause_ns = self.config.join_interval_ns * min(1 << min(self._tries, 8), _LONGEST_PAUSE)
        if self.phase == JOINING:  # a crowd need not shout: whoever founds has heard it
            most_ns = max(pause_ns, self.config.found_after_ns * 3 // 4)
            pause_ns = min(pause_ns * (1 + len(self._rivals) // _RIVALS_HEARD), most_ns)
        self._tries += 1
        self._try_ns = (
            context.now_ns + pause_ns + int(self.rng.random() * self.config.join_interval_ns / 4)
        )

    def _found(self, context: Context) -> None:
        """Found a group, unless somebody else is about to or one was heard of."""
        now_ns, config = context.now_ns, self.config
        self._rounds += 1
        self._rivals = {
            rival: seen
            for rival, seen in self._rivals.items()
            if now_ns - seen[0] <= 2 * config.found_after_ns
        }
        rounds = _ROUNDS_FOR_GROUP if self._group_heard else 0
        if before_me := sum(rival < self.me for rival in self._rivals):
            rounds = max(rounds, _ROUNDS_FOR_RIVALS) + min(before_me, _ROUNDS_FOR_RIVALS)
        waits = self._rounds < rounds
        if waits:
            self._found_ns = now_ns + config.found_after_ns
            return
        self.welcome = True
        self.accept(Roster(ViewId(self.number + 1, self.me), (self.place,)), context)

    # On reception

    def on_frame(self, sender: Address, frame: MembershipFrame, context: Context) -> None:
        """Let a frame have its effect."""
        if self.phase in {NEW, OVER}:
            context.drop("no member", peer=sender)
            return
        if isinstance(frame, Join):
            self._on_join(sender, frame, context)
        elif frame.origin != sender:
            context.drop("origin", frame.origin, peer=sender)
        else:
            _HANDLERS[type(frame)](self, frame, context)

    def _on_join(self, sender: Address, frame: Join, context: Context) -> None:
        address = frame.place.address
        if address != sender and sender not in self.members:
            context.drop("origin", address, peer=sender)
        elif address.node == self.me.node:
            context.drop("own", address, peer=sender)
        elif self.phase == JOINING:
            if len(self._rivals) < _MOST_RIVALS or address in self._rivals:
                self._rivals[address] = context.now_ns, frame.place
        elif self.acts:
            self.rosters.locate(frame.place, context)
            self.coordinator.on_join(frame.place, context)
        elif address == sender and self.acting is not None:
            self._hand_on(frame, self.acting, context)

    def _hand_on(self, frame: Join, acting: Address, context: Context) -> None:
        """Hand a wish to join on to the acting coordinator, and see to it that nobody waits for one that is dead.

        The next in line say that there is a group, or the new member would found its own and miss
        the state.
        """
        address = frame.place.address
        if address.node == acting.node and address > acting:
            self.liveness.ask(
                (acting,), context
            )  # its next life is here: it need not be silent first
        if frame.relay:
            context.transmit(acting, Join(frame.place))
        assert self.roster is not None
        if any(place.address == self.me for place in self.roster.places[1 : 1 + _NEXT_IN_LINE]):
            self.show(address, context, rarely=True)

    def _on_new_view(self, frame: NewView, context: Context) -> None:
        """Take a part of a roster in: from the one that made the view, or from a member that hands it on."""
        if frame.origin != frame.view.coordinator and frame.origin not in self.members:
            if self.acts and frame.base is None:
                self._strangers.take(
                    frame, context
                )  # an introduction: it only says where others are reached
            else:
                context.drop("stranger", peer=frame.origin)
            return
        if frame.view.number > MOST_NUMBER:
            context.drop("view", peer=frame.origin)
            return
        roster = self.rosters.take(frame, context)
        if roster is not None:
            self._on_roster(roster, frame.origin, context)

    def _on_roster(self, roster: Roster, sender: Address, context: Context) -> None:
        """Accept a roster that is newer and names this member; otherwise say, or understand, how things stand."""
        named = any(place.address == self.me for place in roster.places)
        if roster.id.coordinator == self.me:
            return
        if not named:
            self._on_left_out(roster.id, sender, context, told=False)
        elif roster.id.number > self.number and self._follows(roster, sender):
            if roster.id.coordinator not in self.members:
                self.welcome = False  # until somebody there says that this one is in
            self.accept(roster, context)
        elif self.pending is None and self.roster is not None:
            self.show(sender, context)
            if self.acts and roster.id != self.roster.id and sender in self.members:
                self.coordinator.absorb(roster, sender, context)

    def _follows(self, roster: Roster, sender: Address) -> bool:
        """Return whether this member goes where ``roster`` says.

        One that belongs to a group goes with that: into a view made by one of it, or handed on by
        one of it, into one that names its coordinator, or, as the coordinator, into the merge that
        it has agreed to. Otherwise two that found a group at the same time would each join the
        other's, for ever.
        """
        maker, acting = roster.id.coordinator, self.acting
        if not self.welcome or maker in self.members or sender in self.members:
            return True
        if acting == self.me:
            return maker == self.merging.agreed_to
        return any(place.address == acting for place in roster.places)

    def accept(self, roster: Roster, context: Context) -> None:
        """Let the next tick install ``roster``."""
        self.rosters.learn(roster, context)
        self.pending = roster

    def _on_alive(self, frame: Alive, context: Context) -> None:
        sender, view = frame.origin, frame.view
        if view is None or self.roster is None:
            self._group_heard = self._group_heard or view is not None
            return
        if sender in self.members:
            self._on_member(sender, view, frame.you, context)
        elif self.acts and self.coordinator.on_joiner(sender, view, context) and not frame.answer:
            return
        if frame.answer or (frame.you and sender not in self.members):
            self.show(sender, context, rarely=not frame.answer)

    def _on_member(self, sender: Address, view: ViewId, you: bool, context: Context) -> None:
        """Compare views with one that is in this view."""
        assert self.roster is not None
        if view == self.roster.id:
            # Only who made the view knows that it is decided: others may be new in it themselves.
            self.welcome = self.welcome or (you and sender == view.coordinator)
            self.coordinator.confirmed(sender, context)
        elif self.pending is not None and view == self.pending.id:
            self.coordinator.confirmed(sender, context)
        elif view.number < self.roster.id.number:
            if self.acts:
                self.coordinator.behind(sender, context, apart=not you)
        elif you:
            self._ask_view(sender, context)
        else:
            self._on_left_out(view, sender, context)

    def _on_left_out(
        self, view: ViewId, sender: Address, context: Context, *, told: bool = True
    ) -> None:
        """Understand that ``sender`` is in a view without this member: expelled, gone, or the other one has moved."""
        if self.roster is None or view.number < self.number or sender not in self.members:
            return
        if self.phase == LEAVING and self.me in self.leaving:
            self._on_let_go(view, context, told=told and sender == view.coordinator)
        elif not self.welcome:
            return  # this one is still asking to be let in
        elif view.coordinator in self.members:
            self.over(Expelled(view), context)
        else:
            self.moved.add(sender)
            self.coordinator.plan(context)

    def _on_let_go(self, view: ViewId, context: Context, *, told: bool) -> None:
        """Go when the coordinator says so, which is when all have the view without this one.

        Until then some may wait for its acks. If only the view has come, the coordinator is asked
        soon.
        """
        if told:
            self.over(Left(True), context)
            return
        self._let_go_by = view.coordinator
        self.liveness.end()  # those of the view without this one do not show it any more that they live
        soon_ns = context.now_ns + self.config.view_gap_ns
        self._try_ns = soon_ns if self._try_ns is None else min(self._try_ns, soon_ns)

    def _ask_view(self, peer: Address, context: Context) -> None:
        if (
            context.now_ns - self._asked_ns.get(peer, -self.config.join_interval_ns)
            >= self.config.join_interval_ns
        ):
            self._asked_ns[peer] = context.now_ns
            context.transmit(peer, AskView(self.me))

    def _on_ask_view(self, frame: AskView, context: Context) -> None:
        if self.roster is not None:
            self.rosters.send(frame.origin, self.pending or self.roster, context)

    def _on_suspect(self, frame: Suspect, context: Context) -> None:
        if frame.origin not in self.members:
            context.drop("stranger", peer=frame.origin)
        elif frame.pins:
            self.coordinator.expel(frame.members, context)
        else:
            self.liveness.ask(frame.members, context)

    def _on_leave(self, frame: Leave, context: Context) -> None:
        if frame.origin in self.members:
            self._note_leaving(frame.origin, context)
            self.coordinator.plan(context)
        elif self.acts and self.pending is None and not self.coordinator.unconfirmed:
            self.show(frame.origin, context)

    def _note_leaving(self, member: Address, context: Context) -> None:
        """Take note of one that leaves; if this one leaves too, neither waits for the other."""
        acting, known = self.acting, member in self.leaving
        self.leaving.add(member)
        if self.asks_to_leave and not known:
            context.transmit(member, Leave(self.me))
            if self.acting != acting:
                self.ask_to_leave(context)

    def _on_beacon(self, frame: Beacon, context: Context) -> None:
        if self.roster is None:
            self._group_heard = True
        elif frame.origin in self.members:
            if frame.view.number >= self.roster.id.number and frame.view != self.roster.id:
                self._ask_view(frame.origin, context)
            elif frame.view != self.roster.id and self.acts:
                self.coordinator.behind(frame.origin, context)
        elif self.acts:
            self.merging.on_beacon(frame, context)
        else:
            self._introduce(frame, context)

    def _introduce(self, frame: Beacon, context: Context) -> None:
        """Tell a foreign coordinator who is here, if it goes on without hearing the one that this member follows.

        Where members reach each other only through a few known places, coordinators may not know
        where the other is. One or two that do so are enough.
        """
        assert self.roster is not None
        known = self.acting in frame.heard
        count = self._unheard[frame.origin] = 0 if known else self._unheard.get(frame.origin, 0) + 1
        if len(self._unheard) > _MOST_RIVALS:
            del self._unheard[next(iter(self._unheard))]
        if count >= _PATIENCE and self.rng.random() * len(self.members) < 2:
            self._unheard[frame.origin] = 0
            self.rosters.send(frame.origin, self.roster, context)

    def show(self, to: Address, context: Context, *, rarely: bool = False) -> None:
        """Say in which view this member is, and whether ``to`` is in it; ``rarely``: only now and then."""
        if to in self._let_go and self.coordinator.unconfirmed:
            return  # some may still wait for its acks: it is to stay until all have the view without it
        if rarely:
            last_ns = self._asked_ns.get(to, -self.config.heartbeat_interval_ns)
            if context.now_ns - last_ns < self.config.heartbeat_interval_ns:
                return
            self._asked_ns[to] = context.now_ns
            if len(self._asked_ns) > _MOST_RIVALS:
                del self._asked_ns[next(iter(self._asked_ns))]
        view = None if self.roster is None else self.roster.id
        context.transmit(to, Alive(self.me, view, to in self.members))

    # On a view

    def installed(self, context: Context) -> None:
        """Take note that the pending roster is the present one; tell its coordinator."""
        roster = self.pending
        assert roster is not None
        self.roster, self.pending = roster, None
        members = [place.address for place in roster.places]
        before, self.members = self.members, frozenset(members)
        mine = roster.id.coordinator == self.me
        self._let_go = frozenset(self.leaving - self.members - {self.me}) if mine else frozenset()
        self.leaving.intersection_update(members)
        self.moved.clear()
        self._asked_ns.clear()
        self._unheard.clear()
        self._found_ns = None
        rivals: tuple[Place, ...] = ()
        if self.phase == JOINING:
            self.phase = MEMBER
            self._tries = 0
            rivals, self._rivals = tuple(place for _, place in self._rivals.values()), {}
        if self.welcome and self.phase == MEMBER:
            self._try_ns = None
        elif self.phase == MEMBER and self._try_ns is None:
            self._tries = 0
            self._again(context)
        self.liveness.install(roster.id, members, context.now_ns)
        self.rosters.keep_only(members)
        self.coordinator.install(before, context)
        self.merging.install(context)
        if roster.id.coordinator != self.me:
            self.show(roster.id.coordinator, context)
            return
        for place in rivals:  # they have asked whoever would found the group
            self.rosters.locate(place, context)
            self.coordinator.on_join(place, context)

    # Leaving

    def leave(self, context: Context) -> None:
        """Begin to leave; :meth:`ask_to_leave` follows when everything is acknowledged."""
        if self.phase in {NEW, JOINING}:
            self.over(Left(True), context)
        elif self.phase == MEMBER:
            self.phase = LEAVING
            self._try_ns = None
            self._give_up_ns = context.now_ns + self.config.leave_timeout_ns

    @property
    def asks_to_leave(self) -> bool:
        """Whether the group has been asked for a view without this member."""
        return self.me in self.leaving

    def ask_to_leave(self, context: Context) -> None:
        """Ask for a view without this member; one that is alone just goes."""
        self.leaving.add(self.me)
        acting = self._let_go_by or self.acting
        if acting is None:
            context.transmit(
                None, Leave(self.me)
            )  # the others that leave too have one less to wait for
            self.over(Left(True), context)
            return
        context.transmit(acting, Leave(self.me))
        self._again(context)

    def over(self, event: Expelled | Left, context: Context) -> None:
        """End this life; those that wait for this one's word that they may go are given it."""
        if isinstance(event, Left) and not self.coordinator.unconfirmed:
            for member in sorted(self._let_go):
                self.show(member, context)
        self.phase = OVER
        self.pending = None
        self._try_ns = self._found_ns = self._give_up_ns = None
        self.coordinator.end()
        self.merging.end()
        self.liveness.end()
        context.event(event)

    # Every interval

    def fire(self, context: Context) -> None:
        """Try again, decide, or give up what is due."""
        now_ns = context.now_ns
        if self._give_up_ns is not None and self._give_up_ns <= now_ns:
            if self.asks_to_leave:
                self.over(Left(False), context)
                return
            self._give_up_ns = (
                now_ns + self.config.leave_timeout_ns
            )  # what is not acknowledged by now is given up
            self.ask_to_leave(context)
        if self._found_ns is not None and self._found_ns <= now_ns:
            self._found_ns = None
            self._found(context)
        if self._try_ns is not None and self._try_ns <= now_ns:
            self._try_ns = None
            self._try_again(context)
        if self.phase != OVER:
            self.coordinator.fire(context)
            self.merging.fire(context)

    def _try_again(self, context: Context) -> None:
        if self.phase == LEAVING:
            self.ask_to_leave(context)
        elif self.phase == JOINING or not self.welcome:
            self._ask_to_join(context)

    def complain(self, context: Context) -> None:
        """Tell the acting coordinator who is believed dead or has moved on, if that is somebody else."""
        gone = sorted((self.liveness.dead | self.moved) & self.members)
        acting = self.acting
        if not gone or self.roster is None:
            return
        if acting == self.me:
            self.coordinator.plan(context)
        elif acting is not None:
            context.transmit(acting, Suspect(self.me, tuple(gone[:MOST_NAMED])))
            self.liveness.ask(
                (acting,), context, suspected=False
            )  # it may be gone too, and nobody here watches it


_HANDLERS: dict[type, Callable[..., None]] = {
    Leave: Membership._on_leave,
    Alive: Membership._on_alive,
    Suspect: Membership._on_suspect,
    NewView: Membership._on_new_view,
    AskView: Membership._on_ask_view,
    Beacon: Membership._on_beacon,
    MergeAsk: lambda membership, frame, context: membership.merging.on_ask(frame, context),
    MergeReply: lambda membership, frame, context: membership.merging.on_reply(frame, context),
}
