"""The cost of every profile for the same work, on the same lossy network.

Each cell is a simulated world with all checks. Every member sends the same messages at the same
times: to the group, or to the next member with a unicast profile. A frame takes ``DELAY_NS``. Every
link loses the given share of frames in both directions, until well after the last send.

A second measurement loses a single frame, and measures how long the delivery of the lost message
takes if the message is the first, the last or the only message. Protocols of similar cost differ
most there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from gapless.config import UNICAST_PROFILE_NAMES, Config
from gapless.faults.faults import NEVER_NS, Loss, Targeted
from gapless.faults.frame_names import incarnation_address, kind_of, node_name
from gapless.protocol.events import Stalled
from gapless.rng import split
from gapless.sim.checkers.liveness import DeliveryDeadlineChecker, StabilityDeadlineChecker
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.mutants.catalogue import plant
from gapless.sim.runner import results, seed_result
from gapless.sim.scenario.scenario_file import format_settings
from gapless.sim.script import Script, SendMessages, initial_actions, payload
from gapless.sim.seed_result import SeedResult
from gapless.sim.swarm.profile_draw import ALL_PROFILES
from gapless.sim.world.world import World
from gapless.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_duration
from gapless.wire import decode
from gapless.wire.codec import size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gapless.faults.faults import Fault
    from gapless.identity import Address
    from gapless.protocol.ready import Ready
    from gapless.sim.oracle.oracle import InvariantViolation
    from gapless.sim.world.host import Host
    from gapless.sim.world.tracer import RunTracer

DELAY_NS = NS_PER_MS
"""How long a frame takes."""
LOSSES = (0.0, 1.0, 5.0, 10.0)
"""The default shares of lost frames, in per cent."""
MAX_LOSS_PERCENT = 50
"""Maximum share of lost frames, in per cent."""
MEMBERS = range(2, 27)
"""How many members a group may have."""
MAX_MESSAGES = 100_000
"""Maximum number of messages of a member."""
MAX_SIZE_BYTES = 1_000_000
"""The largest message."""
PACES_NS = range(NS_PER_US, NS_PER_S + 1)
"""How much time may lie between two messages of a member."""

KINDS = ("data", "repair", "ack", "nak", "tail", "stability", "other")
"""The kinds of frames in the count."""

LOST_FRAMES = ("only", "first", "last")
"""The single losses: of the only message, or of the first or last of several."""
SINGLE_LOSS_MESSAGES = 10
"""The number of messages in a run that loses a single frame."""

_KIND_OF_WORD = {
    "DATA": "data",
    "REPAIR": "repair",
    "ACK": "ack",
    "OOBACK": "ack",
    "NAK": "nak",
    "TAIL": "tail",
    "VOTE": "stability",
    "STABLE": "stability",
}
_PATIENCE_NS = 60 * NS_PER_S


class ProfileWorkload(NamedTuple):
    """The work of every member: ``messages`` of ``size_bytes``, at intervals of ``pace_ns``."""

    members: int = 3
    messages: int = 300
    size_bytes: int = 100
    pace_ns: int = NS_PER_MS
    seed: int = 1


@dataclass(slots=True)
class ProfileCell:
    """The figures of a profile at a given loss.

    ``expected`` and ``delivered`` count messages at members other than their sender. ``frames`` and
    ``sizes_bytes`` count the traffic on all links by kind, lost frames included. ``span_ns`` ends
    with the last delivery, or with the last send if the last send was later. ``peak_window`` is the
    maximum number of outstanding messages of a sender, ``stalls`` the number of reported gaps.
    ``latency_ns`` counts deliveries by latency; ``outcome`` is the result of the simulated run.
    """

    profile: str
    loss_percent: float
    sent: int
    expected: int
    delivered: int = 0
    span_ns: int = 0
    p50_ns: int | None = None
    p99_ns: int | None = None
    max_ns: int | None = None
    frames: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    sizes_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    frames_lost: int = 0
    peak_window: int = 0
    stalls: int = 0
    violations: list[InvariantViolation] = field(default_factory=list)
    latency_ns: Mapping[int, int] = field(default_factory=dict)
    outcome: SeedResult | None = None

    @property
    def to_all(self) -> bool:
        """Whether the messages went to the whole group."""
        return self.profile not in UNICAST_PROFILE_NAMES

    @property
    def per_second(self) -> float:
        """Messages delivered in a second of virtual time, by all members together."""
        return self.delivered * NS_PER_S / self.span_ns if self.span_ns else 0.0

    def per_message(self, count: int) -> float:
        """Return ``count`` (frames or bytes) per delivered message; ``count`` if there was none."""
        return count / max(1, self.delivered)


@dataclass(slots=True)
class SingleLoss:
    """How long the delivery of a message with a lost frame took; None if never delivered."""

    profile: str
    delivered_ns: dict[str, int | None] = field(default_factory=dict)
    violations: list[InvariantViolation] = field(default_factory=list)


@dataclass(slots=True)
class ProfileComparison:
    """All cells, and the single losses."""

    work: ProfileWorkload
    cells: list[ProfileCell] = field(default_factory=list)
    single: list[SingleLoss] = field(default_factory=list)

    @property
    def violations(self) -> list[InvariantViolation]:
        """Every violation of an invariant, in any of the worlds."""
        parts: list[ProfileCell | SingleLoss] = [*self.cells, *self.single]
        return [violation for part in parts for violation in part.violations]


class _ProfileMeter:
    """Counts outgoing frames, and measures the latency of every delivery.

    The messages of an origin are delivered in order and without a gap, so the count of deliveries
    identifies the message.
    """

    def __init__(self, world: World, sent_ns: dict[Address, list[int]], receivers: int) -> None:
        self.world = world
        self.sent_ns = sent_ns
        self.last_sent_ns = max(max(times_ns) for times_ns in sent_ns.values())
        self.receivers = receivers
        # A group that waits for a lost message votes for ever; that is no cost of its deliveries.
        self.until_ns = NEVER_NS if world.config.retransmits else world.script.calm_ns
        self.frames: Counter[str] = Counter()
        self.sizes_bytes: Counter[str] = Counter()
        self.latency_ns: Counter[int] = Counter()
        self.delivered = 0
        self.last_ns = 0
        self.peak_window = 0
        self.stalls: set[tuple[str, Stalled]] = set()
        self._received: Counter[tuple[str, Address]] = Counter()

    def __call__(self, host: Host, ready: Ready) -> None:
        if self.world.now_ns >= self.until_ns:
            return
        for to, datagram in ready.transmits:
            self._count(datagram, self.receivers if to is None else 1)
        for delivery in ready.deliveries:
            if delivery.origin != host.address:
                self._note_delivery(host, delivery.origin, delivery.message_count)
        self.stalls.update(
            (host.name, event) for event in ready.events if isinstance(event, Stalled)
        )
        assert host.member is not None
        for stream in (host.member.outbound, *host.member.connections.outbounds()):
            self.peak_window = max(self.peak_window, stream.window.high - stream.window.low)

    def _count(self, datagram: bytes, links: int) -> None:
        """Count a datagram on each of its links; the header counts for the first frame."""
        frames = decode(datagram).frames
        sizes_bytes = [size_bytes(frame) for frame in frames]
        sizes_bytes[0] += len(datagram) - sum(sizes_bytes)
        for frame, frame_bytes in zip(frames, sizes_bytes, strict=True):
            kind = _KIND_OF_WORD.get(kind_of(frame), "other")
            self.frames[kind] += links
            self.sizes_bytes[kind] += links * frame_bytes

    def _note_delivery(self, host: Host, origin: Address, messages: int) -> None:
        now_ns = self.last_ns = self.world.now_ns
        came = self._received[host.name, origin]
        self._received[host.name, origin] = came + messages
        self.delivered += messages
        for sent_ns in self.sent_ns[origin][came : came + messages]:
            self.latency_ns[now_ns - sent_ns] += 1

    def percentile_ns(self, percent: int) -> int | None:
        """Return the latency of ``percent`` of all deliveries; None without deliveries."""
        values = sorted(self.latency_ns)
        sums = list(accumulate(self.latency_ns[value] for value in values))
        return values[bisect_left(sums, sums[-1] * percent / 100)] if values else None


def config_of(profile: str, properties: str = "") -> Config:
    """Return the configuration of a profile, with the settings in ``properties``."""
    named = f"{'unicast' if profile in UNICAST_PROFILE_NAMES else 'profile'}={profile}"
    return Config.from_properties(f"{named};{properties}")


def properties_of(config: Config) -> str:
    """Return the settings that differ from the profile's defaults, as ``config_of`` reads them."""
    words = format_settings(config).split()
    return ";".join(word for word in words if word.partition("=")[0] not in {"profile", "unicast"})


def compare(
    profiles: Sequence[str] = ALL_PROFILES,
    losses: Sequence[float] = LOSSES,
    work: ProfileWorkload | None = None,
    *,
    properties: str = "",
    bug: str = "",
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> ProfileComparison:
    """Measure every profile at every loss, in per cent, in ``workers`` processes.

    ``properties`` are further settings, and ``bug`` is a mutant to plant. ``progress`` gets the
    number of finished worlds: a world for each profile and loss, and another world for each
    profile.
    """
    work = work or ProfileWorkload()
    configs = {profile: config_of(profile, properties) for profile in profiles}
    cells = [
        partial(run_cell, profile, loss, work, configs[profile], bug)
        for loss in losses
        for profile in profiles
    ]
    single = [partial(lose_one, profile, work.seed, configs[profile], bug) for profile in profiles]
    result = ProfileComparison(work)
    tasks: list[Callable[[], ProfileCell | SingleLoss]] = [*cells, *single]
    for done, part in enumerate(results(tasks, workers), 1):
        if isinstance(part, ProfileCell):
            result.cells.append(part)
        else:
            result.single.append(part)
        if progress is not None:
            progress(done)
    return result


def run_cell(
    profile: str,
    loss_percent: float,
    work: ProfileWorkload,
    config: Config | None = None,
    bug: str = "",
) -> ProfileCell:
    """Measure a profile at a given loss."""
    with plant(bug):
        world, meter = _whole_world(profile, loss_percent, work, config or config_of(profile))
        world.run()
    sent = work.members * work.messages
    return ProfileCell(
        profile,
        loss_percent,
        sent=sent,
        expected=sent if profile in UNICAST_PROFILE_NAMES else sent * (work.members - 1),
        delivered=meter.delivered,
        span_ns=max(meter.last_sent_ns, meter.last_ns),
        p50_ns=meter.percentile_ns(50),
        p99_ns=meter.percentile_ns(99),
        max_ns=meter.percentile_ns(100),
        frames={kind: meter.frames[kind] for kind in KINDS},
        sizes_bytes={kind: meter.sizes_bytes[kind] for kind in KINDS},
        frames_lost=world.network.chain.strike_counts.get("loss", 0),
        peak_window=meter.peak_window,
        stalls=len(meter.stalls),
        violations=world.oracle.violations,
        latency_ns=meter.latency_ns,
        outcome=seed_result(work.seed, "loss" if loss_percent else "calm", profile, world),
    )


def _whole_world(
    profile: str,
    loss_percent: float,
    work: ProfileWorkload,
    config: Config,
    *,
    record: bool = False,
) -> tuple[World, _ProfileMeter]:
    """Return the world in which every member does the work at a given loss, and the meter."""
    faults: list[Fault] = []
    if loss_percent:
        faults = [Loss(split(work.seed, "compare loss"), (loss_percent / 100,))]
    names = tuple(node_name(number + 1) for number in range(work.members))
    return _world(profile, work, names, names, faults, config, record=record)


class ProfileCellOrigin(NamedTuple):
    """The world of a cell, for the shrinker (see ``gapless.sim.shrink.shrinker``)."""

    seed: int
    messages: int
    profile: str
    loss_percent: float
    work: ProfileWorkload
    config: Config

    @property
    def command(self) -> str:
        """The command to repeat the run."""
        return compare_command(self.profile, self.loss_percent, self._work, self.config)

    @property
    def _work(self) -> ProfileWorkload:
        return self.work._replace(seed=self.seed, messages=self.messages)

    def world(self) -> World:
        """Return the world before its first event; the world records the run."""
        return _whole_world(self.profile, self.loss_percent, self._work, self.config, record=True)[
            0
        ]


def compare_command(
    profile: str, loss_percent: float, work: ProfileWorkload, config: Config, bug: str = ""
) -> str:
    """Return the command to run a cell again."""
    options = _options(loss_percent, work, config, bug)
    return f"gapless compare --profiles {profile} --seed {work.seed} {options}"


def shrink_command(
    profile: str, loss_percent: float, work: ProfileWorkload, config: Config, bug: str = ""
) -> str:
    """Return the command to shrink the run of a cell."""
    options = _options(loss_percent, work, config, bug)
    return f"gapless shrink {work.seed} --profile {profile} {options}"


def _options(loss_percent: float, work: ProfileWorkload, config: Config, bug: str) -> str:
    """Return the options of a cell for either command, without options at their defaults."""
    usual = ProfileWorkload()
    options = {
        "loss": f"{loss_percent:g}%",
        "members": "" if work.members == usual.members else str(work.members),
        "messages": "" if work.messages == usual.messages else str(work.messages),
        "size": "" if work.size_bytes == usual.size_bytes else str(work.size_bytes),
        "pace": "" if work.pace_ns == usual.pace_ns else format_duration(work.pace_ns),
        "properties": properties_of(config) and f'"{properties_of(config)}"',
        "mutant": bug and f'"{bug}"',
    }
    return " ".join(f"--{option} {value}" for option, value in options.items() if value)


def lose_one(
    profile: str, seed: int = 1, config: Config | None = None, bug: str = ""
) -> SingleLoss:
    """Lose a single frame between two members, in the three ways of ``LOST_FRAMES``."""
    result = SingleLoss(profile)
    config = config or config_of(profile)
    for what in LOST_FRAMES:
        messages = 1 if what == "only" else SINGLE_LOSS_MESSAGES
        lost = messages if what == "last" else 1
        work = ProfileWorkload(members=2, messages=messages, seed=seed)
        with plant(bug):
            world, meter = _world(profile, work, ("a", "b"), ("a",), [_lose_data(lost)], config)
            world.run()
        # The lost message has the longest latency: earlier ones arrive at once, later ones wait.
        result.delivered_ns[what] = (
            meter.percentile_ns(100) if meter.delivered == messages else None
        )
        result.violations += world.oracle.violations
    return result


def _lose_data(seqno: int) -> Targeted:
    """Return the fault that loses message ``seqno`` once; the repair gets through."""
    return Targeted(
        "one", lambda crossing: crossing.label.kind == "DATA" and crossing.label.first == seqno
    )


def _world(
    profile: str,
    work: ProfileWorkload,
    names: tuple[str, ...],
    senders: tuple[str, ...],
    faults: list[Fault],
    config: Config,
    *,
    record: bool = False,
    tracer: RunTracer | None = None,
) -> tuple[World, _ProfileMeter]:
    """Return the world in which ``senders``, some of ``names``, do the work, and the meter."""
    sends = {
        incarnation_address(name): _sends(profile, work, names, at)
        for at, name in enumerate(senders)
    }
    in_time = sorted(
        (send for of_one in sends.values() for send in of_one), key=lambda send: send.at_ns
    )
    end_ns = in_time[-1].at_ns
    # The time that repairs take under loss cannot be known in advance; a settled group costs
    # nothing to wait for.
    patience_ns = _PATIENCE_NS if config.retransmits else 2 * config.stall_after_ns
    script = Script(
        work.seed,
        DELAY_NS,
        end_ns + patience_ns,
        actions=[*initial_actions(names), *in_time],
        only_loss=True,
    )
    stalls = bool(faults) and not config.retransmits
    # Without retransmission a lost message must be reported, and need not arrive.
    checks = (
        [
            check
            for check in CHECKERS
            if check not in {DeliveryDeadlineChecker, StabilityDeadlineChecker}
        ]
        if stalls
        else None
    )
    world = World(config, script, faults=faults, checkers=checks, record=record, tracer=tracer)
    sent_ns = {
        who: [send.at_ns for send in of_one for _ in send.payloads] for who, of_one in sends.items()
    }
    meter = world.driver.on_ready = _ProfileMeter(world, sent_ns, len(names) - 1)
    return world, meter


def _sends(
    profile: str, work: ProfileWorkload, names: tuple[str, ...], at: int
) -> list[SendMessages]:
    """Return the sends of member number ``at``: to all, or to the next member."""
    name = names[at]
    to = names[(at + 1) % len(names)] if profile in UNICAST_PROFILE_NAMES else ""
    payloads = [payload(name, number, work.size_bytes) for number in range(1, work.messages + 1)]
    start_ns = at * work.pace_ns // len(names)  # not all in the same instant
    return [
        SendMessages(start_ns + nth * work.pace_ns, name, (content,), to=to)
        for nth, content in enumerate(payloads)
    ]
