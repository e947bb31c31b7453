"""Branches that are legal at any time and hardly ever taken: the simulator takes them on purpose.

Each is a choice that the machine is free to make: nothing it promises depends on it. In the field
nobody makes it; in a simulated run some of them are switched on, and each then fires one time in
four.
"""

from __future__ import annotations

from collections.abc import Callable

EARLY_ACK = "early-ack"
"""An ack goes out although it is not due yet."""
LATE_ACK = "late-ack"
"""The ack timer fires and nothing happens; the acks go out the next time."""
SMALL_RUN = "small-run"
"""One message goes into a run that could hold more."""
EARLY_TAIL = "early-tail"
"""The end of the stream is announced at once."""
REPAIR_TO_ALL = "repair-to-all"
"""A repair goes to all although one member asked."""
REFUSE = "refuse"
"""A send that is not to wait is refused although there is room."""
EARLY_VOTE = "early-vote"
"""A member votes on what is stable although neither time nor bytes ask for it."""
SHED = "shed"
"""A receiver forgets what it keeps for others."""

RARE_BRANCHES = (
    EARLY_ACK,
    LATE_ACK,
    SMALL_RUN,
    EARLY_TAIL,
    REPAIR_TO_ALL,
    REFUSE,
    EARLY_VOTE,
    SHED,
)
"""Every switch."""

RareBranchHook = Callable[[str], bool]
"""Tells whether a rare branch is taken this time."""


def never(name: str) -> bool:  # noqa: ARG001
    """Take no rare branch."""
    return False
