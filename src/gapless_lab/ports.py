"""Ports of this machine that nothing uses yet."""

from __future__ import annotations

import socket


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ``count`` consecutive ports that are free for both UDP and TCP."""
    while True:
        bound: list[socket.socket] = []
        try:
            first = 0
            for index in range(count):
                for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                    bound.append(socket.socket(socket.AF_INET, kind))
                    bound[-1].bind((host, first + index if first else 0))
                    first = first or bound[-1].getsockname()[1]
        except (OSError, OverflowError):
            continue  # a port of the range is taken, or lies above 65535: draw another range
        else:
            return list(range(first, first + count))
        finally:
            for taken in bound:
                taken.close()
