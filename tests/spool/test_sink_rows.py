"""Rows of a sink that come in the streams of several of its lives are in the spool once."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from gapless import blocking
from gapless.cli.data.spool import _streams
from gapless.group.headers import attach_headers, detach_headers
from gapless.group.message import Batch
from gapless.group.sink_dedup import SINK, SinkRowId
from gapless.identity import Address
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.spool import SpoolReader
from gapless.spool.collector.appender import DeliveryAppender
from gapless.spool.fsck import check
from gapless.spool.index import HOLE_REPEATED
from tests.support.collectors import GROUP, meeting_place
from tests.support.deliveries import opened, rows_of
from tests.support.processes import PATIENCE_S

LIVES = [Address(0xA, 1), Address(0xB, 1), Address(0xC, 1)]
ROWS = 60


def row(number: int, batch: int = 0) -> bytes:
    return attach_headers(
        b"%d/%d" % (batch, number), {SINK: SinkRowId("query", batch, 0, number).encode()}
    )


def life(origin: Address, count: int, cuts: list[int]) -> list[Delivery]:
    """The first rows of a batch as one incarnation sent them; every fifth run is fragmented."""
    found: list[Delivery] = []
    at, seqno = 0, 1
    while at < count:
        size = min(cuts[len(found) % len(cuts)], count - at)
        if len(found) % 5 == 4:
            found.append(Delivery(origin, seqno, seqno + 2, row(at)))
            at, seqno = at + 1, seqno + 3
            continue
        messages = [row(number) for number in range(at, at + size)]
        found.append(Delivery(origin, seqno, seqno + size - 1, Run.of(origin, seqno, messages)))
        at, seqno = at + size, seqno + size
    return found


@given(
    st.lists(st.integers(1, ROWS), min_size=2, max_size=2),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.lists(st.sampled_from([0, 1, 2, "commit", "crash"]), max_size=80),
    st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_whatever_the_order_and_whenever_it_crashes(
    reached: list[int], cuts: list[int], story: list[int | str], small: bool
) -> None:
    streams = [
        life(origin, upto, cuts) for origin, upto in zip(LIVES, [*reached, ROWS], strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spool"
        limits = {"segment_bytes": 4096} if small else {}
        spool = opened(path, **limits)
        intake = DeliveryAppender(spool)
        for step in [*story, *([0, 1, 2] * (2 * ROWS)), "commit"]:
            if step == "commit":
                intake.stage_dedup_state()
                spool.commit()
            elif step == "crash":
                spool._lock.release()  # what is in line is gone with the process
                spool = opened(path, **limits)
                intake = DeliveryAppender(spool)
            else:
                assert isinstance(step, int)
                had = spool.last_appended(LIVES[step]) or 0
                following = [each for each in streams[step] if each.last > had]
                if following:
                    intake.append_batch(Batch(following[0], {}))
        high = {str(stream[-1].origin): stream[-1].last for stream in streams}
        spool.close()
        view = SpoolReader(path)
        view.refresh()
        assert view.high() == high, "offsets count every number"
        rows = [
            detach_headers(payload)[1] for found in rows_of(view).values() for _, payload in found
        ]
        assert sorted(rows) == sorted(b"0/%d" % number for number in range(ROWS)), (
            "each row is there, once"
        )
        assert {hole.reason for hole in view.lost()} <= {HOLE_REPEATED}
        hidden = sum(hole.last - hole.first + 1 for hole in view.lost())
        shown = sum(len(found) for found in rows_of(view).values())
        assert hidden + shown <= sum(high.values())


def test_what_waits_behind_a_hole_is_not_remembered_before_it_is_in_line(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    intake = DeliveryAppender(spool)
    first, second = life(LIVES[0], 6, [3])
    lacking = second._replace(
        first=10, last=12, content=Run.of(LIVES[0], 10, [row(3), row(4), row(5)])
    )
    intake.append_batch(Batch(first, {}))
    intake.append_batch(Batch(lacking, {}))
    intake.stage_dedup_state()
    spool.commit()
    spool.close()
    spool = opened(tmp_path / "spool")
    intake = DeliveryAppender(spool)
    intake.append_batch(Batch(life(LIVES[1], 6, [6])[0], {}))
    intake.stage_dedup_state()
    spool.commit()
    spool.close()
    view = SpoolReader(tmp_path / "spool")
    view.refresh()
    assert [detach_headers(payload)[1] for _, payload in rows_of(view)[str(LIVES[1])]] == [
        b"0/3",
        b"0/4",
        b"0/5",
    ]


def test_a_collector_that_is_killed_remembers_what_a_sink_has_published(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    numbers = range(3000)

    def publish(sink: blocking.Group, upto: int, batch: int = 0) -> None:
        sink.wait_for_member("collector", PATIENCE_S)
        sent = sink.send_many(
            [b"%d/%d" % (batch, number) for number in numbers[:upto]],
            headers=[
                {SINK: SinkRowId("query", batch, 0, number).encode()} for number in numbers[:upto]
            ],
            mode="acknowledged",
        )
        sent.delivered(PATIENCE_S)

    with meeting_place(tmp_path) as place:
        collector = place.collect(spool)
        with blocking.join(GROUP, **place.join) as sink:
            publish(sink, 2000)
        os.kill(collector.process.pid, signal.SIGKILL)
        collector = place.collect(spool)
        with blocking.join(GROUP, **place.join) as sink:
            publish(sink, 3000)
            publish(sink, 10, batch=1)
            sink.send(b"plain", mode="acknowledged").delivered(PATIENCE_S)
        assert collector.stop(signal.SIGTERM) == 0, collector.errors
        assert collector.statuses[-1]["repeated"] == 2000
        assert collector.statuses[-1]["lost"] == 0
    view = SpoolReader(spool)
    view.refresh()
    found = [detach_headers(payload)[1] for rows in rows_of(view).values() for _, payload in rows]
    expected = (
        [b"0/%d" % number for number in numbers]
        + [b"1/%d" % number for number in range(10)]
        + [b"plain"]
    )
    assert sorted(found) == sorted(expected)
    report = check(spool)
    assert (report.problems, report.lost, report.messages) == ([], 0, len(expected))
    assert [stream["lost"] for stream in _streams(view)] == [0, 0]
