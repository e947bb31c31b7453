"""What ``group.events()`` gives beside messages; each says in its docstring what has happened."""

from gapless.core.ready import (
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
from gapless.face.message import ViewChange

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
