"""Sealing for streams: each datagram is sealed when it is written, once for all links of one call.

Sealing waits until a datagram is written, because a datagram may wait through a rotation of the
keys. Large datagrams are encrypted into rooms, which are used again: new memory of this size would
cost more than the cipher.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gapless.transport.tcp.link import MAX_DATAGRAM_BYTES
from gapless.wire.seal import LARGE_BYTES, SEAL_OVERHEAD_BYTES

if TYPE_CHECKING:
    from gapless.wire.cipher import Bytes
    from gapless.wire.seal import Seal

MAX_ROOMS = 16
"""Maximum number of rooms that are kept for sending, and for reception."""
_UNUSED_REFERENCES = 3
"""References to a room that no view uses: the list, the loop, and the call that counts."""


class RecordSealer:
    """The sealed datagrams of one member's streams.

    ``begin`` and ``end`` enclose the writes of one call: in between, a datagram for several links
    is sealed once.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._shared: dict[int, tuple[bytes, Bytes]] | None = None
        self._rooms: list[bytearray] = []

    def begin(self) -> None:
        """Share sealed datagrams from now on."""
        self._shared = {}

    def end(self) -> None:
        """Share no more."""
        self._shared = None

    def seal(self, datagram: bytes) -> Bytes:
        """Return the sealed form of a datagram that is written now.

        The memory of a large one is used again once nothing refers to the returned view.
        """
        shared = self._shared
        if shared is None:
            return self._seal_now(datagram)
        # The entry keeps the datagram alive, so that no other one gets its id.
        entry = shared.get(id(datagram))
        if entry is None:
            entry = shared[id(datagram)] = datagram, self._seal_now(datagram)
        return entry[1]

    def _seal_now(self, datagram: bytes) -> Bytes:
        size_bytes = len(datagram) + SEAL_OVERHEAD_BYTES
        if not LARGE_BYTES <= size_bytes <= MAX_DATAGRAM_BYTES:
            return self._seal.seal(datagram)
        sealed = memoryview(self._find_room())[:size_bytes]
        self._seal.seal_into(datagram, sealed)
        return sealed

    def _find_room(self) -> bytearray:
        """Return memory that no stream has yet to write."""
        for room in self._rooms:
            if sys.getrefcount(room) == _UNUSED_REFERENCES:
                return room
        room = bytearray(MAX_DATAGRAM_BYTES)
        if len(self._rooms) < MAX_ROOMS:
            self._rooms.append(room)
        return room
