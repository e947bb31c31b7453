"""``gapless compare``: its numbers for a program, its tables for a person, and what it refuses."""

import json
from pathlib import Path

import pytest

from gapless.cli.app import run
from gapless.cli.lab import compare as command
from gapless.sim.mutants.catalogue import mutant_by_name
from gapless.sim.mutants.planting import planted
from gapless.sim.profile_cost import KINDS, ProfileCell

SMALL = ("compare", "--messages", "20", "--workers", "1")


def test_json_has_a_row_for_each_profile_and_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                *SMALL,
                "--loss",
                "0,2.5%",
                "--profiles",
                "nakack4,unicast3",
                "--members",
                "2",
                "--json",
            ]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert not err
    report = json.loads(out)
    assert (report["members"], report["messages"], report["size_bytes"], report["seed"]) == (
        2,
        20,
        100,
        1,
    )
    assert report["violations"] == 0
    rows = report["profiles"]
    assert [(row["loss_percent"], row["profile"], row["to"]) for row in rows] == [
        (0.0, "nakack4", "all"),
        (0.0, "unicast3", "one"),
        (2.5, "nakack4", "all"),
        (2.5, "unicast3", "one"),
    ]
    for row in rows:
        assert row["delivered"] == row["expected"] == 40
        assert row["latency_p50_ms"] <= row["latency_p99_ms"] <= row["latency_max_ms"]
        assert row["messages_per_second"] > 0
        assert row["peak_window"] > 0
        for counts in ("frames", "bytes", "frames_per_message", "bytes_per_message"):
            assert tuple(row[counts]) == KINDS
        assert row["frames_per_message"]["data"] == 1
    assert [tuple(row) for row in report["single_loss"]] == [
        ("profile", "only_ms", "first_ms", "last_ms", "violations")
    ] * 2


def test_json_says_what_never_came(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--loss", "20%", "--profiles", "ordered", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["profiles"]
    assert row["delivered"] < row["expected"]
    assert row["stalls"] > 0
    assert report["single_loss"][0]["last_ms"] is None


@pytest.mark.parametrize("columns", ["100", "160"])
def test_tables_fit_the_screen(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run([*SMALL, "--loss", "0,10%", "--profiles", "ordered,unicast2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    rows = [line for line in lines if "unicast2" in line]
    assert len(rows) == 2 * 3 + 1, (
        "no row is broken in two: two losses in three tables, and the single losses"
    )
    assert any("never" in line for line in lines if "ordered" in line)
    assert any(line.startswith("0 violations") for line in lines)


def test_a_violation_is_shown_and_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with planted(mutant_by_name("purge at maximum")):
        assert run([*SMALL, "--loss", "10%", "--profiles", "nakack4"]) == 1
    out = capsys.readouterr().out
    assert "nakack4 at 10 %: " in out
    assert "\n0 violations" not in out


def test_knobs_hold_for_every_profile(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--loss", "0", "--profiles", "nakack4,unicast3", "--pace", "1us", "--json"]
    assert run([*SMALL, *options, "--properties", "capacity=3"]) == 0
    assert [row["peak_window"] for row in json.loads(capsys.readouterr().out)["profiles"]] == [3, 3]


def test_a_planted_bug_is_shown_again_and_shrunk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = [
        "--mutant",
        "purge at maximum",
        "--loss",
        "10%",
        "--messages",
        "20",
        "--properties",
        "capacity=8",
        "--json",
    ]
    assert run(["compare", "--profiles", "nakack4", "--seed", "3", *bug]) == 1
    found = json.loads(capsys.readouterr().out)["profiles"][0]["violations"]
    assert run(["shrink", "3", "--profile", "nakack4", *bug, "-o", str(tmp_path)]) == 0
    shrunk = json.loads(capsys.readouterr().out)
    assert found[0].startswith(shrunk["check"] + " ")
    assert shrunk["command"].startswith("gapless compare --profiles nakack4 --seed 3 --loss 10% ")
    assert shrunk["lines"] < 10


WRONG_SHRINKS = {
    "no profile": (["--loss", "5%"], "--profile"),
    "a size alone": (["--size", "5"], "--loss"),
    "a pace alone": (["--pace", "5ms"], "--loss"),
    "membership": (["--loss", "5%", "--profile", "nakack4", "--membership"], "--membership"),
    "too much loss": (["--loss", "77%", "--profile", "nakack4"], "0 to 50%"),
    "a bad pace": (["--loss", "7%", "--profile", "nakack4", "--pace", "1h"], "between 1us and 1s"),
    "no failure": (["--loss", "7%", "--profile", "nakack4", "--messages", "2"], "does not fail"),
}


@pytest.mark.parametrize(("arguments", "hint"), WRONG_SHRINKS.values(), ids=WRONG_SHRINKS)
def test_shrinking_needs_to_know_the_cell(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["shrink", "1", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    assert hint in err


WRONG = {
    "a word": (["--loss", "much"], "'much'"),
    "nothing": (["--loss", ""], "has an empty item"),
    "a hole in the list": (["--loss", "0,,5%"], "has an empty item"),
    "below zero": (["--loss", "0,-1%"], "'-1%'"),
    "too much": (["--loss", "50.1%"], "from 0 to 50%"),
    "no number": (["--loss", "nan"], "'nan'"),
    "without end": (["--loss", "inf"], "'inf'"),
    "an unknown profile": (["--profiles", "nakack4,nakack5"], "'nakack5'"),
    "no profile": (["--profiles", ""], "is missing"),
    "a pace without a unit": (["--pace", "1"], "--pace"),
    "no pace": (["--pace", "0ms"], "between 1us and 1s"),
    "one member": (["--members", "1"], "members"),
    "no messages": (["--messages", "0"], "messages"),
    "a size below zero": (["--size", "-1"], "size"),
    "an unknown knob": (["--properties", "capacty=4"], "'capacity'"),
    "a second profile": (["--properties", "profile=nakack"], "second time"),
    "no such bug": (["--mutant", "a fly"], "'a fly'"),
}


@pytest.mark.parametrize(("arguments", "hint"), WRONG.values(), ids=WRONG)
def test_wrong_input_gets_one_clear_line(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err
    assert hint in err


def test_only_all_of_it_is_100_percent() -> None:
    assert command._share(ProfileCell("nakack4", 0, 1, 100_000, delivered=100_000)) == "100 %"
    assert command._share(ProfileCell("nakack4", 0, 1, 100_000, delivered=99_999)) == "99.9 %"
