"""Sweeps on Spark: the same rows as elsewhere, the dataset, and a planted bug from end to end."""

from __future__ import annotations

import json
import shlex
import threading
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

from bench import sweep as bench
from gapless.cli.app import run as gapless
from pyspark_gapless.sweep.executors import SparkSweepExecutor
from pyspark_gapless.sweep.results import SweepResults, read_runs
from pyspark_gapless.sweep.runner import SweepPlan, run
from pyspark_gapless.sweep.schema import KEY, SweepRuns, arrow_schema
from pyspark_gapless.tables import SchemaError
from tests.support.small_sweep import comparable, rows_in_process, rows_of, small

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_spark_has_the_rows_that_single_runs_have(spark: SparkSession, tmp_path: Path) -> None:
    wanted = small(3)
    done = run(SweepPlan(wanted.cells, wanted.seeds, tmp_path), lambda _: None, threading.Event())
    assert done.slots == spark.sparkContext.defaultParallelism == 2
    assert (done.progress.before, done.progress.done, done.summary.missing) == (0, 18, 0)
    expected = rows_in_process(wanted)
    assert rows_of(tmp_path, wanted) == expected
    runs = read_runs(spark, tmp_path)
    assert isinstance(runs, SweepRuns)
    told = comparable(runs.frame.toArrow().to_pylist())
    assert told == expected
    copied = next(SweepResults(tmp_path).files.iterdir())
    copied.with_name("copy.parquet").write_bytes(copied.read_bytes())
    assert read_runs(spark, tmp_path).frame.groupBy(*KEY).count().where("count > 1").isEmpty()
    assert read_runs(spark, tmp_path).frame.count() == 18
    again = run(SweepPlan(wanted.cells, wanted.seeds, tmp_path), lambda _: None, threading.Event())
    assert (again.progress.before, again.progress.done, again.slots) == (18, 18, 0), (
        "nothing was started"
    )


def test_the_schema_is_one(spark: SparkSession) -> None:
    schema = _parse_datatype_string(SweepRuns.ddl())
    assert isinstance(schema, StructType)
    assert to_arrow_schema(schema).equals(arrow_schema())
    with pytest.raises(SchemaError, match="'seed' is missing"):
        SweepRuns(spark.createDataFrame([], schema).drop("seed"))


def test_a_planted_bug_is_found_and_its_commands_find_it_again(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = tmp_path / "grid.toml"
    grid.write_text(
        "[grid]\nloss = 10\nmembers = 2\n[work]\nmessages = 4\n[hunt]\ngroups = 'told'\nmessages "
        "= 4"
    )
    options = [
        "--grid",
        str(grid),
        "--seeds",
        "2",
        "--output",
        "out",
        "--mutant",
        "purge at maximum",
    ]
    assert gapless(["sweep", *options, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["spark"], report["slots"], report["runs"], report["missing"]) == (True, 2, 4, 0)
    assert report["failed"] == len(report["failures"]) > 0
    assert {failure["key"] for failure in report["failures"]} == {
        cell["key"] for cell in report["cells"]
    } | {
        failure["key"]
        for failure in report["failures"]
        if failure["replay"].startswith("gapless sim ")
    }
    kinds = {failure["replay"].split()[1]: failure for failure in report["failures"]}
    assert set(kinds) == {"compare", "sim"}, "both kinds of runs have found it"
    for failure in kinds.values():
        first = failure["violations"][0]
        assert gapless([*shlex.split(failure["replay"])[1:], "--json"]) == 1
        assert first["message"] in capsys.readouterr().out
        assert gapless([*shlex.split(failure["shrink"])[1:], "-o", "scenarios", "--json"]) == 0
        shrunk = json.loads(capsys.readouterr().out)
        assert (shrunk["check"], shrunk["seed"]) == (first["check"], failure["seed"])
        assert shrunk["lines"] < 10
    assert gapless(["sweep", *options[:-2], "--json"]) == 0, (
        "without the bug nothing fails, and nothing is taken over"
    )
    sound = json.loads(capsys.readouterr().out)
    assert (sound["done_before"], sound["violations"]) == (0, 0)


def test_spark_that_gives_up_is_told_in_a_line(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    engine = SparkSweepExecutor(spark, None)  # type: ignore[arg-type]
    error = engine.explain_failure(PySparkException("Job aborted: lost\n at org.apache\n at java"))
    assert str(error) == "Spark has given up: Job aborted: lost"
    assert engine.explain_failure(ValueError("mine")) is None
    assert "Spark has died" in str(
        engine.explain_failure(ConnectionRefusedError(111, "Connection refused"))
    )


def test_what_spark_costs_is_measured(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        bench.main(
            ["--seeds", "3", "--rounds", "2", "--workers", "1", "--json", "--folder", str(tmp_path)]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert (report["seeds"], report["rounds"], report["violations"], report["same_digests"]) == (
        3,
        2,
        0,
        True,
    )
    assert report["overhead"] == pytest.approx(
        report["wall_s"]["spark"] / report["wall_s"]["plain"] - 1, abs=0.2
    )
    assert list(tmp_path.iterdir()) == [], "nothing stays behind"
    bench.show({"cores": 2}, report)
    assert "0 violations; the digests of both are the same" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--seeds", "0"], ["--rounds", "x"], ["--folder", "nowhere"]])
def test_a_bad_option_of_the_bench_is_one_line(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(options)
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
