"""Convergence: when have the running members become a single group again?

From the last fault and action on, members that make their own views have a bounded time to agree on
a single view with exactly the running members. The oracle learns the time of convergence; from then
on the other deadlines count. A group has settled only if, in addition, every joiner has the
application's state and no member is suspected or unconfirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.faults.faults import NEVER_NS
from gapless.protocol.member import Member
from gapless.sim.checkers.liveness import SLOW_CLOCK_PERCENT
from gapless.sim.checkers.membership import group_bound_ns
from gapless.sim.script import (
    ONE_WAY,
    PARTITION,
    ChangePartition,
    PauseProcess,
    ResumeProcess,
    ScriptedFates,
    StartProcess,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gapless.identity import Roster
    from gapless.sim.world.host import Host
    from gapless.sim.world.run_context import RunContext


class Convergence:
    """Watches whether the running members are a single group."""

    def __init__(self, context: RunContext) -> None:
        self._context = context

    def check(self) -> None:
        """Report the first convergence after the last fault and action."""
        oracle, now_ns = self._context.oracle, self._context.scheduler.now_ns
        if oracle.converged_ns is None and now_ns >= oracle.last_fault_ns and self.has_converged():
            oracle.on_converged(now_ns)

    def has_converged(self) -> bool:
        """Return whether all running members share a single view, and no member is absent."""
        running = list(self._context.running())
        rosters = [_roster_of(host) for host in running]
        first = rosters[0] if rosters else None
        if first is None or any(roster is None or roster.id != first.id for roster in rosters):
            return not running
        return set(first.view.members) == {host.address for host in running} and not first.absent

    def is_settled(self) -> bool:
        """Return whether the group has converged and no work of membership is left."""
        self.check()
        return (
            self._context.oracle.converged_ns is not None
            and self._has_all_states()
            and self._is_confirmed()
        )

    def _has_all_states(self) -> bool:
        """Return whether every member that asked for the application's state has the state."""
        return not any(
            host.member_model is not None and host.member_model.transferring
            for host in self._context.running()
        )

    def _is_confirmed(self) -> bool:
        """Return whether no member is suspected and every member has confirmed its view."""
        members = [self_managed(host) for host in self._context.running()]
        if any(
            member.failure_detector.dead or member.failure_detector._probed_ns for member in members
        ):
            return False
        parts = [member.membership for member in members]
        if not all(part.admitted for part in parts) or any(
            part.coordinator.unconfirmed for part in parts
        ):
            # A member without an answer to its join request repeats it, and the coordinator
            # repeats a view that is not confirmed: the group is not silent yet.
            return False
        for model in (host.member_model for host in self._context.running()):
            view = None if model is None else model.view
            if model is not None and view is not None and view.id.coordinator == model.address:
                others = view.members[1:]
                return all((view.id, member) in model.confirmed for member in others)
        return True

    def set_expectations(self) -> None:
        """Give the oracle the bounds of the run, and whether the run is free of faults."""
        context = self._context
        script, config, oracle = context.script, context.config, context.oracle
        durable = any(
            isinstance(action, StartProcess) and action.durable for action in script.actions
        )
        oracle.group_bound_ns = group_bound_ns(config, script.delay_ns, durable=durable)
        faults = [
            fault
            for fault in context.network.chain.faults
            if not (isinstance(fault, ScriptedFates) and not fault.fates)
        ]
        if (
            faults
            or context.late_timers is not None
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
        oracle.long_paused = {
            node for node, length_ns in pause_lengths_ns(pauses) if length_ns >= longest_ns
        }


def self_managed(host: Host) -> Member:
    """Return the member of a host, in a run in which members make their own views."""
    assert isinstance(host.member, Member), "in this run every member makes its own views"
    return host.member


def _roster_of(host: Host) -> Roster | None:
    """Return the roster of a running member; None while the member joins, leaves or pauses."""
    member = self_managed(host)
    is_member = member.phase == "member" and member.pending is None and not host.paused
    return member.roster if is_member else None


def pause_lengths_ns(actions: Iterable[PauseProcess | ResumeProcess]) -> Iterator[tuple[str, int]]:
    """Return the node and length of each pause; a pause without an end lasts for ever."""
    begun_ns: dict[str, int] = {}
    for action in actions:
        if isinstance(action, PauseProcess):
            begun_ns.setdefault(action.who, action.at_ns)
        elif action.who in begun_ns:
            yield action.who, action.at_ns - begun_ns.pop(action.who)
    yield from ((node, NEVER_NS) for node in begun_ns)
