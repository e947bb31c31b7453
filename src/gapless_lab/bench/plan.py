"""The plan of a benchmark: the cells to measure, and the task of each member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product, starmap
from random import Random
from typing import Any

from gapless.config import Config
from gapless.errors import ConfigError
from gapless.faults.faults import Loss
from gapless.group.join_options import TRANSPORTS
from gapless.trace.recorder import Recorder, parse_recording_mode
from gapless.transport.base import Transport
from gapless_lab.plans import SETTINGS, check_range, check_share
from gapless_lab.workload import NUMBER_BYTES, loopback_transport

LOSSLESS = frozenset({"tcp", "memory"})
"""Transports without datagrams, on which no loss can be injected."""


@dataclass(frozen=True)
class BenchPlan:
    """The options of a benchmark; every combination of transport, loss and size is a cell."""

    members: int = 3
    senders: int = 3
    sizes_bytes: Sequence[int] = (100, 1000, 10_000)
    transports: Sequence[str] = ("udp",)
    losses: Sequence[float] = (0.0,)
    seconds: float = 3.0
    unicast: bool = False
    rtt: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    trace: str = ""
    trace_mode: str = ""

    def __post_init__(self) -> None:
        check_range("members", self.members, 2)
        check_range("senders", self.senders, 1, self.members, ", the number of members")
        for size_bytes in self.sizes_bytes:
            check_range("size", size_bytes, NUMBER_BYTES, 10_000_000, " bytes")
        for loss in self.losses:
            check_share("loss", loss)
        if self.trace_mode:
            parse_recording_mode(self.trace_mode)
            if not self.trace:
                raise ConfigError("--trace-mode says how to record: name a folder with --trace")
        check_range("seconds", self.seconds, 0.01, 3600)

    @property
    def cells(self) -> list[BenchCell]:
        """The cells, in the order of measurement."""
        return list(starmap(BenchCell, product(self.transports, self.losses, self.sizes_bytes)))


@dataclass(frozen=True)
class BenchCell:
    """A measurement: a transport, a loss and a size of messages."""

    transport: str
    loss: float
    size_bytes: int

    @property
    def skip_reason(self) -> str:
        """Why the cell cannot be measured; empty for a measurable cell."""
        if self.transport not in TRANSPORTS:
            return f"transport {self.transport} is not here; there are {', '.join(TRANSPORTS)}"
        if self.loss and self.transport in LOSSLESS:
            return f"{self.transport} loses nothing: loss is measured where datagrams can be lost"
        return ""


@dataclass(frozen=True)
class BenchTask:
    """The task of a member in a measurement."""

    plan: BenchPlan
    cell: BenchCell
    ports: list[int]
    index: int

    def config(self) -> Config:
        """Return the settings of the members: quick joins, changed by the settings of the plan."""
        return Config.make(**{**SETTINGS["bench"], **self.plan.settings})

    def open(self) -> Transport:
        """Return the transport, with the loss of the cell on incoming datagrams."""
        loss = self.cell.loss
        return loopback_transport(
            "bench",
            f"seeds://127.0.0.1:{self.ports[0]}-{self.ports[-1]}",
            [Loss(Random(self.index), [loss])] if loss else [],
            kind=TRANSPORTS[self.cell.transport],
            address=("127.0.0.1", self.ports[self.index]),
            name=f"{self.index + 1}",
        )

    def recorder(self) -> Recorder | None:
        """Return the recorder of the member; None without a trace."""
        mode = parse_recording_mode(self.plan.trace_mode or "full")
        return Recorder(self.plan.trace, **mode) if self.plan.trace else None
