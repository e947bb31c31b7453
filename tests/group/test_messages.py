"""Sending and receiving, through both faces."""

import asyncio
import random
import threading

import pytest

import gapless
from gapless.errors import (
    ClosedError,
    DepartedError,
    LocalProtocolError,
    PayloadError,
    TimedOutError,
    UndeliveredError,
)
from tests.support.real_groups import company, read, run, threads


@pytest.mark.parametrize("transport", ["auto", "mesh", "tcp"])
def test_every_member_gets_every_message_in_order(transport: str) -> None:
    async def story() -> None:
        async with company(3, each={"transport": transport}) as groups:
            for number in range(50):
                await asyncio.gather(*(group.send(b"%d" % number) for group in groups))
            for group in groups:
                found: dict[gapless.Address, list[bytes]] = {}
                for _ in range(150):
                    message = await group.receive(20)
                    assert message is not None
                    found.setdefault(message.sender, []).append(message.payload)
                    assert message.seqno == len(found[message.sender])
                assert found == {one.me: [b"%d" % number for number in range(50)] for one in groups}

    run(story())


def test_tasks_that_send_at_the_same_time_share_frames() -> None:
    async def story() -> None:
        async with company(2) as (one, two):
            before = (await one.snapshot()).counters.get("sent.data", 0)
            receipts = await asyncio.gather(*(one.send(b"%d" % number) for number in range(100)))
            assert [receipt.first for receipt in receipts] == list(range(1, 101))
            assert (await one.snapshot()).counters["sent.data"] - before < 10
            assert await read(two, 100) == [b"%d" % number for number in range(100)]

    run(story())


def test_threads_have_the_same_names() -> None:
    with threads(2) as (one, two):
        assert {name for name in dir(gapless.Group) if not name.startswith("_")} == {
            name for name in dir(type(one)) if not name.startswith("_")
        }
        sent = one.send_many([b"a", b"b"])
        assert (sent.first, sent.last, sent.count) == (1, 2, 2)
        two.send(b"c", to=one.me)
        assert [message.payload for _ in range(2) if (message := two.receive(20))] == [b"a", b"b"]
        found = [one.receive(10) for _ in range(3)]
        assert sorted(message.payload for message in found if message) == [b"a", b"b", b"c"]
        assert [message.private for message in found if message and message.payload == b"c"] == [
            True
        ]
        one.send(b"d", mode="acknowledged").delivered(10)
        assert one.snapshot().health.ok
        assert one.snapshot().gauges["members"] == 2
        two.leave()
        assert list(two)[-1].payload == b"d"


def test_a_message_says_where_it_comes_from() -> None:
    async def story() -> None:
        async with company(2) as (one, two):
            await one.send(b"to all", mode=gapless.Mode.ACKNOWLEDGED)
            await one.send(bytearray(b"to one"), two.me, loopback=False)
            await one.send(memoryview(b"aside"), mode="out-of-band", loopback=False)
            await one.send(b"perhaps", mode="unreliable", loopback=False)
            found: dict[bytes, tuple[str, bool, int]] = {}
            while len(found) < 4:
                message = await two.receive(20)
                assert message is not None
                assert two.view is not None
                assert (message.sender, message.view) == (one.me, two.view.id.number)
                assert message.sent_ns
                found[message.payload] = (str(message.mode), message.private, message.seqno)
            assert found == {
                b"to all": ("acknowledged", False, 1),
                b"to one": ("ordered", True, 1),
                b"aside": ("out-of-band", False, 1),
                b"perhaps": ("unreliable", False, 0),
            }

    run(story())


def test_a_message_larger_than_a_frame() -> None:
    async def story() -> None:
        async with company(2) as (one, two):
            large = random.Random(1).randbytes(300_000)
            await one.send(large)
            assert await read(two, 1) == [large]

    run(story())


@pytest.mark.parametrize("payload", ["text", 7, None, [1, 2]])
def test_what_is_not_bytes_is_refused(payload: object) -> None:
    async def story() -> None:
        async with company(1) as (group,):
            with pytest.raises(PayloadError, match=r"a message must be bytes, not \w+; use "):
                await group.send(payload)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                await group.send_many([b"fine", payload])  # type: ignore[list-item]
            with pytest.raises(LocalProtocolError, match="no messages to send"):
                await group.send_many([])
            sent = await group.send(b"fine")
            assert sent.first == 1, "what was refused has taken no number"

    run(story())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "sometimes"}, "'sometimes' is not a delivery mode"),
        ({"timeout": -1}, "expected seconds"),
        ({"timeout": True}, "expected seconds"),
        ({"to": 5}, "expected an address"),
        ({"to": "nobody"}, "no present member of tests has the durable name 'nobody'"),
        ({"to": gapless.Address(1, 2)}, "is not in tests: send"),
    ],
)
def test_what_cannot_be_sent_is_said(options: dict[str, object], words: str) -> None:
    async def story() -> None:
        async with company(1) as (group,):
            with pytest.raises(LocalProtocolError, match=words):
                await group.send(b"x", **options)  # type: ignore[arg-type]

    run(story())


def test_a_reader_that_stops_slows_the_sender_and_loses_nothing() -> None:
    async def story() -> None:
        async with company(2, capacity=32, unread_limit=16, loopback=False) as (one, two):
            with pytest.raises(
                TimedOutError, match=r"the send window had no room for .* of 200 messages were sent"
            ) as raised:
                await one.send_many([b"%d" % number for number in range(200)], timeout="1s")
            accepted = raised.value.accepted
            assert 32 <= accepted <= 32 + 16, "what waits at the reader, and the window"
            assert await one.try_send(b"no room") is None
            explanation = await one.snapshot()
            assert [holder.member for holder in explanation.blockers] == [two.me]
            assert f"({two.me and two.me.short}): acknowledged up to 16" in str(explanation)
            assert (await two.snapshot()).application_blocks
            assert not (await two.snapshot()).health.ok
            waiting = asyncio.create_task(one.send(b"last"))
            assert await read(two, accepted + 1) == [
                b"%d" % number for number in range(accepted)
            ] + [b"last"]
            await waiting
            assert await one.try_send(b"room") is not None
            assert await read(two, 1) == [b"room"]

    run(story())


def test_nobody_reads_and_nobody_is_held_up_without_listen() -> None:
    async def story() -> None:
        async with company(2, each={"listen": False}, unread_limit=4, capacity=16) as (one, two):
            await asyncio.gather(
                *(group.send_many([b"x"] * 200, timeout=20) for group in (one, two))
            )
            assert (await one.snapshot()).gauges["unread"] == 0

    run(story())


def test_a_send_that_is_cancelled_while_it_waits_is_not_sent() -> None:
    async def story() -> None:
        async with company(2, capacity=4, unread_limit=4, loopback=False) as (one, two):
            await one.send_many([b"%d" % number for number in range(8)])
            waiting = [asyncio.create_task(one.send(b"waits %d" % number)) for number in range(3)]
            while (await one.snapshot()).streams[0].waiting < 3:
                pass
            waiting[1].cancel()
            await asyncio.wait(waiting[1:2])
            found = await read(two, 10)
            assert found == [b"%d" % number for number in range(8)] + [b"waits 0", b"waits 2"]

    run(story())


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_cancelled_sends_leaves_no_gap(seed: int) -> None:
    """Whenever a send is cancelled: accepted messages arrive in order, without a gap."""
    dice = random.Random(seed)

    async def sender(group: gapless.Group, number: int, sent: list[bytes]) -> None:
        payload = b"%d" % number
        # A message with a timeout waits for the end of the round, so that it can be cancelled.
        await group.send(payload, timeout=None if number % 2 else 20)
        sent.append(payload)

    async def story() -> None:
        async with company(2, capacity=8, unread_limit=8, loopback=False) as (one, two):
            sent: list[bytes] = []
            seqnos: list[int] = []
            found: list[bytes] = []

            async def reader() -> None:
                async for message in two:
                    seqnos.append(message.seqno)
                    found.append(message.payload)
                    if message.payload == b"end":
                        return

            reading = asyncio.create_task(reader())
            tasks = []
            for number in range(300):
                tasks.append(asyncio.create_task(sender(one, number, sent)))
                for _ in range(dice.randrange(3)):
                    await asyncio.sleep(0)
                if dice.random() < 0.5:
                    tasks[dice.randrange(len(tasks))].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await one.send(b"end")
            await reading
            assert seqnos == list(range(1, len(seqnos) + 1))
            assert set(sent) <= set(found), "what was said to be sent has arrived"
            assert len(set(found)) == len(found)
            assert [payload for payload in found[:-1] if payload in set(sent)] == sorted(
                sent, key=found.index
            )
            assert (await one.snapshot()).streams[0].waiting == 0
            assert any(task.cancelled() for task in tasks)

    run(story())


def test_acknowledged_means_that_everybody_has_it() -> None:
    async def story() -> None:
        async with company(3, unread_limit=1, loopback=False) as (one, two, three):
            await one.send(b"first")
            sent = await one.send(b"second", mode="acknowledged")
            with pytest.raises(TimedOutError, match="snapshot"):
                await sent.delivered("100ms")
            assert await read(two, 2) == [b"first", b"second"]
            with pytest.raises(TimeoutError):
                await sent.delivered(0.1)
            assert await read(three, 2) == [b"first", b"second"]
            await sent.delivered(20)
            plain = await one.send(b"third")
            with pytest.raises(LocalProtocolError, match="use mode='acknowledged'"):
                await plain.delivered()
            assert await read(two, 1) == await read(three, 1) == [b"third"]

    run(story())


def test_acknowledged_to_one_that_leaves() -> None:
    async def story() -> None:
        async with company(2, unread_limit=1) as (one, two):
            await two.send(b"fills the inbox of two", to=two.me)
            sent = await one.send(b"x", to=two.me, mode="acknowledged")
            gone = two.me
            two._session.handle.stop()
            with pytest.raises(UndeliveredError) as raised:
                await sent.delivered(30)
            assert raised.value.members == (gone,)
            with pytest.raises(DepartedError):
                await one.send(b"y", to=gone)

    run(story())


def test_views_and_messages_come_in_one_order() -> None:
    async def story() -> None:
        async with company(1) as (one,):
            ports = [one._session.handle.transport.locator.port]
            joiner = gapless.join(
                "tests",
                host="127.0.0.1",
                ports=0,
                discover=f"seeds://127.0.0.1:{ports[0]}",
                config=one.config,
                transport="udp",
            )
            async with joiner as two:
                await two.send(b"hello")
            seen: list[object] = []
            async for event in one.events():
                seen.append(event.payload if isinstance(event, gapless.Message) else event)
                if isinstance(event, gapless.ViewChange) and event.left:
                    break
            alone, both, hello, alone_again = seen
            assert isinstance(alone, gapless.ViewChange)
            assert isinstance(both, gapless.ViewChange)
            assert isinstance(alone_again, gapless.ViewChange)
            assert (alone.joined, alone.left, alone.me) == ((one.me,), (), one.me)
            assert (both.joined, both.left) == ((two.me,), ())
            assert hello == b"hello"
            assert (alone_again.joined, alone_again.left) == ((), (two.me,))

    run(story())


def test_batches_and_messages_can_be_mixed() -> None:
    async def story() -> None:
        async with company(2, loopback=False) as (one, two):
            await one.send_many([b"%d" % number for number in range(1000)])
            found = await read(two, 3)
            sizes = []
            async for batch in two.batches():
                assert (batch.sender, batch.first) == (one.me, len(found) + 1)
                found += batch
                sizes.append(len(batch))
                if batch.last == 1000:
                    break
            assert found == [b"%d" % number for number in range(1000)]
            assert max(sizes) > 10
            await one.send(b"after")
            assert await read(two, 1) == [b"after"]
            assert two.unread <= 1, "and everything read was counted as consumed"

    run(story())


def test_two_loops_and_a_thread_use_one_group() -> None:
    async def story() -> None:
        async with company(2, loopback=False) as (one, two):
            failed: list[BaseException] = []

            def elsewhere() -> None:
                try:
                    asyncio.run(use())
                except BaseException as error:  # noqa: BLE001 - it is looked at below
                    failed.append(error)

            async def use() -> None:
                await one.send(b"from another loop")
                assert await read(one, 1) == [b"answer"]

            thread = threading.Thread(target=elsewhere)
            thread.start()
            assert await read(two, 1) == [b"from another loop"]
            await two.send(b"answer")
            await asyncio.to_thread(thread.join, 20)
            assert failed == []

    run(story())


def test_a_group_that_is_not_open_says_so() -> None:
    async def story() -> None:
        group = gapless.join("tests")
        assert group.is_closed
        with pytest.raises(LocalProtocolError, match="open"):
            await group.send(b"x")
        async with company(1) as (opened,):
            pass
        with pytest.raises(ClosedError, match="join again"):
            await opened.send(b"x")
        with pytest.raises(LocalProtocolError, match=r"already opened; call join\(\) again"):
            await opened.open()
        assert (await opened.snapshot()).health.state == "closed"
        assert await opened.receive(1) is None

    run(story())


def test_a_thread_that_comes_back_for_batches_is_done_with_those_before() -> None:
    """Or the senders would wait for room for ever."""
    with threads(2, unread_limit=8) as (one, two):
        found: list[bytes] = []

        def take() -> None:
            for batch in two.batches():
                assert bytes(batch.buffer) == batch.payload
                found.extend(batch)
                if len(found) == 100:
                    return

        reader = threading.Thread(target=take, daemon=True)
        reader.start()
        one.send_many([b"%d" % number for number in range(100)], two.me, timeout=20)
        reader.join(20)
        assert found == [b"%d" % number for number in range(100)]
