"""The life cycle of simulated processes that make their own views, as a real runtime does it.

On a start: a participant is made, under the node's own name and with the next incarnation, and
looks for a group.

On a view: it is installed by a tick of its own; the oracle is told before.

On the end of a life: one that was expelled joins again at once in a new life, as a shell would let
it; one that has left is gone. Who is asked for the application's state gives it, and who gets one
goes on from it.

All actions of a script are meant for the node, whatever life it has; what has to wait for a view
waits through lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.faults.faults import NEVER_NS, DriftingClock, Partition
from gapless.identity import group_id
from gapless.protocol.buggify import never
from gapless.protocol.events import Expelled, Left, Lost, Oversized, StateReceived, StateWanted
from gapless.protocol.member import Member
from gapless.protocol.ready import GROUP as TO_GROUP
from gapless.rng import split
from gapless.sim.checkers.liveness import SLOW_CLOCK_PERCENT
from gapless.sim.checkers.membership import group_bound_ns
from gapless.sim.script import (
    HEAL,
    ONE_WAY,
    PARTITION,
    ChangePartition,
    CrashProcess,
    PauseProcess,
    ResumeProcess,
    ScriptedFates,
    StartProcess,
)
from gapless.sim.world.application import SimulatedApplication
from gapless.sim.world.host import Host
from gapless.sim.world.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.identity import Address, Roster
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.ready import Ready
    from gapless.sim.script import LeaveGroup

GROUP = group_id("gapless.sim")
"""The group that every simulated member belongs to."""

_RARELY = 0.25
_STATE_SIZES_BYTES = (0, 1500, 20_000, 60_000)
_DISK_NS = (0, 200_000, 2_000_000, 10_000_000, 50_000_000)
"""How long it may take until what was handed out is stored."""


class ProcessModel(Scheduler):
    """A stage on which lives begin and end."""

    def _set_expectations(self) -> None:
        """Tell the oracle the bounds of this run, and whether it is free of faults."""
        script, config, oracle = self.script, self.config, self.oracle
        durable = any(
            isinstance(action, StartProcess) and action.durable for action in script.actions
        )
        oracle.group_bound_ns = group_bound_ns(config, script.delay_ns, durable=durable)
        faults = [
            fault
            for fault in self.network.chain.faults
            if not (isinstance(fault, ScriptedFates) and not fault.fates)
        ]
        if (
            faults
            or self.late_timers is not None
            or script.late_ns
            or config.on_slow_receiver == "expel"
        ):
            return
        if any(
            isinstance(action, ChangePartition) and action.what in {PARTITION, ONE_WAY}
            for action in script.actions
        ):
            return
        pauses = [
            action for action in script.actions if isinstance(action, (PauseProcess, ResumeProcess))
        ]
        longest_ns = config.suspect_after_ns * 100 // SLOW_CLOCK_PERCENT
        oracle.fault_free = not pauses
        oracle.only_short_pauses = all(
            0 <= length_ns < longest_ns for length_ns in pause_lengths_ns(pauses)
        )

    # Beginning

    def _host_of(self, who: str) -> Host:
        """Return the host of a node, which is there from its first life on."""
        node = who.rstrip("'")
        host = self.hosts.get(node)
        if host is None:
            host = self.hosts[node] = Host(node, self.script.clocks.get(node, DriftingClock()))
            self._by_node[host.node] = host
        return host

    def _start(self, action: StartProcess) -> None:
        host = self._host_of(action.who)
        if not self.script.membership:
            rarely = self._rare_branches(action.who) if self.script.rare else never
            member = host.start(
                action.who, GROUP, self.config, self.script.seed, tracing=True, rarely=rarely
            )
            host.member_model = self.oracle.on_incarnation_start(
                host.address, host.incarnation_name, member
            )
            self.stream_coverage.on_incarnation_start(host.member_model)
            if self.tracer is not None:
                self.tracer.begin(self.now_ns, host.member_model)
        elif host.member is None:
            host.durable, host.wants_state, host.next_start = action.durable, action.state, None
            host.stores_deliveries = action.stores
            self._join(host)
        else:
            host.next_start = action  # once the present life has ended by itself

    def _join(self, host: Host) -> None:
        """Begin the next life of a node, and let it look for a group."""
        name = host.next_incarnation_name()
        rarely = self._rare_branches(name) if self.script.rare else never
        participant = host.start_self_managed(
            name, GROUP, self.config, self.script.seed, rarely=rarely
        )
        host.application = SimulatedApplication()
        life = host.member_model = self.oracle.on_incarnation_start(
            host.address, host.incarnation_name, participant
        )
        life.durable, life.transferring = bool(host.durable), host.wants_state
        self.stream_coverage.on_incarnation_start(life)
        if not host.stores_deliveries:
            self._call(host, "join", participant.join, state=host.wants_state)
            return
        life.resumed, life.stored = dict(host.disk), host.disk
        self._call(
            host, "join", participant.join, state=host.wants_state, resume=host.disk, stores=True
        )

    # The disk of an application that stores what it gets

    def _queue_for_disk(self, host: Host, ready: Ready) -> None:
        """Queue deliveries and reported losses for the disk; they are stored a little later."""
        heard = [event for event in ready.events if isinstance(event, (Lost, Oversized))]
        found = [delivery for delivery in ready.deliveries if delivery.kind == TO_GROUP]
        for origin, last in [(one.origin, one.last) for one in (*heard, *found)]:
            if origin != host.address and last > host.disk.get(origin, 0):
                if not host.disk_queue:
                    wait_ns = (
                        self._disk_rng.choice(_DISK_NS) if self.now_ns < self.script.calm_ns else 0
                    )
                    self._push(
                        self.now_ns + wait_ns, self._write_to_disk, host, host.incarnation_name
                    )
                host.disk_queue[origin] = max(last, host.disk_queue.get(origin, 0))

    def _write_to_disk(self, host: Host, life: str) -> None:
        """Store the queue. A crash loses the queue; a paused process stores later."""
        if host.member is None or host.incarnation_name != life:
            return
        if host.paused:
            self._push(self.now_ns + _DISK_NS[-1], self._write_to_disk, host, life)
            return
        marks, host.disk_queue = host.disk_queue, {}
        host.disk.update(
            {origin: max(last, host.disk.get(origin, 0)) for origin, last in marks.items()}
        )
        wait_ns = self._disk_rng.choice(_DISK_NS) if self.now_ns < self.script.calm_ns else 0
        self._push(self.now_ns + wait_ns, self._confirm_stored, host, life, marks)

    def _confirm_stored(self, host: Host, life: str, marks: dict[Address, int]) -> None:
        """Confirm the stored marks to the member, unless it crashed; later if it is paused."""
        if host.member is None or host.incarnation_name != life:
            return
        if host.paused:
            self._push(self.now_ns + _DISK_NS[-1], self._confirm_stored, host, life, marks)
        else:
            self._call(host, "stored", host.member.confirm_stored, marks)

    def _rare_branches(self, who: str) -> RareBranchHook:
        """Return the rare-branch hook of one incarnation: enabled branches, one time in four."""
        on, draw = frozenset(self.script.rare), split(self.script.seed, f"rare {who}").random

        def rarely(name: str) -> bool:
            return name in on and self.now_ns < self.script.calm_ns and draw() < _RARELY

        return rarely

    def _change_partition(self, action: ChangePartition) -> None:
        """Note a partition change; where members make their views, cut or heal the network."""
        if self.membership_coverage is None:
            self.stream_coverage.on_partition_change(action)
            return
        self.oracle.t_ns = self.now_ns
        self.membership_coverage.on_partition_change(action)
        side, cuts = frozenset(action.who.split(",")), self.network.partitions
        if action.what == HEAL:
            self.network.partitions = [cut for cut in cuts if cut.side != side]
        elif action.what in {PARTITION, ONE_WAY}:
            cuts.append(Partition(side, self.now_ns, NEVER_NS, symmetric=action.what == PARTITION))

    # Views

    def _tick(self, host: Host) -> None:
        pending = _member_of(host).pending if self.script.membership else None
        if pending is None:
            super()._tick(host)
            return
        life = host.member_model
        assert life is not None
        self.oracle.on_view_pending()
        local_ns = host.clock.local_ns(self.now_ns)
        self.oracle.on_install(life, pending.view, None, self.now_ns, local_ns, roster=pending)
        if any(address not in self.oracle.model.members for address in pending.view.members):
            self._crash(
                host, CrashProcess(self.now_ns, host.incarnation_name)
            )  # S15 has said why; nothing can be judged any more
            return
        self._call(host, "install", _member_of(host).tick)
        self._check_convergence()
        if host.member_model is life and host.member is not None:
            self._act_postponed(host)

    def _act_postponed(self, host: Host) -> None:
        """Let everything happen that had to wait."""
        raise NotImplementedError

    def has_converged(self) -> bool:
        """Return whether all live members are in one view of exactly them, and none is absent."""
        living = list(self._alive())
        rosters = [self._roster_of(host) for host in living]
        first = rosters[0] if rosters else None
        if first is None or any(roster is None or roster.id != first.id for roster in rosters):
            return not living
        return set(first.view.members) == {host.address for host in living} and not first.absent

    def _on_delayed_arrival(self, at_ns: int) -> None:
        """Take note of when something arrives that is late: until then the run has its faults."""
        if self.script.membership:
            self.oracle.last_fault_ns = max(self.oracle.last_fault_ns, at_ns)

    def _has_all_states(self) -> bool:
        """Return whether everybody that wanted the application's state has it."""
        return not any(
            host.member_model is not None and host.member_model.transferring
            for host in self._alive()
        )

    def _is_confirmed(self) -> bool:
        """Return whether no member is suspected and every member has confirmed its view."""
        signs = [_member_of(host).failure_detector for host in self._alive()]
        if any(liveness.dead or liveness._probed_ns for liveness in signs):
            return False
        parts = [_member_of(host).membership for host in self._alive()]
        if not all(part.admitted for part in parts) or any(
            part.coordinator.unconfirmed for part in parts
        ):
            # A member that was not told of its admission asks again, and an unconfirmed one is
            # told again: the group is not silent yet.
            return False
        for life in (host.member_model for host in self._alive()):
            view = None if life is None else life.view
            if life is not None and view is not None and view.id.coordinator == life.address:
                others = view.members[1:]
                return all((view.id, member) in life.confirmed for member in others)
        return True

    @staticmethod
    def _roster_of(host: Host) -> Roster | None:
        participant = _member_of(host)
        is_member = (
            participant.phase == "member" and participant.pending is None and not host.paused
        )
        return participant.roster if is_member else None

    def _check_convergence(self) -> None:
        """Tell the oracle when, after the last fault and action, there is one group."""
        oracle = self.oracle
        if (
            oracle.converged_ns is None
            and self.now_ns >= oracle.last_fault_ns
            and self.has_converged()
        ):
            oracle.on_converged(self.now_ns)

    # The end of a life, and the application's state

    def _leave(self, host: Host, action: LeaveGroup) -> None:
        participant = _member_of(host)
        assert host.member_model is not None
        if participant.phase != "leaving":
            host.member_model.leaving_ns = self.now_ns
            self._call(host, "leave", participant.leave)

    def _load_state(self, host: Host, ready: Ready) -> None:
        """Let the application go on from the state that it is given."""
        for event in ready.events:
            if (
                isinstance(event, StateReceived)
                and event.state
                and event.state in self.oracle.states
            ):
                host.application.load(event.state)

    def _handle_events(self, host: Host, ready: Ready) -> None:
        """Do what a shell does when a life is over, or somebody wants the state."""
        for event in ready.events:
            if isinstance(event, Expelled):
                self._end_incarnation(host)
                self._join(host)
                return
            if isinstance(event, Left):
                self._end_incarnation(host)
                self._pending_actions -= len(host.postponed)
                host.postponed = []
                if host.next_start is not None:
                    self._start(host.next_start)
                return
            if isinstance(event, StateWanted):
                self._provide_state(host, event)

    def _end_incarnation(self, host: Host) -> None:
        life, waiting = host.member_model, host.postponed
        assert life is not None
        for parcel in host.crash():
            self.network.drop(parcel)
        self.oracle.on_incarnation_end(life)
        host.postponed = waiting

    def _provide_state(self, host: Host, event: StateWanted) -> None:
        life = host.member_model
        assert life is not None
        size_bytes = split(self.script.seed, f"state {host.name}").choice(_STATE_SIZES_BYTES)
        state = host.application.serialize(f"{host.incarnation_name} {event.transfer}", size_bytes)
        handed = {key: last for key, (last, _, _) in host.application.applied.items()}
        self.oracle.on_state_provided(life, state, handed)
        self._call(host, "provide", _member_of(host).provide, event.transfer, state)


def _member_of(host: Host) -> Member:
    assert isinstance(host.member, Member), "in this world everybody makes its own views"
    return host.member


def pause_lengths_ns(actions: Iterable[PauseProcess | ResumeProcess]) -> Iterator[int]:
    """Return how long each pause is; a pause that never ends is as long as can be."""
    begun_ns: dict[str, int] = {}
    for action in actions:
        if isinstance(action, PauseProcess):
            begun_ns.setdefault(action.who, action.at_ns)
        elif action.who in begun_ns:
            yield action.at_ns - begun_ns.pop(action.who)
    yield from (NEVER_NS for _ in begun_ns)
