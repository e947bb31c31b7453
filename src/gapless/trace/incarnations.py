"""The side file of a file set: which number is which life, and how the lives whose rows are there were recorded.

Each line is one JSON object. A name stands there before the first row that holds its number, so a
killed process leaves no number without its name.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.errors import GaplessError
from gapless.trace.schema import life_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gapless.config import Config

LIVES = "lives.jsonl"
"""The name of the side file."""
VIRTUAL, TIME_OF_DAY = "virtual", "time of day"
"""What ``t_ns`` counts."""


class Life(NamedTuple):
    """One line: a life that is mentioned; ``own`` if its rows are in this file set, and only then is there more."""

    seed: int
    name: str
    own: bool = False
    member: str = ""
    mode: str = ""
    every: int = 0
    clock: str = ""
    release: str = ""
    retransmits: bool = False
    stores: bool = False
    knobs: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    whole: bool = True

    def line(self) -> str:
        """Return the life as a line of the file."""
        said: dict[str, Any] = {"seed": self.seed, "life": life_id(self.name), "name": self.name}
        if self.own:
            said |= {
                key: value for key, value in self._asdict().items() if key not in {"seed", "name"}
            }
        return json.dumps(said) + "\n"


def own_life(seed: int, name: str, config: Config, more: Mapping[str, Any], **how: Any) -> Life:
    """Return the line of a life whose rows are in the set; ``how`` it is recorded are columns of :class:`Life`."""
    knobs = {**asdict(config), "reach": config.reach, "numbering": config.row.numbering, **more}
    about: dict[str, Any] = {
        "release": config.row.release,
        "retransmits": config.retransmits,
        "knobs": knobs,
    }
    return Life(seed, name, own=True, **about, **how)


def read_lives(path: Path) -> Iterator[Life]:
    """Return what a side file says. A last line without an end is what a killed process was writing: it is left out."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                said = json.loads(line)
                said.pop("life")
                yield Life(**said)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise GaplessError(
                    f"{path}:{number}: expected a life of a trace as one line of JSON: {error}"
                ) from None
