"""The pipeline without Spark: readings, ledgers, producers, and what a plan refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gapless.config import Config
from gapless.errors import ConfigError
from gapless.spool import SpoolReader
from gapless.spool.collector import Collector
from gapless_lab.exactness import StreamRows, missing_by_incarnation
from gapless_lab.plans import SETTINGS
from gapless_lab.sensor_pipeline import readings
from gapless_lab.sensor_pipeline.plan import PipelineInfo, PipelinePlan, locked
from gapless_lab.sensor_pipeline.report import missing_by_stream
from gapless_lab.sensor_pipeline.testbed import MAX_LEAD, SensorTestbed, send_limit
from gapless_lab.sensor_pipeline.worker import SensorProducer
from gapless_lab.workload import (
    ProducerIncarnation,
    ProducerLedger,
    ledger_path,
    lossy_transport,
    read_ledger,
)
from pyspark_gapless.tables.pipeline import root_cause
from tests.support.spools import A, B, Writer

GROUP = "plant-test"


# Readings


def test_readings_are_drawn_from_the_seed() -> None:
    some = [readings.reading(1, 2, number) for number in range(1, 4001)]
    assert some == [readings.reading(1, 2, number) for number in range(1, 4001)]
    assert some != [readings.reading(2, 2, number) for number in range(1, 4001)]
    assert {each.broken for each in some} == {"", *readings.BREAKS}
    assert 20 < sum(bool(each.broken) for each in some) < 60


def test_readings_are_of_their_time_or_late() -> None:
    late = [
        readings.START + number * readings.STEP - readings.reading(1, 1, number).at
        for number in range(1, 8001)
    ]
    assert sum(each == timedelta() for each in late) > 7500
    assert sum(timedelta() < each <= readings.LATE for each in late) > 150
    assert 4 < sum(each == readings.TOO_LATE for each in late) < 40
    assert max(each for each in late if each != readings.TOO_LATE) <= readings.LATE


def test_a_good_reading_is_a_json_object() -> None:
    good = next(
        each
        for each in (readings.reading(3, 1, number) for number in range(1, 9))
        if not each.broken
    )
    value = json.loads(good.payload())
    assert list(value) == ["site", "sensor", "number", "at", "celsius", "humidity"]
    assert (value["site"], value["number"], value["celsius"]) == (
        good.site,
        good.number,
        good.celsius,
    )


# Ledgers


def test_a_ledger_outlasts_its_producer(tmp_path: Path) -> None:
    path = tmp_path / "producers" / "1.jsonl"
    with closing(ProducerLedger(path)) as ledger:
        assert ledger.contents.next_number == 1
        ledger.begin("a.1", 1)
        ledger.acknowledge(120)
        ledger.acknowledge(80)
    with path.open("a") as file:
        file.write('{"acknowl')  # as a kill leaves it
    with closing(ProducerLedger(path)) as ledger:
        assert ledger.contents.incarnations == [ProducerIncarnation("a.1", 1, 120)]
        assert ledger.contents.next_number == 121
        ledger.begin("a.2", 121)
        ledger.acknowledge(10)
    assert read_ledger(path).incarnations == [
        ProducerIncarnation("a.1", 1, 120),
        ProducerIncarnation("a.2", 121, 10),
    ]


def test_what_is_lost_is_found() -> None:
    incarnations = [
        ProducerIncarnation("a.1", 1, 10),
        ProducerIncarnation("b.1", 1, 10),
        ProducerIncarnation("c.1", 1, 10),
        ProducerIncarnation("d.1", 1, 0),
    ]
    held = {
        "a.1": StreamRows(10, 10, 1, 10),
        "b.1": StreamRows(9, 9, 1, 10),
        "c.1": StreamRows(8, 8, 1, 8),
    }
    assert missing_by_incarnation(held, incarnations) == (30, {"b.1": 1, "c.1": 2})
    more = {key: StreamRows(12, 12, 1, 12) for key in ("a.1", "b.1", "c.1")}
    assert missing_by_incarnation(more, incarnations) == (30, {}), (
        "what was stored and not acknowledged in time may be there too"
    )


# Producers


class Group:
    """A lossy group with a collector, to which a test adds producers."""

    def __init__(self, folder: Path) -> None:
        self.plan = PipelinePlan(output=folder)
        transport = lossy_transport(GROUP, self.plan.discovery_dir, 0.05, 1, "collector")
        self.collector = Collector(
            self.plan.spool_dir,
            GROUP,
            transport=transport,
            config=Config.make(**SETTINGS["pipeline"]),
        )

    def high(self) -> dict[str, int]:
        view = SpoolReader(self.plan.spool_dir)
        view.refresh()
        return view.high()

    def send(self, producers: int, messages: int) -> list[int]:
        """Run producers until each has everything acknowledged; return how many each has sent."""
        task = self.plan.member_task(
            group=GROUP,
            settings=SETTINGS["pipeline"],
            seed=1,
            rate=None,
            messages=messages,
        )
        with SensorTestbed(task, self.plan.logs) as testbed:
            started = [testbed.start_member(number + 1) for number in range(producers)]
            testbed.start_load()
            testbed.wait_until(lambda: testbed.is_done, "not everything is acknowledged", 120)
            testbed.stop()
            return [member.newly_acknowledged for member in started]

    def ledger(self, producer: int) -> Path:
        return ledger_path(self.plan.ledgers, producer)

    def numbers(self, producer: int) -> list[int]:
        """Return the numbers of a producer's readings that the spool has."""
        found: list[int] = []
        for incarnation in read_ledger(self.ledger(producer)).incarnations:
            stored = self.high().get(incarnation.origin, 0)
            found += range(incarnation.first, incarnation.first + stored)
        return found


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    with made.collector:
        yield made


def test_producers_go_on_where_they_were(group: Group) -> None:
    assert group.send(2, 700) == [700, 700]
    assert [group.numbers(number) for number in (1, 2)] == [list(range(1, 701))] * 2
    # The last acknowledgements were not written down, as if the producer had been killed just
    # before.
    path = group.ledger(1)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert read_ledger(path).incarnations[0].acknowledged < 700
    assert group.send(2, 1000) == [300, 300], "the spool knows what it has"
    assert [group.numbers(number) for number in (1, 2)] == [list(range(1, 1001))] * 2
    assert group.send(2, 1000) == [0, 0]
    assert len(group.high()) == 4, "a producer with nothing to send does not join"


def test_no_producer_runs_far_ahead() -> None:
    assert send_limit([0, 500], None) == MAX_LEAD
    assert send_limit([500, 700], 1000) == 500 + MAX_LEAD
    assert send_limit([1000, 700], 1000) == 700 + MAX_LEAD, "nobody waits for one that is done"
    assert send_limit([1000, 1000], 1000) is None


def test_a_producer_stops_at_its_limit(tmp_path: Path) -> None:
    plan = PipelinePlan(output=tmp_path)
    task = plan.member_task(
        group=GROUP, settings=SETTINGS["pipeline"], seed=1, rate=None, messages=450
    )
    producer = SensorProducer(task)
    producer.allow(1)
    batches = producer._batches()
    assert [next(batches).numbers for _ in range(2)] == [range(1, 2), range(2, 2)]
    producer.allow(300)
    assert [next(batches).numbers for _ in range(3)] == [
        range(2, 202),
        range(202, 301),
        range(301, 301),
    ]
    producer.allow(2000)
    assert [batch.numbers for batch in batches] == [range(301, 451)]
    producer.ledger.close()


# Plans

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "both sources": ({"spool": Path("x"), "group": "orders"}, "give one of them"),
    "once and follow": ({"once": True, "follow": True}, "give one of them"),
    "discover alone": ({"discover": "multicast://"}, "--group"),
    "no producers": ({"producers": 0}, "expected 1 to 32"),
    "no messages": ({"messages": 0}, "expected 1 or more"),
    "loss of everything": ({"loss": 1.0}, "from 0 to 0.5"),
    "loss of nothing known": ({"loss": float("nan")}, "from 0 to 0.5"),
    "a slow rate": ({"rate": 0.5}, "expected 1 to"),
    "no time": ({"seconds": 0.0}, "more than 0"),
    "no master": ({"master": "loca"}, "is not a Spark master"),
    "connect": ({"master": "sc://host:15002"}, "behind Spark Connect"),
    "a pattern": ({"output": Path("out[1]")}, "use another folder"),
    "two paths": ({"spool": Path("a,b")}, "use another folder"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_cannot_be(name: str, tmp_path: Path) -> None:
    options, expected = WRONG[name]
    with pytest.raises(ConfigError, match=expected):
        PipelinePlan(**{"output": tmp_path, **options})


def test_an_output_goes_on_as_it_was_begun(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    begun = PipelineInfo.of(PipelinePlan(output=output, seed=7))
    assert PipelineInfo.of(PipelinePlan(output=output)) == begun, "the same group, the same seed"
    with pytest.raises(ConfigError, match="begun with --seed 7"):
        PipelineInfo.of(PipelinePlan(output=output, seed=8))
    with pytest.raises(ConfigError, match="begun with producers of its own"):
        PipelineInfo.of(PipelinePlan(output=output, group="orders"))
    (output / "pipeline.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        PipelineInfo.of(PipelinePlan(output=output))


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="was not made by a pipeline"):
        PipelineInfo.of(PipelinePlan(output=tmp_path))


def test_one_pipeline_at_a_time(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "new"),
        pytest.raises(ConfigError, match="another pipeline works here"),
        locked(tmp_path / "new"),
    ):
        pass
    with locked(tmp_path / "new"):
        assert (tmp_path / "new" / "lock").read_text().strip().isdecimal()


def test_what_spark_raises_is_told_in_a_line() -> None:
    trace = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: something\nIdentifier: bronze\n"
        "Traceback (most recent call last):\n{}\n=== Streaming Query ==="
    )
    assert (
        root_cause(trace.format("gapless.spool.errors.SpoolCorrupt: 7.run: the record at 9"))
        == "7.run: the record at 9"
    )
    assert root_cause(trace.format("RuntimeError: fell")) == "RuntimeError: fell"
    assert (
        root_cause("[X] Query: Python worker failed to connect back. Y")
        == "Python worker failed to connect back"
    )
    assert root_cause("") == "Spark gave no reason"


def test_a_spool_says_what_is_not_in_the_table(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "spool")
    writer.runs(A, 10)
    writer.runs(B, 10)
    writer.lost(B, 5)
    writer.commit()
    high = {str(A): 10, str(B): 15}
    whole = {str(A): StreamRows(10, 10, 1, 10), str(B): StreamRows(10, 10, 1, 10)}
    assert missing_by_stream(whole, high, SpoolReader(writer.path)) == (20, {}), (
        "what never came was not acknowledged"
    )
    part = {str(B): StreamRows(8, 8, 1, 8)}
    assert missing_by_stream(part, high, SpoolReader(writer.path)) == (20, {str(A): 10, str(B): 2})
    writer.close()
