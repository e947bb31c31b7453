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
from gapless.identity import RosterEntry
from gapless.protocol import buggify, timers
from gapless.protocol.events import Left, SlowReceivers, Undelivered
from gapless.protocol.membership.failure_detector import FailureDetector
from gapless.protocol.membership.membership import (
    LEAVING,
    MAX_NAMED,
    MEMBER,
    NEW,
    OVER,
    Membership,
)
from gapless.protocol.ready import Ready
from gapless.protocol.ready_builder import RECEIVED_COUNTERS, ReadyBuilder
from gapless.protocol.state_transfer.endpoint import StateTransferEndpoint
from gapless.wire.coalesce import decode_coalesced
from gapless.wire.frames import (
    Data,
    MembershipFrame,
    StateFrame,
    Suspect,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random
    from typing import Any

    from gapless.config import Config
    from gapless.identity import Address, Roster, View
    from gapless.payloads import Payloads
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.wire.frames import Datagram

_MEMBERSHIP_FRAMES = frozenset(get_args(MembershipFrame))
_NON_STREAM_FRAMES = _MEMBERSHIP_FRAMES | frozenset(get_args(StateFrame))
_EXPEL_ATTEMPTS = 5
"""So many times the coordinator is asked to leave a member out: a datagram may be lost, or the wish not granted."""


class Member(StateTransferEndpoint):
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
        rarely: RareBranchHook = buggify.never,
        wall_offset_ns: int = 0,
    ) -> None:
        """Make a life that has not joined yet; ``wall_offset_ns`` is how far the time of day is ahead of the clock."""
        super().__init__(me, group, config, rng, tracing=tracing, rarely=rarely)
        if name and self.profile.release != "acks":
            raise LocalProtocolError(
                f"a durable name ({name}) needs a profile that acks release, and {self.profile.name} is none: use nakack4"
            )
        self.failure_detector = FailureDetector(me, config)
        self.membership = Membership(
            RosterEntry(me, name, locator), config, rng, self.failure_detector
        )
        self._out.last_sent_ns = {}
        self._out.wall_offset_ns = wall_offset_ns
        self._ended = False
        self._start_unannounced: list[Address] = []
        self.outbound.closed = True
        self._pause_ended_ns: int | None = None
        self._expel_attempts_left: dict[Address, int] = {}

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
        if self.membership.own_entry.name:
            self.resume(resume or {}, stores=stores)
        elif resume or stores:
            raise LocalProtocolError(
                "a member without a durable name has nothing to resume or store: give it a name"
            )
        if state:
            self.request_state()
        self.membership.join(self._begin(now_ns))
        return self._finish(())

    def leave(self, now_ns: int) -> Ready:
        """Leave the group once everything that was sent is acknowledged; the event Left tells when it is done."""
        self.membership.leave(self._begin(now_ns))
        return self._finish(())

    def abort(self, now_ns: int) -> Ready:
        """End this life at once, without asking the group; what is not known to have arrived is reported."""
        out = self._begin(now_ns)
        if self.phase != OVER:
            self.membership.terminate(Left(False), out)
        return self._finish(())

    def expel(self, member: Address, now_ns: int) -> Ready:
        """Ask for a view without ``member``, though it lives; it may come back as a new incarnation."""
        if self.view is None or member not in self.view.members or member == self.me:
            raise LocalProtocolError(f"{member} is no other member of this view: expel one that is")
        self._expel_attempts_left[member] = _EXPEL_ATTEMPTS - 1
        self._request_expel((member,), self._begin(now_ns))
        return self._finish(())

    def _request_expel(self, members: tuple[Address, ...], out: ReadyBuilder) -> None:
        acting = self.membership.acting_coordinator
        if acting == self.me:
            self.membership.coordinator.expel(members, out)
        elif acting is not None:
            for at in range(0, len(members), MAX_NAMED):
                out.transmit(acting, Suspect(self.me, members[at : at + MAX_NAMED], True))

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

    def _begin(self, now_ns: int) -> ReadyBuilder:
        """Notice when this member itself has stood still."""
        due_ns = self._timers.next_ns
        if due_ns is not None and now_ns - due_ns > self.config.heartbeat_interval_ns:
            self.failure_detector.on_pause(now_ns - due_ns, now_ns)
            self.state_transfer.on_pause(now_ns)
            self._pause_ended_ns = now_ns
        return super()._begin(now_ns)

    def receive_decoded(self, datagram: Datagram, now_ns: int) -> Ready:
        """Take in what a datagram says, first of the streams, then of the membership."""
        if self.phase in {NEW, OVER}:
            self._begin(now_ns).drop("no member", peer=datagram.sender)
            return self._finish(())
        about = [frame for frame in datagram.frames if type(frame) in _MEMBERSHIP_FRAMES]
        if datagram.group != self.group or (
            datagram.addressee is not None and datagram.addressee != self.me.incarnation
        ):
            return super().receive_decoded(datagram, now_ns)
        sender = datagram.sender
        known = sender in self.inbound
        if known:
            self.failure_detector.on_traffic(sender, now_ns)
        if not about:
            if not known and sender != self.me:
                self._notify_non_member(datagram, self._begin(now_ns))
            return super().receive_decoded(datagram, now_ns)
        out = self._begin(now_ns)
        if sender == self.me:
            out.drop("own", peer=sender)
            return self._finish(())
        rest = tuple(frame for frame in datagram.frames if type(frame) not in _MEMBERSHIP_FRAMES)
        if rest and known:
            for stream in self._handle_frames(
                datagram._replace(frames=rest), self.inbound[sender], out
            ):
                self._deliver_and_ack(stream, out)
        elif rest:
            self._on_stranger(datagram._replace(frames=rest), out)
        for frame in about:
            out.count(RECEIVED_COUNTERS[type(frame)])
            self.membership.on_frame(sender, frame, out)  # type: ignore[arg-type]
        return self._finish(())

    def receive_all(self, datagrams: Iterable[bytes], now_ns: int) -> list[Ready]:
        """Take in datagrams that have come together, as ``receive`` would one by one, with fewer answers.

        Those that speak of members' streams, and of nothing else, share what every input ends with.
        Runs that continue each other are taken in as one.
        """
        answers: list[Ready] = []
        touched: dict[tuple[Address, int], InboundStream] = {}
        out = self._begin(now_ns)
        for said, times in decode_coalesced(datagrams):
            if isinstance(said, RemoteProtocolError):
                out.drop(said.reason)
                continue
            stream = self._stream_of(said)
            if stream is not None:
                if times > 1:
                    out.count(RECEIVED_COUNTERS[Data], times - 1)
                self.failure_detector.on_traffic(said.sender, now_ns)
                for moved in self._handle_frames(said, stream, out):
                    touched[moved.key] = moved
                continue
            for moved in touched.values():
                self._deliver_and_ack(moved, out)
            touched = {}
            answers.append(self.receive_decoded(said, now_ns))
        answers.append(
            self._finish(touched.values()) if answers else self._finish_streams(touched.values())
        )
        return answers

    def _stream_of(self, said: Datagram) -> InboundStream | None:
        """Return the stream of the member that ``said`` this, if it is about streams only, and for this member."""
        if said.group != self.group or self.phase in {NEW, OVER}:
            return None
        if said.addressee is not None and said.addressee != self.me.incarnation:
            return None
        if any(type(frame) in _NON_STREAM_FRAMES for frame in said.frames):
            return None
        return self.inbound.get(said.sender)

    def _notify_non_member(self, said: Datagram, out: ReadyBuilder) -> None:
        """Tell one that is not in this view, and sends as if it were, how things stand; one of us is enough."""
        if self.view is not None and (said.addressee is not None or self.membership.is_acting):
            self.membership.send_alive(said.sender, out, rate_limited=True)

    def tick(self, now_ns: int) -> Ready:
        """Install the view that has come, and nothing else; or fire every timer that is due."""
        roster = self.membership.pending
        if roster is None:
            return super().tick(now_ns)
        kept = {place.name: place.address for place in roster.absent}
        return super().install(
            roster.view, now_ns, absent=kept, returning=self._returning_members(roster)
        )

    def _returning_members(self, roster: Roster) -> dict[Address, Address]:
        """Return the new members that take over the place of a former life, or of the same one that was away."""
        before = self.membership.roster
        if before is None:
            return {}
        here = {place.address for place in before.entries}
        last = {
            place.name: place.address for place in (*before.entries, *before.absent) if place.name
        }
        new = [place for place in roster.entries if place.address not in here]
        return {place.address: last[place.name] for place in new if place.name in last}

    def _announce_start(self, joined: Iterable[Address], out: ReadyBuilder) -> None:
        """Tell others the start of the own stream when they have this member in their view: not before its welcome."""
        if self.membership.admitted:
            super()._announce_start(joined, out)
        else:
            self._start_unannounced += joined

    def _start_sending(self, out: ReadyBuilder) -> None:
        """Begin to speak, now that the others know of this member: a proposal may still come to nothing."""
        ungreeted, self._start_unannounced = self._start_unannounced, []
        super()._announce_start([member for member in ungreeted if member in self.inbound], out)
        if self.outbound.closed and self.view is not None:
            self.outbound.closed = False
            self.outbound.flush(out, "view")

    def _replay_buffered(self, out: ReadyBuilder) -> Iterable[InboundStream]:
        touched = super()._replay_buffered(out)
        self.membership.on_installed(out)
        self._prune_non_members(out)
        return touched

    def _prune_non_members(self, out: ReadyBuilder) -> None:
        """Remember only of members when they were last spoken to, and which of them are wished out."""
        assert out.last_sent_ns is not None
        members = self.membership.members
        out.last_sent_ns = {
            to: at_ns for to, at_ns in out.last_sent_ns.items() if to is None or to in members
        }
        self._expel_attempts_left = {
            member: left for member, left in self._expel_attempts_left.items() if member in members
        }

    def _report_slow_receivers(self, out: ReadyBuilder) -> None:
        """Name who pins a window, and by policy ask to leave it out; one that stood still itself looks anew first."""
        if (
            self._pause_ended_ns is not None
            and out.now_ns - self._pause_ended_ns < self.config.slow_receiver_after_ns
        ):
            for stream in self._outbounds():
                stream.restart_progress_watch(out.now_ns)
            return
        before = len(out.events)
        super()._report_slow_receivers(out)
        if self.config.on_slow_receiver == "expel":
            pinned = [event for event in out.events[before:] if isinstance(event, SlowReceivers)]
            members = tuple(
                sorted({member for event in pinned for member in event.members} - {self.me})
            )
            if members:
                self._request_expel(members, out)

    def _finish(self, touched: Any) -> Ready:
        """Do what every input ends with; leave when nothing keeps this member any more."""
        membership, out = self.membership, self._out
        if self._ended:
            out.discard()  # whatever was asked of it, a life that is over does nothing more
            return out.build(None)
        if (
            membership.phase == LEAVING
            and not membership.leave_requested
            and self._all_acknowledged
        ):
            membership.request_leave(out)
        if membership.admitted and (self._start_unannounced or self.outbound.closed):
            self._start_sending(out)
        if membership.phase == OVER and not self._ended:
            self._end_streams(out)
        arm = self._timers.arm
        arm(timers.HEARTBEAT, self.failure_detector.due_ns)
        arm(timers.COORDINATE, membership.due_ns)
        arm(timers.VIEW, None if membership.pending is None else out.now_ns)
        ready = super()._finish(touched)
        if membership.phase == OVER:
            ready.deadline_ns = None
            self._timers.clear()
        return ready

    def _finish_streams(self, touched: Iterable[InboundStream]) -> Ready:
        """Do what an input ends with that was about streams: unless something is under way, the rest is as it was."""
        membership = self.membership
        if (
            membership.phase != MEMBER
            or membership.pending is not None
            or self._start_unannounced
            or self.outbound.closed
        ):
            return self._finish(touched)
        return super()._finish(touched)

    @property
    def _all_acknowledged(self) -> bool:
        """Whether everybody has everything that this member has sent."""
        return self.out_of_band.is_quiet and all(stream.is_quiet for stream in self._outbounds())

    def _end_streams(self, out: ReadyBuilder) -> None:
        """Report every send that nobody will complete, and every message that is not known to have arrived."""
        self._ended = True
        for ticket in self.outbound.queue.tickets:
            self.outbound.give_up(ticket, "over", out)
        first, last = self.outbound.end(out)
        if first <= last:
            out.emit(Undelivered(None, first, last))
        self.connections.end(out)
        self.out_of_band.end(out)

    def _on_heartbeat_timer(self, out: ReadyBuilder) -> None:
        self._prune_non_members(out)
        assert out.last_sent_ns is not None
        self.failure_detector.on_interval(out.last_sent_ns, out)
        self.membership.report_dead(out)
        if self._expel_attempts_left:
            self._request_expel(tuple(sorted(self._expel_attempts_left)), out)
            self._expel_attempts_left = {
                member: left - 1 for member, left in self._expel_attempts_left.items() if left > 1
            }

    def _fire_timer(self, name: str) -> None:
        if self.phase != OVER:
            super()._fire_timer(name)

    def check_invariants(self) -> None:
        """Raise AssertionError if the endpoint or the membership is inconsistent."""
        super().check_invariants()
        self.membership.check_invariants()


Member.timer_handlers = {
    **StateTransferEndpoint.timer_handlers,
    timers.SLOW_RECEIVER: Member._report_slow_receivers,
    timers.HEARTBEAT: Member._on_heartbeat_timer,
    timers.COORDINATE: lambda member, out: member.membership.on_timer(out),
    timers.VIEW: lambda member, out: None,  # noqa: ARG005 - a tick installs the view before any timer fires
}
