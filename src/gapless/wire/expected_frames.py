"""Datagrams of the ordinary case as fixed layouts: one run, or one ack, and nothing else.

A receiver takes such a datagram apart in one step, and compares fields that cannot differ instead
of decoding them. A sender writes the fields that never change once. The bytes are those of codec.py
(docs/reference/wire.md), and every other datagram is left to the codec.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from gapless.run import NO_LOOPBACK
from gapless.wire.codec import (
    ACK,
    ADDRESSED,
    ADDRESSED_HEADER_BYTES,
    BARE,
    DATA,
    EPOCH,
    HEADER_BYTES,
    MAGIC,
    VERSION,
)
from gapless.wire.primitives import LENGTH_MAX, PREFIX_LENGTH_BYTES

if TYPE_CHECKING:
    from gapless.identity import Address
    from gapless.run import Run

GROUP_RUN = Struct("<4sI8s16sHH16sQIQH")
"""A datagram to all with one run, up to the length table.

Preamble, checksum, group, sender, kind with flags, length, origin, first seqno, view, time, count.
"""
MEMBER_RUN = Struct("<4sI8s16sQHH16sQQIQH")
"""The same to one member: with the addressee behind the sender, and the epoch before the seqno."""
GROUP_ACK = Struct("<4sI8s16sQHH16sQI")
"""A datagram to one member with one ack of the stream to the group.

Preamble, checksum, group, sender, addressee, kind with flags, length, origin, seqno, buffer.
"""
MEMBER_ACK = Struct("<4sI8s16sQHH16sQQI")
"""The same about a connection: with the epoch before the seqno."""

ADDRESS = Struct("<QQ")
"""An address, as a datagram holds it."""
GROUP_ID = Struct("<Q")
"""A group, as a datagram holds it."""
CHECKED_FROM = 8
"""The checksum covers a datagram from here on, behind the flags that start the checksum."""

PREAMBLES = {
    flags: bytes((*MAGIC, VERSION, flags)) for flags in (0, BARE, ADDRESSED, ADDRESSED | BARE)
}
"""The first bytes of a datagram without other header flags, by the flags."""
PLAIN_RUN_FLAGS = {DATA: 0, DATA | NO_LOOPBACK << 8: NO_LOOPBACK}
"""The flags of a run to all by its kind and flags: no fragment, no repair, no other mode."""
PLAIN_MEMBER_RUN = DATA | EPOCH << 8
"""Kind and flags of such a run of a connection, behind the first message."""
PLAIN_ACK = ACK
"""Kind and flags of an ack."""
PLAIN_MEMBER_ACK = ACK | EPOCH << 8
"""Kind and flags of an ack of a connection."""

TO_ALL_OTHER_BYTES = HEADER_BYTES + PREFIX_LENGTH_BYTES
"""Bytes of a datagram to all that the length field of its single frame leaves out."""
TO_ONE_OTHER_BYTES = ADDRESSED_HEADER_BYTES + PREFIX_LENGTH_BYTES
"""Bytes of a datagram to one member that the length field of its single frame leaves out."""

_PREAMBLE = Struct("<4sI")
_SENDER_FIELDS = Struct("<QQQ")
_SENDER_AND_ADDRESSEE = Struct("<QQQQ")
_GROUP_FRAME = Struct("<BBHQQQIQH")
_MEMBER_FRAME = Struct("<BBHQQQQIQH")


class RunEncoder:
    """Encodes single runs of one sender; the bytes equal those of ``codec.encode``."""

    __slots__ = ("_bare", "_checked", "_flags", "_group", "_me", "_sender_fields", "_start")

    def __init__(self, group: int, me: Address, *, bare: bool, checked: bool) -> None:
        """Prepare the fields of ``me`` in ``group`` that no datagram changes."""
        self._group = group
        self._me = me
        self._bare = bare
        self._checked = checked
        self._flags = BARE if bare else 0
        self._sender_fields = _SENDER_FIELDS.pack(group, *me)
        self._start = crc32(self._sender_fields, self._flags)

    def to_all(self, run: Run) -> bytes:
        """Return the datagram with a run of epoch 0 that fits one frame."""
        length = _GROUP_FRAME.size - PREFIX_LENGTH_BYTES + run.size_bytes
        assert length <= LENGTH_MAX, "a run of one frame has a length field"
        flags = run.flags
        assert not flags & ~NO_LOOPBACK, "a run with another flag is encoded by the codec"
        node, incarnation = self._me
        front = (
            _GROUP_FRAME.pack(
                DATA, flags, length, node, incarnation, run.first, run.view, run.sent_ns, run.count
            )
            + run.lengths
        )
        checksum = 0
        if self._checked:
            checksum = crc32(front, self._start)
            if not self._bare:
                checksum = crc32(run.payload, checksum)
        preamble = _PREAMBLE.pack(PREAMBLES[self._flags], checksum)
        # The messages of a large run are joined with the header, once.
        messages = (run.payload,) if run.count == 1 else run.buffers
        return b"".join((preamble, self._sender_fields, front, *messages))

    def to_member(self, run: Run, epoch: int, addressee: int) -> bytes:
        """Return the datagram to one member with a run of a connection, not its first."""
        length = _MEMBER_FRAME.size - PREFIX_LENGTH_BYTES + run.size_bytes
        assert length <= LENGTH_MAX, "a run of one frame has a length field"
        assert not run.flags, "a run with a flag is encoded by the codec"
        assert epoch, "a connection has an epoch"
        (node, incarnation), flags = self._me, self._flags | ADDRESSED
        front = b"".join(
            (
                _SENDER_AND_ADDRESSEE.pack(self._group, node, incarnation, addressee),
                _MEMBER_FRAME.pack(
                    DATA,
                    EPOCH,
                    length,
                    node,
                    incarnation,
                    epoch,
                    run.first,
                    run.view,
                    run.sent_ns,
                    run.count,
                ),
                run.lengths,
            )
        )
        checksum = 0
        if self._checked:
            checksum = crc32(front, flags)
            if not self._bare:
                checksum = crc32(run.payload, checksum)
        messages = (run.payload,) if run.count == 1 else run.buffers
        return b"".join((_PREAMBLE.pack(PREAMBLES[flags], checksum), front, *messages))
