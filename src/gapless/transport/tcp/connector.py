"""The streams of a TCP mesh: how they are opened, which of two stays, and what comes of one that ends.

On opening: both sides say hello, then the side that has connected says START, and the other does
too. From then on the stream is the one in use, in place of any other.

If both connect at once the stream that the lower locator has opened stays. Streams are numbered,
each one higher than the last that either side has used, so that a hello which was under way for
long is told from one that is new.

On the end of a stream: if something has still to arrive another one is opened, soon if it had been
in use, else after a pause that grows. What is for a stranger that cannot be reached is dropped.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from random import Random
from typing import TYPE_CHECKING, Any

from gapless.errors import RemoteProtocolError
from gapless.runtime.fork_guard import Here
from gapless.transport.base import Problems
from gapless.transport.tcp.link import Hello, Link, number_of
from gapless.transport.tcp.stream import Stream, prepare, who
from gapless.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.locator import Locator
    from gapless.transport.base import Book

HELLO_NS = 3 * NS_PER_S
"""The time that a new stream has until both sides use it."""
DEAD_NS = 10 * NS_PER_S
"""A stream on which nothing is confirmed for so long is given up."""
FIRST_PAUSE_NS, LONGEST_PAUSE_NS = 50 * NS_PER_MS, 2 * NS_PER_S
"""Pauses between two tries to connect; each is drawn from its upper half."""
SOON_NS = 20 * NS_PER_MS
"""A stream that was in use is opened again within this time."""
ACCEPT_PAUSE_NS = 200 * NS_PER_MS
"""How long nobody is let in after the system has run out of something."""
LOOK_NS = 5 * NS_PER_MS
"""How often sockets are looked at where the system cannot wait for a poller."""
MOST_LINKS = 256
"""Places of others than members that a stream is kept for."""
MOST_DIALS = 64
"""Connections to others than members that are being opened."""
MOST_GREETINGS = 64
"""Connections that others are opening; one more, and the oldest has taken too long."""
ACCEPTS_A_TURN = 16
_TRIES = 3
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Streams:
    """The streams of one member, to each place that there is something to send to."""

    locator: Locator
    book: Book[Locator]

    def __init__(self, listener: socket.socket, dead_after_ns: int) -> None:
        self.problems = Problems()
        self.streams: set[Stream] = set()
        self._listener = listener
        self._dead_after_ns = dead_after_ns
        self._process = Here.now
        self._random = Random()
        self._links: dict[Locator, Link] = {}
        self._names: dict[Locator, Locator] = {}
        self._greetings: dict[Stream, None] = {}
        self._dials = 0
        self._due: dict[tuple[Callable[[Any, Any], None], Any], int] = {}
        self._poller = selectors.DefaultSelector()
        self._poller.register(self._listener, selectors.EVENT_READ)
        if not hasattr(self._poller, "fileno"):
            self._look(self)

    # The clock

    @property
    def deadline_ns(self) -> int | None:
        """When a stream is to be opened, a confirmation to be sent, or somebody has taken too long."""
        return min(self._due.values(), default=None)

    def _fire(self, now_ns: int) -> None:
        for what in [what for what, at_ns in self._due.items() if at_ns <= now_ns]:
            if self._due.pop(what, None) is not None:
                what[0](self, what[1])

    def _look(self, _: Streams) -> None:
        self._due[Streams._look, self] = time.monotonic_ns() + LOOK_NS

    def _inspect(self, _: Streams) -> None:
        """Give up streams on which nothing moves."""
        now_ns = time.monotonic_ns()
        for link in list(self._links.values()):
            if not link.sent:
                link.moved_ns = now_ns
            elif link.stream is not None and now_ns - link.moved_ns > self._dead_after_ns:
                self._lost(
                    link.stream, "stream.silent", "nothing was confirmed for too long", loud=True
                )
        if self.streams:
            self._due[Streams._inspect, self] = now_ns + min(NS_PER_S, self._dead_after_ns // 2)

    # On a new stream

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                one, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self.problems.add(f"accept.{name_of(error)}", error)
                if error.errno in _EXHAUSTED:
                    self._poller.unregister(self._listener)
                    self._due[Streams._let_in, self] = time.monotonic_ns() + ACCEPT_PAUSE_NS
                return
            if len(self._greetings) >= MOST_GREETINGS:
                self._lost(
                    next(iter(self._greetings)),
                    "accept.crowded",
                    "too many are at the door",
                    loud=True,
                )
            if (stream := self._opened(one, None, dialled=False)) is not None:
                self._greetings[stream] = None

    def _let_in(self, _: Streams) -> None:
        self._poller.register(self._listener, selectors.EVENT_READ)

    def _dial(self, link: Link) -> None:
        self._due.pop((Streams._dial, link), None)
        if link.is_busy:
            return
        try:
            one = socket.socket(link.place.family, socket.SOCK_STREAM)
        except OSError as error:
            self._failed(link, f"connect.{name_of(error)}", error)
            return
        stream = link.dial = self._opened(one, link, dialled=True)
        if stream is None:
            self._failed(
                link, "connect.options", "the system does not give the socket what it needs"
            )
            return
        self._dials += 1
        code = one.connect_ex(link.place.sockaddr)
        if code not in {0, errno.EINPROGRESS, errno.EWOULDBLOCK}:
            self._lost(stream, f"connect.{errno.errorcode.get(code, 'unknown')}", os.strerror(code))

    def _opened(self, one: socket.socket, link: Link | None, *, dialled: bool) -> Stream | None:
        try:
            prepare(one, self._dead_after_ns // NS_PER_MS)
        except OSError as error:
            one.close()
            self.problems.add(f"stream.{name_of(error)}", error)
            return None
        stream = Stream(one, link, dialled=dialled)
        self.streams.add(stream)
        stream.events = selectors.EVENT_WRITE if dialled else selectors.EVENT_READ
        self._poller.register(one, stream.events, stream)
        now_ns = time.monotonic_ns()
        self._due[Streams._expire, stream] = now_ns + HELLO_NS
        self._due.setdefault(
            (Streams._inspect, self), now_ns + min(NS_PER_S, self._dead_after_ns // 2)
        )
        return stream

    def _expire(self, stream: Stream) -> None:
        self._lost(
            stream, "connect.timeout" if stream.dialled else "accept.timeout", "it took too long"
        )

    def _writable(self, stream: Stream) -> None:
        if stream.dialled and stream.said is None:
            code = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._lost(
                    stream, f"connect.{errno.errorcode.get(code, 'unknown')}", os.strerror(code)
                )
                return
            self._say_hello(stream)
        stream.writes = False
        self._flush(stream, confirm=True)

    def _say_hello(self, stream: Stream) -> None:
        assert stream.link is not None
        stream.said = stream.link.hello(self.book.group, self.book.address, self.locator)
        stream.out.append(stream.said.encode())

    def _hear(self, stream: Stream, data: memoryview) -> int:
        """Take the hello, if all of it is there; return its length."""
        heard = Hello.decode(data)
        if heard is None:
            return 0
        hello, size = heard
        if hello.group != self.book.group:
            raise RemoteProtocolError("group", "somebody of another group spoke to this one")
        stream.heard = hello
        if stream.dialled:
            self._answered(stream, hello)
        else:
            self._greeted(stream, hello)
        return size

    def _greeted(self, stream: Stream, hello: Hello) -> None:
        """Answer one who has connected, unless another stream is the one to be used."""
        if hello.locator == self.locator:
            self._myself(hello.token)
            self._lost(stream, "stream.self", f"somebody at {self.locator} speaks to itself")
            return
        if hello.locator.family != self._listener.family:
            raise RemoteProtocolError("locator", f"{hello.locator} is out of reach")
        link = self._link(hello.locator)
        mine = link.dial is not None and link.dial.said is not None and self.locator < link.place
        if mine:
            self._close(stream)
            return
        if link.dial is not None and link.dial.said is None:
            self._close(link.dial)
        if link.incoming is not None:
            self._close(link.incoming)
        link.incoming, stream.link = stream, link
        self._say_hello(stream)
        self._flush(stream)

    def _answered(self, stream: Stream, hello: Hello) -> None:
        """Use a stream that this side has opened, unless it leads elsewhere."""
        link = stream.link
        assert link is not None
        if (
            hello.token == link.token
        ):  # the system has connected the socket with itself, as it may on a free port
            self._lost(stream, "connect.self", f"nobody else is at {link.place}")
        elif hello.locator == link.place:
            self._commit(stream)
        else:
            self._rename(link, hello.locator)

    def _commit(self, stream: Stream) -> None:
        """Use a stream from now on, in place of every other."""
        link, said, heard = stream.link, stream.said, stream.heard
        assert link is not None
        assert said is not None
        assert heard is not None
        if number_of(said, heard) <= link.streams:
            self._close(stream)  # another one was faster
            self._want(link)
            return
        for other in (link.stream, link.dial, link.incoming):
            if other is not None and other is not stream:
                self._close(other)
        self._greetings.pop(stream, None)
        if link.dial is stream:
            self._dials -= 1
        link.stream, link.dial, link.incoming = stream, None, None
        written, last = len(link.sent), link.confirmed + len(link.sent)
        try:
            stream.out.append(link.resume(said, heard, time.monotonic_ns()))
        except RemoteProtocolError:
            self.problems.counters["send.disputed"] += link.drop(
                self._token()
            )  # the two cannot agree any more
            raise
        again = min(written, last - link.confirmed)
        if again:
            self.problems.counters["sent.again"] += again
        if again < written:
            link.failures = 0  # the last stream was good for something
        self.book.see(heard.address, link.place)
        self._flush(stream)

    # Places

    def _link(self, place: Locator) -> Link:
        link = self._links.get(place)
        if link is None:
            self._forget()
            link = self._links[place] = Link(place, self._token())
        return link

    def _token(self) -> int:
        return self._random.getrandbits(64) or 1

    def _forget(self) -> None:
        """Make room for one more stranger: those without a stream go first, then the oldest."""
        others = self.book.others
        if len(self._links) >= MOST_LINKS + len(others):
            strangers = [link for link in self._links.values() if link.place not in others]
            strangers.sort(key=lambda link: link.is_busy)
            for link in strangers[: 1 + MOST_LINKS // 8]:
                self.problems.counters["link.forgotten"] += 1
                self._remove(link)

    def _remove(self, link: Link) -> None:
        for stream in (link.stream, link.dial, link.incoming):
            if stream is not None:
                self._close(stream)
        self._links.pop(link.place, None)
        for what in (Streams._dial, Streams._confirm):
            self._due.pop((what, link), None)

    def _rename(self, link: Link, place: Locator) -> None:
        """What was thought to be at one place calls itself another: all for it goes there."""
        if len(self._names) >= MOST_LINKS:
            self._names.clear()
        self._names[link.place] = place
        kept = [*link.sent, *link.waiting]
        self._remove(link)
        if place != self.locator:
            other = self._link(place)
            for datagram in kept:
                other.put(datagram)
            self._want(other)
            if other.stream is not None:
                self._flush(other.stream)

    def _myself(self, token: int) -> None:
        for link in [link for link in self._links.values() if link.token == token]:
            self._rename(link, self.locator)

    # Writing

    def _confirm(self, link: Link) -> None:
        self._due.pop((Streams._confirm, link), None)
        if link.stream is not None:
            self._flush(link.stream, confirm=True)

    def _want(self, link: Link) -> None:
        """Open a stream for what waits, now or when it may be tried again."""
        if link.has_something and not link.is_busy and self._links.get(link.place) is link:
            if time.monotonic_ns() >= link.not_before_ns:
                self._dial(link)
            else:
                self._due[Streams._dial, link] = link.not_before_ns

    def _flush(self, stream: Stream, *, confirm: bool = False) -> None:
        """Write what there is, as far as the kernel takes it."""
        link = stream.link
        if stream.broken or (stream.writes and stream.out):
            return
        try:
            while True:
                if not stream.out and link is not None and link.stream is stream:
                    stream.out = link.batch(confirm=confirm)
                if not stream.out:
                    break
                stream.write()
        except BlockingIOError:
            self._watch(stream, writes=True)
            return
        except OSError:
            stream.broken = True  # what has come by it still counts; its end is read after that
        if link is not None and link.told == link.received:
            self._due.pop((Streams._confirm, link), None)
        self._watch(stream, writes=False)

    def _watch(self, stream: Stream, *, writes: bool) -> None:
        stream.writes = writes
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
        if stream.events != events:
            stream.events = events
            self._poller.modify(stream.socket, events, stream)

    # On the end of a stream

    def _lost(self, stream: Stream, reason: str, detail: object, *, loud: bool = False) -> None:
        """Count why a stream has ended, and open another if something is left to send."""
        link = stream.link
        told = f"{who(stream.socket, link.place if link else None)}: {detail}"
        dialled, started = stream.dialled, stream.started
        used = link is not None and link.stream is stream
        self._close(stream)
        if link is None or not (dialled or used):
            self._count(reason, told, loud=loud)
            if link is not None:
                self._want(link)
        elif started:
            self._count(reason, told, loud=loud)
            link.not_before_ns = time.monotonic_ns() + self._random.randrange(SOON_NS)
            self._want(link)
        else:
            self._failed(link, reason, told)

    def _count(self, reason: str, detail: object, *, loud: bool) -> None:
        if loud:
            self.problems.add(reason, detail)
        else:
            self.problems.counters[reason] += 1

    def _failed(self, link: Link, reason: str, detail: object) -> None:
        """Try again after a pause; what is for a stranger is not worth it."""
        member = link.place in self.book.others
        self._count(reason, detail, loud=member and link.failures > 0)
        if link.is_busy:
            return
        pause_ns = min(FIRST_PAUSE_NS << min(link.failures, 16), LONGEST_PAUSE_NS)
        link.failures += 1
        link.not_before_ns = (
            time.monotonic_ns() + pause_ns // 2 + self._random.randrange(pause_ns // 2)
        )
        if member or (link.failures <= _TRIES and not reason.startswith("connect.")):
            self._want(link)  # somebody is there
            return
        self.problems.counters["send.unreachable"] += link.drop(self._token())
        self._names = {name: place for name, place in self._names.items() if place != link.place}

    def _close(self, stream: Stream) -> None:
        """Let go of a stream, and of everything that waits for it."""
        if stream.closed:
            return
        stream.closed = True
        self._poller.unregister(stream.socket)
        stream.socket.close()
        self.streams.discard(stream)
        self._greetings.pop(stream, None)
        self._due.pop((Streams._expire, stream), None)
        link = stream.link
        if link is None:
            return
        if link.dial is stream:
            link.dial = None
            self._dials -= 1
        if link.stream is stream:
            link.stream = None
            self._due.pop((Streams._confirm, link), None)
        if link.incoming is stream:
            link.incoming = None

    def close(self) -> None:
        """Close every socket; what the kernel still takes at once is sent."""
        self._poller.close()  # first, and as a whole: after a fork the streams in it are the parent's
        if self._process is Here.now:
            for link in self._links.values():
                if link.stream is not None and not link.stream.closed:
                    self._say_last(link, link.stream)
        for stream in self.streams:
            stream.closed = True
            stream.socket.close()
        self._listener.close()
        self._due.clear()

    def _say_last(self, link: Link, stream: Stream) -> None:
        try:
            while stream.out or link.waiting:
                stream.out = stream.out or link.batch(confirm=True)
                stream.write()
        except OSError:
            return


def name_of(error: OSError) -> str:
    """Return the short name of an error, fit for a counter."""
    return errno.errorcode.get(error.errno or 0, "unknown")
