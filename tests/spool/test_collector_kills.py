"""A collector that is killed at any moment under load, and started again."""

from __future__ import annotations

import signal
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from gapless import blocking
from gapless.spool import SpoolWriter
from gapless.spool.collector import collector as collectors
from tests.support.collectors import GROUP, contents, indexes, meeting_place, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.collectors import Producer

COUNT = 6000
KILLS = 2


def reached(producers: list[Producer], goal: int) -> bool:
    return max(producer.count("acked") for producer in producers) >= goal


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everything_acknowledged_is_there_once_whenever_the_collector_is_killed(
    tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    spool = tmp_path / "spool"
    with meeting_place(tmp_path) as place:
        collector = place.collect(spool, "--segment-bytes", "100KiB")
        producers = [
            place.produce(number, COUNT, batch=rng.choice([4, 20, 100])) for number in range(2)
        ]
        for producer in producers:
            producer.write("\n")
        for kill in range(1, KILLS + 1):
            goal = COUNT * kill // (KILLS + 1) + rng.randrange(COUNT // 10)
            wait_until(partial(reached, producers, goal), f"kill {kill} of {KILLS}")
            collector.stop(signal.SIGKILL)
            acked = [producer.count("acked") for producer in producers]
            held = contents(spool)
            for producer, upto in zip(producers, acked, strict=True):
                assert len(held.get(producer.address, [])) >= upto, (
                    "what is acknowledged is on disk"
                )
            collector = place.collect(spool, "--segment-bytes", "100KiB")
        for producer in producers:
            producer.finish()
        assert collector.stop(signal.SIGTERM) == 0, collector.errors
        held = contents(spool)
        for number, producer in enumerate(producers):
            assert indexes(held[producer.address], number) == list(range(COUNT))
        assert collector.statuses[-1]["lost"] == collector.statuses[-1]["unexplained"] == 0


def test_a_former_life_that_the_group_still_believes_in_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    rounds = iter(
        [0]
    )  # the first try ends before the group notices, and the holder of the name is looked up
    made = collectors.Collector._make_member

    def make_member(self: collectors.Collector, store: SpoolWriter) -> blocking.Group:
        with monkeypatch.context() as patched:
            patched.setattr(collectors, "MAX_JOIN_ROUNDS", next(rounds, collectors.MAX_JOIN_ROUNDS))
            return made(self, store)

    monkeypatch.setattr(collectors.Collector, "_make_member", make_member)
    with meeting_place(tmp_path, suspect_after="8s") as place:
        collector = place.collect(spool)
        producer = place.produce(1, 4000, pause_s=0.01)
        producer.write("\n")
        wait_until(lambda: producer.count("acked") > 0, "nothing is acknowledged")
        collector.stop(signal.SIGKILL)
        collector = place.collect(spool)  # now the producer is the oldest, and lets others in
        before = producer.count("acked")
        wait_until(lambda: producer.count("acked") > before, "nothing is acknowledged")
        collector.stop(signal.SIGKILL)
        where = {key: value for key, value in place.join.items() if key != "timeout"}
        with collectors.Collector(spool, GROUP, **where) as again:
            assert again.status.members == 2
            producer.finish()
        assert indexes(contents(spool)[producer.address], 1) == list(range(4000))
