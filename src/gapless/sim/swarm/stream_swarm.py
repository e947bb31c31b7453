"""The swarm: a seed draws a whole run, so that every run has its own character.

A run does not have all faults at once: each class of fault is on or off, and the strengths differ.
Three characters keep the strict checks honest: *calm* runs have no fault at all (no nak and no
repair may occur), *loss* runs only lose frames (the cost of repairs is compared with the losses),
*swarm* runs may have any fault.

The standard cell is 4 members with 100 messages each; the seed also draws groups of 2, 3 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless.config import Config
from gapless.faults.faults import (
    BurstLoss,
    Clog,
    Corrupt,
    Delay,
    DriftingClock,
    Duplicate,
    Foreign,
    Garbage,
    LateTimers,
    LongHold,
    Loss,
    Partition,
    Refuse,
    Stranger,
    SwizzleClog,
    Targeted,
    Truncate,
)
from gapless.faults.frame_names import node_name
from gapless.rng import per_mille, split
from gapless.sim.script import (
    CancelSend,
    ChangePartition,
    PauseProcess,
    ResumeProcess,
    Script,
    SendMessages,
    SetReadDelay,
    initial_actions,
    payload,
)
from gapless.sim.swarm.profile_draw import (
    LOSSLESS_FAULTS,
    assign_destinations,
    draw_profile,
    rare_branches,
    with_profile,
)
from gapless.sim.swarm.view_schedule import draw_views
from gapless.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from random import Random

    from gapless.faults.faults import Fault
    from gapless.sim.script import Action
    from gapless.sim.sealing.plan import SealingPlan

CHARACTERS = ("calm", "loss", "swarm")
"""The characters of runs; a seed draws a character, mostly the last.

Without retransmission a run is a ``stall`` instead of ``loss``: the run need not deliver every
message, but must report every missing message.
"""

MESSAGES = 100
"""Number of messages of each member of the standard cell."""

FAULTS = (
    "refuse",
    "loss",
    "burst",
    "partition",
    "targeted",
    "corrupt",
    "truncate",
    "garbage",
    "foreign",
    "stranger",
    "duplicate",
    "clog",
    "swizzle",
    "hold",
    "delay",
    "late timers",
    "clocks",
    "pause",
    "slow reader",
    "views",
)
"""Every class of fault that a swarm run may have."""


@dataclass(slots=True)
class SwarmPlan:
    """The plan of a run: the configuration, the script, and the faults until the calm."""

    seed: int
    character: str
    profile: str
    config: Config
    script: Script
    faults: list[Fault]
    late_timers: LateTimers | None
    enabled_faults: tuple[str, ...]
    sealing: SealingPlan | None = None


def draw(
    seed: int,
    *,
    members: int | None = None,
    messages: int = MESSAGES,
    character: str | None = None,
    profile: str | None = None,
    config: Config | None = None,
) -> SwarmPlan:
    """Draw the run of ``seed``.

    Args:
        seed: The seed of every draw.
        members: The number of members instead of the drawn number.
        messages: The number of messages of each member.
        character: ``calm``, ``loss`` or ``swarm``, instead of the drawn character.
        profile: The profile of every member instead of the drawn profile.
        config: The settings instead of the drawn settings.
    """
    rng = split(seed, "plan")
    drawn = rng.choices(CHARACTERS, weights=(1, 2, 17))[0]
    profile = profile or (draw_profile(seed) if config is None else config.profile)
    character = character or drawn
    lossless = profile == "ordered" and character != "loss"
    character = "stall" if profile == "ordered" and character == "loss" else character
    members = members or rng.choices((2, 3, 4, 5), weights=(1, 2, 6, 1))[0]
    names = tuple(node_name(node) for node in range(1, members + 1))
    on = _draw_fault_classes(split(seed, "classes"), character)
    on = tuple(name for name in on if name in LOSSLESS_FAULTS) if lossless else on
    pace = config if config is not None and config.retransmits else None
    if pace is None:
        pace = draw_config(
            split(seed, "config"), slow_reader="slow reader" in on, only_loss=character != "swarm"
        )
    span_ns = _span_ns(split(seed, "span"), pace)
    partitions = (
        _partitions(split(seed, "partition"), names, span_ns, pace) if "partition" in on else []
    )
    whole_ns = max(span_ns, *(partition.end_ns for partition in partitions), 0)
    # A partition may outlast the load; in half of the runs the load is spread over all of it.
    work_ns = whole_ns if split(seed, "long work").random() < 0.5 else span_ns
    actions = _work(split(seed, "work"), names, messages, work_ns, pace)
    actions = assign_destinations(seed, actions, names, profile, character)
    actions += (
        ChangePartition(partition.end_ns, ",".join(sorted(partition.side)), "heal")
        for partition in partitions
    )
    script = Script(
        seed,
        _delay_ns(split(seed, "link"), pace),
        whole_ns + pace.xmit_interval_ns,
        actions=actions,
        only_loss=character in {"calm", "loss"},
        fifo=lossless,
        rare=rare_branches(seed, character),
    )
    faults = _faults(seed, on, names, pace, span_ns, messages, partitions)
    _members(seed, on, names, pace, span_ns, script)
    late = _late(split(seed, "late"), on, pace)
    config = config or with_profile(seed, pace, profile)
    script.actions.sort(key=lambda action: action.at_ns)
    return SwarmPlan(seed, character, profile, config, script, faults, late, on)


def _draw_fault_classes(rng: Random, character: str) -> tuple[str, ...]:
    """Draw the classes of fault of a run, each with a drawn probability."""
    if character == "calm":
        return ()
    if character in {"loss", "stall"}:
        return (rng.choice(("loss", "burst")),)
    share = rng.choice((0.15, 0.3, 0.5))
    return tuple(name for name in FAULTS if rng.random() < share) or ("loss",)


def draw_config(rng: Random, *, slow_reader: bool, only_loss: bool) -> Config:
    """Draw every setting; small windows and odd thresholds are where the corners are."""
    capacity = rng.choice((1, 2, 3, 4, 16, 64))
    xmit_ns = rng.choice((1, 5, 20, 50, 100, 250, 500, 1000, 5000)) * NS_PER_MS
    frame_bytes = rng.choice((256, 300, 512, 1400, 1400, 9000))
    knobs: dict[str, int | bool | str] = {
        "capacity": capacity,
        "ack_threshold": rng.choice((0, 1, rng.randint(1, capacity), capacity)),
        "xmit_interval_ns": xmit_ns,
        "ack_delay_ns": min(xmit_ns, rng.choice((0, 1, 10, 50)) * NS_PER_MS),
        "min_grace_ns": min(xmit_ns, rng.choice((0, 1, 5)) * NS_PER_MS),
        "min_retry_ns": min(xmit_ns, rng.choice((1, 5, 20)) * NS_PER_MS),
        "initial_rtt_ns": rng.choice((1, 10, 100)) * NS_PER_MS,
        "tail_delay_ns": min(xmit_ns, rng.choice((1, 5, 20, 100)) * NS_PER_MS),
        "jitter_percent": rng.choice((0, 25, 100)),
        "max_frame_bytes": frame_bytes,
        "adaptive_grace": rng.random() < 0.8,
        "use_mcast_xmit": rng.choice(("auto", "auto", "always", "never")),
        "loopback": rng.random() < 0.8,
        "max_batch_size": rng.choice((0, 0, 1, 3)),
        "become_server_queue_size": rng.choice((0, 1, 50)),
        "unread_limit": rng.choice((1, 2, 5, 20)) if slow_reader else 0,
        "slow_receiver_after_ns": rng.choice((50, 5000)) * NS_PER_MS,
    }
    if only_loss:
        # The cost of repairs is a promise only where the first guess of the round trip is not far
        # too short.
        knobs["initial_rtt_ns"] = rng.choice((20, 100)) * NS_PER_MS
    else:
        knobs["max_xmit_req_size"] = rng.choice((0, 1024, 1024, max(1, capacity // 3)))
        knobs["repair_budget_bytes"] = max(
            frame_bytes, rng.choice((8 << 20, 8 << 20, 4 * frame_bytes, 1024))
        )
        knobs["receive_buffer_bytes"] = rng.choice((208 << 10, 8 << 10, 2 << 10))
        if rng.random() < 0.1:
            knobs["window"], knobs["max_seqno_ahead"] = "growing", capacity * rng.choice((1, 3))
        knobs["window_bytes"] = rng.choice((16 << 20, 16 << 20, 16 << 10, 1 << 10))
    return Config(**knobs)  # type: ignore[arg-type]


def _span_ns(rng: Random, config: Config) -> int:
    """Draw how long the applications keep sending: from a burst to many intervals."""
    return rng.choice((5, 20, 60)) * min(config.xmit_interval_ns, 500 * NS_PER_MS) + rng.randrange(
        NS_PER_MS
    )


def _delay_ns(rng: Random, config: Config) -> int:
    """Draw the delay of a link: mostly well below the intervals, sometimes above."""
    most_ns = (
        min(config.xmit_interval_ns // 4, config.tail_delay_ns // 2)
        if rng.random() < 0.95
        else 5 * NS_PER_MS
    )
    return min(most_ns, rng.choice((0, 50_000, NS_PER_MS, 5 * NS_PER_MS)))


def _late(rng: Random, on: tuple[str, ...], config: Config) -> LateTimers | None:
    if "late timers" not in on:
        return None
    longest_ns = min(500 * NS_PER_MS, 2 * config.xmit_interval_ns)
    return LateTimers(
        rng,
        per_mille(rng, (50, 300, 1000)),
        rng.randrange(1, longest_ns),
        rng.choice((0, 0, NS_PER_MS, longest_ns // 4)),
    )


# Load


def _work(
    rng: Random, names: tuple[str, ...], messages: int, span_ns: int, config: Config
) -> list[Action]:
    """Draw the sends: how many at once, how large, how patient."""
    sizes = rng.choice(
        ((0, 1, 10), (20, 20, 40), (0, 50, 200), (1, 30, 30, 30, 3 * config.max_frame_bytes))
    )
    most_at_once = rng.choice((1, 4, 8, 16))
    impatient = rng.choice((0.0, 0.0, 0.1, 0.5))
    actions: list[Action] = []
    for name in names:
        number, sends = 0, 0
        while number < messages:
            count = min(rng.randint(1, most_at_once), messages - number)
            payloads = tuple(payload(name, number + at, rng.choice(sizes)) for at in range(count))
            number += count
            sends += 1
            send = SendMessages(rng.randrange(span_ns), name, payloads)
            if rng.random() < impatient:
                send = _impatient(rng, send, config)
                if rng.random() < 0.3:
                    actions.append(
                        CancelSend(send.at_ns + rng.randrange(config.xmit_interval_ns), name, sends)
                    )
            actions.append(send)
    return actions


def _impatient(rng: Random, send: SendMessages, config: Config) -> SendMessages:
    how = rng.choice(("try", "timeout", "alone"))
    if how == "try":
        return send._replace(wait=False)
    if how == "timeout":
        return send._replace(timeout_ns=rng.randrange(1, config.xmit_interval_ns))
    return send._replace(loopback=not config.loopback)


# Faults of the network


def _faults(
    seed: int,
    on: tuple[str, ...],
    names: tuple[str, ...],
    config: Config,
    span_ns: int,
    messages: int,
    partitions: list[Partition],
) -> list[Fault]:
    made: list[Fault] = []
    for name in on:
        if name in _SIMPLE:
            made.append(_SIMPLE[name](split(seed, name)))
        elif name == "partition":
            made += partitions
        elif name == "targeted":
            made.append(_target(split(seed, name), names, config, messages))
        elif name == "swizzle":
            rng = split(seed, name)
            made.append(
                SwizzleClog(
                    rng, names, rng.randrange(span_ns), max(1, span_ns // rng.randint(10, 50))
                )
            )
    return made


def _loss(rng: Random) -> Fault:
    most = rng.choice((1, 5, 15, 30))
    return Loss(rng, tuple(rate / 100 for rate in (0, 1, 5, 15, 30) if rate <= most))


def _burst(rng: Random) -> Fault:
    return BurstLoss(rng, rng.choice((1, 3, 10, 50)), rng.choice((20, 100, 500)))


def _duplicate(rng: Random) -> Fault:
    return Duplicate(
        rng,
        per_mille(rng, (10, 100, 500)),
        rng.choice((0, 10 * NS_PER_MS, NS_PER_S, 60 * NS_PER_S)),
    )


def _delay(rng: Random) -> Fault:
    return Delay(rng, rng.choice((0, 0, 5, 30)) * NS_PER_MS, rng.choice((1, 10, 100)) * NS_PER_MS)


def _clog(rng: Random) -> Fault:
    return Clog(rng, per_mille(rng, (2, 5, 20)), rng.choice((10, 100, 1000, 5000)) * NS_PER_MS)


_SIMPLE = {
    "refuse": lambda rng: Refuse(rng, per_mille(rng, (10, 50, 100))),
    "loss": _loss,
    "burst": _burst,
    "corrupt": lambda rng: Corrupt(rng, per_mille(rng, (2, 10, 50))),
    "truncate": lambda rng: Truncate(rng, per_mille(rng, (2, 10, 50))),
    "garbage": lambda rng: Garbage(rng, per_mille(rng, (2, 10, 50))),
    "foreign": lambda rng: Foreign(rng, per_mille(rng, (2, 10, 50))),
    "stranger": lambda rng: Stranger(rng, per_mille(rng, (2, 10, 50))),
    "duplicate": _duplicate,
    "clog": _clog,
    "hold": lambda rng: LongHold(rng, per_mille(rng, (2, 20)), 10 * NS_PER_S, rng.randint(1, 5)),
    "delay": _delay,
}


def _partitions(
    rng: Random, names: tuple[str, ...], span_ns: int, config: Config
) -> list[Partition]:
    """Draw one or two partitions of 1 to 60 s, or shorter partitions where intervals are short.

    Partitions begin while the applications send, and heal before the calm.
    """
    longest_ns = min(
        60 * NS_PER_S, max(NS_PER_S, _MAX_PARTITION_INTERVALS * config.xmit_interval_ns)
    )
    made: list[Partition] = []
    for _ in range(rng.choice((1, 1, 2))):
        start_ns = rng.randrange(span_ns)
        made.append(
            Partition.draw(rng, names, start_ns, start_ns + rng.randint(NS_PER_S, longest_ns))
        )
    return made


_MAX_PARTITION_INTERVALS = 240
"""Maximum number of intervals of a partition: members apart announce and ask in each."""


def _target(rng: Random, names: tuple[str, ...], config: Config, messages: int) -> Fault:
    return rng.choice(
        (
            Targeted.first_frame(),
            Targeted.last_frame(messages),
            Targeted.first_repairs(),
            Targeted.acks_of(rng.choice(names)),
            Targeted.tails(),
            Targeted.wraps(config.capacity),
        )
    )


# What happens to members


def _members(
    seed: int,
    on: tuple[str, ...],
    names: tuple[str, ...],
    config: Config,
    span_ns: int,
    script: Script,
) -> None:
    rng = split(seed, "clocks")
    for name in names:
        drift_ppm = rng.choice((-50_000, -1000, 0, 1000, 50_000)) if "clocks" in on else 0
        script.clocks[name] = DriftingClock(rng.randrange(1000) * NS_PER_S, drift_ppm)
    if "views" in on:
        script.actions += draw_views(
            split(seed, "views"), names, span_ns, config, living=not script.fifo
        )
    else:
        script.actions += initial_actions(names)
    if "pause" in on:
        script.actions += _pauses(split(seed, "pause"), names, span_ns)
    if "slow reader" in on:
        rng = split(seed, "slow reader")
        per_message_ns = rng.choice((span_ns // 1000, span_ns // 100, span_ns // 20))
        script.actions += (
            SetReadDelay(0, name, max(1, per_message_ns)) for name in names if rng.random() < 0.5
        )


def _pauses(rng: Random, names: tuple[str, ...], span_ns: int) -> list[Action]:
    actions: list[Action] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        who = rng.choice(names)
        start_ns = rng.randrange(span_ns)
        end_ns = min(span_ns, start_ns + rng.randint(span_ns // 50, span_ns // 2))
        actions += (PauseProcess(start_ns, who), ResumeProcess(end_ns, who))
    return actions
