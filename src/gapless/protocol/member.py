"""A member: one process in one group, which finds, follows and leaves views.

A member has an endpoint (all streams under the present view), a membership (the next view), a
failure detector and a state transfer. Every input begins with a check for a pause of this process,
takes effect on the machines, and ends with the pending work of the membership, then of the streams
(``Endpoint.finish``).

On sending: as in any endpoint. A send before the first view or after the request to leave is
refused.

On reception: every datagram of a member is a heartbeat. Frames about streams and states go to the
endpoint, frames about the membership to the membership. If a sender outside the view believes to be
a member, this member sends the view to the sender.

On a view: a separate tick installs the view, so that views and messages have one order. The
positions of absent durable members are retained, and pass to the next incarnation of the same
member (design rule 9).

Every interval: heartbeats and probes, repeated requests, decisions of the coordinator.

After the end of this incarnation (expelled or left) every input is without effect. A new
incarnation is a new member with a higher number, and inherits no state (P-02).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import RosterEntry
from gapless.payloads import Payloads
from gapless.profiles import ReleasePolicy
from gapless.protocol import timers
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.events import Left, SlowReceivers
from gapless.protocol.membership.failure_detector import FailureDetector
from gapless.protocol.membership.membership import (
    LEAVING,
    MAX_NAMED,
    MEMBER,
    NEW,
    OVER,
    Membership,
)
from gapless.protocol.membership.signatures import SignatureGuard
from gapless.protocol.ready import Ready
from gapless.protocol.ready_builder import RECEIVED_COUNTERS
from gapless.protocol.state_transfer.transfer import StateTransfer
from gapless.wire.coalesce import decode_coalesced
from gapless.wire.codec import decode, decode_or_error
from gapless.wire.frames import Data, MembershipFrame, StateFrame, Suspect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random
    from typing import Any

    from gapless.config import Config
    from gapless.delivery_mode import DeliveryMode
    from gapless.identity import Address, Digest, Roster, View
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.membership.failure_detector import DeathEvidence
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.protocol.stream.outbound import OutboundStream
    from gapless.wire.frames import Datagram
    from gapless.wire.identities import Credentials

_MEMBERSHIP_FRAMES = frozenset(get_args(MembershipFrame))
_NON_STREAM_FRAMES = _MEMBERSHIP_FRAMES | frozenset(get_args(StateFrame))
_EXPEL_ATTEMPTS = 5
"""Maximum number of requests to expel a member: one may be lost, or not be granted."""


class Member:
    """A member with a membership: ``join``, handle every ``Ready``, ``leave``."""

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
        rarely: RareBranchHook | None = None,
        wall_offset_ns: int = 0,
        sealed: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        """Create a member that has not joined yet.

        ``wall_offset_ns`` is the difference between the time of day and the clock. The datagrams of
        a ``sealed`` member were opened before they are received, and need no checksum. With
        ``credentials`` the member signs frames about membership, and believes only signed ones.
        """
        self.me = me
        self.group = group
        self.state_transfer = StateTransfer(me, config, rng)
        self.endpoint = Endpoint(
            me,
            group,
            config,
            rng,
            tracing=tracing,
            rarely=rarely,
            state_transfer=self.state_transfer,
        )
        profile = self.endpoint.profile
        if name and profile.release is not ReleasePolicy.ACKS:
            raise LocalProtocolError(
                f"the durable name {name} needs a profile that releases messages by acks,"
                f" and {profile.name} does not: use nakack4"
            )
        self.guard = None if credentials is None else SignatureGuard(me, group, credentials)
        self.failure_detector = FailureDetector(me, config)
        self.membership = Membership(
            RosterEntry(me, name, locator),
            config,
            rng,
            self.failure_detector,
            self.endpoint.early_budget,
            None if self.guard is None else (self.guard, self.endpoint.out),
        )
        # Aliases of parts of the endpoint, which never change: one lookup less for every datagram.
        self.inbound = self.endpoint.inbound
        self.connections = self.endpoint.connections
        self.out_of_band = self.endpoint.out_of_band
        self.stability = self.endpoint.stability
        self.future_view_buffer = self.endpoint.future_view_buffer
        self.early_budget = self.endpoint.early_budget
        self.credit = self.endpoint.credit
        self._timers = self.endpoint.timers
        self._dispatcher = self.endpoint.dispatcher
        self._out = self.endpoint.out
        # With identities only signed datagrams are heartbeats.
        self._out.last_sent_ns = {} if self.guard is None else None
        self._out.guard = self.guard
        self._on_traffic = self.failure_detector.on_traffic if self.guard is None else _ignore
        self._out.wall_offset_ns = wall_offset_ns
        self.endpoint.outbound.closed = True
        self._prediction = self.endpoint.prediction
        # Roles and signatures are checked on the general path.
        self._prediction.follow(self) if self.guard is None else self._prediction.switch_off()
        self._ended = False
        self._sealed = sealed
        self._pause_after_ns = config.heartbeat_interval_ns
        self._pause_ended_ns: int | None = None
        self._expel_attempts_left: dict[Address, int] = {}

    # Of the membership

    @property
    def phase(self) -> str:
        """The phase of this incarnation: new, joining, member, leaving or over."""
        return self.membership.phase

    @property
    def roster(self) -> Roster | None:
        """The present view, with the names and locators of the members."""
        return self.membership.roster

    @property
    def pending(self) -> Roster | None:
        """The view for the next tick to install."""
        return self.membership.pending

    @property
    def is_replaced(self) -> bool:
        """Whether a newer incarnation has signed with the identity of this member."""
        backing = self.membership.backing
        return backing is not None and backing.is_replaced

    # Of the endpoint

    @property
    def config(self) -> Config:
        """The current settings."""
        return self.endpoint.config

    @property
    def view(self) -> View | None:
        """The present view."""
        return self.endpoint.view

    @property
    def outbound(self) -> OutboundStream:
        """The own stream to the group."""
        return self.endpoint.outbound

    @property
    def counters(self) -> dict[str, int]:
        """Frames sent and received by kind, and drops by reason."""
        return self._out.counters

    @property
    def deadline_ns(self) -> int | None:
        """When ``tick`` is to be called next."""
        return self._timers.next_ns

    @property
    def is_quiet(self) -> bool:
        """Whether all sent messages have arrived, and are stable where the profile votes."""
        return self.endpoint.is_quiet

    @property
    def waiting_sends(self) -> int:
        """The number of sends waiting for room, to the group or to one member."""
        return self.endpoint.waiting_sends

    @property
    def tracing(self) -> int:
        """The sampling interval of the trace; 0 if there is none."""
        return self._out.tracing

    def digest(self) -> Digest:
        """Return the marks of all streams with a known start, the own stream first."""
        return self.endpoint.digest()

    def resume_marks(self) -> dict[Address, int]:
        """Return the position of the application in each stream, for the next incarnation."""
        return self.endpoint.resume_marks()

    def outbounds(self) -> list[OutboundStream]:
        """Return the stream to the group and the streams of all outgoing connections."""
        return self.endpoint.outbounds()

    def inbounds(self) -> list[InboundStream]:
        """Return the streams of all members and of all incoming connections."""
        return self.endpoint.inbounds()

    def armed_timers(self) -> tuple[str, ...]:
        """Return the timers that could fire."""
        return self._timers.snapshot()

    def snapshot(self) -> tuple[object, ...]:
        """Return the state of the streams as a hashable value (see ``Endpoint.snapshot``)."""
        return self.endpoint.snapshot()

    # What every input begins and ends with

    def _begin(self, now_ns: int) -> ReadyBuilder:
        """Start an input; a long overdue timer means that this process was paused."""
        due_ns = min(self._timers.values(), default=None)
        if due_ns is not None and now_ns - due_ns > self._pause_after_ns:
            # Others could not be heard meanwhile: their silence is no evidence against them.
            self.failure_detector.on_pause(now_ns - due_ns, now_ns)
            self.membership.hearing.on_pause(now_ns - due_ns, now_ns)
            self.state_transfer.on_pause(now_ns)
            self._pause_ended_ns = now_ns
        out = self._out
        out.now_ns = now_ns
        return out

    def _finish(self, touched: Iterable[InboundStream]) -> Ready:
        """End an input: do the pending work of the membership, then of the streams."""
        membership, endpoint, out = self.membership, self.endpoint, self._out
        if self._ended:
            # An incarnation that is over has no effect any more, whatever is asked of it.
            out.discard()
            return out.build(None)
        if (
            membership.phase == LEAVING
            and not membership.leave_requested
            and endpoint.all_acknowledged
        ):
            # Leaving sooner would leave receivers without a sender that repairs their gaps.
            membership.request_leave(out)
        if membership.admitted and (endpoint.unannounced or endpoint.outbound.closed):
            # Until others know of this member, the proposal of its view may come to nothing.
            endpoint.start_sending(out)
        if membership.phase == OVER:
            # Reported in the same input, so that no send waits for a member that is gone.
            self._ended = True
            endpoint.end(out)
        arm = self._timers.arm
        arm(timers.HEARTBEAT, self.failure_detector.due_ns)
        arm(timers.COORDINATE, membership.due_ns)
        arm(timers.VIEW, None if membership.pending is None else out.now_ns)
        ready = endpoint.finish(touched)
        if membership.phase == OVER:
            # Finishing the streams arms their timers once more.
            ready.deadline_ns = None
            self._timers.clear()
            self._timers.find_earliest_ns()
        return ready

    def _finish_streams(self, touched: Iterable[InboundStream]) -> Ready:
        """End an input that concerned streams only: a steady view has no other pending work."""
        membership, endpoint = self.membership, self.endpoint
        if (
            membership.phase != MEMBER
            or membership.pending is not None
            or endpoint.unannounced
            or endpoint.outbound.closed
        ):
            return self._finish(touched)
        assert not self._ended, "an incarnation that is over is in no view"
        return endpoint.finish(touched)

    # Inputs of the application

    def join(
        self,
        now_ns: int,
        *,
        state: bool = False,
        resume: Mapping[Address, int] | None = None,
        stores: bool = False,
        found_early_ns: int | None = None,
    ) -> Ready:
        """Start to look for a group, or to found a group; with ``state`` request the state.

        With ``found_early_ns``, a member without an answer founds a group after this time instead
        of ``found_after``: for networks where an answer takes much less.

        ``resume`` holds the last safely processed seqno of each stream of a durable member: no
        stream starts before. A member that ``stores`` acknowledges messages confirmed by
        ``confirm_stored``.
        """
        if self.phase != NEW:
            raise LocalProtocolError(
                f"this incarnation has joined before (phase: {self.phase}): create a new member"
            )
        if self.membership.own_entry.name:
            self.endpoint.resume(resume or {}, stores=stores)
        elif resume or stores:
            raise LocalProtocolError(
                "a member without a durable name cannot resume or store: pass a durable name"
            )
        if state:
            self.endpoint.request_state()
        self.membership.join(self._begin(now_ns), found_early_ns)
        return self._finish(())

    def leave(self, now_ns: int) -> Ready:
        """Leave the group once all sent messages are acknowledged; an event Left follows."""
        self.membership.leave(self._begin(now_ns))
        return self._finish(())

    def abort(self, now_ns: int) -> Ready:
        """End this incarnation at once; report the messages not known to have arrived."""
        out = self._begin(now_ns)
        if self.phase != OVER:
            self.membership.terminate(Left(False), out)
        return self._finish(())

    def expel(self, member: Address, now_ns: int) -> Ready:
        """Ask the coordinator to expel a live member, which may return as a new incarnation."""
        if self.view is None or member not in self.view.members or member == self.me:
            raise LocalProtocolError(
                f"{member} is not another member of this view: expel a current member"
            )
        self._expel_attempts_left[member] = _EXPEL_ATTEMPTS - 1
        self._request_expel((member,), self._begin(now_ns))
        return self._finish(())

    def _request_expel(self, members: tuple[Address, ...], out: ReadyBuilder) -> None:
        assert self.me not in members, "a member leaves, and does not expel itself"
        acting = self.membership.acting_coordinator
        if self.membership.backing is not None:
            self.membership.backing.note_own(members, out.now_ns)
        if acting == self.me:
            self.membership.coordinator.expel(members, out)
        elif acting is not None:
            to = acting if self.guard is None else None
            for at in range(0, len(members), MAX_NAMED):
                out.transmit(to, Suspect(self.me, members[at : at + MAX_NAMED], True))

    def send(
        self,
        payloads: Sequence[bytes],
        now_ns: int,
        *,
        to: Address | None = None,
        mode: DeliveryMode | None = None,
        wait: bool = True,
        timeout_ns: int | None = None,
        loopback: bool | None = None,
    ) -> Ready:
        """Send messages to the group, or to one member, in the given order.

        ``ticket`` of the returned ready names the send. With ``wait=False`` all messages are taken
        at once or none. ``loopback``: whether the messages are delivered to the sender as well.
        """
        if self.membership.phase in {LEAVING, OVER}:
            raise LocalProtocolError(
                f"this member is {self.phase}: sends are not accepted any more"
            )
        sender = self.endpoint.sender
        if type(payloads) is not Payloads:
            payloads = Payloads.of(payloads)
        expected = self._prediction.send(payloads, now_ns, to, mode, wait, timeout_ns, loopback)
        if expected is not None:
            return expected
        send_mode = sender.check(payloads, to, mode, timeout_ns)
        ticket = sender.submit(
            payloads,
            send_mode,
            to,
            self._begin(now_ns),
            wait=wait,
            timeout_ns=timeout_ns,
            loopback=loopback,
            mode_given=mode is not None,
        )
        ready = self._finish_streams(())
        ready.ticket = ticket
        return ready

    def set_next_mode(self, mode: DeliveryMode) -> None:
        """Send the next message to the group, and no other, in ``mode`` (OL-04)."""
        self.endpoint.sender.set_next_mode(mode)

    def cancel(self, ticket: int, now_ns: int) -> Ready:
        """Give up a waiting send. Without a GivenUp event in the ready, the send was accepted."""
        self.endpoint.sender.give_up(ticket, "cancel", self._begin(now_ns))
        return self._finish(())

    def close_connection(self, peer: Address, now_ns: int) -> Ready:
        """Close the connection to ``peer`` once idle; the next send to ``peer`` opens another."""
        self.connections.close(peer, self._begin(now_ns))
        return self._finish(())

    def consumed(self, messages: int, now_ns: int) -> Ready:
        """Note that the application has consumed messages, which makes room for as many more."""
        self.endpoint.check_consumed(messages)
        self.endpoint.on_consumed(messages, self._begin(now_ns))
        return self._finish_streams(())

    def confirm_stored(self, marks: Mapping[Address, int], now_ns: int) -> Ready:
        """Note the last stored seqno of each stream, and acknowledge the streams at once."""
        self.endpoint.check_stores()
        self.endpoint.on_stored(marks, self._begin(now_ns))
        return self._finish(())

    def set_xmit_interval(self, xmit_interval_ns: int, now_ns: int) -> Ready:
        """Switch retransmission off (0 or less) or on; queued and missing messages stay as such."""
        self._begin(now_ns)
        self.endpoint.apply_xmit_interval(xmit_interval_ns)
        return self._finish(())

    def provide(
        self, transfer: int, state: bytes | None, now_ns: int, *, failed: bool = False
    ) -> Ready:
        """Answer ``StateWanted(transfer, …)`` with the state as of then.

        None if there is no state; ``failed`` if the application failed to make one.
        """
        self.state_transfer.provide(transfer, state, self._begin(now_ns), failed=failed)
        return self._finish(())

    # Inputs of the network

    def receive(self, datagram: bytes, now_ns: int) -> Ready:
        """Handle a datagram with any content."""
        if (expected := self.receive_expected(datagram, now_ns)) is not None:
            return expected
        try:
            decoded = decode(datagram, opened=self._sealed)
        except RemoteProtocolError as error:
            # Garbage is counted and has no other effect: nothing that is due happens either.
            self._begin(now_ns).drop(error.reason)
            return self._out.build(self._timers.next_ns)
        return self.receive_decoded(decoded, now_ns)

    def receive_expected(self, datagram: bytes, now_ns: int) -> Ready | None:
        """Handle a datagram on the short path, or return None without an effect."""
        return self._prediction.receive(datagram, now_ns, opened=self._sealed)

    def receive_decoded(self, datagram: Datagram, now_ns: int) -> Ready:
        """Act on a decoded datagram: first on frames about streams, then on the membership."""
        sender = datagram.sender
        if self.phase in {NEW, OVER}:
            self._begin(now_ns).drop("no member", peer=sender)
            return self._finish(())
        if datagram.group != self.group or (
            datagram.addressee is not None and datagram.addressee != self.me.incarnation
        ):
            return self._finish(self._dispatcher.on_datagram(datagram, self._begin(now_ns)))
        if self.guard is not None and (sender in self.guard.restricted or not datagram.view_key):
            datagram = self._restrict(self.guard, datagram, now_ns)
        stream = self.inbound.get(sender)
        if stream is not None:
            # Any datagram of a member is a heartbeat, whatever it is about.
            self._on_traffic(sender, now_ns)
        about = [frame for frame in datagram.frames if type(frame) in _MEMBERSHIP_FRAMES]
        if not about:
            if stream is None and sender != self.me:
                self._notify_non_member(datagram, self._begin(now_ns))
            return self._finish(self._dispatcher.on_datagram(datagram, self._begin(now_ns)))
        out = self._begin(now_ns)
        if sender == self.me:
            # A multicast network returns the datagrams of this member.
            out.drop("own", peer=sender)
            return self._finish(())
        if self.guard is not None:
            about[:] = self._verify(self.guard, datagram, about, out)  # type: ignore[arg-type]
        rest = tuple(frame for frame in datagram.frames if type(frame) not in _MEMBERSHIP_FRAMES)
        if rest and stream is not None:
            for moved in self._dispatcher.on_frames(datagram._replace(frames=rest), stream, out):
                self.endpoint.deliveries.deliver_and_ack(moved, out)
        elif rest:
            self._dispatcher.on_stranger(datagram._replace(frames=rest), out)
        for frame in about:
            out.count(RECEIVED_COUNTERS[type(frame)])
            self.membership.on_frame(sender, frame, out)  # type: ignore[arg-type]
        return self._finish(())

    def receive_all(self, datagrams: Sequence[bytes], now_ns: int) -> list[Ready]:
        """Handle datagrams that arrived together, like ``receive`` for each, with fewer readies.

        Datagrams that concern only the streams of members share the end of the input. Consecutive
        runs are handled as a single run.
        """
        if len(datagrams) == 1:
            expected = self._prediction.receive(datagrams[0], now_ns, opened=self._sealed)
            if expected is not None:
                return [expected]
        answers: list[Ready] = []
        touched: dict[tuple[Address, int], InboundStream] = {}
        dispatcher, on_traffic = self._dispatcher, self._on_traffic
        out = self._begin(now_ns)
        if len(datagrams) == 1:
            decoded: Iterable[tuple[Datagram | RemoteProtocolError, int]] = (
                (decode_or_error(datagrams[0], opened=self._sealed), 1),
            )
        else:
            decoded = decode_coalesced(datagrams, opened=self._sealed)
        for datagram, times in decoded:
            if isinstance(datagram, RemoteProtocolError):
                out.drop(datagram.reason)
                continue
            stream = self._stream_of(datagram)
            if stream is not None:
                if times > 1:
                    out.count(RECEIVED_COUNTERS[Data], times - 1)
                on_traffic(datagram.sender, now_ns)
                if self.guard is not None and (
                    datagram.sender in self.guard.restricted or not datagram.view_key
                ):
                    datagram = self._restrict(self.guard, datagram, now_ns)  # noqa: PLW2901
                for moved in dispatcher.on_frames(datagram, stream, out):
                    touched[moved.key] = moved
                continue
            # Any other datagram is a separate input; earlier datagrams are delivered first.
            for moved in touched.values():
                self.endpoint.deliveries.deliver_and_ack(moved, out)
            touched = {}
            answers.append(self.receive_decoded(datagram, now_ns))
        answers.append(
            self._finish(touched.values()) if answers else self._finish_streams(touched.values())
        )
        return answers

    def _verify(
        self,
        guard: SignatureGuard,
        datagram: Datagram,
        about: Sequence[MembershipFrame],
        out: ReadyBuilder,
    ) -> list[MembershipFrame]:
        """Return the frames about membership with a right signature: they are a heartbeat."""
        verified, sender = guard.open(datagram, about, out), datagram.sender
        if verified and guard.was_newest:
            assert self.membership.backing is not None
            self.membership.backing.note_signed(sender)
            self.failure_detector.on_traffic(sender, out.now_ns)
        return verified

    def _restrict(self, guard: SignatureGuard, datagram: Datagram, now_ns: int) -> Datagram:
        """Drop the frames that the key of the datagram or the role of the sender does not permit.

        A key of the ring is enough for signed frames only: whoever has left the group has it too.
        """
        out = self._begin(now_ns)
        permitted = []
        for frame in datagram.frames:
            if not datagram.view_key and type(frame) not in _MEMBERSHIP_FRAMES:
                out.drop("view key", peer=datagram.sender)
            elif guard.permits(datagram.sender, frame):
                permitted.append(frame)
            else:
                out.drop("role", peer=datagram.sender)
        return datagram._replace(frames=tuple(permitted))

    def _stream_of(self, datagram: Datagram) -> InboundStream | None:
        """Return the stream of the sender, if the datagram concerns streams and this member."""
        if datagram.group != self.group or self.membership.phase in {NEW, OVER}:
            return None
        if datagram.addressee is not None and datagram.addressee != self.me.incarnation:
            return None
        for frame in datagram.frames:
            if type(frame) in _NON_STREAM_FRAMES:
                return None
        return self.inbound.get(datagram.sender)

    def _notify_non_member(self, datagram: Datagram, out: ReadyBuilder) -> None:
        """Send the view to a non-member, if addressed directly or as the acting coordinator."""
        assert datagram.sender not in self.inbound
        if self.view is not None and (datagram.addressee is not None or self.membership.is_acting):
            self.membership.send_alive(datagram.sender, out, rate_limited=True)

    def note_evidence(self, member: Address, evidence: DeathEvidence, now_ns: int) -> Ready:
        """Act on a hint that ``member`` is gone: verify that at once."""
        out = self._begin(now_ns)
        out.count(f"evidence.{evidence}")
        if self.phase in {MEMBER, LEAVING} and self.failure_detector.on_evidence(
            member, evidence, out
        ):
            self.membership.report_dead(out)
        return self._finish(())

    # Inputs of the clock

    def tick(self, now_ns: int) -> Ready:
        """Install the pending view and do no more, or fire all due timers."""
        if self.membership.pending is not None:
            # A separate input, so that messages before and after the view are distinguishable.
            return self._install(self.membership.pending, now_ns)
        out = self._begin(now_ns)
        self.endpoint.divide_receive_buffers(now_ns)
        for name in self._timers.due(now_ns):
            self._fire(name, out)
        return self._finish(())

    def fire_timer(self, name: str, now_ns: int) -> Ready:
        """Fire one timer, due or not, and no other."""
        self._fire(name, self._begin(now_ns))
        return self._finish(())

    def _fire(self, name: str, out: ReadyBuilder) -> None:
        if self.membership.phase == OVER:
            # A timer that fired before this one has ended the incarnation.
            return
        handler = _TIMER_HANDLERS.get(name)
        if handler is None:
            self.endpoint.fire(name, out)
            return
        out.trace("TIMER", self.me, reason=name)
        self._timers.arm(name, None)
        handler(self, out)

    def _on_heartbeat_timer(self, out: ReadyBuilder) -> None:
        self._prune_non_members(out)
        sent_ns = out.last_sent_ns if self.guard is None else self.guard.last_sent_ns
        assert sent_ns is not None
        is_news = self.failure_detector.on_interval(sent_ns, out)
        self.membership.report_dead(out, again=not is_news)
        if self._expel_attempts_left:
            self._request_expel(tuple(sorted(self._expel_attempts_left)), out)
            self._expel_attempts_left = {
                member: left - 1 for member, left in self._expel_attempts_left.items() if left > 1
            }

    def _report_slow_receivers(self, out: ReadyBuilder) -> None:
        """Report the members that keep a window from moving; by policy request their expulsion."""
        if (
            self._pause_ended_ns is not None
            and out.now_ns - self._pause_ended_ns < self.config.slow_receiver_after_ns
        ):
            # This process was paused, and could not see its windows move: watch them anew first.
            for stream in self.endpoint.outbounds():
                stream.restart_progress_watch(out.now_ns)
            self.endpoint.connections.note_changes()
            return
        before = len(out.events)
        self.endpoint.report_slow_receivers(out)
        blocked = [event for event in out.events[before:] if isinstance(event, SlowReceivers)]
        members = tuple(sorted({m for event in blocked for m in event.members} - {self.me}))
        if members and self.config.on_slow_receiver == "expel":
            self._request_expel(members, out)
        elif members:
            # A receiver that reads slowly hears this member all the same.
            self.membership.hearing.start(members, out)

    # On a view

    def install(self, view: View, *_: Any, **__: Any) -> Ready:
        """Refuse: the views of a member come from the membership."""
        raise LocalProtocolError(
            f"cannot install view {view.id.number}: a member gets views from its membership"
        )

    def _install(self, roster: Roster, now_ns: int) -> Ready:
        """Install the view accepted by the membership."""
        view, endpoint = roster.view, self.endpoint
        absent = {entry.name: entry.address for entry in roster.absent}
        returning = self._returning_members(roster)
        endpoint.check_view(view, absent, returning)
        out = self._begin(now_ns)
        touched = endpoint.install_view(
            view, out, absent=absent, returning=returning, announce=self.membership.admitted
        )
        self.membership.on_installed(out)
        self._prune_non_members(out)
        assert self.membership.pending is None, "one view is installed at a time"
        return self._finish(touched)

    def _returning_members(self, roster: Roster) -> dict[Address, Address]:
        """Return the new durable members, with the last address known under the name of each."""
        before = self.membership.roster
        if before is None:
            return {}
        here = {entry.address for entry in before.entries}
        last = {
            entry.name: entry.address for entry in (*before.entries, *before.absent) if entry.name
        }
        new = [entry for entry in roster.entries if entry.address not in here]
        return {entry.address: last[entry.name] for entry in new if entry.name in last}

    def _prune_non_members(self, out: ReadyBuilder) -> None:
        """Forget when non-members were last notified, and the pending expulsions of non-members."""
        members, notes = self.membership.members, out if self.guard is None else self.guard
        assert notes.last_sent_ns is not None, "a member notes when it sends"
        notes.last_sent_ns = {
            to: at_ns for to, at_ns in notes.last_sent_ns.items() if to is None or to in members
        }
        self._expel_attempts_left = {
            member: left for member, left in self._expel_attempts_left.items() if member in members
        }

    # For tests and simulation

    def check_invariants(self) -> None:
        """Raise AssertionError if the machines of this member contradict each other."""
        endpoint, membership = self.endpoint, self.membership
        endpoint.check_invariants()
        membership.check_invariants()
        assert endpoint.state_transfer is self.state_transfer, "one state transfer sees deliveries"
        assert self._ended == (membership.phase == OVER), "streams end with their incarnation"
        if membership.roster is None:
            assert endpoint.view is None, "no view without a roster"
        else:
            assert endpoint.view == membership.roster.view, "streams are in the view of the roster"
            assert membership.members == set(membership.roster.view.members)
        if membership.phase == MEMBER:
            assert endpoint.view is not None, "a member has a view"
        if self._ended:
            assert self._timers.next_ns is None, "an incarnation that is over has no timers"
        elif membership.pending is not None:
            assert timers.VIEW in self._timers, "a pending view is installed by a tick"
        assert all(left > 0 for left in self._expel_attempts_left.values())
        assert self.me not in self._expel_attempts_left, "no member expels itself"


def _ignore(_member: Address, _now_ns: int) -> None:
    """Take an unsigned datagram for no heartbeat."""


_TIMER_HANDLERS: dict[str, Callable[[Member, ReadyBuilder], None]] = {
    timers.SLOW_RECEIVER: Member._report_slow_receivers,
    timers.HEARTBEAT: Member._on_heartbeat_timer,
    timers.COORDINATE: lambda member, out: member.membership.on_timer(out),
    timers.VIEW: lambda member, out: None,  # noqa: ARG005 - a tick installs before any timer fires
}
"""What the timers of the membership do; every other timer belongs to the endpoint."""
