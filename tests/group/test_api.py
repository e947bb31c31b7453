"""Both APIs offer the same names with the same parameters, and nothing private shows."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import gapless
from gapless import aio, blocking, errors, events
from gapless.errors import TimedOutError
from gapless.group.deprecated import DeprecatedMethods
from gapless.group.rpc import RequestFrame
from gapless.transport.in_process import InProcessNetwork

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = {"found_after": "50ms", "join_interval": "20ms"}
TWINS = [
    (aio.Group, blocking.Group),
    (aio.Receipt, blocking.Receipt),
    (aio.Request, blocking.Request),
]
RENAMED = sorted(name for name in vars(DeprecatedMethods) if not name.startswith("_"))


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


def shape(function: Callable[..., Any]) -> list[tuple[str, Any, Any, str]]:
    """Parameters, and the type of the result without what asyncio adds to it."""
    found = inspect.signature(function)
    result = str(found.return_annotation)
    for asyncio_name, thread_name in (
        ("AsyncIterator", "Iterator"),
        ("Any | Awaitable[Any]", "Any"),
    ):
        result = result.replace(asyncio_name, thread_name)
    parameters = [
        (
            one.name,
            one.kind,
            one.default,
            str(one.annotation).replace("Any | Awaitable[Any]", "Any"),
        )
        for one in found.parameters.values()
    ]
    return [*parameters, ("return", None, None, result)]


@pytest.mark.parametrize(("one", "other"), TWINS, ids=lambda kind: str(kind.__name__))
def test_the_twins_have_the_same_methods_with_the_same_parameters(one: type, other: type) -> None:
    first, second = public(one), public(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        if inspect.isfunction(value):
            assert shape(value) == shape(second[name]), name
            assert (inspect.getdoc(value) or "").strip(), name


def test_both_joins_take_the_same_options() -> None:
    assert shape(aio.join) == shape(blocking.join)
    assert not [
        one
        for one in inspect.signature(aio.join).parameters.values()
        if one.kind is inspect.Parameter.VAR_KEYWORD
    ]


def test_every_option_of_join_is_documented() -> None:
    for join in (aio.join, blocking.join):
        documented = set(re.findall(r"^    (\w+): ", inspect.getdoc(join) or "", re.MULTILINE))
        assert set(inspect.signature(join).parameters) <= documented


def test_the_package_lists_its_public_names_and_nothing_else() -> None:
    listed = [name for name in dir(gapless) if not name.startswith("__")]
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(listed)
    assert not [name for name in listed if name.startswith("_")]
    for name in listed:
        assert getattr(gapless, name) is not None


def test_old_names_work_and_warn() -> None:
    network = InProcessNetwork()
    with blocking.join("x", transport=network.open(), config=QUICK, durable_name="a") as group:
        calls: dict[str, tuple[Any, ...]] = {
            "wait_for": ("a", 20),
            "stored": ({},),
            "on_request": (lambda _: b"",),
            "next_event": (20,),
        }
        for name in sorted({*RENAMED} - {"next_batch"}):
            with pytest.warns(DeprecationWarning, match=f"Group.{name} is deprecated") as caught:
                getattr(group, name)(*calls.get(name, ()))
            assert caught[0].filename == __file__
        with pytest.warns(DeprecationWarning, match="health"):
            assert group.health().ok
        with pytest.warns(DeprecationWarning, match="stats"):
            assert group.stats()["members"] == 1


def test_the_old_name_of_a_durable_name_works_and_warns() -> None:
    for join in (gapless.join, blocking.join):
        with pytest.warns(DeprecationWarning, match="durable_name") as caught:
            group = join("x", name="store")
        assert group._session.options.durable_name == group.display_name == "store"
        assert caught[0].filename == __file__


def test_the_default_display_name_has_host_pid_and_number() -> None:
    one, two = blocking.join("x"), blocking.join("x")
    assert re.fullmatch(rf".+-{os.getpid()}-\d+", one.display_name)
    assert one.display_name != two.display_name
    assert blocking.join("x", display_name="me").display_name == "me"


def test_a_snapshot_shows_display_names_and_outlives_the_member() -> None:
    network = InProcessNetwork()
    with blocking.join("x", transport=network.open(), config=QUICK, display_name="ann") as group:
        found = group.snapshot()
        assert (found.display_name, found.health.state, found.blockers) == ("ann", "member", ())
        assert str(found).startswith(f"x: ann ({found.me.short}) is member, in view 1")
        assert group.label(found.me) == f"ann ({found.me.short})"
    closed = group.snapshot()
    assert (closed.phase, closed.health.ok, closed.streams) == ("closed", False, ())


def test_seeds_stand_beside_a_discovery_url() -> None:
    from gapless.group.join_options import read_discovery

    found = read_discovery(None, "x", ["127.0.0.1:7800", "127.0.0.1:7801"])
    assert [type(source).__name__ for source in found.sources] == ["Seeds"]
    both = read_discovery("multicast://", "x", ["127.0.0.1:7800"])
    assert [type(source).__name__ for source in both.sources] == ["Seeds", "Multicast"]


def test_without_the_extra_the_command_ends_with_one_line() -> None:
    program = (
        "import sys, runpy; sys.modules['click'] = None;"
        " runpy.run_module('gapless', run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert "pip install 'gapless[cli]'" in ended.stderr


PUBLIC_NAMES = {
    gapless.Receipt: {"count", "delivered", "first", "last", "view"},
    gapless.Request: {"fail", "payload", "reply", "sender"},
    gapless.Message: {
        *("headers", "mode", "name", "payload", "private", "sender", "sent_ns", "seqno", "view"),
    },
    gapless.Batch: {
        *("buffer", "first", "last", "messages", "mode", "name", "payload", "private"),
        *("sender", "sent_ns", "view"),
    },
    gapless.View: {"coordinator", "id", "members", "of"},
    gapless.Group: {
        *(
            "batches",
            "close",
            "close_connection",
            "config",
            "set_xmit_interval",
            "confirm_stored",
            "display_name",
            "events",
            "expel",
        ),
        *("group", "is_closed", "label", "leave", "me", "names", "open", "receive"),
        *("receive_batch", "receive_event", "request", "requests", "send", "send_many", "serve"),
        *("snapshot", "try_send", "unread", "view", "wait_for_member", "wait_for_members"),
        *RENAMED,
    },
    gapless.MemberSnapshot: {
        *("absent", "keys"),
        *("application_blocks", "as_dict", "blockers", "counters", "display_name"),
        *(
            "discovery_problems",
            "durable_name",
            "error",
            "gauges",
            "group",
            "health",
            "incarnations",
            "me",
            "peers",
        ),
        *(
            "phase",
            "slow_receiver_after_ns",
            "stall_after_ns",
            "streams",
            "unread",
            "unread_limit",
            "view",
        ),
    },
}
"""The public surface of 0.2. A name that is added here is promised to users."""


@pytest.mark.parametrize("kind", PUBLIC_NAMES, ids=lambda kind: str(kind.__name__))
def test_a_class_shows_its_documented_names_and_nothing_else(kind: type) -> None:
    assert {name for name in dir(kind) if not name.startswith("_")} == PUBLIC_NAMES[kind]
    for name in PUBLIC_NAMES[kind]:
        value = inspect.getattr_static(kind, name)
        if inspect.isroutine(value) or isinstance(value, property):
            assert inspect.getdoc(getattr(kind, name)), name


def test_objects_have_no_public_attributes_beside_those_of_their_class() -> None:
    network = InProcessNetwork()
    with blocking.join("x", transport=network.open(), config=QUICK) as group:
        receipt = group.send(b"m")
        message = group.receive(20)
        assert message is not None
        request = blocking.Request(group._session, RequestFrame(message.sender, 1, b"q"))
        for one in (group, receipt, message, request, group.snapshot(), message._batch):
            extra = {name for name in dir(one) if not name.startswith("_")} - {*dir(type(one))}
            assert not extra, one


@pytest.mark.parametrize("module", [aio, blocking, errors, events], ids=lambda one: one.__name__)
def test_a_public_module_shows_what_it_exports_and_no_imports(module: Any) -> None:
    assert [name for name in dir(module) if not name.startswith("__")] == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_an_absent_durable_member_blocks_the_window_in_a_snapshot() -> None:
    network = InProcessNetwork()
    config = {**QUICK, "capacity": 4, "retention_timeout": "10min", "loopback": False}
    with blocking.join("x", transport=network.open(), config=config) as group:
        with blocking.join(
            "x", transport=network.open(), config=config, durable_name="store"
        ) as store:
            group.wait_for_member("store", 20)
            group.wait_for_members(2, 20)
            address = store.me
            assert address is not None
        while group.view is None or address in group.view:
            group.receive_event(20)
        group.send_many([b"m"] * 4)
        found = group.snapshot()
        (blocker,) = found.blockers
        assert (blocker.member, blocker.name, blocker.absent) == (address, "store", True)
        assert f"waiting for store ({address.short}), absent: acknowledged up to 0" in str(found)
        assert found.health.ok, "no send waits yet"
        with pytest.raises(TimedOutError, match="snapshot"):
            group.send(b"no room", timeout=0.05)
        assert found.gauges["absent_members"] == 1
