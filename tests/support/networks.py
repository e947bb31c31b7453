"""Ports and networks for tests."""

import json
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from random import SystemRandom
from typing import Any

import pytest

from gapless.discovery import Multicast
from gapless.transport.socket_options import multicast_loops_back
from tests.support.companions import ENVIRONMENT, PROGRAMS


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports in a row that were free a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        taken: list[socket.socket] = []
        try:
            for _ in range(count):
                taken.append(socket.socket(family, socket.SOCK_DGRAM))
                taken[-1].bind(
                    (host, taken[0].getsockname()[1] + len(taken) - 1 if len(taken) > 1 else 0)
                )
            return [one.getsockname()[1] for one in taken]
        except (OSError, OverflowError):
            continue
        finally:
            for one in taken:
                one.close()


def free_stream_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports in a row for TCP that were free a moment ago, and that no system gives to those who name none."""
    while True:
        first = SystemRandom().randrange(20_000, 32_000)
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    family = socket.AF_INET6 if ":" in host else socket.AF_INET
                    stack.enter_context(socket.create_server((host, port), family=family))
            except OSError:
                continue
            return list(range(first, first + count))


def seeds(ports: list[int], host: str = "127.0.0.1") -> str:
    """Return the discovery that names these ports."""
    where = f"[{host}]" if ":" in host else host
    return f"seeds://{where}:{ports[0]}-{ports[-1]}"


def need_multicast() -> None:
    """Skip the test where loopback has no multicast."""
    if not multicast_loops_back(Multicast("239.255.77.7", free_ports(1)[0], interface="127.0.0.1")):
        pytest.skip("this machine has no multicast on its loopback interface")


def in_namespace(setup: str, script: str, *arguments: str) -> dict[str, Any]:
    """Run a script of this folder as root of a network of its own; return the JSON that it prints.

    ``setup`` are shell commands before it. Where the system does not allow that, the test is
    skipped and says why.
    """
    for tool in ("unshare", "ip", *(["tc"] if "tc " in setup else [])):
        if shutil.which(tool) is None:
            pytest.skip(f"a network of its own needs the command {tool}")
    unshare = ["unshare", "--user", "--map-root-user", "--net"]
    command = f"set -e; ip link set lo up; {setup}"
    probe = subprocess.run(
        [*unshare, "sh", "-c", command], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this system allows no such network: {probe.stderr.strip()}")
    finished = subprocess.run(
        [
            *unshare,
            "sh",
            "-c",
            f'{command}; exec "$0" "$@"',
            sys.executable,
            str(PROGRAMS / script),
            *arguments,
        ],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=180,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer
