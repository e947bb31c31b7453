"""A small group in virtual time: members, a network that a test can script, and what came out of it.

``group = Group(2, capacity=4); group.lose(Ack, by="b"); group.send("a", b"x"); group.settle()``:
the network delivers every frame after ``delay_ns``, in order, unless a rule loses it. Every step of
every member is followed by a check of its invariants, and time must go on: a member whose timers
fire must not ask for the same moment again and again.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from gapless.config import Config
from gapless.identity import Address, Digest, Marks, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.events import Event
from gapless.protocol.ready import OUT_OF_BAND, Delivery, Ready, TraceEntry
from gapless.run import Run
from gapless.wire.codec import decode, encode
from gapless.wire.frames import Data, Frame, OutOfBand

MS = 1_000_000
SECOND = 1_000 * MS
GROUP = 77
A, B, C, D = (Address(node, 1) for node in range(1, 5))
NAMES = dict(zip("abcd", (A, B, C, D), strict=True))

E = TypeVar("E")


class Sent(NamedTuple):
    """One frame that a member put on the network, and the one it was for (None: all others)."""

    at_ns: int
    by: Address
    to: Address | None
    frame: Frame


Rule = Callable[[Address, Address, Frame], bool]
"""Tells whether a frame on its way from one member to another gets lost."""


class Group:
    """Members under the names a, b, c, d, all in view 1 from the beginning unless ``start`` is False."""

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
        knobs.setdefault(
            "conn_expiry_timeout", "0s"
        )  # or the group would not settle before connections close
        self.config = Config.make(**knobs)
        self.addresses = [A, B, C, D][:members]
        self.members = {
            address: Endpoint(
                address, GROUP, self.config, Random(f"{seed} {address}"), tracing=True
            )
            for address in self.addresses
        }
        self.now_ns = SECOND
        self.delay_ns = delay_ns
        self.rules: list[Rule] = []
        self.sent: list[Sent] = []
        self.deliveries: dict[Address, list[Delivery]] = {address: [] for address in self.addresses}
        self.events: dict[Address, list[Event]] = {address: [] for address in self.addresses}
        self.steps: dict[Address, list[TraceEntry]] = {address: [] for address in self.addresses}
        self._flying: list[tuple[int, int, Address, bytes]] = []
        self._order = count()
        if start:
            view = View.of(1, *self.addresses)
            self.install(view, self.addresses, digest=dict.fromkeys(self.addresses, Marks(0, 0, 0)))

    def __getitem__(self, name: str) -> Endpoint:
        return self.members[NAMES[name]]

    # Inputs

    def step(self, member: Address, act: Callable[[Endpoint], Ready]) -> Ready:
        """Give a member one input and put what it answers on the network."""
        machine = self.members[member]
        ready = act(machine)
        machine.check_invariants()
        self.deliveries[member] += ready.deliveries
        self.events[member] += ready.events
        self.steps[member] += ready.trace
        for transmit in ready.transmits:
            assert len(transmit.datagram) <= self.config.max_frame_bytes, "datagrams fit the path"
            said = decode(transmit.datagram)
            self.sent += (Sent(self.now_ns, member, transmit.to, frame) for frame in said.frames)
            for to in self.addresses if transmit.to is None else (transmit.to,):
                if to != member and to in self.members:
                    entry = (self.now_ns + self.delay_ns, next(self._order), to, transmit.datagram)
                    heapq.heappush(self._flying, entry)
        return ready

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
        """Install a view at ``members`` (all of it, unless given); ``places``: who is kept, and who is back."""
        for member in members or view.members:
            self.step(member, lambda m: m.install(view, self.now_ns, digest, **places))

    def crash(self, address: Address) -> Endpoint:
        """Let a member end without a word; what is on its way to it is lost."""
        self.addresses.remove(address)
        return self.members.pop(address)

    def begin(self, address: Address, *, resume: Mapping[Address, int] | None = None) -> Endpoint:
        """Begin another life, which has no view yet; with ``resume`` it is that of a durable member."""
        member = Endpoint(address, GROUP, self.config, Random(f"{address}"), tracing=True)
        if resume is not None:
            member.resume(resume)
        self.addresses.append(address)
        self.members[address] = member
        for table in (self.deliveries, self.events, self.steps):
            table[address] = []
        return member

    # The network

    def lose(
        self, *kinds: type[Frame], by: str | None = None, to: str | None = None, times: int = -1
    ) -> Rule:
        """Lose the frames of these kinds (any, if none is named) by and to these members, at most ``times``."""
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

    def lose_seqnos(self, *seqnos: int, to: str | None = None, repairs: bool = False) -> Rule:
        """Lose the data frames that hold any of ``seqnos``; repairs too, if asked to."""

        def rule(_sender: Address, receiver: Address, frame: Frame) -> bool:
            if not isinstance(frame, Data) or (frame.repair and not repairs):
                return False
            held = any(frame.run.first <= seqno <= frame.run.last for seqno in seqnos)
            return held and (to is None or receiver == NAMES[to])

        return self.rule(rule)

    def rule(self, rule: Rule) -> Rule:
        """Add a rule; ``group.rules`` is the list of them."""
        self.rules.append(rule)
        return rule

    # Time

    def _next_ns(self) -> int | None:
        times_ns = [entry[0] for entry in self._flying[:1]]
        deadlines_ns = (member.deadline_ns for member in self.members.values())
        times_ns += [deadline_ns for deadline_ns in deadlines_ns if deadline_ns is not None]
        return min(times_ns, default=None)

    def run_until(self, at_ns: int) -> None:
        """Let time go on up to ``at_ns``."""
        spins = 0
        while (next_ns := self._next_ns()) is not None and next_ns <= at_ns:
            spins = spins + 1 if next_ns <= self.now_ns else 0
            assert spins < 10_000, "time stands still"
            self.now_ns = max(self.now_ns, next_ns)
            self._land()
            for address, member in self.members.items():
                if member.deadline_ns is not None and member.deadline_ns <= self.now_ns:
                    self.step(address, lambda m: m.tick(self.now_ns))
        self.now_ns = max(self.now_ns, at_ns)

    def run_for(self, span_ns: int) -> None:
        """Let time go on for ``span_ns``."""
        self.run_until(self.now_ns + span_ns)

    def _land(self) -> None:
        while self._flying and self._flying[0][0] <= self.now_ns:
            _, _, to, datagram = heapq.heappop(self._flying)
            if to not in self.members:
                continue
            said = decode(datagram)
            kept = [
                frame
                for frame in said.frames
                if not any(rule(said.sender, to, frame) for rule in self.rules)
            ]
            if kept:
                datagram = encode(said.group, said.sender, kept)
                self.step(to, lambda m, d=datagram: m.receive(d, self.now_ns))  # type: ignore[misc]

    def settle(self, within_ns: int = 60 * SECOND) -> None:
        """Let time go on until nothing is under way and no timer is armed; fail if that takes too long."""
        end_ns = self.now_ns + within_ns
        while (next_ns := self._next_ns()) is not None:
            assert next_ns <= end_ns, (
                f"not settled: {[(str(a), m.armed_timers()) for a, m in self.members.items()]}"
            )
            self.run_until(next_ns)

    # What came out

    def messages(self, at: str, origin: str) -> list[bytes]:
        """What a member delivered of a stream, having checked that it is gapless and in order."""
        return [message for _, message in self.numbered(at, origin)]

    def numbered(self, at: str, origin: str) -> list[tuple[int, bytes]]:
        """What a member delivered of a stream, each message with the last seqno it took."""
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

    def told(self, name: str, kind: type[E]) -> list[E]:
        """The events of one kind that a member told."""
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
    """What a member delivered of one kind, in the order in which it came."""
    return [
        message
        for found in group.deliveries[NAMES[at]]
        if found.kind == kind
        for message in found.messages()
    ]


def lines_of(act: Callable[[], object]) -> int:
    """The lines of Python that ``act`` runs through: its cost, the same on every machine."""
    lines = 0

    def count(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines
