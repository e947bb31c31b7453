"""A function of the application fails: the log names its origin, the waiting member gets an error,
and reading goes on. Each story runs in both APIs, over real sockets.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from gapless.errors import ClosedError, DepartedError, RequestError
from tests.support.networks import free_ports
from tests.support.real_groups import WITHIN_S, run
from tests.support.twins import APIS, Twin

pytestmark = pytest.mark.parametrize("api", APIS)
SLOWLY = {"found_after": "20s"}
"""A joiner that hears nothing in time would found a group of its own, without a state."""


def fail(*_: object) -> Any:
    raise ValueError("no such thing")


def state_of(text: bytes) -> tuple[Any, Any]:
    return (lambda: text), (lambda _: None)


def test_get_state(api: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        ports, taken = free_ports(2), list[bytes]()
        async with Twin(api, "old", ports, state=(fail, fail)) as old:
            reading = old.reading()
            async with Twin(
                api, "new", ports, state=(bytes, taken.append), timeout=WITHIN_S, knobs=SLOWLY
            ) as new:
                assert taken == []
                await new.call("send", b"reading goes on")
                assert await reading == b"reading goes on"

    run(story())
    assert "tests: get_state failed: " in caplog.text
    assert "which joins, gets no state from this member" in caplog.text
    assert "ValueError: no such thing" in caplog.text
    assert "joined without state: get_state failed in " in caplog.text


def test_set_state_on_joining(api: str) -> None:
    async def story() -> None:
        ports = free_ports(2)
        async with Twin(api, "old", ports, state=state_of(b"state")) as old:
            reading = old.reading()
            new = Twin(api, "new", ports, state=(bytes, fail), timeout=WITHIN_S, knobs=SLOWLY)
            with pytest.raises(ValueError, match="no such thing"):
                await new.call("open")
            await old.call("send", b"reading goes on")
            assert await reading == b"reading goes on"
            await old.settle(1)

    run(story())


def test_set_state_on_joining_again(api: str, caplog: pytest.LogCaptureFixture) -> None:
    calls, failed = list[bytes](), Future[None]()

    def set_state(state: bytes) -> None:
        calls.append(state)
        if len(calls) > 1:
            failed.set_result(None)
            fail()

    async def story() -> None:
        ports = free_ports(3)
        async with Twin(api, "one", ports, state=state_of(b"state")) as one:
            first = one.reading()
            async with Twin(api, "two", ports, state=state_of(b"state"), knobs=SLOWLY) as two:
                hooks = (lambda: b"state"), set_state
                async with Twin(api, "three", ports, state=hooks, knobs=SLOWLY) as three:
                    await asyncio.gather(one.meet(3), two.meet(3), three.meet(3))
                    third, former = three.reading(), three.group.me
                    await one.call("expel", former)
                    while former in two.group.view:
                        await two.call("receive_event", WITHIN_S)
                    await asyncio.gather(one.meet(3), three.meet(3), asyncio.wrap_future(failed))
                    await one.call("send", b"reading goes on", loopback=False)
                    assert await third == b"reading goes on"
                    await three.call("send", b"end")
                    assert await first == b"end"

    run(story())
    assert calls == [b"state", b"state"]
    assert "set_state failed with the state of " in caplog.text
    assert "ValueError: no such thing" in caplog.text


class WordlessError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_request_handler(api: str, caplog: pytest.LogCaptureFixture) -> None:
    errors: dict[bytes, BaseException] = {
        b"error": ValueError("no such thing"),
        b"wordless": WordlessError(),
        b"departed": DepartedError("another member has left"),
        b"ending": SystemExit("the thread ends") if api == "threads" else asyncio.CancelledError(),
    }

    def handler(request: Any) -> Any:
        if request.payload in errors:
            raise errors[request.payload]
        return {b"text": "no bytes", b"good": b"fine"}[request.payload]

    async def story() -> None:
        ports = free_ports(2)
        async with Twin(api, "server", ports) as server, Twin(api, "client", ports) as client:
            await asyncio.gather(server.meet(2), client.meet(2))
            server.group.serve(handler)
            for payload, text in {
                b"error": "ValueError: no such thing",
                b"wordless": "answered with an error: WordlessError",
                b"departed": "another member has left",
                b"ending": "answered with an error: ",
                b"text": "a message must be bytes, not str",
                b"unknown": "KeyError",
            }.items():
                with pytest.raises(RequestError, match=text):
                    await client.call("request", payload, server.group.me, timeout=WITHIN_S)
            assert await client.call("request", b"good", server.group.me) == b"fine"

    run(story())
    assert "tests: the request handler test_request_handler" in caplog.text
    assert "failed on a request from " in caplog.text


def test_request_handler_of_one_that_has_left(api: str) -> None:
    """The error reaches nobody, and the next request is served."""
    started: Future[None] = Future()

    async def story() -> None:
        ports = free_ports(3)
        async with Twin(api, "server", ports) as server, Twin(api, "next", ports) as second:
            client = await Twin(api, "client", ports).__aenter__()
            await asyncio.gather(server.meet(3), second.meet(3), client.meet(3))

            def wait_and_fail(sender: Any) -> Any:
                started.set_result(None)
                while sender in server.group.view:
                    server.group.receive_event(WITHIN_S)
                fail()

            async def wait_and_fail_later(sender: Any) -> Any:
                started.set_result(None)
                while sender in server.group.view:
                    await server.group.receive_event(WITHIN_S)
                fail()

            def handler(request: Any) -> Any:
                if request.payload == b"good":
                    return b"fine"
                wait = wait_and_fail if api == "threads" else wait_and_fail_later
                return wait(request.sender)

            server.group.serve(handler)
            asking = asyncio.create_task(client.call("request", b"bad", server.group.me))
            await asyncio.wrap_future(started)
            await client.call("close")
            with pytest.raises(ClosedError):
                await asking
            assert await second.call("request", b"good", server.group.me) == b"fine"

    run(story())
