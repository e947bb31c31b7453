import socket
from collections.abc import Iterator
from contextlib import closing
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest

from gapless.discovery import Discovery, Multicast, MulticastSockets, default_group
from tests.support.multicast import free_port, need_multicast
from tests.support.processes import in_namespace


def test_the_default_group_is_stable_and_scoped() -> None:
    assert default_group("orders") == IPv4Address("239.255.65.171")
    assert default_group("orders", 6) == IPv6Address("ff15::c1aa:ff26")
    seen = {default_group(f"group {number}") for number in range(5000)}
    assert all(address in IPv4Network("239.255.0.0/16") for address in seen)
    assert all(address not in IPv4Network("239.255.255.0/24") for address in seen)
    assert len(seen) > 4500
    assert all(
        default_group(f"group {number}", 6) in IPv6Network("ff15::8000:0/97")
        for number in range(500)
    )


@pytest.fixture
def port() -> int:
    """A free port, on a system that has multicast on the loopback interface."""
    need_multicast()
    return free_port()


def open_on_loopback(
    port: int, address: str = "239.255.77.1", interface: str = "127.0.0.1"
) -> MulticastSockets:
    source = Multicast(address, port, interface=interface)
    pair = source.open()
    assert pair is not None, source.problems.of(source.name)
    pair.receive_socket.settimeout(5)
    return pair


@pytest.fixture(params=["127.0.0.1", "lo"])
def pairs(port: int, request: pytest.FixtureRequest) -> Iterator[list[MulticastSockets]]:
    opened = [open_on_loopback(port, interface=request.param) for _ in range(3)]
    yield opened
    for pair in opened:
        pair.close()


def test_what_one_sends_all_hear_on_one_machine(pairs: list[MulticastSockets]) -> None:
    for number, pair in enumerate(pairs):
        pair.send_socket.sendto(b"from %d" % number, pair.target)
    for pair in pairs:
        heard = [pair.receive_socket.recv(100) for _ in pairs]
        assert sorted(heard) == [b"from 0", b"from 1", b"from 2"]


def test_a_transport_may_send_with_its_own_socket(port: int) -> None:
    with (
        closing(open_on_loopback(port)) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own,
    ):
        own.bind(("127.0.0.1", 0))
        pair = Multicast("239.255.77.1", port, interface="127.0.0.1", ttl=0).open(own)
        assert pair is not None
        assert pair.send_socket is own
        assert own.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == 0
        pair.send_socket.sendto(b"hello", pair.target)
        assert listener.receive_socket.recvfrom(100) == (b"hello", own.getsockname())
        pair.receive_socket.close()


def test_another_group_on_the_same_port_is_not_heard(port: int) -> None:
    with (
        closing(open_on_loopback(port, "239.255.77.1")) as one,
        closing(open_on_loopback(port, "239.255.77.2")) as two,
    ):
        two.send_socket.sendto(b"for two", two.target)
        one.send_socket.sendto(b"for one", one.target)
        assert one.receive_socket.recv(100) == b"for one"
        assert two.receive_socket.recv(100) == b"for two"


def test_ttl_and_loop_are_set(port: int) -> None:
    pair = Multicast("239.255.77.1", port, interface="127.0.0.1", ttl=7).open()
    assert pair is not None
    assert pair.send_socket.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == 7
    assert pair.send_socket.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP) == 1
    assert not pair.send_socket.getblocking()
    assert not pair.receive_socket.getblocking()
    pair.close()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("multicast://?interface=nolink7", "nolink7"),
        ("multicast://?interface=192.0.2.77", "192.0.2.77"),
    ],
)
def test_an_interface_that_is_not_there_is_a_problem_and_no_more(text: str, where: str) -> None:
    with Discovery.parse(text, group="orders") as found:
        (multicast,) = found.multicasts
        assert multicast.open() is None
        (problem,) = found.problems()
        assert problem.reason == "open"
        assert problem.last.startswith(
            f"cannot use the multicast group {default_group('orders')} on {where}: "
        )
        assert found.locate(0) == []
        assert found.wait(0)


def test_a_machine_without_a_network_says_so() -> None:
    answer = in_namespace("true", "inside_multicast.py", "239.255.77.1", "")
    assert answer["heard"] is None
    assert "No such device" in answer["problems"][0][3]


@pytest.mark.parametrize("address", ["239.255.77.1", "ff15::8000:1"])
def test_both_families_on_a_network_of_their_own(address: str) -> None:
    setup = (
        "ip link add one type veth peer name two && ip link set one up && ip link set two up"
        " && ip addr add 192.0.2.1/24 dev one && ip -6 addr add fd00::1/64 dev one nodad"
    )
    answer = in_namespace(setup, "inside_multicast.py", address, "one")
    assert answer == {"heard": ["hello", "hello"], "problems": []}
