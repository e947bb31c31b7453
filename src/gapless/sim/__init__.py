"""Deterministic simulation of whole groups: one thread, one seed, virtual time, every check after every step.

For tests of your own: :class:`Group` tells a story, :func:`simulate` runs one seed of the swarm and
:func:`sweep` many, :class:`World` plays a :class:`Script`. :data:`CHECKS` are the invariants that
look at every step, :data:`MUST_HAPPEN` the situations that a sweep must have seen,
:data:`MUST_GATHER` those of groups that make their own views.
"""

from gapless.sim.checkers.stream_safety import CHECKS
from gapless.sim.coverage.membership_coverage import MUST_GATHER
from gapless.sim.coverage.stream_coverage import MUST_HAPPEN
from gapless.sim.group import Group, Node
from gapless.sim.oracle.oracle import Check, Judge, Violation
from gapless.sim.runner import Outcome, Sweep, simulate, sweep
from gapless.sim.scenario.actions import Script
from gapless.sim.swarm.membership_swarm import draw_membership
from gapless.sim.swarm.stream_swarm import Plan, draw
from gapless.sim.world.world import World

__all__ = [
    "CHECKS",
    "MUST_GATHER",
    "MUST_HAPPEN",
    "Check",
    "Group",
    "Judge",
    "Node",
    "Outcome",
    "Plan",
    "Script",
    "Sweep",
    "Violation",
    "World",
    "draw",
    "draw_membership",
    "simulate",
    "sweep",
]
