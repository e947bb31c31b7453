"""What cannot be had is missing with its reason, and does not keep the others away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import environment
from bench.environment import Environment, machine

PIP = """#!{python}
import sys
names = [word for word in sys.argv[1:] if word.endswith("-peer")]
bad = "bad-peer" in names
print("ERROR: No matching distribution found for bad-peer" if bad else "", file=sys.stderr)
sys.exit("bad-peer" in names)
"""


@pytest.fixture
def offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two peers; the second is one that nobody offers."""
    (tmp_path / "pyproject.toml").write_text(
        '[project.optional-dependencies]\npeers = ["good-peer", "bad-peer>=1"]\n'
    )
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "PACKAGES", {"json": "good-peer", "nowhere": "bad-peer"})
    really = environment._run

    def run(command: list[str], limit_s: float) -> object:
        if "venv" in command:
            command = [*command, "--without-pip"]  # which takes most of the time, and is ours here
        if "pip" in command:
            program = tmp_path / "pip.py"
            program.write_text(PIP.format(python=sys.executable))
            names = [word.partition(">")[0] for word in command]
            return really([sys.executable, str(program), *names], limit_s)
        return really(command, limit_s)

    monkeypatch.setattr(environment, "_run", run)
    return tmp_path


def test_one_that_cannot_be_installed(offers: Path) -> None:
    lines: list[str] = []
    made = Environment(offers / "build" / "peers")
    made.get(["json", "nowhere"], lines.append)
    assert "No matching distribution found" in made.peers["nowhere"].reason
    assert made.python == offers / "build" / "peers-env" / "bin" / "python"
    assert any("bad-peer" in line and "cannot be installed" in line for line in lines)
    lines.clear()
    again = Environment(offers / "build" / "peers")
    again.get(["nowhere"], lines.append)
    assert again.peers["nowhere"] == made.peers["nowhere"], (
        "it is remembered, and not tried at every run"
    )
    assert lines == []


def test_without_an_environment_everything_is_missing(tmp_path: Path) -> None:
    made = Environment(tmp_path / "build" / "peers")
    made.get(["pyzmq", "jgroups"], lambda _: None, install=False)
    assert "never made" in made.peers["pyzmq"].reason
    assert made.peers["jgroups"].reason
    assert made.peers["gapless"].version


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    made = Environment(tmp_path / "build" / "peers")
    made.get(["jgroups"], lambda _: None)
    assert "JDK" in made.peers["jgroups"].reason


def test_what_the_figures_depend_on() -> None:
    about = machine()
    assert about["cores"]
    assert about["python"] == sys.version.split()[0]
