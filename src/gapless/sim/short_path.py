"""The choice between the two paths of the machine: short for expected inputs, general for all.

Both paths have the same effect (``gapless.protocol.header_prediction``), so a run has the same
outcome with the short path, without, and with a choice at every input. The draws have a generator
of their own: a drawn path shifts no other draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from random import Random

    from gapless.protocol.buggify import RareBranchHook

ShortPath = Literal["on", "off", "drawn"]
"""Whether expected inputs take the short path: always, never, or as drawn at each input."""

_GENERAL_PATH = 0.5
"""How often a drawn path is the general path."""


def path_hook(short_path: ShortPath, rng: Random) -> RareBranchHook | None:
    """Return the hook that sends expected inputs to the general path; None for none."""
    if short_path == "on":
        return None
    if short_path == "off":
        return lambda _branch: True
    return lambda _branch: rng.random() < _GENERAL_PATH
