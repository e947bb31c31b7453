"""Helpers for tests of connections: messages to one member, by hand or through a group."""

from random import Random
from typing import Any

import pytest

from gapless.identity import Address, Marks, View
from gapless.protocol.endpoint import Endpoint
from gapless.protocol.events import Connected
from gapless.protocol.ready import UNICAST
from gapless.run import Run
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Data
from tests.support.virtual_group import GROUP, NAMES, Group

rows = pytest.mark.parametrize("row", ["unicast3", "unicast", "unicast2"])
"""Runs a test with every protocol for messages to one member."""
IDLE: dict[str, Any] = {"conn_expiry_timeout": "1s", "conn_close_timeout": "2s"}
"""Settings of connections that close soon when they are idle."""
EPOCH = FIRST_CONNECTION_EPOCH + 500
"""An epoch for frames made by hand."""


def pair(members: int = 2, **knobs: Any) -> Group:
    """A group whose connections stay open until they are closed, and then not for long."""
    knobs.setdefault("conn_close_timeout", "2s")
    return Group(members, **knobs)


def one(
    origin: Address,
    first: int,
    *payloads: bytes,
    epoch: int = EPOCH,
    opens: bool = False,
    repair: bool = False,
) -> Data:
    """A data frame of a connection; ``opens`` marks it as the first message."""
    return Data(Run.of(origin, first, payloads or (b"%d" % first,), 0), repair, epoch, opens)


def numbers(first: int, last: int) -> list[bytes]:
    """The messages that bear their own seqno."""
    return [b"%d" % seqno for seqno in range(first, last + 1)]


def got(group: Group, at: str, origin: str) -> list[bytes]:
    """The deliveries of connections of ``origin``, after a check that seqnos rise per epoch."""
    highest: dict[int, int] = {}
    messages: list[bytes] = []
    for delivery in group.deliveries[NAMES[at]]:
        if delivery.origin == NAMES[origin] and delivery.kind == UNICAST:
            assert delivery.first > highest.get(delivery.epoch, 0), "nothing is delivered twice"
            highest[delivery.epoch] = delivery.last
            messages += delivery.messages()
    return messages


def epoch_of(group: Group, by: str, to: str) -> int:
    """The epoch of the connection from one member to another."""
    return group[by].connections.outgoing[NAMES[to]].stream.epoch


def marks_of(group: Group, by: str, to: str) -> tuple[int, int]:
    """The low and high marks of the connection from one member to another."""
    window = group[by].connections.outgoing[NAMES[to]].stream.window
    return window.low, window.high


def states(group: Group, at: str, *, outgoing: bool) -> list[str]:
    """The states of the sending (or receiving) ends of a member's connections, in order."""
    return [event.state for event in group.events_of(at, Connected) if event.outgoing is outgoing]


def close(group: Group, by: str, to: str) -> None:
    """Close the connection from one member to another."""
    group.step(NAMES[by], lambda m: m.close_connection(NAMES[to], group.now_ns))


def restart(group: Group, name: str) -> None:
    """Restart a member under the same address, incarnation included, without any state."""
    me, view = group[name].me, View.of(1, *group.addresses)
    group.members[me] = Endpoint(me, GROUP, group.config, Random(f"again {name}"), tracing=True)
    group.install(view, [me], digest=dict.fromkeys(group.addresses, Marks(0, 0, 0)))
