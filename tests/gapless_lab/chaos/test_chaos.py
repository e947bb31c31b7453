"""The whole pipeline, killed part by part under load, and under back-pressure: three seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless_lab.chaos.back_pressure import MORE, BackPressureTestbed
from gapless_lab.chaos.plan import GROUP_SIDE, SPARK_SIDE, ChaosPlan
from gapless_lab.chaos.runner import prepare_class_archive, run_one
from gapless_lab.chaos.spark_side import SparkSide
from gapless_lab.chaos.testbed import ChaosTestbed

pytestmark = pytest.mark.xdist_group("cluster")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSide]:
    prepare_class_archive()
    with SparkSide(tmp_path_factory.mktemp("chaos")) as running:
        yield running


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_is_killed_what_was_acknowledged_is_in_the_table_once(
    spark: SparkSide, tmp_path: Path, seed: int
) -> None:
    plan = ChaosPlan(seed, group_kills=2, spark_kills=2)
    result = run_one(ChaosTestbed(plan, tmp_path / "seed", spark))
    verdict = result.verdict
    assert verdict.findings == [], result.folder
    assert verdict.missing == verdict.repeated == verdict.out_of_order == 0
    assert verdict.rows >= verdict.acknowledged > 0
    assert {victim for victim, count in result.kills.items() if count} == {*GROUP_SIDE, *SPARK_SIDE}
    assert result.incarnations == plan.producers + result.kills["producer"]


def test_a_full_spool_lets_senders_wait_until_spark_is_back(
    spark: SparkSide, tmp_path: Path
) -> None:
    testbed = BackPressureTestbed(ChaosPlan(1), tmp_path / "seed", spark)
    result = run_one(testbed)
    verdict, seen = result.verdict, testbed.pressure
    assert verdict.findings == [], result.folder
    assert verdict.undecided == 0, "nothing was killed, so everything sent is acknowledged"
    assert verdict.rows == verdict.acknowledged == verdict.sent
    assert seen.acked_at_limit >= seen.acked_before > 0
    assert seen.acked_while_waiting == 0
    assert seen.acked_after >= MORE
    assert "limit" in seen.waits_for
    assert seen.most_used_bytes > seen.max_bytes // 2
    assert seen.memory is not None
    assert {*seen.memory} == {"collector", "producer1", "producer2"}
