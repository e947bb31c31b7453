"""A lossy group at work, measured: what ``gapless demo`` shows.

Members send batches at a steady pace over a network that loses a share of all frames. Every check of the simulator
looks on. Latency is virtual time from the number of a message to its delivery at another member.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from gapless.config import Config
from gapless.run import Run
from gapless.sim.faults import Loss
from gapless.sim.naming import node_name
from gapless.sim.script import Script, Send, opening, payload
from gapless.sim.seeds import split
from gapless.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.core.ready import Ready
    from gapless.sim.hosts import Host

BATCH = 10
"""Messages per send."""
PACE_NS = 1_000_000
"""Time between two sends of one member."""
DELAY_NS = 200_000
"""How long a frame takes."""
SIZE_BYTES = 100
"""Size of a message."""
_SLICES = 100


@dataclass(slots=True)
class Shown:
    """What came of the group at work."""

    sent: int = 0
    delivered: int = 0
    expected: int = 0
    frames_lost: int = 0
    naks: int = 0
    repairs: int = 0
    p50_ns: int = 0
    p99_ns: int = 0
    violations: int = 0
    simulated_ns: int = 0

    @property
    def lost(self) -> int:
        """Messages that somebody should have got and has not."""
        return max(0, self.expected - self.delivered)


class _Meter:
    """Counts deliveries at others than the origin, and how long they took."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.delivered = 0
        self.latency_ns: Counter[int] = Counter()

    def __call__(self, host: Host, ready: Ready) -> None:
        for delivery in ready.deliveries:
            content = delivery.content
            if delivery.origin != host.address and isinstance(content, Run):
                self.delivered += content.count
                self.latency_ns[self.world.now_ns - content.sent_ns] += content.count

    def percentile_ns(self, percent: int) -> int:
        """Return the latency that ``percent`` of all deliveries did not exceed."""
        values = sorted(self.latency_ns)
        sums = list(accumulate(self.latency_ns[value] for value in values))
        return values[bisect_left(sums, sums[-1] * percent / 100)] if values else 0


def show(members: int, messages: int, loss: float, seed: int, progress: Callable[[int], None]) -> Shown:
    """Run a group in which each of ``members`` sends ``messages``; ``progress`` is told per cents."""
    names = tuple(node_name(number + 1) for number in range(members))
    actions = opening(names)
    for first in range(0, messages, BATCH):
        for name in names:
            numbers = range(first + 1, min(first + BATCH, messages) + 1)
            batch = tuple(payload(name, number, SIZE_BYTES) for number in numbers)
            actions.append(Send((first // BATCH) * PACE_NS, name, batch))
    end_ns = actions[-1].at_ns + PACE_NS
    script = Script(seed, DELAY_NS, end_ns, actions=actions, only_loss=True)
    world = World(Config(), script, faults=[Loss(split(seed, "loss"), (loss,))])
    meter = world.on_ready = _Meter(world)
    for part in range(1, _SLICES + 1):
        world.run_until(end_ns * part // _SLICES)
        progress(part)
    world.run()
    counters: Counter[str] = Counter()
    for host in world.hosts.values():
        assert host.member is not None
        counters.update(host.member.counters)
    return Shown(
        sent=members * messages,
        delivered=meter.delivered,
        expected=members * (members - 1) * messages,
        frames_lost=world.network.chain.struck["loss"],
        naks=counters["sent.nak"],
        repairs=counters["sent.repair"],
        p50_ns=meter.percentile_ns(50),
        p99_ns=meter.percentile_ns(99),
        violations=len(world.judge.violations),
        simulated_ns=world.now_ns,
    )
