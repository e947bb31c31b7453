"""Processes that are watched and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gapless_lab.process import (
    LabError,
    LabProcess,
    descendants,
    is_running,
    wait_exited,
    wait_until,
)

CHILD = "import sys; print('child', flush=True); sys.stdin.read()"
FAMILY = f"""\
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE)
print("parent", child.pid, flush=True)
sys.stdin.read()
"""
STUBBORN = "import signal; print('here', flush=True); signal.pause()"


def start(folder: Path, program: str) -> LabProcess:
    return LabProcess("one", [sys.executable, "-c", program], folder, dict(os.environ))


def family(folder: Path) -> tuple[LabProcess, int]:
    process = start(folder, FAMILY)
    process.wait_until(lambda: len(process.lines) >= 2, "both have spoken", 60)
    (line,) = [line for line in process.lines if line.startswith("parent")]
    return process, int(line.split()[1])


def test_a_kill_takes_the_children_along(tmp_path: Path) -> None:
    process, child = family(tmp_path)
    assert child in descendants(process.pid)
    process.kill()
    assert process.exit_code == -signal.SIGKILL
    assert not is_running(child)


def test_orphans_are_waited_for(tmp_path: Path) -> None:
    process, child = family(tmp_path)
    process.kill(children=False)
    assert not is_running(child), "it has ended by itself, for its standard input has"


def test_a_process_that_has_ended_is_not_killed(tmp_path: Path) -> None:
    process = start(tmp_path, "pass")
    assert process.wait_exit(60) == 0
    process.kill()
    assert process.exit_code == 0


def test_processes_do_not_outlive_who_has_started_them(tmp_path: Path) -> None:
    program = f"""\
import os, sys
from pathlib import Path
from gapless_lab.process import LabProcess
folder = Path({str(tmp_path)!r})
one = LabProcess("one", [sys.executable, "-c", {STUBBORN!r}], folder, dict(os.environ))
one.wait_until(lambda: one.lines, "it speaks", 60)
print(one.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    parent.kill()
    wait_exited([child], 60)
    parent.communicate()
    assert not is_running(child)


def test_waiting_ends_with_the_process_or_the_time(tmp_path: Path) -> None:
    process = start(
        tmp_path, "import sys; print('first'); print('oh no', file=sys.stderr); sys.exit(3)"
    )
    with pytest.raises(
        LabError,
        match=r"a second line: ended with code 3; output: first; errors: oh no",
    ):
        process.wait_until(lambda: len(process.lines) > 1, "a second line", 60)
    with pytest.raises(LabError, match="nothing comes within 0 s"):
        wait_until(lambda: False, "nothing comes", 0.1)
    process.kill()


def test_workers_of_a_command_die_when_it_is_killed() -> None:
    command = [sys.executable, "-m", "gapless", "bench", "--size", "100", "--seconds", "600"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: len(workers_of(parent.pid)) == 3, "three workers do not start", 60)
        workers = workers_of(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    wait_exited(workers, 30)
    assert not any(map(is_running, workers))


def workers_of(pid: int) -> list[int]:
    return descendants(pid, "gapless_lab.bench.worker")


ECHO = """\
import sys
from gapless_lab.process import emit, serve_commands
from gapless.errors import GaplessError

class Worker:
    def add(self, one, other):
        emit("adding", of=[one, other])
        return {"sum": one + other}

    def fail(self):
        raise GaplessError("as asked")

print("plain output", flush=True)
emit("ready")
serve_commands(Worker())
"""


def test_commands_are_answered_in_order_and_events_answer_nothing(tmp_path: Path) -> None:
    process = LabProcess("echo", [sys.executable, "-c", ECHO], tmp_path)
    process.wait_for_event("ready", 60)
    process.notify("add", one=1, other=1)
    assert process.ask("add", 60, one=2, other=3) == {"sum": 5}, "a notification has no answer"
    assert process.latest["adding"] == {"of": [2, 3]}
    with pytest.raises(LabError, match="echo failed: GaplessError: as asked"):
        process.ask("fail", 60)
    assert process.lines[0] == "plain output"
    process.kill()
