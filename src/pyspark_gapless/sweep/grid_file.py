"""The grid file: the cells of a sweep, as written by a user.

A table ``[grid]`` (or several, as ``[[grid]]``) has axes: ``profile``, ``members``, ``loss`` and
any setting by its name; ``[work]`` is the work of every member. A table ``[hunt]`` means groups
drawn from seeds. Each value is a single value or a list; every combination is a cell.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from gapless.config import SETTINGS
from gapless.config_fields import unknown_setting
from gapless.errors import ConfigError
from gapless.sim.profile_cost import (
    MAX_LOSS_PERCENT,
    MAX_MESSAGES,
    MAX_SIZE_BYTES,
    MEMBERS,
    PACES_NS,
    ProfileWorkload,
)
from gapless.sim.runner import default_messages
from gapless.sim.swarm.profile_draw import ALL_PROFILES
from gapless.units import format_duration, parse_duration, parse_size
from pyspark_gapless.sweep.cell import SweepCell
from pyspark_gapless.sweep.schema import GRID, HUNTS, MEMBERSHIP

MAX_CELLS: Final = 100_000
"""Maximum number of cells: a larger grid is most likely a typing error."""
MAX_HUNT_MESSAGES: Final = 10_000
"""The most messages of a member in a hunt."""

PRESETS: Final = {
    "protocols": f"""\
# Every profile against loss and group size.
[grid]
profile = {list(ALL_PROFILES)}
members = [3, 8]
loss = [0, 1, 5, 10]

[work]
messages = 100
size = 100
pace = "1ms"
""".replace("'", '"'),
    "hunt": """\
# The full swarm: groups, faults and work are drawn from each seed.
[hunt]
groups = ["told", "membership"]
""",
}
"""Built-in grid files, by name."""

Axis = Mapping[str, Callable[[Any], Any]]


def load_grid(path: Path) -> list[SweepCell]:
    """Return the cells of a grid file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    try:
        return read_grid(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def preset(name: str) -> str:
    """Return the text of the grid called ``name``."""
    if name not in PRESETS:
        raise ConfigError(
            f"there is no preset {name!r}; there are {', '.join(PRESETS)}{_hint(name, PRESETS)}"
        )
    return PRESETS[name]


def read_grid(text: str) -> list[SweepCell]:
    """Return the cells of the text of a grid file, each once."""
    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not valid TOML: {error}") from error
    tables = ("grid", "work", "hunt")
    for name in found:
        if name not in tables:
            loose = (
                "" if isinstance(found[name], dict) else "; is the line [grid] missing above it?"
            )
            raise ConfigError(
                f"unknown table {name!r}; use {', '.join(tables)}{_hint(name, tables) or loose}"
            )
    grids, work, hunts = _tables(found, "grid"), _tables(found, "work"), _tables(found, "hunt")
    if not grids and not hunts:
        raise ConfigError("there is neither a table [grid] nor a table [hunt]; add one of them")
    if work and not grids:
        raise ConfigError(
            "[work] describes the members of a [grid], but there is no [grid]; add one"
        )
    if len(work) > 1:
        raise ConfigError(
            "there is a single [work] for all grids; use lists, such as size = [100, 1000]"
        )
    cells = [cell for grid in grids for cell in _grid_cells(grid, work[0] if work else {})]
    cells += [cell for hunt in hunts for cell in _hunt_cells(hunt)]
    return list(dict.fromkeys(cells))


def with_mutant(cells: list[SweepCell], mutant: str) -> list[SweepCell]:
    """Return the same cells with a bug planted."""
    return [cell._replace(mutant=mutant) for cell in cells]


def _tables(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = found.get(name, [])
    tables = [value] if isinstance(value, dict) else value
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(
            f"{name} = {value!r}: expected a table, [{name}], with a line for each axis"
        )
    return tables


# Grids


def _grid_cells(grid: dict[str, Any], work: dict[str, Any]) -> list[SweepCell]:
    own: Axis = {"profile": _profile, "members": _members, "loss": _loss}
    knobs: Axis = {name: _setting(name) for name in SETTINGS if name not in {"profile", "unicast"}}
    if "unicast" in grid:
        raise ConfigError(
            f"[grid] unicast is not an axis; use profile with one of {', '.join(ALL_PROFILES)}"
        )
    for name in grid:
        if name in _WORK:
            raise ConfigError(f"[grid] {name} belongs to the table [work]")
        if name not in own and name not in knobs:
            raise ConfigError(f"[grid] {unknown_setting(name, [*own, *knobs])}")
    for name in work:
        if name in own or name in knobs:
            raise ConfigError(f"[work] {name} belongs to the table [grid]")
        if name not in _WORK:
            raise ConfigError(
                f"[work] there is no {name!r}; there are {', '.join(_WORK)}{_hint(name, _WORK)}"
            )
    usual = ProfileWorkload()
    plain = {"profile": "nakack4", "members": usual.members, "loss": 0}
    values = _axes("grid", {**plain, **grid}, {**own, **knobs})
    done = {
        "messages": usual.messages,
        "size": usual.size_bytes,
        "pace": format_duration(usual.pace_ns),
    }
    values |= _axes("work", {**done, **work}, _WORK)
    _check_number(values)
    return [
        _grid_cell(dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())
    ]


def _grid_cell(chosen: dict[str, Any]) -> SweepCell:
    knobs = tuple(
        sorted(
            (name, value)
            for name, value in chosen.items()
            if name in SETTINGS and name != "profile"
        )
    )
    cell = SweepCell(
        GRID,
        chosen["profile"],
        chosen["members"],
        chosen["messages"],
        chosen["loss"],
        chosen["size"],
        chosen["pace"],
        knobs,
    )
    try:
        cell.config()
    except ConfigError as error:
        told = ", ".join(f"{name} = {value}" for name, value in knobs)
        raise ConfigError(f"[grid] {cell.profile} with {told}: {error}") from error
    return cell


def _check_number(values: Mapping[str, list[Any]]) -> None:
    number = prod(map(len, values.values()))
    if number > MAX_CELLS:
        axes = " x ".join(str(len(value)) for value in values.values() if len(value) > 1)
        raise ConfigError(f"{axes} make {number:,} cells; the maximum is {MAX_CELLS:,}")


# Hunts


def _hunt_cells(hunt: dict[str, Any]) -> list[SweepCell]:
    axes: Axis = {
        "groups": _groups,
        "profile": _profile,
        "members": _members,
        "messages": _hunt_messages,
    }
    for name in hunt:
        if name in SETTINGS and name not in axes:
            raise ConfigError(
                f"[hunt] {name}: the seed draws the settings of a hunt; use a [grid] to set them"
            )
        if name not in axes:
            raise ConfigError(
                f"[hunt] there is no {name!r}; there are {', '.join(axes)}{_hint(name, axes)}"
            )
    values = _axes("hunt", {"groups": list(HUNTS), **hunt}, axes)
    _check_number(values)
    drawn: dict[str, list[Any]] = {"profile": [None], "members": [None], "messages": [None]}
    cells = []
    for kind, profile, members, messages in product(*({"groups": [], **drawn, **values}).values()):
        usual = default_messages(membership=kind == MEMBERSHIP)
        cells.append(SweepCell(kind, profile, members, usual if messages is None else messages))
    return cells


# Values


def _axes(table: str, given: Mapping[str, Any], axes: Axis) -> dict[str, list[Any]]:
    """Return the values of each axis, read and each once."""
    found = {}
    for name, value in given.items():
        each = value if isinstance(value, list) else [value]
        if not each:
            raise ConfigError(f"[{table}] {name} has no value; give a value, or remove the line")
        try:
            found[name] = list(dict.fromkeys(axes[name](one) for one in each))
        except ConfigError as error:
            raise ConfigError(f"[{table}] {error}") from error
    return found


def _setting(name: str) -> Callable[[Any], str]:
    knob = SETTINGS[name]

    def read(value: Any) -> str:
        shown = knob.format(knob.parse(value))
        return str(shown).lower() if isinstance(shown, bool) else str(shown)

    return read


def _profile(value: Any) -> str:
    if value not in ALL_PROFILES:
        raise ConfigError(
            f"profile = {value!r}: expected one of "
            f"{', '.join(ALL_PROFILES)}{_hint(value, ALL_PROFILES)}"
        )
    return str(value)


def _groups(value: Any) -> str:
    if value not in HUNTS:
        raise ConfigError(
            f"groups = {value!r}: expected one of {', '.join(HUNTS)}{_hint(value, HUNTS)}"
        )
    return str(value)


def _integer(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} = {value!r}: expected a whole number from {least:,} to {most:,}")
    return value


def _members(value: Any) -> int:
    return _integer("members", value, MEMBERS[0], MEMBERS[-1])


def _hunt_messages(value: Any) -> int:
    return _integer("messages", value, 1, MAX_HUNT_MESSAGES)


def _messages(value: Any) -> int:
    return _integer("messages", value, 1, MAX_MESSAGES)


def _loss(value: Any) -> float:
    if (
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not 0 <= value <= MAX_LOSS_PERCENT
    ):
        raise ConfigError(
            f"loss = {value!r}: expected a number of per cent from 0 to {MAX_LOSS_PERCENT}"
        )
    return abs(float(value))


def _size(value: Any) -> int:
    try:
        size_bytes = parse_size(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ConfigError(f"size = {value!r}: {error}") from error
    return _integer("size", size_bytes, 0, MAX_SIZE_BYTES)


def _pace(value: Any) -> int:
    try:
        pace_ns = parse_duration(value) if isinstance(value, str) else None
    except ConfigError as error:
        raise ConfigError(f"pace = {value!r}: {error}") from error
    if pace_ns is None or pace_ns not in PACES_NS:
        raise ConfigError(f'pace = {value!r}: expected a duration from "1us" to "1s"')
    return pace_ns


def _hint(value: Any, choices: Any) -> str:
    near = get_close_matches(value, list(choices), n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


_WORK: Axis = {"messages": _messages, "size": _size, "pace": _pace}
