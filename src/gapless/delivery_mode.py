"""Delivery modes: what Gapless guarantees of one message. They are the message attributes of 2001.

A caller names a mode by its text, which mypy checks (:data:`DeliveryModeName`), or by the
:class:`DeliveryMode` itself.
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
    """What is guaranteed of one message."""

    ORDERED = "ordered"
    """Delivered once, in the order of its sender, without a gap (NAK)."""
    ACKNOWLEDGED = "acknowledged"
    """The same, and the sender learns when every receiver has delivered it (NAK_ACK)."""
    OUT_OF_BAND = "out-of-band"
    """Delivered once, acknowledged, in no order, also past a full window (OUT_OF_BAND)."""
    UNRELIABLE = "unreliable"
    """Sent once, delivered if it arrives."""

    @classmethod
    def of(cls, name: str) -> DeliveryMode:
        """Return the mode with this name.

        Raises:
            LocalProtocolError: there is no such mode.
        """
        try:
            return cls(name)
        except ValueError:
            raise LocalProtocolError(
                f"{name!r} is not a delivery mode: use one of {', '.join(cls)}"
            ) from None


Mode = DeliveryMode
"""The name of :class:`DeliveryMode` in 0.1."""
