"""Two hosts with a cable between them and without a default route find each other."""

import json
from contextlib import closing
from typing import Any

import pytest

from gapless.discovery import Discovery, Seeds
from gapless.protocol.ready import ANYONE, Transmit
from gapless.transport.udp import UdpMesh
from tests.support.processes import in_namespace

CABLE = (
    "mount -t tmpfs tmpfs /run;"
    " for host in a b; do ip netns add $host; ip -n $host link set lo up; done;"
    " ip link add cable-a netns a type veth peer name cable-b netns b;"
    " ip -n a addr add 10.66.0.1/24 dev cable-a; ip -n b addr add 10.66.0.2/24 dev cable-b;"
    " ip -n a link set cable-a up; ip -n b link set cable-b up"
)
SECOND_CABLE = (
    "; ip link add other-a netns a type veth peer name other-b netns b;"
    " ip -n a addr add 10.67.0.1/24 dev other-a; ip -n b addr add 10.67.0.2/24 dev other-b;"
    " ip -n a link set other-a up; ip -n b link set other-b up"
)
WITHIN_S = 5.0
"""How long two hosts may take to meet on a busy machine; without load they take under 1.5 s."""
SEEDS = ["10.66.0.1:7800", "10.66.0.2:7800"]


def meet(*options: dict[str, Any], network: str = CABLE) -> Any:
    found: Any = in_namespace(network, "inside_two_hosts.py", json.dumps(options))
    assert max(member["met_s"] for member in found) < WITHIN_S, found
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transport": "multicast"},
        {"seeds": SEEDS},
        {"seeds": SEEDS, "transport": "tcp"},
        {"seeds": SEEDS, "discover": "multicast://239.255.1.2"},
    ],
    ids=["default", "multicast", "seeds", "seeds, TCP", "seeds and multicast"],
)
def test_two_hosts_without_a_default_route_meet(options: dict[str, Any]) -> None:
    found = meet(options, options)
    assert [member["senders"] for member in found] == [2, 2]
    assert [member["locator"] for member in found] == SEEDS
    assert [member["log"] for member in found] == ["", ""]


def test_host_chooses_the_interface_of_multicast() -> None:
    found = meet({"host": "10.67.0.1"}, {"host": "10.67.0.2"}, network=CABLE + SECOND_CABLE)
    assert [member["locator"] for member in found] == ["10.67.0.1:7800", "10.67.0.2:7800"]
    assert [member["senders"] for member in found] == [2, 2]


def test_seeds_choose_the_own_address_among_several_interfaces() -> None:
    seeds = {"seeds": ["10.67.0.1:7800", "10.67.0.2:7800"]}
    found = meet(seeds, seeds, network=CABLE + SECOND_CABLE)
    assert [member["locator"] for member in found] == ["10.67.0.1:7800", "10.67.0.2:7800"]


def test_a_seed_out_of_reach_of_the_own_address_is_explained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(
        UdpMesh("127.0.0.1", 0, discovery=Discovery([Seeds(["198.51.100.1:7800"])]))
    ) as transport:
        transport.send([Transmit(ANYONE, b"join")])
    assert "Errno" not in caplog.text
    assert "pass host= with an address on that network" in caplog.text
    assert transport.problems.counters.total() == 1
