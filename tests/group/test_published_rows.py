"""Rows that a sink publishes twice are read once, through both faces."""

import contextlib
import threading
from typing import Any

import gapless
from gapless import blocking
from gapless.errors import TimedOutError
from gapless.group.sink_dedup import SINK, SinkRowId
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, company, options, read, run, threads


def publish(rows: range, query: str = "q", batch: int = 0) -> dict[str, Any]:
    """Return what to hand to send_many."""
    return {
        "payloads": [b"%d" % row for row in rows],
        "headers": [{SINK: SinkRowId(query, batch, 0, row).encode()} for row in rows],
        "mode": "acknowledged",
    }


def test_a_sink_that_begins_again_in_another_life_is_read_once() -> None:
    async def story() -> None:
        async with company(3, unread_limit=64) as (one, two, reader):
            # Half of a batch, all of it by another member, and the next batch; what is not of a
            # sink stays as it is.
            await one.send_many(**publish(range(100)))
            assert await read(reader, 100) == [b"%d" % row for row in range(100)]
            await two.send_many(**publish(range(200)))
            await two.send_many([b"plain", b"plain"], headers={"kind": b"x"})
            await two.send_many(**publish(range(5), batch=1))
            expected = (
                [b"%d" % row for row in range(100, 200)]
                + [b"plain"] * 2
                + [b"%d" % row for row in range(5)]
            )
            assert await read(reader, len(expected)) == expected
            await one.send_many(**publish(range(200)))
            await one.send(b"end")
            assert await read(reader, 1) == [b"end"]
            assert (await reader.snapshot()).counters["repeated"] == 300
            assert (await reader.snapshot()).gauges["unread"] <= 1

    run(story())


def test_batches_leave_out_what_came_before() -> None:
    with threads(2) as (one, two):
        one.send_many(**publish(range(0, 50, 2)))
        one.send_many(**publish(range(50)))
        one.send(b"end", mode="acknowledged")
        found: list[bytes] = []
        while found[-1:] != [b"end"]:
            item = two.receive_batch(WITHIN_S)
            if isinstance(item, gapless.Batch):
                assert item.last - item.first + 1 == len(item) == len(list(item.messages()))
                found += list(item)
        assert found[:-1] == [b"%d" % row for row in [*range(0, 50, 2), *range(1, 50, 2)]]
        assert two.snapshot().counters["repeated"] == 25


def test_a_member_that_begins_with_a_state_knows_which_rows_are_in_it() -> None:
    ports = free_ports(3)
    rows: list[bytes] = []
    given: list[bytes] = []
    hooks = (lambda: b" ".join(rows), given.append)
    with (
        blocking.join("tests", **options(ports), state=hooks) as old,
        blocking.join("tests", **options(ports)) as sink,
    ):
        old.wait_for_members(2, WITHIN_S)
        sink.send_many(**publish(range(3)))
        for _ in range(3):
            message = old.receive(WITHIN_S)
            assert message is not None
            rows.append(message.payload)
        opened = blocking.join("tests", **options(ports), state=(lambda: b"", given.append))
        new: list[blocking.Group] = []
        coming = threading.Thread(target=lambda: new.append(opened.open()))
        coming.start()
        while not new:
            try:
                old.receive(0.05)
            except TimedOutError:
                continue
        coming.join()
        with contextlib.closing(new[0]) as late:
            assert given == [b"0 1 2"]
            sink.send_many(**publish(range(5)))
            found = [late.receive(WITHIN_S) for _ in range(2)]
            assert [message.payload for message in found if message] == [b"3", b"4"]
