"""Every scenario file plays to its golden outcome; an invalid file is refused in one line."""

import json
from pathlib import Path

import pytest

from gapless.cli.app import run
from gapless.config import Config
from gapless.sim.scenario.grammar import read_script, show_script
from gapless.sim.scenario.literals import ScenarioError
from gapless.sim.scenario.scenario_file import (
    RULE,
    Scenario,
    difference,
    format_head,
    load,
    parse,
    play,
)
from gapless.sim.shrink.shrinker import SeedOrigin, recorded
from gapless.sim.world.world import World

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))
SMALL = """\
# What it is about.

knobs capacity=8
calm 10ms
group a b
5ms a sends "one" "two"
lose DATA a1..2 a->b #1
"""


# The files of the project


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    scenario = load(path)
    outcome = play(scenario)
    assert difference(scenario, outcome) == [], "look at it with: gapless scenario FILE"
    assert outcome.lines[-1] == "ok"
    assert not [line for line in outcome.lines if line.startswith(("never sent", "a fault struck"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_says_what_it_is_about(path: Path) -> None:
    scenario = load(path)
    about = ("N4-", "N7-", "NR-", "OL-", "U3-", "P-", "R-", "I-", "M-", "S4", "S13")
    assert any(word in "".join(scenario.notes) for word in about)
    assert scenario.text() == path.read_text(encoding="utf-8")
    assert len(scenario.outcome) < 70


def test_the_story_of_the_protocol_is_told() -> None:
    assert len(FILES) >= 15


# Recorded runs


@pytest.mark.parametrize("seed", range(1, 31))
def test_a_recorded_run_in_words_is_the_same_run(seed: int) -> None:
    case, check = recorded(SeedOrigin(seed, 6))
    assert check == ""
    lines = show_script(case.script)
    again = read_script(enumerate(lines, 1))
    assert again == case.script
    assert show_script(again) == lines
    written = parse(format_head(Scenario(case.script, case.config)))
    assert (written.script, written.config) == (case.script, case.config)
    first, second = World(case.config, case.script), World(written.config, written.script)
    first.run()
    second.run()
    assert first.digest() == second.digest()


# Parsing and printing


def test_a_file_in_its_parts() -> None:
    scenario = parse(f"{SMALL}{RULE}\nsome\noutcome\n")
    assert scenario.notes == ("What it is about.",)
    assert scenario.config == Config(capacity=8)
    assert scenario.outcome == ("some", "outcome")
    assert scenario.script.messages() == 2
    assert scenario.text() == f"{SMALL}{RULE}\nsome\noutcome\n"
    assert format_head(scenario) == SMALL


def test_the_head_stays_as_it_was_written() -> None:
    odd = '# one\n\n  group   a b\n# in between\n1ms a sends "x"\n'
    assert parse(f"{odd}{RULE}\n").text() == f"{odd}{RULE}\n"
    assert parse(odd).outcome == ()


def test_a_planted_bug_belongs_to_the_file() -> None:
    scenario = parse('planted: purge at maximum\ngroup a b\n0ms a sends "x"\n')
    assert scenario.bug == "purge at maximum"
    assert play(scenario).checks == ("S9",)
    assert play(scenario, bug="").ok
    assert format_head(scenario).startswith("planted: purge at maximum\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "f.txt:1: there is no script"),
        ("# only words\n", "f.txt:1: there is no script"),
        (f"{RULE}\nok\n", "f.txt:1: there is no script above the rule"),
        ("group a b\n\nfly\n", "f.txt:3: cannot read 'fly'"),
        ("knobs capacity=0\ngroup a\n", "f.txt:1: capacity = 0: expected a whole number"),
        ("group a\nknobs speed=3\n", "f.txt:2: unknown setting 'speed'"),
        ("planted: gremlins\ngroup a\n", "f.txt:1: unknown mutant 'gremlins'"),
    ],
)
def test_nonsense_is_refused_by_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "f.txt")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_script_that_cannot_be_played() -> None:
    scenario = parse("group a\n5ms a sends\n")
    with pytest.raises(ScenarioError, match="cannot be played: no messages to send"):
        play(scenario)


@pytest.mark.parametrize("line", ['5ms b sends "x"', "5ms a installs view 2: a b"])
def test_somebody_who_never_started(line: str) -> None:
    with pytest.raises(ScenarioError, match="at 5ms a line names b, which has not started"):
        play(parse(f"group a\n{line}\n"))


# The outcome


def test_fates_that_strike_nothing_and_faults_in_the_calm_are_named() -> None:
    lines = play(
        parse('group a b\n1ms a sends "x"\nlose DATA a1 a->b #1\nlose DATA a9 a->b #1\n')
    ).lines
    assert "never sent: DATA a9 a->b #1" in lines
    assert "a fault struck at 1ms, when the network was to be calm" in lines


def test_the_story_has_a_row_for_every_datagram() -> None:
    lines = play(parse(SMALL)).lines
    assert lines[:6] == (
        "        a b",
        "   0ms  ● ●  a b start",
        "   0ms  ● ●  a b install view 1: a b",
        "   5ms  ● │  a sends a1..2, delivers a1..2",
        "   5ms  ●─✗  DATA a1..2",
        "  25ms  ●─▶  TAIL a low 0 high 2",
    )
    assert lines[-2:] == ("marks of a: a 2/2/2, b 2/2/2", "ok")


def test_arrows_cross_the_lanes_of_others() -> None:
    lines = play(
        parse(
            'group a b c\n1ms b sends "x"\n1ms a sends "y"\n'
            "delay DATA a1 a->c #1 to 3ms\ncalm 5ms\n"
        )
    ).lines
    assert "◀─●─▶  DATA b1" in lines[4]
    assert "●─▶─▶  DATA a1; to c: 3ms" in lines[6]
    assert any("◀─┼─●  ACK a1" in line for line in lines)


def test_a_long_story_is_cut() -> None:
    sends = "\n".join(f"{ms}ms a sends a{ms} of 8B" for ms in range(1, 100))
    lines = play(parse(f"group a b\n{sends}\n")).lines
    assert len(lines) < 90
    assert any(line.startswith("… and ") for line in lines)


def test_what_never_ends_is_stopped() -> None:
    scenario = parse(
        'group a b\n1ms a sends "x"\nlose DATA a1 a->b #1\nlose TAIL a0..1 a->b #1..9000\n'
    )
    outcome = play(scenario)
    assert "L2" in outcome.checks


# The command


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.txt"
    path.write_text(f"{SMALL}{RULE}\nok\n", encoding="utf-8")
    return path


def test_command_shows_the_difference_and_rewrites(
    scenario_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scenario", str(scenario_file)]) == 1
    shown = capsys.readouterr().out
    assert "+   5ms  ●─✗  DATA a1..2" in shown
    assert run(["scenario", str(scenario_file), "--rewrite"]) == 0
    assert scenario_file.read_text(encoding="utf-8").startswith(SMALL + RULE)
    assert run(["scenario", str(scenario_file.parent)]) == 0
    assert "same" in capsys.readouterr().out.rpartition("golden outcome")[2]


def test_command_as_json(scenario_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", str(scenario_file), "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert (output["files"], output["differ"]) == (1, 1)
    assert output["results"][0]["verdict"] == "ok"
    assert output["results"][0]["patch"][0] == "--- golden"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("group a\nfly\n", "bad.txt:2: cannot read 'fly'"),
        ("group a\n1ms a sends\n", "cannot be played"),
    ],
)
def test_command_refuses_nonsense(
    tmp_path: Path, content: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(content, encoding="utf-8")
    assert run(["scenario", str(path)]) == 2
    output = capsys.readouterr().err
    assert complaint in output
    assert output.count("\n") == 1


def test_command_needs_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scenario", str(tmp_path / "missing.txt")]) == 2
    assert run(["scenario", str(tmp_path)]) == 2
    assert "there is no scenario" in capsys.readouterr().err


# The docs


def test_the_example_of_the_docs_is_a_file_of_the_tests() -> None:
    page = (FOLDER.parent.parent / "docs" / "internals/scenarios.md").read_text(encoding="utf-8")
    assert f"\n```\n{(FOLDER / 'lost-last-message.txt').read_text(encoding='utf-8')}```\n" in page


def test_every_line_of_the_docs_can_be_read() -> None:
    page = (FOLDER.parent.parent / "docs" / "internals/scenarios.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    lines = [row.split("|")[1].split("`")[1] for row in rows]
    assert len(lines) > 20
    for line in lines:
        head = "\n".join([line.replace("NAME", "purge at maximum"), "group q"])
        assert parse(head).script.actions
