"""The world: a seed is one run in every process; scripts replay; hosts pause and crash."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from gapless.config import Config
from gapless.faults.faults import DriftingClock, Loss
from gapless.faults.frame_names import FrameName
from gapless.rng import split
from gapless.sim import CHECKERS, World, draw, simulate
from gapless.sim.checkers.stream_safety import NoCreationChecker
from gapless.sim.runner import same_digest, seed_result, world_of
from gapless.sim.script import (
    LOST,
    Action,
    CancelSend,
    CrashProcess,
    Fate,
    InstallView,
    PauseProcess,
    ResumeProcess,
    SaveDigest,
    Script,
    SendMessages,
    SetReadDelay,
    StartProcess,
    initial_actions,
    payload,
)
from gapless.sim.world.tracer import SimulationTracer
from gapless.units import NS_PER_MS, NS_PER_S

SEEDS = (3, 5, 14, 29)


def play(*actions: Action, config: Config | None = None, **options: object) -> World:
    """Play actions in a group of a, b, c from the start, and check that no check failed."""
    script = Script(actions=[*initial_actions(("a", "b", "c")), *actions], **options)  # type: ignore[arg-type]
    world = World(config or Config(), script, keep_payloads=True)
    world.run()
    assert world.oracle.violations == []
    return world


def received(world: World, name: str) -> dict[str, list[bytes]]:
    return world.hosts[name].received


# S17


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_s17_a_seed_is_one_run_in_every_process(seed: int) -> None:
    code = f"from gapless.sim import simulate; print(simulate({seed}).digest)"
    digests = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            env=environment,
            text=True,
        )
        digests.add(done.stdout.strip())
    assert digests == {simulate(seed).digest}
    assert same_digest(seed, digests.pop())


def test_s17_another_seed_is_another_run() -> None:
    assert len({simulate(seed).digest for seed in SEEDS}) == len(SEEDS)


def test_the_digest_does_not_depend_on_who_watches() -> None:
    plan = draw(SEEDS[0])
    world = World(
        plan.config,
        plan.script,
        faults=plan.faults,
        late_timers=plan.late_timers,
        checkers=[NoCreationChecker],
    )
    world.run()
    assert world.digest() == simulate(SEEDS[0], trace=True, record=True).digest


# Scripts


@pytest.mark.parametrize("seed", SEEDS)
def test_the_script_of_a_run_repeats_it(seed: int) -> None:
    plan = draw(seed)
    first = world_of(plan, record=True)
    first.run()
    again = World(plan.config, first.recorded(), record=True)
    again.run()
    assert again.digest() == first.digest()
    assert again.oracle.violations == first.oracle.violations
    assert {name: fate.copies for name, fate in again.network.fates.items()} == {
        name: fate.copies for name, fate in first.network.fates.items()
    }


def test_taking_one_fate_out_leaves_the_names_of_the_others_alone() -> None:
    sends = [SendMessages(at * NS_PER_MS, "a", (b"%d" % at,)) for at in range(1, 6)]
    names = [FrameName("DATA", "a", at, at, "a", "b", 1) for at in (1, 3, 5)]
    struck = []
    for fates in (names, names[1:]):
        world = play(*sends, fates=dict.fromkeys(fates, LOST), calm_ns=NS_PER_S)
        assert received(world, "b") == {"a": [b"1", b"2", b"3", b"4", b"5"]}
        struck.append(world.network.data_lost)
    assert struck == [3, 2]


def test_a_fate_can_delay_double_and_damage() -> None:
    name = FrameName("DATA", "a", 1, 1, "a", "b", 1)
    fate = Fate(
        (
            (5 * NS_PER_MS, None, ""),
            (9 * NS_PER_MS, None, "duplicate"),
            (NS_PER_MS, b"x", "forged"),
        ),
        "test",
    )
    world = play(SendMessages(0, "a", (b"x",)), fates={name: fate}, calm_ns=NS_PER_S)
    counters = world.hosts["b"].member.counters  # type: ignore[union-attr]
    assert received(world, "b") == {"a": [b"x"]}
    assert counters["dropped.short"] == 1
    assert counters["dropped.old"] == 1


def test_a_late_timer_of_a_script_is_late() -> None:
    config = Config.make(ack_delay="10ms", jitter_percent=0)
    script = Script(
        actions=[*initial_actions(("a", "b")), SendMessages(0, "a", (b"x",))],
        late_ns={("b", 1): 5 * NS_PER_MS},
    )
    world = World(config, script, trace=True)
    world.run()
    assert isinstance(world.tracer, SimulationTracer)
    acks_ns = [row.t_ns for row in world.tracer.rows if row.event == "ACK_OUT"]
    assert acks_ns[0] == 16 * NS_PER_MS


def test_what_a_script_does_to_the_dead_does_not_happen() -> None:
    world = play(
        CrashProcess(1, "c"),
        InstallView(2, "a", 2, ("a", "b")),
        InstallView(2, "b", 2, ("a", "b")),
        SendMessages(3, "c", (b"x",)),
        PauseProcess(3, "c"),
        ResumeProcess(4, "c"),
        SetReadDelay(4, "c", 1),
        SaveDigest(4, "c", "k"),
        CancelSend(5, "a", 7),
        InstallView(6, "a", 2, ("a", "b")),
        StartProcess(7, "d"),
        SendMessages(8, "d", (b"never a member",)),
        CrashProcess(9, "d"),
        SendMessages(9, "a", (b"y",)),
    )
    assert received(world, "b") == {"a": [b"y"]}


# Hosts


def test_clocks_differ_and_drift() -> None:
    clocks = {
        "a": DriftingClock(5 * NS_PER_S, 50_000),
        "b": DriftingClock(0, -50_000),
        "c": DriftingClock(NS_PER_S, 0),
    }
    sends = [SendMessages(at * NS_PER_MS, name, (b"x",)) for at in range(20) for name in "abc"]
    world = play(*sends, clocks=clocks)
    assert {len(messages) for messages in received(world, "b").values()} == {20}


def test_a_paused_member_buffers_a_bounded_number_of_bytes() -> None:
    config = Config.make(receive_buffer_bytes="1KiB", capacity=64)
    sends = [SendMessages(at * NS_PER_MS, "a", (payload("a", at, 200),)) for at in range(1, 20)]
    world = play(
        PauseProcess(0, "b"),
        *sends,
        ResumeProcess(30 * NS_PER_MS, "b"),
        config=config,
        calm_ns=30 * NS_PER_MS,
    )
    assert world.network.link_counters["a", "b"].dropped > 0
    assert "process paused with a full buffer" in world.stream_coverage.seen
    assert len(received(world, "b")["a"]) == 19


def test_what_a_paused_member_was_to_do_happens_when_it_goes_on() -> None:
    world = play(
        PauseProcess(0, "b"),
        SendMessages(1, "b", (b"later",)),
        ResumeProcess(5 * NS_PER_MS, "b"),
        calm_ns=5 * NS_PER_MS,
    )
    assert received(world, "a") == {"b": [b"later"]}


@pytest.mark.interpreted("replaces a method")
def test_an_error_of_the_machine_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from gapless.protocol.stream.outbound import OutboundStream

    def broken(*args: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(OutboundStream, "on_ack", broken)
    world = World(
        Config(), Script(actions=[*initial_actions(("a", "b")), SendMessages(0, "a", (b"x",))])
    )
    world.run()
    assert "S13" in {violation.check for violation in world.oracle.violations}


# Runs


def test_an_outcome_says_what_happened() -> None:
    outcome = simulate(SEEDS[1], record=True, trace=True)
    assert outcome.ok
    assert outcome.events > outcome.steps > 100
    assert outcome.messages > 0
    assert outcome.script is not None
    assert outcome.trace is not None
    events = Counter(row.event for row in outcome.trace)
    assert events["SEND"]
    assert events["DELIVER"]
    assert events["TX"] > events["NET_DROP"] > 0
    assert sum(outcome.faults.values()) >= len(outcome.script.fates)


@pytest.mark.parametrize("character", ["calm", "loss", "swarm"])
def test_every_character_can_be_asked_for(character: str) -> None:
    outcome = simulate(11, members=3, messages=20, character=character)
    assert outcome.ok
    assert outcome.character == character
    assert bool(outcome.faults) == (character != "calm")


def test_checks_can_be_chosen() -> None:
    script = Script(actions=initial_actions(("a",)))
    assert [
        check.id for check in World(Config(), script, checkers=[NoCreationChecker]).oracle.checkers
    ] == [
        "S1",
        "must happen",
    ]
    assert len(World(Config(), script).oracle.checkers) == len(CHECKERS) + 1


def test_a_world_of_loss_alone_is_judged_by_its_cost() -> None:
    sends = [SendMessages(at * NS_PER_MS, "a", (b"%d" % at,)) for at in range(50)]
    script = Script(
        actions=[*initial_actions(("a", "b")), *sends], calm_ns=NS_PER_S, only_loss=True
    )
    world = World(Config(), script, faults=[Loss(split(1, "loss"), [0.3])])
    world.run()
    assert seed_result(1, "loss", "nakack4", world).ok
    assert world.oracle.cost == (world.network.data_lost, world.network.data_bursts)
    assert world.network.data_lost > 5
