"""What the thread of a collector does; docs/collector.md has the rules.

On reception: a delivery is put in line for the disk as it came, and the next one is looked for. On
commit: when nothing more is at hand, or after ``TURN_NS``, or with ``TURN_BYTES`` in line, all of
it is made durable by one write and one sync, and then acknowledged. So a message that comes alone
costs one sync, and under load one sync serves whatever came during the last one. On an error of the
spool: what is in line stays there and is not acknowledged, so the senders keep it and wait. The
error is told once, with the file and what to do, and the commit is tried again until it works. When
the line is full nothing more is read. On the end: what is at hand is committed and acknowledged.
Every interval: readers are looked at, and what all of them have passed is trimmed.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from gapless.errors import ClosedError, TimedOutError
from gapless.events import Expelled, Lost, Oversized, ViewChange
from gapless.group.message import Batch
from gapless.spool.appender import Intake
from gapless.spool.errors import SpoolError
from gapless.units import MIB, NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from gapless.blocking import Group
    from gapless.group.inbox import Told
    from gapless.identity import Address
    from gapless.spool.writer import Spool, Usage

log = logging.getLogger("gapless.collector")

TURN_NS: Final = 5 * NS_PER_MS
"""A commit waits for more messages that are at hand for no longer than this."""
TURN_BYTES: Final = MIB
"""A commit waits for no more messages than this."""
CHORES_NS: Final = NS_PER_S
"""Time between two looks at the readers."""
HURRIED_NS: Final = 100 * NS_PER_MS
"""The same while a limit keeps the spool from taking more."""
LOOK_S: Final = 0.1
"""How long the thread waits for messages before it looks whether it is to end."""
RETRY_NS: Final = 100 * NS_PER_MS
"""Pause after the first failure of a commit; it doubles with each, up to LONGEST_RETRY_NS."""
LONGEST_RETRY_NS: Final = 5 * NS_PER_S
QUIET_NS: Final = 10 * NS_PER_S
"""What is over and comes back within this time is not told again: where readers are slow, a limit comes and goes."""
DRAIN_NS: Final = 2 * NS_PER_S
"""How long the end takes at most to take in what is at hand."""
FINAL_TRIES: Final = 3
"""How often the end tries to commit."""


class Work:
    """A spool that is open, and a member that fills it; one thread uses it, others may look at its figures."""

    def __init__(self, spool: Spool, member: Group, line_bytes: int) -> None:
        self.spool = spool
        self.member = member
        self.intake = Intake(spool)
        self.usage: Usage | None = None
        self.waits_for = ""
        self.commits = self.failures = self.lives = 0
        self.commit_ns = 0
        limit = spool.limits.max_bytes
        self._most_bytes = min(line_bytes, max(TURN_BYTES, limit // 8)) if limit else line_bytes
        self._problem = self._chore_problem = ""
        self._retry_ns = self._retry_at_ns = 0
        self._chores_at_ns = 0
        self._all_marks = False
        self._told = False
        self._told_ns: dict[str, int] = {}
        self._look()
        self._dropped = self._dropped_so_far()
        self._dropped_told_ns = -QUIET_NS

    def turn(self) -> None:
        """Take in what is at hand and commit it; without anything, wait a little."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._chores_at_ns:
            self._do_chores(now_ns)
        if self._problem:
            self._turn_while_failing(now_ns)
        elif self._gather(LOOK_S, TURN_BYTES):
            self._commit()

    def finish(self) -> None:
        """Take in what is at hand, commit and acknowledge it."""
        until_ns = time.monotonic_ns() + DRAIN_NS
        while time.monotonic_ns() < until_ns and self._gather(0.0, TURN_BYTES):
            if not self._commit():
                break
        for _ in range(FINAL_TRIES):
            if self._commit():
                return
            time.sleep(RETRY_NS / NS_PER_S)

    # On reception

    def _gather(self, wait_s: float, most_bytes: int) -> bool:
        """Put in line what is at hand, waiting for the first of it; return whether there was something."""
        intake = self.intake
        item = self._next(wait_s)
        if item is None:
            return False
        until_ns = time.monotonic_ns() + TURN_NS
        while item is not None:
            if type(item) is Batch:
                intake.take(item)
            else:
                self._on_event(item)  # type: ignore[arg-type]
            if intake.line_bytes >= most_bytes or time.monotonic_ns() >= until_ns:
                break
            item = self._next(0.0)
        return True

    def _next(self, wait_s: float) -> Batch | Told | None:
        try:
            item = self.member.next_batch(wait_s)
        except TimedOutError:
            return None
        if item is None:
            raise ClosedError(f"the collector is no member of {self.member.group} any more")
        return item

    def _on_event(self, event: Told) -> None:
        if isinstance(event, (Lost, Oversized)):
            oversized = isinstance(event, Oversized)
            self.intake.take_lost(event.origin, event.first, event.last, oversized=oversized)
            why = (
                "it was larger than max_message_bytes"
                if oversized
                else "its sender does not have them any more"
            )
            where = f"{self.member.group}: messages {event.first}..{event.last} of {event.origin}"
            log.warning("%s will never come: %s; the spool has a hole there", where, why)
        elif isinstance(event, ViewChange):
            self.spool.live = frozenset(event.view.members)
            self._all_marks = True
        elif isinstance(event, Expelled):
            self.lives += 1
            log.warning(
                "%s has gone on without this collector, which joins again", self.member.group
            )

    # On commit

    def _commit(self) -> bool:
        """Make durable what is in line, and acknowledge it; return whether that has worked."""
        spool = self.spool
        pending_bytes, begin_ns = spool.pending_bytes, time.monotonic_ns()
        self.intake.keep()
        try:
            spool.commit()
        except SpoolError as error:
            self._on_failure(error)
            return False
        if pending_bytes:
            self.commits += 1
            self.commit_ns = time.monotonic_ns() - begin_ns
        if self._problem:
            self._on_recovery()
        self._acknowledge()
        return True

    def _acknowledge(self) -> None:
        """Say what is durable: of the streams that moved, and after a view of all, for a new life may not know it."""
        marks: dict[Address, int] = self.spool.marks
        touched, self.intake.touched = self.intake.touched, set()
        moved = (
            dict(marks)
            if self._all_marks
            else {origin: marks[origin] for origin in touched if origin in marks}
        )
        self._all_marks = False
        if moved:
            self.member.stored(moved)

    # On an error of the spool

    def _on_failure(self, error: SpoolError) -> None:
        now_ns, limited = time.monotonic_ns(), self._look()
        self.failures += 1
        doubled_ns = min(max(RETRY_NS, 2 * self._retry_ns), LONGEST_RETRY_NS)
        self._retry_ns = HURRIED_NS if limited else doubled_ns
        self._retry_at_ns = now_ns + self._retry_ns
        self.waits_for = str(error)
        problem = f"{type(error).__name__} {limited}"
        if problem != self._problem:
            self._problem = problem
            self._told = now_ns - self._told_ns.get(problem, -QUIET_NS) >= QUIET_NS
            if self._told:
                log.warning(
                    "%s; nothing more is acknowledged, and senders wait until this is over", error
                )
        self._told_ns[problem] = now_ns

    def _on_recovery(self) -> None:
        if self._told:
            log.warning("%s: the spool takes messages again, senders go on", self.spool.path)
        self._problem = self.waits_for = ""
        self._retry_ns = 0

    def _turn_while_failing(self, now_ns: int) -> None:
        """Take in more while there is room in memory, and try the commit again when it is time."""
        if now_ns >= self._retry_at_ns:
            self._commit()
            return
        wait_s = min(LOOK_S, (self._retry_at_ns - now_ns) / NS_PER_S)
        if self.intake.line_bytes < self._most_bytes:
            self._gather(wait_s, self._most_bytes)
        else:
            time.sleep(wait_s)

    # Every interval

    def _do_chores(self, now_ns: int) -> None:
        for said in self.intake.explain():
            log.error("%s: %s", self.member.group, said)
        self._trim(now_ns)
        self._chores_at_ns = now_ns + (HURRIED_NS if self._look() else CHORES_NS)
        self._tell_dropped(now_ns)

    def _tell_dropped(self, now_ns: int) -> None:
        """Say once in a while how many messages a limit has dropped."""
        now = self._dropped_so_far()
        if now > self._dropped and now_ns >= self._dropped_told_ns + QUIET_NS:
            dropped, self._dropped, self._dropped_told_ns = now - self._dropped, now, now_ns
            log.warning(
                "%s: a limit has dropped %d messages that a reader had not read",
                self.spool.path,
                dropped,
            )

    def _dropped_so_far(self) -> int:
        return 0 if self.usage is None else self.usage.dropped

    def _trim(self, now_ns: int) -> None:
        """Trim what all readers have passed."""
        told = ""
        try:
            if self.spool.trim().segments and self._problem:
                self._retry_at_ns = now_ns  # there may be room now
        except SpoolError as error:
            told = type(error).__name__
            if told != self._chore_problem and not self._problem:
                log.warning("%s; nothing is trimmed until this is over", error)
        self._chore_problem = told

    def _look(self) -> bool:
        """Look at the spool; return whether a limit keeps it from taking more."""
        try:
            self.usage = self.spool.usage()
        except SpoolError:
            return False
        return bool(self.usage.limited)

    def end(self) -> None:
        """Look at the spool for the last time, and let go of it; raises if what is in line cannot be committed."""
        self._look()
        self._tell_dropped(time.monotonic_ns() + QUIET_NS)
        self.spool.close()
