"""``gapless verify``: wrong input, missing packages, output; tests/pyspark_gapless runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gapless.cli.app import run
from gapless.cli.data.verify import CheckProgress, show
from pyspark_gapless.verify.verdict import CheckResult, TraceVerdict
from tests.support.missing_packages import without


def test_without_spark_it_says_what_to_install(tmp_path: Path) -> None:
    done = without("pyspark", arguments=["verify", str(tmp_path)])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gapless: PySpark is not installed: pip install 'gapless[spark]'\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["{}/none"], "no such folder; expected a folder with a trace"),
        (["{}/file"], "not a folder; expected a folder with a trace"),
        (["{}"], "there is no trace here (*.parquet and lives.jsonl); record one with --trace"),
        (["{}", "--only", "S1,S99"], "unknown check 'S99'; expected some of S1, S2"),
    ],
)
def test_wrong_input_is_named_before_spark_starts(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["verify", *(argument.format(tmp_path) for argument in arguments)]) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_a_person_sees_the_table_and_the_rows_around(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "t_ns": 5,
        "member": "b",
        "event": "DELIVER",
        "origin": "a",
        "seqno": 4,
        "seqno_last": 6,
        "peer": "",
        "reason": "",
    }
    row |= {"low": 0, "delivered": 0, "high": 0, "here": True}
    verdict = TraceVerdict(
        events=12345, incarnations=2, seeds=1, span_ns=9, mode="full", simulated=False, seconds=1.0
    )
    verdict.checks = [
        CheckResult("S3", "gapless prefix", "violated", 7, 1),
        CheckResult("L4", "cost", "not checked", 0, 0, "real"),
    ]
    verdict.incomplete = [{"life": "a", "missing_rows": 3, "why": ""}]
    verdict.violations = [
        {
            "check": "S3",
            "seed": 0,
            "member": "b",
            "origin": "a",
            "message": "delivers 4..6, but 3 is next",
            "rows": [row],
        }
    ]
    show(verdict)
    said = capsys.readouterr().out
    for text in (
        "12,345 events",
        "gapless prefix",
        "not checked",
        "3 rows of this incarnation",
        "but 3 is next",
        "4..6",
        "1 violations",
    ):
        assert text in said


def test_who_waits_is_told_what_for_and_how_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, said = [10.0], []
    monkeypatch.setattr("gapless.cli.data.verify.time.monotonic", lambda: now_s[0])
    pace = CheckProgress(lambda text, done: said.append((text, done)))
    for check, rows, took_s in (("read", 0, 1.0), ("S1", 3000, 3.0), ("S2", 10, 0.0)):
        pace(check, rows)
        now_s[0] += took_s
    assert said == [("  4.0 s  S2: 10 rows  (S1: 1,000 rows/s)", 3)]


def test_a_trace_that_shows_nothing_is_not_called_good(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = TraceVerdict(
        events=0, incarnations=0, seeds=0, span_ns=0, mode="full", simulated=False
    )
    verdict.checks = [CheckResult("L1", "delivery", "not checked", 0, 0, "no REST rows")]
    assert not verdict.has_checks
    show(verdict)
    said = capsys.readouterr().out
    assert "no check is applicable" in said
    assert "passed" not in said
