"""Each adapter for a moment, where its library is there; ``make bench`` brings them in."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.contenders import CONTENDERS
from bench.environment import PACKAGES, Environment
from bench.groups import Group, Shape
from bench.peers import jgroups
from bench.peers.base import Task
from bench.workloads import flow, trips

pytestmark = pytest.mark.xdist_group("peers")
PEERS = [*PACKAGES, "jgroups"]
THEIRS = [
    name
    for name, contender in CONTENDERS.items()
    if contender.peer in PEERS and "tuned" not in name
]


@functools.cache
def environment() -> Environment:
    made = Environment()
    made.get(PEERS, lambda _: None, install=False)
    return made


def needed(name: str) -> Environment:
    made = environment()
    if reason := made.peers[CONTENDERS[name].peer].reason:
        pytest.skip(f"{CONTENDERS[name].peer}: {reason}")
    return made


@pytest.mark.parametrize("name", THEIRS)
def test_a_peer_brings_everything(name: str) -> None:
    made = needed(name)
    with Group(CONTENDERS[name], Shape(2, 2), made) as group:
        found = flow(group, 1000, 0.2)
        assert group.ready[0]["promises"]
    assert found["cpu_s_per_million"] > 0
    if "none lost" in group.ready[0]["promises"]:
        assert (found["lost"], found["duplicated"], found["out_of_order"]) == (0, 0, 0)


@pytest.mark.parametrize(
    "name", [name for name in THEIRS if "rtt" in CONTENDERS[name].modes and "nakack2" not in name]
)
def test_a_peer_answers(name: str) -> None:
    made = needed(name)
    with Group(CONTENDERS[name], Shape(2, 1, "rtt"), made) as group:
        assert trips(group, 100, 0.2)["trips"] > 0


@pytest.mark.parametrize(
    "name", [name for name, contender in CONTENDERS.items() if contender.peer == "jgroups"]
)
def test_the_stacks_of_jgroups(name: str) -> None:
    contender = CONTENDERS[name]
    task = Task(
        "jgroups",
        1,
        ["192.0.2.1", "192.0.2.2"],
        [7000, 7001],
        2,
        transport=contender.transport,
        options=contender.options,
    )
    tags = {
        element.tag.rpartition("}")[2]: element.attrib
        for element in ET.fromstring(jgroups.stack(task, Path("keys")))
    }
    transport = tags[contender.transport.upper()]
    assert (transport["bind_addr"], transport["bind_port"]) == ("192.0.2.2", "7001")
    assert ("NAKACK4" in tags, "pbcast.NAKACK2" in tags) == ("nakack4" in name, "nakack2" in name)
    assert ("MFC" in tags) == ("nakack2" in name), "NAKACK4 has flow control of its own"
    assert ("mcast_recv_buf_size" in transport) == ("tuned" in name)
    assert ("TCPPING" in tags) == (contender.transport == "tcp")
    assert ("SYM_ENCRYPT" in tags) == ("aes-cbc" in name)
    if "aes-cbc" in name:
        assert tags["SYM_ENCRYPT"]["keystore_name"] == "keys"
        order = list(tags)
        assert order.index("SYM_ENCRYPT") < order.index("NAKACK4"), "below what retransmits"
    assert "DISCARD" not in tags
    assert '<DISCARD up="0.05"/>' in jgroups.stack(replace(task, loss=0.05))


def test_every_peer_is_there_or_has_a_reason() -> None:
    made = environment()
    assert set(made.peers) == {*PEERS, "gapless", "raw"}
    assert all(
        bool(peer.version) != bool(peer.reason) or peer.reason for peer in made.peers.values()
    )
