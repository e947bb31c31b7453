"""``gapless sim --scenario``: numbers for a program, tables for a person, and what is refused."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from gapless.cli.app import run
from gapless.cli.lab import experiments
from gapless.cli.lab.plot import PlotLine, PlotPanel, svg
from gapless.sim import joins
from gapless.sim.joins import parameter_grid
from gapless.sim.mutants.runner import planted
from gapless.sim.mutants.stream_mutants import Mutant

JOINS = ("sim", "--scenario", "join-under-load", "--joins", "1", "--members", "3", "--workers", "1")
SCALE = ("sim", "--scenario", "scale", "--members", "2,10", "--messages", "20", "--workers", "1")


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
    path = tmp_path / "scale.svg"
    assert run([*SCALE, "--plot", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(1 for line in lines if line.startswith("│ ")) == 2 * 2, "no row is broken in two"
    assert any(line.startswith("0 lost") for line in lines)
    picture = ET.fromstring(path.read_text())
    assert len(picture.findall(".//{*}polyline")) >= 8
    assert "Control frames for each message sent" in path.read_text()


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
    "an unknown scenario": (["--scenario", "jion"], "join-under-load, scale"),
    "an empty scenario": (["--scenario", ""], "join-under-load, scale"),
    "a scenario and seeds": (["--scenario", "scale", "--seeds", "3"], "--seeds"),
    "a scenario and a profile": (["--scenario", "scale", "--profile", "nakack4"], "--profile"),
    "a scenario and knobs": (["--scenario", "scale", "--properties", "capacity=4"], "--properties"),
    "a scenario and membership": (["--scenario", "scale", "--membership"], "--membership"),
    "a word in the list": (["--scenario", "scale", "--members", "2,ten"], "'ten'"),
    "a hole in the list": (["--scenario", "scale", "--members", "2,,10"], "''"),
    "nobody": (["--scenario", "scale", "--members", ""], "2,10,50"),
    "one member": (["--scenario", "scale", "--members", "1"], "from 2 to"),
    "too many": (["--scenario", "scale", "--members", "2,1001"], "to 1000"),
    "far too many": (["--scenario", "scale", "--members", "9" * 5000], "to 1000"),
    "below zero": (["--scenario", "scale", "--members", "-3"], "'-3'"),
    "other digits": (["--scenario", "scale", "--members", "²"], "from 2 to"),
    "joins of scale": (["--scenario", "scale", "--joins", "3"], "--joins"),
    "messages of joins": (["--scenario", "join-under-load", "--messages", "3"], "--messages"),
    "a plot of joins": (["--scenario", "join-under-load", "--plot", "x.svg"], "--plot"),
    "a list for joins": (["--scenario", "join-under-load", "--members", "3,4"], "one number"),
    "too few for joins": (["--scenario", "join-under-load", "--members", "2"], "from 3 to 26"),
    "no joins": (["--scenario", "join-under-load", "--joins", "0"], "joins"),
    "joins of a seed": (["3", "--joins", "3"], "--scenario"),
    "a list for seeds": (["3", "--members", "2,3"], "--scenario scale"),
    "one member of a seed": (["3", "--members", "1"], "from 2 to 26"),
    "a crowd of a seed": (["3", "--members", "27"], "from 2 to 26"),
    "no folder for the plot": (
        ["--scenario", "scale", "--members", "2", "--plot", "nowhere/x.svg"],
        "nowhere",
    ),
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
    assert run(["sim", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert hint in err
    assert err.count("\n") == 1, err
    assert len(err) < 400


def test_a_list_is_sorted_and_without_repetitions() -> None:
    assert experiments.parse_sizes("10, 2,10") == [2, 10]


def test_members_of_seeds_are_a_number_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "5", "--members", "3", "--messages", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == []


# Plots


def test_a_plot_of_one_point_and_of_nothing() -> None:
    panels = [
        PlotPanel(
            "one <point>", "members", [2.0], [PlotLine("a", [5.0]), PlotLine("b & c", [None])]
        )
    ]
    picture = ET.fromstring(svg(panels))
    (line,) = picture.findall(".//{*}polyline")
    assert line.get("points", "").count(",") == 1
    assert "one <point>" in [text.text for text in picture.findall(".//{*}text")]


def test_a_higher_value_is_drawn_higher_and_labels_do_not_touch() -> None:
    lines = [PlotLine("low", [1.0, 10.0]), PlotLine("high", [2.0, 11.0])]
    picture = ET.fromstring(svg([PlotPanel("two", "members", [2.0, 300.0], lines)]))
    first, second = (
        line.get("points", "").split()[0].split(",") for line in picture.findall(".//{*}polyline")
    )
    assert float(first[1]) < float(second[1]), (
        "the line with the higher end is drawn first, and is higher"
    )
    heights = [
        float(text.get("y", "0"))
        for text in picture.findall(".//{*}text")
        if text.text in {"low", "high"}
    ]
    assert abs(heights[0] - heights[1]) >= 13
