"""The collector: a durable member that keeps what a group sends in a spool. docs/collector.md says all of it.

On reception: a delivery is put in line for the disk as it came, and the next one is looked for.
On commit: when nothing more is at hand, or after ``TURN_NS``, or with ``TURN_BYTES`` in line, all of it is made durable by
one write and one sync, and then acknowledged. So a message that comes alone costs one sync, and under load one sync
serves whatever came during the last one.
On an error of the spool: what is in line stays there, and nothing of it is acknowledged, so the senders keep it and wait.
The error is told once, with the file and what to do, and the commit is tried again until it works. With ``line_bytes`` in line
nothing more is read.
On the end: what is at hand is committed and acknowledged, and the member leaves. Its place is kept: the next life goes on
where this one was.
Every interval: readers are looked at, and what all of them have passed is trimmed.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, Unpack

from gapless import blocking
from gapless.errors import ClosedError, ConfigError, GaplessError, LocalProtocolError, TimedOutError
from gapless.events import Expelled, Lost, Oversized, ViewChange
from gapless.face.message import Batch
from gapless.spool.choices import DEFAULT_NAME, Choices, CollectorOptions
from gapless.spool.errors import SpoolError
from gapless.spool.intake import Intake
from gapless.spool.segments import SpoolInfo
from gapless.spool.status import COLLECTING, FAILED, JOINING, NEW, STOPPED, STOPPING, WAITING, Status, counts_of
from gapless.spool.writer import Spool
from gapless.units import MIB, NS_PER_MS, NS_PER_S, format_duration, format_size

if TYPE_CHECKING:
    from gapless.face.inbox import Told
    from gapless.identity import Address

log = logging.getLogger("gapless.collector")

TURN_NS: Final = 5 * NS_PER_MS
"""A commit waits for more messages that are at hand for no longer than this."""
TURN_BYTES: Final = MIB
"""A commit waits for no more messages than this."""
CHORES_NS: Final = NS_PER_S
"""Time between two looks at the readers."""
WAIT_CHORES_NS: Final = 100 * NS_PER_MS
"""The same while a limit keeps the spool from taking more."""
LOOK_S: Final = 0.1
"""How long the thread waits for messages before it looks whether it is to end."""
RETRY_NS: Final = 100 * NS_PER_MS
"""Pause after the first failure of a commit; it doubles with each, up to LONGEST_RETRY_NS."""
LONGEST_RETRY_NS: Final = 5 * NS_PER_S
DRAIN_NS: Final = 2 * NS_PER_S
"""How long the end takes at most to take in what is at hand."""
FINAL_TRIES: Final = 3
LEAVE_S: Final = 3.0
"""How long leaving the group takes at most; whoever ends without it is noticed by its silence."""
PROBE_S: Final = 5.0


class Collector:
    """A member of ``group`` that keeps everything it sends, in order, in the spool at ``spool_path``.

    ``start`` opens the spool, and raises what is wrong with it (:class:`~gapless.spool.SpoolLocked` if another collector
    has it); the group is joined by a thread, and ``joined`` waits for that. ``stop`` ends it all. As a context manager
    it does these three. ``status`` may be looked at by any thread at any time.
    """

    def __init__(self, spool_path: Path | str, group: str, **options: Unpack[CollectorOptions]) -> None:
        self.path = Path(spool_path)
        self.group = group
        self._choices = Choices.read(options)
        if type(group) is not str or not group:
            raise ConfigError(f"group {group!r}: expected a name, the same for all members")
        self._spool: Spool | None = None
        self._intake: Intake | None = None
        self._member: blocking.Group | None = None
        self._thread: threading.Thread | None = None
        self._in: Future[None] = Future()
        self._stopping = False
        self._error: Exception | None = None
        self._state = NEW
        self._waits_for = ""
        self._problem = ""
        self._retry_ns = self._retry_at_ns = 0
        self._chores_at_ns = 0
        self._again = False
        self._counts = counts_of(None)
        self._commits = self._failures = self._lives = 0
        self._sync_ns = 0
        self._usage = None

    # Coming and going

    def start(self) -> Self:
        """Open the spool and begin to join the group; raises what is wrong with the spool or the options."""
        if self._thread is not None or self._stopping:
            raise LocalProtocolError("this collector was started before: make another one")
        choices = self._choices
        self._spool = Spool.open(
            self.path,
            group=self.group,
            limits=choices.limits,
            sync=choices.sync,
            name=choices.name or _default_name(self.path),
        )
        self._intake = Intake(self._spool)
        self._tell_recovery(self._spool)
        try:
            self._member = self._make_member(self._spool)
        except BaseException:
            self._spool.close()
            raise
        self._state = JOINING
        self._thread = threading.Thread(target=self._run, name="gapless collector", daemon=True)
        self._thread.start()
        return self

    def joined(self, timeout_s: float | None = None) -> None:
        """Wait until the collector is a member; raises what keeps it from being one."""
        try:
            self._in.result(timeout_s)
        except GaplessError:
            raise
        except TimeoutError:
            raise TimedOutError(f"{self.group} could not be joined in this time") from None

    def check(self) -> None:
        """Raise what has ended this collector, if something has."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Commit and acknowledge what has come, leave the group and let go of the spool; the place in the group is kept.

        Raises the error of the spool if what had come could not be committed: it was not acknowledged, and comes again.
        """
        self._stopping = True
        member, thread = self._member, self._thread
        if thread is None:
            return
        if member is not None and not self._in.done():
            member.leave()
        thread.join()
        self.check()

    def __enter__(self) -> Self:
        self.start()
        try:
            self.joined()
        except BaseException:
            self._stopping = True
            if self._member is not None:
                self._member.leave()
            if self._thread is not None:
                self._thread.join()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stop()
        except SpoolError as error:
            if kind is None:
                raise
            log.warning("%s", error)

    @property
    def name(self) -> str:
        """The durable name of this collector."""
        return self._choices.name if self._spool is None else self._spool.info.name

    @property
    def status(self) -> Status:
        """How things stand now."""
        return Status.of(self)

    # The thread

    def _run(self) -> None:
        assert self._spool is not None
        try:
            try:
                self._join()
                while not self._stopping:
                    self._turn()
                self._end()
            finally:
                self._leave()
                self._let_go()
        except Exception as error:  # noqa: BLE001 - told by check, joined and stop
            self._fail(error)
        else:
            self._state = STOPPED
            if not self._in.done():
                self._in.set_exception(ClosedError("the collector was stopped before it had joined"))

    def _fail(self, error: Exception) -> None:
        if self._stopping and not self._in.done():
            self._state = STOPPED  # whatever joining says now, that is because it was to end
            self._in.set_exception(ClosedError("the collector was stopped before it had joined"))
            return
        self._error = error
        self._state = FAILED
        self._waits_for = str(error)
        if not self._in.done():
            self._in.set_exception(error)
        elif isinstance(error, GaplessError):
            log.error("%s: the collector has ended: %s", self.group, error)
        else:
            log.error("%s: the collector has failed", self.group, exc_info=error)

    def _turn(self) -> None:
        """Take in what is at hand and commit it; without anything, wait a little."""
        assert self._intake is not None
        now_ns = time.monotonic_ns()
        if now_ns >= self._chores_at_ns:
            self._do_chores(now_ns)
        if self._problem:
            self._turn_while_failing(now_ns)
        elif self._gather(LOOK_S, TURN_BYTES):
            self._commit()

    def _gather(self, wait_s: float, most_bytes: int) -> bool:
        """Put in line what is at hand, waiting for the first of it; return whether there was something."""
        item = self._next(wait_s)
        if item is None:
            return False
        until_ns = time.monotonic_ns() + TURN_NS
        intake = self._intake
        assert intake is not None
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
        assert self._member is not None
        try:
            item = self._member.next_batch(wait_s)
        except TimedOutError:
            return None
        if item is None and not self._stopping:
            raise ClosedError(f"the collector is no member of {self.group} any more")
        return item

    def _on_event(self, event: Told) -> None:
        assert self._intake is not None
        assert self._spool is not None
        if isinstance(event, (Lost, Oversized)):
            oversized = isinstance(event, Oversized)
            self._intake.take_lost(event.origin, event.first, event.last, oversized=oversized)
            why = "was larger than max_message_bytes" if oversized else "the sender does not have them any more"
            log.warning("%s: messages %d..%d of %s never come (%s)", self.group, event.first, event.last, event.origin, why)
        elif isinstance(event, ViewChange):
            self._spool.live = frozenset(event.view.members)
            self._again = True
        elif isinstance(event, Expelled):
            self._lives += 1
            self._again = True
            log.warning("%s: the group has gone on without this collector; it joins again", self.group)

    # Committing

    def _commit(self) -> bool:
        """Make durable what is in line, and acknowledge it; return whether that has worked."""
        spool, member = self._spool, self._member
        assert spool is not None
        assert member is not None
        pending = spool.pending_bytes
        begin_ns = time.monotonic_ns()
        try:
            spool.commit()
        except SpoolError as error:
            self._on_failure(error)
            return False
        if pending:
            self._commits += 1
            self._sync_ns = time.monotonic_ns() - begin_ns
        if self._problem:
            self._on_recovery()
        self._acknowledge()
        return True

    def _acknowledge(self) -> None:
        """Say what is durable: of all streams after a view, for a new life may have missed it, else of those that moved."""
        spool, intake, member = self._spool, self._intake, self._member
        assert spool is not None
        assert intake is not None
        assert member is not None
        marks: dict[Address, int] = spool.marks
        touched, intake.touched = intake.touched, set()
        moved = dict(marks) if self._again else {origin: marks[origin] for origin in touched if origin in marks}
        self._again = False
        if moved:
            member.stored(moved)

    def _on_failure(self, error: SpoolError) -> None:
        self._failures += 1
        self._retry_ns = min(max(RETRY_NS, 2 * self._retry_ns), LONGEST_RETRY_NS)
        if self._is_limited():
            self._retry_ns = WAIT_CHORES_NS
        self._retry_at_ns = time.monotonic_ns() + self._retry_ns
        self._state = WAITING
        self._waits_for = str(error)
        told = type(error).__name__
        if told != self._problem:
            self._problem = told
            log.warning("%s; nothing more is acknowledged, and senders wait until it is over", error)

    def _on_recovery(self) -> None:
        log.warning("%s: the spool takes messages again; senders go on", self.path)
        self._problem = self._waits_for = ""
        self._retry_ns = 0
        self._state = COLLECTING

    def _turn_while_failing(self, now_ns: int) -> None:
        """Take in more as long as there is room in memory, and try the commit again when it is time."""
        assert self._intake is not None
        if now_ns >= self._retry_at_ns:
            self._commit()
            return
        wait_s = min(LOOK_S, (self._retry_at_ns - now_ns) / NS_PER_S)
        if self._intake.line_bytes < self._choices.line_bytes:
            self._gather(wait_s, self._choices.line_bytes)
        else:
            time.sleep(wait_s)

    def _is_limited(self) -> bool:
        assert self._spool is not None
        try:
            self._usage = self._spool.usage()
        except (SpoolError, NotImplementedError):
            return False
        return bool(self._usage.limited)

    # Every interval

    def _do_chores(self, now_ns: int) -> None:
        spool, intake = self._spool, self._intake
        assert spool is not None
        assert intake is not None
        for said in intake.explain():
            log.error("%s: %s", self.group, said)
        limited = False
        try:
            trimmed = spool.trim()
            limited = self._is_limited()
            if trimmed.segments and limited:
                self._retry_at_ns = now_ns
            if trimmed.dropped:
                log.warning("%s: the limit has dropped %d messages that a reader had not read", self.path, trimmed.dropped)
        except SpoolError as error:
            if not self._problem:
                self._on_failure(error)
        self._chores_at_ns = now_ns + (WAIT_CHORES_NS if limited else CHORES_NS)

    # The beginning and the end

    def _make_member(self, spool: Spool) -> blocking.Group:
        return blocking.join(
            self.group,
            timeout=self._choices.join_timeout_s,
            name=spool.info.name,
            node=spool.info.node,
            stores=True,
            resume=dict(spool.marks),
            **self._choices.join,
        )

    def _join(self) -> None:
        assert self._member is not None
        try:
            self._member.open()
        except TimedOutError as error:
            raise self._why_not(error) from None
        self._lives = 1
        self._state = COLLECTING
        self._in.set_result(None)

    def _why_not(self, error: TimedOutError) -> GaplessError:
        """Return why the group cannot be joined: somebody may have the name. A member without a name can see that."""
        if not isinstance(self._choices.join.get("transport", "auto"), str):
            return error
        try:
            with blocking.join(self.group, timeout=PROBE_S, listen=False, **self._choices.join) as probe:
                roster = probe._own.handle.roster
                places = () if roster is None else roster.places
                holders = [str(place.address) for place in places if place.name == self.name]
        except GaplessError:
            return error
        if not holders:
            return error
        return ConfigError(
            f"the durable name {self.name!r} is in use in {self.group} by {holders[0]}: give this collector a name of its "
            "own with a spool of its own, or stop the other one"
        )

    def _end(self) -> None:
        """Take in what is at hand, commit and acknowledge it."""
        assert self._spool is not None
        self._state = STOPPING
        until_ns = time.monotonic_ns() + DRAIN_NS
        while time.monotonic_ns() < until_ns and self._gather(0.0, TURN_BYTES):
            if not self._commit():
                break
        for _ in range(FINAL_TRIES):
            if self._commit():
                return
            time.sleep(RETRY_NS / NS_PER_S)

    def _leave(self) -> None:
        if self._member is not None:
            self._member.close(LEAVE_S)

    def _let_go(self) -> None:
        assert self._spool is not None
        self._is_limited()
        self._spool.close()

    def _tell_recovery(self, spool: Spool) -> None:
        found = spool.recovered
        if found.cut_bytes:
            size = format_size(found.cut_bytes)
            log.warning("%s: %s of segment %d were not whole and are cut", self.path, size, found.segment)
        for damage in found.damage:
            log.error("%s: %s; run `gapless spool repair %s` while no collector runs", self.path, damage, self.path)


def _default_name(path: Path) -> str:
    """Return no name if the spool has one, else the one that a new collector gets."""
    try:
        SpoolInfo.read(path)
    except FileNotFoundError:
        return DEFAULT_NAME
    return ""
