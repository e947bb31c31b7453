"""The pipeline behind the group: numbers and tables from the figures, shown unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gapless.report import formatting
from gapless.report.charts.lines import ChartTable, table
from gapless.report.html import Html, join_markup, name_markup, tag
from gapless.report.sections.verdict import tile

MAX_ROWS = 100
"""Maximum number of rows of a table."""
Unit = Callable[[float], str]
"""The format of a number with a unit."""
# The longest ending first: a rate ends in "_s" too.
_UNITS: dict[str, Unit] = {
    "_per_s": formatting.count,
    "_bytes": formatting.size,
    "_ns": formatting.duration,
    "seconds": lambda span_s: formatting.duration(span_s * 1e9),
    "_s": lambda span_s: formatting.duration(span_s * 1e9),
}


def section(figures: object) -> Html | None:
    """Return numbers as tiles, and texts, lists and objects as tables."""
    if not isinstance(figures, dict) or not figures:
        return None
    tiles = [
        tile(_title(name), _shown(name, value))
        for name, value in figures.items()
        if isinstance(value, (int, float))
    ]
    parts: list[Html] = [tag("dl", *tiles, class_="tiles small")] if tiles else []
    parts += [
        _part(name, value)
        for name, value in figures.items()
        if isinstance(value, (dict, list)) and value
    ]
    texts = {name: value for name, value in figures.items() if isinstance(value, str) and value}
    if texts:
        parts.append(_part("details", texts))
    return join_markup(parts)


def _part(name: str, value: Any) -> Html:
    """Return a table: a row for each key of an object, or for each entry of a list."""
    if isinstance(value, dict) and not all(isinstance(one, dict) for one in value.values()):
        # A number in an object such as latency_s has the unit of the object, unless the name of the
        # number ends in a unit.
        plain = [
            (_title(key), _shown(key if _unit(key)[0] else name, one)) for key, one in value.items()
        ]
        numeric = all(isinstance(one, (int, float)) for one in value.values())
        return _table(_title(name), ("name", "value"), plain, {1} if numeric else set())
    rows = (
        [{"name": key, **one} for key, one in value.items()] if isinstance(value, dict) else value
    )
    rows = [one if isinstance(one, dict) else {"value": one} for one in rows]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [tuple(_shown(column, row.get(column)) for column in columns) for row in rows]
    numeric_columns = {
        at
        for at, column in enumerate(columns)
        if at and all(isinstance(row.get(column), (int, float, type(None))) for row in rows)
    }
    return _table(_title(name), [_title(column) for column in columns], cells, numeric_columns)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[tuple[object, ...]], numeric: set[int]
) -> Html:
    note = (
        "" if len(rows) <= MAX_ROWS else f"The first {MAX_ROWS} of {formatting.count(len(rows))}."
    )
    content = ChartTable(columns, rows[:MAX_ROWS], note, frozenset(numeric or {-1}))
    return tag("div", tag("h3", title), table(content, title), class_="card plain")


def _unit(name: object) -> tuple[str, Unit | None]:
    """Return the unit suffix of a name, and the format of its numbers."""
    return next(
        ((ending, unit) for ending, unit in _UNITS.items() if str(name).endswith(ending)),
        ("", None),
    )


def _title(name: object) -> str:
    ending, _ = _unit(name)
    rate = " per second" if ending == "_per_s" else ""
    return (str(name).removesuffix(ending) or str(name)).replace("_", " ") + rate


def _shown(name: object, value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return (_unit(name)[1] or formatting.count)(value)
    if value is None:
        return formatting.NO_VALUE
    if isinstance(value, (dict, list)):
        return ", ".join(map(str, value))[:200]
    return name_markup(value, 120)
