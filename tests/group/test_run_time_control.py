"""Control at run time, in both APIs, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gapless.errors import ConfigError, DepartedError, LocalProtocolError
from tests.support.networks import free_ports
from tests.support.real_groups import run
from tests.support.twins import APIS, Twin

pytestmark = pytest.mark.parametrize("api", APIS)


async def pair(api: str, story: Any, **options: Any) -> None:
    ports = free_ports(2)
    async with Twin(api, "one", ports, **options) as one, Twin(api, "two", ports, **options) as two:
        await asyncio.gather(one.meet(2), two.meet(2))
        await story(one, two)


def test_retransmission(api: str) -> None:
    async def story(one: Twin, two: Twin) -> None:
        runtime = one.group._session.handle._runtime
        for interval, wanted_ns in ((0, 0), ("100ms", 100_000_000), (0.25, 250_000_000)):
            await one.call("set_xmit_interval", interval)
            assert runtime.member.endpoint.config.xmit_interval_ns == wanted_ns
            assert runtime.config.xmit_interval_ns == wanted_ns, "for later incarnations"
            await one.call("send", b"x", loopback=False)
            assert await two.read() == b"x"
        for wrong in (-1, "soon", None):
            with pytest.raises((ConfigError, LocalProtocolError)):
                await one.call("set_xmit_interval", wrong)
        await one.call("send", b"y", loopback=False)
        assert await two.read() == b"y"

    run(pair(api, story, allow_lossy=True))


def test_a_connection(api: str) -> None:
    async def story(one: Twin, two: Twin) -> None:
        for number in (1, 2):
            sent = await one.call("send", b"%d" % number, two.group.me)
            assert sent.first == number
            assert await two.read() == b"%d" % number
        await one.call("close_connection", two.group.me)
        await one.call("send", b"3", two.group.me)
        assert await two.read() == b"3"
        former = two.group.me
        await two.call("close")
        await one.settle(1)
        with pytest.raises(DepartedError):
            await one.call("close_connection", former)

    run(pair(api, story))


def test_modes_are_switched_with_each_message(api: str) -> None:
    async def story(one: Twin, two: Twin) -> None:
        for mode in ("ordered", "acknowledged", "out-of-band", "unreliable", "ordered"):
            sent = await one.call("send", mode.encode(), mode=mode, loopback=False)
            message = await two.call("receive", 30)
            assert message.payload == mode.encode()
            assert message.mode == mode
            if mode == "acknowledged":
                delivered = sent.delivered
                await (delivered(30) if api == "asyncio" else asyncio.to_thread(delivered, 30))

    run(pair(api, story))


def test_a_frame_size_that_equals_the_default_is_kept(api: str) -> None:
    async def story(one: Twin, two: Twin) -> None:
        for twin in (one, two):
            assert twin.group._session.handle.config.max_frame_bytes == 1400
        await one.call("send", bytes(5000), loopback=False)
        assert await two.read() == bytes(5000)

    run(pair(api, story, knobs={"max_frame_bytes": 1400}))
