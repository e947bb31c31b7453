"""What is to be killed, and when: everything that is drawn from a seed.

Two hands kill at the same time, one on the side of the group (producers, the collector), one on the
side of Spark (the driver, executors, and the Python processes of both), each in an order of its
own. The first also waits for kills of the second, so that its own fall before, during and after
them. A hand waits until its victim has done a drawn amount of work, then for a drawn part of a
second, and kills.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gapless.errors import ConfigError
from gapless.rng import split

PRODUCER, COLLECTOR = "producer", "collector"
DRIVER, EXECUTOR, WORKER, SOURCE = "driver", "executor", "worker", "source"
GROUP_SIDE = (PRODUCER, COLLECTOR)
SPARK_SIDE = (DRIVER, EXECUTOR)
PYTHON_VICTIMS = (WORKER, SOURCE)
"""Python processes: one in which an executor runs tasks, and that beside the driver in which the source plans."""
VICTIMS = (*GROUP_SIDE, *SPARK_SIDE, *PYTHON_VICTIMS)

DEFAULT_SETTINGS = {
    "found_after": "300ms",
    "join_interval": "50ms",
    "heartbeat_interval": "200ms",
    "suspect_after": "2s",
    "verify_timeout": "500ms",
    "merge_interval": "500ms",
    "leave_timeout": "5s",
    "retention_timeout": "1h",
    "capacity": 1024,
}
"""Deaths are noticed soon, and the place of the collector is kept for as long as a run takes."""


class NemesisOp(NamedTuple):
    """One kill: of whom, after how much work of it, so much later, and whether its children die at the same moment."""

    victim: str
    min_work: int
    delay_s: float
    with_children: bool
    choice: float
    """Which of several, as a share of their list."""
    after: int = 0
    """So many kills on the side of Spark come before."""


@dataclass(frozen=True)
class ChaosPlan:
    """One seed: how many producers, how fast each sends, what is lost on the way, how often each side is struck."""

    seed: int
    producers: int = 2
    rate: int = 100
    loss: float = 0.02
    group_kills: int = 4
    spark_kills: int = 3
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.producers <= 16:
            raise ConfigError(f"{self.producers} producers: expected 1 to 16")
        if not 1 <= self.rate <= 20_000:
            raise ConfigError(
                f"{self.rate} messages a second: expected 1 to 20,000 of each producer"
            )
        if not 0 <= self.loss <= 0.5:
            raise ConfigError(f"loss {self.loss}: expected a share from 0 to 0.5")
        for name, least in (("group_kills", len(GROUP_SIDE)), ("spark_kills", len(SPARK_SIDE))):
            if not least <= getattr(self, name) <= 100:
                raise ConfigError(
                    f"{name} {getattr(self, name)}: expected {least} to 100, so that each kind is killed"
                )

    @property
    def config(self) -> dict[str, Any]:
        """The knobs of all members."""
        return {**DEFAULT_SETTINGS, **self.settings}

    @property
    def segment_bytes(self) -> int:
        """Small segments, so that some are sealed, trimmed and read while everything falls."""
        return split(self.seed, "segments").choice((24, 64, 200)) * 1024

    @property
    def rows_per_trigger(self) -> int | None:
        """What a micro-batch takes at most."""
        return split(self.seed, "rows").choice((None, 10_000, 5000))

    @property
    def group_ops(self) -> list[NemesisOp]:
        """Who is killed on the side of the group: before, between and after the kills of the other side."""
        blows = self._draw("group", GROUP_SIDE, (), self.group_kills)
        rng = split(self.seed, "blows after")
        after = sorted(rng.randint(0, self.spark_kills) for _ in blows)
        return [blow._replace(after=count) for blow, count in zip(blows, after, strict=True)]

    @property
    def spark_ops(self) -> list[NemesisOp]:
        """Who is killed on the side of Spark."""
        return self._draw("spark", SPARK_SIDE, PYTHON_VICTIMS, self.spark_kills)

    def _draw(
        self, side: str, always: tuple[str, ...], also: tuple[str, ...], count: int
    ) -> list[NemesisOp]:
        """Draw so many blows in any order, each kind of ``always`` at least once."""
        rng = split(self.seed, f"blows {side}")
        victims = [*always, *(rng.choice((*always, *also)) for _ in range(count - len(always)))]
        if also and count > len(always):
            # A start of the driver takes longer than all else, so a run has one, unless only it may
            # be drawn.
            victims[len(always) :] = [
                rng.choice((EXECUTOR, *also)) for _ in range(count - len(always))
            ]
        rng.shuffle(victims)
        return [self._draw_op(victim, rng) for victim in victims]

    @staticmethod
    def _draw_op(victim: str, rng: Any) -> NemesisOp:
        most = 400 if victim in GROUP_SIDE else 3
        return NemesisOp(
            victim, rng.randint(1, most), rng.uniform(0.0, 0.4), rng.random() < 0.5, rng.random()
        )

    @property
    def replay_command(self) -> str:
        """The command that runs this plan once more."""
        drawn = ChaosPlan(self.seed)
        names = ("producers", "rate", "loss", "group_kills", "spark_kills")
        changed = [name for name in names if getattr(self, name) != getattr(drawn, name)]
        options = [f"--{name.replace('_', '-')} {getattr(self, name)}" for name in changed]
        return " ".join(["gapless chaos --seed", str(self.seed), *options])
