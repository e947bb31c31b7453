"""The plan of the demo, its folders, and the task of each process."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gapless.config import Config
from gapless.errors import ConfigError
from pyspark_gapless.tables.table import check_path

PRODUCERS: Final = 3
MESSAGES: Final = 10_000
"""Messages of each producer, by default."""
RATE: Final = 1_500.0
"""Messages a second of each producer."""
MAX_MESSAGES: Final = 1_000_000
GROUP: Final = "demo"
COLLECTOR: Final = "collector"
MARKER: Final = "demo.json"
"""The file that marks the folder of a demo, which the next demo may clear."""
MARKER_FIELDS: Final = ("messages", "loss", "seed", "spark")
"""The fields of the marker; a file with other fields was not written by a demo."""
CONFIG: Final = Config.make(
    found_after="500ms",
    join_interval="50ms",
    heartbeat_interval="300ms",
    suspect_after="2s",
    verify_timeout="1s",
    loopback=False,
)
"""Settings that form a group quickly and detect a failure within seconds."""


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """The options of a demo: messages of each producer, share of lost datagrams, Spark or not."""

    output: Path
    messages: int = MESSAGES
    loss: float = 0.05
    seed: int = 1
    spark: bool = True
    master: str | None = None

    def __post_init__(self) -> None:
        check_path(self.output)
        if not 1 <= self.messages <= MAX_MESSAGES:
            raise ConfigError(
                f"--messages {self.messages}: expected 1 to {MAX_MESSAGES:,}, of each producer"
            )
        if self.master is not None and not self.spark:
            raise ConfigError(
                "--master says where Spark runs, and --no-spark that it does not; give one of them"
            )
        if not 0 <= self.loss <= 0.5:
            raise ConfigError(
                f"--loss {self.loss:g}: expected a share from 0 to 0.5, such as 5% or 0.05"
            )

    @property
    def total_messages(self) -> int:
        """Messages of all producers."""
        return PRODUCERS * self.messages

    @property
    def spool(self) -> Path:
        """The spool of the collector."""
        return self.output / "spool"

    @property
    def traces(self) -> Path:
        """The folder of the traces."""
        return self.output / "trace"

    @property
    def discovery_dir(self) -> Path:
        """The folder in which members find each other."""
        return self.output / "meeting"

    @property
    def report(self) -> Path:
        """The report page."""
        return self.output / "report.html"

    @property
    def figures(self) -> Path:
        """The figures behind the report page."""
        return self.output / "figures.json"

    def ledger(self, producer: int) -> Path:
        """Return the ledger of a producer."""
        return self.output / "producers" / f"{producer}.jsonl"

    @contextmanager
    def locked_output(self) -> Iterator[None]:
        """Make an empty folder, and keep other demos out of it for as long as the block lasts.

        What a former demo has left is removed, anything else is left alone.
        """
        marker = self.output / MARKER
        if self.output.exists():
            if not self.output.is_dir():
                raise ConfigError(f"{self.output} is not a folder; name another one with --output")
            if any(self.output.iterdir()):
                if not _is_marker(marker):
                    raise ConfigError(
                        f"{self.output} is not empty and was not made by a demo; "
                        "name another --output"
                    )
                with marker.open("rb") as former:
                    self._lock(former)
                    shutil.rmtree(self.output)
        self.output.mkdir(parents=True, exist_ok=True)
        with marker.open("w", encoding="utf-8") as mine:
            self._lock(mine)
            mine.write(json.dumps({name: getattr(self, name) for name in MARKER_FIELDS}) + "\n")
            mine.flush()
            yield

    def _lock(self, marker: Any) -> None:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self.output}: another demo runs there; let it end, or name another --output"
            ) from None


def _is_marker(path: Path) -> bool:
    """Whether a file was written by a demo."""
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(fields, dict) and set(fields) == set(MARKER_FIELDS)


@dataclass(frozen=True)
class DemoTask:
    """The task of one process; ``producer`` is 0 for the collector.

    A producer sends up to message ``until`` and stays a member.
    """

    output: str
    producer: int
    incarnation: int
    until: int
    messages: int
    loss: float
    seed: int
    spark: bool

    @classmethod
    def for_process(
        cls, plan: DemoPlan, producer: int, incarnation: int, until: int | None = None
    ) -> DemoTask:
        """Return the task of a process."""
        until = plan.messages if until is None else until
        return cls(
            str(plan.output.absolute()),
            producer,
            incarnation,
            until,
            plan.messages,
            plan.loss,
            plan.seed,
            plan.spark,
        )

    @property
    def plan(self) -> DemoPlan:
        """The plan of the demo."""
        return DemoPlan(
            output=Path(self.output),
            messages=self.messages,
            loss=self.loss,
            seed=self.seed,
            spark=self.spark,
        )

    @property
    def member_name(self) -> str:
        """The display name of the member."""
        return f"producer-{self.producer}" if self.producer else COLLECTOR
