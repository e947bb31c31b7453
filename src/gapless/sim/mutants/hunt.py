"""The hunt: run seeds of the swarm with a bug in place until a check fails.

The checks are worth what they catch. ``gapless mutants`` prints which check killed which mutant and
after how many seeds; docs/testing.md keeps that table.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import LocalProtocolError
from gapless.sim.mutants.planting import Mutant, planted
from gapless.sim.runner import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class MutantVerdict(NamedTuple):
    """The outcome of one hunt: the check that failed, at which seed, and the number of seeds run.

    ``check`` is empty if the mutant survived.
    """

    mutant: Mutant
    check: str
    seed: int
    seeds: int


def hunt(mutant: Mutant, seeds: int) -> MutantVerdict:
    """Run seeds 0, 1, 2 … with the bug in place until a check fails.

    A seed that fails without the bug proves nothing.
    """
    profile = mutant.profile or None
    for seed in range(seeds):
        with planted(mutant):
            try:
                outcome = simulate(
                    seed, profile=profile, membership=mutant.membership, fail_fast=True
                )
            except LocalProtocolError:
                continue  # the run breaks off: no check has caught anything
        sound = partial(
            simulate, seed, profile=profile, membership=mutant.membership, fail_fast=True
        )
        if outcome.violations and sound().ok:
            return MutantVerdict(mutant, outcome.violations[0].check, seed, seed + 1)
    return MutantVerdict(mutant, "", 0, seeds)


def hunt_all(
    mutants: Sequence[Mutant], seeds: int, workers: int, progress: Callable[[int], None]
) -> list[MutantVerdict]:
    """Hunt several mutants in ``workers`` processes; ``progress`` gets the number of verdicts."""
    verdicts: dict[Mutant, MutantVerdict] = {}
    with ProcessPoolExecutor(workers) as pool:
        for task in as_completed([pool.submit(hunt, mutant, seeds) for mutant in mutants]):
            verdicts[task.result().mutant] = task.result()
            progress(len(verdicts))
    return [verdicts[mutant] for mutant in mutants]
