"""Leader election: all see the same views in the same order, so the oldest member leads.

When it leaves or dies there is another view, and the next one leads. While a network is divided
each part has a leader; when it heals there is one again.
"""

import asyncio
import os

import gapless

GROUP = f"leader-{os.getpid()}"


async def candidate(name: str, everybody: asyncio.Barrier) -> None:
    """Lead for a moment when it is our turn, then go."""
    async with gapless.join(GROUP) as group:
        await group.wait_for_members(3)
        await everybody.wait()
        async for event in group.events():
            if isinstance(event, gapless.ViewChange) and event.view == group.view:
                leads = event.view.members[0] == event.me
                print(
                    f"{name}: one of {len(event.view.members)}, "
                    f"{'I lead' if leads else 'another leads'}"
                )
                if leads:
                    return


async def main() -> None:
    everybody = asyncio.Barrier(3)
    await asyncio.gather(*(candidate(name, everybody) for name in ("ann", "bob", "eve")))
    print("nobody is left to lead")


asyncio.run(main())
