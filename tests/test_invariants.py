"""The registry of invariants is the only list: every checker implements exactly what it says."""

import ast
from pathlib import Path

import pytest

from gapless import invariants
from gapless.invariants import INVARIANTS, checked_by, sentence_of
from gapless.sim import CHECKERS
from gapless.sim.model_check.checks import CHECKS as SEARCH_CHECKS, STEP_CHECKS
from gapless.trace import CHECKS as ROW_CHECKS

SEARCH_ONLY = {"INVARIANTS", "EXCEPTION", "REDUCTION"}
ACROSS_STEPS = {"S8", "S17", "L5"}


def test_the_simulator_checks_what_the_registry_says() -> None:
    # S17 compares two runs, so that no checker of one run can look at it.
    assert {checker.id for checker in CHECKERS} == set(checked_by("simulator")) - {"S17"}


def test_the_search_checks_what_the_registry_says() -> None:
    assert set(SEARCH_CHECKS) == {*checked_by("search"), *SEARCH_ONLY}
    assert set(STEP_CHECKS) == set(checked_by("search")) - ACROSS_STEPS


def test_the_checks_of_rows_are_what_the_registry_says() -> None:
    assert tuple(ROW_CHECKS) == checked_by("rows")


def test_the_spark_checks_are_what_the_registry_says() -> None:
    pytest.importorskip("pyspark")
    from pyspark_gapless.verify import CHECKS, NOT_CHECKABLE

    assert tuple(CHECKS) == checked_by("spark")
    assert set(NOT_CHECKABLE) == set(INVARIANTS) - set(CHECKS)


def test_an_invariant_is_in_a_trace_or_says_why_not() -> None:
    for one in INVARIANTS.values():
        assert bool(one.not_in_trace) == ("spark" not in one.checked_by), one.id


def test_every_invariant_has_a_name_a_sentence_and_a_rule() -> None:
    assert len({one.name for one in INVARIANTS.values()}) == len(INVARIANTS)
    for key, one in INVARIANTS.items():
        assert key == one.id
        assert sentence_of(key) == one.sentence
        assert one.sentence[0].isupper(), one.sentence
        assert one.sentence.endswith("."), one.sentence
        assert not one.rule.endswith("."), one.rule
        assert "simulator" in one.checked_by or key == "L5"
    assert sentence_of("S99") == ""


def test_the_registry_imports_nothing_of_the_project() -> None:
    tree = ast.parse(Path(invariants.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "typing"}
