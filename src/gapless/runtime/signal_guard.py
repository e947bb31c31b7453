"""Defer signals while the main thread runs a turn.

Python runs a signal handler in the main thread between any two bytecodes, and a handler may raise:
Ctrl-C does. Raised in the middle of a turn, an exception would leave a machine inconsistent.

On a signal during a turn: the signal is deferred, and the handler is called after the turn.

On a signal during select: the thread stops leading first, so that another thread leads however long
the handler takes. Then the handler is called, and an exception reaches the waiting caller.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType
    from typing import Self

_NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_SIGNALS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
"""Signals that programs handle. An exception in the handler of another signal ends the group."""
# The C functions: the wrappers of the module ``signal`` convert to enums, which costs more.
_RAW_SIGNAL = sys.modules.get("_signal", signal)
_handler_of: Callable[[int], Any] = _RAW_SIGNAL.getsignal
_handle: Callable[[int, Any], Any] = _RAW_SIGNAL.signal


def in_main_thread() -> bool:
    """Return whether this is the main thread, where Python runs signal handlers."""
    return threading.current_thread() is threading.main_thread()


class SignalGuard:
    """``with guard:`` around turns in the main thread; ``waiting`` while the thread is in select.

    A handler that returns ends the wait with InterruptedError: another thread leads by then.
    """

    __slots__ = ("_deferred", "_handlers", "_installed", "_yield_polling", "waiting")

    def __init__(self, yield_polling: Callable[[], None] | None = None) -> None:
        self._yield_polling = yield_polling
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._installed: list[int] = []
        self._deferred: list[tuple[int, FrameType | None]] = []
        self.waiting = False

    def __enter__(self) -> Self:
        try:
            for number in _SIGNALS:
                handler = _handler_of(number)
                # A handler that is no function means: the default action, or ignore.
                if type(handler) is not int and callable(handler):
                    self._handlers[number] = handler
                    self._installed.append(number)
                    _handle(number, self._on_signal)
        except ValueError:
            self._installed.clear()  # another thread started Python, and gets the signals
        except BaseException:
            self._restore_handlers()
            raise
        return self

    def begin_wait(self) -> None:
        """Begin to wait: handle signals at once, starting with a deferred one."""
        self.waiting = True
        if self._deferred:
            self._on_signal(*self._deferred.pop(0))

    def end_wait(self) -> None:
        """End the wait: defer signals."""
        if not self.waiting:
            raise InterruptedError  # a selector hides it
        self.waiting = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.waiting:
            self._deferred.append((number, frame))
            return
        self.waiting = False
        if self._yield_polling is not None:
            self._yield_polling()
        self._handlers[number](number, frame)
        raise InterruptedError

    def __exit__(self, *_: object) -> None:
        try:
            self._restore_handlers()
        finally:
            if self._deferred:
                self._run_deferred()

    def _restore_handlers(self) -> None:
        """Restore the handlers; a restored one may run and raise before the next is restored."""
        raised: BaseException | None = None
        while self._installed:
            try:
                while self._installed:
                    _handle(self._installed[-1], self._handlers[self._installed[-1]])
                    self._installed.pop()
            except BaseException as error:  # noqa: BLE001 - it is raised below
                raised = error
        if raised is not None:
            raise raised

    def _run_deferred(self) -> None:
        """Call the handler of every deferred signal, even after a handler has raised."""
        number, frame = self._deferred.pop(0)
        try:
            self._handlers[number](number, frame)
        finally:
            if self._deferred:
                self._run_deferred()
