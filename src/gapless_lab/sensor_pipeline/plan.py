"""The checked options of ``gapless pipeline``, and the record of options in the output folder."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gapless.errors import ConfigError
from gapless.output.private_files import make_private_folder, open_private, unsafe_folder
from gapless.spool.encryption import SpoolKeys
from gapless_lab.plans import check_above_zero, check_range, check_share
from gapless_lab.sensor_pipeline.worker import SensorTask
from pyspark_gapless.runtime.cache_dir import write_whole
from pyspark_gapless.runtime.spark_config import parse_master
from pyspark_gapless.tables.table import check_path

SEED: Final = 1
MESSAGES: Final = 20_000
RATE: Final = 2_000.0
VERSION: Final = 1
OWN, GROUP, SPOOL = "producers", "group", "spool"
"""Where messages come from: own producers, an existing group, or an existing spool."""
COLLECTOR: Final = "collector"
"""The name of the collector."""


@dataclass(frozen=True, kw_only=True)
class OutputPlan:
    """Base of the plans of the pipeline and the demo: an output folder, a loss, a master."""

    output: Path
    loss: float = 0.05
    master: str | None = None
    spool_keys: Path | None = None
    """The keyring of an encrypted spool."""

    def __post_init__(self) -> None:
        check_path(self.output)
        check_share("loss", self.loss)

    @property
    def spool_dir(self) -> Path:
        """The spool of the collector."""
        return self.output / "spool"

    @property
    def discovery_dir(self) -> Path:
        """The folder for discovery."""
        return self.output / "meeting"

    @property
    def ledgers(self) -> Path:
        """The folder of the ledgers of the producers."""
        return self.output / "producers"

    @property
    def logs(self) -> Path:
        """The folder of the output of the processes."""
        return self.output / "logs"

    def member_task(self, **fields: Any) -> SensorTask:
        """Return the task of member 0, with ``fields`` and the fields of the plan."""
        return SensorTask(
            number=0,
            collector=COLLECTOR,
            discovery_dir=self.discovery_dir.absolute(),
            ledgers=self.ledgers.absolute(),
            spool=self.spool_dir.absolute(),
            spool_keys="" if self.spool_keys is None else str(self.spool_keys.absolute()),
            loss=self.loss,
            **fields,
        )


@dataclass(frozen=True, kw_only=True)
class PipelinePlan(OutputPlan):
    """The options. Without ``spool`` and ``group`` the pipeline starts producers and a collector.

    ``messages`` counts the messages of each producer over all runs with the same output; None is
    without end. Without ``rate`` producers send at full speed.
    """

    producers: int = 3
    messages: int | None = MESSAGES
    rate: float | None = RATE
    seed: int | None = None
    seconds: float | None = None
    spool: Path | None = None
    group: str = ""
    discover: str | None = None
    once: bool = False
    follow: bool = False
    every_s: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spool is not None:
            check_path(self.spool)
            if self.group:
                raise ConfigError(
                    "--spool and --group both say where messages come from; give one of them"
                )
        if self.once and self.follow:
            raise ConfigError("--once ends with what is there, --follow goes on; give one of them")
        if self.discover is not None and not self.group:
            raise ConfigError(
                "--discover says where the members of a group are; name the group with --group"
            )
        if self.spool_keys is not None:
            keys = SpoolKeys(self.spool_keys)
            if self.kind != SPOOL:
                keys.sealing()  # raises unless the keys encrypt
        check_range("producers", self.producers, 1, 32)
        check_range("messages", self.messages, 1, unit=", of each producer")
        check_range("rate", self.rate, 1, 1_000_000, " messages a second, of each producer")
        check_above_zero("seconds", self.seconds)
        if self.master is not None and parse_master(self.master).kind == "connect":
            raise ConfigError(
                f"--master {self.master}: the tables are filled by the driver, "
                "which would be behind Spark Connect; "
                "name local[*], spark://HOST:7077, yarn or k8s://HOST:PORT"
            )

    @property
    def spool_dir(self) -> Path:
        """The spool to read."""
        return super().spool_dir if self.spool is None else self.spool

    @property
    def kind(self) -> str:
        """Where messages come from: OWN, GROUP or SPOOL."""
        return SPOOL if self.spool is not None else GROUP if self.group else OWN


@dataclass(frozen=True)
class PipelineInfo:
    """The record shared by all runs with the same output: ``<output>/pipeline.json``."""

    version: int
    kind: str
    where: str
    """The name of the group, or the path of the spool."""
    seed: int

    @classmethod
    def of(cls, plan: PipelinePlan) -> PipelineInfo:
        """Return the record of an output, checked against the plan; write that of a new output."""
        path = plan.output / "pipeline.json"
        where = f"pipeline-{secrets.token_hex(4)}" if plan.kind == OWN else plan.group
        if plan.spool is not None:
            where = str(plan.spool.absolute())
        wanted = cls(VERSION, plan.kind, where, SEED if plan.seed is None else plan.seed)
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            if plan.output.is_dir() and any(_foreign(entry) for entry in plan.output.iterdir()):
                refusal = f"{plan.output} is not empty and was not made by a pipeline"
                raise _another_output(refusal) from None
            write_whole(path, json.dumps(asdict(wanted), indent=1).encode() + b"\n")
            return wanted
        except (ValueError, TypeError) as error:
            raise _another_output(f"{path} cannot be read: {error}") from None
        if found.version != VERSION:
            raise _another_output(f"{path} is of version {found.version}, this is {VERSION}")
        if found.kind != wanted.kind or (found.kind != OWN and found.where != wanted.where):
            own = "producers of its own"
            option = own if found.kind == OWN else f"--{found.kind} {found.where}"
            begun = f"{plan.output} was begun with {option}"
            raise _another_output(f"{begun}, and goes on only with that")
        if plan.seed is not None and plan.seed != found.seed:
            raise _another_output(f"{plan.output} was begun with --seed {found.seed}")
        return found


def _another_output(reason: str) -> ConfigError:
    return ConfigError(f"{reason}; name another --output")


def _foreign(entry: Path) -> bool:
    return entry.name != "lock" and not entry.name.startswith(".pipeline.json")


def make_output(output: Path) -> None:
    """Create an output folder for this user alone; refuse a folder that is not safe."""
    make_private_folder(output)
    if reason := unsafe_folder(output):
        raise ConfigError(reason)


@contextmanager
def locked_file(path: Path, content: str, refusal: str) -> Iterator[None]:
    """Lock a file and replace the content.

    If another process holds the lock, raise ``refusal``, with {} replaced by the content.
    """
    with open(path, "a+", encoding="utf-8", errors="replace", opener=open_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(refusal.replace("{}", file.read(100).strip())) from None
        file.truncate(0)
        file.write(f"{content}\n")
        file.flush()
        yield


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Lock the folder against other pipelines."""
    make_output(output)
    holder = f"{output}: another pipeline works here (pid {{}})"
    refusal = f"{holder}; wait for it, or name another folder"
    with locked_file(output / "lock", f"{os.getpid()}", refusal):
        yield
