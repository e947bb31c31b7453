"""The life cycle of simulated processes, as a real runtime handles processes.

On a start: the host gets a member of the next incarnation. Where members make their own views, the
member looks for a group under the host's durable name, if any.

On a view that the member decided on: a separate tick installs the view. The oracle learns of the
view first.

On the end of an incarnation: an expelled member joins again at once as a new incarnation; a member
that has left is gone. Postponed actions survive an expulsion, because an action is meant for the
host in any incarnation.

On a request for the application's state: the application serializes its state; the receiver resumes
from the received state.

On a delivery to an application with a disk: the application stores the delivery after a random
delay, and confirms the storage to the member after another delay. A
crash loses deliveries that are not stored yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.faults.faults import NEVER_NS, DriftingClock, Partition
from gapless.identity import group_id
from gapless.protocol.events import (
    Expelled,
    Left,
    Lost,
    NameInUse,
    Oversized,
    StateReceived,
    StateWanted,
)
from gapless.protocol.ready import GROUP as TO_GROUP
from gapless.rng import split
from gapless.sim.script import HEAL, ONE_WAY, PARTITION, ChangePartition
from gapless.sim.short_path import path_hook
from gapless.sim.world.application import SimulatedApplication
from gapless.sim.world.convergence import Convergence, self_managed
from gapless.sim.world.host import Host
from gapless.sim.world.member_driver import MemberDriver

if TYPE_CHECKING:
    from gapless.identity import Address
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.ready import Ready
    from gapless.sim.script import StartProcess
    from gapless.sim.world.action_queue import ActionQueue
    from gapless.sim.world.run_context import RunContext

GROUP = group_id("gapless.sim")
"""The group of every simulated member."""

_RARELY = 0.25
_STATE_SIZES_BYTES = (0, 1500, 20_000, 60_000)
_DISK_NS = (0, 200_000, 2_000_000, 10_000_000, 50_000_000)
"""How long the storage of a delivery may take."""


class ProcessModel:
    """Starts, ends and serves the processes of all hosts; ``driver`` runs their members."""

    def __init__(
        self, context: RunContext, actions: ActionQueue, *, keep_payloads: bool = False
    ) -> None:
        self.driver = MemberDriver(context, self, keep_payloads=keep_payloads)
        self.convergence = Convergence(context)
        self._context = context
        self._config = context.config
        self._script = context.script
        self._scheduler = context.scheduler
        self._oracle = context.oracle
        self._actions = actions
        self._disk_rng = split(context.script.seed, "disk")

    # Starting

    def start(self, action: StartProcess) -> None:
        """Start a process; where members make their own views, end the current process first."""
        host = self._host_of(action.who)
        if not self._script.membership:
            self._start_endpoint(host, action.who)
        elif host.member is None:
            host.durable, host.wants_state, host.next_start = action.durable, action.state, None
            host.stores_deliveries = action.stores
            self._new_process(host)
            self._join(host)
        else:
            host.next_start = action

    def _new_process(self, host: Host) -> None:
        """In a sealed group: give the process of a host a seal of its own."""
        if self._context.sealed_group is not None:
            self._context.sealed_group.start_process(host)

    def _new_incarnation(self, host: Host) -> None:
        """In a sealed group: give the incarnation of a host its number on the wire."""
        if self._context.sealed_group is not None:
            self._context.sealed_group.start_incarnation(host)

    def _host_of(self, who: str) -> Host:
        """Return the host of an incarnation; the first incarnation creates the host."""
        node = who.rstrip("'")
        host = self._context.hosts.get(node)
        if host is None:
            host = Host(node, self._script.clocks.get(node, DriftingClock()))
            self._context.hosts[node] = self._context.by_node[host.node] = host
        return host

    def _start_endpoint(self, host: Host, name: str) -> None:
        context, seed = self._context, self._script.seed
        self._new_process(host)
        rarely = self._rare_branches(name) if self._script.rare else None
        config = context.member_configs.get(host.name, self._config)
        member = host.start(name, GROUP, config, seed, tracing=True, rarely=rarely)
        member.prediction.takes_general = self._path_hook(name)
        self._new_incarnation(host)
        host.member_model = self._oracle.on_incarnation_start(
            host.address, host.incarnation_name, member
        )
        context.stream_coverage.on_incarnation_start(host.member_model)
        if context.tracer is not None:
            context.tracer.begin(self._scheduler.now_ns, host.member_model)

    def _join(self, host: Host) -> None:
        """Start the next incarnation of a host, and let the member look for a group."""
        name = host.next_incarnation_name()
        rarely = self._rare_branches(name) if self._script.rare else None
        member = host.start_self_managed(
            name, GROUP, self._config, self._script.seed, rarely=rarely
        )
        member.endpoint.prediction.takes_general = self._path_hook(name)
        host.application = SimulatedApplication()
        self._new_incarnation(host)
        model = host.member_model = self._oracle.on_incarnation_start(
            host.address, host.incarnation_name, member
        )
        model.durable, model.transferring = bool(host.durable), host.wants_state
        self._context.stream_coverage.on_incarnation_start(model)
        if not host.stores_deliveries:
            self.driver.call(host, "join", member.join, state=host.wants_state)
            return
        model.resumed, model.stored = dict(host.disk), host.disk
        self.driver.call(
            host, "join", member.join, state=host.wants_state, resume=host.disk, stores=True
        )

    def _rare_branches(self, name: str) -> RareBranchHook:
        """Return the rare-branch hook of an incarnation: enabled branches, one time in four."""
        on, draw = frozenset(self._script.rare), split(self._script.seed, f"rare {name}").random
        scheduler, calm_ns = self._scheduler, self._script.calm_ns

        def rarely(branch: str) -> bool:
            return branch in on and scheduler.now_ns < calm_ns and draw() < _RARELY

        return rarely

    def _path_hook(self, name: str) -> RareBranchHook | None:
        """Return the choice of the path of the inputs of an incarnation."""
        return path_hook(self._context.short_path, split(self._script.seed, f"path {name}"))

    # Views

    def install_pending_view(self, host: Host) -> bool:
        """Install the view that the member decided on; return False if there is none."""
        pending = self_managed(host).pending if self._script.membership else None
        if pending is None:
            return False
        model, oracle, now_ns = host.member_model, self._oracle, self._scheduler.now_ns
        assert model is not None
        oracle.on_view_pending()
        local_ns = host.clock.local_ns(now_ns)
        oracle.on_install(model, pending.view, None, now_ns, local_ns, roster=pending)
        if any(address not in oracle.model.members for address in pending.view.members):
            # S15 has reported a member that never existed; the model has nothing to compare with.
            self.crash(host)
            return True
        self.driver.call(host, "install", self_managed(host).tick)
        self.convergence.check()
        if host.member_model is model and host.member is not None:
            self._actions.perform_postponed(host)
        return True

    def change_partition(self, action: ChangePartition) -> None:
        """Record a partition change; where members make their views, cut or heal the network."""
        context = self._context
        if context.membership_coverage is None:
            context.stream_coverage.on_partition_change(action)
            return
        now_ns = self._oracle.t_ns = self._scheduler.now_ns
        context.membership_coverage.on_partition_change(action)
        side, cuts = frozenset(action.who.split(",")), context.network.partitions
        if action.what == HEAL:
            context.network.partitions = [cut for cut in cuts if cut.side != side]
        elif action.what in {PARTITION, ONE_WAY}:
            cuts.append(Partition(side, now_ns, NEVER_NS, symmetric=action.what == PARTITION))

    # The end of an incarnation

    def leave(self, host: Host) -> None:
        """Let a member leave its group, unless the member is already leaving."""
        member = self_managed(host)
        assert host.member_model is not None
        if member.phase != "leaving":
            host.member_model.leaving_ns = self._scheduler.now_ns
            self.driver.call(host, "leave", member.leave)

    def crash(self, host: Host) -> None:
        """End a process without notice, and discard its postponed actions."""
        self._actions.discard_postponed(host)
        host.next_start = None
        self._end_incarnation(host)

    def handle_events(self, host: Host, ready: Ready) -> None:
        """React to an expulsion, a confirmed leave, and requests for the application's state."""
        for event in ready.events:
            if isinstance(event, Expelled):
                self._end_incarnation(host)
                self._join(host)
                return
            if isinstance(event, (Left, NameInUse)):
                self._end_incarnation(host)
                self._actions.discard_postponed(host)
                if host.next_start is not None:
                    self.start(host.next_start)
                return
            if isinstance(event, StateWanted):
                self._provide_state(host, event)

    def _end_incarnation(self, host: Host) -> None:
        """End a process; postponed actions stay."""
        model, postponed = host.member_model, host.postponed
        assert model is not None
        for copy in host.crash():
            self._context.network.drop(copy)
        self._oracle.on_incarnation_end(model)
        host.postponed = postponed

    # The application's state

    def load_state(self, host: Host, ready: Ready) -> None:
        """Load a received state into the application, unless the state was damaged in transit."""
        for event in ready.events:
            if (
                isinstance(event, StateReceived)
                and event.state
                and event.state in self._oracle.states
            ):
                host.application.load(event.state)

    def _provide_state(self, host: Host, event: StateWanted) -> None:
        model = host.member_model
        assert model is not None
        size_bytes = split(self._script.seed, f"state {host.name}").choice(_STATE_SIZES_BYTES)
        state = host.application.serialize(f"{host.incarnation_name} {event.transfer}", size_bytes)
        applied = {key: last for key, (last, _, _) in host.application.applied.items()}
        self._oracle.on_state_provided(model, state, applied)
        self.driver.call(host, "provide", self_managed(host).provide, event.transfer, state)

    # The disk of an application that stores its deliveries

    def queue_for_disk(self, host: Host, ready: Ready) -> None:
        """Queue deliveries and reported losses for the disk, to be stored a little later."""
        losses = [event for event in ready.events if isinstance(event, (Lost, Oversized))]
        deliveries = [delivery for delivery in ready.deliveries if delivery.kind == TO_GROUP]
        for origin, last in [(each.origin, each.last) for each in (*losses, *deliveries)]:
            if origin != host.address and last > host.disk.get(origin, 0):
                if not host.disk_queue:
                    self._scheduler.push(
                        self._scheduler.now_ns + self._disk_delay_ns(),
                        self._write_to_disk,
                        host,
                        host.incarnation_name,
                    )
                host.disk_queue[origin] = max(last, host.disk_queue.get(origin, 0))

    def _disk_delay_ns(self) -> int:
        in_calm = self._scheduler.now_ns >= self._script.calm_ns
        return 0 if in_calm else self._disk_rng.choice(_DISK_NS)

    def _write_to_disk(self, host: Host, incarnation: str) -> None:
        """Store the queue. A crash loses the queue; a paused process stores later."""
        if host.member is None or host.incarnation_name != incarnation:
            return
        scheduler = self._scheduler
        if host.paused:
            scheduler.push(scheduler.now_ns + _DISK_NS[-1], self._write_to_disk, host, incarnation)
            return
        marks, host.disk_queue = host.disk_queue, {}
        host.disk.update(
            {origin: max(last, host.disk.get(origin, 0)) for origin, last in marks.items()}
        )
        confirm_ns = scheduler.now_ns + self._disk_delay_ns()
        scheduler.push(confirm_ns, self._confirm_stored, host, incarnation, marks)

    def _confirm_stored(self, host: Host, incarnation: str, marks: dict[Address, int]) -> None:
        """Confirm the stored marks to the member: never after a crash, later during a pause."""
        if host.member is None or host.incarnation_name != incarnation:
            return
        scheduler = self._scheduler
        if host.paused:
            retry_ns = scheduler.now_ns + _DISK_NS[-1]
            scheduler.push(retry_ns, self._confirm_stored, host, incarnation, marks)
        else:
            self.driver.call(host, "stored", host.member.confirm_stored, marks)
