"""The checks of the exchange between a receiver and a sender: repairs (S10), naks (S11), acceptance (S12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.sim.judge import Check, Judge

if TYPE_CHECKING:
    from gapless.core.ready import Step
    from gapless.identity import Address
    from gapless.sim.model import Heard, Life, Stream
    from gapless.wire import Data, Nak


class S10(Check):
    """Repairs are exact: asked for and stored = repaired or held back for a true reason; with the original bytes."""

    name = "S10"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._asked: set[int] = set()
        self._peer: Address | None = None
        self._repaired: set[int] = set()
        self._held_back: dict[int, str] = {}
        self._traced: set[int] = set()

    def nak_in(self, life: Life, sender: Address, frame: Nak) -> None:
        """Remember what is asked for and stored at this moment."""
        if frame.origin != life.address:
            return
        stream = life.stream
        low, high = max(stream.marks.low, stream.stable()), stream.high
        self._peer = sender
        self.judge.at_end.append(self.end)
        for first, last in frame.ranges:
            self._asked.update(range(max(first, low + 1), min(last, high) + 1))

    def row_repair(self, life: Life, row: Step) -> None:  # noqa: ARG002
        """Remember what the trace says was repaired."""
        self._traced.update(range(row.first, row.last + 1))

    def row_suppressed(self, life: Life, row: Step) -> None:
        """Remember what was held back, and check the reason."""
        self._held_back.update(dict.fromkeys(range(row.first, row.last + 1), row.reason))
        stream, now_ns = life.stream, self.judge.local_ns
        if row.reason == "repeat":
            moment_ns = self.config.min_retry_ns // 2
            for seqno in range(row.first, row.last + 1):
                if not _repaired_lately(stream, seqno, row.peer, now_ns - moment_ns):
                    self.fail(f"{seqno} is held back as a repeat, but was not repaired to {row.peer} a moment ago")
        elif row.reason == "budget":
            self._check_budget(stream, row, now_ns)
        else:
            self.fail(f"{row.first}..{row.last} is held back for {row.reason!r}, which is no reason")

    def _check_budget(self, stream: Stream, row: Step, now_ns: int) -> None:
        recent, interval_ns = stream.repaired_bytes, self.config.xmit_interval_ns
        while recent and now_ns - recent[0][0] > interval_ns:
            recent.popleft()
        size_bytes = len(stream.content(row.first, row.last)) + 2 * (row.last - row.first + 1)
        spent_bytes = sum(sent_bytes for _, sent_bytes in recent)
        if spent_bytes + size_bytes + self._now_bytes(stream) <= self.config.repair_budget_bytes:
            self.fail(
                f"{row.first}..{row.last} is held back for the budget, of which only {spent_bytes} bytes are spent"
            )

    def _now_bytes(self, stream: Stream) -> int:
        """Return the bytes of this step's own repairs, which have not been learnt yet."""
        return sum(len(stream.parts[seqno - 1]) + 2 for seqno in self._traced)

    def data_out(self, life: Life, to: Address | None, frame: Data) -> None:
        """Compare a repair with the original."""
        if not frame.repair:
            return
        run, stream = frame.run, life.stream
        if self._peer is None:
            self.fail(f"{run} is repaired, but nobody asked")
            self.judge.at_end.append(self.end)
        if run.origin != life.address or run.last > stream.high:
            self.fail(f"{run} is repaired, but was never sent")
            return
        same_flags = stream.flags[run.first - 1 : run.last] == [run.flags] * run.count
        if run.payload != stream.content(run.first, run.last) or not same_flags:
            self.fail(f"the repair {run} has other bytes than the original")
        now_ns = self.judge.local_ns
        seqnos = range(run.first, run.last + 1)
        self._repaired.update(seqnos)
        moment_ns = self.config.min_retry_ns // 2
        for seqno in seqnos:
            if _repaired_lately(stream, seqno, self._peer, now_ns - moment_ns):
                self.fail(f"{seqno} is repaired to {self._peer} again within a moment")
            stream.repaired.setdefault(seqno, []).append((to, now_ns))
        stream.repaired_bytes.append((now_ns, run.size_bytes))
        only = {"always": None, "never": self._peer}.get(self.config.use_mcast_xmit, to)
        if to not in {None, self._peer} or to != only:
            self.fail(f"{run} is repaired to {to}, but {self._peer} asked")

    def end(self, life: Life) -> None:
        """Compare what was asked for with what was answered."""
        if self._repaired | self._held_back.keys() != self._asked:
            self.fail(
                f"{sorted(self._asked)} was asked for and stored; repaired {sorted(self._repaired)}, "
                f"held back {sorted(self._held_back)}"
            )
        if self._repaired != self._traced:
            self.fail(f"the trace says {sorted(self._traced)} was repaired, in truth {sorted(self._repaired)} was")
        _prune(life.stream)
        self._asked, self._repaired, self._traced, self._held_back = set(), set(), set(), {}
        self._peer = None


class S11(Check):
    """Naks are legal and paced: they name what is missing and known to exist, after a grace, and then rest."""

    name = "S11"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        config = self.config
        self._grace_ns = config.min_grace_ns if config.adaptive_grace else config.xmit_interval_ns
        self._retry_ns = config.min_retry_ns if config.adaptive_grace else config.xmit_interval_ns

    def nak_out(self, life: Life, to: Address | None, frame: Nak) -> None:
        """Compare every range with what is known of the stream."""
        heard = life.heard.get(frame.origin)
        if heard is None or to != frame.origin:
            self.fail(f"a nak for {frame.origin} goes to {to}")
            return
        if not frame.ranges:
            self._ask_start(heard, frame)
            return
        if not heard.open:
            self.fail(f"asks {frame.origin} for {frame.ranges}, but does not know where the stream starts")
            return
        known = max(heard.high, heard.announced)
        for first, last in frame.ranges:
            if first <= heard.delivered or last > min(known, heard.delivered + self.judge.reach):
                self.fail(f"asks for {first}..{last} of {frame.origin}: delivered {heard.delivered}, known {known}")
            elif heard.held & heard.bits(first, last):
                self.fail(f"asks for {first}..{last} of {frame.origin}, some of which it holds")
            self._pace(heard, frame.origin, first, last)

    def _ask_start(self, heard: Heard, frame: Nak) -> None:
        if heard.open:
            self.fail(f"asks {frame.origin} where its stream starts, but was told")
        self._pace(heard, frame.origin, 0, 0)

    def _pace(self, heard: Heard, origin: Address, first: int, last: int) -> None:
        now_ns, asked_ns = self.judge.local_ns, heard.asked_ns
        for seqno in range(first, last + 1):
            before_ns = asked_ns.get(seqno)
            if before_ns is None:
                self._check_grace(heard, origin, seqno)
            elif now_ns - before_ns < self._retry_ns:
                self.fail(f"asks for {seqno} of {origin} again after {now_ns - before_ns} ns")
            asked_ns[seqno] = now_ns

    def _check_grace(self, heard: Heard, origin: Address, seqno: int) -> None:
        age_ns = self.judge.local_ns - heard.known_since_ns(seqno, self.judge.local_ns)
        if seqno and age_ns < self._grace_ns:
            self.fail(f"asks for {seqno} of {origin} only {age_ns} ns after it could know of it")


class S12(Check):
    """Acceptance: what is in range, new and fits is taken; the rest is dropped with the right reason."""

    name = "S12"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._stored = 0
        self._dropped: dict[str, int] = {}
        self._summoned = False
        self._full = False

    def _summon(self) -> None:
        """Look at the end of this step."""
        self._summoned = True
        self.judge.at_end.append(self.end)

    def data_in(self, life: Life, heard: Heard, frame: Data) -> None:
        """What the sender's window allowed is never out of reach."""
        if not self._summoned:
            self._summon()
        if not heard.open or frame.run.last <= heard.delivered + self.judge.reach:
            return
        owed_from = self.model.owes_from(frame.run.origin, life)
        if owed_from is not None and frame.run.last > owed_from and heard.delivered >= owed_from:
            self.fail(f"{frame.run} is out of reach of {life.name}, which is at {heard.delivered}")

    def row_store(self, life: Life, row: Step) -> None:  # noqa: ARG002
        """Count what was taken."""
        self._stored += row.message_count
        if not self._summoned:
            self._summon()

    def row_dropped(self, life: Life, row: Step) -> None:
        """Count what was dropped, by reason."""
        if row.reason in _DATA_REASONS:
            self._dropped[row.reason] = self._dropped.get(row.reason, 0) + row.message_count
            if not self._summoned:
                self._summon()
            if row.reason == "full" and row.origin is not None and not self._full:
                self._full = True
                self._check_full(life, row.origin)

    def _check_full(self, life: Life, origin: Address) -> None:
        """Something was refused for its bytes: all of it together must be over the limit. Learn what is left."""
        heard, stream = life.heard[origin], self.model.lives[origin].stream
        window = life.member.inbound[origin].window
        bits = enumerate(bin(heard.held)[:1:-1], heard.delivered)
        held_bytes = sum(len(stream.parts[at]) + 2 for at, bit in bits if bit == "1")
        if held_bytes <= self.config.window_bytes or window is None:
            self.fail(f"{life.name} has no room for {held_bytes} bytes of {origin}")
            return
        heard.held = heard.bits(heard.delivered + 1, window.delivered)
        for run in window.runs:
            heard.held |= heard.bits(run.first, run.last)
        heard.high = window.high

    def end(self, life: Life) -> None:
        """Compare with what the model expects."""
        expected, dropped = self.judge.expected, self._dropped
        found = self._stored + dropped.get("full", 0), *map(dropped.get, _COUNTED, _ZEROS)
        if found != expected:
            self.fail(f"{life.name} took {self._stored} and dropped {dropped}, but {expected} was due")
        self._stored, self._summoned, self._full = 0, False, False
        if dropped:
            self._dropped = {}


_COUNTED = ("duplicate", "old", "far", "early")
_ZEROS = (0, 0, 0, 0)
_DATA_REASONS = ("duplicate", "old", "far", "early", "full")


def _repaired_lately(stream: Stream, seqno: int, peer: Address | None, since_ns: int) -> bool:
    return any(to in {None, peer} and at_ns > since_ns for to, at_ns in stream.repaired.get(seqno, ()))


def _prune(stream: Stream) -> None:
    """Forget the repairs of what is purged."""
    low = stream.marks.low
    if len(stream.repaired) > 256:
        stream.repaired = {seqno: times for seqno, times in stream.repaired.items() if seqno > low}
