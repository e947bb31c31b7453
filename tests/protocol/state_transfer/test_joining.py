"""State transfer of members that make their own views: joins, crashes, expulsions, merges."""

from collections import defaultdict
from random import Random
from typing import Any

import pytest

from gapless.protocol.events import StateReceived, StateWanted
from gapless.protocol.ready import Ready
from gapless.wire.frames import Frame, StateChunk, StateOffer
from tests.support.virtual_membership import MembershipGroup


class Office(MembershipGroup):
    """Members whose application keeps a log of all messages; the log is its state."""

    def __init__(self, *args: Any, padding: bytes = b"", **knobs: Any) -> None:
        super().__init__(*args, **knobs)
        self.padding = padding
        self.logs: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        self.received: dict[str, list[StateReceived]] = defaultdict(list)
        self.serial: dict[str, int] = defaultdict(int)
        self._incarnations: dict[str, int] = {}
        self.observers.insert(0, self._keep_log)
        self.observers.append(self._provide_state)

    def _keep_log(self, name: str, ready: Ready) -> None:
        """Log deliveries; a new incarnation begins with an empty log, or with a received state."""
        if self._incarnations.get(name) != self.hosts[name].incarnation:
            self._incarnations[name] = self.hosts[name].incarnation
            self.logs[name] = []
        for event in ready.events:
            if isinstance(event, StateReceived):
                assert not self.logs[name], "nothing is delivered before the state"
                self.received[name].append(event)
                lines = event.state.removeprefix(self.padding).split(b"\0") if event.state else []
                self.logs[name] = [(chr(line[0]), line) for line in lines if line]
        for delivery in ready.deliveries:
            self.logs[name] += ((chr(line[0]), line) for line in delivery.messages())

    def _provide_state(self, name: str, ready: Ready) -> None:
        for event in ready.events:
            if isinstance(event, StateWanted) and self.hosts[name].member is not None:
                state = self.padding + b"\0".join(line for _, line in self.logs[name])
                self.process(name, self[name].provide(event.transfer, state, self.now_ns))

    def chat(self, names: str, rounds: int, pause: float = 0.01) -> None:
        """Let members send, one message each in every round."""
        for _ in range(rounds):
            for name in names:
                member = self.hosts[name].member
                if member is not None and member.phase == "member":
                    self.serial[name] += 1
                    self.send(name, b"%s%d" % (name.encode(), self.serial[name]))
            self.run(pause)

    def of(self, at: str, origin: str) -> list[bytes]:
        """The messages of ``origin`` in the log at ``at``."""
        return [line for sender, line in self.logs[at] if sender == origin]


def test_the_first_member_has_no_state_and_gives_what_it_has_to_the_next() -> None:
    world = Office(2)
    world.join("a", state=True)
    world.settle()
    assert world.received["a"] == [StateReceived(None, b"")]
    world.send("a", b"a1")
    world.join("b", state=True)
    world.settle()
    world.run(1)
    assert [event.provider for event in world.received["b"]] == [world["a"].me]
    assert world.of("b", "a") == [b"a1"]


def test_one_that_joins_while_all_are_sending_gets_everything_once() -> None:
    world = Office(4, padding=Random(1).randbytes(250_000))
    world.join("a", "b", "c")
    world.settle()
    world.chat("abc", 50)
    world.join("d", state=True)
    world.chat("abcd", 200)
    world.run(3)
    assert [event.provider for event in world.received["d"]] == [world["a"].me]
    for origin in "abcd":
        assert world.of("d", origin) == world.of("b", origin)
        assert len(world.of("d", origin)) == world.serial[origin]


@pytest.mark.parametrize("chunks", [0, 10, 200])
def test_the_provider_who_is_the_coordinator_too_dies_meanwhile(chunks: int) -> None:
    padding = Random(1).randbytes(500_000)
    world = Office(4, padding=padding)
    world.join("a", "b", "c")
    world.settle()
    world.chat("abc", 20)
    sent = 0

    def drop(source: str, target: str, frame: Frame) -> bool:
        nonlocal sent
        if source == "a" and isinstance(frame, (StateChunk, StateOffer)):
            sent += 1
            return sent > chunks
        return False

    world.drop = drop
    world.join("d", state=True)
    world.wait(lambda: sent > chunks)
    world.crash("a")
    view = world["b"].view
    assert view is not None
    second = view.members[1]
    world.chat("bcd", 100)
    world.wait(lambda: bool(world.received["d"]), 60)
    world.run(5)
    assert [event.provider for event in world.received["d"]] == [second]
    for origin in "bcd":
        assert world.of("d", origin) == world.of("b", origin)
        assert len(world.of("d", origin)) == world.serial[origin]
    assert world.of("d", "a") == world.of("b", "a")


def test_one_that_was_expelled_while_it_waited_asks_again_in_its_next_life() -> None:
    world = Office(3)
    world.join("a", "b")
    world.settle()
    world.chat("ab", 10)
    world.drop = lambda source, target, frame: isinstance(frame, StateOffer)
    world.join("c", state=True)
    world.run(2)
    assert world["c"].phase == "member"
    assert not world.received["c"]
    world.pause("c")
    world.run(15)
    world.drop = lambda source, target, frame: False
    world.resume("c")
    world.settle()
    world.chat("abc", 10)
    world.run(3)
    assert world["c"].me.incarnation == 2
    assert [event.provider for event in world.received["c"]] == [world["a"].me]
    for origin in "abc":
        assert world.of("c", origin) == world.of("a", origin)


def test_twelve_that_join_at_once_get_the_state_each() -> None:
    world = Office(14, padding=Random(1).randbytes(100_000))
    world.join("a", "b")
    world.settle()
    world.chat("ab", 10)
    newcomers = "cdefghijklmn"
    world.join(*newcomers, state=True)
    world.chat("ab", 100)
    world.settle()
    world.wait(lambda: all(world.received[name] for name in newcomers))
    world.run(2)
    for name in newcomers:
        assert world.received[name][0].provider is not None
        for origin in "ab":
            assert world.of(name, origin) == world.of("a", origin)


def test_a_merge_while_the_state_is_on_its_way_loses_nothing() -> None:
    world = Office(5, padding=Random(1).randbytes(250_000))
    world.join("a", "b", "c", "d")
    world.settle()
    world.part("abe", "cd")
    world.run(20)
    world.chat("abcd", 20)
    world.drop = lambda source, target, frame: isinstance(frame, StateOffer)
    world.join("e", state=True)
    world.chat("abcd", 100)
    world.heal()
    world.settle()
    assert not world.received["e"]
    world.drop = lambda source, target, frame: False
    world.chat("abcde", 50)
    world.wait(lambda: bool(world.received["e"]))
    world.run(5)
    assert world.received["e"][0].provider == world["a"].me
    for origin in "abcde":
        assert world.of("e", origin) == world.of("a", origin)
        assert len(set(world.of("e", origin))) == len(world.of("e", origin))
