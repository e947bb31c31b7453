"""Joins under load: members join while a sender never stops, and views are slow.

Here a group with acks can deadlock (P-01): while a view is in transit, only some members count a
new member. A joiner that waits for purged messages acknowledges nothing, and blocks every sender.
In the experiment a small group takes in joiners in sequence. The second member sends; the second
member is not the coordinator, so the view arrives late at the sender. Each joiner is watched, then
leaves, so that the group does not grow.

Every message sent while a receiver is in the sender's view must reach the receiver; no earlier
message may.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from experiments.light_world import LightNode, LightWorld
from gapless.config import Config
from gapless.sim.runner import results
from gapless.units import NS_PER_MS, NS_PER_S
from gapless.wire.frames import NewView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.wire.frames import Frame

DELAY_NS = 10 * NS_PER_MS
"""Delay of a frame without a view."""
SMALL_CAPACITY = 64
"""The capacity of the small window."""
SIZE_BYTES = 40
"""Size of a message: a quarter of the small window fits a frame."""
BURST = 10
"""Number of messages in a burst of a paced sender."""
MAX_PAUSE_NS = 2 * NS_PER_S
"""Maximum time without a message on the network before a sender counts as stuck."""
WATCH_NS = NS_PER_S
"""How long a joiner is watched after its first delivery."""

_FORMING_NS = 60 * NS_PER_S
_PATIENCE_NS = 15 * NS_PER_S
_AHEAD = 2
_CALM_NS = 3 * NS_PER_S
_LOSSY_CALM_NS = 20 * NS_PER_S  # the longest of many pauses takes its time


class JoinParameters(NamedTuple):
    """The parameters of a row: delay of views, number of joins, window, and network faults.

    With ``pace_ns`` the sender sends ``BURST`` messages at intervals of ``pace_ns``; without, as
    many as the window takes.
    """

    view_delay_ns: int
    joins: int = 20
    capacity: int = SMALL_CAPACITY
    pace_ns: int = 0
    loss_percent: float = 0.0
    members: int = 4
    seed: int = 1


@dataclass(slots=True)
class JoinResult:
    """The result of a setting.

    ``pause_ns`` is the longest time without a new message of the sender while members joined,
    ``baseline_ns`` the same without joins, ``leave_pause_ns`` the same while members left.
    ``join_ns`` has, for each finished join, the time from the first join request to the first
    delivered message.
    """

    parameters: JoinParameters
    joins: int = 0
    stuck: int = 0
    lost: int = 0
    before_view: int = 0
    baseline_ns: int = 0
    pause_ns: int = 0
    leave_pause_ns: int = 0
    sent: int = 0
    delivered: int = 0
    simulated_ns: int = 0
    join_ns: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def median_join_ns(self) -> int | None:
        """How long half of the joins took at most."""
        return int(median(self.join_ns)) if self.join_ns else None

    @property
    def ok(self) -> bool:
        """Whether no member got stuck, and each member received exactly its messages."""
        return not (self.stuck or self.lost or self.before_view or self.problems)


def parameter_grid(joins: int = 20, members: int = 4, seed: int = 1) -> list[JoinParameters]:
    """Return the rows of the experiment: three delays with each window, and a row with loss."""
    delays_ns = (NS_PER_S // 10, 6 * NS_PER_S // 10, 2 * NS_PER_S)
    common = {"joins": joins, "members": members, "seed": seed}
    default = Config().capacity
    small = [JoinParameters(delay_ns, **common) for delay_ns in delays_ns]
    large = [
        JoinParameters(delay_ns, capacity=default, pace_ns=BURST * NS_PER_MS, **common)
        for delay_ns in delays_ns
    ]
    return [*small, *large, JoinParameters(delays_ns[1], loss_percent=5.0, **common)]


def join_under_load(
    rows: Sequence[JoinParameters],
    *,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[JoinResult]:
    """Run every setting, in ``workers`` processes; ``progress`` receives how many are done."""
    found = []
    for done, row in enumerate(results([partial(run_trial, row) for row in rows], workers), 1):
        found.append(row)
        if progress is not None:
            progress(done)
    return found


def run_trial(setting: JoinParameters) -> JoinResult:
    """Form a group, let a member send, and let others join and leave."""
    return _JoinTrial(setting).run()


class _JoinTrial:
    """A running setting."""

    def __init__(self, setting: JoinParameters) -> None:
        self.parameters = setting
        self.row = JoinResult(setting)
        self.world = LightWorld(
            Config.make(capacity=setting.capacity), seed=setting.seed, delay_ns=DELAY_NS
        )
        self.sender: LightNode | None = None

    def run(self) -> JoinResult:
        """Run the trial, and count."""
        setting, row, crowd = self.parameters, self.row, self.world
        self._form()
        assert self.sender is not None
        crowd.run(NS_PER_S)
        self.sender.pause_ns(crowd.now_ns)  # from here on the sender is at its speed
        crowd.run(_LOSSY_CALM_NS if setting.loss_percent else _CALM_NS)
        row.baseline_ns = self.sender.pause_ns(crowd.now_ns)
        for number in range(setting.joins):
            self._join(setting.members + 1 + number)
        self._end()
        row.sent, row.delivered = self.sender.sent, crowd.delivered
        row.problems = crowd.problems
        row.simulated_ns = crowd.now_ns
        return row

    def _form(self) -> None:
        """Form the group in peace; then views become slow, and the sender begins."""
        setting, crowd = self.parameters, self.world
        for number in range(1, setting.members + 1):
            crowd.join(number)
            crowd.run(_FORMING_NS, crowd.has_converged)
        crowd.run(NS_PER_S)
        if not crowd.has_converged():
            crowd.problems.append("the group did not form")
        crowd.loss = setting.loss_percent / 100
        crowd.extra_delay_ns = partial(_view_delay, setting.view_delay_ns)
        sender = self.sender = crowd.nodes[2]
        if setting.pace_ns:
            crowd.schedule(crowd.now_ns, self._send_some)
        else:
            sender.refill = self._keep_sending
            sender.refill()

    def _keep_sending(self) -> None:
        """Keep the sender's queue full."""
        node = self.sender
        assert node is not None
        if (
            node.refill is not None
            and node.member is not None
            and node.numbered - node.sent < self.parameters.capacity
        ):
            self.world.send(node, _AHEAD * self.parameters.capacity, SIZE_BYTES)

    def _send_some(self) -> None:
        node = self.sender
        assert node is not None
        if node.member is not None and not self._stopped:
            self.world.send(node, BURST, SIZE_BYTES)
            self.world.schedule(self.world.now_ns + self.parameters.pace_ns, self._send_some)

    _stopped = False

    def _join(self, number: int) -> None:
        """Let a member join, watch the member, let the member leave."""
        row, crowd, sender = self.row, self.world, self.sender
        assert sender is not None
        row.joins += 1
        sender.pause_ns(crowd.now_ns)
        asked_ns = crowd.now_ns
        joiner = crowd.join(number)
        patience_ns = _PATIENCE_NS + 5 * self.parameters.view_delay_ns
        began = crowd.run(patience_ns, lambda: sender.address in joiner.received)
        if began:
            row.join_ns.append(crowd.now_ns - asked_ns)
        # What is sent in this time must reach the joiner, and the sender must not stand still at
        # its end.
        crowd.run(WATCH_NS)
        meant = sender.sent
        came = crowd.run(patience_ns, lambda: self._has_received(joiner, meant))
        still_ns = crowd.now_ns - sender.last_sent_ns
        row.pause_ns = max(row.pause_ns, sender.pause_ns(crowd.now_ns))
        moves = meant > sender.counted_from.get(joiner.address, meant)
        if began and came and moves and still_ns <= MAX_PAUSE_NS:
            self._count_mismatch(joiner, meant)
            self._leave(joiner)
        else:
            row.stuck += 1
            self._count_mismatch(joiner, meant)
            self._remove(joiner)

    def _has_received(self, receiver: LightNode, upto: int) -> bool:
        assert self.sender is not None
        span = receiver.received.get(self.sender.address)
        return span is not None and span.last >= upto

    def _count_mismatch(self, receiver: LightNode, upto: int) -> None:
        assert self.sender is not None
        gap = self.world.compare_deliveries(self.sender, receiver, upto)
        self.row.lost += gap.lost
        self.row.before_view += gap.before_view

    def _leave(self, joiner: LightNode) -> None:
        crowd, sender = self.world, self.sender
        assert sender is not None
        crowd.leave(joiner)
        patience_ns = _PATIENCE_NS + 5 * self.parameters.view_delay_ns
        crowd.run(patience_ns, lambda: joiner.ended is not None and crowd.has_converged())
        self.row.leave_pause_ns = max(self.row.leave_pause_ns, sender.pause_ns(crowd.now_ns))
        if joiner.ended is None:
            crowd.problems.append(f"{joiner.address} could not leave")
            self._remove(joiner)

    def _remove(self, joiner: LightNode) -> None:
        """Remove a stuck member, and wait until the group has expelled the member."""
        if joiner.member is not None:
            self.world.crash(joiner)
        self.world.run(
            2 * _PATIENCE_NS + 5 * self.parameters.view_delay_ns, self.world.has_converged
        )

    def _end(self) -> None:
        """Stop the sender, wait for datagrams in flight, then compare."""
        crowd, sender = self.world, self.sender
        assert sender is not None
        sender.refill, self._stopped = None, True
        upto = sender.numbered
        others = [node for node in crowd.live_nodes.values() if node is not sender]
        crowd.run(
            _PATIENCE_NS,
            lambda: sender.sent >= upto and all(self._has_received(node, upto) for node in others),
        )
        for node in others:
            self._count_mismatch(node, upto)


def _view_delay(view_delay_ns: int, frame: Frame) -> int:
    return view_delay_ns if isinstance(frame, NewView) else 0
