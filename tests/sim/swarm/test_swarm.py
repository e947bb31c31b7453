"""The swarm: runs have characters; a sweep passes all checks and covers all situations."""

from collections import Counter

import pytest

from gapless.config import Config
from gapless.faults.faults import NEVER_NS
from gapless.sim import REQUIRED_STREAM_COVERAGE, SwarmPlan, SweepResult, draw, simulate, sweep
from gapless.sim.checkers.liveness import bounds_ns
from gapless.sim.script import (
    CrashProcess,
    InstallView,
    ResumeProcess,
    SendMessages,
    StartProcess,
)
from gapless.sim.seed_result import FAULT_KINDS
from gapless.sim.swarm.stream_swarm import CHARACTERS, FAULTS
from gapless.units import NS_PER_MS

SEEDS = range(300)
"""Fixed, so that the test is the same everywhere; fresh seeds are for the sweeps of CI."""


def test_a_sweep_keeps_every_promise_and_sees_everything() -> None:
    result = sweep(SEEDS, workers=2, messages=50)
    broken = [
        f"seed {outcome.seed}: {violation}"
        for outcome in result.failed
        for violation in outcome.violations[:1]
    ]
    assert broken == []
    assert result.never_seen == []
    assert result.seeds == len(SEEDS)
    assert set(result.characters) == {*CHARACTERS, "stall"}
    assert [kind for kind, struck in result.faults.items() if not struck] == []
    assert set(result.faults) == set(FAULT_KINDS)


# Plans


def test_a_seed_is_one_plan() -> None:
    first, again = draw(7), draw(7)
    assert (first.config, first.script, first.enabled_faults) == (
        again.config,
        again.script,
        again.enabled_faults,
    )
    assert draw(8).script != first.script


def test_the_seeds_cover_the_table_of_faults() -> None:
    on = Counter(name for seed in SEEDS for name in draw(seed).enabled_faults)
    assert on.keys() == set(FAULTS)
    assert min(on.values()) >= 20, on


def test_the_seeds_cover_the_knobs() -> None:
    configs = [draw(seed).config for seed in SEEDS]
    assert {config.capacity for config in configs} == {1, 2, 3, 4, 16, 64}
    assert {config.use_mcast_xmit for config in configs} == {"auto", "always", "never"}
    assert {config.adaptive_grace for config in configs} == {True, False}
    intervals_ms = {
        config.xmit_interval_ns // NS_PER_MS for config in configs if config.retransmits
    }
    assert min(intervals_ms) == 1
    assert max(intervals_ms) == 5000
    assert any(config.ack_threshold == config.capacity for config in configs)


def test_the_standard_cell_is_four_members_with_a_hundred_messages_each() -> None:
    sizes = Counter(
        len(
            {action.who for action in draw(seed).script.actions if isinstance(action, SendMessages)}
        )
        for seed in SEEDS
    )
    assert set(sizes) == {2, 3, 4, 5}
    assert sizes.most_common(1)[0][0] == 4
    plan = draw(1, members=4)
    sent = Counter[str]()
    for action in plan.script.actions:
        if isinstance(action, SendMessages):
            sent[action.who] += len(action.payloads)
    assert set(sent.values()) == {100}


@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_no_life_is_left_without_the_last_view_when_the_calm_comes(first: int) -> None:
    for plan in filter(
        lambda plan: "views" in plan.enabled_faults, map(draw, range(first, first + 100))
    ):
        check_views(plan)


def check_views(plan: SwarmPlan) -> None:
    alive: set[str] = set()
    view: dict[str, InstallView] = {}
    for action in plan.script.actions:
        assert action.at_ns <= plan.script.calm_ns or not isinstance(
            action, (StartProcess, InstallView, CrashProcess, ResumeProcess)
        )
        if isinstance(action, StartProcess):
            alive.add(action.who)
        elif isinstance(action, CrashProcess):
            alive.remove(action.who)
        elif isinstance(action, InstallView):
            assert action.number > view[action.who].number if action.who in view else True
            view[action.who] = action
    last = max(view.values(), key=lambda action: action.number)
    assert set(last.members) == alive
    assert all(view[name].number == last.number for name in alive)


def test_calm_runs_have_no_faults_and_loss_runs_only_losses() -> None:
    calm, loss = draw(1, character="calm"), draw(1, character="loss")
    assert calm.faults == []
    assert {fault.name for fault in loss.faults} <= {"loss", "burst"}
    assert calm.script.only_loss
    assert loss.script.only_loss


@pytest.mark.parametrize("seed", range(5))
def test_calm_runs_are_free_of_naks_and_repairs(seed: int) -> None:
    outcome = simulate(seed, character="calm", messages=30, profile="nakack4")
    assert outcome.ok, outcome.violations
    assert outcome.repairs == 0


# Bounds


def test_the_bounds_are_three_intervals_and_four_delays() -> None:
    config = Config.make(xmit_interval="100ms", ack_delay="10ms", capacity=16)
    first_ns, second_ns = bounds_ns(config, NS_PER_MS)
    assert first_ns == 3 * 106 * NS_PER_MS + 4 * NS_PER_MS
    assert second_ns == first_ns + 106 * NS_PER_MS + 10_600_000 + 2 * NS_PER_MS


def test_small_requests_and_small_budgets_take_more_rounds() -> None:
    config = Config.make(xmit_interval="100ms", capacity=16, max_xmit_req_size=4)
    assert bounds_ns(config, 0)[0] == (2 + 4) * 106 * NS_PER_MS
    config = Config.make(xmit_interval="100ms", capacity=16, repair_budget_bytes="1400B")
    assert bounds_ns(config, 0)[0] > 20 * 106 * NS_PER_MS


# Sweeps


def test_a_sweep_adds_up() -> None:
    outcomes = [simulate(seed, messages=5) for seed in range(3)]
    result = SweepResult()
    for outcome in outcomes:
        result.add(outcome)
    assert result.seeds == 3
    assert result.events == sum(outcome.events for outcome in outcomes)
    assert result.failed == []
    seen = set().union(*(outcome.seen for outcome in outcomes))
    assert result.never_seen == [what for what in REQUIRED_STREAM_COVERAGE if what not in seen]


def test_progress_is_told() -> None:
    counts: list[int] = []
    sweep(range(2), messages=2, progress=counts.append)
    assert counts == [1, 2]
    assert NEVER_NS > 10**18
