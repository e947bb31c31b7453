"""A killed process is out of the view long before its silence is noticed; a stopped one stays."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from gapless import blocking
from tests.support.collectors import wait_until
from tests.support.networks import free_ports
from tests.support.processes import PATIENCE_S, PROGRAMS, ChildProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the evidence is that of Linux")
PATIENT = {"suspect_after": "10min", "verify_timeout": "1min"}
"""Without evidence no test would live to see a death noticed."""
QUIET = {
    **PATIENT,
    "heartbeat_interval": "1min",
    "merge_interval": "10min",
}
"""An idle member sends nothing, so no datagram is refused before a hint makes the member ask."""


def start(
    stack: ExitStack, transport: str, count: int, config: dict[str, str] = PATIENT
) -> tuple[Any, list[ChildProcess]]:
    """Start a member in this process and ``count`` in processes of their own."""
    ports = free_ports(count + 1)
    options: dict[str, Any] = {
        "transport": transport,
        "host": "127.0.0.1",
        "ports": ports,
        "seeds": [f"127.0.0.1:{port}" for port in ports],
        "config": config,
    }
    group = stack.enter_context(blocking.join("tests", **options))
    text = json.dumps({**options, "count": count + 1})
    children = [
        stack.enter_context(ChildProcess(str(PROGRAMS / "waiting_member.py"), text))
        for _ in range(count)
    ]
    for child in children:
        child.wait_for("ready")
    group.wait_for_members(count + 1, PATIENCE_S)  # a joiner has the view before the others
    return group, children


def wait_for_size(group: Any, size: int) -> None:
    while len(group.view) != size:
        group.receive_event(timeout=PATIENCE_S)


@pytest.mark.parametrize("transport", ["mesh", "tcp"])
@pytest.mark.parametrize("killed", [1, 3])
def test_killed_processes_are_out_without_their_silence(transport: str, killed: int) -> None:
    with ExitStack() as stack:
        group, children = start(stack, transport, 4)
        for child in children[:killed]:
            child.process.kill()
        wait_for_size(group, 5 - killed)


@pytest.mark.parametrize(("transport", "kind"), [("mesh", "exited"), ("tcp", "closed")])
def test_each_kind_of_hint_is_noticed_by_itself(transport: str, kind: str) -> None:
    """In a quiet group of two only this kind of hint can begin the verification."""
    with ExitStack() as stack:
        group, (child,) = start(stack, transport, 1, QUIET)
        assert f"evidence.{kind}" not in group.snapshot().counters
        opened: Any = group._session.handle.transport
        if kind == "exited":
            # The processes name themselves to each other only after the view.
            wait_until(lambda: opened._processes._watched, "the process to be watched")
        child.process.kill()
        wait_for_size(group, 1)
        counters = group.snapshot().counters
        assert counters[f"evidence.{kind}"] >= 1
        assert counters["evidence.refused"] >= 1, "the proof"


@pytest.mark.parametrize("transport", ["mesh", "tcp"])
def test_a_stopped_process_stays(transport: str) -> None:
    with ExitStack() as stack:
        group, children = start(stack, transport, 2)
        before = set(group.view)
        children[0].process.send_signal(signal.SIGSTOP)
        children[1].process.kill()
        wait_for_size(group, 2)
        sent = group.send(b"x", mode="acknowledged")
        children[0].process.send_signal(signal.SIGCONT)
        sent.delivered(PATIENCE_S)
        assert set(group.view) < before, "nobody has come back as a new incarnation"
