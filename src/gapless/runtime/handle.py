"""The handle of one member of one group. Any thread may call a handle; both APIs build on handles.

On sending: ``submit`` queues a ``SendRequest``, whose result is the outcome of the messages.
``send_lone`` is the short way for one message.

On reception: ``take`` returns the runs, views and events that have arrived. ``consumed`` reports
how many messages the application has finished with. With too many unconsumed messages the machine
delivers no more, the window fills, and the senders wait. So no message is dropped, and no turn ever
waits for the application.

On closing: the member leaves; after a timeout the member ends. Every pending call gets an error.
"""

from __future__ import annotations

import atexit
import time
from concurrent.futures import Future
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet, finalize

from gapless.config import SETTINGS, Config
from gapless.delivery_mode import DeliveryMode
from gapless.errors import ClosedError, ConfigError, GaplessError, LocalProtocolError
from gapless.fork_guard import ProcessToken
from gapless.payloads import Payloads
from gapless.runtime.bundler import DUE, Joined
from gapless.runtime.delivery_queue import DeliveryQueue
from gapless.runtime.member_runtime import MemberRuntime, PendingCall
from gapless.runtime.reactor import Reactor
from gapless.runtime.send_requests import SendRequest, When
from gapless.units import NS_PER_S
from gapless.wire.seal import SEAL_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gapless.identity import Address, Roster
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Ready
    from gapless.runtime.bundler import LoneReceipt
    from gapless.runtime.delivery_queue import DeliveryItem, DeliverySink
    from gapless.trace.recorder import Recorder
    from gapless.transport.base import Transport
    from gapless.wire.identities import Credentials, Role

_T = TypeVar("_T")

MAX_UNCONSUMED = 16_384
"""Maximum number of unconsumed messages, if the config sets no limit."""
STOP_TIMEOUT_S = 5.0
"""How long ``close`` waits for the protocol thread to stop, at the very most."""
EXIT_TIMEOUT_S = 1.0
"""How long the end of the process waits for members to leave."""


class MemberHandle:
    """One member of the group ``group``, which starts to join at once.

    Args:
        name: The durable name of a durable member, or "".
        join: Options of ``Member.join``.
        rejoin: Whether an expelled member joins again, as a new incarnation.
        sink: The receiver of deliveries and events, called in a turn; by default a queue for
            ``take``. A sink with a reference to the handle keeps the handle alive; a handle that is
            garbage collected leaves.
        trace: The recorder of the trace, or None.
        keyring: The file with the keys of a sealed group, whose changes are followed.
        credentials: The identity of the member, in a group with identities.
    """

    def __init__(
        self,
        group: str,
        transport: Transport,
        config: Config | None = None,
        *,
        name: str = "",
        display_name: str = "",
        node: int | None = None,
        join: Mapping[str, Any] | None = None,
        rejoin: bool = True,
        sink: DeliverySink | None = None,
        trace: Recorder | None = None,
        keyring: Path | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.group = group
        self.transport = transport
        self.config = fit_config(config or Config(), transport)
        self._process = ProcessToken.current
        self._leaving = False
        # With another sink there is never anything to take here.
        self._queue = sink if isinstance(sink, DeliveryQueue) else DeliveryQueue()
        node = SystemRandom().getrandbits(64) if node is None else node
        if credentials is not None:
            node = credentials.node
        self._runtime = MemberRuntime(
            group,
            node,
            name,
            transport,
            self.config,
            sink or self._queue,
            join=join or {},
            rejoin=rejoin,
            trace=trace,
            display_name=display_name,
            keyring=keyring,
            credentials=credentials,
        )
        self.display_name = display_name or name
        self.add_consumed = self._runtime.add_consumed
        self.bundler = self._runtime.bundler
        self.reactor = Reactor.shared()
        self.reactor.add(self._runtime)
        _OPEN.add(self)
        self._finalizer = finalize(self, _leave_abandoned, self._runtime, self.reactor)
        self._finalizer.atexit = False

    @property
    def is_closed(self) -> bool:
        """Whether this member has ended; items delivered before can still be taken."""
        return self._runtime.closed.is_set()

    @property
    def error(self) -> GaplessError | None:
        """The failure that ended this member; None if it left, or is still open."""
        return self._runtime.error

    @property
    def event_counts(self) -> dict[str, int]:
        """Number of events of each kind."""
        return dict(self._runtime.event_counts)

    @property
    def discovery_problems(self) -> tuple[str, ...]:
        """The present problems of discovery, for people."""
        view = self._runtime.member.view
        return self._runtime.discovery_monitor.problems(0 if view is None else len(view))

    @property
    def me(self) -> Address:
        """The address of the present incarnation."""
        return self._runtime.member.me

    @property
    def role(self) -> Role | None:
        """The role of this member; None in a group without identities."""
        return self._runtime.role

    @property
    def roster(self) -> Roster | None:
        """The present view, with the names and locators of the members."""
        return self._runtime.member.roster

    # Sending

    def submit(self, request: SendRequest, when: When = When.WAKE) -> SendRequest:
        """Queue a request; the result of the request is the outcome of the messages.

        Before the first view a request waits for the view. Requests queued before the next turn
        share frames.
        """
        if self._process is not ProcessToken.current or self._leaving or self._runtime.ended:
            raise self._closed_error()
        if request.payloads.longest_bytes > self.config.max_message_bytes:
            raise self._too_long_error()
        self._runtime.send_requests.put(request)
        if when is When.NOW:
            try:
                self.reactor.run_now(self._runtime)
            except BaseException:
                self.cancel(request)  # Ctrl-C: the caller does not wait for the result
                raise
        elif when is When.WAKE:
            self.reactor.wake_up(self._runtime)
        self._reject_late()
        return request

    def flush(self) -> None:
        """Run a turn in this thread for requests submitted with ``When.LATER``.

        If another thread is in a turn, the other thread handles the requests.
        """
        runtime = self._runtime
        if (runtime.send_requests.has_new or runtime.bundler.items) and not self.is_closed:
            self.reactor.run_now(runtime)

    def send_lone(
        self,
        message: bytes,
        receipt: LoneReceipt,
        to: Address | None = None,
        mode: DeliveryMode = DeliveryMode.ORDERED,
        loopback: bool | None = None,
        *,
        may_run: bool = True,
    ) -> bool:
        """Send one message without a request, the short way from ``Group.send`` to the machine.

        The message has not joined the bundle. It is sent in this thread if ``may_run``, there is
        room, and no other thread is in a turn. Return False if it was not sent: the caller then
        submits a request.
        """
        runtime = self._runtime
        if self._process is not ProcessToken.current or self._leaving or runtime.ended:
            raise self._closed_error()
        bundler = self.bundler
        is_plain = to is None and loopback is None and mode is DeliveryMode.ORDERED
        if is_plain:
            bundler.expects_more = True
        if not may_run:
            return False
        if len(message) > self.config.max_message_bytes:
            raise self._too_long_error()
        accepted = self.reactor.send(runtime, Payloads.of_validated((message,)), to, mode, loopback)
        if accepted is None:
            return False
        if is_plain:
            bundler.note_lone_send()
        receipt._accepted = accepted
        return True

    def flush_bundle(self, joined: Joined) -> bool:
        """Let the bundle leave in time after a message has joined; return whether it has left."""
        if joined is DUE:
            self.reactor.run_now(self._runtime)
            return True
        self.reactor.wake_up(self._runtime)
        return False

    def note_lone_send(self) -> None:
        """Record that a request sent a message to the group: the next may follow closely."""
        self._runtime.bundler.note_lone_send()

    def _closed_error(self) -> GaplessError:
        self._check()
        return ClosedError(f"this member of {self.group} is leaving and sends no more messages")

    def _too_long_error(self) -> LocalProtocolError:
        return LocalProtocolError(
            f"a message is longer than max_message_bytes ({self.config.max_message_bytes})"
        )

    def cancel(self, request: SendRequest) -> None:
        """Cancel a request that waits for room; the result says whether the cancel was in time."""
        if not request.cancel():
            self._post(
                lambda now_ns: self._runtime.send_requests.cancel(
                    request, self._runtime.member, now_ns
                )
            )

    # Receiving

    def take(self) -> list[DeliveryItem]:
        """Return the items that have arrived since the last call, in order, without waiting."""
        self._check_process()
        return self._queue.take()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for an item to take, or for the end; return whether there is an item."""
        self._check_process()
        queue, reactor = self._queue, self.reactor
        until_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * NS_PER_S)
        if queue.is_ready() or reactor.poll_until(queue.is_ready, until_ns):
            return queue.wait(0)
        reactor.add_waiter(queue.is_ready)
        try:
            return queue.wait(timeout_s)
        finally:
            reactor.remove_waiter(queue.is_ready)

    def consumed(self, messages: int) -> None:
        """Count messages as consumed by the application: the machine may deliver as many more.

        The machine learns of many messages at a time.
        """
        self._check_process()
        if self.add_consumed(messages):
            self.report_consumed()

    def report_consumed(self) -> None:
        """Run a turn that reports the number of consumed messages to the machine."""
        if not self.is_closed:
            self._post(_no_command)

    # Everything else

    def call(self, function: Callable[[Member, int], Ready]) -> Future[None]:
        """Give the machine an input: ``call(lambda member, now_ns: member.expel(x, now_ns))``."""
        future: Future[None] = Future()

        def command(now_ns: int) -> Ready | None:
            ready = self._run_query(future, lambda member: function(member, now_ns))
            if ready is not None:
                future.set_result(None)
            return ready

        self._check()
        self._post(command, future)
        return future

    def set_xmit_interval(self, interval_ns: int) -> Future[None]:
        """Set the retransmission interval of this member and of later incarnations; 0: off."""
        runtime = self._runtime

        def command(member: Member, now_ns: int) -> Ready:
            ready = member.set_xmit_interval(interval_ns, now_ns)
            runtime.config = runtime.config.replace(xmit_interval=f"{interval_ns}ns")
            self.transport.book.retransmits = interval_ns > 0
            return ready

        return self.call(command)

    def query(self, function: Callable[[Member], _T]) -> Future[_T]:
        """Return the result of ``function(member)`` in a turn; it must not change the machine."""
        future: Future[_T] = Future()

        def command(_: int) -> None:
            answer = self._run_query(future, function)
            if not future.done():
                future.set_result(answer)  # type: ignore[arg-type]

        self._check()
        self._post(command, future)
        return future

    def _run_query(self, future: Future[Any], function: Callable[[Member], _T]) -> _T | None:
        """Call ``function``; an exception goes to the caller, and does not end the member."""
        if future.set_running_or_notify_cancel():
            try:
                return function(self._runtime.member)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)
        return None

    # Closing

    def leave(self) -> None:
        """Begin to leave: the member ends when all sends are acknowledged, or after a timeout."""
        self._leaving = True
        self.bundler.close()
        if not self.is_closed:
            self._post(self._runtime.leave)

    def stop(self) -> None:
        """End at once, without notifying the group."""
        self._leaving = True
        self.bundler.close()
        if not self.is_closed:
            self._post(self._runtime.stop)

    def close(self, timeout_s: float | None = None, *, seal: bool = True) -> None:
        """Leave within ``timeout_s`` (None: ``leave_timeout``), then end; pending calls fail.

        The recorded trace is sealed, unless ``seal`` is False because the time is too short.
        """
        self._check_process()
        self.leave()
        if self.reactor.in_turn:
            return
        if not self._runtime.closed.wait(timeout_s):
            self.stop()
            self._runtime.closed.wait(STOP_TIMEOUT_S)
        # The finalizer keeps the runtime, and so the sink, which may keep this handle.
        self._finalizer.detach()
        self.transport.book.discovery.close()
        if self._runtime.trace is not None:
            self._runtime.trace.close(seal=seal)

    # Commands

    def _post(
        self, command: Callable[[int], Ready | None], future: Future[Any] | None = None
    ) -> None:
        self._check_process()
        self._runtime.calls.append(PendingCall(command, future))
        self.reactor.wake_up(self._runtime)
        self._reject_late()

    def _reject_late(self) -> None:
        if self.is_closed:
            self._runtime.reject_pending()  # the member ended before it saw this command

    def _check(self) -> None:
        self._check_process()
        if self._runtime.ended:
            raise self._runtime.closed_error()

    def _check_process(self) -> None:
        if self._process is not ProcessToken.current:
            raise ClosedError(
                f"this member of {self.group} belongs to the parent process; join again after a"
                " fork"
            )


def fit_config(config: Config, transport: Transport) -> Config:
    """Return ``config`` adapted to the transport.

    Frames and runs are as large as the path carries well. A frame size set by the user stays, and
    runs are cut into frames of this size. The advertised receive buffer is at most
    ``max_frames_ahead`` frames: the cost of receiving is per frame, and NAKs and repairs wait
    behind the frames in the buffer. Where messages cannot be corrupted in transit they need no
    checksum, and a sealed datagram needs none at all. ``unread_limit`` gets a default: an
    application that does not read would fill the memory.

    Raises:
        ConfigError: The transport does not carry frames of the size set by the user, or does not
            replace the checksums that the user switched off.
    """
    asked_bytes = config.max_frame_bytes
    if not _is_set(config, "max_frame_bytes"):
        asked_bytes = transport.max_frame_bytes
    elif asked_bytes > transport.max_frame_bytes:
        sealed = "" if transport.seal is None else f"; a seal takes {SEAL_OVERHEAD_BYTES} bytes"
        raise ConfigError(
            f"max_frame_bytes = {asked_bytes}: the path from {transport.locator} carries frames of"
            f" at most {transport.max_frame_bytes} bytes; set a smaller size, or omit the setting"
            f" to use the largest{sealed}"
        )
    buffer_bytes = transport.receive_buffer_bytes
    if config.max_frames_ahead:
        buffer_bytes = max(1024, min(buffer_bytes, config.max_frames_ahead * asked_bytes))
    whole_runs = transport.whole_run_bytes > 0 and asked_bytes == transport.max_frame_bytes
    run_bytes = config.max_run_bytes
    if whole_runs and not _is_set(config, "max_run_bytes"):
        run_bytes = transport.whole_run_bytes
    checksum = config.checksum
    if checksum == "none" and transport.seal is None:
        raise ConfigError("checksum = none: only the datagrams of a sealed group need no checksum")
    if checksum == "auto":
        protected = transport.preserves_bytes or transport.certificates is not None
        checksum = "headers" if protected else "all"
        if transport.seal is not None:
            checksum = "none"
    return config.replace(
        checksum=checksum,
        max_frame_bytes=asked_bytes,
        max_run_bytes=run_bytes,
        whole_runs=whole_runs,
        receive_buffer_bytes=buffer_bytes,
        unread_limit=config.unread_limit or MAX_UNCONSUMED,
    )


def _is_set(config: Config, name: str) -> bool:
    """Return whether the user set a setting; a default may be adapted to the transport."""
    return name in config.given or getattr(config, name) != SETTINGS[name].default


def _leave_abandoned(runtime: MemberRuntime, reactor: Reactor) -> None:
    """Make a member leave after its handle was garbage collected."""
    if not runtime.ended:
        runtime.calls.append(PendingCall(runtime.leave))
        reactor.wake_up(runtime)


def _no_command(_: int) -> None:
    """Request a turn: every turn with a command first reports the consumed messages."""


_OPEN: WeakSet[MemberHandle] = WeakSet()


def _close_all() -> None:
    """Leave every group, within ``EXIT_TIMEOUT_S``: the process exits."""
    mine = [
        handle
        for handle in _OPEN
        if handle._process is ProcessToken.current and not handle.is_closed
    ]
    for handle in mine:
        handle.leave()
    until_s = time.monotonic() + EXIT_TIMEOUT_S
    for handle in mine:
        handle.close(max(0.0, until_s - time.monotonic()), seal=False)


atexit.register(_close_all)
