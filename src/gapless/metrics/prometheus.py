"""Prometheus text of member snapshots: this module formats, the protocol computes the figures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gapless.errors import ClosedError
from gapless.protocol.snapshot import MemberSnapshot
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of ``prometheus``."""
LAG = "lag."
"""Prefix of the gauge of a spool reader's lag; the reader's name follows."""

_HELP = {
    "window_stalled_seconds": "How long the window to the group has not moved; 0 if all is acked.",
    "window_blocked_by": "1 for each member that the window to the group waits for.",
    "frames_sent_total": "Frames sent, by kind; repairs are among the data frames.",
    "frames_received_total": "Frames received, by kind.",
    "repairs_sent_total": "Data frames sent again.",
    "messages_received_total": "Messages delivered to the application.",
    "spool_messages_total": "Messages on disk and acknowledged by this collector.",
    "spool_received_total": "Messages delivered to this collector, on disk or not.",
    "spool_stored_messages": "Messages in the spool.",
    "spool_pending_messages": "Received messages that are not on disk, so not acknowledged.",
    "spool_lag": "Messages in the spool that a reader has not committed.",
    "spool_waiting": "1 while the spool accepts nothing more and senders wait, else 0.",
    "peer_gap_seconds": "Age of the oldest gap in the stream of a member; 0 if nothing is missing.",
    "peer_acked_ago_seconds": "Time since the last ack of a member.",
    "peer_heard_ago_seconds": "Time since the last frame of a member.",
    "peer_round_trip_seconds": "Measured time from a nak to its repair.",
    "peer_delivered": "Highest seqno of a member that is delivered here.",
    "peer_missing": "Messages of a member that are known to exist and have not arrived.",
    "peer_ahead": "Messages of a member that wait for missing ones.",
    "peer_unacked": "Messages to the group that a member has not acknowledged.",
}
_OLD_NAMES = {
    "absent_members": "away",
    "future_view_runs": "early",
    "incarnations": "lives",
    "oob_unacked": "aside_unacked",
    "oob_waiting": "aside_waiting",
    "unread_limit": "most_unread",
    "window_blocked_by": "held_by",
    "window_stalled_seconds": "unmoved_seconds",
}
"""Metrics renamed in 0.2; the names of 0.1 are exported beside them until 0.3."""
_FAMILIES = {"sent": "frames_sent", "received": "frames_received"}
"""The metric of counters with a kind whose name does not say what they count."""
_SINGLE = {"received": "messages_received", "sent.repair": "repairs_sent"}
"""The metric of single counters that a family would mix up with other things."""
_OLD_TOTALS = {
    "received_total": "gapless_messages_received_total and gapless_frames_received_total",
    "sent_total": "gapless_frames_sent_total and gapless_repairs_sent_total",
}
"""Metrics of 0.1 that mixed several things, exported until 0.3, and what to read instead."""
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]+")


def prometheus(snapshots: MemberSnapshot | Iterable[MemberSnapshot]) -> str:
    """Return the snapshots of one or several members in the text format of Prometheus.

    Raises:
        ClosedError: A member has ended.
    """
    found: dict[str, list[str]] = {}
    for one in [snapshots] if isinstance(snapshots, MemberSnapshot) else snapshots:
        for name, kind, labels, value in samples(one):
            if name not in found:
                found[name] = [f"# HELP {name} {help_of(name)}", f"# TYPE {name} {kind}"]
            inside = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
            found[name].append(f"{name}{{{inside}}} {value}")
    return "".join(f"{line}\n" for lines in found.values() for line in lines)


def samples(one: MemberSnapshot) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Return every sample: name, type, labels and value; renamed metrics under both names."""
    if not one.streams:
        raise ClosedError(f"this member of {one.group} is closed and has no metrics")
    for name, kind, labels, value in _samples(one):
        yield f"gapless_{name}", kind, labels, value
    for name, kind, labels, value in _samples(one):
        if name in _OLD_NAMES:
            yield f"gapless_{_OLD_NAMES[name]}", kind, labels, value
    for key, value in sorted(one.counters.items()):
        family, _, reason = key.partition(".")
        if f"{family}_total" in _OLD_TOTALS:
            labels = {**_base_labels(one), **({"kind": reason} if reason else {})}
            yield f"gapless_{family}_total", "counter", labels, value


def _samples(one: MemberSnapshot) -> Iterator[tuple[str, str, dict[str, str], float]]:
    base = _base_labels(one)
    for key, value in sorted(one.counters.items()):
        family, _, reason = key.partition(".")
        labels = {**base, "kind": reason} if reason else base
        if key in _SINGLE:
            yield f"{_SINGLE[key]}_total", "counter", base, value
        elif family in _FAMILIES:
            yield f"{_FAMILIES[family]}_total", "counter", labels, value
        elif family.endswith("_ns"):
            yield f"{family[:-3]}_seconds_total", "counter", base, value / NS_PER_S
        else:
            yield f"{_name(family)}_total", "counter", labels, value
    for key, value in sorted(one.gauges.items()):
        if key.startswith(LAG):
            yield "spool_lag", "gauge", {**base, "reader": key.removeprefix(LAG)}, value
        else:
            yield _name(key), "gauge", base, value
    yield "view", "gauge", base, 0 if one.view is None else one.view.id.number
    yield "window_stalled_seconds", "gauge", base, _seconds(one.streams[0].stalled_ns)
    for blocker in one.blockers:
        labels = {**base, "peer": str(blocker.member), "peer_name": blocker.name}
        yield "window_blocked_by", "gauge", labels, 1
    for peer in one.peers:
        labels = {**base, "peer": str(peer.member), "peer_name": peer.name}
        for key in ("delivered", "missing", "ahead", "unacked"):
            yield f"peer_{key}", "gauge", labels, getattr(peer, key)
        for key in ("gap", "acked_ago", "heard_ago", "round_trip"):
            yield f"peer_{key}_seconds", "gauge", labels, _seconds(getattr(peer, f"{key}_ns"))


def _base_labels(one: MemberSnapshot) -> dict[str, str]:
    return {"group": one.group, "member": str(one.me), "name": one.display_name}


def _seconds(duration_ns: int | None) -> float:
    return 0.0 if duration_ns is None else duration_ns / NS_PER_S


def _name(key: str) -> str:
    return _NOT_A_NAME.sub("_", key)


def help_of(name: str) -> str:
    """Return the help text of a metric."""
    key = name.removeprefix("gapless_")
    renamed = next((new for new, old in _OLD_NAMES.items() if old == key), None)
    if renamed is not None:
        return f"Deprecated: gapless_{renamed}."
    if key in _OLD_TOTALS:
        return f"Deprecated: {_OLD_TOTALS[key]}."
    return _HELP.get(key, f"See docs/reference/metrics.md, {key}.")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
