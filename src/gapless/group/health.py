"""How things stand: health in a word, counters by name, and who holds what up.

Everything here looks at the machine and is run by the protocol thread, between two inputs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.units import NS_PER_MS, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gapless.identity import Address, View
    from gapless.protocol.member import Member
    from gapless.protocol.stream.outbound import OutboundStream
    from gapless.wire.frames import Range

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class WindowBlocker:
    """A member that has not acknowledged what comes next, so that the window cannot move.

    One that is ``away`` is a durable member whose place is kept.
    """

    member: Address
    name: str
    acked: int
    away: bool = False

    def __str__(self) -> str:
        who = f"{self.name} ({self.member})" if self.name else str(self.member)
        return f"{who}{', away,' if self.away else ''} has acknowledged up to {self.acked}"


@dataclass(frozen=True, slots=True)
class OutboundStatus:
    """An own stream, to all (``to`` is None) or to one member: what is outstanding, and who holds it up.

    ``since_ns`` is for how long the window has not moved; None if nothing is outstanding.
    """

    to: Address | None
    low: int
    high: int
    room: int
    waiting: int
    stalled_ns: int | None
    blockers: tuple[WindowBlocker, ...]

    def __str__(self) -> str:
        where = "to all" if self.to is None else f"to {self.to}"
        if self.stalled_ns is None:
            return f"{where}: everything up to {self.high} is acknowledged"
        head = (
            f"{where}: {self.low + 1}..{self.high} not acknowledged by all, unmoved for {_rounded(self.stalled_ns)};"
            f" room for {self.room} more, {self.waiting} sends wait"
        )
        return "\n".join([head, *(f"  held by {holder}" for holder in self.blockers)])


@dataclass(frozen=True, slots=True)
class MissingMessages:
    """The stream of another member: what of it is known to exist and has not come.

    Without a ``start`` its sender has not said yet where it begins.
    """

    origin: Address
    name: str
    ranges: tuple[Range, ...]
    start: int | None

    def __str__(self) -> str:
        who = f"{self.name} ({self.origin})" if self.name else str(self.origin)
        if self.start is None:
            return f"from {who}: not known yet where its messages begin"
        shown = [
            f"{first}..{last}" if last > first else str(first)
            for first, last in self.ranges[:_SHOWN]
        ]
        more = f" and {len(self.ranges) - _SHOWN} ranges more" if len(self.ranges) > _SHOWN else ""
        return f"from {who}: missing {', '.join(shown)}{more}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Who holds what up: ``print(await group.explain())``."""

    group: str
    me: Address
    phase: str
    view: View | None
    sending: tuple[OutboundStatus, ...]
    missing: tuple[MissingMessages, ...]
    unread: int
    unread_limit: int

    @property
    def blockers(self) -> tuple[WindowBlocker, ...]:
        """Those that hold the window of messages to all."""
        return self.sending[0].blockers

    @property
    def application_blocks(self) -> bool:
        """Whether others wait because the application of this member does not read."""
        return self.unread >= self.unread_limit

    def __str__(self) -> str:
        members = 0 if self.view is None else len(self.view.members)
        number = 0 if self.view is None else self.view.id.number
        lines = [f"{self.group}: {self.me} is {self.phase}, view {number} with {members} members"]
        lines += [line for sending in self.sending for line in str(sending).splitlines()]
        lines += map(str, self.missing)
        limit = f"of {self.unread_limit}"
        held = (
            "; the application does not read, and others wait for it"
            if self.application_blocks
            else ""
        )
        lines.append(f"to be read: {self.unread} {limit} messages{held}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether things go as they should, and what is not as it should be: ``group.health().ok``."""

    state: str
    members: int
    incarnations: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether this member is in the group and nothing holds it up."""
        return self.state == "member" and not self.problems

    def __str__(self) -> str:
        return "; ".join([f"{self.state}, {self.members} members", *self.problems])


def explain(
    member: Member, group: str, names: Mapping[Address, str], unread: int, most_unread: int
) -> Explanation:
    """Look at a machine."""
    now_ns = time.monotonic_ns()
    streams = [
        member.outbound,
        *(outgoing.stream for outgoing in member.connections.outgoing.values()),
    ]
    sending = [_sending(stream, names, member, now_ns) for stream in streams]
    return Explanation(
        group,
        member.me,
        member.phase,
        member.view,
        (sending[0], *(stream for stream in sending[1:] if stream.stalled_ns is not None)),
        tuple(_missing(member, names)),
        unread,
        most_unread,
    )


def _sending(
    stream: OutboundStream, names: Mapping[Address, str], member: Member, now_ns: int
) -> OutboundStatus:
    window, acks = stream.window, stream.acks
    settled = stream._acked_by_members
    since_ns = None if stream._blocked_since_ns is None else now_ns - stream._blocked_since_ns
    holders: list[WindowBlocker] = []
    if since_ns is not None:
        behind: Iterable[Address] = acks.lagging(settled + 1)
        if stream.profile.release != "acks" and member.stability is not None:
            behind = member.stability.lagging(member.me, window.low + 1)
        acked = dict(acks.items())
        holders = [
            WindowBlocker(one, names.get(one, ""), acked.get(one, window.low)) for one in behind
        ]
    for name, hold in stream.retention.retained.items():
        if hold.acked == window.low < window.high:
            holders.append(WindowBlocker(hold.last_address, name, hold.acked, away=True))
    return OutboundStatus(
        stream.to,
        window.low,
        window.high,
        window.room(),
        len(stream.queue),
        since_ns,
        tuple(holders),
    )


def _missing(member: Member, names: Mapping[Address, str]) -> Iterable[MissingMessages]:
    for stream in member.inbounds():
        window, name = stream.window, names.get(stream.origin, "")
        if window is None:
            yield MissingMessages(stream.origin, name, (), None)
        elif ranges := window.missing(max(window.high, stream.announced_high)):
            yield MissingMessages(stream.origin, name, tuple(ranges), stream.start)


def health(
    explanation: Explanation, lives: int, slow_receiver_after_ns: int, error: Exception | None
) -> Health:
    """Judge what :func:`explain` has found."""
    problems = [] if error is None else [str(error)]
    for sending in explanation.sending:
        if sending.stalled_ns is not None and sending.stalled_ns >= slow_receiver_after_ns:
            problems += str(sending).splitlines()
    if explanation.application_blocks:
        problems.append("the application does not read, and others wait for it")
    members = 0 if explanation.view is None else len(explanation.view.members)
    return Health(explanation.phase, members, lives, tuple(problems))


def _rounded(duration_ns: int) -> str:
    return format_duration(duration_ns // NS_PER_MS * NS_PER_MS)
