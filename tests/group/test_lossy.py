"""Retransmission switched off over a transport that may lose messages is refused."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from gapless import blocking
from gapless.errors import ConfigError
from gapless.faults import faults
from gapless.faults.faulty_transport import FaultyTransport
from gapless.transport import InProcessNetwork, TcpMesh, UdpMesh
from tests.support.networks import free_ports
from tests.support.real_groups import run
from tests.support.twins import APIS, Twin

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.transport.base import Transport

HERE: dict[str, Any] = {"host": "127.0.0.1", "ports": 0}


@pytest.mark.parametrize("transport", ["auto", "udp", "multicast", "mesh"])
@pytest.mark.parametrize("config", [{"profile": "ordered"}, {"xmit_interval": "0s"}])
def test_a_transport_that_may_lose_needs_retransmission(
    transport: str, config: dict[str, Any]
) -> None:
    group = blocking.join("lossy", config=config, transport=transport, **HERE)
    with pytest.raises(ConfigError, match=r"may lose messages; use transport='tcp', .*allow_lossy"):
        group.open()


def test_it_is_allowed_on_request() -> None:
    with blocking.join("lossy", config={"profile": "ordered"}, allow_lossy=True, **HERE) as group:
        group.send(b"one")
        message = group.receive(timeout=20)
        assert message is not None
        assert message.payload == b"one"


def test_tcp_loses_nothing() -> None:
    options = {**HERE, "transport": "tcp", "discover": "seeds://127.0.0.1:1"}
    with blocking.join("lossy", config={"profile": "ordered"}, **options) as group:
        assert len(group.view or ()) == 1


def _faulty(*made: faults.Fault) -> FaultyTransport:
    return FaultyTransport(InProcessNetwork().open(), made)


LOSSY: dict[str, Callable[[], Transport]] = {
    "UdpMesh": lambda: UdpMesh("127.0.0.1", 0),
    "lossy fault": lambda: _faulty(faults.Delay(Random(1), 0, 1000), faults.Loss(Random(1), [0.1])),
    "faulty UDP": lambda: FaultyTransport(UdpMesh("127.0.0.1", 0), ()),
}
LOSSLESS: dict[str, Callable[[], Transport]] = {
    "InProcessTransport": lambda: InProcessNetwork().open(),
    "TcpMesh": lambda: TcpMesh("127.0.0.1", 0),
    "harmless fault": lambda: _faulty(faults.Duplicate(Random(1), 0.1, 1000)),
}


@pytest.mark.parametrize("kind", LOSSY)
def test_an_open_transport_that_may_lose_needs_retransmission(kind: str) -> None:
    transport = LOSSY[kind]()
    group = blocking.join("lossy", config={"profile": "ordered"}, transport=transport)
    with pytest.raises(ConfigError, match=f"{type(transport).__name__} may lose .*allow_lossy"):
        group.open()
    options: dict[str, Any] = {"config": {"profile": "ordered"}, "allow_lossy": True}
    with blocking.join("lossy", transport=transport, **options) as group:
        assert group.view is not None


@pytest.mark.parametrize("kind", LOSSLESS)
def test_an_open_transport_that_loses_nothing_needs_none(kind: str) -> None:
    options: dict[str, Any] = {"config": {"profile": "ordered"}, "transport": LOSSLESS[kind]()}
    with blocking.join("lossy", **options) as group:
        group.set_xmit_interval("100ms")
        group.set_xmit_interval(0)
        assert not group._session.handle._runtime.member.endpoint.config.retransmits


@pytest.mark.parametrize("api", APIS)
def test_retransmission_is_not_switched_off_at_run_time_where_messages_may_be_lost(
    api: str,
) -> None:
    async def story() -> None:
        async with Twin(api, "one", free_ports(1)) as one:
            config = one.group._session.handle._runtime.member.endpoint.config
            with pytest.raises(
                ConfigError, match=r"set_xmit_interval\(0\) never resends .*UdpM.* may lose"
            ):
                await one.call("set_xmit_interval", 0)
            assert config.retransmits

    run(story())
