"""The checked options of ``gapless pipeline``, and what its output folder records of them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gapless.errors import ConfigError
from pyspark_gapless.runtime.cache_dir import write_whole
from pyspark_gapless.runtime.spark_config import parse_master
from pyspark_gapless.tables.table import check_path

SEED: Final = 1
MESSAGES: Final = 20_000
RATE: Final = 2_000.0
VERSION: Final = 1
OWN, GROUP, SPOOL = "producers", "group", "spool"
"""Where messages come from: own producers, an existing group, or an existing spool."""


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """The options. Without ``spool`` and ``group`` the pipeline runs its own producers and group.

    ``messages`` are those of each producer over all runs with the same output; None is without end.
    Without ``rate`` they are sent as fast as the group takes them.
    """

    output: Path
    producers: int = 3
    messages: int | None = MESSAGES
    rate: float | None = RATE
    loss: float = 0.05
    seed: int | None = None
    seconds: float | None = None
    master: str | None = None
    spool: Path | None = None
    group: str = ""
    discover: str | None = None
    once: bool = False
    follow: bool = False
    every_s: float = 0.5

    def __post_init__(self) -> None:
        check_path(self.output)
        if self.spool is not None:
            check_path(self.spool)
        if self.spool is not None and self.group:
            raise ConfigError(
                "--spool and --group both say where messages come from; give one of them"
            )
        if self.once and self.follow:
            raise ConfigError("--once ends with what is there, --follow goes on; give one of them")
        if self.discover is not None and not self.group:
            raise ConfigError(
                "--discover says where the members of a group are; name the group with --group"
            )
        if not 1 <= self.producers <= 32:
            raise ConfigError(f"--producers {self.producers}: expected 1 to 32")
        if self.messages is not None and self.messages < 1:
            raise ConfigError(f"--messages {self.messages}: expected 1 or more, of each producer")
        if self.rate is not None and not 1 <= self.rate <= 1e6:
            raise ConfigError(
                f"--rate {self.rate:g}: expected 1 to 1,000,000 messages a second, of each producer"
            )
        if not 0 <= self.loss <= 0.5:
            raise ConfigError(
                f"--loss {self.loss:g}: expected a share of datagrams from 0 to 0.5, such as 0.05"
            )
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"--seconds {self.seconds:g}: expected more than 0")
        if self.master is not None and parse_master(self.master).kind == "connect":
            raise ConfigError(
                f"--master {self.master}: the tables are filled by the driver, "
                "which would be behind Spark Connect; "
                "name local[*], spark://HOST:7077, yarn or k8s://HOST:PORT"
            )

    @property
    def kind(self) -> str:
        """Where messages come from: OWN, GROUP or SPOOL."""
        return SPOOL if self.spool is not None else GROUP if self.group else OWN


@dataclass(frozen=True)
class PipelineInfo:
    """What all runs with one output share: ``<output>/pipeline.json``."""

    version: int
    kind: str
    where: str
    """The name of the group, or the path of the spool."""
    seed: int

    @classmethod
    def of(cls, plan: PipelinePlan) -> PipelineInfo:
        """Return the record of the output, which the plan has to match; begin a new output."""
        path = plan.output / "pipeline.json"
        wanted = _info_of_plan(plan)
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            if plan.output.is_dir() and any(_foreign(entry) for entry in plan.output.iterdir()):
                raise ConfigError(
                    f"{plan.output} is not empty and was not made by a pipeline; "
                    "name another folder"
                ) from None
            write_whole(path, json.dumps(asdict(wanted), indent=1).encode() + b"\n")
            return wanted
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read: {error}; name another folder with --output"
            ) from None
        if found.version != VERSION:
            raise ConfigError(
                f"{path} is of version {found.version}, this is {VERSION}; name another --output"
            )
        if found.kind != wanted.kind or (found.kind != OWN and found.where != wanted.where):
            raise ConfigError(
                f"{plan.output} was begun with {_option(found)}, and goes on only with that; "
                "name another --output"
            )
        if plan.seed is not None and plan.seed != found.seed:
            raise ConfigError(
                f"{plan.output} was begun with --seed {found.seed}; "
                "say that, or name another --output"
            )
        return found


def _foreign(entry: Path) -> bool:
    return entry.name != "lock" and not entry.name.startswith(".pipeline.json")


def _info_of_plan(plan: PipelinePlan) -> PipelineInfo:
    where = f"pipeline-{secrets.token_hex(4)}" if plan.kind == OWN else plan.group
    if plan.spool is not None:
        where = str(plan.spool.absolute())
    return PipelineInfo(VERSION, plan.kind, where, SEED if plan.seed is None else plan.seed)


def _option(about: PipelineInfo) -> str:
    return "producers of its own" if about.kind == OWN else f"--{about.kind} {about.where}"


@contextlib.contextmanager
def locked(output: Path) -> Iterator[None]:
    """Lock the folder against other pipelines."""
    output.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(output / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigError(
                f"{output}: another pipeline works here (pid {holder}); "
                "wait for it, or name another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)
