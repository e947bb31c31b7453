"""Whether a process listens at a locator: a probe for diagnosis, in a thread that may wait."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gapless.locator import Locator
    from gapless.transport.base import Transport

PROBE_S = 0.2
"""How long a host may take to refuse a probe."""


def probe_locator(locator: Locator, transport: Transport) -> str:
    """Return a sentence about ``locator``: refused, without a route, or without an answer."""
    from gapless.transport.tcp.transport import TcpMesh  # only members with TCP need it otherwise

    streams = isinstance(transport, TcpMesh)
    kind = socket.SOCK_STREAM if streams else socket.SOCK_DGRAM
    own = transport.locator
    if own.family != locator.family:
        return f"{locator} has another address family than this member ({own})"
    with socket.socket(locator.family, kind) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.bind((own.sockaddr[0], 0, *own.sockaddr[2:]))
            probe.connect(locator.sockaddr)
            if not streams:
                probe.send(b"")  # a host without a listener answers with a refusal
                probe.recv(1)
        except TimeoutError:
            return f"{locator} did not answer"
        except ConnectionRefusedError:
            return f"{locator} refuses: no process listens on this port"
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error))
            return f"{locator} cannot be reached from {own.ip} ({name})"
    return f"{locator} listens, and did not answer as a member of this group"
