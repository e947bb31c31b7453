"""The world: members, network, time and applications in a single thread, from a seed or script.

A world has a scheduler (virtual time), a process model (starts and ends processes), a driver (runs
the members), a network and an oracle. The world performs the actions of the script, and decides
when a run is over.

Without faults and script nothing goes wrong. After ``calm_ns`` no fault strikes. The world runs
until the group has settled, and then a while longer, during which the group must be silent.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from hashlib import blake2b
from sys import byteorder
from typing import TYPE_CHECKING, Any

from gapless.faults.faults import NEVER_NS
from gapless.faults.frame_names import incarnation_address, node_number
from gapless.identity import Marks, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.sim.checkers.liveness import SLOW_CLOCK_PERCENT
from gapless.sim.script import (
    ZERO,
    ApplyDigest,
    CancelSend,
    ChangePartition,
    CloseConnection,
    CrashProcess,
    InstallView,
    LeaveGroup,
    NoteEvidence,
    PauseProcess,
    ResumeProcess,
    SaveDigest,
    Script,
    SendMessages,
    SetNextMode,
    SetReadDelay,
    SetRetransmitInterval,
    StartProcess,
)
from gapless.sim.sealing.rotation import Rotation
from gapless.sim.sealing.window_edge import WindowEdge
from gapless.sim.world.action_queue import ActionQueue
from gapless.sim.world.convergence import self_managed
from gapless.sim.world.host import Host
from gapless.sim.world.process_model import ProcessModel
from gapless.sim.world.run_context import RunContext
from gapless.sim.world.scheduler import MAX_EVENTS_PER_MOMENT, MOMENT_NS
from gapless.sim.world.tracer import SimulationTracer
from gapless.wire.codec import run_room_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gapless.config import Config
    from gapless.faults.faults import Fault, LateTimers
    from gapless.identity import Address, Digest
    from gapless.sim.oracle.checker import InvariantChecker
    from gapless.sim.script import Action
    from gapless.sim.sealing.plan import SealingPlan
    from gapless.sim.short_path import ShortPath
    from gapless.sim.world.tracer import RunTracer

_MAX_EVENTS = 300_000
"""Maximum number of events until a group has settled."""


class World:
    """A simulated group: ``run`` plays the script, ``act`` and ``run_until`` drive single steps.

    Args:
        config: The settings of every member.
        script: The actions, the fates of frames and the late timers of the run.
        faults: Faults in the place of the script's fates.
        late_timers: Late timers in the place of the script's late timers.
        checkers: The checkers to run at every step; None for ``CHECKERS``.
        record: Whether to keep every decision of the faults, for ``recorded``.
        trace: Whether to record trace rows.
        tracer: An observer of your own instead of the trace.
        keep_payloads: Whether each host keeps every delivered payload.
        fail_fast: Whether the run ends at the first violation.
        member_configs: The settings of nodes that differ from ``config``, by node name.
        sealing: The keys and the adversary of a sealed group; None for a group without keys.
        short_path: Whether expected inputs take the short path of the machine.
    """

    def __init__(
        self,
        config: Config,
        script: Script,
        *,
        faults: Iterable[Fault] | None = None,
        late_timers: LateTimers | None = None,
        checkers: Iterable[type[InvariantChecker]] | None = None,
        record: bool = False,
        trace: bool = False,
        tracer: RunTracer | None = None,
        keep_payloads: bool = False,
        fail_fast: bool = False,
        member_configs: Mapping[str, Config] | None = None,
        sealing: SealingPlan | None = None,
        short_path: ShortPath = "drawn",
    ) -> None:
        if trace:
            assert tracer is None, "a run has one tracer"
            tracer = SimulationTracer(
                script.seed, config, membership=script.membership, clocks=script.clocks
            )
        self.config = config
        self.script = script
        self.record = record
        self.tracer = tracer
        self._context = context = RunContext(
            config,
            script,
            faults=faults,
            late_timers=late_timers,
            checkers=checkers,
            record=record,
            tracer=tracer,
            fail_fast=fail_fast,
            member_configs=member_configs,
            sealing=sealing,
            short_path=short_path,
        )
        self.scheduler = context.scheduler
        self.network = context.network
        self.oracle = context.oracle
        self.stream_coverage = context.stream_coverage
        self.membership_coverage = context.membership_coverage
        self.hosts = context.hosts
        self._actions = ActionQueue(self.scheduler, self.act)
        self.process_model = ProcessModel(context, self._actions, keep_payloads=keep_payloads)
        self.driver = self.process_model.driver
        self.convergence = self.process_model.convergence
        self.sealed_group = context.sealed_group
        if self.sealed_group is not None:
            Rotation(self.sealed_group, self.hosts, self.driver.copies_in_flight)
            WindowEdge(self.sealed_group, self.hosts, self.driver.inject)
        self._saved_digests: dict[str, Digest] = {}
        self._first_view: dict[str, int] = {}
        for action in script.actions:
            self.schedule(action)

    @property
    def now_ns(self) -> int:
        """The virtual time."""
        return self.scheduler.now_ns

    @property
    def events(self) -> int:
        """How many events have happened."""
        return self.scheduler.events

    def host(self, name: str) -> Host:
        """Return the host of the incarnation called ``name``."""
        return self.hosts[name.rstrip("'")]

    # Time

    def run_until(self, until_ns: int) -> None:
        """Run every event due up to ``until_ns``, and move the time there."""
        self._run(until_ns)
        self.scheduler.now_ns = max(self.now_ns, until_ns)

    def _run(self, until_ns: int, max_events: int = NEVER_NS, *, to_settle: bool = False) -> None:
        goes_on = self.scheduler.run(
            until_ns,
            max_events,
            leap_ns=self.network.delay_ns,
            is_settled=self.is_settled if to_settle else None,
        )
        if not goes_on:
            self.oracle.t_ns, self.oracle.current_member = self.now_ns, None
            self.oracle.report(
                "S16", f"more than {MAX_EVENTS_PER_MOMENT} events happen in {MOMENT_NS // 1000} us"
            )
            self._actions.clear()

    def run(self) -> None:
        """Run the script to its end: the faults, the calm, the settling, the silence."""
        if self.script.membership:
            self.convergence.set_expectations()
        self.run_until(self.script.calm_ns - 1)
        self._allow_for_backlog()
        self.settle()
        if self.oracle.settled:
            self.rest()
        self.close()

    def _allow_for_backlog(self) -> None:
        """Extend the bounds where links are FIFO: all frames wait for the last late frame."""
        backlog_ns = self.network.backlog_ns(self.now_ns)
        if self.script.fifo:
            backlog_ns += max((host.per_message_ns for host in self._context.running()), default=0)
        first_ns, second_ns = self.oracle.bounds_ns
        self.oracle.bounds_ns = first_ns + backlog_ns, second_ns + backlog_ns

    def settle(self, give_up_ns: int | None = None) -> bool:
        """Run until every message is stable and no send waits; return whether in time."""
        give_up_ns = self._give_up_ns() if give_up_ns is None else give_up_ns
        self._run(give_up_ns, self.events + _MAX_EVENTS, to_settle=True)
        if self.script.membership and not self.scheduler.heap:
            # Every process has ended, so no event moves the time any more.
            self.scheduler.now_ns = max(self.now_ns, self.oracle.last_fault_ns)
        self.oracle.settled = self.is_settled()
        return self.oracle.settled

    def _give_up_ns(self) -> int:
        """Return when to give up: in the worst case every waiting fragment takes B2."""
        running = list(self._context.running())
        waiting = [
            entry.payload
            for host in running
            if host.member_model
            for entry in host.member_model.stream.queue
        ]
        last_ns = 0
        if self._actions.pending:
            last_ns = max(action.at_ns for action in self.script.actions)
            sends = (action for action in self.script.actions if isinstance(action, SendMessages))
            waiting += (payload for action in sends for payload in action.payloads)
        room_bytes = run_room_bytes(self.config.max_frame_bytes)
        fragments = sum(2 + len(payload) // room_bytes for payload in waiting)
        fragments += sum(host.member.waiting_sends for host in running if host.member is not None)
        each_ns = self.oracle.bounds_ns[1] + self._context.connection_slack_ns
        group_ns = 2 * self.oracle.group_bound_ns
        last_ns = max(last_ns, self.oracle.last_fault_ns)
        if not self.config.retransmits:
            # A receiver reports a missing message only after this time.
            last_ns += self.config.stall_after_ns * SLOW_CLOCK_PERCENT // 100
        return max(self.now_ns, last_ns) + group_ns + (3 + fragments) * each_ns

    def is_settled(self) -> bool:
        """Return whether no action is pending and no member waits."""
        if self._actions.pending:
            return False
        if self.script.membership and not self.convergence.is_settled():
            return False
        by_node = self._context.by_node
        return all(host.is_quiet(by_node) for host in self._context.running())

    def rest(self) -> None:
        """Watch the settled group for a while: the group must be silent."""
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
        """End the run with the checks of the whole run."""
        if self.tracer is not None:
            self.tracer.end(self.now_ns)
        self.oracle.link_counters = self.network.link_counters
        if self.script.only_loss:
            self.oracle.cost = self.network.data_lost, self.network.data_bursts
        self.oracle.close(self.now_ns)

    def digest(self) -> str:
        """Return the determinism digest: equal for equal runs in any process and Python."""
        log = array("q", self.driver.log)
        if byteorder == "big":
            log.byteswap()
        return blake2b(log.tobytes(), digest_size=16).hexdigest()

    def recorded(self) -> Script:
        """Return the script of this run: its actions and every decision of the faults."""
        script = self.script
        clocks, actions = dict(script.clocks), list(script.actions)
        fates, late_ns = dict(self.network.fates), dict(self.driver.late_ns)
        return replace(script, clocks=clocks, actions=actions, fates=fates, late_ns=late_ns)

    # Actions

    def schedule(self, action: Action) -> None:
        """Perform an action of a script at its time."""
        self._actions.schedule(action)

    def act(self, action: Action) -> None:
        """Perform an action now, or postpone it during a pause; drop it after the process ended."""
        if self.tracer is not None and not isinstance(
            action, (SendMessages, ChangePartition, SaveDigest, ApplyDigest)
        ):
            self.tracer.act(self.now_ns, action)
        if isinstance(action, StartProcess):
            self.process_model.start(action)
            return
        if isinstance(action, ChangePartition):
            self.process_model.change_partition(action)
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
            self._actions.postpone(host, action)
        else:
            _ACTIONS[type(action)](self, host, action)

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
        self.driver.call(host, "install", member.install, view, digest=digest)
        self._actions.perform_postponed(host)

    def _digest_of(self, action: InstallView) -> Digest | None:
        if action.digest == ZERO:
            return {incarnation_address(name): Marks(0, 0, 0) for name in action.members}
        saved = self._saved_digests.get(action.digest)
        if saved is None:
            return None
        joiners = [
            incarnation_address(name)
            for name in action.members
            if self._first_view[name] == action.number
        ]
        return {**saved, **dict.fromkeys(joiners, Marks(0, 0, 0))}

    def _save_digest(self, host: Host, action: SaveDigest) -> None:
        assert host.member is not None
        self._saved_digests[action.key] = host.member.digest()

    def _apply_digest(self, host: Host, action: ApplyDigest) -> None:
        assert isinstance(host.member, Endpoint), "only the script of an endpoint sets digests"
        digest = self._saved_digests.get(action.key)
        if digest is not None:
            self.oracle.on_digest(digest)
            self.driver.call(host, "learn", host.member.set_digest, digest)

    def _send(self, host: Host, action: SendMessages) -> None:
        member = host.member
        assert member is not None
        if host.member_model is not None and host.member_model.leaving_ns is not None:
            return  # the application has left and sends no more
        to = None
        if action.to:
            to = self._member_at_node(host, action.to)
            if to is None:
                return  # the application sees its view, and sends only to members of it
        self.driver.call(
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

    def _set_next_mode(self, host: Host, action: SetNextMode) -> None:
        assert host.member is not None
        host.next_mode = action.mode
        host.member.set_next_mode(action.mode)

    @staticmethod
    def _member_at_node(host: Host, node: str) -> Address | None:
        """Return the member at ``node`` in the view of the host's member."""
        assert host.member_model is not None
        return next(
            (peer for peer in host.member_model.view_members if peer.node == node_number(node)),
            None,
        )

    def _close_connection(self, host: Host, action: CloseConnection) -> None:
        peer = self._member_at_node(host, action.to)
        assert host.member is not None
        if peer is not None:
            self.driver.call(host, "close", host.member.close_connection, peer)

    def _set_retransmit_interval(self, host: Host, action: SetRetransmitInterval) -> None:
        assert host.member is not None
        self.oracle.retransmission_retuned = True
        self.driver.call(host, "tune", host.member.set_xmit_interval, action.xmit_interval_ns)

    def _cancel(self, host: Host, action: CancelSend) -> None:
        assert host.member is not None
        if action.nth <= len(host.tickets):
            self.driver.call(host, "cancel", host.member.cancel, host.tickets[action.nth - 1])

    def _leave(self, host: Host, action: LeaveGroup) -> None:
        self.process_model.leave(host)

    def _crash(self, host: Host, action: CrashProcess) -> None:
        self.process_model.crash(host)

    def _note_evidence(self, host: Host, action: NoteEvidence) -> None:
        peer = self._member_at_node(host, action.to)
        refused = action.evidence is DeathEvidence.REFUSED
        if peer is None or (refused and self.hosts[action.to].member is not None):
            return
        self.driver.call(host, "evidence", self_managed(host).note_evidence, peer, action.evidence)

    def _pause(self, host: Host, action: PauseProcess) -> None:
        host.paused = True

    def _resume(self, host: Host, action: ResumeProcess) -> None:
        host.paused = False
        self.driver.receive_buffered(host)
        self._actions.perform_postponed(host)
        if host.member is not None:
            self.driver.arm_timer(host, host.due_ns)
            self.driver.schedule_read(host)

    def _set_read_delay(self, host: Host, action: SetReadDelay) -> None:
        host.slow = action.per_message_ns > 0
        host.per_message_ns = action.per_message_ns
        self.driver.schedule_read(host)


_ACTIONS: dict[type, Any] = {
    InstallView: World._install,
    LeaveGroup: World._leave,
    SaveDigest: World._save_digest,
    ApplyDigest: World._apply_digest,
    SendMessages: World._send,
    SetNextMode: World._set_next_mode,
    CancelSend: World._cancel,
    CloseConnection: World._close_connection,
    SetRetransmitInterval: World._set_retransmit_interval,
    PauseProcess: World._pause,
    ResumeProcess: World._resume,
    CrashProcess: World._crash,
    NoteEvidence: World._note_evidence,
    SetReadDelay: World._set_read_delay,
}
