"""Lives are called by the names that people know."""

from __future__ import annotations

from typing import Any

from gapless.report.labels import with_display_names


def figures(*lives: tuple[str, str, int], **more: Any) -> dict[str, Any]:
    return {
        "lives": [{"name": name, "member": member, "began_ns": at} for name, member, at in lives],
        **more,
    }


def test_the_lives_of_a_member_are_told_apart() -> None:
    lives = ("f0.2", "producer-1", 900), ("f0.1", "producer-1", 100), ("c.1", "collector", 50)
    found = with_display_names(
        figures(*lives, views=[{"members": ["c.1", "f0.2", "stranger"], "maker": "c.1"}], sent=3)
    )
    assert {life["in_trace"]: life["name"] for life in found["lives"]} == {
        "f0.1": "producer-1",
        "f0.2": "producer-1'",
        "c.1": "collector",
    }
    assert found["views"] == [
        {"members": ["collector", "producer-1'", "stranger"], "maker": "collector"}
    ]
    assert found["sent"] == 3


def test_lives_that_have_their_names_already_keep_them() -> None:
    """In a simulated run c and c' are incarnations of c: their labels must stay apart."""
    given = figures(("c", "c", 100), ("c'", "c", 900), windows=[{"member": "c"}, {"member": "c'"}])
    assert with_display_names(given) == given


def test_only_what_names_a_life_is_renamed() -> None:
    """A life that is called like a state must not change what the page says about a check."""
    given = figures(
        ("violated", "held", 1), mode="violated", verdict={"checks": [{"state": "violated"}]}
    )
    found = with_display_names({**given, "blocked": [{"caused_by": [{"member": "violated"}]}]})
    assert found["verdict"] == given["verdict"]
    assert found["mode"] == "violated"
    assert found["blocked"] == [{"caused_by": [{"member": "held"}]}]


def test_names_that_would_be_taken_for_each_other_are_left_alone() -> None:
    lives = ("a.1", "x", 1), ("a.2", "x", 2), ("b.1", "x'", 3)
    given = figures(*lives, windows=[{"member": "a.1"}])
    assert with_display_names(given) == given


def test_a_run_that_nobody_has_named_is_left_alone() -> None:
    given = figures(("a", "a", 1), ("b", "", 2), windows=[{"member": "a"}])
    assert with_display_names(given) == given
