"""Errors: mistakes of the caller, and mistakes of a peer.

A mistake of the caller raises ``LocalProtocolError`` or ``ConfigError`` at the caller. A mistake of
a peer is a ``RemoteProtocolError``: the datagram is dropped, counted under a reason, and changes no
state. Any other exception is a bug.
"""

from __future__ import annotations

__all__ = [
    "ClosedError",
    "ConfigError",
    "DepartedError",
    "GaplessError",
    "LocalProtocolError",
    "NameInUseError",
    "PayloadError",
    "RemoteProtocolError",
    "RequestError",
    "TimedOutError",
    "TransportError",
    "UndeliveredError",
]


class GaplessError(Exception):
    """The base class of every error that Gapless raises on purpose."""


class ConfigError(GaplessError, ValueError):
    """A setting has an unknown name or an impossible value; the text names the allowed values."""


class LocalProtocolError(GaplessError):
    """The call is not possible in the present state of the member; the text says why."""


class RemoteProtocolError(GaplessError):
    """A datagram violates the wire format.

    ``reason`` is a short word for a counter, from ``gapless.wire.primitives.REASONS`` (for a
    locator, ``locator``); the text adds detail.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class ClosedError(LocalProtocolError):
    """The member has left, was closed, or has failed; the text says which."""


class TransportError(GaplessError):
    """The network of this machine cannot be used as requested; the text says how to continue."""


class PayloadError(LocalProtocolError, TypeError):
    """A payload or a header is not bytes; the text says how to encode the value."""


class TimedOutError(GaplessError, TimeoutError):
    """The timeout of a call passed.

    After a send, ``accepted`` is the number of messages that were sent, and remain sent.
    """

    def __init__(self, message: str, accepted: int = 0) -> None:
        super().__init__(message)
        self.accepted = accepted


class DepartedError(LocalProtocolError):
    """The other member is not, or no longer, in the view."""


class UndeliveredError(GaplessError):
    """``members`` did not confirm an acknowledged message, and cannot confirm it any more.

    Either the receiver of a message to one member has left; or this member has left, was closed
    or was expelled; or the retention for an absent durable member has ended; or, in the profile
    ``classic``, the view has ended. A send to the group no longer waits for members that leave.
    """

    def __init__(self, message: str, members: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.members = members


class NameInUseError(GaplessError):
    """Another live member has the durable name; ``holder`` is its address.

    Raised by ``join``, and by every call of a group that cannot rejoin after an expulsion because
    another member has taken its name meanwhile. Choose another ``durable_name``, or stop the other
    member.
    """

    def __init__(self, message: str, holder: object = None) -> None:
        super().__init__(message)
        self.holder = holder


class RequestError(GaplessError):
    """The other member answered a request with an error; the text repeats the error."""


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__name__"])
