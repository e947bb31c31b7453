"""The search for the smallest failing case: candidates are tried, and the smallest is kept.

A case is a configuration and a script. The weight of a case is the amount of text for a reader. A
lighter candidate replaces the current case if the candidate still fails. The work is bounded by a
number of replays and a number of events, never by a clock: the same case gives the same result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gapless.sim.scenario.scenario_file import Scenario, format_head
from gapless.sim.script import SendMessages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.config import Config
    from gapless.sim.script import Script

MAX_TRIES = 4000
"""Maximum number of replays in a shrink."""
MAX_EVENTS = 1_000_000
"""Maximum number of events in all replays of a shrink; with membership three times as many."""

READABLE_BYTES = 8
"""Minimum size of a message that can hold its own number."""

_T = TypeVar("_T")


class CaseWeight(NamedTuple):
    """How much there is to read in a case, the most important first."""

    items: int
    lines: int
    messages: int
    tiny: int
    sent_bytes: int
    letters: int
    times_ns: int
    text: str


class ShrinkCase(NamedTuple):
    """A candidate: a configuration and a script."""

    config: Config
    script: Script

    def weight(self) -> CaseWeight:
        """Return how much there is to read; no two cases weigh the same."""
        script = self.script
        sends = [action.payloads for action in script.actions if isinstance(action, SendMessages)]
        text = format_head(Scenario(script, self.config))
        return CaseWeight(
            len(script.actions) + len(script.fates) + len(script.late_ns) + len(script.clocks),
            text.count("\n"),
            sum(map(len, sends)),
            # Messages too small to hold their own number are hard to tell apart.
            sum(len(content) < READABLE_BYTES for payloads in sends for content in payloads),
            sum(len(content) for payloads in sends for content in payloads),
            len(text),
            sum(action.at_ns for action in script.actions),
            text,
        )


class Minimizer:
    """The smallest case so far, and the ways to try another."""

    def __init__(
        self,
        case: ShrinkCase,
        still_fails: Callable[[ShrinkCase], bool],
        *,
        most_tries: int = MAX_TRIES,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.case = case
        self.tries = 0
        self._still_fails = still_fails
        self._most_tries = most_tries
        self._progress = progress
        self._weight = case.weight()
        self._known = {self._weight.text}

    @property
    def script(self) -> Script:
        """The smallest script so far."""
        return self.case.script

    @property
    def budget_used_up(self) -> bool:
        """Whether the budget is used up."""
        events = getattr(self._still_fails, "events", 0)
        most_events = 3 * MAX_EVENTS if self.script.membership else MAX_EVENTS
        return self.tries >= self._most_tries or events >= most_events

    def attempt(self, candidate: ShrinkCase) -> bool:
        """Adopt a lighter ``candidate`` if still failing; return whether it was adopted."""
        if self.budget_used_up:
            return False
        weight = candidate.weight()
        if weight >= self._weight or weight.text in self._known:
            return False
        self._known.add(weight.text)
        self.tries += 1
        if self._progress is not None:
            self._progress(self.tries)
        if not self._still_fails(candidate):
            return False
        self.case, self._weight = candidate, weight
        return True

    def change(self, **fields: object) -> bool:
        """Attempt the smallest script with some fields changed."""
        return self.attempt(self.case._replace(script=replace(self.script, **fields)))  # type: ignore[arg-type]

    def minimise(self, items: Sequence[_T], rebuild: Callable[[list[_T]], ShrinkCase]) -> list[_T]:
        """Remove as many ``items`` as possible: halves, quarters … single items (ddmin)."""
        left = list(items)
        chunk = len(left)
        while chunk:
            taken = False
            at = len(left)
            while at > 0:
                shorter = left[: max(0, at - chunk)] + left[at:]
                if self.attempt(rebuild(shorter)):
                    left, taken = shorter, True
                at -= chunk
            # Only at the end is a full round without success demanded; before, smaller chunks find
            # more.
            chunk = chunk // 2 if chunk > 1 or not taken else 1
        return left
