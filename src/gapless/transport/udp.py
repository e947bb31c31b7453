"""UDP: one socket, one port; a copy to each member (mesh), or one for all members (multicast).

On sending: datagrams of equal size to the same target leave in one call (UDP_SEGMENT), where the
kernel supports this. On loopback large datagrams go through shared memory (shared_memory.py), if
every receiver can read the memory; otherwise they are split to fit the socket.

On reception: one call may return many datagrams of one sender (UDP_GRO), which are then split. The
source of a datagram is recorded, so that a sender without a locator can be answered. A datagram to
this member alone is returned after all multicast datagrams that arrived before: two sockets have no
common order, and an announcement must not overtake the announced data.

The kernel keeps the network's error reports about sent datagrams (IP_RECVERR). A refused datagram
is evidence of the receiver's end, and so is the end of a process on the same machine.

In a sealed group every datagram is opened before any other step. A datagram that does not open gets
no answer, and the source is not recorded.

A datagram refused by the kernel (a full buffer, no route, too long) is counted under the name of
the error and dropped.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING

from gapless.discovery import Discovery
from gapless.errors import RemoteProtocolError, TransportError
from gapless.identity import Address
from gapless.locator import Locator
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.protocol.ready import ANYONE
from gapless.transport import process_watch, socket_options
from gapless.transport.address_book import AddressBook
from gapless.transport.base import (
    RECEIVE_BUFFER_BYTES,
    TURN_BYTES,
    WHOLE_RUN_BYTES,
    errno_name,
    group_by_target,
)
from gapless.transport.error_log import ErrorLog
from gapless.transport.shared_memory import (
    AVAILABLE,
    LARGE_BYTES,
    MAGIC,
    SharedMemory,
    process_of,
    refusal,
)
from gapless.wire.codec import (
    FLAGS_AT,
    SENDER_FIELD,
    addressee_of,
    group_of,
    sender_of,
    split_datagram,
)
from gapless.wire.seal import (
    CONTROL,
    SEAL_OVERHEAD_BYTES,
    control_note,
    is_control,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from gapless.discovery import MulticastSockets
    from gapless.protocol.ready import Transmit
    from gapless.transport.base import Selectable
    from gapless.transport.process_watch import ProcessWatch
    from gapless.transport.tcp.tls import Certificates
    from gapless.wire.seal import Seal

Sockaddr = tuple[str, int] | tuple[str, int, int, int]

PORTS = range(7800, 7900)
"""The ports to try, in order, unless the caller names ports."""

_UINT16, _INT = Struct("=H"), Struct("=i")
_MAX_SEGMENTS = 64
"""Maximum number of datagrams in one call (a limit of Linux)."""
_MAX_SEND_BYTES = 65_000
_BUFFER_BYTES = 1 << 16
_ANCILLARY_BYTES = 64
_MIN_TURN_BYTES = 1 << 18
_MAX_ATTEMPTS = 8
"""How often a datagram is sent again because the kernel reported earlier ones instead."""
_MAX_SOURCES = 4096
"""Maximum number of remembered sources; then the table starts anew."""
_PROCESSES_INTERVAL_NS = 10_000_000
"""How long an ended process may stay unnoticed while datagrams keep arriving."""
_NOT_SEGMENTED = {errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.EOPNOTSUPP, errno.ENOPROTOOPT}
"""Errors of a kernel or an interface that cannot split one call into datagrams of a size."""


class UdpMesh:
    """UDP without multicast: a datagram for all is sent to each member.

    Args:
        host: The address of this machine for others, and the interface of multicast; by default
            chosen by ``choose_host`` (socket_options.py).
        ports: The ports to try in turn; 0 means any free port.
        discovery: The source of candidates; multicast groups of discovery serve only to find
            members.
        receive_buffer_bytes: Requested size of the receive buffer.
        offload: Whether one call may send and receive many datagrams.
        shared: Whether to use shared memory on loopback.
        seal: The envelope of a sealed group; None without keys.

    Raises:
        TransportError: No port is free, or ``host`` is not an address of this machine.
    """

    may_lose = True

    def __init__(
        self,
        host: str | None = None,
        ports: Iterable[int] | int = PORTS,
        *,
        discovery: Discovery | None = None,
        receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
        offload: bool = True,
        shared: bool = True,
        seal: Seal | None = None,
    ) -> None:
        self.problems = ErrorLog()
        self.seal = seal
        self.certificates: Certificates | None = None
        discovery = discovery or Discovery()
        if seal is not None:
            discovery.seal_entries(seal.ring.entry_key, seal.ring.label)
        self._socket = socket_options.bind(
            host or socket_options.choose_host(discovery),
            [ports] if isinstance(ports, int) else list(ports),
        )
        self.receive_buffer_bytes = socket_options.request_buffers(
            self._socket, receive_buffer_bytes
        )
        self.locator = Locator.from_sockaddr(self._socket.getsockname())
        self.max_frame_bytes = socket_options.path_frame_bytes(self.locator)
        if seal is not None:
            self.max_frame_bytes -= SEAL_OVERHEAD_BYTES
        self.preserves_bytes = self.locator.ip.is_loopback
        self.whole_run_bytes = WHOLE_RUN_BYTES if self.preserves_bytes else 0
        self.book: AddressBook[Sockaddr] = AddressBook(self.locator, discovery, self._resolve)
        self._own: Sockaddr = self.locator.sockaddr
        self._multicast_sockets: list[MulticastSockets] = [
            pair
            for group in discovery.multicasts
            if group.address.version == self.locator.ip.version
            and (pair := group.open(self._socket, str(self.locator.ip))) is not None
        ]
        self._receivers = [self._socket, *(pair.receive_socket for pair in self._multicast_sockets)]
        self._polled = [(sock, sock.fileno()) for sock in self._receivers]
        self._poll = self._make_poll()
        for pair in self._multicast_sockets:
            socket_options.request_buffers(pair.receive_socket, receive_buffer_bytes)
            socket_options.drop_datagrams_from(pair.receive_socket, self.locator)
        self.uses_gso = offload and socket_options.supports_gso(self._socket)
        self.uses_gro = offload and sum(map(socket_options.enable_gro, self._receivers)) == len(
            self._receivers
        )
        self._has_error_queue = socket_options.enable_error_queue(self._socket)
        self._processes = (
            process_watch.ProcessWatch(self._send_one) if process_watch.AVAILABLE else None
        )
        self._processes_ns = 0
        self._told_peers: Sequence[Sockaddr] = ()
        self.shared_memory: SharedMemory | None = None
        if shared and self.preserves_bytes and AVAILABLE:
            self.shared_memory = SharedMemory(
                self._send_one, self.problems, self.receive_buffer_bytes, seal
            )
        self._readable_peers: Sequence[Sockaddr] = ()
        # The last sender at each source; in a sealed group the last source of each sender.
        self._sources: dict[Any, Any] = {}
        self._unicast_held: list[bytes] = []
        self._held_rounds = 0
        # After that many rounds every datagram that arrived before has been read.
        self._max_held_rounds = 2 * self.receive_buffer_bytes // _MIN_TURN_BYTES

    def _make_poll(self) -> Callable[[int], list[tuple[int, int]]]:
        """Return a function that finds the sockets with datagrams or errors."""
        if not hasattr(select, "poll"):  # Windows: every socket may have some
            return lambda _: [(fd, 0) for _, fd in self._polled]
        poller = select.poll()
        for sock in self._receivers:
            poller.register(sock, select.POLLIN)
        return poller.poll

    def _resolve(self, locator: Locator) -> Sockaddr | None:
        if locator.family != self._socket.family:
            self.problems.add(
                "family", f"{locator} cannot be reached from {self.locator}: another address family"
            )
            return None
        return locator.sockaddr

    def sockets(self) -> Sequence[Selectable]:
        """Return the sockets of this member and of its multicast groups, and the process watch."""
        watch = () if self._processes is None else (self._processes.poller,)
        return (*self._receivers, *watch)

    # On reception

    @property
    def deadline_ns(self) -> int | None:
        """At once while datagrams are held back: the multicast sockets may be empty by now."""
        return 0 if self._unicast_held else None

    def receive(self, limit: int) -> list[bytes]:
        """Return datagrams that have arrived, datagrams for this member alone last.

        Datagrams for this member wait, for a bounded number of rounds, until the multicast sockets
        are empty.
        """
        own, *groups = self._polled
        # Polls, because one that finds nothing costs a quarter of a read that finds nothing.
        readable = dict(self._poll(0))
        if own[1] in readable and len(self._unicast_held) < limit:
            self._read_rest(*own, self._unicast_held, limit)
            if groups:
                # After the last datagram for this member: what arrived before is read before.
                readable = dict(self._poll(0))
        found: list[bytes] = []
        more = [self._read_rest(*group, found, limit) for group in groups if group[1] in readable]
        if self._processes is not None:
            self._watch_processes(self._processes, idle=not found and not self._unicast_held)
        if self._has_error_queue and not found and not self._unicast_held:
            self._read_errors()  # a pending error makes the socket readable
        if any(more) and self._held_rounds < self._max_held_rounds:
            self._held_rounds += 1
            return found
        self._held_rounds = 0
        found += self._unicast_held
        self._unicast_held = []
        return found

    def _read_rest(self, sock: socket.socket, fd: int, found: list[bytes], limit: int) -> bool:
        """Read a datagram, and the others if there are any; return whether more may wait."""
        before = len(found)
        self._read(sock, found, 1)
        return fd in dict(self._poll(0)) and self._read(sock, found, limit + before - len(found))

    def _read(self, sock: socket.socket, found: list[bytes], limit: int) -> bool:
        """Read a socket for one turn; return whether more datagrams may wait."""
        most, left_bytes = len(found) + limit, TURN_BYTES
        own, sources, seal = self._own, self._sources, self.seal
        ancillary: Sequence[tuple[int, int, bytes]] = ()
        while len(found) < most and left_bytes > 0:
            try:
                if self.uses_gro:
                    data, ancillary, _, source = sock.recvmsg(_BUFFER_BYTES, _ANCILLARY_BYTES)
                else:
                    data, source = sock.recvfrom(_BUFFER_BYTES)
            except BlockingIOError:
                return False
            except OSError as error:
                if self._is_of_earlier_datagram(error):
                    left_bytes -= 1
                    continue
                self.problems.add(f"receive.{errno_name(error)}", f"cannot receive: {error}")
                return False
            left_bytes -= max(1, len(data))
            if source == own:
                continue  # this member's own datagram to a multicast group
            if seal is not None and not ancillary:
                left_bytes -= self._receive_sealed(seal, data, source, found)
                continue
            if ancillary or data.startswith(MAGIC):
                step_bytes = _gro_step_bytes(ancillary) or len(data) or 1
                at = 0
                if seal is not None and step_bytes < len(data):
                    at = seal.open_run(data, step_bytes, found)
                    if seal.was_newest:
                        self._note_source(found[-1], source)
                for start in range(at, len(data), step_bytes):
                    datagram = data[start : start + step_bytes]
                    left_bytes -= self._receive_one(datagram, source, found)
                continue
            if sources.get(source) != data[SENDER_FIELD]:
                self._learn_source(source, data)
            found.append(data)
        return True

    def _read_errors(self) -> int:
        """Read the errors that the network has reported; return how many there were."""
        errors = socket_options.read_error_queue(self._socket)
        for target, number, datagram in errors:
            if number == errno.ECONNREFUSED:
                # In a sealed group a refusal from another machine is no proof, because it can be
                # forged: without a seal of this member by anybody, else by a reader of the network.
                if self.seal is None or self.preserves_bytes:
                    evidence = DeathEvidence.REFUSED
                elif self.seal.is_own(datagram):
                    evidence = DeathEvidence.REJECTED
                else:
                    evidence = DeathEvidence.CLOSED
                self.book.note_evidence(target, evidence, addressee_of(datagram))
        return len(errors)

    def _watch_processes(self, processes: ProcessWatch, *, idle: bool) -> None:
        """Announce this process to new peers on this machine; notice ended peer processes."""
        if self._told_peers is not self.book.peers:
            self._told_peers = self.book.peers
            own_host = self._own[0]
            processes.announce(peer for peer in self._told_peers if peer[0] == own_host)
        now_ns = time.monotonic_ns()
        if idle or now_ns - self._processes_ns > _PROCESSES_INTERVAL_NS:
            self._processes_ns = now_ns
            if processes.poller.poll(0):
                for target in processes.ended():
                    self.book.note_evidence(target, DeathEvidence.EXITED)

    def _receive_one(self, datagram: bytes, source: Any, found: list[bytes]) -> int:
        """Add a datagram, or the datagrams of a descriptor; return the size of the latter."""
        if self.seal is not None:
            return self._receive_sealed(self.seal, datagram, source, found)
        if datagram.startswith(MAGIC):
            return self._receive_shared(datagram, source, found)
        if self._sources.get(source) != datagram[SENDER_FIELD]:
            self._learn_source(source, datagram)
        found.append(datagram)
        return 0

    def _receive_sealed(self, seal: Seal, sealed: bytes, source: Any, found: list[bytes]) -> int:
        """Open a datagram of the socket; return the size of the datagrams named by a note."""
        try:
            datagram = seal.open(sealed)
        except RemoteProtocolError:
            return 0  # counted by the seal
        if datagram[FLAGS_AT] & CONTROL:
            note = control_note(datagram)
            if self._is_from_sender(datagram, note, source):
                return self._receive_shared(note, source, found)
            self.problems.counters["shared.source"] += 1
            return 0
        found.append(datagram)
        if seal.was_newest:
            self._note_source(datagram, source)
        return 0

    def _note_source(self, datagram: bytes, source: Any) -> None:
        """Record the source of the newest datagram of a sender in a sealed group.

        A datagram may come from another source than its sender: a recorded one that was not for
        this member, or one that was overtaken. Only the newest says where the sender is.
        """
        if self._sources.get(datagram[SENDER_FIELD]) != source and self._is_for_me(datagram):
            self._learn_source(source, datagram)

    def _is_from_sender(self, datagram: bytes, note: bytes, source: Any) -> bool:
        """Return whether a sealed note is for this transport, and comes from the sender's address.

        A stranger can repeat a recorded note for another member, and the note opens here: the
        answer would go to the stranger.
        """
        sender = sender_of(datagram)
        return (
            note.startswith(MAGIC)
            and self._is_for_me(datagram)
            and sender is not None
            and self.book.lookup(sender) in {None, source}
        )

    def _receive_shared(self, note: bytes, source: Any, found: list[bytes]) -> int:
        """Handle a note: add the datagrams of a descriptor, or refuse it."""
        if (named_process := process_of(note)) is not None:
            if self._processes is not None and source[0] == self._own[0]:
                self._processes.on_process(*named_process, source)
            return 0
        if self.shared_memory is None:
            self.problems.counters["shared.unasked"] += 1
            if (answer := refusal(note)) is not None:
                self._send_one(answer, source)
            return 0
        named = self.shared_memory.read(note, source)
        if self.seal is not None:
            return self._accept_opened(self.seal, named, source, found)
        if named and self._sources.get(source) != named[0][SENDER_FIELD]:
            self._learn_source(source, named[0])
        found += named
        return sum(map(len, named))

    def _accept_opened(
        self, seal: Seal, named: Sequence[bytes], source: Any, found: list[bytes]
    ) -> int:
        """Add the opened datagrams of a ring; return their size."""
        for datagram in named:
            if is_control(datagram):
                self.problems.counters["shared.source"] += 1
            else:
                found.append(datagram)
                if seal.was_newest:
                    self._note_source(datagram, source)
        return sum(map(len, named))

    def _learn_source(self, source: Any, datagram: bytes) -> None:
        """Record the source of a sender in the address book."""
        sender = sender_of(datagram)
        if sender is None:
            return
        if len(self._sources) >= _MAX_SOURCES:
            self._sources.clear()
        if self.seal is None:
            self._sources[source] = datagram[SENDER_FIELD]
            self.book.learn_source(sender, source)
            return
        self._sources[datagram[SENDER_FIELD]] = source
        # The address of a located member comes from a sealed roster.
        if not self.book.is_located(sender):
            self.book.learn_source(sender, source)

    def _is_for_me(self, datagram: bytes) -> bool:
        """Return whether an opened datagram is for this member.

        A stranger can repeat a recorded datagram for another member, or of another group of the
        ring, and the datagram opens here: the source of such a datagram is not the sender's
        address.
        """
        return group_of(datagram) == self.book.group and addressee_of(datagram) in {
            None,
            self.book.address.incarnation,
        }

    # On sending

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send datagrams, consecutive datagrams to the same target together."""
        if len(transmits) == 1:
            to, datagram = transmits[0]
            self._send_group(to, (datagram,))
            return
        for to, datagrams in group_by_target(transmits):
            self._send_group(to, datagrams)

    def _send_group(self, to: Address | None, datagrams: Sequence[bytes]) -> None:
        seal = self.seal
        if self.whole_run_bytes and max(map(len, datagrams)) >= LARGE_BYTES:
            datagrams = self._fit_to_socket(to, datagrams)
            if seal is not None:  # notes are among the datagrams
                datagrams = [self._seal_one(seal, datagram) for datagram in datagrams]
        elif seal is not None:
            single = len(datagrams) == 1
            datagrams = (seal.seal(datagrams[0]),) if single else seal.seal_run(datagrams)
        for target in self._targets(to):
            if len(datagrams) == 1 or not self.uses_gso:
                self._send_each(target, datagrams)
            else:
                self._send_segmented(target, datagrams)

    def _seal_one(self, seal: Seal, datagram: bytes) -> bytes:
        """Return the sealed form of a datagram of the machine, or of a note about shared memory."""
        if datagram.startswith(MAGIC):
            return seal.seal_control(datagram, self.book.group, self.book.address)
        return seal.seal(datagram)

    def _fit_to_socket(self, to: Address | None, datagrams: Sequence[bytes]) -> Sequence[bytes]:
        """Replace large datagrams by descriptors of shared memory, or split them for the socket."""
        if self.shared_memory is not None and to != ANYONE:
            if self._readable_peers is not self.book.peers:
                self._readable_peers = self.book.peers
                self.shared_memory.retain_readers(self._readable_peers)
            target = None if to is None else self.book.lookup(to)
            targets = self._readable_peers if to is None else (target,)
            if None not in targets:
                datagrams = self.shared_memory.publish(datagrams, targets)
        return [part for datagram in datagrams for part in self._cut(datagram)]

    def _cut(self, datagram: bytes) -> Sequence[bytes]:
        """Split a datagram to fit the socket; the kernel refuses an indivisible datagram."""
        if len(datagram) > self.max_frame_bytes:
            with suppress(RemoteProtocolError):
                return split_datagram(datagram, self.max_frame_bytes, checked=self.seal is None)
        return (datagram,)

    def _targets(self, to: Address | None) -> Sequence[Sockaddr]:
        """Return the socket addresses of a member, of all members, or of all candidates."""
        if to is None:
            return self.book.peers
        if to == ANYONE:
            return [*(pair.target for pair in self._multicast_sockets), *self.book.candidates()]
        target = self.book.lookup(to)
        if target is None:
            self.problems.add("send.unknown", f"the locator of member {to.short} is not known")
            return ()
        return (target,)

    def _send_segmented(self, target: Sockaddr, datagrams: Sequence[bytes]) -> None:
        """Send datagrams of equal size in one call each (UDP_SEGMENT)."""
        for size_bytes, together in gso_batches(datagrams):
            if len(together) == 1:
                self._send_each(target, together)
                continue
            try:
                self._socket.sendmsg(
                    together,
                    [(socket_options.UDP, socket_options.UDP_SEGMENT, _UINT16.pack(size_bytes))],
                    0,
                    target,
                )
            except OSError as error:
                if self._is_of_earlier_datagram(error):
                    self._send_each(target, together)
                elif error.errno in _NOT_SEGMENTED:
                    self.uses_gso = False
                    self.problems.add(
                        f"segments.{errno_name(error)}",
                        f"from now on each call sends one datagram: {error}",
                    )
                    self._send_each(target, together)
                else:
                    self._count_refused(error, target, len(together))

    def _send_each(self, target: Sockaddr, datagrams: Sequence[bytes]) -> None:
        for datagram in datagrams:
            try:
                self._socket.sendto(datagram, target)
            except OSError as error:
                self._send_again(error, target, datagram)

    def _send_again(self, error: OSError, target: Sockaddr, datagram: bytes) -> None:
        """Send again while the errors are those of datagrams sent before, to any target."""
        for _ in range(_MAX_ATTEMPTS):
            if not self._is_of_earlier_datagram(error):
                break
            try:
                self._socket.sendto(datagram, target)
            except OSError as another:
                error = another
            else:
                return
        self._count_refused(error, target, 1)

    def _is_of_earlier_datagram(self, error: OSError) -> bool:
        """Return whether the error is about an earlier datagram, and the new datagram was not sent.

        An unconnected socket learns of a refusal only later, with any call. The kernel reports the
        refusal even if the error queue has no room, because many datagrams wait to be read.
        """
        reported = self._has_error_queue and self._read_errors() > 0
        return reported or error.errno == errno.ECONNREFUSED

    def _send_one(self, note: bytes, target: Sockaddr) -> None:
        """Send a note about shared memory or about this process."""
        self._send_each(target, (note if self.seal is None else self._seal_one(self.seal, note),))

    def _count_refused(self, error: OSError, target: Sockaddr, times: int) -> None:
        """Count datagrams refused by the kernel."""
        self.problems.add(
            f"send.{errno_name(error)}",
            socket_options.describe_refusal(error, self.locator, target),
            times,
        )

    def close(self) -> None:
        """Close every socket."""
        for sock in self._receivers:
            sock.close()
        if self._processes is not None:
            self._processes.close()
        if self.shared_memory is not None:
            self.shared_memory.close()


class UdpMulticast(UdpMesh):
    """UDP with multicast: a datagram for all is sent once, to the first group of ``discovery``.

    The arguments are those of ``UdpMesh``; ``discovery`` needs a multicast group.

    Raises:
        TransportError: No multicast group can be used.
    """

    def __init__(
        self, host: str | None = None, ports: Iterable[int] | int = PORTS, **options: Any
    ) -> None:
        super().__init__(host, ports, **options)
        if not self._multicast_sockets:
            self.close()
            groups = self.book.discovery.multicasts
            problems = "; ".join(
                problem.last for group in groups for problem in group.problems.of(group.name)
            )
            raise TransportError(
                f"no multicast group can be used from {self.locator}:"
                f" {problems or 'discovery names none'}"
            )

    def _targets(self, to: Address | None) -> Sequence[Sockaddr]:
        return (self._multicast_sockets[0].target,) if to is None else super()._targets(to)


def open_udp(
    host: str | None = None,
    ports: Iterable[int] | int = PORTS,
    *,
    discovery: Discovery,
    seal: Seal | None = None,
) -> UdpMesh:
    """Return a transport with multicast if multicast works here, otherwise one without.

    Multicast works if a datagram to a group of ``discovery`` returns on the same interface.
    """
    host = host or socket_options.choose_host(discovery)
    works = any(
        socket_options.multicast_loops_back(group, host) for group in discovery.multicasts[:1]
    )
    return (UdpMulticast if works else UdpMesh)(host, ports, discovery=discovery, seal=seal)


def gso_batches(datagrams: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yield the datagrams of one call each: datagrams of one size, the last may be shorter."""
    sizes = [len(datagram) for datagram in datagrams]
    start, count = 0, len(sizes)
    while start < count:
        size_bytes = sizes[start]
        limit = min(count, start + max(1, min(_MAX_SEGMENTS, _MAX_SEND_BYTES // size_bytes)))
        end = start + 1
        while end < limit and sizes[end] == size_bytes:
            end += 1
        if end < limit and sizes[end] < size_bytes:
            end += 1
        yield size_bytes, datagrams[start:end]
        start = end


def _gro_step_bytes(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the size of the datagrams received by one call, except for the last; 0 for one."""
    for level, kind, value in ancillary:
        if level == socket_options.UDP and kind == socket_options.UDP_GRO:
            (step_bytes,) = _INT.unpack_from(value)
            return int(step_bytes)
    return 0
