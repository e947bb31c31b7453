"""Large datagrams on TCP streams are read without copies, and whatever pieces arrive."""

import fcntl
import socket
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from gapless.identity import Address, RosterEntry, View
from gapless.keys.ciphers import suites_of
from gapless.protocol.events import Located, ViewInstalled
from gapless.protocol.ready import Transmit
from gapless.run import Run
from gapless.transport import TcpMesh
from gapless.transport.tcp.connector import CONFIRM_SOON_NS
from gapless.transport.tcp.link import (
    CONFIRM,
    CONFIRM_BYTES,
    DATA,
    RECORD_HEADER_BYTES,
    encode_numbered,
    encode_record,
)
from gapless.transport.tcp.stream import EXACT_BYTES, EXACT_READS, TcpStream
from gapless.wire import encode
from gapless.wire.frames import Data
from gapless.wire.seal import Seal
from gapless.wire.seal_keys import KeyRing, KeyState, SealKey

GROUP = 77
PATIENCE_S = 20
RING = KeyRing(bytes(range(32)), (SealKey(1, bytes(range(32, 64)), KeyState.SEAL, "blake2b"),))


class Pair:
    """Two members with a stream from one to the other, and what each has received."""

    def __init__(self, *, sealed: bool = False) -> None:
        self.sender, self.receiver = self.members = [
            TcpMesh("127.0.0.1", 0, seal=Seal(RING, suites_of(RING)) if sealed else None)
            for _ in range(2)
        ]
        self.got: dict[TcpMesh, list[bytes]] = {one: [] for one in self.members}
        addresses = [Address(1, 1), Address(2, 1)]
        for one, address in zip(self.members, addresses, strict=True):
            entry = RosterEntry(address, "", one.locator.encode())
            one.book.announce(entry, GROUP, retransmits=True)
        for one in self.members:
            one.book.on_events(
                [
                    *(
                        Located(address, other.locator.encode())
                        for address, other in zip(addresses, self.members, strict=True)
                    ),
                    ViewInstalled(View.of(1, *addresses)),
                ]
            )
        self.send(self.datagram(b"first"))
        self.until(lambda: self.got[self.receiver] and not self.sender_link.has_unconfirmed)
        self.got[self.receiver].clear()

    @property
    def sender_link(self) -> Any:
        return self.sender._connector.links[self.receiver.locator]

    @property
    def sender_stream(self) -> Any:
        return self.sender_link.stream

    @property
    def receiver_link(self) -> Any:
        return self.receiver._connector.links[self.sender.locator]

    @property
    def receiver_stream(self) -> Any:
        return self.receiver_link.stream

    def datagram(self, payload: bytes) -> bytes:
        """Return a datagram of the sender, as only such a one can be sealed."""
        run = Run(Address(1, 1), 1, b"\0\0", b"")
        datagram = encode(GROUP, Address(1, 1), (Data(run, False, 0, False),), checked=False)
        return datagram + payload

    def send(self, *datagrams: bytes) -> None:
        self.sender.send([Transmit(None, datagram) for datagram in datagrams])

    def receive(self, *whom: TcpMesh) -> None:
        for one in whom or self.members:
            self.got[one] += one.receive(64)

    def until(self, holds: Callable[[], Any]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < until_s, [one.problems.counters for one in self.members]
            self.receive()

    def write(self, data: bytes) -> None:
        """Write bytes into the stream, and wait until the receiver could read all of them."""
        for stream in (self.sender_stream, self.receiver_stream):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                stream.socket.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
        wanted = unread_bytes(self.receiver_stream.socket) + len(data)
        at, until_s = 0, time.monotonic() + PATIENCE_S
        while unread_bytes(self.receiver_stream.socket) < wanted:
            assert time.monotonic() < until_s
            with suppress(BlockingIOError):
                at += self.sender_stream.socket.send(data[at:])

    def arrive(self, count: int) -> list[bytes]:
        """Return what the receiver gets, once there are so many datagrams."""
        self.until(lambda: len(self.got[self.receiver]) >= count)
        return self.got[self.receiver]

    def close(self) -> None:
        for one in self.members:
            one.close()


@pytest.fixture
def pairs() -> Iterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**options: Any) -> Pair:
        made.append(Pair(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def unread_bytes(sock: socket.socket) -> int:
    """Return how many bytes the kernel holds for a socket."""
    found = array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, found)
    return found[0]


def count_reads(stream: TcpStream) -> list[tuple[int, int]]:
    """Return a list to which every read of a stream adds how much was asked for and came.

    A read that finds nothing adds -1.
    """
    calls: list[tuple[int, int]] = []
    receive, receive_into = stream._receive, stream._receive_into

    def counted(size: int) -> bytes:
        try:
            data = receive(size)
        except BlockingIOError:
            calls.append((size, -1))
            raise
        calls.append((size, len(data)))
        return data

    def counted_into(target: memoryview) -> int:
        try:
            count = receive_into(target)
        except BlockingIOError:
            calls.append((len(target), -1))
            raise
        calls.append((len(target), count))
        return count

    stream._receive, stream._receive_into = counted, counted_into
    return calls


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
@pytest.mark.parametrize("seed", range(4))
def test_datagrams_that_leave_and_arrive_in_pieces_arrive_as_they_were(
    pairs: Callable[..., Pair], seed: int, sealed: bool
) -> None:
    pair, rng = pairs(sealed=sealed), Random(seed)
    stream = pair.sender_stream
    most = rng.choice([3, 5_000, 100_000])

    def send_a_part(buffers: Sequence[bytes | memoryview]) -> int:
        if rng.random() < 0.3:
            raise BlockingIOError
        return int(stream.socket.send(b"".join(buffers)[: rng.randrange(1, most + 1)]))

    stream._send_buffers = send_a_part
    sizes = [1, 12, 80, 40_000, EXACT_BYTES, EXACT_BYTES + 7, 240_000]
    if most == 3:
        sizes = [1, 12, 80, 200]
    wanted = [pair.datagram(rng.randbytes(rng.choice(sizes))) for _ in range(30)]
    for at in range(0, len(wanted), 3):
        pair.send(*wanted[at : at + 3])
        for _ in range(rng.randrange(4)):
            pair.receive()
    assert pair.arrive(len(wanted)) == wanted
    pair.until(lambda: not pair.sender_link.has_unconfirmed)
    assert all(not one.problems.counters for one in pair.members)


@pytest.mark.parametrize("seed", range(4))
def test_records_that_arrive_byte_by_byte_are_parsed_behind_a_large_one(
    pairs: Callable[..., Pair], seed: int
) -> None:
    pair, rng = pairs(), Random(seed)
    large = rng.randbytes(EXACT_BYTES)
    small = [rng.randbytes(rng.randrange(1, 30)) for _ in range(3)]
    parts = [encode_record(DATA, one) for one in small]
    parts.insert(rng.randrange(4), encode_numbered(CONFIRM, 0))
    data = b"".join([encode_record(DATA, large), *parts, encode_record(DATA, large)])
    at = 0
    while at < len(data):
        near = min(abs(at - len(large)), abs(at - len(data) + len(large))) < 200
        size = 1 if near else 3_000
        pair.write(data[at : at + size])
        at += size
        pair.receive(pair.receiver)
    assert pair.got[pair.receiver] == [large, *small, large]


def test_a_large_datagram_behind_small_records_is_read_by_itself(
    pairs: Callable[..., Pair],
) -> None:
    pair = pairs()
    large = [bytes([number]) * 240_000 for number in range(4)]
    small = encode_numbered(CONFIRM, 0) + encode_record(DATA, b"small")
    pair.write(encode_record(DATA, large[0]))
    pair.receive(pair.receiver)
    calls = count_reads(pair.receiver_stream)
    pair.write(b"".join(small + encode_record(DATA, one) for one in large[1:]))
    pair.receive(pair.receiver)
    assert pair.got[pair.receiver] == [large[0], *(x for one in large[1:] for x in (b"small", one))]
    asked = [size for size, _ in calls]
    assert asked.count(240_000) == 3, "each is read at once into memory of its size"
    small_reads = [size for size in asked if size < 100]
    # The headers, the confirmation with the next header, the small one with the next header.
    assert set(small_reads) == {RECORD_HEADER_BYTES, 12, 9}
    assert max(asked) == 240_000, "no read takes more than one of them"


def test_small_datagrams_behind_a_large_one_soon_share_reads_again(
    pairs: Callable[..., Pair],
) -> None:
    pair = pairs()
    calls = count_reads(pair.receiver_stream)
    many = b"".join(encode_record(DATA, b"%d" % number) for number in range(1000))
    pair.write(encode_record(DATA, bytes(EXACT_BYTES)))
    pair.receive(pair.receiver)
    pair.write(many)
    for _ in range(2):
        pair.receive(pair.receiver)
    assert pair.got[pair.receiver][1:] == [b"%d" % number for number in range(1000)]
    assert EXACT_READS < len(calls) <= EXACT_READS + 6


def test_a_datagram_that_is_cheap_to_copy_shares_reads(pairs: Callable[..., Pair]) -> None:
    pair = pairs()
    one = encode_record(DATA, bytes(60_000))
    four = one * 4
    for part in (one[:20_000], one[20_000:]):
        pair.write(part)
        pair.receive(pair.receiver)
    calls = count_reads(pair.receiver_stream)
    for _ in range(2):
        pair.write(four)
        pair.receive(pair.receiver)
    assert [came for _, came in calls] == [len(four)] * 2


def test_a_read_that_took_everything_is_not_followed_by_one_that_finds_nothing(
    pairs: Callable[..., Pair],
) -> None:
    pair = pairs()
    record = encode_record(DATA, bytes(EXACT_BYTES))
    calls = count_reads(pair.receiver_stream)
    for at in range(0, 5000, 1000):
        pair.write(record[at : at + 1000])
        pair.receive(pair.receiver)
        assert [came for _, came in calls] == [1000] * (at // 1000 + 1)


def test_a_confirmation_that_is_due_goes_along_with_an_answer(pairs: Callable[..., Pair]) -> None:
    pair = pairs()
    link, connector = pair.receiver_link, pair.receiver._connector
    size = 250_000
    count = CONFIRM_BYTES // size + 1
    for _ in range(count):
        pair.send(pair.datagram(bytes(size)))
        pair.receive(pair.receiver)
    until_s = time.monotonic() + PATIENCE_S
    while len(pair.got[pair.receiver]) < count and time.monotonic() < until_s:
        connector.timers = {
            what: at_ns for what, at_ns in connector.timers.items() if what[1] is not link
        }  # the test decides when a confirmation leaves
        pair.receive(pair.receiver)
    pair.receiver._on_received(pair.receiver_stream, 0, 0)
    deadline_ns = pair.receiver.deadline_ns
    assert deadline_ns is not None
    assert deadline_ns <= time.monotonic_ns() + CONFIRM_SOON_NS
    assert link.owes_confirmation, "it waits a moment for datagrams"
    answer = pair.datagram(b"answer")
    pair.receiver.send([Transmit(None, answer)])
    assert not link.owes_confirmation
    assert link not in [what[1] for what in connector.timers]
    pair.until(lambda: pair.got[pair.sender] == [answer] and not pair.sender_link.has_unconfirmed)


def test_a_due_confirmation_leaves_by_itself(pairs: Callable[..., Pair]) -> None:
    pair = pairs()
    for _ in range(CONFIRM_BYTES // 250_000 + 1):
        pair.send(pair.datagram(bytes(250_000)))
        pair.receive()
    pair.until(lambda: not pair.sender_link.has_unconfirmed)
    assert pair.got[pair.sender] == []


def test_a_member_that_closes_confirms_what_it_has_received(pairs: Callable[..., Pair]) -> None:
    pair = pairs()
    pair.send(pair.datagram(b"one"))
    until_s = time.monotonic() + PATIENCE_S
    while not pair.got[pair.receiver]:
        assert time.monotonic() < until_s
        pair.receive(pair.receiver)
    assert pair.receiver_link.owes_confirmation
    pair.receiver.close()
    while pair.sender_link.stream is not None:
        assert time.monotonic() < until_s
        pair.receive(pair.sender)
    assert not pair.sender_link.has_unconfirmed, "nothing is sent again to a member that left"
    assert not pair.sender_link.is_busy


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="needs TCP_CONGESTION")
def test_streams_within_a_machine_are_not_paced(pairs: Callable[..., Pair]) -> None:
    pair = pairs()
    for stream in (pair.sender_stream, pair.receiver_stream):
        name = stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert name.rstrip(b"\0") == b"reno"


FAULTS = """
import resource, sys
from gapless.transport.tcp.memory import keep_released_memory
if sys.argv[1] == "kept":
    keep_released_memory()
def use_runs():
    for _ in range(50):
        runs = [bytearray(250_000) for _ in range(8)]  # written, unlike bytes()
use_runs()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use_runs()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a hint for the allocator of Linux")
def test_memory_of_large_datagrams_is_used_again_without_page_faults() -> None:
    """Without the hint every run is new memory: 61 pages for each of 400 runs."""
    kept, by_default = (
        int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, mode],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
        )
        for mode in ("kept", "default")
    )
    if by_default < 1000:
        pytest.skip("this allocator keeps released memory by itself")
    assert kept < by_default / 20
