"""Ctrl-C: a command ends within two seconds, with one line and the exit code 130.

Whatever an operation that breaks off raises instead of KeyboardInterrupt, the exit code is 130. A
Ctrl-C after the end of a command changes nothing.

On the first Ctrl-C: the line is written, later noise on standard error is dropped (log records and
threads of an operation that breaks off), worker processes are killed, and KeyboardInterrupt ends
the command. A command that has not ended after ``EXIT_WITHIN_S`` exits without cleaning up. Either
way no process that the command has started is left, such as a Java process that still starts.

A command that ends in good order on Ctrl-C has its own handler meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

EXIT_INTERRUPTED = 130
EXIT_WITHIN_S = 1.5
"""How long an interrupted command may clean up."""


_interrupted = threading.Event()


def was_interrupted() -> bool:
    """Return whether Ctrl-C has ended the command."""
    return _interrupted.is_set()


def ignore_interrupts() -> None:
    """From now on Ctrl-C has no effect: the command is done, and only Python has to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_on_interrupt() -> None:
    """From now on Ctrl-C ends this process soon."""
    signal.signal(signal.SIGINT, _on_interrupt)


@contextmanager
def plain_interrupt() -> Iterator[None]:
    """Let Ctrl-C only raise KeyboardInterrupt, for a command that ends in good order."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _on_interrupt(_: int, __: FrameType | None) -> NoReturn:
    _interrupted.set()
    with suppress(OSError, ValueError):
        sys.stderr.write("gapless: interrupted\n")
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if "multiprocessing" in sys.modules:
        # A worker that is still starting would complain that its parent is gone.
        for worker in sys.modules["multiprocessing"].active_children():
            worker.kill()
    last = threading.Timer(EXIT_WITHIN_S, _exit)
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def forget_interrupt() -> None:
    """Clear away an interrupted command, so that the process ends with its own exit code."""
    with suppress(Exception):
        _kill_children()
    # Python ends with the signal instead if the interrupt has passed through an ``exec`` of text,
    # as in the import of a module with dataclasses. Another ``exec`` makes it forget that.
    exec("")  # noqa: S102


def _kill_children() -> None:
    """Kill what an interrupted command has started, such as a Java process that still starts."""
    from gapless_lab.process import descendants  # imported late: only interrupted commands need it

    for pid in descendants(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _exit() -> None:
    with suppress(Exception):
        _kill_children()
    os._exit(EXIT_INTERRUPTED)
