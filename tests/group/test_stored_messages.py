"""Headers, the time of sending, and storing members: with both APIs, over real sockets."""

import asyncio
import random
import time

import pytest

import gapless
from gapless import blocking
from gapless.errors import ConfigError, LocalProtocolError, TimedOutError
from gapless.events import ExpelledFromGroup, MessagesLost
from gapless.group.headers import MARK
from gapless.group.message import Batch
from gapless.identity import Address
from tests.support.networks import free_ports
from tests.support.real_groups import company, options, run, threads


def test_headers_travel_with_every_kind_of_message() -> None:
    async def story() -> None:
        async with company(2) as (one, two):
            large = random.Random(1).randbytes(200_000)
            said = {"kind": b"order", "empty": b""}
            await one.send(b"to all", headers=said)
            await one.send(large, headers=said)
            await one.send(b"to one", two.me, headers=said)
            await one.send(b"aside", mode="out-of-band", headers=said)
            await one.send(MARK + b"tricky")
            await one.send(b"plain")
            found: dict[bytes, dict[str, bytes]] = {}
            while len(found) < 6:
                message = await two.receive(20)
                assert message is not None
                found[message.payload] = dict(message.headers)
            assert found == {
                b"to all": said,
                large: said,
                b"to one": said,
                b"aside": said,
                MARK + b"tricky": {},
                b"plain": {},
            }

    run(story())


def test_many_messages_have_the_same_headers_or_each_its_own() -> None:
    with threads(2) as (one, two):
        one.send_many([b"a", b"b"], headers={"n": b"0"})
        one.send_many([b"c", b"d"], headers=[{"n": b"1"}, {}])
        found = [two.receive(20) for _ in range(4)]
        assert [(m.payload, dict(m.headers)) for m in found if m] == [
            (b"a", {"n": b"0"}),
            (b"b", {"n": b"0"}),
            (b"c", {"n": b"1"}),
            (b"d", {}),
        ]
        with pytest.raises(LocalProtocolError, match="1 sets of headers for 2 messages"):
            one.send_many([b"c", b"d"], headers=[{}])


def test_a_message_tells_the_time_of_day_at_which_it_was_sent() -> None:
    with threads(2) as (one, two):
        before_ns = time.time_ns()
        one.send(b"small")
        one.send(bytes(200_000), mode="acknowledged")
        for mode in ("ordered", "acknowledged"):
            message = two.receive(20)
            assert message is not None
            assert message.sent_ns is not None
            assert before_ns - 10**9 < message.sent_ns < time.time_ns() + 10**9
            assert str(message.mode) == mode


def test_what_is_acknowledged_is_stored() -> None:
    ports = free_ports(2)
    with blocking.join("tests", **options(ports)) as one:
        with blocking.join("tests", durable_name="store", stores=True, **options(ports)) as store:
            one.wait_for_member("store", 20)
            sent = one.send_many([b"a", b"b"], mode="acknowledged")
            while not isinstance(batch := store.receive_batch(20), Batch):
                pass
            with pytest.raises(TimedOutError):
                sent.delivered(0.5)
            store.confirm_stored({batch.sender: sent.last})
            sent.delivered(20)
            later = one.send(b"c", mode="acknowledged")
            while not isinstance(batch := store.receive_batch(20), Batch):
                pass
        # It has left without storing this, and its place is kept.
        with pytest.raises(TimedOutError):
            later.delivered(0.5)
        marks = {batch.sender: sent.last}
        with blocking.join(
            "tests", durable_name="store", stores=True, resume=marks, **options(ports)
        ) as store:
            found: list[object] = []
            while not isinstance(batch := store.receive_batch(20), Batch):
                found.append(batch)
            assert list(batch) == [b"c"]
            assert not [event for event in found if isinstance(event, MessagesLost)]
            store.confirm_stored({batch.sender: later.last})
            later.delivered(20)


def test_a_store_that_is_expelled_goes_on_where_it_was() -> None:
    async def story() -> None:
        ports = free_ports(3)
        async with (
            gapless.join("tests", **options(ports)) as one,
            gapless.join("tests", **options(ports)) as two,
            gapless.join("tests", durable_name="store", stores=True, **options(ports)) as store,
        ):
            await asyncio.gather(*(group.wait_for_members(3, 20) for group in (one, two, store)))
            kept: dict[Address, list[int]] = {}
            events: list[object] = []
            expelled = asyncio.Event()

            async def keep() -> None:
                while (found := await store.receive_batch()) is not None:
                    if not isinstance(found, Batch):
                        events.append(found)
                        if isinstance(found, ExpelledFromGroup):
                            expelled.set()
                        continue
                    seqnos = kept.setdefault(found.sender, [])
                    seqnos.extend(
                        seqno for seqno in range(found.first, found.last + 1) if seqno not in seqnos
                    )
                    store.confirm_stored({found.sender: found.last})

            task = asyncio.create_task(keep())
            first = [await one.send(b"%d" % at, mode="acknowledged") for at in range(20)]
            await first[-1].delivered(20)
            await one.expel("store")
            last = [await one.send(b"%d" % at, mode="acknowledged") for at in range(20)]
            await last[-1].delivered(30)
            await expelled.wait()
            assert one.me is not None
            assert kept[one.me] == list(range(1, 41))
            assert not [event for event in events if isinstance(event, MessagesLost)]
            task.cancel()

    run(story())


def test_only_a_durable_member_stores() -> None:
    with pytest.raises(ConfigError, match="needs a durable member"):
        blocking.join("tests", stores=True)


def test_waiting_for_one_that_does_not_come() -> None:
    with (
        threads(1) as (one,),
        pytest.raises(TimedOutError, match="no member of tests has the durable name 'store'"),
    ):
        one.wait_for_member("store", 0.2)
