"""The hunt: run seeds of the swarm with a bug in place until a check fails.

A check is worth the bugs caught. ``gapless mutants`` prints the killing check of every mutant and
the number of seeds until the kill; docs/internals/testing.md keeps the table.
"""

from __future__ import annotations

from concurrent.futures import as_completed
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import LocalProtocolError
from gapless.sim.mutants.planting import Mutant, planted
from gapless.sim.runner import simulate
from gapless.sim.worker_pool import worker_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class MutantVerdict(NamedTuple):
    """The outcome of a hunt: the failed check, the failing seed, and the number of seeds run.

    ``check`` is empty if the mutant survived.
    """

    mutant: Mutant
    check: str
    seed: int
    seeds: int


def hunt(mutant: Mutant, seeds: int, first: int = 0) -> MutantVerdict:
    """Run the seeds below ``seeds`` with the bug in place until a check fails.

    The hunt begins with seed ``first`` and wraps around. A seed that fails without the bug proves
    nothing.
    """
    run = partial(
        simulate,
        profile=mutant.profile or None,
        character=mutant.character or None,
        membership=mutant.membership,
        sealed=mutant.sealed,
        fail_fast=True,
    )
    for turn in range(seeds):
        seed = (first + turn) % seeds
        with planted(mutant):
            try:
                outcome = run(seed)
            except LocalProtocolError:
                continue  # the run breaks off: no check has caught anything
        if outcome.violations and run(seed).ok:
            return MutantVerdict(mutant, outcome.violations[0].check, seed, turn + 1)
    return MutantVerdict(mutant, "", 0, seeds)


def hunt_all(
    mutants: Sequence[Mutant], seeds: int, workers: int, progress: Callable[[int], None]
) -> list[MutantVerdict]:
    """Hunt several mutants in ``workers`` processes; ``progress`` gets the number of verdicts."""
    verdicts: dict[Mutant, MutantVerdict] = {}
    with worker_pool(workers) as pool:
        for task in as_completed([pool.submit(hunt, mutant, seeds) for mutant in mutants]):
            verdicts[task.result().mutant] = task.result()
            progress(len(verdicts))
    return [verdicts[mutant] for mutant in mutants]
