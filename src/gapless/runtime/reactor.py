"""The reactor runs the machines of all groups of a process, one thread at a time.

    sockets -> datagrams -> machine -> Ready -> process_ready -> transport, application

A turn gives one machine its inputs: the commands of the application, the datagrams that have
arrived, and the time. ``process_ready`` then carries out the answers. A turn never waits; only the
select on the sockets does. An application that does not read blocks no other group.

Leader and followers. At any time at most one thread, the leader, selects on the sockets and runs
the turns that follow. A waiting thread of the application becomes the leader if there is none, and
leads until the end of the wait; so a message reaches the waiting thread without a switch of
threads. All other waiting threads are followers: the leader wakes them.

If no thread of the application leads, the protocol thread does. After serving every follower the
protocol thread parks, because the served thread often waits again at once and can lead. The
protocol thread leads again if no thread leads within ``POLL_HANDOVER_S``, and at once if a follower
still waits, unless the last leader usually returns within microseconds.

An event loop leads for longer: from the first task that waits until the loop leaves the sockets
alone (loop_leader.py). Meanwhile the protocol thread watches the loop, and leads if input waits for
``LOOP_PATIENCE_S``.

Sending. A sending thread runs a turn if no other thread is in a turn. Otherwise the other thread
looks at the pending commands again before the end of its turn.

A machine that raises ends its own group and reports the error to the application. Other groups
continue.
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
    from gapless.runtime.loop_leader import LoopLeader
    from gapless.runtime.member_runtime import MemberRuntime

POLL_HANDOVER_S = 0.002
"""How long the sockets stay unpolled while we wait for the last leader to return."""
LOOP_PATIENCE_S = 0.005
"""How long an event loop that leads may leave input alone; the protocol thread leads after that."""
CAN_POLL_IN_CALLER = os.name == "posix"
"""Whether Ctrl-C interrupts a select in the main thread."""

_REPOLL_NS = 500_000
"""A leader that returned within this time is expected to return again: no thread is woken."""
_TURN_TIMEOUT_S = 0.05
"""How long a thread waits for the turn of another before leaving a command to the leader."""
_AWAKE_NS = -1
_NO_ROUND = -1
_MAX_PENDING_ROUNDS = 2
"""How often a thread looks for pending commands before leaving them to the leader."""


def process_ready(readies: Iterable[Ready], member: MemberRuntime) -> None:
    """Carry out the answers of a machine.

    The address book comes first, since datagrams are sent to the targets of the book. The trace is
    written before a datagram leaves. Deliveries come last.
    """
    transmits: list[Transmit] = []
    for ready in readies:
        if ready.events:
            member.transport.book.on_events(ready.events)
        transmits += ready.transmits
        member.collect(ready)
    if member.trace is not None:
        member.record(transmits)
    if transmits:
        member.transport.send(transmits)
    member.deliver()


class TurnLock:
    """The lock held by a thread during a turn; the lock records its owner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.owner: int | None = None
        self.locked = self._lock.locked

    def acquire(self, patience_s: float = 0.0) -> bool:
        """Acquire the lock within ``patience_s``; return whether the lock was acquired."""
        if not self._lock.acquire(patience_s > 0, patience_s or -1):
            return False
        self.owner = threading.get_ident()
        return True

    def release(self) -> None:
        """Release the lock."""
        self.owner = None
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.release()


class Reactor:
    """Runs the members of this process; the protocol thread ends with the last member."""

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
        # What the application's thread that leads waits for; None if the protocol thread leads.
        self._leader_done: Callable[[], bool] | None = None
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
        # An event loop that leads, and one that wants to
        self._loop: LoopLeader | None = None
        self._waiting_loop: LoopLeader | None = None
        self._loop_lock = threading.Lock()
        self._loop_rounds = 0
        self._neglected_since_round = _NO_ROUND
        self._is_watching = False
        self._watch_socket = WakeSocket()
        self._watch_selector = selectors.DefaultSelector()
        self._watch_selector.register(self._watch_socket.receiver, selectors.EVENT_READ)
        self.fits_loops = hasattr(self._selector, "fileno")
        """Whether the sockets of all members can be waited for by one file descriptor."""
        if self.fits_loops:
            self._watch_selector.register(self._selector, selectors.EVENT_READ, self)

    @classmethod
    def shared(cls) -> Reactor:
        """Return the reactor of this process."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    @classmethod
    def current(cls) -> Reactor | None:
        """Return the reactor of this process, or None before the first join."""
        return cls._shared

    @property
    def in_turn(self) -> bool:
        """Whether the calling thread is in a turn."""
        return self._turn_lock.owner == threading.get_ident()

    # From any thread

    def add(self, member: MemberRuntime) -> None:
        """Add a member."""
        with self._lock:
            self._new_members.append(member)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="gapless", daemon=True)
                self.thread.start()
        self._wake_selector()
        self._wake_thread()

    def wake_up(self, member: MemberRuntime) -> None:
        """Ask the leader to run the pending commands of a member."""
        self._pending.append(member)
        self._wake_poller()

    def run_now(self, member: MemberRuntime) -> None:
        """Run the pending commands of a member in this thread, once no other is in a turn."""
        self._pending.append(member)
        if in_main_thread():
            with SignalGuard():
                self._run_pending(patient=True)
        else:
            self._run_pending(patient=True)

    def send(
        self,
        member: MemberRuntime,
        payloads: Payloads,
        to: Address | None,
        mode: DeliveryMode,
        loopback: bool | None,
    ) -> Accepted | None:
        """Let the machine send in this thread, without waiting for a turn or for room.

        Return None if the message was not sent: another thread is in a turn, earlier requests go
        first, the window is full, or the member is between two incarnations.
        """
        if not in_main_thread():
            return self._send(member, payloads, to, mode, loopback)
        with SignalGuard():
            return self._send(member, payloads, to, mode, loopback)

    def _send(
        self,
        member: MemberRuntime,
        payloads: Payloads,
        to: Address | None,
        mode: DeliveryMode,
        loopback: bool | None,
    ) -> Accepted | None:
        if not self._turn_lock.acquire():
            return None
        try:
            if (
                not member.registered
                or member.calls
                or member.send_requests.has_new
                or member.member.endpoint.view is None
            ):
                return None
            try:
                now_ns = time.monotonic_ns()
                if member.bundler.items:
                    # A bundle that waits was sent before this message, so it gets its seqnos first.
                    # It is carried out even if this message is refused with an error.
                    process_ready(member.flush_bundle(now_ns), member)
                ready, accepted = member.send(now_ns, payloads, to, mode, loopback)
                process_ready((ready,), member)
            except LocalProtocolError:
                raise  # misuse is reported to the caller; the group continues
            except Exception as error:  # noqa: BLE001 - as in any turn
                accepted = None
                member.fail(error)
            except BaseException as error:
                member.fail(error)
                raise
            finally:
                self._end_turn(member)
            return accepted
        finally:
            self._turn_lock.release()
            if self._pending:
                self._run_pending()

    def wait_for(self, future: Future[Any], until_ns: int | None) -> Any:
        """Return the result of a future, or raise TimeoutError; lead while waiting if possible."""
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
        """Lead until ``done()`` or ``until_ns``; return False at once if another thread leads."""
        if self._loop is not None:
            self._check_loop()
        if not CAN_POLL_IN_CALLER or self._poll_lock.locked() or self.in_turn:
            return False
        if not in_main_thread():
            return self._poll_until_done(done, until_ns, None)
        guard = SignalGuard(self._yield_polling)
        with guard:
            return self._poll_until_done(done, until_ns, guard)

    def wait_until(
        self,
        done: Callable[[], bool],
        until_ns: int | None,
        new_waiter: Callable[[Callable[[], bool]], Future[None] | None],
    ) -> None:
        """Wait until ``done()`` or ``until_ns``: lead, or follow if another thread leads.

        ``new_waiter(done)`` returns a future that completes when ``done`` may have changed, or None
        if ``done()`` holds. An unneeded future is cancelled.
        """
        if self.poll_until(done, until_ns) or (waiter := new_waiter(done)) is None:
            return
        self.add_waiter(done)
        try:
            with suppress(TimeoutError):
                waiter.result(remaining_s(until_ns))
        finally:
            waiter.cancel()
            self.remove_waiter(done)

    def add_waiter(self, done: Callable[[], bool]) -> None:
        """Record a follower that waits until ``done()``."""
        self._waiters.append(done)

    def remove_waiter(self, done: Callable[[], bool]) -> None:
        """Remove a follower."""
        self._waiters.remove(done)
        self._waiter_served = True

    def _wake_poller(self) -> None:
        """Wake the leader, or the protocol thread if there is none."""
        self._wake_selector()
        if not self._poll_lock.locked():
            self._wake_thread()

    def _wake_selector(self, _: object = None) -> None:
        """Wake the thread that selects on the sockets."""
        leader = self._loop
        if leader is not None and leader.thread == threading.get_ident() and self._check_loop():
            leader.run_soon()
            # Otherwise the protocol thread has begun to lead, and may have missed the command.
            if self._loop is leader:
                if self._is_watching:
                    self._watch_socket.wake()  # the loop may stop before its next round
                return
        if self._select_until_ns != _AWAKE_NS:
            self._select_until_ns = _AWAKE_NS
            # As WakeSocket.wake, without the call: every send that arms a timer passes here.
            with suppress(OSError):  # full, so the selector returns anyway; or closed
                self._wake_socket.sender.send(b"\0")

    def _wake_thread(self) -> None:
        """Wake the protocol thread if parked."""
        if self._thread_parked:
            self._thread_parked = False
            with suppress(RuntimeError):  # another thread has released the gate
                self._thread_gate.release()
            if self._is_watching:
                self._watch_socket.wake()

    # Leading

    def _poll_until_done(
        self, done: Callable[[], bool], until_ns: int | None, guard: SignalGuard | None
    ) -> bool:
        if not self._poll_lock.acquire(blocking=False):
            return False
        self._poll_epoch += 1
        led = self._poll_epoch
        self._leader_done = done
        again, self._last_poller = self._last_poller == threading.get_ident(), threading.get_ident()
        self._poller_returns_soon = (
            again and time.monotonic_ns() - self._last_polled_ns < _REPOLL_NS
        )
        try:
            while not done():
                self._poll_once(until_ns, guard)
                if until_ns is not None and time.monotonic_ns() >= until_ns:
                    break
        except InterruptedError:
            return done()  # a signal handler ran, and another thread leads now
        finally:
            if led == self._poll_epoch:
                self._leader_done = None
                self._poll_lock.release()
                self._hand_over_polling()
        return True

    def _yield_polling(self) -> None:
        """Let another thread lead while this thread is still in select."""
        self._poll_epoch += 1
        self._leader_done = None
        self._thread_must_poll = True
        self._poll_lock.release()
        self._wake_thread()

    def _hand_over_polling(self) -> None:
        """Stop leading, and wake the protocol thread if no other thread can lead."""
        self._last_polled_ns = time.monotonic_ns()
        self._thread_must_poll = len(self._members) > 1 or self._has_waiters
        self._run_pending()
        if (
            (self._thread_must_poll and not self._poller_returns_soon)
            or self._thread_parked_long
            or self._pending
        ):
            self._wake_thread()
        if self._waiting_loop is not None:
            self._offer_to_loop()

    @property
    def _has_waiters(self) -> bool:
        return bool(self._waiters) and not all(done() for done in tuple(self._waiters))

    def _poll_once(self, until_ns: int | None, guard: SignalGuard | None = None) -> None:
        """Select until a socket is ready or a timer is due, and run the turns."""
        self._select_until_ns = NEVER_NS
        due_ns = min([member.due_ns for member in self._members], default=NEVER_NS)
        if until_ns is not None and until_ns < due_ns:
            due_ns = until_ns
        self._select_until_ns = due_ns
        patience_s = (
            None if due_ns == NEVER_NS else max(0.0, (due_ns - time.monotonic_ns()) / NS_PER_S)
        )
        if guard is not None:
            guard.begin_wait()
        wanted = (self._pending and not self._turn_waiters) or self._waiting_loop is not None
        # Commands submitted before ``_select_until_ns`` was set have not woken this thread.
        found = self._selector.select(
            0.0
            if wanted or self._new_members or self._ended or self._is_leader_done
            else patience_s
        )
        if guard is not None:
            guard.end_wait()
        self._select_until_ns = _AWAKE_NS
        readable = {key.data for key, _ in found}
        if None in readable:
            self._wake_socket.clear()
        now_ns = time.monotonic_ns()
        with self._turn_lock:
            for member in self._members:
                if member in readable or member.due_ns <= now_ns:
                    self._run_turn(member, member in readable)
        self._run_pending()

    # Turns

    def _run_pending(self, *, patient: bool = False) -> None:
        """Run pending commands, unless another thread holds the turn lock (and will run them).

        A patient thread waits for the lock. A wake-up by the other thread would cost more, and
        threads that always did each other's work would starve.
        """
        for _ in range(_MAX_PENDING_ROUNDS):
            if not self._pending or not self._acquire_turn(patient=patient):
                return
            try:
                for member in dict.fromkeys(
                    [self._pending.popleft() for _ in range(len(self._pending))]
                ):
                    self._run_turn(member, readable=False)
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
            self._wake_poller()  # the last owner may have left the commands to this thread
        return taken

    def _run_turn(self, member: MemberRuntime, readable: bool) -> None:
        now_ns = time.monotonic_ns()
        due = member.due_ns <= now_ns
        has_commands = due or member.has_commands
        if not member.registered or not (readable or has_commands):
            return
        try:
            if has_commands:
                process_ready(member.run_commands(now_ns), member)
            if readable or due:
                process_ready(member.receive_datagrams(now_ns), member)
            if member.is_due(now_ns):
                for ready in member.run_timers(now_ns):
                    process_ready((ready,), member)  # one by one: a tick may install a view
            if member.expelled:
                member.rejoin_if_expelled()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this group, and only this one
            member.fail(error)
        except BaseException as error:
            member.fail(error)  # raised by a signal handler that could not be deferred
            raise
        finally:
            self._end_turn(member)

    def _end_turn(self, member: MemberRuntime) -> None:
        if member.is_over:
            self._remove(member)
        elif member.end_turn():
            self._pending.append(member)
        # A leader that selects now is another thread: it may have to look earlier, or be done.
        select_until_ns = self._select_until_ns
        if select_until_ns != _AWAKE_NS and (
            member.due_ns < select_until_ns or self._is_leader_done
        ):
            self._announce_due(member.due_ns)

    @property
    def _is_leader_done(self) -> bool:
        done = self._leader_done
        return done is not None and done()

    def _remove(self, member: MemberRuntime) -> None:
        for one in member.transport.sockets():
            with suppress(KeyError, ValueError):  # never registered, or closed
                self._selector.unregister(one)
        member.registered = False
        member.due_ns = NEVER_NS
        member.end()
        self._ended = True
        self._wake_thread()

    # The thread

    def _run(self) -> None:
        back = False
        while self._update_members():
            if self._loop is not None:
                back = self._watch_loop()
                continue
            if back or not self._poll_lock.acquire(blocking=False):
                back = self._wait_for_poller()
                continue
            try:
                self._poll_once(None)
                served, self._waiter_served = self._waiter_served or bool(self._waiters), False
                back = served and len(self._members) == 1 and not self._has_waiters
            finally:
                self._poll_lock.release()
            back = self._offer_to_loop() or back
        if (leader := self._loop) is not None and self.end_loop(leader, patient=True):
            leader.dismiss()

    def _update_members(self) -> bool:
        """Register new members and drop ended ones; return whether any is left."""
        if self._members and not self._new_members and not self._ended:
            return True
        with self._turn_lock:
            self._ended = False
            self._members = [member for member in self._members if not member.ended]
            with self._lock:
                new, self._new_members = self._new_members, []
                if not new and not self._members:
                    self.thread = None
                    return False
            for member in new:
                self._members.append(member)
                member.registered = True
                try:
                    for one in member.transport.sockets():
                        self._selector.register(one, selectors.EVENT_READ, member)
                except (OSError, ValueError) as error:
                    member.fail(error)
                self._run_turn(member, readable=False)
        return True

    def _wait_for_poller(self) -> bool:
        """Park while other threads lead; return whether to stay parked."""
        led = self._poll_epoch
        self._thread_must_poll = False
        self._thread_parked = True
        self._thread_parked_long = led == self._seen_poll_epoch and self._poll_lock.locked()
        deep = (
            self._thread_parked_long and self._poll_lock.locked()
        )  # the leader wakes this thread when it stops
        self._seen_poll_epoch = led
        if (
            not self._new_members
            and not self._ended
            and self._loop is None  # otherwise this thread watches the loop
            and (self._poll_lock.locked() or not self._pending)
        ):
            self._thread_gate.acquire(timeout=-1 if deep else POLL_HANDOVER_S)
        self._thread_parked = self._thread_parked_long = False
        now_ns = time.monotonic_ns()
        if not self._poll_lock.locked() and any(
            member.due_ns <= now_ns for member in self._members
        ):
            with self._turn_lock:
                for member in self._members:
                    self._run_turn(member, readable=False)
        self._run_pending()
        return not self._thread_must_poll and (
            deep or self._poll_lock.locked() or led != self._poll_epoch
        )

    # Led by an event loop

    def begin_loop(self, leader: LoopLeader) -> bool:
        """Let an event loop lead; if another thread leads, offer it to the loop afterwards."""
        if self._loop is leader:
            return True
        self._waiting_loop = leader
        if self.thread is None or self._check_loop() or not self._poll_lock.acquire(blocking=False):
            self._wake_selector()
            return False
        self._waiting_loop = None
        self._poll_epoch += 1
        self._loop = leader
        self._wake_thread()  # to watch the loop
        return True

    def end_loop(
        self, leader: LoopLeader, rounds: int | None = None, *, patient: bool = False
    ) -> bool:
        """Let the loop lead no longer; return False if it runs a round, or ran one meanwhile.

        A ``patient`` thread waits for the end of the round.
        """
        if not self._loop_lock.acquire(blocking=patient):
            return False
        try:
            if self._loop is not leader or rounds not in {None, self._loop_rounds}:
                return False
            self._loop = None
            self._poll_epoch += 1
            self._poll_lock.release()
        finally:
            self._loop_lock.release()
        return True

    def _check_loop(self) -> bool:
        """Return whether an event loop leads; one that has ended leads no longer."""
        leader = self._loop
        if leader is None or leader.is_running:
            return leader is not None
        self.end_loop(leader)
        self._wake_thread()
        return False

    def is_led_by(self, leader: LoopLeader) -> bool:
        """Whether an event loop leads."""
        return self._loop is leader

    @property
    def poll_fd(self) -> int:
        """The file descriptor that is readable when a socket of a member is."""
        return self._selector.fileno()

    def run_loop_round(self, leader: LoopLeader) -> int | None:
        """Poll without waiting, and run the turns; return when the next round is due.

        Return 0 if commands wait, and None if the loop does not lead any more.
        """
        with self._loop_lock:
            if self._loop is not leader:
                return None
            self._loop_rounds += 1
            if in_main_thread():
                with SignalGuard():
                    return self._poll_for_loop()
            return self._poll_for_loop()

    def _poll_for_loop(self) -> int:
        self._poll_once(0)
        due_ns = self._select_until_ns = min(
            [member.due_ns for member in self._members], default=NEVER_NS
        )
        # Commands submitted before ``_select_until_ns`` was set have not woken the loop.
        return 0 if self._pending and not self._turn_waiters else due_ns

    def _announce_due(self, due_ns: int) -> None:
        """Let the leader look at the time earlier than planned, or notice that it is done."""
        leader = self._loop
        if (
            leader is not None
            and leader.thread == threading.get_ident()
            and self._check_loop()
            and self._loop_lock.acquire(blocking=False)
        ):
            try:
                if self._loop is leader:
                    # Without a round: a task that sends arms a timer each time.
                    self._select_until_ns = due_ns
                    leader.run_at(due_ns)
                    return
            finally:
                self._loop_lock.release()
        self._wake_selector()

    def _offer_to_loop(self) -> bool:
        """Offer the lead to an event loop that wants it; return whether one does."""
        leader, self._waiting_loop = self._waiting_loop, None
        return leader is not None and leader.offer()

    def _watch_loop(self) -> bool:
        """Watch the loop that leads for a while; end its lead if it leaves input alone.

        While rounds follow one another this thread only sleeps. Otherwise it waits for input beside
        the loop, and gives the loop time for a round.
        """
        leader, rounds = self._loop, self._loop_rounds
        self._thread_parked = True
        if leader is not None and not self._new_members and not self._ended:
            self._thread_gate.acquire(timeout=LOOP_PATIENCE_S)
        self._thread_parked = False
        if leader is None or self._loop is not leader or self._loop_rounds != rounds:
            return False
        if self._neglected_since_round == rounds:
            self.end_loop(leader, rounds)
            return False
        self._neglected_since_round = rounds if self._wait_beside_loop() else _NO_ROUND
        return False

    def _wait_beside_loop(self) -> bool:
        """Wait for input of the loop; return False if this thread was woken for another reason."""
        if self._pending:
            return True
        due_ns = min([member.due_ns for member in self._members], default=NEVER_NS)
        patience_s = None if due_ns == NEVER_NS else remaining_s(due_ns)
        self._is_watching = self._thread_parked = True
        wanted = self._new_members or self._ended or self._loop is None
        found = self._watch_selector.select(0.0 if wanted else patience_s)
        self._is_watching = self._thread_parked = False
        if wanted or any(key.data is None for key, _ in found):
            self._watch_socket.clear()
            return False
        return True

    # After a fork

    @classmethod
    def _after_fork(cls) -> None:
        """Close the parent's resources in the child without sending a datagram."""
        mark_forked()  # first: a transport must not flush from the child
        reactor, cls._shared, cls._shared_lock = cls._shared, None, threading.Lock()
        if reactor is not None:
            for member in [*reactor._members, *reactor._new_members]:
                member.bundler.close()
                member.transport.close()
                if member.trace is not None:
                    member.trace.abandon()
            reactor._loop = None
            reactor.close()

    def close(self) -> None:
        """Close the selectors and their sockets; the reactor cannot be used again."""
        for one in (
            self._selector,
            self._wake_socket,
            self._watch_selector,
            self._watch_socket,
        ):
            one.close()


def wait_for_future(future: Future[Any], until_ns: int | None) -> Any:
    """Return the result of a future, or raise TimeoutError at ``until_ns``."""
    reactor = Reactor.current()
    return (
        future.result(remaining_s(until_ns))
        if reactor is None
        else reactor.wait_for(future, until_ns)
    )


def remaining_s(until_ns: int | None) -> float | None:
    """Return the time left until ``until_ns``; None for no limit."""
    return None if until_ns is None else max(0.0, (until_ns - time.monotonic_ns()) / NS_PER_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Reactor._after_fork)
