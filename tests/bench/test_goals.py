"""Goals are measured against the closest peer; an unmeasured goal is neither reached nor missed."""

from __future__ import annotations

import pytest

from bench import goals, plans
from bench.contenders import CONTENDERS
from bench.goals import GOALS, SEALED_GOALS, Goal, SealCost, lines
from bench.workloads import CPU, TRIPS, Case, Outcome

CASE = Case("fan", "1 → 3, 100 B", ("gapless-udp", "gapless-tcp", "pyzmq", "zenoh", "raw-udp"))
FINE = {"lost": 0.0, "duplicated": 0.0, "out_of_order": 0.0}


def outcome(name: str, speed: float, **more: float) -> Outcome:
    return Outcome(
        CASE, name, [{"messages_per_s": speed, "cpu_s_per_million": 2 / speed, **FINE, **more}]
    )


OUTCOMES = [
    outcome("gapless-udp", 100.0, repairs=1, frames=2000),
    outcome("gapless-tcp", 900.0, repairs=3, frames=1000),
    outcome("pyzmq", 50.0),
    outcome("zenoh", 25.0),
    outcome("raw-udp", 9999.0, lost=7),
]


@pytest.mark.parametrize(
    ("peers", "at_least", "measured", "reached"),
    [
        (("pyzmq",), 2, "2.00x pyzmq", True),
        (("pyzmq",), 2.01, "2.00x pyzmq", False),
        (("zenoh", "pyzmq"), 3, "2.00x pyzmq", False),
        (("zenoh", "nats"), 4, "4.00x zenoh", True),
        ((), 2, "2.00x pyzmq", True),
        (("redis",), 2, "not measured", None),
    ],
)
def test_the_closest_peer_counts(
    peers: tuple[str, ...], at_least: float, measured: str, reached: bool | None
) -> None:
    assert Goal("", "fan", CASE.title, peers, at_least).line(OUTCOMES)[2:] == (measured, reached)
    assert Goal("", "fan", CASE.title, peers, at_least, CPU).line(OUTCOMES)[2:] == (
        measured,
        reached,
    )
    assert Goal("", "fan", "another case", peers, at_least).line(OUTCOMES).reached is None


def test_what_is_asked_of_gapless_alone() -> None:
    *_, messages, repairs = lines(OUTCOMES)
    assert (messages.measured, messages.reached) == ("0", True)
    assert (repairs.measured, repairs.reached) == ("0.30% (gapless-tcp, 1 → 3, 100 B)", False)
    *_, messages, repairs = lines([outcome("gapless-udp", 1.0, lost=2, repairs=1, frames=2000)])
    assert (messages.measured, messages.reached) == ("2 (gapless-udp, 1 → 3, 100 B)", False)
    assert repairs.reached
    assert [line.reached for line in lines([])] == [None] * (len(GOALS) + len(SEALED_GOALS) + 2)


def test_every_goal_is_measured_by_a_whole_run() -> None:
    cases = {(case.workload, case.title): case for group in plans.plan() for case in group}
    for goal in GOALS:
        case = cases[goal.workload, goal.case]
        assert set(goal.peers) <= set(case.contenders) <= set(CONTENDERS)
        assert goal.metric in case.metrics
    assert goals.MOST_REPAIRS == 0.001


SEALED = Case("sealed", "3 members", ("gapless-udp", "gapless-udp-sealed", "pyzmq"))


@pytest.mark.parametrize(
    ("speed", "measured", "reached"),
    [(90.0, "10.0% slower", True), (87.0, "13.0% slower", False), (100.0, "0.0% slower", True)],
)
def test_the_cost_of_the_seal_is_a_share_of_the_speed(
    speed: float, measured: str, reached: bool
) -> None:
    outcomes = [
        Outcome(SEALED, "gapless-udp", [{"messages_per_s": 100.0}]),
        Outcome(SEALED, "gapless-udp-sealed", [{"messages_per_s": speed}]),
    ]
    cost = SealCost("", "3 members", "gapless-udp", 0.12)
    assert cost.line(outcomes)[2:] == (measured, reached)
    assert cost.line(outcomes[:1]).reached is None
    assert cost.line([outcomes[0], Outcome(SEALED, "gapless-udp-sealed")]).reached is None


@pytest.mark.parametrize(("p50_us", "reached"), [(109.0, True), (111.0, False)])
def test_the_cost_of_the_seal_is_a_delay_of_a_round_trip(p50_us: float, reached: bool) -> None:
    outcomes = [
        Outcome(SEALED, "gapless-udp", [{"p50_us": 100.0}]),
        Outcome(SEALED, "gapless-udp-sealed", [{"p50_us": p50_us}]),
    ]
    cost = SealCost("", "3 members", "gapless-udp", 10, TRIPS[0])
    assert cost.line(outcomes)[2:] == (f"{p50_us - 100:.1f} µs longer", reached)


def test_a_sealed_group_is_compared_with_a_sealed_peer() -> None:
    outcomes = [
        Outcome(SEALED, name, [{"messages_per_s": speed}])
        for name, speed in (("gapless-udp", 200.0), ("gapless-udp-sealed", 150.0), ("pyzmq", 100.0))
    ]
    goal = Goal("", "sealed", "3 members", ("pyzmq",), 2, ours="gapless-udp-sealed")
    assert goal.line(outcomes)[2:] == ("1.50x pyzmq", False)
    assert goal.line(outcomes[::2]).reached is None
