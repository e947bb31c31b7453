"""TCP streams and the kernel: what goes out comes in once, whatever becomes of the streams."""

import os
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from gapless.discovery import Discovery, Multicast
from gapless.errors import ConfigError, TransportError
from gapless.identity import Address, RosterEntry, View
from gapless.locator import Locator
from gapless.protocol.events import Located, ViewInstalled
from gapless.protocol.ready import ANYONE, Transmit
from gapless.run import Run
from gapless.runtime.reactor import Reactor
from gapless.transport import TcpMesh
from gapless.transport.tcp import connector, transport
from gapless.transport.tcp.link import (
    CONFIRM,
    MAX_DATAGRAM_BYTES,
    MAX_STREAMS,
    START,
    Hello,
    encode_numbered,
)
from gapless.wire import encode
from gapless.wire.frames import Leave, Unreliable
from tests.support.networks import free_ports
from tests.support.tcp_relay import Relays

A, B, C = (Address(node, 1) for node in (1, 2, 3))
GROUP = 77
PATIENCE_S = 20
Opener = Callable[..., TcpMesh]


class Net:
    """Transports of one thread, each with what it has received."""

    def __init__(self) -> None:
        self.all: list[TcpMesh] = []
        self.got: dict[TcpMesh, list[bytes]] = {}

    def open(
        self,
        host: str | None = "127.0.0.1",
        ports: Any = 0,
        *,
        repairs: bool = True,
        **options: Any,
    ) -> TcpMesh:
        one = TcpMesh(host, ports, **options)
        self.all.append(one)
        self.got[one] = []
        one.book.announce(
            RosterEntry(Address(len(self.all), 1), "", one.locator.encode()),
            GROUP,
            retransmits=repairs,
        )
        return one

    def meet(self, *transports: TcpMesh) -> None:
        """Let transports know of each other, as the machine would tell it."""
        events: list[Any] = [Located(one.book.address, one.locator.encode()) for one in transports]
        for one in transports:
            one.book.on_events(
                [*events, ViewInstalled(View.of(1, *(other.book.address for other in transports)))]
            )

    def turn(self, most_s: float) -> None:
        """Do what the driver does, once."""
        now_ns = time.monotonic_ns()
        due_s = [
            (one.deadline_ns - now_ns) / 1e9 for one in self.all if one.deadline_ns is not None
        ]
        waited = {fd: one for one in self.all for fd in one.sockets()}
        readable = select.select(list(waited), [], [], max(0, min([most_s, *due_s])))[0]
        for one in self.all:
            if (
                any(waited[fd] is one for fd in readable)
                or (one.deadline_ns or now_ns) <= time.monotonic_ns()
            ):
                self.got[one] += one.receive(64)

    def until(self, holds: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
        until_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < until_s, [
                (one.problems.counters, len(self.got[one])) for one in self.all
            ]
            self.turn(0.05)

    def settle(self) -> None:
        """Wait until everybody has confirmed everything."""
        self.until(
            lambda: (
                not any(
                    link.has_unconfirmed
                    for one in self.all
                    for link in one._connector.links.values()
                )
            )
        )


@pytest.fixture
def net() -> Iterator[Net]:
    made = Net()
    yield made
    for one in made.all:
        one.close()


def link(one: TcpMesh, other: TcpMesh) -> Any:
    return one._connector.links[other.locator]


def cut(one: TcpMesh) -> None:
    """Close the sockets under a transport."""
    for stream in one.streams:
        with suppress(OSError):  # it may not stand yet
            stream.socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_sent_arrives_as_it_was(net: Net, host: str) -> None:
    a, b, c = (net.open(host) for _ in range(3))
    net.meet(a, b, c)
    rng = Random(1)
    wanted: dict[TcpMesh, list[bytes]] = {b: [], c: []}
    for _ in range(60):
        size = rng.choice([1, 40, 1400, 60_000, MAX_DATAGRAM_BYTES])
        to = rng.choice([None, B, ANYONE])
        most = 60 if size < MAX_DATAGRAM_BYTES else 4
        transmits = [
            Transmit(to, rng.randbytes(rng.randrange(1, size + 1)))
            for _ in range(rng.randrange(1, most))
        ]
        a.send(transmits)
        for one in (b,) if to == B else (b, c):
            wanted[one] += [datagram for _, datagram in transmits]
    net.until(lambda: all(len(net.got[one]) >= len(wanted[one]) for one in wanted))
    assert net.got == {a: [], **wanted}
    net.settle()
    assert a.problems.counters == b.problems.counters == c.problems.counters == {}
    assert [len(one.streams) for one in net.all] == [2, 1, 1]
    assert link(a, b).buffered_bytes == link(a, c).buffered_bytes == 0


def test_many_small_datagrams_leave_in_one_call(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = net.open(), net.open()
    net.meet(a, b)
    a.send([Transmit(B, b"first")])
    net.until(lambda: net.got[b])
    net.settle()
    calls: list[int] = []
    stream = link(a, b).stream
    write = stream.write

    def counted() -> None:
        calls.append(len(stream.write_buffer))
        write()

    monkeypatch.setattr(stream, "write", counted)
    a.send([Transmit(B, b"%d" % number) for number in range(100)])
    assert calls == [200]
    net.until(lambda: len(net.got[b]) == 101)


@pytest.mark.parametrize("seed", range(12))
def test_both_may_connect_at_once(net: Net, seed: int) -> None:
    rng = Random(seed)
    a, b = net.open(), net.open()
    net.meet(a, b)
    for one in rng.sample([a, b], 2):
        one.send([Transmit(None, b"%d" % number) for number in range(50)])
        for _ in range(rng.randrange(4)):
            rng.choice([a, b]).receive(64)
    net.until(lambda: len(net.got[a]) >= 50 and len(net.got[b]) >= 50)
    net.settle()
    assert net.got[a] == net.got[b] == [b"%d" % number for number in range(50)]
    net.until(lambda: len(a.streams) == len(b.streams) == 1)
    assert link(a, b).streams == link(b, a).streams == 1, "no stream was in use that had to go"
    assert a.problems.counters["stream.ended"] + b.problems.counters["stream.ended"] <= 1, (
        "one of two had to go"
    )


def exchange_while_cut(net: Net, a: TcpMesh, b: TcpMesh, rounds: int) -> int:
    """Let two members send while their streams are cut, and check that everything arrives once.

    Returned is how many datagrams were sent again.
    """
    rng = Random(2)
    wanted: dict[TcpMesh, list[bytes]] = {a: [], b: []}
    for round_ in range(rounds):
        for one, other in ((a, b), (b, a)):
            most_bytes = rng.choice([20_000, 20_000, 20_000, 200_000])
            datagrams = [
                b"%d %d " % (round_, number) + bytes(rng.randrange(most_bytes))
                for number in range(20)
            ]
            one.send([Transmit(None, datagram) for datagram in datagrams])
            wanted[other] += datagrams
        if rng.random() < 0.7:
            net.until(lambda: link(a, b).stream and link(b, a).stream)
            for _ in range(rng.randrange(12)):
                net.turn(0)
            cut(rng.choice([a, b]))
    net.until(lambda: all(len(net.got[one]) >= len(wanted[one]) for one in wanted))
    net.settle()
    assert net.got == wanted
    return a.problems.counters["sent.again"] + b.problems.counters["sent.again"]


def test_cut_streams_lose_and_repeat_nothing(net: Net) -> None:
    a, b = net.open(), net.open()
    net.meet(a, b)
    assert exchange_while_cut(net, a, b, rounds=60) > 100
    assert link(a, b).streams == link(b, a).streams > 10


@pytest.mark.parametrize("seed", range(3))
def test_a_network_that_cuts_at_any_byte_loses_and_repeats_nothing(net: Net, seed: int) -> None:
    first, second, third = ports = free_ports(3)
    with Relays(ports, seed, 1, 60_000) as relays:
        three = [
            net.open(ports=port, advertise=Locator.of("127.0.0.1", relays.at[port]))
            for port in ports
        ]
        net.meet(*three)
        rng = Random(seed)
        wanted: dict[TcpMesh, list[bytes]] = {one: [] for one in three}
        for number in range(300):
            one = rng.choice(three)
            most_bytes = 45_000 if number % 50 == 49 else 3000
            datagrams = [
                b"%d %d " % (one.locator.port, number) + bytes(rng.randrange(most_bytes))
                for _ in range(3)
            ]
            one.send([Transmit(None, datagram) for datagram in datagrams])
            for other in three:
                wanted[other] += datagrams if other is not one else []
            net.turn(0)
        net.until(lambda: all(len(net.got[one]) >= len(wanted[one]) for one in three))
        relays.calm()
        net.settle()
        for one in three:
            for port in relays.at.values():
                mine = b"%d " % port
                got = [datagram for datagram in net.got[one] if datagram.startswith(mine)]
                assert got == [datagram for datagram in wanted[one] if datagram.startswith(mine)]
            assert len(net.got[one]) == len(wanted[one])
        assert relays.cuts > 20
    assert first < second < third


def test_a_new_process_at_the_same_place_starts_anew(net: Net) -> None:
    a, b = net.open(), net.open()
    net.meet(a, b)
    for one in (a, b):
        one.send([Transmit(None, b"before")] * 10)
    net.until(lambda: len(net.got[a]) == len(net.got[b]) == 10)
    b.close()
    net.all.remove(b)
    a.send([Transmit(None, b"while nobody is there")])
    again = net.open(ports=b.locator.port)
    again.book.on_events([Located(A, a.locator.encode()), ViewInstalled(View.of(2, A, B))])
    again.send([Transmit(None, b"hello again")])
    net.until(lambda: len(net.got[a]) == 11 and net.got[again])
    assert net.got[again][-1] == b"while nobody is there"
    assert net.got[a][10:] == [b"hello again"]
    net.settle()


def test_large_datagrams_in_a_row_are_not_copied_together(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a large datagram only the length of the next is read, then all of it at once."""
    a, b = net.open(), net.open()
    net.meet(a, b)
    datagrams = [bytes([number]) * 200_000 for number in range(6)]
    a.send([Transmit(B, b"first")])
    net.until(lambda: net.got[b])
    calls: list[int] = []
    stream = link(b, a).stream
    go_on = stream.read_large

    def counted() -> bytes | None:
        datagram: bytes | None = go_on()
        calls.append(len(datagram or b""))
        return datagram

    monkeypatch.setattr(stream, "read_large", counted)
    for datagram in datagrams:
        a.send([Transmit(B, datagram)])
    net.until(lambda: len(net.got[b]) == 7)
    assert net.got[b][1:] == datagrams
    assert calls.count(200_000) >= 4, "most of them ended by a read of their own"
    a.send([Transmit(B, b"small"), Transmit(B, b"again")])
    net.until(lambda: net.got[b][7:] == [b"small", b"again"])
    net.settle()
    assert a.problems.counters == b.problems.counters == {}


def test_a_stream_is_opened_again_when_nobody_answers(net: Net) -> None:
    """The network takes bytes and confirms them, and nobody gets them."""
    port, other = free_ports(2)
    with Relays([port], 1, 1 << 30, 1 << 31) as relays:
        a = net.open(ports=other, dead_after_ns=300_000_000)
        b = net.open(ports=port, advertise=Locator.of("127.0.0.1", relays.at[port]))
        net.meet(a, b)
        a.send([Transmit(None, b"one")])
        net.until(lambda: net.got[b])
        net.settle()
        relays.frozen.set()
        a.send([Transmit(None, b"two")])
        net.until(lambda: a.problems.counters["stream.silent"])
        relays.frozen.clear()
        net.until(lambda: len(net.got[b]) == 2)
    assert net.got[b] == [b"one", b"two"]


def test_idle_streams_stay(net: Net) -> None:
    a, b = net.open(dead_after_ns=100_000_000), net.open()
    net.meet(a, b)
    a.send([Transmit(None, b"one")])
    net.until(lambda: net.got[b])
    net.settle()
    until_s = time.monotonic() + 0.5
    while time.monotonic() < until_s:
        net.turn(0.05)
    assert a.problems.counters == b.problems.counters == {}
    assert link(a, b).streams == 1


@pytest.mark.parametrize("closer", ["the program", "the driver"])
def test_a_forked_child_lets_go_without_a_word(
    net: Net, monkeypatch: pytest.MonkeyPatch, closer: str
) -> None:
    a, b = net.open(), net.open()
    driver = Reactor()
    if closer == "the driver":  # as soon as there is a child
        bundler = SimpleNamespace(close=lambda: None)
        members: list[Any] = [
            SimpleNamespace(transport=one, trace=None, bundler=bundler) for one in (a, b)
        ]
        driver._members = members
        monkeypatch.setattr(Reactor, "_shared", driver)
    net.meet(a, b)
    a.send([Transmit(None, b"before")])
    net.until(lambda: net.got[b])
    net.settle()
    link(a, b).enqueue(b"not written yet")
    child = os.fork()
    if not child:
        if closer == "the program":
            a.close()
            b.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    driver.close()
    a.send([Transmit(None, b"after")])
    net.settle()
    assert net.got[b] == [b"before", b"not written yet", b"after"]
    assert a.problems.counters == b.problems.counters == {}
    assert link(a, b).streams == 1


# Places


def test_a_seed_under_another_name_is_the_same_member(net: Net) -> None:
    port = free_ports(1)[0]
    with Relays([port], 1, 1 << 30, 1 << 31) as relays:
        b = net.open(ports=port)
        nickname = Locator.of("127.0.0.1", relays.at[port])
        a = net.open(discovery=Discovery.parse(f"seeds://{nickname}", group="g"))
        a.book.on_events(
            [
                Located(Address(1, 1), b.locator.encode()),
                ViewInstalled(View.of(1, Address(1, 1), B)),
            ]
        )
        for number in range(20):
            a.send([Transmit(ANYONE, b"world %d" % number), Transmit(None, b"all %d" % number)])
            net.turn(0.01)
        net.until(lambda: nickname in a._connector.aliases)
        net.settle()
        known = {b"world %d" % number for number in range(20)} | {
            b"all %d" % number for number in range(20)
        }
        assert set(net.got[b]) == known
        a.send([Transmit(ANYONE, b"world, once")])
        net.settle()
        assert net.got[b][-2:].count(b"world, once") == 1
        assert list(a._connector.links) == [b.locator]
        assert len(a.streams) == len(b.streams) == 1


def test_nobody_speaks_to_itself(net: Net) -> None:
    port = free_ports(1)[0]
    with Relays([port], 1, 1 << 30, 1 << 31) as relays:
        nickname = Locator.of("127.0.0.1", relays.at[port])
        a = net.open(ports=port, discovery=Discovery.parse(f"seeds://{nickname}", group="g"))
        a.send([Transmit(ANYONE, b"anybody?")])
        net.until(lambda: a.problems.counters["stream.self"])
        a.send([Transmit(ANYONE, b"anybody?")])
        net.until(lambda: not a.streams)
        assert a._connector.links == {}
        assert net.got[a] == []


def test_a_stranger_is_where_its_hello_says(net: Net) -> None:
    a, b = net.open(), net.open()
    b.book.on_events([Located(A, a.locator.encode())])
    b.send([Transmit(A, encode(1, C, [Leave(C)]))])
    net.until(lambda: net.got[a])
    a.send([Transmit(C, b"found you"), Transmit(B, b"and you"), Transmit(ANYONE, b"everybody")])
    net.until(lambda: len(net.got[b]) == 3)
    assert net.got[b] == [b"found you", b"and you", b"everybody"]
    assert len(a.streams) == 1


def test_the_world_is_tried_in_bounds(net: Net) -> None:
    ports = free_ports(100)
    a = net.open(
        ports=0, discovery=Discovery.parse(f"seeds://127.0.0.1:{ports[0]}-{ports[-1]}", group="g")
    )
    others = sum(port != a.locator.port for port in ports)
    a.send([Transmit(ANYONE, b"anybody?")])
    assert len(a.streams) <= connector.MAX_DIALS
    net.until(lambda: a.problems.counters["send.unreachable"] == others)
    a.send([Transmit(ANYONE, b"anybody?")] * 3)
    net.until(lambda: not a.streams)
    assert a.problems.counters["connect.ECONNREFUSED"] <= 110, (
        "those that were not there are left alone for a while"
    )
    assert all(not one.has_unconfirmed for one in a._connector.links.values())


def test_a_stranger_gets_little_and_a_member_what_is_allowed(net: Net) -> None:
    quiet = socket.create_server(
        ("127.0.0.1", 0)
    )  # it lets the kernel take connections, and says nothing
    where = Locator.from_sockaddr(quiet.getsockname())
    a = net.open(queue_bytes=2 << 20)
    a.book.on_events([Located(B, where.encode())])
    a.send([Transmit(B, bytes(1 << 16))] * 20)
    assert a._connector.links[where].buffered_bytes == transport.STRANGER_QUEUE_BYTES
    assert a.problems.counters == {"send.full": 4}
    a.book.on_events([ViewInstalled(View.of(1, A, B))])
    a.send([Transmit(B, bytes(1 << 16))] * 20)
    assert a._connector.links[where].buffered_bytes == 2 << 20
    assert a.problems.counters == {"send.full": 8}
    quiet.close()


def test_without_repair_a_member_gets_everything_that_was_meant_to_arrive(net: Net) -> None:
    quiet = socket.create_server(("127.0.0.1", 0))
    where = Locator.from_sockaddr(quiet.getsockname())
    a = net.open(queue_bytes=1 << 20, repairs=False)
    a.book.on_events([Located(B, where.encode()), ViewInstalled(View.of(1, A, B))])
    unreliable = encode(GROUP, A, [Unreliable(Run.of(A, 1, [bytes(60_000)]))])
    a.send([Transmit(None, unreliable)] * 30)
    refused = a.problems.counters["send.full"]
    assert 30 - refused == (1 << 20) // len(unreliable)
    a.send([Transmit(None, bytes(60_000)), Transmit(None, unreliable)] * 30)
    assert a.problems.counters == {"send.full": refused + 30}
    quiet.close()


# Strangers at the door


def knock(one: TcpMesh, *data: bytes) -> socket.socket:
    made = socket.create_connection(one.locator.sockaddr[:2], 5)
    made.sendall(b"".join(data))
    return made


def hello_of(one: TcpMesh, **changes: Any) -> Hello:
    other = Locator.of("127.0.0.1", 9)
    return Hello(GROUP, C, 5, 0, 0, 0, other)._replace(**changes)


def long_record(size: int, kind: int = 0) -> bytes:
    return struct.pack("<I", kind << 24 | size)


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        ("hello", [b"GET / HTTP/1.1\r\n\r\n"]),
        ("hello", [b"GLT2"]),
        ("hello", [{"streams": 2**64 - 1}]),
        ("hello", [{"streams": MAX_STREAMS + 1}]),
        ("group", [{"group": 78}]),
        ("locator", [{"locator": Locator.of("::1", 9)}]),
        ("start", [{}, long_record(1), b"x"]),
        ("start", [{}, encode_numbered(START, 2)]),
        ("start", [{}, encode_numbered(START, 0)]),
        ("record", [{}, encode_numbered(CONFIRM, 0)]),
        ("record", [{}, encode_numbered(START, 1), encode_numbered(START, 1)]),
        ("record", [{}, encode_numbered(START, 1), long_record(MAX_DATAGRAM_BYTES + 1)]),
        ("record", [{}, encode_numbered(START, 1), long_record(0)]),
        ("record", [{}, encode_numbered(START, 1), long_record(8, kind=3)]),
        ("record", [{}, encode_numbered(START, 1), long_record(9, kind=1)]),
        ("confirm", [{}, encode_numbered(START, 1), encode_numbered(CONFIRM, 1)]),
        ("self", [{"locator": None}]),
    ],
)
def test_garbage_ends_its_stream_and_nothing_else(net: Net, reason: str, sent: list[Any]) -> None:
    a, b = net.open(), net.open()
    net.meet(a, b)
    a.send([Transmit(None, b"one")])
    net.until(lambda: net.got[b])
    changes = {"locator": b.locator} if sent[0] == {"locator": None} else sent[0]
    first = changes if isinstance(changes, bytes) else hello_of(b, **changes).encode()
    with knock(b, first, *sent[1:]) as stranger:
        net.until(lambda: b.problems.counters[f"stream.{reason}"] == 1)
        with suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    a.send([Transmit(None, b"two")])
    net.until(lambda: len(net.got[b]) == 2)
    assert len(b.streams) == 1
    assert set(b.problems.counters) == {f"stream.{reason}"}


def test_a_liar_with_the_name_of_a_member_costs_no_more_than_what_it_takes(net: Net) -> None:
    a, b = net.open(), net.open()
    net.meet(a, b)
    for one in (a, b):
        one.send([Transmit(None, b"one")] * 5)
    net.until(lambda: len(net.got[a]) == len(net.got[b]) == 5)
    net.settle()
    with knock(b, hello_of(b, locator=a.locator).encode(), encode_numbered(START, 1)):
        net.until(lambda: link(b, a).peer_token == 5)
        b.send([Transmit(None, b"for the liar")])

    def both_hear() -> bool:
        for one in (a, b):
            one.send([Transmit(None, b"again")])
        return net.got[a][-1] == net.got[b][-1] == b"again"

    net.until(both_hear)
    net.settle()


def test_one_who_takes_too_long_is_let_go(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "HANDSHAKE_TIMEOUT_NS", 100_000_000)
    b = net.open()
    with knock(b, b"GLT"), knock(b, hello_of(b).encode()):
        net.until(lambda: b.problems.counters["accept.timeout"] == 2)
    assert b.streams == set()


def test_a_crowd_at_the_door_keeps_nobody_out(net: Net) -> None:
    a, b = net.open(), net.open()
    net.meet(a, b)
    crowd = []
    try:
        for _ in range(connector.MAX_HANDSHAKES + 20):
            crowd.append(knock(b))
            b.receive(64)
        net.until(lambda: b.problems.counters["accept.crowded"] == 20)
        a.send([Transmit(None, b"one")])
        net.until(lambda: net.got[b])
        assert len(b._connector._handshakes) <= connector.MAX_HANDSHAKES
    finally:
        for one in crowd:
            one.close()


def test_strangers_with_many_names_are_forgotten(net: Net) -> None:
    a, b = net.open(), net.open()
    net.meet(a, b)
    b.send([Transmit(None, b"one")])
    net.until(lambda: net.got[a])
    for port in range(1, connector.MAX_LINKS + 50):
        with knock(
            b,
            hello_of(b, locator=Locator.of("127.1.1.1", port)).encode(),
            encode_numbered(START, 1),
        ):
            net.until(partial(b._connector.links.get, Locator.of("127.1.1.1", port)))
    assert len(b._connector.links) <= connector.MAX_LINKS + 1
    assert b.problems.counters["link.forgotten"] > 0
    assert a.locator in b._connector.links, "members stay"


@contextmanager
def no_free_files() -> Iterator[None]:
    """Let this process open no more files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        next_free = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_process_without_free_files_goes_on(net: Net) -> None:
    a, b, c = net.open(), net.open(), net.open()
    net.meet(a, b, c)
    a.send([Transmit(B, b"one")])
    with no_free_files():
        c.send([Transmit(B, b"two")])
        assert c.problems.counters == {"connect.EMFILE": 1}
        net.until(lambda: b.problems.counters["accept.EMFILE"])
        until_s = time.monotonic() + 0.5
        while time.monotonic() < until_s:
            net.turn(0.05)
        assert 1 <= b.problems.counters["accept.EMFILE"] <= 5, "it does not run in circles"
    net.until(lambda: len(net.got[b]) == 2)
    assert sorted(net.got[b]) == [b"one", b"two"]


# Opening


def test_a_port_that_is_taken_gives_way_to_the_next(net: Net) -> None:
    first, second = free_ports(2)
    assert net.open(ports=[first, second]).locator.port == first
    assert net.open(ports=[first, second]).locator.port == second
    with pytest.raises(
        TransportError, match=f"port {first} on 127.0.0.1: already in use; try a range"
    ):
        net.open(ports=first)
    with pytest.raises(
        TransportError, match=f"any of the ports {first} to {second} on 127.0.0.1: already in use"
    ):
        net.open(ports=[first, second])


@pytest.mark.parametrize(
    ("host", "ports", "error", "text"),
    [
        ("192.0.2.77", 0, TransportError, "192.0.2.77: not an address of this machine"),
        ("0.0.0.0", 0, ConfigError, "0.0.0.0 is not an address of one member"),
        ("localhost", 0, ConfigError, "'localhost' is not an IP address"),
        ("127.0.0.1", [], ConfigError, "expected numbers from 0"),
    ],
)
def test_a_bad_place_gets_a_clear_answer(
    host: str, ports: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        TcpMesh(host, ports)


def test_what_is_out_of_reach_is_counted(net: Net) -> None:
    discovery = Discovery([Multicast("239.255.77.1")])
    a = net.open(discovery=discovery)
    assert a.problems.counters == {"multicast": 1}
    a.book.on_events(
        [Located(B, Locator.of("::1", 7800).encode()), ViewInstalled(View.of(1, A, B, C))]
    )
    a.send([Transmit(B, b"hello?"), Transmit(C, b"hello?")])
    assert a.problems.counters == {"multicast": 1, "family": 1, "send.unknown": 2}


def test_a_member_that_is_not_there_is_tried_with_pauses(net: Net) -> None:
    a = net.open()
    a.book.on_events(
        [
            Located(B, Locator.of("127.0.0.1", free_ports(1)[0]).encode()),
            ViewInstalled(View.of(1, A, B)),
        ]
    )
    a.send([Transmit(None, b"hello?")])
    until_s = time.monotonic() + 0.6
    while time.monotonic() < until_s:
        net.turn(0.05)
        a.send([Transmit(None, b"hello?")])
    assert 2 <= a.problems.counters["connect.ECONNREFUSED"] <= 8
    assert a._connector.links[a.book.peers[0]].has_unconfirmed, "what is for a member waits"
