"""Ports for tests: ranges that no other test at work uses."""

import socket

import pytest

from gapless.discovery import Multicast
from gapless.transport.sockets import gives_back


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports in a row that were free a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        taken: list[socket.socket] = []
        try:
            for _ in range(count):
                taken.append(socket.socket(family, socket.SOCK_DGRAM))
                taken[-1].bind((host, taken[0].getsockname()[1] + len(taken) - 1 if len(taken) > 1 else 0))
            return [one.getsockname()[1] for one in taken]
        except (OSError, OverflowError):
            continue
        finally:
            for one in taken:
                one.close()


def seeds(ports: list[int], host: str = "127.0.0.1") -> str:
    """Return the discovery that names these ports."""
    where = f"[{host}]" if ":" in host else host
    return f"seeds://{where}:{ports[0]}-{ports[-1]}"


def need_multicast() -> None:
    """Skip the test where loopback has no multicast."""
    if not gives_back(Multicast("239.255.77.7", free_ports(1)[0], interface="127.0.0.1")):
        pytest.skip("this machine has no multicast on its loopback interface")
