"""Memory that members on one machine share: what is large lies there, and a note on the socket says where.

On sending: large datagrams to members that can read the memory of this one are laid into it, one
behind the other, and round and round; what leaves together has one note. That spares the kernel two
copies, and most of its calls.

On reception of a note: what it names is copied out, if it has not been overwritten meanwhile. A
note that is lost, or comes too late, is no more than lost datagrams: the machine asks for them, and
what is repaired goes by the socket.

Who can read it: whoever has answered that it can. Others are asked now and then, when there would
have been something for them; until they answer everything goes by the socket. A member of another
user, or of a container with processes of its own, cannot.

The memory has no name in any file system, ends with its process however that ends, and cannot be
made smaller under a reader.
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

from gapless.units import NS_PER_MS, NS_PER_S
from gapless.wire.codec import is_repair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.transport.base import Problems

AVAILABLE = (
    sys.platform == "linux"
    and hasattr(os, "memfd_create")
    and platform.machine() in {"x86_64", "AMD64"}
)
"""Whether this system has it. Other processors may show a reader what was written in another order."""
MAGIC = b"GLM1"
LARGE_BYTES = 16_000
"""A datagram of so many bytes is worth a note."""
RING_BYTES = 8 << 20
"""What lies there at most, if a member asks for no larger buffers: twice of what it lets others send ahead."""
MOST_READ = 64
"""So many memories of others are kept open; of more, the ones used longest ago are opened anew."""

ASK, YES, NO, NOTE = range(1, 5)
_HEAD = Struct("<4sBBHII16s")
_PLACE = Struct("<QI")
_MOST_NAMED = 64
_MOST_BYTES = 1 << 18
_MOST_RING_BYTES = 1 << 32
_TOKEN = slice(16, 32)
_CALLED = "gapless"
_FRONT_BYTES = 4096
_ALIGNED_BYTES = 64
_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS = 100 * NS_PER_MS, 10 * NS_PER_S

Name = tuple[int, int, bytes]
"""How a memory is found: its process, its number there, and the token that it begins with."""


class Shelf:
    """The memory of this process, into which one transport lays its datagrams."""

    def __init__(self, ring_bytes: int = RING_BYTES) -> None:
        self._ring_bytes = ring_bytes
        self._file = os.memfd_create(_CALLED, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._file, _FRONT_BYTES + ring_bytes)
            fcntl.fcntl(
                self._file,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL,
            )
            self._memory = mmap.mmap(self._file, _FRONT_BYTES + ring_bytes)
        except OSError:
            os.close(self._file)
            raise
        self.name: Name = (os.getpid(), self._file, os.urandom(16))
        self._memory[_TOKEN] = self.name[2]
        self._mark = memoryview(self._memory).cast("Q")[:1]
        self._end = 0

    def lay(self, datagrams: Sequence[bytes]) -> bytes:
        """Lay datagrams here, and return the note that says where."""
        places, ring_bytes = [], self._ring_bytes
        for datagram in datagrams:
            size_bytes = len(datagram)
            at = self._end % ring_bytes
            if at + size_bytes > ring_bytes:
                self._end += ring_bytes - at
                at = 0
            start, self._end = (
                self._end,
                self._end + -(-size_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES,
            )
            self._mark[0] = self._end  # first, so that a reader of what lay here before can tell
            self._memory[_FRONT_BYTES + at : _FRONT_BYTES + at + size_bytes] = datagram
            places.append(_PLACE.pack(start, size_bytes))
        return said(NOTE, self.name, len(places)) + b"".join(places)

    def close(self) -> None:
        """Let go of it; who reads it still can."""
        self._mark.release()
        self._memory.close()
        os.close(self._file)


class Reader:
    """The memory of another process."""

    def __init__(self, name: Name) -> None:
        """Open it; OSError if it cannot be, or is another."""
        process, number, token = name
        path = Path(f"/proc/{process}/fd/{number}")
        if not str(path.readlink()).startswith(f"/memfd:{_CALLED}"):
            raise OSError("it is something else")  # a pipe, say, to open which would take for ever
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise OSError("it could be made smaller")
            self._ring_bytes = os.fstat(file).st_size - _FRONT_BYTES
            if not _MOST_BYTES <= self._ring_bytes <= _MOST_RING_BYTES:
                raise OSError("it has another size")
            self._memory = mmap.mmap(file, _FRONT_BYTES + self._ring_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        if self._memory[_TOKEN] != token:
            self._memory.close()
            raise OSError("it is the memory of another")
        self._mark = memoryview(self._memory).cast("Q")[:1]

    def copy(self, start: int, size_bytes: int) -> bytes | None:
        """Return what was laid at ``start``, None if it is gone, or never was."""
        ring_bytes = self._ring_bytes
        at = start % ring_bytes
        if (
            size_bytes > _MOST_BYTES
            or at + size_bytes > ring_bytes
            or start + size_bytes > self._mark[0]
        ):
            return None
        datagram = self._memory[_FRONT_BYTES + at : _FRONT_BYTES + at + size_bytes]
        return datagram if self._mark[0] - start <= ring_bytes else None

    def close(self) -> None:
        """Let go of it."""
        self._mark.release()
        self._memory.close()


class Sharing:
    """The shared memory of one transport: its own, and that of others; ``send`` puts a datagram on its socket."""

    def __init__(
        self,
        send: Callable[[bytes, Any], None],
        problems: Problems,
        receive_buffer_bytes: int = RING_BYTES // 2,
    ) -> None:
        self.readers: set[Any] = set()
        """The places that can read the memory of this one."""
        self._send = send
        self._problems = problems
        self._ring_bytes = max(RING_BYTES, 2 * receive_buffer_bytes)
        self._shelf: Shelf | None = None
        self._shelf_again_ns = 0
        self._pauses: dict[Any, tuple[int, int]] = {}
        self._read: dict[Name, Reader | None] = {}

    # On sending

    def lay(self, datagrams: Sequence[bytes], places: Iterable[Any]) -> Sequence[bytes]:
        """Return what to send to ``places`` for datagrams: notes for those that are large, if all can read them."""
        if not self._can_read(places):
            return datagrams
        assert self._shelf is not None
        found: list[bytes] = []
        large: list[bytes] = []
        for datagram in datagrams:
            is_large = len(datagram) >= LARGE_BYTES and not is_repair(datagram)
            if large and (not is_large or len(large) == _MOST_NAMED):
                found.append(self._shelf.lay(large))
                large = []
            (large if is_large else found).append(datagram)
        if large:
            found.append(self._shelf.lay(large))
        return found

    def _can_read(self, places: Iterable[Any]) -> bool:
        others = [place for place in places if place not in self.readers]
        if others:
            self._ask(others)
        return not others and self._shelf is not None

    def _ask(self, places: Sequence[Any]) -> None:
        """Ask whether they can read the memory of this one; who does not answer is asked less and less."""
        now_ns = time.monotonic_ns()
        if self._shelf is None:
            if now_ns < self._shelf_again_ns:
                return
            try:
                self._shelf = Shelf(self._ring_bytes)
            except OSError as error:
                self._problems.add(
                    "shared.none", f"no memory to share, all goes by the socket: {error}"
                )
                self._shelf_again_ns = now_ns + _LONGEST_PAUSE_NS
                return
        for place in places:
            pause_ns, again_ns = self._pauses.get(place, (_FIRST_PAUSE_NS, now_ns))
            if now_ns >= again_ns:
                self._pauses[place] = min(2 * pause_ns, _LONGEST_PAUSE_NS), now_ns + pause_ns
                self._send(said(ASK, self._shelf.name), place)

    def forget(self, places: Iterable[Any]) -> None:
        """Remember only of ``places`` whether they can read."""
        here = frozenset(places)
        self.readers &= here
        self._pauses = {place: pause for place, pause in self._pauses.items() if place in here}

    # On reception

    def take(self, data: bytes, source: Any) -> list[bytes]:
        """Return the datagrams that a note names, as far as they are there; answer a question."""
        if len(data) < _HEAD.size:
            self._problems.add("shared.short", f"a note of {len(data)} bytes")
            return []
        _, kind, count, _, process, number, token = _HEAD.unpack_from(data)
        name = process, number, token
        if kind == NOTE and count <= _MOST_NAMED and len(data) == _HEAD.size + count * _PLACE.size:
            return self._copy(name, data, source)
        if kind == ASK:
            self._send(said(NO if self._open(name) is None else YES, name), source)
        elif self._shelf is not None and name == self._shelf.name and kind in {YES, NO}:
            (self.readers.add if kind == YES else self.readers.discard)(source)
        return []

    def _copy(self, name: Name, data: bytes, source: Any) -> list[bytes]:
        memory = self._open(name)
        if memory is None:
            self._send(said(NO, name), source)
            self._problems.add("shared.closed", f"the memory of {source} cannot be read")
            return []
        copied = [
            memory.copy(start, size_bytes)
            for start, size_bytes in _PLACE.iter_unpack(data[_HEAD.size :])
        ]
        found = [datagram for datagram in copied if datagram is not None]
        if len(found) < len(copied):
            self._problems.add(
                "shared.late",
                f"of {source}: overwritten before it was read",
                len(copied) - len(found),
            )
        return found

    def _open(self, name: Name) -> Reader | None:
        """Return the memory of that name, None if it cannot be read; what is known of the others is bounded."""
        if name in self._read:
            known = self._read[name] = self._read.pop(name)  # the last one used
            return known
        while len(self._read) >= MOST_READ:
            oldest = self._read.pop(next(iter(self._read)))
            if oldest is not None:
                oldest.close()
        try:
            found: Reader | None = Reader(name)
        except (OSError, ValueError):
            found = None
        self._read[name] = found
        return found

    def close(self) -> None:
        """Let go of every memory."""
        for memory in (self._shelf, *self._read.values()):
            if memory is not None:
                memory.close()
        self._shelf, self._read = None, {}


def refusal(data: bytes) -> bytes | None:
    """Return what one who shares nothing answers to a question or a note; None if it was neither."""
    if len(data) < _HEAD.size or data[4] not in {ASK, NOTE}:
        return None
    _, _, _, _, process, number, token = _HEAD.unpack_from(data)
    return said(NO, (process, number, token))


def said(kind: int, name: Name, count: int = 0) -> bytes:
    """Return a word about a memory."""
    process, number, token = name
    return _HEAD.pack(MAGIC, kind, count, 0, process, number, token)
