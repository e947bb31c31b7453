"""The window: the stored runs of a stream, and the three marks ``low <= delivered <= high``.

The same type serves sender and receiver, multicast and unicast, and differs only after a delivery:
a sender's window keeps a delivered run until purged (``keep_delivered=True``, low = acknowledged by
all), a receiver's window erases the run (low = delivered).

On adding a run: new messages in the acceptance range, from low+1 to the policy's ceiling, are
stored if their bytes fit. All others are refused and counted by reason: ``old`` (at or below low),
``duplicate`` (stored already), ``far`` (beyond the ceiling), ``full`` (from the first message on
whose bytes do not fit). A refused message does not move high.

On taking: runs are handed out from delivered+1 up to the first gap, and delivered moves.

On purging: low moves up to the mark, never past delivered unless forced, and never back.

The bytes of the next run in line, starting at delivered+1, are always taken: the run is handed out
at once, and refusing it would stop the stream for ever.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gapless.errors import LocalProtocolError
from gapless.identity import Address, Marks
from gapless.run import Run

if TYPE_CHECKING:
    from gapless.wire.frames import Range

_COMPACT_AT = 64
_SMALL_COUNT = 16
# What a named tuple's own constructor calls; the call in between costs as much as the rest of a
# plain add.
_make = tuple.__new__
_ERASED = Run(Address(0, 0), 0, b"", b"")
"""Replaces an erased run until the lists are cut, so that its bytes are freed at once."""


class WindowPolicy(Protocol):
    """How far ahead of its marks a window accepts messages."""

    def ceiling(self, low: int, delivered: int) -> int:
        """Return the highest accepted seqno."""
        ...


class FixedWindow(NamedTuple):
    """Exactly ``capacity`` messages: low+1 .. low+capacity."""

    capacity: int

    def ceiling(self, low: int, delivered: int) -> int:  # noqa: ARG002 - one interface for all policies
        """Return low + capacity."""
        return low + self.capacity


class GrowingWindow(NamedTuple):
    """Any number of messages, but no seqno further than ``max_seqno_ahead`` ahead of delivered."""

    max_seqno_ahead: int

    def ceiling(self, low: int, delivered: int) -> int:  # noqa: ARG002 - one interface for all policies
        """Return delivered + max_seqno_ahead."""
        return delivered + self.max_seqno_ahead


class AddResult(NamedTuple):
    """The number of accepted and refused messages of a run, by reason."""

    accepted: int
    duplicate: int = 0
    old: int = 0
    far: int = 0
    full: int = 0


WindowSnapshot = tuple[int, int, int, int | None, tuple[Run, ...]]
"""The state of a window as a hashable value."""


class Window:
    """Runs of a stream between ``low`` and the ceiling of the policy."""

    __slots__ = (
        "_firsts",
        "_head",
        "_runs",
        "ceiling",
        "delivered",
        "high",
        "keep_delivered",
        "low",
        "max_bytes",
        "policy",
        "stored",
        "stored_bytes",
    )

    def __init__(
        self,
        policy: WindowPolicy,
        *,
        offset: int = 0,
        keep_delivered: bool = False,
        max_bytes: int | None = None,
    ) -> None:
        self.policy = policy
        self.keep_delivered = keep_delivered
        self.max_bytes = max_bytes
        self.low = self.delivered = self.high = offset
        self.ceiling = policy.ceiling(offset, offset)
        """The highest seqno that is accepted now; it is computed anew when a mark moves."""
        self.stored = 0
        self.stored_bytes = 0
        self._runs: list[Run] = []
        self._firsts: list[int] = []
        self._head = 0

    @property
    def marks(self) -> Marks:
        """The three marks."""
        return Marks(self.low, self.delivered, self.high)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The stored runs in order of seqno."""
        return tuple(self._runs[self._head :])

    @property
    def has_next(self) -> bool:
        """Whether the message after delivered is stored."""
        at = self._index(self.delivered + 1)
        return at < len(self._runs) and self._runs[at].first <= self.delivered + 1

    @property
    def deliverable(self) -> int:
        """The end of the consecutive stretch after delivered (I-02)."""
        end = self.delivered
        at = self._index(end + 1)
        while at < len(self._runs) and self._runs[at].first <= end + 1:
            end = max(end, self._runs[at].last)
            at += 1
        return end

    def room(self) -> int:
        """Return how many more messages could be numbered after high."""
        return max(0, self.ceiling - self.high)

    def room_bytes(self) -> int | None:
        """Return how many more bytes fit, or None; an empty window takes any message."""
        return None if self.max_bytes is None else max(0, self.max_bytes - self.stored_bytes)

    def add(self, run: Run) -> AddResult:
        """Store the new messages of ``run``; return how many were stored and refused."""
        first, last = run.first, run.last
        if first > self.high and last <= self.ceiling:
            stored_bytes = self.stored_bytes + run.size_bytes
            if (
                self.max_bytes is None
                or stored_bytes <= self.max_bytes
                # The next message is delivered at once; refusing it would stop the stream for ever.
                or first == self.delivered + 1
            ):
                self._runs.append(run)
                self._firsts.append(first)
                self.stored += run.count
                self.stored_bytes = stored_bytes
                self.high = last
                return _make(AddResult, (run.count, 0, 0, 0, 0))
        return self._add_between(run, self.ceiling)

    def _fitting(self, run: Run) -> int:
        """Return how many messages from the front of ``run`` the byte limit lets in."""
        if self.max_bytes is None or run.first == self.delivered + 1:
            return run.count
        return run.count_fitting(self.max_bytes - self.stored_bytes)

    def _add_between(self, run: Run, ceiling: int) -> AddResult:
        first, last = max(run.first, self.low + 1), min(run.last, ceiling)
        old = min(run.count, max(0, self.low + 1 - run.first))
        far = min(run.count, max(0, run.last - ceiling))
        if first > last:
            return AddResult(0, 0, old, far)  # all of it was delivered, or is too far ahead
        accepted = full = 0
        for part in run.parts(self.missing_in(first, last)):
            taken = 0 if full else self._fitting(part)
            full += part.count - taken
            if taken:
                accepted += taken
                self._insert(part.part(part.first, part.first + taken - 1))
        duplicate = last - first + 1 - accepted - full
        return AddResult(accepted, duplicate, old, far, full)

    def _insert(self, run: Run) -> None:
        assert self.low < run.first, "a purged seqno is not stored again"
        at = bisect_left(self._firsts, run.first, self._head)
        self._runs.insert(at, run)
        self._firsts.insert(at, run.first)
        self.stored += run.count
        self.stored_bytes += run.size_bytes
        self.high = max(self.high, run.last)
        assert self.high <= self.ceiling, "nothing is stored beyond the ceiling"

    def _index(self, seqno: int) -> int:
        """Return the index of the first stored run that ends at or after ``seqno``."""
        at = bisect_right(self._firsts, seqno, self._head) - 1
        return at if at >= self._head and self._runs[at].last >= seqno else max(at + 1, self._head)

    def missing_in(self, first: int, last: int, limit: int | None = None) -> list[Range]:
        """Return the missing ranges in ``first .. last``, at most ``limit``."""
        free: list[Range] = []
        at = self._index(first)
        while first <= last and (limit is None or len(free) < limit):
            if at == len(self._runs) or self._runs[at].first > last:
                free.append((first, last))
                break
            run = self._runs[at]
            if run.first > first:
                free.append((first, run.first - 1))
            first = run.last + 1
            at += 1
        return free

    def missing(self, upto: int | None = None, limit: int | None = None) -> list[Range]:
        """Return the ranges missing from delivered to ``upto`` (or high) and the ceiling."""
        upto = self.high if upto is None else min(upto, self.ceiling)
        return self.missing_in(self.delivered + 1, upto, limit)

    def get(self, first: int, last: int) -> list[Run]:
        """Return the stored runs of ``first .. last``, cut to size."""
        found: list[Run] = []
        at = self._index(first)
        while at < len(self._runs) and max(first, self._runs[at].first) <= last:
            run = self._runs[at]
            found.append(run.part(max(first, run.first), min(last, run.last)))
            at += 1
        return found

    def next_run(self) -> Run:
        """Return the whole stored run with the message after delivered, which must exist."""
        start = self.delivered + 1
        run = self._runs[-1]
        if run.first != start:
            run = self._runs[self._index(start)]
        assert run.first <= start <= run.last, "asked only where the next message is stored"
        return run

    def take(self, limit: int | None = None) -> list[Run]:
        """Remove and return the consecutive runs after delivered, at most ``limit`` messages."""
        runs = self._runs
        if runs and runs[-1].first == self.delivered + 1:
            # The ordinary case: one run is stored, next in order, and all of it may be taken.
            run = runs[-1]
            if limit is None or run.count <= limit:
                self.delivered = run.last
                if self.keep_delivered:
                    self.ceiling = self.policy.ceiling(self.low, self.delivered)
                else:
                    self._erase(self.delivered)
                return [run]
        return self._take_parts(limit)

    def _take_parts(self, limit: int | None) -> list[Run]:
        taken: list[Run] = []
        at = self._index(self.delivered + 1) if self.keep_delivered else self._head
        while at < len(self._runs) and (limit is None or limit > 0):
            run = self._runs[at]
            start, end = self.delivered + 1, run.last
            if run.first > start:
                break
            if limit is not None:
                at, run = self._split_run(at, start, max(2 * limit, _SMALL_COUNT))
                end = min(run.last, start + limit - 1)
                limit -= end - start + 1
            taken.append(run.part(start, end))
            self.delivered = end
            at += 1
        if taken and not self.keep_delivered:
            self._erase(self.delivered)
        elif taken:
            self.ceiling = self.policy.ceiling(self.low, self.delivered)
        return taken

    def _split_run(self, at: int, seqno: int, count: int) -> tuple[int, Run]:
        """Halve the run at index ``at`` until the half with ``seqno`` has ``count`` messages.

        Taking a large run in small parts would otherwise copy the rest of the run each time.
        """
        run = self._runs[at]
        while run.count > count:
            middle = (run.first + run.last) // 2
            self._runs[at : at + 1] = run.parts(((run.first, middle), (middle + 1, run.last)))
            self._firsts.insert(at + 1, middle + 1)
            at += seqno > middle
            run = self._runs[at]
        return at, run

    def purge(self, upto: int, *, force: bool = False) -> int:
        """Erase up to ``upto``, at most to delivered (forced: high); return the count."""
        upto = min(upto, self.high if force else self.delivered)
        if upto <= self.low:
            return 0
        self.delivered = max(self.delivered, upto)
        return self._erase(upto)

    def evict_delivered(self, room_bytes: int) -> int:
        """Erase the oldest delivered messages until ``room_bytes`` more fit; return the count.

        A receiver keeps delivered messages only as a service to others; the service must not cost
        more memory.
        """
        assert self.keep_delivered, "only a window that keeps delivered messages evicts"
        if self.max_bytes is None:
            return 0
        upto, free_bytes = self.low, self.max_bytes - self.stored_bytes
        for at in range(self._head, len(self._runs)):
            if free_bytes >= room_bytes or self._runs[at].first > self.delivered:
                break
            upto = min(
                self._runs[at].last, self.delivered
            )  # of a run that is handed out bit by bit, the part that was
            free_bytes += self._runs[at].size_bytes
        return self.purge(upto)

    def skip_to(self, seqno: int) -> int:
        """Give up all messages up to ``seqno``, stored or not; return how many were stored."""
        if seqno <= self.delivered:
            return 0
        assert self.low <= self.delivered, "marks are in order"
        self.delivered = seqno
        self.high = max(self.high, seqno)
        return self._erase(seqno)

    def _erase(self, upto: int) -> int:
        assert self.low <= upto <= self.delivered, "only delivered messages are erased"
        self.low = upto
        self.ceiling = self.policy.ceiling(upto, self.delivered)
        if upto >= self.high:
            return self._erase_all()
        runs, at, erased = self._runs, self._head, 0
        while at < len(runs) and runs[at].last <= upto:
            erased += runs[at].count
            self.stored_bytes -= runs[at].size_bytes
            runs[at] = _ERASED
            at += 1
        if at < len(runs) and runs[at].first <= upto:
            whole = runs[at]
            rest = whole.part(upto + 1, whole.last)
            erased += whole.count - rest.count
            self.stored_bytes -= whole.size_bytes - rest.size_bytes
            runs[at], self._firsts[at] = rest, rest.first
        self.stored -= erased
        self._drop_front(at)
        return erased

    def _erase_all(self) -> int:
        erased = self.stored
        self._runs.clear()
        self._firsts.clear()
        self._head = self.stored = self.stored_bytes = 0
        return erased

    def _drop_front(self, at: int) -> None:
        """Step over the erased runs before ``at``; the lists are cut rarely: cheaper."""
        if at >= max(_COMPACT_AT, len(self._runs) // 2):
            del self._runs[:at], self._firsts[:at]
            at = 0
        self._head = at

    def check_invariants(self) -> None:
        """Raise AssertionError if the window contradicts the law of this file."""
        assert 0 <= self.low <= self.delivered <= self.high, self.marks
        assert self.keep_delivered or self.low == self.delivered, (
            "a receiver's window keeps nothing that was delivered"
        )
        runs = self.runs
        assert [run.first for run in runs] == self._firsts[self._head :], "firsts follow runs"
        floor = self.low
        for run in runs:
            assert run.first > floor, f"{run} overlaps {floor}"
            floor = run.last
        assert self.high == floor, "high is the highest stored, or low when nothing is stored"
        assert self.ceiling == self.policy.ceiling(self.low, self.delivered), "marks set it"
        assert self.high <= self.ceiling, "nothing beyond the ceiling"
        assert self.stored == sum(run.count for run in runs), "messages add up"
        assert self.stored_bytes == sum(run.size_bytes for run in runs), "bytes add up"

    def snapshot(self) -> WindowSnapshot:
        """Return the whole state as a hashable value."""
        return (self.low, self.delivered, self.high, self.max_bytes, self.runs)

    def restore(self, snapshot: WindowSnapshot) -> None:
        """Take the state of ``snapshot``."""
        self.low, self.delivered, self.high, self.max_bytes, runs = snapshot
        self.ceiling = self.policy.ceiling(self.low, self.delivered)
        self._runs = list(runs)
        self._firsts = [run.first for run in runs]
        self._head = 0
        self.stored = sum(run.count for run in runs)
        self.stored_bytes = sum(run.size_bytes for run in runs)
        assert self.low <= self.delivered <= self.high, "a snapshot has its marks in order"


def window_policy(kind: str, capacity: int, max_seqno_ahead: int) -> WindowPolicy:
    """Return the policy named ``kind``: ``fixed`` or ``growing``."""
    if kind == "fixed":
        return FixedWindow(capacity)
    if kind == "growing":
        return GrowingWindow(max_seqno_ahead)
    raise LocalProtocolError(f"window {kind!r} is not one of: fixed, growing")
