"""Ports and networks for tests."""

import os
import socket
from contextlib import ExitStack, suppress
from random import SystemRandom

import pytest

from gapless.discovery import Multicast
from gapless.transport.socket_options import multicast_loops_back

_FIRST_PORT, _PORTS_PER_WORKER, _WORKERS = 10_000, 2_750, 8
"""From 10,000 to 32,000: ephemeral ports begin at 32,768."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports in a row that were free a moment ago, for UDP and for TCP.

    They lie outside of the range of ephemeral ports, and of those of other workers of the tests:
    otherwise another process may take one before the caller does.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    floor = _FIRST_PORT + _PORTS_PER_WORKER * (_worker() % _WORKERS)
    while True:
        first = SystemRandom().randrange(floor, floor + _PORTS_PER_WORKER - count)
        ports = list(range(first, first + count))
        with ExitStack() as stack, suppress(OSError):
            for port in ports:
                stack.enter_context(socket.create_server((host, port), family=family))
                sock = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
                sock.bind((host, port))
            return ports


def _worker() -> int:
    """Return the number of this worker of the tests."""
    return int("".join(filter(str.isdigit, os.environ.get("PYTEST_XDIST_WORKER", ""))) or 0)


def seeds(ports: list[int], host: str = "127.0.0.1") -> str:
    """Return the discovery that names these ports."""
    where = f"[{host}]" if ":" in host else host
    return f"seeds://{where}:{ports[0]}-{ports[-1]}"


def need_multicast() -> None:
    """Skip the test where loopback has no multicast."""
    if not multicast_loops_back(Multicast("239.255.77.7", free_ports(1)[0], interface="127.0.0.1")):
        pytest.skip("this machine has no multicast on its loopback interface")
