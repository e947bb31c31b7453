"""Send mutated sealed datagrams to a live member of a sealed group of three.

Real datagrams of all members are recorded, changed, and sent to a member from the socket of a
stranger: bits flipped, cut, two spliced, sent again, or random bytes. Meanwhile the members send.
The only allowed effect on the member is counted rejections.
"""

from __future__ import annotations

import logging
import resource
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from gapless import blocking
from gapless.keys.identities import Identity
from gapless.keys.keyring import Keyring
from gapless.wire.identities import Certificate, Role
from gapless_lab.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gapless.blocking import Group

GROUP = "sealed-fuzz"
BURST = 64
"""How many datagrams the stranger sends before it looks whether the member keeps up."""
MAX_AHEAD = 512
"""How many sent datagrams the member may still have to read: none is lost in a full buffer."""
MAX_RECORDED = 4096
WITHIN_S = 60.0
STALLED_S = 5.0
"""How long the member may reject nothing before the stranger goes on."""
SEND_PAUSE_S = 0.005
_PAUSE_S = 0.0005
_NEW_SHARE = 0.7
_FRONT_BYTES = 64
_MEMBERS = 3
_ALL_STREAMS = [_MEMBERS] * _MEMBERS
_CONFIG = {"suspect_after": "20s", "verify_timeout": "5s", "join_interval": "20ms"}


@dataclass
class FuzzResult:
    """The datagrams of the stranger, and the state of the group afterwards."""

    seed: int
    sent: dict[str, int]
    rejected: dict[str, int] = field(default_factory=dict)
    state_changes: int = 0
    views_changed: int = 0
    exceptions: int = 0
    answers: int = 0
    messages_sent: int = 0
    messages_delivered: int = 0
    problems: list[str] = field(default_factory=list)
    memory_before_mb: float = 0.0
    memory_after_mb: float = 0.0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether rejections were the only effect."""
        changes = self.state_changes, self.views_changed, self.exceptions, self.answers
        return not any(changes) and not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {**asdict(self), "ok": self.ok}


class Mutator:
    """Makes invalid datagrams and replays from the real datagrams ``recorded``.

    ``recorded`` are real datagrams that the victim has opened, ``elsewhere`` real ones between
    other members, which open at the victim unless they are changed.
    """

    def __init__(self, rng: Random, recorded: Sequence[bytes], elsewhere: Sequence[bytes]) -> None:
        self.rng = rng
        self.recorded = recorded
        self.elsewhere = elsewhere
        self.kinds: dict[str, Callable[[bytes], bytes]] = {
            "flipped": self._flip,
            "of others": self._flip_front,
            "cut": self._cut,
            "spliced": self._splice,
            "replayed": lambda data: data,
            "lengthened": lambda data: data + rng.randbytes(rng.randrange(1, 64)),
            "counter": self._count,
            "random": lambda _: rng.randbytes(rng.randrange(1, 1400)),
        }

    def make(self) -> tuple[str, bytes]:
        """Return the kind of a datagram, and the datagram."""
        kind = self.rng.choice(tuple(self.kinds))
        if kind == "of others":
            return kind, self._flip_front(self.rng.choice(self.elsewhere))
        data = self.rng.choice(self.recorded)
        if kind != "replayed" and self.rng.random() < _NEW_SHARE:
            data = self._count(data)  # otherwise most are rejected as replays, unopened
        return kind, self.kinds[kind](data)

    def _flip_front(self, data: bytes) -> bytes:
        """Flip a bit of the header, the addressee, the counter or the first frame."""
        at = self.rng.randrange(8 * min(len(data), _FRONT_BYTES))
        found = bytearray(data)
        found[at // 8] ^= 1 << at % 8
        return bytes(found)

    def _flip(self, data: bytes) -> bytes:
        found = bytearray(data)
        for at in {self.rng.randrange(8 * len(data)) for _ in range(self.rng.choice((1, 1, 2, 9)))}:
            found[at // 8] ^= 1 << at % 8
        return bytes(found)

    def _cut(self, data: bytes) -> bytes:
        return data[: self.rng.randrange(1, len(data))]

    def _splice(self, data: bytes) -> bytes:
        other = self.rng.choice(self.recorded)
        at = self.rng.randrange(min(len(data), len(other)))
        spliced = data[:at] + other[at:]
        return spliced if spliced not in {data, other} else self._flip(data)

    def _count(self, data: bytes) -> bytes:
        """Move the counter: a recorded datagram with an unused counter."""
        at = 40 if data[3] & 2 else 32
        counter = int.from_bytes(data[at : at + 8], "little") + self.rng.randrange(1, 1 << 32)
        return data[:at] + counter.to_bytes(8, "little") + data[at + 8 :]


class _Errors(logging.Handler):
    """Counts logged errors, and keeps the first few."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class _Traffic:
    """Makes members send numbered messages, and checks completeness and order."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.over = threading.Event()
        self.sent = Counter[Any]()
        self.delivered = 0
        self.problems: list[str] = []
        self.read: list[Counter[Any]] = []
        self._threads = [
            threading.Thread(target=work, args=(group,), daemon=True)
            for group in groups
            for work in (self._send, self._read)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _send(self, group: Group) -> None:
        try:
            while not self.over.wait(SEND_PAUSE_S):
                group.send(b"%d" % self.sent[group.me])
                self.sent[group.me] += 1
            group.send(b"end")
        except Exception as error:  # noqa: BLE001 - reported
            self.problems.append(f"a send failed: {error!r}")

    def _read(self, group: Group) -> None:
        expected, left = Counter[Any](), len(self.groups)
        self.read.append(expected)
        try:
            while left and (message := group.receive(WITHIN_S)) is not None:
                if message.payload == b"end":
                    left -= 1
                    continue
                if message.payload != b"%d" % expected[message.sender]:
                    self.problems.append(
                        f"message {expected[message.sender]} expected, got {message.payload[:40]!r}"
                    )
                expected[message.sender] += 1
                self.delivered += 1
        except Exception as error:  # noqa: BLE001 - reported
            self.problems.append(f"a read failed: {error!r}")

    def stop(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(WITHIN_S)


class _Recorder:
    """Keeps the latest datagrams from the members to the victim."""

    def __init__(self, groups: Sequence[Group], victim: Any) -> None:
        self.datagrams: list[bytes] = []
        self.elsewhere: list[bytes] = []
        self._next = 0
        self._victim = victim.locator.sockaddr
        for group in groups:
            transport: Any = group._session.handle.transport
            for name in ("_send_each", "_send_segmented"):
                setattr(transport, name, self._record(getattr(transport, name)))

    def _record(self, send: Callable[[Any, Sequence[bytes]], None]) -> Callable[..., None]:
        def recording(target: Any, datagrams: Sequence[bytes]) -> None:
            send(target, datagrams)
            if target != self._victim:
                if len(self.elsewhere) < MAX_RECORDED:
                    self.elsewhere += datagrams
                return
            for datagram in datagrams:
                if len(self.datagrams) < MAX_RECORDED:
                    self.datagrams.append(datagram)
                else:
                    self.datagrams[self._next % MAX_RECORDED] = datagram
                    self._next += 1

        return recording


def sealed_fuzz(
    count: int,
    seed: int,
    progress: Callable[[int], object] | None = None,
    *,
    identities: bool = False,
) -> FuzzResult:
    """Send ``count`` mutated datagrams; ``progress`` gets the number sent, now and then.

    With ``identities`` the members seal messages with keys of views.
    """
    result = FuzzResult(seed, {})
    errors = _Errors()
    logger = logging.getLogger("gapless")
    logger.addHandler(errors)
    began_s = time.monotonic()
    try:
        with ExitStack() as stack:
            _run(stack, result, count, progress, _keys(_MEMBERS if identities else 0))
    finally:
        logger.removeHandler(errors)
    result.exceptions = len(errors.texts)
    result.problems += errors.texts[:10]
    result.seconds = round(time.monotonic() - began_s, 1)
    return result


def _keys(count: int) -> tuple[Keyring, list[Identity]]:
    """Return a keyring that allows so many identities in the group, and the identities."""
    keys, found = Keyring.new(), [Identity.new() for _ in range(count)]
    for number, identity in enumerate(found):
        keys = keys.allow(GROUP, Certificate(f"member-{number}", Role.MEMBER, identity.public_key))
    return keys, found


def _run(
    stack: ExitStack,
    result: FuzzResult,
    count: int,
    progress: Callable[[int], object] | None,
    keys: tuple[Keyring, list[Identity]],
) -> None:
    ring, identities = keys
    ports = free_ports(_MEMBERS)
    seeds = [f"127.0.0.1:{port}" for port in ports]
    options: dict[str, Any] = {"host": "127.0.0.1", "ports": ports, "seeds": seeds}
    groups = [
        stack.enter_context(
            blocking.join(
                GROUP, keys=ring, identity=identity, transport="mesh", config=_CONFIG, **options
            )
        )
        for identity in identities or (None,) * _MEMBERS
    ]
    for group in groups:
        group.wait_for_members(_MEMBERS, WITHIN_S)
    victim: Any = groups[-1]._session.handle.transport
    recorder, traffic = _Recorder(groups[:-1], victim), _Traffic(groups)
    traffic.start()
    # From then on every stream has begun, and no more events are due.
    while (
        min(map(len, (recorder.datagrams, recorder.elsewhere))) < BURST
        or [len(one) for one in traffic.read] != _ALL_STREAMS
    ):
        traffic.over.wait(SEND_PAUSE_S)
    before = [_state(group) for group in groups]
    result.memory_before_mb = _memory_mb()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setblocking(False)
        sent = _flood(stranger, victim, recorder, Random(result.seed), count, progress)
        result.sent = dict(sorted(sent.items()))
        result.rejected = dict(sorted(victim.seal.rejected.items()))
        with suppress(BlockingIOError):
            while stranger.recv(1 << 16):
                result.answers += 1
    result.memory_after_mb = _memory_mb()
    traffic.stop()
    result.messages_sent = sum(traffic.sent.values())
    result.messages_delivered = traffic.delivered
    result.problems += traffic.problems[:10]
    _judge(result, before, [_state(group) for group in groups], count)


def _flood(
    stranger: socket.socket,
    victim: Any,
    recorder: _Recorder,
    rng: Random,
    count: int,
    progress: Callable[[int], object] | None,
) -> Counter[str]:
    """Send all datagrams, no faster than the victim reads."""
    sent = Counter[str]()
    mutator, target = Mutator(rng, recorder.datagrams, recorder.elsewhere), victim.locator.sockaddr
    step = max(1, count // 1000)
    for number in range(1, count + 1):
        kind, datagram = mutator.make()
        stranger.sendto(datagram, target)
        sent[kind] += 1
        if not number % BURST or number == count:
            _wait_for_rejections(victim, number - (MAX_AHEAD if number < count else 0))
        if progress is not None and not number % step:
            progress(number)
    return sent


def _wait_for_rejections(victim: Any, count: int) -> None:
    """Wait until so many datagrams are rejected, or no more are: then some got through."""
    seen, until_s = -1, 0.0
    while (rejected := sum(victim.seal.rejected.values())) < count:
        now_s = time.monotonic()
        if rejected != seen:
            seen, until_s = rejected, now_s + STALLED_S
        elif now_s > until_s:
            return
        time.sleep(_PAUSE_S)


def _state(group: Group) -> tuple[Any, ...]:
    """Return the state protected from strangers: the view, the events and the known addresses."""
    book = group._session.handle.transport.book
    counters = group.snapshot().counters
    events = {name: times for name, times in counters.items() if name.startswith("events.")}
    return group.view, events, dict(book._located), set(book.candidates())


def _judge(
    result: FuzzResult,
    before: Sequence[tuple[Any, ...]],
    after: Sequence[tuple[Any, ...]],
    count: int,
) -> None:
    for old, new in zip(before, after, strict=True):
        result.views_changed += old[0] != new[0]
        changes = [pair for pair in zip(old[1:], new[1:], strict=True) if pair[0] != pair[1]]
        result.state_changes += len(changes)
        result.problems += [f"changed: {first} became {second}" for first, second in changes]
    if (rejected := sum(result.rejected.values())) != count:
        result.problems.append(f"{count:,} datagrams were sent, and {rejected:,} rejected")
    expected = _MEMBERS * result.messages_sent
    if result.messages_delivered != expected:
        result.problems.append(f"{result.messages_delivered} of {expected} messages delivered")


def _memory_mb() -> float:
    """Return the resident memory of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return round(pages * resource.getpagesize() / 1e6, 1)
