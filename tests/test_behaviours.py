"""The ledger of behaviours: complete, in order, and shown by tests, line by line."""

import re
from functools import cache
from pathlib import Path

import pytest

from tools.behaviours import PAGE, BehaviourLedger, read_ledger

ROOT = Path(__file__).resolve().parent.parent

SECTIONS = {"N7": 25, "N4": 41, "NR": 20, "OL": 21, "U3": 30, "G": 12, "J": 6, "I": 22, "P": 22}
"""How many behaviours each section has."""


@cache
def ledger() -> BehaviourLedger:
    return read_ledger(ROOT)


def test_every_behaviour_is_shown_by_a_test() -> None:
    assert ledger().untested == []


def test_every_mark_names_a_behaviour_of_the_ledger() -> None:
    assert {name: ledger().tests[name] for name in ledger().unknown} == {}


def test_the_ids_of_every_section_are_complete_and_in_order() -> None:
    expected = [
        f"{section}-{number:02}"
        for section, count in SECTIONS.items()
        for number in range(1, count + 1)
    ]
    assert list(ledger().behaviours) == expected


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_its_heading_and_its_line_in_the_overview(section: str) -> None:
    page = (ROOT / PAGE).read_text()
    assert re.search(rf"^## {section}: ", page, re.MULTILINE)
    assert re.search(rf"^\| {section} \| ", page, re.MULTILINE)


def test_every_behaviour_says_something_of_its_own() -> None:
    texts = list(ledger().behaviours.values())
    assert all(len(text) >= 20 and text.endswith(".") for text in texts)
    assert len(set(texts)) == len(texts)


def test_what_the_page_refers_to_is_in_it() -> None:
    """A reading that points to another line points to one that exists."""
    page = (ROOT / PAGE).read_text()
    named = set(re.findall(r"\b(?:N7|N4|NR|OL|U3|G|J|I|P)-\d\d\b", page))
    assert sorted(named - ledger().behaviours.keys()) == []
