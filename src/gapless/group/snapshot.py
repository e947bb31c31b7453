"""A look at a member: its machine, its transport and its application, for itself or for another member that asks.

On reception of the question of another member: the protocol thread looks, and answers, without the
application.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gapless.errors import GaplessError
from gapless.group.headers import REPLY, wrap
from gapless.metrics import prometheus
from gapless.metrics.prometheus import MemberSnapshot
from gapless.runtime.send_requests import SendRequest

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gapless.group.inbox import Inbox
    from gapless.identity import Address
    from gapless.runtime.handle import MemberHandle


def request_snapshot(handle: MemberHandle, inbox: Inbox) -> Future[MemberSnapshot]:
    """Let the protocol thread take a look."""
    return handle.query(
        lambda member: prometheus.take_snapshot(
            member,
            handle.group,
            time.monotonic_ns(),
            _gauges(handle, inbox),
            _counters(handle, inbox),
        )
    )


def reply_with_snapshot(handle: MemberHandle, inbox: Inbox, to: Address, number: int) -> None:
    """Tell another member how this one stands."""
    request_snapshot(handle, inbox).add_done_callback(partial(_send_snapshot, handle, to, number))


def _send_snapshot(
    handle: MemberHandle, to: Address, number: int, found: Future[MemberSnapshot]
) -> None:
    with suppress(GaplessError):  # this member, or the other, is on its way out
        handle.submit(SendRequest.of([wrap(REPLY, number, found.result().encode())], to=to))


def _gauges(handle: MemberHandle, inbox: Inbox) -> dict[str, int]:
    return {
        "unread": inbox.unread,
        "most_unread": handle.config.unread_limit,
        "lives": inbox.incarnations,
        "receive_buffer_bytes": handle.transport.receive_buffer_bytes,
        "max_frame_bytes": handle.config.max_frame_bytes,
    }


def _counters(handle: MemberHandle, inbox: Inbox) -> dict[str, int]:
    """Return what is counted beside the machine."""
    found = {"received": inbox.received, "batches": inbox.batches, "full": inbox.full}
    if inbox.sink_dedup.repeated:
        found["repeated"] = inbox.sink_dedup.repeated
    found.update((f"events.{name}", times) for name, times in handle.event_counts.items())
    for prefix, problems in (
        ("transport", handle.transport.problems),
        ("application", inbox.problems),
    ):
        found.update((f"{prefix}.{reason}", times) for reason, times in problems.counters.items())
    for problem in handle.transport.book.discovery.problems():
        name = f"discovery.{problem.reason}"
        found[name] = found.get(name, 0) + problem.times
    return found
