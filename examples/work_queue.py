"""A work queue without a broker: each job goes to a worker, or to another after a leave.

A job is a request to a member. If the worker leaves before the answer, the request fails, and the
job goes to the next worker. Whether the first worker had done the job is not known: jobs must be
safe to run twice.
"""

import asyncio
import os
import random

import gapless
from gapless.errors import DepartedError

GROUP = f"work-{os.getpid()}"


async def worker(most: int) -> None:
    """Square numbers; go home in the middle of the job after ``most`` others."""
    async with gapless.join(GROUP, listen=False) as group:
        async for request in group.requests():
            if most == 0:
                break
            most -= 1
            await request.reply(b"%d" % int(request.payload) ** 2)


async def give(group: gapless.Group, job: int) -> int:
    """Let a worker do a job."""
    while True:
        assert group.view is not None
        chosen = random.choice([member for member in group.view.members if member != group.me])
        try:
            return int(await group.request(b"%d" % job, to=chosen))
        except DepartedError:
            print(f"a worker has gone home, job {job} goes to another")


async def main() -> None:
    workers = [asyncio.create_task(worker(most)) for most in (5, 1000, 1000)]
    async with gapless.join(GROUP) as group:
        await group.wait_for_members(4, timeout=10)
        squares = await asyncio.gather(*(give(group, job) for job in range(60)))
        assert squares == [job**2 for job in range(60)]
        print(f"{len(squares)} jobs are done, the sum of the squares is {sum(squares)}")
    for task in workers:
        task.cancel()
    await asyncio.wait(workers)


asyncio.run(main())
