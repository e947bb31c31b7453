"""Wrong arguments of methods: an error says what was wrong and what was expected, in both APIs."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.errors import GaplessError
from gapless.group.session import as_payloads
from tests.support.networks import free_ports
from tests.support.real_groups import run
from tests.support.twins import APIS, Twin

ADDRESS = "expected an address, such as message.sender, or a durable name"
HEADERS = r"expected a mapping of names to bytes, such as \{'kind': b'order'\}, or a list"
LOOPBACK = "expected True, False, or None"
SECONDS = 'expected seconds, or text such as "200ms"'
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("request", (b"x",), {"to": None}, f"to=None: {ADDRESS}"),
    ("request", (b"x", 5), {}, f"to=5: {ADDRESS}"),
    ("request", ("x",), {"to": "me"}, "a message must be bytes, not str"),
    ("expel", (None,), {}, f"member=None: {ADDRESS}"),
    ("expel", (5,), {}, f"member=5: {ADDRESS}"),
    ("close_connection", (None,), {}, f"member=None: {ADDRESS}"),
    ("snapshot", (5,), {}, f"of=5: {ADDRESS}"),
    *(
        ("wait_for_members", (count,), {}, f"count={count!r}: expected a number of members")
        for count in ("x", None, 1.5, True, -1)
    ),
    ("wait_for_members", (1, "soon"), {}, f"timeout='soon': {SECONDS}"),
    ("wait_for_member", (5,), {}, "name=5: expected a durable name as text"),
    *(
        (method, payload, {"loopback": value}, f"loopback={value!r}: {LOOPBACK}")
        for method, payload in (("send", (b"x",)), ("try_send", (b"x",)), ("send_many", ([b"x"],)))
        for value in ("no", 0, 1)
    ),
    ("send", (b"x", "me"), {"loopback": "no"}, f"loopback='no': {LOOPBACK}"),
    *(
        (method, payload, {"headers": value}, f"headers={value!r}: {HEADERS}")
        for method, payload in (("send", (b"x",)), ("try_send", (b"x",)), ("send_many", ([b"x"],)))
        for value in (5, 0, "ab", b"ab")
    ),
    ("send", (b"x",), {"headers": {5: b"x"}}, "header 5: expected a name"),
    ("send", (b"x",), {"headers": {"kind": "x"}}, "header 'kind' is str; expected bytes"),
    ("send", (b"x",), {"mode": 5}, "5 is not a delivery mode: use one of ordered"),
    ("send", (b"x",), {"timeout": []}, rf"timeout=\[\]: {SECONDS}"),
    ("send", (b"x", 5), {}, f"to=5: {ADDRESS}"),
    ("send", (5,), {}, "a message must be bytes, not int"),
    ("send_many", (5,), {}, r"payloads=5: expected a list of messages, such as \[b'one'"),
    ("send_many", (b"two",), {}, "payloads=b'two': expected a list of messages"),
    ("send_many", ("two",), {}, "payloads='two': expected a list of messages"),
    ("send_many", ([],), {}, "pass at least one message"),
    ("set_xmit_interval", (None,), {}, f"interval=None: {SECONDS}"),
    ("receive", (-1,), {}, f"timeout=-1: {SECONDS}"),
]
AT_ONCE: list[tuple[str, Any, str]] = [
    ("serve", 5, "handler=5: expected a function that takes a Request"),
    ("label", 5, "member=5: expected an address"),
    ("confirm_stored", 5, "marks=5: expected a mapping of addresses to seqnos"),
    ("confirm_stored", {5: 5}, r"marks=\{5: 5\}: expected a mapping"),
]


@pytest.mark.parametrize("api", APIS)
def test_a_wrong_argument_is_named_with_what_was_expected(api: str) -> None:
    async def story() -> None:
        async with Twin(api, "me", free_ports(1), durable_name="me") as one:
            for method, arguments, named, expected in WRONG:
                with pytest.raises(GaplessError, match=expected):
                    await one.call(method, *arguments, **named)
            for method, argument, expected in AT_ONCE:
                with pytest.raises(GaplessError, match=expected):
                    getattr(one.group, method)(argument)
            sent = await one.call("send", b"nothing before was sent", headers=[{"kind": b"x"}])
            assert sent.first == 1
            assert await one.read() == b"nothing before was sent"

    run(story())


def test_an_error_of_a_generator_of_payloads_is_not_taken_for_a_wrong_argument() -> None:
    def payloads() -> Any:
        yield b"one"
        raise TypeError("of the application")

    with pytest.raises(TypeError, match="of the application"):
        as_payloads(payloads())
