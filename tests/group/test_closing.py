"""However a member goes, it goes soon, and whoever waits is told."""

import asyncio
import gc
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest

import gapless
from gapless import blocking
from gapless.errors import ClosedError, TimedOutError
from tests.support.group_programs import program
from tests.support.networks import free_ports
from tests.support.real_groups import company, options, read, run, threads

PROMPT_S = 3.0
"""Well below any timeout that might be waited out instead."""


def test_closing_ends_whatever_waits() -> None:
    async def story() -> None:
        async with company(2, capacity=4, unread_limit=4, loopback=False, leave_timeout="30s") as (
            one,
            two,
        ):
            sends = [asyncio.create_task(one.send(b"%d" % number)) for number in range(12)]
            reading = asyncio.create_task(anext(one, None))
            done, waiting = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 8:
                more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                done |= more
            assert len(waiting) == 4, "what the reader and the window take has been accepted"
            closing = asyncio.create_task(one.close())
            for task in waiting:
                with pytest.raises(ClosedError, match=r"nothing was sent|join again"):
                    await task
            assert await read(two, 8) == [b"%d" % number for number in range(8)], (
                "what was accepted arrives"
            )
            await closing
            assert await reading is None
            with pytest.raises(TimedOutError):
                await two.receive("50ms")

    run(story())


def test_what_nobody_has_read_does_not_keep_a_member() -> None:
    async def story() -> None:
        async with company(2, capacity=64, unread_limit=2, leave_timeout="30s") as (one, two):
            sending = asyncio.create_task(one.send_many([b"x"] * 60))
            assert len(await read(two, 60)) == 60
            await sending
            start_s = time.monotonic()
            await one.close()
            assert time.monotonic() - start_s < PROMPT_S

    run(story())


def test_closing_does_not_wait_for_one_that_does_not_read_longer_than_it_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with company(2, capacity=4, unread_limit=1, loopback=False, leave_timeout="30s") as (
            one,
            two,
        ):
            await one.send_many([b"x"] * 3)
            start_s = time.monotonic()
            await one.close("100ms")
            assert time.monotonic() - start_s < PROMPT_S
            assert two.view is not None
            await one.close()
            assert one.is_closed

    run(story())
    assert "messages 2..3 to the group may not have arrived" in caplog.text


def test_an_error_in_the_program_closes_soon() -> None:
    async def story() -> float:
        async with company(2, capacity=4, unread_limit=1, loopback=False, leave_timeout="30s") as (
            one,
            _,
        ):
            await one.send_many([b"x"] * 3)
            start_s = time.monotonic()
            await one.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
            return time.monotonic() - start_s

    assert run(story()) < PROMPT_S


def test_threads_that_wait_are_told() -> None:
    with threads(2, capacity=4, unread_limit=4, loopback=False) as (one, _):
        told: list[BaseException | None] = []

        def sender() -> None:
            try:
                one.send_many([b"x"] * 100)
            except ClosedError as error:
                told.append(error)

        def reader() -> None:
            told.append(None if one.receive(30) is None else AssertionError("a message came"))

        working = [threading.Thread(target=target) for target in (sender, reader)]
        for thread in working:
            thread.start()
        while one.snapshot().streams[0].high < 8:
            pass
        one.close("200ms")
        for thread in working:
            thread.join(20)
        assert sorted(type(error).__name__ for error in told) == ["ClosedError", "NoneType"]
        assert "8 of 100 messages were sent" in str(next(error for error in told if error))


@pytest.mark.parametrize("name", ["reads", "reads_in_a_thread"])
def test_control_c(name: str) -> None:
    ports = free_ports(2)
    with threads_at(ports) as group, program(name, ports) as other:
        assert other.read_line().startswith("in")
        group.wait_for_members(2, 30)
        group.send(b"hello")
        assert other.read_line() == "got hello"
        other.signal(signal.SIGINT)
        code, complaints = other.wait(), "\n".join(other.errors)
        assert code == -signal.SIGINT or "KeyboardInterrupt" in complaints
        assert complaints.count("Traceback") <= 2, complaints
        assert "never retrieved" not in complaints
        assert left(group) == 1, "it has told the group"


def test_control_c_in_a_send_that_waits() -> None:
    ports = free_ports(2)
    with threads_at(ports, suspect_after="20s") as group, program("waits_to_send", ports) as other:
        assert other.read_line().startswith("in")
        group.wait_for_members(2, 30)
        seqnos = [message.seqno for _ in range(4) if (message := group.receive(30))]
        other.signal(signal.SIGINT)
        code, complaints = other.wait(), "\n".join(other.errors)
        assert code != 0
        assert "KeyboardInterrupt" in complaints
        while not (isinstance(event := group.receive_event(30), gapless.ViewChange) and event.left):
            if isinstance(event, gapless.Message):
                seqnos.append(event.seqno)
        assert seqnos == list(range(1, len(seqnos) + 1))


def test_the_end_of_a_program_is_the_end_of_its_members() -> None:
    ports = free_ports(2)
    with threads_at(ports, suspect_after="20s") as group, program("blocks", ports) as other:
        assert other.read_line() == "in"
        assert other.wait() == 0
        assert left(group) == 1


def test_a_group_that_nobody_holds_leaves() -> None:
    ports = free_ports(2)
    with threads_at(ports, suspect_after="20s") as group, program("forgets", ports) as other:
        assert other.read_line() == "warned ['ResourceWarning']"
        assert left(group) == 1, "before its process has ended"


def test_a_group_that_was_closed_goes_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    with threads(1):
        pass
    gc.collect()
    assert not list(recwarn)


def test_a_forked_child_is_told_and_the_parent_goes_on() -> None:
    ports = free_ports(2)
    with program("forks", ports) as forking:
        assert forking.read_line() == "child ended with 0"
        assert (forking.wait(), forking.errors) == (0, [])


def test_a_cancelled_join_leaves_nothing_behind() -> None:
    async def story() -> None:
        ports = free_ports(3)
        for port, turns in zip(ports, (0, 1, 50), strict=True):
            joining = asyncio.create_task(
                gapless.join("tests", **options([port], found_after="30s")).open()
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
        for port in ports:
            await until_free(port)
        with pytest.raises(TimedOutError, match="could not be joined within the timeout"):
            await gapless.join(
                "tests", timeout="100ms", **options(free_ports(1), found_after="30s")
            ).open()

    run(story())


async def until_free(port: int) -> None:
    """Wait until nobody uses a port."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return
        await asyncio.sleep(0)


def threads_at(ports: list[int], **knobs: object) -> blocking.Group:
    return blocking.join("tests", **options(ports, **knobs))


def left(group: blocking.Group) -> int:
    """Read until somebody has left; return how many members there are then."""
    while True:
        event = group.receive_event(30)
        if isinstance(event, gapless.ViewChange) and event.left:
            return len(event.view.members)
