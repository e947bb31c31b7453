"""What a seed draws, and what a plan refuses."""

from __future__ import annotations

from collections import Counter

import pytest

from gapless.errors import ConfigError
from gapless_lab.chaos.plan import DRIVER, GROUP_SIDE, SPARK_SIDE, VICTIMS, ChaosPlan

SEEDS = range(1, 21)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_seed_kills_each_of_the_four(seed: int) -> None:
    plan = ChaosPlan(seed)
    victims = Counter(op.victim for op in (*plan.group_ops, *plan.spark_ops))
    assert victims.keys() >= {*GROUP_SIDE, *SPARK_SIDE}
    assert victims.total() == plan.group_kills + plan.spark_kills
    assert victims[DRIVER] == 1


def test_a_seed_is_the_same_again_and_others_differ() -> None:
    plans = [(ChaosPlan(seed).group_ops, ChaosPlan(seed).spark_ops) for seed in SEEDS]
    assert plans == [(ChaosPlan(seed).group_ops, ChaosPlan(seed).spark_ops) for seed in SEEDS]
    assert len({str(plan) for plan in plans}) == len(plans)


def test_twenty_seeds_kill_everybody_in_every_order() -> None:
    orders = set()
    for seed in SEEDS:
        spark = [op.victim for op in ChaosPlan(seed).spark_ops]
        orders.add(tuple(victim for victim in spark if victim in SPARK_SIDE)[:2])
        orders.add(tuple(op.victim for op in ChaosPlan(seed).group_ops)[:2])
    assert orders >= {("driver", "executor"), ("executor", "driver")}
    assert orders >= {("producer", "collector"), ("collector", "producer")}
    drawn = {
        op.victim for seed in SEEDS for op in ChaosPlan(seed).spark_ops + ChaosPlan(seed).group_ops
    }
    assert drawn == set(VICTIMS)
    assert {
        op.with_children
        for seed in SEEDS
        for op in ChaosPlan(seed).spark_ops
        if op.victim == DRIVER
    } == {True, False}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"producers": 0}, "1 to 16"),
        ({"rate": 0}, "1 to 20,000"),
        ({"loss": 0.9}, "0 to 0.5"),
        ({"group_kills": 1}, "2 to 100"),
        ({"spark_kills": 1}, "2 to 100"),
    ],
)
def test_a_plan_says_what_it_expects(wrong: dict[str, float], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        ChaosPlan(1, **wrong)  # type: ignore[arg-type]
