"""An event loop as the leader: turns run in its thread, unless it cannot or does not attend."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import gapless
from gapless.runtime import loop_leader
from gapless.runtime.reactor import Reactor
from gapless.transport import InProcessNetwork
from tests.support.companions import QUICK
from tests.support.real_groups import WITHIN_S

Story = Callable[[gapless.Group], Coroutine[Any, Any, None]]


def play(story: Story, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Run a story with a lone member in an event loop."""

    async def run() -> None:
        transport = InProcessNetwork().open()
        async with (
            asyncio.timeout(WITHIN_S),
            gapless.join("g", transport=transport, config=QUICK) as group,
        ):
            await story(group)

    with asyncio.Runner(loop_factory=None if loop is None else lambda: loop) as runner:
        runner.run(run())


async def thread_of_a_turn(group: gapless.Group) -> int:
    """Return the thread that runs a command of the loop's thread."""
    query = group._session.handle.query(lambda _: threading.get_ident())
    return await asyncio.wrap_future(query)


async def until_the_loop_leads(group: gapless.Group) -> None:
    """Wait until the loop runs turns; on a busy machine it may lose the lead once more."""
    while await thread_of_a_turn(group) != threading.get_ident():
        await group.snapshot()  # a wait: the loop is offered the lead


def test_a_loop_with_a_task_that_waited_runs_the_turns() -> None:
    async def story(group: gapless.Group) -> None:
        await until_the_loop_leads(group)

    play(story)


def test_a_blocked_loop_is_replaced_and_leads_again() -> None:
    async def story(group: gapless.Group) -> None:
        await until_the_loop_leads(group)
        threads: list[int] = []
        asked = threading.Event()

        def ask() -> None:
            handle = group._session.handle
            threads.append(handle.query(lambda _: threading.get_ident()).result(WITHIN_S))
            asked.set()

        other = threading.Thread(target=ask, daemon=True)
        other.start()
        assert asked.wait(WITHIN_S), "the loop is blocked until another thread has led"
        assert threads != [threading.get_ident()]
        other.join(WITHIN_S)
        await until_the_loop_leads(group)

    play(story)


def test_a_timer_runs_in_the_loop_that_leads() -> None:
    async def story(group: gapless.Group) -> None:
        await until_the_loop_leads(group)
        here = threading.get_ident()
        fired, loop = asyncio.Event(), asyncio.get_running_loop()
        runtime = group._session.handle._runtime
        run_timers = runtime.run_timers

        def note(now_ns: int) -> Any:
            if threading.get_ident() == here:
                loop.call_soon(fired.set)
            return run_timers(now_ns)

        runtime.run_timers = note  # type: ignore[method-assign]
        await fired.wait()

    play(story)


class LoopWithoutReaders(asyncio.SelectorEventLoop):
    """An event loop that cannot wait for a file descriptor, as the default loop of Windows."""

    def add_reader(self, *_: Any) -> None:  # type: ignore[override]
        """Refuse."""
        raise NotImplementedError


def test_a_loop_without_readers_leaves_the_lead_to_the_protocol_thread() -> None:
    async def story(group: gapless.Group) -> None:
        for number in range(20):
            await group.send(b"%d" % number, timeout=WITHIN_S)
            message = await group.receive(WITHIN_S)
            assert message is not None
            assert message.payload == b"%d" % number
        assert group._session.handle.reactor._loop is None
        assert await thread_of_a_turn(group) != threading.get_ident()

    try:
        play(story, LoopWithoutReaders())
        assert LoopWithoutReaders in loop_leader._UNFIT
    finally:
        loop_leader._UNFIT.discard(LoopWithoutReaders)


def test_a_loop_that_ended_without_members_keeps_nothing() -> None:
    async def story(group: gapless.Group) -> None:
        await until_the_loop_leads(group)

    play(story)
    reactor = Reactor.shared()
    until_s = time.monotonic() + WITHIN_S
    while reactor.thread is not None or reactor._loop is not None:
        assert time.monotonic() < until_s
    assert not reactor._poll_lock.locked()
