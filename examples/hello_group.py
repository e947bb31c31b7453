"""Hello, group: every member greets all others.

python hello_group.py hello    # in two terminals, or on two machines of a network
python hello_group.py          # starts two members by itself
"""

import asyncio
import os
import subprocess
import sys

import gapless


async def main(name: str) -> None:
    async with gapless.join(name) as group:
        await group.wait_for_members(2, timeout=60)
        await group.send(f"hello from process {os.getpid()}".encode())
        greeted = set()
        async for message in group:
            print(message.payload.decode())
            greeted.add(message.sender)
            if len(greeted) == 2:
                break


if len(sys.argv) > 1:
    asyncio.run(main(sys.argv[1]))
else:
    started = [
        subprocess.Popen([sys.executable, __file__, f"hello-{os.getpid()}"]) for _ in range(2)
    ]
    sys.exit(max(process.wait() for process in started))
