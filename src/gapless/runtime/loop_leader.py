"""An event loop as the leader: the loop waits for the sockets, and runs turns between its tasks.

A task that waits for a message is then woken without a switch of threads. The reactor decides who
leads (reactor.py); this module holds what is particular to an event loop.

On waiting: a task asks for its loop to lead (``attend``). If another thread leads, the reactor
offers the lead to the loop as soon as that thread stops.

On input: the loop runs a round, which is a poll without waiting, and the turns. A timer runs a
round when the next turn is due.

While tasks keep the loop busy no round runs. The protocol thread then leads until a task waits
again, so a program that blocks its event loop is slow, and its members stay in their groups.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from gapless.runtime.member_runtime import NEVER_NS
from gapless.runtime.reactor import Reactor
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle


class LoopLeader:
    """One event loop; the reactor calls ``offer`` and ``dismiss`` from any thread."""

    def __init__(self, reactor: Reactor, loop: AbstractEventLoop) -> None:
        self._reactor = reactor
        self._loop = loop
        self._poll_fd: int | None = None
        self._is_round_scheduled = False
        self._timer: TimerHandle | None = None
        self._timer_ns = NEVER_NS
        self.thread = threading.get_ident()
        """The thread that runs the loop."""

    @property
    def is_running(self) -> bool:
        """Whether the loop runs, so that it can lead."""
        return self._loop.is_running()

    # In the thread of the loop

    def attend(self) -> None:
        """Lead, unless another thread does."""
        self.thread = threading.get_ident()
        if not self._reactor.begin_loop(self):
            return
        if self._poll_fd is None:
            try:
                self._loop.add_reader(self._reactor.poll_fd, self._run_round)
            except NotImplementedError:  # a loop without readers, as the default loop of Windows
                _UNFIT.add(type(self._loop))
                self._reactor.end_loop(self)
                return
            self._poll_fd = self._reactor.poll_fd
        self._run_round()

    def _run_round(self) -> None:
        self._is_round_scheduled = False
        due_ns = self._reactor.run_loop_round(self)
        if due_ns is None:
            self._stop_reading()
        elif due_ns <= 0:
            self.run_soon()
        else:
            self.run_at(due_ns)

    def run_soon(self) -> None:
        """Run a round after the tasks that are ready now."""
        if not self._is_round_scheduled:
            self._is_round_scheduled = True
            self._loop.call_soon(self._run_round)

    def run_at(self, due_ns: int) -> None:
        """Run a round at ``due_ns``, or before."""
        if due_ns >= self._timer_ns:
            return  # the timer runs earlier, and then starts anew: cheaper than a timer a message
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due_ns
        wait_s = max(0.0, (due_ns - time.monotonic_ns()) / NS_PER_S)
        self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_ns = None, NEVER_NS
        self._run_round()

    def _stop_reading(self) -> None:
        if self._poll_fd is not None:
            self._loop.remove_reader(self._poll_fd)
            self._poll_fd = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ns = None, NEVER_NS

    def _lead_or_stop(self) -> None:
        """Stop reading, unless the loop has begun to lead again meanwhile."""
        if not self._reactor.is_led_by(self):
            self._stop_reading()

    # In any thread

    def offer(self) -> bool:
        """Ask the loop to lead; return whether the loop can answer."""
        return self._call(self.attend)

    def dismiss(self) -> None:
        """Let the loop forget the sockets: another thread leads, or there is no member."""
        self._call(self._lead_or_stop)

    def _call(self, function: object) -> bool:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)  # type: ignore[arg-type]
            return True
        return False


_LEADERS: WeakKeyDictionary[AbstractEventLoop, LoopLeader] = WeakKeyDictionary()
_UNFIT: set[type[AbstractEventLoop]] = set()
"""Kinds of event loops that cannot wait for a file descriptor."""


def attend(loop: AbstractEventLoop) -> None:
    """Let the running event loop lead, if it can, while a task waits for a group."""
    if (reactor := Reactor.current()) is None:
        return
    leader = _LEADERS.get(loop)
    if leader is not None and reactor.is_led_by(leader):
        return
    if leader is None or leader._reactor is not reactor:
        if type(loop) in _UNFIT or not reactor.fits_loops:
            return
        leader = _LEADERS[loop] = LoopLeader(reactor, loop)
    leader.attend()
