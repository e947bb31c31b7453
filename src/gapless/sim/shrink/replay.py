"""Replays of a candidate: is the run fair, and does the same check still fail?

A candidate is *sound* if the checks apply: every member of the last view runs and has installed the
view, every paused process resumes, and no fault strikes after the calm. The replay runs on a
network with only the faults of the script. If a bug is planted, the candidate must also pass every
check without the bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gapless.errors import GaplessError
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.mutants.catalogue import plant
from gapless.sim.scenario.diagram import MAX_DIAGRAM_EVENTS, measure_memory_always
from gapless.sim.script import (
    HEAL,
    ZERO,
    ApplyDigest,
    ChangePartition,
    CrashProcess,
    InstallView,
    PauseProcess,
    ResumeProcess,
    SaveDigest,
    Script,
    SendMessages,
    StartProcess,
)
from gapless.sim.world.world import World

if TYPE_CHECKING:
    from gapless.faults.faults import Crossing
    from gapless.protocol.ready import Ready
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.script import Action
    from gapless.sim.shrink.minimizer import ShrinkCase
    from gapless.wire import Datagram


def is_sound(script: Script) -> bool:
    """Return whether the checks apply to a script (membership: docs/internals/invariants.md)."""
    actions = script.actions
    if any(before.at_ns > after.at_ns for before, after in pairwise(actions)):
        return False
    if any(
        action.at_ns > script.calm_ns for action in actions if not isinstance(action, SendMessages)
    ):
        return False
    whole = _self_managed_is_sound(actions) if script.membership else _membership_is_sound(actions)
    return _loss_is_only(script) and whole


def _self_managed_is_sound(actions: list[Action]) -> bool:
    """Return whether no view is installed, and every pause and every partition ends."""
    started: set[str] = set()
    paused: set[str] = set()
    cut: set[str] = set()
    for action in actions:
        if isinstance(action, StartProcess):
            started.add(action.who)
        elif isinstance(action, ChangePartition):
            cut = cut - {action.who} if action.what == HEAL else cut | {action.who}
        elif (
            isinstance(action, (InstallView, SaveDigest, ApplyDigest)) or action.who not in started
        ):
            return False
        elif isinstance(action, PauseProcess):
            paused.add(action.who)
        elif isinstance(action, (ResumeProcess, CrashProcess)):
            paused.discard(action.who)
    return bool(started) and not paused and not cut


def _membership_is_sound(actions: list[Action]) -> bool:
    alive: dict[str, str] = {}
    latest: dict[str, str] = {}
    started: set[str] = set()
    views: dict[str, int] = {}
    lists: dict[int, tuple[str, ...]] = {}
    paused: set[str] = set()
    for action in actions:
        node = action.who.rstrip("'")
        if isinstance(action, StartProcess):
            if node in alive or len(action.who) <= len(latest.get(node, "")):
                return False
            alive[node] = latest[node] = action.who
            started.add(action.who)
        elif isinstance(action, CrashProcess) and alive.get(node) == action.who:
            del alive[node]
        elif isinstance(action, PauseProcess):
            paused.add(action.who)
        elif isinstance(action, ResumeProcess):
            paused.discard(action.who)
        elif isinstance(action, InstallView):
            if not (_install_is_sound(action, views, lists) and started.issuperset(action.members)):
                return False
        elif not isinstance(action, ChangePartition) and action.who not in started:
            return False
    if any(
        action.digest == ZERO and action.number != min(lists)
        for action in actions
        if isinstance(action, InstallView)
    ):
        # Only a group that has just begun has streams that all start at zero.
        return False
    living, last = set(alive.values()), max(lists, default=0)
    installed = all(views.get(name) == last for name in living)
    return installed and living == set(lists.get(last, ())) and not paused & living


def _install_is_sound(
    action: InstallView, views: dict[str, int], lists: dict[int, tuple[str, ...]]
) -> bool:
    if action.who not in action.members or views.get(action.who, 0) >= action.number:
        return False
    views[action.who] = action.number
    return lists.setdefault(action.number, action.members) == action.members


def _loss_is_only(script: Script) -> bool:
    return not script.only_loss or all(fate.lost for fate in script.fates.values())


# Replays


class _FaultTimes:
    """Records the time of the last fault, and nothing else of a run."""

    def __init__(self) -> None:
        self.last_ns = -1

    def begin(self, t_ns: int, member: MemberModel) -> None:
        """Ignore a start."""

    def act(self, t_ns: int, action: Action) -> None:
        """Ignore an action."""

    def step(self, t_ns: int, member: MemberModel, datagram: Datagram | None, ready: Ready) -> None:
        """Ignore a step."""

    def transmit(
        self, t_ns: int, member: MemberModel, crossing: Crossing, copies: int, reason: str
    ) -> None:
        """Note a fault of the network."""
        if reason:
            self.last_ns = t_ns

    def late_timer(self, t_ns: int, late_ns: int) -> None:
        """Note the end of a delay."""
        self.last_ns = max(self.last_ns, t_ns + late_ns)

    def rest(self, t_ns: int) -> None:
        """Ignore the end of the load."""

    def end(self, t_ns: int) -> None:
        """Ignore the end of the run."""


class _ReplayEnded(Exception):  # noqa: N818 - it ends a replay early, and is no error
    """The replay found the wanted violation, or takes too long."""


class Replay:
    """A run of a case that stops as soon as ``wanted`` is violated (any check if empty)."""

    def __init__(self, case: ShrinkCase, wanted: str = "") -> None:
        checks = tuple(check for check in CHECKERS if not wanted or check.id == wanted)
        self._fault_times = _FaultTimes()
        self.world = World(case.config, case.script, checkers=checks, tracer=self._fault_times)
        self.world.scheduler.on_event = self._end_early
        measure_memory_always(self.world)
        self._wanted = wanted

    def _end_early(self) -> None:
        world = self.world
        if (world.oracle.violations and self._is_found()) or world.events >= MAX_DIAGRAM_EVENTS:
            raise _ReplayEnded

    def _is_found(self) -> bool:
        return any(
            violation.check == self._wanted or not self._wanted
            for violation in self.world.oracle.violations
        )

    def fails(self) -> bool:
        """Play the script; return whether the check fails, with no fault after the calm."""
        try:
            self.world.run()
        except _ReplayEnded:
            return self._is_found() and self._is_fair()
        except (GaplessError, AssertionError, KeyError):
            # A candidate that cannot be played at all is no simpler form of anything.
            return False
        return self._is_found() and self._is_fair()

    def _is_fair(self) -> bool:
        return self._fault_times.last_ns <= self.world.script.calm_ns

    def holds(self) -> bool:
        """Play the script; return whether the run settles and every check passes."""
        return not self.fails() and self._is_fair() and self.world.oracle.settled


@dataclass(slots=True)
class FailurePredicate:
    """Decides on a candidate: is the run sound, and does ``check`` fail because of ``bug``?"""

    check: str
    bug: str = ""
    events: int = 0

    def __call__(self, case: ShrinkCase) -> bool:
        """Return whether ``case`` still fails as required."""
        if not is_sound(case.script):
            return False
        with plant(self.bug):
            replay = Replay(case, self.check)
            failed = replay.fails()
        self.events += replay.world.events
        if failed and self.bug:
            control = Replay(case)
            failed = control.holds()
            self.events += control.world.events
        return failed
