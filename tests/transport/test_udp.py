"""One UDP socket and the kernel: what goes out comes in, and what the kernel refuses is counted."""

import select
import socket
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from gapless.discovery import Discovery, Multicast
from gapless.errors import ConfigError, TransportError
from gapless.identity import Address, View
from gapless.locator import Locator
from gapless.protocol.events import Located, ViewInstalled
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.protocol.ready import ANYONE, Transmit
from gapless.transport import UdpMesh, UdpMulticast
from gapless.transport.udp import gso_batches
from gapless.wire import encode
from gapless.wire.frames import Leave
from tests.support.networks import free_ports, need_multicast
from tests.support.processes import in_namespace

A, B, C = (Address(node, 1) for node in (1, 2, 3))
Opener = Callable[..., UdpMesh]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens transports, and closes them in the end."""
    made = []

    def opener(
        host: str | None = "127.0.0.1",
        ports: Any = 0,
        kind: type[UdpMesh] = UdpMesh,
        **options: Any,
    ) -> UdpMesh:
        made.append(kind(host, ports, **options))
        return made[-1]

    yield opener
    for one in made:
        one.close()


def meet(*transports: UdpMesh) -> None:
    """Let members 1, 2, … know of each other, as the machine would tell it."""
    addresses = [Address(node, 1) for node in range(1, len(transports) + 1)]
    events: list[Any] = [
        Located(address, one.locator.encode())
        for address, one in zip(addresses, transports, strict=True)
    ]
    for one in transports:
        one.book.on_events([*events, ViewInstalled(View.of(1, *addresses))])


def heard(one: UdpMesh, count: int, *, limit: int = 64) -> list[bytes]:
    """Return the next datagrams."""
    found: list[bytes] = []
    while len(found) < count:
        assert select.select(one.sockets(), [], [], 5)[0], f"{len(found)} of {count} have come"
        found += one.receive(limit)
    return found


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("offload", [True, False])
def test_what_is_sent_arrives_as_it_was(opened: Opener, host: str, offload: bool) -> None:
    a, b, c = (opened(host, offload=offload) for _ in range(3))
    meet(a, b, c)
    rng = Random(1)
    for _ in range(30):
        common = rng.randrange(1, 2000)
        sizes = [
            rng.choice([common, common, common, rng.randrange(1, 9000)])
            for _ in range(rng.randrange(1, 150))
        ]
        to = rng.choice([None, B, ANYONE])
        transmits = [Transmit(to, rng.randbytes(size)) for size in sizes]
        a.send(transmits)
        for one in (b,) if to == B else (b, c):
            assert heard(one, len(transmits)) == [datagram for _, datagram in transmits]
    assert a.problems.counters == b.problems.counters == {}


def test_equal_datagrams_to_one_target_share_calls(opened: Opener) -> None:
    a, b = opened(), opened()
    if not (a.uses_gso and b.uses_gro):
        pytest.skip("this kernel sends and receives one datagram in a call")
    meet(a, b)
    a.send([Transmit(None, bytes([number]) * 1000) for number in range(40)])
    assert select.select(b.sockets(), [], [], 5)[0]
    assert len(b.receive(1)) == 40, "one call has brought them all"


def test_without_offload_a_call_brings_one(opened: Opener) -> None:
    a, b = opened(offload=False), opened(offload=False)
    meet(a, b)
    a.send([Transmit(None, b"x" * 1000)] * 40)
    assert select.select(b.sockets(), [], [], 5)[0]
    assert len(b.receive(1)) == 1
    assert len(heard(b, 39, limit=10)) == 39


def test_one_call_takes_datagrams_of_one_size_and_a_shorter_one() -> None:
    def cut(*sizes: int) -> list[list[int]]:
        return [
            [len(one) for one in together]
            for _, together in gso_batches([bytes(size) for size in sizes])
        ]

    assert cut(9, 9, 9) == [[9, 9, 9]]
    assert cut(9, 9, 5, 9) == [[9, 9, 5], [9]]
    assert cut(5, 9, 9) == [[5], [9, 9]]
    assert cut(*[100] * 130) == [[100] * 64, [100] * 64, [100] * 2]
    assert cut(*[30_000] * 5) == [[30_000] * 2, [30_000] * 2, [30_000]]
    assert cut(65_507, 65_507) == [[65_507], [65_507]]


def test_a_datagram_that_is_too_long_is_counted_and_the_next_one_goes(opened: Opener) -> None:
    a, b = opened(), opened()
    meet(a, b)
    a.send([Transmit(None, bytes(65_508)), Transmit(None, b"next")])
    assert heard(b, 1) == [b"next"]
    assert a.problems.counters == {"send.EMSGSIZE": 1}


def test_nobody_knows_where_a_stranger_is(opened: Opener) -> None:
    a = opened()
    a.send([Transmit(C, b"hello?")])
    assert a.problems.counters == {"send.unknown": 1}


def test_a_stranger_is_where_its_datagrams_come_from(opened: Opener) -> None:
    a, b = opened(), opened()
    b.book.on_events([Located(A, a.locator.encode())])
    b.send([Transmit(A, encode(1, C, [Leave(C)]))])
    heard(a, 1)
    a.send([Transmit(C, b"found you"), Transmit(ANYONE, b"everybody")])
    assert heard(b, 2) == [b"found you", b"everybody"]


def test_what_the_machine_says_of_a_place_counts_for_more(opened: Opener) -> None:
    a, b, c = opened(), opened(), opened()
    b.book.on_events([Located(A, a.locator.encode())])
    b.send([Transmit(A, encode(1, C, [Leave(C)]))])
    heard(a, 1)
    a.book.on_events([Located(C, c.locator.encode())])
    a.send([Transmit(C, b"found you")])
    assert heard(c, 1) == [b"found you"]


def test_other_families_and_nonsense_are_out_of_reach(opened: Opener) -> None:
    a = opened()
    a.book.on_events([Located(B, Locator.of("::1", 7800).encode()), Located(C, b"nonsense")])
    a.send([Transmit(B, b"hello?"), Transmit(C, b"hello?")])
    assert a.problems.counters == {"family": 1, "send.unknown": 2}


def test_a_port_that_is_taken_gives_way_to_the_next(opened: Opener) -> None:
    first, second, third = free_ports(3)
    assert opened(ports=[first, second, third]).locator.port == first
    assert opened(ports=[first, second, third]).locator.port == second
    with pytest.raises(
        TransportError, match=f"port {first} on 127.0.0.1: already in use; try a range"
    ):
        opened(ports=first)
    with pytest.raises(
        TransportError, match=f"any of the ports {first} to {second} on 127.0.0.1: already in use"
    ):
        opened(ports=[first, second])


@pytest.mark.parametrize(
    ("host", "ports", "error", "text"),
    [
        ("192.0.2.77", 0, TransportError, "192.0.2.77: not an address of this machine"),
        ("0.0.0.0", 0, ConfigError, "0.0.0.0 is not an address of one member"),
        ("localhost", 0, ConfigError, "'localhost' is not an IP address"),
        ("127.0.0.1", 70_000, ConfigError, "expected numbers from 0"),
        ("127.0.0.1", [], ConfigError, "expected numbers from 0"),
    ],
)
def test_a_bad_place_gets_a_clear_answer(
    host: str, ports: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        UdpMesh(host, ports)


def test_frames_fit_the_path(opened: Opener) -> None:
    assert opened("127.0.0.1").max_frame_bytes == opened("::1").max_frame_bytes == 65_000
    outside = opened(None)
    assert outside.max_frame_bytes == (
        65_000 if outside.locator.ip.is_loopback else outside.max_frame_bytes
    )
    assert outside.max_frame_bytes == 65_000 or 500 < outside.max_frame_bytes <= 1400


def test_the_buffer_that_was_granted_is_known(opened: Opener) -> None:
    small = opened(receive_buffer_bytes=20_000)
    assert small.receive_buffer_bytes == 20_000
    large = opened(receive_buffer_bytes=1 << 30)
    granted = large._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    assert large.receive_buffer_bytes in {granted, granted // 2}
    assert large.receive_buffer_bytes < 1 << 30, "no machine grants that much"


def on_multicast(opened: Opener, members: int) -> list[UdpMesh]:
    """Return members that hear one group, of a port of its own."""
    port = free_ports(1)[0]
    groups = ([Multicast("239.255.77.1", port, interface="127.0.0.1")] for _ in range(members))
    return [opened(kind=UdpMulticast, discovery=Discovery(group)) for group in groups]


@pytest.mark.parametrize("filters", [True, False])
def test_multicast_does_not_hear_itself(
    opened: Opener, filters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_multicast()
    if not filters:
        monkeypatch.setattr(
            "gapless.transport.socket_options.drop_datagrams_from", lambda one, source: False
        )
    a, b, c = on_multicast(opened, 3)
    meet(a, b, c)
    datagrams = [bytes([number]) * 500 for number in range(20)]
    a.send([Transmit(None, datagram) for datagram in datagrams])
    assert heard(b, 20) == heard(c, 20) == datagrams
    assert bool(select.select(a.sockets()[1:2], [], [], 0)[0]) != filters, (
        "the kernel keeps what comes back"
    )
    b.send([Transmit(None, b"from b"), Transmit(A, b"for a")])
    assert heard(a, 2) == [b"from b", b"for a"], "and nothing of its own"
    assert heard(c, 1) == [b"from b"]


def test_what_is_for_one_does_not_overtake_what_was_said_to_all_before(opened: Opener) -> None:
    need_multicast()
    a, b = on_multicast(opened, 2)
    meet(a, b)
    for number in range(10):
        a.send([Transmit(None, bytes([number]) * 60_000)] * 2)
        b.receive(1)  # a little at a time, so that more waits than is read
    a.send([Transmit(B, b"for b")])
    found: list[bytes] = []
    while b"for b" not in found:
        assert b.deadline_ns is not None or select.select(b.sockets(), [], [], 5)[0], (
            "somebody wakes it"
        )
        found += b.receive(1)
    assert found[-1] == b"for b"
    assert {datagram[0] for datagram in found[:-1]} >= {9}
    assert b.deadline_ns is None


def test_what_was_said_to_all_while_a_socket_was_read_comes_first(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the poll of the sockets and the read of the last datagram for one."""
    need_multicast()
    a, b = on_multicast(opened, 2)
    meet(a, b)
    own, group = b.sockets()[:2]
    a.send([Transmit(B, b"first")])
    assert select.select([own], [], [], 5)[0]
    poll = b._poll

    def poll_then_send(timeout_ms: int) -> Any:
        found = poll(timeout_ms)
        monkeypatch.setattr(b, "_poll", poll)
        a.send([Transmit(None, b"to all"), Transmit(B, b"second")])
        assert select.select([group], [], [], 5)[0]
        return found

    monkeypatch.setattr(b, "_poll", poll_then_send)
    found = b.receive(10)
    while len(found) < 3:
        found += b.receive(10)
    assert found.index(b"to all") < found.index(b"second")


@pytest.mark.parametrize("offload", [True, False])
def test_one_call_takes_all_that_has_arrived(opened: Opener, offload: bool) -> None:
    a, b = opened(offload=offload), opened(offload=offload)
    meet(a, b)
    datagrams = [bytes([number]) * (100 + number) for number in range(10)]
    a.send([Transmit(B, datagram) for datagram in datagrams])
    assert b.receive(100) == datagrams, "over loopback a datagram has arrived when it was sent"


def test_what_is_for_one_is_not_held_back_for_ever(opened: Opener) -> None:
    """Somebody who never stops must not keep acks away."""
    need_multicast()
    a, b = on_multicast(opened, 2)
    meet(a, b)
    a.send([Transmit(None, b"x"), Transmit(None, b"x"), Transmit(B, b"for b")])
    for _ in range(1000):
        a.send([Transmit(None, b"x")])
        if b"for b" in b.receive(1):
            return
    pytest.fail("it never came")


def test_multicast_without_a_group_says_so(opened: Opener) -> None:
    with pytest.raises(
        TransportError,
        match=r"no multicast group can be used from 127.0.0.1:[0-9]+: discovery names none",
    ):
        opened(kind=UdpMulticast)
    discovery = Discovery([Multicast("239.255.77.1", interface="192.0.2.77")])
    with pytest.raises(
        TransportError, match=r"cannot use the multicast group 239.255.77.1 on 192.0.2.77"
    ):
        opened(kind=UdpMulticast, discovery=discovery)


def test_full_buffers_and_missing_routes_are_counted() -> None:
    setup = (
        "ip link add one type veth peer name two;"
        "ip addr add 198.51.100.1/24 dev one; ip link set one up;"
        " ip link set two up; ip neigh add 198.51.100.2 lladdr 02:00:00:00:00:02 dev one;"
        " tc qdisc add dev one root tbf rate 8kbit burst 2000 limit 1000000"
    )
    answer = in_namespace(setup, "inside_refusals.py")
    assert answer["send.ENETUNREACH"] == 1
    assert answer["send.EAGAIN"] > 0
    assert set(answer) == {"send.ENETUNREACH", "send.EAGAIN"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps the errors of a network")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("offload", [True, False])
def test_a_refused_datagram_is_evidence_against_exactly_the_incarnation_it_was_for(
    opened: Opener, host: str, offload: bool
) -> None:
    """The errors of the refused ones cost no datagram to anybody else, and wake nobody for ever."""
    a, b, c = (opened(host, offload=offload) for _ in range(3))
    meet(a, b, c)
    b.close()
    for incarnation, evidence in ((1, DeathEvidence.REFUSED), (7, DeathEvidence.CLOSED)):
        a.send([Transmit(B, encode(1, A, (Leave(A),), incarnation))] * 3)
        for number in range(20):
            a.send([Transmit(C, bytes([number]) * 50)])
        assert heard(c, 20) == [bytes([number]) * 50 for number in range(20)]
        while not a.book.evidence:
            assert select.select(a.sockets(), [], [], 5)[0]
            a.receive(64)
        assert a.book.take_evidence() == [(B, evidence)]
        a.receive(64)
        assert not select.select(a.sockets()[:1], [], [], 0)[0], "every error was read"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps the errors of a network")
def test_a_refused_datagram_to_a_stranger_is_evidence_against_nobody(opened: Opener) -> None:
    a, b, c = (opened() for _ in range(3))
    meet(a, c)
    a.book.learn_source(C, b.locator.sockaddr)
    b.close()
    a.send([Transmit(C, encode(1, A, (Leave(A),), 1))])
    select.select(a.sockets(), [], [], 5)
    a.receive(64)
    assert not a.book.evidence


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps the errors of the network")
def test_refusals_of_others_cost_no_datagram_though_the_socket_is_full(opened: Opener) -> None:
    """A full receive buffer leaves no room for the errors; the next call reports them all the same.

    Strangers can make a member answer at places where nobody is, while they fill its buffer.
    """
    one = opened(discovery=Discovery([]), receive_buffer_bytes=4096)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone,
    ):
        other.bind(("127.0.0.1", 0))
        gone.bind(("127.0.0.1", 0))
        nowhere = gone.getsockname()
        gone.close()
        for size_bytes in (*[1000] * 1000, *[1] * 1000):
            other.sendto(bytes(size_bytes), one.locator.sockaddr)
        for number in range(50):
            one._send_one(b"answer to nobody", nowhere)
            one._send_one(b"%d" % number, other.getsockname())
        other.settimeout(10)
        assert [other.recv(100) for _ in range(50)] == [b"%d" % number for number in range(50)]
        assert not one.problems.counters["send.ECONNREFUSED"]
