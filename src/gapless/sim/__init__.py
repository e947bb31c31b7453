"""Deterministic simulation of whole groups: one thread, one seed, virtual time, every check after every step.

For tests of your own: :class:`SimulatedGroup` tells a story, :func:`simulate` runs one seed of the swarm and
:func:`sweep` many, :class:`World` plays a :class:`Script`. :data:`CHECKERS` are the invariants that
look at every step, :data:`REQUIRED_STREAM_COVERAGE` the situations that a sweep must have seen,
:data:`REQUIRED_MEMBERSHIP_COVERAGE` those of groups that make their own views.
"""

from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.coverage.membership_coverage import REQUIRED_MEMBERSHIP_COVERAGE
from gapless.sim.coverage.stream_coverage import REQUIRED_STREAM_COVERAGE
from gapless.sim.group import SimulatedGroup, SimulatedNode
from gapless.sim.oracle.checker import InvariantChecker
from gapless.sim.oracle.oracle import InvariantViolation, Oracle
from gapless.sim.runner import SeedResult, SweepResult, simulate, sweep
from gapless.sim.scenario.actions import Script
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
