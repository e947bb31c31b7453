"""The driver: one thread in a process runs the machines of all its groups.

    sockets ── datagrams ──▶ machine ──▶ Ready ──▶ pump ──▶ transport, application

Every turn: commands of the application, datagrams, and the clock go into the machine, and ``pump`` works through the
answers. Nothing here blocks but the wait for the next input; an application that does not read blocks nobody.

A machine that fails ends its own group, with the error told to its application, and no other.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gapless.core.ready import Ready, Transmit
    from gapless.transport.seat import Seat


def pump(readies: Iterable[Ready], seat: Seat) -> None:
    """Work through answers of a machine in their order.

    Places first, since datagrams go there; then all datagrams in one go; then what is for the application. What is
    recorded is written before either.
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


class Driver:
    """The protocol thread, which lives as long as there is a seat to serve."""

    _shared: ClassVar[Driver | None] = None
    _sharing = threading.Lock()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: list[Seat] = []
        self._seats: list[Seat] = []
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._rope.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._asleep = False
        self.thread: threading.Thread | None = None

    @classmethod
    def shared(cls) -> Driver:
        """Return the driver of this process."""
        with cls._sharing:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    # From any thread

    def add(self, seat: Seat) -> None:
        """Serve a seat from now on."""
        with self._lock:
            self._new.append(seat)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="gapless", daemon=True)
                self.thread.start()
        self.wake()

    def wake(self) -> None:
        """Let the thread look for commands, if it waits."""
        if self._asleep:
            self._asleep = False
            self._rope.send(b"\0")

    # The thread

    def _run(self) -> None:
        while self._serves():
            self._asleep = True
            found = self._selector.select(self._patience_s())
            self._asleep = False
            readable = {key.data for key, _ in found}
            if None in readable:
                self._bell.recv(4096)
            for seat in self._seats:
                self._turn(seat, seat in readable)

    def _serves(self) -> bool:
        """Take in new seats, let go of those that are over; return whether any is left."""
        for seat in [seat for seat in self._seats if seat.ended]:
            self._seats.remove(seat)
        with self._lock:
            new, self._new = self._new, []
            if not new and not self._seats:
                self.thread = None
                return False
        for seat in new:
            self._seats.append(seat)
            try:
                for one in seat.transport.sockets():
                    self._selector.register(one, selectors.EVENT_READ, seat)
            except (OSError, ValueError) as error:
                seat.fail(error)
            self._turn(seat, readable=False)
        return True

    def _patience_s(self) -> float | None:
        """Return how long nothing will be due."""
        if self._new or any(seat.has_commands for seat in self._seats):
            return 0.0
        deadlines_ns = [at_ns for seat in self._seats if (at_ns := seat.deadline_ns) is not None]
        return max(0.0, (min(deadlines_ns) - time.monotonic_ns()) / NS_PER_S) if deadlines_ns else None

    def _turn(self, seat: Seat, readable: bool) -> None:
        now_ns = time.monotonic_ns()
        deadline_ns = seat.deadline_ns
        due = deadline_ns is not None and deadline_ns <= now_ns
        if not (readable or due or seat.has_commands):
            return
        try:
            if due or seat.has_commands:
                pump(seat.commands(now_ns), seat)
            if readable or due:
                pump(seat.datagrams(now_ns), seat)
            for ready in seat.ticks(now_ns):
                pump((ready,), seat)  # alone, since what a tick may install is a view
            seat.follow()
        except Exception as error:  # noqa: BLE001 - whatever it is ends this group, and only this one
            seat.fail(error)
        if seat.is_over:
            self._let_go(seat)

    def _let_go(self, seat: Seat) -> None:
        for one in seat.transport.sockets():
            with suppress(KeyError, ValueError):  # it was never registered, or is closed
                self._selector.unregister(one)
        seat.end()

    # After a fork

    @classmethod
    def _forked(cls) -> None:
        """Let the child go of what belongs to its parent, without a word to the network."""
        driver, cls._shared, cls._sharing = cls._shared, None, threading.Lock()
        if driver is not None:
            for seat in [*driver._seats, *driver._new]:
                seat.transport.close()
                if seat.trace is not None:
                    seat.trace.forget()
            driver._selector.close()
            driver._bell.close()
            driver._rope.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Driver._forked)
