"""The frames: what members say to each other about streams.

Each frame names the stream it speaks of by the origin's address, incarnation included, so that a
frame about a former life of a member can never touch the present one. Who speaks is said once, by
the datagram. A life has one stream to the group (epoch 0), or one for each view (the epoch is the
view's number), and one for each connection to another member (the epoch is the connection's own).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gapless.identity import Address, RosterEntry, ViewId
    from gapless.run import Run

Range = tuple[int, int]
"""First and last seqno, both included."""


FIRST_CONNECTION_EPOCH = 1 << 63
"""Epochs from here on name connections between two members; lower ones are view numbers, zero is the whole life."""


class Data(NamedTuple):
    """A run of messages; a repair is the same run again, marked so that a receiver can measure the round trip.

    ``first`` marks the message with which a connection starts: the receiver is to expect it next.
    """

    run: Run
    repair: bool = False
    epoch: int = 0
    first: bool = False


class Ack(NamedTuple):
    """The sender of this frame has delivered the stream up to ``seqno``; it can take ``buffer_bytes`` at once."""

    origin: Address
    seqno: int
    buffer_bytes: int
    epoch: int = 0


class Nak(NamedTuple):
    """The sender of this frame misses ``ranges``; with no range at all it asks where the stream starts."""

    origin: Address
    ranges: tuple[Range, ...]
    epoch: int = 0


class Gone(NamedTuple):
    """Nothing up to and including ``low`` exists any more at the origin."""

    origin: Address
    low: int
    epoch: int = 0


class Tail(NamedTuple):
    """The origin announces its stream: purged up to ``low``, sent up to ``high``.

    ``start``, when given, tells the one receiver that it is sent to where the stream starts for it:
    the first message it gets is ``start + 1``. It is meant for that life of the receiver whose
    incarnation is ``reader``, and for no other: a start told to a former life must not open the
    stream of the present one.
    """

    origin: Address
    low: int
    high: int
    start: int | None = None
    receiver_incarnation: int = 0
    epoch: int = 0


class Close(NamedTuple):
    """The connection ``epoch`` of ``origin`` is over, or never was."""

    origin: Address
    epoch: int


class StreamProgress(NamedTuple):
    """One stream in a vote or a stability message: delivered (or stable) up to, and known up to."""

    origin: Address
    delivered: int
    high: int


class Vote(NamedTuple):
    """``origin`` tells the coordinator of view ``view`` how far it has delivered each stream."""

    origin: Address
    view: int
    progress: tuple[StreamProgress, ...]


class Stable(NamedTuple):
    """``origin``, the coordinator of view ``view``, tells up to where everybody has delivered each stream."""

    origin: Address
    view: int
    progress: tuple[StreamProgress, ...]


class OutOfBand(NamedTuple):
    """A run of out-of-band messages, which have numbers of their own; all up to ``floor`` are acknowledged by all."""

    run: Run
    floor: int


class OutOfBandAck(NamedTuple):
    """The sender of this frame has delivered the out-of-band messages ``ranges`` of ``origin``."""

    origin: Address
    ranges: tuple[Range, ...]


class Unreliable(NamedTuple):
    """Messages that are delivered if they arrive, and as often as they arrive; they have no numbers.

    The run starts at 1, always.
    """

    run: Run


class Join(NamedTuple):
    """``place`` wants to be taken in; with ``relay`` whoever hears it is asked to pass it on to the coordinator."""

    entry: RosterEntry
    relay: bool = False


class Leave(NamedTuple):
    """``origin`` wants to be left out of the next view."""

    origin: Address


class Alive(NamedTuple):
    """``origin`` lives and is in ``view`` (None: in none yet); ``you`` says whether the receiver is in that view too.

    With ``answer`` the receiver is asked to say the same of itself at once.
    """

    origin: Address
    view: ViewId | None
    includes_receiver: bool
    reply_wanted: bool = False


class Suspect(NamedTuple):
    """``origin`` has not heard of ``members`` for too long, or, with ``pins``, they have held up its window."""

    origin: Address
    members: tuple[Address, ...]
    slow_receivers: bool = False


class NewView(NamedTuple):
    """Part ``part`` of ``parts`` of the roster of ``view``: whole, or as a change of the roster of ``base``.

    The parts end to end are what ``encode_roster`` of wire/rosters.py makes.
    """

    origin: Address
    view: ViewId
    base: ViewId | None
    part: int
    parts: int
    body: bytes


class AskView(NamedTuple):
    """``origin`` wants the whole roster of the view that the receiver is in."""

    origin: Address


class Beacon(NamedTuple):
    """``origin`` is the coordinator of ``view``, and has lately heard the coordinators ``heard`` of other views."""

    origin: Address
    view: ViewId
    heard: tuple[Address, ...]


class MergeAsk(NamedTuple):
    """``origin`` asks the coordinator of another view for its roster, and to make no view until it hears again."""

    origin: Address
    merge: int


class MergeReply(NamedTuple):
    """``origin``, coordinator of ``view``, agrees to ``merge``, or cannot now; its roster comes along if it agrees."""

    origin: Address
    merge: int
    view: ViewId
    willing: bool


class StateAsk(NamedTuple):
    """``origin`` wants the application's state; it has or will get every message behind ``starts`` itself."""

    origin: Address
    transfer: int
    starts: tuple[StreamProgress, ...]


class StateOffer(NamedTuple):
    """Part ``part`` of ``parts`` of what is on offer: see ``encode_offer`` of wire/offers.py."""

    origin: Address
    transfer: int
    part: int
    parts: int
    body: bytes


class StatePull(NamedTuple):
    """``origin`` wants ``length`` bytes of the state from ``offset`` on; a length of 0 says that it has all."""

    origin: Address
    transfer: int
    offset: int
    length: int


class StateChunk(NamedTuple):
    """The bytes of the state from ``offset`` on."""

    origin: Address
    transfer: int
    offset: int
    body: bytes


MembershipFrame = (
    Join | Leave | Alive | Suspect | NewView | AskView | Beacon | MergeAsk | MergeReply
)
"""Frames about who is in the group."""
StateFrame = StateAsk | StateOffer | StatePull | StateChunk
"""Frames that bring a new member the application's state."""
Frame = (
    Data
    | Ack
    | Nak
    | Gone
    | Tail
    | Close
    | Vote
    | Stable
    | OutOfBand
    | OutOfBandAck
    | Unreliable
    | MembershipFrame
    | StateFrame
)


class Datagram(NamedTuple):
    """What one datagram says: the group, the member that sent it, its frames, and whom it is for.

    A datagram to one member names the incarnation that it is for: what was meant for a former life
    of a process must not reach the present one, which has the same node and perhaps the same port
    (P-15). Without one it is for all. The checksum of a ``bare`` one left out the messages of its
    only frame.
    """

    group: int
    sender: Address
    frames: tuple[Frame, ...]
    addressee: int | None = None
    bare: bool = False
