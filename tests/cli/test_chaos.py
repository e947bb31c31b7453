"""``gapless chaos``: what it refuses, and how it shows what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gapless.cli import app
from gapless.cli.lab import chaos as command
from gapless_lab.chaos import runner as running
from gapless_lab.chaos.plan import VICTIMS, ChaosPlan
from gapless_lab.chaos.runner import ChaosResult, totals
from gapless_lab.exactness import ExactnessVerdict


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--seeds", "0"], "--seeds"),
        (["--seeds", "9" * 30], "--seeds"),
        (["--loss", "0.9"], "0 to 0.5"),
        (["--loss", "nan"], "write 5%"),
        (["--group-kills", "1"], "2 to 100"),
        (["--producers", "99"], "1 to 16"),
        (["--rate", "0"], "1 to 20,000"),
        (["--sede", "3"], "--seed"),
    ],
)
def test_wrong_input_gets_one_clear_line(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["chaos", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    assert hint in err


def test_a_folder_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert app.run(["chaos", "--folder", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def found(seed: int, **figures: int) -> ChaosResult:
    findings = (
        ["missing: 2 messages, 5..6 of producer 1 (a.1 5..6)"] if figures.get("missing") else []
    )
    verdict = ExactnessVerdict(sent=12, acknowledged=10, rows=11, findings=findings, **figures)
    kills = dict.fromkeys(VICTIMS, 0) | {"producer": 1, "driver": 2}
    return ChaosResult(
        ChaosPlan(seed, rate=seed * 50),
        verdict,
        kills,
        3,
        0,
        {"all": 12.3},
        Path("kept") if findings else None,
    )


def test_a_table_shows_each_seed_and_what_is_wrong_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = [found(1), found(2, missing=2)]
    command._show(results, totals(results))
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in lines] == ["1", "2", "all"]
    assert [line.split("│")[5].strip() for line in lines] == ["0", "2", "2"]
    assert [line.split("│")[-2].strip() for line in lines] == ["yes", "no", "no"]
    assert "once more: gapless chaos --seed 2\n" in shown
    assert "5..6 of producer 1" in shown


def test_how_to_run_a_seed_once_more() -> None:
    assert ChaosPlan(7).replay_command == "gapless chaos --seed 7"
    changed = ChaosPlan(7, rate=50, loss=0.1, group_kills=5).replay_command
    assert changed == "gapless chaos --seed 7 --rate 50 --loss 0.1 --group-kills 5"
    full = ChaosPlan(7, rate=50, back_pressure=True).replay_command
    assert full == "gapless chaos --seed 7 --rate 50 --back-pressure"


def test_a_program_gets_figures_for_each_seed_and_in_all() -> None:
    results = [found(1), found(2, missing=2)]
    told = json.loads(json.dumps([result.as_dict() for result in results]))
    assert [seed["sound"] for seed in told] == [True, False]
    assert told[1]["missing"] == 2
    assert told[1]["folder"] == "kept"
    assert {
        "seed",
        "kills",
        "sent",
        "acknowledged",
        "rows",
        "missing",
        "repeated",
        "out_of_order",
    } <= told[0].keys()
    assert running.totals(results)["kills"]["driver"] == 4
    assert running.totals(results)["missing"] == 2
