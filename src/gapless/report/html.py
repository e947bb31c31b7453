"""HTML markup: every text is escaped, unless the text is ``Html`` already.

Names, messages and reasons in a report come from other processes. All texts reach the page through
``tag`` and ``to_markup``, so a name never becomes an element, an attribute or a script.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# Control characters are invalid in a page. Half of a surrogate pair is valid in JSON, but has no
# encoding.
_NOT_SHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_SPECIAL = re.compile("[&<>\"'\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_NUMBERS = re.compile(r"(\d+)", re.ASCII)
_VOID = frozenset({"br", "link", "meta"})
_SVG_LEAF = frozenset({"circle", "line", "path", "rect", "use"})


class Html(str):
    """Markup: a text for the page without further escaping."""

    __slots__ = ()


def to_markup(value: object) -> Html:
    """Return a value as markup: markup unchanged, every other value escaped."""
    if isinstance(value, Html):
        return value
    plain = str(value)
    if _SPECIAL.search(plain) is None:
        return Html(plain)
    return Html(escape(_NOT_SHOWN.sub("\N{REPLACEMENT CHARACTER}", plain)))


def join_markup(parts: Iterable[object]) -> Html:
    """Return the concatenated markup of several values."""
    return Html("".join(map(to_markup, parts)))


def tag(name: str, /, *parts: object, **attributes: Any) -> Html:
    """Return an element; ``class_`` is ``class``, ``_`` is ``-``, None and False omit a name."""
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{to_markup(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    if name in _SVG_LEAF and not parts:
        return Html(f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join_markup(parts)}</{name}>")


def name_markup(name: object, max_chars: int = 0) -> Html:
    """Return a name for display: isolated from the text direction around it, shortened if long."""
    whole = str(name)
    shown = shorten(whole, max_chars) if max_chars else whole
    return tag("bdi", shown, class_="name", title=whole if shown != whole else None)


def shorten(name: str, max_chars: int) -> str:
    """Return a name of at most ``max_chars`` characters, shortened in the middle."""
    if len(name) <= max_chars:
        return name
    head = (max_chars - 1) // 2
    return f"{name[:head]}…{name[len(name) - (max_chars - 1 - head) :]}"


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key for names with numbers: ``node 2`` before ``node 10``."""
    return [(len(part) if part.isdigit() else 0, part) for part in _NUMBERS.split(name)]


def json_script(value: object) -> Html:
    """Return a value as JSON in a script element that browsers do not run."""
    packed = (
        json.dumps(value, separators=(",", ":"), allow_nan=False)
        .replace("<", "\\u003c")
        .replace("&", "\\u0026")
    )
    return Html(f'<script type="application/json">{packed}</script>')
