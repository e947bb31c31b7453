"""``python -m experiments``: numbers for a program, tables for a person, and what is refused."""

import json
import re
from pathlib import Path

import pytest

from experiments import join_under_load as joins
from experiments.__main__ import parse_sizes, run
from experiments.growth_page import growth_charts
from experiments.join_under_load import parameter_grid
from experiments.scale import measure
from gapless.cli.app import run as run_gapless
from gapless.sim.mutants.planting import Mutant, planted

JOINS = ("join-under-load", "--joins", "1", "--members", "3", "--workers", "1")
SCALE = ("scale", "--members", "2,10", "--messages", "20", "--workers", "1")


def test_join_under_load_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*JOINS, "--json"]) == 0
    out, err = capsys.readouterr()
    assert not err
    report = json.loads(out)
    assert (report["stuck"], report["lost"], report["delivered_before_view"]) == (0, 0, 0)
    rows = report["delays"]
    assert report["max_sender_pause_seconds"] == max(
        row["max_sender_pause_seconds"] for row in rows
    )
    assert report["joins"] == sum(row["joins"] for row in rows) == len(rows) == 7
    assert {row["view_delay_seconds"] for row in rows} == {0.1, 0.6, 2.0}
    for row in rows:
        assert row["baseline_pause_seconds"] > 0
        assert row["join_seconds"]["median"] <= row["join_seconds"]["max"]
        assert row["join_seconds"]["median"] >= row["view_delay_seconds"]


@pytest.mark.parametrize("columns", ["80", "160"])
def test_scale_for_a_person_and_as_a_plot(
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    path = tmp_path / "scale.html"
    assert run([*SCALE, "--plot", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(1 for line in lines if line.startswith("│ ")) == 2 * 2, "no row is broken in two"
    assert any(line.startswith("0 lost") for line in lines)
    page = path.read_text(encoding="utf-8")
    assert page.count("<figure") == 4
    assert "Control frames per sent message" in page
    assert len(re.findall(r'<path class="line [^"]*" d="M\d+ \d+l', page)) >= 8, (
        "curves of two points"
    )


def test_scale_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SCALE, "--json"]) == 0
    out, err = capsys.readouterr()
    assert not err
    report = json.loads(out)
    assert [size["members"] for size in report["sizes"]] == [2, 10]
    assert (report["lost"], report["problems"]) == (0, [])
    for size in report["sizes"]:
        for key in (
            "view_install_seconds",
            "join_seconds",
            "crash_to_view_seconds",
            "control_bytes_per_message",
        ):
            assert size[key] > 0
        by_kind = size["control_bytes_per_message_by_kind"]
        assert "DATA" not in by_kind
        assert sum(by_kind.values()) == pytest.approx(size["control_bytes_per_message"], abs=0.01)


def test_what_is_lost_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    bug = Mutant(
        "planted",
        "",
        "gapless.protocol.stream.inbound:InboundStream.open_at",
        "self._create_window(start)",
        "self._create_window(start + 1)",
    )
    with planted(bug):
        assert run([*SCALE, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["lost"] > 0


def test_who_is_stuck_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the table says so; one row of the experiment is enough to see it."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(joins, "parameter_grid", lambda *given: parameter_grid(*given)[:1])
    never = Mutant(
        "planted",
        "",
        "gapless.protocol.stream.inbound:InboundStream.open_at",
        "self._create_window(start)",
        "return",
    )
    with planted(never):
        assert run(JOINS) == 1
    out = capsys.readouterr().out
    assert "1 joins: 1 stuck" in out
    assert "never" in out


WRONG = {
    "an unknown experiment": (["jion"], "jion"),
    "a word in the list": (["scale", "--members", "2,ten"], "'ten'"),
    "a hole in the list": (["scale", "--members", "2,,10"], "''"),
    "no members": (["scale", "--members", ""], "2,10,50"),
    "one member": (["scale", "--members", "1"], "from 2 to"),
    "too many": (["scale", "--members", "2,1001"], "to 1000"),
    "far too many": (["scale", "--members", "9" * 5000], "to 1000"),
    "below zero": (["scale", "--members", "-3"], "'-3'"),
    "other digits": (["scale", "--members", "²"], "from 2 to"),
    "joins of scale": (["scale", "--joins", "3"], "--joins"),
    "messages of joins": (["join-under-load", "--messages", "3"], "--messages"),
    "a plot of joins": (["join-under-load", "--plot", "x.html"], "--plot"),
    "a list for joins": (["join-under-load", "--members", "3,4"], "one number"),
    "too few for joins": (["join-under-load", "--members", "2"], "from 3 to 26"),
    "no joins": (["join-under-load", "--joins", "0"], "joins"),
    "no folder for the plot": (["scale", "--members", "2", "--plot", "nowhere/x.html"], "nowhere"),
}


@pytest.mark.parametrize(("arguments", "hint"), WRONG.values(), ids=WRONG)
def test_wrong_input_gets_one_clear_line(
    arguments: list[str],
    hint: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert hint in err
    assert err.count("\n") == 1, err
    assert len(err) < 400


def test_a_list_is_sorted_and_without_repetitions() -> None:
    assert parse_sizes("10, 2,10") == [2, 10]


def test_members_of_seeds_are_a_number_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_gapless(["sim", "5", "--members", "3", "--messages", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == []


@pytest.mark.parametrize("members", ["1", "27", "2,3"])
def test_members_of_seeds_are_one_number(members: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_gapless(["sim", "3", "--members", members]) == 2
    assert "from 2 to 26" in capsys.readouterr().err


@pytest.mark.parametrize("scenario", ["scale", "join-under-load", "x"])
def test_sim_says_where_its_scenarios_went(
    scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_gapless(["sim", "--scenario", scenario]) == 2
    assert "python -m experiments scale" in capsys.readouterr().err


def test_a_chart_of_one_size_has_marks_and_no_line() -> None:
    (first, *_) = growth_charts([measure(2, messages=5)])
    assert first.count("<use") >= 2
    assert "Control traffic per delivered message" in first
