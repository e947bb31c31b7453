"""Signals in the main thread during a turn: deferred, called afterwards, handlers restored."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gapless.runtime.signal_guard import SignalGuard


@contextmanager
def handlers(**called: Callable[..., Any]) -> Iterator[None]:
    before: dict[str, Any] = {
        name: signal.signal(getattr(signal, name), handler) for name, handler in called.items()
    }
    try:
        yield
        for name, handler in called.items():
            assert signal.getsignal(getattr(signal, name)) is handler
    finally:
        for name, former in before.items():
            signal.signal(getattr(signal, name), former)


def send(*names: str) -> None:
    for name in names:
        os.kill(os.getpid(), getattr(signal, name))


def raises(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_signal_waits_for_the_end() -> None:
    heard: list[str] = []
    with handlers(SIGUSR1=lambda *_: heard.append("one")):
        with SignalGuard():
            send("SIGUSR1")
            assert heard == []
        assert heard == ["one"]


def test_one_that_raises_keeps_no_other_from_its_handler() -> None:
    heard: list[str] = []
    with handlers(SIGINT=raises, SIGUSR1=lambda *_: heard.append("one")):
        with pytest.raises(KeyboardInterrupt), SignalGuard():
            send("SIGINT", "SIGUSR1")
        assert heard == ["one"]


def test_what_is_raised_while_handlers_are_given_back_is_raised_when_all_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gapless.runtime import signal_guard as shield

    real, calls = shield._handle, []

    def handle(number: int, handler: Any) -> None:
        real(number, handler)
        calls.append(number)
        if len(calls) == 3:  # two were taken, and the first is back
            raises()

    monkeypatch.setattr(shield, "_handle", handle)
    with handlers(SIGINT=raises, SIGUSR1=raises):
        kept = [number for number in shield._SIGNALS if callable(signal.getsignal(number))]
        monkeypatch.setattr(
            shield,
            "_SIGNALS",
            tuple(number for number in kept if number in {signal.SIGINT, signal.SIGUSR1}),
        )
        with pytest.raises(KeyboardInterrupt), SignalGuard():
            pass
        assert len(calls) == 5


def test_while_a_thread_waits_it_stands_down_before_the_handler_is_called() -> None:
    heard: list[str] = []
    with (
        handlers(SIGUSR1=lambda *_: heard.append("handler")),
        SignalGuard(lambda: heard.append("stands down")) as shield,
    ):
        shield.begin_wait()
        with pytest.raises(InterruptedError):
            send("SIGUSR1")
        assert heard == ["stands down", "handler"]
        with pytest.raises(InterruptedError):
            shield.end_wait()


def test_what_was_kept_is_handled_before_the_wait() -> None:
    heard: list[str] = []
    with handlers(SIGUSR1=lambda *_: heard.append("one")), SignalGuard() as shield:
        send("SIGUSR1")
        with pytest.raises(InterruptedError):
            shield.begin_wait()
        assert heard == ["one"]
