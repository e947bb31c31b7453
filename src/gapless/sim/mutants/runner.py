"""Planted bugs: the checks are only worth what they catch.

A mutant is one small change to the source of one function of the real machine, of the kind that a
tired engineer makes. ``planted`` puts it in place for the time of a ``with`` block; ``hunt`` runs
seeds of the swarm until a check fails. The table of which check killed which bug, and after how
many seeds, is printed by ``gapless mutants`` and kept in docs/testing.md.
"""

from __future__ import annotations
import __future__ as future

import importlib
import inspect
import textwrap
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import LocalProtocolError
from gapless.sim.mutants.membership_mutants import MEMBERSHIP_MUTANTS
from gapless.sim.mutants.profile_mutants import PROFILE_MUTANTS
from gapless.sim.mutants.stream_mutants import STREAM_MUTANTS, Mutant
from gapless.sim.runner import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class MutantVerdict(NamedTuple):
    """What became of a mutant: which check caught it, at which seed, after how many seeds; no check if it survived."""

    mutant: Mutant
    check: str
    seed: int
    seeds: int


MUTANTS = (*STREAM_MUTANTS, *PROFILE_MUTANTS, *MEMBERSHIP_MUTANTS)
"""Every planted bug."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the machine with the bug in place."""
    owner, name = _resolve(mutant.target)
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, _mutate(mutant, original, owner))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _resolve(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _mutate(mutant: Mutant, original: Any, owner: Any) -> Any:
    """Return the function, or the property, with the bug in it."""
    function: Any = original.fget if isinstance(original, property) else original
    source = inspect.getsource(function)
    if source.count(mutant.old) != 1:
        raise LocalProtocolError(
            f"mutant {mutant.name!r}: its text stands {source.count(mutant.old)} times in the source"
        )
    changed = textwrap.dedent(source.replace(mutant.old, mutant.new))
    # Inside a function that has a __class__, super() finds its class as it does in the original.
    whole = f"def plant(__class__):\n{textwrap.indent(changed, '    ')}\n    return {function.__name__}\n"
    code = compile(
        whole,
        f"<mutant {mutant.name}>",
        "exec",
        future.annotations.compiler_flag,
        dont_inherit=True,
    )
    namespace: dict[str, Any] = {}
    exec(code, function.__globals__, namespace)  # noqa: S102 - the text comes from the tables of bugs
    return namespace["plant"](owner)


def mutant_by_name(name: str) -> Mutant:
    """Return the mutant called ``name``."""
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    raise LocalProtocolError(
        f"no planted bug is called {name!r}; choose one of: {', '.join(m.name for m in MUTANTS)}"
    )


def hunt(mutant: Mutant, seeds: int) -> MutantVerdict:
    """Run seeds 0, 1, 2 … with the bug in place until a check fails; a seed that fails without it proves nothing."""
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
    """Hunt several mutants, each in a process of its own turn; ``progress`` is told how many are done."""
    verdicts: dict[Mutant, MutantVerdict] = {}
    with ProcessPoolExecutor(workers) as pool:
        for task in as_completed([pool.submit(hunt, mutant, seeds) for mutant in mutants]):
            verdicts[task.result().mutant] = task.result()
            progress(len(verdicts))
    return [verdicts[mutant] for mutant in mutants]
