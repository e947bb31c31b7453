"""The two ends of a link, with streams that end anywhere: each datagram arrives once, in order."""

from functools import partial
from random import Random

import pytest

from gapless.errors import RemoteProtocolError
from gapless.identity import Address
from gapless.locator import Locator
from gapless.transport.tcp.link import (
    CONFIRM,
    CONFIRM_BYTES,
    CONFIRM_DATAGRAMS,
    DATA,
    MAX_STREAMS,
    START,
    Hello,
    Link,
    encode_numbered,
    parse_record_header,
    stream_number,
)

PLACES = Locator.of("127.0.0.1", 1), Locator.of("127.0.0.1", 2)


class Pipe:
    """A stream between side 0 and side 1, in the form in which both see it."""

    def __init__(self, dialler: int) -> None:
        self.dialler = dialler
        self.said: list[Hello | None] = [None, None]
        self.bytes: list[bytes] = [b"", b""]
        """What is under way to each side."""
        self.again = [-1, -1]
        self.cut = False
        self.closed = [False, False]


class Ends:
    """Two links and the streams between them."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.links = [Link(PLACES[1], 11), Link(PLACES[0], 22)]
        self.pipes: list[Pipe] = []
        self.used: list[Pipe | None] = [None, None]
        self.put: list[list[bytes]] = [[], []]
        self.got: list[list[bytes]] = [[], []]
        self.again = 0

    def step(self) -> None:
        side = self.rng.randrange(2)
        what = self.rng.choice(
            [
                self.send,
                self.send,
                self.write,
                self.write,
                self.read,
                self.read,
                self.greet,
                self.cut,
            ]
        )
        what(side)

    def send(self, side: int) -> None:
        self.put[side].append(b"%d" % len(self.put[side]))
        self.links[side].enqueue(self.put[side][-1])

    def write(self, side: int) -> None:
        pipe = self.used[side]
        if pipe is not None:
            pieces = b"".join(self.links[side].next_batch(confirm=self.rng.random() < 0.5))
            pipe.bytes[1 - side] += b"" if pipe.cut else pieces

    def greet(self, side: int) -> None:
        """Open a stream, or go one step on with one that is being opened."""
        opening = [
            pipe for pipe in self.pipes if pipe.dialler == side and pipe is not self.used[side]
        ]
        opening = [pipe for pipe in opening if not pipe.closed[side]]
        if not opening:
            self.pipes.append(Pipe(side))
            self.pipes[-1].said[side] = self.hello(side)
            return
        pipe = self.rng.choice(opening)
        if pipe.said[1 - side] is None:
            pipe.said[1 - side] = self.hello(1 - side)
        else:
            self.commit(pipe, side)

    def hello(self, side: int) -> Hello:
        return self.links[side].hello(1, Address(side, 1), PLACES[side])

    def commit(self, pipe: Pipe, side: int) -> bool:
        said, heard = pipe.said[side], pipe.said[1 - side]
        assert said is not None
        assert heard is not None
        if stream_number(said, heard) <= self.links[side].streams:
            self.end(pipe)
            return False
        start = encode_numbered(START, self.links[side].resume(said, heard, 0))
        for other in self.pipes:
            other.closed[side] |= (
                other is self.used[side]
            )  # what is in it for the other side may still be read there
        self.used[side] = pipe
        pipe.bytes[1 - side] += b"" if pipe.cut else start
        return True

    def end(self, pipe: Pipe) -> None:
        self.pipes.remove(pipe)
        self.used = [None if one is pipe else one for one in self.used]

    def read(self, side: int) -> None:
        """Take a record of the stream in use, or of one that the other side wants to use."""
        mine = [pipe for pipe in self.pipes if pipe is self.used[side] or pipe.dialler != side]
        ready = [pipe for pipe in mine if pipe.bytes[side] and not pipe.closed[side]]
        for pipe in self.rng.sample(ready, min(1, len(ready))):
            data = memoryview(pipe.bytes[side])
            if len(data) < 4 or len(data) < 4 + parse_record_header(data, 0)[1]:
                self.end(pipe)  # it was cut here
                continue
            kind, size = parse_record_header(data, 0)
            body = bytes(data[4 : 4 + size])
            pipe.bytes[side] = bytes(data[4 + size :])
            self.on_record(pipe, side, kind, body)

    def on_record(self, pipe: Pipe, side: int, kind: int, body: bytes) -> None:
        link = self.links[side]
        if kind == START:
            if self.used[side] is pipe or self.commit(pipe, side):
                pipe.again[side] = link.on_start(int.from_bytes(body, "little"))
        elif kind == CONFIRM:
            link.on_confirm(int.from_bytes(body, "little"), 0)
        elif pipe.again[side]:
            pipe.again[side] -= 1
            self.again += 1
        else:
            assert kind == DATA
            self.got[side].append(body)
            link.on_received(1, size_bytes=len(body))

    def cut(self, side: int) -> None:
        """Lose what is under way, from some byte on."""
        for pipe in self.rng.sample(self.pipes, min(1, len(self.pipes))):
            pipe.cut = True
            pipe.bytes[side] = pipe.bytes[side][: self.rng.randrange(len(pipe.bytes[side]) + 1)]
            pipe.bytes[1 - side] = b""

    def finish(self) -> None:
        """Open one more stream, and let everything arrive."""
        self.pipes, self.used = [], [None, None]
        pipe = Pipe(0)
        self.pipes = [pipe]
        pipe.said = [self.hello(0), self.hello(1)]
        self.commit(pipe, 0)
        for _ in range(3):
            for side in (1, 0):
                while pipe.bytes[side]:
                    self.read(side)
                while pieces := self.links[side].next_batch(confirm=True):
                    pipe.bytes[1 - side] += b"".join(pieces)
        for side in (1, 0):
            while pipe.bytes[side]:
                self.read(side)


@pytest.mark.parametrize("first", range(0, 800, 200))
def test_whatever_becomes_of_the_streams_each_datagram_arrives_once(first: int) -> None:
    again = streams = 0
    for seed in range(first, first + 200):
        ends = Ends(seed)
        for _ in range(ends.rng.randrange(20, 300)):
            ends.step()
        ends.finish()
        assert ends.got[1] == ends.put[0], seed
        assert ends.got[0] == ends.put[1], seed
        for link in ends.links:
            assert (len(link.sent), len(link.waiting), link.buffered_bytes) == (0, 0, 0), seed
        again += ends.again
        streams += ends.links[0].streams
    assert again > 10, "some came again, and were recognized"
    assert streams > 300


def pair() -> tuple[Link, Link]:
    return Link(PLACES[1], 11), Link(PLACES[0], 22)


def hellos(a: Link, b: Link) -> tuple[Hello, Hello]:
    return a.hello(1, Address(1, 1), PLACES[0]), b.hello(1, Address(2, 1), PLACES[1])


def test_what_is_known_to_have_come_before_it_comes_again_is_let_go() -> None:
    a, b = pair()
    one, two = hellos(a, b)
    a.resume(one, two, 0)
    b.resume(two, one, 0)
    for name in (b"one", b"two", b"three"):
        a.enqueue(name)
    a.next_batch(confirm=False)
    one, two = hellos(a, b)
    b.on_received(3, 11)  # by the first stream, after the hello of the second
    assert a.resume(one, two, 0) == 1
    b.resume(two, one, 0)
    assert b.on_start(1) == 3
    assert b.next_batch(confirm=True) == [encode_numbered(CONFIRM, 3)]
    a.on_confirm(3, 0)
    assert len(a.next_batch(confirm=False)) == 6, "a stream has no holes"
    assert not a.has_unconfirmed


def test_one_that_has_forgotten_starts_anew() -> None:
    a, b = pair()
    a.enqueue(b"one")
    one, two = hellos(a, b)
    assert a.resume(one, two, 0) == 1
    b.resume(two, one, 0)
    a.next_batch(confirm=False)
    b.on_received(1, 3)
    a.on_confirm(1, 0)
    a.enqueue(b"two")
    forgetful = Link(PLACES[0], 33)
    one, two = hellos(a, forgetful)
    assert a.resume(one, two, 0) == 1
    forgetful.resume(two, one, 0)
    assert forgetful.on_start(1) == 0
    assert a.next_batch(confirm=False)[1:] == [b"two"]


def test_what_was_dropped_is_not_taken_for_what_comes_later() -> None:
    a, b = pair()
    a.enqueue(b"one")
    one, two = hellos(a, b)
    a.resume(one, two, 0)
    b.resume(two, one, 0)
    a.next_batch(confirm=False)
    b.on_received(1, 3)
    assert a.drop(44) == 1
    a.enqueue(b"two")
    one, two = hellos(a, b)
    assert a.resume(one, two, 0) == 1
    b.resume(two, one, 0)
    assert b.on_start(1) == 0, "number 1 is another one now"


def test_what_was_never_sent_cannot_have_come() -> None:
    a, b = pair()
    a.enqueue(b"one")
    one, two = hellos(a, b)
    with pytest.raises(RemoteProtocolError, match="confirm"):
        a.resume(one, two._replace(peer_token=11, received=2), 0)
    a.resume(one, two, 0)
    for wrong in (2, 2**63):
        with pytest.raises(RemoteProtocolError, match="confirm"):
            a.on_confirm(wrong, 0)
    assert a.has_unconfirmed


def test_a_hello_is_what_it_was() -> None:
    rng = Random(3)
    for place in (Locator.of("192.0.2.1", 7800), Locator.of("fe80::1%1", 7801)):
        number = partial(rng.getrandbits, 64)
        address = Address(number(), number())
        streams = rng.getrandbits(48)
        hello = Hello(number(), address, number(), number(), number(), streams, place)
        data = hello.encode()
        assert Hello.decode(memoryview(data + b"more")) == (hello, len(data))
        for size in range(len(data)):
            assert Hello.decode(memoryview(data[:size])) is None


def test_a_link_that_is_told_of_the_last_stream_starts_again_and_both_sides_agree() -> None:
    """Otherwise the next hello does not fit its field, or the true peer refuses it."""
    link, peer = Link(PLACES[1], 5), Link(PLACES[0], 6)
    liar = Hello(1, Address(9, 1), 7, 0, 0, MAX_STREAMS, PLACES[1])
    link.resume(link.hello(1, Address(1, 1), PLACES[0]), liar, 0)
    mine = link.hello(1, Address(1, 1), PLACES[0])
    assert Hello.decode(memoryview(mine.encode())) is not None
    theirs = peer.hello(1, Address(2, 1), PLACES[1])
    for side, local, other in ((link, mine, theirs), (peer, theirs, mine)):
        assert stream_number(local, other) > side.streams


def test_a_confirmation_goes_along_once_half_of_a_limit_is_unconfirmed() -> None:
    for count, size_bytes in ((CONFIRM_DATAGRAMS // 2, 10), (1, CONFIRM_BYTES // 2)):
        link = Link(PLACES[1], 11)
        assert not link.on_received(count - 1, 0)
        assert not link.on_received(1, size_bytes - 1)
        if count == 1:
            link.enqueue(b"one")
            assert link.next_batch(confirm=False)[1:] == [b"one"], "it is not worth a record yet"
            link.unconfirmed_bytes += 1
        link.enqueue(b"two")
        assert link.next_batch(confirm=False)[::2] == [encode_numbered(CONFIRM, count), b"two"]
        assert not link.owes_confirmation
        link.enqueue(b"three")
        assert link.next_batch(confirm=True)[1:] == [b"three"], "nothing is left to confirm"


def test_an_owed_confirmation_leaves_alone_when_asked_for() -> None:
    link = Link(PLACES[1], 11)
    link.on_received(1, 1)
    assert link.next_batch(confirm=False) == []
    assert link.next_batch(confirm=True) == [encode_numbered(CONFIRM, 1)]
    assert link.next_batch(confirm=True) == []
