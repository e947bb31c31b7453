"""Endpoints with state transfer and an application each, in virtual time, on a bad network.

``group = StateTransferGroup("ab"); group.send("a", b"x"); group.enter("c")``: c joins and asks for
the state. The application keeps a log of all messages; its state is a padding, then the log. The
test installs the views, at the new member first.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from gapless.config import Config
from gapless.identity import Address, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.events import Event, StateReceived, StateWanted
from gapless.protocol.ready import GROUP, UNICAST, UNRELIABLE, Delivery, Ready
from gapless.protocol.state_transfer.transfer import StateTransfer
from gapless.wire.frames import Datagram, Frame, StateAsk, StateChunk, StateOffer, StatePull
from tests.support.virtual_group import MS, SECOND, Tamper, VirtualGroup

GROUP_ID = 78
STATE_FRAMES = (StateAsk, StateOffer, StatePull, StateChunk)


def address(name: str) -> Address:
    """The address of a member by its name."""
    return Address(ord(name) - ord("a") + 1, 1)


def name_of(member: Address) -> str:
    """The name of a member by its address."""
    return chr(member.node - 1 + ord("a"))


class LogApplication:
    """An application: a log of its messages, in the order of delivery."""

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
        """Resume from a state."""
        assert not self.deliveries, "nothing is delivered before the state"
        self.received.append(event)
        log = event.state.removeprefix(self.padding)
        self.log = log.split(b"\0") if log else []

    def deliver(self, delivery: Delivery) -> None:
        """Append a delivery to the log."""
        self.deliveries.append(delivery)
        log = {UNICAST: self.direct, UNRELIABLE: self.unreliable}.get(delivery.kind, self.log)
        log += delivery.messages()
        self.got += delivery.message_count

    def of(self, origin: str) -> list[bytes]:
        """The messages of one origin, in order."""
        return [message for message in self.log if message.startswith(origin.encode())]


class StateTransferGroup(VirtualGroup[str, Endpoint]):
    """Endpoints with state transfer, each with an application, on a network that may be bad."""

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
        super().__init__(self._targets, self._delays_ns)
        knobs.setdefault("conn_expiry_timeout", "0s")
        self.config = Config.make(**knobs)
        self.rng = Random(seed)
        self.loss, self.twice, self.delay_ns = loss, twice, delay_ns
        self.padding = padding
        self.apps: dict[str, LogApplication] = {}
        self.view_names = ""
        self.number = 0
        self.answer_ns = 0
        self.observers.append(self._serve)
        for name in names:
            self.begin(name)
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

    def begin(self, name: str, *, state: bool = False, **knobs: Any) -> None:
        """Start a process; with ``state`` it asks for the application's state when it joins."""
        config = self.config.replace(**knobs) if knobs else self.config
        rng = Random(f"{name} {self.rng.random()}")
        transfer = StateTransfer(address(name), config, rng)
        self.apps[name] = LogApplication(self.padding)
        endpoint = Endpoint(address(name), GROUP_ID, config, rng, state_transfer=transfer)
        if state:
            self.add(name, endpoint).request_state()
        else:
            self.add(name, endpoint)

    def enter(self, names: str, *, lag_ns: int = 5 * MS, **knobs: Any) -> None:
        """Let new members join with state; the others learn of it up to ``lag_ns`` later."""
        for name in names:
            self.begin(name, state=True, **knobs)
        self.view(self.view_names + names, lag_ns=lag_ns)

    def view(self, names: str, *, lag_ns: int = 0) -> None:
        """Install a view at its members, new members first."""
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
        """End a process without a word."""
        del self.members[name]

    def leave_out(self, name: str, *, lag_ns: int = 0) -> None:
        """Install a view without ``name``."""
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

    def _serve(self, name: str, ready: Ready) -> None:
        """Hand events and deliveries to the application, and its answers to the member."""
        member, app = self.members[name], self.apps[name]
        app.events += ready.events
        for event in ready.events:
            if isinstance(event, StateReceived):
                app.take_over(event)
        for delivery in ready.deliveries:
            app.deliver(delivery)
        for event in ready.events:
            assert not isinstance(event, StateWanted) or not self.transfer(name).is_holding, (
                "a member that waits for a state cannot provide one"
            )
            if isinstance(event, StateWanted) and app.answers:
                self._answer(name, event, app.state() if app.able else None)
        if ready.deliveries and app.consumes and member.config.unread_limit:
            messages = sum(delivery.message_count for delivery in ready.deliveries)
            self.at(self.now_ns + 1, lambda: self._consume(name, messages))

    def _consume(self, name: str, messages: int) -> None:
        if name in self.members:
            self.step(name, lambda m: m.consumed(messages, self.now_ns))

    def _answer(self, name: str, event: StateWanted, state: bytes | None) -> None:
        def answer() -> None:
            if name in self.members:
                self.step(name, lambda m: m.provide(event.transfer, state, self.now_ns))

        self.at(self.now_ns + self.answer_ns, answer)

    # The network

    def _targets(self, source: str, to: Address | None) -> str:
        return (self.view_names if to is None else name_of(to)).replace(source, "")

    def _delays_ns(self, _source: str, _target: str, _datagram: Datagram) -> Iterator[int]:
        for _ in range(2 if self.rng.random() < self.twice else 1):
            if self.rng.random() >= self.loss:
                yield self.rng.randint(*self.delay_ns)

    def lose(self, *kinds: type[Frame], by: str = "", to: str = "") -> Tamper[str]:
        """Lose frames of these kinds (default: all) from now on."""

        def tamper(source: str, target: str, frame: Frame) -> Frame | None:
            is_of_kind = not kinds or isinstance(frame, kinds)
            return None if is_of_kind and by in {"", source} and to in {"", target} else frame

        self.tampers.append(tamper)
        return tamper

    def frames(self, kind: type[Any], by: str = "", to: str = "") -> list[Any]:
        """The frames of a kind that were sent."""
        return [
            frame
            for source, target, frame in self.crossings
            if isinstance(frame, kind) and by in {"", source} and to in {"", target}
        ]

    # Time

    def has_state(self, *names: str) -> bool:
        """Whether each of ``names`` has received its state."""
        return all(self.apps[name].received for name in names)

    def until_state(self, *names: str, within_ns: int = 60 * SECOND) -> None:
        """Run until each of ``names`` has its state."""
        assert self.run_for(within_ns, lambda: self.has_state(*names)), (
            f"{names} wait for the state"
        )

    # Results

    def same(self, *names: str, origins: str) -> None:
        """Check that ``names`` have the same messages of each origin, in order, none twice."""
        first = self.apps[names[0]]
        for origin in origins:
            messages = first.of(origin)
            assert len(set(messages)) == len(messages), f"{names[0]} has messages of {origin} twice"
            for name in names[1:]:
                assert self.apps[name].of(origin) == messages, (
                    f"{name} and {names[0]} differ about {origin}"
                )


def kinds(deliveries: list[Delivery], kind: str = GROUP) -> list[Delivery]:
    """The deliveries of one kind."""
    return [delivery for delivery in deliveries if delivery.kind == kind]
