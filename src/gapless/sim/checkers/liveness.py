"""The checks of what must happen, and at what cost: L1 to L4 and S16.

The bounds are numbers, fixed once. With D the delay of a perfect network and X the longest pause
that the configuration allows between two tries (``xmit_interval``, or ``tail_delay`` if that is
longer), counted on the slowest clock:

* B1 = (2 + R) X + (2 + 2 R) D, with R = 1 round of repairs; a window larger than one nak may name,
  or larger than the repair budget of an interval, takes as many more. With R = 1 these are the
  three intervals and four delays in which a lost tail is announced, its gap outlives its grace, is
  asked for and repaired.
* B2 = B1 + X + ack_delay + 2 D: then the ack goes out, or is lost no more and announced for once
  again. Where stability releases, three voting intervals and four delays more.
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
"""A clock may run slow by 5 %: a local interval then takes that much longer, and a little more by rounding."""


def bounds_ns(config: Config, delay_ns: int) -> tuple[int, int]:
    """Return B1 and B2 for a network that delivers everything after ``delay_ns``."""
    pause_ns = max(config.xmit_interval_ns, config.tail_delay_ns) * SLOW_CLOCK_PERCENT // 100
    ack_ns = config.ack_delay_ns * SLOW_CLOCK_PERCENT // 100
    rounds = 1
    reach = config.reach
    if config.max_xmit_req_size:
        rounds = max(rounds, -(-reach // config.max_xmit_req_size))
    window_bytes = min(config.window_bytes, reach * run_room_bytes(config.max_frame_bytes))
    rounds = max(rounds, -(-MAX_RECEIVERS * window_bytes // config.repair_budget_bytes))
    rounds += config.xmit_from_random_member  # one who is asked by chance may not have it
    first_ns = (2 + rounds) * pause_ns + (2 + 2 * rounds) * delay_ns
    second_ns = first_ns + pause_ns + ack_ns + 2 * delay_ns
    if not config.retransmits:
        # Nothing is lost, and what was sent is on its way; how long that takes only the network
        # knows.
        first_ns = second_ns = 4 * delay_ns + ack_ns + 1_000_000
    if config.group_profile.release is ReleasePolicy.STABILITY:
        # Everybody votes; a coordinator that was the last to deliver votes again; the message may
        # cross a vote.
        second_ns += 3 * config.stability_interval_ns * SLOW_CLOCK_PERCENT // 100 + 4 * delay_ns
    return first_ns, second_ns


def connection_slack_ns(config: Config) -> int:
    """Return how much longer than B2 a connection may take.

    It looks twice, may acknowledge only now and then, and asks for its first message only every so
    often.
    """
    lazy = config.unicast_profile.acks is AckPolicy.PERIODIC
    acks_ns = 4 * config.stability_interval_ns if lazy else 2 * config.min_ack_interval_ns
    return (
        2 * config.xmit_interval_ns
        + acks_ns
        + config.sync_min_interval_ns * SLOW_CLOCK_PERCENT // 100
    )


MAX_RECEIVERS = 8
"""As many members may want the same repair of one sender at once, in a group with all that join it."""


class _DeadlineChecker(InvariantChecker):
    """What the two bounds have in common: seqnos that must reach a mark by a time."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self._due: dict[Address, deque[tuple[int, int]]] = {}
        self._faults_over = False

    def bound_ns(self) -> int:
        """Return how long it may take."""
        raise NotImplementedError

    def reached(self, life: MemberModel) -> int:
        """Return the seqno of ``life``'s stream that has got there."""
        raise NotImplementedError

    def data_out(self, life: MemberModel, to: Address | None, frame: Data) -> None:
        """Once the network is calm, everything that is sent has its time; what was sent before, the same from T*."""
        if self._faults_over and not frame.repair:
            self._set_deadline(life, frame.run.last)

    def _set_deadline(self, life: MemberModel, seqno: int) -> None:
        due_ns = self.oracle.t_ns + self.bound_ns()
        self._due.setdefault(life.address, deque()).append((seqno, due_ns))
        self.oracle.schedule_check(due_ns + 1)

    def check_due(self) -> None:
        """When the calm comes, give everything that was sent its time; later, look at what is due."""
        if not self._faults_over:
            self._faults_over = True
            for life in self.model.members.values():
                if life.alive and life.stream.high:
                    self._set_deadline(life, life.stream.high)
        self._check_deadlines()

    def view_pending(self) -> None:
        """When the group that was one gets another view, everything has its time from when it is one again."""
        self._faults_over = False
        self._due.clear()

    def close(self) -> None:
        """Look at everything that is due by now, and at nothing that still has time."""
        self._check_deadlines()

    def _check_deadlines(self) -> None:
        now_ns = self.oracle.t_ns
        for address, due in self._due.items():
            life = self.model.members[address]
            while due and (due[0][1] < now_ns or not life.alive):
                seqno, due_ns = due.popleft()
                if life.alive and self._waits_for_state(life):
                    due.append((seqno, now_ns + self.bound_ns()))
                elif life.alive and life.stream.high >= seqno > self.reached(life):
                    self.fail(
                        f"{life.name}{seqno} was due at {due_ns / 1e9:.6f} s, {self.reached(life)} is reached"
                    )
                    due.clear()
        for due in self._due.values():
            if due:
                self.oracle.schedule_check(due[0][1] + 1)

    def _waits_for_state(self, life: MemberModel) -> bool:
        """Return whether a member of the view can hold no more before it has the state; its time begins then."""
        members = (self.model.members[address].member for address in life.view_members)
        return any(isinstance(member, Member) and member.state_transfer.full for member in members)


class DeliveryDeadlineChecker(_DeadlineChecker):
    """Delivery: within B1 after the last fault every message is delivered by every member of the view."""

    id = "L1"

    def bound_ns(self) -> int:
        """Return B1."""
        return self.oracle.bounds_ns[0]

    def reached(self, life: MemberModel) -> int:
        """Return up to where every member of the view has delivered."""
        others = (
            self.model.members[member] for member in life.view_members if member != life.address
        )
        heard = [other.inbound_of(life.address, life.epoch) for other in others if other.alive]
        return min(
            (ears.delivered if ears is not None else 0 for ears in heard), default=life.stream.high
        )


class StabilityDeadlineChecker(_DeadlineChecker):
    """Stability: within B2 low = high; every wait for room ends."""

    id = "L2"

    def bound_ns(self) -> int:
        """Return B2."""
        return self.oracle.bounds_ns[1]

    def reached(self, life: MemberModel) -> int:
        """Return the low mark of the sender."""
        return life.stream.marks.low

    def row_block(self, life: MemberModel, row: TraceEntry) -> None:
        """Remember who waits."""
        life.blocked.add(row.seqno)

    def row_unblock(self, life: MemberModel, row: TraceEntry) -> None:
        """A wait ends."""
        if row.seqno not in life.blocked:
            self.fail(f"the wait of send {row.seqno} ends without having begun")
        life.blocked.discard(row.seqno)

    def close(self) -> None:
        """At the end of a run that came to rest nobody waits."""
        super().close()
        if not self.oracle.settled:
            self.fail("the group did not come to rest")
            return
        for life in self.model.members.values():
            if life.alive and life.blocked:
                self.fail(f"{life.name} still waits with {sorted(life.blocked)}")


class QuiescenceChecker(InvariantChecker):
    """Quiet: a group at rest sends no data, nak or repair."""

    id = "L3"
    only_when_idle = True

    def data_out(self, life: MemberModel, to: Address | None, frame: Data) -> None:
        """No data may go out."""
        self.fail(f"{life.name} sends {frame.run} to {to} at rest")

    def nak_out(self, life: MemberModel, to: Address | None, frame: Nak) -> None:
        """No nak may go out."""
        self.fail(f"{life.name} asks {to} for {frame.ranges} at rest")


class RepairCostChecker(InvariantChecker):
    """Cost: repairs stay near what was lost; without faults there are no naks and no repairs."""

    id = "L4"

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.repairs = 0
        self.naks = 0

    def data_out(self, life: MemberModel, to: Address | None, frame: Data) -> None:
        """Count repairs."""
        self.repairs += frame.repair

    def nak_out(self, life: MemberModel, to: Address | None, frame: Nak) -> None:
        """Count naks; the question for the start of a stream is none."""
        self.naks += bool(frame.ranges)

    def close(self) -> None:
        """Compare with what the network lost, where only loss was at work."""
        cost = self.oracle.cost
        if cost is None:
            return
        lost, bursts = cost
        most = 1.5 * lost + bursts
        if self.repairs > most:
            self.fail(
                f"{self.repairs} repairs for {lost} lost data frames in {bursts} bursts, at most {most:.0f}"
            )
        if not lost and self.naks:
            self.fail(f"{self.naks} naks, but nothing was lost")


class SilenceChecker(InvariantChecker):
    """Silence: a group at rest sends nothing but answers to what still arrives late."""

    id = "S16"
    only_when_idle = True

    def _frame_sent(self, life: MemberModel, to: Address | None, frame: Ack | Tail | Gone) -> None:
        oracle = self.oracle
        if oracle.t_ns > oracle.last_arrival_ns + 2 * self.config.ack_delay_ns:
            self.fail(f"{life.name} sends {frame} to {to} at rest")

    ack_out = tail_out = gone_out = _frame_sent
