"""The measured contenders: each library in each configuration, under its own name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gapless.wire.seal import SEAL_OVERHEAD_BYTES


@dataclass(frozen=True)
class Contender:
    """A library in a configuration."""

    name: str
    peer: str
    transport: str
    options: dict[str, Any] = field(default_factory=dict)
    warm_s: float = 0.3
    """How long a contender warms up before the measurement; a JVM needs seconds."""
    modes: tuple[str, ...] = ("all", "one", "rtt")
    """The modes of the contender: send to all, send to one, round trips."""

    @property
    def is_ours(self) -> bool:
        """Whether the contender is Gapless."""
        return self.peer == "gapless"


JVM_WARM_S = 12.0

_ALL = [
    Contender("gapless-udp", "gapless", "udp"),
    Contender("gapless-mesh", "gapless", "udp", {"mesh": True}),
    Contender("gapless-tcp", "gapless", "tcp"),
    Contender("gapless-udp-sealed", "gapless", "udp", {"sealed": True}),
    Contender("gapless-tcp-sealed", "gapless", "tcp", {"sealed": True}),
    # As on a network, where plain datagrams have a checksum of all bytes.
    Contender(
        "gapless-udp-1400",
        "gapless",
        "udp",
        {"knobs": {"max_frame_bytes": 1400, "checksum": "all"}},
    ),
    Contender(
        "gapless-udp-1400-sealed",
        "gapless",
        "udp",
        {"knobs": {"max_frame_bytes": 1400 - SEAL_OVERHEAD_BYTES}, "sealed": True},
    ),
    Contender("gapless-udp-each", "gapless", "udp", {"each": True}),
    Contender("gapless-udp-single", "gapless", "udp", {"single": True}),
    Contender("jgroups-nakack4-udp", "jgroups", "udp", {"generation": 4}, JVM_WARM_S),
    Contender(
        "jgroups-nakack4-udp-tuned", "jgroups", "udp", {"generation": 4, "tuned": True}, JVM_WARM_S
    ),
    Contender("jgroups-nakack2-udp", "jgroups", "udp", {"generation": 2}, JVM_WARM_S),
    Contender(
        "jgroups-nakack2-udp-tuned", "jgroups", "udp", {"generation": 2, "tuned": True}, JVM_WARM_S
    ),
    Contender("jgroups-nakack4-tcp", "jgroups", "tcp", {"generation": 4}, JVM_WARM_S),
    Contender("jgroups-nakack2-tcp", "jgroups", "tcp", {"generation": 2}, JVM_WARM_S),
    Contender(
        "jgroups-nakack4-udp-aes-cbc",
        "jgroups",
        "udp",
        {"generation": 4, "sealed": True},
        JVM_WARM_S,
    ),
    Contender(
        "jgroups-nakack4-udp-tuned-aes-cbc",
        "jgroups",
        "udp",
        {"generation": 4, "tuned": True, "sealed": True},
        JVM_WARM_S,
    ),
    Contender(
        "jgroups-nakack4-tcp-aes-cbc",
        "jgroups",
        "tcp",
        {"generation": 4, "sealed": True},
        JVM_WARM_S,
    ),
    Contender("pyzmq", "pyzmq", "tcp"),
    Contender("zenoh", "zenoh", "tcp"),
    Contender("cyclonedds", "cyclonedds", "udp"),
    Contender("nats", "nats", "tcp"),
    Contender("redis", "redis", "tcp", modes=("all", "rtt")),
    Contender("pyre", "pyre", "tcp", modes=("all",)),
    Contender("raw-udp", "raw", "udp"),
    Contender("raw-udp-segments", "raw", "udp", {"segments": True}),
    Contender("raw-tcp", "raw", "tcp", modes=("all", "one")),
]
CONTENDERS = {contender.name: contender for contender in _ALL}
