"""The goals of Gapless beside its peers: a line for each goal, with the figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bench.contenders import CONTENDERS
from bench.plans import SEALED_ECHO, SEALED_JGROUPS_TCP, SEALED_JGROUPS_UDP, sealed_title
from bench.report import figures, ratio, reference, total
from bench.workloads import CPU, SPEED, TRIPS, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.workloads import Outcome

MOST_REPAIRS = 0.001
"""Maximum share of data frames sent again on a network without loss."""
NAKACK4_UDP = ("jgroups-nakack4-udp", "jgroups-nakack4-udp-tuned")
OTHER_PYTHON = ("zenoh", "cyclonedds", "nats", "redis", "pyre")


class Line(NamedTuple):
    """A goal, the measured figure, and whether the figure suffices; None if not measured."""

    goal: str
    asked: str
    measured: str
    reached: bool | None


@dataclass(frozen=True)
class Goal:
    """A factor over the best of the peers in a case, by the medians."""

    title: str
    workload: str
    case: str
    peers: tuple[str, ...]
    at_least: float
    metric: Metric = SPEED
    ours: str = ""
    """The contender of Gapless, if not the first in the case."""

    def line(self, outcomes: Sequence[Outcome]) -> Line:
        """Return the state of the goal; the best peer is the closest to Gapless."""
        here = [
            one
            for one in outcomes
            if (one.case.workload, one.case.title) == (self.workload, self.case)
        ]
        if self.ours:
            ours = next((one for one in here if one.contender == self.ours and one.rounds), None)
        else:
            ours = reference(here[0].case, here) if here else None
        found = {}
        for one in here:
            peer = one.contender in self.peers or (
                not self.peers and not is_ours_or_raw(one.contender)
            )
            if ours is not None and peer and (spread := ratio(ours, one, self.metric)) is not None:
                found[one.contender] = spread.middle
        asked = f"≥ {self.at_least:g}x"
        if not found:
            return Line(self.title, asked, "not measured", None)
        closest = min(found, key=lambda name: found[name])
        return Line(
            self.title, asked, f"{found[closest]:.2f}x {closest}", found[closest] >= self.at_least
        )


@dataclass(frozen=True)
class SealCost:
    """How much slower a sealed group may be, by the median of the rounds."""

    title: str
    case: str
    ours: str
    most: float
    """Maximum loss of speed as a share, or maximum delay of a round trip in microseconds."""
    metric: Metric = SPEED

    def line(self, outcomes: Sequence[Outcome]) -> Line:
        """Return the state of the goal."""
        plain, sealed = (
            next((one for one in outcomes if self._is(one, name)), None)
            for name in (self.ours, f"{self.ours}-sealed")
        )
        is_share = self.metric is SPEED
        asked = f"≤ {self.most:.0%} slower" if is_share else f"≤ {self.most:g} µs longer"
        if plain is None or sealed is None:
            return Line(self.title, asked, "not measured", None)
        if is_share:
            spread = ratio(plain, sealed, self.metric)
            if spread is None:
                return Line(self.title, asked, "not measured", None)
            cost = 1 - 1 / spread.middle
            return Line(self.title, asked, f"{cost:.1%} slower", cost <= self.most)
        before, after = figures(plain, self.metric), figures(sealed, self.metric)
        if before is None or after is None:
            return Line(self.title, asked, "not measured", None)
        cost = after.middle - before.middle
        return Line(self.title, asked, f"{cost:.1f} µs longer", cost <= self.most)

    def _is(self, one: Outcome, name: str) -> bool:
        found = one.case.workload, one.case.title, one.contender
        return found == ("sealed", self.case, name) and bool(one.rounds)


def is_ours_or_raw(name: str) -> bool:
    """Return whether a contender is Gapless or raw sockets, not a peer."""
    return CONTENDERS[name].peer in {"gapless", "raw"}


GOALS = (
    Goal(
        "3 members, UDP, 100 B: speed, JGroups at its best",
        "all",
        "3 members, UDP, 100 B",
        NAKACK4_UDP,
        1,
    ),
    Goal("the same: CPU time", "all", "3 members, UDP, 100 B", NAKACK4_UDP, 1, CPU),
    Goal(
        "3 members, UDP, 1000 B: speed, JGroups tuned",
        "all",
        "3 members, UDP, 1000 B",
        NAKACK4_UDP[1:],
        1,
    ),
    Goal("the same: JGroups as it ships", "all", "3 members, UDP, 1000 B", NAKACK4_UDP[:1], 5),
    Goal(
        "3 members, TCP, 100 B: speed", "all", "3 members, TCP, 100 B", ("jgroups-nakack4-tcp",), 1
    ),
    Goal(
        "3 members, TCP, 1000 B: speed",
        "all",
        "3 members, TCP, 1000 B",
        ("jgroups-nakack4-tcp",),
        1,
    ),
    Goal("1 → 3, 100 B: the slowest receiver, pyzmq", "fan", "1 → 3, 100 B", ("pyzmq",), 2),
    Goal("1 → 3, 1000 B: the same", "fan", "1 → 3, 1000 B", ("pyzmq",), 2),
    Goal("1 → 3, 100 B: every other for Python", "fan", "1 → 3, 100 B", OTHER_PYTHON, 5),
    Goal("1 → 3, 1000 B: the same", "fan", "1 → 3, 1000 B", OTHER_PYTHON, 5),
    Goal(
        "1 % of the packets lost: speed, the best peer",
        "loss",
        "3 members, 1000 B, 1.0% lost",
        (),
        2,
    ),
    Goal("5 % lost: the same", "loss", "3 members, 1000 B, 5.0% lost", (), 2),
    Goal(
        "round trip, 100 B: p50, pyzmq's PAIR",
        "rtt",
        "100 B there and back",
        ("pyzmq",),
        1,
        TRIPS[0],
    ),
)
"""Ratios; the rest is in ``lines``."""

SEALED_GOALS: tuple[Goal | SealCost, ...] = (
    *(
        Goal(
            f"sealed, 3 members, {name}, {size} B: speed, JGroups with SYM_ENCRYPT",
            "sealed",
            sealed_title(name, size),
            peers,
            2,
            ours=f"gapless-{name.lower()}-sealed",
        )
        for name, peers in (("UDP", SEALED_JGROUPS_UDP), ("TCP", SEALED_JGROUPS_TCP))
        for size in (100, 1000)
    ),
    *(
        SealCost(
            f"sealed or not, 3 members, {name}, {size} B", sealed_title(name, size), ours, most
        )
        for name, ours, most_large in (
            ("UDP", "gapless-udp", 0.10),
            ("TCP", "gapless-tcp", 0.10),
            ("UDP, frames of 1400 B", "gapless-udp-1400", 0.20),
            ("MTU 1500, 0.1 % lost", "gapless-udp", 0.20),
        )
        for size, most in ((100, 0.12), (1000, most_large))
    ),
    SealCost("sealed or not, round trip, 100 B: p50", SEALED_ECHO, "gapless-udp", 10, TRIPS[0]),
)
"""What the seal may cost, and how far JGroups with keys is behind."""


def lines(outcomes: Sequence[Outcome]) -> list[Line]:
    """Return how every goal stands."""
    found = [goal.line(outcomes) for goal in GOALS]
    found += [goal.line(outcomes) for goal in SEALED_GOALS]
    return [*found, *_own(outcomes)]


def _own(outcomes: Sequence[Outcome]) -> Iterator[Line]:
    """Return the goals of Gapless alone: every message intact, and no self-inflicted loss."""
    ours = [one for one in outcomes if CONTENDERS[one.contender].is_ours and one.rounds]
    wrong = _worst(
        ours, lambda one: sum(total(one, key) for key in ("lost", "duplicated", "out_of_order"))
    )
    yield Line("nothing lost, repeated or out of order", "0", *_said(wrong, 0, "{:.0f}"))
    calm = [
        one for one in ours if not one.case.loss and one.case.how == "flow" and total(one, "frames")
    ]
    repairs = _worst(calm, lambda one: total(one, "repairs") / total(one, "frames"))
    yield Line(
        "repairs where nothing is lost",
        f"≤ {MOST_REPAIRS:.1%}",
        *_said(repairs, MOST_REPAIRS, "{:.2%}"),
    )


def _worst(ours: Sequence[Outcome], figure: Callable[[Outcome], float]) -> tuple[float, str] | None:
    found = [(figure(one), f"{one.contender}, {one.case.title}") for one in ours]
    return max(found) if found else None


def _said(worst: tuple[float, str] | None, most: float, form: str) -> tuple[str, bool | None]:
    if worst is None:
        return "not measured", None
    figure, where = worst
    return (f"{form.format(figure)} ({where})" if figure else form.format(figure)), figure <= most
