"""Repairs: the runs that an origin sends again.

On a NAK from P: every requested run that is still stored is sent again, lowest first. Held back are
runs repaired to P, or to all, a moment ago (a second NAK was in flight or duplicated), and runs
over the byte budget of the interval; the receiver requests held runs again. Purged runs are
answered with GONE.

Repairs without a NAK (a last message, a message to be acknowledged) wait once for requested repairs
over the budget.

A repair goes to the requester, or to all (``use_mcast_xmit``). With ``auto`` a repair goes to all
as soon as a second member requests the same run within the moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import Address
from gapless.protocol import buggify
from gapless.protocol.stream import ranges
from gapless.run import Run
from gapless.wire.codec import run_room_bytes
from gapless.wire.frames import Data

if TYPE_CHECKING:
    from gapless.config import Config
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.window import Window
    from gapless.wire.frames import Range


class _RecentRepair(NamedTuple):
    """A repair of the last moment; ``to`` is None for a multicast."""

    first: int
    last: int
    to: Address | None
    at_ns: int


class RepairPlan(NamedTuple):
    """The answer to a NAK: runs to send, and held-back ranges with the reason."""

    to: Address | None
    runs: list[Run]
    repeated: list[Range]
    over_budget: list[Range]


class RetransmitHandler:
    """The recent repairs, and the byte budget of the interval."""

    __slots__ = (
        "_config",
        "_interval_ns",
        "_recent",
        "_room_bytes",
        "_spent_bytes",
        "_unicast",
        "starved",
        "suppress_ns",
    )

    def __init__(self, config: Config, epoch: int = 0, *, unicast: bool = False) -> None:
        self._config = config
        self._unicast = unicast
        self._room_bytes = run_room_bytes(config.max_frame_bytes, epoch)
        self.starved = False
        self.suppress_ns = config.min_retry_ns // 2
        self._recent: list[_RecentRepair] = []
        self._interval_ns = 0
        self._spent_bytes = 0

    def plan_repairs(
        self,
        requester: Address,
        asked: list[Range],
        window: Window,
        now_ns: int,
        *,
        to_all: bool = False,
    ) -> RepairPlan:
        """Return which of the ``asked`` ranges are repaired now, and the receiver of the repair.

        ``to_all`` prefers a multicast, where the configuration leaves the choice open.
        """
        self._recent = [done for done in self._recent if now_ns - done.at_ns < self.suppress_ns]
        to = self._destination(requester, asked)
        if to_all and self._config.use_mcast_xmit == "auto" and not self._unicast:
            to = None
        done = [
            (entry.first, entry.last)
            for entry in self._recent
            if entry.to is None or entry.to == requester
        ]
        # A NAK that crossed its repair, or was duplicated, must not cause the repair twice.
        wanted = ranges.subtract(asked, ranges.merge(done))
        runs: list[Run] = []
        over_budget: list[Range] = []
        found = (run for first, last in wanted for run in window.get(first, last))
        # A stored run may be larger than a frame: its messages were sent together, or came from an
        # origin with larger frames.
        for run in (part for whole in found for part in whole.split_to_fit(self._room_bytes)):
            if self.spend_budget(run.size_bytes, now_ns):
                runs.append(run)
                self._recent.append(_RecentRepair(run.first, run.last, to, now_ns))
            else:
                over_budget.append((run.first, run.last))
        self.starved = bool(over_budget)
        assert to is None or to == requester, "a repair goes to its requester or to all"
        return RepairPlan(to, runs, ranges.subtract(asked, wanted), over_budget)

    def apply_config(self, config: Config) -> None:
        """Apply another configuration."""
        self._config = config

    def _destination(self, requester: Address, asked: list[Range]) -> Address | None:
        """Return the destination of a repair: the requester, or None for all."""
        # A connection has one receiver.
        choice = "never" if self._unicast else self._config.use_mcast_xmit
        if choice != "auto":
            return None if choice == "always" else requester
        # ``auto``: a second member lacks the same run, so others may lack it too.
        others = [(entry.first, entry.last) for entry in self._recent if entry.to != requester]
        return None if ranges.subtract(asked, ranges.merge(others)) != asked else requester

    def spend_budget(self, size_bytes: int, now_ns: int) -> bool:
        """Take ``size_bytes`` from the budget of the interval; return False if exhausted."""
        assert size_bytes >= 0, "a repair has a size"
        if now_ns - self._interval_ns >= self._config.xmit_interval_ns:
            self._interval_ns = now_ns
            self._spent_bytes = 0
        # Over the budget: the receiver asks again, later (P-11).
        if self._spent_bytes + size_bytes > self._config.repair_budget_bytes:
            return False
        self._spent_bytes += size_bytes
        return True

    def check_invariants(self) -> None:
        """Raise AssertionError if the repair budget is overspent."""
        spent_bytes, budget_bytes = self._spent_bytes, self._config.repair_budget_bytes
        assert 0 <= spent_bytes <= budget_bytes, (
            f"{spent_bytes} bytes of repairs in an interval, the budget is {budget_bytes}"
        )
        assert self.suppress_ns >= 0, "repairs are suppressed for a time that is not negative"
        for repair in self._recent:
            assert 0 < repair.first <= repair.last, f"{repair} repaired no message"

    def reset(self) -> None:
        """Forget recent repairs: a search over all orders may let any time pass."""
        self._recent = []
        self._spent_bytes = 0
        self.starved = False


def send_repairs(
    repairs: RetransmitHandler,
    window: Window,
    peer: Address,
    asked: list[Range],
    epoch: int,
    origin: Address,
    out: ReadyBuilder,
) -> None:
    """Answer a NAK of ``peer``; every ``asked`` range is in the window or nowhere."""
    to_all = bool(out.rarely and out.rarely(buggify.REPAIR_TO_ALL))
    answer = repairs.plan_repairs(peer, asked, window, out.now_ns, to_all=to_all)
    for run in answer.runs:
        out.trace("REPAIR", origin, run.first, run.last, peer=answer.to, epoch=epoch, run=run)
        out.transmit(answer.to, Data(run, True, epoch))
        out.count("sent.repair")
    # Repairs that are held back are traced: S10 accepts no other reason.
    for reason, held in (("repeat", answer.repeated), ("budget", answer.over_budget)):
        for first, last in held:
            out.trace("SUPPRESSED", origin, first, last, peer=peer, reason=reason, epoch=epoch)
