"""Shared memory between members on one machine.

Large datagrams are written to shared memory; a small descriptor on the socket has the places.

On sending: large datagrams for members that can read this member's ring are written into the ring,
one behind the other. Datagrams sent together share one descriptor. The ring saves the kernel two
copies and most calls.

On reception of a descriptor: the datagrams are copied out, unless overwritten meanwhile. A lost or
late descriptor only means lost datagrams: the machine requests them, and repairs go through the
socket.

In a sealed group the ring holds sealed datagrams, and every note about the ring is sealed, too.
Datagrams are encrypted into the ring and decrypted out of it, without a copy between.

A member can read the ring after answering a probe. Other members are probed now and then, when a
large datagram is to be sent to them; until the answer all datagrams go through the socket. A member
of another user, or in a container with its own processes, cannot read the ring.

The memory has no name in any file system, ends with the process in all cases, and is sealed against
shrinking under a reader.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import sys
import time
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

from gapless.errors import RemoteProtocolError
from gapless.units import NS_PER_MS, NS_PER_S
from gapless.wire.codec import is_repair
from gapless.wire.seal import SEAL_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.transport.error_log import ErrorLog
    from gapless.wire.seal import Seal

AVAILABLE = (
    sys.platform == "linux"
    and hasattr(os, "memfd_create")
    and platform.machine() in {"x86_64", "AMD64"}
)
"""Whether this system has shared memory; other processors may reorder the writes for a reader."""
MAGIC = b"GLM1"
LARGE_BYTES = 16_000
"""Minimum size of a datagram that goes through shared memory."""
RING_BYTES = 8 << 20
"""Minimum size of a ring: twice the default receive buffer, the limit of sending ahead."""
MAX_OPEN_RINGS = 64
"""Maximum number of open foreign rings; the least recently used is closed first."""

PROBE, READABLE, UNREADABLE, DESCRIPTOR, PROCESS = range(1, 6)
_HEAD = Struct("<4sBBHII16s")
_SLOT = Struct("<QI")
_MAX_SLOTS = 64
_MAX_DATAGRAM_BYTES = 1 << 18
_MAX_RING_BYTES = 1 << 32
_TOKEN = slice(16, 32)
_MEMFD_NAME = "gapless"
_HEADER_BYTES = 4096
_ALIGNED_BYTES = 64
_MIN_BACKOFF_NS, _MAX_BACKOFF_NS = 100 * NS_PER_MS, 10 * NS_PER_S

RingId = tuple[int, int, bytes]
"""The identity of a ring: process, file descriptor in the process, and the token at the start."""


class SharedRing:
    """The ring of this process, into which one transport writes datagrams."""

    def __init__(self, ring_bytes: int = RING_BYTES) -> None:
        self._ring_bytes = ring_bytes
        self._file = os.memfd_create(_MEMFD_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._file, _HEADER_BYTES + ring_bytes)
            fcntl.fcntl(
                self._file,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
            )
            self._memory = mmap.mmap(self._file, _HEADER_BYTES + ring_bytes)
        except OSError:
            os.close(self._file)
            raise
        self.ring_id: RingId = (os.getpid(), self._file, os.urandom(16))
        self._memory[_TOKEN] = self.ring_id[2]
        self._view = memoryview(self._memory)
        self._write_cursor = self._view.cast("Q")[:1]
        self._write_offset = 0

    def write(self, datagrams: Sequence[bytes], seal: Seal | None = None) -> bytes:
        """Write datagrams into the ring, sealed if there is a seal; return the descriptor."""
        slots, ring_bytes = [], self._ring_bytes
        for datagram in datagrams:
            size_bytes = len(datagram) + (0 if seal is None else SEAL_OVERHEAD_BYTES)
            at = self._write_offset % ring_bytes
            if at + size_bytes > ring_bytes:
                self._write_offset += ring_bytes - at
                at = 0
            start, self._write_offset = (
                self._write_offset,
                self._write_offset + -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES,
            )
            # The cursor moves first, so that a reader of the old bytes notices the overwrite.
            self._write_cursor[0] = self._write_offset
            slot = slice(_HEADER_BYTES + at, _HEADER_BYTES + at + size_bytes)
            if seal is None:
                self._view[slot] = datagram
            else:
                seal.seal_into(datagram, self._view[slot])
            slots.append(_SLOT.pack(start, size_bytes))
        return encode_control(DESCRIPTOR, self.ring_id, len(slots)) + b"".join(slots)

    def close(self) -> None:
        """Close the ring; readers keep their mapping."""
        self._write_cursor.release()
        self._view.release()
        self._memory.close()
        os.close(self._file)


class SharedRingReader:
    """The ring of another process."""

    def __init__(self, name: RingId) -> None:
        """Open the ring ``name``.

        Raises:
            OSError: The ring cannot be opened, or is another ring.
        """
        process, number, token = name
        path = Path(f"/proc/{process}/fd/{number}")
        if not str(path.readlink()).startswith(f"/memfd:{_MEMFD_NAME}"):
            # Opening another kind of file, such as a pipe, could block for ever.
            raise OSError("not a gapless memfd")
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise OSError("memfd is not sealed against shrinking")
            self._ring_bytes = os.fstat(file).st_size - _HEADER_BYTES
            if not _MAX_DATAGRAM_BYTES <= self._ring_bytes <= _MAX_RING_BYTES:
                raise OSError("unexpected memfd size")
            self._memory = mmap.mmap(file, _HEADER_BYTES + self._ring_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        if self._memory[_TOKEN] != token:
            self._memory.close()
            raise OSError("memfd belongs to another member")
        self._view = memoryview(self._memory)
        self._write_cursor = self._view.cast("Q")[:1]

    def copy(
        self, start: int, size_bytes: int, read: Callable[[memoryview], bytes] = bytes
    ) -> bytes | None:
        """Return the bytes at ``start``, as ``read`` gives them; None if overwritten or unwritten.

        The writer moves the cursor before it overwrites, so a cursor that is near enough after
        ``read`` shows that nothing was overwritten before.
        """
        ring_bytes = self._ring_bytes
        at = start % ring_bytes
        if (
            size_bytes > _MAX_DATAGRAM_BYTES
            or at + size_bytes > ring_bytes
            or start + size_bytes > self._write_cursor[0]
        ):
            return None
        if self._write_cursor[0] - start > ring_bytes:
            return None
        datagram = read(self._view[_HEADER_BYTES + at : _HEADER_BYTES + at + size_bytes])
        return datagram if self._write_cursor[0] - start <= ring_bytes else None

    def close(self) -> None:
        """Unmap the ring."""
        self._write_cursor.release()
        self._view.release()
        self._memory.close()


class SharedMemory:
    """The shared memory of one transport: the own ring, and the rings of others.

    ``send`` sends a note through the socket. With ``seal`` the datagrams in the ring are sealed.
    """

    def __init__(
        self,
        send: Callable[[bytes, Any], None],
        problems: ErrorLog,
        receive_buffer_bytes: int = RING_BYTES // 2,
        seal: Seal | None = None,
    ) -> None:
        self.readers: set[Any] = set()
        """The targets that can read our ring."""
        self._send = send
        self._problems = problems
        self._seal = seal
        self._read: Callable[[memoryview], bytes] = bytes if seal is None else seal.open
        self._ring_bytes = max(RING_BYTES, 2 * receive_buffer_bytes)
        self._ring: SharedRing | None = None
        self._ring_retry_ns = 0
        self._probe_backoff: dict[Any, tuple[int, int]] = {}
        self._open_rings: dict[RingId, SharedRingReader | None] = {}

    # On sending

    def publish(self, datagrams: Sequence[bytes], targets: Iterable[Any]) -> Sequence[bytes]:
        """Return datagrams to send: descriptors of large datagrams, if every target can read."""
        if not self._can_read(targets):
            return datagrams
        assert self._ring is not None
        found: list[bytes] = []
        large: list[bytes] = []
        for datagram in datagrams:
            # A repair goes through the socket: the first copy may have been lost in the ring.
            is_large = len(datagram) >= LARGE_BYTES and not is_repair(datagram)
            if large and (not is_large or len(large) == _MAX_SLOTS):
                found.append(self._ring.write(large, self._seal))
                large = []
            (large if is_large else found).append(datagram)
        if large:
            found.append(self._ring.write(large, self._seal))
        return found

    def _can_read(self, targets: Iterable[Any]) -> bool:
        """Return whether every target can read our ring; probe the others."""
        others = [target for target in targets if target not in self.readers]
        if others:
            self._probe(others)
        return not others and self._ring is not None

    def _probe(self, targets: Sequence[Any]) -> None:
        """Ask targets whether they can read our ring, less often without an answer."""
        now_ns = time.monotonic_ns()
        if self._ring is None:
            if now_ns < self._ring_retry_ns:
                return
            try:
                self._ring = SharedRing(self._ring_bytes)
            except OSError as error:
                self._problems.add(
                    "shared.none",
                    f"shared memory is not available, all datagrams use the socket: {error}",
                )
                self._ring_retry_ns = now_ns + _MAX_BACKOFF_NS
                return
        for target in targets:
            pause_ns, again_ns = self._probe_backoff.get(target, (_MIN_BACKOFF_NS, now_ns))
            if now_ns >= again_ns:
                self._probe_backoff[target] = min(2 * pause_ns, _MAX_BACKOFF_NS), now_ns + pause_ns
                self._send(encode_control(PROBE, self._ring.ring_id), target)

    def retain_readers(self, targets: Iterable[Any]) -> None:
        """Forget every target but ``targets``."""
        here = frozenset(targets)
        self.readers &= here
        self._probe_backoff = {
            target: pause for target, pause in self._probe_backoff.items() if target in here
        }

    # On reception

    def read(self, data: bytes, source: Any) -> list[bytes]:
        """Return the datagrams of a descriptor, opened in a sealed group; answer a probe."""
        if len(data) < _HEAD.size:
            self._problems.add(
                "shared.short", f"a shared-memory descriptor of {len(data)} bytes is too short"
            )
            return []
        _, kind, count, _, process, number, token = _HEAD.unpack_from(data)
        name = process, number, token
        if (
            kind == DESCRIPTOR
            and count <= _MAX_SLOTS
            and len(data) == _HEAD.size + count * _SLOT.size
        ):
            return self._copy(name, data, source)
        if kind == PROBE:
            self._send(
                encode_control(UNREADABLE if self._open(name) is None else READABLE, name), source
            )
        elif (
            self._ring is not None and name == self._ring.ring_id and kind in {READABLE, UNREADABLE}
        ):
            (self.readers.add if kind == READABLE else self.readers.discard)(source)
        return []

    def _copy(self, name: RingId, data: bytes, source: Any) -> list[bytes]:
        """Copy the datagrams of a descriptor, without the overwritten datagrams."""
        memory = self._open(name)
        if memory is None:
            self._send(encode_control(UNREADABLE, name), source)
            self._problems.add(
                "shared.closed", f"the shared memory of {_source_label(source)} cannot be read"
            )
            return []
        late = 0
        found = []
        for start, size_bytes in _SLOT.iter_unpack(data[_HEAD.size :]):
            try:
                datagram = memory.copy(start, size_bytes, self._read)
            except RemoteProtocolError:
                continue  # counted by the seal
            if datagram is None:
                late += 1
            else:
                found.append(datagram)
        if late:
            self._problems.add(
                "shared.late",
                f"datagrams of {_source_label(source)} were overwritten before they were read",
                late,
            )
        return found

    def _open(self, name: RingId) -> SharedRingReader | None:
        """Return the ring ``name``, or None for an unreadable ring; both answers are remembered."""
        if name in self._open_rings:
            known = self._open_rings[name] = self._open_rings.pop(name)  # the most recently used
            return known
        while len(self._open_rings) >= MAX_OPEN_RINGS:
            oldest = self._open_rings.pop(next(iter(self._open_rings)))
            if oldest is not None:
                oldest.close()
        try:
            found: SharedRingReader | None = SharedRingReader(name)
        except (OSError, ValueError):
            found = None
        self._open_rings[name] = found
        return found

    def close(self) -> None:
        """Close every ring."""
        for memory in (self._ring, *self._open_rings.values()):
            if memory is not None:
                memory.close()
        self._ring, self._open_rings = None, {}


def refusal(data: bytes) -> bytes | None:
    """Return the answer of a transport without shared memory; None if ``data`` asks for none."""
    if len(data) < _HEAD.size or data[4] not in {PROBE, DESCRIPTOR}:
        return None
    _, _, _, _, process, number, token = _HEAD.unpack_from(data)
    return encode_control(UNREADABLE, (process, number, token))


def _source_label(source: Any) -> str:
    """Return the host and the port of a socket address as text."""
    return f"{source[0]} port {source[1]}"


def process_of(data: bytes) -> tuple[int, bytes] | None:
    """Return the process id and the token of a control datagram of the kind PROCESS."""
    if len(data) != _HEAD.size or data[4] != PROCESS:
        return None
    _, _, _, _, process, _, token = _HEAD.unpack_from(data)
    return process, token


def encode_control(kind: int, name: RingId, count: int = 0) -> bytes:
    """Return a control datagram about the ring ``name``."""
    process, number, token = name
    return _HEAD.pack(MAGIC, kind, count, 0, process, number, token)
