"""What ``group.events()`` gives beside messages; each says in its docstring what has happened."""

from gapless.group.message import ViewChange
from gapless.protocol.ready import (
    Discarded,
    Expelled,
    Held,
    HoldFull,
    Left,
    Lost,
    Oversized,
    Pinned,
    Released,
    Stalled,
    Suspected,
    Undelivered,
)

__all__ = [
    "Discarded",
    "Expelled",
    "Held",
    "HoldFull",
    "Left",
    "Lost",
    "Oversized",
    "Pinned",
    "Released",
    "Stalled",
    "Suspected",
    "Undelivered",
    "ViewChange",
]
