"""Leader election: all see the same views in the same order, so the oldest member leads.

When the leader leaves or crashes, a new view follows, and the next member leads. While a network is
divided, each part has a leader; when the network heals, a single leader remains.
"""

import asyncio
import os

import gapless

GROUP = f"leader-{os.getpid()}"


async def candidate(name: str, everybody: asyncio.Barrier) -> None:
    """Lead for a moment when we are the oldest member, then leave."""
    async with gapless.join(GROUP) as group:
        await group.wait_for_members(3, timeout=10)
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
