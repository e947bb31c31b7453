"""Errors: local mistakes, and mistakes of a peer.

A caller's mistake raises a :class:`LocalProtocolError` (or a :class:`ConfigError`) at the caller. A
peer's mistake is a :class:`RemoteProtocolError`: the datagram is dropped, counted under its reason,
and changes no state. Any other exception is a bug.
"""

from __future__ import annotations

__all__ = [
    "ClosedError",
    "ConfigError",
    "DepartedError",
    "GaplessError",
    "LocalProtocolError",
    "PayloadError",
    "RemoteProtocolError",
    "RequestError",
    "TimedOutError",
    "TransportError",
    "UndeliveredError",
]


class GaplessError(Exception):
    """The base of every error that Gapless raises on purpose."""


class ConfigError(GaplessError, ValueError):
    """A setting has an unknown name or an impossible value; the message says what is expected."""


class LocalProtocolError(GaplessError):
    """The caller asked for something that the machine cannot do in its present state."""


class RemoteProtocolError(GaplessError):
    """A datagram is not what the wire format allows.

    ``reason`` is one short word from :data:`gapless.wire.primitives.REASONS` (of a locator,
    ``locator``), fit for a counter; the message adds detail.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class ClosedError(LocalProtocolError):
    """The member has left, was closed, or has failed; the message says which."""


class TransportError(GaplessError):
    """The network of this machine cannot be used as requested; the message says what to try."""


class PayloadError(LocalProtocolError, TypeError):
    """The payload is not bytes; the message says how to encode it."""


class TimedOutError(GaplessError, TimeoutError):
    """The timeout of a call passed.

    Of a send, the first ``accepted`` messages were sent, and remain sent.
    """

    def __init__(self, message: str, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted


class DepartedError(LocalProtocolError):
    """The destination is not, or no longer, a member of the view."""


class UndeliveredError(GaplessError):
    """The view or connection ended before ``members`` delivered an acknowledged send."""

    def __init__(self, message: str, members: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.members = members


class RequestError(GaplessError):
    """The member answered a request with an error, which the message repeats."""


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__name__"])
