"""One process in one group: a member that finds, follows and leaves views by itself.

On sending: as any member; nothing is taken before the first view, nor after the wish to leave.

On reception: frames about streams go to the streams, then frames about the membership to
membership.py. Whatever comes from a member is a sign of life (liveness.py). A stranger that
believes to be in this view is told that it is not.

On a view: it is installed by a tick of its own, so that views and messages come in one order. Where
a durable member is away its place is kept, and given to its next life (design rule 9).

Every interval: signs of life, tries that are due, decisions of the coordinator.

When this life is over (expelled, left), nothing is done any more: a new life is a new participant
with a higher incarnation, and takes nothing of the old one with it (P-02).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import Place
from gapless.protocol import buggify, timers
from gapless.protocol.membership.failure_detector import Liveness
from gapless.protocol.membership.membership import (
    LEAVING,
    MEMBER,
    MOST_NAMED,
    NEW,
    OVER,
    Membership,
)
from gapless.protocol.ready import Left, Pinned, Ready, Undelivered
from gapless.protocol.ready_builder import RECEIVED, Context
from gapless.protocol.state_transfer.endpoint import Stateful
from gapless.wire.coalesce import decode_together
from gapless.wire.frames import Data, Membership as MembershipFrame, State as StateFrame, Suspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random
    from typing import Any

    from gapless.config import Config
    from gapless.identity import Address, Roster, View
    from gapless.payloads import Payloads
    from gapless.protocol.buggify import Rarely
    from gapless.protocol.stream.inbound import Inbound
    from gapless.wire.frames import Datagram

_MEMBERSHIP = frozenset(get_args(MembershipFrame))
_NOT_STREAMS = _MEMBERSHIP | frozenset(get_args(StateFrame))
_WISHES = 5
"""So many times the coordinator is asked to leave a member out: a datagram may be lost, or the wish not granted."""


class Participant(Stateful):
    """A member that keeps its own views: ``join`` it, work through every ``Ready``, ``leave`` it."""

    def __init__(
        self,
        me: Address,
        group: int,
        config: Config,
        rng: Random,
        *,
        name: str = "",
        locator: bytes = b"",
        tracing: int = 0,
        rarely: Rarely = buggify.never,
        wall_ns: int = 0,
    ) -> None:
        """Make a life that has not joined yet; ``wall_ns`` is how far the time of day is ahead of the clock."""
        super().__init__(me, group, config, rng, tracing=tracing, rarely=rarely)
        if name and self.row.release != "acks":
            raise LocalProtocolError(
                f"a durable name ({name}) needs a profile that acks release, and {self.row.name} is none: use nakack4"
            )
        self.liveness = Liveness(me, config)
        self.membership = Membership(Place(me, name, locator), config, rng, self.liveness)
        self._context.spoke = {}
        self._context.wall_ns = wall_ns
        self._ended = False
        self._ungreeted: list[Address] = []
        self.outbound.closed = True
        self._awake_ns: int | None = None
        self._wishes: dict[Address, int] = {}

    @property
    def phase(self) -> str:
        """Where this life is: new, joining, member, leaving or over."""
        return self.membership.phase

    @property
    def roster(self) -> Roster | None:
        """The present view, with what its members know of each other."""
        return self.membership.roster

    @property
    def pending(self) -> Roster | None:
        """A view that has come; the next tick installs it."""
        return self.membership.pending

    # Inputs of the application

    def join(
        self,
        now_ns: int,
        *,
        state: bool = False,
        resume: Mapping[Address, int] | None = None,
        stores: bool = False,
    ) -> Ready:
        """Begin to look for a group, or to found one; with ``state`` ask the others for the application's state.

        ``resume`` says up to where a durable member has kept each stream safely: no stream begins
        before that. One that ``stores`` what it gets acknowledges what it has reported by
        ``stored``.
        """
        if self.phase != NEW:
            raise LocalProtocolError(
                f"this life has joined before (it is {self.phase}): begin a new one"
            )
        if self.membership.place.name:
            self.resume(resume or {}, stores=stores)
        elif resume or stores:
            raise LocalProtocolError(
                "a member without a durable name has nothing to resume or store: give it a name"
            )
        if state:
            self.want_state()
        self.membership.join(self._begin(now_ns))
        return self._finish(())

    def leave(self, now_ns: int) -> Ready:
        """Leave the group once everything that was sent is acknowledged; the event Left tells when it is done."""
        self.membership.leave(self._begin(now_ns))
        return self._finish(())

    def end(self, now_ns: int) -> Ready:
        """End this life at once, without asking the group; what is not known to have arrived is reported."""
        context = self._begin(now_ns)
        if self.phase != OVER:
            self.membership.over(Left(False), context)
        return self._finish(())

    def expel(self, member: Address, now_ns: int) -> Ready:
        """Ask for a view without ``member``, though it lives; it may come back as a new incarnation."""
        if self.view is None or member not in self.view.members or member == self.me:
            raise LocalProtocolError(f"{member} is no other member of this view: expel one that is")
        self._wishes[member] = _WISHES - 1
        self._ask_to_expel((member,), self._begin(now_ns))
        return self._finish(())

    def _ask_to_expel(self, members: tuple[Address, ...], context: Context) -> None:
        acting = self.membership.acting
        if acting == self.me:
            self.membership.coordinator.expel(members, context)
        elif acting is not None:
            for at in range(0, len(members), MOST_NAMED):
                context.transmit(acting, Suspect(self.me, members[at : at + MOST_NAMED], True))

    def _check_payloads(self, payloads: Payloads, *rest: Any) -> None:
        if self.phase in {LEAVING, OVER}:
            raise LocalProtocolError(f"this member is {self.phase}: nothing more is sent")
        super()._check_payloads(payloads, *rest)

    def install(self, view: View, *_: Any, **__: Any) -> Ready:
        """Refuse: views come from the membership, not from outside."""
        raise LocalProtocolError(
            f"view {view.id.number} is not given to a participant: it joins and keeps its own"
        )

    # Inputs of the network and the clock

    def _begin(self, now_ns: int) -> Context:
        """Notice when this member itself has stood still."""
        due_ns = self._timers.next_ns
        if due_ns is not None and now_ns - due_ns > self.config.heartbeat_interval_ns:
            self.liveness.paused(now_ns - due_ns, now_ns)
            self.state.paused(now_ns)
            self._awake_ns = now_ns
        return super()._begin(now_ns)

    def hear(self, said: Datagram, now_ns: int) -> Ready:
        """Take in what a datagram says, first of the streams, then of the membership."""
        if self.phase in {NEW, OVER}:
            self._begin(now_ns).drop("no member", peer=said.sender)
            return self._finish(())
        about = [frame for frame in said.frames if type(frame) in _MEMBERSHIP]
        if said.group != self.group or (
            said.addressee is not None and said.addressee != self.me.incarnation
        ):
            return super().hear(said, now_ns)
        sender = said.sender
        known = sender in self.inbound
        if known:
            self.liveness.heard(sender, now_ns)
        if not about:
            if not known and sender != self.me:
                self._correct(said, self._begin(now_ns))
            return super().hear(said, now_ns)
        context = self._begin(now_ns)
        if sender == self.me:
            context.drop("own", peer=sender)
            return self._finish(())
        rest = tuple(frame for frame in said.frames if type(frame) not in _MEMBERSHIP)
        if rest and known:
            for stream in self._take_in(said._replace(frames=rest), self.inbound[sender], context):
                self._settle(stream, context)
        elif rest:
            self._on_stranger(said._replace(frames=rest), context)
        for frame in about:
            context.count(RECEIVED[type(frame)])
            self.membership.on_frame(sender, frame, context)  # type: ignore[arg-type]
        return self._finish(())

    def receive_all(self, datagrams: Iterable[bytes], now_ns: int) -> list[Ready]:
        """Take in datagrams that have come together, as ``receive`` would one by one, with fewer answers.

        Those that speak of members' streams, and of nothing else, share what every input ends with.
        Runs that continue each other are taken in as one.
        """
        answers: list[Ready] = []
        touched: dict[tuple[Address, int], Inbound] = {}
        context = self._begin(now_ns)
        for said, times in decode_together(datagrams):
            if isinstance(said, RemoteProtocolError):
                context.drop(said.reason)
                continue
            stream = self._stream_of(said)
            if stream is not None:
                if times > 1:
                    context.count(RECEIVED[Data], times - 1)
                self.liveness.heard(said.sender, now_ns)
                for moved in self._take_in(said, stream, context):
                    touched[moved.key] = moved
                continue
            for moved in touched.values():
                self._settle(moved, context)
            touched = {}
            answers.append(self.hear(said, now_ns))
        answers.append(
            self._finish(touched.values()) if answers else self._finish_streams(touched.values())
        )
        return answers

    def _stream_of(self, said: Datagram) -> Inbound | None:
        """Return the stream of the member that ``said`` this, if it is about streams only, and for this member."""
        if said.group != self.group or self.phase in {NEW, OVER}:
            return None
        if said.addressee is not None and said.addressee != self.me.incarnation:
            return None
        if any(type(frame) in _NOT_STREAMS for frame in said.frames):
            return None
        return self.inbound.get(said.sender)

    def _correct(self, said: Datagram, context: Context) -> None:
        """Tell one that is not in this view, and sends as if it were, how things stand; one of us is enough."""
        if self.view is not None and (said.addressee is not None or self.membership.acts):
            self.membership.show(said.sender, context, rarely=True)

    def tick(self, now_ns: int) -> Ready:
        """Install the view that has come, and nothing else; or fire every timer that is due."""
        roster = self.membership.pending
        if roster is None:
            return super().tick(now_ns)
        kept = {place.name: place.address for place in roster.away}
        return super().install(roster.view, now_ns, kept=kept, back=self._back(roster))

    def _back(self, roster: Roster) -> dict[Address, Address]:
        """Return the new members that take over the place of a former life, or of the same one that was away."""
        before = self.membership.roster
        if before is None:
            return {}
        here = {place.address for place in before.places}
        last = {place.name: place.address for place in (*before.places, *before.away) if place.name}
        new = [place for place in roster.places if place.address not in here]
        return {place.address: last[place.name] for place in new if place.name in last}

    def _greet(self, joined: Iterable[Address], context: Context) -> None:
        """Tell others the start of the own stream when they have this member in their view: not before its welcome."""
        if self.membership.welcome:
            super()._greet(joined, context)
        else:
            self._ungreeted += joined

    def _come_in(self, context: Context) -> None:
        """Begin to speak, now that the others know of this member: a proposal may still come to nothing."""
        ungreeted, self._ungreeted = self._ungreeted, []
        super()._greet([member for member in ungreeted if member in self.inbound], context)
        if self.outbound.closed and self.view is not None:
            self.outbound.closed = False
            self.outbound.flush(context, "view")

    def _replay(self, context: Context) -> Iterable[Inbound]:
        touched = super()._replay(context)
        self.membership.installed(context)
        self._forget_strangers(context)
        return touched

    def _forget_strangers(self, context: Context) -> None:
        """Remember only of members when they were last spoken to, and which of them are wished out."""
        assert context.spoke is not None
        members = self.membership.members
        context.spoke = {
            to: at_ns for to, at_ns in context.spoke.items() if to is None or to in members
        }
        self._wishes = {member: left for member, left in self._wishes.items() if member in members}

    def _name_pinners(self, context: Context) -> None:
        """Name who pins a window, and by policy ask to leave it out; one that stood still itself looks anew first."""
        if (
            self._awake_ns is not None
            and context.now_ns - self._awake_ns < self.config.pin_after_ns
        ):
            for stream in self._outbounds():
                stream.watch(context.now_ns)
            return
        before = len(context.events)
        super()._name_pinners(context)
        if self.config.on_pin == "expel":
            pinned = [event for event in context.events[before:] if isinstance(event, Pinned)]
            members = tuple(
                sorted({member for event in pinned for member in event.members} - {self.me})
            )
            if members:
                self._ask_to_expel(members, context)

    def _finish(self, touched: Any) -> Ready:
        """Do what every input ends with; leave when nothing keeps this member any more."""
        membership, context = self.membership, self._context
        if self._ended:
            context.discard()  # whatever was asked of it, a life that is over does nothing more
            return context.ready(None)
        if membership.phase == LEAVING and not membership.asks_to_leave and self._nothing_keeps_me:
            membership.ask_to_leave(context)
        if membership.welcome and (self._ungreeted or self.outbound.closed):
            self._come_in(context)
        if membership.phase == OVER and not self._ended:
            self._end_streams(context)
        arm = self._timers.arm
        arm(timers.BEAT, self.liveness.due_ns)
        arm(timers.COORDINATE, membership.due_ns)
        arm(timers.VIEW, None if membership.pending is None else context.now_ns)
        ready = super()._finish(touched)
        if membership.phase == OVER:
            ready.deadline_ns = None
            self._timers.clear()
        return ready

    def _finish_streams(self, touched: Iterable[Inbound]) -> Ready:
        """Do what an input ends with that was about streams: unless something is under way, the rest is as it was."""
        membership = self.membership
        if (
            membership.phase != MEMBER
            or membership.pending is not None
            or self._ungreeted
            or self.outbound.closed
        ):
            return self._finish(touched)
        return super()._finish(touched)

    @property
    def _nothing_keeps_me(self) -> bool:
        """Whether everybody has everything that this member has sent."""
        return self.aside.is_quiet and all(stream.is_quiet for stream in self._outbounds())

    def _end_streams(self, context: Context) -> None:
        """Report every send that nobody will complete, and every message that is not known to have arrived."""
        self._ended = True
        for ticket in self.outbound.queue.tickets:
            self.outbound.give_up(ticket, "over", context)
        first, last = self.outbound.end(context)
        if first <= last:
            context.event(Undelivered(None, first, last))
        self.connections.end(context)
        self.aside.end(context)

    def _beat(self, context: Context) -> None:
        self._forget_strangers(context)
        assert context.spoke is not None
        self.liveness.beat(context.spoke, context)
        self.membership.complain(context)
        if self._wishes:
            self._ask_to_expel(tuple(sorted(self._wishes)), context)
            self._wishes = {member: left - 1 for member, left in self._wishes.items() if left > 1}

    def _fire(self, name: str) -> None:
        if self.phase != OVER:
            super()._fire(name)


Participant.timed = {
    **Stateful.timed,
    timers.PIN: Participant._name_pinners,
    timers.BEAT: Participant._beat,
    timers.COORDINATE: lambda member, context: member.membership.fire(context),
    timers.VIEW: lambda member, context: None,  # noqa: ARG005 - a tick installs the view before any timer fires
}
