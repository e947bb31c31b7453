"""Datagrams that have come together: runs that continue each other become one.

A network that takes small datagrams cuts what a member sends in one go into many of them. Each holds one DATA frame
that begins where the one before ended, with the same flags, view and time. What a receiver does costs time for each
run, so neighbours of one sender are put together before anything else is done with them. They are checked as every
datagram is, but the fields in which they cannot differ are compared, not read.

Whatever is not such a neighbour is decoded by itself, and stands behind all that came from its sender before.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from gapless.errors import RemoteProtocolError
from gapless.run import LENGTH_BYTES, PIECE, Run, total_bytes
from gapless.wire.codec import HEADER_BYTES, SAFE_SEQNO, decode
from gapless.wire.frames import Data, Datagram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_TOGETHER_BYTES = 60_000
"""No run is made larger than the largest frame that is sent anywhere."""

_PLAIN = Struct("<4sI24sHH16sQ12sH")
"""A datagram to all with one DATA frame of a whole life: preamble, checksum, group and sender, kind and flags, length,
origin, first seqno, view and time, count."""
_WHO = slice(8, 32)
_PREAMBLE_BYTES = 8
_OTHER_BYTES = HEADER_BYTES + 4
"""What the length of a frame leaves out: the header of the datagram, and the front of the frame up to that length."""


class _Open:
    """A run in the making."""

    __slots__ = ("after", "alike", "lengths", "payloads", "said", "size_bytes")

    def __init__(self, said: Datagram, run: Run, alike: tuple[object, ...]) -> None:
        self.said = said
        self.alike = alike
        self.after = run.last + 1
        self.lengths = [run.lengths]
        self.payloads = [run.payload]
        self.size_bytes = run.size_bytes

    def close(self) -> Datagram:
        """Return what was put together as if it had come in one datagram."""
        if len(self.payloads) == 1:
            return self.said
        frame = self.said.frames[0]
        assert isinstance(frame, Data)
        first = frame.run
        lengths, payload = b"".join(self.lengths), b"".join(self.payloads)
        run = Run(first.origin, first.first, lengths, payload, first.flags, first.view, first.sent_ns)
        return self.said._replace(frames=(frame._replace(run=run),))


def decode_together(datagrams: Iterable[bytes]) -> Iterator[tuple[Datagram | RemoteProtocolError, int]]:
    """Return what datagrams say, with neighbours put together, and how many those were.

    In the place of one that says nothing stands the reason.
    """
    making: dict[bytes, _Open] = {}
    for datagram in datagrams:
        who = datagram[_WHO]
        run = making.get(who)
        if run is not None:
            if _add(datagram, run):
                continue
            del making[who]
            yield run.close(), len(run.payloads)
        try:
            said = decode(datagram)
        except RemoteProtocolError as error:
            yield error, 1
            continue
        opened = _begin(datagram, said)
        if opened is None:
            yield said, 1
        else:
            making[who] = opened
    for run in making.values():
        yield run.close(), len(run.payloads)


def _add(datagram: bytes, run: _Open) -> bool:
    """Add what a datagram holds to ``run``, if it continues it and is whole; return whether it does."""
    size_bytes = len(datagram)
    if size_bytes <= _PLAIN.size:
        return False
    preamble, checksum, _, kind, length, origin, first, when, count = _PLAIN.unpack_from(datagram)
    if first != run.after or first >= SAFE_SEQNO or (preamble, kind, origin, when) != run.alike:
        return False
    payload = _PLAIN.size + LENGTH_BYTES * count
    if length != size_bytes - _OTHER_BYTES or not count or payload > size_bytes:
        return False
    lengths = datagram[_PLAIN.size : payload]
    if crc32(memoryview(datagram)[_PREAMBLE_BYTES:]) != checksum or total_bytes(lengths) != size_bytes - payload:
        return False
    run.size_bytes += size_bytes - _PLAIN.size
    if run.size_bytes > MOST_TOGETHER_BYTES:
        return False
    run.after = first + count
    run.lengths.append(lengths)
    run.payloads.append(datagram[payload:])
    return True


def _begin(datagram: bytes, said: Datagram) -> _Open | None:
    """Return a run that others may continue, if ``said`` is one plain run to all and nothing else."""
    frame = said.frames[0]
    if type(frame) is not Data or len(said.frames) > 1 or said.addressee is not None:
        return None
    run = frame.run
    if frame.epoch or frame.repair or run.flags & PIECE:
        return None
    preamble, _, _, kind, _, origin, _, when, _ = _PLAIN.unpack_from(datagram)
    return _Open(said, run, (preamble, kind, origin, when))
