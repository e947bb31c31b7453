"""A stranger beside a group: it knows names, addresses and view numbers, and has no key.

A :class:`Stranger` has a socket on loopback. In a sealed group the stranger has recorded datagrams
of every member, and sends every forged datagram in all disguises that it can make without a key. A
:class:`Tap` records what a member sends, in the form in which it leaves.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from gapless import blocking
from gapless.identity import Address, RosterEntry, group_id
from gapless.keys.ciphers import suites_of
from gapless.keys.keyring import Keyring
from gapless.locator import Locator
from gapless.transport.shared_memory import MAGIC as NOTE_MAGIC
from gapless.transport.udp import UdpMesh
from gapless.wire.cipher import TAG_BYTES
from gapless.wire.codec import (
    ADDRESSED,
    ADDRESSED_HEADER_BYTES,
    HEADER_BYTES,
    SEALED,
    decode,
    encode,
)
from gapless.wire.frames import Alive, Data, Frame, Join, NewView, OutOfBand
from gapless.wire.seal import CONTROL, Seal
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, options

GROUP = "tests"
PAUSE_S = 0.01
COUNTER_AHEAD = 1000
"""How far the counter of a disguised datagram is ahead of the last recorded one."""


def runtime_of(group: Any) -> Any:
    """Return the runtime of a member."""
    return group._session.handle._runtime


def transport_of(group: Any) -> Any:
    """Return the transport of a member."""
    return group._session.handle.transport


def target_of(group: Any) -> tuple[str, int]:
    """Return the socket address of a member, which everybody on the network can see."""
    found: tuple[str, int] = transport_of(group).locator.sockaddr
    return found


def ask(group: blocking.Group, question: Callable[[Any], Any]) -> Any:
    """Return ``question(member)``, asked between two inputs of the machine."""
    return group._session.handle.query(question).result(WITHIN_S)


def rejected(group: Any) -> int:
    """Return how many datagrams the envelope of a member has rejected."""
    seal: Seal | None = transport_of(group).seal
    return 0 if seal is None else sum(seal.rejected.values())


def has_opened(group: Any, datagram: bytes) -> bool:
    """Return whether a member has opened a sealed datagram by now."""
    seal = transport_of(group).seal
    sender = seal._senders.get(datagram[4:32])
    if sender is None:
        return False
    at = ADDRESSED_HEADER_BYTES if datagram[3] & ADDRESSED else HEADER_BYTES
    window = sender.windows[2 if datagram[3] & CONTROL else (datagram[3] & ADDRESSED) >> 1]
    return not window.is_new(int.from_bytes(datagram[at : at + 8], "little"))


def event_counts(group: blocking.Group) -> dict[str, int]:
    """Return how often each event has occurred at a member."""
    counters = group.snapshot().counters
    return {name: times for name, times in counters.items() if name.startswith("events.")}


def known_targets(group: Any) -> set[Any]:
    """Return every address to which a member would send."""
    book = transport_of(group).book
    return {*book.peers, *book.candidates(), *book._located.values(), *book._observed.values()}


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Return the first true result of ``condition``."""
    until_s = time.monotonic() + WITHIN_S
    while not (found := condition()):
        assert time.monotonic() < until_s, f"waited in vain: {what}"
        select.select([], [], [], PAUSE_S)
    return found


class Tap:
    """Records what the transport of a member puts on the wire, with the targets."""

    def __init__(self, group: Any) -> None:
        self.sent: list[tuple[Any, bytes]] = []
        transport = transport_of(group)
        if isinstance(transport, UdpMesh):
            for name in ("_send_each", "_send_segmented"):
                setattr(transport, name, self._recording(getattr(transport, name)))

    def _recording(self, send: Callable[[Any, Sequence[bytes]], None]) -> Callable[..., None]:
        def recorded(target: Any, datagrams: Sequence[bytes]) -> None:
            self.sent += [(target, datagram) for datagram in datagrams]
            send(target, datagrams)

        return recorded

    def datagrams(self, *, to: Any = None) -> list[bytes]:
        """Return the recorded datagrams, each once; only those to the target ``to``, if given."""
        return list(dict.fromkeys(data for target, data in list(self.sent) if to in {None, target}))


@contextmanager
def lost_data(group: Any) -> Iterator[None]:
    """Lose every message of a member on the network, and nothing else."""
    transport = transport_of(group)
    send = transport.send

    def filtered(transmits: Sequence[Any]) -> None:
        send([one for one in transmits if not _has_data(one.datagram)])

    transport.send = filtered
    yield
    del transport.send


def _has_data(datagram: bytes) -> bool:
    return any(
        isinstance(frame, (Data, OutOfBand)) for frame in decode(datagram, opened=True).frames
    )


class Stranger:
    """A socket, an address of its own, and the disguises; ``other`` is a ring of its own."""

    def __init__(self, other: Keyring | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.me = Address(0x5757_5757, time.time_ns())
        self.group = group_id(GROUP)
        self.ring = None if other is None else other.ring
        self.recorded: dict[Address, bytes] = {}
        """A sealed datagram of each member; empty in a group without keys."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def target(self) -> tuple[str, int]:
        """The address of the stranger's socket."""
        found: tuple[str, int] = self.socket.getsockname()
        return found

    def entry(self, address: Address | None = None, name: str = "") -> RosterEntry:
        """Return a roster entry that leads to the stranger."""
        where = Locator.of(*self.target).encode()
        return RosterEntry(address or self.me, name, where)

    # Sending

    def send(self, at: Any, sender: Address, *frames: Frame, to: Address | None = None) -> int:
        """Send frames in the name of ``sender`` to a member; return the number of datagrams."""
        plain = encode(self.group, sender, frames, None if to is None else to.incarnation)
        forged = [plain] if not self.recorded else self.disguises(plain, sender)
        for datagram in forged:
            self.send_raw(at, datagram)
        return len(forged)

    def send_raw(self, at: Any, datagram: bytes) -> None:
        """Send bytes to a member, or to a socket address."""
        self.socket.sendto(datagram, at if isinstance(at, tuple) else target_of(at))

    def disguises(self, plain: bytes, sender: Address) -> list[bytes]:
        """Return what can be made of a plain datagram without a key of the group."""
        sniffed = self.recorded.get(sender) or next(iter(self.recorded.values()))
        start = ADDRESSED_HEADER_BYTES if plain[3] & ADDRESSED else HEADER_BYTES
        real = encode(
            int.from_bytes(sniffed[8:16], "little"),
            sender,
            decode(plain).frames,
            decode(plain).addressee,
        )
        front = b"".join((real[:3], bytes([real[3] | SEALED]), sniffed[4:8], real[8:start]))
        last = ADDRESSED_HEADER_BYTES if sniffed[3] & ADDRESSED else HEADER_BYTES
        at = int.from_bytes(sniffed[last : last + 8], "little") + COUNTER_AHEAD
        counter = at.to_bytes(8, "little")
        found = [
            plain,
            real,
            front + counter + real[start:] + bytes(TAG_BYTES),  # readable, as of a blake2b key
            front + counter + real[start:] + sniffed[-TAG_BYTES:],
            sniffed[: last + 8] + real[start:] + sniffed[-TAG_BYTES:],
        ]
        if self.ring is not None:
            foreign = Seal(self.ring, suites_of(self.ring)).seal(real)
            found += [foreign, foreign[:4] + sniffed[4:8] + foreign[8:]]
        return found

    # On reception

    def heard(self) -> list[bytes]:
        """Return what has arrived at the stranger's socket."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(1 << 16))
            except BlockingIOError:
                return found

    def frames(self) -> list[Frame]:
        """Return the readable frames that have arrived."""
        heard = [datagram for datagram in self.heard() if not datagram.startswith(NOTE_MAGIC)]
        return [frame for datagram in heard for frame in decode(datagram).frames]

    def join(self, at: Any, entry: RosterEntry) -> list[Frame]:
        """Ask for a place in the group, and confirm every offered view; return what was heard."""
        self.send(at, entry.address, Join(entry))
        heard = [] if self.recorded else self.frames()
        for frame in heard:
            if isinstance(frame, NewView):
                self.send(at, entry.address, Alive(entry.address, frame.view, True))
        return heard


@dataclass
class Scene:
    """A group of three, a tap at each member, and a stranger.

    ``acting`` is the coordinator, and ``others`` are the other two, before any attack.
    """

    groups: list[blocking.Group]
    taps: list[Tap]
    stranger: Stranger
    sealed: bool
    ports: list[int]
    _before: list[Any] = field(default_factory=list)
    _rejected: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        view = self.groups[0].view
        assert view is not None
        self.acting = next(group for group in self.groups if group.me == view.members[0])
        self.others = [group for group in self.groups if group is not self.acting]

    def address(self, group: blocking.Group) -> Address:
        """Return the address that a member had before the attack."""
        found: Address = self._before[self.groups.index(group)][0]
        return found

    @property
    def view_number(self) -> int:
        """The number of the view."""
        view = self.groups[0].view
        assert view is not None
        return view.id.number

    def note(self) -> None:
        """Remember what must stay as it is."""
        self._before = [(group.me, group.view, event_counts(group)) for group in self.groups]
        self._rejected = [rejected(group) for group in self.groups]

    def wait_for_rejections(self, at: Any, count: int) -> None:
        """Wait until a member has rejected the datagrams of an attack."""
        before = self._rejected[self.groups.index(at)]
        until(lambda: rejected(at) >= before + count, f"{count} datagrams are rejected")

    def check_undisturbed(self) -> None:
        """Assert that the group is what it was, and that the stranger has heard nothing."""
        texts = [b"%d after the attack" % at for at in range(len(self.groups))]
        for group, text in zip(self.groups, texts, strict=True):
            group.send(text)
        for group in self.groups:
            found = [group.receive(WITHIN_S) for _ in texts]
            senders = {one.sender: one.payload for one in found if one is not None}
            assert senders == {
                one.me: text for one, text in zip(self.groups, texts, strict=True)
            }, "only true messages are delivered, and each once"
        after = [(group.me, group.view, event_counts(group)) for group in self.groups]
        assert after == self._before
        assert self.stranger.heard() == []
        for group in self.groups:
            assert self.stranger.target not in known_targets(group)
            assert self.stranger.me not in transport_of(group).book._observed


@contextmanager
def scene(level: str, ring: Keyring | None = None, **more: Any) -> Iterator[Scene]:
    """Join three members and place a stranger beside them.

    ``level``: ``plain`` (no keys), ``keyless`` (the stranger has none) or ``other ring``. The last
    member has the durable name ``store``; ``more`` are options of ``join``.
    """
    sealed = level != "plain"
    keys = (ring or Keyring.new()) if sealed else None
    ports = free_ports(3)
    with ExitStack() as stack:
        groups = []
        for number in range(3):
            name = "store" if number == 2 else ""
            group = blocking.join(
                GROUP,
                keys=keys,
                insecure=keys is None,
                durable_name=name,
                **{**options(ports), **more},
            )
            # A group that an attack has broken need not end well.
            stack.callback(group.close, 5 if sealed else 0.2)
            groups.append(group.open())
        for group in groups:
            group.wait_for_members(3, WITHIN_S)
        taps = [Tap(group) for group in groups]
        stranger = stack.enter_context(Stranger(Keyring.new() if level == "other ring" else None))
        found = Scene(groups, taps, stranger, sealed, ports)
        if sealed and isinstance(transport_of(groups[0]), UdpMesh):
            _record(found)
        found.note()
        yield found


def _record(found: Scene) -> None:
    """Let the stranger record a datagram of every member."""
    for group, tap in zip(found.groups, found.taps, strict=True):
        until(lambda tap=tap: tap.datagrams(), "a heartbeat")  # type: ignore[misc]
        assert group.me is not None
        found.stranger.recorded[group.me] = tap.datagrams()[-1]
