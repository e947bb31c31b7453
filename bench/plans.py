"""The cases of every workload, for a whole run and for a quick run.

Not every library is in every case: the larger groups and the cases of joining, leaving and stopping
have fewer libraries, so that a run ends within the hour. Each case lists its contenders.
"""

from __future__ import annotations

from bench.groups import Shape
from bench.workloads import JOINED, MEMORY, SLOWED, STARTED, STOPPED, STREAMS, TRIPS, Case, Metric

NAKACK4_UDP = ("jgroups-nakack4-udp", "jgroups-nakack4-udp-tuned")
NAKACK2_UDP = ("jgroups-nakack2-udp", "jgroups-nakack2-udp-tuned")
SEALED_JGROUPS_UDP = ("jgroups-nakack4-udp-aes-cbc", "jgroups-nakack4-udp-tuned-aes-cbc")
SEALED_JGROUPS_TCP = ("jgroups-nakack4-tcp-aes-cbc",)
SEALED_ECHO = "echo, 100 B, sealed or not"
OTHERS_TCP = ("pyzmq", "zenoh", "nats", "redis", "pyre")
LOSSES = (0.001, 0.01, 0.05, 0.1)

WORKLOADS = {
    "all": "N members, all of them sending to all",
    "fan": "one sender, N receivers",
    "one": "two members, each sending to the other",
    "rtt": "a message and its echo",
    "sealed": "sealed groups beside groups without keys, and beside JGroups with SYM_ENCRYPT",
    "loss": "three members, all sending, on a network that loses packets",
    "slow": "one of three receivers takes 5000 messages a second",
    "stop": "one of three receivers stands still for two seconds",
    "join": "one more member comes while three send",
    "memory": "memory of a member, and of a thousand streams",
    "start": "from the start of two processes to the first message",
    "limit": "bare sockets in plain Python: what there is to be had",
}
"""The workloads, with a description of each."""


def plan(only: tuple[str, ...] = (), *, quick: bool = False) -> list[list[Case]]:
    """Return cases; the cases in a list share their processes."""
    made = {
        "all": everybody(quick=quick),
        "fan": fan(quick=quick),
        "one": one(quick=quick),
        "rtt": [[_rtt(size) for size in ((100,) if quick else (100, 1000))]],
        "sealed": sealed(quick=quick),
        "loss": [[_loss(share) for share in ((0.01, 0.05) if quick else LOSSES)]],
        "slow": [[_single("slow", "1 → 3, 100 B, one slow", SLOWED, "slowed", Shape(4, 1), 100)]],
        "stop": [
            [_single("stop", "1 → 3, 1000 B, one stops", STOPPED, "stopped", Shape(4, 1), 1000)]
        ],
        "join": [[_join()]],
        "memory": [[_memory()], [_streams()]],
        "start": [[_start()]],
        "limit": limits(quick=quick),
    }
    return [cases for name, groups in made.items() for cases in groups if not only or name in only]


def everybody(*, quick: bool) -> list[list[Case]]:
    """N members, all sending, over UDP and over TCP."""
    found = []
    for members in (3,) if quick else (2, 3, 4, 8):
        udp: tuple[str, ...] = ("gapless-udp", *NAKACK4_UDP)
        tcp: tuple[str, ...] = ("gapless-tcp", "jgroups-nakack4-tcp")
        if members == 3 and not quick:
            udp = ("gapless-udp", "gapless-mesh", *NAKACK4_UDP, *NAKACK2_UDP, "cyclonedds")
            tcp = (*tcp, "jgroups-nakack2-tcp", *OTHERS_TCP)
        elif quick:
            udp, tcp = (*udp, "cyclonedds"), (*tcp, *OTHERS_TCP)
        for name, contenders in (("UDP", udp), ("TCP", tcp)):
            sizes = (100, 1000) if quick else (100, 1000, 10_000)
            shape = Shape(members, members)
            found.append(
                [
                    Case(
                        "all",
                        f"{members} members, {name}, {size} B",
                        contenders,
                        shape=shape,
                        size_bytes=size,
                    )
                    for size in sizes
                ]
            )
    return found


def fan(*, quick: bool) -> list[list[Case]]:
    """Build a case with a single sender."""
    found = []
    for receivers in (3,) if quick else (1, 3, 7):
        contenders: tuple[str, ...] = (
            "gapless-udp",
            "gapless-tcp",
            "pyzmq",
            "zenoh",
            "jgroups-nakack4-udp",
        )
        if receivers == 3 and quick:
            contenders = ("gapless-udp", "gapless-tcp", "pyzmq", "zenoh")
        elif receivers == 3:
            contenders = (
                *(
                    "gapless-udp",
                    "gapless-mesh",
                    "gapless-tcp",
                    "gapless-udp-each",
                    "gapless-udp-single",
                ),
                *("pyzmq", "zenoh", "cyclonedds", "nats", "redis", "pyre"),
                *("jgroups-nakack4-udp", "jgroups-nakack4-udp-tuned", "jgroups-nakack4-tcp"),
            )
        shape = Shape(receivers + 1, 1)
        found.append(
            [
                Case("fan", f"1 → {receivers}, {size} B", contenders, shape=shape, size_bytes=size)
                for size in (100, 1000)
            ]
        )
    return found


def one(*, quick: bool) -> list[list[Case]]:
    """Two members, each to the other."""
    contenders: tuple[str, ...] = (
        "gapless-udp",
        "gapless-tcp",
        "pyzmq",
        "zenoh",
        "cyclonedds",
        "nats",
        "jgroups-nakack4-udp",
        "jgroups-nakack4-tcp",
    )
    if quick:
        contenders = contenders[:3]
    shape = Shape(2, 2, "one")
    return [
        [
            Case("one", f"1 ⇄ 1, {size} B", contenders, shape=shape, size_bytes=size)
            for size in (100, 1000)
        ]
    ]


def sealed(*, quick: bool) -> list[list[Case]]:
    """Three members that all send, and round trips, with and without keys."""
    udp: tuple[str, ...] = ("gapless-udp", "gapless-udp-sealed")
    tcp: tuple[str, ...] = ("gapless-tcp", "gapless-tcp-sealed")
    if not quick:
        udp, tcp = (*udp, *SEALED_JGROUPS_UDP), (*tcp, *SEALED_JGROUPS_TCP)
    trip = Case(
        "sealed",
        SEALED_ECHO,
        ("gapless-udp", "gapless-udp-sealed"),
        TRIPS,
        Shape(2, 1, "rtt"),
        100,
        how="rtt",
    )
    small = ("gapless-udp-1400", "gapless-udp-1400-sealed")
    ethernet = ("gapless-udp", "gapless-udp-sealed")
    found = [
        _sealed("UDP", udp),
        _sealed("TCP", tcp),
        _sealed("UDP, frames of 1400 B", small),
        _sealed("MTU 1500, 0.1 % lost", ethernet, loss=0.001),
        [trip],
    ]
    return found[:1] if quick else found


def _sealed(name: str, contenders: tuple[str, ...], *, loss: float = 0.0) -> list[Case]:
    return [
        Case(
            "sealed",
            sealed_title(name, size),
            contenders,
            shape=Shape(3, 3),
            size_bytes=size,
            loss=loss,
        )
        for size in (100, 1000)
    ]


def sealed_title(name: str, size_bytes: int) -> str:
    """Return the title of a case with sealed groups."""
    return f"3 members, {name}, {size_bytes} B, sealed or not"


def limits(*, quick: bool) -> list[list[Case]]:
    """Bare sockets."""
    udp = ("gapless-udp", "gapless-mesh", "raw-udp", "raw-udp-segments")
    found = []
    for name, contenders in (("UDP", udp), ("TCP", ("gapless-tcp", "raw-tcp"))):
        sizes = (1000,) if quick else (100, 1000)
        found.append(
            [
                Case(
                    "limit",
                    f"3 members, {name}, {size} B",
                    contenders,
                    shape=Shape(3, 3),
                    size_bytes=size,
                )
                for size in sizes
            ]
        )
    return found


def _rtt(size_bytes: int) -> Case:
    contenders = (
        *("gapless-udp", "gapless-tcp", "pyzmq", "zenoh", "cyclonedds", "nats", "redis"),
        *("jgroups-nakack4-udp", "jgroups-nakack4-tcp", "raw-udp"),
    )
    return Case(
        "rtt",
        f"{size_bytes} B there and back",
        contenders,
        TRIPS,
        Shape(2, 1, "rtt"),
        size_bytes,
        how="rtt",
    )


def _loss(share: float) -> Case:
    contenders = (
        *(
            "gapless-udp",
            "gapless-tcp",
            "jgroups-nakack4-udp",
            "jgroups-nakack4-udp-tuned",
            "jgroups-nakack4-tcp",
        ),
        *("pyzmq", "zenoh", "cyclonedds", "nats"),
    )
    return Case(
        "loss", f"3 members, 1000 B, {share:.1%} lost", contenders, shape=Shape(3, 3), loss=share
    )


def _single(
    workload: str, title: str, metrics: tuple[Metric, ...], how: str, shape: Shape, size_bytes: int
) -> Case:
    contenders = (
        "gapless-udp",
        "gapless-tcp",
        "pyzmq",
        "zenoh",
        "nats",
        "jgroups-nakack4-udp",
        "jgroups-nakack4-tcp",
    )
    return Case(workload, title, contenders, metrics, shape, size_bytes, how=how)


def _join() -> Case:
    contenders = (
        "gapless-udp",
        "gapless-tcp",
        "pyzmq",
        "zenoh",
        "jgroups-nakack4-udp",
        "jgroups-nakack4-tcp",
    )
    return Case(
        "join", "3 send 100 B, one more comes", contenders, JOINED, Shape(4, 3), 100, how="joined"
    )


def _memory() -> Case:
    contenders = (
        *("gapless-udp", "gapless-tcp", "pyzmq", "zenoh", "cyclonedds", "nats", "redis", "pyre"),
        *("jgroups-nakack4-udp", "jgroups-nakack4-tcp", "raw-udp"),
    )
    return Case("memory", "3 members", contenders, MEMORY, Shape(3, 3), 1000, how="remembered")


def _streams() -> Case:
    return Case(
        "memory",
        "992 streams in one process",
        ("gapless-udp", "pyzmq"),
        STREAMS,
        Shape(1, 1),
        8,
        how="streamed",
    )


def _start() -> Case:
    contenders = (
        *("gapless-udp", "gapless-tcp", "pyzmq", "zenoh", "cyclonedds", "nats", "redis", "pyre"),
        *("jgroups-nakack4-udp", "jgroups-nakack4-tcp"),
    )
    return Case("start", "2 members", contenders, STARTED, Shape(2, 1), 100, how="started")
