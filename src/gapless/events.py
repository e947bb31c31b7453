"""What ``group.events()`` gives beside messages; each says in its docstring what has happened."""

from gapless.group.message import ViewChange
from gapless.protocol.events import (
    Discarded,
    Expelled,
    Left,
    Lost,
    Oversized,
    Retained as Held,
    RetentionBlocking as HoldFull,
    RetentionReleased as Released,
    SlowReceivers as Pinned,
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
