"""How costs and times grow with the group: the same story for each number of members.

All members join at once and stay idle for a while. A few members send. Another member joins, and a
member leaves. Then, under a light load, two more members join, a new member crashes, and the
coordinator crashes. Frames are counted on every link. Times are virtual; the network takes
``DELAY_NS`` and loses nothing, and a process is busy for ``HANDLING_NS`` with each read or written
datagram, in sequence.

At each size ``experiments.light_world`` checks: views (S15), no hole, no repetition, every message
delivered at every receiver of its view, and no other message.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, NamedTuple

from experiments.light_world import LightNode, LightWorld
from gapless.config import Config
from gapless.sim.runner import results
from gapless.units import NS_PER_MS, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MEMBERS = (2, 10, 50, 100, 300)
"""The sizes of the group, by default."""
DELAY_NS = NS_PER_MS
"""How long a frame takes."""
HANDLING_NS = 10 * NS_PER_US
"""How long a process is busy with a datagram."""
SENDERS = 3
"""So many members send, spread over the group."""
SIZE_BYTES = 100
"""The size of a message."""
PACE_NS = 5 * NS_PER_MS
"""A sender sends a message so often."""
IDLE_NS = 10 * NS_PER_S
"""How long the group is idle while heartbeats are counted."""
ONE_BY_ONE = 50
"""Maximum size of a group that is also formed by joins in sequence."""

_TRICKLE_NS = 250 * NS_PER_MS
_AFTERMATH_NS = 200 * NS_PER_MS
_SETTLE_NS = 5 * NS_PER_S
_PATIENCE_NS = 60 * NS_PER_S


class TrafficCost(NamedTuple):
    """Frames and bytes by kind, on every link."""

    frames: dict[str, int]
    sizes_bytes: dict[str, int]

    @property
    def control_frames(self) -> int:
        """All frames except data."""
        return sum(self.frames.values()) - self.frames.get("DATA", 0)

    @property
    def control_bytes(self) -> int:
        """The bytes of all frames except data."""
        return sum(self.sizes_bytes.values()) - self.sizes_bytes.get("DATA", 0)


class MembershipChangeCost(NamedTuple):
    """The cost of a change of the membership.

    ``total_ns`` is the time until all members are in the view after the change (None if never),
    ``view_ns`` the time from the first installation of the view to the last. ``cost`` includes the
    traffic right after the change.
    """

    total_ns: int | None
    view_ns: int | None
    views: int
    cost: TrafficCost


@dataclass(slots=True)
class GroupSizeResult:
    """The measurements with a number of members.

    ``started_ns`` is the time from the start of the join until the new member knows the start of
    every other stream.
    """

    members: int
    form: MembershipChangeCost
    one_by_one: MembershipChangeCost | None
    idle: TrafficCost
    load: TrafficCost
    sent: int
    delivered: int
    changes: dict[str, MembershipChangeCost]
    started_ns: int | None = None
    lost: int = 0
    before_view: int = 0
    events: int = 0
    cpu_s: float = 0.0
    frames: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def heartbeats(self) -> float:
        """Heartbeats sent by a member of an idle group in a second."""
        return self.idle.frames.get("ALIVE", 0) * NS_PER_S / IDLE_NS / self.members

    @property
    def control_frames_per_message(self) -> float:
        """Frames other than data, for each delivered message."""
        return self.load.control_frames / max(1, self.delivered)

    @property
    def control_bytes_per_message(self) -> float:
        """Bytes of frames other than data, for each delivered message."""
        return self.load.control_bytes / max(1, self.delivered)

    @property
    def control_frames_per_send(self) -> float:
        """Control frames per sent message, most of which go to the sender."""
        return self.load.control_frames / max(1, self.sent)

    @property
    def join_ns(self) -> int | None:
        """How long until another member was in the view of all."""
        return self.changes["join"].total_ns

    @property
    def view_ns(self) -> int | None:
        """How long the view of the join took from the first member to the last."""
        return self.changes["join"].view_ns

    @property
    def ok(self) -> bool:
        """Whether all checks passed."""
        unfinished = [
            change for change in (self.form, *self.changes.values()) if change.total_ns is None
        ]
        return not (self.lost or self.before_view or self.problems or unfinished)


def scale(
    sizes: Sequence[int] = MEMBERS,
    *,
    messages: int = 100,
    seed: int = 1,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[GroupSizeResult]:
    """Measure every size, in ``workers`` processes; ``progress`` receives how many are done."""
    found = []
    tasks = [partial(measure, members, messages=messages, seed=seed) for members in sizes]
    for done, size in enumerate(results(tasks, workers), 1):
        found.append(size)
        if progress is not None:
            progress(done)
    return found


def measure(
    members: int, *, messages: int = 100, seed: int = 1, one_by_one: bool | None = None
) -> GroupSizeResult:
    """Measure a size."""
    began_s = process_time()
    run = _ScaleRun(members, messages, seed)
    size = run.run()
    if members <= ONE_BY_ONE if one_by_one is None else one_by_one:
        size.one_by_one, problems = _form_one_by_one(members, seed)
        size.problems += problems
    size.cpu_s = process_time() - began_s
    return size


def _form_one_by_one(members: int, seed: int) -> tuple[MembershipChangeCost, list[str]]:
    """Form a group by joins in sequence, each after the previous join is complete."""
    crowd = LightWorld(Config.make(), seed=seed, delay_ns=DELAY_NS, handling_ns=HANDLING_NS)
    meter = _TrafficMeter(crowd)
    formed = True
    for number in range(1, members + 1):
        crowd.join(number)
        formed = formed and crowd.run(_PATIENCE_NS, crowd.has_converged)
    return meter.change(formed), crowd.problems


class _TrafficMeter:
    """Counts traffic from its creation on."""

    def __init__(self, crowd: LightWorld) -> None:
        self.world = crowd
        self.began_ns = crowd.now_ns
        self.frames, self.sizes_bytes = Counter(crowd.frames), Counter(crowd.sizes_bytes)
        self.delivered = crowd.delivered
        self.views = set(crowd.installed)

    def cost(self) -> TrafficCost:
        """Return the traffic since the creation of the meter."""
        crowd = self.world
        frames = {kind: count - self.frames[kind] for kind, count in crowd.frames.items()}
        sizes_bytes = {
            kind: count - self.sizes_bytes[kind] for kind, count in crowd.sizes_bytes.items()
        }
        kinds = sorted(kind for kind, count in frames.items() if count)
        return TrafficCost(
            {kind: frames[kind] for kind in kinds}, {kind: sizes_bytes[kind] for kind in kinds}
        )

    def change(self, done: bool) -> MembershipChangeCost:
        """Return the cost of a change that is ``done`` now."""
        crowd = self.world
        new = [view for view in crowd.installed if view not in self.views]
        total_ns = view_ns = None
        if done:
            total_ns = crowd.now_ns - self.began_ns
            first_ns, last_ns, _ = (
                crowd.installed[crowd.latest_view.id] if crowd.latest_view else (0, 0, 0)
            )
            view_ns = last_ns - first_ns
        return MembershipChangeCost(total_ns, view_ns, len(new), self.cost())


class _ScaleRun:
    """The story of a size."""

    def __init__(self, members: int, messages: int, seed: int) -> None:
        self.members = members
        self.messages = messages
        self.world = LightWorld(
            Config.make(), seed=seed, delay_ns=DELAY_NS, handling_ns=HANDLING_NS
        )
        self.senders: list[LightNode] = []
        self.trickles = False
        self.started_ns: int | None = None

    def run(self) -> GroupSizeResult:
        """Run the story, and measure."""
        crowd = self.world
        meter = _TrafficMeter(crowd)
        for number in range(1, self.members + 1):
            crowd.join(number)
        form = meter.change(crowd.run(_PATIENCE_NS, crowd.has_converged))
        crowd.run(
            _AFTERMATH_NS
        )  # the view is there: now each member announces its stream to all others
        form = form._replace(cost=meter.cost())
        crowd.run(_SETTLE_NS - _AFTERMATH_NS)
        meter = _TrafficMeter(crowd)
        crowd.run(IDLE_NS)
        idle = meter.cost()
        load, delivered = self._load()
        changes = self._changes()
        lost, before_view = self._count_mismatch()
        return GroupSizeResult(
            self.members,
            form,
            None,
            idle,
            load,
            self.messages * len(self.senders),
            delivered,
            changes,
            self.started_ns,
            lost,
            before_view,
            crowd.events,
            frames=dict(sorted(crowd.frames.items())),
            problems=crowd.problems,
        )

    def _load(self) -> tuple[TrafficCost, int]:
        """Let a few members send; return the cost until all is acknowledged, and deliveries."""
        crowd, members = self.world, self.members
        # The coordinator is to crash later, and so is the second member: others send where there
        # are others.
        places = sorted({max(1, members - at * members // SENDERS) for at in range(SENDERS)})
        self.senders = [crowd.nodes[number] for number in places]
        meter = _TrafficMeter(crowd)
        for nth, node in enumerate(self.senders):
            for number in range(self.messages):
                crowd.schedule(
                    crowd.now_ns + number * PACE_NS + nth * NS_PER_MS,
                    crowd.send,
                    node,
                    1,
                    SIZE_BYTES,
                )
        crowd.run(self.messages * PACE_NS + NS_PER_S)
        return meter.cost(), crowd.delivered - meter.delivered

    def _changes(self) -> dict[str, MembershipChangeCost]:
        """Change the membership in every way, in sequence."""
        crowd, changes = self.world, {}
        changes["join"] = self._change(lambda: crowd.join(self.members + 1))
        leaver = crowd.nodes[self.members + 1]
        changes["leave"] = self._change(lambda: crowd.leave(leaver))
        # So far nothing was sent, to see what the changes cost by themselves.
        self.trickles = True
        for node in self.senders:
            self._trickle(node)
        # So that there is one to crash beside the coordinator, and one that stays, in the smallest
        # group too.
        for number in (self.members + 2, self.members + 3):
            crowd.join(number)
            crowd.run(_PATIENCE_NS, crowd.has_converged)
        crowd.run(_SETTLE_NS)
        changes["crash"] = self._change(lambda: crowd.crash(crowd.nodes[self.members + 2]))
        changes["coordinator crash"] = self._change(lambda: crowd.crash(crowd.nodes[1]))
        self.trickles = False
        crowd.run(_SETTLE_NS)
        return changes

    def _trickle(self, node: LightNode) -> None:
        if self.trickles and node.member is not None:
            self.world.send(node, 1, SIZE_BYTES)
            self.world.schedule(self.world.now_ns + _TRICKLE_NS, self._trickle, node)

    def _change(self, begin: Callable[[], object]) -> MembershipChangeCost:
        """Change the membership; wait until all are in a new view, then until all is quiet."""
        crowd = self.world
        view = crowd.latest_view
        meter = _TrafficMeter(crowd)
        begin()
        change = meter.change(
            crowd.run(_PATIENCE_NS, lambda: crowd.latest_view is not view and crowd.has_converged())
        )
        if self.started_ns is None:
            self.started_ns = self._until_started(meter.began_ns)
        crowd.run(_AFTERMATH_NS)
        change = change._replace(cost=meter.cost())
        crowd.run(2 * NS_PER_S)
        return change

    def _until_started(self, began_ns: int) -> int | None:
        """Return the time from ``began_ns`` until the new member knows every stream."""
        crowd, joiner = self.world, self.world.nodes[self.members + 1]
        knows = crowd.run(NS_PER_S, lambda: len(joiner.started) >= self.members)
        return crowd.now_ns - began_ns if knows else None

    def _count_mismatch(self) -> tuple[int, int]:
        """Compare the deliveries of each member with the messages sent."""
        senders = [node for node in self.senders if node.member is not None]
        pairs = [(s, r) for s in senders for r in self.world.live_nodes.values() if r is not s]
        gaps = [
            self.world.compare_deliveries(sender, receiver, sender.numbered)
            for sender, receiver in pairs
        ]
        return sum(gap.lost for gap in gaps), sum(gap.before_view for gap in gaps)
