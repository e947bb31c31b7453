"""The plan of a chaos run: a seed draws victims, moments, and sizes of segments and micro-batches.

Two schedules run at the same time. The group schedule kills producers and the collector; the Spark
schedule kills the driver, executors, and the Python processes of both. The group schedule also
waits for kills on the Spark side, so kills of the group fall before, between and after kills of
Spark. Each operation waits for a drawn amount of work of the victim, then for a drawn part of a
second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gapless.rng import split
from gapless_lab.nemesis import NemesisOp
from gapless_lab.plans import SETTINGS, check_range, check_share

PRODUCER, COLLECTOR = "producer", "collector"
DRIVER, EXECUTOR, WORKER, SOURCE = "driver", "executor", "worker", "source"
GROUP_SIDE = (PRODUCER, COLLECTOR)
SPARK_SIDE = (DRIVER, EXECUTOR)
PYTHON_VICTIMS = (WORKER, SOURCE)
"""Python processes: the worker of an executor, and the source beside the driver."""
VICTIMS = (*GROUP_SIDE, *SPARK_SIDE, *PYTHON_VICTIMS)


@dataclass(frozen=True)
class ChaosPlan:
    """A seed with the load, the loss, and the number of kills on each side."""

    seed: int
    producers: int = 2
    rate: int = 100
    loss: float = 0.02
    group_kills: int = 4
    spark_kills: int = 3
    back_pressure: bool = False
    """Whether Spark is stopped until the spool is full, and nothing is killed."""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_range("producers", self.producers, 1, 16)
        check_range("rate", self.rate, 1, 20_000, " messages a second of each producer")
        check_share("loss", self.loss)
        check_range("group-kills", self.group_kills, len(GROUP_SIDE), 100, ", to kill each kind")
        check_range("spark-kills", self.spark_kills, len(SPARK_SIDE), 100, ", to kill each kind")

    @property
    def config(self) -> dict[str, Any]:
        """The settings of all members."""
        return {**SETTINGS["chaos"], **self.settings}

    @property
    def segment_bytes(self) -> int:
        """The size of segments: small enough to seal, trim and read several under faults."""
        return split(self.seed, "segments").choice((24, 64, 200)) * 1024

    @property
    def rows_per_trigger(self) -> int | None:
        """Maximum number of rows of a micro-batch."""
        return split(self.seed, "rows").choice((None, 10_000, 5000))

    @property
    def group_ops(self) -> list[NemesisOp]:
        """The kills on the group side: before, between and after the kills on the Spark side."""
        ops = self._draw("group", GROUP_SIDE, (), self.group_kills)
        rng = split(self.seed, "blows after")
        after = sorted(rng.randint(0, self.spark_kills) for _ in ops)
        return [op._replace(after=count) for op, count in zip(ops, after, strict=True)]

    @property
    def spark_ops(self) -> list[NemesisOp]:
        """The kills on the Spark side."""
        return self._draw("spark", SPARK_SIDE, PYTHON_VICTIMS, self.spark_kills)

    def _draw(
        self, side: str, always: tuple[str, ...], also: tuple[str, ...], count: int
    ) -> list[NemesisOp]:
        """Draw operations in any order, each victim of ``always`` at least once."""
        rng = split(self.seed, f"blows {side}")
        victims = [*always, *(rng.choice((*always, *also)) for _ in range(count - len(always)))]
        if also and count > len(always):
            # A driver takes longest to start, so a run kills it once if others can be drawn.
            victims[len(always) :] = [
                rng.choice((EXECUTOR, *also)) for _ in range(count - len(always))
            ]
        rng.shuffle(victims)
        return [self._draw_op(victim, rng) for victim in victims]

    @staticmethod
    def _draw_op(victim: str, rng: Any) -> NemesisOp:
        most = 400 if victim in GROUP_SIDE else 3
        return NemesisOp(
            victim=victim,
            min_work=rng.randint(1, most),
            delay_s=rng.uniform(0.0, 0.4),
            with_children=rng.random() < 0.5,
            choice=rng.random(),
        )

    @property
    def replay_command(self) -> str:
        """The command to run the plan once more."""
        options = ["gapless chaos --seed", str(self.seed)]
        for name in ("producers", "rate", "loss", "group_kills", "spark_kills", "back_pressure"):
            if (value := getattr(self, name)) != getattr(ChaosPlan, name):
                options += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return " ".join(options)
