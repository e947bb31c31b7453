"""In the profile classic numbers restart with every view: receipts and events name the view."""

from __future__ import annotations

import asyncio

import pytest

from gapless.events import MessagesUndelivered
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, run
from tests.support.twins import APIS, Twin

KNOBS = {"profile": "classic", "stability_interval": "1h", "found_after": "2s"}
"""No message becomes stable before its view ends."""


async def undelivered(one: Twin) -> MessagesUndelivered:
    while True:
        event = await one.call("receive_event", WITHIN_S)
        if isinstance(event, MessagesUndelivered):
            return event


@pytest.mark.parametrize("api", APIS)
def test_numbers_of_classic_belong_to_a_view(api: str) -> None:
    async def story() -> None:
        ports = free_ports(3)
        async with (
            Twin(api, "one", ports, knobs=KNOBS) as one,
            Twin(api, "two", ports, knobs=KNOBS) as two,
        ):
            await asyncio.gather(one.meet(2), two.meet(2))
            first_view = one.group.view.id.number
            for number in (1, 2):
                sent = await one.call("send", b"%d" % number, loopback=False)
                assert (sent.first, sent.last, sent.view) == (number, number, first_view)
                assert await two.read() == b"%d" % number
            async with Twin(api, "three", ports, knobs=KNOBS) as three:
                await asyncio.gather(one.meet(3), three.meet(3))
                event = await undelivered(one)
                assert (event.to, event.first, event.last) == (None, 1, 2)
                assert event.view == first_view
                sent = await one.call("send", b"3", loopback=False)
                second_view = one.group.view.id.number
                assert (sent.first, sent.view) == (1, second_view)
                assert second_view > first_view
                one_to_one = await one.call("send", b"4", two.group.me)
                assert (one_to_one.first, one_to_one.view) == (1, 0)

    run(story())


@pytest.mark.parametrize("api", APIS)
def test_numbers_that_outlive_a_view_name_none(api: str) -> None:
    async def story() -> None:
        async with Twin(api, "one", free_ports(1)) as one:
            for number in (1, 2):
                sent = await one.call("send", b"x")
                assert (sent.first, sent.view) == (number, 0)

    run(story())
