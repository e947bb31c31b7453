"""Runs the real reactor in threads that take turns as a schedule says, one line at a time.

Only one thread runs at any moment. Before every line of reactor.py, and inside every lock, future
and select, the schedule decides which thread goes on. Locks, selectors, futures and the clock are
replaced, so a thread that waits is known to wait, and time passes only if all threads wait. If all
wait without a time limit, a wake-up was lost.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from gapless.runtime import loop_leader, reactor as subject
from gapless.runtime.member_runtime import NEVER_NS
from gapless.runtime.signal_guard import SignalGuard
from gapless.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

MAX_STEPS = 50_000
"""A schedule with more steps makes no progress."""
TIMER_NS = 1_000_000
"""The delay of a timer."""
DELAY, LONG_DELAY = -1, -2
"""In place of a task: delay the running one until no other can go on, at once or after a while."""
LONG_DELAY_NS = 100_000_000
MAX_DELAY_STEPS = 1000
"""How many steps of other threads a delay lasts at most."""
_FILE = subject.__file__
_TRACED = {_FILE, loop_leader.__file__}


class Abandoned(BaseException):
    """The run is over: every thread ends where it stands."""


class Task:
    """One thread of a run."""

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self.name = name
        self.function = function
        self.go = threading.Semaphore(0)
        self.holds: Callable[[], bool] | None = None
        self.until_ns: int | None = None
        self.delayed_until_ns: int | None = None
        self.done = False
        self.line = 0


class Interleaving:
    """One run: ``preemptions`` maps the number of a step to the task that goes on there."""

    def __init__(self, preemptions: dict[int, int]) -> None:
        self.preemptions = preemptions
        self.tasks: list[Task] = []
        self.now_ns = NS_PER_S
        self.steps = 0
        self.delayed_ns = 0
        self._resume_step = 0
        self.stuck: list[str] = []
        self.errors: list[BaseException] = []
        self.guard: ModelGuard | None = None
        self.signalled = False
        self._current: Task | None = None
        self._ending = False
        self._finished = threading.Semaphore(0)

    # Called by the test

    def spawn(self, name: str, function: Callable[[], object]) -> None:
        """Add a thread; it starts when the schedule says so."""
        task = Task(name, function)
        self.tasks.append(task)
        threading.Thread(target=self._run_task, args=(task,), daemon=True).start()

    def run(self) -> None:
        """Run until every thread but the protocol thread is done, or no thread can go on."""
        self._current = self.tasks[0]
        self._current.go.release()
        assert self._finished.acquire(timeout=60), "the threads of the test stand still"
        self._ending = True
        for task in self.tasks:
            if not task.done:
                task.go.release()
                assert self._finished.acquire(timeout=60)

    @property
    def late_ns(self) -> int:
        """How long all threads waited: only a time limit let one of them go on."""
        return self.now_ns - NS_PER_S - self.delayed_ns

    @property
    def in_main_thread(self) -> bool:
        """Whether the running thread is the one that gets signals."""
        return self._current is not None and self._current.name == "main"

    @property
    def is_main_in_select(self) -> bool:
        """Whether the thread that gets signals selects on the sockets."""
        return self.guard is not None and self.guard.waiting

    # Called in the threads

    def _run_task(self, task: Task) -> None:
        task.go.acquire()
        try:
            if not self._ending:
                sys.settrace(self._trace)
                task.function()
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - the test reports it
            self.errors.append(error)
        finally:
            sys.settrace(None)
            task.done = True
            if self._ending:
                self._finished.release()
            else:
                self._go_on(self._next(task))

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        return self._trace_line if frame.f_code.co_filename in _TRACED else None

    def _trace_line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            task = self._current
            if task is not None:
                task.line = frame.f_lineno
            self.step()
        return self._trace_line

    def step(self) -> None:
        """Let another thread go on here, if the schedule says so."""
        task = self._current
        if task is None:
            return  # the reactor is made before the run starts
        if self._ending:
            raise Abandoned
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.stuck.append("no progress")
            self._finish(task)
        wanted = self.preemptions.get(self.steps)
        if self.steps == self._resume_step:
            for number, one in enumerate(self.tasks):
                if one.delayed_until_ns is not None and one is not task:
                    wanted = number  # the others poll without a pause
        if wanted is not None and wanted < 0:
            self._resume_step = self.steps + MAX_DELAY_STEPS
            self.delayed_ns += LONG_DELAY_NS if wanted == LONG_DELAY else 0
            task.delayed_until_ns = self.now_ns + (LONG_DELAY_NS if wanted == LONG_DELAY else 0)
            self._switch(task, self._next(task))
        elif wanted is not None:
            other = self.tasks[wanted % len(self.tasks)]
            if other is not task and self._can_run(other):
                other.delayed_until_ns = None
                self._switch(task, other)

    def wait(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until ``holds()``, or the timeout; return ``holds()``."""
        self.step()
        task = self._current
        if task is not None and not holds():
            task.holds = holds
            task.until_ns = None if timeout_s is None else self.now_ns + int(timeout_s * NS_PER_S)
            self._switch(task, self._next(task))
            task.holds = task.until_ns = None
        return holds()

    def _can_run(self, task: Task) -> bool:
        if task.done:
            return False
        return task.holds is None or task.holds() or self._is_late(task)

    def _is_late(self, task: Task) -> bool:
        return task.until_ns is not None and task.until_ns <= self.now_ns

    def _next(self, task: Task) -> Task | None:
        """Return the next thread in the circle that can run; let time pass if none can."""
        if all(one.done or one.name == "gapless" for one in self.tasks):
            return None
        at = self.tasks.index(task)
        circle = self.tasks[at + 1 :] + self.tasks[: at + 1]
        while True:
            for one in circle:
                if one.delayed_until_ns is None and self._can_run(one):
                    return one
            for one in circle:
                if one.delayed_until_ns is not None and one.delayed_until_ns <= self.now_ns:
                    one.delayed_until_ns = None
                    return one
            limits = [
                limit_ns
                for one in self.tasks
                for limit_ns in (one.until_ns, one.delayed_until_ns)
                if not one.done and limit_ns is not None
            ]
            if not limits:
                self.stuck += [f"{one.name} at line {one.line}" for one in circle if not one.done]
                return None
            self.now_ns = max(self.now_ns, min(limits))

    def _switch(self, task: Task, other: Task | None) -> None:
        if other is task:
            return
        self._go_on(other)
        task.go.acquire()
        if self._ending:
            raise Abandoned
        self._current = task

    def _finish(self, task: Task) -> None:
        self._switch(task, None)

    def _go_on(self, other: Task | None) -> None:
        if other is None:
            self._finished.release()
        else:
            self._current = other
            other.go.release()


class ModelLock:
    """A lock whose waiters are known."""

    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self._is_locked = False

    def locked(self) -> bool:
        return self._is_locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self._run.wait(lambda: not self._is_locked, None if timeout < 0 else timeout)
        if self._is_locked:
            return False
        self._is_locked = True
        return True

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        self._run.step()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self._is_locked = False


class ModelSocket:
    """A socket that is readable while it has bytes; also a wake socket with both ends."""

    def __init__(self) -> None:
        self.bytes = 0
        self.receiver = self.sender = self

    def send(self, data: bytes) -> None:
        self.bytes += len(data)

    def wake(self) -> None:
        self.bytes += 1

    def clear(self) -> None:
        self.bytes = 0


class ModelSelector:
    """Selects on model sockets, or on another model selector."""

    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self._keys: dict[ModelSocket | ModelSelector, object] = {}

    @property
    def bytes(self) -> int:
        """Above 0 if a select would return at once."""
        return len(self._ready())

    def fileno(self) -> ModelSelector:
        """Stand for the file descriptor."""
        return self

    def register(self, one: ModelSocket | ModelSelector, _: int, data: object = None) -> None:
        self._keys[one] = data

    def unregister(self, one: ModelSocket) -> None:
        del self._keys[one]

    def _ready(self) -> list[tuple[SimpleNamespace, int]]:
        found = [(one, data) for one, data in self._keys.items() if one.bytes]
        return [(SimpleNamespace(fileobj=one, data=data), 1) for one, data in found]

    def select(self, timeout: float | None) -> list[tuple[SimpleNamespace, int]]:
        run, mine = self._run, self._run.in_main_thread
        run.wait(lambda: bool(self._ready()) or (mine and run.signalled), timeout)
        if mine and run.signalled and run.guard is not None:
            run.signalled = False
            with suppress(InterruptedError):  # as a selector does
                run.guard._on_signal(1, None)
            return []
        return self._ready()


class ModelTimer:
    """A call at a time."""

    def __init__(self, due_ns: int, function: Callable[[], None]) -> None:
        self.due_ns = due_ns
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        self.function = None


class ModelEventLoop:
    """An event loop, as far as ``LoopLeader`` uses one."""

    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[ModelTimer] = []
        self._reader: tuple[ModelSelector, Callable[[], None]] | None = None
        self._is_running = self._is_closed = False

    def close(self) -> None:
        self._is_closed = True

    def is_running(self) -> bool:
        return self._is_running

    def add_reader(self, selector: ModelSelector, function: Callable[[], None]) -> None:
        self._reader = selector, function

    def remove_reader(self, _: ModelSelector) -> None:
        self._reader = None

    def call_soon(self, function: Callable[[], None]) -> None:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        self._calls.append(function)

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, function: Callable[[], None]) -> ModelTimer:
        if self._is_closed:
            raise RuntimeError("Event loop is closed")
        timer = ModelTimer(self._run.now_ns + int(delay_s * NS_PER_S), function)
        self._timers.append(timer)
        return timer

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run until ``done()``."""
        run = self._run
        self._is_running = True
        while not done():
            self._timers = [timer for timer in self._timers if timer.function is not None]
            due_ns = min((timer.due_ns for timer in self._timers), default=None)
            timeout_s = None if due_ns is None else max(0, due_ns - run.now_ns) / NS_PER_S
            run.wait(lambda: done() or bool(self._calls) or self._is_readable(), timeout_s)
            for timer in self._timers:
                if timer.due_ns <= run.now_ns and timer.function is not None:
                    function, timer.function = timer.function, None
                    self._calls.append(function)
            if self._reader is not None and self._is_readable():
                self._calls.append(self._reader[1])
            for _ in range(len(self._calls)):
                self._calls.popleft()()
        self._is_running = False

    def _is_readable(self) -> bool:
        return self._reader is not None and self._reader[0].bytes > 0


class ModelGuard(SignalGuard):
    """A guard of the thread "main", which gets the signal of the story."""

    run: Interleaving
    handler: Callable[[], None]

    def __enter__(self) -> Self:
        self._handlers = {1: lambda *_: type(self).handler()}
        self.run.guard = self
        return self

    def __exit__(self, *_: object) -> None:
        self.run.guard = None
        assert not self._deferred, "a model signal comes only during select"


class ModelFuture:
    """A future whose waiters are known."""

    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self._is_done = False
        self._callbacks: list[Callable[[object], None]] = []

    def done(self) -> bool:
        return self._is_done

    def add_done_callback(self, function: Callable[[object], None]) -> None:
        if self._is_done:
            function(self)
        else:
            self._callbacks.append(function)

    def set_result(self, _: object) -> None:
        self._run.step()
        self._is_done = True
        self._run.step()
        for function in self._callbacks:
            function(self)

    def result(self, timeout: float | None = None) -> None:
        if not self._run.wait(self.done, timeout):
            raise TimeoutError

    def cancel(self) -> bool:
        return not self._is_done


class ModelMember:
    """A member with commands, messages and an inbox, and without a protocol."""

    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self.socket = ModelSocket()
        self.transport = SimpleNamespace(sockets=lambda: [self.socket])
        self.calls: deque[Callable[[], None]] = deque()
        self.registered = self.ended = self.expelled = self.is_over = False
        self.due_ns = NEVER_NS
        self.trace = None
        self.inbox = 0
        self.timers = 0
        self.closed = ModelFuture(run)
        self._waiters: list[ModelFuture] = []

    # What the reactor asks of a member

    @property
    def has_commands(self) -> bool:
        return bool(self.calls)

    def run_commands(self, _: int) -> tuple[()]:
        for _ in range(len(self.calls)):
            self.calls.popleft()()
        return ()

    def receive_datagrams(self, _: int) -> tuple[()]:
        self.inbox += self.socket.bytes
        self.socket.bytes = 0
        return ()

    def deliver(self) -> None:
        self._run.step()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    def is_due(self, now_ns: int) -> bool:
        return self.due_ns <= now_ns

    def run_timers(self, _: int) -> list[object]:
        self.due_ns = NEVER_NS
        self.put()
        return [SimpleNamespace(events=(), transmits=())]

    def collect(self, _: object) -> None:
        """Take the answer of a timer, which is empty."""

    def end_turn(self) -> bool:
        return self.has_commands

    def end(self) -> None:
        self.ended = True
        self.closed.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, Abandoned):
            raise error

    # What an inbox and a handle do

    def new_waiter(self, holds: Callable[[], bool]) -> ModelFuture | None:
        if holds():
            return None
        waiter = ModelFuture(self._run)
        self._waiters.append(waiter)
        return waiter

    def take(self, reactor: subject.Reactor, until_ns: int | None = None) -> None:
        """Wait for a message, as ``receive`` does, and take it."""
        while not self.inbox:
            reactor.wait_until(lambda: self.inbox > 0, until_ns, self.new_waiter)  # type: ignore[arg-type]
        self.inbox -= 1

    def put(self) -> None:
        self.inbox += 1

    def arm(self) -> None:
        """Start a timer, which puts a message into the inbox."""
        self.due_ns = self._run.now_ns + TIMER_NS

    def leave(self) -> None:
        self.is_over = True


@cache
def _code(patch: tuple[str, str] | None, path: str = _FILE) -> CodeType:
    """Return the code of a file, with a bug planted by ``patch``, a text and its successor."""
    source = Path(path).read_text()
    if patch is not None:
        assert source.count(patch[0]) == 1, f"the bug cannot be planted: {patch[0]}"
        source = source.replace(*patch)
    source = source.replace('if hasattr(os, "register_at_fork"):', "if False:")
    return compile(source, path, "exec")


def make_run(
    preemptions: dict[int, int], patch: tuple[str, str] | None = None
) -> tuple[Interleaving, Any]:
    """Return a run with the given preemptions, and a module of the reactor that takes part."""
    run = Interleaving(preemptions)

    def thread(target: Callable[[], None], **_: object) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: run.spawn("gapless", target))

    module: Any = ModuleType(subject.__name__)
    exec(_code(patch), module.__dict__)
    module.threading = SimpleNamespace(
        Lock=lambda: ModelLock(run), Thread=thread, get_ident=threading.get_ident
    )
    module.selectors = SimpleNamespace(DefaultSelector=lambda: ModelSelector(run), EVENT_READ=1)
    module.WakeSocket = ModelSocket
    module.time = SimpleNamespace(monotonic_ns=lambda: run.now_ns)
    module.in_main_thread = lambda: run.in_main_thread
    module.SignalGuard = type("Guard", (ModelGuard,), {"run": run})
    module.LoopLeader = _loop_leader(run)
    return run, module


def _loop_leader(run: Interleaving) -> Any:
    """Return the class of an event loop that leads, with the clock of the run."""
    module: Any = ModuleType(loop_leader.__name__)
    exec(_code(None, loop_leader.__file__), module.__dict__)
    module.time = SimpleNamespace(monotonic_ns=lambda: run.now_ns)
    return module.LoopLeader
