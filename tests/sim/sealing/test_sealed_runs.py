"""Sealed runs: an adversary and rotations under load, and every invariant holds."""

from __future__ import annotations

from collections import Counter

import pytest

from gapless.config import Config
from gapless.sim.mutants.catalogue import plant
from gapless.sim.runner import plan_of, simulate, world_of
from gapless.sim.script import (
    CrashProcess,
    PauseProcess,
    ResumeProcess,
    Script,
    SendMessages,
    StartProcess,
    initial_actions,
    payload,
)
from gapless.sim.sealing.plan import ATTACKS, FIRST_KEY, SECOND_KEY, SealingPlan, draw_sealing
from gapless.sim.sealing.sealed_group import REQUIRED_SEALING_COVERAGE, SEALING_FAULTS
from gapless.sim.world.world import World
from gapless.units import NS_PER_MS, NS_PER_S
from gapless.wire.seal_keys import KeyState

NAMES = ("a", "b", "c")


def run(plan: SealingPlan, *more: object, calm_ns: int = 300 * NS_PER_MS) -> World:
    """Run three members that send all the time."""
    sends = [
        SendMessages(at_ns, name, (payload(name, at_ns, 20),))
        for name in NAMES
        for at_ns in range(0, calm_ns, 5 * NS_PER_MS)
    ]
    script = Script(plan.seed, NS_PER_MS, calm_ns, actions=[*initial_actions(NAMES), *sends])
    script.actions += more  # type: ignore[arg-type]
    script.actions.sort(key=lambda action: action.at_ns)
    world = World(Config(max_frame_bytes=1400), script, faults=[], sealing=plan)
    world.run()
    return world


@pytest.mark.parametrize("membership", [False, True])
def test_seeds_keep_every_invariant(*, membership: bool) -> None:
    seals, faults, seen = Counter[str](), Counter[str](), set[str]()
    for seed in range(4, 12):
        result = simulate(seed, membership=membership, sealed=True, messages=20)
        assert result.ok, (seed, result.violations)
        seals.update(result.seals)
        faults.update(result.faults)
        seen |= result.seen
    assert seals["opened"] > 500
    assert set(ATTACKS) <= set(faults)
    assert seen & set(REQUIRED_SEALING_COVERAGE)


def test_a_seed_has_one_digest_and_without_seals_another() -> None:
    first = simulate(4, sealed=True, messages=20)
    assert first.digest == simulate(4, sealed=True, messages=20).digest
    plain = simulate(4, messages=20)
    assert plain.digest != first.digest
    assert plain.seals == {}
    assert not set(plain.faults) & set(SEALING_FAULTS)


def test_without_an_adversary_a_sealed_run_rejects_nothing_and_delivers_the_same() -> None:
    plan = plan_of(1, character="calm", sealed=True, messages=20)
    assert plan.sealing is not None
    plan.sealing = plan.sealing._replace(attacks=(), successors=(SECOND_KEY,), rotations_ns=(0,))
    world = world_of(plan)
    world.run()
    assert world.sealed_group is not None
    counts = world.sealed_group.datagram_counts()
    assert world.oracle.violations == []
    assert set(counts) == {"sealed", "opened"}
    plain = simulate(1, character="calm", messages=20)
    assert world.driver.delivered_messages == plain.messages


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_attack_strikes_and_does_nothing(attack: str) -> None:
    world = run(SealingPlan(3, NAMES, (attack,), 0.3))
    group = world.sealed_group
    assert group is not None
    assert world.oracle.violations == []
    assert set(group.strike_counts()) == set(SEALING_FAULTS)
    assert group.strike_counts()[attack] > 10
    rejected = sum(count for name, count in group.counts.items() if name.startswith("rejected"))
    assert rejected > 10


def test_a_rotation_waits_for_a_paused_member() -> None:
    plan = SealingPlan(
        3, NAMES, successors=(SECOND_KEY, FIRST_KEY), rotations_ns=(0, 20 * NS_PER_MS), pace_ns=1000
    )
    world = run(plan, PauseProcess(1, "b"), ResumeProcess(100 * NS_PER_MS, "b"))
    group = world.sealed_group
    assert group is not None
    assert world.oracle.violations == []
    assert [group.counts[f"rotation-{state}"] for state in KeyState] == [2, 2, 2]
    assert {process.ring.sealing_key.key_id for process in group.processes.values()} == {FIRST_KEY}
    paused = run(plan, PauseProcess(1, "b"), calm_ns=20 * NS_PER_MS)
    group = paused.sealed_group
    assert group is not None
    assert group.counts["rotation-open"] == 1
    assert group.counts["rotation-seal"] == 0


def test_a_restarted_process_has_another_number_though_its_clock_was_set_back() -> None:
    restarted = (CrashProcess(20 * NS_PER_MS, "c"), StartProcess(30 * NS_PER_MS, "c'"))
    world = run(SealingPlan(3, NAMES, clock_back=1.0), *restarted)
    group = world.sealed_group
    assert group is not None
    assert group.counts["clock-back"] == 1
    assert "S26" not in {violation.check for violation in world.oracle.violations}


def test_a_member_that_is_resumed_from_a_copy_of_its_memory_is_noticed() -> None:
    """Keys do not stop this: the machine has to restart the member. S26 sees the second use."""
    script = Script(3, NS_PER_MS, 60 * NS_PER_MS, actions=list(initial_actions(NAMES)))
    script.actions += [
        SendMessages(at_ns, "a", (payload("a", at_ns, 20),))
        for at_ns in range(0, script.calm_ns, 5 * NS_PER_MS)
    ]
    world = World(Config(), script, faults=[], sealing=SealingPlan(3, NAMES))
    group = world.sealed_group
    assert group is not None
    world.run_until(30 * NS_PER_MS)
    assert world.oracle.violations == []
    for own in group.processes["a"].seal._own_keys.values():
        own.counter -= 2
    world.run_until(60 * NS_PER_MS)
    assert {violation.check for violation in world.oracle.violations} == {"S26"}


def test_the_edges_of_the_window_are_reached() -> None:
    world = run(SealingPlan(3, NAMES, edges_ns=(50 * NS_PER_MS,)))
    assert world.sealed_group is not None
    assert world.oracle.violations == []
    assert world.sealed_group.counts["rejected.replay"] == 3


def test_the_plan_of_a_run_without_loss_retires_no_key_in_use() -> None:
    script = Script(1, calm_ns=NS_PER_S, actions=initial_actions(NAMES), fifo=True)
    for seed in range(30):
        plan = draw_sealing(seed, "swarm", script)
        assert plan.waits_for_network
        assert not plan.edges_ns
        assert plan == draw_sealing(seed, "swarm", script)


@pytest.mark.parametrize(
    ("bug", "check"),
    [
        ("nonce of before", "S26"),
        ("my own words", "S24"),
        ("seen before it is true", "S25"),
        ("the old key seals on", "S27"),
    ],
)
def test_each_invariant_finds_its_bug(bug: str, check: str) -> None:
    plan = SealingPlan(
        3, NAMES, ("reflect", "flip", "invent"), 0.3, (SECOND_KEY,), (20 * NS_PER_MS,)
    )
    with plant(bug):
        world = run(plan, calm_ns=100 * NS_PER_MS)
    assert check in {violation.check for violation in world.oracle.violations}
