"""Every planted bug is caught, and the table in the docs is the table in the code."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from gapless.core.window import Fixed
from gapless.errors import LocalProtocolError
from gapless.sim.checkers import CHECKS
from gapless.sim.mutants import MUTANTS, Mutant, hunt, hunt_all, named, planted

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
MOST_SEEDS = 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_checks_catch(mutant: Mutant) -> None:
    verdict = hunt(mutant, MOST_SEEDS)
    assert verdict.check in {check.name for check in CHECKS}, f"survived {MOST_SEEDS} seeds: {mutant.bug}"


def test_there_are_enough_of_them() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15


def test_a_planted_bug_goes_away_again() -> None:
    mutant = named("ceiling+1")
    original = inspect.getattr_static(Fixed, "ceiling")
    with planted(mutant):
        assert Fixed(4).ceiling(0, 0) == 5
    assert inspect.getattr_static(Fixed, "ceiling") is original
    assert Fixed(4).ceiling(0, 0) == 4


def test_a_mutant_whose_text_is_gone_says_so() -> None:
    stale = named("ceiling+1")._replace(old="not in the source")
    with pytest.raises(LocalProtocolError, match="0 times"), planted(stale):
        pass


def test_an_unknown_name_lists_the_choices() -> None:
    with pytest.raises(LocalProtocolError, match="take over a gap"):
        named("nobody")


def test_a_harmless_change_survives() -> None:
    """The hunt tells a bug from a change that is none."""
    harmless = Mutant(
        "harmless", "no bug", "gapless.core.window:Fixed.ceiling", "low + self.capacity", "self.capacity + low"
    )
    (verdict,) = hunt_all([harmless], 2, 1, lambda _done: None)
    assert verdict.check == ""


def test_the_page_lists_every_planted_bug() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| ") and row.count("|") == 5]
    listed = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows}
    assert {mutant.name: mutant.bug for mutant in MUTANTS}.items() <= listed.items()
