"""A session for a command with a progress display: the JVM logs to a file, Ctrl-C stays ours."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_gapless.session import active_session, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def quiet_session(
    master: str | None, log_path: Path, name: str, settings: Mapping[str, object] | None = None
) -> Iterator[SparkSession]:
    """Yield a session, and stop a newly started session; the JVM's log goes to ``log_path``.

    ``settings`` apply to a newly started session; an existing session keeps its own settings.
    """
    from py4j.protocol import Py4JNetworkError

    before = active_session()
    with _errors_into(log_path), own_interrupts():
        spark = session(
            name, master=master, settings=None if before else settings, log_level="WARN"
        )
    try:
        yield spark
    finally:
        if before is None:
            # A JVM that died cannot be stopped; the code that was using it reports the death.
            with suppress(ConnectionError, Py4JNetworkError):
                spark.stop()


@contextmanager
def own_interrupts() -> Iterator[None]:
    """Keep the handler of Ctrl-C: a new session would set its own, which cancels every job."""
    set_handler = signal.signal

    def keep(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number == signal.SIGINT else set_handler(number, handler)

    signal.signal = keep  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = set_handler


@contextmanager
def _errors_into(path: Path) -> Iterator[None]:
    """Send the standard error of processes started in this block to a file."""
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
