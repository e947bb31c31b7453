"""Rare branches: legal at any time, seldom taken in practice, and forced by the simulator.

A rare branch is a free choice of the machine: no guarantee depends on the choice. Outside the
simulator no rare branch is taken. A simulated run switches some branches on, and then takes each
with a probability of one in four.
"""

from __future__ import annotations

from collections.abc import Callable

EARLY_ACK = "early-ack"
"""An ack is sent before it is due."""
LATE_ACK = "late-ack"
"""The ack timer fires without effect; the acks are sent the next time."""
SMALL_RUN = "small-run"
"""A run that has room for more messages holds one."""
EARLY_TAIL = "early-tail"
"""The end of the stream is announced at once."""
REPAIR_TO_ALL = "repair-to-all"
"""A repair is sent to all members although one asked."""
REFUSE = "refuse"
"""A send that may not wait is refused although there is room."""
EARLY_VOTE = "early-vote"
"""A member votes earlier than the interval or the received bytes require."""
SHED = "shed"
"""A receiver drops messages that it retains for others."""

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
"""Every rare branch."""

GENERAL_PATH = "general-path"
"""An input that the short path expects takes the general path (header_prediction.py).

Not a rare branch of a run: both paths have the same effect, so the choice has a hook of its own.
"""

RareBranchHook = Callable[[str], bool]
"""Returns whether a rare branch is taken this time; outside the simulator there is none (None)."""
