"""Frames: the units that members exchange.

A frame names a stream by the address of the origin, incarnation included, so that a frame of a
former incarnation never affects the current incarnation. The datagram names the sender, once. An
incarnation has one stream to the group (epoch 0), or one for each view (the epoch is the number of
the view), and one for each connection to another member (the epoch is the connection's number).
"""

from __future__ import annotations

from typing import NamedTuple

from gapless.identity import Address, RosterEntry, ViewId
from gapless.run import Run

Range = tuple[int, int]
"""First and last seqno, both included."""


FIRST_CONNECTION_EPOCH = 1 << 63
"""The lowest epoch of a connection; lower epochs are view numbers, 0 is the whole incarnation."""


class Data(NamedTuple):
    """A run of messages; ``repair`` marks a retransmission, so that a receiver can measure the RTT.

    ``first`` marks the message that starts a connection, the next message for the receiver.
    """

    run: Run
    repair: bool = False
    epoch: int = 0
    first: bool = False


class Ack(NamedTuple):
    """The sender has delivered the stream up to ``seqno``, and buffers ``buffer_bytes`` beyond."""

    origin: Address
    seqno: int
    buffer_bytes: int
    epoch: int = 0


class Nak(NamedTuple):
    """The sender misses ``ranges``; without a range the sender asks where the stream starts."""

    origin: Address
    ranges: tuple[Range, ...]
    epoch: int = 0


class Gone(NamedTuple):
    """The origin has no message up to and including ``low`` any more."""

    origin: Address
    low: int
    epoch: int = 0


class Tail(NamedTuple):
    """The origin announces a stream: purged up to ``low``, sent up to ``high``.

    ``start`` is where the stream starts for the receiver: the first message is ``start + 1``. Only
    the incarnation ``receiver_incarnation`` of the receiver may use the start: a start for a former
    incarnation must not open the stream of the current incarnation.
    """

    origin: Address
    low: int
    high: int
    start: int | None = None
    receiver_incarnation: int = 0
    epoch: int = 0


class Close(NamedTuple):
    """The connection ``epoch`` of ``origin`` is over, or never existed."""

    origin: Address
    epoch: int


class StreamProgress(NamedTuple):
    """A stream in a vote or a stability message: the delivered (or stable) and highest seqno."""

    origin: Address
    delivered: int
    high: int


class Vote(NamedTuple):
    """``origin`` reports the delivered mark of each stream to the coordinator of ``view``."""

    origin: Address
    view: int
    progress: tuple[StreamProgress, ...]


class Stable(NamedTuple):
    """``origin``, coordinator of ``view``, reports up to where all members deliver each stream."""

    origin: Address
    view: int
    progress: tuple[StreamProgress, ...]


class OutOfBand(NamedTuple):
    """A run of out-of-band messages, numbered apart.

    All up to ``floor`` are acknowledged by all.
    """

    run: Run
    floor: int


class OutOfBandAck(NamedTuple):
    """The sender of the frame has delivered the out-of-band messages ``ranges`` of ``origin``."""

    origin: Address
    ranges: tuple[Range, ...]


class Unreliable(NamedTuple):
    """Messages without numbers, delivered if and as often as they arrive.

    The run always starts at 1.
    """

    run: Run


class Join(NamedTuple):
    """A request to admit ``entry``; with ``relay`` each receiver relays to the coordinator."""

    entry: RosterEntry
    relay: bool = False


class NameTaken(NamedTuple):
    """The member of ``entry`` holds the durable name under which ``joiner`` asks to join."""

    entry: RosterEntry
    joiner: Address


class Leave(NamedTuple):
    """``origin`` asks for a view without ``origin``."""

    origin: Address


class Alive(NamedTuple):
    """A heartbeat: ``origin`` is in ``view``, or in no view yet (None).

    ``includes_receiver``: whether the receiver is in the view as well. With ``reply_wanted`` the
    receiver answers at once with a heartbeat. ``expelled``: the receiver was in an earlier view,
    and joins again only as a new incarnation.
    """

    origin: Address
    view: ViewId | None
    includes_receiver: bool
    reply_wanted: bool = False
    expelled: bool = False


class Suspect(NamedTuple):
    """``origin`` has not heard of ``members`` for too long, or they are ``slow_receivers``."""

    origin: Address
    members: tuple[Address, ...]
    slow_receivers: bool = False


class NewView(NamedTuple):
    """A part of the roster of ``view``: the whole roster, or the change against ``base``.

    The parts end to end are the bytes of ``encode_roster`` (wire/roster.py).
    """

    origin: Address
    view: ViewId
    base: ViewId | None
    part: int
    parts: int
    body: bytes


class AskView(NamedTuple):
    """``origin`` asks for the whole roster of the receiver's view."""

    origin: Address


class Beacon(NamedTuple):
    """``origin`` coordinates ``view``, and has lately heard the other coordinators ``heard``."""

    origin: Address
    view: ViewId
    heard: tuple[Address, ...]


class MergeAsk(NamedTuple):
    """``origin`` asks another coordinator for a roster, and to create no view meanwhile."""

    origin: Address
    merge: int


class MergeReply(NamedTuple):
    """``origin``, coordinator of ``view``, agrees to ``merge`` with a roster, or refuses."""

    origin: Address
    merge: int
    view: ViewId
    willing: bool


class StateAsk(NamedTuple):
    """``origin`` requests the state, and receives every message behind ``starts`` directly."""

    origin: Address
    transfer: int
    starts: tuple[StreamProgress, ...]


class StateOffer(NamedTuple):
    """A part of the description of a state: see ``encode_offer`` (wire/state_offer.py)."""

    origin: Address
    transfer: int
    part: int
    parts: int
    body: bytes


class StatePull(NamedTuple):
    """``origin`` requests ``length`` bytes of the state from ``offset`` on.

    Length 0: ``origin`` has all bytes.
    """

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


class Signature(NamedTuple):
    """The signature of ``origin`` over the frames about membership before it in the datagram.

    ``counter`` rises with every signature of an incarnation, and ``view`` is the number of the view
    of ``origin``, or 0 without a view.
    """

    origin: Address
    counter: int
    view: int
    signature: bytes


MembershipFrame = (
    Join
    | NameTaken
    | Leave
    | Alive
    | Suspect
    | NewView
    | AskView
    | Beacon
    | MergeAsk
    | MergeReply
    | Signature
)
"""Frames about the members of the group."""
StateFrame = StateAsk | StateOffer | StatePull | StateChunk
"""Frames that transfer the application's state to a new member."""
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
    """A decoded datagram: the group, the sender, the frames, and the addressed incarnation.

    A datagram to one member names the incarnation of the ``addressee``: a datagram for a former
    incarnation must not reach the current incarnation, which has the same node and perhaps the same
    port (P-15). Without an addressee the datagram is for all members. The checksum of a ``bare``
    datagram leaves out the messages of its only frame. ``view_key``: the datagram is sealed with
    the key of a view.
    """

    group: int
    sender: Address
    frames: tuple[Frame, ...]
    addressee: int | None = None
    bare: bool = False
    view_key: bool = False
