"""The checks of progress and its cost: L1 to L4 and S16.

The bounds are fixed numbers. With D the delay of a perfect network and X the longest configured
pause between two tries (the larger of ``xmit_interval`` and ``tail_delay``), measured on the
slowest clock:

* B1 = (2 + R) X + (2 + 2 R) D, with R = 1 round of repairs. A window beyond the reach of a
  single nak, or larger than the repair budget of an interval, needs more rounds. With R = 1 the
  bound is three intervals and four delays: the sender announces a lost tail, the gap outlives its
  grace, the receiver requests the gap, and the sender repairs the gap.
* B2 = B1 + X + ack_delay + 2 D: then the ack goes out, or a lost ack is requested once more. Where
  stability releases, three voting intervals and four delays more.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gapless.profiles import AckPolicy, ReleasePolicy
from gapless.protocol.member import Member
from gapless.sim.oracle.checker import InvariantChecker
from gapless.wire.codec import run_room_bytes

if TYPE_CHECKING:
    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.ready import TraceEntry
    from gapless.sim.oracle.model import MemberModel
    from gapless.sim.oracle.oracle import Oracle
    from gapless.wire import Ack, Data, Gone, Nak, Tail

SLOW_CLOCK_PERCENT = 106
"""How long an interval of the slowest clock lasts: 5 % drift, and 1 % for rounding."""


def bounds_ns(config: Config, delay_ns: int) -> tuple[int, int]:
    """Return B1 and B2 for a network with a fixed delay of ``delay_ns`` and no loss."""
    pause_ns = max(config.xmit_interval_ns, config.tail_delay_ns) * SLOW_CLOCK_PERCENT // 100
    ack_ns = config.ack_delay_ns * SLOW_CLOCK_PERCENT // 100
    rounds = 1
    reach = config.reach
    if config.max_xmit_req_size:
        rounds = max(rounds, -(-reach // config.max_xmit_req_size))
    window_bytes = min(config.window_bytes, reach * run_room_bytes(config.max_frame_bytes))
    rounds = max(rounds, -(-MAX_RECEIVERS * window_bytes // config.repair_budget_bytes))
    rounds += config.xmit_from_random_member  # a random member may not have it
    first_ns = (2 + rounds) * pause_ns + (2 + 2 * rounds) * delay_ns
    second_ns = first_ns + pause_ns + ack_ns + 2 * delay_ns
    if not config.retransmits:
        # The links lose nothing, so only the delay of the network counts.
        first_ns = second_ns = 4 * delay_ns + ack_ns + 1_000_000
    if config.group_profile.release is ReleasePolicy.STABILITY:
        # All members vote; a coordinator that delivers last votes again; the stability message may
        # cross a vote.
        second_ns += 3 * config.stability_interval_ns * SLOW_CLOCK_PERCENT // 100 + 4 * delay_ns
    return first_ns, second_ns


def connection_slack_ns(config: Config) -> int:
    """Return how much longer than B2 a connection may take.

    A connection looks for losses twice, may delay acknowledgements, and requests its first message
    only at intervals.
    """
    lazy = config.unicast_profile.acks is AckPolicy.PERIODIC
    acks_ns = 4 * config.stability_interval_ns if lazy else 2 * config.min_ack_interval_ns
    return (
        2 * config.xmit_interval_ns
        + acks_ns
        + config.sync_min_interval_ns * SLOW_CLOCK_PERCENT // 100
    )


MAX_RECEIVERS = 8
"""Maximum number of members that want the same repair at once, joiners included."""


class _DeadlineChecker(InvariantChecker):
    """The common part of the two bounds: seqnos must reach a mark by a deadline."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._due: dict[Address, deque[tuple[int, int]]] = {}
        self._faults_over = False

    def bound_ns(self) -> int:
        """Return the allowed time."""
        raise NotImplementedError

    def reached(self, model: MemberModel) -> int:
        """Return the seqno of ``model``'s stream that has reached the mark."""
        raise NotImplementedError

    def data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """Set a deadline for every message, from the send or from the calm (the later time)."""
        if self._faults_over and not frame.repair:
            self._set_deadline(model, frame.run.last)

    def _set_deadline(self, model: MemberModel, seqno: int) -> None:
        due_ns = self.oracle.t_ns + self.bound_ns()
        self._due.setdefault(model.address, deque()).append((seqno, due_ns))
        self.oracle.schedule_check(due_ns + 1)

    def check_due(self) -> None:
        """Set the deadlines when the calm begins; later, check the due deadlines."""
        if not self._faults_over:
            self._faults_over = True
            for model in self.model.members.values():
                if model.alive and model.stream.high:
                    self._set_deadline(model, model.stream.high)
        self._check_deadlines()

    def view_pending(self) -> None:
        """Restart the deadlines when a converged group gets another view."""
        self._faults_over = False
        self._due.clear()

    def close(self) -> None:
        """Check every deadline that has passed, and skip the others."""
        self._check_deadlines()

    def _check_deadlines(self) -> None:
        now_ns = self.oracle.t_ns
        for address, due in self._due.items():
            model = self.model.members[address]
            while due and (due[0][1] < now_ns or not model.alive):
                seqno, due_ns = due.popleft()
                if model.alive and self._waits_for_state(model):
                    due.append((seqno, now_ns + self.bound_ns()))
                elif model.alive and model.stream.high >= seqno > self.reached(model):
                    self.fail(
                        f"{model.name}{seqno} was due at {due_ns / 1e9:.6f} s, "
                        f"{self.reached(model)} is reached"
                    )
                    due.clear()
        for due in self._due.values():
            if due:
                self.oracle.schedule_check(due[0][1] + 1)

    def _waits_for_state(self, model: MemberModel) -> bool:
        """Return whether a member waits for the state with a full buffer: the time begins after."""
        members = (self.model.members[address].member for address in model.view_members)
        return any(isinstance(member, Member) and member.state_transfer.full for member in members)


class DeliveryDeadlineChecker(_DeadlineChecker):
    """Delivery: within B1 after the last fault every member of the view delivers every message."""

    id = "L1"

    def bound_ns(self) -> int:
        """Return B1."""
        return self.oracle.bounds_ns[0]

    def reached(self, model: MemberModel) -> int:
        """Return up to where every member of the view has delivered."""
        others = (
            self.model.members[member] for member in model.view_members if member != model.address
        )
        inbound = [other.inbound_of(model.address, model.epoch) for other in others if other.alive]
        return min(
            (ears.delivered if ears is not None else 0 for ears in inbound),
            default=model.stream.high,
        )


class StabilityDeadlineChecker(_DeadlineChecker):
    """Stability: within B2 low = high; every wait for room ends."""

    id = "L2"

    def bound_ns(self) -> int:
        """Return B2."""
        return self.oracle.bounds_ns[1]

    def reached(self, model: MemberModel) -> int:
        """Return the low mark of the sender."""
        return model.stream.marks.low

    def row_block(self, model: MemberModel, row: TraceEntry) -> None:
        """Record a waiting member."""
        model.blocked.add(row.seqno)

    def row_unblock(self, model: MemberModel, row: TraceEntry) -> None:
        """A wait ends."""
        if row.seqno not in model.blocked:
            self.fail(f"the wait of send {row.seqno} ends without a begin")
        model.blocked.discard(row.seqno)

    def close(self) -> None:
        """Check that no send waits at the end of a settled run."""
        super().close()
        if not self.oracle.settled:
            self.fail("the group did not settle")
            return
        for model in self.model.members.values():
            if model.alive and model.blocked:
                self.fail(f"{model.name} still waits with {sorted(model.blocked)}")


class QuiescenceChecker(InvariantChecker):
    """Quiet: a group at rest sends no data, nak or repair."""

    id = "L3"
    only_when_idle = True

    def data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """No data may go out."""
        self.fail(f"{model.name} sends {frame.run} to {to} at rest")

    def nak_out(self, model: MemberModel, to: Address | None, frame: Nak) -> None:
        """No nak may go out."""
        self.fail(f"{model.name} requests {frame.ranges} from {to} at rest")


class RepairCostChecker(InvariantChecker):
    """Cost: repairs stay near the number of losses; without faults there are none, and no naks."""

    id = "L4"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.repairs = 0
        self.naks = 0

    def data_out(self, model: MemberModel, to: Address | None, frame: Data) -> None:
        """Count repairs."""
        self.repairs += frame.repair

    def nak_out(self, model: MemberModel, to: Address | None, frame: Nak) -> None:
        """Count naks; the question for the start of a stream is none."""
        self.naks += bool(frame.ranges)

    def close(self) -> None:
        """Compare repairs with the network's losses, where loss is the only fault."""
        cost = self.oracle.cost
        if cost is None:
            return
        lost, bursts = cost
        most = 1.5 * lost + bursts
        if self.repairs > most:
            self.fail(
                f"{self.repairs} repairs for {lost} lost data frames in {bursts} bursts, at "
                f"most {most:.0f}"
            )
        if not lost and self.naks:
            self.fail(f"{self.naks} naks, but nothing was lost")


class SilenceChecker(InvariantChecker):
    """Silence: a group at rest sends nothing but answers to late arrivals."""

    id = "S16"
    only_when_idle = True

    def _frame_sent(self, model: MemberModel, to: Address | None, frame: Ack | Tail | Gone) -> None:
        oracle = self.oracle
        if oracle.t_ns > oracle.last_arrival_ns + 2 * self.config.ack_delay_ns:
            self.fail(f"{model.name} sends {frame} to {to} at rest")

    ack_out = tail_out = gone_out = _frame_sent
