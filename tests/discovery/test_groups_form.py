"""Real participants over real sockets find each other by each kind of source, and work together."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.multicast import free_port, need_ipv6, need_multicast
from tests.support.udp_group import UdpMember, pump

Ports = list[int]
Text = Callable[[Ports, Path], str]


MULTICAST_PORT = free_port()
SOURCES: dict[str, Text] = {
    "multicast": lambda ports, path: f"multicast://:{MULTICAST_PORT}?interface=127.0.0.1",
    "seeds": lambda ports, path: "seeds://" + ",".join(f"127.0.0.1:{port}" for port in ports),
    "one seed": lambda ports, path: f"seeds://127.0.0.1:{ports[0]}",
    "a range": lambda ports, path: (
        f"seeds://127.0.0.1:{min(ports[0], 65530)}-{min(ports[0], 65530) + 5}"
    ),
    "dns": lambda ports, path: f"dns://localhost:{ports[1]}?rest=50ms",
    "directory": lambda ports, path: f"dir://{path}?refresh=50ms&stale=10s",
    "file": lambda ports, path: f"file://{path / 'orders.json'}?refresh=50ms&stale=10s",
    "multicast and directory": lambda ports, path: (
        f"multicast://:{MULTICAST_PORT}?interface=127.0.0.1, dir://{path}?refresh=50ms&stale=10s"
    ),
    "a dead seed and a file": lambda ports, path: (
        f"seeds://127.0.0.1:{free_port()}, file://{path / 'orders.json'}?refresh=50ms&stale=10s"
    ),
}


@pytest.fixture
def members() -> Iterator[list[UdpMember]]:
    made = [UdpMember(node) for node in (1, 2, 3)]
    yield made
    for member in made:
        member.close()


def in_one_view(members: list[UdpMember]) -> bool:
    views = {member.participant.view for member in members}
    return len(views) == 1 and len(members[0].members) == len(members)


def exchange(members: list[UdpMember]) -> bool:
    for member in members:
        texts = [b"%d of %d" % (number, member.place.address.node) for number in range(20)]
        member.work(member.participant.send(texts, time.monotonic_ns()))
    return pump(members, lambda: all(len(member.received) == 60 for member in members))


def work_together(members: list[UdpMember], text: str) -> None:
    for member in members:
        member.start(text)
    assert pump(members, lambda: in_one_view(members)), [member.members for member in members]
    assert exchange(members)
    for member in members:
        for origin in members:
            address = origin.place.address
            sent = [b"%d of %d" % (number, address.node) for number in range(20)]
            assert [message for sender, message in member.received if sender == address] == sent


@pytest.mark.parametrize("source", SOURCES)
def test_a_group_forms(source: str, members: list[UdpMember], tmp_path: Path) -> None:
    if "multicast" in source:
        need_multicast()
    work_together(members, SOURCES[source]([member.locator.port for member in members], tmp_path))


@pytest.mark.parametrize("source", ["seeds", "directory"])
def test_a_group_forms_over_ipv6(source: str, tmp_path: Path) -> None:
    need_ipv6()
    members = [UdpMember(node, "::1") for node in (1, 2, 3)]
    with ExitStack() as stack:
        for member in members:
            stack.callback(member.close)
        seeds = "seeds://" + ",".join(str(member.locator) for member in members)
        work_together(
            members, seeds if source == "seeds" else f"dir://{tmp_path}?refresh=50ms&stale=10s"
        )


def test_nobody_is_found_without_a_source_that_knows(members: list[UdpMember]) -> None:
    for member in members:
        member.start(f"seeds://127.0.0.1:{free_port()}")
    assert pump(members, lambda: all(len(member.members) == 1 for member in members))
    assert not pump(members, lambda: any(len(member.members) > 1 for member in members), 0.5)


def test_two_halves_that_know_different_sources_become_one_through_the_member_that_knows_both(
    members: list[UdpMember], tmp_path: Path
) -> None:
    one, both, other = members
    seeds, directory = (
        f"seeds://127.0.0.1:{one.locator.port}",
        f"dir://{tmp_path}?refresh=50ms&stale=10s",
    )
    one.start(seeds)
    other.start(directory)
    assert pump([one, other], lambda: len(one.members) == len(other.members) == 1)
    both.start(f"{seeds}, {directory}")
    assert pump(members, lambda: in_one_view(members)), [member.members for member in members]
    assert exchange(members)
