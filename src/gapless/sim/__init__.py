"""Deterministic simulation of whole groups: a single thread, a seed, and virtual time.

``script`` describes a run: actions, and the fates of single frames. Ten packages, in the order of
a run:

1. ``swarm`` draws a plan from a seed: settings, faults, load, and a script.
2. ``world`` plays a script: scheduler, processes, network, applications, and the trace.
3. ``sealing`` adds keys, rotations and an adversary to a world.
4. ``oracle`` watches every step and models the obligations of every member.
5. ``checkers`` compare each step with the model, with a class for each invariant.
6. ``coverage`` records the situations that a sweep must have seen.
7. ``mutants`` plant bugs in the protocol, to show that the checkers find bugs.
8. ``scenario`` is the text form of a script and its outcome: grammar, files, diagrams.
9. ``shrink`` reduces a failing script to a small scenario file.
10. ``model_check`` searches every interleaving of a small group instead of a single run.

For your own tests: ``SimulatedGroup`` drives a group step by step, ``simulate`` runs a seed,
``sweep`` runs many seeds, and ``World`` plays a ``Script``. ``CHECKERS`` are the checkers of every
step; ``REQUIRED_STREAM_COVERAGE`` and ``REQUIRED_MEMBERSHIP_COVERAGE`` are the situations that a
sweep must have seen.
"""

from typing import Any
from warnings import warn

from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.coverage.membership_coverage import REQUIRED_MEMBERSHIP_COVERAGE
from gapless.sim.coverage.stream_coverage import REQUIRED_STREAM_COVERAGE
from gapless.sim.group import ReceivedMessage, SimulatedGroup, SimulatedNode
from gapless.sim.oracle.checker import InvariantChecker
from gapless.sim.oracle.oracle import InvariantViolation, Oracle
from gapless.sim.runner import simulate, sweep
from gapless.sim.script import Script
from gapless.sim.seed_result import SeedResult, SweepResult
from gapless.sim.swarm.membership_swarm import draw_membership
from gapless.sim.swarm.stream_swarm import SwarmPlan, draw
from gapless.sim.world.world import World

__all__ = [
    "CHECKERS",
    "REQUIRED_MEMBERSHIP_COVERAGE",
    "REQUIRED_STREAM_COVERAGE",
    "InvariantChecker",
    "InvariantViolation",
    "Oracle",
    "ReceivedMessage",
    "Script",
    "SeedResult",
    "SimulatedGroup",
    "SimulatedNode",
    "SwarmPlan",
    "SweepResult",
    "World",
    "draw",
    "draw_membership",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "Group":
        warn(
            "gapless.sim.Group is SimulatedGroup since 0.2; the old name ends with 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return SimulatedGroup
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
