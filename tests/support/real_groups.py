"""Groups for tests: real sockets on loopback, quick timers, everything bounded."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import gapless
from gapless import blocking
from tests.support.networks import free_ports, seeds

T = TypeVar("T")

WITHIN_S = 60.0
QUICK = {
    "found_after": "200ms",
    "join_interval": "20ms",
    "heartbeat_interval": "50ms",
    "suspect_after": "1500ms",
    "verify_timeout": "500ms",
    "merge_interval": "200ms",
    "leave_timeout": "5s",
}
"""Settings for fast views that expel no running member, even on a busy machine."""


def run(story: Coroutine[Any, Any, T]) -> T:
    """Run a story to its end, or fail."""

    async def bounded() -> T:
        async with asyncio.timeout(WITHIN_S):
            return await story

    return asyncio.run(bounded())


def options(ports: list[int], **knobs: Any) -> dict[str, Any]:
    """Return options of ``join`` for members that find each other at these ports."""
    return {
        "host": "127.0.0.1",
        "ports": ports,
        "discover": seeds(ports),
        "config": {**QUICK, **knobs},
    }


@asynccontextmanager
async def company(
    count: int, *, each: dict[str, Any] | None = None, **knobs: Any
) -> AsyncIterator[list[gapless.Group]]:
    """Join members, and wait until all of them are in one view."""
    ports = free_ports(count)
    async with AsyncExitStack() as stack:
        joins = [
            gapless.join("tests", **options(ports, **knobs), **(each or {})) for _ in range(count)
        ]
        groups = await asyncio.gather(*(stack.enter_async_context(join) for join in joins))
        for group in groups:
            await group.wait_for_members(count)
        yield groups


@contextmanager
def threads(
    count: int, *, each: dict[str, Any] | None = None, **knobs: Any
) -> Iterator[list[blocking.Group]]:
    """The same for threads."""
    ports = free_ports(count)
    with ExitStack() as stack:
        groups = [
            stack.enter_context(blocking.join("tests", **options(ports, **knobs), **(each or {})))
            for _ in range(count)
        ]
        for group in groups:
            group.wait_for_members(count, WITHIN_S)
        yield groups


async def read(group: gapless.Group, count: int) -> list[bytes]:
    """Return the next messages."""
    found: list[bytes] = []
    while len(found) < count:
        message = await group.receive(WITHIN_S)
        assert message is not None, f"{group} has ended after {len(found)} messages"
        found.append(message.payload)
    return found


def other_than(group: Any) -> gapless.Address:
    """Return the member of a view of two that is not this one."""
    (other,) = [member for member in group.view.members if member != group.me]
    return gapless.Address(*other)
