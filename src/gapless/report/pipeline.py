"""The pipeline: what came of the messages behind the group. Whatever tables the figures have are shown as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gapless.report import words
from gapless.report.markup import Html, called, join, tag
from gapless.report.plot import Table, table
from gapless.report.verdict import tile

MOST_ROWS = 100
"""Rows of one table."""
Unit = Callable[[float], str]
# The longest ending first: a rate ends in "_s" too.
_UNITS: dict[str, Unit] = {
    "_per_s": words.count,
    "_bytes": words.size,
    "_ns": words.duration,
    "_s": lambda span_s: words.duration(span_s * 1e9),
}


def section(figures: object) -> Html | None:
    """Return numbers as tiles, and lists of objects as tables."""
    if not isinstance(figures, dict) or not figures:
        return None
    tiles = [
        tile(_title(name), _shown(name, value))
        for name, value in figures.items()
        if not isinstance(value, (dict, list))
    ]
    parts: list[Html] = [tag("dl", *tiles, class_="tiles small")] if tiles else []
    parts += [_part(name, value) for name, value in figures.items() if isinstance(value, (dict, list)) and value]
    return join(parts)


def _part(name: str, value: Any) -> Html:
    title = _title(name)
    if isinstance(value, dict):
        if value and all(isinstance(one, dict) for one in value.values()):
            rows = [{"name": key, **one} for key, one in value.items()]
        else:
            rows = [{"what": _title(key), "value": _shown(key, one)} for key, one in value.items()]
    else:
        rows = [one if isinstance(one, dict) else {"value": one} for one in value]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    numeric = frozenset(
        at
        for at, column in enumerate(columns)
        if at and all(isinstance(row.get(column), (int, float, type(None))) for row in rows)
    )
    cells = [tuple(_shown(column, row.get(column)) for column in columns) for row in rows[:MOST_ROWS]]
    note = "" if len(rows) <= MOST_ROWS else f"The first {MOST_ROWS} of {words.count(len(rows))}."
    content = Table([_title(column) for column in columns], cells, note, numeric or frozenset({-1}))
    return tag("div", tag("h3", title), table(content, title), class_="card plain")


def _unit(name: object) -> tuple[str, Unit | None]:
    """Return the ending of a name that tells its unit, and how such numbers are written."""
    return next(((ending, unit) for ending, unit in _UNITS.items() if str(name).endswith(ending)), ("", None))


def _title(name: object) -> str:
    ending, _ = _unit(name)
    rate = " per second" if ending == "_per_s" else ""
    return str(name).removesuffix(ending).replace("_", " ") + rate


def _shown(name: object, value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return (_unit(name)[1] or words.count)(value)
    if value is None:
        return words.NONE
    if isinstance(value, (dict, list)):
        return ", ".join(map(str, value))[:200]
    return called(value, 120)
