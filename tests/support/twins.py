"""One story for both APIs: groups of the asyncio API, and of the API for threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import gapless
from gapless import blocking
from tests.support.real_groups import WITHIN_S, options

if TYPE_CHECKING:
    from typing import Self

APIS = {"asyncio": gapless.join, "threads": blocking.join}


class Twin:
    """A member whose API the test chooses; ``call`` calls a method and waits for its result."""

    def __init__(self, api: str, name: str, ports: list[int], **options_of_join: Any) -> None:
        knobs = options_of_join.pop("knobs", {})
        self.api = api
        self.group: Any = APIS[api](
            "tests", display_name=name, **options(ports, **knobs), **options_of_join
        )

    async def call(self, method: str, *args: Any, **named: Any) -> Any:
        function = getattr(self.group, method)
        if self.api == "asyncio":
            return await function(*args, **named)
        return await asyncio.to_thread(function, *args, **named)

    async def __aenter__(self) -> Self:
        await self.call("open")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.call("close")

    async def read(self) -> bytes:
        """Return the payload of the next message."""
        message = await self.call("receive", WITHIN_S)
        assert message is not None
        payload: bytes = message.payload
        return payload

    def reading(self) -> asyncio.Task[bytes]:
        """Read the next message, and meanwhile provide the state."""
        return asyncio.create_task(self.read())

    async def meet(self, count: int) -> None:
        """Wait until the view has ``count`` members."""
        await self.call("wait_for_members", count, WITHIN_S)

    async def settle(self, count: int) -> None:
        """Read events until the view has exactly ``count`` members."""
        while len(self.group.view) != count:
            await self.call("receive_event", WITHIN_S)
