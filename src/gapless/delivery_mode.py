"""How a message is sent: the modes of 2001 as attributes of a message."""

from __future__ import annotations

from enum import StrEnum

from gapless.errors import LocalProtocolError

MAX_OUT_OF_BAND = 65_536
"""How many out-of-band messages of one member may wait for acks, at the very most."""


class Mode(StrEnum):
    """What is promised of one message."""

    ORDERED = "ordered"
    """In order and without a gap, once (NAK)."""
    ACKNOWLEDGED = "acknowledged"
    """The same, and every receiver says so; the sender is told when all have (NAK_ACK)."""
    OUT_OF_BAND = "out-of-band"
    """Once, acknowledged, in no order, not stopped by a full window (OUT_OF_BAND)."""
    UNRELIABLE = "unreliable"
    """Sent once, delivered if it arrives."""

    @classmethod
    def of(cls, name: str) -> Mode:
        """Return the mode with this name."""
        try:
            return cls(name)
        except ValueError:
            raise LocalProtocolError(
                f"{name!r} is not a mode: use one of {', '.join(cls)}"
            ) from None
