"""Pages, made once, and one browser for all tests that look at them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gapless.report import render
from tests.report import cases
from tests.report.browser import Browser, find
from tests.report.simulated import broken_figures, story_figures


@cache
def figures_of(name: str) -> dict[str, Any]:
    """Return the figures of a page by its name."""
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "story": lambda: story_figures(messages=160),
        "broken": broken_figures,
        "crowd": lambda: cases.crowd(violations=200, points=100),
        "nothing": cases.nothing,
        "alone": cases.alone,
        "sampled": cases.sampled,
        "hostile": cases.hostile,
        "unjudged": cases.unjudged,
        "sweep": cases.sweep,
        "failed sweep": lambda: cases.sweep(failed=3),
    }
    return made[name]()


@cache
def page_of(name: str) -> str:
    """Return a page by its name."""
    return render(figures_of(name))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real browser; without one its tests are skipped, unless GAPLESS_BROWSER=required."""
    path = find()
    if path is None:
        wanted = "no browser: install chromium, or name one in GAPLESS_BROWSER"
        if os.environ.get("GAPLESS_BROWSER"):
            pytest.fail(wanted)
        pytest.skip(wanted)
    running = Browser(path)
    yield running
    running.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that gives the file of a page."""
    folder = tmp_path_factory.mktemp("pages")

    def file_of(name: str) -> Path:
        path = folder / f"{name.replace(' ', '-')}.html"
        if not path.exists():
            path.write_text(page_of(name), encoding="utf-8")
        return path

    return file_of
