"""Leader election: all members see the same views in the same order, so the oldest member of the view leads.

When it leaves or dies there is another view, and the next one leads. While a network is divided each part has a leader;
when it heals there is one again.
"""

import asyncio
import os

import gapless

GROUP = f"leader-{os.getpid()}"


async def candidate(name: str) -> None:
    """Lead for a moment when it is our turn, then go."""
    async with gapless.join(GROUP) as group:
        await group.send(f"{name} is in".encode())
        async for event in group.events():
            if isinstance(event, gapless.ViewChange):
                leader = event.view.members[0]
                print(f"{name}: view {event.view.id.number} of {len(event.view.members)}, {describe(leader, event.me)}")
            if not alone.is_set() and group.view and len(group.view.members) == 3:
                alone.set()
            if alone.is_set() and group.view and group.view.members[0] == group.me:
                print(f"{name}: I have led long enough")
                return


def describe(leader: gapless.Address, me: gapless.Address) -> str:
    return "I lead" if leader == me else "another leads"


async def main() -> None:
    await asyncio.gather(*(candidate(name) for name in ("ann", "bob", "eve")))


alone = asyncio.Event()
asyncio.run(main())
