"""Shrinking: from a failing run to the few lines of script that still fail, for a person to read.

On a failing seed: its recorded script is replayed on a network that is perfect but for what the
script says. If the same check fails, pieces are taken out and what is left is made simpler, as long
as that check still fails (simpler.py). A candidate is only tried if it is *sound*: it must be a run
that the checks have a right to oracle, where every member of the last view lives and knows it,
whoever pauses goes on, and no fault strikes after the calm. With a planted bug there is one
condition more: without the bug nothing may fail.

Everything is a function of the script: the same seed gives the same scenario. There is no clock in
it; what bounds the work is a number of replays and a number of events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gapless.errors import GaplessError, LocalProtocolError
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.runner import default_messages, plan_of, world_of
from gapless.sim.scenario.actions import (
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
from gapless.sim.scenario.diagram import MAX_DIAGRAM_EVENTS, measure_memory_always
from gapless.sim.scenario.scenario_file import (
    Scenario,
    find_mutant,
    format_head,
    format_settings,
    plant,
    play,
)
from gapless.sim.swarm.stream_swarm import MESSAGES
from gapless.sim.world.tracer import SimulationTracer
from gapless.sim.world.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.config import Config
    from gapless.faults.faults import Crossing
    from gapless.protocol.ready import Ready
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.profile_cost import ProfileCellOrigin
    from gapless.sim.scenario.actions import Action
    from gapless.sim.world.host import Host
    from gapless.wire import Datagram

MAX_TRIES = 4000
"""Replays that one shrink may take."""
MAX_EVENTS = 1_000_000
"""Events that all replays of one shrink may have together; three times as many where members make their own views."""

READABLE_BYTES = 8
"""The size from which on a message can say which one it is."""

_FEWER_MESSAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 50)

_T = TypeVar("_T")


class CaseWeight(NamedTuple):
    """How much there is to read in a case, the most important first."""

    items: int
    lines: int
    messages: int
    tiny: int
    sent_bytes: int
    letters: int
    times_ns: int
    text: str


class ShrinkCase(NamedTuple):
    """What is shrunk: a configuration and a script."""

    config: Config
    script: Script

    def weight(self) -> CaseWeight:
        """Return how much there is to read; no two cases weigh the same."""
        script = self.script
        sends = [action.payloads for action in script.actions if isinstance(action, SendMessages)]
        text = format_head(Scenario(script, self.config))
        return CaseWeight(
            len(script.actions) + len(script.fates) + len(script.late_ns) + len(script.clocks),
            text.count("\n"),
            sum(map(len, sends)),
            # Messages too small to hold their own number are hard to tell apart.
            sum(len(content) < READABLE_BYTES for payloads in sends for content in payloads),
            sum(len(content) for payloads in sends for content in payloads),
            len(text),
            sum(action.at_ns for action in script.actions),
            text,
        )


class NotReproducedError(GaplessError):
    """A seed fails, but the script that it recorded does not, or is not fair: only the seed can be repeated."""


# Whether a script is a fair run


def is_sound(script: Script) -> bool:
    """Return whether the checks have a right to oracle a script (see views.py for the promises of membership)."""
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
    """Return whether members that make their own views can: nobody is told one, and what stops them comes to an end."""
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
    told = all(views.get(name) == last for name in living)
    return told and living == set(lists.get(last, ())) and not paused & living


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


class _FaultTimes(SimulationTracer):
    """Takes note of when faults strike, and of nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.last_ns = -1

    def transmit(
        self,
        t_ns: int,
        life: MemberModel,
        crossing: Crossing,
        copies: int,
        reason: str,
    ) -> None:
        """Note a fate that came true."""
        if reason:
            self.last_ns = t_ns

    def step(self, t_ns: int, life: MemberModel, said: Datagram | None, ready: Ready) -> None:
        """Leave the step untold."""

    def act(self, t_ns: int, action: Action) -> None:
        """Leave the action untold."""


class _ReplayEnded(Exception):  # noqa: N818 - it ends a replay early, and is no error
    """The violation that a replay looks for is there, or the replay takes too long."""


class Replay(World):
    """A world that stops as soon as ``wanted`` is violated (any check if it is empty)."""

    def __init__(self, case: ShrinkCase, wanted: str = "") -> None:
        checks = tuple(check for check in CHECKERS if not wanted or check.id == wanted)
        super().__init__(case.config, case.script, checkers=checks)
        self.tracer = self.fault_times = _FaultTimes()
        self.on_event = self._end_early
        measure_memory_always(self)
        self.wanted = wanted

    def _end_early(self) -> None:
        """End the replay if it was enough."""
        if (self.oracle.violations and self._is_found()) or self.events >= MAX_DIAGRAM_EVENTS:
            raise _ReplayEnded

    def _is_found(self) -> bool:
        return any(
            violation.check == self.wanted or not self.wanted
            for violation in self.oracle.violations
        )

    def _timer_delay_ns(self, host: Host) -> int:
        late_ns = super()._timer_delay_ns(host)
        if late_ns:
            self.fault_times.last_ns = max(self.fault_times.last_ns, self.now_ns + late_ns)
        return late_ns

    def fails(self) -> bool:
        """Play the script; return whether the violation is there, by faults that were allowed to strike."""
        try:
            self.run()
        except _ReplayEnded:
            return self._is_found() and self._is_fair()
        except (GaplessError, AssertionError, KeyError):
            # A candidate that cannot be played at all is no simpler form of anything.
            return False
        return self._is_found() and self._is_fair()

    def _is_fair(self) -> bool:
        return self.fault_times.last_ns <= self.script.calm_ns

    def holds(self) -> bool:
        """Play the script; return whether it comes to its end and every check holds."""
        return not self.fails() and self._is_fair() and self.oracle.settled


@dataclass(slots=True)
class FailurePredicate:
    """The question that decides on a candidate: is it sound, and does ``check`` fail because of ``bug``?"""

    check: str
    bug: str = ""
    events: int = 0

    def __call__(self, case: ShrinkCase) -> bool:
        """Return whether ``case`` still fails as it should."""
        if not is_sound(case.script):
            return False
        with plant(self.bug):
            replay = Replay(case, self.check)
            failed = replay.fails()
        self.events += replay.events
        if failed and self.bug:
            control = Replay(case)
            failed = control.holds()
            self.events += control.events
        return failed


# The search


class Minimizer:
    """The smallest case so far, and the ways to try another."""

    def __init__(
        self,
        case: ShrinkCase,
        still_fails: Callable[[ShrinkCase], bool],
        *,
        most_tries: int = MAX_TRIES,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.case = case
        self.tries = 0
        self._still_fails = still_fails
        self._most_tries = most_tries
        self._progress = progress
        self._weight = case.weight()
        self._known = {self._weight.text}

    @property
    def script(self) -> Script:
        """The smallest script so far."""
        return self.case.script

    @property
    def budget_used_up(self) -> bool:
        """Whether the budget is used up."""
        events = getattr(self._still_fails, "events", 0)
        most_events = 3 * MAX_EVENTS if self.script.membership else MAX_EVENTS
        return self.tries >= self._most_tries or events >= most_events

    def attempt(self, candidate: ShrinkCase) -> bool:
        """Make ``candidate`` the smallest case if it is smaller and still fails; return whether it is."""
        if self.budget_used_up:
            return False
        weight = candidate.weight()
        if weight >= self._weight or weight.text in self._known:
            return False
        self._known.add(weight.text)
        self.tries += 1
        if self._progress is not None:
            self._progress(self.tries)
        if not self._still_fails(candidate):
            return False
        self.case, self._weight = candidate, weight
        return True

    def change(self, **fields: object) -> bool:
        """Attempt the smallest script with some fields changed."""
        return self.attempt(self.case._replace(script=replace(self.script, **fields)))  # type: ignore[arg-type]

    def minimise(self, items: Sequence[_T], rebuild: Callable[[list[_T]], ShrinkCase]) -> list[_T]:
        """Take out of ``items`` whatever can go: halves, quarters … single ones, until not one more can (ddmin)."""
        left = list(items)
        chunk = len(left)
        while chunk:
            taken = False
            at = len(left)
            while at > 0:
                shorter = left[: max(0, at - chunk)] + left[at:]
                if self.attempt(rebuild(shorter)):
                    left, taken = shorter, True
                at -= chunk
            # Only at the end is a full round without success demanded; before, smaller chunks find
            # more.
            chunk = chunk // 2 if chunk > 1 or not taken else 1
        return left


def shrink(
    case: ShrinkCase,
    still_fails: Callable[[ShrinkCase], bool],
    *,
    most_tries: int = MAX_TRIES,
    progress: Callable[[int], None] | None = None,
) -> Minimizer:
    """Return the search that ended at the smallest case; ``case`` itself must fail."""
    from gapless.sim.shrink.passes import PASSES

    search = Minimizer(case, still_fails, most_tries=most_tries, progress=progress)
    before = None
    while before != search.case and not search.budget_used_up:
        before = search.case
        for simplify in PASSES:
            if not search.budget_used_up:
                simplify(search)
    return search


# From a seed to a scenario


class SeedOrigin(NamedTuple):
    """The run that is to be shrunk, as ``gapless sim`` names it."""

    seed: int
    messages: int = MESSAGES
    members: int | None = None
    config: Config | None = None
    profile: str | None = None
    membership: bool = False

    @property
    def command(self) -> str:
        """The command that repeats the run."""
        usual = default_messages(membership=self.membership)
        messages = f" --messages {self.messages}" if self.messages != usual else ""
        members = f" --members {self.members}" if self.members is not None else ""
        profile = f" --profile {self.profile}" if self.profile is not None else ""
        knobs = "" if self.config is None else ";".join(format_settings(self.config).split())
        properties = f' --properties "{knobs}"' if knobs else ""
        membership = " --membership" if self.membership else ""
        return f"gapless sim {self.seed}{membership}{messages}{members}{profile}{properties}"

    def world(self) -> World:
        """Return the world before its first event; it records what happens."""
        plan = plan_of(
            self.seed,
            messages=self.messages,
            members=self.members,
            profile=self.profile,
            config=self.config,
            membership=self.membership,
        )
        return world_of(plan, record=True)


@dataclass(slots=True)
class ShrinkResult:
    """A shrunk failure: the scenario with its outcome, the check, and what it took."""

    scenario: Scenario
    check: str
    origin: SeedOrigin | ProfileCellOrigin
    tries: int

    @property
    def script_lines(self) -> int:
        """How long the script is, comments aside."""
        return sum(
            1
            for line in format_head(self.scenario).splitlines()
            if line and not line.startswith("#")
        )

    @property
    def file_name(self) -> str:
        """The name under which the scenario is kept: that of the planted bug, or the check and a hash."""
        if self.scenario.bug:
            words = re.findall(r"[a-z0-9]+", self.scenario.bug.replace("+", " plus ").lower())
            return f"{'-'.join(words)}.txt"
        digest = blake2b(
            format_head(replace(self.scenario, notes=())).encode(), digest_size=4
        ).hexdigest()
        return f"{self.check}-{digest}.txt"

    def as_dict(self) -> dict[str, object]:
        """Return everything that a program may want to know."""
        return {
            "seed": self.origin.seed,
            "command": self.origin.command,
            "check": self.check,
            "planted": self.scenario.bug,
            "lines": self.script_lines,
            "replays": self.tries,
            "scenario": self.scenario.text(),
        }


def recorded(origin: SeedOrigin | ProfileCellOrigin, bug: str = "") -> tuple[ShrinkCase, str]:
    """Run a seed and return its recorded case, and the first check that failed (empty: none)."""
    with plant(bug):
        world = origin.world()
        try:
            world.run()
        except LocalProtocolError as error:
            # What the swarm asks for is always possible, so the machine has lost its way; no replay
            # gets further.
            raise NotReproducedError(
                f"the run breaks off: {error}; repeat it by: {origin.command}"
            ) from error
    violations = world.oracle.violations
    return ShrinkCase(world.config, world.recorded()), violations[0].check if violations else ""


def shrink_seed(
    origin: SeedOrigin | ProfileCellOrigin,
    *,
    bug: str = "",
    most_tries: int = MAX_TRIES,
    progress: Callable[[int], None] | None = None,
) -> ShrinkResult | None:
    """Shrink the run of a failing seed to a scenario; None if it does not fail."""
    case, check = recorded(origin, bug)
    if not check:
        return None
    if not is_sound(case.script):
        raise NotReproducedError(
            f"seed {origin.seed} violates {check}, but its script is not a fair run (docs/scenarios.md says what is): "
            f"look at what was drawn before the check is blamed; repeat it by: {origin.command}"
        )
    trial = FailurePredicate(check, bug)
    case, origin = _smaller_start(origin, trial) or (case, origin)
    if not trial(case):
        raise NotReproducedError(
            f"seed {origin.seed} violates {check}, but the script that it recorded does not; "
            f"what is left is the seed: {origin.command}"
        )
    search = shrink(case, trial, most_tries=most_tries, progress=progress)
    scenario = Scenario(search.script, search.case.config, bug, notes=_notes(origin, bug))
    scenario.outcome = play(scenario).lines
    return ShrinkResult(scenario, check, origin, search.tries)


def _smaller_start(
    origin: SeedOrigin | ProfileCellOrigin, trial: FailurePredicate
) -> tuple[ShrinkCase, SeedOrigin | ProfileCellOrigin] | None:
    """Return the same seed with fewer messages, if it fails in the same way: a shorter way down."""
    for messages in _FEWER_MESSAGES:
        if messages < origin.messages:
            smaller = origin._replace(messages=messages)
            case, check = recorded(smaller, trial.bug)
            if check == trial.check and trial(case):
                return case, smaller
    return None


def _notes(origin: SeedOrigin | ProfileCellOrigin, bug: str) -> tuple[str, ...]:
    source = f"Shrunk from: {origin.command}"
    return (f"A planted bug: {find_mutant(bug).bug}.", source) if bug else (source,)


# From a planted bug to a scenario


_HUNT = ((4, 60), (16, 60), (MESSAGES, 40))
"""Messages of each member, and how many seeds are tried with so many: small runs first."""


def shrink_bug(
    bug: str, *, attempts: int = 3, progress: Callable[[int], None] | None = None
) -> ShrinkResult | None:
    """Hunt a planted bug, shrink the first few seeds that it makes fail, and return the lightest; None if it lives."""
    tried = 0
    profile = find_mutant(bug).profile or None
    for messages, seeds in _HUNT:
        found: list[ShrinkResult] = []
        for seed in range(seeds):
            tried += 1
            if progress is not None:
                progress(tried)
            try:
                origin = SeedOrigin(
                    seed, messages, profile=profile, membership=find_mutant(bug).membership
                )
                shrunk = shrink_seed(origin, bug=bug)
            except NotReproducedError:
                continue
            if shrunk is not None:
                found.append(shrunk)
            if len(found) == attempts:
                break
        if found:
            return min(found, key=_weight)
    return None


def _weight(shrunk: ShrinkResult) -> CaseWeight:
    return ShrinkCase(shrunk.scenario.config, shrunk.scenario.script).weight()
