"""How far to go at once: a limit of rows or bytes, shared fairly between streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def share(wants: Mapping[str, int], limit: int) -> dict[str, int]:
    """Share ``limit`` so that nobody gets more than it wants and who gets less than it wants gets no less than others.

    Whoever wants something gets at least 1, if need be beyond the limit, so that every stream makes progress.
    """
    granted: dict[str, int] = {}
    left, waiting = limit, len(wants)
    for key, want in sorted(wants.items(), key=lambda item: (item[1], item[0])):
        # The smaller wants come first: what they leave of an equal part goes to the larger ones.
        part = max(left // waiting, 0)
        granted[key] = min(want, max(part, 1)) if want else 0
        left -= granted[key]
        waiting -= 1
    return granted
