"""Pending actions of a script: scheduled for later, or postponed at a host.

A host postpones an action while its process is paused or not in a view yet. A run cannot settle
while any action is pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.sim.script import Action
    from gapless.sim.world.host import Host
    from gapless.sim.world.scheduler import Scheduler


class ActionQueue:
    """The pending actions of a run; calls ``perform`` with each action when due."""

    def __init__(self, scheduler: Scheduler, perform: Callable[[Action], None]) -> None:
        self.pending = 0
        self._scheduler = scheduler
        self._perform = perform

    def schedule(self, action: Action) -> None:
        """Perform an action at its time, or now if the time has passed."""
        self.pending += 1
        scheduler = self._scheduler
        scheduler.push(max(action.at_ns, scheduler.now_ns), self._on_due, action)

    def _on_due(self, action: Action) -> None:
        self.pending -= 1
        self._perform(action)

    def postpone(self, host: Host, action: Action) -> None:
        """Keep an action until ``perform_postponed``."""
        self.pending += 1
        host.postponed.append(action)

    def perform_postponed(self, host: Host) -> None:
        """Perform the postponed actions of a host; some may be postponed again."""
        actions, host.postponed = host.postponed, []
        for action in actions:
            self._on_due(action)

    def discard_postponed(self, host: Host) -> None:
        """Discard the postponed actions of a host after its process has ended."""
        self.pending -= len(host.postponed)
        host.postponed = []

    def clear(self) -> None:
        """Forget every pending action: the run has ended."""
        self.pending = 0
