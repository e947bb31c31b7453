"""The cost of one message in the state machine: send, receive and acknowledge, without a transport.

A group of members exchanges single messages in virtual time, once on the short path and once on the
general path (``gapless.protocol.header_prediction``). The two take turns in each round, so that a
slow moment of the machine affects both alike, and a figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import gc
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from statistics import median
from time import thread_time_ns

from gapless.config import Config
from gapless.identity import Address
from gapless.payloads import Payloads
from gapless.protocol.member import Member
from gapless.protocol.ready import ANYONE, Ready, Transmit

GROUP = 7
GAP_NS = 30_000
"""Virtual time between two messages."""
STEP_NS = 5_000_000
STEADY_AFTER_NS = 5_000_000_000
UNREAD_LIMIT = 16_384
"""The limit over a transport."""


class Members:
    """A group of members; the first one sends, and every message is consumed at once."""

    def __init__(self, count: int, *, short: bool) -> None:
        config = Config.make(unread_limit=UNREAD_LIMIT, checksum="all")
        self.members = [
            Member(Address(node, 1), GROUP, config, Random(node), locator=b"%d" % node)
            for node in range(1, count + 1)
        ]
        self.now_ns = 0
        self._join()
        if not short:
            for member in self.members:
                member.endpoint.prediction.takes_general = lambda _branch: True
        self.spent_ns: dict[str, int] = defaultdict(int)
        self.times: dict[str, int] = defaultdict(int)

    def _join(self) -> None:
        for member in self.members:
            self._pass_on(member, member.join(0))
        while self.now_ns < STEADY_AFTER_NS:
            self.now_ns += STEP_NS
            for member in self.members:
                self._tick(member)
        assert all(len(member.view or ()) == len(self.members) for member in self.members)

    def _tick(self, member: Member) -> None:
        while member.deadline_ns is not None and member.deadline_ns <= self.now_ns:
            self._pass_on(member, member.tick(self.now_ns))

    def _pass_on(self, sender: Member, ready: Ready) -> None:
        for transmit in ready.transmits:
            for member in self._targets(sender, transmit):
                self._pass_on(member, member.receive(transmit.datagram, self.now_ns))

    def _targets(self, sender: Member, transmit: Transmit) -> list[Member]:
        to = transmit.to
        return [
            member
            for member in self.members
            if member is not sender and (to is None or to in {ANYONE, member.me})
        ]

    def exchange(self, messages: Payloads, *, to_one: bool) -> None:
        """Send, receive everywhere, and handle the acks; add the times."""
        sender, *others = self.members
        self.now_ns += GAP_NS
        to = others[0].me if to_one else None
        start_ns = thread_time_ns()
        sent = sender.send(messages, self.now_ns, to=to, wait=False)
        self._note("send", start_ns)
        acks: list[bytes] = []
        for transmit in sent.transmits:
            for member in self._targets(sender, transmit):
                start_ns = thread_time_ns()
                (ready,) = member.receive_all([transmit.datagram], self.now_ns)
                self._note("receive", start_ns)
                answers = list(ready.transmits)
                if (member.deadline_ns or 0) <= self.now_ns:
                    answers += member.tick(self.now_ns).transmits
                acks += [answer.datagram for answer in answers if answer.to == sender.me]
        for ack in acks:
            start_ns = thread_time_ns()
            sender.receive_all([ack], self.now_ns)
            self._note("ack", start_ns)
        for member in self.members:
            member.consumed(len(messages), self.now_ns)
        self._tick(sender)

    def _note(self, what: str, start_ns: int) -> None:
        self.spent_ns[what] += thread_time_ns() - start_ns
        self.times[what] += 1

    def take_figures(self) -> dict[str, float]:
        """Return the nanoseconds of each kind of input since the last call."""
        found = {what: spent_ns / self.times[what] for what, spent_ns in self.spent_ns.items()}
        self.spent_ns.clear()
        self.times.clear()
        return found


def measure(
    receivers: int, batch: int, size_bytes: int, rounds: int, *, to_one: bool
) -> dict[str, dict[str, float]]:
    """Return the median cost of each input, by path."""
    messages = Payloads.of([bytes(size_bytes)] * batch)
    groups = {
        "short": Members(1 + receivers, short=True),
        "general": Members(1 + receivers, short=False),
    }
    figures: dict[str, dict[str, list[float]]] = {path: defaultdict(list) for path in groups}
    for at in range(rounds + 1):
        for path, group in groups.items():
            for _ in range(200):
                group.exchange(messages, to_one=to_one)
            for what, cost_ns in group.take_figures().items():
                if at:  # the first round warms up
                    figures[path][what].append(cost_ns)
        gc.collect()
    return {
        path: {what: median(costs) for what, costs in found.items()}
        for path, found in figures.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table of both paths."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="rounds to take the median of (20)")
    rounds = parser.parse_args(arguments).rounds
    print(f"{'to':>10}{'batch':>7}{'input':>10}{'general ns':>12}{'short ns':>10}{'ratio':>7}")
    for receivers, batch, to_one in ((3, 1, False), (1, 1, True), (3, 10, False), (3, 500, False)):
        found = measure(receivers, batch, 100, rounds, to_one=to_one)
        for what, general_ns in found["general"].items():
            short_ns = found["short"][what]
            target = "one" if to_one else f"group of {receivers}"
            print(
                f"{target:>10}{batch:>7}{what:>10}{general_ns:>12.0f}{short_ns:>10.0f}"
                f"{short_ns / general_ns:>7.2f}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
