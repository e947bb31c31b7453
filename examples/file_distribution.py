"""Distribute a file: fragments as messages to the group, checked at the end.

A slow receiver slows the sender down; memory holds only messages in flight. The last message is
acknowledged, so the sender knows when every member has every earlier message.
"""

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path

import gapless

GROUP = f"files-{os.getpid()}"
PIECE_BYTES = 16_000


async def receive(folder: Path) -> Path:
    """Write received messages into a file; the first message is the name, the last the hash."""
    async with gapless.join(GROUP) as group:
        messages = aiter(group)
        path = folder / (await anext(messages)).payload.decode()
        digest = hashlib.sha256()
        with path.open("wb") as file:
            async for message in messages:
                if message.payload.startswith(b"sha256 "):
                    assert message.payload == b"sha256 " + digest.digest(), (
                        "every byte, once, in order"
                    )
                    return path
                digest.update(message.payload)
                file.write(message.payload)
    raise RuntimeError("the sender has gone before the end")


async def give(path: Path, receivers: int) -> None:
    """Send a file to every present member."""
    digest = hashlib.sha256()
    async with gapless.join(GROUP, listen=False) as group:
        await group.wait_for_members(1 + receivers, timeout=60)
        await group.send(path.name.encode())
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                await group.send(piece)
        sent = await group.send(b"sha256 " + digest.digest(), mode="acknowledged")
        await sent.delivered()


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, name) for name in "abc"]
        for folder in folders:
            folder.mkdir()
        source = folders[0] / "picture.raw"
        source.write_bytes(os.urandom(3_000_000))
        tasks = [asyncio.create_task(receive(folder)) for folder in folders[1:]]
        await give(source, len(tasks))
        for copy in await asyncio.gather(*tasks):
            assert copy.read_bytes() == source.read_bytes()
            print(f"{copy.parent.name} has {copy.name}: {copy.stat().st_size:,} bytes")


asyncio.run(main())
