"""Shrinking: small, deterministic, honest; and every planted bug has a scenario that shows it."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

from gapless.cli.app import run
from gapless.config import Config
from gapless.sim.mutants.catalogue import MUTANTS, plant
from gapless.sim.runner import simulate
from gapless.sim.scenario.grammar import read_script
from gapless.sim.scenario.scenario_file import (
    Scenario,
    difference,
    format_head,
    load,
    parse,
    play,
)
from gapless.sim.script import Script, SendMessages, initial_actions, payload
from gapless.sim.shrink import shrinker as shrinking
from gapless.sim.shrink.minimizer import Minimizer, ShrinkCase
from gapless.sim.shrink.replay import FailurePredicate, is_sound
from gapless.sim.shrink.shrinker import (
    NotReproducedError,
    SeedOrigin,
    recorded,
    shrink,
    shrink_seed,
)

TESTS = Path(__file__).resolve().parents[2]
PLANTED = sorted((TESTS / "scenarios" / "planted").glob("*.txt"))
REGRESSIONS = TESTS / "seeds" / "regressions.txt"

GAP = "take over a gap"
"""A planted bug that fails in the first seeds, in many ways."""


def failing(bug: str) -> SeedOrigin:
    """Return the first small run of the swarm that fails because of a planted bug."""
    return next(origin for seed in range(200) if recorded(origin := SeedOrigin(seed, 6), bug)[1])


def script_of(*lines: str) -> Script:
    return read_script(enumerate(lines, 1))


# Planted bugs


@pytest.mark.parametrize("path", PLANTED, ids=lambda path: path.stem)
def test_planted_bug_is_caught_and_nothing_else(path: Path) -> None:
    scenario = load(path)
    assert scenario.bug
    outcome = play(scenario)
    assert difference(scenario, outcome) == [], "regenerate with: gapless shrink --all-mutants"
    assert outcome.lines[-1].startswith("violates ")
    assert play(scenario, bug="").lines[-1] == "ok"


def test_planted_scenarios_are_short() -> None:
    lengths = [
        sum(not line.startswith("#") and bool(line) for line in load(path).head.splitlines())
        for path in PLANTED
    ]
    assert median(lengths) <= 10
    assert max(lengths) <= 20


def test_planted_scenarios_are_those_of_the_table() -> None:
    bugs = [load(path).bug for path in PLANTED]
    assert len(set(bugs)) == len(bugs)
    # A run in which members make their views takes a hundred times as long to shrink: those bugs
    # are only hunted. A script contains no keys: those in sealed groups are only hunted as well.
    output = {mutant.name for mutant in MUTANTS if not (mutant.membership or mutant.sealed)}
    missing = output - set(bugs)
    assert len(missing) <= len(output) // 10, (
        f"regenerate with: gapless shrink --all-mutants; missing: {missing}"
    )


# Seeds that once failed


def regressions() -> list[tuple[int, int]]:
    lines = [
        line.partition("#")[0].split()
        for line in REGRESSIONS.read_text(encoding="utf-8").splitlines()
    ]
    return [(int(words[0]), int(words[1]) if len(words) > 1 else 100) for words in lines if words]


@pytest.mark.parametrize(("seed", "messages"), regressions())
def test_seed_that_once_failed_holds(seed: int, messages: int) -> None:
    assert simulate(seed, messages=messages).violations == []


# Sound scripts


@pytest.mark.parametrize("seed", range(1, 41))
def test_every_run_of_the_swarm_is_sound(seed: int) -> None:
    case, _ = recorded(SeedOrigin(seed, 3))
    assert is_sound(case.script)


@pytest.mark.parametrize(
    "lines",
    [
        ["group a b", "5ms b pauses", "calm 9ms"],
        ["group a b", "5ms b crashes", "calm 9ms"],
        ["group a b", "5ms a installs view 2: a", "calm 9ms"],
        ["group a b", "5ms a installs view 2: a b", "calm 9ms"],
        ["group a b", "5ms a b install view 1: a b", "calm 9ms"],
        ["group a b", "5ms a installs view 2: a b", "5ms b installs view 2: b", "calm 9ms"],
        ["group a b", "5ms c starts", "calm 9ms"],
        ["group a", "5ms a installs view 2: a b", "calm 9ms"],
        ["group a b", "5ms a b install view 2: a b from zero", "calm 9ms"],
        ["group a", '5ms b sends "x"', "calm 9ms"],
        ["group a b", "5ms b crashes", "6ms b starts", "6ms a b install view 2: a b", "calm 9ms"],
        ["group a b", "5ms b pauses", "6ms b resumes", "calm 5ms"],
        ["group a b", '5ms a sends "x"', '4ms b sends "x"'],
        ["group a b", "only loss", "delay DATA a1 a->b #1 to 9ms", "calm 9ms"],
        ["membership", "calm 9ms"],
        ["membership", "group a b", "calm 9ms"],
        ["membership", "1ms a starts", "2ms a pauses", "calm 9ms"],
        ["membership", "1ms a starts", "2ms b leaves", "calm 9ms"],
        ["membership", "1ms a b start", "2ms mark partition a", "calm 9ms"],
        ["membership", "1ms a b start", "2ms mark partition a", "3ms mark heal b", "calm 9ms"],
        ["membership", "1ms a starts", "9ms a crashes", "calm 8ms"],
    ],
)
def test_what_the_checks_have_no_right_to_judge_is_not_sound(lines: list[str]) -> None:
    assert not is_sound(script_of(*lines))


def test_a_crash_with_its_view_is_sound() -> None:
    assert is_sound(script_of("group a b", "5ms b crashes", "6ms a installs view 2: a", "calm 9ms"))
    assert is_sound(script_of("group a b", "5ms b pauses", "6ms b resumes", "calm 6ms"))


def test_members_that_make_their_own_views_may_come_and_go() -> None:
    cut = ["2ms mark partition a", "3ms mark heal a"]
    assert is_sound(
        script_of("membership", "1ms a b start", *cut, "4ms a crashes", "5ms a starts", "calm 9ms")
    )
    assert is_sound(
        script_of(
            "membership",
            "1ms a b start",
            "2ms a pauses",
            "3ms a crashes",
            "4ms b leaves",
            "calm 9ms",
        )
    )


@pytest.mark.parametrize("seed", range(6))
def test_every_run_of_membership_is_sound(seed: int) -> None:
    case, _ = recorded(SeedOrigin(seed, 3, membership=True))
    assert is_sound(case.script)


def test_a_fault_in_the_calm_does_not_count() -> None:
    lines = ["group a b", '1ms a sends "x"', '2ms a sends "y"', "lose DATA a1 a->b #1"]
    assert not FailurePredicate("S3", GAP)(ShrinkCase(Config(), script_of(*lines)))
    assert FailurePredicate("S3", GAP)(ShrinkCase(Config(), script_of(*lines, "calm 5ms")))


def test_what_fails_without_the_bug_does_not_count() -> None:
    case = ShrinkCase(
        Config(), script_of("group a b", '1ms a sends "x"', "calm 1ms", "lose DATA a1 a->b #1..2")
    )
    assert FailurePredicate("L1", "tail unheard")(case)
    lost_for_ever = "lose TAIL a0..1 a->b #1..500"
    assert not FailurePredicate("L1", "tail unheard")(
        ShrinkCase(Config(), script_of("group a b", '1ms a sends "x"', lost_for_ever))
    )


# The search


def numbers(count: int) -> ShrinkCase:
    sends = [SendMessages(at * 1000, "a", (payload("a", at, 8),)) for at in range(count)]
    return ShrinkCase(
        Config(), Script(actions=[*initial_actions(("a", "b")), *sends], calm_ns=10**9)
    )


def sent(case: ShrinkCase) -> set[int]:
    """Return the original numbers of the messages of a case."""
    payloads = (
        one
        for action in case.script.actions
        if isinstance(action, SendMessages)
        for one in action.payloads
    )
    return {int(found[1]) for one in payloads if (found := re.match(rb"a(\d+)\|", one))}


@pytest.mark.parametrize("wanted", [set(), {0}, {63}, {3, 40}, {7, 8, 9, 50}])
def test_minimise_leaves_exactly_what_is_needed(wanted: set[int]) -> None:
    search = Minimizer(numbers(64), lambda case: wanted <= sent(case))
    actions = search.script.actions
    left = search.minimise(
        range(4, len(actions)),
        lambda kept: search.case._replace(
            script=Script(actions=[*actions[:4], *(actions[at] for at in kept)])
        ),
    )
    assert {at - 4 for at in left} == wanted == sent(search.case)
    assert search.tries < 150


def test_the_budget_is_kept() -> None:
    asked: list[ShrinkCase] = []

    def still_fails(case: ShrinkCase) -> bool:
        asked.append(case)
        return False

    progress: list[int] = []
    search = shrink(numbers(500), still_fails, most_tries=5, progress=progress.append)
    assert len(asked) == search.tries == 5
    assert progress == [1, 2, 3, 4, 5]


def test_nothing_grows() -> None:
    case, check = recorded(failing(GAP), GAP)
    weights = [case.weight()]
    trial = FailurePredicate(check, GAP)

    def still_fails(candidate: ShrinkCase) -> bool:
        if not trial(candidate):
            return False
        weights.append(candidate.weight())
        return True

    shrink(case, still_fails)
    assert len(weights) > 5
    assert weights == sorted(weights, reverse=True)


# From a seed to a scenario


def test_a_failing_seed_becomes_a_few_lines_always_the_same() -> None:
    first = shrink_seed(failing(GAP), bug=GAP)
    second = shrink_seed(failing(GAP), bug=GAP)
    assert first is not None
    assert second is not None
    assert first.scenario.text() == second.scenario.text()
    assert first.script_lines <= 8
    assert first.scenario.notes[0] == "A planted bug: delivery continues behind a missing message."
    again = parse(first.scenario.text())
    assert format_head(Scenario(again.script, again.config, again.bug, again.notes)) == again.head
    assert play(again).lines == first.scenario.outcome
    assert first.file_name == "take-over-a-gap.txt"


@pytest.mark.parametrize("bug", ["purge at maximum", "tail unheard", "no wake-up by views"])
def test_without_knowing_the_bug_the_scenario_still_shows_that_bug(bug: str) -> None:
    origin = failing(bug)
    with plant(bug):
        found = shrink_seed(origin)
    assert found is not None
    assert found.script_lines <= 10
    assert play(found.scenario, bug=bug).lines == found.scenario.outcome
    assert play(found.scenario).ok, "the shrinker slipped to a script that nobody could keep"


def test_the_command_that_repeats_a_run() -> None:
    assert SeedOrigin(7).command == "gapless sim 7"
    config = Config.make(capacity=4, xmit_interval="50ms")
    assert SeedOrigin(7, 3, 2, config).command == (
        'gapless sim 7 --messages 3 --members 2 --properties "capacity=4;xmit_interval=50ms"'
    )
    assert SeedOrigin(7, 40, membership=True).command == "gapless sim 7 --membership"
    assert SeedOrigin(7, membership=True).command == "gapless sim 7 --membership --messages 100"


def test_a_seed_that_holds_cannot_be_shrunk() -> None:
    assert shrink_seed(SeedOrigin(2, 4)) is None


def test_a_seed_whose_script_does_not_fail_is_kept_as_a_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, _ = recorded(SeedOrigin(2, 2))
    monkeypatch.setattr(shrinking, "recorded", lambda origin, bug="": (case, "S3"))
    with pytest.raises(NotReproducedError, match="gapless sim 2"):
        shrink_seed(SeedOrigin(2))


def test_a_run_that_is_not_fair_is_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    case = ShrinkCase(Config(), script_of("group a b", "5ms b pauses", "calm 9ms"))
    monkeypatch.setattr(shrinking, "recorded", lambda origin, bug="": (case, "L2"))
    with pytest.raises(
        NotReproducedError, match="seed 7 violates L2, but its script is not a fair run"
    ):
        shrink_seed(SeedOrigin(7))


# The command


def test_command_writes_and_shows_the_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "shrink",
                str(failing(GAP).seed),
                "--messages",
                "6",
                "--mutant",
                GAP,
                "-o",
                str(tmp_path),
            ]
        )
        == 0
    )
    (path,) = tmp_path.iterdir()
    text = path.read_text(encoding="utf-8")
    assert f"planted: {GAP}\n" in text
    assert text in capsys.readouterr().out
    assert run(["scenario", str(path)]) == 0


def test_command_hunts_a_planted_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["shrink", "--mutant", "purge at maximum", "-o", str(tmp_path)]) == 0
    assert "violates S9" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["purge-at-maximum.txt"]


def test_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "shrink",
                str(failing(GAP).seed),
                "--messages",
                "6",
                "--mutant",
                GAP,
                "-o",
                str(tmp_path),
                "--json",
            ]
        )
        == 0
    )
    output = json.loads(capsys.readouterr().out)
    assert output["planted"] == GAP
    assert Path(output["file"]).read_text(encoding="utf-8") == output["scenario"]
    assert output["lines"] <= 8


def test_a_bug_that_nobody_planted_is_found_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shrink_seed(failing(GAP), bug=GAP)
    assert found is not None
    found.scenario.bug = ""
    monkeypatch.setattr(shrinking, "shrink_seed", lambda origin, **options: found)
    assert run(["shrink", "1", "-o", str(tmp_path)]) == 1
    assert re.fullmatch(r"S\d+-[0-9a-f]{8}\.txt", next(tmp_path.iterdir()).name)
    assert (
        f"\n{found.origin.seed} {found.origin.messages}  # {found.check}" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["2", "--messages", "4"], "seed 2 does not fail, so there is nothing to shrink"),
        ([], "name the SEED to shrink"),
        (["1", "--all-mutants"], "leave SEED and --mutant out"),
        (["1", "--mutant", "gremlins"], "unknown mutant 'gremlins'"),
    ],
)
def test_command_refuses_what_it_cannot_do(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["shrink", *arguments]) == 2
    output = capsys.readouterr().err
    assert complaint in output
    assert output.count("\n") == 1


def test_command_shrinks_every_planted_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "gapless.sim.mutants.catalogue.MUTANTS", tuple(one for one in MUTANTS if one.name == GAP)
    )
    assert run(["shrink", "--all-mutants", "-o", str(tmp_path)]) == 0
    assert "take over a gap" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["take-over-a-gap.txt"]
