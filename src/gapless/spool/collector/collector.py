"""The collector: a durable member that stores the messages of a group (docs/guides/collecting.md).

``with Collector("spool", "orders") as collector:`` collects in a separate thread until the end of
the block. The thread runs commit_loop.py; this file joins and leaves the group.

On the end: pending messages are committed and acknowledged, and the member leaves. The group keeps
the roster entry for ``retention_timeout``, as for every durable member, so the next incarnation
continues at the same position.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from gapless import blocking
from gapless.config import Config
from gapless.errors import ClosedError, ConfigError, GaplessError, LocalProtocolError, TimedOutError
from gapless.logger import RAISED
from gapless.spool.collector.commit_loop import CommitLoop, log
from gapless.spool.collector.options import DEFAULT_NAME, CollectorOptions, ParsedCollectorOptions
from gapless.spool.collector.status import (
    COLLECTING,
    FAILED,
    JOINING,
    NEW,
    STOPPED,
    STOPPING,
    WAITING,
    CollectorStatus,
    appender_counts,
)
from gapless.spool.errors import SpoolError
from gapless.spool.segment_file import SpoolInfo
from gapless.spool.writer import SpoolWriter
from gapless.units import NS_PER_S, format_size

if TYPE_CHECKING:
    from gapless.protocol.snapshot import MemberSnapshot
    from gapless.spool.recovery import RecoveryResult

LEAVE_TIMEOUT_S: Final = 3.0
"""Maximum time for leaving the group; a member that just ends is detected by its silence."""
SNAPSHOT_TIMEOUT_S: Final = 5.0
"""Maximum time for a snapshot of the member."""
MAX_JOIN_ROUNDS: Final = 7
"""How long one attempt to join may take, in multiples of ``found_after``."""


class Collector:
    """A member of ``group`` that stores every message, in order, in the spool at ``spool_path``.

    ``start`` opens the spool and raises the errors of the spool (``SpoolLocked`` if another
    collector uses the same spool). A thread joins the group, and ``wait_joined`` waits for the
    first view. ``stop`` ends the collector. As a context manager a collector starts, waits and
    stops. Any thread may read ``status`` at any time.
    """

    def __init__(
        self, spool_path: Path | str, group: str, **options: Unpack[CollectorOptions]
    ) -> None:
        if type(group) is not str or not group:
            raise ConfigError(
                f"group = {group!r}: expected the name of the group, a non-empty text"
            )
        self.path = Path(spool_path)
        self.group = group
        self._options = ParsedCollectorOptions.parse(group, options)
        self._loop: CommitLoop | None = None
        self._thread: threading.Thread | None = None
        self._joined: Future[None] = Future()
        self._stopping = False
        self._error: Exception | None = None
        self._state = NEW

    # Coming and going

    def start(self) -> Self:
        """Open the spool and start joining the group.

        Raises if the spool or the options are invalid.
        """
        if self._thread is not None or self._stopping:
            raise LocalProtocolError("this collector was started before: create a new Collector")
        choices = self._options
        spool = SpoolWriter.open(
            self.path,
            group=self.group,
            limits=choices.limits,
            sync=choices.sync,
            name=choices.name or _default_name(self.path),
            keys=choices.spool_keys,
        )
        try:
            self._log_recovery(spool.recovered)
            work = self._loop = CommitLoop(spool, self._make_member(spool), choices.line_bytes)
        except BaseException:
            spool.close()
            raise
        self._state = JOINING
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="gapless collector", daemon=True
        )
        self._thread.start()
        return self

    def wait_joined(self, timeout_s: float | None = None) -> None:
        """Wait until the collector is a member; raise the error that prevents joining."""
        try:
            self._joined.result(timeout_s)
        except GaplessError:
            raise
        except TimeoutError:
            raise TimedOutError(
                f"the collector did not join {self.group} within the timeout"
            ) from None

    def check(self) -> None:
        """Raise the error that has ended this collector, if any."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Commit and acknowledge the received messages, leave the group, close the spool.

        Raises the error that ended the collector before, or the error of the spool if received
        messages could not be committed: uncommitted messages were not acknowledged, and are sent
        again.
        """
        self._shut_down()
        self.check()

    def _shut_down(self) -> None:
        self._stopping = True
        if self._thread is not None and self._loop is not None:
            if not self._joined.done():
                self._loop.member.leave()
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_joined()
        except BaseException:
            self._shut_down()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self._shut_down()

    @property
    def name(self) -> str:
        """The durable name of this collector."""
        return (
            self._options.name if self._loop is None else self._loop.spool.info.name or DEFAULT_NAME
        )

    @property
    def retention_timeout_ns(self) -> int:
        """How long the group retains messages for this collector during an absence."""
        return self._config.retention_timeout_ns

    @property
    def _config(self) -> Config:
        config: Config = self._options.join.get("config") or Config()
        return config

    @property
    def status(self) -> CollectorStatus:
        """The current status."""
        fields: dict[str, Any] = {
            "group": self.group,
            "spool": str(self.path),
            "name": self.name,
            "state": self._state,
        }
        work = self._loop
        if work is None:
            return CollectorStatus(**fields)
        if work.blocked_by and self._state == COLLECTING:
            fields["state"] = WAITING
        if work.usage is not None:
            fields.update(work.usage._asdict())
            fields["spool_messages"] = fields.pop("messages")
            del fields["pending_bytes"]
        member = work.member
        if (view := member.view) is not None:
            fields.update(me=str(member.me), view=view.id.number, members=len(view.members))
        return CollectorStatus(
            waits_for=str(self._error or work.blocked_by),
            lives=work.incarnations,
            commits=work.commits,
            commit_ns=work.commit_ns,
            failures=work.failures,
            unread=member.unread,
            **fields,
            **appender_counts(work.appender),
        )

    def snapshot(self, timeout_s: float = SNAPSHOT_TIMEOUT_S) -> MemberSnapshot:
        """Return the figures of the member and of the spool, for ``gapless.metrics.prometheus``."""
        if self._loop is None:
            raise LocalProtocolError("this collector was not started: call start() first")
        return self.status.add_to_snapshot(self._loop.member.snapshot(timeout=timeout_s))

    # The thread

    def _run(self, work: CommitLoop) -> None:
        try:
            try:
                self._join(work)
                while not self._stopping:
                    work.run_once()
                self._state = STOPPING
                work.drain()
            finally:
                work.member.close(LEAVE_TIMEOUT_S)
                work.close()
        except Exception as error:  # noqa: BLE001 - told by check, joined and stop
            self._fail(error)
        else:
            self._state = STOPPED

    def _fail(self, error: Exception) -> None:
        if not self._joined.done():
            if self._stopping:
                error = ClosedError("the collector was stopped before it joined the group")
                self._state = STOPPED
            else:
                self._error, self._state = error, FAILED
            self._joined.set_exception(error)
            return
        self._error, self._state = error, FAILED
        if not isinstance(error, GaplessError):
            log.error("%s: the collector has failed", self.group, exc_info=error)
        else:
            log.error("%s: the collector has ended: %s", self.group, error, extra=RAISED)

    def _make_member(self, spool: SpoolWriter) -> blocking.Group:
        # With a longer timeout, a member that is not admitted would found another group.
        most_s = self._config.found_after_ns * MAX_JOIN_ROUNDS / NS_PER_S
        return blocking.join(
            self.group,
            timeout=min(most_s, self._options.join_timeout_s),
            durable_name=spool.info.name or DEFAULT_NAME,
            node=spool.info.node,
            stores=True,
            resume=dict(spool.marks),
            **self._options.join,
        )

    def _join(self, work: CommitLoop) -> None:
        """Join the group; a dead former incarnation may hold the name for a while.

        Raises:
            NameInUseError: Another live member has the durable name.
        """
        until_s = time.monotonic() + self._options.join_timeout_s
        while True:
            try:
                work.member.open()
                break
            except TimedOutError:
                if time.monotonic() >= until_s:
                    raise
            work.member = self._make_member(work.spool)
            if self._stopping:
                raise ClosedError("the collector was stopped before it joined the group")
        work.incarnations = 1
        self._state = COLLECTING
        self._joined.set_result(None)

    def _log_recovery(self, found: RecoveryResult) -> None:
        if found.truncated_bytes:
            size = format_size(found.truncated_bytes)
            log.warning(
                "%s: removed an incomplete commit of %s at the end of segment %d",
                self.path,
                size,
                found.segment,
            )
        for damage in found.damage:
            log.error(
                "%s: %s; stop this collector and run `gapless spool repair %s`",
                self.path,
                damage,
                self.path,
            )


def _default_name(path: Path) -> str:
    """Return no name if the spool has a name, otherwise the name of a new collector."""
    try:
        SpoolInfo.read(path)
    except FileNotFoundError:
        return DEFAULT_NAME
    except SpoolError:
        pass  # opening the spool raises a better error
    return ""
