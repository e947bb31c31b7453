"""The run: a stretch of consecutive messages of one origin, and the unit of all work.

A frame carries a run, a window stores runs, delivery hands out runs. The cost is per run until a
single message is read. Lengths stay in the form of the wire (little-endian 16-bit numbers), so a
run is sent, stored, repaired and spooled without being taken apart.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from struct import Struct, error as StructError, pack, unpack  # noqa: N812
from typing import TYPE_CHECKING

from gapless.errors import LocalProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.identity import Address

FRAGMENT = 0x01
"""Flag: the run is one fragment of a message that is larger than a frame."""
FIRST_FRAGMENT = 0x02
"""Flag: the first fragment of its message."""
LAST_FRAGMENT = 0x04
"""Flag: the last fragment of its message."""
NO_LOOPBACK = 0x08
"""Flag: the origin does not deliver its own message."""
ACKED = 0x10
"""Flag: every receiver acknowledges the message as soon as it has delivered it."""
PRIVATE = 0x20
"""Flag of an out-of-band message: it was sent to one member only."""

MAX_ENTRY_BYTES = 0xFFFF
"""Maximum bytes of one message in a run; a longer message is sent in fragments."""
LENGTH_BYTES = 2
"""Bytes of one entry of the length table."""

_LARGE_BYTES = 4096
"""Size from about which messages are not joined before the joined bytes are needed."""
_LENGTH = Struct("<H")
_LENGTHS = tuple(Struct(f"<{count}H") for count in range(64))
"""Prepared layouts for runs of the size of a packet; larger runs make a layout on demand."""


def total_bytes(lengths: bytes) -> int:
    """Return the sum of a length table; a table of equal entries is not unpacked."""
    count = len(lengths) // LENGTH_BYTES
    one = lengths[:LENGTH_BYTES]
    if one * count == lengths:
        return count * int.from_bytes(one, "little")
    layout = _LENGTHS[count] if count < len(_LENGTHS) else Struct(f"<{count}H")
    return sum(layout.unpack(lengths))


def length_table(sizes: Sequence[int]) -> bytes:
    """Return the table of at least one length; raise struct.error if one does not fit."""
    count = len(sizes)
    if sizes.count(sizes[0]) == count:
        return _LENGTH.pack(sizes[0]) * count
    return pack(f"<{count}H", *sizes)


class Run:
    """Consecutive messages ``first .. last`` of one origin. Immutable: parts are new runs.

    ``lengths`` is the table of message lengths as on the wire, ``payload`` the messages end to end.
    ``view`` and ``sent_ns`` are the view and the time in which the origin sent the run; repairs
    keep both.
    """

    __slots__ = (
        "count",
        "first",
        "flags",
        "last",
        "lengths",
        "origin",
        "payload",
        "sent_ns",
        "size_bytes",
        "view",
    )

    def __init__(
        self,
        origin: Address,
        first: int,
        lengths: bytes,
        payload: bytes,
        flags: int = 0,
        view: int = 0,
        sent_ns: int = 0,
    ) -> None:
        self.origin = origin
        self.first = first
        self.lengths = lengths
        self.payload = payload
        self.flags = flags
        self.view = view
        self.sent_ns = sent_ns
        self.count = len(lengths) // LENGTH_BYTES
        self.last = first + self.count - 1
        self.size_bytes = len(payload) + len(lengths)
        """The bytes of the run in a window: messages and length entries."""

    @classmethod
    def of(
        cls,
        origin: Address,
        first: int,
        messages: Sequence[bytes],
        flags: int = 0,
        view: int = 0,
        sent_ns: int = 0,
        each_bytes: int | None = None,
    ) -> Run:
        """Make a run of ``messages``, at least one; each must fit one entry of the length table.

        ``each_bytes`` is the length of every message, if known.
        """
        if not messages:
            raise LocalProtocolError("a run needs at least one message")
        try:
            if each_bytes is None:
                lengths = length_table(list(map(len, messages)))
            else:
                lengths = _LENGTH.pack(each_bytes) * len(messages)
        except StructError as error:
            raise LocalProtocolError(
                f"a message of {max(map(len, messages))} bytes does not fit a run"
                f" (at most {MAX_ENTRY_BYTES}): send it in fragments"
            ) from error
        if len(messages) > 1 and len(lengths) // LENGTH_BYTES * len(messages[0]) >= _LARGE_BYTES:
            return GatherRun(origin, first, lengths, messages, flags, view, sent_ns)
        return cls(origin, first, lengths, b"".join(messages), flags, view, sent_ns)

    @property
    def buffers(self) -> Sequence[bytes]:
        """The parts of the payload, not joined."""
        return (self.payload,)

    @property
    def buffer(self) -> memoryview:
        """The messages end to end, not copied."""
        return memoryview(self.payload)

    def message_lengths(self) -> tuple[int, ...]:
        """Return the length of each message."""
        return unpack(f"<{self.count}H", self.lengths)

    def messages(self) -> list[bytes]:
        """Return every message of the run, in order."""
        if self.count == 1:
            return [self.payload]
        return self._messages_in(self.payload, 0)

    def _messages_in(self, data: bytes, at: int) -> list[bytes]:
        ends = list(accumulate(self.message_lengths(), initial=at))
        return [data[start:end] for start, end in pairwise(ends)]

    def message(self, seqno: int) -> bytes:
        """Return the message numbered ``seqno``."""
        return self.part(seqno, seqno).payload

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Iterate over ``(seqno, message)``."""
        return zip(range(self.first, self.last + 1), self.messages(), strict=True)

    def part(self, first: int, last: int) -> Run:
        """Return the part ``first .. last`` of this run, or the run if the part is all of it."""
        if not self.first <= first <= last <= self.last:
            raise LocalProtocolError(f"{first}..{last} is not a part of {self.first}..{self.last}")
        if first == self.first and last == self.last:
            return self
        ends = list(accumulate(self.message_lengths(), initial=0))
        return self._cut(first, last, ends)

    def parts(self, ranges: Sequence[tuple[int, int]]) -> list[Run]:
        """Return the part of each range; the length table is read once for all."""
        if len(ranges) < 2:
            return [self.part(first, last) for first, last in ranges]
        ends = list(accumulate(self.message_lengths(), initial=0))
        return [self._cut(first, last, ends) for first, last in ranges]

    def split_points(self, room_bytes: int) -> list[tuple[int, int, int, int]]:
        """Return where to cut, so that each part costs at most ``room_bytes``, or is one message.

        For each part: the indexes of the first message and of the message behind the last, and the
        same two as offsets in the payload.
        """
        count, one = self.count, self.lengths[:LENGTH_BYTES]
        if one * count == self.lengths:
            (size,) = _LENGTH.unpack(one)
            step = max(1, room_bytes // (size + LENGTH_BYTES))
            heads = range(0, count, step)
            return [
                (head, tail := min(head + step, count), head * size, tail * size) for head in heads
            ]
        ends = list(accumulate(self.message_lengths(), initial=0))
        costs = [end + LENGTH_BYTES * at for at, end in enumerate(ends)]
        found = []
        head = 0
        while head < self.count:
            tail = max(head + 1, bisect_right(costs, costs[head] + room_bytes, head) - 1)
            found.append((head, tail, ends[head], ends[tail]))
            head = tail
        return found

    def split_to_fit(self, room_bytes: int) -> list[Run]:
        """Return parts that cost at most ``room_bytes`` each, or are one message."""
        if self.size_bytes <= room_bytes or self.count == 1:
            return [self]
        return self.parts(
            [
                (self.first + head, self.first + tail - 1)
                for head, tail, _, _ in self.split_points(room_bytes)
            ]
        )

    def _cut(self, first: int, last: int, ends: list[int]) -> Run:
        head, tail = first - self.first, last - self.first + 1
        return Run(
            self.origin,
            first,
            self.lengths[head * LENGTH_BYTES : tail * LENGTH_BYTES],
            self._bytes(ends[head], ends[tail]),
            self.flags,
            self.view,
            self.sent_ns,
        )

    def _bytes(self, start: int, end: int) -> bytes:
        return self.payload[start:end]

    def count_fitting(self, limit_bytes: int) -> int:
        """Return how many messages from the front cost at most ``limit_bytes`` in a window."""
        if self.size_bytes <= limit_bytes:
            return self.count
        total_bytes = 0
        for count, (length,) in enumerate(_LENGTH.iter_unpack(self.lengths)):
            total_bytes += length + LENGTH_BYTES
            if total_bytes > limit_bytes:
                return count
        return self.count

    def _key(self) -> tuple[object, ...]:
        return (
            self.first,
            self.payload,
            self.lengths,
            self.origin,
            self.flags,
            self.view,
            self.sent_ns,
        )

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Run) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash((self.first, self.payload))

    def __repr__(self) -> str:
        size = f"{len(self.payload)} bytes"
        return f"Run({self.origin} {self.first}..{self.last}, {size}, flags={self.flags})"


class _LazyRun(Run):
    """A large run whose messages are joined on demand."""

    __slots__ = ()

    def _init_fields(
        self,
        origin: Address,
        first: int,
        lengths: bytes,
        payload_bytes: int,
        flags: int,
        view: int,
        sent_ns: int,
    ) -> None:
        self.origin = origin
        self.first = first
        self.lengths = lengths
        self.flags = flags
        self.view = view
        self.sent_ns = sent_ns
        self.count = len(lengths) // LENGTH_BYTES
        self.last = first + self.count - 1
        self.size_bytes = payload_bytes + len(lengths)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as a plain run."""
        return Run, (
            self.origin,
            self.first,
            self.lengths,
            self.payload,
            self.flags,
            self.view,
            self.sent_ns,
        )


class GatherRun(_LazyRun):
    """A large run on sending: the messages are joined with the headers of the datagram.

    A repair, or a reader of the whole payload, joins the messages before.
    """

    __slots__ = ("_buffers",)

    def __init__(
        self,
        origin: Address,
        first: int,
        lengths: bytes,
        messages: Sequence[bytes],
        flags: int,
        view: int,
        sent_ns: int,
    ) -> None:
        self._init_fields(origin, first, lengths, total_bytes(lengths), flags, view, sent_ns)
        self._buffers = messages

    @property
    def buffers(self) -> Sequence[bytes]:
        """The parts of the payload, not joined."""
        return self._buffers

    @property
    def payload(self) -> bytes:  # type: ignore[override]
        """The messages end to end."""
        buffers = self._buffers
        if len(buffers) > 1:
            self._buffers = buffers = (
                b"".join(buffers),
            )  # one assignment: several threads may read
        return buffers[0]

    def messages(self) -> list[bytes]:
        """Return every message of the run, in order."""
        buffers = self._buffers
        return list(buffers) if len(buffers) > 1 else super().messages()


class DatagramRun(_LazyRun):
    """A large received run: the messages stay in their datagrams until needed.

    After arrival in one datagram, reading message by message, or in place (``buffer``), copies no
    joined payload.
    """

    __slots__ = ("_sources",)

    def __init__(
        self,
        origin: Address,
        first: int,
        lengths: bytes,
        where: Sequence[tuple[bytes, int]],
        flags: int,
        view: int,
        sent_ns: int,
    ) -> None:
        """Refer to the messages: each datagram of ``where``, from the given offset to the end."""
        payload_bytes = sum([len(datagram) - at for datagram, at in where])
        self._init_fields(origin, first, lengths, payload_bytes, flags, view, sent_ns)
        self._sources = where

    def _joined(self) -> tuple[bytes, int]:
        """Return bytes with all messages end to end, and the offset of the first message."""
        where = self._sources
        if len(where) > 1:
            data = b"".join([memoryview(datagram)[at:] for datagram, at in where])
            self._sources = where = ((data, 0),)  # one assignment: several threads may read
        return where[0]

    @property
    def payload(self) -> bytes:  # type: ignore[override]
        """The messages end to end; the first use releases the datagrams."""
        data, at = self._joined()
        if at:
            data = data[at:]
            self._sources = ((data, 0),)
        return data

    @property
    def buffer(self) -> memoryview:
        """The messages end to end, without a copy after arrival in one datagram."""
        data, at = self._joined()
        return memoryview(data)[at:]

    def messages(self) -> list[bytes]:
        """Return every message of the run, in order."""
        return self._messages_in(*self._joined())

    def _bytes(self, start: int, end: int) -> bytes:
        data, at = self._joined()
        return data[at + start : at + end]
