"""Bytes to frames and back, total: any bytes give frames or a ``RemoteProtocolError``."""

from gapless.wire.codec import decode, encode
from gapless.wire.frames import Ack, Data, Datagram, Frame, Gone, Nak, Tail

__all__ = ["Ack", "Data", "Datagram", "Frame", "Gone", "Nak", "Tail", "decode", "encode"]
