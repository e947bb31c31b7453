"""The draws of a run for its profile: the profile, its settings, and the modes of sending.

The draws have their own random streams. So a seed keeps the same faults and load under every
profile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gapless.config import GROUP_PROFILE_NAMES, UNICAST_PROFILE_NAMES
from gapless.delivery_mode import DeliveryMode
from gapless.protocol.buggify import RARE_BRANCHES
from gapless.rng import split
from gapless.sim.script import CloseConnection, SendMessages, SetRetransmitInterval
from gapless.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from random import Random

    from gapless.config import Config
    from gapless.sim.script import Action

ALL_PROFILES = (*GROUP_PROFILE_NAMES, *UNICAST_PROFILE_NAMES)
"""Every profile that a run may have."""

LOSSLESS_FAULTS = (
    "delay",
    "clog",
    "swizzle",
    "hold",
    "late timers",
    "clocks",
    "pause",
    "slow reader",
    "views",
)
"""The classes of fault that an ordered transport without loss may have."""

_TUNED_NS = (0, 20 * NS_PER_MS, 200 * NS_PER_MS)
"""Retransmission intervals that an ordered run may switch to."""
_WEIGHTS = (4, 1, 1, 1, 1, 1, 1)
_RARE_RUNS = 0.25


def draw_profile(seed: int) -> str:
    """Draw the profile of a run; most have the default."""
    return split(seed, "profile").choices(ALL_PROFILES, weights=_WEIGHTS)[0]


def with_profile(seed: int, config: Config, profile: str) -> Config:
    """Return the configuration of a run, with drawn settings of its profile."""
    rng = split(seed, f"profile {profile}")
    if profile in UNICAST_PROFILE_NAMES:
        return replace(config, unicast=profile, **_connection_settings(rng))  # type: ignore[arg-type]
    if profile == "nakack4":
        return replace(config, **_connection_settings(rng))  # type: ignore[arg-type]
    knobs: dict[str, object] = {
        "profile": profile,
        "window": "growing",
        "max_seqno_ahead": max(config.capacity * rng.choice((1, 3, 10)), config.capacity),
        "stability_interval_ns": min(
            config.xmit_interval_ns, rng.choice((20, 100, 500)) * NS_PER_MS
        ),
        "stability_bytes": rng.choice((256, 1 << 10, 1 << 20)),
        "discard_delivered": profile != "nakack" or rng.random() < 0.3,
        **_connection_settings(rng),
    }
    if profile == "nakack":
        knobs["xmit_from_random_member"] = not knobs["discard_delivered"] and rng.random() < 0.5
    if profile == "ordered":
        knobs["stability_interval_ns"] = rng.choice((100, 500)) * NS_PER_MS
        knobs["stall_after_ns"] = rng.choice((50, 500, 2000)) * NS_PER_MS
        knobs["xmit_interval_ns"] = 0
        if config.on_slow_receiver == "expel":
            knobs["slow_receiver_after_ns"] = max(config.slow_receiver_after_ns, 2 * max(_TUNED_NS))
    return replace(config, **knobs)  # type: ignore[arg-type]


def _connection_settings(rng: Random) -> dict[str, int]:
    return {
        "min_ack_interval_ns": rng.choice((0, 1, 10, 50)) * NS_PER_MS,
        "conn_expiry_timeout_ns": rng.choice((0, 0, 0, 50 * NS_PER_MS, NS_PER_S)),
        "conn_close_timeout_ns": rng.choice((20 * NS_PER_MS, NS_PER_S, 240 * NS_PER_S)),
        "sync_min_interval_ns": rng.choice((1, 20, 200)) * NS_PER_MS,
        "max_out_of_band": rng.choice((1, 4, 1024)),
    }


def rare_branches(seed: int, character: str) -> tuple[str, ...]:
    """Draw the rare branches that a run may take."""
    rng = split(seed, "rare")
    return (
        tuple(name for name in RARE_BRANCHES if rng.random() < _RARE_RUNS)
        if character == "swarm"
        else ()
    )


def assign_destinations(
    seed: int, actions: list[Action], names: tuple[str, ...], profile: str, character: str
) -> list[Action]:
    """Draw target and mode of each send, closing connections, and switches of retransmission."""
    rng = split(seed, "spread")
    to_one = 0.9 if profile in UNICAST_PROFILE_NAMES else rng.choice((0.0, 0.0, 0.2))
    beside = rng.choice((0.0, 0.0, 0.3))
    if character == "stall":
        return actions
    if character != "swarm":
        to_one, beside = (1.0, 0.0) if profile in UNICAST_PROFILE_NAMES else (0.0, 0.0)
    result: list[Action] = []
    for action in actions:
        result.append(
            _assign_destination(rng, action, names, to_one, beside)
            if isinstance(action, SendMessages)
            else action
        )
        if isinstance(action, SendMessages) and to_one and rng.random() < 0.02:
            result.append(CloseConnection(action.at_ns + 1, action.who, rng.choice(names)))
    if profile == "ordered" and rng.random() < 0.3:
        sends = [action for action in actions if isinstance(action, SendMessages)]
        every_ns = rng.choice(_TUNED_NS)
        result += (SetRetransmitInterval(rng.choice(sends).at_ns, name, every_ns) for name in names)
    return result


def _assign_destination(
    rng: Random, send: SendMessages, names: tuple[str, ...], to_one: float, beside: float
) -> SendMessages:
    if rng.random() < to_one:
        send = send._replace(to=rng.choice(names))
    if rng.random() >= beside:
        return send
    mode = rng.choice(
        (
            DeliveryMode.ACKNOWLEDGED,
            DeliveryMode.ACKNOWLEDGED,
            DeliveryMode.OUT_OF_BAND,
            DeliveryMode.OUT_OF_BAND,
            DeliveryMode.UNRELIABLE,
        )
    )
    if mode is not DeliveryMode.ACKNOWLEDGED:
        # An out-of-band or unreliable message must fit one frame.
        send = send._replace(payloads=tuple(payload[:100] for payload in send.payloads))
    return send._replace(mode=mode)
