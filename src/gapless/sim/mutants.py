"""Planted bugs: the checks are only worth what they catch.

A mutant is one small change to the source of one function of the real machine, of the kind that a tired engineer makes.
``planted`` puts it in place for the time of a ``with`` block; ``hunt`` runs seeds of the swarm until a check fails. The
table of which check killed which bug, and after how many seeds, is printed by ``gapless mutants`` and kept in
docs/testing.md.
"""

from __future__ import annotations
import __future__ as future

import importlib
import inspect
import textwrap
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import LocalProtocolError
from gapless.sim.run import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Mutant(NamedTuple):
    """One planted bug: in function ``target``, the text ``old`` becomes ``new``."""

    name: str
    bug: str
    target: str
    old: str
    new: str


class Verdict(NamedTuple):
    """What became of a mutant: which check caught it, at which seed, after how many seeds; no check if it survived."""

    mutant: Mutant
    check: str
    seed: int
    seeds: int


MUTANTS = (
    # The window
    Mutant(
        "ceiling+1",
        "a fixed window takes one message more than its capacity",
        "gapless.core.window:Fixed.ceiling",
        "low + self.capacity",
        "low + self.capacity + 1",
    ),
    Mutant(
        "ceiling-1",
        "a fixed window takes one message less than its capacity",
        "gapless.core.window:Fixed.ceiling",
        "low + self.capacity",
        "low + max(1, self.capacity - 1)",
    ),
    Mutant(
        "take over a gap",
        "delivery goes on behind a missing message",
        "gapless.core.window:Window.take",
        "start, end = self.delivered + 1, run.last\n            if run.first > start:\n                break\n",
        "start, end = max(self.delivered + 1, run.first), run.last\n",
    ),
    Mutant(
        "refusal moves high",
        "a message that was refused still counts as the highest seen",
        "gapless.core.window:Window._add_between",
        "        if first > last:\n",
        "        self.high = max(self.high, run.last)\n        if first > last:\n",
    ),
    Mutant(
        "duplicate stored",
        "a run that overlaps what is stored is stored whole",
        "gapless.core.window:Window._add_between",
        "in run.parts(self._free(first, last))",
        "in [run.part(first, last)]",
    ),
    Mutant(
        "bytes leak",
        "erased messages still count against the byte limit",
        "gapless.core.window:Window._erase",
        "            self.stored_bytes -= runs[at].size_bytes\n",
        "",
    ),
    # Acks
    Mutant(
        "purge at maximum",
        "the window is purged when the first member has acknowledged, not the last",
        "gapless.core.acks:AckTable._raise_minimum",
        "min(self._acks.values()",
        "max(self._acks.values()",
    ),
    Mutant(
        "ack goes back",
        "an old ack that arrives late lowers the entry",
        "gapless.core.acks:AckTable.ack",
        "before is None or seqno <= before",
        "before is None",
    ),
    Mutant(
        "ack of high",
        "the receiver acknowledges what it has seen, not what it has delivered",
        "gapless.core.inbound:Inbound.acknowledge",
        "Ack(self.origin, window.delivered,",
        "Ack(self.origin, window.high,",
    ),
    Mutant(
        "departed still counts",
        "the ack of a member that left is still waited for",
        "gapless.core.acks:AckTable.adjust",
        "{member: self._acks.get(member, start) for member in members}",
        "{**self._acks, **{member: self._acks.get(member, start) for member in members}}",
    ),
    Mutant(
        "self does not count",
        "the sender purges what it has not delivered itself",
        "gapless.core.outbound:Outbound.install",
        "self.acks.adjust(members, high)",
        "self.acks.adjust([member for member in members if member != self.me], high)",
    ),
    Mutant(
        "no second ack",
        "an announcement does not make the receiver repeat an ack that may have been lost",
        "gapless.core.inbound:Inbound.on_tail",
        "        self.ack_now = True\n",
        "",
    ),
    # Gaps and tails
    Mutant(
        "no grace",
        "a gap is asked for in the moment it is seen",
        "gapless.core.gaps:Gaps.notice",
        "self.due_ns = now_ns + self.grace_ns",
        "self.due_ns = now_ns",
    ),
    Mutant(
        "no rest",
        "a question is repeated at every pass",
        "gapless.core.gaps:Gaps.ask",
        "resting = [(asked.first, asked.last) for asked in still if asked.again_ns > now_ns]",
        "resting = []\n        still = []",
    ),
    Mutant(
        "asks once",
        "a question is never repeated",
        "gapless.core.gaps:Gaps.ask",
        "(asked.first, asked.last) for asked in still if asked.again_ns > now_ns",
        "(asked.first, asked.last) for asked in still",
    ),
    Mutant(
        "forgets new gaps",
        "a gap that appears while another is open is not remembered",
        "gapless.core.gaps:Gaps._plan",
        "self._remembered = highest",
        "pass",
    ),
    Mutant(
        "asks one too many",
        "a nak names a message that was not announced",
        "gapless.core.inbound:Inbound.ask",
        "known = max(self.window.high, self.announced)",
        "known = max(self.window.high, self.announced) + 1",
    ),
    Mutant(
        "tail unheard",
        "what an announcement says is missing is not believed",
        "gapless.core.inbound:Inbound.on_tail",
        "self.announced = max(self.announced, tail.high)",
        "pass",
    ),
    Mutant(
        "tail once",
        "the tail is announced a single time",
        "gapless.core.outbound:Outbound.announce",
        "self._tail_ns = context.now_ns + self._tail_interval_ns",
        "self._tail_ns = None",
    ),
    Mutant(
        "tail too short",
        "the announcement names what is purged as the end",
        "gapless.core.outbound:Outbound.announce",
        "Tail(self.me, self.window.low, self.window.high, None)",
        "Tail(self.me, self.window.low, self.window.low, None)",
    ),
    # Repairs
    Mutant(
        "repairs too much",
        "a repair sends the whole run where a part was asked for",
        "gapless.core.window:Window.get",
        "found.append(run.part(max(first, run.first), min(last, run.last)))",
        "found.append(run)",
    ),
    Mutant(
        "repairs too little",
        "the first range of a nak is overlooked",
        "gapless.core.outbound:Outbound.on_nak",
        "ranges.within(asked, self.window.low + 1, self.window.high)",
        "ranges.within(asked[1:] or asked, self.window.low + 1, self.window.high)",
    ),
    Mutant(
        "suppressed for ever",
        "what was repaired once is never repaired again",
        "gapless.core.repairs:Repairs.answer",
        "now_ns - done.at_ns < self.suppress_ns",
        "done.at_ns <= now_ns",
    ),
    Mutant(
        "no suppression",
        "every nak is answered, however often it is repeated",
        "gapless.core.repairs:Repairs.answer",
        "wanted = ranges.minus(asked, ranges.merged(done))",
        "wanted = list(asked)",
    ),
    Mutant(
        "budget never renewed",
        "what was spent on repairs is never forgotten",
        "gapless.core.repairs:Repairs._spend",
        "            self._spent_bytes = 0\n",
        "",
    ),
    Mutant(
        "gone too far",
        "the answer for what is purged names what is still there",
        "gapless.core.outbound:Outbound.on_nak",
        "Gone(self.me, self.window.low)",
        "Gone(self.me, self.window.high)",
    ),
    # Flow control
    Mutant(
        "no wake-up by acks",
        "an ack frees room, but nobody tells the sends that wait",
        "gapless.core.outbound:Outbound.release",
        "        self.flush(context, reason)\n",
        "",
    ),
    Mutant(
        "no wake-up by views",
        "a departure frees room, but the window is not purged",
        "gapless.core.outbound:Outbound.install",
        'self.release(context, "view")',
        "pass",
    ),
    Mutant(
        "hole by cancel",
        "a send that gives up uses up a number",
        "gapless.core.outbound:Outbound.give_up",
        "        context.event(event)\n",
        "        context.event(event)\n        self.window.high += 1\n",
    ),
    Mutant(
        "credit leaks",
        "half of what the application has consumed is not given back",
        "gapless.core.credit:Credit.refund",
        "self.outstanding - messages",
        "self.outstanding - messages // 2",
    ),
    # Identity and integrity
    Mutant(
        "old life counts",
        "a frame of an older incarnation is taken for one of the present",
        "gapless.core.member:Member.receive",
        "stream = self.inbound.get(sender)",
        "stream = next((s for o, s in self.inbound.items() if o.node == sender.node), None)",
    ),
    Mutant(
        "checksum ignored",
        "a damaged datagram is believed",
        "gapless.core.member:decode",
        "    if crc32(memoryview(datagram)[_PREAMBLE.size :]) != checksum:\n",
        "    if False:\n",
    ),
    Mutant(
        "pieces run on",
        "pieces of one message are put into the next",
        "gapless.core.pieces:Pieces.clear",
        "self._parts, self._held_bytes, self._first, self._state = [], 0, 0, _NONE",
        "self._held_bytes, self._first, self._state = 0, 0, _NONE",
    ),
)
"""Every planted bug."""


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the machine with the bug in place."""
    owner, name = _resolve(mutant.target)
    original = inspect.getattr_static(owner, name)
    setattr(owner, name, _mutate(mutant, original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _resolve(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _mutate(mutant: Mutant, original: Callable[..., Any]) -> Callable[..., Any]:
    source = inspect.getsource(original)
    if source.count(mutant.old) != 1:
        raise LocalProtocolError(
            f"mutant {mutant.name!r}: its text stands {source.count(mutant.old)} times in the source"
        )
    changed = textwrap.dedent(source.replace(mutant.old, mutant.new))
    code = compile(changed, f"<mutant {mutant.name}>", "exec", future.annotations.compiler_flag, dont_inherit=True)
    namespace: dict[str, Any] = {}
    exec(code, original.__globals__, namespace)  # noqa: S102 - the text comes from the table above
    result: Callable[..., Any] = namespace[original.__name__]
    return result


def named(name: str) -> Mutant:
    """Return the mutant called ``name``."""
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    raise LocalProtocolError(f"no planted bug is called {name!r}; choose one of: {', '.join(m.name for m in MUTANTS)}")


def hunt(mutant: Mutant, seeds: int) -> Verdict:
    """Run seeds 0, 1, 2 … with the bug in place until a check fails."""
    with planted(mutant):
        for seed in range(seeds):
            outcome = simulate(seed, hasty=True)
            if outcome.violations:
                return Verdict(mutant, outcome.violations[0].check, seed, seed + 1)
    return Verdict(mutant, "", 0, seeds)


def hunt_all(mutants: Sequence[Mutant], seeds: int, workers: int, progress: Callable[[int], None]) -> list[Verdict]:
    """Hunt several mutants, each in a process of its own turn; ``progress`` is told how many are done."""
    verdicts: dict[Mutant, Verdict] = {}
    with ProcessPoolExecutor(workers) as pool:
        for task in as_completed([pool.submit(hunt, mutant, seeds) for mutant in mutants]):
            verdicts[task.result().mutant] = task.result()
            progress(len(verdicts))
    return [verdicts[mutant] for mutant in mutants]
