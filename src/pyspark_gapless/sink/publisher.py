"""From a manifest to messages delivered by every member.

On a batch: the publisher sends the rows in order as acknowledged messages, many at a time, each
with a header that names the row. The batch is done when every member has delivered the last
message, absent durable members included.

On an incarnation that ends in the middle (expelled, or closed): the next incarnation starts the
batch again, and receivers drop the rows already received.

On the end of a batch: the member stays for a while, because the next batch comes soon and joining
takes longer than sending. The member leaves when idle for too long, or when the process ends
(``publisher_process.py``).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from gapless import blocking
from gapless.errors import ClosedError, GaplessError, TimedOutError, UndeliveredError
from gapless.group.group_identity import check_may_send
from gapless.group.join_options import MemberOptions
from gapless.group.sink_dedup import SinkRowId
from gapless.logger import logger_of
from gapless.units import NS_PER_S, format_duration
from pyspark_gapless.sink.row_encoder import add_row_header
from pyspark_gapless.sink.staging import Manifest, SinkError, Staging, payloads_of, split_batch

if TYPE_CHECKING:
    from pyspark_gapless.sink.options import SinkOptions

log = logger_of("spark")

MAX_SEND_ROWS: Final = 2048
MAX_SEND_BYTES: Final = 512 * 1024
"""Approximate number of bytes in a send."""
MAX_SENDS_IN_FLIGHT: Final = 16
"""Maximum number of unacknowledged sends before a wait for the first send."""
MAX_ATTEMPTS: Final = 3
"""How often a batch is started when the publishing incarnation ends."""
LEAVE_TIMEOUT_S: Final = 2.0
"""Maximum time for leaving after an error."""


class PublisherMember:
    """A member of a group that this process keeps for later batches."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.joins = 0
        self._group: blocking.Group | None = None
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def acquire(self) -> Iterator[blocking.Group]:
        """Join the group and wait for the expected receivers; after an error leave at once."""
        with self.lock:
            if self._timer is not None:
                self._timer.cancel()
            try:
                yield self._join()
            except BaseException:
                self.leave(LEAVE_TIMEOUT_S)
                raise
            self._timer = threading.Timer(
                self.options.idle_timeout_ns / NS_PER_S, self._leave_if_idle
            )
            self._timer.daemon = True
            self._timer.start()

    def _join(self) -> blocking.Group:
        options = self.options
        if _shutting_down.is_set():
            raise SinkError("the publisher process is shutting down and accepts no more batches")
        if self._group is not None and self._group.is_closed:
            self.leave(0.0)
        if self._group is None:
            protection: dict[str, Any] = {
                "transport": options.transport,
                "keys": options.keys,
                "insecure": options.insecure,
                "tls": options.tls,
            }
            check_may_send(MemberOptions(group=options.group, display_name="check", **protection))
            group = blocking.join(
                options.group,
                timeout=options.join_timeout_ns / NS_PER_S,
                discover=options.discover,
                host=options.host,
                ports=options.ports,
                config=options.config,
                listen=False,
                **protection,
            )
            try:
                self._group = group.open()
            except TimedOutError as error:
                raise _unreachable_error(options, str(error)) from error
            self.joins += 1
        self._wait_for_members(self._group)
        return self._group

    def _wait_for_members(self, group: blocking.Group) -> None:
        options, until_ns = self.options, time.monotonic_ns() + self.options.join_timeout_ns
        try:
            group.wait_for_members(options.min_members, _remaining_s(until_ns))
            for name in options.wait_for:
                group.wait_for_member(name, _remaining_s(until_ns))
        except TimedOutError as error:
            raise _unreachable_error(options, str(error)) from error

    def _leave_if_idle(self) -> None:
        if self.lock.acquire(blocking=False):
            try:
                self.leave(LEAVE_TIMEOUT_S)
            finally:
                self.lock.release()

    def leave(self, timeout_s: float) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(GaplessError):
                group.close(timeout_s)


_members: dict[tuple[object, ...], PublisherMember] = {}
_owner = 0
_shutting_down = threading.Event()


def member_for(options: SinkOptions) -> PublisherMember:
    """Return the member of this process for the options."""
    global _owner  # noqa: PLW0603 - a fork has none of the members of its parent
    if _owner != os.getpid():
        _members.clear()
        _owner = os.getpid()
    seat = _members.setdefault(options.member_key, PublisherMember(options))
    seat.options = options
    return seat


def shut_down(timeout_s: float) -> None:
    """Leave all groups, and join none any more."""
    _shutting_down.set()
    leave_all(timeout_s)


def leave_all(timeout_s: float = LEAVE_TIMEOUT_S) -> None:
    """Leave all groups."""
    threads = [
        threading.Thread(target=seat.leave, args=(timeout_s,), daemon=True)
        for seat in list(_members.values())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + LEAVE_TIMEOUT_S)


def publish(staging: Staging, manifest: Manifest, options: SinkOptions) -> None:
    """Publish a batch; on return every member has delivered the batch."""
    if not manifest.rows:
        return
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            with member_for(options).acquire() as group:
                _send_all(group, staging, manifest, options)
        except (UndeliveredError, ClosedError) as error:
            if _shutting_down.is_set():
                raise SinkError(
                    f"the publisher process was stopped in the middle of batch {manifest.batch}"
                ) from error
            if attempt == MAX_ATTEMPTS:
                raise SinkError(
                    f"batch {manifest.batch} was not published in {MAX_ATTEMPTS} "
                    f"attempts; the last error was: {error}. Check the group (gapless "
                    "top), then start the query again"
                ) from error
            log.warning("publishing batch %d again: %s", manifest.batch, error)
        else:
            return


def _send_all(
    group: blocking.Group, staging: Staging, manifest: Manifest, options: SinkOptions
) -> None:
    timeout_s = options.deliver_timeout_ns / NS_PER_S
    waiting: deque[blocking.Receipt] = deque()
    number = 0
    try:
        for part, batch in staging.rows(manifest):
            for piece in split_batch(batch, MAX_SEND_ROWS, MAX_SEND_BYTES):
                payloads, given = payloads_of(piece)
                names = _row_ids(manifest, part.partition, number, len(payloads))
                headers = list(map(add_row_header, names, given or [None] * len(payloads)))
                sent = group.send_many(
                    payloads,
                    mode="acknowledged",
                    timeout=timeout_s,
                    loopback=False,
                    headers=headers,
                )
                waiting.append(sent)
                number += len(payloads)
                if len(waiting) > MAX_SENDS_IN_FLIGHT:
                    waiting.popleft().delivered(timeout_s)
        while waiting:
            waiting.popleft().delivered(timeout_s)
    except TimedOutError as error:
        raise _delivery_timeout_error(group, manifest, options, number, error) from error
    here = 0 if group.view is None else len(group.view.members)
    if here < options.min_members:
        raise _unreachable_error(
            options,
            (f"only {here} of {options.min_members} members were present at the end of the batch"),
        )


def _row_ids(manifest: Manifest, partition: int, first: int, count: int) -> list[bytes]:
    start = SinkRowId(manifest.query, manifest.batch, partition, 0).encode()[:-1]
    return [b"%b%d" % (start, row) for row in range(first, first + count)]


def _remaining_s(until_ns: int) -> float:
    return max(0.0, (until_ns - time.monotonic_ns()) / NS_PER_S)


def _unreachable_error(options: SinkOptions, what: str) -> SinkError:
    how = [f"transport {options.transport}", f"discover {options.discover or 'by default'}"]
    if options.host:
        how.append(f"host {options.host}")
    return SinkError(
        f"group {options.group!r} was not joined within "
        f"{format_duration(options.join_timeout_ns)}: {what} "
        f"({', '.join(how)}). Start a receiver (gapless listen "
        f"{options.group}), give the sink the same discover and transport "
        "options as the other members, or raise joinTimeout; minMembers is "
        "the required number of members, the sink included. No row is "
        "lost: start the query again"
    )


def _delivery_timeout_error(
    group: blocking.Group,
    manifest: Manifest,
    options: SinkOptions,
    number: int,
    error: TimedOutError,
) -> SinkError:
    explained: Any = ""
    with contextlib.suppress(GaplessError):
        explained = "; ".join(str(group.snapshot()).splitlines())
    return SinkError(
        f"batch {manifest.batch} was not delivered to all members of "
        f"{options.group!r}: no progress for "
        f"{format_duration(options.deliver_timeout_ns)} with {number} of "
        f"{manifest.rows} rows sent ({error}). {explained}. Check for "
        "members that do not read or are away, or raise deliverTimeout. No "
        "row is lost: start the query again"
    )
