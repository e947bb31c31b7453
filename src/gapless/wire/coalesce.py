"""Datagrams that have come together: runs that continue each other become one.

A network that takes small datagrams cuts what a member sends in one go into many of them. Each
holds one DATA frame that begins where the one before ended, with the same flags, view and time.
What a receiver does costs time for each run, so neighbours of one sender are put together before
anything else is done with them. They are checked as every datagram is, but the fields in which they
cannot differ are compared, not read.

Whatever is not such a neighbour is decoded by itself, and stands behind all that came from its
sender before.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from gapless.errors import RemoteProtocolError
from gapless.run import FRAGMENT, LENGTH_BYTES, DatagramRun, Run, total_bytes
from gapless.wire.codec import BARE, HEADER_BYTES, SAFE_SEQNO, decode
from gapless.wire.frames import Data, Datagram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_BYTES = 256_000
"""A run of so many bytes is not continued."""
_LARGE_BYTES = 16_000
"""The messages of a datagram of so many bytes are not copied out of it before somebody wants them."""

_PLAIN = Struct("<4sI24sHH16sQ12sH")
"""A datagram to all with one DATA frame of a whole life: preamble, checksum, group and sender, kind and flags, length,
origin, first seqno, view and time, count; then the lengths and the messages."""
_FRONT = Struct("<4sI44sQ")
"""The same: preamble, checksum, everything up to the first seqno, and that."""
_PREAMBLE_BYTES = 8
_SENDER_FIELDS = slice(8, 32)
_OTHER_BYTES = HEADER_BYTES + 4
"""What the length of a frame leaves out: the header of the datagram, and the front of the frame up to that length."""


class _OpenRun:
    """A run in the making, and what the last datagram looked like that it was made of."""

    __slots__ = (
        "constant_fields",
        "count",
        "covered",
        "crc_start",
        "datagram",
        "datagram_bytes",
        "is_large",
        "lengths",
        "middle",
        "next_seqno",
        "payload",
        "preamble",
        "rest",
        "size_bytes",
        "sources",
        "table",
    )

    def __init__(self, said: Datagram, run: Run, datagram: bytes) -> None:
        self.datagram = said
        self.preamble, _, _, kind, _, origin, _, when, _ = _PLAIN.unpack_from(datagram)
        self.crc_start = BARE if said.bare else 0
        self.constant_fields = self.preamble, kind, origin, when
        self.is_large = len(datagram) >= _LARGE_BYTES
        self.lengths: list[bytes] = []
        self.sources: list[tuple[bytes, int]] = []
        self.size_bytes = 0
        self.add(datagram, run.first, run.lengths)

    def add(self, datagram: bytes, first: int, lengths: bytes) -> None:
        """Add what a datagram holds, and remember how it looks: most often the next one looks the same."""
        self.datagram_bytes = len(datagram)
        self.payload = _PLAIN.size + len(lengths)
        self.covered = self.payload if self.crc_start else None
        self.middle = datagram[_PREAMBLE_BYTES : _FRONT.size - 8]
        self.rest = datagram[_FRONT.size : self.payload]
        self.table, self.count = lengths, len(lengths) // LENGTH_BYTES
        self.lengths.append(lengths)
        self.sources.append((datagram, self.payload))
        self.next_seqno = first + self.count
        self.size_bytes += len(datagram) - _PLAIN.size

    def close(self) -> tuple[Datagram, int]:
        """Return what was put together as if it had come in one datagram, and of how many it was made."""
        times = len(self.lengths)
        if times == 1:
            return self.datagram, 1
        frame = self.datagram.frames[0]
        assert isinstance(frame, Data)
        first, lengths = frame.run, b"".join(self.lengths)
        what = first.flags, first.view, first.sent_ns
        if self.is_large:
            run: Run = DatagramRun(first.origin, first.first, lengths, self.sources, *what)
        else:
            payload = b"".join([datagram[at:] for datagram, at in self.sources])
            run = Run(first.origin, first.first, lengths, payload, *what)
        return Datagram(
            self.datagram.group, self.datagram.sender, (Data(run),), None, self.datagram.bare
        ), times


def decode_coalesced(
    datagrams: Iterable[bytes],
) -> Iterator[tuple[Datagram | RemoteProtocolError, int]]:
    """Return what datagrams say, with neighbours put together, and how many those were.

    In the place of one that says nothing stands the reason.
    """
    making: dict[bytes, _OpenRun] = {}
    run: _OpenRun | None = None
    for datagram in datagrams:
        if run is not None and len(datagram) == run.datagram_bytes and run.size_bytes < _MAX_BYTES:
            # The shortest way: all but the seqno and the messages is as it was in the datagram
            # before.
            preamble, checksum, middle, first = _FRONT.unpack_from(datagram)
            if (
                first == run.next_seqno < SAFE_SEQNO
                and middle == run.middle
                and preamble == run.preamble
                and datagram[_FRONT.size : run.payload] == run.rest
                and crc32(datagram[_PREAMBLE_BYTES : run.covered], run.crc_start) == checksum
            ):
                run.lengths.append(run.table)
                run.sources.append((datagram, run.payload))
                run.next_seqno += run.count
                run.size_bytes += run.datagram_bytes - _PLAIN.size
                continue
        who = datagram[_SENDER_FIELDS]
        run = making.get(who)
        if run is not None:
            if _continue(datagram, run):
                continue
            del making[who]
            yield run.close()
        try:
            said = decode(datagram)
        except RemoteProtocolError as error:
            run = None
            yield error, 1
            continue
        run = _begin(datagram, said)
        if run is None:
            yield said, 1
        else:
            making[who] = run
    for one in making.values():
        yield one.close()


def _continue(datagram: bytes, run: _OpenRun) -> bool:
    """Add what a datagram holds to ``run``, if it continues it and is whole; return whether it does."""
    size_bytes = len(datagram)
    if size_bytes <= _PLAIN.size or run.size_bytes >= _MAX_BYTES:
        return False
    preamble, checksum, _, kind, length, origin, first, when, count = _PLAIN.unpack_from(datagram)
    if (
        first != run.next_seqno
        or first >= SAFE_SEQNO
        or (preamble, kind, origin, when) != run.constant_fields
    ):
        return False
    payload = _PLAIN.size + LENGTH_BYTES * count
    if length != size_bytes - _OTHER_BYTES or not count or payload > size_bytes:
        return False
    lengths = datagram[_PLAIN.size : payload]
    covered = datagram[_PREAMBLE_BYTES : payload if run.crc_start else None]
    if crc32(covered, run.crc_start) != checksum or total_bytes(lengths) != size_bytes - payload:
        return False
    run.add(datagram, first, lengths)
    return True


def _begin(datagram: bytes, said: Datagram) -> _OpenRun | None:
    """Return a run that others may continue, if ``said`` is one plain run to all, with room for more."""
    frame = said.frames[0]
    if type(frame) is not Data or len(said.frames) > 1 or said.addressee is not None:
        return None
    run = frame.run
    if frame.epoch or frame.repair or run.flags & FRAGMENT or run.size_bytes >= _MAX_BYTES // 2:
        return None
    return _OpenRun(said, run, datagram)
