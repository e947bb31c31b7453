"""Every planted bug is caught, and the table in the docs is the table in the code."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gapless.errors import LocalProtocolError
from gapless.protocol.stream.window import FixedWindow
from gapless.sim.checkers.stream_safety import CHECKERS
from gapless.sim.mutants.catalogue import MUTANTS, mutant_by_name
from gapless.sim.mutants.hunt import hunt, hunt_all
from gapless.sim.mutants.membership_mutants import SCENARIO_MUTANTS
from gapless.sim.mutants.planting import Mutant, planted
from gapless.sim.mutants.seal_mutants import TRANSPORT_MUTANTS
from gapless.sim.oracle.oracle import InvariantViolation
from gapless.sim.runner import simulate
from gapless.sim.scenario.scenario_file import load
from gapless.sim.swarm.profile_draw import ALL_PROFILES

PAGE = Path(__file__).parents[2] / "docs" / "internals/testing.md"
SCENARIOS = Path(__file__).parents[1] / "scenarios" / "planted"
MOST_SEEDS = 60


def table() -> list[list[str]]:
    """Return the rows of the page's table: mutant, bug, profile, check and number of seeds."""
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in PAGE.read_text(encoding="utf-8").splitlines()
        if row.startswith("| ")
    ]
    return [row for row in rows if len(row) == 5]


KNOWN_SEEDS = {row[0]: int(row[4]) - 1 for row in table() if row[4].isdecimal()}
"""The failing seed of each mutant when the table was made: the hunt begins there."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_checks_catch(mutant: Mutant) -> None:
    verdict = hunt(mutant, MOST_SEEDS, first=KNOWN_SEEDS.get(mutant.name, 0))
    assert verdict.check in {check.id for check in CHECKERS}, (
        f"survived {MOST_SEEDS} seeds: {mutant.bug}"
    )


@pytest.mark.parametrize("mutant", SCENARIO_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_rare_story_has_a_scenario(mutant: Mutant) -> None:
    assert load(SCENARIOS / f"{mutant.name.replace(' ', '-')}.txt").bug == mutant.name


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 49


def test_every_profile_has_some() -> None:
    assert {mutant.profile for mutant in MUTANTS} == {"", *ALL_PROFILES}


def test_a_planted_bug_goes_away_again() -> None:
    mutant = mutant_by_name("ceiling+1")
    original = inspect.getattr_static(FixedWindow, "ceiling")
    with planted(mutant):
        assert FixedWindow(4).ceiling(0, 0) == 5
    assert inspect.getattr_static(FixedWindow, "ceiling") is original
    assert FixedWindow(4).ceiling(0, 0) == 4


@pytest.mark.interpreted("plants a bug")
def test_a_mutant_whose_text_is_gone_says_so() -> None:
    stale = mutant_by_name("ceiling+1")._replace(old="not in the source")
    with pytest.raises(LocalProtocolError, match="0 times"), planted(stale):
        pass


@pytest.mark.parametrize("mutant", [*MUTANTS, *TRANSPORT_MUTANTS], ids=lambda mutant: mutant.name)
def test_every_bug_can_be_planted(mutant: Mutant) -> None:
    """The quick half of the hunt: the source has changed, and so must the bug."""
    with planted(mutant):
        pass


def test_a_planted_bug_breaks_nothing_else() -> None:
    """A method that is changed still finds the class above its own."""
    with planted(mutant_by_name("leaves in a hurry")):
        assert simulate(0, membership=True, fail_fast=True).ok


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(LocalProtocolError, match="take over a gap"):
        mutant_by_name("nobody")


def test_a_harmless_change_survives() -> None:
    """The hunt distinguishes a bug from a harmless change."""
    harmless = Mutant(
        "harmless",
        "no bug",
        "gapless.protocol.stream.window:FixedWindow.ceiling",
        "low + self.capacity",
        "self.capacity + low",
    )
    (verdict,) = hunt_all([harmless], 2, 1, lambda _done: None)
    assert verdict.check == ""


def test_a_seed_that_fails_by_itself_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = simulate(0)
    failed.violations.append(InvariantViolation("S3", 0, "a", "broken"))
    monkeypatch.setattr("gapless.sim.mutants.hunt.simulate", lambda seed, **options: failed)
    assert hunt(mutant_by_name("ceiling+1"), 3).check == ""


def test_the_page_lists_every_planted_bug() -> None:
    listed = {(row[0], row[1], row[2]) for row in table()}
    assert {
        (mutant.name, mutant.bug, mutant.profile or "any")
        for mutant in (*MUTANTS, *SCENARIO_MUTANTS, *TRANSPORT_MUTANTS)
    } <= listed
