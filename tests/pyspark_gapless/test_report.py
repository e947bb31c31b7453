"""``gapless report`` of a trace: the checks and the figures of Spark, on one page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gapless.cli.app import run
from gapless.sim.mutants.catalogue import mutant_by_name
from gapless.sim.mutants.planting import planted
from gapless.sim.runner import simulate
from gapless.trace.incarnations import INCARNATIONS_FILE
from gapless.trace.parquet import rows_to_table, write_table
from pyspark_gapless.analytics import trace_summary as figures_run
from pyspark_gapless.verify import CHECKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

FEW_CHECKS, FEW_PARTS = ("S2", "S3"), ("lives", "views", "summary")
"""All of them are run by their own tests; here it is about what becomes of what they say."""


def test_a_trace_becomes_a_page_with_its_verdict(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with planted(mutant_by_name("take over a gap")):
        outcome = simulate(2, profile="nakack4", trace=True)
    assert outcome.trace is not None
    write_table(rows_to_table(outcome.trace), tmp_path / "00001.parquet")
    (tmp_path / INCARNATIONS_FILE).write_text(
        "".join(life.to_json_line() for life in outcome.incarnations)
    )
    # By its name, as the package has a function that is called like the module.
    checking = sys.modules["pyspark_gapless.verify.runner"]
    monkeypatch.setattr(checking, "CHECKS", {check: CHECKS[check] for check in FEW_CHECKS})
    monkeypatch.setattr(
        figures_run, "SECTIONS", {part: figures_run.SECTIONS[part] for part in FEW_PARTS}
    )
    assert run(["report", str(tmp_path), "--json"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert [(check["id"], check["state"]) for check in figures["verdict"]["checks"]] == [
        ("S2", "held"),
        ("S3", "violated"),
    ]
    assert {one["id"] for one in figures["verdict"]["not_shown"]} >= {"S17", "S23"}
    assert {life["name"] for life in figures["lives"]} == {row.member for row in outcome.trace}
    assert figures["title"] == tmp_path.name
    assert spark.range(3).count() == 3, "a session that ran before runs on"

    (tmp_path / "figures.json").write_text(json.dumps(figures))
    assert run(["report", str(tmp_path)]) == 1
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1 of 2 checks failed: S3" in page
    assert page.count('class="here"') == len(figures["violations"]) > 0


def test_what_is_no_trace_is_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    (tmp_path / INCARNATIONS_FILE).touch()
    assert run(["report", str(tmp_path)]) == 2
    assert "there is no trace here" in capsys.readouterr().err
