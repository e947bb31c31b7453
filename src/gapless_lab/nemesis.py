"""A schedule of faults: operations on victims, each at a drawn moment.

A plan draws the operations from the seed. An operation starts at a time, after an amount of work of
the victim, after a number of other operations, or after a combination. The schedule waits for the
moment, applies the operation, and continues with the next operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

KILL, STOP, CONTINUE, RESTART = "kill", "stop", "continue", "restart"
"""SIGKILL, SIGSTOP, SIGCONT, and the start of the next incarnation."""


class NemesisOp(NamedTuple):
    """An operation on a victim."""

    at_s: float = 0.0
    """How long after the start of the load, where the schedule follows the clock."""
    victim: str = ""
    action: str = KILL
    min_work: int = 0
    """How much work the victim does before."""
    delay_s: float = 0.0
    """How long to wait after the work."""
    with_children: bool = False
    """Whether the children of the victim die at the same moment."""
    choice: float = 0.0
    """Which of several candidates, as a share of their list."""
    after: int = 0
    """How many operations of the other schedule come before."""


def run_schedule(
    ops: Iterable[NemesisOp],
    wait: Callable[[NemesisOp], None],
    apply: Callable[[NemesisOp], None],
) -> None:
    """Wait for the moment of each operation, and apply the operation."""
    for op in ops:
        wait(op)
        apply(op)
