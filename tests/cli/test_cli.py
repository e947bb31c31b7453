"""The command line: help, JSON output, and one line with exit code 2 for wrong input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from gapless.cli.app import GROUPS, cli, run
from gapless.cli.parameters import format_share, parse_seconds, parse_share
from gapless.cli.rendering import DOCS_URL
from gapless.errors import ConfigError

COMMANDS = sorted(cli.commands)
ROOT = Path(__file__).resolve().parents[2]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    """Return the JSON object that a command prints, and nothing else."""
    assert run([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert not err
    result: dict[str, object] = json.loads(out)
    return result


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert "0.2" in capsys.readouterr().out


def test_the_help_lists_every_command_in_its_group_and_cuts_nothing_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert "..." not in out.replace("[ARGS]...", "")
    assert max(map(len, out.splitlines())) <= 80
    listed = [str(command.name) for commands in GROUPS.values() for command in commands]
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")][3:-1] == listed
    assert set(COMMANDS) - set(listed) <= {"behaviours"}


def test_help_names_pages_that_exist() -> None:
    pages = {page for commands in GROUPS.values() for _, page in commands.values()}
    assert [page for page in sorted(pages) if not (ROOT / "docs" / f"{page}.md").exists()] == []
    declared = re.search(
        r'^Documentation = "(.+)/"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert declared
    assert declared[1] == DOCS_URL


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_no_file_that_the_wheel_lacks(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    if command != "behaviours":  # it reads a checkout
        assert ".md" not in capsys.readouterr().out


LOSING = [name for name in COMMANDS if any("--loss" in p.opts for p in cli.commands[name].params)]


def test_a_loss_is_written_the_same_way_in_every_command() -> None:
    assert LOSING == ["bench", "chaos", "compare", "demo", "pipeline", "shrink", "soak"]
    for name in LOSING:
        option = next(p for p in cli.commands[name].params if "--loss" in p.opts)
        context = click.Context(cli.commands[name])
        found = [option.type_cast_value(context, text) for text in ("5%", "0.05", " 5 % ")]
        assert found in ([0.05] * 3, [(0.05,)] * 3), name
        for wrong in ("5", "150%", "nan", "-1%", "much", "", "1e9"):
            with pytest.raises(click.BadParameter):
                option.type_cast_value(context, wrong)


@pytest.mark.parametrize("percent", [*range(101), 0.1, 2.5, 33.3])
def test_a_share_reads_back(percent: float) -> None:
    share = parse_share(f"{percent}%")
    assert parse_share(format_share(share)) == share
    assert share == percent / 100


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2), ("2", 2), ("0.25", 0.25), ("10min", 600)]
)
def test_a_duration_is_a_text_or_a_number_of_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds
    for wrong in ("-1", "nan", "inf", "soon", "2 parsecs"):
        with pytest.raises(ConfigError):
            parse_seconds(wrong)


WRONG = {
    "unknown command": (["smi"], "smi"),
    "unknown option": (["sim", "--sedes", "3"], "--seeds"),
    "no seed": (["sim"], "SEED"),
    "seed and seeds": (["sim", "3", "--seeds", "4"], "SEED"),
    "a bug for many seeds": (["sim", "--seeds", "4", "--mutant", "ack of high"], "gapless sweep"),
    "seed is a word": (["sim", "three"], "three"),
    "unknown profile": (["sim", "3", "--profile", "nakack5"], "nakack4"),
    "unknown knob": (["config", "--properties", "capacty=4"], "capacity"),
    "impossible value": (["config", "--properties", "capacity=-4"], "capacity"),
    "impossible pair": (
        ["sim", "3", "--properties", "capacity=4;ack_threshold=5"],
        "ack_threshold",
    ),
    "no such config": (["sim", "3", "--config", "nowhere.toml"], "nowhere.toml"),
    "two sources": (["config", "--properties", "capacity=4", "--config", "x.toml"], "one of them"),
    "no such scenario": (["scenario", "nowhere.txt"], "nowhere.txt"),
    "unknown mutant": (["mutants", "--only", "nobody"], "take over a gap"),
    "too few receivers": (["explore", "--receivers", "0"], "receivers"),
    "loss of everything": (["demo", "--loss", "99"], "loss"),
    "loss of nothing known": (["demo", "--loss", "nan"], "loss"),
    "no messages": (["demo", "--messages", "0"], "1 to 1,000,000"),
    "Spark and no Spark": (["demo", "--no-spark", "--master", "local[2]"], "one of them"),
    "a folder with a pattern": (["demo", "--output", "out*"], "another folder"),
    "more seeds than there are": (["sim", "--seeds", "9" * 30], "seeds"),
    "a seed too large": (["sim", "9" * 30], "SEED"),
    "a number too long": (["config", "--properties", "capacity=" + "9" * 5000], "capacity"),
    "a duration too long": (
        ["config", "--properties", "xmit_interval=" + "9" * 5000 + "ms"],
        "digits",
    ),
    "knobs of a hunt": (
        ["shrink", "--mutant", "ack of high", "--properties", "capacity=4"],
        "SEED",
    ),
    "unknown profile of a hunt": (["shrink", "--all-mutants", "--profile", "foo"], "nakack4"),
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
    assert err.count("\n") == 1, err
    assert hint in err
    assert "Traceback" not in err


CORRUPT = {
    "not TOML": b"capacity = = 4",
    "no table": b"capacity = 4\n",
    "not text": bytes(range(256)),
    "wrong type": b"[gapless]\ncapacity = 'many'\n",
    "duration without unit": b"[gapless]\nxmit_interval = 500\n",
    "a number too long": b"[gapless]\ncapacity = " + b"9" * 6000,
    "nested too deep": b"[gapless]\ncapacity = " + b"[" * 100_000,
}


@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
@pytest.mark.parametrize("command", [["config"], ["sim", "1"]], ids=" ".join)
def test_a_corrupt_config_file(
    command: list[str], content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "knobs.toml"
    path.write_bytes(content)
    assert run([*command, "--config", str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello\n",
        bytes(range(256)),
        b"group a b\n----\n",
        b"group a b\n5ms a cancels send " + b"9" * 5000 + b"\n----\n",
        b"group a b\nlose DATA a" + b"9" * 5000 + b" a->b #1\n----\n",
        b"group a b\n5ms a sends a1..99999999 of 1B\n----\n",
    ],
    ids=range(7),
)
def test_a_corrupt_scenario(
    content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.txt"
    path.write_bytes(content)
    code = run(["scenario", str(path)])
    out, err = capsys.readouterr()
    if code == 2:
        assert "broken.txt" in err
        assert err.count("\n") == 1, err
    else:
        assert code == 1, "a scenario without an outcome differs from what happens"
        assert out


def test_sim_replays_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = answer(capsys, "sim", "5"), answer(capsys, "sim", "5")
    assert first == second
    assert first["violations"] == []


def test_sim_runs_many_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "sim", "--seeds", "6", "--workers", "2", "--messages", "20")
    assert report["seeds"] == 6
    assert report["violations"] == 0
    assert {"events", "faults", "must_happen_missing", "simulated_seconds", "wall_seconds"} <= set(
        report
    )
    alone = answer(capsys, "sim", "--seeds", "6", "--workers", "1", "--messages", "20")
    assert alone["digest"] == report["digest"]


def test_sim_of_membership(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (
        answer(capsys, "sim", "--membership", "3"),
        answer(capsys, "sim", "3", "--membership"),
    )
    assert first == second
    assert first["digest"] != answer(capsys, "sim", "3")["digest"]
    missing = answer(capsys, "sim", "--membership", "--seeds", "2", "--workers", "1")[
        "must_happen_missing"
    ]
    assert isinstance(missing, list)
    assert "coordinator crash during a merge" in missing  # two seeds cannot see everything


def test_sim_of_sealed_groups(capsys: pytest.CaptureFixture[str]) -> None:
    first: Any = answer(capsys, "sim", "4", "--sealed")
    assert answer(capsys, "sim", "4", "--sealed") == first
    assert first["seals"]["opened"] > 0
    assert "seals" not in answer(capsys, "sim", "4")
    report: Any = answer(capsys, "sim", "--sealed", "--seeds", "2", "--workers", "1")
    assert report["violations"] == 0
    assert {"replay", "stolen-key", "rotation-retired"} <= set(report["faults"])
    assert report["seals"]["sealed"] > first["seals"]["sealed"]
    assert run(["sim", "4", "--sealed", "--mutant", "any tag"]) == 1
    shown = capsys.readouterr().out
    assert "--sealed --mutant" in shown
    assert "gapless shrink" not in shown


def test_sim_with_given_knobs(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "sim", "5", "--properties", "capacity=3;xmit_interval=50")
    assert report["digest"] != answer(capsys, "sim", "5")["digest"]


def test_explore(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--receivers", "1", "--capacity", "1", "--messages", "2", "--in-flight", "2")
    report = answer(capsys, "explore", *small)
    assert (report["complete"], report["violations"], report["traps"]) == (True, 0, 0)


def test_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, "mutants", "--only", "purge at maximum", "--workers", "1")
    assert (report["planted"], report["killed"]) == (1, 1)


def test_config_shows_what_was_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "config", "--properties", "capacity=7")["capacity"] == 7


@pytest.mark.parametrize("arguments", [["sim", "5"], ["sim", "--seeds", "2"], ["config"]])
def test_a_table_for_a_person(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert "━" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = [sys.executable, "-c", "from gapless.cli import main; main()", "config", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert b"Traceback" not in done.stderr


def test_without_the_extra_it_says_what_to_install() -> None:
    """The core has no dependency; the command line says what it lacks."""
    hide = "import sys; sys.modules['click'] = None; from gapless.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hide, "config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "gapless[cli]" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_shell_completes_commands() -> None:
    environment = {
        **os.environ,
        "_GAPLESS_COMPLETE": "bash_complete",
        "COMP_WORDS": "gapless do",
        "COMP_CWORD": "1",
    }
    code = "from gapless.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["plain,doctor"]
