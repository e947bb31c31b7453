"""Requests and answers."""

import asyncio
import signal

import pytest
from hypothesis import given, settings, strategies as st

import gapless
from gapless import blocking
from gapless.errors import (
    ClosedError,
    DepartedError,
    LocalProtocolError,
    RequestError,
    TimedOutError,
)
from gapless.group.headers import MARK, PLAIN, unwrap, wrap, wrap_plain
from tests.support.group_programs import program
from tests.support.networks import free_ports
from tests.support.real_groups import company, options, other_than, read, run, threads


def test_a_request_is_answered_or_says_why_not(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with company(2) as (one, two):

            @two.serve
            async def answer(request: gapless.Request) -> bytes:
                assert request.sender == one.me
                if request.payload == b"wrong":
                    raise ValueError("no such order")
                return request.payload * 2

            @one.serve
            def plain(request: gapless.Request) -> None:
                assert request.payload == b"ping"

            assert two.me is not None
            assert await one.request(b"ab", two.me) == b"abab"
            assert await two.request(b"ping", to=other_than(two)) == b""
            with pytest.raises(RequestError, match="ValueError: no such order"):
                await one.request(b"wrong", two.me)
            answers = await asyncio.gather(
                *(one.request(b"%d" % number, two.me) for number in range(100))
            )
            assert answers == [b"%d%d" % (number, number) for number in range(100)]
            large = bytes(200_000)
            assert await one.request(large, two.me) == large * 2
            assert await one.request(b"ping", to=one.me) == b"", "one may ask itself"  # type: ignore[arg-type]

    run(story())
    assert "failed on a request from" in caplog.text


def test_requests_one_by_one() -> None:
    with threads(2) as (one, two):
        asked = other_than(one)
        assert two.me == asked

        @two.serve
        def answer(request: blocking.Request) -> bytes:
            if request.payload == b"later":
                request.reply(b"now")
                with pytest.raises(LocalProtocolError, match="answered before"):
                    request.reply(b"twice")
            return request.payload.upper()

        assert one.request(b"ab", asked, timeout=20) == b"AB"
        assert one.request(b"later", asked, timeout=20) == b"now"
        with pytest.raises(LocalProtocolError):
            one.request("text", asked)  # type: ignore[arg-type]


def test_messages_and_requests_do_not_wait_for_each_other() -> None:
    """A reader may send a request between messages; the reply arrives though it reads nothing."""

    async def story() -> None:
        async with company(2, unread_limit=8, capacity=64, loopback=False) as (one, two):
            flood = asyncio.create_task(two.send_many([b"%d" % number for number in range(500)]))
            serving = asyncio.create_task(serve(two))
            assert two.me is not None
            found = await read(one, 1)
            for number in range(20):
                assert await one.request(b"%d" % number, two.me, timeout=20) == b"yes %d" % number
            assert one.unread >= 8, "it was full all the time"
            found += await read(one, 499)
            assert found == [b"%d" % number for number in range(500)]
            await flood
            serving.cancel()

    async def serve(group: gapless.Group) -> None:
        async for request in group.requests():
            await request.reply(b"yes " + request.payload)

    run(story())


def test_one_that_dies_is_not_waited_for() -> None:
    ports = free_ports(2)

    async def story() -> None:
        async with gapless.join("tests", **options(ports)) as group:
            with program("answers", ports) as other:
                assert await asyncio.to_thread(other.read_line) in {"in 1", "in 2"}
                await group.wait_for_members(2, 30)
                asked = other_than(group)
                assert await group.request(b"abc", asked, timeout=30) == b"cba"
                with pytest.raises(TimedOutError, match="and may still act on the request"):
                    await group.request(b"never", asked, timeout="200ms")
                waiting = asyncio.create_task(group.request(b"never", asked, timeout=None))
                lines = [await asyncio.to_thread(other.read_line) for _ in range(3)]
                assert lines == ["asked abc", "asked never", "asked never"]
                other.signal(signal.SIGKILL)
                with pytest.raises(
                    DepartedError, match="left before the reply, and may have acted on the request"
                ):
                    await waiting
                with pytest.raises(DepartedError, match="is not in tests: send"):
                    await group.request(b"abc", asked)

    run(story())


def test_closing_ends_requests() -> None:
    async def story() -> None:
        async with company(2) as (one, two):
            assert two.me is not None
            waiting = asyncio.create_task(one.request(b"x", two.me, timeout=None))
            async for request in two.requests():
                assert request.payload == b"x"
                break
            await one.close()
            with pytest.raises(ClosedError):
                await waiting
            with pytest.raises(DepartedError):
                await request.reply(b"too late")

    run(story())


def test_a_cancelled_request_is_forgotten() -> None:
    async def story() -> None:
        async with company(2) as (one, two):
            assert two.me is not None
            waiting = asyncio.create_task(one.request(b"x", two.me))
            async for request in two.requests():
                waiting.cancel()
                await asyncio.wait([waiting])
                await request.reply(b"nobody waits")
                break
            assert waiting.cancelled()
            assert one._session.inbox.pending._waiting == {}
            await two.send(b"after", to=one.me)
            assert await read(one, 1) == [b"after"]

    run(story())


def test_what_looks_like_a_request_is_a_message_all_the_same() -> None:
    tricky = [
        MARK,
        wrap(0, 1, b"x"),
        wrap(PLAIN, 0, b"y"),
        MARK + b"\xff" * 9,
        MARK * 9,
        b"z" + MARK,
    ]

    async def story() -> None:
        async with company(2, loopback=False) as (one, two):
            assert two.me is not None
            await one.send_many([b"a", *tricky, b"b"], two.me)
            for payload in tricky:
                await one.send(payload)
                await one.send(payload, two.me, mode="out-of-band")
            found = [await two.receive(20) for _ in range(2 + 3 * len(tricky))]
            by_one = [m.payload for m in found if m and m.private and m.mode == "ordered"]
            aside = sorted(m.payload for m in found if m and m.mode == "out-of-band")
            by_all = [m.payload for m in found if m and not m.private]
            assert by_one == [b"a", *tricky, b"b"]
            assert aside == sorted(tricky)
            assert by_all == tricky
            assert two.unread == 1

    run(story())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda rest: MARK + rest))
def test_wrapping_loses_nothing(payload: bytes) -> None:
    wrapped = wrap_plain(payload)
    said = unwrap(wrapped)
    if said is None:
        assert wrapped == payload
    else:
        assert (said.kind, said.body) == (PLAIN, payload)
