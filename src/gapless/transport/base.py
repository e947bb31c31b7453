"""What a transport is: the only thing between the driver and the network.

A transport has one place where others reach it, and never blocks. It gives the datagrams that have
come, and sends datagrams to one member, to all others of the view, or to the world (whoever may be
there). What the network refuses is counted under its reason and dropped: the machine repairs it.
The protocol of the machine is none of its business.

Who is where stands in its :class:`AddressBook`, which the driver keeps up to date from the events of the
machine.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from gapless.errors import RemoteProtocolError
from gapless.identity import Address
from gapless.locator import Locator
from gapless.protocol.events import Located, ViewInstalled
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gapless.discovery import Discovery
    from gapless.identity import RosterEntry
    from gapless.protocol.events import Event
    from gapless.protocol.ready import Transmit

LOOPBACK_FRAME_BYTES = 65_000
"""The largest frame where nothing between the members cuts it up; most of the work is by the frame, not by the byte."""
NETWORK_FRAME_BYTES = 1400
"""The largest frame on a network, where a lost part would cost the whole of it; less if the network takes less."""
WHOLE_RUN_BYTES = 256_000
"""The largest run that goes as one where nothing is lost on the way: most of the work is by the run."""
RECEIVE_BUFFER_BYTES = 4 << 20
"""What a transport asks the kernel for; what it is granted is what the member advertises."""
TURN_BYTES = 1 << 20
"""So many bytes a transport gives in one go, about, so that acks are not late."""
MAX_STRANGERS = 1024
"""Places outside the view that a book remembers; the ones noted longest ago go first."""
LOG_INTERVAL_NS = 10 * NS_PER_S
"""The same problem is logged again after this time, with how often it has come meanwhile."""

log = logging.getLogger("gapless.transport")


class Selectable(Protocol):
    """What a selector can wait for: a socket, or anything else with a file number."""

    def fileno(self) -> int:
        """Return the number."""
        ...


class ErrorLog:
    """Counts what goes wrong by reason, and logs it, but each reason only now and then."""

    def __init__(self, level: int = logging.WARNING, quiet_ns: int = LOG_INTERVAL_NS) -> None:
        self.counters: Counter[str] = Counter()
        self._level, self._quiet_ns = level, quiet_ns
        self._logged: dict[str, tuple[int, int]] = {}

    def add(self, reason: str, detail: object, times: int = 1) -> None:
        """Count one more of ``reason``; ``detail`` is for people."""
        self.counters[reason] += times
        now_ns, total = time.monotonic_ns(), self.counters[reason]
        before_ns, counted = self._logged.get(reason, (now_ns - self._quiet_ns, 0))
        if now_ns - before_ns >= self._quiet_ns:
            self._logged[reason] = now_ns, total
            log.log(
                self._level, "%s (%d times, %d in all): %s", reason, total - counted, total, detail
            )


_P = TypeVar("_P")


class AddressBook(Generic[_P]):
    """Who is where: members of the view, others that were met, and the world.

    A place is a locator in the form that the transport needs: what ``resolve`` makes of it, None if
    it cannot reach it.
    """

    def __init__(
        self, own: Locator, discovery: Discovery, resolve: Callable[[Locator], _P | None]
    ) -> None:
        self.discovery = discovery
        self.group = 0
        self.address = Address(0, 0)
        self.retransmits = True
        """Whether the machine repairs what the network loses."""
        self.peers: tuple[_P, ...] = ()
        self._resolve = resolve
        self._own = resolve(own)
        self._members: tuple[Address, ...] = ()
        self._located: dict[Address, _P] = {}
        self._observed: dict[Address, _P] = {}

    def announce(self, place: RosterEntry, group: int = 0, *, retransmits: bool = True) -> None:
        """Let others find this member, and its transport know for whom it works."""
        self.address, self.group, self.retransmits = place.address, group, retransmits
        self.discovery.announce(place)

    def on_events(self, events: Iterable[Event]) -> None:
        """Take note of what the machine says about places and members."""
        changed = False
        for event in events:
            if type(event) is Located:
                changed |= self._locate(event)
            elif type(event) is ViewInstalled:
                self._members = event.view.members
                changed = True
        if changed:
            found = (self.lookup(member) for member in self._members)
            self.peers = tuple(place for place in found if place is not None and place != self._own)
            self._evict_strangers(self._located)

    def _locate(self, event: Located) -> bool:
        try:
            locator = Locator.decode(event.locator)
        except RemoteProtocolError:
            return False
        place = self._resolve(locator)
        if place is None:
            return False
        self._located[event.address] = place
        if place != self._own:
            self.discovery.remember(locator)
        return True

    def learn_source(self, address: Address, place: _P) -> None:
        """Note where a datagram of ``address`` came from; what the machine says of it counts for more."""
        self._observed.pop(address, None)
        self._observed[address] = place
        self._evict_strangers(self._observed)

    def lookup(self, address: Address) -> _P | None:
        """Return where ``address`` is, if that is known."""
        return self._located.get(address) or self._observed.get(address)

    def candidates(self) -> list[_P]:
        """Return everywhere that a member could be, as far as is known now."""
        places = dict.fromkeys(map(self._resolve, self.discovery.locate(time.monotonic_ns())))
        places.update(dict.fromkeys(self._observed.values()))
        return [place for place in places if place is not None and place != self._own]

    def _evict_strangers(self, places: dict[Address, _P]) -> None:
        if len(places) > MAX_STRANGERS + len(self._members):
            for address in [address for address in places if address not in self._members][
                : MAX_STRANGERS // 2
            ]:
                del places[address]


class Transport(Protocol):
    """One member's way to the others of one group. One thread uses it."""

    locator: Locator
    """Where others reach this member."""
    book: AddressBook[Any]
    """Who is where."""
    max_frame_bytes: int
    """The largest datagram that the path takes well."""
    whole_run_bytes: int
    """The largest run that it takes in one datagram, if that is more than a frame; else 0."""
    receive_buffer_bytes: int
    """What the buffer of this member takes, as granted; senders are told."""
    preserves_bytes: bool
    """Whether no datagram can be damaged on its way: it stays within this machine."""
    problems: ErrorLog
    """What the network refused, and what came and was nothing."""

    @property
    def deadline_ns(self) -> int | None:
        """When ``receive`` is to be called though nothing could be read; None: only when something can."""
        ...

    def sockets(self) -> Sequence[Selectable]:
        """Return what to wait for, always the same; a transport whose sockets come and go returns its own poller."""
        ...

    def receive(self, limit: int) -> list[bytes]:
        """Return what has come: about ``limit`` datagrams at most, none if there are none."""
        ...

    def send(self, transmits: Sequence[Transmit]) -> None:
        """Put datagrams on the network, to each target in this order."""
        ...

    def close(self) -> None:
        """Let go of every socket, at once."""
        ...
