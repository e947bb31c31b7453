"""Faults: small seeded objects between a member and the network.

A fault gets one *crossing* (a datagram on its way over one link) and the copies made by earlier
faults, and returns the copies that continue: fewer (lost), more (duplicated), later (delayed), or
with other bytes (corrupted). A fault that does not strike returns the same list. A fault knows only
the given time, so the same objects work in front of a real socket.

Every fault draws from its own ``random.Random`` (see ``gapless.rng``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from gapless.errors import RemoteProtocolError
from gapless.faults.frame_names import FrameName
from gapless.identity import Address
from gapless.rng import exponential_ns
from gapless.wire import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from gapless.faults.frame_names import Label

_make = tuple.__new__

NEVER_NS = 1 << 62
"""A time after the end of any run."""

INTACT = ""
"""Mark of a copy with unchanged bytes."""
DUPLICATE = "duplicate"
"""Mark of an additional copy."""
CORRUPT = "corrupt"
"""Mark of a copy with bytes changed in transit."""
FORGED = "forged"
"""Mark of an additional copy with bytes sent by no member."""


class Copy(NamedTuple):
    """A datagram passed on by a fault: delay, bytes, and mark."""

    delay_ns: int
    datagram: bytes
    mark: str = INTACT


class Crossing(NamedTuple):
    """A datagram on its way over one link.

    ``nth`` counts equal labels on the same link; ``transmit`` numbers the call of the socket.
    """

    source: str
    target: str
    datagram: bytes
    label: Label
    nth: int
    transmit: int

    @property
    def name(self) -> FrameName:
        """The stable name of the frame on this link."""
        return FrameName(*self.label, self.source, self.target, self.nth)


class Fault(Protocol):
    """A fault that may strike a crossing.

    A fault that never uses the label and the number of a crossing has ``blind = True``; then
    neither has to be computed. A fault that loses and damages no datagram has ``lossless = True``.
    """

    name: str

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Return the copies that continue; the same list if the fault does not strike."""
        ...


class FaultChain:
    """Faults in a row, active until ``until_ns``; ``strike_counts`` counts the strikes of each.

    ``names_matter`` is false if every fault is blind, ``may_lose`` if every fault is lossless.
    """

    def __init__(self, faults: Iterable[Fault], until_ns: int = NEVER_NS) -> None:
        self.faults = tuple(faults)
        self.until_ns = until_ns
        self.strike_counts: dict[str, int] = {fault.name: 0 for fault in self.faults}
        self.names_matter = not all(getattr(fault, "blind", False) for fault in self.faults)
        self.may_lose = not all(getattr(fault, "lossless", False) for fault in self.faults)

    def cross(self, crossing: Crossing, base_delay_ns: int, now_ns: int) -> tuple[list[Copy], str]:
        """Return the copies of a crossing, and the names of the faults that struck, joined."""
        copies = [_make(Copy, (base_delay_ns, crossing.datagram, INTACT))]
        if now_ns >= self.until_ns:
            return copies, ""
        reason = ""
        for fault in self.faults:
            changed = fault.cross(crossing, copies, now_ns)
            if changed is copies:
                continue
            self.strike_counts[fault.name] += 1
            reason = f"{reason}+{fault.name}" if reason else fault.name
            copies = changed
            if not copies:
                break
        return copies, reason


class Refuse:
    """The socket refuses the datagram (would block, no buffers, too long): no member gets it."""

    name = "refuse"
    blind = True

    def __init__(self, rng: Random, rate: float) -> None:
        self.rng = rng
        self.rate = rate
        self._transmit = -1
        self._refused = False

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Drop every crossing of a refused call."""
        if crossing.transmit != self._transmit:
            self._transmit = crossing.transmit
            self._refused = self.rng.random() < self.rate
        return [] if self._refused else copies


class Loss:
    """Each crossing is lost with the probability of its link and direction."""

    name = "loss"
    blind = True

    def __init__(self, rng: Random, rates: Sequence[float]) -> None:
        self.rng = rng
        self.rates = rates
        self._of_link: dict[tuple[str, str], float] = {}

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Drop the crossing with the probability of the link."""
        link = crossing.source, crossing.target
        rate = self._of_link.get(link)
        if rate is None:
            rate = self._of_link[link] = self.rng.choice(self.rates)
        return [] if rate and self.rng.random() < rate else copies


class BurstLoss:
    """Losses in bursts: a link is good or bad, and loses every crossing while bad."""

    name = "burst"
    blind = True

    def __init__(self, rng: Random, mean_burst_frames: int, mean_gap_frames: int) -> None:
        self.rng = rng
        self.leave_bad = 1 / mean_burst_frames
        self.leave_good = 1 / mean_gap_frames
        self._bad: set[tuple[str, str]] = set()

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Move the state of the link one step, then drop if the link is bad."""
        link = crossing.source, crossing.target
        if link in self._bad:
            if self.rng.random() < self.leave_bad:
                self._bad.discard(link)
        elif self.rng.random() < self.leave_good:
            self._bad.add(link)
        return [] if link in self._bad else copies


class Duplicate:
    """Some crossings arrive twice, the second time up to ``max_delay_ns`` later."""

    name = "duplicate"
    lossless = True
    blind = True

    def __init__(self, rng: Random, rate: float, max_delay_ns: int) -> None:
        self.rng = rng
        self.rate = rate
        self.max_delay_ns = max_delay_ns

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Add a late copy of the first copy."""
        if self.rng.random() >= self.rate:
            return copies
        late_ns = self.rng.randrange(self.max_delay_ns + 1)
        first = copies[0]
        mark = DUPLICATE if first.mark == INTACT else FORGED
        return [*copies, Copy(first.delay_ns + late_ns, first.datagram, mark)]


class Delay:
    """Every copy is late by ``min_ns`` plus an exponential part, so copies overtake each other."""

    name = "delay"
    lossless = True
    blind = True

    def __init__(self, rng: Random, min_ns: int, mean_ns: int) -> None:
        self.rng = rng
        self.min_ns = min_ns
        self.mean_ns = mean_ns

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Add a separate delay to each copy."""
        rng, min_ns, mean_ns = self.rng, self.min_ns, self.mean_ns
        return [
            _make(Copy, (delay_ns + min_ns + exponential_ns(rng, mean_ns), datagram, mark))
            for delay_ns, datagram, mark in copies
        ]


class LongHold:
    """Now and then a crossing is held for a long time, and arrives unexpectedly."""

    name = "hold"
    lossless = True
    blind = True

    def __init__(self, rng: Random, rate: float, hold_ns: int, most: int) -> None:
        self.rng = rng
        self.rate = rate
        self.hold_ns = hold_ns
        self.left = most

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Hold the crossing if any holds are left."""
        if not self.left or self.rng.random() >= self.rate:
            return copies
        self.left -= 1
        return [_later(copy, self.hold_ns) for copy in copies]


class Clog:
    """A link stops for a while: crossings wait until the link is free, then arrive all at once."""

    name = "clog"
    lossless = True
    blind = True

    def __init__(self, rng: Random, rate: float, mean_ns: int) -> None:
        self.rng = rng
        self.rate = rate
        self.mean_ns = mean_ns
        self._free_at_ns: dict[tuple[str, str], int] = {}

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Start a clog with probability ``rate``, or wait for the end of the current clog."""
        link = crossing.source, crossing.target
        free_at_ns = self._free_at_ns.get(link, 0)
        if now_ns >= free_at_ns:
            if self.rng.random() >= self.rate:
                return copies
            free_at_ns = self._free_at_ns[link] = now_ns + exponential_ns(self.rng, self.mean_ns)
        wait_ns = free_at_ns - now_ns
        return [_later(copy, wait_ns) for copy in copies] if wait_ns else copies


class SwizzleClog:
    """Random members are clogged one after the other, and freed in a random order."""

    name = "swizzle"
    lossless = True
    blind = True

    def __init__(self, rng: Random, members: Sequence[str], start_ns: int, step_ns: int) -> None:
        chosen = rng.sample(members, rng.randint(1, len(members)))
        freed = rng.sample(chosen, len(chosen))
        first_free_ns = start_ns + len(chosen) * step_ns
        self._clogged_ns = {
            name: (start_ns + at * step_ns, first_free_ns + freed.index(name) * step_ns)
            for at, name in enumerate(chosen)
        }

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Hold crossings from or to a clogged member until both ends are free."""
        wait_ns = max(
            self._wait_ns(crossing.source, now_ns), self._wait_ns(crossing.target, now_ns)
        )
        return [_later(copy, wait_ns) for copy in copies] if wait_ns else copies

    def _wait_ns(self, member: str, now_ns: int) -> int:
        start_ns, end_ns = self._clogged_ns.get(member.rstrip("'"), (0, 0))
        return end_ns - now_ns if start_ns <= now_ns < end_ns else 0


class Partition:
    """From ``start_ns`` to ``end_ns`` no crossing passes between two sides, or in one direction."""

    name = "partition"
    blind = True

    def __init__(
        self, side: Iterable[str], start_ns: int, end_ns: int, *, symmetric: bool = True
    ) -> None:
        self.side = frozenset(side)
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.symmetric = symmetric

    @classmethod
    def draw(cls, rng: Random, members: Sequence[str], start_ns: int, end_ns: int) -> Partition:
        """Draw the sides (halves, uniform, or one member alone) and the directions."""
        mode = rng.choice(("halves", "uniform", "isolate"))
        size = {
            "halves": len(members) // 2,
            "uniform": rng.randint(1, len(members) - 1),
            "isolate": 1,
        }[mode]
        return cls(rng.sample(members, size), start_ns, end_ns, symmetric=rng.random() < 0.7)

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:
        """Drop crossings that leave the side, or, if symmetric, enter the side."""
        if not self.start_ns <= now_ns < self.end_ns:
            return copies
        return [] if self.cuts(crossing.source, crossing.target) else copies

    def cuts(self, source: str, target: str) -> bool:
        """Return whether no crossing gets from ``source`` to ``target``."""
        inside, outside = source.rstrip("'") in self.side, target not in self.side
        return inside == outside if self.symmetric else inside and outside


class _Rated:
    """A fault that strikes each crossing with the same probability."""

    blind = True

    def __init__(self, rng: Random, rate: float) -> None:
        self.rng = rng
        self.rate = rate


class Corrupt(_Rated):
    """A few bits of the datagram are flipped."""

    name = "corrupt"

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Flip one to eight different bits of the first copy."""
        if self.rng.random() >= self.rate:
            return copies
        damaged = bytearray(crossing.datagram)
        for bit in self.rng.sample(range(8 * len(damaged)), self.rng.randint(1, 8)):
            damaged[bit // 8] ^= 1 << bit % 8
        return [Copy(copies[0].delay_ns, bytes(damaged), CORRUPT), *copies[1:]]


class Truncate(_Rated):
    """The datagram is cut short."""

    name = "truncate"

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Cut the first copy anywhere, even to zero bytes."""
        if self.rng.random() >= self.rate:
            return copies
        cut = crossing.datagram[: self.rng.randrange(len(crossing.datagram))]
        return [Copy(copies[0].delay_ns, cut, CORRUPT), *copies[1:]]


class Garbage(_Rated):
    """Random bytes arrive beside the datagram."""

    name = "garbage"
    lossless = True

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Add a copy of random length and bytes, in half of the cases with a plausible header."""
        if self.rng.random() >= self.rate:
            return copies
        noise = self.rng.randbytes(self.rng.randrange(200))
        if self.rng.random() < 0.5:
            noise = crossing.datagram[: self.rng.randrange(40)] + noise
        return [*copies, Copy(copies[0].delay_ns, noise, FORGED)]


class Foreign(_Rated):
    """A well-formed datagram of another group arrives beside the true datagram."""

    name = "foreign"
    lossless = True

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Add a copy with the same frames for another group."""
        if self.rng.random() >= self.rate:
            return copies
        forged = _forge(crossing.datagram, group_flip=1 + self.rng.getrandbits(63))
        return [*copies, Copy(copies[0].delay_ns, forged, FORGED)] if forged else copies


class Stranger(_Rated):
    """A well-formed datagram of a non-member, or of an old incarnation, arrives as well."""

    name = "stranger"
    lossless = True

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Add a copy in the name of another node, or of an incarnation before the first."""
        if self.rng.random() >= self.rate:
            return copies
        # Not the incarnation just before: a member that missed the last view may still count on it.
        forged = _forge(
            crossing.datagram,
            **({"node_flip": 1 << 40} if self.rng.random() < 0.5 else {"incarnation": 0}),
        )
        return [*copies, Copy(copies[0].delay_ns, forged, FORGED)] if forged else copies


class Targeted:
    """Drops exactly the crossings picked by a rule, each label on each link ``times`` times.

    The class methods are the rules (first frame, last frame, first repairs …).
    """

    def __init__(self, name: str, picks: Callable[[Crossing], bool], times: int | None = 1) -> None:
        self.name = f"target-{name}"
        self.picks = picks
        self.times = times
        self._seen: dict[tuple[Label, str], int] = {}

    @classmethod
    def first_frame(cls) -> Targeted:
        """Drop the first data frame of every stream, once on every link."""
        return cls(
            "first", lambda crossing: crossing.label.kind == "DATA" and crossing.label.first == 1
        )

    @classmethod
    def last_frame(cls, last: int) -> Targeted:
        """Drop each frame with seqno ``last``, the first time on every link."""
        return cls("last", lambda crossing: _carries(crossing.label, last, last))

    @classmethod
    def first_repairs(cls) -> Targeted:
        """Drop the first repair of every run."""
        return cls("repair", lambda crossing: crossing.label.kind == "REPAIR")

    @classmethod
    def acks_of(cls, member: str) -> Targeted:
        """Drop all acks of one member."""
        return cls(
            "acks",
            lambda crossing: crossing.label.kind == "ACK" and crossing.source == member,
            times=None,
        )

    @classmethod
    def tails(cls) -> Targeted:
        """Drop every tail announcement."""
        return cls("tails", lambda crossing: crossing.label.kind == "TAIL", times=None)

    @classmethod
    def wraps(cls, capacity: int) -> Targeted:
        """Drop, the first time, data whose seqnos include a multiple of the capacity."""
        return cls("wrap", lambda crossing: _wraps(crossing.label, capacity))

    def cross(self, crossing: Crossing, copies: list[Copy], now_ns: int) -> list[Copy]:  # noqa: ARG002
        """Drop the crossing if picked by the rule and dropped fewer than ``times`` times."""
        if not self.picks(crossing):
            return copies
        if self.times is not None:
            key = crossing.label, crossing.target
            seen = self._seen[key] = self._seen.get(key, 0) + 1
            if seen > self.times:
                return copies
        return []


class LateTimers:
    """Timers fire late: by a random time, or together at the next multiple of a coalescing step."""

    name = "late-timer"

    def __init__(self, rng: Random, rate: float, max_late_ns: int, coalesce_ns: int = 0) -> None:
        self.rng = rng
        self.rate = rate
        self.max_late_ns = max_late_ns
        self.coalesce_ns = coalesce_ns

    def late_ns(self, due_ns: int) -> int:
        """Return how late a timer due at ``due_ns`` fires."""
        late_ns = self.rng.randrange(self.max_late_ns + 1) if self.rng.random() < self.rate else 0
        if self.coalesce_ns:
            late_ns += -(due_ns + late_ns) % self.coalesce_ns
        return late_ns


class DriftingClock(NamedTuple):
    """A member's own clock, which starts at ``epoch_ns`` and drifts by ``drift_ppm``."""

    epoch_ns: int = 0
    drift_ppm: int = 0

    def local_ns(self, true_ns: int) -> int:
        """Return the time of this clock at a true time."""
        if not self.drift_ppm:
            return self.epoch_ns + true_ns
        return self.epoch_ns + true_ns + true_ns * self.drift_ppm // 1_000_000

    def true_ns(self, local_ns: int) -> int:
        """Return the first true time at which the clock shows at least ``local_ns``."""
        shown_ns = max(0, local_ns - self.epoch_ns)
        if not self.drift_ppm:
            return shown_ns
        true_ns = shown_ns * 1_000_000 // (1_000_000 + self.drift_ppm)
        while self.local_ns(true_ns) < local_ns:
            true_ns += 1
        return true_ns


def _later(copy: Copy, wait_ns: int) -> Copy:
    delay_ns, datagram, mark = copy
    return _make(Copy, (delay_ns + wait_ns, datagram, mark))


def _carries(label: Label, first: int, last: int) -> bool:
    return label.kind in {"DATA", "REPAIR"} and label.first <= last and first <= label.last


def _wraps(label: Label, capacity: int) -> bool:
    return label.kind == "DATA" and label.last // capacity > (label.first - 1) // capacity


def _forge(
    datagram: bytes, *, group_flip: int = 0, node_flip: int = 0, incarnation: int | None = None
) -> bytes:
    """Return the datagram with another group or sender and a valid checksum; b"" if invalid."""
    try:
        group, sender, frames, addressee, _, _ = decode(datagram)
    except RemoteProtocolError:
        return b""
    number = sender.incarnation if incarnation is None else incarnation
    return encode(group ^ group_flip, Address(sender.node ^ node_flip, number), frames, addressee)
