"""Snapshots of a member: the protocol's snapshot, completed with figures of the application side.

The protocol thread takes a snapshot between two inputs (``gapless.protocol.snapshot``); this module
adds the group's name, display names, unread messages and the counters of the transport and of the
inbox. The protocol thread also answers the snapshot requests of other members, so a member with a
hanging application answers too.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError
from gapless.group.headers import REPLY, wrap
from gapless.group.member_names import known_names
from gapless.identity import Address, View, ViewId
from gapless.protocol.snapshot import (
    CLOSED,
    FAILED,
    KeysSnapshot,
    MemberSnapshot,
    PeerSnapshot,
    StreamSnapshot,
    WindowBlocker,
    take_snapshot,
)
from gapless.runtime.send_requests import SendRequest

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gapless.group.inbox import Inbox
    from gapless.runtime.handle import MemberHandle
    from gapless.wire.seal import Seal


def request_snapshot(handle: MemberHandle, inbox: Inbox) -> Future[MemberSnapshot]:
    """Let the protocol thread take a snapshot of this member."""
    return handle.query(
        lambda member: replace(
            found := take_snapshot(
                member, time.monotonic_ns(), known_names(handle, inbox.display_names)
            ),
            gauges={**found.gauges, **_gauges(handle, inbox)},
            counters={**found.counters, **_counters(handle, inbox)},
            **_local_fields(handle, inbox),
        )
    )


def closed_snapshot(handle: MemberHandle, inbox: Inbox) -> MemberSnapshot:
    """Return the snapshot of a member that has ended."""
    phase = CLOSED if handle.error is None else FAILED
    return MemberSnapshot(me=handle.me, phase=phase, **_local_fields(handle, inbox))


def reply_with_snapshot(handle: MemberHandle, inbox: Inbox, to: Address, number: int) -> None:
    """Answer the snapshot request of another member."""
    request_snapshot(handle, inbox).add_done_callback(partial(_send_snapshot, handle, to, number))


def _send_snapshot(
    handle: MemberHandle, to: Address, number: int, found: Future[MemberSnapshot]
) -> None:
    with suppress(GaplessError):  # this member or the other is leaving
        reply = wrap(REPLY, number, encode_snapshot(found.result()))
        handle.submit(SendRequest.of([reply], to=to))


# What the application side adds


def _local_fields(handle: MemberHandle, inbox: Inbox) -> dict[str, Any]:
    return {
        "group": handle.group,
        "display_name": handle.display_name,
        "unread": inbox.unread,
        "unread_limit": handle.config.unread_limit,
        "incarnations": inbox.incarnations,
        "error": "" if handle.error is None else str(handle.error),
        "discovery_problems": handle.discovery_problems,
        "keys": _describe_keys(handle.transport.seal),
    }


def _describe_keys(seal: Seal | None) -> KeysSnapshot | None:
    if seal is None:
        return None
    ring = seal.ring
    opens = tuple(f"{key_id:08x}" for key_id in sorted(ring.opening_keys))
    return KeysSnapshot(ring.label, ring.sealing_key.label, opens)


def _gauges(handle: MemberHandle, inbox: Inbox) -> dict[str, int]:
    return {
        "unread": inbox.unread,
        "unread_limit": handle.config.unread_limit,
        "incarnations": inbox.incarnations,
        "receive_buffer_bytes": handle.transport.receive_buffer_bytes,
        "max_frame_bytes": handle.config.max_frame_bytes,
    }


def _counters(handle: MemberHandle, inbox: Inbox) -> dict[str, int]:
    found = {"received": inbox.received, "batches": inbox.batches, "full": inbox.full}
    if inbox.sink_dedup.repeated:
        found["repeated"] = inbox.sink_dedup.repeated
    found.update((f"events.{name}", times) for name, times in handle.event_counts.items())
    for prefix, problems in (
        ("transport", handle.transport.problems),
        ("application", inbox.problems),
    ):
        found.update((f"{prefix}.{reason}", times) for reason, times in problems.counters.items())
    if (seal := handle.transport.seal) is not None:
        found.update(
            (f"rejected.{reason}", times) for reason, times in seal.rejected.items() if times
        )
    for problem in handle.transport.book.discovery.problems():
        name = f"discovery.{problem.reason}"
        found[name] = found.get(name, 0) + problem.times
    return found


# As JSON, between members


def encode_snapshot(snapshot: MemberSnapshot) -> bytes:
    """Return a snapshot as JSON."""
    return json.dumps(snapshot.as_dict(), separators=(",", ":")).encode()


def decode_snapshot(text: bytes) -> MemberSnapshot:
    """Return the snapshot in a text of ``encode_snapshot``; keys of later versions are ignored.

    Raises:
        GaplessError: The text is not a snapshot.
    """
    try:
        found = json.loads(text)
        values = _known(MemberSnapshot, found)
        values["me"] = Address.parse(found["me"])
        values["view"] = None if found["view"] is None else _view(found["view"])
        values["streams"] = tuple(_stream(one) for one in found["streams"])
        values["discovery_problems"] = tuple(found.get("discovery_problems", ()))
        values["peers"] = tuple(_peer(one) for one in found["peers"])
        values["absent"] = tuple(map(str, found.get("absent", ())))
        values["keys"] = None if found.get("keys") is None else _keys(found["keys"])
        return MemberSnapshot(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GaplessError(f"the answer is not a member snapshot: {error}") from error


def _known(kind: type, found: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in found.items() if name in names}


def _view(found: dict[str, Any]) -> View:
    view_id = ViewId(int(found["number"]), Address.parse(found["coordinator"]))
    return View(view_id, tuple(map(Address.parse, found["members"])))


def _keys(found: dict[str, Any]) -> KeysSnapshot:
    return KeysSnapshot(str(found["ring"]), str(found["seals"]), tuple(map(str, found["opens"])))


def _stream(found: dict[str, Any]) -> StreamSnapshot:
    to = None if found["to"] is None else Address.parse(found["to"])
    blockers = tuple(
        WindowBlocker(**{**_known(WindowBlocker, one), "member": Address.parse(one["member"])})
        for one in found["blockers"]
    )
    return StreamSnapshot(**{**_known(StreamSnapshot, found), "to": to, "blockers": blockers})


def _peer(found: dict[str, Any]) -> PeerSnapshot:
    ranges = tuple((int(first), int(last)) for first, last in found["ranges"])
    member = Address.parse(found["member"])
    return PeerSnapshot(**{**_known(PeerSnapshot, found), "member": member, "ranges": ranges})
