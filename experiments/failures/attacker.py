"""A stranger that floods a group: ``python -m experiments.failures.attacker TASK``.

Each kind of flood is a source of datagrams, or of TCP connections. The attacker knows the name of
the group, the addresses of its members and the number of the view, as an observer of the network
does. Only VOTE and NAK are sent in the name of a member: without encryption no receiver can tell a
forged frame from an honest frame, and a forged frame must still do no harm.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from random import Random

from gapless.identity import Address, RosterEntry, ViewId, group_id
from gapless.locator import Locator
from gapless.run import Run
from gapless.transport.tcp.link import MAX_STREAMS, Hello
from gapless.wire.codec import encode
from gapless.wire.frames import (
    Alive,
    Beacon,
    Data,
    Frame,
    Join,
    Nak,
    NameTaken,
    NewView,
    StreamProgress,
    Unreliable,
    Vote,
)
from gapless_lab.process import emit, read_task

HIGHEST = 2**31 - 1
"""A view number that leaves no higher one."""
POOL = 4096
"""How many different datagrams a flood repeats: the attacker must be faster than the group."""
_STEP_S = 0.01
_OPEN_AT_ONCE = 200


@dataclass(frozen=True)
class AttackTask:
    """The kind, the targets as host:port, the attacker's knowledge, the duration and the rate."""

    kind: str
    targets: list[str]
    group: str
    members: list[str]
    view: int
    seconds: float
    rate: int
    seed: int = 1


class FloodSource:
    """Makes the datagrams of the floods; each kind of flood has a method."""

    def __init__(self, task: AttackTask) -> None:
        self.rng = Random(task.seed)
        self.group = group_id(task.group)
        self.members = [Address.parse(member) for member in task.members]
        self.view = task.view

    def stranger(self) -> Address:
        """Return an invented address."""
        return Address(self.rng.getrandbits(63) | 1, self.rng.getrandbits(40) | 1)

    def entry(self, address: Address, name: str = "") -> RosterEntry:
        """Return the roster entry of a stranger at an invented place."""
        place = Locator(bytes((127, *self.rng.randbytes(2), 9)), self.rng.randrange(1024, 65535))
        return RosterEntry(address, name, place.encode())

    def _pack(self, sender: Address, *frames: Frame) -> bytes:
        return encode(self.group, sender, frames)

    def garbage(self) -> bytes:
        """Return random bytes."""
        return self.rng.randbytes(self.rng.randrange(1, 1400))

    def truncated(self) -> bytes:
        """Return the beginning of a valid datagram."""
        data = self.data()
        return data[: self.rng.randrange(1, len(data))]

    def joins(self) -> bytes:
        """Return JOIN of an invented member at an invented place."""
        address = self.stranger()
        return self._pack(address, Join(self.entry(address), self.rng.random() < 0.5))

    def taken_names(self) -> bytes:
        """Return JOIN with the name of a member, or NAME_TAKEN in a wrong place."""
        address = self.stranger()
        if self.rng.random() < 0.5:
            return self._pack(address, Join(self.entry(address, "taken")))
        joiner = self.rng.choice(self.members)
        return self._pack(address, NameTaken(self.entry(address, "taken"), joiner))

    def beacons(self) -> bytes:
        """Return BEACON of an invented coordinator."""
        address = self.stranger()
        view = ViewId(self.rng.randrange(1, HIGHEST), address)
        return self._pack(address, Beacon(address, view, tuple(self.members)))

    def alive(self) -> bytes:
        """Return JOIN and ALIVE of an invented member in a view with a huge number."""
        address = self.stranger()
        view = ViewId(HIGHEST - self.rng.randrange(3), self.stranger())
        wanted = Alive(address, view, True, True)
        return self._pack(address, Join(self.entry(address)), wanted)

    def new_views(self) -> bytes:
        """Return a part of a huge, never complete roster."""
        address = self.rng.choice((self.stranger(), *self.members))
        view = ViewId(self.view + self.rng.randrange(1, 100), address)
        part = self.rng.randrange(60_000)
        return self._pack(
            address, NewView(address, view, None, part, 65_535, self.rng.randbytes(1200))
        )

    def votes(self) -> bytes:
        """Return VOTE in the name of a member, for messages never sent."""
        member = self.rng.choice(self.members)
        progress = (StreamProgress(self.rng.choice(self.members), 0, 2**62),)
        return self._pack(member, Vote(member, self.view, progress))

    def naks(self) -> bytes:
        """Return NAK in the name of a member, for sent and for future messages."""
        member, origin = self.rng.sample(self.members, 2)
        first = self.rng.randrange(1, 1_000_000)
        return self._pack(member, Nak(origin, ((first, first + 1_000_000),)))

    def data(self) -> bytes:
        """Return DATA or an unreliable message of a stranger."""
        address = self.stranger()
        if self.rng.random() < 0.2:
            return self._pack(address, Unreliable(Run.of(address, 1, [b"x" * 1000])))
        first = self.rng.randrange(1, 1000)
        epoch = self.rng.choice((0, self.view + self.rng.randrange(5)))
        return self._pack(address, Data(Run.of(address, first, [b"x" * 1000]), epoch=epoch))


DATAGRAMS: dict[str, Callable[[FloodSource], bytes]] = {
    "garbage": FloodSource.garbage,
    "truncated": FloodSource.truncated,
    "join": FloodSource.joins,
    "taken name": FloodSource.taken_names,
    "beacon": FloodSource.beacons,
    "alive": FloodSource.alive,
    "new view": FloodSource.new_views,
    "vote": FloodSource.votes,
    "nak": FloodSource.naks,
    "data": FloodSource.data,
}
"""The floods of datagrams."""


def flood(task: AttackTask) -> int:
    """Send datagrams to all targets in turn, ``rate`` a second; return how many were sent."""
    source = FloodSource(task)
    make = DATAGRAMS[task.kind]
    pool = [make(source) for _ in range(min(POOL, task.rate * 2))]
    targets = cycle([_address(target) for target in task.targets])
    sent = 0
    began_s = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        while (passed_s := time.monotonic() - began_s) < task.seconds:
            while sent < passed_s * task.rate:
                with suppress(OSError):
                    out.sendto(pool[sent % len(pool)], next(targets))
                sent += 1
            time.sleep(_STEP_S)
    return sent


def flood_hellos(task: AttackTask) -> int:
    """Open connections with absurd numbers in the hello, and close the connections, in a loop."""
    source = FloodSource(task)
    sent = 0
    for number, target in _while_time(task):
        streams = source.rng.choice((2**64 - 1, MAX_STREAMS, 2**32))
        hello = Hello(
            source.group,
            source.stranger(),
            source.rng.getrandbits(64),
            0,
            2**64 - 1,
            streams,
            Locator(bytes((127, 0, 0, 1)), 1024 + number % 60_000),
        )
        with suppress(OSError), socket.create_connection(target, 1) as link:
            link.sendall(hello.encode())
            sent += 1
            link.settimeout(0.05)
            link.recv(1000)
    return sent


def flood_connections(task: AttackTask) -> int:
    """Open connections with half a hello or no bytes, and keep as many as possible open."""
    opened: list[socket.socket] = []
    sent = 0
    for number, target in _while_time(task):
        with suppress(OSError):
            link = socket.create_connection(target, 1)
            if number % 2:
                link.sendall(b"GLT1"[: 1 + number % 4])
            opened.append(link)
            sent += 1
        if len(opened) > _OPEN_AT_ONCE:
            opened.pop(0).close()
    return sent


def no_flood(task: AttackTask) -> int:
    """Send no datagram, for comparison."""
    time.sleep(task.seconds)
    return 0


def _while_time(task: AttackTask) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield the number and the target of the next connection, ``rate`` a second at most."""
    targets = cycle([_address(target) for target in task.targets])
    began_s = time.monotonic()
    number = 0
    while (passed_s := time.monotonic() - began_s) < task.seconds:
        if number > passed_s * task.rate:
            time.sleep(_STEP_S)
            continue
        number += 1
        yield number, next(targets)


def _address(target: str) -> tuple[str, int]:
    host, _, port = target.rpartition(":")
    return host, int(port)


CONNECTIONS: dict[str, Callable[[AttackTask], int]] = {
    "tcp hello": flood_hellos,
    "tcp half open": flood_connections,
    "none": no_flood,
}
"""The floods of TCP connections, and no flood at all."""


def main() -> None:
    """Run the flood, and report the number of datagrams or connections."""
    task = read_task(AttackTask)

    def end_with_supervisor() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=end_with_supervisor, daemon=True).start()
    emit("done", sent=CONNECTIONS.get(task.kind, flood)(task))


if __name__ == "__main__":
    main()
