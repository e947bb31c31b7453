"""The streams of a TCP mesh: how streams open, which of two stays, and the actions after an end.

On opening: both sides send a hello; then the connecting side sends START, and the other side
answers with START. From then on the stream is in use, and replaces any other.

If both sides connect at once, the stream opened by the lower locator stays. Streams are numbered,
each higher than the last stream used by either side, to distinguish a late hello from a new hello.

On the end of a stream: if a datagram is unconfirmed, another stream is opened, soon after a stream
in use, otherwise with back-off. Datagrams for an unreachable stranger are dropped.
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
from gapless.fork_guard import ProcessToken
from gapless.protocol.membership.failure_detector import DeathEvidence
from gapless.transport.base import errno_name
from gapless.transport.tcp.link import Link, stream_number
from gapless.transport.tcp.stream import (
    TcpStream,
    configure_socket,
    peer_label,
    use_without_pacing,
)
from gapless.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.locator import Locator
    from gapless.transport.address_book import AddressBook
    from gapless.transport.error_log import ErrorLog
    from gapless.transport.tcp.handshake import Handshake
    from gapless.transport.tcp.link import Hello
    from gapless.transport.tcp.tls import Certificates
    from gapless.wire.cipher import Bytes

HANDSHAKE_TIMEOUT_NS = 3 * NS_PER_S
"""How long a new stream may take until both sides use it."""
DEAD_AFTER_NS = 10 * NS_PER_S
"""How long a stream may go without a confirmation before it is replaced."""
MIN_BACKOFF_NS, MAX_BACKOFF_NS = 50 * NS_PER_MS, 2 * NS_PER_S
"""Limits of the time between two attempts to connect, drawn from the upper half."""
RECONNECT_NS = 20 * NS_PER_MS
"""Maximum time until a used stream is opened again."""
ACCEPT_PAUSE_NS = 200 * NS_PER_MS
"""How long no connection is accepted after the system has run out of a resource."""
POLL_INTERVAL_NS = 5 * NS_PER_MS
"""How often sockets are polled where the system cannot wait for a poller."""
MAX_LINKS = 256
"""Maximum number of links to strangers."""
MAX_DIALS = 64
"""Maximum number of connections being opened to strangers."""
MAX_HANDSHAKES = 64
"""Maximum number of incoming connections without a hello; then the oldest is closed."""
CONFIRM_DELAY_NS = 50 * NS_PER_MS
"""Maximum delay of a confirmation."""
CONFIRM_SOON_NS = NS_PER_MS
"""How long a confirmation that is due waits for datagrams that it can go along with."""
ACCEPTS_PER_TURN = 16
"""Maximum number of connections accepted per turn."""
_MAX_TRIES = 3
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class TcpConnector:
    """The streams of one member, and the timers that open, confirm and close streams."""

    def __init__(
        self,
        listener: socket.socket,
        locator: Locator,
        book: AddressBook[Locator],
        problems: ErrorLog,
        dead_after_ns: int,
        handshake: Handshake,
        seal: Callable[[bytes], Bytes] | None = None,
        *,
        trusts_refusals: bool = True,
        certificates: Certificates | None = None,
    ) -> None:
        self.locator = locator
        self.book = book
        self.problems = problems
        self.streams: set[TcpStream] = set()
        self._listener = listener
        if locator.ip.is_loopback:
            use_without_pacing(listener)  # accepted connections inherit the choice
        self._dead_after_ns = dead_after_ns
        self._handshake = handshake
        self._seal = seal
        self._trusts_refusals = trusts_refusals
        self._certificates = certificates
        self._process = ProcessToken.current
        self._random = Random()
        self.links: dict[Locator, Link] = {}
        self.aliases: dict[Locator, Locator] = {}
        self._handshakes: dict[TcpStream, None] = {}
        self.dials = 0
        self.timers: dict[tuple[Callable[[Any, Any], None], Any], int] = {}
        self.poller = selectors.DefaultSelector()
        self.poller.register(self._listener, selectors.EVENT_READ)
        if not hasattr(self.poller, "fileno"):
            self._schedule_poll(self)
        if certificates is not None:
            self._check_certificates(self)

    # The clock

    @property
    def deadline_ns(self) -> int | None:
        """When the next timer is due."""
        return min(self.timers.values(), default=None)

    def run_due_timers(self, now_ns: int) -> None:
        """Run every due timer."""
        for what in [what for what, at_ns in self.timers.items() if at_ns <= now_ns]:
            if self.timers.pop(what, None) is not None:
                what[0](self, what[1])

    def _schedule_poll(self, _: TcpConnector) -> None:
        self.timers[TcpConnector._schedule_poll, self] = time.monotonic_ns() + POLL_INTERVAL_NS

    def _check_certificates(self, _: TcpConnector) -> None:
        from gapless.transport.tcp.tls import CHECK_NS

        assert self._certificates is not None, "only a mesh with TLS has certificates"
        self._certificates.check()
        due_ns = time.monotonic_ns() + CHECK_NS
        self.timers[TcpConnector._check_certificates, self] = due_ns

    def _check_stalled(self, _: TcpConnector) -> None:
        """Replace streams without progress."""
        now_ns = time.monotonic_ns()
        for link in list(self.links.values()):
            if not link.sent:
                link.progress_ns = now_ns
            elif link.stream is not None and now_ns - link.progress_ns > self._dead_after_ns:
                self.on_stream_lost(
                    link.stream,
                    "stream.silent",
                    "no datagram was confirmed for too long",
                    loud=True,
                )
        if self.streams:
            self.timers[TcpConnector._check_stalled, self] = now_ns + min(
                NS_PER_S, self._dead_after_ns // 2
            )

    # On a new stream

    def accept(self) -> None:
        """Accept connections from other members, a bounded number per turn."""
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self.problems.add(
                    f"accept.{errno_name(error)}", f"cannot accept a connection: {error}"
                )
                if error.errno in _EXHAUSTED:
                    self.poller.unregister(self._listener)
                    self.timers[TcpConnector._resume_accepting, self] = (
                        time.monotonic_ns() + ACCEPT_PAUSE_NS
                    )
                return
            if len(self._handshakes) >= MAX_HANDSHAKES:
                self.on_stream_lost(
                    next(iter(self._handshakes)),
                    "accept.crowded",
                    "too many incoming connections without a hello",
                    loud=True,
                )
            if (stream := self._register_stream(sock, None, dialled=False)) is not None:
                self._handshakes[stream] = None

    def _resume_accepting(self, _: TcpConnector) -> None:
        self.poller.register(self._listener, selectors.EVENT_READ)

    def _dial(self, link: Link) -> None:
        """Open a stream to the peer of ``link``."""
        self.timers.pop((TcpConnector._dial, link), None)
        if link.is_busy:
            return
        try:
            sock = socket.socket(link.locator.family, socket.SOCK_STREAM)
        except OSError as error:
            self._on_connect_failed(link, f"connect.{errno_name(error)}", error)
            return
        if link.locator.ip.is_loopback:
            use_without_pacing(sock)
        stream = link.outgoing = self._register_stream(sock, link, dialled=True)
        if stream is None:
            self._on_connect_failed(
                link, "connect.options", "the system does not give the socket what it needs"
            )
            return
        self.dials += 1
        code = sock.connect_ex(link.locator.sockaddr)
        if code not in {0, errno.EINPROGRESS, errno.EWOULDBLOCK}:
            self.on_stream_lost(
                stream, f"connect.{errno.errorcode.get(code, 'unknown')}", os.strerror(code)
            )

    def _register_stream(
        self, sock: socket.socket, link: Link | None, *, dialled: bool
    ) -> TcpStream | None:
        """Configure a socket and add a stream; None if the socket cannot be configured."""
        try:
            configure_socket(sock, self._dead_after_ns // NS_PER_MS)
        except OSError as error:
            sock.close()
            self.problems.add(
                f"stream.{errno_name(error)}", f"cannot configure a connection: {error}"
            )
            return None
        stream = self._new_stream(sock, link, dialled=dialled)
        self.streams.add(stream)
        stream.events = selectors.EVENT_WRITE if dialled else selectors.EVENT_READ
        self.poller.register(sock, stream.events, stream)
        now_ns = time.monotonic_ns()
        self.timers[TcpConnector.on_handshake_timeout, stream] = now_ns + HANDSHAKE_TIMEOUT_NS
        self.timers.setdefault(
            (TcpConnector._check_stalled, self), now_ns + min(NS_PER_S, self._dead_after_ns // 2)
        )
        return stream

    def _new_stream(self, sock: socket.socket, link: Link | None, *, dialled: bool) -> TcpStream:
        if self._certificates is None:
            return TcpStream(sock, link, dialled=dialled)
        from gapless.transport.tcp.tls_stream import TlsStream  # few members use TLS

        session = self._certificates.new_session(dialled=dialled)
        return TlsStream(sock, link, session, dialled=dialled)

    def on_handshake_timeout(self, stream: TcpStream) -> None:
        """Close a stream whose handshake took too long."""
        self.on_stream_lost(
            stream,
            "connect.timeout" if stream.dialled else "accept.timeout",
            "the handshake took too long",
        )

    def on_writable(self, stream: TcpStream) -> None:
        """Start the handshake of an established connection, or continue to write."""
        if stream.dialled and not stream.is_connected:
            code = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.on_stream_lost(
                    stream, f"connect.{errno.errorcode.get(code, 'unknown')}", os.strerror(code)
                )
                return
            stream.is_connected = True
            if self._handshake.has_greetings:
                self._handshake.write_greeting(stream, self.book.group, self.book.address)
            else:
                self._send_hello(stream)
        stream.wants_write = False
        self.flush(stream, confirm=True)

    def _send_hello(self, stream: TcpStream) -> None:
        assert stream.link is not None
        hello = stream.link.hello(self.book.group, self.book.address, self.locator)
        self._handshake.write_hello(stream, hello)

    def on_front(self, stream: TcpStream, data: memoryview) -> int:
        """Handle the greeting, the challenge or the hello of the peer.

        Return the length, or 0 while incomplete.
        """
        if stream.challenge or not self._handshake.has_greetings:
            return self._on_hello(stream, data)
        if not stream.dialled:
            size = self._handshake.read_greeting(stream, data, self.book.group)
        elif size := self._handshake.read_challenge(stream, data):
            self._send_hello(stream)
        if size:
            self.flush(stream)
        return size

    def _on_hello(self, stream: TcpStream, data: memoryview) -> int:
        peer = self._handshake.read_hello(stream, data)
        if peer is None:
            return 0
        hello, size = peer
        if hello.group != self.book.group:
            raise RemoteProtocolError("group", "a member of another group connected")
        stream.peer_hello = hello
        if stream.dialled:
            self._on_hello_reply(stream, hello)
        else:
            self._on_incoming_hello(stream, hello)
        return size

    def _on_incoming_hello(self, stream: TcpStream, hello: Hello) -> None:
        """Answer the hello of a connecting peer, unless our own stream wins."""
        if hello.locator == self.locator:
            self._redirect_own_links(hello.token)
            self.on_stream_lost(
                stream, "stream.self", f"this member connected to its own locator {self.locator}"
            )
            return
        if hello.locator.family != self._listener.family:
            raise RemoteProtocolError("locator", f"{hello.locator} cannot be reached from here")
        link = self.get_link(hello.locator)
        ours_wins = (
            link.outgoing is not None
            and link.outgoing.local_hello is not None
            and self.locator < link.locator
        )
        if ours_wins:
            self._close(stream)
            return
        if link.outgoing is not None and link.outgoing.local_hello is None:
            self._close(link.outgoing)
        if link.incoming is not None:
            self._close(link.incoming)
        link.incoming, stream.link = stream, link
        self._send_hello(stream)
        self.flush(stream)

    def _on_hello_reply(self, stream: TcpStream, hello: Hello) -> None:
        """Use a stream opened by this side, unless the peer has another locator."""
        link = stream.link
        assert link is not None
        # The system may connect a socket to itself on a free port.
        if hello.token == link.token:
            self.on_stream_lost(
                stream, "connect.self", f"{link.locator} is a locator of this member"
            )
        elif hello.locator == link.locator:
            self.activate(stream)
        else:
            self._move_link(link, hello.locator)

    def activate(self, stream: TcpStream) -> None:
        """Use ``stream`` from now on, and close every other stream of the link."""
        link, local, peer = stream.link, stream.local_hello, stream.peer_hello
        assert link is not None
        assert local is not None
        assert peer is not None
        if stream_number(local, peer) <= link.streams:
            self._close(stream)  # a newer stream is in use
            self.ensure_stream(link)
            return
        for other in (link.stream, link.outgoing, link.incoming):
            if other is not None and other is not stream:
                self._close(other)
        self._handshakes.pop(stream, None)
        if link.outgoing is stream:
            self.dials -= 1
        link.stream, link.outgoing, link.incoming = stream, None, None
        written, last = len(link.sent), link.confirmed + len(link.sent)
        try:
            number = link.resume(local, peer, time.monotonic_ns())
        except RemoteProtocolError:
            # The two sides disagree about the numbers: start again with new ones.
            self.problems.counters["send.disputed"] += link.drop(self._token())
            raise
        self._handshake.write_start(stream, number)
        again = min(written, last - link.confirmed)
        if again:
            self.problems.counters["sent.again"] += again
        if again < written:
            link.failures = 0  # the last stream delivered at least one datagram
        self.book.learn_source(peer.address, link.locator)
        self.flush(stream)

    # Links

    def get_link(self, target: Locator) -> Link:
        """Return the link to ``target``, created on first use."""
        link = self.links.get(target)
        if link is None:
            self._evict_strangers()
            link = self.links[target] = Link(target, self._token(), self._seal)
        return link

    def _token(self) -> int:
        return self._random.getrandbits(64) or 1

    def _evict_strangers(self) -> None:
        """Make room for one more stranger: links without a stream go first, then the oldest."""
        others = self.book.peers
        if len(self.links) >= MAX_LINKS + len(others):
            strangers = [link for link in self.links.values() if link.locator not in others]
            strangers.sort(key=lambda link: link.is_busy)
            for link in strangers[: 1 + MAX_LINKS // 8]:
                self.problems.counters["link.forgotten"] += 1
                self._remove(link)

    def _remove(self, link: Link) -> None:
        """Close the streams of a link and forget the link."""
        for stream in (link.stream, link.outgoing, link.incoming):
            if stream is not None:
                self._close(stream)
        self.links.pop(link.locator, None)
        for what in (TcpConnector._dial, TcpConnector.confirm):
            self.timers.pop((what, link), None)

    def _move_link(self, link: Link, target: Locator) -> None:
        """Move a link to ``target``, the locator in the hello of the peer."""
        if len(self.aliases) >= MAX_LINKS:
            self.aliases.clear()
        self.aliases[link.locator] = target
        unsent = [*link.sent, *link.waiting]
        self._remove(link)
        if target != self.locator:
            other = self.get_link(target)
            for datagram in unsent:
                other.enqueue(datagram)
            self.ensure_stream(other)
            if other.stream is not None:
                self.flush(other.stream)

    def _redirect_own_links(self, token: int) -> None:
        """Remove links that lead to this member."""
        for link in [link for link in self.links.values() if link.token == token]:
            self._move_link(link, self.locator)

    # Writing

    def confirm_later(self, link: Link) -> None:
        """Schedule a confirmation, unless already scheduled."""
        timer = TcpConnector.confirm, link
        if timer not in self.timers:
            self.timers[timer] = time.monotonic_ns() + CONFIRM_DELAY_NS

    def confirm_soon(self, link: Link) -> None:
        """Schedule a confirmation that is due: answers to the datagrams often leave first."""
        timer, due_ns = (TcpConnector.confirm, link), time.monotonic_ns() + CONFIRM_SOON_NS
        self.timers[timer] = min(self.timers.get(timer, due_ns), due_ns)

    def confirm(self, link: Link) -> None:
        """Send the due confirmation."""
        self.timers.pop((TcpConnector.confirm, link), None)
        if link.stream is not None:
            self.flush(link.stream, confirm=True)

    def ensure_stream(self, link: Link) -> None:
        """Open a stream for unconfirmed datagrams, now or after the back-off."""
        if link.has_unconfirmed and not link.is_busy and self.links.get(link.locator) is link:
            if time.monotonic_ns() >= link.retry_at_ns:
                self._dial(link)
            else:
                self.timers[TcpConnector._dial, link] = link.retry_at_ns

    def flush(self, stream: TcpStream, *, confirm: bool = False) -> None:
        """Write as much as the kernel accepts."""
        link = stream.link
        if stream.broken or (stream.wants_write and (stream.write_buffer or stream.unsent)):
            return
        try:
            while True:
                if not stream.write_buffer and link is not None and link.stream is stream:
                    stream.write_buffer = link.next_batch(confirm=confirm)
                if not (stream.write_buffer or stream.unsent):
                    break
                stream.write()
        except BlockingIOError:
            waits_for_kernel = bool(stream.unsent) or not stream.awaits_peer
            self._set_poll_events(stream, wants_write=waits_for_kernel)
            return
        except OSError:
            # Bytes that arrived before still count: the end of the stream is read after them.
            stream.broken = True
        if link is not None and link.confirm_sent == link.received:
            self.timers.pop((TcpConnector.confirm, link), None)
        self._set_poll_events(stream, wants_write=False)

    def _set_poll_events(self, stream: TcpStream, *, wants_write: bool) -> None:
        """Wait for writability as well as readability, or for readability alone."""
        stream.wants_write = wants_write
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_write else 0)
        if stream.events != events:
            stream.events = events
            self.poller.modify(stream.socket, events, stream)

    # On the end of a stream

    def on_stream_lost(
        self, stream: TcpStream, reason: str, detail: object, *, loud: bool = False
    ) -> None:
        """Count why a stream has ended, and open another if a datagram is unconfirmed."""
        link = stream.link
        text = f"{peer_label(stream.socket, link.locator if link else None)}: {detail}"
        dialled, started = stream.dialled, stream.started
        used = link is not None and link.stream is stream
        self._close(stream)
        if link is not None and used and started:
            self.book.note_evidence(link.locator, DeathEvidence.CLOSED)
        if link is None or not (dialled or used):
            self._count(reason, text, loud=loud)
            if link is not None:
                self.ensure_stream(link)
        elif started:
            self._count(reason, text, loud=loud)
            link.retry_at_ns = time.monotonic_ns() + self._random.randrange(RECONNECT_NS)
            self.ensure_stream(link)
        else:
            self._on_connect_failed(link, reason, text)

    def _count(self, reason: str, detail: object, *, loud: bool) -> None:
        """Count a reason; with ``loud`` also log the reason."""
        if loud:
            self.problems.add(reason, detail)
        else:
            self.problems.counters[reason] += 1

    def _on_connect_failed(self, link: Link, reason: str, detail: object) -> None:
        """Try again with back-off; drop the datagrams for an unreachable stranger."""
        member = link.locator in self.book.peers
        is_refused = reason.startswith("tls.")
        self._count(reason, detail, loud=is_refused or (member and link.failures > 0))
        if reason == "connect.ECONNREFUSED":
            self.book.note_refused(link.locator, trusted=self._trusts_refusals)
        if link.is_busy:
            return
        pause_ns = min(MIN_BACKOFF_NS << min(link.failures, 16), MAX_BACKOFF_NS)
        link.failures += 1
        link.retry_at_ns = (
            time.monotonic_ns() + pause_ns // 2 + self._random.randrange(pause_ns // 2)
        )
        if member or (link.failures <= _MAX_TRIES and not reason.startswith("connect.")):
            self.ensure_stream(link)  # a member, or a stranger that accepted a connection before
            return
        self.problems.counters["send.unreachable"] += link.drop(self._token())
        self.aliases = {
            name: target for name, target in self.aliases.items() if target != link.locator
        }

    def _close(self, stream: TcpStream) -> None:
        """Close a stream, and cancel the timers of the stream."""
        if stream.closed:
            return
        stream.closed = True
        self.poller.unregister(stream.socket)
        stream.socket.close()
        self.streams.discard(stream)
        self._handshakes.pop(stream, None)
        self.timers.pop((TcpConnector.on_handshake_timeout, stream), None)
        link = stream.link
        if link is None:
            return
        if link.outgoing is stream:
            link.outgoing = None
            self.dials -= 1
        if link.stream is stream:
            link.stream = None
            self.timers.pop((TcpConnector.confirm, link), None)
        if link.incoming is stream:
            link.incoming = None

    def close(self) -> None:
        """Close every socket; bytes accepted at once by the kernel are still sent."""
        # First, and as a whole: after a fork its streams are the parent's.
        self.poller.close()
        if self._process is ProcessToken.current:
            for link in self.links.values():
                if link.stream is not None and not link.stream.closed:
                    self._flush_before_close(link, link.stream)
        for stream in self.streams:
            stream.closed = True
            stream.socket.close()
        self._listener.close()
        self.timers.clear()

    def _flush_before_close(self, link: Link, stream: TcpStream) -> None:
        try:
            while stream.write_buffer or stream.unsent or link.waiting or link.owes_confirmation:
                stream.write_buffer = stream.write_buffer or link.next_batch(confirm=True)
                stream.write()
        except OSError:
            return
