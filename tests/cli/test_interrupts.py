"""Ctrl-C once, in a real process: exit code 130, no traceback, and no process is left.

Commands that run until Ctrl-C end in good order, with the exit code 0.

``config``, ``spool ls`` and the other short commands are not here: they need less processor time
than Python needs to start, so Ctrl-C meets no work of theirs. ``gapless.cli.interrupts`` handles
Ctrl-C in the same way for all commands.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gapless import blocking
from gapless_lab.process import descendants, is_running, lab_environ
from tests.support.collectors import wait_until
from tests.support.networks import free_ports, seeds
from tests.support.processes import ROOT
from tests.support.real_groups import options
from tests.support.spools import A, Writer

WITHIN_S = 30.0
"""How long the test waits for an event on a busy machine."""
ENDS_WITHIN_S = 10.0
"""How long from Ctrl-C to the end on a busy machine; without load it takes under 2 s."""
COMMANDS = {
    "mutants": ["mutants", "--workers", "2"],
    "sim": ["sim", "--seeds", "100000", "--workers", "2"],
    "explore": ["explore"],
    "compare": ["compare"],
    "bench": ["bench"],
    "soak": ["soak", "--seconds", "60s"],
    "pipeline": ["pipeline"],
    "sweep": ["sweep", "--preset", "hunt", "--no-spark", "--workers", "2"],
}
BUSY_S = {"starting": 0.6, "working": 3.0}
"""Seconds of processor time of the command before Ctrl-C."""
MORE_COMMANDS = {
    "demo": (["demo"], 3.0),
    "demo without Spark": (["demo", "--no-spark"], 2.0),
    "chaos": (["chaos", "--seed", "1"], 4.0),
    "verify": (["verify", "trace"], 3.0),
    "report": (["report", "trace"], 3.0),
    "shrink": (["shrink", "--all-mutants", "--workers", "2"], 2.0),
    "scenario": (["scenario", str(ROOT / "tests" / "scenarios")], 0.5),
}
"""Commands with another way to work, and their seconds of processor time before Ctrl-C."""
MEMBERS = {"send": 130, "listen": 0, "chat": 0, "top": 0, "collect": 0}
"""Commands that are members of a group, and their exit codes."""


@contextmanager
def command(
    arguments: list[str], folder: Path, stdout: int | None = None, **environ: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command as the leader of a process group, like a shell does."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gapless", *arguments],
            cwd=folder,
            env={**lab_environ(), **environ},
            stdin=subprocess.PIPE,
            stdout=output if stdout is None else stdout,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for pid in [process.pid, *descendants(process.pid)]:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait(WITHIN_S)
        assert process.stdin is not None
        process.stdin.close()


def interrupt(process: subprocess.Popen[bytes], folder: Path, code: int = 130) -> None:
    """Press Ctrl-C; check the exit code, the output, and that no process is left."""
    workers = descendants(process.pid)
    began_s = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    found = process.wait(WITHIN_S)
    took_s = time.monotonic() - began_s
    output = (folder / "output").read_text(errors="replace")
    assert "Traceback" not in output, output[-3000:]
    assert found == code, output[-3000:]
    assert took_s < ENDS_WITHIN_S
    wait_until(lambda: not any(map(is_running, workers)), f"{workers} to end", WITHIN_S)


def busy_s(pid: int) -> float:
    """Return the processor time of a process and its descendants; endless if it has ended."""
    spent = 0
    for one in [pid, *descendants(pid)]:
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        spent += int(fields[11]) + int(fields[12])
    return spent / os.sysconf("SC_CLK_TCK") if is_running(pid) else float("inf")


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.parametrize("moment", BUSY_S)
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_a_command(name: str, moment: str, tmp_path: Path) -> None:
    with command(COMMANDS[name], tmp_path) as process:
        wait_until(lambda: busy_s(process.pid) >= BUSY_S[moment], "the command to work")
        interrupt(process, tmp_path)


def test_an_interrupted_import_ends_a_command_with_its_own_code(tmp_path: Path) -> None:
    """Python notes an interrupt that passes through the text of a dataclass."""
    (tmp_path / "interrupted.py").write_text(
        "import gapless.cli\nimport gapless_lab.process\n\n"
        "gapless.cli._run = lambda: exec('raise KeyboardInterrupt')\n"
        "gapless.cli.main()\n"
    )
    command = [sys.executable, "-m", "interrupted"]
    assert subprocess.run(command, check=False, cwd=tmp_path).returncode == 130


@pytest.mark.parametrize("end", ["raise RuntimeError", "return 1", "return 0"])
def test_an_interrupted_command_has_the_exit_code_130_whatever_breaks_off(
    end: str, tmp_path: Path
) -> None:
    """A client of Spark whose call was interrupted fails with errors of its own."""
    (tmp_path / "broken_off.py").write_text(
        "import os, signal, gapless.cli\n\n"
        "def run():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    finally:\n"
        f"        {end}\n\n"
        "gapless.cli._run = run\n"
        "gapless.cli.main()\n"
    )
    command = [sys.executable, "-m", "broken_off"]
    assert subprocess.run(command, check=False, cwd=tmp_path).returncode == 130


@pytest.mark.parametrize("code", [0, 1])
def test_ctrl_c_after_the_end_of_a_command_changes_nothing(code: int, tmp_path: Path) -> None:
    (tmp_path / "ended.py").write_text(
        "import atexit, os, signal, gapless.cli\n\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        f"gapless.cli._run = lambda: {code}\n"
        "gapless.cli.main()\n"
    )
    command = [sys.executable, "-m", "ended"]
    assert subprocess.run(command, check=False, cwd=tmp_path).returncode == code


@needs_proc
def test_ctrl_c_ends_doctor_while_a_program_hangs(tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 60\n")
    java.chmod(0o755)
    with command(["doctor"], tmp_path, JAVA_HOME=str(tmp_path / "jdk")) as process:
        wait_until(lambda: descendants(process.pid), "doctor to ask for the version", WITHIN_S)
        interrupt(process, tmp_path)


@needs_proc
@pytest.mark.parametrize("name", MORE_COMMANDS)
def test_ctrl_c_ends_the_other_commands(name: str, tmp_path: Path) -> None:
    arguments, busy_limit_s = MORE_COMMANDS[name]
    if "trace" in arguments:
        with command(["sim", "1", "--trace", "trace"], tmp_path) as making:
            assert making.wait(WITHIN_S) == 0
    with command(arguments, tmp_path) as process:
        wait_until(lambda: busy_s(process.pid) >= busy_limit_s, "the command to work")
        interrupt(process, tmp_path)


def test_ctrl_c_ends_an_export_whose_reader_has_stopped(tmp_path: Path) -> None:
    """``gapless spool export | less`` waits for its reader, and again while Python ends."""
    writer = Writer(tmp_path / "spool")
    writer.run(A, [b"x" * 1000] * 1000)
    writer.commit()
    writer.close()
    reading, writing = os.pipe()
    try:
        with command(["spool", "export", "spool"], tmp_path, writing) as process:
            os.close(writing)
            wait_until(lambda: waiting_bytes(reading) >= 32_768, "a full pipe", WITHIN_S)
            interrupt(process, tmp_path)
    finally:
        os.close(reading)


def waiting_bytes(pipe: int) -> int:
    """Return how many bytes wait in a pipe."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


@needs_proc
@pytest.mark.parametrize("name", MEMBERS)
def test_ctrl_c_ends_a_member(name: str, tmp_path: Path) -> None:
    ports = free_ports(2)
    arguments = [name, "tests", "--host", "127.0.0.1", "--ports", f"{ports[0]}-{ports[-1]}"]
    arguments += ["--discover", seeds(ports)]
    if name == "collect":
        arguments += ["--spool", "spool"]
    with (
        blocking.join("tests", **options(ports)) as group,
        command(arguments, tmp_path) as process,
    ):
        group.wait_for_members(2, WITHIN_S)
        interrupt(process, tmp_path, MEMBERS[name])
        while len(group.view or ()) > 1:
            group.receive_event(WITHIN_S)


@needs_proc
@pytest.mark.parametrize("name", ["mutants", "sim", "sweep"])
def test_workers_do_not_outlive_a_killed_parent(name: str, tmp_path: Path) -> None:
    with command(COMMANDS[name], tmp_path) as process:
        wait_until(lambda: busy_s(process.pid) >= BUSY_S["working"], "the command to work")
        workers = descendants(process.pid)
        assert workers
        process.kill()
        process.wait(WITHIN_S)
        wait_until(lambda: not any(map(is_running, workers)), f"{workers} to end", WITHIN_S)
