"""The smallest real group: a UDP socket per member on loopback, the real clock, discovery.

On starting:   each member binds, opens its multicast groups, announces itself and joins. While
running: what goes to WORLD goes to every multicast group and to every locator that discovery knows,
which includes wherever a datagram of the group came from; what goes to a member goes where the
machine says (``Located``), or where its first datagram came from. On leaving:    sockets are closed
and announcements taken back.
"""

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from random import Random

from gapless.config import Config
from gapless.discovery import Discovery, MulticastSockets
from gapless.errors import RemoteProtocolError
from gapless.identity import Address, RosterEntry, group_id
from gapless.locator import Locator
from gapless.protocol.events import Located
from gapless.protocol.member import Member
from gapless.protocol.ready import ANYONE, Ready
from gapless.wire.codec import decode

QUICK = Config.make(
    found_after="200ms",
    join_interval="50ms",
    merge_interval="200ms",
    heartbeat_interval="200ms",
    suspect_after="3s",
)


class UdpMember:
    """A participant with a socket of its own."""

    def __init__(self, node: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
        )
        self.socket.setblocking(False)
        self.socket.bind((host, 0))
        self.locator = Locator.from_sockaddr(self.socket.getsockname())
        self.place = RosterEntry(Address(node, 1), "", self.locator.encode())
        self.participant = Member(
            self.place.address, group_id("orders"), QUICK, Random(node), locator=self.place.locator
        )
        self.discovery = Discovery()
        self.pairs: list[MulticastSockets] = []
        self.book: dict[Address, Locator] = {}
        self.received: list[tuple[Address, bytes]] = []
        self.deadline_ns: int | None = None

    @property
    def members(self) -> tuple[Address, ...]:
        """The members of the present view, oldest first."""
        view = self.participant.view
        return () if view is None else view.members

    def start(self, text: str) -> None:
        """Announce this member and join, by the sources that ``text`` describes."""
        self.discovery = Discovery.parse(text, group="orders")
        self.pairs = [
            pair
            for source in self.discovery.multicasts
            if (pair := source.open(self.socket)) is not None
        ]
        self.discovery.announce(self.place)
        self.work(self.participant.join(time.monotonic_ns()))

    def work(self, ready: Ready) -> None:
        """Act on a Ready."""
        for event in ready.events:
            if isinstance(event, Located):
                self.meet(event.address, Locator.decode(event.locator))
        for to, datagram in ready.transmits:
            for target in self._targets(to):
                self.socket.sendto(datagram, target)
        for delivery in ready.deliveries:
            self.received += [(delivery.origin, message) for message in delivery.messages()]
        self.deadline_ns = ready.deadline_ns

    def meet(self, address: Address, locator: Locator) -> None:
        """Take note of where a member is, or could be."""
        self.book[address] = locator
        self.discovery.remember(locator)

    def _targets(self, to: Address | None) -> list[tuple[str, int] | tuple[str, int, int, int]]:
        if to == ANYONE:
            known, own = self.discovery.locate(time.monotonic_ns()), self.locator.family
            return [pair.target for pair in self.pairs] + [
                place.sockaddr for place in known if place.family == own
            ]
        others = (
            [member for member in self.members if member != self.place.address]
            if to is None
            else [to]
        )
        return [self.book[member].sockaddr for member in others if member in self.book]

    def hear(self, readable: socket.socket) -> None:
        """Take in one datagram."""
        try:
            datagram, source = readable.recvfrom(65536)
            decoded = decode(datagram)
        except (BlockingIOError, ConnectionRefusedError, RemoteProtocolError):
            return
        if decoded.sender not in self.book and decoded.group == self.participant.group:
            self.meet(decoded.sender, Locator.from_sockaddr(source))
        self.work(self.participant.receive_decoded(decoded, time.monotonic_ns()))

    def close(self) -> None:
        """Close all sockets and sources."""
        self.discovery.close()
        for one in [self.socket, *(pair.receive_socket for pair in self.pairs)]:
            one.close()


def pump(members: Sequence[UdpMember], until: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Run the members until ``until`` holds; return whether it did in time."""
    deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
    with selectors.DefaultSelector() as selector:
        for member in members:
            for one in [member.socket, *(pair.receive_socket for pair in member.pairs)]:
                selector.register(one, selectors.EVENT_READ, member)
        while not until():
            now_ns = time.monotonic_ns()
            if now_ns >= deadline_ns:
                return False
            due_ns = min(
                [
                    deadline_ns,
                    *(member.deadline_ns for member in members if member.deadline_ns is not None),
                ]
            )
            for key, _ in selector.select(max(0, due_ns - now_ns) / 1e9):
                key.data.hear(key.fileobj)
            for member in members:
                if member.deadline_ns is not None and member.deadline_ns <= time.monotonic_ns():
                    member.work(member.participant.tick(time.monotonic_ns()))
    return True
