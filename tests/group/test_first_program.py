"""The first program of the README as a new user runs it, with and without multicast."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gapless.discovery import Directory, Multicast
from gapless.group.join_options import local_rendezvous, read_discovery
from tests.support.processes import ENVIRONMENT, ROOT

UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]


def first_program() -> str:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return readme.split("```python\n", 1)[1].split("```", 1)[0]


def shell(*command: str, meeting: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "TMPDIR": str(meeting), "PYTHONUNBUFFERED": "1"},
    )


def test_it_is_short_enough_to_type() -> None:
    lines = [line for line in first_program().splitlines() if line]
    assert len(lines) <= 12


def test_two_terminals(tmp_path: Path) -> None:
    name = f"hello-{os.getpid()}"
    program = tmp_path / "program.py"
    program.write_text(first_program().replace('"hello"', f'"{name}"'))
    terminals = [shell(sys.executable, str(program), meeting=tmp_path) for _ in range(2)]
    try:
        for terminal in terminals:
            assert terminal.stdout is not None
            greetings = {terminal.stdout.readline().strip() for _ in range(2)}
            assert len(greetings) == 2
            assert all(greeting.startswith("hello from ") for greeting in greetings)
        for terminal in terminals:
            terminal.send_signal(signal.SIGINT)
        for terminal in terminals:
            _, complaints = terminal.communicate(timeout=20)
            assert "KeyboardInterrupt" in complaints
            assert "never retrieved" not in complaints
    finally:
        for terminal in terminals:
            terminal.kill()
            terminal.communicate()


def test_two_terminals_of_a_machine_without_any_network(tmp_path: Path) -> None:
    """Only loopback is there: no route, no multicast, no rights outside of the namespace."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("a namespace of its own needs the commands unshare and ip")
    probe = subprocess.run(
        [*UNSHARE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this system allows no namespace of its own: {probe.stderr.strip()}")
    program = tmp_path / "program.py"
    program.write_text(
        first_program().replace(
            "print(message.payload.decode())", "print(message.payload.decode()); break"
        )
    )
    # One of the two writes to a file, so that their lines are not mixed.
    both = 'ip link set lo up; "$0" "$1" > "$2" & "$0" "$1"; wait; cat "$2"'
    words = [sys.executable, str(program), str(tmp_path / "other")]
    terminals = shell(*UNSHARE, "sh", "-c", both, *words, meeting=tmp_path)
    said, complaints = terminals.communicate(timeout=40)
    assert terminals.returncode == 0, complaints
    assert [line[:11] for line in said.splitlines()] == ["hello from "] * 2


def test_members_of_one_machine_meet_in_a_directory_of_their_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with read_discovery(None, "orders") as discovery:
        assert [type(source) for source in discovery.sources] == [Multicast, Directory]
    place = tmp_path / f"gapless-{os.getuid()}"
    assert local_rendezvous() == place
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(0o777)
    assert local_rendezvous() is None, "others could write there"
    assert "is not used for discovery: other users can write to it" in caplog.text
    place.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place.symlink_to(elsewhere)
    assert local_rendezvous() is None, "somebody has put a link there"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert local_rendezvous() is None
    assert "cannot be used for discovery" in caplog.text
