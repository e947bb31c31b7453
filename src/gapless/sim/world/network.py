"""The simulated network: links, their faults, and the counters of every copy.

On a transmit: the datagram crosses a link to each target. Each crossing has a stable name. The
faults decide the fate of the crossing, and the network records every fate other than the default.

On an arrival: the link counts the copy as arrived.

S18 checks the counters: on every link, sent plus added copies equal arrived (intact or changed)
copies plus dropped copies plus copies in flight. The marks of the faults count added copies; a
comparison of bytes counts arrived copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.errors import RemoteProtocolError
from gapless.faults.faults import (
    CORRUPT,
    DUPLICATE,
    FORGED,
    INTACT,
    Copy,
    Crossing,
    FaultChain,
    Partition,
)
from gapless.faults.frame_names import NOISE
from gapless.sim.link_counters import LinkCounters
from gapless.sim.script import Fate
from gapless.wire import decode

if TYPE_CHECKING:
    from gapless.faults.frame_names import FrameName, Label
    from gapless.wire import Datagram

_make = tuple.__new__


CopyInFlight = tuple[bytes, bytes, LinkCounters, str]
"""A copy in flight: bytes that will arrive, bytes sent, the counters of the link, a mark."""


class SimulatedNetwork:
    """All links, and the chain of faults before the links."""

    def __init__(
        self, chain: FaultChain, delay_ns: int, *, record: bool = False, fifo: bool = False
    ) -> None:
        self.chain = chain
        self.delay_ns = delay_ns
        self.record = record
        self.fates: dict[FrameName, Fate] = {}
        self.link_counters: dict[tuple[str, str], LinkCounters] = {}
        self.transmits = 0
        self.data_lost = 0
        self.data_bursts = 0
        self._nth: dict[tuple[object, ...], int] = {}
        self._losing_links: set[tuple[str, str]] = set()
        self._last_ns: dict[tuple[str, str], int] | None = {} if fifo else None
        self.partitions: list[Partition] = []

    def send_with_faults(
        self, source: str, target: str, datagram: bytes, label: Label | None, now_ns: int
    ) -> tuple[list[tuple[int, CopyInFlight]], str, Crossing]:
        """Send a datagram over a link; return copies with delays, and the reason of their fate.

        Without a label the crossing has no name, and lost data is not counted.
        """
        link = source, target
        counters = self.link_counters.get(link) or self._open_link(link)
        counters.sent += 1
        nth = 0 if label is None else self._next_occurrence((*label, source, target))
        crossing = _make(Crossing, (source, target, datagram, label or NOISE, nth, self.transmits))
        if self.partitions and any(cut.cuts(source, target) for cut in self.partitions):
            return self._drop_partitioned(link, counters, label, crossing)
        copies, reason = self.chain.cross(crossing, self.delay_ns, now_ns)
        if self._last_ns is not None and copies:
            copies, reason = self._in_order(link, copies, reason, now_ns)
        if not reason:
            counters.in_flight += 1
            if label is not None and label.kind in _DATA_KINDS:
                self._losing_links.discard(link)
            return [(self.delay_ns, (datagram, datagram, counters, INTACT))], "", crossing
        counters.in_flight += len(copies)
        if self.record:
            self.fates[crossing.name] = Fate.of(copies, reason)
        originals = self._count_copies(counters, [copy.mark for copy in copies])
        if label is not None:
            self._note_loss(link, label, lost=not originals)
        return (
            [(delay_ns, (copy, datagram, counters, mark)) for delay_ns, copy, mark in copies],
            reason,
            crossing,
        )

    def _drop_partitioned(
        self, link: tuple[str, str], counters: LinkCounters, label: Label | None, crossing: Crossing
    ) -> tuple[list[tuple[int, CopyInFlight]], str, Crossing]:
        """Drop a frame at a scripted partition; the script names the partition, not the frame."""
        counters.dropped += 1
        struck = self.chain.strike_counts
        struck[Partition.name] = struck.get(Partition.name, 0) + 1
        if label is not None:
            self._note_loss(link, label, lost=True)
        return [], Partition.name, crossing

    def _in_order(
        self, link: tuple[str, str], copies: list[Copy], reason: str, now_ns: int
    ) -> tuple[list[Copy], str]:
        """Delay copies that would overtake earlier copies on the same link."""
        assert self._last_ns is not None
        held: list[Copy] = []
        for copy in copies:
            at_ns = max(now_ns + copy.delay_ns, self._last_ns.get(link, 0))
            self._last_ns[link] = at_ns
            held.append(copy._replace(delay_ns=at_ns - now_ns))
        late = held[0].delay_ns != self.delay_ns
        return held, reason or ("order" if late else "")

    def backlog_ns(self, now_ns: int) -> int:
        """Return how long copies in flight may still take, where links are FIFO."""
        return max(0, max((self._last_ns or {}).values(), default=0) - now_ns)

    def _next_occurrence(self, key: tuple[object, ...]) -> int:
        nth = self._nth[key] = self._nth.get(key, 0) + 1
        return nth

    def is_fault_free(self, now_ns: int) -> bool:
        """Return whether no fault can strike now."""
        if self._last_ns is not None or self.partitions:
            return False
        return not self.chain.faults or now_ns >= self.chain.until_ns

    def send_without_faults(self, source: str, target: str, datagram: bytes) -> CopyInFlight:
        """Send a datagram over a link in the calm, where frames need no names."""
        link = source, target
        counters = self.link_counters.get(link) or self._open_link(link)
        counters.sent += 1
        counters.in_flight += 1
        return datagram, datagram, counters, INTACT

    def _open_link(self, link: tuple[str, str]) -> LinkCounters:
        counters = self.link_counters[link] = LinkCounters()
        return counters

    def _count_copies(self, counters: LinkCounters, marks: list[str]) -> int:
        if marks == _AS_SENT:
            return 1
        originals = marks.count(INTACT) + marks.count(CORRUPT)
        extras = marks.count(DUPLICATE) + marks.count(FORGED)
        counters.added += extras
        counters.dropped += 1 - originals
        # Two originals of one copy, or a copy without a known mark, mean a wrong fault.
        counters.mislabelled += (originals > 1) + (originals + extras != len(marks))
        return originals

    def _note_loss(self, link: tuple[str, str], label: Label, *, lost: bool) -> None:
        """Count lost data frames, and the bursts of losses on a link (L4)."""
        if label.kind not in _DATA_KINDS:
            return
        if not lost:
            self._losing_links.discard(link)
            return
        self.data_lost += 1
        if link not in self._losing_links:
            self._losing_links.add(link)
            self.data_bursts += 1

    def arrive(self, copy: CopyInFlight) -> None:
        """Count a copy as arrived, intact or changed, by comparing bytes."""
        datagram, sent, counters, mark = copy
        counters.in_flight -= 1
        if datagram is sent or datagram == sent:
            counters.intact += 1
            counters.mislabelled += mark in _OTHER_BYTES
        else:
            counters.changed += 1
            counters.mislabelled += mark not in _OTHER_BYTES

    def drop(self, copy: CopyInFlight) -> None:
        """Count a copy as dropped: at its node there was no room or no process."""
        counters = copy[2]
        counters.in_flight -= 1
        counters.dropped += 1


_AS_SENT = [INTACT]
_DATA_KINDS = ("DATA", "REPAIR")
_OTHER_BYTES = (CORRUPT, FORGED)


def decode_or_none(datagram: bytes) -> Datagram | None:
    """Decode a copy; return None if the bytes are not a datagram."""
    try:
        return decode(datagram)
    except RemoteProtocolError:
        return None
