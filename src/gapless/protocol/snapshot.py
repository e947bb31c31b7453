"""A snapshot of a member: who blocks a window, missing messages, counters and gauges.

``take_snapshot`` reads a machine between two inputs and changes no state. Metrics, ``gapless top``,
the command line and ``Group.snapshot`` all show the same snapshot. A window is blocked by every
member without an ack of the lowest message, and by every absent durable member with a claim on the
lowest message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gapless.identity import Address, View, member_label
from gapless.units import NS_PER_MS, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gapless.protocol.member import Member
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.protocol.stream.outbound import OutboundStream
    from gapless.wire.frames import Range

MAX_RANGES = 5
"""Maximum number of missing ranges that a snapshot lists for one stream."""
CLOSED, FAILED = "closed", "failed"
"""Phases of a member that has ended."""


@dataclass(frozen=True, slots=True)
class WindowBlocker:
    """A member that must acknowledge before a window moves.

    ``name`` is the display name, as far as known here. ``absent`` is true for an absent durable
    member with retained messages.
    """

    member: Address
    name: str
    acked: int
    absent: bool = False

    def __str__(self) -> str:
        label = member_label(self.member, self.name)
        return f"{label}{', absent' if self.absent else ''}: acknowledged up to {self.acked}"


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """A stream of this member, to the group (``to`` is None) or to one member.

    The window holds ``low + 1 .. high``, takes ``room`` more messages and at most ``max_bytes``.
    ``waiting`` sends wait for room. ``stalled_ns`` is how long the window has not moved; None if
    members have acknowledged all messages.
    """

    to: Address | None
    low: int
    high: int
    room: int
    stored_bytes: int
    max_bytes: int
    waiting: int
    stalled_ns: int | None
    blockers: tuple[WindowBlocker, ...]

    def __str__(self) -> str:
        head = "to all" if self.to is None else f"to {self.to.short}"
        if self.low == self.high and not self.waiting:
            return f"{head}: everything up to {self.high} is acknowledged"
        still = "" if self.stalled_ns is None else f", stalled for {_rounded(self.stalled_ns)}"
        sends = f"{self.waiting} send{' waits' if self.waiting == 1 else 's wait'}"
        unacked = f"{self.low + 1}..{self.high} not acknowledged by all{still}"
        first = f"{head}: {unacked}; room for {self.room} more, {sends}"
        return "\n".join([first, *(f"  waiting for {blocker}" for blocker in self.blockers)])


@dataclass(frozen=True, slots=True)
class PeerSnapshot:
    """Another member: the stream received here, and the acks of the own stream to the group.

    ``ahead`` received messages wait for ``missing`` messages; ``gap_ns`` is the age of the oldest
    gap. ``ranges`` lists the first missing seqnos. ``started`` is false until the first seqno of
    the stream is known.
    """

    member: Address
    name: str
    delivered: int
    high: int
    started: bool
    ahead: int
    missing: int
    ranges: tuple[tuple[int, int], ...]
    gap_ns: int | None
    stored_bytes: int
    round_trip_ns: int
    acked: int
    unacked: int
    acked_ago_ns: int | None
    heard_ago_ns: int | None

    def __str__(self) -> str:
        label = member_label(self.member, self.name)
        if not self.started:
            return f"from {label}: the first message is not known yet"
        if not self.missing:
            return f"from {label}: nothing is missing up to {self.high}"
        shown = ", ".join(
            f"{first}..{last}" if last > first else str(first) for first, last in self.ranges
        )
        listed = sum(last - first + 1 for first, last in self.ranges)
        more = f" and {self.missing - listed} more" if self.missing > listed else ""
        return f"from {label}: missing {shown}{more}"


@dataclass(frozen=True, slots=True)
class KeysSnapshot:
    """The keys of a member of a sealed group, by id; a snapshot never contains a secret.

    ``ring`` is the public label of the ring, ``seals`` the key that seals, and ``opens`` the keys
    that open, the sealing key included.
    """

    ring: str
    seals: str
    opens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a member works, and the list of problems: ``snapshot.health.ok``.

    ``state`` is the phase of the member: ``joining``, ``member``, ``leaving``, ``closed`` …
    """

    state: str
    members: int
    incarnations: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether this member is in the group and unblocked."""
        return self.state == "member" and not self.problems

    def __str__(self) -> str:
        return "; ".join([f"{self.state}, {_members(self.members)}", *self.problems])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """A member at one moment; ``str(snapshot)`` explains the figures in sentences.

    ``streams`` are the sending streams of the member, the stream to the group first; ``peers`` are
    the other members of the view. ``stall_after_ns`` is None where members resend missing messages.
    ``absent`` are the names of durable members that may return. ``keys`` is None in a group without
    keys, and for members of earlier versions, which do not tell.
    ``counters`` only rise, ``gauges`` rise and fall;
    docs/reference/metrics.md lists both.
    """

    me: Address
    phase: str
    view: View | None = None
    group: str = ""
    display_name: str = ""
    durable_name: str = ""
    streams: tuple[StreamSnapshot, ...] = ()
    peers: tuple[PeerSnapshot, ...] = ()
    absent: tuple[str, ...] = ()
    keys: KeysSnapshot | None = None
    unread: int = 0
    unread_limit: int = 0
    incarnations: int = 1
    slow_receiver_after_ns: int = 0
    stall_after_ns: int | None = None
    error: str = ""
    discovery_problems: tuple[str, ...] = ()
    gauges: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def blockers(self) -> tuple[WindowBlocker, ...]:
        """The members that block the window of messages to the group."""
        return self.streams[0].blockers if self.streams else ()

    @property
    def application_blocks(self) -> bool:
        """Whether senders wait because the application of this member does not read."""
        return 0 < self.unread_limit <= self.unread

    @property
    def health(self) -> Health:
        """The health of this member."""
        problems = [*([self.error] if self.error else ()), *self.discovery_problems]
        for stream in self.streams:
            limit_ns = self.slow_receiver_after_ns
            slow = stream.stalled_ns is not None and stream.stalled_ns >= limit_ns
            # An absent durable member stalls no acks; it is a problem once sends wait for it.
            if slow or (stream.waiting and any(one.absent for one in stream.blockers)):
                problems += str(stream).splitlines()
        problems += [
            f"{peer}; retransmission is off, and no member will resend it"
            for peer in self.peers
            if self.stall_after_ns is not None and (peer.gap_ns or 0) >= self.stall_after_ns
        ]
        if self.application_blocks:
            problems.append("the application does not read, and senders wait for it")
        members = 0 if self.view is None else len(self.view)
        return Health(self.phase, members, self.incarnations, tuple(problems))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: addresses as text, tuples as lists."""
        found: dict[str, Any] = _plain(self)
        return {**found, "health": _plain(self.health), "blockers": _plain(self.blockers)}

    def __str__(self) -> str:
        label = member_label(self.me, self.display_name)
        where = (
            "without a view"
            if self.view is None
            else f"in view {self.view.id.number} with {_members(len(self.view))}"
        )
        lines = [f"{self.group}: {label} is {self.phase}, {where}"]
        shown = [
            stream
            for at, stream in enumerate(self.streams)
            if at == 0 or stream.low < stream.high or stream.waiting
        ]
        lines += [line for stream in shown for line in str(stream).splitlines()]
        lines += [str(peer) for peer in self.peers if peer.missing or not peer.started]
        blocked = "; the application does not read, and senders wait for it"
        lines.append(
            f"unread: {self.unread} of {self.unread_limit} messages"
            f"{blocked if self.application_blocks else ''}"
        )
        lines += self.discovery_problems
        return "\n".join([*lines, *([f"ended by: {self.error}"] if self.error else [])])


def take_snapshot(
    member: Member, now_ns: int, names: Mapping[Address, str] | None = None
) -> MemberSnapshot:
    """Return a snapshot of ``member``; ``names`` are display names beside the durable names."""
    view, roster = member.view, member.roster
    durable = {} if roster is None else {one.address: one.name for one in roster.entries}
    called = {**durable, **(names or {})}
    others = () if view is None else tuple(one for one in view if one != member.me)
    streams = [member.outbound, *member.endpoint.connections.outbounds()]
    return MemberSnapshot(
        me=member.me,
        phase=member.phase,
        view=view,
        durable_name=durable.get(member.me, ""),
        streams=tuple(_stream(stream, member, called, now_ns) for stream in streams),
        peers=tuple(_peer(one, called.get(one, ""), member, now_ns) for one in others),
        absent=() if roster is None else tuple(one.name for one in roster.absent),
        slow_receiver_after_ns=member.config.slow_receiver_after_ns,
        stall_after_ns=None if member.config.retransmits else member.config.stall_after_ns,
        gauges=_gauges(member),
        counters=dict(member.counters),
    )


def _stream(
    stream: OutboundStream, member: Member, names: Mapping[Address, str], now_ns: int
) -> StreamSnapshot:
    """Return the snapshot of a sending stream."""
    window, since_ns = stream.window, stream.blocked_since_ns
    assert window.low <= window.high, "a window ends behind its start"
    return StreamSnapshot(
        to=stream.to,
        low=window.low,
        high=window.high,
        room=window.room(),
        stored_bytes=window.stored_bytes,
        max_bytes=window.max_bytes or 0,
        waiting=len(stream.queue),
        stalled_ns=None if since_ns is None else now_ns - since_ns,
        blockers=tuple(_blockers(stream, member, names)),
    )


def _blockers(
    stream: OutboundStream, member: Member, names: Mapping[Address, str]
) -> Iterator[WindowBlocker]:
    """Yield the members that block the window of ``stream``, absent durable members last."""
    window = stream.window
    # Acks that are merely on their way do not make a member a blocker.
    if stream.blocked_since_ns is not None:
        acked = dict(stream.acks.items())
        for one in stream.lagging_members(member.endpoint.stability):
            yield WindowBlocker(one, names.get(one, ""), acked.get(one, window.low))
    for name, position in stream.retention.retained.items():
        if position.acked == window.low < window.high:
            yield WindowBlocker(position.last_address, name, position.acked, absent=True)


def _peer(other: Address, name: str, member: Member, now_ns: int) -> PeerSnapshot:
    """Return the snapshot of another member."""
    assert other != member.me, "a member is not its own peer"
    outbound, stream = member.outbound, member.endpoint.inbound.get(other)
    window = None if stream is None else stream.window
    gap_ns = None if stream is None else stream.loss_detector.oldest_ns
    acked = outbound.acks[other] if other in outbound.acks else 0  # noqa: SIM401 - not a mapping
    acked_ns = outbound.acked_ns.get(other)
    heard_ns = member.failure_detector.last_heard_ns(other)
    missing = [] if stream is None else _missing(stream)
    return PeerSnapshot(
        member=other,
        name=name,
        delivered=0 if window is None else window.delivered,
        high=0 if window is None else window.high,
        started=window is not None,
        ahead=0 if stream is None or window is None else stream.undelivered_count(window),
        missing=sum(last - first + 1 for first, last in missing),
        ranges=tuple(missing[:MAX_RANGES]),
        gap_ns=None if gap_ns is None else max(0, now_ns - gap_ns),
        stored_bytes=0 if window is None else window.stored_bytes,
        round_trip_ns=0 if stream is None else stream.loss_detector.rtt.smoothed_ns,
        acked=acked,
        unacked=max(0, outbound.window.high - acked),
        acked_ago_ns=None if acked_ns is None else now_ns - acked_ns,
        heard_ago_ns=None if heard_ns is None else now_ns - heard_ns,
    )


def _missing(stream: InboundStream) -> list[Range]:
    """Return the missing ranges of a received stream, up to the highest announced seqno."""
    window = stream.window
    if window is None:
        return []
    return list(window.missing(max(window.high, stream.announced_high)))


def _gauges(member: Member) -> dict[str, int]:
    """Return sums over all streams, and the size of every buffer."""
    outbounds = [member.outbound, *member.endpoint.connections.outbounds()]
    inbounds = [*member.endpoint.inbound.values(), *member.endpoint.connections.inbounds()]
    windows = [(stream, stream.window) for stream in inbounds if stream.window is not None]
    connections, oob = member.endpoint.connections, member.endpoint.out_of_band
    missing = sum(last - first + 1 for stream, _ in windows for first, last in _missing(stream))
    return {
        "capacity": member.config.capacity,
        "members": 0 if member.view is None else len(member.view),
        "sent": sum(stream.window.high for stream in outbounds),
        "unacked": sum(stream.window.high - stream.window.low for stream in outbounds),
        "waiting": sum(len(stream.queue) for stream in outbounds),
        "delivered": sum(window.delivered - stream.start for stream, window in windows),
        "undelivered": sum(stream.undelivered_count(window) for stream, window in windows),
        "missing": missing,
        "stored_bytes": sum(window.stored_bytes for _, window in windows)
        + sum(stream.window.stored_bytes for stream in outbounds),
        "connections.out": len(connections.outgoing),
        "connections.in": len(connections.incoming),
        "connections.ended": connections.ended_count,
        "connections.unknown": connections.unconfirmed_count,
        "future_view_runs": len(member.endpoint.future_view_buffer),
        "oob_unacked": oob.unacked_count,
        "oob_waiting": oob.waiting_count,
        "absent_members": len(member.outbound.retention),
    }


def _plain(value: Any) -> Any:
    """Return a value in its JSON form."""
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, View):
        number, creator = value.id
        return {
            "number": number,
            "coordinator": str(creator),
            "members": [str(one) for one in value],
        }
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return dict(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def _members(count: int) -> str:
    return "1 member" if count == 1 else f"{count} members"


def _rounded(duration_ns: int) -> str:
    """Return a duration in whole milliseconds."""
    return format_duration(duration_ns // NS_PER_MS * NS_PER_MS)
