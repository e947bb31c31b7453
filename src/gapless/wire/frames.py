"""The frames: what members say to each other about streams.

Each frame names the stream it speaks of by the origin's address, incarnation included, so that a frame about a
former life of a member can never touch the present one. Who speaks is said once, by the datagram.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gapless.identity import Address
    from gapless.run import Run

Range = tuple[int, int]
"""First and last seqno, both included."""


class Data(NamedTuple):
    """A run of messages; a repair is the same run again, marked so that a receiver can measure the round trip."""

    run: Run
    repair: bool = False


class Ack(NamedTuple):
    """The sender of this frame has delivered the stream up to ``seqno``; it can take ``buffer_bytes`` at once."""

    origin: Address
    seqno: int
    buffer_bytes: int


class Nak(NamedTuple):
    """The sender of this frame misses ``ranges``; with no range at all it asks where the stream starts."""

    origin: Address
    ranges: tuple[Range, ...]


class Gone(NamedTuple):
    """Nothing up to and including ``low`` exists any more at the origin."""

    origin: Address
    low: int


class Tail(NamedTuple):
    """The origin announces its stream: purged up to ``low``, sent up to ``high``.

    ``start``, when given, tells the one receiver that it is sent to where the stream starts for it: the first
    message it gets is ``start + 1``. It is meant for that life of the receiver whose incarnation is ``reader``, and for
    no other: a start told to a former life must not open the stream of the present one.
    """

    origin: Address
    low: int
    high: int
    start: int | None = None
    reader: int = 0


Frame = Data | Ack | Nak | Gone | Tail


class Datagram(NamedTuple):
    """What one datagram says: the group, the member that sent it, and its frames."""

    group: int
    sender: Address
    frames: tuple[Frame, ...]
