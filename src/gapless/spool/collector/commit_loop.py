"""The commit loop: the thread of a collector (docs/guides/collecting.md has the rules).

On reception: a delivery is queued unchanged for the disk, and the next delivery is read.

On commit: when no message is waiting, or after ``COMMIT_DELAY_NS``, or with ``COMMIT_BYTES`` in the
queue, the whole queue becomes durable with one write and one sync, and is then acknowledged. A
single message therefore costs one sync, and under load a sync serves all messages that arrived
during the last sync.

On an error of the spool: the queue stays and is not acknowledged, so the senders retain the
messages and wait. The error is logged once, with the file and the remedy, and the commit is retried
until it succeeds. While the queue is full no further message is read.

On the end: pending messages are committed and acknowledged.

Every interval: messages passed by every reader are trimmed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gapless.errors import ClosedError, TimedOutError
from gapless.events import ExpelledFromGroup, MessageOversized, MessagesLost, ViewChange
from gapless.group.message import Batch
from gapless.logger import logger_of
from gapless.spool.collector.appender import DeliveryAppender
from gapless.spool.errors import SpoolError
from gapless.units import MIB, NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from gapless.blocking import Group
    from gapless.events import GroupEvent
    from gapless.identity import Address
    from gapless.spool.writer import SpoolUsage, SpoolWriter

log = logger_of("collector")

COMMIT_DELAY_NS: Final = 5 * NS_PER_MS
"""How long a commit waits for more messages, while some are arriving."""
COMMIT_BYTES: Final = MIB
"""How many queued bytes make a commit due at once."""
MAINTENANCE_INTERVAL_NS: Final = NS_PER_S
"""Time between two checks of the readers."""
LIMITED_INTERVAL_NS: Final = 100 * NS_PER_MS
"""Time between two checks while a limit keeps the spool from accepting more."""
RECEIVE_TIMEOUT_S: Final = 0.1
"""How long the thread waits for messages before it checks whether to end."""
RETRY_NS: Final = 100 * NS_PER_MS
"""Pause after the first failed commit; doubles with each failure, up to ``MAX_RETRY_NS``."""
MAX_RETRY_NS: Final = 5 * NS_PER_S
"""Maximum pause between two attempts to commit."""
LOG_SUPPRESS_NS: Final = 10 * NS_PER_S
"""How long a returning problem is not logged again: a full spool may fill repeatedly."""
DRAIN_TIMEOUT_NS: Final = 2 * NS_PER_S
"""Maximum time for reading the remaining messages at the end."""
FINAL_COMMIT_ATTEMPTS: Final = 3
"""How often the last commit is tried."""


class CommitLoop:
    """An open spool and the member that fills the spool.

    A single thread runs the loop; other threads may read the figures.
    """

    def __init__(self, spool: SpoolWriter, member: Group, line_bytes: int) -> None:
        self.spool = spool
        self.member = member
        self.appender = DeliveryAppender(spool)
        self.usage: SpoolUsage | None = None
        self.blocked_by = ""
        self.commits = self.failures = self.incarnations = 0
        self.commit_ns = 0
        limit = spool.limits.max_bytes
        self._max_pending_bytes = (
            min(line_bytes, max(COMMIT_BYTES, limit // 8)) if limit else line_bytes
        )
        self._failure = self._trim_failure = ""
        self._retry_ns = self._retry_at_ns = 0
        self._maintenance_at_ns = 0
        self._acknowledge_all = False
        self._failure_logged = False
        self._failure_seen_ns: dict[str, int] = {}
        self._refresh_usage()
        self._dropped_logged = self._dropped_total()
        self._dropped_logged_ns = -LOG_SUPPRESS_NS

    def run_once(self) -> None:
        """Read pending messages and commit them; wait a little without pending messages."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._maintenance_at_ns:
            self._run_maintenance(now_ns)
        if self._failure:
            self._run_once_failing(now_ns)
        elif self._receive_pending(RECEIVE_TIMEOUT_S, COMMIT_BYTES):
            self._commit()

    def drain(self) -> None:
        """Read the remaining messages, commit and acknowledge them."""
        until_ns = time.monotonic_ns() + DRAIN_TIMEOUT_NS
        while time.monotonic_ns() < until_ns and self._receive_pending(0.0, COMMIT_BYTES):
            if not self._commit():
                break
        for _ in range(FINAL_COMMIT_ATTEMPTS):
            if self._commit():
                return
            time.sleep(RETRY_NS / NS_PER_S)

    # On reception

    def _receive_pending(self, wait_s: float, most_bytes: int) -> bool:
        """Append pending messages, waiting for the first; return whether there were any."""
        intake = self.appender
        item = self._receive(wait_s)
        if item is None:
            return False
        until_ns = time.monotonic_ns() + COMMIT_DELAY_NS
        while item is not None:
            if type(item) is Batch:
                intake.append_batch(item)
            else:
                self._on_event(item)  # type: ignore[arg-type]
            if intake.pending_bytes >= most_bytes or time.monotonic_ns() >= until_ns:
                break
            item = self._receive(0.0)
        return True

    def _receive(self, wait_s: float) -> Batch | GroupEvent | None:
        try:
            item = self.member.receive_batch(wait_s)
        except TimedOutError:
            return None
        if item is None:
            raise ClosedError(f"the collector is no longer a member of {self.member.group}")
        return item

    def _on_event(self, event: GroupEvent) -> None:
        if isinstance(event, (MessagesLost, MessageOversized)):
            oversized = isinstance(event, MessageOversized)
            self.appender.append_lost(event.sender, event.first, event.last, oversized=oversized)
            log.warning("%s: %s; the spool records the messages as lost", self.member.group, event)
        elif isinstance(event, ViewChange):
            self.spool.live_origins = frozenset(event.view.members)
            self._acknowledge_all = True
        elif isinstance(event, ExpelledFromGroup):
            self.incarnations += 1
            log.warning("%s expelled this collector", self.member.group)

    # On commit

    def _commit(self) -> bool:
        """Make the queue durable and acknowledge it; return whether the commit succeeded."""
        spool = self.spool
        pending_bytes, begin_ns = spool.pending_bytes, time.monotonic_ns()
        self.appender.stage_dedup_state()
        try:
            spool.commit()
        except SpoolError as error:
            self._on_failure(error)
            return False
        if pending_bytes:
            self.commits += 1
            self.commit_ns = time.monotonic_ns() - begin_ns
        if self._failure:
            self._on_recovery()
        self._acknowledge()
        return True

    def _acknowledge(self) -> None:
        """Acknowledge durable messages.

        Covers the streams that moved; after a view all streams, because a new incarnation may not
        know them.
        """
        marks: dict[Address, int] = self.spool.marks
        touched, self.appender.changed_origins = self.appender.changed_origins, set()
        moved = (
            dict(marks)
            if self._acknowledge_all
            else {origin: marks[origin] for origin in touched if origin in marks}
        )
        self._acknowledge_all = False
        if moved:
            self.member.confirm_stored(moved)

    # On an error of the spool

    def _on_failure(self, error: SpoolError) -> None:
        now_ns, limited = time.monotonic_ns(), self._refresh_usage()
        self.failures += 1
        doubled_ns = min(max(RETRY_NS, 2 * self._retry_ns), MAX_RETRY_NS)
        self._retry_ns = LIMITED_INTERVAL_NS if limited else doubled_ns
        self._retry_at_ns = now_ns + self._retry_ns
        self.blocked_by = str(error)
        problem = f"{type(error).__name__} {limited}"
        if problem != self._failure:
            self._failure = problem
            self._failure_logged = (
                now_ns - self._failure_seen_ns.get(problem, -LOG_SUPPRESS_NS) >= LOG_SUPPRESS_NS
            )
            if self._failure_logged:
                log.warning(
                    "%s; senders wait until a commit succeeds",
                    error,
                )
        self._failure_seen_ns[problem] = now_ns

    def _on_recovery(self) -> None:
        if self._failure_logged:
            log.warning("%s: the spool accepts commits again, senders continue", self.spool.path)
        self._failure = self.blocked_by = ""
        self._retry_ns = 0

    def _run_once_failing(self, now_ns: int) -> None:
        """Read more while there is room in memory, and retry a due commit."""
        if now_ns >= self._retry_at_ns:
            self._commit()
            return
        wait_s = min(RECEIVE_TIMEOUT_S, (self._retry_at_ns - now_ns) / NS_PER_S)
        if self.appender.pending_bytes < self._max_pending_bytes:
            self._receive_pending(wait_s, self._max_pending_bytes)
        else:
            time.sleep(wait_s)

    # Every interval

    def _run_maintenance(self, now_ns: int) -> None:
        for problem in self.appender.expire_gaps():
            log.error("%s: %s", self.member.group, problem)
        self._trim(now_ns)
        self._maintenance_at_ns = now_ns + (
            LIMITED_INTERVAL_NS if self._refresh_usage() else MAINTENANCE_INTERVAL_NS
        )
        self._log_dropped(now_ns)

    def _log_dropped(self, now_ns: int) -> None:
        """Log now and then how many messages a limit has dropped."""
        now = self._dropped_total()
        if now > self._dropped_logged and now_ns >= self._dropped_logged_ns + LOG_SUPPRESS_NS:
            dropped, self._dropped_logged, self._dropped_logged_ns = (
                now - self._dropped_logged,
                now,
                now_ns,
            )
            log.warning(
                "%s: a limit of the spool dropped %d unread messages",
                self.spool.path,
                dropped,
            )

    def _dropped_total(self) -> int:
        return 0 if self.usage is None else self.usage.dropped

    def _trim(self, now_ns: int) -> None:
        """Trim messages passed by every reader."""
        failure = ""
        try:
            if self.spool.trim().segments and self._failure:
                self._retry_at_ns = now_ns  # there may be room now
        except SpoolError as error:
            failure = type(error).__name__
            if failure != self._trim_failure and not self._failure:
                log.warning("%s; the spool is not trimmed until the error is resolved", error)
        self._trim_failure = failure

    def _refresh_usage(self) -> bool:
        """Refresh the figures of the spool; return whether a limit blocks further commits."""
        try:
            self.usage = self.spool.usage()
        except SpoolError:
            return False
        return bool(self.usage.limited)

    def close(self) -> None:
        """Commit pending messages and close the spool; raise if the commit fails."""
        try:
            self.spool.commit()
        finally:
            try:
                self._refresh_usage()  # the last figures are those of the files left behind
                self._log_dropped(time.monotonic_ns() + LOG_SUPPRESS_NS)
            finally:
                self.spool.close()
