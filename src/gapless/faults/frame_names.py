"""Stable names of incarnations and of frames.

An incarnation has the letter of the node and one prime for each restart: ``a``, then ``a'``, then
``a''``. The name of a frame is the content, the link, and the number of equal frames on the link:
``DATA a7..9 a->b #1``; a stream to one member has an ``@``: ``DATA a@7..9 a->b #1``. No name
depends on the order of events in the world, so removing one fault from a script keeps all other
names.
"""

from __future__ import annotations

import re
from string import ascii_lowercase
from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import Address
from gapless.wire import (
    Ack,
    Close,
    Data,
    Datagram,
    Gone,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    Tail,
    Unreliable,
    Vote,
)
from gapless.wire.frames import (
    FIRST_CONNECTION_EPOCH,
    Alive,
    AskView,
    Beacon,
    Join,
    Leave,
    MembershipFrame,
    MergeAsk,
    MergeReply,
    NameTaken,
    NewView,
    Signature,
    StateAsk,
    StateChunk,
    StateFrame,
    StateOffer,
    StatePull,
    Suspect,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.wire import Frame

KINDS = (
    "DATA",
    "REPAIR",
    "OOB",
    "BARE",
    "VIEW",
    "JOIN",
    "LEAVE",
    "TAKEN",
    "SUSPECT",
    "MERGE",
    "AGREE",
    "BEACON",
    "WANT",
    "OFFER",
    "PULL",
    "CHUNK",
    "NAK",
    "GONE",
    "TAIL",
    "CLOSE",
    "STABLE",
    "VOTE",
    "ACK",
    "OOBACK",
    "ASKVIEW",
    "ALIVE",
    "SIGNED",
    "NOISE",
)
"""The kinds of frames, the most telling first; ``NOISE`` does not decode."""


class Label(NamedTuple):
    """A datagram in short: the kind, stream and seqnos of the leading frame."""

    kind: str
    origin: str
    first: int
    last: int


class FrameName(NamedTuple):
    """The stable name of one crossing; ``nth`` counts equal labels on the same link, from 1."""

    kind: str
    origin: str
    first: int
    last: int
    source: str
    target: str
    nth: int

    def __str__(self) -> str:
        span = f"{self.first}" if self.first == self.last else f"{self.first}..{self.last}"
        return f"{self.kind} {self.origin}{span} {self.source}->{self.target} #{self.nth}"

    @classmethod
    def parse(cls, text: str) -> FrameName:
        """Return the name in a text of ``str(name)``."""
        match = _FRAME_NAME.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a frame name such as 'DATA a7..9 a->b #1'")
        kind, origin, first, last, source, target, nth = match.groups()
        return cls(kind, origin, int(first), int(last or first), source, target, int(nth))


_INCARNATION = r"[a-z]+'*"
_FRAME_NAME = re.compile(
    rf"([A-Z]+) ({_INCARNATION}@?)(\d+)(?:\.\.(\d+))? ({_INCARNATION})->([a-z]+) #(\d+)"
)


def node_name(node: int) -> str:
    """Return the letters of a node: ``a`` for 1, ``b`` for 2; ``aa`` follows ``z``."""
    letters = ""
    while node > 0:
        node, letter = divmod(node - 1, 26)
        letters = ascii_lowercase[letter] + letters
    return letters


def node_number(name: str) -> int:
    """Return the node with the letters ``name``, primes or not."""
    number = 0
    for letter in name.rstrip("'"):
        number = number * 26 + ascii_lowercase.index(letter) + 1
    return number


def incarnation_name(address: Address) -> str:
    """Return the name of an incarnation: letters of the node, and a prime for each restart."""
    primes = address.incarnation - 1
    if not 0 <= primes <= _MAX_PRIMES:
        # The simulator has no such incarnation: the datagram is forged or damaged.
        return str(address)
    return node_name(address.node) + "'" * primes


_MAX_PRIMES = 99


def incarnation_address(name: str) -> Address:
    """Return the address with the name ``name`` (the inverse of ``incarnation_name``)."""
    return Address(node_number(name), 1 + name.count("'"))


def span_of(frame: Frame) -> tuple[int, int]:
    """Return the first and last seqno of a frame."""
    if isinstance(frame, (Data, OutOfBand, Unreliable)):
        return frame.run.first, frame.run.last
    if isinstance(frame, Ack):
        return frame.seqno, frame.seqno
    if isinstance(frame, (Nak, OutOfBandAck)):
        return (frame.ranges[0][0], frame.ranges[-1][1]) if frame.ranges else (0, 0)
    if isinstance(frame, Gone):
        return frame.low, frame.low
    if isinstance(frame, Tail):
        return frame.low, frame.high
    if isinstance(frame, (NewView, Beacon, Alive)):
        number = 0 if frame.view is None else frame.view.number
        return number, number
    if isinstance(frame, (StatePull, StateChunk)):
        length = frame.length if isinstance(frame, StatePull) else len(frame.body)
        return frame.offset, frame.offset + length
    return 0, 0


def stream_of(frame: Frame) -> tuple[Address, bool]:
    """Return the origin of a frame's stream, and whether the stream goes to one member only."""
    if isinstance(frame, (OutOfBand, Unreliable)):
        return frame.run.origin, False
    if isinstance(frame, (Join, NameTaken)):
        return frame.entry.address, False
    if isinstance(frame, (Vote, Stable, OutOfBandAck, MembershipFrame, StateFrame)):
        return frame.origin, False
    origin = frame.run.origin if isinstance(frame, Data) else frame.origin
    return origin, frame.epoch >= FIRST_CONNECTION_EPOCH


def kind_of(frame: Frame) -> str:
    """Return the name of a frame's kind; a repair has a kind of its own."""
    if isinstance(frame, Data):
        return "REPAIR" if frame.repair else "DATA"
    return _KIND_WORDS[type(frame)]


_KIND_WORDS: dict[type, str] = {
    Ack: "ACK",
    Nak: "NAK",
    Gone: "GONE",
    Tail: "TAIL",
    Close: "CLOSE",
    Vote: "VOTE",
    Stable: "STABLE",
    OutOfBand: "OOB",
    OutOfBandAck: "OOBACK",
    Unreliable: "BARE",
    NewView: "VIEW",
    Join: "JOIN",
    Leave: "LEAVE",
    NameTaken: "TAKEN",
    Suspect: "SUSPECT",
    MergeAsk: "MERGE",
    MergeReply: "AGREE",
    Beacon: "BEACON",
    AskView: "ASKVIEW",
    Alive: "ALIVE",
    Signature: "SIGNED",
    StateAsk: "WANT",
    StateOffer: "OFFER",
    StatePull: "PULL",
    StateChunk: "CHUNK",
}
_RANK = {kind: rank for rank, kind in enumerate(KINDS)}


def label_of(datagram: Datagram, name: Callable[[Address], str] = str) -> Label:
    """Return the label of a datagram, from the most telling frame (data, then NAKs, then acks).

    ``name`` returns the name of an address; the default serves real addresses.
    """
    frames = datagram.frames
    lead = frames[0]
    kind = kind_of(lead)
    for frame in frames[1:]:
        other = kind_of(frame)
        if _RANK[other] < _RANK[kind]:
            lead, kind = frame, other
    origin, to_one = stream_of(lead)
    return Label(kind, name(origin) + "@" if to_one else name(origin), *span_of(lead))


NOISE = Label("NOISE", "", 0, 0)
"""The label of bytes that do not decode."""
