"""Faults on a real transport: the faults of the simulator, between the socket and the machine.

On reception: each datagram is a crossing from the sender to this member. The faults turn the
datagram into no copy, other bytes or several copies, now or later. Sending has no faults, so each
link has its own faults.
"""

from __future__ import annotations

import time
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from gapless.errors import RemoteProtocolError
from gapless.faults.faults import NEVER_NS, Crossing, FaultChain
from gapless.faults.frame_names import NOISE, label_of, node_name
from gapless.identity import Address
from gapless.wire import decode
from gapless.wire.codec import sender_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.faults.faults import Fault
    from gapless.faults.frame_names import Label
    from gapless.protocol.ready import Transmit
    from gapless.transport.base import Selectable, Transport


class FaultyTransport:
    """``transport`` with ``faults`` on reception, for ``duration_ns`` if given.

    Changed bytes are noticed only if the other members send every message with a checksum: wrap
    each of their transports, too, or set ``checksum = "all"``.

    Crossings call this member ``name``, and a sender ``call(node)``: a, b, c for 1, 2, 3.
    """

    def __init__(
        self,
        transport: Transport,
        faults: Iterable[Fault],
        *,
        name: str = "me",
        duration_ns: int | None = None,
        call: Callable[[int], str] = node_name,
    ) -> None:
        self.transport = transport
        self.locator = transport.locator
        self.book = transport.book
        self.max_frame_bytes = transport.max_frame_bytes
        self.whole_run_bytes = transport.whole_run_bytes
        self.receive_buffer_bytes = transport.receive_buffer_bytes
        self.problems = transport.problems
        self.preserves_bytes = False
        self.seal = transport.seal
        self.certificates = transport.certificates
        self.name = name
        until_ns = NEVER_NS if duration_ns is None else time.monotonic_ns() + duration_ns
        self.chain = FaultChain(faults, until_ns)
        self.may_lose = transport.may_lose or self.chain.may_lose
        self._call = call
        self._delayed: list[tuple[int, int, bytes]] = []
        self._serial = count(1)
        self._times: dict[tuple[Label, str], int] = {}
        self._watcher: Callable[[Address], None] | None = None

    @property
    def deadline_ns(self) -> int | None:
        """When the next delayed datagram arrives."""
        due_ns = [] if self.transport.deadline_ns is None else [self.transport.deadline_ns]
        if self._delayed:
            due_ns.append(self._delayed[0][0])
        return min(due_ns, default=None)

    def watch(self, watcher: Callable[[Address], None]) -> None:
        """Call ``watcher`` with the sender of every lost datagram."""
        self._watcher = watcher

    def sockets(self) -> Sequence[Selectable]:
        """Return the sockets of the transport."""
        return self.transport.sockets()

    def receive(self, limit: int) -> list[bytes]:
        """Return the datagrams that arrive after the faults."""
        now_ns = time.monotonic_ns()
        for datagram in self.transport.receive(limit):
            copies, _ = self.chain.cross(self._crossing(datagram), 0, now_ns)
            if not copies and self._watcher is not None and (sender := sender_of(datagram)):
                self._watcher(sender)
            for copy in copies:
                if self.seal is not None and copy.datagram != datagram:
                    continue  # a changed datagram does not open
                heappush(self._delayed, (now_ns + copy.delay_ns, next(self._serial), copy.datagram))
        arrived: list[bytes] = []
        while self._delayed and self._delayed[0][0] <= now_ns:
            arrived.append(heappop(self._delayed)[2])
        return arrived

    def _crossing(self, datagram: bytes) -> Crossing:
        """Return the crossing of a received datagram, with a label if a fault needs one."""
        serial = next(self._serial)
        sender = sender_of(datagram)
        source = "" if sender is None else self._call(sender.node)
        if not self.chain.names_matter:
            return Crossing(source, self.name, datagram, NOISE, 1, serial)
        try:
            decoded = decode(datagram, opened=self.seal is not None)
            label = label_of(decoded, lambda address: self._call(address.node))
        except RemoteProtocolError:
            label = NOISE
        times = self._times[label, source] = self._times.get((label, source), 0) + 1
        return Crossing(source, self.name, datagram, label, times, serial)

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Send datagrams, without faults."""
        self.transport.send(transmits)

    def close(self) -> None:
        """Close the transport; delayed datagrams never arrive."""
        self.transport.close()
