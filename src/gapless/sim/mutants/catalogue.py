"""Every mutant, and how to find a mutant by its name."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError
from gapless.sim.mutants.membership_mutants import MEMBERSHIP_MUTANTS, SCENARIO_MUTANTS
from gapless.sim.mutants.planting import planted
from gapless.sim.mutants.profile_mutants import PROFILE_MUTANTS
from gapless.sim.mutants.seal_mutants import SEAL_MUTANTS, TRANSPORT_MUTANTS
from gapless.sim.mutants.short_path_mutants import SHORT_PATH_MUTANTS
from gapless.sim.mutants.stream_mutants import STREAM_MUTANTS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gapless.sim.mutants.planting import Mutant

MUTANTS = (
    *STREAM_MUTANTS,
    *SHORT_PATH_MUTANTS,
    *PROFILE_MUTANTS,
    *MEMBERSHIP_MUTANTS,
    *SEAL_MUTANTS,
)
"""Every planted bug that seeds of the swarm catch."""


def mutant_by_name(name: str) -> Mutant:
    """Return the mutant called ``name``."""
    for mutant in (*MUTANTS, *SCENARIO_MUTANTS, *TRANSPORT_MUTANTS):
        if mutant.name == name:
            return mutant
    raise LocalProtocolError(
        f"unknown mutant {name!r}; choose one of: {', '.join(m.name for m in MUTANTS)}"
    )


def plant(name: str) -> AbstractContextManager[None]:
    """Return a context with the mutant called ``name`` in place; no mutant for an empty name."""
    return planted(mutant_by_name(name)) if name else nullcontext()
