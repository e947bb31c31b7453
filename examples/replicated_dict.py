"""A replicated dictionary: changes are messages, and a new member receives the state.

Each change goes through the group, also to its own sender. Members that write the same key at the
same time may end up with different values, because there is no order between senders; here each key
has a single writer at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import gapless

if TYPE_CHECKING:
    from typing import Self


class ReplicatedDict:
    """``async with ReplicatedDict("prices") as prices:``."""

    def __init__(self, name: str) -> None:
        self.values: dict[str, Any] = {}
        self._changed = asyncio.Event()
        self._group = gapless.join(name, state=self)

    async def __aenter__(self) -> Self:
        await self._group.open()  # the state is here when this is done
        self._applying = asyncio.create_task(self._apply())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._group.close()
        await self._applying

    async def put(self, key: str, value: Any) -> None:
        """Set a value everywhere."""
        await self._group.send(json.dumps([key, value]).encode())

    async def has(self, key: str, value: Any) -> None:
        """Wait until this member has the value, too."""
        while self.values.get(key) != value:
            self._changed.clear()
            await self._changed.wait()

    async def _apply(self) -> None:
        async for message in self._group:
            key, value = json.loads(message.payload)
            self.values[key] = value
            self._changed.set()

    def get_state(self) -> bytes:
        """Called between two messages, for a new member."""
        return json.dumps(self.values).encode()

    def set_state(self, state: bytes) -> None:
        """Called once, before the first message."""
        self.values = json.loads(state)


async def main() -> None:
    name = f"prices-{os.getpid()}"
    async with ReplicatedDict(name) as first:
        for number in range(1000):
            await first.put(f"article {number % 100}", number)
        await first.has("article 99", 999)
        async with ReplicatedDict(name) as second:
            print(f"the new member was given {len(second.values)} values")
            await second.put("article 5", "sold")
            await asyncio.gather(first.has("article 5", "sold"), second.has("article 5", "sold"))
            assert first.values == second.values
            print(f"both have {len(first.values)} values, article 5 is {first.values['article 5']}")


asyncio.run(main())
