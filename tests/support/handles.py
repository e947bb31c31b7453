"""Handles of one process for tests: they meet, send, and are waited for."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gapless.config import Config
from gapless.discovery import Discovery
from gapless.protocol.events import ViewInstalled
from gapless.protocol.ready import Delivery
from gapless.runtime.bundler import Bundler
from gapless.runtime.delivery_queue import DeliveryItem, DeliveryQueue
from gapless.runtime.handle import MemberHandle
from gapless.transport import InProcessNetwork, TcpMesh, UdpMesh
from tests.support.companions import QUICK
from tests.support.networks import free_ports, seeds

PATIENCE_S = 20


class HookedQueue(DeliveryQueue):
    """A delivery queue that calls ``hook`` in the turn that puts items, and at the end."""

    def __init__(self, hook: Callable[[], None]) -> None:
        super().__init__()
        self._hook = hook

    def put(self, items: Sequence[DeliveryItem]) -> None:
        super().put(items)
        self._hook()

    def end(self) -> None:
        super().end()
        self._hook()


class Guest:
    """A handle, and everything that was taken from it."""

    def __init__(self, handle: MemberHandle) -> None:
        self.handle = handle
        self.items: list[Any] = []

    def read(self, timeout_s: float = 0) -> bool:
        """Take all items, after a wait if there is none; always true."""
        self.handle.wait(timeout_s)
        new = self.handle.take()
        self.items += new
        self.handle.consumed(sum(item.message_count for item in new if isinstance(item, Delivery)))
        return True

    def until(self, holds: Callable[[], bool]) -> None:
        """Read until something holds."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, self.items[-5:]
            self.read(min(left_s, 0.05))

    def until_view(self, members: int) -> None:
        self.until(lambda: [len(view.members) for view in self.views][-1:] == [members])

    def until_messages(self, count: int) -> None:
        self.until(lambda: len(self.messages) >= count)

    def of(self, kind: type) -> list[Any]:
        return [item for item in self.items if isinstance(item, kind)]

    @property
    def views(self) -> list[Any]:
        return [item.view for item in self.of(ViewInstalled)]

    @property
    def messages(self) -> list[bytes]:
        return [message for item in self.of(Delivery) for message in item.messages()]


@contextmanager
def gathering(
    count: int = 2, over: str = "memory", group: str = "g", **options: Any
) -> Iterator[list[Guest]]:
    """Open ``count`` handles, wait until they share a view, and close them at the end."""
    knobs = {**QUICK, **options.pop("knobs", {})}
    network = InProcessNetwork()
    ports = free_ports(count)

    def transport() -> Any:
        if over == "memory":
            return network.open()
        opened = {"udp": UdpMesh, "tcp": TcpMesh}[over]
        return opened("127.0.0.1", ports, discovery=Discovery.parse(seeds(ports), group=group))

    guests = [
        Guest(MemberHandle(group, transport(), Config.make(**knobs), **options))
        for _ in range(count)
    ]
    try:
        for at in range(count):
            guests[at].until_view(count)
        yield guests
    finally:
        for guest in guests:
            guest.handle.close(0.2)


def with_room(bundler: Bundler) -> Bundler:
    """Let the next message join, as a turn does after a message was sent."""
    bundler.room, bundler._room_bytes = 1000, 1 << 16
    bundler.last_ns = 1 << 62  # however slow the machine is
    return bundler
