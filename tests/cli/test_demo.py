"""``gapless demo`` without Spark: real processes, a kill, output; tests/pyspark_gapless has all."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gapless.cli.app import run
from gapless.cli.lab.common import RunDisplay
from gapless.cli.lab.demo import STAGES, show
from gapless.trace import read
from gapless_lab.demo.plan import MARKER, DemoPlan
from gapless_lab.demo.result import SUMMARY, DemoResult
from gapless_lab.sensor_pipeline.runner import PipelineProgress


def test_the_group_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert (
        run(
            [
                "demo",
                "--no-spark",
                "--json",
                "--messages",
                "300",
                "--seed",
                "3",
                "--output",
                str(output),
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert (result["sent"], result["kills"], result["members"]) == (900, 1, 4)
    assert (result["lost"], result["duplicates"], result["out_of_order"], result["violations"]) == (
        0,
        0,
        0,
        0,
    )
    assert result["rows"] is None
    assert result["sound"]
    assert result["delivered"] >= 900 * 2, "at the collector and at the other producers that lived"
    lives = {row.member for row in read(output / "trace") if row.event == "BEGIN"}
    rested = {row.member for row in read(output / "trace") if row.event == "REST"}
    assert (len(lives), len(rested)) == (5, 4), "one life was killed"


def test_only_the_folder_of_a_demo_is_cleared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert run(["demo", "--no-spark", "--output", str(tmp_path)]) == 2
    assert "was not made by a demo" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "precious"
    (tmp_path / MARKER).write_text('{"name": "somebody else has a file of that name"}')
    assert run(["demo", "--no-spark", "--output", str(tmp_path)]) == 2
    assert "was not made by a demo" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "precious"
    output = tmp_path / "out"
    with DemoPlan(output=output).locked_output():
        (output / "left").touch()
    with DemoPlan(output=output).locked_output():
        assert [path.name for path in output.iterdir()] == [MARKER]


def test_two_demos_do_not_share_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    with DemoPlan(output=output).locked_output():
        (output / "spool").mkdir()
        assert run(["demo", "--no-spark", "--output", str(output)]) == 2
        assert "another demo runs there" in capsys.readouterr().err
        assert (output / "spool").exists()


def text_of(result: DemoResult, capsys: pytest.CaptureFixture[str]) -> str:
    show(result)
    return " ".join(capsys.readouterr().out.split())


def result(**more: object) -> DemoResult:
    about = ("members", "loss_percent", "kills", "sent", "latency_p50_ms", "latency_p99_ms")
    figures: dict[str, object] = {**dict.fromkeys((*about, *SUMMARY), 0), **more}
    return DemoResult(figures=figures, seconds={"send": 9.0}, trace="t", report="r.html")


def test_what_people_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(result(sent=30_000, rows=30_000, kills=1, loss_percent=5.0), capsys)
    assert "5 % of the datagrams lost, one killed and back" in text
    assert "every message once" in text
    assert "report: r.html" in text


@pytest.mark.parametrize("wrong", ["lost", "duplicates", "out_of_order", "violations"])
def test_what_is_wrong_is_not_called_sound(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = result(**{wrong: 1})
    assert not found.is_sound
    assert "NOT as it should be" in text_of(found, capsys)


def test_progress() -> None:
    stand = PipelineProgress(
        "send",
        5.0,
        acknowledged=10,
        expected=40,
        rows={"bronze": 7},
        steps={"start": 2.0, "send": 3.0, "tables": None},
    )
    screen = Console(file=StringIO(), width=100)
    screen.print(RunDisplay("gapless demo", STAGES).view(stand))
    shown = [row.split() for row in screen.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert shown[:2] == [
        ["gapless", "demo", "send", "5", "s"],
        [*["✓", "start", "four", "processes", "2.0", "s"]],
    ]
    assert [row[0] for row in shown[1:4]] == ["✓", "▸", "·"]
    assert [row[:2] for row in shown[6:]] == [
        ["sent", "0"],
        ["acknowledged", "10"],
        ["bronze", "7"],
    ]
    assert shown[6][-2:] == ["of", "40"]
    line = RunDisplay("gapless demo", STAGES).line(replace(stand, note="in order"))
    assert line == "    5 s  send through the lossy group, kill a producer, bring it back: in order"
