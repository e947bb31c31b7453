"""The driver: it runs the machines of all groups of a process, in one thread at a time.

    sockets ── datagrams ──▶ machine ──▶ Ready ──▶ pump ──▶ transport, application

Every turn: commands of the application, datagrams, and the clock go into the machine, and ``pump``
works through the answers. Nothing here blocks but the wait for the next input; an application that
does not read blocks nobody.

Who leads: one thread at a time waits at the sockets and works through what comes. A thread of the
application that waits for something leads by itself until it has that, so nothing changes hands on
the way to it. While none does, the protocol thread leads. It stands back when everybody who waited
has been served, for they may come again soon, and leads again if nobody has for ``STAND_BACK_S``,
or at once if another still waits for something, unless the one that led comes back soon, by all
experience.

On sending: a thread that waits for the answer anyway takes its turn at once, if nobody is in one;
whoever is looks again when it is done.

A machine that fails ends its own group, with the error told to its application, and no other.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from gapless.errors import LocalProtocolError
from gapless.runtime.fork_guard import forked
from gapless.runtime.member_runtime import NEVER_NS
from gapless.runtime.signal_guard import Shield, is_needed
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from gapless.protocol.ready import Accepted, Ready, Transmit
    from gapless.runtime.member_runtime import Seat

STAND_BACK_S = 0.002
"""So long nobody waits at the sockets when a thread of the application has what it wanted, and does not come back."""
MAY_LEAD = os.name == "posix"
"""Whether a thread that waits at the sockets can be interrupted by Ctrl-C."""

_SOON_NS = 500_000
"""A thread that led twice, with no more than this in between, will do so again: nobody is woken to lead meanwhile."""
_PATIENCE_S = 0.05
"""So long a thread waits for the end of another's turn before it leaves what it wants to whoever leads."""
_AWAKE_NS = -1
_ROUNDS = 2
"""So many times a thread looks again for what others want before it leaves that to whoever leads."""


def pump(readies: Iterable[Ready], seat: Seat) -> None:
    """Work through answers of a machine in their order.

    Places first, since datagrams go there; then all datagrams in one go; then what is for the
    application. What is recorded is written before either.
    """
    transmits: list[Transmit] = []
    for ready in readies:
        if ready.events:
            seat.transport.book.note(ready.events)
        transmits += ready.transmits
        seat.put(ready)
    if seat.trace is not None:
        seat.record(transmits)
    if transmits:
        seat.transport.send(transmits)
    seat.hand_over()


class Baton:
    """What a thread holds while it is in a turn: a lock that knows whose it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.holder: int | None = None
        self.locked = self._lock.locked

    def acquire(self, patience_s: float = 0.0) -> bool:
        """Take it, if that is possible within ``patience_s``; return whether it was."""
        if not self._lock.acquire(patience_s > 0, patience_s or -1):
            return False
        self.holder = threading.get_ident()
        return True

    def release(self) -> None:
        """Put it down."""
        self.holder = None
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()
        self.holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.release()


class Driver:
    """What runs the seats; its thread lives as long as there is a seat to serve."""

    _shared: ClassVar[Driver | None] = None
    _sharing = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[Seat] = []
        self._seats: list[Seat] = []
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self.thread: threading.Thread | None = None
        # Turns
        self._baton = Baton()
        self._wanting: deque[Seat] = deque()
        self._patient: list[int] = []
        # Waiting at the sockets
        self._lead = threading.Lock()
        self._times_led = 0
        self._led_by = self._led_ns = 0
        self._back_soon = False
        self._following: list[Callable[[], bool]] = []
        self._served = False
        self._sleeps_until_ns = _AWAKE_NS
        # The protocol thread, while others lead
        self._gate = threading.Lock()
        self._gate.acquire()
        self._stands_back = self._sleeps_deep = self._takes_over = False
        self._seen_led = 0

    @classmethod
    def shared(cls) -> Driver:
        """Return the driver of this process."""
        with cls._sharing:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    @classmethod
    def current(cls) -> Driver | None:
        """Return the driver of this process if there is one."""
        return cls._shared

    @property
    def turns_here(self) -> bool:
        """Whether the thread that asks is in a turn."""
        return self._baton.holder == threading.get_ident()

    # From any thread

    def add(self, seat: Seat) -> None:
        """Serve a seat from now on."""
        with self._lock:
            self._new.append(seat)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="gapless", daemon=True)
                self.thread.start()
        self._ring()
        self._call_back()

    def wake(self, seat: Seat) -> None:
        """Let whoever leads see to what a seat wants."""
        self._wanting.append(seat)
        self._tell_leader()

    def nudge(self, seat: Seat) -> None:
        """See to what a seat wants in this thread, as soon as nobody else is in a turn."""
        self._wanting.append(seat)
        if is_needed():
            with Shield():
                self._attend(patient=True)
        else:
            self._attend(patient=True)

    def send(self, seat: Seat, payloads: Sequence[bytes], *how: Any) -> Accepted | None:
        """Let a machine send at once, in this thread; None if it has no room, or something else goes first.

        ``how`` is what :meth:`gapless.runtime.member_runtime.Seat.send` wants to know beside the
        messages.
        """
        if not is_needed():
            return self._send(seat, payloads, *how)
        with Shield():
            return self._send(seat, payloads, *how)

    def _send(self, seat: Seat, payloads: Sequence[bytes], *how: Any) -> Accepted | None:
        if not self._baton.acquire():
            return None
        try:
            if not seat.served or seat.has_requests:
                return None
            try:
                now_ns = time.monotonic_ns()
                laid = [*seat.laid(now_ns)] if seat.tray else ()
                ready, accepted = seat.send(now_ns, payloads, *how)
                pump((*laid, ready), seat)
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
            self._baton.release()
            if self._wanting:
                self._attend()

    def result(self, future: Future[Any], until_ns: int | None) -> Any:
        """Return the result of a future once there is one, or raise TimeoutError; lead meanwhile if nobody does."""
        if not future.done():
            future.add_done_callback(self._ring)
            if not self.lead(future.done, until_ns):
                self.follow(future.done)
                try:
                    return future.result(_left_s(until_ns))
                finally:
                    self.unfollow(future.done)
        return future.result(0)

    def lead(self, done: Callable[[], bool], until_ns: int | None) -> bool:
        """Drive until ``done`` says that this is enough, or it is time; return False if it is another that leads."""
        if not MAY_LEAD or self._lead.locked() or self.turns_here:
            return False
        if not is_needed():
            return self._lead_until(done, until_ns, None)
        shield = Shield(self._stand_down)
        with shield:
            return self._lead_until(done, until_ns, shield)

    def follow(self, done: Callable[[], bool]) -> None:
        """Note that a thread waits for something while another leads."""
        self._following.append(done)

    def unfollow(self, done: Callable[[], bool]) -> None:
        """Note that it does not wait any more."""
        self._following.remove(done)
        self._served = True

    def _tell_leader(self) -> None:
        """Wake whoever leads, or the protocol thread if nobody does."""
        self._ring()
        if not self._lead.locked():
            self._call_back()

    def _ring(self, _: object = None) -> None:
        """Wake whoever waits at the sockets."""
        if self._sleeps_until_ns != _AWAKE_NS:
            self._sleeps_until_ns = _AWAKE_NS
            with suppress(OSError):  # it rings already
                self._rope.send(b"\0")

    def _call_back(self) -> None:
        """Wake the protocol thread if it stands back."""
        if self._stands_back:
            self._stands_back = False
            with suppress(RuntimeError):  # somebody else was faster
                self._gate.release()

    # Leading

    def _lead_until(
        self, done: Callable[[], bool], until_ns: int | None, shield: Shield | None
    ) -> bool:
        if not self._lead.acquire(blocking=False):
            return False
        self._times_led += 1
        led = self._times_led
        again, self._led_by = self._led_by == threading.get_ident(), threading.get_ident()
        self._back_soon = again and time.monotonic_ns() - self._led_ns < _SOON_NS
        try:
            while not done():
                self._once(until_ns, shield)
                if until_ns is not None and time.monotonic_ns() >= until_ns:
                    break
        except InterruptedError:
            return done()  # the handler of a signal was called, and another leads
        finally:
            if led == self._times_led:
                self._lead.release()
                self._hand_on()
        return True

    def _stand_down(self) -> None:
        """Let another thread lead, though this one still waits at the sockets."""
        self._times_led += 1
        self._takes_over = True
        self._lead.release()
        self._call_back()

    def _hand_on(self) -> None:
        """Let the protocol thread look whether it has to lead, now that this thread does not."""
        self._led_ns = time.monotonic_ns()
        self._takes_over = len(self._seats) > 1 or self._somebody_waits
        self._attend()
        if (self._takes_over and not self._back_soon) or self._sleeps_deep or self._wanting:
            self._call_back()

    @property
    def _somebody_waits(self) -> bool:
        return any(not done() for done in tuple(self._following))

    def _once(self, until_ns: int | None, shield: Shield | None = None) -> None:
        """Wait for whatever comes first, and see to it."""
        self._sleeps_until_ns = NEVER_NS
        due_ns = min([seat.due_ns for seat in self._seats], default=NEVER_NS)
        if until_ns is not None and until_ns < due_ns:
            due_ns = until_ns
        self._sleeps_until_ns = due_ns
        patience_s = (
            None if due_ns == NEVER_NS else max(0.0, (due_ns - time.monotonic_ns()) / NS_PER_S)
        )
        if shield is not None:
            shield.lower()
        wanted = self._wanting and not self._patient
        found = self._selector.select(0.0 if wanted or self._new or self._ended else patience_s)
        if shield is not None:
            shield.close()
        self._sleeps_until_ns = _AWAKE_NS
        readable = {key.data for key, _ in found}
        if None in readable:
            with suppress(BlockingIOError):
                self._bell.recv(4096)
        now_ns = time.monotonic_ns()
        with self._baton:
            for seat in self._seats:
                if seat in readable or seat.due_ns <= now_ns:
                    self._turn(seat, seat in readable)
        self._attend()

    # Turns

    def _attend(self, *, patient: bool = False) -> None:
        """See to what seats want, unless somebody is in a turn, who will, or waits for one.

        A patient thread waits for the end of that turn: to be woken when another has done it would
        cost more, and with each of them doing the other's work none would ever come to its own.
        """
        for _ in range(_ROUNDS):
            if not self._wanting or not self._take_baton(patient=patient):
                return
            try:
                for seat in dict.fromkeys(
                    [self._wanting.popleft() for _ in range(len(self._wanting))]
                ):
                    self._turn(seat, readable=False)
            finally:
                self._baton.release()
        if self._wanting:
            self._tell_leader()

    def _take_baton(self, *, patient: bool) -> bool:
        if not patient or self.turns_here:
            return not self._patient and self._baton.acquire()
        if self._baton.acquire():
            return True
        self._patient.append(threading.get_ident())
        try:
            taken = self._baton.acquire(_PATIENCE_S)
        finally:
            self._patient.pop()
        if not taken:
            self._tell_leader()  # who had its turn meanwhile may have left this to a patient thread
        return taken

    def _turn(self, seat: Seat, readable: bool) -> None:
        now_ns = time.monotonic_ns()
        due = seat.due_ns <= now_ns
        if not seat.served or not (readable or due or seat.has_commands):
            return
        try:
            if due or seat.has_commands:
                pump(seat.commands(now_ns), seat)
            if readable or due:
                pump(seat.datagrams(now_ns), seat)
            if seat.is_due(now_ns):
                for ready in seat.ticks(now_ns):
                    pump((ready,), seat)  # alone, since what a tick may install is a view
            seat.follow()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this group, and only this one
            seat.fail(error)
        except BaseException as error:
            seat.fail(error)  # from the handler of a signal that could not be made to wait
            raise
        finally:
            self._end_turn(seat)

    def _end_turn(self, seat: Seat) -> None:
        if seat.is_over:
            self._let_go(seat)
            return
        if seat.has_commands:
            self._wanting.append(seat)
        seat.tray.allow(seat.participant)
        deadline_ns = seat.deadline_ns
        seat.due_ns = NEVER_NS if deadline_ns is None else deadline_ns
        if seat.due_ns < self._sleeps_until_ns:
            self._ring()

    def _let_go(self, seat: Seat) -> None:
        for one in seat.transport.sockets():
            with suppress(KeyError, ValueError):  # it was never registered, or is closed
                self._selector.unregister(one)
        seat.served = False
        seat.due_ns = NEVER_NS
        seat.end()
        self._ended = True
        self._call_back()

    # The thread

    def _run(self) -> None:
        back = False
        while self._serves():
            if back or not self._lead.acquire(blocking=False):
                back = self._stand_by()
                continue
            try:
                self._once(None)
                served, self._served = self._served or bool(self._following), False
                back = served and len(self._seats) == 1 and not self._somebody_waits
            finally:
                self._lead.release()

    def _serves(self) -> bool:
        """Take in new seats, let go of those that are over; return whether any is left."""
        if self._seats and not self._new and not self._ended:
            return True
        with self._baton:
            self._ended = False
            self._seats = [seat for seat in self._seats if not seat.ended]
            with self._lock:
                new, self._new = self._new, []
                if not new and not self._seats:
                    self.thread = None
                    return False
            for seat in new:
                self._seats.append(seat)
                seat.served = True
                try:
                    for one in seat.transport.sockets():
                        self._selector.register(one, selectors.EVENT_READ, seat)
                except (OSError, ValueError) as error:
                    seat.fail(error)
                self._turn(seat, readable=False)
        return True

    def _stand_by(self) -> bool:
        """Let other threads lead for a while; return whether one has, and so this is to go on."""
        led = self._times_led
        self._takes_over = False
        self._stands_back = True
        self._sleeps_deep = led == self._seen_led and self._lead.locked()
        deep = (
            self._sleeps_deep and self._lead.locked()
        )  # who leads wakes this thread when it stops
        self._seen_led = led
        if not self._new and not self._ended and (self._lead.locked() or not self._wanting):
            self._gate.acquire(timeout=-1 if deep else STAND_BACK_S)
        self._stands_back = self._sleeps_deep = False
        now_ns = time.monotonic_ns()
        if not self._lead.locked() and any(seat.due_ns <= now_ns for seat in self._seats):
            with self._baton:
                for seat in self._seats:
                    self._turn(seat, readable=False)
        self._attend()
        return not self._takes_over and (deep or self._lead.locked() or led != self._times_led)

    # After a fork

    @classmethod
    def _forked(cls) -> None:
        """Let the child go of what belongs to its parent, without a word to the network."""
        forked()  # or a transport that is closed would believe to be at home, and say its last words
        driver, cls._shared, cls._sharing = cls._shared, None, threading.Lock()
        if driver is not None:
            for seat in [*driver._seats, *driver._new]:
                seat.transport.close()
                if seat.trace is not None:
                    seat.trace.forget()
            driver._selector.close()
            driver._bell.close()
            driver._rope.close()


def result_of(future: Future[Any], until_ns: int | None) -> Any:
    """Return the result of a future as soon as there is one; TimeoutError at ``until_ns``."""
    driver = Driver.current()
    return future.result(_left_s(until_ns)) if driver is None else driver.result(future, until_ns)


def _left_s(until_ns: int | None) -> float | None:
    return None if until_ns is None else max(0.0, (until_ns - time.monotonic_ns()) / NS_PER_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Driver._forked)
