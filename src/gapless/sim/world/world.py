"""The world: members, network, time and applications in one thread, out of one seed or script.

On every event, in the order of virtual time and then of creation: a datagram arrives, a timer
fires, an application acts, a view comes. The member's answer goes through one ``pump``: transmits
to the network, deliveries to the application, the deadline to the clock, everything to the oracle.

The world is perfect but for what the script and the faults say. After ``calm_ns`` no fault strikes;
the world runs on until the group has settled, then for a while more, in which it must be silent.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from hashlib import blake2b
from heapq import heappop
from sys import byteorder
from typing import TYPE_CHECKING, Any

from gapless.faults.faults import NEVER_NS
from gapless.faults.frame_names import incarnation_address, node_number
from gapless.identity import Marks, View
from gapless.protocol.endpoint import Endpoint
from gapless.sim.checkers.liveness import SLOW_CLOCK_PERCENT, connection_slack_ns
from gapless.sim.script import (
    ZERO,
    ApplyDigest,
    CancelSend,
    ChangePartition,
    CloseConnection,
    CrashProcess,
    InstallView,
    LeaveGroup,
    PauseProcess,
    ResumeProcess,
    SaveDigest,
    Script,
    SendMessages,
    SetReadDelay,
    SetRetransmitInterval,
    StartProcess,
)
from gapless.sim.world.host import Host
from gapless.sim.world.process_model import ProcessModel
from gapless.wire.codec import run_room_bytes

if TYPE_CHECKING:
    from gapless.identity import Address, Digest
    from gapless.sim.script import Action

_SETTLE_EVERY = 16
_MAX_EVENTS = 300_000
_MAX_EVENTS_PER_MOMENT = 20_000
_MOMENT_NS = 100_000


class World(ProcessModel):
    """One simulated group: :meth:`run` it, or drive it with :meth:`act` and :meth:`run_until`."""

    # Time

    def _run(self, until_ns: int, most_events: int = NEVER_NS, *, to_settle: bool = False) -> None:
        """Run events due up to ``until_ns``, until there were more than ``most_events`` in all."""
        heap, violations = self._heap, self.oracle.violations if self.fail_fast else ()
        leap_ns = self.network.delay_ns
        while heap and self.events <= most_events and not violations:
            at_ns = heap[0][0]
            # Whether the group has settled is looked at only now and then, and always before the
            # time makes a leap.
            if (
                to_settle
                and (at_ns > self.now_ns + leap_ns or not self.events % _SETTLE_EVERY)
                and self.is_settled()
            ):
                break
            if at_ns > until_ns:
                break
            _, _, handler, args = heappop(heap)
            self.events += 1
            self.now_ns = at_ns
            if at_ns > self._moment_ns:
                self._moment_ns, self._events_in_moment = at_ns + _MOMENT_NS, 0
            else:
                self._events_in_moment += 1
                if self._events_in_moment > _MAX_EVENTS_PER_MOMENT:
                    self._stop_livelock()
                    return
            handler(*args)
            if self.on_event is not None:
                self.on_event()

    def _stop_livelock(self) -> None:
        """Report a group that keeps itself busy without letting time pass, and end the run."""
        self.oracle.t_ns, self.oracle.current_member = self.now_ns, None
        self.oracle.report(
            "S16", f"more than {_MAX_EVENTS_PER_MOMENT} events happen in {_MOMENT_NS // 1000} us"
        )
        self._heap.clear()
        self._pending_actions = 0

    def run_until(self, until_ns: int) -> None:
        """Let everything happen that is due up to ``until_ns``, and move the time there."""
        self._run(until_ns)
        self.now_ns = max(self.now_ns, until_ns)

    def run(self) -> None:
        """Run the script to its end: the faults, the calm, the settling, the silence."""
        if self.script.membership:
            self._set_expectations()
        self.run_until(self.script.calm_ns - 1)
        self._allow_for_backlog()
        self.settle()
        if self.oracle.settled:
            self.rest()
        self.close()

    def _allow_for_backlog(self) -> None:
        """Extend the bounds where links are FIFO: all frames wait for the last late one."""
        backlog_ns = self.network.backlog_ns(self.now_ns)
        if self.script.fifo:
            backlog_ns += max((host.per_message_ns for host in self._alive()), default=0)
        first_ns, second_ns = self.oracle.bounds_ns
        self.oracle.bounds_ns = first_ns + backlog_ns, second_ns + backlog_ns

    def settle(self, give_up_ns: int | None = None) -> bool:
        """Run until every message is stable and no send waits; return whether it was in time."""
        give_up_ns = self._give_up_ns() if give_up_ns is None else give_up_ns
        self._run(give_up_ns, self.events + _MAX_EVENTS, to_settle=True)
        if self.script.membership and not self._heap:
            self.now_ns = max(
                self.now_ns, self.oracle.last_fault_ns
            )  # everybody is gone: nothing happens any more
        self.oracle.settled = self.is_settled()
        return self.oracle.settled

    def _give_up_ns(self) -> int:
        """Return when to give up: in the worst case every waiting fragment takes B2."""
        waiting = [
            entry.payload
            for host in self._alive()
            if host.member_model
            for entry in host.member_model.stream.queue
        ]
        last_ns = 0
        if self._pending_actions:
            last_ns = max(action.at_ns for action in self.script.actions)
            sends = (action for action in self.script.actions if isinstance(action, SendMessages))
            waiting += (payload for action in sends for payload in action.payloads)
        room_bytes = run_room_bytes(self.config.max_frame_bytes)
        pieces = sum(2 + len(payload) // room_bytes for payload in waiting)
        pieces += sum(
            host.member.waiting_sends for host in self._alive() if host.member is not None
        )
        each_ns = self.oracle.bounds_ns[1] + connection_slack_ns(self.config)
        group_ns = 2 * self.oracle.group_bound_ns
        last_ns = max(last_ns, self.oracle.last_fault_ns)
        if not self.config.retransmits:
            last_ns += (
                self.config.stall_after_ns * SLOW_CLOCK_PERCENT // 100
            )  # what does not come is named only then
        return max(self.now_ns, last_ns) + group_ns + (3 + pieces) * each_ns

    def is_settled(self) -> bool:
        """Return whether nothing is under way that somebody still needs."""
        if self._pending_actions:
            return False
        if self.script.membership:
            self._check_convergence()
            if (
                self.oracle.converged_ns is None
                or not self._has_all_states()
                or not self._is_confirmed()
            ):
                return False
        return all(host.is_quiet(self._by_node) for host in self._alive())

    def rest(self) -> None:
        """Watch the settled group for a while: it must be silent."""
        self.oracle.resting = True
        config = self.config
        rest_ns = 3 * max(config.xmit_interval_ns, config.tail_delay_ns)
        if self.script.membership:
            rest_ns = max(rest_ns, 3 * config.heartbeat_interval_ns, 3 * config.merge_interval_ns)
        self.oracle.rested_ns = rest_ns
        if self.tracer is not None:
            self.tracer.rest(self.now_ns)
        self.run_until(self.now_ns + rest_ns)
        self.oracle.resting = False

    def close(self) -> None:
        """Let the checks look at the whole run."""
        if self.tracer is not None:
            self.tracer.end(self.now_ns)
        self.oracle.link_counters = self.network.link_counters
        if self.script.only_loss:
            self.oracle.cost = self.network.data_lost, self.network.data_bursts
        self.oracle.close(self.now_ns)

    def digest(self) -> str:
        """Return the determinism digest: equal for equal runs in any process and Python."""
        log = array("q", self._log)
        if byteorder == "big":
            log.byteswap()
        return blake2b(log.tobytes(), digest_size=16).hexdigest()

    def recorded(self) -> Script:
        """Return the script of this run: its actions and every decision of the faults."""
        script = self.script
        clocks, actions = dict(script.clocks), list(script.actions)
        fates, late_ns = dict(self.network.fates), dict(self.late_ns)
        return replace(script, clocks=clocks, actions=actions, fates=fates, late_ns=late_ns)

    # Actions

    def _act(self, action: Action) -> None:
        self._pending_actions -= 1
        self.act(action)

    def act(self, action: Action) -> None:
        """Perform an action now; postpone it if the process is paused, drop it if it ended."""
        if self.tracer is not None and not isinstance(
            action, (SendMessages, ChangePartition, SaveDigest, ApplyDigest)
        ):
            self.tracer.act(self.now_ns, action)
        if isinstance(action, StartProcess):
            self._start(action)
            return
        if isinstance(action, ChangePartition):
            self._change_partition(action)
            return
        host = self.hosts.get(action.who.rstrip("'"))
        if (
            host is None
            or host.member is None
            or not (self.script.membership or host.incarnation_name == action.who)
        ):
            return
        too_early = isinstance(action, SendMessages) and host.member.view is None
        if too_early or (host.paused and not isinstance(action, (ResumeProcess, CrashProcess))):
            self._pending_actions += 1
            host.postponed.append(action)
        else:
            _ACTIONS[type(action)](self, host, action)

    def _act_postponed(self, host: Host) -> None:
        actions, host.postponed = host.postponed, []
        for action in actions:
            self._act(action)

    def _install(self, host: Host, action: InstallView) -> None:
        members = tuple(incarnation_address(name) for name in action.members)
        view = View.of(action.number, *members)
        for name in action.members:
            self._first_view.setdefault(name, action.number)
        digest = self._digest_of(action)
        member = host.member
        assert member is not None
        assert host.member_model is not None
        if host.address not in members or (member.view is not None and view.id <= member.view.id):
            return
        self.oracle.on_install(
            host.member_model, view, digest, self.now_ns, host.clock.local_ns(self.now_ns)
        )
        self._call(host, "install", member.install, view, digest=digest)
        self._act_postponed(host)

    def _digest_of(self, action: InstallView) -> Digest | None:
        if action.digest == ZERO:
            return {incarnation_address(name): Marks(0, 0, 0) for name in action.members}
        noted = self._saved_digests.get(action.digest)
        if noted is None:
            return None
        new = [
            incarnation_address(name)
            for name in action.members
            if self._first_view[name] == action.number
        ]
        return {**noted, **dict.fromkeys(new, Marks(0, 0, 0))}

    def _save_digest(self, host: Host, action: SaveDigest) -> None:
        assert host.member is not None
        self._saved_digests[action.key] = host.member.digest()

    def _apply_digest(self, host: Host, action: ApplyDigest) -> None:
        assert isinstance(host.member, Endpoint), "a member learns its digests by itself"
        digest = self._saved_digests.get(action.key)
        if digest is not None:
            self.oracle.on_digest(digest)
            self._call(host, "learn", host.member.set_digest, digest)

    def _send(self, host: Host, action: SendMessages) -> None:
        member = host.member
        assert member is not None
        if host.member_model is not None and host.member_model.leaving_ns is not None:
            return  # the application has said its farewell
        to = None
        if action.to:
            to = self._member_at_node(host, action.to)
            if to is None:
                return  # the application knows its view, and does not send to one that is not there
        self._call(
            host,
            "send",
            member.send,
            action.payloads,
            wait=action.wait,
            timeout_ns=action.timeout_ns,
            loopback=action.loopback,
            to=to,
            mode=action.mode,
        )

    @staticmethod
    def _member_at_node(host: Host, node: str) -> Address | None:
        """Return the member of the host's view that lives at ``node``."""
        assert host.member_model is not None
        return next(
            (peer for peer in host.member_model.view_members if peer.node == node_number(node)),
            None,
        )

    def _close(self, host: Host, action: CloseConnection) -> None:
        peer = self._member_at_node(host, action.to)
        assert host.member is not None
        if peer is not None:
            self._call(host, "close", host.member.close_connection, peer)

    def _tune(self, host: Host, action: SetRetransmitInterval) -> None:
        assert host.member is not None
        self.oracle.retransmission_retuned = True
        self._call(host, "tune", host.member.set_xmit_interval, action.xmit_interval_ns)

    def _cancel(self, host: Host, action: CancelSend) -> None:
        assert host.member is not None
        if action.nth <= len(host.tickets):
            self._call(host, "cancel", host.member.cancel, host.tickets[action.nth - 1])

    def _pause(self, host: Host, action: PauseProcess) -> None:
        host.paused = True

    def _resume(self, host: Host, action: ResumeProcess) -> None:
        host.paused = False
        while host.buffer and not host.paused:
            parcel, said = host.buffer.popleft()
            host.buffered_bytes -= len(parcel[0])
            self.network.arrive(parcel)
            self._receive(host, parcel, said)
        self._act_postponed(host)
        if host.member is not None:
            self._arm_timer(host, host.due_ns)
            self._schedule_read(host)

    def _read(self, host: Host, action: SetReadDelay) -> None:
        host.slow = action.per_message_ns > 0
        host.per_message_ns = action.per_message_ns
        self._schedule_read(host)


_ACTIONS: dict[type, Any] = {
    InstallView: World._install,
    LeaveGroup: World._leave,
    SaveDigest: World._save_digest,
    ApplyDigest: World._apply_digest,
    SendMessages: World._send,
    CancelSend: World._cancel,
    CloseConnection: World._close,
    SetRetransmitInterval: World._tune,
    PauseProcess: World._pause,
    ResumeProcess: World._resume,
    CrashProcess: World._crash,
    SetReadDelay: World._read,
}
