"""Goals are measured against the closest peer; an unmeasured goal is neither reached nor missed."""

from __future__ import annotations

import pytest

from bench import goals, plans
from bench.contenders import CONTENDERS
from bench.goals import GOALS, Goal, lines
from bench.workloads import CPU, Case, Outcome

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
    assert [line.reached for line in lines([])] == [None] * (len(GOALS) + 2)


def test_every_goal_is_measured_by_a_whole_run() -> None:
    cases = {(case.workload, case.title): case for group in plans.plan() for case in group}
    for goal in GOALS:
        case = cases[goal.workload, goal.case]
        assert set(goal.peers) <= set(case.contenders) <= set(CONTENDERS)
        assert goal.metric in case.metrics
    assert goals.MOST_REPAIRS == 0.001
