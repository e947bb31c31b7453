"""Each adapter for a moment, where its library is there; ``make bench`` brings them in."""

from __future__ import annotations

import functools

import pytest

from bench.contenders import CONTENDERS
from bench.environment import PACKAGES, Environment
from bench.groups import Group, Shape
from bench.workloads import flow, trips

pytestmark = pytest.mark.xdist_group("peers")
PEERS = [*PACKAGES, "jgroups"]
THEIRS = [name for name, contender in CONTENDERS.items() if contender.peer in PEERS]


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


@pytest.mark.parametrize("name", [name for name in THEIRS if "rtt" in CONTENDERS[name].modes and "tuned" not in name])
def test_a_peer_answers(name: str) -> None:
    made = needed(name)
    with Group(CONTENDERS[name], Shape(2, 1, "rtt"), made) as group:
        assert trips(group, 100, 0.2)["trips"] > 0


def test_every_peer_is_there_or_has_a_reason() -> None:
    made = environment()
    assert set(made.peers) == {*PEERS, "gapless", "raw"}
    assert all(bool(peer.version) != bool(peer.reason) or peer.reason for peer in made.peers.values())
