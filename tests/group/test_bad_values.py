"""Wrong options of ``join``, hooks that fail, and control at run time."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import gapless
from gapless import blocking
from gapless.errors import ConfigError
from gapless.group.session import in_thread
from tests.support.networks import free_ports
from tests.support.real_groups import options

BAD_PORTS: list[Any] = ["abc", -1, 1.5, True, [], ["a"]]
BAD_SEEDS: list[Any] = ["a:7800", 7, [7]]
BAD_TIMEOUTS: list[Any] = [-1, "soon", True, []]
BAD_NAMES = ["x" * 65, "é" * 33, "a\x1bb", "a\nb", "\x9f", "\ud800"]
WRONG: list[tuple[str, Any, str]] = [
    *(("ports", value, "a port such as 7800") for value in BAD_PORTS),
    *((name, "no", "True or False") for name in ("listen", "rejoin", "stores", "allow_lossy")),
    *(("timeout", value, "seconds from 0") for value in BAD_TIMEOUTS),
    *(("min_members", value, "a number of members from 1") for value in (0, "two", 1.5, True)),
    *((name, 7, "text") for name in ("display_name", "durable_name", "trace_mode")),
    *(("durable_name", name, "text of at most 64 bytes") for name in BAD_NAMES),
    *((name, 1, "True or False") for name in ("insecure",)),
    ("keys", "", "the path of a keyring file"),
    ("host", 7, "an address of this machine"),
    ("node", "a", "a number from 0"),
    ("node", -1, "a number from 0"),
    ("discover", 7, "a discovery URL"),
    ("resume", 7, "a mapping of addresses"),
    ("resume", {1: 2}, "a mapping of addresses"),
    *(("seeds", value, "a list such as") for value in BAD_SEEDS),
    ("transport", 7, "the name of a transport"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
@pytest.mark.parametrize("join", [gapless.join, blocking.join])
def test_a_wrong_option_names_the_choices(join: Any, name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        join("wrong", **{name: value})
    assert str(caught.value).startswith(f"{name}={value!r}: expected {expected}")


OPTIONS = [
    name
    for name, parameter in inspect.signature(blocking.join).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "name"
]
JUNK: list[Any] = [object(), b"bytes", 1.5, -1, "", {"a"}, {1: 2}, ["\0"], (), True, print, 1 << 70]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("value", JUNK, ids=range(len(JUNK)))
def test_whatever_an_option_is_given_no_other_error_leaves_join(name: str, value: Any) -> None:
    """A wrong value is a ConfigError; ``object()`` is always wrong."""
    given = {"durable_name": "x", name: value}
    refused = ""
    try:
        group = blocking.join("wrong", **given)
        if name not in {"timeout", "min_members", "discover", "trace"}:
            group._session.options.open(group._session.inbox).close(0)
    except ConfigError as error:
        refused = str(error)
    assert refused or type(value) is not object


def test_a_state_hook_that_fails_is_logged_and_reading_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def get_state() -> bytes:
        raise RuntimeError("no state today")

    ports = free_ports(2)
    hooks = get_state, lambda _: None
    with blocking.join("hooks", state=hooks, **options(ports)) as first:
        reading = in_thread(lambda: first.receive(timeout=20))
        with blocking.join("hooks", state=hooks, timeout=20, **options(ports)) as second:
            second.send(b"still here")
            message = reading.result(20)
            assert message is not None
            assert message.payload == b"still here"
    assert "hooks: get_state failed" in caplog.text
    assert "no state today" in caplog.text


def test_retransmission_is_switched_at_run_time() -> None:
    with blocking.join("tune", allow_lossy=True, **options(free_ports(1))) as group:
        runtime = group._session.handle._runtime
        group.set_xmit_interval(0)
        assert not runtime.member.endpoint.config.retransmits
        assert not runtime.config.retransmits
        group.set_xmit_interval("100ms")
        assert runtime.member.endpoint.config.xmit_interval_ns == 100_000_000
        assert group.me is not None
        group.close_connection(group.me)
