"""``gapless sweep``: wrong options, missing packages, output; tests/pyspark_gapless runs it."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from gapless.cli.app import run
from gapless.cli.lab import sweep as command
from pyspark_gapless.sweep.runner import SweepProgress
from tests.support.missing_packages import without

GRID = """
[grid]
profile = ["nakack4", "ordered"]
members = 2
loss = [0, 20]

[work]
messages = 5
"""

WRONG = {
    "neither": ([], "either a --grid FILE or a --preset"),
    "both": (["--grid", "x.toml", "--preset", "hunt"], "either"),
    "no such file": (["--grid", "x.toml"], "cannot read x.toml"),
    "no such preset": (["--preset", "hnut"], "did you mean 'hunt'?"),
    "no seeds": (["--preset", "hunt", "--seeds", "0"], "0"),
    "a seed below zero": (["--preset", "hunt", "--first", "-1"], "-1"),
    "seeds beyond the last": (
        ["--preset", "hunt", "--first", str(2**63 - 2)],
        "beyond the last one",
    ),
    "two ways": (["--preset", "hunt", "--master", "local[2]", "--no-spark"], "one of them"),
    "workers of Spark": (["--preset", "hunt", "--workers", "2"], "--workers goes with --no-spark"),
    "no such master": (["--preset", "hunt", "--master", "nowhere"], "local[*]"),
    "no such bug": (["--preset", "hunt", "--mutant", "a fly"], "unknown mutant 'a fly'"),
    "the grid of a file": (["--grid", "x.toml", "--print-grid"], "--preset"),
    "a pattern": (["--preset", "hunt", "--no-spark", "--output", "out*"], "another folder"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_told_in_a_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, said = WRONG[name]
    assert run(["sweep", *options]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert said in err
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_a_bad_grid_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text("[grid]\ncapactiy = [1, 2]")
    assert run(["sweep", "--grid", str(grid), "--output", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "grid.toml: [grid] unknown setting 'capactiy': did you mean 'capacity'" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("package", "options"), [("pyspark", []), ("pyarrow", ["--no-spark"])])
def test_without_spark_it_says_what_to_install(
    package: str, options: list[str], tmp_path: Path
) -> None:
    done = without(package, arguments=["sweep", "--preset", "hunt", *options], folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not installed" in done.stderr
    assert done.stderr.endswith(": pip install 'gapless[spark]'\n")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_grid_of_a_preset_can_be_kept_and_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "--preset", "protocols", "--print-grid"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Every profile")
    from pyspark_gapless.sweep.grid_file import preset, read_grid

    assert read_grid(text) == read_grid(preset("protocols"))


def test_a_grid_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID)
    options = [
        "sweep",
        "--grid",
        str(grid),
        "--seeds",
        "2",
        "--no-spark",
        "--workers",
        "1",
        "--output",
        str(out),
    ]
    assert run([*options, "--json"]) == 0
    told, err = capsys.readouterr()
    assert not err
    report = json.loads(told)
    assert (report["runs"], report["done_before"], report["done_now"], report["spark"]) == (
        8,
        0,
        8,
        False,
    )
    assert [(cell["loss"], cell["profile"], cell["runs"]) for cell in report["cells"]] == [
        (0.0, "nakack4", 2),
        (20.0, "nakack4", 2),
        (0.0, "ordered", 2),
        (20.0, "ordered", 2),
    ]
    assert report["cells"][0]["delivered"] == report["cells"][0]["expected"] == 20
    assert run(options) == 0
    told = capsys.readouterr().out
    assert "0 runs in" in told
    assert "8 were there" in told
    assert "0 violations in 8 runs" in told
    assert "4 cells, 2 runs of each" in told
    lines = told.splitlines()
    rows = [line.split() for line in lines if line.startswith("  nakack4 ")]
    assert len(rows) == 4, "a line for each cell in two tables"
    assert rows[0][:3] == ["nakack4", "100", "%"]
    assert [line for line in lines if line.startswith("loss ")] == ["loss 0 %", "loss 20 %"] * 2
    assert max(len(line) for line in lines if "results: " not in line) <= 80


def test_what_lines_of_a_grid_differ_in() -> None:
    from pyspark_gapless.sweep.grid_file import read_grid

    assert command._axes(read_grid("[grid]")) == ["profile"]
    assert command._axes(read_grid("[grid]\nloss = [1, 2]\ncapacity = [4, 8]")) == [
        "loss",
        "capacity",
    ]
    grid = "[grid]\nprofile = ['nakack4', 'classic']\nloss = [1, 2]\ncapacity = [4, 8]\n"
    both = f"{grid}[work]\nsize = [1, 2]"
    assert command._axes(read_grid(both)) == ["loss", "capacity", "size", "profile"]


def test_a_hunt_shows_failures_with_their_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text("[hunt]\nmessages = 3\nmembers = 2")
    options = [
        "sweep",
        "--grid",
        str(grid),
        "--seeds",
        "2",
        "--no-spark",
        "--workers",
        "1",
        "--first",
        "1",
    ]
    assert run([*options, "--output", str(tmp_path / "bad"), "--mutant", "purge at maximum"]) == 1
    told = capsys.readouterr().out
    commands = [line.strip() for line in told.splitlines() if line.startswith("  replay: ")]
    assert 'replay: gapless sim 1 --messages 3 --members 2 --mutant "purge at maximum"' in commands
    assert "runs failed" in told
    assert run([*options, "--output", str(tmp_path / "good")]) == 0
    told = capsys.readouterr().out
    assert "told: " in told
    assert "membership: " in told
    assert (
        "no violation: at 95 % confidence a bug shows in fewer than 1e+02 % of such runs"
        not in told
    )
    assert "Faults that struck" in told


def test_progress_has_a_rate_and_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_gapless.sweep.runner.monotonic", lambda: 110.0)
    stand = SweepProgress(total=1_000, before=100, done=100, began_s=100.0)
    assert command.progress_text(stand) == "", "nothing is known"
    stand.done = 120
    assert command.progress_text(stand) == "2.0/s, 7:20 left", (
        "what was there before does not count"
    )
    stand.total = 100_120
    assert command.progress_text(stand) == "2.0/s, 13:53:20 left"


def test_ctrl_c_ends_in_good_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_gapless.sweep import runner as running

    def interrupted(plan: object, tell: object, stop: threading.Event) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(10)
        return original(plan, tell, stop)  # type: ignore[arg-type]

    original = running.run
    monkeypatch.setattr(running, "run", interrupted)
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID)
    options = ["--no-spark", "--workers", "1", "--output", str(tmp_path / "out")]
    assert run(["sweep", "--grid", str(grid), "--seeds", "2", *options]) == 130
    out, err = capsys.readouterr()
    assert "what is under way is still kept" in err
    assert "8 runs are still to do: the same command goes on" in out
