"""Many members die at once: how long until the survivors have the next view.

A group of real processes on a single machine loses a single member by SIGKILL, several times, then
many members at once, several times. Each time the lost members are replaced. The time runs from the
first SIGKILL to the moment when the last survivor has the view with exactly the survivors.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments.failures.processes import MemberGroup, load_average, wait_for_view

if TYPE_CHECKING:
    from collections.abc import Callable

CALM_S = 1.3
"""How long a group rests before the next kill: longer than a heartbeat interval."""


@dataclass
class MassDeath:
    """The times of single and of mass deaths, in seconds."""

    members: int
    killed: int
    one_s: list[float] = field(default_factory=list)
    many_s: list[float] = field(default_factory=list)
    first_many_s: list[float] = field(default_factory=list)
    """When the first survivor had the view without all of the dead."""
    views: list[int] = field(default_factory=list)
    """How many views the survivors needed for each mass death."""
    load: float = 0.0

    @property
    def ratio(self) -> float:
        """How much longer the median mass death takes than the median single death."""
        return round(median(self.many_s) / median(self.one_s), 2)

    def as_dict(self) -> dict[str, Any]:
        """Return the result for a program."""
        return {**asdict(self), "ratio": self.ratio}


def mass_death(
    members: int = 30,
    killed: int = 16,
    rounds: int = 5,
    seed: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> MassDeath:
    """Kill single members and many members, ``rounds`` times each."""
    rng = Random(seed)
    found = MassDeath(members, killed)
    with MemberGroup("deaths") as group:
        group.add(members)
        group.wait_for_size(members)
        for done in range(rounds):
            found.one_s.append(_kill(group, 1, rng, found))
            progress(2 * done + 1)
            found.many_s.append(_kill(group, killed, rng, found))
            progress(2 * done + 2)
    found.load = load_average()
    return found


def _kill(group: MemberGroup, count: int, rng: Random, found: MassDeath) -> float:
    """Kill some members and return how long the others took; then replace the dead."""
    time.sleep(CALM_S)
    victims = rng.sample(list(group.processes.values()), count)
    survivors = [member for member in group.processes.values() if member not in victims]
    before = [len(member.views) for member in survivors]
    start_s = time.monotonic()
    for victim in victims:
        victim.die()
    end_s = wait_for_view(survivors, len(survivors))
    if count > 1:
        found.first_many_s.append(round(min(m.views[-1][0] for m in survivors) - start_s, 3))
        found.views.append(
            max(len(m.views) - seen for m, seen in zip(survivors, before, strict=True))
        )
    group.remove(victims)
    group.add(count)
    group.wait_for_size(len(survivors) + count)
    return round(end_s - start_s, 3)
