"""Timeouts in the form of a caller: seconds, or text with a unit."""

from __future__ import annotations

import time

from gapless.errors import ConfigError, LocalProtocolError
from gapless.units import NS_PER_S, parse_duration

Duration = float | str
"""A duration: a number of seconds, or text such as ``"200ms"``."""


def duration_ns(timeout: Duration, argument: str = "timeout") -> int:
    """Return a timeout in nanoseconds, which the caller passed as ``argument``.

    Raises:
        LocalProtocolError: ``timeout`` is not a duration.
    """
    try:
        if isinstance(timeout, str):
            return parse_duration(timeout)
        if type(timeout) in {int, float} and 0 <= timeout < 1e9:
            return int(timeout * NS_PER_S)
    except ConfigError:
        pass  # the error below names the argument
    raise LocalProtocolError(f'{argument}={timeout!r}: expected seconds, or text such as "200ms"')


def deadline_ns(timeout: Duration | None) -> int | None:
    """Return the monotonic instant at the end of ``timeout``; None for no timeout."""
    return None if timeout is None else time.monotonic_ns() + duration_ns(timeout)
