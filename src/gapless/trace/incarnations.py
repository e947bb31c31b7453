"""The side file of a file set: the names of incarnations, and how each was recorded.

Each line is a JSON object. A name is written before the first row with the number of the name, so a
killed process leaves no number without a name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from gapless.config import SETTINGS
from gapless.errors import GaplessError
from gapless.trace.schema import incarnation_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gapless.config import Config

INCARNATIONS_FILE = "lives.jsonl"
"""The name of the side file."""
VIRTUAL, TIME_OF_DAY = "virtual", "time of day"
"""What ``t_ns`` counts."""


class IncarnationRecord(NamedTuple):
    """A line about an incarnation; ``own`` if the rows of the incarnation are in this file set."""

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

    def to_json_line(self) -> str:
        """Return the incarnation as a line of the file."""
        fields: dict[str, Any] = {
            "seed": self.seed,
            "life": incarnation_id(self.name),
            "name": self.name,
        }
        if self.own:
            fields |= {
                key: value for key, value in self._asdict().items() if key not in {"seed", "name"}
            }
        return json.dumps(fields) + "\n"


def own_incarnation(
    seed: int, name: str, config: Config, more: Mapping[str, Any], **how: Any
) -> IncarnationRecord:
    """Return the line of a recorded incarnation; ``how``: columns of ``IncarnationRecord``."""
    knobs = {
        **{setting.name: getattr(config, setting.name) for setting in SETTINGS.values()},
        "reach": config.reach,
        "numbering": config.group_profile.numbering,
        **more,
    }
    about: dict[str, Any] = {
        "release": config.group_profile.release,
        "retransmits": config.retransmits,
        "knobs": knobs,
    }
    return IncarnationRecord(seed, name, own=True, **about, **how)


def read_incarnations(path: Path) -> Iterator[IncarnationRecord]:
    """Read a side file; an unfinished last line, left by a killed process, is skipped."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                fields = json.loads(line)
                fields.pop("life")
                yield IncarnationRecord(**fields)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise GaplessError(
                    f"{path}:{number}: expected an incarnation as a line of JSON: {error}"
                ) from None
