"""Figures for operators: counters of what has happened, and a look at how the windows stand.

The machine counts as it works; everything else is looked up when somebody asks. ``group.take_snapshot()``
takes a :class:`MemberSnapshot` of this member or of another, :func:`prometheus` writes it as text;
exporters.py serves that.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gapless.identity import Address
    from gapless.protocol.member import Member
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.protocol.stream.outbound import OutboundStream

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What the text of :func:`prometheus` is."""
LAG = "lag."
"""Begins the gauge of what a reader of a spool has not read; its name follows."""


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """An own stream: what is outstanding and who holds it up. ``to`` is empty for the stream to all.

    It takes ``room`` messages more, and ``max_bytes`` in all. ``unmoved_ns`` is for how long the
    oldest message that is not acknowledged by all has been that.
    """

    to: str
    low: int
    high: int
    room: int
    stored_bytes: int
    max_bytes: int
    waiting: int
    unmoved_ns: int | None
    held_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerSnapshot:
    """Another member: its stream as it comes in here, and what it has acknowledged of the own stream to all.

    ``ahead`` messages have come that wait for ``missing`` ones; ``gap_ns`` is the age of the oldest
    gap.
    """

    member: str
    name: str
    delivered: int
    high: int
    ahead: int
    missing: int
    gap_ns: int | None
    stored_bytes: int
    round_trip_ns: int
    acked: int
    unacked: int
    acked_ago_ns: int | None
    heard_ago_ns: int | None


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """How a member stands at one moment."""

    group: str
    me: str
    name: str
    phase: str
    view: int
    coordinator: str
    members: tuple[str, ...]
    sending: tuple[StreamSnapshot, ...]
    peers: tuple[PeerSnapshot, ...]
    gauges: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(self.as_dict(), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> MemberSnapshot:
        """Return what :meth:`encode` made; what is no look raises GaplessError."""
        try:
            found = json.loads(text)
            found["sending"] = tuple(
                StreamSnapshot(**one | {"held_by": tuple(one["held_by"])})
                for one in found["sending"]
            )
            found["peers"] = tuple(PeerSnapshot(**one) for one in found["peers"])
            found["members"] = tuple(found["members"])
            return cls(**found)
        except (ValueError, TypeError, KeyError) as error:
            raise GaplessError(f"what came is no look at a member: {error}") from error


def take_snapshot(
    member: Member,
    group: str,
    now_ns: int,
    gauges: Mapping[str, int],
    counters: Mapping[str, int],
) -> MemberSnapshot:
    """Look at a machine, between two inputs; what others count beside it is added."""
    view, roster = member.view, member.roster
    names = {} if roster is None else {place.address: place.name for place in roster.entries}
    others = [] if view is None else [one for one in view.members if one != member.me]
    streams = [member.outbound, *member.connections.outbounds()]
    return MemberSnapshot(
        group=group,
        me=str(member.me),
        name=names.get(member.me, ""),
        phase=member.phase,
        view=0 if view is None else view.id.number,
        coordinator="" if view is None else str(view.id.coordinator),
        members=() if view is None else tuple(map(str, view.members)),
        sending=tuple(_sending(stream, member, now_ns) for stream in streams),
        peers=tuple(_peer(one, names.get(one, ""), member, now_ns) for one in others),
        gauges={**_gauges(member), **gauges},
        counters={**member.counters, **counters},
    )


def _sending(stream: OutboundStream, member: Member, now_ns: int) -> StreamSnapshot:
    window, since_ns = stream.window, stream._blocked_since_ns
    held_by: Iterable[Address] = ()
    if since_ns is not None:
        held_by = stream.acks.lagging(stream._acked_by_members + 1)
        if stream.profile.release != "acks" and member.stability is not None:
            held_by = member.stability.lagging(member.me, window.low + 1)
    return StreamSnapshot(
        to="" if stream.to is None else str(stream.to),
        low=window.low,
        high=window.high,
        room=window.room(),
        stored_bytes=window.stored_bytes,
        max_bytes=window.max_bytes or 0,
        waiting=len(stream.queue),
        unmoved_ns=None if since_ns is None else now_ns - since_ns,
        held_by=tuple(map(str, held_by)),
    )


def _peer(other: Address, name: str, member: Member, now_ns: int) -> PeerSnapshot:
    outbound, stream = member.outbound, member.inbound.get(other)
    window = None if stream is None else stream.window
    gap_ns = None if stream is None else stream.loss_detector.oldest_ns
    acked = outbound.acks[other] if other in outbound.acks else 0  # noqa: SIM401 - it is no dictionary
    acked_ns, heard_ns = (
        outbound.acked_ns.get(other),
        member.failure_detector._last_heard_ns.get(other),
    )
    return PeerSnapshot(
        member=str(other),
        name=name,
        delivered=0 if window is None else window.delivered,
        high=0 if window is None else window.high,
        ahead=0 if stream is None or window is None else stream._undelivered_count(window),
        missing=0 if stream is None else _missing(stream),
        gap_ns=None if gap_ns is None else max(0, now_ns - gap_ns),
        stored_bytes=0 if window is None else window.stored_bytes,
        round_trip_ns=0 if stream is None else stream.loss_detector.rtt.smoothed_ns,
        acked=acked,
        unacked=max(0, outbound.window.high - acked),
        acked_ago_ns=None if acked_ns is None else now_ns - acked_ns,
        heard_ago_ns=None if heard_ns is None else now_ns - heard_ns,
    )


def _missing(stream: InboundStream) -> int:
    window = stream.window
    if window is None:
        return 0
    found = window.missing(max(window.high, stream.announced_high))
    return sum(last - first + 1 for first, last in found)


def _gauges(member: Member) -> dict[str, int]:
    """Return sums over all streams, and how full every cache is."""
    outbounds = [member.outbound, *member.connections.outbounds()]
    windows = [(stream, stream.window) for stream in member.inbounds() if stream.window is not None]
    connections, aside = member.connections, member.out_of_band
    return {
        "capacity": member.config.capacity,
        "members": 0 if member.view is None else len(member.view.members),
        "sent": sum(stream.window.high for stream in outbounds),
        "unacked": sum(stream.window.high - stream.window.low for stream in outbounds),
        "waiting": sum(len(stream.queue) for stream in outbounds),
        "delivered": sum(window.delivered - stream.start for stream, window in windows),
        "undelivered": sum(stream._undelivered_count(window) for stream, window in windows),
        "missing": sum(_missing(stream) for stream, _ in windows),
        "stored_bytes": sum(window.stored_bytes for _, window in windows)
        + sum(stream.window.stored_bytes for stream in outbounds),
        "connections.out": len(connections.outgoing),
        "connections.in": len(connections.incoming),
        "connections.ended": len(connections._tombstones),
        "connections.unknown": len(connections._unconfirmed),
        "early": len(member.future_view_buffer),
        "aside.unacked": len(aside._pending),
        "aside.waiting": len(aside._queue),
        "away": len(member.outbound.retention),
    }


# Prometheus


_HELP = {
    "unmoved_seconds": "For how long the window of messages to all has not moved; 0 if nothing is outstanding.",
    "held_by": "Who holds the window of messages to all.",
    "spool_lag": "Messages in the spool that a reader has not passed.",
    "spool_waiting": "1 while the spool takes nothing more and senders wait, else 0.",
    "peer_gap_seconds": "Age of the oldest gap in the stream of a member; 0 if nothing is missing.",
    "peer_acked_ago_seconds": "Time since the last ack of a member.",
    "peer_heard_ago_seconds": "Time since anything was heard of a member.",
    "peer_round_trip_seconds": "The measured time from a nak to its repair.",
    "peer_delivered": "Up to which seqno the stream of a member is delivered here.",
    "peer_missing": "Messages of a member that are known to exist and have not come.",
    "peer_ahead": "Messages of a member that wait for missing ones.",
    "peer_unacked": "Messages to all that a member has not acknowledged.",
}
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]+")


def prometheus(looks: MemberSnapshot | Iterable[MemberSnapshot]) -> str:
    """Return figures in the text format of Prometheus, of one member or of several."""
    found: dict[str, list[str]] = {}
    for one in [looks] if isinstance(looks, MemberSnapshot) else looks:
        for name, kind, labels, value in samples(one):
            if name not in found:
                found[name] = [f"# HELP {name} {help_of(name)}", f"# TYPE {name} {kind}"]
            inside = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
            found[name].append(f"{name}{{{inside}}} {value}")
    return "".join(f"{line}\n" for lines in found.values() for line in lines)


def samples(one: MemberSnapshot) -> Iterator[tuple[str, str, dict[str, str], float]]:
    """Return every figure with its name, its type and its labels."""
    base = {"group": one.group, "member": one.me, "name": one.name}
    for key, value in sorted(one.counters.items()):
        family, _, reason = key.partition(".")
        if family.endswith("_ns"):
            yield f"gapless_{family[:-3]}_seconds_total", "counter", base, value / NS_PER_S
        else:
            yield (
                f"gapless_{_name(family)}_total",
                "counter",
                {**base, "kind": reason} if reason else base,
                value,
            )
    for key, value in sorted(one.gauges.items()):
        if key.startswith(LAG):
            yield "gapless_spool_lag", "gauge", {**base, "reader": key.removeprefix(LAG)}, value
        else:
            yield f"gapless_{_name(key)}", "gauge", base, value
    yield "gapless_view", "gauge", base, one.view
    main = one.sending[0]
    yield "gapless_unmoved_seconds", "gauge", base, _seconds(main.unmoved_ns)
    for holder in main.held_by:
        yield "gapless_held_by", "gauge", {**base, "peer": holder}, 1
    for peer in one.peers:
        labels = {**base, "peer": peer.member, "peer_name": peer.name}
        for key in ("delivered", "missing", "ahead", "unacked"):
            yield f"gapless_peer_{key}", "gauge", labels, getattr(peer, key)
        for key in ("gap", "acked_ago", "heard_ago", "round_trip"):
            yield (
                f"gapless_peer_{key}_seconds",
                "gauge",
                labels,
                _seconds(getattr(peer, f"{key}_ns")),
            )


def _seconds(duration_ns: int | None) -> float:
    return 0.0 if duration_ns is None else duration_ns / NS_PER_S


def _name(key: str) -> str:
    return _NOT_A_NAME.sub("_", key)


def help_of(name: str) -> str:
    """Return what a figure means."""
    return _HELP.get(
        name.removeprefix("gapless_"), f"See docs/metrics.md, {name.removeprefix('gapless_')}."
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
