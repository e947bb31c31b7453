"""Shrinking: reduce a failing run to the few lines of script that still fail.

On a failing seed: the shrinker replays the recorded script (``gapless.sim.shrink.replay``). If the
same check fails, each pass of ``gapless.sim.shrink.passes`` removes or simplifies entries while the
check still fails, until no pass finds a smaller case. The outcome is a scenario file.

Everything is a function of the script: the same seed gives the same scenario.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import GaplessError, LocalProtocolError
from gapless.sim.mutants.catalogue import mutant_by_name, plant
from gapless.sim.runner import default_messages, plan_of, world_of
from gapless.sim.scenario.scenario_file import Scenario, format_head, format_settings, play
from gapless.sim.shrink.minimizer import MAX_TRIES, CaseWeight, Minimizer, ShrinkCase
from gapless.sim.shrink.passes import PASSES
from gapless.sim.shrink.replay import FailurePredicate, is_sound
from gapless.sim.swarm.stream_swarm import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.config import Config
    from gapless.sim.profile_cost import ProfileCellOrigin
    from gapless.sim.world.world import World

_FEWER_MESSAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 50)


class NotReproducedError(GaplessError):
    """A seed fails, but its recorded script passes or is not fair: only the seed fails again."""


def shrink(
    case: ShrinkCase,
    still_fails: Callable[[ShrinkCase], bool],
    *,
    most_tries: int = MAX_TRIES,
    progress: Callable[[int], None] | None = None,
) -> Minimizer:
    """Return the search that ended at the smallest case; ``case`` itself must fail."""
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
    """The run to shrink, as ``gapless sim`` names the run."""

    seed: int
    messages: int = MESSAGES
    members: int | None = None
    config: Config | None = None
    profile: str | None = None
    membership: bool = False

    @property
    def command(self) -> str:
        """The command to repeat the run."""
        usual = default_messages(membership=self.membership)
        messages = f" --messages {self.messages}" if self.messages != usual else ""
        members = f" --members {self.members}" if self.members is not None else ""
        profile = f" --profile {self.profile}" if self.profile is not None else ""
        knobs = "" if self.config is None else ";".join(format_settings(self.config).split())
        properties = f' --properties "{knobs}"' if knobs else ""
        membership = " --membership" if self.membership else ""
        return f"gapless sim {self.seed}{membership}{messages}{members}{profile}{properties}"

    def world(self) -> World:
        """Return the world before its first event; the world records the run."""
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
    """A shrunk failure: the scenario with its outcome, the check, and the number of replays."""

    scenario: Scenario
    check: str
    origin: SeedOrigin | ProfileCellOrigin
    tries: int

    @property
    def script_lines(self) -> int:
        """The number of lines of the script, without comments."""
        return sum(
            1
            for line in format_head(self.scenario).splitlines()
            if line and not line.startswith("#")
        )

    @property
    def file_name(self) -> str:
        """The file name of the scenario: from the planted bug, or from the check and a hash."""
        if self.scenario.bug:
            words = re.findall(r"[a-z0-9]+", self.scenario.bug.replace("+", " plus ").lower())
            return f"{'-'.join(words)}.txt"
        digest = blake2b(
            format_head(replace(self.scenario, notes=())).encode(), digest_size=4
        ).hexdigest()
        return f"{self.check}-{digest}.txt"

    def as_dict(self) -> dict[str, object]:
        """Return the result for JSON output."""
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
    """Run a seed and return the recorded case, and the first failed check (empty: none)."""
    with plant(bug):
        world = origin.world()
        try:
            world.run()
        except LocalProtocolError as error:
            # Every call of the swarm is legal, so this is a bug of the machine; no replay gets
            # further.
            raise NotReproducedError(
                f"the run ended with an error: {error}; repeat the run with: {origin.command}"
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
    """Shrink the run of a failing seed to a scenario; None if no check fails."""
    case, check = recorded(origin, bug)
    if not check:
        return None
    if not is_sound(case.script):
        raise NotReproducedError(
            f"seed {origin.seed} violates {check}, but its script is not a fair "
            "run (see docs/internals/scenarios.md): check the drawn faults "
            f"before blaming the check; repeat the run with: {origin.command}"
        )
    trial = FailurePredicate(check, bug)
    case, origin = _smaller_start(origin, trial) or (case, origin)
    if not trial(case):
        raise NotReproducedError(
            f"seed {origin.seed} violates {check}, but its recorded script does "
            f"not; only the seed repeats the failure: {origin.command}"
        )
    search = shrink(case, trial, most_tries=most_tries, progress=progress)
    scenario = Scenario(search.script, search.case.config, bug, notes=_notes(origin, bug))
    scenario.outcome = play(scenario).lines
    return ShrinkResult(scenario, check, origin, search.tries)


def _smaller_start(
    origin: SeedOrigin | ProfileCellOrigin, trial: FailurePredicate
) -> tuple[ShrinkCase, SeedOrigin | ProfileCellOrigin] | None:
    """Return the same seed with fewer messages, if the failure is the same: a shorter search."""
    for messages in _FEWER_MESSAGES:
        if messages < origin.messages:
            smaller = origin._replace(messages=messages)
            case, check = recorded(smaller, trial.bug)
            if check == trial.check and trial(case):
                return case, smaller
    return None


def _notes(origin: SeedOrigin | ProfileCellOrigin, bug: str) -> tuple[str, ...]:
    source = f"Shrunk from: {origin.command}"
    return (f"A planted bug: {mutant_by_name(bug).bug}.", source) if bug else (source,)


# From a planted bug to a scenario


_HUNT = ((4, 60), (16, 60), (MESSAGES, 40))
"""Messages of each member, and how many seeds are tried with so many: small runs first."""


def shrink_bug(
    bug: str, *, attempts: int = 3, progress: Callable[[int], None] | None = None
) -> ShrinkResult | None:
    """Hunt a bug, shrink the first failing seeds, return the lightest; None if no seed fails."""
    tried = 0
    profile = mutant_by_name(bug).profile or None
    for messages, seeds in _HUNT:
        found: list[ShrinkResult] = []
        for seed in range(seeds):
            tried += 1
            if progress is not None:
                progress(tried)
            try:
                origin = SeedOrigin(
                    seed, messages, profile=profile, membership=mutant_by_name(bug).membership
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
