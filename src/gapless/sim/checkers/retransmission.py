"""The checks of repairs (S10), naks (S11) and acceptance (S12) between receiver and sender."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gapless.run import ACKED
from gapless.sim.oracle.checker import InvariantChecker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.identity import Address
    from gapless.protocol.ready import TraceEntry
    from gapless.run import Run
    from gapless.sim.oracle.model import InboundModel, MemberModel, StreamModel
    from gapless.sim.oracle.oracle import Oracle
    from gapless.wire import Data, Nak


class _NakExchange:
    """A nak and its repairs; a repair of ``perhaps`` is optional: purged in the same step."""

    __slots__ = ("peer", "repaired", "requested", "suppressed", "traced")

    def __init__(self, peer: Address) -> None:
        self.peer = peer
        self.requested: set[int] = set()
        self.repaired: set[int] = set()
        self.traced: set[int] = set()
        self.suppressed: set[int] = set()


class _RepairHistory:
    """The repairs of a stream by a member: receiver, time and bytes."""

    __slots__ = ("repaired", "size_bytes")

    def __init__(self) -> None:
        self.repaired: dict[int, list[tuple[Address | None, int]]] = {}
        self.size_bytes: deque[tuple[int, int]] = deque()

    def repaired_since(self, seqno: int, peer: Address | None, since_ns: int) -> bool:
        """Return whether ``seqno`` was repaired to ``peer``, or to all, after ``since_ns``."""
        return any(
            to in {None, peer} and at_ns > since_ns for to, at_ns in self.repaired.get(seqno, ())
        )

    def prune(self, low: int) -> None:
        """Forget the repairs of purged messages."""
        if len(self.repaired) > 256:
            self.repaired = {seqno: times for seqno, times in self.repaired.items() if seqno > low}


class ExactRepairChecker(InvariantChecker):
    """Repairs are exact: stored and requested means repaired, or suppressed for a true reason.

    A retransmission without a request (of an acknowledged message) has the original bytes too, and
    goes to a single member.
    """

    id = "S10"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._exchanges: dict[Address, _NakExchange] = {}
        self._histories: dict[tuple[Address, Address, int], _RepairHistory] = {}
        self._unsolicited: list[tuple[int, int, Address | None]] = []

    def _history(self, model: MemberModel, origin: Address) -> _RepairHistory:
        key = model.address, origin, model.epoch
        memory = self._histories.get(key)
        if memory is None:
            memory = self._histories[key] = _RepairHistory()
        return memory

    def _stream(self, model: MemberModel, origin: Address) -> StreamModel | None:
        if origin == model.address:
            return model.stream
        inbound = model.inbound.get(origin)
        return inbound.stream if inbound is not None and self.oracle.receivers_retain else None

    def nak_in(self, model: MemberModel, sender: Address, frame: Nak) -> None:
        """Record the stored messages that a nak requests."""
        origin = frame.origin
        if self._stream(model, origin) is None:
            return
        if not self._exchanges:
            self.oracle.at_end.append(self.end)
        exchange = self._exchanges.setdefault(origin, _NakExchange(sender))
        for first, last in frame.ranges:
            exchange.requested.update(self._stored(model, origin, first, last))

    @staticmethod
    def _stored(model: MemberModel, origin: Address, first: int, last: int) -> Iterable[int]:
        if origin == model.address:
            stream = model.stream
            return range(max(first, stream.marks.low + 1), min(last, stream.high) + 1)
        inbound = model.inbound[origin]
        held = inbound.held
        seqnos = range(max(first, inbound.marks.low + 1), min(last, inbound.high) + 1)
        return (
            s for s in seqnos if s <= inbound.delivered or held >> (s - inbound.delivered - 1) & 1
        )

    def row_repair(self, model: MemberModel, row: TraceEntry) -> None:
        """Note the repairs in the trace."""
        if row.reason == "unasked":
            self._unsolicited.append((row.seqno, row.seqno_last, row.peer))
        elif row.origin is not None and (exchange := self._exchanges.get(row.origin)) is not None:
            exchange.traced.update(range(row.seqno, row.seqno_last + 1))

    def row_suppressed(self, model: MemberModel, row: TraceEntry) -> None:
        """Note suppressed repairs, and check the reason."""
        assert row.origin is not None
        exchange, memory = self._exchanges.get(row.origin), self._history(model, row.origin)
        if exchange is not None:
            exchange.suppressed.update(range(row.seqno, row.seqno_last + 1))
        now_ns = self.oracle.local_ns
        if row.reason == "repeat":
            moment_ns = self.config.min_retry_ns // 2
            for seqno in range(row.seqno, row.seqno_last + 1):
                if not memory.repaired_since(seqno, row.peer, now_ns - moment_ns):
                    self.fail(
                        f"{seqno} is suppressed as a repeat, but no repair went to "
                        f"{row.peer} recently"
                    )
        elif row.reason == "budget":
            self._check_budget(model, row, memory, now_ns)
        else:
            self.fail(
                f"{row.seqno}..{row.seqno_last} is suppressed for {row.reason!r}, "
                "which is not a valid reason"
            )

    def _check_budget(
        self, model: MemberModel, row: TraceEntry, memory: _RepairHistory, now_ns: int
    ) -> None:
        recent, interval_ns = memory.size_bytes, self.config.xmit_interval_ns
        while recent and now_ns - recent[0][0] > interval_ns:
            recent.popleft()
        assert row.origin is not None
        stream = self._stream(model, row.origin) or model.stream
        exchange = self._exchanges.get(row.origin)
        size_bytes = len(stream.content(row.seqno, row.seqno_last)) + 2 * (
            row.seqno_last - row.seqno + 1
        )
        size_bytes += sum(
            len(stream.payloads[seqno - 1]) + 2 for seqno in (exchange.traced if exchange else ())
        )
        spent_bytes = sum(sent_bytes for _, sent_bytes in recent)
        if spent_bytes + size_bytes <= self.config.repair_budget_bytes:
            self.fail(
                f"{row.seqno}..{row.seqno_last} is suppressed by the budget, but "
                f"only {spent_bytes} bytes are spent"
            )

    def data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """Compare a repair with the original."""
        if not frame.repair:
            return
        run = frame.run
        stream = self._stream(model, run.origin)
        if stream is None or run.last > stream.high:
            self.fail(f"{run} is repaired, but was never sent or is not stored")
            return
        same_flags = stream.flags[run.first - 1 : run.last] == [run.flags] * run.count
        if run.payload != stream.content(run.first, run.last) or not same_flags:
            self.fail(f"the repair {run} has other bytes than the original")
        memory = self._history(model, run.origin)
        memory.size_bytes.append((self.oracle.local_ns, run.size_bytes))
        if (run.first, run.last, to) in self._unsolicited:
            self._unsolicited.remove((run.first, run.last, to))
            if not run.flags & ACKED or to is None:
                self.fail(f"{run} is resent to {to} without a request")
            return
        exchange = self._exchanges.get(run.origin)
        if exchange is None:
            self.fail(f"{run} is repaired without a request")
            return
        self._answer(run, to, exchange, memory)

    def _answer(
        self, run: Run, to: Address | None, exchange: _NakExchange, memory: _RepairHistory
    ) -> None:
        now_ns, peer = self.oracle.local_ns, exchange.peer
        moment_ns = self.config.min_retry_ns // 2
        for seqno in range(run.first, run.last + 1):
            if memory.repaired_since(seqno, peer, now_ns - moment_ns):
                self.fail(f"{seqno} is repaired to {peer} twice within a short time")
            memory.repaired.setdefault(seqno, []).append((to, now_ns))
            exchange.repaired.add(seqno)
        only = {"always": None, "never": peer}.get(self.config.use_mcast_xmit, to)
        if to not in {None, peer} or to != only:
            self.fail(f"{run} is repaired to {to}, but {peer} sent the request")

    def end(self, model: MemberModel) -> None:
        """Compare requests with repairs; repairs of messages purged in this step are optional."""
        for origin, exchange in self._exchanges.items():
            low = self._low(model, origin)
            answered = exchange.repaired | exchange.suppressed
            missed = {seqno for seqno in exchange.requested if seqno > low} - answered
            if missed or answered - exchange.requested:
                self.fail(
                    f"{sorted(exchange.requested)} was requested and stored; repaired "
                    f"{sorted(exchange.repaired)}, suppressed "
                    f"{sorted(exchange.suppressed)}"
                )
            if exchange.repaired != exchange.traced:
                self.fail(
                    f"the trace shows repairs of {sorted(exchange.traced)}, but "
                    f"{sorted(exchange.repaired)} was repaired"
                )
            self._history(model, origin).prune(low)
        self._exchanges = {}
        self._unsolicited = []

    @staticmethod
    def _low(model: MemberModel, origin: Address) -> int:
        if origin == model.address:
            return model.member.outbound.window.low
        window = model.member.inbound[origin].window
        return 0 if window is None else window.low


class NakPacingChecker(InvariantChecker):
    """Naks are legal and paced: for known missing seqnos, after a grace, and with a back-off."""

    id = "S11"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        config = self.config
        self._grace_ns = config.min_grace_ns if config.adaptive_grace else config.xmit_interval_ns
        self._retry_ns = config.min_retry_ns if config.adaptive_grace else config.xmit_interval_ns

    def nak_out(self, model: MemberModel, to: Address | None, frame: Nak) -> None:
        """Compare every range with the known seqnos of the stream."""
        inbound = model.inbound.get(frame.origin)
        anybody = (
            self.config.xmit_from_random_member
            and self.oracle.receivers_retain
            and to in model.inbound
            and frame.ranges
        )
        if inbound is None or (to != frame.origin and not anybody):
            self.fail(f"a nak for {frame.origin} goes to {to}")
            return
        if not frame.ranges:
            self._check_start_request(inbound, frame)
            return
        if not inbound.open:
            self.fail(
                f"requests {frame.ranges} of {frame.origin} before the start of the stream is known"
            )
            return
        known = max(inbound.high, inbound.announced)
        for first, last in frame.ranges:
            if first <= inbound.delivered or last > min(
                known, inbound.delivered + self.oracle.reach
            ):
                self.fail(
                    f"requests {first}..{last} of {frame.origin}: delivered "
                    f"{inbound.delivered}, known {known}"
                )
            elif inbound.held & inbound.bits(first, last):
                self.fail(f"requests {first}..{last} of {frame.origin}, but has stored a part")
            self._check_pacing(inbound, frame.origin, first, last)

    def _check_start_request(self, inbound: InboundModel, frame: Nak) -> None:
        if inbound.open:
            self.fail(f"requests the start of the stream of {frame.origin}, which is known")
        self._check_pacing(inbound, frame.origin, 0, 0)

    def _check_pacing(self, inbound: InboundModel, origin: Address, first: int, last: int) -> None:
        now_ns, asked_ns = self.oracle.local_ns, inbound.nak_sent_ns
        for seqno in range(first, last + 1):
            before_ns = asked_ns.get(seqno)
            if before_ns is None:
                self._check_grace(inbound, origin, seqno)
            elif now_ns - before_ns < self._retry_ns:
                self.fail(f"requests {seqno} of {origin} again after {now_ns - before_ns} ns")
            asked_ns[seqno] = now_ns

    def _check_grace(self, inbound: InboundModel, origin: Address, seqno: int) -> None:
        age_ns = self.oracle.local_ns - inbound.known_since_ns(seqno, self.oracle.local_ns)
        if seqno and age_ns < self._grace_ns:
            self.fail(
                f"requests {seqno} of {origin} only {age_ns} ns after the first sign of the gap"
            )


class AcceptanceChecker(InvariantChecker):
    """Acceptance: data in range, new and within limits is stored; the rest is a counted drop."""

    id = "S12"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._stored = 0
        self._dropped: dict[str, int] = {}
        self._end_check_scheduled = False
        self._full = False

    def _schedule_end_check(self) -> None:
        """Schedule the check at the end of the step."""
        self._end_check_scheduled = True
        self.oracle.at_end.append(self.end)

    def data_in(self, model: MemberModel, inbound: InboundModel, frame: Data) -> None:
        """Check that data within the sender's window is never dropped as out of reach."""
        if not self._end_check_scheduled:
            self._schedule_end_check()
        if not inbound.open or frame.run.last <= inbound.delivered + self.oracle.reach:
            return
        owed_from = self.model.owed_from(frame.run.origin, model)
        if owed_from is not None and frame.run.last > owed_from and inbound.delivered >= owed_from:
            self.fail(
                f"{frame.run} is out of reach of {model.name}, which is at {inbound.delivered}"
            )

    def row_store(self, model: MemberModel, row: TraceEntry) -> None:
        """Count stored messages."""
        self._stored += row.k
        if not self._end_check_scheduled:
            self._schedule_end_check()

    def row_dropped(self, model: MemberModel, row: TraceEntry) -> None:
        """Count dropped messages by reason."""
        if row.reason in _DATA_REASONS:
            self._dropped[row.reason] = self._dropped.get(row.reason, 0) + row.k
            if not self._end_check_scheduled:
                self._schedule_end_check()
            if row.reason == "full" and row.origin is not None and not self._full:
                self._full = True
                self._check_full(model, row.origin)

    def _check_full(self, model: MemberModel, origin: Address) -> None:
        """Check a refusal for bytes: all data together must exceed the limit."""
        inbound = model.inbound[origin]
        stream = inbound.stream
        window = model.member.inbound[origin].window
        bits = enumerate(bin(inbound.held)[:1:-1], inbound.delivered)
        held_bytes = sum(len(stream.payloads[at]) + 2 for at, bit in bits if bit == "1")
        if held_bytes <= self.config.window_bytes or window is None:
            self.fail(f"{model.name} has no room for {held_bytes} bytes of {origin}")
            return
        inbound.held = inbound.bits(inbound.delivered + 1, window.delivered)
        for run in window.runs:
            inbound.held |= inbound.bits(run.first, run.last)
        inbound.high = window.high

    def end(self, model: MemberModel) -> None:
        """Compare the counts with the expectation of the model."""
        expected, dropped = self.oracle.expected, self._dropped
        found = self._stored + dropped.get("full", 0), *map(dropped.get, _COUNTED, _ZEROS)
        if self.oracle.receivers_retain:
            # Data at or below delivered is a duplicate while it is stored, and old after that.
            expected = expected._replace(duplicate=expected.duplicate + expected.old, old=0)
            found = (found[0], found[1] + found[2], 0, *found[3:])
        if found != expected:
            self.fail(
                f"{model.name} stored {self._stored} and dropped {dropped}, but "
                f"{expected} was expected"
            )
        self._stored, self._end_check_scheduled, self._full = 0, False, False
        if dropped:
            self._dropped = {}


_COUNTED = ("duplicate", "old", "far", "early", "view")
_ZEROS = (0, 0, 0, 0, 0)
_DATA_REASONS = ("duplicate", "old", "far", "early", "view", "full")
