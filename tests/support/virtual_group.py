"""A small group in virtual time: machines, a network that a test can script, and the results.

:class:`VirtualGroup` is the one engine: time, datagrams in flight, faults, and a check of
invariants after every step. A datagram arrives after the delay of its link, in order, unless a rule
loses it. Time must go on: a machine whose timers fire must not ask for the same moment again and
again.

:class:`Group` fills it with endpoints whose views the test installs::

    group = Group(2, capacity=4)
    group.lose(Ack, by="b")
    group.send("a", b"x")
    group.settle()

:mod:`tests.support.virtual_membership` fills it with members that make their own views,
:mod:`tests.support.virtual_state_transfer` with endpoints that transfer an application's state.
"""

from __future__ import annotations

import gc
import heapq
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Generic, NamedTuple, TypeVar

import gapless
from gapless.config import Config
from gapless.identity import Address, Digest, Marks, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.events import Event
from gapless.protocol.member import Member
from gapless.protocol.ready import OUT_OF_BAND, Delivery, Ready, TraceEntry
from gapless.run import Run
from gapless.wire.codec import decode, encode
from gapless.wire.frames import Data, Datagram, Frame, OutOfBand

MS = 1_000_000
SECOND = 1_000 * MS
GROUP = 77
A, B, C, D = (Address(node, 1) for node in range(1, 5))
NAMES = dict(zip("abcd", (A, B, C, D), strict=True))
_MAX_SPINS = 20_000
_PACKAGE = str(Path(gapless.__file__).parent)

E = TypeVar("E")
K = TypeVar("K", bound=Hashable)
M = TypeVar("M", Endpoint, Member)

Rule = Callable[[K, K, Frame], bool]
"""Returns whether a frame from one key to another is lost."""
Tamper = Callable[[K, K, Frame], Frame | None]
"""Returns what arrives instead of a frame; None loses it."""


class Sent(NamedTuple, Generic[K]):
    """One frame that a machine put on the network, and its destination (None: all others)."""

    at_ns: int
    by: K
    to: Address | None
    frame: Frame


class VirtualGroup(Generic[K, M]):
    """Machines in virtual time. Each runs at a key: an address, or the name of its host.

    ``route`` returns the keys that a datagram goes to, ``link`` the delay of each copy from one key
    to another: none if the datagram is lost. ``rules`` and ``tampers`` apply to single frames when
    they arrive: a rule loses a frame, a tamper replaces it. ``copies_ns`` may duplicate datagrams.
    Each of ``observers`` sees every Ready.
    """

    def __init__(
        self,
        route: Callable[[K, Address | None], Iterable[K]],
        link: Callable[[K, K, Datagram], Iterable[int]],
        *,
        now_ns: int = SECOND,
    ) -> None:
        self.now_ns = now_ns
        self.members: dict[K, M] = {}
        self.sent: list[Sent[K]] = []
        self.crossings: list[tuple[K, K, Frame]] = []
        self.deliveries: dict[K, list[Delivery]] = {}
        self.events: dict[K, list[Event]] = {}
        self.steps: dict[K, list[TraceEntry]] = {}
        self.rules: list[Rule[K]] = []
        self.tampers: list[Tamper[K]] = []
        self.observers: list[Callable[[K, Ready], None]] = []
        self.before_arrival: Callable[[], None] | None = None
        self.copies_ns: Callable[[int], Iterable[int]] = lambda delay_ns: (delay_ns,)
        self.tick_delay_ns: dict[K, int] = {}
        self.inboxes: dict[K, list[bytes]] = {}
        self._route, self._link = route, link
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def add(self, key: K, machine: M) -> M:
        """Run a machine at ``key``."""
        self.members[key] = machine
        for table in (self.deliveries, self.events, self.steps):
            table.setdefault(key, [])
        return machine

    # Inputs

    def step(self, key: K, act: Callable[[M], Ready]) -> Ready:
        """Give a machine one input, and put its answer on the network."""
        machine = self.members[key]
        ready = act(machine)
        self.process(key, ready)
        return ready

    def process(self, key: K, ready: Ready) -> None:
        """Put the answer of a machine on the network, and note what it reports."""
        limit_bytes = self.members[key].config.max_frame_bytes
        self.deliveries[key] += ready.deliveries
        self.events[key] += ready.events
        self.steps[key] += ready.trace
        for to, data in ready.transmits:
            assert len(data) <= limit_bytes, "datagrams fit the path"
            datagram = decode(data)
            self.sent += (Sent(self.now_ns, key, to, frame) for frame in datagram.frames)
            for target in self._route(key, to):
                self.crossings += ((key, target, frame) for frame in datagram.frames)
                for delay_ns in self._link(key, target, datagram):
                    for copy_ns in self.copies_ns(delay_ns):
                        self.at(self.now_ns + copy_ns, self._arrival(key, target, data))
        machine = self.members[key]
        for observer in self.observers:
            observer(key, ready)
        if self.members.get(key) is machine:
            # A member that was expelled or has left is a dead machine without timers.
            machine.check_invariants()

    def _arrival(self, source: K, target: K, data: bytes) -> Callable[[], None]:
        return lambda: self._arrive(source, target, data)

    def _arrive(self, source: K, target: K, data: bytes) -> None:
        if self.before_arrival is not None:
            self.before_arrival()
        if target not in self.members:
            return
        if self.rules or self.tampers:
            datagram = decode(data)
            frames = [
                frame
                for sent in datagram.frames
                if (frame := self._faulted(source, target, sent)) is not None
            ]
            if not frames:
                return
            data = encode(datagram.group, datagram.sender, frames, datagram.addressee)
        if target in self.inboxes:
            self.inboxes[target].append(data)
        else:
            self._receive(target, data)

    def _receive(self, key: K, data: bytes) -> None:
        self.step(key, lambda machine: machine.receive(data, self.now_ns))

    def _faulted(self, source: K, target: K, frame: Frame) -> Frame | None:
        if any(rule(source, target, frame) for rule in self.rules):
            return None
        left: Frame | None = frame
        for tamper in self.tampers:
            left = left and tamper(source, target, left)
        return left

    def pause(self, key: K) -> None:
        """Stop a process: it neither ticks nor receives, and datagrams wait in its inbox."""
        self.inboxes.setdefault(key, [])

    def resume(self, key: K, *, tick_first: bool = False) -> None:
        """Let a paused process receive what waits in its inbox, and then, or before, tick."""
        if tick_first:
            self.step(key, lambda machine: machine.tick(self.now_ns))
        for data in self.inboxes.pop(key, []):
            if key in self.members:
                self._receive(key, data)
        if key in self.members:
            self.step(key, lambda machine: machine.tick(self.now_ns))

    def rule(self, rule: Rule[K]) -> Rule[K]:
        """Add a rule that loses frames; ``group.rules`` is the list of them."""
        self.rules.append(rule)
        return rule

    # Time

    def at(self, at_ns: int, act: Callable[[], None]) -> None:
        """Call ``act`` at ``at_ns``."""
        heapq.heappush(self._heap, (at_ns, next(self._order), act))

    def _due_ns(self, key: K) -> int | None:
        deadline_ns = None if key in self.inboxes else self.members[key].deadline_ns
        return None if deadline_ns is None else deadline_ns + self.tick_delay_ns.get(key, 0)

    def next_ns(self) -> int | None:
        """Return when something happens next."""
        times_ns = [entry[0] for entry in self._heap[:1]]
        times_ns += [due_ns for key in self.members if (due_ns := self._due_ns(key)) is not None]
        return min(times_ns, default=None)

    def run_until(self, end_ns: int, until: Callable[[], bool] | None = None) -> bool:
        """Run up to ``end_ns``, or until ``until`` holds; return whether it does."""
        spins = 0
        while until is None or not until():
            if self._heap and self._heap[0][0] <= self.now_ns:
                heapq.heappop(self._heap)[2]()
                continue
            next_ns = self.next_ns()
            if next_ns is None or next_ns > end_ns:
                self.now_ns = max(self.now_ns, end_ns)
                return False
            spins = spins + 1 if next_ns <= self.now_ns else 0
            assert spins < _MAX_SPINS, "time stands still"
            self.now_ns = max(self.now_ns, next_ns)
            if not (self._heap and self._heap[0][0] <= self.now_ns):
                self._tick_due()
        return True

    def _tick_due(self) -> None:
        for key in list(self.members):
            due_ns = self._due_ns(key) if key in self.members else None
            if due_ns is not None and due_ns <= self.now_ns:
                self.step(key, lambda machine: machine.tick(self.now_ns))

    def run_for(self, span_ns: int, until: Callable[[], bool] | None = None) -> bool:
        """Run for ``span_ns``, or until ``until`` holds; return whether it does."""
        return self.run_until(self.now_ns + span_ns, until)


class Group(VirtualGroup[Address, Endpoint]):
    """Endpoints called a, b, c and d, all in view 1 unless ``start`` is False."""

    def __init__(
        self,
        members: int = 2,
        *,
        delay_ns: int = MS,
        start: bool = True,
        seed: int = 0,
        **knobs: Any,
    ):
        knobs.setdefault("jitter_percent", 0)
        # A group with open connections would not settle before they expire.
        knobs.setdefault("conn_expiry_timeout", "0s")
        super().__init__(self._targets, lambda _source, _target, _datagram: (self.delay_ns,))
        self.config = Config.make(**knobs)
        self.delay_ns = delay_ns
        self.addresses = [A, B, C, D][:members]
        for address in self.addresses:
            rng = Random(f"{seed} {address}")
            self.add(address, Endpoint(address, GROUP, self.config, rng, tracing=True))
        if start:
            view = View.of(1, *self.addresses)
            self.install(view, self.addresses, digest=dict.fromkeys(self.addresses, Marks(0, 0, 0)))

    def _targets(self, source: Address, to: Address | None) -> list[Address]:
        targets = self.addresses if to is None else [to]
        return [target for target in targets if target != source and target in self.members]

    def __getitem__(self, name: str) -> Endpoint:
        return self.members[NAMES[name]]

    # Inputs

    def send(self, name: str, *payloads: bytes, **how: object) -> Ready:
        """Send in one call."""
        return self.step(NAMES[name], lambda m: m.send(payloads, self.now_ns, **how))  # type: ignore[arg-type]

    def cancel(self, name: str, ticket: int) -> Ready:
        """Cancel a send."""
        return self.step(NAMES[name], lambda m: m.cancel(ticket, self.now_ns))

    def consumed(self, name: str, messages: int) -> Ready:
        """Report consumption."""
        return self.step(NAMES[name], lambda m: m.consumed(messages, self.now_ns))

    def receive(self, name: str, sender: Address, *frames: Frame, group: int = GROUP) -> Ready:
        """Hand a member a datagram, past the network."""
        datagram = encode(group, sender, frames)
        return self.step(NAMES[name], lambda m: m.receive(datagram, self.now_ns))

    def install(
        self,
        view: View,
        members: list[Address] | None = None,
        digest: Digest | None = None,
        **places: Any,
    ) -> None:
        """Install a view at ``members`` (default: all of it); ``places`` are durable members."""
        for member in members or view.members:
            self.step(member, lambda m: m.install(view, self.now_ns, digest, **places))

    def crash(self, address: Address) -> Endpoint:
        """End a process without a word; datagrams in flight to it are lost."""
        self.addresses.remove(address)
        return self.members.pop(address)

    def begin(self, address: Address, *, resume: Mapping[Address, int] | None = None) -> Endpoint:
        """Start an incarnation without a view; with ``resume`` it is that of a durable member."""
        member = Endpoint(address, GROUP, self.config, Random(f"{address}"), tracing=True)
        if resume is not None:
            member.resume(resume)
        self.addresses.append(address)
        self.deliveries[address], self.events[address], self.steps[address] = [], [], []
        return self.add(address, member)

    # The network

    def lose(
        self, *kinds: type[Frame], by: str | None = None, to: str | None = None, times: int = -1
    ) -> Rule[Address]:
        """Lose frames of these kinds (default: any) by and to these members, at most ``times``."""
        left = times

        def rule(sender: Address, receiver: Address, frame: Frame) -> bool:
            nonlocal left
            hit = left != 0 and (not kinds or isinstance(frame, kinds))
            hit = (
                hit
                and (by is None or sender == NAMES[by])
                and (to is None or receiver == NAMES[to])
            )
            left -= hit
            return hit

        return self.rule(rule)

    def lose_seqnos(
        self, *seqnos: int, to: str | None = None, repairs: bool = False
    ) -> Rule[Address]:
        """Lose data frames with any of ``seqnos``; with ``repairs`` also retransmissions."""

        def rule(_sender: Address, receiver: Address, frame: Frame) -> bool:
            if not isinstance(frame, Data) or (frame.repair and not repairs):
                return False
            held = any(frame.run.first <= seqno <= frame.run.last for seqno in seqnos)
            return held and (to is None or receiver == NAMES[to])

        return self.rule(rule)

    # Time

    def settle(self, within_ns: int = 60 * SECOND) -> None:
        """Run until nothing is in flight and no timer is armed; fail if that takes too long."""
        end_ns = self.now_ns + within_ns
        while (next_ns := self.next_ns()) is not None:
            assert next_ns <= end_ns, (
                f"not settled: {[(str(a), m.armed_timers()) for a, m in self.members.items()]}"
            )
            self.run_until(next_ns)

    # Results

    def messages(self, at: str, origin: str) -> list[bytes]:
        """The messages of a stream that a member delivered, after a check of their order."""
        return [message for _, message in self.numbered(at, origin)]

    def numbered(self, at: str, origin: str) -> list[tuple[int, bytes]]:
        """The messages of a stream that a member delivered, each with its last seqno."""
        result: list[tuple[int, bytes]] = []
        next_seqno = None
        for delivery in self.deliveries[NAMES[at]]:
            if delivery.origin != NAMES[origin]:
                continue
            assert next_seqno is None or delivery.first >= next_seqno, "deliveries go up"
            next_seqno = delivery.last + 1
            if isinstance(delivery.content, Run):
                result += delivery.content
            else:
                result.append((delivery.last, delivery.content))
        return result

    def events_of(self, name: str, kind: type[E]) -> list[E]:
        """The events of one kind that a member reported."""
        return [event for event in self.events[NAMES[name]] if isinstance(event, kind)]

    def frames(self, kind: type[E], by: str | None = None) -> list[E]:
        """The frames of one kind that were sent."""
        return [
            sent.frame
            for sent in self.sent
            if isinstance(sent.frame, kind) and by in {None, _name(sent.by)}
        ]

    def data(self, by: str, *, repair: bool) -> list[tuple[int, int]]:
        """The ranges of the data frames, or of the repairs, that a member sent."""
        return [
            (frame.run.first, frame.run.last)
            for frame in self.frames(Data, by)
            if frame.repair is repair
        ]


def _name(address: Address) -> str:
    return next(name for name, known in NAMES.items() if known == address)


def frames(ready: Ready) -> list[tuple[Address | None, Frame]]:
    """The frames of one answer, each with the one it is for."""
    return [
        (transmit.to, frame)
        for transmit in ready.transmits
        for frame in decode(transmit.datagram).frames
    ]


def data(
    origin: Address, first: int, *payloads: bytes, repair: bool = False, flags: int = 0
) -> Data:
    """A data frame."""
    return Data(Run.of(origin, first, payloads or (b"%d" % first,), flags), repair)


def aside(origin: Address, first: int, *payloads: bytes, floor: int = 0) -> OutOfBand:
    """A frame of out-of-band messages."""
    return OutOfBand(Run.of(origin, first, payloads or (b"%d" % first,)), floor)


def got(group: Group, at: str, kind: str = OUT_OF_BAND) -> list[bytes]:
    """The messages of one kind that a member delivered, in order."""
    return [
        message
        for found in group.deliveries[NAMES[at]]
        if found.kind == kind
        for message in found.messages()
    ]


def lines_of(act: Callable[[], object]) -> int:
    """The lines of Gapless that ``act`` executes: its cost, the same on every machine.

    A collection of garbage runs callbacks and finalizers of others in this thread, whenever the
    allocations of the whole process ask for it: there is none here, and other code is not counted.
    """
    lines = 0

    def count(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        lines += event == "line"
        return count

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return lines
