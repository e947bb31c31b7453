"""Members with state transfer and an application each, in virtual time, on a network that may be bad.

``company = Company("ab"); company.send("a", b"x"); company.enter("c")``: c joins and wants the
state. The application keeps a log of all messages; its state is the log behind a padding. Views are
told by the test, the new member first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from gapless.config import Config
from gapless.identity import Address, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.events import Event, StateReceived, StateWanted
from gapless.protocol.ready import GROUP, UNICAST, UNRELIABLE, Delivery, Ready
from gapless.protocol.state_transfer.transfer import StateTransfer
from gapless.wire.codec import decode, encode
from gapless.wire.frames import Datagram, Frame, StateAsk, StateChunk, StateOffer, StatePull

MS = 1_000_000
SECOND = 1_000 * MS
GROUP_ID = 78
STATE_FRAMES = (StateAsk, StateOffer, StatePull, StateChunk)

Tamper = Callable[[str, str, Frame], Frame | None]
"""What becomes of a frame on its way from one to another; None loses it."""


def address(name: str) -> Address:
    """The address of a member by its name."""
    return Address(ord(name) - ord("a") + 1, 1)


def name_of(member: Address) -> str:
    """The name of a member by its address."""
    return chr(member.node - 1 + ord("a"))


class App:
    """An application: a log of what it got, by origin, in order."""

    def __init__(self, padding: bytes) -> None:
        self.padding = padding
        self.log: list[bytes] = []
        self.direct: list[bytes] = []
        self.unreliable: list[bytes] = []
        self.deliveries: list[Delivery] = []
        self.events: list[Event] = []
        self.received: list[StateReceived] = []
        self.got = 0
        self.able = True
        self.answers = True
        self.consumes = True

    def state(self) -> bytes:
        """The state as bytes."""
        return self.padding + b"\0".join(self.log)

    def take_over(self, event: StateReceived) -> None:
        """Begin with a state."""
        assert not self.deliveries, "nothing is delivered before the state"
        self.received.append(event)
        log = event.state.removeprefix(self.padding)
        self.log = log.split(b"\0") if log else []

    def deliver(self, delivery: Delivery) -> None:
        """Take a delivery in."""
        self.deliveries.append(delivery)
        book = {UNICAST: self.direct, UNRELIABLE: self.unreliable}.get(delivery.kind, self.log)
        book += delivery.messages()
        self.got += delivery.message_count

    def of(self, origin: str) -> list[bytes]:
        """The messages of one origin, in order."""
        return [message for message in self.log if message.startswith(origin.encode())]


class Company:
    """Members, their applications, the network and the time."""

    def __init__(
        self,
        names: str,
        *,
        seed: int = 0,
        loss: float = 0.0,
        twice: float = 0.0,
        delay_ns: tuple[int, int] = (MS, MS),
        padding: bytes = b"",
        **knobs: Any,
    ) -> None:
        knobs.setdefault("conn_expiry_timeout", "0s")
        self.config = Config.make(**knobs)
        self.rng = Random(seed)
        self.loss, self.twice, self.delay_ns = loss, twice, delay_ns
        self.padding = padding
        self.now_ns = SECOND
        self.members: dict[str, Endpoint] = {}
        self.apps: dict[str, App] = {}
        self.view_names = ""
        self.number = 0
        self.sent: list[tuple[str, str, Frame]] = []
        self.tampers: list[Tamper] = []
        self.answer_ns = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        for name in names:
            self.add(name)
        if names:
            self.view(names)
        self.run_for(SECOND)

    def __getitem__(self, name: str) -> Endpoint:
        return self.members[name]

    def transfer(self, name: str) -> StateTransfer:
        """The state transfer of a member."""
        transfer = self.members[name].state_transfer
        assert transfer is not None
        return transfer

    # What happens

    def add(self, name: str, *, state: bool = False, **knobs: Any) -> None:
        """Begin a life."""
        config = self.config.replace(**knobs) if knobs else self.config
        rng = Random(f"{name} {self.rng.random()}")
        transfer = StateTransfer(address(name), config, rng)
        self.members[name] = Endpoint(address(name), GROUP_ID, config, rng, state_transfer=transfer)
        self.apps[name] = App(self.padding)
        if state:
            self.members[name].request_state()

    def enter(self, names: str, *, lag_ns: int = 5 * MS, **knobs: Any) -> None:
        """Let new members join that want the state; the others learn of it up to ``lag_ns`` later."""
        for name in names:
            self.add(name, state=True, **knobs)
        self.view(self.view_names + names, lag_ns=lag_ns)

    def view(self, names: str, *, lag_ns: int = 0) -> None:
        """Tell a view to its members, those that are new first."""
        self.number += 1
        view = View.of(self.number, *map(address, names))
        for name in names:
            wait_ns = self.rng.randrange(lag_ns) if lag_ns and name in self.view_names else 0
            self.at(self.now_ns + wait_ns, lambda name=name: self._install(name, view))  # type: ignore[misc]
        self.view_names = names
        self.run_for(0)

    def _install(self, name: str, view: View) -> None:
        member = self.members.get(name)
        if member is not None and (member.view is None or member.view.id < view.id):
            self.step(name, lambda m: m.install(view, self.now_ns))

    def crash(self, name: str) -> None:
        """End a life without a word."""
        del self.members[name]

    def leave_out(self, name: str, *, lag_ns: int = 0) -> None:
        """Tell a view without ``name``."""
        self.view(self.view_names.replace(name, ""), lag_ns=lag_ns)

    def send(self, name: str, *messages: bytes, **how: Any) -> Ready:
        """Send messages."""
        return self.step(name, lambda m: m.send(messages, self.now_ns, **how))

    def receive(self, name: str, sender: str, *frames: Frame) -> None:
        """Hand a member a datagram, past the network."""
        self.step(
            name,
            lambda m: m.receive_decoded(Datagram(GROUP_ID, address(sender), frames), self.now_ns),
        )

    def step(self, name: str, act: Callable[[Endpoint], Ready]) -> Ready:
        """Give a member one input and work through what it answers."""
        member, app = self.members[name], self.apps[name]
        ready = act(member)
        member.check_invariants()
        for transmit in ready.transmits:
            assert len(transmit.datagram) <= member.config.max_frame_bytes, "datagrams fit the path"
            targets = self.view_names if transmit.to is None else name_of(transmit.to)
            for to in targets.replace(name, ""):
                self._fly(name, to, transmit.datagram)
        app.events += ready.events
        for event in ready.events:
            if isinstance(event, StateReceived):
                app.take_over(event)
        for delivery in ready.deliveries:
            app.deliver(delivery)
        for event in ready.events:
            assert not isinstance(event, StateWanted) or not self.transfer(name).is_holding, (
                "who waits has nothing to give"
            )
            if isinstance(event, StateWanted) and app.answers:
                self._answer(name, event, app.state() if app.able else None)
        if ready.deliveries and app.consumes and member.config.unread_limit:
            messages = sum(delivery.message_count for delivery in ready.deliveries)
            self.at(self.now_ns + 1, lambda: self._consume(name, messages))
        return ready

    def _consume(self, name: str, messages: int) -> None:
        if name in self.members:
            self.step(name, lambda m: m.consumed(messages, self.now_ns))

    def _answer(self, name: str, event: StateWanted, state: bytes | None) -> None:
        def answer() -> None:
            if name in self.members:
                self.step(name, lambda m: m.provide(event.transfer, state, self.now_ns))

        self.at(self.now_ns + self.answer_ns, answer)

    # The network

    def _fly(self, source: str, target: str, datagram: bytes) -> None:
        said = decode(datagram)
        self.sent += ((source, target, frame) for frame in said.frames)
        for _ in range(2 if self.rng.random() < self.twice else 1):
            if self.rng.random() < self.loss:
                continue
            low_ns, high_ns = self.delay_ns
            self.at(
                self.now_ns + self.rng.randint(low_ns, high_ns),
                lambda: self._land(source, target, said),
            )

    def _land(self, source: str, target: str, said: Datagram) -> None:
        if target not in self.members:
            return
        frames: list[Frame] = []
        for frame in said.frames:
            left: Frame | None = frame
            for tamper in self.tampers:
                left = left and tamper(source, target, left)
            frames += () if left is None else (left,)
        if frames:
            datagram = encode(said.group, said.sender, frames, said.addressee)
            self.step(target, lambda m: m.receive(datagram, self.now_ns))

    def lose(self, *kinds: type[Frame], by: str = "", to: str = "") -> Tamper:
        """Lose frames of these kinds (all, if none is named) from now on."""

        def tamper(source: str, target: str, frame: Frame) -> Frame | None:
            hit = (
                (not kinds or isinstance(frame, kinds))
                and by in {"", source}
                and to in {"", target}
            )
            return None if hit else frame

        self.tampers.append(tamper)
        return tamper

    def frames(self, kind: type[Any], by: str = "", to: str = "") -> list[Any]:
        """The frames of a kind that were sent."""
        return [
            frame
            for source, target, frame in self.sent
            if isinstance(frame, kind) and by in {"", source} and to in {"", target}
        ]

    # Time

    def at(self, at_ns: int, act: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._heap, (at_ns, next(self._order), act))

    def run_for(self, span_ns: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time go on; return whether ``until`` came true."""
        end_ns = self.now_ns + span_ns
        spins = 0
        while not until():
            due = [m.deadline_ns for m in self.members.values() if m.deadline_ns is not None]
            next_ns = min([*due, *(entry[0] for entry in self._heap[:1])], default=end_ns + 1)
            if next_ns > end_ns:
                self.now_ns = end_ns
                return False
            spins = spins + 1 if next_ns <= self.now_ns else 0
            assert spins < 20_000, "time stands still"
            self.now_ns = max(self.now_ns, next_ns)
            while self._heap and self._heap[0][0] <= self.now_ns:
                heapq.heappop(self._heap)[2]()
            for name, member in list(self.members.items()):
                if member.deadline_ns is not None and member.deadline_ns <= self.now_ns:
                    self.step(name, lambda m: m.tick(self.now_ns))
        return True

    def has_state(self, *names: str) -> bool:
        """Whether each of ``names`` has got its state."""
        return all(self.apps[name].received for name in names)

    def until_state(self, *names: str, within_ns: int = 60 * SECOND) -> None:
        """Let time go on until each of ``names`` has its state."""
        assert self.run_for(within_ns, lambda: self.has_state(*names)), (
            f"{names} wait for the state"
        )

    # What came out

    def same(self, *names: str, origins: str) -> None:
        """Check that each of ``names`` has the same messages of each origin, in order, none twice."""
        first = self.apps[names[0]]
        for origin in origins:
            told = first.of(origin)
            assert len(set(told)) == len(told), f"{names[0]} has messages of {origin} twice"
            for name in names[1:]:
                assert self.apps[name].of(origin) == told, (
                    f"{name} and {names[0]} differ about {origin}"
                )


def kinds(deliveries: list[Delivery], kind: str = GROUP) -> list[Delivery]:
    """The deliveries of one kind."""
    return [delivery for delivery in deliveries if delivery.kind == kind]
