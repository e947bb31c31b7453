"""Coalescing: runs of consecutive datagrams that continue each other become a single run.

A network with small datagrams splits a large send into many datagrams. Each has a DATA frame that
begins where the previous frame ended, with the same flags, view and time. A receiver spends time on
each run, so consecutive datagrams of a sender are joined first. Every datagram is checked as usual,
but fields that cannot differ are compared, not decoded.

A datagram that does not continue the previous datagram is decoded separately, after all earlier
datagrams of the same sender.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from gapless.errors import RemoteProtocolError
from gapless.identity import Address
from gapless.run import FRAGMENT, LENGTH_BYTES, DatagramRun, Run, total_bytes
from gapless.wire.codec import (
    BARE,
    FLAGS_AT,
    HEADER_BYTES,
    LARGE_RUN_BYTES,
    SAFE_SEQNO,
    decode,
)
from gapless.wire.expected_frames import PLAIN_RUN_FLAGS, PREAMBLES, TO_ALL_OTHER_BYTES
from gapless.wire.frames import Data, Datagram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_BYTES = 256_000
"""Maximum size of a run that is continued."""
_LARGE_BYTES = 16_000
"""From this size on, messages stay in their datagram until they are read."""

_PLAIN = Struct("<4sI24sHH16sQ12sH")
"""A datagram to all with one DATA frame of epoch 0, up to the length table.

Preamble, checksum, group and sender, kind and flags, length, origin, first seqno, view and time,
count.
"""
_FRONT = Struct("<4sI44sQ")
"""The same, up to the first seqno: preamble, checksum, other fields, first seqno."""
_RUN = Struct("<4sIQQQHHQQQIQH")
"""The same with numbers: group, node and incarnation of the sender, and of the origin."""
_WHEN_AT, _WHEN_END = 60, 72
"""Where such a datagram holds the view and the time of sending, which a run has in common."""
_PREAMBLE_BYTES = 8
_TO_ALL = frozenset((PREAMBLES[0], PREAMBLES[BARE]))
# The constructor of a named tuple is a Python function around this one.
_make = tuple.__new__


class _OpenRun:
    """A run that may be continued, and the fields of the last datagram.

    Most runs are not continued: their fields are found with the first datagram of the same time.
    """

    __slots__ = (
        "bytes",
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
        "run",
        "size_bytes",
        "sources",
        "table",
        "when",
    )

    def __init__(self, decoded: Datagram, run: Run, datagram: bytes) -> None:
        self.datagram = decoded
        self.run = run
        self.bytes = datagram
        self.when = datagram[_WHEN_AT:_WHEN_END]
        self.datagram_bytes = -1  # no datagram is as long, before ``begin``
        self.lengths: list[bytes] = []

    def begin(self) -> None:
        """Find the fields to compare: the run is perhaps continued."""
        datagram, run = self.bytes, self.run
        self.preamble, _, _, kind, _, origin, _, when, _ = _PLAIN.unpack_from(datagram)
        self.crc_start = datagram[FLAGS_AT]
        self.constant_fields = self.preamble, kind, origin, when
        self.is_large = len(datagram) >= _LARGE_BYTES
        self.sources: list[tuple[bytes, int]] = []
        self.size_bytes = 0
        self.add(datagram, run.first, run.lengths)

    def add(self, datagram: bytes, first: int, lengths: bytes) -> None:
        """Add the messages of a datagram, and keep the fields for comparison with the next."""
        self.datagram_bytes = len(datagram)
        self.payload = _PLAIN.size + len(lengths)
        self.covered = self.payload if self.datagram.bare else None
        self.middle = datagram[_PREAMBLE_BYTES : _FRONT.size - 8]
        self.rest = datagram[_FRONT.size : self.payload]
        self.table, self.count = lengths, len(lengths) // LENGTH_BYTES
        self.lengths.append(lengths)
        self.sources.append((datagram, self.payload))
        self.next_seqno = first + self.count
        self.size_bytes += len(datagram) - _PLAIN.size

    def close(self) -> tuple[Datagram, int]:
        """Return the joined run as a datagram, and the number of joined datagrams."""
        times = len(self.lengths)
        if times < 2:
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
        return self.datagram._replace(frames=(Data(run),)), times


def decode_coalesced(
    datagrams: Iterable[bytes], *, opened: bool = False
) -> Iterator[tuple[Datagram | RemoteProtocolError, int]]:
    """Yield decoded datagrams with consecutive datagrams joined, and the number joined.

    An invalid datagram yields an error. Datagrams that were sealed, and are ``opened``, need no
    checksum.
    """
    open_runs: dict[bytes, _OpenRun] = {}
    run: _OpenRun | None = None
    for datagram in datagrams:
        if run is not None and len(datagram) == run.datagram_bytes and run.size_bytes < _MAX_BYTES:
            # The fast path: all but the seqno and the messages equals the datagram before.
            preamble, checksum, middle, first = _FRONT.unpack_from(datagram)
            if (
                first == run.next_seqno < SAFE_SEQNO
                and middle == run.middle
                and preamble == run.preamble
                and datagram[_FRONT.size : run.payload] == run.rest
                and (
                    opened
                    or crc32(datagram[_PREAMBLE_BYTES : run.covered], run.crc_start) == checksum
                )
            ):
                run.lengths.append(run.table)
                run.sources.append((datagram, run.payload))
                run.next_seqno += run.count
                run.size_bytes += run.datagram_bytes - _PLAIN.size
                continue
        sender = datagram[_PREAMBLE_BYTES:HEADER_BYTES]  # group and sender
        run = open_runs.get(sender)
        if run is not None:
            if _continue(datagram, run, opened=opened):
                continue
            del open_runs[sender]
            yield run.close()
        decoded = _decode_plain(datagram, opened=opened)
        if decoded is None:
            try:
                decoded = decode(datagram, opened=opened)
            except RemoteProtocolError as error:
                run = None
                yield error, 1
                continue
        run = _begin(datagram, decoded)
        if run is None:
            yield decoded, 1
        else:
            open_runs[sender] = run
    for open_run in open_runs.values():
        yield open_run.close()


def _continue(datagram: bytes, run: _OpenRun, *, opened: bool) -> bool:
    """Add a valid datagram that continues ``run``; return whether the datagram was added."""
    size_bytes = len(datagram)
    if size_bytes <= _PLAIN.size or datagram[_WHEN_AT:_WHEN_END] != run.when:
        return False
    if not run.lengths:
        run.begin()
    if run.size_bytes >= _MAX_BYTES:
        return False
    preamble, checksum, _, kind, length, origin, first, when, count = _PLAIN.unpack_from(datagram)
    if (
        first != run.next_seqno
        or first >= SAFE_SEQNO
        or (preamble, kind, origin, when) != run.constant_fields
    ):
        return False
    payload = _PLAIN.size + LENGTH_BYTES * count
    if length != size_bytes - TO_ALL_OTHER_BYTES or not count or payload > size_bytes:
        return False
    lengths = datagram[_PLAIN.size : payload]
    if total_bytes(lengths) != size_bytes - payload:
        return False
    covered = datagram[_PREAMBLE_BYTES : payload if run.datagram.bare else None]
    if not opened and crc32(covered, run.crc_start) != checksum:
        return False
    run.add(datagram, first, lengths)
    return True


def _decode_plain(datagram: bytes, *, opened: bool) -> Datagram | None:
    """Decode a datagram to all with a single run, not marked; None for any other datagram."""
    size_bytes = len(datagram)
    if size_bytes < _RUN.size:
        return None
    (
        preamble,
        checksum,
        group,
        node,
        incarnation,
        kind,
        length,
        origin_node,
        origin_incarnation,
        first,
        view,
        sent_ns,
        count,
    ) = _RUN.unpack_from(datagram)
    payload = _RUN.size + LENGTH_BYTES * count
    lengths, payload_bytes = datagram[_RUN.size : payload], size_bytes - payload
    if (
        # Another frame, or a run with a flag; another version, or a flag of the header.
        kind not in PLAIN_RUN_FLAGS
        or preamble not in _TO_ALL
        # A repair by another holder.
        or origin_node != node
        or origin_incarnation != incarnation
        # More than one frame, or more than a length field can hold.
        or length != size_bytes - TO_ALL_OTHER_BYTES
        # Seqnos or lengths that the codec refuses.
        or not count
        or not 0 < first < SAFE_SEQNO
        or total_bytes(lengths) != payload_bytes
        # Large messages stay in their datagram until they are read.
        or payload_bytes >= LARGE_RUN_BYTES
    ):
        return None
    flags = datagram[FLAGS_AT]
    if not opened and checksum != crc32(
        datagram[_PREAMBLE_BYTES : payload if flags & BARE else None], flags
    ):
        return None
    origin = _make(Address, (node, incarnation))
    run = Run(origin, first, lengths, datagram[payload:], PLAIN_RUN_FLAGS[kind], view, sent_ns)
    frame = _make(Data, (run, False, 0, False))
    return _make(Datagram, (group, origin, (frame,), None, flags & BARE != 0, False))


def _begin(datagram: bytes, decoded: Datagram) -> _OpenRun | None:
    """Return an open run if ``decoded`` is a single plain run to all; else None."""
    frame = decoded.frames[0]
    if type(frame) is not Data or len(decoded.frames) > 1 or decoded.addressee is not None:
        return None
    run = frame.run
    if frame.epoch or frame.repair or run.flags & FRAGMENT or run.size_bytes >= _MAX_BYTES // 2:
        return None
    return _OpenRun(decoded, run, datagram)
