"""Every mutant, and how to find one by its name."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError
from gapless.sim.mutants.membership_mutants import MEMBERSHIP_MUTANTS
from gapless.sim.mutants.planting import planted
from gapless.sim.mutants.profile_mutants import PROFILE_MUTANTS
from gapless.sim.mutants.stream_mutants import STREAM_MUTANTS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gapless.sim.mutants.planting import Mutant

MUTANTS = (*STREAM_MUTANTS, *PROFILE_MUTANTS, *MEMBERSHIP_MUTANTS)
"""Every planted bug."""


def mutant_by_name(name: str) -> Mutant:
    """Return the mutant called ``name``."""
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    raise LocalProtocolError(
        f"no planted bug is called {name!r}; choose one of: {', '.join(m.name for m in MUTANTS)}"
    )


def plant(name: str) -> AbstractContextManager[None]:
    """Return a context in which the mutant called ``name`` is planted; no mutant if it is empty."""
    return planted(mutant_by_name(name)) if name else nullcontext()
