"""Labels of incarnations in a report: display names of members, where known.

The first incarnation of ``producer-1`` has the label ``producer-1``, the next ``producer-1'``, as
in scenarios. The table of incarnations also shows the name in the trace.
"""

from __future__ import annotations

from typing import Any

INCARNATION_FIELDS = frozenset(
    {"from", "life", "maker", "member", "members", "origin", "peer", "to"}
)
"""Keys of figures with the name of an incarnation as the value."""


def with_display_names(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a run with display names in place of trace names."""
    names = _display_names(figures)
    if not names:
        return figures
    incarnations = [
        {
            **incarnation,
            "name": names.get(incarnation["name"], incarnation["name"]),
            "in_trace": incarnation["name"],
        }
        for incarnation in figures["lives"]
    ]
    return {
        **_rename_incarnations(
            {key: value for key, value in figures.items() if key != "lives"}, names
        ),
        "lives": incarnations,
    }


def _display_names(figures: dict[str, Any]) -> dict[str, str]:
    """Return the label of each incarnation by trace name; no labels if two would be equal."""
    found: dict[str, str] = {}
    starts: dict[str, int] = {}
    for incarnation in sorted(
        figures["lives"],
        key=lambda incarnation: (incarnation["began_ns"] or 0, incarnation["name"]),
    ):
        member = incarnation["member"] or incarnation["name"]
        found[incarnation["name"]] = member + "'" * starts.get(member, 0)
        starts[member] = starts.get(member, 0) + 1
    if len(set(found.values())) < len(found) or all(
        name == called for name, called in found.items()
    ):
        return {}
    return found


def _rename_incarnations(value: Any, names: dict[str, str], *, is_life: bool = False) -> Any:
    """Return a value with a label for each incarnation; other texts stay unchanged."""
    if isinstance(value, str):
        return names.get(value, value) if is_life else value
    if isinstance(value, dict):
        return {
            key: _rename_incarnations(each, names, is_life=key in INCARNATION_FIELDS)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_rename_incarnations(each, names, is_life=is_life) for each in value]
    return value
