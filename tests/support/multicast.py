"""Networks that a test needs; the test is skipped where they are missing."""

import socket

import pytest


def need_multicast() -> None:
    """Skip the test where the loopback interface carries no multicast."""
    membership = socket.inet_aton("239.255.77.9") + socket.inet_aton("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            probe.setsockopt(
                socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
            )
            probe.sendto(b"probe", ("239.255.77.9", 9))
        except OSError as error:
            pytest.skip(f"this system has no multicast on the loopback interface: {error}")


def need_ipv6() -> None:
    """Skip the test where there is no IPv6, not even on the loopback interface."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this system has no IPv6 on the loopback interface: {error}")


def free_port() -> int:
    """Return a free UDP port of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
