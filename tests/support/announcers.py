"""Processes of their own for tests: members that announce themselves, and scripts in a namespace of their own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = PROGRAMS.parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

CANNOT = 77
"""The exit status that says that the system cannot do what a test needs."""


@contextmanager
def announcers(text: str, count: int, others: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start members 1 .. ``count`` at once, each of which waits for so many others; all have left at the end."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(PROGRAMS / "announcer.py"), text, str(node), str(others)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=ENVIRONMENT,
                )
            )
            for node in range(1, count + 1)
        ]


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what an announcer saw."""
    assert process.stdout is not None
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


def in_namespace(setup: str, script: str, *arguments: str) -> dict[str, Any]:
    """Run a script of this folder as root of a network and a file system of its own; return the JSON that it prints.

    ``setup`` is a shell command before it. Where the system does not allow that, the test is
    skipped and says why.
    """
    for tool in ("unshare", "ip", "mount"):
        if shutil.which(tool) is None:
            pytest.skip(f"a namespace of its own needs the command {tool}")
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    probe = subprocess.run(
        [*unshare, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this system allows no namespace of its own: {probe.stderr.strip()}")
    command = f'ip link set lo up; {setup} || exit {CANNOT}; exec "$0" "$@"'
    finished = subprocess.run(
        [*unshare, "sh", "-c", command, sys.executable, str(PROGRAMS / script), *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    if finished.returncode == CANNOT:
        pytest.skip(f"this system cannot be set up with {setup!r}: {finished.stderr.strip()}")
    assert finished.returncode == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer
