"""Opening, sending and closing again and again, in every API and shape of threads: none hangs.

The test fails if a cycle takes longer than a busy machine explains, and names the longest.
``GAPLESS_CYCLES=850`` runs 850 cycles of each of the twelve shapes, and ``-s`` prints the figures
(docs/internals/testing.md has those of a run).
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

import gapless
from gapless import blocking
from gapless.errors import ClosedError
from gapless.transport import InProcessNetwork
from tests.support.collectors import wait_until
from tests.support.companions import QUICK

CYCLES = int(os.environ.get("GAPLESS_CYCLES", "50"))
WITHIN_S = 10.0
"""How long a single step of a cycle may take before the test gives up."""
LONGEST_S = float(os.environ.get("GAPLESS_LONGEST_CYCLE", "3"))
"""How long a cycle may take on a busy machine, in seconds."""
ALONE = {"found_after": "1ms", "heartbeat_interval": "60s", "suspect_after": "200s"}
"""Settings with which no timer hides a lost wake-up."""
PAIR = {**ALONE, "join_interval": "2ms", "found_after": "20ms", "merge_interval": "50ms"}


def join() -> blocking.Group:
    return blocking.join("g", transport=InProcessNetwork().open(), config=ALONE)


def with_threads() -> None:
    with join() as group:
        group.send(b"x")


def and_receive() -> None:
    with join() as group:
        group.send(b"x")
        assert group.receive(WITHIN_S) is not None


def acknowledged() -> None:
    with join() as group:
        group.send(b"x", mode="acknowledged").delivered(WITHIN_S)


def while_another_thread_reads() -> None:
    with join() as group:
        reader = threading.Thread(target=lambda: list(group))
        reader.start()
        group.send(b"x")
    reader.join(WITHIN_S)
    assert not reader.is_alive()


def while_another_thread_sends() -> None:
    def send() -> None:
        try:
            while True:
                group.send(b"x")
        except ClosedError:
            pass

    with join() as group:
        sender = threading.Thread(target=send)
        sender.start()
        assert group.receive(WITHIN_S) is not None
    sender.join(WITHIN_S)
    assert not sender.is_alive()


def in_another_thread(shape: Callable[[], None] = and_receive) -> None:
    worker = threading.Thread(target=shape)
    worker.start()
    worker.join(WITHIN_S)
    assert not worker.is_alive()


def two_at_once() -> None:
    workers = [threading.Thread(target=and_receive) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(WITHIN_S)
        assert not worker.is_alive()


def two_members() -> None:
    network = InProcessNetwork()
    with (
        blocking.join("g", transport=network.open(), config=PAIR) as one,
        blocking.join("g", transport=network.open(), config=PAIR) as two,
    ):
        one.wait_for_members(2, WITHIN_S)
        one.send(b"x")
        assert two.receive(WITHIN_S) is not None


def two_members_that_leave_at_once() -> None:
    network = InProcessNetwork()
    groups = [blocking.join("g", transport=network.open(), config=PAIR) for _ in range(2)]
    for group in groups:
        group.open()
    for group in groups:
        group.wait_for_members(2, WITHIN_S)
    closers = [threading.Thread(target=group.close) for group in groups]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(WITHIN_S)
        assert not closer.is_alive()


def with_asyncio() -> None:
    async def story() -> None:
        async with gapless.join("g", transport=InProcessNetwork().open(), config=ALONE) as group:
            await group.send(b"x")
            assert await group.receive(WITHIN_S) is not None

    asyncio.run(story())


def with_asyncio_several() -> None:
    async def one() -> None:
        async with gapless.join("g", transport=InProcessNetwork().open(), config=ALONE) as group:
            receiving = asyncio.create_task(group.receive(WITHIN_S))
            await group.send(b"x")
            assert await receiving is not None

    async def story() -> None:
        await asyncio.gather(*(one() for _ in range(3)))

    asyncio.run(story())


def with_both() -> None:
    async def story() -> None:
        async with gapless.join("g", transport=InProcessNetwork().open(), config=ALONE) as group:
            await asyncio.to_thread(and_receive)
            await group.send(b"x")

    asyncio.run(story())


SHAPES = [
    with_threads,
    and_receive,
    acknowledged,
    while_another_thread_reads,
    while_another_thread_sends,
    in_another_thread,
    two_at_once,
    two_members,
    two_members_that_leave_at_once,
    with_asyncio,
    with_asyncio_several,
    with_both,
]


def test_a_closed_member_is_freed() -> None:
    with join() as group:
        group.send(b"x")
        runtime = weakref.ref(group._session.handle._runtime)
    del group
    # The protocol thread may still be in the turn that ended the member.
    wait_until(lambda: gc.collect() >= 0 and runtime() is None, "the member to be freed", WITHIN_S)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_no_cycle_hangs(shape: Callable[[], None]) -> None:
    longest_s = 0.0
    began_s = time.monotonic()
    for _ in range(CYCLES):
        start_s = time.monotonic()
        shape()
        longest_s = max(longest_s, time.monotonic() - start_s)
    mean_ms = (time.monotonic() - began_s) / CYCLES * 1000
    sys.stdout.write(f"{shape.__name__}: {CYCLES} cycles, mean {mean_ms:.1f} ms, ")
    sys.stdout.write(f"longest {longest_s * 1000:.0f} ms\n")
    assert longest_s < LONGEST_S, f"the longest of {CYCLES} cycles took {longest_s:.2f} s"


def test_an_event_loop_that_was_closed_leads_no_longer() -> None:
    """A program may go on without its loop, and with another one."""
    network = InProcessNetwork()

    def joined() -> gapless.Group:
        return gapless.join("g", transport=network.open(), config=QUICK)

    loop = asyncio.new_event_loop()
    group = loop.run_until_complete(joined().open())
    loop.run_until_complete(group.send(b"first"))
    loop.close()

    async def exchange() -> None:
        async with joined() as third:
            await third.wait_for_members(3, WITHIN_S)
            await third.send(b"third")
            while (message := await group.receive(WITHIN_S)) and message.payload != b"third":
                pass
        await group.close()

    with blocking.join("g", transport=network.open(), config=QUICK) as other:
        other.wait_for_members(2, WITHIN_S)
        other.send(b"second")
        message = other.receive(WITHIN_S)
        assert message is not None
        assert message.payload == b"second"
        asyncio.run(exchange())
