"""A small world of participants in virtual time: every test of the membership drives one of these.

``world = Gathering(3)`` makes a, b and c; ``world.join("a", "b")`` lets them look for a group;
``world.run(seconds)`` lets time pass; ``world.settle()`` runs until all that live are in one view.
Frames are dropped by ``world.drop``, a function of (source, target, frame); ``world.part("ab",
"c")`` cuts the network, ``world.heal()`` mends it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

from gapless.config import Config
from gapless.identity import Address, group_id
from gapless.protocol.events import Expelled, Left, ViewInstalled
from gapless.protocol.member import Member
from gapless.protocol.ready import ANYONE, Ready
from gapless.wire import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.identity import View
    from gapless.wire.frames import Frame

S = 1_000_000_000
MS = 1_000_000
GROUP = group_id("gathering")


class Host:
    """One node and its present life."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = ord(name[0]) - ord("a") + 1
        self.incarnation = 0
        self.member: Member | None = None
        self.paused = False
        self.inbox: list[bytes] = []
        self.events: list[Any] = []
        self.views: list[View] = []
        self.got: list[tuple[str, bytes]] = []
        self.order: list[Any] = []
        self.options: dict[str, Any] = {}
        self.join_options: dict[str, Any] = {}
        self.due_ns: int | None = None


class Gathering:
    """Participants, a network between them, and the time."""

    def __init__(
        self,
        count: int = 3,
        *,
        delay_ns: int = MS,
        rejoin: bool = True,
        seed: int = 0,
        **knobs: Any,
    ) -> None:
        self.config = Config.make(**knobs)
        self.delay_ns = delay_ns
        self.rejoin = rejoin
        self.now_ns = 0
        self.drop: Callable[[str, str, Frame], bool] = lambda source, target, frame: False
        self.loses: Callable[[], bool] = lambda: False
        self.delay: Callable[[str, str, Frame], int] = lambda source, target, frame: 0
        self.sides: list[str] = []
        self.sent: list[tuple[int, str, Frame]] = []
        self._rng = Random(seed)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self.hosts = {chr(ord("a") + at): Host(chr(ord("a") + at)) for at in range(count)}

    def __getitem__(self, name: str) -> Member:
        member = self.hosts[name].member
        assert member is not None
        return member

    # What happens to members

    def start(self, where: str, **options: Any) -> Member:
        """Begin a life at ``where``."""
        host = self.hosts[where]
        host.incarnation += 1
        host.paused = False
        host.inbox = []
        host.options = options
        address = Address(host.node, host.incarnation)
        host.member = Member(
            address,
            GROUP,
            self.config,
            Random(self._rng.random()),
            locator=where.encode(),
            tracing=True,
            **options,
        )
        host.due_ns = None
        return host.member

    def join(self, *names: str, durable: str = "", **options: Any) -> None:
        """Begin a life at each of ``names`` and let it look for a group."""
        for name in names:
            member = self.start(name, **({"name": durable} if durable else {}))
            self.hosts[name].join_options = options
            self._work(name, member.join(self.now_ns, **options))

    def crash(self, *names: str) -> None:
        """End lives without a word."""
        for name in names:
            self.hosts[name].member = None

    def leave(self, *names: str) -> None:
        """Let members leave."""
        for name in names:
            self._work(name, self[name].leave(self.now_ns))

    def pause(self, name: str) -> None:
        """Let a process stand still; what comes waits."""
        self.hosts[name].paused = True

    def resume(self, name: str) -> None:
        """Let a process go on."""
        host = self.hosts[name]
        host.paused = False
        inbox, host.inbox = host.inbox, []
        for datagram in inbox:
            if host.member is not None:
                self._work(name, host.member.receive(datagram, self.now_ns))
        if host.member is not None:
            self._work(name, host.member.tick(self.now_ns))

    def send(self, name: str, *payloads: bytes, **options: Any) -> Ready:
        """Send messages."""
        ready = self[name].send(list(payloads), self.now_ns, **options)
        self._work(name, ready)
        return ready

    def part(self, *sides: str) -> None:
        """Cut the network: only those of one side reach each other."""
        self.sides = list(sides)

    def heal(self) -> None:
        """Mend the network."""
        self.sides = []

    # Time

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end_ns = self.now_ns + int(seconds * S)
        self._run(end_ns, lambda: False)
        self.now_ns = end_ns

    def settle(self, seconds: float = 30) -> float:
        """Run until all that live are in one view; return how long it took."""
        start_ns = self.now_ns
        self._run(start_ns + int(seconds * S), self.is_one)
        assert self.is_one(), f"after {seconds} s: {self.show()}"
        return (self.now_ns - start_ns) / S

    def wait(self, until: Callable[[], bool], seconds: float = 30) -> float:
        """Run until something holds."""
        start_ns = self.now_ns
        self._run(start_ns + int(seconds * S), until)
        assert until(), f"after {seconds} s: {self.show()}"
        return (self.now_ns - start_ns) / S

    def is_one(self) -> bool:
        """Return whether all that live are in one view, and nobody else is."""
        living = [host.member for host in self.hosts.values() if host.member is not None]
        views = {member.view for member in living}
        if len(views) != 1 or None in views:
            return False
        (view,) = views
        return (
            view is not None
            and set(view.members) == {m.me for m in living}
            and not any(m.pending for m in living)
        )

    def show(self) -> str:
        """Return who is in which view."""
        parts = []
        for name, host in self.hosts.items():
            member = host.member
            if member is not None:
                view = member.view
                who = (
                    "-" if view is None else f"{view.id.number}:" + ",".join(map(str, view.members))
                )
                parts.append(f"{name}({member.me}) {member.phase} {who}")
        return "; ".join(parts)

    def _run(self, end_ns: int, until: Callable[[], bool]) -> None:
        while self._heap and self._heap[0][0] <= end_ns:
            if until():
                return
            at_ns, _, handler, args = heappop(self._heap)
            self.now_ns = max(self.now_ns, at_ns)
            handler(*args)
        if not until():
            self.now_ns = max(self.now_ns, end_ns)

    def _push(self, at_ns: int, handler: Callable[..., None], *args: Any) -> None:
        self._serial += 1
        heappush(self._heap, (at_ns, self._serial, handler, args))

    # The pump

    def _work(self, name: str, ready: Ready) -> None:
        host = self.hosts[name]
        for to, datagram in ready.transmits:
            said = decode(datagram)
            self.sent += ((self.now_ns, name, frame) for frame in said.frames)
            for target in self.hosts.values():
                if target is host or (to is not None and to != ANYONE and target.node != to.node):
                    continue
                if self._cut(name, target.name) or self.loses():
                    continue
                if any(self.drop(name, target.name, frame) for frame in said.frames):
                    continue
                extra_ns = max(self.delay(name, target.name, frame) for frame in said.frames)
                self._push(
                    self.now_ns + self.delay_ns + extra_ns, self._arrive, target.name, datagram
                )
        before = ready.deliveries[: ready.before_view]
        for delivery in before:
            self._got(host, delivery)
        for event in ready.events:
            if isinstance(event, ViewInstalled):
                host.views.append(event.view)
                host.order.append(event.view)
        for delivery in ready.deliveries[ready.before_view :]:
            self._got(host, delivery)
        host.events += ready.events
        if any(isinstance(event, (Expelled, Left)) for event in ready.events):
            expelled = any(isinstance(event, Expelled) for event in ready.events)
            host.member = None
            if expelled and self.rejoin:
                self.join(name, durable=host.options.get("name", ""), **host.join_options)
            return
        host.due_ns = ready.deadline_ns
        if ready.deadline_ns is not None and host.member is not None:
            self._push(
                max(ready.deadline_ns, self.now_ns),
                self._tick,
                name,
                host.incarnation,
                ready.deadline_ns,
            )

    def _got(self, host: Host, delivery: Any) -> None:
        origin = chr(ord("a") + delivery.origin.node - 1)
        for message in delivery.messages():
            host.got.append((origin, message))
            host.order.append(message)

    def _cut(self, source: str, target: str) -> bool:
        return bool(self.sides) and not any(
            source in side and target in side for side in self.sides
        )

    def _arrive(self, name: str, datagram: bytes) -> None:
        host = self.hosts[name]
        if host.member is None:
            return
        if host.paused:
            host.inbox.append(datagram)
            return
        self._work(name, host.member.receive(datagram, self.now_ns))
        if host.member is not None:
            host.member.check_invariants()

    def _tick(self, name: str, incarnation: int, due_ns: int) -> None:
        host = self.hosts[name]
        if (
            host.member is None
            or host.paused
            or host.incarnation != incarnation
            or host.due_ns != due_ns
        ):
            return
        self._work(name, host.member.tick(self.now_ns))
