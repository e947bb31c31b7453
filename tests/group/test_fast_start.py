"""Two processes that start at once exchange their first message long before ``found_after``."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gapless.config import SETTINGS
from gapless.units import NS_PER_S
from tests.support.networks import free_ports
from tests.support.processes import ENVIRONMENT, PROGRAMS, ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRIES = 3
"""A busy machine may delay a start; without early founding every try takes ``found_after``."""
LIMIT_S = 0.7


def _by_seeds(**options: Any) -> list[dict[str, Any]]:
    ports = free_ports(2)
    seeds = [f"127.0.0.1:{port}" for port in ports]
    return [{"host": "127.0.0.1", "ports": port, "seeds": seeds, **options} for port in ports]


WAYS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "default options": lambda: [{}, {}],
    "UDP, seeds": _by_seeds,
    "TCP, default discovery": lambda: [{"transport": "tcp"}] * 2,
    "TCP, seeds": lambda: _by_seeds(transport="tcp"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_first_message_of_two_processes_comes_long_before_found_after(
    way: str, tmp_path: Path
) -> None:
    found_after_ns = SETTINGS["found_after"].default
    assert isinstance(found_after_ns, int)
    assert found_after_ns > LIMIT_S * 1.4 * NS_PER_S
    environment = {**ENVIRONMENT, "TMPDIR": str(tmp_path)}
    with ExitStack() as stack:
        both = [
            stack.enter_context(
                ChildProcess(
                    str(PROGRAMS / "first_message.py"),
                    json.dumps(options),
                    environment=environment,
                )
            )
            for options in WAYS[way]()
        ]
        assert [member.read_line() for member in both] == ["ready", "ready"]
        tries: list[float] = []
        for number in range(TRIES):
            for member in both:
                member.write(f"first-{os.getpid()}-{number}\n")
            tries.append(max(float(member.read_line()) for member in both))
        assert min(tries) < LIMIT_S, tries
