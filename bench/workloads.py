"""The workloads: the cases of each, and the run of a contender through a case.

Throughput: all contenders of a case start and warm up, and stay; then the contenders work in turns,
round by round, so that a slow moment of the machine affects all alike. To measure a start, a stop
or a join, each round has its own processes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.groups import FailedError, Group, Shape
from gapless_lab.bench.matrix import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.contenders import Contender
    from bench.environment import Environment
    from bench.network import Network

Round = dict[str, float]
"""The figures of a round, by the names of metrics."""

SETTLE_S = 0.2
"""So long all senders work before the first mark."""
LEAD_S = 1.0
"""How long senders work before a member stops or joins."""
STOP_S = 2.0
"""How long a member stands still."""
AFTER_S = 1.5
"""So long is looked on afterwards."""
FILL_S = 2.0
"""How long until every buffer on the way to a slow receiver is full."""
SLOW_S = 2.0
"""So long is measured then; some work in bursts."""
LOAD_S = 1.0
"""How long members work before the second measurement of memory."""
SLOW_PER_S = 5_000.0
MOST_ROUNDS = {"stopped": 2, "slowed": 2, "joined": 2, "remembered": 1, "streamed": 1}
"""Maximum number of rounds of long cases, and of cases with constant results."""


class Metric(NamedTuple):
    """A figure: the key, the label, and the better direction."""

    key: str
    title: str
    more_is_better: bool = False
    digits: int = 2


SPEED = Metric("messages_per_s", "messages/s", more_is_better=True, digits=0)
CPU = Metric("cpu_s_per_million", "CPU s/M deliveries")
FLOW = (SPEED, CPU, Metric("mb_per_s", "MB/s", more_is_better=True, digits=1))
TRIPS = (
    Metric("p50_us", "p50 µs", digits=1),
    Metric("p99_us", "p99 µs", digits=1),
    Metric("p99_9_us", "p99.9 µs", digits=1),
)
STOPPED = (
    Metric("suffered_s", "others below half speed, s"),
    Metric("silence_s", "longest silence of the others, s"),
    Metric("recovered_s", "half speed after it goes on, s"),
)
SLOWED = (
    Metric("others_per_s", "others, messages/s", more_is_better=True, digits=0),
    Metric("slow_per_s", "slow one, messages/s", more_is_better=True, digits=0),
)
JOINED = (
    Metric("joined_s", "join to first message, s", digits=3),
    Metric("first_s", "process start to first message, s", digits=3),
    Metric("silence_s", "longest silence of the others, s", digits=3),
)
MEMORY = (
    Metric("idle_mb", "MB a member, idle", digits=1),
    Metric("loaded_mb", "MB a member, after load", digits=1),
    Metric("server_mb", "MB of the server", digits=1),
)
STREAMS = (
    Metric("kb_per_stream", "KB a stream, both ends", digits=1),
    Metric("mb_per_1000", "MB for 1000", digits=1),
)
STARTED = (
    Metric("first_s", "process start to first message, s", digits=3),
    Metric("joined_s", "join to first message, s", digits=3),
)


PAIR = Shape(2, 2)


@dataclass(frozen=True)
class Case:
    """A comparison."""

    workload: str
    title: str
    contenders: tuple[str, ...]
    metrics: tuple[Metric, ...] = FLOW
    shape: Shape = PAIR
    size_bytes: int = 1000
    loss: float = 0.0
    how: str = "flow"

    @property
    def name(self) -> str:
        """A short name for a program."""
        return f"{self.workload}: {self.title}"


@dataclass
class Outcome:
    """The outcome of a contender in a case: the rounds, or the reason of their absence."""

    case: Case
    contender: str
    rounds: list[Round] = field(default_factory=list)
    missing: str = ""
    failed: str = ""
    promises: str = ""


class Course:
    """The resources for running cases."""

    def __init__(
        self,
        environment: Environment,
        *,
        rounds: int,
        seconds: float,
        network: Network | None = None,
        tick: Callable[[str], None] = lambda _: None,
        warm: float = 1.0,
    ) -> None:
        self.environment, self.rounds, self.seconds = environment, rounds, seconds
        self.network, self.tick, self.warm = network, tick, warm

    def run(self, cases: Sequence[Case], contenders: dict[str, Contender]) -> list[Outcome]:
        """Run cases with shared processes: the same shape, different sizes or losses."""
        outcomes = {(case, name): Outcome(case, name) for case in cases for name in case.contenders}
        for (_, name), outcome in outcomes.items():
            peer = self.environment.peers.get(contenders[name].peer)
            outcome.missing = "it was not looked for" if peer is None else peer.reason
        if cases[0].how == "flow" or cases[0].how == "rtt":
            self._in_turns(cases, contenders, outcomes)
        else:
            self._one_by_one(cases, contenders, outcomes)
        return list(outcomes.values())

    # Groups that stay

    def _in_turns(
        self,
        cases: Sequence[Case],
        contenders: dict[str, Contender],
        outcomes: dict[tuple[Case, str], Outcome],
    ) -> None:
        groups: dict[str, Group] = {}
        failed: dict[str, str] = {}
        try:
            for name in dict.fromkeys(name for case in cases for name in case.contenders):
                if not any(
                    outcomes[case, name].missing for case in cases if name in case.contenders
                ):
                    self._start(cases, contenders[name], groups, failed)
            for case in cases:
                self._lose(case.loss)
                for _ in range(self.rounds):
                    for name in case.contenders:
                        if name in groups:
                            self._turn(outcomes[case, name], groups, failed)
        finally:
            for group in groups.values():
                group.close()
            self._lose(0)
        for (_, name), outcome in outcomes.items():
            if not outcome.rounds and not outcome.missing:
                outcome.failed = failed.get(name, "")

    def _start(
        self,
        cases: Sequence[Case],
        contender: Contender,
        groups: dict[str, Group],
        failed: dict[str, str],
    ) -> None:
        self.tick(f"{contender.name} starts")
        case = cases[0]
        loss = 0.0 if self.network else case.loss
        group = Group(contender, case.shape, self.environment, self.network, loss)
        try:
            group.start()
            warm_s = contender.warm_s * self.warm
            if case.how == "rtt":
                group.ask("rtt", size_bytes=case.size_bytes, seconds=warm_s)
            else:
                sizes = list(dict.fromkeys(each.size_bytes for each in cases))
                for size_bytes in sizes:  # a JVM compiles for what it sees
                    work(group, size_bytes, warm_s / len(sizes))
        except FailedError as error:
            failed[contender.name] = str(error)
            group.close()
        except BaseException:
            group.close()
            raise
        else:
            groups[contender.name] = group

    def _turn(self, outcome: Outcome, groups: dict[str, Group], failed: dict[str, str]) -> None:
        group, case = groups[outcome.contender], outcome.case
        self.tick(f"{case.title}: {outcome.contender}")
        outcome.promises = group.ready[0].get("promises", "")
        try:
            if case.how == "rtt":
                outcome.rounds.append(trips(group, case.size_bytes, self.seconds))
            else:
                outcome.rounds.append(
                    flow(group, case.size_bytes, self.seconds, lambda: self._lose(0))
                )
        except FailedError as error:
            failed[outcome.contender] = outcome.failed = str(error)
            groups.pop(outcome.contender).close()
        finally:
            self._lose(case.loss)

    def _lose(self, share: float) -> None:
        """Set the loss of the network; 0 after a round, so that the rest arrives soon."""
        if self.network:
            self.network.set_loss(share)

    # Groups of one round

    def _one_by_one(
        self,
        cases: Sequence[Case],
        contenders: dict[str, Contender],
        outcomes: dict[tuple[Case, str], Outcome],
    ) -> None:
        for case in cases:
            for _ in range(min(self.rounds, MOST_ROUNDS.get(case.how, self.rounds))):
                for name in case.contenders:
                    outcome = outcomes[case, name]
                    if outcome.missing or outcome.failed:
                        continue
                    self.tick(f"{case.title}: {name}")
                    try:
                        outcome.rounds.append(WAYS[case.how](self, case, contenders[name], outcome))
                    except FailedError as error:
                        outcome.failed = str(error)

    def group(self, contender: Contender, shape: Shape, **options: Any) -> Group:
        """Return a new group."""
        return Group(contender, shape, self.environment, self.network, options=options)


def work(group: Group, size_bytes: int, seconds: float) -> None:
    """Let a group work for a while, unmeasured."""
    group.ask("prepare", turn=group.next_turn(), size_bytes=size_bytes)
    group.ask("go")
    time.sleep(seconds)
    group.end_round()


def flow(
    group: Group, size_bytes: int, seconds: float, measured: Callable[[], None] = lambda: None
) -> Round:
    """Let all senders send at full speed; measure between two marks, and call ``measured``."""
    group.ask("prepare", turn=group.next_turn(), size_bytes=size_bytes)
    group.ask("go")
    time.sleep(SETTLE_S)
    first = group.mark()
    time.sleep(seconds)
    second = group.mark()
    measured()
    checks = group.end_round()
    shape = group.shape
    receivers = range(shape.members) if shape.senders > 1 else range(1, shape.members)
    gains = [
        (
            after["count"] - before["count"],
            (after["at_ns"] - before["at_ns"]) / 1e9,
            after["cpu_s"] - before["cpu_s"],
        )
        for before, after in zip(first.answers, second.answers, strict=True)
    ]
    speed = min(gains[at][0] / gains[at][1] for at in receivers)
    deliveries = sum(count for count, _, _ in gains)
    cpu_s = sum(cpu for _, _, cpu in gains) + second.server_cpu_s - first.server_cpu_s
    return {
        "messages_per_s": speed,
        "mb_per_s": speed * size_bytes / 1e6,
        "cpu_s_per_million": cpu_s / max(1, deliveries) * 1e6,
        **faults(checks),
    }


def faults(checks: Sequence[dict[str, Any]]) -> Round:
    """Return the faults and the repairs of a round."""
    found: Round = {
        key: sum(check[key] for check in checks) for key in ("lost", "duplicated", "out_of_order")
    }
    for key in ("repairs", "frames"):
        values = [check["extra"][key] for check in checks if key in check["extra"]]
        if values:
            found[key] = sum(values)
    return found


def trips(group: Group, size_bytes: int, seconds: float) -> Round:
    """Measure round trips."""
    times_ns = sorted(group.ask("rtt", size_bytes=size_bytes, seconds=seconds)[0]["times_ns"])
    if not times_ns:
        raise FailedError("no round trip was done in time")
    marks = {key: percentile(times_ns, share) / 1000 for key, share in SHARES.items()}
    return {**marks, "trips": len(times_ns)}


SHARES = {"p50_us": 0.5, "p99_us": 0.99, "p99_9_us": 0.999}


def stopped(course: Course, case: Case, contender: Contender, outcome: Outcome) -> Round:
    """Stop the last receiver for two seconds; measure the effect on the others."""
    with course.group(contender, case.shape) as group:
        outcome.promises = group.ready[0].get("promises", "")
        work(group, case.size_bytes, contender.warm_s * course.warm)
        group.ask("prepare", turn=group.next_turn(), size_bytes=case.size_bytes)
        group.ask("go", samples=True)
        time.sleep(LEAD_S)
        victim = case.shape.members - 1
        stopped_ns = time.monotonic_ns()
        group.stop_one(victim)
        time.sleep(STOP_S)
        group.continue_one(victim)
        continued_ns = time.monotonic_ns()
        time.sleep(AFTER_S)
        checks = group.end_round()
    felt = [suffering(check["samples"], stopped_ns, continued_ns) for check in checks[1:victim]]
    return {**{key: max(each[key] for each in felt) for key in felt[0]}, **faults(checks)}


def suffering(samples: Sequence[tuple[int, int]], stopped_ns: int, continued_ns: int) -> Round:
    """Return the time below half of the rate, the time without arrivals, and the end.

    ``samples`` are moments, each with the number of messages received so far.
    """
    before = [sample for sample in samples if sample[0] < stopped_ns]
    if len(before) < 2:
        raise FailedError("nothing had come before the receiver was stopped")
    half = (before[-1][1] - before[0][1]) / max(1, before[-1][0] - before[0][0]) / 2
    after = [before[-1], *(sample for sample in samples if sample[0] >= stopped_ns)]
    suffered_ns = silence_ns = longest_ns = 0
    recovered_ns = 0
    for (start_ns, had), (end_ns, has) in windows(after, 50_000_000):
        if (has - had) / (end_ns - start_ns) < half:
            suffered_ns += end_ns - start_ns
            recovered_ns = max(recovered_ns, end_ns - continued_ns)
    for (start_ns, had), (end_ns, has) in pairwise(after):
        silence_ns = silence_ns + end_ns - start_ns if has == had else 0
        longest_ns = max(longest_ns, silence_ns)
    return {
        "suffered_s": suffered_ns / 1e9,
        "silence_s": longest_ns / 1e9,
        "recovered_s": max(0, recovered_ns) / 1e9,
    }


def windows(
    samples: Sequence[tuple[int, int]], width_ns: int
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return neighbouring samples with at least the given distance."""
    found = []
    start = samples[0]
    for sample in samples[1:]:
        if sample[0] - start[0] >= width_ns:
            found.append((start, sample))
            start = sample
    return found


def slowed(course: Course, case: Case, contender: Contender, outcome: Outcome) -> Round:
    """Limit the rate of the last receiver; measure the rates of the others."""
    with course.group(contender, case.shape) as group:
        outcome.promises = group.ready[0].get("promises", "")
        work(group, case.size_bytes, contender.warm_s * course.warm)
        turn, slow = group.next_turn(), case.shape.members - 1
        for at in range(case.shape.members):
            rate = SLOW_PER_S if at == slow else 0.0
            group.ask_one(at, "prepare", turn=turn, size_bytes=case.size_bytes, slow_per_s=rate)
        group.ask("go")
        time.sleep(FILL_S)
        first = group.mark().answers
        time.sleep(SLOW_S)
        second = group.mark().answers
        checks = group.end_round()
    speeds = [
        (after["count"] - before["count"]) / (after["at_ns"] - before["at_ns"]) * 1e9
        for before, after in zip(first, second, strict=True)
    ]
    return {"others_per_s": min(speeds[1:slow]), "slow_per_s": speeds[slow], **faults(checks)}


def joined(course: Course, case: Case, contender: Contender, outcome: Outcome) -> Round:
    """Let another member join while the others send at full speed."""
    turn = 1000
    shape = replace(case.shape, late=1, begin=(turn, case.size_bytes))
    newcomer = shape.members - 1
    with course.group(contender, shape) as group:
        outcome.promises = group.ready[0].get("promises", "")
        work(group, case.size_bytes, contender.warm_s * course.warm)
        group.ask("prepare", turn=turn, size_bytes=case.size_bytes)
        group.ask("go", samples=True)
        time.sleep(LEAD_S)
        started_ns = time.monotonic_ns()
        group.spawn(newcomer, joins_late=True)
        ready = group.answers([newcomer])[0]
        time.sleep(AFTER_S)
        checks = group.end_round()
    first_ns = checks[newcomer]["first_ns"]
    if not first_ns:
        raise FailedError("the newcomer has got nothing")
    silence_s = max(
        suffering(check["samples"], started_ns, started_ns)["silence_s"]
        for check in checks[:newcomer]
        if check["samples"]
    )
    return {
        "joined_s": (first_ns - ready["begun_ns"]) / 1e9,
        "first_s": (first_ns - started_ns) / 1e9,
        "silence_s": silence_s,
        **faults(checks),
    }


def remembered(course: Course, case: Case, contender: Contender, outcome: Outcome) -> Round:
    """Measure the memory of idle members, and again after a second of work."""
    with course.group(contender, case.shape) as group:
        outcome.promises = group.ready[0].get("promises", "")
        members = case.shape.members
        idle = sum(answer["memory_bytes"] for answer in group.mark().answers) / members
        work(group, case.size_bytes, LOAD_S)
        loaded = sum(answer["memory_bytes"] for answer in group.mark().answers) / members
        server = group.server_memory_bytes()
    return {"idle_mb": idle / 1e6, "loaded_mb": loaded / 1e6, "server_mb": server / 1e6}


def streamed(course: Course, case: Case, contender: Contender, outcome: Outcome) -> Round:
    """Measure the memory of a thousand streams in a process."""
    from bench.peers.streams import measure

    outcome.promises = "of no matter here"
    kb = measure(contender.peer, course.environment.python)
    del case
    return {"kb_per_stream": kb, "mb_per_1000": kb}


def started(course: Course, case: Case, contender: Contender, outcome: Outcome) -> Round:
    """Start two members, and send a message as soon as both are ready."""
    shape = replace(case.shape, begin=(1000, case.size_bytes))
    with course.group(contender, shape, defaults=True) as group:
        outcome.promises = group.ready[0].get("promises", "")
        group.ask("go", total=1)
        checks = group.end_round()
        first_ns = checks[1]["first_ns"]
        if not first_ns:
            raise FailedError("the first message has not come")
        begun_ns = min(answer["begun_ns"] for answer in group.ready)
        return {
            "first_s": (first_ns - min(group.started_ns)) / 1e9,
            "joined_s": (first_ns - begun_ns) / 1e9,
            **faults(checks),
        }


WAYS: dict[str, Callable[[Course, Case, Contender, Outcome], Round]] = {
    "stopped": stopped,
    "slowed": slowed,
    "joined": joined,
    "remembered": remembered,
    "streamed": streamed,
    "started": started,
}
"""The function for a round of each kind with its own processes."""
