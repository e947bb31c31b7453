"""A collector that is killed at any moment under load, and started again."""

from __future__ import annotations

import signal
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.spool.collecting import contents, indexes, meeting_place, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spool.collecting import Producer

COUNT = 6000
KILLS = 2


def reached(producers: list[Producer], goal: int) -> bool:
    return max(producer.count("acked") for producer in producers) >= goal


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everything_acknowledged_is_there_once_whenever_the_collector_is_killed(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    spool = tmp_path / "spool"
    with meeting_place(tmp_path) as place:
        collector = place.collect(spool, "--segment-bytes", "100KiB")
        producers = [place.produce(number, COUNT, batch=rng.choice([4, 20, 100])) for number in range(2)]
        for producer in producers:
            producer.tell()
        for kill in range(1, KILLS + 1):
            goal = COUNT * kill // (KILLS + 1) + rng.randrange(COUNT // 10)
            wait_until(partial(reached, producers, goal), f"kill {kill} of {KILLS}")
            collector.end(signal.SIGKILL)
            acked = [producer.count("acked") for producer in producers]
            held = contents(spool)
            for producer, upto in zip(producers, acked, strict=True):
                assert len(held.get(producer.address, [])) >= upto, "what is acknowledged is on disk"
            collector = place.collect(spool, "--segment-bytes", "100KiB")
        for producer in producers:
            producer.finish()
        assert collector.end(signal.SIGTERM) == 0, collector.complaints
        held = contents(spool)
        for number, producer in enumerate(producers):
            assert indexes(held[producer.address], number) == list(range(COUNT))
        assert collector.statuses[-1]["lost"] == collector.statuses[-1]["unexplained"] == 0
