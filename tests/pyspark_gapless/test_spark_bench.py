"""bench/spark.py works and says what it promises; how fast anything is, is no matter of a test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import measuring, spark as bench, spark_collector, spark_latency, spark_source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

spark_group = pytest.mark.xdist_group("spark")


@spark_group
def test_the_figures_as_json(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--quick", "--json", "--folder", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"conditions", *bench.PARTS}
    assert report["conditions"]["spark"] == spark.version
    whats = [
        *spark_source.BASELINES,
        spark_source.PARQUET,
        spark_source.PARQUET_FEW,
        spark_source.COPY,
    ]
    assert [line["what"] for line in report["source"]] == [*whats, spark_source.LOOP]
    for line in report["source"]:
        assert (line["size_bytes"], line["runs"], line["rows"]) == (100, "small", 2_000)
        assert line["rows_per_s"] > 0
        assert len(line["ratio_speed"]) == len(line["ratio_cpu"]) == len(line["ratio_loop"]) == 3
    assert len(report["spool"]) == 3
    assert [line["what"] for line in report["collector"]] == list(spark_collector.KINDS)
    assert all(line["messages_per_s"] > 0 and line["lost"] == 0 for line in report["collector"])
    asked = [(sink, source) for sink in spark_latency.SINKS for source in spark_latency.SOURCES]
    assert [(line["sink"], line["source"]) for line in report["latency"]] == asked
    for line in report["latency"]:
        assert line["messages"] == bench.QUICK.pace.messages, (
            "every message is a row that was seen, once"
        )
        assert 0 < line["p50_ms"] <= line["p99_ms"]
        assert (line["spooled_p50_ms"] is None) == (line["source"] == "socket")
        assert (line["spooled_p99_ms"] or 0) <= line["p99_ms"], (
            "a message is in the spool before it is a row"
        )
    assert list(tmp_path.iterdir()) == [], "nothing stays behind"
    assert spark.range(3).count() == 3, "a session that was there goes on"


def test_what_is_counted_as_steps_is_what_is_done(tmp_path: Path) -> None:
    reads = spark_source.Reads(None, tmp_path, spark_source.Cell(100, "large", 1))  # type: ignore[arg-type]
    assert len(reads.turns()) == spark_source.TURNS


def test_the_figures_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    cell = spark_source.Cell(100, "small", 1_000)
    names = [*spark_source.BASELINES, *spark_source.BASELINES.values(), spark_source.LOOP]
    found = {
        name: [measuring.Sample(0.001, 0.002), measuring.Sample(0.002, 0.004)] for name in names
    }
    lines = [line.__dict__ for line in spark_source.figures(cell, found)]
    bench.show({"cores": 2}, {"source": lines})
    table = capsys.readouterr().out
    assert "1.00 (1.00-1.00)" in table
    assert "750 k (500 k-1.00 M)" in table


def test_a_file_of_a_table_counts_from_when_its_log_names_it(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    entries = {"0": ["a"], "1": ["b"], "10": ["c"], "2.compact": ["a", "b", "d"]}
    for name, files in entries.items():
        lines = [json.dumps({"path": f"file:///t/{file}"}) for file in files]
        (log / name).write_text("\n".join(["v1", *lines]))
    seen = dict(spark_latency.seen_files(tmp_path))
    assert list(seen) == ["/t/a", "/t/b", "/t/d", "/t/c"]
    assert seen["/t/a"] == (log / "0").stat().st_ctime_ns


@pytest.mark.parametrize(
    "options", [["--rounds", "0"], ["--rows", "7"], ["--only", "all"], ["--folder", "nowhere"]]
)
def test_a_bad_option_is_one_line_and_status_2(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(options)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert options[-1] in err
