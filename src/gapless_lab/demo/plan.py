"""The plan of the demo, and the lock and clearance of the output folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gapless.errors import ConfigError
from gapless.rng import split
from gapless_lab.nemesis import KILL, RESTART, NemesisOp
from gapless_lab.plans import check_range
from gapless_lab.sensor_pipeline.plan import OutputPlan, locked_file, make_output

PRODUCERS: Final = 3
MESSAGES: Final = 10_000
"""Messages of each producer, by default."""
RATE: Final = 1_500.0
"""Messages a second of each producer."""
MAX_MESSAGES: Final = 1_000_000
GROUP: Final = "demo"
DOWNTIME_S: Final = 1.0
"""How long the victim is down."""
KILL_AT: Final = 0.4
"""The share of its messages after which the victim is killed."""
HOLD_AT: Final = 0.5
"""The share of its messages that the victim sends before its kill."""
MARKER: Final = "demo.json"
"""The file that marks the folder of a demo, which the next demo may clear."""
MARKER_FIELDS: Final = ("messages", "loss", "seed", "spark")
"""The fields of the marker; a file with other fields was not written by a demo."""


@dataclass(frozen=True, kw_only=True)
class DemoPlan(OutputPlan):
    """The options of a demo: messages of each producer, share of lost datagrams, Spark or not."""

    messages: int = MESSAGES
    seed: int = 1
    spark: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("messages", self.messages, 1, MAX_MESSAGES, ", of each producer")
        if self.master is not None and not self.spark:
            raise ConfigError(
                "--master says where Spark runs, and --no-spark that it does not; give one of them"
            )

    @property
    def total_messages(self) -> int:
        """Messages of all producers."""
        return PRODUCERS * self.messages

    @property
    def traces(self) -> Path:
        """The folder of the traces."""
        return self.output / "trace"

    @property
    def victim(self) -> int:
        """The number of the killed producer."""
        return 1 + split(self.seed, "who is killed").randrange(PRODUCERS)

    @property
    def victim_messages(self) -> int | None:
        """How many messages the victim sends before the kill; None if there are too few to send."""
        return int(self.messages * HOLD_AT) or None

    @property
    def nemesis_ops(self) -> list[NemesisOp]:
        """The kill and the restart of the victim."""
        victim, work = f"producer-{self.victim}", max(1, int(KILL_AT * self.messages))
        if self.victim_messages is None:
            return []
        return [
            NemesisOp(victim=victim, action=KILL, min_work=work),
            NemesisOp(victim=victim, action=RESTART, delay_s=DOWNTIME_S),
        ]

    @contextmanager
    def locked_output(self) -> Iterator[None]:
        """Make an empty folder, locked against other demos until the end of the block.

        The files of a former demo are removed; a folder with other files is refused.
        """
        marker, other = self.output / MARKER, "name another --output"
        refusal = f"{self.output}: another demo runs there; let it end, or {other}"
        content = json.dumps({name: getattr(self, name) for name in MARKER_FIELDS})
        if self.output.exists() and not self.output.is_dir():
            raise ConfigError(f"{self.output} is not a folder; {other}")
        if self.output.exists() and any(self.output.iterdir()):
            if not _is_marker(marker):
                raise ConfigError(f"{self.output} is not empty and was not made by a demo; {other}")
            with locked_file(marker, content, refusal):
                shutil.rmtree(self.output)
        make_output(self.output)
        with locked_file(marker, content, refusal):
            yield


def _is_marker(path: Path) -> bool:
    """Whether a file was written by a demo."""
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(fields, dict) and set(fields) == set(MARKER_FIELDS)
