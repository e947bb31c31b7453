"""The driver: it runs the machines of all groups of a process, in one thread at a time.

    sockets ── datagrams ──▶ machine ──▶ Ready ──▶ pump ──▶ transport, application

Every turn: commands of the application, datagrams, and the clock go into the machine, and ``process_ready``
works through the answers. Nothing here blocks but the wait for the next input; an application that
does not read blocks nobody.

Who leads: one thread at a time waits at the sockets and works through what comes. A thread of the
application that waits for something leads by itself until it has that, so nothing changes hands on
the way to it. While none does, the protocol thread leads. It stands back when everybody who waited
has been served, for they may come again soon, and leads again if nobody has for ``POLL_HANDOVER_S``,
or at once if another still waits for something, unless the one that led comes back soon, by all
experience.

On sending: a thread that waits for the answer anyway takes its turn at once, if nobody is in one;
whoever is looks again when it is done.

A machine that fails ends its own group, with the error told to its application, and no other.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from gapless.errors import LocalProtocolError
from gapless.fork_guard import mark_forked
from gapless.runtime.member_runtime import NEVER_NS
from gapless.runtime.signal_guard import SignalGuard, in_main_thread
from gapless.transport.base import WakeSocket
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from gapless.delivery_mode import DeliveryMode
    from gapless.identity import Address
    from gapless.payloads import Payloads
    from gapless.protocol.events import Accepted
    from gapless.protocol.ready import Ready, Transmit
    from gapless.runtime.member_runtime import MemberRuntime

POLL_HANDOVER_S = 0.002
"""So long nobody waits at the sockets when a thread of the application has what it wanted, and does not come back."""
CAN_POLL_IN_CALLER = os.name == "posix"
"""Whether a thread that waits at the sockets can be interrupted by Ctrl-C."""

_REPOLL_NS = 500_000
"""A thread that led twice, with no more than this in between, will do so again: nobody is woken to lead meanwhile."""
_TURN_TIMEOUT_S = 0.05
"""So long a thread waits for the end of another's turn before it leaves what it wants to whoever leads."""
_AWAKE_NS = -1
_MAX_PENDING_ROUNDS = 2
"""So many times a thread looks again for what others want before it leaves that to whoever leads."""


def process_ready(readies: Iterable[Ready], seat: MemberRuntime) -> None:
    """Work through answers of a machine in their order.

    Places first, since datagrams go there; then all datagrams in one go; then what is for the
    application. What is recorded is written before either.
    """
    transmits: list[Transmit] = []
    for ready in readies:
        if ready.events:
            seat.transport.book.on_events(ready.events)
        transmits += ready.transmits
        seat.collect(ready)
    if seat.trace is not None:
        seat.record(transmits)
    if transmits:
        seat.transport.send(transmits)
    seat.deliver()


class TurnLock:
    """What a thread holds while it is in a turn: a lock that knows whose it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owner: int | None = None
        self.locked = self._lock.locked

    def acquire(self, patience_s: float = 0.0) -> bool:
        """Take it, if that is possible within ``patience_s``; return whether it was."""
        if not self._lock.acquire(patience_s > 0, patience_s or -1):
            return False
        self.owner = threading.get_ident()
        return True

    def release(self) -> None:
        """Put it down."""
        self.owner = None
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.release()


class Reactor:
    """What runs the seats; its thread lives as long as there is a seat to serve."""

    _shared: ClassVar[Reactor | None] = None
    _shared_lock = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new_members: list[MemberRuntime] = []
        self._members: list[MemberRuntime] = []
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._wake_socket = WakeSocket()
        self._selector.register(self._wake_socket.receiver, selectors.EVENT_READ)
        self.thread: threading.Thread | None = None
        # Turns
        self._turn_lock = TurnLock()
        self._pending: deque[MemberRuntime] = deque()
        self._turn_waiters: list[int] = []
        # Waiting at the sockets
        self._poll_lock = threading.Lock()
        self._poll_epoch = 0
        self._last_poller = self._last_polled_ns = 0
        self._poller_returns_soon = False
        self._waiters: list[Callable[[], bool]] = []
        self._waiter_served = False
        self._select_until_ns = _AWAKE_NS
        # The protocol thread, while others lead
        self._thread_gate = threading.Lock()
        self._thread_gate.acquire()
        self._thread_parked = self._thread_parked_long = self._thread_must_poll = False
        self._seen_poll_epoch = 0

    @classmethod
    def shared(cls) -> Reactor:
        """Return the driver of this process."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    @classmethod
    def current(cls) -> Reactor | None:
        """Return the driver of this process if there is one."""
        return cls._shared

    @property
    def in_turn(self) -> bool:
        """Whether the thread that asks is in a turn."""
        return self._turn_lock.owner == threading.get_ident()

    # From any thread

    def add(self, seat: MemberRuntime) -> None:
        """Serve a seat from now on."""
        with self._lock:
            self._new_members.append(seat)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="gapless", daemon=True)
                self.thread.start()
        self._wake_selector()
        self._wake_thread()

    def wake_up(self, seat: MemberRuntime) -> None:
        """Let whoever leads see to what a seat wants."""
        self._pending.append(seat)
        self._wake_poller()

    def run_now(self, seat: MemberRuntime) -> None:
        """See to what a seat wants in this thread, as soon as nobody else is in a turn."""
        self._pending.append(seat)
        if in_main_thread():
            with SignalGuard():
                self._run_pending(patient=True)
        else:
            self._run_pending(patient=True)

    def send(
        self,
        seat: MemberRuntime,
        payloads: Payloads,
        to: Address | None,
        mode: DeliveryMode,
        loopback: bool | None,
    ) -> Accepted | None:
        """Let the machine send in this thread, without waiting for a turn or for room.

        Return None if nothing was sent: another thread is in a turn, earlier requests go first, or
        the window is full.
        """
        if not in_main_thread():
            return self._send(seat, payloads, to, mode, loopback)
        with SignalGuard():
            return self._send(seat, payloads, to, mode, loopback)

    def _send(
        self,
        seat: MemberRuntime,
        payloads: Payloads,
        to: Address | None,
        mode: DeliveryMode,
        loopback: bool | None,
    ) -> Accepted | None:
        if not self._turn_lock.acquire():
            return None
        try:
            if not seat.registered or seat.calls or seat.send_requests.has_new:
                return None
            try:
                now_ns = time.monotonic_ns()
                # A bundle that waits was sent before this message, so it gets its seqnos first.
                bundled = [*seat.flush_bundle(now_ns)] if seat.bundler.items else ()
                ready, accepted = seat.send(now_ns, payloads, to, mode, loopback)
                process_ready((*bundled, ready), seat)
            except LocalProtocolError:
                raise  # a mistake of the caller
            except Exception as error:  # noqa: BLE001 - as in any turn
                accepted = None
                seat.fail(error)
            except BaseException as error:
                seat.fail(error)
                raise
            finally:
                self._end_turn(seat)
            return accepted
        finally:
            self._turn_lock.release()
            if self._pending:
                self._run_pending()

    def wait_for(self, future: Future[Any], until_ns: int | None) -> Any:
        """Return the result of a future once there is one, or raise TimeoutError; lead meanwhile if nobody does."""
        if not future.done():
            future.add_done_callback(self._wake_selector)
            if not self.poll_until(future.done, until_ns):
                self.add_waiter(future.done)
                try:
                    return future.result(remaining_s(until_ns))
                finally:
                    self.remove_waiter(future.done)
        return future.result(0)

    def poll_until(self, done: Callable[[], bool], until_ns: int | None) -> bool:
        """Drive until ``done`` says that this is enough, or it is time; return False if it is another that leads."""
        if not CAN_POLL_IN_CALLER or self._poll_lock.locked() or self.in_turn:
            return False
        if not in_main_thread():
            return self._poll_until_done(done, until_ns, None)
        shield = SignalGuard(self._yield_polling)
        with shield:
            return self._poll_until_done(done, until_ns, shield)

    def add_waiter(self, done: Callable[[], bool]) -> None:
        """Note that a thread waits for something while another leads."""
        self._waiters.append(done)

    def remove_waiter(self, done: Callable[[], bool]) -> None:
        """Note that it does not wait any more."""
        self._waiters.remove(done)
        self._waiter_served = True

    def _wake_poller(self) -> None:
        """Wake whoever leads, or the protocol thread if nobody does."""
        self._wake_selector()
        if not self._poll_lock.locked():
            self._wake_thread()

    def _wake_selector(self, _: object = None) -> None:
        """Wake whoever waits at the sockets."""
        if self._select_until_ns != _AWAKE_NS:
            self._select_until_ns = _AWAKE_NS
            self._wake_socket.wake()

    def _wake_thread(self) -> None:
        """Wake the protocol thread if it stands back."""
        if self._thread_parked:
            self._thread_parked = False
            with suppress(RuntimeError):  # somebody else was faster
                self._thread_gate.release()

    # Leading

    def _poll_until_done(
        self, done: Callable[[], bool], until_ns: int | None, shield: SignalGuard | None
    ) -> bool:
        if not self._poll_lock.acquire(blocking=False):
            return False
        self._poll_epoch += 1
        led = self._poll_epoch
        again, self._last_poller = self._last_poller == threading.get_ident(), threading.get_ident()
        self._poller_returns_soon = (
            again and time.monotonic_ns() - self._last_polled_ns < _REPOLL_NS
        )
        try:
            while not done():
                self._poll_once(until_ns, shield)
                if until_ns is not None and time.monotonic_ns() >= until_ns:
                    break
        except InterruptedError:
            return done()  # the handler of a signal was called, and another leads
        finally:
            if led == self._poll_epoch:
                self._poll_lock.release()
                self._hand_over_polling()
        return True

    def _yield_polling(self) -> None:
        """Let another thread lead, though this one still waits at the sockets."""
        self._poll_epoch += 1
        self._thread_must_poll = True
        self._poll_lock.release()
        self._wake_thread()

    def _hand_over_polling(self) -> None:
        """Let the protocol thread look whether it has to lead, now that this thread does not."""
        self._last_polled_ns = time.monotonic_ns()
        self._thread_must_poll = len(self._members) > 1 or self._has_waiters
        self._run_pending()
        if (
            (self._thread_must_poll and not self._poller_returns_soon)
            or self._thread_parked_long
            or self._pending
        ):
            self._wake_thread()

    @property
    def _has_waiters(self) -> bool:
        return any(not done() for done in tuple(self._waiters))

    def _poll_once(self, until_ns: int | None, shield: SignalGuard | None = None) -> None:
        """Wait for whatever comes first, and see to it."""
        self._select_until_ns = NEVER_NS
        due_ns = min([seat.due_ns for seat in self._members], default=NEVER_NS)
        if until_ns is not None and until_ns < due_ns:
            due_ns = until_ns
        self._select_until_ns = due_ns
        patience_s = (
            None if due_ns == NEVER_NS else max(0.0, (due_ns - time.monotonic_ns()) / NS_PER_S)
        )
        if shield is not None:
            shield.begin_wait()
        wanted = self._pending and not self._turn_waiters
        found = self._selector.select(
            0.0 if wanted or self._new_members or self._ended else patience_s
        )
        if shield is not None:
            shield.end_wait()
        self._select_until_ns = _AWAKE_NS
        readable = {key.data for key, _ in found}
        if None in readable:
            self._wake_socket.clear()
        now_ns = time.monotonic_ns()
        with self._turn_lock:
            for seat in self._members:
                if seat in readable or seat.due_ns <= now_ns:
                    self._run_turn(seat, seat in readable)
        self._run_pending()

    # Turns

    def _run_pending(self, *, patient: bool = False) -> None:
        """See to what seats want, unless somebody is in a turn, who will, or waits for one.

        A patient thread waits for the end of that turn: to be woken when another has done it would
        cost more, and with each of them doing the other's work none would ever come to its own.
        """
        for _ in range(_MAX_PENDING_ROUNDS):
            if not self._pending or not self._acquire_turn(patient=patient):
                return
            try:
                for seat in dict.fromkeys(
                    [self._pending.popleft() for _ in range(len(self._pending))]
                ):
                    self._run_turn(seat, readable=False)
            finally:
                self._turn_lock.release()
        if self._pending:
            self._wake_poller()

    def _acquire_turn(self, *, patient: bool) -> bool:
        if not patient or self.in_turn:
            return not self._turn_waiters and self._turn_lock.acquire()
        if self._turn_lock.acquire():
            return True
        self._turn_waiters.append(threading.get_ident())
        try:
            taken = self._turn_lock.acquire(_TURN_TIMEOUT_S)
        finally:
            self._turn_waiters.pop()
        if not taken:
            self._wake_poller()  # who had its turn meanwhile may have left this to a patient thread
        return taken

    def _run_turn(self, seat: MemberRuntime, readable: bool) -> None:
        now_ns = time.monotonic_ns()
        due = seat.due_ns <= now_ns
        if not seat.registered or not (readable or due or seat.has_commands):
            return
        try:
            if due or seat.has_commands:
                process_ready(seat.run_commands(now_ns), seat)
            if readable or due:
                process_ready(seat.receive_datagrams(now_ns), seat)
            if seat.is_due(now_ns):
                for ready in seat.run_timers(now_ns):
                    process_ready((ready,), seat)  # alone, since what a tick may install is a view
            seat.rejoin_if_expelled()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this group, and only this one
            seat.fail(error)
        except BaseException as error:
            seat.fail(error)  # from the handler of a signal that could not be made to wait
            raise
        finally:
            self._end_turn(seat)

    def _end_turn(self, seat: MemberRuntime) -> None:
        if seat.is_over:
            self._remove(seat)
            return
        if seat.end_turn():
            self._pending.append(seat)
        if seat.due_ns < self._select_until_ns:
            self._wake_selector()

    def _remove(self, seat: MemberRuntime) -> None:
        for one in seat.transport.sockets():
            with suppress(KeyError, ValueError):  # it was never registered, or is closed
                self._selector.unregister(one)
        seat.registered = False
        seat.due_ns = NEVER_NS
        seat.end()
        self._ended = True
        self._wake_thread()

    # The thread

    def _run(self) -> None:
        back = False
        while self._update_members():
            if back or not self._poll_lock.acquire(blocking=False):
                back = self._wait_for_poller()
                continue
            try:
                self._poll_once(None)
                served, self._waiter_served = self._waiter_served or bool(self._waiters), False
                back = served and len(self._members) == 1 and not self._has_waiters
            finally:
                self._poll_lock.release()

    def _update_members(self) -> bool:
        """Take in new seats, let go of those that are over; return whether any is left."""
        if self._members and not self._new_members and not self._ended:
            return True
        with self._turn_lock:
            self._ended = False
            self._members = [seat for seat in self._members if not seat.ended]
            with self._lock:
                new, self._new_members = self._new_members, []
                if not new and not self._members:
                    self.thread = None
                    return False
            for seat in new:
                self._members.append(seat)
                seat.registered = True
                try:
                    for one in seat.transport.sockets():
                        self._selector.register(one, selectors.EVENT_READ, seat)
                except (OSError, ValueError) as error:
                    seat.fail(error)
                self._run_turn(seat, readable=False)
        return True

    def _wait_for_poller(self) -> bool:
        """Let other threads lead for a while; return whether one has, and so this is to go on."""
        led = self._poll_epoch
        self._thread_must_poll = False
        self._thread_parked = True
        self._thread_parked_long = led == self._seen_poll_epoch and self._poll_lock.locked()
        deep = (
            self._thread_parked_long and self._poll_lock.locked()
        )  # who leads wakes this thread when it stops
        self._seen_poll_epoch = led
        if (
            not self._new_members
            and not self._ended
            and (self._poll_lock.locked() or not self._pending)
        ):
            self._thread_gate.acquire(timeout=-1 if deep else POLL_HANDOVER_S)
        self._thread_parked = self._thread_parked_long = False
        now_ns = time.monotonic_ns()
        if not self._poll_lock.locked() and any(seat.due_ns <= now_ns for seat in self._members):
            with self._turn_lock:
                for seat in self._members:
                    self._run_turn(seat, readable=False)
        self._run_pending()
        return not self._thread_must_poll and (
            deep or self._poll_lock.locked() or led != self._poll_epoch
        )

    # After a fork

    @classmethod
    def _after_fork(cls) -> None:
        """Let the child go of what belongs to its parent, without a word to the network."""
        mark_forked()  # or a transport that is closed would believe to be at home, and say its last words
        driver, cls._shared, cls._shared_lock = cls._shared, None, threading.Lock()
        if driver is not None:
            for seat in [*driver._members, *driver._new_members]:
                seat.transport.close()
                if seat.trace is not None:
                    seat.trace.abandon()
            driver._selector.close()
            driver._wake_socket.close()


def wait_for_future(future: Future[Any], until_ns: int | None) -> Any:
    """Return the result of a future as soon as there is one; TimeoutError at ``until_ns``."""
    driver = Reactor.current()
    return (
        future.result(remaining_s(until_ns))
        if driver is None
        else driver.wait_for(future, until_ns)
    )


def remaining_s(until_ns: int | None) -> float | None:
    """Return how much time is left until ``until_ns``; None: any amount."""
    return None if until_ns is None else max(0.0, (until_ns - time.monotonic_ns()) / NS_PER_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Reactor._after_fork)
