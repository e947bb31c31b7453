"""A collector with a full spool, or that was expelled: real processes, and no message is lost."""

from __future__ import annotations

import re
import resource
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING
from urllib.request import urlopen

from gapless import blocking
from gapless.cli.data.collect import summary
from gapless.events import ViewChange
from gapless.spool import SpoolReader
from gapless.spool.collector import CollectorStatus
from tests.support.collectors import GROUP, contents, indexes, meeting_place, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.collectors import Collect, Producer

MB = 1_000_000


def stands_still(producers: list[Producer]) -> None:
    """Wait until producers have sent nothing for a while."""
    pause = threading.Event()
    before: list[int] = []
    while before != (now := [producer.count("sent") for producer in producers]):
        before = now
        pause.wait(1.0)


def check_all(spool: Path, producers: list[Producer], count: int) -> None:
    """Every message of every producer is in the spool once, in order."""
    held = contents(spool)
    for number, producer in enumerate(producers):
        assert indexes(held[producer.address], number) == list(range(count))


def end(collector: Collect) -> None:
    assert collector.stop(signal.SIGTERM) == 0, collector.errors
    assert collector.statuses[-1]["state"] == "stopped"


def test_senders_wait_at_the_limit_and_everything_flows_when_a_reader_goes_on(
    tmp_path: Path,
) -> None:
    spool, count = tmp_path / "spool", 8000
    with meeting_place(tmp_path, window_bytes="512KiB") as place:
        collector = place.collect(spool, "--max-bytes", "2MiB")
        view = SpoolReader(spool)
        view.register("spark", {})
        producers = [
            place.produce(number, count, mode="ordered", padding=1000, batch=50)
            for number in range(2)
        ]
        for producer in producers:
            producer.write("\n")
        full = collector.status(
            lambda status: status["limited"] == "bytes", "the limit is not reached"
        )
        assert full["state"] == "waiting"
        assert "spark" in full["waits_for"], "it says whom it waits for"
        assert str(spool) in full["waits_for"], "and where"
        stands_still(producers)
        sent, memory = [producer.count("sent") for producer in producers], collector.rss_bytes()
        still = collector.status(
            lambda status: status["at_s"] > full["at_s"] + 2, "no more statuses"
        )
        assert [producer.count("sent") for producer in producers] == sent, "senders wait"
        assert max(sent) < count
        assert collector.rss_bytes() < memory + 4 * MB, "memory is flat"
        assert still["used_bytes"] <= 2 * 1024 * 1024
        got: dict[str, list[tuple[int, bytes]]] = {}
        done: dict[str, int] = {}
        while any(len(got.get(producer.address, ())) < count for producer in producers):
            view.refresh()
            high = view.high()
            for part in view.slices(done, high):
                for record in view.records(part):
                    got.setdefault(part.stream, []).extend(
                        zip(record.seqnos(), record.messages(), strict=True)
                    )
            done = high
            view.register("spark", done)
            wait_until(partial(has_more, view, done, producers), "nothing more comes")
        assert view.lost() == []
        for number, producer in enumerate(producers):
            producer.finish()
            assert indexes(got[producer.address], number) == list(range(count))
        end(collector)
        told = [line for line in collector.errors if "senders wait" in line]
        assert told, "it says that it waits"
        assert (
            len(told)
            <= len([line for line in collector.errors if "accepts commits again" in line]) + 1
        )
        assert collector.statuses[-1]["dropped"] == collector.statuses[-1]["lost"] == 0


def has_more(view: SpoolReader, done: dict[str, int], producers: list[Producer]) -> bool:
    view.refresh()
    return view.high() != done or all_done(producers)


def all_done(producers: list[Producer]) -> bool:
    return all("done" in producer.output for producer in producers)


def test_a_full_disk_is_told_once_and_nothing_is_lost(tmp_path: Path) -> None:
    spool, count = tmp_path / "spool", 4000
    with meeting_place(tmp_path) as place:
        collector = place.collect(spool)
        producers = [place.produce(number, count, padding=500) for number in range(2)]
        # No file may grow beyond this, as if that were all that the disk has.
        pid, limit = collector.process.pid, resource.RLIMIT_FSIZE
        resource.prlimit(pid, limit, (MB, resource.RLIM_INFINITY))
        for producer in producers:
            producer.write("\n")
        full = collector.status(lambda status: status["state"] == "waiting", "the disk is not full")
        assert ".run" in full["waits_for"], "it says which file"
        assert "free space" in full["waits_for"], "and what to do"
        assert full["limited"] == ""
        stands_still(producers)
        assert not all_done(producers)
        collector.status(
            lambda status: status["failures"] > full["failures"] + 1, "it does not try again"
        )
        resource.prlimit(pid, limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for producer in producers:
            producer.finish()
        end(collector)
        assert len([line for line in collector.errors if "free space" in line]) == 1, "told once"
        assert len([line for line in collector.errors if "accepts commits again" in line]) == 1
        check_all(spool, producers, count)


def test_on_a_full_disk_every_figure_is_what_the_disk_has(small_disk: Path, tmp_path: Path) -> None:
    """Status, metrics, the last line and the files agree: only what is on disk was collected."""
    spool, count = small_disk / "spool", 2000
    with meeting_place(tmp_path) as place:
        collector = place.collect(spool, "--serve", "0")
        where = collector.wait_for("serving").split()[-1]
        producer = place.produce(0, count, padding=1000)
        producer.write("\n")
        collector.status(lambda status: status["state"] == "waiting", "the disk is not full")
        stands_still([producer])
        with urlopen(where, timeout=60) as answer:
            served = answer.read().decode()
        assert collector.stop(signal.SIGTERM) == 1, "messages that were received are not on disk"
        held = contents(spool)[producer.address]
        last = collector.statuses[-1]
    stored, size_bytes = len(held), sum(len(payload) for _, payload in held)
    assert 0 < producer.count("acked") <= stored < last["received"] <= count
    assert (last["messages"], last["size_bytes"], last["spool_messages"]) == (
        *(stored, size_bytes),
        stored,
    )
    assert last["pending"] == last["received"] - stored
    for name, value in (
        ("gapless_spool_messages_total", stored),
        ("gapless_spool_size_bytes_total", size_bytes),
        ("gapless_spool_stored_messages", stored),
        ("gapless_spool_waiting", 1),
    ):
        assert re.findall(rf"^{name}{{[^}}]*}} (\d+)$", served, re.MULTILINE) == [str(value)]
    fields = {name: last[name] for name in CollectorStatus.__annotations__}
    assert summary(CollectorStatus(**fields)).startswith(
        f"{GROUP}: {stored:,} messages, {size_bytes / 1e6:,.1f} MB, {last['commits']:,} commits, "
        f"{last['pending']:,} received but not on disk, so not acknowledged; "
        f"the spool has {stored:,} messages"
    )


def test_a_folder_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    spool, count = tmp_path / "spool", 4000
    with meeting_place(tmp_path) as place:
        collector = place.collect(spool)
        producers = [place.produce(number, count, padding=100) for number in range(2)]
        for producer in producers:
            producer.write("\n")
        wait_until(lambda: producers[0].count("acked") > count // 4, "nothing is acknowledged")
        spool.rename(tmp_path / "elsewhere")
        gone = collector.status(lambda status: status["state"] == "waiting", "it has not noticed")
        assert str(spool) in gone["waits_for"]
        assert "restore the folder" in gone["waits_for"]
        stands_still(producers)
        assert not all_done(producers)
        (tmp_path / "elsewhere").rename(spool)
        for producer in producers:
            producer.finish()
        end(collector)
        check_all(spool, producers, count)


def test_one_that_the_group_goes_on_without_comes_back_and_loses_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    spool, count = tmp_path / "spool", 6000
    with meeting_place(tmp_path, suspect_after="2s") as place:
        collector = place.collect(spool)
        producers = [place.produce(number, count, padding=100) for number in range(2)]
        with blocking.join(GROUP, **place.join) as watcher:
            for producer in producers:
                producer.write("\n")
            wait_until(lambda: producers[0].count("acked") > count // 4, "nothing is acknowledged")
            collector.signal(signal.SIGSTOP)
            names = watcher.names
            while True:
                event = watcher.receive_event(timeout=30)
                if isinstance(event, ViewChange) and any(
                    names.get(member) == "collector" for member in event.left
                ):
                    break
            collector.signal(signal.SIGCONT)
            collector.status(lambda status: status["lives"] == 2, "it has no second life")
        for producer in producers:
            producer.finish()
        end(collector)
        assert any("expelled this collector" in line for line in collector.errors)
        check_all(spool, producers, count)


def test_two_collectors_hold_the_same(tmp_path: Path) -> None:
    spools, count = [tmp_path / "one", tmp_path / "two"], 3000
    with meeting_place(tmp_path) as place:
        collectors = [place.collect(spool, "--name", spool.name) for spool in spools]
        names = [spool.name for spool in spools]
        producers = [
            place.produce(number, count, padding=100, collectors=names) for number in range(2)
        ]
        for producer in producers:
            producer.write("\n")
        wait_until(lambda: producers[0].count("acked") > count // 3, "nothing is acknowledged")
        collectors[1].stop(signal.SIGKILL)
        collectors[1] = place.collect(spools[1])  # its spool knows its name
        for producer in producers:
            producer.finish()
        for collector in collectors:
            end(collector)
        assert contents(spools[0]) == contents(spools[1])
        check_all(spools[0], producers, count)
