"""Free ports of the local machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ``count`` consecutive ports, free for both UDP and TCP."""
    while True:
        # A port of the range may be taken, or lie above 65535: draw another range.
        with ExitStack() as bound, suppress(OSError, OverflowError):
            first = 0
            for index in range(count):
                for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                    taken = bound.enter_context(socket.socket(socket.AF_INET, kind))
                    taken.bind((host, first + index if first else 0))
                    first = first or taken.getsockname()[1]
            return list(range(first, first + count))
