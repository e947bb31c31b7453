"""``gapless demo``: the main job from end to end, with everything real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.cli.app import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_everything_arrives_once_and_every_check_holds(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run(["demo", "--json", "--messages", "600", "--seed", "2", "--output", str(output)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["sent"], result["rows"], result["kills"]) == (1800, 1800, 1)
    assert (result["lost"], result["duplicates"], result["out_of_order"], result["violations"]) == (
        0,
        0,
        0,
        0,
    )
    assert result["problems"] == []
    assert result["checks"] >= 18
    assert result["repaired"] > 0
    assert 0 < result["latency_p50_ms"] <= result["latency_p99_ms"]
    bronze = spark.read.parquet(str(output / "tables" / "bronze"))
    assert bronze.select("origin", "seqno").distinct().count() == bronze.count() == 1800
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    figures = json.loads((output / "figures.json").read_text(encoding="utf-8"))
    assert {life["member"] for life in figures["lives"]} == {
        "collector",
        "producer-1",
        "producer-2",
        "producer-3",
    }
    assert sorted(life["end"] for life in figures["lives"]).count("killed") == 1
