"""Ports and networks for tests."""

import socket
from contextlib import ExitStack
from random import SystemRandom

import pytest

from gapless.discovery import Multicast
from gapless.transport.socket_options import multicast_loops_back


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
    """Return free ports in a row for TCP, outside of the range of ephemeral ports."""
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
