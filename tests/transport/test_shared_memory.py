"""Shared memory: large datagrams arrive unchanged by descriptors; every failure is mere loss."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gapless.identity import Address, RosterEntry, View
from gapless.protocol.events import Located, ViewInstalled
from gapless.protocol.ready import Transmit
from gapless.run import Run
from gapless.transport import UdpMesh, shared_memory
from gapless.transport.shared_memory import (
    DESCRIPTOR,
    LARGE_BYTES,
    PROBE,
    READABLE,
    RING_BYTES,
    UNREADABLE,
    SharedRing,
    SharedRingReader,
    encode_control,
)
from gapless.wire import Data, encode
from gapless.wire.seal import SEAL_OVERHEAD_BYTES

pytestmark = pytest.mark.skipif(
    not shared_memory.AVAILABLE, reason="this system has no memory to share"
)

A, B, C = (Address(node, 1) for node in (1, 2, 3))
GROUP = 77
PATIENCE_S = 10
Opener = Callable[..., UdpMesh]


@pytest.fixture
def opened() -> Iterator[Opener]:
    made: list[UdpMesh] = []

    def opener(**options: object) -> UdpMesh:
        made.append(UdpMesh("127.0.0.1", 0, **options))  # type: ignore[arg-type]
        made[-1].book.announce(
            RosterEntry(Address(len(made), 1), "", made[-1].locator.encode()), GROUP
        )
        return made[-1]

    yield opener
    for one in made:
        one.close()


def meet(*transports: UdpMesh) -> None:
    events = [Located(one.book.address, one.locator.encode()) for one in transports]
    view = ViewInstalled(View.of(1, *(one.book.address for one in transports)))
    for one in transports:
        one.book.on_events([*events, view])


def heard(one: UdpMesh, count: int) -> list[bytes]:
    """What comes, as soon as it is so many datagrams; others have their turns meanwhile."""
    until_s, found = time.monotonic() + PATIENCE_S, list[bytes]()
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} datagrams have come"
        select.select(one.sockets(), [], [], 0.1)
        found += one.receive(64)
    return found


def answered(one: UdpMesh, *others: UdpMesh) -> None:
    """Wait until everybody has said that it can read the memory of ``one``."""
    assert one.shared_memory is not None
    until_s = time.monotonic() + PATIENCE_S
    while len(one.shared_memory.readers) < len(others):
        assert time.monotonic() < until_s, one.shared_memory.readers
        for other in (*others, one):
            other.receive(64)


def datagram(sender: Address, first: int, count: int, size_bytes: int = 1000) -> bytes:
    messages = [b"%d %d" % (sender.node, seqno) for seqno in range(first, first + count)]
    run = Run.of(sender, first, [message.ljust(size_bytes) for message in messages])
    return encode(GROUP, sender, [Data(run)], None, bare=True)


def shares(opened: Opener, count: int = 2) -> list[UdpMesh]:
    """Transports of which the first has found out that the others can read its memory."""
    all_ = [opened() for _ in range(count)]
    meet(*all_)
    all_[0].send([Transmit(None, datagram(A, 1, 40))])
    for other in all_[1:]:
        heard(other, 1)
    answered(*all_)
    return all_


def test_before_anybody_has_answered_large_runs_go_by_the_socket_in_frames(opened: Opener) -> None:
    a, b = opened(), opened()
    meet(a, b)
    whole = datagram(A, 1, 250)
    a.send([Transmit(None, whole)])
    found = heard(b, 4)
    assert [len(one) <= 65_000 for one in found] == [True] * 4
    assert b"".join(one[-1000:] for one in found).count(b"1 250") == 1
    answered(a, b)
    a.send([Transmit(None, whole)])
    assert heard(b, 1) == [whole], "from now on it goes as one"
    assert a.problems.counters == b.problems.counters == {}


def test_what_is_large_goes_by_notes_in_its_place_among_the_rest(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = shares(opened, 3)
    sizes: list[int] = []
    send_each = a._send_each

    def counted(place: object, datagrams: list[bytes]) -> None:
        sizes.extend(map(len, datagrams))
        send_each(place, datagrams)  # type: ignore[arg-type]

    monkeypatch.setattr(a, "_send_each", counted)
    small = datagram(A, 1000, 1, 50)
    mixed = [small, datagram(A, 1, 60), datagram(A, 61, 250), small, datagram(A, 311, 16), small]
    a.send([Transmit(None, one) for one in mixed])
    assert heard(b, 6) == heard(c, 6) == mixed
    assert max(sizes) < 200, "only notes and small ones went by the socket"
    to_one = [datagram(A, 327, 100), small]
    a.send([Transmit(C, one) for one in to_one])
    assert heard(c, 2) == to_one
    many = [datagram(A, 1 + 16 * at, 16) for at in range(200)]
    a.send([Transmit(None, one) for one in many])
    assert heard(b, 200) == many


def test_one_that_cannot_read_it_gets_everything_by_the_socket(opened: Opener) -> None:
    a, b = shares(opened)
    deaf = opened(shared=False)
    meet(a, b, deaf)
    for at in range(3):
        a.send([Transmit(None, datagram(A, 1 + 60 * at, 60))])
    for one in (b, deaf):
        assert heard(one, 3) == [datagram(A, 1 + 60 * at, 60) for at in range(3)]
    assert set(deaf.problems.counters) == {"shared.unasked"}, "a question that it does not answer"


def test_one_that_finds_that_it_cannot_read_says_so(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = shares(opened)
    assert a.shared_memory is not None
    assert b.shared_memory is not None
    b.shared_memory.close()
    monkeypatch.setattr(
        b.shared_memory, "_open", lambda _: None
    )  # as if it were in another container by now
    a.send([Transmit(None, datagram(A, 1, 60))])
    until_s = time.monotonic() + PATIENCE_S
    while a.shared_memory.readers:
        assert time.monotonic() < until_s
        assert b.receive(64) == [], "what the note named is lost"
        a.receive(64)
    assert b.problems.counters == {"shared.closed": 1}
    a.send([Transmit(None, datagram(A, 1, 60))])
    assert heard(b, 1) == [datagram(A, 1, 60)]


def test_one_that_comes_back_at_the_same_place_and_shares_nothing_says_so(opened: Opener) -> None:
    a, b = shares(opened)
    assert a.shared_memory is not None
    port = b.locator.port
    b.close()
    again = UdpMesh("127.0.0.1", port, shared=False)
    try:
        again.book.announce(RosterEntry(Address(2, 2), "", again.locator.encode()), GROUP)
        a.send([Transmit(None, datagram(A, 1, 60))])
        until_s = time.monotonic() + PATIENCE_S
        while a.shared_memory.readers:
            assert time.monotonic() < until_s
            assert again.receive(64) == []
            a.receive(64)
        a.send([Transmit(None, datagram(A, 1, 60))])
        assert heard(again, 1) == [datagram(A, 1, 60)]
    finally:
        again.close()


def test_repairs_go_by_the_socket(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one who gets nothing by notes, for whatever reason, is repaired."""
    a, b = shares(opened)
    again = encode(GROUP, A, [Data(Run.of(A, 1, [b"x" * 1000] * 40), repair=True)], 1, bare=True)
    laid: list[int] = []
    monkeypatch.setattr(SharedRing, "write", lambda _, datagrams: laid.append(len(datagrams)))
    a.send([Transmit(B, again)])
    assert heard(b, 1) == [again]
    assert laid == []


def test_where_there_is_no_memory_that_is_noted_now_and_then(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(24, "too many open files")

    monkeypatch.setattr(os, "memfd_create", fail)
    a, b = opened(), opened()
    meet(a, b)
    for at in range(5):
        a.send([Transmit(None, datagram(A, 1 + 60 * at, 60))])
    assert heard(b, 5) == [datagram(A, 1 + 60 * at, 60) for at in range(5)]
    assert a.problems.counters == {"shared.none": 1}


def test_a_word_about_a_pipe_stops_nobody(opened: Opener, tmp_path: Path) -> None:
    """To open one that nobody writes to would take for ever."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    a, b = shares(opened)
    try:
        b._socket.sendto(encode_control(PROBE, (os.getpid(), pipe, bytes(16))), a.locator.sockaddr)
        b.send([Transmit(A, b"after it")])
        assert heard(a, 1) == [b"after it"]
    finally:
        os.close(pipe)


def test_a_stranger_that_nobody_can_find_is_counted_once(opened: Opener) -> None:
    a, _ = shares(opened)
    a.send([Transmit(Address(9, 9), datagram(A, 1, 60))])
    assert a.problems.counters == {"send.unknown": 1}


def test_the_memory_is_as_large_as_what_others_may_send_ahead() -> None:
    shelf = SharedRing(3 * RING_BYTES)
    reader = SharedRingReader(shelf.ring_id)
    try:
        for _ in range(2 * RING_BYTES // 100_000):
            shelf.write([b"x" * 100_000])
        assert reader.copy(0, 100_000) == b"x" * 100_000
    finally:
        reader.close()
        shelf.close()


def test_what_is_overwritten_before_it_is_read_is_lost_and_never_wrong(opened: Opener) -> None:
    a, b = shares(opened)
    sent = [datagram(A, 1 + 250 * at, 250) for at in range(2 * RING_BYTES // 250_000)]
    for one in sent:
        a.send([Transmit(None, one)])
    found: list[bytes] = []
    while select.select(b.sockets(), [], [], 0.2)[0]:
        found += b.receive(64)
    late = b.problems.counters["shared.late"]
    assert late >= len(sent) // 2 - 2
    assert found == sent[late:], "the last ones are there, and as they were"


def test_a_reader_tells_what_was_overwritten_while_it_copied() -> None:
    shelf = SharedRing()
    reader = SharedRingReader(shelf.ring_id)
    try:
        shelf.write([b"a" * 100_000])
        assert reader.copy(0, 100_000) == b"a" * 100_000
        assert reader.copy(0, RING_BYTES + 1) is None
        assert reader.copy(1 << 60, 100) is None, "that was never written"
        read: list[bytes] = []

        def slowly(part: memoryview) -> bytes:
            for _ in range(RING_BYTES // 100_000 + 1):
                shelf.write([b"b" * 100_000])
            read.append(bytes(part))
            return read[0]

        assert reader.copy(0, 100_000, slowly) is None
        assert read, "it was whole when the copy began"
        assert reader.copy(0, 100_000, slowly) is None
        assert len(read) == 1, "what is overwritten is not read"
    finally:
        reader.close()
        shelf.close()


def test_where_something_will_lie_is_said_before_it_does() -> None:
    """Else a reader could take what lay there before for whole while it is overwritten."""
    shelf = SharedRing()
    reader = SharedRingReader(shelf.ring_id)
    memory, said_before = shelf._view, []

    class Watched:
        def __setitem__(self, part: slice, datagram: bytes) -> None:
            said_before.append(reader._write_cursor[0])
            memory[part] = datagram

    class Sealing:
        def seal_into(self, datagram: bytes, buffer: memoryview) -> None:
            said_before.append(reader._write_cursor[0])
            assert len(buffer) == len(datagram) + SEAL_OVERHEAD_BYTES

    try:
        shelf._view = Watched()  # type: ignore[assignment]
        shelf.write([b"x" * 64_000, b"y" * 64_000])
        assert said_before == [64_000, 128_000]
        shelf._view = memory
        shelf.write([b"x" * 1000], Sealing())  # type: ignore[arg-type]
        assert said_before[2:] == [128_000 + 1024]
    finally:
        shelf._view = memory
        reader.close()
        shelf.close()


def test_any_size_at_any_place_of_the_ring_arrives_as_it_was() -> None:
    shelf = SharedRing()
    reader = SharedRingReader(shelf.ring_id)
    try:
        for at in range(400):
            one = bytes([at % 251]) * (LARGE_BYTES + 613 * at)
            note = shelf.write([one])
            start, size = (
                int.from_bytes(note[32:40], "little"),
                int.from_bytes(note[40:44], "little"),
            )
            assert reader.copy(start, size) == one
    finally:
        reader.close()
        shelf.close()


@pytest.mark.parametrize(
    "name",
    [
        (0, 0, bytes(16)),
        (2**32 - 1, 3, bytes(16)),
        (os.getpid(), 2**32 - 1, bytes(16)),
        (os.getpid(), 0, bytes(16)),
    ],
)
def test_a_note_of_nonsense_changes_nothing(opened: Opener, name: shared_memory.RingId) -> None:
    a, b = shares(opened)
    assert a.shared_memory is not None
    before = set(a.shared_memory.readers)
    place = b"\1" * 12
    words = [encode_control(kind, name) for kind in (PROBE, READABLE, UNREADABLE, 0, 9)]
    words += [
        encode_control(DESCRIPTOR, name, 1) + place,
        encode_control(DESCRIPTOR, name, 3) + place,
        b"GLM1",
        b"GLM1" + bytes(20),
    ]
    for word in words:
        b._socket.sendto(word, a.locator.sockaddr)
    b.send([Transmit(A, b"after all that")])
    assert heard(a, 1) == [b"after all that"]
    assert a.shared_memory.readers == before
    assert set(a.problems.counters) == {"shared.closed", "shared.short"}


def test_memory_that_could_become_smaller_is_not_read() -> None:
    file = os.memfd_create("gapless", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, 4096 + RING_BYTES)
        with pytest.raises(OSError, match="not sealed against shrinking"):
            SharedRingReader((os.getpid(), file, bytes(16)))
    finally:
        os.close(file)


def test_memory_of_another_life_is_not_read() -> None:
    shelf = SharedRing()
    try:
        with pytest.raises(OSError, match="another"):
            SharedRingReader((*shelf.ring_id[:2], b"x" * 16))
    finally:
        shelf.close()


def test_no_more_memories_are_kept_open_than_allowed(opened: Opener) -> None:
    a = opened()
    assert a.shared_memory is not None
    shelves = [SharedRing() for _ in range(shared_memory.MAX_OPEN_RINGS + 10)]
    try:
        for shelf in shelves:
            assert a.shared_memory._open(shelf.ring_id) is not None
        assert len(a.shared_memory._open_rings) == shared_memory.MAX_OPEN_RINGS
    finally:
        for shelf in shelves:
            shelf.close()


def test_a_killed_process_leaves_nothing_behind() -> None:
    """What it shared is gone with it, unless somebody still reads it."""
    program = (
        "import sys; from gapless.transport.shared_memory import SharedRing;"
        "ring = SharedRing(); ring.write([b'x' * 50_000]);"
        "print(*ring.ring_id[:2], ring.ring_id[2].hex(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        process, number, token = child.stdout.readline().split()
        name = int(process), int(number), bytes.fromhex(token)
        reader = SharedRingReader(name)
        child.kill()
    assert reader.copy(0, 50_000) == b"x" * 50_000
    reader.close()
    with pytest.raises(OSError):
        SharedRingReader(name)
    assert not Path(f"/proc/{process}").exists()
