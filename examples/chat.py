"""A chat without a server: the name of the room is enough to enter.

python chat.py tea-room ann    # type a line for all others to see; end with Ctrl-D
python chat.py                 # two members talk by themselves
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import gapless


async def typed() -> AsyncIterator[str]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.strip()


async def show(group: gapless.Group, me: str) -> None:
    """Print joins, leaves and messages, in the order of the events."""
    async for event in group.events():
        if isinstance(event, gapless.Message):
            print(f"{me} sees: {event.payload.decode()}")
        elif isinstance(event, gapless.ViewChange):
            print(f"{me} sees: {len(event.view.members)} in the room")


async def chat(room: str, me: str, lines: AsyncIterator[str], company: int = 1) -> None:
    async with gapless.join(room) as group:
        await group.wait_for_members(company, timeout=60)
        showing = asyncio.create_task(show(group, me))
        async for line in lines:
            await group.send(f"{me}: {line}".encode())
        group.leave()
        await showing  # what was said until now is still shown


async def talk() -> None:
    room = f"tea-room-{os.getpid()}"
    heard = asyncio.Event()

    async def ann() -> AsyncIterator[str]:
        yield "is anybody here?"
        await heard.wait()
        yield "good night"

    async def bob() -> AsyncIterator[str]:
        yield "I am"
        heard.set()

    await asyncio.gather(chat(room, "ann", ann(), 2), chat(room, "bob", bob(), 2))


if len(sys.argv) > 2:
    asyncio.run(chat(sys.argv[1], sys.argv[2], typed()))
else:
    asyncio.run(talk())
