"""Timeouts as a caller gives them: seconds, or text with a unit."""

from __future__ import annotations

import time

from gapless.errors import LocalProtocolError
from gapless.units import NS_PER_S, parse_duration

Duration = float | str
"""A duration: a number of seconds, or text such as ``"200ms"``."""


def duration_ns(timeout: Duration) -> int:
    """Return a timeout in nanoseconds.

    Raises:
        LocalProtocolError: ``timeout`` is not a duration.
    """
    if isinstance(timeout, str):
        return parse_duration(timeout)
    if type(timeout) not in {int, float} or not 0 <= timeout < 1e9:
        raise LocalProtocolError(
            f'a timeout of {timeout!r}: expected seconds, or text such as "200ms"'
        )
    return int(timeout * NS_PER_S)


def deadline_ns(timeout: Duration | None) -> int | None:
    """Return the monotonic instant at which ``timeout`` passes; None for no timeout."""
    return None if timeout is None else time.monotonic_ns() + duration_ns(timeout)
