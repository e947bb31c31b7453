"""Two kinds of wrong: mine and theirs.

A caller's mistake raises a :class:`LocalProtocolError` (or a :class:`ConfigError`) at the caller. A
peer's mistake is a :class:`RemoteProtocolError`: the datagram is dropped, counted under its reason,
and changes no state. Any other exception is a bug.
"""

from __future__ import annotations


class GaplessError(Exception):
    """The base of every error that Gapless raises on purpose."""


class ConfigError(GaplessError, ValueError):
    """A knob has an unknown name or an impossible value; the message says what was expected."""


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
    """The network of this machine does not give what was asked for; the message says what to try."""


class PayloadError(LocalProtocolError, TypeError):
    """What is to be sent is not bytes; the message says how to make it so."""


class TimedOutError(GaplessError, TimeoutError):
    """The time that the caller had given is over.

    Of a send, the first ``accepted`` messages had gone out by then, and stay sent.
    """

    def __init__(self, message: str, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted


class DepartedError(LocalProtocolError):
    """The member that something was for is not in the view (any more)."""


class UndeliveredError(GaplessError):
    """An acknowledged send came to its end before ``members`` (their addresses) had delivered it."""

    def __init__(self, message: str, members: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.members = members


class RequestError(GaplessError):
    """The member that a request was for has answered that it could not do what was asked; the message says why."""
