"""What an application holds of one member of one group. Any thread may call it; asyncio and threads build on it.

On sending: ``send`` queues the messages and gives a :class:`SendRequest`, a future of what becomes of
them.

On reception: ``take`` gives the runs, views and events that have come, ``consumed`` says how many
messages the application is done with. With ``unread_limit`` messages handed out and not consumed
the machine hands out no more, its window fills, and the senders wait: nothing is dropped, and no
turn ever waits for the application.

On closing: the member leaves, or after a while just ends; everything that waits is told.
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
from gapless.errors import ClosedError, GaplessError, LocalProtocolError
from gapless.fork_guard import ProcessToken
from gapless.payloads import Payloads
from gapless.runtime.delivery_queue import DeliveryQueue
from gapless.runtime.member_runtime import MemberRuntime, PendingCall
from gapless.runtime.reactor import Reactor
from gapless.runtime.send_requests import SendRequest
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gapless.identity import Address, Roster
    from gapless.protocol.events import Accepted
    from gapless.protocol.member import Member
    from gapless.protocol.ready import Ready
    from gapless.runtime.bundler import BundleMember
    from gapless.runtime.delivery_queue import DeliveryItem
    from gapless.trace.recorder import Recorder
    from gapless.transport.base import Transport

_T = TypeVar("_T")

MAX_UNCONSUMED = 16_384
"""Messages that may wait for the application, if the config sets no limit."""
STOP_TIMEOUT_S = 5.0
"""How long ``close`` waits for the protocol thread to stop, at the very most."""
EXIT_TIMEOUT_S = 1.0
"""How long the end of the process waits for members to leave."""


class MemberHandle:
    """One member of the group called ``group``, over ``transport``; it begins to look for the group at once.

    ``name`` makes it durable, ``join`` are options of ``Member.join``, ``rejoin`` says whether
    an expelled life is followed by another. ``woken`` is called when there is something to take,
    inside a turn: it must be quick, and must not hold the handle if its end is to be noticed: a
    handle that nobody holds any more leaves. ``trace`` writes down everything that happens.
    """

    def __init__(
        self,
        group: str,
        transport: Transport,
        config: Config | None = None,
        *,
        name: str = "",
        node: int | None = None,
        join: Mapping[str, Any] | None = None,
        rejoin: bool = True,
        on_ready: Callable[[], None] | None = None,
        trace: Recorder | None = None,
    ) -> None:
        self.group = group
        self.transport = transport
        self.config = fit_config(config or Config(), transport)
        self._process = ProcessToken.current
        self._small_bytes = min(self.config.max_frame_bytes // 4, self.config.max_message_bytes)
        self._leaving = False
        self._delivery_queue = DeliveryQueue(self.config.unread_limit // 4, on_ready)
        node = SystemRandom().getrandbits(64) if node is None else node
        self._runtime = MemberRuntime(
            group,
            node,
            name,
            transport,
            self.config,
            self._delivery_queue,
            join=join or {},
            rejoin=rejoin,
            trace=trace,
        )
        self._reactor = Reactor.shared()
        self._reactor.add(self._runtime)
        _OPEN.add(self)
        finalize(self, _leave_abandoned, self._runtime, self._reactor).atexit = False

    @property
    def is_closed(self) -> bool:
        """Whether this member has come to its end; what has come until then can still be taken."""
        return self._delivery_queue.ended

    @property
    def error(self) -> GaplessError | None:
        """What ended this member, if it was a failure."""
        return self._runtime.error

    @property
    def event_counts(self) -> dict[str, int]:
        """How often each kind of event has happened."""
        return dict(self._runtime.event_counts)

    @property
    def me(self) -> Address:
        """The address of the present life."""
        return self._runtime.member.me

    @property
    def roster(self) -> Roster | None:
        """The present view, with what its members know of each other."""
        return self._runtime.member.roster

    # Sending

    def submit(
        self,
        payloads: Sequence[bytes],
        *,
        to: Address | None = None,
        mode: DeliveryMode = DeliveryMode.ORDERED,
        wait: bool = True,
        timeout_ns: int | None = None,
        loopback: bool | None = None,
    ) -> SendRequest:
        """Send messages in this order, to the group or to one member; the result says what became of them.

        Before the first view a send waits for one. With ``wait=False`` all messages are taken at
        once or none. What is sent before somebody sees to it leaves together.
        """
        sent = self._enqueue(
            payloads, to, mode, wait=wait, timeout_ns=timeout_ns, loopback=loopback
        )
        self._reactor.wake_up(self._runtime)
        self._reject_late()
        return sent

    def submit_now(self, payloads: Sequence[bytes], **how: Any) -> SendRequest:
        """Send as ``send`` does, but see to it in this thread, at once if possible: for one who waits for it."""
        sent = self._enqueue(payloads, **how)
        try:
            self._reactor.run_now(self._runtime)
        except BaseException:
            self.cancel(sent)  # Ctrl-C: nobody waits for it any more
            raise
        self._reject_late()
        return sent

    def submit_later(self, payloads: Sequence[bytes], **how: Any) -> SendRequest:
        """Send as ``send`` does, with the next turn: ``see_to_it`` takes one for all that has gathered."""
        sent = self._enqueue(payloads, **how)
        self._reject_late()
        return sent

    def flush(self) -> None:
        """Take a turn in this thread, unless another thread is in one, which then sees to what was sent."""
        if not self.is_closed:
            self._reactor.run_now(self._runtime)

    def try_send(
        self,
        payloads: Sequence[bytes],
        *,
        to: Address | None = None,
        mode: DeliveryMode = DeliveryMode.ORDERED,
        loopback: bool | None = None,
    ) -> Accepted | None:
        """Send messages in this thread, if there is room and nobody is in a turn; None if they were not sent.

        What is wrong with them raises here. Nobody is told when they have been delivered.
        """
        payloads = self._checked(payloads)
        return self._reactor.send(self._runtime, payloads, to, mode, loopback)

    def try_bundle(self, payload: bytes, whose: BundleMember) -> bool | None:
        """Send an ordered message to the group with those that it follows at once; None if it is to be sent by itself.

        It has no number until it leaves, and that is soon; it is in order with all else. Returns
        whether this thread has taken a turn for it.
        """
        tray = self._runtime.bundler
        if (
            len(payload) > self._small_bytes
            or not tray.accepts(len(payload))
            or self._runtime.send_requests.is_ready
        ):
            return None
        self._check_open()
        is_time = tray.add(payload, whose)
        if is_time:
            self._reactor.run_now(self._runtime)
            return True
        if is_time is False:
            self._reactor.wake_up(self._runtime)
        return False

    def note_unbundled_send(self) -> None:
        """Take note that a message to the group was sent by itself: the next may follow it at once."""
        self._runtime.bundler.note_unbundled_send()

    def _check_open(self) -> None:
        self._check()
        if self._leaving:
            raise ClosedError(f"this member of {self.group} is leaving: nothing more is sent")

    def _checked(self, payloads: Sequence[bytes]) -> Payloads:
        self._check_open()
        checked = Payloads.of(payloads)
        if checked.longest_bytes > self.config.max_message_bytes:
            raise LocalProtocolError(
                f"a message is longer than max_message_bytes ({self.config.max_message_bytes})"
            )
        return checked

    def _enqueue(
        self,
        payloads: Sequence[bytes],
        to: Address | None = None,
        mode: DeliveryMode = DeliveryMode.ORDERED,
        *,
        wait: bool = True,
        timeout_ns: int | None = None,
        loopback: bool | None = None,
    ) -> SendRequest:
        checked = self._checked(payloads)
        if timeout_ns is not None and timeout_ns < 0:
            raise LocalProtocolError(
                f"a timeout of {timeout_ns} ns is over before it begins: use wait=False"
            )
        deadline_ns = None if timeout_ns is None else time.monotonic_ns() + timeout_ns
        sent = SendRequest(
            checked,
            to,
            DeliveryMode.of(mode),
            wait=wait,
            deadline_ns=deadline_ns,
            loopback=loopback,
        )
        self._runtime.send_requests.put(sent)
        return sent

    def cancel(self, sent: SendRequest) -> None:
        """Give up a send that waits; its result tells whether that was in time."""
        if not sent.cancel():
            self._post(
                lambda now_ns: self._runtime.send_requests.cancel(
                    sent, self._runtime.member, now_ns
                )
            )

    # Receiving

    def take(self) -> list[DeliveryItem]:
        """Return everything that has come since the last time, in order; at once, also if it is nothing."""
        self._check_process()
        return self._delivery_queue.take()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is something to take, or nothing more will come; tell whether there is something."""
        self._check_process()
        outbox, driver = self._delivery_queue, self._reactor
        until_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * NS_PER_S)
        if outbox.is_ready() or driver.poll_until(outbox.is_ready, until_ns):
            return outbox.wait(0)
        driver.add_waiter(outbox.is_ready)
        try:
            return outbox.wait(timeout_s)
        finally:
            driver.remove_waiter(outbox.is_ready)

    def poll_until(self, done: Callable[[], bool], until_ns: int | None = None) -> bool:
        """Drive until ``done`` says that it is enough, or until it is time; return False if another thread does.

        ``done`` is asked after every turn: it must be about something that comes out of this
        handle.
        """
        self._check_process()
        return self._reactor.poll_until(done, until_ns)

    def consumed(self, messages: int) -> None:
        """Say that the application is done with so many of the messages that it has taken."""
        self._check_process()
        if self._delivery_queue.add_consumed(messages) and not self.is_closed:
            self._post(_no_command)

    # Everything else

    def call(self, function: Callable[[Member, int], Ready]) -> Future[None]:
        """Give the machine another input: ``handle.call(lambda member, now_ns: member.expel(other, now_ns))``."""
        future: Future[None] = Future()

        def command(now_ns: int) -> Ready | None:
            ready = self._run_query(future, lambda member: function(member, now_ns))
            if ready is not None:
                future.set_result(None)
            return ready

        self._check()
        self._post(command, future)
        return future

    def query(self, function: Callable[[Member], _T]) -> Future[_T]:
        """Return what ``function`` finds out about the machine, which it must not change."""
        future: Future[_T] = Future()

        def command(_: int) -> None:
            answer = self._run_query(future, function)
            if not future.done():
                future.set_result(answer)  # type: ignore[arg-type]

        self._check()
        self._post(command, future)
        return future

    def _run_query(self, future: Future[Any], function: Callable[[Member], _T]) -> _T | None:
        """Run what the application wants of the machine; whatever goes wrong is its own affair."""
        if future.set_running_or_notify_cancel():
            try:
                return function(self._runtime.member)
            except Exception as error:  # noqa: BLE001 - it goes to whoever asked
                future.set_exception(error)
        return None

    # Closing

    def leave(self) -> None:
        """Begin to leave: when everything sent has arrived, or its time is over, this member ends."""
        self._leaving = True
        if not self.is_closed:
            self._post(self._runtime.leave)

    def stop(self) -> None:
        """End at once, without a word to the group."""
        self._leaving = True
        if not self.is_closed:
            self._post(self._runtime.stop)

    def close(self, timeout_s: float | None = None, *, seal: bool = True) -> None:
        """Leave within ``timeout_s`` (None: within ``leave_timeout``), then end at once whatever still waits.

        What was recorded is sealed, unless ``seal`` says that there is no time for that.
        """
        self._check_process()
        self.leave()
        if self._reactor.in_turn:
            return
        if not self._delivery_queue.wait_for_end(timeout_s):
            self.stop()
            self._delivery_queue.wait_for_end(STOP_TIMEOUT_S)
        self.transport.book.discovery.close()
        if self._runtime.trace is not None:
            self._runtime.trace.close(seal=seal)

    # Commands

    def _post(
        self, command: Callable[[int], Ready | None], future: Future[Any] | None = None
    ) -> None:
        self._check_process()
        self._runtime.calls.append(PendingCall(command, future))
        self._reactor.wake_up(self._runtime)
        self._reject_late()

    def _reject_late(self) -> None:
        if self.is_closed:
            self._runtime.reject_pending()  # it may have ended before it could see this

    def _check(self) -> None:
        self._check_process()
        if self.is_closed:
            raise self._runtime.closed_error()

    def _check_process(self) -> None:
        if self._process is not ProcessToken.current:
            raise ClosedError(
                f"this member of {self.group} belongs to the process that forked: join again in this one"
            )


def fit_config(config: Config, transport: Transport) -> Config:
    """Return ``config`` as it fits the transport: its buffer, and frames and runs as large as its path takes well.

    A smaller frame that somebody has asked for stays, and runs then go in such frames. Work is by
    the frame: of a large buffer no more is advertised than ``max_frames_ahead``, or more would wait in
    it, and with it each question for what was lost, and each answer. Messages that cannot be
    damaged on their way need no checksum. Without a limit of messages that wait for the application
    an application that does not read would fill the memory, so there is one.
    """
    asked_bytes = config.max_frame_bytes
    if (
        asked_bytes == SETTINGS["max_frame_bytes"].default
        or asked_bytes > transport.max_frame_bytes
    ):
        asked_bytes = transport.max_frame_bytes
    buffer_bytes = transport.receive_buffer_bytes
    if config.max_frames_ahead:
        buffer_bytes = max(1024, min(buffer_bytes, config.max_frames_ahead * asked_bytes))
    whole_runs = transport.whole_run_bytes > 0 and asked_bytes == transport.max_frame_bytes
    run_bytes = config.max_run_bytes
    if whole_runs and run_bytes == SETTINGS["max_run_bytes"].default:
        run_bytes = transport.whole_run_bytes
    checksum = config.checksum
    if checksum == "auto":
        checksum = "headers" if transport.preserves_bytes else "all"
    return config.replace(
        checksum=checksum,
        max_frame_bytes=asked_bytes,
        max_run_bytes=run_bytes,
        whole_runs=whole_runs,
        receive_buffer_bytes=buffer_bytes,
        unread_limit=config.unread_limit or MAX_UNCONSUMED,
    )


def _leave_abandoned(seat: MemberRuntime, driver: Reactor) -> None:
    """Let the member leave whose handle nobody holds any more."""
    if not seat.ended:
        seat.calls.append(PendingCall(seat.leave))
        driver.wake_up(seat)


def _no_command(_: int) -> None:
    """Want nothing of the machine but a turn: the first thing that it is told is what was consumed."""


_OPEN: WeakSet[MemberHandle] = WeakSet()


def _close_all() -> None:
    """Let everybody know that this process goes, if there is time."""
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
