"""Delivery modes: the guarantee of one message, after the message attributes of JGroups in 2001.

A caller names a mode by text, such as ``mode="acknowledged"`` (mypy checks the text), or by a
``DeliveryMode``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from gapless.errors import LocalProtocolError

MAX_OUT_OF_BAND = 65_536
"""Maximum of the setting ``max_out_of_band``."""

DeliveryModeName = Literal["ordered", "acknowledged", "out-of-band", "unreliable"]
"""The name of a delivery mode, as text."""


class DeliveryMode(StrEnum):
    """The guarantee of one message; docs/guides/sending.md compares the modes."""

    ORDERED = "ordered"
    """Delivered once, in the order of its sender, without a gap (NAK)."""
    ACKNOWLEDGED = "acknowledged"
    """As ordered, and ``receipt.delivered()`` waits for delivery at all receivers (NAK_ACK)."""
    OUT_OF_BAND = "out-of-band"
    """Delivered once and acknowledged, in no order, even past a full window (OUT_OF_BAND)."""
    UNRELIABLE = "unreliable"
    """Sent once; delivered unless the network loses the message."""

    @classmethod
    def of(cls, name: str) -> DeliveryMode:
        """Return the mode with this name.

        Raises:
            LocalProtocolError: No mode has this name.
        """
        try:
            return cls(name)
        except ValueError:
            raise LocalProtocolError(
                f"{name!r} is not a delivery mode: use one of {', '.join(cls)}"
            ) from None


Mode = DeliveryMode
"""The name of ``DeliveryMode`` in 0.1."""
