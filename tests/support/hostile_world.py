"""A group under fire: real members in virtual time, and forged datagrams between their own.

Each step gives one member an input: a forged datagram, one of the group's own, a tick, or a call
of its application. No input of the network or the clock may raise, and the member that was hit
must keep its invariants.

By hand, a million steps: ``PYTHONPATH=src:. python -m tests.support.hostile_world --steps
1000000``. The last line names the seed of a failure; ``--seed`` repeats it alone.
"""

from __future__ import annotations

import sys
import traceback
from argparse import ArgumentParser
from collections import Counter, deque
from random import Random
from typing import TYPE_CHECKING

from gapless.config import Config
from gapless.delivery_mode import DeliveryMode
from gapless.errors import LocalProtocolError
from gapless.identity import Address, group_id
from gapless.profiles import ReleasePolicy
from gapless.protocol.events import Expelled, Left, StateWanted
from gapless.protocol.member import Member
from gapless.protocol.ready import ANYONE
from tests.support.hostile_frames import FrameSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.protocol.ready import Ready

GROUP_PROFILES = ("nakack4", "nakack", "ordered", "classic")
UNICAST_PROFILES = ("unicast3", "unicast", "unicast2")
STEPS_PER_WORLD = 400
_GROUP = group_id("under fire")
_MS = 1_000_000
_MAX_QUEUED = 300
_JUMPS_NS = (0, 10_000, _MS, 5 * _MS, 30 * _MS, 200 * _MS, 900 * _MS)


class HostileWorld:
    """Three members with the settings that ``seed`` draws, and everything forged for them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(f"hostile {seed}")
        self.now_ns = 1_000 * _MS
        self.profile = GROUP_PROFILES[seed % len(GROUP_PROFILES)]
        self.config = Config.make(
            profile=self.profile,
            unicast=rng.choice(UNICAST_PROFILES),
            capacity=rng.choice((4, 64, 1024)),
            unread_limit=rng.choice((0, 0, 3)),
            found_after="100ms",
            join_interval="50ms",
            leave_timeout="2s",
            max_frame_bytes=rng.choice((1400, 1400, 60_000)),
            early_bytes=Random(f"early {seed}").choice(("64KiB", "16MiB")),
        )
        self.phases: Counter[tuple[str, str]] = Counter()
        self.dropped: Counter[str] = Counter()
        self.steps = 0
        self.members: dict[int, Member] = {}
        self._incarnations: Counter[int] = Counter()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._inputs: list[bytes] = []
        for node in (1, 2, 3):
            self._start(node)
        self._source = FrameSource(rng, self.members)

    def _start(self, node: int) -> None:
        self._incarnations[node] += 1
        durable = self.config.group_profile.release is ReleasePolicy.ACKS and node == 3
        member = self.members[node] = Member(
            Address(node, self._incarnations[node]),
            _GROUP,
            self.config,
            Random(self.rng.random()),
            name="durable" if durable else "",
            locator=b"at %d" % node,
        )
        self._handle(node, member.join(self.now_ns, state=self.rng.random() < 0.4))

    def _handle(self, node: int, ready: Ready) -> None:
        """Put the frames of a member on the network, and answer its events."""
        member = self.members[node]
        for to, data in ready.transmits:
            for other in self.members:
                if other != node and (to is None or to == ANYONE or to.node == other):
                    self._queue.append((other, data))
        while len(self._queue) > _MAX_QUEUED:
            self._queue.popleft()
        for event in ready.events:
            if isinstance(event, StateWanted):
                state = self.rng.choice((None, b"", b"state" * 2000))
                self._handle(node, member.provide(event.transfer, state, self.now_ns))
            elif isinstance(event, (Expelled, Left)) and self.members[node] is member:
                self._start(node)

    def run(self, steps: int) -> None:
        """Make ``steps`` inputs."""
        for _ in range(steps):
            self.steps += 1
            self._step()
        for member in self.members.values():
            self.dropped.update(
                {name: n for name, n in member.counters.items() if name.startswith("dropped.")}
            )

    def _step(self) -> None:
        rng = self.rng
        node = rng.choice((1, 2, 3))
        member = self.members[node]
        draw = rng.random()
        if draw < 0.55:
            self.phases[self.profile, self._phase(member)] += 1
            self._receive(node, self._source.datagram(_GROUP, member))
        elif draw < 0.85 and self._queue:
            for _ in range(min(len(self._queue), rng.choice((1, 4, 20)))):
                target, data = self._queue.popleft()
                self._handle(target, self.members[target].receive(data, self.now_ns))
        elif draw < 0.95:
            self._tick(node)
        else:
            self._application(node)
        self.members[node].check_invariants()

    @staticmethod
    def _phase(member: Member) -> str:
        """Return the phase of a member; a member that waits for its state is in one of its own."""
        if member.phase == "member" and member.state_transfer.is_holding:
            return "awaiting state"
        return member.phase

    def _receive(self, node: int, data: bytes) -> None:
        member = self.members[node]
        if self.rng.random() < 0.7:
            self._handle(node, member.receive(data, self.now_ns))
            return
        own = [data for target, data in self._queue if target == node][:3]
        for ready in member.receive_all([*own, data, data], self.now_ns):
            self._handle(node, ready)
            if self.members[node] is not member:
                return

    def _tick(self, node: int) -> None:
        """Let time pass, and let every member do what is due."""
        self.now_ns += self.rng.choice(_JUMPS_NS)
        for other in (node, *self.members):
            member = self.members[other]
            if member.deadline_ns is not None and member.deadline_ns <= self.now_ns:
                self._handle(other, member.tick(self.now_ns))

    def _application(self, node: int) -> None:
        """Make one call of the application; a refusal of the call is an answer, too."""
        rng, member = self.rng, self.members[node]
        peers = [other.me for other in self.members.values()]
        calls: tuple[Callable[[], Ready], ...] = (
            lambda: member.send(
                [b"m" * rng.choice((1, 100, 5000))] * rng.choice((1, 1, 20)),
                self.now_ns,
                to=rng.choice((None, None, *peers)),
                mode=rng.choice(list(DeliveryMode)),
                wait=rng.random() < 0.8,
                timeout_ns=rng.choice((None, 50 * _MS)),
            ),
            lambda: member.consumed(rng.choice((1, 5)), self.now_ns),
            lambda: member.cancel(rng.randrange(1, 20), self.now_ns),
            lambda: member.close_connection(rng.choice(peers), self.now_ns),
            lambda: member.set_xmit_interval(rng.choice((0, 500 * _MS)), self.now_ns),
            lambda: member.expel(rng.choice(peers), self.now_ns),
            lambda: member.leave(self.now_ns),
        )
        weights = (10, 5, 1, 1, 1, 1, 1)
        call = rng.choices(calls, weights)[0]
        try:
            ready = call()
        except LocalProtocolError:
            return
        self._handle(node, ready)


def main() -> int:
    """Run worlds of seeds 0, 1, 2 … until ``--steps`` inputs are made; print what was met."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this seed alone, and show its failure")
    options = parser.parse_args()
    if options.seed is not None:
        HostileWorld(options.seed).run(STEPS_PER_WORLD)
        return 0
    phases: Counter[tuple[str, str]] = Counter()
    failures: dict[str, list[int]] = {}
    steps, seed = 0, options.first
    while steps < options.steps:
        world = HostileWorld(seed)
        try:
            world.run(STEPS_PER_WORLD)
        except Exception as error:  # noqa: BLE001 - whatever is raised is a finding
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{last.filename.rpartition('gapless/')[2]}:{last.lineno}"
            failures.setdefault(f"{where} {type(error).__name__}: {error}"[:150], []).append(seed)
        phases += world.phases
        steps += world.steps
        seed += 1
    for (profile, phase), count in sorted(phases.items()):
        print(f"{profile:8} {phase:16} {count:8} forged datagrams")
    for failure, seeds in sorted(failures.items(), key=lambda item: -len(item[1])):
        print(f"FAILED {len(seeds):5} seeds, first {seeds[0]}: {failure}")
    print(f"{steps} steps, seeds {options.first} to {seed - 1}, {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
