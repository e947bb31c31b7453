"""Run a seed or many seeds, and collect the results."""

from __future__ import annotations

from collections import Counter
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from gapless.sim.checkers.liveness import DeliveryDeadlineChecker, StabilityDeadlineChecker
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.coverage.membership_coverage import REQUIRED_MEMBERSHIP_COVERAGE
from gapless.sim.coverage.stream_coverage import REQUIRED_STREAM_COVERAGE
from gapless.sim.script import (
    CrashProcess,
    InstallView,
    PauseProcess,
    SetReadDelay,
)
from gapless.sim.sealing.plan import draw_sealing
from gapless.sim.sealing.sealed_group import REQUIRED_SEALING_COVERAGE, SEALING_FAULTS
from gapless.sim.seed_result import SeedResult, SweepResult
from gapless.sim.swarm import membership_swarm
from gapless.sim.swarm.membership_swarm import draw_membership
from gapless.sim.swarm.stream_swarm import MESSAGES, draw
from gapless.sim.worker_pool import worker_pool
from gapless.sim.world.trace_files import chunks, prepare_folder, write_set
from gapless.sim.world.tracer import SimulationTracer
from gapless.sim.world.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gapless.config import Config
    from gapless.sim.short_path import ShortPath
    from gapless.sim.swarm.stream_swarm import SwarmPlan


def world_of(
    plan: SwarmPlan,
    *,
    record: bool = False,
    trace: bool = False,
    fail_fast: bool = False,
    short_path: ShortPath = "drawn",
) -> World:
    """Return the world of a plan; with ``fail_fast`` the world stops at the first violation."""
    # Without retransmission a lost message must be reported, and need not arrive.
    checks = (
        [
            check
            for check in CHECKERS
            if check not in {DeliveryDeadlineChecker, StabilityDeadlineChecker}
        ]
        if plan.character == "stall"
        else None
    )
    return World(
        plan.config,
        plan.script,
        faults=plan.faults,
        late_timers=plan.late_timers,
        checkers=checks,
        record=record,
        trace=trace,
        fail_fast=fail_fast,
        sealing=plan.sealing,
        short_path=short_path,
    )


def default_messages(*, membership: bool) -> int:
    """Return the default number of messages of each node."""
    return membership_swarm.MESSAGES if membership else MESSAGES


def thorough_seeds(*, membership: bool) -> int:
    """Return how many seeds of all profiles suffice to see every required situation."""
    return 200 if membership else 300


def plan_of(
    seed: int,
    *,
    members: int | None = None,
    messages: int | None = None,
    character: str | None = None,
    profile: str | None = None,
    config: Config | None = None,
    membership: bool = False,
    sealed: bool = False,
) -> SwarmPlan:
    """Return the plan of a seed; with ``membership`` members make their own views.

    A ``sealed`` group has the same plan, and keys, rotations and an adversary as well.
    """
    messages = default_messages(membership=membership) if messages is None else messages
    drawn = draw_membership if membership else draw
    plan = drawn(
        seed,
        members=members,
        messages=messages,
        character=character,
        profile=profile,
        config=config,
    )
    if sealed:
        plan.sealing = draw_sealing(seed, plan.character, plan.script)
    return plan


def simulate(
    seed: int,
    *,
    members: int | None = None,
    messages: int | None = None,
    character: str | None = None,
    profile: str | None = None,
    config: Config | None = None,
    membership: bool = False,
    sealed: bool = False,
    record: bool = False,
    trace: bool = False,
    fail_fast: bool = False,
    short_path: ShortPath = "drawn",
) -> SeedResult:
    """Run a seed with every check.

    Args:
        seed: The seed of the plan: settings, faults and load.
        members: The number of members; None lets the seed draw the number.
        messages: The number of messages of each node; None for the default.
        character: The kind of run to draw; None lets the seed draw the character.
        profile: The profile of every member; None lets the seed draw the profile.
        config: The settings of the group; None lets the seed draw the settings.
        membership: Whether members make their own views.
        sealed: Whether the group has keys, which rotate, and an adversary.
        record: Whether the result holds the script of the run.
        trace: Whether the result holds the rows of the trace.
        fail_fast: Whether the run ends at the first violation.
        short_path: Whether expected inputs take the short path of the machine.
    """
    plan = plan_of(
        seed,
        members=members,
        messages=messages,
        character=character,
        profile=profile,
        config=config,
        membership=membership,
        sealed=sealed,
    )
    world = world_of(plan, record=record, trace=trace, fail_fast=fail_fast, short_path=short_path)
    world.run()
    return seed_result(seed, plan.character, plan.profile, world)


def seed_result(seed: int, character: str, profile: str, world: World) -> SeedResult:
    """Return the result of a world after its run."""
    outcome = SeedResult(
        seed,
        character,
        profile,
        world.digest(),
        world.events,
        world.oracle.steps,
        world.driver.delivered_messages,
        faults_of(world),
        world.oracle.violations,
        frozenset(
            (
                world.stream_coverage.seen
                if world.membership_coverage is None
                else world.membership_coverage.seen
            )
            | (set() if world.sealed_group is None else world.sealed_group.seen())
        ),
        world.now_ns,
        sum(
            host.member.counters.get("sent.repair", 0)
            for host in world.hosts.values()
            if host.member is not None
        ),
    )
    if world.sealed_group is not None:
        outcome.seals = world.sealed_group.datagram_counts()
    if world.record:
        outcome.script = world.recorded()
    if isinstance(world.tracer, SimulationTracer):
        outcome.trace = world.tracer.rows
        outcome.incarnations = world.tracer.incarnation_records(character)
    return outcome


def faults_of(world: World) -> dict[str, int]:
    """Return how often each kind of fault struck; the first views do not count."""
    actions: Counter[type] = Counter(map(type, world.script.actions))
    views = sum(
        isinstance(action, InstallView) and action.number > 1 for action in world.script.actions
    )
    clocks = sum(clock.drift_ppm != 0 for clock in world.script.clocks.values())
    if world.script.membership:
        views = len(world.oracle.model.views)
    members = {
        "pause": actions[PauseProcess],
        "crash": actions[CrashProcess],
        "slow-reader": actions[SetReadDelay],
        "view": views,
    }
    counts = {
        **world.network.chain.strike_counts,
        **members,
        "late-timer": world.driver.late_ticks,
        "clock": clocks,
    }
    if world.sealed_group is not None:
        counts |= world.sealed_group.strike_counts()
    return {kind: count for kind, count in counts.items() if count}


def same_digest(seed: int, other: str) -> bool:
    """S17: return whether ``seed`` still has the digest of another run of the same seed."""
    return simulate(seed).digest == other


def sweep(
    seeds: Sequence[int],
    *,
    workers: int = 1,
    members: int | None = None,
    messages: int | None = None,
    profile: str | None = None,
    config: Config | None = None,
    membership: bool = False,
    sealed: bool = False,
    progress: Callable[[int], None] | None = None,
    trace: Path | None = None,
) -> SweepResult:
    """Run many seeds, and collect the results.

    Args:
        seeds: The seeds to run.
        workers: The number of processes.
        members: The number of members; None lets each seed draw the number.
        messages: The number of messages of each node; None for the default.
        profile: The profile of every member; None lets each seed draw the profile.
        config: The settings of every group; None lets each seed draw the settings.
        membership: Whether members make their own views.
        sealed: Whether the group has keys, which rotate, and an adversary.
        progress: A function to call with the number of finished seeds.
        trace: The folder for the traces of all runs; None writes no traces.
    """
    result = SweepResult(
        required_coverage=(
            *(REQUIRED_MEMBERSHIP_COVERAGE if membership else REQUIRED_STREAM_COVERAGE),
            *(REQUIRED_SEALING_COVERAGE if sealed else ()),
        )
    )
    if sealed:
        result.faults.update(dict.fromkeys(SEALING_FAULTS, 0))
    begin_s = perf_counter()
    run = partial(
        simulate,
        members=members,
        messages=messages,
        profile=profile,
        config=config,
        membership=membership,
        sealed=sealed,
    )
    outcomes = (
        _outcomes(run, seeds, workers) if trace is None else _run_traced(run, seeds, workers, trace)
    )
    for outcome in outcomes:
        result.add(outcome)
        if progress is not None:
            progress(result.seeds)
    result.real_s = perf_counter() - begin_s
    return result


def _outcomes(
    run: Callable[[int], SeedResult], seeds: Sequence[int], workers: int
) -> Iterable[SeedResult]:
    if workers <= 1:
        yield from map(run, seeds)
        return
    with worker_pool(workers) as pool:
        yield from pool.map(run, seeds, chunksize=4)


def _run_traced(
    run: Callable[..., SeedResult], seeds: Sequence[int], workers: int, folder: Path
) -> Iterable[SeedResult]:
    """Run chunks of seeds; each chunk writes its own files."""
    prepare_folder(folder)
    write = partial(write_set, str(folder), partial(run, trace=True))
    if workers <= 1:
        for outcomes in map(write, chunks(seeds)):
            yield from outcomes
        return
    with worker_pool(workers) as pool:
        for outcomes in pool.map(write, chunks(seeds)):
            yield from outcomes


Result = TypeVar("Result")


def results(tasks: Sequence[Callable[[], Result]], workers: int) -> Iterator[Result]:
    """Yield the result of each task; with a single worker or task, run in this process."""
    if workers <= 1 or len(tasks) <= 1:
        yield from map(_call, tasks)
        return
    with worker_pool(min(workers, len(tasks))) as pool:
        yield from pool.map(_call, tasks)


def _call(task: Callable[[], Result]) -> Result:
    return task()
