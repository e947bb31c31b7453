"""A small group of members that make their own views, in virtual time.

``world = MembershipGroup(3)`` makes the hosts a, b and c; ``world.join("a", "b")`` starts members
there that look for a group; ``world.run(seconds)`` lets time pass; ``world.settle()`` runs until
all running members are in one view. ``world.drop``, a function of (source, target, frame), loses
whole datagrams; ``world.part("ab", "c")`` cuts the network, ``world.heal()`` mends it.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from gapless.config import Config
from gapless.identity import Address, group_id
from gapless.protocol.events import Expelled, Left, NameInUse, ViewInstalled
from gapless.protocol.member import Member
from gapless.protocol.ready import ANYONE, Ready
from tests.support.virtual_group import MS, SECOND as S, VirtualGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.identity import View
    from gapless.protocol.ready import Delivery
    from gapless.wire.frames import Datagram, Frame

GROUP = group_id("gathering")


class VirtualHost:
    """One host, its current incarnation, and what its application has seen in all of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = ord(name[0]) - ord("a") + 1
        self.incarnation = 0
        self.member: Member | None = None
        self.views: list[View] = []
        self.got: list[tuple[str, bytes]] = []
        self.order: list[Any] = []
        self.events: list[Any] = []
        self.options: dict[str, Any] = {}
        self.join_options: dict[str, Any] = {}


class MembershipGroup(VirtualGroup[str, Member]):
    """Members at hosts a, b, c …; an expelled one joins again unless ``rejoin`` is False."""

    def __init__(
        self,
        count: int = 3,
        *,
        delay_ns: int = MS,
        rejoin: bool = True,
        seed: int = 0,
        **knobs: Any,
    ) -> None:
        super().__init__(self._targets, self._delays_ns, now_ns=0)
        self.config = Config.make(**knobs)
        self.delay_ns = delay_ns
        self.rejoin = rejoin
        self.drop: Callable[[str, str, Frame], bool] = lambda source, target, frame: False
        self.loses: Callable[[], bool] = lambda: False
        self.delay: Callable[[str, str, Frame], int] = lambda source, target, frame: 0
        self.sides: list[str] = []
        self._rng = Random(seed)
        self.hosts = {chr(ord("a") + at): VirtualHost(chr(ord("a") + at)) for at in range(count)}
        self.observers.append(self._serve)

    def __getitem__(self, name: str) -> Member:
        member = self.hosts[name].member
        assert member is not None
        return member

    # The network

    def _targets(self, source: str, to: Address | None) -> list[str]:
        return [
            host.name
            for host in self.hosts.values()
            if host.name != source and (to is None or to == ANYONE or host.node == to.node)
        ]

    def _delays_ns(self, source: str, target: str, datagram: Datagram) -> tuple[int, ...]:
        frames = datagram.frames
        if self._is_cut(source, target) or self.loses():
            return ()
        if any(self.drop(source, target, frame) for frame in frames):
            return ()
        return (self.delay_ns + max(self.delay(source, target, frame) for frame in frames),)

    def _is_cut(self, source: str, target: str) -> bool:
        return bool(self.sides) and not any(
            source in side and target in side for side in self.sides
        )

    def part(self, *sides: str) -> None:
        """Cut the network: only hosts of one side reach each other."""
        self.sides = list(sides)

    def heal(self) -> None:
        """Mend the network."""
        self.sides = []

    # Processes

    def start(self, where: str, **options: Any) -> Member:
        """Start the next incarnation of a host; ``options`` are those of its member."""
        host = self.hosts[where]
        host.incarnation += 1
        host.options = options
        options = self.member_options(host) | options
        self.inboxes.pop(where, None)
        member = host.member = Member(
            Address(host.node, host.incarnation),
            GROUP,
            self.config,
            Random(self._rng.random()),
            locator=where.encode(),
            tracing=True,
            **options,
        )
        return self.add(where, member)

    def member_options(self, _host: VirtualHost) -> dict[str, Any]:
        """Return more options of the member that starts at a host."""
        return {}

    def join(self, *names: str, durable: str = "", **options: Any) -> None:
        """Start an incarnation at each of ``names`` and let it look for a group."""
        for name in names:
            member = self.start(name, **({"name": durable} if durable else {}))
            self.hosts[name].join_options = options
            self.process(name, member.join(self.now_ns, **options))

    def crash(self, *names: str) -> None:
        """End processes without a word."""
        for name in names:
            self.hosts[name].member = None
            self.members.pop(name, None)

    def leave(self, *names: str) -> None:
        """Let members leave."""
        for name in names:
            self.process(name, self[name].leave(self.now_ns))

    def send(self, name: str, *payloads: bytes, **options: Any) -> Ready:
        """Send messages."""
        return self.step(name, lambda member: member.send(list(payloads), self.now_ns, **options))

    def _serve(self, name: str, ready: Ready) -> None:
        """Act on the events of a member as a runtime does, and note what its application sees."""
        host = self.hosts[name]
        for delivery in ready.deliveries[: ready.before_view]:
            self._note_delivery(host, delivery)
        for event in ready.events:
            if isinstance(event, ViewInstalled):
                host.views.append(event.view)
                host.order.append(event.view)
        for delivery in ready.deliveries[ready.before_view :]:
            self._note_delivery(host, delivery)
        host.events += ready.events
        if any(isinstance(event, (Expelled, Left, NameInUse)) for event in ready.events):
            self.crash(name)
            if self.rejoin and any(isinstance(event, Expelled) for event in ready.events):
                self.join(name, durable=host.options.get("name", ""), **host.join_options)

    def name_of(self, member: Address) -> str:
        """Return the host of a member."""
        return next(host.name for host in self.hosts.values() if host.node == member.node)

    def _note_delivery(self, host: VirtualHost, delivery: Delivery) -> None:
        origin = self.name_of(delivery.origin)
        for message in delivery.messages():
            host.got.append((origin, message))
            host.order.append(message)

    # Time

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.run_for(int(seconds * S))

    def settle(self, seconds: float = 30) -> float:
        """Run until all members that run are in one view; return how long it took."""
        return self.wait(self.is_one, seconds)

    def wait(self, until: Callable[[], bool], seconds: float = 30) -> float:
        """Run until ``until`` holds; return how long it took."""
        start_ns = self.now_ns
        assert self.run_for(int(seconds * S), until), f"after {seconds} s: {self.show()}"
        return (self.now_ns - start_ns) / S

    def is_one(self) -> bool:
        """Return whether all members that run are in one view, and no other is in it."""
        running = list(self.members.values())
        views = {member.view for member in running}
        if len(views) != 1 or None in views:
            return False
        (view,) = views
        return (
            view is not None
            and set(view.members) == {member.me for member in running}
            and not any(member.pending for member in running)
        )

    def show(self) -> str:
        """Return which member is in which view."""
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
