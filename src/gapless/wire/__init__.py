"""Bytes to frames and back, total: any bytes give frames or a ``RemoteProtocolError``."""

from gapless.wire.codec import decode, encode
from gapless.wire.frames import (
    Ack,
    Close,
    Data,
    Datagram,
    Frame,
    Gone,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    StreamProgress,
    Tail,
    Unreliable,
    Vote,
)

__all__ = [
    "Ack",
    "Close",
    "Data",
    "Datagram",
    "Frame",
    "Gone",
    "Nak",
    "OutOfBand",
    "OutOfBandAck",
    "Stable",
    "StreamProgress",
    "Tail",
    "Unreliable",
    "Vote",
    "decode",
    "encode",
]
